//! The index: an ordered map from keys to where their records lie, that remembers up to which LSN it is complete.
//!
//! It is derived from the log and may be deleted at any time. Changes arrive in LSN order from one caller; reads may come
//! from anywhere.

mod lsm;
mod mem;

use bytes::Bytes;
use serde::Serialize;
use steadfast_log::Lsn;

pub(crate) use lsm::LsmIndex;
pub use mem::MemCheckpoint;
pub(crate) use mem::MemIndex;

use crate::StoreError;

/// The index could not be read or written.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct IndexError(pub(crate) String);

impl From<IndexError> for StoreError {
    fn from(e: IndexError) -> Self {
        Self::Index(e.0)
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
}

/// A pair of the index.
pub(crate) type Entry = Result<(Bytes, Bytes), IndexError>;

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

    /// Gauges.
    fn status(&self) -> IndexStatus;
}
