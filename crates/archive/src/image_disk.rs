//! A disk as an archive has it, which cannot be written.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::{Bytes, BytesMut};
use futures::future::try_join_all;
use steadfast_disk::{AlignedBuf, BLOCK, BufPool, CacheClaim, Disk, DiskStats, Geometry, IoFuture};
use steadfast_flow::BoxFuture;
use steadfast_log::RecoveryReport;
use steadfast_log::format::{SUPERBLOCK_OFFSETS, Superblock};
use tokio::sync::{Semaphore, watch};

use crate::changes::Part;
use crate::error::ArchiveError;
use crate::image::{DiskImage, ExtentImage, UseImage};
use crate::name::{DiskId, UseId};
use crate::part_reader::PartReader;

/// Most memory of writers.
const BUFFERS_BYTES: usize = 16 << 20;

/// A disk whose bytes come from the archive when they are read. What its image does not name reads
/// as zeros. Clones share it.
#[derive(Clone)]
pub struct ImageDisk(Arc<Inner>);

struct Inner {
    id: DiskId,
    image: DiskImage,
    superblock: Superblock,
    /// The end of the free extent behind the last one that the image knows.
    len: u64,
    parts: Arc<PartReader>,
    /// Bounds the reads from the archive at a time.
    reads: Arc<Semaphore>,
    /// For writers, before they are refused.
    buffers: BufPool,
    counts: Counts,
    /// The error of the first read that failed.
    failed: watch::Sender<Option<String>>,
}

#[derive(Default)]
struct Counts {
    reads: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

impl ImageDisk {
    pub(crate) fn new(id: DiskId, image: DiskImage, parts: Arc<PartReader>, reads: Arc<Semaphore>) -> Self {
        let superblock = image.about.superblock(id);
        let extents = image.extents.last_key_value().map_or(0, |(extent, _)| extent + 1);
        // The log takes what lies behind the last extent that was ever used as blank. With one
        // more, it finds also the last one to be lost.
        let len = superblock.extent_start(extents + 1);
        Self(Arc::new(Inner {
            id,
            image,
            superblock,
            len,
            parts,
            reads,
            buffers: BufPool::new(BUFFERS_BYTES),
            counts: Counts::default(),
            failed: watch::Sender::new(None),
        }))
    }

    /// Returns when a read fails or has failed, with the error of the first one. The log takes what
    /// it cannot read when it opens as damaged, or as never written.
    pub async fn failed(&self) -> String {
        let mut failed = self.0.failed.subscribe();
        let failed = failed.wait_for(Option::is_some).await.expect("the disk has the sender");
        failed.clone().expect("it is some")
    }

    /// What a log that was opened on the disk lacks of what the archived pool had; `None` if
    /// nothing. Damage counts only if that pool had none.
    pub fn lacking(&self, report: &RecoveryReport) -> Option<String> {
        let (counters, name) = (self.0.image.counters, &self.0.image.about.name);
        let last_lsn = report.last_lsn.max(counters.recycled_lsn);
        if last_lsn < counters.last_lsn {
            let lost = format!("the log ends at LSN {last_lsn}, and should end at {}", counters.last_lsn);
            return Some(format!("disk {name}: {lost}"));
        }
        let found = report.damage.first().filter(|_| self.0.image.is_whole())?;
        let place = found.extent.map_or_else(String::new, |extent| format!("extent {extent} at {}: ", found.offset));
        Some(format!("disk {name}: {place}{}", found.what))
    }
}

/// The part of one range that another one covers, if they overlap.
fn overlap(a: &Range<u64>, b: &Range<u64>) -> Option<Range<u64>> {
    let (start, end) = (a.start.max(b.start), a.end.min(b.end));
    (start < end).then_some(start..end)
}

impl Inner {
    async fn read(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let block = BLOCK as u64;
        if !offset.is_multiple_of(block) || !len.is_multiple_of(BLOCK) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let range = offset..offset.checked_add(len as u64).ok_or(io::ErrorKind::InvalidInput)?;
        if range.end > self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let pieces = try_join_all(self.pieces(&range).into_iter().map(|piece| self.fetch(piece))).await;
        let pieces = pieces.map_err(|e| {
            self.counts.errors.fetch_add(1, Relaxed);
            self.failed.send_if_modified(|failed| {
                let is_first = failed.is_none();
                failed.get_or_insert_with(|| e.to_string());
                is_first
            });
            io::Error::other(e)
        })?;
        self.counts.reads.fetch_add(1, Relaxed);
        self.counts.bytes.fetch_add(len as u64, Relaxed);
        if let [(at, whole)] = &pieces[..]
            && (*at, whole.len()) == (offset, len)
        {
            return Ok(whole.clone());
        }
        let mut bytes = BytesMut::zeroed(len);
        for (at, piece) in pieces {
            let at = (at - offset) as usize;
            bytes[at..at + piece.len()].copy_from_slice(&piece);
        }
        Ok(bytes.freeze())
    }

