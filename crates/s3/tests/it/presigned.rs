//! Headers that an SDK moved into the query string of a URL when it presigned the URL.

use crate::common::{Answer, Client};

/// A presigned PUT with this query.
async fn put(c: &Client, query: &[(&str, &str)]) -> Answer {
    let call = c.call("PUT", "/bucket/k").body("new");
    query.iter().fold(call, |call, (name, value)| call.query(name, value)).send_presigned(60).await
}

#[tokio::test]
async fn headers_in_the_query_string_count() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/from", "data").await.expect(200);
    let all = [
        ("x-amz-meta-owner", "ann"),
        ("X-Amz-Meta-Place", " a b+c "),
        ("x-amz-meta-name", "\u{e9}"),
        ("x-amz-acl", "private"),
        ("x-amz-storage-class", "STANDARD"),
        ("x-amz-tagging", "a=1&b=c%20d"),
        ("x-amz-website-redirect-location", "/there"),
        ("x-id", "PutObject"),
        ("x-amz-security-token", "token"),
        ("x-amz-user-agent", "a/1"),
    ];
    put(&c, &all).await.expect(200);
    let got = c.get("/bucket/k").await.expect(200);
    assert_eq!(got.bytes(), b"new");
    assert_eq!((got.header("x-amz-meta-owner"), got.header("x-amz-meta-place")), ("ann", "a b+c"));
    assert_eq!(got.headers["x-amz-meta-name"], "=?UTF-8?B?w6k=?=");
    assert_eq!((got.header("x-amz-tagging-count"), got.header("x-amz-website-redirect-location")), ("2", "/there"));
    assert_eq!(c.get("/bucket/k?tagging").await.expect(200).xml_all("Value"), ["1", "c d"]);
    // A copy, with all of its headers.
    let copy = [
        ("X-Amz-Copy-Source", "/bucket/from"),
        ("x-amz-copy-source-if-match", "*"),
        ("x-amz-metadata-directive", "REPLACE"),
        ("x-amz-meta-owner", "bob"),
    ];
    put(&c, &copy).await.expect(200).xml("ETag");
    let got = c.get("/bucket/k").await.expect(200);
    assert_eq!((got.bytes(), got.header("x-amz-meta-owner")), (&b"data"[..], "bob"));
    // An upload in parts.
    let begin = c.call("POST", "/bucket/up?uploads").query("x-amz-meta-owner", "cy").query("x-amz-tagging", "t=1");
    let id = begin.send_presigned(60).await.expect(200).xml("UploadId").to_owned();
    let part =
        c.call("PUT", &format!("/bucket/up?partNumber=1&uploadId={id}")).query("x-amz-copy-source", "bucket/from");
    let tag = part.send_presigned(60).await.expect(200).xml("ETag").to_owned();
    let whole = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></CompleteMultipartUpload>"
    );
    let complete = |size| {
        let call = c.call("POST", &format!("/bucket/up?uploadId={id}")).query("x-amz-mp-object-size", size);
        call.body(whole.clone()).send_presigned(60)
    };
    complete("5").await.refused(400, "InvalidRequest");
    complete("4").await.expect(200);
    let got = c.get("/bucket/up").await.expect(200);
    assert_eq!((got.bytes(), got.header("x-amz-meta-owner")), (&b"data"[..], "cy"));
}

