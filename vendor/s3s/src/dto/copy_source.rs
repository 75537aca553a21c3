// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! x-amz-copy-source
//!
//! The `x-amz-copy-source` header specifies the source object for copy operations.
//! It supports three formats:
//!
//! 1. **Bucket**: `<bucket>/<key>[?versionId=<id>]`
//! 2. **Access Point ARN**: `arn:<partition>:s3:<region>:<account-id>:accesspoint/<name>/object/<key>[?versionId=<id>]`
//! 3. **Outpost ARN**: `arn:<partition>:s3-outposts:<region>:<account-id>:outpost/<outpost-id>/object/<key>[?versionId=<id>]`
//!
//! See <https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html>

use crate::http;
use crate::path;

use std::borrow::Cow;
use std::fmt::Write;

/// x-amz-copy-source
#[derive(Debug, Clone, PartialEq)]
pub enum CopySource {
    /// Bucket format: `<bucket>/<key>`
    Bucket {
        /// bucket
        bucket: Box<str>,
        /// key
        key: Box<str>,
        /// version id
        version_id: Option<Box<str>>,
    },
    /// Access Point ARN format: `arn:<partition>:s3:<region>:<account-id>:accesspoint/<name>/object/<key>`
    AccessPoint {
        /// partition (e.g. `aws`, `aws-cn`, `aws-us-gov`)
        partition: Box<str>,
        /// region
        region: Box<str>,
        /// account id (12-digit)
        account_id: Box<str>,
        /// access point name
        access_point_name: Box<str>,
        /// key
        key: Box<str>,
        /// version id
        version_id: Option<Box<str>>,
    },
    /// S3 on Outposts ARN format: `arn:<partition>:s3-outposts:<region>:<account-id>:outpost/<outpost-id>/object/<key>`
    Outpost {
        /// partition (e.g. `aws`, `aws-cn`, `aws-us-gov`)
        partition: Box<str>,
        /// region
        region: Box<str>,
        /// account id (12-digit)
        account_id: Box<str>,
        /// outpost id
        outpost_id: Box<str>,
        /// key
        key: Box<str>,
        /// version id
        version_id: Option<Box<str>>,
    },
}

/// [`CopySource`]
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseCopySourceError {
    /// pattern mismatch
    #[error("ParseAmzCopySourceError: PatternMismatch")]
    PatternMismatch,

    /// invalid bucket name
    #[error("ParseAmzCopySourceError: InvalidBucketName")]
    InvalidBucketName,

    /// invalid key
    #[error("ParseAmzCopySourceError: InvalidKey")]
    InvalidKey,

    /// invalid encoding
    #[error("ParseAmzCopySourceError: InvalidEncoding")]
    InvalidEncoding,

    /// invalid ARN
    #[error("ParseAmzCopySourceError: InvalidArn")]
    InvalidArn,

    /// invalid access point name
    #[error("ParseAmzCopySourceError: InvalidAccessPointName")]
    InvalidAccessPointName,

    /// invalid account id
    #[error("ParseAmzCopySourceError: InvalidAccountId")]
    InvalidAccountId,
}

/// Extracts `?versionId=<value>` from the raw header, returning `(path_part, Option<version_id>)`.
fn extract_version_id(header: &str) -> Result<(&str, Option<Cow<'_, str>>), ParseCopySourceError> {
    if let Some(idx) = header.find("?versionId=") {
        let (path, version_part) = header.split_at(idx);
        let version_id_raw = version_part.strip_prefix("?versionId=");
        let version_id = version_id_raw
            .map(urlencoding::decode)
            .transpose()
            .map_err(|_| ParseCopySourceError::InvalidEncoding)?;
        Ok((path, version_id))
    } else {
        Ok((header, None))
    }
}

