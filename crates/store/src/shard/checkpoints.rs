//! When the state is sealed, and written to the index's disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_log::{Applied, ExtentUsage, Log, LogError, Lsn, Usage};
use tokio::sync::{MutexGuard, Notify, watch};

use crate::record::keys;
use crate::shard::applied::AppliedState;
use crate::shard::checkpoint::Checkpoint;

/// Time before a failed write of the index is retried.
const WRITE_RETRY: Duration = Duration::from_secs(5);

/// Minimum time between two requested checkpoints: each costs a few flushes of the index's files.
const WANTED_EVERY: Duration = Duration::from_millis(500);

/// A state of the index.
#[derive(Default)]
struct Saved {
    lsn: Lsn,
    usage: Vec<ExtentUsage>,
}

/// The checkpoints of a shard: at most one is sealed and being written.
pub(crate) struct Checkpoints {
    /// Committed bytes of records after which a checkpoint is due.
    log_bytes_max: u64,
    /// Bytes of records applied since the last checkpoint was sealed.
    log_bytes: AtomicU64,
    /// Whether the last frame was applied in part, since the index failed.
    mid_frame: AtomicBool,
    /// Whether a sealed state is being written.
    sealing: AtomicBool,
    sealed: Mutex<Option<Saved>>,
    /// The state on the index's disk.
    saved: Mutex<Saved>,
    due: Notify,
    /// Whether space waits for a checkpoint.
    wanted: AtomicBool,
    /// Held while the index is written to its disk, or replaced.
    writing: tokio::sync::Mutex<()>,
    /// Why the last attempt to write the index failed.
    failure: Mutex<Option<String>>,
}

impl Checkpoints {
    /// Begins with the checkpoint with which the index was opened. `log_bytes_max` is the number of
    /// committed bytes after which the next one is due.
    pub(crate) fn new(opened_with: &Checkpoint, log_bytes_max: u64) -> Self {
        Self {
            log_bytes_max,
            log_bytes: AtomicU64::new(0),
            mid_frame: AtomicBool::new(false),
            sealing: AtomicBool::new(false),
            sealed: Mutex::new(None),
            saved: Mutex::new(Saved { lsn: opened_with.lsn, usage: opened_with.usage.clone() }),
            due: Notify::new(),
            wanted: AtomicBool::new(false),
            writing: tokio::sync::Mutex::new(()),
            failure: Mutex::new(None),
        }
    }

    /// The last LSN whose effect is on the index's disk.
    pub(crate) fn lsn(&self) -> Lsn {
        self.saved.lock().lsn
    }

    /// The usage saved with that checkpoint.
    pub(crate) fn usage(&self) -> Vec<ExtentUsage> {
        self.saved.lock().usage.clone()
    }

    /// Why the last attempt to write the index failed, if it did.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Whether a sealed state waits to be written.
    pub(crate) fn is_sealing(&self) -> bool {
        self.sealing.load(Ordering::Acquire)
    }

    /// The LSN of the state that waits to be written.
    #[cfg(test)]
    pub(crate) fn sealed_lsn(&self) -> Option<Lsn> {
        self.sealed.lock().as_ref().map(|sealed| sealed.lsn)
    }

    /// Requests a checkpoint: space waits for one.
    pub(crate) fn want(&self) {
        if !self.wanted.swap(true, Ordering::AcqRel) {
            self.due.notify_one();
        }
    }

    /// Excludes writes of the index while it is replaced.
    pub(crate) async fn exclude_writes(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().await
    }

    /// Nothing is on the index's disk: the log recycles no extent until the next checkpoint is.
    pub(crate) fn start_over(&self) {
        *self.sealed.lock() = None;
        *self.saved.lock() = Saved::default();
        self.sealing.store(false, Ordering::Release);
    }

