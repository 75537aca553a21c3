//! The operator: adds disks, drains them and replaces them while clients work, and goes on with what a crash cut off.

use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::Env;
use steadfast_log::LogError;
use steadfast_store::{MoveState, PoolDisk, Store, StoreError};

use crate::array::Bay;
use crate::client::Outcome;
use crate::members::{Change, MovePlan, Seat};
use crate::plan::Plan;
use crate::rng::Rng;
use crate::shared::{Shared, disk_name};

/// What it takes to change the disks.
pub(crate) struct Operator {
    pub(crate) shared: Arc<Shared>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) store: Store,
    pub(crate) env: Env,
    /// The spare disk.
    pub(crate) spare: Option<Bay>,
    pub(crate) rng: Rng,
}

/// How something ended that was begun.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Done,
    /// What struck a disk, or that it is full, is the reason that it cannot go on now.
    NotNow,
}

impl Operator {
    /// Does what is planned, as far as that can be done now.
    pub(crate) async fn work(&mut self) -> Outcome {
        let Some(moves) = self.plan.moves.clone() else { return Ok(()) };
        // As a server does at its start.
        if self.resume().await? == End::NotNow {
            return Ok(());
        }
        for change in &moves.changes {
            if self.shared.members.lock().is_done(*change, moves.spare) {
                continue;
            }
            self.env.sleep(Duration::from_micros(self.rng.below(moves.pause_us_max))).await;
            if self.begin(*change, &moves).await? == End::NotNow || self.arrive().await? == End::NotNow {
                return Ok(());
            }
        }
        Ok(())
    }

    fn say(&self, what: &'static str, more: u64, told: impl FnOnce() -> String) {
        let now = self.env.now().as_nanos() as u64;
        self.shared.trace.say(now, what, [more, 0, 0], || format!("operator: {}", told()));
    }

    async fn resume(&self) -> Outcome<End> {
        if !self.shared.members.lock().unfinished {
            return Ok(End::Done);
        }
        match self.store.resume_moves() {
            Ok(going) => {
                self.say("resume", u64::from(going), || format!("resumes: {going}"));
                self.shared.counts.lock().moves_resumed += u64::from(going);
                if going { self.arrive().await } else { Err("there is nothing to resume".to_owned()) }
            }
            Err(error) => self.refused(&error),
        }
    }

    async fn begin(&self, change: Change, moves: &MovePlan) -> Outcome<End> {
        self.say("change", 0, || format!("{change:?}"));
        let new = || -> Option<(usize, Bay)> { Some((moves.spare?, self.spare.clone()?)) };
        {
            let mut members = self.shared.members.lock();
            members.moved = true;
            match change {
                Change::Add => {}
                Change::Drain(disk) | Change::Replace(disk) => members.seats[disk] = Seat::Leaving,
            }
            if let (Change::Add | Change::Replace(_), Some(spare)) = (change, moves.spare) {
                members.seats[spare] = Seat::Coming;
            }
        }
        let begun = match change {
            Change::Drain(disk) => self.store.drain_disk(&disk_name(disk)).await,
            Change::Add | Change::Replace(_) => {
                let Some((number, bay)) = new() else { return Err("there is no spare disk".to_owned()) };
                let opened = bay.open().await.map_err(|error| format!("the spare disk does not open: {error}"))?;
                let disk = PoolDisk { name: disk_name(number), disk: Ok(opened.disk), hint: false };
                match change {
                    Change::Replace(old) => self.store.replace_disk(&disk_name(old), disk).await,
                    _ => self.store.add_disk(disk).await,
                }
            }
        };
        let error = match begun {
            Ok(()) => {
                let mut members = self.shared.members.lock();
                members.unfinished = true;
                if let (Change::Add | Change::Replace(_), Some(spare)) = (change, moves.spare) {
                    members.seats[spare] = Seat::In;
                }
                self.shared.counts.lock().moves_begun += 1;
                return Ok(End::Done);
            }
            Err(error) => error,
        };
        self.say("change refused", 0, || error.to_string());
        if let StoreError::Log(LogError::Open(_)) = &error {
            // Refused before anything was done.
            let mut members = self.shared.members.lock();
            for seat in &mut members.seats {
                match seat {
                    Seat::Leaving => *seat = Seat::In,
                    Seat::Coming => *seat = Seat::Spare,
                    _ => {}
                }
            }
        }
        self.refused(&error)
    }

    /// Whether a change may be refused for that reason.
    fn refused(&self, error: &StoreError) -> Outcome<End> {
        let faults = self.shared.faults();
        let said = error.to_string();
        let full = matches!(error, StoreError::Log(LogError::Full)) || said.contains("there is room for");
        // A disk takes its part of a snapshot with it.
        let full = full || self.plan.snapshots > 0 && said.contains("snapshots stay on the disks");
        if full || faults.write_errors() || faults.damage() || faults.read_eio > 0 {
            self.shared.counts.lock().moves_refused += 1;
            return Ok(End::NotNow);
        }
        match error {
            StoreError::Busy(_) | StoreError::Log(LogError::Busy { .. }) => Ok(End::NotNow),
            other => Err(format!("the disks cannot be changed, without reason: {other:?}")),
        }
    }

    /// Waits until the keys have arrived.
    async fn arrive(&self) -> Outcome<End> {
        let mut moving = self.store.moving();
        let ended = moving.wait_for(|m| m.as_ref().is_none_or(|m| m.state != MoveState::Running)).await;
        let Some(ended) = ended.ok().and_then(|m| m.clone()) else {
            return Err("what moves cannot be followed".to_owned());
        };
        self.say("moves end", ended.copied, || format!("{ended:?}"));
        {
            let mut counts = self.shared.counts.lock();
            counts.keys_moved += ended.copied;
            counts.moves_done += u64::from(ended.state == MoveState::Done);
        }
        match ended.state {
            MoveState::Done => self.shared.members.lock().arrived(&self.store.status()).map(|()| End::Done),
            MoveState::Stopped => Ok(End::NotNow),
            MoveState::Running | MoveState::Failed => {
                let faults = self.shared.faults();
                let why = ended.error.unwrap_or_default();
                if faults.write_errors() || faults.damage() || faults.read_eio > 0 || why.contains("full") {
                    self.shared.counts.lock().moves_refused += 1;
                    return Ok(End::NotNow);
                }
                Err(format!("keys cannot be moved, without reason: {why}"))
            }
        }
    }
}

/// The work of an operator, or of a keeper of snapshots, in one life.
pub(crate) struct Shift(tokio::sync::watch::Receiver<Option<Outcome>>);

impl Shift {
    /// Begins it, in a task of its own.
    pub(crate) fn begin(env: &Env, name: &'static str, work: impl Future<Output = Outcome> + Send + 'static) -> Self {
        let (ended, end) = tokio::sync::watch::channel(None);
        env.spawn(name, async move {
            let outcome = work.await;
            ended.send_replace(Some(outcome));
        });
        Self(end)
    }

    /// When it has ended.
    pub(crate) async fn ended(&self) {
        // One that panics ends the run by itself.
        let _ = self.0.clone().wait_for(Option::is_some).await;
    }

    /// How it went, as far as it has come.
    pub(crate) fn outcome(&self) -> Outcome {
        self.0.borrow().clone().unwrap_or(Ok(()))
    }
}
