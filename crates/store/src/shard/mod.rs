//! A shard: one disk's log, its index, and its content. This module opens and closes it and runs
//! its background tasks.

pub(crate) mod applied;
pub(crate) mod apply;
pub(crate) mod body;
pub(crate) mod buckets;
pub(crate) mod channels;
pub(crate) mod checkpoint;
pub(crate) mod checkpoints;
mod chunking;
pub(crate) mod complete;
pub(crate) mod counts;
pub(crate) mod dirty;
pub(crate) mod events;
pub(crate) mod fault;
pub(crate) mod follow;
pub(crate) mod hang;
mod heal;
mod index_open;
pub(crate) mod list;
mod losses;
pub(crate) mod marks;
mod openings;
pub(crate) mod owners;
pub(crate) mod peek;
pub(crate) mod pending;
pub(crate) mod reader;
pub(crate) mod reads;
mod rebuild;
pub(crate) mod scan;
pub(crate) mod spare;
pub(crate) mod submit;
pub(crate) mod uploads;
mod wanted;
pub(crate) mod writes;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use steadfast_disk::Disk;
use steadfast_flow::Env;
use steadfast_log::{Durability, Log, LogError, LogState, Priority, Record, RecoveryReport};
use tokio::sync::{Semaphore, watch};

use crate::index::{IndexStatus, LiveIndex};
use crate::layout::Layout;
use crate::record::epoch_break::EpochBreak;
use crate::record::keys::{self, BucketId, Id};
use crate::record::{BucketMeta, Head};
use crate::shard::applied::AppliedState;
use crate::shard::apply::StoreApplier;
use crate::shard::buckets::Bucket;
use crate::shard::checkpoints::Checkpoints;
use crate::shard::hang::HangWatch;
use crate::shard::index_open::{discard_index, load_epoch_break, load_layout, load_registry, open_index};
use crate::shard::losses::AsyncLosses;
use crate::shard::openings::Openings;
use crate::shard::reads::Reads;
use crate::shard::submit::HEAD_BYTES_MAX;
use crate::shard::writes::Writes;
use crate::status::{EventsStatus, StoreStatus};
use crate::{IndexKind, StoreError, StoreOptions};

/// Time between two searches for old uploads.
const EXPIRY_EVERY: Duration = Duration::from_secs(3600);

/// The content of one disk: buckets, objects and uploads over one log. Clones share it.
#[derive(Clone)]
pub(crate) struct Shard {
    pub(crate) applied: Arc<AppliedState>,
    pub(crate) writes: Arc<Writes>,
    pub(crate) reads: Arc<Reads>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    openings: Arc<Openings>,
    log: Log,
    /// Maximum size of the disk, in bytes.
    pub(crate) capacity_bytes: u64,
    /// Set when the store closes; it ends the background tasks.
    closing: watch::Sender<bool>,
}

/// The identity of the pool on a disk; zeros when it cannot be read: opening the log reports the
/// reason.
pub(crate) async fn pool_of(disk: &Arc<dyn Disk>) -> [u8; 16] {
    steadfast_log::pool_on(disk).await
}

/// How often a disk is opened while its index cannot be used.
const OPEN_TRIES: u32 = 3;

/// Time that a start gives compaction to free an extent in a disk that is full to the last one.
const FULL_WAIT: Duration = Duration::from_secs(30);

/// Time before it is looked again.
const FULL_RETRY: Duration = Duration::from_millis(50);

/// Report of opening a shard.
pub(crate) struct ShardReport {
    pub(crate) recovery: RecoveryReport,
    pub(crate) index_rebuilt: bool,
    pub(crate) replayed_records: u64,
}

