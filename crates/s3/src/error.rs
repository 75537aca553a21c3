//! The store's errors as S3 error codes and messages.

use std::sync::Arc;

use http::header::{CONTENT_RANGE, HeaderMap, HeaderValue};
use s3s::{S3Error, S3ErrorCode, StdError, s3_error};
use steadfast_edge::EdgeError;
use steadfast_log::LogError;
use steadfast_store::StoreError;

use crate::context::{BodyFault, RequestContext};

/// An error code of S3 that `s3s` does not name, or a status of Steadfast's own.
pub(crate) fn custom(code: &'static str, status: http::StatusCode, message: impl Into<String>) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), message.into());
    error.set_status_code(status);
    error
}

pub(crate) fn invalid_argument(message: impl Into<String>) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidArgument, message.into())
}

pub(crate) fn invalid_request(message: impl Into<String>) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidRequest, message.into())
}

/// The S3 error for an error of the store.
pub(crate) fn store_error(error: StoreError) -> S3Error {
    match error {
        StoreError::NoSuchBucket => s3_error!(NoSuchBucket, "The specified bucket does not exist"),
        StoreError::BucketExists => s3_error!(
            BucketAlreadyOwnedByYou,
            "Your previous request to create the named bucket succeeded and you already own it."
        ),
        StoreError::BucketNotEmpty => {
            s3_error!(BucketNotEmpty, "The bucket you tried to delete is not empty")
        }
        StoreError::NoSuchKey => s3_error!(NoSuchKey, "The specified key does not exist."),
        StoreError::NoSuchUpload => s3_error!(
            NoSuchUpload,
            "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed."
        ),
        StoreError::InvalidPart(number) => S3Error::with_message(
            S3ErrorCode::InvalidPart,
            format!(
                "Part {number} could not be found, or the specified entity tag does not match the part's entity tag."
            ),
        ),
        StoreError::InvalidPartOrder => {
            s3_error!(InvalidPartOrder, "The list of parts was not in ascending order.")
        }
        StoreError::PartTooSmall(number) => S3Error::with_message(
            S3ErrorCode::EntityTooSmall,
            format!("Your proposed upload is smaller than the minimum allowed size: part {number}."),
        ),
        StoreError::ConditionFailed => {
            s3_error!(PreconditionFailed, "At least one of the pre-conditions you specified did not hold")
        }
        StoreError::TooLarge(what) => S3Error::with_message(S3ErrorCode::EntityTooLarge, what),
        StoreError::Busy(what) => slow_down(what),
        StoreError::Hangs => S3Error::with_message(
            S3ErrorCode::SlowDown,
            "The disk, or the archive that must have each write, has not answered for too long. Please try again later; a write that was under way may yet take effect.",
        ),
        StoreError::Log(error) => log_error(error),
        StoreError::Unavailable(why) => S3Error::with_message(
            S3ErrorCode::ServiceUnavailable,
            format!("The server cannot serve this request until a disk is back: {why}."),
        ),
        StoreError::Index(why) => S3Error::with_message(
            S3ErrorCode::ServiceUnavailable,
            format!("The index cannot be read at the moment. It heals by itself, and no data is lost ({why})."),
        ),
        error => S3Error::with_message(S3ErrorCode::InternalError, error.to_string()),
    }
}

/// The S3 error for an error of an edge.
pub(crate) fn edge_error(error: EdgeError) -> S3Error {
    match error {
        EdgeError::Store(error) => store_error(error),
        EdgeError::Origin(message) => custom("BadGateway", http::StatusCode::BAD_GATEWAY, message),
        EdgeError::Timeout => custom(
            "GatewayTimeout",
            http::StatusCode::GATEWAY_TIMEOUT,
            "The origin of this bucket did not answer in time.",
        ),
        EdgeError::Range(size) => not_satisfiable(size),
        EdgeError::Changed => custom(
            "BadGateway",
            http::StatusCode::BAD_GATEWAY,
            "The object changes at its origin while it is fetched. Please try again.",
        ),
    }
}

/// A range outside an object of `size` bytes.
pub(crate) fn not_satisfiable(size: u64) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::InvalidRange, "The requested range is not satisfiable");
    let mut headers = HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    if let Ok(value) = HeaderValue::from_str(&format!("bytes */{size}")) {
        headers.insert(CONTENT_RANGE, value);
    }
    error.set_headers(headers);
    error
}

