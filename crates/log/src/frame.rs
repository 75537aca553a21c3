//! Building frames in an open commit extent.

use bytes::Bytes;
use steadfast_disk::{AlignedBuf, BLOCK};

use crate::format::{
    ExtentId, ExtentKind, FRAME_HEADER, FooterEntry, FrameHeader, FrameKind, RecordHeader, Seed, encode_record,
    footer_entry_bytes, record_bytes,
};
use crate::seal::{FooterBuilder, Seal};
use crate::{Applied, Location, Lsn, Record};

/// A commit extent that is being written.
pub(crate) struct OpenCommit {
    pub(crate) id: ExtentId,
    pub(crate) seed: Seed,
    /// Offset of the extent on the disk, in bytes.
    pub(crate) start: u64,
    pub(crate) extent_bytes: u64,
    /// Offset of the next frame from the start of the extent.
    pub(crate) at: u64,
    pub(crate) prev_checksum: u32,
    /// LSN of the last record before the extent's first one.
    pub(crate) prev_lsn: Lsn,
    pub(crate) footer: FooterBuilder,
}

impl OpenCommit {
    pub(crate) fn new(id: ExtentId, start: u64, extent_bytes: u64, prev_lsn: Lsn) -> Self {
        Self {
            id,
            seed: id.seed(),
            start,
            extent_bytes,
            at: BLOCK as u64,
            prev_checksum: 0,
            prev_lsn,
            footer: FooterBuilder::default(),
        }
    }

    /// Placeholder without an extent, into which no record fits.
    pub(crate) fn none(pool: [u8; 16], extent_bytes: u64, prev_lsn: Lsn) -> Self {
        let id = ExtentId { pool, extent: u32::MAX, epoch: 0 };
        Self { at: extent_bytes, ..Self::new(id, 0, extent_bytes, prev_lsn) }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.id.epoch == 0
    }

    /// Whether a frame of `len` bytes with `entry_bytes` of new footer entries leaves space for
    /// footer and trailer.
    pub(crate) fn fits(&self, len: u64, entry_bytes: u64, footer_max: u64) -> bool {
        let entries = self.footer.entry_bytes() + entry_bytes;
        (entries <= footer_max || self.footer.record_count == 0)
            && self.at + len.next_multiple_of(BLOCK as u64) + self.footer.bytes_max(entry_bytes) + BLOCK as u64
                <= self.extent_bytes
    }

    /// Bytes left for records.
    pub(crate) fn room(&self) -> u64 {
        let taken = self.at + self.footer.bytes_max(0) + BLOCK as u64;
        self.extent_bytes.saturating_sub(taken)
    }

    pub(crate) fn seal(self) -> Seal {
        Seal {
            id: self.id,
            kind: ExtentKind::Commit,
            start: self.start,
            data_end: self.at,
            footer_offset: self.at,
            last_checksum: self.prev_checksum,
            prev_lsn: self.prev_lsn,
            footer: self.footer,
            zone: None,
        }
    }
}

/// Bytes of records and of footer entries of a batch.
pub(crate) fn batch_bytes(batch: &[Record]) -> (u64, u64) {
    batch.iter().fold((0, 0), |(records, entries), record| {
        let body_len: usize = record.body_len();
        (
            records + record_bytes(record.head.len() as u32, body_len as u32),
            entries + footer_entry_bytes(record.head.len()) as u64,
        )
    })
}

/// A frame that is being filled.
pub(crate) struct FrameBuilder {
    buf: AlignedBuf,
    offset: u32,
    first_lsn: Lsn,
    last_lsn: Lsn,
    min_version: Lsn,
    pub(crate) applied: Vec<Applied>,
}

/// A complete frame, not yet written.
pub(crate) struct BuiltFrame {
    pub(crate) data: Bytes,
    pub(crate) disk_offset: u64,
    pub(crate) last_lsn: Lsn,
    pub(crate) min_version: Lsn,
    pub(crate) applied: Vec<Applied>,
}

