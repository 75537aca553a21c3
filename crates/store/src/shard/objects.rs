//! Objects: deleted, copied, tagged.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use steadfast_log::{Durability, LogError, Lsn, Priority, Record};

use crate::record::object::Body;
use crate::record::{Head, keys};
use crate::shard::Shard;
use crate::shard::applied::Found;
use crate::shard::apply::live::manifest;
use crate::shard::apply::repoint::place;
use crate::shard::buckets::Bucket;
use crate::shard::events::{Draft, ObjectChange, event_bytes_max};
use crate::shard::follow::{self, Follow};
use crate::shard::pending::PendingState;
use crate::shard::submit::{KeyAccess, Precondition, Refusal, Submission, precondition_of};
use crate::shard::writer::{batch_bytes, check_head};
use crate::{Attributes, Condition, EventKind, ObjectInfo, StoreError, Written};

/// The change of a deleted object, for its event.
fn deletion(key: &str) -> ObjectChange<'_> {
    ObjectChange { kind: EventKind::Delete, key, size: 0, etag: "" }
}

impl Shard {
    /// Deletes an object; succeeds when none exists, unless the condition requires one.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::ConditionFailed`], those of the log.
    pub(crate) async fn delete(
        &self,
        bucket: &str,
        key: &str,
        condition: Condition,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        let bucket = self.find(bucket)?;
        let event = Draft::of(&self.applied, &bucket, deletion(key))?.map(|draft| draft.if_there(0));
        self.delete_if(&bucket, key, precondition_of(&condition), event, bucket.durability(durability)).await
    }

    /// Deletes an object of that version, without an event.
    ///
    /// # Errors
    /// [`StoreError::ConditionFailed`] for another version or none, and those of [`Shard::delete`].
    pub(crate) async fn delete_version(
        &self,
        bucket: &str,
        key: &str,
        version: Lsn,
        durability: Durability,
    ) -> Result<Written, StoreError> {
        let bucket = self.find(bucket)?;
        self.delete_if(&bucket, key, Precondition::Version(version), None, durability).await
    }

    /// An object without its bytes, when a submitted change of it has been applied.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchKey`], those of the log.
    pub(crate) async fn settled_object(&self, bucket: &str, key: &str) -> Result<ObjectInfo, StoreError> {
        let index_key = keys::object(self.find(bucket)?.id, key.as_bytes()).into();
        self.applied.wait_settled(&index_key).await?;
        self.object(bucket, key)
    }

    async fn delete_if(
        &self,
        bucket: &Bucket,
        key: &str,
        precondition: Precondition<'_>,
        event: Option<Draft>,
        durability: Durability,
    ) -> Result<Written, StoreError> {
        let applied = &self.applied;
        let head = Head::ObjectDelete { bucket: bucket.id, key: key.as_bytes() }.encode();
        check_head(&head)?;
        let batch = vec![Record { head: head.into(), ..Record::default() }];
        let bytes = batch_bytes(&batch) + event.as_ref().map_or(0, Draft::bytes);
        let room = self.writes.reserve(bytes, Priority::Delete).await?;
        let accesses = [KeyAccess {
            key: keys::object(bucket.id, key.as_bytes()).into(),
            precondition,
            becomes: Some((PendingState::Absent, 0)),
        }];
        let modified_ms = applied.env.wall_ms();
        let gate = bucket.enter().await?;
        let submitted =
            Submission::new(&accesses, room, batch, durability).with_events(event.as_slice()).submit(&self.writes);
        let ticket = submitted.await.map_err(|refusal| refusal.or(StoreError::ConditionFailed))?;
        let version = ticket.first_lsn();
        bucket.last_lsn.fetch_max(version, Ordering::AcqRel);
        drop(gate);
        let committed = self.writes.committed(ticket).await?;
        Ok(Written { version, durable: committed.durable, modified_ms })
    }

