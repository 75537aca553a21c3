//! What the log promises, in types.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use steadfast_flow::BoxFuture;

use crate::history::History;
use crate::hold::Hold;

/// Log sequence number: the position of a record in the order of commits. The first record of a log has 1.
pub type Lsn = u64;

/// Where a record lies. Resolves only while the extent has this epoch, so a location that outlived its extent
/// gives an error, never another record's bytes.
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
    /// After it has been written and can be read; the flush follows within a bounded window.
    Async,
}

/// Who asks for room: what is kept in reserve for whom when space runs out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// New data. Refused first.
    Write,
    /// Records that free space (deletes, aborts). May use the reserve.
    Delete,
    /// Compaction, which must be able to move data to gain room. May use everything.
    Compaction,
}

/// A record to be appended.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// What the layer above needs to rebuild its index: small (64 KiB at most); repeated in the extent's footer.
    pub head: Bytes,
    /// The rest, in pieces that are written one after another.
    pub body: Vec<Bytes>,
    /// For a record that replaces one without being news (compaction, re-pointing): the LSN of the original, by which it is
    /// ordered against others of its key. `None`: its own LSN.
    pub version: Option<Lsn>,
}

impl Record {
    /// Bytes of the body.
    pub fn body_len(&self) -> usize {
        self.body.iter().map(Bytes::len).sum()
    }
}

/// Records that are committed together: after a crash all of them are there, or none.
pub type Batch = Vec<Record>;

/// A committed record, as it is given to the [`Applier`].
#[derive(Debug, Clone)]
pub struct Applied {
    /// Its place in the order of commits.
    pub lsn: Lsn,
    /// The LSN of the original where this is a moved copy, else `lsn`.
    pub version: Lsn,
    /// Whether the record was appended with [`Record::version`] set.
    pub moved: bool,
    /// The record's head.
    pub head: Bytes,
    /// Where it lies.
    pub location: Location,
}

/// What a committed batch got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// LSN of the batch's first record; the others follow.
    pub first_lsn: Lsn,
    /// Whether it was flushed before the answer.
    pub durable: bool,
    /// When its frame began to be written, by the environment's clock.
    pub begun: Duration,
    /// When the frame was written, and flushed where it is durable.
    pub written: Duration,
}

/// Live bytes in an extent, as the layer above counts them. Derived; saved with its checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentUsage {
    /// Number of the extent.
    pub extent: u32,
    /// The epoch for which this holds.
    pub epoch: u64,
    /// Bytes that are still referred to.
    pub live_bytes: u64,
}

/// A live chunk that compaction has copied: where it was and where its durable copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkMove {
    /// Its old place, valid until the call that received this returns.
    pub from: Location,
    /// Its new place.
    pub to: Location,
}

/// What a record is of, as its head says. A subject is a hash, the same for all records that a
/// delete may hide and for that delete itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Something of this subject, which only deletes of this subject hide.
    Put(u64),
    /// Deletes what there is of this subject with a lower version, and hides nothing else.
    Delete(u64),
    /// Not known: it may hide anything, and anything may hide it.
    Unknown,
}

