//! Buckets with an origin: what clients can do with them.

use std::collections::BTreeSet;
use std::time::Duration;

use steadfast_edge::{Edge, EdgeBounds, EdgeBucket, FillMode, OriginAddress, Retention};
use steadfast_flow::Env;
use steadfast_net::Addresses;
use steadfast_s3::{S3Options, operations};

use crate::common::{Answer, Call, Client, options, store};

const READ_ONLY: &str = "The bucket has an origin and is read only.";
const NO_COPIES: &str = "Copies from a bucket with an origin are not supported.";

/// A client of a server with the bucket `media`, which has an origin that no test contacts, and the
/// bucket `plain`.
async fn client() -> Client {
    client_with(options()).await
}

pub async fn client_with(options: S3Options) -> Client {
    let store = store().await;
    let bucket = EdgeBucket {
        bucket: "media".into(),
        origin: OriginAddress::Http { url: "http://127.0.0.1:9/".into(), headers: Vec::new() },
        addresses: Addresses::Any,
        fill: FillMode::Whole,
        segment_bytes: 8 << 20,
        object_bytes_max: 64 << 30,
        retention: Retention::default(),
        fresh: steadfast_edge::Fresh::Origin,
        stale_if_error: Duration::ZERO,
        negative: Duration::from_secs(10),
        timeout: Duration::from_secs(1),
    };
    let edge = Edge::open(store.clone(), Env::tokio(), vec![bucket], EdgeBounds::default()).await.expect("an edge");
    let client = Client::over(store, S3Options { edge: Some(edge), ..options });
    client.bucket("plain").await;
    client
}

