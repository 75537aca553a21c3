//! Requests and presigned URLs with signature version 2.

use std::time::{SystemTime, UNIX_EPOCH};

use steadfast_s3::S3Options;

use crate::common::{Client, options};

/// A time in the future, in seconds since 1970.
fn later() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() + 60
}

#[tokio::test]
async fn presigned_urls_read_and_write_one_object() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.call("PUT", "/bucket/a b/ü+1").body("data").send_presigned_v2(later()).await.expect(200);
    assert_eq!(c.call("GET", "/bucket/a b/ü+1").send_presigned_v2(later()).await.expect(200).bytes(), b"data");
    c.call("HEAD", "/bucket/a b/ü+1").send_presigned_v2(later()).await.expect(200);
    let hosted = c.call("GET", "/a b/ü+1").header("host", &format!("bucket.{}", crate::common::HOST));
    // The signature covers the bucket, also where the host names it.
    hosted.send_presigned_v2(later()).await.refused(403, "SignatureDoesNotMatch");
    let typed = c.call("GET", "/bucket/a b/ü+1?response-content-type=x/y; a=b&versionId=null");
    assert_eq!(typed.send_presigned_v2(later()).await.expect(200).header("content-type"), "x/y; a=b");
    c.call("GET", "/bucket/a b/ü+1?tagging").send_presigned_v2(later()).await.expect(200);
    c.call("DELETE", "/bucket/a b/ü+1").send_presigned_v2(later()).await.expect(204);
    c.get("/bucket/a b/ü+1").await.refused(404, "NoSuchKey");
}

#[tokio::test]
async fn headers_that_were_signed_count_in_the_query_string() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let put = || c.call("PUT", "/bucket/k").body("data").header("x-amz-meta-owner", "ann b+c");
    let typed = put().header("content-type", "text/plain").header("x-amz-acl", "private");
    typed.header("x-amz-sdk-checksum-algorithm", "CRC32").send_presigned_v2(later()).await.expect(200);
    let got = c.get("/bucket/k").await.expect(200);
    assert_eq!((got.header("x-amz-meta-owner"), got.header("content-type")), ("ann b+c", "text/plain"));
    // The request may send them as well, with the same values only.
    for (value, status) in [("ann b+c", 200), ("bob", 403)] {
        put().unsigned("x-amz-meta-owner", value).send_presigned_v2(later()).await.expect(status);
    }
    let copy = c.call("PUT", "/bucket/copy").header("x-amz-copy-source", "/bucket/k");
    copy.send_presigned_v2(later()).await.expect(200).xml("ETag");
    assert_eq!(c.get("/bucket/copy").await.expect(200).bytes(), b"data");
    let digest = || c.call("PUT", "/bucket/k").header("content-md5", "jXd/OF09/siBXSD3SWAm3A==");
    digest().body("data").send_presigned_v2(later()).await.expect(200);
    digest().body("other").send_presigned_v2(later()).await.refused(400, "BadDigest");
}

