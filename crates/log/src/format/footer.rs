//! The footer of a sealed extent: the heads of its records with their places, so that start-up
//! reads footers instead of data.
//!
//! A sequence of blocks, each a multiple of the disk's block long and separately verifiable, so
//! that writer and reader stream it.

use steadfast_disk::BLOCK;

use super::Lsn;
use super::record::HEAD_BYTES_MAX;
use super::{ExtentId, FORMAT_VERSION, FormatError, field, put, u16_at, u32_at, u64_at};

/// Bytes of a footer block's header.
pub const FOOTER_BLOCK_HEADER: usize = 64;
/// Bytes of entries at which a footer block is closed.
pub const FOOTER_BLOCK_BYTES: usize = 256 << 10;

const ENTRY: usize = 32;
const WHAT: &str = "footer block";
const MAGIC: u32 = u32::from_le_bytes(*b"SFFT");
const FLAG_MOVED: u32 = 1;

/// A record's entry in the footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FooterEntry<'a> {
    /// Its LSN; 0 for a chunk.
    pub lsn: Lsn,
    /// Its version.
    pub version: Lsn,
    /// Whether it was appended with a version.
    pub moved: bool,
    /// Bytes from the start of the extent to the record's header.
    pub offset: u32,
    /// Bytes of its body.
    pub body_len: u32,
    /// Its head.
    pub head: &'a [u8],
}

/// Bytes that an entry takes.
pub fn footer_entry_bytes(head_len: usize) -> usize {
    ENTRY + head_len
}

/// The most that a footer with `entry_bytes` bytes of entries takes on disk.
pub fn footer_bytes_max(entry_bytes: u64) -> u64 {
    let blocks = entry_bytes / FOOTER_BLOCK_BYTES as u64 + 1;
    (entry_bytes + blocks * (FOOTER_BLOCK_HEADER + BLOCK) as u64).next_multiple_of(BLOCK as u64)
}

impl FooterEntry<'_> {
    /// Appends the entry to a footer block that is being built.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut b = [0u8; ENTRY];
        put(&mut b, 0, &self.lsn.to_le_bytes());
        put(&mut b, 8, &self.version.to_le_bytes());
        put(&mut b, 16, &self.offset.to_le_bytes());
        put(&mut b, 20, &(self.head.len() as u32).to_le_bytes());
        put(&mut b, 24, &self.body_len.to_le_bytes());
        put(&mut b, 28, &(if self.moved { FLAG_MOVED } else { 0 }).to_le_bytes());
        out.extend_from_slice(&b);
        out.extend_from_slice(self.head);
    }
}

/// Fills in the header of a footer block and pads it. `block` is [`FOOTER_BLOCK_HEADER`] bytes and
/// then the encoded entries.
///
/// # Panics
/// If `block` is shorter than its header.
pub fn seal_footer_block(block: &mut Vec<u8>, id: &ExtentId, offset: u32, index: u32, entries: u32) {
    let len = block.len() - FOOTER_BLOCK_HEADER;
    block[..FOOTER_BLOCK_HEADER].fill(0);
    put(block, 0, &MAGIC.to_le_bytes());
    put(block, 4, &(FORMAT_VERSION as u16).to_le_bytes());
    put(block, 8, &id.pool);
    put(block, 24, &id.extent.to_le_bytes());
    put(block, 28, &index.to_le_bytes());
    put(block, 32, &id.epoch.to_le_bytes());
    put(block, 40, &entries.to_le_bytes());
    put(block, 44, &(len as u32).to_le_bytes());
    let crc = checksum(block, id, offset);
    put(block, FOOTER_BLOCK_HEADER - 4, &crc.to_le_bytes());
    block.resize(block.len().next_multiple_of(BLOCK), 0);
}

fn checksum(block: &[u8], id: &ExtentId, offset: u32) -> u32 {
    let mut digest = id.seed().digest(offset);
    digest.update(&block[..FOOTER_BLOCK_HEADER - 4]);
    digest.update(&block[FOOTER_BLOCK_HEADER..]);
    digest.finalize() as u32
}

