//! The S3 operations that are served; all others answer `NotImplemented`.

use std::sync::Arc;

use futures::TryFutureExt;
use s3s::dto::*;
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use steadfast_flow::{BoxFuture, Stage, stages};

use crate::caller::Caller;
use crate::context::RequestContext;
use crate::handler::Handler;
use crate::ops::{
    acl, buckets, copy, delete, list, notifications, ownership, policy, read, tags, unset, uploads, write,
};
use crate::rights::{Needed, denied};
use crate::served::{Conditions, RESPONSE, Served};

impl Handler {
    /// Adds to the error of a full pool the uploads that hold space.
    fn advised(&self, mut error: S3Error) -> S3Error {
        let uploads = self.store.uploads_open();
        if error.status_code() == Some(http::StatusCode::INSUFFICIENT_STORAGE) && uploads > 0 {
            let message = error.message().unwrap_or_default();
            error.set_message(format!(
                "{message} {uploads} multipart uploads are neither completed nor aborted and keep their parts: abort those that \
                 are no longer needed (store.upload_expiry aborts them after a time)."
            ));
        }
        error
    }
}

/// The context of a request whose caller may not do everything.
fn limited<T>(req: &S3Request<T>) -> Option<Arc<RequestContext>> {
    let is_root = |context: &RequestContext| context.caller.get().is_some_and(|caller| caller.identity.is_root());
    req.extensions.get::<Arc<RequestContext>>().filter(|context| !is_root(context)).cloned()
}

