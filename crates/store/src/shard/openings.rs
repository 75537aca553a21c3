//! The openings of a disk's log: whether the index continues from them, and whether the last run
//! closed.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_log::{History, Lsn, RecoveryReport};

use crate::record::keys;
use crate::shard::applied::AppliedState;
use crate::shard::checkpoint::{Checkpoint, CleanClose};
use crate::shard::checkpoints::Checkpoints;

/// The openings of the log that the index depends on.
pub(crate) struct Openings {
    /// LSN of the checkpoint with which the index was opened, and the opening of the log that
    /// committed its last record.
    opened_with: (Lsn, u64),
    /// The opening of the log that wrote last before this one; 0 when unknown.
    before: AtomicU64,
    /// This opening of the log; 0 when read-only.
    current: AtomicU64,
    /// Why the index cannot be used: it must be rebuilt.
    unfit: Mutex<Option<String>>,
}

impl Openings {
    /// Begins with the checkpoint with which the index was opened.
    pub(crate) fn new(opened_with: &Checkpoint) -> Self {
        Self {
            opened_with: (opened_with.lsn, opened_with.opening),
            before: AtomicU64::new(0),
            current: AtomicU64::new(0),
            unfit: Mutex::new(None),
        }
    }

    /// Whether the index belongs to this history of the log.
    pub(crate) fn can_continue(&self, history: &History) -> bool {
        self.before.store(history.newest(), Ordering::Release);
        let (lsn, opening) = self.opened_with;
        let fits = if lsn == 0 { Ok(()) } else { history.check_continues(lsn, opening) };
        fits.inspect_err(|why| *self.unfit.lock() = Some((*why).to_owned())).is_ok()
    }

    /// Why the index cannot be used, if that was found.
    pub(crate) fn unfit(&self) -> Option<String> {
        self.unfit.lock().take()
    }

    /// Whether the index has a checkpoint without a history, as old builds wrote it.
    pub(crate) fn is_nameless(&self) -> bool {
        self.opened_with.0 > 0 && self.opened_with.1 == 0
    }

    /// The log is open; `opening` is 0 when it is read-only.
    pub(crate) fn begin(&self, opening: u64) {
        self.current.store(opening, Ordering::Release);
    }

    /// The clean-close record of the previous run, if the log is as that run left it.
    pub(crate) fn closed_before(&self, applied: &AppliedState, recovery: &RecoveryReport) -> Option<CleanClose> {
        let (opening, lsn) = (self.before.load(Ordering::Acquire), applied.progress.borrow().lsn);
        let whole = !recovery.read_only && recovery.damage.is_empty() && recovery.doubt.is_none();
        if opening == 0 || !whole || recovery.last_lsn > lsn {
            return None;
        }
        let value = applied.index.get(&keys::closed(opening)).ok()??;
        CleanClose::decode(&value).ok().filter(|closed| closed.lsn == lsn)
    }

    /// Records in the index that all publications are on the disk; the caller writes it. Called
    /// when the log is closed and the checkpoint written.
    pub(crate) fn write_closed(&self, applied: &AppliedState, checkpoints: &Checkpoints) -> bool {
        let (opening, progress) = (self.current.load(Ordering::Acquire), *applied.progress.borrow());
        let whole = applied.index.is_well() && !progress.failed && !applied.losses.is_distrusted();
        let whole = whole && !applied.losses.is_doubtful() && checkpoints.lsn() == progress.lsn;
        if opening == 0 || !whole {
            return false;
        }
        let closed =
            CleanClose { lsn: progress.lsn, lost: applied.losses.lost(), clock_ms: applied.clock.believed_ms() };
        let (mine, lsn) = (Bytes::from(keys::closed(opening)), progress.lsn.max(1));
        let before: Vec<_> = applied.index.range(keys::CLOSED, keys::past(keys::CLOSED).as_deref()).collect();
        for (key, _) in before.into_iter().flatten() {
            applied.index.remove(key, lsn);
        }
        applied.index.insert(mine, closed.encode().into(), lsn);
        applied.index.seal();
        true
    }
}