    /// Deletes objects, as many per commit as fit; the answers are in the order of `keys`.
    pub(crate) async fn delete_many(
        &self,
        bucket: &str,
        keys: Vec<String>,
        durability: Option<Durability>,
    ) -> Vec<Result<(), StoreError>> {
        // Usually one commit; batches of a small pool are small.
        let batch_max = self.log().limits().batch_bytes_max / 2;
        let mut results = Vec::with_capacity(keys.len());
        let mut rest = &keys[..];
        let found = self.find(bucket).ok();
        let event =
            |key: &str| found.as_ref().map_or(0, |bucket| event_bytes_max(&self.applied.options, bucket, key.len()));
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|key| {
                bytes += key.len() as u64 + 256 + event(key);
                bytes <= batch_max
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            let result = self.delete_batch(bucket, now, durability).await;
            results.extend(now.iter().map(|_| result.clone()));
            rest = later;
        }
        results
    }

    async fn delete_batch(
        &self,
        bucket: &str,
        keys: &[String],
        durability: Option<Durability>,
    ) -> Result<(), StoreError> {
        if keys.is_empty() {
            return Ok(());
        }
        let applied = &self.applied;
        let bucket = self.find(bucket)?;
        let mut batch = Vec::with_capacity(keys.len());
        let mut accesses = Vec::with_capacity(keys.len());
        let mut events = Vec::new();
        for (i, key) in (0u64..).zip(keys) {
            events.extend(Draft::of(applied, &bucket, deletion(key))?.map(|draft| draft.if_there(accesses.len())));
            let head = Head::ObjectDelete { bucket: bucket.id, key: key.as_bytes() }.encode();
            check_head(&head)?;
            batch.push(Record { head: head.into(), ..Record::default() });
            let key = keys::object(bucket.id, key.as_bytes()).into();
            accesses.push(KeyAccess {
                key,
                precondition: Precondition::Nothing,
                becomes: Some((PendingState::Absent, i)),
            });
        }
        let bytes = batch_bytes(&batch) + events.iter().map(Draft::bytes).sum::<u64>();
        let room = self.writes.reserve(bytes, Priority::Delete).await?;
        let count = batch.len() as u64;
        let gate = bucket.enter().await?;
        let durability = bucket.durability(durability);
        let submitted = Submission::new(&accesses, room, batch, durability).with_events(&events).submit(&self.writes);
        let ticket = submitted.await.map_err(|refusal| refusal.or(StoreError::ConditionFailed))?;
        bucket.last_lsn.fetch_max(ticket.first_lsn() + count - 1, Ordering::AcqRel);
        drop(gate);
        self.writes.committed(ticket).await.map(drop)
    }

    /// Copies an object onto itself: its time changes, and its attributes unless `None`. No data is
    /// copied.
    pub(crate) async fn copy_onto_itself(
        &self,
        at: (&str, &str),
        attributes: Option<Attributes>,
        condition: Condition,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        self.rewrite(at, condition, durability, Some(EventKind::Copy), |found, now| {
            found.meta.modified_ms = now;
            if let Some(attributes) = &attributes {
                found.meta.attributes = attributes.clone();
            }
        })
        .await
    }

    /// Replaces the tags of an object; nothing else changes except its version.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchKey`], those of the log.
    pub(crate) async fn set_tags(
        &self,
        bucket: &str,
        key: &str,
        tags: BTreeMap<String, String>,
    ) -> Result<Written, StoreError> {
        self.rewrite((bucket, key), Condition::None, None, None, |found, _| {
            found.meta.attributes.tags = tags.clone();
            found.meta.attributes.forget_origin();
        })
        .await
    }

