//! Structures that verify by themselves, read from any copy that the disk has, and the other copies healed from them.
//!
//! Copy 0 is the authority: what is asked there first, and what a stale second copy may never overrule. Another copy only stands in for
//! bytes that copy 0 does not have any more, and is healed from those that it has. What is handed to [`Disk::heal`] is always a whole structure whose
//! every byte has been verified in memory, so that no copy is ever overwritten with bytes that nobody vouches for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use serde::Serialize;
use steadfast_disk::{BLOCK, Disk};

use crate::check::Window;
use crate::extents::Extents;
use crate::format::{ExtentHeader, ExtentId, FRAME_HEADER, FooterBlock, FrameHeader, FrameKind, RecordView, Trailer};

/// Bytes healed at a time: below any sensible bound of a buffer pool.
const PIECE: usize = 1 << 20;

/// Copies that are counted apart; there are two today.
const COPIES: usize = 2;

/// What was healed, by the copy that was bad: on a super-disk 0 is the durable leg and 1 the fast one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct HealStatus {
    /// Structures (headers, frames, footers) that were bad on a copy and were rewritten there, by copy.
    pub healed: [u64; COPIES],
    /// Their bytes.
    pub healed_bytes: u64,
    /// Structures that are good on one copy and could not be rewritten on another.
    pub failed: u64,
    /// Places that wait to be healed because a reader met damage there.
    pub pending: u64,
    /// The bound on `pending`; what comes beyond it is left to the next reader or to the scrub.
    pub pending_max: u64,
    /// Places that were left to them.
    pub skipped: u64,
}

impl HealStatus {
    /// Adds that of another log.
    pub fn add(&mut self, other: &Self) {
        self.healed.iter_mut().zip(other.healed).for_each(|(all, more)| *all += more);
        self.healed_bytes += other.healed_bytes;
        self.failed += other.failed;
        self.pending += other.pending;
        self.pending_max += other.pending_max;
        self.skipped += other.skipped;
    }
}

/// Counts what was healed.
#[derive(Debug, Default)]
pub(crate) struct Healed {
    copies: [AtomicU64; COPIES],
    bytes: AtomicU64,
    failed: AtomicU64,
}

impl Healed {
    pub(crate) fn status(&self) -> HealStatus {
        HealStatus {
            healed: [self.copies[0].load(Relaxed), self.copies[1].load(Relaxed)],
            healed_bytes: self.bytes.load(Relaxed),
            failed: self.failed.load(Relaxed),
            ..HealStatus::default()
        }
    }

    /// Structures healed, on any copy.
    pub(crate) fn total(&self) -> u64 {
        self.copies.iter().map(|n| n.load(Relaxed)).sum()
    }
}

/// Why a copy does not have a structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Bad {
    /// There is no such copy of this range.
    Absent,
    /// Unreadable, or not what belongs there.
    Damaged(String),
}

/// A structure with its bytes, whole and verified.
#[derive(Debug, Clone)]
pub(crate) struct Whole<T> {
    pub(crate) value: T,
    pub(crate) bytes: Bytes,
}

/// What a structure is, and how it is verified.
pub(crate) trait Structure {
    type Value: Clone + Send;

    /// Bytes that it takes on disk, from its first block; or why it is not there.
    fn measure(&self, first: &[u8]) -> Result<u64, String>;

    /// Verifies all of it. `bytes` are as many as [`Structure::measure`] said.
    fn verify(&self, bytes: &Bytes) -> Result<Self::Value, String>;

    /// The use of the extent that it belongs to.
    fn id(&self) -> ExtentId;

    /// In a word, for messages.
    fn name(&self) -> &'static str;
}

/// The header of an extent of the pool: of at least this epoch, or of exactly this use.
pub(crate) struct HeaderOf {
    pub(crate) id: ExtentId,
    pub(crate) exact: bool,
}

impl Structure for HeaderOf {
    type Value = ExtentHeader;

    fn measure(&self, _first: &[u8]) -> Result<u64, String> {
        Ok(BLOCK as u64)
    }

    fn verify(&self, bytes: &Bytes) -> Result<ExtentHeader, String> {
        let header = ExtentHeader::decode(bytes).map_err(|e| e.to_string())?;
        let right = (header.id.pool, header.id.extent) == (self.id.pool, self.id.extent)
            && (header.id.epoch == self.id.epoch || !self.exact && header.id.epoch > self.id.epoch);
        if !right {
            return Err("the extent header is of another use".to_owned());
        }
        rest_is_zero(bytes, &header.encode())?;
        Ok(header)
    }

    fn id(&self) -> ExtentId {
        self.id
    }

    fn name(&self) -> &'static str {
        "extent header"
    }
}

