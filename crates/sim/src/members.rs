//! Disks that come into the pool and leave it in the middle of a run: what is done, and what an operator knows of it.
//!
//! What is given at a start is what a server would give: the disks of the configuration, those that are about to leave too, and those
//! that were about to come as hints. Whether one that was coming or leaving when the power went is a disk of the pool is the
//! store's to say.

use std::time::Duration;

use steadfast_store::{OpenReport, StoreStatus};

use crate::client::Outcome;
use crate::plan::{DiskLife, DiskPlan, Finish, Plan};
use crate::rng::Rng;
use crate::shared::disk_name;

/// A change of the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The spare disk comes.
    Add,
    /// A disk leaves.
    Drain(usize),
    /// A disk leaves, and the spare one gets what it has.
    Replace(usize),
}

/// How the disks of a run change.
#[derive(Debug, Clone)]
pub(crate) struct MovePlan {
    /// What is done, one after the other.
    pub(crate) changes: Vec<Change>,
    /// A disk that is not of the pool at first.
    pub(crate) spare: Option<usize>,
    /// How long before a change at most.
    pub(crate) pause_us_max: u64,
}

/// What an operator knows of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seat {
    /// It is a disk of the pool.
    In,
    /// It is not, and nobody has said that it should be.
    Spare,
    /// It was about to come.
    Coming,
    /// It was about to leave.
    Leaving,
    /// It has left.
    Out,
}

/// What an operator knows of the pool.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// By disk.
    pub(crate) seats: Vec<Seat>,
    /// A change has begun in this run: a key may be elsewhere than it was.
    pub(crate) moved: bool,
    /// Something is not where it is to be.
    pub(crate) unfinished: bool,
}

impl Members {
    pub(crate) fn new(plan: &Plan) -> Self {
        let spare = plan.moves.as_ref().and_then(|moves| moves.spare);
        let seat = |disk| if Some(disk) == spare { Seat::Spare } else { Seat::In };
        Self { seats: (0..plan.disks.len()).map(seat).collect(), moved: false, unfinished: false }
    }

    /// Whether the disk is one that is given at a start.
    pub(crate) fn is_given(&self, disk: usize) -> bool {
        !matches!(self.seats[disk], Seat::Spare | Seat::Out)
    }

    /// Leaves one at least there that is of the pool for certain.
    pub(crate) fn keep_one(&self, fates: &mut [DiskLife]) {
        for (disk, fate) in fates.iter_mut().enumerate() {
            fate.missing &= self.is_given(disk);
        }
        if !fates.iter().zip(&self.seats).any(|(fate, seat)| *seat == Seat::In && !fate.missing) {
            fates.iter_mut().for_each(|fate| fate.missing = false);
        }
    }

    /// What of this is done.
    pub(crate) fn is_done(&self, change: Change, spare: Option<usize>) -> bool {
        let there = spare.is_some_and(|spare| self.seats[spare] == Seat::In);
        match change {
            Change::Add => there,
            Change::Drain(disk) => self.seats[disk] == Seat::Out,
            Change::Replace(disk) => there && self.seats[disk] == Seat::Out,
        }
    }

    /// The store was opened. `missing`: those of its disks that were not there.
    pub(crate) fn opened(&mut self, report: &OpenReport, status: &StoreStatus) -> Outcome {
        let whole = report.missing.is_empty();
        self.unfinished = report.moves_unfinished;
        for disk in 0..self.seats.len() {
            let name = disk_name(disk);
            let there = status.disks.iter().any(|disk| disk.name == name);
            let seat = &mut self.seats[disk];
            match (*seat, there) {
                (Seat::In, false) => return Err(format!("{name} is no disk of the pool any more: {report:?}")),
                (Seat::Spare | Seat::Out, true) => {
                    return Err(format!("{name} is a disk of the pool: {report:?}"));
                }
                (Seat::Coming, true) => *seat = Seat::In,
                // It was not about to leave after all.
                (Seat::Leaving, true) if whole && !report.moves_unfinished => *seat = Seat::In,
                // Only once all know is it known for good.
                (Seat::Coming, false) if whole => *seat = Seat::Spare,
                (Seat::Leaving, false) if whole => *seat = Seat::Out,
                _ => {}
            }
        }
        Ok(())
    }

    /// Keys have arrived.
    pub(crate) fn arrived(&mut self, status: &StoreStatus) -> Outcome {
        self.unfinished = false;
        for (disk, seat) in self.seats.iter_mut().enumerate().filter(|(_, seat)| **seat == Seat::Leaving) {
            let name = disk_name(disk);
            if status.disks.iter().any(|disk| disk.name == name) {
                return Err(format!("{name} is a disk of the pool, though everything that it had has left it"));
            }
            *seat = Seat::Out;
        }
        Ok(())
    }
}

impl Plan {
    /// Lets disks of a pool of several come and go.
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
                // With room for what another has.
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
        // In the middle of it.
        for life in &mut self.lives {
            if matches!(life.finish, Finish::Clean | Finish::CutAtWork(_)) && rng.one_in(2) {
                life.finish = Finish::CutAtWork(rng.range(100, 12_000));
            }
        }
        let pause_us_max = *rng.pick(&[1, 5_000, 100_000]);
        self.moves = Some(MovePlan { changes, spare, pause_us_max });
    }
}

/// How long it may take until everything is where it is to be, once nothing else goes on.
pub(crate) const MOVES_WAIT: Duration = Duration::from_secs(1200);
