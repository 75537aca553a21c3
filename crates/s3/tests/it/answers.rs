//! Answers that clients and conformance suites expect in the small.

use crate::common::{Client, md5_hex};

#[tokio::test]
async fn any_tag_of_a_list_matches() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", "data").await.expect(200);
    let tag = format!("\"{}\"", md5_hex(b"data"));
    for list in [format!("\"x\", {tag}"), format!("{tag},\"a,b\""), format!(", W/{tag} ,"), "\"x\", *".to_owned()] {
        let with = |method: &str, name: &str| c.call(method, "/bucket/k").header(name, &list).send();
        with("GET", "if-none-match").await.expect(304);
        with("HEAD", "if-none-match").await.expect(304);
        let strong = if list.contains("W/") { 412 } else { 200 };
        with("GET", "if-match").await.expect(strong);
    }
    let other = "\"x\", \"y,z\"";
    c.call("GET", "/bucket/k").header("if-none-match", other).send().await.expect(200);
    c.call("GET", "/bucket/k").header("if-match", other).send().await.refused(412, "PreconditionFailed");
    c.call("GET", "/bucket/k").header("if-match", "\"x\", y\"").send().await.expect(400);
    // Several lines are one list.
    let lines = format!("\"x\",{tag}");
    c.call("GET", "/bucket/k").lines("if-none-match", &lines).send().await.expect(304);
    c.call("GET", "/bucket/k").lines("if-match", &lines).send().await.expect(200);
    let copy = |name: &str| c.call("PUT", "/bucket/copy").header("x-amz-copy-source", "/bucket/k").lines(name, &lines);
    copy("x-amz-copy-source-if-match").send().await.expect(200);
    copy("x-amz-copy-source-if-none-match").send().await.refused(412, "PreconditionFailed");
    copy("if-match").send().await.expect(200);
    // Writes and deletes.
    let put = |list: &str| c.call("PUT", "/bucket/k").header("if-match", list).body("data").send();
    put(&lines).await.expect(200);
    put(other).await.refused(412, "PreconditionFailed");
    c.call("PUT", "/bucket/none").header("if-match", &lines).body("data").send().await.refused(404, "NoSuchKey");
    c.call("DELETE", "/bucket/k").header("if-match", other).send().await.refused(412, "PreconditionFailed");
    // A tag in quotes is no wildcard, and a weak tag matches nothing.
    for never in ["\"*\"", "W/\"*\"", "\"*\", \"x\"", &format!("W/{tag}"), &format!("\"x\", W/{tag}"), "\"\""] {
        put(never).await.refused(412, "PreconditionFailed");
        c.call("PUT", "/bucket/none").header("if-match", never).body("data").send().await.refused(404, "NoSuchKey");
        c.call("DELETE", "/bucket/k").header("if-match", never).send().await.refused(412, "PreconditionFailed");
        c.call("POST", "/bucket/k?uploads").header("if-match", never).send().await.refused(412, "PreconditionFailed");
    }
    for (method, name) in
        [("PUT", "if-match"), ("PUT", "if-none-match"), ("DELETE", "if-match"), ("PUT", "x-amz-copy-source-if-match")]
    {
        let call = || c.call(method, "/bucket/k").header("x-amz-copy-source", "/bucket/copy");
        call().header(name, "").send().await.refused(400, "InvalidArgument");
        call().header(name, " ").send().await.refused(400, "InvalidArgument");
    }
    c.call("DELETE", "/bucket/k").header("if-match", &lines).send().await.expect(204);
}

#[tokio::test]
async fn a_body_in_chunks_must_be_signed_as_one() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", "data").await.expect(200);
    let upload = c.call("POST", "/bucket/parts?uploads").send().await.expect(200).xml("UploadId").to_owned();
    let part = format!("/bucket/parts?partNumber=1&uploadId={upload}");
    let framed = "4\r\nevil\r\n0\r\n\r\n";
    for path in ["/bucket/k", &part] {
        for (name, value) in [
            ("content-encoding", "aws-chunked"),
            ("content-encoding", "gzip, AWS-chunked"),
            ("x-amz-trailer", "x-amz-checksum-crc32"),
            ("x-amz-decoded-content-length", "4"),
        ] {
            let put = || c.call("PUT", path).header(name, value).body(framed);
            put().payload("UNSIGNED-PAYLOAD").send().await.refused(400, "InvalidRequest");
            put().send().await.refused(400, "InvalidRequest");
            if name == "content-encoding" {
                let url = c.call("PUT", path).unsigned(name, value).body(framed);
                url.send_presigned(60).await.refused(400, "InvalidRequest");
                put().send_v2().await.refused(400, "InvalidRequest");
            }
        }
        let url = c.call("PUT", path).query("X-Amz-Content-Sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER").body(framed);
        url.send_presigned(60).await.refused(400, "InvalidRequest");
    }
    assert_eq!(c.get("/bucket/k").await.expect(200).bytes(), b"data");
    // An empty body has no frames; the encoding is not the object's.
    c.call("PUT", "/bucket/k").header("content-encoding", "aws-chunked").send().await.expect(200);
    assert_eq!(c.get("/bucket/k").await.expect(200).header("content-encoding"), "");
}

