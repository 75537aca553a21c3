//! Snapshots: all content as it was at one moment, kept and readable until the snapshot is deleted.
//!
//! **One moment over all disks.** The last accepted LSN of each log is read while all logs are
//! frozen. So if a later write is in the snapshot, every write acknowledged before it began is too.
//! Writes continue at once; the snapshot is made when everything up to these LSNs is durable.
//!
//! **A record in every log.** As with buckets, the first disk is authoritative: a snapshot is
//! created there last and deleted there first. One that the first disk lacks was never confirmed,
//! or was being deleted; the next start with all disks removes it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use steadfast_log::Log;
use tokio::sync::oneshot;

use super::Store;
use super::snapshot::Snapshot;
use super::topology::Topology;
use crate::index::MemCheckpoint;
use crate::layout::Layout;
use crate::record::keys::Id;
use crate::record::snapshot::SnapshotMeta;
use crate::shard::Shard;
use crate::shard::snapshots::SnapshotPart;
use crate::{IndexKind, SnapshotInfo, StoreError};

/// Maximum time for making a snapshot: a hanging disk must not block recycling for ever.
const MAKE_WAIT: Duration = Duration::from_secs(30);

/// Maximum bytes of a snapshot's name.
const NAME_BYTES_MAX: usize = 128;

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

/// Refuses names that could not name a directory.
fn check_name(name: &str) -> Result<(), StoreError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with('.') || !name.chars().all(fits) {
        return Err(StoreError::Snapshot(format!(
            "{name:?} cannot be the name of a snapshot: up to {NAME_BYTES_MAX} letters, digits, -, _ and ., not beginning with a dot"
        )));
    }
    Ok(())
}

/// The snapshots of a store.
#[derive(Debug, Clone, Copy)]
pub struct StoreSnapshots<'a> {
    pub(super) store: &'a Store,
}

