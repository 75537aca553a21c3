//! The committer: one task that turns queued batches into frames, with one write or flush in flight
//! at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use steadfast_disk::{AlignedBuf, BLOCK, BufPool};
use steadfast_flow::{BoxFuture, has_fault};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::commit::{Answer, ToApply};
use crate::commit::{Pending, Queue};
use crate::extents::TakeError;
use crate::format::{ExtentId, ExtentKind, FRAME_HEADER};
use crate::frame::{BuiltFrame, FrameBuilder, OpenCommit};
use crate::gather::Gather;
use crate::prefill::Prefill;
use crate::shared::Shared;
use crate::{Durability, LogError, Lsn, Priority, Reservation, Sabotage};

/// Number of waiting batches that wakes the committer during a flush, so that it wakes less often.
const WAKE_BATCHES: usize = 16;

struct Prepared {
    id: ExtentId,
    prefill: Arc<Prefill>,
}

pub(crate) struct Committer {
    shared: Arc<Shared>,
    open: OpenCommit,
    prefill: Arc<Prefill>,
    next: Option<oneshot::Receiver<Result<Prepared, TakeError>>>,
    sealing: Arc<Semaphore>,
    buffers: BufPool,
    spare: Option<AlignedBuf>,
    building: Building,
    applier: mpsc::Sender<ToApply>,
    gather: Gather,
    /// LSN of the last record written.
    last_lsn: Lsn,
    durable_lsn: Lsn,
    /// Number of chunks written when the last flush began.
    chunks_flushed: u64,
    /// Time at which the oldest unflushed batch was accepted.
    unflushed_since: Option<Duration>,
}

/// The frame being filled, with its batches.
#[derive(Default)]
struct Building {
    frame: Option<FrameBuilder>,
    waiters: Vec<(Lsn, Answer)>,
    reservations: Vec<Reservation>,
    sync: bool,
    chunks: u64,
    oldest: Option<Duration>,
    /// The next batch does not fit into this frame.
    closed: bool,
    /// The next batch does not fit into this extent.
    roll: bool,
}

enum Step {
    Frame,
    Flush,
    Roll,
    Close,
}

