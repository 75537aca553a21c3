//! Options of a super-disk.

use std::time::Duration;

/// Limits of a [`super::Superdisk`]. The defaults suit local SSDs in front of a network disk or a
/// hard drive.
#[derive(Debug, Clone)]
pub struct SuperdiskOptions {
    /// Maximum bytes of writes in flight to the fast leg; above it a write goes to the durable leg
    /// only. The writes are copied into separate memory, so that a hanging fast leg keeps no
    /// caller's buffers.
    pub fast_pending_bytes_max: u64,
    /// Time after which a fast write or flush that has not returned fails the leg.
    pub fast_write_limit: Duration,
    /// The same for reads, which the durable leg has long answered by then.
    pub fast_read_limit: Duration,
    /// Number of consecutive failed writes and flushes that fail the whole fast leg at once. Failed
    /// reads do not count: their ranges are rewritten. When a range cannot be rewritten, the leg's
    /// label is checked.
    pub fast_errors_max: u32,
    /// Interval at which a failed fast leg is probed.
    pub fast_retry_interval: Duration,
    /// Maximum time that an opening waits for the fast leg.
    pub fast_open_limit: Duration,
    /// Multiple of the measured 99th percentile after which a fast read is also sent to the durable
    /// leg.
    pub hedge_p99_factor: f64,
    /// Minimum delay of the hedge.
    pub hedge_min: Duration,
    /// Maximum delay of the hedge.
    pub hedge_max: Duration,
    /// Number of overdue fast reads from which further reads go to the durable leg at once.
    pub fast_overdue_max: u32,
    /// Maximum rate of background copying in bytes per second; 0 for no limit.
    pub rebuild_bytes_s: u64,
    /// Time without writes in a region before its written ranges are copied in the background.
    pub rebuild_settle: Duration,
    /// Bytes per region, the unit of a rebuild after a crash: a power of two from 16 KiB to 64 MiB.
    /// Larger regions are used where the bits would not fit the disk otherwise. A change of the
    /// size causes a rebuild of the fast leg.
    pub region_bytes: u64,
    /// Maximum bytes of dirty regions that are the same on both legs: the amount that is rebuilt
    /// after a crash.
    pub dirty_bytes_max: u64,
    /// Byte range of the durable leg of which an opening compares samples with the fast leg. Any
    /// difference in a clean region means that the durable leg was written elsewhere, and the fast
    /// leg's content is refused. A heuristic, for callers without checksums.
    pub compare_at_open: Option<(u64, u64)>,
    /// Number of failed repairs, or of repeated failures of a repaired place, that quarantine a
    /// region of the fast leg until the next opening.
    pub quarantine_failures: u32,
    /// The operator's permission to overwrite a fast leg that holds data of another owner.
    pub take_foreign_fast: bool,
    /// Defect to inject, to test the tests.
    pub sabotage: SuperdiskSabotage,
}

impl Default for SuperdiskOptions {
    fn default() -> Self {
        Self {
            fast_pending_bytes_max: 16 << 20,
            fast_write_limit: Duration::from_secs(5),
            fast_read_limit: Duration::from_secs(5),
            fast_errors_max: 64,
            fast_retry_interval: Duration::from_secs(5),
            fast_open_limit: Duration::from_secs(2),
            hedge_p99_factor: 3.0,
            hedge_min: Duration::from_millis(2),
            hedge_max: Duration::from_millis(50),
            fast_overdue_max: 8,
            rebuild_bytes_s: 100 << 20,
            rebuild_settle: Duration::from_secs(1),
            region_bytes: 4 << 20,
            // A rebuild copies this much in a minute.
            dirty_bytes_max: 60 * (100 << 20),
            compare_at_open: None,
            quarantine_failures: 3,
            take_foreign_fast: false,
            sabotage: SuperdiskSabotage::None,
        }
    }
}

/// Defective variants that a simulator must distinguish from the correct one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SuperdiskSabotage {
    /// No defect.
    #[default]
    None,
    /// Writes and flushes complete when the fast leg has them; the durable leg follows.
    AckOnFast,
    /// A fast leg of an older generation counts as clean, with all its content. Reads of copy 0
    /// also use it: otherwise the layers above would find and heal the old bytes.
    TrustStale,
    /// Data is written before the intent bits are flushed.
    BitNotFlushed,
    /// Data does not wait for its intent bits.
    BitBesideData,
    /// Only the fast leg's data waits for its intent bits.
    BitHoldsOnlyFast,
    /// No intent bits are set while the fast leg is away.
    NoBitsWhileFastAway,
    /// Bits are cleared without a flush of the fast leg.
    ClearWithoutFastFlush,
    /// Bits are cleared without a flush of the durable leg.
    ClearWithoutDurableFlush,
    /// A write leaves its region in the batch that is being cleared.
    ClearUnderWrite,
    /// Bits are cleared of regions that the fast leg holds only partly.
    ClearNotWhole,
    /// The mark of a clearing and the cleared bits become durable with one flush.
    ClearInOneFlush,
    /// Clearing bits raises no event.
    NoStampAtClear,
    /// Setting bits raises no event.
    NoStampAtSet,
    /// An opening raises no event.
    NoStampAtOpening,
    /// A fast leg is trusted although its event is newer than the durable leg's.
    NewerFastBelieved,
    /// A fast leg is trusted although its event is older than the last clearing.
    OlderFastBelieved,
    /// A fast leg is trusted although it is of another history, after both legs were restored to an
    /// earlier time.
    OpeningNotCompared,
    /// Of a fast leg of several devices only the first one's label is checked.
    FirstDeviceBelieved,
    /// Dirty regions of the fast leg count at an opening.
    DirtyFastBelieved,
    /// The durable leg is not flushed at an opening.
    NoFlushAtOpening,
    /// Overlapping writes go to both legs, and leave their blocks valid.
    NoSpoil,
    /// The fast leg is read where a write is in progress.
    FastReadUnderWrite,
    /// A flush reaches only the fast leg.
    FlushOfFastOnly,
    /// An error of the durable leg's flush is not latched.
    DurableErrorNotLatched,
    /// A failed flush of the fast leg counts as successful.
    FastFlushErrorIgnored,
    /// A failed write of the fast leg counts as successful.
    FastWriteErrorIgnored,
    /// A returning fast leg is trusted according to the map in memory.
    RevivedByMemory,
    /// A late request is forgotten, and the fast leg is taken back before that request has
    /// returned.
    LateWriteForgotten,
    /// Operations in progress count although the fast leg failed.
    FailureDoesNotSpoil,
    /// A discard sets no intent bits.
    TrimWithoutBit,
    /// Discarded blocks stay valid.
    TrimLeavesValid,
    /// A new fast leg is used before the durable leg's label names it durably.
    AttachNotFlushed,
}
