//! Makes this process the owner of an archive.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use steadfast_flow::has_fault;
use steadfast_net::{REMOTE_PAGE, RemoteError, RemoteStore};

use crate::attempts::{Attempts, Pause};
use crate::document::DOCUMENT_VERSION;
use crate::error::ArchiveError;
use crate::following::Following;
use crate::head::{Head, Owner, Promise};
use crate::head_writer::{KnownHeadObject, Replaced};
use crate::load::Loaded;
use crate::name::{ARCHIVE, HEAD};
use crate::options::{ArchiveOptions, ArchiveSabotage};
use crate::own_state::{KnownHead, OwnState};

/// Most bytes of the object that says what the archive is.
const ARCHIVE_BYTES_MAX: u64 = 64 << 10;

/// Says what an archive is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    /// Always `steadfast archive`.
    what: String,
    /// Version of the format.
    format: u32,
    /// 128 random bits.
    id: String,
    /// The identity of the pool when the archive was made.
    pool: String,
    /// When that was, in milliseconds since the Unix epoch.
    created_ms: u64,
}

const WHAT: &str = "steadfast archive";

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

/// What is at the prefix.
enum Found {
    /// Nothing at all.
    Nothing,
    /// An archive that has no head yet.
    Begun(About),
    /// An archive with its head.
    Head(About, Box<KnownHeadObject>),
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
                Ok(None) | Err(AttemptError::Failed) => pause.wait(self.attempts.env()).await,
                Err(AttemptError::Final(e)) => return Err(e),
            }
        }
    }

    /// One attempt; `None` if another process was faster, or nothing is known.
    async fn attempt(&self, state: &mut OwnState) -> Result<Option<Claimed>, AttemptError> {
        let mut found = self.find().await?;
        if matches!(found, Found::Nothing) {
            self.begin().await?;
            found = self.find().await?;
        }
        let (about, known) = match found {
            Found::Nothing => return Ok(None),
            Found::Begun(about) if state.archive() == about.id && state.known().is_some() => {
                return Err(ArchiveError::broken(HEAD, "it was removed").into());
            }
            Found::Begun(about) => (about, None),
            Found::Head(about, known) => (about, Some(*known)),
        };
        let Some(known) = known else {
            let owner = state.draw(&about.id).await?;
            let head = self.head(owner, 1, 1, None);
            let created = KnownHeadObject::create_once(self.attempts, head).await;
            let head = match created {
                Ok(head) => head,
                // The next attempt reads it.
                Err(RemoteError::Exists) => return Ok(None),
                Err(e) => return Err(e.into()),
            };
            self.own(state, owner, &head.head).await?;
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
        let Head { version, tenure, cut, .. } = known.head.clone();
        let counted = version.checked_add(1).zip(tenure.checked_add(1));
        let (version, tenure) = counted.ok_or_else(|| ArchiveError::broken(HEAD, "its version is impossible"))?;
        let next = self.head(owner, version, tenure, cut);
        let payload = known.payload.clone();
        if has_fault(self.options.sabotage, ArchiveSabotage::NoClaim) {
            return Ok(Some(Claimed { head: known, loaded }));
        }
        match known.replace(self.attempts, next, &[payload]).await? {
            Replaced::Done(head) => {
                self.own(state, owner, &head.head).await?;
                Ok(Some(Claimed { head, loaded }))
            }
            // The next attempt looks whose it is.
            Replaced::Taken(_) => Ok(None),
        }
    }

    /// Looks what is at the prefix.
    async fn find(&self) -> Result<Found, AttemptError> {
        // In this order: the head is created later.
        let head = KnownHeadObject::read_once(self.attempts).await?;
        let about = match self.attempts.read_once(ARCHIVE, None, ARCHIVE_BYTES_MAX).await {
            Ok(object) => Some(self.about(&object.body)?),
            Err(RemoteError::Missing) => None,
            Err(e) => return Err(e.into()),
        };
        let head = head.transpose()?;
        match (about, head) {
            (Some(about), Some(head)) => Ok(Found::Head(about, Box::new(head))),
            (Some(about), None) => Ok(Found::Begun(about)),
            (None, Some(_)) => Err(ArchiveError::broken(ARCHIVE, "it was removed").into()),
            (None, None) => Ok(Found::Nothing),
        }
    }

    fn about(&self, body: &Bytes) -> Result<About, ArchiveError> {
        let foreign = || {
            let place = self.attempts.describe();
            ArchiveError::Foreign(format!(
                "{place} holds something else under the name {ARCHIVE:?}: use another prefix"
            ))
        };
        let about: About = serde_json::from_slice(body).map_err(|_| foreign())?;
        if about.what != WHAT {
            return Err(foreign());
        }
        if about.format > DOCUMENT_VERSION {
            let newer = format!("it has version {} of the archive's format: use a newer build", about.format);
            return Err(ArchiveError::broken(ARCHIVE, newer));
        }
        Ok(about)
    }

    /// Begins an archive in an empty place.
    async fn begin(&self) -> Result<(), AttemptError> {
        let there = self.attempts.list_once("", "").await?;
        assert!(there.len() <= REMOTE_PAGE, "a page of a listing is bounded");
        // What another process is about to begin is no obstacle.
        if let Some(entry) = there.iter().find(|entry| ![ARCHIVE, HEAD].contains(&&*entry.name)) {
            let place = self.attempts.describe();
            let why = format!("{place} holds something else, such as {:?}: use another prefix", entry.name);
            return Err(ArchiveError::Foreign(why).into());
        }
        let env = self.attempts.env();
        let id = format!("{:016x}{:016x}", env.random_u64(), env.random_u64());
        let (pool, created_ms) = (self.options.pool.clone(), env.wall_ms());
        let about = About { what: WHAT.to_owned(), format: DOCUMENT_VERSION, id, pool, created_ms };
        let mut body = serde_json::to_vec_pretty(&about).expect("plain values");
        body.push(b'\n');
        match self.attempts.create_once(ARCHIVE, &body.into()).await {
            Ok(_) | Err(RemoteError::Exists) => Ok(()),
            Err(e) => Err(e.into()),
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

    fn head(&self, owner: Owner, version: u64, tenure: u64, cut: Option<crate::head::NamedCut>) -> Head {
        Head {
            version,
            tenure,
            owner,
            machine: self.options.machine.clone(),
            time_ms: self.attempts.env().wall_ms(),
            promise: Promise::Local,
            closed: false,
            cut,
        }
    }

    async fn own(&self, state: &mut OwnState, owner: Owner, head: &Head) -> Result<(), ArchiveError> {
        let (tenure, promise, closed) = (head.tenure, head.promise, head.closed);
        let known = KnownHead { tenure, promise, closed, superseded: false };
        state.claimed(owner, known).await
    }
}

/// Why an attempt did not end well.
enum AttemptError {
    /// A request failed: it is to be repeated.
    Failed,
    /// It is not.
    Final(ArchiveError),
}

impl From<RemoteError> for AttemptError {
    fn from(_: RemoteError) -> Self {
        Self::Failed
    }
}

impl From<ArchiveError> for AttemptError {
    fn from(e: ArchiveError) -> Self {
        Self::Final(e)
    }
}

/// Whether a start may serve before the archive is claimed, by what the pool knows of the head.
///
/// # Errors
/// Why not.
pub(crate) fn may_start_early(state: &OwnState, store: &Arc<dyn RemoteStore>) -> Result<(), String> {
    match state.known() {
        Some(KnownHead { promise: Promise::Local, closed: false, superseded: false, .. }) => Ok(()),
        Some(_) => Err(format!(
            "the archive {} cannot be reached, and the pool may have another owner by now",
            store.describe()
        )),
        None => Err(format!("the archive {} cannot be reached, and this pool has never used it", store.describe())),
    }
}
