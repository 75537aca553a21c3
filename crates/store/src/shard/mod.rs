//! A shard: one disk's log, its index, and what is in them. Here: opening, closing, and what runs beside the requests.

pub(crate) mod accounts;
pub(crate) mod apply;
pub(crate) mod buckets;
pub(crate) mod channels;
pub(crate) mod checkpoint;
mod chunking;
mod complete;
pub(crate) mod core;
pub(crate) mod dirty;
pub(crate) mod events;
pub(crate) mod follow;
pub(crate) mod hang;
mod heal;
pub(crate) mod list;
pub(crate) mod marks;
mod objects;
pub(crate) mod owners;
pub(crate) mod peek;
pub(crate) mod pending;
pub(crate) mod reader;
pub(crate) mod scan;
pub(crate) mod snapshots;
pub(crate) mod spare;
pub(crate) mod uploads;
mod wanted;
pub(crate) mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use steadfast_disk::Disk;
use steadfast_flow::Env;
use steadfast_log::{Durability, LogError, LogState, Priority, Record};
use tokio::sync::{Semaphore, watch};

use crate::index::{Index, IndexError, IndexStatus, LiveIndex, LsmIndex, MemIndex};
use crate::layout::Layout;
use crate::record::keys::Id;
use crate::record::{BucketMeta, Head, Value, keys};
use crate::shard::apply::{LogSlot, StoreApplier};
use crate::shard::checkpoint::{Checkpoint, Closed};
use crate::shard::core::{Core, Registry};
use crate::status::{EventsStatus, StoreStatus};
use crate::{IndexKind, StoreError, StoreOptions};
use steadfast_log::{Log, RecoveryReport};

/// How long to wait before trying again to persist the index.
const PERSIST_AGAIN: Duration = Duration::from_secs(5);

/// From one checkpoint that was asked for to the next: each costs a few flushes of the index's files.
const WANTED_EVERY: Duration = Duration::from_millis(500);

/// How often old uploads are looked for.
const EXPIRY_EVERY: Duration = Duration::from_secs(3600);

struct Shared {
    core: Arc<Core>,
    /// The applier's handle on the log that owns it: taken away with the last handle on the store, or neither would ever go.
    log: LogSlot,
    /// Set when the store closes; the maintenance task ends.
    closing: watch::Sender<bool>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.log.write().take();
        self.core.accounts.lock().detach();
    }
}

/// Buckets, objects and uploads over one log: all that a disk holds of them. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Shard {
    pub(crate) core: Arc<Core>,
    log: Log,
    shared: Arc<Shared>,
}

/// The identity of the pool on a disk; zeros when it cannot be read, which opening the log will say better.
pub(crate) async fn pool_of(disk: &Arc<dyn Disk>) -> [u8; 16] {
    steadfast_log::pool_on(disk).await
}

/// Opens the index, and what it was at its checkpoint. One without a checkpoint is empty.
async fn open_index(
    kind: &IndexKind,
    env: &Env,
    options: &StoreOptions,
    pool: [u8; 16],
) -> Result<(Arc<dyn Index>, Checkpoint), StoreError> {
    match kind {
        IndexKind::Memory(checkpoint) => {
            let index: Arc<dyn Index> = Arc::new(MemIndex::open(checkpoint.clone()));
            let found = read_checkpoint(&*index).unwrap_or_default().filter(|c| c.pool == pool);
            if found.is_none() {
                checkpoint.clear();
                return Ok((Arc::new(MemIndex::open(checkpoint.clone())), Checkpoint::default()));
            }
            Ok((index, found.unwrap_or_default()))
        }
        IndexKind::Lsm(dir) => {
            let (dir, cache) = (dir.clone(), options.index_cache_bytes);
            let opened = env.blocking(move || open_lsm(dir, cache, pool)).await;
            Ok(opened.ok_or_else(|| StoreError::Index("opening it failed".into()))??)
        }
    }
}

