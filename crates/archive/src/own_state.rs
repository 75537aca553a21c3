//! What a pool knows of its archive, beside its disks.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use steadfast_flow::Env;

use crate::error::ArchiveError;
use crate::head::{Head, Owner, Promise};

/// Most owner numbers that are kept. More starts than this would have to fail one after the other.
const OWNERS_MAX: usize = 1000;

/// Keeps a few bytes beside the disks of the pool.
pub trait StateKeeper: Send + Sync {
    /// The bytes; `None` if none were kept.
    ///
    /// # Errors
    /// When they cannot be read.
    fn load(&self) -> io::Result<Option<Vec<u8>>>;

    /// Replaces the bytes. Durable when it returns.
    ///
    /// # Errors
    /// When they cannot be written.
    fn save(&self, bytes: &[u8]) -> io::Result<()>;

    /// Where they are kept, for operators.
    fn place(&self) -> String;
}

/// The last head that the pool is known to have owned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownHead {
    /// Its tenure.
    pub tenure: u64,
    /// Its promise.
    pub promise: Promise,
    /// Whether it was the last one of its owner.
    pub closed: bool,
    /// Whether another process is known to own the archive since.
    pub superseded: bool,
    /// Whether a standby may take the archive over by itself.
    #[serde(default)]
    pub leased: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct OwnNumbers {
    /// The identity of the archive; empty before one is known.
    archive: String,
    /// The owner numbers that processes of this pool drew, in hexadecimal digits.
    owners: Vec<String>,
    /// Those that it drew before another pool took the archive over.
    #[serde(default)]
    former: Vec<String>,
    /// The last head that is known to be of this pool.
    known: Option<KnownHead>,
}

/// Refuses to serve a pool without its archive, if the head of that may say that writes wait for
/// it: its next owner would give out positions in channels again.
///
/// # Errors
/// What to do.
pub async fn refuse_left(keeper: Arc<dyn StateKeeper>, env: &Env) -> Result<(), ArchiveError> {
    OwnState::load(keeper, env).await?.refuse_to_leave()
}

/// Notes that the archive has another owner, as other processes say: the next start must ask the
/// archive before it serves.
///
/// # Errors
/// When it cannot be kept.
pub async fn note_other_owner(keeper: Arc<dyn StateKeeper>, env: &Env) -> Result<(), ArchiveError> {
    let mut state = OwnState::load(keeper, env).await?;
    match &mut state.numbers.known {
        Some(known) => known.superseded = true,
        None => return Ok(()),
    }
    state.save().await
}

/// The owner numbers that this pool drew, and what it knows of the head.
pub(crate) struct OwnState {
    keeper: Arc<dyn StateKeeper>,
    env: Env,
    numbers: OwnNumbers,
}

