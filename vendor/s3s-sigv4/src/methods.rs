// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! Canonicalization and signing for AWS Signature Version 4.

use std::cell::RefCell;

use arrayvec::ArrayString;
use smallvec::SmallVec;
use stdx::str::StrExt;
use zeroize::{Zeroize, Zeroizing};

use crate::AmzDate;
use crate::crypto::{hex_bytes32, hex_sha256, hex_sha256_chunk, hmac_sha256};

/// custom uri encode
#[allow(clippy::indexing_slicing, clippy::inline_always, clippy::unwrap_used)]
fn uri_encode(output: &mut String, input: &str, encode_slash: bool) {
    /// hex uppercase
    #[inline(always)] // perf
    fn to_hex(x: u8) -> u8 {
        b"0123456789ABCDEF"[usize::from(x)]
    }

    let mut buf: SmallVec<[u8; 512]> = SmallVec::with_capacity(input.len());

    for &byte in input.as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'~' | b'.' => buf.push(byte),
            b'/' => {
                if encode_slash {
                    buf.push(b'%');
                    buf.push(b'2');
                    buf.push(b'F');
                } else {
                    buf.push(byte);
                }
            }
            _ => {
                buf.push(b'%');
                buf.push(to_hex(byte.wrapping_shr(4)));
                buf.push(to_hex(byte & 15));
            }
        }
    }

    let s = str::from_ascii_simd(buf.as_ref()).unwrap();
    output.push_str(s);
}

/// custom uri encode
fn uri_encode_string(input: &str, encode_slash: bool) -> String {
    let mut output = String::with_capacity(input.len());
    uri_encode(&mut output, input, encode_slash);
    output
}

/// is skipped header
fn is_skipped_header(header: &str) -> bool {
    header == "authorization"
}

/// is skipped query string
fn is_skipped_query_string(name: &str) -> bool {
    name == "X-Amz-Signature"
}

/// Normalize header value according to AWS `SigV4` specification:
/// Trim leading and trailing whitespace and replace sequential whitespace with a single space.
///
/// Reference: <https://docs.aws.amazon.com/general/latest/gr/sigv4-create-canonical-request.html>
fn normalize_header_value(ans: &mut String, value: &str) {
    let trimmed = value.trim();

    // Fast path: if no internal whitespace, append as-is
    if !trimmed.chars().any(char::is_whitespace) {
        ans.push_str(trimmed);
        return;
    }

    // Split on any whitespace and rejoin with single spaces
    let mut first = true;
    for word in trimmed.split_whitespace() {
        if first {
            first = false;
        } else {
            ans.push(' ');
        }
        ans.push_str(word);
    }
}

/// sha256 hash of an empty string
pub const EMPTY_STRING_SHA256_HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Payload
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// unsigned
    Unsigned,
    /// single chunk
    SingleChunk(&'a str),
    /// multiple chunks
    MultipleChunks,
    /// multiple chunks with trailing headers
    MultipleChunksWithTrailer,
    /// unsigned streaming with trailing headers
    UnsignedMultipleChunksWithTrailer,
}

#[cfg(test)]
impl Payload<'_> {
    /// Empty single-chunk payload (the SHA-256 of an empty string).
    #[must_use]
    pub fn empty() -> Self {
        Payload::SingleChunk(EMPTY_STRING_SHA256_HASH)
    }
}

fn stable_sort_by_first<T>(v: &mut [(T, T)])
where
    T: Ord,
{
    v.sort_by(|lhs, rhs| lhs.0.cmp(&rhs.0));
}

/// Appends the canonicalized headers: each group of adjacent same-named
/// headers becomes `name:value1,value2\n` (skipped headers are omitted).
///
/// # Panics
///
/// The index accesses are guarded by the loop conditions (`i < len`,
/// `j < len`); clippy cannot prove this statically, so the lint is allowed
/// here and the invariants are documented.
#[allow(clippy::indexing_slicing)]
fn push_canonical_headers(ans: &mut String, headers: &[(&str, &str)]) {
    let mut i = 0;
    while i < headers.len() {
        let (name, value) = headers[i];
        if is_skipped_header(name) {
            i += 1;
            continue;
        }

        ans.push_str(name);
        ans.push(':');
        normalize_header_value(ans, value);

        // Combine values for headers with the same name (comma-separated)
        let mut j = i + 1;
        while j < headers.len() && headers[j].0 == name {
            ans.push(',');
            normalize_header_value(ans, headers[j].1);
            j += 1;
        }

        ans.push('\n');
        i = j;
    }
}

