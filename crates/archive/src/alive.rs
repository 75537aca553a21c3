//! The object `alive`: the heartbeat of an owner that answers under a lease.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use steadfast_net::{EntityTag, RemoteError, RemoteResult};

use crate::attempts::{Attempts, Pause};
use crate::document::{DocumentKind, decode, encode};
use crate::error::ArchiveError;
use crate::head::Owner;
use crate::name::ALIVE;

/// Most bytes of the object.
const ALIVE_BYTES_MAX: u64 = 64 << 10;

/// A heartbeat, or the mark of a process that takes the archive over.
///
/// It is replaced under a condition only, and its version is then one more. So no two of them have
/// the same bytes, and a late request does no harm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Alive {
    /// One more with each replacement.
    pub(crate) version: u64,
    /// The tenure of the owner that answers, or from which the archive is taken.
    pub(crate) tenure: u64,
    /// A number that the process which wrote it drew.
    pub(crate) writer: Owner,
    /// The machine of that process, for operators.
    pub(crate) machine: String,
    /// Length of the lease in milliseconds; 0: the owner answers without one.
    pub(crate) lease_ms: u64,
    /// Whether it is a mark: no heartbeat of this tenure follows it.
    pub(crate) is_mark: bool,
}

/// An `alive` that is known: it was read, or its replacement was answered.
#[derive(Debug, Clone)]
pub(crate) struct AliveObject {
    pub(crate) alive: Alive,
    pub(crate) body: Bytes,
    tag: EntityTag,
}

impl Alive {
    /// The version of what follows it.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] if there is none.
    pub(crate) fn next_version(&self) -> Result<u64, ArchiveError> {
        self.version.checked_add(1).ok_or_else(|| ArchiveError::broken(ALIVE, "its version is impossible"))
    }
}

impl AliveObject {
    /// Reads it once; `None` if there is none.
    ///
    /// # Errors
    /// Those of the store, and [`ArchiveError::Broken`] within the result.
    pub(crate) async fn read_once(attempts: &Attempts) -> RemoteResult<Option<Result<Self, ArchiveError>>> {
        let object = match attempts.read_once(ALIVE, None, ALIVE_BYTES_MAX).await {
            Ok(object) => object,
            Err(RemoteError::Missing) => return Ok(None),
            Err(e) => return Err(e),
        };
        let Some(tag) = object.tag else {
            return Ok(Some(Err(ArchiveError::broken(ALIVE, "the store gave no entity tag"))));
        };
        let decoded = decode(DocumentKind::Alive, &object.body).map_err(ArchiveError::document(ALIVE));
        Ok(Some(decoded.map(|(alive, _)| Self { alive, body: object.body, tag })))
    }

    /// Reads it; `None` if there is none. Requests that fail are repeated.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] if it is something else, or is refused; those of
    /// [`Attempts::wait`].
    pub(crate) async fn read(attempts: &Attempts) -> Result<Option<Self>, ArchiveError> {
        let mut pause = Pause::new();
        loop {
            match Self::read_once(attempts).await {
                Ok(there) => return there.transpose(),
                Err(e @ RemoteError::Refused(_)) => return Err(ArchiveError::broken(ALIVE, e)),
                Err(_) => attempts.wait(&mut pause).await?,
            }
        }
    }

    /// Writes `next` over what is known to be there, once.
    ///
    /// # Errors
    /// Those of the store. It may have happened, or may still happen.
    pub(crate) async fn write_once(attempts: &Attempts, over: Option<&Self>, next: &Alive) -> RemoteResult<Self> {
        let version = over.map_or(0, |over| over.alive.version);
        assert!(next.version > version, "each has a higher version");
        let body = encode(DocumentKind::Alive, next, &[]);
        let tag = match over {
            Some(over) => attempts.replace_once(ALIVE, &body, &over.tag).await?,
            None => attempts.create_once(ALIVE, std::slice::from_ref(&body)).await?,
        };
        Ok(Self { alive: next.clone(), body, tag })
    }
}
