//! Body extents: chunks of large bodies, written concurrently as they arrive.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::BLOCK;
use tokio::sync::{SemaphorePermit, oneshot};

use crate::bodies::{
    Bodies, ChunkBuf, ChunkEntry, FRONT_BYTES, Lane, Lanes, OpenBody, Placed, Progress, REST_BYTES_MIN,
    chunk_head_bytes_max,
};
use crate::extents::{TakeError, is_no_space};
use crate::format::{
    ExtentId, ExtentKind, FrameHeader, FrameKind, RecordHeader, fill_record_front, footer_entry_bytes,
};
use crate::io::WriteError;
use crate::reserve::{FREED_WAIT, HeldRoom};
use crate::seal::Seal;
use crate::shared::Shared;
use crate::{Location, LogError, Priority, Reservation};

/// Number of places tried for a chunk when writes fail.
const PLACES_MAX: u32 = 3;
/// Longest wait of a chunk for a place while compaction keeps freeing extents. Others may take each
/// of them.
const PLACE_WAIT: Duration = Duration::from_secs(30);

/// Why a chunk was not written.
enum NotWritten {
    Log(LogError),
    /// The disk refused the write at this place.
    Disk {
        at: u64,
        data: Bytes,
        error: std::io::Error,
    },
}

impl Bodies {
    /// Waits for all chunk writes and seals what is open.
    pub(crate) async fn close(&self, shared: &Arc<Shared>) {
        let all = self.writes.acquire_many(self.writes_max as u32).await;
        let lanes = std::mem::take(&mut *self.lanes.lock().await);
        for lane in lanes.open.into_iter().chain(lanes.rest) {
            if let Some(seal) = lane.open.finish(true) {
                // `seal` has already closed the latch.
                let _ = shared.seal(seal).await;
            }
        }
        drop(all);
    }

    /// Seals the open extents that have no space for a chunk of the largest size, if `is_worth`
    /// says so for an extent and its remaining bytes. In a full pool no chunk opens another extent,
    /// and compaction empties only sealed ones.
    pub(crate) async fn seal_spent(&self, shared: &Arc<Shared>, is_worth: impl Fn(&ExtentId, u64) -> bool) {
        let chunk = FRONT_BYTES + shared.options.chunk_bytes_max as u64;
        let spent: Vec<_> = {
            let lanes = self.lanes.lock().await;
            let spent = |lane: &&Lane| {
                let room = lane.room(shared.pool.extent_bytes, 0);
                room < chunk && is_worth(&lane.open.id, room)
            };
            lanes.all().filter(spent).map(|lane| lane.open.clone()).collect()
        };
        for open in spent {
            self.leave(shared, &open).await;
        }
    }

    /// Stops placing chunks in an extent. The extent is sealed when its pending writes have ended.
    async fn leave(&self, shared: &Arc<Shared>, open: &Arc<OpenBody>) {
        let mut lanes = self.lanes.lock().await;
        lanes.open.retain(|lane| !Arc::ptr_eq(&lane.open, open));
        if lanes.rest.take_if(|lane| Arc::ptr_eq(&lane.open, open)).is_some() {
            self.rest_bytes.store(0, SeqCst);
        }
        if let Some(seal) = open.finish(true) {
            spawn_seal(shared, seal);
        }
    }

