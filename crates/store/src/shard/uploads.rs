//! Unfinished multipart uploads of a shard: listed, aborted, expired.

use std::sync::atomic::Ordering;

use steadfast_log::{Durability, Priority, Record};

use crate::layout::Owned;
use crate::merge::{Listed, Source};
use crate::record::keys::{self, BucketId, Id};
use crate::record::object::{First, ObjectMeta, id_from_text, id_to_text};
use crate::record::upload::{UploadMeta, UploadOwner};
use crate::record::{Head, Value};
use crate::shard::applied::AppliedState;
use crate::shard::buckets::Bucket;
use crate::shard::list::{Roll, Scan};
use crate::shard::pending::PendingState;
use crate::shard::submit::{KeyAccess, Precondition, Submission, batch_bytes};
use crate::shard::writes::Writes;
use crate::{PartInfo, StoreError, UploadInfo};

/// An upload as front ends see it.
pub(crate) fn upload_info(key: &str, id: &Id, payload: &[u8]) -> Result<UploadInfo, StoreError> {
    let UploadMeta { created_ms, attributes, condition, .. } = UploadMeta::decode(payload)?;
    Ok(UploadInfo { key: key.to_owned(), upload_id: id_to_text(id), created_ms, attributes, condition })
}

/// An item of a listing of uploads.
#[derive(Debug)]
pub(crate) enum UploadItem {
    Upload(UploadInfo),
    /// A rolled-up prefix.
    Prefix(String),
}

impl Listed for UploadItem {
    fn place(&self) -> (&str, &str) {
        match self {
            Self::Upload(upload) => (&upload.key, &upload.upload_id),
            Self::Prefix(prefix) => (prefix, ""),
        }
    }
}

/// A shard's part of a listing of uploads, in order.
pub(crate) struct UploadItems<'a> {
    scan: Scan<'a>,
    roll: Roll<'a>,
    bucket: BucketId,
    owner: UploadOwner,
    /// Prefix to skip.
    skip: Option<Vec<u8>>,
    ended: bool,
}

impl<'a> UploadItems<'a> {
    /// A shard's unfinished uploads of one kind of owner, by key and then by identity, after this
    /// key and, when not empty, this upload of it.
    pub(crate) fn new(
        applied: &'a AppliedState,
        bucket: BucketId,
        prefix: &'a str,
        delimiter: &'a str,
        (after_key, after_id): (&str, &str),
        owned: Option<Owned>,
        owner: UploadOwner,
    ) -> Self {
        let roll = Roll { prefix, delimiter };
        let first = keys::uploads(bucket, prefix.as_bytes());
        let mut ended = false;
        let mut from = first.clone();
        if !after_key.is_empty() {
            let after = match id_from_text(after_id) {
                Some(id) => [&keys::upload(bucket, after_key.as_bytes(), &id)[..], &[0]].concat(),
                None if after_key.starts_with(prefix) && roll.up(after_key) == Some(after_key) => {
                    let past = keys::past(&keys::uploads(bucket, after_key.as_bytes()));
                    ended = past.is_none();
                    past.unwrap_or_default()
                }
                None => keys::after_uploads_of(bucket, after_key.as_bytes()),
            };
            from = from.max(after);
        }
        let scan = Scan::new(applied, &from, keys::past(&first), owned);
        Self { scan, roll, bucket, owner, skip: None, ended }
    }
}

impl Source for UploadItems<'_> {
    type Item = UploadItem;

    fn next(&mut self) -> Result<Option<UploadItem>, StoreError> {
        if self.ended {
            return Ok(None);
        }
        let mut pair = match self.skip.take() {
            Some(prefix) => self.scan.past(&prefix)?,
            None => self.scan.next()?,
        };
        while let Some((_, value)) = &pair
            && UploadMeta::decode(Value::decode(value)?.payload)?.owner != self.owner
        {
            pair = self.scan.next()?;
        }
        let Some((index_key, value)) = pair else {
            self.ended = true;
            return Ok(None);
        };
        let parsed = keys::parse_upload(&index_key).and_then(|(key, id)| Some((String::from_utf8(key).ok()?, id)));
        let Some((key, id)) = parsed else { return Err(StoreError::Index("an upload's key".into())) };
        if let Some(rolled) = self.roll.up(&key) {
            self.skip = Some(keys::uploads(self.bucket, rolled.as_bytes()));
            return Ok(Some(UploadItem::Prefix(rolled.to_owned())));
        }
        Ok(Some(UploadItem::Upload(upload_info(&key, &id, Value::decode(&value)?.payload)?)))
    }
}

