//! Open body extents, and the placement of chunks in them.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{AlignedBuf, BLOCK};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::format::{
    ExtentId, ExtentKind, FRAME_HEADER, FooterEntry, RECORD_HEADER, Seed, check_count, footer_bytes_max,
};
use crate::placement::Placement;
use crate::seal::{FooterBuilder, Seal};

/// The largest head of a chunk of `body_len` bytes. Frame header, record header, head and checksums
/// share the block before the body.
pub(crate) fn chunk_head_bytes_max(body_len: usize) -> usize {
    BLOCK - FRAME_HEADER - RECORD_HEADER - 4 * check_count(body_len as u32)
}

/// The least free space for which an extent is kept open for small chunks, in bytes.
pub(crate) const REST_BYTES_MIN: u64 = 16 << 10;
/// Overhead of a chunk in bytes: the block before its body, and at most as much for its footer
/// entry.
pub(crate) const FRONT_BYTES: u64 = 2 * BLOCK as u64;
/// The fewest extents of a pool that keeps an extent open for small chunks.
pub(crate) const REST_EXTENTS_MIN: u32 = 16;

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

pub(crate) struct ChunkEntry {
    pub(crate) offset: u32,
    pub(crate) body_len: u32,
    pub(crate) head: Bytes,
}

pub(crate) struct Progress {
    pub(crate) in_flight: u32,
    pub(crate) entries: Vec<ChunkEntry>,
    pub(crate) data_end: u64,
    /// Set when the log places no more chunks here.
    pub(crate) full: bool,
    /// Set when the sealing task has taken the extent.
    pub(crate) taken: bool,
    /// Permit for an open zone.
    pub(crate) zone: Option<OwnedSemaphorePermit>,
}

pub(crate) struct OpenBody {
    pub(crate) id: ExtentId,
    pub(crate) seed: Seed,
    pub(crate) start: u64,
    pub(crate) progress: Mutex<Progress>,
}

/// An extent in which chunks are placed.
pub(crate) struct Lane {
    pub(crate) open: Arc<OpenBody>,
    pub(crate) at: u64,
    pub(crate) entry_bytes: u64,
    /// Resolves when the last placed chunk has been written.
    pub(crate) last: Option<oneshot::Receiver<()>>,
}

/// A chunk's place.
pub(crate) struct Placed {
    pub(crate) open: Arc<OpenBody>,
    pub(crate) at: u64,
    pub(crate) turn: Option<Turn>,
}

/// Turn of a chunk where chunks must reach the disk in the order of their places. Dropping it
/// passes the turn to the next chunk. If the write failed, the latch is closed by then and the next
/// chunk is not written.
pub(crate) struct Turn {
    pub(crate) before: Option<oneshot::Receiver<()>>,
    _passed_on: oneshot::Sender<()>,
}

impl Turn {
    pub(crate) async fn wait(&mut self) {
        if let Some(before) = self.before.take() {
            // An error means that the sender was dropped, which passes the turn too.
            let _ = before.await;
        }
    }
}

/// The open body extents.
#[derive(Default)]
pub(crate) struct Lanes {
    /// One lane, or a few on zones.
    pub(crate) open: Vec<Lane>,
    /// A lane that had no space for a large chunk, kept for smaller ones. Without it, extents of
    /// mostly large chunks would waste half a large chunk each on average.
    pub(crate) rest: Option<Lane>,
}

impl Lanes {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Lane> {
        self.open.iter().chain(&self.rest)
    }
}

/// See [`Lanes`].
pub(crate) struct Bodies {
    pub(crate) lanes: tokio::sync::Mutex<Lanes>,
    pub(crate) lanes_max: usize,
    pub(crate) keeps_rest: bool,
    /// The open body extents; see [`Lanes`].
    pub(crate) rest_bytes: AtomicUsize,
    pub(crate) in_order: bool,
    /// Bytes of body that exactly fill the rest of the kept extent. 0 if there is none, or if a
    /// writer already prepares a chunk for it.
    pub(crate) zones: Option<Arc<Semaphore>>,
    pub(crate) writes: Semaphore,
    pub(crate) writes_max: usize,
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

    /// Best length of the next chunk of a body with `left` remaining bytes and a limit of `most`.
    /// The first caller gets the length that fills the end of an extent, others the longest
    /// possible.
    pub(crate) fn best_bytes(&self, left: u64, most: usize) -> usize {
        let all = most.min(usize::try_from(left).unwrap_or(most));
        let taken = self.rest_bytes.fetch_update(SeqCst, SeqCst, |rest| (1..all).contains(&rest).then_some(0));
        taken.unwrap_or(all)
    }

    /// The chunks that have been written to an extent, if it is open.
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
}

impl Lane {
    /// Assigns the next place to a chunk, and its turn if chunks must be written in order.
    pub(crate) fn place(&mut self, len: u64, entry_bytes: u64, in_order: bool) -> Placed {
        debug_assert!(len.is_multiple_of(BLOCK as u64), "a chunk takes whole blocks");
        let at = self.at;
        self.at += len;
        self.entry_bytes += entry_bytes;
        {
            let mut progress = self.open.progress.lock();
            assert!(!progress.full && !progress.taken, "a chunk is placed in an extent that takes no more");
            progress.in_flight += 1;
        }
        let turn = in_order.then(|| {
            let (passed_on, done) = oneshot::channel();
            Turn { before: self.last.replace(done), _passed_on: passed_on }
        });
        Placed { open: self.open.clone(), at, turn }
    }

    /// Bytes left for chunks beside a footer with `entry_bytes` more.
    pub(crate) fn room(&self, extent_bytes: u64, entry_bytes: u64) -> u64 {
        let end = self.at + footer_bytes_max(self.entry_bytes + entry_bytes) + BLOCK as u64;
        extent_bytes.saturating_sub(end)
    }

    /// Number of chunks being written.
    pub(crate) fn load(&self) -> u32 {
        self.open.progress.lock().in_flight
    }
}

impl OpenBody {
    /// The seal of the extent, once all its chunks are written and it accepts no more.
    pub(crate) fn finish(&self, full: bool) -> Option<Seal> {
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

/// A chunk that has been written to an open extent.
pub(crate) struct WrittenChunk {
    /// Offset of its record.
    pub(crate) offset: u32,
    pub(crate) head: Bytes,
}

impl WrittenChunk {
    /// Offset of its frame: at most a block before its record, never equal to it.
    pub(crate) fn at(&self) -> u64 {
        (u64::from(self.offset).max(1) - 1) / BLOCK as u64 * BLOCK as u64
    }
}
