//! A worker: one thread that reads, delivers and writes for all sessions of its partition.

mod clock;
mod fanout;
mod session_messages;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use steadfast_flow::{Env, Permit, log_rarely};

use self::clock::Clock;
use self::fanout::Fanout;
use self::session_messages::Recipient;
use super::session::{Broken, Received, Session, Watched};
use super::subscriptions::ChannelIndex;
use super::{Bounds, CommandSource, Hub, Inbox, Opened, SessionId, SessionMessage, WorkerEvent};
use crate::answer::held;
use crate::protocol::codec::encode_reply;
use crate::protocol::codes::{self, Disconnected};
use crate::protocol::message::Reply;
use crate::protocol::{Malformed, Payload};
use crate::websocket;

/// The epoll data of the inbox.
const WAKE: u64 = u64::MAX;
/// Bytes of one read; all sessions share one buffer.
const READ_BYTES: usize = 64 << 10;
/// Interval of the clock, milliseconds.
const TICK_MS: u64 = 250;
/// How long a closed socket waits for the client to close, milliseconds, and how many sockets may
/// wait.
const LINGER_MS: u64 = 1000;
const LINGERING_MAX: usize = 1024;
/// How long a client may take to read the close frame, milliseconds.
const CLOSE_WAIT_MS: u64 = 10_000;

/// Starts the worker of a partition on its own thread. [`WorkerEvent::Stop`] ends it. It is
/// critical (see [`Env::spawn_critical`]): no other worker can take over its sessions, because it
/// owns their sockets and state.
///
/// # Errors
/// When the operating system refuses the thread or the epoll descriptor.
pub fn start(
    number: u16,
    inbox: Arc<Inbox>,
    hub: Arc<dyn Hub>,
    bounds: Bounds,
    env: &Env,
) -> io::Result<std::thread::JoinHandle<()>> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &inbox.wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
    let slots = usize::try_from(bounds.ping_ms / TICK_MS).unwrap_or(1).max(1);
    let worker = Worker {
        number,
        inbox,
        hub,
        bounds,
        epoll,
        sessions: Vec::new(),
        generations: Vec::new(),
        free: Vec::new(),
        channels: ChannelIndex::default(),
        dirty: Vec::new(),
        wheel: vec![Vec::new(); slots],
        tick: 0,
        pongs: VecDeque::new(),
        stale: VecDeque::new(),
        ends: BTreeSet::new(),
        lingering: VecDeque::new(),
        stopping: false,
    };
    // Commands that begin on the worker's thread may use the runtime's timers.
    let runtime = tokio::runtime::Handle::try_current().ok();
    let env = env.clone();
    std::thread::Builder::new().name(format!("live-{number}")).spawn(move || {
        let _entered = runtime.as_ref().map(tokio::runtime::Handle::enter);
        env.critical("live worker", || worker.run());
    })
}

/// A session: its slot and generation.
type Mark = (u32, u32);

struct Worker {
    number: u16,
    inbox: Arc<Inbox>,
    hub: Arc<dyn Hub>,
    bounds: Bounds,
    epoll: OwnedFd,
    sessions: Vec<Option<Box<Session>>>,
    generations: Vec<u32>,
    free: Vec<u32>,
    channels: ChannelIndex,
    /// Sessions with queued output.
    dirty: Vec<u32>,
    /// Sessions to ping, by tick.
    wheel: Vec<Vec<Mark>>,
    tick: u64,
    /// Deadlines of outstanding pongs.
    pongs: VecDeque<(u64, Mark)>,
    /// Deadlines of connect commands.
    stale: VecDeque<(u64, Mark)>,
    /// When to check the expiries of sessions, milliseconds since the Unix epoch; one entry for
    /// each session.
    ends: BTreeSet<(u64, Mark)>,
    /// Ended sessions whose sockets stay open, and until when.
    lingering: VecDeque<(u64, Box<Session>)>,
    stopping: bool,
}

