//! What a shard and its applier share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use steadfast_flow::Env;
use steadfast_flow::stages::{self, Stage};
use steadfast_log::{Batch, Committed, Doubt, Durability, ExtentUsage, LogError, Lsn, Priority};
use tokio::sync::{Notify, watch};

use super::hang::Hang;
use super::wanted::Wanted;
use crate::cache::ReadCache;
use crate::clock::BelievedClock;
use crate::index::{IndexError, LiveIndex};
use crate::layout::Layout;
use crate::record::keys::{BucketId, Id};
use crate::record::object::First;
use crate::record::snapshot::SnapshotMeta;
use crate::record::wire::Malformed;
use crate::record::{BucketMeta, Value};
use crate::shard::accounts::Accounts;
use crate::shard::buckets::Bucket;
use crate::shard::channels::Channels;
use crate::shard::checkpoint::Checkpoint;
use crate::shard::events::Draft;
use crate::shard::marks::Marks;
use crate::shard::owners::Owners;
use crate::shard::pending::{Bin, Entry, Fate, Pending, bin_of};
use crate::shard::spare::Spare;
use crate::{StoreError, StoreOptions};
use steadfast_log::{Log, Reservation, Ticket};

impl From<Malformed> for StoreError {
    fn from(e: Malformed) -> Self {
        Self::Index(e.to_string())
    }
}

/// How often a refusal waits for the pending record that it rests on and is looked at again.
const WAITS_MAX: u32 = 3;

/// The log's "busy" is the store's.
pub(crate) fn busy(e: LogError) -> StoreError {
    match e {
        LogError::Busy { .. } => StoreError::Busy("data on its way to the disk"),
        e => e.into(),
    }
}

/// The buckets, by both of their names.
#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) by_name: BTreeMap<String, Arc<Bucket>>,
    pub(crate) by_id: BTreeMap<BucketId, Arc<Bucket>>,
    /// Names of those that may not be, and why that is not known.
    pub(crate) doubtful: BTreeMap<String, String>,
}

impl Registry {
    /// Takes in a bucket, or new settings of one.
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
            // A deletion that a crash interrupted leaves two of a name until the shards have been made to agree.
            if let Some(other) = self.by_id.values().find(|b| b.name == bucket.name) {
                self.by_name.insert(other.name.clone(), other.clone());
            }
        }
    }
}

/// How far records have been applied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) lsn: Lsn,
    /// A commit failed: what is pending may never be applied.
    pub(crate) failed: bool,
}

/// A replay of the log that is going on.
pub(crate) struct Replay {
    /// The checkpoint that it began from.
    pub(crate) base: Lsn,
    /// Deletes that were met.
    pub(crate) marks: Marks,
    pub(crate) records: u64,
    /// The newest time in a record, where the replay is from nothing.
    pub(crate) newest_ms: u64,
}

impl Replay {
    /// Whether a delete of the key was met that is newer. May block.
    pub(crate) fn deleted(&self, key: &[u8], version: Lsn) -> Result<bool, IndexError> {
        Ok(self.marks.get(key)?.is_some_and(|mark| mark > version))
    }
}

/// What is durable of the index.
#[derive(Default)]
pub(crate) struct Persisted {
    pub(crate) lsn: Lsn,
    pub(crate) usage: Vec<ExtentUsage>,
}

