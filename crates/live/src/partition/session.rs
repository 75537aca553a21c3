//! A session: its socket and what waits for it. While nothing does, it owns no buffer.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::HeaderMap;
use steadfast_flow::{Connection, Patience};

use super::subscriptions::Subscription;
use super::{Asked, Bounds, Opened, Transport, Who};
use crate::deflate::Deflate;
use crate::protocol::Encoding;
use crate::protocol::codec::next_command;
use crate::protocol::codes::{self, Disconnected};
use crate::protocol::message::Command;
use crate::socket::bound_unsent;
use crate::websocket::{Incoming, Reader};

/// In so many seconds a client takes what it was answered, if that is much: `client_bytes_s_min` is of short answers.
const ANSWER_S_MAX: u64 = 300;

/// Commands of a session that wait: one takes much more memory than the bytes that it came as, so at this many those stay bytes.
pub(super) const COMMANDS_MAX: usize = 128;

/// Pieces that are written in one call.
const PIECES: usize = 64;

/// Bytes of small answers that may wait, whatever the bound on the queue.
const ANSWERS_BYTES: usize = 64 << 10;

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
    /// Its name, where it has one; until it is connected.
    pub(super) name: Option<Arc<str>>,
    /// Where it comes from.
    pub(super) address: Arc<str>,
    pub(super) who: Option<Arc<Who>>,
    /// Until it is connected: counts it among those of its address that are not.
    pub(super) unconnected: Option<Arc<Connection>>,
    reader: Reader,
    /// The rest of a message for whose commands there is no room yet.
    rest: Vec<u8>,
    /// The reader may have whole messages for which there was no room.
    held: bool,
    /// What waits until the socket takes it.
    out: VecDeque<Piece>,
    /// Bytes of what goes to many,
    live_bytes: usize,
    /// and of what it alone is told.
    answer_bytes: usize,
    /// Of the first piece a part has been written.
    cut: bool,
    /// Bytes of what waited that the socket has taken since the last look.
    taken: u64,
    /// How long it may go on taking too little; while something waits, from the first look at it.
    patience: Option<Box<Patience>>,
    /// What the socket is watched for beyond reading.
    pub(super) watched: Watched,
    pub(super) subscriptions: Vec<Subscription>,
    /// Commands that wait for those that are being carried out.
    pub(super) commands: VecDeque<Asked>,
    /// Commands are being carried out.
    pub(super) busy: bool,
    /// A ping was sent and no sign of life came since: when one must have come, monotonic milliseconds.
    pong_due_ms: Option<u64>,
    /// When it ends, milliseconds since the Unix epoch.
    pub(super) expires_ms: Option<u64>,
    /// The back end is asked whether it goes on.
    pub(super) refreshing: bool,
    /// When its worker looks at what is over, milliseconds since the Unix epoch.
    pub(super) due: Option<u64>,
    /// Publications in the second that is named.
    published: (u64, u32),
    /// In the list of those that have something to write.
    pub(super) dirty: bool,
    pub(super) _place: Option<Box<dyn Send>>,
}

/// A frame, or one of the two parts of one.
struct Piece {
    bytes: Bytes,
    /// It goes to many.
    live: bool,
    /// A frame begins with it.
    begins: bool,
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
            name: opened.arrived.session,
            address: opened.arrived.address,
            who: None,
            unconnected: opened.unconnected,
            reader: Reader::new(opened.arrived.deflate.is_some()),
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

    /// Whether another command may wait. Before it is connected, a session has its connect command and nothing else.
    fn has_room(&self) -> bool {
        match self.who {
            Some(_) => self.commands.len() < COMMANDS_MAX,
            None => self.commands.is_empty() && !self.busy,
        }
    }

    /// Whether more is to be read from the socket: not while there is no room for what is here already.
    pub(super) fn takes_more(&self) -> bool {
        !self.held && self.rest.is_empty() && self.has_room()
    }

