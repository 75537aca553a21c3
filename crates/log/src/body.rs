//! Body extents: pieces of large bodies, written as they come, many at a time.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{AlignedBuf, BLOCK};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, oneshot};

use crate::extents::{TakeError, is_no_space};
use crate::format::{
    ExtentId, ExtentKind, FRAME_HEADER, FooterEntry, FrameHeader, FrameKind, RECORD_HEADER, RecordHeader, Seed,
    check_count, fill_record_front, footer_bytes_max, footer_entry_bytes,
};
use crate::io::WriteError;
use crate::log::Shared;
use crate::mend::WrittenChunk;
use crate::placement::Placement;
use crate::reserve::{FREED_WAIT, Held};
use crate::seal::{FooterBuilder, Seal};
use crate::{Location, LogError, Priority, Reservation};

/// The largest head of a chunk of `body_len` bytes: frame header, record header, head and checksums share the block before the body.
pub(crate) fn chunk_head_bytes_max(body_len: usize) -> usize {
    BLOCK - FRAME_HEADER - RECORD_HEADER - 4 * check_count(body_len as u32)
}

/// The least room for which an extent is kept open for small chunks, in bytes.
const REST_BYTES_MIN: u64 = 16 << 10;
/// What a chunk takes beside its body: the block before it, and at most as much for its entry in the footer.
const FRONT_BYTES: u64 = 2 * BLOCK as u64;
/// How many places a chunk is tried at that the disk does not take.
const ELSEWHERE_MAX: u32 = 3;
/// The fewest extents of a pool in which one is kept open for that.
const REST_EXTENTS_MIN: u32 = 16;

/// Aligned memory for one chunk, with room for its headers in front.
#[derive(Debug)]
pub struct ChunkBuf {
    pub(crate) buf: AlignedBuf,
    pub(crate) capacity: usize,
}

impl ChunkBuf {
    /// Appends as much of `data` as fits and returns how much that was.
    pub fn put(&mut self, data: &[u8]) -> usize {
        let n = data.len().min(self.room());
        self.buf.put(&data[..n]);
        n
    }

    /// Bytes that may still be added.
    pub fn room(&self) -> usize {
        self.capacity - self.len()
    }