/// Opens an empty index; what is there is deleted.
async fn open_fresh(kind: &IndexKind, env: &Env, options: &StoreOptions) -> Result<Arc<dyn Index>, StoreError> {
    match kind {
        IndexKind::Memory(checkpoint) => {
            checkpoint.clear();
            Ok(Arc::new(MemIndex::open(checkpoint.clone())))
        }
        IndexKind::Lsm(dir) => {
            let (dir, cache) = (dir.clone(), options.index_cache_bytes);
            let opened = env.blocking(move || {
                if dir.exists() {
                    LsmIndex::delete(&dir)?;
                }
                LsmIndex::open(&dir, cache)
            });
            let opened = opened.await.ok_or_else(|| StoreError::Index("opening it failed".into()))?;
            Ok(Arc::new(opened?))
        }
    }
}

fn open_lsm(dir: PathBuf, cache_bytes: u64, pool: [u8; 16]) -> Result<(Arc<dyn Index>, Checkpoint), IndexError> {
    for dir in [&dir, &crate::index::beside(&dir)] {
        marks::Marks::remove_left(dir);
    }
    LsmIndex::settle(&dir)
        .unwrap_or_else(|e| tracing::warn!(error = %e, "what was rebuilt beside the index is left alone"));
    let index = LsmIndex::open(&dir, cache_bytes)?;
    match read_checkpoint(&index) {
        Ok(Some(checkpoint)) if checkpoint.pool == pool => return Ok((Arc::new(index), checkpoint)),
        Ok(Some(_)) => tracing::warn!("the index is of another pool and will be rebuilt from the log"),
        Ok(None) if index.is_new() => return Ok((Arc::new(index), Checkpoint::default())),
        Ok(None) => tracing::info!("the index was not finished and will be rebuilt from the log"),
        Err(e) => tracing::warn!(error = %e, "the index is damaged and will be rebuilt from the log"),
    }
    drop(index);
    LsmIndex::delete(&dir)?;
    Ok((Arc::new(LsmIndex::open(&dir, cache_bytes)?), Checkpoint::default()))
}

/// Deletes an index that is closed.
async fn discard_index(kind: &IndexKind, env: &Env) -> Result<(), StoreError> {
    match kind {
        IndexKind::Memory(checkpoint) => checkpoint.clear(),
        IndexKind::Lsm(dir) => {
            let dir = dir.clone();
            let deleted = env.blocking(move || LsmIndex::delete(&dir)).await;
            deleted.ok_or_else(|| StoreError::Index("deleting it failed".into()))??;
        }
    }
    Ok(())
}

fn read_checkpoint(index: &dyn Index) -> Result<Option<Checkpoint>, IndexError> {
    let Some(value) = index.get(keys::CHECKPOINT)? else { return Ok(None) };
    Checkpoint::decode(&value).map(Some).map_err(|e| IndexError::damaged(e.to_string()))
}

fn load_layout(index: &dyn Index) -> Result<Option<Arc<Layout>>, StoreError> {
    let Some(value) = index.get(keys::LAYOUT)? else { return Ok(None) };
    Ok(Some(Arc::new(Layout::decode(Value::decode(&value)?.payload)?)))
}

fn load_registry(index: &dyn Index) -> Result<Registry, StoreError> {
    let mut registry = Registry::default();
    for pair in index.range(&[keys::BUCKETS], Some(&[keys::BUCKETS + 1])) {
        let (key, value) = pair?;
        let Some(id) = key.get(1..).and_then(|id| id.try_into().ok()) else { continue };
        registry.put(u64::from_be_bytes(id), BucketMeta::decode(Value::decode(&value)?.payload)?);
    }
    Ok(registry)
}

/// How often a disk is opened while its index cannot be gone on with.
const OPEN_TRIES: u32 = 3;

/// What opening a shard found.
pub(crate) struct ShardReport {
    pub(crate) recovery: RecoveryReport,
    pub(crate) index_rebuilt: bool,
    pub(crate) replayed_records: u64,
}