#[tokio::test]
async fn a_presigned_url_permits_nothing_else() {
    let mut c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/secret", "secret").await.expect(200);
    c.put("/bucket/k", "data").await.expect(200);
    let put = || c.call("PUT", "/bucket/k").body("new");
    for (name, value) in [
        ("x-amz-copy-source", "/bucket/secret"),
        ("x-amz-meta-a", "b"),
        ("x-amz-acl", "public-read"),
        ("x-amz-tagging", "a=b"),
        ("content-type", "text/html"),
        ("content-md5", "jXd/OF09/siBXSD3SWAm3A=="),
        ("x-steadfast-durability", "async"),
    ] {
        let code = if name.starts_with("x-steadfast") { "AccessDenied" } else { "SignatureDoesNotMatch" };
        put().unsigned(name, value).send_presigned_v2(later()).await.refused(403, code);
    }
    // A parameter that is added later.
    for (name, value) in [("x-amz-copy-source", "/bucket/secret"), ("X-Amz-Meta-A", "b"), ("uploadId", "u")] {
        let url = c.call("PUT", "/bucket/k").body("new");
        url.send_presigned_v2_with(later(), &[(name, value)]).await.refused(403, "SignatureDoesNotMatch");
    }
    let steadfast = [("x-steadfast-durability", "async")];
    put().send_presigned_v2_with(later(), &steadfast).await.refused(501, "NotImplemented");
    put().send_presigned_v2_with(later(), &[("X-Amz-Signature", "0")]).await.refused(400, "InvalidArgument");
    put().unsigned("authorization", "AWS access:0").send_presigned_v2(later()).await.refused(400, "InvalidArgument");
    put().send_presigned_v2(later() - 120).await.refused(403, "AccessDenied");
    // A sub-resource that appears twice is not in what is signed.
    for name in ["tagging", "acl", "uploads", "Tagging"] {
        for method in ["GET", "PUT", "DELETE"] {
            let url = c.call(method, "/bucket/k").body("");
            let twice = url.send_presigned_v2_with(later(), &[(name, ""), (name, "")]).await;
            twice.refused(400, "InvalidArgument");
        }
    }
    // The parameters of a listing are not covered, so a URL does not list.
    for path in ["/bucket", "/bucket?uploads", "/"] {
        c.call("GET", path).send_presigned_v2(later()).await.refused(403, "AccessDenied");
    }
    c.call("PUT", "/other").send_presigned_v2(later()).await.refused(403, "AccessDenied");
    assert_eq!(c.get("/bucket/k").await.expect(200).bytes(), b"data");
    c.signer.secret_key = "wrong".into();
    let wrong = c.call("GET", "/bucket/k").send_presigned_v2(later()).await.refused(403, "SignatureDoesNotMatch");
    assert!(wrong.xml("Message").starts_with("The request signature we calculated"), "{wrong:?}");
    c.signer.access_key = "unknown".into();
    c.call("GET", "/bucket/k").send_presigned_v2(later()).await.refused(403, "InvalidAccessKeyId");
}

#[tokio::test]
async fn a_signature_in_the_header() {
    let c = Client::new().await;
    c.call("PUT", "/bucket").send_v2().await.expect(200);
    c.call("PUT", "/bucket/k").header("x-amz-meta-a", "b").body("data").send_v2().await.expect(200);
    assert_eq!(c.call("GET", "/bucket/k").send_v2().await.expect(200).header("x-amz-meta-a"), "b");
    // The chunks of such a body would be stored with their frame.
    for hash in ["STREAMING-UNSIGNED-PAYLOAD-TRAILER", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"] {
        let put = c.call("PUT", "/bucket/k").header("x-amz-content-sha256", hash).body("0\r\n\r\n");
        put.send_v2().await.refused(400, "InvalidArgument");
    }
    c.call("PUT", "/bucket/k").unsigned("x-amz-meta-a", "c").send_v2().await.refused(403, "SignatureDoesNotMatch");
    c.call("PUT", "/bucket/k").unsigned("x-steadfast-durability", "async").send_v2().await.refused(403, "AccessDenied");
}

#[tokio::test]
async fn the_setting_refuses_version_2() {
    let c = Client::with(S3Options { signature_v2: false, ..options() }).await;
    c.bucket("bucket").await;
    for refused in
        [c.call("GET", "/bucket/k").send_presigned_v2(later()).await, c.call("GET", "/bucket/k").send_v2().await]
    {
        assert!(refused.refused(400, "InvalidRequest").xml("Message").contains("s3v4"));
    }
}

#[tokio::test]
async fn a_bucket_is_signed_with_and_without_a_slash() {
    let c = Client::new().await;
    c.call("PUT", "/bucket").send_v2_as("/bucket/").await.expect(200);
    c.call("HEAD", "/bucket").send_v2_as("/bucket/").await.expect(200);
    c.call("GET", "/bucket").send_v2_as("/bucket/").await.expect(200);
    c.call("GET", "/bucket/").send_v2_as("/bucket").await.expect(200);
    c.call("GET", "/bucket?location").send_v2_as("/bucket/").await.expect(200);
    c.call("PUT", "/bucket/k").body("data").send_v2().await.expect(200);
    for (path, signed) in [("/bucket/k", "/bucket/k/"), ("/bucket/k/", "/bucket/k"), ("/bucket", "/bucke"), ("/", "")] {
        c.call("GET", path).send_v2_as(signed).await.refused(403, "SignatureDoesNotMatch");
    }
}