/// See the module.
pub(crate) struct Core {
    pub(crate) env: Env,
    /// By which things are over.
    pub(crate) clock: BelievedClock,
    pub(crate) options: StoreOptions,
    /// New data was refused for want of space, and none has been taken since.
    pub(crate) full: AtomicBool,
    pub(crate) spare: Spare,
    /// Whether the disk hangs.
    pub(crate) hang: tokio::sync::watch::Sender<Hang>,
    pub(crate) wanted: Wanted,
    pub(crate) index: LiveIndex,
    /// Held while the index is written to its disk, or replaced.
    pub(crate) persisting: tokio::sync::Mutex<()>,
    /// Why the index could not be written the last time that was tried.
    pub(crate) unsaved: Mutex<Option<String>>,
    pub(crate) registry: RwLock<Registry>,
    /// Of which pool of disks this one is a part; `None` for a pool of one disk that never had another.
    pub(crate) layout: RwLock<Option<Arc<Layout>>>,
    /// The snapshots of which this disk has a part.
    pub(crate) snapshots: RwLock<BTreeMap<Id, SnapshotMeta>>,
    /// The checkpoint that the index was opened with, and which opening of the log committed its last record.
    pub(crate) opened_with: (Lsn, u64),
    /// Why the index cannot be gone on with: it is to be rebuilt.
    pub(crate) unfit: Mutex<Option<String>>,
    /// Something in the index or in a record did not make sense.
    pub(crate) distrusted: AtomicBool,
    pub(crate) pending: Pending,
    pub(crate) accounts: Mutex<Accounts>,
    pub(crate) owners: Owners,
    pub(crate) cache: ReadCache,
    pub(crate) progress: watch::Sender<Progress>,
    /// The highest LSN that the shard has submitted.
    pub(crate) submitted: AtomicU64,
    pub(crate) replay: Mutex<Option<Replay>>,
    pub(crate) pool: [u8; 16],
    pub(crate) objects: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) uploads: AtomicU64,
    /// Bytes of records applied since the last checkpoint was sealed.
    pub(crate) log_bytes: AtomicU64,
    /// Bytes of the index that are only in memory.
    pub(crate) memtable_bytes: AtomicU64,
    /// A checkpoint is sealed and being persisted.
    pub(crate) sealing: AtomicBool,
    /// Of the frame that was applied last, some records have been taken in and some have not: the index ails. With `applying` held.
    pub(crate) split: AtomicBool,
    pub(crate) sealed: Mutex<Option<Persisted>>,
    pub(crate) checkpoint_due: Notify,
    /// Space waits for a checkpoint.
    pub(crate) checkpoint_wanted: AtomicBool,
    /// Held while records are applied, and while the state so far is set apart.
    pub(crate) applying: Mutex<()>,
    /// A checkpoint is due when this many bytes of records have been committed.
    pub(crate) checkpoint_log_bytes: u64,
    pub(crate) persisted: Mutex<Persisted>,
    /// Read by those who derive a record from another's manifest until it is submitted; written by the one who moves chunks.
    pub(crate) manifests: tokio::sync::RwLock<()>,
    pub(crate) last_manifest: crate::shard::apply::live::LastManifest,
    /// Bytes that streams may have read ahead, in KiB.
    pub(crate) read_ahead: Arc<tokio::sync::Semaphore>,
    /// Channels that are in use.
    pub(crate) channels: Channels,
    /// Publications that were removed because their time was over.
    pub(crate) swept: AtomicU64,
    /// Of what was published asynchronously up to this record, and delivered, some may be lost: the last one that was there when the shard was
    /// opened, if it had not ended as it should.
    pub(crate) lost_lsn: AtomicU64,
    /// The opening of the log that wrote last before this one; 0 when that is not known.
    pub(crate) opening_before: AtomicU64,
    /// And this one; 0 for one that takes no writes.
    pub(crate) opening: AtomicU64,
    /// LSN of the last record of a bucket that was submitted.
    pub(crate) bucket_lsn: AtomicU64,
    /// How large the disk may become, in bytes.
    pub(crate) capacity_bytes: u64,
    /// What has changed of slots that are being moved away.
    pub(crate) dirty: crate::shard::dirty::Dirty,
    /// Set when records that had been acknowledged are gone from the log, and the index does not have them.
    pub(crate) doubt: OnceLock<Doubt>,
}

