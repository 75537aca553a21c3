//! Reads an archive, and takes it over to restore its pool.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use steadfast_flow::Env;
use steadfast_net::RemoteStore;

use crate::archived_pool::{ArchivedDisk, ArchivedPool};
use crate::aside::Aside;
use crate::attempts::{Attempts, Pause};
use crate::check::{ArchiveCheck, Check};
use crate::error::ArchiveError;
use crate::head::{FormerOwner, Head, NamedCut, Promise};
use crate::head_writer::{KnownHeadObject, Replaced};
use crate::history::{ArchivePoint, History};
use crate::lease_watch::{LeaseState, LeaseWatch};
use crate::own_state::{OwnState, StateKeeper};
use crate::place::{About, AttemptError, Place};
use crate::transfer_progress::TransferProgress;

/// Age of a head, in milliseconds, below which its owner is taken to be alive.
const ALIVE_MS: u64 = 30_000;

/// Time between two looks at a head: its owner is alive if it has changed.
const IDLE_LOOK: Duration = Duration::from_secs(2);

/// Time between two looks at a lease that a take-over waits for.
const LEASE_LOOK: Duration = Duration::from_millis(250);

/// From which owner an archive may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeOver {
    /// From this pool itself.
    Own,
    /// Also from another that has not written for half a minute, or whose lease has ended.
    Idle,
    /// From any. One that lives ends as soon as it learns of it.
    Any,
}

/// An owner that was looked at, from which the archive may be taken. Not from a later one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JudgedOwner {
    tenure: u64,
    /// It has handed the archive over.
    closed: bool,
    /// It cannot renew its lease any more.
    marked: bool,
}

impl JudgedOwner {
    pub(crate) fn new(head: &Head) -> Self {
        Self { tenure: head.tenure, closed: head.closed, marked: false }
    }

    /// The same, whose lease is marked.
    pub(crate) fn marked(self) -> Self {
        Self { marked: true, ..self }
    }

    /// Whether a head is still that of the owner.
    fn is_of(self, head: &Head) -> bool {
        head.tenure == self.tenure && (head.closed || !self.closed)
    }
}

impl TakeOver {
    fn check(
        self,
        attempts: &Attempts,
        state: &OwnState,
        about: &About,
        head: &Head,
        judged: Option<JudgedOwner>,
    ) -> Result<(), ArchiveError> {
        if judged.is_some_and(|judged| !judged.is_of(head)) {
            return Err(ArchiveError::InUse { machine: head.machine.clone(), age_s: 0 });
        }
        let has_ended = judged.is_some_and(|judged| judged.closed || judged.marked);
        if self == Self::Any || state.drew(head.owner) || has_ended {
            return Ok(());
        }
        let (machine, tenure) = (head.machine.clone(), head.tenure);
        if self == Self::Own {
            return Err(match state.archive() == about.id {
                true => ArchiveError::Superseded { machine, tenure, kept: "as they were at the last stop".to_owned() },
                false => ArchiveError::Foreign(format!(
                    "{} is not the archive of this pool: {machine} wrote it last",
                    attempts.describe()
                )),
            });
        }
        let age_ms = attempts.env().wall_ms().saturating_sub(head.time_ms);
        if age_ms >= ALIVE_MS {
            return Ok(());
        }
        Err(ArchiveError::InUse { machine, age_s: age_ms / 1000 })
    }
}

/// What an archive is, and how new.
#[derive(Debug, Clone, Serialize)]
pub struct ArchiveDescription {
    /// The store.
    pub to: String,
    /// The identity of the pool when the archive was made.
    pub pool: String,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// The machine of its owner.
    pub machine: String,
    /// The tenure of its owner.
    pub tenure: u64,
    /// When the owner wrote last, in milliseconds since the Unix epoch.
    pub written_ms: u64,
    /// When the newest state was taken that can be restored, in milliseconds since the Unix epoch.
    pub newest_ms: Option<u64>,
    /// The disks of that state.
    pub disks: Vec<ArchivedDisk>,
}

