// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

#![deny(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unreachable,
    clippy::unwrap_used
)]
//! POST Object policy parsing and validation.
//!
//! A POST policy is a base64-encoded JSON document attached to a browser-based
//! upload that restricts what the form fields may contain.
//!
//! See <https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-HTTPPOSTConstructPolicy.html>

use crate::S3Error;
use crate::S3ErrorCode;
use crate::S3Result;
use crate::dto::Timestamp;
use crate::dto::TimestampFormat;
use crate::http::Multipart;

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

/// POST Object Policy
///
/// A POST policy is a JSON document that specifies conditions
/// that the request must meet when uploading objects using POST.
#[derive(Debug, Clone)]
pub struct PostPolicy {
    /// The expiration date of the policy in ISO 8601 format
    pub expiration: Timestamp,
    /// The conditions that must be met for the upload to succeed
    pub conditions: Vec<PostPolicyCondition>,
}

/// A condition in the POST policy
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PostPolicyCondition {
    /// Exact match condition: the field value must equal the specified value
    Eq {
        /// Field name (without '$' prefix, lowercase)
        field: String,
        /// Expected value
        value: String,
    },
    /// Prefix match condition: the field value must start with the specified prefix
    StartsWith {
        /// Field name (without '$' prefix, lowercase)
        field: String,
        /// Expected prefix (empty string matches any value)
        prefix: String,
    },
    /// Content length range condition
    ContentLengthRange {
        /// Minimum content length (inclusive)
        min: u64,
        /// Maximum content length (inclusive)
        max: u64,
    },
}

