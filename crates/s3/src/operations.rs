//! The S3 operations that are served; all others answer `NotImplemented`.

use futures::TryFutureExt;
use s3s::dto::*;
use s3s::{S3, S3Error, S3Request, S3Response, S3Result, s3_error};
use steadfast_flow::{BoxFuture, Stage, stages};

use crate::handler::Handler;
use crate::ops::{acl, buckets, copy, delete, list, notifications, read, tags, unset, uploads, write};
use crate::served::{Conditions, RESPONSE, Served};

impl Handler {
    /// Adds to the error of a full pool the uploads and snapshots that hold space.
    fn advised(&self, mut error: S3Error) -> S3Error {
        let uploads = self.store.uploads_open();
        if error.status_code() == Some(http::StatusCode::INSUFFICIENT_STORAGE) && uploads > 0 {
            let message = error.message().unwrap_or_default();
            error.set_message(format!(
                "{message} {uploads} multipart uploads are neither completed nor aborted and keep their parts: abort those that \
                 are no longer needed (store.upload_expiry aborts them after a time)."
            ));
        }
        if error.status_code() == Some(http::StatusCode::INSUFFICIENT_STORAGE)
            && let Some((bytes, oldest)) = self.store.snapshots().kept()
            && bytes > 0
        {
            let message = error.message().unwrap_or_default();
            error.set_message(format!(
                "{message} Snapshots keep {} MiB of deleted data; the oldest is {oldest:?}: `steadfast snapshot delete {oldest}` \
                 frees what only it keeps.",
                bytes >> 20
            ));
        }
        error
    }
}

const READ: &[&str] =
    &["versionId", "partNumber", RESPONSE[0], RESPONSE[1], RESPONSE[2], RESPONSE[3], RESPONSE[4], RESPONSE[5]];
const LIST: &[&str] = &[
    "list-type",
    "prefix",
    "delimiter",
    "marker",
    "start-after",
    "continuation-token",
    "max-keys",
    "encoding-type",
    "fetch-owner",
];
const VERSIONS: &[&str] =
    &["versions", "prefix", "delimiter", "key-marker", "version-id-marker", "max-keys", "encoding-type"];
const UPLOADS: &[&str] =
    &["uploads", "prefix", "delimiter", "key-marker", "upload-id-marker", "max-uploads", "encoding-type"];
const PART: &[&str] = &["partNumber", "uploadId"];

/// A few settings: tags, rules, a region.
const SMALL: usize = 256 << 10;
/// 1,000 keys of 1,024 bytes, and reserve; S3's own limit.
const KEYS: usize = 2 << 20;
/// 10,000 parts with their checksums.
const PARTS: usize = 4 << 20;