#[tokio::test]
async fn heads_count_tags_and_parts_have_a_checksum_type() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.call("PUT", "/bucket/k").header("x-amz-tagging", "a=b&c=d").body("x").send().await.expect(200);
    for method in ["GET", "HEAD"] {
        assert_eq!(c.call(method, "/bucket/k").send().await.expect(200).header("x-amz-tagging-count"), "2");
    }
    let create = c.call("POST", "/bucket/parts?uploads").header("x-amz-checksum-algorithm", "CRC32").send().await;
    let upload = create.expect(200).xml("UploadId").to_owned();
    let put = c.put(&format!("/bucket/parts?partNumber=1&uploadId={upload}"), "data").await.expect(200);
    let complete = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag><ChecksumCRC32>{}</ChecksumCRC32></Part></CompleteMultipartUpload>",
        put.header("etag"),
        put.header("x-amz-checksum-crc32")
    );
    let path = format!("/bucket/parts?uploadId={upload}");
    c.call("POST", &path).body(complete).send().await.expect(200);
    for method in ["GET", "HEAD"] {
        let call = c.call(method, "/bucket/parts?partNumber=1").header("x-amz-checksum-mode", "ENABLED");
        let got = call.send().await.expect(206);
        assert_eq!(got.header("x-amz-checksum-crc32"), put.header("x-amz-checksum-crc32"));
        assert_eq!(got.header("x-amz-checksum-type"), "COMPOSITE");
    }
}

#[tokio::test]
async fn what_s3_refuses_is_refused_with_its_code() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", "data").await.expect(200);
    let upload = c.call("POST", "/bucket/parts?uploads").send().await.expect(200).xml("UploadId").to_owned();
    let copy = c.call("PUT", &format!("/bucket/parts?partNumber=1&uploadId={upload}"));
    let copy = copy.header("x-amz-copy-source", "/bucket/k").header("x-amz-copy-source-range", "bytes=0-4");
    copy.send().await.refused(416, "InvalidRange");
    for expires in [0, 604_801] {
        let url = c.call("GET", "/bucket/k").send_presigned(expires).await;
        url.refused(400, "AuthorizationQueryParametersError");
    }
    for path in ["/bucket/k?response-foo=x", "/bucket?start-after=a", "/bucket?continuation-token=a"] {
        c.get(path).await.refused(400, "InvalidArgument");
    }
    c.get("/bucket?list-type=2&start-after=a").await.expect(200);
    for names in ["Bogus", "ETag,Bogus"] {
        let call = c.call("GET", "/bucket/k?attributes").header("x-amz-object-attributes", names);
        call.send().await.refused(400, "InvalidArgument");
    }
    for tags in ["ke%26y=v", "aws:x=v", "k=%22"] {
        c.call("PUT", "/bucket/k").header("x-amz-tagging", tags).send().await.refused(400, "InvalidTag");
    }
    let wrong = "0".repeat(64);
    let code = "XAmzContentSHA256Mismatch";
    for body in [Vec::new(), b"x".to_vec(), vec![0; 1 << 20]] {
        c.call("PUT", "/bucket/k").body(body.clone()).payload(&wrong).send().await.refused(400, code);
        let url = c.call("PUT", "/bucket/k").body(body.clone()).unsigned("x-amz-content-sha256", &wrong);
        url.send_presigned(60).await.refused(400, code);
        let part = format!("/bucket/parts?partNumber=1&uploadId={upload}");
        c.call("PUT", &part).body(body).payload(&wrong).send().await.refused(400, code);
    }
    c.call("PUT", "/bucket/k").body("x").payload("bad").send().await.refused(400, "InvalidArgument");
    c.call("PUT", "/bucket/k?tagging").body("<Tagging/>").payload(&wrong).send().await.refused(400, code);
    let sum = c.call("PUT", "/bucket/k").body("x").header("x-amz-checksum-sha256", &format!("{}=", "A".repeat(43)));
    sum.send().await.refused(400, "BadDigest");
    assert_eq!(c.get("/bucket/k").await.expect(200).bytes(), b"data");
    c.call("OPTIONS", "/bucket/k").send_unsigned().await.refused(400, "BadRequest");
    let page = c.call("OPTIONS", "/bucket/k").header("origin", "https://other.example");
    page.send_unsigned().await.refused(400, "BadRequest");
    let page = c.call("OPTIONS", "/bucket/k").header("origin", "https://other.example");
    page.header("access-control-request-method", "PUT").send_unsigned().await.refused(403, "AccessForbidden");
}
