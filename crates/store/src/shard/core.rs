//! State shared by a shard and its applier.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use steadfast_flow::Env;
use steadfast_flow::stages::{self, Stage};
use steadfast_log::{Committed, Doubt, LogError, Lsn, Priority};
use tokio::sync::watch;

use super::hang::Hang;
use super::wanted::Wanted;
use crate::cache::ReadCache;
use crate::clock::BelievedClock;
use crate::index::{IndexError, LiveIndex};
use crate::layout::Layout;
use crate::record::keys::{BucketId, Id};
use crate::record::snapshot::SnapshotMeta;
use crate::record::wire::Malformed;
use crate::record::{BucketMeta, Value};
use crate::shard::buckets::Bucket;
use crate::shard::channels::Channels;
use crate::shard::checkpoint::Checkpoint;
use crate::shard::marks::Marks;
use crate::shard::owners::Owners;
use crate::shard::pending::{Pending, bin_of};
use crate::shard::spare::Spare;
use crate::{StoreError, StoreOptions};
use steadfast_log::{Log, Reservation, Usage};

impl From<Malformed> for StoreError {
    fn from(e: Malformed) -> Self {
        Self::Index(e.to_string())
    }
}

/// Maps the log's busy error to the store's.
pub(crate) fn busy(e: LogError) -> StoreError {
    match e {
        LogError::Busy { .. } => StoreError::Busy("data in flight to the disk"),
        e => e.into(),
    }
}

/// The buckets, by name and by identity.
#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) by_name: BTreeMap<String, Arc<Bucket>>,
    pub(crate) by_id: BTreeMap<BucketId, Arc<Bucket>>,
    /// Names of buckets that may not exist, and why that is unknown.
    pub(crate) doubtful: BTreeMap<String, String>,
}

impl Registry {
    /// Adds a bucket, or changes its settings.
    pub(crate) fn put(&mut self, id: BucketId, meta: BucketMeta) {
        if let Some(bucket) = self.by_id.get(&id) {
            *bucket.settings.write() = meta.settings;
            return;
        }
        let bucket = Arc::new(Bucket::new(id, meta));
        self.by_name.insert(bucket.name.clone(), bucket.clone());
        self.by_id.insert(id, bucket);
    }

    /// Forgets a bucket.
    pub(crate) fn remove(&mut self, id: BucketId) {
        let Some(bucket) = self.by_id.remove(&id) else { return };
        bucket.deleted.store(true, Ordering::Release);
        if self.by_name.get(&bucket.name).is_some_and(|b| b.id == id) {
            self.by_name.remove(&bucket.name);
            // A deletion interrupted by a crash leaves two buckets of a name until the shards have
            // been repaired.
            if let Some(other) = self.by_id.values().find(|b| b.name == bucket.name) {
                self.by_name.insert(other.name.clone(), other.clone());
            }
        }
    }
}

/// Progress of the applier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) lsn: Lsn,
    /// Whether a commit failed: pending records may never be applied.
    pub(crate) failed: bool,
}

/// A running replay of the log.
pub(crate) struct Replay {
    /// LSN of the checkpoint that it began from.
    pub(crate) base: Lsn,
    /// Deletes met so far.
    pub(crate) marks: Marks,
    pub(crate) records: u64,
    /// The newest time in a record, for a replay from nothing.
    pub(crate) newest_ms: u64,
}

impl Replay {
    /// Whether a newer delete of the key was met. May block.
    pub(crate) fn deleted(&self, key: &[u8], version: Lsn) -> Result<bool, IndexError> {
        Ok(self.marks.get(key)?.is_some_and(|mark| mark > version))
    }
}

