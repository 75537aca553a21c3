// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

use crate::utils::trim_ows;

/// A parsed `Content-Disposition` value.
///
/// The `name` and `file_name` fields borrow the original header value bytes
/// and are not guaranteed to be UTF-8. Callers decide how to convert them.
///
/// Only the `form-data` disposition type is recognized; a value with any other
/// type (for example `attachment`) is rejected by
/// [`parse_content_disposition`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentDisposition<'a> {
    /// The `name` parameter, if present.
    pub name: Option<&'a [u8]>,
    /// The `filename` parameter, if present.
    pub file_name: Option<&'a [u8]>,
}

/// Parses a single `Content-Disposition` header value.
///
/// The parser is deliberately tolerant:
///
/// - the disposition type is matched case-insensitively and must be
///   `form-data`;
/// - parameter names are matched case-insensitively;
/// - parameters may appear in any order;
/// - unknown parameters (including `filename*`) are ignored;
/// - parameter values may be quoted strings or bare tokens;
/// - a missing `name` is represented as `None`.
///
/// Returned `name` and `file_name` values borrow the input and are returned
/// verbatim: they are always sub-slices of `value`, so parsing never
/// allocates. Quoted values keep their backslash escape sequences
/// (`quoted-pair`), which RFC 2046 expects a parser to decode; decoding and
/// UTF-8 conversion are the caller's responsibility. For example,
/// `filename="a\"b.txt"` yields `a\"b.txt`, not `a"b.txt`.
///
/// # Best-effort semantics
///
/// Parsing stops at the first malformed parameter and the parameters parsed so
/// far are returned. A malformed tail is therefore indistinguishable from a
/// part without a `name`: both yield `name: None`. For example
/// `form-data; name="unterminated` and `form-data; junk` both return
/// `Some(ContentDisposition { name: None, file_name: None })`. Callers that
/// must reject malformed values have to validate the raw header themselves; a
/// `None` return only means that the value is not a `form-data`
/// `Content-Disposition`.
#[must_use]
pub fn parse_content_disposition(value: &[u8]) -> Option<ContentDisposition<'_>> {
    let input = trim_ows(value);
    let semicolon = memchr::memchr(b';', input);

    let disposition = match semicolon {
        Some(idx) => trim_ows(&input[..idx]),
        None => input,
    };
    if !disposition.eq_ignore_ascii_case(b"form-data") {
        return None;
    }

    let Some(semicolon) = semicolon else {
        return Some(ContentDisposition {
            name: None,
            file_name: None,
        });
    };

    let mut name = None;
    let mut file_name = None;
    let mut rest = &input[semicolon.saturating_add(1)..];

    while !trim_ows(rest).is_empty() {
        let Some((key, parsed_value, next)) = parse_parameter(rest) else {
            break;
        };

        if name.is_none() && key.eq_ignore_ascii_case(b"name") {
            name = Some(parsed_value);
        } else if file_name.is_none() && key.eq_ignore_ascii_case(b"filename") {
            file_name = Some(parsed_value);
        }

        rest = next;
    }

    Some(ContentDisposition { name, file_name })
}

fn parse_parameter(input: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let input = trim_ows(input);
    let equals = memchr::memchr(b'=', input)?;
    let key = trim_ows(&input[..equals]);
    if key.is_empty() {
        return None;
    }

    let value_input = trim_ows(&input[equals.saturating_add(1)..]);
    let (value, next) = if value_input.first() == Some(&b'"') {
        let value = parse_quoted(value_input)?;
        let next = skip_until_semicolon(value.next);
        (value.text, next)
    } else {
        let semicolon = memchr::memchr(b';', value_input);
        match semicolon {
            Some(idx) => (trim_ows(&value_input[..idx]), &value_input[idx.saturating_add(1)..]),
            None => (trim_ows(value_input), &b""[..]),
        }
    };

    Some((key, value, next))
}

fn parse_quoted(input: &[u8]) -> Option<ParsedQuoted<'_>> {
    if input.first() != Some(&b'"') {
        return None;
    }

    // Bulk-scan for the closing quote or the first backslash. A value that
    // contains escapes falls back to the byte-wise scan below, so escape-heavy
    // input is never slower than scanning every byte up front.
    let idx = memchr::memchr2(b'"', b'\\', &input[1..])?;
    let pos = idx.saturating_add(1);
    if input[pos] == b'"' {
        return Some(ParsedQuoted {
            text: &input[1..pos],
            next: &input[pos.saturating_add(1)..],
        });
    }

    let mut escaped = false;
    let mut end = None;
    for (offset, byte) in input[pos..].iter().enumerate() {
        if escaped {
            escaped = false;
        } else if *byte == b'\\' {
            escaped = true;
        } else if *byte == b'"' {
            end = Some(pos.saturating_add(offset));
            break;
        }
    }

    let end = end?;
    Some(ParsedQuoted {
        text: &input[1..end],
        next: &input[end.saturating_add(1)..],
    })
}

fn skip_until_semicolon(input: &[u8]) -> &[u8] {
    match memchr::memchr(b';', input) {
        Some(idx) => &input[idx.saturating_add(1)..],
        None => &b""[..],
    }
}

struct ParsedQuoted<'a> {
    text: &'a [u8],
    next: &'a [u8],
}
