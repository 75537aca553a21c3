//! The status of the log.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use serde::Serialize;
use steadfast_flow::{FlowStatus, Histogram, HistogramCounter};

use crate::check::Damage;
use crate::latch::LogState;
use crate::{ExtentUsage, Lsn};

#[derive(Default)]
pub(crate) struct Metrics {
    pub(crate) group: HistogramCounter,
    pub(crate) flush_us: HistogramCounter,
    pub(crate) commits: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) frame_bytes: AtomicU64,
    pub(crate) frames: AtomicU64,
    pub(crate) chunks: AtomicU64,
    pub(crate) chunk_bytes: AtomicU64,
    pub(crate) async_lag_us_max: AtomicU64,
    pub(crate) gather_waits: AtomicU64,
    pub(crate) gather_timeouts: AtomicU64,
    pub(crate) read_damage: AtomicU64,
    pub(crate) reads_healed: AtomicU64,
    pub(crate) writes_elsewhere: AtomicU64,
}

impl Metrics {
    pub(crate) fn flushed(&self, took: Duration) {
        self.flush_us.add_us(took);
    }
}

/// Placement of a pool on sequential zones. All zero where the disk may be written anywhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ZonesStatus {
    /// Bytes from one zone to the next.
    pub zone_bytes: u64,
    /// Limit of open zones; 0 for no limit.
    pub open_zones_max: u32,
    /// Zones that the log has open, including the superblocks'.
    pub open_zones: u32,
    /// Whether the zones are emulated.
    pub emulated: bool,
    /// Writes of the superblocks since the pool was formatted.
    pub superblocks_written: u64,
}

impl ZonesStatus {
    /// Adds the status of another disk of the pool.
    pub fn add(&mut self, other: &Self) {
        self.zone_bytes = self.zone_bytes.max(other.zone_bytes);
        self.emulated |= other.emulated;
        self.open_zones_max = self.open_zones_max.saturating_add(other.open_zones_max);
        self.open_zones += other.open_zones;
        self.superblocks_written += other.superblocks_written;
    }
}

/// Extents by state and kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ExtentCounts {
    /// Free extents, ready for use.
    pub free: u64,
    /// Extents that the disk could still add.
    pub growable: u64,
    /// Open commit extents.
    pub open_commit: u64,
    /// Open body extents.
    pub open_body: u64,
    /// Sealed commit extents.
    pub sealed_commit: u64,
    /// Sealed body extents.
    pub sealed_body: u64,
    /// Live bytes in commit extents.
    pub live_commit_bytes: u64,
    /// Live bytes in body extents.
    pub live_body_bytes: u64,
    /// Bytes in sealed extents that nothing needs but readers that have begun.
    pub pinned_bytes: u64,
    /// Extents that were in use and whose data is gone.
    pub lost: u64,
    /// Referenced bytes in lost extents. Reads of them fail.
    pub lost_bytes: u64,
}

/// The status of the log. Counters start when it is opened.
#[derive(Debug, Clone, Serialize)]
pub struct LogStatus {
    /// Whether the log takes writes.
    pub log: LogState,
    /// UUID of the pool.
    pub pool: String,
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Placement of the pool on zones.
    pub zones: ZonesStatus,
    /// Extents by state and kind.
    pub extents: ExtentCounts,
    /// LSN of the last record that was accepted.
    pub accepted_lsn: Lsn,
    /// LSN of the last record that has been applied.
    pub applied_lsn: Lsn,
    /// LSN up to which everything is durable.
    pub durable_lsn: Lsn,
    /// Histogram of batches per frame.
    pub group_size: Histogram,
    /// Histogram of the time of a flush with its write, in microseconds.
    pub flush_us: Histogram,
    /// Batches committed.
    pub commits: u64,
    /// Records committed.
    pub records: u64,
    /// Frames written.
    pub frames: u64,
    /// Bytes of frames written.
    pub frame_bytes: u64,
    /// Chunks written.
    pub chunks: u64,
    /// Bytes of chunks written.
    pub chunk_bytes: u64,
    /// The longest delay of the flush of an asynchronous commit, in microseconds.
    pub async_lag_us_max: u64,
    /// Flushes that waited for a cohort.
    pub gather_waits: u64,
    /// Waits whose cohort stayed incomplete.
    pub gather_timeouts: u64,
    /// Bytes accepted and not yet on disk.
    pub pending_bytes: u64,
    /// The bound on `pending_bytes`.
    pub pending_bytes_max: u64,
    /// The budgets of pending bytes, with waiting and refused requests.
    pub budgets: Vec<FlowStatus>,
    /// Reads that found damage or failed.
    pub read_damage: u64,
    /// Reads that succeeded on a second try.
    pub reads_healed: u64,
    /// Failed writes of unacknowledged data, which went elsewhere or were omitted.
    pub writes_elsewhere: u64,
    /// Healing from one copy of the disk to another.
    pub heal: HealStatus,
    /// Status of compaction.
    pub compaction: CompactionStatus,
    /// Status of the scrub.
    pub scrub: ScrubStatus,
    /// Live bytes by extent.
    pub usage: Vec<ExtentUsage>,
}

