//! Bucket policies: what a request without a signature can do.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use steadfast_s3::{S3Options, operations};

use crate::common::{Answer, Client, options};
use crate::edge::{OPERATIONS, client_with, prepare};

/// The actions that each operation needs.
pub const RIGHTS: &[(&str, &[&str])] = &[
    ("PutObject", &["PutObject"]),
    ("GetObject", &["GetObject"]),
    ("HeadObject", &["GetObject"]),
    ("DeleteObject", &["DeleteObject"]),
    ("ListObjectsV2", &["ListBucket"]),
    ("ListObjects", &["ListBucket"]),
    ("DeleteObjects", &["DeleteObject"]),
    ("CopyObject", &["PutObject"]),
    ("GetObjectAttributes", &["GetObject", "GetObjectAttributes"]),
    ("UploadPart", &["PutObject"]),
    ("UploadPartCopy", &["PutObject"]),
    ("CreateMultipartUpload", &["PutObject"]),
    ("CompleteMultipartUpload", &["PutObject"]),
    ("AbortMultipartUpload", &["AbortMultipartUpload"]),
    ("ListParts", &["ListMultipartUploadParts"]),
    ("ListMultipartUploads", &["ListBucketMultipartUploads"]),
    ("HeadBucket", &["ListBucket"]),
    ("DeleteBucket", &["DeleteBucket"]),
    ("GetBucketLocation", &["GetBucketLocation"]),
    ("GetBucketVersioning", &["GetBucketVersioning"]),
    ("GetBucketNotificationConfiguration", &["GetBucketNotification"]),
    ("PutBucketNotificationConfiguration", &["PutBucketNotification"]),
    ("GetBucketAcl", &["GetBucketAcl"]),
    ("PutBucketAcl", &["PutBucketAcl"]),
    ("GetObjectAcl", &["GetObjectAcl"]),
    ("PutObjectAcl", &["PutObjectAcl"]),
    ("GetObjectTagging", &["GetObjectTagging"]),
    ("PutObjectTagging", &["PutObjectTagging"]),
    ("DeleteObjectTagging", &["DeleteObjectTagging"]),
    ("ListObjectVersions", &["ListBucketVersions"]),
    ("GetBucketCors", &["GetBucketCORS"]),
    ("GetBucketLifecycleConfiguration", &["GetLifecycleConfiguration"]),
    ("GetBucketTagging", &["GetBucketTagging"]),
    ("GetBucketWebsite", &["GetBucketWebsite"]),
    ("GetBucketEncryption", &["GetEncryptionConfiguration"]),
    ("GetBucketReplication", &["GetReplicationConfiguration"]),
    ("GetObjectLockConfiguration", &["GetBucketObjectLockConfiguration"]),
    ("GetBucketAnalyticsConfiguration", &["GetAnalyticsConfiguration"]),
    ("GetBucketIntelligentTieringConfiguration", &["GetIntelligentTieringConfiguration"]),
    ("GetBucketInventoryConfiguration", &["GetInventoryConfiguration"]),
    ("GetBucketMetricsConfiguration", &["GetMetricsConfiguration"]),
    ("GetBucketLogging", &["GetBucketLogging"]),
    ("GetBucketAccelerateConfiguration", &["GetAccelerateConfiguration"]),
    ("ListBucketAnalyticsConfigurations", &["GetAnalyticsConfiguration"]),
    ("ListBucketIntelligentTieringConfigurations", &["GetIntelligentTieringConfiguration"]),
    ("ListBucketInventoryConfigurations", &["GetInventoryConfiguration"]),
    ("ListBucketMetricsConfigurations", &["GetMetricsConfiguration"]),
    ("GetBucketRequestPayment", &["GetBucketRequestPayment"]),
    ("GetObjectRetention", &["GetObjectRetention"]),
    ("GetObjectLegalHold", &["GetObjectLegalHold"]),
    ("DeleteBucketCors", &["PutBucketCORS"]),
    ("DeleteBucketLifecycle", &["PutLifecycleConfiguration"]),
    ("DeleteBucketTagging", &["PutBucketTagging"]),
    ("PutBucketTagging", &["PutBucketTagging"]),
    ("DeleteBucketWebsite", &["DeleteBucketWebsite"]),
    ("DeleteBucketEncryption", &["PutEncryptionConfiguration"]),
    ("DeleteBucketReplication", &["PutReplicationConfiguration"]),
];

