//! The facts about the signature of a request that conditions of policies look at.

use http::header::AUTHORIZATION;
use http::{HeaderMap, Uri};
use s3s::dto::{Timestamp, TimestampFormat};

use crate::signed::{is_presigned_v2, is_presigned_v4};

/// How a request is signed. `s3s` has verified it.
pub(super) enum SignatureFacts<'a> {
    /// By a header.
    Header { is_v2: bool },
    /// By a URL with this query string.
    Url { is_v2: bool, query: &'a str },
}

impl<'a> SignatureFacts<'a> {
    /// The signature of a request; `None`: it has none.
    pub(super) fn of(uri: &'a Uri, headers: &HeaderMap) -> Option<Self> {
        let query = uri.query().unwrap_or_default();
        if is_presigned_v4(query) || is_presigned_v2(query) {
            return Some(Self::Url { is_v2: !is_presigned_v4(query), query });
        }
        headers.get(AUTHORIZATION).map(|value| Self::Header { is_v2: value.as_bytes().starts_with(b"AWS ") })
    }

    /// The value of `s3:authType`.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Header { .. } => "REST-HEADER",
            Self::Url { .. } => "REST-QUERY-STRING",
        }
    }

    /// The value of `s3:signatureversion`.
    pub(super) fn version(&self) -> &'static str {
        match self {
            Self::Header { is_v2: true } | Self::Url { is_v2: true, .. } => "AWS",
            Self::Header { is_v2: false } | Self::Url { is_v2: false, .. } => "AWS4-HMAC-SHA256",
        }
    }

    /// The value of `s3:signatureAge`: the milliseconds since a URL was signed, with version 4.
    pub(super) fn age_ms(&self, now_ms: u64) -> Option<u64> {
        let Self::Url { is_v2: false, query } = self else { return None };
        let (_, date) = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "X-Amz-Date")?;
        let part = |from: usize, to: usize| date.get(from..to);
        let (year, month, day) = (part(0, 4)?, part(4, 6)?, part(6, 8)?);
        let (hour, minute, second) = (part(9, 11)?, part(11, 13)?, part(13, 15)?);
        let text = format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z");
        let signed = Timestamp::parse(TimestampFormat::DateTime, &text).ok()?;
        let signed_ms = u64::try_from(time::OffsetDateTime::from(signed).unix_timestamp()).ok()? * 1000;
        Some(now_ms.saturating_sub(signed_ms))
    }
}