    /// Whether what was kept may have its turn.
    pub(super) fn has_kept(&self) -> bool {
        (self.held || !self.rest.is_empty()) && self.has_room() && self.commands.len() <= COMMANDS_MAX / 2
    }

    /// Takes in bytes, and before them what was kept, as far as there is room for commands; the rest is kept as it is. Payloads of pings of
    /// the transport, and why the session is to end, if it is.
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
            let reason = "the frame is not one that the server takes".into();
            end = Some(Disconnected { code: violation.code(), reason });
        }
        (pings, end)
    }

    /// Takes the commands of a message, as far as there is room.
    fn decode(&mut self, message: Vec<u8>) -> Result<(), ()> {
        let mut rest = &message[..];
        while !rest.is_empty() {
            if !self.has_room() {
                self.rest = rest.to_vec();
                break;
            }
            let Some(command) = next_command(self.encoding, &mut rest).map_err(drop)? else { break };
            // A pong.
            if command == Command::default() {
                continue;
            }
            // Connecting comes first, and once.
            let begins = self.who.is_none();
            if begins != command.connect.is_some() || command.id == 0 && command.send.is_none() {
                return Err(());
            }
            self.commands.push_back(Asked { command, subscribed: None, subscriptions: 0, over_rate: false });
        }
        Ok(())
    }

    /// When something of it is over next, milliseconds since the Unix epoch: at its end, where the back end is asked then, or else when the
    /// time is up that is given after it.
    pub(super) fn next_end(&self, bounds: &Bounds) -> Option<u64> {
        let after = |grace: u64, asked: bool| if asked { 0 } else { grace };
        let own = self.expires_ms.filter(|_| !self.refreshing);
        let own = own.map(|ends| ends.saturating_add(after(bounds.expired_ms, bounds.refreshes)));
        let subscriptions = self.subscriptions.iter().filter(|subscription| !subscription.refreshing).filter_map(|s| {
            let ends = s.kind.expires_ms?;
            Some(ends.saturating_add(after(bounds.expired_sub_ms, s.kind.refreshed)))
        });
        own.into_iter().chain(subscriptions).min()
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

    /// It is pinged. When to look whether it answered, where nobody will for an earlier ping: of those
    /// that are not answered it has one place in the list.
    pub(super) fn pinged(&mut self, due_ms: u64) -> Option<u64> {
        match self.pong_due_ms {
            Some(_) => None,
            None => {
                self.pong_due_ms = Some(due_ms);
                Some(due_ms)
            }
        }
    }

    /// It has given a sign of life.
    pub(super) fn lives(&mut self) {
        self.pong_due_ms = None;
    }

    /// Whether the answer is missing that was due then.
    pub(super) fn owes_pong(&self, due_ms: u64) -> bool {
        self.pong_due_ms == Some(due_ms)
    }

    /// Whether something waits for the socket.
    pub(super) fn is_waiting(&self) -> bool {
        !self.out.is_empty()
    }

    /// Bytes that wait for it.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.live_bytes + self.answer_bytes
    }

    /// Whether its next commands wait until it has taken more of what it was answered, with a queue of so many bytes.
    pub(super) fn owes_reading(&self, max: usize) -> bool {
        self.answer_bytes > max / 2
    }

    /// Whether the socket has taken too little of what waits for too long. Asked now and then, while something does.
    pub(super) fn is_stalled(&mut self, now_ms: u64, bounds: &Bounds) -> bool {
        let now = Duration::from_millis(now_ms);
        // What all its answers hold of memory is back within a time that does not grow with their length.
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

    /// Writes a frame, or what the socket does not take now is kept. It goes to many: one that does not read is [`Broken::Slow`].
    pub(super) fn send(&mut self, frame: &Bytes, max: usize) -> Result<(), Broken> {
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

    /// Keeps a frame that goes to many, to be written with others.
    pub(super) fn keep(&mut self, frame: Bytes, max: usize) -> Result<(), Broken> {
        self.push(frame, true, true);
        if self.is_slow(max) { Err(Broken::Slow) } else { Ok(()) }
    }

    /// Whether more waits of what goes to many than `max` bytes: beside the frame that is being written and the newest one, so that
    /// one frame can be brought to whoever reads, however large it is.
    pub(super) fn is_slow(&self, max: usize) -> bool {
        let live = |piece: Option<&Piece>| piece.filter(|piece| piece.live).map_or(0, |piece| piece.bytes.len());
        let newest = if self.out.len() > 1 { live(self.out.back()) } else { 0 };
        self.live_bytes.saturating_sub(live(self.out.front()) + newest) > max
    }

    /// Keeps what it alone is told, most of it because it asked: one frame or several. Of that nothing is too much for who reads, and who
    /// does not is found by the clock; but others must not heap it up.
    pub(super) fn answer(
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

    /// Writes what waits, as far as the socket takes it.
    pub(super) fn flush(&mut self) -> Result<(), Broken> {
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

    /// The session has ended: all but its socket is let go, and what still waits for that, if `waits`.
    pub(super) fn last_words(&mut self, waits: bool) {
        if !waits {
            self.out = VecDeque::new();
        }
        self.subscriptions = Vec::new();
        self.commands = VecDeque::new();
        self.reader = Reader::new(false);
        self.rest = Vec::new();
        (self.who, self.headers, self.name) = (None, None, None);
        (self.unconnected, self._place) = (None, None);
    }

    /// The last frame. What waits goes before it: all of it, or where that is too much, only the rest of the frame that is being written.
    pub(super) fn close(&mut self, frame: Bytes, without_queue: bool) {
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

pub(super) fn would_block(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::Arrived;
    use crate::websocket;

    fn session(connected: bool) -> Session {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (encoding, transport) = (Encoding::Json, Transport::WebSocket);
        let arrived = Arrived::of(encoding, transport);
        let opened = Opened { socket, leftover: Vec::new(), arrived: arrived.clone(), place: None, unconnected: None };
        let mut session = Session::new(opened, 0);
        session.who = connected.then(|| Arc::new(Who::ann(arrived)));
        session
    }

    /// Frames of so many commands in all, some in each.
    fn frames(commands: u32, in_each: usize) -> Vec<u8> {
        let ids: Vec<u32> = (1..=commands).collect();
        let line = |id: &u32| format!("{{\"id\":{id},\"ping\":{{}}}}\n{{}}\n");
        let message = |ids: &[u32]| ids.iter().map(line).collect::<String>();
        ids.chunks(in_each).flat_map(|ids| websocket::from_client(Encoding::Json, message(ids).as_bytes())).collect()
    }

    #[test]
    fn a_long_answer_is_taken_within_minutes() {
        let bounds = Bounds { stall_ms: 30_000, client_bytes_s_min: 4 << 10, ..Bounds::default() };
        let slow_for = |answer_bytes| {
            let mut session = session(true);
            session.answer_bytes = answer_bytes;
            (0..100).find(|ten_s| {
                session.taken = 50_000;
                session.is_stalled(ten_s * 10_000, &bounds)
            })
        };
        assert_eq!(slow_for(1 << 20), None, "5 KB/s are enough for one of 1 MiB");
        assert!(slow_for(16 << 20).is_some_and(|ten_s| ten_s < 10), "one of 16 MiB would be there for an hour");
    }

    #[test]
    fn who_takes_a_byte_now_and_then_is_as_slow_as_who_takes_nothing() {
        let mut session = session(true);
        let bounds = |client_bytes_s_min| Bounds { stall_ms: 30_000, client_bytes_s_min, ..Bounds::default() };
        session.keep(Bytes::from_static(&[0; 1 << 10]), 1 << 20).expect("room");
        assert!(!session.is_stalled(0, &bounds(1000)));
        session.taken = 1;
        assert!(!session.is_stalled(20_000, &bounds(1000)));
        session.taken = 15_000;
        assert!(!session.is_stalled(40_000, &bounds(1000)), "what it takes earns it time");
        session.taken = 1;
        assert!(session.is_stalled(50_000, &bounds(1000)));
        session.patience = None;
        for now_ms in [60_000, 80_000, 100_000] {
            session.taken = 1;
            assert!(!session.is_stalled(now_ms, &bounds(0)), "without a rate any byte will do");
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        session.socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        session.flush().expect("taken");
        assert!(session.patience.is_none(), "who has taken all begins anew");
    }

    #[test]
    fn pings_without_an_answer_are_looked_after_once() {
        let mut session = session(true);
        assert_eq!(session.pinged(10), Some(10));
        assert_eq!((session.pinged(20), session.pinged(30)), (None, None), "somebody looks already");
        assert!(session.owes_pong(10) && !session.owes_pong(20));
        session.lives();
        assert!(!session.owes_pong(10));
        assert_eq!(session.pinged(40), Some(40));
        assert!(session.owes_pong(40) && !session.owes_pong(10), "an earlier look ends nobody");
    }

    #[test]
    fn commands_beyond_the_bound_stay_bytes_and_come_in_their_turn() {
        for in_each in [1, 7, 500, 2000] {
            let mut session = session(true);
            let mut bytes = [frames(2000, in_each), websocket::from_client(Encoding::Json, b"nonsense")].concat();
            let mut found = Vec::new();
            let mut come = &mut bytes[..];
            let end = loop {
                let end = session.take_in(std::mem::take(&mut come), 1 << 16).1;
                assert!(session.commands.len() <= COMMANDS_MAX, "{} in frames of {in_each}", session.commands.len());
                assert_eq!(session.takes_more(), session.commands.len() < COMMANDS_MAX);
                // One makes room for one more.
                found.extend(session.commands.pop_front().map(|asked| asked.command.id));
                if end.is_some() {
                    break end;
                }
            };
            found.extend(session.commands.iter().map(|asked| asked.command.id));
            assert!(found.iter().copied().eq(1..=2000), "in order, each once: {found:?}");
            assert_eq!(end, Some(codes::BAD_PROTOCOL));
        }
    }

    #[test]
    fn who_is_not_connected_has_one_command() {
        let mut session = session(false);
        let connect = websocket::from_client(Encoding::Json, br#"{"id":1,"connect":{}}"#);
        let mut bytes = [connect, frames(2000, 1)].concat();
        assert_eq!(session.take_in(&mut bytes, 1 << 16), (Vec::new(), None));
        assert_eq!(session.commands.len(), 1);
        assert!(!session.takes_more());
        (session.busy, session.commands) = (true, VecDeque::new());
        assert_eq!(session.take_in(&mut [], 1 << 16), (Vec::new(), None));
        assert!(session.commands.is_empty() && !session.takes_more());
        session.busy = false;
        session.who = Some(Arc::new(Who::ann(Arrived::of(Encoding::Json, Transport::WebSocket))));
        assert_eq!(session.take_in(&mut [], 1 << 16), (Vec::new(), None));
        assert_eq!(session.commands.len(), COMMANDS_MAX);
        // What comes first must be the connect command, and comes once.
        for first in [&br#"{"id":1,"ping":{}}"#[..], br#"{"connect":{}}"#] {
            let mut bytes = websocket::from_client(Encoding::Json, first);
            assert_eq!(self::session(false).take_in(&mut bytes, 1 << 16).1, Some(codes::BAD_PROTOCOL));
        }
        let mut again = websocket::from_client(Encoding::Json, br#"{"id":1,"connect":{}}"#);
        assert_eq!(self::session(true).take_in(&mut again, 1 << 16).1, Some(codes::BAD_PROTOCOL));
    }
}
