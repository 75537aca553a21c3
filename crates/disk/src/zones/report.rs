//! Linux zone reports of a block device: the requests and answers of its `ioctl`s, in bytes.
//!
//! From `include/uapi/linux/blkzoned.h`. A report is a head (first sector, 8; number of zones, 4;
//! flags, 4) and 64 bytes per zone: start, length and write pointer in sectors (8 each), type,
//! condition and two flags (1 each), 4 reserved, capacity (8), 24 reserved. Native byte order.

use std::io;

use super::map::Pointer;
use crate::{BLOCK, ZoneGeometry};

/// `BLKREPORTZONE`, `_IOWR(0x12, 130, struct blk_zone_report)`.
pub(super) const BLKREPORTZONE: libc::Ioctl = 0xc010_1282u32 as libc::Ioctl;
/// `BLKRESETZONE`, `_IOW(0x12, 131, struct blk_zone_range)`.
pub(super) const BLKRESETZONE: libc::Ioctl = 0x4010_1283u32 as libc::Ioctl;
/// `BLKFINISHZONE`, `_IOW(0x12, 136, struct blk_zone_range)`.
pub(super) const BLKFINISHZONE: libc::Ioctl = 0x4010_1288u32 as libc::Ioctl;

/// Bytes per sector in these structures, whatever the device's sector size.
const SECTOR: u64 = 512;
pub(super) const HEAD: usize = 16;
pub(super) const ENTRY: usize = 64;
/// `BLK_ZONE_REP_CAPACITY`: the capacities are valid.
const HAS_CAPACITY: u32 = 1;

/// The type of a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ZoneKind {
    Conventional,
    /// Must be, or prefers to be, written in order.
    Sequential,
}

/// A zone as reported by the device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reported {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) capacity: u64,
    /// Written bytes from the start of the zone.
    pub(super) written: u64,
    pub(super) kind: ZoneKind,
    pub(super) full: bool,
    pub(super) dead: bool,
}

/// Encodes a request for up to `zones` zones from byte `start` on, with space for the answer.
pub(super) fn request(start: u64, zones: u32) -> Vec<u8> {
    let mut bytes = vec![0u8; HEAD + ENTRY * zones as usize];
    bytes[..8].copy_from_slice(&(start / SECTOR).to_ne_bytes());
    bytes[8..12].copy_from_slice(&zones.to_ne_bytes());
    bytes
}

/// Encodes the argument of a request for a range.
pub(super) fn range(start: u64, len: u64) -> [u64; 2] {
    [start / SECTOR, len / SECTOR]
}

fn u64_ne(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(field)
}

fn u32_ne(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(field)
}

fn nonsense(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the device's zone report is invalid: {text}"))
}

/// Decodes a report.
///
/// # Errors
/// `InvalidData` for an invalid report.
pub(super) fn decode(bytes: &[u8]) -> io::Result<Vec<Reported>> {
    if bytes.len() < HEAD {
        return Err(nonsense(format!("{} bytes", bytes.len())));
    }
    let (count, flags) = (u32_ne(bytes, 8) as usize, u32_ne(bytes, 12));
    let entries = &bytes[HEAD..];
    if count > entries.len() / ENTRY {
        return Err(nonsense(format!("{count} zones in {} bytes", bytes.len())));
    }
    entries.chunks_exact(ENTRY).take(count).map(|entry| zone(entry, flags & HAS_CAPACITY != 0)).collect()
}

fn zone(entry: &[u8], has_capacity: bool) -> io::Result<Reported> {
    let sectors = [u64_ne(entry, 0), u64_ne(entry, 8), u64_ne(entry, 16), u64_ne(entry, 32)];
    let (kind, condition) = (entry[24], entry[25]);
    let [start, len, pointer, capacity] = sectors;
    if start.checked_add(len).is_none_or(|end| end > u64::MAX / SECTOR) || len == 0 {
        return Err(nonsense(format!("a zone of {len} sectors at {start}")));
    }
    let capacity = if has_capacity { capacity } else { len };
    if capacity == 0 || capacity > len {
        return Err(nonsense(format!("a capacity of {capacity} sectors in a zone of {len}")));
    }
    let kind = match kind {
        1 => ZoneKind::Conventional,
        2 | 3 => ZoneKind::Sequential,
        other => return Err(nonsense(format!("a zone of type {other}"))),
    };
    let (mut full, mut dead) = (false, false);
    let written = match condition {
        // No write pointer, or empty.
        0 | 1 => 0,
        // Implicitly open, explicitly open, closed.
        2..=4 => match pointer.checked_sub(start) {
            Some(written) if written <= capacity => written,
            _ => return Err(nonsense(format!("a write pointer at sector {pointer} of a zone at {start}"))),
        },
        // Full: its pointer is undefined.
        0xe => {
            full = true;
            capacity
        }
        // Read-only, offline.
        0xd | 0xf => {
            dead = true;
            if condition == 0xd { capacity } else { 0 }
        }
        other => return Err(nonsense(format!("a zone in condition {other}"))),
    };
    let bytes = |sectors: u64| sectors * SECTOR;
    Ok(Reported {
        start: bytes(start),
        len: bytes(len),
        capacity: bytes(capacity),
        written: bytes(written),
        kind,
        full,
        dead,
    })
}

