//! Operator requests: add, drain or replace a disk.

use std::sync::Arc;

use steadfast_log::Priority;
use tokio::sync::watch;

use super::Turn;
use super::commit::{LayoutWriter, Next, all_well};
use super::forget::{Forgotten, forget};
use super::run::Mover;
use crate::layout::{DISKS_MAX, Layout, SLOTS};
use crate::record::keys::{BucketId, Id};
use crate::shard::peek::{Until, peek};
use crate::shard::{Shard, pool_of};
use crate::status::{MoveKind, MoveState, MoveStatus};
use crate::store::open::{new_seat, refuse};
use crate::store::topology::{Member, Topology};
use crate::store::{Store, buckets};
use crate::{PoolDisk, StoreError};

/// The disks of a store's pool, and the moves of keys between them.
#[derive(Debug, Clone, Copy)]
pub struct StoreDisks<'a> {
    pub(in crate::store) store: &'a Store,
}

impl StoreDisks<'_> {
    /// Adds an empty formatted disk to the pool and begins to move its share of the keys there.
    /// Returns when the disk is a member; [`StoreDisks::moving`] has the progress.
    ///
    /// # Errors
    /// [`LogError::Open`](steadfast_log::LogError::Open) with what is wrong: a disk of the pool is
    /// missing or takes no writes, keys are being moved already, the disk cannot be opened or holds
    /// something. Those of the log.
    pub async fn add(self, disk: PoolDisk) -> Result<(), StoreError> {
        self.join(disk, None).await
    }

    /// Adds an empty formatted disk to the pool and begins to move all keys of another disk there;
    /// that disk then leaves the pool. `old` is its name or identity.
    ///
    /// # Errors
    /// As [`StoreDisks::add`]; when no such disk exists.
    pub async fn replace(self, old: &str, new: PoolDisk) -> Result<(), StoreError> {
        self.join(new, Some(old)).await
    }

    /// Begins to move all keys of a disk to the others; then it leaves the pool. `disk` is its name
    /// or identity. For a disk that is already leaving, the move continues.
    ///
    /// # Errors
    /// As [`StoreDisks::add`]; when no such disk exists, it is the only one, or the others lack
    /// space.
    pub async fn drain(self, disk: &str) -> Result<(), StoreError> {
        let turn = self.store.0.moves.begin().ok_or_else(moving_already)?;
        LayoutWriter(self.store).level().await.map_err(not_now)?;
        let topology = self.store.topology();
        let seat = find(&topology, disk)?;
        let name = topology.members()[seat].name.clone();
        if let Some(layout) = topology.layout()
            && layout.has_work()
        {
            LayoutWriter(self.store).all_agree(&topology).map_err(not_now)?;
            if !layout.seats[seat].leaving {
                self.take_back(&topology, layout, seat).await?;
            }
            self.start(turn, MoveKind::Drain, name);
            return Ok(());
        }
        if topology.members().len() == 1 {
            return Err(refuse(format!("{name} is the only disk of the pool: add another first, or replace it")));
        }
        LayoutWriter(self.store).all_agree(&topology).map_err(not_now)?;
        let shards = topology.all()?;
        has_room(&shards, seat, &name)?;
        let layout = topology.layout().ok_or_else(|| refuse("the pool has no layout".to_owned()))?;
        let mut next = layout.next();
        next.plan_leave(seat, None, &capacities(&shards));
        let members = topology.members().to_vec();
        LayoutWriter(self.store).commit(Next { layout: next, members, first: shards[0], last: None }, || ()).await?;
        self.start(turn, MoveKind::Drain, name);
        Ok(())
    }

    /// A disk leaves before all keys have reached their goals, for example before a new disk got
    /// all of its share. Keys not moved yet stay, and the disk's keys go to the others.
    async fn take_back(self, topology: &Arc<Topology>, layout: &Layout, seat: usize) -> Result<(), StoreError> {
        let shards = topology.all()?;
        if layout.seats.iter().any(|seat| seat.leaving) {
            return Err(unfinished());
        }
        has_room(&shards, seat, &topology.members()[seat].name)?;
        let mut next = layout.next();
        next.goals.clone_from(&next.homes);
        next.plan_leave(seat, None, &capacities(&shards));
        let members = topology.members().to_vec();
        LayoutWriter(self.store).commit(Next { layout: next, members, first: shards[0], last: None }, || ()).await
    }

    /// Continues a move that was interrupted by a stop of the store or has failed. Returns at once,
    /// with whether there was one.
    ///
    /// # Errors
    /// When a disk of the pool is missing or read-only, or keys are already moving.
    pub fn resume_moves(self) -> Result<bool, StoreError> {
        let topology = self.store.topology();
        let Some(layout) = topology.layout().filter(|layout| layout.has_work()) else { return Ok(false) };
        let turn = self.store.0.moves.begin().ok_or_else(moving_already)?;
        all_well(&topology).map_err(not_now)?;
        let name = |seat: usize| topology.members()[seat].name.clone();
        let goals =
            || layout.homes.iter().zip(&layout.goals).filter(|(home, goal)| home != goal).map(|(_, goal)| *goal);
        let (kind, disk) = match layout.seats.iter().position(|seat| seat.leaving) {
            Some(seat) => (MoveKind::Drain, name(seat)),
            None => (MoveKind::Add, name(goals().next().map_or(layout.seats.len() - 1, usize::from))),
        };
        self.start(turn, kind, disk);
        Ok(true)
    }

    /// Gives up missing disks of the pool that will not return. `disks` are their names or
    /// identities; all other disks must be present.
    ///
    /// # Errors
    /// [`LogError::Open`](steadfast_log::LogError::Open) with the reason: a disk is present, is not
    /// a member, or another disk is missing or read-only. Those of the log.
    pub async fn forget(self, disks: &[String]) -> Result<Vec<Forgotten>, StoreError> {
        let _turn = self.store.0.moves.begin().ok_or_else(moving_already)?;
        forget(self.store, disks).await
    }

    /// The move of keys, running or last, with changes.
    pub fn moving(self) -> watch::Receiver<Option<MoveStatus>> {
        self.store.0.moves.status.subscribe()
    }

    /// Changes the bound in bytes per second at which keys are moved; 0: none.
    pub fn set_move_rate(self, bytes_s: u64) {
        self.store.0.moves.pace.set(bytes_s);
        self.store.0.moves.update(|status| status.bytes_s_max = bytes_s);
    }

    async fn join(self, disk: PoolDisk, replaces: Option<&str>) -> Result<(), StoreError> {
        let turn = self.store.0.moves.begin().ok_or_else(moving_already)?;
        LayoutWriter(self.store).level().await.map_err(not_now)?;
        let topology = self.store.topology();
        if topology.layout().is_some_and(|layout| layout.has_work()) {
            return Err(unfinished());
        }
        let count = topology.members().len();
        if count == DISKS_MAX {
            return Err(refuse(format!("the pool already has {DISKS_MAX} disks, the maximum")));
        }
        let old = replaces.map(|old| find(&topology, old)).transpose()?;
        LayoutWriter(self.store).all_agree(&topology).map_err(not_now)?;
        let name = disk.name.clone();
        let new = self.open_new(&topology, disk).await?;
        let joined = self.join_opened(&topology, &name, &new, old).await;
        if let Err(e) = joined {
            // Unless the disk is a member now that not every other disk knows of.
            if !self.store.topology().members().iter().any(|member| member.id == new.applied.pool) {
                new.close().await.unwrap_or_else(|e| tracing::warn!(error = %e, "the disk could not be closed"));
            }
            return Err(e);
        }
        match old {
            Some(seat) => self.start(turn, MoveKind::Replace, topology.members()[seat].name.clone()),
            None => self.start(turn, MoveKind::Add, name),
        }
        Ok(())
    }

    /// Opens a disk that is to join, if it is empty.
    async fn open_new(self, topology: &Topology, disk: PoolDisk) -> Result<Shard, StoreError> {
        let PoolDisk { name, disk, .. } = disk;
        let disk = disk.map_err(|why| refuse(format!("{name}: {why}")))?;
        let id = pool_of(&disk).await;
        if let Some(member) = topology.members().iter().find(|member| member.id == id) {
            return Err(refuse(format!("{name} is a disk of the pool already ({}), or a copy of one", member.name)));
        }
        let family = topology.layout().map(|layout| layout.family);
        let refused = |what: &str| refuse(format!("{name} {what}: wipe it first if nothing on it is needed"));
        // Opening it would write to it, and create an index for it here.
        let peeked = peek(&disk, Until::Content).await?;
        match peeked.family() {
            Some(theirs) if Some(theirs) == family => return Err(refused("was taken out of this pool")),
            Some(_) => return Err(refused("is a disk of another pool")),
            None if peeked.content => return Err(refused("holds a pool of its own")),
            None => {}
        }
        let options = self.store.0.options.of_one_disk(topology.members().len() + 1);
        let index = self.store.0.index.of_disk(&id);
        let (shard, report) =
            Shard::open(disk, index, self.store.0.env.clone(), options, self.store.0.read_ahead.clone()).await?;
        let known = |bucket: &BucketId| {
            topology.lead().is_ok_and(|lead| lead.applied.registry.read().by_id.contains_key(bucket))
        };
        let own = shard.applied.losses.epoch_break();
        let pools = topology.lead().ok().and_then(|lead| lead.applied.losses.epoch_break());
        let has_own_epochs = own.is_some() && own != pools;
        let status = shard.status();
        // Buckets of this pool without content: an earlier attempt to add it was interrupted.
        let nothing =
            status.objects == 0 && status.uploads == 0 && shard.applied.registry.read().by_id.keys().all(known);
        let holds = match shard.layout() {
            Some(theirs) if Some(theirs.family) == family => Some("was taken out of this pool"),
            Some(_) => Some("is a disk of another pool"),
            None if !nothing || !report.recovery.damage.is_empty() || has_own_epochs => Some("holds a pool of its own"),
            None => None,
        };
        match holds {
            None => Ok(shard),
            Some(what) => {
                shard.close().await?;
                Err(refused(what))
            }
        }
    }

    async fn join_opened(
        self,
        topology: &Arc<Topology>,
        name: &str,
        new: &Shard,
        old: Option<usize>,
    ) -> Result<(), StoreError> {
        // No bucket may be created meanwhile, since the new disk would not learn of it.
        let _one = self.store.0.bucket_ops.lock().await;
        self.store.buckets().agreeing(topology).await?;
        let shards = topology.all()?;
        let (first, shards_and_new) = match shards.first() {
            Some(first) => (*first, shards.iter().copied().chain([new]).collect::<Vec<_>>()),
            None => return Err(refuse("the pool has no disk".to_owned())),
        };
        // Channels without publications that move there keep their epochs.
        if let Some(epoch_break) = first.applied.losses.epoch_break() {
            new.put_epoch_break(epoch_break).await?;
        }
        let buckets: Vec<_> = first.applied.registry.read().by_id.values().cloned().collect();
        for bucket in buckets {
            new.put_bucket(bucket.id, &buckets::meta(&bucket), Priority::Write).await?;
        }
        let id: Id = new.applied.pool;
        let layout = match topology.layout() {
            Some(layout) => layout.with_seat(new_seat(id, name)),
            None => {
                let only = &topology.members()[0];
                let alone = Layout {
                    // The pool keeps its identity, and with it the epochs of channels without
                    // publications.
                    family: only.id,
                    generation: 0,
                    seats: vec![new_seat(only.id, &only.name)],
                    homes: vec![0; SLOTS],
                    goals: vec![0; SLOTS],
                };
                alone.with_seat(new_seat(id, name))
            }
        };
        let seat = layout.seats.len() - 1;
        let capacities = capacities(&shards_and_new);
        let layout = plan_join(layout, seat, old, &capacities);
        if let Some(old) = old {
            has_room_on(&[new], shards[old], name)?;
        }
        if let Some(sink) = first.applied.channels.sink() {
            new.applied.channels.set_sink(sink);
        }
        new.applied.channels.set_forgotten_after(first.applied.channels.forgotten_after_ms());
        new.applied.channels.set_outbox(&self.store.0.outbox);
        let member = Arc::new(Member { id, name: name.to_owned(), shard: Ok(new.clone()) });
        let members = topology.members().iter().cloned().chain([member]).collect();
        LayoutWriter(self.store).commit(Next { layout, members, first, last: Some(new) }, || ()).await
    }

    /// Starts the mover, which takes over the turn.
    fn start(self, turn: Turn<'_>, kind: MoveKind, disk: String) {
        turn.hand_over();
        let topology = self.store.topology();
        let (mut slots_total, mut bytes_total) = (0, 0);
        if let Some(layout) = topology.layout() {
            slots_total = layout.slots_waiting() as u64;
            for (seat, member) in topology.members().iter().enumerate() {
                let Ok(shard) = &member.shard else { continue };
                let own = layout.slots_of(seat).max(1) as u64;
                let away = layout.homes.iter().zip(&layout.goals).filter(|(home, goal)| home != goal);
                let away = away.filter(|(home, _)| usize::from(**home) == seat).count() as u64;
                bytes_total += (u128::from(shard.status().object_bytes) * u128::from(away) / u128::from(own)) as u64;
            }
        }
        self.store.0.moves.status.send_replace(Some(MoveStatus {
            kind,
            disk,
            state: MoveState::Running,
            step: String::new(),
            slots_done: 0,
            slots_total,
            copied: 0,
            copied_bytes: 0,
            bytes_total,
            bytes_s_max: self.store.0.moves.pace.bytes_s(),
            swept: 0,
            begun_ms: self.store.0.env.wall_ms(),
            ended_ms: None,
            unmovable: Vec::new(),
            unmovable_total: 0,
            error: None,
        }));
        let mover = Mover { store: self.store.clone() };
        self.store.0.env.spawn("store-mover", mover.run());
    }
}