/// The trailer of one use of an extent.
pub(crate) struct TrailerOf {
    pub(crate) id: ExtentId,
    pub(crate) extent_bytes: u64,
}

impl Structure for TrailerOf {
    type Value = Trailer;

    fn measure(&self, _first: &[u8]) -> Result<u64, String> {
        Ok(BLOCK as u64)
    }

    fn verify(&self, bytes: &Bytes) -> Result<Trailer, String> {
        let trailer = Trailer::decode(bytes, self.extent_bytes).map_err(|e| e.to_string())?;
        if trailer.id != self.id {
            return Err("the trailer is of another use".to_owned());
        }
        rest_is_zero(bytes, &trailer.encode())?;
        Ok(trailer)
    }

    fn id(&self) -> ExtentId {
        self.id
    }

    fn name(&self) -> &'static str {
        "extent trailer"
    }
}

/// What the checksum of a one-sector structure does not cover must be as it was written too.
fn rest_is_zero(bytes: &[u8], written: &[u8]) -> Result<(), String> {
    if bytes == written { Ok(()) } else { Err("the rest of the block is not zero".to_owned()) }
}

/// The frame at one place of one use of an extent.
pub(crate) struct FrameAt {
    pub(crate) id: ExtentId,
    pub(crate) at: u64,
    /// Where it must end.
    pub(crate) end: u64,
    pub(crate) kind: FrameKind,
}

impl FrameAt {
    fn header(&self, block: &[u8]) -> Result<(FrameHeader, u32), String> {
        let (header, crc) = FrameHeader::decode(block).map_err(|e| e.to_string())?;
        if !header.is_at(&self.id, self.at, self.end) || header.kind != self.kind {
            return Err("the frame belongs elsewhere".to_owned());
        }
        Ok((header, crc))
    }
}

impl Structure for FrameAt {
    /// With the checksum of its header.
    type Value = (FrameHeader, u32);

    fn measure(&self, first: &[u8]) -> Result<u64, String> {
        Ok(self.header(first)?.0.total_len())
    }

    fn verify(&self, bytes: &Bytes) -> Result<(FrameHeader, u32), String> {
        let (header, crc) = self.header(bytes)?;
        header.verify_payload(bytes).map_err(|e| e.to_string())?;
        let start = header.payload_start as usize;
        let end = start + header.payload_len as usize;
        if bytes[FRAME_HEADER..start].iter().chain(&bytes[end..]).any(|b| *b != 0) {
            return Err("the padding of a frame is not zero".to_owned());
        }
        if self.kind == FrameKind::Chunk {
            // Its payload checksum ends where the body begins.
            for view in header.records(bytes) {
                let view: RecordView<'_> = view.map_err(|e| e.to_string())?;
                view.verify_body(self.id.seed()).map_err(|e| e.to_string())?;
            }
        }
        Ok((header, crc))
    }

    fn id(&self) -> ExtentId {
        self.id
    }

    fn name(&self) -> &'static str {
        "frame"
    }
}

/// A block of a footer.
pub(crate) struct FooterAt {
    pub(crate) id: ExtentId,
    pub(crate) at: u64,
    pub(crate) index: u32,
    /// Where the footer ends.
    pub(crate) end: u64,
}

impl Structure for FooterAt {
    /// How many entries it has.
    type Value = u32;

    fn measure(&self, first: &[u8]) -> Result<u64, String> {
        let len = FooterBlock::peek_len(first).map_err(|e| e.to_string())? as u64;
        if self.at + len > self.end {
            return Err("the footer block reaches beyond the footer".to_owned());
        }
        Ok(len)
    }

    fn verify(&self, bytes: &Bytes) -> Result<u32, String> {
        let at = u32::try_from(self.at).map_err(|_| "the footer lies beyond any extent".to_owned())?;
        let block = FooterBlock::decode(bytes, &self.id, at, self.index).map_err(|e| e.to_string())?;
        let covered = block.covered_bytes();
        if bytes[covered..].iter().any(|b| *b != 0) {
            return Err("the padding of a footer block is not zero".to_owned());
        }
        for entry in block.entries() {
            entry.map_err(|e| e.to_string())?;
        }
        Ok(block.count())
    }

    fn id(&self) -> ExtentId {
        self.id
    }

    fn name(&self) -> &'static str {
        "footer"
    }
}

/// The copies of a disk. Cloning shares the counts.
#[derive(Clone)]
pub(crate) struct Copies {
    disk: Arc<dyn Disk>,
    healed: Arc<Healed>,
    /// Keeps an extent from being recycled while something in it is rewritten. `None` while nothing else runs.
    extents: Option<Extents>,
}

