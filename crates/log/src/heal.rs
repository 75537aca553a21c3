//! Healing while the log runs: single frames where readers met damage, and whole extents for the
//! scrub and for compaction.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use steadfast_disk::BLOCK;
use steadfast_flow::Pace;

use crate::background::Stop;
use crate::bodies::WrittenChunk;
use crate::check::{Counts, Window};
use crate::copies::{Bad, Copies, FooterAt, FrameAt, HeaderOf, Heal, Structure, TrailerOf, Whole, read};
use crate::extents::ExtentInfo;
use crate::format::{ExtentId, ExtentKind, FooterBlock, FrameHeader, FrameKind, Superblock, Trailer};
use crate::heal_queue::Place;
use crate::latch::LogState;
use crate::scan::read_piece;
use crate::shared::Shared;

const BLOCK_BYTES: u64 = BLOCK as u64;
/// Bytes searched at a time for the beginning of a frame.
const BACK_BYTES: u64 = 64 << 10;
/// Places of an extent that are remembered as good on one copy only.
const STUCK_MAX: usize = 256;

/// Heals the queued places in sequence until it is stopped.
pub(crate) async fn run(shared: Arc<Shared>, mut stop: Stop) {
    loop {
        while let Some(place) = shared.heal_queue.next() {
            if stop.is_set() {
                return;
            }
            // The log never writes to a failed disk.
            if !matches!(shared.latch.state(), LogState::Failed { .. }) {
                frame_around(&shared, place).await;
            }
        }
        let woken = tokio::select! {
            biased;
            () = stop.wait() => false,
            () = shared.heal_queue.wake.notified() => true,
        };
        if !woken {
            return;
        }
    }
}

/// Heals the frame that holds the record at this place. A record alone does not cover its blocks.
async fn frame_around(shared: &Shared, (extent, epoch, offset): Place) {
    let Some(info) = shared.extents.get(extent, epoch) else { return };
    let id = shared.extents.id(extent, epoch);
    let start = shared.extents.start(extent);
    let at = match info.kind {
        // A chunk's record begins at most a block behind its frame, never at it.
        ExtentKind::Body => Some((u64::from(offset).max(1) - 1) / BLOCK_BYTES * BLOCK_BYTES),
        _ => frame_before(&shared.copies, &id, start, u64::from(offset), shared.pool.extent_bytes).await,
    };
    let Some(at) = at else { return };
    let mut walk = HealWalk::new(&shared.copies, &shared.pool, id, None, false);
    // The scrub reports structures that are good on no copy.
    let _ = walk.heal(at, &FrameAt { id, at, end: shared.pool.extent_bytes, kind: kind_of(info.kind) }).await;
}

fn kind_of(kind: ExtentKind) -> FrameKind {
    if kind == ExtentKind::Body { FrameKind::Chunk } else { FrameKind::Commit }
}

/// Offset of the frame that holds the record at `offset`.
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

/// Outcome of healing an extent.
#[derive(Debug, Default)]
pub(crate) struct HealOutcome {
    /// Counts of verified structures and bytes read.
    pub(crate) counts: Counts,
    /// Healed structures, by the copy that was bad.
    pub(crate) healed: [u64; 2],
    /// Structures that are good on no copy.
    pub(crate) lost: u64,
    /// Offsets of those structures.
    pub(crate) lost_at: Vec<u64>,
    /// Offsets and lengths of structures that copy 0 lacks and that could not be restored there.
    pub(crate) stuck: Vec<(u64, u64)>,
}

/// Verifies every structure of a sealed extent on every copy, and heals bad ones from a good copy.
pub(crate) async fn extent(copies: &Copies, pool: &Superblock, info: &ExtentInfo, pace: Option<Pace>) -> HealOutcome {
    let id = ExtentId { pool: pool.pool, extent: info.extent, epoch: info.epoch };
    let mut walk = HealWalk::new(copies, pool, id, pace, true);
    walk.extent(info).await;
    let read_bytes = walk.windows.iter().map(Window::read_bytes).sum();
    walk.outcome.counts.read_bytes = read_bytes;
    walk.outcome
}

/// As [`extent`], without the header: for an extent that copy 0 may expose only when complete. The
/// first frame identifies an extent too. So without a trailer, it is healed when the others are
/// durable. Returns whether copy 0 durably has everything that is good on another copy.
pub(crate) async fn contents(copies: &Copies, pool: &Superblock, info: &ExtentInfo) -> io::Result<bool> {
    let id = ExtentId { pool: pool.pool, extent: info.extent, epoch: info.epoch };
    let mut walk = HealWalk::new(copies, pool, id, None, true);
    if info.footer.is_some() {
        walk.contents(info).await;
    } else {
        walk.unsealed(info, 2 * BLOCK_BYTES).await;
        copies.disk().flush().await?;
        if walk.outcome.stuck.is_empty() {
            walk.frame(BLOCK_BYTES, info.data_end, kind_of(info.kind)).await;
        }
    }
    copies.disk().flush().await?;
    Ok(walk.outcome.stuck.is_empty())
}

/// Contents of an open extent.
pub(crate) enum Written {
    /// Consecutive frames up to this offset.
    Frames(u64),
    /// These chunks.
    Chunks(Vec<WrittenChunk>),
}

