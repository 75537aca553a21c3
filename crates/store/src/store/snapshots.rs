//! Snapshots: everything as it was at one moment, kept and readable until the snapshot is deleted.
//!
//! **One moment over all disks.** The last accepted LSN of each log is read while all of them are held still: so what was acknowledged
//! before another write began is never absent where the later one is there. Writes go on at once; the snapshot is made when
//! everything up to there is durable.
//!
//! **A record in every log.** As with buckets the first disk is believed: a snapshot is made there last and deleted there first. One
//! that the first disk does not have was never confirmed, or was being deleted, and goes at the next start with all disks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use serde::{Deserialize, Serialize};
use steadfast_log::{Log, LogError};
use tokio::sync::oneshot;

use super::Store;
use super::merge::{Listed, Merge, Source};
use super::topology::Topology;
use crate::index::MemCheckpoint;
use crate::layout::{Layout, slot_of};
use crate::record::keys::{self, BucketId, Id};
use crate::record::object::ObjectMeta;
use crate::record::snapshot::SnapshotMeta;
use crate::record::{BucketMeta, Value};
use crate::shard::Shard;
use crate::shard::list::Scan;
use crate::shard::snapshots::Frozen;
use crate::{BucketInfo, IndexKind, ObjectInfo, ObjectReader, StoreError};

/// How long making a snapshot may take: a disk that hangs must not keep anything from being recycled for ever.
const MAKE_WAIT: Duration = Duration::from_secs(30);

/// Keys that are compared at a time.
const MISSING_STEP: usize = 1024;

/// Bytes of a snapshot's name.
const NAME_BYTES_MAX: usize = 128;

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// Its identity, as a UUID.
    pub id: String,
    /// When it was made, milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Objects in it; what was being written may be counted or not.
    pub objects: u64,
    /// Their bytes.
    pub object_bytes: u64,
    /// Disks that have a part of it.
    pub disks: u64,
    /// Whether all of its parts are there; else it can only be deleted.
    pub whole: bool,
}

/// A snapshot's parts, by the disks' places in the pool.
struct Parts {
    id: Id,
    meta: SnapshotMeta,
    seats: Vec<usize>,
    objects: u64,
    bytes: u64,
}

impl Parts {
    fn whole(&self) -> bool {
        self.seats.len() as u64 == self.meta.disks
    }

    fn info(&self) -> SnapshotInfo {
        SnapshotInfo {
            name: self.meta.name.clone(),
            id: uuid::Uuid::from_bytes(self.id).to_string(),
            created_ms: self.meta.created_ms,
            objects: self.objects,
            object_bytes: self.bytes,
            disks: self.meta.disks,
            whole: self.whole(),
        }
    }
}

/// Refuses names that could not be those of a folder.
fn check_name(name: &str) -> Result<(), StoreError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with('.') || !name.chars().all(fits) {
        return Err(StoreError::Snapshot(format!(
            "{name:?} cannot be the name of a snapshot: up to {NAME_BYTES_MAX} letters, digits, -, _ and ., not beginning with a dot"
        )));
    }
    Ok(())
}

impl Store {
    fn snapshot_parts(&self) -> Vec<Parts> {
        let mut all: BTreeMap<Id, Parts> = BTreeMap::new();
        let topology = self.topology();
        for (seat, member) in topology.members().iter().enumerate() {
            let Ok(shard) = &member.shard else { continue };
            for (id, meta) in shard.snapshots() {
                let (objects, bytes) = (meta.objects, meta.bytes);
                let parts =
                    all.entry(id).or_insert_with(|| Parts { id, meta, seats: Vec::new(), objects: 0, bytes: 0 });
                parts.seats.push(seat);
                parts.objects += objects;
                parts.bytes += bytes;
            }
        }
        let mut all: Vec<Parts> = all.into_values().collect();
        // By the order of commits, which no clock that was set back confuses.
        all.sort_by_key(|parts| (parts.meta.lsn, parts.meta.created_ms, parts.id));
        all
    }

    fn find_snapshot(&self, name: &str) -> Result<Parts, StoreError> {
        self.snapshot_parts().into_iter().find(|parts| parts.meta.name == name).ok_or(StoreError::NoSuchSnapshot)
    }

