// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

/// `SigV2` POST form signature fields (extracted from the multipart field table)
pub struct PostSignatureV2<'a> {
    /// base64-encoded policy
    pub policy: &'a str,
    /// access key id
    pub access_key_id: &'a str,
    /// signature (standard Base64, HMAC-SHA1)
    pub signature: &'a str,
}

/// [`PostSignatureV2::extract`] error
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub enum PostSignatureError {
    /// missing required field
    #[error("missing field: {0}")]
    MissingField(&'static str),
    /// duplicate field (value not unique)
    #[error("duplicate field: {0}")]
    DuplicateField(&'static str),
}

impl<'a> PostSignatureV2<'a> {
    /// Extracts `policy` / `awsaccesskeyid` / `signature` from the field table.
    ///
    /// `fields` is the borrowed multipart field table (`multipart.fields()`);
    /// field names must already be normalized to lowercase (contract).
    ///
    /// Duplicate fields are rejected: `s3s`'s other multipart consumers select
    /// the last value on sorted fields, so a non-unique value would be
    /// ambiguous between signature verification and policy validation.
    ///
    /// # Errors
    /// Returns [`PostSignatureError`] for a missing or duplicate field.
    pub fn extract(fields: &'a [(String, String)]) -> Result<Self, PostSignatureError> {
        let get = |name: &'static str| -> Result<&'a str, PostSignatureError> {
            let mut iter = fields.iter().filter(|(k, _)| k == name).map(|(_, v)| v.as_str());
            let value = iter.next().ok_or(PostSignatureError::MissingField(name))?;
            if iter.next().is_some() {
                return Err(PostSignatureError::DuplicateField(name));
            }
            Ok(value)
        };
        Ok(Self {
            policy: get("policy")?,
            access_key_id: get("awsaccesskeyid")?,
            signature: get("signature")?,
        })
    }
}
