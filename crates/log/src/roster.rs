//! The roster: a small table in front of the extents that lists which of them are in use. Without
//! it, an extent that reads as zeros, or a truncated pool file, looks like an unused one.
//!
//! An entry is written when the header of the use is durable, and before other data of that use. So
//! if the roster is newer than an extent's header, the extent's data is gone. The reverse proves
//! nothing: the entry of a freed extent is removed with the next write of its block, because its
//! own header marks it as free. Pools on zones have no roster: there a reset removes the header.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{BLOCK, Disk};

use crate::LogError;
use crate::format::{
    ROSTER_BLOCKS, ROSTER_ENTRIES, RosterEntry, RosterUse, Superblock, decode_roster, encode_roster, roster_begin,
};
use crate::io::Io;

/// Bytes read at a time.
const READ_BLOCKS: usize = 64;

/// The roster as read from the disk.
#[derive(Debug, Default)]
pub(crate) struct RosterRead {
    /// Its blocks; `None` where neither copy is whole.
    blocks: Vec<Option<Vec<RosterEntry>>>,
    /// Blocks of which both copies are whole and the same.
    twice: Vec<bool>,
}

impl RosterRead {
    /// The entry of an extent; `None` if unknown.
    pub(crate) fn get(&self, extent: u32) -> Option<RosterEntry> {
        let at = extent as usize;
        self.blocks.get(at / ROSTER_ENTRIES)?.as_ref()?.get(at % ROSTER_ENTRIES).copied()
    }

    /// The least number of extents, from the last one in use.
    pub(crate) fn extents(&self) -> u32 {
        let all = (0..(self.blocks.len() * ROSTER_ENTRIES) as u32).rev();
        let used = |extent: &u32| self.get(*extent).is_some_and(|entry| entry.used != RosterUse::Free);
        all.into_iter().find(used).map_or(0, |extent| extent + 1)
    }

    /// Exclusive upper bound of its epochs.
    pub(crate) fn epoch_bound(&self) -> u64 {
        self.blocks.iter().flatten().flatten().map(|entry| entry.epoch + 1).max().unwrap_or(0)
    }
}

/// Reads the roster. Unreadable blocks are unknown.
pub(crate) async fn read(disk: &Arc<dyn Disk>, pool: &Superblock) -> RosterRead {
    if pool.zones.is_some() {
        return RosterRead::default();
    }
    let mut read = RosterRead { blocks: vec![None; ROSTER_BLOCKS], twice: vec![false; ROSTER_BLOCKS] };
    for place in 0..2 {
        for copy in 0..disk.copies() {
            let mut at = 0;
            while at < ROSTER_BLOCKS {
                let count = READ_BLOCKS.min(ROSTER_BLOCKS - at);
                let offset = roster_begin(place) + (at * BLOCK) as u64;
                if let Ok(bytes) = disk.read_copy(copy, offset, count * BLOCK).await {
                    bytes.chunks(BLOCK).enumerate().for_each(|(i, block)| take(&mut read, pool, at + i, block, place));
                } else {
                    for i in at..at + count {
                        let offset = roster_begin(place) + (i * BLOCK) as u64;
                        if let Ok(block) = disk.read_copy(copy, offset, BLOCK).await {
                            take(&mut read, pool, i, &block, place);
                        }
                    }
                }
                at += count;
            }
        }
    }
    read
}

fn take(read: &mut RosterRead, pool: &Superblock, index: usize, block: &[u8], place: usize) {
    let Ok(entries) = decode_roster(block, &pool.pool, index as u32) else { return };
    match &mut read.blocks[index] {
        // The first copy is written first.
        Some(first) => read.twice[index] |= place > 0 && *first == entries,
        none => *none = Some(entries),
    }
}

/// The roster of an open pool.
pub(crate) struct Roster {
    pool: [u8; 16],
    zoned: bool,
    entries: Mutex<Vec<RosterEntry>>,
    writing: tokio::sync::Mutex<()>,
}

impl Roster {
    /// Creates it from the entries in use, by extent.
    pub(crate) fn new(pool: &Superblock, entries: Vec<RosterEntry>) -> Self {
        let zoned = pool.zones.is_some();
        Self { pool: pool.pool, zoned, entries: Mutex::new(entries), writing: tokio::sync::Mutex::new(()) }
    }

    fn block(&self, index: usize) -> Bytes {
        let entries = self.entries.lock();
        let from = (index * ROSTER_ENTRIES).min(entries.len());
        let to = (from + ROSTER_ENTRIES).min(entries.len());
        Bytes::copy_from_slice(&encode_roster(&self.pool, index as u32, &entries[from..to]))
    }

    fn put(&self, extent: u32, entry: RosterEntry) {
        let mut entries = self.entries.lock();
        if entries.len() <= extent as usize {
            entries.resize(extent as usize + 1, RosterEntry::default());
        }
        entries[extent as usize] = entry;
    }

    /// Records that an extent is in use and its header is durable. The entry is durable when this
    /// returns.
    ///
    /// # Errors
    /// Those of the disk.
    pub(crate) async fn used(&self, io: &Io, extent: u32, entry: RosterEntry) -> Result<(), LogError> {
        let index = extent as usize / ROSTER_ENTRIES;
        if self.zoned || index >= ROSTER_BLOCKS {
            return Ok(());
        }
        let _one = self.writing.lock().await;
        self.put(extent, entry);
        let at = (index * BLOCK) as u64;
        // In sequence, so that one copy is whole at any time: the extent's header was flushed after
        // the second copy of the previous write.
        io.write_flush(roster_begin(0) + at, self.block(index)).await?;
        io.write(roster_begin(1) + at, self.block(index)).await
    }

    /// Records that an extent is free, as its header states durably.
    pub(crate) fn free(&self, extent: u32) {
        self.put(extent, RosterEntry::default());
    }

    /// Writes the blocks that the disk lacks: all of them the first time.
    ///
    /// # Errors
    /// Those of the disk.
    pub(crate) async fn sync(&self, io: &Io, read: &RosterRead) -> Result<(), LogError> {
        if self.zoned {
            return Ok(());
        }
        let _one = self.writing.lock().await;
        let blocks = self.entries.lock().len().div_ceil(ROSTER_ENTRIES).min(ROSTER_BLOCKS);
        let mut stale = Vec::new();
        for index in 0..blocks {
            let known = read.blocks.get(index).and_then(Option::as_ref);
            let block = self.block(index);
            let same = known.is_some_and(|known| decode_roster(&block, &self.pool, index as u32).as_ref() == Ok(known));
            if !same || !read.twice[index] {
                stale.push((index, block));
            }
        }
        for place in 0..2 {
            for (index, block) in &stale {
                io.write(roster_begin(place) + (index * BLOCK) as u64, block.clone()).await?;
            }
            if !stale.is_empty() {
                io.flush().await?;
            }
        }
        Ok(())
    }
}