impl FrameBuilder {
    /// Begins a frame at the write pointer of `open`, in an empty buffer.
    pub(crate) fn new(mut buf: AlignedBuf, open: &OpenCommit) -> Self {
        debug_assert!(open.at.is_multiple_of(BLOCK as u64), "a frame begins at a block");
        debug_assert!(!open.is_none(), "a frame needs an extent");
        buf.set_len(FRAME_HEADER);
        Self { buf, offset: open.at as u32, first_lsn: 0, last_lsn: 0, min_version: Lsn::MAX, applied: Vec::new() }
    }

    pub(crate) fn len(&self) -> u64 {
        self.buf.len() as u64
    }

    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.buf.room() as u64
    }

    /// Appends a record. The caller has checked that it fits.
    pub(crate) fn push(&mut self, open: &mut OpenCommit, lsn: Lsn, record: Record) {
        debug_assert!(lsn > self.last_lsn, "record {lsn} after {}", self.last_lsn);
        let version = record.version.unwrap_or(lsn);
        let header = RecordHeader {
            lsn,
            version,
            moved: record.version.is_some(),
            head_len: record.head.len() as u32,
            body_len: record.body_len() as u32,
        };
        let at = self.buf.len();
        let len = record_bytes(header.head_len, header.body_len) as usize;
        assert!(self.has_room(len as u64), "a record of {len} bytes does not fit into its frame");
        let offset = self.offset + at as u32;
        self.buf.set_len(at + len);
        encode_record(&mut self.buf[at..], open.seed, offset, &header, &record.head, &record.body);
        open.footer.push(&FooterEntry {
            lsn,
            version,
            moved: header.moved,
            offset,
            body_len: header.body_len,
            head: &record.head,
        });
        if self.first_lsn == 0 {
            self.first_lsn = lsn;
        }
        self.last_lsn = lsn;
        self.min_version = self.min_version.min(version);
        let location = Location {
            extent: open.id.extent,
            epoch: open.id.epoch,
            offset,
            head_len: header.head_len,
            body_len: header.body_len,
        };
        self.applied.push(Applied { lsn, version, moved: header.moved, head: record.head, location });
    }

    /// Completes the frame and moves the write pointer past it.
    pub(crate) fn finish(mut self, open: &mut OpenCommit, prev_lsn: Lsn, durable_lsn: Lsn, copy: bool) -> BuiltFrame {
        assert!(!self.applied.is_empty(), "a frame without records");
        assert!(self.first_lsn > prev_lsn, "a frame from {} on, after {prev_lsn}", self.first_lsn);
        assert_eq!(open.at, u64::from(self.offset), "a frame begins where the one before ends");
        let payload_len = (self.buf.len() - FRAME_HEADER) as u32;
        let header = FrameHeader {
            kind: FrameKind::Commit,
            copy,
            id: open.id,
            offset: self.offset,
            first_lsn: self.first_lsn,
            last_lsn: self.last_lsn,
            prev_lsn,
            durable_lsn,
            min_version: self.min_version,
            prev_checksum: open.prev_checksum,
            record_count: self.applied.len() as u32,
            payload_start: FRAME_HEADER as u32,
            payload_len,
            checked_len: payload_len,
            payload_checksum: FrameHeader::payload_crc(open.seed, self.offset, &self.buf[FRAME_HEADER..]),
        };
        open.prev_checksum = header.encode(&mut self.buf);
        self.buf.pad();
        let disk_offset = open.start + u64::from(self.offset);
        open.at += self.buf.len() as u64;
        assert!(open.at <= open.extent_bytes, "a frame beyond the end of its extent");
        BuiltFrame {
            data: self.buf.freeze(),
            disk_offset,
            last_lsn: self.last_lsn,
            min_version: self.min_version,
            applied: self.applied,
        }
    }
}
