// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

#![deny(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unreachable,
    clippy::unwrap_used
)]
//! multipart/form-data encoding for POST Object
//!
//! Parsing is delegated to [`s3s_multipart`]; this module keeps the S3 POST
//! Object contract on top of it:
//!
//! - form fields are aggregated into owned `(name, value)` pairs, with names
//!   lowercased and sorted so that [`Multipart::find_field_value`] can binary
//!   search them;
//! - the `file` part is handed over as a [`FileStream`]; when the request
//!   carries a `Content-Length`, the stream derives the exact file length from
//!   it, so the consumer can forward the file without buffering;
//! - the `file` part must be the last one: the closing trailer is validated
//!   while the stream is consumed, so an epilogue or another part is rejected;
//! - the form limits ([`MultipartLimits`]) are enforced here, on top of the
//!   parser's own part-header block limit.
//!
//! See <https://docs.aws.amazon.com/AmazonS3/latest/API/RESTObjectPOST.html>

use crate::error::StdError;
use crate::stream::ByteStream;

use std::fmt::{self, Debug};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::{Stream, StreamExt};
use hyper::body::Bytes;
use s3s_multipart::Boundary;
use s3s_multipart::Error as ParserError;
use s3s_multipart::FinalPartDataStream;
use s3s_multipart::Multipart as Parser;
use s3s_multipart::parse_content_disposition;

/// The boxed stream handed to the multipart parser.
///
/// [`s3s_multipart::Multipart`] fixes the item error type and requires the
/// stream to be `Unpin`; boxing satisfies both and keeps [`FileStream`]
/// non-generic.
type ParserStream = Pin<Box<dyn Stream<Item = Result<Bytes, ParserError>> + Send + Sync + 'static>>;

/// Limits for multipart form parsing
#[derive(Debug, Clone, Copy)]
#[allow(clippy::struct_field_names)]
pub struct MultipartLimits {
    /// Maximum size per form field in bytes
    pub max_field_size: usize,
    /// Maximum total size for all form fields combined in bytes
    pub max_fields_size: usize,
    /// Maximum number of parts in multipart form
    pub max_parts: usize,
}

impl Default for MultipartLimits {
    fn default() -> Self {
        Self {
            max_field_size: 1024 * 1024,       // 1 MiB
            max_fields_size: 20 * 1024 * 1024, // 20 MiB
            max_parts: 1000,
        }
    }
}

/// Form file
#[derive(Debug)]
pub struct File {
    /// name
    #[allow(dead_code)] // FIXME: discard this field?
    pub name: String,
    /// content type
    #[allow(dead_code)] // FIXME: discard this field?
    pub content_type: Option<String>,
    /// stream
    pub stream: Option<FileStream>,
}

/// multipart/form-data for POST Object
#[derive(Debug)]
pub struct Multipart {
    /// fields
    fields: Vec<(String, String)>,
    /// file
    pub file: File,
}

impl Multipart {
    pub fn fields(&self) -> &[(String, String)] {
        &self.fields
    }

    pub fn take_file_stream(&mut self) -> Option<FileStream> {
        self.file.stream.take()
    }