    /// Commits the object's record with a change if it is still the one that was read; otherwise
    /// retries.
    async fn rewrite(
        &self,
        (bucket, key): (&str, &str),
        condition: Condition,
        durability: Option<Durability>,
        event_kind: Option<EventKind>,
        change: impl Fn(&mut Found, u64),
    ) -> Result<Written, StoreError> {
        let bucket = self.find(bucket)?;
        let index_key = Bytes::from(keys::object(bucket.id, key.as_bytes()));
        let mut follow = Follow::default();
        loop {
            let tried =
                self.rewrite_once(&bucket, key, &index_key, &condition, durability, event_kind, &change, &mut follow);
            if let Some(written) = tried.await? {
                return Ok(written);
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "each is a part of the request")]
    async fn rewrite_once(
        &self,
        bucket: &Bucket,
        key: &str,
        index_key: &Bytes,
        condition: &Condition,
        durability: Option<Durability>,
        event_kind: Option<EventKind>,
        change: &impl Fn(&mut Found, u64),
        follow: &mut Follow,
    ) -> Result<Option<Written>, StoreError> {
        let applied = &self.applied;
        let Some(size) = applied.find_object(index_key)?.map(|found| u64::from(found.location.body_len)) else {
            return Err(StoreError::NoSuchKey);
        };
        // Reserved before the manifests are locked: compaction may be what frees the space.
        let rough = (64 << 10) + 4096 + event_bytes_max(&applied.options, bucket, key.len());
        let room = self.writes.reserve(size + rough, Priority::Write).await?;
        let shared = applied.manifests.read().await;
        let Some(mut found) = applied.find_object(index_key)? else { return Err(StoreError::NoSuchKey) };
        if u64::from(found.location.body_len) > size {
            return Ok(None);
        }
        match condition {
            Condition::None => {}
            Condition::Matches(etag) if etag == "*" || *etag == found.meta.attributes.etag => {}
            _ => return Err(StoreError::ConditionFailed),
        }
        change(&mut found, applied.env.wall_ms());
        let at = found.location;
        let body = match &found.meta.body {
            Body::Inline if at.body_len == 0 => Ok(Vec::new()),
            Body::Inline => match follow::read(self.log(), &at, 0..at.body_len, index_key).await {
                // A copy, as the committer may have to read before it writes the record.
                Ok(body) => Ok(vec![Bytes::copy_from_slice(&body)]),
                Err(e) => Err(e.into()),
            },
            Body::Chunks { .. } | Body::ChunksAside { .. } => {
                let manifest = manifest(self.log(), index_key, &at, &found.meta).await;
                manifest.map(|manifest| place(&mut found.meta, &manifest))
            }
        };
        let body = match body {
            Ok(body) => body,
            Err(StoreError::Log(LogError::Moved)) => {
                drop(shared);
                follow.moved(self.log(), &at).await?;
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        found.meta.revision = 0;
        let head = Head::ObjectPut { bucket: bucket.id, key: key.as_bytes(), payload: &found.meta.encode() }.encode();
        check_head(&head)?;
        let batch = vec![Record { head: head.into(), body, version: None }];
        let (size, etag) = (found.meta.size, &found.meta.attributes.etag[..]);
        let event = event_kind.map(|kind| Draft::of(applied, bucket, ObjectChange { kind, key, size, etag }));
        let event = event.transpose()?.flatten();
        let (key, precondition) = (index_key.clone(), Precondition::Version(found.version));
        let becomes = Some((PendingState::Present(found.meta.attributes.etag), 0));
        let accesses = [KeyAccess { key, precondition, becomes }];
        let gate = bucket.enter().await?;
        let durability = bucket.durability(durability);
        let submitted =
            Submission::new(&accesses, room, batch, durability).with_events(event.as_slice()).submit(&self.writes);
        let ticket = match submitted.await {
            Ok(ticket) => ticket,
            Err(Refusal::Error(e)) => return Err(e),
            Err(Refusal::Unmet(..)) => return Ok(None),
        };
        let version = ticket.first_lsn();
        bucket.last_lsn.fetch_max(version, Ordering::AcqRel);
        drop((gate, shared));
        let committed = self.writes.committed(ticket).await?;
        Ok(Some(Written { version, durable: committed.durable, modified_ms: found.meta.modified_ms }))
    }
}
