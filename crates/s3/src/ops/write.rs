//! Writes of objects and parts.

use std::sync::Arc;

use http::HeaderMap;
use s3s::dto::*;
use s3s::{S3Error, S3Request, S3Response, S3Result, TrailingHeaders, s3_error};
use steadfast_flow::stages;
use steadfast_store::{Attributes, ObjectWriter};

use crate::attributes::{described, refuse_unsupported};
use crate::checksum::{FULL_OBJECT, algorithm_of, set_checksums};
use crate::conditions::{durability, etag, write_condition};
use crate::context::RequestContext;
use crate::error::{custom, invalid_argument, invalid_request, store_error};
use crate::handler::{Handler, cause, context, durable_header};
use crate::ops::acl::{self, given_list};
use crate::receive::{Received, Wanted, receive};

/// A body and the claims to be checked against it.
pub(crate) struct Intake {
    pub(crate) body: StreamingBlob,
    pub(crate) trailers: Option<TrailingHeaders>,
    pub(crate) wanted: Wanted,
    pub(crate) context: Option<Arc<RequestContext>>,
}

impl Handler {
    fn wanted(&self, headers: &HeaderMap, content_length: Option<i64>) -> S3Result<Wanted> {
        let length = match content_length {
            None => None,
            Some(n) => Some(u64::try_from(n).map_err(|_| invalid_argument("Content-Length is negative"))?),
        };
        Wanted::read(headers, length, self.options.etag, self.options.put_bytes_max)
    }

    /// Moves a body into a writer: inline if it is small, else on the compute threads.
    pub(crate) async fn take_in(&self, intake: Intake, mut writer: ObjectWriter) -> S3Result<(ObjectWriter, Received)> {
        let Intake { body, trailers, wanted, context } = intake;
        let env = self.env.clone();
        if wanted.length().is_some_and(|n| n <= self.options.inline_hash_bytes) {
            let received = receive(body, trailers, &mut writer, wanted, context.as_ref(), &env, None).await?;
            return Ok((writer, received));
        }
        let (mut tx, rx) = tokio::sync::oneshot::channel();
        let md5 = self.md5.clone();
        let stages = context.as_ref().and_then(|context| context.stages.clone());
        self.compute.spawn(
            "s3_body",
            stages::measured(stages, async move {
                let work = async {
                    let received =
                        receive(body, trailers, &mut writer, wanted, context.as_ref(), &env, Some(&md5)).await?;
                    Ok((writer, received))
                };
                let result = tokio::select! {
                    biased;
                    // The client has closed the connection, so the result has no receiver.
                    () = tx.closed() => return,
                    result = work => result,
                };
                let _ = tx.send(result);
            }),
        );
        rx.await.unwrap_or_else(|_| Err(s3_error!(InternalError, "The request body could not be processed.")))
    }
}

pub(crate) async fn put(
    handler: &Handler,
    mut req: S3Request<PutObjectInput>,
) -> S3Result<S3Response<PutObjectOutput>> {
    let context = context(&req);
    let durability = durability(&req.headers)?;
    let cause = cause(context.as_ref())?;
    let input = &mut req.input;
    refuse_unsupported!(input)?;
    if input.write_offset_bytes.is_some() {
        return Err(s3_error!(NotImplemented, "Appending to objects is not offered."));
    }
    let condition = write_condition(
        (&handler.store, &input.bucket, &input.key),
        input.if_match.as_ref(),
        input.if_none_match.as_ref(),
    )?;
    let mut attributes = described!(input).attributes()?;
    attributes.set_acl(acl::of_write(handler, &input.bucket, &given_list!(input))?);
    let wanted = handler.wanted(&req.headers, input.content_length)?;
    let (bucket, key) = (&input.bucket, &input.key);
    let writer = handler.store.at(bucket, key).caused_by(&cause).writer(wanted.length()).await.map_err(store_error)?;
    let body = input.body.take().unwrap_or_else(|| StreamingBlob::from(s3s::Body::empty()));
    let intake = Intake { body, trailers: req.trailing_headers.take(), wanted, context };
    let (writer, received) = handler.take_in(intake, writer).await?;

    attributes.etag = received.etag;
    if let Some((algorithm, value)) = received.checksum {
        attributes.checksums.insert(algorithm.name().to_owned(), value);
        attributes.checksum_type = FULL_OBJECT.to_owned();
    }
    let mut output = PutObjectOutput { e_tag: Some(etag(&attributes.etag)), ..PutObjectOutput::default() };
    set_checksums!(output, &attributes.checksums);
    output.checksum_type = checksum_type(&attributes);
    let matching = matches!(condition, steadfast_store::Condition::Matches(_));
    let written = writer
        .commit(attributes, condition, durability)
        .await
        .map_err(|error| conditional_error(handler, error, matching, bucket, key))?;
    Ok(S3Response::with_headers(output, durable_header(written.durable)))
}

