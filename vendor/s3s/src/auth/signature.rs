// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! Request signatures used for AWS Signature verification.
//!
//! # Invariants
//!
//! - Values are validated at construction and always hold a canonical encoded
//!   form (`SigV4`: 64 lowercase hex chars; `SigV2`: 28-char standard Base64 with
//!   padding). Comparisons within the same form are always equal-length and
//!   constant-time over the content; cross-form comparison is always unequal
//!   (the length difference is algorithm-public, not secret).
//! - `PartialEq` / `Eq` / `Hash` are deliberately NOT implemented: an ordinary
//!   `==` comparison is a compile error; comparison must go through
//!   [`Signature::compare`] or [`ConstantTimeEq`] to avoid timing side channels.
//! - [`Signature::as_str`] is for string-to-sign chaining and logging, NOT for
//!   comparison.
//! - Do NOT add unchecked constructors (e.g. `From<&str>`); doing so would
//!   break both invariants above.

use crate::utils::crypto::is_sha256_checksum;
use subtle::ConstantTimeEq;

/// An AWS request signature in its canonical encoded form.
///
/// Not a secret: the value is transmitted in cleartext with the request itself.
/// `Debug` therefore prints the value (unlike [`SecretKey`](crate::auth::SecretKey)).
#[derive(Debug)]
pub struct Signature(Box<str>);

impl Signature {
    /// Parses a `SigV4` signature (64 lowercase hexadecimal characters).
    ///
    /// Returns `None` if `value` is not a canonical `SigV4` signature.
    #[must_use]
    pub fn from_hex(value: &str) -> Option<Self> {
        is_sha256_checksum(value).then(|| Self(value.into()))
    }

    /// Parses a `SigV2` signature (standard Base64 with padding; HMAC-SHA1, 20 bytes).
    ///
    /// Returns `None` if `value` is not a canonical `SigV2` signature.
    #[must_use]
    pub fn from_base64(value: &str) -> Option<Self> {
        // SigV2 signatures are always 28 chars (20-byte HMAC-SHA1 with padding);
        // reject other lengths before any validation work.
        if value.len() != 28 {
            return None;
        }

        // `check` validates the alphabet, the padding structure, and the
        // canonical padding bits (`STANDARD` is not forgiving). The
        // decoded-length check pins the payload to exactly 20 bytes.
        base64_simd::STANDARD.check(value.as_bytes()).ok()?;
        (base64_simd::STANDARD.decoded_length(value.as_bytes()).ok()? == 20).then(|| Self(value.into()))
    }

    /// Wraps a signature produced by `s3s_sigv2::calculate_signature` /
    /// `s3s_sigv4::calculate_signature`, whose output is canonical by construction.
    ///
    /// Called only inside the two `calculate_signature` functions.
    /// Do not use for data received from the wire; use [`Self::from_hex`] /
    /// [`Self::from_base64`] instead.
    #[must_use]
    pub(crate) fn from_computed(value: String) -> Self {
        debug_assert!(
            Self::from_hex(&value).is_some() || Self::from_base64(&value).is_some(),
            "internal error: computed signature is not canonical"
        );
        Self(value.into_boxed_str())
    }

    /// Returns the canonical encoded form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares two signatures in constant time.
    ///
    /// Returns `true` if `left` and `right` hold the same canonical value.
    /// Cross-form comparisons (`SigV4` vs `SigV2`) are always `false`.
    ///
    /// This is the canonical way to compare signatures; see the module-level
    /// invariants for why `==` / `!=` must not be used.
    #[must_use]
    pub fn compare(left: &Self, right: &Self) -> bool {
        bool::from(left.ct_eq(right))
    }
}

impl ConstantTimeEq for Signature {
    fn ct_eq(&self, other: &Self) -> subtle::Choice {
        self.0.as_bytes().ct_eq(other.0.as_bytes())
    }
}
