//! The headers that a signature covers, the requests it authorises, and bodies in signed pieces.

use crate::common::{Client, options};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Every header that changes or conditions some operation.
const HEADERS: &[(&str, &str)] = &[
    ("x-amz-copy-source", "/bucket/secret"),
    ("x-amz-copy-source-range", "bytes=0-1"),
    ("x-amz-copy-source-if-match", "\"0\""),
    ("x-amz-copy-source-if-none-match", "\"0\""),
    ("x-amz-copy-source-if-modified-since", "Wed, 02 Jan 2030 03:04:05 GMT"),
    ("x-amz-copy-source-if-unmodified-since", "Wed, 02 Jan 2030 03:04:05 GMT"),
    ("x-amz-metadata-directive", "REPLACE"),
    ("x-amz-tagging-directive", "REPLACE"),
    ("x-amz-tagging", "a=b"),
    ("x-amz-meta-a", "b"),
    ("x-amz-acl", "public-read"),
    ("x-amz-grant-read", "id=\"x\""),
    ("x-amz-storage-class", "STANDARD"),
    ("x-amz-website-redirect-location", "https://evil.example/"),
    ("x-amz-server-side-encryption", "AES256"),
    ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
    ("x-amz-object-lock-mode", "GOVERNANCE"),
    ("x-amz-bucket-object-lock-enabled", "true"),
    ("x-amz-bypass-governance-retention", "true"),
    ("x-amz-write-offset-bytes", "0"),
    ("x-amz-if-match-size", "1"),
    ("x-amz-if-match-last-modified-time", "Wed, 02 Jan 2030 03:04:05 GMT"),
    ("x-amz-if-match-initiated-time", "Wed, 02 Jan 2030 03:04:05 GMT"),
    ("x-amz-mp-object-size", "1"),
    ("x-amz-object-attributes", "ETag"),
    ("x-amz-max-parts", "1"),
    ("x-amz-optional-object-attributes", "RestoreStatus"),
    ("x-amz-checksum-mode", "ENABLED"),
    ("x-amz-checksum-algorithm", "CRC32"),
    ("x-amz-sdk-checksum-algorithm", "CRC32"),
    ("x-amz-checksum-type", "FULL_OBJECT"),
    ("x-amz-checksum-crc32", "AAAAAA=="),
    ("x-amz-trailer", "x-amz-checksum-crc32"),
    ("x-amz-decoded-content-length", "1"),
    ("x-amz-expected-bucket-owner", "another"),
    ("x-amz-source-expected-bucket-owner", "another"),
    ("x-amz-request-payer", "requester"),
    ("x-amz-mfa", "1 2"),
    ("x-amz-security-token", "token"),
    ("x-amz-skip-destination-validation", "true"),
    ("x-steadfast-durability", "async"),
    ("x-steadfast-anything", "1"),
];

/// Requests for each served operation; `{id}` is an upload of `bucket/up`.
const OPERATIONS: &[(&str, &str, &str)] = &[
    ("PUT", "/bucket/mine", "new"),
    ("PUT", "/bucket/up?partNumber=1&uploadId={id}", "part"),
    ("POST", "/bucket/up?uploadId={id}", "<CompleteMultipartUpload/>"),
    ("DELETE", "/bucket/up?uploadId={id}", ""),
    ("GET", "/bucket/up?uploadId={id}", ""),
    ("POST", "/bucket/mine?uploads", ""),
    ("GET", "/bucket?uploads", ""),
    ("GET", "/bucket/mine", ""),
    ("HEAD", "/bucket/mine", ""),
    ("GET", "/bucket/mine?attributes", ""),
    ("GET", "/bucket/mine?acl", ""),
    ("DELETE", "/bucket/mine", ""),
    ("POST", "/bucket?delete", "<Delete><Object><Key>mine</Key></Object></Delete>"),
    ("GET", "/bucket/mine?tagging", ""),
    ("PUT", "/bucket/mine?tagging", "<Tagging><TagSet/></Tagging>"),
    ("DELETE", "/bucket/mine?tagging", ""),
    ("GET", "/bucket?list-type=2", ""),
    ("GET", "/bucket", ""),
    ("GET", "/bucket?location", ""),
    ("GET", "/bucket?versioning", ""),
    ("GET", "/bucket?acl", ""),
    ("GET", "/bucket?notification", ""),
    ("PUT", "/bucket?notification", "<NotificationConfiguration/>"),
    ("PUT", "/bucket?tagging", "<Tagging><TagSet/></Tagging>"),
    ("HEAD", "/bucket", ""),
    ("DELETE", "/bucket", ""),
    ("PUT", "/another", ""),
    ("GET", "/", ""),
];

