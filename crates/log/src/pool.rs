//! Formatting a pool on a disk, and recognising one.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use steadfast_disk::{BLOCK, Disk, ZoneGeometry, ZoneState, Zoned, ZonedOptions};
use steadfast_flow::Env;

use crate::LogError;
use crate::format::{
    EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, EXTENTS_START, FormatError, Ledger, SUPERBLOCK_OFFSETS, Superblock, Zoning,
};
use crate::options::FormatOptions;
use crate::placement::{open_zones_min, superblock_places};

/// Identity and layout of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PoolInfo {
    /// UUID.
    pub pool: String,
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Time of formatting, milliseconds since the Unix epoch.
    pub created_ms: u64,
}

impl From<&Superblock> for PoolInfo {
    fn from(sb: &Superblock) -> Self {
        let pool = uuid::Uuid::from_bytes(sb.pool).to_string();
        Self { pool, extent_bytes: sb.extent_bytes, created_ms: sb.created_ms }
    }
}

/// The usual size, or the largest power of two that gives at least 16 extents. Files take extents
/// ahead of need from their file system, so they have small ones, up to some 16,000.
fn choose_extent_bytes(capacity: u64, growable: bool) -> u64 {
    let of_file = (capacity / 16_384).next_power_of_two().clamp(64 << 20, 256 << 20);
    let usual: u64 = if growable { of_file } else { 1 << 30 };
    let share = capacity.saturating_sub(EXTENTS_START) / 16;
    let fitting = if share == 0 { 0 } else { 1 << (63 - share.leading_zeros()) };
    usual.min(fitting).max(1 << 20)
}

/// Writes the superblocks.
pub(crate) async fn format(disk: &Arc<dyn Disk>, env: &Env, options: &FormatOptions) -> Result<PoolInfo, LogError> {
    if !options.force {
        refuse_contents(disk).await?;
    }
    let disk = &match options.zones {
        Some(zones) => emulate(disk, zones, true).await?,
        None => disk.clone(),
    };
    let geometry = disk.geometry();
    let mut pool = [0u8; 16];
    pool[..8].copy_from_slice(&env.random_u64().to_le_bytes());
    pool[8..].copy_from_slice(&env.random_u64().to_le_bytes());
    let pool = *uuid::Builder::from_random_bytes(pool).as_uuid().as_bytes();
    let mut sb =
        Superblock { pool, extent_bytes: 0, created_ms: env.wall_ms(), zones: None, features: options.features };
    match &geometry.zones {
        Some(zones) => {
            sb.zones = Some(zoning(zones, options.zones.is_some())?);
            sb.extent_bytes = zone_extent_bytes(zones, options.extent_bytes)?;
        }
        None => {
            let usual = || choose_extent_bytes(geometry.capacity_bytes, geometry.growable);
            sb.extent_bytes = options.extent_bytes.unwrap_or_else(usual);
        }
    }
    let extent_bytes = sb.extent_bytes;
    if !(EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&extent_bytes) || !extent_bytes.is_multiple_of(BLOCK as u64) {
        return Err(LogError::Open(format!(
            "an extent of {extent_bytes} bytes: must be a multiple of {BLOCK} from {EXTENT_BYTES_MIN} to {EXTENT_BYTES_MAX}"
        )));
    }
    if sb.extents_in(geometry.capacity_bytes) < 4 {
        return Err(LogError::Open(format!(
            "{} holds {} bytes: too few for 4 extents of {extent_bytes}",
            disk.describe(),
            geometry.capacity_bytes
        )));
    }
    disk.reserve(EXTENTS_START).await.map_err(|e| cannot("reserve space on", disk, &e))?;
    let Some(zones) = &sb.zones else {
        for offset in SUPERBLOCK_OFFSETS {
            write_superblock(disk, &sb, offset).await?;
        }
        return Ok(PoolInfo::from(&sb));
    };
    reset_all(disk, zones, geometry.capacity_bytes).await?;
    let block = Bytes::copy_from_slice(&sb.encode_with(&Ledger { generation: 1, ..Ledger::default() }));
    for place in superblock_places(zones) {
        disk.write_flush(place, block.clone()).await.map_err(|e| cannot("write", disk, &e))?;
    }
    Ok(PoolInfo::from(&sb))
}

