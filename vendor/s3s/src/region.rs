// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! S3 region handling
//!
//! This module provides a strongly-typed [`Region`] type that ensures the
//! region string conforms to the pattern `[A-Za-z0-9._-]+`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Error returned when a region string is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid region: {0:?}")]
pub struct InvalidRegion(Box<str>);

/// A validated S3 region name.
///
/// The inner string is guaranteed to match the pattern `[A-Za-z0-9._-]+`:
/// it is non-empty and contains only ASCII letters, digits, hyphens,
/// underscores and dots.
///
/// # Examples
///
/// ```
/// use s3s::region::Region;
///
/// let region: Region = "us-east-1".parse().unwrap();
/// assert_eq!(region.as_str(), "us-east-1");
///
/// let err = "us east 1".parse::<Region>();
/// assert!(err.is_err());
///
/// let err = "".parse::<Region>();
/// assert!(err.is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Region(Box<str>);

impl Region {
    /// Validates a region string.
    ///
    /// Returns `true` if every byte matches `[A-Za-z0-9._-]` and the string
    /// is non-empty.
    // steadfast patch 1: capitals, `_` and `.` are regions to clients (s3cmd signs for `US`).
    fn is_valid(s: &str) -> bool {
        !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    }

    /// Creates a new `Region`, returning an error if the format is invalid.
    ///
    /// A valid region name must be non-empty and contain only characters
    /// matching `[A-Za-z0-9._-]`.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidRegion`] if the string is empty or contains
    /// characters outside `[A-Za-z0-9._-]`.
    pub fn new(s: Box<str>) -> Result<Self, InvalidRegion> {
        if Self::is_valid(&s) {
            Ok(Self(s))
        } else {
            Err(InvalidRegion(s))
        }
    }

    /// Returns the region name as a string slice.
    #[inline]
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Consumes `self` and returns the inner `Box<str>`.
    #[inline]
    #[must_use]
    pub fn into_boxed_str(self) -> Box<str> {
        self.0
    }
}

impl AsRef<str> for Region {
    #[inline]
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Region {
    type Err = InvalidRegion;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::new(s.into())
    }
}

impl Serialize for Region {
    fn serialize<S>(&self, serializer: S) -> Result<S::Ok, S::Error>
    where
        S: Serializer,
    {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Region {
    fn deserialize<D>(deserializer: D) -> Result<Self, D::Error>
    where
        D: Deserializer<'de>,
    {
        let value = String::deserialize(deserializer)?;
        Self::new(value.into_boxed_str()).map_err(serde::de::Error::custom)
    }
}
