//! What is at the prefix of an archive.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use steadfast_net::{REMOTE_PAGE, RemoteError};

use crate::attempts::Attempts;
use crate::document::DOCUMENT_VERSION;
use crate::error::ArchiveError;
use crate::head_writer::KnownHeadObject;
use crate::name::{ARCHIVE, HEAD};

/// Most bytes of the object that says what the archive is.
const ARCHIVE_BYTES_MAX: u64 = 64 << 10;

const WHAT: &str = "steadfast archive";

/// Says what an archive is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    /// Always `steadfast archive`.
    what: String,
    /// Version of the format.
    format: u32,
    /// 128 random bits.
    pub(crate) id: String,
    /// The identity of the pool when the archive was made.
    pub(crate) pool: String,
    /// When that was, in milliseconds since the Unix epoch.
    pub(crate) created_ms: u64,
}

impl About {
    /// Reads the object of the archive `place`.
    fn parse(place: &str, body: &Bytes) -> Result<Self, ArchiveError> {
        let foreign = || {
            ArchiveError::Foreign(format!(
                "{place} holds something else under the name {ARCHIVE:?}: use another prefix"
            ))
        };
        let about: Self = serde_json::from_slice(body).map_err(|_| foreign())?;
        if about.what != WHAT {
            return Err(foreign());
        }
        if about.format > DOCUMENT_VERSION {
            let newer = format!("it has version {} of the archive's format: use a newer build", about.format);
            return Err(ArchiveError::broken(ARCHIVE, newer));
        }
        Ok(about)
    }
}

/// What is at the prefix.
pub(crate) enum Place {
    /// Nothing at all.
    Empty,
    /// An archive that has no head yet.
    Begun(About),
    /// An archive with its head.
    Headed(About, Box<KnownHeadObject>),
}

impl Place {
    /// Looks what is there.
    pub(crate) async fn look(attempts: &Attempts) -> Result<Self, AttemptError> {
        // In this order: the head is created later.
        let head = KnownHeadObject::read_once(attempts).await?;
        let about = match attempts.read_once(ARCHIVE, None, ARCHIVE_BYTES_MAX).await {
            Ok(object) => Some(About::parse(&attempts.describe(), &object.body)?),
            Err(RemoteError::Missing) => None,
            Err(e) => return Err(e.into()),
        };
        let head = head.transpose()?;
        match (about, head) {
            (Some(about), Some(head)) => Ok(Self::Headed(about, Box::new(head))),
            (Some(about), None) => Ok(Self::Begun(about)),
            (None, Some(_)) => Err(ArchiveError::broken(ARCHIVE, "it was removed").into()),
            (None, None) => Ok(Self::Empty),
        }
    }

    /// Begins an archive of a pool in an empty place.
    pub(crate) async fn begin(attempts: &Attempts, pool: &str) -> Result<(), AttemptError> {
        let there = attempts.list_once("").await?;
        assert!(there.len() <= REMOTE_PAGE, "a page of a listing is bounded");
        // What another process is about to begin is no obstacle.
        if let Some(entry) = there.iter().find(|entry| ![ARCHIVE, HEAD].contains(&&*entry.name)) {
            let place = attempts.describe();
            let why = format!("{place} holds something else, such as {:?}: use another prefix", entry.name);
            return Err(ArchiveError::Foreign(why).into());
        }
        let env = attempts.env();
        let id = format!("{:016x}{:016x}", env.random_u64(), env.random_u64());
        let (pool, created_ms) = (pool.to_owned(), env.wall_ms());
        let about = About { what: WHAT.to_owned(), format: DOCUMENT_VERSION, id, pool, created_ms };
        let mut body = serde_json::to_vec_pretty(&about).expect("plain values");
        body.push(b'\n');
        match attempts.create_once(ARCHIVE, &[body.into()]).await {
            Ok(_) | Err(RemoteError::Exists) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Why an attempt did not end well.
pub(crate) enum AttemptError {
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
