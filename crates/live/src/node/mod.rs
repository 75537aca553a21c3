//! The channels of this server: who is subscribed where.

mod announce;
mod answers;
mod history;
mod publish;

pub use publish::{Accepted, Submission};

use announce::Announcements;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use regex::Regex;
use steadfast_flow::{Budget, Env, Gate, KeyedGate, KeyedGateOptions, SlowRequests, Throttle};
use steadfast_log::LogError;
use steadfast_store::{ChannelHandle, ChannelSink, Store, StoreError, is_own_channel};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::answer::{Asked, SubscribeAnswer};
use crate::auth::Verifier;
use crate::auth::config::{SUBSCRIPTION_TOKEN, TOKEN};
use crate::config::{LiveConfig, LiveConfigError, NamespaceOptions};
use crate::deflate::Deflate;
use crate::gateway::random_name;
use crate::metrics::{LiveStatus, Refusals, SimpleBound, Sums};
use crate::outgoing::{Outgoing, is_json};
use crate::partition::{Bounds, Event, Inbox, SessionId, ToSession, Who};
use crate::presence::Presence;
use crate::protocol::codes::{self, ClientError};
use crate::proxy::{Event as ProxyEvent, Proxies};

pub(crate) use history::{AnswerPermit, bytes_of, held};

const PARTS: usize = 64;

/// Connections, where the configuration does not say.
pub const CONNECTIONS: usize = 1 << 20;

/// Connections that wait for one that has no session to make room for them; others are closed at once.
const ARRIVING_MAX: usize = 64;

/// What the door keeps to beyond Centrifugo's options. Who comes above a bound on how many wait is told at once to come again.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connects that are worked on at a time.
    pub connects: usize,
    /// Subscribes that are worked on at a time.
    pub subscribes: usize,
    /// Reads of histories, recoveries among them, at a time.
    pub history_reads: usize,
    /// How many may wait for each of these.
    pub waiting: usize,
    /// Connections from one address; 0 for any number.
    pub address_connections: usize,
    /// Publications of a session in a second; 0 for any number.
    pub publish_rate: usize,
    /// The share of each disk that publications of clients leave free for all else, in percent.
    pub publish_reserve: usize,
    /// Requests of a proxy to its back end at a time.
    pub proxy_requests: usize,
    /// Calls of the API over gRPC at a time.
    pub grpc_calls: usize,
    /// Requests to the API over HTTP at a time,
    pub api_requests: usize,
    /// and bytes that their bodies may have together.
    pub api_bytes: u64,
    /// Bytes of memory for all long answers that have not been written to their clients.
    pub answers_bytes: u64,
    /// Bytes of publications in an answer to a history or a recovery.
    pub history_bytes_max: usize,
    /// Bytes of a message that is compressed, at most.
    pub compression_bytes_max: usize,
    /// Commands and requests to the API that take so long are logged; zero: none.
    pub slow_request: Duration,
}

/// How long they wait.
pub(crate) const GATE_WAIT: Duration = Duration::from_secs(5);

/// A channel that has subscribers here.
struct LiveChannel {
    /// Of one that keeps history.
    handle: Option<ChannelHandle>,
    /// By partition.
    subscribers: Box<[u32]>,
    total: usize,
    /// The newest publication, where differences may be wanted.
    last: Option<Arc<Outgoing>>,
    delta: bool,
    /// Answers to those who subscribed last, and until when they hold, milliseconds.
    answers: Vec<(u64, Asked, Arc<SubscribeAnswer>)>,
    announcements: Announcements,
}

/// A user's sessions.
type Sessions = HashMap<Uuid, (SessionId, Arc<Who>)>;

/// See the module.
pub struct Node {
    /// Itself, for tasks.
    me: Weak<Self>,
    pub(crate) config: LiveConfig,
    pub(crate) env: Env,
    pub(crate) store: Store,
    pub(crate) verifier: Verifier,
    /// That of subscriptions, if it is another one.
    pub(crate) subscription_verifier: Option<Verifier>,
    pub(crate) presence: Presence,
    pub(crate) proxies: Proxies,
    /// Places for connections.
    pub(crate) connections: KeyedGate,
    pub(crate) connects: Gate,
    pub(crate) subscribes: Gate,
    pub(crate) reads: Gate,
    pub(crate) grpc_calls: Gate,
    pub(crate) api_requests: Gate,
    pub(crate) api_bytes: Budget,
    /// What publications with idempotency keys take that are under way.
    pub(crate) keyed_bytes: Budget,
    /// What long answers take until they have been written to their clients.
    pub(crate) answers: Budget,
    pub(crate) history_bytes_max: usize,
    pub(crate) inboxes: Vec<Arc<Inbox>>,
    channels: Vec<Mutex<HashMap<Arc<str>, LiveChannel>>>,
    users: Vec<Mutex<HashMap<String, Sessions>>>,
    hasher: RandomState,
    /// What names of channels must match, by how that is written in the configuration.
    channel_regexes: BTreeMap<String, Regex>,
    delivered: Notify,
    publish_rate: u32,
    pub(crate) publish_reserve: u8,
    /// How messages are compressed for clients that take them so.
    pub(crate) deflate: Option<Deflate>,
    publications: AtomicU64,
    attempts: AtomicU64,
    backlog_refused: AtomicU64,
    pub(crate) refusals: Refusals,
    pub(crate) told: Told,
    /// Commands of clients, and requests to the API, that were slow.
    pub(crate) slow_commands: SlowRequests,
    pub(crate) slow_calls: SlowRequests,
    /// Channels that keep answers, and when to look at them.
    answered: Mutex<VecDeque<(u64, Arc<str>)>>,
    /// The server's version, as clients are told.
    pub(crate) version: String,
    /// Which start of the server this is: clients that send commands in requests of their own name it.
    pub(crate) start: String,
}

