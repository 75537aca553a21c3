//! Makes this process the owner of an archive.

use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::has_fault;
use steadfast_net::{RemoteError, RemoteStore};

use crate::attempts::{Attempts, Pause};
use crate::error::ArchiveError;
use crate::following::Following;
use crate::head::{Head, Promise};
use crate::head_writer::{KnownHeadObject, Replaced};
use crate::load::Loaded;
use crate::name::HEAD;
use crate::options::{ArchiveOptions, ArchiveSabotage};
use crate::own_state::{KnownHead, OwnState};
use crate::place::{About, AttemptError, Place};

/// The archive, owned by this process.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) head: KnownHeadObject,
    pub(crate) loaded: Loaded,
}

/// What a claim needs.
pub(crate) struct Claim<'a> {
    pub(crate) attempts: &'a Attempts,
    pub(crate) following: &'a Following,
    pub(crate) options: &'a ArchiveOptions,
}

impl Claim<'_> {
    /// Claims the archive. Requests that fail are repeated without end.
    ///
    /// # Errors
    /// Why this pool must not follow into it.
    pub(crate) async fn make(&self, state: &mut OwnState) -> Result<Claimed, ArchiveError> {
        let mut pause = Pause::new();
        loop {
            match self.attempt(state).await {
                Ok(Some(claimed)) => return Ok(claimed),
                Ok(None) | Err(AttemptError::Failed) => self.attempts.wait(&mut pause).await?,
                Err(AttemptError::Final(e)) => return Err(e),
            }
        }
    }

    /// One attempt; `None` if another process was faster, or nothing is known.
    async fn attempt(&self, state: &mut OwnState) -> Result<Option<Claimed>, AttemptError> {
        let mut place = Place::look(self.attempts).await?;
        if matches!(place, Place::Empty) {
            Place::begin(self.attempts, &self.options.pool).await?;
            place = Place::look(self.attempts).await?;
        }
        let (about, known) = match place {
            Place::Empty => return Ok(None),
            Place::Begun(about) if state.archive() == about.id && state.known().is_some() => {
                return Err(ArchiveError::broken(HEAD, "it was removed").into());
            }
            Place::Begun(about) => (about, None),
            Place::Headed(about, known) => (about, Some(*known)),
        };
        if state.archive() != about.id {
            state.refuse_to_leave()?;
        }
        let Some(known) = known else {
            let owner = state.draw(&about.id).await?;
            let head = Head::first(owner, &self.options.machine, self.attempts.env().wall_ms());
            let created = KnownHeadObject::create_once(self.attempts, head).await;
            let head = match created {
                Ok(head) => head,
                // The next attempt reads it.
                Err(RemoteError::Exists) => return Ok(None),
                Err(e) => return Err(e.into()),
            };
            state.claimed(&head.head).await?;
            return Ok(Some(Claimed { head, loaded: Loaded::default() }));
        };
        self.check_owner(state, &about, &known.head)?;
        let loaded = match &known.head.cut {
            Some(cut) => Loaded::read(self.attempts, cut, &known.payload).await?,
            None => Loaded::default(),
        };
        let lacking = self.following.begin(&loaded.image);
        if let Some(lacking) = lacking.filter(|_| !has_fault(self.options.sabotage, ArchiveSabotage::OlderDisks)) {
            return Err(ArchiveError::Older(lacking).into());
        }
        let late = has_fault(self.options.sabotage, ArchiveSabotage::OwnerAfterClaim);
        let owner = if late { state.draw_unsaved() } else { state.draw(&about.id).await? };
        if has_fault(self.options.sabotage, ArchiveSabotage::NoClaim) {
            return Ok(Some(Claimed { head: known, loaded }));
        }
        let mut next = known.head.taken(owner, &self.options.machine, self.attempts.env().wall_ms());
        if let Some(next) = &mut next {
            next.note_last_lsns(&loaded.image.last_lsns());
            // The weaker promise: nothing is answered before this head is known.
            if self.options.promise == Promise::Local {
                next.promise = Promise::Local;
            }
        }
        match known.take(self.attempts, next).await? {
            Replaced::Done(head) => {
                state.claimed(&head.head).await?;
                Ok(Some(Claimed { head, loaded }))
            }
            // The next attempt looks whose it is.
            Replaced::Taken(_) => Ok(None),
        }
    }

    /// Only a head that a process of this pool has written may be replaced.
    fn check_owner(&self, state: &OwnState, about: &About, head: &Head) -> Result<(), ArchiveError> {
        if state.drew(head.owner) {
            return Ok(());
        }
        if state.archive() == about.id && state.known().is_some() {
            let (machine, tenure) = (head.machine.clone(), head.tenure);
            return Err(ArchiveError::Superseded { machine, tenure, kept: "as they were at the last stop".to_owned() });
        }
        Err(ArchiveError::Foreign(format!(
            "{} is the archive of another pool ({}, last written by {}): use another prefix, or restore from it",
            self.attempts.describe(),
            about.pool,
            head.machine
        )))
    }
}

/// Whether a start may serve before the archive is claimed, by what the pool knows of the head. It
/// may not if it is to serve under a lease.
///
/// # Errors
/// Why not.
pub(crate) fn may_start_early(
    state: &OwnState,
    store: &Arc<dyn RemoteStore>,
    lease: Option<Duration>,
) -> Result<(), String> {
    match state.known() {
        Some(KnownHead { promise: Promise::Local, closed: false, superseded: false, leased: false, .. })
            if lease.is_none() =>
        {
            Ok(())
        }
        Some(_) => Err(format!(
            "the archive {} cannot be reached, and the pool may have another owner by now",
            store.describe()
        )),
        None => Err(format!("the archive {} cannot be reached, and this pool has never used it", store.describe())),
    }
}
