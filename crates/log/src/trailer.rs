//! Finding the trailer of an extent: in its last block, or on zones in one of a few places.

use std::sync::Arc;

use steadfast_disk::{BLOCK, Disk};

use crate::format::{Superblock, Trailer};

/// Possible offsets of the extent's trailer, in search order. On zones, only those before the write
/// pointer.
pub(crate) fn places(disk: &Arc<dyn Disk>, superblock: &Superblock, extent: u32) -> Vec<u64> {
    let start = superblock.extent_start(extent);
    let zone = superblock.zones.and_then(|_| disk.zone(start));
    let written = zone.map_or(u64::MAX, |zone| zone.write_pointer.saturating_sub(start));
    superblock.trailer_places().filter(|place| *place < written).collect()
}

/// The trailer of the extent and its offset: that of `epoch`, else the one of the highest epoch.
/// Behind its end, a finished zone may show its earlier contents, so an older trailer may be found
/// first.
pub(crate) async fn find(
    disk: &Arc<dyn Disk>,
    superblock: &Superblock,
    extent: u32,
    epoch: Option<u64>,
) -> Option<(u64, Trailer)> {
    find_on(0, disk, superblock, extent, epoch).await
}

/// As [`find`], on another copy of the disk.
pub(crate) async fn find_on(
    copy: u32,
    disk: &Arc<dyn Disk>,
    superblock: &Superblock,
    extent: u32,
    epoch: Option<u64>,
) -> Option<(u64, Trailer)> {
    let start = superblock.extent_start(extent);
    let mut best: Option<(u64, Trailer)> = None;
    for place in places(disk, superblock, extent) {
        let Ok(block) = disk.read_copy(copy, start + place, BLOCK).await else { continue };
        let Ok(trailer) = Trailer::decode(&block, superblock.extent_bytes) else { continue };
        if (trailer.id.pool, trailer.id.extent) != (superblock.pool, extent) {
            continue;
        }
        if epoch == Some(trailer.id.epoch) {
            return Some((place, trailer));
        }
        if best.as_ref().is_none_or(|(_, other)| other.id.epoch < trailer.id.epoch) {
            best = Some((place, trailer));
        }
    }
    best
}
