//! Reads of objects.

use std::ops::Range as Span;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http_body::Frame;
use http_body_util::StreamBody;
use s3s::dto::*;
use s3s::{Body, S3ErrorCode, S3Request, S3Response, S3Result, StdError};
use steadfast_access::S3Action;
use steadfast_edge::{EdgeError, HeadObject};
use steadfast_store::{ObjectInfo, PartInfo, StoreError};

use crate::attributes::{page_size, set_headers};
use crate::checksum::set_checksums;
use crate::conditions::{ReadConditions, if_range_holds, object_etag, only_null_version, timestamp};
use crate::error::{custom, edge_error, invalid_argument, invalid_request, not_satisfiable, store_error};
use crate::handler::{Handler, request_parts};
use crate::ops::source::{Source, wanted};
use crate::ops::write::{checksum_type, part_number};
use crate::rights::{RequestFacts, action};

const GET_TAGS: S3Action = action("GetObjectTagging");
/// The action of a read, and that of a read of a version.
const READ: (S3Action, S3Action) = (action("GetObject"), action("GetObjectVersion"));
/// The further action of a read of attributes, and the one of a version's.
const ATTRIBUTES_OF: (S3Action, S3Action) = (action("GetObjectAttributes"), action("GetObjectVersionAttributes"));
const TAGGING_COUNT: HeaderName = HeaderName::from_static("x-amz-tagging-count");

/// The bytes of an object that a request selects.
struct Selection {
    span: Span<u64>,
    /// Whether the answer is 206 with `Content-Range`.
    partial: bool,
    /// The selected part, where the object has parts.
    part: Option<PartInfo>,
}

fn select(size: u64, parts: &[PartInfo], range: Option<&Range>, part: Option<i32>) -> S3Result<Selection> {
    match (range, part) {
        (Some(_), Some(_)) => Err(invalid_request("Cannot specify both Range header and partNumber query parameter")),
        (None, None) => Ok(Selection { span: 0..size, partial: false, part: None }),
        (Some(range), None) => match range.check(size) {
            Ok(span) if !span.is_empty() => Ok(Selection { span, partial: true, part: None }),
            _ => Err(not_satisfiable(size)),
        },
        (None, Some(number)) => {
            let number = part_number(number)?;
            if parts.is_empty() && number == 1 {
                return Ok(Selection { span: 0..size, partial: size > 0, part: None });
            }
            let mut start = 0;
            for p in parts {
                if p.number == number {
                    let span = start..start + p.size;
                    return Ok(Selection { partial: !span.is_empty(), span, part: Some(p.clone()) });
                }
                start += p.size;
            }
            Err(custom(
                "InvalidPartNumber",
                http::StatusCode::RANGE_NOT_SATISFIABLE,
                "The requested partnumber is not satisfiable",
            ))
        }
    }
}

/// Fills the fields that the outputs of GET and HEAD have in common.
macro_rules! describe_object {
    ($output:expr, $info:expr, $selection:expr, $checksums:expr) => {{
        let (info, selection): (&ObjectInfo, &Selection) = ($info, $selection);
        set_headers!($output, &info.attributes);
        $output.accept_ranges = Some("bytes".to_owned());
        $output.content_length = Some(length(&selection.span));
        $output.e_tag = Some(object_etag(&info.attributes));
        $output.last_modified = Some(timestamp(info.modified_ms));
        if selection.partial {
            let Span { start, end } = selection.span;
            $output.content_range = Some(format!("bytes {start}-{}/{}", end - 1, info.size));
        }
        if selection.part.is_some() {
            $output.parts_count = Some(i32::from(info.part_count));
        }
        if $checksums {
            if let Some(part) = &selection.part {
                set_checksums!($output, &part.attributes.checksums);
                $output.checksum_type = checksum_type(&info.attributes);
            } else if selection.span.end - selection.span.start == info.size {
                set_checksums!($output, &info.attributes.checksums);
                $output.checksum_type = checksum_type(&info.attributes);
            }
        }
    }};
}

/// The range that applies. Without the object of its `If-Range`, a request gets the whole object.
fn range<'a>(headers: &HeaderMap, info: &ObjectInfo, given: &'a Option<Range>) -> Option<&'a Range> {
    given.as_ref().filter(|_| if_range_holds(headers, info))
}

fn length(span: &Span<u64>) -> i64 {
    i64::try_from(span.end - span.start).unwrap_or(i64::MAX)
}

/// The conditions that an input sets on its object.
macro_rules! read_conditions {
    ($input:expr) => {
        ReadConditions {
            if_match: $input.if_match.as_ref(),
            if_none_match: $input.if_none_match.as_ref(),
            if_modified_since: $input.if_modified_since.as_ref(),
            if_unmodified_since: $input.if_unmodified_since.as_ref(),
        }
    };
}