#[tokio::test]
async fn a_header_that_is_not_signed_changes_nothing() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/secret", "secret").await.expect(200);
    c.put("/bucket/mine", "mine").await.expect(200);
    let id = c.call("POST", "/bucket/up?uploads").send().await.expect(200).xml("UploadId").to_owned();
    for (method, path, body) in OPERATIONS {
        let path = path.replace("{id}", &id);
        for (name, value) in HEADERS {
            let call = || c.call(method, &path).body(*body);
            for answer in
                [call().header(name, value).send_presigned(60).await, call().unsigned(name, value).send().await]
            {
                assert_eq!(answer.status, 403, "{method} {path} {name}: {answer:?}");
                if *method != "HEAD" {
                    assert_eq!(answer.xml("Code"), "AccessDenied", "{method} {path} {name}");
                    assert!(answer.xml("Message").contains("not signed"), "{method} {path} {name}");
                }
            }
        }
    }
    assert_eq!(c.get("/bucket/mine").await.expect(200).bytes(), b"mine");
    assert_eq!(c.get("/bucket/mine?tagging").await.expect(200).xml("Key"), "");
    assert_eq!(c.get("/bucket/up").await.expect(404).xml("Code"), "NoSuchKey");
    c.call("HEAD", "/another").send().await.expect(404);
}

#[tokio::test]
async fn optional_headers_need_no_signature() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let put = || c.call("PUT", "/bucket/k").body("data");
    for (name, value) in
        [("x-amz-user-agent", "a/1"), ("x-amz-cf-id", "b"), ("content-type", "a/b"), ("cache-control", "no-store")]
    {
        put().unsigned(name, value).send().await.expect(200);
        put().header(name, value).send_presigned(60).await.expect(200);
    }
    // The hash of the body applies, and is checked, whether or not its header is signed.
    put().header("x-amz-content-sha256", "UNSIGNED-PAYLOAD").send_presigned(60).await.expect(200);
    let wrong = crate::common::signer::sha256_hex(b"other");
    put().header("x-amz-content-sha256", &wrong).send_presigned(60).await.refused(400, "XAmzContentSHA256Mismatch");
    // When signed, the same headers take effect.
    put().header("x-amz-tagging", "a=b").send().await.expect(200);
    assert_eq!(c.get("/bucket/k?tagging").await.expect(200).xml("Key"), "a");
}

#[tokio::test]
async fn a_presigned_url_lives_a_week_at_most() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", "data").await.expect(200);
    c.call("GET", "/bucket/k").send_presigned(604_800).await.expect(200);
    for long in [604_801, u32::MAX] {
        c.call("GET", "/bucket/k").send_presigned(long).await.refused(400, "AuthorizationQueryParametersError");
    }
}

#[tokio::test]
async fn an_unknown_sub_resource_is_not_the_plain_operation() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", "data").await.expect(200);
    for (method, path) in [
        ("PUT", "/bucket/k?renameObject"),
        ("PUT", "/bucket/k?append"),
        ("PUT", "/bucket/k?append&position=0"),
        ("PUT", "/bucket/k?encryption"),
        ("PUT", "/bucket/k?partNumber=1"),
        ("PUT", "/bucket/k?anything"),
        ("DELETE", "/bucket/k?acl"),
        ("DELETE", "/bucket/k?retention"),
        ("DELETE", "/bucket/k?legal-hold"),
        ("GET", "/bucket/k?torrent"),
        ("GET", "/bucket/k?policy"),
        ("GET", "/bucket?session"),
        ("PUT", "/other?anything"),
        ("DELETE", "/bucket?anything"),
        ("POST", "/bucket/k?uploads&anything"),
    ] {
        c.call(method, path).send().await.refused(501, "NotImplemented");
        // The signature is checked first.
        c.call(method, path).send_unsigned().await.refused(403, "AccessDenied");
    }
    c.call("HEAD", "/bucket/k?torrent").send().await.expect(501);
    assert_eq!(c.get("/bucket/k").await.expect(200).bytes(), b"data");
    c.call("HEAD", "/other").send().await.expect(404);
    // Parameters that SDKs and caches add have no effect.
    for path in ["/bucket/k?1668123456", "/bucket/k?download", "/bucket/k?anything=1", "/bucket?anything"] {
        c.get(path).await.expect(200);
    }
    c.call("PUT", "/bucket/k?anything=1").body("data").send().await.expect(200);
    c.call("PUT", "/bucket/k?x-id=PutObject&x-amz-acl=private").body("new").send().await.expect(200);
    c.get("/bucket/k?x-id=GetObject&response-content-type=a/b&v=7").await.expect(200);
    c.get("/bucket?list-type=2&metadata=true&prefix=").await.expect(200);
    c.call("DELETE", "/bucket/k?versionId=null&x-id=DeleteObject").send().await.expect(204);
}

