//! Listings, uploads in parts, buckets and signatures through the S3 interface.

use steadfast_s3::S3Options;

use crate::common::{Client, options};

#[tokio::test]
async fn buckets() {
    let c = Client::new().await;
    c.bucket("one").await;
    c.bucket("two").await;
    c.put("/one", "").await.expect(200);
    let other = c.call("PUT", "/one").header("x-steadfast-durability", "async");
    other.send().await.refused(409, "BucketAlreadyOwnedByYou");
    let elsewhere = Client::with(S3Options { region: "eu-central-1".into(), ..options() }).await;
    elsewhere.bucket("one").await;
    elsewhere.put("/one", "").await.refused(409, "BucketAlreadyOwnedByYou");
    assert_eq!(c.get("/").await.expect(200).xml_all("Name"), ["one", "two"]);
    let head = c.call("HEAD", "/one").send().await.expect(200);
    assert_eq!(head.header("x-amz-bucket-region"), "us-east-1");
    assert!(c.get("/one?location").await.expect(200).text().contains("LocationConstraint"));
    c.get("/one?versioning").await.expect(200);
    c.put("/one/k", "x").await.expect(200);
    c.call("DELETE", "/one").send().await.refused(409, "BucketNotEmpty");
    c.call("DELETE", "/one/k").send().await.expect(204);
    c.call("DELETE", "/one").send().await.expect(204);
    c.call("HEAD", "/one").send().await.expect(404);
}

#[tokio::test]
async fn listings() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let keys = ["a b", "a/1", "a/2", "b/1", "c&d", "é"];
    for key in keys {
        c.put(&format!("/bucket/{key}"), key).await.expect(200);
    }
    let all = c.get("/bucket?list-type=2").await.expect(200);
    assert_eq!(all.xml_all("Key"), ["a b", "a/1", "a/2", "b/1", "c&amp;d", "é"]);
    assert_eq!((all.xml("KeyCount"), all.xml("IsTruncated")), ("6", "false"));
    let encoded = c.get("/bucket?list-type=2&encoding-type=url").await.expect(200);
    assert_eq!(encoded.xml_all("Key"), ["a%20b", "a/1", "a/2", "b/1", "c%26d", "%C3%A9"]);
    let rolled = c.get("/bucket?list-type=2&delimiter=/").await.expect(200);
    assert_eq!(rolled.xml_all("Key"), ["a b", "c&amp;d", "é"]);
    assert_eq!(rolled.xml_all("CommonPrefixes"), ["<Prefix>a/</Prefix>", "<Prefix>b/</Prefix>"]);
    let under = c.get("/bucket?list-type=2&delimiter=/&prefix=a/").await.expect(200);
    assert_eq!(under.xml_all("Key"), ["a/1", "a/2"]);
    let after = c.get("/bucket?list-type=2&start-after=b/1").await.expect(200);
    assert_eq!(after.xml_all("Key"), ["c&amp;d", "é"]);
    let none = c.get("/bucket?list-type=2&max-keys=0").await.expect(200);
    assert_eq!((none.xml_all("Key").len(), none.xml("IsTruncated")), (0, "false"));
    c.get("/bucket?list-type=2&max-keys=-1").await.refused(400, "InvalidArgument");
    c.get("/bucket?list-type=2&continuation-token=!").await.refused(400, "InvalidArgument");

    // Page by page, both ways, with and without rolling up.
    for delimiter in ["", "/"] {
        let (mut token, mut v2) = (String::new(), Vec::new());
        loop {
            let mut call = c.call("GET", "/bucket?list-type=2&max-keys=1").query("delimiter", delimiter);
            if !token.is_empty() {
                call = call.query("continuation-token", &token);
            }
            let page = call.send().await.expect(200);
            v2.extend(page.xml_all("Key").into_iter().chain(page.xml_all("CommonPrefixes")).map(str::to_owned));
            if page.xml("IsTruncated") == "false" {
                break;
            }
            token = page.xml("NextContinuationToken").to_owned();
        }
        assert_eq!(v2.len(), if delimiter.is_empty() { 6 } else { 5 }, "{v2:?}");
        let (mut marker, mut v1) = (String::new(), Vec::new());
        loop {
            let call = c.call("GET", "/bucket?max-keys=2").query("delimiter", delimiter).query("marker", &marker);
            let page = call.send().await.expect(200);
            v1.extend(page.xml_all("Key").into_iter().chain(page.xml_all("CommonPrefixes")).map(str::to_owned));
            if page.xml("IsTruncated") == "false" {
                break;
            }
            marker = page.xml("NextMarker").replace("&amp;", "&");
        }
        v1.sort();
        v2.sort();
        assert_eq!(v1, v2);
    }
}

