//! Self-verifying structures, read from any copy of the disk, and the healing of other copies from
//! them.
//!
//! Copy 0 is the authority: it is read first, and a stale second copy never overrules it. Another
//! copy only supplies bytes that copy 0 has lost, and heals it. The log passes only whole
//! structures to [`Disk::heal`], with every byte verified in memory. So no copy is overwritten with
//! unverified bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use steadfast_disk::{BLOCK, Disk};

use crate::check::Window;
use crate::extents::Extents;
use crate::format::{ExtentHeader, ExtentId, FRAME_HEADER, FooterBlock, FrameHeader, FrameKind, RecordView, Trailer};
use crate::pins::ExtentPin;
use crate::status::{COPIES, HealStatus};

/// Bytes healed at a time: below any sensible bound of a buffer pool.
const PIECE: usize = 1 << 20;

impl HealStatus {
    /// Adds the counts of another log.
    pub fn add(&mut self, other: &Self) {
        self.healed.iter_mut().zip(other.healed).for_each(|(all, more)| *all += more);
        self.healed_bytes += other.healed_bytes;
        self.failed += other.failed;
        self.pending += other.pending;
        self.pending_max += other.pending_max;
        self.skipped += other.skipped;
    }
}

/// Counts of healed structures.
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

/// Reason why a copy lacks a structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Bad {
    /// The disk has no such copy of this range.
    Absent,
    /// Unreadable, or other contents.
    Damaged(String),
}

/// A structure with its bytes, whole and verified.
#[derive(Debug, Clone)]
pub(crate) struct Whole<T> {
    pub(crate) value: T,
    pub(crate) bytes: Bytes,
}

/// Kind of a structure, and its verification.
pub(crate) trait Structure {
    type Value: Clone + Send;

    /// Length on disk in bytes, from its first block; or why the structure is absent.
    fn measure(&self, first: &[u8]) -> Result<u64, String>;

    /// Verifies the whole structure. `bytes` has the length that [`Structure::measure`] returned.
    fn verify(&self, bytes: &Bytes) -> Result<Self::Value, String>;

    /// The use of the extent to which it belongs.
    fn id(&self) -> ExtentId;

    /// Short name for messages.
    fn name(&self) -> &'static str;
}

/// The header of an extent of the pool, with at least this epoch, or of exactly this use.
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

/// Bytes outside the checksum of a one-sector structure must equal the written ones too.
fn rest_is_zero(bytes: &[u8], written: &[u8]) -> Result<(), String> {
    if bytes == written { Ok(()) } else { Err("the rest of the block is not zero".to_owned()) }
}

/// The frame at one place of one use of an extent.
pub(crate) struct FrameAt {
    pub(crate) id: ExtentId,
    pub(crate) at: u64,
    /// Offset at which it must end.
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
    /// The header with its checksum.
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
            // The payload checksum ends where the body begins.
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
    /// Offset at which the footer ends.
    pub(crate) end: u64,
}

impl Structure for FooterAt {
    /// Number of its entries.
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
    /// Pins an extent during a rewrite, so that it is not recycled. `None` while nothing else runs.
    extents: Option<Extents>,
}

impl Copies {
    pub(crate) fn new(disk: Arc<dyn Disk>, healed: Arc<Healed>) -> Self {
        Self { disk, healed, extents: None }
    }

    /// For use while the log runs: pins an extent during healing.
    pub(crate) fn pinning(self, extents: Extents) -> Self {
        Self { extents: Some(extents), ..self }
    }

    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// The highest number of copies.
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

    /// For a structure that copy 0 lacks: finds it on another copy and heals copy 0.
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

    /// Writes verified bytes over a bad copy. A failure is counted and logged. The structure still
    /// exists on the copy that supplied it.
    pub(crate) async fn heal<S: Structure>(&self, bad: u32, offset: u64, good: &Bytes, structure: &S) -> Heal {
        let (what, id) = (structure.name(), structure.id());
        if self.disk.zone(offset).is_some() {
            // A zone cannot be overwritten. The damage is reported, and disappears with the extent.
            self.healed.failed.fetch_add(1, Relaxed);
            tracing::error!(extent = id.extent, offset, copy = bad, what, "damage in a zone cannot be healed in place");
            return Heal::Failed;
        }
        let _pin = match &self.extents {
            None => None,
            Some(extents) => match ExtentPin::new(extents, id.extent, id.epoch) {
                Some(pin) => Some(pin),
                None => return Heal::Recycled,
            },
        };
        // The damage may be data of another server that has opened the disk since.
        if let Some(extents) = &self.extents
            && extents.check_opener().await.is_err()
        {
            self.healed.failed.fetch_add(1, Relaxed);
            return Heal::Failed;
        }
        let mut rewritten = 0;
        for (i, piece) in good.chunks(PIECE).enumerate() {
            // A private copy: the disk needs memory of its pool to read its copies for comparison.
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
            // The error occurred in transfer, not on the medium.
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

/// Outcome of healing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heal {
    Done,
    /// All copies are already equal.
    Nothing,
    Failed,
    /// The extent is no longer in use.
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
