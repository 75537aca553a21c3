//! What the fills of one edge bucket share.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use steadfast_flow::{
    Budget, Env, Gate, HistogramCounter, KeyedGate, KeyedGateOptions, Pass, Refused, has_fault, log_rarely, shortened,
};
use steadfast_log::Lsn;
use steadfast_store::{ObjectInfo, Store, StoreError};

use crate::counters::Counters;
use crate::error::EdgeError;
use crate::fresh::{FetchStamp, Freshness, Moment, Recent};
use crate::options::{EdgeBounds, EdgeBucket};
use crate::origin::{Description, Origin, OriginAnswer, OriginRequest};
use crate::sabotage::Sabotage;
use crate::space::Inventory;

/// Longest wait for a connection to an origin.
pub(crate) const CONNECTION_WAIT: Duration = Duration::from_secs(60);

/// The gates of one bucket, so that an origin that hangs does not stop other buckets. The
/// connections are divided by purpose, and none of them waits for one of another purpose. Each
/// client has a share of a [`KeyedGate`], so that its slow objects do not stop other clients.
pub(crate) struct BucketGates {
    /// Fills, by the client that began each.
    pub(crate) fills: KeyedGate,
    /// Requests that wait for the first bytes of their answer, by client.
    pub(crate) waiting: KeyedGate,
    /// Connections for segments that readers wait for, by the client that began the fill.
    pub(crate) wanted: KeyedGate,
    /// Connections for segments fetched ahead.
    pub(crate) ahead: Gate,
    /// Connections for answers passed through, by client.
    pub(crate) passed: KeyedGate,
}

/// What all edge buckets share.
#[derive(Clone)]
pub(crate) struct Gates {
    pub(crate) memory: Budget,
    /// Time from the first request to the stored object.
    pub(crate) fill_us: Arc<HistogramCounter>,
    pub(crate) sabotage: Sabotage,
}

impl Gates {
    pub(crate) fn new(bounds: &EdgeBounds, env: &Env) -> Self {
        Self {
            memory: Budget::new("edge_memory", bounds.memory_bytes, env.clone()),
            fill_us: Arc::default(),
            sabotage: bounds.sabotage,
        }
    }
}

impl BucketGates {
    pub(crate) fn new(bounds: &EdgeBounds, env: &Env) -> Self {
        let share = |all: usize| (all * bounds.client_share_percent.clamp(1, 100)).div_ceil(100);
        let gate = |name, limit, waiting_max| {
            let (key_limit, key_waiting_max) = (share(limit), share(waiting_max));
            KeyedGate::new(name, KeyedGateOptions { limit, waiting_max, key_limit, key_waiting_max }, env.clone())
        };
        let ahead = (bounds.origin_connections / 4).max(1);
        let wanted = bounds.origin_connections.saturating_sub(ahead).max(1);
        let segments_waiting_max = bounds.waiting + bounds.fills;
        Self {
            fills: gate("edge_fills", bounds.fills, bounds.waiting),
            waiting: gate("edge_waiting", bounds.waiting, 0),
            wanted: gate("edge_connections", wanted, segments_waiting_max),
            ahead: Gate::new("edge_connections_ahead", ahead, segments_waiting_max, env.clone()),
            passed: gate("edge_connections_passed", bounds.passed, bounds.waiting),
        }
    }
}

/// One edge bucket.
pub(crate) struct BucketState {
    pub(crate) options: EdgeBucket,
    pub(crate) store: Store,
    pub(crate) env: Env,
    pub(crate) origin: Arc<dyn Origin>,
    pub(crate) bucket_gates: BucketGates,
    pub(crate) gates: Gates,
    pub(crate) inventory: Inventory,
    pub(crate) counters: Arc<Counters>,
    /// A random number of this process.
    pub(crate) run: u64,
    /// What the origin said about objects that are not stored, or could not say.
    pub(crate) remembered: Recent<NegativeEntry>,
    /// The version that the origin found unchanged, and when.
    pub(crate) renewals: Recent<(Lsn, FetchStamp)>,
}

/// What is remembered of an origin's answer about a key, until a time of [`Env::now`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum NegativeEntry {
    /// It has no such object.
    Missing(Duration),
    /// Its answer must not be stored.
    NotStorable(Duration),
    /// It failed, and the stored object was served all the same.
    Failing(Duration),
    /// It failed, and there is no stored object.
    Refused(Duration),
}

/// How long answers that must not be stored are asked for without a fill.
const NOT_STORABLE: Duration = Duration::from_secs(60);
/// How long an origin that failed is not asked again about a key that can be served stale.
const FAILING: Duration = Duration::from_secs(5);
/// How long an origin that failed is not asked again about a key that is not stored.
const REFUSED: Duration = Duration::from_secs(1);

/// The error for a bound that stayed exhausted.
pub(crate) fn busy(refused: &Refused) -> EdgeError {
    EdgeError::Store(StoreError::Busy(match refused {
        Refused::Busy { name, .. } | Refused::Crowded { name, .. } | Refused::TooLarge { name, .. } => name,
    }))
}

impl BucketState {
    /// Notes that a key is in use.
    pub(crate) fn touch(&self, key: &str) {
        self.inventory.last_use.touch(key, self.env.now().as_millis() as u64);
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment { run: self.run, now: self.env.now(), wall_ms: self.env.wall_ms() }
    }

    /// Whether the edge has this deliberate fault.
    pub(crate) fn has(&self, sabotage: Sabotage) -> bool {
        has_fault(self.gates.sabotage, sabotage)
    }

