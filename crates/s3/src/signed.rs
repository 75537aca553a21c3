//! The headers that a signature must cover.
//!
//! A signature covers only the headers that the *client* names in `SignedHeaders`. A client with a
//! presigned URL to put one object could add `x-amz-copy-source` and copy any other object there
//! instead. So every header that can change what a request does must be among the signed ones,
//! regardless of the key. `s3s` ensures this for `x-amz-*`; this module is a second check, and
//! covers Steadfast's own headers too.
//!
//! Version 2 signs all `x-amz-*` headers, but of the query string only sub-resources and
//! `response-*`. So a URL that it presigned works for one object only: the parameters of a listing
//! are not covered.

use std::borrow::Cow;

use http::header::{AUTHORIZATION, CONTENT_ENCODING, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Uri};
use s3s::{S3Error, S3Result, s3_error};

use crate::error::{invalid_argument, invalid_request};

/// Prefixes of the headers that change what a request does.
const COVERED: [&str; 2] = ["x-amz-", "x-steadfast-"];
/// The signature always covers the hash of the body, even if its header is not signed.
const CONTENT_HASH: &str = "x-amz-content-sha256";
/// Headers that may be unsigned because the server reads none of them: a name of the client, and
/// headers that Amazon's proxies add.
pub(crate) const UNSIGNED: [&str; 3] = ["x-amz-user-agent", "x-amz-cf-id", "x-amz-te"];

/// Refuses a request whose signature does not cover every header that it must.
///
/// # Errors
/// `AccessDenied`.
pub(crate) fn check(uri: &Uri, headers: &HeaderMap) -> S3Result<()> {
    let query = uri.query().unwrap_or_default();
    if is_presigned_v2(query) || headers.get(AUTHORIZATION).is_some_and(|v| v.as_bytes().starts_with(b"AWS ")) {
        return check_v2(query, headers);
    }
    let presigned = is_presigned_v4(query);
    // The signature of a presigned URL covers its query string, from which `s3s` takes headers.
    let moved = |name: &str, value: &HeaderValue| {
        presigned
            && form_urlencoded::parse(query.as_bytes()).any(|(parameter, text)| {
                parameter.eq_ignore_ascii_case(name) && text.trim_matches([' ', '\t']).as_bytes() == value.as_bytes()
            })
    };
    let names = names(uri, headers).unwrap_or_default();
    let signed = |name: &str| names.split(';').any(|n| n.eq_ignore_ascii_case(name));
    if !signed("host") {
        return Err(s3_error!(AccessDenied, "The header host must be signed."));
    }
    for (name, value) in headers {
        let name = name.as_str();
        let covered = COVERED.iter().any(|prefix| name.starts_with(prefix));
        if covered && name != CONTENT_HASH && !UNSIGNED.contains(&name) && !signed(name) && !moved(name, value) {
            return Err(not_signed(name));
        }
    }
    Ok(())
}

/// A signature of version 2 covers every `x-amz-*` header, and no header of Steadfast's own. A
/// parameter that appears twice is not in what it signs.
fn check_v2(query: &str, headers: &HeaderMap) -> S3Result<()> {
    let mut names: Vec<_> =
        form_urlencoded::parse(query.as_bytes()).map(|(name, _)| name.to_ascii_lowercase()).collect();
    names.sort();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(invalid_argument(format!("The query parameter {:.64} appears twice.", pair[0].escape_debug())));
    }
    if headers.get(CONTENT_HASH).is_some_and(|hash| hash.as_bytes().starts_with(b"STREAMING-")) {
        return Err(invalid_argument("Bodies in signed chunks need signature version 4."));
    }
    match headers.keys().find(|name| name.as_str().starts_with(COVERED[1])) {
        None => Ok(()),
        Some(name) => Err(not_signed(name.as_str())),
    }
}

/// Refuses a body that is said to be sent in chunks (`aws-chunked`) but whose request is not signed
/// for that: it would be stored with the frames of its chunks.
///
/// # Errors
/// `InvalidRequest`.
pub(crate) fn check_framing(uri: &Uri, headers: &HeaderMap) -> S3Result<()> {
    let streamed = |hash: &str| hash.starts_with("STREAMING-");
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let empty = text("content-length").unwrap_or("0") == "0" && !headers.contains_key(TRANSFER_ENCODING);
    if empty || text(CONTENT_HASH).is_some_and(streamed) {
        return Ok(());
    }
    let encoded = headers.get_all(CONTENT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let chunked =
        encoded.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case("aws-chunked"));
    let parameters = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let by_url =
        parameters.filter(|(name, _)| name.eq_ignore_ascii_case(CONTENT_HASH)).any(|(_, hash)| streamed(&hash));
    let framed = ["x-amz-decoded-content-length", "x-amz-trailer"].into_iter().find(|name| headers.contains_key(*name));
    let what = match (chunked, by_url, framed) {
        (true, ..) => "Content-Encoding: aws-chunked",
        (_, true, _) => "A streaming payload in a presigned URL",
        (.., Some(name)) => name,
        _ => return Ok(()),
    };
    Err(invalid_request(format!("{what} needs a header x-amz-content-sha256 that begins with STREAMING-.")))
}

