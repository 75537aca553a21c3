//! Copies within the server.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use s3s::dto::*;
use s3s::{S3Error, S3Request, S3Response, S3Result, StdError, s3_error};
use steadfast_access::S3Action;
use steadfast_store::{Attributes, Condition, ObjectInfo, ObjectReader, ObjectWriter, StoreError, WEAK_ETAG};

use crate::attributes::{described, refuse_unsupported};
use crate::checksum::{Algorithm, FULL_OBJECT, algorithm_of, set_checksums};
use crate::conditions::{ReadConditions, durability, etag, header_condition, only_null_version, timestamp};
use crate::context::RequestContext;
use crate::error::{invalid_argument, invalid_request, store_error};
use crate::handler::{Handler, cause, context, durable_header, request_parts};
use crate::ops::acl::{self, given_list};
use crate::ops::write::{Intake, conditional_error, part_attributes, part_number};
use crate::options::EtagKind;
use crate::receive::{Received, Wanted, opaque_etag};
use crate::rights::{RequestParts, action};

/// S3's limit on the bytes of one copy.
const COPY_BYTES_MAX: u64 = 5 << 30;
/// Attempts to copy an object to itself while other requests change it.
const SELF_COPY_TRIES: usize = 8;

const GET_OBJECT: S3Action = action("GetObject");
const GET_VERSION: S3Action = action("GetObjectVersion");
const GET_TAGS: S3Action = action("GetObjectTagging");
const PUT_OBJECT: S3Action = action("PutObject");
const PUT_TAGS: S3Action = action("PutObjectTagging");

/// The bucket and the key of the source of a copy, which the caller may read.
fn source<'a>(handler: &Handler, parts: RequestParts<'_>, source: &'a CopySource) -> S3Result<(&'a str, &'a str)> {
    match source {
        CopySource::Bucket { bucket, key, version_id } => {
            let facts = handler.judge.facts(parts, bucket, Some(key)).with_version(version_id.as_deref());
            handler.judge.hide_absence(&facts)?;
            handler.judge.check_either(GET_OBJECT, GET_VERSION, facts)?;
            only_null_version(version_id.as_deref())?;
            if handler.options.edge.as_ref().is_some_and(|edge| edge.has_origin(bucket)) {
                return Err(s3_error!(MethodNotAllowed, "Copies from a bucket with an origin are not supported."));
            }
            Ok((bucket, key))
        }
        _ => Err(invalid_argument("Copy Source must mention the source bucket and key: sourcebucket/sourcekey")),
    }
}

/// Judges the source again, by the object that was opened.
fn judge_opened(handler: &Handler, parts: RequestParts<'_>, source: &CopySource, info: &ObjectInfo) -> S3Result<()> {
    let CopySource::Bucket { bucket, key, version_id } = source else { return Ok(()) };
    let facts = handler.judge.facts(parts, bucket, Some(key)).with_version(version_id.as_deref());
    handler.judge.check_opened((GET_OBJECT, GET_VERSION), facts, &info.attributes)
}

/// Refuses a copy with the tags of its source, unless the caller may read and write them.
fn check_tags_taken(
    handler: &Handler,
    parts: RequestParts<'_>,
    (from, to): ((&str, &str), (&str, &str)),
    tags: &BTreeMap<String, String>,
) -> S3Result<()> {
    handler.judge.check(GET_TAGS, handler.judge.facts(parts, from.0, Some(from.1)))?;
    for action in [PUT_OBJECT, PUT_TAGS] {
        handler.judge.check(action, handler.judge.facts(parts, to.0, Some(to.1)).with_tags(tags))?;
    }
    Ok(())
}

/// The conditions that an input sets on its source.
macro_rules! source_conditions {
    ($input:expr) => {
        ReadConditions {
            if_match: $input.copy_source_if_match.as_ref(),
            if_none_match: $input.copy_source_if_none_match.as_ref(),
            if_modified_since: $input.copy_source_if_modified_since.as_ref(),
            if_unmodified_since: $input.copy_source_if_unmodified_since.as_ref(),
        }
    };
}

/// Refuses a copy of an object onto itself whose condition does not hold for the object.
fn check_holds(condition: &Condition, info: &ObjectInfo) -> S3Result<()> {
    match condition {
        Condition::None => Ok(()),
        Condition::Matches(etag) if etag == "*" || *etag == info.attributes.etag => Ok(()),
        Condition::Matches(_) | Condition::Absent => Err(store_error(StoreError::ConditionFailed)),
    }
}

fn too_large(info: &ObjectInfo) -> S3Result<()> {
    if info.size > COPY_BYTES_MAX {
        return Err(invalid_request(
            "The specified copy source is larger than the maximum allowable size for a copy source: 5368709120",
        ));
    }
    Ok(())
}

