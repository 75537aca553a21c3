//! System headers, user metadata and tags: conversion between requests and the store.

use std::collections::BTreeMap;

use s3s::dto::{Metadata, ServerSideEncryption, StorageClass};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};
use steadfast_store::Attributes;

use crate::error::{custom, invalid_argument};

/// The limit that S3 sets on user metadata, in bytes.
const USER_BYTES_MAX: usize = 2048;
/// Steadfast's limit on all system headers together, in bytes.
const SYSTEM_BYTES_MAX: usize = 8192;

/// Content type of an object that was stored without one.
pub(crate) const DEFAULT_CONTENT_TYPE: &str = "binary/octet-stream";

/// The description of an object in an input; the macro builds it from any input with these fields.
pub(crate) struct Described<'a> {
    pub(crate) cache_control: Option<&'a str>,
    pub(crate) content_disposition: Option<&'a str>,
    pub(crate) content_encoding: Option<&'a str>,
    pub(crate) content_language: Option<&'a str>,
    pub(crate) content_type: Option<&'a str>,
    pub(crate) expires: Option<&'a str>,
    pub(crate) website_redirect_location: Option<&'a str>,
    pub(crate) metadata: Option<&'a Metadata>,
    pub(crate) tagging: Option<&'a str>,
}

macro_rules! described {
    ($input:expr) => {
        $crate::attributes::Described {
            cache_control: $input.cache_control.as_deref(),
            content_disposition: $input.content_disposition.as_deref(),
            content_encoding: $input.content_encoding.as_deref(),
            content_language: $input.content_language.as_deref(),
            content_type: $input.content_type.as_deref(),
            expires: $input.expires.as_deref(),
            website_redirect_location: $input.website_redirect_location.as_deref(),
            metadata: $input.metadata.as_ref(),
            tagging: $input.tagging.as_deref(),
        }
    };
}
pub(crate) use described;

/// Sets the headers of an output from the stored attributes.
macro_rules! set_headers {
    ($output:expr, $attributes:expr) => {{
        let attributes = $attributes;
        $output.cache_control = attributes.system.get("cache-control").cloned();
        $output.content_disposition = attributes.system.get("content-disposition").cloned();
        $output.content_encoding = attributes.system.get("content-encoding").cloned();
        $output.content_language = attributes.system.get("content-language").cloned();
        $output.content_type = Some(
            attributes
                .system
                .get("content-type")
                .cloned()
                .unwrap_or_else(|| $crate::attributes::DEFAULT_CONTENT_TYPE.to_owned()),
        );
        $output.expires = attributes.system.get("expires").cloned();
        $output.website_redirect_location = attributes.system.get("website-redirect-location").cloned();
        $output.metadata = (!attributes.user.is_empty()).then(|| attributes.user.clone().into_iter().collect());
    }};
}
pub(crate) use set_headers;

impl Described<'_> {
    /// The attributes that the store keeps.
    ///
    /// # Errors
    /// `MetadataTooLarge`, `InvalidTag`.
    pub(crate) fn attributes(&self) -> S3Result<Attributes> {
        let mut attributes = Attributes::default();
        let mut system = |name: &str, value: Option<&str>| {
            if let Some(value) = value.filter(|v| !v.is_empty()) {
                attributes.system.insert(name.to_owned(), value.to_owned());
            }
        };
        system("cache-control", self.cache_control);
        system("content-disposition", self.content_disposition);
        system("content-encoding", self.content_encoding.and_then(without_aws_chunked).as_deref());
        system("content-language", self.content_language);
        system("content-type", self.content_type);
        system("website-redirect-location", self.website_redirect_location);
        // Stored as sent: caches read it, and S3 does not require a date either.
        system("expires", self.expires);
        if let Some(metadata) = self.metadata {
            attributes.user = metadata.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
        }
        let bytes = |map: &BTreeMap<String, String>| map.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
        if bytes(&attributes.user) > USER_BYTES_MAX || bytes(&attributes.system) > SYSTEM_BYTES_MAX {
            return Err(s3_error!(MetadataTooLarge, "Your metadata headers exceed the maximum allowed metadata size"));
        }
        if let Some(tagging) = self.tagging {
            attributes.tags = parse_tagging(tagging)?;
        }
        Ok(attributes)
    }
}

/// Removes `aws-chunked`, which describes how a request was sent, not the object.
fn without_aws_chunked(encoding: &str) -> Option<String> {
    let rest: Vec<&str> = encoding
        .split(',')
        .map(str::trim)
        .filter(|e| !e.is_empty() && !e.eq_ignore_ascii_case("aws-chunked"))
        .collect();
    (!rest.is_empty()).then(|| rest.join(","))
}

/// Tags as `x-amz-tagging` carries them: a query string.
fn parse_tagging(text: &str) -> S3Result<BTreeMap<String, String>> {
    let decode = |s: &str| {
        let spaced = s.replace('+', " ");
        percent_decode(&spaced).ok_or_else(|| s3_error!(InvalidTag, "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters without tag name duplicates."))
    };
    let mut pairs = Vec::new();
    for pair in text.split('&').filter(|p| !p.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        pairs.push((decode(name)?, decode(value)?));
    }
    check_tags(pairs, TAGS_MAX)
}

/// Tags of an object, at most.
pub(crate) const TAGS_MAX: usize = 10;

