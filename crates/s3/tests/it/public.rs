//! Public buckets: what a request without a signature can do.

use steadfast_s3::S3Options;

use crate::common::{Client, HOST, options};
use crate::edge::{OPERATIONS, client_with, prepare};

const PAGE: &str = "https://player.example.com";

/// A client of a server with the public buckets `media`, which has an origin, `open`, with the
/// object `k`, and `absent`, which does not exist. The bucket `plain` is not public.
async fn client() -> Client {
    let public_read = ["media", "open", "absent"].map(str::to_owned).into();
    let c = client_with(S3Options { public_read, allowed_origins: vec![PAGE.into()], ..options() }).await;
    c.bucket("open").await;
    for bucket in ["open", "plain"] {
        c.call("PUT", &format!("/{bucket}/k")).header("x-amz-meta-a", "b").body("0123456789").send().await.expect(200);
    }
    c
}

#[tokio::test]
async fn only_reads_of_objects_need_no_signature() {
    let c = client().await;
    for bucket in ["open", "media", "plain", "absent", "none"] {
        for (operation, method, path, _) in OPERATIONS {
            let answer = prepare(&c, operation, method, &format!("/{bucket}{path}")).send_unsigned().await;
            let reads = matches!(*operation, "GetObject" | "HeadObject");
            let expected = match bucket {
                "open" if reads => 200,
                // The origin is not there.
                "media" if reads => 502,
                "absent" | "none" if *operation != "CreateBucket" => 404,
                _ => 403,
            };
            assert_eq!(answer.status, expected, "{operation} of {bucket}: {answer:?}");
            if expected == 403 && *method != "HEAD" {
                answer.refused(403, "AccessDenied");
            }
            assert_eq!(c.records.0.lock().last().expect("a record").0, *operation);
        }
    }
    c.call("GET", "/").send_unsigned().await.refused(403, "AccessDenied");
    for path in ["/open/", "/open//", "/open?acl", "/open/k?torrent", "/open/k?acl=", "/open/k?retention"] {
        let answer = c.call("GET", path).send_unsigned().await;
        // `//` is the object `/`, which does not exist.
        assert_eq!(answer.status, if path == "/open//" { 404 } else { 403 }, "{path}: {answer:?}");
    }
    for method in ["PUT", "POST", "DELETE", "PATCH", "OPTIONS"] {
        let answer = c.call(method, "/open/k").body("changed").send_unsigned().await;
        assert!(answer.status >= 400, "{method}: {answer:?}");
    }
    let form = c.call("POST", "/open").header("content-type", "multipart/form-data; boundary=x").body("--x--");
    form.send_unsigned().await.refused(501, "NotImplemented");
    assert_eq!(c.get("/open/k").await.expect(200).bytes(), b"0123456789");
    c.put("/open/k", "signed").await.expect(200);
}