pub(crate) async fn get(handler: &Handler, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
    let input = req.input;
    only_null_version(input.version_id.as_deref())?;
    let conditions = read_conditions!(input);
    // A reader reads a small object at once. A request that the index already refuses needs no
    // reader. What came from an origin may be stale.
    let judge_opened = |info: &ObjectInfo| {
        let parts = request_parts(req.extensions.get(), &req.uri, &req.headers)?;
        let facts = handler.judge.facts(parts, &input.bucket, Some(&input.key));
        handler.judge.check_opened(READ, facts, &info.attributes)
    };
    let selects = conditions.any() || input.range.is_some() || input.part_number.is_some();
    if selects && handler.edge_of(&input.bucket).is_none() {
        let info = handler.store.at(&input.bucket, &input.key).info().map_err(store_error)?;
        judge_opened(&info)?;
        conditions.check(&info)?;
        if input.part_number.is_none() || info.part_count == 0 {
            select(info.size, &[], range(&req.headers, &info, &input.range), input.part_number)?;
        }
    }
    let wanted = wanted(&req.headers, req.extensions.get(), input.range.as_ref());
    for _ in 0..OPENS {
        let (source, headers) = Source::open(handler, &input.bucket, &input.key, &wanted).await?;
        let info = source.info().clone();
        // Another request may have replaced the object since the first check.
        judge_opened(&info)?;
        conditions.check(&info)?;
        let selection = match &source {
            Source::Passed(passed) => {
                let (span, partial) = passed.span();
                Selection { span, partial, part: None }
            }
            _ => {
                let range = range(&req.headers, &info, &input.range);
                select(info.size, source.parts(), range, input.part_number)?
            }
        };
        let mut output = GetObjectOutput::default();
        let checksums = input.checksum_mode.as_ref().is_some_and(|m| m.as_str() == ChecksumMode::ENABLED);
        describe_object!(output, &info, &selection, checksums);
        if !info.attributes.tags.is_empty() {
            let parts = request_parts(req.extensions.get(), &req.uri, &req.headers)?;
            let count = tag_count(handler, handler.judge.facts(parts, &input.bucket, Some(&input.key)), &info)?;
            output.tag_count = count.and_then(|count| i32::try_from(count).ok());
        }
        if matches!(&source, Source::Passed(passed) if passed.length().is_none()) {
            output.content_length = None;
        }
        let bytes = selection.span.end - selection.span.start;
        let body = match body(source, selection.span).await {
            Ok(body) => body,
            // Before the first byte, the new version may take its place.
            Err(EdgeError::Changed) => continue,
            Err(error) => return Err(edge_error(error)),
        };
        if let Some(edge) = handler.edge_of(&input.bucket) {
            edge.served(&input.bucket, bytes);
        }
        output.body = Some(StreamingBlob::from(body));
        let mut response = S3Response::new(output);
        response.headers = headers;
        return Ok(response);
    }
    Err(edge_error(EdgeError::Changed))
}

/// The number of tags of an object; `None` if the caller may not read them.
fn tag_count(handler: &Handler, facts: RequestFacts<'_>, info: &ObjectInfo) -> S3Result<Option<usize>> {
    match handler.judge.check(GET_TAGS, facts.with_object(&info.attributes)) {
        Ok(()) => Ok(Some(info.attributes.tags.len())),
        Err(error) if *error.code() == S3ErrorCode::AccessDenied => Ok(None),
        Err(error) => Err(error),
    }
}

/// How often a read begins again when the object changed before its first byte.
const OPENS: u32 = 4;

/// The body of a response. It reads the first piece before the answer begins, so that damage there
/// becomes an S3 error. Later, the server can only break the connection off.
///
/// # Errors
/// [`EdgeError::Changed`] if the object has to be opened again.
async fn body(source: Source, span: Span<u64>) -> Result<Body, EdgeError> {
    // An answer that is passed through may have no length.
    let known = !matches!(&source, Source::Passed(passed) if passed.length().is_none());
    let size = if known { span.end - span.start } else { u64::MAX };
    if size == 0 {
        return Ok(Body::empty());
    }
    let mut pieces = source.stream(span);
    let first = match pieces.next().await {
        Some(first) => first?,
        None if !known => return Ok(Body::empty()),
        None => return Err(StoreError::Index("the object's data ended early".into()).into()),
    };
    if first.len() as u64 == size {
        return Ok(Body::from(first));
    }
    let rest = stream::once(async { Ok(first) }).chain(pieces);
    // The stream never ends cleanly with fewer bytes than announced, and never sends more.
    let checked = stream::unfold((Box::pin(rest), size), move |(mut rest, left)| async move {
        if left == 0 {
            return None;
        }
        let piece: Result<Frame<Bytes>, StdError> = match rest.next().await {
            Some(Ok(piece)) if piece.len() as u64 <= left => {
                let left = left - piece.len() as u64;
                return Some((Ok(Frame::data(piece)), (rest, left)));
            }
            Some(Ok(_)) => Err("the object's data is longer than the object".into()),
            Some(Err(error)) => Err(Box::new(error)),
            None if !known => return None,
            None => Err("the object's data ended early".into()),
        };
        Some((piece, (rest, 0)))
    });
    Ok(Body::http_body_unsync(StreamBody::new(Box::pin(checked))))
}

