//! A shard: one disk's log, its index, and its content. This module opens and closes it and runs
//! its background tasks.

pub(crate) mod apply;
pub(crate) mod buckets;
pub(crate) mod channels;
pub(crate) mod checkpoint;
pub(crate) mod checkpoints;
mod chunking;
mod complete;
pub(crate) mod core;
pub(crate) mod dirty;
pub(crate) mod events;
pub(crate) mod follow;
pub(crate) mod hang;
mod heal;
mod index_open;
pub(crate) mod list;
pub(crate) mod marks;
mod objects;
mod openings;
pub(crate) mod owners;
pub(crate) mod peek;
pub(crate) mod pending;
pub(crate) mod reader;
mod rebuild;
pub(crate) mod scan;
pub(crate) mod snapshots;
pub(crate) mod spare;
pub(crate) mod submit;
pub(crate) mod uploads;
mod wanted;
pub(crate) mod writer;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use steadfast_disk::Disk;
use steadfast_flow::Env;
use steadfast_log::{Durability, Log, LogState, Priority, Record, RecoveryReport};
use tokio::sync::{Semaphore, watch};

use crate::index::{IndexStatus, LiveIndex};
use crate::layout::Layout;
use crate::record::Head;
use crate::record::keys::Id;
use crate::shard::apply::StoreApplier;
use crate::shard::checkpoints::Checkpoints;
use crate::shard::core::Core;
use crate::shard::index_open::{discard_index, load_layout, load_registry, open_index};
use crate::shard::openings::Openings;
use crate::status::{EventsStatus, StoreStatus};
use crate::{IndexKind, StoreError, StoreOptions};

/// Time between two searches for old uploads.
const EXPIRY_EVERY: Duration = Duration::from_secs(3600);

