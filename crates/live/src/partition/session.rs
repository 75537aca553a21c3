//! A session: its socket and what waits for it. While nothing does, it owns no buffer.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use http::HeaderMap;

use super::subscriptions::Subscription;
use super::{Asked, Opened, Transport, Who};
use crate::deflate::Deflate;
use crate::protocol::Encoding;
use crate::socket::bound_unsent;
use crate::websocket::Reader;

/// Pieces that are written in one call.
const PIECES: usize = 64;

/// Why a session cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// More waits for it than may.
    Slow,
    /// Its socket has failed.
    Socket,
}

/// See the module.
pub(super) struct Session {
    pub(super) socket: TcpStream,
    pub(super) generation: u32,
    pub(super) encoding: Encoding,
    pub(super) transport: Transport,
    pub(super) deflate: Option<Deflate>,
    /// Of its request, until it is connected.
    pub(super) headers: Option<Arc<HeaderMap>>,
    pub(super) who: Option<Arc<Who>>,
    pub(super) reader: Reader,
    /// Frames that wait until the socket takes them.
    out: VecDeque<Bytes>,
    out_bytes: usize,
    /// What the socket is watched for beyond reading.
    pub(super) watched: Watched,
    pub(super) subscriptions: Vec<Subscription>,
    /// Commands that wait for those that are being carried out.
    pub(super) commands: VecDeque<Asked>,
    /// Commands are being carried out.
    pub(super) busy: bool,
    /// A ping was sent and no sign of life came since.
    pub(super) pinged: bool,
    /// When it ends, milliseconds since the Unix epoch.
    pub(super) expires_ms: Option<u64>,
    /// The back end is asked whether it goes on.
    pub(super) refreshing: bool,
    /// Publications in the second that is named.
    published: (u64, u32),
    /// In the list of those that have something to write.
    pub(super) dirty: bool,
    pub(super) _place: Option<Box<dyn Send>>,
}

/// What a socket is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Watched {
    pub(super) readable: bool,
    pub(super) writable: bool,
}

impl Session {
    pub(super) fn new(opened: Opened, generation: u32) -> Self {
        bound_unsent(&opened.socket);
        Self {
            socket: opened.socket,
            generation,
            encoding: opened.arrived.encoding,
            transport: opened.arrived.transport,
            deflate: opened.arrived.deflate,
            headers: opened.arrived.headers,
            who: None,
            reader: Reader::new(opened.arrived.deflate.is_some()),
            out: VecDeque::new(),
            out_bytes: 0,
            watched: Watched { readable: true, writable: false },
            subscriptions: Vec::new(),
            commands: VecDeque::new(),
            busy: false,
            pinged: false,
            expires_ms: None,
            refreshing: false,
            published: (0, 0),
            dirty: false,
            _place: opened.place,
        }
    }

    /// Counts a publication; `false` when there were `rate` in this second already (0: any number).
    pub(super) fn may_publish(&mut self, now_ms: u64, rate: u32) -> bool {
        if rate == 0 {
            return true;
        }
        let second = now_ms / 1000;
        if self.published.0 != second {
            self.published = (second, 0);
        }
        self.published.1 = self.published.1.saturating_add(1);
        self.published.1 <= rate
    }

    /// Whether something waits for the socket.
    pub(super) fn is_waiting(&self) -> bool {
        !self.out.is_empty()
    }

    /// Bytes that wait for it.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.out_bytes
    }

    /// Writes a frame, or what the socket does not take now is kept, up to `max` bytes.
    pub(super) fn send(&mut self, frame: &Bytes, max: usize) -> Result<(), Broken> {
        if self.out.is_empty() {
            match (&self.socket).write(frame) {
                Ok(written) if written == frame.len() => return Ok(()),
                Ok(written) => return self.keep(frame.slice(written..), max),
                Err(e) if would_block(&e) => {}
                Err(_) => return Err(Broken::Socket),
            }
        }
        self.keep(frame.clone(), max)
    }

    /// Keeps a frame to be written with others.
    pub(super) fn keep(&mut self, frame: Bytes, max: usize) -> Result<(), Broken> {
        self.out_bytes += frame.len();
        self.out.push_back(frame);
        if self.out_bytes > max { Err(Broken::Slow) } else { Ok(()) }
    }

    /// Writes what waits, as far as the socket takes it.
    pub(super) fn flush(&mut self) -> Result<(), Broken> {
        while !self.out.is_empty() {
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let mut count = 0;
            for (piece, frame) in pieces.iter_mut().zip(&self.out) {
                *piece = IoSlice::new(frame);
                count += 1;
            }
            let mut written = match (&self.socket).write_vectored(&pieces[..count]) {
                Ok(0) => return Err(Broken::Socket),
                Ok(written) => written,
                Err(e) if would_block(&e) => return Ok(()),
                Err(_) => return Err(Broken::Socket),
            };
            self.out_bytes -= written;
            while let Some(front) = self.out.front_mut() {
                if front.len() > written {
                    front.advance(written);
                    break;
                }
                written -= front.len();
                self.out.pop_front();
            }
        }
        // An idle session owns no buffer.
        self.out = VecDeque::new();
        Ok(())
    }
}

pub(super) fn would_block(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
