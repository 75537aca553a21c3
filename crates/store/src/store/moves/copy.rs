//! Copying what there is of a key from its home to another disk, as it is stored.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use steadfast_flow::{Env, Pace};
use steadfast_log::{Durability, LogError, Record};

use super::sweep::patiently;
use crate::record::keys::{self, BucketId, Id};
use crate::record::object::First;
use crate::record::{Head, Value};
use crate::shard::Shard;
use crate::shard::dirty::Thing;
use crate::shard::reader::ObjectReader;
use crate::shard::writer::{ShardWriter, Target};
use crate::{Condition, StoreError, StoreOptions};

/// What a thing costs at least, for the pace: its record.
pub(super) const RECORD_BYTES: u64 = 4096;

/// Why a thing was not copied.
pub(super) enum Trouble {
    /// It cannot be read.
    Unreadable(StoreError),
    /// A disk takes no more, or something else that is not about this one thing.
    Failed(StoreError),
}

impl From<StoreError> for Trouble {
    fn from(e: StoreError) -> Self {
        Self::Failed(e)
    }
}

/// What an error means that came from reading a thing.
pub(super) fn reading(e: StoreError) -> Trouble {
    match e {
        StoreError::Log(LogError::Damaged { .. } | LogError::Read { .. }) | StoreError::Index(_) => {
            Trouble::Unreadable(e)
        }
        e => Trouble::Failed(e),
    }
}

/// From where to where. Cloning shares it.
#[derive(Clone)]
pub(super) struct Copier {
    pub(super) from: Shard,
    pub(super) to: Shard,
    /// `None` while others wait for it.
    pub(super) pace: Option<Pace>,
    pub(super) env: Env,
    pub(super) options: Arc<StoreOptions>,
}

impl Copier {
    /// Makes the other disk have what this one has of a thing; nothing, if so. Bytes that were copied. Visible there, and not flushed.
    pub(super) async fn copy(&self, thing: &Thing) -> Result<u64, Trouble> {
        match thing {
            Thing::Object { bucket, key } => self.object(*bucket, key, thing).await,
            Thing::Upload { bucket, key, upload } => self.upload(*bucket, key, upload, thing).await,
            Thing::Part { bucket, key, upload, number } => self.part(*bucket, key, upload, *number).await,
            Thing::Channel { name } => self.channel(name, thing).await,
        }
    }

    /// How many bytes [`Copier::copy`] would copy.
    pub(super) fn size(&self, thing: &Thing) -> u64 {
        let index_key = match thing {
            Thing::Object { bucket, key } => keys::object(*bucket, key),
            Thing::Upload { .. } => return RECORD_BYTES,
            Thing::Part { upload, number, .. } => keys::part(upload, *number),
            Thing::Channel { name } => return self.channel_bytes(name),
        };
        let value = self.from.core.lookup(&index_key).ok().flatten();
        let size = value.and_then(|value| Some(First::decode(Value::decode(&value).ok()?.payload).ok()?.size));
        RECORD_BYTES + size.unwrap_or_default()
    }

    pub(super) async fn spend(&self, bytes: u64) {
        if let Some(pace) = &self.pace {
            pace.spend(bytes).await;
        }
    }

    async fn object(&self, bucket: BucketId, key: &Bytes, thing: &Thing) -> Result<u64, Trouble> {
        let index_key = keys::object(bucket, key);
        let text = text(key)?;
        loop {
            let reader = match self.from.reader_of(&index_key, text).await {
                Ok(reader) => reader,
                Err(StoreError::NoSuchKey) => return self.remove(&index_key, thing).await,
                Err(StoreError::Hangs) => {
                    self.env.sleep(self.options.write_wait / 20).await;
                    continue;
                }
                Err(e) => return Err(reading(e)),
            };
            let Some(writer) = self.begin(bucket, text, Target::Object, reader.info().size).await? else {
                // The bucket has been deleted, so the object has been.
                return self.remove(&index_key, thing).await;
            };
            match self.pour(reader, writer).await {
                Err(Trouble::Failed(StoreError::Busy(_) | StoreError::Hangs)) => {
                    self.env.sleep(self.options.write_wait / 20).await
                }
                Err(Trouble::Failed(StoreError::NoSuchBucket)) => return self.remove(&index_key, thing).await,
                done => return done,
            }
        }
    }