/// `If-Match` on an absent object is a 404 in S3.
pub(crate) fn conditional_error(
    handler: &Handler,
    error: steadfast_store::StoreError,
    matching: bool,
    bucket: &str,
    key: &str,
) -> S3Error {
    use steadfast_store::StoreError;
    let absent = || matches!(handler.store.at(bucket, key).info(), Err(StoreError::NoSuchKey));
    if matching && matches!(error, StoreError::ConditionFailed) && absent() {
        return store_error(StoreError::NoSuchKey);
    }
    store_error(error)
}

pub(crate) fn checksum_type(attributes: &Attributes) -> Option<ChecksumType> {
    (!attributes.checksum_type.is_empty()).then(|| ChecksumType::from(attributes.checksum_type.clone()))
}

/// The number of a part, checked against S3's range.
pub(crate) fn part_number(number: i32) -> S3Result<u16> {
    match u16::try_from(number) {
        Ok(n @ 1..=10_000) => Ok(n),
        _ => Err(invalid_argument("Part number must be an integer between 1 and 10000, inclusive")),
    }
}

pub(crate) async fn put_part(
    handler: &Handler,
    mut req: S3Request<UploadPartInput>,
) -> S3Result<S3Response<UploadPartOutput>> {
    let context = context(&req);
    let durability = durability(&req.headers)?;
    let input = &mut req.input;
    if input.sse_customer_algorithm.is_some() || input.sse_customer_key.is_some() {
        return Err(s3_error!(NotImplemented, "Server-side encryption is not offered."));
    }
    let number = part_number(input.part_number)?;
    let (bucket, key, upload_id) = (&input.bucket, &input.key, &input.upload_id);
    let mut wanted = handler.wanted(&req.headers, input.content_length)?;
    let upload = handler.store.at(bucket, key).upload(upload_id).info().map_err(store_error)?;
    let agreed = algorithm_of(&upload.attributes.checksums);
    if let (Some(agreed), Some(given)) = (agreed, wanted.algorithm())
        && agreed != given
    {
        return Err(custom(
            "InvalidRequest",
            http::StatusCode::BAD_REQUEST,
            format!(
                "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
                agreed.name(),
                given.name()
            ),
        ));
    }
    wanted.or_algorithm(agreed);
    let writer =
        handler.store.at(bucket, key).upload(upload_id).writer(number, wanted.length()).await.map_err(store_error)?;
    let body = input.body.take().ok_or_else(|| invalid_request("a part needs a body"))?;
    let intake = Intake { body, trailers: req.trailing_headers.take(), wanted, context };
    let (writer, received) = handler.take_in(intake, writer).await?;
    let attributes = part_attributes(received);
    let mut output = UploadPartOutput { e_tag: Some(etag(&attributes.etag)), ..UploadPartOutput::default() };
    set_checksums!(output, &attributes.checksums);
    let written = writer.commit(attributes, steadfast_store::Condition::None, durability).await.map_err(store_error)?;
    Ok(S3Response::with_headers(output, durable_header(written.durable)))
}

/// The attributes that the store keeps of a part.
pub(crate) fn part_attributes(received: Received) -> Attributes {
    let mut attributes = Attributes { etag: received.etag, ..Attributes::default() };
    if let Some((algorithm, value)) = received.checksum {
        attributes.checksums.insert(algorithm.name().to_owned(), value);
    }
    attributes
}