/// As [`extent`], for the contents of an open extent.
pub(crate) async fn open(
    copies: &Copies,
    pool: &Superblock,
    info: &ExtentInfo,
    written: &Written,
    pace: Option<Pace>,
) -> HealOutcome {
    let id = ExtentId { pool: pool.pool, extent: info.extent, epoch: info.epoch };
    let mut walk = HealWalk::new(copies, pool, id, pace, true);
    walk.heal(0, &HeaderOf { id, exact: true }).await;
    match written {
        Written::Frames(end) => walk.frames(*end).await,
        Written::Chunks(chunks) => {
            for chunk in chunks {
                walk.frame(chunk.at(), pool.extent_bytes, FrameKind::Chunk).await;
            }
        }
    }
    let read_bytes = walk.windows.iter().map(Window::read_bytes).sum();
    walk.outcome.counts.read_bytes = read_bytes;
    walk.outcome
}

struct HealWalk<'a> {
    copies: &'a Copies,
    id: ExtentId,
    start: u64,
    extent_bytes: u64,
    windows: Vec<Window>,
    outcome: HealOutcome,
}

impl<'a> HealWalk<'a> {
    fn new(copies: &'a Copies, pool: &Superblock, id: ExtentId, pace: Option<Pace>, ahead: bool) -> Self {
        let start = pool.extent_start(id.extent);
        let window = |copy| {
            let window = Window::of_copy(copy, copies.disk().clone(), start, pool.extent_bytes, pace.clone());
            if ahead { window } else { window.without_ahead() }
        };
        let windows = (0..copies.count()).map(window).collect();
        Self { copies, id, start, extent_bytes: pool.extent_bytes, windows, outcome: HealOutcome::default() }
    }

    /// Reads the structure at `at` from the first copy that has it, and heals the others. `None` if
    /// no copy has it.
    async fn heal<S: Structure>(&mut self, at: u64, structure: &S) -> Option<Whole<S::Value>> {
        self.heal_if(at, structure, |_| true).await
    }

    /// As [`HealWalk::heal`]. A copy other than the first counts only if `accept` agrees.
    async fn heal_if<S: Structure>(
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
                    // A private copy, because the next reads need the memory of the disk's pool.
                    good = Some(Whole { bytes: Bytes::copy_from_slice(&found.bytes), value: found.value });
                }
                _ => bad.push(copy as u32),
            }
        }
        let Some(good) = good else {
            self.outcome.lost += 1;
            if self.outcome.lost_at.len() < STUCK_MAX {
                self.outcome.lost_at.push(at);
            }
            return None;
        };
        for copy in bad {
            match self.copies.heal(copy, self.start + at, &good.bytes, structure).await {
                Heal::Done => {
                    if let Some(count) = self.outcome.healed.get_mut(copy as usize) {
                        *count += 1;
                    }
                }
                Heal::Failed if copy == 0 && self.outcome.stuck.len() < STUCK_MAX => {
                    self.outcome.stuck.push((at, good.bytes.len() as u64));
                }
                Heal::Failed | Heal::Nothing | Heal::Recycled => {}
            }
        }
        Some(good)
    }

    async fn extent(&mut self, info: &ExtentInfo) {
        let id = self.id;
        self.heal(0, &HeaderOf { id, exact: true }).await;
        self.contents(info).await;
    }

    async fn contents(&mut self, info: &ExtentInfo) {
        let Some(trailer) = self.trailer(info).await else {
            if info.footer.is_none() {
                self.unsealed(info, BLOCK_BYTES).await;
                // This extent never had a trailer.
                self.outcome.lost -= 1;
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
        // An interrupted start may have sealed the extent twice. The state of this log decides.
        let accept = |t: &Trailer| {
            let known = info.footer.is_none_or(|footer| footer == (t.footer_offset, t.footer_len));
            known && t.kind == info.kind && (info.footer.is_none() || u64::from(t.data_end) == info.data_end)
        };
        Some(self.heal_if(self.extent_bytes - BLOCK_BYTES, &place, accept).await?.value)
    }

    /// Heals the footer. Returns the offsets of its records if `wanted`.
    async fn footer(&mut self, trailer: &Trailer, wanted: bool) -> Vec<u32> {
        let mut offsets = Vec::new();
        let (mut at, mut index, id) = (u64::from(trailer.footer_offset), 0, self.id);
        let end = at + u64::from(trailer.footer_len);
        while at < end {
            let Some(block) = self.heal(at, &FooterAt { id, at, index, end }).await else { break };
            if wanted && let Ok(decoded) = FooterBlock::decode(&block.bytes, &id, at as u32, index) {
                offsets.extend(decoded.entries().filter_map(|entry| Some(entry.ok()?.offset)));
            }
            at += block.bytes.len() as u64;
            index += 1;
        }
        offsets
    }

    async fn frame(&mut self, at: u64, end: u64, kind: FrameKind) -> Option<u64> {
        let whole = self.heal(at, &FrameAt { id: self.id, at, end, kind }).await?;
        self.outcome.counts.frames += 1;
        self.outcome.counts.records += u64::from(whole.value.0.record_count);
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

    /// Heals an extent that was open at a power cut. A structure that is whole on no copy may be a
    /// torn write.
    async fn unsealed(&mut self, info: &ExtentInfo, from: u64) {
        let (mut at, end, lost) = (from, info.data_end, self.outcome.lost);
        loop {
            at = self.next_frame(at, end).await;
            if at >= end {
                break;
            }
            at += self.frame(at, end, kind_of(info.kind)).await.unwrap_or(BLOCK_BYTES);
        }
        self.outcome.lost = lost;
    }

    /// Offset of the next frame on any copy; `end` if there is none.
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
