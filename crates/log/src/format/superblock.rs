//! The superblock: what the pool is.

use steadfast_disk::BLOCK;

use super::{
    EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, EXTENTS_START, FORMAT_VERSION, FormatError, crc32c, field, put, u32_at, u64_at,
};

const WHAT: &str = "superblock";
const MAGIC: [u8; 8] = *b"STEADFST";
/// Bytes with content; all within the first sector, so that a torn write leaves the old or the new one.
const LEN: usize = 128;

/// Where the copies are, in bytes from the start of the disk.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 512 << 10];

/// What the pool is. Written once, in two copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// UUID of the pool.
    pub pool: [u8; 16],
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// When it was formatted, milliseconds since the Unix epoch.
    pub created_ms: u64,
}

impl Superblock {
    /// The block as it is written.
    pub fn encode(&self) -> [u8; BLOCK] {
        let mut b = [0u8; BLOCK];
        put(&mut b, 0, &MAGIC);
        put(&mut b, 8, &FORMAT_VERSION.to_le_bytes());
        put(&mut b, 12, &(BLOCK as u32).to_le_bytes());
        put(&mut b, 16, &self.pool);
        put(&mut b, 32, &self.extent_bytes.to_le_bytes());
        put(&mut b, 40, &EXTENTS_START.to_le_bytes());
        put(&mut b, 48, &self.created_ms.to_le_bytes());
        let crc = crc32c(&b[..LEN - 4]);
        put(&mut b, LEN - 4, &crc.to_le_bytes());
        b
    }

    /// Reads a copy. The mark, the version and the checksum keep their places in every version of the format, so that a
    /// pool of another version is recognised as such.
    ///
    /// # Errors
    /// [`FormatError::Magic`] when no pool is there, [`FormatError::Version`] for another version's.
    pub fn decode(b: &[u8]) -> Result<Self, FormatError> {
        if b.len() < LEN {
            return Err(FormatError::Short(WHAT));
        }
        if b[..8] != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        if crc32c(&b[..LEN - 4]) != u32_at(b, LEN - 4) {
            return Err(FormatError::Checksum(WHAT));
        }
        let found = u32_at(b, 8);
        if found != FORMAT_VERSION {
            return Err(FormatError::Version { what: WHAT, found });
        }
        if u32_at(b, 12) != BLOCK as u32 {
            return Err(FormatError::Field("block size"));
        }
        let extent_bytes = u64_at(b, 32);
        if !(EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&extent_bytes) || !extent_bytes.is_multiple_of(BLOCK as u64)
        {
            return Err(FormatError::Field("extent size"));
        }
        if u64_at(b, 40) != EXTENTS_START {
            return Err(FormatError::Field("start of extents"));
        }
        Ok(Self { pool: field(b, 16), extent_bytes, created_ms: u64_at(b, 48) })
    }

    /// Where an extent begins on the disk, in bytes.
    pub fn extent_start(&self, extent: u32) -> u64 {
        EXTENTS_START + u64::from(extent) * self.extent_bytes
    }
}
