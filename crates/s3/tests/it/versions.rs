//! Listings of versions, and completions that are repeated.

use crate::common::{Answer, Client};

/// The text of the elements of one version each.
fn versions(answer: &Answer) -> Vec<(String, String)> {
    let of = |version: &str, name: &str| {
        let text = version.split(&format!("<{name}>")).nth(1).unwrap_or_default();
        text.split("</").next().unwrap_or_default().to_owned()
    };
    answer.xml_all("Version").into_iter().map(|v| (of(v, "Key"), of(v, "VersionId") + &of(v, "IsLatest"))).collect()
}

#[tokio::test]
async fn every_object_is_listed_once_as_the_version_null() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let keys = ["a b", "a/1", "a/2", "b/1", "c", "é"];
    for key in keys {
        c.put(&format!("/bucket/{key}"), "old").await.expect(200);
        c.put(&format!("/bucket/{key}"), key).await.expect(200);
    }
    let all = c.get("/bucket?versions").await.expect(200);
    let expected: Vec<_> = keys.iter().map(|key| ((*key).to_owned(), "nulltrue".to_owned())).collect();
    assert_eq!(versions(&all), expected);
    assert_eq!((all.xml("IsTruncated"), all.xml("NextKeyMarker"), all.xml("Name")), ("false", "", "bucket"));
    assert!(all.text().contains("ListVersionsResult"), "{}", all.text());
    let encoded = c.get("/bucket?versions&encoding-type=url&prefix=a&delimiter=/").await.expect(200);
    assert_eq!(versions(&encoded)[0].0, "a%20b");
    assert_eq!(encoded.xml_all("CommonPrefixes"), ["<Prefix>a/</Prefix>"]);
    // Page by page.
    for delimiter in ["", "/"] {
        let (mut key_marker, mut version_marker, mut found) = (String::new(), String::new(), Vec::new());
        loop {
            let call = c.call("GET", "/bucket?versions&max-keys=1").query("delimiter", delimiter);
            let call = call.query("key-marker", &key_marker).query("version-id-marker", &version_marker);
            let page = call.send().await.expect(200);
            let prefixes = page.xml_all("CommonPrefixes").into_iter().map(str::to_owned);
            found.extend(versions(&page).into_iter().map(|(key, _)| key).chain(prefixes));
            if page.xml("IsTruncated") == "false" {
                break;
            }
            key_marker = page.xml("NextKeyMarker").to_owned();
            version_marker = page.xml("NextVersionIdMarker").to_owned();
            assert_eq!(version_marker.is_empty(), key_marker.ends_with('/'));
        }
        assert_eq!(found.len(), if delimiter.is_empty() { 6 } else { 5 }, "{found:?}");
    }
    c.get("/bucket?versions&version-id-marker=null").await.refused(400, "InvalidArgument");
    c.get("/bucket?versions&max-keys=-1").await.refused(400, "InvalidArgument");
    c.get("/absent?versions").await.refused(404, "NoSuchBucket");
    // A version that a listing names can be deleted.
    let delete = "<Delete><Object><Key>c</Key><VersionId>null</VersionId></Object></Delete>";
    let deleted = c.call("POST", "/bucket?delete").body(delete).send().await.expect(200);
    assert_eq!(deleted.xml("VersionId"), "null");
    c.get("/bucket/c").await.refused(404, "NoSuchKey");
}

#[tokio::test]
async fn a_completion_can_be_repeated_until_the_object_changes() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let begun = c.call("POST", "/bucket/k?uploads").header("x-amz-checksum-algorithm", "CRC32C");
    let id = begun.header("if-none-match", "*").send().await.expect(200).xml("UploadId").to_owned();
    let part = c.put(&format!("/bucket/k?partNumber=1&uploadId={id}"), "part").await.expect(200);
    let whole = |tag: &str| {
        format!(
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></CompleteMultipartUpload>"
        )
    };
    let same = whole(part.header("etag"));
    let complete = |key: &str, body: &str| {
        c.call("POST", &format!("/bucket/{key}?uploadId={id}"))
            .body(body.to_owned())
            .header("if-none-match", "*")
            .send()
    };
    let first = complete("k", &same).await.expect(200);
    assert!(!first.xml("ChecksumCRC32C").is_empty(), "{first:?}");
    c.call("PUT", "/bucket/k?tagging").body("<Tagging><TagSet/></Tagging>").send().await.expect(200);
    for _ in 0..2 {
        let again = complete("k", &same).await.expect(200);
        assert_eq!((again.text(), again.header("x-steadfast-durable")), (first.text(), "true"));
    }
    // Other parts, another key, a copy.
    complete("k", &whole("\"0cc175b9c0f1b6a831c399e269772661\"")).await.refused(404, "NoSuchUpload");
    complete("k", "<CompleteMultipartUpload/>").await.refused(400, "MalformedXML");
    c.call("PUT", "/bucket/copy").header("x-amz-copy-source", "bucket/k").send().await.expect(200);
    complete("copy", &same).await.refused(404, "NoSuchUpload");
    complete("none", &same).await.refused(404, "NoSuchUpload");
    // The object has changed, to the same content.
    let copy = c.call("PUT", "/bucket/k").header("x-amz-copy-source", "bucket/copy");
    copy.send().await.expect(200);
    complete("k", &same).await.refused(404, "NoSuchUpload");
    c.call("DELETE", "/bucket/k").send().await.expect(204);
    complete("k", &same).await.refused(404, "NoSuchUpload");
}