    /// The `records` are in the index. `is_all` tells whether their frame ends with them.
    /// Seals the state when enough has changed.
    pub(crate) fn note(&self, applied: &AppliedState, usage: &Usage, records: &[Applied], is_all: bool) {
        let bytes: u64 = records.iter().map(|record| Log::footprint(&record.location)).sum();
        self.mid_frame.store(!is_all, Ordering::Relaxed);
        let log_bytes = self.log_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let large = applied.memtable_bytes.load(Ordering::Relaxed) >= applied.options.memtable_bytes_max;
        if !applied.is_replaying() && (large || log_bytes >= self.log_bytes_max) {
            self.seal(applied, usage);
        }
    }

    /// Seals the state after a replay. The next start must not take records that a damaged log
    /// could not deliver for absent. A checkpoint without a history (`nameless`), as old builds
    /// wrote it, would not be recognised by the next start.
    pub(crate) fn seal_opened(&self, applied: &AppliedState, usage: &Usage, replayed_records: u64, nameless: bool) {
        if nameless {
            self.saved.lock().lsn = 0;
        }
        if replayed_records > 0 || nameless {
            self.seal(applied, usage);
        }
    }

    /// Seals the state so far for writing. No record is applied while the caller holds the log's
    /// accounts.
    pub(crate) fn seal(&self, applied: &AppliedState, usage: &Usage) -> bool {
        if !applied.index.is_well() {
            return false;
        }
        // Recovery replays a frame as a whole: a checkpoint in the middle of a frame would be half
        // known.
        if self.mid_frame.load(Ordering::Relaxed) {
            // The rest of the frame follows and will trigger it.
            self.log_bytes.store(self.log_bytes_max, Ordering::Relaxed);
            return false;
        }
        let checkpoint = applied.checkpoint(usage);
        if checkpoint.lsn == self.lsn() || self.sealing.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.log_bytes.store(0, Ordering::Relaxed);
        applied.index.insert(Bytes::from_static(keys::CHECKPOINT), checkpoint.encode().into(), checkpoint.lsn);
        applied.index.seal();
        *self.sealed.lock() = Some(Saved { lsn: checkpoint.lsn, usage: checkpoint.usage });
        self.due.notify_one();
        true
    }

    /// Writes the sealed state and returns whether that succeeded. Its records are durable.
    pub(crate) async fn write(&self, applied: &AppliedState) -> bool {
        let _one = self.writing.lock().await;
        if !applied.index.is_well() {
            return false;
        }
        let held = applied.index.held();
        let failed = match applied.env.blocking(move || held.index.persist()).await {
            Some(Ok(())) => None,
            Some(Err(e)) => {
                if e.damaged {
                    applied.index.fault(&e);
                }
                Some(e.to_string())
            }
            None => Some("writing it panicked".to_owned()),
        };
        if let Some(why) = &failed {
            tracing::warn!(%why, "cannot write the index; retrying");
        }
        let written = failed.is_none();
        *self.failure.lock() = failed;
        if written {
            if let Some(sealed) = self.sealed.lock().take() {
                let mut saved = self.saved.lock();
                assert!(saved.lsn <= sealed.lsn, "the checkpoint goes back to {}", sealed.lsn);
                *saved = sealed;
            }
            self.sealing.store(false, Ordering::Release);
        }
        written
    }

    /// Compacts the index.
    async fn compact(&self, applied: &AppliedState) {
        let _one = self.writing.lock().await;
        let held = applied.index.held();
        if let Some(Err(e)) = applied.env.blocking(move || held.index.compact()).await {
            tracing::warn!(error = %e, "cannot compact the index");
            if e.damaged {
                applied.index.fault(&e);
            }
        }
    }

    /// Writes what was sealed and the later changes, once the log is closed. Returns whether
    /// everything is written.
    pub(crate) async fn finish(&self, applied: &AppliedState, log: &Log) -> bool {
        // First the write that the task had begun, then the later changes.
        for _ in 0..2 {
            if self.is_sealing() && !self.write(applied).await {
                break;
            }
            log.with_usage(|usage| self.seal(applied, usage));
        }
        !self.is_sealing()
    }
}