/// `503 SlowDown`: SDKs back off and retry.
pub(crate) fn slow_down(what: &str) -> S3Error {
    S3Error::with_message(S3ErrorCode::SlowDown, format!("Please reduce your request rate: at the bound of {what}."))
}

fn log_error(error: LogError) -> S3Error {
    match error {
        LogError::Busy { .. } => slow_down("data on its way to disk"),
        // 507 and not 503: SDKs retry a 503 at once, and a retry does not free space.
        LogError::Full => custom(
            "InsufficientStorage",
            http::StatusCode::INSUFFICIENT_STORAGE,
            "The pool is full. Reads and deletes still work; writes resume when space has been freed.",
        ),
        error @ LogError::Unknown { .. } => S3Error::with_message(
            S3ErrorCode::InternalError,
            format!(
                "The outcome of this request is unknown: after a restart it may have taken effect or not ({error})."
            ),
        ),
        error @ LogError::Damaged { .. } => {
            S3Error::with_message(S3ErrorCode::InternalError, format!("The object's data is damaged: {error}."))
        }
        error @ LogError::Read { .. } => {
            S3Error::with_message(S3ErrorCode::InternalError, format!("The object's data cannot be read: {error}."))
        }
        LogError::TooLarge(what) => S3Error::with_message(S3ErrorCode::EntityTooLarge, what),
        LogError::OpenedForReading => {
            s3_error!(AccessDenied, "This server serves an earlier state of the pool, which can only be read.")
        }
        LogError::Closed => s3_error!(ServiceUnavailable, "The server is stopping."),
        error @ LogError::Moved => S3Error::with_message(S3ErrorCode::InternalError, error.to_string()),
        error => S3Error::with_message(
            S3ErrorCode::ServiceUnavailable,
            format!("The server is read-only until it has been repaired and restarted: {error}."),
        ),
    }
}

/// The S3 error for a body that could not be received. `s3s` hides the types of its errors, so
/// their texts have to tell them apart. The context holds the failures that only this crate
/// detects.
pub(crate) fn body_error(error: &StdError, context: Option<&Arc<RequestContext>>) -> S3Error {
    match context.and_then(|c| c.fault()) {
        Some(BodyFault::Stalled) => return request_timeout(),
        Some(BodyFault::Broken) => return incomplete_body(),
        None => {}
    }
    let text = error.to_string();
    if text.contains("Sha256Mismatch") {
        custom(
            "XAmzContentSHA256Mismatch",
            http::StatusCode::BAD_REQUEST,
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        )
    } else if text.contains("SignatureMismatch") {
        s3_error!(SignatureDoesNotMatch, "The signature of a chunk does not match the signature you provided.")
    } else if text.contains("Incomplete") || text.contains("LengthMismatch") {
        incomplete_body()
    } else {
        invalid_request(format!("The request body is malformed: {text}"))
    }
}

pub(crate) fn request_timeout() -> S3Error {
    s3_error!(
        RequestTimeout,
        "Your socket connection to the server was not read from or written to within the timeout period."
    )
}

pub(crate) fn incomplete_body() -> S3Error {
    s3_error!(IncompleteBody, "You did not provide the number of bytes specified by the Content-Length HTTP header")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn statuses() {
        let status = |e: StoreError| store_error(e).status_code().unwrap().as_u16();
        assert_eq!(status(StoreError::Busy("writes")), 503);
        assert_eq!(status(StoreError::Hangs), 503);
        assert_eq!(store_error(StoreError::Hangs).code().as_str(), "SlowDown");
        assert_eq!(status(StoreError::Log(LogError::Busy { waited: Duration::ZERO })), 503);
        assert_eq!(status(StoreError::Log(LogError::Full)), 507);
        assert_eq!(status(StoreError::Unavailable("the disk x is missing".into())), 503);
        assert_eq!(status(StoreError::ConditionFailed), 412);
        let unknown = store_error(StoreError::Log(LogError::Unknown { what: "flush", cause: "EIO".into() }));
        assert_eq!(unknown.status_code().unwrap().as_u16(), 500);
        assert!(unknown.message().unwrap().contains("unknown"));
        let damaged = LogError::Damaged { extent: 1, offset: 4096, what: "checksum".into() };
        let damaged = store_error(StoreError::Log(damaged));
        assert_eq!(damaged.code().as_str(), "InternalError");
        assert!(damaged.message().unwrap().contains("damaged"));
    }
}
