// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

use std::str::FromStr;

use http::HeaderValue;
use http::header::InvalidHeaderValue;

use super::etag::{ETag, ParseETagError};

/// Condition value for `If-Match`, `If-None-Match` and related headers.
///
/// According to RFC 9110, these headers can contain either:
/// - An `ETag` value (strong or weak): `"value"` or `W/"value"`
/// - A wildcard: `*` (matches any existing entity)
///
/// The wildcard is commonly used for conditional requests like:
/// - `If-None-Match: *` - Only create if the resource doesn't exist (PUT)
/// - `If-Match: *` - Only modify if the resource exists
///
/// See RFC 9110 §13.1 and MDN:
/// + <https://www.rfc-editor.org/rfc/rfc9110#section-13.1>
/// + <https://developer.mozilla.org/en-US/docs/Web/HTTP/Headers/If-None-Match>
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ETagCondition {
    /// An `ETag` value (strong or weak)
    ETag(ETag),
    /// The wildcard `*` that matches any existing entity
    Any,
    /// steadfast patch 16: several `ETag` values, of which any may match
    List(Vec<ETag>),
}

/// Errors returned when parsing an `ETagCondition` header.
#[derive(Debug, thiserror::Error)]
pub enum ParseETagConditionError {
    /// The bytes do not match the expected syntax.
    #[error("ParseETagConditionError: InvalidFormat")]
    InvalidFormat,
    /// Contains invalid characters.
    #[error("ParseETagConditionError: InvalidChar")]
    InvalidChar,
    /// Error parsing the `ETag` value
    #[error("ParseETagConditionError: {0}")]
    ETagError(#[from] ParseETagError),
}

impl ETagCondition {
    /// Parses an `ETagCondition` from header bytes.
    ///
    /// # Errors
    /// + Returns `ParseETagConditionError::InvalidFormat` if the bytes do not match the expected syntax.
    /// + Returns `ParseETagConditionError::InvalidChar` if the value contains invalid characters
    pub fn parse_http_header(src: &[u8]) -> Result<Self, ParseETagConditionError> {
        // Check for wildcard
        if src == b"*" {
            return Ok(ETagCondition::Any);
        }

        // steadfast patch 16
        if src.contains(&b',') {
            return Self::parse_list(src);
        }

        // Otherwise, parse as ETag
        let etag = ETag::parse_http_header(src)?;
        Ok(ETagCondition::ETag(etag))
    }

    /// steadfast patch 16: parses a list of `ETag` values (RFC 9110, section 5.6.1). A comma within quotes
    /// belongs to a value; empty elements do not count.
    fn parse_list(src: &[u8]) -> Result<Self, ParseETagConditionError> {
        let mut quoted = false;
        let elements = src.split(|&byte| {
            quoted ^= byte == b'"';
            byte == b',' && !quoted
        });
        let mut etags = Vec::new();
        for element in elements.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty()) {
            if element == b"*" {
                return Ok(ETagCondition::Any);
            }
            etags.push(ETag::parse_http_header(element)?);
        }
        match etags.len() {
            0 => Err(ParseETagConditionError::InvalidFormat),
            1 => Ok(ETagCondition::ETag(etags.swap_remove(0))),
            _ => Ok(ETagCondition::List(etags)),
        }
    }

    /// steadfast patch 16: the `ETag` values; none for the wildcard.
    #[must_use]
    pub fn etags(&self) -> &[ETag] {
        match self {
            ETagCondition::ETag(etag) => std::slice::from_ref(etag),
            ETagCondition::Any => &[],
            ETagCondition::List(etags) => etags,
        }
    }

    /// Encodes this `ETagCondition` as an HTTP header value.
    ///
    /// # Errors
    /// Returns `InvalidHeaderValue` if the `ETag` value contains invalid characters for HTTP headers.
    pub fn to_http_header(&self) -> Result<HeaderValue, InvalidHeaderValue> {
        match self {
            ETagCondition::ETag(etag) => etag.to_http_header(),
            ETagCondition::Any => HeaderValue::try_from("*"),
            // steadfast patch 16
            ETagCondition::List(etags) => {
                let mut all = Vec::new();
                for etag in etags {
                    if !all.is_empty() {
                        all.extend_from_slice(b", ");
                    }
                    all.extend_from_slice(etag.to_http_header()?.as_bytes());
                }
                HeaderValue::try_from(all)
            }
        }
    }

    /// Returns the `ETag` if this is an `ETagCondition::ETag`, otherwise `None`.
    #[must_use]
    pub fn as_etag(&self) -> Option<&ETag> {
        match self {
            ETagCondition::ETag(etag) => Some(etag),
            ETagCondition::Any | ETagCondition::List(_) => None,
        }
    }

    /// Consumes self and returns the `ETag` if this is an `ETagCondition::ETag`, otherwise `None`.
    #[must_use]
    pub fn into_etag(self) -> Option<ETag> {
        match self {
            ETagCondition::ETag(etag) => Some(etag),
            ETagCondition::Any | ETagCondition::List(_) => None,
        }
    }

    /// Returns true if this is the wildcard `*`.
    #[must_use]
    pub fn is_any(&self) -> bool {
        matches!(self, ETagCondition::Any)
    }
}

impl FromStr for ETagCondition {
    type Err = ParseETagConditionError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::parse_http_header(s.as_bytes())
    }
}