    /// Finds field value
    #[must_use]
    pub fn find_field_value<'a>(&'a self, name: &str) -> Option<&'a str> {
        let idx = Self::find_field_index(&self.fields, name)?;
        self.fields.get(idx).map(|pair| pair.1.as_str())
    }

    fn find_field_value_mut<'a>(fields: &'a mut [(String, String)], name: &str) -> Option<&'a mut String> {
        let idx = Self::find_field_index(fields, name)?;
        fields.get_mut(idx).map(|pair| &mut pair.1)
    }

    fn find_field_index(fields: &[(String, String)], name: &str) -> Option<usize> {
        let upper_bound = fields.partition_point(|x| x.0.as_str() <= name);
        let idx = upper_bound.checked_sub(1)?;
        fields.get(idx).filter(|pair| pair.0.as_str() == name)?;
        Some(idx)
    }

    /// Substitutes the `${filename}` variable in the `key` field with the
    /// filename supplied by the file part, per the AWS POST upload contract:
    /// <https://docs.aws.amazon.com/AmazonS3/latest/dev/sigv4-HTTPPOSTConstructPolicy.html>
    ///
    /// Amazon S3 replaces the variable verbatim and defines no escaping
    /// mechanism, so a key containing a literal `${filename}` cannot be
    /// uploaded through POST — this matches AWS behavior. Callers must invoke
    /// this before evaluating POST policy conditions so that `eq`/`starts-with`
    /// constraints on `$key` apply to the final substituted key.
    pub(crate) fn substitute_key_filename(&mut self) {
        const FILENAME_VARIABLE: &str = "${filename}";
        let file_name = &self.file.name;
        let Some(key) = Self::find_field_value_mut(&mut self.fields, "key") else {
            return;
        };
        if key.contains(FILENAME_VARIABLE) {
            *key = key.replace(FILENAME_VARIABLE, file_name);
        }
    }

    /// Create a Multipart for testing purposes
    ///
    /// This mirrors the normalization performed by `transform_multipart` by:
    /// - lowercasing field names
    /// - sorting fields by name
    #[cfg(test)]
    #[allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )]
    pub(crate) fn new_for_test(mut fields: Vec<(String, String)>, file: File) -> Self {
        // Normalize field names to lowercase to match production behavior.
        for (name, _) in &mut fields {
            *name = name.to_ascii_lowercase();
        }

        // Sort fields by name so that `find_field_value`'s binary search works correctly.
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        Self { fields, file }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum MultipartError {
    #[error("MultipartError: Underlying: {0}")]
    Underlying(#[source] StdError),
    #[error("MultipartError: InvalidFormat")]
    InvalidFormat,
    #[error("MultipartError: FieldTooLarge: field size {0} bytes exceeds limit of {1} bytes")]
    FieldTooLarge(usize, usize),
    #[error("MultipartError: TotalSizeTooLarge: total form fields size {0} bytes exceeds limit of {1} bytes")]
    TotalSizeTooLarge(usize, usize),
    #[error("MultipartError: TooManyParts: part count {0} exceeds limit of {1}")]
    TooManyParts(usize, usize),
    #[error("MultipartError: FileTooLarge: file size {0} bytes exceeds limit of {1} bytes")]
    FileTooLarge(u64, u64),
}

/// Aggregates a file stream into a Vec<Bytes> with a size limit.
/// Returns error if the total size exceeds the limit.
pub async fn aggregate_file_stream_limited(mut stream: FileStream, max_size: u64) -> Result<Vec<Bytes>, MultipartError> {
    let mut vec = Vec::new();
    let mut total_size: u64 = 0;

    while let Some(result) = stream.next().await {
        let bytes = result.map_err(|e| MultipartError::Underlying(Box::new(e)))?;
        total_size = total_size.saturating_add(bytes.len() as u64);
        if total_size > max_size {
            return Err(MultipartError::FileTooLarge(total_size, max_size));
        }
        vec.push(bytes);
    }
    Ok(vec)
}

/// transform multipart
///
/// When `total_len` is known (the request's `Content-Length`), the parser
/// derives the exact file content length and the file stream validates the
/// canonical closing trailer. See [`FileStream::content_len`].
///
/// # Errors
/// Returns an `Err` if the format is invalid
pub async fn transform_multipart<S>(
    body_stream: S,
    boundary: &[u8],
    limits: MultipartLimits,
    total_len: Option<u64>,
) -> Result<Multipart, MultipartError>
where
    S: Stream<Item = Result<Bytes, StdError>> + Send + Sync + 'static,
{
    let parser_boundary = Boundary::new(boundary).map_err(|_| MultipartError::InvalidFormat)?;
    // The crate fixes the stream item's error type, so the transport error is
    // wrapped here instead of surfacing as a crate-generic error.
    let stream: ParserStream = Box::pin(body_stream.map(|item| item.map_err(ParserError::stream_read_failed)));
    let mut parser = Parser::new(stream, &parser_boundary, limits.max_field_size);

    let mut fields: Vec<(String, String)> = Vec::new();
    let mut total_fields_size: usize = 0;
    let mut parts_count: usize = 0;

    loop {
        let Some(mut part) = parser.next_part().await.map_err(map_parser_error)? else {
            // The closing delimiter was reached without a file part.
            return Err(MultipartError::InvalidFormat);
        };

        parts_count = parts_count.saturating_add(1);
        if parts_count > limits.max_parts {
            return Err(MultipartError::TooManyParts(parts_count, limits.max_parts));
        }

        // The headers borrow the parser's buffer, so the part's metadata is
        // converted to owned values here; the borrow cannot be carried across
        // loop iterations. The last header of each kind wins, matching the
        // previous parser.
        let mut cd_name = None;
        let mut cd_file_name = None;
        let mut content_type = None;

        while let Some(header) = part.next_header().await.map_err(map_parser_error)? {
            if header.name.eq_ignore_ascii_case("content-disposition") {
                let cd = parse_content_disposition(header.value);
                cd_name = cd.and_then(|cd| cd.name).map(bytes_to_string).transpose()?;
                cd_file_name = cd.and_then(|cd| cd.file_name).map(bytes_to_string).transpose()?;
            } else if header.name.eq_ignore_ascii_case("content-type") {
                content_type = Some(bytes_to_string(header.value)?);
            }
        }

        let Some(name) = cd_name else {
            // A part without a usable `Content-Disposition` name cannot be
            // represented as a form field, so the whole form is malformed.
            return Err(MultipartError::InvalidFormat);
        };

        if name.eq_ignore_ascii_case("file") {
            let owned = part.take_data_stream().map_err(map_parser_error)?.into_final();
            let content_len = total_len.and_then(|total| {
                total
                    .checked_sub(owned.multipart_consumed())?
                    .checked_sub(u64::try_from(boundary.len()).ok()?.checked_add(8)?)
            });

            for (field_name, _) in &mut fields {
                field_name.make_ascii_lowercase();
            }
            fields.sort_by(|a, b| a.0.cmp(&b.0));

            return Ok(Multipart {
                fields,
                file: File {
                    name: cd_file_name.unwrap_or(name),
                    content_type,
                    stream: Some(FileStream::from_owned(owned, content_len)),
                },
            });
        }

        let mut value: Vec<u8> = Vec::new();
        while let Some(chunk) = part.next_data().await.map_err(map_parser_error)? {
            value.extend_from_slice(&chunk);
            if value.len() > limits.max_field_size {
                return Err(MultipartError::FieldTooLarge(value.len(), limits.max_field_size));
            }
            total_fields_size = total_fields_size.saturating_add(chunk.len());
            if total_fields_size > limits.max_fields_size {
                return Err(MultipartError::TotalSizeTooLarge(total_fields_size, limits.max_fields_size));
            }
        }

        fields.push((name, bytes_to_string(&value)?));
    }
}

/// Converts a parsed name, filename or header value to a `String`.
///
/// The previous parser converted these values with `str`, so a non-UTF-8
/// name, filename or `Content-Type` is still a format error rather than being
/// silently replaced.
fn bytes_to_string(bytes: &[u8]) -> Result<String, MultipartError> {
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| MultipartError::InvalidFormat)
}

fn map_parser_error(err: ParserError) -> MultipartError {
    match err {
        ParserError::StreamReadFailed(err) => MultipartError::Underlying(err),
        // The crate reports the limit it exceeded, not the size of the block,
        // which is only known to be larger than the limit; report the smallest
        // size that exceeds it instead of an impossible equality.
        ParserError::HeaderSizeExceeded { limit } => MultipartError::FieldTooLarge(limit.saturating_add(1), limit),
        // `Error` is #[non_exhaustive]; every other variant describes a
        // malformed or prematurely ended body, or a misuse the sequential
        // adapter cannot reach, and keeps the "invalid format" mapping.
        _ => MultipartError::InvalidFormat,
    }
}

/// File stream error
#[derive(Debug, thiserror::Error)]
pub enum FileStreamError {
    /// Incomplete error
    #[error("FileStreamError: Incomplete")]
    Incomplete,
    /// IO error
    #[error("FileStreamError: Underlying: {0}")]
    Underlying(#[source] StdError),
    /// Bytes after the file do not match the canonical closing delimiter
    /// (e.g., the file is not the last part or an epilogue exists)
    #[error("FileStreamError: InvalidTrailer")]
    InvalidTrailer,
    /// The yielded byte count disagrees with the declared content length
    #[error("FileStreamError: LengthMismatch: {remaining} bytes remaining")]
    LengthMismatch { remaining: u64 },
}

/// File stream
pub struct FileStream {
    /// Inner stream.
    ///
    /// Boxed: the parser state is large (it owns the byte buffer and the
    /// delimiter finder), and the stream is moved through the dispatch
    /// futures, so keeping it on the heap bounds their size (see the
    /// future-size budget test).
    inner: Box<FinalPartDataStream<ParserStream>>,
    /// exact content length derived from the request's `Content-Length`, if known
    content_len: Option<u64>,
    /// remaining content bytes; counts down as bytes are yielded
    remaining: u64,
    /// set once a terminal error has been reported
    ended: bool,
}

impl Debug for FileStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStream")
            .field("content_len", &self.content_len)
            .field("remaining", &self.remaining)
            .finish_non_exhaustive()
    }
}

