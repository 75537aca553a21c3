//! A worker: one thread that reads, delivers and writes for all sessions of its partition.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use super::session::{Broken, Session, Watched, would_block};
use super::subscriptions::{Channels, KEPT_MAX, Progress};
use super::{Asked, Bounds, Event, Hub, Inbox, Opened, SessionId, ToSession};
use crate::filter;
use crate::outgoing::{ChannelPush, Form, Outgoing};
use crate::protocol::codec::{decode_commands, encode_reply, ping};
use crate::protocol::codes::{self, Disconnected};
use crate::protocol::message::{Command, Push, Reply, Unsubscribe};
use crate::websocket::{self, Incoming};

/// The inbox among the descriptors that are watched.
const WAKE: u64 = u64::MAX;
/// Bytes read at a time; one buffer for all sessions.
const READ_BYTES: usize = 64 << 10;
/// Commands of a session that wait; at this many nothing is read from it.
const COMMANDS_MAX: usize = 128;
/// Commands in one frame.
const FRAME_COMMANDS_MAX: usize = 1024;
/// Publish commands of a session that are carried out together.
const TOGETHER: usize = 64;
/// From look to look at what time has brought.
const TICK_MS: u64 = 250;
/// How long a socket that was closed waits for the client to close, milliseconds, and how many do.
const LINGER_MS: u64 = 1000;
const LINGERING_MAX: usize = 1024;

/// Starts the worker of a partition on a thread of its own. It ends with [`Event::Stop`].
///
/// # Errors
/// What the operating system says.
pub fn start(
    number: u16,
    inbox: Arc<Inbox>,
    hub: Arc<dyn Hub>,
    bounds: Bounds,
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
        channels: Channels::default(),
        dirty: Vec::new(),
        wheel: vec![Vec::new(); slots],
        tick: 0,
        pongs: VecDeque::new(),
        stale: VecDeque::new(),
        lingering: VecDeque::new(),
        stopping: false,
    };
    // Commands that are begun on the worker's thread may use the runtime's timers.
    let runtime = tokio::runtime::Handle::try_current().ok();
    std::thread::Builder::new().name(format!("live-{number}")).spawn(move || {
        let _entered = runtime.as_ref().map(tokio::runtime::Handle::enter);
        worker.run();
    })
}