/// Checks if an access point name is valid.
///
/// Rules (from AWS docs):
/// - 3 to 63 characters long
/// - Must start and end with a lowercase letter or digit
/// - Can contain lowercase letters, digits, and hyphens
/// - No consecutive hyphens
fn check_access_point_name(name: &str) -> bool {
    if !(3..=63).contains(&name.len()) {
        return false;
    }
    if !name
        .as_bytes()
        .iter()
        .all(|&b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    {
        return false;
    }
    let first = name.as_bytes()[0];
    let last = name.as_bytes()[name.len() - 1];
    if !(first.is_ascii_lowercase() || first.is_ascii_digit()) {
        return false;
    }
    if !(last.is_ascii_lowercase() || last.is_ascii_digit()) {
        return false;
    }
    if name.contains("--") {
        return false;
    }
    true
}

/// Checks if an AWS account ID is valid (exactly 12 ASCII digits).
fn check_account_id(id: &str) -> bool {
    id.len() == 12 && id.bytes().all(|b| b.is_ascii_digit())
}

/// URL-encodes a path, preserving `/` separators.
fn encode_path(s: &str) -> String {
    let mut buf = String::new();
    for (i, seg) in s.split('/').enumerate() {
        if i > 0 {
            buf.push('/');
        }
        buf.push_str(&urlencoding::encode(seg));
    }
    buf
}

/// Parses an access point ARN resource: `accesspoint/<name>/object/<key>`
fn parse_access_point_resource(
    resource: &str,
    partition: &str,
    region: &str,
    account_id: &str,
    version_id: Option<Cow<'_, str>>,
) -> Result<CopySource, ParseCopySourceError> {
    let rest = resource
        .strip_prefix("accesspoint/")
        .ok_or(ParseCopySourceError::InvalidArn)?;
    let (name, key) = rest.split_once("/object/").ok_or(ParseCopySourceError::InvalidArn)?;

    if !check_access_point_name(name) {
        return Err(ParseCopySourceError::InvalidAccessPointName);
    }
    if key.is_empty() || !path::check_key(key) {
        return Err(ParseCopySourceError::InvalidKey);
    }

    Ok(CopySource::AccessPoint {
        partition: partition.into(),
        region: region.into(),
        account_id: account_id.into(),
        access_point_name: name.into(),
        key: key.into(),
        version_id: version_id.map(Into::into),
    })
}

/// Parses an outpost ARN resource: `outpost/<outpost-id>/object/<key>`
fn parse_outpost_resource(
    resource: &str,
    partition: &str,
    region: &str,
    account_id: &str,
    version_id: Option<Cow<'_, str>>,
) -> Result<CopySource, ParseCopySourceError> {
    let rest = resource.strip_prefix("outpost/").ok_or(ParseCopySourceError::InvalidArn)?;
    let (outpost_id, key) = rest.split_once("/object/").ok_or(ParseCopySourceError::InvalidArn)?;

    if outpost_id.is_empty() {
        return Err(ParseCopySourceError::InvalidArn);
    }
    if key.is_empty() || !path::check_key(key) {
        return Err(ParseCopySourceError::InvalidKey);
    }

    Ok(CopySource::Outpost {
        partition: partition.into(),
        region: region.into(),
        account_id: account_id.into(),
        outpost_id: outpost_id.into(),
        key: key.into(),
        version_id: version_id.map(Into::into),
    })
}

/// Parses a full ARN string: `arn:<partition>:<service>:<region>:<account-id>:<resource>`
fn parse_arn(arn: &str, version_id: Option<Cow<'_, str>>) -> Result<CopySource, ParseCopySourceError> {
    // ARN format: arn:partition:service:region:account-id:resource
    // Use splitn(6, ':') so colons in the resource part are preserved.
    let parts: Vec<&str> = arn.splitn(6, ':').collect();
    if parts.len() != 6 || parts[0] != "arn" {
        return Err(ParseCopySourceError::InvalidArn);
    }

    let partition = parts[1];
    let service = parts[2];
    let region = parts[3];
    let account_id = parts[4];
    let resource = parts[5];

    // Validate partition
    if !matches!(partition, "aws" | "aws-cn" | "aws-us-gov") {
        return Err(ParseCopySourceError::InvalidArn);
    }

    // Validate region is non-empty
    if region.is_empty() {
        return Err(ParseCopySourceError::InvalidArn);
    }

    // Validate account ID (12 ASCII digits)
    if !check_account_id(account_id) {
        return Err(ParseCopySourceError::InvalidAccountId);
    }

    match service {
        "s3" => parse_access_point_resource(resource, partition, region, account_id, version_id),
        "s3-outposts" => parse_outpost_resource(resource, partition, region, account_id, version_id),
        _ => Err(ParseCopySourceError::InvalidArn),
    }
}

impl CopySource {
    /// Parses [`CopySource`] from header
    ///
    /// Supports three formats:
    /// - Bucket: `<bucket>/<key>[?versionId=<id>]`
    /// - Access Point ARN: `arn:<partition>:s3:<region>:<account-id>:accesspoint/<name>/object/<key>[?versionId=<id>]`
    /// - Outpost ARN: `arn:<partition>:s3-outposts:<region>:<account-id>:outpost/<outpost-id>/object/<key>[?versionId=<id>]`
    ///
    /// # Errors
    /// Returns an error if the header is invalid
    pub fn parse(header: &str) -> Result<Self, ParseCopySourceError> {
        let (path_part, version_id) = extract_version_id(header)?;

        // steadfast patch 8: in this header a plus stands for a blank, as in a form; a plus itself is `%2B`.
        let path_part = path_part.replace('+', " ");
        let decoded = urlencoding::decode(&path_part).map_err(|_| ParseCopySourceError::InvalidEncoding)?;
        let decoded = decoded.strip_prefix('/').unwrap_or(&decoded);

        // Check if this is an ARN-based format
        if decoded.starts_with("arn:") {
            return parse_arn(decoded, version_id);
        }

        // Otherwise, parse as bucket/key
        match decoded.split_once('/') {
            None => Err(ParseCopySourceError::PatternMismatch),
            Some((bucket, key)) => {
                if !path::check_bucket_name(bucket) {
                    return Err(ParseCopySourceError::InvalidBucketName);
                }
                if !path::check_key(key) {
                    return Err(ParseCopySourceError::InvalidKey);
                }
                Ok(Self::Bucket {
                    bucket: bucket.into(),
                    key: key.into(),
                    version_id: version_id.map(Into::into),
                })
            }
        }
    }

    /// Formats the [`CopySource`] to a string suitable for the `x-amz-copy-source` header.
    #[must_use]
    pub fn format_to_string(&self) -> String {
        let mut buf = String::new();
        match self {
            CopySource::Bucket { bucket, key, version_id } => {
                let encoded_key = encode_path(key);
                write!(&mut buf, "{bucket}/{encoded_key}").unwrap();
                if let Some(version_id) = version_id {
                    let encoded_vid = urlencoding::encode(version_id);
                    write!(&mut buf, "?versionId={encoded_vid}").unwrap();
                }
            }
            CopySource::AccessPoint {
                partition,
                region,
                account_id,
                access_point_name,
                key,
                version_id,
            } => {
                let encoded_key = encode_path(key);
                write!(
                    &mut buf,
                    "arn:{partition}:s3:{region}:{account_id}:accesspoint/{access_point_name}/object/{encoded_key}"
                )
                .unwrap();
                if let Some(version_id) = version_id {
                    let encoded_vid = urlencoding::encode(version_id);
                    write!(&mut buf, "?versionId={encoded_vid}").unwrap();
                }
            }
            CopySource::Outpost {
                partition,
                region,
                account_id,
                outpost_id,
                key,
                version_id,
            } => {
                let encoded_key = encode_path(key);
                write!(
                    &mut buf,
                    "arn:{partition}:s3-outposts:{region}:{account_id}:outpost/{outpost_id}/object/{encoded_key}"
                )
                .unwrap();
                if let Some(version_id) = version_id {
                    let encoded_vid = urlencoding::encode(version_id);
                    write!(&mut buf, "?versionId={encoded_vid}").unwrap();
                }
            }
        }
        buf
    }
}

impl http::TryFromHeaderValue for CopySource {
    type Error = ParseCopySourceError;

    fn try_from_header_value(val: &http::HeaderValue) -> Result<Self, Self::Error> {
        let header = val.to_str().map_err(|_| ParseCopySourceError::InvalidEncoding)?;
        Self::parse(header)
    }
}
