//! The log's interface to the layer above.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::MutexGuard;
use serde::Serialize;
use steadfast_disk::{BLOCK, Disk};
use steadfast_flow::Env;
use tokio::sync::{oneshot, watch};

use crate::bodies::{ChunkBuf, chunk_head_bytes_max};
use crate::body::PendingChunk;
use crate::commit::{Pending, Ticket};
use crate::durable::{DurableState, LogCut};
use crate::format::{FRAME_HEADER, HEAD_BYTES_MAX, Superblock, record_bytes};
use crate::frame::batch_bytes;
use crate::guard::Guard;
use crate::hold::Hold;
use crate::latch::LogState;
use crate::options::FormatOptions;
use crate::pins::ExtentPin;
use crate::pool::PoolInfo;
use crate::read::RecordFront;
use crate::reserve::Reservation;
use crate::scrub_state::ScrubRequest;
use crate::shared::Shared;
use crate::status::{ExtentCounts, LogStatus};
use crate::use_reader::UseReader;
use crate::{Batch, Durability, ExtentUsage, Location, LogError, Lsn, Priority, Usage};

/// Limits of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Bytes that the records of a batch may take together, as [`Log::record_bytes`] counts them.
    pub batch_bytes_max: u64,
    /// Bytes of a record's head.
    pub head_bytes_max: usize,
    /// Bytes of a chunk's body.
    pub chunk_bytes_max: usize,
    /// Bytes of a chunk's head.
    pub chunk_head_bytes_max: usize,
}

impl Limits {
    /// Bytes of records that compaction appends together.
    pub(crate) fn copied_batch_bytes_max(&self) -> u64 {
        (self.batch_bytes_max / 2).clamp(64 << 10, 1 << 20).min(self.batch_bytes_max)
    }

    /// Bytes that copies of `live` bytes of records take in another extent, because each frame is
    /// padded to a block. This matters for the small frames of a small pool.
    pub(crate) fn copied_bytes(&self, live: u64) -> u64 {
        live + live * BLOCK as u64 / self.copied_batch_bytes_max()
    }
}

/// An append-only log on a disk. Cloning shares it.
#[derive(Clone)]
pub struct Log {
    pub(crate) shared: Arc<Shared>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Log({})", self.shared.disk.describe())
    }
}

impl Log {
    /// Formats a pool on the disk.
    ///
    /// # Errors
    /// [`LogError::Open`] if the disk is too small, fails, or holds data and `options.force` is not
    /// set.
    pub async fn format(disk: &Arc<dyn Disk>, env: &Env, options: &FormatOptions) -> Result<PoolInfo, LogError> {
        crate::pool::format(disk, env, options).await
    }

    /// Wraps a `task` on which writes depend. If it panics, the log takes no more writes, as after
    /// a failed write.
    pub fn guarded<F: Future + Send>(
        &self,
        name: &'static str,
        task: F,
    ) -> impl Future<Output = F::Output> + Send + use<F> {
        let guard = Guard::new(name, &self.shared.latch);
        async move {
            let _guard = guard;
            task.await
        }
    }

    /// Limits of one request.
    pub fn limits(&self) -> Limits {
        Limits {
            batch_bytes_max: (self.shared.frame_bytes_max - FRAME_HEADER) as u64,
            head_bytes_max: HEAD_BYTES_MAX,
            chunk_bytes_max: self.shared.chunk_bytes_max,
            chunk_head_bytes_max: chunk_head_bytes_max(self.shared.chunk_bytes_max),
        }
    }

    /// Bytes that a record with a head and body of these lengths takes.
    pub fn record_bytes(head_len: u32, body_len: u32) -> u64 {
        record_bytes(head_len, body_len)
    }

    /// Bytes that the record at `location` takes, for [`Usage::credit`] and [`Usage::retire`].
    pub fn footprint(location: &Location) -> u64 {
        record_bytes(location.head_len, location.body_len)
    }

    /// Reserves space for a batch of `bytes` (heads and bodies), on disk and in the budget. Waits
    /// for the budget at most `wait`.
    ///
    /// # Errors
    /// [`LogError::Full`] at once, [`LogError::Busy`] after `wait`, [`LogError::TooLarge`],
    /// [`LogError::Failed`].
    pub async fn reserve(&self, bytes: u64, priority: Priority, wait: Duration) -> Result<Reservation, LogError> {
        self.shared.room.acquire(&self.shared.latch, bytes, priority, wait).await
    }