/// The log cannot continue. The error answers the callers whose frame was in flight.
struct Stopped(LogError);

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>, open: OpenCommit, durable_lsn: Lsn, applier: mpsc::Sender<ToApply>) -> Self {
        let frame = shared.frame_bytes_max;
        let prefill = Prefill::start(&shared, open.start, open.at);
        if open.at == BLOCK as u64 {
            shared.compaction.moved.begun(&open.id);
        }
        Self {
            gather: Gather::new(shared.options.gather),
            // One buffer in flight, one being filled, and one not yet released by the driver. Size
            // classes round up by a quarter.
            buffers: BufPool::new(4 * frame),
            spare: None,
            building: Building::default(),
            next: None,
            sealing: Arc::new(Semaphore::new(1)),
            last_lsn: durable_lsn,
            durable_lsn,
            chunks_flushed: 0,
            unflushed_since: None,
            shared,
            open,
            prefill,
            applier,
        }
    }

    pub(crate) async fn run(mut self) {
        self.publish_room();
        let reason = loop {
            if let Err(error) = self.shared.latch.check() {
                break error;
            }
            let done = match self.step().await {
                Step::Frame => self.write_frame().await,
                Step::Flush => self.flush().await,
                Step::Roll => self.roll().await,
                Step::Close => break LogError::Closed,
            };
            if let Err(Stopped(error)) = done {
                break error;
            }
        };
        self.stop(reason).await;
    }

    /// Waits for work.
    async fn step(&mut self) -> Step {
        loop {
            if self.spare.is_none() {
                self.spare = Some(self.buffers.get(self.shared.frame_bytes_max).await);
            }
            let queue = &self.shared.clone().queue;
            queue.wake_at(1);
            self.fill();
            let work = queue.work();
            if self.building.frame.is_some() {
                let hurry = self.building.closed || !self.building.sync || work.closing || self.flush_is_due();
                if !hurry && let Some((target, limit)) = self.gather.plan(self.building.waiters.len()) {
                    self.gather(target, limit).await;
                }
                return Step::Frame;
            }
            if self.building.roll {
                queue.roll_taken();
                return Step::Roll;
            }
            if work.roll {
                queue.roll_taken();
                if self.shared.extents.spare().all() > 0 {
                    return Step::Roll;
                }
                // Batches that had to stay out of this extent are taken next.
                continue;
            }
            let Some(since) = self.unflushed_since else {
                if work.flush {
                    queue.flush_taken();
                    self.shared.durable.send_replace(self.durable_lsn);
                }
                if work.closing {
                    return Step::Close;
                }
                let mut latch = self.shared.latch.watch();
                tokio::select! {
                    biased;
                    () = queue.wake.notified() => {}
                    _ = latch.changed() => {}
                }
                if self.shared.latch.check().is_err() {
                    return Step::Flush;
                }
                continue;
            };
            if work.closing || self.flush_is_due() {
                return Step::Flush;
            }
            let due = since + self.shared.options.async_window;
            let now = self.shared.env.now();
            tokio::select! {
                biased;
                () = queue.wake.notified() => {}
                () = self.shared.env.sleep(due.saturating_sub(now)) => {}
            }
        }
    }

    /// Whether written data must be flushed now: a flush was requested, or the window of
    /// asynchronous commits has ended. Also checked before each frame, because saturating clients
    /// always have a batch waiting.
    fn flush_is_due(&self) -> bool {
        let over = |since: Duration| self.shared.env.now() >= since + self.shared.options.async_window;
        self.shared.queue.work().flush || self.unflushed_since.is_some_and(over)
    }

    /// Waits for the expected cohort; see `gather.rs`.
    async fn gather(&mut self, target: usize, limit: Duration) {
        let shared = self.shared.clone();
        shared.metrics.gather_waits.fetch_add(1, Relaxed);
        let mut timer = shared.env.pause(limit);
        let filled = loop {
            let here = self.building.waiters.len();
            if here >= target || self.building.closed {
                break true;
            }
            shared.queue.wake_at(target - here);
            let timeout = tokio::select! {
                biased;
                () = shared.queue.wake.notified() => false,
                () = &mut timer => true,
            };
            self.fill();
            if timeout {
                break self.building.waiters.len() >= target;
            }
        };
        if !filled {
            shared.metrics.gather_timeouts.fetch_add(1, Relaxed);
        }
        self.gather.waited(filled);
    }

    /// Encodes waiting batches until the frame is full.
    fn fill(&mut self) {
        let footer_max = self.shared.footer_bytes_max;
        while !self.building.closed && !self.building.roll {
            let Some((records, entries)) = self.shared.queue.front_bytes() else { return };
            let len = self.building.frame.as_ref().map_or(FRAME_HEADER as u64, FrameBuilder::len) + records;
            let in_extent = self.open.fits(len, entries, footer_max);
            let in_frame = self.building.frame.as_ref().is_none_or(|f| f.has_room(records));
            if !(in_extent && in_frame) {
                self.building.closed = self.building.frame.is_some();
                self.building.roll = !in_extent && self.building.frame.is_none();
                return;
            }
            if self.building.frame.is_none() {
                // Under saturating clients, this is the only point at which the committer can leave
                // the extent.
                if self.shared.queue.work().roll {
                    return;
                }
                let Some(buffer) = self.spare.take() else { return };
                self.building.frame = Some(FrameBuilder::new(buffer, &self.open));
            }
            let Some(pending) = self.shared.queue.pop_if(|_| true) else { return };
            self.add(pending);
        }
    }

    fn add(&mut self, pending: Pending) {
        let Some(frame) = &mut self.building.frame else { return };
        for (lsn, record) in (pending.first_lsn..).zip(pending.batch) {
            frame.push(&mut self.open, lsn, record);
        }
        self.building.chunks = self.building.chunks.max(pending.chunks);
        // A copy elsewhere must never have more than this disk, and the record waits for the copy.
        self.building.sync |= pending.durability == Durability::Sync || self.shared.progress.hold.is_on();
        self.building.oldest.get_or_insert(pending.submitted);
        self.building.waiters.push((pending.first_lsn, pending.answer));
        self.building.reservations.push(pending.reservation);
    }

    async fn write_frame(&mut self) -> Result<(), Stopped> {
        let sabotaged = has_fault(self.shared.options.sabotage, Sabotage::CommitBeforeChunks);
        if self.building.chunks > self.chunks_flushed && !sabotaged {
            // The device may reorder writes. A power cut must not keep a record whose chunks it
            // loses.
            let chunks = self.shared.chunks_written.load(SeqCst);
            self.shared.extents.durable().begin_flush();
            let begun = self.shared.env.now();
            self.shared.io.flush().await.map_err(Stopped)?;
            self.flushed(self.shared.env.now().saturating_sub(begun), chunks);
        }
        let due = self.flush_is_due() && !has_fault(self.shared.options.sabotage, Sabotage::LateFlush);
        let building = std::mem::take(&mut self.building);
        let Some(frame) = building.frame else { return Ok(()) };
        let BuiltFrame { data, disk_offset, last_lsn, min_version, applied } =
            frame.finish(&mut self.open, self.last_lsn, self.durable_lsn, false);
        let len = data.len() as u64;
        self.prefill.claim_until(self.open.at).await;
        let batches = building.waiters.len();
        let chunks = self.shared.chunks_written.load(SeqCst);
        let (io, sync) = (self.shared.io.clone(), building.sync || due);
        if sync {
            self.shared.extents.durable().begin_flush();
        }
        let write: BoxFuture<'static, Result<(), LogError>> = Box::pin(async move {
            if sync { io.write_flush(disk_offset, data).await } else { io.write(disk_offset, data).await }
        });
        if self.spare.is_none() {
            self.spare = self.buffers.try_get(self.shared.frame_bytes_max);
        }
        let begun = self.shared.env.now();
        if let Err(error) = self.drive(write).await {
            answer(building.waiters, &error);
            return Err(Stopped(error));
        }
        let written = self.shared.env.now();
        let metrics = &self.shared.metrics;
        metrics.frames.fetch_add(1, Relaxed);
        metrics.frame_bytes.fetch_add(len, Relaxed);
        metrics.commits.fetch_add(batches as u64, Relaxed);
        metrics.records.fetch_add(applied.len() as u64, Relaxed);
        metrics.group.add(batches as u64);
        self.last_lsn = last_lsn;
        let id = self.open.id;
        self.shared.compaction.moved.wrote(&id, &applied, &*self.shared.applier);
        self.shared.extents.wrote(id.extent, id.epoch, self.open.at, last_lsn, min_version);
        let (durable, frame) = (self.shared.extents.durable(), self.open.at - len..self.open.at);
        if sync {
            durable.wrote_and_flushed(id.extent, id.epoch, frame);
        } else {
            durable.wrote(id.extent, id.epoch, frame);
        }
        // The space is published first, so that admission neither counts the bytes twice nor misses
        // them.
        self.publish_room();
        drop(building.reservations);
        if sync {
            let took = written.saturating_sub(begun);
            self.gather.flushed(batches, self.shared.queue.work().pending + self.building.waiters.len(), took);
            self.flushed(took, chunks);
        } else {
            self.unflushed_since = self.unflushed_since.or(building.oldest);
        }
        self.prepare_next();
        let to_apply = ToApply { applied, waiters: building.waiters, durable: sync, begun, written };
        if self.applier.send(to_apply).await.is_err() {
            // The applier outlives the committer unless it panicked. Then the log must stop.
            let error = std::io::Error::other("the index task has ended");
            return Err(Stopped(self.shared.latch.fail("index", &error)));
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Stopped> {
        if let Err(error) = self.shared.latch.check() {
            return Err(Stopped(error));
        }
        let begun = self.shared.env.now();
        let chunks = self.shared.chunks_written.load(SeqCst);
        self.shared.extents.durable().begin_flush();
        let io = self.shared.io.clone();
        self.drive(Box::pin(async move { io.flush().await })).await.map_err(Stopped)?;
        self.flushed(self.shared.env.now().saturating_sub(begun), chunks);
        Ok(())
    }

    /// Drives an I/O request to completion, encoding batches meanwhile.
    async fn drive(&mut self, mut io: BoxFuture<'static, Result<(), LogError>>) -> Result<(), LogError> {
        let shared = self.shared.clone();
        shared.queue.wake_at(WAKE_BATCHES);
        loop {
            let open = !self.building.closed && !self.building.roll && self.spare_or_frame();
            tokio::select! {
                biased;
                result = &mut io => return result,
                () = shared.queue.wake.notified(), if open => self.fill(),
            }
        }
    }

    fn spare_or_frame(&self) -> bool {
        self.spare.is_some() || self.building.frame.is_some()
    }

    /// Records that all frames written so far are durable.
    fn flushed(&mut self, took: Duration, chunks: u64) {
        self.chunks_flushed = chunks;
        self.shared.metrics.flushed(took);
        self.durable_lsn = self.last_lsn;
        if let Some(since) = self.unflushed_since.take() {
            let lag = self.shared.env.now().saturating_sub(since);
            self.shared.metrics.async_lag_us_max.fetch_max(lag.as_micros() as u64, Relaxed);
        }
        self.shared.queue.flush_taken();
        // Before anything is answered.
        self.shared.extents.durable().flushed(self.durable_lsn);
        self.shared.durable.send_replace(self.durable_lsn);
    }

    fn publish_room(&self) {
        self.shared.room.set_room(self.open.room());
    }

    /// Takes the next extent into use when this one is half full, so that a roll need not wait for
    /// it.
    fn prepare_next(&mut self) {
        if self.next.is_some() || self.open.at < self.open.extent_bytes / 2 {
            return;
        }
        let (tx, rx) = oneshot::channel();
        let (shared, base_lsn) = (self.shared.clone(), self.last_lsn + 1);
        self.shared.spawn("log-prepare", async move {
            let taken = shared.extents.prepare(base_lsn).await;
            let prepared = taken.map(|id| Prepared {
                id,
                prefill: Prefill::start(&shared, shared.extents.start(id.extent), BLOCK as u64),
            });
            // The committer may have stopped.
            let _ = tx.send(prepared);
        });
        self.next = Some(rx);
    }

    /// Continues in the next extent and seals this one in the background.
    async fn roll(&mut self) -> Result<(), Stopped> {
        let mut tries = 0;
        let prepared = loop {
            match self.take_prepared().await {
                Ok(prepared) => break prepared,
                // Compaction requested the roll, and has taken the last extent itself.
                Err(TakeError::Full) if !self.building.roll => return Ok(()),
                // Admission has counted on this extent. Refusing accepted batches would invalidate
                // decisions that depend on them. So wait for compaction, and then stop the log.
                Err(TakeError::Full) if tries < 100 => {
                    tries += 1;
                    self.shared.env.sleep(Duration::from_millis(50)).await;
                }
                Err(TakeError::Full) => {
                    let error = std::io::Error::from(std::io::ErrorKind::StorageFull);
                    return Err(Stopped(self.shared.latch.fail("write", &error)));
                }
                Err(TakeError::Disk(error)) => return Err(Stopped(error)),
            }
        };
        self.building.roll = false;
        let start = self.shared.extents.start(prepared.id.extent);
        self.shared.compaction.moved.begun(&prepared.id);
        let fresh = OpenCommit::new(prepared.id, start, self.open.extent_bytes, self.last_lsn);
        let full = std::mem::replace(&mut self.open, fresh);
        assert!(self.open.id.epoch > full.id.epoch, "a roll leads to a newer extent");
        let prefill = std::mem::replace(&mut self.prefill, prepared.prefill);
        self.shared.room.opened(&self.open.id, self.open.room());
        if full.is_none() {
            return Ok(());
        }
        let Ok(one) = self.sealing.clone().acquire_owned().await else { return Ok(()) };
        let shared = self.shared.clone();
        self.shared.spawn("log-seal", async move {
            prefill.stop().await;
            // `seal` has already closed the latch, and nothing else can be done.
            let _ = shared.seal(full.seal()).await;
            drop(one);
        });
        Ok(())
    }

    async fn take_prepared(&mut self) -> Result<Prepared, TakeError> {
        if let Some(next) = self.next.take() {
            match next.await {
                Ok(Err(TakeError::Full)) => {}
                Ok(other) => return other,
                // A task that ends without an answer belongs to a stopping runtime.
                Err(_) => return Err(TakeError::Full),
            }
        }
        let id = self.shared.extents.take(ExtentKind::Commit, self.last_lsn + 1, Priority::Compaction).await?;
        let prefill = Prefill::start(&self.shared, self.shared.extents.start(id.extent), BLOCK as u64);
        Ok(Prepared { id, prefill })
    }

    async fn stop(mut self, reason: LogError) {
        // None of these batches has been written.
        let refused = self.shared.latch.check().err().unwrap_or(reason);
        answer(std::mem::take(&mut self.building.waiters), &refused);
        refuse_all(&self.shared.queue, &refused);
        self.prefill.stop().await;
        let healthy = self.shared.latch.check().is_ok();
        let all = self.sealing.acquire().await;
        if let Some(Ok(Ok(prepared))) = async { Some(self.next.take()?.await) }.await {
            prepared.prefill.stop().await;
            if healthy {
                // Sealed while empty, so that the next start need not scan for frames.
                let start = self.shared.extents.start(prepared.id.extent);
                let unused = OpenCommit::new(prepared.id, start, self.open.extent_bytes, self.last_lsn);
                let _ = self.shared.seal(unused.seal()).await;
            }
        }
        if healthy && !self.open.is_none() {
            let _ = self.shared.seal(self.open.seal()).await;
        }
        drop(all);
        // The applier ends when it has applied all committed frames.
    }
}

/// Refuses waiting and later batches. Nothing of them has been written.
pub(crate) fn refuse_all(queue: &Queue, error: &LogError) {
    for pending in queue.refuse(error.clone()) {
        answer(vec![(pending.first_lsn, pending.answer)], error);
    }
}

fn answer(waiters: Vec<(Lsn, Answer)>, error: &LogError) {
    for (_, answer) in waiters {
        // The caller may have dropped its ticket.
        let _ = answer.send(Err(error.clone()));
    }
}

/// Refuses the waiting batches when the committer has ended for any reason.
pub(crate) struct Refused(pub(crate) Arc<Shared>);

impl Drop for Refused {
    fn drop(&mut self) {
        if let Err(error) = self.0.latch.check() {
            refuse_all(&self.0.queue, &error);
        }
    }
}

/// Signals that committer and applier have ended for any reason.
pub(crate) struct Ended(pub(crate) Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.ended.send_replace(true);
    }
}
