//! Objects through the S3 interface: reads return what was written, and invalid requests get S3's
//! errors.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::common::{Client, md5_hex, options, store_with};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use md5::{Digest as _, Md5};
use std::sync::Arc;
use steadfast_disk::{Disk, Effect, Fault, Faults, Faulty, MemDisk, OpKind};
use steadfast_flow::Env;
use steadfast_log::{FormatOptions, Log, LogOptions};
use steadfast_s3::EtagKind;
use steadfast_store::{IndexKind, Store, StoreOptions};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 31 % 251) as u8).collect()
}

#[tokio::test]
async fn reads_return_what_was_written() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    for size in [0, 1, 4096, 70_000, 3 << 20] {
        let data = pattern(size);
        let put = c.put("/bucket/some/kéy +&", data.clone()).await.expect(200);
        let tag = format!("\"{}\"", md5_hex(&data));
        assert_eq!(put.header("etag"), tag);
        assert_eq!(put.header("x-steadfast-durable"), "true");
        assert_eq!(put.header("x-amz-request-id").len(), 16);
        let got = c.get("/bucket/some/kéy +&").await.expect(200);
        assert!(got.bytes() == data, "{size} bytes");
        assert_eq!(got.header("etag"), tag);
        assert_eq!(got.header("content-length"), size.to_string());
        assert_eq!(got.header("content-type"), "binary/octet-stream");
        assert_eq!(got.header("accept-ranges"), "bytes");
        assert!(got.header("last-modified").ends_with("GMT"));
        let head = c.call("HEAD", "/bucket/some/kéy +&").send().await.expect(200);
        assert_eq!(head.header("content-length"), size.to_string());
        assert!(head.bytes().is_empty());
    }
}

#[tokio::test]
async fn headers_come_back() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let sent = [
        ("content-type", "text/html; charset=utf-8"),
        ("cache-control", "max-age=60"),
        ("content-disposition", "attachment; filename=\"a.html\""),
        ("content-language", "de"),
        ("expires", "Thu, 21 Oct 2032 07:28:00 GMT"),
        ("x-amz-meta-colour", "blue"),
        ("x-amz-meta-name", "=?UTF-8?B?SMOkbnNlbA==?="),
    ];
    let mut call = c.call("PUT", "/bucket/k").header("content-encoding", "aws-chunked,gzip");
    for (name, value) in sent {
        call = call.header(name, value);
    }
    call.send().await.expect(200);
    for method in ["GET", "HEAD"] {
        let got = c.call(method, "/bucket/k").send().await.expect(200);
        for (name, value) in sent {
            if name != "x-amz-meta-name" {
                assert_eq!(got.header(name), value, "{method} {name}");
            }
        }
        assert_eq!(got.header("content-encoding"), "gzip");
        assert!(got.header("x-amz-meta-name").to_ascii_lowercase().starts_with("=?utf-8?"), "non-ASCII is encoded");
    }
    let got = c
        .get("/bucket/k?response-content-type=text/plain&response-cache-control=no-store&response-expires=Fri, 21 Oct 2033 07:28:00 GMT")
        .await
        .expect(200);
    assert_eq!(got.header("content-type"), "text/plain");
    assert_eq!(got.header("cache-control"), "no-store");
    assert_eq!(got.header("expires"), "Fri, 21 Oct 2033 07:28:00 GMT");
}

