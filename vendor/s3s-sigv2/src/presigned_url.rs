// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

use jiff::Timestamp;

/// `SigV2` presigned URL information (all borrowed).
pub struct PresignedUrlV2<'a> {
    /// access key id
    pub access_key: &'a str,
    /// expiration time
    pub expires_time: Timestamp,
    /// the decoded base64 signature (query values must already be decoded)
    pub signature: &'a str,
}

/// [`PresignedUrlV2`] parse error
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

impl<'a> PresignedUrlV2<'a> {
    /// Parses a `SigV2` presigned URL from query pairs.
    ///
    /// The fields `AWSAccessKeyId`/`Expires`/`Signature` must be present and
    /// unique. Query values must already be percent-decoded (contract; the
    /// `OrderedQs` type in `s3s` satisfies it) — the signature is NOT decoded
    /// again here.
    ///
    /// # Errors
    /// Returns [`ParsePresignedUrlError`] for missing/duplicate fields or an
    /// invalid expiration timestamp.
    pub fn parse(qs: &'a [(impl AsRef<str>, impl AsRef<str>)]) -> Result<Self, ParsePresignedUrlError> {
        let err = || ParsePresignedUrlError { _priv: () };

        let access_key = get_unique(qs, "AWSAccessKeyId").ok_or_else(err)?;
        let expires_str = get_unique(qs, "Expires").ok_or_else(err)?;
        let signature = get_unique(qs, "Signature").ok_or_else(err)?;

        let expires_time = parse_unix_timestamp(expires_str).ok_or_else(err)?;

        Ok(Self {
            access_key,
            expires_time,
            signature,
        })
    }
}

fn parse_unix_timestamp(s: &str) -> Option<Timestamp> {
    let ts = s.parse::<i64>().ok().filter(|&x| x >= 0)?;
    Timestamp::from_second(ts).ok()
}