#[tokio::test]
async fn conditions_of_uploads_in_parts() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let begin = |name: &'static str, value: String| {
        let c = &c;
        async move { c.call("POST", "/bucket/k?uploads").header(name, &value).send().await }
    };
    begin("if-match", "\"abc\"".into()).await.refused(404, "NoSuchKey");
    begin("if-none-match", "\"abc\"".into()).await.refused(501, "NotImplemented");
    let id = begin("if-none-match", "*".into()).await.expect(200).xml("UploadId").to_owned();
    let part = c.put(&format!("/bucket/k?partNumber=1&uploadId={id}"), "part").await.expect(200);
    let tag = part.header("etag").to_owned();
    let whole = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></CompleteMultipartUpload>"
    );
    let put = c.put("/bucket/k", "came between").await.expect(200);
    begin("if-none-match", "*".into()).await.refused(412, "PreconditionFailed");
    let path = format!("/bucket/k?uploadId={id}");
    c.call("POST", &path).body(whole.clone()).send().await.refused(412, "PreconditionFailed");
    assert_eq!(c.get("/bucket/k").await.bytes(), b"came between");
    // The conditions of the completion apply as well.
    let id = begin("if-match", put.header("etag").to_owned()).await.expect(200).xml("UploadId").to_owned();
    c.put(&format!("/bucket/k?partNumber=1&uploadId={id}"), "part").await.expect(200);
    let path = format!("/bucket/k?uploadId={id}");
    let complete = |headers: &[(&str, &str)]| {
        let call = c.call("POST", &path).body(whole.clone());
        headers.iter().fold(call, |call, (name, value)| call.header(name, value)).send()
    };
    complete(&[("if-none-match", "*")]).await.refused(412, "PreconditionFailed");
    complete(&[]).await.expect(200);
    assert_eq!(c.get("/bucket/k").await.bytes(), b"part");
}

#[tokio::test]
async fn conditions_that_would_be_ignored_are_refused() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", "data").await.expect(200);
    let id = c.call("POST", "/bucket/k?uploads").send().await.expect(200).xml("UploadId").to_owned();
    let part = format!("/bucket/k?partNumber=1&uploadId={id}");
    let date = "Sun, 21 Oct 2001 07:28:00 GMT";
    for (method, path, name, value) in [
        ("PUT", part.as_str(), "if-none-match", "*"),
        ("PUT", part.as_str(), "if-match", "\"a\""),
        ("DELETE", "/bucket/k", "if-none-match", "*"),
        ("DELETE", "/bucket/k", "if-unmodified-since", date),
        ("PUT", "/bucket/k", "if-unmodified-since", date),
        ("DELETE", &format!("/bucket/k?uploadId={id}"), "if-match", "\"a\""),
    ] {
        c.call(method, path).header(name, value).send().await.refused(501, "NotImplemented");
    }
    c.call("PUT", "/bucket/k").header("if-modified-since", date).body("new").send().await.expect(200);
    let owned = |owner: &'static str| c.call("GET", "/bucket/k").header("x-amz-expected-bucket-owner", owner).send();
    owned("123456789012").await.refused(403, "AccessDenied");
    assert_eq!(owned("steadfast").await.expect(200).bytes(), b"new");
}

