//! Transfer of a request body into the store: hashed, checked, bounded.

use std::sync::Arc;

use ::md5::{Digest as _, Md5};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderMap, HeaderName};
use s3s::{S3Error, S3Result, StdError, TrailingHeaders, s3_error};
use steadfast_flow::Env;
use steadfast_store::ObjectWriter;

use crate::checksum::{Algorithm, Claim, Hasher, bad_digest, header_name, of_header};
use crate::context::RequestContext;
use crate::error::{body_error, custom, incomplete_body, store_error};
use crate::md5::{BodyMd5, Md5Pool};
use crate::options::EtagKind;

static CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");

/// The hashes to compute of a body and the values that they must match.
pub(crate) struct Wanted {
    etag: EtagKind,
    content_md5: Option<[u8; 16]>,
    claim: Claim,
    length: Option<u64>,
    bytes_max: u64,
}

impl Wanted {
    /// Reads `Content-MD5` and the checksum headers. `length` is the length of the decoded body, if
    /// known.
    ///
    /// # Errors
    /// `InvalidDigest`, `InvalidRequest`, `EntityTooLarge`.
    pub(crate) fn read(headers: &HeaderMap, length: Option<u64>, etag: EtagKind, bytes_max: u64) -> S3Result<Self> {
        let content_md5 = content_md5(headers)?;
        if length.is_some_and(|n| n > bytes_max) {
            return Err(too_large());
        }
        Ok(Self { etag, content_md5, claim: Claim::read(headers)?, length, bytes_max })
    }

    /// For a copy, whose body the server itself reads.
    pub(crate) fn of_copy(length: u64, etag: EtagKind) -> Self {
        Self { etag, content_md5: None, claim: Claim::default(), length: Some(length), bytes_max: u64::MAX }
    }

    /// The algorithm that will be computed, if any.
    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        self.claim.algorithm
    }

    /// Sets the algorithm if the request names none.
    pub(crate) fn or_algorithm(&mut self, algorithm: Option<Algorithm>) {
        if self.claim.algorithm.is_none() {
            self.claim.algorithm = algorithm;
        }
    }

    pub(crate) fn length(&self) -> Option<u64> {
        self.length
    }
}

/// # Errors
/// `InvalidDigest`.
fn content_md5(headers: &HeaderMap) -> S3Result<Option<[u8; 16]>> {
    let Some(value) = headers.get(&CONTENT_MD5) else { return Ok(None) };
    let digest = BASE64.decode(value.as_bytes()).ok().and_then(|digest| digest.try_into().ok());
    digest.map(Some).ok_or_else(|| s3_error!(InvalidDigest, "The Content-MD5 you specified was invalid."))
}

fn bad_md5() -> S3Error {
    s3_error!(BadDigest, "The Content-MD5 you specified did not match what we received.")
}

/// Checks an XML body that is in memory against `Content-MD5` and the checksum of the request.
///
/// # Errors
/// `BadDigest`, `InvalidDigest`, `InvalidRequest`, `MalformedTrailerError`.
pub(crate) fn check_xml(
    operation: &str,
    headers: &HeaderMap,
    trailers: Option<&TrailingHeaders>,
    body: &[u8],
) -> S3Result<()> {
    if content_md5(headers)?.is_some_and(|md5| md5 != *Md5::digest(body)) {
        return Err(bad_md5());
    }
    if operation == "CompleteMultipartUpload" {
        // There, the checksum is that of the object.
        return headers.keys().try_for_each(|name| of_header(name.as_str()).map(|_| ()));
    }
    let mut claim = Claim::read(headers)?;
    let trailers = trailers.and_then(TrailingHeaders::take).unwrap_or_default();
    if let Some(value) = trailing(&claim, &trailers)? {
        claim.value = Some(value);
    }
    claim.check(body)
}

fn too_large() -> S3Error {
    s3_error!(EntityTooLarge, "Your proposed upload exceeds the maximum allowed object size.")
}

/// The results for a body that the store's writer now holds.
pub(crate) struct Received {
    pub(crate) etag: String,
    pub(crate) checksum: Option<(Algorithm, String)>,
}