/// The layout of a pool on these zones.
fn zoning(zones: &ZoneGeometry, emulated: bool) -> Result<Zoning, LogError> {
    let &ZoneGeometry { zone_bytes, conventional_bytes, open_zones_max, .. } = zones;
    if conventional_bytes > 0 && conventional_bytes < EXTENTS_START {
        return Err(LogError::Open(format!(
            "{conventional_bytes} bytes in front of the zones may be written anywhere: use none, or at least {EXTENTS_START}"
        )));
    }
    let begin = if conventional_bytes == 0 { zone_bytes.saturating_mul(2) } else { conventional_bytes };
    let zoning = Zoning { begin, zone_bytes, conventional_bytes, open_zones_max, emulated };
    let min = open_zones_min(&zoning);
    if open_zones_max > 0 && open_zones_max < min {
        return Err(LogError::Open(format!(
            "only {open_zones_max} zones may be open at a time: the log needs {min} (for commits, bodies and sealing)"
        )));
    }
    Ok(zoning)
}

/// The extent size on zones: the writable part of a zone, up to the largest extent.
fn zone_extent_bytes(zones: &ZoneGeometry, wanted: Option<u64>) -> Result<u64, LogError> {
    let extent_bytes = zones.zone_capacity_bytes.min(EXTENT_BYTES_MAX);
    match wanted {
        Some(wanted) if wanted != extent_bytes => Err(LogError::Open(format!(
            "an extent of {wanted} bytes: on zones an extent is a zone, here of {extent_bytes}; do not set the extent size"
        ))),
        _ => Ok(extent_bytes),
    }
}

/// The disk, driven as an emulated zoned disk. `whole`: first grow it to its full size.
async fn emulate(disk: &Arc<dyn Disk>, zones: ZonedOptions, whole: bool) -> Result<Arc<dyn Disk>, LogError> {
    if disk.geometry().zones.is_some() {
        return Err(LogError::Open(format!("{} is a zoned device: zones cannot be emulated on it", disk.describe())));
    }
    if whole {
        disk.reserve(disk.geometry().capacity_bytes).await.map_err(|e| cannot("reserve space on", disk, &e))?;
    }
    let zoned = Zoned::open(disk.clone(), zones).await.map_err(|e| cannot("emulate zones on", disk, &e))?;
    Ok(zoned)
}

/// Resets all zones: those that an earlier user left open count towards the limit.
async fn reset_all(disk: &Arc<dyn Disk>, zones: &Zoning, len: u64) -> Result<(), LogError> {
    let mut at = zones.conventional_bytes;
    while at + zones.zone_bytes <= len {
        if disk.zone(at).is_some_and(|zone| !matches!(zone.state, ZoneState::Empty | ZoneState::Dead)) {
            disk.reset_zone(at).await.map_err(|e| cannot("reset a zone of", disk, &e))?;
        }
        at += zones.zone_bytes;
    }
    Ok(())
}

/// State for opening a pool: the disk as the log drives it, and the contents of its superblocks.
pub(crate) struct Head {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) superblock: Superblock,
    /// Default if no good copy has a ledger, or if the pool has none.
    pub(crate) ledger: Ledger,
    /// Offsets of damaged copies.
    pub(crate) bad: Vec<u64>,
}

/// Reads the superblocks. A pool formatted with emulated zones gets them again.
pub(crate) async fn read_head(disk: &Arc<dyn Disk>) -> Result<Head, LogError> {
    let (first, mut ledger, mut bad) = read_superblock(disk).await?;
    let (superblock, geometry) = (first, disk.geometry().zones);
    let Some(zones) = superblock.zones else {
        if geometry.is_some() {
            let text = format!("{}: the pool was not formatted for zones, but the device is zoned", disk.describe());
            return Err(LogError::Open(text));
        }
        return Ok(Head { disk: disk.clone(), superblock, ledger, bad });
    };
    let disk = match geometry {
        None if zones.emulated => {
            let options = ZonedOptions {
                zone_bytes: zones.zone_bytes,
                zone_capacity_bytes: superblock.extent_bytes,
                conventional_bytes: zones.conventional_bytes,
                open_zones_max: zones.open_zones_max,
            };
            emulate(disk, options, false).await?
        }
        Some(now) if now.zone_bytes == zones.zone_bytes && now.conventional_bytes == zones.conventional_bytes => {
            disk.clone()
        }
        now => {
            let text =
                format!("the pool was formatted for zones of {} bytes, but the disk has {now:?}", zones.zone_bytes);
            return Err(LogError::Open(format!("{}: {text}", disk.describe())));
        }
    };
    if zones.conventional_bytes == 0 {
        (ledger, bad) = newest_appended(&disk, &superblock).await;
    }
    Ok(Head { disk, superblock, ledger, bad })
}

