// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! presigned url information

use super::AmzDate;
use super::CredentialV4;

use crate::crypto::is_sha256_checksum;

use smallvec::SmallVec;

/// Presigned url information
#[derive(Debug)]
pub struct PresignedUrlV4<'a> {
    /// algorithm
    pub algorithm: &'a str,
    /// credential
    pub credential: CredentialV4<'a>,
    /// amz date
    pub amz_date: AmzDate,
    /// expires
    pub expires: jiff::SignedDuration,
    /// signed headers
    pub signed_headers: SmallVec<[&'a str; 16]>,
    /// signature
    pub signature: &'a str,
}

/// [`PresignedUrlV4`]
#[derive(Debug, thiserror::Error)]
#[error("ParsePresignedUrlError")]
pub struct ParsePresignedUrlError {
    /// private placeholder
    _priv: (),
}

/// Returns the unique value of `name` in `pairs`, or `None` when the field is
/// missing or duplicated.
///
/// Query values must already be percent-decoded (contract).
fn get_unique<'a>(pairs: &'a [(impl AsRef<str>, impl AsRef<str>)], name: &str) -> Option<&'a str> {
    let mut iter = pairs
        .iter()
        .filter(|(key, _)| key.as_ref() == name)
        .map(|(_, value)| value.as_ref());
    let value = iter.next()?;
    (iter.next().is_none()).then_some(value)
}

impl<'a> PresignedUrlV4<'a> {
    /// Parses `PresignedUrl` from query pairs with a caller-supplied
    /// `X-Amz-Expires` upper bound.
    ///
    /// `max_expires_secs` is the maximum allowed `X-Amz-Expires` value in seconds.
    /// Values larger than this upper bound are rejected during parsing.
    ///
    /// Query values must already be percent-decoded (contract; `OrderedQs` from
    /// `s3s` satisfies it).
    ///
    /// # Errors
    /// Returns `ParsePresignedUrlError` if it failed to parse
    pub fn parse(qs: &'a [(impl AsRef<str>, impl AsRef<str>)], max_expires_secs: u32) -> Result<Self, ParsePresignedUrlError> {
        Self::parse_impl(qs, max_expires_secs)
    }

    fn parse_impl(qs: &'a [(impl AsRef<str>, impl AsRef<str>)], max_expires_secs: u32) -> Result<Self, ParsePresignedUrlError> {
        let err = || ParsePresignedUrlError { _priv: () };

        let algorithm = get_unique(qs, "X-Amz-Algorithm").ok_or_else(err)?;
        let credential_str = get_unique(qs, "X-Amz-Credential").ok_or_else(err)?;
        let date = get_unique(qs, "X-Amz-Date").ok_or_else(err)?;
        let expires = get_unique(qs, "X-Amz-Expires").ok_or_else(err)?;
        let signed_headers = get_unique(qs, "X-Amz-SignedHeaders").ok_or_else(err)?;
        let signature = get_unique(qs, "X-Amz-Signature").ok_or_else(err)?;

        let credential = CredentialV4::parse(credential_str).map_err(|_e| err())?;

        let amz_date = AmzDate::parse(date).map_err(|_e| err())?;

        let expires = parse_expires(expires, max_expires_secs).ok_or_else(err)?;

        if !signed_headers.is_ascii() {
            return Err(err());
        }
        let signed_headers = signed_headers.split(';').collect();

        if !is_sha256_checksum(signature) {
            return Err(err());
        }

        Ok(Self {
            algorithm,
            credential,
            amz_date,
            expires,
            signed_headers,
            signature,
        })
    }
}

fn parse_expires(s: &str, max_expires_secs: u32) -> Option<jiff::SignedDuration> {
    // u32 parse rejects negative values and non-integers implicitly
    let x = s.parse::<u32>().ok()?;
    // steadfast patch 18: S3 demands a second at least.
    if x == 0 || x > max_expires_secs {
        return None;
    }
    Some(jiff::SignedDuration::from_secs(i64::from(x)))
}
