//! A look at what a disk's log holds that changes nothing: to find out whose it is before it is opened, which would.

use std::sync::Arc;

use futures::stream::{self, StreamExt};
use steadfast_disk::{BLOCK, Disk};

use crate::LogError;
use crate::check::Entries;
use crate::format::{ExtentHeader, ExtentKind};
use crate::scan::Reader;

/// Reads the heads of the records on a disk, about in the order in which they were committed, until `each` says that it has seen enough (`false`). Nothing is
/// changed; what is torn or damaged is left out. Returns whether anything is there.
///
/// # Errors
/// [`LogError::Open`] when the disk holds no pool that can be read.
pub async fn peek(disk: &Arc<dyn Disk>, mut each: impl FnMut(&[u8]) -> bool + Send) -> Result<bool, LogError> {
    let (superblock, ..) = crate::pool::read_superblock(disk).await?;
    let headers = (0..superblock.extents_in(disk.len())).map(|extent| {
        let block = disk.read_copy(0, superblock.extent_start(extent), BLOCK);
        async move { (extent, block.await.ok().and_then(|block| ExtentHeader::decode(&block).ok())) }
    });
    let mut used: Vec<ExtentHeader> = Vec::new();
    let mut headers = stream::iter(headers).buffered(32);
    while let Some((extent, header)) = headers.next().await {
        used.extend(
            header.filter(|h| h.id.pool == superblock.pool && h.id.extent == extent && h.kind != ExtentKind::Free),
        );
    }
    drop(headers);
    used.sort_unstable_by_key(|header| header.id.epoch);
    let mut any = used.iter().any(|header| header.kind == ExtentKind::Body);
    for header in used.into_iter().filter(|header| header.kind == ExtentKind::Commit) {
        if let Some(mut entries) = Entries::open(disk.clone(), &superblock, header.id).await
            && entries.verify().await
        {
            while let Ok(Some(entry)) = entries.next().await {
                any = true;
                if !each(&entry.head) {
                    return Ok(any);
                }
            }
            continue;
        }
        let bytes = superblock.extent_bytes;
        let start = superblock.extent_start(header.id.extent);
        let mut at = BLOCK as u64;
        let mut reader = Reader::new(disk.clone(), start, at, bytes - BLOCK as u64);
        while let Ok((frame, _, payload)) = reader.frame(&header.id, at, bytes).await {
            for record in frame.records(payload) {
                let Ok(record) = record else { break };
                any = true;
                if !each(record.head) {
                    return Ok(any);
                }
            }
            at += frame.total_len();
        }
    }
    Ok(any)
}
