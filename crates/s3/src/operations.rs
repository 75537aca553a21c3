//! The S3 operations that are served; all others answer `NotImplemented`.

use futures::TryFutureExt;
use s3s::dto::*;
use s3s::{S3, S3Error, S3Request, S3Response, S3Result};
use steadfast_flow::{BoxFuture, Stage, stages};

use crate::conditions::refuse_ignored;
use crate::handler::Handler;
use crate::ops::{acl, buckets, copy, delete, list, notifications, read, tags, unset, uploads, write};

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

macro_rules! operations {
    ($($method:ident($input:ty) -> $output:ty = $function:path;)*) => {
        impl S3 for Handler {
            $(
                // As `async_trait` expands it, but the future holds the large request once, not
                // twice.
                fn $method<'a, 'f>(&'a self, req: S3Request<$input>) -> BoxFuture<'f, S3Result<S3Response<$output>>>
                where
                    'a: 'f,
                    Self: 'f,
                {
                    stages::note(|stages| {
                        stages.enter(Stage::Other);
                    });
                    match refuse_ignored(stringify!($method), &req.method, &req.headers) {
                        Ok(()) => Box::pin($function(self, req).map_err(|error| self.advised(error))),
                        Err(error) => Box::pin(std::future::ready(Err(error))),
                    }
                }
            )*
        }
    };
}

operations! {
    create_bucket(CreateBucketInput) -> CreateBucketOutput = buckets::create;
    head_bucket(HeadBucketInput) -> HeadBucketOutput = buckets::head;
    delete_bucket(DeleteBucketInput) -> DeleteBucketOutput = buckets::delete;
    list_buckets(ListBucketsInput) -> ListBucketsOutput = buckets::list;
    get_bucket_location(GetBucketLocationInput) -> GetBucketLocationOutput = buckets::location;
    get_bucket_versioning(GetBucketVersioningInput) -> GetBucketVersioningOutput = buckets::versioning;
    get_bucket_notification_configuration(GetBucketNotificationConfigurationInput) -> GetBucketNotificationConfigurationOutput = notifications::get;
    put_bucket_notification_configuration(PutBucketNotificationConfigurationInput) -> PutBucketNotificationConfigurationOutput = notifications::put;
    get_bucket_acl(GetBucketAclInput) -> GetBucketAclOutput = acl::of_bucket;
    put_bucket_acl(PutBucketAclInput) -> PutBucketAclOutput = acl::put_of_bucket;

    put_object(PutObjectInput) -> PutObjectOutput = write::put;
    copy_object(CopyObjectInput) -> CopyObjectOutput = copy::copy;
    get_object(GetObjectInput) -> GetObjectOutput = read::get;
    head_object(HeadObjectInput) -> HeadObjectOutput = read::head;
    get_object_attributes(GetObjectAttributesInput) -> GetObjectAttributesOutput = read::attributes;
    get_object_acl(GetObjectAclInput) -> GetObjectAclOutput = acl::of_object;
    put_object_acl(PutObjectAclInput) -> PutObjectAclOutput = acl::put_of_object;
    delete_object(DeleteObjectInput) -> DeleteObjectOutput = delete::one;
    delete_objects(DeleteObjectsInput) -> DeleteObjectsOutput = delete::many;
    get_object_tagging(GetObjectTaggingInput) -> GetObjectTaggingOutput = tags::get;
    put_object_tagging(PutObjectTaggingInput) -> PutObjectTaggingOutput = tags::put;
    delete_object_tagging(DeleteObjectTaggingInput) -> DeleteObjectTaggingOutput = tags::delete;

    list_object_versions(ListObjectVersionsInput) -> ListObjectVersionsOutput = list::versions;
    list_objects(ListObjectsInput) -> ListObjectsOutput = list::v1;
    list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output = list::v2;

    create_multipart_upload(CreateMultipartUploadInput) -> CreateMultipartUploadOutput = uploads::create;
    upload_part(UploadPartInput) -> UploadPartOutput = write::put_part;
    upload_part_copy(UploadPartCopyInput) -> UploadPartCopyOutput = copy::copy_part;
    complete_multipart_upload(CompleteMultipartUploadInput) -> CompleteMultipartUploadOutput = uploads::complete;
    abort_multipart_upload(AbortMultipartUploadInput) -> AbortMultipartUploadOutput = uploads::abort;
    list_parts(ListPartsInput) -> ListPartsOutput = uploads::list_parts;
    list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput = uploads::list;

    get_bucket_policy(GetBucketPolicyInput) -> GetBucketPolicyOutput = unset::policy;
    get_bucket_policy_status(GetBucketPolicyStatusInput) -> GetBucketPolicyStatusOutput = unset::policy_status;
    get_bucket_cors(GetBucketCorsInput) -> GetBucketCorsOutput = unset::cors;
    get_bucket_lifecycle_configuration(GetBucketLifecycleConfigurationInput) -> GetBucketLifecycleConfigurationOutput = unset::lifecycle;
    get_bucket_tagging(GetBucketTaggingInput) -> GetBucketTaggingOutput = unset::tagging;
    get_bucket_website(GetBucketWebsiteInput) -> GetBucketWebsiteOutput = unset::website;
    get_bucket_encryption(GetBucketEncryptionInput) -> GetBucketEncryptionOutput = unset::encryption;
    get_bucket_replication(GetBucketReplicationInput) -> GetBucketReplicationOutput = unset::replication;
    get_object_lock_configuration(GetObjectLockConfigurationInput) -> GetObjectLockConfigurationOutput = unset::object_lock;
    get_public_access_block(GetPublicAccessBlockInput) -> GetPublicAccessBlockOutput = unset::public_access_block;
    get_bucket_ownership_controls(GetBucketOwnershipControlsInput) -> GetBucketOwnershipControlsOutput = unset::ownership_controls;
    get_bucket_analytics_configuration(GetBucketAnalyticsConfigurationInput) -> GetBucketAnalyticsConfigurationOutput = unset::analytics;
    get_bucket_intelligent_tiering_configuration(GetBucketIntelligentTieringConfigurationInput) -> GetBucketIntelligentTieringConfigurationOutput = unset::intelligent_tiering;
    get_bucket_inventory_configuration(GetBucketInventoryConfigurationInput) -> GetBucketInventoryConfigurationOutput = unset::inventory;
    get_bucket_metrics_configuration(GetBucketMetricsConfigurationInput) -> GetBucketMetricsConfigurationOutput = unset::metrics;
    get_bucket_logging(GetBucketLoggingInput) -> GetBucketLoggingOutput = unset::logging;
    get_bucket_accelerate_configuration(GetBucketAccelerateConfigurationInput) -> GetBucketAccelerateConfigurationOutput = unset::accelerate;
    list_bucket_analytics_configurations(ListBucketAnalyticsConfigurationsInput) -> ListBucketAnalyticsConfigurationsOutput = unset::list_analytics;
    list_bucket_intelligent_tiering_configurations(ListBucketIntelligentTieringConfigurationsInput) -> ListBucketIntelligentTieringConfigurationsOutput = unset::list_intelligent_tiering;
    list_bucket_inventory_configurations(ListBucketInventoryConfigurationsInput) -> ListBucketInventoryConfigurationsOutput = unset::list_inventory;
    list_bucket_metrics_configurations(ListBucketMetricsConfigurationsInput) -> ListBucketMetricsConfigurationsOutput = unset::list_metrics;
    get_bucket_request_payment(GetBucketRequestPaymentInput) -> GetBucketRequestPaymentOutput = unset::request_payment;
    get_object_retention(GetObjectRetentionInput) -> GetObjectRetentionOutput = unset::retention;
    get_object_legal_hold(GetObjectLegalHoldInput) -> GetObjectLegalHoldOutput = unset::legal_hold;
    delete_bucket_policy(DeleteBucketPolicyInput) -> DeleteBucketPolicyOutput = unset::delete_policy;
    delete_bucket_cors(DeleteBucketCorsInput) -> DeleteBucketCorsOutput = unset::delete_cors;
    delete_bucket_lifecycle(DeleteBucketLifecycleInput) -> DeleteBucketLifecycleOutput = unset::delete_lifecycle;
    delete_bucket_tagging(DeleteBucketTaggingInput) -> DeleteBucketTaggingOutput = unset::delete_tagging;
    delete_bucket_website(DeleteBucketWebsiteInput) -> DeleteBucketWebsiteOutput = unset::delete_website;
    delete_bucket_encryption(DeleteBucketEncryptionInput) -> DeleteBucketEncryptionOutput = unset::delete_encryption;
    delete_bucket_replication(DeleteBucketReplicationInput) -> DeleteBucketReplicationOutput = unset::delete_replication;
    delete_public_access_block(DeletePublicAccessBlockInput) -> DeletePublicAccessBlockOutput = unset::delete_public_access_block;
    delete_bucket_ownership_controls(DeleteBucketOwnershipControlsInput) -> DeleteBucketOwnershipControlsOutput = unset::delete_ownership_controls;
}
