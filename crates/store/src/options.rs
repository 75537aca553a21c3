//! Settings of the store, each a bound.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use steadfast_disk::Disk;
use steadfast_log::{LogOptions, RecoveryReport};

use crate::{MemCheckpoint, Mirrored};

/// Where the index is kept.
#[derive(Debug, Clone)]
pub enum IndexKind {
    /// In a directory, made when it is not there. It may be deleted while the store is closed: it is rebuilt from the log.
    /// In a pool of several disks, each has one of its own beside this: with a dot and the disk's identity behind the name.
    Lsm(PathBuf),
    /// In memory. What the checkpoint holds survives the store, so that a test can open it again.
    Memory(MemCheckpoint),
}

impl IndexKind {
    /// In memory, empty.
    pub fn memory() -> Self {
        Self::Memory(MemCheckpoint::default())
    }

    /// That of one disk of a pool of several: beside the place given, with the disk's identity.
    pub(crate) fn of_disk(&self, disk: &[u8; 16]) -> Self {
        match self {
            Self::Lsm(dir) => {
                let mut name = dir.file_name().unwrap_or_default().to_owned();
                name.push(format!(".{}", uuid::Uuid::from_bytes(*disk)));
                Self::Lsm(dir.with_file_name(name))
            }
            Self::Memory(checkpoint) => Self::Memory(checkpoint.of_disk(disk)),
        }
    }

    /// Where it is rebuilt while this one is still read.
    pub(crate) fn beside(&self) -> Self {
        match self {
            Self::Lsm(dir) => Self::Lsm(crate::index::beside(dir)),
            Self::Memory(checkpoint) => Self::Memory(checkpoint.clone()),
        }
    }

    /// That of the only disk that was given, which may be one of a pool of several all the same.
    pub(crate) fn of_only_disk(&self, disk: &[u8; 16]) -> Self {
        let of_disk = match self {
            Self::Lsm(_) => matches!(self.of_disk(disk), Self::Lsm(dir) if dir.exists()),
            Self::Memory(checkpoint) => checkpoint.has_disk(disk),
        };
        if of_disk { self.of_disk(disk) } else { self.clone() }
    }
}

/// Settings of a store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The log's own.
    pub log: LogOptions,
    /// Bodies up to this many bytes are committed within their record; larger ones stream as chunks.
    pub inline_max_bytes: usize,
    /// Bytes of a chunk; not more than the log's own bound.
    pub chunk_bytes: usize,
    /// How many chunks of one upload are on their way to the disk at a time.
    pub chunks_in_flight_max: usize,
    /// How long a request waits for room in a budget before it is told to slow down.
    pub write_wait: Duration,
    /// Bytes that one read from the disk asks for, and by which chunks are cached. A multiple of 64 KiB, so that each
    /// checksum is computed once.
    pub read_piece_bytes: u32,
    /// How many pieces are read ahead of a stream's consumer.
    pub read_ahead_pieces: usize,
    /// Bytes that all streams together may have read ahead; further ones wait.
    pub read_ahead_bytes_max: u64,
    /// Bytes of the read cache; 0 for none.
    pub cache_bytes: u64,
    /// Bytes that the newest publications of all channels in use may take in memory; older ones are read from the log.
    pub channel_tail_bytes: u64,
    /// Bytes of the index's own block cache.
    pub index_cache_bytes: u64,
    /// The index is persisted when this many bytes of it have changed,
    pub memtable_bytes_max: u64,
    /// or when this many bytes of records have been committed since (in a small pool, an eighth of it): bounds what a start replays,
    /// and how much space waits for a checkpoint.
    pub checkpoint_log_bytes: u64,
    /// Bytes that every part of an upload but the last must have.
    pub part_min_bytes: u64,
    /// How many snapshots there may be.
    pub snapshots_max: usize,
    /// Uploads in parts that have not been completed after this time are given up. `None`: never.
    pub upload_expiry: Option<Duration>,
    /// How long the wall clock must stay where it has stepped to before what is over by it goes.
    pub clock_confirm: Duration,
    /// Bytes a second at which keys are moved between disks; 0 for no bound.
    pub move_bytes_s: u64,
    /// Keys move in batches of slots with about this many bytes: what a restart begins again.
    pub move_batch_bytes: u64,
    /// How many keys are copied at a time.
    pub move_parallel: usize,
    /// Changed keys of a batch that may wait to be copied again; more writers to those slots wait.
    pub move_dirty_max: usize,
    /// Objects of whose events somebody wants to know, whatever the settings of their bucket say.
    pub mirrored: Arc<[Mirrored]>,
    /// Events of objects that may wait to be forwarded; those who would make more wait for as long as [`StoreOptions::write_wait`] says.
    pub events_max: usize,
    /// Where damage has taken records, and nobody knows which: whether what is left of older ones is served, though it may have been replaced or deleted.
    pub serve_doubtful: bool,
    /// Broken on purpose, to test the simulator.
    #[doc(hidden)]
    pub sabotage: StoreSabotage,
}

