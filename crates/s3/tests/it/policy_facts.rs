//! Bucket policies: the facts about a request that conditions look at.

use serde_json::json;
use steadfast_s3::S3Options;

use crate::common::{Client, options, signer::sha256_hex};
use crate::policies::{allow, ask, client, on_condition, set, statement};

#[tokio::test]
async fn conditions_look_at_the_request() {
    let c = client().await;
    c.call("PUT", "/open/k").header("x-amz-tagging", "kind=public").body("x").send().await.expect(200);
    c.put("/open/plain", "x").await.expect(200);
    let get = |path: &str| c.call("GET", path);
    let reading = || allow(&["GetObject"], &["open/*"]);

    let page = json!({ "StringLike": { "aws:Referer": "https://player.example.com/*" } });
    set(&c, "open", &[on_condition(reading(), page)]).await;
    get("/open/k").send_unsigned().await.expect(403);
    get("/open/k").header("referer", "https://player.example.com/1").send_unsigned().await.expect(200);
    get("/open/k").header("referer", "https://evil.example.com/").send_unsigned().await.expect(403);
    let long = format!("https://player.example.com/{}", "a".repeat(5000));
    get("/open/k").header("referer", &long).send_unsigned().await.refused(400, "InvalidArgument");
    let twice = get("/open/k").header("referer", "https://player.example.com/1").unsigned("referer", "x");
    twice.send_unsigned().await.refused(400, "InvalidArgument");

    let tagged = json!({ "StringEquals": { "s3:ExistingObjectTag/kind": "public" } });
    set(&c, "open", &[on_condition(reading(), tagged)]).await;
    let got = get("/open/k").send_unsigned().await.expect(200);
    assert_eq!(got.header("x-amz-tagging-count"), "", "the number of tags is read with GetObjectTagging");
    get("/open/plain").send_unsigned().await.expect(403);

    let below =
        json!({ "StringLike": { "s3:prefix": ["photos/*"] }, "NumericLessThanEquals": { "s3:max-keys": "10" } });
    set(&c, "open", &[on_condition(allow(&["ListBucket", "ListBucketVersions"], &["open"]), below)]).await;
    for list in ["list-type=2&", "", "versions&"] {
        for (query, status) in [
            ("prefix=photos/a&max-keys=5", 200),
            ("max-keys=5&prefix=photos%2F", 200),
            ("prefix=photos/&max-keys=11", 403),
            ("prefix=photos/", 403),
            ("prefix=photo&max-keys=5", 403),
            ("max-keys=5", 403),
            ("prefix=photos/&prefix=&max-keys=5", 400),
        ] {
            let query = query.replace("%2F", "/");
            let answer = get(&format!("/open?{list}{query}")).send_unsigned().await;
            assert_eq!(answer.status, status, "{list}{query}: {answer:?}");
        }
    }

    let plain = json!({ "Bool": { "aws:SecureTransport": "false" } });
    set(&c, "open", &[reading(), on_condition(statement("Deny", &["*"], &["open/*"]), plain)]).await;
    get("/open/k").send_unsigned().await.refused(403, "AccessDenied");
    c.get("/open/k").await.expect(200);
    // Clients of these tests have the address 0.0.0.0.
    for (network, status) in [("0.0.0.0/8", 200), ("192.0.2.0/24", 403)] {
        let from = json!({ "IpAddress": { "aws:SourceIp": network } });
        set(&c, "open", &[on_condition(reading(), from)]).await;
        get("/open/k").send_unsigned().await.expect(status);
        let answer = c.get("/open?policyStatus").await.expect(200);
        assert_eq!(answer.xml("IsPublic"), "false", "a range of addresses is not everyone");
    }
    for (operator, status) in [("DateGreaterThan", 200), ("DateLessThan", 403)] {
        let since = json!({ operator: { "aws:CurrentTime": "2026-01-01T00:00:00Z" } });
        set(&c, "open", &[on_condition(reading(), since)]).await;
        get("/open/k").send_unsigned().await.expect(status);
    }
}