fn not_signed(name: &str) -> S3Error {
    s3_error!(AccessDenied, "There were headers present in the request which were not signed: {name}")
}

/// Whether a query string is that of a presigned URL of either version.
pub(crate) fn is_presigned(query: &str) -> bool {
    is_presigned_v4(query) || is_presigned_v2(query)
}

/// Whether a query string has a signature of version 4.
pub(crate) fn is_presigned_v4(query: &str) -> bool {
    form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == "X-Amz-Signature")
}

/// Whether a query string has a signature of version 2.
pub(crate) fn is_presigned_v2(query: &str) -> bool {
    form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == "Signature")
}

/// The names that the signature claims to cover, separated by `;`. `None` when the request does not
/// give them exactly once.
fn names<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<Cow<'a, str>> {
    let query = uri.query().unwrap_or_default();
    Some(if is_presigned_v4(query) {
        let values = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "X-Amz-SignedHeaders");
        only(values)?.1
    } else {
        let value = only(headers.get_all(AUTHORIZATION).iter())?.to_str().ok()?;
        let (_, parameters) = value.split_once(' ')?;
        let values = parameters.split(',').filter_map(|p| p.trim().strip_prefix("SignedHeaders="));
        Cow::Borrowed(only(values)?)
    })
}

fn only<T>(mut values: impl Iterator<Item = T>) -> Option<T> {
    let first = values.next()?;
    values.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(uri: &str, headers: &[(&str, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        check(&uri.parse().unwrap(), &map).is_err()
    }

    const PRESIGNED: &str = "/b/k?X-Amz-SignedHeaders=host%3Bx-amz-acl&X-Amz-Signature=0";
    const HEADER: &str =
        "AWS4-HMAC-SHA256 Credential=a/20260101/r/s3/aws4_request, SignedHeaders=Host;X-Amz-Date, Signature=0";

    #[test]
    fn what_is_not_signed_is_refused() {
        assert!(!refused(PRESIGNED, &[("host", "h"), ("x-amz-acl", "private"), ("content-type", "a/b")]));
        for name in
            ["x-amz-copy-source", "x-amz-meta-a", "x-amz-date", "x-steadfast-durability", "x-amz-checksum-crc32"]
        {
            assert!(refused(PRESIGNED, &[("host", "h"), (name, "1")]), "{name}");
            assert!(
                refused("/b/k", &[("host", "h"), ("authorization", HEADER), (name, "1")]) == (name != "x-amz-date")
            );
        }
        assert!(!refused(
            "/b/k",
            &[("authorization", HEADER), ("x-amz-content-sha256", "0"), ("x-amz-user-agent", "x")]
        ));
        assert!(!refused("/b/k", &[("authorization", &HEADER.replace(", ", ",")), ("x-amz-date", "1")]));
    }

    #[test]
    fn a_header_out_of_the_query_string_is_covered_as_it_stands_there() {
        let moved = format!("{PRESIGNED}&X-Amz-Meta-Owner=%20ann+b");
        assert!(!refused(&moved, &[("host", "h"), ("x-amz-meta-owner", "ann b")]));
        assert!(refused(&moved, &[("host", "h"), ("x-amz-meta-owner", "bob")]));
        assert!(refused(&moved, &[("host", "h"), ("x-amz-meta-owner", "ann b"), ("x-amz-meta-owner", "bob")]));
        let by_header = [("authorization", HEADER), ("x-amz-meta-owner", "ann")];
        assert!(refused("/b/k?x-amz-meta-owner=ann", &by_header));
    }

    #[test]
    fn version_2_covers_no_header_of_our_own() {
        let presigned = "/b/k?AWSAccessKeyId=A&Signature=x&Expires=1";
        assert!(!refused(presigned, &[("x-amz-acl", "private")]), "the signature covers it");
        assert!(refused(presigned, &[("x-steadfast-durability", "async")]));
        assert!(refused("/b/k", &[("authorization", "AWS A:x"), ("x-steadfast-durability", "async")]));
    }

    #[test]
    fn the_host_must_be_signed() {
        assert!(refused("/b/k?X-Amz-SignedHeaders=x-amz-acl&X-Amz-Signature=0", &[("host", "h")]));
        assert!(refused("/b/k", &[("authorization", &HEADER.replace("Host;", ""))]));
    }

    #[test]
    fn the_list_that_counts_is_the_one_that_was_verified() {
        // Once the query string holds a signature, its names count: whatever the header holds, and
        // however its name is spelled.
        let other = HEADER.replace("X-Amz-Date", "X-Amz-Tagging");
        assert!(refused(PRESIGNED, &[("authorization", &other), ("x-amz-tagging", "a=b")]));
        let spelled = "/b/k?X-Amz-SignedHeaders=host&X%2DAmz-Signatur%65=0";
        assert!(refused(spelled, &[("authorization", &other), ("x-amz-tagging", "a=b")]));
        // A duplicate counts as absent.
        assert!(refused(&format!("{PRESIGNED}&X-Amz-SignedHeaders=host"), &[]));
        assert!(refused("/b/k", &[("authorization", HEADER), ("authorization", HEADER)]));
        assert!(refused("/b/k", &[("authorization", "AWS4-HMAC-SHA256")]));
        assert!(refused("/b/k", &[]));
    }
}
