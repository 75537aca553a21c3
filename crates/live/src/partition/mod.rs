//! Partitions: each session belongs to one worker thread, which owns its socket and all of its
//! state.
//!
//! Everything that concerns a session reaches its worker as an event in one queue. So a session
//! needs no lock, and every subscriber gets publications in the same order. The queue has no bound
//! of its own because its senders are bounded: publications by the backlog budget, other events by
//! the number of sessions and of the commands that each may have in flight.

mod partitions;
mod session;
mod subscriptions;
mod worker;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use steadfast_flow::{Connection, Lease, Permit};
use steadfast_store::Position;
use tokio::sync::oneshot;

use crate::answer::SubscribeAnswer;
use crate::metrics::Counters;
use crate::outgoing::{ChannelPush, Outgoing};
use crate::protocol::codes::{ClientError, Disconnected};
use crate::protocol::message::{Command, FilterNode, Publication, Push, Reply, Unsubscribe};
use crate::session::{ConnectionInfo, SessionIdentity};

#[cfg(test)]
pub(crate) use partitions::BACKLOG_BYTES_MAX;
pub(crate) use partitions::Partitions;
pub use worker::start;

/// The identity of a session for its lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId {
    /// Number of its partition.
    pub partition: u16,
    /// Slot in the partition.
    pub slot: u32,
    /// Number of sessions that used the slot before.
    pub generation: u32,
}

/// The session that sent the commands.
pub enum CommandSource {
    /// A session that is about to connect.
    New(ConnectionInfo),
    /// A connected session.
    Known(Arc<SessionIdentity>),
}

/// A connection that has become a WebSocket.
pub struct Opened {
    /// The non-blocking socket.
    pub socket: std::net::TcpStream,
    /// Bytes that the client sent behind the handshake.
    pub leftover: Vec<u8>,
    /// Encoding, transport and origin of the connection.
    pub connection: ConnectionInfo,
    /// The connection permit, released when the connection ends.
    pub permit: Option<Box<dyn Send>>,
    /// Counts the connection among those of its address that have no connected session.
    pub unconnected: Option<Arc<Connection>>,
    /// Until when its client is answered.
    pub lease: Lease,
}

/// The properties of a subscription.
#[derive(Debug, Default)]
pub struct SubscriptionKind {
    /// The server tracks its position: a gap ends the session.
    pub positioned: bool,
    /// It may recover missed publications.
    pub recoverable: bool,
    /// It receives joins and leaves.
    pub join_leave: bool,
    /// Its own join and leave are sent to others.
    pub announced: bool,
    /// It is a member of the channel's presence.
    pub presence: bool,
    /// It accepts deltas.
    pub delta: bool,
    /// The server made it.
    pub server_side: bool,
    /// Delivers only publications whose tags match.
    pub filter: Option<Box<FilterNode>>,
    /// Expiry, milliseconds since the Unix epoch.
    pub expires_ms: Option<u64>,
    /// The server asks the back end at the expiry whether to extend it.
    pub refreshed: bool,
    /// Information about the subscription for other clients.
    pub info: Vec<u8>,
}

