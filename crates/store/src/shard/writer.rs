//! Writing of a body: a small one goes into its record, a larger one streams to the disk as chunks
//! before it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use steadfast_log::{Durability, Location, LogError, Priority, Record, Reservation};

use crate::layout::slot_of;
use crate::record::Head;
use crate::record::keys::{self, Id};
use crate::record::manifest::Manifest;
use crate::record::object::{Body, ObjectMeta, id_from_text};
use crate::shard::Shard;
use crate::shard::applied::AppliedState;
use crate::shard::apply::repoint::place;
use crate::shard::buckets::Bucket;
use crate::shard::chunking::Chunking;
use crate::shard::complete::check_place;
use crate::shard::events::{Draft, ObjectChange, event_bytes_max, has_listeners};
use crate::shard::follow::Follow;
use crate::shard::pending::PendingState;
use crate::shard::submit::{KeyAccess, Precondition, Submission, fill_preconditions, object_accesses, precondition_of};
use crate::{Attributes, Condition, EventKind, FillCondition, PartInfo, StoreError, StoredObject, Written};

/// Bytes of a head included in a reservation; a larger head is reserved when its size is known.
const HEAD_ROOM: u64 = 2048;

/// The log accepts heads up to 64 KiB and uses some of that itself.
const HEAD_BYTES_MAX: usize = 60 << 10;

/// Smaller pieces are gathered: a client that sends byte by byte must not cost a buffer for each.
const GATHER_BELOW: usize = 1024;

/// Bytes of a batch, for its reservation.
pub(crate) fn batch_bytes(batch: &[Record]) -> u64 {
    batch.iter().map(|r| (128 + r.head.len() + r.body_len()) as u64).sum()
}

/// Refuses heads that the log would refuse.
pub(crate) fn check_head(head: &[u8]) -> Result<(), StoreError> {
    if head.len() > HEAD_BYTES_MAX {
        return Err(StoreError::TooLarge(format!(
            "key and metadata take {} bytes; the limit is {HEAD_BYTES_MAX}",
            head.len()
        )));
    }
    Ok(())
}

/// Kind of entity that a body becomes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WriteTarget {
    Object,
    Part { upload: Id, number: u16 },
}

/// Takes the bytes of an object or a part and commits it. Dropping it gives up: its chunks become
/// garbage.
pub(crate) struct ShardWriter {
    shard: Shard,
    bucket: Arc<Bucket>,
    key: String,
    target: WriteTarget,
    size_hint: Option<u64>,
    /// Kind of the event for its commit, if any.
    pub(crate) event_kind: Option<EventKind>,
    size: u64,
    inline_max: u64,
    pieces: Vec<Bytes>,
    gathered: BytesMut,
    /// Reservation for the record, with the number of bytes.
    room: Option<(Reservation, u64)>,
    /// Since when `room` is held.
    room_since: Duration,
    chunking: Option<Chunking>,
}

impl ShardWriter {
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
            event_kind: None,
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

