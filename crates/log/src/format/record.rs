//! Records: head and body, each separately verifiable.

use bytes::Bytes;

use super::Lsn;
use super::{FormatError, Seed, put, u16_at, u32_at, u64_at};

/// Bytes of a record's header.
pub const RECORD_HEADER: usize = 32;
/// The largest head, in bytes.
pub const HEAD_BYTES_MAX: usize = 64 << 10;
/// Bytes of the body per checksum: the least that a range read reads.
pub const CHECK_BYTES: usize = 64 << 10;

const WHAT: &str = "record";
const MAGIC: u16 = 0x5352;
const FLAG_MOVED: u16 = 1;

/// A record's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// Position in the order of commits; 0 in a chunk.
    pub lsn: Lsn,
    /// LSN of the original if this is a moved copy, else `lsn`.
    pub version: Lsn,
    /// Whether it was appended with a version.
    pub moved: bool,
    /// Bytes of the head.
    pub head_len: u32,
    /// Bytes of the body.
    pub body_len: u32,
}

/// Number of checksums of a body of `body_len` bytes.
pub fn check_count(body_len: u32) -> usize {
    (body_len as usize).div_ceil(CHECK_BYTES)
}

/// Bytes that a record takes: header, head, checksums, body.
pub fn record_bytes(head_len: u32, body_len: u32) -> u64 {
    RECORD_HEADER as u64 + u64::from(head_len) + 4 * check_count(body_len) as u64 + u64::from(body_len)
}

impl RecordHeader {
    /// Offset of the body's checksums from the record's start, in bytes.
    pub fn table_start(head_len: u32) -> u64 {
        RECORD_HEADER as u64 + u64::from(head_len)
    }

    /// Offset of the body from the record's start, in bytes.
    pub fn body_start(head_len: u32, body_len: u32) -> u64 {
        Self::table_start(head_len) + 4 * check_count(body_len) as u64
    }

    fn encode(&self, b: &mut [u8], seed: Seed, offset: u32, head: &[u8]) {
        put(b, 0, &MAGIC.to_le_bytes());
        put(b, 2, &(if self.moved { FLAG_MOVED } else { 0 }).to_le_bytes());
        put(b, 4, &self.head_len.to_le_bytes());
        put(b, 8, &self.body_len.to_le_bytes());
        put(b, 16, &self.lsn.to_le_bytes());
        put(b, 24, &self.version.to_le_bytes());
        let crc = Self::crc(b, seed, offset, head);
        put(b, 12, &crc.to_le_bytes());
    }

    fn crc(b: &[u8], seed: Seed, offset: u32, head: &[u8]) -> u32 {
        let mut digest = seed.digest(offset);
        digest.update(&b[..12]);
        digest.update(&b[16..RECORD_HEADER]);
        digest.update(head);
        digest.finalize() as u32
    }
}

