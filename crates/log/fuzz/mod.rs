//! Valid images of extents, and the entry points of the fuzzers. Foreign bytes must not cause a
//! panic. Not a public interface.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use steadfast_disk::{BLOCK, Disk, MemDisk};

use crate::Lsn;
use crate::check::{Damage, DoubtfulChunk, ExtentCheck, Findings, Tail};
use crate::format::{
    EXTENTS_START, ExtentHeader, ExtentId, ExtentKind, FOOTER_BLOCK_HEADER, FRAME_HEADER, FooterBlock, FooterEntry,
    FrameHeader, FrameKind, RecordHeader, RecordView, SUPERBLOCK_OFFSETS, Superblock, Trailer, encode_record,
    record_bytes, seal_footer_block,
};

/// The pool of all images.
pub const POOL: [u8; 16] = [7; 16];
/// Extent size of the inputs of [`fuzz_extent`]: small, so that most of an input matters.
pub const EXTENT_BYTES: u64 = 32 << 10;

/// A record of an image.
#[derive(Debug, Clone)]
pub struct ImageRecord {
    /// Its LSN; 0 for a chunk.
    pub lsn: Lsn,
    /// Its version.
    pub version: Lsn,
    /// Its head.
    pub head: Vec<u8>,
    /// Its body.
    pub body: Vec<u8>,
}

impl ImageRecord {
    fn header(&self) -> RecordHeader {
        RecordHeader {
            lsn: self.lsn,
            version: self.version,
            moved: self.version != self.lsn,
            head_len: self.head.len() as u32,
            body_len: self.body.len() as u32,
        }
    }
}

/// Builder of an extent, with the bytes that the log writes.
pub struct Image {
    id: ExtentId,
    kind: ExtentKind,
    extent_bytes: u64,
    bytes: Vec<u8>,
    entries: Vec<(u32, ImageRecord)>,
    prev_checksum: u32,
    /// LSN of the last record, of this or an earlier extent.
    pub last_lsn: Lsn,
    prev_lsn: Lsn,
}

impl Image {
    /// An empty extent.
    pub fn new(extent: u32, epoch: u64, kind: ExtentKind, extent_bytes: u64, prev_lsn: Lsn) -> Self {
        let id = ExtentId { pool: POOL, extent, epoch };
        let bytes = ExtentHeader { id, kind, base_lsn: prev_lsn + 1, recycled_lsn: 0, lineage: Default::default() }
            .encode()
            .to_vec();
        Self { id, kind, extent_bytes, bytes, entries: Vec::new(), prev_checksum: 0, last_lsn: prev_lsn, prev_lsn }
    }