/// Appends the signed header names, each appearing once even if the header
/// has multiple values (skipped headers are omitted).
///
/// # Panics
///
/// The index accesses are guarded by the loop conditions (`i < len`);
/// clippy cannot prove this statically, so the lint is allowed here and
/// the invariants are documented.
#[allow(clippy::indexing_slicing)]
fn push_signed_headers(ans: &mut String, headers: &[(&str, &str)]) {
    let mut first_flag = true;
    let mut i = 0;
    while i < headers.len() {
        let (name, _) = headers[i];
        if is_skipped_header(name) {
            i += 1;
            continue;
        }

        if first_flag {
            first_flag = false;
        } else {
            ans.push(';');
        }
        ans.push_str(name);

        // Skip duplicate header names
        while i < headers.len() && headers[i].0 == name {
            i += 1;
        }
    }
}

fn create_canonical_request_with_uri_mode<'a>(
    method: &str,
    uri_path: &str,
    decoded_query_strings: &[(impl AsRef<str>, impl AsRef<str>)],
    signed_headers: impl AsRef<[(&'a str, &'a str)]>,
    payload: Payload<'_>,
    raw_uri_path: bool,
) -> String {
    let mut ans = String::with_capacity(256);

    {
        // <HTTPMethod>\n
        ans.push_str(method);
        ans.push('\n');
    }

    {
        // <CanonicalURI>\n
        if raw_uri_path {
            ans.push_str(uri_path);
        } else {
            uri_encode(&mut ans, uri_path, false);
        }
        ans.push('\n');
    }

    {
        // <CanonicalQueryString>\n
        let encoded_query_strings = {
            let mut qs = <SmallVec<[(String, String); 16]>>::new();
            for (n, v) in decoded_query_strings {
                let name = uri_encode_string(n.as_ref(), true);
                let value = uri_encode_string(v.as_ref(), true);
                qs.push((name, value));
            }
            stable_sort_by_first(&mut qs);
            qs
        };

        if let Some((first, remain)) = encoded_query_strings.split_first() {
            {
                let (name, value) = first;
                ans.push_str(name);
                ans.push('=');
                ans.push_str(value);
            }
            for (name, value) in remain {
                ans.push('&');
                ans.push_str(name);
                ans.push('=');
                ans.push_str(value);
            }
        }

        ans.push('\n');
    }

    {
        // <CanonicalHeaders>\n
        // According to AWS SigV4 spec, multiple headers with the same name should be combined with comma-separated values.
        // Reference: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html

        // FIXME: check HOST, Content-Type, x-amz-security-token, x-amz-content-sha256

        push_canonical_headers(&mut ans, signed_headers.as_ref());
        ans.push('\n');
    }

    {
        // <SignedHeaders>\n
        // Each header name should only appear once, even if the header has multiple values
        push_signed_headers(&mut ans, signed_headers.as_ref());
        ans.push('\n');
    }

    {
        // <HashedPayload>
        match payload {
            Payload::Unsigned => ans.push_str("UNSIGNED-PAYLOAD"),
            Payload::SingleChunk(checksum) => ans.push_str(checksum),
            Payload::MultipleChunks => ans.push_str("STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
            Payload::MultipleChunksWithTrailer => ans.push_str("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"),
            Payload::UnsignedMultipleChunksWithTrailer => ans.push_str("STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
        }
    }

    ans
}

/// create canonical request
#[must_use]
pub fn create_canonical_request<'a>(
    method: &str,
    uri_path: &str,
    decoded_query_strings: &[(impl AsRef<str>, impl AsRef<str>)],
    signed_headers: impl AsRef<[(&'a str, &'a str)]>,
    payload: Payload<'_>,
) -> String {
    create_canonical_request_with_uri_mode(method, uri_path, decoded_query_strings, signed_headers, payload, false)
}

/// create canonical request using the raw (unencoded) URI path
#[must_use]
pub fn create_canonical_request_with_raw_uri_path<'a>(
    method: &str,
    raw_uri_path: &str,
    decoded_query_strings: &[(impl AsRef<str>, impl AsRef<str>)],
    signed_headers: impl AsRef<[(&'a str, &'a str)]>,
    payload: Payload<'_>,
) -> String {
    create_canonical_request_with_uri_mode(method, raw_uri_path, decoded_query_strings, signed_headers, payload, true)
}