macro_rules! operations {
    ($($method:ident($input:ty) -> $output:ty = $function:path, $served:expr;)*) => {
        /// The served operations.
        const OPERATIONS: &[Served] = &[$($served),*];

        impl S3 for Handler {
            $(
                // As `async_trait` expands it, but the future holds the large request once, not
                // twice.
                fn $method<'a, 'f>(&'a self, req: S3Request<$input>) -> BoxFuture<'f, S3Result<S3Response<$output>>>
                where
                    'a: 'f,
                    Self: 'f,
                {
                    const SERVED: Served = $served;
                    stages::note(|stages| {
                        stages.enter(Stage::Other);
                    });
                    match SERVED.refuse_ignored(&req.method, &req.headers) {
                        Ok(()) => Box::pin($function(self, req).map_err(|error| self.advised(error))),
                        Err(error) => Box::pin(std::future::ready(Err(error))),
                    }
                }
            )*
        }
    };
}

// Each operation: its function, what it accepts, and where it may be used.
operations! {
    create_bucket(CreateBucketInput) -> CreateBucketOutput = buckets::create,
        Served::new("CreateBucket", &[]).with_xml(SMALL).with_origin();
    head_bucket(HeadBucketInput) -> HeadBucketOutput = buckets::head,
        Served::new("HeadBucket", &[]).with_origin();
    delete_bucket(DeleteBucketInput) -> DeleteBucketOutput = buckets::delete,
        Served::new("DeleteBucket", &[]);
    list_buckets(ListBucketsInput) -> ListBucketsOutput = buckets::list,
        Served::new("ListBuckets", &["max-buckets", "continuation-token", "prefix", "bucket-region"]);
    get_bucket_location(GetBucketLocationInput) -> GetBucketLocationOutput = buckets::location,
        Served::new("GetBucketLocation", &["location"]).with_origin();
    get_bucket_versioning(GetBucketVersioningInput) -> GetBucketVersioningOutput = buckets::versioning,
        Served::new("GetBucketVersioning", &["versioning"]).with_origin();
    get_bucket_notification_configuration(GetBucketNotificationConfigurationInput) -> GetBucketNotificationConfigurationOutput = notifications::get,
        Served::new("GetBucketNotificationConfiguration", &["notification"]).with_origin();
    put_bucket_notification_configuration(PutBucketNotificationConfigurationInput) -> PutBucketNotificationConfigurationOutput = notifications::put,
        Served::new("PutBucketNotificationConfiguration", &["notification"]).with_xml(SMALL);
    get_bucket_acl(GetBucketAclInput) -> GetBucketAclOutput = acl::of_bucket,
        Served::new("GetBucketAcl", &["acl"]).with_origin();
    put_bucket_acl(PutBucketAclInput) -> PutBucketAclOutput = acl::put_of_bucket,
        Served::new("PutBucketAcl", &["acl"]).with_xml(SMALL).with_origin();

    put_object(PutObjectInput) -> PutObjectOutput = write::put,
        Served::new("PutObject", &[]).honours(Conditions::Both);
    copy_object(CopyObjectInput) -> CopyObjectOutput = copy::copy,
        Served::new("CopyObject", &[]).honours(Conditions::Both);
    get_object(GetObjectInput) -> GetObjectOutput = read::get,
        Served::new("GetObject", READ).with_origin().public();
    head_object(HeadObjectInput) -> HeadObjectOutput = read::head,
        Served::new("HeadObject", READ).with_origin().public();
    get_object_attributes(GetObjectAttributesInput) -> GetObjectAttributesOutput = read::attributes,
        Served::new("GetObjectAttributes", &["attributes", "versionId"]);
    get_object_acl(GetObjectAclInput) -> GetObjectAclOutput = acl::of_object,
        Served::new("GetObjectAcl", &["acl", "versionId"]);
    put_object_acl(PutObjectAclInput) -> PutObjectAclOutput = acl::put_of_object,
        Served::new("PutObjectAcl", &["acl", "versionId"]).with_xml(SMALL);
    delete_object(DeleteObjectInput) -> DeleteObjectOutput = delete::one,
        Served::new("DeleteObject", &["versionId"]).honours(Conditions::IfMatch);
    delete_objects(DeleteObjectsInput) -> DeleteObjectsOutput = delete::many,
        Served::new("DeleteObjects", &["delete"]).with_xml(KEYS);
    get_object_tagging(GetObjectTaggingInput) -> GetObjectTaggingOutput = tags::get,
        Served::new("GetObjectTagging", &["tagging", "versionId"]);
    put_object_tagging(PutObjectTaggingInput) -> PutObjectTaggingOutput = tags::put,
        Served::new("PutObjectTagging", &["tagging", "versionId"]).with_xml(SMALL);
    delete_object_tagging(DeleteObjectTaggingInput) -> DeleteObjectTaggingOutput = tags::delete,
        Served::new("DeleteObjectTagging", &["tagging", "versionId"]);

    list_object_versions(ListObjectVersionsInput) -> ListObjectVersionsOutput = list::versions,
        Served::new("ListObjectVersions", VERSIONS).with_origin();
    list_objects(ListObjectsInput) -> ListObjectsOutput = list::v1,
        Served::new("ListObjects", LIST).with_origin();
    list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output = list::v2,
        Served::new("ListObjectsV2", LIST).with_origin();

    create_multipart_upload(CreateMultipartUploadInput) -> CreateMultipartUploadOutput = uploads::create,
        Served::new("CreateMultipartUpload", &["uploads"]).honours(Conditions::Both);
    upload_part(UploadPartInput) -> UploadPartOutput = write::put_part,
        Served::new("UploadPart", PART);
    upload_part_copy(UploadPartCopyInput) -> UploadPartCopyOutput = copy::copy_part,
        Served::new("UploadPartCopy", PART);
    complete_multipart_upload(CompleteMultipartUploadInput) -> CompleteMultipartUploadOutput = uploads::complete,
        Served::new("CompleteMultipartUpload", &["uploadId"]).with_xml(PARTS).honours(Conditions::Both);
    abort_multipart_upload(AbortMultipartUploadInput) -> AbortMultipartUploadOutput = uploads::abort,
        Served::new("AbortMultipartUpload", &["uploadId"]);
    list_parts(ListPartsInput) -> ListPartsOutput = uploads::list_parts,
        Served::new("ListParts", &["uploadId", "max-parts", "part-number-marker", "encoding-type"]);
    list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput = uploads::list,
        Served::new("ListMultipartUploads", UPLOADS);

    get_bucket_policy(GetBucketPolicyInput) -> GetBucketPolicyOutput = unset::policy,
        Served::new("GetBucketPolicy", &["policy"]).with_origin();
    get_bucket_policy_status(GetBucketPolicyStatusInput) -> GetBucketPolicyStatusOutput = unset::policy_status,
        Served::new("GetBucketPolicyStatus", &["policyStatus"]).with_origin();
    get_bucket_cors(GetBucketCorsInput) -> GetBucketCorsOutput = unset::cors,
        Served::new("GetBucketCors", &["cors"]).with_origin();
    get_bucket_lifecycle_configuration(GetBucketLifecycleConfigurationInput) -> GetBucketLifecycleConfigurationOutput = unset::lifecycle,
        Served::new("GetBucketLifecycleConfiguration", &["lifecycle"]).with_origin();
    get_bucket_tagging(GetBucketTaggingInput) -> GetBucketTaggingOutput = tags::get_of_bucket,
        Served::new("GetBucketTagging", &["tagging"]).with_origin();
    put_bucket_tagging(PutBucketTaggingInput) -> PutBucketTaggingOutput = tags::put_of_bucket,
        Served::new("PutBucketTagging", &["tagging"]).with_xml(SMALL);
    get_bucket_website(GetBucketWebsiteInput) -> GetBucketWebsiteOutput = unset::website,
        Served::new("GetBucketWebsite", &["website"]).with_origin();
    get_bucket_encryption(GetBucketEncryptionInput) -> GetBucketEncryptionOutput = unset::encryption,
        Served::new("GetBucketEncryption", &["encryption"]).with_origin();
    get_bucket_replication(GetBucketReplicationInput) -> GetBucketReplicationOutput = unset::replication,
        Served::new("GetBucketReplication", &["replication"]).with_origin();
    get_object_lock_configuration(GetObjectLockConfigurationInput) -> GetObjectLockConfigurationOutput = unset::object_lock,
        Served::new("GetObjectLockConfiguration", &["object-lock"]).with_origin();
    get_public_access_block(GetPublicAccessBlockInput) -> GetPublicAccessBlockOutput = unset::public_access_block,
        Served::new("GetPublicAccessBlock", &["publicAccessBlock"]).with_origin();
    get_bucket_ownership_controls(GetBucketOwnershipControlsInput) -> GetBucketOwnershipControlsOutput = unset::ownership_controls,
        Served::new("GetBucketOwnershipControls", &["ownershipControls"]).with_origin();
    get_bucket_analytics_configuration(GetBucketAnalyticsConfigurationInput) -> GetBucketAnalyticsConfigurationOutput = unset::analytics,
        Served::new("GetBucketAnalyticsConfiguration", &["analytics", "id"]).with_origin();
    get_bucket_intelligent_tiering_configuration(GetBucketIntelligentTieringConfigurationInput) -> GetBucketIntelligentTieringConfigurationOutput = unset::intelligent_tiering,
        Served::new("GetBucketIntelligentTieringConfiguration", &["intelligent-tiering", "id"]).with_origin();
    get_bucket_inventory_configuration(GetBucketInventoryConfigurationInput) -> GetBucketInventoryConfigurationOutput = unset::inventory,
        Served::new("GetBucketInventoryConfiguration", &["inventory", "id"]).with_origin();
    get_bucket_metrics_configuration(GetBucketMetricsConfigurationInput) -> GetBucketMetricsConfigurationOutput = unset::metrics,
        Served::new("GetBucketMetricsConfiguration", &["metrics", "id"]).with_origin();
    get_bucket_logging(GetBucketLoggingInput) -> GetBucketLoggingOutput = unset::logging,
        Served::new("GetBucketLogging", &["logging"]).with_origin();
    get_bucket_accelerate_configuration(GetBucketAccelerateConfigurationInput) -> GetBucketAccelerateConfigurationOutput = unset::accelerate,
        Served::new("GetBucketAccelerateConfiguration", &["accelerate"]).with_origin();
    list_bucket_analytics_configurations(ListBucketAnalyticsConfigurationsInput) -> ListBucketAnalyticsConfigurationsOutput = unset::list_analytics,
        Served::new("ListBucketAnalyticsConfigurations", &["analytics", "continuation-token"]).with_origin();
    list_bucket_intelligent_tiering_configurations(ListBucketIntelligentTieringConfigurationsInput) -> ListBucketIntelligentTieringConfigurationsOutput = unset::list_intelligent_tiering,
        Served::new("ListBucketIntelligentTieringConfigurations", &["intelligent-tiering", "continuation-token"]).with_origin();
    list_bucket_inventory_configurations(ListBucketInventoryConfigurationsInput) -> ListBucketInventoryConfigurationsOutput = unset::list_inventory,
        Served::new("ListBucketInventoryConfigurations", &["inventory", "continuation-token"]).with_origin();
    list_bucket_metrics_configurations(ListBucketMetricsConfigurationsInput) -> ListBucketMetricsConfigurationsOutput = unset::list_metrics,
        Served::new("ListBucketMetricsConfigurations", &["metrics", "continuation-token"]).with_origin();
    get_bucket_request_payment(GetBucketRequestPaymentInput) -> GetBucketRequestPaymentOutput = unset::request_payment,
        Served::new("GetBucketRequestPayment", &["requestPayment"]).with_origin();
    get_object_retention(GetObjectRetentionInput) -> GetObjectRetentionOutput = unset::retention,
        Served::new("GetObjectRetention", &["retention", "versionId"]);
    get_object_legal_hold(GetObjectLegalHoldInput) -> GetObjectLegalHoldOutput = unset::legal_hold,
        Served::new("GetObjectLegalHold", &["legal-hold", "versionId"]);
    delete_bucket_policy(DeleteBucketPolicyInput) -> DeleteBucketPolicyOutput = unset::delete_policy,
        Served::new("DeleteBucketPolicy", &["policy"]);
    delete_bucket_cors(DeleteBucketCorsInput) -> DeleteBucketCorsOutput = unset::delete_cors,
        Served::new("DeleteBucketCors", &["cors"]);
    delete_bucket_lifecycle(DeleteBucketLifecycleInput) -> DeleteBucketLifecycleOutput = unset::delete_lifecycle,
        Served::new("DeleteBucketLifecycle", &["lifecycle"]);
    delete_bucket_tagging(DeleteBucketTaggingInput) -> DeleteBucketTaggingOutput = tags::delete_of_bucket,
        Served::new("DeleteBucketTagging", &["tagging"]);
    delete_bucket_website(DeleteBucketWebsiteInput) -> DeleteBucketWebsiteOutput = unset::delete_website,
        Served::new("DeleteBucketWebsite", &["website"]);
    delete_bucket_encryption(DeleteBucketEncryptionInput) -> DeleteBucketEncryptionOutput = unset::delete_encryption,
        Served::new("DeleteBucketEncryption", &["encryption"]);
    delete_bucket_replication(DeleteBucketReplicationInput) -> DeleteBucketReplicationOutput = unset::delete_replication,
        Served::new("DeleteBucketReplication", &["replication"]);
    delete_public_access_block(DeletePublicAccessBlockInput) -> DeletePublicAccessBlockOutput = unset::delete_public_access_block,
        Served::new("DeletePublicAccessBlock", &["publicAccessBlock"]);
    delete_bucket_ownership_controls(DeleteBucketOwnershipControlsInput) -> DeleteBucketOwnershipControlsOutput = unset::delete_ownership_controls,
        Served::new("DeleteBucketOwnershipControls", &["ownershipControls"]);
}

/// The names of the served operations.
#[doc(hidden)]
pub fn operations() -> impl Iterator<Item = &'static str> {
    OPERATIONS.iter().map(|served| served.name)
}