/// See the module.
pub(crate) struct Core {
    pub(crate) env: Env,
    /// The clock for expiry.
    pub(crate) clock: BelievedClock,
    pub(crate) options: StoreOptions,
    /// Whether new data was refused for lack of space, and none has been accepted since.
    pub(crate) full: AtomicBool,
    pub(crate) spare: Spare,
    /// Whether the disk hangs.
    pub(crate) hang: tokio::sync::watch::Sender<Hang>,
    pub(crate) wanted: Wanted,
    pub(crate) index: LiveIndex,
    pub(crate) registry: RwLock<Registry>,
    /// The layout of the pool; `None` for a pool of one disk that never had another.
    pub(crate) layout: RwLock<Option<Arc<Layout>>>,
    /// The snapshots that have a part on this disk.
    pub(crate) snapshots: RwLock<BTreeMap<Id, SnapshotMeta>>,
    /// Whether the index or a record was inconsistent.
    pub(crate) distrusted: AtomicBool,
    pub(crate) pending: Pending,
    pub(crate) owners: Owners,
    pub(crate) cache: ReadCache,
    pub(crate) progress: watch::Sender<Progress>,
    /// The highest submitted LSN.
    pub(crate) submitted: AtomicU64,
    pub(crate) replay: Mutex<Option<Replay>>,
    pub(crate) pool: [u8; 16],
    pub(crate) objects: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) uploads: AtomicU64,
    /// Bytes of the index in memory only.
    pub(crate) memtable_bytes: AtomicU64,
    /// Shared lock from reading a manifest until a record derived from it is submitted; exclusive
    /// lock to move chunks.
    pub(crate) manifests: tokio::sync::RwLock<()>,
    pub(crate) last_manifest: crate::shard::apply::live::LastManifest,
    /// Budget of all streams for reading ahead, in KiB.
    pub(crate) read_ahead: Arc<tokio::sync::Semaphore>,
    /// Channels that are in use.
    pub(crate) channels: Channels,
    /// Number of publications removed because they expired.
    pub(crate) swept: AtomicU64,
    /// LSN up to which asynchronous publications may be lost although they were delivered: the last
    /// one at the opening, unless the shard had closed cleanly.
    pub(crate) lost_lsn: AtomicU64,
    /// LSN of the last submitted record of a bucket.
    pub(crate) bucket_lsn: AtomicU64,
    /// Maximum size of the disk, in bytes.
    pub(crate) capacity_bytes: u64,
    /// Changes to slots that are moving away.
    pub(crate) dirty: crate::shard::dirty::Dirty,
    /// Set when acknowledged records are gone from the log, and the index does not have them.
    pub(crate) doubt: OnceLock<Doubt>,
}

impl Core {
    /// Creates the state from which a replay continues or begins.
    #[allow(clippy::too_many_arguments, reason = "each is a part of the state")]
    pub(crate) fn new(
        env: Env,
        index: LiveIndex,
        pool: [u8; 16],
        checkpoint: &Checkpoint,
        registry: Registry,
        layout: Option<Arc<Layout>>,
        read_ahead: Arc<tokio::sync::Semaphore>,
        options: StoreOptions,
    ) -> Self {
        let marks = Marks::new(&index.held().kind, options.memtable_bytes_max);
        Self {
            clock: BelievedClock::new(env.clone(), checkpoint.clock_ms, options.clock_confirm),
            env,
            registry: RwLock::new(registry),
            layout: RwLock::new(layout),
            snapshots: Default::default(),
            distrusted: AtomicBool::new(false),
            pending: Default::default(),
            owners: Default::default(),
            cache: ReadCache::new(options.cache_bytes),
            progress: watch::Sender::new(Progress { lsn: checkpoint.lsn, failed: false }),
            submitted: AtomicU64::new(0),
            replay: Mutex::new(Some(Replay { base: checkpoint.lsn, marks, records: 0, newest_ms: 0 })),
            pool,
            objects: AtomicU64::new(checkpoint.objects),
            bytes: AtomicU64::new(checkpoint.bytes),
            uploads: AtomicU64::new(0),
            memtable_bytes: AtomicU64::new(0),
            manifests: tokio::sync::RwLock::new(()),
            last_manifest: Default::default(),
            read_ahead,
            channels: Channels::new(options.channel_tail_bytes),
            swept: AtomicU64::new(0),
            lost_lsn: AtomicU64::new(u64::MAX),
            bucket_lsn: AtomicU64::new(0),
            capacity_bytes: 0,
            dirty: Default::default(),
            doubt: OnceLock::new(),
            index,
            options,
            full: AtomicBool::new(false),
            spare: Spare::default(),
            hang: Default::default(),
            wanted: Default::default(),
        }
    }

    /// Whether the log is being replayed.
    pub(crate) fn is_replaying(&self) -> bool {
        self.replay.lock().is_some()
    }

    /// The indexed value. When records are gone, keys that may be among them count as neither
    /// present nor absent.
    pub(crate) fn lookup(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let _lap = stages::enter(Stage::Index);
        let value = self.index.get(key)?;
        if self.doubt.get().is_some() {
            let version = value.as_ref().map(|value| Value::decode(value).map(|value| value.version)).transpose()?;
            self.not_in_doubt(version)?;
        }
        Ok(value)
    }