    /// Whether its bucket has notifications or is mirrored.
    pub(crate) fn has_listeners(&self) -> bool {
        has_listeners(&self.shard.applied.options, &self.bucket)
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
        to.event_kind = self.event_kind;
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
                    // A copy: the memory of this disk must not wait for the other one.
                    Ok(piece) => to.write(Bytes::copy_from_slice(&piece)).await?,
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

    /// Bytes taken so far.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Takes the next bytes. Waits while the maximum is in flight to the disk.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when the budget stays exhausted for too long; those of the log. The
    /// writer is unusable then.
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
    async fn chunk_pieces(&mut self) -> Result<(), StoreError> {
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

    /// Commits the object or the part. Atomic: after a crash either the new one or the previous one
    /// exists.
    ///
    /// `condition` is not for parts. The durability is the bucket's when `durability` is `None`.
    ///
    /// # Errors
    /// [`StoreError::ConditionFailed`], [`StoreError::NoSuchBucket`], [`StoreError::NoSuchUpload`],
    /// [`StoreError::TooLarge`], those of the log; [`LogError::Unknown`] when it may or may not
    /// have been committed.
    pub(crate) async fn commit(
        self,
        attributes: Attributes,
        condition: Condition,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        let stored =
            StoredObject { modified_ms: self.shard.applied.env.wall_ms(), attributes, ..StoredObject::default() };
        self.commit_as(stored, &[precondition_of(&condition)], durability).await
    }

    /// Commits an object fetched from an origin, without a flush and without an event.
    ///
    /// # Errors
    /// Those of [`ShardWriter::commit`].
    pub(crate) async fn commit_fill(
        self,
        stored: StoredObject,
        condition: &FillCondition,
    ) -> Result<Written, StoreError> {
        self.commit_as(stored, &fill_preconditions(condition), Some(Durability::Async)).await
    }

    /// [`ShardWriter::commit`] of an object that was stored before, here or elsewhere: keeps its
    /// time, entity tag and parts. Only the version is new. Not for the parts of an upload.
    ///
    /// # Errors
    /// Those of [`ShardWriter::commit`]; [`StoreError::InvalidPartOrder`], and
    /// [`StoreError::InvalidPart`] when the sizes of the parts do not add up to the bytes that were
    /// written (with the number of the last).
    pub(crate) async fn commit_stored(
        mut self,
        stored: StoredObject,
        condition: Condition,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        if let Some(last) = stored.parts.last() {
            if stored.parts.windows(2).any(|pair| pair[0].number >= pair[1].number) {
                return Err(StoreError::InvalidPartOrder);
            }
            if stored.parts.iter().map(|part| u128::from(part.size)).sum::<u128>() != u128::from(self.size) {
                return Err(StoreError::InvalidPart(last.number));
            }
            // Only a manifest names parts, and only a body in chunks has one.
            self.chunk_pieces().await?;
        }
        self.commit_as(stored, &[precondition_of(&condition)], durability).await
    }

    async fn commit_as(
        mut self,
        stored: StoredObject,
        preconditions: &[Precondition<'_>],
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        let (applied, writes) = (self.shard.applied.clone(), self.shard.writes.clone());
        let durability = self.bucket.durability(durability);
        self.settle().await?;
        self.gather();
        let mut body = std::mem::take(&mut self.pieces);
        let mut chunks = match &mut self.chunking {
            Some(chunking) => Some(std::mem::take(&mut chunking.done)),
            None => None,
        };
        assert_eq!(bytes_in(&body, chunks.as_deref()), self.size, "the object has other bytes than were written");
        let mut meta = ObjectMeta {
            size: self.size,
            modified_ms: stored.modified_ms,
            revision: 0,
            upload: upload_of(&stored, &applied),
            body: Body::Inline,
            attributes: stored.attributes,
        };
        let parts = stored.parts;
        let mut head = self.head(&mut meta, &mut body, chunks.as_deref(), &parts);
        check_head(&head)?;
        let body_len: usize = body.iter().map(Bytes::len).sum();
        if let WriteTarget::Part { upload, number } = &self.target {
            check_place(&applied, self.shard.log(), upload, *number, (head.len() + body_len) as u64)?;
        }
        let slack = chunks.as_ref().map_or(0, |chunks| 16 * chunks.len() as u64);
        let event = self.draft(&meta)?;
        let bytes = (128 + head.len() + body_len) as u64 + slack + event.as_ref().map_or(0, Draft::bytes);
        // Too small a part of the budget is released first, as the larger one may wait for it.
        let room = match self.room.take().filter(|(_, had)| *had >= bytes) {
            Some((room, _)) => room,
            None => writes.reserve(bytes, Priority::Write).await?,
        };
        // No chunk is moved from here until the record is submitted.
        let id = self.chunking.as_ref().map(|chunking| chunking.id);
        let shared = match (id, &mut chunks) {
            (Some(id), Some(chunks)) => {
                let shared = applied.manifests.read().await;
                if applied.owners.follow(&id, chunks) {
                    head = self.head(&mut meta, &mut body, Some(chunks), &parts);
                }
                Some(shared)
            }
            _ => None,
        };
        let accesses = self.accesses(&mut meta, preconditions);
        let batch = vec![Record { head: head.into(), body, version: None }];
        let gate = self.bucket.enter().await?;
        let unmet = match self.target {
            WriteTarget::Object => StoreError::ConditionFailed,
            WriteTarget::Part { .. } => StoreError::NoSuchUpload,
        };
        let submission = Submission::new(&accesses, room, batch, durability).with_events(event.as_slice());
        let ticket = submission.submit(&writes).await.map_err(|refusal| refusal.or(unmet))?;
        let version = ticket.first_lsn();
        self.bucket.last_lsn.fetch_max(version, Ordering::AcqRel);
        if let Some(chunking) = &mut self.chunking {
            applied.owners.submitted(chunking.id, version);
            chunking.handed_over = true;
        }
        drop(gate);
        drop(shared);
        let committed = writes.committed(ticket).await?;
        writes.note_space();
        Ok(Written { version, durable: committed.durable, modified_ms: meta.modified_ms })
    }
}

impl ShardWriter {
    /// The event of the commit, if it has one.
    fn draft(&self, meta: &ObjectMeta) -> Result<Option<Draft>, StoreError> {
        let Some(kind) = self.event_kind else { return Ok(None) };
        let change = ObjectChange { kind, key: &self.key, size: meta.size, etag: &meta.attributes.etag };
        Draft::of(&self.shard.applied, &self.bucket, change)
    }

    /// The key that the commit depends on and changes. Takes an object's entity tag out of `meta`.
    fn accesses<'a>(&self, meta: &mut ObjectMeta, preconditions: &[Precondition<'a>]) -> Vec<KeyAccess<'a>> {
        let bucket = self.bucket.id;
        match self.target {
            WriteTarget::Object => {
                let becomes = PendingState::Present(std::mem::take(&mut meta.attributes.etag));
                let key = keys::object(bucket, self.key.as_bytes());
                object_accesses(&key.into(), preconditions.iter().copied(), becomes)
            }
            WriteTarget::Part { upload, .. } => {
                let key = keys::upload(bucket, self.key.as_bytes(), &upload).into();
                vec![KeyAccess {
                    key,
                    precondition: Precondition::Present,
                    becomes: Some((PendingState::Present(String::new()), 0)),
                }]
            }
        }
    }

