//! Headers and bodies as clients write them, in forms other than the usual one.

use crate::common::{Answer, Client};

#[tokio::test]
async fn dates_in_every_form_of_http() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", "data").await.expect(200);
    let get = |name: &'static str, date: &'static str| c.call("GET", "/bucket/k").header(name, date).send();
    let copy = |name: &'static str, date: &'static str| {
        c.call("PUT", "/bucket/copy").header("x-amz-copy-source", "bucket/k").header(name, date).send()
    };
    for past in [
        "Tue, 09 Aug 2022 01:01:01 GMT",
        "Tue, 9 Aug 2022 01:01:01 GMT",
        "Tuesday, 09-Aug-22 01:01:01 GMT",
        "Tue Aug  9 01:01:01 2022",
        "tue, 09 AUG 2022 01:01:01 gmt",
        "Tue, 09 Aug 2022 01:01:01 UTC",
        "Tue, 09 Aug 2022 01:01:01 +0000",
        "09 Aug 2022 01:01:01 GMT",
        "Tue, 09 Aug 2022 01:01:60 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
    ] {
        get("if-unmodified-since", past).await.refused(412, "PreconditionFailed");
        get("if-modified-since", past).await.expect(200);
        copy("x-amz-copy-source-if-unmodified-since", past).await.refused(412, "PreconditionFailed");
        copy("x-amz-copy-source-if-modified-since", past).await.expect(200);
        let presigned = c.call("PUT", "/bucket/copy").query("x-amz-copy-source", "bucket/k");
        let presigned = presigned.query("x-amz-copy-source-if-unmodified-since", past).send_presigned(60).await;
        presigned.refused(412, "PreconditionFailed");
        let expires = c.call("GET", "/bucket/k").query("response-expires", past).send().await.expect(200);
        assert!(expires.header("expires").ends_with("GMT"), "{past}");
    }
    for future in ["Mon, 9 Aug 2060 01:01:01 GMT", "Monday, 09-Aug-60 01:01:01 GMT", "Mon Aug  9 01:01:01 2060"] {
        get("if-modified-since", future).await.expect(304);
        get("if-unmodified-since", future).await.expect(200);
        copy("x-amz-copy-source-if-modified-since", future).await.refused(412, "PreconditionFailed");
    }
    // What is no date is no condition.
    for unreadable in
        ["yesterday", "0", "-1", "2022-08-09T01:01:01Z", "Tue, 32 Aug 2022 01:01:01 GMT", "Tue, 09 Aug 2022"]
    {
        for name in ["if-unmodified-since", "if-modified-since"] {
            get(name, unreadable).await.expect(200);
            copy(
                if name == "if-modified-since" {
                    "x-amz-copy-source-if-modified-since"
                } else {
                    "x-amz-copy-source-if-unmodified-since"
                },
                unreadable,
            )
            .await
            .expect(200);
        }
        c.call("GET", "/bucket/k").query("response-expires", unreadable).send().await.expect(200);
    }
    // A delete whose condition cannot be read deletes nothing.
    let delete = c.call("DELETE", "/bucket/k").header("x-amz-if-match-last-modified-time", "yesterday");
    assert!(delete.send().await.status >= 400);
    c.get("/bucket/k").await.expect(200);
    // The range applies to the object of that time, in every form.
    let modified = c.get("/bucket/k").await.header("last-modified").to_owned();
    let (day, rest) = modified.split_once(", ").expect("a date");
    let ranged =
        |date: String| c.call("GET", "/bucket/k").header("range", "bytes=0-0").header("if-range", &date).send();
    assert_eq!(ranged(format!("{} , {rest}", day.to_uppercase())).await.expect(206).bytes(), b"d");
    assert_eq!(ranged("yesterday".into()).await.expect(200).bytes(), b"data");
}