    /// Refuses an absent value, or one that may have been replaced, when lost records make it
    /// uncertain.
    pub(crate) fn not_in_doubt(&self, found: Option<Lsn>) -> Result<(), StoreError> {
        let Some(doubt) = self.doubt.get() else { return Ok(()) };
        let what = match found {
            Some(version) if version >= doubt.below || self.options.serve_doubtful => return Ok(()),
            Some(_) => {
                "the known version may have been replaced or deleted since (data.serve_doubtful serves it \
                 nevertheless)"
            }
            None => "whether it existed is unknown",
        };
        Err(StoreError::Doubtful(what))
    }

    /// Awaits a ticket.
    pub(crate) async fn committed(
        &self,
        ticket: impl Future<Output = Result<Committed, LogError>>,
    ) -> Result<Committed, StoreError> {
        let lap = stages::enter(Stage::Apply);
        let committed = self.outcome(self.unless_hanging(self.unless_index_fails(ticket)).await?)?;
        lap.was(Stage::Queue, committed.begun);
        lap.was(Stage::Flush, committed.written);
        Ok(committed)
    }

    /// Awaits a ticket, however long the disk hangs.
    pub(crate) async fn resolved(
        &self,
        ticket: impl Future<Output = Result<Committed, LogError>>,
    ) -> Result<Committed, StoreError> {
        self.outcome(ticket.await)
    }

    fn outcome(&self, outcome: Result<Committed, LogError>) -> Result<Committed, StoreError> {
        outcome.map_err(|e| {
            if matches!(e, LogError::Unknown { .. } | LogError::Failed { .. }) {
                self.progress.send_modify(|p| p.failed = true);
            }
            e.into()
        })
    }

    /// Waits until all records up to `lsn` have been applied.
    pub(crate) async fn wait_applied(&self, lsn: Lsn) -> Result<(), StoreError> {
        let _lap = stages::enter(Stage::Apply);
        let mut progress = self.progress.subscribe();
        let wait = progress.wait_for(|p| p.lsn >= lsn || p.failed);
        match self.env.timeout(self.options.write_wait, wait).await {
            Some(Ok(p)) if p.lsn >= lsn => Ok(()),
            Some(_) => Err(LogError::Unknown {
                what: "commit",
                cause: "an earlier change to the same key was not confirmed".into(),
            }
            .into()),
            None => Err(StoreError::Busy("pending commits")),
        }
    }

    /// Waits until a submitted change of `key`, if any, has been applied.
    pub(crate) async fn wait_settled(&self, key: &Bytes) -> Result<(), StoreError> {
        let pending = self.pending.lock(bin_of(key)).get(key).map(|entry| entry.lsn);
        match pending {
            Some(lsn) => self.wait_applied(lsn).await,
            None => Ok(()),
        }
    }

    /// Refuses new data while the index cannot be written: more would only fill the memory.
    pub(crate) fn admit(&self) -> Result<(), StoreError> {
        if self.memtable_bytes.load(Ordering::Relaxed) > self.options.memtable_bytes_max.saturating_mul(8) {
            return Err(StoreError::Busy("index changes that are not on disk yet"));
        }
        Ok(())
    }

    /// Reserves bytes of the log's budget.
    pub(crate) async fn reserve(&self, log: &Log, bytes: u64, priority: Priority) -> Result<Reservation, StoreError> {
        self.refuse_hanging()?;
        self.index.refuse_failed()?;
        if priority == Priority::Write {
            self.admit()?;
        }
        let room = self.wanted.wait(log.reserve(bytes, priority, self.options.write_wait)).await;
        if priority == Priority::Write {
            self.note_full(&room);
        }
        room.map_err(busy)
    }

    /// Remembers a refusal of new data for lack of space.
    pub(crate) fn note_full<T>(&self, result: &Result<T, LogError>) {
        if matches!(result, Err(LogError::Full)) {
            self.full.store(true, Ordering::Relaxed);
        }
    }

    /// 128 random bits.
    pub(crate) fn random_id(&self) -> Id {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.env.random_u64().to_be_bytes());
        id[8..].copy_from_slice(&self.env.random_u64().to_be_bytes());
        id
    }

    /// The state as of the last applied record.
    pub(crate) fn checkpoint(&self, usage: &Usage) -> Checkpoint {
        let lsn = self.progress.borrow().lsn;
        Checkpoint {
            pool: self.pool,
            lsn,
            opening: usage.committed_by(lsn),
            objects: self.objects.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            usage: usage.saved(),
            clock_ms: self.clock.believed_ms(),
        }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Core")
    }
}
