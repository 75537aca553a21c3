//! A node: the parts that serve the clients of one server.

use std::sync::Arc;
use std::time::Duration;

use steadfast_cluster::{Channels, Sessions};
use steadfast_flow::Env;

use crate::admission::{Admission, Limits};
use crate::back_ends::BackEnds;
use crate::channels::{Histories, LiveChannels, Members, Publisher};
use crate::config::{LiveConfig, LiveConfigError};
use crate::deflate::Deflate;
use crate::gateway::random_name;
use crate::metrics::LiveStatus;
use crate::partition::{Bounds, Partitions};
use crate::proxy::ProxyEvent;
use crate::rules::Rules;
use crate::users::Users;

/// The version of the server, for clients.
pub(crate) const VERSION: &str = concat!("steadfast ", env!("CARGO_PKG_VERSION"));

/// The parts that serve the clients of one server.
pub struct Node {
    /// The configuration, and what clients may do by it.
    pub(crate) rules: Arc<Rules>,
    pub(crate) env: Env,
    /// The channels of this node and of others.
    pub(crate) homes: Channels,
    pub(crate) back_ends: BackEnds,
    pub(crate) admission: Arc<Admission>,
    pub(crate) partitions: Arc<Partitions>,
    /// The connected sessions, by user.
    pub(crate) users: Users,
    pub(crate) channels: Arc<LiveChannels>,
    pub(crate) members: Members,
    pub(crate) histories: Histories,
    pub(crate) publisher: Publisher,
    /// Publications of a session per second; 0: no limit.
    publish_rate: u32,
    /// Share of each disk that publications of clients leave free, percent.
    pub(crate) publish_reserve: u8,
    /// Compression for clients that accept it.
    pub(crate) deflate: Option<Deflate>,
    /// A random name of this start. Clients return it with commands in separate requests.
    pub(crate) start: String,
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
        let back_ends = BackEnds::new(&config, in_cluster, (limits.proxy_requests, limits.waiting), &env)?;
        let partitions = Partitions::new(partitions, env.clone());
        let partitions = Arc::new(partitions.map_err(|e| LiveConfigError(format!("no descriptor: {e}")))?);
        let rules = Arc::new(Rules::new(config)?);
        let client = &rules.config.client;
        let admission = Arc::new(Admission::new(client.connection_limit, limits, &env));
        let channels = LiveChannels::new(homes.clone(), partitions.clone(), env.clone());
        let node = Arc::new(Self {
            back_ends,
            users: Users::new(client.user_connection_limit),
            members: Members::new(channels.clone(), admission.clone()),
            histories: Histories::new(channels.clone(), admission.clone()),
            publisher: Publisher::new(rules.clone(), channels.clone(), partitions.clone(), env.clone()),
            publish_rate: u32::try_from(limits.publish_rate).unwrap_or(u32::MAX),
            publish_reserve: u8::try_from(limits.publish_reserve).unwrap_or(100),
            deflate: Deflate::new(&rules.config.websocket, limits.compression_bytes_max),
            start: random_name(&env),
            rules,
            env,
            homes,
            admission,
            partitions,
            channels,
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

    /// Publishes to channels.
    pub fn publisher(&self) -> &Publisher {
        &self.publisher
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
            refreshes: self.back_ends.proxies.of(ProxyEvent::Refresh, "").is_some(),
        }
    }

    /// The status of the live door.
    pub fn status(&self) -> LiveStatus {
        let sums = self.partitions.sums();
        let admission = &self.admission;
        LiveStatus {
            sessions: sums.sessions_by.iter().map(|by| by.sessions).sum(),
            users: self.users.counts().1,
            subscriptions: sums.subscriptions,
            channels: self.channels.count(),
            publications: self.publisher.accepted(),
            deliveries: sums.deliveries,
            publications_skipped: sums.skipped,
            queued_sessions: sums.queued_sessions,
            queued_bytes: sums.queued_bytes,
            slow: sums.slow(),
            slow_requests: vec![admission.slow_commands.status(), admission.slow_calls.status()],
            refused: admission.refusals.counts(),
            backlog: self.partitions.backlog(),
            gates: admission.status(),
            proxies: self.back_ends.status(),
            sessions_by: sums.sessions_by,
            ended: sums.ended,
        }
    }
}
