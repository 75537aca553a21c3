//! The index: an ordered map from keys to where their records lie, that remembers up to which LSN it is complete.
//!
//! It is derived from the log and may be deleted at any time. Changes arrive in LSN order from one caller; reads may come
//! from anywhere.

mod live;
mod lsm;
mod mem;

use bytes::Bytes;
use serde::Serialize;
use steadfast_log::Lsn;

pub(crate) use live::{Ailment, Health, LiveIndex, Range};
pub(crate) use lsm::{LsmIndex, beside};
pub use mem::MemCheckpoint;
pub(crate) use mem::MemIndex;

use crate::StoreError;

/// The index could not be read or written.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what}")]
pub(crate) struct IndexError {
    what: String,
    /// It is not what it was: trying again is of no use.
    pub(crate) damaged: bool,
}

impl IndexError {
    /// What it holds is not what was put into it.
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self { what: what.into(), damaged: true }
    }

    /// It could not be read or written now.
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
    /// Bytes of changes that are only in memory.
    pub memtable_bytes: u64,
    /// Files.
    pub tables: u64,
    /// Bytes of its files that were verified since the start, in the background.
    pub verified_bytes: u64,
    /// How often it was found damaged since the start,
    pub damaged: u64,
    /// and how often it was rebuilt in place.
    pub rebuilt: u64,
    /// How many indexes are being rebuilt, or wait to be: keys of their disks are not changed meanwhile.
    pub rebuilding: u64,
    /// How many cannot be written now.
    pub unsaved: u64,
}

/// A pair of the index.
pub(crate) type Entry = Result<(Bytes, Bytes), IndexError>;

/// Verifies one file; how many bytes it has.
pub(crate) type Check = Box<dyn FnOnce() -> Result<u64, IndexError> + Send>;

/// What an index does. See the module.
pub(crate) trait Index: Send + Sync + 'static {
    /// The value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, IndexError>;

    /// Sets the value of `key`. `lsn` does not go down from call to call.
    fn insert(&self, key: Bytes, value: Bytes, lsn: Lsn);

    /// Removes `key`.
    fn remove(&self, key: Bytes, lsn: Lsn);

    /// The pairs with `from <= key < to`, in order. `to` of `None` is the end.
    fn range(&self, from: &[u8], to: Option<&[u8]>) -> Box<dyn Iterator<Item = Entry> + Send>;

    /// The pair with the highest key with `from <= key < to`.
    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Bytes, Bytes)>, IndexError>;

    /// Bytes of changes that a [`Index::persist`] would write.
    fn memtable_bytes(&self) -> u64;

    /// Sets apart what has changed so far, to be persisted as a whole. Quick. Called by the one who changes.
    fn seal(&self);

    /// Makes what was sealed durable, all of it or nothing. May block for long; not on the commit path.
    fn persist(&self) -> Result<(), IndexError>;

    /// Tidies up after [`Index::persist`]. May block for long; not on the commit path.
    fn compact(&self) -> Result<(), IndexError>;

    /// Something in it does not make sense: the next open must rebuild it.
    fn condemn(&self);

    /// Verifications of its files, one each. They block.
    fn checks(&self) -> Vec<Check>;

    /// Gauges.
    fn status(&self) -> IndexStatus;
}
