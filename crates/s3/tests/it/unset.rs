//! Configurations that no bucket has, and the elements of errors.

use crate::common::Client;

/// Sub-resource, status and code of S3's answer for a bucket without this configuration.
const READS: &[(&str, u16, &str)] = &[
    ("policy", 404, "NoSuchBucketPolicy"),
    ("policyStatus", 404, "NoSuchBucketPolicy"),
    ("cors", 404, "NoSuchCORSConfiguration"),
    ("lifecycle", 404, "NoSuchLifecycleConfiguration"),
    ("tagging", 404, "NoSuchTagSet"),
    ("website", 404, "NoSuchWebsiteConfiguration"),
    ("encryption", 404, "ServerSideEncryptionConfigurationNotFoundError"),
    ("replication", 404, "ReplicationConfigurationNotFoundError"),
    ("object-lock", 404, "ObjectLockConfigurationNotFoundError"),
    ("publicAccessBlock", 404, "NoSuchPublicAccessBlockConfiguration"),
    ("ownershipControls", 404, "OwnershipControlsNotFoundError"),
    ("analytics&id=a", 404, "NoSuchConfiguration"),
    ("intelligent-tiering&id=a", 404, "NoSuchConfiguration"),
    ("inventory&id=a", 404, "NoSuchConfiguration"),
    ("metrics&id=a", 404, "NoSuchConfiguration"),
    ("analytics", 200, ""),
    ("intelligent-tiering", 200, ""),
    ("inventory", 200, ""),
    ("metrics", 200, ""),
    ("logging", 200, ""),
    ("accelerate", 200, ""),
    ("requestPayment", 200, ""),
    ("versioning", 200, ""),
    ("acl", 200, ""),
    ("location", 200, ""),
    ("notification", 200, ""),
];

#[tokio::test]
async fn reads_answer_as_s3_does_without_a_configuration() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    for (resource, status, code) in READS {
        let answer = c.get(&format!("/bucket?{resource}")).await;
        assert_eq!((answer.status, answer.xml("Code")), (*status, *code), "{resource}: {answer:?}");
        assert!(*status == 200 || !answer.xml("Message").is_empty(), "{resource}");
        assert!(*status == 200 || answer.xml("BucketName") == "bucket", "{resource}");
        c.get(&format!("/absent?{resource}")).await.refused(404, "NoSuchBucket");
    }
    assert_eq!(c.get("/bucket?requestPayment").await.xml("Payer"), "BucketOwner");
    c.put("/bucket/k", "data").await.expect(200);
    for resource in ["retention", "legal-hold"] {
        c.get(&format!("/bucket/k?{resource}")).await.refused(400, "InvalidRequest");
        c.get(&format!("/bucket/none?{resource}")).await.refused(404, "NoSuchKey");
    }
}

#[tokio::test]
async fn deletes_succeed_and_puts_name_the_reason() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    for resource in [
        "policy",
        "cors",
        "lifecycle",
        "website",
        "encryption",
        "replication",
        "publicAccessBlock",
        "ownershipControls",
    ] {
        c.call("DELETE", &format!("/bucket?{resource}")).send().await.expect(204);
        c.call("DELETE", &format!("/absent?{resource}")).send().await.refused(404, "NoSuchBucket");
        if !matches!(resource, "policy" | "publicAccessBlock" | "ownershipControls") {
            c.call("PUT", &format!("/bucket?{resource}")).send().await.refused(501, "NotImplemented");
        }
    }
    let refused = c.call("PUT", "/bucket?cors").body("{}").send().await.refused(501, "NotImplemented");
    assert!(refused.xml("Message").contains("s3.allowed_origins"), "{refused:?}");
    c.call("HEAD", "/bucket").send().await.expect(200);
}

#[tokio::test]
async fn errors_have_a_message_the_bucket_and_the_key() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    let long = format!("/bucket/{}", "k".repeat(1025));
    for (path, status, code, bucket, key) in [
        ("/Bad_Name", 400, "InvalidBucketName", "Bad_Name", ""),
        ("/absent", 404, "NoSuchBucket", "absent", ""),
        ("/absent/k", 404, "NoSuchBucket", "absent", "k"),
        ("/bucket/a b/ü&\u{1}", 404, "NoSuchKey", "bucket", "a b/ü&amp;\u{fffd}"),
        (&long, 400, "KeyTooLongError", "bucket", &long[8..]),
    ] {
        let answer = c.get(path).await.refused(status, code);
        assert_eq!((answer.xml("BucketName"), answer.xml("Key")), (bucket, key));
        assert!(!answer.xml("Message").is_empty() && !answer.xml("RequestId").is_empty(), "{answer:?}");
    }
    let hosted = c.call("GET", "/none").header("host", &format!("bucket.{}", crate::common::HOST));
    let hosted = hosted.send().await.refused(404, "NoSuchKey");
    assert_eq!((hosted.xml("BucketName"), hosted.xml("Key")), ("bucket", "none"));
    let head = c.call("HEAD", "/Bad_Name").send().await.expect(400);
    assert_eq!(head.header("x-minio-error-desc"), "The specified bucket is not valid.");
}

#[tokio::test]
async fn health_checks_of_minio_need_no_signature() {
    let c = Client::new().await;
    for path in ["live", "ready", "cluster", "cluster/read"] {
        let path = format!("/minio/health/{path}");
        c.call("GET", &path).send_unsigned().await.expect(200);
        c.call("HEAD", &path).send_unsigned().await.expect(200);
        c.call("PUT", &path).send_unsigned().await.refused(404, "NoSuchBucket");
        // A signed request names a bucket and a key.
        c.get(&path).await.refused(404, "NoSuchBucket");
    }
    c.call("GET", "/minio/health/other").send_unsigned().await.refused(404, "NoSuchBucket");
    c.bucket("bucket").await;
    let head = c.call("HEAD", "/bucket").send_unsigned().await.expect(403);
    assert_eq!(head.header("x-amz-bucket-region"), "us-east-1");
}

#[tokio::test]
async fn the_administration_of_minio_names_what_does_it_here() {
    let c = Client::new().await;
    for send in [c.call("GET", "/minio/admin/v3/info").send_unsigned().await, c.get("/minio/admin/v3/info").await] {
        assert_eq!((send.status, send.header("content-type")), (501, "application/json"));
        assert!(send.text().contains("steadfast status"), "{send:?}");
    }
    c.put("/minio/admin/v3/info", "data").await.expect(501);
}
