//! The conditions of reads and writes.

use std::time::{Duration, UNIX_EPOCH};

use http::header::{HeaderName, IF_MATCH, IF_NONE_MATCH, IF_RANGE};
use http::{HeaderMap, HeaderValue};
use s3s::dto::{ETag, ETagCondition, Timestamp, TimestampFormat};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};
use steadfast_log::Durability;
use steadfast_store::{Attributes, Condition, ObjectInfo, Store, WEAK_ETAG};

use crate::error::invalid_argument;

/// A point of time, exact to the millisecond.
pub(crate) fn timestamp(ms: u64) -> Timestamp {
    Timestamp::from(UNIX_EPOCH + Duration::from_millis(ms))
}

/// An entity tag as S3 sends it.
pub(crate) fn etag(text: &str) -> ETag {
    ETag::Strong(text.to_owned())
}

/// The entity tag of an object. Only one from an origin can be weak.
pub(crate) fn object_etag(attributes: &Attributes) -> ETag {
    let text = attributes.etag.clone();
    if attributes.system.contains_key(WEAK_ETAG) { ETag::Weak(text) } else { ETag::Strong(text) }
}

/// Whether a range applies under the request's `If-Range` (RFC 9110, section 13.1.5). A date must
/// equal `Last-Modified`. A weak entity tag never matches.
pub(crate) fn if_range_holds(headers: &HeaderMap, info: &ObjectInfo) -> bool {
    let Some(given) = headers.get(IF_RANGE) else { return true };
    if let Ok(given) = ETag::parse_http_header(given.as_bytes()) {
        return given.strong_cmp(&object_etag(&info.attributes));
    }
    let date = given.to_str().ok().and_then(|date| Timestamp::parse(TimestampFormat::HttpDate, date).ok());
    date.is_some_and(|date| date == modified(info))
}

/// `Last-Modified`: headers carry whole seconds.
fn modified(info: &ObjectInfo) -> Timestamp {
    timestamp(info.modified_ms / 1000 * 1000)
}

/// The conditions of a read, evaluated in the order of RFC 9110, section 13.2.2.
#[derive(Default)]
pub(crate) struct ReadConditions<'a> {
    pub(crate) if_match: Option<&'a ETagCondition>,
    pub(crate) if_none_match: Option<&'a ETagCondition>,
    pub(crate) if_modified_since: Option<&'a Timestamp>,
    pub(crate) if_unmodified_since: Option<&'a Timestamp>,
}

fn matches(condition: &ETagCondition, tag: &ETag, compare: fn(&ETag, &ETag) -> bool) -> bool {
    condition.is_any() || condition.etags().iter().any(|given| compare(given, tag))
}

impl ReadConditions<'_> {
    /// Whether the read has a condition.
    pub(crate) fn any(&self) -> bool {
        self.if_match.is_some()
            || self.if_none_match.is_some()
            || self.if_modified_since.is_some()
            || self.if_unmodified_since.is_some()
    }

    /// `None` when the conditions hold, else the status: 412 or 304.
    fn verdict(&self, info: &ObjectInfo) -> Option<u16> {
        let (modified, tag) = (modified(info), object_etag(&info.attributes));
        match (self.if_match, self.if_unmodified_since) {
            // A weak tag matches nothing but `*` (RFC 9110, section 13.1.1).
            (Some(condition), _) if !matches(condition, &tag, ETag::strong_cmp) => return Some(412),
            (None, Some(since)) if modified > *since => return Some(412),
            _ => {}
        }
        match (self.if_none_match, self.if_modified_since) {
            (Some(condition), _) if matches(condition, &tag, ETag::weak_cmp) => Some(304),
            (None, Some(since)) if modified <= *since => Some(304),
            _ => None,
        }
    }

    /// # Errors
    /// `PreconditionFailed`, or 304 with the headers that a cache needs.
    pub(crate) fn check(&self, info: &ObjectInfo) -> S3Result<()> {
        match self.verdict(info) {
            None => Ok(()),
            Some(304) => {
                let mut error = S3Error::with_message(S3ErrorCode::NotModified, "Not Modified");
                let mut headers = HeaderMap::new();
                if let Ok(value) = object_etag(&info.attributes).to_http_header() {
                    headers.insert(http::header::ETAG, value);
                }
                let mut text = Vec::new();
                if timestamp(info.modified_ms).format(TimestampFormat::HttpDate, &mut text).is_ok()
                    && let Ok(value) = http::HeaderValue::from_bytes(&text)
                {
                    headers.insert(http::header::LAST_MODIFIED, value);
                }
                error.set_headers(headers);
                Err(error)
            }
            Some(_) => Err(failed()),
        }
    }

    /// Checks the source of a copy, for which "not modified" is a failure too.
    pub(crate) fn check_source(&self, info: &ObjectInfo) -> S3Result<()> {
        if self.verdict(info).is_some() { Err(failed()) } else { Ok(()) }
    }
}

