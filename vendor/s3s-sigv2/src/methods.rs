// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! Canonicalization and signing for AWS Signature Version 2.
//!
//! <https://docs.aws.amazon.com/AmazonS3/latest/userguide/RESTAuthentication.html>

use base64_simd::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use smallvec::SmallVec;

/// Request signature mode for [`create_string_to_sign`].
#[derive(Debug, Clone, Copy)]
pub enum Mode {
    /// Signature via the `Authorization` request header.
    HeaderAuth,
    /// Signature via query parameters (pre-signed URL).
    PresignedUrl,
}

/// Query parameters that participate in the canonicalized resource,
/// in the fixed output order required by `SigV2`.
const INCLUDED_QUERY: &[&str] = &[
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "defaultObjectAcl",
    "delete",
    "inventory",
    "lifecycle",
    "location",
    "logging",
    "metrics",
    "notification",
    "object-lock",
    "partNumber",
    "policy",
    "replication",
    "requestPayment",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "restore",
    "select",
    "select-type",
    "storageClass",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versionId",
    "versioning",
    "versions",
    "website",
];

/// Returns the value only when the name maps to exactly one header.
///
/// Repeated header lines (including case variants) are treated as if the
/// header were absent instead of silently picking an arbitrary duplicate.
fn get_unique_header_str<'a>(headers: &'a [(&'a str, &'a str)], name: &str) -> Option<&'a str> {
    let mut iter = headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
    let (_, value) = iter.next()?;
    if iter.next().is_some() {
        return None;
    }
    Some(value)
}

/// Returns the value only when the name maps to exactly one entry.
///
/// The query pairs must be sorted by name (the `OrderedQs` contract) for the
/// binary search to be valid; repeated names are treated as absent.
///
/// # Panics
///
/// The `qs[lower_bound..]` access cannot panic: `partition_point` returns a
/// `lower_bound ≤ qs.len()`. clippy cannot prove this statically, so the lint
/// is allowed here and the invariant is documented.
#[allow(clippy::indexing_slicing)]
fn get_unique_qs<'a>(qs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let lower_bound = qs.partition_point(|x| x.0.as_str() < name);

    let mut iter = qs[lower_bound..].iter();
    let pair = iter.next()?;

    if let Some(following) = iter.next()
        && following.0 == name
    {
        return None;
    }

    (pair.0.as_str() == name).then_some(pair.1.as_str())
}

/// Creates the `StringToSign` for `SigV2`.
///
/// # Inputs
///
/// - `method`: the HTTP verb, e.g. `"GET"`.
/// - `uri_path`: the percent-encoded request path (no query part).
/// - `qs`: query pairs with values already percent-decoded, sorted by name
///   (the [`OrderedQs`](https://docs.rs/s3s/latest/s3s/http/struct.OrderedQs.html)
///   contract), or `None` when the request has no query string.
/// - `headers`: `(name, value)` pairs in any order; repeated names preserve
///   the repeated header lines. Only `x-amz-*` names participate in the
///   canonicalized headers, and header names are matched case-insensitively.
/// - `virtual_host_bucket`: the bucket name from the host (virtual-hosted
///   style), prepended to the canonicalized resource.
#[must_use]
pub fn create_string_to_sign(
    mode: Mode,
    method: &str,
    uri_path: &str,
    qs: Option<&[(String, String)]>,
    headers: &[(&str, &str)],
    virtual_host_bucket: Option<&str>,
) -> String {
    let mut ans = String::with_capacity(256);

    {
        // {HTTP-Verb}\n
        ans.push_str(method);
        ans.push('\n');
    }

    {
        // {Content-MD5}\n
        if let Some(v) = get_unique_header_str(headers, "content-md5") {
            ans.push_str(v);
        }
        ans.push('\n');
    }

    {
        // {Content-Type}\n
        if let Some(v) = get_unique_header_str(headers, "content-type") {
            ans.push_str(v);
        }
        ans.push('\n');
    }

    match mode {
        // {Date}\n
        Mode::HeaderAuth => {
            //  "if you include the x-amz-date header, use the empty string
            //      for the Date when constructing the StringToSign."
            let mut date = get_unique_header_str(headers, "date").unwrap_or_default();
            if get_unique_header_str(headers, "x-amz-date").is_some() {
                date = "";
            }
            ans.push_str(date);
            ans.push('\n');
        }
        // {Expires}\n
        Mode::PresignedUrl => {
            let expires = qs.and_then(|qs| get_unique_qs(qs, "Expires")).unwrap_or_default();
            ans.push_str(expires);
            ans.push('\n');
        }
    }

    {
        // {CanonicalizedAmzHeaders}
        let mut amz_headers = SmallVec::<[(&str, &str); 8]>::new();
        for &(name, value) in headers {
            if name.starts_with("x-amz-") {
                amz_headers.push((name, value));
            }
        }
        amz_headers.sort_by(|lhs, rhs| lhs.0.cmp(rhs.0));

        push_canonicalized_amz_headers(&mut ans, &amz_headers);
    }

    {
        // {CanonicalizedResource}

        if let Some(bucket) = virtual_host_bucket {
            ans.push('/');
            ans.push_str(bucket);
        }

        ans.push_str(uri_path);

        if let Some(qs) = qs {
            let mut is_first = true;
            for q in INCLUDED_QUERY {
                if let Some(v) = get_unique_qs(qs, q) {
                    if is_first {
                        ans.push('?');
                        is_first = false;
                    } else {
                        ans.push('&');
                    }
                    ans.push_str(q);
                    if !v.is_empty() {
                        ans.push('=');
                        ans.push_str(v);
                    }
                }
            }
        }
    }

    ans
}

/// Appends the canonicalized `x-amz-*` headers: each group of adjacent
/// same-named headers becomes `name:v1,v2\n`.
///
/// # Panics
///
/// The index accesses are guarded by the loop conditions (`i < len`,
/// `j < len`); clippy cannot prove this statically, so the lint is allowed
/// here and the invariants are documented.
#[allow(clippy::indexing_slicing)]
fn push_canonicalized_amz_headers(ans: &mut String, amz_headers: &[(&str, &str)]) {
    let mut i = 0;
    while i < amz_headers.len() {
        let (name, value) = amz_headers[i];

        ans.push_str(name);
        ans.push(':');

        ans.push_str(value.trim());

        let mut j = i + 1;
        while j < amz_headers.len() && amz_headers[j].0 == name {
            ans.push(',');
            ans.push_str(amz_headers[j].1.trim());
            j += 1;
        }

        ans.push('\n');
        i = j;
    }
}

/// Computes the `SigV2` request signature: HMAC-SHA1 of the `StringToSign`
/// under the secret key, encoded as standard Base64.
///
/// # Panics
///
/// `HMAC-SHA1` accepts keys of any length, so this never panics in practice.
#[must_use]
pub fn calculate_signature(secret_key: impl AsRef<[u8]>, string_to_sign: &str) -> String {
    let mut m = new_hmac_sha1(secret_key.as_ref());
    m.update(string_to_sign.as_bytes());
    let digest = m.finalize().into_bytes();
    STANDARD.encode_to_string(digest)
}

/// `HMAC-SHA1` accepts keys of any length, so `new_from_slice` never fails.
///
/// # Panics
///
/// This `expect` is a structural invariant of the `hmac` crate API; no
/// request input can influence it. The lint is allowed here and the
/// invariant is documented.
#[allow(clippy::expect_used)]
fn new_hmac_sha1(key: &[u8]) -> Hmac<Sha1> {
    <Hmac<Sha1>>::new_from_slice(key).expect("Hmac accepts keys of any length")
}