impl Worker {
    fn run(mut self) {
        let mut ready: Vec<epoll::Event> = Vec::with_capacity(1024);
        let mut events = Vec::new();
        let mut buffer = vec![0; READ_BYTES].into_boxed_slice();
        let mut next_tick = self.hub.now_ms() + TICK_MS;
        while !self.stopping {
            let wait = next_tick.saturating_sub(self.hub.now_ms());
            let wait = Timespec { tv_sec: (wait / 1000) as i64, tv_nsec: (wait % 1000 * 1_000_000) as i64 };
            ready.clear();
            // After a signal no descriptor is ready.
            let _ = epoll::wait(&self.epoll, spare_capacity(&mut ready), Some(&wait));
            for event in &ready {
                let (data, flags) = (event.data.u64(), event.flags);
                if data != WAKE {
                    self.ready(data as u32, flags, &mut buffer);
                }
            }
            self.inbox.take(&mut events);
            // Several publications are written together; a single one is written immediately.
            let alone = events.len() == 1;
            for event in events.drain(..) {
                self.event(event, alone);
            }
            self.write_dirty();
            if self.hub.now_ms() >= next_tick {
                next_tick = self.hub.now_ms() + TICK_MS;
                Clock(&mut self).tick();
            }
        }
        for slot in 0..self.sessions.len() as u32 {
            self.end(slot, Some(codes::SHUTDOWN));
        }
    }

    fn event(&mut self, event: WorkerEvent, alone: bool) {
        match event {
            WorkerEvent::Open(opened) => self.open(*opened),
            WorkerEvent::Publication(outgoing) => {
                Fanout(self).publication(&outgoing, alone);
                self.inbox.done(outgoing.weight());
                self.hub.delivered();
            }
            WorkerEvent::Reset(channel, position) => Fanout(self).reset(&channel, position),
            WorkerEvent::Push(push) => {
                Fanout(self).push(&push);
                self.inbox.done(push.weight());
                self.hub.delivered();
            }
            WorkerEvent::To(id, message) => {
                let generation = self.generations.get(id.slot as usize);
                if generation == Some(&id.generation) && self.sessions[id.slot as usize].is_some() {
                    Recipient { worker: self, slot: id.slot }.on_message(message);
                } else {
                    self.discard(id, message);
                }
            }
            WorkerEvent::Stop => self.stopping = true,
        }
    }

    /// Releases what a command took whose session has ended meanwhile.
    fn discard(&self, id: SessionId, message: SessionMessage) {
        match message {
            SessionMessage::Connected { identity, .. } => self.hub.on_disconnected(id, Some(&identity)),
            SessionMessage::Subscribing { channel, kind, .. } => self.hub.on_unsubscribed(id, None, &channel, &kind),
            _ => {}
        }
    }

    fn id(&self, slot: u32) -> SessionId {
        SessionId { partition: self.number, slot, generation: self.generations[slot as usize] }
    }

    fn session(&mut self, slot: u32) -> Option<&mut Session> {
        self.sessions.get_mut(slot as usize)?.as_deref_mut()
    }

    fn marked(&mut self, (slot, generation): Mark) -> Option<&mut Session> {
        self.session(slot).filter(|session| session.generation == generation)
    }