    /// Assigns a place to a chunk, in order. Opens another extent if the open ones are full, or
    /// busy and below the limit.
    async fn place(
        &self,
        shared: &Arc<Shared>,
        len: u64,
        entry_bytes: u64,
        priority: Priority,
    ) -> Result<Placed, LogError> {
        let extent_bytes = shared.pool.extent_bytes;
        let mut guard = self.lanes.lock().await;
        let Lanes { open: lanes, rest } = &mut *guard;
        let room = |lane: &Lane| lane.room(extent_bytes, 0);
        let fits = |lane: &Lane| lane.room(extent_bytes, entry_bytes) >= len;
        if let Some(mut lane) = rest.take_if(|lane| fits(lane)) {
            let placed = lane.place(len, entry_bytes, false);
            self.keep_rest(shared, rest, lane, room);
            return Ok(placed);
        }
        let full = lanes.iter().position(|lane| !fits(lane));
        let idlest = lanes.iter().enumerate().filter(|(_, lane)| fits(lane)).map(|(i, lane)| (lane.load(), i)).min();
        let may_open = full.is_some() || lanes.len() < self.lanes_max;
        let lane = match idlest {
            Some((load, i)) if load == 0 || !may_open => i,
            other => match self.open(shared, priority, other.is_some()).await {
                Ok(fresh) if lanes.len() < self.lanes_max => {
                    lanes.push(fresh);
                    lanes.len() - 1
                }
                Ok(fresh) => {
                    let i = full.unwrap_or(0);
                    let full = std::mem::replace(&mut lanes[i], fresh);
                    self.keep_rest(shared, rest, full, room);
                    i
                }
                Err(error) => match other {
                    Some((_, i)) => i,
                    None => return Err(error),
                },
            },
        };
        Ok(lanes[lane].place(len, entry_bytes, self.in_order))
    }

    /// Keeps a lane without space for large chunks for smaller ones, in place of one with less
    /// space. Seals the lane that is not kept.
    fn keep_rest(&self, shared: &Arc<Shared>, rest: &mut Option<Lane>, lane: Lane, room: impl Fn(&Lane) -> u64) {
        let kept = rest.as_ref().map_or(REST_BYTES_MIN, |kept| room(kept) + 1);
        let spent = if self.keeps_rest && room(&lane) >= kept { rest.replace(lane) } else { Some(lane) };
        if let Some(seal) = spent.and_then(|lane| lane.open.finish(true)) {
            spawn_seal(shared, seal);
        }
        let left = rest.as_ref().map_or(0, |lane| room(lane).saturating_sub(FRONT_BYTES) / BLOCK as u64 * BLOCK as u64);
        self.rest_bytes.store(left as usize, SeqCst);
    }

    /// Takes an extent into use. `optional`: another lane is open, so this never waits.
    async fn open(&self, shared: &Arc<Shared>, priority: Priority, optional: bool) -> Result<Lane, LogError> {
        let zone = match &self.zones {
            Some(zones) if optional => Some(zones.clone().try_acquire_owned().map_err(|_| LogError::Full)?),
            Some(zones) => Some(zones.clone().acquire_owned().await.map_err(|_| LogError::Closed)?),
            None => None,
        };
        if !shared.room.body_may_grow(priority).await {
            return Err(LogError::Full);
        }
        let taken = shared.extents.take(ExtentKind::Body, shared.queue.last_lsn() + 1, priority).await;
        let id = taken.map_err(TakeError::into_log_error)?;
        let progress =
            Progress { in_flight: 0, entries: Vec::new(), data_end: BLOCK as u64, full: false, taken: false, zone };
        let open =
            OpenBody { id, seed: id.seed(), start: shared.extents.start(id.extent), progress: Mutex::new(progress) };
        Ok(Lane { open: Arc::new(open), at: BLOCK as u64, entry_bytes: 0, last: None })
    }
}

fn spawn_seal(shared: &Arc<Shared>, seal: Seal) {
    let shared2 = shared.clone();
    shared.spawn("log-seal-body", async move {
        // `seal` has already closed the latch.
        let _ = shared2.seal(seal).await;
    });
}

/// A chunk that is being written: completes with its location. Dropping it does not end the write:
/// the memory, the budget and the place of the chunk stay in use until the disk has finished.
#[derive(Debug)]
pub struct PendingChunk(oneshot::Receiver<Result<Location, LogError>>);

