//! The bytes on disk, as drawn in `docs/format.md`.
//!
//! Every decoder takes foreign bytes. It never panics, and never allocates from a length that it
//! has not checked against the input. All integers are little-endian. All checksums are CRC32C,
//! seeded with pool, extent, epoch and the offset in the extent. So bytes of an earlier use of the
//! extent, and misdirected writes, never validate.

mod extent;
mod features;
mod footer;
mod frame;
mod lineage;
mod record;
mod roster;
mod superblock;
#[cfg(test)]
mod tests;

pub use extent::{ExtentHeader, ExtentKind, Trailer};
pub use features::Features;
pub use footer::{
    FOOTER_BLOCK_BYTES, FOOTER_BLOCK_HEADER, FooterBlock, FooterEntry, footer_bytes_max, footer_entry_bytes,
    seal_footer_block,
};
pub use frame::{FRAME_HEADER, FrameHeader, FrameKind, RecordIter};
pub use lineage::{LINEAGE, Lineage, Opening};
pub use record::{
    CHECK_BYTES, HEAD_BYTES_MAX, RECORD_HEADER, RecordHeader, RecordView, check_count, encode_record,
    fill_record_front, record_bytes, verify_body,
};
pub use roster::{ROSTER_BLOCKS, ROSTER_ENTRIES, RosterEntry, RosterUse, decode_roster, encode_roster, roster_begin};
pub use superblock::{Ledger, SUPERBLOCK_OFFSETS, Superblock, TRAILER_PLACES, Zoning};

use crc_fast::{CrcAlgorithm, Digest};

/// Log sequence number: the position of a record in the order of commits. The first record of a log
/// has 1.
pub type Lsn = u64;

/// Version of the format that this build writes and reads. The superblock of a pool on zones has
/// [`ZONED_VERSION`].
pub const FORMAT_VERSION: u32 = 1;
/// Version in the superblock of a pool on zones. All its other structures have [`FORMAT_VERSION`].
pub const ZONED_VERSION: u32 = 2;
/// Version in the superblock of a pool, on zones or not, whose features builds older than
/// [`Features`] must not ignore.
pub const FEATURES_VERSION: u32 = 3;
/// Offset of extent 0, behind the superblocks.
pub const EXTENTS_START: u64 = 1 << 20;
/// Smallest extent, in bytes.
pub const EXTENT_BYTES_MIN: u64 = 256 << 10;
/// Largest extent, in bytes: an offset in it fits 32 bits.
pub const EXTENT_BYTES_MAX: u64 = 1 << 31;

/// Reason why a decoder refused bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Fewer bytes than the structure has.
    #[error("{0} is cut short")]
    Short(&'static str),
    /// The structure does not begin with its magic: other data is there.
    #[error("no {0} here")]
    Magic(&'static str),
    /// Whole and valid, but of another version of the format.
    #[error(
        "{what} of format version {found}; this build reads version {FORMAT_VERSION} (and {ZONED_VERSION}, a pool on zones, and {FEATURES_VERSION}, one with features)"
    )]
    Version {
        /// The structure.
        what: &'static str,
        /// The version found.
        found: u32,
    },
    /// Whole and valid, but with features of the format that this build does not know.
    #[error(
        "the pool uses features of the format (incompatible {0:#x}) that this build does not know: open it with a newer build"
    )]
    Features(u32),
    /// The checksum does not match the bytes.
    #[error("checksum mismatch in {0}")]
    Checksum(&'static str),
    /// A field has a forbidden value.
    #[error("impossible field: {0}")]
    Field(&'static str),
}

/// Identity of one use of an extent of a pool. It seeds all checksums in the extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentId {
    /// UUID of the pool.
    pub pool: [u8; 16],
    /// Number of the extent.
    pub extent: u32,
    /// Number of this use: higher than that of every earlier use of any extent of the pool.
    pub epoch: u64,
}

impl ExtentId {
    /// The seed of the checksums.
    pub fn seed(&self) -> Seed {
        let mut bytes = [0u8; 28];
        bytes[..16].copy_from_slice(&self.pool);
        bytes[16..20].copy_from_slice(&self.extent.to_le_bytes());
        bytes[20..].copy_from_slice(&self.epoch.to_le_bytes());
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(&bytes);
        Seed(digest.get_state() as u32)
    }
}

/// Initial state of the checksums in one use of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(u32);

impl Seed {
    /// A digest for bytes at `offset` in the extent. Equal bytes at different offsets have
    /// different checksums.
    pub fn digest(self, offset: u32) -> Digest {
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(self.0));
        digest.update(&offset.to_le_bytes());
        digest
    }

    /// The checksum of `data` at `offset` in the extent.
    pub fn crc(self, offset: u32, data: &[u8]) -> u32 {
        let mut digest = self.digest(offset);
        digest.update(data);
        digest.finalize() as u32
    }
}

/// Plain CRC32C, for structures outside extents.
fn crc32c(data: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(data)
}

/// Reads little-endian fields at fixed offsets. The caller has checked the length.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(field(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(field(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(field(bytes, at))
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}
