//! The state that the records of the log make.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use steadfast_flow::Env;
use steadfast_flow::stages::{self, Stage};
use steadfast_log::{Location, LogError, Lsn, Usage};
use tokio::sync::watch;

use crate::clock::BelievedClock;
use crate::index::{IndexError, LiveIndex};
use crate::layout::Layout;
use crate::record::keys::{self, BucketId, Id};
use crate::record::object::ObjectMeta;
use crate::record::snapshot::SnapshotMeta;
use crate::record::upload::{UploadMeta, UploadOwner};
use crate::record::wire::Malformed;
use crate::record::{BucketMeta, Value};
use crate::shard::apply::class::Counts;
use crate::shard::buckets::Bucket;
use crate::shard::channels::Channels;
use crate::shard::checkpoint::Checkpoint;
use crate::shard::losses::Losses;
use crate::shard::marks::Marks;
use crate::shard::owners::Owners;
use crate::shard::pending::{Pending, bin_of};
use crate::{StoreError, StoreOptions};

impl From<Malformed> for StoreError {
    fn from(e: Malformed) -> Self {
        Self::Index(e.to_string())
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

/// A record found in the index, decoded.
pub(crate) struct Found {
    pub(crate) version: u64,
    pub(crate) location: Location,
    pub(crate) meta: ObjectMeta,
}

/// What the applied records make: the index, and all that is derived from it. A rebuild from the
/// log makes another one.
pub(crate) struct AppliedState {
    pub(crate) env: Env,
    /// The clock for expiry.
    pub(crate) clock: BelievedClock,
    pub(crate) options: StoreOptions,
    pub(crate) index: LiveIndex,
    pub(crate) registry: RwLock<Registry>,
    /// The layout of the pool; `None` for a pool of one disk that never had another.
    pub(crate) layout: RwLock<Option<Arc<Layout>>>,
    /// The snapshots that have a part on this disk.
    pub(crate) snapshots: RwLock<BTreeMap<Id, SnapshotMeta>>,
    pub(crate) losses: Losses,
    pub(crate) pending: Pending,
    pub(crate) owners: Owners,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) replay: Mutex<Option<Replay>>,
    pub(crate) pool: [u8; 16],
    pub(crate) counts: Counts,
    /// Bytes of the index in memory only.
    pub(crate) memtable_bytes: AtomicU64,
    /// Shared lock from reading a manifest until a record derived from it is submitted; exclusive
    /// lock to move chunks.
    pub(crate) manifests: tokio::sync::RwLock<()>,
    pub(crate) last_manifest: crate::shard::apply::live::LastManifest,
    /// Channels that are in use.
    pub(crate) channels: Channels,
    /// Changes to slots that are moving away.
    pub(crate) dirty: crate::shard::dirty::Dirty,
}

impl AppliedState {
    /// Creates the state from which a replay continues or begins.
    pub(crate) fn new(
        env: Env,
        index: LiveIndex,
        pool: [u8; 16],
        checkpoint: &Checkpoint,
        registry: Registry,
        layout: Option<Arc<Layout>>,
        options: StoreOptions,
    ) -> Self {
        let marks = Marks::new(&index.held().kind, options.memtable_bytes_max);
        Self {
            clock: BelievedClock::new(env.clone(), checkpoint.clock_ms, options.clock_confirm),
            env,
            registry: RwLock::new(registry),
            layout: RwLock::new(layout),
            snapshots: Default::default(),
            losses: Losses::new(options.serve_doubtful),
            pending: Default::default(),
            owners: Default::default(),
            progress: watch::Sender::new(Progress { lsn: checkpoint.lsn, failed: false }),
            replay: Mutex::new(Some(Replay { base: checkpoint.lsn, marks, records: 0, newest_ms: 0 })),
            pool,
            counts: Counts::load(checkpoint),
            memtable_bytes: AtomicU64::new(0),
            manifests: tokio::sync::RwLock::new(()),
            last_manifest: Default::default(),
            channels: Channels::new(options.channel_tail_bytes),
            dirty: Default::default(),
            index,
            options,
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
        if self.losses.is_doubtful() {
            let version = value.as_ref().map(|value| Value::decode(value).map(|value| value.version)).transpose()?;
            self.losses.not_in_doubt(version)?;
        }
        Ok(value)
    }

    /// The object or part under `index_key`.
    pub(crate) fn find_object(&self, index_key: &[u8]) -> Result<Option<Found>, StoreError> {
        let Some(value) = self.lookup(index_key)? else { return Ok(None) };
        let value = Value::decode(&value)?;
        let meta = ObjectMeta::decode(value.payload)?;
        Ok(Some(Found { version: value.version, location: value.location, meta }))
    }

    /// The record of an upload, if `owner` began it.
    pub(crate) fn find_upload(
        &self,
        bucket: BucketId,
        key: &[u8],
        upload: &Id,
        owner: UploadOwner,
    ) -> Result<bytes::Bytes, StoreError> {
        let value = self.lookup(&keys::upload(bucket, key, upload))?.ok_or(StoreError::NoSuchUpload)?;
        let begun_by = UploadMeta::decode(Value::decode(&value)?.payload)?.owner;
        if begun_by == owner { Ok(value) } else { Err(StoreError::NoSuchUpload) }
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
            objects: self.counts.objects(),
            bytes: self.counts.bytes(),
            usage: usage.saved(),
            clock_ms: self.clock.believed_ms(),
        }
    }
}
