//! Completing an upload: the parts become one object without a copy.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use steadfast_log::{Durability, LogError, Priority, Record};

use crate::record::keys::{self, Id};
use crate::record::manifest::Manifest;
use crate::record::object::{Body, ObjectMeta, id_from_text};
use crate::record::{Head, Value};
use crate::shard::Shard;
use crate::shard::apply::repoint::place;
use crate::shard::buckets::Bucket;
use crate::shard::core::{Expect, Refusal, Touch};
use crate::shard::events::{Draft, Told};
use crate::shard::follow::Follow;
use crate::shard::pending::{Fate, bin_of};
use crate::shard::uploads::part_info;
use crate::shard::writer::{batch_bytes, check_head, expect};
use crate::{Attributes, Condition, EventKind, PartChoice, StoreError, Written};

/// An upload that is being completed.
struct Completion<'a> {
    bucket: &'a Bucket,
    key: &'a str,
    upload: Id,
    object_key: Bytes,
    upload_key: Bytes,
    choices: &'a [PartChoice],
    attributes: &'a Attributes,
}

impl Shard {
    /// Makes an object of the chosen parts, in one commit with the end of the upload. `attributes` bring the entity tag and the
    /// checksums; system headers, user metadata and tags are those given when the upload began, unless there are any here.
    ///
    /// Completing again what has been completed gives the same answer, as long as the object is that one.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchUpload`], [`StoreError::InvalidPart`] (0 when none was chosen),
    /// [`StoreError::InvalidPartOrder`], [`StoreError::PartTooSmall`], [`StoreError::ConditionFailed`], those of the log.
    #[allow(clippy::too_many_arguments, reason = "each is a part of the request")]
    pub(crate) async fn complete_upload(
        &self,
        bucket: &str,
        key: &str,
        upload_id: &str,
        choices: Vec<PartChoice>,
        attributes: Attributes,
        condition: Condition,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        let bucket = self.find(bucket)?;
        let upload = id_from_text(upload_id).ok_or(StoreError::NoSuchUpload)?;
        let completion = Completion {
            bucket: &bucket,
            key,
            upload,
            object_key: keys::object(bucket.id, key.as_bytes()).into(),
            upload_key: keys::upload(bucket.id, key.as_bytes(), &upload).into(),
            choices: &choices,
            attributes: &attributes,
        };
        let durability = bucket.durability(durability);
        let mut follow = Follow::default();
        loop {
            if let Some(written) = self.complete_once(&completion, &condition, durability, &mut follow).await? {
                return Ok(written);
            }
        }
    }

