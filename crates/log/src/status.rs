//! What the log says about itself.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use serde::Serialize;
use steadfast_flow::{FlowStatus, Histogram, HistogramCounter};

use crate::latch::LogState;
use crate::{CompactionStatus, ExtentUsage, HealStatus, Lsn, ScrubStatus};

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

/// How a pool lies on zones that are written in order. All zero where the disk may be written anywhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ZonesStatus {
    /// Bytes from one zone to the next.
    pub zone_bytes: u64,
    /// How many may be open at a time; 0 for no limit.
    pub open_zones_max: u32,
    /// How many the log has open, the superblocks' included.
    pub open_zones: u32,
    /// Whether the disk is only driven as if it were zoned.
    pub emulated: bool,
    /// How often the superblocks were written, since the pool was made.
    pub superblocks_written: u64,
}

impl ZonesStatus {
    /// Adds that of another disk of the pool.
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
    /// Free and ready.
    pub free: u64,
    /// How many more the disk could hold.
    pub growable: u64,
    /// Commit extents that are being written.
    pub open_commit: u64,
    /// Body extents that are being written.
    pub open_body: u64,
    /// Sealed commit extents.
    pub sealed_commit: u64,
    /// Sealed body extents.
    pub sealed_body: u64,
    /// Live bytes in commit extents.
    pub live_commit_bytes: u64,
    /// Live bytes in body extents.
    pub live_body_bytes: u64,
    /// Extents that snapshots keep.
    pub held: u64,
    /// Bytes in them that nothing else needs: what deleting all snapshots would give back.
    pub held_bytes: u64,
    /// Extents that were in use, and of which nothing is there.
    pub lost: u64,
    /// Bytes in them that are still referred to: what reads of them are refused.
    pub lost_bytes: u64,
}

/// What the log says about itself; counters since it was opened.
#[derive(Debug, Clone, Serialize)]
pub struct LogStatus {
    /// Whether it takes writes.
    pub log: LogState,
    /// UUID of the pool.
    pub pool: String,
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// How it lies on zones.
    pub zones: ZonesStatus,
    /// Extents by state and kind.
    pub extents: ExtentCounts,
    /// LSN of the last record that was accepted.
    pub accepted_lsn: Lsn,
    /// LSN of the last record that has been applied.
    pub applied_lsn: Lsn,
    /// LSN up to which all is durable.
    pub durable_lsn: Lsn,
    /// Batches a frame.
    pub group_size: Histogram,
    /// Time of a flush (with the write before it), in microseconds.
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
    /// The longest that an asynchronous commit waited for its flush, in microseconds.
    pub async_lag_us_max: u64,
    /// How often a flush waited for its cohort.
    pub gather_waits: u64,
    /// How often the cohort did not come.
    pub gather_timeouts: u64,
    /// Bytes accepted and not yet on disk.
    pub pending_bytes: u64,
    /// The bound on them.
    pub pending_bytes_max: u64,
    /// The budgets of them, with who waits and who was refused.
    pub budgets: Vec<FlowStatus>,
    /// Reads that found damage, or could not read.
    pub read_damage: u64,
    /// Reads that succeeded on a second try.
    pub reads_healed: u64,
    /// Writes that failed, of what nobody had been promised, and went elsewhere or were done without.
    pub writes_elsewhere: u64,
    /// What was healed, from one copy of the disk to another.
    pub heal: HealStatus,
    /// What compaction did.
    pub compaction: CompactionStatus,
    /// What the scrub did.
    pub scrub: ScrubStatus,
    /// Live bytes by extent.
    pub usage: Vec<ExtentUsage>,
}