/// A message from the server to a session.
pub enum SessionMessage {
    /// A reply to a command.
    Reply(Box<Reply>),
    /// A long reply to a command, with its permits.
    Answer(Box<Reply>, Vec<Arc<Permit>>),
    /// The session is connected, with the subscriptions that the server made and the offset that
    /// the reply covers for each.
    Connected {
        /// Identity of the session.
        identity: Arc<SessionIdentity>,
        /// Expiry, milliseconds since the Unix epoch.
        expires_ms: Option<u64>,
        /// The reply for the client.
        reply: Box<Reply>,
        /// The subscriptions in the reply.
        subscribed: Vec<SubscriptionStart>,
        /// The permits of the reply.
        permits: Vec<Arc<Permit>>,
    },
    /// The session keeps publications of the channel from now on, unless it is already subscribed:
    /// the client and the back end may subscribe it concurrently.
    Subscribing {
        /// Name of the channel.
        channel: Arc<str>,
        /// Number of this attempt.
        attempt: u64,
        /// Properties of the new subscription.
        kind: Box<SubscriptionKind>,
        /// The back end requests it. The session must be connected and below its subscription
        /// limit.
        from_server: bool,
    },
    /// The subscription is made. Kept publications with a higher offset follow the answer. A
    /// refused attempt gets an error instead.
    Subscribed(SubscriptionStart, SubscribeOutcome),
    /// The attempt to subscribe failed.
    NotSubscribed(Arc<str>, u64),
    /// The subscription has ended, or does not exist.
    Unsubscribed(Arc<str>, Option<Box<Reply>>),
    /// The session has a new expiry.
    Refreshed {
        /// Milliseconds since the Unix epoch; `None`: never.
        expires_ms: Option<u64>,
        /// The information about the session for other clients has changed.
        renamed: bool,
        /// The reply for the client.
        reply: Option<Box<Reply>>,
    },
    /// The subscription has a new expiry.
    SubRefreshed {
        /// Name of the channel.
        channel: Arc<str>,
        /// Milliseconds since the Unix epoch; `None`: never.
        expires_ms: Option<u64>,
        /// New information for other clients; empty: unchanged.
        info: Vec<u8>,
        /// The reply for the client.
        reply: Option<Box<Reply>>,
    },
    /// All its commands in flight have completed; the worker may start the next ones.
    Ready,
    /// The session ends.
    Disconnect(Disconnected),
}

impl SessionMessage {
    /// Ends a subscription, with a reason for its client.
    pub(crate) fn unsubscribed(channel: Arc<str>, (code, reason): (u32, &str)) -> Self {
        let unsubscribe = Some(Unsubscribe { code, reason: reason.to_owned() });
        let push = Push { channel: channel.as_ref().to_owned(), unsubscribe, ..Push::default() };
        Self::Unsubscribed(channel, Some(Box::new(Reply { push: Some(push), ..Reply::default() })))
    }
}

/// The start of a subscription.
pub struct SubscriptionStart {
    /// Name of the channel.
    pub channel: Arc<str>,
    /// Number of the attempt.
    pub attempt: u64,
    /// Position that the answer covers.
    pub position: Position,
}

/// How the server reports a completed subscription.
pub enum SubscribeOutcome {
    /// The reply to a command.
    Reply {
        /// Number of the command.
        id: u32,
        /// Its answer.
        answer: Arc<SubscribeAnswer>,
    },
    /// A push without a command.
    Push {
        /// The subscribe push.
        push: Box<Push>,
        /// Publications that the client missed.
        missed: Vec<Publication>,
        /// The permits of the missed publications.
        permits: Vec<Arc<Permit>>,
        /// Receives the result of the attempt.
        done: oneshot::Sender<Result<(), ClientError>>,
    },
}

/// An event for a worker.
pub enum WorkerEvent {
    /// A new session.
    Open(Box<Opened>),
    /// A publication for the subscribers of its channel.
    Publication(Arc<Outgoing>),
    /// Publications of the channel may be missing: subscriptions with a position end, and others
    /// continue at this one.
    Reset(Arc<str>, Position),
    /// A push for the subscribers of its channel that receive joins and leaves.
    Push(Arc<ChannelPush>),
    /// A message for one session.
    To(SessionId, SessionMessage),
    /// Ends all sessions and the worker.
    Stop,
}

impl WorkerEvent {
    /// Bytes that it adds to the backlog.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Publication(outgoing) => outgoing.weight(),
            Self::Push(push) => push.weight(),
            _ => 0,
        }
    }
}

/// The event queue of a worker.
pub struct Inbox {
    queue: Mutex<Vec<WorkerEvent>>,
    wake: OwnedFd,
    /// Bytes of publications and pushes in the queue.
    backlog: AtomicUsize,
    /// Number of sessions.
    pub(crate) sessions: AtomicUsize,
    /// Counters of the worker.
    pub(crate) counters: Counters,
}