#[tokio::test]
async fn public_objects_are_read_as_they_are() {
    let c = client().await;
    let get = |path: &str| c.call("GET", path);
    let got = get("/open/k").send_unsigned().await.expect(200);
    assert_eq!((got.bytes(), got.header("x-amz-meta-a")), (&b"0123456789"[..], "b"));
    let tag = got.header("etag").to_owned();
    let range = get("/open/k").header("range", "bytes=2-4").send_unsigned().await.expect(206);
    assert_eq!((range.bytes(), range.header("content-range")), (&b"234"[..], "bytes 2-4/10"));
    get("/open/k").header("range", "bytes=10-").send_unsigned().await.refused(416, "InvalidRange");
    get("/open/k").header("if-none-match", &tag).send_unsigned().await.expect(304);
    get("/open/k").header("if-match", "\"x\"").send_unsigned().await.refused(412, "PreconditionFailed");
    let head = c.call("HEAD", "/open/k").send_unsigned().await.expect(200);
    assert_eq!((head.header("content-length"), head.header("etag")), ("10", &tag[..]));
    get("/open/missing").send_unsigned().await.refused(404, "NoSuchKey");
    c.call("HEAD", "/open/missing").send_unsigned().await.expect(404);
    get("/open/k").header("x-amz-expected-bucket-owner", "another").send_unsigned().await.refused(403, "AccessDenied");
    // By the name of the host, and not in another bucket.
    let hosted = |bucket: &str, path: &str| get(path).header("host", &format!("{bucket}.{HOST}")).send_unsigned();
    assert_eq!(hosted("open", "/k").await.expect(200).bytes(), b"0123456789");
    hosted("plain", "/k").await.refused(403, "AccessDenied");
    hosted("plain", "/open/k").await.refused(403, "AccessDenied");
    for path in ["/open/../plain/k", "/open//plain/k"] {
        get(path).send_unsigned().await.refused(404, "NoSuchKey");
    }
    for path in ["/plain/../open/k", "//open/k", "/OPEN/k", "/op/k"] {
        let answer = get(path).send_unsigned().await;
        assert!(matches!(answer.status, 400 | 403 | 404), "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn parameters_need_a_signature() {
    let c = client().await;
    for (name, value) in
        [("response-content-type", "text/html"), ("response-expires", "x"), ("response-content-encoding", "")]
    {
        for method in ["GET", "HEAD"] {
            let answer = c.call(method, "/open/k").query(name, value).send_unsigned().await;
            assert_eq!(answer.status, 400, "{answer:?}");
            if method == "GET" {
                let answer = answer.refused(400, "InvalidRequest");
                assert!(answer.xml("Message").contains("cannot be used for anonymous GET requests"), "{answer:?}");
            }
        }
        c.call("GET", "/plain/k").query(name, value).send_unsigned().await.refused(403, "AccessDenied");
        c.call("GET", "/absent/k").query(name, value).send_unsigned().await.refused(404, "NoSuchBucket");
    }
    c.call("GET", "/open/k?partNumber=1").send_unsigned().await.expect(206);
    for query in ["versionId=null", "acl", "X-Amz-Credential=a", "X-Amz-Expires=1"] {
        c.call("GET", &format!("/open/k?{query}")).send_unsigned().await.refused(403, "AccessDenied");
    }
    // What a signed read ignores.
    for query in ["v=3", "1668123456", "download", "x-id=GetObject", "_HLS_msn=7&_HLS_part=1"] {
        assert_eq!(c.call("GET", &format!("/open/k?{query}")).send_unsigned().await.status, 200, "{query}");
    }
    let signed = c.get("/open/k?response-content-type=text%2Fhtml&partNumber=1").await;
    assert_eq!(signed.status, 206, "{signed:?}");
}

#[tokio::test]
async fn a_wrong_signature_is_refused_on_a_public_bucket_too() {
    let mut c = client().await;
    c.get("/open/k").await.expect(200);
    c.call("GET", "/open/k").send_presigned(60).await.expect(200);
    c.call("GET", "/open/k").unsigned("x-amz-meta-a", "b").send().await.refused(403, "AccessDenied");
    // A header that is no signature, or two of them, is not the same as none.
    let signature = "AWS4-HMAC-SHA256 Credential=a/20260101/r/s3/aws4_request, SignedHeaders=host, Signature=0";
    for value in ["", "Basic YTpi", "Bearer t", "AWS a:b", signature] {
        let answer = c.call("GET", "/open/k").unsigned("authorization", value).send_unsigned().await;
        assert!(matches!(answer.status, 400 | 403), "{value}: {answer:?}");
        let twice = c.call("GET", "/open/k").unsigned("authorization", value).unsigned("authorization", value);
        let answer = twice.send_unsigned().await;
        assert!(matches!(answer.status, 400 | 403), "{value}: {answer:?}");
    }
    c.call("GET", "/open/k?X-Amz-Signature=0").send_unsigned().await.expect(400);
    c.signer.secret_key = "wrong".into();
    c.get("/open/k").await.refused(403, "SignatureDoesNotMatch");
    c.call("GET", "/open/k").send_presigned(60).await.refused(403, "SignatureDoesNotMatch");
    c.signer.access_key = "unknown".into();
    c.get("/open/k").await.refused(403, "InvalidAccessKeyId");
}

#[tokio::test]
async fn pages_of_allowed_origins_read_public_objects() {
    let c = client().await;
    let get = |origin: &str| c.call("GET", "/open/k").header("origin", origin).header("range", "bytes=0-1");
    let got = get(PAGE).send_unsigned().await.expect(206);
    assert_eq!((got.header("access-control-allow-origin"), got.header("vary")), (PAGE, "Origin"));
    let exposed: Vec<&str> = got.header("access-control-expose-headers").split(", ").collect();
    for name in ["*", "Content-Range", "Content-Length", "Accept-Ranges", "ETag", "Age", "Cache-Status"] {
        assert!(exposed.contains(&name), "{name}");
    }
    let other = get("https://evil.example").send_unsigned().await.expect(206);
    assert_eq!(other.header("access-control-allow-origin"), "");
    let ask = c.call("OPTIONS", "/open/k").header("origin", PAGE).header("access-control-request-method", "GET");
    let answer = ask.header("access-control-request-headers", "range").send_unsigned().await.expect(204);
    assert_eq!(answer.header("access-control-allow-headers"), "range");
    assert!(answer.header("access-control-allow-methods").contains("GET, HEAD"));
}
