//! Frames: the unit of commit (many records), or one chunk of a body.

use steadfast_disk::BLOCK;

use super::Lsn;
use super::{ExtentId, FORMAT_VERSION, FormatError, RecordView, Seed, field, put, u16_at, u32_at, u64_at};

/// Bytes of a frame's header.
pub const FRAME_HEADER: usize = 112;
const WHAT: &str = "frame header";
const MAGIC: u32 = u32::from_le_bytes(*b"SFRM");
const FLAG_COPY: u8 = 1;

/// Kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// Records that were committed together.
    Commit,
    /// One record without an LSN, whose body begins at a block.
    Chunk,
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Kind of the frame.
    pub kind: FrameKind,
    /// Whether recovery wrote it as a copy of records with their LSNs.
    pub copy: bool,
    /// Identity of this use of the extent.
    pub id: ExtentId,
    /// Offset from the start of the extent, in bytes.
    pub offset: u32,
    /// LSN of its first record; 0 in a chunk.
    pub first_lsn: Lsn,
    /// LSN of its last record; 0 in a chunk.
    pub last_lsn: Lsn,
    /// LSN of the last record before this frame, in this extent or the one before. It distinguishes
    /// a lost record from an unused LSN.
    pub prev_lsn: Lsn,
    /// All records up to this LSN were durable when the frame was written.
    pub durable_lsn: Lsn,
    /// The lowest version among its records.
    pub min_version: Lsn,
    /// Checksum of the header of the frame before it in this extent, or 0.
    pub prev_checksum: u32,
    /// Number of records.
    pub record_count: u32,
    /// Bytes from the start of the frame to the first record.
    pub payload_start: u32,
    /// Bytes of records.
    pub payload_len: u32,
    /// Bytes of the payload, from its start, that `payload_checksum` covers: all in a commit frame.
    /// In a chunk, all before the body, which has its own checksums.
    pub checked_len: u32,
    /// Checksum of the payload.
    pub payload_checksum: u32,
}

impl FrameHeader {
    /// Bytes that the frame takes on disk.
    pub fn total_len(&self) -> u64 {
        (u64::from(self.payload_start) + u64::from(self.payload_len)).next_multiple_of(BLOCK as u64)
    }

    /// Writes the header into the first [`FRAME_HEADER`] bytes of `b` and returns its checksum.
    ///
    /// # Panics
    /// If `b` is shorter than that.
    pub fn encode(&self, b: &mut [u8]) -> u32 {
        let b = &mut b[..FRAME_HEADER];
        b.fill(0);
        put(b, 0, &MAGIC.to_le_bytes());
        put(b, 4, &(FORMAT_VERSION as u16).to_le_bytes());
        b[6] = match self.kind {
            FrameKind::Commit => 1,
            FrameKind::Chunk => 2,
        };
        b[7] = if self.copy { FLAG_COPY } else { 0 };
        put(b, 8, &self.id.pool);
        put(b, 24, &self.id.extent.to_le_bytes());
        put(b, 28, &self.record_count.to_le_bytes());
        put(b, 32, &self.id.epoch.to_le_bytes());
        put(b, 40, &self.offset.to_le_bytes());
        put(b, 44, &self.payload_len.to_le_bytes());
        put(b, 48, &self.first_lsn.to_le_bytes());
        put(b, 56, &self.last_lsn.to_le_bytes());
        put(b, 64, &self.prev_lsn.to_le_bytes());
        put(b, 72, &self.durable_lsn.to_le_bytes());
        put(b, 80, &self.min_version.to_le_bytes());
        put(b, 88, &self.payload_start.to_le_bytes());
        put(b, 92, &self.prev_checksum.to_le_bytes());
        put(b, 96, &self.payload_checksum.to_le_bytes());
        put(b, 100, &self.checked_len.to_le_bytes());
        let crc = self.id.seed().crc(self.offset, &b[..FRAME_HEADER - 4]);
        put(b, FRAME_HEADER - 4, &crc.to_le_bytes());
        crc
    }

    /// Whether a block may begin a frame: a cheap test to skip others.
    pub fn looks_like(b: &[u8]) -> bool {
        b.len() >= FRAME_HEADER && u32_at(b, 0) == MAGIC
    }