/// Distance behind the write pointer within which the newest superblock lies. Copies after it were
/// lost in a crash.
const APPENDED_SEARCH_BYTES: u64 = 16 * BLOCK as u64;

/// The newest ledger among the superblocks appended to the first two zones, and the zones without
/// one.
async fn newest_appended(disk: &Arc<dyn Disk>, superblock: &Superblock) -> (Ledger, Vec<u64>) {
    let mut newest = Ledger::default();
    let mut bad = Vec::new();
    let Some(zones) = &superblock.zones else { return (newest, bad) };
    for place in superblock_places(zones) {
        let mut found = false;
        // In a full zone, the written data ends at the end of the zone.
        let end = disk.zone(place).map_or(place, |zone| zone.write_pointer);
        let mut at = place.max(end.saturating_sub(APPENDED_SEARCH_BYTES));
        while at < end {
            if let Ok(block) = disk.read(at, BLOCK).await
                && let Ok((other, ledger)) = Superblock::decode_with(&block)
                && other == *superblock
            {
                found = true;
                if ledger.generation > newest.generation {
                    newest = ledger;
                }
            }
            at += BLOCK as u64;
        }
        if !found {
            bad.push(place);
        }
    }
    (newest, bad)
}

/// Writes one copy and makes it durable, so that the other copy is never in doubt at the same time.
pub(crate) async fn write_superblock(disk: &Arc<dyn Disk>, sb: &Superblock, offset: u64) -> Result<(), LogError> {
    let block = Bytes::copy_from_slice(&sb.encode());
    disk.write_flush(offset, block).await.map_err(|e| cannot("write", disk, &e))
}

/// Writes both copies, with the opening that has the pool from now on. Not on zones.
pub(crate) async fn write_opening(disk: &Arc<dyn Disk>, sb: &Superblock, opening: u64) -> Result<(), LogError> {
    let block = Bytes::copy_from_slice(&sb.encode_with(&Ledger { opening, ..Ledger::default() }));
    for offset in SUPERBLOCK_OFFSETS {
        disk.write_flush(offset, block.clone()).await.map_err(|e| cannot("write", disk, &e))?;
    }
    Ok(())
}

/// The other opening that has the pool, or the other contents of the disk, from one copy of the
/// superblock. `None` for a copy that cannot be read.
pub(crate) async fn had_by_other(disk: &Arc<dyn Disk>, sb: &Superblock, opening: u64) -> Option<&'static str> {
    for offset in SUPERBLOCK_OFFSETS {
        let Ok(block) = disk.read_copy(0, offset, BLOCK).await else { continue };
        match Superblock::decode_with(&block) {
            Ok((found, _)) if found.pool != sb.pool => return Some("the disk was reformatted"),
            Ok((_, ledger)) if ledger.opening != 0 && ledger.opening != opening => {
                return Some("another server has opened the disk since");
            }
            _ => {}
        }
    }
    None
}

fn cannot(what: &str, disk: &Arc<dyn Disk>, error: &std::io::Error) -> LogError {
    LogError::Open(format!("cannot {what} {}: {error}", disk.describe()))
}