impl PendingChunk {
    /// Begins to write a chunk, in a task of its own: a caller that does not poll must not hold up
    /// others.
    pub(crate) fn begin(shared: &Arc<Shared>, room: &Reservation, head: Bytes, chunk: ChunkBuf) -> Self {
        let (answer, answered) = oneshot::channel();
        let refused = match shared.latch.check() {
            Ok(()) if head.len() > chunk_head_bytes_max(chunk.len()) => {
                Some(LogError::TooLarge(format!("a chunk's head of {} bytes", head.len())))
            }
            checked => checked.err(),
        };
        if let Some(e) = refused {
            // The receiver is below.
            let _ = answer.send(Err(e));
            return Self(answered);
        }
        let (held, task) = (room.held.clone(), shared.clone());
        shared.spawn("log-chunk", async move {
            // If the caller has gone, the chunk is garbage.
            let _ = answer.send(write_in_task(&task, head, chunk, held).await);
        });
        Self(answered)
    }

    /// The outcome, if it is there. It is given once.
    pub fn try_outcome(&mut self) -> Option<Result<Location, LogError>> {
        match self.0.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(LogError::Closed)),
            Ok(outcome) => Some(outcome),
        }
    }
}

impl Future for PendingChunk {
    type Output = Result<Location, LogError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // A missing answer means that the runtime is stopping.
        Pin::new(&mut self.0).poll(cx).map(|outcome| outcome.unwrap_or(Err(LogError::Closed)))
    }
}

async fn write_in_task(
    shared: &Arc<Shared>,
    head: Bytes,
    chunk: ChunkBuf,
    held: HeldRoom,
) -> Result<Location, LogError> {
    let mut chunk = chunk;
    let mut tries = 0;
    loop {
        let (slot, placed) = place(shared, &chunk, head.len(), held.priority()).await?;
        let open = placed.open.clone();
        let outcome = write_placed(shared, placed, &head, chunk).await;
        if let Err(NotWritten::Disk { .. }) = &outcome {
            shared.bodies.leave(shared, &open).await;
        }
        let seal = {
            let mut progress = open.progress.lock();
            assert!(progress.in_flight > 0, "a chunk was not counted");
            progress.in_flight -= 1;
            drop(progress);
            open.finish(false)
        };
        if let Some(seal) = seal {
            spawn_seal(shared, seal);
        }
        let (at, data, error) = match outcome {
            Ok(location) => return Ok(location),
            Err(NotWritten::Log(error)) => return Err(error),
            Err(NotWritten::Disk { at, data, error }) => (at, data, error),
        };
        // No record refers to the chunk yet, so it can be written elsewhere.
        shared.metrics.writes_elsewhere.fetch_add(1, Relaxed);
        let len = data.len().next_multiple_of(BLOCK) as u64;
        shared.extents.suspect(open.id.extent, open.id.epoch, (at, len));
        tracing::warn!(extent = open.id.extent, at, %error, "a chunk write failed; writing the chunk elsewhere");
        if is_no_space(&error) {
            // As with a thinly provisioned device that is full: deletes and reads continue.
            return Err(LogError::Full);
        }
        tries += 1;
        if tries == PLACES_MAX {
            shared.io.give_up(&error);
            return Err(shared.latch.check().err().unwrap_or(LogError::Closed));
        }
        // Released first, because the buffer pool is bounded.
        let body = data[BLOCK..].to_vec();
        drop((data, slot));
        let mut buf = shared.disk.buffer(BLOCK + body.len().next_multiple_of(BLOCK)).await;
        buf.set_len(BLOCK);
        buf.put(&body);
        chunk = ChunkBuf { buf, capacity: body.len() };
    }
}