impl Copies {
    pub(crate) fn new(disk: Arc<dyn Disk>, healed: Arc<Healed>) -> Self {
        Self { disk, healed, extents: None }
    }

    /// For use while the log runs: an extent is pinned while something in it is healed.
    pub(crate) fn pinning(self, extents: Extents) -> Self {
        Self { extents: Some(extents), ..self }
    }

    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// How many copies there may be.
    pub(crate) fn count(&self) -> u32 {
        self.disk.copies()
    }

    /// The structure at `offset` of the disk on one copy.
    pub(crate) async fn read<S: Structure>(
        &self,
        copy: u32,
        offset: u64,
        structure: &S,
    ) -> Result<Whole<S::Value>, Bad> {
        let mut window = Window::of_copy(copy, self.disk.clone(), offset, u64::MAX, None).without_ahead();
        read(&mut window, 0, structure).await
    }

    /// For a structure that copy 0 does not have whole: finds it on another copy and heals copy 0 with it.
    pub(crate) async fn rescue<S: Structure>(
        &self,
        offset: u64,
        structure: &S,
        accept: impl Fn(&S::Value) -> bool,
    ) -> Option<Whole<S::Value>> {
        for copy in 1..self.count() {
            let Ok(whole) = self.read(copy, offset, structure).await else { continue };
            if accept(&whole.value) {
                self.heal(0, offset, &whole.bytes, structure).await;
                return Some(whole);
            }
        }
        None
    }

    /// Writes what was verified over a copy that was found bad there. If that fails, it is counted and logged, and the structure is still
    /// there on the copy that it came from.
    pub(crate) async fn heal<S: Structure>(&self, bad: u32, offset: u64, good: &Bytes, structure: &S) -> Heal {
        let (what, id) = (structure.name(), structure.id());
        if self.disk.zone(offset).is_some() {
            // What lies in a zone cannot be written over: it is reported, and goes with its extent.
            self.healed.failed.fetch_add(1, Relaxed);
            tracing::error!(extent = id.extent, offset, copy = bad, what, "damage in a zone cannot be healed in place");
            return Heal::Failed;
        }
        let _pin = match &self.extents {
            None => None,
            Some(extents) => match extents.pin(id.extent, id.epoch) {
                Some(pin) => Some(pin),
                None => return Heal::Recycled,
            },
        };
        // What is damage here may be what somebody else has written who has opened the disk since.
        if let Some(extents) = &self.extents
            && crate::fence::check(extents).await.is_err()
        {
            self.healed.failed.fetch_add(1, Relaxed);
            return Heal::Failed;
        }
        let mut rewritten = 0;
        for (i, piece) in good.chunks(PIECE).enumerate() {
            // Not memory of the disk's pool: that would be held while the disk reads its copies to compare.
            let piece = Bytes::copy_from_slice(piece);
            match self.disk.heal(offset + (i * PIECE) as u64, piece).await {
                Ok(copies) => rewritten += copies,
                Err(error) => {
                    self.healed.failed.fetch_add(1, Relaxed);
                    tracing::error!(
                        extent = id.extent, offset, copy = bad, what, %error,
                        "damage could not be healed from another copy"
                    );
                    return Heal::Failed;
                }
            }
        }
        if rewritten == 0 {
            // It came from the way, not from the medium.
            return Heal::Nothing;
        }
        if let Some(count) = self.healed.copies.get(bad as usize) {
            count.fetch_add(1, Relaxed);
        }
        self.healed.bytes.fetch_add(good.len() as u64, Relaxed);
        tracing::warn!(
            extent = id.extent,
            offset,
            bytes = good.len(),
            copy = bad,
            what,
            "damage was healed from another copy"
        );
        Heal::Done
    }
}

/// What came of healing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heal {
    Done,
    /// All copies are the same already.
    Nothing,
    Failed,
    /// The extent is not in use any more.
    Recycled,
}

/// The structure at `at` of a window.
pub(crate) async fn read<S: Structure>(window: &mut Window, at: u64, structure: &S) -> Result<Whole<S::Value>, Bad> {
    let first = get(window, at, BLOCK as u64).await?;
    let len = structure.measure(&first).map_err(Bad::Damaged)?;
    let bytes = if len == BLOCK as u64 { first } else { get(window, at, len).await? };
    let value = structure.verify(&bytes).map_err(Bad::Damaged)?;
    Ok(Whole { value, bytes })
}

async fn get(window: &mut Window, at: u64, len: u64) -> Result<Bytes, Bad> {
    let bytes = window.get(at, len).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Bad::Absent,
        _ => Bad::Damaged(format!("cannot be read: {error}")),
    })?;
    if (bytes.len() as u64) < len {
        return Err(Bad::Damaged("beyond the end of the disk".to_owned()));
    }
    Ok(bytes)
}
