//! Completion of an upload: the parts become one object without a copy.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use steadfast_log::{Durability, Log, LogError, Priority, Record};

use crate::record::keys::{self, Id};
use crate::record::manifest::Manifest;
use crate::record::object::{Body, ObjectMeta};
use crate::record::upload::{UploadMeta, UploadOwner};
use crate::record::{Head, Value};
use crate::shard::Shard;
use crate::shard::applied::AppliedState;
use crate::shard::apply::live;
use crate::shard::apply::repoint::place;
use crate::shard::buckets::Bucket;
use crate::shard::events::{Draft, ObjectChange};
use crate::shard::follow::Follow;
use crate::shard::pending::PendingState;
use crate::shard::submit::{
    KeyAccess, Precondition, Refusal, Submission, batch_bytes, check_head, object_accesses, precondition_of,
};
use crate::shard::uploads::part_info;
use crate::{Attributes, Cause, Condition, EventKind, PartChoice, StoreError, Written};

/// The completion of an upload, or of a fill.
pub(crate) struct Completion<'a> {
    pub(crate) shard: &'a Shard,
    pub(crate) bucket: &'a Bucket,
    pub(crate) key: &'a str,
    pub(crate) upload: Id,
    pub(crate) choices: &'a [PartChoice],
    /// Entity tag and checksums of the object. System headers, user metadata and tags are those
    /// given when the upload began, unless there are any here.
    pub(crate) attributes: &'a Attributes,
    /// Preconditions of the object, in addition to that of the upload.
    pub(crate) preconditions: &'a [Precondition<'a>],
    pub(crate) durability: Durability,
    /// The client that completes it.
    pub(crate) cause: Option<&'a Cause>,
    /// For a fill, the time that the object gets. Such an object has no parts and makes no event.
    pub(crate) fill_ms: Option<u64>,
}

/// Outcome of an attempt to complete an upload.
enum Attempt {
    Done(Written),
    /// A part of the upload or the object changed meanwhile.
    Changed,
    /// It needs this many more bytes of budget; waiting for them is not allowed while the manifests
    /// are locked.
    Needs(u64),
}

impl<'a> Completion<'a> {
    /// Creates the object, in one commit with the end of the upload. Completing a completed upload
    /// again returns the same answer, as long as the object is still that one and has the same
    /// entity tag.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchUpload`], [`StoreError::InvalidPart`] (0
    /// when none was chosen), [`StoreError::InvalidPartOrder`], [`StoreError::PartTooSmall`],
    /// [`StoreError::ConditionFailed`], those of the log.
    pub(crate) async fn run(&self) -> Result<Written, StoreError> {
        let mut follow = Follow::default();
        let mut room_bytes = (128 << 10) + 160 * self.choices.len() as u64;
        loop {
            match self.attempt(room_bytes, &mut follow).await? {
                Attempt::Done(written) => return Ok(written),
                Attempt::Needs(bytes) => room_bytes = bytes,
                Attempt::Changed => {}
            }
        }
    }

    fn object_key(&self) -> Bytes {
        keys::object(self.bucket.id, self.key.as_bytes()).into()
    }

    fn upload_key(&self) -> Bytes {
        keys::upload(self.bucket.id, self.key.as_bytes(), &self.upload).into()
    }

    fn owner(&self) -> UploadOwner {
        if self.fill_ms.is_some() { UploadOwner::Server } else { UploadOwner::Client }
    }

    /// The records: the object, and the end of the upload. The order matters: at any time the
    /// chunks are found through the parts or through the object.
    fn batch(&self, meta: &mut ObjectMeta, manifest: &Manifest) -> Result<Vec<Record>, StoreError> {
        let body = place(meta, manifest);
        let (bucket, key) = (self.bucket.id, self.key.as_bytes());
        let put = Head::ObjectPut { bucket, key, payload: &meta.encode() }.encode();
        check_head(&put)?;
        let end = Head::UploadEnd { bucket, upload: self.upload, key }.encode();
        Ok(vec![Record { head: put.into(), body, version: None }, Record { head: end.into(), ..Record::default() }])
    }

    /// The event of the completion, if a rule or mirror matches. A fill has none.
    fn event(&self, applied: &AppliedState, meta: &ObjectMeta) -> Result<Option<Draft>, StoreError> {
        if self.fill_ms.is_some() {
            return Ok(None);
        }
        let (kind, etag) = (EventKind::Complete, &meta.attributes.etag[..]);
        Draft::of(applied, self.bucket, ObjectChange { kind, key: self.key, size: meta.size, etag, cause: self.cause })
    }

