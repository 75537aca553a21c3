//! Making a pool on a disk, and recognising one.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use steadfast_disk::{BLOCK, Disk};
use steadfast_flow::Env;

use crate::LogError;
use crate::format::{EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, EXTENTS_START, FormatError, SUPERBLOCK_OFFSETS, Superblock};
use crate::options::FormatOptions;

/// What a pool is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PoolInfo {
    /// UUID.
    pub pool: String,
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// When it was made, milliseconds since the Unix epoch.
    pub created_ms: u64,
}

impl From<&Superblock> for PoolInfo {
    fn from(sb: &Superblock) -> Self {
        let pool = uuid::Uuid::from_bytes(sb.pool).to_string();
        Self { pool, extent_bytes: sb.extent_bytes, created_ms: sb.created_ms }
    }
}

/// The largest power of two that gives at least 16 extents, up to the usual size.
fn choose_extent_bytes(capacity: u64, growable: bool) -> u64 {
    let usual: u64 = if growable { 256 << 20 } else { 1 << 30 };
    let share = capacity.saturating_sub(EXTENTS_START) / 16;
    let fitting = if share == 0 { 0 } else { 1 << (63 - share.leading_zeros()) };
    usual.min(fitting).max(1 << 20)
}

/// Writes the superblocks.
pub(crate) async fn format(disk: &Arc<dyn Disk>, env: &Env, options: &FormatOptions) -> Result<PoolInfo, LogError> {
    let geometry = disk.geometry();
    let extent_bytes =
        options.extent_bytes.unwrap_or_else(|| choose_extent_bytes(geometry.capacity_bytes, geometry.growable));
    if !(EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&extent_bytes) || !extent_bytes.is_multiple_of(BLOCK as u64) {
        return Err(LogError::Open(format!(
            "an extent of {extent_bytes} bytes: must be a multiple of {BLOCK} from {EXTENT_BYTES_MIN} to {EXTENT_BYTES_MAX}"
        )));
    }
    let extents = geometry.capacity_bytes.saturating_sub(EXTENTS_START) / extent_bytes;
    if extents < 4 {
        return Err(LogError::Open(format!(
            "{} holds {} bytes: too few for 4 extents of {extent_bytes}",
            disk.describe(),
            geometry.capacity_bytes
        )));
    }
    if !options.force {
        refuse_contents(disk).await?;
    }
    disk.reserve(EXTENTS_START).await.map_err(|e| cannot("make room on", disk, &e))?;
    let mut pool = [0u8; 16];
    pool[..8].copy_from_slice(&env.random_u64().to_le_bytes());
    pool[8..].copy_from_slice(&env.random_u64().to_le_bytes());
    let pool = *uuid::Builder::from_random_bytes(pool).as_uuid().as_bytes();
    let sb = Superblock { pool, extent_bytes, created_ms: env.wall_ms() };
    for offset in SUPERBLOCK_OFFSETS {
        write_superblock(disk, &sb, offset).await?;
    }
    Ok(PoolInfo::from(&sb))
}

/// Writes one copy and makes it durable, so that the other one is never in doubt at the same time.
pub(crate) async fn write_superblock(disk: &Arc<dyn Disk>, sb: &Superblock, offset: u64) -> Result<(), LogError> {
    let block = Bytes::copy_from_slice(&sb.encode());
    disk.write_flush(offset, block).await.map_err(|e| cannot("write", disk, &e))
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
                "something"
            };
            return Err(LogError::Open(format!("{} holds {what} already: not formatted", disk.describe())));
        }
        at += n;
    }
    Ok(())
}

/// Reads the superblock; the second value names the places where it was damaged. Where no place on copy 0 of the disk has it, another copy of
/// the disk may.
pub(crate) async fn read_superblock(disk: &Arc<dyn Disk>) -> Result<(Superblock, Vec<u64>), LogError> {
    let first = superblock_of_copy(disk, 0).await;
    let Err(error) = first else { return first };
    for copy in 1..disk.copies() {
        if let Ok((sb, _)) = superblock_of_copy(disk, copy).await {
            return Ok((sb, SUPERBLOCK_OFFSETS.to_vec()));
        }
    }
    Err(error)
}

async fn superblock_of_copy(disk: &Arc<dyn Disk>, copy: u32) -> Result<(Superblock, Vec<u64>), LogError> {
    let mut found: Option<Superblock> = None;
    let mut bad: Vec<(u64, String)> = Vec::new();
    let mut version = None;
    for offset in SUPERBLOCK_OFFSETS {
        if offset + BLOCK as u64 > disk.len() {
            bad.push((offset, "beyond the end".into()));
            continue;
        }
        match disk.read_copy(copy, offset, BLOCK).await {
            Ok(bytes) => match Superblock::decode(&bytes) {
                Ok(sb) if found.is_none() => found = Some(sb),
                Ok(sb) if found == Some(sb) => {}
                Ok(_) => bad.push((offset, "of another pool".into())),
                Err(error) => {
                    if matches!(error, FormatError::Version { .. }) {
                        version = Some(error);
                    }
                    bad.push((offset, error.to_string()));
                }
            },
            Err(error) => bad.push((offset, error.to_string())),
        }
    }
    match (found, version) {
        (Some(sb), _) => Ok((sb, bad.into_iter().map(|(offset, _)| offset).collect())),
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
        assert_eq!(choose_extent_bytes(1 << 40, true), 256 << 20);
        assert_eq!(choose_extent_bytes(1 << 30, true), 32 << 20);
        assert_eq!(choose_extent_bytes((16 << 20) + EXTENTS_START, false), 1 << 20);
        assert_eq!(choose_extent_bytes(0, false), 1 << 20);
    }
}