/// Reads an archive that this process does not follow into.
pub struct ArchiveReader {
    attempts: Attempts,
}

impl ArchiveReader {
    /// The archive at a place. Requests are repeated for `patience`; without it, without end.
    pub fn new(store: Arc<dyn RemoteStore>, patience: Option<Duration>, env: &Env) -> Self {
        let attempts = match patience {
            Some(patience) => Attempts::for_a_while(store, patience, env),
            None => Attempts::new(store, env),
        };
        Self { attempts }
    }

    /// What is at the place, and its head.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(crate) async fn head(&self) -> Result<(About, KnownHeadObject), ArchiveError> {
        let mut pause = Pause::new();
        loop {
            match Place::look(&self.attempts).await {
                Ok(Place::Headed(about, head)) => return Ok((about, *head)),
                Ok(Place::Begun(_)) => return Err(self.nothing_yet()),
                Ok(Place::Empty) => {
                    let place = self.attempts.describe();
                    return Err(ArchiveError::Foreign(format!("there is no archive at {place}")));
                }
                Err(AttemptError::Failed) => self.attempts.wait(&mut pause).await?,
                Err(AttemptError::Final(e)) => return Err(e),
            }
        }
    }

    fn nothing_yet(&self) -> ArchiveError {
        ArchiveError::NothingYet(self.attempts.describe())
    }

    fn cut_of<'a>(&self, head: &'a KnownHeadObject) -> Result<&'a NamedCut, ArchiveError> {
        head.head.cut.as_ref().ok_or_else(|| self.nothing_yet())
    }

    async fn newest_of(&self, head: &KnownHeadObject) -> Result<ArchivedPool, ArchiveError> {
        ArchivedPool::load(&self.attempts, self.cut_of(head)?, &head.payload).await
    }

    /// Refuses an archive whose owner writes now, whatever its clock shows.
    async fn is_idle(&self, head: &Head) -> Result<(), ArchiveError> {
        self.attempts.env().sleep(IDLE_LOOK).await;
        let (_, later) = self.head().await?;
        if later.head.version == head.version {
            return Ok(());
        }
        Err(ArchiveError::InUse { machine: later.head.machine, age_s: 0 })
    }

    /// What it is, and how new.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub async fn describe(&self) -> Result<ArchiveDescription, ArchiveError> {
        let (about, head) = self.head().await?;
        let newest = match &head.head.cut {
            Some(_) => Some(self.newest_of(&head).await?),
            None => None,
        };
        Ok(ArchiveDescription {
            to: self.attempts.describe(),
            pool: about.pool,
            created_ms: about.created_ms,
            machine: head.head.machine,
            tenure: head.head.tenure,
            written_ms: head.head.time_ms,
            newest_ms: newest.as_ref().map(ArchivedPool::time_ms),
            disks: newest.as_ref().map(ArchivedPool::disks).unwrap_or_default(),
        })
    }

    /// The complete states that can be restored, the oldest first, and the time of the newest state
    /// in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// Why it cannot be read, or has none yet.
    pub async fn points(&self) -> Result<(Vec<ArchivePoint>, u64), ArchiveError> {
        let (_, head) = self.head().await?;
        let cut = self.cut_of(&head)?;
        Ok((History::read(&self.attempts, cut).await?.points(), cut.time_ms))
    }

    /// The newest state.
    ///
    /// # Errors
    /// Why it cannot be read, or that there is none yet.
    pub async fn newest(&self) -> Result<ArchivedPool, ArchiveError> {
        let (_, head) = self.head().await?;
        self.newest_of(&head).await
    }

    /// The last state that is not later than a time, in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// Why it cannot be read, and [`ArchiveError::NoPoint`] when all states are later.
    pub async fn at(&self, time_ms: u64) -> Result<ArchivedPool, ArchiveError> {
        let (_, head) = self.head().await?;
        let cut = self.cut_of(&head)?;
        if cut.time_ms <= time_ms {
            return self.newest_of(&head).await;
        }
        let history = History::read(&self.attempts, cut).await?;
        let found = history.find(&self.attempts, time_ms).await?.ok_or(ArchiveError::NoPoint)?;
        ArchivedPool::load(&self.attempts, &found, &bytes::Bytes::new()).await
    }

    /// Takes the archive over, and reads its newest state. The pool that is restored from it then
    /// continues the archive; `keeper` is beside that pool.
    ///
    /// # Errors
    /// Why it cannot be read or taken.
    pub async fn take_over(
        &self,
        keeper: Arc<dyn StateKeeper>,
        machine: &str,
        from: TakeOver,
    ) -> Result<ArchivedPool, ArchiveError> {
        let mut state = OwnState::load(keeper, self.attempts.env()).await?;
        let (head, complete) = self.claim(&mut state, machine, from).await?;
        Ok(self.newest_of(&head).await?.owned(head.head.tenure, complete))
    }

    /// Takes the archive over. Returns the head of the claim, and whether it has all that was
    /// answered.
    ///
    /// # Errors
    /// Why it cannot be read or taken.
    pub(crate) async fn claim(
        &self,
        state: &mut OwnState,
        machine: &str,
        from: TakeOver,
    ) -> Result<(KnownHeadObject, bool), ArchiveError> {
        if from == TakeOver::Own {
            return self.claim_from(state, machine, from, None).await;
        }
        loop {
            let judged = self.end_of_owner(state, machine, from).await?;
            match self.claim_from(state, machine, from, judged).await {
                // Another owner: it has a lease of its own.
                Err(ArchiveError::InUse { .. }) if from == TakeOver::Any => {}
                claimed => return claimed,
            }
        }
    }

    /// Waits until the owner cannot answer its clients any more, if it keeps a lease. The lease is
    /// marked then. `None`: this pool is the owner.
    ///
    /// # Errors
    /// [`ArchiveError::InUse`] when the owner lives, unless the archive may be taken from any.
    async fn end_of_owner(
        &self,
        state: &OwnState,
        machine: &str,
        from: TakeOver,
    ) -> Result<Option<JudgedOwner>, ArchiveError> {
        let (_, head) = self.head().await?;
        let judged = JudgedOwner::new(&head.head);
        if state.drew(head.head.owner) {
            return Ok(None);
        }
        if judged.closed {
            return Ok(Some(judged));
        }
        let (mut watch, mut pause) = (LeaseWatch::default(), Pause::new());
        loop {
            match (watch.look(&self.attempts).await, from) {
                (Err(AttemptError::Failed), _) => self.attempts.wait(&mut pause).await?,
                (Err(AttemptError::Final(e)), _) => return Err(e),
                (Ok(LeaseState::None), TakeOver::Idle) => {
                    self.is_idle(&head.head).await?;
                    return Ok(Some(judged));
                }
                (Ok(LeaseState::None), _) => return Ok(Some(judged)),
                (Ok(LeaseState::Holds(_)), TakeOver::Idle) if watch.is_renewed() => {
                    return Err(ArchiveError::InUse { machine: head.head.machine, age_s: 0 });
                }
                (Ok(LeaseState::Holds(_)), TakeOver::Idle) => self.attempts.env().sleep(LEASE_LOOK).await,
                // The owner of a lease that holds learns of the mark with its next heartbeat.
                (Ok(LeaseState::Ended | LeaseState::Holds(_)), _) => {
                    let marked = self.mark(&mut watch, state, machine).await?;
                    if marked.is_some() {
                        return Ok(marked);
                    }
                    self.attempts.wait(&mut pause).await?;
                }
            }
        }
    }

    /// Marks a lease that was looked at. `None`: the owner has renewed it, or that is not clear.
    ///
    /// # Errors
    /// Why it cannot be marked.
    pub(crate) async fn mark(
        &self,
        watch: &mut LeaseWatch,
        state: &OwnState,
        machine: &str,
    ) -> Result<Option<JudgedOwner>, ArchiveError> {
        let (_, head) = self.head().await?;
        let judged = JudgedOwner::new(&head.head);
        // Any drawn number does: a mark is not a claim.
        let is_marked = watch.mark(&self.attempts, judged.tenure, machine, state.draw_unsaved()).await?;
        Ok(is_marked.then(|| judged.marked()))
    }

    /// As [`ArchiveReader::claim`], when it is known that the owner does not answer any more.
    ///
    /// # Errors
    /// Why it cannot be read or taken.
    pub(crate) async fn claim_from(
        &self,
        state: &mut OwnState,
        machine: &str,
        from: TakeOver,
        judged: Option<JudgedOwner>,
    ) -> Result<(KnownHeadObject, bool), ArchiveError> {
        let mut pause = Pause::new();
        loop {
            let (about, head) = self.head().await?;
            from.check(&self.attempts, state, &about, &head.head, judged)?;
            self.cut_of(&head)?;
            let complete = head.head.closed || head.head.promise == Promise::Archived;
            let owner = state.draw(&about.id).await?;
            let (is_own, now_ms) = (state.drew(head.head.owner), self.attempts.env().wall_ms());
            let next = match is_own {
                true => head.head.taken(owner, machine, now_ms),
                false => head.head.taken_over(owner, machine, now_ms),
            };
            match head.take(&self.attempts, next).await? {
                Replaced::Done(head) if is_own => {
                    state.claimed(&head.head).await?;
                    return Ok((head, complete));
                }
                Replaced::Done(head) => {
                    state.taken_over(&head.head).await?;
                    return Ok((head, complete));
                }
                // Its owner has written meanwhile.
                Replaced::Taken(_) => pause.wait(self.attempts.env()).await,
            }
        }
    }

    /// The state of a head that this pool has owned since it took the archive over.
    ///
    /// # Errors
    /// Why it cannot be read; [`ArchiveError::Superseded`] when another process has taken it since.
    pub async fn taken_over(&self, keeper: Arc<dyn StateKeeper>, tenure: u64) -> Result<ArchivedPool, ArchiveError> {
        let state = OwnState::load(keeper, self.attempts.env()).await?;
        let (_, head) = self.head().await?;
        if !state.drew(head.head.owner) || head.head.tenure != tenure {
            let (machine, tenure) = (head.head.machine, head.head.tenure);
            return Err(ArchiveError::Superseded { machine, tenure, kept: "they are not restored yet".to_owned() });
        }
        Ok(self.newest_of(&head).await?.owned(tenure, false))
    }

    /// What the archive had when another pool took it from the one whose owner numbers are kept in
    /// `keeper`.
    ///
    /// # Errors
    /// Why it cannot be read; [`ArchiveError::NotAside`] when nothing is known of such a pool.
    pub async fn aside(&self, keeper: Arc<dyn StateKeeper>) -> Result<Aside, ArchiveError> {
        let state = OwnState::load(keeper, self.attempts.env()).await?;
        let (about, KnownHeadObject { head, .. }) = self.head().await?;
        let to = self.attempts.describe();
        let not_aside = |why: &str| Err(ArchiveError::NotAside(format!("{to}: {why}")));
        if state.archive() != about.id {
            return not_aside("it is not the archive of this pool");
        }
        if state.drew(head.owner) {
            return not_aside("this pool owns it");
        }
        let Some(of) = head.former.into_iter().rev().find(|of| state.has_drawn(of.owner)) else {
            return not_aside("it does not know any more what it had when it was taken from this pool");
        };
        let Some(last_lsns) = of.last_lsns else {
            return not_aside("its new owner has not started yet. Try again when it serves");
        };
        let FormerOwner { tenure, taken_ms, .. } = of;
        Ok(Aside { to, machine: head.machine, tenure, taken_ms, last_lsns })
    }

    /// Reads and verifies all that can be restored.
    ///
    /// # Errors
    /// Why it cannot be read at all. What is damaged is in the result.
    pub async fn verify(&self, progress: &TransferProgress) -> Result<ArchiveCheck, ArchiveError> {
        let (_, head) = self.head().await?;
        Check::new(&self.attempts).run(self.cut_of(&head)?, &head.payload, progress).await
    }
}
