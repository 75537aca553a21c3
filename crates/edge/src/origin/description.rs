//! What the headers of an answer say about the object.

use http::HeaderMap;
use steadfast_store::{Attributes, WEAK_ETAG};

use super::media_types;
use crate::fresh::{CacheHeaders, date_ms};

/// Largest sum of the header bytes of an answer.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// Largest sum of the metadata bytes that are stored with an object.
const METADATA_BYTES_MAX: usize = 48 << 10;
const CONTENT_TYPE: &str = "content-type";
/// The headers that are stored with an object.
const STORED: [&str; 6] =
    [CONTENT_TYPE, "cache-control", "content-disposition", "content-encoding", "content-language", "expires"];
/// The value of [`WEAK_ETAG`] for a tag that the origin has not sent.
pub(crate) const MADE_TAG: &str = "made";
const USER_PREFIX: &str = "x-amz-meta-";

/// An entity tag, without quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tag {
    None,
    Weak(String),
    Strong(String),
}

impl Tag {
    fn read(value: Option<&str>) -> Self {
        let Some(value) = value else { return Self::None };
        let quoted = |text: &str| Some(text.strip_prefix('"')?.strip_suffix('"')?.to_owned());
        match value.strip_prefix("W/") {
            Some(weak) => quoted(weak).map_or(Self::None, Self::Weak),
            None => quoted(value).map_or(Self::None, Self::Strong),
        }
    }
}

