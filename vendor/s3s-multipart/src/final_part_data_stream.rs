// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! Strict closing validation for a taken part stream.
//!
//! [`FinalPartDataStream`] continues to yield the part's data — including
//! data that was not yet read when [`PartDataStream::into_final`](crate::PartDataStream::into_final) was called
//! — and then validates the strict closing trailer: the `--` suffix of the
//! closing delimiter, optional transport padding, `\r\n`, and end of stream.
//!
//! An epilogue or another part is rejected (`Error::StreamPartNotLast`)
//! because callers derive the exact file length from the multipart byte
//! accounting: trailing content of unknown size would break that accounting.
//! Note that RFC 2046 allows an epilogue; this crate deliberately rejects
//! it.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use memchr::memmem;

use crate::Error;
use crate::buffer::StreamBuffer;
use crate::delimiter::{DataSearch, search_data};

/// The strict variant of a taken part stream.
///
/// Created with [`PartDataStream::into_final`](crate::PartDataStream::into_final), it yields the remaining data
/// chunks of the part — each one non-empty — and then validates the strict
/// closing trailer: `\r\n--boundary--\r\n` followed by end of stream, with
/// transport padding (SP / HTAB) allowed between the closing `--` and the
/// final CRLF, as RFC 2046 section 5.1.1 allows for a boundary line. An
/// epilogue or another part is rejected because callers derive the exact
/// content length from the multipart byte accounting.
pub struct FinalPartDataStream<S>
where
    S: Stream<Item = Result<Bytes, Error>> + Send + Unpin,
{
    buffer: StreamBuffer<S>,
    delimiter_finder: Box<memmem::Finder<'static>>,
    state: DataState,
    multipart_consumed: u64,
    /// The taken stream ended abnormally — with an error, or at end of stream
    /// before the delimiter — so the first poll reports an incomplete part
    /// instead of validating a trailer that was never reached.
    aborted: bool,
    terminated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DataState {
    /// The closing delimiter has not been reached yet; data chunks are
    /// yielded as they are located.
    Data,
    /// The delimiter was consumed; the `--` suffix of the closing delimiter
    /// is expected next.
    AfterBoundary,
    /// The `--` suffix was consumed; optional transport padding and the
    /// final `\r\n` are expected.
    FinalCRLF,
    /// The closing trailer is complete; only end of stream may follow.
    Eof,
    Done,
}

impl<S> FinalPartDataStream<S>
where
    S: Stream<Item = Result<Bytes, Error>> + Send + Unpin,
{
    /// Constructs the final stream from the state of a taken part stream.
    ///
    /// `data_done` indicates whether the closing delimiter was already
    /// consumed (and the post-delimiter bytes are retained in `buffer`);
    /// `aborted` indicates that the taken stream ended abnormally, so this
    /// stream has to report the incomplete part. The two cannot both be true:
    /// reaching the delimiter ends the taken stream's data phase successfully.
    pub(super) fn new(
        buffer: StreamBuffer<S>,
        delimiter_finder: Box<memmem::Finder<'static>>,
        multipart_consumed: u64,
        data_done: bool,
        aborted: bool,
    ) -> Self {
        Self {
            buffer,
            delimiter_finder,
            state: if data_done {
                DataState::AfterBoundary
            } else {
                DataState::Data
            },
            multipart_consumed,
            aborted,
            terminated: false,
        }
    }

    /// Returns the total number of multipart bytes consumed at the moment
    /// the stream was taken, excluding bytes retained in the internal
    /// buffer.
    ///
    /// This is the value to subtract from the request `Content-Length` when
    /// deriving the exact file length. It does not count bytes yielded by
    /// this stream itself.
    #[must_use]
    pub fn multipart_consumed(&self) -> u64 {
        self.multipart_consumed
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
        if self.aborted {
            // The taken stream failed before reaching the delimiter, so there is
            // no trailer to validate: report the incomplete part instead of
            // reading on, which could otherwise turn the failure into a success.
            self.terminated = true;
            return Poll::Ready(Err(Error::IncompleteStreamPart));
        }

        let delimiter_finder = &self.delimiter_finder;
        let delimiter_len = delimiter_finder.needle().len();

        loop {
            if !self.buffer.buf.is_empty() {
                match search_data(&self.buffer.buf, delimiter_finder) {
                    DataSearch::Found { index } => {
                        let data = self.buffer.buf.split_to(index).freeze();
                        let _ = self.buffer.buf.split_to(delimiter_len);
                        self.state = DataState::AfterBoundary;
                        return Poll::Ready(Ok((!data.is_empty()).then_some(data)));
                    }
                    DataSearch::Emit { end } => {
                        return Poll::Ready(Ok(Some(self.buffer.buf.split_to(end).freeze())));
                    }
                    DataSearch::KeepAll => {}
                }
            }

            match ready!(self.buffer.poll_stream(cx)) {
                Some(Ok(chunk)) => {
                    if !self.buffer.buf.is_empty() {
                        self.buffer.buf.extend_from_slice(&chunk);
                        continue;
                    }

                    match search_data(&chunk, delimiter_finder) {
                        DataSearch::Found { index } => {
                            let data = chunk.slice(..index);
                            self.buffer.buf.clear();
                            self.buffer
                                .buf
                                .extend_from_slice(&chunk[index.saturating_add(delimiter_len)..]);
                            self.state = DataState::AfterBoundary;
                            return Poll::Ready(Ok((!data.is_empty()).then_some(data)));
                        }
                        DataSearch::Emit { end } => {
                            let data = chunk.slice(..end);
                            self.buffer.buf.extend_from_slice(&chunk[end..]);
                            return Poll::Ready(Ok(Some(data)));
                        }
                        DataSearch::KeepAll => {
                            self.buffer.buf.extend_from_slice(&chunk);
                        }
                    }
                }
                Some(Err(err)) => return Poll::Ready(Err(err)),
                None => return Poll::Ready(Err(Error::IncompleteStreamPart)),
            }
        }
    }

    fn poll_trailer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            match self.state {
                DataState::AfterBoundary => {
                    ready!(self.fill_buf(2, cx))?;
                    if !self.buffer.buf.starts_with(b"--") {
                        let err = if self.buffer.buf.starts_with(b"\r")
                            || self.buffer.buf.first().is_some_and(|b| matches!(b, b' ' | b'\t'))
                        {
                            Error::StreamPartNotLast
                        } else {
                            Error::InvalidFormat
                        };
                        return Poll::Ready(Err(err));
                    }
                    let _ = self.buffer.buf.split_to(2);
                    self.state = DataState::FinalCRLF;
                }
                DataState::FinalCRLF => {
                    loop {
                        ready!(self.fill_buf(1, cx))?;

                        let first = self.buffer.buf[0];
                        match first {
                            b' ' | b'\t' => {
                                let _ = self.buffer.buf.split_to(1);
                            }
                            b'\r' => break,
                            _ => return Poll::Ready(Err(Error::InvalidFormat)),
                        }
                    }

                    ready!(self.fill_buf(2, cx))?;
                    if !self.buffer.buf.starts_with(b"\r\n") {
                        return Poll::Ready(Err(Error::InvalidFormat));
                    }
                    let _ = self.buffer.buf.split_to(2);
                    self.state = DataState::Eof;
                }
                DataState::Eof => {
                    if !self.buffer.buf.is_empty() {
                        return Poll::Ready(Err(Error::StreamPartNotLast));
                    }

                    match ready!(self.buffer.poll_stream(cx)) {
                        None => {
                            self.state = DataState::Done;
                            return Poll::Ready(Ok(()));
                        }
                        // An empty chunk is not trailing content either, and
                        // `poll_stream` never hands one out.
                        Some(Ok(_)) => return Poll::Ready(Err(Error::StreamPartNotLast)),
                        Some(Err(err)) => return Poll::Ready(Err(err)),
                    }
                }
                // `poll_trailer` is only reached in the three trailer states, so
                // this arm guards the match rather than describing a reachable
                // outcome.
                DataState::Data | DataState::Done => return Poll::Ready(Ok(())),
            }
        }
    }

    fn fill_buf(&mut self, len: usize, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while self.buffer.buf.len() < len {
            match ready!(self.buffer.poll_stream(cx)) {
                Some(Ok(chunk)) => self.buffer.buf.extend_from_slice(&chunk),
                Some(Err(err)) => return Poll::Ready(Err(err)),
                None => return Poll::Ready(Err(Error::IncompleteStreamPart)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S> fmt::Debug for FinalPartDataStream<S>
where
    S: Stream<Item = Result<Bytes, Error>> + Send + Unpin,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FinalPartDataStream")
            .field("state", &self.state)
            .field("multipart_consumed", &self.multipart_consumed)
            .finish_non_exhaustive()
    }
}

impl<S> Stream for FinalPartDataStream<S>
where
    S: Stream<Item = Result<Bytes, Error>> + Send + Unpin,
{
    type Item = Result<Bytes, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if this.terminated {
                return Poll::Ready(None);
            }

            match this.state {
                DataState::Data => match ready!(this.poll_data(cx)) {
                    Ok(Some(item)) => return Poll::Ready(Some(Ok(item))),
                    // No data in this step: the delimiter was already reached, so
                    // go on and validate the trailer in the same poll instead of
                    // handing the caller an empty chunk.
                    Ok(None) => {}
                    Err(err) => {
                        this.terminated = true;
                        return Poll::Ready(Some(Err(err)));
                    }
                },
                DataState::AfterBoundary | DataState::FinalCRLF | DataState::Eof => {
                    if let Err(err) = ready!(this.poll_trailer(cx)) {
                        this.terminated = true;
                        return Poll::Ready(Some(Err(err)));
                    }
                }
                DataState::Done => return Poll::Ready(None),
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, None)
    }
}