fn plan_join(mut layout: Layout, new: usize, old: Option<usize>, capacities: &[u64]) -> Layout {
    match old {
        Some(old) => layout.plan_leave(old, Some(new), capacities),
        None => layout.plan_share(new, capacities),
    }
    layout
}

pub(super) fn find(topology: &Topology, disk: &str) -> Result<usize, StoreError> {
    let is = |member: &Arc<Member>| member.name == disk || uuid::Uuid::from_bytes(member.id).to_string() == disk;
    topology.members().iter().position(is).ok_or_else(|| {
        let names: Vec<&str> = topology.members().iter().map(|member| member.name.as_str()).collect();
        refuse(format!("{disk} is not a disk of the pool; its disks: {}", names.join(", ")))
    })
}

fn moving_already() -> StoreError {
    refuse("keys are already moving between disks: wait until the move has finished".to_owned())
}

fn unfinished() -> StoreError {
    refuse("an earlier move of keys between disks has not finished: resume it first".to_owned())
}

fn not_now(e: StoreError) -> StoreError {
    refuse(format!(
        "disks can be added and removed only while all disks of the pool are present and accept writes: \
     {e}"
    ))
}

fn capacities(shards: &[&Shard]) -> Vec<u64> {
    shards.iter().map(|shard| shard.capacity_bytes).collect()
}