/// Ways to be broken on purpose, to test the simulator.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StoreSabotage {
    /// Not at all.
    #[default]
    None,
    /// A slot's home changes before what was copied to the new one is durable there.
    EarlySwitch,
    /// What changes of a slot while it is copied is left behind.
    ChangesLeftBehind,
    /// Publications are answered, as if they were durable, and delivered before their flush.
    PublishBeforeFlush,
    /// Each publication is delivered by a task of its own.
    FanOutOrder,
    /// After a restart the next offset is taken from a position that is one behind.
    OffsetReused,
    /// An event removes those before it, whether they were forwarded or not.
    EventsTrimmed,
    /// Any index of the pool is gone on with, whatever history it is of and however old it is.
    AnyIndex,
    /// A record that cannot be taken in, since the index cannot be read, is left out.
    IndexErrors,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            log: LogOptions::default(),
            inline_max_bytes: 128 << 10,
            chunk_bytes: 1 << 20,
            chunks_in_flight_max: 4,
            write_wait: Duration::from_secs(10),
            read_piece_bytes: 256 << 10,
            read_ahead_pieces: 4,
            read_ahead_bytes_max: 64 << 20,
            cache_bytes: 256 << 20,
            channel_tail_bytes: 128 << 20,
            index_cache_bytes: 64 << 20,
            memtable_bytes_max: 32 << 20,
            checkpoint_log_bytes: 256 << 20,
            part_min_bytes: 5 << 20,
            snapshots_max: 256,
            upload_expiry: None,
            clock_confirm: Duration::from_secs(3600),
            move_bytes_s: 100 << 20,
            move_batch_bytes: 4 << 30,
            move_parallel: 8,
            move_dirty_max: 20_000,
            mirrored: Arc::default(),
            events_max: 10_000,
            serve_doubtful: false,
            sabotage: StoreSabotage::None,
        }
    }
}

impl StoreOptions {
    /// The bound on what is committed between checkpoints, in a pool that may grow to `capacity_bytes`.
    pub(crate) fn checkpoint_log_bytes_in(&self, capacity_bytes: u64) -> u64 {
        self.checkpoint_log_bytes.min((capacity_bytes / 8).max(1 << 20))
    }

    /// Bytes that a disk of several gets at least: of the read cache,
    pub const CACHE_BYTES_MIN: u64 = 1 << 20;
    /// of the index's cache,
    pub const INDEX_CACHE_BYTES_MIN: u64 = 4 << 20;
    /// and for what was accepted and is not on disk yet.
    pub const PENDING_BYTES_MIN: u64 = 16 << 20;

    /// What one of several disks gets: memory is shared out, with enough for each to work.
    pub(crate) fn of_one_disk(&self, disks: usize) -> Self {
        let mut options = self.clone();
        if disks > 1 {
            let share = |whole: u64, least: u64| (whole / disks as u64).max(least.min(whole));
            options.cache_bytes = share(self.cache_bytes, Self::CACHE_BYTES_MIN);
            options.index_cache_bytes = share(self.index_cache_bytes, Self::INDEX_CACHE_BYTES_MIN);
            options.channel_tail_bytes = share(self.channel_tail_bytes, 0);
            options.memtable_bytes_max = share(self.memtable_bytes_max, 8 << 20);
            options.log.pending_bytes_max = share(self.log.pending_bytes_max, Self::PENDING_BYTES_MIN);
            options.log.pending_reserve_bytes_max = share(self.log.pending_reserve_bytes_max, 8 << 20);
        }
        options
    }
}

/// A disk to open a store on.
pub struct PoolDisk {
    /// What people call it: its path.
    pub name: String,
    /// The disk; or why it could not be opened.
    pub disk: Result<Arc<dyn Disk>, String>,
    /// Nobody has said that it belongs to the pool, it is only remembered to: then one that does not is left out.
    pub hint: bool,
}

/// What opening a store found.
#[derive(Debug, Clone)]
pub struct OpenReport {
    /// What the log found; of several, that of the first disk.
    pub recovery: RecoveryReport,
    /// Whether an index was built anew from its log.
    pub index_rebuilt: bool,
    /// Records replayed into the index.
    pub replayed_records: u64,
    /// What the log of each disk found, by the disk's name.
    pub disks: Vec<(String, RecoveryReport)>,
    /// Disks of the pool that are not there, each with its name and why.
    pub missing: Vec<(String, String)>,
    /// Disks that were given and are left out, each with its name and why.
    pub left_out: Vec<(String, String)>,
    /// Whether keys were being moved between disks when the pool was last open: [`Store::resume_moves`](crate::Store::resume_moves) goes on.
    pub moves_unfinished: bool,
    /// Buckets about which the disks did not agree, as after a crash, and now do.
    pub buckets_repaired: u64,
}