/// Finds a place for a chunk, and its turn among the pending writes.
async fn place<'a>(
    shared: &'a Arc<Shared>,
    chunk: &ChunkBuf,
    head_len: usize,
    priority: Priority,
) -> Result<(SemaphorePermit<'a>, Placed), LogError> {
    let len = (BLOCK + chunk.len().next_multiple_of(BLOCK)) as u64;
    let entry_bytes = footer_entry_bytes(head_len) as u64;
    let until = shared.env.now() + PLACE_WAIT;
    loop {
        let freed = std::pin::pin!(shared.extents.freed());
        let Ok(slot) = shared.bodies.writes.acquire().await else { return Err(LogError::Closed) };
        match shared.bodies.place(shared, len, entry_bytes, priority).await {
            Ok(placed) => return Ok((slot, placed)),
            Err(LogError::Full) if shared.room.may_free(priority) => {}
            Err(error) => return Err(error),
        }
        // Compaction may need the slot to free an extent.
        drop(slot);
        let left = until.saturating_sub(shared.env.now()).min(FREED_WAIT);
        if left.is_zero() || shared.env.timeout(left, freed).await.is_none() {
            return Err(LogError::Full);
        }
    }
}

async fn write_placed(shared: &Shared, placed: Placed, head: &Bytes, chunk: ChunkBuf) -> Result<Location, NotWritten> {
    let Placed { open, at, mut turn } = placed;
    let mut buf = chunk.buf;
    let body_len = (buf.len() - BLOCK) as u32;
    let head_len = head.len() as u32;
    assert!(head.len() <= chunk_head_bytes_max(body_len as usize), "the head of a chunk of {} bytes", head.len());
    let front_len = RecordHeader::body_start(head_len, body_len) as usize;
    let payload_start = BLOCK - front_len;
    let offset = at as u32 + payload_start as u32;
    {
        let (front, body) = buf.split_at_mut(BLOCK);
        front[..payload_start].fill(0);
        let header = RecordHeader { lsn: 0, version: 0, moved: false, head_len, body_len };
        fill_record_front(&mut front[payload_start..], open.seed, offset, &header, head, body);
        let frame = FrameHeader {
            kind: FrameKind::Chunk,
            copy: false,
            id: open.id,
            offset: at as u32,
            first_lsn: 0,
            last_lsn: 0,
            prev_lsn: 0,
            durable_lsn: 0,
            min_version: 0,
            prev_checksum: 0,
            record_count: 1,
            payload_start: payload_start as u32,
            payload_len: front_len as u32 + body_len,
            checked_len: front_len as u32,
            payload_checksum: FrameHeader::payload_crc(open.seed, at as u32, &front[payload_start..]),
        };
        frame.encode(front);
    }
    buf.pad();
    let data = buf.freeze();
    let len = data.len() as u64;
    if let Some(turn) = &mut turn {
        turn.wait().await;
    }
    let written = match shared.extents.placement().in_order() {
        // A zone cannot be written behind a hole.
        true => shared.io.write(open.start + at, data.clone()).await.map_err(WriteError::Log),
        false => shared.io.try_write(open.start + at, data.clone()).await,
    };
    drop(turn);
    match written {
        Ok(()) => {}
        Err(WriteError::Disk(error)) => {
            let body = data.slice(..BLOCK + body_len as usize);
            return Err(NotWritten::Disk { at, data: body, error });
        }
        // No record refers to the chunk yet, so nothing of this request was accepted.
        Err(WriteError::Log(_)) => {
            return Err(NotWritten::Log(shared.latch.check().err().unwrap_or(LogError::Closed)));
        }
    }
    // Before the number that the committer looks at.
    shared.extents.durable().wrote(open.id.extent, open.id.epoch, at..at + len);
    shared.chunks_written.fetch_add(1, SeqCst);
    shared.metrics.chunks.fetch_add(1, Relaxed);
    shared.metrics.chunk_bytes.fetch_add(len, Relaxed);
    {
        let mut progress = open.progress.lock();
        assert!(progress.in_flight > 0 && !progress.taken, "a chunk was written to a sealed extent");
        progress.data_end = progress.data_end.max(at + len);
        progress.entries.push(ChunkEntry { offset, body_len, head: head.clone() });
    }
    shared.extents.wrote(open.id.extent, open.id.epoch, at + len, 0, u64::MAX);
    Ok(Location { extent: open.id.extent, epoch: open.id.epoch, offset, head_len, body_len })
}
