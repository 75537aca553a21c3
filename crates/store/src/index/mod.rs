//! The index: an ordered map from keys to record locations. It remembers up to which LSN it is
//! complete.
//!
//! It is derived from the log and may be deleted at any time. Changes arrive in LSN order from one
//! caller; reads may come from any task.

mod kind;
mod live;
mod lsm;
mod mem;

use bytes::Bytes;
use serde::Serialize;
use steadfast_log::Lsn;

pub use kind::IndexKind;
pub(crate) use live::{Health, IndexFailure, LiveIndex, LiveRange};
pub(crate) use lsm::{LsmIndex, rebuild_dir};
pub use mem::MemCheckpoint;
pub(crate) use mem::MemIndex;

use crate::StoreError;

/// The index could not be read or written.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what}")]
pub(crate) struct IndexError {
    what: String,
    /// Whether its content is wrong, so that a retry is of no use.
    pub(crate) damaged: bool,
}

impl IndexError {
    /// The content of the index is wrong.
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self { what: what.into(), damaged: true }
    }

    /// The index could not be read or written now; a retry may succeed.
    pub(crate) fn failed(what: impl Into<String>) -> Self {
        Self { what: what.into(), damaged: false }
    }
}

impl From<IndexError> for StoreError {
    fn from(e: IndexError) -> Self {
        Self::Index(e.what)
    }
}

/// Gauges of an index.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct IndexStatus {
    /// Bytes of its files.
    pub disk_bytes: u64,
    /// Bytes of changes in memory only.
    pub memtable_bytes: u64,
    /// Files.
    pub tables: u64,
    /// Bytes of its files verified in the background since the start.
    pub verified_bytes: u64,
    /// Number of times it was found damaged since the start.
    pub damaged: u64,
    /// Number of times it was rebuilt in place.
    pub rebuilt: u64,
    /// Number of indexes being rebuilt or waiting for it; keys of their disks cannot be changed
    /// meanwhile.
    pub rebuilding: u64,
    /// Number of indexes that cannot be written now.
    pub unsaved: u64,
}

/// A pair of the index.
pub(crate) type Entry = Result<(Bytes, Bytes), IndexError>;

/// Verifies one file and returns its bytes.
pub(crate) type Check = Box<dyn FnOnce() -> Result<u64, IndexError> + Send>;

/// An ordered map from keys to record locations, complete up to an LSN.
pub(crate) trait Index: Send + Sync + 'static {
    /// The value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, IndexError>;

    /// Sets the value of `key`. `lsn` never decreases from call to call.
    fn insert(&self, key: Bytes, value: Bytes, lsn: Lsn);

    /// Removes `key`.
    fn remove(&self, key: Bytes, lsn: Lsn);

    /// The pairs with `from <= key < to`, in order. `to` of `None` is the end.
    fn range(&self, from: &[u8], to: Option<&[u8]>) -> Box<dyn Iterator<Item = Entry> + Send>;

    /// The pair with the highest key with `from <= key < to`.
    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Bytes, Bytes)>, IndexError>;

    /// Bytes of changes that a [`Index::persist`] would write.
    fn memtable_bytes(&self) -> u64;

    /// Sets the changes so far apart, to be persisted as a whole. Quick. The caller that makes
    /// changes calls it.
    fn seal(&self);

    /// Makes the sealed changes durable, all or none. May block for long; not on the commit path.
    fn persist(&self) -> Result<(), IndexError>;

    /// Compacts after [`Index::persist`]. May block for long; not on the commit path.
    fn compact(&self) -> Result<(), IndexError>;

    /// Marks the content as inconsistent: the next open must rebuild it.
    fn condemn(&self);

    /// Verifications of its files, one per file. They block.
    fn checks(&self) -> Vec<Check>;

    /// Gauges.
    fn status(&self) -> IndexStatus;
}
