//! Why an archive cannot be used, or not any more.

use crate::document::DocumentError;
use crate::image::ImageError;

/// Why an archive cannot be used, or not any more. The texts are for operators.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// The prefix holds the archive of another pool, or something else.
    #[error("{0}")]
    Foreign(String),
    /// Another process owns the archive now: this one must not serve any more.
    #[error(
        "the archive has a new owner: {machine}, tenure {tenure}. That continues with what the archive had; what only this \
         pool has stays on its disks ({kept}): `steadfast archive aside` lists it"
    )]
    Superseded {
        /// The machine of the new owner.
        machine: String,
        /// Its tenure.
        tenure: u64,
        /// The last LSN of each disk that this process had archived.
        kept: String,
    },
    /// The disks lack something that the archive has.
    #[error(
        "the disks are older than the archive: {0}. Restore the pool from the archive, or give this one another prefix"
    )]
    Older(String),
    /// The owner of the archive seems to be alive.
    #[error(
        "{machine} wrote the archive {age_s} s ago, so it seems to be alive. Stop it first: it loses what only it has. \
         `restore --take-over` or `promote --force` takes the archive from it now; `restore --at TIME` makes a copy beside it"
    )]
    InUse {
        /// The machine of the owner.
        machine: String,
        /// How long ago it wrote, in seconds.
        age_s: u64,
    },
    /// Another process ended the lease of this one, and did not take the archive over.
    #[error(
        "another machine began to take the archive {0} over, and has not done so: this server ends, and continues when it \
         is started again"
    )]
    Marked(String),
    /// Nothing is known of what only this pool has.
    #[error("{0}")]
    NotAside(String),
    /// All states are later than the wanted time.
    #[error("the archive has no state that is so old: `steadfast archive points` lists those that it has")]
    NoPoint,
    /// The first complete copy was not finished.
    #[error("nothing can be restored from {0} yet: it has no head that names a complete copy")]
    NothingYet(String),
    /// The store cannot be reached, and the server must not start without it.
    #[error("{0}")]
    Unreachable(String),
    /// The pool is to leave an archive whose head may say that writes wait for it.
    #[error(
        "the archive of this pool says that writes wait for it, and its next owner would continue the channels: before \
         you leave it, start once with archive.acknowledge = \"local\". If it is lost for good, remove {0}"
    )]
    Left(String),
    /// A disk takes no writes, so the archive cannot get what it has.
    #[error(
        "{0} takes no writes, so the archive cannot get what it has, and writes wait for the archive: replace the disk, or \
         set archive.acknowledge = \"local\""
    )]
    Unfollowed(String),
    /// The owner numbers cannot be kept.
    #[error("{0}")]
    State(String),
    /// Objects of the archive were changed or removed, or a newer build wrote them.
    #[error("the archive cannot be used: {name}: {why}")]
    Broken {
        /// The object.
        name: String,
        /// What is wrong with it.
        why: String,
    },
}

impl ArchiveError {
    pub(crate) fn broken(name: &str, why: impl ToString) -> Self {
        Self::Broken { name: name.to_owned(), why: why.to_string() }
    }

    pub(crate) fn document(name: &str) -> impl Fn(DocumentError) -> Self {
        move |e| Self::broken(name, e)
    }

    pub(crate) fn image(name: &str) -> impl Fn(ImageError) -> Self {
        move |e| Self::broken(name, e)
    }
}
