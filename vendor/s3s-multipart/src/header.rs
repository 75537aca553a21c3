// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! Part header block parsing and the header stage of the state machine.

use std::ops::Range;
use std::task::{Context, Poll, ready};

use arrayvec::ArrayVec;
use bytes::Bytes;
use futures_core::Stream;
use memchr::memmem;

use crate::Error;
use crate::multipart::{Multipart, State};
use crate::utils::trim_ows;

/// Header fields read per part. RFC 7578 section 4.8 defines exactly three —
/// `Content-Disposition`, `Content-Type` and the deprecated
/// `Content-Transfer-Encoding` — and requires any other header field to be
/// ignored. The limit is therefore the conforming set itself: a part with more
/// fields is still accepted, and the surplus fields are dropped.
pub const MAX_HEADERS: usize = 3;

#[derive(Debug)]
pub struct HeaderBlock {
    /// At most [`MAX_HEADERS`] spans fit here, so the container is exactly the
    /// size the protocol allows and never allocates: a part with more header
    /// fields than that is truncated rather than grown.
    spans: ArrayVec<HeaderSpan, MAX_HEADERS>,
    next: usize,
    /// Offset of the first part data byte, always inside the block that
    /// `parse_header_block` was given. [`Multipart::finish_headers`] splits the
    /// buffer there, and `split_to` panics past the end instead of returning an
    /// error, so the offset has to stay within the parsed block.
    data_start: usize,
}

#[derive(Debug, Clone)]
struct HeaderSpan {
    name: Range<usize>,
    value: Range<usize>,
}

fn parse_header_block(block: &[u8]) -> Result<HeaderBlock, Error> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    match httparse::parse_headers(block, &mut headers) {
        Ok(httparse::Status::Complete((data_start, parsed))) => {
            let mut spans = ArrayVec::<HeaderSpan, MAX_HEADERS>::new();
            for header in parsed {
                let name_start = header.name.as_ptr() as usize - block.as_ptr() as usize;
                let value_start = header.value.as_ptr() as usize - block.as_ptr() as usize;
                // `httparse` never writes more than `MAX_HEADERS` entries, so the
                // push always fits; dropping the result keeps the path panic-free
                // instead of relying on `push`, which panics when full.
                let _ = spans.try_push(HeaderSpan {
                    name: name_start..name_start.saturating_add(header.name.len()),
                    value: value_start..value_start.saturating_add(header.value.len()),
                });
            }
            Ok(HeaderBlock {
                spans,
                next: 0,
                data_start,
            })
        }
        // The caller only parses a block it sliced through the terminating blank
        // line (or the bare `\r\n` of an empty header block), so `httparse`
        // cannot report `Partial` here; this arm guards the contract rather than
        // describing a reachable outcome.
        Ok(httparse::Status::Partial) => Err(Error::IncompleteStream),
        Err(httparse::Error::TooManyHeaders) => parse_header_block_fallback(block),
        Err(_) => Err(Error::InvalidFormat),
    }
}

/// Reads a part header block that carries more fields than [`MAX_HEADERS`].
///
/// Only reachable once `httparse` reports [`httparse::Error::TooManyHeaders`],
/// so the block always ends with the terminating blank line and holds at least
/// `MAX_HEADERS` fields; the surplus fields are ignored, as RFC 7578 section
/// 4.8 requires of a receiver.
///
/// The fields it keeps were read and validated by `httparse` first, which is
/// why this reader only has to find the colon and trim optional whitespace: a
/// field name that is not a valid token, or a field with no colon at all, was
/// already rejected by `httparse` before the window overflowed. That is a
/// property of the call site, not of this function — calling it on arbitrary
/// bytes would accept names `httparse` would refuse.
fn parse_header_block_fallback(block: &[u8]) -> Result<HeaderBlock, Error> {
    // The caller already slices through the terminating blank line, so do not
    // scan for `\r\n\r\n` again here.
    if !block.ends_with(b"\r\n\r\n") {
        return Err(Error::InvalidFormat);
    }
    let blank = block.len().saturating_sub(4);
    let header_text = &block[..blank];

    let mut spans = ArrayVec::<HeaderSpan, MAX_HEADERS>::new();
    let mut rest = header_text;
    while !rest.is_empty() && spans.len() < MAX_HEADERS {
        let (line, next_rest) = match memmem::find(rest, b"\r\n") {
            Some(line_end) => (&rest[..line_end], &rest[line_end.saturating_add(2)..]),
            None => (rest, &b""[..]),
        };
        let colon = memchr::memchr(b':', line).ok_or(Error::InvalidFormat)?;
        let name = &line[..colon];
        if name.is_empty() {
            return Err(Error::InvalidFormat);
        }
        let value = trim_ows(&line[colon.saturating_add(1)..]);
        let name_start = name.as_ptr() as usize - block.as_ptr() as usize;
        let name_end = name_start.saturating_add(name.len());
        let value_start = value.as_ptr() as usize - block.as_ptr() as usize;
        let value_end = value_start.saturating_add(value.len());
        // The loop condition already caps the count at `MAX_HEADERS`; ignoring
        // a rejected push keeps the path panic-free without an `unwrap`.
        let _ = spans.try_push(HeaderSpan {
            name: name_start..name_end,
            value: value_start..value_end,
        });
        rest = next_rest;
    }

    Ok(HeaderBlock {
        spans,
        next: 0,
        data_start: blank.saturating_add(4),
    })
}

impl<S> Multipart<S>
where
    S: Stream<Item = Result<Bytes, Error>> + Send + Unpin,
{
    pub(super) fn next_header_inner(&mut self) -> Result<Option<httparse::Header<'_>>, Error> {
        let Some(block) = self.headers.as_mut() else {
            return Ok(None);
        };

        let Some(span) = block.spans.get(block.next).cloned() else {
            self.finish_headers();
            return Ok(None);
        };
        block.next = block.next.saturating_add(1);

        let buffer = self.buffer_mut()?;
        let name_bytes = buffer.buf.get(span.name.clone()).ok_or(Error::InvalidFormat)?;
        let value = buffer.buf.get(span.value.clone()).ok_or(Error::InvalidFormat)?;
        let name = std::str::from_utf8(name_bytes).map_err(|_| Error::InvalidFormat)?;
        Ok(Some(httparse::Header { name, value }))
    }

    pub(super) fn finish_headers(&mut self) {
        let Some(block) = self.headers.take() else {
            return;
        };
        if self.state == State::ReadingPartHeaders {
            let _ = self.buffer_mut().map(|buf| buf.buf.split_to(block.data_start));
            self.state = State::ReadingPartData;
        }
        // The part is in its data phase now, so it is no longer "handed out and
        // waiting": dropping it from here on cannot rewind the parser.
        self.part_handed_out = false;
    }

    pub(super) fn poll_ensure_headers(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.headers.is_some() || self.state == State::ReadingPartData {
            return Poll::Ready(Ok(()));
        }
        if self.state != State::ReadingPartHeaders {
            return Poll::Ready(Ok(()));
        }

        let max = self.max_buffer_size;
        let end = {
            let buffer = match self.buffer_mut() {
                Ok(buffer) => buffer,
                Err(err) => return Poll::Ready(Err(err)),
            };
            ready!(buffer.poll_read_header_block(max, cx))?
        };

        let block = match self.buffer_mut() {
            Ok(buffer) => parse_header_block(&buffer.buf[..end]),
            Err(err) => return Poll::Ready(Err(err)),
        };
        match block {
            Ok(block) => {
                self.headers = Some(block);
                Poll::Ready(Ok(()))
            }
            Err(err) => Poll::Ready(Err(err)),
        }
    }
}
