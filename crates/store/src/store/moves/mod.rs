//! Moves of keys between disks while clients read and write them: how a disk joins a pool, and
//! leaves it.
//!
//! A **batch** of slots moves from one disk, its home, to another, its goal. First all entities of
//! these slots are *copied* while clients keep writing. Changes are recorded meanwhile
//! (`shard/dirty.rs`) and copied again, in rounds, until few are left. Then the slots' *gates are
//! closed* (`gates.rs`), for milliseconds: the mover waits for submitted records, copies the rest,
//! and flushes the goal's log. Then it *commits* the next layout, in which the goal is the home.
//! The gates open, and waiting writers find the new home. The old home's copies are garbage from
//! then on and are *swept*: deleted by records of its log, so that their space is freed.
//!
//! An object that cannot be read, or a channel with an unreadable publication, keeps its slot from
//! moving: the status names it, and it stays in place.
//!
//! # Which layout counts
//!
//! The one with the highest generation among the present disks. That must suffice, whichever disk
//! is missing and wherever a crash intervened. The rules:
//!
//! 1. Generation G + 1 is committed only when all disks of G are present, accept writes, and have
//!    G.
//! 2. It is committed first in *one* log, durably, and in the others after that. Where slots move,
//!    the first is that of their **old home**. Where a disk joins or leaves, it is one that stays;
//!    the disk itself is the last.
//! 3. Before that, all entities that the goal must have are durable there.
//! 4. Once it is in the first log it counts: if another log fails then, the switch still takes
//!    place, and nothing more moves.
//! 5. Keys that are not at home on a disk are deleted only when all disks of the layout are present
//!    and have that layout.
//!
//! By 1, disks know of G or of G + 1, and of no other layout. By 2, if any disk knows of G + 1,
//! then the old home does.
//!
//! - *Crash before the first log has it:* no disk has it. The old home is home; the copies are
//!   swept, by 5 only after every disk was checked.
//! - *Crash after that, all disks present:* G + 1 counts and is committed in the others. The goal
//!   has everything, by 3.
//! - *The old home present, others missing:* the same; of the goal's keys, those on a missing goal
//!   are unavailable.
//! - *The old home missing:* the others may know of G only, and by that the slots are at home on
//!   the missing disk: unavailable, so no client writes to them, on either side. Or they know of
//!   G + 1, and the goal serves them, with everything. When the old home returns with G + 1, the
//!   goal still has everything, by 5: nothing was swept while a disk was missing.
//! - *The first log fails while it commits:* it accepts no more writes, so the old home can
//!   acknowledge nothing that the goal lacks, whatever the next start finds in it. The slots stay
//!   there, read-only, until then.
//! - *A disk that joins:* it is home to nothing when the others learn of it, and learns of it last:
//!   a layout that only it knows of does not exist. *One that leaves* is home to nothing when it is
//!   removed, and no other disk depends on what it knows.
//!
//! Before the first key is copied, a layout marks (by 1, everywhere) the *unclean* disks; after the
//! last one was swept, a layout marks them clean. In between, listings skip keys that are not at
//! home, and every run begins with a sweep: a copy of an earlier run might be of an object that has
//! been deleted since.

mod channel;
mod commit;
mod copy;
mod disks;
mod forget;
mod run;
mod sweep;

pub use disks::StoreDisks;
pub use forget::Forgotten;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfast_flow::{Env, Pace};
use tokio::sync::watch;

use crate::status::MoveStatus;
use crate::{StoreError, StoreOptions};

/// Maximum number of unreadable objects that are named; more are counted.
const UNMOVABLE_MAX: usize = 100;

/// State of moves. One move at a time.
pub(crate) struct Moves {
    status: watch::Sender<Option<MoveStatus>>,
    stopping: watch::Sender<bool>,
    /// Whether the mover or an operator request has the turn.
    busy: AtomicBool,
    idle: watch::Sender<bool>,
    pace: Pace,
}

/// The exclusive right to change the pool's disks.
pub(crate) struct Turn<'a>(&'a Moves);

impl Turn<'_> {
    /// Passes the turn to a task of its own, which ends it.
    fn hand_over(self) {
        std::mem::forget(self);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Time for which an idle mover may later exceed its pace.
const PACE_BURST: Duration = Duration::from_millis(100);

impl Moves {
    pub(crate) fn new(options: &StoreOptions, env: &Env) -> Self {
        Self {
            status: watch::Sender::new(None),
            stopping: watch::Sender::new(false),
            busy: AtomicBool::new(false),
            idle: watch::Sender::new(true),
            pace: Pace::new(options.move_bytes_s, PACE_BURST, env.clone()),
        }
    }

    /// The move of keys, running or last.
    pub(crate) fn status(&self) -> Option<MoveStatus> {
        self.status.borrow().clone()
    }

    /// Takes the turn; `None` when it is taken.
    fn begin(&self) -> Option<Turn<'_>> {
        if *self.stopping.borrow() || self.busy.swap(true, Ordering::AcqRel) {
            return None;
        }
        self.idle.send_replace(false);
        Some(Turn(self))
    }

    fn end(&self) {
        let was_busy = self.busy.swap(false, Ordering::AcqRel);
        assert!(was_busy, "a turn ends twice");
        self.idle.send_replace(true);
    }

    /// Stops the running move at the next safe point, for good.
    pub(crate) async fn stop(&self) {
        self.stopping.send_replace(true);
        let mut idle = self.idle.subscribe();
        // This owns the sender, so waiting cannot fail.
        let _ = idle.wait_for(|idle| *idle).await;
    }

    fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    fn update(&self, change: impl FnOnce(&mut MoveStatus)) {
        self.status.send_if_modified(|status| status.as_mut().map(change).is_some());
    }
}

/// Why the mover ends.
enum Stop {
    /// The store is being closed.
    Stopping,
    /// Something failed.
    Failed(String),
}

impl From<StoreError> for Stop {
    fn from(e: StoreError) -> Self {
        match e {
            // The log closed before the stop request arrived here.
            StoreError::Log(steadfast_log::LogError::Closed) => Self::Stopping,
            e => Self::Failed(e.to_string()),
        }
    }
}
