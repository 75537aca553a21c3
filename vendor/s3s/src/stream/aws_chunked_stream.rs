// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! aws-chunked stream
//!
//! Decodes an `aws-chunked` request body, verifying the per-chunk signature
//! chain for signed modes and the trailer signature for
//! `STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER`.
//!
//! steadfast patch 2: the bytes of a chunk are yielded as they come, and their
//! signature is verified when the chunk has ended: a chunk that lies, or lacks its end,
//! makes the stream end with an error. Whoever consumes it must therefore
//! commit to nothing before the stream has ended without one.
//!
//! # Checksum trailers
//!
//! `x-amz-checksum-*` trailer values are exposed via [`TrailingHeaders`]
//! without verification: comparing them against a digest computed while
//! consuming the body is the responsibility of the [`S3`](crate::S3)
//! implementation (the reference implementation `s3s-fs` rejects mismatches
//! with `BadDigest`). The unsigned mode
//! (`STREAMING-UNSIGNED-PAYLOAD-TRAILER`) relies on those values for data
//! integrity, so implementations that skip checksum verification accept
//! unauthenticated data — a trade-off `s3s` leaves to the implementation.

use crate::auth::SecretKey;
use crate::error::{S3ErrorCode, StdError};
use crate::protocol::TrailingHeaders;
use crate::stream::{ByteStream, DynByteStream, RemainingLength};
use crate::utils::SyncBoxFuture;
use crate::utils::crypto::{Sha256Sum, hex_bytes32};
use sha2::{Digest, Sha256};
use s3s_sigv4::AmzDate;
use s3s_sigv4::create_trailer_string_to_sign;

use hyper::HeaderMap;
use hyper::http::{HeaderName, HeaderValue};
use std::fmt::{self, Debug};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::pin_mut;
use futures::stream::{Stream, StreamExt};
use hyper::body::{Buf, Bytes};
use memchr::memchr;
use zeroize::Zeroizing;

/// Maximum size for chunk metadata
/// Prevents `DoS` via oversized chunk size declarations
const MAX_CHUNK_META_SIZE: usize = 1024;

/// Maximum size for trailers
/// Conservative limit: 16KB should be more than enough for any reasonable trailers
const MAX_TRAILERS_SIZE: usize = 16 * 1024;

/// Maximum number of trailing headers
/// Prevents `DoS` via excessive header count
const MAX_TRAILER_HEADERS: usize = 100;

use transform_stream::{AsyncTryStream, Yielder};

/// Aws chunked stream
pub struct AwsChunkedStream {
    /// inner
    inner: AsyncTryStream<Bytes, AwsChunkedStreamError, SyncBoxFuture<'static, Result<(), AwsChunkedStreamError>>>,

    remaining_length: usize,

    // Parsed trailing headers (lower-cased names) if present and verified.
    trailers: Arc<Mutex<Option<HeaderMap>>>,
}

impl Debug for AwsChunkedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsChunkedStream").finish_non_exhaustive()
    }
}

/// signature ctx
struct SignatureCtx {
    /// date
    amz_date: AmzDate,

    /// region
    region: Box<str>,

    //// service
    service: Box<str>,

    /// derived signing key
    signing_key: Zeroizing<[u8; 32]>,

    /// previous chunk's signature
    prev_signature: Sha256Sum,
}

impl Debug for SignatureCtx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignatureCtx")
            .field("amz_date", &self.amz_date)
            .field("region", &self.region)
            .field("service", &self.service)
            .field("signing_key", &"[REDACTED]")
            .field("prev_signature", &self.prev_signature)
            .finish_non_exhaustive()
    }
}