#[tokio::test]
async fn any_name_of_a_region() {
    let mut c = Client::new().await;
    c.bucket("bucket").await;
    for region in ["US", "EU", "us_east_1", "a.b", "local.host", "us-east-1"] {
        c.signer.region = region.into();
        c.put("/bucket/k", "data").await.expect(200);
        assert_eq!(c.call("GET", "/bucket/k").send_presigned(60).await.expect(200).bytes(), b"data", "{region}");
        c.call("PUT", "/bucket/k").send_chunks(&[b"chunk"], |_| ()).await.expect(200);
    }
}

#[tokio::test]
async fn each_key_signs_only_for_itself() {
    let pairs = ["a", "b"].map(|name| (name.to_owned(), format!("secret of {name}")));
    let mut c = Client::with(steadfast_s3::S3Options { credentials: pairs.to_vec(), ..options() }).await;
    for (access, secret, fits) in [(0, 0, true), (1, 1, true), (0, 1, false), (1, 0, false), (0, 0, true)] {
        (c.signer.access_key, c.signer.secret_key) = (pairs[access].0.clone(), pairs[secret].1.clone());
        let answer = c.get("/").await;
        if fits {
            answer.expect(200)
        } else {
            answer.refused(403, "SignatureDoesNotMatch")
        };
    }
}

#[tokio::test]
async fn signed_chunks() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let (first, second) = (vec![1_u8; 3 << 20], vec![2_u8; 70_001]);
    let chunks = [&first[..], &second[..], b"end"];
    let put = |key: &str| c.call("PUT", &format!("/bucket/{key}"));
    put("k").send_chunks(&chunks, |_| ()).await.expect(200);
    assert_eq!(c.get("/bucket/k").await.expect(200).bytes(), chunks.concat());
    put("empty").send_chunks(&[], |_| ()).await.expect(200);
    assert_eq!(c.get("/bucket/empty").await.expect(200).bytes(), b"");
    // A byte of a chunk's data: at its start, at its end, in the last chunk; and its signature.
    let text = |body: &[u8], what: &[u8]| body.windows(what.len()).position(|w| w == what).expect("it is there");
    let refused = |key: &'static str, change: fn(&mut Vec<u8>, usize), what: &'static [u8]| {
        put(key).send_chunks(&chunks, move |body| {
            let at = text(body, what);
            change(body, at);
        })
    };
    let flip: fn(&mut Vec<u8>, usize) = |body, at| body[at] ^= 4;
    refused("a", flip, &[1, 1, 1]).await.refused(403, "SignatureDoesNotMatch");
    refused("b", flip, &[2, b'\r', b'\n']).await.refused(403, "SignatureDoesNotMatch");
    refused("c", flip, b"end").await.refused(403, "SignatureDoesNotMatch");
    refused("d", |body, at| body[at + 17] = if body[at + 17] == b'0' { b'1' } else { b'0' }, b";chunk-signature=")
        .await
        .refused(403, "SignatureDoesNotMatch");
    // The length of a chunk is a number in hexadecimal digits only.
    refused("e", |body, at| body[at - 1] = b'z', b";chunk-signature=").await.expect(400);
    refused("f", |body, at| body[at..at + 17].copy_from_slice(b";chunk-signaturX="), b";chunk-signature=")
        .await
        .expect(400);
    refused("g", |body, at| body.truncate(at + 2), b"end").await.expect(400);
    for key in ["a", "b", "c", "d", "e", "f", "g"] {
        c.get(&format!("/bucket/{key}")).await.refused(404, "NoSuchKey");
    }
}

/// Reads an answer with a content length; its head in lower case.
async fn answer(near: &mut tokio::io::DuplexStream) -> String {
    let mut text = Vec::new();
    loop {
        let mut buf = [0; 4096];
        let n = near.read(&mut buf).await.expect("an answer");
        assert!(n > 0, "closed after {:?}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&buf[..n]);
        let seen = String::from_utf8_lossy(&text).to_lowercase();
        if let Some((head, body)) = seen.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|l| l.strip_prefix("content-length: ")).map_or(0, |n| n.parse().unwrap());
            if body.len() >= length {
                return seen;
            }
        }
    }
}