    async fn begin(
        &self,
        bucket: BucketId,
        key: &str,
        target: Target,
        size: u64,
    ) -> Result<Option<ShardWriter>, StoreError> {
        let Some(bucket) = self.to.core.registry.read().by_id.get(&bucket).cloned() else { return Ok(None) };
        patiently(&self.options, &self.env, || self.to.begin(bucket.clone(), key, target, Some(size))).await.map(Some)
    }

    /// All bytes of one into the other, and what is stored beside them.
    async fn pour(&self, reader: ObjectReader, mut writer: ShardWriter) -> Result<u64, Trouble> {
        let (stored, size) = (reader.stored(), reader.info().size);
        self.spend(RECORD_BYTES).await;
        let mut pieces = pin!(reader.stream(0..size));
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(reading)?;
            self.spend(piece.len() as u64).await;
            writer.write(piece).await?;
        }
        if writer.size() != size {
            let what = format!("{} bytes are there of {size}", writer.size());
            return Err(Trouble::Unreadable(StoreError::Index(what)));
        }
        writer.commit_stored(stored, Condition::None, Some(Durability::Async)).await?;
        Ok(size)
    }

    /// Removes a thing from where it is copied to, if it is there.
    async fn remove(&self, index_key: &[u8], thing: &Thing) -> Result<u64, Trouble> {
        if self.to.core.lookup(index_key)?.is_some() {
            patiently(&self.options, &self.env, || self.to.forget(std::slice::from_ref(thing))).await?;
        }
        Ok(0)
    }

    async fn upload(&self, bucket: BucketId, key: &Bytes, upload: &Id, thing: &Thing) -> Result<u64, Trouble> {
        let index_key = keys::upload(bucket, key, upload);
        let Some(value) = self.from.core.lookup(&index_key)? else { return self.remove(&index_key, thing).await };
        if self.to.core.lookup(&index_key)?.is_some() {
            return Ok(0);
        }
        self.spend(RECORD_BYTES).await;
        let payload = Value::decode(&value).map_err(StoreError::from)?.payload;
        let head = Head::UploadCreate { bucket, upload: *upload, key, payload }.encode();
        self.append(vec![Record { head: head.into(), ..Record::default() }]).await?;
        Ok(0)
    }

    async fn part(&self, bucket: BucketId, key: &Bytes, upload: &Id, number: u16) -> Result<u64, Trouble> {
        let text = text(key)?;
        loop {
            let reader = match self.from.reader_of(&keys::part(upload, number), text).await {
                Ok(reader) => reader,
                // It went with its upload, which is another thing that has changed.
                Err(StoreError::NoSuchKey) => return Ok(0),
                Err(StoreError::Hangs) => {
                    self.env.sleep(self.options.write_wait / 20).await;
                    continue;
                }
                Err(e) => return Err(reading(e)),
            };
            let target = Target::Part { upload: *upload, number };
            let Some(writer) = self.begin(bucket, text, target, reader.info().size).await? else { return Ok(0) };
            match self.pour(reader, writer).await {
                Err(Trouble::Failed(StoreError::Busy(_) | StoreError::Hangs)) => {
                    self.env.sleep(self.options.write_wait / 20).await
                }
                // Given up meanwhile, unless it is still there: then something is wrong.
                Err(Trouble::Failed(StoreError::NoSuchUpload | StoreError::NoSuchBucket))
                    if self.from.core.lookup(&keys::upload(bucket, key, upload))?.is_none() =>
                {
                    return Ok(0);
                }
                done => return done,
            }
        }
    }
}

pub(super) fn text(key: &Bytes) -> Result<&str, Trouble> {
    std::str::from_utf8(key).map_err(|_| Trouble::Unreadable(StoreError::Index("a key that is not text".into())))
}