/// The served operation of a name.
///
/// # Errors
/// `NotImplemented`.
pub(crate) fn find(operation: &str) -> S3Result<&'static Served> {
    OPERATIONS.iter().find(|s| s.name == operation).ok_or_else(|| {
        s3_error!(
            NotImplemented,
            "A header or query you provided implies functionality that is not implemented: {operation}.{}",
            reason(operation)
        )
    })
}

/// What to use in place of an operation that is not served.
fn reason(operation: &str) -> &'static str {
    match operation {
        "PutBucketPolicy" | "PutPublicAccessBlock" | "PutBucketOwnershipControls" => {
            " Every configured key may do everything; the setting s3.public_read lets anyone read a bucket's objects."
        }
        "PutBucketCors" => " The setting s3.allowed_origins is for all buckets.",
        "PutBucketVersioning" | "PutObjectLockConfiguration" | "PutObjectRetention" | "PutObjectLegalHold" => {
            " An object has one version, which can be changed; `steadfast snapshot` keeps older states."
        }
        "PutBucketLifecycleConfiguration" => " Objects do not expire; a client deletes them.",
        "PutBucketEncryption" => " The server does not encrypt; encrypt its disks.",
        "PutBucketReplication" => " Copy with a client, or export snapshots.",
        _ => "",
    }
}
