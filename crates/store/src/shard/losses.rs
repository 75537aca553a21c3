//! What is lost or uncertain on a disk.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use steadfast_log::{Doubt, Lsn};

use crate::StoreError;
use crate::record::epoch_break::{EpochBreak, another_epoch};

/// What an unclean stop may have lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AsyncLosses {
    /// Up to this record, asynchronous publications that followed it may be lost.
    pub(crate) lsn: Lsn,
    /// The opening that found this; it makes the epochs of these channels.
    pub(crate) opening: u64,
}

/// What is lost or uncertain on a disk.
pub(crate) struct Losses {
    /// Set when acknowledged records are gone from the log, and the index does not have them.
    doubt: OnceLock<Doubt>,
    /// Serve values that may have been replaced.
    serve_doubtful: bool,
    /// Whether the index or a record was inconsistent.
    distrusted: AtomicBool,
    /// Asynchronous publications that may be lost although they were delivered: up to the last
    /// record at the opening, unless the shard had closed cleanly.
    lost: RwLock<AsyncLosses>,
    /// The newest break of epochs, with the LSN of its record.
    epoch_break: RwLock<Option<(Lsn, EpochBreak)>>,
}

impl Losses {
    /// Nothing is known to be lost. Until the log is open, any asynchronous publication may be.
    pub(crate) fn new(serve_doubtful: bool) -> Self {
        Self {
            doubt: OnceLock::new(),
            serve_doubtful,
            distrusted: AtomicBool::new(false),
            lost: RwLock::new(AsyncLosses { lsn: Lsn::MAX, opening: 0 }),
            epoch_break: RwLock::new(None),
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

    /// Asynchronous publications that may be lost although they were delivered.
    pub(crate) fn lost(&self) -> AsyncLosses {
        *self.lost.read()
    }

    /// The log is open, and this is known.
    pub(crate) fn set_lost(&self, lost: AsyncLosses) {
        *self.lost.write() = lost;
    }

    /// The newest break of epochs on this disk.
    pub(crate) fn epoch_break(&self) -> Option<EpochBreak> {
        self.epoch_break.read().map(|(_, epoch_break)| epoch_break)
    }

    /// A break of epochs is in the log, with this LSN.
    pub(crate) fn set_epoch_break(&self, lsn: Lsn, epoch_break: EpochBreak) {
        *self.epoch_break.write() = Some((lsn, epoch_break));
    }

    /// The current epoch of a channel whose newest record is `version`, with the epoch that the
    /// record has. It is another one if publications after that record may have been lost, because
    /// their offsets may be given out again.
    pub(crate) fn epoch_of(&self, version: Lsn, is_async: bool, recorded: u32) -> u32 {
        let mut epoch = recorded;
        if let Some((lsn, epoch_break)) = *self.epoch_break.read()
            && version <= lsn
        {
            epoch = another_epoch(epoch, epoch_break.drawn);
        }
        let lost = self.lost();
        if is_async && version <= lost.lsn {
            epoch = another_epoch(epoch, lost.opening);
        }
        epoch
    }
}
