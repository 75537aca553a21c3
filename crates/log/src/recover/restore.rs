//! Extents that copy 0 of the disk has lost as a whole, and that another copy still has.
//!
//! Without header, first frame and trailer, an extent on copy 0 looks unused; only the roster shows
//! the loss. The order of the restore makes a crash leave the extent either missing, or known by
//! its trailer, which proves its contents. The header is written when the rest is durable.
//!
//! Records count only with their trailer. The other copy may also lack the end of an open extent,
//! without a trace: a super-disk's fast leg is filled from the durable one, and so with the zeros
//! of lost data. Records name their chunks, so a missing chunk is detected.

use steadfast_disk::BLOCK;

use super::lost::is_missing;
use super::survey::Found;
use crate::copies::{Copies, HeaderOf, Heal, TrailerOf};
use crate::extents::ExtentInfo;
use crate::format::{ExtentHeader, ExtentId, ExtentKind, FormatError, RosterEntry, RosterUse, Superblock, Trailer};
use crate::heal;
use crate::roster::RosterRead;

/// Bytes read at a time to test whether a copy can be read.
const PIECE: u64 = 1 << 20;

/// Restores the extents that the roster misses from the first copy that has them. Others stay as
/// found.
pub(super) async fn restore(copies: &Copies, pool: &Superblock, found: &mut [Found], roster: &RosterRead) {
    for f in found {
        let Some(entry) = roster.get(f.extent).filter(|entry| entry.epoch > 0 && is_missing(entry, f.epoch)) else {
            continue;
        };
        for copy in 1..copies.count() {
            let Some((header, trailer)) = whole(copies, pool, f.extent, &entry, copy).await else { continue };
            if !restore_extent(copies, pool, copy, &header, trailer.as_ref()).await {
                // Still lost; the next start retries.
                continue;
            }
            f.is(&header);
            f.epoch_max = f.epoch_max.max(f.epoch);
            f.trailer = trailer;
            f.damage = None;
            f.healed.push((0, format!("the extent was lost here, and taken from copy {copy}")));
            break;
        }
    }
}

/// Header and trailer of the missing use, from one copy. An open body extent has no trailer. Then
/// the copy counts only if all of it can be read, and its last block cannot have been a trailer.
async fn whole(
    copies: &Copies,
    pool: &Superblock,
    extent: u32,
    entry: &RosterEntry,
    copy: u32,
) -> Option<(ExtentHeader, Option<Trailer>)> {
    let start = pool.extent_start(extent);
    let id = ExtentId { pool: pool.pool, extent, epoch: entry.epoch };
    let header = copies.read(copy, start, &HeaderOf { id, exact: false }).await.ok()?.value;
    if header.kind == ExtentKind::Free {
        // It was recycled since; the roster is updated later.
        return Some((header, None));
    }
    if header.id.epoch == entry.epoch && entry.used != RosterUse::Unknown && RosterUse::from(header.kind) != entry.used
    {
        return None;
    }
    let trailer_at = start + pool.extent_bytes - BLOCK as u64;
    let place = TrailerOf { id: header.id, extent_bytes: pool.extent_bytes };
    if let Ok(trailer) = copies.read(copy, trailer_at, &place).await {
        return (trailer.value.kind == header.kind).then_some((header, Some(trailer.value)));
    }
    if header.kind == ExtentKind::Commit {
        return None;
    }
    let disk = copies.disk();
    let never = {
        let last = disk.read_copy(copy, trailer_at, BLOCK).await.ok()?;
        match Trailer::decode(&last, pool.extent_bytes) {
            Ok(older) => (older.id.pool, older.id.extent) == (id.pool, extent) && older.id.epoch < header.id.epoch,
            Err(FormatError::Magic(_)) => last.iter().all(|byte| *byte == 0),
            Err(_) => false,
        }
    };
    let mut at = if never { 0 } else { return None };
    while at < pool.extent_bytes {
        let len = PIECE.min(pool.extent_bytes - at);
        disk.read_copy(copy, start + at, len as usize).await.ok()?;
        at += len;
    }
    Some((header, None))
}

/// Heals copy 0 with all available data. Returns whether the header is durable there again.
async fn restore_extent(
    copies: &Copies,
    pool: &Superblock,
    copy: u32,
    header: &ExtentHeader,
    trailer: Option<&Trailer>,
) -> bool {
    let (id, start) = (header.id, pool.extent_start(header.id.extent));
    tracing::error!(
        extent = id.extent,
        epoch = id.epoch,
        copy,
        "the first copy of an extent is lost; restoring it from another copy"
    );
    if header.kind != ExtentKind::Free {
        let info = ExtentInfo {
            epoch: id.epoch,
            kind: header.kind,
            data_end: trailer.map_or(pool.extent_bytes - BLOCK as u64, |t| u64::from(t.data_end)),
            footer: trailer.map(|t| (t.footer_offset, t.footer_len)),
            ..ExtentInfo::new(id.extent)
        };
        match heal::contents(copies, pool, &info).await {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                tracing::error!(extent = id.extent, %error, "a restored extent is not durable");
                return false;
            }
        }
    }
    let healed = copies.heal(0, start, &header.encode().to_vec().into(), &HeaderOf { id, exact: true }).await;
    if healed == Heal::Failed {
        tracing::error!(extent = id.extent, "the header of a restored extent cannot be written");
    }
    matches!(healed, Heal::Done | Heal::Nothing)
}
