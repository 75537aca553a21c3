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

/// Decodes the RFC 2047 encoded words in a header's value (encodings B and Q, character sets by
/// the labels of the Encoding Standard). White space between adjacent words is dropped, and a
/// character may be split over adjacent words of the same character set. Text that is not encoded,
/// and words that cannot be decoded, stay as they are.
///
/// # Errors
///
/// Returns `DecodeError::InputTooLarge` if the input exceeds `MAX_INPUT_LEN` (1 MB).
// steadfast patch 14: upstream takes every character set for UTF-8, drops text between words, and fails on others.
pub fn decode(s: &str) -> Result<Cow<'_, str>, DecodeError> {
    // Input size validation to prevent DoS
    if s.len() > MAX_INPUT_LEN {
        return Err(DecodeError::InputTooLarge);
    }
    let s = s.trim();
    if !s.contains("=?") {
        return Ok(Cow::Borrowed(s));
    }
    let mut out = String::with_capacity(s.len());
    let mut run: Option<Run> = None;
    // The text from `written` is not in `out` yet; it is searched for words from `at`.
    let (mut written, mut at) = (0, 0);
    while let Some(found) = s.get(at..).and_then(|rest| rest.find("=?")) {
        let start = at + found;
        let Some((charset, bytes, len)) = s.get(start..).and_then(word) else {
            at = start + 2;
            continue;
        };
        let gap = s.get(written..start).unwrap_or_default();
        let adjacent = run.is_some() && gap.trim().is_empty();
        (at, written) = (start + len, start + len);
        match &mut run {
            Some(run) if adjacent && run.charset == charset => {
                run.bytes.extend_from_slice(&bytes);
                run.end = at;
            }
            _ => {
                let next = Run { charset, bytes, start, end: at };
                finish(s, &mut out, run.replace(next));
                if !adjacent {
                    out.push_str(gap);
                }
            }
        }
    }
    finish(s, &mut out, run);
    out.push_str(s.get(written..).unwrap_or_default());
    Ok(Cow::Owned(out))
}

/// Adjacent words of one character set: their bytes, and where they are in the text.
struct Run {
    charset: &'static encoding_rs::Encoding,
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

/// Appends the decoded words, or their text if their bytes are invalid.
fn finish(s: &str, out: &mut String, run: Option<Run>) {
    let Some(run) = run else { return };
    match run.charset.decode_without_bom_handling_and_without_replacement(&run.bytes) {
        Some(text) => out.push_str(&text),
        None => out.push_str(s.get(run.start..run.end).unwrap_or_default()),
    }
}

/// The encoded word at the start of a text: its character set, bytes and length.
fn word(s: &str) -> Option<(&'static encoding_rs::Encoding, Vec<u8>, usize)> {
    let inner = s.strip_prefix("=?")?;
    let mut parts = inner.splitn(3, '?');
    let (charset, encoding, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let text = rest.get(..rest.find("?=")?)?;
    if text.contains([' ', '\t', '?']) {
        return None;
    }
    // A language may follow the character set (RFC 2231).
    let charset = charset.split('*').next().unwrap_or_default();
    let charset = encoding_rs::Encoding::for_label(charset.as_bytes())?;
    let bytes = match encoding {
        "B" | "b" => decode_base64(text)?,
        "Q" | "q" => decode_quoted_printable(text).ok()?,
        _ => return None,
    };
    let len = s.len() - rest.len() + text.len() + "?=".len();
    Some((charset, bytes, len))
}

/// Base64 with or without its padding.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    base64_simd::STANDARD_NO_PAD.decode_to_vec(text.trim_end_matches('=')).ok()
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
    /// Hex decoding failed in Quoted-Printable.
    #[error("invalid hex in quoted-printable encoding")]
    InvalidHex,
}
