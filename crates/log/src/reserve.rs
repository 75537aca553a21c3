//! Room for what is to be written: in memory (the budget) and on disk (free space).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_disk::BLOCK;
use steadfast_flow::stages::{self, Stage};
use steadfast_flow::{Budget, Env, FlowStatus, Permit, Refused};

use crate::extents::{Extents, Spare, TakeError};
use crate::format::ExtentId;
use crate::latch::Latch;
use crate::options::LogOptions;
use crate::{LogError, Priority};

/// A pool in which compaction frees nothing for so long is full.
pub(crate) const FREED_WAIT: Duration = Duration::from_secs(3);

/// Room for one batch or one chunk, on disk and in the budget. Given back when dropped (by a chunk: when it is on disk).
#[derive(Debug, Clone)]
pub(crate) struct Held(Arc<HeldInner>);

#[derive(Debug)]
struct HeldInner {
    _permit: Permit,
    need: u64,
    priority: Priority,
    counts: Arc<Mutex<Count>>,
}

impl Held {
    pub(crate) fn priority(&self) -> Priority {
        self.0.priority
    }
}

impl Drop for HeldInner {
    fn drop(&mut self) {
        self.counts.lock().outstanding -= self.need;
    }
}

/// Room for one batch or one chunk, on disk and in the budget. Given back when dropped.
#[derive(Debug)]
#[must_use = "dropping it gives the room back"]
pub struct Reservation {
    pub(crate) held: Held,
}

/// Bytes counted on to be written, and what the open commit extent can still take.
#[derive(Debug, Default)]
struct Count {
    outstanding: u64,
    room: u64,
}

impl Count {
    /// Extents beside the open one that it takes to hold what is outstanding and `more`.
    fn extents(&self, more: u64, usable: u64) -> u64 {
        (self.outstanding + more).saturating_sub(self.room).div_ceil(usable)
    }
}

/// Grants room: never more than there is, whatever comes at once.
pub(crate) struct Room {
    extents: Extents,
    extent_bytes: u64,
    writes: Budget,
    reserve: Budget,
    counts: Arc<Mutex<Count>>,
    compacts: bool,
    env: Env,
}

impl Room {
    pub(crate) fn new(extents: Extents, extent_bytes: u64, options: &LogOptions, env: &Env) -> Self {
        Self {
            extents,
            extent_bytes,
            writes: Budget::new("log_pending", options.pending_bytes_max, env.clone()),
            reserve: Budget::new("log_pending_reserve", options.pending_reserve_bytes_max, env.clone()),
            counts: Arc::default(),
            compacts: options.compaction.enabled,
            env: env.clone(),
        }
    }

    pub(crate) fn pending(&self) -> (u64, u64) {
        (self.writes.used_bytes() + self.reserve.used_bytes(), self.writes.limit_bytes() + self.reserve.limit_bytes())
    }

    /// The budgets: of new data, and of deletes and compaction.
    pub(crate) fn budgets(&self) -> Vec<FlowStatus> {
        vec![self.writes.status(), self.reserve.status()]
    }

    /// What the open commit extent can still take.
    pub(crate) fn set_room(&self, bytes: u64) {
        self.counts.lock().room = bytes;
    }

    /// The committer goes on in another extent, which can take this much: as one change for those who count.
    pub(crate) fn opened(&self, id: &ExtentId, bytes: u64) {
        let mut counts = self.counts.lock();
        self.extents.opened(id);
        counts.room = bytes;
    }

    /// Room for `bytes` of data, within `wait`. Space first, so that a pool that is full for good says so at once.
    pub(crate) async fn acquire(
        &self,
        latch: &Latch,
        bytes: u64,
        priority: Priority,
        wait: Duration,
    ) -> Result<Reservation, LogError> {
        latch.check()?;
        // Headers, the footer's copy of the head, and the rest of a block that a frame alone does not fill. Compaction has counted the
        // footer's part: what it copies must fit where it came from.
        let entries = if priority == Priority::Compaction { 0 } else { bytes.min(128 << 10) };
        let need = bytes + entries + 2 * BLOCK as u64;
        let until = self.env.now() + wait;
        loop {
            self.wait_for_space(latch, need, priority, until).await?;
            let permit = self.permit(latch, bytes, priority, until).await?;
            match self.make_space(need, priority, need, until).await {
                // Not waited for with the permit in hand: compaction may need it to make the space.
                Err(LogError::Full) if self.may_free(priority) && self.env.now() < until => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(self.held(permit, need, priority)),
            }
        }
    }

    /// Room in the budget for the copy of a chunk. Whether there is space is found out when it gets its place, in an open extent more often
    /// than not: to count on it beside that would take it from what points at the copies.
    pub(crate) async fn acquire_copy(
        &self,
        latch: &Latch,
        bytes: u64,
        wait: Duration,
    ) -> Result<Reservation, LogError> {
        let permit = self.permit(latch, bytes, Priority::Compaction, self.env.now() + wait).await?;
        Ok(self.held(permit, 0, Priority::Compaction))
    }