/// From one line of the log that anybody may cause to the next.
pub(crate) const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Such lines: one for each kind, so that none hides another.
pub(crate) struct Told {
    pub(crate) connection_token: Throttle,
    pub(crate) subscription_token: Throttle,
    pub(crate) origin: Throttle,
}

impl Default for Told {
    fn default() -> Self {
        let [connection_token, subscription_token, origin] = [(); 3].map(|()| Throttle::new(TOLD_EVERY));
        Self { connection_token, subscription_token, origin }
    }
}

fn parts<T: Default>() -> Vec<Mutex<T>> {
    (0..PARTS).map(|_| Mutex::default()).collect()
}

impl Node {
    /// Over a store, with so many partitions. The workers are started by [`crate::door::LiveDoor::start`].
    ///
    /// # Errors
    /// A setting that makes no sense, or no descriptors.
    pub fn new(
        config: LiveConfig,
        limits: &Limits,
        store: Store,
        env: Env,
        partitions: usize,
    ) -> Result<Arc<Self>, LiveConfigError> {
        config.check()?;
        let verifier = Verifier::new(TOKEN, &config.client.token, limits.waiting, &env)?;
        let own = config.client.subscription_token.in_force();
        let own = own.map(|token| Verifier::new(SUBSCRIPTION_TOKEN, token, limits.waiting, &env));
        let subscription_verifier = own.transpose()?;
        let proxies = Proxies::new(&config, limits.proxy_requests, limits.waiting, &env)?;
        let inbox = |_| Inbox::new().map(Arc::new).map_err(|e| LiveConfigError(format!("no descriptor: {e}")));
        let inboxes = (0..partitions.max(1)).map(inbox).collect::<Result<_, _>>()?;
        let connections = match config.client.connection_limit {
            0 => CONNECTIONS,
            limit => limit,
        };
        let connections = KeyedGateOptions {
            limit: connections,
            waiting_max: ARRIVING_MAX,
            key_limit: if limits.address_connections == 0 { connections } else { limits.address_connections },
            key_waiting_max: ARRIVING_MAX / 4,
        };
        let channel_regexes = config.channel_regexes()?;
        let start = random_name(&env);
        let node = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            connections: KeyedGate::new("live_connections", connections, env.clone()),
            connects: Gate::new("live_connects", limits.connects, limits.waiting, env.clone()),
            subscribes: Gate::new("live_subscribes", limits.subscribes, limits.waiting, env.clone()),
            reads: Gate::new("live_history_reads", limits.history_reads, limits.waiting, env.clone()),
            slow_commands: SlowRequests::new("live", limits.slow_request, env.clone()),
            slow_calls: SlowRequests::new("api", limits.slow_request, env.clone()),
            grpc_calls: Gate::new("live_grpc_calls", limits.grpc_calls, limits.waiting, env.clone()),
            api_requests: Gate::new("live_api_requests", limits.api_requests, limits.waiting, env.clone()),
            api_bytes: Budget::new("live_api_bytes", limits.api_bytes, env.clone()),
            keyed_bytes: Budget::new("live_keyed_publications", limits.api_bytes, env.clone()),
            answers: Budget::new("live_answers", limits.answers_bytes, env.clone()),
            history_bytes_max: limits.history_bytes_max,
            publish_rate: u32::try_from(limits.publish_rate).unwrap_or(u32::MAX),
            publish_reserve: u8::try_from(limits.publish_reserve).unwrap_or(100),
            deflate: Deflate::new(&config.websocket, limits.compression_bytes_max),
            channel_regexes,
            config,
            env,
            store,
            verifier,
            subscription_verifier,
            presence: Presence::default(),
            proxies,
            inboxes,
            channels: parts(),
            users: parts(),
            hasher: RandomState::new(),
            delivered: Notify::new(),
            publications: AtomicU64::new(0),
            attempts: AtomicU64::new(0),
            backlog_refused: AtomicU64::new(0),
            refusals: Refusals::default(),
            told: Told::default(),
            answered: Mutex::default(),
            version: concat!("steadfast ", env!("CARGO_PKG_VERSION")).to_owned(),
            start,
        });
        let sink: Arc<dyn ChannelSink> = node.clone();
        node.store.set_channel_sink(&sink);
        Ok(node)
    }

    /// Its settings.
    pub fn config(&self) -> &LiveConfig {
        &self.config
    }

    /// What workers keep to, with how long a session may be how far behind with taking what waits for it.
    pub fn bounds(&self, stall: Duration, client_bytes_s_min: u64) -> Bounds {
        let (client, ms) = (&self.config.client, |d: crate::config::GoDuration| d.0.as_millis() as u64);
        Bounds {
            message_bytes_max: self.config.websocket.message_size_limit,
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

    fn part<'a, T>(&self, parts: &'a [Mutex<T>], name: &str) -> &'a Mutex<T> {
        &parts[self.hasher.hash_one(name) as usize % PARTS]
    }

    /// The namespace of a channel.
    ///
    /// # Errors
    /// A name that is none, or of a namespace that there is not.
    pub fn namespace(&self, channel: &str) -> Result<&NamespaceOptions, ClientError> {
        if channel.is_empty() || channel.len() > self.config.channel.max_length || is_own_channel(channel) {
            return Err(codes::BAD_REQUEST);
        }
        self.config.namespace_of(channel).ok_or(codes::UNKNOWN_CHANNEL)
    }

    /// The same of a channel that a client names: not with any name.
    pub(crate) fn named(&self, channel: &str) -> Result<&NamespaceOptions, ClientError> {
        let options = self.namespace(channel)?;
        let fits = match self.channel_regexes.get(&options.channel_regex) {
            Some(regex) => regex.is_match(self.config.split(channel).1),
            None => channel.is_ascii(),
        };
        if fits { Ok(options) } else { Err(ClientError::bad_request("the channel may not have this name")) }
    }

    /// Whether something may be published where these options hold: Centrifugo's `publication_data_format`.
    pub(crate) fn check_data(&self, options: &NamespaceOptions, data: &[u8]) -> Result<(), ClientError> {
        let object = || data.trim_ascii_start().starts_with(b"{");
        let (fits, wanted) = match self.config.data_format(options) {
            "json" => (!data.is_empty() && is_json(data), "the data must be JSON"),
            "json_object" => (object() && is_json(data), "the data must be an object in JSON"),
            "binary" => (true, ""),
            _ => (!data.is_empty(), "there is no data"),
        };
        if fits { Ok(()) } else { Err(ClientError::bad_request(wanted)) }
    }

    /// The channel in the store.
    pub(crate) fn handle(&self, channel: &str) -> Result<ChannelHandle, ClientError> {
        let part = self.part(&self.channels, channel).lock();
        if let Some(handle) = part.get(channel).and_then(|live| live.handle.clone()) {
            return Ok(handle);
        }
        drop(part);
        self.store.channel(channel).map_err(|e| refusal(&e))
    }

    pub(crate) fn to(&self, session: SessionId, what: ToSession) {
        self.inboxes[usize::from(session.partition)].send(Event::To(session, what));
    }

    /// From now on the partition is told of what is published in the channel.
    pub(crate) fn join(
        &self,
        session: SessionId,
        channel: &str,
        options: &NamespaceOptions,
    ) -> Result<Arc<str>, ClientError> {
        let mut part = self.part(&self.channels, channel).lock();
        if !part.contains_key(channel) {
            let handle = match options.has_history() {
                true => Some(self.store.channel(channel).map_err(|e| refusal(&e))?),
                false => None,
            };
            let live = LiveChannel {
                handle,
                subscribers: vec![0; self.inboxes.len()].into(),
                total: 0,
                last: None,
                delta: !options.allowed_delta_types.is_empty(),
                answers: Vec::new(),
                announcements: Announcements::default(),
            };
            part.insert(channel.into(), live);
        }
        let name = part.get_key_value(channel).map(|(name, _)| name.clone()).unwrap_or_else(|| channel.into());
        if let Some(live) = part.get_mut(channel) {
            live.subscribers[usize::from(session.partition)] += 1;
            live.total += 1;
        }
        Ok(name)
    }

    /// Whether somebody is subscribed to the channel, so that it can be used without looking into the index.
    pub(crate) fn is_in_use(&self, channel: &str) -> bool {
        self.part(&self.channels, channel).lock().contains_key(channel)
    }

    /// A number for an attempt to subscribe.
    pub(crate) fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Relaxed) + 1
    }

    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.env.now().as_millis()).unwrap_or(u64::MAX)
    }

    /// The opposite of [`Node::join`].
    pub(crate) fn leave(&self, session: SessionId, channel: &str) {
        let mut part = self.part(&self.channels, channel).lock();
        if let Some(live) = part.get_mut(channel) {
            live.subscribers[usize::from(session.partition)] -= 1;
            live.total -= 1;
            if live.total == 0 {
                part.remove(channel);
            }
        }
    }

    /// Channels that have subscribers, and how many, for which `wanted`.
    pub fn channels(&self, wanted: impl Fn(&str) -> bool) -> Vec<(Arc<str>, usize)> {
        let mut found = Vec::new();
        for part in &self.channels {
            let part = part.lock();
            found.extend(part.iter().filter(|(name, _)| wanted(name)).map(|(name, live)| (name.clone(), live.total)));
        }
        found
    }

    /// Sessions and users that are connected.
    pub fn counts(&self) -> (usize, usize) {
        let (mut sessions, mut users) = (0, 0);
        for part in &self.users {
            let part = part.lock();
            users += part.len();
            sessions += part.values().map(HashMap::len).sum::<usize>();
        }
        (sessions, users)
    }

    /// How the door is.
    pub fn status(&self) -> LiveStatus {
        let sums = Sums::of(self.inboxes.iter().map(|inbox| &inbox.counters));
        let backlog = self.inboxes.iter().map(|inbox| inbox.backlog()).max().unwrap_or_default();
        LiveStatus {
            sessions: sums.sessions_by.iter().map(|by| by.sessions).sum(),
            users: self.counts().1,
            subscriptions: sums.subscriptions,
            channels: self.channels.iter().map(|part| part.lock().len()).sum(),
            publications: self.publications.load(Relaxed),
            deliveries: sums.deliveries,
            publications_left_out: sums.left_out,
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
                self.connections.status(),
                self.connects.status(),
                self.subscribes.status(),
                self.reads.status(),
                self.grpc_calls.status(),
                self.api_requests.status(),
                self.api_bytes.status(),
                self.keyed_bytes.status(),
                self.answers.status(),
            ],
            proxies: {
                let verifiers = std::iter::once(&self.verifier).chain(&self.subscription_verifier);
                self.proxies.status().into_iter().chain(verifiers.filter_map(Verifier::status)).collect()
            },
            sessions_by: sums.sessions_by,
            ended: sums.ended,
        }
    }

    /// Counts a session in; `false` when its user has as many as there may be.
    pub(crate) fn enter(&self, session: SessionId, who: &Arc<Who>) -> bool {
        let mut part = self.part(&self.users, &who.user).lock();
        let sessions = part.entry(who.user.clone()).or_default();
        let limit = self.config.client.user_connection_limit;
        if limit > 0 && !who.user.is_empty() && sessions.len() >= limit {
            return false;
        }
        sessions.insert(who.client, (session, who.clone()));
        true
    }

    /// The opposite of [`Node::enter`].
    pub(crate) fn exit(&self, session: SessionId, who: &Who) {
        let mut part = self.part(&self.users, &who.user).lock();
        if let Some(sessions) = part.get_mut(&who.user) {
            if sessions.get(&who.client).is_some_and(|(found, _)| *found == session) {
                sessions.remove(&who.client);
            }
            if sessions.is_empty() {
                part.remove(&who.user);
            }
        }
    }

    /// A user's sessions; only that of `client`, if that is given.
    pub fn sessions_of(&self, user: &str, client: Option<Uuid>) -> Vec<(SessionId, Arc<Who>)> {
        let part = self.part(&self.users, user).lock();
        let sessions = part.get(user).into_iter().flatten();
        sessions.filter(|(id, _)| client.is_none_or(|client| client == **id)).map(|(_, found)| found.clone()).collect()
    }
}

/// What a client is told when the store says no.
pub(crate) fn refusal(e: &StoreError) -> ClientError {
    match e {
        StoreError::Busy(_) => codes::TOO_MANY_REQUESTS,
        StoreError::TooLarge(_) => codes::LIMIT_EXCEEDED,
        StoreError::Log(LogError::TooLarge(_)) => codes::TOO_LARGE,
        StoreError::Log(LogError::Full) => {
            tracing::debug!(error = %e, "a publication was refused");
            codes::DISK_FULL
        }
        StoreError::Log(LogError::Closed) => codes::STOPPING,
        StoreError::Hangs => codes::DISK_HANGS,
        e => {
            tracing::warn!(error = %e, "a channel cannot be used");
            codes::INTERNAL
        }
    }
}

/// An epoch as clients see it.
pub(crate) fn epoch_text(epoch: u32) -> String {
    format!("{epoch:08x}")
}
