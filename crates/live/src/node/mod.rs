//! The channels of this server, with their subscribers.

mod announce;
mod answers;
mod built;
mod history;
mod members;
mod publish;
mod subscribers;

pub use built::check;
pub use publish::{Accepted, Submission};

use announce::Announcements;
use built::Built;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_cluster::{Attachment, Channel, ChannelError, Channels, Sessions};
use steadfast_flow::{Budget, Env, Gate, KeyedBudget, KeyedGate, KeyedGateOptions, SlowRequests, Striped, Throttle};
use tokio::sync::Notify;

use crate::WARN_INTERVAL;
use crate::answer::{AnswerKey, SubscribeAnswer};
use crate::auth::Verifier;
use crate::config::{LiveConfig, LiveConfigError};
use crate::deflate::Deflate;
use crate::gateway::random_name;
use crate::metrics::{LiveStatus, Refusals, SimpleBound, Sums};
use crate::outgoing::Outgoing;
use crate::partition::{Bounds, Inbox, SessionId, SessionMessage, WorkerEvent};
use crate::presence::Presence;
use crate::protocol::codes::{self, ClientError};
use crate::proxy::{Proxies, ProxyEvent};
use crate::rules::Rules;
use crate::users::Users;

pub(crate) use history::bytes_of;

/// Connection limit, if the configuration sets none.
pub const CONNECTIONS: usize = 1 << 20;

/// Connections that may wait for an unconnected session to close; others are closed at once.
const ARRIVING_MAX: usize = 64;

/// Limits beyond Centrifugo's options. A full queue refuses clients with a temporary error.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Concurrent connects.
    pub connects: usize,
    /// Concurrent subscribes.
    pub subscribes: usize,
    /// Concurrent reads of histories, including recoveries.
    pub history_reads: usize,
    /// Waiters at each of these gates.
    pub waiting: usize,
    /// Connections from one address; 0: no limit.
    pub address_connections: usize,
    /// Publications of a session per second; 0: no limit.
    pub publish_rate: usize,
    /// Share of each disk that publications of clients leave free, percent.
    pub publish_reserve: usize,
    /// Concurrent requests of a proxy to its back end.
    pub proxy_requests: usize,
    /// Concurrent calls of the gRPC API.
    pub grpc_calls: usize,
    /// Concurrent requests to the HTTP API.
    pub api_requests: usize,
    /// Bytes of all bodies of requests to the HTTP API.
    pub api_bytes: u64,
    /// Bytes of memory for all long answers that clients have not received.
    pub answers_bytes: u64,
    /// The share of them that one address may take, in percent.
    pub answers_share_percent: usize,
    /// Bytes of publications in an answer to a history or a recovery.
    pub history_bytes_max: usize,
    /// Largest message that is compressed, bytes.
    pub compression_bytes_max: usize,
    /// Commands and API requests that take at least this long are logged; zero: none.
    pub slow_request: Duration,
}

impl Limits {
    /// The memory for long answers. An address may take its share, and at least one answer.
    fn answers(&self, env: &Env) -> KeyedBudget {
        let share = self.answers_bytes / 100 * self.answers_share_percent as u64;
        let budget = Budget::new("live_answers", self.answers_bytes, env.clone());
        KeyedBudget::new(budget, share.max(self.history_bytes_max as u64))
    }
}

/// How long a command waits at a gate.
pub(crate) const GATE_WAIT: Duration = Duration::from_secs(5);

/// A channel with subscribers on this server.
struct LiveChannel {
    /// Set if the channel keeps history, or has another home.
    channel: Option<Channel>,
    /// Watches a channel of another home.
    _attachment: Option<Attachment>,
    /// Number of subscribers, by partition.
    subscribers: Box<[u32]>,
    total: usize,
    /// The newest publication, if the channel allows deltas.
    last: Option<Arc<Outgoing>>,
    delta: bool,
    /// Recent answers for equal subscribe commands, each with its expiry, milliseconds.
    answers: Vec<(u64, AnswerKey, Arc<SubscribeAnswer>)>,
    announcements: Announcements,
}

