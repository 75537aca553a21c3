//! Room for what is to be written: in memory (the budget) and on disk (free space).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use steadfast_disk::BLOCK;
use steadfast_flow::{Budget, Env, Permit, Refused};

use crate::extents::{Extents, TakeError};
use crate::latch::Latch;
use crate::options::LogOptions;
use crate::{LogError, Priority};

/// Room for one batch or one chunk, on disk and in the budget. Given back when dropped.
#[derive(Debug)]
#[must_use = "dropping it gives the room back"]
pub struct Reservation {
    _permit: Permit,
    need: u64,
    outstanding: Arc<AtomicU64>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.outstanding.fetch_sub(self.need, Relaxed);
    }
}

/// What is counted on to be written, and into how much room.
pub(crate) struct Room {
    extents: Extents,
    extent_bytes: u64,
    writes: Budget,
    reserve: Budget,
    /// Bytes that open (and prepared) extents can still take.
    pub(crate) commit_room: AtomicU64,
    pub(crate) prepared_room: AtomicU64,
    pub(crate) body_room: AtomicU64,
    commit_outstanding: Arc<AtomicU64>,
    body_outstanding: Arc<AtomicU64>,
}

/// What the room is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Commit,
    Body,
}

impl Room {
    pub(crate) fn new(extents: Extents, extent_bytes: u64, options: &LogOptions, env: &Env) -> Self {
        Self {
            extents,
            extent_bytes,
            writes: Budget::new("log_pending", options.pending_bytes_max, env.clone()),
            reserve: Budget::new("log_pending_reserve", options.pending_reserve_bytes_max, env.clone()),
            commit_room: AtomicU64::new(0),
            prepared_room: AtomicU64::new(0),
            body_room: AtomicU64::new(0),
            commit_outstanding: Arc::default(),
            body_outstanding: Arc::default(),
        }
    }

    pub(crate) fn pending(&self) -> (u64, u64) {
        (self.writes.used_bytes() + self.reserve.used_bytes(), self.writes.limit_bytes() + self.reserve.limit_bytes())
    }

    /// Room for `bytes` of data. Space first, so that a full pool says so at once instead of after `wait`.
    pub(crate) async fn acquire(
        &self,
        latch: &Latch,
        what: Use,
        bytes: u64,
        priority: Priority,
        wait: Duration,
    ) -> Result<Reservation, LogError> {
        latch.check()?;
        // Headers, the footer's copy of the head, and the rest of a block that a frame alone does not fill.
        let need = bytes + bytes.min(128 << 10) + 2 * BLOCK as u64;
        while !self.has_space(what, need, priority) {
            match self.extents.grow().await {
                Ok(()) => {}
                Err(TakeError::Full) => return Err(LogError::Full),
                Err(error) => return Err(error.into_log_error(latch)),
            }
        }
        let budget = if priority == Priority::Write { &self.writes } else { &self.reserve };
        let permit = match budget.acquire(bytes.max(1), wait).await {
            Ok(permit) => permit,
            Err(Refused::TooLarge { wanted, limit, .. }) => {
                return Err(LogError::TooLarge(format!("{wanted} bytes are beyond the write budget of {limit}")));
            }
            Err(refused) => return Err(LogError::Busy { waited: refused.waited() }),
        };
        latch.check()?;
        let outstanding = match what {
            Use::Commit => &self.commit_outstanding,
            Use::Body => &self.body_outstanding,
        };
        outstanding.fetch_add(need, Relaxed);
        Ok(Reservation { _permit: permit, need, outstanding: outstanding.clone() })
    }

    /// Bytes that an empty extent can be counted on to take: what is left may go to the footer, or be too little for a frame.
    pub(crate) fn usable(&self) -> u64 {
        self.extent_bytes / 2
    }

    fn has_space(&self, what: Use, need: u64, priority: Priority) -> bool {
        let (room, outstanding) = match what {
            Use::Commit => {
                (self.commit_room.load(Relaxed) + self.prepared_room.load(Relaxed), &self.commit_outstanding)
            }
            Use::Body => (self.body_room.load(Relaxed), &self.body_outstanding),
        };
        let free = self.extents.free();
        let kept = self.extents.kept_from(priority);
        let usable = self.usable();
        let margin = match priority {
            _ if free > kept || what == Use::Body => 0,
            // The last part of the commit extent is for those who make room.
            Priority::Write => self.extent_bytes / 4,
            Priority::Delete => self.extent_bytes / 8,
            Priority::Compaction => 0,
        };
        let room = room + u64::from(free.saturating_sub(kept)) * usable;
        room >= outstanding.load(Relaxed) + need + margin
    }
}