impl Shard {
    /// Opens a formatted disk: recovers the log and replays its end into the index. An unusable
    /// index is deleted and rebuilt from the log.
    pub(crate) async fn open(
        disk: Arc<dyn Disk>,
        index: IndexKind,
        env: Env,
        options: StoreOptions,
        read_ahead: Arc<Semaphore>,
    ) -> Result<(Self, ShardReport), StoreError> {
        let pool = pool_of(&disk).await;
        // An unreadable disk does not identify its index, so the index is left untouched.
        let index = if pool == Id::default() { IndexKind::memory() } else { index };
        let mut unfit = None;
        // A rebuilt index may fail as well; if it keeps failing, its directory is at fault.
        for _ in 1..OPEN_TRIES {
            match Self::open_with(&disk, pool, &index, &env, &options, &read_ahead, &mut unfit).await {
                Err(e) => {
                    let why = unfit.take().ok_or(e)?;
                    tracing::warn!(%why, "the index cannot be used and will be rebuilt from the log");
                }
                opened => return opened,
            }
            discard_index(&index, &env).await?;
        }
        Self::open_with(&disk, pool, &index, &env, &options, &read_ahead, &mut unfit).await
    }

    /// Opens with the index as it is; `unfit` receives the reason when that is not possible.
    async fn open_with(
        disk: &Arc<dyn Disk>,
        pool: Id,
        index: &IndexKind,
        env: &Env,
        options: &StoreOptions,
        read_ahead: &Arc<Semaphore>,
        unfit: &mut Option<String>,
    ) -> Result<(Self, ShardReport), StoreError> {
        let kind = index.clone();
        let (index, checkpoint) = open_index(index, env, options, pool).await?;
        let index_rebuilt = checkpoint.lsn == 0;
        let loaded = load_registry(&*index)
            .and_then(|registry| Ok((registry, load_layout(&*index)?, load_epoch_break(&*index)?)));
        let (registry, layout, epoch_break) = loaded.inspect_err(|e| *unfit = Some(e.to_string()))?;
        let log_bytes_max = options.checkpoint_log_bytes_in(disk.geometry().capacity_bytes);
        let checkpoints = Arc::new(Checkpoints::new(&checkpoint, log_bytes_max));
        let openings = Arc::new(Openings::new(&checkpoint));
        let applied = AppliedState::new(
            env.clone(),
            LiveIndex::new(index, kind),
            pool,
            &checkpoint,
            registry,
            layout,
            options.clone(),
        );
        if let Some((lsn, epoch_break)) = epoch_break {
            applied.losses.set_epoch_break(lsn, epoch_break);
        }
        let applied = Arc::new(applied);
        let (kept, known) = (checkpoints.clone(), openings.clone());
        let applier = Arc::new(StoreApplier { applied: applied.clone(), checkpoints: kept, openings: known });
        let opened = Log::open(disk.clone(), env.clone(), options.log.clone(), applier).await;
        let (log, recovery) = opened.inspect_err(|_| {
            *unfit = openings.unfit().or_else(|| applied.index.failure().map(|failure| failure.why));
        })?;
        let replayed_records = match log.with_usage(|usage| applied.finish_replay(usage)) {
            Ok(replayed) => replayed,
            Err(fault) => {
                let e = StoreError::from(fault);
                *unfit = Some(e.to_string());
                log.close().await.unwrap_or_else(|e| tracing::warn!(error = %e, "the log could not be closed"));
                return Err(e);
            }
        };
        if let Some(doubt) = recovery.doubt {
            applied.losses.set_doubt(doubt);
        }
        openings.begin(if recovery.read_only { 0 } else { log.opening() });
        let lost = match openings.closed_before(&applied, &recovery) {
            Some(closed) => {
                applied.clock.known(closed.clock_ms);
                closed.lost
            }
            None => AsyncLosses { lsn: applied.progress.borrow().lsn, opening: log.opening() },
        };
        applied.losses.set_lost(lost);
        applied.channels.forget();
        let hang = Arc::new(HangWatch::new(env.clone(), options.write_wait));
        let reads = Arc::new(Reads::new(applied.clone(), log.clone(), hang.clone(), read_ahead.clone()));
        let writes = Arc::new(Writes::new(applied.clone(), log.clone(), hang));
        let (capacity_bytes, closing) = (disk.geometry().capacity_bytes, watch::Sender::new(false));
        let store = Self { applied, writes, reads, checkpoints, openings, log, capacity_bytes, closing };
        store.start_tasks(disk.clone());
        if !recovery.read_only {
            let (applied, nameless) = (&store.applied, store.openings.is_nameless());
            store.log.with_usage(|usage| store.checkpoints.seal_opened(applied, usage, replayed_records, nameless));
        }
        store.start_expiry();
        Ok((store, ShardReport { recovery, index_rebuilt, replayed_records }))
    }