/// [`AwsChunkedStream`]
#[derive(Debug, thiserror::Error)]
pub enum AwsChunkedStreamError {
    /// Underlying error
    #[error("AwsChunkedStreamError: Underlying: {}",.0)]
    Underlying(#[source] StdError),
    /// Signature mismatch
    #[error("AwsChunkedStreamError: SignatureMismatch")]
    SignatureMismatch,
    /// Format error
    #[error("AwsChunkedStreamError: FormatError")]
    FormatError,
    /// Incomplete stream
    #[error("AwsChunkedStreamError: Incomplete")]
    Incomplete,
    /// More bytes produced than the declared decoded length
    #[error("AwsChunkedStreamError: LengthMismatch")]
    LengthMismatch,
    /// Chunk metadata too large
    #[error("AwsChunkedStreamError: ChunkMetaTooLarge: size {0} exceeds limit {1}")]
    ChunkMetaTooLarge(usize, usize),
    /// Chunk data too large
    #[error("AwsChunkedStreamError: ChunkDataTooLarge: size {0} exceeds limit {1}")]
    ChunkDataTooLarge(usize, usize),
    /// Trailers too large
    #[error("AwsChunkedStreamError: TrailersTooLarge: size {0} exceeds limit {1}")]
    TrailersTooLarge(usize, usize),
    /// Too many trailer headers
    #[error("AwsChunkedStreamError: TooManyTrailerHeaders: count {0} exceeds limit {1}")]
    TooManyTrailerHeaders(usize, usize),
}

impl AwsChunkedStreamError {
    /// Maps a stream-verification error to the `S3` error code a conforming
    /// implementation should report.
    #[must_use]
    pub fn to_s3_error_code(&self) -> S3ErrorCode {
        match self {
            Self::Underlying(_) => S3ErrorCode::InternalError,
            Self::SignatureMismatch => S3ErrorCode::SignatureDoesNotMatch,
            Self::FormatError
            | Self::Incomplete
            | Self::LengthMismatch
            | Self::TrailersTooLarge(..)
            | Self::TooManyTrailerHeaders(..) => S3ErrorCode::IncompleteBody,
            Self::ChunkMetaTooLarge(..) | Self::ChunkDataTooLarge(..) => S3ErrorCode::EntityTooLarge,
        }
    }
}

/// Chunk meta
#[derive(Debug)]
struct ChunkMeta<'a> {
    /// chunk size
    size: usize,
    /// Optional chunk signature.
    /// `Some` for signed chunks,
    /// `None` for unsigned streaming
    signature: Option<&'a [u8]>,
}

/// A chunk's size: hexadecimal digits and nothing else.
fn parse_chunk_size(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    let mut size = 0_u64;
    for &digit in digits {
        size = (size << 4) | u64::from(char::from(digit).to_digit(16)?);
    }
    usize::try_from(size).ok()
}

/// nom parser
fn parse_chunk_meta(mut input: &[u8]) -> nom::IResult<&[u8], ChunkMeta<'_>> {
    use crate::utils::parser::consume;
    use nom::Parser;
    use nom::bytes::complete::{tag, take, take_till1};
    use nom::combinator::all_consuming;
    use nom::sequence::delimited;

    let s = &mut input;

    // read size until ';' or CR
    let size = consume(s, take_till1(|c| c == b';' || c == b'\r'))?;
    // steadfast patch 3: all of the number, and numbers above 32 bits (one chunk may be a whole object).
    let size = parse_chunk_size(size)
        .ok_or_else(|| nom::Err::Error(nom::error::Error::new(*s, nom::error::ErrorKind::HexDigit)))?;

    // Either ";chunk-signature=<64>\r\n" or just "\r\n"
    let signature = if let Ok(sig) = consume(s, |i| {
        all_consuming(delimited(tag(&b";chunk-signature="[..]), take(64_usize), tag(&b"\r\n"[..]))).parse(i)
    }) {
        Some(sig)
    } else {
        // If no signature extension, accept plain CRLF
        let _ = consume(s, |i| all_consuming(tag(&b"\r\n"[..])).parse(i))?;
        None
    };

    Ok((input, ChunkMeta { size, signature }))
}

/// check signature
fn check_signature(ctx: &SignatureCtx, expected_signature: &[u8], chunk_hash: Sha256) -> Option<Sha256Sum> {
    let expected = Sha256Sum::from_hex(std::str::from_utf8(expected_signature).ok()?)?;

    let chunk_hash: [u8; 32] = chunk_hash.finalize().into();
    let string_to_sign = hex_bytes32(&chunk_hash, |hash| {
        hex_bytes32(ctx.prev_signature.as_bytes(), |prev_signature| {
            s3s_sigv4::create_chunk_string_to_sign_of_hash(&ctx.amz_date, &ctx.region, &ctx.service, prev_signature, hash)
        })
    });

    let signature = Sha256Sum::from_bytes(s3s_sigv4::calculate_signature_with_key(&string_to_sign, &ctx.signing_key));

    (expected == signature).then_some(signature)
}

