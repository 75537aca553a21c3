//! The status of a super-disk.

use serde::Serialize;

/// The state of the fast leg.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum FastState {
    /// Holds everything that it should.
    Clean,
    /// In use; parts of it are being copied from the durable leg.
    Rebuilding,
    /// Like rebuilding: the leg was found to be of an earlier time, so none of its content counts.
    Stale,
    /// Not configured.
    Missing,
    /// Holds data of another owner. Steadfast does not touch it.
    Foreign {
        /// Content of the leg.
        what: String,
    },
    /// Does not work. Steadfast probes it from time to time, and reopens it where that may help.
    Failed {
        /// Reason of the failure.
        why: String,
    },
}

/// A snapshot of a super-disk. Counters are since it was opened.
#[derive(Debug, Clone, Serialize)]
pub struct SuperdiskStatus {
    /// State of the fast leg.
    pub fast: FastState,
    /// Description of the durable leg.
    pub durable_disk: String,
    /// Description of the fast leg.
    pub fast_disk: Option<String>,
    /// UUID of the pair.
    pub pair: String,
    /// Number of openings of the pair with a fast leg.
    pub generation: u64,
    /// Why the fast leg's content was refused at the last opening, if it was.
    pub refused: Option<String>,
    /// Bytes per region of the map.
    pub region_bytes: u64,
    /// Regions wholly readable from the fast leg.
    pub regions_clean: u64,
    /// Regions with content that fit the fast leg.
    pub regions_total: u64,
    /// Regions that wait to be copied.
    pub regions_to_rebuild: u64,
    /// Regions taken out of use after repeated failures.
    pub regions_quarantined: u64,
    /// Bytes of regions that may differ after a crash: their intent bits are set.
    pub dirty_bytes: u64,
    /// Limit of `dirty_bytes` for content that is the same on both legs.
    pub dirty_bytes_max: u64,
    /// Bytes copied to the fast leg in the background.
    pub rebuilt_bytes: u64,
    /// Current rebuild rate in bytes per second; 0 when there is nothing to rebuild.
    pub rebuild_bytes_s: u64,
    /// Limit of that rate; 0 for none.
    pub rebuild_bytes_s_max: u64,
    /// Reads that the fast leg answered.
    pub reads_fast: u64,
    /// Reads that the durable leg answered.
    pub reads_durable: u64,
    /// Reads also sent to the durable leg because the fast one was late.
    pub reads_hedged: u64,
    /// Hedged reads that the durable leg answered first.
    pub hedges_won: u64,
    /// Current delay before a small read is hedged, in microseconds.
    pub hedge_us: u64,
    /// Fast reads currently overdue.
    pub fast_overdue: u64,
    /// Errors of the fast leg.
    pub fast_errors: u64,
    /// Errors of the durable leg.
    pub durable_errors: u64,
    /// Ranges of the fast leg that were bad and have been healed.
    pub healed_fast: u64,
    /// Ranges of the durable leg that were bad and have been healed.
    pub healed_durable: u64,
    /// Failed repairs of either leg.
    pub heal_failures: u64,
    /// Writes sent to both legs.
    pub fast_writes: u64,
    /// Writes that could not be sent to the fast leg.
    pub skipped_fast_writes: u64,
    /// Number of times that the fast leg was reopened, after a failed flush or because it did not
    /// answer.
    pub fast_reopened: u64,
    /// Bytes in flight to the fast leg.
    pub pending_bytes: u64,
    /// Limit of `pending_bytes`.
    pub pending_bytes_max: u64,
}