    /// What a range is made of. Zeros are between the pieces.
    fn pieces(&self, range: &Range<u64>) -> Vec<Piece<'_>> {
        let mut pieces = Vec::new();
        let mut known = |at: u64, bytes: &dyn Fn() -> Bytes| {
            if range.contains(&at) {
                pieces.push(Piece::Known(at, bytes()));
            }
        };
        for at in SUPERBLOCK_OFFSETS {
            known(at, &|| Bytes::copy_from_slice(&self.superblock.encode()));
        }
        for extent in self.extents_of(range) {
            let start = self.superblock.extent_start(extent);
            match self.image.extents.get(&extent) {
                // Without a header it is found to be lost, as it was.
                Some(ExtentImage::Lost { .. }) => {}
                // As if it had been in use: what has no epoch may be found to be lost.
                Some(ExtentImage::Free { .. }) | None => {
                    let epoch = self.image.counters.next_epoch.max(1);
                    known(start, &|| self.image.free_header(&self.superblock, extent, epoch));
                }
                Some(ExtentImage::Used(_)) => {}
            }
        }
        for extent in self.extents_of(range) {
            if let Some(ExtentImage::Used(of)) = self.image.extents.get(&extent) {
                self.pieces_of_use(extent, of, range, &mut pieces);
            }
        }
        pieces
    }

    /// The extents that a range touches.
    fn extents_of(&self, range: &Range<u64>) -> Range<u32> {
        let first = self.superblock.extent_start(0);
        let number = |at: u64| at.saturating_sub(first) / self.superblock.extent_bytes;
        let end = if range.end <= first { 0 } else { number(range.end - 1) + 1 };
        number(range.start) as u32..end as u32
    }

    fn pieces_of_use<'a>(&self, extent: u32, of: &'a UseImage, range: &Range<u64>, pieces: &mut Vec<Piece<'a>>) {
        let id = UseId { disk: self.id, extent, epoch: of.epoch, opening: of.opening };
        let start = self.superblock.extent_start(extent);
        let first = range.start.saturating_sub(start);
        // Parts do not overlap: the one before may reach into the range.
        let from = of.parts.range(..=first as u32).next_back().map_or(0, |(from, _)| *from);
        for part in of.parts.range(from..).map(|(_, part)| part) {
            let begin = start + u64::from(part.from);
            if begin >= range.end {
                return;
            }
            if let Some(of_part) = overlap(&(begin..begin + u64::from(part.len)), range) {
                let in_part = (of_part.start - begin) as u32..(of_part.end - begin) as u32;
                let verified = of.ends_unmarked();
                pieces.push(Piece::Stored { at: of_part.start, id, part, range: in_part, verified });
            }
        }
    }

    /// The bytes of a piece, with their offset on the disk.
    async fn fetch(&self, piece: Piece<'_>) -> Result<(u64, Bytes), ArchiveError> {
        match piece {
            Piece::Known(at, bytes) => Ok((at, bytes)),
            Piece::Stored { at, id, part, range, verified } => {
                let _permit = self.reads.acquire().await.expect("it is never closed");
                let bytes = match verified {
                    true => self.parts.read_verified(id, part, range).await?,
                    false => self.parts.read_some(id, part, range).await?,
                };
                Ok((at, bytes))
            }
        }
    }
}

/// Bytes of a range of the disk that are not zeros, with their offset on the disk.
enum Piece<'a> {
    /// They follow from the image.
    Known(u64, Bytes),
    /// They are in the archive. If `verified`, the part's checksum must fit: the log would take
    /// the first changed frame as the end of its records.
    Stored { at: u64, id: UseId, part: &'a Part, range: Range<u32>, verified: bool },
}

/// The answer to all that would change the disk.
fn refused<T: Send + 'static>() -> IoFuture<T> {
    Box::pin(async { Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "a disk of an archive cannot be written")) })
}