    /// The snapshots that there are, oldest first.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.snapshot_parts().iter().map(Parts::info).collect()
    }

    /// Makes a snapshot of everything: buckets and objects as they are at one moment. Takes a few commits' time, whatever there is.
    ///
    /// # Errors
    /// [`StoreError::SnapshotExists`]; [`StoreError::Snapshot`] when the name cannot be one or there are too many;
    /// [`StoreError::Unavailable`] when a disk is missing or takes no writes; those of a commit.
    pub async fn create_snapshot(&self, name: &str) -> Result<SnapshotInfo, StoreError> {
        check_name(name)?;
        let (store, name) = (self.clone(), name.to_owned());
        self.to_its_end("snapshot-make", async move { store.make_snapshot(&name).await }).await
    }

    /// Does something in a task of its own: one that was begun comes to its end, whether or not somebody waits for it.
    async fn to_its_end<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.0.env.spawn(what, async move {
            // Whoever waited may have gone away.
            let _ = answer.send(work.await);
        });
        answered.await.unwrap_or_else(|_| Err(StoreError::Snapshot("the server is stopping".to_owned())))
    }

    async fn make_snapshot(&self, name: &str) -> Result<SnapshotInfo, StoreError> {
        let _one = self.0.snapshot_ops.lock().await;
        let topology = self.topology();
        let shards = writable(&topology)?;
        if topology.layout().is_some_and(|layout| layout.seats.iter().any(|seat| seat.leaving)) {
            return Err(StoreError::Snapshot(
                "a disk is being taken out of the pool, and a snapshot would lose what is on it: wait until that is done".to_owned(),
            ));
        }
        let there = self.snapshot_parts();
        if there.iter().any(|parts| parts.meta.name == name) {
            return Err(StoreError::SnapshotExists);
        }
        let Some(first) = shards.first() else { return Err(StoreError::NoSuchSnapshot) };
        let most = first.core.options.snapshots_max;
        if there.len() >= most {
            let oldest = there.first().map_or("", |parts| &parts.meta.name);
            return Err(StoreError::Snapshot(format!(
                "there are {} snapshots, and at most {most} may be: delete one, the oldest is {oldest:?}",
                there.len()
            )));
        }
        let id = first.core.random_id();
        let env = self.0.env.clone();
        let made = env.timeout(MAKE_WAIT, make(&shards, name, id, env.wall_ms())).await;
        match made {
            Some(Ok(())) => Ok(self.find_snapshot(name)?.info()),
            failed => {
                // Whether its records came to be or not: nothing may be left of it.
                let undone = env.timeout(MAKE_WAIT, drop_everywhere(&shards, id)).await;
                if !matches!(undone, Some(Ok(()))) {
                    tracing::warn!(
                        name,
                        "what was begun of a snapshot is removed at the next start, unless all of it was made"
                    );
                }
                Err(match failed {
                    Some(Err(e)) => e,
                    _ => StoreError::Snapshot(format!("no snapshot within {MAKE_WAIT:?}: a disk does not answer")),
                })
            }
        }
    }

    /// Deletes a snapshot. Compaction gives the space back that only it kept, when nobody reads it any more.
    ///
    /// # Errors
    /// [`StoreError::NoSuchSnapshot`]; [`StoreError::Unavailable`] when a disk that has a part of it is missing or takes no writes; those
    /// of a commit.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), StoreError> {
        let (store, name) = (self.clone(), name.to_owned());
        self.to_its_end("snapshot-delete", async move { store.remove_snapshot(&name).await }).await
    }

    async fn remove_snapshot(&self, name: &str) -> Result<(), StoreError> {
        let _one = self.0.snapshot_ops.lock().await;
        let parts = self.find_snapshot(name)?;
        drop_everywhere(&writable(&self.topology())?, parts.id).await
    }

    /// Removes what was begun and never confirmed.
    pub(super) async fn repair_snapshots(&self) {
        let topology = self.topology();
        let Ok(shards) = writable(&topology) else { return };
        for parts in self.snapshot_parts().iter().filter(|parts| !parts.whole() && !parts.seats.contains(&0)) {
            match drop_everywhere(&shards, parts.id).await {
                Ok(()) => {
                    let name = &parts.meta.name;
                    tracing::warn!(
                        name,
                        "a snapshot that the first disk does not have is removed: it was not finished, or was being deleted"
                    );
                }
                Err(e) => tracing::error!(error = %e, "an unfinished snapshot cannot be removed"),
            }
        }
    }

    /// Opens a snapshot to be read: its index is built anew from what the logs keep. `scratch` is a directory for that, which is made and
    /// removed again; `None` for memory. Reads `bytes_s` a second at most (0: no bound). `progress` is told a part, from 0 to 1.
    ///
    /// # Errors
    /// [`StoreError::NoSuchSnapshot`]; [`StoreError::Snapshot`] when a part of it is missing; those of reading the logs.
    pub async fn open_snapshot(
        &self,
        name: &str,
        scratch: Option<PathBuf>,
        bytes_s: u64,
        progress: impl Fn(f64) + Send + Sync,
    ) -> Result<Snapshot, StoreError> {
        let parts = self.find_snapshot(name)?;
        if !parts.whole() {
            return Err(StoreError::Snapshot(format!(
                "{} of the {} disks that have a part of the snapshot {name:?} are missing",
                parts.meta.disks - parts.seats.len() as u64,
                parts.meta.disks
            )));
        }
        let topology = self.topology();
        let members = topology.members();
        let shards = parts.seats.iter().filter_map(|seat| members[*seat].shard.as_ref().ok());
        let count = parts.seats.len() as u64;
        let done = parking_lot::Mutex::new(vec![0.0; parts.seats.len()]);
        let frozen = shards.enumerate().map(|(i, shard)| {
            let index = match &scratch {
                Some(dir) => IndexKind::Lsm(dir.join(format!("{i}"))),
                None => IndexKind::Memory(MemCheckpoint::default()),
            };
            let (done, progress) = (&done, &progress);
            async move {
                let tell = |at: u64, end: u64| {
                    let mut done = done.lock();
                    done[i] = at as f64 / end.max(1) as f64;
                    progress(done.iter().sum::<f64>() / count as f64);
                };
                shard.frozen(parts.id, index, bytes_s.div_ceil(count), &tell).await
            }
        });
        let shards = try_join_all(frozen).await?;
        let mut layout: Option<std::sync::Arc<Layout>> = None;
        for shard in &shards {
            let theirs = shard.core.layout.read().clone();
            if theirs.as_ref().map(|l| l.generation) > layout.as_ref().map(|l| l.generation) {
                layout = theirs;
            }
        }
        let pool = layout.as_ref().map_or_else(|| shards[0].core.pool, |layout| layout.family);
        Ok(Snapshot { info: parts.info(), pool, shards, layout, env: self.0.env.clone() })
    }

    /// Why a full pool may be full: bytes that only snapshots keep, and the name of the oldest one. `None` when there are none.
    pub fn snapshots_keep(&self) -> Option<(u64, String)> {
        let oldest = self.snapshot_parts().into_iter().next()?.meta.name;
        let topology = self.topology();
        let kept = topology.open().map(|(_, shard)| shard.log().extents().held_bytes).sum();
        Some((kept, oldest))
    }
}

