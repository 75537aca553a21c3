// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! Small byte helpers shared by the parsers.

/// Whether `byte` is optional whitespace (`SP` / `HTAB`, RFC 9110 OWS).
///
/// `u8::is_ascii_whitespace` is deliberately not used: it also accepts `LF`,
/// `CR`, `VT` and `FF`, which are not optional whitespace.
const fn is_ows(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Trims optional whitespace (`SP` / `HTAB`) from both ends of `value`.
///
/// Shared by the header block parser and the `Content-Disposition` parser,
/// which used to carry byte-identical private copies.
pub fn trim_ows(mut value: &[u8]) -> &[u8] {
    while let Some((first, rest)) = value.split_first() {
        if !is_ows(*first) {
            break;
        }
        value = rest;
    }
    while let Some((last, rest)) = value.split_last() {
        if !is_ows(*last) {
            break;
        }
        value = rest;
    }
    value
}
