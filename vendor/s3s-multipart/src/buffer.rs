// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

use crate::Error;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use memchr::memmem;

/// Empty chunks consumed in one poll before yielding back to the executor.
///
/// A chunk that carries no bytes is not progress: skipping a run of them is
/// bounded per poll so a stream that keeps answering `Ready` cannot monopolize
/// the executor.
const EMPTY_CHUNKS_PER_POLL: usize = 32;

/// Consecutive empty chunks tolerated across polls before the stream is
/// treated as stalled.
///
/// Work has to be bounded by the bytes an input carries, and empty chunks carry
/// none: without this bound a stream could keep the parser busy forever without
/// ever sending a byte. The run is consecutive — any non-empty chunk resets it,
/// so a noisy but progressing stream is not affected.
const MAX_CONSECUTIVE_EMPTY_CHUNKS: usize = 1024;

/// The byte buffer owned by [`super::Multipart`].
///
/// `buf` only holds structural bytes: a partial boundary match, the bytes
/// after a matched boundary, or the data prefix that followed the header
/// block. Data chunks are yielded directly whenever possible.
pub struct StreamBuffer<S> {
    pub buf: BytesMut,
    stream: Option<S>,
    eof: bool,
    polled_total: u64,
    read_until_cursor: usize,
    read_until_active: bool,
    empty_chunks: usize,
}