/// Free bytes of a disk.
fn free_bytes(shard: &Shard) -> u64 {
    let log = shard.log().status();
    log.extents.free.saturating_add(log.extents.growable).saturating_mul(log.extent_bytes)
}

fn live_bytes(shard: &Shard) -> u64 {
    shard.log().usage().iter().map(|usage| usage.live_bytes).sum()
}

fn has_room(shards: &[&Shard], leaving: usize, name: &str) -> Result<(), StoreError> {
    let others: Vec<&Shard> = shards.iter().enumerate().filter(|(seat, _)| *seat != leaving).map(|(_, s)| *s).collect();
    has_room_on(&others, shards[leaving], name)
}

fn has_room_on(takers: &[&Shard], giver: &Shard, name: &str) -> Result<(), StoreError> {
    let free = takers.iter().map(|shard| free_bytes(shard)).fold(0u64, u64::saturating_add);
    let needed = live_bytes(giver);
    // A twentieth in reserve for concurrent writes.
    if needed.saturating_add(needed / 20) <= free {
        return Ok(());
    }
    let mib = |bytes: u64| bytes >> 20;
    Err(refuse(format!(
        "{name}: {} MiB must be moved, and there is room for {} MiB: add a disk first, or delete data",
        mib(needed),
        mib(free)
    )))
}