/// Durability of the begin and the end of an upload. The server can fetch its own again.
pub(crate) fn durability_of(owner: UploadOwner) -> Durability {
    match owner {
        UploadOwner::Client => Durability::Sync,
        UploadOwner::Server => Durability::Async,
    }
}

/// Ends an upload and frees its parts.
pub(crate) async fn abort(
    writes: &Writes,
    bucket: &Bucket,
    key: &[u8],
    upload: Id,
    durability: Durability,
) -> Result<(), StoreError> {
    let head = Head::UploadEnd { bucket: bucket.id, upload, key }.encode();
    let batch = vec![Record { head: head.into(), ..Record::default() }];
    let room = writes.reserve(batch_bytes(&batch), Priority::Delete).await?;
    let access = KeyAccess {
        key: keys::upload(bucket.id, key, &upload).into(),
        precondition: Precondition::Present,
        becomes: Some((PendingState::Absent, 0)),
    };
    let gate = bucket.enter().await?;
    let accesses = [access];
    let submitted = Submission::new(&accesses, room, batch, durability).submit(writes);
    let ticket = submitted.await.map_err(|refusal| refusal.or(StoreError::NoSuchUpload))?;
    bucket.last_lsn.fetch_max(ticket.first_lsn(), Ordering::AcqRel);
    drop(gate);
    writes.committed(ticket).await.map(drop)
}

/// The time before which uploads are older than `age`, in milliseconds since the Unix epoch.
pub(crate) fn upload_expiry_ms(applied: &AppliedState, age: std::time::Duration) -> u64 {
    applied.clock.now_ms().saturating_sub(age.as_millis() as u64)
}

/// Aborts the uploads of clients that began before `before_ms`. Returns their number.
pub(crate) async fn expire_uploads(writes: &Writes, before_ms: u64) -> Result<u64, StoreError> {
    let mut count = 0;
    let buckets: Vec<_> = writes.applied.registry.read().by_id.values().cloned().collect();
    for bucket in buckets {
        let first = keys::uploads(bucket.id, b"");
        let mut old = Vec::new();
        for pair in writes.applied.index.range(&first, keys::past(&first).as_deref()) {
            let (key, value) = pair?;
            let payload = Value::decode(&value)?.payload;
            if First::decode(payload)?.modified_ms < before_ms
                && UploadMeta::decode(payload)?.owner == UploadOwner::Client
            {
                old.extend(keys::parse_upload(&key));
            }
        }
        for (key, upload) in old {
            match abort(writes, &bucket, &key, upload, Durability::Sync).await {
                Ok(()) => count += 1,
                // It ended meanwhile.
                Err(StoreError::NoSuchUpload | StoreError::NoSuchBucket) => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(count)
}

/// A part as front ends see it.
pub(crate) fn part_info(number: u16, meta: ObjectMeta) -> PartInfo {
    PartInfo { number, size: meta.size, modified_ms: meta.modified_ms, attributes: meta.attributes }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steadfast_disk::{Disk, MemDisk};
    use steadfast_flow::Env;
    use steadfast_log::{FormatOptions, Log};

    use super::expire_uploads;
    use crate::{Attributes, BucketSettings, Condition, IndexKind, Store, StoreOptions};

    #[tokio::test]
    async fn old_uploads_expire() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(128 << 20));
        let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
        Log::format(&disk, &Env::tokio(), &format).await.expect("format");
        let opened = Store::open(disk, IndexKind::memory(), Env::tokio(), StoreOptions::default()).await;
        let store = opened.expect("open").0;
        store.buckets().create("b", BucketSettings::default()).await.expect("bucket");
        let shard = store.lead().expect("open");
        let id =
            store.at("b", "k").create_upload(Attributes::default(), Condition::None).await.expect("upload").upload_id;
        let began = store.at("b", "k").upload(&id).info().expect("there").created_ms;
        assert_eq!(expire_uploads(&shard.writes, began).await.expect("runs"), 0);
        let fill = store.at("b", "k").create_fill(Attributes::default()).await.expect("fill").upload_id;
        let after = store.at("b", "k").fill(&fill).info().expect("there").created_ms + 1;
        assert_eq!(expire_uploads(&shard.writes, after).await.expect("runs"), 1);
        assert!(store.at("b", "k").fill(&fill).info().is_ok(), "the server ends its own");
        assert!(store.at("b", "k").upload(&id).info().is_err());
    }
}
