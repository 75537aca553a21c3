//! The status of the edge.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;
use steadfast_flow::{FlowStatus, Histogram};

use crate::bucket_state::BucketGates;
use crate::edge::{Edge, EdgeEntry};

/// Status of the edge. Counters start with the process.
#[derive(Debug, Clone, Serialize)]
pub struct EdgeStatus {
    /// Each bucket with an origin.
    pub buckets: Vec<EdgeBucketStatus>,
    /// Histogram of the time from the first request to the stored object, in microseconds.
    pub fill_us: Histogram,
    /// Segments on their way to the disk: bytes, their bound, and refusals.
    pub memory: FlowStatus,
    /// Running fills and their bound, of all buckets together.
    pub fills: Option<FlowStatus>,
    /// Requests that wait for an origin and their bound, of all buckets together.
    pub waiting: Option<FlowStatus>,
    /// Answers passed through and their bound, of all buckets together.
    pub passed: Option<FlowStatus>,
}

/// Status of an edge bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EdgeBucketStatus {
    /// Name of the bucket.
    pub bucket: String,
    /// Bytes of cached objects and of fills.
    pub used_bytes: u64,
    /// Their bound in bytes: that of the bucket, or what the pool allows. `None` until it is known.
    pub space_bytes: Option<u64>,
    /// Keys with a running fill or request to the origin.
    pub fills: u64,
    /// Answers from the store without a request to the origin.
    pub hits: u64,
    /// Stale answers from the store.
    pub stale: u64,
    /// Answers from the store after the origin said that nothing changed.
    pub revalidated: u64,
    /// Answers that were fetched.
    pub misses: u64,
    /// Answers that another request had begun to fetch.
    pub collapsed: u64,
    /// Answers passed through.
    pub passed: u64,
    /// Bytes that clients were sent, or began to be sent.
    pub served_bytes: u64,
    /// Bytes received from the origin.
    pub origin_bytes: u64,
    /// Requests to the origin.
    pub origin_requests: u64,
    /// Requests that the origin refused, did not answer, or answered wrongly.
    pub origin_errors: u64,
    /// Objects fetched and stored.
    pub fills_stored: u64,
    /// Objects evicted.
    pub evictions: u64,
    /// Bytes of evicted objects.
    pub evicted_bytes: u64,
}

impl Edge {
    /// Gauges and counters.
    pub fn status(&self) -> EdgeStatus {
        EdgeStatus {
            buckets: self.entries().map(EdgeEntry::status).collect(),
            fill_us: self.gates().fill_us.snapshot(),
            memory: self.gates().memory.status(),
            fills: self.sum(|gates| gates.fills.status()),
            waiting: self.sum(|gates| gates.waiting.status()),
            passed: self.sum(|gates| gates.passed.status()),
        }
    }
}

impl Edge {
    /// The status of a gate, summed over the buckets. The peak is the largest of a bucket.
    fn sum(&self, status: impl Fn(&BucketGates) -> FlowStatus) -> Option<FlowStatus> {
        self.entries().map(|entry| status(&entry.bucket_state.bucket_gates)).reduce(|sum, one| FlowStatus {
            name: sum.name,
            limit: sum.limit + one.limit,
            used: sum.used + one.used,
            peak: sum.peak.max(one.peak),
            waiting: sum.waiting + one.waiting,
            granted: sum.granted + one.granted,
            refused: sum.refused + one.refused,
            waited_us: sum.waited_us + one.waited_us,
        })
    }
}

impl EdgeEntry {
    fn status(&self) -> EdgeBucketStatus {
        let bucket_state = &self.bucket_state;
        let counters = &bucket_state.counters;
        let (used_bytes, space_bytes) = bucket_state.inventory.space.level();
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        EdgeBucketStatus {
            bucket: bucket_state.options.bucket.clone(),
            used_bytes,
            space_bytes,
            fills: self.entries.count(),
            hits: read(&counters.hits),
            stale: read(&counters.stale),
            revalidated: read(&counters.revalidated),
            misses: read(&counters.misses),
            collapsed: read(&counters.collapsed),
            passed: read(&counters.passed),
            served_bytes: read(&counters.served_bytes),
            origin_bytes: read(&counters.origin_bytes),
            origin_requests: read(&counters.origin_requests),
            origin_errors: read(&counters.origin_errors),
            fills_stored: read(&counters.fills_stored),
            evictions: read(&counters.evictions),
            evicted_bytes: read(&counters.evicted_bytes),
        }
    }
}
