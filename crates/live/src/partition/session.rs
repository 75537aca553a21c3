//! A session: its socket, its commands and its expiries. An idle session owns no buffer.

mod output;

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use http::HeaderMap;
use steadfast_flow::{Connection, Patience};

use self::output::Piece;
use super::subscriptions::Subscription;
use super::{Bounds, Opened, QueuedCommand};
use crate::deflate::Deflate;
use crate::protocol::Encoding;
use crate::protocol::Transport;
use crate::protocol::codec::next_command;
use crate::protocol::codes::{self, Disconnected};
use crate::protocol::message::Command;
use crate::session::SessionIdentity;
use crate::socket::bound_unsent;
use crate::websocket::{Incoming, Reader};

/// Decoded commands that a session may queue. A decoded command takes much more memory than its
/// bytes, so further commands stay undecoded.
pub(super) const COMMANDS_MAX: usize = 128;

/// Why a session must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// Its output queue exceeds the bound.
    Slow,
    /// Its socket failed.
    Socket,
}

/// See the module.
pub(super) struct Session {
    pub(super) socket: TcpStream,
    pub(super) generation: u32,
    pub(super) encoding: Encoding,
    pub(super) transport: Transport,
    pub(super) deflate: Option<Deflate>,
    /// Headers of its request, and its name if it has one, until it is connected.
    pub(super) request: (Option<Arc<HeaderMap>>, Option<Arc<str>>),
    /// The group of its address; `None` for a trusted proxy's.
    pub(super) address: Option<Arc<str>>,
    /// Whether its pings are frames of the WebSocket.
    pub(super) frame_pings: bool,
    pub(super) identity: Option<Arc<SessionIdentity>>,
    /// Until it is connected: counts it among the unconnected sessions of its address.
    pub(super) unconnected: Option<Arc<Connection>>,
    reader: Reader,
    /// The undecoded rest of a message, while the command queue is full.
    rest: Vec<u8>,
    /// The reader may hold whole messages, because the command queue was full.
    held: bool,
    /// The output queue.
    out: VecDeque<Piece>,
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
    pub(super) watched: Watched,
    pub(super) subscriptions: Vec<Subscription>,
    /// Commands that wait until the commands in flight complete.
    pub(super) commands: VecDeque<QueuedCommand>,
    /// Commands are in flight.
    pub(super) busy: bool,
    /// The deadline of an outstanding pong, monotonic milliseconds. Any input from the client
    /// clears it.
    pong_due_ms: Option<u64>,
    /// Expiry, milliseconds since the Unix epoch.
    pub(super) expires_ms: Option<u64>,
    /// The back end is being asked whether to extend the session.
    pub(super) refreshing: bool,
    /// When the worker next checks expiries of the session, milliseconds since the Unix epoch.
    pub(super) due: Option<u64>,
    /// A second, and the number of publications in it.
    published: (u64, u32),
    /// The session is in the worker's list of sessions with output.
    pub(super) dirty: bool,
    pub(super) _place: Option<Box<dyn Send>>,
}

