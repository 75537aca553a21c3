//! Fills: objects fetched from an origin and kept as a cache.
//!
//! A fill of several segments is an internal upload: a segment is a part, and completing the upload
//! makes the whole object in one commit. Clients see neither the upload nor its parts. Nothing here
//! is flushed or makes an event, because everything can be fetched again.

use steadfast_log::{Durability, Lsn};

use super::Store;
use super::writer::ObjectWriter;
use crate::record::upload::UploadOwner;
use crate::{
    Attributes, Condition, FillCondition, ObjectInfo, ObjectReader, PartInfo, StoreError, StoredObject, UploadInfo,
    UploadPage, Written,
};

impl Store {
    /// Begins an internal upload.
    ///
    /// # Errors
    /// Those of [`Store::create_upload`].
    pub async fn create_fill(&self, bucket: &str, key: &str, attributes: Attributes) -> Result<UploadInfo, StoreError> {
        let home = self.enter(bucket, key).await?;
        home.with_disk_name(home.create_upload(bucket, key, attributes, Condition::None, UploadOwner::Server).await)
    }

    /// An unfinished internal upload.
    ///
    /// # Errors
    /// Those of [`Store::upload`].
    pub fn fill(&self, bucket: &str, key: &str, upload_id: &str) -> Result<UploadInfo, StoreError> {
        self.home(bucket, key)?.upload(bucket, key, upload_id, UploadOwner::Server)
    }

    /// The first unfinished internal upload of a key, by identity, if there is one.
    ///
    /// # Errors
    /// Those of [`Store::uploads`].
    pub fn fill_of(&self, bucket: &str, key: &str) -> Result<Option<UploadInfo>, StoreError> {
        let page = self.uploads_of(UploadOwner::Server, bucket, key, "", ("", ""), 1)?;
        Ok(page.uploads.into_iter().find(|upload| upload.key == key))
    }

    /// A page of the unfinished internal uploads of a bucket, by key and then by identity. `after`
    /// is an exclusive lower bound.
    ///
    /// # Errors
    /// Those of [`Store::uploads`].
    pub fn fills(&self, bucket: &str, after: (&str, &str), limit: usize) -> Result<UploadPage, StoreError> {
        self.uploads_of(UploadOwner::Server, bucket, "", "", after, limit)
    }

    /// Begins a segment of an internal upload: a part with an empty entity tag, numbered from 1.
    ///
    /// # Errors
    /// Those of [`Store::part_writer`].
    pub async fn segment_writer(
        &self,
        bucket: &str,
        key: &str,
        upload_id: &str,
        number: u16,
        size: u64,
    ) -> Result<ObjectWriter, StoreError> {
        let home = self.home(bucket, key)?;
        let writer = home.part_writer(bucket, key, upload_id, number, Some(size), UploadOwner::Server).await;
        Ok(ObjectWriter::new(self.clone(), home.with_disk_name(writer)?))
    }

    /// The segments of an internal upload with numbers above `after`, at most `limit`, and whether
    /// there are more.
    ///
    /// # Errors
    /// Those of [`Store::parts`].
    pub fn segments(
        &self,
        bucket: &str,
        key: &str,
        upload_id: &str,
        after: u16,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool), StoreError> {
        self.home(bucket, key)?.parts(bucket, key, upload_id, after, limit, UploadOwner::Server)
    }

    /// Begins to read a committed segment. Its bytes stay in place while the reader lives, also
    /// when the upload ends.
    ///
    /// # Errors
    /// [`StoreError::NoSuchKey`] without such a segment, and those of [`Store::reader`].
    pub async fn segment_reader(
        &self,
        bucket: &str,
        key: &str,
        upload_id: &str,
        number: u16,
    ) -> Result<ObjectReader, StoreError> {
        self.home(bucket, key)?.segment_reader(key, upload_id, number).await
    }

    /// Aborts an internal upload and frees its segments.
    ///
    /// # Errors
    /// Those of [`Store::abort_upload`].
    pub async fn abort_fill(&self, bucket: &str, key: &str, upload_id: &str) -> Result<(), StoreError> {
        let home = self.enter(bucket, key).await?;
        home.with_disk_name(home.abort_upload(bucket, key, upload_id, UploadOwner::Server).await)
    }

    /// Creates the object from segments 1 to `segments` of an internal upload, in one commit with
    /// the end of the upload. It gets the time and attributes of `stored`.
    ///
    /// # Errors
    /// [`StoreError::ConditionFailed`], [`StoreError::NoSuchUpload`], and others of
    /// [`Store::complete_upload`].
    pub async fn complete_fill(
        &self,
        bucket: &str,
        key: &str,
        upload_id: &str,
        segments: u16,
        stored: &StoredObject,
        condition: &FillCondition,
    ) -> Result<Written, StoreError> {
        let home = self.enter(bucket, key).await?;
        home.with_disk_name(home.complete_fill(bucket, key, upload_id, segments, stored, condition).await)
    }

    /// Deletes an object if it still has that version, without an event.
    ///
    /// # Errors
    /// [`StoreError::ConditionFailed`] for another version or none, and others of
    /// [`Store::delete`].
    pub async fn delete_version(
        &self,
        bucket: &str,
        key: &str,
        version: Lsn,
        durability: Durability,
    ) -> Result<Written, StoreError> {
        let home = self.enter(bucket, key).await?;
        home.with_disk_name(home.delete_version(bucket, key, version, durability).await)
    }

    /// Makes all changes durable that reads could see at the call.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when a disk is missing, those of the log.
    pub async fn flush(&self) -> Result<(), StoreError> {
        let topology = self.topology();
        for shard in topology.all()? {
            shard.log().flush().await?;
        }
        Ok(())
    }

    /// An object without its bytes, as it is after all changes submitted before the call.
    ///
    /// # Errors
    /// Those of [`Store::object`], and those of the log.
    pub async fn settled_object(&self, bucket: &str, key: &str) -> Result<ObjectInfo, StoreError> {
        self.home(bucket, key)?.settled_object(bucket, key).await
    }
}
