// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! RFC 2047 MIME encoded-word encoding and decoding for non-ASCII header values.
//!
//! See <https://datatracker.ietf.org/doc/html/rfc2047> for the specification.

#![deny(missing_docs)]
#![deny(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unreachable,
    clippy::unwrap_used
)]

use std::borrow::Cow;

// RFC 2047: encoded-word must not be longer than 75 characters, including delimiters.
const MAX_ENCODED_WORD_LEN: usize = 75;
const PREFIX: &str = "=?UTF-8?B?";
const SUFFIX: &str = "?=";

// Maximum input length to prevent DoS attacks (1 MB)
const MAX_INPUT_LEN: usize = 1024 * 1024;

/// Checks if a string contains only ASCII characters that are valid in HTTP header values.
fn is_ascii_header_safe(s: &str) -> bool {
    s.bytes().all(|b| b.is_ascii() && b >= 0x20 && b != 0x7f)
}

/// Encodes a string using RFC 2047 Base64 encoding if it contains non-ASCII
/// or control characters. Returns the original string if it only contains
/// ASCII printable characters (0x20-0x7E excluding 0x7F).
///
/// Per RFC 2047 Section 2, an encoded-word must not be longer than 75 characters.
/// For longer inputs, multiple encoded-words are produced, separated by spaces.
///
/// # Errors
///
/// Returns `EncodeError::InputTooLarge` if the input exceeds `MAX_INPUT_LEN` (1 MB).
/// Returns `EncodeError::InvalidUtf8Boundary` if UTF-8 boundary finding fails.
pub fn encode(s: &str) -> Result<Cow<'_, str>, EncodeError> {
    // Input size validation to prevent DoS
    if s.len() > MAX_INPUT_LEN {
        return Err(EncodeError::InputTooLarge);
    }

    if is_ascii_header_safe(s) {
        return Ok(Cow::Borrowed(s));
    }

    // Calculate max length for encoded_text portion
    // Format: =?UTF-8?B?<encoded_text>?=
    let overhead = PREFIX.len() + SUFFIX.len(); // 10 + 2 = 12
    let max_encoded_text_len = MAX_ENCODED_WORD_LEN - overhead; // 63

    // Each 3 bytes of input become 4 bytes of base64
    // So max input bytes per chunk = floor(63 / 4) * 3 = 15 * 3 = 45
    let max_input_bytes = max_encoded_text_len / 4 * 3;

    let bytes = s.as_bytes();

    // Estimate if it fits in a single encoded-word (each byte becomes ~1.33 base64 chars)
    let estimated_encoded_len = (bytes.len() * 4).div_ceil(3);
    if estimated_encoded_len + overhead <= MAX_ENCODED_WORD_LEN {
        let full_encoded = base64_simd::STANDARD.encode_to_string(bytes);
        return Ok(Cow::Owned(format!("{PREFIX}{full_encoded}{SUFFIX}")));
    }

    // Split into multiple encoded-words, respecting UTF-8 character boundaries
    // Pre-allocate result string to avoid repeated reallocations
    let num_chunks = s.len().div_ceil(max_input_bytes);
    let estimated_capacity = s.len() + (overhead + 1) * num_chunks; // +1 for spaces
    let mut result = String::with_capacity(estimated_capacity);
    let mut i = 0;
    while i < s.len() {
        let mut end = usize::min(i + max_input_bytes, s.len());
        // Adjust end to the nearest UTF-8 character boundary
        while end > i && !s.is_char_boundary(end) {
            end -= 1;
        }
        // Ensure we made progress (UTF-8 characters are at most 4 bytes, and max_input_bytes is 45)
        if end <= i {
            return Err(EncodeError::InvalidUtf8Boundary);
        }
        let chunk = s.get(i..end).ok_or(EncodeError::InvalidUtf8Boundary)?;
        let encoded = base64_simd::STANDARD.encode_to_string(chunk.as_bytes());
        if !result.is_empty() {
            result.push(' ');
        }
        result.push_str(PREFIX);
        result.push_str(&encoded);
        result.push_str(SUFFIX);
        i = end;
    }
    Ok(Cow::Owned(result))
}

/// Decodes an RFC 2047 encoded-word string.
/// If the string is not RFC 2047 encoded, returns it unchanged.
/// Supports both Base64 (B) and Quoted-Printable (Q) encodings.
/// Handles multiple space-separated encoded-words per RFC 2047 Section 2.
///
/// # Input Constraints
/// - Maximum input length: 1 MB
/// - Maximum number of encoded-words: No explicit limit, but bounded by input length
/// - Maximum decoded output size: Bounded by input length
///
/// # Charset Handling
/// This implementation primarily supports UTF-8 charset. For other charsets,
/// it attempts to decode the bytes as UTF-8, which may fail if the original
/// encoding used a different character set. A full implementation would need
/// to support additional charsets like ISO-8859-1, etc.
///
/// # Errors
///
/// Returns `DecodeError::InputTooLarge` if the input exceeds `MAX_INPUT_LEN` (1 MB).
pub fn decode(s: &str) -> Result<Cow<'_, str>, DecodeError> {
    // Input size validation to prevent DoS
    if s.len() > MAX_INPUT_LEN {
        return Err(DecodeError::InputTooLarge);
    }

    let s = s.trim();

    // Check if this looks like an RFC 2047 encoded word
    if !s.starts_with("=?") || !s.ends_with("?=") {
        // Not encoded, return as-is
        return Ok(Cow::Borrowed(s));
    }

    // Count actual encoded-word patterns, not just "?=" occurrences
    let encoded_word_count = s
        .split_whitespace()
        .filter(|p| p.starts_with("=?") && p.ends_with("?="))
        .count();
    let has_multiple_words = encoded_word_count > 1;
    if has_multiple_words {
        let mut result = Vec::with_capacity(s.len());
        for part in s.split_whitespace() {
            if part.is_empty() || !part.starts_with("=?") || !part.ends_with("?=") {
                continue;
            }
            let decoded = decode_single_word(part)?;
            result.extend_from_slice(decoded.as_bytes());
        }
        if result.is_empty() {
            return Err(DecodeError::InvalidFormat);
        }
        return String::from_utf8(result)
            .map(Cow::Owned)
            .map_err(|_| DecodeError::InvalidUtf8);
    }

    // Single encoded-word
    decode_single_word(s).map(Cow::Owned)
}

