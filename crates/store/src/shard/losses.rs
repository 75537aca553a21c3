//! What is lost or uncertain on a disk.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use steadfast_log::{Doubt, Lsn};

use crate::StoreError;

/// What is lost or uncertain on a disk.
pub(crate) struct Losses {
    /// Set when acknowledged records are gone from the log, and the index does not have them.
    doubt: OnceLock<Doubt>,
    /// Serve values that may have been replaced.
    serve_doubtful: bool,
    /// Whether the index or a record was inconsistent.
    distrusted: AtomicBool,
    /// LSN up to which asynchronous publications may be lost although they were delivered: the last
    /// one at the opening, unless the shard had closed cleanly.
    lost_lsn: AtomicU64,
}

impl Losses {
    /// Nothing is known to be lost. Until the log is open, any asynchronous publication may be.
    pub(crate) fn new(serve_doubtful: bool) -> Self {
        Self {
            doubt: OnceLock::new(),
            serve_doubtful,
            distrusted: AtomicBool::new(false),
            lost_lsn: AtomicU64::new(u64::MAX),
        }
    }

    /// Acknowledged records are gone.
    pub(crate) fn set_doubt(&self, doubt: Doubt) {
        let _ = self.doubt.set(doubt);
    }

    /// Whether acknowledged records are gone.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubt.get().is_some()
    }

    /// Refuses an absent value, or one that may have been replaced, when lost records make it
    /// uncertain.
    pub(crate) fn not_in_doubt(&self, found: Option<Lsn>) -> Result<(), StoreError> {
        let Some(doubt) = self.doubt.get() else { return Ok(()) };
        let what = match found {
            Some(version) if version >= doubt.below || self.serve_doubtful => return Ok(()),
            Some(_) => {
                "the known version may have been replaced or deleted since (data.serve_doubtful serves it \
                 nevertheless)"
            }
            None => "whether it existed is unknown",
        };
        Err(StoreError::Doubtful(what))
    }

    /// The index or a record is inconsistent.
    pub(crate) fn distrust(&self) {
        self.distrusted.store(true, Ordering::Release);
    }

    /// Whether the index or a record was inconsistent.
    pub(crate) fn is_distrusted(&self) -> bool {
        self.distrusted.load(Ordering::Acquire)
    }

    /// LSN up to which asynchronous publications may be lost although they were delivered.
    pub(crate) fn lost_lsn(&self) -> Lsn {
        self.lost_lsn.load(Ordering::Acquire)
    }

    /// The log is open, and this is known.
    pub(crate) fn set_lost_lsn(&self, lsn: Lsn) {
        self.lost_lsn.store(lsn, Ordering::Release);
    }
}