impl<S> StreamBuffer<S>
where
    S: Stream<Item = Result<Bytes, Error>> + Unpin,
{
    pub fn new(stream: S) -> Self {
        Self {
            buf: BytesMut::new(),
            stream: Some(stream),
            eof: false,
            polled_total: 0,
            read_until_cursor: 0,
            read_until_active: false,
            empty_chunks: 0,
        }
    }

    /// Polls the underlying stream for the next non-empty chunk.
    ///
    /// Empty chunks are skipped rather than handed out: an empty chunk is not
    /// progress, and a caller that keeps pulling on one would spin. Two bounds
    /// keep that from becoming unbounded work — at most
    /// [`EMPTY_CHUNKS_PER_POLL`] empty chunks are consumed per call (then the
    /// caller is woken again right away, because the stream returned `Ready`
    /// and registered no waker), and more than
    /// [`MAX_CONSECUTIVE_EMPTY_CHUNKS`] consecutive empty chunks are reported as
    /// a stream failure.
    pub fn poll_stream(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        let Some(stream) = self.stream.as_mut() else {
            self.eof = true;
            return Poll::Ready(None);
        };

        for _ in 0..EMPTY_CHUNKS_PER_POLL {
            match ready!(Pin::new(&mut *stream).poll_next(cx)) {
                Some(Ok(bytes)) => {
                    if bytes.is_empty() {
                        self.empty_chunks += 1;
                        if self.empty_chunks > MAX_CONSECUTIVE_EMPTY_CHUNKS {
                            return Poll::Ready(Some(Err(Error::stream_read_failed(io::Error::other(
                                "stream kept yielding empty chunks without progress",
                            )))));
                        }
                        continue;
                    }
                    self.empty_chunks = 0;
                    self.polled_total = self.polled_total.saturating_add(bytes.len() as u64);
                    return Poll::Ready(Some(Ok(bytes)));
                }
                Some(Err(err)) => return Poll::Ready(Some(Err(err))),
                None => {
                    self.eof = true;
                    return Poll::Ready(None);
                }
            }
        }

        // The stream never suspended but produced nothing usable: yield so other
        // tasks run, and wake ourselves because a `Ready` stream registered no
        // waker for this task.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Appends chunks to `buf` until `needle` is present.
    ///
    /// Returns the end offset of the first `needle` occurrence. The caller
    /// owns interpreting the returned offset.
    ///
    /// `max` bounds the block being read, not the way it arrives: the read
    /// succeeds when the needle ends within `max`, whichever chunk carried it,
    /// and fails with `HeaderSizeExceeded` once the buffer passes `max` without
    /// the needle. Bytes that follow the needle are retained until the caller
    /// consumes the block, so the buffer can hold one arriving chunk beyond
    /// `max` — that allowance is what keeps the outcome independent of where
    /// the transport split the body.
    ///
    /// Only bytes at the end of the existing buffer can combine with the next
    /// chunk to form a needle that spans chunk boundaries, so the search
    /// resumes at the previous tail (`read_until_cursor`); re-scanning the
    /// whole block on every append would make header parsing quadratic for
    /// inputs delivered as many small chunks. The cursor is reset on every
    /// `Ready`.
    ///
    /// The cursor is only meaningful while `buf` keeps its contents: a
    /// `Pending` return leaves the read active, so callers must not shrink
    /// `buf` before resuming the same read.
    pub fn poll_read_until(&mut self, needle: &[u8], max: usize, cx: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        if !self.read_until_active {
            self.read_until_cursor = 0;
            self.read_until_active = true;
        }
        debug_assert!(self.read_until_cursor <= self.buf.len());

        loop {
            if let Some(rel) = memmem::find(&self.buf[self.read_until_cursor..], needle) {
                let idx = self.read_until_cursor.saturating_add(rel);
                let end = idx.saturating_add(needle.len());
                self.read_until_active = false;
                if end > max {
                    return Poll::Ready(Err(Error::HeaderSizeExceeded { limit: max }));
                }
                return Poll::Ready(Ok(end));
            }

            if self.buf.len() > max {
                self.read_until_active = false;
                return Poll::Ready(Err(Error::HeaderSizeExceeded { limit: max }));
            }

            if self.eof {
                self.read_until_active = false;
                return Poll::Ready(Err(Error::IncompleteStream));
            }

            match ready!(self.poll_stream(cx)) {
                Some(Ok(chunk)) => {
                    // The chunk is searched before it is judged: a block that
                    // ends within `max` is accepted however large the chunk that
                    // completed it was. The `buf.len() > max` check above rejects
                    // a buffer that grows past the limit without the needle, so
                    // the excess this can retain is one arriving chunk.
                    let old_len = self.buf.len();
                    self.buf.extend_from_slice(&chunk);
                    self.read_until_cursor = old_len.saturating_sub(needle.len().saturating_sub(1));
                }
                Some(Err(err)) => {
                    self.read_until_active = false;
                    return Poll::Ready(Err(err));
                }
                None => {
                    self.eof = true;
                    self.read_until_active = false;
                    return Poll::Ready(Err(Error::IncompleteStream));
                }
            }
        }
    }

    /// Discards input until `needle` appears, keeping the bytes after the
    /// match in `buf`.
    ///
    /// Used to skip the preamble before the first boundary. The unmatched
    /// prefix is discarded incrementally, so memory use is bounded by the
    /// needle length plus one chunk.
    pub fn poll_read_to(&mut self, needle: &[u8], cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            if let Some(idx) = memmem::find(&self.buf, needle) {
                let end = idx.saturating_add(needle.len());
                let _ = self.buf.split_to(end);
                return Poll::Ready(Ok(()));
            }

            if self.eof {
                return Poll::Ready(Err(Error::InvalidFormat));
            }

            match ready!(self.poll_stream(cx)) {
                Some(Ok(chunk)) => {
                    if self.buf.is_empty() {
                        if let Some(idx) = memmem::find(&chunk, needle) {
                            let end = idx.saturating_add(needle.len());
                            self.buf.extend_from_slice(&chunk[end..]);
                            return Poll::Ready(Ok(()));
                        }
                        let keep = needle.len().saturating_sub(1).min(chunk.len());
                        let cut = chunk.len().saturating_sub(keep);
                        self.buf.extend_from_slice(&chunk[cut..]);
                    } else {
                        self.buf.extend_from_slice(&chunk);
                        if let Some(idx) = memmem::find(&self.buf, needle) {
                            let end = idx.saturating_add(needle.len());
                            let _ = self.buf.split_to(end);
                            return Poll::Ready(Ok(()));
                        }
                        let keep = needle.len().saturating_sub(1).min(self.buf.len());
                        let cut = self.buf.len().saturating_sub(keep);
                        let _ = self.buf.split_to(cut);
                    }
                }
                Some(Err(err)) => return Poll::Ready(Err(err)),
                None => {
                    self.eof = true;
                    return Poll::Ready(Err(Error::InvalidFormat));
                }
            }
        }
    }

    /// Poll-based header-block reader, driving [`poll_read_until`].
    ///
    /// An empty block is the blank line that follows the boundary line, so it
    /// ends two bytes into the header area. Deciding that needs those bytes in
    /// `buf`: when the boundary line ends a chunk, `buf` is empty here and the
    /// `\r\n\r\n` search below would run over a block that cannot contain it.
    /// The wait pulls at most two chunks and does not judge their size — the
    /// search below applies `max` to the block.
    pub fn poll_read_header_block(&mut self, max: usize, cx: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        while self.buf.len() < 2 && !self.eof {
            // The bytes waited for here belong to the same read; a cursor from a
            // previous `Pending` is still a valid lower bound, but restarting the
            // scan over a buffer this short is cheaper than reasoning about it.
            self.read_until_active = false;
            match ready!(self.poll_stream(cx)) {
                Some(Ok(chunk)) => self.buf.extend_from_slice(&chunk),
                Some(Err(err)) => return Poll::Ready(Err(err)),
                None => self.eof = true,
            }
        }
        if self.buf.starts_with(b"\r\n") {
            self.read_until_active = false;
            return Poll::Ready(Ok(2));
        }
        self.poll_read_until(b"\r\n\r\n", max, cx)
    }

    /// Returns the number of bytes consumed from the underlying stream that
    /// are not currently retained in `buf`.
    pub fn consumed(&self) -> u64 {
        self.polled_total.saturating_sub(self.buf.len() as u64)
    }
}
