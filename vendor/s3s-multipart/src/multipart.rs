// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

use crate::buffer::StreamBuffer;
use crate::delimiter::{DataSearch, make_delimiter_finder, make_first_boundary, search_data};
use crate::header::HeaderBlock;
use crate::part::Part;
use crate::part_data_stream::PartDataStream;
use crate::{Boundary, Error};

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use memchr::memmem;

/// A streaming parser for `multipart/form-data`.
///
/// The parser owns the underlying stream and yields one [`Part`] at a time.
/// At most one `Part` is active at any moment; the borrow checker enforces
/// this property at compile time.
///
/// The stream has to be `Send + Unpin`, but not `Sync`: the parser only ever
/// polls it through `&mut`, so it never needs shared access, and requiring
/// `Sync` would turn away streams that can be moved between threads but not
/// shared between them.
pub struct Multipart<S>
where
    S: Stream<Item = Result<Bytes, Error>> + Send + Unpin,
{
    /// `None` only after [`Multipart::take_data_stream`] handed the buffer to a
    /// [`PartDataStream`], which also moves the state to `StreamTaken`. Both
    /// public entry points check that state first, so the
    /// `Err(Error::StreamAlreadyTaken)` arms in the poll steps below are guards
    /// rather than reachable outcomes.
    buffer: Option<StreamBuffer<S>>,
    first_boundary: Box<[u8]>,
    /// Taken (not cloned) by [`Multipart::take_data_stream`]: `Some` while the
    /// parser may still read part data, `None` once the stream is handed over.
    /// Boxing keeps the parser compact — the finder carries a 288-byte searcher.
    delimiter_finder: Option<Box<memmem::Finder<'static>>>,
    pub(super) max_buffer_size: usize,
    pub(super) state: State,
    pub(super) headers: Option<HeaderBlock>,
    /// A [`Part`] has been handed out and has not reached its data phase yet.
    ///
    /// The part borrows the parser, so dropping it is the only way for a caller
    /// to say "not this one". Without this flag the next [`Multipart::next_part`]
    /// would hand out the same part again, and a caller that keeps skipping
    /// parts without reading their headers would loop without making progress.
    /// While it is set, `next_part` discards the unread header block and skips
    /// the part's data instead.
    pub(super) part_handed_out: bool,
}

