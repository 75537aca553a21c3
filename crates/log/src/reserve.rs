//! Reservations of memory (the budget) and disk space for writes.

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

/// A pool is full if compaction frees nothing for this long.
pub(crate) const FREED_WAIT: Duration = Duration::from_secs(3);

/// Space for one batch or one chunk, on disk and in the budget. Released when dropped; by a chunk,
/// when it is on disk.
#[derive(Debug, Clone)]
pub(crate) struct HeldRoom(Arc<HeldRoomInner>);

#[derive(Debug)]
struct HeldRoomInner {
    _permit: Permit,
    need: u64,
    priority: Priority,
    counts: Arc<Mutex<Count>>,
}

impl HeldRoom {
    pub(crate) fn priority(&self) -> Priority {
        self.0.priority
    }
}

impl Drop for HeldRoomInner {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        assert!(counts.outstanding >= self.need, "more space is released than was reserved");
        counts.outstanding -= self.need;
    }
}

/// Space for one batch or one chunk, on disk and in the budget. Released when dropped.
#[derive(Debug)]
#[must_use = "dropping it releases the space"]
pub struct Reservation {
    pub(crate) held: HeldRoom,
}

/// Bytes reserved for writes, and the space left in the open commit extent.
#[derive(Debug, Default)]
struct Count {
    outstanding: u64,
    room: u64,
}

impl Count {
    /// Extents besides the open one that the outstanding bytes and `more` need.
    fn extents(&self, more: u64, usable: u64) -> u64 {
        (self.outstanding + more).saturating_sub(self.room).div_ceil(usable)
    }
}

/// Grants reservations, never more than the space there is, under any concurrency.
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

    /// Sets the space left in the open commit extent.
    pub(crate) fn set_room(&self, bytes: u64) {
        self.counts.lock().room = bytes;
    }

    /// Records that the committer continues in another extent with this space, as one change.
    pub(crate) fn opened(&self, id: &ExtentId, bytes: u64) {
        let mut counts = self.counts.lock();
        self.extents.opened(id);
        counts.room = bytes;
    }

    /// Reserves `bytes` of data within `wait`. Space is checked first, so that a full pool fails at
    /// once.
    pub(crate) async fn acquire(
        &self,
        latch: &Latch,
        bytes: u64,
        priority: Priority,
        wait: Duration,
    ) -> Result<Reservation, LogError> {
        latch.check()?;
        // Headers, the footer's copy of the head, and the padding of a block. Compaction has
        // already counted the footer: its copies must fit where the originals came from.
        let entries = if priority == Priority::Compaction { 0 } else { bytes.min(128 << 10) };
        let need = bytes + entries + 2 * BLOCK as u64;
        let until = self.env.now() + wait;
        loop {
            self.wait_for_space(latch, need, priority, until).await?;
            let permit = self.permit(latch, bytes, priority, until).await?;
            match self.make_space(need, priority, need, until).await {
                // Released before the wait, because compaction may need the permit to free space.
                Err(LogError::Full) if self.may_free(priority) && self.env.now() < until => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(self.held(permit, need, priority)),
            }
        }
    }

    /// Reserves budget for the copy of a chunk. Space is checked when the copy gets its place,
    /// usually in an open extent. Reserving it twice would take it from the records that name the
    /// copies.
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
        Reservation {
            held: HeldRoom(Arc::new(HeldRoomInner { _permit: permit, need, priority, counts: self.counts.clone() })),
        }
    }

    /// Whether a full pool may be temporary: compaction runs and has space to free.
    pub(crate) fn may_free(&self, priority: Priority) -> bool {
        self.compacts && priority != Priority::Compaction && self.extents.dead_bytes() >= self.extent_bytes
    }

    /// Waits for space while compaction can free some, as long as it keeps freeing extents.
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

    /// Reserves `take` more bytes if there is space for `need`. Grows the pool if possible. A
    /// hanging disk delays the caller only until its deadline.
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

    /// Bytes that an empty extent surely takes: a quarter may be the footer's, and a quarter too
    /// small for a frame.
    fn usable(&self) -> u64 {
        self.extent_bytes / 2
    }

    fn take_space(&self, need: u64, priority: Priority, take: u64) -> bool {
        let mut counts = self.counts.lock();
        // A prepared extent counts as free for requests that must leave a reserve. In a full pool
        // it was taken from that reserve; if it counted as used, they could not use the open
        // extent.
        let spare = self.extents.spare().all();
        let kept = u64::from(self.extents.kept_from(priority));
        if spare < kept {
            // Compaction is copying into the last extents, and has counted on all their free space.
            return false;
        }
        // The last part of the open commit extent is for requests that free space: deletes, and
        // after them compaction. The last free extent alone may be too small for what compaction
        // copies.
        let margin = if priority != Priority::Compaction && spare == kept { self.extent_bytes / 8 } else { 0 };
        let extents = counts.extents(need + margin, self.usable());
        let there_is = extents + kept <= spare;
        if there_is {
            counts.outstanding += take;
        }
        there_is
    }

    /// Whether compaction can reserve `bytes` of records and footer entries, from all remaining
    /// space.
    pub(crate) fn holds(&self, bytes: u64) -> bool {
        self.holds_in(bytes, Spare::all)
    }

    /// As [`Self::holds`], without the free extents.
    pub(crate) fn holds_without_free(&self, bytes: u64) -> bool {
        self.holds_in(bytes, |spare| spare.prepared)
    }

    /// As [`Self::holds`], in the open extent alone.
    pub(crate) fn open_holds(&self, bytes: u64) -> bool {
        self.holds_in(bytes, |_| 0)
    }

    fn holds_in(&self, bytes: u64, beside: impl Fn(Spare) -> u64) -> bool {
        let counts = self.counts.lock();
        // A batch that does not fit wastes the rest; frames are padded to blocks.
        let room = counts.room + beside(self.extents.spare()) * (self.extent_bytes - self.extent_bytes / 32);
        counts.outstanding + bytes + bytes / 32 <= room
    }

    /// Whether a body extent may be taken without using the space reserved for commits.
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
