//! The store: all shards as one. It looks up the key's slot and calls the shard that is its home.
//!
//! With one disk no look-up is needed. With several, everything of a key is at its home; every
//! shard has the buckets, and the first shard is authoritative for them (`buckets.rs`).

mod buckets;
pub(crate) mod channels;
pub(crate) mod events;
mod fills;
mod gates;
mod list;
pub(crate) mod moves;
mod open;
pub(crate) mod snapshot;
mod snapshots;
pub(crate) mod topology;
pub(crate) mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use futures::StreamExt;
use futures::future::join_all;
use steadfast_log::{Durability, ScrubRequest, ScrubStatus};

use crate::layout::slot_of;
use crate::outbox::Outbox;
use crate::record::keys::BucketId;
use crate::record::upload::UploadOwner;
use crate::status::{PoolSpace, StoreStatus};
use crate::{
    Attributes, Condition, EventKind, Evictor, IndexKind, ObjectInfo, ObjectReader, PartChoice, PartInfo, StoreError,
    StoreOptions, UploadInfo, Written,
};
use gates::Gates;
use moves::Moves;
use tokio::sync::Semaphore;
use topology::Topology;
use writer::ObjectWriter;

pub(crate) struct Pool {
    topology: ArcSwap<Topology>,
    gates: Gates,
    moves: Moves,
    /// Index setting for further disks.
    index: IndexKind,
    options: StoreOptions,
    read_ahead: Arc<Semaphore>,
    /// Held while buckets are created, changed and deleted.
    bucket_ops: tokio::sync::Mutex<()>,
    /// Held while snapshots are made and deleted.
    snapshot_ops: tokio::sync::Mutex<()>,
    /// Events to be forwarded.
    outbox: Arc<Outbox>,
    env: steadfast_flow::Env,
}

/// Buckets, objects and uploads over the logs of one or more disks. Clones share it.
#[derive(Clone)]
pub struct Store(Arc<Pool>);

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store")
    }
}

impl Store {
    /// Gauges and counters.
    pub fn status(&self) -> StoreStatus {
        let mut status = self.topology().status();
        status.moving = self.0.moves.status();
        status.snapshots = self.snapshots();
        status.events = self.0.outbox.status();
        status
    }

    /// Sets what deletes cached objects instead of having compaction move them.
    pub fn set_evictor(&self, evictor: Arc<dyn Evictor>) {
        self.0.options.evictor.set(evictor);
    }

    /// The space of the present disks.
    pub fn space(&self) -> PoolSpace {
        let topology = self.topology();
        // Those of the reserve, and the two that are written.
        let kept = u64::from(self.0.options.log.reserve_extents) + 2;
        topology.open().fold(PoolSpace::default(), |sum, (_, shard)| {
            let (counts, bytes) = (shard.log().extents(), shard.log().info().extent_bytes);
            let used = counts.open_commit + counts.open_body + counts.sealed_commit + counts.sealed_body;
            PoolSpace {
                capacity_bytes: sum.capacity_bytes
                    + (used + counts.free + counts.growable).saturating_sub(kept) * bytes,
                live_bytes: sum.live_bytes + counts.live_commit_bytes + counts.live_body_bytes + counts.held_bytes,
                pinned_bytes: sum.pinned_bytes + counts.pinned_bytes,
            }
        })
    }

    /// Starts a scrub pass on every present disk, or stops the running passes.
    ///
    /// # Errors
    /// When the store is closed.
    pub fn scrub(&self, request: ScrubRequest) -> Result<(), StoreError> {
        self.topology().open().try_for_each(|(_, shard)| shard.log().scrub(request).map_err(StoreError::from))
    }

    /// Scrub status of each disk, by the disk's name.
    pub fn scrubs(&self) -> Vec<(String, ScrubStatus)> {
        self.topology().open().map(|(member, shard)| (member.name.clone(), shard.log().status().scrub)).collect()
    }

