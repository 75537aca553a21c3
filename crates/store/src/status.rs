//! What the store says about itself.

use serde::Serialize;
use steadfast_log::{LogStatus, Lsn};

use crate::cache::CacheStatus;
use crate::index::IndexStatus;

/// Gauges and counters of a store.
#[derive(Debug, Clone, Serialize)]
pub struct StoreStatus {
    /// Buckets.
    pub buckets: u64,
    /// Objects.
    pub objects: u64,
    /// Bytes of objects.
    pub object_bytes: u64,
    /// Uploads in parts that are going on.
    pub uploads: u64,
    /// Keys with a change that is not yet confirmed.
    pub pending_keys: u64,
    /// The index.
    pub index: IndexStatus,
    /// The last LSN in the index.
    pub applied_lsn: Lsn,
    /// The last LSN in the index on disk: a start replays from there.
    pub checkpoint_lsn: Lsn,
    /// The read cache.
    pub cache: CacheStatus,
    /// The log.
    pub log: LogStatus,
}