#[tokio::test]
async fn ranges_of_every_form() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", "0123456789").await.expect(200);
    let get = |range: &'static str| c.call("GET", "/bucket/k").header("range", range).send();
    for (range, content) in [
        ("bytes=5-9223372036854775808", "56789"),
        ("bytes=5-18446744073709551615", "56789"),
        ("bytes=5-18446744073709551616", "56789"),
        ("bytes=5-99999999999999999999999", "56789"),
        ("bytes=-99999999999999999999999", "0123456789"),
        ("bytes=-3", "789"),
        ("Bytes=0-0", "0"),
        ("bytes=0000000000000000000000005-5", "5"),
    ] {
        let answer = get(range).await.expect(206);
        assert_eq!(answer.text(), content, "{range}");
        assert!(answer.header("content-range").ends_with("/10"), "{range}");
        c.call("HEAD", "/bucket/k").header("range", range).send().await.expect(206);
    }
    for range in ["bytes=10-", "bytes=9223372036854775808-", "bytes=99999999999999999999999-", "bytes=-0"] {
        get(range).await.refused(416, "InvalidRange");
    }
    // Ranges that are invalid, and several at once, are ignored.
    for range in [
        "bytes=0-0,2-3",
        "bytes=abc",
        "bytes= 0-1",
        "items=0-1",
        "bytes=2-1",
        "bytes=-",
        "bytes=1",
        "",
        "0-1",
        "bytes=+1-2",
    ] {
        assert_eq!(get(range).await.expect(200).text(), "0123456789", "{range}");
    }
    let twice = c.call("GET", "/bucket/k").lines("range", "bytes=0-0,bytes=1-1").send().await.expect(200);
    assert_eq!(twice.text(), "0123456789");
}

#[tokio::test]
async fn repeated_headers_are_one_list() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let put = c
        .call("PUT", "/bucket/k")
        .body("data")
        .lines("x-amz-meta-a", "1,2,3")
        .lines("cache-control", "no-cache,private");
    put.lines("content-language", "en,de").send().await.expect(200);
    let got = c.get("/bucket/k").await.expect(200);
    assert_eq!(got.header("x-amz-meta-a"), "1,2,3");
    assert_eq!((got.header("cache-control"), got.header("content-language")), ("no-cache, private", "en, de"));
    let encoded = c.call("PUT", "/bucket/k").body("data").lines("content-encoding", "gzip,br");
    encoded.send().await.expect(200);
    assert_eq!(c.get("/bucket/k").await.header("content-encoding"), "gzip,br");
    // One value of these is another request than two.
    for name in ["content-type", "x-amz-tagging", "content-md5"] {
        let answer = c.call("PUT", "/bucket/k").body("new").lines(name, "a,b").send().await;
        assert_eq!(answer.status, 400, "{name}: {answer:?}");
    }
    assert_eq!(c.get("/bucket/k").await.expect(200).bytes(), b"data");
}

#[tokio::test]
async fn encoded_words_in_metadata() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    for (sent, stored) in [
        ("=?ISO-8859-1?Q?Caf=E9?=", "Café"),
        ("=?iso-8859-1?q?Caf=e9_au_lait?=", "Café au lait"),
        ("=?UTF-8?B?w6k=?=", "é"),
        ("=?UTF-8?B?w6k?=", "é"),
        ("=?windows-1252?B?gA==?=", "€"),
        ("=?ISO-8859-15?Q?=A4?=", "€"),
        ("=?Shift_JIS?B?g2WDWINn?=", "テスト"),
        ("=?utf-8*fr?Q?=C3=A9?=", "é"),
        // Characters that are split, words with text between them, and text around them.
        ("=?UTF-8?Q?=C3?= =?UTF-8?Q?=A9?=", "é"),
        ("=?UTF-8?Q?=C3=A9?= and =?UTF-8?Q?=C3=A8?=", "é and è"),
        ("to =?UTF-8?Q?=C3=A9?= here", "to é here"),
        ("=?UTF-8?Q?=C3=A9?= =?ISO-8859-1?Q?=E8?=", "éè"),
        // What cannot be decoded stays as it is.
        ("=?x-unknown?Q?a?=", "=?x-unknown?Q?a?="),
        ("=?UTF-8?Q?=FF?=", "=?UTF-8?Q?=FF?="),
        ("=?UTF-8?B?*?=", "=?UTF-8?B?*?="),
        ("=?UTF-8?X?a?=", "=?UTF-8?X?a?="),
        ("=?UTF-8?Q?=C?=", "=?UTF-8?Q?=C?="),
        ("=?UTF-8?Q?a", "=?UTF-8?Q?a"),
        ("a=?b?=c", "a=?b?=c"),
        ("=?=?UTF-8?Q?=C3=A9?=", "=?é"),
    ] {
        c.call("PUT", "/bucket/k").body("data").header("x-amz-meta-name", sent).send().await.expect(200);
        let got = c.get("/bucket/k").await.expect(200);
        let expected = match stored.is_ascii() {
            true => stored.to_owned(),
            false => s3s_word(stored),
        };
        assert_eq!(got.header("x-amz-meta-name"), expected, "{sent}");
    }
}