/// Number of copies that are counted separately; two today.
pub(crate) const COPIES: usize = 2;

/// Healing, by the copy that was bad. On a super-disk 0 is the durable leg and 1 the fast one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct HealStatus {
    /// Structures (headers, frames, footers) rewritten on a bad copy, by copy.
    pub healed: [u64; COPIES],
    /// Bytes of the healed structures.
    pub healed_bytes: u64,
    /// Structures that are good on one copy and could not be rewritten on another.
    pub failed: u64,
    /// Places that wait to be healed because a reader found damage there.
    pub pending: u64,
    /// The bound on `pending`. The next reader or the scrub finds places beyond it.
    pub pending_max: u64,
    /// Places that did not fit into the queue.
    pub skipped: u64,
}

/// An extent that cannot be emptied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StuckExtent {
    /// Number of the extent.
    pub extent: u32,
    /// Its epoch.
    pub epoch: u64,
    /// The reason.
    pub why: String,
}

/// Status of compaction since the log was opened.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CompactionStatus {
    /// The extent that is being emptied.
    pub extent: Option<u32>,
    /// Whether space is low.
    pub space_low: bool,
    /// Extents recycled.
    pub recycled: u64,
    /// Records appended again.
    pub records_moved: u64,
    /// Chunks copied.
    pub chunks_moved: u64,
    /// Bytes of moved records and chunks.
    pub moved_bytes: u64,
    /// Bytes written to the disk per byte that clients wrote, in percent.
    pub write_amplification_percent: u64,
    /// Emptied extents that wait for the index's checkpoint.
    pub waiting_for_checkpoint: u64,
    /// Emptied extents that a reader has pinned.
    pub pinned: u64,
    /// Extents that cannot be emptied, for instance because of damage.
    pub stuck: Vec<StuckExtent>,
}

/// Damages kept for the status; more are only counted.
pub const SCRUB_DAMAGE_MAX: usize = 256;

/// Status of the scrub since the log was opened.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ScrubStatus {
    /// Whether a pass runs.
    pub running: bool,
    /// Whether the pass waits for its window of the day.
    pub paused: bool,
    /// Start of the current or else the last pass, milliseconds since the Unix epoch.
    pub started_ms: Option<u64>,
    /// Expected end of the pass at the speed so far, milliseconds since the Unix epoch.
    pub expected_end_ms: Option<u64>,
    /// Start of the next scheduled pass, milliseconds since the Unix epoch.
    pub next_ms: Option<u64>,
    /// Passes stopped on request.
    pub stopped: u64,
    /// Extents verified in the current or else the last pass.
    pub extents_done: u64,
    /// Extents to verify in that pass.
    pub extents_total: u64,
    /// Passes completed.
    pub passes: u64,
    /// End of the last pass, milliseconds since the Unix epoch.
    pub last_pass_ms: Option<u64>,
    /// Bytes read.
    pub read_bytes: u64,
    /// Records and chunks verified.
    pub records: u64,
    /// Extents that failed verification first, and passed when read again or healed from another
    /// copy.
    pub healed: u64,
    /// Structures (headers, frames, footers) that the scrub healed, by the copy that was bad. On a
    /// super-disk 0 is the durable leg and 1 the fast one.
    pub healed_copies: [u64; 2],
    /// Damages found, each counted once.
    pub damaged: u64,
    /// Entries added to `damage`: one for each damage, and another if its records were named later.
    pub reported: u64,
    /// The latest damages, at most [`SCRUB_DAMAGE_MAX`]. Their heads name the records.
    pub damage: VecDeque<Damage>,
}
