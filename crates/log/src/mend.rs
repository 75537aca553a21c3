//! Healing while the log runs: the frames in which readers met damage, and whole extents for the scrub and for compaction.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::BLOCK;
use steadfast_flow::Pace;
use tokio::sync::Notify;

use crate::background::Stop;
use crate::check::{Counts, Window};
use crate::copies::{Bad, Copies, FooterAt, FrameAt, HeaderOf, Heal, Structure, TrailerOf, Whole, read};
use crate::extents::ExtentInfo;
use crate::format::{ExtentId, ExtentKind, FooterBlock, FrameHeader, FrameKind, Superblock, Trailer};
use crate::latch::LogState;
use crate::log::Shared;
use crate::scan::read_piece;
use crate::{HealStatus, Location};

const BLOCK_BYTES: u64 = BLOCK as u64;
/// Places that may wait to be healed. What comes beyond is found again, by the next reader or by the scrub.
const PENDING_MAX: usize = 1024;
/// Bytes looked through at a time for the beginning of a frame.
const BACK_BYTES: u64 = 64 << 10;
/// Places of an extent that are remembered as good on one copy only.
const STUCK_MAX: usize = 256;

/// A record at which a reader met damage: extent, epoch, offset.
type Place = (u32, u64, u32);

#[derive(Default)]
struct Queue {
    waiting: BTreeSet<Place>,
    skipped: u64,
}

/// What readers found damaged and could read from another copy.
#[derive(Default)]
pub(crate) struct Mends {
    queue: Mutex<Queue>,
    wake: Notify,
}

impl Mends {
    /// Has the frame around `location` healed, soon. Does not wait.
    pub(crate) fn ask(&self, location: &Location) {
        let mut queue = self.queue.lock();
        if queue.waiting.len() >= PENDING_MAX {
            queue.skipped += 1;
            return;
        }
        queue.waiting.insert((location.extent, location.epoch, location.offset));
        drop(queue);
        self.wake.notify_one();
    }

    /// Completes the status with what waits.
    pub(crate) fn status(&self, healed: HealStatus) -> HealStatus {
        let queue = self.queue.lock();
        let (pending, pending_max) = (queue.waiting.len() as u64, PENDING_MAX as u64);
        HealStatus { pending, pending_max, skipped: queue.skipped, ..healed }
    }

    fn next(&self) -> Option<Place> {
        self.queue.lock().waiting.pop_first()
    }
}

/// Heals what readers ask for, one place after the other, until it is stopped.
pub(crate) async fn run(shared: Arc<Shared>, mut stop: Stop) {
    loop {
        while let Some(place) = shared.mends.next() {
            if stop.is_set() {
                return;
            }
            // A disk that failed is not written to any more.
            if !matches!(shared.latch.state(), LogState::Failed { .. }) {
                frame_around(&shared, place).await;
            }
        }
        let go_on = tokio::select! {
            biased;
            () = stop.wait() => false,
            () = shared.mends.wake.notified() => true,
        };
        if !go_on {
            return;
        }
    }
}

/// Heals the frame that holds the record at this place: a record alone does not cover the blocks that it lies in.
async fn frame_around(shared: &Shared, (extent, epoch, offset): Place) {
    let Some(info) = shared.extents.get(extent, epoch) else { return };
    let id = shared.extents.id(extent, epoch);
    let start = shared.extents.start(extent);
    let at = match info.kind {
        // The record of a chunk begins at most a block behind its frame, never at it.
        ExtentKind::Body => Some((u64::from(offset).max(1) - 1) / BLOCK_BYTES * BLOCK_BYTES),
        _ => frame_before(&shared.copies, &id, start, u64::from(offset), shared.pool.extent_bytes).await,
    };
    let Some(at) = at else { return };
    let mut walk = Walk::new(&shared.copies, &shared.pool, id, None, false);
    // The scrub reports what is good nowhere.
    let _ = walk.mend(at, &FrameAt { id, at, end: shared.pool.extent_bytes, kind: kind_of(info.kind) }).await;
}

