//! Copying of an entity from its home to another disk, as it is stored.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use steadfast_flow::{Env, Pace};
use steadfast_log::{Durability, LogError, Record};

use super::sweep::{forget, patiently};
use crate::record::keys::{self, BucketId, Id};
use crate::record::object::First;
use crate::record::{Head, Value};
use crate::shard::Shard;
use crate::shard::body::WriteTarget;
use crate::shard::dirty::Entity;
use crate::shard::reader::ObjectReader;
use crate::store::writer::ObjectWriter;
use crate::{Condition, StoreError, StoreOptions};

/// Minimum cost of an entity, for the pace: its record, in bytes.
pub(super) const RECORD_BYTES: u64 = 4096;

/// Why an entity was not copied.
pub(super) enum CopyError {
    /// It cannot be read.
    Unreadable(StoreError),
    /// A disk accepts no more, or another failure that does not concern this entity alone.
    Failed(StoreError),
}

impl From<StoreError> for CopyError {
    fn from(e: StoreError) -> Self {
        Self::Failed(e)
    }
}

/// Classifies an error from reading an entity.
pub(super) fn reading(e: StoreError) -> CopyError {
    match e {
        StoreError::Log(LogError::Damaged { .. } | LogError::Read { .. }) | StoreError::Index(_) => {
            CopyError::Unreadable(e)
        }
        e => CopyError::Failed(e),
    }
}

/// Source and destination of copies. Clones share it.
#[derive(Clone)]
pub(super) struct Copier {
    pub(super) from: Shard,
    pub(super) to: Shard,
    /// `None` while writers wait for the move.
    pub(super) pace: Option<Pace>,
    pub(super) env: Env,
    pub(super) options: Arc<StoreOptions>,
}

impl Copier {
    /// Makes the other disk's copy of an entity equal to this one's; a missing entity is removed
    /// there. Returns the copied bytes. The copy is applied but not flushed.
    pub(super) async fn copy(&self, entity: &Entity) -> Result<u64, CopyError> {
        match entity {
            Entity::Object { bucket, key } => self.object(*bucket, key, entity).await,
            Entity::Upload { bucket, key, upload } => self.upload(*bucket, key, upload, entity).await,
            Entity::Part { bucket, key, upload, number } => self.part(*bucket, key, upload, *number).await,
            Entity::Channel { name } => self.channel(name, entity).await,
        }
    }

    /// How many bytes [`Copier::copy`] would copy.
    pub(super) fn size(&self, entity: &Entity) -> u64 {
        let index_key = match entity {
            Entity::Object { bucket, key } => keys::object(*bucket, key),
            Entity::Upload { .. } => return RECORD_BYTES,
            Entity::Part { upload, number, .. } => keys::part(upload, *number),
            Entity::Channel { name } => return self.channel_bytes(name),
        };
        let value = self.from.applied.lookup(&index_key).ok().flatten();
        let size = value.and_then(|value| Some(First::decode(Value::decode(&value).ok()?.payload).ok()?.size));
        RECORD_BYTES + size.unwrap_or_default()
    }

    pub(super) async fn spend(&self, bytes: u64) {
        if let Some(pace) = &self.pace {
            pace.spend(bytes).await;
        }
    }

    async fn object(&self, bucket: BucketId, key: &Bytes, entity: &Entity) -> Result<u64, CopyError> {
        let index_key = keys::object(bucket, key);
        let text = text(key)?;
        loop {
            let reader = match ObjectReader::open(&self.from.reads, &index_key, text).await {
                Ok(reader) => reader,
                Err(StoreError::NoSuchKey) => return self.remove(&index_key, entity).await,
                Err(StoreError::Hangs) => {
                    self.env.sleep(self.options.write_wait / 20).await;
                    continue;
                }
                Err(e) => return Err(reading(e)),
            };
            let Some(writer) = self.begin(bucket, text, WriteTarget::Object, reader.info().size).await? else {
                // The bucket has been deleted, and the object with it.
                return self.remove(&index_key, entity).await;
            };
            match self.pour(reader, writer).await {
                Err(CopyError::Failed(StoreError::Busy(_) | StoreError::Hangs)) => {
                    self.env.sleep(self.options.write_wait / 20).await
                }
                Err(CopyError::Failed(StoreError::NoSuchBucket)) => return self.remove(&index_key, entity).await,
                done => return done,
            }
        }
    }