    /// Starts the tasks that run until the shard closes.
    fn start_tasks(&self, disk: Arc<dyn Disk>) {
        let (applied, checkpoints, log, closing) = (&self.applied, &self.checkpoints, &self.log, &self.closing);
        let watch = self.writes.hang.clone().run(disk, log.clone(), closing.subscribe());
        applied.env.spawn("store-hang-watch", log.guarded("store-hang-watch", watch));
        let heal = heal::watch(applied.clone(), checkpoints.clone(), log.clone(), closing.subscribe());
        applied.env.spawn("store-index-heal", log.guarded("store-index-heal", heal));
        let verify = heal::verify(applied.clone(), closing.subscribe());
        applied.env.spawn("store-index-verify", log.guarded("store-index-verify", verify));
        let maintenance = checkpoints::maintain(checkpoints.clone(), applied.clone(), log.clone(), closing.subscribe());
        applied.env.spawn("store-maintenance", log.guarded("store-maintenance", maintenance));
        let sweep = channels::Sweep { applied: applied.clone(), log: log.clone() }.run(closing.subscribe());
        applied.env.spawn("store-sweep", log.guarded("store-sweep", sweep));
    }

    /// Starts the task that aborts old uploads, if they expire.
    fn start_expiry(&self) {
        let applied = &self.applied;
        if let Some(age) = applied.options.upload_expiry {
            let expiry = expire(self.writes.clone(), age, self.closing.subscribe());
            applied.env.spawn("store-expiry", self.log.guarded("store-expiry", expiry));
        }
    }

    /// As the log has it.
    #[cfg(test)]
    pub(crate) fn applier(&self) -> StoreApplier {
        let (applied, checkpoints, openings) = (self.applied.clone(), self.checkpoints.clone(), self.openings.clone());
        StoreApplier { applied, checkpoints, openings }
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Gauges and counters.
    pub(crate) fn status(&self) -> StoreStatus {
        let applied = &self.applied;
        StoreStatus {
            buckets: applied.registry.read().by_name.len() as u64,
            users: applied.registry.read().users.len() as u64,
            objects: applied.counts.objects(),
            object_bytes: applied.counts.bytes(),
            uploads: applied.counts.uploads(),
            channels: applied.channels.len() as u64,
            channel_tails: applied.channels.tails.status(),
            clock: applied.clock.status(),
            publications_expired: applied.channels.swept.load(Ordering::Relaxed),
            pending_keys: applied.pending.len() as u64,
            index: IndexStatus { unsaved: u64::from(self.checkpoints.failure().is_some()), ..applied.index.status() },
            applied_lsn: applied.progress.borrow().lsn,
            checkpoint_lsn: self.checkpoints.lsn(),
            cache: self.reads.cache.status(),
            log: self.log.status(),
            events: EventsStatus::default(),
            disks: Vec::new(),
            failed_disks: 0,
            moving: None,
        }
    }

    /// The layout of the pool that this disk belongs to.
    pub(crate) fn layout(&self) -> Option<Arc<Layout>> {
        self.applied.layout.read().clone()
    }

    /// Commits the layout of the pool. Waits until the outcome is known, however long the disk
    /// hangs: after an error the layout is absent, or the log accepts no more writes.
    pub(crate) async fn put_layout(&self, layout: &Layout) -> Result<(), StoreError> {
        // The layout may be what frees space.
        self.put_pool_record(&Head::PoolLayout { payload: &layout.encode() }, Priority::Delete).await
    }

    /// Commits a break of epochs: every channel of this disk gets another epoch when it is loaded
    /// next. Errors are those of [`Shard::put_layout`].
    pub(crate) async fn put_epoch_break(&self, epoch_break: EpochBreak) -> Result<(), StoreError> {
        let (payload, begun) = (epoch_break.encode(), self.applied.env.now());
        loop {
            // A start must not fail because the disk is full. Where not even compaction has an
            // extent to write to, it soon frees one that is empty.
            let put = self.put_pool_record(&Head::EpochBreak { payload: &payload }, Priority::Compaction).await;
            let waited = self.applied.env.now().saturating_sub(begun);
            match put {
                Err(StoreError::Log(LogError::Full)) if waited < FULL_WAIT => self.applied.env.sleep(FULL_RETRY).await,
                put => return put,
            }
        }
    }

    async fn put_pool_record(&self, head: &Head<'_>, priority: Priority) -> Result<(), StoreError> {
        let head = head.encode();
        submit::check_head(&head)?;
        let batch = vec![Record { head: head.into(), ..Record::default() }];
        let room = self.writes.reserve(submit::batch_bytes(&batch), priority).await?;
        self.writes.append(room, batch, Durability::Sync)?.await?;
        Ok(())
    }

    /// A bucket of this name.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Bucket>, StoreError> {
        let registry = self.applied.registry.read();
        match registry.doubtful.get(name) {
            Some(why) => Err(StoreError::Unavailable(why.clone())),
            None => match registry.by_name.get(name) {
                Some(bucket) => Ok(bucket.clone()),
                None => self.applied.losses.not_in_doubt(None).and(Err(StoreError::NoSuchBucket)),
            },
        }
    }

