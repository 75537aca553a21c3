//! The store: all shards as one. [`Home`] has the operations on a key.
//!
//! With one disk no look-up is needed. With several, everything of a key is at its home; every
//! shard has the buckets, and the first shard is authoritative for them (`buckets.rs`).

mod buckets;
pub(crate) mod channels;
mod delete_many;
pub(crate) mod events;
mod gates;
pub(crate) mod home;
mod list;
pub(crate) mod moves;
mod open;
mod rewrite;
pub(crate) mod snapshot;
mod snapshots;
pub(crate) mod topology;
pub(crate) mod upload;
pub(crate) mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use futures::future::join_all;
use steadfast_log::{Durability, ScrubRequest, ScrubStatus};
use tokio::sync::Semaphore;

use crate::layout::slot_of;
use crate::outbox::Outbox;
use crate::status::{PoolSpace, StoreStatus};
use crate::{Evictor, IndexKind, StoreError, StoreOptions};
use delete_many::ManyDeletes;
use gates::Gates;
use home::Home;
use moves::Moves;
use topology::Topology;

pub(crate) struct Pool {
    topology: ArcSwap<Topology>,
    gates: Gates,
    moves: Moves,
    /// Index setting for further disks.
    index: IndexKind,
    options: StoreOptions,
    read_ahead: Arc<Semaphore>,
    /// Held while buckets are created, changed and deleted.
    bucket_ops: tokio::sync::Mutex<()>,
    /// Held while snapshots are made and deleted.
    snapshot_ops: tokio::sync::Mutex<()>,
    /// Events to be forwarded.
    outbox: Arc<Outbox>,
    env: steadfast_flow::Env,
}

/// Buckets, objects and uploads over the logs of one or more disks. Clones share it.
#[derive(Clone)]
pub struct Store(Arc<Pool>);

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store")
    }
}

impl Store {
    /// Gauges and counters.
    pub fn status(&self) -> StoreStatus {
        let mut status = self.topology().status();
        status.moving = self.0.moves.status();
        status.snapshots = self.snapshots();
        status.events = self.0.outbox.status();
        status
    }

    /// Sets what deletes cached objects instead of having compaction move them.
    pub fn set_evictor(&self, evictor: Arc<dyn Evictor>) {
        self.0.options.evictor.set(evictor);
    }

    /// The space of the present disks.
    pub fn space(&self) -> PoolSpace {
        let topology = self.topology();
        // Those of the reserve, and the two that are written.
        let kept = u64::from(self.0.options.log.reserve_extents) + 2;
        topology.open().fold(PoolSpace::default(), |sum, (_, shard)| {
            let (counts, bytes) = (shard.log().extents(), shard.log().info().extent_bytes);
            let used = counts.open_commit + counts.open_body + counts.sealed_commit + counts.sealed_body;
            PoolSpace {
                capacity_bytes: sum.capacity_bytes
                    + (used + counts.free + counts.growable).saturating_sub(kept) * bytes,
                live_bytes: sum.live_bytes + counts.live_commit_bytes + counts.live_body_bytes + counts.held_bytes,
                pinned_bytes: sum.pinned_bytes + counts.pinned_bytes,
            }
        })
    }

    /// Starts a scrub pass on every present disk, or stops the running passes.
    ///
    /// # Errors
    /// When the store is closed.
    pub fn scrub(&self, request: ScrubRequest) -> Result<(), StoreError> {
        self.topology().open().try_for_each(|(_, shard)| shard.log().scrub(request).map_err(StoreError::from))
    }

    /// Scrub status of each disk, by the disk's name.
    pub fn scrubs(&self) -> Vec<(String, ScrubStatus)> {
        self.topology().open().map(|(member, shard)| (member.name.clone(), shard.log().status().scrub)).collect()
    }

    /// Finishes accepted changes and persists the index, so that the next start replays nothing.
    ///
    /// # Errors
    /// Those of the log. An index that cannot be persisted is only logged: it is rebuilt.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.0.moves.stop().await;
        let topology = self.topology();
        let closed = join_all(topology.open().map(|(_, shard)| shard.close())).await;
        closed.into_iter().collect()
    }

    /// A key of a bucket. It is known only to its operations whether bucket and object exist.
    pub fn at<'a>(&'a self, bucket: &'a str, key: &'a str) -> Home<'a> {
        Home { store: self, bucket, key }
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

    /// Deletes objects, as many per commit as fit, on all disks concurrently. The answers are in
    /// the order of `keys`.
    pub async fn delete_many(
        &self,
        bucket: &str,
        keys: Vec<String>,
        durability: Option<Durability>,
    ) -> Vec<Result<(), StoreError>> {
        let refused = |e: StoreError| keys.iter().map(|_| Err(e.clone())).collect();
        let found = self.lead().and_then(|lead| lead.find(bucket));
        let bucket_id = match found {
            Ok(found) => found.id,
            Err(e) => return refused(e),
        };
        if let Err(e) = self.room_for_event(bucket).await {
            return refused(e);
        }
        let slots: Vec<usize> = keys.iter().map(|key| slot_of(bucket_id, key.as_bytes())).collect();
        let entered = match self.enter_many(&slots).await {
            Ok(entered) => entered,
            Err(e) => return refused(e),
        };
        let mut results: Vec<Result<(), StoreError>> = keys.iter().map(|_| Ok(())).collect();
        let mut by_disk = BTreeMap::new();
        for (place, (key, slot)) in keys.into_iter().zip(slots).enumerate() {
            match entered.home_of(slot) {
                Ok(disk) => {
                    let deletes =
                        by_disk.entry(disk.seat).or_insert_with(|| ManyDeletes::new(disk, bucket, durability));
                    deletes.push(place, key);
                }
                Err(e) => results[place] = Err(e),
            }
        }
        for (place, answer) in join_all(by_disk.into_values().map(ManyDeletes::run)).await.into_iter().flatten() {
            results[place] = answer;
        }
        results
    }
}