    /// Offset of the next frame.
    pub fn end(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Offsets of the records from the start of the extent, with their lengths, in bytes.
    pub fn record_ranges(&self) -> Vec<(u64, u64)> {
        let len = |record: &ImageRecord| record_bytes(record.head.len() as u32, record.body.len() as u32);
        self.entries.iter().map(|(offset, record)| (u64::from(*offset), len(record))).collect()
    }

    /// Adds a frame of records, or of one chunk. `durable_lsn` is the LSN that it declares as
    /// flushed.
    pub fn frame(&mut self, records: Vec<ImageRecord>, durable_lsn: Lsn) {
        let offset = self.end();
        let seed = self.id.seed();
        let chunk = self.kind == ExtentKind::Body;
        let mut payload_start = FRAME_HEADER;
        if chunk && let Some(record) = records.first() {
            let header = record.header();
            let front = RecordHeader::body_start(header.head_len, header.body_len) as usize;
            payload_start = (FRAME_HEADER + front).next_multiple_of(BLOCK) - front;
        }
        let mut frame = vec![0; payload_start];
        let mut checked_len = 0;
        for record in &records {
            let (at, header) = (frame.len(), record.header());
            frame.resize(at + record_bytes(header.head_len, header.body_len) as usize, 0);
            let body = [Bytes::copy_from_slice(&record.body)];
            encode_record(&mut frame[at..], seed, offset + at as u32, &header, &record.head, &body);
            self.entries.push((offset + at as u32, record.clone()));
            checked_len = if chunk { frame.len() - record.body.len() } else { frame.len() } - payload_start;
        }
        let header = FrameHeader {
            kind: if chunk { FrameKind::Chunk } else { FrameKind::Commit },
            copy: false,
            id: self.id,
            offset,
            first_lsn: records.first().map_or(self.last_lsn, |r| r.lsn),
            last_lsn: records.last().map_or(self.last_lsn, |r| r.lsn),
            prev_lsn: self.last_lsn,
            durable_lsn,
            min_version: records.iter().map(|r| r.version).min().unwrap_or(Lsn::MAX),
            prev_checksum: self.prev_checksum,
            record_count: records.len() as u32,
            payload_start: payload_start as u32,
            payload_len: (frame.len() - payload_start) as u32,
            checked_len: checked_len as u32,
            payload_checksum: FrameHeader::payload_crc(
                seed,
                offset,
                &frame[payload_start..payload_start + checked_len],
            ),
        };
        let checksum = header.encode(&mut frame);
        if !chunk {
            self.prev_checksum = checksum;
            self.last_lsn = header.last_lsn;
        }
        frame.resize(frame.len().next_multiple_of(BLOCK), 0);
        self.bytes.extend_from_slice(&frame);
    }

    /// Adds footer and trailer. Returns the whole extent and the end of its data.
    pub fn seal(mut self) -> (Vec<u8>, u64) {
        let data_end = self.end();
        let mut block = vec![0; FOOTER_BLOCK_HEADER];
        for (offset, record) in &self.entries {
            let header = record.header();
            FooterEntry {
                lsn: record.lsn,
                version: record.version,
                moved: header.moved,
                offset: *offset,
                body_len: header.body_len,
                head: &record.head,
            }
            .encode(&mut block);
        }
        seal_footer_block(&mut block, &self.id, data_end, 0, self.entries.len() as u32);
        if self.entries.is_empty() {
            block.clear();
        }
        let footer_len = block.len() as u32;
        self.bytes.extend_from_slice(&block);
        self.bytes.resize(self.extent_bytes as usize - BLOCK, 0);
        let commit = self.kind == ExtentKind::Commit && !self.entries.is_empty();
        let trailer = Trailer {
            id: self.id,
            kind: self.kind,
            data_end,
            footer_offset: data_end,
            footer_len,
            record_count: self.entries.len() as u64,
            first_lsn: if commit { self.prev_lsn + 1 } else { 0 },
            last_lsn: if commit { self.last_lsn } else { 0 },
            min_version: self.entries.iter().map(|(_, r)| r.version).min().unwrap_or(Lsn::MAX),
            last_checksum: self.prev_checksum,
            prev_lsn: self.prev_lsn,
        };
        self.bytes.extend_from_slice(&trailer.encode());
        (self.bytes, u64::from(data_end + footer_len))
    }

    /// The extent as it is while open.
    pub fn leave_open(mut self) -> Vec<u8> {
        self.bytes.resize(self.extent_bytes as usize, 0);
        self.bytes
    }
}

/// The superblock of the images' pool.
pub fn superblock(extent_bytes: u64) -> Superblock {
    Superblock { pool: POOL, extent_bytes, created_ms: 1, zones: None, features: crate::format::Features::NONE }
}

/// A disk with a superblock and these extents.
pub fn disk(extent_bytes: u64, extents: &[Vec<u8>]) -> MemDisk {
    let disk = MemDisk::fixed(EXTENTS_START + extents.len() as u64 * extent_bytes);
    let block = Bytes::copy_from_slice(&superblock(extent_bytes).encode());
    for offset in SUPERBLOCK_OFFSETS {
        write(&disk, offset, block.clone());
    }
    for (extent, bytes) in extents.iter().enumerate() {
        write(&disk, EXTENTS_START + extent as u64 * extent_bytes, Bytes::copy_from_slice(bytes));
    }
    disk
}

/// Writes without waiting: a disk in memory completes at once.
fn write(disk: &MemDisk, offset: u64, bytes: Bytes) {
    let written = disk.write(offset, bytes).now_or_never();
    assert!(matches!(written, Some(Ok(()))), "a disk in memory writes at once");
}

/// A record of an image's commit extent.
pub fn record(lsn: Lsn, head: &str, body_len: usize) -> ImageRecord {
    ImageRecord { lsn, version: lsn, head: head.as_bytes().to_vec(), body: pattern(lsn, body_len) }
}

/// A chunk of an image's body extent.
pub fn chunk(head: &str, body_len: usize) -> ImageRecord {
    ImageRecord { lsn: 0, version: 0, head: head.as_bytes().to_vec(), body: pattern(3, body_len) }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed as usize * 31 + i * 7 + i / 251) as u8).collect()
}