impl OwnState {
    pub(crate) async fn load(keeper: Arc<dyn StateKeeper>, env: &Env) -> Result<Self, ArchiveError> {
        let (reader, place) = (keeper.clone(), keeper.place());
        let bytes = env.blocking(move || reader.load()).await;
        let bytes = bytes.unwrap_or_else(|| Err(io::Error::other("reading it has panicked")));
        let failed = |e: &dyn std::fmt::Display| ArchiveError::State(format!("{place}: {e}"));
        let numbers = match bytes.map_err(|e| failed(&e))? {
            None => OwnNumbers::default(),
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|e| failed(&e))?,
        };
        Ok(Self { keeper, env: env.clone(), numbers })
    }

    /// The identity of the archive that this pool follows; empty before one is known.
    pub(crate) fn archive(&self) -> &str {
        &self.numbers.archive
    }

    pub(crate) fn known(&self) -> Option<KnownHead> {
        self.numbers.known
    }

    /// Whether a head of this pool may say that writes wait for the archive.
    pub(crate) fn has_promised(&self) -> bool {
        self.numbers.known.is_some_and(|known| known.promise == Promise::Archived && !known.superseded)
    }

    /// Refuses to leave an archive whose head may say that writes wait for it.
    ///
    /// # Errors
    /// What to do.
    pub(crate) fn refuse_to_leave(&self) -> Result<(), ArchiveError> {
        if self.has_promised() { Err(ArchiveError::Left(self.keeper.place())) } else { Ok(()) }
    }

    /// Whether a process of this pool drew the number.
    pub(crate) fn drew(&self, owner: Owner) -> bool {
        self.numbers.owners.contains(&hex::encode(owner.0))
    }

    /// As [`OwnState::drew`], also before another pool took the archive over.
    pub(crate) fn has_drawn(&self, owner: Owner) -> bool {
        self.drew(owner) || self.numbers.former.contains(&hex::encode(owner.0))
    }

    /// Draws a number without keeping it, which is a bug.
    pub(crate) fn draw_unsaved(&self) -> Owner {
        let mut number = [0; 16];
        number[..8].copy_from_slice(&self.env.random_u64().to_le_bytes());
        number[8..].copy_from_slice(&self.env.random_u64().to_le_bytes());
        Owner(number)
    }

    /// Draws a number for a claim, which may be sent when this has returned.
    pub(crate) async fn draw(&mut self, archive: &str) -> Result<Owner, ArchiveError> {
        let owner = self.draw_unsaved();
        if self.numbers.archive != archive {
            self.numbers = OwnNumbers { archive: archive.to_owned(), ..OwnNumbers::default() };
        }
        self.numbers.owners.push(hex::encode(owner.0));
        let surplus = self.numbers.owners.len().saturating_sub(OWNERS_MAX);
        self.numbers.owners.drain(..surplus);
        self.save().await?;
        Ok(owner)
    }

    /// The claim that wrote this head is known to have happened.
    pub(crate) async fn claimed(&mut self, head: &Head) -> Result<(), ArchiveError> {
        let leased = self.numbers.known.is_some_and(|known| known.leased);
        self.owns(head, leased).await
    }

    /// As [`OwnState::claimed`], from another pool. That may have answered under a lease.
    pub(crate) async fn taken_over(&mut self, head: &Head) -> Result<(), ArchiveError> {
        self.owns(head, true).await
    }

    async fn owns(&mut self, head: &Head, leased: bool) -> Result<(), ArchiveError> {
        let Head { tenure, promise, closed, owner, .. } = *head;
        (self.numbers.owners, self.numbers.former) = (vec![hex::encode(owner.0)], Vec::new());
        self.numbers.known = Some(KnownHead { tenure, promise, closed, superseded: false, leased });
        self.save().await
    }

    /// Whether a standby may take the archive over by itself from now on. Then a start needs the
    /// store.
    pub(crate) async fn leasing(&mut self, leased: bool) -> Result<(), ArchiveError> {
        let known = self.numbers.known.as_mut().expect("the archive was claimed");
        if known.leased == leased {
            return Ok(());
        }
        known.leased = leased;
        self.save().await
    }

    /// A head with the stricter promise is about to be written: from then on a start needs the
    /// store.
    pub(crate) async fn promising(&mut self) -> Result<(), ArchiveError> {
        let known = self.numbers.known.as_mut().expect("the archive was claimed");
        if known.promise == Promise::Archived {
            return Ok(());
        }
        known.promise = Promise::Archived;
        self.save().await
    }

    /// The last head of this process is about to be written: from then on another process may own
    /// the archive.
    pub(crate) async fn closing(&mut self) -> Result<(), ArchiveError> {
        let known = self.numbers.known.as_mut().expect("the archive was claimed");
        known.closed = true;
        self.save().await
    }

    /// Another process is known to own the archive.
    pub(crate) async fn superseded(&mut self) -> Result<(), ArchiveError> {
        if let Some(known) = &mut self.numbers.known {
            known.superseded = true;
        }
        self.numbers.former = std::mem::take(&mut self.numbers.owners);
        self.save().await
    }

    async fn save(&self) -> Result<(), ArchiveError> {
        let keeper = self.keeper.clone();
        let bytes = serde_json::to_vec(&self.numbers).expect("plain values");
        let saved = self.env.blocking(move || keeper.save(&bytes)).await;
        let saved = saved.unwrap_or_else(|| Err(io::Error::other("writing it has panicked")));
        saved.map_err(|e| ArchiveError::State(format!("{}: {e}", self.keeper.place())))
    }
}