/// Writes a record into `out`, which is exactly [`record_bytes`] long and lies at `offset` in the
/// extent. Copies each byte once.
///
/// # Panics
/// If the lengths of `out`, `head` and `body` differ from those in `header`.
pub fn encode_record(out: &mut [u8], seed: Seed, offset: u32, header: &RecordHeader, head: &[u8], body: &[Bytes]) {
    assert_eq!(out.len() as u64, record_bytes(header.head_len, header.body_len));
    let start = RecordHeader::body_start(header.head_len, header.body_len) as usize;
    let (front, room) = out.split_at_mut(start);
    let mut at = 0;
    for piece in body {
        room[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
    assert_eq!(at, room.len());
    fill_record_front(front, seed, offset, header, head, room);
}

/// Writes everything of a record before its body, which follows directly in the extent.
///
/// # Panics
/// If the lengths differ from those in `header`.
pub fn fill_record_front(front: &mut [u8], seed: Seed, offset: u32, header: &RecordHeader, head: &[u8], body: &[u8]) {
    assert_eq!(front.len() as u64, RecordHeader::body_start(header.head_len, header.body_len));
    assert_eq!((head.len(), body.len()), (header.head_len as usize, header.body_len as usize));
    header.encode(front, seed, offset, head);
    let table = RECORD_HEADER + head.len();
    front[RECORD_HEADER..table].copy_from_slice(head);
    let body_offset = offset + front.len() as u32;
    for (i, block) in body.chunks(CHECK_BYTES).enumerate() {
        let crc = seed.crc(body_offset + (i * CHECK_BYTES) as u32, block);
        put(front, table + 4 * i, &crc.to_le_bytes());
    }
}

/// Verifies whole check blocks of a body. `blocks` begins with check block `first`, and `table`
/// with its checksum. `body_offset` is the offset of the body in the extent. Only the body's last
/// block may be short.
///
/// # Errors
/// [`FormatError::Checksum`] for the first block that does not match, [`FormatError::Short`] if
/// `table` has too few checksums.
pub fn verify_body(seed: Seed, body_offset: u32, first: usize, table: &[u8], blocks: &[u8]) -> Result<(), FormatError> {
    for (i, block) in blocks.chunks(CHECK_BYTES).enumerate() {
        let expected = table.get(4 * i..4 * i + 4).ok_or(FormatError::Short("checksum table"))?;
        let offset = u64::from(body_offset) + ((first + i) * CHECK_BYTES) as u64;
        let offset = u32::try_from(offset).map_err(|_| FormatError::Field("body offset"))?;
        if seed.crc(offset, block).to_le_bytes() != *expected {
            return Err(FormatError::Checksum("body"));
        }
    }
    Ok(())
}

/// A record in memory, with a verified head.
#[derive(Debug, Clone, Copy)]
pub struct RecordView<'a> {
    /// Its header.
    pub header: RecordHeader,
    /// Bytes from the start of the extent to the record's header.
    pub offset: u32,
    /// Its head.
    pub head: &'a [u8],
    /// The checksums of its body.
    pub table: &'a [u8],
    /// Its body, not verified: see [`RecordView::verify_body`].
    pub body: &'a [u8],
}

impl<'a> RecordView<'a> {
    /// Parses the record at the start of `bytes`, which lies at `offset` in the extent.
    ///
    /// # Errors
    /// If it is cut short, not a record, or its header or head does not match the checksum.
    pub fn parse(bytes: &'a [u8], seed: Seed, offset: u32) -> Result<Self, FormatError> {
        let (header, head) = Self::parse_head(bytes, seed, offset)?;
        let table = RecordHeader::table_start(header.head_len) as usize;
        let start = RecordHeader::body_start(header.head_len, header.body_len) as usize;
        let end = record_bytes(header.head_len, header.body_len) as usize;
        let whole = bytes.get(..end).ok_or(FormatError::Short(WHAT))?;
        Ok(Self { header, offset, head, table: &whole[table..start], body: &whole[start..] })
    }

    /// As [`RecordView::parse`], for bytes with header and head only.
    ///
    /// # Errors
    /// As [`RecordView::parse`].
    pub fn parse_head(bytes: &'a [u8], seed: Seed, offset: u32) -> Result<(RecordHeader, &'a [u8]), FormatError> {
        if bytes.len() < RECORD_HEADER {
            return Err(FormatError::Short(WHAT));
        }
        if u16_at(bytes, 0) != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        let header = RecordHeader {
            lsn: u64_at(bytes, 16),
            version: u64_at(bytes, 24),
            moved: u16_at(bytes, 2) & FLAG_MOVED != 0,
            head_len: u32_at(bytes, 4),
            body_len: u32_at(bytes, 8),
        };
        if header.head_len as usize > HEAD_BYTES_MAX {
            return Err(FormatError::Field("head length"));
        }
        let head =
            bytes.get(RECORD_HEADER..RECORD_HEADER + header.head_len as usize).ok_or(FormatError::Short(WHAT))?;
        if RecordHeader::crc(bytes, seed, offset, head) != u32_at(bytes, 12) {
            return Err(FormatError::Checksum(WHAT));
        }
        Ok((header, head))
    }

    /// Bytes that the record takes.
    #[allow(clippy::len_without_is_empty, reason = "a record is never empty")]
    pub fn len(&self) -> usize {
        record_bytes(self.header.head_len, self.header.body_len) as usize
    }

    /// Verifies the body against its checksums.
    ///
    /// # Errors
    /// If it does not match.
    pub fn verify_body(&self, seed: Seed) -> Result<(), FormatError> {
        let start = u64::from(self.offset) + RecordHeader::body_start(self.header.head_len, self.header.body_len);
        let start = u32::try_from(start).map_err(|_| FormatError::Field("body offset"))?;
        verify_body(seed, start, 0, self.table, self.body)
    }
}
