//! An unfinished multipart upload of a key: its parts, its completion and its end.

use steadfast_log::Durability;

use super::home::Home;
use super::topology::HomeDisk;
use super::writer::ObjectWriter;
use crate::record::Value;
use crate::record::keys::{self, BucketId, Id};
use crate::record::object::{ObjectMeta, id_from_text};
use crate::record::upload::UploadOwner;
use crate::shard::body::WriteTarget;
use crate::shard::complete::Completion;
use crate::shard::submit::{fill_preconditions, precondition_of};
use crate::shard::uploads::{abort, durability_of, part_info, upload_info};
use crate::{
    Attributes, Condition, FillCondition, ObjectReader, PartChoice, PartInfo, StoreError, StoredObject, UploadInfo,
    Written,
};

/// A multipart upload of a client, or a fill of the server. Each method finds out whether it
/// exists.
#[derive(Clone, Copy)]
pub struct Upload<'a> {
    pub(super) home: Home<'a>,
    /// Its identity as text.
    pub(super) id: &'a str,
    pub(super) owner: UploadOwner,
}

impl std::fmt::Debug for Upload<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Upload({:?}, {})", self.home, self.id)
    }
}

impl Upload<'_> {
    fn id(self) -> Result<Id, StoreError> {
        id_from_text(self.id).ok_or(StoreError::NoSuchUpload)
    }

    /// Its value in the index of the disk.
    fn find(self, disk: &HomeDisk, bucket: BucketId) -> Result<(Id, bytes::Bytes), StoreError> {
        let id = self.id()?;
        Ok((id, disk.applied.find_upload(bucket, self.home.key.as_bytes(), &id, self.owner)?))
    }

    /// Its description.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchUpload`], [`StoreError::Unavailable`].
    pub fn info(self) -> Result<UploadInfo, StoreError> {
        let disk = self.home.disk()?;
        let (id, value) = self.find(&disk, disk.find(self.home.bucket)?.id)?;
        upload_info(self.home.key, &id, Value::decode(&value)?.payload)
    }

    /// Begins a part; its commit replaces one with the same number. The parts of a fill have empty
    /// entity tags and are numbered from 1. `size` in bytes, if it is known.
    ///
    /// # Errors
    /// Those of [`Upload::info`], those of the log.
    pub async fn writer(self, number: u16, size: Option<u64>) -> Result<ObjectWriter, StoreError> {
        let disk = self.home.disk()?;
        let bucket = disk.find(self.home.bucket)?;
        let (upload, _) = self.find(&disk, bucket.id)?;
        let target = WriteTarget::Part { upload, number };
        ObjectWriter::begin(self.home.store, &disk, bucket, self.home.key, target, size).await
    }

    /// The parts with numbers above `after`, at most `limit`, and whether there are more.
    ///
    /// # Errors
    /// Those of [`Upload::info`].
    pub fn parts(self, after: u16, limit: usize) -> Result<(Vec<PartInfo>, bool), StoreError> {
        let disk = self.home.disk()?;
        let (id, _) = self.find(&disk, disk.find(self.home.bucket)?.id)?;
        let prefix = keys::parts(&id);
        let from = [&keys::part(&id, after)[..], &[0]].concat();
        let mut parts = Vec::new();
        for pair in disk.applied.index.range(&from, keys::past(&prefix).as_deref()) {
            let (index_key, value) = pair?;
            if parts.len() == limit {
                return Ok((parts, true));
            }
            let Some((_, number)) = index_key.split_last_chunk::<2>() else { continue };
            parts.push(part_info(u16::from_be_bytes(*number), ObjectMeta::decode(Value::decode(&value)?.payload)?));
        }
        Ok((parts, false))
    }

    /// Begins to read a committed part. Its bytes stay in place while the reader lives, also when
    /// the upload ends.
    ///
    /// # Errors
    /// [`StoreError::NoSuchKey`] without such a part, and those of [`Home::reader`].
    pub async fn reader(self, number: u16) -> Result<ObjectReader, StoreError> {
        let disk = self.home.disk()?;
        ObjectReader::open(&disk.reads, &keys::part(&self.id()?, number), self.home.key).await
    }

    /// Aborts the upload and frees its parts.
    ///
    /// # Errors
    /// Those of [`Upload::info`], those of the log.
    pub async fn abort(self) -> Result<(), StoreError> {
        let disk = self.home.enter().await?;
        let bucket = disk.find(self.home.bucket)?;
        let (id, _) = self.find(&disk, bucket.id)?;
        let key = self.home.key.as_bytes();
        disk.with_disk_name(abort(&disk.writes, &bucket, key, id, durability_of(self.owner)).await)
    }

    /// Creates an object from the chosen parts, in one commit with the end of the upload.
    /// `attributes` contain the entity tag and the checksums. System headers, user metadata and
    /// tags are those given when the upload began, unless `attributes` has any.
    ///
    /// Completing a completed upload again returns the same answer, as long as the object is still
    /// that one and has the entity tag in `attributes`.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchUpload`], [`StoreError::InvalidPart`] (0
    /// when none was chosen), [`StoreError::InvalidPartOrder`], [`StoreError::PartTooSmall`],
    /// [`StoreError::ConditionFailed`], [`StoreError::Unavailable`], those of the log.
    pub async fn complete(
        self,
        choices: Vec<PartChoice>,
        attributes: Attributes,
        condition: Condition,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        assert!(self.owner == UploadOwner::Client, "a fill is completed as a fill");
        self.home.store.events().room_for(self.home.bucket).await?;
        let disk = self.home.enter().await?;
        let bucket = disk.find(self.home.bucket)?;
        let preconditions = [precondition_of(&condition)];
        let completion = Completion {
            shard: &disk,
            bucket: &bucket,
            key: self.home.key,
            upload: self.id()?,
            choices: &choices,
            attributes: &attributes,
            preconditions: &preconditions,
            durability: bucket.durability(durability),
            cause: self.home.cause,
            fill_ms: None,
        };
        disk.with_disk_name(completion.run().await)
    }

    /// Creates the object from parts 1 to `parts` of a fill, in one commit with its end, without a
    /// flush and without an event. The object has no parts. It gets the time and attributes of
    /// `stored`.
    ///
    /// # Errors
    /// [`StoreError::ConditionFailed`], [`StoreError::NoSuchUpload`], and others of
    /// [`Upload::complete`].
    pub async fn complete_fill(
        self,
        parts: u16,
        stored: &StoredObject,
        condition: &FillCondition,
    ) -> Result<Written, StoreError> {
        assert!(self.owner == UploadOwner::Server, "an upload of a client is completed as one");
        let disk = self.home.enter().await?;
        let bucket = disk.find(self.home.bucket)?;
        let choices: Vec<_> = (1..=parts).map(|number| PartChoice { number, etag: String::new() }).collect();
        let preconditions = fill_preconditions(condition);
        let completion = Completion {
            shard: &disk,
            bucket: &bucket,
            key: self.home.key,
            upload: self.id()?,
            choices: &choices,
            attributes: &stored.attributes,
            preconditions: &preconditions,
            durability: Durability::Async,
            cause: self.home.cause,
            fill_ms: Some(stored.modified_ms),
        };
        disk.with_disk_name(completion.run().await)
    }
}