/// The layout that the log uses: conventional space at the beginning, and zones of one size behind
/// it. It excludes a smaller last zone, and everything from the next conventional zone on.
///
/// # Errors
/// `Unsupported` for a device with another layout.
pub(super) fn shape(zones: &[Reported], open_zones_max: u32) -> io::Result<(ZoneGeometry, Vec<Pointer>)> {
    let unsupported = |text: String| Err(io::Error::new(io::ErrorKind::Unsupported, text));
    let conventional_bytes: u64 = zones.iter().take_while(|z| z.kind == ZoneKind::Conventional).map(|z| z.len).sum();
    let sequential: Vec<&Reported> = zones
        .iter()
        .skip_while(|z| z.kind == ZoneKind::Conventional)
        .take_while(|z| z.kind == ZoneKind::Sequential)
        .collect();
    let Some(first) = sequential.first() else {
        return unsupported("the device has no zones that are written in order".into());
    };
    let (zone_bytes, capacity) = (first.len, first.capacity / BLOCK as u64 * BLOCK as u64);
    let mut pointers = Vec::with_capacity(sequential.len());
    for (i, zone) in sequential.iter().enumerate() {
        if zone.start != conventional_bytes + i as u64 * zone_bytes {
            return unsupported(format!("zone {i} begins at {}: zones of different sizes", zone.start));
        }
        if zone.len != zone_bytes {
            if i + 1 < sequential.len() {
                return unsupported(format!("zone {i} has {} bytes, the first {zone_bytes}", zone.len));
            }
            break;
        }
        if zone.capacity != first.capacity {
            return unsupported(format!("zone {i} takes {} bytes, the first {}", zone.capacity, first.capacity));
        }
        let block = BLOCK as u64;
        pointers.push(Pointer {
            blocks: (zone.written.min(capacity) / block) as u32,
            // Steadfast did not write a pointer that is not at a block boundary, and cannot
            // continue from it.
            failed: !zone.full && !zone.dead && !zone.written.is_multiple_of(block),
            finished: zone.full,
            dead: zone.dead,
            in_flight: 0,
        });
    }
    if !(zone_bytes | conventional_bytes).is_multiple_of(BLOCK as u64) || zone_bytes / BLOCK as u64 > u32::MAX.into() {
        return unsupported(format!("zones of {zone_bytes} bytes behind {conventional_bytes}: not blocks of {BLOCK}"));
    }
    let shape = ZoneGeometry { zone_bytes, zone_capacity_bytes: capacity, conventional_bytes, open_zones_max };
    Ok((shape, pointers))
}