/// Seed corpus of extents.
pub fn extent_corpus() -> Vec<Vec<u8>> {
    let commit = || {
        let mut image = Image::new(0, 5, ExtentKind::Commit, EXTENT_BYTES, 9);
        image.frame(vec![record(10, "a", 100), record(11, "bb", 0), record(12, "ccc", 5000)], 9);
        image.frame(vec![ImageRecord { version: 4, ..record(13, "moved", 20) }], 12);
        image
    };
    let body = || {
        let mut image = Image::new(0, 6, ExtentKind::Body, EXTENT_BYTES, 9);
        image.frame(vec![chunk("owner", 5000)], 9);
        image.frame(vec![chunk("other", 1)], 9);
        image
    };
    let free = Image::new(0, 7, ExtentKind::Free, EXTENT_BYTES, 0).leave_open();
    vec![commit().seal().0, commit().leave_open(), body().seal().0, body().leave_open(), free]
        .into_iter()
        .map(|extent| [&[0][..], &extent].concat())
        .collect()
}

/// Seed corpus of frames, each after a byte that selects the structure.
pub fn frame_corpus() -> Vec<Vec<u8>> {
    let mut corpus = Vec::new();
    for extent in extent_corpus() {
        let extent = &extent[1..];
        for at in (0..extent.len()).step_by(BLOCK) {
            let rest = &extent[at..];
            let len = match FrameHeader::decode(rest) {
                Ok((header, _)) => header.total_len() as usize,
                Err(_) => FooterBlock::peek_len(rest).unwrap_or(BLOCK),
            };
            if rest[..len.min(rest.len())].iter().any(|b| *b != 0) {
                for mode in 0..2 {
                    corpus.push([&[mode], &rest[..len.min(rest.len())]].concat());
                }
            }
        }
    }
    corpus.push([&[0][..], &superblock(EXTENT_BYTES).encode()].concat());
    corpus
}

/// Decodes everything that can begin a block. An odd first byte first fixes the checksums, to reach
/// the code behind them.
pub fn fuzz_frame(data: &[u8]) -> u64 {
    let Some((mode, rest)) = data.split_first() else { return 0 };
    let mut bytes = rest.to_vec();
    if mode % 2 == 1 {
        reseal_frame(&mut bytes);
    }
    let mut seen = DefaultHasher::new();
    let mut note = |what: &dyn std::fmt::Debug| format!("{what:?}").hash(&mut seen);
    note(&Superblock::decode(&bytes).map(|_| ()));
    note(&ExtentHeader::decode(&bytes).map(|h| h.kind));
    note(&Trailer::decode(&bytes, EXTENT_BYTES).map(|t| t.kind));
    match FrameHeader::decode(&bytes) {
        Err(why) => note(&why),
        Ok((header, _)) => {
            note(&(header.kind, header.is_at(&header.id, u64::from(header.offset), EXTENT_BYTES)));
            note(&header.verify_payload(&bytes));
            let _ = header.total_len();
            for view in header.records(&bytes).take(1 << 16) {
                note(&view.map(|view| view.verify_body(header.id.seed())));
            }
        }
    }
    let id = ExtentId { pool: POOL, extent: 0, epoch: 5 };
    note(&RecordView::parse(&bytes, id.seed(), 4096).map(|view| view.verify_body(id.seed())));
    note(&FooterBlock::peek_len(&bytes).map(|len| len / BLOCK));
    match FooterBlock::decode(&bytes, &id, 8192, 0) {
        Err(why) => note(&why),
        Ok(block) => {
            for entry in block.entries() {
                note(&entry.map(|_| ()));
            }
        }
    }
    seen.finish()
}