#[tokio::test]
async fn ranges() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let data = pattern(3_000_000);
    c.put("/bucket/k", data.clone()).await.expect(200);
    for (range, start, end) in [
        ("bytes=0-0", 0, 1),
        ("bytes=5-1048580", 5, 1_048_581),
        ("bytes=2999999-", 2_999_999, 3_000_000),
        ("bytes=-7", 2_999_993, 3_000_000),
        ("bytes=2999990-9999999", 2_999_990, 3_000_000),
    ] {
        let got = c.call("GET", "/bucket/k").header("range", range).send().await.expect(206);
        assert!(got.bytes() == &data[start..end], "{range}");
        assert_eq!(got.header("content-range"), format!("bytes {start}-{}/3000000", end - 1));
        let head = c.call("HEAD", "/bucket/k").header("range", range).send().await.expect(206);
        assert_eq!(head.header("content-length"), (end - start).to_string());
    }
    let got = c.call("GET", "/bucket/k").header("range", "bytes=3000000-").send().await.refused(416, "InvalidRange");
    assert_eq!(got.header("content-range"), "bytes */3000000");
    c.get("/bucket/k?partNumber=1").await.expect(206);
    c.get("/bucket/k?partNumber=2").await.refused(416, "InvalidPartNumber");
}

#[tokio::test]
async fn conditions_of_reads() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let put = c.put("/bucket/k", "data").await.expect(200);
    let tag = put.header("etag").to_owned();
    let get = |name: &'static str, value: String| {
        let c = &c;
        async move { c.call("GET", "/bucket/k").header(name, &value).send().await }
    };
    get("if-match", tag.clone()).await.expect(200);
    get("if-match", "\"other\"".into()).await.refused(412, "PreconditionFailed");
    get("if-none-match", "\"other\"".into()).await.expect(200);
    let same = get("if-none-match", tag.clone()).await.expect(304);
    assert_eq!(same.header("etag"), tag);
    assert!(same.bytes().is_empty());
    get("if-modified-since", "Wed, 21 Oct 2037 07:28:00 GMT".into()).await.expect(304);
    get("if-modified-since", "Sun, 21 Oct 2001 07:28:00 GMT".into()).await.expect(200);
    get("if-unmodified-since", "Sun, 21 Oct 2001 07:28:00 GMT".into()).await.refused(412, "PreconditionFailed");
}

#[tokio::test]
async fn conditions_of_writes() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let put = |name: &'static str, value: String| {
        let c = &c;
        async move { c.call("PUT", "/bucket/k").body("new").header(name, &value).send().await }
    };
    put("if-match", "\"abc\"".into()).await.refused(404, "NoSuchKey");
    put("if-none-match", "*".into()).await.expect(200);
    put("if-none-match", "*".into()).await.refused(412, "PreconditionFailed");
    put("if-none-match", "\"abc\"".into()).await.refused(501, "NotImplemented");
    put("if-match", "\"abc\"".into()).await.refused(412, "PreconditionFailed");
    put("if-match", format!("\"{}\"", md5_hex(b"new"))).await.expect(200);
    let delete = c.call("DELETE", "/bucket/k").header("if-match", "\"abc\"").send().await;
    delete.refused(412, "PreconditionFailed");
}

#[tokio::test]
async fn absent_objects() {
    let c = Client::new().await;
    c.get("/nowhere/k").await.refused(404, "NoSuchBucket");
    c.put("/nowhere/k", "x").await.refused(404, "NoSuchBucket");
    c.get("/nowhere").await.refused(404, "NoSuchBucket");
    c.bucket("bucket").await;
    c.get("/bucket/k").await.refused(404, "NoSuchKey");
    c.call("HEAD", "/bucket/k").send().await.expect(404);
    c.call("DELETE", "/bucket/k").send().await.expect(204);
    c.put(&format!("/bucket/{}", "k".repeat(1025)), "x").await.refused(400, "KeyTooLongError");
    c.put("/Bad_Bucket", "").await.refused(400, "InvalidBucketName");
    c.get("/bucket/k?versionId=abc").await.refused(400, "InvalidArgument");
    for version in ["3sL4kqtJlcpXroDTDmJ+rmSpXd3dIbrHY", "3L4kqtJlcpXroDTDmJ.rmSpXd3dIbrHY"] {
        let (status, code) = if version.contains('+') { (400, "InvalidArgument") } else { (404, "NoSuchVersion") };
        c.call("GET", "/bucket/k").query("versionId", version).send().await.refused(status, code);
    }
    c.get("/bucket/k?versionId=0b1d8f5e-94b4-4e1c-9e22-0f5f6f0e7c11").await.refused(404, "NoSuchVersion");
}