/// The limit of open zones: the lower of sysfs's limits of open and of active zones, where 0 means
/// none.
pub(super) fn open_limit(open: Option<&str>, active: Option<&str>) -> u32 {
    let limits = [open, active].map(|text| text.and_then(|text| text.trim().parse::<u32>().ok()).unwrap_or(0));
    limits.into_iter().filter(|limit| *limit > 0).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A report as the kernel would return it: (start, len, pointer, type, condition, capacity), in
    /// MiB.
    fn answer(zones: &[(u64, u64, u64, u8, u8, u64)], flags: u32) -> Vec<u8> {
        let mut bytes = request(0, zones.len() as u32);
        bytes[12..16].copy_from_slice(&flags.to_ne_bytes());
        for (i, (start, len, pointer, kind, condition, capacity)) in zones.iter().enumerate() {
            let at = HEAD + i * ENTRY;
            for (field, mib) in [(0, start), (8, len), (16, pointer), (32, capacity)] {
                bytes[at + field..at + field + 8].copy_from_slice(&(mib * MIB / SECTOR).to_ne_bytes());
            }
            bytes[at + 24] = *kind;
            bytes[at + 25] = *condition;
        }
        bytes
    }

    #[test]
    fn requests_are_what_the_kernel_takes() {
        let bytes = request(64 * MIB, 3);
        assert_eq!(bytes.len(), 16 + 3 * 64);
        assert_eq!((u64_ne(&bytes, 0), u32_ne(&bytes, 8), u32_ne(&bytes, 12)), (64 * 2048, 3, 0));
        assert_eq!(range(4 * MIB, 2 * MIB), [8192, 4096]);
        // As the macros of linux/ioctl.h build them: direction, size of the argument, type, number.
        let made = |direction: u32, size: u32, number: u32| (direction << 30 | size << 16 | 0x12 << 8 | number) as i64;
        assert_eq!(BLKREPORTZONE as u32, made(3, 16, 130) as u32);
        assert_eq!(BLKRESETZONE as u32, made(1, 16, 131) as u32);
        assert_eq!(BLKFINISHZONE as u32, made(1, 16, 136) as u32);
    }

    #[test]
    fn a_report_is_read() {
        // Two conventional zones, one in each condition, and a smaller last one.
        let bytes = answer(
            &[
                (0, 256, 0, 1, 0, 256),
                (256, 256, 0, 1, 0, 256),
                (512, 256, 512, 2, 1, 192),
                (768, 256, 770, 2, 2, 192),
                (1024, 256, 1025, 2, 4, 192),
                (1280, 256, u64::MAX / MIB, 2, 0xe, 192),
                (1536, 256, 0, 2, 0xd, 192),
                (1792, 256, 0, 2, 0xf, 192),
                (2048, 100, 2048, 2, 1, 100),
            ],
            HAS_CAPACITY,
        );
        let zones = decode(&bytes).expect("a report");
        let (shape, pointers) = shape(&zones, 14).expect("a shape");
        let expected = ZoneGeometry {
            zone_bytes: 256 * MIB,
            zone_capacity_bytes: 192 * MIB,
            conventional_bytes: 512 * MIB,
            open_zones_max: 14,
        };
        assert_eq!(shape, expected);
        let blocks: Vec<_> = pointers.iter().map(|p| u64::from(p.blocks) * BLOCK as u64 / MIB).collect();
        assert_eq!(blocks, [0, 2, 1, 192, 192, 0]);
        let flags: Vec<_> = pointers.iter().map(|p| (p.finished, p.dead)).collect();
        assert_eq!(flags[3..], [(true, false), (false, true), (false, true)]);
        assert_eq!(flags[..3], [(false, false); 3]);
    }

    #[test]
    fn without_capacities_a_zone_takes_all_of_its_size() {
        // As kernels before 5.9 report.
        let zones = decode(&answer(&[(0, 64, 0, 2, 1, 0)], 0)).expect("a report");
        assert_eq!(zones[0].capacity, 64 * MIB);
    }

    #[test]
    fn nonsense_is_refused() {
        let good = answer(&[(0, 64, 3, 2, 2, 64)], HAS_CAPACITY);
        assert!(decode(&good).is_ok());
        assert!(decode(&good[..10]).is_err(), "cut short");
        assert!(decode(&good[..HEAD + 10]).is_err(), "fewer entries than it says");
        for bad in [(0, 0, 0, 2, 1, 0), (0, 64, 65, 2, 2, 64), (64, 64, 3, 2, 2, 64), (0, 64, 0, 9, 1, 64)] {
            assert!(decode(&answer(&[bad], HAS_CAPACITY)).is_err(), "{bad:?}");
        }
        assert!(decode(&answer(&[(0, 64, 0, 2, 7, 64)], HAS_CAPACITY)).is_err(), "an unknown condition");
        assert!(decode(&answer(&[(0, 64, 0, 2, 1, 65)], HAS_CAPACITY)).is_err(), "more capacity than size");
        let zones = |list: &[(u64, u64, u64, u8, u8, u64)]| decode(&answer(list, HAS_CAPACITY)).expect("a report");
        assert!(shape(&zones(&[(0, 64, 0, 1, 0, 64)]), 0).is_err(), "nothing sequential");
        let uneven = zones(&[(0, 64, 0, 2, 1, 64), (64, 32, 64, 2, 1, 32), (96, 64, 96, 2, 1, 64)]);
        assert!(shape(&uneven, 0).is_err(), "uneven zones");
        let capacities = zones(&[(0, 64, 0, 2, 1, 64), (64, 64, 64, 2, 1, 48)]);
        assert!(shape(&capacities, 0).is_err(), "uneven capacities");
    }

    #[test]
    fn a_pointer_between_blocks_cannot_be_continued_from() {
        let mut bytes = answer(&[(0, 64, 0, 2, 2, 64)], HAS_CAPACITY);
        bytes[HEAD + 16..HEAD + 24].copy_from_slice(&9u64.to_ne_bytes());
        let (_, pointers) = shape(&decode(&bytes).expect("a report"), 0).expect("a shape");
        assert!(pointers[0].failed && pointers[0].blocks == 1);
    }

    #[test]
    fn the_lower_limit_counts() {
        assert_eq!(open_limit(Some("14\n"), Some("0")), 14);
        assert_eq!(open_limit(Some("128"), Some("14")), 14);
        assert_eq!(open_limit(Some("0"), None), 0);
        assert_eq!(open_limit(None, Some("nonsense")), 0);
    }
}
