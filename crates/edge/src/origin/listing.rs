//! Listings of an S3 origin.

use serde::Deserialize;

/// An object that an origin lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedObject {
    /// The key, as clients of the edge name it.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
}

/// A page of an origin's listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OriginPage {
    /// The objects, by key.
    pub objects: Vec<ListedObject>,
    /// The last key of the page, if there are more.
    pub next: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListBucketResult {
    // Required, so that an error is not an empty listing.
    is_truncated: bool,
    #[serde(default)]
    contents: Vec<Contents>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Contents {
    key: String,
    size: u64,
}

impl OriginPage {
    /// Reads an answer to ListObjectsV2. All keys at the origin begin with `prefix`, which clients
    /// of the edge do not see; the page follows the key `after` of the edge.
    ///
    /// # Errors
    /// The answer is not a listing in ascending order.
    pub(crate) fn read(body: &[u8], prefix: &str, after: &str) -> Result<Self, String> {
        let text = std::str::from_utf8(body).map_err(|_| "its listing is not UTF-8".to_owned())?;
        let result: ListBucketResult =
            quick_xml::de::from_str(text).map_err(|e| format!("its listing cannot be read: {e}"))?;
        let mut objects = Vec::with_capacity(result.contents.len());
        let mut last = after.to_owned();
        for Contents { key, size } in result.contents {
            let Some(key) = key.strip_prefix(prefix) else {
                return Err("its listing has a key without the prefix".to_owned());
            };
            if key <= last.as_str() && !key.is_empty() {
                return Err("its listing is not in order".to_owned());
            }
            last = key.to_owned();
            // The key of the prefix itself has no name here, and a directory marker no bytes.
            if !key.is_empty() {
                objects.push(ListedObject { key: key.to_owned(), size });
            }
        }
        match (result.is_truncated, last == after) {
            (true, true) => Err("its listing does not end".to_owned()),
            (more, _) => Ok(Self { objects, next: more.then_some(last) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(truncated: bool, keys: &[&str]) -> String {
        let contents = |key: &&str| format!("<Contents><Key>{key}</Key><Size>7</Size><ETag>\"x\"</ETag></Contents>");
        format!(
            "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>\
             <IsTruncated>{truncated}</IsTruncated>{}</ListBucketResult>",
            keys.iter().map(contents).collect::<String>()
        )
    }

    #[test]
    fn listings_are_read_and_wrong_ones_refused() {
        let read = |text: &str, after| OriginPage::read(text.as_bytes(), "vod/", after);
        let keys = |page: OriginPage| page.objects.into_iter().map(|object| object.key).collect::<Vec<_>>();
        let two = read(&page(true, &["vod/a &amp; b", "vod/c"]), "").expect("a page");
        assert_eq!((two.next.as_deref(), two.objects[0].size), (Some("c"), 7));
        assert_eq!(keys(two), ["a & b", "c"]);
        assert_eq!(read(&page(false, &[]), "x"), Ok(OriginPage::default()));
        assert_eq!(keys(read(&page(false, &["vod/", "vod/a"]), "").expect("a marker")), ["a"]);
        for (text, after) in [
            (page(false, &["vod/c", "vod/b"]), ""),
            (page(false, &["vod/b", "vod/b"]), ""),
            (page(false, &["vod/b"]), "b"),
            (page(false, &["other/b"]), ""),
            (page(true, &[]), ""),
            ("<Error><Code>AccessDenied</Code></Error>".to_owned(), ""),
            ("not XML".to_owned(), ""),
        ] {
            assert!(read(&text, after).is_err(), "{text}");
        }
    }
}
