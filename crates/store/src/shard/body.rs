//! The bytes of an object or a part on their way to the disk: a small body goes into its record, a
//! larger one streams to the disk as chunks before it.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use steadfast_log::{Location, LogError, Lsn, Priority, Reservation};

use crate::StoreError;
use crate::layout::slot_of;
use crate::record::Head;
use crate::record::keys::Id;
use crate::shard::Shard;
use crate::shard::buckets::Bucket;
use crate::shard::chunking::Chunking;
use crate::shard::events::event_bytes_max;
use crate::shard::follow::Follow;
use crate::shard::submit::HEAD_BYTES_MAX;

/// Bytes of a head included in a reservation; a larger head is reserved when its size is known.
const HEAD_ROOM: u64 = 2048;

/// Smaller pieces are gathered: a client that sends byte by byte must not cost a buffer for each.
const GATHER_BELOW: usize = 1024;

/// Kind of entity that a body becomes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WriteTarget {
    Object,
    Part { upload: Id, number: u16 },
}

/// A body that is being written on one shard. Dropping it gives up: its chunks become garbage.
pub(crate) struct BodyWriter {
    pub(crate) shard: Shard,
    pub(crate) bucket: Arc<Bucket>,
    pub(crate) key: String,
    pub(crate) target: WriteTarget,
    size_hint: Option<u64>,
    /// Bytes taken so far.
    pub(crate) size: u64,
    inline_max: u64,
    pieces: Vec<Bytes>,
    gathered: BytesMut,
    /// Reservation for the record, with the number of bytes.
    room: Option<(Reservation, u64)>,
    /// Since when `room` is held.
    room_since: Duration,
    chunking: Option<Chunking>,
}

impl BodyWriter {
    /// Begins an object or a part. With `size_hint`, the size in bytes that the client announced,
    /// small objects reserve only what they need.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when the budget stays exhausted for too long; those of the log.
    pub(crate) async fn begin(
        shard: &Shard,
        bucket: Arc<Bucket>,
        key: &str,
        target: WriteTarget,
        size_hint: Option<u64>,
    ) -> Result<Self, StoreError> {
        let applied = &shard.applied;
        // In a small pool a batch is small.
        let batch_max = shard.log().limits().batch_bytes_max;
        let event = event_bytes_max(&applied.options, &bucket, key.len());
        let inline_max = (applied.options.inline_max_bytes as u64)
            .min(batch_max.saturating_sub(HEAD_BYTES_MAX as u64 + 4096 + event));
        let chunked = matches!(target, WriteTarget::Part { .. }) || size_hint.is_some_and(|size| size > inline_max);
        let mut writer = Self {
            shard: shard.clone(),
            bucket,
            key: key.to_owned(),
            target,
            size_hint,
            size: 0,
            inline_max,
            pieces: Vec::new(),
            gathered: BytesMut::new(),
            room: None,
            room_since: Duration::ZERO,
            chunking: None,
        };
        if chunked {
            writer.start_chunking();
        } else {
            let bytes = size_hint.unwrap_or(inline_max) + HEAD_ROOM + event;
            writer.room = Some((shard.writes.reserve(bytes, Priority::Write).await?, bytes));
            writer.room_since = shard.applied.env.now();
        }
        Ok(writer)
    }
    /// The slot of its key.
    pub(crate) fn slot(&self) -> usize {
        slot_of(self.bucket.id, self.key.as_bytes())
    }

    /// Whether it writes to this shard.
    pub(crate) fn is_of(&self, shard: &Shard) -> bool {
        Arc::ptr_eq(&self.shard.applied, &shard.applied)
    }

    /// Waits until all taken bytes are on the disk or in the record.
    pub(crate) async fn settle(&mut self) -> Result<(), StoreError> {
        match &mut self.chunking {
            Some(chunking) => chunking.settle().await,
            None => Ok(()),
        }
    }

    /// Moves to another shard: the written bytes are read back, verified, and written there. Not
    /// usable after an error.
    pub(crate) async fn move_to(&mut self, shard: &Shard) -> Result<(), StoreError> {
        let bucket =
            shard.applied.registry.read().by_id.get(&self.bucket.id).cloned().ok_or(StoreError::NoSuchBucket)?;
        let mut to = Self::begin(shard, bucket, &self.key, self.target, self.size_hint).await?;
        self.settle().await?;
        self.gather();
        for piece in std::mem::take(&mut self.pieces) {
            to.write(piece).await?;
        }
        let Some(chunking) = &self.chunking else {
            *self = to;
            return Ok(());
        };
        let piece_bytes = self.shard.applied.options.read_piece_bytes.max(1);
        for chunk in &chunking.done {
            let mut from = 0;
            let mut follow = Follow::default();
            while from < chunk.body_len {
                // Compaction may move it meanwhile; the writer's moves are keyed by the location
                // where it wrote the chunk.
                let mut at = [*chunk];
                self.shard.applied.owners.follow(&chunking.id, &mut at);
                let until = chunk.body_len.min(from.saturating_add(piece_bytes));
                match self.shard.log().read(at[0], from..until).await {
                    Ok(piece) => to.write(piece).await?,
                    Err(LogError::Moved) => {
                        follow.moved(self.shard.log(), &at[0]).await?;
                        continue;
                    }
                    Err(e) => return Err(e.into()),
                }
                from = until;
            }
        }
        *self = to;
        Ok(())
    }