fn s3s_word(text: &str) -> String {
    use base64::Engine as _;
    format!("=?UTF-8?B?{}?=", base64::engine::general_purpose::STANDARD.encode(text))
}

#[tokio::test]
async fn checksums_that_cannot_be_checked_are_refused() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let id = c.call("POST", "/bucket/up?uploads").send().await.expect(200).xml("UploadId").to_owned();
    let part = format!("/bucket/up?partNumber=1&uploadId={id}");
    for name in ["sha512", "md5", "xxhash64", "xxhash3", "xxhash128", "new"] {
        let name = format!("x-amz-checksum-{name}");
        for path in ["/bucket/k", &part] {
            let put = || c.call("PUT", path).body("data");
            put().header(&name, "AAAA").send().await.refused(400, "InvalidRequest");
            put().header("x-amz-trailer", &name).send().await.refused(400, "InvalidRequest");
        }
        let complete = c.call("POST", &format!("/bucket/up?uploadId={id}")).header(&name, "AAAA");
        complete.body("<CompleteMultipartUpload/>").send().await.refused(400, "InvalidRequest");
    }
    for algorithm in ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256", "MD4", ""] {
        let put = c.call("PUT", "/bucket/k").body("data").header("x-amz-sdk-checksum-algorithm", algorithm);
        put.send().await.refused(400, "InvalidRequest");
    }
    let tag = c.put(&part, "data").await.expect(200).header("etag").to_owned();
    let xml = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag><ChecksumSHA512>AA==</ChecksumSHA512></Part></CompleteMultipartUpload>"
    );
    c.call("POST", &format!("/bucket/up?uploadId={id}")).body(xml).send().await.refused(400, "InvalidRequest");
    c.get("/bucket/k").await.refused(404, "NoSuchKey");
}

#[tokio::test]
async fn trailers_are_the_announced_ones() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let put = |announced: Option<&'static str>, trailer: &str| {
        let body = format!("9\r\n123456789\r\n0\r\n{trailer}\r\n\r\n");
        let call = c.call("PUT", "/bucket/k").header("content-encoding", "aws-chunked");
        let call =
            call.header("x-amz-decoded-content-length", "9").payload("STREAMING-UNSIGNED-PAYLOAD-TRAILER").body(body);
        announced.into_iter().fold(call, |call, name| call.header("x-amz-trailer", name)).send()
    };
    put(Some("x-amz-checksum-crc32"), "x-amz-checksum-crc32:y/Q5Jg==").await.expect(200);
    put(Some("X-Amz-Checksum-CRC32"), "x-amz-checksum-crc32:y/Q5Jg==").await.expect(200);
    for (announced, trailer) in [
        (Some("x-amz-checksum-crc32"), "x-amz-checksum-crc32c:4waSgw=="),
        (Some("x-amz-checksum-crc32"), "x-amz-checksum-sha512:AA=="),
        (Some("x-amz-meta-a"), "x-amz-checksum-crc32:y/Q5Jg=="),
    ] {
        assert_eq!(put(announced, trailer).await.status, 400, "{announced:?} {trailer}");
    }
}