    fn open(&mut self, mut opened: Opened) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.sessions.push(None);
            self.generations.push(0);
            self.sessions.len() as u32 - 1
        });
        let generation = self.generations[slot as usize];
        let mut leftover = std::mem::take(&mut opened.leftover);
        let session = Box::new(Session::new(opened, generation));
        let data = epoll::EventData::new_u64(u64::from(slot));
        if let Err(error) = epoll::add(&self.epoll, session.socket.stream(), data, epoll::EventFlags::IN) {
            log_rarely!(warn, %error, "the socket of a session cannot be registered with epoll: the session is closed");
            self.free.push(slot);
            return;
        }
        self.inbox.sessions.fetch_add(1, Relaxed);
        self.inbox.counters.opened(session.connection.encoding, session.connection.transport);
        self.sessions[slot as usize] = Some(session);
        self.stale.push_back((self.hub.now_ms() + self.bounds.stale_ms, (slot, generation)));
        if !leftover.is_empty() {
            self.read(slot, &mut leftover);
        }
    }

    /// Pings a session from the next turn of the wheel on.
    fn begin_pings(&mut self, slot: u32) {
        let turn = (self.tick as usize).wrapping_sub(1) % self.wheel.len();
        self.wheel[turn].push((slot, self.generations[slot as usize]));
    }

    /// Schedules the check of the next expiry of a session.
    fn await_end(&mut self, slot: u32) {
        let Some(Some(session)) = self.sessions.get_mut(slot as usize) else { return };
        let (due, mark) = (session.next_end(&self.bounds), (slot, session.generation));
        if let Some(before) = std::mem::replace(&mut session.due, due) {
            self.ends.remove(&(before, mark));
        }
        if let Some(due) = due {
            self.ends.insert((due, mark));
        }
    }

    /// Ends a session, and sends the client a reason if there is one.
    fn end(&mut self, slot: u32, why: Option<Disconnected>) {
        while let Some(removed) = self.channels.remove(&mut self.sessions, slot, 0) {
            self.inbox.counters.unsubscribed();
            let id = self.id(slot);
            let identity = self.sessions[slot as usize].as_ref().and_then(|session| session.identity.clone());
            self.hub.on_unsubscribed(id, identity.as_ref(), &removed.channel, &removed.kind);
        }
        let id = self.generations.get(slot as usize).map(|_| self.id(slot));
        let Some(mut session) = self.sessions.get_mut(slot as usize).and_then(Option::take) else { return };
        if let Some(due) = session.due {
            self.ends.remove(&(due, (slot, session.generation)));
        }
        if let Some(why) = &why {
            let frame = match *why == codes::CONNECTION_CLOSED {
                true => websocket::closed(),
                false => websocket::close(why.code, &why.reason),
            };
            session.socket.close(frame, *why == codes::SLOW);
        }
        let waits = why.is_some() && session.socket.flush() == Ok(()) && session.socket.is_waiting();
        // An error is harmless: the descriptor is closed soon.
        let _ = epoll::delete(&self.epoll, session.socket.stream());
        if !waits {
            session.socket.shut_down();
        }
        if let Some(id) = id {
            self.hub.on_disconnected(id, session.identity.as_ref());
        }
        self.inbox.sessions.fetch_sub(1, Relaxed);
        let (encoding, transport) = (session.connection.encoding, session.connection.transport);
        self.inbox.counters.ended(encoding, transport, why.map_or(0, |why| why.code));
        if session.socket.watched.writable {
            self.inbox.counters.queues(false);
        }
        self.generations[slot as usize] = self.generations[slot as usize].wrapping_add(1);
        self.free.push(slot);
        // A close with unread bytes would make the kernel discard the bytes just written.
        let linger = if waits { CLOSE_WAIT_MS } else { LINGER_MS };
        session.release(waits);
        self.lingering.push_back((self.hub.now_ms() + linger, session));
        if self.lingering.len() > LINGERING_MAX {
            self.lingering.pop_front();
        }
    }

    fn broken(&mut self, slot: u32, broken: Broken) {
        self.end(
            slot,
            match broken {
                Broken::Slow => Some(codes::SLOW),
                Broken::Socket => None,
            },
        );
    }

    fn ready(&mut self, slot: u32, flags: epoll::EventFlags, buffer: &mut [u8]) {
        if flags.contains(epoll::EventFlags::OUT) {
            self.flush(slot);
        }
        if !flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            return;
        }
        // Stop after a few reads, so that other sessions get their turn.
        for _ in 0..4 {
            let Some(session) = self.session(slot).filter(|session| session.socket.watched.readable) else { return };
            match session.socket.read(buffer) {
                Received::Bytes(len) => {
                    self.read(slot, &mut buffer[..len]);
                    if len < buffer.len() {
                        return;
                    }
                }
                Received::Nothing => return,
                Received::End => return self.end(slot, None),
            }
        }
    }

    fn read(&mut self, slot: u32, bytes: &mut [u8]) {
        let Some(session) = self.session(slot) else { return };
        session.lives();
        if self.take_in(slot, bytes) {
            self.next_commands(slot);
        }
    }

    /// Decodes received and kept bytes. Returns whether the session stays open.
    fn take_in(&mut self, slot: u32, bytes: &mut [u8]) -> bool {
        let max = self.bounds.message_bytes_max;
        let Some(session) = self.session(slot) else { return false };
        let (pings, end) = session.commands.take_in(bytes, max);
        for payload in pings {
            self.send(slot, &websocket::pong(&payload));
        }
        if let Some(why) = end {
            if why != codes::BAD_PROTOCOL {
                // Start the commands that precede the end.
                self.begin_commands(slot);
            }
            self.end(slot, Some(why));
            return false;
        }
        true
    }

    /// Starts the next commands, unless some are in flight.
    fn next_commands(&mut self, slot: u32) {
        let kept = self.session(slot).is_some_and(|session| session.commands.has_kept());
        if kept && !self.take_in(slot, &mut []) {
            return;
        }
        self.begin_commands(slot);
        self.watch(slot);
    }

    fn begin_commands(&mut self, slot: u32) {
        let (id, now, rate) = (self.id(slot), self.hub.now_ms(), self.bounds.publish_rate);
        let queue_max = self.bounds.queue_bytes_max;
        let Some(session) = self.session(slot) else { return };
        // While the client has unread answers, its next commands wait.
        if session.commands.busy || session.commands.is_empty() || session.socket.owes_reading(queue_max) {
            return;
        }
        let mut commands = session.commands.take_next(now, rate);
        for queued in &mut commands {
            queued.subscriptions = session.subscriptions.len();
            let channel = queued.command.channel();
            let found = session.subscriptions.iter().find(|s| channel == Some(&*s.channel));
            queued.subscribed = found.map(|subscription| subscription.kind.server_side);
        }
        session.commands.busy = true;
        let source = match &session.identity {
            Some(identity) => CommandSource::Known(identity.clone()),
            None => CommandSource::New(session.take_connection()),
        };
        self.hub.carry_out(id, source, commands);
    }

    /// Registers the socket for the events that the session needs.
    fn watch(&mut self, slot: u32) {
        let Some(session) = self.sessions.get_mut(slot as usize).and_then(Option::as_deref_mut) else { return };
        let wanted = Watched { readable: session.commands.takes_more(), writable: session.socket.is_waiting() };
        if wanted == session.socket.watched {
            return;
        }
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, wanted.readable);
        flags.set(epoll::EventFlags::OUT, wanted.writable);
        // epoll always reports a hang-up: edge-triggered while nothing is read, so that it is
        // reported once.
        flags.set(epoll::EventFlags::ET, !wanted.readable);
        let data = epoll::EventData::new_u64(u64::from(slot));
        match epoll::modify(&self.epoll, session.socket.stream(), data, flags) {
            Ok(()) => {
                if wanted.writable != session.socket.watched.writable {
                    self.inbox.counters.queues(wanted.writable);
                }
                session.socket.watched = wanted;
            }
            Err(error) => {
                log_rarely!(warn, %error, "the socket of a session cannot be registered with epoll: the session is closed");
                self.end(slot, Some(codes::SERVER_ERROR));
            }
        }
    }

    fn send(&mut self, slot: u32, frame: &Bytes) {
        let max = self.bounds.queue_bytes_max;
        let Some(session) = self.session(slot) else { return };
        match session.socket.send(frame, max) {
            Ok(()) => self.watch(slot),
            Err(broken) => self.broken(slot, broken),
        }
    }

    /// Writes frames for this session alone. A frame may have two parts, of which sessions may
    /// share the second.
    fn answer(&mut self, slot: u32, frames: impl IntoIterator<Item = (Bytes, Option<Bytes>)>) {
        let max = self.bounds.queue_bytes_max;
        let Some(session) = self.session(slot) else { return };
        match session.socket.answer(frames, max).and_then(|()| session.socket.flush()) {
            Ok(()) => self.watch(slot),
            Err(broken) => self.broken(slot, broken),
        }
    }

    fn reply(&mut self, slot: u32, reply: &Reply) {
        self.replies(slot, std::slice::from_ref(reply), &[]);
    }

    /// Writes replies. Their frames hold the permits until they are written.
    fn replies(&mut self, slot: u32, replies: &[Reply], permits: &[Arc<Permit>]) {
        let Some(session) = self.session(slot) else { return };
        let (encoding, deflate) = (session.connection.encoding, session.connection.deflate);
        let frame = |reply| {
            let mut payload = Payload::default();
            encode_reply(encoding, reply, &mut payload)?;
            let compressed = deflate.and_then(|deflate| websocket::compressed(encoding, deflate, payload.bytes()));
            Ok((held(compressed.unwrap_or_else(|| websocket::framed(encoding, payload)), permits), None))
        };
        let frames: Result<Vec<_>, Malformed> = replies.iter().map(frame).collect();
        match frames {
            Ok(frames) => self.answer(slot, frames),
            Err(_) => self.end(slot, Some(codes::INAPPROPRIATE_PROTOCOL)),
        }
    }

    fn flush(&mut self, slot: u32) {
        let Some(session) = self.session(slot) else { return };
        match session.socket.flush() {
            // Commands may have waited for the client to read.
            Ok(()) if !session.commands.is_empty() => self.next_commands(slot),
            Ok(()) => self.watch(slot),
            Err(broken) => self.broken(slot, broken),
        }
    }

    fn write_dirty(&mut self) {
        for slot in std::mem::take(&mut self.dirty) {
            if let Some(session) = self.session(slot) {
                session.dirty = false;
                self.flush(slot);
            }
        }
    }
}