pub(crate) async fn copy(handler: &Handler, req: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
    let context = context(&req);
    let durability = durability(&req.headers)?;
    let parts = request_parts(context.as_ref(), &req.uri, &req.headers)?;
    let cause = cause(context.as_ref())?;
    let input = req.input;
    let condition = header_condition((&handler.store, &input.bucket, &input.key), &req.headers)?;
    let matching = matches!(condition, Condition::Matches(_));
    refuse_unsupported!(input)?;
    let from = source(handler, parts, &input.copy_source)?;
    let to = (input.bucket.as_str(), input.key.as_str());
    let replace = directive(input.metadata_directive.as_ref().map(MetadataDirective::as_str), "metadata")?;
    let replace_tags = directive(input.tagging_directive.as_ref().map(TaggingDirective::as_str), "tagging")?;
    let requested = input.checksum_algorithm.as_ref().map(|a| Algorithm::parse(a.as_str())).transpose()?;
    if from == to && !replace && !replace_tags && requested.is_none() {
        return Err(invalid_request(
            "This copy request is illegal because it is trying to copy an object to itself without changing the object's metadata, storage class, website redirect location or encryption attributes.",
        ));
    }
    let conditions = source_conditions!(input);
    let given = described!(input).attributes()?;
    let acl = acl::of_write(handler, &input.bucket, &given_list!(input))?;
    // The copy must take the object that was checked: one reader ensures it for another key, the
    // version for the same key.
    for _ in 0..SELF_COPY_TRIES {
        // A reader reads a small object at once. A request that the index already refuses needs no
        // reader.
        if conditions.any() {
            let info = handler.store.at(from.0, from.1).info().map_err(store_error)?;
            judge_opened(handler, parts, &input.copy_source, &info)?;
            conditions.check_source(&info)?;
        }
        let reader = handler.store.at(from.0, from.1).reader().await.map_err(store_error)?;
        let info = reader.info().clone();
        judge_opened(handler, parts, &input.copy_source, &info)?;
        conditions.check_source(&info)?;
        too_large(&info)?;
        let mut attributes = info.attributes.clone();
        if attributes.system.contains_key(WEAK_ETAG) {
            // Other versions may have the same weak tag.
            attributes.etag = opaque_etag(&handler.env);
        }
        attributes.forget_origin();
        if replace {
            attributes.system.clone_from(&given.system);
            attributes.user.clone_from(&given.user);
        }
        // A copy does not take the list of its source.
        attributes.set_acl(acl.clone());
        if replace_tags {
            attributes.tags.clone_from(&given.tags);
        } else if !attributes.tags.is_empty() {
            check_tags_taken(handler, parts, (from, to), &attributes.tags)?;
        }
        let mut result = CopyObjectResult { e_tag: Some(etag(&attributes.etag)), ..CopyObjectResult::default() };
        set_checksums!(result, &attributes.checksums);
        let unchanged = match from == to {
            true => {
                check_holds(&condition, &info)?;
                Condition::Matches(info.attributes.etag.clone())
            }
            false => condition.clone(),
        };
        let done = if let Some(algorithm) = requested.filter(|a| !has(&attributes, *a)) {
            let mut writer =
                handler.store.at(to.0, to.1).caused_by(&cause).writer(Some(info.size)).await.map_err(store_error)?;
            writer.is_a_copy();
            let mut wanted = Wanted::of_copy(info.size, EtagKind::Opaque);
            wanted.or_algorithm(Some(algorithm));
            let (writer, received) = read_in(handler, reader, 0..info.size, writer, wanted, context.clone()).await?;
            attributes.checksums = received.checksum.into_iter().map(|(a, v)| (a.name().to_owned(), v)).collect();
            attributes.checksum_type = FULL_OBJECT.to_owned();
            set_checksums!(result, &attributes.checksums);
            writer.commit(attributes, unchanged, durability).await
        } else if from == to {
            let home = handler.store.at(to.0, to.1).caused_by(&cause);
            home.copy_onto_itself(attributes, unchanged, Some(info.version), durability).await
        } else {
            handler.store.at(to.0, to.1).caused_by(&cause).copy_from(reader, attributes, unchanged, durability).await
        };
        match done {
            // Another request has changed the object since it was opened.
            Err(StoreError::ConditionFailed) if from == to => {}
            Err(error) => return Err(conditional_error(handler, error, matching, to.0, to.1)),
            Ok(written) => {
                result.last_modified = Some(timestamp(written.modified_ms));
                let output = CopyObjectOutput { copy_object_result: Some(result), ..CopyObjectOutput::default() };
                return Ok(S3Response::with_headers(output, durable_header(written.durable)));
            }
        }
    }
    Err(s3_error!(
        OperationAborted,
        "A conflicting conditional operation is currently in progress against this resource."
    ))
}

fn directive(value: Option<&str>, what: &str) -> S3Result<bool> {
    match value {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(_) => Err(invalid_argument(format!("Unknown {what} directive."))),
    }
}

