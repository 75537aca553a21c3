//! Buckets.

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};
use steadfast_store::{BucketDocument, BucketSettings, StoreError};

use crate::attributes::page_size;
use crate::conditions::{durability, timestamp};
use crate::error::{invalid_request, store_error};
use crate::handler::{Handler, owner};
use crate::is_bucket_name;
use crate::ops::acl::given_list;
use crate::ops::tags::bucket_document;
use crate::rights::Ownership;

pub(crate) async fn create(
    handler: &Handler,
    req: S3Request<CreateBucketInput>,
) -> S3Result<S3Response<CreateBucketOutput>> {
    let requested = durability(&req.headers)?;
    let durability = requested.unwrap_or_default();
    if req.input.object_lock_enabled_for_bucket == Some(true) {
        return Err(invalid_request("Object Lock is not offered."));
    }
    let input = req.input;
    let given_list = given_list!(input, input.grant_write.as_ref()).read(handler)?;
    let gives_list = given_list.is_some();
    let list = given_list.unwrap_or_default();
    let ownership = input.object_ownership.as_ref().map(|name| Ownership::parse(name.as_str())).transpose()?;
    if let Some(ownership) = ownership {
        ownership.check(&list)?;
    }
    let name = input.bucket;
    if !is_bucket_name(&name) {
        return Err(s3_error!(InvalidBucketName, "The name {name} is reserved."));
    }
    let mut settings = BucketSettings { durability, ..BucketSettings::default() };
    settings.set_document(BucketDocument::Acl, list.text());
    settings.set_document(BucketDocument::Ownership, ownership.map(|ownership| ownership.name().to_owned()));
    let tags = input.create_bucket_configuration.and_then(|configuration| configuration.tags);
    if let Some(tags) = tags.filter(|tags| !tags.is_empty()) {
        settings.set_document(BucketDocument::Tagging, Some(bucket_document(tags)?));
    }
    let given = settings.clone();
    match handler.store.buckets().create(&name, settings).await {
        // In its first region, S3 answers so to the owner of the bucket.
        Err(StoreError::BucketExists) if handler.options.region == "us-east-1" => {
            let has = handler.store.buckets().get(&name).map_err(store_error)?.settings;
            let other = |kind| given.document(kind) != has.document(kind);
            if requested.is_some_and(|requested| requested != has.durability)
                || gives_list && other(BucketDocument::Acl)
                || ownership.is_some() && other(BucketDocument::Ownership)
            {
                return Err(store_error(StoreError::BucketExists));
            }
        }
        created => _ = created.map_err(store_error)?,
    }
    Ok(S3Response::new(CreateBucketOutput { bucket_arn: None, location: Some(format!("/{name}")) }))
}

pub(crate) async fn head(handler: &Handler, req: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
    handler.store.buckets().get(&req.input.bucket).map_err(store_error)?;
    Ok(S3Response::new(HeadBucketOutput {
        bucket_region: Some(handler.options.region.clone()),
        ..HeadBucketOutput::default()
    }))
}

pub(crate) async fn delete(
    handler: &Handler,
    req: S3Request<DeleteBucketInput>,
) -> S3Result<S3Response<DeleteBucketOutput>> {
    handler.store.buckets().delete(&req.input.bucket).await.map_err(store_error)?;
    Ok(S3Response::with_status(DeleteBucketOutput::default(), http::StatusCode::NO_CONTENT))
}

pub(crate) async fn list(
    handler: &Handler,
    req: S3Request<ListBucketsInput>,
) -> S3Result<S3Response<ListBucketsOutput>> {
    let input = req.input;
    let limit = page_size(input.max_buckets, 10_000, "max-buckets")? as usize;
    let after = input.continuation_token.unwrap_or_default();
    let prefix = input.prefix.clone().unwrap_or_default();
    let mut all = handler.store.buckets().all().map_err(store_error)?;
    all.retain(|b| b.name.starts_with(&prefix) && b.name > after);
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let more = all.len() > limit;
    all.truncate(limit);
    let next = all.last().filter(|_| more).map(|b| b.name.clone());
    let region = &handler.options.region;
    let buckets = all
        .into_iter()
        .map(|b| Bucket {
            bucket_arn: None,
            bucket_region: input.bucket_region.as_ref().map(|_| region.clone()),
            creation_date: Some(timestamp(b.created_ms)),
            name: Some(b.name),
        })
        .collect();
    Ok(S3Response::new(ListBucketsOutput {
        buckets: Some(buckets),
        continuation_token: next,
        owner: Some(owner()),
        prefix: input.prefix,
    }))
}

pub(crate) async fn location(
    handler: &Handler,
    req: S3Request<GetBucketLocationInput>,
) -> S3Result<S3Response<GetBucketLocationOutput>> {
    handler.store.buckets().get(&req.input.bucket).map_err(store_error)?;
    // S3 leaves the element empty for its first region, and clients recognise the region by that.
    let region = Some(handler.options.region.clone()).filter(|r| r != "us-east-1");
    Ok(S3Response::new(GetBucketLocationOutput { location_constraint: region.map(BucketLocationConstraint::from) }))
}

pub(crate) async fn versioning(
    handler: &Handler,
    req: S3Request<GetBucketVersioningInput>,
) -> S3Result<S3Response<GetBucketVersioningOutput>> {
    handler.store.buckets().get(&req.input.bucket).map_err(store_error)?;
    Ok(S3Response::new(GetBucketVersioningOutput::default()))
}