#[tokio::test]
async fn xml_bodies_match_their_checksums() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", "data").await.expect(200);
    let delete = "<Delete><Object><Key>k</Key></Object></Delete>";
    let tags = "<Tagging><TagSet/></Tagging>";
    for (method, path, body) in [("POST", "/bucket?delete", delete), ("PUT", "/bucket/k?tagging", tags)] {
        let call = || c.call(method, path).body(body);
        call().header("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==").send().await.refused(400, "BadDigest");
        call().header("content-md5", "x").send().await.refused(400, "InvalidDigest");
        call().header("x-amz-checksum-crc32", "AAAAAA==").send().await.refused(400, "BadDigest");
        call().header("x-amz-checksum-sha512", "AAAA").send().await.refused(400, "InvalidRequest");
        call().header("x-amz-sdk-checksum-algorithm", "CRC32").send().await.refused(400, "InvalidRequest");
    }
    c.get("/bucket/k").await.expect(200);
    let crc = (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, delete.as_bytes()) as u32).to_be_bytes();
    use base64::Engine as _;
    let value = base64::engine::general_purpose::STANDARD.encode(crc);
    let right = c.call("POST", "/bucket?delete").body(delete).header("x-amz-sdk-checksum-algorithm", "CRC32");
    right.header("x-amz-checksum-crc32", &value).send().await.expect(200);
    c.get("/bucket/k").await.refused(404, "NoSuchKey");
}

/// The XML namespace of S3.
const NAMESPACE: &str = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";

#[tokio::test]
async fn every_answer_has_the_namespace() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", "data").await.expect(200);
    let id = c.call("POST", "/bucket/up?uploads").send().await.expect(200).xml("UploadId").to_owned();
    let copied = c.call("PUT", "/bucket/copy").header("x-amz-copy-source", "bucket/k").send().await;
    let part = c.call("PUT", &format!("/bucket/up?partNumber=1&uploadId={id}"));
    let part = part.header("x-amz-copy-source", "bucket/k").send().await;
    let attributes = c.call("GET", "/bucket/k?attributes").header("x-amz-object-attributes", "ETag").send().await;
    let tag = part.xml("ETag").to_owned();
    let whole = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></CompleteMultipartUpload>"
    );
    let mut answers: Vec<(String, Answer)> = Vec::new();
    for path in [
        "/",
        "/bucket",
        "/bucket?list-type=2",
        "/bucket?versions",
        "/bucket?uploads",
        "/bucket?location",
        "/bucket?versioning",
        "/bucket?acl",
        "/bucket?notification",
        "/bucket?logging",
        "/bucket?accelerate",
        "/bucket?requestPayment",
        "/bucket?analytics",
        "/bucket?inventory",
        "/bucket?metrics",
        "/bucket?intelligent-tiering",
        "/bucket/k?acl",
        "/bucket/k?tagging",
        &format!("/bucket/up?uploadId={id}"),
    ] {
        answers.push((path.to_owned(), c.get(path).await));
    }
    let completed = c.call("POST", &format!("/bucket/up?uploadId={id}")).body(whole).send().await;
    let delete = c.call("POST", "/bucket?delete").body("<Delete><Object><Key>k</Key></Object></Delete>").send().await;
    answers.extend([
        ("copy".to_owned(), copied),
        ("part".to_owned(), part),
        ("attributes".to_owned(), attributes),
        ("completed".to_owned(), completed),
        ("delete".to_owned(), delete),
    ]);
    for (what, answer) in answers {
        let answer = answer.expect(200);
        let root = answer.text().split_once("?>").map_or(answer.text(), |(_, rest)| rest);
        let root = root.split('>').next().unwrap_or_default();
        assert!(root.contains(NAMESPACE), "{what}: {root}");
    }
}