#[tokio::test]
async fn uploads_in_parts() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let begun = c
        .call("POST", "/bucket/k?uploads")
        .header("x-amz-checksum-algorithm", "CRC32")
        .header("x-amz-checksum-type", "FULL_OBJECT");
    let begun = begun.header("x-amz-meta-m", "1").send().await.expect(200);
    let id = begun.xml("UploadId").to_owned();
    let listed = c.get("/bucket?uploads").await.expect(200);
    assert_eq!((listed.xml("Key"), listed.xml("UploadId")), ("k", id.as_str()));
    let (first, second) = (vec![7_u8; 5 << 20], b"the end".to_vec());
    let mut tags = Vec::new();
    for (number, data) in [(1, &first), (2, &second)] {
        let part = c.call("PUT", "/bucket/k").query("partNumber", &number.to_string()).query("uploadId", &id);
        let part = part.body(data.clone()).send().await.expect(200);
        tags.push(part.header("etag").trim_matches('"').to_owned());
    }
    let parts = c.call("GET", "/bucket/k").query("uploadId", &id).send().await.expect(200);
    assert_eq!(parts.xml_all("PartNumber"), ["1", "2"]);
    let complete = |xml: String| c.call("POST", "/bucket/k").query("uploadId", &id).body(xml).send();
    let part = |n: usize, tag: &str| format!("<Part><PartNumber>{n}</PartNumber><ETag>\"{tag}\"</ETag></Part>");
    let xml = |parts: &[String]| format!("<CompleteMultipartUpload>{}</CompleteMultipartUpload>", parts.concat());
    complete(xml(&[part(2, &tags[1]), part(1, &tags[0])])).await.refused(400, "InvalidPartOrder");
    complete(xml(&[part(1, &tags[1])])).await.refused(400, "InvalidPart");
    complete(xml(&[part(3, &tags[1])])).await.refused(400, "InvalidPart");
    let done = complete(xml(&[part(1, &tags[0]), part(2, &tags[1])])).await.expect(200);
    assert!(done.xml("ETag").contains("-2"));
    let whole = [first.clone(), second.clone()].concat();
    let got = c.call("GET", "/bucket/k").header("x-amz-checksum-mode", "ENABLED").send().await.expect(200);
    assert!(got.bytes() == whole);
    assert_eq!(got.header("x-amz-meta-m"), "1");
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, &whole) as u32;
    use base64::Engine as _;
    let expected = base64::engine::general_purpose::STANDARD.encode(crc.to_be_bytes());
    assert_eq!(got.header("x-amz-checksum-crc32"), expected);
    assert_eq!(got.header("x-amz-checksum-type"), "FULL_OBJECT");
    let last = c.get("/bucket/k?partNumber=2").await.expect(206);
    assert_eq!((last.bytes(), last.header("x-amz-mp-parts-count")), (&second[..], "2"));

    let id = c.call("POST", "/bucket/copy?uploads").send().await.expect(200).xml("UploadId").to_owned();
    let copied = c.call("PUT", "/bucket/copy").query("partNumber", "1").query("uploadId", &id);
    let copied =
        copied.header("x-amz-copy-source", "/bucket/k").header("x-amz-copy-source-range", "bytes=5242880-5242886");
    let tag = copied.send().await.expect(200).xml("ETag").replace("&quot;", "").replace('"', "");
    let done = c.call("POST", "/bucket/copy").query("uploadId", &id).body(xml(&[part(1, &tag)]));
    let done = done.send().await.expect(200);
    assert_eq!(done.xml("Location"), format!("http://{}/bucket/copy", crate::common::HOST));
    assert_eq!(c.get("/bucket/copy").await.expect(200).bytes(), second);

    let id = c.call("POST", "/bucket/gone?uploads").send().await.expect(200).xml("UploadId").to_owned();
    c.call("DELETE", "/bucket/gone").query("uploadId", &id).send().await.expect(204);
    c.call("GET", "/bucket/gone").query("uploadId", &id).send().await.refused(404, "NoSuchUpload");
}

#[tokio::test]
async fn signatures() {
    let mut c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", "data").await.expect(200);
    c.call("GET", "/bucket/k").send_unsigned().await.refused(403, "AccessDenied");
    assert_eq!(c.call("GET", "/bucket/k").send_presigned(60).await.expect(200).bytes(), b"data");
    let hosted =
        c.call("GET", "/k").header("host", &format!("bucket.{}", crate::common::HOST)).send().await.expect(200);
    assert_eq!(hosted.bytes(), b"data");
    c.signer.secret_key = "wrong".into();
    c.get("/bucket/k").await.refused(403, "SignatureDoesNotMatch");
    c.call("GET", "/bucket/k").send_presigned(60).await.refused(403, "SignatureDoesNotMatch");
    (c.signer.access_key, c.signer.secret_key) = ("second".into(), "other".into());
    c.get("/bucket/k").await.expect(200);
    c.signer.access_key = "unknown".into();
    c.get("/bucket/k").await.refused(403, "InvalidAccessKeyId");
    (c.signer.access_key, c.signer.secret_key) = ("access".into(), "secret".into());
    c.signer.amz_date = crate::common::amz_date_of(1_700_000_000);
    c.get("/bucket/k").await.refused(403, "RequestTimeTooSkewed");
}

