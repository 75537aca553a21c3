//! The ownership controls of a bucket.

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};
use steadfast_store::BucketDocument;

use crate::error::store_error;
use crate::handler::Handler;
use crate::rights::{BucketLists, Ownership};

pub(crate) async fn put(
    handler: &Handler,
    req: S3Request<PutBucketOwnershipControlsInput>,
) -> S3Result<S3Response<PutBucketOwnershipControlsOutput>> {
    let input = req.input;
    let [rule] = input.ownership_controls.rules.as_slice() else {
        return Err(s3_error!(MalformedXML, "Ownership controls have one rule"));
    };
    let ownership = Ownership::parse(rule.object_ownership.as_str())
        .map_err(|_| s3_error!(MalformedXML, "The rule has no object ownership of S3"))?;
    let settings = handler.store.buckets().settings(&input.bucket).map_err(store_error)?;
    ownership.check(&BucketLists::of(&settings)?.own)?;
    handler.set_document(&input.bucket, BucketDocument::Ownership, Some(ownership.name().to_owned())).await?;
    Ok(S3Response::new(PutBucketOwnershipControlsOutput::default()))
}

pub(crate) async fn get(
    handler: &Handler,
    req: S3Request<GetBucketOwnershipControlsInput>,
) -> S3Result<S3Response<GetBucketOwnershipControlsOutput>> {
    let settings = handler.store.buckets().settings(&req.input.bucket).map_err(store_error)?;
    let ownership = Ownership::of(&settings)?
        .ok_or_else(|| s3_error!(OwnershipControlsNotFoundError, "The bucket ownership controls were not found"))?;
    let rule = OwnershipControlsRule { object_ownership: ObjectOwnership::from_static(ownership.name()) };
    let controls = OwnershipControls { rules: vec![rule] };
    Ok(S3Response::new(GetBucketOwnershipControlsOutput { ownership_controls: Some(controls) }))
}

pub(crate) async fn delete(
    handler: &Handler,
    req: S3Request<DeleteBucketOwnershipControlsInput>,
) -> S3Result<S3Response<DeleteBucketOwnershipControlsOutput>> {
    handler.set_document(&req.input.bucket, BucketDocument::Ownership, None).await?;
    Ok(S3Response::with_status(DeleteBucketOwnershipControlsOutput::default(), http::StatusCode::NO_CONTENT))
}
