//! The public types of the log.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::format::Lsn;

/// Location of a record. It resolves only while the extent has this epoch. A location that outlived
/// its extent gives an error, never another record's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Location {
    /// Number of the extent.
    pub extent: u32,
    /// The extent's epoch when the record was written.
    pub epoch: u64,
    /// Bytes from the start of the extent to the record's header.
    pub offset: u32,
    /// Bytes of the record's head.
    pub head_len: u32,
    /// Bytes of the record's body.
    pub body_len: u32,
}

/// When a commit is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// After the flush that covers it has returned.
    #[default]
    Sync,
    /// After the record has been written and can be read. The flush follows within a bounded
    /// window.
    Async,
}

/// Priority of a request for space. It decides which reserve the request may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// New data. Refused first.
    Write,
    /// Records that free space (deletes, aborts). May use the reserve.
    Delete,
    /// Compaction, which must move data to free space. May use everything.
    Compaction,
}

/// A record to be appended.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// Data that the layer above needs to rebuild its index, at most 64 KiB. The extent's footer
    /// repeats it.
    pub head: Bytes,
    /// The remaining data, in pieces that are written in sequence.
    pub body: Vec<Bytes>,
    /// LSN of the original, if this record replaces one without new content (compaction,
    /// re-pointing). It orders the record against others of its key. `None`: the record's own LSN.
    pub version: Option<Lsn>,
}

impl Record {
    /// Bytes of the body.
    pub fn body_len(&self) -> usize {
        self.body.iter().map(Bytes::len).sum()
    }
}

/// Records that are committed together. A crash keeps all of them or none.
pub type Batch = Vec<Record>;

/// A committed record, as the [`Applier`] receives it.
#[derive(Debug, Clone)]
pub struct Applied {
    /// Position in the order of commits.
    pub lsn: Lsn,
    /// LSN of the original if this is a moved copy, else `lsn`.
    pub version: Lsn,
    /// Whether the record was appended with [`Record::version`] set.
    pub moved: bool,
    /// The record's head.
    pub head: Bytes,
    /// Location of the record.
    pub location: Location,
}

/// Outcome of a committed batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// LSN of the batch's first record; the others follow.
    pub first_lsn: Lsn,
    /// Whether it was flushed before the answer.
    pub durable: bool,
    /// Time at which the write of its frame began, by the environment's clock.
    pub begun: Duration,
    /// Time at which the frame was written, and flushed if durable.
    pub written: Duration,
}

/// Live bytes in an extent, as the layer above counts them. Derived; saved with its checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentUsage {
    /// Number of the extent.
    pub extent: u32,
    /// Epoch for which the count is valid.
    pub epoch: u64,
    /// Bytes that are still referenced.
    pub live_bytes: u64,
}

/// A live chunk that compaction has copied, with its old location and that of its durable copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkMove {
    /// Old location, valid until the call that received this returns.
    pub from: Location,
    /// New location.
    pub to: Location,
}

/// Subject of a record, derived from its head. A subject is a hash: all records that a delete may
/// hide, and the delete itself, have the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A record of this subject. Only deletes of this subject hide it.
    Put(u64),
    /// Deletes records of this subject with a lower version, and hides nothing else.
    Delete(u64),
    /// Unknown subject: the record may hide any other, and any other may hide it.
    Unknown,
}

/// Reason why the log refused a request or failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LogError {
    /// The log has latched after a failed write or flush, and accepted nothing of this request.
    #[error("the log takes no more writes since a {what} failed: {cause}; check the disk, then restart")]
    Failed {
        /// The operation that failed: "write", "flush", or the reason why the pool is read-only.
        what: &'static str,
        /// Message of the operating system.
        cause: String,
    },
    /// A write or flush failed while this request was pending. After a restart the batch is either
    /// complete or absent.
    #[error("outcome unknown: a {what} failed while the request was being committed: {cause}")]
    Unknown {
        /// "write" or "flush".
        what: &'static str,
        /// Message of the operating system.
        cause: String,
    },
    /// No free space. Deletes and reads continue. The log recovers when space is freed.
    #[error("the pool is full")]
    Full,
    /// The budget stayed exhausted for longer than the caller's timeout.
    #[error("no space in the write budget within {waited:?}")]
    Busy {
        /// How long the caller waited.
        waited: Duration,
    },
    /// The location's extent has been recycled. The caller must look the record up again.
    #[error("the record has moved")]
    Moved,
    /// Data that does not match its checksum on any copy.
    #[error("damaged data in extent {extent} at {offset}: {what}")]
    Damaged {
        /// Number of the extent.
        extent: u32,
        /// Bytes from the start of the extent.
        offset: u64,
        /// What did not match.
        what: String,
    },
    /// The disk returned an error on a read.
    #[error("cannot read extent {extent} at {offset}: {cause}")]
    Read {
        /// Number of the extent.
        extent: u32,
        /// Bytes from the start of the extent.
        offset: u64,
        /// Message of the operating system.
        cause: String,
    },
    /// The request exceeds a limit of records or chunks.
    #[error("{0}")]
    TooLarge(String),
    /// The log was opened for reading ([`crate::LogOptions::for_reading`]).
    #[error("the log was opened for reading, and takes no writes")]
    OpenedForReading,
    /// The server is stopping.
    #[error("the log is closed")]
    Closed,
    /// The disk holds no pool, another format or another pool, or it cannot be used.
    #[error("{0}")]
    Open(String),
}