/// What must hold of a key for a record to be submitted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Expect<'a> {
    Nothing,
    Absent,
    Present,
    Etag(&'a str),
    /// The record there is this one.
    Version(Lsn),
    /// There, and nothing is pending.
    Settled,
}

/// A key that a batch depends on or changes.
pub(crate) struct Touch<'a> {
    pub(crate) key: Bytes,
    pub(crate) expect: Expect<'a>,
    /// What it becomes, and by which record of the batch.
    pub(crate) fate: Option<(Fate, u64)>,
}

/// Why a batch was not submitted.
pub(crate) enum Refusal {
    /// An expectation does not hold: the index of the first such [`Touch`]. Where that rests on a pending record, its LSN.
    Unmet(usize, Option<Lsn>),
    Error(StoreError),
}

impl Core {
    /// A state that a replay goes on from, or begins.
    #[allow(clippy::too_many_arguments, reason = "each is a part of the state")]
    pub(crate) fn new(
        env: Env,
        index: LiveIndex,
        pool: [u8; 16],
        checkpoint: Checkpoint,
        registry: Registry,
        layout: Option<Arc<Layout>>,
        read_ahead: Arc<tokio::sync::Semaphore>,
        checkpoint_log_bytes: u64,
        options: StoreOptions,
    ) -> Self {
        let marks = Marks::new(&index.held().kind, options.memtable_bytes_max);
        Self {
            clock: BelievedClock::new(env.clone(), checkpoint.clock_ms, options.clock_confirm),
            env,
            registry: RwLock::new(registry),
            layout: RwLock::new(layout),
            snapshots: Default::default(),
            opened_with: (checkpoint.lsn, checkpoint.opening),
            unfit: Mutex::new(None),
            distrusted: AtomicBool::new(false),
            pending: Default::default(),
            accounts: Mutex::new(Accounts::load(&checkpoint.usage)),
            owners: Default::default(),
            cache: ReadCache::new(options.cache_bytes),
            progress: watch::Sender::new(Progress { lsn: checkpoint.lsn, failed: false }),
            submitted: AtomicU64::new(0),
            replay: Mutex::new(Some(Replay { base: checkpoint.lsn, marks, records: 0, newest_ms: 0 })),
            pool,
            objects: AtomicU64::new(checkpoint.objects),
            bytes: AtomicU64::new(checkpoint.bytes),
            uploads: AtomicU64::new(0),
            log_bytes: AtomicU64::new(0),
            memtable_bytes: AtomicU64::new(0),
            sealing: AtomicBool::new(false),
            split: AtomicBool::new(false),
            sealed: Mutex::new(None),
            checkpoint_due: Notify::new(),
            checkpoint_wanted: AtomicBool::new(false),
            applying: Mutex::new(()),
            checkpoint_log_bytes,
            persisted: Mutex::new(Persisted { lsn: checkpoint.lsn, usage: checkpoint.usage }),
            manifests: tokio::sync::RwLock::new(()),
            last_manifest: Default::default(),
            read_ahead,
            channels: Channels::new(options.channel_tail_bytes),
            swept: AtomicU64::new(0),
            lost_lsn: AtomicU64::new(u64::MAX),
            opening_before: AtomicU64::new(0),
            opening: AtomicU64::new(0),
            bucket_lsn: AtomicU64::new(0),
            capacity_bytes: 0,
            dirty: Default::default(),
            doubt: OnceLock::new(),
            index,
            persisting: Default::default(),
            unsaved: Mutex::new(None),
            options,
            full: AtomicBool::new(false),
            spare: Spare::default(),
            hang: Default::default(),
            wanted: Default::default(),
        }
    }

    /// What the index holds. Where records are gone, what may have been among them is neither found nor said not to be there.
    pub(crate) fn lookup(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let _lap = stages::enter(Stage::Index);
        let value = self.index.get(key)?;
        if self.doubt.get().is_some() {
            let version = value.as_ref().map(|value| Value::decode(value).map(|value| value.version)).transpose()?;
            self.not_in_doubt(version)?;
        }
        Ok(value)
    }