/// create string to sign
#[must_use]
pub fn create_string_to_sign(canonical_request: &str, amz_date: &AmzDate, region: &str, service: &str) -> String {
    let mut ans = String::with_capacity(256);

    {
        // <Algorithm>\n
        ans.push_str("AWS4-HMAC-SHA256\n");
    }

    {
        // <RequestDateTime>\n
        ans.push_str(&amz_date.fmt_iso8601());
        ans.push('\n');
    }

    {
        // <CredentialScope>\n
        ans.push_str(&amz_date.fmt_date());
        ans.push('/');
        ans.push_str(region);
        ans.push('/');
        ans.push_str(service);
        ans.push_str("/aws4_request\n");
    }

    {
        // <HashedCanonicalRequest>
        hex_sha256(canonical_request.as_bytes(), |s| ans.push_str(s));
    }

    ans
}

/// create `string_to_sign` of a chunk
#[must_use]
pub fn create_chunk_string_to_sign(
    amz_date: &AmzDate,
    region: &str,
    service: &str,
    prev_signature: &str,
    chunk_data: &[impl AsRef<[u8]>],
) -> String {
    if chunk_data.is_empty() {
        return create_chunk_string_to_sign_of_hash(amz_date, region, service, prev_signature, EMPTY_STRING_SHA256_HASH);
    }
    hex_sha256_chunk(chunk_data, |hash| {
        create_chunk_string_to_sign_of_hash(amz_date, region, service, prev_signature, hash)
    })
}

/// create `string_to_sign` of a chunk whose data has this SHA-256, in lowercase hexadecimal
// steadfast patch 2: a chunk is hashed as it comes.
#[must_use]
pub fn create_chunk_string_to_sign_of_hash(
    amz_date: &AmzDate,
    region: &str,
    service: &str,
    prev_signature: &str,
    chunk_hash: &str,
) -> String {
    let mut ans = String::with_capacity(256);

    {
        ans.push_str("AWS4-HMAC-SHA256-PAYLOAD\n");
    }
    {
        ans.push_str(&amz_date.fmt_iso8601());
        ans.push('\n');
    }
    {
        ans.push_str(&amz_date.fmt_date());
        ans.push('/');
        ans.push_str(region);
        ans.push('/');
        ans.push_str(service);
        ans.push_str("/aws4_request\n");
    }
    {
        ans.push_str(prev_signature);
        ans.push('\n');
    }
    {
        ans.push_str(EMPTY_STRING_SHA256_HASH);
        ans.push('\n');
    }
    {
        ans.push_str(chunk_hash);
    }

    ans
}

/// create `string_to_sign` of the final trailer block (0-chunk with trailing headers)
#[must_use]
pub fn create_trailer_string_to_sign(
    amz_date: &AmzDate,
    region: &str,
    service: &str,
    prev_signature: &str,
    canonical_trailers: &[u8],
) -> String {
    let mut ans = String::with_capacity(256);

    {
        ans.push_str("AWS4-HMAC-SHA256-TRAILER\n");
    }
    {
        ans.push_str(&amz_date.fmt_iso8601());
        ans.push('\n');
    }
    {
        ans.push_str(&amz_date.fmt_date());
        ans.push('/');
        ans.push_str(region);
        ans.push('/');
        ans.push_str(service);
        ans.push_str("/aws4_request\n");
    }
    {
        ans.push_str(prev_signature);
        ans.push('\n');
    }
    {
        // hash of canonicalized trailing headers
        hex_sha256(canonical_trailers, |s| ans.push_str(s));
    }

    ans
}

/// derive the `SigV4` signing key
///
/// `kSigning = HMAC(HMAC(HMAC(HMAC("AWS4" + secret, date), region), service), "aws4_request")`
#[must_use]
pub fn derive_signing_key(secret_key: impl AsRef<[u8]>, amz_date: &AmzDate, region: &str, service: &str) -> [u8; 32] {
    let secret_key = secret_key.as_ref();
    let mut secret = {
        let mut buf = <SmallVec<[u8; 128]>>::with_capacity(secret_key.len().saturating_add(4));
        buf.extend_from_slice(b"AWS4");
        buf.extend_from_slice(secret_key);
        buf
    };

    // DateKey
    let date = amz_date.fmt_date();
    let date_key = hmac_sha256(secret.as_slice(), date.as_bytes());

    secret.zeroize();
    drop(secret);

    // DateRegionKey
    let date_region_key = hmac_sha256(date_key, region);

    // DateRegionServiceKey
    let date_region_service_key = hmac_sha256(date_region_key, service);

    // SigningKey
    hmac_sha256(date_region_service_key, "aws4_request")
}

/// calculate signature
#[must_use]
pub fn calculate_signature(
    string_to_sign: &str,
    secret_key: impl AsRef<[u8]>,
    amz_date: &AmzDate,
    region: &str,
    service: &str,
) -> String {
    with_signing_key(secret_key.as_ref(), amz_date, region, service, |signing_key| {
        hex_bytes32(&calculate_signature_with_key(string_to_sign, signing_key), str::to_owned)
    })
}

