//! A key and its home. Each operation on an object is defined here, once: it looks up the disk that
//! is home to the key and works with that disk's shard.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::StreamExt;
use steadfast_log::{Durability, Lsn, Priority, Record};

use super::Store;
use super::rewrite::Rewrite;
use super::topology::{Entered, HomeDisk};
use super::upload::Upload;
use super::writer::ObjectWriter;
use crate::record::object::id_to_text;
use crate::record::upload::{UploadMeta, UploadOwner};
use crate::record::{Head, keys};
use crate::shard::body::WriteTarget;
use crate::shard::buckets::Bucket;
use crate::shard::events::{Draft, ObjectChange};
use crate::shard::pending::PendingState;
use crate::shard::submit::{KeyAccess, Precondition, Submission, batch_bytes, check_head, precondition_of};
use crate::shard::uploads::durability_of;
use crate::{Attributes, Cause, Condition, EventKind, ObjectInfo, ObjectReader, StoreError, UploadInfo, Written};

/// A key of a bucket, whether or not it has an object. Each operation looks up the key's home anew,
/// so a value may be kept while the key moves to another disk.
#[derive(Clone, Copy)]
pub struct Home<'a> {
    pub(super) store: &'a Store,
    pub(super) bucket: &'a str,
    pub(super) key: &'a str,
    /// The client that makes a change.
    pub(super) cause: Option<&'a Cause>,
}

impl std::fmt::Debug for Home<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Home({}/{})", self.bucket, self.key)
    }
}

impl<'a> Home<'a> {
    /// The same key, changed by this client: the event of a change names it.
    #[must_use]
    pub fn caused_by(self, cause: &'a Cause) -> Self {
        assert!(cause.principal.len() <= Cause::NAME_BYTES_MAX, "the name of a client is bounded");
        Self { cause: Some(cause), ..self }
    }

    /// The disk that is home to the key, for reading.
    pub(super) fn disk(self) -> Result<HomeDisk, StoreError> {
        self.store.topology().home(self.bucket, self.key)
    }