#[tokio::test]
async fn conditions_on_tags_look_at_headers_and_bodies() {
    let c = client().await;
    c.put("/open/k", "x").await.expect(200);
    let only = json!({ "StringEquals": { "s3:RequestObjectTag/kind": "draft" },
                       "ForAllValues:StringEquals": { "s3:RequestObjectTagKeys": ["kind"] } });
    let tagging = || allow(&["PutObject", "PutObjectTagging"], &["open/*"]);
    set(&c, "open", &[on_condition(tagging(), only)]).await;
    let body = |tags: &[(&str, &str)]| {
        let tags: String =
            tags.iter().map(|(key, value)| format!("<Tag><Key>{key}</Key><Value>{value}</Value></Tag>")).collect();
        format!("<Tagging><TagSet>{tags}</TagSet></Tagging>")
    };
    for (header, tags, status) in [
        ("kind=draft", &[("kind", "draft")][..], 200),
        ("kind=final", &[("kind", "final")], 403),
        ("kind=draft&more=1", &[("kind", "draft"), ("more", "1")], 403),
        ("", &[], 403),
    ] {
        let put = c.call("PUT", "/open/new").header("x-amz-tagging", header).body("x");
        assert_eq!(put.send_unsigned().await.status, status, "{header}");
        let answer = c.call("PUT", "/open/k?tagging").body(body(tags)).send_unsigned().await;
        assert_eq!(answer.status, status, "{header}: {answer:?}");
    }
    // Tags with an object are tags.
    set(&c, "open", &[allow(&["PutObject"], &["open/*"])]).await;
    c.call("PUT", "/open/new").body("x").send_unsigned().await.expect(200);
    let put = c.call("PUT", "/open/new").header("x-amz-tagging", "kind=draft").body("x");
    put.send_unsigned().await.refused(403, "AccessDenied");
    // A condition on the content tells the content.
    let put = c.call("PUT", "/open/new").header("if-match", "\"x\"").body("x");
    put.send_unsigned().await.refused(403, "AccessDenied");
    c.call("PUT", "/open/new").header("if-none-match", "*").body("x").send_unsigned().await.expect(412);
}

#[tokio::test]
async fn parameters_of_listings_count_for_listings_only() {
    let c = client().await;
    for (key, kind) in [("secret", "secret"), ("shown", "public")] {
        let put = c.call("PUT", &format!("/open/{key}")).header("x-amz-tagging", &format!("kind={kind}"));
        put.body("x").send().await.expect(200);
    }
    let secret = json!({ "StringEquals": { "s3:ExistingObjectTag/kind": "secret" } });
    let below = json!({ "StringLike": { "s3:prefix": "public/*" } });
    let statements = [
        allow(&["GetObject", "GetObjectTagging"], &["open/*"]),
        on_condition(statement("Deny", &["*"], &["open/*"]), secret),
        on_condition(allow(&["ListBucket"], &["open"]), below),
    ];
    set(&c, "open", &statements).await;
    ask(&c, "GET", "/open/shown?prefix=public/").await.expect(200);
    for query in ["", "prefix=public/", "tagging&prefix=public/"] {
        for key in ["secret", "absent"] {
            ask(&c, "GET", &format!("/open/{key}?{query}")).await.refused(403, "AccessDenied");
        }
    }
    ask(&c, "GET", "/open?prefix=public/").await.expect(200);
}

#[tokio::test]
async fn a_copy_is_judged_by_the_tags_that_it_writes() {
    let c = client().await;
    c.put("/open/plain", "x").await.expect(200);
    c.call("PUT", "/open/tagged").header("x-amz-tagging", "class=other").body("x").send().await.expect(200);
    let public = json!({ "StringEquals": { "s3:RequestObjectTag/class": "public" } });
    let reading = allow(&["GetObject", "GetObjectTagging"], &["open/*"]);
    let writing = on_condition(allow(&["PutObject", "PutObjectTagging"], &["open/*"]), public);
    set(&c, "open", &[reading, writing]).await;
    let copy = |from: &str| {
        let call = c.call("PUT", "/open/new").header("x-amz-copy-source", from);
        call.header("x-amz-tagging", "class=public")
    };
    for from in ["/open/plain", "/open/tagged"] {
        copy(from).send_unsigned().await.refused(403, "AccessDenied");
        copy(from).header("x-amz-tagging-directive", "COPY").send_unsigned().await.refused(403, "AccessDenied");
        copy(from).header("x-amz-tagging-directive", "REPLACE").send_unsigned().await.expect(200);
        assert!(c.get("/open/new?tagging").await.expect(200).text().contains("public"));
    }
}