fn kind_of(kind: ExtentKind) -> FrameKind {
    if kind == ExtentKind::Body { FrameKind::Chunk } else { FrameKind::Commit }
}

/// Where the frame begins that holds the record at `offset`.
async fn frame_before(copies: &Copies, id: &ExtentId, start: u64, offset: u64, extent_bytes: u64) -> Option<u64> {
    let mut end = offset / BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES;
    while end > BLOCK_BYTES {
        let from = end.saturating_sub(BACK_BYTES).max(BLOCK_BYTES);
        let mut best = None;
        for copy in 0..copies.count() {
            let (bytes, _) = read_piece(copies.disk().clone(), copy, start + from, (end - from) as usize).await;
            let mut found = bytes.chunks(BLOCK).enumerate().filter_map(|(i, block)| {
                let at = from + (i * BLOCK) as u64;
                let (header, _) = FrameHeader::decode(block).ok()?;
                header.is_at(id, at, extent_bytes).then_some((at, at + header.total_len()))
            });
            best = best.max(found.next_back());
        }
        if let Some((at, frame_end)) = best {
            return (frame_end > offset).then_some(at);
        }
        end = from;
    }
    None
}

/// What mending an extent came to.
#[derive(Debug, Default)]
pub(crate) struct Mended {
    /// What was verified, and how much of it was read.
    pub(crate) counts: Counts,
    /// Structures healed, by the copy that was bad.
    pub(crate) healed: [u64; 2],
    /// Structures that are good on no copy.
    pub(crate) lost: u64,
    /// Where they begin.
    pub(crate) lost_at: Vec<u64>,
    /// Where structures begin, and how long they are, that copy 0 does not have and could not be given back.
    pub(crate) stuck: Vec<(u64, u64)>,
}

/// Verifies every structure of a sealed extent on every copy, and heals what is bad on one from another that is good.
pub(crate) async fn extent(copies: &Copies, pool: &Superblock, info: &ExtentInfo, pace: Option<Pace>) -> Mended {
    let id = ExtentId { pool: pool.pool, extent: info.extent, epoch: info.epoch };
    let mut walk = Walk::new(copies, pool, id, pace, true);
    walk.extent(info).await;
    let read_bytes = walk.windows.iter().map(Window::read_bytes).sum();
    walk.mended.counts.read_bytes = read_bytes;
    walk.mended
}

/// As [`extent`], of all but the header: for an extent that copy 0 is only to have again when it is complete. The first frame identifies an extent, too: so where
/// there is no trailer, it comes when the others are durable. Returns whether all that is good on another copy is durable on copy 0.
pub(crate) async fn contents(copies: &Copies, pool: &Superblock, info: &ExtentInfo) -> io::Result<bool> {
    let id = ExtentId { pool: pool.pool, extent: info.extent, epoch: info.epoch };
    let mut walk = Walk::new(copies, pool, id, None, true);
    if info.footer.is_some() {
        walk.contents(info).await;
    } else {
        walk.unsealed(info, 2 * BLOCK_BYTES).await;
        copies.disk().flush().await?;
        if walk.mended.stuck.is_empty() {
            walk.frame(BLOCK_BYTES, info.data_end, kind_of(info.kind)).await;
        }
    }
    copies.disk().flush().await?;
    Ok(walk.mended.stuck.is_empty())
}

/// A chunk that has been written to an open extent.
pub(crate) struct WrittenChunk {
    /// Where its record begins.
    pub(crate) offset: u32,
    pub(crate) head: Bytes,
}

impl WrittenChunk {
    /// Where its frame begins: at most a block before its record, never at it.
    pub(crate) fn at(&self) -> u64 {
        (u64::from(self.offset).max(1) - 1) / BLOCK_BYTES * BLOCK_BYTES
    }
}