/// What the layer above does with committed records. One call at a time, in LSN order, at run time and in recovery alike, so that
/// the state it derives is the same both times.
pub trait Applier: Send + Sync + 'static {
    /// Takes in records that have become visible: flushed, or written when they were asynchronous.
    /// Runs on the commit path: it must not block.
    fn apply(&self, records: &[Applied]);

    /// Whether what the applier has saved can go on from its checkpoint in this history of the log. Asked first, before anything is changed:
    /// if not, opening ends with [`LogError::Open`].
    fn goes_on(&self, history: &History) -> bool {
        let _ = history;
        true
    }

    /// [`Applier::apply`] by one that may be unable to go on: how many of them it took. The rest are given to it again when it is [`Applier::ready`];
    /// nobody is answered before. In recovery, opening ends with [`LogError::Open`] when it takes fewer than all.
    fn apply_some(&self, records: &[Applied]) -> usize {
        self.apply(records);
        records.len()
    }

    /// Resolves when the applier, which took fewer records than it was given, can go on; `false` when it will not any more.
    fn ready(&self) -> BoxFuture<'_, bool> {
        Box::pin(async { true })
    }

    /// The highest LSN whose effect the applier has saved durably. Recovery replays from the next one; 0 replays all that the log holds.
    fn checkpoint(&self) -> Lsn;

    /// Space waits for a newer checkpoint: a hint, which may be ignored.
    fn checkpoint_wanted(&self) {}

    /// The usage saved with that checkpoint.
    fn usage(&self) -> Vec<ExtentUsage>;

    /// Whether the record at `location`, with this head and version, must outlive its extent. For a
    /// commit record (not a chunk). `oldest` is the lowest version that any other extent may hold
    /// of what it is about ([`Applier::subject`]): a delete record older than it has nothing left
    /// to hide. `None` when that cannot be said now, as while the index cannot be read: then nothing
    /// of the extent is moved or dropped. To move a dead record as if it were live, and drop the
    /// delete behind it as soon as the index can be read again, would bring the record back.
    fn record_is_live(&self, head: &[u8], version: Lsn, location: &Location, oldest: Lsn) -> Option<bool>;

    /// What the record with this head is of. Without it a delete is kept as long as there is
    /// anything older at all.
    fn subject(&self, head: &[u8]) -> Subject {
        let _ = head;
        Subject::Unknown
    }

    /// Whether a chunk, whose head was given to `Log::write_chunk`, is still referred to (or may become so: its upload is going on).
    fn chunk_is_live(&self, head: &[u8], location: &Location) -> BoxFuture<'_, bool>;

    /// Whether the record with this head may name chunks. Before a frame with such a record is written, chunks that were written since the
    /// last flush are flushed: else a power cut could leave the record, and not the chunks.
    fn names_chunks(&self, head: &[u8]) -> bool {
        let _ = head;
        true
    }

    /// What snapshots keep, when a replay has come to its end: from then on none of it is recycled until it is released.
    fn holds(&self) -> Vec<Hold> {
        Vec::new()
    }

    /// Commits records that refer to the copies instead of the originals, and returns when they are durable. Chunks that nobody
    /// refers to any more are left out. `moves` go by the heads of the chunks.
    fn repoint(&self, moves: BTreeMap<Bytes, Vec<ChunkMove>>) -> BoxFuture<'_, Result<(), LogError>>;
}

/// Why the log refused or failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LogError {
    /// The log has latched after a failed write or flush. Nothing of this request was accepted.
    #[error("the log takes no more writes since a {what} failed: {cause}; check the disk, then restart")]
    Failed {
        /// What failed: "write", "flush" or why the pool is read-only.
        what: &'static str,
        /// The operating system's words.
        cause: String,
    },
    /// A write or flush failed while this request was pending: after a restart it may be there, whole, or not.
    #[error("outcome unknown: a {what} failed while the request was being committed: {cause}")]
    Unknown {
        /// "write" or "flush".
        what: &'static str,
        /// The operating system's words.
        cause: String,
    },
    /// No room. Deletes and reads go on; it recovers when space returns.
    #[error("the pool is full")]
    Full,
    /// At a bound for longer than the caller would wait.
    #[error("no room in the write budget within {waited:?}")]
    Busy {
        /// How long the caller waited.
        waited: Duration,
    },
    /// The location's extent has been recycled: look the record up again.
    #[error("the record has moved")]
    Moved,
    /// Damaged data: what was read does not match its checksum, and there was no other copy.
    #[error("damaged data in extent {extent} at {offset}: {what}")]
    Damaged {
        /// Number of the extent.
        extent: u32,
        /// Bytes from the start of the extent.
        offset: u64,
        /// What did not match.
        what: String,
    },
    /// The disk could not be read.
    #[error("cannot read extent {extent} at {offset}: {cause}")]
    Read {
        /// Number of the extent.
        extent: u32,
        /// Bytes from the start of the extent.
        offset: u64,
        /// The operating system's words.
        cause: String,
    },
    /// The request is beyond what a record can be.
    #[error("{0}")]
    TooLarge(String),
    /// The server is stopping.
    #[error("the log is closed")]
    Closed,
    /// The disk holds no pool, another format, or another pool; or it cannot be used.
    #[error("{0}")]
    Open(String),
}
