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
         pool has stays on its disks ({kept})"
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
    /// The store cannot be reached, and the server must not start without it.
    #[error("{0}")]
    Unreachable(String),
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
