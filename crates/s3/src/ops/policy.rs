//! The policy of a bucket, and the block of public access to it.

use s3s::dto::*;
use s3s::{S3Error, S3Request, S3Response, S3Result, s3_error};
use steadfast_access::{Policy as AccessPolicy, PolicyUse};
use steadfast_store::BucketDocument;

use crate::error::{custom, store_error};
use crate::handler::Handler;
use crate::rights::{PublicBlock, denied};

fn no_policy() -> S3Error {
    custom("NoSuchBucketPolicy", http::StatusCode::NOT_FOUND, "The bucket policy does not exist")
}

pub(crate) async fn put(
    handler: &Handler,
    req: S3Request<PutBucketPolicyInput>,
) -> S3Result<S3Response<PutBucketPolicyOutput>> {
    let PutBucketPolicyInput { bucket, policy: document, .. } = req.input;
    let settings = handler.store.buckets().settings(&bucket).map_err(store_error)?;
    let policy = AccessPolicy::parse(document.as_bytes(), PolicyUse::Bucket(&bucket))
        .map_err(|why| s3_error!(MalformedPolicy, "{}", why))?;
    for user in policy.users() {
        let known = handler.options.users.as_ref().map_or(Ok(false), |users| users.has(user));
        if !known.map_err(store_error)? {
            return Err(s3_error!(MalformedPolicy, "Invalid principal in policy: there is no user {:?}", user));
        }
    }
    if policy.is_public() && PublicBlock::of(&settings)?.is_some_and(|block| block.policy) {
        return Err(denied());
    }
    handler.set_document(&bucket, BucketDocument::Policy, Some(document)).await?;
    Ok(S3Response::with_status(PutBucketPolicyOutput::default(), http::StatusCode::NO_CONTENT))
}

/// Answers with the policy that was set, or else with the one of the configuration.
pub(crate) async fn get(
    handler: &Handler,
    req: S3Request<GetBucketPolicyInput>,
) -> S3Result<S3Response<GetBucketPolicyOutput>> {
    let bucket = &req.input.bucket;
    let settings = handler.store.buckets().settings(bucket).map_err(store_error)?;
    let set = settings.document(BucketDocument::Policy).map(str::to_owned);
    let policy = set.or_else(|| handler.judge.configured_policy(bucket)).ok_or_else(no_policy)?;
    Ok(S3Response::new(GetBucketPolicyOutput { policy: Some(policy) }))
}

pub(crate) async fn status(
    handler: &Handler,
    req: S3Request<GetBucketPolicyStatusInput>,
) -> S3Result<S3Response<GetBucketPolicyStatusOutput>> {
    let is_public = handler.judge.is_public(&req.input.bucket)?.ok_or_else(no_policy)?;
    let status = PolicyStatus { is_public: Some(is_public) };
    Ok(S3Response::new(GetBucketPolicyStatusOutput { policy_status: Some(status) }))
}

pub(crate) async fn delete(
    handler: &Handler,
    req: S3Request<DeleteBucketPolicyInput>,
) -> S3Result<S3Response<DeleteBucketPolicyOutput>> {
    handler.set_document(&req.input.bucket, BucketDocument::Policy, None).await?;
    Ok(S3Response::with_status(DeleteBucketPolicyOutput::default(), http::StatusCode::NO_CONTENT))
}

pub(crate) async fn put_block(
    handler: &Handler,
    req: S3Request<PutPublicAccessBlockInput>,
) -> S3Result<S3Response<PutPublicAccessBlockOutput>> {
    let document = PublicBlock::from(req.input.public_access_block_configuration).document()?;
    handler.set_document(&req.input.bucket, BucketDocument::PublicAccessBlock, Some(document)).await?;
    Ok(S3Response::new(PutPublicAccessBlockOutput::default()))
}

pub(crate) async fn get_block(
    handler: &Handler,
    req: S3Request<GetPublicAccessBlockInput>,
) -> S3Result<S3Response<GetPublicAccessBlockOutput>> {
    let settings = handler.store.buckets().settings(&req.input.bucket).map_err(store_error)?;
    let block = PublicBlock::of(&settings)?.ok_or_else(|| {
        custom(
            "NoSuchPublicAccessBlockConfiguration",
            http::StatusCode::NOT_FOUND,
            "The public access block configuration was not found",
        )
    })?;
    Ok(S3Response::new(GetPublicAccessBlockOutput { public_access_block_configuration: Some(block.into()) }))
}

pub(crate) async fn delete_block(
    handler: &Handler,
    req: S3Request<DeletePublicAccessBlockInput>,
) -> S3Result<S3Response<DeletePublicAccessBlockOutput>> {
    handler.set_document(&req.input.bucket, BucketDocument::PublicAccessBlock, None).await?;
    Ok(S3Response::with_status(DeletePublicAccessBlockOutput::default(), http::StatusCode::NO_CONTENT))
}
