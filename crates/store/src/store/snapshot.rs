//! A snapshot open for reading: its buckets, its objects, and what damage took from it.

use steadfast_log::LogError;

use crate::layout::{Layout, slot_of};
use crate::merge::{Listed, Merge, Source};
use crate::record::Value;
use crate::record::keys::{self, BucketId, Id};
use crate::record::object::ObjectMeta;
use crate::shard::list::Scan;
use crate::shard::snapshots::Frozen;
use crate::{BucketInfo, ObjectInfo, ObjectReader, SnapshotInfo, StoreError};

/// Keys compared at a time.
const MISSING_STEP: usize = 1024;

/// A snapshot open for reading. Its records stay in place while this lives, even if the snapshot is
/// deleted meanwhile.
pub struct Snapshot {
    pub(super) info: SnapshotInfo,
    pub(super) pool: Id,
    pub(super) shards: Vec<Frozen>,
    pub(super) layout: Option<std::sync::Arc<Layout>>,
    pub(super) env: steadfast_flow::Env,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot({})", self.info.name)
    }
}

/// An object in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotObject {
    /// The object's description.
    pub info: ObjectInfo,
    /// The write that made it: two objects of one key with the same origin are identical, body
    /// included. Valid within one pool.
    pub origin: String,
    disk: usize,
}

/// A page of a snapshot's bucket, in key order.
type Page = Vec<SnapshotObject>;

impl Snapshot {
    /// The snapshot's description.
    pub fn info(&self) -> &SnapshotInfo {
        &self.info
    }

    /// The identity of its pool.
    pub fn pool(&self) -> String {
        uuid::Uuid::from_bytes(self.pool).to_string()
    }

    /// Its buckets, by name.
    pub fn buckets(&self) -> Vec<BucketInfo> {
        self.shards[0].applied.registry.read().by_name.values().map(|bucket| bucket.info()).collect()
    }

    fn bucket(&self, name: &str) -> Result<BucketId, StoreError> {
        let registry = self.shards[0].applied.registry.read();
        registry.by_name.get(name).map(|bucket| bucket.id).ok_or(StoreError::NoSuchBucket)
    }

    /// Whether the disk was home to the key. A key that was moving may have been on both disks.
    fn is_home(&self, disk: usize, bucket: BucketId, key: &[u8]) -> bool {
        let Some(layout) = &self.layout else { return true };
        let seat = usize::from(layout.homes[slot_of(bucket, key)]);
        let home = layout.seats[seat].disk;
        home == self.shards[disk].applied.pool || !self.shards.iter().any(|shard| shard.applied.pool == home)
    }

    /// Objects of a bucket after the key `after`, at most `limit`; none at the end. Reads the
    /// index: call it off the threads that serve requests.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::Index`].
    pub fn page(&self, bucket: &str, after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let id = self.bucket(bucket)?;
        let first = keys::object(id, b"");
        let from = match after {
            Some(after) => [&keys::object(id, after.as_bytes())[..], &[0]].concat(),
            None => first.clone(),
        };
        let end = keys::past(&first);
        let sources = self.shards.iter().enumerate().map(|(disk, shard)| Objects {
            snapshot: self,
            bucket: id,
            disk,
            scan: Scan::new(&shard.applied, &from, end.clone(), None),
        });
        let mut merged = Merge::new(sources.collect());
        let mut page = Vec::new();
        while page.len() < limit
            && let Some(Object(object)) = merged.next()?
        {
            page.push(object);
        }
        Ok(page)
    }

    /// [`Snapshot::page`], off the threads that serve requests.
    ///
    /// # Errors
    /// Those of [`Snapshot::page`].
    pub async fn next_page(
        self: &std::sync::Arc<Self>,
        bucket: &str,
        after: Option<String>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let (snapshot, bucket) = (self.clone(), bucket.to_owned());
        let page = self.env.blocking(move || snapshot.page(&bucket, after.as_deref(), limit)).await;
        page.ok_or_else(|| StoreError::Index("reading a snapshot panicked".into()))?
    }

    /// Faults of the logs: objects may be missing or older than they were.
    pub fn faults(&self) -> Vec<LogError> {
        self.shards.iter().flat_map(|shard| shard.faults.iter().cloned()).collect()
    }

    /// Current buckets that were created before the snapshot and are not in it. Only with
    /// [`Snapshot::faults`].
    pub fn missing_buckets(&self) -> Vec<String> {
        let first = &self.shards[0];
        if first.faults.is_empty() { Vec::new() } else { first.missing_buckets(self.info.created_ms) }
    }

    /// Keys of a bucket whose current object already existed when the snapshot was made, while the
    /// snapshot has none or an older one: damage took the record. `each` gets them a few at a time,
    /// in no order.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::Index`].
    pub async fn missing(
        self: &std::sync::Arc<Self>,
        bucket: &str,
        mut each: impl FnMut(Vec<String>) + Send,
    ) -> Result<(), StoreError> {
        let id = self.bucket(bucket)?;
        let first = bytes::Bytes::from(keys::object(id, b""));
        let end = keys::past(&first);
        for disk in 0..self.shards.len() {
            let mut from = Some(first.clone());
            while let Some(next) = from.take() {
                let (snapshot, end) = (self.clone(), end.clone());
                let found =
                    self.env.blocking(move || snapshot.shards[disk].missing(&next, end.as_deref(), MISSING_STEP));
                let (keys, next) =
                    found.await.ok_or_else(|| StoreError::Index("reading a snapshot panicked".into()))??;
                let keys = keys.iter().filter_map(|key| key.get(keys::OBJECT_KEY_AT..));
                let keys = keys.filter(|key| self.is_home(disk, id, key));
                let keys: Vec<String> = keys.map(|key| String::from_utf8_lossy(key).into_owned()).collect();
                if !keys.is_empty() {
                    each(keys);
                }
                from = next;
            }
        }
        Ok(())
    }

    /// Begins to read an object.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSuchKey`], those of the log.
    pub async fn reader(&self, bucket: &str, object: &SnapshotObject) -> Result<ObjectReader, StoreError> {
        let key = &object.info.key;
        let index_key = keys::object(self.bucket(bucket)?, key.as_bytes());
        let shard = &self.shards[object.disk];
        ObjectReader::open(&shard.reads, &index_key, key).await
    }
}

struct Object(SnapshotObject);

impl Listed for Object {
    fn place(&self) -> (&str, &str) {
        (&self.0.info.key, "")
    }
}

/// The objects of a bucket on one disk.
struct Objects<'a> {
    snapshot: &'a Snapshot,
    bucket: BucketId,
    disk: usize,
    scan: Scan<'a>,
}

impl Source for Objects<'_> {
    type Item = Object;

    fn next(&mut self) -> Result<Option<Object>, StoreError> {
        while let Some((index_key, value)) = self.scan.next()? {
            let key = index_key.get(keys::OBJECT_KEY_AT..).unwrap_or_default();
            if !self.snapshot.is_home(self.disk, self.bucket, key) {
                continue;
            }
            let key =
                String::from_utf8(key.to_vec()).map_err(|_| StoreError::Index("a key that is not text".into()))?;
            let value = Value::decode(&value)?;
            let info = ObjectMeta::decode(value.payload)?.into_info(key, value.version);
            let disk = uuid::Uuid::from_bytes(self.snapshot.shards[self.disk].applied.pool);
            let origin = format!("{}-{}", disk.simple(), info.version);
            return Ok(Some(Object(SnapshotObject { info, origin, disk: self.disk })));
        }
        Ok(None)
    }
}
