//! The first and the last block of an extent.

use serde::Serialize;
use steadfast_disk::BLOCK;

use super::Lsn;
use super::{ExtentId, FORMAT_VERSION, FormatError, Lineage, field, put, u32_at, u64_at};

/// Bytes of content of both blocks. They are within the first sector, so that a torn write leaves
/// the old or the new ones.
const LEN: usize = 128;
/// Offset of the lineage in a header.
const LINEAGE_AT: usize = 64;
const _: () = assert!(LINEAGE_AT + Lineage::LEN <= LEN - 4);

/// Purpose of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExtentKind {
    /// Free. The mark is durable before anything relies on the loss of the contents.
    Free,
    /// Frames of records.
    Commit,
    /// Chunks of bodies.
    Body,
}

impl ExtentKind {
    fn code(self) -> u8 {
        match self {
            Self::Free => 1,
            Self::Commit => 2,
            Self::Body => 3,
        }
    }

    fn from_code(code: u8) -> Result<Self, FormatError> {
        match code {
            1 => Ok(Self::Free),
            2 => Ok(Self::Commit),
            3 => Ok(Self::Body),
            _ => Err(FormatError::Field("extent kind")),
        }
    }
}

fn begin(magic: [u8; 8], id: &ExtentId, kind: ExtentKind) -> [u8; BLOCK] {
    let mut b = [0u8; BLOCK];
    put(&mut b, 0, &magic);
    put(&mut b, 8, &FORMAT_VERSION.to_le_bytes());
    b[12] = kind.code();
    put(&mut b, 16, &id.pool);
    put(&mut b, 32, &id.extent.to_le_bytes());
    put(&mut b, 40, &id.epoch.to_le_bytes());
    b
}

/// `offset` only seeds the checksum, which distinguishes header and trailer.
fn finish(b: &mut [u8; BLOCK], id: &ExtentId, offset: u32) {
    let crc = id.seed().crc(offset, &b[..LEN - 4]);
    put(b, LEN - 4, &crc.to_le_bytes());
}

fn open(b: &[u8], magic: [u8; 8], offset: u32, what: &'static str) -> Result<(ExtentId, ExtentKind), FormatError> {
    if b.len() < LEN {
        return Err(FormatError::Short(what));
    }
    if b[..8] != magic {
        return Err(FormatError::Magic(what));
    }
    let id = ExtentId { pool: field(b, 16), extent: u32_at(b, 32), epoch: u64_at(b, 40) };
    if id.seed().crc(offset, &b[..LEN - 4]) != u32_at(b, LEN - 4) {
        return Err(FormatError::Checksum(what));
    }
    let found = u32_at(b, 8);
    if found != FORMAT_VERSION {
        return Err(FormatError::Version { what, found });
    }
    Ok((id, ExtentKind::from_code(b[12])?))
}

/// Block 0 of an extent. It is durable before other data of that epoch is written into the extent.
/// So a later start knows of every epoch that has bytes, and does not reuse it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentHeader {
    /// Identity of this use of the extent.
    pub id: ExtentId,
    /// Purpose.
    pub kind: ExtentKind,
    /// Lower bound of the LSNs in it.
    pub base_lsn: Lsn,
    /// The highest LSN in any commit extent that had been recycled when this was written. Up to
    /// there, a gap in LSNs is no loss.
    pub recycled_lsn: Lsn,
    /// The pool's history; empty in headers of older builds.
    pub lineage: Lineage,
}

impl ExtentHeader {
    const MAGIC: [u8; 8] = *b"SFEXTENT";
    const WHAT: &str = "extent header";

    /// The encoded block.
    pub fn encode(&self) -> [u8; BLOCK] {
        let mut b = begin(Self::MAGIC, &self.id, self.kind);
        put(&mut b, 48, &self.base_lsn.to_le_bytes());
        put(&mut b, 56, &self.recycled_lsn.to_le_bytes());
        self.lineage.encode(&mut b, LINEAGE_AT);
        finish(&mut b, &self.id, 0);
        b
    }