impl StoreSnapshots<'_> {
    fn parts(self) -> Vec<Parts> {
        let mut all: BTreeMap<Id, Parts> = BTreeMap::new();
        let topology = self.store.topology();
        for (seat, member) in topology.members().iter().enumerate() {
            let Ok(shard) = &member.shard else { continue };
            for (id, meta) in shard.applied.snapshots.read().clone() {
                let (objects, bytes) = (meta.objects, meta.bytes);
                let parts =
                    all.entry(id).or_insert_with(|| Parts { id, meta, seats: Vec::new(), objects: 0, bytes: 0 });
                parts.seats.push(seat);
                parts.objects += objects;
                parts.bytes += bytes;
            }
        }
        let mut all: Vec<Parts> = all.into_values().collect();
        // By the order of commits, which a clock that was set back does not affect.
        all.sort_by_key(|parts| (parts.meta.lsn, parts.meta.created_ms, parts.id));
        all
    }

    fn find(self, name: &str) -> Result<Parts, StoreError> {
        self.parts().into_iter().find(|parts| parts.meta.name == name).ok_or(StoreError::NoSuchSnapshot)
    }

    /// All snapshots, oldest first.
    pub fn all(self) -> Vec<SnapshotInfo> {
        self.parts().iter().map(Parts::info).collect()
    }

    /// Makes a snapshot of all buckets and objects at one moment. It takes the time of a few
    /// commits, whatever the pool's size.
    ///
    /// # Errors
    /// [`StoreError::SnapshotExists`]; [`StoreError::Snapshot`] when the name is invalid or there
    /// are too many; [`StoreError::Unavailable`] when a disk is missing or read-only; those of a
    /// commit.
    pub async fn create(self, name: &str) -> Result<SnapshotInfo, StoreError> {
        check_name(name)?;
        let (store, name) = (self.store.clone(), name.to_owned());
        self.run_to_end("snapshot-make", async move { store.snapshots().make(&name).await }).await
    }

    /// Runs `work` in a task of its own: once begun, it finishes even if the caller is cancelled.
    async fn run_to_end<T: Send + 'static>(
        self,
        what: &'static str,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.store.0.env.spawn(what, async move {
            // The caller may have been cancelled.
            let _ = answer.send(work.await);
        });
        answered.await.unwrap_or_else(|_| Err(StoreError::Snapshot("the server is stopping".to_owned())))
    }

    async fn make(self, name: &str) -> Result<SnapshotInfo, StoreError> {
        let _one = self.store.0.snapshot_ops.lock().await;
        let topology = self.store.topology();
        let shards = writable(&topology)?;
        if topology.layout().is_some_and(|layout| layout.seats.iter().any(|seat| seat.leaving)) {
            return Err(StoreError::Snapshot(
                "a disk is being taken out of the pool, and a snapshot would lose the part on it: wait until the \
                 move has finished"
                    .to_owned(),
            ));
        }
        let there = self.parts();
        if there.iter().any(|parts| parts.meta.name == name) {
            return Err(StoreError::SnapshotExists);
        }
        let Some(first) = shards.first() else { return Err(StoreError::NoSuchSnapshot) };
        let most = first.applied.options.snapshots_max;
        if there.len() >= most {
            let oldest = there.first().map_or("", |parts| &parts.meta.name);
            return Err(StoreError::Snapshot(format!(
                "there are {} snapshots, the maximum is {most}: delete one, the oldest is {oldest:?}",
                there.len()
            )));
        }
        let id = first.applied.random_id();
        let env = self.store.0.env.clone();
        let made = env.timeout(MAKE_WAIT, make(&shards, name, id, env.wall_ms())).await;
        match made {
            Some(Ok(())) => Ok(self.find(name)?.info()),
            failed => {
                // Whether or not its records were committed, nothing may be left of it.
                let undone = env.timeout(MAKE_WAIT, drop_everywhere(&shards, id)).await;
                if !matches!(undone, Some(Ok(()))) {
                    tracing::warn!(
                        name,
                        "an unfinished snapshot is removed at the next start, unless all of its parts exist"
                    );
                }
                Err(match failed {
                    Some(Err(e)) => e,
                    _ => StoreError::Snapshot(format!("no snapshot within {MAKE_WAIT:?}: a disk does not answer")),
                })
            }
        }
    }

    /// Deletes a snapshot. Compaction frees the space that only it kept, once no reader uses it.
    ///
    /// # Errors
    /// [`StoreError::NoSuchSnapshot`]; [`StoreError::Unavailable`] when a disk that has a part of
    /// it is missing or read-only; those of a commit.
    pub async fn delete(self, name: &str) -> Result<(), StoreError> {
        let (store, name) = (self.store.clone(), name.to_owned());
        self.run_to_end("snapshot-delete", async move { store.snapshots().remove(&name).await }).await
    }

    async fn remove(self, name: &str) -> Result<(), StoreError> {
        let _one = self.store.0.snapshot_ops.lock().await;
        let parts = self.find(name)?;
        drop_everywhere(&writable(&self.store.topology())?, parts.id).await
    }

    /// Removes unconfirmed snapshots.
    pub(super) async fn repair(self) {
        let topology = self.store.topology();
        let Ok(shards) = writable(&topology) else { return };
        for parts in self.parts().iter().filter(|parts| !parts.whole() && !parts.seats.contains(&0)) {
            match drop_everywhere(&shards, parts.id).await {
                Ok(()) => {
                    let name = &parts.meta.name;
                    tracing::warn!(
                        name,
                        "a snapshot that the first disk lacks is removed: it was unfinished, or was being deleted"
                    );
                }
                Err(e) => tracing::error!(error = %e, "an unfinished snapshot cannot be removed"),
            }
        }
    }

    /// Opens a snapshot for reading: its index is built anew from the records that the logs keep.
    /// `scratch` is a directory for the index, which is created and removed again; `None`: memory.
    /// Reads at most `bytes_s` per second (0: no bound). `progress` receives a fraction from 0 to
    /// 1.
    ///
    /// # Errors
    /// [`StoreError::NoSuchSnapshot`]; [`StoreError::Snapshot`] when a part of it is missing; those
    /// of reading the logs.
    pub async fn open(
        self,
        name: &str,
        scratch: Option<PathBuf>,
        bytes_s: u64,
        progress: impl Fn(f64) + Send + Sync,
    ) -> Result<Snapshot, StoreError> {
        let parts = self.find(name)?;
        if !parts.whole() {
            return Err(StoreError::Snapshot(format!(
                "{} of the {} disks with a part of the snapshot {name:?} are missing",
                parts.meta.disks - parts.seats.len() as u64,
                parts.meta.disks
            )));
        }
        let topology = self.store.topology();
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
                let report = |at: u64, end: u64| {
                    let mut done = done.lock();
                    done[i] = at as f64 / end.max(1) as f64;
                    progress(done.iter().sum::<f64>() / count as f64);
                };
                SnapshotPart { shard, id: parts.id }.frozen(index, bytes_s.div_ceil(count), &report).await
            }
        });
        let shards = try_join_all(frozen).await?;
        let mut layout: Option<std::sync::Arc<Layout>> = None;
        for shard in &shards {
            let theirs = shard.applied.layout.read().clone();
            if theirs.as_ref().map(|l| l.generation) > layout.as_ref().map(|l| l.generation) {
                layout = theirs;
            }
        }
        let pool = layout.as_ref().map_or_else(|| shards[0].applied.pool, |layout| layout.family);
        Ok(Snapshot { info: parts.info(), pool, shards, layout, env: self.store.0.env.clone() })
    }

    /// Why a full pool may be full: the bytes that only snapshots keep, with the name of the oldest
    /// snapshot. `None` without snapshots.
    pub fn kept(self) -> Option<(u64, String)> {
        let oldest = self.parts().into_iter().next()?.meta.name;
        let topology = self.store.topology();
        let kept = topology.open().map(|(_, shard)| shard.log().extents().held_bytes).sum();
        Some((kept, oldest))
    }
}

