//! Why a server ended.

use steadfast_archive::ArchiveError;
use steadfast_cluster::NameTaken;

/// Why a server ended otherwise than by a signal. The texts are for operators.
#[derive(Debug)]
pub enum ServeError {
    /// It could not start, or not stop cleanly.
    Failed(String),
    /// The archive is of another pool, or newer than the disks.
    Refused(String),
    /// Another process owns the archive.
    Superseded(String),
}

impl From<String> for ServeError {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl From<ArchiveError> for ServeError {
    fn from(e: ArchiveError) -> Self {
        match e {
            ArchiveError::Superseded { .. } => Self::Superseded(e.to_string()),
            ArchiveError::Foreign(_) | ArchiveError::Older(_) => Self::Refused(e.to_string()),
            e => Self::Failed(e.to_string()),
        }
    }
}

impl From<NameTaken> for ServeError {
    fn from(taken: NameTaken) -> Self {
        match taken {
            NameTaken::Superseded(why) => Self::Superseded(why),
            NameTaken::Duplicate(why) => Self::Failed(why),
        }
    }
}