impl Shard {
    /// Opens a formatted disk: recovers the log and brings the index up to its end. An index that cannot be gone on with is deleted, and rebuilt
    /// from the log.
    pub(crate) async fn open(
        disk: Arc<dyn Disk>,
        index: IndexKind,
        env: Env,
        options: StoreOptions,
        read_ahead: Arc<Semaphore>,
    ) -> Result<(Self, ShardReport), StoreError> {
        let pool = pool_of(&disk).await;
        // A disk that cannot be read says nothing of its index: that is left alone.
        let index = if pool == Id::default() { IndexKind::memory() } else { index };
        let mut unfit = None;
        // An index that is made anew may fail as well; where it keeps failing, its directory is at fault.
        for _ in 1..OPEN_TRIES {
            match Self::open_with(&disk, pool, &index, &env, &options, &read_ahead, &mut unfit).await {
                Err(e) => {
                    let why = unfit.take().ok_or(e)?;
                    tracing::warn!(%why, "the index cannot be gone on with and will be rebuilt from the log");
                }
                opened => return opened,
            }
            discard_index(&index, &env).await?;
        }
        Self::open_with(&disk, pool, &index, &env, &options, &read_ahead, &mut unfit).await
    }

    /// The same with the index as it is; `unfit` says why that is not possible.
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
        let checkpoint_log_bytes = options.checkpoint_log_bytes_in(disk.geometry().capacity_bytes);
        let mut core = Core::new(
            env.clone(),
            LiveIndex::new(index, kind),
            pool,
            checkpoint,
            registry,
            layout,
            read_ahead.clone(),
            checkpoint_log_bytes,
            options.clone(),
        );
        *core.snapshots.write() = snapshots;
        core.capacity_bytes = disk.geometry().capacity_bytes;
        let core = Arc::new(core);
        let watched = disk.clone();
        let slot = LogSlot::default();
        let applier = Arc::new(StoreApplier { core: core.clone(), log: slot.clone() });
        let opened = Log::open(disk.clone(), env.clone(), options.log.clone(), applier).await;
        let (log, recovery) = opened.inspect_err(|_| {
            *unfit = core.unfit.lock().take().or_else(|| core.index.ailment().map(|ailment| ailment.why));
        })?;
        let replayed_records = match core.finish_replay() {
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
        core.opening.store(if recovery.read_only { 0 } else { log.opening() }, Ordering::Release);
        let lost_lsn = match core.closed_before(&recovery) {
            Some(closed) => {
                core.clock.known(closed.clock_ms);
                closed.lost_lsn
            }
            None => core.progress.borrow().lsn,
        };
        core.lost_lsn.store(lost_lsn, Ordering::Release);
        core.channels.forget();
        core.accounts.lock().attach(log.clone());
        *slot.write() = Some(log.clone());
        let shared = Arc::new(Shared { core: core.clone(), log: slot, closing: watch::Sender::new(false) });
        let watch = hang::watch(core.clone(), watched, shared.closing.subscribe());
        env.spawn("store-hang-watch", log.guarded("store-hang-watch", watch));
        let heal = heal::watch(core.clone(), log.clone(), shared.closing.subscribe());
        env.spawn("store-index-heal", log.guarded("store-index-heal", heal));
        let verify = heal::verify(core.clone(), shared.closing.subscribe());
        env.spawn("store-index-verify", log.guarded("store-index-verify", verify));
        let maintenance = maintain(core.clone(), log.clone(), shared.closing.subscribe());
        env.spawn("store-maintenance", log.guarded("store-maintenance", maintenance));
        let sweep = channels::sweep(core.clone(), shared.closing.subscribe());
        env.spawn("store-sweep", log.guarded("store-sweep", sweep));
        // What a damaged log has not given is not to be taken for nothing by the next start.
        // A checkpoint that names no history, as builds wrote that knew of none, would not be known again by the next start.
        let nameless = core.opened_with.0 > 0 && core.opened_with.1 == 0;
        if (replayed_records > 0 || nameless) && !recovery.read_only {
            let _one = core.applying.lock();
            if nameless {
                core.persisted.lock().lsn = 0;
            }
            core.seal();
        }
        let store = Self { core, log, shared };
        if let Some(age) = store.core.options.upload_expiry {
            let closing = store.shared.closing.subscribe();
            let expiry = expire(store.core.clone(), store.log.clone(), age, closing);
            env.spawn("store-expiry", store.log.guarded("store-expiry", expiry));
        }
        Ok((store, ShardReport { recovery, index_rebuilt, replayed_records }))
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
            index: IndexStatus { unsaved: u64::from(core.unsaved.lock().is_some()), ..core.index.status() },
            applied_lsn: core.progress.borrow().lsn,
            checkpoint_lsn: core.persisted.lock().lsn,
            cache: core.cache.status(),
            log: self.log.status(),
            events: EventsStatus::default(),
            snapshots: Vec::new(),
            disks: Vec::new(),
            disks_in_trouble: 0,
            moving: None,
        }
    }

    /// Of which pool of disks this one is a part.
    pub(crate) fn layout(&self) -> Option<Arc<Layout>> {
        self.core.layout.read().clone()
    }

    /// Commits of which pool of disks this one is a part. Waits until that is decided, however long the disk may hang: after an error it is
    /// not there, or the log takes no more writes.
    pub(crate) async fn put_layout(&self, layout: &Layout) -> Result<(), StoreError> {
        let core = &self.core;
        let head = Head::PoolLayout { payload: &layout.encode() }.encode();
        writer::check_head(&head)?;
        let batch = vec![Record { head: head.into(), ..Record::default() }];
        // It may be what makes room.
        let room = core.reserve(self.log(), writer::batch_bytes(&batch), Priority::Delete).await?;
        let ticket = self.log().submit(room, batch, Durability::Sync)?;
        core.submitted.fetch_max(ticket.first_lsn(), Ordering::AcqRel);
        ticket.await?;
        Ok(())
    }

    /// Finishes what was accepted and persists the index, so that the next start replays nothing.
    /// An index that cannot be persisted is only logged: it is rebuilt.
    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        self.shared.closing.send_replace(true);
        // What an index that ails has not taken in is in the log.
        self.core.index.close();
        let well = self.log.status().log == LogState::Ok;
        self.log.close().await?;
        // The tasks hold the receivers: nothing of theirs writes to the index once this returns.
        self.shared.closing.closed().await;
        let core = &self.core;
        // What the task had begun, then what came after.
        for _ in 0..2 {
            if core.sealing.load(Ordering::Acquire) && !persist(core).await {
                break;
            }
            core.seal();
        }
        if !core.sealing.load(Ordering::Acquire) && well && core.say_closed() {
            persist(core).await;
        }
        Ok(())
    }
}

