//! Settings of the store: its bounds.

use std::sync::Arc;
use std::time::Duration;

use steadfast_disk::Disk;
use steadfast_log::{LogOptions, RecoveryReport};

use crate::{EvictorSlot, Mirrored, MoveGate};

/// Settings of a store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Settings of the log.
    pub log: LogOptions,
    /// Bodies up to this many bytes are committed within their record; larger ones stream as
    /// chunks.
    pub inline_max_bytes: usize,
    /// Bytes of a chunk; at most the log's own bound.
    pub chunk_bytes: usize,
    /// Chunks of one upload in flight to the disk at a time.
    pub chunks_in_flight_max: usize,
    /// Time that a request waits for a budget before it gets "slow down".
    pub write_wait: Duration,
    /// Bytes of one read from the disk and of one cache entry. A multiple of 64 KiB, so that each
    /// checksum is computed once.
    pub read_piece_bytes: u32,
    /// Pieces read ahead of a stream's consumer.
    pub read_ahead_pieces: usize,
    /// Bytes that all streams together may read ahead; further reads wait.
    pub read_ahead_bytes_max: u64,
    /// Bytes of the read cache; 0 for none.
    pub cache_bytes: u64,
    /// Bytes of memory for the newest publications of all channels in use; older ones are read from
    /// the log.
    pub channel_tail_bytes: u64,
    /// Bytes of the index's own block cache.
    pub index_cache_bytes: u64,
    /// Changed bytes after which the index is persisted.
    pub memtable_bytes_max: u64,
    /// Committed bytes of records after which the index is persisted (in a small pool, an eighth of
    /// it). It bounds the replay of a start and the space that waits for a checkpoint.
    pub checkpoint_log_bytes: u64,
    /// Minimum bytes of every part of an upload except the last.
    pub part_min_bytes: u64,
    /// Age at which an unfinished multipart upload is aborted. `None`: never.
    pub upload_expiry: Option<Duration>,
    /// Time that the wall clock must stay where it stepped to before entities expire by it.
    pub clock_confirm: Duration,
    /// Bytes per second for moving keys between disks; 0: no bound.
    pub move_bytes_s: u64,
    /// Bytes of a batch of slots that moves together, about. A restart repeats at most one batch.
    pub move_batch_bytes: u64,
    /// Keys copied at a time.
    pub move_parallel: usize,
    /// Changed keys of a batch that may wait to be copied again; then writers to those slots wait.
    pub move_dirty_max: usize,
    /// Objects whose events are always recorded, whatever their bucket's settings.
    pub mirrored: Arc<[Mirrored]>,
    /// Events of objects that may wait to be forwarded; then writers of events wait for up to
    /// [`StoreOptions::write_wait`].
    pub events_max: usize,
    /// Evicts cached objects instead of having compaction move them.
    pub evictor: EvictorSlot,
    /// Whether older records are served after damage took unknown records, although they may have
    /// been replaced or deleted.
    pub serve_doubtful: bool,
    /// Whether disks of the pool were put back to an earlier state: every channel gets another
    /// epoch, because offsets of lost publications are given out again.
    pub put_back: bool,
    /// What moves of slots wait for, if anything.
    pub move_gate: Option<Arc<dyn MoveGate>>,
    /// A deliberate bug, to test the simulator.
    #[doc(hidden)]
    pub sabotage: StoreSabotage,
}

/// Deliberate bugs, to test the simulator.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StoreSabotage {
    /// No bug.
    #[default]
    None,
    /// A slot's home changes before its copy is durable on the goal.
    EarlySwitch,
    /// Changes to a slot during its copy are not copied again.
    ChangesLeftBehind,
    /// Publications are answered as durable, and delivered, before their flush.
    PublishBeforeFlush,
    /// Each publication is delivered by its own task.
    FanOutOrder,
    /// After a restart the next offset is one too low.
    OffsetReused,
    /// An event removes earlier ones, whether or not they were forwarded.
    EventsTrimmed,
    /// Channels keep their epochs when the pool was put back to an earlier state.
    EpochsKept,
    /// Any index of the pool is used, whatever its history and age.
    AnyIndex,
    /// A record is skipped when the index cannot be read.
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
            read_ahead_bytes_max: 1 << 20,
            cache_bytes: 256 << 20,
            channel_tail_bytes: 128 << 20,
            index_cache_bytes: 64 << 20,
            memtable_bytes_max: 32 << 20,
            checkpoint_log_bytes: 256 << 20,
            part_min_bytes: 5 << 20,
            upload_expiry: None,
            clock_confirm: Duration::from_secs(3600),
            move_bytes_s: 100 << 20,
            move_batch_bytes: 4 << 30,
            move_parallel: 8,
            move_dirty_max: 20_000,
            mirrored: Arc::default(),
            events_max: 10_000,
            evictor: EvictorSlot::default(),
            serve_doubtful: false,
            put_back: false,
            move_gate: None,
            sabotage: StoreSabotage::None,
        }
    }
}

impl StoreOptions {
    /// Committed bytes between checkpoints, in a pool that may grow to `capacity_bytes`.
    pub(crate) fn checkpoint_log_bytes_in(&self, capacity_bytes: u64) -> u64 {
        self.checkpoint_log_bytes.min((capacity_bytes / 8).max(1 << 20))
    }

    /// Minimum bytes of the read cache for one disk of several.
    pub const CACHE_BYTES_MIN: u64 = 1 << 20;
    /// Minimum bytes of the index's cache for one disk of several.
    pub const INDEX_CACHE_BYTES_MIN: u64 = 4 << 20;
    /// Minimum bytes of accepted data that is not on disk yet, for one disk of several.
    pub const PENDING_BYTES_MIN: u64 = 16 << 20;

    /// The options of one disk of several: memory is divided, with a minimum for each.
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
    /// Name for operators: its path.
    pub name: String,
    /// The disk, or the reason why it could not be opened.
    pub disk: Result<Arc<dyn Disk>, String>,
    /// Whether its membership is only remembered, not configured: then a foreign disk is skipped.
    pub hint: bool,
}

/// Report of opening a store.
#[derive(Debug, Clone)]
pub struct OpenReport {
    /// Recovery of the log; of several, that of the first disk.
    pub recovery: RecoveryReport,
    /// Whether an index was rebuilt from its log.
    pub index_rebuilt: bool,
    /// Records replayed into the index.
    pub replayed_records: u64,
    /// Recovery of each disk's log, by the disk's name.
    pub disks: Vec<(String, RecoveryReport)>,
    /// Missing disks of the pool, each with its name and the reason.
    pub missing: Vec<(String, String)>,
    /// Given disks that were skipped, each with its name and the reason.
    pub left_out: Vec<(String, String)>,
    /// Whether keys were moving between disks when the pool was last open;
    /// [`StoreDisks::resume_moves`](crate::StoreDisks::resume_moves) continues.
    pub moves_unfinished: bool,
    /// Number of buckets on which the disks disagreed, as after a crash, and now agree.
    pub buckets_repaired: u64,
}
