//! Partitions: each session belongs to one worker thread, which owns its socket and all of its state.
//!
//! What concerns a session comes to its worker as an event, in one queue, so a session needs no lock, and publications stay in order for everyone.
//! The queue has no bound of its own: all that puts into it is bounded (publications by the budget of those on their way,
//! the rest by the number of sessions and the commands that each may have under way).

mod session;
mod subscriptions;
mod worker;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::HeaderMap;
use parking_lot::{Mutex, RwLock};
use rustix::event::{EventfdFlags, eventfd};
use serde_json::value::RawValue;
use steadfast_flow::{Connection, Permit};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::answer::SubscribeAnswer;
use crate::deflate::Deflate;
use crate::metrics::Counters;
use crate::outgoing::{ChannelPush, Outgoing};
use crate::protocol::Encoding;
use crate::protocol::codes::{ClientError, Disconnected};
use crate::protocol::message::{ClientInfo, Command, FilterNode, Publication, Push, Reply};

pub use worker::start;

/// A session, for as long as it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId {
    /// Its partition.
    pub partition: u16,
    /// Its place there,
    pub slot: u32,
    /// and how often that had been used before.
    pub generation: u32,
}

/// Who a session belongs to; known when it is connected.
#[derive(Debug)]
pub struct Who {
    /// The session's name to the outside.
    pub client: Uuid,
    /// The user; empty for an anonymous one.
    pub user: String,
    /// What the back end says of the session, and may say anew.
    pub facts: RwLock<Facts>,
    /// How it came.
    pub arrived: Arrived,
    /// Headers that it claims to have sent, as far as they are handed on.
    pub emulated: Option<Arc<HeaderMap>>,
    /// Channels to which its connection token subscribes it.
    pub token_channels: BTreeSet<String>,
}

/// What the back end says of a session.
#[derive(Debug, Default)]
pub struct Facts {
    /// For others: JSON, or nothing.
    pub info: Vec<u8>,
    /// For the back end alone.
    pub meta: Option<Box<RawValue>>,
}

/// How a session came.
#[derive(Debug, Clone)]
pub struct Arrived {
    /// How it speaks.
    pub encoding: Encoding,
    /// How it is connected.
    pub transport: Transport,
    /// How what it is told is compressed, if it takes that; then it may compress what it says, too.
    pub deflate: Option<Deflate>,
    /// Headers of its request, as far as they are handed on to the back end.
    pub headers: Option<Arc<HeaderMap>>,
    /// Its name for the server API and for commands in requests of their own; a plain WebSocket has none.
    pub session: Option<Arc<str>>,
    /// The group of the address that it came from.
    pub address: Arc<str>,
}

#[cfg(test)]
impl Arrived {
    pub(crate) fn of(encoding: Encoding, transport: Transport) -> Self {
        Self { encoding, transport, deflate: None, headers: None, session: None, address: "".into() }
    }
}

/// Whose commands are carried out.
pub enum Asker {
    /// A session that is to connect.
    New(Arrived),
    /// One that is connected.
    Known(Arc<Who>),
}

impl Who {
    /// Somebody of whom nothing else is known.
    pub(crate) fn new(client: Uuid, arrived: Arrived, emulated: Option<Arc<HeaderMap>>) -> Self {
        let (user, facts, token_channels) = (String::new(), RwLock::default(), BTreeSet::new());
        Self { client, user, facts, arrived, emulated, token_channels }
    }

    #[cfg(test)]
    pub(crate) fn ann(arrived: Arrived) -> Self {
        Self { user: "ann".into(), ..Self::new(Uuid::nil(), arrived, None) }
    }

    /// Takes what the back end says anew: what it does not say stays. Whether others are to be told.
    pub(crate) fn learn(&self, info: Vec<u8>, meta: Option<Box<RawValue>>) -> bool {
        let mut facts = self.facts.write();
        if meta.is_some() {
            facts.meta = meta;
        }
        let news = !info.is_empty() && info != facts.info;
        if news {
            facts.info = info;
        }
        news
    }

    /// What others are told.
    pub fn client_info(&self, chan_info: &[u8]) -> ClientInfo {
        ClientInfo {
            user: self.user.clone(),
            client: self.client.to_string(),
            conn_info: self.facts.read().info.clone(),
            chan_info: chan_info.to_vec(),
        }
    }
}

