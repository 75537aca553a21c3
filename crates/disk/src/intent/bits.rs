//! The encoding of the intent bits on the durable disk.
//!
//! A sector holds 508 bytes of bits, the lowest first, and a CRC32C. The checksum covers the copy's
//! name, the sector's number and those bytes. A torn write therefore leaves whole sectors, old or
//! new. Bits that belong to another copy count as damaged.

use bytes::Bytes;

use crate::BLOCK;
use crate::label::u32_at;

/// Number of blocks of bits.
pub(crate) const BLOCKS: usize = 8;
/// Size of all blocks in bytes.
pub(crate) const BITS_BYTES: usize = BLOCKS * BLOCK;
const SECTOR: usize = 512;
const SECTOR_REGIONS: usize = (SECTOR - 4) * 8;
/// Number of regions whose bits share a block.
pub(crate) const BLOCK_REGIONS: usize = BLOCK / SECTOR * SECTOR_REGIONS;

fn checksum(copy: &[u8; 16], number: usize, bits: &[u8]) -> u32 {
    let mut bytes = Vec::with_capacity(SECTOR + 20);
    bytes.extend_from_slice(copy);
    bytes.extend_from_slice(&(number as u64).to_le_bytes());
    bytes.extend_from_slice(bits);
    crate::label::crc32c(&bytes)
}

/// Encodes one block.
pub(super) fn encode(block: usize, copy: &[u8; 16], is_set: impl Fn(usize) -> bool) -> Bytes {
    let mut bytes = vec![0u8; BLOCK];
    for (i, sector) in bytes.chunks_mut(SECTOR).enumerate() {
        let number = block * (BLOCK / SECTOR) + i;
        for region in 0..SECTOR_REGIONS {
            sector[region / 8] |= u8::from(is_set(number * SECTOR_REGIONS + region)) << (region % 8);
        }
        let crc = checksum(copy, number, &sector[..SECTOR - 4]);
        sector[SECTOR - 4..].copy_from_slice(&crc.to_le_bytes());
    }
    bytes.into()
}

/// Decodes the bits of the area. Regions of a damaged sector count as set.
pub(super) fn decode(area: &[u8], copy: &[u8; 16]) -> Vec<bool> {
    let mut set = vec![true; BLOCKS * BLOCK_REGIONS];
    for (number, sector) in area.chunks_exact(SECTOR).take(BITS_BYTES / SECTOR).enumerate() {
        let bits = &sector[..SECTOR - 4];
        if checksum(copy, number, bits) == u32_at(sector, SECTOR - 4) {
            for region in 0..SECTOR_REGIONS {
                set[number * SECTOR_REGIONS + region] = bits[region / 8] >> (region % 8) & 1 == 1;
            }
        }
    }
    set
}