/// What has been written to an open extent.
pub(crate) enum Written {
    /// Frames, one behind the other, up to here.
    Frames(u64),
    /// These chunks.
    Chunks(Vec<WrittenChunk>),
}

/// As [`extent`], of what has been written to one that is open.
pub(crate) async fn open(
    copies: &Copies,
    pool: &Superblock,
    info: &ExtentInfo,
    written: &Written,
    pace: Option<Pace>,
) -> Mended {
    let id = ExtentId { pool: pool.pool, extent: info.extent, epoch: info.epoch };
    let mut walk = Walk::new(copies, pool, id, pace, true);
    walk.mend(0, &HeaderOf { id, exact: true }).await;
    match written {
        Written::Frames(end) => walk.frames(*end).await,
        Written::Chunks(chunks) => {
            for chunk in chunks {
                walk.frame(chunk.at(), pool.extent_bytes, FrameKind::Chunk).await;
            }
        }
    }
    let read_bytes = walk.windows.iter().map(Window::read_bytes).sum();
    walk.mended.counts.read_bytes = read_bytes;
    walk.mended
}

struct Walk<'a> {
    copies: &'a Copies,
    id: ExtentId,
    start: u64,
    extent_bytes: u64,
    windows: Vec<Window>,
    mended: Mended,
}

impl<'a> Walk<'a> {
    fn new(copies: &'a Copies, pool: &Superblock, id: ExtentId, pace: Option<Pace>, ahead: bool) -> Self {
        let start = pool.extent_start(id.extent);
        let window = |copy| {
            let window = Window::of_copy(copy, copies.disk().clone(), start, pool.extent_bytes, pace.clone());
            if ahead { window } else { window.without_ahead() }
        };
        let windows = (0..copies.count()).map(window).collect();
        Self { copies, id, start, extent_bytes: pool.extent_bytes, windows, mended: Mended::default() }
    }

    /// The structure at `at` from the first copy that has it; the others are healed from that. `None` when none has it.
    async fn mend<S: Structure>(&mut self, at: u64, structure: &S) -> Option<Whole<S::Value>> {
        self.mend_if(at, structure, |_| true).await
    }

    /// As [`Walk::mend`]; a copy other than the first only counts where `accept` agrees.
    async fn mend_if<S: Structure>(
        &mut self,
        at: u64,
        structure: &S,
        accept: impl Fn(&S::Value) -> bool,
    ) -> Option<Whole<S::Value>> {
        let mut good: Option<Whole<S::Value>> = None;
        let mut bad = Vec::new();
        for (copy, window) in self.windows.iter_mut().enumerate() {
            let found = match read(window, at, structure).await {
                Ok(found) => found,
                Err(Bad::Absent) => continue,
                Err(Bad::Damaged(_)) => {
                    bad.push(copy as u32);
                    continue;
                }
            };
            match &good {
                Some(good) if good.bytes == found.bytes => {}
                None if copy == 0 || accept(&found.value) => {
                    // Not memory of the disk's pool, which the next reads need.
                    good = Some(Whole { bytes: Bytes::copy_from_slice(&found.bytes), value: found.value });
                }
                _ => bad.push(copy as u32),
            }
        }
        let Some(good) = good else {
            self.mended.lost += 1;
            if self.mended.lost_at.len() < STUCK_MAX {
                self.mended.lost_at.push(at);
            }
            return None;
        };
        for copy in bad {
            match self.copies.heal(copy, self.start + at, &good.bytes, structure).await {
                Heal::Done => {
                    if let Some(count) = self.mended.healed.get_mut(copy as usize) {
                        *count += 1;
                    }
                }
                Heal::Failed if copy == 0 && self.mended.stuck.len() < STUCK_MAX => {
                    self.mended.stuck.push((at, good.bytes.len() as u64));
                }
                Heal::Failed | Heal::Nothing | Heal::Recycled => {}
            }
        }
        Some(good)
    }