pub(crate) async fn head(handler: &Handler, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
    let input = req.input;
    only_null_version(input.version_id.as_deref())?;
    let conditions = read_conditions!(input);
    let (HeadObject { mut info, has_length }, headers) =
        handler.describe(&input.bucket, &input.key, req.extensions.get()).await?;
    let judge_opened = |info: &ObjectInfo| {
        let parts = request_parts(req.extensions.get(), &req.uri, &req.headers)?;
        let facts = handler.judge.facts(parts, &input.bucket, Some(&input.key));
        handler.judge.check_opened(READ, facts, &info.attributes)
    };
    judge_opened(&info)?;
    conditions.check(&info)?;
    let mut parts = Vec::new();
    if input.part_number.is_some() && info.part_count > 0 {
        let reader = handler.store.at(&input.bucket, &input.key).reader().await.map_err(store_error)?;
        // Another request may have replaced the object since the first check.
        judge_opened(reader.info())?;
        conditions.check(reader.info())?;
        (info, parts) = (reader.info().clone(), reader.parts().to_vec());
    }
    // Nothing can be selected of an object whose length is not known.
    let range = range(&req.headers, &info, &input.range).filter(|_| has_length);
    let selection = select(info.size, &parts, range, input.part_number)?;
    let mut output = HeadObjectOutput::default();
    let checksums = input.checksum_mode.is_some_and(|m| m.as_str() == ChecksumMode::ENABLED);
    describe_object!(output, &info, &selection, checksums);
    output.content_length = output.content_length.filter(|_| has_length);
    let mut response = S3Response::new(output);
    response.headers = headers;
    if !info.attributes.tags.is_empty() {
        let parts = request_parts(req.extensions.get(), &req.uri, &req.headers)?;
        let count = tag_count(handler, handler.judge.facts(parts, &input.bucket, Some(&input.key)), &info)?;
        response.headers.extend(count.map(|count| (TAGGING_COUNT, HeaderValue::from(count))));
    }
    override_headers(
        &mut response.headers,
        &[
            ("content-type", input.response_content_type.as_deref()),
            ("content-language", input.response_content_language.as_deref()),
            ("cache-control", input.response_cache_control.as_deref()),
            ("content-disposition", input.response_content_disposition.as_deref()),
            ("content-encoding", input.response_content_encoding.as_deref()),
        ],
    )?;
    Ok(response)
}