/// Error type for POST policy parsing
#[derive(Debug, thiserror::Error)]
pub enum PostPolicyError {
    #[error("invalid base64 encoding: {0}")]
    Base64(#[from] base64_simd::Error),
    #[error("invalid UTF-8 encoding: {0}")]
    Utf8(#[from] std::str::Utf8Error),
    #[error("invalid JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("missing required field: {0}")]
    MissingField(&'static str),
    #[error("invalid condition format")]
    InvalidCondition,
    #[error("invalid expiration format: {0}")]
    InvalidExpiration(String),
}

impl PostPolicy {
    /// Parse a POST policy from a base64-encoded JSON string
    ///
    /// # Errors
    /// Returns an error if the base64 decoding or JSON parsing fails
    pub fn from_base64(encoded: &str) -> Result<Self, PostPolicyError> {
        let decoded = base64_simd::STANDARD.decode_to_vec(encoded)?;
        let json_str = std::str::from_utf8(&decoded)?;
        Self::from_json(json_str)
    }

    /// Parse a POST policy from a JSON string
    ///
    /// # Errors
    /// Returns an error if the JSON parsing fails
    pub fn from_json(json: &str) -> Result<Self, PostPolicyError> {
        let raw: RawPostPolicy = serde_json::from_str(json)?;

        let expiration = Timestamp::parse(TimestampFormat::DateTime, &raw.expiration)
            .map_err(|_| PostPolicyError::InvalidExpiration(raw.expiration.clone()))?;

        let conditions = raw
            .conditions
            .into_iter()
            .map(RawCondition::into_condition)
            .collect::<Result<Vec<_>, _>>()?;

        Ok(Self { expiration, conditions })
    }

    /// Validate only the policy conditions, skipping the expiration check.
    ///
    /// When `url_bucket` is provided it is authoritative for the `bucket`
    /// policy condition. If a `bucket` form field is also present but differs
    /// from `url_bucket`, the request is rejected with `InvalidPolicyDocument`.
    ///
    /// # Arguments
    /// * `multipart` - The multipart form data
    /// * `file_size` - The size of the uploaded file in bytes
    /// * `url_bucket` - The bucket name from the URL path/host. When present,
    ///   it is the source of truth for the `bucket` condition.
    ///
    /// # Errors
    /// Returns `InvalidPolicyDocument` if any condition is not satisfied
    pub(crate) fn validate_conditions_only(
        &self,
        multipart: &Multipart,
        file_size: u64,
        url_bucket: Option<&str>,
    ) -> S3Result<()> {
        // Check all conditions against form fields
        for condition in &self.conditions {
            Self::validate_condition(condition, multipart, file_size, url_bucket)?;
        }

        // Check that every form field is covered by a policy condition.
        // Per AWS SigV4 docs, these fields are exempt:
        //   x-amz-signature, file, submit, policy, and x-ignore-* fields.
        // For SigV2 POSTs, we also exempt: signature and awsaccesskeyid.
        // See https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-HTTPPOSTConstructPolicy.html
        for (name, _) in multipart.fields() {
            if Self::is_field_exempt_from_policy(name) {
                continue;
            }
            if !self.has_condition_for_field(name) {
                return Err(S3Error::with_message(
                    S3ErrorCode::AccessDenied,
                    format!(
                        "Each form field that you specify in a form must appear in the list \
                         of policy conditions. \"{name}\" not specified in the policy."
                    ),
                ));
            }
        }

        Ok(())
    }

    /// Returns true if the given form field is exempt from the policy condition requirement.
    fn is_field_exempt_from_policy(name: &str) -> bool {
        // SigV4: x-amz-signature; SigV2: signature, awsaccesskeyid.
        // Keep the MinIO-compatible exception set for encryption-specific fields,
        // which are allowed outside policy conditions for browser POST uploads.
        matches!(name, "x-amz-signature" | "signature" | "awsaccesskeyid" | "file" | "submit" | "policy")
            || name.starts_with("x-amz-server-side-encryption")
            || name.starts_with("x-ignore-")
    }

    /// Returns true if the policy contains at least one `Eq` or `StartsWith` condition for the field.
    fn has_condition_for_field(&self, name: &str) -> bool {
        self.conditions.iter().any(|c| match c {
            PostPolicyCondition::Eq { field, .. } | PostPolicyCondition::StartsWith { field, .. } => field == name,
            PostPolicyCondition::ContentLengthRange { .. } => false,
        })
    }

    fn validate_condition(
        condition: &PostPolicyCondition,
        multipart: &Multipart,
        file_size: u64,
        url_bucket: Option<&str>,
    ) -> S3Result<()> {
        match condition {
            PostPolicyCondition::Eq { field, value } => {
                let actual = Self::get_field_value(field, multipart, url_bucket)?;
                if actual.as_deref() != Some(value.as_str()) {
                    return Err(S3Error::with_message(
                        S3ErrorCode::InvalidPolicyDocument,
                        format!(
                            "Policy condition 'eq' for field '{field}' failed: expected '{value}', got '{}'",
                            actual.as_deref().unwrap_or_default()
                        ),
                    ));
                }
            }
            PostPolicyCondition::StartsWith { field, prefix } => {
                let actual = Self::get_field_value(field, multipart, url_bucket)?;
                let actual_str = actual.as_deref().unwrap_or("");
                if !actual_str.starts_with(prefix.as_str()) {
                    return Err(S3Error::with_message(
                        S3ErrorCode::InvalidPolicyDocument,
                        format!(
                            "Policy condition 'starts-with' for field '{field}' failed: expected prefix '{prefix}', got '{actual_str}'"
                        ),
                    ));
                }
            }
            PostPolicyCondition::ContentLengthRange { min, max } => {
                if file_size > *max {
                    return Err(s3_error!(EntityTooLarge, "Your proposed upload exceeds the maximum allowed object size."));
                }
                if file_size < *min {
                    return Err(s3_error!(
                        EntityTooSmall,
                        "Your proposed upload is smaller than the minimum allowed object size."
                    ));
                }
            }
        }
        Ok(())
    }

    /// Resolve the effective value for a policy condition field.
    ///
    /// For the `bucket` field:
    /// - If `url_bucket` is provided it is the authoritative value.
    /// - If a `bucket` form field is also present and differs from `url_bucket`,
    ///   the request is rejected with `InvalidPolicyDocument` rather than
    ///   silently discarding one of them.
    /// - If `url_bucket` is absent, fall back to the form field.
    ///
    /// For all other fields only the multipart form fields are consulted.
    fn get_field_value<'a>(field: &str, multipart: &'a Multipart, url_bucket: Option<&'a str>) -> S3Result<Option<Cow<'a, str>>> {
        if field == "bucket" {
            let form_bucket = multipart.find_field_value(field);
            if let Some(ub) = url_bucket {
                // If the client also sent a `bucket` form field it must agree
                // with the URL bucket; a mismatch is an unambiguous error.
                if let Some(fb) = form_bucket
                    && fb != ub
                {
                    return Err(s3_error!(
                        InvalidPolicyDocument,
                        "Bucket in form field '{fb}' does not match bucket in URL '{ub}'"
                    ));
                }
                return Ok(Some(Cow::Borrowed(ub)));
            }
            return Ok(form_bucket.map(Cow::Borrowed));
        }

        Ok(multipart.find_field_value(field).map(Cow::Borrowed))
    }

    /// Get the content-length-range condition if present
    #[must_use]
    pub fn content_length_range(&self) -> Option<(u64, u64)> {
        for condition in &self.conditions {
            if let PostPolicyCondition::ContentLengthRange { min, max } = condition {
                return Some((*min, *max));
            }
        }
        None
    }

    /// Returns the value of an `eq` condition for the given field, if present.
    #[must_use]
    pub(crate) fn eq_condition_value(&self, field: &str) -> Option<&str> {
        self.conditions.iter().find_map(|c| match c {
            PostPolicyCondition::Eq { field: f, value } if f == field => Some(value.as_str()),
            _ => None,
        })
    }
}

/// Raw POST policy for deserialization
#[derive(Debug, Deserialize)]
struct RawPostPolicy {
    expiration: String,
    conditions: Vec<RawCondition>,
}

/// Raw condition that can be either array format or object format
#[derive(Debug)]
enum RawCondition {
    /// Array format: `["eq", "$key", "value"]` or `["starts-with", "$key", "prefix"]` or `["content-length-range", min, max]`
    Array(Vec<serde_json::Value>),
    /// Object format: `{"bucket": "mybucket"}` (shorthand for eq)
    Object(HashMap<String, String>),
}

impl<'de> Deserialize<'de> for RawCondition {
    fn deserialize<D>(deserializer: D) -> Result<Self, D::Error>
    where
        D: Deserializer<'de>,
    {
        struct RawConditionVisitor;

        impl<'de> Visitor<'de> for RawConditionVisitor {
            type Value = RawCondition;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an array or object")
            }

            fn visit_seq<A>(self, mut seq: A) -> Result<Self::Value, A::Error>
            where
                A: SeqAccess<'de>,
            {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(RawCondition::Array(items))
            }

            fn visit_map<M>(self, mut map: M) -> Result<Self::Value, M::Error>
            where
                M: MapAccess<'de>,
            {
                let mut items = HashMap::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    items.insert(key, value);
                }
                Ok(RawCondition::Object(items))
            }
        }

        deserializer.deserialize_any(RawConditionVisitor)
    }
}

impl RawCondition {
    fn into_condition(self) -> Result<PostPolicyCondition, PostPolicyError> {
        match self {
            RawCondition::Array(items) => Self::parse_array_condition(&items),
            RawCondition::Object(map) => Self::parse_object_condition(map),
        }
    }