    /// How a stored object may be served, and its age in milliseconds.
    pub(crate) fn freshness(&self, info: &ObjectInfo) -> (Freshness, Option<u64>) {
        let Some(stamp) = FetchStamp::of(info) else { return (Freshness::LocalWrite, None) };
        if !stamp.is_of(&self.options) {
            // Another origin's object may have the same name and the same entity tag.
            return (Freshness::Stale { if_error: false }, None);
        }
        let at = self.moment();
        let freshness = stamp.freshness(at);
        if freshness != Freshness::Fresh
            && let Some((_, stamp)) = self.renewals.get(&info.key).filter(|(version, _)| *version == info.version)
        {
            return (stamp.freshness(at), stamp.age_ms(at));
        }
        (freshness, stamp.age_ms(at))
    }

    /// What is remembered of a key.
    pub(crate) fn remembered(&self, key: &str) -> Option<NegativeEntry> {
        let now = self.env.now();
        self.remembered.get(key).filter(|entry| match entry {
            NegativeEntry::Missing(until)
            | NegativeEntry::NotStorable(until)
            | NegativeEntry::Failing(until)
            | NegativeEntry::Refused(until) => now < *until,
        })
    }

    /// Notes the answer that there is no such object. It counts from when the request was sent.
    pub(crate) fn remember_missing(&self, key: &str, sent: Moment) {
        if !self.options.negative.is_zero() {
            self.remembered.put(key, NegativeEntry::Missing(sent.now + self.options.negative));
        }
    }

    pub(crate) fn remember_not_storable(&self, key: &str) {
        self.remembered.put(key, NegativeEntry::NotStorable(self.env.now() + NOT_STORABLE));
    }

    pub(crate) fn remember_failing(&self, key: &str) {
        self.remembered.put(key, NegativeEntry::Failing(self.env.now() + FAILING));
    }

    pub(crate) fn remember_refused(&self, key: &str) {
        self.remembered.put(key, NegativeEntry::Refused(self.env.now() + REFUSED));
    }

    /// Waits for a connection for a segment that readers of a client's fill wait for.
    pub(crate) async fn connect(&self, client: &str) -> Result<Pass, EdgeError> {
        self.bucket_gates.wanted.enter(client, CONNECTION_WAIT).await.map_err(|refused| busy(&refused))
    }

    /// Waits for a connection to fetch ahead.
    pub(crate) async fn connect_ahead(&self) -> Result<Pass, EdgeError> {
        self.bucket_gates.ahead.enter(CONNECTION_WAIT).await.map_err(|refused| busy(&refused))
    }

    /// Sends a request to the origin. The caller holds a connection.
    pub(crate) async fn ask(&self, request: OriginRequest) -> Result<OriginAnswer, EdgeError> {
        let (bucket, key) = (&self.options.bucket, request.key.clone());
        let more = if self.has(Sabotage::NoTimeout) { Duration::from_secs(1_000_000) } else { Duration::ZERO };
        self.counters.requested();
        match self.env.timeout(self.options.timeout + more, self.origin.send(request)).await {
            Some(Ok(OriginAnswer { status, headers, body })) => {
                let counters = self.counters.clone();
                let body = body.inspect_ok(move |piece| counters.received(piece.len())).boxed();
                Ok(OriginAnswer { status, headers, body })
            }
            Some(Err(error)) => Err(self.unreachable(&key, &error)),
            None => {
                self.counters.failed();
                log_rarely!(warn, %bucket, key = ?shortened(&key), "the origin did not answer in time");
                Err(EdgeError::Timeout)
            }
        }
    }

    /// The error for an origin that cannot be reached.
    pub(crate) fn unreachable(&self, key: &str, error: &str) -> EdgeError {
        self.counters.failed();
        let (bucket, key) = (&self.options.bucket, shortened(key));
        log_rarely!(warn, %bucket, ?key, %error, "the origin cannot be reached");
        EdgeError::Origin("The origin of this bucket cannot be reached.".into())
    }

    /// Reads the headers of an answer with status 200 or 206.
    pub(crate) fn describe(&self, key: &str, answer: &OriginAnswer) -> Result<Description, EdgeError> {
        Description::read(key, answer.status, &answer.headers, self.env.wall_ms())
            .map_err(|reason| self.wrong_answer(key, &reason))
    }

    /// The error for a status that is no answer to the request.
    pub(crate) fn unexpected(&self, key: &str, status: u16) -> EdgeError {
        if !matches!(status, 404 | 410) {
            self.counters.failed();
        }
        match status {
            404 | 410 => EdgeError::Store(StoreError::NoSuchKey),
            429 | 503 => EdgeError::Store(StoreError::Busy("the origin")),
            504 => EdgeError::Timeout,
            _ => {
                let (bucket, key) = (&self.options.bucket, shortened(key));
                log_rarely!(warn, %bucket, ?key, status, "the origin refused a request");
                EdgeError::Origin(format!("The origin of this bucket answered with status {status}."))
            }
        }
    }

    /// The error for an answer whose headers or body are wrong.
    pub(crate) fn wrong_answer(&self, key: &str, reason: &str) -> EdgeError {
        self.counters.failed();
        let (bucket, key) = (&self.options.bucket, shortened(key));
        log_rarely!(warn, %bucket, ?key, %reason, "an answer of the origin is not usable");
        EdgeError::Origin(format!("The answer of the origin is not usable: {reason}."))
    }
}