impl Core {
    /// What the run before this one said when it ended, if the log is as it has left it.
    fn closed_before(&self, recovery: &RecoveryReport) -> Option<Closed> {
        let (opening, lsn) = (self.opening_before.load(Ordering::Acquire), self.progress.borrow().lsn);
        let whole = !recovery.read_only && recovery.damage.is_empty() && recovery.doubt.is_none();
        if opening == 0 || !whole || recovery.last_lsn > lsn {
            return None;
        }
        let value = self.index.get(&keys::closed(opening)).ok()??;
        Closed::decode(&value).ok().filter(|closed| closed.lsn == lsn)
    }

    /// Says in the index, to be persisted, that all that was published is on the disk. When the log is closed, and the checkpoint is persisted.
    fn say_closed(&self) -> bool {
        let (opening, progress) = (self.opening.load(Ordering::Acquire), *self.progress.borrow());
        let whole = self.index.is_well() && !progress.failed && !self.distrusted.load(Ordering::Acquire);
        let whole = whole && self.doubt.get().is_none() && self.persisted.lock().lsn == progress.lsn;
        if opening == 0 || !whole {
            return false;
        }
        let closed = Closed {
            lsn: progress.lsn,
            lost_lsn: self.lost_lsn.load(Ordering::Acquire),
            clock_ms: self.clock.believed_ms(),
        };
        let (mine, lsn) = (Bytes::from(keys::closed(opening)), progress.lsn.max(1));
        let before: Vec<_> = self.index.range(keys::CLOSED, keys::past(keys::CLOSED).as_deref()).collect();
        for (key, _) in before.into_iter().flatten() {
            self.index.remove(key, lsn);
        }
        self.index.insert(mine, closed.encode().into(), lsn);
        self.index.seal();
        true
    }
}