/// Decodes a single RFC 2047 encoded-word.
fn decode_single_word(s: &str) -> Result<String, DecodeError> {
    let s = s.trim();
    if !s.starts_with("=?") || !s.ends_with("?=") {
        return Err(DecodeError::InvalidFormat);
    }

    // Parse the encoded word: =?charset?encoding?encoded_text?=
    let inner = s
        .strip_prefix("=?")
        .and_then(|s| s.strip_suffix("?="))
        .ok_or(DecodeError::InvalidFormat)?;
    let mut parts = inner.splitn(3, '?');

    let _charset = parts.next().ok_or(DecodeError::InvalidFormat)?;
    let encoding = parts.next().ok_or(DecodeError::InvalidFormat)?;
    let encoded_text = parts.next().ok_or(DecodeError::InvalidFormat)?;

    // Decode based on encoding type
    let decoded_bytes = match encoding.to_ascii_uppercase().as_str() {
        "B" => base64_simd::STANDARD
            .decode_to_vec(encoded_text)
            .map_err(|_| DecodeError::Base64Error)?,
        "Q" => decode_quoted_printable(encoded_text)?,
        _ => return Err(DecodeError::UnsupportedEncoding),
    };

    // Convert to string based on charset
    // Note: For non-UTF-8 charsets, we attempt UTF-8 decoding which may fail
    String::from_utf8(decoded_bytes).map_err(|_| DecodeError::InvalidUtf8)
}

/// Decodes a Quoted-Printable encoded string according to RFC 2047.
/// According to RFC 2047, only ASCII printable characters should appear
/// directly in Q-encoded text, with non-ASCII bytes encoded as =XX.
fn decode_quoted_printable(s: &str) -> Result<Vec<u8>, DecodeError> {
    // Use a small initial capacity to avoid large pre-allocation
    let mut result = Vec::with_capacity(std::cmp::min(64, s.len()));
    let mut chars = s.chars().peekable();

    while let Some(c) = chars.next() {
        match c {
            '=' => {
                // Hex-encoded byte
                let h1 = chars.next().ok_or(DecodeError::InvalidFormat)?;
                let h2 = chars.next().ok_or(DecodeError::InvalidFormat)?;
                // to_digit(16) returns 0-15 for valid hex, which fits in u8
                #[allow(clippy::cast_possible_truncation)]
                let high = h1.to_digit(16).ok_or(DecodeError::InvalidHex)? as u8;
                #[allow(clippy::cast_possible_truncation)]
                let low = h2.to_digit(16).ok_or(DecodeError::InvalidHex)? as u8;
                let byte = (high << 4) | low;
                result.push(byte);
            }
            '_' => {
                // Underscore represents space in RFC 2047 Q encoding
                result.push(b' ');
            }
            c if c.is_ascii() => {
                // Regular ASCII character - safe to cast to u8
                #[allow(clippy::cast_possible_truncation)]
                result.push(c as u8);
            }
            _ => {
                // Non-ASCII character in Q-encoded text is invalid
                return Err(DecodeError::InvalidFormat);
            }
        }
    }

    Ok(result)
}

/// Errors that can occur during RFC 2047 encoding.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The input string is too large (exceeds `MAX_INPUT_LEN`).
    #[error("input string too large (max {MAX_INPUT_LEN} bytes)")]
    InputTooLarge,
    /// Failed to find a valid UTF-8 character boundary.
    #[error("failed to find valid UTF-8 character boundary")]
    InvalidUtf8Boundary,
}

/// Errors that can occur during RFC 2047 decoding.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The input string is too large (exceeds `MAX_INPUT_LEN`).
    #[error("input string too large (max {MAX_INPUT_LEN} bytes)")]
    InputTooLarge,
    /// The encoded word format is invalid.
    #[error("invalid RFC 2047 encoded-word format")]
    InvalidFormat,
    /// Base64 decoding failed.
    #[error("base64 decoding failed")]
    Base64Error,
    /// Hex decoding failed in Quoted-Printable.
    #[error("invalid hex in quoted-printable encoding")]
    InvalidHex,
    /// The decoded bytes are not valid UTF-8.
    #[error("decoded bytes are not valid UTF-8")]
    InvalidUtf8,
    /// The encoding type is not supported.
    #[error("unsupported encoding type")]
    UnsupportedEncoding,
}