/// What an answer with status 200 or 206 says.
#[derive(Debug, Clone)]
pub(crate) struct Description {
    pub(crate) tag: Tag,
    /// Whether the answer is a range (206).
    pub(crate) partial: bool,
    /// Where the body starts in the object.
    pub(crate) start: u64,
    /// Bytes of the body, if the answer says so.
    pub(crate) length: Option<u64>,
    /// Bytes of the object, if the answer says so.
    pub(crate) total: Option<u64>,
    /// Whether the end of the body differs from a broken connection.
    pub(crate) delimited: bool,
    /// `Last-Modified`, in milliseconds since the Unix epoch.
    pub(crate) modified_ms: Option<u64>,
    /// Entity tag and metadata, as they are stored.
    pub(crate) attributes: Attributes,
    /// What it says about caching.
    pub(crate) cache: CacheHeaders,
    /// Whether the metadata is small enough to be stored.
    pub(crate) storable: bool,
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// `bytes 5-9/20` as start, end (exclusive) and total.
fn content_range(value: &str) -> Option<(u64, u64, u64)> {
    let (span, total) = value.strip_prefix("bytes ")?.trim().split_once('/')?;
    let (first, last) = span.split_once('-')?;
    let (first, last, total): (u64, u64, u64) = (first.parse().ok()?, last.parse().ok()?, total.parse().ok()?);
    let end = last.checked_add(1)?;
    (first < end && end <= total).then_some((first, end, total))
}

/// The size in `bytes */20`, the `Content-Range` of a 416.
pub(crate) fn unsatisfied_size(headers: &HeaderMap) -> Option<u64> {
    text(headers, "content-range")?.strip_prefix("bytes */")?.parse().ok()
}

impl Description {
    /// Reads the headers of an answer with status 200 or 206 that came at `wall_ms`. If they give
    /// no media type, the extension of the key does.
    ///
    /// # Errors
    /// They contradict each other or are too large; the text is for operators.
    pub(crate) fn read(key: &str, status: u16, headers: &HeaderMap, wall_ms: u64) -> Result<Self, String> {
        let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        if bytes > HEADER_BYTES_MAX {
            return Err(format!("its headers have {bytes} bytes, more than {HEADER_BYTES_MAX}"));
        }
        let coding = text(headers, "transfer-encoding");
        // It overrides the length (RFC 9112, section 6.3).
        let mut length = match text(headers, "content-length").filter(|_| coding.is_none()) {
            Some(value) => Some(value.parse().map_err(|_| format!("its Content-Length is {value:?}"))?),
            None => None,
        };
        let chunked = coding.is_some_and(|value| value.eq_ignore_ascii_case("chunked"));
        let delimited = length.is_some() || chunked;
        let partial = status == 206;
        let (start, total) = if partial {
            let value = text(headers, "content-range").unwrap_or_default();
            let range = content_range(value).ok_or_else(|| format!("its Content-Range is {value:?}"))?;
            if length.is_some_and(|length| length != range.1 - range.0) {
                return Err(format!("its Content-Range {value:?} and its Content-Length differ"));
            }
            length = Some(range.1 - range.0);
            (range.0, Some(range.2))
        } else {
            (0, length)
        };
        let tag = Tag::read(text(headers, "etag"));
        let modified_ms = text(headers, "last-modified").and_then(date_ms);
        let mut attributes = attributes(headers, &tag, modified_ms.unwrap_or(wall_ms), total);
        let given = attributes.system.get(CONTENT_TYPE).map(String::as_str);
        if let Some(found) = media_types::instead_of(given, key) {
            attributes.system.insert(CONTENT_TYPE.to_owned(), found.to_owned());
        }
        let metadata = attributes.system.iter().chain(&attributes.user);
        let storable = metadata.map(|(name, value)| name.len() + value.len()).sum::<usize>() <= METADATA_BYTES_MAX;
        let cache = CacheHeaders::read(headers, wall_ms);
        Ok(Self { tag, partial, start, length, total, delimited, modified_ms, attributes, cache, storable })
    }
}

fn attributes(headers: &HeaderMap, tag: &Tag, modified_ms: u64, total: Option<u64>) -> Attributes {
    let mut attributes = Attributes::default();
    for name in STORED {
        if let Some(value) = text(headers, name).filter(|value| !value.is_empty()) {
            attributes.system.insert(name.to_owned(), value.to_owned());
        }
    }
    for (name, value) in headers {
        if let (Some(name), Ok(value)) = (name.as_str().strip_prefix(USER_PREFIX), value.to_str()) {
            attributes.user.insert(name.to_owned(), value.to_owned());
        }
    }
    let (etag, weak) = match tag {
        Tag::Strong(tag) => (tag.clone(), None),
        Tag::Weak(tag) => (tag.clone(), Some("")),
        // As servers make tags of files. It is weak: two versions may have the same. Without a
        // time, each answer counts as a version.
        Tag::None => (format!("{modified_ms:x}-{:x}", total.unwrap_or(0)), Some(MADE_TAG)),
    };
    attributes.etag = etag;
    attributes.system.extend(weak.map(|weak| (WEAK_ETAG.to_owned(), weak.to_owned())));
    attributes
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn read(status: u16, headers: &[(&'static str, &'static str)]) -> Result<Description, String> {
        let pair = |(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        Description::read("k", status, &headers.iter().copied().map(pair).collect(), 0)
    }

    #[test]
    fn ranges_and_lengths_are_compared() {
        let range = [("content-range", "bytes 5-9/20"), ("content-length", "5"), ("etag", "\"a\"")];
        let read_range = read(206, &range).expect("valid");
        assert_eq!((read_range.start, read_range.length, read_range.total), (5, Some(5), Some(20)));
        assert_eq!(read_range.tag, Tag::Strong("a".into()));
        let most = "bytes 0-18446744073709551615/18446744073709551615";
        for wrong in [most, "bytes 5-9/*", "bytes 9-5/20", "bytes 5-20/20", "bytes 5-9", "5-9/20", "", "bytes -9/20"] {
            assert!(read(206, &[("content-range", wrong)]).is_err(), "{wrong}");
        }
        assert!(read(206, &[("content-range", "bytes 5-9/20"), ("content-length", "6")]).is_err());
        assert!(read(200, &[("content-length", "-1")]).is_err());
        let whole = read(200, &[("content-length", "7")]).expect("valid");
        assert_eq!((whole.start, whole.length, whole.total, whole.delimited), (0, Some(7), Some(7), true));
        assert!(!read(200, &[]).expect("valid").delimited);
        let both = read(200, &[("transfer-encoding", "chunked"), ("content-length", "3")]).expect("valid");
        assert_eq!((both.length, both.total, both.delimited), (None, None, true));
        assert!(!read(200, &[("transfer-encoding", "x"), ("content-length", "3")]).expect("valid").delimited);
    }

    #[test]
    fn tags_are_strong_weak_or_made_up() {
        let tag = |value| read(200, &[("etag", value)]).expect("valid").tag;
        assert_eq!(tag("\"x\""), Tag::Strong("x".into()));
        assert_eq!(tag("W/\"x\""), Tag::Weak("x".into()));
        assert_eq!([tag("x"), tag("\"x"), tag("W/x")], [Tag::None, Tag::None, Tag::None]);
        let date = ("last-modified", "Tue, 14 Nov 2023 22:13:20 GMT");
        let made = read(200, &[date, ("content-length", "7")]).expect("valid");
        assert_eq!(made.modified_ms, Some(1_700_000_000_000));
        assert_eq!(made.attributes.etag, "18bcfe56800-7");
        assert!(made.attributes.system.contains_key(WEAK_ETAG));
        // Without a time, the answers of two times are two versions.
        let at = |wall_ms| Description::read("k", 200, &HeaderMap::new(), wall_ms).expect("valid").attributes.etag;
        assert_eq!([at(16), at(17)], ["10-0", "11-0"]);
    }

    #[test]
    fn the_extension_gives_a_type_that_the_origin_does_not_know() {
        let typed = |key, headers: &HeaderMap| {
            let described = Description::read(key, 200, headers, 0).expect("valid");
            described.attributes.system.get(CONTENT_TYPE).cloned().unwrap_or_default()
        };
        let given = |value| HeaderMap::from_iter([(http::header::CONTENT_TYPE, HeaderValue::from_static(value))]);
        assert_eq!(typed("a/live.m3u8", &HeaderMap::new()), "application/vnd.apple.mpegurl");
        assert_eq!(typed("a/live.m3u8", &given("binary/octet-stream")), "application/vnd.apple.mpegurl");
        assert_eq!(typed("a/live.m3u8", &given("text/plain")), "text/plain");
        assert_eq!(typed("a/live", &HeaderMap::new()), "");
    }

    #[test]
    fn metadata_is_kept_and_bounded() {
        let kept = [("content-type", "video/mp4"), ("x-amz-meta-a", "b"), ("set-cookie", "c"), ("x-amz-id-2", "d")];
        let described = read(200, &kept).expect("valid");
        assert_eq!(described.attributes.system.get("content-type").map(String::as_str), Some("video/mp4"));
        assert_eq!(described.attributes.user.get("a").map(String::as_str), Some("b"));
        assert_eq!((described.attributes.system.len(), described.attributes.user.len()), (2, 1));
        let value = |bytes: usize| HeaderValue::from_str(&"x".repeat(bytes)).expect("valid");
        let headers = |bytes| HeaderMap::from_iter([(HeaderName::from_static("x-amz-meta-a"), value(bytes))]);
        assert!(
            Description::read("k", 200, &headers(METADATA_BYTES_MAX), 0).is_ok_and(|described| !described.storable)
        );
        assert!(Description::read("k", 200, &headers(HEADER_BYTES_MAX), 0).is_err());
    }
}
