//! The log as the layers above see it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use steadfast_disk::{BLOCK, Disk};
use steadfast_flow::{Env, Throttle};
use tokio::sync::{oneshot, watch};

use crate::background::Background;
use crate::body::{Bodies, ChunkBuf, chunk_head_bytes_max, write_chunk};
use crate::commit::{Pending, Queue, Ticket};
use crate::compact::Compaction;
use crate::copies::{Copies, Healed};
use crate::extents::{ExtentPin, Extents};
use crate::format::{FRAME_HEADER, HEAD_BYTES_MAX, Superblock, record_bytes};
use crate::frame::batch_bytes;
use crate::io::Io;
use crate::latch::{Latch, LogState};
use crate::mend::Mends;
use crate::options::{FormatOptions, LogOptions};
use crate::pool::PoolInfo;
use crate::recover::RecoveryReport;
use crate::reserve::{Reservation, Room};
use crate::scrub::Scrub;
use crate::scrub_when::ScrubWish;
use crate::seal::Seal;
use crate::status::{ExtentCounts, LogStatus, Metrics};
use crate::{Applier, Batch, Durability, ExtentUsage, Location, LogError, Lsn, Priority};

/// What all parts of an open log share.
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) env: Env,
    pub(crate) options: LogOptions,
    pub(crate) pool: Superblock,
    pub(crate) applier: Arc<dyn Applier>,
    pub(crate) extents: Extents,
    pub(crate) latch: Arc<Latch>,
    pub(crate) io: Arc<Io>,
    pub(crate) queue: Queue,
    pub(crate) room: Room,
    pub(crate) bodies: Bodies,
    pub(crate) metrics: Metrics,
    pub(crate) compaction: Compaction,
    pub(crate) scrub: Scrub,
    /// For healing what is bad on one copy of the disk, while the log runs.
    pub(crate) copies: Copies,
    pub(crate) healed: Arc<Healed>,
    pub(crate) mends: Mends,
    pub(crate) background: Background,
    pub(crate) applied: watch::Sender<Lsn>,
    /// The last LSN that has been given to the applier, which may not be done with it.
    pub(crate) applying: AtomicU64,
    pub(crate) durable: watch::Sender<Lsn>,
    /// Counts chunks that have been written.
    pub(crate) chunks_written: AtomicU64,
    pub(crate) read_failures_told: Throttle,
    /// Whether committer and applier have ended.
    pub(crate) ended: watch::Sender<bool>,
    pub(crate) frame_bytes_max: usize,
    pub(crate) footer_bytes_max: u64,
    pub(crate) chunk_bytes_max: usize,
}

impl Shared {
    /// Seals an extent.
    pub(crate) async fn seal(&self, seal: Seal) -> Result<(), LogError> {
        let id = seal.id;
        let sealed = match seal.write(&self.io, self.extents.placement()).await? {
            Ok(sealed) => sealed,
            Err(no_footer) => {
                let (without, place) = no_footer.do_without(id.extent);
                self.metrics.writes_elsewhere.fetch_add(1, Relaxed);
                self.extents.suspect(id.extent, id.epoch, place);
                without
            }
        };
        self.extents.sealed(id.extent, id.epoch, sealed);
        Ok(())
    }
}