impl FileStream {
    /// Constructs a `FileStream` from the parser's taken stream.
    fn from_owned(inner: FinalPartDataStream<ParserStream>, content_len: Option<u64>) -> Self {
        Self {
            inner: Box::new(inner),
            content_len,
            remaining: content_len.unwrap_or(0),
            ended: false,
        }
    }

    /// Returns the exact content length derived from the request's
    /// `Content-Length` header, if it is known.
    pub fn content_len(&self) -> Option<u64> {
        self.content_len
    }
}

impl Stream for FileStream {
    type Item = Result<Bytes, FileStreamError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        match Pin::new(&mut *this.inner).poll_next(cx) {
            Poll::Ready(Some(Ok(bytes))) => {
                // Enforce the declared length: never deliver content beyond
                // the claim. The trailer validation in the inner stream
                // guarantees the counter reaches zero on clean completion.
                if this.content_len.is_some() {
                    let len = bytes.len() as u64;
                    if len > this.remaining {
                        this.ended = true;
                        return Poll::Ready(Some(Err(FileStreamError::LengthMismatch {
                            remaining: this.remaining,
                        })));
                    }
                    this.remaining -= len;
                }
                Poll::Ready(Some(Ok(bytes)))
            }
            // The stream ended cleanly but delivered fewer bytes than claimed.
            Poll::Ready(None) if this.content_len.is_some() && this.remaining > 0 => {
                this.ended = true;
                Poll::Ready(Some(Err(FileStreamError::LengthMismatch {
                    remaining: this.remaining,
                })))
            }
            // An error surfaced by the inner stream is terminal for this
            // stream: mark it ended so the terminal length check does not emit
            // a second, redundant error.
            Poll::Ready(Some(Err(err))) => {
                this.ended = true;
                Poll::Ready(Some(Err(map_file_stream_error(err))))
            }
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => Poll::Ready(None),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // `Stream::size_hint` bounds the number of remaining *chunks*, which
        // is unknowable here; byte-level length information is exposed via
        // `ByteStream::remaining_length` instead.
        (0, None)
    }
}

impl ByteStream for FileStream {
    fn remaining_length(&self) -> crate::stream::RemainingLength {
        match usize::try_from(self.remaining) {
            Ok(remaining) if self.content_len.is_some() => crate::stream::RemainingLength::new_exact(remaining),
            _ => crate::stream::RemainingLength::unknown(),
        }
    }
}

fn map_file_stream_error(err: ParserError) -> FileStreamError {
    match err {
        ParserError::StreamReadFailed(err) => FileStreamError::Underlying(err),
        ParserError::IncompleteStreamPart => FileStreamError::Incomplete,
        // `StreamPartNotLast` covers an epilogue or another part after the
        // closing delimiter; every other variant means the closing trailer
        // could not be validated.
        _ => FileStreamError::InvalidTrailer,
    }
}