#[tokio::test]
async fn digests_are_checked() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let put = |name: &'static str, value: &'static str| {
        let c = &c;
        async move { c.call("PUT", "/bucket/k").body("123456789").header(name, value).send().await }
    };
    let right = [
        ("x-amz-checksum-crc32", "y/Q5Jg=="),
        ("x-amz-checksum-crc32c", "4waSgw=="),
        ("x-amz-checksum-crc64nvme", "rosUhgp5mIg="),
        ("x-amz-checksum-sha1", "98O8HYCOBHMq32eZZczDTKeuNEE="),
        ("x-amz-checksum-sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
    ];
    for (name, value) in right {
        let put = put(name, value).await.expect(200);
        assert_eq!(put.header(name), value);
        assert_eq!(put.header("x-amz-checksum-type"), "FULL_OBJECT");
        let got = c.call("GET", "/bucket/k").header("x-amz-checksum-mode", "ENABLED").send().await.expect(200);
        assert_eq!(got.header(name), value);
        let ranged = c.call("GET", "/bucket/k").header("x-amz-checksum-mode", "ENABLED").header("range", "bytes=0-3");
        assert_eq!(ranged.send().await.expect(206).header(name), "", "it is of the whole");
        assert_eq!(c.get("/bucket/k").await.expect(200).header(name), "", "the request did not ask for it");
    }
    c.call("DELETE", "/bucket/k").send().await.expect(204);
    put("x-amz-checksum-crc32", "AAAAAA==").await.refused(400, "BadDigest");
    put("x-amz-checksum-sha256", "98O8HYCOBHMq32eZZczDTKeuNEE=").await.refused(400, "InvalidRequest");
    put("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==").await.refused(400, "BadDigest");
    put("content-md5", "AAAA").await.refused(400, "InvalidDigest");
    let wrong = c.call("PUT", "/bucket/k").body("123456789").payload(&crate::common::signer::sha256_hex(b"other"));
    wrong.send().await.refused(400, "XAmzContentSHA256Mismatch");
    c.get("/bucket/k").await.refused(404, "NoSuchKey");
    let md5 = BASE64.encode(Md5::digest(b"123456789"));
    c.call("PUT", "/bucket/k").body("123456789").header("content-md5", &md5).send().await.expect(200);
}

#[tokio::test]
async fn opaque_entity_tags() {
    let c = Client::with(steadfast_s3::S3Options { etag: EtagKind::Opaque, ..options() }).await;
    c.bucket("bucket").await;
    let first = c.put("/bucket/k", "same").await.expect(200).header("etag").to_owned();
    let second = c.put("/bucket/k", "same").await.expect(200).header("etag").to_owned();
    assert_ne!(first, second);
    assert!(first.ends_with("-1\"") && first.len() == 36, "{first}");
    c.call("PUT", "/bucket/k").body("x").header("if-match", &first).send().await.refused(412, "PreconditionFailed");
    c.call("PUT", "/bucket/k").body("x").header("if-match", &second).send().await.expect(200);
    // The server checks a Content-MD5 in this case too.
    let wrong = c.call("PUT", "/bucket/k").body("x").header("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==");
    wrong.send().await.refused(400, "BadDigest");
}

