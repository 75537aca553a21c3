//! What the fills of one edge bucket share.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use steadfast_flow::{Budget, Env, Gate, HistogramCounter, KeyedGate, KeyedGateOptions, Refused};
use steadfast_log::Lsn;
use steadfast_store::{ObjectInfo, Store, StoreError};

use crate::counters::Counters;
use crate::error::EdgeError;
use crate::fresh::{Mark, Moment, Recent, Standing};
use crate::options::{EdgeBounds, EdgeBucket};
use crate::origin::{Description, Origin, OriginAnswer, OriginRequest};
use crate::sabotage::Sabotage;
use crate::space::Inventory;

/// Longest wait for a connection to an origin.
pub(crate) const CONNECTION_WAIT: Duration = Duration::from_secs(60);

/// The gates of one bucket, so that an origin that hangs does not stop other buckets. The
/// connections are divided by purpose, and none of them waits for one of another purpose.
pub(crate) struct BucketGates {
    pub(crate) fills: Gate,
    /// Requests that wait for the first bytes of their answer.
    pub(crate) waiting: Gate,
    /// Connections for segments that readers wait for.
    pub(crate) wanted: Gate,
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
        let gate = |name, limit| Gate::new(name, limit, bounds.waiting + bounds.fills, env.clone());
        let quarter = (bounds.origin_connections / 4).max(1);
        let passed = KeyedGateOptions {
            limit: bounds.passed,
            waiting_max: bounds.waiting,
            key_limit: bounds.passed.div_ceil(4),
            key_waiting_max: bounds.waiting.div_ceil(4),
        };
        Self {
            fills: Gate::new("edge_fills", bounds.fills, bounds.waiting, env.clone()),
            waiting: Gate::new("edge_waiting", bounds.waiting, 0, env.clone()),
            wanted: gate("edge_connections", bounds.origin_connections.saturating_sub(quarter).max(1)),
            ahead: gate("edge_connections_ahead", quarter),
            passed: KeyedGate::new("edge_connections_passed", passed, env.clone()),
        }
    }
}

/// One edge bucket.
pub(crate) struct Site {
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
    pub(crate) remembered: Recent<Memory>,
    /// The version that the origin found unchanged, and when.
    pub(crate) renewals: Recent<(Lsn, Mark)>,
}

/// What is remembered of an origin's answer about a key, until a time of [`Env::now`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum Memory {
    /// It has no such object.
    Missing(Duration),
    /// Its answer must not be stored.
    NotStorable(Duration),
    /// It failed, and the stored object was served all the same.
    Failing(Duration),
}

/// How long answers that must not be stored are asked for without a fill.
const NOT_STORABLE: Duration = Duration::from_secs(60);
/// How long an origin that failed is not asked again about a key that can be served stale.
const FAILING: Duration = Duration::from_secs(5);

/// The error for a bound that stayed exhausted.
pub(crate) fn busy(refused: &Refused) -> EdgeError {
    EdgeError::Store(StoreError::Busy(match refused {
        Refused::Busy { name, .. } | Refused::Crowded { name, .. } | Refused::TooLarge { name, .. } => name,
    }))
}

impl Site {
    /// Notes that a key is in use.
    pub(crate) fn touch(&self, key: &str) {
        self.inventory.last_use.touch(key, self.env.now().as_millis() as u64);
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment { run: self.run, now: self.env.now(), wall_ms: self.env.wall_ms() }
    }

    /// Whether the edge has this deliberate fault.
    pub(crate) fn has(&self, sabotage: Sabotage) -> bool {
        self.gates.sabotage == sabotage
    }

    /// How a stored object may be served, and its age in milliseconds.
    pub(crate) fn standing(&self, info: &ObjectInfo) -> (Standing, Option<u64>) {
        let Some(mark) = Mark::of(info) else { return (Standing::Own, None) };
        if !mark.is_of(&self.options) {
            // Another origin's object may have the same name and the same entity tag.
            return (Standing::Stale { if_error: false }, None);
        }
        let at = self.moment();
        let standing = mark.standing(at);
        if standing != Standing::Fresh
            && let Some((_, mark)) = self.renewals.get(&info.key).filter(|(version, _)| *version == info.version)
        {
            return (mark.standing(at), mark.age_ms(at));
        }
        (standing, mark.age_ms(at))
    }

    /// What is remembered of a key.
    pub(crate) fn remembered(&self, key: &str) -> Option<Memory> {
        let now = self.env.now();
        self.remembered.get(key).filter(|memory| match memory {
            Memory::Missing(until) | Memory::NotStorable(until) | Memory::Failing(until) => now < *until,
        })
    }

    /// Notes the answer that there is no such object. It counts from when the question was sent.
    pub(crate) fn remember_missing(&self, key: &str, sent: Moment) {
        if !self.options.negative.is_zero() {
            self.remembered.put(key, Memory::Missing(sent.now + self.options.negative));
        }
    }

    pub(crate) fn remember_not_storable(&self, key: &str) {
        self.remembered.put(key, Memory::NotStorable(self.env.now() + NOT_STORABLE));
    }

    pub(crate) fn remember_failing(&self, key: &str) {
        self.remembered.put(key, Memory::Failing(self.env.now() + FAILING));
    }

    /// Waits for a connection.
    pub(crate) async fn connect(&self, gate: &Gate) -> Result<steadfast_flow::Pass, EdgeError> {
        gate.enter(CONNECTION_WAIT).await.map_err(|refused| busy(&refused))
    }

    /// Sends a question to the origin. The caller holds a connection.
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
                tracing::warn!(%bucket, %key, "the origin did not answer in time");
                Err(EdgeError::Timeout)
            }
        }
    }

    /// The error for an origin that cannot be reached.
    pub(crate) fn unreachable(&self, key: &str, error: &str) -> EdgeError {
        self.counters.failed();
        tracing::warn!(bucket = %self.options.bucket, %key, %error, "the origin cannot be reached");
        EdgeError::Origin("The origin of this bucket cannot be reached.".into())
    }

    /// Reads the headers of an answer with status 200 or 206.
    pub(crate) fn describe(&self, key: &str, answer: &OriginAnswer) -> Result<Description, EdgeError> {
        Description::read(key, answer.status, &answer.headers, self.env.wall_ms())
            .map_err(|reason| self.wrong_answer(key, &reason))
    }

    /// The error for a status that is no answer to the question.
    pub(crate) fn unexpected(&self, key: &str, status: u16) -> EdgeError {
        if !matches!(status, 404 | 410) {
            self.counters.failed();
        }
        match status {
            404 | 410 => EdgeError::Store(StoreError::NoSuchKey),
            429 | 503 => EdgeError::Store(StoreError::Busy("the origin")),
            504 => EdgeError::Timeout,
            _ => {
                tracing::warn!(bucket = %self.options.bucket, %key, status, "the origin refused a request");
                EdgeError::Origin(format!("The origin of this bucket answered with status {status}."))
            }
        }
    }

    /// The error for an answer whose headers or body are wrong.
    pub(crate) fn wrong_answer(&self, key: &str, reason: &str) -> EdgeError {
        self.counters.failed();
        tracing::warn!(bucket = %self.options.bucket, %key, %reason, "an answer of the origin is not usable");
        EdgeError::Origin(format!("The answer of the origin is not usable: {reason}."))
    }
}
