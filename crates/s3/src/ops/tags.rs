//! Tags of objects and buckets.

use std::collections::BTreeMap;

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};
use steadfast_access::S3Action;
use steadfast_store::BucketDocument;

use crate::attributes::{TAGS_MAX, check_tags};
use crate::conditions::only_null_version;
use crate::error::{custom, store_error};
use crate::handler::{Handler, context, durable_header, request_parts};
use crate::rights::action;

/// Tags of a bucket, at most.
const BUCKET_TAGS_MAX: usize = 50;

const PUT_TAGS: S3Action = action("PutObjectTagging");
const PUT_VERSION_TAGS: S3Action = action("PutObjectVersionTagging");

fn tag_set_of(tags: BTreeMap<String, String>) -> Vec<Tag> {
    tags.into_iter().map(|(key, value)| Tag { key: Some(key), value: Some(value) }).collect()
}

/// The document of a bucket's tags.
pub(crate) fn bucket_document(tags: Vec<Tag>) -> S3Result<String> {
    let tags = check_tags(pairs_of(tags), BUCKET_TAGS_MAX)?;
    serde_json::to_string(&tags).map_err(|e| s3_error!(InternalError, "{}", e))
}

fn pairs_of(tags: Vec<Tag>) -> Vec<(String, String)> {
    tags.into_iter().map(|t| (t.key.unwrap_or_default(), t.value.unwrap_or_default())).collect()
}

pub(crate) async fn get(
    handler: &Handler,
    req: S3Request<GetObjectTaggingInput>,
) -> S3Result<S3Response<GetObjectTaggingOutput>> {
    only_null_version(req.input.version_id.as_deref())?;
    let info = handler.store.at(&req.input.bucket, &req.input.key).info().map_err(store_error)?;
    Ok(S3Response::new(GetObjectTaggingOutput { tag_set: tag_set_of(info.attributes.tags), version_id: None }))
}

pub(crate) async fn put(
    handler: &Handler,
    req: S3Request<PutObjectTaggingInput>,
) -> S3Result<S3Response<PutObjectTaggingOutput>> {
    let context = context(&req);
    let input = req.input;
    let parts = request_parts(context.as_ref(), &req.uri, &req.headers)?;
    only_null_version(input.version_id.as_deref())?;
    let tags = check_tags(pairs_of(input.tagging.tag_set), TAGS_MAX)?;
    let facts = handler.judge.facts(parts, &input.bucket, Some(&input.key)).with_tags(&tags);
    handler.judge.hide_absence(&facts)?;
    handler.judge.check_either(PUT_TAGS, PUT_VERSION_TAGS, facts)?;
    let written = handler.store.at(&input.bucket, &input.key).set_tags(tags).await.map_err(store_error)?;
    Ok(S3Response::with_headers(PutObjectTaggingOutput::default(), durable_header(written.durable)))
}

pub(crate) async fn delete(
    handler: &Handler,
    req: S3Request<DeleteObjectTaggingInput>,
) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
    let input = req.input;
    only_null_version(input.version_id.as_deref())?;
    let written = handler.store.at(&input.bucket, &input.key).set_tags(BTreeMap::new()).await.map_err(store_error)?;
    let mut response = S3Response::with_headers(DeleteObjectTaggingOutput::default(), durable_header(written.durable));
    response.status = Some(http::StatusCode::NO_CONTENT);
    Ok(response)
}

pub(crate) async fn get_of_bucket(
    handler: &Handler,
    req: S3Request<GetBucketTaggingInput>,
) -> S3Result<S3Response<GetBucketTaggingOutput>> {
    let info = handler.store.buckets().get(&req.input.bucket).map_err(store_error)?;
    let Some(document) = info.settings.document(BucketDocument::Tagging) else {
        return Err(custom("NoSuchTagSet", http::StatusCode::NOT_FOUND, "The TagSet does not exist"));
    };
    let tags = serde_json::from_str(document);
    let tags = tags.map_err(|e| s3_error!(InternalError, "The tags of the bucket cannot be read: {}", e))?;
    Ok(S3Response::new(GetBucketTaggingOutput { tag_set: tag_set_of(tags) }))
}

pub(crate) async fn put_of_bucket(
    handler: &Handler,
    req: S3Request<PutBucketTaggingInput>,
) -> S3Result<S3Response<PutBucketTaggingOutput>> {
    let document = bucket_document(req.input.tagging.tag_set)?;
    handler.set_document(&req.input.bucket, BucketDocument::Tagging, Some(document)).await?;
    Ok(S3Response::with_status(PutBucketTaggingOutput::default(), http::StatusCode::NO_CONTENT))
}

pub(crate) async fn delete_of_bucket(
    handler: &Handler,
    req: S3Request<DeleteBucketTaggingInput>,
) -> S3Result<S3Response<DeleteBucketTaggingOutput>> {
    handler.set_document(&req.input.bucket, BucketDocument::Tagging, None).await?;
    Ok(S3Response::with_status(DeleteBucketTaggingOutput::default(), http::StatusCode::NO_CONTENT))
}