    /// Appends a batch without blocking. LSNs are assigned at once, in call order. The batch
    /// commits whether or not the ticket is awaited.
    ///
    /// # Errors
    /// [`LogError::TooLarge`] if the batch exceeds [`Log::limits`], [`LogError::Failed`],
    /// [`LogError::Closed`]: the log has accepted nothing of it then.
    pub fn submit(&self, room: Reservation, batch: Batch, durability: Durability) -> Result<Ticket, LogError> {
        self.shared.latch.check()?;
        let limits = self.limits();
        let (record_bytes, entry_bytes) = batch_bytes(&batch);
        if batch.is_empty() || record_bytes > limits.batch_bytes_max {
            return Err(LogError::TooLarge(format!(
                "a batch of {} records, {record_bytes} bytes; at most {}",
                batch.len(),
                limits.batch_bytes_max
            )));
        }
        if let Some(record) = batch.iter().find(|record| record.head.len() > HEAD_BYTES_MAX) {
            return Err(LogError::TooLarge(format!("a head of {} bytes; at most {HEAD_BYTES_MAX}", record.head.len())));
        }
        let (answer, outcome) = oneshot::channel();
        let names_chunks = batch.iter().any(|record| self.shared.applier.names_chunks(&record.head));
        let chunks = if names_chunks { self.shared.chunks_written.load(SeqCst) } else { 0 };
        let (count, submitted) = (batch.len(), self.shared.env.now());
        let make = |first_lsn| Pending {
            batch,
            first_lsn,
            durability,
            chunks,
            record_bytes,
            entry_bytes,
            answer,
            submitted,
            reservation: room,
        };
        let first_lsn = self.shared.queue.push(make, count)?;
        Ok(Ticket { first_lsn, durability, outcome })
    }

    /// Best length of the next chunk of a body with `left` remaining bytes and at most `most` per
    /// chunk: the rest of an extent, or the longest possible.
    pub fn chunk_bytes(&self, left: u64, most: usize) -> usize {
        self.shared.bodies.best_bytes(left, most.min(self.shared.chunk_bytes_max))
    }

    /// Memory for a chunk of up to `capacity` bytes. Reserve space for it first, which bounds the
    /// memory.
    ///
    /// # Errors
    /// [`LogError::TooLarge`] if `capacity` exceeds [`Log::limits`].
    pub async fn chunk(&self, capacity: usize) -> Result<ChunkBuf, LogError> {
        if capacity > self.shared.chunk_bytes_max {
            let max = self.shared.chunk_bytes_max;
            return Err(LogError::TooLarge(format!("a chunk of {capacity} bytes; at most {max}")));
        }
        let mut buf = self.shared.disk.buffer(BLOCK + capacity.next_multiple_of(BLOCK)).await;
        buf.set_len(BLOCK);
        Ok(ChunkBuf { buf, capacity })
    }

    /// Begins to write a chunk, without a flush. It is garbage until a record that names its
    /// location has been committed; the flush of that commit covers it. Until then it may be
    /// recycled unless [`crate::ChunkOwners::chunk_is_live`] returns `true`. `room` must cover the
    /// chunk, and lasts until the disk has finished with it, even if it is dropped here.
    ///
    /// The result completes with [`LogError::TooLarge`] for a head above [`Log::limits`],
    /// [`LogError::Full`] or [`LogError::Failed`] if the chunk could not be written.
    pub fn write_chunk(&self, room: &Reservation, head: Bytes, chunk: ChunkBuf) -> PendingChunk {
        PendingChunk::begin(&self.shared, room, head, chunk)
    }

    /// What is durable in each of the logs at one moment, as changes since the last cut. `None` if
    /// one of them is not [followed](crate::LogOptions::followed), is read-only or on zones. Each
    /// log is named once.
    ///
    /// All that was acknowledged as durable before the call is in the cut, and all that is in it
    /// survives a power cut.
    pub fn durable_cut(logs: &[&Log]) -> Option<Vec<LogCut>> {
        // In the given order, which is the same for all callers. No other code locks two of them.
        let states: Option<Vec<_>> = logs.iter().map(|log| log.shared.extents.durable().lock()).collect();
        let cut = |(log, mut state): (&&Log, MutexGuard<'_, DurableState>)| {
            state.cut(log.shared.extents.with(|table| table.next_epoch))
        };
        Some(logs.iter().zip(states?).map(cut).collect())
    }