/// steadfast patch 7: what a signing key was derived from, and the key.
struct Derived {
    secret_key: Zeroizing<Vec<u8>>,
    date: ArrayString<8>,
    region: String,
    service: String,
    signing_key: Zeroizing<[u8; 32]>,
}

thread_local! {
    /// steadfast patch 7: the last signing key of this thread. It is the same for a day.
    static LAST: RefCell<Option<Derived>> = const { RefCell::new(None) };
}

fn with_signing_key<T>(secret_key: &[u8], amz_date: &AmzDate, region: &str, service: &str, sign: impl FnOnce(&[u8; 32]) -> T) -> T {
    let date = amz_date.fmt_date();
    LAST.with_borrow_mut(|last| {
        let fits = |l: &Derived| {
            l.date == date && l.region == region && l.service == service && l.secret_key.as_slice() == secret_key
        };
        let derived = match last.take().filter(fits) {
            Some(derived) => last.insert(derived),
            None => last.insert(Derived {
                secret_key: Zeroizing::new(secret_key.to_vec()),
                date,
                region: region.to_owned(),
                service: service.to_owned(),
                signing_key: Zeroizing::new(derive_signing_key(secret_key, amz_date, region, service)),
            }),
        };
        sign(&derived.signing_key)
    })
}

/// calculate signature with a derived signing key
#[must_use]
pub fn calculate_signature_with_key(string_to_sign: &str, signing_key: &[u8; 32]) -> [u8; 32] {
    hmac_sha256(signing_key, string_to_sign)
}

fn create_presigned_canonical_request_with_uri_mode<'a>(
    method: &str,
    uri_path: &str,
    decoded_query_strings: &[(impl AsRef<str>, impl AsRef<str>)],
    signed_headers: impl AsRef<[(&'a str, &'a str)]>,
    raw_uri_path: bool,
) -> String {
    let mut ans = String::with_capacity(256);
    {
        // <HTTPMethod>\n
        ans.push_str(method);
        ans.push('\n');
    }
    {
        // <CanonicalURI>\n
        if raw_uri_path {
            ans.push_str(uri_path);
        } else {
            uri_encode(&mut ans, uri_path, false);
        }
        ans.push('\n');
    }
    {
        // <CanonicalQueryString>\n
        let encoded_query_strings = {
            let mut qs = <SmallVec<[(String, String); 16]>>::new();
            for (n, v) in decoded_query_strings {
                if is_skipped_query_string(n.as_ref()) {
                    continue;
                }
                let name = uri_encode_string(n.as_ref(), true);
                let value = uri_encode_string(v.as_ref(), true);
                qs.push((name, value));
            }
            stable_sort_by_first(&mut qs);
            qs
        };

        if let Some((first, remain)) = encoded_query_strings.split_first() {
            {
                let (name, value) = first;
                ans.push_str(name);
                ans.push('=');
                ans.push_str(value);
            }
            for (name, value) in remain {
                ans.push('&');
                ans.push_str(name);
                ans.push('=');
                ans.push_str(value);
            }
        }

        ans.push('\n');
    }
    {
        // <CanonicalHeaders>\n
        // According to AWS SigV4 spec, multiple headers with the same name should be
        // combined into a single header with values separated by commas.

        push_canonical_headers(&mut ans, signed_headers.as_ref());
        ans.push('\n');
    }
    {
        // <SignedHeaders>\n
        // Each header name should only appear once, even if the header has multiple values
        push_signed_headers(&mut ans, signed_headers.as_ref());
        ans.push('\n');
    }
    {
        // <Payload>
        ans.push_str("UNSIGNED-PAYLOAD");
    }
    ans
}

/// create presigned canonical request
#[must_use]
pub fn create_presigned_canonical_request<'a>(
    method: &str,
    uri_path: &str,
    decoded_query_strings: &[(impl AsRef<str>, impl AsRef<str>)],
    signed_headers: impl AsRef<[(&'a str, &'a str)]>,
) -> String {
    create_presigned_canonical_request_with_uri_mode(method, uri_path, decoded_query_strings, signed_headers, false)
}

/// create presigned canonical request using the raw (unencoded) URI path
#[must_use]
pub fn create_presigned_canonical_request_with_raw_uri_path<'a>(
    method: &str,
    raw_uri_path: &str,
    decoded_query_strings: &[(impl AsRef<str>, impl AsRef<str>)],
    signed_headers: impl AsRef<[(&'a str, &'a str)]>,
) -> String {
    create_presigned_canonical_request_with_uri_mode(method, raw_uri_path, decoded_query_strings, signed_headers, true)
}