    /// Finishes accepted changes and persists the index, so that the next start replays nothing.
    ///
    /// # Errors
    /// Those of the log. An index that cannot be persisted is only logged: it is rebuilt.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.0.moves.stop().await;
        let topology = self.topology();
        let closed = join_all(topology.open().map(|(_, shard)| shard.close())).await;
        closed.into_iter().collect()
    }

    /// An object without its bytes.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchKey`], [`StoreError::Unavailable`].
    pub fn object(&self, bucket: &str, key: &str) -> Result<ObjectInfo, StoreError> {
        self.home(bucket, key)?.object(bucket, key)
    }

    /// Begins to read an object as it is now: later changes do not show.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchKey`], [`StoreError::Unavailable`], those
    /// of the log.
    pub async fn reader(&self, bucket: &str, key: &str) -> Result<ObjectReader, StoreError> {
        self.home(bucket, key)?.reader(bucket, key).await
    }

    /// Begins an object. `size` is the size that the client announced, if any; with it small
    /// objects reserve only what they need.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`]; [`StoreError::Busy`] when the budget stays exhausted for too
    /// long; [`StoreError::Unavailable`]; those of the log.
    pub async fn writer(&self, bucket: &str, key: &str, size: Option<u64>) -> Result<ObjectWriter, StoreError> {
        let home = self.home(bucket, key)?;
        let mut writer = home.with_disk_name(home.writer(bucket, key, size).await)?;
        writer.event_kind = Some(EventKind::Put);
        Ok(ObjectWriter::new(self.clone(), writer))
    }

    /// Deletes an object; succeeds when none exists, unless the condition requires one.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::ConditionFailed`], [`StoreError::Unavailable`],
    /// those of the log.
    pub async fn delete(
        &self,
        bucket: &str,
        key: &str,
        condition: Condition,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        self.room_for_event(bucket).await?;
        let home = self.enter(bucket, key).await?;
        home.with_disk_name(home.delete(bucket, key, condition, durability).await)
    }

    /// Deletes objects, as many per commit as fit, on all disks concurrently. The answers are in
    /// the order of `keys`.
    pub async fn delete_many(
        &self,
        bucket: &str,
        keys: Vec<String>,
        durability: Option<Durability>,
    ) -> Vec<Result<(), StoreError>> {
        let refused = |e: StoreError| keys.iter().map(|_| Err(e.clone())).collect();
        let bucket_id = match self.bucket_id(bucket) {
            Ok(id) => id,
            Err(e) => return refused(e),
        };
        if let Err(e) = self.room_for_event(bucket).await {
            return refused(e);
        }
        let slots: Vec<usize> = keys.iter().map(|key| slot_of(bucket_id, key.as_bytes())).collect();
        let entered = match self.enter_many(&slots).await {
            Ok(entered) => entered,
            Err(e) => return refused(e),
        };
        let mut results: Vec<Result<(), StoreError>> = keys.iter().map(|_| Ok(())).collect();
        let mut by_home = BTreeMap::new();
        for (i, (key, slot)) in keys.into_iter().zip(slots).enumerate() {
            match entered.home_of(slot) {
                Ok(home) => {
                    let (_, places, keys) = by_home.entry(home.seat).or_insert_with(|| (home, Vec::new(), Vec::new()));
                    places.push(i);
                    keys.push(key);
                }
                Err(e) => results[i] = Err(e),
            }
        }
        let deletes = by_home.into_values().map(|(home, places, keys)| async move {
            let answers = home.delete_many(bucket, keys, durability).await;
            places
                .into_iter()
                .zip(answers.into_iter().map(|answer| home.with_disk_name(answer)).collect::<Vec<_>>())
                .collect::<Vec<_>>()
        });
        for (i, answer) in join_all(deletes).await.into_iter().flatten() {
            results[i] = answer;
        }
        results
    }

    fn bucket_id(&self, bucket: &str) -> Result<BucketId, StoreError> {
        Ok(self.topology().lead()?.find(bucket)?.id)
    }

    /// Copies an object. `attributes` of `None` keeps the source's, entity tag included. A copy
    /// onto itself changes only the attributes and copies no data. The condition applies to the
    /// destination.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchKey`], [`StoreError::ConditionFailed`],
    /// [`StoreError::Unavailable`], those of the log.
    pub async fn copy(
        &self,
        from: (&str, &str),
        to: (&str, &str),
        attributes: Option<Attributes>,
        condition: Condition,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        if from == to {
            self.room_for_event(to.0).await?;
            let home = self.enter(to.0, to.1).await?;
            return home.with_disk_name(home.copy_onto_itself(to, attributes, condition, durability).await);
        }
        let reader = self.reader(from.0, from.1).await?;
        let size = reader.info().size;
        let attributes = attributes.unwrap_or_else(|| reader.info().attributes.clone());
        let mut writer = self.writer(to.0, to.1, Some(size)).await?;
        writer.is_a_copy();
        let mut pieces = std::pin::pin!(reader.stream(0..size));
        while let Some(piece) = pieces.next().await {
            writer.write(piece?).await?;
        }
        writer.commit(attributes, condition, durability).await
    }

    /// Replaces the tags of an object; nothing else changes except its version.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchKey`], [`StoreError::Unavailable`], those
    /// of the log.
    pub async fn set_tags(
        &self,
        bucket: &str,
        key: &str,
        tags: BTreeMap<String, String>,
    ) -> Result<Written, StoreError> {
        let home = self.enter(bucket, key).await?;
        home.with_disk_name(home.set_tags(bucket, key, tags).await)
    }

    /// Begins a multipart upload.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::TooLarge`], [`StoreError::Unavailable`], those
    /// of the log.
    pub async fn create_upload(
        &self,
        bucket: &str,
        key: &str,
        attributes: Attributes,
    ) -> Result<UploadInfo, StoreError> {
        self.create_upload_if(bucket, key, attributes, Condition::None).await
    }

    /// Begins a multipart upload if `condition` holds for the object. The condition is stored with
    /// the upload and decided again, atomically, at completion.
    ///
    /// # Errors
    /// Those of [`Store::create_upload`], [`StoreError::ConditionFailed`].
    pub async fn create_upload_if(
        &self,
        bucket: &str,
        key: &str,
        attributes: Attributes,
        condition: Condition,
    ) -> Result<UploadInfo, StoreError> {
        let home = self.enter(bucket, key).await?;
        home.with_disk_name(home.create_upload(bucket, key, attributes, condition, UploadOwner::Client).await)
    }

    /// An unfinished upload.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchUpload`], [`StoreError::Unavailable`].
    pub fn upload(&self, bucket: &str, key: &str, upload_id: &str) -> Result<UploadInfo, StoreError> {
        self.home(bucket, key)?.upload(bucket, key, upload_id, UploadOwner::Client)
    }

    /// Begins a part; its commit replaces one with the same number.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchUpload`], [`StoreError::Unavailable`],
    /// those of the log.
    pub async fn part_writer(
        &self,
        bucket: &str,
        key: &str,
        upload_id: &str,
        number: u16,
        size: Option<u64>,
    ) -> Result<ObjectWriter, StoreError> {
        let home = self.home(bucket, key)?;
        let writer =
            home.with_disk_name(home.part_writer(bucket, key, upload_id, number, size, UploadOwner::Client).await)?;
        Ok(ObjectWriter::new(self.clone(), writer))
    }

    /// The parts of an upload with numbers above `after`, at most `limit`, and whether there are
    /// more.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchUpload`], [`StoreError::Unavailable`].
    pub fn parts(
        &self,
        bucket: &str,
        key: &str,
        upload_id: &str,
        after: u16,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool), StoreError> {
        self.home(bucket, key)?.parts(bucket, key, upload_id, after, limit, UploadOwner::Client)
    }

    /// Aborts an upload and frees its parts.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchUpload`], [`StoreError::Unavailable`],
    /// those of the log.
    pub async fn abort_upload(&self, bucket: &str, key: &str, upload_id: &str) -> Result<(), StoreError> {
        let home = self.enter(bucket, key).await?;
        home.with_disk_name(home.abort_upload(bucket, key, upload_id, UploadOwner::Client).await)
    }

    /// Creates an object from the chosen parts, in one commit with the end of the upload.
    /// `attributes` contain the entity tag and the checksums. System headers, user metadata and
    /// tags are those given when the upload began, unless `attributes` has any.
    ///
    /// Completing a completed upload again returns the same answer, as long as the object is still
    /// that one.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchUpload`], [`StoreError::InvalidPart`] (0
    /// when none was chosen), [`StoreError::InvalidPartOrder`], [`StoreError::PartTooSmall`],
    /// [`StoreError::ConditionFailed`], [`StoreError::Unavailable`], those of the log.
    #[allow(clippy::too_many_arguments, reason = "each is a part of the request")]
    pub async fn complete_upload(
        &self,
        bucket: &str,
        key: &str,
        upload_id: &str,
        choices: Vec<PartChoice>,
        attributes: Attributes,
        condition: Condition,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        self.room_for_event(bucket).await?;
        let home = self.enter(bucket, key).await?;
        home.with_disk_name(
            home.complete_upload(bucket, key, upload_id, choices, attributes, condition, durability).await,
        )
    }
}