/// The content of one disk: buckets, objects and uploads over one log. Clones share it.
#[derive(Clone)]
pub(crate) struct Shard {
    pub(crate) core: Arc<Core>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    openings: Arc<Openings>,
    log: Log,
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
            .and_then(|registry| Ok((registry, load_layout(&*index)?, snapshots::load(&*index)?)));
        let (registry, layout, snapshots) = loaded.inspect_err(|e| *unfit = Some(e.to_string()))?;
        let log_bytes_max = options.checkpoint_log_bytes_in(disk.geometry().capacity_bytes);
        let checkpoints = Arc::new(Checkpoints::new(&checkpoint, log_bytes_max));
        let openings = Arc::new(Openings::new(&checkpoint));
        let mut core = Core::new(
            env.clone(),
            LiveIndex::new(index, kind),
            pool,
            &checkpoint,
            registry,
            layout,
            read_ahead.clone(),
            options.clone(),
        );
        *core.snapshots.write() = snapshots;
        core.capacity_bytes = disk.geometry().capacity_bytes;
        let core = Arc::new(core);
        let (kept, known) = (checkpoints.clone(), openings.clone());
        let applier = Arc::new(StoreApplier { core: core.clone(), checkpoints: kept, openings: known });
        let opened = Log::open(disk.clone(), env.clone(), options.log.clone(), applier).await;
        let (log, recovery) = opened.inspect_err(|_| {
            *unfit = openings.unfit().or_else(|| core.index.failure().map(|failure| failure.why));
        })?;
        let replayed_records = match log.with_usage(|usage| core.finish_replay(usage)) {
            Ok(replayed) => replayed,
            Err(fault) => {
                let e = StoreError::from(fault);
                *unfit = Some(e.to_string());
                log.close().await.unwrap_or_else(|e| tracing::warn!(error = %e, "the log could not be closed"));
                return Err(e);
            }
        };
        if let Some(doubt) = recovery.doubt {
            let _ = core.doubt.set(doubt);
        }
        openings.begin(if recovery.read_only { 0 } else { log.opening() });
        let lost_lsn = match openings.closed_before(&core, &recovery) {
            Some(closed) => {
                core.clock.known(closed.clock_ms);
                closed.lost_lsn
            }
            None => core.progress.borrow().lsn,
        };
        core.lost_lsn.store(lost_lsn, Ordering::Release);
        core.channels.forget();
        let store = Self { core, checkpoints, openings, log, closing: watch::Sender::new(false) };
        store.start_tasks(disk.clone());
        if !recovery.read_only {
            let (core, nameless) = (&store.core, store.openings.is_nameless());
            store.log.with_usage(|usage| store.checkpoints.seal_opened(core, usage, replayed_records, nameless));
        }
        store.start_expiry();
        Ok((store, ShardReport { recovery, index_rebuilt, replayed_records }))
    }

    /// Starts the tasks that run until the shard closes.
    fn start_tasks(&self, disk: Arc<dyn Disk>) {
        let (core, checkpoints, log, closing) = (&self.core, &self.checkpoints, &self.log, &self.closing);
        let watch = hang::watch(core.clone(), disk, closing.subscribe());
        core.env.spawn("store-hang-watch", log.guarded("store-hang-watch", watch));
        let heal = heal::watch(core.clone(), checkpoints.clone(), log.clone(), closing.subscribe());
        core.env.spawn("store-index-heal", log.guarded("store-index-heal", heal));
        let verify = heal::verify(core.clone(), closing.subscribe());
        core.env.spawn("store-index-verify", log.guarded("store-index-verify", verify));
        let maintenance = checkpoints::maintain(checkpoints.clone(), core.clone(), log.clone(), closing.subscribe());
        core.env.spawn("store-maintenance", log.guarded("store-maintenance", maintenance));
        let sweep = channels::sweep(core.clone(), log.clone(), closing.subscribe());
        core.env.spawn("store-sweep", log.guarded("store-sweep", sweep));
    }

    /// Starts the task that aborts old uploads, if they expire.
    fn start_expiry(&self) {
        let core = &self.core;
        if let Some(age) = core.options.upload_expiry {
            let expiry = expire(core.clone(), self.log.clone(), age, self.closing.subscribe());
            core.env.spawn("store-expiry", self.log.guarded("store-expiry", expiry));
        }
    }

    /// As the log has it.
    #[cfg(test)]
    pub(crate) fn applier(&self) -> StoreApplier {
        let (core, checkpoints, openings) = (self.core.clone(), self.checkpoints.clone(), self.openings.clone());
        StoreApplier { core, checkpoints, openings }
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Gauges and counters.
    pub(crate) fn status(&self) -> StoreStatus {
        let core = &self.core;
        StoreStatus {
            buckets: core.registry.read().by_id.len() as u64,
            objects: core.objects.load(Ordering::Relaxed),
            object_bytes: core.bytes.load(Ordering::Relaxed),
            uploads: core.uploads.load(Ordering::Relaxed),
            channels: core.channels.len() as u64,
            channel_tails: core.channels.tails.status(),
            clock: core.clock.status(),
            publications_expired: core.swept.load(Ordering::Relaxed),
            pending_keys: core.pending.len() as u64,
            index: IndexStatus { unsaved: u64::from(self.checkpoints.failure().is_some()), ..core.index.status() },
            applied_lsn: core.progress.borrow().lsn,
            checkpoint_lsn: self.checkpoints.lsn(),
            cache: core.cache.status(),
            log: self.log.status(),
            events: EventsStatus::default(),
            snapshots: Vec::new(),
            disks: Vec::new(),
            failed_disks: 0,
            moving: None,
        }
    }

    /// The layout of the pool that this disk belongs to.
    pub(crate) fn layout(&self) -> Option<Arc<Layout>> {
        self.core.layout.read().clone()
    }

    /// Commits the layout of the pool. Waits until the outcome is known, however long the disk
    /// hangs: after an error the layout is absent, or the log accepts no more writes.
    pub(crate) async fn put_layout(&self, layout: &Layout) -> Result<(), StoreError> {
        let core = &self.core;
        let head = Head::PoolLayout { payload: &layout.encode() }.encode();
        writer::check_head(&head)?;
        let batch = vec![Record { head: head.into(), ..Record::default() }];
        // The layout may be what frees space.
        let room = core.reserve(self.log(), writer::batch_bytes(&batch), Priority::Delete).await?;
        let ticket = self.log().submit(room, batch, Durability::Sync)?;
        core.submitted.fetch_max(ticket.first_lsn(), Ordering::AcqRel);
        ticket.await?;
        Ok(())
    }

    /// Finishes accepted changes and persists the index, so that the next start replays nothing. A
    /// failure to persist the index is only logged: the index is rebuilt.
    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        self.closing.send_replace(true);
        // Records that a failed index has not applied are in the log.
        self.core.index.close();
        let well = self.log.status().log == LogState::Ok;
        self.log.close().await?;
        // The tasks hold the receivers: none of them writes to the index once this returns.
        self.closing.closed().await;
        let core = &self.core;
        let written = self.checkpoints.finish(core, &self.log).await;
        if written && well && self.openings.write_closed(core, &self.checkpoints) {
            self.checkpoints.write(core).await;
        }
        Ok(())
    }
}

/// Aborts multipart uploads that are older than `age`, from time to time.
async fn expire(core: Arc<Core>, log: Log, age: Duration, mut closing: watch::Receiver<bool>) {
    loop {
        match core.expire_uploads(&log, core.upload_expiry_ms(age)).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "multipart uploads were aborted: not completed in time"),
            Err(e) => tracing::warn!(error = %e, "cannot abort old uploads"),
        }
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => return,
            () = core.env.sleep(EXPIRY_EVERY.min(age)) => {}
        }
    }
}
