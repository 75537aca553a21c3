//! Configurations that a bucket of this server never has. Reads answer as S3 does for a bucket
//! without them, and deletes succeed: tools read before they write.

use s3s::dto::*;
use s3s::{S3Error, S3Request, S3Response, S3Result};

use crate::error::{custom, invalid_request, store_error};
use crate::handler::Handler;

/// The error for a configuration that does not exist, or `NoSuchBucket`.
fn absent(handler: &Handler, bucket: &str, code: &'static str, message: &str) -> S3Error {
    match handler.store.buckets().get(bucket) {
        Ok(_) => custom(code, http::StatusCode::NOT_FOUND, message),
        Err(error) => store_error(error),
    }
}

/// Operations whose answer is an error for every bucket.
macro_rules! absent {
    ($($name:ident($input:ty) -> $output:ty: $code:literal, $message:literal;)*) => {
        $(
            pub(crate) async fn $name(handler: &Handler, req: S3Request<$input>) -> S3Result<S3Response<$output>> {
                Err(absent(handler, &req.input.bucket, $code, $message))
            }
        )*
    };
}

/// Operations that have nothing to read, list or delete, with the status of their answer.
macro_rules! empty {
    ($($name:ident($input:ty) -> $output:ty: $status:ident;)*) => {
        $(
            pub(crate) async fn $name(handler: &Handler, req: S3Request<$input>) -> S3Result<S3Response<$output>> {
                handler.store.buckets().get(&req.input.bucket).map_err(store_error)?;
                Ok(S3Response::with_status(<$output>::default(), http::StatusCode::$status))
            }
        )*
    };
}

absent! {
    cors(GetBucketCorsInput) -> GetBucketCorsOutput: "NoSuchCORSConfiguration", "The CORS configuration does not exist";
    lifecycle(GetBucketLifecycleConfigurationInput) -> GetBucketLifecycleConfigurationOutput: "NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist";
    website(GetBucketWebsiteInput) -> GetBucketWebsiteOutput: "NoSuchWebsiteConfiguration", "The specified bucket does not have a website configuration";
    encryption(GetBucketEncryptionInput) -> GetBucketEncryptionOutput: "ServerSideEncryptionConfigurationNotFoundError", "The server side encryption configuration was not found";
    replication(GetBucketReplicationInput) -> GetBucketReplicationOutput: "ReplicationConfigurationNotFoundError", "The replication configuration was not found";
    object_lock(GetObjectLockConfigurationInput) -> GetObjectLockConfigurationOutput: "ObjectLockConfigurationNotFoundError", "Object Lock configuration does not exist for this bucket";
    analytics(GetBucketAnalyticsConfigurationInput) -> GetBucketAnalyticsConfigurationOutput: "NoSuchConfiguration", "The specified configuration does not exist.";
    intelligent_tiering(GetBucketIntelligentTieringConfigurationInput) -> GetBucketIntelligentTieringConfigurationOutput: "NoSuchConfiguration", "The specified configuration does not exist.";
    inventory(GetBucketInventoryConfigurationInput) -> GetBucketInventoryConfigurationOutput: "NoSuchConfiguration", "The specified configuration does not exist.";
    metrics(GetBucketMetricsConfigurationInput) -> GetBucketMetricsConfigurationOutput: "NoSuchConfiguration", "The specified configuration does not exist.";
}

empty! {
    logging(GetBucketLoggingInput) -> GetBucketLoggingOutput: OK;
    accelerate(GetBucketAccelerateConfigurationInput) -> GetBucketAccelerateConfigurationOutput: OK;
    delete_cors(DeleteBucketCorsInput) -> DeleteBucketCorsOutput: NO_CONTENT;
    delete_lifecycle(DeleteBucketLifecycleInput) -> DeleteBucketLifecycleOutput: NO_CONTENT;
    delete_website(DeleteBucketWebsiteInput) -> DeleteBucketWebsiteOutput: NO_CONTENT;
    delete_encryption(DeleteBucketEncryptionInput) -> DeleteBucketEncryptionOutput: NO_CONTENT;
    delete_replication(DeleteBucketReplicationInput) -> DeleteBucketReplicationOutput: NO_CONTENT;
}

/// The lists of configurations with an identifier: empty and complete.
macro_rules! none_listed {
    ($($name:ident($input:ty) -> $output:ident;)*) => {
        $(
            pub(crate) async fn $name(handler: &Handler, req: S3Request<$input>) -> S3Result<S3Response<$output>> {
                handler.store.buckets().get(&req.input.bucket).map_err(store_error)?;
                Ok(S3Response::new($output { is_truncated: Some(false), ..$output::default() }))
            }
        )*
    };
}

none_listed! {
    list_analytics(ListBucketAnalyticsConfigurationsInput) -> ListBucketAnalyticsConfigurationsOutput;
    list_intelligent_tiering(ListBucketIntelligentTieringConfigurationsInput) -> ListBucketIntelligentTieringConfigurationsOutput;
    list_inventory(ListBucketInventoryConfigurationsInput) -> ListBucketInventoryConfigurationsOutput;
    list_metrics(ListBucketMetricsConfigurationsInput) -> ListBucketMetricsConfigurationsOutput;
}

pub(crate) async fn request_payment(
    handler: &Handler,
    req: S3Request<GetBucketRequestPaymentInput>,
) -> S3Result<S3Response<GetBucketRequestPaymentOutput>> {
    handler.store.buckets().get(&req.input.bucket).map_err(store_error)?;
    Ok(S3Response::new(GetBucketRequestPaymentOutput { payer: Some(Payer::from_static(Payer::BUCKET_OWNER)) }))
}

/// S3's error for locks on the objects of a bucket without Object Lock.
fn no_object_lock(handler: &Handler, bucket: &str, key: &str) -> S3Error {
    match handler.store.at(bucket, key).info() {
        Ok(_) => invalid_request("Bucket is missing Object Lock Configuration"),
        Err(error) => store_error(error),
    }
}

pub(crate) async fn retention(
    handler: &Handler,
    req: S3Request<GetObjectRetentionInput>,
) -> S3Result<S3Response<GetObjectRetentionOutput>> {
    Err(no_object_lock(handler, &req.input.bucket, &req.input.key))
}

pub(crate) async fn legal_hold(
    handler: &Handler,
    req: S3Request<GetObjectLegalHoldInput>,
) -> S3Result<S3Response<GetObjectLegalHoldOutput>> {
    Err(no_object_lock(handler, &req.input.bucket, &req.input.key))
}