    /// What is held back until a copy elsewhere has it.
    pub fn hold(&self) -> &Hold {
        &self.shared.progress.hold
    }

    /// From now on, records are applied, and so seen and answered, only when they are released.
    /// Asynchronous commits become synchronous ones.
    pub fn begin_hold(&self) {
        self.hold().begin(self.shared.queue.last_lsn());
    }

    /// After [`Log::begin_hold`]: waits until all that was accepted before has been applied, or is
    /// held back, and makes it durable.
    ///
    /// # Errors
    /// [`LogError::Failed`] if the log has failed.
    pub async fn flush_held(&self) -> Result<(), LogError> {
        let (progress, target) = (&self.shared.progress, self.shared.queue.last_lsn());
        let (mut applied, mut latch) = (progress.applied.subscribe(), self.shared.latch.watch());
        tokio::select! {
            biased;
            _ = applied.wait_for(|applied| *applied >= target) => {}
            () = progress.hold.waits() => {}
            _ = latch.wait_for(|state| *state != LogState::Ok) => {}
        }
        self.shared.latch.check()?;
        self.flush().await.map(drop)
    }

    /// The LSN up to which records are durable.
    pub fn durable(&self) -> watch::Receiver<Lsn> {
        self.shared.durable.subscribe()
    }

    /// Whether [`Log::durable_cut`] gives cuts of this log.
    pub fn is_followed(&self) -> bool {
        self.shared.extents.durable().lock().is_some()
    }

    /// What the superblock says of the log.
    pub fn superblock(&self) -> Superblock {
        self.shared.pool
    }

    /// A reader of a use of an extent that a cut has named; `None` if it has been recycled.
    pub async fn read_use(&self, extent: u32, epoch: u64) -> Option<UseReader> {
        UseReader::open(&self.shared, extent, epoch).await
    }

    /// Keeps an extent from being recycled while the pin exists; `None` if it has been recycled.
    pub fn pin(&self, extent: u32, epoch: u64) -> Option<ExtentPin> {
        ExtentPin::new(&self.shared.extents, extent, epoch)
    }

    /// Reads and verifies bytes `range` of the body of the record at `location`. The caller may
    /// keep them, and bounds how many it keeps.
    ///
    /// # Errors
    /// [`LogError::Moved`] if the extent has been recycled: look the record up again.
    /// [`LogError::Damaged`], [`LogError::Read`].
    pub async fn read(&self, location: Location, range: Range<u32>) -> Result<Bytes, LogError> {
        self.read_of(location, range, &|_| true, &RecordFront::default()).await
    }

