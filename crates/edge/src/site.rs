//! What the fills of one edge bucket share.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::{Budget, Env, Gate, Refused};
use steadfast_store::{Store, StoreError};

use crate::error::EdgeError;
use crate::options::{EdgeBounds, EdgeBucket};
use crate::origin::{Origin, OriginAnswer, OriginRequest};

/// Longest wait for a connection to an origin.
const CONNECTION_WAIT: Duration = Duration::from_secs(60);

/// The connections to an origin, by purpose. None of them waits for one of another purpose.
pub(crate) struct Connections {
    /// Segments that readers wait for.
    pub(crate) wanted: Gate,
    /// Segments fetched ahead.
    pub(crate) ahead: Gate,
    /// Answers passed through.
    pub(crate) passed: Gate,
}

/// The bounds of all edge buckets together.
#[derive(Clone)]
pub(crate) struct Gates {
    pub(crate) fills: Gate,
    pub(crate) waiting: Gate,
    pub(crate) memory: Budget,
    /// Requests that may wait for a fill or a connection.
    waiting_max: usize,
}

impl Gates {
    pub(crate) fn new(bounds: &EdgeBounds, env: &Env) -> Self {
        Self {
            fills: Gate::new("edge fills", bounds.fills, bounds.waiting, env.clone()),
            waiting: Gate::new("edge requests", bounds.waiting, 0, env.clone()),
            memory: Budget::new("edge memory", bounds.memory_bytes, env.clone()),
            waiting_max: bounds.waiting,
        }
    }

    pub(crate) fn connections(&self, bounds: &EdgeBounds, env: &Env) -> Connections {
        let gate = |name, limit| Gate::new(name, limit, self.waiting_max + bounds.fills, env.clone());
        let quarter = (bounds.origin_connections / 4).max(1);
        Connections {
            wanted: gate("edge connections", bounds.origin_connections.saturating_sub(2 * quarter).max(1)),
            ahead: gate("edge connections ahead", quarter),
            passed: gate("edge connections passed through", quarter),
        }
    }
}

/// One edge bucket.
pub(crate) struct Site {
    pub(crate) options: EdgeBucket,
    pub(crate) store: Store,
    pub(crate) env: Env,
    pub(crate) origin: Arc<dyn Origin>,
    pub(crate) connections: Connections,
    pub(crate) gates: Gates,
    /// The uploads of running fills.
    pub(crate) uploads: Mutex<HashSet<String>>,
}

/// The error for a bound that stayed exhausted.
pub(crate) fn busy(refused: &Refused) -> EdgeError {
    EdgeError::Store(StoreError::Busy(match refused {
        Refused::Busy { name, .. } | Refused::Crowded { name, .. } | Refused::TooLarge { name, .. } => name,
    }))
}

impl Site {
    /// Waits for a connection.
    pub(crate) async fn connect(&self, gate: &Gate) -> Result<steadfast_flow::Pass, EdgeError> {
        gate.enter(CONNECTION_WAIT).await.map_err(|refused| busy(&refused))
    }

    /// Sends a question to the origin. The caller holds a connection.
    pub(crate) async fn ask(&self, request: OriginRequest) -> Result<OriginAnswer, EdgeError> {
        let (bucket, key) = (&self.options.bucket, request.key.clone());
        match self.env.timeout(self.options.timeout, self.origin.send(request)).await {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => {
                tracing::warn!(%bucket, %key, %error, "the origin cannot be reached");
                Err(EdgeError::Origin("The origin of this bucket cannot be reached.".into()))
            }
            None => {
                tracing::warn!(%bucket, %key, "the origin did not answer in time");
                Err(EdgeError::Timeout)
            }
        }
    }

    /// The error for a status that is no answer to the question.
    pub(crate) fn unexpected(&self, key: &str, status: u16) -> EdgeError {
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
        tracing::warn!(bucket = %self.options.bucket, %key, %reason, "an answer of the origin is not usable");
        EdgeError::Origin(format!("The answer of the origin is not usable: {reason}."))
    }
}