    async fn complete_once(
        &self,
        c: &Completion<'_>,
        condition: &Condition,
        durability: Durability,
        follow: &mut Follow,
    ) -> Result<Option<Written>, StoreError> {
        let core = &self.core;
        // Parts that are on their way count: an answer for one may have been given on another connection.
        let pending = core.pending.lock(bin_of(&c.upload_key)).get(&c.upload_key).map(|entry| entry.lsn);
        if let Some(lsn) = pending {
            core.wait_applied(lsn).await?;
        }
        // Asked for before the manifests are held: compaction may be what makes the room.
        let rough = (128 << 10) + 160 * c.choices.len() as u64;
        let mut room = Some(core.reserve(self.log(), rough, Priority::Write).await?);
        let shared = core.manifests.read().await;
        let Some(value) = core.lookup(&c.upload_key)? else {
            drop(shared);
            return self.completed_before(c, durability).await.map(Some);
        };
        let begun = ObjectMeta::decode(Value::decode(&value)?.payload)?.attributes;
        let Some((manifest, size)) = self.gather_parts(c, follow).await? else { return Ok(None) };
        let mut attributes = c.attributes.clone();
        for (mine, begun) in [
            (&mut attributes.system, begun.system),
            (&mut attributes.user, begun.user),
            (&mut attributes.tags, begun.tags),
        ] {
            if mine.is_empty() {
                *mine = begun;
            }
        }
        let mut meta = ObjectMeta {
            size,
            modified_ms: core.env.wall_ms(),
            revision: 0,
            upload: Some((c.upload, u16::try_from(c.choices.len()).unwrap_or(u16::MAX))),
            body: Body::Inline,
            attributes,
        };
        let body = place(&mut meta, &manifest);
        let (bucket, key) = (c.bucket.id, c.key.as_bytes());
        let put = Head::ObjectPut { bucket, key, payload: &meta.encode() }.encode();
        check_head(&put)?;
        let end = Head::UploadEnd { bucket, upload: c.upload, key }.encode();
        // In this order: at any time the chunks are found through the parts or through the object.
        let batch =
            vec![Record { head: put.into(), body, version: None }, Record { head: end.into(), ..Record::default() }];
        let told = Told { kind: EventKind::Complete, key: c.key, size: meta.size, etag: &meta.attributes.etag };
        let event = core.draft(c.bucket, told)?;
        let bytes = batch_bytes(&batch) + event.as_ref().map_or(0, Draft::bytes);
        if bytes > rough {
            room = Some(core.reserve(self.log(), bytes, Priority::Write).await?);
        }
        let touches = [
            Touch { key: c.upload_key.clone(), expect: Expect::Settled, fate: Some((Fate::Gone, 1)) },
            Touch {
                key: c.object_key.clone(),
                expect: expect(condition),
                fate: Some((Fate::Present(meta.attributes.etag), 0)),
            },
        ];
        let gate = c.bucket.enter().await?;
        let ticket = match core.submit_told(self.log(), &touches, event.as_slice(), &mut room, batch, durability).await
        {
            Ok(ticket) => ticket,
            Err(Refusal::Error(e)) => return Err(e),
            // Another part or another completion came between.
            Err(Refusal::Unmet(0, _)) => return Ok(None),
            Err(Refusal::Unmet(..)) => return Err(StoreError::ConditionFailed),
        };
        let version = ticket.first_lsn();
        c.bucket.last_lsn.fetch_max(version + 1, Ordering::AcqRel);
        drop((gate, shared));
        let committed = core.committed(ticket).await?;
        Ok(Some(Written { version, durable: committed.durable, modified_ms: meta.modified_ms }))
    }

    /// The answer when the upload is not there: that of the completion that ended it, if it was one.
    async fn completed_before(&self, c: &Completion<'_>, durability: Durability) -> Result<Written, StoreError> {
        let found = self.core.find_object(&c.object_key)?.ok_or(StoreError::NoSuchUpload)?;
        if found.meta.upload.is_none_or(|(id, _)| id != c.upload) {
            return Err(StoreError::NoSuchUpload);
        }
        let durable = durability == Durability::Sync;
        if durable {
            self.log().flush().await?;
        }
        Ok(Written { version: found.version, durable, modified_ms: found.meta.modified_ms })
    }

    /// The parts as one; `None` when one of them has moved meanwhile.
    async fn gather_parts(
        &self,
        c: &Completion<'_>,
        follow: &mut Follow,
    ) -> Result<Option<(Manifest, u64)>, StoreError> {
        if c.choices.is_empty() {
            return Err(StoreError::InvalidPart(0));
        }
        if c.choices.windows(2).any(|pair| pair[0].number >= pair[1].number) {
            return Err(StoreError::InvalidPartOrder);
        }
        let mut manifest = Manifest::default();
        let mut size = 0u64;
        for (i, choice) in c.choices.iter().enumerate() {
            let invalid = StoreError::InvalidPart(choice.number);
            let key = keys::part(&c.upload, choice.number);
            let value = self.core.lookup(&key)?.ok_or_else(|| invalid.clone())?;
            let value = Value::decode(&value)?;
            let meta = ObjectMeta::decode(value.payload)?;
            if meta.attributes.etag != choice.etag {
                return Err(invalid);
            }
            if i + 1 < c.choices.len() && meta.size < self.core.options.part_min_bytes {
                return Err(StoreError::PartTooSmall(choice.number));
            }
            match self.part_chunks(&key, &value, &meta).await {
                Ok(chunks) => manifest.chunks.extend(chunks),
                Err(StoreError::Log(LogError::Moved)) => {
                    follow.moved(self.log(), &value.location).await?;
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
            size += meta.size;
            manifest.parts.push(part_info(choice.number, meta));
        }
        Ok(Some((manifest, size)))
    }
}
