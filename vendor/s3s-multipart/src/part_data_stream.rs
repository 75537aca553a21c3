// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! The self-contained stream handed out by [`Part::take_data_stream`](crate::Part::take_data_stream).
//!
//! The stream yields the part's data chunks and ends at the part's closing
//! delimiter `\r\n--boundary`. It does not interpret what follows the
//! delimiter: the strict closing contract (the `--` suffix, transport
//! padding, the final `\r\n`, and the absence of an epilogue or further
//! parts) is enforced by [`FinalPartDataStream`], reached through
//! [`PartDataStream::into_final`](crate::PartDataStream::into_final) at any point.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use memchr::memmem;

use crate::Error;
use crate::buffer::StreamBuffer;
use crate::delimiter::{DataSearch, search_data};
use crate::final_part_data_stream::FinalPartDataStream;

/// A self-contained stream produced by [`Part::take_data_stream`](crate::Part::take_data_stream).
///
/// The stream yields the part's data chunks — each one non-empty, so a part
/// with no data yields nothing at all — and ends at the closing
/// delimiter `\r\n--boundary`. What follows the delimiter (the strict
/// closing trailer, an epilogue, or another part) is not interpreted; call
/// [`PartDataStream::into_final`](crate::PartDataStream::into_final) to obtain a [`FinalPartDataStream`] that
/// yields any remaining data and enforces the strict closing trailer.
pub struct PartDataStream<S>
where
    S: Stream<Item = Result<Bytes, Error>> + Send + Unpin,
{
    buffer: StreamBuffer<S>,
    delimiter_finder: Box<memmem::Finder<'static>>,
    multipart_consumed: u64,
    done: bool,
    terminated: bool,
}

impl<S> PartDataStream<S>
where
    S: Stream<Item = Result<Bytes, Error>> + Send + Unpin,
{
    /// Constructs the stream from the parser state at the take point.
    pub(super) fn new(buffer: StreamBuffer<S>, delimiter_finder: Box<memmem::Finder<'static>>, multipart_consumed: u64) -> Self {
        Self {
            buffer,
            delimiter_finder,
            multipart_consumed,
            done: false,
            terminated: false,
        }
    }

    /// Returns the total number of multipart bytes consumed at the moment
    /// this stream was taken, excluding bytes retained in the internal
    /// buffer.
    ///
    /// This is the value to subtract from the request `Content-Length` when
    /// deriving the exact file length. It does not count bytes yielded by
    /// this stream itself.
    #[must_use]
    pub fn multipart_consumed(&self) -> u64 {
        self.multipart_consumed
    }

    /// Converts this stream into a [`FinalPartDataStream`], which yields any
    /// remaining data and then enforces the strict closing trailer.
    ///
    /// No data is discarded: chunks already read stay with the caller, and
    /// chunks not yet read are yielded by the returned stream before the
    /// closing trailer is validated.
    ///
    /// A stream that ended abnormally — with an error, or at end of stream
    /// before the delimiter — stays failed: the returned stream reports
    /// [`Error::IncompleteStreamPart`] instead of validating a trailer that was
    /// never reached.
    #[must_use]
    pub fn into_final(self) -> FinalPartDataStream<S> {
        FinalPartDataStream::new(self.buffer, self.delimiter_finder, self.multipart_consumed, self.done, self.terminated)
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        if self.done || self.terminated {
            return Poll::Ready(None);
        }

        let delimiter_finder = &self.delimiter_finder;
        let delimiter_len = delimiter_finder.needle().len();

        loop {
            if !self.buffer.buf.is_empty() {
                match search_data(&self.buffer.buf, delimiter_finder) {
                    DataSearch::Found { index } => {
                        let data = self.buffer.buf.split_to(index).freeze();
                        let _ = self.buffer.buf.split_to(delimiter_len);
                        self.done = true;
                        return if data.is_empty() {
                            Poll::Ready(None)
                        } else {
                            Poll::Ready(Some(Ok(data)))
                        };
                    }
                    DataSearch::Emit { end } => {
                        return Poll::Ready(Some(Ok(self.buffer.buf.split_to(end).freeze())));
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
                            self.done = true;
                            return if data.is_empty() {
                                Poll::Ready(None)
                            } else {
                                Poll::Ready(Some(Ok(data)))
                            };
                        }
                        DataSearch::Emit { end } => {
                            let data = chunk.slice(..end);
                            self.buffer.buf.extend_from_slice(&chunk[end..]);
                            return Poll::Ready(Some(Ok(data)));
                        }
                        DataSearch::KeepAll => {
                            self.buffer.buf.extend_from_slice(&chunk);
                        }
                    }
                }
                Some(Err(err)) => {
                    self.terminated = true;
                    return Poll::Ready(Some(Err(err)));
                }
                None => {
                    self.terminated = true;
                    return Poll::Ready(Some(Err(Error::IncompleteStreamPart)));
                }
            }
        }
    }
}

impl<S> fmt::Debug for PartDataStream<S>
where
    S: Stream<Item = Result<Bytes, Error>> + Send + Unpin,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartDataStream")
            .field("multipart_consumed", &self.multipart_consumed)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

impl<S> Stream for PartDataStream<S>
where
    S: Stream<Item = Result<Bytes, Error>> + Send + Unpin,
{
    type Item = Result<Bytes, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_data(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, None)
    }
}