#[tokio::test]
async fn a_version_is_a_fact_wherever_the_request_names_it() {
    let c = client().await;
    c.put("/open/k", "x").await.expect(200);
    let null = json!({ "StringEquals": { "s3:VersionId": "null" } });
    set(&c, "open", &[allow(&["*"], &["open", "open/*"]), on_condition(statement("Deny", &["*"], &["open/*"]), null)])
        .await;
    ask(&c, "GET", "/open/k").await.expect(200);
    ask(&c, "GET", "/open/k?versionId=").await.expect(200);
    ask(&c, "GET", "/open/k?versionId=null").await.refused(403, "AccessDenied");
    let copy = |from: &str| c.call("PUT", "/open/new").header("x-amz-copy-source", from).send_unsigned();
    copy("/open/k").await.expect(200);
    copy("/open/k?versionId=null").await.refused(403, "AccessDenied");
    let body = "<Delete><Object><Key>k</Key><VersionId>null</VersionId></Object></Delete>";
    let deleted = c.call("POST", "/open?delete").body(body).send_unsigned().await.expect(200);
    assert_eq!(deleted.xml("Code"), "AccessDenied", "{deleted:?}");
}

#[tokio::test]
async fn bodies_without_a_signature_are_decoded_and_verified() {
    let c = client().await;
    set(&c, "open", &[allow(&["PutObject"], &["open/*"])]).await;
    let put =
        |hash: &str, body: &str| c.call("PUT", "/open/k").header("x-amz-content-sha256", hash).body(body.to_owned());
    put(&sha256_hex(b"data"), "data").send_unsigned().await.expect(200);
    put("UNSIGNED-PAYLOAD", "data").send_unsigned().await.expect(200);
    put(&sha256_hex(b"other"), "data").send_unsigned().await.expect(400);
    let chunked = |body: &str| {
        let call = put("STREAMING-UNSIGNED-PAYLOAD-TRAILER", body).header("content-encoding", "aws-chunked");
        call.header("x-amz-decoded-content-length", "4").header("x-amz-trailer", "x-amz-checksum-crc32")
    };
    let trailer = |sum: &str| format!("4\r\ndata\r\n0\r\nx-amz-checksum-crc32:{sum}\r\n\r\n");
    chunked(&trailer("rfPzYw==")).send_unsigned().await.expect(200);
    let got = c.get("/open/k").await.expect(200);
    assert_eq!((got.bytes(), got.header("content-encoding")), (&b"data"[..], ""));
    chunked(&trailer("AAAAAA==")).send_unsigned().await.expect(400);
    chunked("data").send_unsigned().await.expect(400);
    let signed =
        put("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "4;chunk-signature=0\r\ndata\r\n0;chunk-signature=0\r\n\r\n");
    let signed = signed.header("content-encoding", "aws-chunked").header("x-amz-decoded-content-length", "4");
    signed.send_unsigned().await.refused(400, "InvalidRequest");
    assert_eq!(c.get("/open/k").await.expect(200).bytes(), b"data");
}

#[tokio::test]
async fn a_trusted_proxy_names_the_client() {
    let trusted_proxies = vec!["0.0.0.0".parse().expect("a network")];
    let c = Client::with(S3Options { trusted_proxies, https: true, ..options() }).await;
    c.bucket("open").await;
    c.put("/open/k", "x").await.expect(200);
    let near = json!({ "IpAddress": { "aws:SourceIp": "0.0.0.0/8" } });
    let plain = json!({ "Bool": { "aws:SecureTransport": "false" } });
    let reading = || allow(&["GetObject"], &["open/*"]);
    set(&c, "open", &[on_condition(reading(), near), on_condition(statement("Deny", &["*"], &["open/*"]), plain)])
        .await;
    let get = |name: &str, value: &str| c.call("GET", "/open/k").unsigned(name, value).send_unsigned();
    get("a", "b").await.expect(200);
    get("x-forwarded-for", "0.1.2.3").await.expect(200);
    for wrong in ["1.2.3.4", "unknown", "0.1.2.3, x"] {
        get("x-forwarded-for", wrong).await.refused(403, "AccessDenied");
    }
    get("x-forwarded-proto", "https").await.expect(200);
    get("x-forwarded-proto", "http").await.refused(403, "AccessDenied");
}