    /// Submits a batch of bucket or pool records and waits for its commit.
    pub(crate) async fn commit_buckets(&self, batch: Vec<Record>, priority: Priority) -> Result<(), StoreError> {
        let room = self.writes.reserve(submit::batch_bytes(&batch), priority).await?;
        self.writes.commit_buckets(room, batch).await
    }

    /// Waits until the registry has all submitted records, those of cancelled calls included.
    pub(crate) async fn settle_buckets(&self) -> Result<(), StoreError> {
        self.applied.wait_applied(self.writes.bucket_lsn()).await
    }

    /// Creates a bucket or changes its settings.
    pub(crate) async fn put_bucket(
        &self,
        id: BucketId,
        meta: &BucketMeta,
        priority: Priority,
    ) -> Result<(), StoreError> {
        let head = Head::BucketPut { id, payload: &meta.encode() }.encode();
        if head.len() > HEAD_BYTES_MAX {
            let what = match keys::user_of(&meta.name) {
                Some(user) => format!("the user {user:?} takes"),
                None => format!("the settings of the bucket {:?} take", meta.name),
            };
            return Err(StoreError::TooLarge(format!("{what} {} bytes; the limit is {HEAD_BYTES_MAX}", head.len())));
        }
        self.commit_buckets(vec![Record { head: head.into(), ..Record::default() }], priority).await
    }

    /// Finishes accepted changes and persists the index, so that the next start replays nothing. A
    /// failure to persist the index is only logged: the index is rebuilt.
    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        self.closing.send_replace(true);
        // Records that a failed index has not applied are in the log.
        self.applied.index.close();
        let well = self.log.status().log == LogState::Ok;
        self.log.close().await?;
        // The tasks hold the receivers: none of them writes to the index once this returns.
        self.closing.closed().await;
        let applied = &self.applied;
        let written = self.checkpoints.finish(applied, &self.log).await;
        if written && well && self.openings.write_closed(applied, &self.checkpoints) {
            self.checkpoints.write(applied).await;
        }
        Ok(())
    }
}

/// Aborts multipart uploads that are older than `age`, from time to time.
async fn expire(writes: Arc<Writes>, age: Duration, mut closing: watch::Receiver<bool>) {
    loop {
        match uploads::expire_uploads(&writes, uploads::upload_expiry_ms(&writes.applied, age)).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "multipart uploads were aborted: not completed in time"),
            Err(e) => tracing::warn!(error = %e, "cannot abort old uploads"),
        }
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => return,
            () = writes.applied.env.sleep(EXPIRY_EVERY.min(age)) => {}
        }
    }
}