#[tokio::test]
async fn durability_is_the_clients_choice() {
    // No flush comes before the answer of an asynchronous write.
    let log = LogOptions { async_window: Duration::from_secs(3600), ..LogOptions::default() };
    let store = store_with(StoreOptions { log, ..StoreOptions::default() }).await;
    let c = Client::over(store, options());
    c.bucket("bucket").await;
    c.call("PUT", "/lazy").header("x-steadfast-durability", "async").send().await.expect(200);
    let put = |path: &'static str, value: Option<&'static str>| {
        let mut call = c.call("PUT", path).body("x");
        if let Some(value) = value {
            call = call.header("x-steadfast-durability", value);
        }
        call.send()
    };
    assert_eq!(put("/bucket/k", None).await.expect(200).header("x-steadfast-durable"), "true");
    assert_eq!(put("/bucket/k", Some("async")).await.expect(200).header("x-steadfast-durable"), "false");
    assert_eq!(put("/lazy/k", None).await.expect(200).header("x-steadfast-durable"), "false");
    assert_eq!(put("/lazy/k", Some("sync")).await.expect(200).header("x-steadfast-durable"), "true");
    put("/bucket/k", Some("maybe")).await.refused(400, "InvalidArgument");
}

#[tokio::test]
async fn copies() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.bucket("other").await;
    let put = c.call("PUT", "/bucket/a b").body("data").header("x-amz-meta-m", "1").header("content-type", "text/x");
    let put = put.header("x-amz-tagging", "t=1").header("x-amz-checksum-crc32", "rfPzYw==").send().await.expect(200);
    let tag = put.header("etag").to_owned();
    let copy = |to: &'static str| c.call("PUT", to).header("x-amz-copy-source", "/bucket/a%20b");
    let copied = copy("/other/k").send().await.expect(200);
    assert_eq!(copied.xml("ETag").replace("&quot;", "\""), tag);
    assert_eq!(copied.xml("ChecksumCRC32"), "rfPzYw==");
    let got = c.get("/other/k").await.expect(200);
    assert_eq!((got.bytes(), got.header("x-amz-meta-m"), got.header("content-type")), (&b"data"[..], "1", "text/x"));
    assert_eq!(got.header("x-amz-tagging-count"), "1");

    let replaced = copy("/other/k").header("x-amz-metadata-directive", "REPLACE").header("x-amz-meta-n", "2");
    replaced.send().await.expect(200);
    let got = c.get("/other/k").await.expect(200);
    assert_eq!((got.header("x-amz-meta-m"), got.header("x-amz-meta-n")), ("", "2"));
    assert_eq!((got.bytes(), got.header("etag")), (&b"data"[..], tag.as_str()));

    copy("/bucket/a b").send().await.refused(400, "InvalidRequest");
    for to in ["/other/summed", "/bucket/a b"] {
        let summed = copy(to).header("x-amz-checksum-algorithm", "SHA1").send().await.expect(200);
        let sum = summed.xml("ChecksumSHA1").to_owned();
        let kept = c.call("HEAD", to).header("x-amz-checksum-mode", "ENABLED").send().await.expect(200);
        assert_eq!((kept.header("x-amz-checksum-sha1"), kept.header("x-amz-checksum-type")), (&*sum, "FULL_OBJECT"));
    }
    copy("/other/k").header("x-amz-checksum-algorithm", "MD4").send().await.refused(400, "InvalidRequest");
    copy("/bucket/a b").header("x-amz-metadata-directive", "REPLACE").send().await.expect(200);
    copy("/other/k").header("x-amz-copy-source-if-match", "\"x\"").send().await.refused(412, "PreconditionFailed");
    copy("/other/k").header("x-amz-copy-source-if-none-match", &tag).send().await.refused(412, "PreconditionFailed");
    copy("/other/k").header("if-none-match", "*").send().await.refused(412, "PreconditionFailed");
    let missing = c.call("PUT", "/other/k").header("x-amz-copy-source", "/bucket/none").send().await;
    missing.refused(404, "NoSuchKey");
}

