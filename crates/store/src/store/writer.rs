//! Writing of an object or a part to its key's home, even if the home changes meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use steadfast_log::{Durability, Location, Record};

use super::Store;
use super::topology::{Entered, HomeDisk};
use crate::record::Head;
use crate::record::keys::{self, Id};
use crate::record::manifest::Manifest;
use crate::record::object::{Body, ObjectMeta, id_from_text};
use crate::shard::Shard;
use crate::shard::applied::AppliedState;
use crate::shard::apply::repoint::place;
use crate::shard::body::{BodyWriter, WriteTarget};
use crate::shard::buckets::Bucket;
use crate::shard::complete::check_place;
use crate::shard::events::{Draft, ObjectChange, has_listeners};
use crate::shard::pending::PendingState;
use crate::shard::submit::{
    KeyAccess, Precondition, Submission, check_head, fill_preconditions, object_accesses, precondition_of,
};
use crate::{Attributes, Cause, Condition, EventKind, FillCondition, PartInfo, StoreError, StoredObject, Written};

/// Takes the bytes of an object or a part and commits it. Dropping it gives up: its chunks become
/// garbage.
///
/// When its key moves to another disk, the written bytes are read back, verified, and written
/// there.
pub struct ObjectWriter {
    /// `None` for a copy to the key's next home.
    follows: Option<Follows>,
    /// Kind of the event for its commit, if any.
    event_kind: Option<EventKind>,
    /// The client that the event names.
    cause: Option<Cause>,
    body: BodyWriter,
}

/// A writer follows its key to other disks of this store.
struct Follows {
    store: Store,
    /// Generation of the layout by which the body is at home.
    generation: u64,
}

impl ObjectWriter {
    /// Begins an object or a part at its home.
    pub(super) async fn begin(
        store: &Store,
        disk: &HomeDisk,
        bucket: Arc<Bucket>,
        key: &str,
        target: WriteTarget,
        size_hint: Option<u64>,
    ) -> Result<Self, StoreError> {
        let body = disk.with_disk_name(BodyWriter::begin(disk, bucket, key, target, size_hint).await)?;
        // The commit notices a layout change in between.
        let follows = Some(Follows { store: store.clone(), generation: store.generation() });
        let event_kind = matches!(target, WriteTarget::Object).then_some(EventKind::Put);
        Ok(Self { follows, event_kind, cause: None, body })
    }

    /// Begins an object or a part on one shard, wherever its home is. Its commit makes no event.
    pub(super) async fn begin_on(
        shard: &Shard,
        bucket: Arc<Bucket>,
        key: &str,
        target: WriteTarget,
        size: u64,
    ) -> Result<Self, StoreError> {
        let body = BodyWriter::begin(shard, bucket, key, target, Some(size)).await?;
        Ok(Self { follows: None, event_kind: None, cause: None, body })
    }

    pub(super) fn caused_by(&mut self, cause: Option<&Cause>) {
        self.cause = cause.cloned();
    }

    /// Makes its event a copy instead of a put.
    pub fn is_a_copy(&mut self) {
        self.event_kind = Some(EventKind::Copy);
    }

    /// Bytes taken so far.
    pub fn size(&self) -> u64 {
        self.body.size
    }

    /// Takes the next bytes. Waits while the maximum is in flight to the disk.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when the budget stays exhausted for too long; those of the log. The
    /// writer is unusable then.
    pub async fn write(&mut self, data: Bytes) -> Result<(), StoreError> {
        if let Some(follows) = &mut self.follows {
            let generation = follows.store.generation();
            if follows.generation != generation {
                let home = follows.store.topology().home_of(self.body.slot())?;
                if !self.body.is_of(&home) {
                    self.body.move_to(&home).await?;
                }
                follows.generation = generation;
            }
        }
        self.body.write(data).await
    }

    /// Waits until other writers need the budget held for bytes that have not arrived, and releases
    /// it; never completes while it holds none. To be awaited together with the next bytes of a
    /// body that may be slow: a stalled body must not block other writers. Later writes work as
    /// before but may wait for the budget.
    pub async fn give_room(&mut self) {
        self.body.give_room().await;
    }

