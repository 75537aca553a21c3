//! The socket of a session, with the frames that it has not accepted yet.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use bytes::{Buf, Bytes};
use steadfast_flow::{Lease, Patience};

use crate::partition::Bounds;
use crate::socket::bound_unsent;

/// Seconds in which a client must read its long answers; `client_bytes_s_min` suits short answers.
const ANSWER_S_MAX: u64 = 300;

/// Pieces that one call writes.
const PIECES: usize = 64;

/// Bytes of answers that may always be queued, whatever the bound on the queue.
const ANSWERS_BYTES: usize = 64 << 10;

/// Why a session must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::partition) enum Broken {
    /// Its output queue exceeds the bound.
    Slow,
    /// Its socket failed.
    Socket,
}

/// The events that a socket is registered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::partition) struct Watched {
    pub(in crate::partition) readable: bool,
    pub(in crate::partition) writable: bool,
}

/// What one read gave.
pub(in crate::partition) enum Received {
    /// That many bytes.
    Bytes(usize),
    /// Nothing for now.
    Nothing,
    /// The connection has ended.
    End,
}

/// A frame, or one of the two parts of a frame.
struct Piece {
    bytes: Bytes,
    /// Many sessions share it.
    live: bool,
    /// It begins a frame.
    begins: bool,
}

/// A socket and its output queue. An idle session owns no buffer.
pub(in crate::partition) struct SessionSocket {
    stream: TcpStream,
    /// Nothing is written after it.
    lease: Lease,
    /// The output queue.
    queue: VecDeque<Piece>,
    /// Queued bytes that many sessions share.
    live_bytes: usize,
    /// Queued bytes for this session alone.
    answer_bytes: usize,
    /// The first piece is partly written.
    cut: bool,
    /// Queued bytes that the socket accepted since the last stall check.
    taken: u64,
    /// Time left to a slow reader; present from the first stall check while bytes are queued.
    patience: Option<Box<Patience>>,
    /// The epoll events that the socket is registered for.
    pub(in crate::partition) watched: Watched,
}

impl SessionSocket {
    /// A non-blocking socket that is registered for input.
    pub(in crate::partition) fn new(stream: TcpStream, lease: Lease) -> Self {
        bound_unsent(&stream);
        Self {
            stream,
            lease,
            queue: VecDeque::new(),
            live_bytes: 0,
            answer_bytes: 0,
            cut: false,
            taken: 0,
            patience: None,
            watched: Watched { readable: true, writable: false },
        }
    }

    /// The socket itself, to register it.
    pub(in crate::partition) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether its client may be answered.
    pub(in crate::partition) fn may_answer(&self) -> bool {
        self.lease.holds()
    }

    /// Reads once.
    pub(in crate::partition) fn read(&self, buffer: &mut [u8]) -> Received {
        if !self.may_answer() {
            return Received::End;
        }
        match (&self.stream).read(buffer) {
            Ok(0) => Received::End,
            Ok(len) => Received::Bytes(len),
            Err(e) if would_block(&e) => Received::Nothing,
            Err(_) => Received::End,
        }
    }

