//! Options of the log. Every bound is here.

use std::time::Duration;

use serde::Serialize;
use steadfast_disk::ZonedOptions;

use crate::format::Features;

/// Layout of a new pool.
#[derive(Debug, Clone, Default)]
pub struct FormatOptions {
    /// Bytes of an extent. `None`: 1 GiB on a device, 64 to 256 MiB in a file, or less if that
    /// gives fewer than 16 extents.
    pub extent_bytes: Option<u64>,
    /// Format the disk even if it holds data.
    pub force: bool,
    /// Zones to emulate, for trials and tests. A zoned device needs no setting.
    pub zones: Option<ZonedOptions>,
    /// Format features that the pool uses from the beginning.
    pub features: Features,
}

/// Options of a running log.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Largest frame, in bytes: the size of one group commit. Bounded by a quarter of an extent.
    pub frame_bytes_max: usize,
    /// Budget of data that is accepted but not on disk yet, in bytes.
    pub pending_bytes_max: u64,
    /// Separate budget for deletes and compaction, in bytes, so that a flood of new data does not
    /// block them.
    pub pending_reserve_bytes_max: u64,
    /// Longest delay of the flush of an asynchronous commit.
    pub async_window: Duration,
    /// Whether a flush waits for a cohort (see `gather.rs`).
    pub gather: bool,
    /// Bytes ahead of the write pointer to which a commit extent is zero-filled where that pays; 0
    /// for none.
    pub prefill_ahead_bytes: u64,
    /// The most chunks being written at a time.
    pub body_writes_max: usize,
    /// Largest chunk, in bytes of body.
    pub chunk_bytes_max: usize,
    /// Bytes of heads that an open extent keeps in memory for its footer. Above that it is sealed
    /// early.
    pub footer_bytes_max: u64,
    /// The most frames that may wait for the applier.
    pub apply_queue_max: usize,
    /// Bytes past the end of the chain that recovery searches for frames that prove damage.
    pub recovery_search_bytes: u64,
    /// Free extents reserved for deletes and compaction.
    pub reserve_extents: u32,
    /// Options of compaction.
    pub compaction: CompactionOptions,
    /// Options of the scrub.
    pub scrub: ScrubOptions,
    /// Format features to use. They are in the superblocks before anything else is written.
    pub features: Features,
    /// Whether the log keeps account of what is durable, for [`crate::Log::durable_cut`].
    pub followed: bool,
    /// Whether the log is opened for reading: all writes are refused, and recovery only heals what
    /// one copy of the disk lacks and another has.
    pub for_reading: bool,
    /// Deliberate fault, to test the simulator.
    #[doc(hidden)]
    pub sabotage: Sabotage,
}

/// Deliberate faults, to test the simulator.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// No fault.
    #[default]
    None,
    /// Bodies are read without verifying their checksums.
    UnverifiedReads,
    /// A record is written without flushing the chunks that it names.
    CommitBeforeChunks,
    /// Recovery accepts frames without verifying their checksums.
    TornFrames,
    /// Compaction drops deletes although the records that they hide may still exist.
    EarlyTombstones,
    /// Compaction treats each extent with a filter of keys as one without any of them. Only the
    /// log's tests use it: one seed of the simulator in a thousand meets it.
    BlindFilters,
    /// Extents are recycled before the copies are flushed and the index's checkpoint has passed.
    EarlyRecycle,
    /// Extents are recycled while a reader has them pinned.
    PinsIgnored,
    /// Chunks reach a zone in any order.
    ZoneOrder,
    /// A zone is rewritten without a reset.
    ZoneReset,
    /// A sealed zone is not finished.
    ZoneFinish,
    /// Facts that a reset erases are not first made durable elsewhere.
    ZoneLedger,
    /// The flush of asynchronous commits waits until no other write is queued.
    LateFlush,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            frame_bytes_max: 4 << 20,
            pending_bytes_max: 64 << 20,
            pending_reserve_bytes_max: 16 << 20,
            async_window: Duration::from_millis(10),
            gather: true,
            prefill_ahead_bytes: 32 << 20,
            body_writes_max: 16,
            chunk_bytes_max: 1 << 20,
            footer_bytes_max: 128 << 20,
            apply_queue_max: 64,
            recovery_search_bytes: 64 << 20,
            reserve_extents: 2,
            features: Features::NONE,
            followed: false,
            for_reading: false,
            sabotage: Sabotage::None,
            compaction: CompactionOptions::default(),
            scrub: ScrubOptions::default(),
        }
    }
}

/// Options of compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactionOptions {
    /// Whether compaction runs.
    pub enabled: bool,
    /// Bytes read and written a second at most; 0 for no bound. No bound applies when space is low.
    pub bytes_s: u64,
    /// The least dead part of an extent for which copying the rest is worth it, in percent.
    pub dead_percent_min: u32,
    /// The same while space is low, in percent.
    pub dead_percent_min_low: u32,
    /// Free space below which space is low, in percent of all possible extents.
    pub low_percent: u32,
    /// Interval between searches for work.
    pub interval: Duration,
}

impl Default for CompactionOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            bytes_s: 64 << 20,
            dead_percent_min: 50,
            dead_percent_min_low: 10,
            low_percent: 15,
            interval: Duration::from_secs(1),
        }
    }
}

/// Options of the scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubOptions {
    /// Whether scheduled passes run.
    pub enabled: bool,
    /// Bytes read a second at most; 0 for no bound.
    pub bytes_s: u64,
    /// Time from the end of one pass to the start of the next, and before the first.
    pub interval: Duration,
    /// Time of day in which scheduled passes run; `None` for the whole day.
    pub window: Option<DayWindow>,
}

impl Default for ScrubOptions {
    fn default() -> Self {
        Self { enabled: true, bytes_s: 16 << 20, interval: Duration::from_secs(6 * 3600), window: None }
    }
}

/// Milliseconds of a day.
const DAY_MS: u64 = 86_400_000;

/// A part of every day, in UTC. A window that ends before it begins spans midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DayWindow {
    /// Minutes since midnight.
    pub from_min: u16,
    /// Minutes since midnight, exclusive.
    pub to_min: u16,
}

impl DayWindow {
    /// Milliseconds until the window opens; 0 while it is open. `wall_ms`: milliseconds since the
    /// Unix epoch.
    pub fn opens_in_ms(&self, wall_ms: u64) -> u64 {
        let now = wall_ms % DAY_MS;
        let (from, to) = (u64::from(self.from_min) * 60_000, u64::from(self.to_min) * 60_000);
        let open = if from <= to { (from..to).contains(&now) } else { now >= from || now < to };
        if open { 0 } else { (from + DAY_MS - now) % DAY_MS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_the_day_and_one_over_midnight() {
        let at = |h: u64, m: u64| 40 * DAY_MS + (h * 60 + m) * 60_000;
        let minutes = |window: DayWindow, h, m| window.opens_in_ms(at(h, m)) / 60_000;
        let night = DayWindow { from_min: 60, to_min: 300 };
        assert_eq!(
            [minutes(night, 0, 59), minutes(night, 1, 0), minutes(night, 4, 59), minutes(night, 5, 0)],
            [1, 0, 0, 20 * 60]
        );
        let late = DayWindow { from_min: 22 * 60, to_min: 120 };
        assert_eq!(
            [
                minutes(late, 21, 59),
                minutes(late, 22, 0),
                minutes(late, 0, 0),
                minutes(late, 1, 59),
                minutes(late, 2, 0)
            ],
            [1, 0, 0, 0, 20 * 60]
        );
    }
}
