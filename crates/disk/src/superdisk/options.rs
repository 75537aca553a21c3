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
    /// Bytes in a region, the unit of the map: a power of two from 16 KiB to 128 MiB. Larger ones are used
    /// where the map of the fast leg would else be over 1 MiB.
    pub region_bytes: u64,
    /// How long changes of the map wait to be saved. After a crash, what was not saved is rebuilt.
    pub map_save_interval: Duration,
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
            region_bytes: 1 << 20,
            map_save_interval: Duration::from_secs(2),
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
}