/// Checks a whole extent as verification and scrub do. An odd first byte first fixes the headers'
/// checksums.
pub fn fuzz_extent(data: &[u8]) -> u64 {
    let Some((mode, rest)) = data.split_first() else { return 0 };
    let mut bytes = rest.to_vec();
    bytes.resize(EXTENT_BYTES as usize, 0);
    if mode % 2 == 1 {
        let (blocks, last) = (bytes.len() / BLOCK, bytes.len() - BLOCK);
        reseal(&mut bytes[..BLOCK], 0, 124);
        reseal(&mut bytes[last..], u32::MAX, 124);
        for block in 1..blocks - 1 {
            reseal_frame(&mut bytes[block * BLOCK..]);
        }
    }
    let disk: Arc<dyn Disk> = Arc::new(disk(EXTENT_BYTES, &[bytes]));
    let check = ExtentCheck::new(disk, superblock(EXTENT_BYTES), None);
    let mut seen = Seen(DefaultHasher::new());
    let done = check.run(0, &mut seen).now_or_never();
    let (state, counts) = done.unwrap_or_else(|| unreachable!("a disk in memory reads at once"));
    format!("{state:?} {} {}", counts.frames, counts.records).hash(&mut seen.0);
    seen.0.finish()
}

/// Hash of the kinds of findings, without their offsets.
struct Seen(DefaultHasher);

impl Seen {
    fn note(&mut self, what: &str) {
        what.chars().filter(|c| !c.is_ascii_digit()).collect::<String>().hash(&mut self.0);
    }
}

impl Findings for Seen {
    fn damage(&mut self, damage: Damage) {
        self.note(&damage.what);
    }

    fn tail(&mut self, tail: Tail) {
        self.note(&tail.what);
    }

    fn doubtful(&mut self, chunk: DoubtfulChunk) {
        self.note(&chunk.what);
    }

    fn frame(&mut self, header: &FrameHeader) {
        (header.kind == FrameKind::Commit).hash(&mut self.0);
    }
}

/// The identity in a header. Its fields have other offsets in a frame than in an extent header.
fn claimed(bytes: &[u8], pool_at: usize, extent_at: usize, epoch_at: usize) -> ExtentId {
    let mut id = ExtentId { pool: [0; 16], extent: 0, epoch: 0 };
    id.pool.copy_from_slice(&bytes[pool_at..pool_at + 16]);
    id.extent =
        u32::from_le_bytes([bytes[extent_at], bytes[extent_at + 1], bytes[extent_at + 2], bytes[extent_at + 3]]);
    let mut epoch = [0; 8];
    epoch.copy_from_slice(&bytes[epoch_at..epoch_at + 8]);
    id.epoch = u64::from_le_bytes(epoch);
    id
}

/// Fixes the checksum of an extent header or trailer.
fn reseal(block: &mut [u8], place: u32, crc_at: usize) {
    let crc = claimed(block, 16, 32, 40).seed().crc(place, &block[..crc_at]);
    block[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Fixes the checksums of a frame's first record, payload and header, as far as its lengths allow.
fn reseal_frame(bytes: &mut [u8]) {
    if !FrameHeader::looks_like(bytes) {
        return;
    }
    let field = |bytes: &[u8], at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let seed = claimed(bytes, 8, 24, 32).seed();
    let (offset, start) = (field(bytes, 40), field(bytes, 88) as usize);
    if let Some(record) = bytes.get_mut(start..)
        && record.len() >= 32
        && let Some(head_end) = (field(record, 4) as usize).checked_add(32).filter(|end| *end <= record.len())
    {
        let mut digest = seed.digest(offset.wrapping_add(start as u32));
        digest.update(&record[..12]);
        digest.update(&record[16..head_end]);
        let crc = digest.finalize() as u32;
        record[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    if let Some(checked) = start.checked_add(field(bytes, 100) as usize).and_then(|end| bytes.get(start..end)) {
        let crc = FrameHeader::payload_crc(seed, offset, checked);
        bytes[96..100].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = seed.crc(offset, &bytes[..FRAME_HEADER - 4]);
    bytes[FRAME_HEADER - 4..FRAME_HEADER].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_is_valid_and_resealing_changes_nothing_in_it() {
        for input in frame_corpus() {
            let mut sealed = input[1..].to_vec();
            reseal_frame(&mut sealed);
            assert_eq!(sealed, input[1..]);
        }
        for input in extent_corpus() {
            let mut odd = input.clone();
            odd[0] = 1;
            assert_eq!(fuzz_extent(&input), fuzz_extent(&odd));
        }
    }
}