/// Each operation that names a bucket: method, path below the bucket, and whether it works on a
/// bucket with an origin; `None`: it needs the origin.
pub const OPERATIONS: &[(&str, &str, &str, Option<bool>)] = &[
    ("PutObject", "PUT", "/k", Some(false)),
    ("GetObject", "GET", "/k", None),
    ("HeadObject", "HEAD", "/k", None),
    ("DeleteObject", "DELETE", "/k", Some(false)),
    ("ListObjectsV2", "GET", "?list-type=2", None),
    ("ListObjects", "GET", "", None),
    ("DeleteObjects", "POST", "?delete", Some(false)),
    ("CopyObject", "PUT", "/k", Some(false)),
    ("GetObjectAttributes", "GET", "/k?attributes", Some(false)),
    ("UploadPart", "PUT", "/k?partNumber=1&uploadId=u", Some(false)),
    ("UploadPartCopy", "PUT", "/k?partNumber=1&uploadId=u", Some(false)),
    ("CreateMultipartUpload", "POST", "/k?uploads", Some(false)),
    ("CompleteMultipartUpload", "POST", "/k?uploadId=u", Some(false)),
    ("AbortMultipartUpload", "DELETE", "/k?uploadId=u", Some(false)),
    ("ListParts", "GET", "/k?uploadId=u", Some(false)),
    ("ListMultipartUploads", "GET", "?uploads", Some(false)),
    ("CreateBucket", "PUT", "", Some(true)),
    ("HeadBucket", "HEAD", "", Some(true)),
    ("DeleteBucket", "DELETE", "", Some(false)),
    ("GetBucketLocation", "GET", "?location", Some(true)),
    ("GetBucketVersioning", "GET", "?versioning", Some(true)),
    ("GetBucketNotificationConfiguration", "GET", "?notification", Some(true)),
    ("PutBucketNotificationConfiguration", "PUT", "?notification", Some(false)),
    ("GetBucketAcl", "GET", "?acl", Some(true)),
    ("PutBucketAcl", "PUT", "?acl", Some(true)),
    ("GetObjectAcl", "GET", "/k?acl", Some(false)),
    ("PutObjectAcl", "PUT", "/k?acl", Some(false)),
    ("GetObjectTagging", "GET", "/k?tagging", Some(false)),
    ("PutObjectTagging", "PUT", "/k?tagging", Some(false)),
    ("DeleteObjectTagging", "DELETE", "/k?tagging", Some(false)),
    ("ListObjectVersions", "GET", "?versions", None),
    ("GetBucketPolicy", "GET", "?policy", Some(true)),
    ("GetBucketPolicyStatus", "GET", "?policyStatus", Some(true)),
    ("GetBucketCors", "GET", "?cors", Some(true)),
    ("GetBucketLifecycleConfiguration", "GET", "?lifecycle", Some(true)),
    ("GetBucketTagging", "GET", "?tagging", Some(true)),
    ("GetBucketWebsite", "GET", "?website", Some(true)),
    ("GetBucketEncryption", "GET", "?encryption", Some(true)),
    ("GetBucketReplication", "GET", "?replication", Some(true)),
    ("GetObjectLockConfiguration", "GET", "?object-lock", Some(true)),
    ("GetPublicAccessBlock", "GET", "?publicAccessBlock", Some(true)),
    ("GetBucketOwnershipControls", "GET", "?ownershipControls", Some(true)),
    ("GetBucketAnalyticsConfiguration", "GET", "?analytics&id=a", Some(true)),
    ("GetBucketIntelligentTieringConfiguration", "GET", "?intelligent-tiering&id=a", Some(true)),
    ("GetBucketInventoryConfiguration", "GET", "?inventory&id=a", Some(true)),
    ("GetBucketMetricsConfiguration", "GET", "?metrics&id=a", Some(true)),
    ("GetBucketLogging", "GET", "?logging", Some(true)),
    ("GetBucketAccelerateConfiguration", "GET", "?accelerate", Some(true)),
    ("ListBucketAnalyticsConfigurations", "GET", "?analytics", Some(true)),
    ("ListBucketIntelligentTieringConfigurations", "GET", "?intelligent-tiering", Some(true)),
    ("ListBucketInventoryConfigurations", "GET", "?inventory", Some(true)),
    ("ListBucketMetricsConfigurations", "GET", "?metrics", Some(true)),
    ("GetBucketRequestPayment", "GET", "?requestPayment", Some(true)),
    ("GetObjectRetention", "GET", "/k?retention", Some(false)),
    ("GetObjectLegalHold", "GET", "/k?legal-hold", Some(false)),
    ("PutBucketPolicy", "PUT", "?policy", Some(true)),
    ("DeleteBucketPolicy", "DELETE", "?policy", Some(true)),
    ("DeleteBucketCors", "DELETE", "?cors", Some(false)),
    ("DeleteBucketLifecycle", "DELETE", "?lifecycle", Some(false)),
    ("DeleteBucketTagging", "DELETE", "?tagging", Some(false)),
    ("PutBucketTagging", "PUT", "?tagging", Some(false)),
    ("DeleteBucketWebsite", "DELETE", "?website", Some(false)),
    ("DeleteBucketEncryption", "DELETE", "?encryption", Some(false)),
    ("DeleteBucketReplication", "DELETE", "?replication", Some(false)),
    ("PutPublicAccessBlock", "PUT", "?publicAccessBlock", Some(true)),
    ("DeletePublicAccessBlock", "DELETE", "?publicAccessBlock", Some(true)),
    ("PutBucketOwnershipControls", "PUT", "?ownershipControls", Some(true)),
    ("DeleteBucketOwnershipControls", "DELETE", "?ownershipControls", Some(true)),
];

/// Operations that name no bucket.
const OF_NO_BUCKET: &[&str] = &["ListBuckets"];

pub fn prepare<'a>(client: &'a Client, operation: &str, method: &str, path: &str) -> Call<'a> {
    let mut call = client.call(method, path);
    if operation.contains("Copy") {
        call = call.header("x-amz-copy-source", "/plain/k");
    }
    if operation == "GetObjectAttributes" {
        call = call.header("x-amz-object-attributes", "ETag");
    }
    call
}

async fn call(client: &Client, operation: &str, method: &str, path: &str) -> Answer {
    prepare(client, operation, method, path).send().await
}