/// How a session is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A WebSocket.
    WebSocket,
    /// Lines of an answer that goes on; commands in requests of their own.
    HttpStream,
    /// Events of an answer that goes on; commands in requests of their own.
    Sse,
    /// A WebSocket on which the client sends nothing but its connect request.
    UniWebSocket,
    /// Lines of an answer that goes on, and no commands.
    UniHttpStream,
    /// Events of an answer that goes on, and no commands.
    UniSse,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::WebSocket, Self::HttpStream, Self::Sse, Self::UniWebSocket, Self::UniHttpStream, Self::UniSse];

    /// Whether the client sends no commands.
    pub const fn is_unidirectional(self) -> bool {
        matches!(self, Self::UniWebSocket | Self::UniHttpStream | Self::UniSse)
    }

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WebSocket => "websocket",
            Self::HttpStream => "http_stream",
            Self::Sse => "sse",
            Self::UniWebSocket => "uni_websocket",
            Self::UniHttpStream => "uni_http_stream",
            Self::UniSse => "uni_sse",
        }
    }
}

/// A connection that has become a WebSocket.
pub struct Opened {
    /// The socket, which does not block.
    pub socket: std::net::TcpStream,
    /// What the client sent behind the handshake.
    pub leftover: Vec<u8>,
    /// How it came.
    pub arrived: Arrived,
    /// Given back when the connection ends.
    pub place: Option<Box<dyn Send>>,
    /// Counts it among those of its address without a connected session.
    pub unconnected: Option<Arc<Connection>>,
}

/// How a subscription behaves.
#[derive(Debug, Default)]
pub struct SubscriptionKind {
    /// Its position is followed: a gap ends it.
    pub positioned: bool,
    /// It hears who comes and goes.
    pub join_leave: bool,
    /// Others hear of it.
    pub announced: bool,
    /// It counts as presence.
    pub presence: bool,
    /// It takes differences.
    pub delta: bool,
    /// The server made it.
    pub server_side: bool,
    /// Only publications with these tags.
    pub filter: Option<Box<FilterNode>>,
    /// When it ends, milliseconds since the Unix epoch.
    pub expires_ms: Option<u64>,
    /// Then the back end is asked whether it does.
    pub refreshed: bool,
    /// What others are told of the subscription.
    pub info: Vec<u8>,
}

/// What a session is told.
pub enum ToSession {
    /// A reply to a command.
    Reply(Box<Reply>),
    /// The same of a long one, with its permits.
    Answer(Box<Reply>, Vec<Arc<Permit>>),
    /// It is connected. With the subscriptions that the server made, and up to where each has been told.
    Connected {
        /// Whose it is.
        who: Arc<Who>,
        /// When it ends, milliseconds since the Unix epoch.
        expires_ms: Option<u64>,
        /// What the client is told.
        reply: Box<Reply>,
        /// What the reply tells of,
        subscribed: Vec<Place>,
        /// and their permits.
        permits: Vec<Arc<Permit>>,
    },
    /// Publications of the channel are kept for it from now on, unless it has that channel already: somebody else may have been quicker.
    Subscribing {
        /// This one.
        channel: Arc<str>,
        /// Tells this attempt from others.
        attempt: u64,
        /// How it will be.
        kind: Box<SubscriptionKind>,
        /// The back end wants it: only for a session that is connected, and within the bound on its subscriptions.
        unasked: bool,
    },
    /// It is subscribed; what was kept and has a higher offset follows what it is told. If the attempt was not let in, it is told so.
    Subscribed(Place, Told),
    /// An attempt has failed.
    NotSubscribed(Arc<str>, u64),
    /// It is not subscribed (any more).
    Unsubscribed(Arc<str>, Option<Box<Reply>>),
    /// It lasts until then.
    Refreshed {
        /// Milliseconds since the Unix epoch; `None`: for ever.
        expires_ms: Option<u64>,
        /// What others are told of it has changed.
        renamed: bool,
        /// What its client is told.
        reply: Option<Box<Reply>>,
    },
    /// The subscription lasts until then.
    SubRefreshed {
        /// To this.
        channel: Arc<str>,
        /// Milliseconds since the Unix epoch; `None`: for ever.
        expires_ms: Option<u64>,
        /// What others are told of it from now on, if that is said.
        info: Vec<u8>,
        /// What its client is told.
        reply: Option<Box<Reply>>,
    },
    /// Its commands have been carried out: the next ones may come.
    Ready,
    /// It ends.
    Disconnect(Disconnected),
}

/// Where a subscription begins.
pub struct Place {
    /// To this.
    pub channel: Arc<str>,
    /// The attempt to make it.
    pub attempt: u64,
    /// Up to here the client is told.
    pub offset: u64,
}

/// How a session is told that it is subscribed.
pub enum Told {
    /// As the reply to a command.
    Reply {
        /// Of the command.
        id: u32,
        /// To it.
        answer: Arc<SubscribeAnswer>,
    },
    /// Unasked.
    Push {
        /// What it is told,
        push: Box<Push>,
        /// and what it was missing.
        missed: Vec<Publication>,
        /// The permits of what was missed.
        permits: Vec<Arc<Permit>>,
        /// Takes what became of it.
        done: oneshot::Sender<Result<(), ClientError>>,
    },
}