    /// Refuses what was not found, or what was found and may have been replaced, where nobody can know: records are gone.
    pub(crate) fn not_in_doubt(&self, found: Option<Lsn>) -> Result<(), StoreError> {
        let Some(doubt) = self.doubt.get() else { return Ok(()) };
        let what = match found {
            Some(version) if version >= doubt.below || self.options.serve_doubtful => return Ok(()),
            Some(_) => {
                "what is known of it may have been replaced or deleted since (data.serve_doubtful gives it all the same)"
            }
            None => "whether it was there cannot be known",
        };
        Err(StoreError::Doubtful(what))
    }

    fn holds(&self, bin: &Bin, touch: &Touch<'_>) -> Result<Result<(), Option<Lsn>>, StoreError> {
        if let Expect::Nothing = touch.expect {
            return Ok(Ok(()));
        }
        // One whose LSN has passed was refused by the log after all (it was full): the index is right.
        let entry = bin.get(&touch.key).filter(|entry| entry.lsn > self.progress.borrow().lsn);
        if let Some(entry) = entry {
            let holds = match (touch.expect, &entry.fate) {
                (Expect::Nothing, _) | (Expect::Absent, Fate::Gone) | (Expect::Present, Fate::Present(_)) => true,
                (Expect::Etag(want), Fate::Present(etag)) => want == etag,
                (Expect::Version(want), Fate::Present(_)) => want == entry.lsn,
                _ => false,
            };
            return Ok(if holds { Ok(()) } else { Err(Some(entry.lsn)) });
        }
        let value = self.lookup(&touch.key)?;
        let holds = match (touch.expect, &value) {
            (Expect::Nothing, _) | (Expect::Absent, None) | (Expect::Present | Expect::Settled, Some(_)) => true,
            (Expect::Etag(want), Some(value)) => First::decode(Value::decode(value)?.payload)?.etag == want,
            (Expect::Version(want), Some(value)) => Value::decode(value)?.version == want,
            _ => false,
        };
        Ok(if holds { Ok(()) } else { Err(None) })
    }

    /// Decides and submits in one step: no other writer of these keys comes between.
    fn try_submit(
        &self,
        log: &Log,
        touches: &[Touch<'_>],
        drafts: &[Draft],
        reservation: &mut Option<Reservation>,
        batch: &mut Batch,
        durability: Durability,
    ) -> Result<Ticket, Refusal> {
        // Locked in ascending order, each once: two batches never wait for each other.
        let mut numbers: Vec<usize> = touches.iter().map(|t| bin_of(&t.key)).collect();
        let of_touch = numbers.clone();
        numbers.sort_unstable();
        numbers.dedup();
        let mut bins: Vec<_> = numbers.iter().map(|&n| self.pending.lock(n)).collect();
        let at = |n: usize| numbers.binary_search(&n).unwrap_or_default();
        for (i, touch) in touches.iter().enumerate() {
            match self.holds(&bins[at(of_touch[i])], touch) {
                Ok(Ok(())) => {}
                Ok(Err(rests_on)) => return Err(Refusal::Unmet(i, rests_on)),
                Err(e) => return Err(Refusal::Error(e)),
            }
        }
        let mut events = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let there = match draft.depends_on() {
                Some(i) => {
                    let touch = Touch { key: touches[i].key.clone(), expect: Expect::Present, fate: None };
                    self.holds(&bins[at(of_touch[i])], &touch).map_err(Refusal::Error)?.is_ok()
                }
                None => true,
            };
            if there {
                events.push(draft);
            }
        }
        let placed = self.place(&events, durability);
        batch.extend(placed.records());
        let count = batch.len() as u64;
        let Some(room) = reservation.take() else {
            return Err(Refusal::Error(StoreError::Index("no reservation".into())));
        };
        let submitted = log.submit(room, std::mem::take(batch), placed.durability);
        let ticket = submitted.map_err(|e| Refusal::Error(e.into()))?;
        placed.submitted(durability == Durability::Async);
        let first = ticket.first_lsn();
        self.submitted.fetch_max(first + count.saturating_sub(1), Ordering::AcqRel);
        for (i, touch) in touches.iter().enumerate() {
            if let Some((fate, record)) = &touch.fate {
                let entry = Entry { lsn: first + record, fate: fate.clone() };
                bins[at(of_touch[i])].insert(touch.key.clone(), entry);
            }
        }
        Ok(ticket)
    }

