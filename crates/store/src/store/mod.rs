//! The store: all shards as one. [`Home`] has the operations on a key, [`BucketContents`] those on
//! many, and the other types that [`Store`] gives those on buckets, disks and events.
//!
//! With one disk no look-up is needed. With several, everything of a key is at its home; every
//! shard has the buckets, and the first shard is authoritative for them (`buckets.rs`).

pub(crate) mod buckets;
pub(crate) mod channels;
pub(crate) mod contents;
mod delete_many;
pub(crate) mod events;
mod gates;
pub(crate) mod home;
pub(crate) mod moves;
mod open;
mod rewrite;
pub(crate) mod topology;
pub(crate) mod upload;
pub(crate) mod users;
pub(crate) mod writer;

use std::sync::Arc;

use arc_swap::ArcSwap;
use futures::future::join_all;
use steadfast_disk::Disk;
use steadfast_flow::Env;
use steadfast_log::{Log, LogState, ScrubRequest, ScrubStatus};
use tokio::sync::{Mutex, Semaphore};

use crate::outbox::Outbox;
use crate::shard::Shard;
use crate::status::{PoolSpace, StoreStatus};
use crate::{Evictor, IndexKind, OpenReport, PoolDisk, StoreError, StoreOptions};
use buckets::Buckets;
use channels::{ChannelHandle, StoreChannels};
use contents::BucketContents;
use events::EventFeed;
use gates::Gates;
use home::Home;
use moves::{Moves, StoreDisks};
use open::OpenedPool;
use topology::{Entered, EnteredMany, Member, Topology, state_of};
use users::StoreUsers;

pub(crate) struct Pool {
    topology: ArcSwap<Topology>,
    gates: Gates,
    moves: Moves,
    /// Index setting for further disks.
    index: IndexKind,
    options: StoreOptions,
    read_ahead: Arc<Semaphore>,
    /// Held while buckets are created, changed and deleted.
    bucket_ops: Mutex<()>,
    /// Events to be forwarded.
    outbox: Arc<Outbox>,
    env: Env,
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
    /// Opens the store on one formatted disk: recovers the log and replays its end into the index.
    ///
    /// # Errors
    /// Those of [`steadfast_log::Log::open`]; [`StoreError::Index`] when the index can neither be
    /// read nor rebuilt.
    pub async fn open(
        disk: Arc<dyn Disk>,
        index: IndexKind,
        env: Env,
        options: StoreOptions,
    ) -> Result<(Self, OpenReport), StoreError> {
        let name = disk.describe();
        Self::open_pool(vec![PoolDisk { name, disk: Ok(disk), hint: false }], index, env, options).await
    }

    /// Opens the store on the disks of a pool, in any order. Empty formatted disks become a new
    /// pool. A missing or unusable disk makes only its own keys unavailable; the report names it.
    ///
    /// # Errors
    /// When a disk is given twice, belongs to another pool or to none while the others do; when
    /// none can be opened.
    pub async fn open_pool(
        disks: Vec<PoolDisk>,
        index: IndexKind,
        env: Env,
        options: StoreOptions,
    ) -> Result<(Self, OpenReport), StoreError> {
        let permits = usize::try_from(options.read_ahead_bytes_max / 1024).unwrap_or(usize::MAX).clamp(1024, 1 << 28);
        let read_ahead = Arc::new(Semaphore::new(permits));
        let opened = OpenedPool::open(disks, &index, &env, &options, &read_ahead).await?;
        let outbox = Arc::new(Outbox::new(options.events_max, env.clone()));
        let store = Self(Arc::new(Pool {
            topology: ArcSwap::from_pointee(Topology::new(opened.members, opened.layout)),
            gates: Gates::default(),
            moves: Moves::new(&options, &env),
            index,
            options,
            read_ahead,
            bucket_ops: Mutex::new(()),
            outbox: outbox.clone(),
            env,
        }));
        store.topology().open().for_each(|(_, shard)| shard.applied.channels.set_outbox(&outbox));
        store.buckets().check_known()?;
        store.events().find().await?;
        store.buckets().mark_doubtful();
        let buckets_repaired = store.buckets().repair().await;
        Ok((store, OpenReport { buckets_repaired, ..opened.report }))
    }