/// Parses `bytes=first-last`; S3 requires both, within the source.
fn part_range(text: &str, size: u64) -> S3Result<std::ops::Range<u64>> {
    let wrong = || {
        invalid_argument(
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the zero-based offsets of the first and last bytes to copy",
        )
    };
    let Ok(Range::Int { first, last: Some(last) }) = Range::parse(text) else { return Err(wrong()) };
    if last >= size {
        return Err(s3_error!(InvalidRange, "Range specified is not valid for source object of size: {size}"));
    }
    Ok(first..last + 1)
}

pub(crate) async fn copy_part(
    handler: &Handler,
    req: S3Request<UploadPartCopyInput>,
) -> S3Result<S3Response<UploadPartCopyOutput>> {
    let context = context(&req);
    let durability = durability(&req.headers)?;
    let parts = request_parts(context.as_ref(), &req.uri, &req.headers)?;
    let input = req.input;
    if input.sse_customer_algorithm.is_some() || input.copy_source_sse_customer_algorithm.is_some() {
        return Err(s3_error!(NotImplemented, "Server-side encryption is not offered."));
    }
    let number = part_number(input.part_number)?;
    let from = source(handler, parts, &input.copy_source)?;
    let (bucket, key, upload_id) = (&input.bucket, &input.key, &input.upload_id);
    let upload = handler.store.at(bucket, key).upload(upload_id).info().map_err(store_error)?;
    let conditions = source_conditions!(input);
    let range_of = |info: &ObjectInfo| {
        judge_opened(handler, parts, &input.copy_source, info)?;
        conditions.check_source(info)?;
        input.copy_source_range.as_deref().map_or(Ok(0..info.size), |text| part_range(text, info.size))
    };
    range_of(&handler.store.at(from.0, from.1).info().map_err(store_error)?)?;
    let reader = handler.store.at(from.0, from.1).reader().await.map_err(store_error)?;
    let info = reader.info().clone();
    let range = range_of(&info)?;
    let size = range.end - range.start;
    if size > COPY_BYTES_MAX {
        return too_large(&info).and_then(|()| Err(invalid_request("the range is too large")));
    }
    let writer =
        handler.store.at(bucket, key).upload(upload_id).writer(number, Some(size)).await.map_err(store_error)?;
    let mut wanted = Wanted::of_copy(size, handler.options.etag);
    wanted.or_algorithm(algorithm_of(&upload.attributes.checksums));
    let (writer, received) = read_in(handler, reader, range, writer, wanted, context).await?;
    let attributes = part_attributes(received);
    let mut result = CopyPartResult { e_tag: Some(etag(&attributes.etag)), ..CopyPartResult::default() };
    set_checksums!(result, &attributes.checksums);
    let written = writer.commit(attributes, Condition::None, durability).await.map_err(store_error)?;
    result.last_modified = Some(timestamp(written.modified_ms));
    let output = UploadPartCopyOutput { copy_part_result: Some(result), ..UploadPartCopyOutput::default() };
    Ok(S3Response::with_headers(output, durable_header(written.durable)))
}

/// Copies a range of an object into a writer and computes the requested hashes.
async fn read_in(
    handler: &Handler,
    reader: ObjectReader,
    range: std::ops::Range<u64>,
    writer: ObjectWriter,
    wanted: Wanted,
    context: Option<Arc<RequestContext>>,
) -> S3Result<(ObjectWriter, Received)> {
    // `s3s` streams carry only the text of an error; this keeps the error of the source itself.
    let failure = Arc::new(parking_lot::Mutex::new(None));
    let seen = failure.clone();
    let pieces = reader.stream(range).map(move |piece| {
        piece.map_err(|error| {
            let text: StdError = error.to_string().into();
            *seen.lock() = Some(error);
            text
        })
    });
    let frames = pieces.map(|piece| piece.map(http_body::Frame::data));
    let body = s3s::Body::http_body_unsync(http_body_util::StreamBody::new(Box::pin(frames)));
    let intake = Intake { body: StreamingBlob::from(body), trailers: None, wanted, context };
    let taken = handler.take_in(intake, writer).await;
    taken.map_err(|error| source_failed(error, failure.lock().take()))
}

/// Whether the attributes have this checksum, of the whole object.
fn has(attributes: &Attributes, algorithm: Algorithm) -> bool {
    attributes.checksums.contains_key(algorithm.name()) && attributes.checksum_type == FULL_OBJECT
}

fn source_failed(error: S3Error, source: Option<StoreError>) -> S3Error {
    source.map_or(error, store_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_parts() {
        assert_eq!(part_range("bytes=0-9", 10).unwrap(), 0..10);
        for wrong in ["bytes=0-10", "bytes=-5", "bytes=3-", "bytes=5-3", "0-3"] {
            assert!(part_range(wrong, 10).is_err(), "{wrong}");
        }
    }
}