    /// Decodes a header and returns it with its checksum. Its fields are consistent. The caller
    /// compares identity and offset with the place that it read (see [`FrameHeader::is_at`]) and
    /// verifies the payload.
    ///
    /// # Errors
    /// If the block is not a whole header of this version.
    pub fn decode(b: &[u8]) -> Result<(Self, u32), FormatError> {
        if b.len() < FRAME_HEADER {
            return Err(FormatError::Short(WHAT));
        }
        if u32_at(b, 0) != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        let id = ExtentId { pool: field(b, 8), extent: u32_at(b, 24), epoch: u64_at(b, 32) };
        let offset = u32_at(b, 40);
        let crc = u32_at(b, FRAME_HEADER - 4);
        if id.seed().crc(offset, &b[..FRAME_HEADER - 4]) != crc {
            return Err(FormatError::Checksum(WHAT));
        }
        let found = u32::from(u16_at(b, 4));
        if found != FORMAT_VERSION {
            return Err(FormatError::Version { what: WHAT, found });
        }
        let kind = match b[6] {
            1 => FrameKind::Commit,
            2 => FrameKind::Chunk,
            _ => return Err(FormatError::Field("frame kind")),
        };
        let header = Self {
            kind,
            copy: b[7] & FLAG_COPY != 0,
            id,
            offset,
            record_count: u32_at(b, 28),
            payload_len: u32_at(b, 44),
            first_lsn: u64_at(b, 48),
            last_lsn: u64_at(b, 56),
            prev_lsn: u64_at(b, 64),
            durable_lsn: u64_at(b, 72),
            min_version: u64_at(b, 80),
            payload_start: u32_at(b, 88),
            prev_checksum: u32_at(b, 92),
            payload_checksum: u32_at(b, 96),
            checked_len: u32_at(b, 100),
        };
        if (header.payload_start as usize) < FRAME_HEADER || header.payload_start as usize > BLOCK {
            return Err(FormatError::Field("start of the payload"));
        }
        if header.checked_len > header.payload_len {
            return Err(FormatError::Field("checked length"));
        }
        if header.kind == FrameKind::Commit && header.checked_len != header.payload_len {
            return Err(FormatError::Field("checked length"));
        }
        if header.last_lsn < header.first_lsn {
            return Err(FormatError::Field("LSN range"));
        }
        Ok((header, crc))
    }

    /// Whether this is the frame of this use of this extent at this offset, and ends within
    /// `extent_bytes`.
    pub fn is_at(&self, id: &ExtentId, offset: u64, extent_bytes: u64) -> bool {
        self.id == *id && u64::from(self.offset) == offset && offset + self.total_len() <= extent_bytes
    }

    /// The checksum of the payload of the frame in `frame`, which begins at the header.
    pub fn payload_crc(seed: Seed, offset: u32, checked: &[u8]) -> u32 {
        seed.crc(offset ^ 1, checked)
    }

    /// Checks the payload against its checksum. `frame` begins at the header and holds at least the
    /// covered bytes.
    ///
    /// # Errors
    /// If it does not match or `frame` is too short.
    pub fn verify_payload(&self, frame: &[u8]) -> Result<(), FormatError> {
        let start = self.payload_start as usize;
        let checked = frame.get(start..start + self.checked_len as usize).ok_or(FormatError::Short("frame payload"))?;
        if Self::payload_crc(self.id.seed(), self.offset, checked) != self.payload_checksum {
            return Err(FormatError::Checksum("frame payload"));
        }
        Ok(())
    }

    /// The records of the frame in `frame`, which begins at the header.
    pub fn records<'a>(&self, frame: &'a [u8]) -> RecordIter<'a> {
        RecordIter {
            frame,
            seed: self.id.seed(),
            frame_offset: self.offset,
            at: self.payload_start as usize,
            end: self.payload_start as usize + self.payload_len as usize,
            left: self.record_count,
        }
    }
}

/// Iterates over the records of a frame; ends after the first error. The head of each is verified,
/// the body is not.
#[derive(Debug)]
pub struct RecordIter<'a> {
    frame: &'a [u8],
    seed: Seed,
    frame_offset: u32,
    at: usize,
    end: usize,
    left: u32,
}

impl<'a> RecordIter<'a> {
    fn step(&mut self) -> Result<RecordView<'a>, FormatError> {
        let bytes = self.frame.get(self.at..self.end).ok_or(FormatError::Short("frame"))?;
        let offset = u32::try_from(self.at)
            .ok()
            .and_then(|at| self.frame_offset.checked_add(at))
            .ok_or(FormatError::Field("record offset"))?;
        let view = RecordView::parse(bytes, self.seed, offset)?;
        self.at += view.len();
        Ok(view)
    }
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = Result<RecordView<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            if self.at < self.end {
                self.at = self.end;
                return Some(Err(FormatError::Field("record count")));
            }
            return None;
        }
        self.left -= 1;
        let item = self.step();
        if item.is_err() {
            self.left = 0;
            self.at = self.end;
        }
        Some(item)
    }
}