impl<S> Multipart<S>
where
    S: Stream<Item = Result<Bytes, Error>> + Send + Unpin,
{
    /// Constructs a parser.
    ///
    /// `max_buffer_size` bounds the part header block: a block that ends within
    /// the limit is accepted, and one that grows past it without a terminator is
    /// rejected with [`Error::HeaderSizeExceeded`]. The limit is a property of
    /// the body, not of the delivery — the same bytes parse the same way however
    /// the transport splits them — so a chunk larger than `max_buffer_size`
    /// carrying a block that ends within the limit is accepted.
    ///
    /// Data chunks yielded by `stream` while part data is being streamed are
    /// passed through without being retained, so they are not charged to this
    /// limit. The buffer can still hold one arriving chunk beyond the limit: the
    /// bytes that follow the header terminator are retained until the header
    /// block is consumed, so the limit bounds the block, not the peak allocation.
    pub fn new(stream: S, boundary: &Boundary, max_buffer_size: usize) -> Self {
        let first_boundary = make_first_boundary(boundary.as_bytes());
        let delimiter_finder = make_delimiter_finder(boundary.as_bytes());
        Self {
            buffer: Some(StreamBuffer::new(stream)),
            first_boundary,
            delimiter_finder: Some(delimiter_finder),
            max_buffer_size,
            state: State::FindingFirstBoundary,
            headers: None,
            part_handed_out: false,
        }
    }

    /// Returns the next part, or `None` after the closing delimiter.
    ///
    /// Dropping a [`Part`] without entering its data phase (through
    /// [`Part::next_data`] or [`Part::take_data_stream`]) skips the rest of
    /// that part: unread headers are discarded and the part's data is skipped
    /// lazily, so a caller can leave a part behind and keep going.
    ///
    /// # Errors
    ///
    /// Returns an error for malformed input, stream errors, or when the
    /// multipart stream has already been taken by a part data stream.
    pub async fn next_part(&mut self) -> Result<Option<Part<'_, S>>, Error> {
        loop {
            match self.state {
                State::StreamTaken => return Err(Error::StreamAlreadyTaken),
                State::Done => return Ok(None),
                State::FindingFirstBoundary => {
                    poll_fn(|cx| self.poll_advance_first_boundary(cx)).await?;
                }
                State::ReadingPartHeaders => {
                    if self.part_handed_out {
                        // The previous part was dropped before its data phase:
                        // finish the header block and let the loop skip its data.
                        poll_fn(|cx| self.poll_ensure_headers(cx)).await?;
                        self.finish_headers();
                        continue;
                    }
                    self.part_handed_out = true;
                    return Ok(Some(Part::new(self)));
                }
                State::ReadingPartData => {
                    poll_fn(|cx| self.poll_skip_part_data(cx)).await?;
                    poll_fn(|cx| self.poll_advance_after_boundary(cx)).await?;
                }
                State::ReadingBoundary => {
                    poll_fn(|cx| self.poll_advance_after_boundary(cx)).await?;
                }
                State::ReadingClosingDelimiter => {
                    poll_fn(|cx| self.poll_advance_closing(cx)).await?;
                }
                State::ReadingEpilogue => {
                    poll_fn(|cx| self.poll_epilogue(cx)).await?;
                }
            }
        }
    }

    /// Poll-based core of the state machine, driven by [`Multipart::next_part`].
    pub fn poll_next_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Part<'_, S>>, Error>> {
        loop {
            match self.state {
                State::StreamTaken => return Poll::Ready(Err(Error::StreamAlreadyTaken)),
                State::Done => return Poll::Ready(Ok(None)),
                State::FindingFirstBoundary => {
                    ready!(self.poll_advance_first_boundary(cx)?);
                }
                State::ReadingPartHeaders => {
                    if self.part_handed_out {
                        // See `Multipart::next_part`: a dropped part is skipped.
                        ready!(self.poll_ensure_headers(cx)?);
                        self.finish_headers();
                        continue;
                    }
                    self.part_handed_out = true;
                    return Poll::Ready(Ok(Some(Part::new(self))));
                }
                State::ReadingPartData => {
                    ready!(self.poll_skip_part_data(cx)?);
                    ready!(self.poll_advance_after_boundary(cx)?);
                }
                State::ReadingBoundary => {
                    ready!(self.poll_advance_after_boundary(cx)?);
                }
                State::ReadingClosingDelimiter => {
                    ready!(self.poll_advance_closing(cx)?);
                }
                State::ReadingEpilogue => {
                    ready!(self.poll_epilogue(cx)?);
                }
            }
        }
    }

    /// Consumes the leading `--boundary`. Only this step runs here: once the
    /// needle is gone the caller loops and re-matches the state, so a `Pending`
    /// after the state moved on cannot re-run the search (which would look for
    /// the *next* boundary and silently skip the part in between).
    fn poll_advance_first_boundary(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // Borrow the fields instead of cloning `first_boundary` into a local:
        // the needle is a `Box<[u8]>`, so a clone would allocate on every poll
        // of this step. Destructuring splits the borrows, which `buffer_mut()`
        // (a `&mut self` borrow) cannot do for us.
        let Self {
            buffer, first_boundary, ..
        } = self;
        let Some(buffer) = buffer.as_mut() else {
            return Poll::Ready(Err(Error::StreamAlreadyTaken));
        };
        ready!(buffer.poll_read_to(first_boundary, cx)?);
        self.state = State::ReadingBoundary;
        Poll::Ready(Ok(()))
    }

    fn poll_advance_after_boundary(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_ensure_buf_len(1, cx)?);
        let first = match self.buffer_mut() {
            Ok(buffer) => buffer.buf[0],
            Err(err) => return Poll::Ready(Err(err)),
        };
        match first {
            b'-' => {
                ready!(self.poll_ensure_buf_len(2, cx)?);
                let bytes = match self.buffer_mut() {
                    Ok(buffer) => &buffer.buf,
                    Err(err) => return Poll::Ready(Err(err)),
                };
                if bytes.get(..2) != Some(&b"--"[..]) {
                    return Poll::Ready(Err(Error::InvalidFormat));
                }
                if let Ok(buffer) = self.buffer_mut() {
                    let _ = buffer.buf.split_to(2);
                }
                self.state = State::ReadingClosingDelimiter;
                Poll::Ready(Ok(()))
            }
            b' ' | b'\t' => {
                ready!(self.poll_consume_padding_and_crlf(cx)?);
                self.state = State::ReadingPartHeaders;
                Poll::Ready(Ok(()))
            }
            b'\r' => {
                ready!(self.poll_consume_crlf(cx)?);
                self.state = State::ReadingPartHeaders;
                Poll::Ready(Ok(()))
            }
            _ => Poll::Ready(Err(Error::InvalidFormat)),
        }
    }

    /// Consumes the closing delimiter's padding and CRLF, then hands the strict
    /// trailer check to [`Multipart::poll_epilogue`]. Keeping the epilogue in
    /// its own state is what makes the resume safe: re-running this step after a
    /// `Pending` would consume a CRLF that is already gone and then wait for
    /// bytes that never come.
    fn poll_advance_closing(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_consume_padding_and_crlf(cx)?);
        self.state = State::ReadingEpilogue;
        Poll::Ready(Ok(()))
    }

    /// Strict trailer: after the closing delimiter only end of stream may
    /// follow, with the closing CRLF already consumed.
    fn poll_epilogue(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let buffer = match self.buffer_mut() {
            Ok(buffer) => buffer,
            Err(err) => return Poll::Ready(Err(err)),
        };
        if !buffer.buf.is_empty() {
            return Poll::Ready(Err(Error::StreamPartNotLast));
        }
        match ready!(buffer.poll_stream(cx)) {
            None => {
                self.state = State::Done;
                Poll::Ready(Ok(()))
            }
            // A chunk that carries no bytes is not trailing content, and
            // `poll_stream` never hands one out, so whatever arrives here is
            // content after the closing delimiter.
            Some(Ok(_)) => Poll::Ready(Err(Error::StreamPartNotLast)),
            Some(Err(err)) => Poll::Ready(Err(err)),
        }
    }

    fn poll_consume_padding_and_crlf(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            ready!(self.poll_ensure_buf_len(1, cx)?);
            let first = match self.buffer_mut() {
                Ok(buffer) => buffer.buf[0],
                Err(err) => return Poll::Ready(Err(err)),
            };
            if first == b'\r' {
                return self.poll_consume_crlf(cx);
            }
            if !matches!(first, b' ' | b'\t') {
                return Poll::Ready(Err(Error::InvalidFormat));
            }

            let padding_len = match self.buffer_mut() {
                Ok(buffer) => buffer.buf.iter().take_while(|&&b| matches!(b, b' ' | b'\t')).count(),
                Err(err) => return Poll::Ready(Err(err)),
            };
            if let Ok(buffer) = self.buffer_mut() {
                let _ = buffer.buf.split_to(padding_len);
            }
        }
    }

    fn poll_consume_crlf(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_ensure_buf_len(2, cx)?);
        let bytes = match self.buffer_mut() {
            Ok(buffer) => &buffer.buf,
            Err(err) => return Poll::Ready(Err(err)),
        };
        if bytes.get(..2) != Some(&b"\r\n"[..]) {
            return Poll::Ready(Err(Error::InvalidFormat));
        }
        if let Ok(buffer) = self.buffer_mut() {
            let _ = buffer.buf.split_to(2);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_ensure_buf_len(&mut self, len: usize, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while match self.buffer_mut() {
            Ok(buffer) => buffer.buf.len() < len,
            Err(err) => return Poll::Ready(Err(err)),
        } {
            let buffer = match self.buffer_mut() {
                Ok(buffer) => buffer,
                Err(err) => return Poll::Ready(Err(err)),
            };
            match ready!(buffer.poll_stream(cx)) {
                Some(Ok(chunk)) => {
                    if let Ok(buffer) = self.buffer_mut() {
                        buffer.buf.extend_from_slice(&chunk);
                    }
                }
                Some(Err(err)) => return Poll::Ready(Err(err)),
                None => return Poll::Ready(Err(Error::IncompleteStream)),
            }
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_next_part_data_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
        if self.state != State::ReadingPartData {
            return Poll::Ready(Ok(None));
        }

        // While `ReadingPartData` the finder is always present: only
        // `take_data_stream` clears it, and that also moves the state away.
        let Some(delimiter_finder) = self.delimiter_finder.as_deref() else {
            return Poll::Ready(Ok(None));
        };
        let delimiter_len = delimiter_finder.needle().len();

        loop {
            {
                let Some(buffer) = self.buffer.as_mut() else {
                    return Poll::Ready(Err(Error::StreamAlreadyTaken));
                };
                if !buffer.buf.is_empty() {
                    match search_data(&buffer.buf, delimiter_finder) {
                        DataSearch::Found { index } => {
                            let data = buffer.buf.split_to(index).freeze();
                            let _ = buffer.buf.split_to(delimiter_len);
                            self.state = State::ReadingBoundary;
                            return if data.is_empty() {
                                Poll::Ready(Ok(None))
                            } else {
                                Poll::Ready(Ok(Some(data)))
                            };
                        }
                        DataSearch::Emit { end } => {
                            let data = buffer.buf.split_to(end).freeze();
                            return Poll::Ready(Ok(Some(data)));
                        }
                        DataSearch::KeepAll => {}
                    }
                }
            }

            let Some(buffer) = self.buffer.as_mut() else {
                return Poll::Ready(Err(Error::StreamAlreadyTaken));
            };
            match ready!(buffer.poll_stream(cx)) {
                Some(Ok(chunk)) => {
                    let Some(buffer) = self.buffer.as_mut() else {
                        return Poll::Ready(Err(Error::StreamAlreadyTaken));
                    };
                    if !buffer.buf.is_empty() {
                        buffer.buf.extend_from_slice(&chunk);
                        continue;
                    }

                    match search_data(&chunk, delimiter_finder) {
                        DataSearch::Found { index } => {
                            let data = chunk.slice(..index);
                            buffer.buf.clear();
                            buffer.buf.extend_from_slice(&chunk[index.saturating_add(delimiter_len)..]);
                            self.state = State::ReadingBoundary;
                            return if data.is_empty() {
                                Poll::Ready(Ok(None))
                            } else {
                                Poll::Ready(Ok(Some(data)))
                            };
                        }
                        DataSearch::Emit { end } => {
                            let data = chunk.slice(..end);
                            buffer.buf.extend_from_slice(&chunk[end..]);
                            return Poll::Ready(Ok(Some(data)));
                        }
                        DataSearch::KeepAll => {
                            buffer.buf.extend_from_slice(&chunk);
                        }
                    }
                }
                Some(Err(err)) => return Poll::Ready(Err(err)),
                None => return Poll::Ready(Err(Error::IncompleteStream)),
            }
        }
    }

    fn poll_skip_part_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            match ready!(self.poll_next_part_data_chunk(cx)) {
                Ok(Some(_)) => {}
                Ok(None) => return Poll::Ready(Ok(())),
                Err(err) => return Poll::Ready(Err(err)),
            }
        }
    }

    pub(super) fn take_data_stream(&mut self) -> Result<PartDataStream<S>, Error> {
        if self.state == State::ReadingPartHeaders {
            self.finish_headers();
        }
        if self.state != State::ReadingPartData {
            return Err(Error::InvalidFormat);
        }

        let Some(buffer) = self.buffer.take() else {
            return Err(Error::StreamAlreadyTaken);
        };
        // Taken, not cloned: after the handover the parser cannot read part data
        // any more, so `PartDataStream` may as well own the finder. Reaching the
        // `else` arm would need a buffer without a finder, which nothing creates
        // (both are cleared together, after the state guard above).
        let Some(delimiter_finder) = self.delimiter_finder.take() else {
            return Err(Error::StreamAlreadyTaken);
        };
        let multipart_consumed = buffer.consumed();
        self.state = State::StreamTaken;

        Ok(PartDataStream::new(buffer, delimiter_finder, multipart_consumed))
    }

    pub(super) fn buffer_mut(&mut self) -> Result<&mut StreamBuffer<S>, Error> {
        self.buffer.as_mut().ok_or(Error::StreamAlreadyTaken)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
/// State of the parser state machine.
///
/// The module is private and `State` is not re-exported, so `pub` cannot make
/// it reachable from outside the crate.
pub enum State {
    FindingFirstBoundary,
    ReadingPartHeaders,
    ReadingPartData,
    ReadingBoundary,
    ReadingClosingDelimiter,
    /// Closing delimiter consumed; only end of stream may follow.
    ReadingEpilogue,
    Done,
    StreamTaken,
}
