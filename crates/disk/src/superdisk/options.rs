//! How a super-disk behaves.

use std::time::Duration;

/// Limits of a [`super::Superdisk`]. The defaults suit local SSDs in front of a network disk or a hard drive.
#[derive(Debug, Clone)]
pub struct SuperdiskOptions {
    /// Writes on their way to the fast leg, in bytes; above it a write goes to the durable leg only. They are copied into memory of
    /// their own, so that a fast leg that hangs keeps nobody's buffers.
    pub fast_pending_bytes_max: u64,
    /// A fast write or flush that has not returned after this long means that the leg has failed.
    pub fast_write_limit: Duration,
    /// The same for reads (which have long been answered by the durable leg then).
    pub fast_read_limit: Duration,
    /// So many failed writes and flushes of the fast leg in a row mean that it has failed as a whole, without more ado. Reads that fail do not
    /// count: their ranges are written again. A range that cannot be written again has the leg's label tried.
    pub fast_errors_max: u32,
    /// How often a fast leg that has failed is looked at again.
    pub fast_retry_interval: Duration,
    /// How long opening waits for the fast leg before it goes on without.
    pub fast_open_limit: Duration,
    /// A read asks the durable leg too when the fast one takes longer than this many times its measured 99th percentile.
    pub hedge_p99_factor: f64,
    /// The hedge never comes earlier than this.
    pub hedge_min: Duration,
    /// Nor later than this.
    pub hedge_max: Duration,
    /// While so many fast reads are overdue, further reads go to the durable leg at once.
    pub fast_overdue_max: u32,
    /// Copying to the fast leg in the background, in bytes a second; 0 for no limit.
    pub rebuild_bytes_s: u64,
    /// A range that was written is copied in the background only when its region has been left alone for this long.
    pub rebuild_settle: Duration,
    /// Bytes in a region, the unit of what is rebuilt after a crash: a power of two from 16 KiB to 64 MiB. Larger ones are used
    /// on disks of which the bits of the regions would else not fit. Another size has the fast leg rebuilt.
    pub region_bytes: u64,
    /// How many bytes of regions may be dirty at a time, as far as both legs hold the same of them: what a crash has rebuilt.
    pub dirty_bytes_max: u64,
    /// The bytes of the durable leg, from and to, of which samples are compared with the fast leg at an opening. Any difference in a clean
    /// region means that the durable leg was written elsewhere, and the fast leg does not count. A heuristic, for callers without
    /// checksums.
    pub compare_at_open: Option<(u64, u64)>,
    /// So many failed repairs, or failures again of a place repaired before, take a region of the fast leg out of use until
    /// the next opening.
    pub quarantine_failures: u32,
    /// The operator's word that the fast leg may be overwritten though it holds something that is not this pair's.
    pub take_foreign_fast: bool,
    /// What is broken on purpose, to test the tests.
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
            // What a rebuild copies in a minute.
            dirty_bytes_max: 60 * (100 << 20),
            compare_at_open: None,
            quarantine_failures: 3,
            take_foreign_fast: false,
            sabotage: SuperdiskSabotage::None,
        }
    }
}

/// Broken variants that a simulator must be able to tell from the right one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SuperdiskSabotage {
    /// Nothing is broken.
    #[default]
    None,
    /// Writes and flushes complete when the fast leg has them; the durable leg follows.
    AckOnFast,
    /// A fast leg of an older generation is taken as clean, with all that it holds, and as good as the durable leg also for who asks for copy 0:
    /// else the layers above would find and heal what is old.
    TrustStale,
    /// Intent bits are written and not flushed before data goes out.
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
    /// Bits are cleared of regions that the fast leg does not hold wholly.
    ClearNotWhole,
    /// The mark of a clearing and the cleared bits become durable with one flush.
    ClearInOneFlush,
    /// Clearing bits has no event of its own.
    NoStampAtClear,
    /// Setting bits has no event of its own.
    NoStampAtSet,
    /// An opening has no event of its own.
    NoStampAtOpening,
    /// A fast leg counts though its event is newer than the durable leg's.
    NewerFastBelieved,
    /// A fast leg counts though its event is older than the last clearing.
    OlderFastBelieved,
    /// A fast leg counts though it is of another history, which both legs were put back to a time before.
    OpeningNotCompared,
    /// Of a fast leg of several devices the first one's label counts.
    FirstDeviceBelieved,
    /// Dirty regions of the fast leg count at an opening.
    DirtyFastBelieved,
    /// The durable leg is not flushed at an opening.
    NoFlushAtOpening,
    /// Overlapping writes go to both legs, and leave their blocks valid.
    NoSpoil,
    /// The fast leg is read where a write is under way.
    FastReadUnderWrite,
    /// A flush is one of the fast leg only.
    FlushOfFastOnly,
    /// After an error of the durable leg's flush everything continues.
    DurableErrorNotLatched,
    /// A flush of the fast leg that failed counts.
    FastFlushErrorIgnored,
    /// A write of the fast leg that failed counts.
    FastWriteErrorIgnored,
    /// A fast leg that returns is believed in what the map says of it.
    RevivedByMemory,
    /// A request that is late is forgotten, and the fast leg is taken back before it has returned.
    LateWriteForgotten,
    /// What was under way when the fast leg failed counts.
    FailureDoesNotSpoil,
    /// A discard sets no intent bits.
    TrimWithoutBit,
    /// Discarded blocks stay valid.
    TrimLeavesValid,
    /// A new fast leg is used before the durable leg's label says so durably.
    AttachNotFlushed,
}