    /// The upload first: another part or another completion may have changed it. The upload's own
    /// precondition is decided again: the object may have been created or changed since.
    fn accesses(&self, begun: &'a Condition, etag: String) -> Vec<KeyAccess<'a>> {
        let mut accesses = vec![KeyAccess {
            key: self.upload_key(),
            precondition: Precondition::Settled,
            becomes: Some((PendingState::Absent, 1)),
        }];
        let preconditions = self.preconditions.iter().copied().chain([precondition_of(begun)]);
        accesses.extend(object_accesses(&self.object_key(), preconditions, PendingState::Present(etag)));
        accesses
    }

    async fn attempt(&self, room_bytes: u64, follow: &mut Follow) -> Result<Attempt, StoreError> {
        let (applied, writes, upload_key) = (&self.shard.applied, &self.shard.writes, self.upload_key());
        // Parts in flight count: another connection may have received an answer for one.
        applied.wait_settled(&upload_key).await?;
        // Reserved before the manifests are locked: compaction may be what frees the space.
        let room = writes.reserve(room_bytes, Priority::Write).await?;
        let shared = writes.hang.unless_hanging(applied.manifests.read()).await?;
        let Some(value) = applied.lookup(&upload_key)? else {
            drop(shared);
            return self.completed_before().await.map(Attempt::Done);
        };
        let begun = UploadMeta::decode(Value::decode(&value)?.payload)?;
        if begun.owner != self.owner() {
            return Err(StoreError::NoSuchUpload);
        }
        let Some((manifest, size)) = self.gather_parts(follow).await? else { return Ok(Attempt::Changed) };
        let attributes = completed_attributes(self.attributes, begun.attributes);
        let parts = u16::try_from(self.choices.len()).unwrap_or(u16::MAX);
        let mut meta = ObjectMeta {
            size,
            modified_ms: self.fill_ms.unwrap_or_else(|| applied.env.wall_ms()),
            revision: 0,
            upload: self.fill_ms.is_none().then_some((self.upload, parts)),
            body: Body::Inline,
            attributes,
        };
        let batch = self.batch(&mut meta, &manifest)?;
        let event = self.event(applied, &meta)?;
        let bytes = batch_bytes(&batch) + event.as_ref().map_or(0, Draft::bytes);
        let limit = self.shard.log().limits().batch_bytes_max;
        if bytes > limit {
            return Err(too_many(limit, manifest.chunks.len(), bytes));
        }
        if bytes > room_bytes {
            return Ok(Attempt::Needs(bytes));
        }
        let accesses = self.accesses(&begun.condition, meta.attributes.etag);
        let gate = self.bucket.enter().await?;
        let submitted =
            Submission::new(&accesses, room, batch, self.durability).with_events(event.as_slice()).submit(writes);
        let ticket = match submitted.await {
            Ok(ticket) => ticket,
            Err(Refusal::Error(e)) => return Err(e),
            // Another part or another completion intervened.
            Err(Refusal::Unmet(0, _)) => return Ok(Attempt::Changed),
            Err(Refusal::Unmet(..)) => return Err(StoreError::ConditionFailed),
        };
        let version = ticket.first_lsn();
        self.bucket.last_lsn.fetch_max(version + 1, Ordering::AcqRel);
        drop((gate, shared));
        let committed = writes.committed(ticket).await?;
        Ok(Attempt::Done(Written { version, durable: committed.durable, modified_ms: meta.modified_ms }))
    }

    /// The answer when the upload does not exist: that of the completion that ended it, if any.
    async fn completed_before(&self) -> Result<Written, StoreError> {
        let found = self.shard.applied.find_object(&self.object_key())?.ok_or(StoreError::NoSuchUpload)?;
        // Another completion at the same time may have chosen other parts.
        let same = found.meta.attributes.etag == self.attributes.etag;
        if !same || found.meta.upload.is_none_or(|(id, _)| id != self.upload) {
            return Err(StoreError::NoSuchUpload);
        }
        let durable = self.durability == Durability::Sync;
        if durable {
            self.shard.log().flush().await?;
        }
        Ok(Written { version: found.version, durable, modified_ms: found.meta.modified_ms })
    }

    /// The parts as one; `None` when one of them moved meanwhile.
    async fn gather_parts(&self, follow: &mut Follow) -> Result<Option<(Manifest, u64)>, StoreError> {
        if self.choices.is_empty() {
            return Err(StoreError::InvalidPart(0));
        }
        if self.choices.windows(2).any(|pair| pair[0].number >= pair[1].number) {
            return Err(StoreError::InvalidPartOrder);
        }
        let mut manifest = Manifest::default();
        let mut size = 0u64;
        for (i, choice) in self.choices.iter().enumerate() {
            let invalid = StoreError::InvalidPart(choice.number);
            let key = keys::part(&self.upload, choice.number);
            let value = self.shard.applied.lookup(&key)?.ok_or_else(|| invalid.clone())?;
            let value = Value::decode(&value)?;
            let meta = ObjectMeta::decode(value.payload)?;
            if meta.attributes.etag != choice.etag {
                return Err(invalid);
            }
            let small = i + 1 < self.choices.len() && meta.size < self.shard.applied.options.part_min_bytes;
            if small && self.owner() == UploadOwner::Client {
                return Err(StoreError::PartTooSmall(choice.number));
            }
            match live::manifest(self.shard.log(), &key, &value.location, &meta).await {
                Ok(part) => manifest.chunks.extend(part.chunks),
                Err(StoreError::Log(LogError::Moved)) => {
                    follow.moved(self.shard.log(), &value.location).await?;
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
            size += meta.size;
            if self.owner() == UploadOwner::Client {
                manifest.parts.push(part_info(choice.number, meta));
            }
        }
        Ok(Some((manifest, size)))
    }
}

/// Refuses a part whose `bytes` in the object's chunk list would exceed the limit: the upload
/// could never be completed. It is an estimate: it assumes that all parts are chosen, and that
/// entries keep their bytes.
pub(crate) fn check_place(
    applied: &AppliedState,
    log: &Log,
    upload: &Id,
    number: u16,
    bytes: u64,
) -> Result<(), StoreError> {
    let limit = log.limits().batch_bytes_max;
    // Parts mostly have equal sizes and are numbered from 1; otherwise the completion finds
    // out.
    if u64::from(number).saturating_mul(bytes) <= limit {
        return Ok(());
    }
    let (prefix, own) = (keys::parts(upload), keys::part(upload, number));
    let mut all = bytes;
    for pair in applied.index.range(&prefix, keys::past(&prefix).as_deref()) {
        let (key, value) = pair?;
        if key[..] != own[..] {
            let value = Value::decode(&value)?;
            all += value.payload.len() as u64 + u64::from(value.location.body_len);
        }
    }
    // A part's own share of the list is slightly larger.
    let all = all / 10 * 9;
    if all > limit { Err(too_many(limit, (all / CHUNK_ENTRY_BYTES) as usize, all)) } else { Ok(()) }
}

/// Bytes of a chunk in the list, about.
const CHUNK_ENTRY_BYTES: u64 = 13;

fn too_many(limit: u64, chunks: usize, bytes: u64) -> StoreError {
    StoreError::TooLarge(format!(
        "the object is too large: the list of its {chunks} chunks takes {bytes} bytes, at most {limit} are possible; see \"Bounds\" in \
         docs/s3.md"
    ))
}

/// The attributes of the object: those of the completion; those from the beginning of the upload
/// where the completion has none.
fn completed_attributes(given: &Attributes, begun: Attributes) -> Attributes {
    let mut attributes = given.clone();
    for (mine, begun) in
        [(&mut attributes.system, begun.system), (&mut attributes.user, begun.user), (&mut attributes.tags, begun.tags)]
    {
        if mine.is_empty() {
            *mine = begun;
        }
    }
    attributes.set_initiator(None);
    attributes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use steadfast_disk::{Disk, MemDisk};
    use steadfast_flow::Env;
    use steadfast_log::{FormatOptions, Log, LogOptions};
    use tokio::sync::oneshot;

    use super::*;
    use crate::{BucketSettings, IndexKind, PoolDisk, Store, StoreOptions};

    const PENDING: u64 = 4 << 20;
    const CHUNK: usize = 4096;

    #[tokio::test]
    async fn the_manifests_are_not_held_while_a_completion_waits_for_room() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(512 << 20));
        let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
        Log::format(&disk, &Env::tokio(), &format).await.expect("format");
        let log = LogOptions { pending_bytes_max: PENDING, ..LogOptions::default() };
        let options = StoreOptions {
            chunk_bytes: CHUNK,
            inline_max_bytes: 100,
            write_wait: Duration::from_secs(60),
            log,
            ..StoreOptions::default()
        };
        let given = vec![PoolDisk { name: "d".into(), disk: Ok(disk), hint: false }];
        let store = Store::open_pool(given, IndexKind::memory(), Env::tokio(), options).await.expect("open").0;
        store.buckets().create("b", BucketSettings::default()).await.expect("bucket");
        let id =
            store.at("b", "k").create_upload(Attributes::default(), Condition::None).await.expect("upload").upload_id;
        let mut part = store.at("b", "k").upload(&id).writer(1, None).await.expect("part");
        // The manifest takes more than the first reservation.
        for _ in 0..20 {
            part.write(vec![7; 1000 * CHUNK].into()).await.expect("write");
        }
        let etag = |etag: &str| Attributes { etag: etag.into(), ..Attributes::default() };
        part.commit(etag("p"), Condition::None, None).await.expect("part");

        let topology = store.topology();
        let shard = topology.all().expect("there")[0].clone();
        let left = (128 << 10) + 10_000;
        let held = shard.log().reserve(PENDING - left, Priority::Write, Duration::ZERO).await.expect("room");
        let (done, mut answer) = oneshot::channel();
        let completing = store.clone();
        Env::tokio().spawn("complete", async move {
            let choices = vec![PartChoice { number: 1, etag: "p".into() }];
            let written = completing.at("b", "k").upload(&id).complete(choices, etag("m"), Condition::None, None).await;
            drop(done.send(written));
        });
        while shard.log().status().budgets[0].waiting == 0 {
            let answered = answer.try_recv();
            assert!(answered.is_err(), "it takes more than what is left: {answered:?}");
            tokio::task::yield_now().await;
        }
        drop(shard.applied.manifests.try_write().expect("compaction may make the room"));
        drop(held);
        answer.await.expect("an answer").expect("completed");
        assert_eq!(store.at("b", "k").info().expect("there").size, 20_000 * CHUNK as u64);
    }
}
