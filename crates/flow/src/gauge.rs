//! Gauges of a bound: units used, waiters and refusals.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;

/// Why a bound refused a request. A refused request takes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The bound stayed exhausted for as long as the caller would wait.
    #[error("{name} was full for {waited:?}")]
    Busy {
        /// Name of the bound.
        name: &'static str,
        /// Time that the caller waited.
        waited: Duration,
    },
    /// The queue is full.
    #[error("the queue for {name} is full")]
    Crowded {
        /// Name of the bound.
        name: &'static str,
    },
    /// The request exceeds the whole bound, so waiting would never help.
    #[error("{wanted} exceeds the limit of {name}, {limit}")]
    TooLarge {
        /// Name of the bound.
        name: &'static str,
        /// Units requested.
        wanted: u64,
        /// Largest possible request in units.
        limit: u64,
    },
}

impl Refused {
    /// Name of the bound that refused.
    pub fn name(&self) -> &'static str {
        match self {
            Refused::Busy { name, .. } | Refused::Crowded { name } | Refused::TooLarge { name, .. } => name,
        }
    }

    /// Time that the caller waited.
    pub fn waited(&self) -> Duration {
        match self {
            Refused::Busy { waited, .. } => *waited,
            Refused::Crowded { .. } | Refused::TooLarge { .. } => Duration::ZERO,
        }
    }
}

/// A snapshot of a bound, in its own unit (bytes of a budget, passes of a gate). The fields are
/// read one after another, so under load they belong to slightly different moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FlowStatus {
    /// Name of the bound, for metrics.
    pub name: &'static str,
    /// The bound.
    pub limit: u64,
    /// Units taken now. Never above `limit`.
    pub used: u64,
    /// Largest number of units taken at one time.
    pub peak: u64,
    /// Callers that wait now.
    pub waiting: u64,
    /// Requests granted.
    pub granted: u64,
    /// Requests refused, at once or after waiting.
    pub refused: u64,
    /// Time spent waiting by all callers together, in microseconds.
    pub waited_us: u64,
}

/// The counters behind a [`FlowStatus`].
#[derive(Debug)]
pub(crate) struct Gauge {
    pub(crate) name: &'static str,
    used: AtomicU64,
    peak: AtomicU64,
    waiting: AtomicU64,
    granted: AtomicU64,
    refused: AtomicU64,
    waited_us: AtomicU64,
}

impl Gauge {
    pub(crate) fn new(name: &'static str) -> Self {
        let zero = AtomicU64::default;
        Self { name, used: zero(), peak: zero(), waiting: zero(), granted: zero(), refused: zero(), waited_us: zero() }
    }

    pub(crate) fn status(&self, limit: u64) -> FlowStatus {
        FlowStatus {
            name: self.name,
            limit,
            used: self.used.load(Relaxed),
            peak: self.peak.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            granted: self.granted.load(Relaxed),
            refused: self.refused.load(Relaxed),
            waited_us: self.waited_us.load(Relaxed),
        }
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// The caller holds the semaphore's units, so `used` never exceeds the bound.
    pub(crate) fn take(&self, units: u64) {
        let used = self.used.fetch_add(units, Relaxed) + units;
        self.peak.fetch_max(used, Relaxed);
        self.granted.fetch_add(1, Relaxed);
    }

    /// The caller releases the semaphore's units afterwards.
    pub(crate) fn release(&self, units: u64) {
        self.used.fetch_sub(units, Relaxed);
    }

    pub(crate) fn busy(&self, waited: Duration) -> Refused {
        self.refused.fetch_add(1, Relaxed);
        Refused::Busy { name: self.name, waited }
    }

    pub(crate) fn crowded(&self) -> Refused {
        self.refused.fetch_add(1, Relaxed);
        Refused::Crowded { name: self.name }
    }

    pub(crate) fn too_large(&self, wanted: u64, limit: u64) -> Refused {
        self.refused.fetch_add(1, Relaxed);
        Refused::TooLarge { name: self.name, wanted, limit }
    }

    /// Counts a waiter until the guard is dropped, also when its request is cancelled.
    pub(crate) fn wait<'a>(&'a self, env: &'a crate::Env) -> Waiting<'a> {
        self.waiting.fetch_add(1, Relaxed);
        Waiting { gauge: self, env, since: env.now() }
    }
}

pub(crate) struct Waiting<'a> {
    gauge: &'a Gauge,
    env: &'a crate::Env,
    since: Duration,
}

impl Waiting<'_> {
    pub(crate) fn elapsed(&self) -> Duration {
        self.env.now().saturating_sub(self.since)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waited_us = u64::try_from(self.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.gauge.waited_us.fetch_add(waited_us, Relaxed);
        self.gauge.waiting.fetch_sub(1, Relaxed);
    }
}