#[tokio::test]
async fn chunks_in_chunks_keep_the_connection() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let (mut near, far) = tokio::io::duplex(64 << 10);
    let connection = tokio::spawn(c.door.connection(far));
    for round in 0..3 {
        let path = format!("/bucket/{round}");
        let mut headers = std::collections::BTreeMap::from([
            ("host".to_owned(), crate::common::HOST.to_owned()),
            ("content-encoding".to_owned(), "aws-chunked".to_owned()),
            ("x-amz-decoded-content-length".to_owned(), "9".to_owned()),
            ("x-amz-trailer".to_owned(), "x-amz-checksum-crc32".to_owned()),
        ]);
        c.signer.sign("PUT", &path, &[], &mut headers, "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
        let mut head = format!("PUT {path} HTTP/1.1\r\ntransfer-encoding: chunked\r\n");
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        near.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
        // In the pieces that boto3 sends, with HTTP's last chunk in a piece of its own.
        for piece in ["9\r\n123456789\r\n", "0\r\nx-amz-checksum-crc32:y/Q5Jg==\r\n\r\n"] {
            near.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes()).await.unwrap();
        }
        near.write_all(b"0\r\n\r\n").await.unwrap();
        let reply = answer(&mut near).await;
        assert!(reply.starts_with("http/1.1 200") && !reply.contains("connection: close"), "{reply}");
    }
    drop(near);
    connection.await.expect("no panic").expect("served to its end");
    for round in 0..3 {
        assert_eq!(c.get(&format!("/bucket/{round}")).await.expect(200).bytes(), b"123456789");
    }
}