/// Moves `body` into `writer`; `pool`, if given, computes its MD5. When it returns, every claim in
/// `wanted` has been checked.
///
/// # Errors
/// `BadDigest`, `IncompleteBody`, `RequestTimeout`, and the store's.
pub(crate) async fn receive<S>(
    mut body: S,
    trailers: Option<TrailingHeaders>,
    writer: &mut ObjectWriter,
    wanted: Wanted,
    context: Option<&Arc<RequestContext>>,
    env: &Env,
    pool: Option<&Md5Pool>,
) -> S3Result<Received>
where
    S: Stream<Item = Result<Bytes, StdError>> + Unpin,
{
    let mut md5 = (wanted.etag == EtagKind::Md5 || wanted.content_md5.is_some()).then(|| BodyMd5::new(pool));
    let mut hasher = wanted.claim.algorithm.map(Hasher::new);
    let mut bytes = 0;
    loop {
        let piece = tokio::select! {
            biased;
            piece = body.next() => piece,
            // A client that sends slowly must not hold memory that other writers wait for.
            () = writer.give_room() => continue,
        };
        let Some(piece) = piece else { break };
        let piece = piece.map_err(|error| body_error(&error, context))?;
        bytes += piece.len() as u64;
        if bytes > wanted.length.unwrap_or(wanted.bytes_max) {
            return Err(if wanted.length.is_some() { incomplete_body() } else { too_large() });
        }
        if let Some(md5) = &mut md5 {
            md5.update(&piece).await;
        }
        if let Some(hasher) = &mut hasher {
            hasher.update(&piece);
        }
        writer.write(piece).await.map_err(store_error)?;
    }
    if wanted.length.is_some_and(|length| length != bytes) {
        return Err(incomplete_body());
    }

    let md5 = match md5 {
        Some(md5) => Some(md5.finish().await.ok_or_else(|| s3_error!(ServiceUnavailable, "The server is stopping."))?),
        None => None,
    };
    if wanted.content_md5.is_some() && wanted.content_md5 != md5 {
        return Err(bad_md5());
    }
    let checksum = wanted.claim.algorithm.zip(hasher.map(Hasher::finish));
    let trailers = trailers.and_then(|trailers| trailers.take()).unwrap_or_default();
    let claimed = trailing(&wanted.claim, &trailers)?.or(wanted.claim.value);
    if let Some((algorithm, computed)) = &checksum
        && claimed.is_some_and(|claimed| claimed != *computed)
    {
        return Err(bad_digest(*algorithm));
    }
    let etag = match (wanted.etag, md5) {
        (EtagKind::Md5, Some(md5)) => hex::encode(md5),
        _ => opaque_etag(env),
    };
    Ok(Received { etag, checksum })
}

/// The checksum from the trailers, if the request announced one.
///
/// # Errors
/// `MalformedTrailerError` if it is missing, or if there is another one; `InvalidRequest`.
fn trailing(claim: &Claim, trailers: &HeaderMap) -> S3Result<Option<String>> {
    let announced = claim.algorithm.filter(|_| claim.trailer);
    let malformed = || {
        custom(
            "MalformedTrailerError",
            http::StatusCode::BAD_REQUEST,
            "The request contained trailing data that was not well-formed or did not conform to our published schema.",
        )
    };
    for name in trailers.keys() {
        if of_header(name.as_str())?.is_some_and(|algorithm| Some(algorithm) != announced) {
            return Err(malformed());
        }
    }
    let Some(algorithm) = announced else { return Ok(None) };
    let value = trailers.get(header_name(algorithm)).and_then(|value| value.to_str().ok()).ok_or_else(malformed)?;
    algorithm.check_form(value.trim())?;
    Ok(Some(value.trim().to_owned()))
}

/// An entity tag that differs for every write and cannot be mistaken for an MD5.
pub(crate) fn opaque_etag(env: &Env) -> String {
    format!("{:016x}{:016x}-1", env.random_u64(), env.random_u64())
}

/// The entity tag of an object uploaded in parts, as S3 computes it: the MD5 of its parts' MD5s,
/// and their number.
pub(crate) fn multipart_etag<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let mut md5 = Md5::new();
    let mut count = 0;
    for part in parts {
        // Opaque tags are not hexadecimal; for them, any digest will do.
        match hex::decode(part) {
            Ok(digest) => md5.update(digest),
            Err(_) => md5.update(part),
        }
        count += 1;
    }
    format!("{}-{count}", hex::encode(md5.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etag_of_parts() {
        // md5(md5("a") + md5("b")), by md5sum.
        let parts = ["0cc175b9c0f1b6a831c399e269772661", "92eb5ffee6ae2fec3ad71c777531578f"];
        assert_eq!(multipart_etag(parts.into_iter()), "96e024ba2074fe77e8e965ba43a704be-2");
    }

    #[test]
    fn content_md5_must_be_one() {
        let read = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("content-md5", value.parse().unwrap());
            Wanted::read(&headers, Some(1), EtagKind::Md5, 10).map_err(|e| e.code().as_str().to_owned()).map(|_| ())
        };
        assert_eq!(read("DMF1ucDxtqgxw5niaXcmYQ=="), Ok(()));
        assert_eq!(read("DMF1"), Err("InvalidDigest".into()));
        assert_eq!(read("not base64"), Err("InvalidDigest".into()));
    }
}