/// Checks S3's limits on the tags of an object or a bucket.
pub(crate) fn check_tags(pairs: Vec<(String, String)>, tags_max: usize) -> S3Result<BTreeMap<String, String>> {
    let mut tags = BTreeMap::new();
    // Letters, digits and blanks of any script, and these.
    let unfit = |c: char| {
        let blank = c.is_whitespace() && !c.is_control();
        !(c.is_alphanumeric() || blank || "_.:/=+-@".contains(c))
    };
    for (name, value) in pairs {
        if name.is_empty() || name.chars().count() > 128 || name.contains(unfit) {
            return Err(s3_error!(InvalidTag, "The TagKey you have provided is invalid"));
        }
        if name.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("aws:")) {
            return Err(s3_error!(InvalidTag, "System tags cannot be added/updated by requester"));
        }
        if value.chars().count() > 256 || value.contains(unfit) {
            return Err(s3_error!(InvalidTag, "The TagValue you have provided is invalid"));
        }
        if tags.insert(name, value).is_some() {
            return Err(s3_error!(InvalidTag, "Cannot provide multiple Tags with the same key"));
        }
    }
    if tags.len() > tags_max {
        let whose = if tags_max == TAGS_MAX { "Object" } else { "Bucket" };
        let message = format!("{whose} tags cannot be greater than {tags_max}");
        return Err(custom("BadRequest", http::StatusCode::BAD_REQUEST, message));
    }
    Ok(tags)
}

pub(crate) fn percent_decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        if b == b'%' {
            let pair = [bytes.next()?, bytes.next()?];
            out.push(u8::from_str_radix(std::str::from_utf8(&pair).ok()?, 16).ok()?);
        } else {
            out.push(b);
        }
    }
    String::from_utf8(out).ok()
}

/// Percent-encodes a key for `encoding-type=url`: all but letters, digits and `-_.~/`. A space
/// becomes `%20`, which every decoder understands, unlike `+`.
pub(crate) fn url_encode(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for b in text.bytes() {
        match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => out.push(b as char),
            _ => {
                let _ = write!(out, "%{b:02X}");
            }
        }
    }
    out
}

/// Refuses what the server would accept without doing it: encryption, locks, other storage classes.
macro_rules! refuse_unsupported {
    ($input:expr) => {
        $crate::attributes::refuse(
            $input.server_side_encryption.as_ref(),
            $input.ssekms_key_id.is_some()
                || $input.sse_customer_algorithm.is_some()
                || $input.sse_customer_key.is_some(),
            $input.object_lock_mode.is_some()
                || $input.object_lock_retain_until_date.is_some()
                || $input.object_lock_legal_hold_status.is_some(),
            $input.storage_class.as_ref(),
        )
    };
}
pub(crate) use refuse_unsupported;

pub(crate) fn refuse(
    encryption: Option<&ServerSideEncryption>,
    keys: bool,
    lock: bool,
    class: Option<&StorageClass>,
) -> S3Result<()> {
    if encryption.is_some() || keys {
        return Err(S3Error::with_message(
            S3ErrorCode::NotImplemented,
            "Server-side encryption is not offered: a header you provided asks for it.",
        ));
    }
    if lock {
        return Err(crate::error::invalid_request("Bucket is missing Object Lock Configuration"));
    }
    match class.map(StorageClass::as_str) {
        // Reduced redundancy requests less than the object gets.
        None | Some("STANDARD" | "REDUCED_REDUNDANCY") => Ok(()),
        Some(_) => Err(s3_error!(InvalidStorageClass, "The storage class you specified is not valid")),
    }
}

/// A count from a request (`max-keys` and the like), at most `max`.
pub(crate) fn page_size(requested: Option<i32>, max: i32, name: &str) -> S3Result<i32> {
    match requested {
        None => Ok(max),
        Some(n) if n < 0 => {
            Err(invalid_argument(format!("Argument {name} must be an integer between 0 and 2147483647")))
        }
        Some(n) => Ok(n.min(max)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings() {
        assert_eq!(without_aws_chunked("aws-chunked"), None);
        assert_eq!(without_aws_chunked("aws-chunked, gzip").as_deref(), Some("gzip"));
        assert_eq!(without_aws_chunked("gzip").as_deref(), Some("gzip"));
    }

    #[test]
    fn tagging_header() {
        let tags = parse_tagging("a=1&b+c=%C3%A9&d").unwrap();
        assert_eq!(
            tags.into_iter().collect::<Vec<_>>(),
            [("a".to_owned(), "1".to_owned()), ("b c".into(), "é".into()), ("d".into(), String::new())]
        );
        assert!(parse_tagging("a=1&a=2").is_err());
        assert!(parse_tagging("a=%zz").is_err());
        for wrong in ["ke%26y=v", "aws:x=v", "AWS:x=v", "k=a%26b", "k=a%00", "k%0A=v"] {
            assert_eq!(parse_tagging(wrong).expect_err(wrong).code().as_str(), "InvalidTag");
        }
        parse_tagging("a.b/c:d@e=1_2-3&f=g%3Dh").expect("the other characters of S3");
        assert!(parse_tagging("a=%C3").is_err(), "not UTF-8");
        assert!(parse_tagging("a=%").is_err());
        let eleven = (0..11).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join("&");
        assert!(parse_tagging(&eleven).is_err());
    }

    #[test]
    fn keys_in_urls() {
        assert_eq!(url_encode("a b+c/é&"), "a%20b%2Bc/%C3%A9%26");
    }
}