    /// Tells the client that nothing more follows.
    pub(in crate::partition) fn shut_down(&self) {
        // An error is harmless: the descriptor is closed soon.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Whether bytes are queued for the socket.
    pub(in crate::partition) fn is_waiting(&self) -> bool {
        !self.queue.is_empty()
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
        if !self.may_answer() {
            return Err(Broken::Socket);
        }
        if self.queue.is_empty() {
            match (&self.stream).write(frame) {
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
        let newest = if self.queue.len() > 1 { live(self.queue.back()) } else { 0 };
        self.live_bytes.saturating_sub(live(self.queue.front()) + newest) > max
    }

    /// Queues one or several frames for this session alone, mostly answers to its commands. Their
    /// size is unbounded for a client that reads; the stall check ends one that does not. The bound
    /// stops other senders from filling the queue.
    pub(in crate::partition) fn answer(
        &mut self,
        frames: impl IntoIterator<Item = (Bytes, Option<Bytes>)>,
        max: usize,
    ) -> Result<(), Broken> {
        let being_written = self.queue.front().filter(|piece| !piece.live).map_or(0, |piece| piece.bytes.len());
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
        self.queue.push_back(Piece { bytes, live, begins });
    }

    /// Writes the queue, as far as the socket accepts it.
    pub(in crate::partition) fn flush(&mut self) -> Result<(), Broken> {
        if !self.may_answer() {
            return Err(Broken::Socket);
        }
        while !self.queue.is_empty() {
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let mut count = 0;
            for (slice, piece) in pieces.iter_mut().zip(&self.queue) {
                *slice = IoSlice::new(&piece.bytes);
                count += 1;
            }
            let mut written = match (&self.stream).write_vectored(&pieces[..count]) {
                Ok(0) => return Err(Broken::Socket),
                Ok(written) => written,
                Err(e) if would_block(&e) => return Ok(()),
                Err(_) => return Err(Broken::Socket),
            };
            self.taken += written as u64;
            while let Some(front) = self.queue.front_mut() {
                let taken = written.min(front.bytes.len());
                *(if front.live { &mut self.live_bytes } else { &mut self.answer_bytes }) -= taken;
                if taken < front.bytes.len() {
                    front.bytes.advance(taken);
                    self.cut |= taken > 0;
                    break;
                }
                written -= taken;
                self.cut = false;
                self.queue.pop_front();
            }
        }
        // An idle session owns no buffer.
        self.queue = VecDeque::new();
        (self.taken, self.patience) = (0, None);
        Ok(())
    }

    /// Drops the output queue.
    pub(in crate::partition) fn clear(&mut self) {
        self.queue = VecDeque::new();
    }

    /// Queues the close frame behind the queue. With `without_queue` it follows only the rest of
    /// the frame being written.
    pub(in crate::partition) fn close(&mut self, frame: Bytes, without_queue: bool) {
        if without_queue {
            let begun = self.cut || self.queue.front().is_some_and(|piece| !piece.begins);
            let rest = self.queue.iter().skip(1).take_while(|piece| begun && !piece.begins).count();
            for dropped in self.queue.drain(usize::from(begun) + rest..) {
                *(if dropped.live { &mut self.live_bytes } else { &mut self.answer_bytes }) -= dropped.bytes.len();
            }
        }
        self.push(frame, false, true);
    }
}

fn would_block(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use steadfast_flow::Env;

    use super::*;

    fn socket() -> SessionSocket {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        SessionSocket::new(stream, Lease::unlimited(&Env::tokio()))
    }

    #[tokio::test]
    async fn a_long_answer_must_be_read_within_minutes() {
        let bounds = Bounds { stall_ms: 30_000, client_bytes_s_min: 4 << 10, ..Bounds::default() };
        let slow_for = |answer_bytes| {
            let mut socket = socket();
            socket.answer_bytes = answer_bytes;
            (0..100).find(|ten_s| {
                socket.taken = 50_000;
                socket.is_stalled(ten_s * 10_000, &bounds)
            })
        };
        assert_eq!(slow_for(1 << 20), None, "5 KB/s suffice for an answer of 1 MiB");
        assert!(slow_for(16 << 20).is_some_and(|ten_s| ten_s < 10), "16 MiB would take an hour");
    }

    #[tokio::test]
    async fn a_reader_of_single_bytes_is_as_slow_as_one_that_reads_nothing() {
        let mut socket = socket();
        let bounds = |client_bytes_s_min| Bounds { stall_ms: 30_000, client_bytes_s_min, ..Bounds::default() };
        socket.keep(Bytes::from_static(&[0; 1 << 10]), 1 << 20).expect("below the bound");
        assert!(!socket.is_stalled(0, &bounds(1000)));
        socket.taken = 1;
        assert!(!socket.is_stalled(20_000, &bounds(1000)));
        socket.taken = 15_000;
        assert!(!socket.is_stalled(40_000, &bounds(1000)), "reading extends the deadline");
        socket.taken = 1;
        assert!(socket.is_stalled(50_000, &bounds(1000)));
        socket.patience = None;
        for now_ms in [60_000, 80_000, 100_000] {
            socket.taken = 1;
            assert!(!socket.is_stalled(now_ms, &bounds(0)), "without a rate any byte suffices");
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        socket.stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        socket.flush().expect("taken");
        assert!(socket.patience.is_none(), "an empty queue resets the deadline");
    }

    #[tokio::test]
    async fn nothing_is_written_after_the_lease() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut socket = socket();
        socket.stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let frame = Bytes::from_static(b"frame");
        socket.send(&frame, 1 << 20).expect("it holds");
        socket.lease.end();
        assert_eq!(socket.send(&frame, 1 << 20), Err(Broken::Socket));
        socket.answer([(frame, None)], 1 << 20).expect("queued");
        assert_eq!(socket.flush(), Err(Broken::Socket));
        assert!(matches!(socket.read(&mut [0; 8]), Received::End), "it receives nothing either");
    }
}