    async fn extent(&mut self, info: &ExtentInfo) {
        let id = self.id;
        self.mend(0, &HeaderOf { id, exact: true }).await;
        self.contents(info).await;
    }

    async fn contents(&mut self, info: &ExtentInfo) {
        let Some(trailer) = self.trailer(info).await else {
            if info.footer.is_none() {
                self.unsealed(info, BLOCK_BYTES).await;
                // The trailer that it never had.
                self.mended.lost -= 1;
            }
            return;
        };
        let offsets = self.footer(&trailer, info.kind == ExtentKind::Body).await;
        if info.kind == ExtentKind::Commit {
            return self.frames(u64::from(trailer.data_end)).await;
        }
        for offset in offsets {
            let at = (u64::from(offset).max(1) - 1) / BLOCK_BYTES * BLOCK_BYTES;
            self.frame(at, u64::from(trailer.data_end), FrameKind::Chunk).await;
        }
    }

    async fn trailer(&mut self, info: &ExtentInfo) -> Option<Trailer> {
        let place = TrailerOf { id: self.id, extent_bytes: self.extent_bytes };
        // An extent may have been sealed twice, when a start was cut short: what this log knows of it decides.
        let accept = |t: &Trailer| {
            let known = info.footer.is_none_or(|footer| footer == (t.footer_offset, t.footer_len));
            known && t.kind == info.kind && (info.footer.is_none() || u64::from(t.data_end) == info.data_end)
        };
        Some(self.mend_if(self.extent_bytes - BLOCK_BYTES, &place, accept).await?.value)
    }

    /// Mends the footer; where its records lie, if that is wanted.
    async fn footer(&mut self, trailer: &Trailer, wanted: bool) -> Vec<u32> {
        let mut offsets = Vec::new();
        let (mut at, mut index, id) = (u64::from(trailer.footer_offset), 0, self.id);
        let end = at + u64::from(trailer.footer_len);
        while at < end {
            let Some(block) = self.mend(at, &FooterAt { id, at, index, end }).await else { break };
            if wanted && let Ok(decoded) = FooterBlock::decode(&block.bytes, &id, at as u32, index) {
                offsets.extend(decoded.entries().filter_map(|entry| Some(entry.ok()?.offset)));
            }
            at += block.bytes.len() as u64;
            index += 1;
        }
        offsets
    }

    async fn frame(&mut self, at: u64, end: u64, kind: FrameKind) -> Option<u64> {
        let whole = self.mend(at, &FrameAt { id: self.id, at, end, kind }).await?;
        self.mended.counts.frames += 1;
        self.mended.counts.records += u64::from(whole.value.0.record_count);
        Some(whole.value.0.total_len())
    }

    async fn frames(&mut self, end: u64) {
        let mut at = BLOCK_BYTES;
        while at < end {
            match self.frame(at, end, FrameKind::Commit).await {
                Some(len) => at += len,
                None => at = self.next_frame(at + BLOCK_BYTES, end).await,
            }
        }
    }

    /// An extent that was open when the power went. What is whole nowhere in it may be a write that was cut off.
    async fn unsealed(&mut self, info: &ExtentInfo, from: u64) {
        let (mut at, end, lost) = (from, info.data_end, self.mended.lost);
        loop {
            at = self.next_frame(at, end).await;
            if at >= end {
                break;
            }
            at += self.frame(at, end, kind_of(info.kind)).await.unwrap_or(BLOCK_BYTES);
        }
        self.mended.lost = lost;
    }

    /// Where the next frame begins, on any copy; `end` when there is none.
    async fn next_frame(&mut self, mut at: u64, end: u64) -> u64 {
        while at < end {
            for window in &mut self.windows {
                if let Ok(block) = window.get(at, BLOCK_BYTES).await
                    && FrameHeader::looks_like(&block)
                    && FrameHeader::decode(&block).is_ok_and(|(header, _)| header.is_at(&self.id, at, end))
                {
                    return at;
                }
            }
            at += BLOCK_BYTES;
        }
        end
    }
}