    async fn permit(&self, latch: &Latch, bytes: u64, priority: Priority, until: Duration) -> Result<Permit, LogError> {
        latch.check()?;
        let budget = if priority == Priority::Write { &self.writes } else { &self.reserve };
        let permit = match budget.acquire(bytes.max(1), until.saturating_sub(self.env.now())).await {
            Ok(permit) => permit,
            Err(Refused::TooLarge { wanted, limit, .. }) => {
                return Err(LogError::TooLarge(format!("{wanted} bytes are beyond the write budget of {limit}")));
            }
            Err(refused) => return Err(LogError::Busy { waited: refused.waited() }),
        };
        latch.check()?;
        Ok(permit)
    }

    fn held(&self, permit: Permit, need: u64, priority: Priority) -> Reservation {
        Reservation { held: Held(Arc::new(HeldInner { _permit: permit, need, priority, counts: self.counts.clone() })) }
    }

    /// Whether a full pool is one for a moment only: compaction runs and has something to give back.
    pub(crate) fn may_free(&self, priority: Priority) -> bool {
        self.compacts && priority != Priority::Compaction && self.extents.dead_bytes() >= self.extent_bytes
    }

    /// Returns when there is space. Waits for compaction where that can make some, as long as extents go on being freed.
    async fn wait_for_space(
        &self,
        latch: &Latch,
        need: u64,
        priority: Priority,
        until: Duration,
    ) -> Result<(), LogError> {
        loop {
            let freed = std::pin::pin!(self.extents.freed());
            match self.make_space(need, priority, 0, until).await {
                Err(LogError::Full) if self.may_free(priority) => {}
                other => return other,
            }
            let _lap = stages::enter(Stage::Reserve);
            let left = until.saturating_sub(self.env.now()).min(FREED_WAIT);
            if left.is_zero() || self.env.timeout(left, freed).await.is_none() {
                return Err(LogError::Full);
            }
            latch.check()?;
        }
    }

    /// Counts on `take` more bytes if there is space for `need`, growing the pool if it can: a disk that hangs keeps nobody longer than
    /// until his deadline.
    async fn make_space(&self, need: u64, priority: Priority, take: u64, until: Duration) -> Result<(), LogError> {
        if self.take_space(need, priority, take) {
            return Ok(());
        }
        let _lap = stages::enter(Stage::Reserve);
        let begun = self.env.now();
        let grown = self.env.timeout(until.saturating_sub(begun), self.grow_for(need, priority, take)).await;
        grown.unwrap_or_else(|| Err(LogError::Busy { waited: self.env.now().saturating_sub(begun) }))
    }

    async fn grow_for(&self, need: u64, priority: Priority, take: u64) -> Result<(), LogError> {
        while !self.take_space(need, priority, take) {
            match self.extents.grow(|| !self.take_space(need, priority, 0)).await {
                Ok(()) => {}
                Err(TakeError::Full) => return Err(LogError::Full),
                Err(error) => return Err(error.into_log_error()),
            }
        }
        Ok(())
    }

    /// Bytes that an empty extent can be counted on to take: a quarter may go to the footer, and a quarter be too little for a frame.
    fn usable(&self) -> u64 {
        self.extent_bytes / 2
    }

    fn take_space(&self, need: u64, priority: Priority, take: u64) -> bool {
        let mut counts = self.counts.lock();
        // What is prepared is as good as free to those who are to leave some: it was taken from what is kept, in a full pool, and would
        // shut them out of the open one if it counted as gone.
        let spare = self.extents.spare().all();
        let kept = u64::from(self.extents.kept_from(priority));
        if spare < kept {
            // Compaction is copying into the last ones, and has counted on all that is left in them.
            return false;
        }
        // The last part of the open commit extent is for those who make room: for deletes, and after them for compaction, which would
        // find no extent that fits into the last free one alone.
        let margin = if priority != Priority::Compaction && spare == kept { self.extent_bytes / 8 } else { 0 };
        let extents = counts.extents(need + margin, self.usable());
        let there_is = extents + kept <= spare;
        if there_is {
            counts.outstanding += take;
        }
        there_is
    }

    /// Whether compaction may count on room for `bytes` of records and of their entries in the footer, to the last of it.
    pub(crate) fn holds(&self, bytes: u64) -> bool {
        self.holds_in(bytes, Spare::all)
    }

    /// The same without those extents that are free.
    pub(crate) fn holds_without_free(&self, bytes: u64) -> bool {
        self.holds_in(bytes, |spare| spare.prepared)
    }

    /// The same in the open extent alone.
    pub(crate) fn open_holds(&self, bytes: u64) -> bool {
        self.holds_in(bytes, |_| 0)
    }

    fn holds_in(&self, bytes: u64, beside: impl Fn(Spare) -> u64) -> bool {
        let counts = self.counts.lock();
        // A batch that does not fit wastes what is left; frames are padded to blocks.
        let room = counts.room + beside(self.extents.spare()) * (self.extent_bytes - self.extent_bytes / 32);
        counts.outstanding + bytes + bytes / 32 <= room
    }

    /// Whether a body extent may be taken without pulling the ground from under commits that were promised room.
    pub(crate) async fn body_may_grow(&self, priority: Priority) -> bool {
        let may = || {
            let counts = self.counts.lock();
            let spare = self.extents.spare();
            let promised = counts.extents(0, self.usable()).saturating_sub(spare.prepared);
            promised + u64::from(self.extents.kept_from(priority)) < spare.free
        };
        while !may() {
            if self.extents.grow(|| !may()).await.is_err() {
                return false;
            }
        }
        true
    }
}
