//! Emptying an extent of chunks.

use std::collections::BTreeMap;

use bytes::Bytes;
use steadfast_disk::BLOCK;

use super::source::Item;
use super::victim::{Pressure, used_bytes};
use super::{Compactor, Halt, RESERVE_WAIT};
use crate::ChunkMove;
use crate::Priority;
use crate::extents::ExtentInfo;

/// Chunks copied before their owners are re-pointed.
const MOVES_MAX: usize = 64;

/// Bytes that a chunk takes.
fn frame_bytes(item: &Item) -> u64 {
    BLOCK as u64 + u64::from(item.location.body_len).next_multiple_of(BLOCK as u64)
}

impl Compactor {
    /// Copies what is live, makes the copies durable, and then has their owners re-pointed.
    pub(super) async fn empty_body(&mut self, info: &ExtentInfo, pressure: Pressure) -> Result<(), Halt> {
        let pool = self.shared().pool.pool;
        let mut live = 0;
        let mut items = self.items(info).await;
        while let Some(item) = items.next(info, pool).await? {
            if self.is_live(&item).await? {
                live += frame_bytes(&item);
            }
        }
        if !self.worth(info, live, used_bytes(info), pressure) {
            return Err(Halt::NotWorth);
        }
        let mut items = self.items(info).await;
        let mut moves: BTreeMap<Bytes, Vec<ChunkMove>> = BTreeMap::new();
        let mut count = 0;
        while let Some(item) = items.next(info, pool).await? {
            if !self.is_live(&item).await? {
                continue;
            }
            let moved = self.copy(&item).await?;
            moves.entry(item.head).or_default().push(moved);
            count += 1;
            if count >= MOVES_MAX {
                self.repoint(std::mem::take(&mut moves)).await?;
                count = 0;
            }
        }
        self.repoint(moves).await?;
        // What made the rest dead may be an asynchronous commit: a power cut that takes it back must find the chunks.
        self.settled().await
    }

    async fn is_live(&self, item: &Item) -> Result<bool, Halt> {
        if self.stop.is_set() {
            return Err(Halt::Later);
        }
        Ok(self.shared().applier.chunk_is_live(&item.head, &item.location).await)
    }

    async fn copy(&mut self, item: &Item) -> Result<ChunkMove, Halt> {
        self.pace.spend(2 * frame_bytes(item)).await;
        let from = item.location;
        let body = self.log.read(from, 0..from.body_len).await?;
        let room = self.log.reserve(u64::from(from.body_len), Priority::Compaction, RESERVE_WAIT).await?;
        let mut chunk = self.log.chunk(body.len()).await?;
        chunk.put(&body);
        let to = self.log.write_chunk(&room, item.head.clone(), chunk).await?;
        self.note(|status| {
            status.chunks_moved += 1;
            status.moved_bytes += frame_bytes(item);
        });
        Ok(ChunkMove { from, to })
    }

    /// The copies are durable before a record names them: the originals are acknowledged data.
    async fn repoint(&mut self, moves: BTreeMap<Bytes, Vec<ChunkMove>>) -> Result<(), Halt> {
        if moves.is_empty() {
            return Ok(());
        }
        let shared = self.shared().clone();
        shared.io.flush().await?;
        for (head, moves) in moves {
            shared.applier.repoint(head, moves).await?;
        }
        Ok(())
    }
}