/// Writes checkpoints as they are sealed, seals one when space waits for it, and compacts the
/// index.
pub(crate) async fn maintain(
    checkpoints: Arc<Checkpoints>,
    applied: Arc<AppliedState>,
    log: Log,
    mut closing: watch::Receiver<bool>,
) {
    let mut wanted_last: Option<Duration> = None;
    loop {
        let since = wanted_last.map_or(WANTED_EVERY, |last| applied.env.now().saturating_sub(last));
        let wanted = checkpoints.wanted.load(Ordering::Acquire);
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => return,
            () = checkpoints.due.notified() => {}
            () = applied.env.sleep(WANTED_EVERY.saturating_sub(since)), if wanted => {}
        }
        if since >= WANTED_EVERY && checkpoints.wanted.swap(false, Ordering::AcqRel) {
            wanted_last = Some(applied.env.now());
            log.with_usage(|usage| checkpoints.seal(&applied, usage));
        }
        if !checkpoints.is_sealing() {
            continue;
        }
        // Asynchronous commits are applied before they are durable, and the index must not be ahead
        // of the log.
        match log.flush().await {
            Ok(_) => {}
            Err(LogError::Closed) => return,
            Err(e) => {
                tracing::warn!(error = %e, "the index is no longer persisted");
                return;
            }
        }
        while !checkpoints.write(&applied).await {
            tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => return,
                () = applied.env.sleep(WRITE_RETRY) => {}
            }
        }
        checkpoints.compact(&applied).await;
    }
}

#[cfg(test)]
mod tests {
    use steadfast_disk::{Disk, MemDisk};
    use steadfast_flow::Env;
    use steadfast_log::{Applier, FormatOptions, Location};

    use super::*;
    use crate::record::Head;
    use crate::record::upload::{UploadMeta, UploadOwner};
    use crate::{Attributes, Condition, IndexKind, MemCheckpoint, Store, StoreOptions};

    #[tokio::test]
    async fn a_checkpoint_never_ends_in_the_middle_of_a_frame() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(128 << 20));
        let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
        Log::format(&disk, &Env::tokio(), &format).await.expect("format");
        let kept = MemCheckpoint::default();
        let kind = IndexKind::Memory(kept.clone());
        let (store, _) = Store::open(disk, kind, Env::tokio(), StoreOptions::default()).await.expect("open");
        let shard = store.lead().expect("open");
        let applier = shard.applier();
        let (attributes, condition, owner) = (Attributes::default(), Condition::None, UploadOwner::Client);
        let payload = UploadMeta { created_ms: 1, attributes, condition, owner }.encode();
        let frame: Vec<Applied> = (1..=3u8)
            .map(|n| {
                let head = Head::UploadCreate { bucket: 1, upload: [n; 16], key: b"k", payload: &payload }.encode();
                let lsn = 1000 + u64::from(n);
                let location = Location { extent: 1, epoch: 1, offset: 4096, head_len: 1, body_len: 0 };
                Applied { lsn, version: lsn, moved: false, head: head.into(), location }
            })
            .collect();
        let apply = |records: &[Applied]| shard.log().with_usage(|usage| applier.apply(records, usage));
        // One read per record; the second record's read fails.
        kept.fail_after(1, Some(1));
        assert_eq!(apply(&frame), 1);
        assert!(applier.ready().await, "it is read again");
        let sealed = shard.log().with_usage(|usage| shard.checkpoints.seal(&shard.applied, usage));
        assert!(!sealed, "the frame is known by half");
        assert_eq!(apply(&frame[1..]), 2);
        assert!(shard.checkpoints.is_sealing(), "the checkpoint requested in between is sealed later");
        assert_eq!(shard.checkpoints.sealed_lsn(), Some(1003));
    }
}