/// The events that a socket is registered for.
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
            encoding: opened.connection.encoding,
            transport: opened.connection.transport,
            deflate: opened.connection.deflate,
            request: (opened.connection.headers, opened.connection.session),
            address: opened.connection.address,
            frame_pings: opened.connection.frame_pings,
            identity: None,
            unconnected: opened.unconnected,
            reader: Reader::new(opened.connection.deflate.is_some()),
            rest: Vec::new(),
            held: false,
            out: VecDeque::new(),
            live_bytes: 0,
            answer_bytes: 0,
            cut: false,
            taken: 0,
            patience: None,
            watched: Watched { readable: true, writable: false },
            subscriptions: Vec::new(),
            commands: VecDeque::new(),
            busy: false,
            pong_due_ms: None,
            expires_ms: None,
            refreshing: false,
            due: None,
            published: (0, 0),
            dirty: false,
            _place: opened.place,
        }
    }

    /// Whether another command may be queued. An unconnected session may have only its connect
    /// command.
    fn has_room(&self) -> bool {
        match self.identity {
            Some(_) => self.commands.len() < COMMANDS_MAX,
            None => self.commands.is_empty() && !self.busy,
        }
    }

    /// Whether to read from the socket: not while received bytes wait for the command queue.
    pub(super) fn takes_more(&self) -> bool {
        !self.held && self.rest.is_empty() && self.has_room()
    }

    /// Whether to decode kept bytes now.
    pub(super) fn has_kept(&self) -> bool {
        (self.held || !self.rest.is_empty()) && self.has_room() && self.commands.len() <= COMMANDS_MAX / 2
    }

    /// Decodes the kept bytes and then `bytes`, until the command queue is full, and keeps the rest
    /// undecoded. Returns the payloads of transport pings, and the reason if the session must end.
    pub(super) fn take_in(&mut self, bytes: &mut [u8], message_max: usize) -> (Vec<Vec<u8>>, Option<Disconnected>) {
        let mut pings = Vec::new();
        let rest = std::mem::take(&mut self.rest);
        if self.decode(rest).is_err() {
            return (pings, Some(codes::BAD_PROTOCOL));
        }
        if !self.has_room() {
            self.held |= !bytes.is_empty();
            self.reader.keep(bytes);
            return (pings, None);
        }
        let mut end = None;
        let mut reader = std::mem::take(&mut self.reader);
        let fed = reader.feed(bytes, message_max, |incoming| {
            match incoming {
                Incoming::Message(message) => {
                    if self.decode(message).is_err() {
                        end = Some(codes::BAD_PROTOCOL);
                    }
                }
                Incoming::Ping(payload) => pings.push(payload),
                Incoming::Close => end = Some(codes::CONNECTION_CLOSED),
            }
            end.is_none() && self.has_room()
        });
        self.reader = reader;
        self.held = !self.has_room();
        if let (Err(violation), None) = (fed, &end) {
            let reason = "the frame is invalid or too large".into();
            end = Some(Disconnected { code: violation.code(), reason });
        }
        (pings, end)
    }

    /// Decodes the commands of a message, until the command queue is full.
    fn decode(&mut self, message: Vec<u8>) -> Result<(), ()> {
        let mut rest = &message[..];
        while !rest.is_empty() {
            if !self.has_room() {
                self.rest = rest.to_vec();
                break;
            }
            let Some(command) = next_command(self.encoding, &mut rest).map_err(drop)? else { break };
            // An empty command is a pong.
            if command == Command::default() {
                continue;
            }
            // The first command must be connect, and connect must not be repeated.
            let begins = self.identity.is_none();
            if begins != command.connect.is_some() || command.id == 0 && command.send.is_none() {
                return Err(());
            }
            self.commands.push_back(QueuedCommand { command, subscribed: None, subscriptions: 0, over_rate: false });
        }
        Ok(())
    }

    /// When the next expiry of the session or its subscriptions is due, milliseconds since the Unix
    /// epoch. It is due at once where the back end decides, otherwise after the grace period.
    pub(super) fn next_end(&self, bounds: &Bounds) -> Option<u64> {
        let after = |grace: u64, refreshes: bool| if refreshes { 0 } else { grace };
        let own = self.expires_ms.filter(|_| !self.refreshing);
        let own = own.map(|ends| ends.saturating_add(after(bounds.expired_ms, bounds.refreshes)));
        let subscriptions = self.subscriptions.iter().filter(|subscription| !subscription.refreshing).filter_map(|s| {
            let ends = s.kind.expires_ms?;
            Some(ends.saturating_add(after(bounds.expired_sub_ms, s.kind.refreshed)))
        });
        own.into_iter().chain(subscriptions).min()
    }

    /// Counts a publication; `false` if the session already made `rate` publications in this
    /// second. 0: no limit.
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

    /// Records a ping. Returns the deadline to check, or `None` if an earlier ping already has an
    /// entry in the worker's list.
    pub(super) fn pinged(&mut self, due_ms: u64) -> Option<u64> {
        match self.pong_due_ms {
            Some(_) => None,
            None => {
                self.pong_due_ms = Some(due_ms);
                Some(due_ms)
            }
        }
    }

    /// Records input from the client.
    pub(super) fn lives(&mut self) {
        self.pong_due_ms = None;
    }

    /// Whether the pong with this deadline is missing.
    pub(super) fn owes_pong(&self, due_ms: u64) -> bool {
        self.pong_due_ms == Some(due_ms)
    }

    /// Releases everything but the socket after the end of the session. Keeps the queue if `waits`.
    pub(super) fn release(&mut self, waits: bool) {
        if !waits {
            self.out = VecDeque::new();
        }
        self.subscriptions = Vec::new();
        self.commands = VecDeque::new();
        self.reader = Reader::new(false);
        self.rest = Vec::new();
        (self.identity, self.request) = (None, (None, None));
        (self.unconnected, self._place) = (None, None);
    }
}

pub(super) fn would_block(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests;