#[tokio::test]
async fn a_plus_in_the_source_of_a_copy_is_a_blank() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    for key in ["a b", "a+b", "a%2Bb", "++", "  "] {
        c.put(&format!("/bucket/{key}"), format!("<{key}>")).await.expect(200);
    }
    let id = c.call("POST", "/bucket/up?uploads").send().await.expect(200).xml("UploadId").to_owned();
    let part = format!("/bucket/up?partNumber=1&uploadId={id}");
    for (source, key) in [
        ("/bucket/a+b", "a b"),
        ("bucket/a+b", "a b"),
        ("/bucket/a%20b", "a b"),
        ("/bucket/a b", "a b"),
        ("/bucket/a%2Bb", "a+b"),
        ("/bucket/a%2bb", "a+b"),
        ("/bucket/a%252Bb", "a%2Bb"),
        ("bucket%2Fa+b?versionId=null", "a b"),
        ("/bucket/a%2Bb?versionId=null", "a+b"),
        ("/bucket/%2B%2B", "++"),
        ("/bucket/++", "  "),
    ] {
        c.call("PUT", "/bucket/to").header("x-amz-copy-source", source).send().await.expect(200);
        assert_eq!(c.get("/bucket/to").await.bytes(), format!("<{key}>").as_bytes(), "{source}");
        let copied = c.call("PUT", &part).header("x-amz-copy-source", source).send().await.expect(200);
        let tag = format!("\"{}\"", md5_hex(format!("<{key}>").as_bytes()));
        assert_eq!(copied.xml("ETag").replace("&quot;", "\""), tag, "{source}");
    }
    let other = c.call("PUT", "/bucket/to").header("x-amz-copy-source", "/bucket/a%2Bb?versionId=a+b");
    other.send().await.refused(400, "InvalidArgument");
}

#[tokio::test]
async fn requests_refused_by_the_index_do_not_read_the_disk() {
    let faults = Faults::new();
    let disk: Arc<dyn Disk> = Arc::new(Faulty::new(Arc::new(MemDisk::fixed(256 << 20)), faults.clone()));
    Log::format(&disk, &Env::tokio(), &FormatOptions::default()).await.expect("a pool");
    let uncached = StoreOptions { cache_bytes: 0, ..StoreOptions::default() };
    let (store, _) = Store::open(disk, IndexKind::memory(), Env::tokio(), uncached).await.expect("a store");
    let c = Client::over(store, options());
    c.bucket("bucket").await;
    for (key, size) in [("small", 1000), ("large", 3 << 20)] {
        let tag = c.put(&format!("/bucket/{key}"), pattern(size)).await.expect(200).header("etag").to_owned();
        let path = format!("/bucket/{key}");
        let reads = faults.add(Fault::new(OpKind::Read, Effect::Error(libc::EIO)));
        c.get(&path).await.refused(500, "InternalError");
        let reads_before = faults.harmed(reads);
        assert!(reads_before > 0, "the data is not in a cache");
        let (past, future) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Wed, 02 Jan 2030 03:04:05 GMT");
        for (name, value, status) in [
            ("if-none-match", tag.as_str(), 304),
            ("if-none-match", "*", 304),
            ("if-modified-since", future, 304),
            ("if-match", "\"0\"", 412),
            ("if-unmodified-since", past, 412),
            ("range", "bytes=9000000-", 416),
            ("range", "bytes=-0", 416),
        ] {
            let answer = c.call("GET", &path).header(name, value).send().await.expect(status);
            if status == 304 {
                assert_eq!(answer.header("etag"), tag);
            }
            if status == 416 {
                assert_eq!(answer.header("content-range"), format!("bytes */{size}"));
            }
        }
        c.get(&format!("{path}?partNumber=2")).await.expect(416);
        c.call("HEAD", &format!("{path}?partNumber=1")).send().await.expect(206);
        let about = c.call("GET", &format!("{path}?attributes")).header("x-amz-object-attributes", "ETag,ObjectParts");
        about.send().await.expect(200);
        let copy = || c.call("PUT", "/bucket/copy").header("x-amz-copy-source", &path);
        copy().header("x-amz-copy-source-if-match", "\"0\"").send().await.refused(412, "PreconditionFailed");
        assert_eq!(faults.harmed(reads), reads_before);
        // When the conditions hold, the answer comes from the disk.
        faults.clear();
        let held = c.call("GET", &path).header("if-match", &tag).header("range", "bytes=1-2").send().await.expect(206);
        assert_eq!(held.bytes(), &pattern(3)[1..]);
    }
}

