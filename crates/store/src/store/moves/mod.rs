//! Keys that move from disk to disk, while they are read and written: how a disk comes into a pool, and leaves it.
//!
//! A **batch** of slots moves from one disk, its home, to another, its goal. First everything of these slots is *copied*, while they are
//! written to as ever: what changes meanwhile is noted (`shard/dirty.rs`) and copied again, in rounds, until little is left. Then the
//! slots' *gates are closed* (`gates.rs`), for milliseconds: what had been submitted is waited for, the rest copied, the goal's log flushed,
//! and the next layout is *committed*, in which the goal is the home. The gates open, and whoever waited finds the new home. What
//! lies at the old one is garbage from then on and is *swept*: deleted by records of its log, so that its space is won back.
//!
//! An object that cannot be read, or a channel with a publication that cannot, keeps its slot from moving: it is named in the status, and stays where it is.
//!
//! # Which layout counts
//!
//! The one with the highest generation among the disks that are there. That must be enough, whichever disk is missing and wherever a
//! crash came between. The rules:
//!
//! 1. Generation G + 1 is committed only when all disks of G are there, take writes, and have G.
//! 2. It is committed first in *one* log, durably, and in the others after that. Where slots move, the first is that of their
//!    **old home**. Where a disk comes or leaves, it is one that stays; the disk itself is the last.
//! 3. Before that, all that the goal has to have is durable there.
//! 4. Once it is in the first log it counts: if another log fails then, the switch takes place all the same, and nothing more moves.
//! 5. Keys that are not at home on a disk are deleted only when all disks of the layout are there and have that layout.
//!
//! By 1, disks know of G or of G + 1, never of anything older or of anything else. By 2, if any disk knows of G + 1, then the old home does.
//!
//! - *Crash before the first log has it:* nobody has it. The old home is home; the copies are swept, by 5 not before everybody was asked.
//! - *Crash after that, all disks there:* G + 1 counts and is committed in the others. The goal has everything, by 3.
//! - *The old home there, others missing:* the same; of the goal's keys, those on a missing goal are unavailable.
//! - *The old home missing:* the others may know of G only, and by that the slots are at home on the missing disk: unavailable, so nobody
//!   writes to them, on either side. Or they know of G + 1, and the goal serves them, with everything. When the old home comes back
//!   with G + 1, what the goal has is still there, by 5: nothing was swept while a disk was missing.
//! - *The first log fails while it commits:* it takes no writes any more, so nothing can be acknowledged at the old home that the goal does not
//!   have, whatever the next start finds in it. The slots stay there, read-only, until then.
//! - *A disk that comes:* it is home to nothing when the others learn of it, and learns of it last: a layout that only it knows
//!   of does not exist. *One that leaves* is home to nothing when it is taken out, and no other disk depends on what it knows.
//!
//! Before the first key is copied, a layout says (by 1, everywhere) which disks are *unclean*; after the last was swept, one that says
//! that they are clean. In between, listings leave out what is not at home, and every run begins with a sweep: a copy of an earlier run might be of
//! an object that has been deleted since.

mod admin;
mod channel;
mod commit;
mod copy;
mod forget;
mod run;
mod sweep;

pub use forget::Forgotten;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast_flow::{Env, Pace};
use tokio::sync::watch;

use crate::{StoreError, StoreOptions};

/// Objects that could not be read that are named; more are counted.
const UNMOVABLE_MAX: usize = 100;

/// What keys are moved for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveKind {
    /// A disk has come into the pool and gets its share.
    Add,
    /// A disk leaves the pool; the others get its keys.
    Drain,
    /// A disk leaves the pool, and another gets its keys.
    Replace,
}

/// How far that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveState {
    /// It goes on.
    Running,
    /// It was interrupted by a stop of the store, and goes on at the next start.
    Stopped,
    /// It could not be finished: see the error. Nothing is lost; it can be resumed.
    Failed,
    /// It is done.
    Done,
}

/// An object that cannot be read, and so cannot be moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmovable {
    /// What it is, such as `object photos/2026/a.jpg`.
    pub name: String,
    /// Why.
    pub why: String,
}

/// Keys that are being moved, or were last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveStatus {
    /// What for.
    pub kind: MoveKind,
    /// The disk that comes, or else the one that leaves.
    pub disk: String,
    /// How far it is.
    pub state: MoveState,
    /// What is being done, in a word or two.
    pub step: String,
    /// Slots that are at their goal,
    pub slots_done: u64,
    /// of so many.
    pub slots_total: u64,
    /// Objects, uploads, parts and channels that were copied since the start, those that changed meanwhile each time.
    pub copied: u64,
    /// Bytes of them.
    pub copied_bytes: u64,
    /// About how many bytes there were to be moved when it began.
    pub bytes_total: u64,
    /// The bound on bytes a second; 0 for none.
    pub bytes_s_max: u64,
    /// Copies that were deleted from where they are not at home any more.
    pub swept: u64,
    /// When it began, milliseconds since the Unix epoch. After a restart, when it was resumed.
    pub begun_ms: u64,
    /// When it ended; `None` while it goes on.
    pub ended_ms: Option<u64>,
    /// Objects that cannot be read and stay where they are, as many as are kept.
    pub unmovable: Vec<Unmovable>,
    /// How many there are.
    pub unmovable_total: u64,
    /// Why it failed.
    pub error: Option<String>,
}

/// What is moving. One thing at a time.
pub(crate) struct Moves {
    status: watch::Sender<Option<MoveStatus>>,
    stopping: watch::Sender<bool>,
    /// Held by the one who changes which disks there are, and by the mover.
    busy: AtomicBool,
    idle: watch::Sender<bool>,
    pace: Pace,
}

/// The turn of one who changes the disks.
pub(crate) struct Turn<'a>(&'a Moves);

impl Turn<'_> {
    /// The turn goes on, in a task of its own that ends it.
    fn hand_over(self) {
        std::mem::forget(self);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// How long a mover that lay idle may be faster than its pace.
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

    /// Keys that are being moved, or were last.
    pub(crate) fn status(&self) -> Option<MoveStatus> {
        self.status.borrow().clone()
    }

    /// Takes the turn; `None` when another has it.
    fn begin(&self) -> Option<Turn<'_>> {
        if *self.stopping.borrow() || self.busy.swap(true, Ordering::AcqRel) {
            return None;
        }
        self.idle.send_replace(false);
        Some(Turn(self))
    }

    fn end(&self) {
        self.busy.store(false, Ordering::Release);
        self.idle.send_replace(true);
    }

    /// Ends what goes on, at the next safe point, for good.
    pub(crate) async fn stop(&self) {
        self.stopping.send_replace(true);
        let mut idle = self.idle.subscribe();
        // The sender is here: it cannot have gone.
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
            // Before the word to stop came here.
            StoreError::Log(steadfast_log::LogError::Closed) => Self::Stopping,
            e => Self::Failed(e.to_string()),
        }
    }
}