/// All shards, if each accepts writes.
fn writable(topology: &Topology) -> Result<Vec<&Shard>, StoreError> {
    let shards = topology.all()?;
    match topology.members().iter().find_map(|member| member.failure()) {
        Some(failure) => Err(failure),
        None => Ok(shards),
    }
}

/// Removes a snapshot from all disks, from the first one first. If that fails, the others keep
/// their parts with the held records: the snapshot may be complete at the next start.
async fn drop_everywhere(shards: &[&Shard], id: Id) -> Result<(), StoreError> {
    let Some((first, others)) = shards.split_first() else { return Ok(()) };
    SnapshotPart { shard: first, id }.remove().await?;
    join_all(others.iter().map(|shard| async move { SnapshotPart { shard, id }.remove().await }))
        .await
        .into_iter()
        .collect()
}

async fn make(shards: &[&Shard], name: &str, id: Id, created_ms: u64) -> Result<(), StoreError> {
    let logs: Vec<&Log> = shards.iter().map(|shard| shard.log()).collect();
    // Nothing is recycled from here on, until the snapshot's holds are known.
    let holdings: Vec<_> = logs.iter().map(|log| log.begin_hold()).collect();
    let cut = Log::cut(&logs);
    let holds = logs.iter().zip(&holdings).zip(cut).map(|((log, holding), lsn)| log.hold(holding, id, lsn));
    let holds = try_join_all(holds).await?;
    drop(holdings);
    let disks = shards.len() as u64;
    let put = |at: usize| {
        let part = SnapshotPart { shard: shards[at], id };
        let meta = part.meta(name, created_ms, disks, &holds[at]);
        async move { part.put(&meta).await }
    };
    try_join_all((1..shards.len()).map(put)).await?;
    put(0).await
}
