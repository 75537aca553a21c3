//! The state that the records of the log make.

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
use crate::record::Value;
use crate::record::keys::{self, BucketId, Id};
use crate::record::object::{Account, ObjectMeta};
use crate::record::upload::{UploadMeta, UploadOwner};
use crate::record::wire::Malformed;
use crate::shard::buckets::Registry;
use crate::shard::channels::Channels;
use crate::shard::checkpoint::Checkpoint;
use crate::shard::counts::{Class, Counts};
use crate::shard::fault::{Fault, valued};
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
            clock: BelievedClock::new(env.clone(), checkpoint.clock_ms, options.clock_confirm)
                .standing(options.log.for_reading),
            env,
            registry: RwLock::new(registry),
            layout: RwLock::new(layout),
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

    /// Removes `key` unless its value is newer than `version`.
    pub(crate) fn remove(
        &self,
        usage: &mut Usage,
        key: &Bytes,
        class: Class,
        version: Option<Lsn>,
        lsn: Lsn,
    ) -> Result<bool, Fault> {
        let Some(old) = self.index.get(key)? else { return Ok(false) };
        let was = valued(&old)?;
        if version.is_some_and(|version| was.version > version) {
            return Ok(false);
        }
        let account = Account::of(class, was.payload)?;
        account.retire(usage, &was.location);
        self.counts.change(class, -1, account.size);
        self.index.remove(key.clone(), lsn);
        Ok(true)
    }

    /// Removes a publication that has expired, or is no longer in its channel's history.
    pub(crate) fn remove_expired(&self, usage: &mut Usage, key: &Bytes, lsn: Lsn) -> Result<bool, Fault> {
        self.remove(usage, key, Class::Publication, None, lsn)
    }

    /// Records that the index or a record is inconsistent. The shard continues, and the next start
    /// rebuilds the index.
    pub(crate) fn distrust(&self, what: &Malformed) {
        tracing::error!(error = %what, "a record could not be applied; the index will be rebuilt at the next start");
        self.losses.distrust();
        self.index.condemn();
    }

    /// Ends the replay: drops the marks, and removes parts whose upload has ended and snapshots of
    /// earlier versions.
    pub(crate) fn finish_replay(&self, usage: &mut Usage) -> Result<u64, Fault> {
        let (records, newest_ms) = match self.replay.lock().as_ref() {
            Some(replay) => (replay.records, replay.newest_ms),
            None => return Ok(0),
        };
        let lsn = self.progress.borrow().lsn.max(1);
        let mut uploads = std::collections::BTreeSet::<Id>::new();
        for pair in self.index.range(&[keys::UPLOADS], Some(&[keys::PARTS])) {
            let (key, _) = pair?;
            uploads.extend(keys::parse_upload(&key).map(|(_, id)| id));
        }
        self.counts.set_uploads(uploads.len() as u64);
        for pair in self.index.range(&[keys::PARTS], Some(&[keys::PARTS + 1])) {
            let (key, _) = pair?;
            let upload: Option<Id> = key.get(1..17).and_then(|id| id.try_into().ok());
            if upload.is_none_or(|id| !uploads.contains(&id)) {
                self.remove(usage, &key, Class::Part, None, lsn)?;
                self.memtable_bytes.store(self.index.memtable_bytes(), Ordering::Relaxed);
                self.spill_replay();
            }
        }
        for pair in self.index.range(keys::SNAPSHOTS, keys::past(keys::SNAPSHOTS).as_deref()) {
            let (key, _) = pair?;
            self.remove(usage, &key, Class::Retired, None, lsn)?;
        }
        self.clock.known(newest_ms);
        // Only now: until here the index belongs to a replay, and no run may continue from it.
        self.replay.lock().take();
        Ok(records)
    }

    /// In a replay from nothing, no state counts before the end. But changes need not stay in
    /// memory: a crash would start from nothing.
    pub(crate) fn spill_replay(&self) {
        let from_nothing = self.replay.lock().as_ref().is_some_and(|replay| replay.base == 0);
        if from_nothing && self.memtable_bytes.load(Ordering::Relaxed) >= self.options.memtable_bytes_max {
            self.index.seal();
            if let Err(e) = self.index.persist() {
                tracing::warn!(error = %e, "cannot write the index");
            }
        }
    }
}
