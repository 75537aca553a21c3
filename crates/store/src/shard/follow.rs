//! Reading of a record that the index names: only its own bytes, and from its new place when it
//! moves meanwhile.

use std::ops::Range;

use bytes::Bytes;
use steadfast_flow::stages::{self, Stage};
use steadfast_log::{Location, Log, LogError, RecordFront};

use crate::StoreError;
use crate::record::{Head, keys};

/// How often a look-up is repeated because the record moved: each time the index has a new
/// location, so usually once.
const MOVES_MAX: usize = 32;

/// Follows a record from look-up to look-up.
#[derive(Default)]
pub(crate) struct Follow {
    known: Option<Location>,
    looks: usize,
}

impl Follow {
    /// The log reports that the record at `at` has moved: it must be looked up again.
    ///
    /// # Errors
    /// [`LogError::Damaged`] when the index had the same location last time: then the record is
    /// lost. [`StoreError::Busy`] when it moves faster than it can be read.
    pub(crate) async fn moved(&mut self, log: &Log, at: &Location) -> Result<(), StoreError> {
        if self.known == Some(*at) {
            return Err(log.lost(at).into());
        }
        self.known = Some(*at);
        self.looks += 1;
        if self.looks > MOVES_MAX {
            return Err(StoreError::Busy("records that are being moved"));
        }
        // A log that answers at once must not occupy the thread, nor keep the caller from
        // cancelling.
        tokio::task::yield_now().await;
        Ok(())
    }
}

/// Whether a record with this head is the one that the index has under `key`, or a chunk of it.
fn is_of(head: &[u8], key: &[u8]) -> bool {
    match Head::decode(head) {
        Ok(Head::ObjectPut { bucket, key: name, .. } | Head::Chunk { bucket, key: name, .. }) => {
            keys::object(bucket, name) == key
        }
        Ok(Head::PartPut { upload, number, .. }) => keys::part(&upload, number) == key,
        // A chunk of the part and, once the upload is completed, of the object.
        Ok(Head::PartChunk { bucket, upload, number, key: name, .. }) => {
            keys::part(&upload, number) == key || keys::object(bucket, name) == key
        }
        Ok(Head::Publication { channel, offset, .. }) => keys::publication(channel, offset) == key,
        _ => false,
    }
}

/// Bytes of the body of the indexed record under `key`, or of a chunk of it: never another
/// record's.
pub(crate) async fn read(log: &Log, at: &Location, range: Range<u32>, key: &[u8]) -> Result<Bytes, LogError> {
    read_part(log, at, range, key, &RecordFront::default()).await
}

/// The same, of a body that is read in parts. They share `front`.
pub(crate) async fn read_part(
    log: &Log,
    at: &Location,
    range: Range<u32>,
    key: &[u8],
    front: &RecordFront,
) -> Result<Bytes, LogError> {
    let _lap = stages::enter(Stage::Disk);
    log.read_of(*at, range, &|head| is_of(head, key), front).await
}

#[cfg(test)]
mod tests;