    /// Decodes the header. The caller compares the identity with the place that it read.
    ///
    /// # Errors
    /// If the block is not a whole header of this version.
    pub fn decode(b: &[u8]) -> Result<Self, FormatError> {
        let (id, kind) = open(b, Self::MAGIC, 0, Self::WHAT)?;
        let lineage = Lineage::decode(b, LINEAGE_AT);
        Ok(Self { id, kind, base_lsn: u64_at(b, 48), recycled_lsn: u64_at(b, 56), lineage })
    }
}

/// The last block of a sealed extent, with the end of the data and the place of the footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// Identity of this use of the extent.
    pub id: ExtentId,
    /// [`ExtentKind::Commit`] or [`ExtentKind::Body`].
    pub kind: ExtentKind,
    /// End of the frames, in bytes from the start of the extent. Data between it and the footer was
    /// cut.
    pub data_end: u32,
    /// Offset of the footer.
    pub footer_offset: u32,
    /// Bytes of the footer.
    pub footer_len: u32,
    /// Records in the extent.
    pub record_count: u64,
    /// LSN of the first record; 0 if there is none, and in body extents.
    pub first_lsn: Lsn,
    /// LSN of the last record; 0 if there is none.
    pub last_lsn: Lsn,
    /// The lowest version of the records; `u64::MAX` if there is none.
    pub min_version: Lsn,
    /// Checksum of the last frame's header: the end of the chain.
    pub last_checksum: u32,
    /// LSN of the last record before this extent's first one.
    pub prev_lsn: Lsn,
}

impl Trailer {
    const MAGIC: [u8; 8] = *b"SFTRAILR";
    const WHAT: &str = "extent trailer";

    /// The encoded block.
    pub fn encode(&self) -> [u8; BLOCK] {
        let mut b = begin(Self::MAGIC, &self.id, self.kind);
        put(&mut b, 48, &self.data_end.to_le_bytes());
        put(&mut b, 52, &self.footer_offset.to_le_bytes());
        put(&mut b, 56, &self.footer_len.to_le_bytes());
        put(&mut b, 60, &self.last_checksum.to_le_bytes());
        put(&mut b, 64, &self.record_count.to_le_bytes());
        put(&mut b, 72, &self.first_lsn.to_le_bytes());
        put(&mut b, 80, &self.last_lsn.to_le_bytes());
        put(&mut b, 88, &self.min_version.to_le_bytes());
        put(&mut b, 96, &self.prev_lsn.to_le_bytes());
        finish(&mut b, &self.id, u32::MAX);
        b
    }

    /// Decodes the trailer. `extent_bytes` bounds its offsets.
    ///
    /// # Errors
    /// If the block is not a whole trailer of this version, or an offset is outside the extent.
    pub fn decode(b: &[u8], extent_bytes: u64) -> Result<Self, FormatError> {
        let (id, kind) = open(b, Self::MAGIC, u32::MAX, Self::WHAT)?;
        let trailer = Self {
            id,
            kind,
            data_end: u32_at(b, 48),
            footer_offset: u32_at(b, 52),
            footer_len: u32_at(b, 56),
            last_checksum: u32_at(b, 60),
            record_count: u64_at(b, 64),
            first_lsn: u64_at(b, 72),
            last_lsn: u64_at(b, 80),
            min_version: u64_at(b, 88),
            prev_lsn: u64_at(b, 96),
        };
        let block = BLOCK as u64;
        let (data, at, len) =
            (u64::from(trailer.data_end), u64::from(trailer.footer_offset), u64::from(trailer.footer_len));
        let aligned = [data, at, len].iter().all(|n| n.is_multiple_of(block));
        if !aligned || data < block || data > at || at + len + block > extent_bytes {
            return Err(FormatError::Field("place of the footer"));
        }
        Ok(trailer)
    }
}
