//! Deletes.

use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use steadfast_access::S3Action;
use steadfast_log::Durability;

use crate::conditions::{durability, only_null_version, write_condition};
use crate::error::store_error;
use crate::handler::{Handler, cause, context, durable_header, request_parts};
use crate::ops::write::conditional_error;
use crate::rights::action;

/// S3's limit on the keys of one request.
const KEYS_MAX: usize = 1000;
/// Keys that are judged before other requests have their turn.
const KEYS_AT_ONCE: usize = 64;

const DELETE_OBJECT: S3Action = action("DeleteObject");
const DELETE_VERSION: S3Action = action("DeleteObjectVersion");

pub(crate) async fn one(
    handler: &Handler,
    req: S3Request<DeleteObjectInput>,
) -> S3Result<S3Response<DeleteObjectOutput>> {
    let durability = durability(&req.headers)?;
    let cause = cause(context(&req).as_ref())?;
    let input = req.input;
    only_null_version(input.version_id.as_deref())?;
    if input.if_match_last_modified_time.is_some() || input.if_match_size.is_some() {
        return Err(s3_error!(
            NotImplemented,
            "A header you provided implies functionality that is not implemented: conditions on time and size of what is deleted."
        ));
    }
    let condition = write_condition((&handler.store, &input.bucket, &input.key), input.if_match.as_ref(), None)?;
    let matching = input.if_match.is_some();
    let written = handler
        .store
        .at(&input.bucket, &input.key)
        .caused_by(&cause)
        .delete(condition, durability)
        .await
        .map_err(|error| conditional_error(handler, error, matching, &input.bucket, &input.key))?;
    let mut response = S3Response::with_headers(DeleteObjectOutput::default(), durable_header(written.durable));
    response.status = Some(http::StatusCode::NO_CONTENT);
    Ok(response)
}

pub(crate) async fn many(
    handler: &Handler,
    req: S3Request<DeleteObjectsInput>,
) -> S3Result<S3Response<DeleteObjectsOutput>> {
    let context = context(&req);
    let requested = durability(&req.headers)?;
    let cause = cause(context.as_ref())?;
    let input = req.input;
    let parts = request_parts(context.as_ref(), &req.uri, &req.headers)?;
    let info = handler.store.buckets().get(&input.bucket).map_err(store_error)?;
    let objects = input.delete.objects;
    if objects.is_empty() || objects.len() > KEYS_MAX {
        return Err(s3_error!(
            MalformedXML,
            "The XML you provided was not well-formed or did not validate against our published schema"
        ));
    }
    let mut errors = Vec::new();
    let mut keys = Vec::with_capacity(objects.len());
    let mut versions = Vec::with_capacity(objects.len());
    for (number, object) in objects.into_iter().enumerate() {
        if number % KEYS_AT_ONCE == KEYS_AT_ONCE - 1 {
            tokio::task::yield_now().await;
        }
        let conditional = object.e_tag.is_some() || object.last_modified_time.is_some() || object.size.is_some();
        if conditional {
            errors.push(refused(object, S3ErrorCode::NotImplemented, "Conditions on deletes in bulk are not offered."));
        } else if let Err(error) = only_null_version(object.version_id.as_deref()) {
            errors.push(refused(object, error.code().clone(), error.message().unwrap_or_default()));
        } else if object.key.is_empty() || object.key.len() > 1024 {
            errors.push(refused(object, S3ErrorCode::KeyTooLongError, "Your key is empty or too long."));
        } else {
            let facts = handler.judge.facts(parts, &input.bucket, Some(&object.key));
            let facts = facts.with_version(object.version_id.as_deref());
            match handler.judge.check_either(DELETE_OBJECT, DELETE_VERSION, facts) {
                Ok(()) => {
                    keys.push(object.key);
                    versions.push(object.version_id);
                }
                Err(error) => {
                    errors.push(refused(object, error.code().clone(), error.message().unwrap_or_default()));
                }
            }
        }
    }
    let results = handler.store.contents(&input.bucket).caused_by(&cause).delete(keys.clone(), requested).await;
    let mut deleted = Vec::new();
    for ((key, version_id), result) in keys.into_iter().zip(versions).zip(results) {
        match result {
            Ok(()) => deleted.push(DeletedObject { key: Some(key), version_id, ..DeletedObject::default() }),
            Err(error) => {
                let error = store_error(error);
                errors.push(Error {
                    code: Some(error.code().as_str().to_owned()),
                    key: Some(key),
                    message: error.message().map(str::to_owned),
                    version_id,
                });
            }
        }
    }
    let quiet = input.delete.quiet.unwrap_or(false);
    let output = DeleteObjectsOutput {
        deleted: (!quiet).then_some(deleted),
        errors: (!errors.is_empty()).then_some(errors),
        request_charged: None,
    };
    let durable = requested.unwrap_or(info.settings.durability) == Durability::Sync;
    Ok(S3Response::with_headers(output, durable_header(durable)))
}

fn refused(object: ObjectIdentifier, code: S3ErrorCode, message: &str) -> Error {
    Error {
        code: Some(code.as_str().to_owned()),
        key: Some(object.key),
        message: Some(message.to_owned()),
        version_id: object.version_id,
    }
}