/// What comes to a worker.
pub enum Event {
    /// A new session.
    Open(Box<Opened>),
    /// To the subscribers of its channel.
    Publication(Arc<Outgoing>),
    /// To those subscribers of its channel who listen for it.
    Push(Arc<ChannelPush>),
    /// To a session.
    To(SessionId, ToSession),
    /// The end of all sessions.
    Stop,
}

impl Event {
    /// Bytes that it counts with in the backlog.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Publication(outgoing) => outgoing.weight(),
            Self::Push(push) => push.weight(),
            _ => 0,
        }
    }
}

/// The way to a worker.
pub struct Inbox {
    queue: Mutex<Vec<Event>>,
    wake: OwnedFd,
    /// Bytes of what is published and pushed in the queue.
    backlog: AtomicUsize,
    /// Sessions.
    pub(crate) sessions: AtomicUsize,
    /// What the worker counts.
    pub(crate) counters: Counters,
}

impl Inbox {
    /// An empty one.
    ///
    /// # Errors
    /// When the process may have no more descriptors.
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

    /// Puts an event behind those that are there.
    pub fn send(&self, event: Event) {
        self.backlog.fetch_add(event.weight(), Ordering::Relaxed);
        let first = {
            let mut queue = self.queue.lock();
            queue.push(event);
            queue.len() == 1
        };
        if first {
            // It fails only when the counter is full, and then the worker is awake.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Bytes of what was published and pushed that the worker has not given to its sessions.
    pub fn backlog(&self) -> usize {
        self.backlog.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self, into: &mut Vec<Event>) {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        std::mem::swap(into, &mut *self.queue.lock());
    }

    pub(crate) fn done(&self, weight: usize) {
        self.backlog.fetch_sub(weight, Ordering::Relaxed);
    }
}

/// What a worker asks of the rest of the server.
pub trait Hub: Send + Sync + 'static {
    /// Carries out commands of a session, one after another, and says [`ToSession::Ready`] at the end.
    fn carry_out(&self, session: SessionId, asker: Asker, commands: Vec<Asked>);

    /// A session's time is over: asks the back end whether it goes on, and tells it.
    fn refresh(&self, session: SessionId, who: Arc<Who>);

    /// The same of a subscription.
    fn sub_refresh(&self, session: SessionId, who: Arc<Who>, channel: Arc<str>);

    /// A subscription gets what is published from now on: sends its join.
    fn joined(&self, who: &Arc<Who>, channel: &Arc<str>, kind: &SubscriptionKind);

    /// Puts a subscriber into the presence of a channel, or replaces its information there.
    fn set_presence(&self, who: &Arc<Who>, channel: &Arc<str>, kind: &SubscriptionKind);

    /// A subscription has ended. `kind` announces it only if it had come that far.
    fn left(&self, session: SessionId, who: Option<&Arc<Who>>, channel: &Arc<str>, kind: &SubscriptionKind);

    /// A session has ended.
    fn gone(&self, session: SessionId, who: Option<&Arc<Who>>);

    /// Milliseconds since the Unix epoch.
    fn wall_ms(&self) -> u64;

    /// Monotonic milliseconds.
    fn now_ms(&self) -> u64;

    /// A worker has delivered what it had.
    fn delivered(&self);

    /// Some time has passed.
    fn tick(&self);
}

/// A command, and what the worker knows that decides about it.
pub struct Asked {
    /// It.
    pub command: Command,
    /// Whether the session is subscribed to the channel that it names, and whether the server made that subscription.
    pub subscribed: Option<bool>,
    /// How many subscriptions the session has.
    pub subscriptions: usize,
    /// More publications in this second than the session may make.
    pub over_rate: bool,
}

/// The bounds that workers keep.
#[derive(Debug, Clone, Default)]
pub struct Bounds {
    /// Bytes of a message from a client.
    pub message_bytes_max: usize,
    /// Bytes that wait for a session that does not read, beside the message that is being written, the newest one, and what it asked for.
    pub queue_bytes_max: usize,
    /// How long a session may be behind `client_bytes_s_min` with taking what waits for it, milliseconds.
    pub stall_ms: u64,
    /// Bytes a second that a session must take of what waits for it; 0: something in each `stall_ms`.
    pub client_bytes_s_min: u64,
    /// From ping to ping, milliseconds.
    pub ping_ms: u64,
    /// How long a pong may take, milliseconds.
    pub pong_ms: u64,
    /// How long the connect command may take, milliseconds.
    pub stale_ms: u64,
    /// How long a session may go on after its end, milliseconds.
    pub expired_ms: u64,
    /// The same of a subscription.
    pub expired_sub_ms: u64,
    /// Publications of a session in a second; 0 for any number.
    pub publish_rate: u32,
    /// Subscriptions of a session.
    pub channels_max: usize,
    /// The back end is asked whether a session ends whose time is over.
    pub refreshes: bool,
}