/// All shards, each of which takes writes.
fn writable(topology: &Topology) -> Result<Vec<&Shard>, StoreError> {
    let shards = topology.all()?;
    match topology.members().iter().find_map(|member| member.trouble()) {
        Some(trouble) => Err(trouble),
        None => Ok(shards),
    }
}

/// Takes a snapshot out of all disks: out of the first one first. Where that cannot be done, the others keep what they have of it, and
/// what it keeps there: it may be whole at the next start.
async fn drop_everywhere(shards: &[&Shard], id: Id) -> Result<(), StoreError> {
    let Some((first, others)) = shards.split_first() else { return Ok(()) };
    first.drop_snapshot(id).await?;
    join_all(others.iter().map(|shard| shard.drop_snapshot(id))).await.into_iter().collect()
}

async fn make(shards: &[&Shard], name: &str, id: Id, created_ms: u64) -> Result<(), StoreError> {
    let logs: Vec<&Log> = shards.iter().map(|shard| shard.log()).collect();
    // From here on nothing is recycled, until what the snapshot keeps is known.
    let holdings: Vec<_> = logs.iter().map(|log| log.begin_hold()).collect();
    let cut = Log::cut(&logs);
    let holds = logs.iter().zip(&holdings).zip(cut).map(|((log, holding), lsn)| log.hold(holding, id, lsn));
    let holds = try_join_all(holds).await?;
    drop(holdings);
    let disks = shards.len() as u64;
    let put = |at: usize| {
        let meta = shards[at].snapshot_meta(name, created_ms, disks, &holds[at]);
        async move { shards[at].put_snapshot(id, &meta).await }
    };
    try_join_all((1..shards.len()).map(put)).await?;
    put(0).await
}

