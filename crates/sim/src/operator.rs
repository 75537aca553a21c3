//! The operator: adds, drains and replaces disks while clients work, and resumes changes that a
//! crash interrupted.

use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::Env;
use steadfast_log::LogError;
use steadfast_store::{MoveState, PoolDisk, Store, StoreError};

use crate::array::Bay;
use crate::members::{Membership, disk_name};
use crate::outcome::Outcome;
use crate::plan::{Change, MovePlan, Plan};
use crate::rng::Rng;
use crate::shared::Shared;

/// The operator of one life.
pub(crate) struct Operator {
    pub(crate) shared: Arc<Shared>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) store: Store,
    pub(crate) env: Env,
    /// The spare disk.
    pub(crate) spare: Option<Bay>,
    pub(crate) rng: Rng,
}

/// The end of a change of the disks.
#[derive(Debug, PartialEq, Eq)]
enum ChangeEnd {
    Done,
    /// A fault or a full disk prevents the change for now.
    NotNow,
}

impl Operator {
    /// Performs the planned changes, as far as faults allow.
    pub(crate) async fn work(&mut self) -> Outcome {
        let Some(moves) = self.plan.moves.clone() else { return Ok(()) };
        // As a server does at its start.
        if self.resume().await? == ChangeEnd::NotNow {
            return Ok(());
        }
        for change in &moves.changes {
            if self.shared.members.lock().is_done(*change, moves.spare) {
                continue;
            }
            self.env.sleep(Duration::from_micros(self.rng.below(moves.pause_us_max))).await;
            if self.begin(*change, &moves).await? == ChangeEnd::NotNow || self.arrive().await? == ChangeEnd::NotNow {
                return Ok(());
            }
        }
        Ok(())
    }

    fn note(&self, what: &'static str, more: u64, text: impl FnOnce() -> String) {
        let now = self.env.now().as_nanos() as u64;
        self.shared.trace.note_with_text(now, what, [more, 0, 0], || format!("operator: {}", text()));
    }

    async fn resume(&self) -> Outcome<ChangeEnd> {
        if !self.shared.members.lock().unfinished {
            return Ok(ChangeEnd::Done);
        }
        match self.store.disks().resume_moves() {
            Ok(going) => {
                self.note("resume", u64::from(going), || format!("resumes: {going}"));
                self.shared.counts.lock().moves_resumed += u64::from(going);
                if going { self.arrive().await } else { Err("the store found no move to resume".to_owned()) }
            }
            Err(error) => self.refused(&error),
        }
    }

    async fn begin(&self, change: Change, moves: &MovePlan) -> Outcome<ChangeEnd> {
        self.note("change", 0, || format!("{change:?}"));
        let new = || -> Option<(usize, Bay)> { Some((moves.spare?, self.spare.clone()?)) };
        {
            let mut members = self.shared.members.lock();
            members.moved = true;
            match change {
                Change::Add => {}
                Change::Drain(disk) | Change::Replace(disk) => members.memberships[disk] = Membership::Leaving,
            }
            if let (Change::Add | Change::Replace(_), Some(spare)) = (change, moves.spare) {
                members.memberships[spare] = Membership::Joining;
            }
        }
        let begun = match change {
            Change::Drain(disk) => self.store.disks().drain(&disk_name(disk)).await,
            Change::Add | Change::Replace(_) => {
                let Some((number, bay)) = new() else { return Err("there is no spare disk".to_owned()) };
                let opened = bay.open().await.map_err(|error| format!("the spare disk does not open: {error}"))?;
                let disk = PoolDisk { name: disk_name(number), disk: Ok(opened.disk), hint: false };
                match change {
                    Change::Replace(old) => self.store.disks().replace(&disk_name(old), disk).await,
                    _ => self.store.disks().add(disk).await,
                }
            }
        };
        let error = match begun {
            Ok(()) => {
                let mut members = self.shared.members.lock();
                members.unfinished = true;
                if let (Change::Add | Change::Replace(_), Some(spare)) = (change, moves.spare) {
                    members.memberships[spare] = Membership::Member;
                }
                self.shared.counts.lock().moves_begun += 1;
                return Ok(ChangeEnd::Done);
            }
            Err(error) => error,
        };
        self.note("change refused", 0, || error.to_string());
        if let StoreError::Log(LogError::Open(_)) = &error {
            // The change was refused before it began.
            let mut members = self.shared.members.lock();
            for membership in &mut members.memberships {
                match membership {
                    Membership::Leaving => *membership = Membership::Member,
                    Membership::Joining => *membership = Membership::Spare,
                    _ => {}
                }
            }
        }
        self.refused(&error)
    }

    /// Checks whether a change may be refused for that reason.
    fn refused(&self, error: &StoreError) -> Outcome<ChangeEnd> {
        let faults = self.shared.faults();
        let text = error.to_string();
        let full = matches!(error, StoreError::Log(LogError::Full)) || text.contains("there is room for");
        if full || faults.write_errors() || faults.damage() || faults.read_eio > 0 {
            self.shared.counts.lock().moves_refused += 1;
            return Ok(ChangeEnd::NotNow);
        }
        match error {
            StoreError::Busy(_) | StoreError::Log(LogError::Busy { .. }) => Ok(ChangeEnd::NotNow),
            StoreError::Hangs if self.shared.excuses.waits_for_archive => Ok(ChangeEnd::NotNow),
            other => Err(format!("a change of the disks failed without reason: {other:?}")),
        }
    }

    /// Waits until the moves have finished.
    async fn arrive(&self) -> Outcome<ChangeEnd> {
        let mut moving = self.store.disks().moving();
        let ended = moving.wait_for(|m| m.as_ref().is_none_or(|m| m.state != MoveState::Running)).await;
        let Some(ended) = ended.ok().and_then(|m| m.clone()) else {
            return Err("the progress of the moves is unknown".to_owned());
        };
        self.note("moves end", ended.copied, || format!("{ended:?}"));
        {
            let mut counts = self.shared.counts.lock();
            counts.keys_moved += ended.copied;
            counts.moves_done += u64::from(ended.state == MoveState::Done);
        }
        match ended.state {
            MoveState::Done => self.shared.members.lock().arrived(&self.store.status()).map(|()| ChangeEnd::Done),
            MoveState::Stopped => Ok(ChangeEnd::NotNow),
            MoveState::Running | MoveState::Failed => {
                let faults = self.shared.faults();
                let why = ended.error.unwrap_or_default();
                if faults.write_errors() || faults.damage() || faults.read_eio > 0 || why.contains("full") {
                    self.shared.counts.lock().moves_refused += 1;
                    return Ok(ChangeEnd::NotNow);
                }
                Err(format!("the moves failed without reason: {why}"))
            }
        }
    }
}

/// A background task of one life: the operator, the event receiver or the
/// channels.
pub(crate) struct BackgroundTask(tokio::sync::watch::Receiver<Option<Outcome>>);

impl BackgroundTask {
    /// Starts the task.
    pub(crate) fn begin(env: &Env, name: &'static str, work: impl Future<Output = Outcome> + Send + 'static) -> Self {
        let (ended, end) = tokio::sync::watch::channel(None);
        env.spawn(name, async move {
            let outcome = work.await;
            ended.send_replace(Some(outcome));
        });
        Self(end)
    }

    /// Waits until the task has ended.
    pub(crate) async fn ended(&self) {
        // A panic ends the run by itself.
        let _ = self.0.clone().wait_for(Option::is_some).await;
    }

    /// The outcome so far.
    pub(crate) fn outcome(&self) -> Outcome {
        self.0.borrow().clone().unwrap_or(Ok(()))
    }
}