/// A session at a time: its place and generation.
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
    channels: Channels,
    /// Sessions with something to write.
    dirty: Vec<u32>,
    /// Whom to ping at which tick.
    wheel: Vec<Vec<Mark>>,
    tick: u64,
    /// Who was pinged, and until when an answer may come.
    pongs: VecDeque<(u64, Mark)>,
    /// Who has not connected, and until when.
    stale: VecDeque<(u64, Mark)>,
    lingering: VecDeque<(u64, TcpStream)>,
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
            // Interrupted by a signal: nothing is ready.
            let _ = epoll::wait(&self.epoll, spare_capacity(&mut ready), Some(&wait));
            for event in &ready {
                let (data, flags) = (event.data.u64(), event.flags);
                if data != WAKE {
                    self.ready(data as u32, flags, &mut buffer);
                }
            }
            self.inbox.take(&mut events);
            // Several publications at once are written together; a single one at once.
            let alone = events.len() == 1;
            for event in events.drain(..) {
                self.event(event, alone);
            }
            self.write_dirty();
            if self.hub.now_ms() >= next_tick {
                next_tick = self.hub.now_ms() + TICK_MS;
                self.tick();
            }
        }
        for slot in 0..self.sessions.len() as u32 {
            self.end(slot, Some(codes::SHUTDOWN));
        }
    }

    fn event(&mut self, event: Event, alone: bool) {
        match event {
            Event::Open(opened) => self.open(*opened),
            Event::Publication(outgoing) => {
                self.publication(&outgoing, alone);
                self.inbox.done(&outgoing);
                self.hub.delivered();
            }
            Event::Push(push) => self.push(&push),
            Event::To(id, what) => {
                let generation = self.generations.get(id.slot as usize);
                if generation == Some(&id.generation) && self.sessions[id.slot as usize].is_some() {
                    self.told(id.slot, what);
                } else {
                    self.too_late(id, what);
                }
            }
            Event::Stop => self.stopping = true,
        }
    }

    /// A session has ended while a command of it was carried out: what that took is given back.
    fn too_late(&self, id: SessionId, what: ToSession) {
        match what {
            ToSession::Connected { who, .. } => self.hub.gone(id, Some(&who)),
            ToSession::Subscribing(channel, kind) => self.hub.left(id, None, &channel, &kind),
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

    // Sessions begin and end.

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
        if let Err(error) = epoll::add(&self.epoll, &session.socket, data, epoll::EventFlags::IN) {
            tracing::warn!(%error, "a session cannot be watched");
            self.free.push(slot);
            return;
        }
        self.inbox.sessions.fetch_add(1, Relaxed);
        self.inbox.counters.opened(session.encoding, session.transport);
        self.sessions[slot as usize] = Some(session);
        self.stale.push_back((self.hub.now_ms() + self.bounds.stale_ms, (slot, generation)));
        if !leftover.is_empty() {
            self.read(slot, &mut leftover);
        }
    }

    /// Ends a session; with a reason, if the client is to know it.
    fn end(&mut self, slot: u32, why: Option<Disconnected>) {
        while let Some(removed) = self.channels.remove(&mut self.sessions, slot, 0) {
            self.inbox.counters.unsubscribed();
            let id = self.id(slot);
            let who = self.sessions[slot as usize].as_ref().and_then(|session| session.who.clone());
            self.hub.left(id, who.as_ref(), &removed.channel, &removed.kind);
        }
        let id = self.generations.get(slot as usize).map(|_| self.id(slot));
        let Some(mut session) = self.sessions.get_mut(slot as usize).and_then(Option::take) else { return };
        if let Some(why) = why {
            let frame = websocket::close(why.code, why.reason);
            let _ = session.keep(frame, usize::MAX).and_then(|()| session.flush());
        }
        // Whatever this says, the descriptor is closed soon.
        let _ = epoll::delete(&self.epoll, &session.socket);
        let _ = session.socket.shutdown(Shutdown::Write);
        if let Some(id) = id {
            self.hub.gone(id, session.who.as_ref());
        }
        self.inbox.sessions.fetch_sub(1, Relaxed);
        self.inbox.counters.ended(session.encoding, session.transport, why.map_or(0, |why| why.code));
        if session.watched.writable {
            self.inbox.counters.queues(false);
        }
        self.generations[slot as usize] = self.generations[slot as usize].wrapping_add(1);
        self.free.push(slot);
        // Closed with unread bytes, the kernel would take back what was just written.
        self.lingering.push_back((self.hub.now_ms() + LINGER_MS, session.socket));
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

    // What comes from the socket.

    fn ready(&mut self, slot: u32, flags: epoll::EventFlags, buffer: &mut [u8]) {
        if flags.contains(epoll::EventFlags::OUT) {
            self.flush(slot);
        }
        if !flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            return;
        }
        // What more there is comes up at the next look, after others had their turn.
        for _ in 0..4 {
            let Some(session) = self.session(slot).filter(|session| session.watched.readable) else { return };
            match (&session.socket).read(buffer) {
                Ok(0) => return self.end(slot, None),
                Ok(len) => {
                    self.read(slot, &mut buffer[..len]);
                    if len < buffer.len() {
                        return;
                    }
                }
                Err(e) if would_block(&e) => return,
                Err(_) => return self.end(slot, None),
            }
        }
    }

    fn read(&mut self, slot: u32, bytes: &mut [u8]) {
        let max = self.bounds.message_bytes_max;
        let Some(session) = self.session(slot) else { return };
        let mut arrived = Vec::new();
        let mut reader = std::mem::take(&mut session.reader);
        let fed = reader.feed(bytes, max, |incoming| {
            let goes_on = incoming != Incoming::Close;
            arrived.push(incoming);
            goes_on
        });
        session.reader = reader;
        session.pinged = false;
        for incoming in arrived {
            match incoming {
                Incoming::Message(message) => self.message(slot, &message),
                Incoming::Ping(payload) => self.send(slot, &websocket::pong(&payload)),
                Incoming::Close => return self.end(slot, Some(codes::CONNECTION_CLOSED)),
            }
        }
        if let Err(violation) = fed {
            let reason = "the frame is not one that the server takes";
            self.end(slot, Some(Disconnected { code: violation.code(), reason }));
        }
    }

    fn message(&mut self, slot: u32, message: &[u8]) {
        let Some(session) = self.session(slot) else { return };
        let Ok(commands) = decode_commands(session.encoding, message, FRAME_COMMANDS_MAX) else {
            return self.end(slot, Some(codes::BAD_PROTOCOL));
        };
        for command in commands {
            // A pong.
            if command == Command::default() {
                continue;
            }
            // Connecting comes first, and once.
            let begins = session.who.is_none() && !session.busy && session.commands.is_empty();
            if begins != command.connect.is_some() || command.id == 0 && command.send.is_none() {
                return self.end(slot, Some(codes::BAD_PROTOCOL));
            }
            session.commands.push_back(Asked { command, subscribed: None, subscriptions: 0, over_rate: false });
        }
        self.next_commands(slot);
    }

    /// Has the next commands carried out, if none are.
    fn next_commands(&mut self, slot: u32) {
        let (id, now, rate) = (self.id(slot), self.hub.now_ms(), self.bounds.publish_rate);
        let Some(session) = self.session(slot) else { return };
        if !session.busy && !session.commands.is_empty() {
            let publishes = session.commands.iter().take_while(|asked| asked.command.publish.is_some()).count();
            let count = publishes.clamp(1, TOGETHER);
            let mut asked: Vec<Asked> = session.commands.drain(..count).collect();
            if session.commands.is_empty() {
                session.commands = VecDeque::new();
            }
            for asked in &mut asked {
                asked.subscriptions = session.subscriptions.len();
                asked.over_rate = asked.command.publish.is_some() && !session.may_publish(now, rate);
                let channel = channel_of(&asked.command);
                let found = session.subscriptions.iter().find(|s| channel == Some(&*s.channel));
                asked.subscribed = found.map(|subscription| subscription.kind.server_side);
            }
            session.busy = true;
            let (encoding, who) = (session.encoding, session.who.clone());
            self.hub.carry_out(id, encoding, who, asked);
        }
        self.watch(slot);
    }

    /// Watches the socket for what there is to do with it.
    fn watch(&mut self, slot: u32) {
        let Some(session) = self.sessions.get_mut(slot as usize).and_then(Option::as_deref_mut) else { return };
        let wanted = Watched { readable: session.commands.len() < COMMANDS_MAX, writable: session.is_waiting() };
        if wanted == session.watched {
            return;
        }
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, wanted.readable);
        flags.set(epoll::EventFlags::OUT, wanted.writable);
        match epoll::modify(&self.epoll, &session.socket, epoll::EventData::new_u64(u64::from(slot)), flags) {
            Ok(()) => {
                if wanted.writable != session.watched.writable {
                    self.inbox.counters.queues(wanted.writable);
                }
                session.watched = wanted;
            }
            Err(error) => {
                tracing::warn!(%error, "a session cannot be watched");
                self.end(slot, Some(codes::SERVER_ERROR));
            }
        }
    }

    // What goes to the socket.

    fn send(&mut self, slot: u32, frame: &bytes::Bytes) {
        let max = self.bounds.queue_bytes_max;
        let Some(session) = self.session(slot) else { return };
        match session.send(frame, max) {
            Ok(()) => self.watch(slot),
            Err(broken) => self.broken(slot, broken),
        }
    }

    /// Writes a frame in two parts, of which the second may be shared with others.
    fn send_both(&mut self, slot: u32, head: bytes::Bytes, rest: bytes::Bytes) {
        let max = self.bounds.queue_bytes_max;
        let Some(session) = self.session(slot) else { return };
        let sent = session.keep(head, usize::MAX).and_then(|()| session.keep(rest, usize::MAX));
        let sent = sent.and_then(|()| session.flush());
        match sent {
            Ok(()) if session.waiting_bytes() <= max => self.watch(slot),
            Ok(()) => self.broken(slot, Broken::Slow),
            Err(broken) => self.broken(slot, broken),
        }
    }

    fn reply(&mut self, slot: u32, reply: &Reply) {
        let Some(session) = self.session(slot) else { return };
        let encoding = session.encoding;
        let mut payload = Vec::new();
        match encode_reply(encoding, reply, &mut payload) {
            Ok(()) => self.send(slot, &websocket::message(encoding, &payload)),
            Err(_) => self.end(slot, Some(codes::INAPPROPRIATE_PROTOCOL)),
        }
    }

    fn flush(&mut self, slot: u32) {
        let Some(session) = self.session(slot) else { return };
        match session.flush() {
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

    // What is published.

    fn publication(&mut self, outgoing: &Arc<Outgoing>, alone: bool) {
        let mut lost = Vec::new();
        let mut delivered = 0;
        let Self { channels, sessions, dirty, bounds, .. } = self;
        let offset = outgoing.publication.offset;
        for entry in channels.entries(&outgoing.channel) {
            let Some(Some(session)) = sessions.get_mut(entry.slot as usize) else { continue };
            let encoding = session.encoding;
            let Some(subscription) = session.subscriptions.get_mut(entry.at as usize) else { continue };
            match &mut subscription.progress {
                Progress::Syncing(kept) if kept.len() == KEPT_MAX => subscription.progress = Progress::Overrun,
                Progress::Syncing(kept) => kept.push(outgoing.clone()),
                Progress::Overrun => {}
                Progress::Active(at) => {
                    if offset > 0 {
                        if offset <= *at {
                            continue;
                        }
                        if subscription.kind.positioned && offset != *at + 1 {
                            lost.push((entry.slot, Lost::Gap));
                            continue;
                        }
                        *at = offset;
                    }
                    if subscription
                        .kind
                        .filter
                        .as_ref()
                        .is_some_and(|f| !filter::matches(f, &outgoing.publication.tags))
                    {
                        subscription.has_base = false;
                        continue;
                    }
                    let form = match (subscription.kind.delta, subscription.has_base) {
                        (false, _) => Form::Plain,
                        (true, false) => Form::Whole,
                        (true, true) => Form::Delta,
                    };
                    subscription.has_base = true;
                    let Some(frame) = outgoing.frame(encoding, form) else {
                        lost.push((entry.slot, Lost::Binary));
                        continue;
                    };
                    let sent = if alone {
                        session.send(&frame, bounds.queue_bytes_max)
                    } else {
                        session.keep(frame, bounds.queue_bytes_max)
                    };
                    delivered += u64::from(sent.is_ok());
                    match sent {
                        Ok(()) if session.is_waiting() && !session.dirty => {
                            session.dirty = true;
                            dirty.push(entry.slot);
                        }
                        Ok(()) => {}
                        Err(broken) => lost.push((entry.slot, Lost::Broken(broken))),
                    }
                }
            }
        }
        self.inbox.counters.delivered(delivered);
        for (slot, why) in lost {
            match why {
                Lost::Gap => self.end(slot, Some(codes::INSUFFICIENT_STATE)),
                Lost::Binary => self.end(slot, Some(codes::INAPPROPRIATE_PROTOCOL)),
                Lost::Broken(broken) => self.lagging(slot, broken),
            }
        }
    }

    /// A session that had too much kept for it: perhaps only because it was kept to be written together.
    fn lagging(&mut self, slot: u32, broken: Broken) {
        let max = self.bounds.queue_bytes_max;
        let Some(session) = self.session(slot) else { return };
        if broken == Broken::Slow && session.flush() == Ok(()) && session.waiting_bytes() <= max {
            return self.watch(slot);
        }
        self.broken(slot, broken);
    }

    fn push(&mut self, push: &ChannelPush) {
        let listening: Vec<u32> = {
            let entries = self.channels.entries(&push.channel).iter();
            let listens = entries.filter(|entry| {
                let session = self.sessions.get(entry.slot as usize).and_then(Option::as_deref);
                let subscription = session.and_then(|session| session.subscriptions.get(entry.at as usize));
                subscription.is_some_and(|s| s.kind.join_leave && matches!(s.progress, Progress::Active(_)))
            });
            listens.map(|entry| entry.slot).collect()
        };
        for slot in listening {
            let frame = self.session(slot).and_then(|session| push.frame(session.encoding));
            if let Some(frame) = frame {
                self.send(slot, &frame);
            }
        }
    }

    // What the server says to a session.

    fn told(&mut self, slot: u32, what: ToSession) {
        match what {
            ToSession::Reply(reply) => self.reply(slot, &reply),
            ToSession::Connected { who, expires_ms, reply, subscribed } => {
                let generation = self.generations[slot as usize];
                let turn = (self.tick as usize).wrapping_sub(1) % self.wheel.len();
                self.wheel[turn].push((slot, generation));
                if let Some(session) = self.session(slot) {
                    session.who = Some(who);
                    session.expires_ms = expires_ms;
                }
                self.reply(slot, &reply);
                for (channel, offset) in subscribed {
                    self.activate(slot, &channel, offset);
                }
            }
            ToSession::Subscribing(channel, kind) => {
                if let Some(Some(session)) = self.sessions.get_mut(slot as usize) {
                    self.channels.add(slot, session, channel, kind);
                    self.inbox.counters.subscribed();
                }
            }
            ToSession::Subscribed { channel, offset, id, answer } => {
                let frame = self.session(slot).and_then(|session| answer.frame(session.encoding, id));
                let Some((head, rest)) = frame else { return self.end(slot, Some(codes::INAPPROPRIATE_PROTOCOL)) };
                self.send_both(slot, head, rest);
                self.activate(slot, &channel, offset);
            }
            ToSession::Unsubscribed(channel, reply) => {
                self.leave(slot, &channel);
                if let Some(reply) = reply {
                    self.reply(slot, &reply);
                }
            }
            ToSession::Refreshed(expires_ms, reply) => {
                if let Some(session) = self.session(slot) {
                    session.expires_ms = expires_ms;
                }
                self.reply(slot, &reply);
            }
            ToSession::SubRefreshed(channel, expires_ms, reply) => {
                if let Some(session) = self.session(slot)
                    && let Some(subscription) = session.subscriptions.iter_mut().find(|s| s.channel == channel)
                {
                    subscription.kind.expires_ms = expires_ms;
                }
                self.reply(slot, &reply);
            }
            ToSession::Ready => {
                if let Some(session) = self.session(slot) {
                    session.busy = false;
                }
                self.next_commands(slot);
            }
            ToSession::Disconnect(why) => self.end(slot, Some(why)),
        }
    }

    fn place_of(&self, slot: u32, channel: &str) -> Option<usize> {
        let session = self.sessions.get(slot as usize)?.as_ref()?;
        session.subscriptions.iter().position(|s| *s.channel == *channel)
    }

    fn leave(&mut self, slot: u32, channel: &str) {
        let Some(at) = self.place_of(slot, channel) else { return };
        if let Some(removed) = self.channels.remove(&mut self.sessions, slot, at) {
            self.inbox.counters.unsubscribed();
            let id = self.id(slot);
            let who = self.session(slot).and_then(|session| session.who.clone());
            self.hub.left(id, who.as_ref(), &removed.channel, &removed.kind);
        }
    }

    /// The client has been told of all up to `offset`: what has been kept follows, and then what comes.
    fn activate(&mut self, slot: u32, channel: &str, offset: u64) {
        let Some(at) = self.place_of(slot, channel) else { return };
        let Some(Some(session)) = self.sessions.get_mut(slot as usize) else { return };
        let subscription = &mut session.subscriptions[at];
        match std::mem::replace(&mut subscription.progress, Progress::Active(offset)) {
            Progress::Syncing(kept) => {
                if let (Some(who), true) =
                    (session.who.clone(), subscription.kind.announced || subscription.kind.presence)
                {
                    self.hub.came(&who, &subscription.channel, &subscription.kind);
                }
                for outgoing in kept {
                    self.publication_to(slot, at, &outgoing);
                }
            }
            Progress::Overrun => self.end(slot, Some(codes::INSUFFICIENT_STATE)),
            Progress::Active(_) => {}
        }
    }

    fn publication_to(&mut self, slot: u32, at: usize, outgoing: &Arc<Outgoing>) {
        let Some(session) = self.session(slot) else { return };
        let encoding = session.encoding;
        let Some(subscription) = session.subscriptions.get_mut(at) else { return };
        let offset = outgoing.publication.offset;
        if let Progress::Active(told) = &mut subscription.progress
            && offset > 0
        {
            if offset <= *told {
                return;
            }
            *told = offset;
        }
        if subscription.kind.filter.as_ref().is_some_and(|f| !filter::matches(f, &outgoing.publication.tags)) {
            return;
        }
        let form = if subscription.kind.delta { Form::Whole } else { Form::Plain };
        subscription.has_base = true;
        match outgoing.frame(encoding, form) {
            Some(frame) => {
                self.inbox.counters.delivered(1);
                self.send(slot, &frame);
            }
            None => self.end(slot, Some(codes::INAPPROPRIATE_PROTOCOL)),
        }
    }

    // What time brings.

    fn tick(&mut self) {
        let (now, wall) = (self.hub.now_ms(), self.hub.wall_ms());
        let turn = self.tick as usize % self.wheel.len();
        self.tick += 1;
        let queued = match self.inbox.counters.has_queues() {
            true => self.sessions.iter().flatten().map(|session| session.waiting_bytes() as u64).sum(),
            false => 0,
        };
        self.inbox.counters.set_queued(queued);
        // Before the next pings: an answer to the last one is no answer to these.
        while let Some(&(_, mark)) = self.pongs.front().filter(|(due, _)| *due <= now) {
            self.pongs.pop_front();
            if self.marked(mark).is_some_and(|session| session.pinged) {
                self.end(mark.0, Some(codes::NO_PONG));
            }
        }
        let mut marks = std::mem::take(&mut self.wheel[turn]);
        marks.retain(|mark| self.ping(*mark, now, wall));
        self.wheel[turn].append(&mut marks);
        while let Some(&(_, mark)) = self.stale.front().filter(|(due, _)| *due <= now) {
            self.stale.pop_front();
            if self.marked(mark).is_some_and(|session| session.who.is_none()) {
                self.end(mark.0, Some(codes::STALE));
            }
        }
        self.hub.tick();
        while self.lingering.front().is_some_and(|(due, _)| *due <= now) {
            self.lingering.pop_front();
        }
    }

    /// Whether the session is still there.
    fn ping(&mut self, mark: Mark, now: u64, wall: u64) -> bool {
        let (slot, grace, sub_grace) = (mark.0, self.bounds.expired_ms, self.bounds.expired_sub_ms);
        let Some(session) = self.marked(mark) else { return false };
        let over = |ends: Option<u64>, grace: u64| ends.is_some_and(|ends| ends.saturating_add(grace) <= wall);
        if over(session.expires_ms, grace) {
            self.end(slot, Some(codes::SESSION_EXPIRED));
            return false;
        }
        let expired = session.subscriptions.iter().find(|s| over(s.kind.expires_ms, sub_grace));
        if let Some(channel) = expired.map(|s| s.channel.clone()) {
            self.leave(slot, &channel);
            let (code, reason) = codes::UNSUBSCRIBED_EXPIRED;
            let unsubscribe = Some(Unsubscribe { code, reason: reason.to_owned() });
            let push = Push { channel: channel.as_ref().to_owned(), unsubscribe, ..Push::default() };
            self.reply(slot, &Reply { push: Some(push), ..Reply::default() });
        }
        let Some(session) = self.marked(mark) else { return false };
        session.pinged = true;
        let frame = websocket::message(session.encoding, ping(session.encoding));
        self.pongs.push_back((now + self.bounds.pong_ms, mark));
        self.send(slot, &frame);
        true
    }
}

enum Lost {
    Gap,
    Binary,
    Broken(Broken),
}

/// The channel that a command is about.
fn channel_of(command: &Command) -> Option<&str> {
    command
        .subscribe
        .as_ref()
        .map(|r| &*r.channel)
        .or_else(|| command.unsubscribe.as_ref().map(|r| &*r.channel))
        .or_else(|| command.publish.as_ref().map(|r| &*r.channel))
        .or_else(|| command.presence.as_ref().map(|r| &*r.channel))
        .or_else(|| command.presence_stats.as_ref().map(|r| &*r.channel))
        .or_else(|| command.history.as_ref().map(|r| &*r.channel))
        .or_else(|| command.sub_refresh.as_ref().map(|r| &*r.channel))
}