impl Disk for ImageDisk {
    fn geometry(&self) -> Geometry {
        Geometry {
            capacity_bytes: self.0.len,
            growable: false,
            prefill_pays: false,
            align_bytes: BLOCK,
            max_io_bytes: 1 << 20,
            zones: None,
            cache: CacheClaim::Unknown,
        }
    }

    fn len(&self) -> u64 {
        self.0.len
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        let inner = self.0.clone();
        Box::pin(async move { inner.read(offset, len).await })
    }

    fn read_kept(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        self.read(offset, len)
    }

    fn write(&self, _: u64, _: Bytes) -> IoFuture<()> {
        refused()
    }

    fn flush(&self) -> IoFuture<()> {
        Box::pin(async { Ok(()) })
    }

    fn write_flush(&self, _: u64, _: Bytes) -> IoFuture<()> {
        refused()
    }

    fn discard(&self, _: u64, _: u64) -> IoFuture<()> {
        refused()
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        if end <= self.0.len { Box::pin(async { Ok(()) }) } else { refused() }
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        let pool = self.0.buffers.clone();
        Box::pin(async move { pool.get(capacity).await })
    }

    fn stats(&self) -> DiskStats {
        let Counts { reads, bytes, errors } = &self.0.counts;
        DiskStats {
            reads: reads.load(Relaxed),
            read_bytes: bytes.load(Relaxed),
            errors: errors.load(Relaxed),
            in_flight: 0,
            ..DiskStats::default()
        }
    }

    fn describe(&self) -> String {
        format!("{}, as its archive has it", self.0.image.about.name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use steadfast_flow::Env;
    use steadfast_log::Ranges;
    use steadfast_net::{Fate, MemoryStore};

    use super::*;
    use crate::attempts::Attempts;
    use crate::changes::{Counters, DiskAbout, Source, UseKind};
    use crate::document::checksum;
    use crate::inline::Inline;
    use crate::name::Numbered;

    const PIECE: usize = 16 << 10;

    /// A disk with one extent in use, of one piece, whose last byte may be changed in the archive.
    fn disk(kind: UseKind, sealed: bool, is_changed: bool) -> (ImageDisk, u64) {
        let (by, id) = (Numbered { tenure: 1, n: 1 }, DiskId([7; 16]));
        let mut bytes = vec![1; PIECE];
        let source = Source::Piece { from: 0, by, at: 0 };
        let part = Part { from: 0, len: PIECE as u32, crc: checksum(&bytes), source };
        bytes[PIECE - 1] ^= u8::from(is_changed);
        let name = source.object(UseId { disk: id, extent: 0, epoch: 1, opening: 1 }).expect("a piece");
        let store = MemoryStore::new(&Env::tokio(), Arc::new(|_| Fate::Answered(Duration::ZERO)));
        store.force(&name.to_string(), Some(bytes.into()));
        let of = UseImage {
            epoch: 1,
            opening: 1,
            kind,
            sealed,
            durable: Ranges::of(0..PIECE as u32),
            parts: BTreeMap::from([(0, part)]),
        };
        let about =
            DiskAbout { name: "a".into(), extent_bytes: 1 << 20, created_ms: 1, features: [0; 3], left_ms: None };
        let extents = BTreeMap::from([(0, ExtentImage::Used(of))]);
        let image = DiskImage { about, counters: Counters { next_epoch: 2, ..Counters::default() }, extents };
        let start = image.about.superblock(id).extent_start(0);
        let parts = PartReader::new(Attempts::new(Arc::new(store), &Env::tokio()), Inline::default());
        (ImageDisk::new(id, image, Arc::new(parts), Arc::new(Semaphore::new(4))), start)
    }

    #[tokio::test]
    async fn the_end_of_the_log_is_verified_whatever_is_read_of_it() {
        for (kind, sealed, is_verified) in
            [(UseKind::Commit, false, true), (UseKind::Commit, true, false), (UseKind::Body, false, false)]
        {
            let (whole, start) = disk(kind, sealed, false);
            for _ in 0..2 {
                assert_eq!(whole.read(start, 2 * BLOCK).await.expect("read"), vec![1; 2 * BLOCK]);
            }
            let (changed, start) = disk(kind, sealed, true);
            assert_eq!(changed.read(start, BLOCK).await.is_err(), is_verified, "{kind:?}, {sealed}");
            let all = changed.read(start, PIECE).await.expect_err("the whole part is verified").to_string();
            assert_eq!(changed.failed().await, all);
        }
    }
}
