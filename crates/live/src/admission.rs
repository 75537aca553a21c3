//! The bounds on what clients and back ends may have in progress, and what is refused above them.

use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::{
    Budget, Env, FlowStatus, Gate, KeyedBudget, KeyedGate, KeyedGateOptions, Permit, SlowRequests, Throttle,
};

use crate::WARN_INTERVAL;
use crate::metrics::Refusals;

/// Connection limit, if the configuration sets none.
pub const CONNECTIONS: usize = 1 << 20;

/// Connections that may wait for an unconnected session to close; others are closed at once.
const ARRIVING_MAX: usize = 64;

/// How long a command waits at a gate.
pub(crate) const GATE_WAIT: Duration = Duration::from_secs(5);

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
    fn new(connection_limit: usize, limits: &Limits, env: &Env) -> Self {
        let limit = match connection_limit {
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

/// The memory of long answers that clients have not received. An answer takes its bytes before it
/// is read, and releases them when the client has received it.
pub(crate) struct AnswerMemory {
    budget: KeyedBudget,
    /// Bytes of publications in an answer.
    answer_bytes_max: usize,
}

impl AnswerMemory {
    /// An address may take its share of the memory, and at least one answer.
    fn new(limits: &Limits, env: &Env) -> Self {
        let share = limits.answers_bytes / 100 * limits.answers_share_percent as u64;
        let budget = Budget::new("live_answers", limits.answers_bytes, env.clone());
        let answer_bytes_max = limits.history_bytes_max;
        Self { budget: KeyedBudget::new(budget, share.max(answer_bytes_max as u64)), answer_bytes_max }
    }

    /// Bytes of publications that one answer may have.
    pub(crate) fn answer_bytes_max(&self) -> usize {
        self.budget.budget().clamp(self.answer_bytes_max as u64) as usize
    }

    /// A permit for `bytes` bytes of an answer; `None` if the memory is exhausted.
    pub(crate) fn acquire(&self, bytes: usize) -> Option<Permit> {
        let budget = self.budget.budget();
        budget.try_acquire(budget.clamp(bytes as u64)).ok()
    }

    /// The same permit, for an answer to a client of `address`; `None` if the address has its share
    /// of the memory.
    pub(crate) fn assign(&self, permit: Permit, address: Option<&Arc<str>>) -> Option<Permit> {
        match address {
            Some(address) => self.budget.assign(permit, address).ok(),
            None => Some(permit),
        }
    }

    /// The status of the memory.
    pub(crate) fn status(&self) -> FlowStatus {
        self.budget.budget().status()
    }

    /// Whether the clients of `address` have not taken their share.
    pub(crate) fn has_room(&self, address: Option<&Arc<str>>) -> bool {
        address.is_none_or(|address| self.budget.has_room(address))
    }
}

/// The bounds of the server API.
pub(crate) struct ApiBounds {
    pub(crate) grpc_calls: Gate,
    /// Requests over HTTP, and the bytes of their bodies.
    pub(crate) requests: Gate,
    pub(crate) bytes: Budget,
    /// Memory of publications with idempotency keys in progress.
    pub(crate) keyed_bytes: Budget,
}

/// The gates and budgets of a node, and what it logs and counts about refused and slow requests.
pub(crate) struct Admission {
    /// The gates of connections.
    pub(crate) connections: PortGates,
    pub(crate) connects: Gate,
    pub(crate) subscribes: Gate,
    pub(crate) reads: Gate,
    pub(crate) api: ApiBounds,
    pub(crate) answers: AnswerMemory,
    pub(crate) refusals: Refusals,
    pub(crate) throttles: LogThrottles,
    /// Slow commands of clients, and slow API requests.
    pub(crate) slow_commands: SlowRequests,
    pub(crate) slow_calls: SlowRequests,
}

impl Admission {
    /// The bounds by the limits. `connection_limit` is that of Centrifugo's option; 0:
    /// [`CONNECTIONS`].
    pub(crate) fn new(connection_limit: usize, limits: &Limits, env: &Env) -> Self {
        let gate = |name, limit| Gate::new(name, limit, limits.waiting, env.clone());
        Self {
            connections: PortGates::new(connection_limit, limits, env),
            connects: gate("live_connects", limits.connects),
            subscribes: gate("live_subscribes", limits.subscribes),
            reads: gate("live_history_reads", limits.history_reads),
            api: ApiBounds {
                grpc_calls: gate("live_grpc_calls", limits.grpc_calls),
                requests: gate("live_api_requests", limits.api_requests),
                bytes: Budget::new("live_api_bytes", limits.api_bytes, env.clone()),
                keyed_bytes: Budget::new("live_keyed_publications", limits.api_bytes, env.clone()),
            },
            answers: AnswerMemory::new(limits, env),
            refusals: Refusals::default(),
            throttles: LogThrottles::default(),
            slow_commands: SlowRequests::new("live", limits.slow_request, env.clone()),
            slow_calls: SlowRequests::new("api", limits.slow_request, env.clone()),
        }
    }

    /// The status of the gates and budgets.
    pub(crate) fn status(&self) -> Vec<FlowStatus> {
        vec![
            self.connections.clients.status(),
            self.connections.internal.status(),
            self.connects.status(),
            self.subscribes.status(),
            self.reads.status(),
            self.api.grpc_calls.status(),
            self.api.requests.status(),
            self.api.bytes.status(),
            self.api.keyed_bytes.status(),
            self.answers.status(),
        ]
    }
}
