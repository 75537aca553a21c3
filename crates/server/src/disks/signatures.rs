//! Signatures of file systems, volume managers and partition tables: bytes at fixed offsets.
//!
//! Sources: libblkid (util-linux) and the documentation of the formats.

/// Bytes at an offset, and their meaning.
#[derive(Debug)]
pub struct Signature {
    /// Name of the format, with an article.
    pub name: &'static str,
    /// Offset from the start.
    pub offset: u64,
    /// The bytes there.
    pub magic: &'static [u8],
}

const fn at(offset: u64, magic: &'static [u8], name: &'static str) -> Signature {
    Signature { name, offset, magic }
}

/// Linux md's magic, in its little-endian form.
const MD: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];

const BCACHE: &[u8] = &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81];
const BCACHEFS: &[u8] =
    &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef];

/// Bytes at the start of a disk that [`at_start`] needs.
pub const START_BYTES: usize = 260 << 10;

/// Bytes at the end of a disk that [`at_end`] needs.
pub const END_BYTES: usize = 128 << 10;

/// Signatures at the start, the more specific ones first: a file system in a partition may also
/// carry the mark of an MBR.
const START: &[Signature] = &[
    at(0, b"LUKS\xba\xbe", "a LUKS volume"),
    at(0, b"bluestore block device", "a Ceph BlueStore disk"),
    at(0, b"XFSB", "an XFS file system"),
    at(0, b"hsqs", "a squashfs image"),
    at(0, MD, "a member of an md RAID"),
    at(4096, MD, "a member of an md RAID"),
    at(0, b"LABELONE", "an LVM physical volume"),
    at(512, b"LABELONE", "an LVM physical volume"),
    at(1024, b"LABELONE", "an LVM physical volume"),
    at(1536, b"LABELONE", "an LVM physical volume"),
    at(4096 + 24, BCACHE, "a bcache disk"),
    at(4096 + 24, BCACHEFS, "a bcachefs file system"),
    at(0x1_0040, b"_BHRfS_M", "a Btrfs file system"),
    at(1024, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS file system"),
    at(1024, &[0xe2, 0xe1, 0xf5, 0xe0], "an EROFS image"),
    at(1024 + 56, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    at(32_768, b"JFS1", "a JFS file system"),
    at(32_769, b"CD001", "an ISO 9660 image"),
    at(32, b"ORCLDISK", "an Oracle ASM disk"),
    at(4096 - 10, b"SWAPSPACE2", "swap space"),
    at(4096 - 10, b"SWAP-SPACE", "swap space"),
    at(3, b"NTFS    ", "an NTFS file system"),
    at(3, b"EXFAT   ", "an exFAT file system"),
    at(82, b"FAT32   ", "a FAT file system"),
    at(54, b"FAT1", "a FAT file system"),
    at(512, b"EFI PART", "a GPT partition table"),
    at(4096, b"EFI PART", "a GPT partition table"),
    at(510, &[0x55, 0xaa], "a partition table (MBR) or boot sector"),
];

/// The format that the first bytes of a disk show.
pub fn at_start(bytes: &[u8]) -> Option<&'static str> {
    let has = |s: &&Signature| {
        let from = usize::try_from(s.offset).unwrap_or(usize::MAX);
        bytes.get(from..).is_some_and(|rest| rest.starts_with(s.magic))
    };
    START.iter().find(has).map(|s| s.name).or_else(|| zfs(bytes))
}

/// ZFS has no mark at a fixed offset, but a ring of uberblocks with one each.
fn zfs(bytes: &[u8]) -> Option<&'static str> {
    let ring = bytes.get(128 << 10..256 << 10)?;
    let marks: [&[u8]; 2] = [&[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0], &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c]];
    ring.chunks(1024).any(|block| marks.iter().any(|mark| block.starts_with(mark))).then_some("a ZFS disk")
}

/// The format that the last bytes of a disk of `size` bytes show; `bytes` ends where the disk ends.
pub fn at_end(bytes: &[u8], size: u64) -> Option<&'static str> {
    let from_end = |back: u64, magic: &[u8]| {
        let at = usize::try_from(back).ok().and_then(|back| bytes.len().checked_sub(back));
        at.is_some_and(|at| bytes[at..].starts_with(magic))
    };
    if from_end(512, b"EFI PART") || from_end(4096, b"EFI PART") {
        return Some("a GPT partition table (the copy at its end)");
    }
    // md 0.90 has its superblock 64 to 128 KiB before the end, at a multiple of 64 KiB; md 1.0 has
    // it 8 to 12 KiB before the end, at a multiple of 4 KiB.
    let back_0_90 = size.checked_sub((size & !0xffff).saturating_sub(64 << 10)).unwrap_or(u64::MAX);
    let back_1_0 = size.checked_sub(size.saturating_sub(8 << 10) & !0xfff).unwrap_or(u64::MAX);
    if from_end(back_0_90, MD) || from_end(back_1_0, MD) {
        return Some("a member of an md RAID");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_is_read_where_it_is_looked_for() {
        for signature in START {
            let mut bytes = vec![0u8; START_BYTES];
            let from = signature.offset as usize;
            bytes[from..from + signature.magic.len()].copy_from_slice(signature.magic);
            assert_eq!(at_start(&bytes), Some(signature.name));
        }
        assert_eq!(at_start(&vec![0; START_BYTES]), None);
        assert_eq!(at_start(b"short"), None);
    }

    #[test]
    fn zfs_is_known_by_any_of_its_uberblocks() {
        let mut bytes = vec![0u8; START_BYTES];
        let at = (128 << 10) + 37 * 1024;
        bytes[at..at + 8].copy_from_slice(&0x00ba_b10cu64.to_le_bytes());
        assert_eq!(at_start(&bytes), Some("a ZFS disk"));
    }

    #[test]
    fn what_stands_at_the_end() {
        let size = (64 << 20) + 12_288u64;
        let with = |offset: u64, magic: &[u8]| {
            let mut bytes = vec![0u8; END_BYTES];
            let at = END_BYTES - (size - offset) as usize;
            bytes[at..at + magic.len()].copy_from_slice(magic);
            at_end(&bytes, size)
        };
        assert_eq!(with(size - 512, b"EFI PART"), Some("a GPT partition table (the copy at its end)"));
        assert_eq!(with((64 << 20) - (64 << 10), MD), Some("a member of an md RAID"));
        assert_eq!(with((size - (8 << 10)) & !0xfff, MD), Some("a member of an md RAID"));
        assert_eq!(with(size - 1024, b"nothing"), None);
        assert_eq!(at_end(b"short", 5), None);
    }
}