/// Applies the `response-*` parameters (for GET, `s3s` does it).
fn override_headers(headers: &mut HeaderMap, overrides: &[(&'static str, Option<&str>)]) -> S3Result<()> {
    for (name, value) in overrides {
        if let Some(value) = value {
            let value =
                HeaderValue::from_str(value).map_err(|_| invalid_request(format!("invalid value for {name}")))?;
            headers.insert(*name, value);
        }
    }
    Ok(())
}

/// The attributes that GetObjectAttributes knows.
const ATTRIBUTES: [&str; 5] = [
    ObjectAttributes::CHECKSUM,
    ObjectAttributes::ETAG,
    ObjectAttributes::OBJECT_PARTS,
    ObjectAttributes::OBJECT_SIZE,
    ObjectAttributes::STORAGE_CLASS,
];

pub(crate) async fn attributes(
    handler: &Handler,
    req: S3Request<GetObjectAttributesInput>,
) -> S3Result<S3Response<GetObjectAttributesOutput>> {
    let input = req.input;
    only_null_version(input.version_id.as_deref())?;
    let mut info = handler.store.at(&input.bucket, &input.key).info().map_err(store_error)?;
    let judge_opened = |info: &ObjectInfo| {
        let parts = request_parts(req.extensions.get(), &req.uri, &req.headers)?;
        let facts = || handler.judge.facts(parts, &input.bucket, Some(&input.key));
        handler.judge.check_opened(ATTRIBUTES_OF, facts(), &info.attributes)?;
        handler.judge.check_opened(READ, facts(), &info.attributes)
    };
    judge_opened(&info)?;
    let named = || input.object_attributes.iter().flat_map(|a| a.as_str().split(',')).map(str::trim);
    if named().next().is_none() || !named().all(|name| ATTRIBUTES.contains(&name)) {
        return Err(invalid_argument("Invalid attribute name specified."));
    }
    let wants = |name: &str| named().any(|named| named == name);
    let mut parts = Vec::new();
    if wants(ObjectAttributes::OBJECT_PARTS) && info.part_count > 0 {
        let reader = handler.store.at(&input.bucket, &input.key).reader().await.map_err(store_error)?;
        (info, parts) = (reader.info().clone(), reader.parts().to_vec());
        judge_opened(&info)?;
    }
    let mut output =
        GetObjectAttributesOutput { last_modified: Some(timestamp(info.modified_ms)), ..Default::default() };
    if wants(ObjectAttributes::ETAG) {
        output.e_tag = Some(object_etag(&info.attributes));
    }
    if wants(ObjectAttributes::OBJECT_SIZE) {
        output.object_size = Some(length(&(0..info.size)));
    }
    if wants(ObjectAttributes::STORAGE_CLASS) {
        output.storage_class = Some(StorageClass::from_static(StorageClass::STANDARD));
    }
    if wants(ObjectAttributes::CHECKSUM) && !info.attributes.checksums.is_empty() {
        let mut checksum = Checksum::default();
        set_checksums!(checksum, &info.attributes.checksums);
        checksum.checksum_type = checksum_type(&info.attributes);
        output.checksum = Some(checksum);
    }
    if !parts.is_empty() {
        let limit = page_size(input.max_parts, 1000, "max-parts")?;
        let after = input.part_number_marker.unwrap_or(0);
        let mut rest = parts.iter().filter(|p| i32::from(p.number) > after);
        let page: Vec<ObjectPart> = rest
            .by_ref()
            .take(limit as usize)
            .map(|p| {
                let mut part = ObjectPart {
                    part_number: Some(i32::from(p.number)),
                    size: Some(length(&(0..p.size))),
                    ..ObjectPart::default()
                };
                set_checksums!(part, &p.attributes.checksums);
                part
            })
            .collect();
        output.object_parts = Some(GetObjectAttributesParts {
            is_truncated: Some(rest.next().is_some()),
            max_parts: Some(limit),
            next_part_number_marker: page.last().and_then(|p| p.part_number),
            part_number_marker: Some(after),
            parts: Some(page),
            total_parts_count: i32::try_from(parts.len()).ok(),
        });
    }
    Ok(S3Response::new(output))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(range: Option<&str>, part: Option<i32>, size: u64, parts: &[u64]) -> Result<(u64, u64, bool), String> {
        let range = range.map(|r| Range::parse(r).unwrap());
        let parts: Vec<PartInfo> = parts
            .iter()
            .zip([1, 2, 5])
            .map(|(size, number)| PartInfo {
                number,
                size: *size,
                modified_ms: 0,
                attributes: steadfast_store::Attributes::default(),
            })
            .collect();
        select(size, &parts, range.as_ref(), part)
            .map(|s| (s.span.start, s.span.end, s.partial))
            .map_err(|e| e.code().as_str().to_owned())
    }

    #[test]
    fn selections() {
        assert_eq!(selected(None, None, 10, &[]), Ok((0, 10, false)));
        assert_eq!(selected(Some("bytes=2-4"), None, 10, &[]), Ok((2, 5, true)));
        assert_eq!(selected(Some("bytes=2-"), None, 10, &[]), Ok((2, 10, true)));
        assert_eq!(selected(Some("bytes=-3"), None, 10, &[]), Ok((7, 10, true)));
        assert_eq!(selected(Some("bytes=-30"), None, 10, &[]), Ok((0, 10, true)));
        assert_eq!(selected(Some("bytes=8-30"), None, 10, &[]), Ok((8, 10, true)));
        assert_eq!(selected(Some("bytes=10-"), None, 10, &[]), Err("InvalidRange".into()));
        assert_eq!(selected(Some("bytes=-5"), None, 0, &[]), Err("InvalidRange".into()));
        assert_eq!(selected(None, Some(1), 10, &[]), Ok((0, 10, true)));
        assert_eq!(selected(None, Some(2), 10, &[]), Err("InvalidPartNumber".into()));
        assert_eq!(selected(None, Some(5), 10, &[4, 4, 2]), Ok((8, 10, true)));
        assert_eq!(selected(None, Some(3), 10, &[4, 4, 2]), Err("InvalidPartNumber".into()));
        assert_eq!(selected(Some("bytes=0-1"), Some(1), 10, &[]), Err("InvalidRequest".into()));
    }
}