/// The channels of this server with their subscribers, and what serves their clients.
pub struct Node {
    /// A reference to itself for tasks.
    me: Weak<Self>,
    /// The configuration, and what clients may do by it.
    pub(crate) rules: Rules,
    pub(crate) env: Env,
    /// The channels of this node and of others.
    pub(crate) homes: Channels,
    pub(crate) verifier: Verifier,
    /// The verifier of subscription tokens, if they have their own keys.
    pub(crate) subscription_verifier: Option<Verifier>,
    pub(crate) presence: Presence,
    pub(crate) proxies: Proxies,
    /// The gates of connections.
    pub(crate) connections: PortGates,
    pub(crate) connects: Gate,
    pub(crate) subscribes: Gate,
    pub(crate) reads: Gate,
    pub(crate) grpc_calls: Gate,
    pub(crate) api_requests: Gate,
    pub(crate) api_bytes: Budget,
    /// Memory of publications with idempotency keys in progress.
    pub(crate) keyed_bytes: Budget,
    /// Memory of long answers that clients have not received.
    pub(crate) answers: KeyedBudget,
    pub(crate) history_bytes_max: usize,
    pub(crate) inboxes: Vec<Arc<Inbox>>,
    channels: Striped<HashMap<Arc<str>, LiveChannel>>,
    /// The connected sessions, by user.
    pub(crate) users: Users,
    delivered: Notify,
    publish_rate: u32,
    pub(crate) publish_reserve: u8,
    /// Compression for clients that accept it.
    pub(crate) deflate: Option<Deflate>,
    publications: AtomicU64,
    attempts: AtomicU64,
    backlog_refused: AtomicU64,
    pub(crate) refusals: Refusals,
    pub(crate) throttles: LogThrottles,
    /// Slow commands of clients, and slow API requests.
    pub(crate) slow_commands: SlowRequests,
    pub(crate) slow_calls: SlowRequests,
    /// Channels with shared answers, and when to check them.
    answered: Mutex<VecDeque<(u64, Arc<str>)>>,
    /// The server's version, for clients.
    pub(crate) version: String,
    /// A random name of this start. Clients return it with commands in separate requests.
    pub(crate) start: String,
}

/// Throttles of log lines that clients can cause: one for each kind, so that none hides another.
pub(crate) struct LogThrottles {
    pub(crate) connection_token: Throttle,
    pub(crate) subscription_token: Throttle,
    pub(crate) origin: Throttle,
}

impl Default for LogThrottles {
    fn default() -> Self {
        let [connection_token, subscription_token, origin] = [(); 3].map(|()| Throttle::new(WARN_INTERVAL));
        Self { connection_token, subscription_token, origin }
    }
}

/// The gates of connections, one for each port.
pub(crate) struct PortGates {
    /// That of the port of the clients.
    pub(crate) clients: KeyedGate,
    /// That of the internal port, which clients cannot fill.
    pub(crate) internal: KeyedGate,
}

impl PortGates {
    fn new(config: &LiveConfig, limits: &Limits, env: &Env) -> Self {
        let limit = match config.client.connection_limit {
            0 => CONNECTIONS,
            limit => limit,
        };
        let key_limit = if limits.address_connections == 0 { limit } else { limits.address_connections };
        let (waiting_max, key_waiting_max) = (ARRIVING_MAX, ARRIVING_MAX / 4);
        let clients = KeyedGateOptions { limit, waiting_max, key_limit, key_waiting_max };
        // A back end keeps as many connections as it has requests in progress.
        let of_back_ends = limits.api_requests;
        let internal = KeyedGateOptions { limit: of_back_ends, waiting_max, key_limit: of_back_ends, key_waiting_max };
        Self {
            clients: KeyedGate::new("live_connections", clients, env.clone()),
            internal: KeyedGate::new("live_internal_connections", internal, env.clone()),
        }
    }
}