fn failed() -> S3Error {
    s3_error!(PreconditionFailed, "At least one of the pre-conditions you specified did not hold")
}

/// An entity tag that no object has: a value contains no quotes.
const NO_TAG: &str = "\"";

/// The condition of a write of an object. Of a list of entity tags, the one that the object has now
/// becomes the condition, which the commit compares again. A weak tag matches nothing (RFC 9110,
/// section 13.1.1), nor does the tag `"*"`, which is not the wildcard.
///
/// # Errors
/// `NotImplemented` for `If-None-Match` with a tag, which S3 does not offer either.
pub(crate) fn write_condition(
    (store, bucket, key): (&Store, &str, &str),
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> S3Result<Condition> {
    match (if_match, if_none_match) {
        (None, None) => Ok(Condition::None),
        (None, Some(none)) if none.is_any() => Ok(Condition::Absent),
        (Some(condition), None) => {
            if condition.is_any() {
                return Ok(Condition::Matches("*".to_owned()));
            }
            let strong = condition.etags().iter().filter_map(ETag::as_strong).filter(|tag| *tag != "*");
            let tags: Vec<&str> = strong.collect();
            let tag = match tags[..] {
                [] => NO_TAG,
                [tag] => tag,
                [first, ..] => {
                    let now = store.at(bucket, key).info().ok();
                    let has = |tag: &&str| now.as_ref().is_some_and(|now| now.attributes.etag == *tag);
                    tags.iter().copied().find(has).unwrap_or(first)
                }
            };
            Ok(Condition::Matches(tag.to_owned()))
        }
        _ => Err(s3_error!(
            NotImplemented,
            "A header you provided implies functionality that is not implemented: If-None-Match takes only *, and not beside If-Match."
        )),
    }
}

/// The condition of a write from its headers, for inputs that have no such fields in `s3s`.
///
/// # Errors
/// `InvalidArgument` for a malformed entity tag, and the errors of [`write_condition`].
pub(crate) fn header_condition(target: (&Store, &str, &str), headers: &HeaderMap) -> S3Result<Condition> {
    let read = |name| -> S3Result<Option<ETagCondition>> {
        // Several lines are one list (RFC 9110, section 5.3).
        let lines: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
        if lines.is_empty() {
            return Ok(None);
        }
        let parsed = ETagCondition::parse_http_header(&lines.join(&b","[..]));
        parsed.map(Some).map_err(|_| invalid_argument("invalid entity tag in a condition"))
    };
    write_condition(target, read(IF_MATCH)?.as_ref(), read(IF_NONE_MATCH)?.as_ref())
}

/// Headers that name the expected owner of a bucket. A presigned URL may carry them in its query.
pub(crate) static EXPECTED_OWNERS: [HeaderName; 2] = [
    HeaderName::from_static("x-amz-expected-bucket-owner"),
    HeaderName::from_static("x-amz-source-expected-bucket-owner"),
];
static DURABILITY: HeaderName = HeaderName::from_static("x-steadfast-durability");

/// The error for another expected owner than the one that owns everything.
pub(crate) fn another_owner() -> S3Error {
    s3_error!(AccessDenied, "The bucket is not owned by the account that you expect.")
}

/// The durability that a request specifies.
///
/// # Errors
/// `InvalidArgument` for anything but `sync` and `async`.
pub(crate) fn durability(headers: &HeaderMap) -> S3Result<Option<Durability>> {
    match headers.get(&DURABILITY).map(|v| v.as_bytes()) {
        None => Ok(None),
        Some(b"sync") => Ok(Some(Durability::Sync)),
        Some(b"async") => Ok(Some(Durability::Async)),
        Some(_) => Err(invalid_argument("x-steadfast-durability must be sync or async")),
    }
}

/// Refuses versions, which this server does not keep. Every object has the version `null`.
///
/// # Errors
/// `NoSuchVersion`; `InvalidArgument` for a text that is no identifier of a version in S3 or MinIO.
pub(crate) fn only_null_version(version: Option<&str>) -> S3Result<()> {
    let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_');
    match version {
        None | Some("" | "null") => Ok(()),
        // S3 has 32 characters, MinIO a UUID.
        Some(text) if matches!(text.len(), 32 | 36) && text.bytes().all(fits) => {
            Err(s3_error!(NoSuchVersion, "The specified version does not exist."))
        }
        Some(_) => Err(invalid_argument("Invalid version id specified")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> ObjectInfo {
        ObjectInfo {
            key: "k".into(),
            size: 1,
            modified_ms: 1_700_000_000_900,
            version: 1,
            attributes: Attributes { etag: "abc".into(), ..Default::default() },
            part_count: 0,
        }
    }

    #[test]
    fn a_range_applies_only_to_the_same_object() {
        let holds = |info: &ObjectInfo, value: &'static str| {
            if_range_holds(&HeaderMap::from_iter([(IF_RANGE, http::HeaderValue::from_static(value))]), info)
        };
        let mut info = info();
        assert!(if_range_holds(&HeaderMap::new(), &info));
        assert!(holds(&info, "\"abc\""));
        assert!(holds(&info, "Tue, 14 Nov 2023 22:13:20 GMT"));
        for other in ["\"abd\"", "W/\"abc\"", "Tue, 14 Nov 2023 22:13:21 GMT", "Tue, 14 Nov 2023 22:13:19 GMT", "?", ""]
        {
            assert!(!holds(&info, other), "{other}");
        }
        info.attributes.system.insert(WEAK_ETAG.into(), String::new());
        assert!(!holds(&info, "\"abc\"") && !holds(&info, "W/\"abc\""));
    }

    #[test]
    fn a_weak_tag_answers_revalidation_only() {
        let mut info = info();
        info.attributes.system.insert(WEAK_ETAG.into(), String::new());
        let weak = ETagCondition::ETag(ETag::Weak("abc".into()));
        let none = ReadConditions::default;
        assert_eq!(ReadConditions { if_none_match: Some(&weak), ..none() }.verdict(&info), Some(304));
        assert_eq!(ReadConditions { if_match: Some(&weak), ..none() }.verdict(&info), Some(412));
        assert_eq!(ReadConditions { if_match: Some(&ETagCondition::Any), ..none() }.verdict(&info), None);
        assert_eq!(object_etag(&info.attributes).to_http_header().expect("a header"), "W/\"abc\"");
        info.attributes.system.clear();
        assert_eq!(ReadConditions { if_none_match: Some(&weak), ..none() }.verdict(&info), Some(304));
        assert_eq!(ReadConditions { if_match: Some(&weak), ..none() }.verdict(&info), Some(412));
    }

    #[test]
    fn precedence() {
        let info = info();
        let tag = |t: &str| ETagCondition::ETag(ETag::Strong(t.into()));
        let (same, other) = (tag("abc"), tag("def"));
        let (before, at, after) =
            (timestamp(1_600_000_000_000), timestamp(1_700_000_000_000), timestamp(1_800_000_000_000));
        let verdict = |c: ReadConditions<'_>| c.verdict(&info);
        let none = ReadConditions::default;
        assert_eq!(verdict(none()), None);
        assert_eq!(verdict(ReadConditions { if_match: Some(&other), ..none() }), Some(412));
        assert_eq!(verdict(ReadConditions { if_match: Some(&ETagCondition::Any), ..none() }), None);
        // A matching tag makes the date irrelevant.
        let both = ReadConditions { if_match: Some(&same), if_unmodified_since: Some(&before), ..none() };
        assert_eq!(verdict(both), None);
        assert_eq!(verdict(ReadConditions { if_unmodified_since: Some(&before), ..none() }), Some(412));
        assert_eq!(verdict(ReadConditions { if_unmodified_since: Some(&at), ..none() }), None);
        assert_eq!(verdict(ReadConditions { if_none_match: Some(&same), ..none() }), Some(304));
        let both = ReadConditions { if_none_match: Some(&other), if_modified_since: Some(&after), ..none() };
        assert_eq!(verdict(both), None);
        assert_eq!(verdict(ReadConditions { if_modified_since: Some(&at), ..none() }), Some(304));
        assert_eq!(verdict(ReadConditions { if_modified_since: Some(&before), ..none() }), None);
    }
}