#[test]
fn every_operation_is_in_the_table() {
    let listed: Vec<&str> = OPERATIONS.iter().map(|(name, ..)| *name).chain(OF_NO_BUCKET.iter().copied()).collect();
    assert_eq!(
        listed.iter().copied().collect::<BTreeSet<_>>(),
        operations().collect::<BTreeSet<_>>(),
        "say whether a new operation needs changes"
    );
    assert_eq!(listed.len(), operations().collect::<BTreeSet<_>>().len());
}

#[tokio::test]
async fn a_bucket_with_an_origin_is_read_only() {
    let c = client().await;
    for (operation, method, path, allowed) in OPERATIONS {
        // The origin is not there: what needs it is only checked not to be refused.
        let answer = call(&c, operation, method, &format!("/media{path}")).await;
        let refused = (answer.status, answer.header("x-minio-error-code")) == (405, "MethodNotAllowed")
            || (answer.status == 405 && answer.xml("Message") == READ_ONLY);
        assert_eq!(refused, *allowed == Some(false), "{operation}: {answer:?}");
        assert_eq!(c.records.0.lock().last().expect("a record").0, *operation);
        // On another bucket none is refused so.
        let answer = call(&c, operation, method, &format!("/none{path}")).await;
        assert_ne!(answer.status, 405, "{operation}: {answer:?}");
    }
    for path in ["?location", "?versioning", "?notification", "?acl"] {
        c.get(&format!("/media{path}")).await.expect(200);
    }
    c.call("HEAD", "/media").send().await.expect(200);
    let (again, plain) = (c.put("/media", "").await, c.put("/plain", "").await);
    assert_eq!((again.status, again.xml("Code")), (plain.status, plain.xml("Code")), "as for any bucket");
    assert!(c.get("/").await.expect(200).xml_all("Name").contains(&"media"));
}

#[tokio::test]
async fn the_style_of_the_address_makes_no_difference() {
    let c = client().await;
    let put = c.call("PUT", "/k").header("host", "media.s3.test").body("x").send().await;
    assert_eq!(put.refused(405, "MethodNotAllowed").xml("Message"), READ_ONLY);
    c.call("PUT", "/media/k").body("x").send_presigned(60).await.refused(405, "MethodNotAllowed");
    c.call("PUT", "/media/k").body("x").send_chunks(&[b"x", b""], |_| {}).await.refused(405, "MethodNotAllowed");
    // A client without a key does not learn of it.
    c.call("PUT", "/media/k").send_unsigned().await.refused(403, "AccessDenied");
}

#[tokio::test]
async fn copies_from_a_bucket_with_an_origin_are_refused() {
    let c = client().await;
    c.put("/plain/k", "x").await.expect(200);
    let copy = |path: &str, from: &str| c.call("PUT", path).header("x-amz-copy-source", from);
    for from in ["/media/k", "media/k", "media/k?versionId=null", "/media/a%20b"] {
        let answer = copy("/plain/copy", from).send().await.refused(405, "MethodNotAllowed");
        assert_eq!(answer.xml("Message"), NO_COPIES, "{from}");
    }
    let answer = copy("/plain/copy", "/media/k").send_presigned(60).await;
    assert_eq!(answer.status, 403, "the header is not signed");
    let upload = c.call("POST", "/plain/parts?uploads").send().await.expect(200);
    let part = format!("/plain/parts?partNumber=1&uploadId={}", upload.xml("UploadId"));
    let answer = copy(&part, "/media/k").send().await.refused(405, "MethodNotAllowed");
    assert_eq!(answer.xml("Message"), NO_COPIES);
    copy(&part, "/plain/k").send().await.expect(200);
    copy("/plain/copy", "/plain/k").send().await.expect(200);
    let answer = copy("/media/copy", "/media/k").send().await.refused(405, "MethodNotAllowed");
    assert_eq!(answer.xml("Message"), READ_ONLY);
}