/// A verified footer block.
#[derive(Debug, Clone, Copy)]
pub struct FooterBlock<'a> {
    entries: &'a [u8],
    count: u32,
}

impl<'a> FooterBlock<'a> {
    /// Bytes on disk of the block that begins with `bytes`, from its header; at most
    /// [`FooterBlock::len_max`].
    ///
    /// # Errors
    /// If no footer block begins there.
    pub fn peek_len(bytes: &[u8]) -> Result<usize, FormatError> {
        if bytes.len() < FOOTER_BLOCK_HEADER {
            return Err(FormatError::Short(WHAT));
        }
        if u32_at(bytes, 0) != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        let len = (u32_at(bytes, 44) as usize).saturating_add(FOOTER_BLOCK_HEADER);
        if len > Self::len_max() {
            return Err(FormatError::Field("footer block length"));
        }
        Ok(len.next_multiple_of(BLOCK))
    }

    /// The most that a footer block takes on disk.
    pub fn len_max() -> usize {
        (FOOTER_BLOCK_HEADER + FOOTER_BLOCK_BYTES + ENTRY + HEAD_BYTES_MAX).next_multiple_of(BLOCK)
    }

    /// Decodes and verifies the block at the start of `bytes`, which lies at `offset` in the extent
    /// and must be number `index`.
    ///
    /// # Errors
    /// If it is cut short or another block.
    pub fn decode(bytes: &'a [u8], id: &ExtentId, offset: u32, index: u32) -> Result<Self, FormatError> {
        Self::peek_len(bytes)?;
        let len = u32_at(bytes, 44) as usize;
        let block = bytes.get(..FOOTER_BLOCK_HEADER + len).ok_or(FormatError::Short(WHAT))?;
        let found = ExtentId { pool: field(block, 8), extent: u32_at(block, 24), epoch: u64_at(block, 32) };
        if found != *id || u32_at(block, 28) != index {
            return Err(FormatError::Field("place of the footer block"));
        }
        if checksum(block, id, offset) != u32_at(block, FOOTER_BLOCK_HEADER - 4) {
            return Err(FormatError::Checksum(WHAT));
        }
        let version = u32::from(u16_at(block, 4));
        if version != FORMAT_VERSION {
            return Err(FormatError::Version { what: WHAT, found: version });
        }
        Ok(Self { entries: &block[FOOTER_BLOCK_HEADER..], count: u32_at(block, 40) })
    }

    /// Bytes that its checksum covers. The rest of its last block is zero.
    pub fn covered_bytes(&self) -> usize {
        FOOTER_BLOCK_HEADER + self.entries.len()
    }

    /// Number of entries, from its header.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Its entries in the order of the writes. Ends after the first error.
    pub fn entries(&self) -> impl Iterator<Item = Result<FooterEntry<'a>, FormatError>> + use<'a> {
        let mut rest = self.entries;
        let mut left = self.count;
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            left -= 1;
            let item = next_entry(&mut rest);
            if item.is_err() {
                left = 0;
            }
            Some(item)
        })
    }
}

fn next_entry<'a>(rest: &mut &'a [u8]) -> Result<FooterEntry<'a>, FormatError> {
    let b = *rest;
    if b.len() < ENTRY {
        return Err(FormatError::Short("footer entry"));
    }
    let head_len = u32_at(b, 20) as usize;
    if head_len > HEAD_BYTES_MAX {
        return Err(FormatError::Field("head length"));
    }
    let head = b.get(ENTRY..ENTRY + head_len).ok_or(FormatError::Short("footer entry"))?;
    *rest = &b[ENTRY + head_len..];
    Ok(FooterEntry {
        lsn: u64_at(b, 0),
        version: u64_at(b, 8),
        moved: u32_at(b, 28) & FLAG_MOVED != 0,
        offset: u32_at(b, 16),
        body_len: u32_at(b, 24),
        head,
    })
}
