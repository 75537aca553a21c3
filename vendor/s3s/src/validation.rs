// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! Validation API for S3 bucket names.
//!
//! The [`NameValidation`] trait lets users plug in a custom bucket name validator.
//! [`AwsNameValidation`] provides the standard AWS bucket naming rules.

#![deny(missing_docs)]

/// Trait for validating S3 bucket names
///
/// Implementations should return `true` for valid names and `false` for invalid ones.
pub trait NameValidation: Send + Sync + 'static {
    /// Validate a bucket name
    fn validate_bucket_name(&self, name: &str) -> bool;
}

/// AWS-compliant name validation
#[derive(Debug, Clone, Default)]
pub struct AwsNameValidation {
    _priv: (),
}

impl AwsNameValidation {
    /// Creates a new `AwsNameValidation`.
    #[must_use]
    pub const fn new() -> Self {
        Self { _priv: () }
    }
}

impl NameValidation for AwsNameValidation {
    fn validate_bucket_name(&self, name: &str) -> bool {
        crate::path::check_bucket_name(name)
    }
}
