//! Changes of an object's record that keep its bytes.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use steadfast_log::{Durability, LogError, Lsn, Priority, Record};

use super::home::Home;
use super::topology::HomeDisk;
use crate::record::object::Body;
use crate::record::{Head, keys};
use crate::shard::applied::Found;
use crate::shard::apply::live::manifest;
use crate::shard::apply::repoint::place;
use crate::shard::buckets::Bucket;
use crate::shard::events::{Draft, ObjectChange, event_bytes_max};
use crate::shard::follow::{self, Follow};
use crate::shard::pending::PendingState;
use crate::shard::submit::{KeyAccess, Precondition, Refusal, Submission, check_head};
use crate::{Condition, EventKind, StoreError, Written};

/// A commit of an object's record with other metadata.
pub(super) struct Rewrite {
    pub(super) condition: Condition,
    /// The version that the object must have, if any is required.
    pub(super) version: Option<Lsn>,
    /// The bucket's when `None`.
    pub(super) durability: Option<Durability>,
    /// Kind of its event, if it has one.
    pub(super) event_kind: Option<EventKind>,
}

impl Rewrite {
    /// Commits the record with what `change` makes of it, given the time in milliseconds since the
    /// Unix epoch. If the object changed since it was read, this tries again.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchKey`], [`StoreError::ConditionFailed`],
    /// [`StoreError::Unavailable`], those of the log.
    pub(super) async fn of(&self, home: Home<'_>, change: impl Fn(&mut Found, u64)) -> Result<Written, StoreError> {
        let disk = home.enter().await?;
        let bucket = disk.find(home.bucket)?;
        let mut follow = Follow::default();
        loop {
            match self.attempt(&disk, &bucket, home, &change, &mut follow).await {
                Ok(Some(written)) => return Ok(written),
                Ok(None) => {}
                Err(e) => return disk.with_disk_name(Err(e)),
            }
        }
    }

    /// `None` when the object changed meanwhile.
    async fn attempt(
        &self,
        disk: &HomeDisk,
        bucket: &Bucket,
        Home { key, cause, .. }: Home<'_>,
        change: &impl Fn(&mut Found, u64),
        follow: &mut Follow,
    ) -> Result<Option<Written>, StoreError> {
        let (applied, writes, log) = (&disk.applied, &disk.writes, disk.log());
        let index_key = Bytes::from(keys::object(bucket.id, key.as_bytes()));
        let Some(size) = applied.find_object(&index_key)?.map(|found| u64::from(found.location.body_len)) else {
            return Err(StoreError::NoSuchKey);
        };
        // Reserved before the manifests are locked: compaction may be what frees the space.
        let rough = (64 << 10) + 4096 + event_bytes_max(&applied.options, bucket, key.len());
        let room = writes.reserve(size + rough, Priority::Write).await?;
        let shared = writes.hang.unless_hanging(applied.manifests.read()).await?;
        let Some(mut found) = applied.find_object(&index_key)? else { return Err(StoreError::NoSuchKey) };
        if u64::from(found.location.body_len) > size {
            return Ok(None);
        }
        match &self.condition {
            Condition::None => {}
            Condition::Matches(etag) if etag == "*" || *etag == found.meta.attributes.etag => {}
            _ => return Err(StoreError::ConditionFailed),
        }
        if self.version.is_some_and(|version| version != found.version) {
            return Err(StoreError::ConditionFailed);
        }
        change(&mut found, applied.env.wall_ms());
        let at = found.location;
        let body = match &found.meta.body {
            Body::Inline if at.body_len == 0 => Ok(Vec::new()),
            Body::Inline => match follow::read(log, &at, 0..at.body_len, &index_key).await {
                Ok(body) => Ok(vec![body]),
                Err(e) => Err(e.into()),
            },
            Body::Chunks { .. } | Body::ChunksAside { .. } => {
                let manifest = manifest(log, &index_key, &at, &found.meta).await;
                manifest.map(|manifest| place(&mut found.meta, &manifest))
            }
        };
        let body = match body {
            Ok(body) => body,
            Err(StoreError::Log(LogError::Moved)) => {
                drop(shared);
                follow.moved(log, &at).await?;
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        found.meta.revision = 0;
        let head = Head::ObjectPut { bucket: bucket.id, key: key.as_bytes(), payload: &found.meta.encode() }.encode();
        check_head(&head)?;
        let batch = vec![Record { head: head.into(), body, version: None }];
        let (size, etag) = (found.meta.size, &found.meta.attributes.etag[..]);
        let event =
            self.event_kind.map(|kind| Draft::of(applied, bucket, ObjectChange { kind, key, size, etag, cause }));
        let event = event.transpose()?.flatten();
        let precondition = Precondition::Version(found.version);
        let becomes = Some((PendingState::Present(found.meta.attributes.etag), 0));
        let accesses = [KeyAccess { key: index_key, precondition, becomes }];
        let gate = bucket.enter().await?;
        let durability = bucket.durability(self.durability);
        let submitted =
            Submission::new(&accesses, room, batch, durability).with_events(event.as_slice()).submit(writes);
        let ticket = match submitted.await {
            Ok(ticket) => ticket,
            Err(Refusal::Error(e)) => return Err(e),
            Err(Refusal::Unmet(..)) => return Ok(None),
        };
        let version = ticket.first_lsn();
        bucket.last_lsn.fetch_max(version, Ordering::AcqRel);
        drop((gate, shared));
        let committed = writes.committed(ticket).await?;
        Ok(Some(Written { version, durable: committed.durable, modified_ms: found.meta.modified_ms }))
    }
}