    /// Waits until other writers need the budget held for bytes that have not arrived, and releases
    /// it; never completes while it holds none. To be awaited together with the next bytes. Later
    /// writes work as before but may wait for the budget.
    pub(crate) async fn give_room(&mut self) {
        let chunked = self.chunking.as_ref().and_then(Chunking::holds_since);
        let Some(since) = chunked.or_else(|| self.room.is_some().then_some(self.room_since)) else {
            return std::future::pending().await;
        };
        self.shard.writes.wanted.until_wanted(since).await;
        self.room = None;
        if let Some(chunking) = &mut self.chunking {
            chunking.give_up();
        }
    }

    /// Takes the next bytes. Waits while the maximum is in flight to the disk.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when the budget stays exhausted for too long; those of the log. The
    /// body is unusable then.
    pub(crate) async fn write(&mut self, data: Bytes) -> Result<(), StoreError> {
        self.size += data.len() as u64;
        if self.chunking.is_none() {
            if self.size <= self.inline_max {
                self.keep(data);
                return Ok(());
            }
            self.chunk_pieces().await?;
        }
        self.fill(&data).await
    }

    /// Turns a body within the record into one in chunks.
    pub(crate) async fn chunk_pieces(&mut self) -> Result<(), StoreError> {
        if self.chunking.is_none() {
            self.start_chunking();
            self.gather();
            // The chunks need their own part of the budget. Enough writers that kept the first
            // part would hold all of it while they wait.
            self.room = None;
            for piece in std::mem::take(&mut self.pieces) {
                self.fill(&piece).await?;
            }
        }
        Ok(())
    }

    fn keep(&mut self, data: Bytes) {
        if data.len() < GATHER_BELOW {
            self.gathered.extend_from_slice(&data);
        } else {
            self.gather();
            self.pieces.push(data);
        }
    }

    fn gather(&mut self) {
        if !self.gathered.is_empty() {
            self.pieces.push(self.gathered.split().freeze());
        }
    }

    fn start_chunking(&mut self) {
        let id = self.shard.applied.random_id();
        let (bucket, key) = (self.bucket.id, self.key.as_bytes());
        let head = match self.target {
            WriteTarget::Object => Head::Chunk { bucket, writer: id, key },
            WriteTarget::Part { upload, number } => Head::PartChunk { bucket, writer: id, upload, number, key },
        };
        self.chunking = Some(Chunking::begin(self.shard.writes.clone(), id, head.encode().into()));
    }

    async fn fill(&mut self, data: &[u8]) -> Result<(), StoreError> {
        match &mut self.chunking {
            Some(chunking) => chunking.write(data, self.size, self.size_hint).await,
            None => Ok(()),
        }
    }

    /// Waits until all bytes are on the disk or in the result: the pieces for the record, and the
    /// chunks of a body that has chunks.
    pub(crate) async fn finish(&mut self) -> Result<(Vec<Bytes>, Option<Vec<Location>>), StoreError> {
        self.settle().await?;
        self.gather();
        let pieces = std::mem::take(&mut self.pieces);
        let chunks = self.chunking.as_mut().map(|chunking| std::mem::take(&mut chunking.done));
        let in_chunks = chunks.iter().flatten().map(|chunk| u64::from(chunk.body_len));
        let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).chain(in_chunks).sum();
        assert_eq!(bytes, self.size, "the object has other bytes than were written");
        Ok((pieces, chunks))
    }

    /// The part of the budget for a record of `bytes`. Too small a part is released first, as the
    /// larger one may wait for it.
    pub(crate) async fn room(&mut self, bytes: u64) -> Result<Reservation, StoreError> {
        match self.room.take().filter(|(_, had)| *had >= bytes) {
            Some((room, _)) => Ok(room),
            None => self.shard.writes.reserve(bytes, Priority::Write).await,
        }
    }

    /// The owner of its chunks, if it has any.
    pub(crate) fn owner(&self) -> Option<Id> {
        self.chunking.as_ref().map(|chunking| chunking.id)
    }

    /// Notes that its record was submitted with this LSN: its chunks belong to the record.
    pub(crate) fn submitted(&mut self, lsn: Lsn) {
        if let Some(chunking) = &mut self.chunking {
            self.shard.applied.owners.submitted(chunking.id, lsn);
            chunking.handed_over = true;
        }
    }
}

#[cfg(test)]
impl BodyWriter {
    /// The chunks on disk, when all launched ones are.
    pub(crate) async fn settled_chunks(&mut self) -> Vec<Location> {
        let chunking = self.chunking.as_mut().expect("a large body");
        chunking.wait_all().await.expect("written");
        chunking.done.clone()
    }
}

impl std::fmt::Debug for BodyWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BodyWriter({}/{}, {} bytes)", self.bucket.name, self.key, self.size)
    }
}
