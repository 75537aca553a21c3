//! What can be set. Every bound is here.

use std::time::Duration;

use steadfast_disk::ZonedOptions;

use crate::format::Features;
use crate::{CompactionOptions, ScrubOptions};

/// How a pool is laid out.
#[derive(Debug, Clone, Default)]
pub struct FormatOptions {
    /// Bytes of an extent. `None`: 1 GiB on a device, 256 MiB in a file, less where that would give fewer than 16 extents.
    pub extent_bytes: Option<u64>,
    /// Format even if the disk holds something.
    pub force: bool,
    /// Drive the disk as if it were a zoned device with zones like these (for trials and tests). A zoned device needs no saying.
    pub zones: Option<ZonedOptions>,
    /// Features of the format that the pool uses from the beginning.
    pub features: Features,
}

/// How a log runs.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Largest frame, in bytes: how much one group commit writes. At most a quarter of an extent is used.
    pub frame_bytes_max: usize,
    /// Budget of data that was accepted and is not on disk yet, in bytes.
    pub pending_bytes_max: u64,
    /// The same for deletes and compaction, apart, so that a flood of new data does not keep them out.
    pub pending_reserve_bytes_max: u64,
    /// How long an asynchronous commit may wait for its flush.
    pub async_window: Duration,
    /// Whether to wait for a cohort before a flush (see `gather.rs`).
    pub gather: bool,
    /// How far ahead of the write pointer a commit extent is zero-filled where that pays, in bytes; 0 for never.
    pub prefill_ahead_bytes: u64,
    /// Chunks on their way to disk at a time.
    pub body_writes_max: usize,
    /// Largest chunk, in bytes of body.
    pub chunk_bytes_max: usize,
    /// Heads that an open extent keeps in memory for its footer, in bytes; beyond that it is sealed early.
    pub footer_bytes_max: u64,
    /// Frames that may wait for the applier.
    pub apply_queue_max: usize,
    /// How far past the end of the chain recovery looks for frames that prove it broken, in bytes.
    pub recovery_search_bytes: u64,
    /// Extents that new data may not take: kept for deletes and compaction.
    pub reserve_extents: u32,
    /// How live data is moved out of extents that are mostly dead.
    pub compaction: CompactionOptions,
    /// How everything is verified in the background.
    pub scrub: ScrubOptions,
    /// Features of the format that are going to be used: they are in the superblocks before anything else is written.
    pub features: Features,
    /// Broken on purpose, to test the simulator.
    #[doc(hidden)]
    pub sabotage: Sabotage,
}

/// Ways to be broken on purpose, to test the simulator.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// Not at all.
    #[default]
    None,
    /// Bodies are read without looking at their checksums.
    UnverifiedReads,
    /// A record is written without flushing the chunks that it names.
    CommitBeforeChunks,
    /// Recovery takes frames without looking at their checksums.
    TornFrames,
    /// Compaction drops deletes although what they hide may still be there.
    EarlyTombstones,
    /// Compaction takes each extent that has a filter of keys for one that holds none of them.
    BlindFilters,
    /// Extents are recycled before the copies are flushed and the index's checkpoint has passed.
    EarlyRecycle,
    /// Extents are recycled while somebody reads them.
    PinsIgnored,
    /// Chunks reach a zone in any order.
    ZoneOrder,
    /// A zone is written anew without having been reset.
    ZoneReset,
    /// A sealed zone is not finished.
    ZoneFinish,
    /// What a reset makes forgotten is not made durable elsewhere.
    ZoneLedger,
    /// What a snapshot holds is recycled all the same.
    HoldsIgnored,
    /// The flush of asynchronous commits waits until nothing else is to be written.
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
            sabotage: Sabotage::None,
            compaction: CompactionOptions::default(),
            scrub: ScrubOptions::default(),
        }
    }
}