impl AwsChunkedStream {
    /// Constructs a `ChunkedStream`
    ///
    /// # Panics
    ///
    /// The worker task locks the internal trailers mutex while storing
    /// verified trailers and unwraps the lock: if the mutex is poisoned (a
    /// panic while any holder — the worker or a `TrailingHeaders` reader —
    /// held the lock), polling the returned stream panics.
    #[allow(clippy::too_many_arguments)]
    pub fn new<S>(
        body: S,
        seed_signature: Sha256Sum,
        amz_date: AmzDate,
        region: Box<str>,
        service: Box<str>,
        secret_key: SecretKey,
        decoded_content_length: usize,
        unsigned: bool,
        max_chunk_size: usize,
    ) -> Self
    where
        S: Stream<Item = Result<Bytes, StdError>> + Send + Sync + 'static,
    {
        let trailers: Arc<Mutex<Option<HeaderMap>>> = Arc::new(Mutex::new(None));
        let trailers_for_worker = Arc::clone(&trailers);
        let inner = AsyncTryStream::<_, _, SyncBoxFuture<'static, Result<(), AwsChunkedStreamError>>>::new(|mut y| {
            #[allow(clippy::shadow_same)] // necessary for `pin_mut!`
            Box::pin(async move {
                pin_mut!(body);
                let mut prev_bytes = Bytes::new();
                let mut buf: Vec<u8> = Vec::new();
                let signing_key =
                    Zeroizing::new(s3s_sigv4::derive_signing_key(secret_key.expose(), &amz_date, &region, &service));
                drop(secret_key);
                let mut ctx = SignatureCtx {
                    amz_date,
                    region,
                    service,
                    signing_key,
                    prev_signature: seed_signature,
                };

                loop {
                    let meta = {
                        match Self::read_meta_bytes(body.as_mut(), prev_bytes, &mut buf).await {
                            None => break,
                            Some(Err(e)) => return Err(AwsChunkedStreamError::Underlying(e)),
                            Some(Ok(remaining_bytes)) => prev_bytes = remaining_bytes,
                        }
                        if let Ok((_, meta)) = parse_chunk_meta(&buf) {
                            // Enforce signature presence based on mode
                            if !unsigned && meta.signature.is_none() {
                                return Err(AwsChunkedStreamError::FormatError);
                            }
                            meta
                        } else {
                            return Err(AwsChunkedStreamError::FormatError);
                        }
                    };

                    tracing::trace!(?meta);

                    if meta.signature.is_some() && meta.size > max_chunk_size {
                        return Err(AwsChunkedStreamError::ChunkDataTooLarge(meta.size, max_chunk_size));
                    }

                    let mut hash = meta.signature.is_some().then(Sha256::new);
                    let remaining_after_data =
                        match Self::read_data_streaming(body.as_mut(), &mut y, prev_bytes, meta.size, hash.as_mut()).await {
                            None => return Err(AwsChunkedStreamError::Incomplete),
                            Some(Err(e)) => return Err(e),
                            Some(Ok(remaining_bytes)) => remaining_bytes,
                        };
                    if let (Some(expected_sig), Some(hash)) = (meta.signature, hash) {
                        match check_signature(&ctx, expected_sig, hash) {
                            None => return Err(AwsChunkedStreamError::SignatureMismatch),
                            Some(signature) => ctx.prev_signature = signature,
                        }
                    }

                    if meta.size == 0 {
                        // Try to read all remaining bytes (including any immediate remainder) as trailing headers
                        // block and verify signature if present.
                        match Self::read_and_verify_trailers(body.as_mut(), remaining_after_data, &ctx, unsigned).await {
                            // No more bytes => no trailers, treat as normal termination.
                            None => break,
                            Some(Err(e)) => return Err(e),
                            Some(Ok((entries, _remaining_bytes))) => {
                                // After trailers there must not be any additional payload bytes in a valid request.
                                // However, if there are remaining bytes, we will just attempt to continue parsing
                                // which will likely fail with FormatError.
                                // Build HeaderMap from entries and store.
                                let mut map: HeaderMap = HeaderMap::new();
                                for (name, value) in entries {
                                    // Names are already lower-cased ASCII
                                    let hn: HeaderName = match name.parse() {
                                        Ok(h) => h,
                                        Err(_) => return Err(AwsChunkedStreamError::FormatError),
                                    };
                                    let hv: HeaderValue = match HeaderValue::from_str(&value) {
                                        Ok(v) => v,
                                        Err(_) => return Err(AwsChunkedStreamError::FormatError),
                                    };
                                    map.append(hn, hv);
                                }
                                tracing::debug!(trailers=?map);
                                *trailers_for_worker.lock().unwrap_or_else(PoisonError::into_inner) = Some(map);
                                break;
                            }
                        }
                    }

                    // Carry over any remaining bytes to next iteration when there are more chunks.
                    prev_bytes = remaining_after_data;
                }

                Ok(())
            })
        });
        Self {
            inner,
            remaining_length: decoded_content_length,
            trailers,
        }
    }

    /// Read trailing headers after the final 0-size chunk and verify trailer signature.
    /// Returns:
    /// - `None`: if there are no more bytes (no trailers present)
    /// - `Some(Ok(remaining_bytes))`: when trailers are consumed; usually `remaining_bytes` is empty
    /// - `Some(Err(..))`: on errors
    async fn read_and_verify_trailers<S>(
        mut body: Pin<&mut S>,
        prev_bytes: Bytes,
        ctx: &SignatureCtx,
        unsigned: bool,
    ) -> Option<Result<(Vec<(String, String)>, Bytes), AwsChunkedStreamError>>
    where
        S: Stream<Item = Result<Bytes, StdError>> + Send + 'static,
    {
        // Accumulate all remaining bytes until EOF with size limit
        let mut buf: Vec<u8> = Vec::new();
        let mut total_size: usize;

        if prev_bytes.is_empty() {
            total_size = 0;
        } else {
            total_size = prev_bytes.len();
            if total_size > MAX_TRAILERS_SIZE {
                return Some(Err(AwsChunkedStreamError::TrailersTooLarge(total_size, MAX_TRAILERS_SIZE)));
            }
            buf.extend_from_slice(prev_bytes.as_ref());
        }

        // Read to end with size limit
        while let Some(next) = body.next().await {
            match next {
                Err(e) => return Some(Err(AwsChunkedStreamError::Underlying(e))),
                Ok(bytes) => {
                    total_size = total_size.saturating_add(bytes.len());
                    if total_size > MAX_TRAILERS_SIZE {
                        return Some(Err(AwsChunkedStreamError::TrailersTooLarge(total_size, MAX_TRAILERS_SIZE)));
                    }
                    buf.extend_from_slice(bytes.as_ref());
                }
            }
        }

        if buf.is_empty() || buf == b"\r\n" {
            // No trailers present
            return None;
        }

        // Parse trailing headers lines. Lines are separated by CRLF or LF.
        // Build canonical_trailers by sorting headers (excluding x-amz-trailer-signature) and joining as `name:value\n`.
        // Extract the provided trailer signature from header `x-amz-trailer-signature`.
        let (canonical_trailers, provided_signature, entries) = match Self::parse_trailing_headers(&buf) {
            Ok(x) => x,
            Err(e) => return Some(Err(e)),
        };

        // Verify the trailer signature if present, or require it when unsigned=false
        if let Some(provided) = provided_signature.as_ref() {
            let Some(provided) = std::str::from_utf8(provided).ok().and_then(Sha256Sum::from_hex) else {
                return Some(Err(AwsChunkedStreamError::SignatureMismatch));
            };

            let string_to_sign = hex_bytes32(ctx.prev_signature.as_bytes(), |prev_signature| {
                create_trailer_string_to_sign(&ctx.amz_date, &ctx.region, &ctx.service, prev_signature, &canonical_trailers)
            });
            let signature = Sha256Sum::from_bytes(s3s_sigv4::calculate_signature_with_key(&string_to_sign, &ctx.signing_key));
            if provided != signature {
                return Some(Err(AwsChunkedStreamError::SignatureMismatch));
            }
        } else if !unsigned {
            // In signed-with-trailer mode, missing trailer signature is an error
            return Some(Err(AwsChunkedStreamError::FormatError));
        }

        Some(Ok((entries, Bytes::new())))
    }

    #[allow(clippy::type_complexity)]
    fn parse_trailing_headers(buf: &[u8]) -> Result<(Vec<u8>, Option<Vec<u8>>, Vec<(String, String)>), AwsChunkedStreamError> {
        // Split into lines by `\n`. Accept optional `\r` before `\n` and also handle last line without `\n`.
        let mut entries: Vec<(String, String)> = Vec::new();
        let mut provided_signature: Option<Vec<u8>> = None;
        let mut header_count: usize = 0;

        let mut start = 0usize;
        for i in 0..=buf.len() {
            let is_end = i == buf.len();
            let is_lf = !is_end && buf[i] == b'\n';
            if is_lf || is_end {
                let mut line = &buf[start..i];
                // trim trailing CR
                if let Some(&b'\r') = line.last() {
                    line = &line[..line.len().saturating_sub(1)];
                }
                // advance start
                start = i.saturating_add(1);

                if line.is_empty() {
                    continue;
                }

                // Check header count limit (before parsing)
                header_count = header_count.saturating_add(1);
                if header_count > MAX_TRAILER_HEADERS {
                    return Err(AwsChunkedStreamError::TooManyTrailerHeaders(header_count, MAX_TRAILER_HEADERS));
                }

                // Find ':'
                let Some(colon_pos) = memchr(b':', line) else {
                    return Err(AwsChunkedStreamError::FormatError);
                };
                let (name_raw, value_raw) = line.split_at(colon_pos);
                // value_raw starts with ':'
                let value_raw = &value_raw[1..];

                // Lowercase name
                let name = String::from_utf8(name_raw.to_ascii_lowercase()).map_err(|_| AwsChunkedStreamError::FormatError)?;

                // Trim ASCII whitespace around value
                let value = {
                    let v = value_raw;
                    let v = trim_ascii_whitespace(v);
                    String::from_utf8(v.to_vec()).map_err(|_| AwsChunkedStreamError::FormatError)?
                };

                if name == "x-amz-trailer-signature" {
                    provided_signature = Some(value.into_bytes());
                } else {
                    entries.push((name, value));
                }
            }
        }

        // Sort by header name to canonicalize deterministically
        entries.sort_by(|a, b| a.0.cmp(&b.0));

        // Build canonical bytes: name:value\n with size limit
        let mut canonical: Vec<u8> = Vec::new();
        for (n, v) in &entries {
            // Check size before adding entry
            let entry_size = n.len().saturating_add(v.len()).saturating_add(2); // name:value\n
            if canonical.len().saturating_add(entry_size) > MAX_TRAILERS_SIZE {
                return Err(AwsChunkedStreamError::TrailersTooLarge(
                    canonical.len().saturating_add(entry_size),
                    MAX_TRAILERS_SIZE,
                ));
            }
            canonical.extend_from_slice(n.as_bytes());
            canonical.push(b':');
            canonical.extend_from_slice(v.as_bytes());
            canonical.push(b'\n');
        }

        Ok((canonical, provided_signature, entries))
    }

    /// read meta bytes and return remaining bytes
    async fn read_meta_bytes<S>(mut body: Pin<&mut S>, prev_bytes: Bytes, buf: &mut Vec<u8>) -> Option<Result<Bytes, StdError>>
    where
        S: Stream<Item = Result<Bytes, StdError>> + Send + 'static,
    {
        buf.clear();

        let mut push_meta_bytes = |mut bytes: Bytes| -> Result<Option<Bytes>, StdError> {
            if let Some(idx) = memchr(b'\n', bytes.as_ref()) {
                let len = idx.wrapping_add(1); // assume: idx < bytes.len()
                let leading = bytes.split_to(len);
                // Check size limit before extending buffer
                if buf.len().saturating_add(leading.len()) > MAX_CHUNK_META_SIZE {
                    return Err(Box::new(AwsChunkedStreamError::ChunkMetaTooLarge(
                        buf.len().saturating_add(leading.len()),
                        MAX_CHUNK_META_SIZE,
                    )));
                }
                buf.extend_from_slice(leading.as_ref());
                return Ok(Some(bytes));
            }

            // Check size limit before extending
            if buf.len().saturating_add(bytes.len()) > MAX_CHUNK_META_SIZE {
                return Err(Box::new(AwsChunkedStreamError::ChunkMetaTooLarge(
                    buf.len().saturating_add(bytes.len()),
                    MAX_CHUNK_META_SIZE,
                )));
            }

            buf.extend_from_slice(bytes.as_ref());
            Ok(None)
        };

        match push_meta_bytes(prev_bytes) {
            Err(e) => return Some(Err(e)),
            Ok(Some(remaining_bytes)) => return Some(Ok(remaining_bytes)),
            Ok(None) => {}
        }

        loop {
            match body.next().await? {
                Err(e) => return Some(Err(e)),
                Ok(bytes) => match push_meta_bytes(bytes) {
                    Err(e) => return Some(Err(e)),
                    Ok(Some(remaining_bytes)) => return Some(Ok(remaining_bytes)),
                    Ok(None) => {}
                },
            }
        }
    }

    /// consume the trailing `\r\n` of a chunk and return remaining bytes
    async fn consume_trailing_crlf<S>(
        mut body: Pin<&mut S>,
        mut remaining_bytes: Bytes,
    ) -> Option<Result<Bytes, AwsChunkedStreamError>>
    where
        S: Stream<Item = Result<Bytes, StdError>> + Send + 'static,
    {
        if remaining_bytes.starts_with(b"\r\n") {
            // fast path
            remaining_bytes.advance(2);
        } else {
            for &expected_byte in b"\r\n" {
                loop {
                    match *remaining_bytes.as_ref() {
                        [] => match body.next().await? {
                            Err(e) => return Some(Err(AwsChunkedStreamError::Underlying(e))),
                            Ok(bytes) => remaining_bytes = bytes,
                        },

                        [x, ..] if x == expected_byte => {
                            remaining_bytes.advance(1);
                            break;
                        }
                        _ => return Some(Err(AwsChunkedStreamError::FormatError)),
                    }
                }
            }
        }

        Some(Ok(remaining_bytes))
    }

    /// read data and yield fragments directly
    async fn read_data_streaming<S>(
        mut body: Pin<&mut S>,
        y: &mut Yielder<Result<Bytes, AwsChunkedStreamError>>,
        prev_bytes: Bytes,
        mut data_size: usize,
        mut hash: Option<&mut Sha256>,
    ) -> Option<Result<Bytes, AwsChunkedStreamError>>
    where
        S: Stream<Item = Result<Bytes, StdError>> + Send + 'static,
    {
        if data_size == 0 {
            return Some(Ok(prev_bytes));
        }

        let mut remaining_bytes = prev_bytes;
        loop {
            if data_size == 0 {
                break;
            }

            if remaining_bytes.is_empty() {
                match body.next().await? {
                    Err(e) => return Some(Err(AwsChunkedStreamError::Underlying(e))),
                    Ok(bytes) => remaining_bytes = bytes,
                }
                continue;
            }

            let data = if data_size <= remaining_bytes.len() {
                remaining_bytes.split_to(data_size)
            } else {
                std::mem::take(&mut remaining_bytes)
            };
            data_size = data_size.wrapping_sub(data.len());
            if let Some(hash) = &mut hash {
                hash.update(&data);
            }
            y.yield_ok(data).await;
        }

        Self::consume_trailing_crlf(body, remaining_bytes).await
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, AwsChunkedStreamError>>> {
        let ans = Pin::new(&mut self.inner).poll_next(cx);
        match ans {
            Poll::Ready(Some(Ok(bytes))) => {
                // The declared decoded length must match the actual chunk data:
                // producing more bytes than the declaration is an overrun
                // (previously masked by saturating subtraction).
                if !bytes.is_empty() && bytes.len() > self.remaining_length {
                    return Poll::Ready(Some(Err(AwsChunkedStreamError::LengthMismatch)));
                }
                self.remaining_length = self.remaining_length.saturating_sub(bytes.len());
                Poll::Ready(Some(Ok(bytes)))
            }
            // The chunk stream ended (0-size chunk and trailers processed)
            // before the declared decoded length was delivered.
            Poll::Ready(None) if self.remaining_length != 0 => Poll::Ready(Some(Err(AwsChunkedStreamError::Incomplete))),
            other => other,
        }
    }

    /// Returns the declared decoded length minus the bytes produced so far.
    #[must_use]
    pub fn exact_remaining_length(&self) -> usize {
        self.remaining_length
    }

    /// Converts this stream into a dynamic byte stream.
    #[must_use]
    pub fn into_byte_stream(self) -> DynByteStream {
        crate::stream::into_dyn(self)
    }

    // Note: Trailing headers should be accessed via trailing_headers_handle().

    /// Get a handle to access verified trailing headers later.
    /// This can be cloned and stored outside to retrieve trailers after the
    /// stream has been fully read.
    pub(crate) fn trailing_headers_handle(&self) -> TrailingHeaders {
        TrailingHeaders(Arc::clone(&self.trailers))
    }
}

impl Stream for AwsChunkedStream {
    type Item = Result<Bytes, AwsChunkedStreamError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, None)
    }
}

impl ByteStream for AwsChunkedStream {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::new_exact(self.remaining_length)
    }
}

#[inline]
fn trim_ascii_whitespace(mut s: &[u8]) -> &[u8] {
    while matches!(s.first(), Some(b' ' | b'\t')) {
        s = &s[1..];
    }
    while matches!(s.last(), Some(b' ' | b'\t')) {
        s = &s[..s.len() - 1];
    }
    s
}