#[tokio::test]
async fn pages_of_other_origins() {
    const PAGE: &str = "https://app.example.com";
    let c = Client::with(steadfast_s3::S3Options { allowed_origins: vec![PAGE.into()], ..options() }).await;
    c.bucket("bucket").await;
    let ask = |origin: &str| {
        let call =
            c.call("OPTIONS", "/bucket/k").header("origin", origin).header("access-control-request-method", "PUT");
        call.header("access-control-request-headers", "content-type,x-amz-meta-a").send_unsigned()
    };
    let answer = ask(PAGE).await.expect(204);
    assert_eq!(answer.header("access-control-allow-origin"), PAGE);
    assert!(answer.header("access-control-allow-methods").contains("PUT"));
    assert_eq!(answer.header("access-control-allow-headers"), "content-type,x-amz-meta-a");
    let other = ask("https://evil.example").await;
    assert!(other.status >= 400 && other.header("access-control-allow-origin").is_empty(), "{other:?}");
    // The page may read answers, including refusals; every request still needs a signature.
    let put = c.call("PUT", "/bucket/k").header("origin", PAGE).body("data").send().await.expect(200);
    assert_eq!(put.header("access-control-allow-origin"), PAGE);
    assert!(put.header("access-control-expose-headers").starts_with("*, "));
    let refused = c.call("GET", "/bucket/k").header("origin", PAGE).send_unsigned().await.refused(403, "AccessDenied");
    assert_eq!((refused.header("access-control-allow-origin"), refused.header("vary")), (PAGE, "Origin"));
    let got = c.call("GET", "/bucket/k").header("origin", "https://evil.example").send().await.expect(200);
    assert_eq!(got.header("access-control-allow-origin"), "");
    // By default, no origin is allowed.
    let c = Client::new().await;
    let call = c.call("OPTIONS", "/bucket/k").header("origin", PAGE).header("access-control-request-method", "PUT");
    assert_eq!(call.send_unsigned().await.header("access-control-allow-origin"), "");
}

#[tokio::test]
async fn unsigned_chunks_with_a_trailer() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let put = |checksum: &str| {
        let body = format!("9\r\n123456789\r\n0\r\nx-amz-checksum-crc32:{checksum}\r\n\r\n");
        c.call("PUT", "/bucket/k")
            .header("content-encoding", "aws-chunked")
            .header("x-amz-decoded-content-length", "9")
            .header("x-amz-trailer", "x-amz-checksum-crc32")
            .payload("STREAMING-UNSIGNED-PAYLOAD-TRAILER")
            .body(body)
            .send()
    };
    put("AAAAAA==").await.refused(400, "BadDigest");
    c.get("/bucket/k").await.refused(404, "NoSuchKey");
    put("y/Q5Jg==").await.expect(200);
    let got = c.call("GET", "/bucket/k").header("x-amz-checksum-mode", "ENABLED").send().await.expect(200);
    assert_eq!((got.bytes(), got.header("x-amz-checksum-crc32")), (&b"123456789"[..], "y/Q5Jg=="));
    assert_eq!(got.header("content-encoding"), "");
}

#[tokio::test]
async fn requests_are_reported() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", vec![1; 100_000]).await.expect(200);
    c.get("/bucket/k").await.expect(200);
    c.get("/bucket/none").await.expect(404);
    let seen = c.records.0.lock().clone();
    assert_eq!(seen[1], ("PutObject".into(), 200, 100_000, 0, true));
    assert_eq!(seen[2], ("GetObject".into(), 200, 0, 100_000, true));
    assert_eq!((seen[3].0.as_str(), seen[3].1), ("GetObject", 404));
}

#[tokio::test]
async fn a_body_that_stalls_holds_no_request_place() {
    use std::time::Duration;
    let c = Client::with(steadfast_s3::S3Options {
        requests_max: 1,
        requests_waiting_max: 0,
        request_wait: Duration::ZERO,
        body_stall: Duration::from_millis(100),
        ..options()
    })
    .await;
    c.bucket("bucket").await;
    let granted = c.door.gate_status().granted;
    let (mut near, far) = tokio::io::duplex(4096);
    let connection = tokio::spawn(c.door.connection(far));
    let mut headers = std::collections::BTreeMap::from([("host".to_owned(), crate::common::HOST.to_owned())]);
    c.signer.sign("PUT", "/bucket/slow", &[], &mut headers, "UNSIGNED-PAYLOAD");
    let mut head = "PUT /bucket/slow HTTP/1.1\r\ncontent-length: 10\r\n".to_owned();
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    near.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
    while c.door.gate_status().granted == granted || c.door.gate_status().used > 0 {
        tokio::task::yield_now().await;
    }
    c.get("/bucket/k").await.refused(404, "NoSuchKey");
    let mut answer = Vec::new();
    let mut buf = [0; 1024];
    while !String::from_utf8_lossy(&answer).contains("</Error>") {
        let n = near.read(&mut buf).await.unwrap();
        assert!(n > 0, "closed without an answer");
        answer.extend_from_slice(&buf[..n]);
    }
    assert!(String::from_utf8_lossy(&answer).contains("<Code>RequestTimeout</Code>"));
    drop(near);
    let _ = connection.await;
    c.get("/bucket/slow").await.refused(404, "NoSuchKey");
}