    /// As [`Log::read`], for a record whose head `mine` accepts. The bytes of another record are
    /// damage, even if they verify. Reads of several parts of a body share `front`.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub async fn read_of(
        &self,
        location: Location,
        range: Range<u32>,
        mine: &(dyn Fn(&[u8]) -> bool + Sync),
        front: &RecordFront,
    ) -> Result<Bytes, LogError> {
        crate::read::read(&self.shared, location, range, mine, front).await
    }

    /// The error for a lost record: its read gave [`LogError::Moved`], but the layer above still
    /// has it at `location` after a new lookup. Live records are applied at their new place before
    /// an extent is recycled, so this is damage and counted as such.
    pub fn lost(&self, location: &Location) -> LogError {
        crate::read::lost(&self.shared, location)
    }

    /// The number of this opening, if it takes writes. [`crate::History::newest`] returns it from
    /// its first write on.
    pub fn opening(&self) -> u64 {
        self.shared.extents.with(|table| table.lineage.openings().next().map_or(0, |opening| opening.id))
    }

    /// Calls `f` with the log's accounts, while no record is applied.
    pub fn with_usage<T>(&self, f: impl FnOnce(&mut Usage) -> T) -> T {
        f(&mut self.shared.progress.usage.lock())
    }

    /// Live bytes by extent.
    pub fn usage(&self) -> Vec<ExtentUsage> {
        self.shared.extents.usage()
    }

    /// Makes everything durable that has been applied or is being applied. Returns the LSN up to
    /// which it is durable.
    ///
    /// # Errors
    /// [`LogError::Failed`] if the log has failed.
    pub async fn flush(&self) -> Result<Lsn, LogError> {
        let target = self.shared.progress.applying.load(SeqCst);
        let mut durable = self.shared.durable.subscribe();
        let mut latch = self.shared.latch.watch();
        loop {
            if *durable.borrow_and_update() >= target {
                return Ok(target);
            }
            self.shared.latch.check()?;
            self.shared.queue.want_flush();
            tokio::select! {
                biased;
                _ = durable.changed() => {}
                _ = latch.changed() => {}
            }
        }
    }

    /// The state of the log, and its changes.
    pub fn watch(&self) -> watch::Receiver<LogState> {
        self.shared.latch.watch()
    }

    /// Identity and layout of the pool.
    pub fn info(&self) -> PoolInfo {
        PoolInfo::from(&self.shared.pool)
    }

    /// Extents by state and kind.
    pub fn extents(&self) -> ExtentCounts {
        self.shared.extents.counts()
    }

    /// Status of the log.
    pub fn status(&self) -> LogStatus {
        let shared = &self.shared;
        let metrics = &shared.metrics;
        let (pending_bytes, pending_bytes_max) = shared.room.pending();
        LogStatus {
            log: shared.latch.state(),
            pool: PoolInfo::from(&shared.pool).pool,
            extent_bytes: shared.pool.extent_bytes,
            zones: shared.extents.zones_status(),
            extents: shared.extents.counts(),
            accepted_lsn: shared.queue.last_lsn(),
            applied_lsn: *shared.progress.applied.borrow(),
            durable_lsn: *shared.durable.borrow(),
            group_size: metrics.group.snapshot(),
            flush_us: metrics.flush_us.snapshot(),
            commits: metrics.commits.load(Relaxed),
            records: metrics.records.load(Relaxed),
            frames: metrics.frames.load(Relaxed),
            frame_bytes: metrics.frame_bytes.load(Relaxed),
            chunks: metrics.chunks.load(Relaxed),
            chunk_bytes: metrics.chunk_bytes.load(Relaxed),
            async_lag_us_max: metrics.async_lag_us_max.load(Relaxed),
            gather_waits: metrics.gather_waits.load(Relaxed),
            gather_timeouts: metrics.gather_timeouts.load(Relaxed),
            pending_bytes,
            pending_bytes_max,
            budgets: shared.room.budgets(),
            read_damage: metrics.read_damage.load(Relaxed),
            reads_healed: metrics.reads_healed.load(Relaxed),
            writes_elsewhere: metrics.writes_elsewhere.load(Relaxed),
            heal: shared.heal_queue.status(shared.healed.status()),
            compaction: shared.compaction.status(metrics.frame_bytes.load(Relaxed) + metrics.chunk_bytes.load(Relaxed)),
            scrub: shared.scrub.status(),
            usage: shared.extents.usage(),
        }
    }

    /// Starts a scrub pass, or stops the running one. The status shows the progress.
    ///
    /// # Errors
    /// [`LogError::Closed`].
    pub fn scrub(&self, request: ScrubRequest) -> Result<(), LogError> {
        if self.shared.latch.state() == LogState::Closed {
            return Err(LogError::Closed);
        }
        self.shared.scrub.requests.add(request);
        Ok(())
    }

    /// Commits accepted batches, flushes, and seals the open extents, so that the next start reads
    /// footers only. Then stops the tasks. Records that are held back are not applied.
    ///
    /// # Errors
    /// [`LogError::Failed`] if the log has failed before or fails now.
    pub async fn close(&self) -> Result<(), LogError> {
        let shared = &self.shared;
        // Tasks in the background may wait for records that are held back.
        shared.progress.hold.end();
        shared.background.stop().await;
        shared.queue.close();
        let mut ended = shared.ended.subscribe();
        // The sender is in `shared`, so it still exists.
        let _ = ended.wait_for(|ended| *ended).await;
        // A log that was opened for reading has nothing to complete.
        if matches!(shared.latch.state(), LogState::Closed | LogState::OpenedForReading) {
            return Ok(());
        }
        shared.latch.check()?;
        shared.bodies.close(shared).await;
        shared.io.flush().await?;
        shared.latch.check()?;
        shared.latch.close();
        Ok(())
    }
}