/// The operations that no policy gives to everyone, with the action that each needs.
pub const OF_ACCOUNT: &[(&str, &[&str])] = &[
    ("ListBuckets", &["ListAllMyBuckets"]),
    ("CreateBucket", &["CreateBucket"]),
    ("PutBucketPolicy", &["PutBucketPolicy"]),
    ("GetBucketPolicy", &["GetBucketPolicy"]),
    ("GetBucketPolicyStatus", &["GetBucketPolicyStatus"]),
    ("DeleteBucketPolicy", &["DeleteBucketPolicy"]),
    ("PutPublicAccessBlock", &["PutBucketPublicAccessBlock"]),
    ("GetPublicAccessBlock", &["GetBucketPublicAccessBlock"]),
    ("DeletePublicAccessBlock", &["PutBucketPublicAccessBlock"]),
    ("PutBucketOwnershipControls", &["PutBucketOwnershipControls"]),
    ("GetBucketOwnershipControls", &["GetBucketOwnershipControls"]),
    ("DeleteBucketOwnershipControls", &["PutBucketOwnershipControls"]),
];

/// A statement about everyone.
pub fn statement(effect: &str, actions: &[&str], resources: &[&str]) -> Value {
    let actions: Vec<String> = actions.iter().map(|name| format!("s3:{name}")).collect();
    let resources: Vec<String> = resources.iter().map(|name| format!("arn:aws:s3:::{name}")).collect();
    json!({ "Effect": effect, "Principal": "*", "Action": actions, "Resource": resources })
}

pub fn allow(actions: &[&str], resources: &[&str]) -> Value {
    statement("Allow", actions, resources)
}

pub fn on_condition(mut statement: Value, condition: Value) -> Value {
    statement["Condition"] = condition;
    statement
}

pub async fn set(c: &Client, bucket: &str, statements: &[Value]) {
    let policy = json!({ "Version": "2012-10-17", "Statement": statements });
    c.put(&format!("/{bucket}?policy"), policy.to_string()).await.expect(204);
}

pub async fn ask(c: &Client, method: &str, path: &str) -> Answer {
    c.call(method, path).send_unsigned().await
}

/// A client of a server with the bucket `open`.
pub async fn client() -> Client {
    let c = Client::new().await;
    c.bucket("open").await;
    c
}