/// The error for a caller that may not learn which keys exist.
fn hidden(context: &RequestContext, error: S3Error) -> S3Error {
    let hides = context.caller.get().is_some_and(Caller::absence_is_hidden);
    if hides && *error.code() == S3ErrorCode::NoSuchKey { denied() } else { error }
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
                        Ok(()) => {
                            let limited = limited(&req);
                            Box::pin($function(self, req).map_err(move |error| match limited {
                                Some(context) => hidden(&context, error),
                                None => self.advised(error),
                            }))
                        }
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
        Served::new("CreateBucket", &[], Needed::service("CreateBucket")).with_xml(SMALL).with_origin();
    head_bucket(HeadBucketInput) -> HeadBucketOutput = buckets::head,
        Served::new("HeadBucket", &[], Needed::bucket("ListBucket")).with_origin();
    delete_bucket(DeleteBucketInput) -> DeleteBucketOutput = buckets::delete,
        Served::new("DeleteBucket", &[], Needed::bucket("DeleteBucket"));
    list_buckets(ListBucketsInput) -> ListBucketsOutput = buckets::list,
        Served::new("ListBuckets", &["max-buckets", "continuation-token", "prefix", "bucket-region"], Needed::service("ListAllMyBuckets"));
    get_bucket_location(GetBucketLocationInput) -> GetBucketLocationOutput = buckets::location,
        Served::new("GetBucketLocation", &["location"], Needed::bucket("GetBucketLocation")).with_origin();
    get_bucket_versioning(GetBucketVersioningInput) -> GetBucketVersioningOutput = buckets::versioning,
        Served::new("GetBucketVersioning", &["versioning"], Needed::bucket("GetBucketVersioning")).with_origin();
    get_bucket_notification_configuration(GetBucketNotificationConfigurationInput) -> GetBucketNotificationConfigurationOutput = notifications::get,
        Served::new("GetBucketNotificationConfiguration", &["notification"], Needed::bucket("GetBucketNotification")).with_origin();
    put_bucket_notification_configuration(PutBucketNotificationConfigurationInput) -> PutBucketNotificationConfigurationOutput = notifications::put,
        Served::new("PutBucketNotificationConfiguration", &["notification"], Needed::bucket("PutBucketNotification")).with_xml(SMALL);
    get_bucket_acl(GetBucketAclInput) -> GetBucketAclOutput = acl::of_bucket,
        Served::new("GetBucketAcl", &["acl"], Needed::bucket("GetBucketAcl")).with_origin();
    put_bucket_acl(PutBucketAclInput) -> PutBucketAclOutput = acl::put_of_bucket,
        Served::new("PutBucketAcl", &["acl"], Needed::bucket("PutBucketAcl")).with_xml(SMALL).with_origin();

    put_object(PutObjectInput) -> PutObjectOutput = write::put,
        Served::new("PutObject", &[], Needed::object("PutObject")).honours(Conditions::Both);
    copy_object(CopyObjectInput) -> CopyObjectOutput = copy::copy,
        Served::new("CopyObject", &[], Needed::object("PutObject")).honours(Conditions::Both);
    get_object(GetObjectInput) -> GetObjectOutput = read::get,
        Served::new("GetObject", READ, Needed::object("GetObject").or_version("GetObjectVersion")).with_origin();
    head_object(HeadObjectInput) -> HeadObjectOutput = read::head,
        Served::new("HeadObject", READ, Needed::object("GetObject").or_version("GetObjectVersion")).with_origin();
    get_object_attributes(GetObjectAttributesInput) -> GetObjectAttributesOutput = read::attributes,
        Served::new("GetObjectAttributes", &["attributes", "versionId"], Needed::object("GetObjectAttributes").or_version("GetObjectVersionAttributes").and("GetObject", "GetObjectVersion"));
    get_object_acl(GetObjectAclInput) -> GetObjectAclOutput = acl::of_object,
        Served::new("GetObjectAcl", &["acl", "versionId"], Needed::object("GetObjectAcl").or_version("GetObjectVersionAcl"));
    put_object_acl(PutObjectAclInput) -> PutObjectAclOutput = acl::put_of_object,
        Served::new("PutObjectAcl", &["acl", "versionId"], Needed::object("PutObjectAcl").or_version("PutObjectVersionAcl")).with_xml(SMALL);
    delete_object(DeleteObjectInput) -> DeleteObjectOutput = delete::one,
        Served::new("DeleteObject", &["versionId"], Needed::object("DeleteObject").or_version("DeleteObjectVersion")).honours(Conditions::IfMatch);
    delete_objects(DeleteObjectsInput) -> DeleteObjectsOutput = delete::many,
        Served::new("DeleteObjects", &["delete"], Needed::bucket("DeleteObject").or_version("DeleteObjectVersion").late()).with_xml(KEYS);
    get_object_tagging(GetObjectTaggingInput) -> GetObjectTaggingOutput = tags::get,
        Served::new("GetObjectTagging", &["tagging", "versionId"], Needed::object("GetObjectTagging").or_version("GetObjectVersionTagging"));
    put_object_tagging(PutObjectTaggingInput) -> PutObjectTaggingOutput = tags::put,
        Served::new("PutObjectTagging", &["tagging", "versionId"], Needed::object("PutObjectTagging").or_version("PutObjectVersionTagging").late()).with_xml(SMALL);
    delete_object_tagging(DeleteObjectTaggingInput) -> DeleteObjectTaggingOutput = tags::delete,
        Served::new("DeleteObjectTagging", &["tagging", "versionId"], Needed::object("DeleteObjectTagging").or_version("DeleteObjectVersionTagging"));

    list_object_versions(ListObjectVersionsInput) -> ListObjectVersionsOutput = list::versions,
        Served::new("ListObjectVersions", VERSIONS, Needed::bucket("ListBucketVersions")).with_origin();
    list_objects(ListObjectsInput) -> ListObjectsOutput = list::v1,
        Served::new("ListObjects", LIST, Needed::bucket("ListBucket")).with_origin();
    list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output = list::v2,
        Served::new("ListObjectsV2", LIST, Needed::bucket("ListBucket")).with_origin();

    create_multipart_upload(CreateMultipartUploadInput) -> CreateMultipartUploadOutput = uploads::create,
        Served::new("CreateMultipartUpload", &["uploads"], Needed::object("PutObject")).honours(Conditions::Both);
    upload_part(UploadPartInput) -> UploadPartOutput = write::put_part,
        Served::new("UploadPart", PART, Needed::object("PutObject"));
    upload_part_copy(UploadPartCopyInput) -> UploadPartCopyOutput = copy::copy_part,
        Served::new("UploadPartCopy", PART, Needed::object("PutObject"));
    complete_multipart_upload(CompleteMultipartUploadInput) -> CompleteMultipartUploadOutput = uploads::complete,
        Served::new("CompleteMultipartUpload", &["uploadId"], Needed::object("PutObject")).with_xml(PARTS).honours(Conditions::Both);
    abort_multipart_upload(AbortMultipartUploadInput) -> AbortMultipartUploadOutput = uploads::abort,
        Served::new("AbortMultipartUpload", &["uploadId"], Needed::object("AbortMultipartUpload"));
    list_parts(ListPartsInput) -> ListPartsOutput = uploads::list_parts,
        Served::new("ListParts", &["uploadId", "max-parts", "part-number-marker", "encoding-type"], Needed::object("ListMultipartUploadParts"));
    list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput = uploads::list,
        Served::new("ListMultipartUploads", UPLOADS, Needed::bucket("ListBucketMultipartUploads"));

    get_bucket_policy(GetBucketPolicyInput) -> GetBucketPolicyOutput = policy::get,
        Served::new("GetBucketPolicy", &["policy"], Needed::bucket("GetBucketPolicy").of_account()).with_origin();
    put_bucket_policy(PutBucketPolicyInput) -> PutBucketPolicyOutput = policy::put,
        Served::new("PutBucketPolicy", &["policy"], Needed::bucket("PutBucketPolicy").of_account()).with_xml(SMALL).with_origin();
    get_bucket_policy_status(GetBucketPolicyStatusInput) -> GetBucketPolicyStatusOutput = policy::status,
        Served::new("GetBucketPolicyStatus", &["policyStatus"], Needed::bucket("GetBucketPolicyStatus").of_account()).with_origin();
    get_bucket_cors(GetBucketCorsInput) -> GetBucketCorsOutput = unset::cors,
        Served::new("GetBucketCors", &["cors"], Needed::bucket("GetBucketCORS")).with_origin();
    get_bucket_lifecycle_configuration(GetBucketLifecycleConfigurationInput) -> GetBucketLifecycleConfigurationOutput = unset::lifecycle,
        Served::new("GetBucketLifecycleConfiguration", &["lifecycle"], Needed::bucket("GetLifecycleConfiguration")).with_origin();
    get_bucket_tagging(GetBucketTaggingInput) -> GetBucketTaggingOutput = tags::get_of_bucket,
        Served::new("GetBucketTagging", &["tagging"], Needed::bucket("GetBucketTagging")).with_origin();
    put_bucket_tagging(PutBucketTaggingInput) -> PutBucketTaggingOutput = tags::put_of_bucket,
        Served::new("PutBucketTagging", &["tagging"], Needed::bucket("PutBucketTagging")).with_xml(SMALL);
    get_bucket_website(GetBucketWebsiteInput) -> GetBucketWebsiteOutput = unset::website,
        Served::new("GetBucketWebsite", &["website"], Needed::bucket("GetBucketWebsite")).with_origin();
    get_bucket_encryption(GetBucketEncryptionInput) -> GetBucketEncryptionOutput = unset::encryption,
        Served::new("GetBucketEncryption", &["encryption"], Needed::bucket("GetEncryptionConfiguration")).with_origin();
    get_bucket_replication(GetBucketReplicationInput) -> GetBucketReplicationOutput = unset::replication,
        Served::new("GetBucketReplication", &["replication"], Needed::bucket("GetReplicationConfiguration")).with_origin();
    get_object_lock_configuration(GetObjectLockConfigurationInput) -> GetObjectLockConfigurationOutput = unset::object_lock,
        Served::new("GetObjectLockConfiguration", &["object-lock"], Needed::bucket("GetBucketObjectLockConfiguration")).with_origin();
    put_public_access_block(PutPublicAccessBlockInput) -> PutPublicAccessBlockOutput = policy::put_block,
        Served::new("PutPublicAccessBlock", &["publicAccessBlock"], Needed::bucket("PutBucketPublicAccessBlock").of_account()).with_xml(SMALL).with_origin();
    get_public_access_block(GetPublicAccessBlockInput) -> GetPublicAccessBlockOutput = policy::get_block,
        Served::new("GetPublicAccessBlock", &["publicAccessBlock"], Needed::bucket("GetBucketPublicAccessBlock").of_account()).with_origin();
    put_bucket_ownership_controls(PutBucketOwnershipControlsInput) -> PutBucketOwnershipControlsOutput = ownership::put,
        Served::new("PutBucketOwnershipControls", &["ownershipControls"], Needed::bucket("PutBucketOwnershipControls").of_account()).with_xml(SMALL).with_origin();
    get_bucket_ownership_controls(GetBucketOwnershipControlsInput) -> GetBucketOwnershipControlsOutput = ownership::get,
        Served::new("GetBucketOwnershipControls", &["ownershipControls"], Needed::bucket("GetBucketOwnershipControls").of_account()).with_origin();
    get_bucket_analytics_configuration(GetBucketAnalyticsConfigurationInput) -> GetBucketAnalyticsConfigurationOutput = unset::analytics,
        Served::new("GetBucketAnalyticsConfiguration", &["analytics", "id"], Needed::bucket("GetAnalyticsConfiguration")).with_origin();
    get_bucket_intelligent_tiering_configuration(GetBucketIntelligentTieringConfigurationInput) -> GetBucketIntelligentTieringConfigurationOutput = unset::intelligent_tiering,
        Served::new("GetBucketIntelligentTieringConfiguration", &["intelligent-tiering", "id"], Needed::bucket("GetIntelligentTieringConfiguration")).with_origin();
    get_bucket_inventory_configuration(GetBucketInventoryConfigurationInput) -> GetBucketInventoryConfigurationOutput = unset::inventory,
        Served::new("GetBucketInventoryConfiguration", &["inventory", "id"], Needed::bucket("GetInventoryConfiguration")).with_origin();
    get_bucket_metrics_configuration(GetBucketMetricsConfigurationInput) -> GetBucketMetricsConfigurationOutput = unset::metrics,
        Served::new("GetBucketMetricsConfiguration", &["metrics", "id"], Needed::bucket("GetMetricsConfiguration")).with_origin();
    get_bucket_logging(GetBucketLoggingInput) -> GetBucketLoggingOutput = unset::logging,
        Served::new("GetBucketLogging", &["logging"], Needed::bucket("GetBucketLogging")).with_origin();
    get_bucket_accelerate_configuration(GetBucketAccelerateConfigurationInput) -> GetBucketAccelerateConfigurationOutput = unset::accelerate,
        Served::new("GetBucketAccelerateConfiguration", &["accelerate"], Needed::bucket("GetAccelerateConfiguration")).with_origin();
    list_bucket_analytics_configurations(ListBucketAnalyticsConfigurationsInput) -> ListBucketAnalyticsConfigurationsOutput = unset::list_analytics,
        Served::new("ListBucketAnalyticsConfigurations", &["analytics", "continuation-token"], Needed::bucket("GetAnalyticsConfiguration")).with_origin();
    list_bucket_intelligent_tiering_configurations(ListBucketIntelligentTieringConfigurationsInput) -> ListBucketIntelligentTieringConfigurationsOutput = unset::list_intelligent_tiering,
        Served::new("ListBucketIntelligentTieringConfigurations", &["intelligent-tiering", "continuation-token"], Needed::bucket("GetIntelligentTieringConfiguration")).with_origin();
    list_bucket_inventory_configurations(ListBucketInventoryConfigurationsInput) -> ListBucketInventoryConfigurationsOutput = unset::list_inventory,
        Served::new("ListBucketInventoryConfigurations", &["inventory", "continuation-token"], Needed::bucket("GetInventoryConfiguration")).with_origin();
    list_bucket_metrics_configurations(ListBucketMetricsConfigurationsInput) -> ListBucketMetricsConfigurationsOutput = unset::list_metrics,
        Served::new("ListBucketMetricsConfigurations", &["metrics", "continuation-token"], Needed::bucket("GetMetricsConfiguration")).with_origin();
    get_bucket_request_payment(GetBucketRequestPaymentInput) -> GetBucketRequestPaymentOutput = unset::request_payment,
        Served::new("GetBucketRequestPayment", &["requestPayment"], Needed::bucket("GetBucketRequestPayment")).with_origin();
    get_object_retention(GetObjectRetentionInput) -> GetObjectRetentionOutput = unset::retention,
        Served::new("GetObjectRetention", &["retention", "versionId"], Needed::object("GetObjectRetention"));
    get_object_legal_hold(GetObjectLegalHoldInput) -> GetObjectLegalHoldOutput = unset::legal_hold,
        Served::new("GetObjectLegalHold", &["legal-hold", "versionId"], Needed::object("GetObjectLegalHold"));
    delete_bucket_policy(DeleteBucketPolicyInput) -> DeleteBucketPolicyOutput = policy::delete,
        Served::new("DeleteBucketPolicy", &["policy"], Needed::bucket("DeleteBucketPolicy").of_account()).with_origin();
    delete_bucket_cors(DeleteBucketCorsInput) -> DeleteBucketCorsOutput = unset::delete_cors,
        Served::new("DeleteBucketCors", &["cors"], Needed::bucket("PutBucketCORS"));
    delete_bucket_lifecycle(DeleteBucketLifecycleInput) -> DeleteBucketLifecycleOutput = unset::delete_lifecycle,
        Served::new("DeleteBucketLifecycle", &["lifecycle"], Needed::bucket("PutLifecycleConfiguration"));
    delete_bucket_tagging(DeleteBucketTaggingInput) -> DeleteBucketTaggingOutput = tags::delete_of_bucket,
        Served::new("DeleteBucketTagging", &["tagging"], Needed::bucket("PutBucketTagging"));
    delete_bucket_website(DeleteBucketWebsiteInput) -> DeleteBucketWebsiteOutput = unset::delete_website,
        Served::new("DeleteBucketWebsite", &["website"], Needed::bucket("DeleteBucketWebsite"));
    delete_bucket_encryption(DeleteBucketEncryptionInput) -> DeleteBucketEncryptionOutput = unset::delete_encryption,
        Served::new("DeleteBucketEncryption", &["encryption"], Needed::bucket("PutEncryptionConfiguration"));
    delete_bucket_replication(DeleteBucketReplicationInput) -> DeleteBucketReplicationOutput = unset::delete_replication,
        Served::new("DeleteBucketReplication", &["replication"], Needed::bucket("PutReplicationConfiguration"));
    delete_public_access_block(DeletePublicAccessBlockInput) -> DeletePublicAccessBlockOutput = policy::delete_block,
        Served::new("DeletePublicAccessBlock", &["publicAccessBlock"], Needed::bucket("PutBucketPublicAccessBlock").of_account()).with_origin();
    delete_bucket_ownership_controls(DeleteBucketOwnershipControlsInput) -> DeleteBucketOwnershipControlsOutput = ownership::delete,
        Served::new("DeleteBucketOwnershipControls", &["ownershipControls"], Needed::bucket("PutBucketOwnershipControls").of_account()).with_origin();
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
        "PutBucketCors" => " The setting s3.allowed_origins is for all buckets.",
        "PutBucketVersioning" | "PutObjectLockConfiguration" | "PutObjectRetention" | "PutObjectLegalHold" => {
            " An object has one version, which can be changed; an archive keeps older states (`archive.to`)."
        }
        "PutBucketLifecycleConfiguration" => " Objects do not expire; a client deletes them.",
        "PutBucketEncryption" => " The server does not encrypt; encrypt its disks.",
        "PutBucketReplication" => " Copy with a client, or let an archive follow the pool (`archive.to`).",
        _ => "",
    }
}