    /// Decides and submits; a refusal that rests on a pending record is given when that is there to stay.
    pub(crate) async fn submit(
        &self,
        log: &Log,
        touches: &[Touch<'_>],
        reservation: &mut Option<Reservation>,
        batch: Batch,
        durability: Durability,
    ) -> Result<Ticket, Refusal> {
        self.submit_told(log, touches, &[], reservation, batch, durability).await
    }

    /// [`Core::submit`] with events of the changes, for which the reservation has room.
    pub(crate) async fn submit_told(
        &self,
        log: &Log,
        touches: &[Touch<'_>],
        drafts: &[Draft],
        reservation: &mut Option<Reservation>,
        mut batch: Batch,
        durability: Durability,
    ) -> Result<Ticket, Refusal> {
        let mut waits = 0;
        loop {
            match self.try_submit(log, touches, drafts, reservation, &mut batch, durability) {
                // Decided by what was pending and now stands: under a steady stream of changes that has to do.
                Err(Refusal::Unmet(i, Some(_))) if waits == WAITS_MAX => return Err(Refusal::Unmet(i, None)),
                Err(Refusal::Unmet(_, Some(lsn))) => self.wait_applied(lsn).await.map_err(Refusal::Error)?,
                other => return other,
            }
            waits += 1;
        }
    }

    /// Awaits a ticket.
    pub(crate) async fn committed(&self, ticket: Ticket) -> Result<Committed, StoreError> {
        let lap = stages::enter(Stage::Apply);
        let committed = self.outcome(self.unless_hanging(self.unless_ailing(ticket)).await?)?;
        lap.was(Stage::Queue, committed.begun);
        lap.was(Stage::Flush, committed.written);
        Ok(committed)
    }

    /// Awaits a ticket however long the disk hangs.
    pub(crate) async fn resolved(&self, ticket: Ticket) -> Result<Committed, StoreError> {
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

    /// Refuses new data while the index cannot be written and more would only fill the memory.
    pub(crate) fn admit(&self) -> Result<(), StoreError> {
        if self.memtable_bytes.load(Ordering::Relaxed) > self.options.memtable_bytes_max.saturating_mul(8) {
            return Err(StoreError::Busy("index changes that are not on disk yet"));
        }
        Ok(())
    }

    /// Room in the log's budget.
    pub(crate) async fn reserve(&self, log: &Log, bytes: u64, priority: Priority) -> Result<Reservation, StoreError> {
        self.refuse_hanging()?;
        self.index.refuse_ailing()?;
        if priority == Priority::Write {
            self.admit()?;
        }
        let room = self.wanted.wait(log.reserve(bytes, priority, self.options.write_wait)).await;
        if priority == Priority::Write {
            self.note_full(&room);
        }
        room.map_err(busy)
    }

    /// Remembers that new data was refused for want of space.
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

    /// The state as of the last applied record, to be saved.
    pub(crate) fn snapshot(&self) -> Checkpoint {
        let (lsn, accounts) = (self.progress.borrow().lsn, self.accounts.lock());
        Checkpoint {
            pool: self.pool,
            lsn,
            opening: accounts.committed_by(lsn),
            objects: self.objects.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            usage: accounts.usage(),
            clock_ms: self.clock.believed_ms(),
        }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Core")
    }
}