/// Persists what was sealed; whether that worked. Its records are durable.
async fn persist(core: &Arc<Core>) -> bool {
    let _one = core.persisting.lock().await;
    if !core.index.is_well() {
        return false;
    }
    let held = core.index.held();
    let failed = match core.env.blocking(move || held.index.persist()).await {
        Some(Ok(())) => None,
        Some(Err(e)) => {
            if e.damaged {
                core.index.fault(&e);
            }
            Some(e.to_string())
        }
        None => Some("writing it panicked".to_owned()),
    };
    if let Some(why) = &failed {
        tracing::warn!(%why, "cannot write the index; trying again");
    }
    let saved = failed.is_none();
    *core.unsaved.lock() = failed;
    if saved {
        if let Some(sealed) = core.sealed.lock().take() {
            *core.persisted.lock() = sealed;
        }
        core.sealing.store(false, Ordering::Release);
    }
    saved
}

/// Tidies the index up.
async fn compact(core: &Arc<Core>) {
    let _one = core.persisting.lock().await;
    let held = core.index.held();
    if let Some(Err(e)) = core.env.blocking(move || held.index.compact()).await {
        tracing::warn!(error = %e, "cannot compact the index");
        if e.damaged {
            core.index.fault(&e);
        }
    }
}

/// Persists checkpoints as they are sealed, seals one when space waits for it, and tidies up the index.
async fn maintain(core: Arc<Core>, log: Log, mut closing: watch::Receiver<bool>) {
    let mut wanted_last: Option<Duration> = None;
    loop {
        let since = wanted_last.map_or(WANTED_EVERY, |last| core.env.now().saturating_sub(last));
        let wanted = core.checkpoint_wanted.load(Ordering::Acquire);
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => return,
            () = core.checkpoint_due.notified() => {}
            () = core.env.sleep(WANTED_EVERY.saturating_sub(since)), if wanted => {}
        }
        if since >= WANTED_EVERY && core.checkpoint_wanted.swap(false, Ordering::AcqRel) {
            wanted_last = Some(core.env.now());
            let _one = core.applying.lock();
            core.seal();
        }
        if !core.sealing.load(Ordering::Acquire) {
            continue;
        }
        // Asynchronous commits are applied before they are durable, and the index must not know more than the log.
        match log.flush().await {
            Ok(_) => {}
            Err(LogError::Closed) => return,
            Err(e) => {
                tracing::warn!(error = %e, "the index is no longer persisted");
                return;
            }
        }
        while !persist(&core).await {
            tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => return,
                () = core.env.sleep(PERSIST_AGAIN) => {}
            }
        }
        compact(&core).await;
    }
}

/// Gives up uploads in parts that are older than `age`, now and then.
async fn expire(core: Arc<Core>, log: Log, age: Duration, mut closing: watch::Receiver<bool>) {
    loop {
        match core.expire_uploads(&log, core.uploads_over(age)).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "uploads in parts were given up: not completed in time"),
            Err(e) => tracing::warn!(error = %e, "cannot give up old uploads"),
        }
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => return,
            () = core.env.sleep(EXPIRY_EVERY.min(age)) => {}
        }
    }
}