/// A snapshot that is being read. What it reads stays where it is while this lives, also when the snapshot is deleted.
pub struct Snapshot {
    info: SnapshotInfo,
    pool: Id,
    shards: Vec<Frozen>,
    layout: Option<std::sync::Arc<Layout>>,
    env: steadfast_flow::Env,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot({})", self.info.name)
    }
}

/// An object in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotObject {
    /// What it is.
    pub info: ObjectInfo,
    /// Which write made it: two objects of one key with the same origin are the same, body and all. Holds within one pool.
    pub origin: String,
    disk: usize,
}

/// A page of a snapshot's bucket, in key order.
type Page = Vec<SnapshotObject>;

impl Snapshot {
    /// What it is.
    pub fn info(&self) -> &SnapshotInfo {
        &self.info
    }

    /// The identity of the pool that it is of.
    pub fn pool(&self) -> String {
        uuid::Uuid::from_bytes(self.pool).to_string()
    }

    /// The buckets that there were, by name.
    pub fn buckets(&self) -> Vec<BucketInfo> {
        self.shards[0].core.registry.read().by_name.values().map(|bucket| bucket.info()).collect()
    }

    fn bucket(&self, name: &str) -> Result<BucketId, StoreError> {
        let registry = self.shards[0].core.registry.read();
        registry.by_name.get(name).map(|bucket| bucket.id).ok_or(StoreError::NoSuchBucket)
    }

    /// Whether the disk was home to the key. One that was being moved to another may have been on both.
    fn is_home(&self, disk: usize, bucket: BucketId, key: &[u8]) -> bool {
        let Some(layout) = &self.layout else { return true };
        let seat = usize::from(layout.homes[slot_of(bucket, key)]);
        let home = layout.seats[seat].disk;
        home == self.shards[disk].core.pool || !self.shards.iter().any(|shard| shard.core.pool == home)
    }

    /// Objects of a bucket after the key `after`, at most `limit`; none at the end. Reads the index: not where requests are served.
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
            scan: Scan::new(&shard.core, &from, end.clone(), None),
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

    /// What could not be read of the logs: objects may be missing, or be older than they were.
    pub fn faults(&self) -> Vec<LogError> {
        self.shards.iter().flat_map(|shard| shard.faults.iter().cloned()).collect()
    }

    /// Buckets that are there now, were made before the snapshot was, and are not in it. Only where there are [`Snapshot::faults`].
    pub fn missing_buckets(&self) -> Vec<String> {
        let first = &self.shards[0];
        if first.faults.is_empty() { Vec::new() } else { first.missing_buckets(self.info.created_ms) }
    }

    /// Keys of a bucket under which the snapshot must have an object, as that is there now and was there then, and has none, or an older one: damage has
    /// taken its record. `each` gets them a few at a time, in no order.
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
        shard.core.open_reader(&shard.log, &index_key, key).await
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
            let disk = uuid::Uuid::from_bytes(self.snapshot.shards[self.disk].core.pool);
            let origin = format!("{}-{}", disk.simple(), info.version);
            return Ok(Some(Object(SnapshotObject { info, origin, disk: self.disk })));
        }
        Ok(None)
    }
}

impl Store {
    /// Makes a bucket as it was elsewhere, with its time and settings.
    ///
    /// # Errors
    /// Those of [`Store::create_bucket`].
    pub async fn create_bucket_as(&self, info: &BucketInfo) -> Result<(), StoreError> {
        let meta = BucketMeta { name: info.name.clone(), created_ms: info.created_ms, settings: info.settings.clone() };
        self.make_bucket(meta).await.map(drop)
    }
}