#[tokio::test]
async fn refused_headers_are_refused_in_the_query_string() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", "data").await.expect(200);
    for (name, value) in [
        ("x-amz-storage-class", "GLACIER"),
        ("x-amz-server-side-encryption", "AES256"),
        ("X-Amz-Server-Side-Encryption-Customer-Algorithm", "AES256"),
        ("x-amz-server-side-encryption-aws-kms-key-id", "key"),
        ("x-amz-object-lock-mode", "COMPLIANCE"),
        ("x-amz-object-lock-legal-hold", "ON"),
        ("x-amz-object-lock-retain-until-date", "2030-01-01T00:00:00Z"),
        ("x-amz-tagging", "a=1&a=2"),
        ("x-amz-copy-source", "bucket/other"),
        ("x-amz-copy-source", "other/k"),
        ("x-amz-copy-source", "nothing"),
        ("x-amz-write-offset-bytes", "0"),
        ("x-amz-write-offset-bytes", "x"),
        ("x-amz-expected-bucket-owner", "another"),
        ("X-Amz-Meta-Large", &"x".repeat(2100)),
    ] {
        let by_header = c.call("PUT", "/bucket/k").header(&name.to_ascii_lowercase(), value).send().await;
        let by_query = put(&c, &[(name, value)]).await;
        assert_eq!((by_query.status, by_query.xml("Code")), (by_header.status, by_header.xml("Code")), "{name}");
        assert!(by_query.status >= 400, "{name}");
    }
    c.put("/bucket/from", "other").await.expect(200);
    let differs = put(&c, &[("x-amz-copy-source", "bucket/from"), ("X-Amz-Copy-Source-If-Match", "\"0\"")]).await;
    assert_eq!(differs.refused(412, "PreconditionFailed").xml("Condition"), "x-amz-copy-source-If-Match");
    // No client can send these as headers.
    for (name, value) in [("x-amz-meta-a", "a\nb"), ("x-amz-meta-a b", "c"), ("x-amz-meta-\u{e9}", "c")] {
        put(&c, &[(name, value)]).await.refused(400, "InvalidArgument");
    }
    // A duplicate is refused, in capitals or not.
    for again in ["x-amz-tagging", "X-AMZ-TAGGING"] {
        put(&c, &[("x-amz-tagging", "a=1"), (again, "b=2")]).await.refused(400, "InvalidRequest");
    }
    put(&c, &[("x-steadfast-durability", "sync")]).await.refused(501, "NotImplemented");
    c.call("DELETE", "/bucket/k?x-amz-if-match-size=4").send_presigned(60).await.refused(501, "NotImplemented");
    let lock = c.call("PUT", "/other?x-amz-bucket-object-lock-enabled=true");
    lock.send_presigned(60).await.refused(400, "InvalidRequest");
    assert_eq!(c.get("/bucket/k").await.expect(200).bytes(), b"data");
    put(&c, &[("x-amz-expected-bucket-owner", "steadfast")]).await.expect(200);
}

#[tokio::test]
async fn query_parameters_that_are_not_headers() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    // SDKs compute these of the empty body at the time of presigning.
    for (name, value) in [
        ("x-amz-checksum-crc32", "AAAAAA=="),
        ("X-Amz-Checksum-Sha256", "wrong"),
        ("x-amz-sdk-checksum-algorithm", "CRC32"),
        ("x-amz-content-sha256", "0"),
        ("x-amz-decoded-content-length", "7"),
        ("x-amz-trailer", "x-amz-checksum-crc32"),
    ] {
        put(&c, &[(name, value)]).await.expect(200);
    }
    // A header on the request itself takes precedence.
    c.call("PUT", "/bucket/k?x-amz-meta-owner=ann")
        .body("x")
        .header("x-amz-meta-owner", "bob")
        .send()
        .await
        .expect(200);
    assert_eq!(c.get("/bucket/k").await.header("x-amz-meta-owner"), "bob");
    // It must be signed as always, whatever the query string holds.
    for value in ["ann", "bob"] {
        let call = c.call("PUT", "/bucket/k?x-amz-meta-owner=ann").unsigned("x-amz-meta-owner", value);
        call.send_presigned(60).await.refused(403, "AccessDenied");
    }
    // Only presigned URLs carry headers in the query string.
    c.call("PUT", "/bucket/k?x-amz-meta-owner=ann").body("x").send().await.expect(200);
    assert_eq!(c.get("/bucket/k").await.header("x-amz-meta-owner"), "");
    c.call("PUT", "/bucket/k?x-amz-copy-source=bucket/k").send().await.refused(501, "NotImplemented");
    // A wrong signature is refused first.
    let mut wrong = Client::over(crate::common::store().await, crate::common::options());
    wrong.signer.secret_key = "wrong".into();
    put(&wrong, &[("x-amz-meta-a", "a\nb")]).await.refused(403, "SignatureDoesNotMatch");
}