/// Sends the head of an upload that is refused before its body is read.
async fn refused_upload(c: &Client, near: &mut tokio::io::DuplexStream, path: &str) {
    let mut headers = std::collections::BTreeMap::from([("host".to_owned(), crate::common::HOST.to_owned())]);
    c.signer.sign("PUT", path, &[], &mut headers, "UNSIGNED-PAYLOAD");
    let mut head = format!("PUT {path} HTTP/1.1\r\ncontent-length: 4\r\n");
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    near.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_early_refusal_keeps_the_connection_or_names_its_end() {
    let c = Client::new().await;
    let (mut near, far) = tokio::io::duplex(64 << 10);
    let connection = tokio::spawn(c.door.connection(far));
    for path in ["/no-such-bucket/k", "/minio/admin/v3/update-group-members"] {
        refused_upload(&c, &mut near, path).await;
        near.write_all(b"data").await.unwrap();
        let reply = answer(&mut near).await;
        assert!(!reply.starts_with("http/1.1 200") && !reply.contains("connection: close"), "{reply}");
    }
    // A body that does not come.
    refused_upload(&c, &mut near, "/no-such-bucket/k").await;
    let reply = answer(&mut near).await;
    assert!(reply.starts_with("http/1.1 404") && reply.contains("connection: close"), "{reply}");
    drop(near);
    connection.await.expect("no panic").expect("served to its end");
}

#[tokio::test]
async fn xml_has_bounds() {
    let keys = |count: usize, length: usize| {
        let object = format!("<Object><Key>{}</Key></Object>", "k".repeat(length));
        format!("<Delete><Quiet>true</Quiet>{}</Delete>", object.repeat(count))
    };
    let c = Client::with(steadfast_s3::S3Options { xml_memory_bytes: 4 << 20, ..options() }).await;
    c.bucket("bucket").await;
    c.call("POST", "/bucket?delete").body(keys(1000, 1024)).send().await.expect(200);
    c.call("POST", "/bucket?delete").body(keys(1001, 1)).send().await.refused(400, "MalformedXML");
    let refused = c.call("POST", "/bucket?delete").body(keys(3000, 1024)).send().await;
    refused.refused(400, "MaxMessageLengthExceeded");
    let tags = format!("<Tagging><TagSet>{}</TagSet></Tagging>", " ".repeat(300 << 10));
    c.put("/bucket/k?tagging", tags).await.refused(400, "MaxMessageLengthExceeded");
    assert_eq!(c.door.xml_status().used, 0);
    // A body that has not arrived already holds its permit; the next one is refused at once.
    let (mut near, far) = tokio::io::duplex(64 << 10);
    let connection = tokio::spawn(c.door.connection(far));
    let mut headers = std::collections::BTreeMap::from([("host".to_owned(), crate::common::HOST.to_owned())]);
    let query = [("delete".to_owned(), String::new())];
    c.signer.sign("POST", "/bucket", &query, &mut headers, "UNSIGNED-PAYLOAD");
    let mut head = "POST /bucket?delete HTTP/1.1\r\ncontent-length: 1000000\r\n".to_owned();
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    near.write_all(format!("{head}\r\n<Delete>").as_bytes()).await.unwrap();
    while c.door.xml_status().used == 0 {
        tokio::task::yield_now().await;
    }
    c.call("POST", "/bucket?delete").body(keys(1000, 1024)).send().await.refused(503, "SlowDown");
    c.call("POST", "/bucket?delete").body(keys(10, 1024)).send().await.expect(200);
    drop(near);
    let _ = connection.await;
    assert_eq!(c.door.xml_status().used, 0);
    c.call("POST", "/bucket?delete").body(keys(1000, 1024)).send().await.expect(200);
}

/// Keys to delete, about a kilobyte each, and the head of a request that announces them.
fn many_keys(c: &Client, count: usize) -> (String, String) {
    let object = format!("<Object><Key>{}</Key></Object>", "k".repeat(1024));
    let body = format!("<Delete>{}</Delete>", object.repeat(count));
    let mut headers = std::collections::BTreeMap::from([("host".to_owned(), crate::common::HOST.to_owned())]);
    let query = [("delete".to_owned(), String::new())];
    c.signer.sign("POST", "/bucket", &query, &mut headers, "UNSIGNED-PAYLOAD");
    let mut head = format!("POST /bucket?delete HTTP/1.1\r\ncontent-length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    (format!("{head}\r\n"), body)
}

#[tokio::test]
async fn xml_that_trickles_times_out() {
    use std::time::Duration;
    let c = Client::with(steadfast_s3::S3Options {
        body_stall: Duration::from_millis(300),
        client_bytes_s_min: 0,
        ..options()
    })
    .await;
    c.bucket("bucket").await;
    let (head, body) = many_keys(&c, 1000);
    let (near, far) = tokio::io::duplex(64 << 10);
    let connection = tokio::spawn(c.door.connection(far));
    let (mut reader, mut writer) = tokio::io::split(near);
    let trickle = async {
        writer.write_all(head.as_bytes()).await.unwrap();
        for byte in body.as_bytes().chunks(1) {
            if writer.write_all(byte).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        std::future::pending::<()>().await;
    };
    let answered = async {
        let (mut answer, mut some) = (String::new(), [0; 1024]);
        while !answer.contains("</Error>") {
            let count = reader.read(&mut some).await.unwrap();
            assert!(count > 0, "closed without an answer: {answer}");
            answer.push_str(&String::from_utf8_lossy(&some[..count]));
        }
        answer
    };
    let answer = tokio::select! {
        answer = answered => answer,
        () = trickle => unreachable!("the client sends without end"),
    };
    assert!(answer.contains("<Code>RequestTimeout</Code>"), "{answer}");
    assert_eq!(c.door.xml_status().used, 0);
    connection.abort();
}

#[tokio::test]
async fn errors_name_their_request() {
    let mut c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", "data").await.expect(200);
    let exists = c.call("PUT", "/bucket/k").header("if-none-match", "*").body("x").send().await;
    assert_eq!(exists.refused(412, "PreconditionFailed").xml("Condition"), "If-None-Match");
    let differs = c.call("GET", "/bucket/k").header("if-match", "\"0\"").send().await;
    assert_eq!(differs.refused(412, "PreconditionFailed").xml("Condition"), "If-Match");
    let absent = c.get("/bucket/a&b").await.refused(404, "NoSuchKey");
    assert_eq!((absent.xml("Resource"), absent.xml("Condition")), ("/bucket/a%26b", ""));
    assert_eq!(absent.xml("RequestId"), absent.header("x-amz-request-id"));
    let head = c.call("HEAD", "/bucket/none").send().await.expect(404);
    assert_eq!((head.header("x-minio-error-code"), head.bytes()), ("NoSuchKey", &b""[..]));
    c.signer.secret_key = "wrong".into();
    let wrong = c.get("/bucket/k").await.refused(403, "SignatureDoesNotMatch");
    assert!(!wrong.xml("Message").is_empty());
    let head = c.call("HEAD", "/bucket").send().await.expect(403);
    assert_eq!(head.header("x-minio-error-code"), "SignatureDoesNotMatch");
    assert!(!head.header("x-minio-error-desc").is_empty());
}
