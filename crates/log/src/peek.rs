//! Reads the contents of a disk's log without changing it, to identify its owner before an open.

use std::sync::Arc;

use futures::stream::{self, StreamExt};
use steadfast_disk::{BLOCK, Disk};

use crate::check::Entries;
use crate::format::{ExtentHeader, ExtentId, ExtentKind, Superblock};
use crate::scan::Reader;
use crate::{LogError, Lsn};

/// A record on a disk that is not open.
#[derive(Debug, Clone, Copy)]
pub struct PeekedRecord<'a> {
    /// Its LSN. Records that recovery has copied forward come twice.
    pub lsn: Lsn,
    /// LSN of the original if this is a moved copy, else `lsn`.
    pub version: Lsn,
    /// Its head.
    pub head: &'a [u8],
}

/// Reads the heads of the records on a disk, roughly in commit order, until `each` returns `false`.
/// Changes nothing and skips torn or damaged records. Returns whether the disk holds any record.
///
/// # Errors
/// [`LogError::Open`] if the disk holds no readable pool.
pub async fn peek(
    disk: &Arc<dyn Disk>,
    mut each: impl FnMut(PeekedRecord<'_>) -> bool + Send,
) -> Result<bool, LogError> {
    let (superblock, ..) = crate::pool::read_superblock(disk).await?;
    let headers = (0..superblock.extents_in(disk.len())).map(|extent| header(disk, &superblock, extent));
    let mut used: Vec<ExtentHeader> = Vec::new();
    let mut headers = stream::iter(headers).buffered(32);
    while let Some(header) = headers.next().await {
        used.extend(header.filter(|h| h.kind != ExtentKind::Free));
    }
    drop(headers);
    used.sort_unstable_by_key(|header| header.id.epoch);
    let mut any = used.iter().any(|header| header.kind == ExtentKind::Body);
    for header in used.into_iter().filter(|header| header.kind == ExtentKind::Commit) {
        if let Some(mut entries) = entries(disk, &superblock, header.id).await {
            while let Ok(Some(entry)) = entries.next().await {
                any = true;
                if !each(PeekedRecord { lsn: entry.lsn, version: entry.version, head: &entry.head }) {
                    return Ok(any);
                }
            }
            continue;
        }
        let bytes = superblock.extent_bytes;
        let start = superblock.extent_start(header.id.extent);
        let mut at = BLOCK as u64;
        let reader = |copy| Reader::of_copy(copy, disk.clone(), start, at, bytes - BLOCK as u64);
        let mut readers: Vec<Reader> = (0..disk.copies()).map(reader).collect();
        loop {
            let from = at;
            for reader in &mut readers {
                let Ok((frame, _, payload)) = reader.frame(&header.id, at, bytes).await else { continue };
                for record in frame.records(payload) {
                    let Ok(record) = record else { break };
                    any = true;
                    let (lsn, version) = (record.header.lsn, record.header.version);
                    if !each(PeekedRecord { lsn, version, head: record.head }) {
                        return Ok(any);
                    }
                }
                at += frame.total_len();
                break;
            }
            if at == from {
                break;
            }
        }
    }
    Ok(any)
}

/// The header of an extent, from the first copy of the disk that has one.
async fn header(disk: &Arc<dyn Disk>, superblock: &Superblock, extent: u32) -> Option<ExtentHeader> {
    for copy in 0..disk.copies() {
        let block = disk.read_copy(copy, superblock.extent_start(extent), BLOCK).await;
        let header = block.ok().and_then(|block| ExtentHeader::decode(&block).ok());
        if let Some(header) = header.filter(|h| h.id.pool == superblock.pool && h.id.extent == extent) {
            return Some(header);
        }
    }
    None
}

/// The footer of one use of an extent, from the first copy of the disk that has all of it.
async fn entries(disk: &Arc<dyn Disk>, superblock: &Superblock, id: ExtentId) -> Option<Entries> {
    for copy in 0..disk.copies() {
        if let Some(mut entries) = Entries::open_on(copy, disk.clone(), superblock, id).await
            && entries.verify().await
        {
            return Some(entries);
        }
    }
    None
}