    /// Gauges and counters.
    pub fn status(&self) -> StoreStatus {
        let mut status = self.topology().status();
        status.moving = self.0.moves.status();
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
                live_bytes: sum.live_bytes + counts.live_commit_bytes + counts.live_body_bytes,
                pinned_bytes: sum.pinned_bytes + counts.pinned_bytes,
            }
        })
    }

    /// Identity and name of each disk of the pool, with its log if the disk is present.
    pub fn logs(&self) -> Vec<([u8; 16], String, Option<Log>)> {
        let log = |member: &Member| member.shard.as_ref().ok().map(|shard| shard.log().clone());
        self.topology().members().iter().map(|member| (member.id, member.name.clone(), log(member))).collect()
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
        // Moves may wait for records that are held back.
        for (_, shard) in self.topology().open() {
            shard.log().hold().end();
        }
        self.0.moves.stop().await;
        let topology = self.topology();
        let closed = join_all(topology.open().map(|(_, shard)| shard.close())).await;
        closed.into_iter().collect()
    }

    /// The buckets.
    pub fn buckets(&self) -> Buckets<'_> {
        Buckets { store: self }
    }

    /// The users.
    pub fn users(&self) -> StoreUsers<'_> {
        StoreUsers { store: self }
    }

    /// The content of a bucket.
    pub fn contents<'a>(&'a self, bucket: &'a str) -> BucketContents<'a> {
        BucketContents { store: self, bucket, cause: None }
    }

    /// The disks of the pool, and the moves of keys between them.
    pub fn disks(&self) -> StoreDisks<'_> {
        StoreDisks { store: self }
    }

    /// The object events.
    pub fn events(&self) -> EventFeed<'_> {
        EventFeed { store: self }
    }

    /// The channels as a whole.
    pub fn channels(&self) -> StoreChannels<'_> {
        StoreChannels { store: self }
    }

    /// A channel; one without publications is valid too.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] for a name that is empty or too long, [`StoreError::Unavailable`]
    /// when the disk that it is on is missing, those of the index.
    pub fn channel(&self, name: &str) -> Result<ChannelHandle, StoreError> {
        ChannelHandle::new(self, name)
    }

    /// Number of unfinished multipart uploads on the present disks.
    pub fn uploads_open(&self) -> u64 {
        self.topology().open().map(|(_, shard)| shard.applied.counts.uploads()).sum()
    }

    /// A key of a bucket. It is known only to its operations whether bucket and object exist.
    pub fn at<'a>(&'a self, bucket: &'a str, key: &'a str) -> Home<'a> {
        Home { store: self, bucket, key, cause: None }
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

    /// The current topology.
    pub(crate) fn topology(&self) -> Arc<Topology> {
        self.0.topology.load_full()
    }

    /// The shard that is home to a slot, for changes. Waits while the slot is moving.
    pub(crate) async fn enter_slot(&self, slot: usize) -> Result<Entered<'_>, StoreError> {
        let (env, wait) = (&self.0.env, self.0.options.write_wait);
        loop {
            let pass = self.0.gates.pass(slot, env, wait).await?;
            let home = self.topology().home_of(slot)?;
            if !home.applied.dirty.is_full(slot) {
                return Ok(Entered { home, _pass: pass });
            }
            drop(pass);
            let room = env.timeout(wait, home.applied.dirty.room(slot)).await;
            room.ok_or(StoreError::Busy("changes to slots that are moving"))?;
        }
    }

    /// [`Store::enter_slot`] for several slots at once.
    pub(crate) async fn enter_many(&self, slots: &[usize]) -> Result<EnteredMany<'_>, StoreError> {
        let (env, wait) = (&self.0.env, self.0.options.write_wait);
        let mut sorted = slots.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let mut passes = Vec::with_capacity(sorted.len());
        for slot in sorted {
            passes.push(self.0.gates.pass(slot, env, wait).await?);
        }
        Ok(EnteredMany { topology: self.topology(), _passes: passes })
    }

    /// The shard that is authoritative for buckets.
    pub(crate) fn lead(&self) -> Result<Shard, StoreError> {
        self.topology().lead().cloned()
    }

    /// Disks that are missing, read-only or report a failure, by name, with the reason.
    pub fn failed_disks(&self) -> Vec<(String, String)> {
        let failure = |member: &Member| match &member.shard {
            Ok(shard) => state_of(shard).1,
            Err(missing) => Some(missing.why.clone()),
        };
        let topology = self.topology();
        topology.members().iter().filter_map(|member| Some((member.name.clone(), failure(member)?))).collect()
    }

    /// The disks that refused new data for lack of space and have accepted none since, by name.
    pub fn full_disks(&self) -> Vec<String> {
        let topology = self.topology();
        let full = topology.open().filter(|(_, shard)| shard.writes.is_full());
        full.map(|(member, _)| member.name.clone()).collect()
    }

    /// The free share of each open disk, in percent, by the disk's name.
    pub fn spare_percents(&self) -> Vec<(String, u8)> {
        let topology = self.topology();
        let spare = |shard: &Shard| shard.writes.spare_percent();
        topology.open().map(|(member, shard)| (member.name.clone(), spare(shard))).collect()
    }

    /// Whether any disk accepts writes.
    pub fn takes_writes(&self) -> bool {
        self.topology()
            .open()
            .any(|(_, shard)| *shard.log().watch().borrow() == LogState::Ok && shard.applied.index.is_well())
    }

    /// Generation of the current layout; 0 without one.
    fn generation(&self) -> u64 {
        self.0.topology.load().layout().map_or(0, |layout| layout.generation)
    }
}
