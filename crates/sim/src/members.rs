//! Disks that join and leave the pool during a run: the planned changes, and the operator's
//! knowledge of them.
//!
//! A start gets the disks that a server would give: the configured ones, including those about to
//! leave, and as hints those about to join. After a power cut during a change, the store decides
//! whether that disk belongs to the pool.

use std::time::Duration;

use steadfast_store::{OpenReport, StoreStatus};

use crate::outcome::Outcome;
use crate::plan::{Change, DiskLife, DiskPlan, Finish, MovePlan, Plan};
use crate::rng::Rng;

/// The operator's knowledge of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Membership {
    /// The disk belongs to the pool.
    Member,
    /// The disk does not belong to the pool, and no change adds it yet.
    Spare,
    /// The disk was about to join.
    Joining,
    /// The disk was about to leave.
    Leaving,
    /// The disk has left.
    Left,
}

/// The operator's knowledge of the pool.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// The membership of each disk.
    pub(crate) memberships: Vec<Membership>,
    /// Whether a change has begun in this run, so that a key may have moved.
    pub(crate) moved: bool,
    /// Whether moves are unfinished.
    pub(crate) unfinished: bool,
}

impl Members {
    pub(crate) fn new(plan: &Plan) -> Self {
        let spare = plan.moves.as_ref().and_then(|moves| moves.spare);
        let membership = |disk| if Some(disk) == spare { Membership::Spare } else { Membership::Member };
        Self { memberships: (0..plan.disks.len()).map(membership).collect(), moved: false, unfinished: false }
    }

    /// Whether a start gets this disk.
    pub(crate) fn is_given(&self, disk: usize) -> bool {
        !matches!(self.memberships[disk], Membership::Spare | Membership::Left)
    }

    /// Ensures that at least one certain member of the pool is present.
    pub(crate) fn keep_one(&self, fates: &mut [DiskLife]) {
        for (disk, fate) in fates.iter_mut().enumerate() {
            fate.missing &= self.is_given(disk);
        }
        if !fates
            .iter()
            .zip(&self.memberships)
            .any(|(fate, membership)| *membership == Membership::Member && !fate.missing)
        {
            fates.iter_mut().for_each(|fate| fate.missing = false);
        }
    }

    /// Whether this change is complete.
    pub(crate) fn is_done(&self, change: Change, spare: Option<usize>) -> bool {
        let there = spare.is_some_and(|spare| self.memberships[spare] == Membership::Member);
        match change {
            Change::Add => there,
            Change::Drain(disk) => self.memberships[disk] == Membership::Left,
            Change::Replace(disk) => there && self.memberships[disk] == Membership::Left,
        }
    }

    /// Updates the memberships after the store has opened.
    pub(crate) fn opened(&mut self, report: &OpenReport, status: &StoreStatus) -> Outcome {
        let whole = report.missing.is_empty();
        self.unfinished = report.moves_unfinished;
        for disk in 0..self.memberships.len() {
            let name = disk_name(disk);
            let there = status.disks.iter().any(|disk| disk.name == name);
            let membership = &mut self.memberships[disk];
            match (*membership, there) {
                (Membership::Member, false) => {
                    return Err(format!("{name} no longer belongs to the pool: {report:?}"));
                }
                (Membership::Spare | Membership::Left, true) => {
                    return Err(format!("{name} must not belong to the pool: {report:?}"));
                }
                (Membership::Joining, true) => *membership = Membership::Member,
                // The drain had not begun.
                (Membership::Leaving, true) if whole && !report.moves_unfinished => *membership = Membership::Member,
                // The answer is final only if no disk is missing.
                (Membership::Joining, false) if whole => *membership = Membership::Spare,
                (Membership::Leaving, false) if whole => *membership = Membership::Left,
                _ => {}
            }
        }
        Ok(())
    }

    /// Updates the memberships after all moves have finished.
    pub(crate) fn arrived(&mut self, status: &StoreStatus) -> Outcome {
        self.unfinished = false;
        for (disk, membership) in
            self.memberships.iter_mut().enumerate().filter(|(_, membership)| **membership == Membership::Leaving)
        {
            let name = disk_name(disk);
            if status.disks.iter().any(|disk| disk.name == name) {
                return Err(format!("{name} still belongs to the pool, though its drain has finished"));
            }
            *membership = Membership::Left;
        }
        Ok(())
    }
}

impl Plan {
    /// Adds changes of the disks to the plan of a pool of several disks.
    pub(crate) fn change_disks(&mut self, rng: &mut Rng, extent_bytes: u64) {
        let count = self.disks.len();
        let some = rng.below(count as u64) as usize;
        let changes = match rng.below(6) {
            0..=1 => vec![Change::Drain(some)],
            2 => vec![Change::Add],
            3 => vec![Change::Add, Change::Drain(some)],
            4 => vec![Change::Drain(some), Change::Add],
            _ => vec![Change::Replace(some)],
        };
        let spare = changes.iter().any(|change| !matches!(change, Change::Drain(_))).then_some(count);
        if spare.is_some() {
            let mut profile = self.disks[some].profile;
            profile.growable = rng.one_in(2);
            profile.prefill_pays &= profile.growable;
            self.disks.push(DiskPlan {
                // Large enough for another disk's data.
                capacity_bytes: (1 << 20) + rng.range(12, 32) * extent_bytes,
                rates: Default::default(),
                faults: 0,
                squeezed: false,
                profile,
                fast: None,
                zones: None,
            });
            self.lives.iter_mut().for_each(|life| life.disks.push(DiskLife::CALM));
        }
        self.store.move_bytes_s = *rng.pick(&[0, 0, 1 << 20, 8 << 20]);
        self.store.move_batch_bytes = *rng.pick(&[32 << 10, 256 << 10, 16 << 20]);
        self.store.move_parallel = rng.range(1, 4) as usize;
        self.store.move_dirty_max = *rng.pick(&[1, 4, 1_000]);
        // Cuts the power during the change.
        for life in &mut self.lives {
            if matches!(life.finish, Finish::Clean | Finish::CutAtWork(_)) && rng.one_in(2) {
                life.finish = Finish::CutAtWork(rng.range(100, 12_000));
            }
        }
        let pause_us_max = *rng.pick(&[1, 5_000, 100_000]);
        self.moves = Some(MovePlan { changes, spare, pause_us_max });
    }
}

/// Limit for the moves to finish after other work has stopped.
pub(crate) const MOVES_WAIT: Duration = Duration::from_secs(1200);

/// Name of the disk with this number.
pub(crate) fn disk_name(disk: usize) -> String {
    format!("disk-{disk}")
}