    /// The record's head; for chunks also its body.
    fn head(
        &self,
        meta: &mut ObjectMeta,
        body: &mut Vec<Bytes>,
        chunks: Option<&[Location]>,
        parts: &[PartInfo],
    ) -> Vec<u8> {
        if let Some(chunks) = chunks {
            *body = place(meta, &Manifest { parts: parts.to_vec(), chunks: chunks.to_vec() });
        }
        let (bucket, key, payload) = (self.bucket.id, self.key.as_bytes(), &meta.encode()[..]);
        match self.target {
            WriteTarget::Object => Head::ObjectPut { bucket, key, payload }.encode(),
            WriteTarget::Part { upload, number } => Head::PartPut { bucket, upload, number, key, payload }.encode(),
        }
    }
}

#[cfg(test)]
impl ShardWriter {
    /// The chunks on disk, when all launched ones are.
    pub(crate) async fn settled_chunks(&mut self) -> Vec<Location> {
        let chunking = self.chunking.as_mut().expect("a large body");
        chunking.wait_all().await.expect("written");
        chunking.done.clone()
    }
}

/// The bytes of a body in its record and in chunks.
fn bytes_in(body: &[Bytes], chunks: Option<&[Location]>) -> u64 {
    let in_chunks = chunks.into_iter().flatten().map(|chunk| u64::from(chunk.body_len));
    body.iter().map(|piece| piece.len() as u64).chain(in_chunks).sum()
}

/// The upload that an object names as its origin: an object with parts always has one.
fn upload_of(stored: &StoredObject, applied: &AppliedState) -> Option<(Id, u16)> {
    let known = stored.upload_id.as_deref().and_then(id_from_text);
    if stored.parts.is_empty() {
        return None;
    }
    let id = known.unwrap_or_else(|| applied.random_id());
    Some((id, u16::try_from(stored.parts.len()).unwrap_or(u16::MAX)))
}

impl std::fmt::Debug for ShardWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShardWriter({}/{}, {} bytes)", self.bucket.name, self.key, self.size)
    }
}