async fn refuse_contents(disk: &Arc<dyn Disk>) -> Result<(), LogError> {
    let len = disk.len().min(EXTENTS_START);
    let mut at = 0;
    while at < len {
        let n = (len - at).min(256 << 10) / BLOCK as u64 * BLOCK as u64;
        if n == 0 {
            break;
        }
        let bytes = disk.read_copy(0, at, n as usize).await.map_err(|e| cannot("read", disk, &e))?;
        if bytes.iter().any(|b| *b != 0) {
            let what = if bytes.chunks(BLOCK).any(|b| Superblock::decode(b) != Err(FormatError::Magic("superblock"))) {
                "a pool"
            } else {
                "other data"
            };
            return Err(LogError::Open(format!("{} already holds {what}; it was not formatted", disk.describe())));
        }
        at += n;
    }
    Ok(())
}

/// Possible offsets of a superblock.
fn superblock_offsets(disk: &Arc<dyn Disk>) -> Vec<u64> {
    match disk.geometry().zones {
        Some(zones) if zones.conventional_bytes == 0 => vec![0, zones.zone_bytes],
        _ => SUPERBLOCK_OFFSETS.to_vec(),
    }
}

/// Reads the superblock, with the newest ledger and the offsets of damaged copies. If copy 0 of the
/// disk has none, another copy may supply it.
pub(crate) async fn read_superblock(disk: &Arc<dyn Disk>) -> Result<(Superblock, Ledger, Vec<u64>), LogError> {
    let first = superblock_of_copy(disk, 0).await;
    let Err(error) = first else { return first };
    for copy in 1..disk.copies() {
        if let Ok((sb, ledger, _)) = superblock_of_copy(disk, copy).await {
            return Ok((sb, ledger, superblock_offsets(disk)));
        }
    }
    Err(error)
}

/// The identity of the pool on a disk. Zeros if it cannot be read; opening the log then gives the
/// error.
pub async fn pool_on(disk: &Arc<dyn Disk>) -> [u8; 16] {
    read_superblock(disk).await.map_or([0; 16], |(superblock, ..)| superblock.pool)
}

async fn superblock_of_copy(disk: &Arc<dyn Disk>, copy: u32) -> Result<(Superblock, Ledger, Vec<u64>), LogError> {
    let mut found: Option<Superblock> = None;
    let mut newest = Ledger::default();
    let mut bad: Vec<(u64, String)> = Vec::new();
    let mut version = None;
    for offset in superblock_offsets(disk) {
        if offset + BLOCK as u64 > disk.len() {
            bad.push((offset, "beyond the end".into()));
            continue;
        }
        match disk.read_copy(copy, offset, BLOCK).await {
            Ok(bytes) => match Superblock::decode_with(&bytes) {
                Ok((sb, ledger)) if found.is_none_or(|first| first == sb) => {
                    found = Some(sb);
                    if ledger.generation > newest.generation {
                        newest = ledger;
                    }
                }
                Ok(_) => bad.push((offset, "of another pool".into())),
                Err(error) => {
                    if matches!(error, FormatError::Version { .. } | FormatError::Features(_)) {
                        version = Some(error);
                    }
                    bad.push((offset, error.to_string()));
                }
            },
            Err(error) => bad.push((offset, error.to_string())),
        }
    }
    match (found, version) {
        (Some(sb), _) => Ok((sb, newest, bad.into_iter().map(|(offset, _)| offset).collect())),
        (None, Some(version)) => Err(LogError::Open(format!("{}: {version}", disk.describe()))),
        (None, None) => {
            let why: Vec<String> = bad.into_iter().map(|(offset, why)| format!("at {offset}: {why}")).collect();
            Err(LogError::Open(format!("{} holds no pool ({})", disk.describe(), why.join("; "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_as_large_as_sixteen_allow() {
        assert_eq!(choose_extent_bytes(1 << 40, false), 1 << 30);
        assert_eq!(choose_extent_bytes(100 << 40, true), 256 << 20);
        assert_eq!(choose_extent_bytes(2 << 40, true), 128 << 20);
        assert_eq!(choose_extent_bytes(1 << 40, true), 64 << 20);
        assert_eq!(choose_extent_bytes(2 << 30, true), 64 << 20);
        assert_eq!(choose_extent_bytes(1 << 30, true), 32 << 20);
        assert_eq!(choose_extent_bytes((16 << 20) + EXTENTS_START, false), 1 << 20);
        assert_eq!(choose_extent_bytes(0, false), 1 << 20);
    }
}
