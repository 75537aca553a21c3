//! Counters of an edge bucket.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How a request was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handling {
    /// From the store, without a request to the origin.
    Hit,
    /// From the store, although it is stale.
    Stale,
    /// From the store: the origin has the same version.
    Revalidated,
    /// The object was not stored.
    Miss {
        /// Whether another request had begun to fetch it.
        collapsed: bool,
    },
    /// The stored version was stale, and the origin has another.
    Replaced,
    /// The origin answers each request for itself.
    Passed,
}

/// Counters of a bucket.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) hits: AtomicU64,
    pub(crate) stale: AtomicU64,
    pub(crate) revalidated: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) collapsed: AtomicU64,
    pub(crate) passed: AtomicU64,
    pub(crate) served_bytes: AtomicU64,
    pub(crate) origin_bytes: AtomicU64,
    pub(crate) origin_requests: AtomicU64,
    pub(crate) origin_errors: AtomicU64,
    pub(crate) fills_stored: AtomicU64,
    pub(crate) evictions: AtomicU64,
    pub(crate) evicted_bytes: AtomicU64,
}

impl Counters {
    /// Counts an answer.
    pub(crate) fn answered(&self, handling: Handling) {
        let counter = match handling {
            Handling::Hit => &self.hits,
            Handling::Stale => &self.stale,
            Handling::Revalidated => &self.revalidated,
            Handling::Miss { collapsed: false } | Handling::Replaced => &self.misses,
            Handling::Miss { collapsed: true } => &self.collapsed,
            Handling::Passed => &self.passed,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts bytes that clients get.
    pub(crate) fn served(&self, bytes: u64) {
        self.served_bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts bytes from the origin.
    pub(crate) fn received(&self, bytes: usize) {
        self.origin_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts a request to the origin.
    pub(crate) fn requested(&self) {
        self.origin_requests.fetch_add(1, Relaxed);
    }

    /// Counts a request that the origin did not answer as it should.
    pub(crate) fn failed(&self) {
        self.origin_errors.fetch_add(1, Relaxed);
    }

    /// Counts an object that was fetched and stored.
    pub(crate) fn stored(&self) {
        self.fills_stored.fetch_add(1, Relaxed);
    }

    /// Counts an evicted object of this size.
    pub(crate) fn evicted(&self, bytes: u64) {
        self.evictions.fetch_add(1, Relaxed);
        self.evicted_bytes.fetch_add(bytes, Relaxed);
    }
}
