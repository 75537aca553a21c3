//! A worker: one thread that reads, delivers and writes for all sessions of its partition.

mod clock;
mod fanout;
mod session_messages;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use steadfast_flow::{Env, log_rarely};

use super::session::{Broken, Session};
use super::subscriptions::ChannelIndex;
use super::{Bounds, Hub, Inbox, Opened, SessionId, SessionMessage, WorkerEvent};
use crate::protocol::codes::{self, Disconnected};
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
                self.tick();
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
                self.publication(&outgoing, alone);
                self.inbox.done(outgoing.weight());
                self.hub.delivered();
            }
            WorkerEvent::Reset(channel, position) => self.reset(&channel, position),
            WorkerEvent::Push(push) => {
                self.push(&push);
                self.inbox.done(push.weight());
                self.hub.delivered();
            }
            WorkerEvent::To(id, message) => {
                let generation = self.generations.get(id.slot as usize);
                if generation == Some(&id.generation) && self.sessions[id.slot as usize].is_some() {
                    self.on_message(id.slot, message);
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

    pub(super) fn id(&self, slot: u32) -> SessionId {
        SessionId { partition: self.number, slot, generation: self.generations[slot as usize] }
    }

    pub(super) fn session(&mut self, slot: u32) -> Option<&mut Session> {
        self.sessions.get_mut(slot as usize)?.as_deref_mut()
    }

    pub(super) fn marked(&mut self, (slot, generation): Mark) -> Option<&mut Session> {
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
        if let Err(error) = epoll::add(&self.epoll, &session.socket, data, epoll::EventFlags::IN) {
            log_rarely!(warn, %error, "the socket of a session cannot be registered with epoll: the session is closed");
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

    /// Ends a session, and sends the client a reason if there is one.
    pub(super) fn end(&mut self, slot: u32, why: Option<Disconnected>) {
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
            session.close(frame, *why == codes::SLOW);
        }
        let waits = why.is_some() && session.flush() == Ok(()) && session.is_waiting();
        // An error is harmless: the descriptor is closed soon.
        let _ = epoll::delete(&self.epoll, &session.socket);
        if !waits {
            let _ = session.socket.shutdown(Shutdown::Write);
        }
        if let Some(id) = id {
            self.hub.on_disconnected(id, session.identity.as_ref());
        }
        self.inbox.sessions.fetch_sub(1, Relaxed);
        self.inbox.counters.ended(session.encoding, session.transport, why.map_or(0, |why| why.code));
        if session.watched.writable {
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

    pub(super) fn broken(&mut self, slot: u32, broken: Broken) {
        self.end(
            slot,
            match broken {
                Broken::Slow => Some(codes::SLOW),
                Broken::Socket => None,
            },
        );
    }
}