#[tokio::test]
async fn each_operation_needs_its_actions_and_no_others() {
    let named = RIGHTS.iter().chain(OF_ACCOUNT).map(|(operation, _)| *operation);
    assert_eq!(named.collect::<BTreeSet<_>>(), operations().collect::<BTreeSet<_>>(), "say what it needs");
    let c = client_with(options()).await;
    set(&c, "plain", &[allow(&["GetObject"], &["plain/*"])]).await;
    c.put("/plain/k", "0123456789").await.expect(200);
    let all = ["open", "open/*"];
    for (operation, method, path, _) in OPERATIONS {
        let path = format!("/open{path}");
        let actions = RIGHTS.iter().find(|(name, _)| name == operation).map_or(&[][..], |(_, actions)| *actions);
        let mut attempts = vec![(allow(&["*"], &all), OF_ACCOUNT.iter().any(|(name, _)| name == operation))];
        if !actions.is_empty() {
            attempts.push((allow(actions, &all), false));
            let mut others = allow(&[], &all);
            others["NotAction"] = others.as_object_mut().expect("an object").remove("Action").expect("actions");
            for missing in actions {
                others["NotAction"] = match *missing {
                    // Before the body is read, either action counts.
                    "DeleteObject" | "PutObjectTagging" => json!([format!("s3:{missing}"), "s3:*Version*"]),
                    _ => json!([format!("s3:{missing}")]),
                };
                attempts.push((others.clone(), true));
            }
            attempts.push((allow(actions, &["open/other"]), *operation != "DeleteObjects"));
        }
        for (statement, refused) in attempts {
            c.put("/open", "").await.expect(200);
            c.put("/open/k", "0123456789").await.expect(200);
            c.call("DELETE", "/open?publicAccessBlock").send().await.expect(204);
            set(&c, "open", std::slice::from_ref(&statement)).await;
            let body = if *operation == "PutObjectTagging" { "<Tagging><TagSet></TagSet></Tagging>" } else { "" };
            let answer = prepare(&c, operation, method, &path).body(body).send_unsigned().await;
            assert_eq!(answer.status == 403, refused, "{operation} by {statement}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn a_version_in_the_request_needs_an_action_of_its_own() {
    let c = client().await;
    for (method, query, action) in [
        ("GET", "", "GetObject"),
        ("HEAD", "", "GetObject"),
        ("GET", "&acl", "GetObjectAcl"),
        ("GET", "&tagging", "GetObjectTagging"),
        ("DELETE", "&tagging", "DeleteObjectTagging"),
        ("DELETE", "", "DeleteObject"),
    ] {
        let versioned = action.replace("Object", "ObjectVersion");
        for (allowed, works) in [(action, [true, false]), (&*versioned, [false, true])] {
            set(&c, "open", &[allow(&[allowed], &["open/*"])]).await;
            for (version, works) in ["", "versionId=null"].into_iter().zip(works) {
                c.put("/open/k", "x").await.expect(200);
                let answer = ask(&c, method, &format!("/open/k?{version}{query}")).await;
                assert_eq!(answer.status < 300, works, "{method} {version}{query} with {allowed}: {answer:?}");
                assert!(works || answer.status == 403);
            }
        }
    }
}

/// The statements of `mc anonymous set download`, `upload` and `public`.
fn of_mc(permission: &str) -> Vec<Value> {
    let mut bucket = vec!["GetBucketLocation"];
    let mut objects = Vec::new();
    if permission != "upload" {
        bucket.push("ListBucket");
        objects.push("GetObject");
    }
    if permission != "download" {
        bucket.push("ListBucketMultipartUploads");
        objects.extend(["AbortMultipartUpload", "DeleteObject", "ListMultipartUploadParts", "PutObject"]);
    }
    vec![allow(&bucket, &["open"]), allow(&objects, &["open/*"])]
}

#[tokio::test]
async fn a_bucket_for_downloads_uploads_or_both() {
    let c = client().await;
    c.put("/open/k", "stored").await.expect(200);
    for (permission, reads, writes) in [("download", true, false), ("upload", false, true), ("public", true, true)] {
        set(&c, "open", &of_mc(permission)).await;
        let got = ask(&c, "GET", "/open/k").await;
        assert_eq!(got.status, if reads { 200 } else { 403 }, "{permission}: {got:?}");
        let listed = ask(&c, "GET", "/open?list-type=2").await;
        assert_eq!(listed.status, if reads { 200 } else { 403 }, "{permission}: {listed:?}");
        // Who may list the bucket learns which keys do not exist.
        for method in ["GET", "HEAD"] {
            assert_eq!(ask(&c, method, "/open/none").await.status, if reads { 404 } else { 403 }, "{permission}");
        }
        let put = c.call("PUT", "/open/new").body("data").send_unsigned().await;
        assert_eq!(put.status, if writes { 200 } else { 403 }, "{permission}: {put:?}");
        assert_eq!(ask(&c, "DELETE", "/open/new").await.status, if writes { 204 } else { 403 });
        let begun = ask(&c, "POST", "/open/large?uploads").await;
        assert_eq!(begun.status, if writes { 200 } else { 403 }, "{permission}: {begun:?}");
        if writes {
            let upload = begun.xml("UploadId").to_owned();
            let part = format!("/open/large?partNumber=1&uploadId={upload}");
            c.call("PUT", &part).body("part").send_unsigned().await.expect(200);
            ask(&c, "GET", &format!("/open/large?uploadId={upload}")).await.expect(200);
            ask(&c, "DELETE", &format!("/open/large?uploadId={upload}")).await.expect(204);
        }
    }
    c.call("DELETE", "/open?policy").send().await.expect(204);
    ask(&c, "GET", "/open/k").await.refused(403, "AccessDenied");
    assert_eq!(c.get("/open/k").await.expect(200).bytes(), b"stored");
}

#[tokio::test]
async fn absence_is_not_learnt_without_the_right_to_list() {
    let c = client().await;
    c.bucket("other").await;
    let objects =
        ["GetObject", "PutObject", "GetObjectTagging", "PutObjectTagging", "GetObjectAttributes", "GetObjectAcl"];
    let requests = || {
        let tags = "<Tagging><TagSet></TagSet></Tagging>";
        [
            c.call("GET", "/open/none"),
            c.call("HEAD", "/open/none"),
            c.call("GET", "/open/none?tagging"),
            c.call("GET", "/open/none?acl"),
            c.call("GET", "/open/none?attributes").header("x-amz-object-attributes", "ETag"),
            c.call("PUT", "/open/none?tagging").body(tags),
            c.call("PUT", "/open/none").header("if-match", "\"x\"").body("x"),
            c.call("PUT", "/open/copy").header("x-amz-copy-source", "/open/none"),
            c.call("PUT", "/open/copy").header("x-amz-copy-source", "/other/none"),
        ]
    };
    set(&c, "open", &[allow(&objects, &["open/*"])]).await;
    set(&c, "other", &[allow(&["GetObject"], &["other/*"])]).await;
    for request in requests() {
        let answer = request.send_unsigned().await;
        assert_eq!(answer.status, 403, "{answer:?}");
    }
    set(&c, "open", &[allow(&objects, &["open/*"]), allow(&["ListBucket"], &["open"])]).await;
    set(&c, "other", &[allow(&["GetObject", "ListBucket"], &["other", "other/*"])]).await;
    for request in requests() {
        let answer = request.send_unsigned().await;
        assert_eq!(answer.status, 404, "{answer:?}");
    }
}

#[tokio::test]
async fn copies_are_judged_at_both_ends() {
    let c = client().await;
    c.bucket("closed").await;
    c.put("/closed/secret", "secret").await.expect(200);
    c.call("PUT", "/open/tagged").header("x-amz-tagging", "a=b").body("x").send().await.expect(200);
    let upload = c.call("POST", "/open/large?uploads").send().await.expect(200).xml("UploadId").to_owned();
    let copy = |to: &str, from: &str| c.call("PUT", to).header("x-amz-copy-source", from).send_unsigned();
    let part = format!("/open/large?partNumber=1&uploadId={upload}");
    set(&c, "open", &[allow(&["*"], &["open", "open/*"])]).await;
    for from in ["/closed/secret", "closed/secret", "%2Fclosed%2Fsecret", "/closed/secret?versionId=null"] {
        copy("/open/stolen", from).await.refused(403, "AccessDenied");
        copy(&part, from).await.refused(403, "AccessDenied");
    }
    // The rights to the target do not extend to the source, nor the other way round.
    set(&c, "closed", &[allow(&["GetObject"], &["closed/*"])]).await;
    copy("/open/copied", "/closed/secret").await.expect(200);
    copy(&part, "/closed/secret").await.expect(200);
    copy("/open/copied", "/closed/secret?versionId=null").await.refused(403, "AccessDenied");
    copy("/closed/new", "/open/copied").await.refused(403, "AccessDenied");
    // A copy takes the tags along.
    let objects = ["GetObject", "PutObject"];
    for (further, works) in [
        (&[][..], false),
        (&["GetObjectTagging"], false),
        (&["PutObjectTagging"], false),
        (&["GetObjectTagging", "PutObjectTagging"], true),
    ] {
        set(&c, "open", &[allow(&[&objects[..], further].concat(), &["open/*"])]).await;
        let answer = copy("/open/copy", "/open/tagged").await;
        assert_eq!(answer.status, if works { 200 } else { 403 }, "{further:?}: {answer:?}");
    }
}

#[tokio::test]
async fn deletes_in_bulk_are_judged_key_by_key() {
    let c = client().await;
    for key in ["tmp/a", "tmp/b", "kept"] {
        c.put(&format!("/open/{key}"), "x").await.expect(200);
    }
    set(&c, "open", &[allow(&["DeleteObject"], &["open/tmp/*"])]).await;
    let delete = |objects: &str| c.call("POST", "/open?delete").body(format!("<Delete>{objects}</Delete>"));
    let keys = "<Object><Key>tmp/a</Key></Object><Object><Key>kept</Key></Object>\
                <Object><Key>tmp/b</Key><VersionId>null</VersionId></Object><Object><Key>none</Key></Object>";
    let answer = delete(keys).send_unsigned().await.expect(200);
    assert_eq!(answer.xml_all("Code"), ["AccessDenied"; 3], "{answer:?}");
    assert_eq!(answer.xml("Deleted"), "<Key>tmp/a</Key>");
    for (key, status) in [("tmp/a", 404), ("tmp/b", 200), ("kept", 200)] {
        c.get(&format!("/open/{key}")).await.expect(status);
    }
    set(&c, "open", &[allow(&["DeleteObjectVersion"], &["open/tmp/*"])]).await;
    let answer = delete(keys).send_unsigned().await.expect(200);
    assert_eq!(answer.xml("Deleted"), "<Key>tmp/b</Key><VersionId>null</VersionId>", "{answer:?}");
}

#[tokio::test]
async fn a_block_of_public_access_counts_more_than_a_policy() {
    let public_read = ["configured".to_owned()].into();
    let c = Client::with(S3Options { public_read, ..options() }).await;
    let block =
        |of: &str| format!("<PublicAccessBlockConfiguration><{of}>true</{of}></PublicAccessBlockConfiguration>");
    for bucket in ["open", "configured"] {
        let (object, blocked) = (format!("/{bucket}/k"), format!("/{bucket}?publicAccessBlock"));
        c.bucket(bucket).await;
        c.put(&object, "x").await.expect(200);
        set(&c, bucket, &[allow(&["GetObject"], &[&format!("{bucket}/*")])]).await;
        ask(&c, "GET", &object).await.expect(200);
        c.put(&blocked, block("RestrictPublicBuckets")).await.expect(200);
        ask(&c, "GET", &object).await.refused(403, "AccessDenied");
        let answer = c.get(&blocked).await.expect(200);
        let seen =
            (answer.xml("RestrictPublicBuckets"), answer.xml("BlockPublicPolicy"), answer.xml("BlockPublicAcls"));
        assert_eq!(seen, ("true", "false", "false"));
        c.put(&blocked, block("BlockPublicPolicy")).await.expect(200);
        ask(&c, "GET", &object).await.expect(200);
        let policy = c.get(&format!("/{bucket}?policy")).await.expect(200).text().to_owned();
        c.put(&format!("/{bucket}?policy"), policy.clone()).await.refused(403, "AccessDenied");
        let deny = policy.replace("Allow", "Deny");
        c.put(&format!("/{bucket}?policy"), deny).await.expect(204);
        ask(&c, "GET", &object).await.refused(403, "AccessDenied");
        c.call("DELETE", &blocked).send().await.expect(204);
        c.get(&blocked).await.refused(404, "NoSuchPublicAccessBlockConfiguration");
        c.put(&format!("/{bucket}?policy"), policy).await.expect(204);
        ask(&c, "GET", &object).await.expect(200);
    }
}

#[tokio::test]
async fn the_configured_policy_is_shown_and_cannot_be_removed() {
    let public_read = ["open".to_owned()].into();
    let c = Client::with(S3Options { public_read, ..options() }).await;
    c.bucket("open").await;
    c.put("/open/k", "x").await.expect(200);
    let shown = c.get("/open?policy").await.expect(200).text().to_owned();
    assert!(shown.contains("s3.public_read") && shown.contains("arn:aws:s3:::open/*"), "{shown}");
    assert_eq!(c.get("/open?policyStatus").await.expect(200).xml("IsPublic"), "true");
    c.call("DELETE", "/open?policy").send().await.expect(204);
    ask(&c, "GET", "/open/k").await.expect(200);
    // Another policy adds to it, and what it denies is denied.
    set(&c, "open", &[allow(&["PutObject"], &["open/in/*"]), statement("Deny", &["GetObject"], &["open/in/*"])]).await;
    assert!(!c.get("/open?policy").await.expect(200).text().contains("public_read"));
    ask(&c, "GET", "/open/k").await.expect(200);
    c.call("PUT", "/open/in/a").body("x").send_unsigned().await.expect(200);
    ask(&c, "GET", "/open/in/a").await.refused(403, "AccessDenied");
    assert_eq!(c.get("/open/in/a").await.expect(200).bytes(), b"x", "no policy binds the root key");
}

#[tokio::test]
async fn a_policy_belongs_to_its_bucket() {
    let c = client().await;
    c.bucket("opener").await;
    for bucket in ["open", "opener"] {
        c.put(&format!("/{bucket}/k"), "x").await.expect(200);
    }
    set(&c, "open", &[allow(&["GetObject"], &["open*/*"])]).await;
    ask(&c, "GET", "/open/k").await.expect(200);
    ask(&c, "GET", "/opener/k").await.refused(403, "AccessDenied");
    // A later bucket of the name has another.
    c.call("DELETE", "/open/k").send().await.expect(204);
    c.call("DELETE", "/open").send().await.expect(204);
    ask(&c, "GET", "/open/k").await.refused(404, "NoSuchBucket");
    c.bucket("open").await;
    c.put("/open/k", "x").await.expect(200);
    ask(&c, "GET", "/open/k").await.refused(403, "AccessDenied");
    c.get("/open?policy").await.refused(404, "NoSuchBucketPolicy");
}

#[tokio::test]
async fn what_is_no_policy_is_refused_and_changes_nothing() {
    let c = client().await;
    set(&c, "open", &[allow(&["GetObject"], &["open/*"])]).await;
    let before = c.get("/open?policy").await.expect(200).text().to_owned();
    let of = |statement: Value| json!({ "Version": "2012-10-17", "Statement": [statement] }).to_string();
    let mut user = allow(&["GetObject"], &["open/*"]);
    user["Principal"] = json!({ "AWS": "arn:aws:iam::000000000000:user/ada" });
    let unknown = json!({ "StringEquals": { "aws:Weather": "fair" } });
    for document in [
        String::new(),
        "{}".into(),
        "[".repeat(10_000),
        of(allow(&["Fly"], &["open/*"])),
        of(allow(&["GetObject"], &["other/*"])),
        of(user),
        of(on_condition(allow(&["GetObject"], &["open/*"]), unknown)),
        of(allow(&["GetObject"], &[&format!("open/{}", "x".repeat(21 << 10))])),
    ] {
        let answer = c.put("/open?policy", document.clone()).await;
        assert_eq!((answer.status, answer.xml("Code")), (400, "MalformedPolicy"), "{document:.80}: {answer:?}");
    }
    c.put("/open?policy", vec![b'x'; 300 << 10]).await.refused(400, "MaxMessageLengthExceeded");
    assert!(c.put("/open?policy", b"{\"Version\":\"\xff\"}".to_vec()).await.status == 400);
    assert_eq!(c.get("/open?policy").await.expect(200).text(), before);
    c.put("/none?policy", before).await.refused(404, "NoSuchBucket");
}