    /// Awaits `work`, which a client or another server may delay, and gives up the budget meanwhile
    /// when other writers need it.
    pub async fn give_room_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.give_room() => {}
            }
        }
    }

    /// Passes the gate of the key's slot in this store, with the written bytes at the key's home.
    /// Without a store the bytes stay where they are.
    async fn arrive<'a>(&mut self, store: Option<&'a Store>) -> Result<Option<Entered<'a>>, StoreError> {
        let Some(store) = store else { return Ok(None) };
        loop {
            // Before the gate: a slow disk would keep the slot from moving.
            self.body.settle().await?;
            let home = store.enter_slot(self.body.slot()).await?;
            if self.body.is_of(&home) {
                return Ok(Some(home));
            }
            let shard = Shard::clone(&home);
            drop(home);
            self.body.move_to(&shard).await?;
        }
    }

    /// The store that it follows its key in.
    fn store(&self) -> Option<Store> {
        self.follows.as_ref().map(|follows| follows.store.clone())
    }

    /// Commits the object or the part. Atomic: after a crash either the new one or the previous one
    /// exists.
    ///
    /// `condition` is not for parts. The durability is the bucket's when `durability` is `None`.
    ///
    /// # Errors
    /// [`StoreError::ConditionFailed`], [`StoreError::NoSuchBucket`], [`StoreError::NoSuchUpload`],
    /// [`StoreError::TooLarge`], [`StoreError::Unavailable`], those of the log;
    /// [`LogError::Unknown`](steadfast_log::LogError::Unknown) when it may or may not have been
    /// committed.
    pub async fn commit(
        mut self,
        attributes: Attributes,
        condition: Condition,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        let store = self.store();
        if let Some(store) = &store
            && self.event_kind.is_some()
            && has_listeners(&self.body.shard.applied.options, &self.body.bucket)
        {
            store.events().room().await?;
        }
        let home = self.arrive(store.as_ref()).await?;
        let modified_ms = self.body.shard.applied.env.wall_ms();
        let stored = StoredObject { modified_ms, attributes, ..StoredObject::default() };
        let preconditions = [precondition_of(&condition)];
        with_disk_name(home.as_ref(), self.commit_here(stored, &preconditions, durability).await)
    }

    /// [`ObjectWriter::commit`] of an object that was stored before, here or elsewhere: keeps its
    /// time, entity tag and parts. Only the version is new. Not for the parts of an upload. It
    /// makes no event, since the object did not change.
    ///
    /// # Errors
    /// Those of [`ObjectWriter::commit`]; [`StoreError::InvalidPartOrder`], and
    /// [`StoreError::InvalidPart`] when the sizes of the parts do not add up to the bytes that were
    /// written (with the number of the last).
    pub async fn commit_stored(
        mut self,
        stored: StoredObject,
        condition: Condition,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        let store = self.store();
        self.event_kind = None;
        let home = self.arrive(store.as_ref()).await?;
        if let Some(last) = stored.parts.last() {
            if stored.parts.windows(2).any(|pair| pair[0].number >= pair[1].number) {
                return Err(StoreError::InvalidPartOrder);
            }
            if stored.parts.iter().map(|part| u128::from(part.size)).sum::<u128>() != u128::from(self.body.size) {
                return Err(StoreError::InvalidPart(last.number));
            }
            // Only a manifest names parts, and only a body in chunks has one.
            with_disk_name(home.as_ref(), self.body.chunk_pieces().await)?;
        }
        let preconditions = [precondition_of(&condition)];
        with_disk_name(home.as_ref(), self.commit_here(stored, &preconditions, durability).await)
    }

    /// Commits an object fetched from an origin: without a flush, since it can be fetched again,
    /// and without an event. It keeps the time, entity tag and metadata of `stored`, which has no
    /// parts.
    ///
    /// # Errors
    /// Those of [`ObjectWriter::commit`].
    pub async fn commit_fill(mut self, stored: StoredObject, condition: &FillCondition) -> Result<Written, StoreError> {
        let store = self.store();
        self.event_kind = None;
        let home = self.arrive(store.as_ref()).await?;
        let preconditions = fill_preconditions(condition);
        with_disk_name(home.as_ref(), self.commit_here(stored, &preconditions, Some(Durability::Async)).await)
    }

    /// Commits on the shard where the body is.
    async fn commit_here(
        mut self,
        stored: StoredObject,
        preconditions: &[Precondition<'_>],
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        let (applied, writes) = (self.body.shard.applied.clone(), self.body.shard.writes.clone());
        let bucket = self.body.bucket.clone();
        let durability = bucket.durability(durability);
        let (mut body, mut chunks) = self.body.finish().await?;
        let mut meta = ObjectMeta {
            size: self.body.size,
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
        if let WriteTarget::Part { upload, number } = &self.body.target {
            check_place(&applied, self.body.shard.log(), upload, *number, (head.len() + body_len) as u64)?;
        }
        let slack = chunks.as_ref().map_or(0, |chunks| 16 * chunks.len() as u64);
        let event = self.draft(&meta)?;
        let bytes = (128 + head.len() + body_len) as u64 + slack + event.as_ref().map_or(0, Draft::bytes);
        let room = self.body.room(bytes).await?;
        // No chunk is moved from here until the record is submitted.
        let shared = match (self.body.owner(), &mut chunks) {
            (Some(id), Some(chunks)) => {
                let shared = writes.hang.unless_hanging(applied.manifests.read()).await?;
                if applied.owners.follow(&id, chunks) {
                    head = self.head(&mut meta, &mut body, Some(chunks), &parts);
                }
                Some(shared)
            }
            _ => None,
        };
        let accesses = self.accesses(&mut meta, preconditions);
        let batch = vec![Record { head: head.into(), body, version: None }];
        let gate = bucket.enter().await?;
        let unmet = match self.body.target {
            WriteTarget::Object => StoreError::ConditionFailed,
            WriteTarget::Part { .. } => StoreError::NoSuchUpload,
        };
        let submission = Submission::new(&accesses, room, batch, durability).with_events(event.as_slice());
        let ticket = submission.submit(&writes).await.map_err(|refusal| refusal.or(unmet))?;
        let version = ticket.first_lsn();
        bucket.last_lsn.fetch_max(version, Ordering::AcqRel);
        self.body.submitted(version);
        drop(gate);
        drop(shared);
        let committed = writes.committed(ticket).await?;
        writes.note_space();
        Ok(Written { version, durable: committed.durable, modified_ms: meta.modified_ms })
    }

    /// The event of the commit, if it has one.
    fn draft(&self, meta: &ObjectMeta) -> Result<Option<Draft>, StoreError> {
        let Some(kind) = self.event_kind else { return Ok(None) };
        let (size, etag, cause) = (meta.size, &meta.attributes.etag[..], self.cause.as_ref());
        let change = ObjectChange { kind, key: &self.body.key, size, etag, cause };
        Draft::of(&self.body.shard.applied, &self.body.bucket, change)
    }

    /// The key that the commit depends on and changes. Takes an object's entity tag out of `meta`.
    fn accesses<'a>(&self, meta: &mut ObjectMeta, preconditions: &[Precondition<'a>]) -> Vec<KeyAccess<'a>> {
        let (bucket, key) = (self.body.bucket.id, self.body.key.as_bytes());
        match self.body.target {
            WriteTarget::Object => {
                let becomes = PendingState::Present(std::mem::take(&mut meta.attributes.etag));
                object_accesses(&keys::object(bucket, key).into(), preconditions.iter().copied(), becomes)
            }
            WriteTarget::Part { upload, .. } => vec![KeyAccess {
                key: keys::upload(bucket, key, &upload).into(),
                precondition: Precondition::Present,
                becomes: Some((PendingState::Present(String::new()), 0)),
            }],
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
        let (bucket, key, payload) = (self.body.bucket.id, self.body.key.as_bytes(), &meta.encode()[..]);
        match self.body.target {
            WriteTarget::Object => Head::ObjectPut { bucket, key, payload }.encode(),
            WriteTarget::Part { upload, number } => Head::PartPut { bucket, upload, number, key, payload }.encode(),
        }
    }

    /// The chunks on disk, when all launched ones are.
    #[cfg(test)]
    pub(crate) async fn settled_chunks(&mut self) -> Vec<Location> {
        self.body.settled_chunks().await
    }
}

/// Adds the name of the disk to an error, where the bytes are at a key's home.
fn with_disk_name<T>(home: Option<&Entered<'_>>, result: Result<T, StoreError>) -> Result<T, StoreError> {
    match home {
        Some(home) => home.with_disk_name(result),
        None => result,
    }
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

impl std::fmt::Debug for ObjectWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ObjectWriter").field(&self.body).finish()
    }
}