impl Node {
    /// Creates a node over the channels. [`crate::door::LiveDoor::start`] starts the workers.
    ///
    /// # Errors
    /// When a setting is invalid, or no file descriptor is left.
    pub fn new(
        config: LiveConfig,
        limits: &Limits,
        homes: Channels,
        env: Env,
        partitions: usize,
    ) -> Result<Arc<Self>, LiveConfigError> {
        let in_cluster = homes.node_name().is_some();
        let Built { verifier, subscription_verifier, proxies, channel_regexes } =
            Built::of(&config, in_cluster, (limits.proxy_requests, limits.waiting), &env)?;
        let inbox = |_| Inbox::new().map(Arc::new).map_err(|e| LiveConfigError(format!("no descriptor: {e}")));
        let inboxes = (0..partitions.max(1)).map(inbox).collect::<Result<_, _>>()?;
        let start = random_name(&env);
        let node = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            connections: PortGates::new(&config, limits, &env),
            connects: Gate::new("live_connects", limits.connects, limits.waiting, env.clone()),
            subscribes: Gate::new("live_subscribes", limits.subscribes, limits.waiting, env.clone()),
            reads: Gate::new("live_history_reads", limits.history_reads, limits.waiting, env.clone()),
            slow_commands: SlowRequests::new("live", limits.slow_request, env.clone()),
            slow_calls: SlowRequests::new("api", limits.slow_request, env.clone()),
            grpc_calls: Gate::new("live_grpc_calls", limits.grpc_calls, limits.waiting, env.clone()),
            api_requests: Gate::new("live_api_requests", limits.api_requests, limits.waiting, env.clone()),
            api_bytes: Budget::new("live_api_bytes", limits.api_bytes, env.clone()),
            keyed_bytes: Budget::new("live_keyed_publications", limits.api_bytes, env.clone()),
            answers: limits.answers(&env),
            history_bytes_max: limits.history_bytes_max,
            publish_rate: u32::try_from(limits.publish_rate).unwrap_or(u32::MAX),
            publish_reserve: u8::try_from(limits.publish_reserve).unwrap_or(100),
            deflate: Deflate::new(&config.websocket, limits.compression_bytes_max),
            users: Users::new(config.client.user_connection_limit),
            rules: Rules::new(config, channel_regexes),
            env,
            homes,
            verifier,
            subscription_verifier,
            presence: Presence::default(),
            proxies,
            inboxes,
            channels: Striped::default(),
            delivered: Notify::new(),
            publications: AtomicU64::new(0),
            attempts: AtomicU64::new(0),
            backlog_refused: AtomicU64::new(0),
            refusals: Refusals::default(),
            throttles: LogThrottles::default(),
            answered: Mutex::default(),
            version: concat!("steadfast ", env!("CARGO_PKG_VERSION")).to_owned(),
            start,
        });
        let sessions: Arc<dyn Sessions> = node.clone();
        node.homes.set_sessions(&sessions);
        node.homes.set_retention(node.rules.config.channel_retention());
        Ok(node)
    }

    /// The configuration, and what clients may do by it.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The connected sessions.
    pub fn users(&self) -> &Users {
        &self.users
    }

    /// The limits of workers. `stall` bounds how long reads may be below `client_bytes_s_min`.
    pub fn bounds(&self, stall: Duration, client_bytes_s_min: u64) -> Bounds {
        let (client, ms) = (&self.rules.config.client, |d: crate::config::GoDuration| d.0.as_millis() as u64);
        Bounds {
            message_bytes_max: self.rules.config.websocket.message_size_limit,
            queue_bytes_max: client.queue_max_size,
            stall_ms: stall.as_millis() as u64,
            client_bytes_s_min,
            ping_ms: ms(client.ping_interval),
            pong_ms: ms(client.pong_timeout),
            stale_ms: ms(client.stale_close_delay),
            expired_ms: ms(client.expired_close_delay),
            expired_sub_ms: ms(client.expired_sub_close_delay),
            publish_rate: self.publish_rate,
            channels_max: client.channel_limit,
            refreshes: self.proxies.of(ProxyEvent::Refresh, "").is_some(),
        }
    }

    pub(crate) fn to(&self, session: SessionId, message: SessionMessage) {
        self.inboxes[usize::from(session.partition)].send(WorkerEvent::To(session, message));
    }

    /// A new number for an attempt to subscribe.
    pub(crate) fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Relaxed) + 1
    }

    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.env.now().as_millis()).unwrap_or(u64::MAX)
    }

    /// The status of the live door.
    pub fn status(&self) -> LiveStatus {
        let sums = Sums::of(self.inboxes.iter().map(|inbox| &inbox.counters));
        let backlog = self.inboxes.iter().map(|inbox| inbox.backlog()).max().unwrap_or_default();
        LiveStatus {
            sessions: sums.sessions_by.iter().map(|by| by.sessions).sum(),
            users: self.users.counts().1,
            subscriptions: sums.subscriptions,
            channels: self.channels.parts().map(|part| part.lock().len()).sum(),
            publications: self.publications.load(Relaxed),
            deliveries: sums.deliveries,
            publications_skipped: sums.skipped,
            queued_sessions: sums.queued_sessions,
            queued_bytes: sums.queued_bytes,
            slow: sums.slow(),
            slow_requests: vec![self.slow_commands.status(), self.slow_calls.status()],
            refused: self.refusals.counts(),
            backlog: SimpleBound {
                name: "live_backlog",
                limit: publish::BACKLOG_BYTES_MAX as u64,
                used: backlog as u64,
                refused: self.backlog_refused.load(Relaxed),
            },
            gates: vec![
                self.connections.clients.status(),
                self.connections.internal.status(),
                self.connects.status(),
                self.subscribes.status(),
                self.reads.status(),
                self.grpc_calls.status(),
                self.api_requests.status(),
                self.api_bytes.status(),
                self.keyed_bytes.status(),
                self.answers.budget().status(),
            ],
            proxies: {
                let verifiers = std::iter::once(&self.verifier).chain(&self.subscription_verifier);
                self.proxies.status().into_iter().chain(verifiers.filter_map(Verifier::status)).collect()
            },
            sessions_by: sums.sessions_by,
            ended: sums.ended,
        }
    }
}

/// The error that a client gets for an error of a channel.
pub(crate) fn refusal(e: ChannelError) -> ClientError {
    match e {
        ChannelError::Internal => codes::INTERNAL,
        ChannelError::Busy => codes::TOO_MANY_REQUESTS,
        ChannelError::LimitExceeded => codes::LIMIT_EXCEEDED,
        ChannelError::TooLarge => codes::TOO_LARGE,
        ChannelError::DiskFull => codes::DISK_FULL,
        ChannelError::DiskNearlyFull => codes::DISK_NEARLY_FULL,
        ChannelError::DiskHangs => codes::DISK_HANGS,
        ChannelError::Stopping => codes::STOPPING,
        ChannelError::HomeUnreachable => codes::HOME_UNREACHABLE,
        ChannelError::OutcomeUnknown => codes::OUTCOME_UNKNOWN,
    }
}