#[tokio::test]
async fn deletes_in_bulk() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    for key in ["a", "b", "c&d"] {
        c.put(&format!("/bucket/{key}"), "x").await.expect(200);
    }
    let delete = |xml: &'static str| {
        let md5 = BASE64.encode(Md5::digest(xml));
        c.call("POST", "/bucket?delete").body(xml).header("content-md5", &md5).send()
    };
    let done =
        delete("<Delete><Object><Key>a</Key></Object><Object><Key>none</Key></Object></Delete>").await.expect(200);
    assert_eq!(done.xml_all("Key"), ["a", "none"]);
    let quiet = delete("<Delete><Quiet>true</Quiet><Object><Key>c&amp;d</Key></Object></Delete>").await.expect(200);
    assert_eq!(quiet.xml_all("Key").len(), 0);
    let listed = c.get("/bucket?list-type=2").await.expect(200);
    assert_eq!(listed.xml_all("Key"), ["b"]);
    delete("<Delete><Object>").await.refused(400, "MalformedXML");
}

#[tokio::test]
async fn tags() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", "x").await.expect(200);
    let xml = "<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>";
    c.put("/bucket/k?tagging", xml).await.expect(200);
    let got = c.get("/bucket/k?tagging").await.expect(200);
    assert_eq!((got.xml("Key"), got.xml("Value")), ("a", "1"));
    c.call("DELETE", "/bucket/k?tagging").send().await.expect(204);
    assert_eq!(c.get("/bucket/k?tagging").await.expect(200).xml("Key"), "");
    let twice = "<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag><Tag><Key>a</Key><Value>2</Value></Tag></TagSet></Tagging>";
    c.put("/bucket/k?tagging", twice).await.refused(400, "InvalidTag");
}

#[tokio::test]
async fn unsupported_features_are_refused() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let put = |name: &'static str, value: &'static str| c.call("PUT", "/bucket/k").body("x").header(name, value).send();
    put("x-amz-server-side-encryption", "AES256").await.refused(501, "NotImplemented");
    put("x-amz-storage-class", "GLACIER").await.refused(400, "InvalidStorageClass");
    put("x-amz-storage-class", "STANDARD").await.expect(200);
    put("x-amz-object-lock-mode", "GOVERNANCE").await.refused(400, "InvalidRequest");
    c.put("/bucket?lifecycle", "").await.refused(501, "NotImplemented");
    c.call("POST", "/bucket")
        .header("content-type", "multipart/form-data; boundary=x")
        .body("--x--")
        .send()
        .await
        .refused(501, "NotImplemented");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_onto_itself_never_describes_another_write() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", "first").await.expect(200);
    let ended = AtomicBool::new(false);
    let writes = async {
        for n in 0..300 {
            c.put("/bucket/k", n.to_string()).await.expect(200);
        }
        ended.store(true, Relaxed);
    };
    let copies = async {
        while !ended.load(Relaxed) {
            let copy = c.call("PUT", "/bucket/k").header("x-amz-copy-source", "/bucket/k");
            let copy = copy.header("x-amz-metadata-directive", "REPLACE").header("if-match", "*").send().await;
            assert!(matches!(copy.status, 200 | 409), "{copy:?}");
            let answer = c.get("/bucket/k").await.expect(200);
            assert_eq!(answer.header("etag"), format!("\"{}\"", md5_hex(answer.bytes())));
        }
    };
    tokio::join!(writes, copies);
    let stale = c.call("PUT", "/bucket/k").header("x-amz-copy-source", "/bucket/k");
    let stale = stale.header("x-amz-metadata-directive", "REPLACE").header("if-match", &md5_hex(b"first"));
    stale.send().await.refused(412, "PreconditionFailed");
}
