//! A block of the roster: the extents in use and their purpose, so that lost ones are detected.

use steadfast_disk::BLOCK;

use super::Lsn;
use super::{ExtentKind, FORMAT_VERSION, FormatError, SUPERBLOCK_OFFSETS, crc32c, field, put, u32_at, u64_at};

/// Number of extents in one block.
pub const ROSTER_ENTRIES: usize = (BLOCK - HEADER) / ENTRY;
/// Blocks of each of the two copies of the roster: as many as fit behind a superblock. It omits
/// extents beyond that.
pub const ROSTER_BLOCKS: usize = (512 << 10) / BLOCK - 1;

const HEADER: usize = 64;
const ENTRY: usize = 16;
const MAGIC: [u8; 8] = *b"SFROSTER";
const WHAT: &str = "roster of extents";

/// Offset of the blocks of copy `copy` (0 or 1) from the start of the disk, in bytes.
pub fn roster_begin(copy: usize) -> u64 {
    SUPERBLOCK_OFFSETS[copy % 2] + BLOCK as u64
}

/// Purpose of an extent in the roster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RosterUse {
    /// Free, or never used.
    #[default]
    Free,
    /// Lost, with an unknown purpose.
    Unknown,
    /// Frames of records.
    Commit,
    /// Chunks of bodies.
    Body,
}

impl RosterUse {
    fn code(self) -> u64 {
        match self {
            Self::Free => 0,
            Self::Unknown => 1,
            Self::Commit => 2,
            Self::Body => 3,
        }
    }
}

impl From<ExtentKind> for RosterUse {
    fn from(kind: ExtentKind) -> Self {
        match kind {
            ExtentKind::Free => Self::Free,
            ExtentKind::Commit => Self::Commit,
            ExtentKind::Body => Self::Body,
        }
    }
}

/// One extent in the roster. It is written when the header of that use is durable, and before other
/// data of that use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RosterEntry {
    /// Purpose.
    pub used: RosterUse,
    /// Epoch; below 2^62.
    pub epoch: u64,
    /// As in the extent's header.
    pub base_lsn: Lsn,
}

/// Encodes block `index` of the roster of this pool. Ignores entries beyond [`ROSTER_ENTRIES`].
pub fn encode_roster(pool: &[u8; 16], index: u32, entries: &[RosterEntry]) -> [u8; BLOCK] {
    let mut b = [0u8; BLOCK];
    put(&mut b, 0, &MAGIC);
    put(&mut b, 8, &FORMAT_VERSION.to_le_bytes());
    put(&mut b, 12, &index.to_le_bytes());
    put(&mut b, 16, pool);
    for (entry, at) in entries.iter().zip((HEADER..BLOCK).step_by(ENTRY)) {
        put(&mut b, at, &(entry.epoch << 2 | entry.used.code()).to_le_bytes());
        put(&mut b, at + 8, &entry.base_lsn.to_le_bytes());
    }
    let crc = crc32c(&b);
    put(&mut b, HEADER - 4, &crc.to_le_bytes());
    b
}

/// Decodes block `index` of the roster of this pool: [`ROSTER_ENTRIES`] entries.
///
/// # Errors
/// If it is not that block, whole and of this version.
pub fn decode_roster(bytes: &[u8], pool: &[u8; 16], index: u32) -> Result<Vec<RosterEntry>, FormatError> {
    let mut b: [u8; BLOCK] = bytes.get(..BLOCK).and_then(|b| b.try_into().ok()).ok_or(FormatError::Short(WHAT))?;
    if b[..8] != MAGIC {
        return Err(FormatError::Magic(WHAT));
    }
    let crc = u32_at(&b, HEADER - 4);
    put(&mut b, HEADER - 4, &[0; 4]);
    if crc32c(&b) != crc {
        return Err(FormatError::Checksum(WHAT));
    }
    let found = u32_at(&b, 8);
    if found != FORMAT_VERSION {
        return Err(FormatError::Version { what: WHAT, found });
    }
    if field::<16>(&b, 16) != *pool || u32_at(&b, 12) != index {
        return Err(FormatError::Field("place of the roster's block"));
    }
    let entry = |at: usize| {
        let word = u64_at(&b, at);
        let used = match word & 3 {
            0 => RosterUse::Free,
            1 => RosterUse::Unknown,
            2 => RosterUse::Commit,
            _ => RosterUse::Body,
        };
        RosterEntry { used, epoch: word >> 2, base_lsn: u64_at(&b, at + 8) }
    };
    Ok((HEADER..BLOCK).step_by(ENTRY).map(entry).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn comes_back(pool: [u8; 16], index: u32, raw: Vec<(u8, u32, u64)>, junk: Vec<u8>, at in 0..BLOCK) {
            let uses = [RosterUse::Free, RosterUse::Unknown, RosterUse::Commit, RosterUse::Body];
            let entries: Vec<RosterEntry> = raw
                .into_iter()
                .map(|(used, epoch, base_lsn)| RosterEntry { used: uses[usize::from(used % 4)], epoch: epoch.into(), base_lsn })
                .collect();
            let mut block = encode_roster(&pool, index, &entries);
            let back = decode_roster(&block, &pool, index).unwrap();
            prop_assert_eq!(back.len(), ROSTER_ENTRIES);
            prop_assert_eq!(&back[..entries.len()], &entries[..]);
            prop_assert!(decode_roster(&block, &pool, index.wrapping_add(1)).is_err());
            block[at] ^= 1;
            prop_assert!(decode_roster(&block, &pool, index).is_err());
            let _ = decode_roster(&junk, &pool, index);
        }
    }
}
