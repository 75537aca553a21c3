//! Compaction of a body extent.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use steadfast_disk::BLOCK;
use steadfast_flow::Pace;

use super::source::Item;
use super::victim::{Pressure, used_bytes};
use super::{Compactor, Halt, RESERVE_WAIT};
use crate::ChunkMove;
use crate::extents::ExtentInfo;
use crate::log::Log;

/// Chunks copied before their owners are re-pointed.
const MOVES_MAX: usize = 64;
/// Chunks copied at a time.
const COPIES: usize = 4;
/// Bytes reserved for a record that names a chunk when space is low. Most take less; those of very
/// large objects take more.
const OWNER_BYTES: u64 = 8 << 10;

/// Bytes that a chunk takes.
fn frame_bytes(item: &Item) -> u64 {
    BLOCK as u64 + u64::from(item.location.body_len).next_multiple_of(BLOCK as u64)
}

impl Compactor {
    /// Copies live chunks, makes the copies durable, and then re-points their owners.
    pub(super) async fn empty_body(&self, info: &ExtentInfo, pressure: Pressure) -> Result<(), Halt> {
        let pool = self.shared().pool.pool;
        let (mut live, mut count) = (0, 0);
        let mut items = self.items(info).await;
        while let Some(item) = items.next(info, pool).await? {
            if self.is_live(&item).await? {
                live += frame_bytes(&item);
                count += 1;
            }
        }
        if !self.worth(info, live, used_bytes(info), pressure) {
            return Err(Halt::NotWorth(Vec::new()));
        }
        // The copies may take the last extent, so the records that name them need space elsewhere.
        if self.shared().extents.spare().free < 2 && !self.shared().room.holds_without_free(count * OWNER_BYTES) {
            return Err(Halt::Later);
        }
        let mut items = self.items(info).await;
        let mut round = Vec::new();
        while let Some(item) = items.next(info, pool).await? {
            let mut live = self.is_live(&item).await?;
            if live && self.owners.discard(&item.head).await {
                live = self.is_live(&item).await?;
            }
            if live {
                round.push(item);
            }
            if round.len() >= MOVES_MAX {
                self.move_chunks(std::mem::take(&mut round)).await?;
            }
        }
        self.move_chunks(round).await?;
        // An asynchronous commit or a discard may have killed the other chunks. A power cut that
        // undoes it must find them.
        self.settled().await
    }

    async fn is_live(&self, item: &Item) -> Result<bool, Halt> {
        if self.stop.is_set() {
            return Err(Halt::Later);
        }
        Ok(self.owners.chunk_is_live(&self.log, &item.head, &item.location).await)
    }

    /// Copies chunks and re-points their owners. The copies are durable before a record names them,
    /// because the originals are acknowledged data.
    async fn move_chunks(&self, items: Vec<Item>) -> Result<(), Halt> {
        if items.is_empty() {
            return Ok(());
        }
        let mut moves: BTreeMap<Bytes, Vec<ChunkMove>> = BTreeMap::new();
        let mut copies = stream::iter(items)
            .map(|item| Copy { log: self.log.clone(), pace: self.pace.clone(), item }.run())
            .buffer_unordered(COPIES);
        while let Some((head, moved)) = copies.try_next().await? {
            moves.entry(head).or_default().push(moved);
        }
        self.shared().io.flush().await?;
        Ok(self.owners.repoint(&self.log, moves).await?)
    }
}

/// Copy of one chunk.
struct Copy {
    log: Log,
    pace: Pace,
    item: Item,
}

impl Copy {
    /// Copies the chunk. Returns its head and both locations.
    async fn run(self) -> Result<(Bytes, ChunkMove), Halt> {
        let Self { log, pace, item } = self;
        let bytes = frame_bytes(&item);
        pace.spend(2 * bytes).await;
        let from = item.location;
        let shared = &log.shared;
        let room = shared.room.acquire_copy(&shared.latch, u64::from(from.body_len), RESERVE_WAIT).await?;
        let mut chunk = log.chunk(from.body_len as usize).await?;
        // Read last, so that the memory of the read waits for nothing.
        chunk.put(&log.read(from, 0..from.body_len).await?);
        let to = log.write_chunk(&room, item.head.clone(), chunk).await?;
        let mut status = log.shared.compaction.status.lock();
        status.chunks_moved += 1;
        status.moved_bytes += bytes;
        Ok((item.head, ChunkMove { from, to }))
    }
}
