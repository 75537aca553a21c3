//! Extents that copy 0 of the disk has lost as a whole, and that another copy still has.
//!
//! Copy 0 without header, first frame and trailer looks like an extent that was never used: only the roster knows better. What is given back goes
//! in an order in which a crash leaves the extent missing, or known by its trailer, which says what is to be there: its header comes when the rest is durable.
//!
//! Records count only with their trailer. The end of an extent that was open may be missing on the other copy, too, which nothing there shows: what a
//! super-disk's fast leg did not have is filled from the durable one, and so with the zeros of what was lost. Chunks are named by records, so a missing one is missed.

use steadfast_disk::BLOCK;

use super::lost::is_missing;
use super::survey::Found;
use crate::copies::{Copies, HeaderOf, Heal, TrailerOf};
use crate::extents::ExtentInfo;
use crate::format::{ExtentHeader, ExtentId, ExtentKind, FormatError, RosterEntry, RosterUse, Superblock, Trailer};
use crate::mend;
use crate::roster::RosterRead;

/// Bytes read at a time to see whether a copy can be read.
const PIECE: u64 = 1 << 20;

/// Gives back what the roster misses from the first copy that has it. What no copy has stays as it was found.
pub(super) async fn restore(copies: &Copies, pool: &Superblock, found: &mut [Found], roster: &RosterRead) {
    for f in found {
        let Some(entry) = roster.get(f.extent).filter(|entry| entry.epoch > 0 && is_missing(entry, f.epoch)) else {
            continue;
        };
        for copy in 1..copies.count() {
            let Some((header, trailer)) = whole(copies, pool, f.extent, &entry, copy).await else { continue };
            if !give_back(copies, pool, copy, &header, trailer.as_ref()).await {
                // As lost as before; the next start tries again.
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

/// Header and trailer of the use that is missed, from one copy. An extent of chunks that was open has no trailer: then the copy counts only if all of it
/// can be read, and its last block is nothing that may have been a trailer.
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
        // It was recycled since; the roster says so later.
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
    let last = disk.read_copy(copy, trailer_at, BLOCK).await.ok()?;
    let never = match Trailer::decode(&last, pool.extent_bytes) {
        Ok(older) => (older.id.pool, older.id.extent) == (id.pool, extent) && older.id.epoch < header.id.epoch,
        Err(FormatError::Magic(_)) => last.iter().all(|byte| *byte == 0),
        Err(_) => false,
    };
    let mut at = if never { 0 } else { return None };
    while at < pool.extent_bytes {
        let len = PIECE.min(pool.extent_bytes - at);
        disk.read_copy(copy, start + at, len as usize).await.ok()?;
        at += len;
    }
    Some((header, None))
}

/// Heals copy 0 with all that is there; whether it has the header again, durably.
async fn give_back(
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
        "the first copy of an extent is lost; it is given back"
    );
    if header.kind != ExtentKind::Free {
        let info = ExtentInfo {
            epoch: id.epoch,
            kind: header.kind,
            data_end: trailer.map_or(pool.extent_bytes - BLOCK as u64, |t| u64::from(t.data_end)),
            footer: trailer.map(|t| (t.footer_offset, t.footer_len)),
            ..ExtentInfo::new(id.extent)
        };
        match mend::contents(copies, pool, &info).await {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                tracing::error!(extent = id.extent, %error, "what was given back is not durable");
                return false;
            }
        }
    }
    let healed = copies.heal(0, start, &header.encode().to_vec().into(), &HeaderOf { id, exact: true }).await;
    if healed == Heal::Failed {
        tracing::error!(extent = id.extent, "the header of an extent that was given back cannot be written");
    }
    matches!(healed, Heal::Done | Heal::Nothing)
}