    async fn begin(
        &self,
        bucket: BucketId,
        key: &str,
        target: WriteTarget,
        size: u64,
    ) -> Result<Option<ObjectWriter>, StoreError> {
        let Some(bucket) = self.to.applied.registry.read().by_id.get(&bucket).cloned() else { return Ok(None) };
        let begin = || ObjectWriter::begin_on(&self.to, bucket.clone(), key, target, size);
        patiently(&self.options, &self.env, begin).await.map(Some)
    }

    /// Copies all bytes and the stored metadata.
    async fn pour(&self, reader: ObjectReader, mut writer: ObjectWriter) -> Result<u64, CopyError> {
        let (stored, size) = (reader.stored(), reader.info().size);
        self.spend(RECORD_BYTES).await;
        let mut pieces = pin!(reader.stream(0..size));
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(reading)?;
            self.spend(piece.len() as u64).await;
            writer.write(piece).await?;
        }
        if writer.size() != size {
            let what = format!("{} of {size} bytes exist", writer.size());
            return Err(CopyError::Unreadable(StoreError::Index(what)));
        }
        writer.commit_stored(stored, Condition::None, Some(Durability::Async)).await?;
        Ok(size)
    }

    /// Removes an entity from the destination, if it exists there.
    async fn remove(&self, index_key: &[u8], entity: &Entity) -> Result<u64, CopyError> {
        if self.to.applied.lookup(index_key)?.is_some() {
            patiently(&self.options, &self.env, || forget(&self.to, std::slice::from_ref(entity))).await?;
        }
        Ok(0)
    }

    async fn upload(&self, bucket: BucketId, key: &Bytes, upload: &Id, entity: &Entity) -> Result<u64, CopyError> {
        let index_key = keys::upload(bucket, key, upload);
        let Some(value) = self.from.applied.lookup(&index_key)? else { return self.remove(&index_key, entity).await };
        if self.to.applied.lookup(&index_key)?.is_some() {
            return Ok(0);
        }
        self.spend(RECORD_BYTES).await;
        let payload = Value::decode(&value).map_err(StoreError::from)?.payload;
        let head = Head::UploadCreate { bucket, upload: *upload, key, payload }.encode();
        self.append(vec![Record { head: head.into(), ..Record::default() }]).await?;
        Ok(0)
    }

    async fn part(&self, bucket: BucketId, key: &Bytes, upload: &Id, number: u16) -> Result<u64, CopyError> {
        let text = text(key)?;
        loop {
            let reader = match ObjectReader::open(&self.from.reads, &keys::part(upload, number), text).await {
                Ok(reader) => reader,
                // Its upload ended, which is a change of its own.
                Err(StoreError::NoSuchKey) => return Ok(0),
                Err(StoreError::Hangs) => {
                    self.env.sleep(self.options.write_wait / 20).await;
                    continue;
                }
                Err(e) => return Err(reading(e)),
            };
            let target = WriteTarget::Part { upload: *upload, number };
            let Some(writer) = self.begin(bucket, text, target, reader.info().size).await? else { return Ok(0) };
            match self.pour(reader, writer).await {
                Err(CopyError::Failed(StoreError::Busy(_) | StoreError::Hangs)) => {
                    self.env.sleep(self.options.write_wait / 20).await
                }
                // The upload was aborted meanwhile. If it still exists, something is wrong.
                Err(CopyError::Failed(StoreError::NoSuchUpload | StoreError::NoSuchBucket))
                    if self.from.applied.lookup(&keys::upload(bucket, key, upload))?.is_none() =>
                {
                    return Ok(0);
                }
                done => return done,
            }
        }
    }
}

pub(super) fn text(key: &Bytes) -> Result<&str, CopyError> {
    std::str::from_utf8(key).map_err(|_| CopyError::Unreadable(StoreError::Index("a key that is not text".into())))
}