/// What one request may ask for.
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
    /// Makes a pool on the disk.
    ///
    /// # Errors
    /// [`LogError::Open`] when the disk holds something and `options.force` is not set, is too small, or fails.
    pub async fn format(disk: &Arc<dyn Disk>, env: &Env, options: &FormatOptions) -> Result<PoolInfo, LogError> {
        crate::pool::format(disk, env, options).await
    }

    /// Opens the pool on the disk: recovers what was committed, gives the applier what is newer than its checkpoint, and
    /// starts the log's tasks. Where recovery finds damage in what had been acknowledged, the log is read-only: see the report.
    ///
    /// # Errors
    /// [`LogError::Open`] when the disk holds no pool that can be read.
    pub async fn open(
        disk: Arc<dyn Disk>,
        env: Env,
        options: LogOptions,
        applier: Arc<dyn Applier>,
    ) -> Result<(Log, RecoveryReport), LogError> {
        crate::recover::open(disk, env, options, applier).await
    }

    /// What one request may ask for.
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

    /// Bytes that the record at `location` takes, for [`Log::credit`] and [`Log::retire`].
    pub fn footprint(location: &Location) -> u64 {
        record_bytes(location.head_len, location.body_len)
    }

    /// Room for a batch of `bytes` (heads and bodies), on disk and in the budget; waits for the budget at most `wait`.
    ///
    /// # Errors
    /// [`LogError::Full`] at once, [`LogError::Busy`] after `wait`, [`LogError::TooLarge`], [`LogError::Failed`].
    pub async fn reserve(&self, bytes: u64, priority: Priority, wait: Duration) -> Result<Reservation, LogError> {
        self.shared.room.acquire(&self.shared.latch, bytes, priority, wait).await
    }

    /// Appends a batch. Does not block: LSNs are assigned in call order, now. The batch commits whether or not the ticket is awaited.
    ///
    /// # Errors
    /// [`LogError::TooLarge`] when the batch is beyond [`Log::limits`], [`LogError::Failed`], [`LogError::Closed`]: nothing of
    /// it was accepted then.
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
        Ok(Ticket { first_lsn, outcome })
    }

    /// How many bytes the next chunk of a body should have, of which `left` bytes are to come and a chunk takes `most`: what fills the end of
    /// an extent, or as much as it can.
    pub fn chunk_bytes(&self, left: u64, most: usize) -> usize {
        self.shared.bodies.best_bytes(left, most.min(self.shared.chunk_bytes_max))
    }

    /// Memory for a chunk of up to `capacity` bytes. Reserve room for it first: that is what bounds it.
    ///
    /// # Errors
    /// [`LogError::TooLarge`] when `capacity` is beyond [`Log::limits`].
    pub async fn chunk(&self, capacity: usize) -> Result<ChunkBuf, LogError> {
        if capacity > self.shared.chunk_bytes_max {
            let max = self.shared.chunk_bytes_max;
            return Err(LogError::TooLarge(format!("a chunk of {capacity} bytes; at most {max}")));
        }
        let mut buf = self.shared.disk.buffer(BLOCK + capacity.next_multiple_of(BLOCK)).await;
        buf.set_len(BLOCK);
        Ok(ChunkBuf { buf, capacity })
    }

    /// Writes a chunk. It is garbage until a record that names its location has been committed, and may be recycled before that
    /// unless `Applier::chunk_is_live` vouches for it. Not flushed: the flush of that commit covers it. `room` must cover the
    /// chunk; even if this future is dropped, what it holds is not given back before the disk is done with the chunk.
    ///
    /// # Errors
    /// [`LogError::TooLarge`] for a head beyond [`Log::limits`], [`LogError::Full`], [`LogError::Failed`].
    pub async fn write_chunk(&self, room: &Reservation, head: Bytes, chunk: ChunkBuf) -> Result<Location, LogError> {
        write_chunk(&self.shared, room, head, chunk).await
    }

    /// Keeps an extent from being recycled while the pin is held; `None` when it is already.
    pub fn pin(&self, extent: u32, epoch: u64) -> Option<ExtentPin> {
        self.shared.extents.pin(extent, epoch)
    }

    /// Bytes `range` of the body of the record at `location`, verified.
    ///
    /// # Errors
    /// [`LogError::Moved`] when the extent has been recycled: look the record up again. [`LogError::Damaged`], [`LogError::Read`].
    pub async fn read(&self, location: Location, range: Range<u32>) -> Result<Bytes, LogError> {
        self.read_of(location, range, &|_| true).await
    }

    /// As [`Log::read`], of a record whose head `mine` knows: another one's bytes are damage, however whole they are.
    ///
    /// # Errors
    /// As there.
    pub async fn read_of(
        &self,
        location: Location,
        range: Range<u32>,
        mine: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> Result<Bytes, LogError> {
        crate::read::read(&self.shared, location, range, mine).await
    }

    /// The error for a record that was [`LogError::Moved`] and that the layer above, which has looked it up again since, still has at
    /// `location`: before an extent is recycled, whatever is live in it has been applied at its new place. Counted as damage.
    pub fn lost(&self, location: &Location) -> LogError {
        crate::read::lost(&self.shared, location)
    }

    /// The number of the opening that has committed the record `lsn`, as [`crate::History`] knows it; 0 when that is not known.
    pub fn committed_by(&self, lsn: Lsn) -> u64 {
        crate::history::committed_by(&self.shared.extents.with(|table| table.lineage), lsn)
    }

    /// The number of this opening, if it takes writes: what [`crate::History::newest`] says from the first that it writes on.
    pub fn opening(&self) -> u64 {
        self.shared.extents.with(|table| table.lineage.openings().next().map_or(0, |opening| opening.id))
    }

    /// Counts bytes of an extent as live. Called by the applier.
    pub fn credit(&self, extent: u32, epoch: u64, bytes: u64) {
        self.shared.extents.credit(extent, epoch, bytes as i64);
    }

    /// Counts bytes of an extent as dead. Called by the applier.
    pub fn retire(&self, extent: u32, epoch: u64, bytes: u64) {
        self.shared.extents.credit(extent, epoch, -(bytes as i64));
    }

    /// Live bytes by extent.
    pub fn usage(&self) -> Vec<ExtentUsage> {
        self.shared.extents.usage()
    }

    /// Makes everything that has been applied, or is being applied, durable and returns the LSN up to which that is.
    ///
    /// # Errors
    /// [`LogError::Failed`] when the log cannot.
    pub async fn flush(&self) -> Result<Lsn, LogError> {
        let target = self.shared.applying.load(SeqCst);
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

    /// The state, and when it changes.
    pub fn watch(&self) -> watch::Receiver<LogState> {
        self.shared.latch.watch()
    }

    /// What the pool is.
    pub fn info(&self) -> PoolInfo {
        PoolInfo::from(&self.shared.pool)
    }

    /// Extents by state and kind.
    pub fn extents(&self) -> ExtentCounts {
        self.shared.extents.counts()
    }

    /// What the log says about itself.
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
            applied_lsn: *shared.applied.borrow(),
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
            heal: shared.mends.status(shared.healed.status()),
            compaction: shared.compaction.status(metrics.frame_bytes.load(Relaxed) + metrics.chunk_bytes.load(Relaxed)),
            scrub: shared.scrub.status(),
            usage: shared.extents.usage(),
        }
    }

    /// Begins a pass of the scrub, or ends the one that is going on. What comes of it is in the status.
    ///
    /// # Errors
    /// [`LogError::Closed`].
    pub fn scrub(&self, wish: ScrubWish) -> Result<(), LogError> {
        if self.shared.latch.state() == LogState::Closed {
            return Err(LogError::Closed);
        }
        self.shared.scrub.wishes.add(wish);
        Ok(())
    }

    /// Commits what was accepted, flushes, seals what is open so that the next start reads footers only, and stops the tasks.
    ///
    /// # Errors
    /// [`LogError::Failed`] when the log has failed before or fails now.
    pub async fn close(&self) -> Result<(), LogError> {
        let shared = &self.shared;
        shared.background.stop().await;
        shared.queue.close();
        let mut ended = shared.ended.subscribe();
        // The sender is in `shared`: it cannot have gone.
        let _ = ended.wait_for(|ended| *ended).await;
        if shared.latch.state() == LogState::Closed {
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
