//! The output queue of a session: frames that the socket has not accepted yet.

use std::collections::VecDeque;
use std::io::{IoSlice, Write};
use std::time::Duration;

use bytes::{Buf, Bytes};
use steadfast_flow::Patience;

use super::{Broken, Session, would_block};
use crate::partition::Bounds;

/// Seconds in which a client must read its long answers; `client_bytes_s_min` suits short answers.
const ANSWER_S_MAX: u64 = 300;

/// Pieces that one call writes.
const PIECES: usize = 64;

/// Bytes of answers that may always be queued, whatever the bound on the queue.
const ANSWERS_BYTES: usize = 64 << 10;

/// A frame, or one of the two parts of a frame.
pub(super) struct Piece {
    bytes: Bytes,
    /// Many sessions share it.
    live: bool,
    /// It begins a frame.
    begins: bool,
}

impl Session {
    /// Whether bytes are queued for the socket.
    pub(in crate::partition) fn is_waiting(&self) -> bool {
        !self.out.is_empty()
    }

    /// Queued bytes.
    pub(in crate::partition) fn waiting_bytes(&self) -> usize {
        self.live_bytes + self.answer_bytes
    }

    /// Whether its next commands must wait until the client reads more of its answers, with a queue
    /// bound of `max` bytes.
    pub(in crate::partition) fn owes_reading(&self, max: usize) -> bool {
        self.answer_bytes > max / 2
    }

    /// Whether the socket has accepted too little of the queue for too long. Called periodically
    /// while bytes are queued.
    pub(in crate::partition) fn is_stalled(&mut self, now_ms: u64, bounds: &Bounds) -> bool {
        let now = Duration::from_millis(now_ms);
        // All memory of its answers is released within a time that does not grow with their length.
        let rate = match bounds.client_bytes_s_min {
            0 => 0,
            min => min.max(self.answer_bytes as u64 / ANSWER_S_MAX),
        };
        let patience =
            self.patience.get_or_insert_with(|| Box::new(Patience::new(Duration::from_millis(bounds.stall_ms), rate)));
        let taken = std::mem::take(&mut self.taken);
        if taken > 0 {
            patience.moved(now, taken);
        }
        patience.waits(now).is_zero()
    }

    /// Writes a shared frame, and queues the part that the socket does not accept. A session that
    /// does not read is [`Broken::Slow`].
    pub(in crate::partition) fn send(&mut self, frame: &Bytes, max: usize) -> Result<(), Broken> {
        if self.out.is_empty() {
            match (&self.socket).write(frame) {
                Ok(written) if written == frame.len() => return Ok(()),
                Ok(written) => {
                    self.push(frame.slice(written..), true, true);
                    self.cut = written > 0;
                    return Ok(());
                }
                Err(e) if would_block(&e) => {}
                Err(_) => return Err(Broken::Socket),
            }
        }
        self.keep(frame.clone(), max)
    }

    /// Queues a shared frame, to write it together with others.
    pub(in crate::partition) fn keep(&mut self, frame: Bytes, max: usize) -> Result<(), Broken> {
        self.push(frame, true, true);
        if self.is_slow(max) { Err(Broken::Slow) } else { Ok(()) }
    }

    /// Whether more than `max` shared bytes are queued. The frame being written and the newest
    /// frame do not count, so that one frame of any size reaches a client that reads.
    pub(in crate::partition) fn is_slow(&self, max: usize) -> bool {
        let live = |piece: Option<&Piece>| piece.filter(|piece| piece.live).map_or(0, |piece| piece.bytes.len());
        let newest = if self.out.len() > 1 { live(self.out.back()) } else { 0 };
        self.live_bytes.saturating_sub(live(self.out.front()) + newest) > max
    }

    /// Queues one or several frames for this session alone, mostly answers to its commands. Their
    /// size is unbounded for a client that reads; the stall check ends one that does not. The bound
    /// stops other senders from filling the queue.
    pub(in crate::partition) fn answer(
        &mut self,
        frames: impl IntoIterator<Item = (Bytes, Option<Bytes>)>,
        max: usize,
    ) -> Result<(), Broken> {
        let being_written = self.out.front().filter(|piece| !piece.live).map_or(0, |piece| piece.bytes.len());
        let behind = self.answer_bytes - being_written;
        for (head, rest) in frames {
            self.push(head, false, true);
            if let Some(rest) = rest {
                self.push(rest, false, false);
            }
        }
        if behind > max.max(ANSWERS_BYTES) { Err(Broken::Slow) } else { Ok(()) }
    }

    fn push(&mut self, bytes: Bytes, live: bool, begins: bool) {
        if bytes.is_empty() {
            return;
        }
        *(if live { &mut self.live_bytes } else { &mut self.answer_bytes }) += bytes.len();
        self.out.push_back(Piece { bytes, live, begins });
    }

    /// Writes the queue, as far as the socket accepts it.
    pub(in crate::partition) fn flush(&mut self) -> Result<(), Broken> {
        while !self.out.is_empty() {
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let mut count = 0;
            for (slice, piece) in pieces.iter_mut().zip(&self.out) {
                *slice = IoSlice::new(&piece.bytes);
                count += 1;
            }
            let mut written = match (&self.socket).write_vectored(&pieces[..count]) {
                Ok(0) => return Err(Broken::Socket),
                Ok(written) => written,
                Err(e) if would_block(&e) => return Ok(()),
                Err(_) => return Err(Broken::Socket),
            };
            self.taken += written as u64;
            while let Some(front) = self.out.front_mut() {
                let taken = written.min(front.bytes.len());
                *(if front.live { &mut self.live_bytes } else { &mut self.answer_bytes }) -= taken;
                if taken < front.bytes.len() {
                    front.bytes.advance(taken);
                    self.cut |= taken > 0;
                    break;
                }
                written -= taken;
                self.cut = false;
                self.out.pop_front();
            }
        }
        // An idle session owns no buffer.
        self.out = VecDeque::new();
        (self.taken, self.patience) = (0, None);
        Ok(())
    }

    /// Queues the close frame behind the queue. With `without_queue` it follows only the rest of
    /// the frame being written.
    pub(in crate::partition) fn close(&mut self, frame: Bytes, without_queue: bool) {
        if without_queue {
            let begun = self.cut || self.out.front().is_some_and(|piece| !piece.begins);
            let rest = self.out.iter().skip(1).take_while(|piece| begun && !piece.begins).count();
            for dropped in self.out.drain(usize::from(begun) + rest..) {
                *(if dropped.live { &mut self.live_bytes } else { &mut self.answer_bytes }) -= dropped.bytes.len();
            }
        }
        self.push(frame, false, true);
    }
}