    /// Bytes of body so far.
    pub fn len(&self) -> usize {
        self.buf.len() - BLOCK
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

struct ChunkEntry {
    offset: u32,
    body_len: u32,
    head: Bytes,
}

struct Progress {
    in_flight: u32,
    entries: Vec<ChunkEntry>,
    data_end: u64,
    /// No more chunks will be placed here.
    full: bool,
    /// Handed to the task that seals.
    taken: bool,
    /// Its share of the zones that may be open.
    zone: Option<OwnedSemaphorePermit>,
}

struct OpenBody {
    id: ExtentId,
    seed: Seed,
    start: u64,
    progress: Mutex<Progress>,
}

/// An extent that chunks are placed in.
struct Lane {
    open: Arc<OpenBody>,
    at: u64,
    entry_bytes: u64,
    /// Resolves when the chunk that was placed last has been written.
    last: Option<oneshot::Receiver<()>>,
}

/// A chunk's place.
struct Placed {
    open: Arc<OpenBody>,
    at: u64,
    turn: Option<Turn>,
}

/// A chunk's turn to be written, where chunks must reach the disk in the order of their places. It passes to the next when this is dropped; had the
/// write failed, the latch is closed then, and the next is not written.
struct Turn {
    before: Option<oneshot::Receiver<()>>,
    _passed_on: oneshot::Sender<()>,
}

impl Turn {
    async fn wait(&mut self) {
        if let Some(before) = self.before.take() {
            // An error says that it was dropped, which is the same.
            let _ = before.await;
        }
    }
}

/// Why a chunk was not written.
enum NotWritten {
    Log(LogError),
    /// The disk did not take it at this place.
    Disk {
        at: u64,
        data: Bytes,
        error: std::io::Error,
    },
}

/// The open body extents.
#[derive(Default)]
struct Lanes {
    /// One, or on zones a few.
    open: Vec<Lane>,
    /// One that a large chunk did not fit into: smaller ones do. Without it the ends of extents that are mostly large chunks stay empty, by
    /// half a large chunk each.
    rest: Option<Lane>,
}

impl Lanes {
    fn all(&self) -> impl Iterator<Item = &Lane> {
        self.open.iter().chain(&self.rest)
    }
}

/// See [`Lanes`].
pub(crate) struct Bodies {
    lanes: tokio::sync::Mutex<Lanes>,
    lanes_max: usize,
    keeps_rest: bool,
    /// Bytes of body that just fit into what is left of the extent that is kept; 0 when there is none, or somebody makes a chunk for it.
    rest_bytes: AtomicUsize,
    in_order: bool,
    /// Zones that bodies may have open; `None` for any number.
    zones: Option<Arc<Semaphore>>,
    pub(crate) writes: Semaphore,
    writes_max: usize,
}

impl Bodies {
    pub(crate) fn new(writes_max: usize, placement: &Placement, extents_max: u32) -> Self {
        let writes_max = writes_max.max(1);
        Self {
            lanes: tokio::sync::Mutex::default(),
            lanes_max: placement.body_lanes(extents_max),
            keeps_rest: placement.body_zones().is_none() && extents_max >= REST_EXTENTS_MIN,
            rest_bytes: AtomicUsize::new(0),
            in_order: placement.in_order(),
            zones: placement.body_zones().map(|zones| Arc::new(Semaphore::new(zones))),
            writes: Semaphore::new(writes_max),
            writes_max,
        }
    }

    /// How long the next chunk is best, of a body of which `left` bytes are to come, if `most` is the longest: what fills the end of an
    /// extent, for the first who asks, else as much as there is.
    pub(crate) fn best_bytes(&self, left: u64, most: usize) -> usize {
        let all = most.min(usize::try_from(left).unwrap_or(most));
        let taken = self.rest_bytes.fetch_update(SeqCst, SeqCst, |rest| (1..all).contains(&rest).then_some(0));
        taken.unwrap_or(all)
    }

    /// The chunks that have been written to an extent, if it is an open one.
    pub(crate) async fn written(&self, extent: u32, epoch: u64) -> Option<Vec<WrittenChunk>> {
        let open = {
            let lanes = self.lanes.lock().await;
            let is = |lane: &&Lane| (lane.open.id.extent, lane.open.id.epoch) == (extent, epoch);
            lanes.all().find(is)?.open.clone()
        };
        let progress = open.progress.lock();
        let chunks = progress.entries.iter();
        Some(chunks.map(|entry| WrittenChunk { offset: entry.offset, head: entry.head.clone() }).collect())
    }

    /// Waits for all chunk writes and seals what is open.
    pub(crate) async fn close(&self, shared: &Arc<Shared>) {
        let all = self.writes.acquire_many(self.writes_max as u32).await;
        let lanes = std::mem::take(&mut *self.lanes.lock().await);
        for lane in lanes.open.into_iter().chain(lanes.rest) {
            if let Some(seal) = lane.open.finish(true) {
                // The latch has been told of a failure.
                let _ = shared.seal(seal).await;
            }
        }
        drop(all);
    }

    /// Places nothing more in an extent that a write has failed in; it is sealed when those on their way have come to their end.
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

    /// Gives a chunk its place, in order; opens another extent when those that are open are full, or busy and there may be more.
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
        let room = |lane: &Lane, entry_bytes: u64| {
            let end = lane.at + footer_bytes_max(lane.entry_bytes + entry_bytes) + BLOCK as u64;
            extent_bytes.saturating_sub(end)
        };
        let fits = |lane: &Lane| room(lane, entry_bytes) >= len;
        if let Some(mut lane) = rest.take_if(|lane| fits(lane)) {
            let placed = lane.place(len, entry_bytes, false);
            self.keep_rest(shared, rest, lane, |lane| room(lane, 0));
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
                    self.keep_rest(shared, rest, full, |lane| room(lane, 0));
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

    /// Keeps a lane that has no room for large chunks for smaller ones, in place of one that has less; seals what is not kept.
    fn keep_rest(&self, shared: &Arc<Shared>, rest: &mut Option<Lane>, lane: Lane, room: impl Fn(&Lane) -> u64) {
        let kept = rest.as_ref().map_or(REST_BYTES_MIN, |kept| room(kept) + 1);
        let spent = if self.keeps_rest && room(&lane) >= kept { rest.replace(lane) } else { Some(lane) };
        if let Some(seal) = spent.and_then(|lane| lane.open.finish(true)) {
            spawn_seal(shared, seal);
        }
        let left = rest.as_ref().map_or(0, |lane| room(lane).saturating_sub(FRONT_BYTES) / BLOCK as u64 * BLOCK as u64);
        self.rest_bytes.store(left as usize, SeqCst);
    }

    /// Takes an extent into use. `optional`: there is another one, so nothing is waited for.
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

impl Lane {
    /// Gives a chunk the next place, and its turn where chunks must be written in order.
    fn place(&mut self, len: u64, entry_bytes: u64, in_order: bool) -> Placed {
        let at = self.at;
        self.at += len;
        self.entry_bytes += entry_bytes;
        self.open.progress.lock().in_flight += 1;
        let turn = in_order.then(|| {
            let (passed_on, done) = oneshot::channel();
            Turn { before: self.last.replace(done), _passed_on: passed_on }
        });
        Placed { open: self.open.clone(), at, turn }
    }

    /// Chunks on their way.
    fn load(&self) -> u32 {
        self.open.progress.lock().in_flight
    }
}

impl OpenBody {
    /// What there is to seal, once all its chunks are written and no more will come.
    fn finish(&self, full: bool) -> Option<Seal> {
        let mut progress = self.progress.lock();
        progress.full |= full;
        if !progress.full || progress.in_flight > 0 || progress.taken {
            return None;
        }
        progress.taken = true;
        let mut entries = std::mem::take(&mut progress.entries);
        entries.sort_unstable_by_key(|entry| entry.offset);
        let mut footer = FooterBuilder::default();
        for entry in &entries {
            footer.push(&FooterEntry {
                lsn: 0,
                version: 0,
                moved: false,
                offset: entry.offset,
                body_len: entry.body_len,
                head: &entry.head,
            });
        }
        Some(Seal {
            id: self.id,
            kind: ExtentKind::Body,
            start: self.start,
            data_end: progress.data_end,
            footer_offset: progress.data_end,
            last_checksum: 0,
            prev_lsn: 0,
            footer,
            zone: progress.zone.take(),
        })
    }
}

fn spawn_seal(shared: &Arc<Shared>, seal: Seal) {
    let shared2 = shared.clone();
    shared.spawn("log-seal-body", async move {
        // The latch has been told of a failure.
        let _ = shared2.seal(seal).await;
    });
}

/// Writes a chunk and returns its place. Goes on to the end even if the caller is dropped: its memory, its part of the budget and
/// its place in the extent are in use until the disk has let go of them.
pub(crate) async fn write_chunk(
    shared: &Arc<Shared>,
    room: &Reservation,
    head: Bytes,
    chunk: ChunkBuf,
) -> Result<Location, LogError> {
    shared.latch.check()?;
    let body_len = chunk.len();
    if head.len() > chunk_head_bytes_max(body_len) {
        return Err(LogError::TooLarge(format!("a chunk's head of {} bytes", head.len())));
    }
    let held = room.held.clone();
    let (tx, rx) = oneshot::channel();
    let task = shared.clone();
    // From the first wait on in a task: a caller that does not poll must not hold what others wait for.
    shared.spawn("log-chunk", async move {
        // The caller may be gone: then the chunk is garbage.
        let _ = tx.send(write_in_task(&task, head, chunk, held).await);
    });
    rx.await.unwrap_or(Err(LogError::Closed))
}

async fn write_in_task(shared: &Arc<Shared>, head: Bytes, chunk: ChunkBuf, held: Held) -> Result<Location, LogError> {
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
            open.progress.lock().in_flight -= 1;
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
        // Nothing refers to the chunk yet, so it can go elsewhere.
        shared.metrics.writes_elsewhere.fetch_add(1, Relaxed);
        let len = data.len().next_multiple_of(BLOCK) as u64;
        shared.extents.suspect(open.id.extent, open.id.epoch, (at, len));
        tracing::warn!(extent = open.id.extent, at, %error, "a chunk could not be written; it goes elsewhere");
        if is_no_space(&error) {
            // As when the device beneath gives out space by need: deletes and reads go on.
            return Err(LogError::Full);
        }
        tries += 1;
        if tries == ELSEWHERE_MAX {
            shared.io.give_up(&error);
            return Err(shared.latch.check().err().unwrap_or(LogError::Closed));
        }
        // Let go of first: the pool of buffers is bounded.
        let body = data[BLOCK..].to_vec();
        drop((data, slot));
        let mut buf = shared.disk.buffer(BLOCK + body.len().next_multiple_of(BLOCK)).await;
        buf.set_len(BLOCK);
        buf.put(&body);
        chunk = ChunkBuf { buf, capacity: body.len() };
    }
}

/// Finds a place for a chunk, and its turn among those that are written.
async fn place<'a>(
    shared: &'a Arc<Shared>,
    chunk: &ChunkBuf,
    head_len: usize,
    priority: Priority,
) -> Result<(SemaphorePermit<'a>, Placed), LogError> {
    let len = (BLOCK + chunk.len().next_multiple_of(BLOCK)) as u64;
    let entry_bytes = footer_entry_bytes(head_len) as u64;
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
        if shared.env.timeout(FREED_WAIT, freed).await.is_none() {
            return Err(LogError::Full);
        }
    }
}

async fn write_placed(shared: &Shared, placed: Placed, head: &Bytes, chunk: ChunkBuf) -> Result<Location, NotWritten> {
    let Placed { open, at, mut turn } = placed;
    let mut buf = chunk.buf;
    let body_len = (buf.len() - BLOCK) as u32;
    let head_len = head.len() as u32;
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
        // Behind a hole in a zone nothing can be written any more.
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
        // Nothing refers to the chunk yet: nothing of this request was accepted.
        Err(WriteError::Log(_)) => {
            return Err(NotWritten::Log(shared.latch.check().err().unwrap_or(LogError::Closed)));
        }
    }
    shared.chunks_written.fetch_add(1, SeqCst);
    shared.metrics.chunks.fetch_add(1, Relaxed);
    shared.metrics.chunk_bytes.fetch_add(len, Relaxed);
    {
        let mut progress = open.progress.lock();
        progress.data_end = progress.data_end.max(at + len);
        progress.entries.push(ChunkEntry { offset, body_len, head: head.clone() });
    }
    shared.extents.wrote(open.id.extent, open.id.epoch, at + len, 0, u64::MAX);
    Ok(Location { extent: open.id.extent, epoch: open.id.epoch, offset, head_len, body_len })
}
