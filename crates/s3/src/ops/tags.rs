//! Tags of objects.

use std::collections::BTreeMap;

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use crate::attributes::check_tags;
use crate::conditions::only_null_version;
use crate::error::store_error;
use crate::handler::{Handler, durable_header};

pub(crate) async fn get(
    handler: &Handler,
    req: S3Request<GetObjectTaggingInput>,
) -> S3Result<S3Response<GetObjectTaggingOutput>> {
    only_null_version(req.input.version_id.as_deref())?;
    let info = handler.store.at(&req.input.bucket, &req.input.key).info().map_err(store_error)?;
    let tag_set =
        info.attributes.tags.into_iter().map(|(key, value)| Tag { key: Some(key), value: Some(value) }).collect();
    Ok(S3Response::new(GetObjectTaggingOutput { tag_set, version_id: None }))
}

pub(crate) async fn put(
    handler: &Handler,
    req: S3Request<PutObjectTaggingInput>,
) -> S3Result<S3Response<PutObjectTaggingOutput>> {
    let input = req.input;
    only_null_version(input.version_id.as_deref())?;
    let pairs = input.tagging.tag_set.into_iter().map(|t| (t.key.unwrap_or_default(), t.value.unwrap_or_default()));
    let tags = check_tags(pairs.collect())?;
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