impl Inbox {
    /// Creates an empty inbox.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn new() -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self {
            queue: Mutex::default(),
            wake,
            backlog: AtomicUsize::new(0),
            sessions: AtomicUsize::new(0),
            counters: Counters::default(),
        })
    }

    /// Appends an event to the queue.
    pub fn send(&self, event: WorkerEvent) {
        self.backlog.fetch_add(event.weight(), Ordering::Relaxed);
        let first = {
            let mut queue = self.queue.lock();
            queue.push(event);
            queue.len() == 1
        };
        if first {
            // The write fails only when the counter is full, and then the worker is awake.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Bytes of publications and pushes that the worker has not delivered to its sessions.
    pub fn backlog(&self) -> usize {
        self.backlog.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self, into: &mut Vec<WorkerEvent>) {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        std::mem::swap(into, &mut *self.queue.lock());
    }

    pub(crate) fn done(&self, weight: usize) {
        self.backlog.fetch_sub(weight, Ordering::Relaxed);
    }
}

/// The services that a worker needs from the rest of the server.
pub trait Hub: Send + Sync + 'static {
    /// Executes commands of a session one after another, and sends [`SessionMessage::Ready`] at the
    /// end.
    fn carry_out(&self, session: SessionId, source: CommandSource, commands: Vec<QueuedCommand>);

    /// A session has expired: asks the back end whether to extend it, and sends the session the
    /// result.
    fn refresh(&self, session: SessionId, identity: Arc<SessionIdentity>);

    /// A subscription has expired: as [`Hub::refresh`].
    fn sub_refresh(&self, session: SessionId, identity: Arc<SessionIdentity>, channel: Arc<str>);

    /// A subscription became active: sends its join.
    fn on_subscribed(&self, identity: &Arc<SessionIdentity>, channel: &Arc<str>, kind: &SubscriptionKind);

    /// Adds a subscriber to the presence of a channel, or replaces its information there.
    fn set_presence(&self, identity: &Arc<SessionIdentity>, channel: &Arc<str>, kind: &SubscriptionKind);

    /// A subscription has ended. `kind` announces its leave only if the subscription was active.
    fn on_unsubscribed(
        &self,
        session: SessionId,
        identity: Option<&Arc<SessionIdentity>>,
        channel: &Arc<str>,
        kind: &SubscriptionKind,
    );

    /// A session has ended.
    fn on_disconnected(&self, session: SessionId, identity: Option<&Arc<SessionIdentity>>);

    /// Milliseconds since the Unix epoch.
    fn wall_ms(&self) -> u64;

    /// Monotonic milliseconds.
    fn now_ms(&self) -> u64;

    /// A worker has delivered an event.
    fn delivered(&self);

    /// Called on every clock tick of a worker.
    fn tick(&self);
}

/// A command, with the state of its session that decides about it.
pub struct QueuedCommand {
    /// The command.
    pub command: Command,
    /// Whether the session is subscribed to the channel of the command, and whether the server made
    /// that subscription.
    pub subscribed: Option<bool>,
    /// Number of subscriptions of the session.
    pub subscriptions: usize,
    /// The session has exceeded its publish rate for this second.
    pub over_rate: bool,
}

/// The limits that workers enforce.
#[derive(Debug, Clone, Default)]
pub struct Bounds {
    /// Largest message from a client, bytes.
    pub message_bytes_max: usize,
    /// Bytes that may be queued for a session. The frame being written, the newest frame and
    /// answers do not count.
    pub queue_bytes_max: usize,
    /// How long a session may read slower than `client_bytes_s_min`, milliseconds.
    pub stall_ms: u64,
    /// Bytes per second that a session must read while bytes are queued for it; 0: any byte within
    /// each `stall_ms`.
    pub client_bytes_s_min: u64,
    /// Interval of pings, milliseconds.
    pub ping_ms: u64,
    /// Timeout of a pong, milliseconds.
    pub pong_ms: u64,
    /// Timeout of the connect command, milliseconds.
    pub stale_ms: u64,
    /// Grace period of an expired session, milliseconds.
    pub expired_ms: u64,
    /// Grace period of an expired subscription, milliseconds.
    pub expired_sub_ms: u64,
    /// Publications of a session per second; 0: no limit.
    pub publish_rate: u32,
    /// Subscriptions of a session.
    pub channels_max: usize,
    /// The server asks the back end at the expiry of a session whether to extend it.
    pub refreshes: bool,
}