    /// The disk that is home to the key, for changes. Waits while the key's slot is moving.
    pub(super) async fn enter(self) -> Result<Entered<'a>, StoreError> {
        let slot = self.store.topology().slot(self.bucket, self.key)?;
        self.store.enter_slot(slot).await
    }

    /// The object without its bytes.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchKey`], [`StoreError::Unavailable`].
    pub fn info(self) -> Result<ObjectInfo, StoreError> {
        let disk = self.disk()?;
        self.info_on(&disk, &keys::object(disk.find(self.bucket)?.id, self.key.as_bytes()))
    }

    /// The object without its bytes, as it is after all changes submitted before the call.
    ///
    /// # Errors
    /// Those of [`Home::info`], and those of the log.
    pub async fn settled_info(self) -> Result<ObjectInfo, StoreError> {
        let disk = self.disk()?;
        let index_key = Bytes::from(keys::object(disk.find(self.bucket)?.id, self.key.as_bytes()));
        disk.applied.wait_settled(&index_key).await?;
        self.info_on(&disk, &index_key)
    }

    fn info_on(self, disk: &HomeDisk, index_key: &[u8]) -> Result<ObjectInfo, StoreError> {
        let found = disk.applied.find_object(index_key)?.ok_or(StoreError::NoSuchKey)?;
        Ok(found.meta.into_info(self.key.to_owned(), found.version))
    }

    /// Begins to read the object as it is now: later changes do not show.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchKey`], [`StoreError::Unavailable`], those
    /// of the log.
    pub async fn reader(self) -> Result<ObjectReader, StoreError> {
        let disk = self.disk()?;
        let index_key = keys::object(disk.find(self.bucket)?.id, self.key.as_bytes());
        ObjectReader::open(&disk.reads, &index_key, self.key).await
    }

    /// Begins an object. `size` is the size in bytes that the client announced, if any; with it
    /// small objects reserve only what they need.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`]; [`StoreError::Busy`] when the budget stays exhausted for too
    /// long; [`StoreError::Unavailable`]; those of the log.
    pub async fn writer(self, size: Option<u64>) -> Result<ObjectWriter, StoreError> {
        let disk = self.disk()?;
        let bucket = disk.find(self.bucket)?;
        let mut writer = ObjectWriter::begin(self.store, &disk, bucket, self.key, WriteTarget::Object, size).await?;
        writer.caused_by(self.cause);
        Ok(writer)
    }

    /// Deletes the object; succeeds when none exists, unless the condition requires one.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::ConditionFailed`], [`StoreError::Unavailable`],
    /// those of the log.
    pub async fn delete(self, condition: Condition, durability: Option<Durability>) -> Result<Written, StoreError> {
        self.store.events().room_for(self.bucket).await?;
        let disk = self.enter().await?;
        let bucket = disk.find(self.bucket)?;
        let change = ObjectChange { kind: EventKind::Delete, key: self.key, size: 0, etag: "", cause: self.cause };
        let event = Draft::of(&disk.applied, &bucket, change)?.map(|draft| draft.if_there(0));
        let durability = bucket.durability(durability);
        disk.with_disk_name(self.delete_on(&disk, &bucket, precondition_of(&condition), event, durability).await)
    }

    /// Deletes the object if it still has that version, without an event.
    ///
    /// # Errors
    /// [`StoreError::ConditionFailed`] for another version or none, and others of [`Home::delete`].
    pub async fn delete_version(self, version: Lsn, durability: Durability) -> Result<Written, StoreError> {
        let disk = self.enter().await?;
        let bucket = disk.find(self.bucket)?;
        disk.with_disk_name(self.delete_on(&disk, &bucket, Precondition::Version(version), None, durability).await)
    }

    async fn delete_on(
        self,
        disk: &HomeDisk,
        bucket: &Bucket,
        precondition: Precondition<'_>,
        event: Option<Draft>,
        durability: Durability,
    ) -> Result<Written, StoreError> {
        let writes = &disk.writes;
        let head = Head::ObjectDelete { bucket: bucket.id, key: self.key.as_bytes() }.encode();
        check_head(&head)?;
        let batch = vec![Record { head: head.into(), ..Record::default() }];
        let bytes = batch_bytes(&batch) + event.as_ref().map_or(0, Draft::bytes);
        let room = writes.reserve(bytes, Priority::Delete).await?;
        let accesses = [KeyAccess {
            key: keys::object(bucket.id, self.key.as_bytes()).into(),
            precondition,
            becomes: Some((PendingState::Absent, 0)),
        }];
        let modified_ms = disk.applied.env.wall_ms();
        let gate = bucket.enter().await?;
        let submitted =
            Submission::new(&accesses, room, batch, durability).with_events(event.as_slice()).submit(writes);
        let ticket = submitted.await.map_err(|refusal| refusal.or(StoreError::ConditionFailed))?;
        let version = ticket.first_lsn();
        bucket.last_lsn.fetch_max(version, Ordering::AcqRel);
        drop(gate);
        let committed = writes.committed(ticket).await?;
        Ok(Written { version, durable: committed.durable, modified_ms })
    }

    /// Makes the object a copy of the one that `source` reads, with these attributes. For another
    /// key: onto itself an object is copied by [`Home::copy_onto_itself`].
    ///
    /// # Errors
    /// Those of [`Home::writer`] and of [`ObjectWriter::commit`], and those of reading the source.
    pub async fn copy_from(
        self,
        source: ObjectReader,
        attributes: Attributes,
        condition: Condition,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        let size = source.info().size;
        let mut writer = self.writer(Some(size)).await?;
        writer.is_a_copy();
        let mut pieces = std::pin::pin!(source.stream(0..size));
        // The source may be on a disk that hangs.
        while let Some(piece) = writer.give_room_during(pieces.next()).await {
            writer.write(piece?).await?;
        }
        writer.commit(attributes, condition, durability).await
    }

    /// Copies the object onto itself, if it has this version: only its attributes and its time
    /// change. No data is copied.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchKey`], [`StoreError::ConditionFailed`],
    /// [`StoreError::Unavailable`], those of the log.
    pub async fn copy_onto_itself(
        self,
        attributes: Attributes,
        condition: Condition,
        version: Option<Lsn>,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        self.store.events().room_for(self.bucket).await?;
        let rewrite = Rewrite { condition, version, durability, event_kind: Some(EventKind::Copy) };
        let copied = rewrite.of(self, |found, now| {
            found.meta.modified_ms = now;
            found.meta.attributes = attributes.clone();
        });
        copied.await
    }

    /// Replaces the tags of the object; nothing else changes except its version.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchKey`], [`StoreError::Unavailable`], those
    /// of the log.
    pub async fn set_tags(self, tags: BTreeMap<String, String>) -> Result<Written, StoreError> {
        let rewrite = Rewrite { condition: Condition::None, version: None, durability: None, event_kind: None };
        let tagged = rewrite.of(self, |found, _| {
            found.meta.attributes.tags = tags.clone();
            found.meta.attributes.forget_origin();
        });
        tagged.await
    }

    /// Replaces the access control list of the object, in the front end's form, if the object has
    /// this version; nothing else changes except its version.
    ///
    /// # Errors
    /// Those of [`Home::set_tags`]; [`StoreError::ConditionFailed`] for another version.
    pub async fn set_acl(self, acl: Option<String>, version: Option<Lsn>) -> Result<Written, StoreError> {
        let rewrite = Rewrite { condition: Condition::None, version, durability: None, event_kind: None };
        let listed = rewrite.of(self, |found, _| {
            found.meta.attributes.set_acl(acl.clone());
            found.meta.attributes.forget_origin();
        });
        listed.await
    }

    /// Begins a multipart upload if `condition` holds for the object. The condition is stored with
    /// the upload and decided again, atomically, at completion.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::ConditionFailed`], [`StoreError::TooLarge`],
    /// [`StoreError::Unavailable`], those of the log.
    pub async fn create_upload(self, attributes: Attributes, condition: Condition) -> Result<UploadInfo, StoreError> {
        self.begin_upload(attributes, condition, UploadOwner::Client).await
    }

    /// Begins a fill: an internal upload of an object that was fetched from an origin. A segment is
    /// a part, and completing the upload makes the whole object in one commit. Clients see neither
    /// the upload nor its parts. Nothing of it is flushed or makes an event, because everything can
    /// be fetched again.
    ///
    /// # Errors
    /// Those of [`Home::create_upload`].
    pub async fn create_fill(self, attributes: Attributes) -> Result<UploadInfo, StoreError> {
        self.begin_upload(attributes, Condition::None, UploadOwner::Server).await
    }

    async fn begin_upload(
        self,
        attributes: Attributes,
        condition: Condition,
        owner: UploadOwner,
    ) -> Result<UploadInfo, StoreError> {
        let disk = self.enter().await?;
        let created = self.begin_upload_on(&disk, attributes, condition, owner).await;
        disk.with_disk_name(created)
    }

    async fn begin_upload_on(
        self,
        disk: &HomeDisk,
        attributes: Attributes,
        condition: Condition,
        owner: UploadOwner,
    ) -> Result<UploadInfo, StoreError> {
        let (applied, writes, key) = (&disk.applied, &disk.writes, self.key);
        let bucket = disk.find(self.bucket)?;
        let upload = applied.random_id();
        let created_ms = applied.env.wall_ms();
        let meta = UploadMeta { created_ms, attributes, condition, owner };
        let payload = meta.encode();
        let head = Head::UploadCreate { bucket: bucket.id, upload, key: key.as_bytes(), payload: &payload }.encode();
        check_head(&head)?;
        let batch = vec![Record { head: head.into(), ..Record::default() }];
        let room = writes.reserve(batch_bytes(&batch), Priority::Write).await?;
        let gate = bucket.enter().await?;
        let accesses = [KeyAccess {
            key: keys::object(bucket.id, key.as_bytes()).into(),
            precondition: precondition_of(&meta.condition),
            becomes: None,
        }];
        let submitted = Submission::new(&accesses, room, batch, durability_of(owner)).submit(writes);
        let ticket = submitted.await.map_err(|refusal| refusal.or(StoreError::ConditionFailed))?;
        bucket.last_lsn.fetch_max(ticket.first_lsn(), Ordering::AcqRel);
        drop(gate);
        writes.committed(ticket).await?;
        let UploadMeta { attributes, condition, .. } = meta;
        Ok(UploadInfo { key: key.to_owned(), upload_id: id_to_text(&upload), created_ms, attributes, condition })
    }

    /// The multipart upload of the key with this identity, 32 hexadecimal digits. The methods of
    /// the result find out whether it exists.
    pub fn upload(self, id: &'a str) -> Upload<'a> {
        Upload { home: self, id, owner: UploadOwner::Client }
    }

    /// The fill of the key with this identity; see [`Home::create_fill`].
    pub fn fill(self, id: &'a str) -> Upload<'a> {
        Upload { home: self, id, owner: UploadOwner::Server }
    }

    /// The first unfinished fill of the key, by identity, if there is one.
    ///
    /// # Errors
    /// Those of [`BucketContents::uploads`](crate::BucketContents::uploads).
    pub fn first_fill(self) -> Result<Option<UploadInfo>, StoreError> {
        let page = self.store.contents(self.bucket).uploads_of(UploadOwner::Server, self.key, "", ("", ""), 1)?;
        Ok(page.uploads.into_iter().find(|upload| upload.key == self.key))
    }
}