    fn parse_array_condition(items: &[serde_json::Value]) -> Result<PostPolicyCondition, PostPolicyError> {
        let [operator, ..] = items else {
            return Err(PostPolicyError::InvalidCondition);
        };

        let operator = operator.as_str().ok_or(PostPolicyError::InvalidCondition)?;

        match operator.to_ascii_lowercase().as_str() {
            "eq" => {
                let [_, field, value] = items else {
                    return Err(PostPolicyError::InvalidCondition);
                };
                let field = field.as_str().ok_or(PostPolicyError::InvalidCondition)?;
                let value = value.as_str().ok_or(PostPolicyError::InvalidCondition)?;
                Ok(PostPolicyCondition::Eq {
                    field: normalize_field_name(field),
                    value: value.to_owned(),
                })
            }
            "starts-with" => {
                let [_, field, prefix] = items else {
                    return Err(PostPolicyError::InvalidCondition);
                };
                let field = field.as_str().ok_or(PostPolicyError::InvalidCondition)?;
                let prefix = prefix.as_str().ok_or(PostPolicyError::InvalidCondition)?;
                Ok(PostPolicyCondition::StartsWith {
                    field: normalize_field_name(field),
                    prefix: prefix.to_owned(),
                })
            }
            "content-length-range" => {
                let [_, min, max] = items else {
                    return Err(PostPolicyError::InvalidCondition);
                };
                let min = min.as_u64().ok_or(PostPolicyError::InvalidCondition)?;
                let max = max.as_u64().ok_or(PostPolicyError::InvalidCondition)?;
                if min > max {
                    return Err(PostPolicyError::InvalidCondition);
                }
                Ok(PostPolicyCondition::ContentLengthRange { min, max })
            }
            _ => Err(PostPolicyError::InvalidCondition),
        }
    }

    fn parse_object_condition(map: HashMap<String, String>) -> Result<PostPolicyCondition, PostPolicyError> {
        // Object format is shorthand for exact match
        // {"bucket": "mybucket"} means ["eq", "$bucket", "mybucket"]
        if map.len() != 1 {
            return Err(PostPolicyError::InvalidCondition);
        }
        let (field, value) = map.into_iter().next().ok_or(PostPolicyError::InvalidCondition)?;
        Ok(PostPolicyCondition::Eq {
            field: normalize_field_name(&field),
            value,
        })
    }
}

/// Normalize field name by removing '$' prefix and converting to lowercase
fn normalize_field_name(field: &str) -> String {
    let field = field.strip_prefix('$').unwrap_or(field);
    field.to_ascii_lowercase()
}
