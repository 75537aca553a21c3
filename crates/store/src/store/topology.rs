//! The disks of the pool, and which of them is home to a key.

use std::ops::Deref;
use std::sync::Arc;

use steadfast_log::LogError;
use tokio::sync::watch;

use super::gates::Pass;
use crate::StoreError;
use crate::layout::{Layout, Owned, SLOTS, slot_of};
use crate::record::keys::Id;
use crate::shard::Shard;
use crate::status::{DiskState, DiskStatus, StoreStatus, disk_state};

/// A missing disk.
#[derive(Debug, Clone)]
pub(crate) struct Missing {
    pub(crate) why: String,
    /// Objects in its last saved index.
    pub(crate) objects: Option<u64>,
}

/// A disk of the pool.
pub(crate) struct Member {
    pub(crate) id: Id,
    pub(crate) name: String,
    pub(crate) shard: Result<Shard, Missing>,
}

impl Member {
    /// Its shard, if it is present.
    pub(super) fn open(&self) -> Result<&Shard, StoreError> {
        self.shard.as_ref().map_err(|missing| self.unavailable(&missing.why))
    }

    fn unavailable(&self, why: &str) -> StoreError {
        StoreError::Unavailable(format!("the disk {} of the pool is missing: {why}", self.name))
    }

    /// Why it accepts no writes, if so.
    pub(crate) fn failure(&self) -> Option<StoreError> {
        let (state, failure) = match &self.shard {
            Ok(shard) => state_of(shard),
            Err(missing) => return Some(self.unavailable(&missing.why)),
        };
        failure.filter(|_| state == DiskState::ReadOnly).map(|failure| self.read_only(&failure))
    }

    fn read_only(&self, failure: &str) -> StoreError {
        StoreError::Unavailable(format!("the disk {} of the pool takes no writes: {failure}", self.name))
    }
}

/// State of a disk, with the failure of its log or its index.
pub(super) fn state_of(shard: &Shard) -> (DiskState, Option<String>) {
    let (state, failure) = disk_state(&shard.log().watch().borrow());
    if failure.is_some() {
        return (state, failure);
    }
    if let Some(failure) = shard.applied.index.failure() {
        return (DiskState::ReadOnly, Some(failure.describe()));
    }
    let unsaved = shard.checkpoints.failure();
    (
        state,
        unsaved.map(|why| {
            format!(
                "its index cannot be written, so the next start takes longer and space is not \
             freed: {why}"
            )
        }),
    )
}

/// The disk that is home to a key, with its shard. While it lives, the mover does not remove keys
/// that were at home there at the look-up.
pub(crate) struct HomeDisk {
    /// Index of the disk in the pool.
    pub(crate) seat: usize,
    shard: Shard,
    topology: Arc<Topology>,
}

impl Deref for HomeDisk {
    type Target = Shard;

    fn deref(&self) -> &Shard {
        &self.shard
    }
}

impl HomeDisk {
    /// Adds the name of the read-only disk to the error, where there are several disks.
    pub(crate) fn with_disk_name<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        match result {
            Err(StoreError::Log(LogError::Failed { what, cause })) if !self.topology.is_only() => {
                Err(self.topology.members[self.seat].read_only(&format!("a {what} failed: {cause}")))
            }
            result => result,
        }
    }
}

/// A home that may be changed: its slot does not move meanwhile.
pub(crate) struct Entered<'a> {
    pub(super) home: HomeDisk,
    pub(super) _pass: Pass<'a>,
}

impl Deref for Entered<'_> {
    type Target = HomeDisk;

    fn deref(&self) -> &HomeDisk {
        &self.home
    }
}

/// Homes that may be changed: none of the slots moves meanwhile.
pub(crate) struct EnteredMany<'a> {
    pub(super) topology: Arc<Topology>,
    pub(super) _passes: Vec<Pass<'a>>,
}

impl EnteredMany<'_> {
    /// The home of one of the slots.
    pub(crate) fn home_of(&self, slot: usize) -> Result<HomeDisk, StoreError> {
        self.topology.home_of(slot)
    }
}

/// The disks of the pool and their layout. It is immutable: a new one replaces it.
pub(crate) struct Topology {
    members: Vec<Arc<Member>>,
    /// `None` for a pool that never had more than one disk.
    layout: Option<Arc<Layout>>,
    /// Index of the first open disk.
    lead: usize,
    /// Closed when the last user of this topology has finished.
    in_use: watch::Sender<()>,
}

impl Topology {
    /// The members in the order of the layout. At least one is open.
    pub(crate) fn new(members: Vec<Arc<Member>>, layout: Option<Arc<Layout>>) -> Self {
        let lead = members.iter().position(|member| member.shard.is_ok()).expect("a disk of the pool is open");
        let seats = layout.as_ref().map_or(members.len(), |layout| layout.seats.len());
        assert_eq!(seats, members.len(), "each disk of the layout has its member");
        Self { members, layout, lead, in_use: watch::Sender::new(()) }
    }

    /// Completes when this topology is unused.
    pub(crate) fn disuse(&self) -> impl Future<Output = ()> + use<> {
        let mut in_use = self.in_use.subscribe();
        async move { while in_use.changed().await.is_ok() {} }
    }

    /// The layout, if any.
    pub(crate) fn layout(&self) -> Option<&Arc<Layout>> {
        self.layout.as_ref()
    }

    /// Whether there is only one disk.
    fn is_only(&self) -> bool {
        self.members.len() == 1 || self.layout.is_none()
    }

    /// All disks, in order.
    pub(crate) fn members(&self) -> &[Arc<Member>] {
        &self.members
    }

    /// The present disks, in order.
    pub(crate) fn open(&self) -> impl Iterator<Item = (&Arc<Member>, &Shard)> {
        self.members.iter().filter_map(|member| Some((member, member.shard.as_ref().ok()?)))
    }

    /// All shards, in order.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when one is missing.
    pub(crate) fn all(&self) -> Result<Vec<&Shard>, StoreError> {
        self.members.iter().map(|member| member.open()).collect()
    }

    /// Every shard that is home to a slot, with the keys at home there: `None` for all keys.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when one is missing; [`StoreError::Doubtful`] when damage has
    /// taken records of one.
    pub(crate) fn homes(&self) -> Result<Vec<(&Shard, Option<Owned>)>, StoreError> {
        let homes = self.members.iter().enumerate().filter(|(seat, _)| match &self.layout {
            Some(layout) => layout.slots_of(*seat) > 0,
            None => true,
        });
        homes
            .map(|(seat, member)| {
                let shard = member.open()?;
                shard.applied.losses.not_in_doubt(None)?;
                Ok((shard, self.owned(seat)))
            })
            .collect()
    }

    /// The keys at home on a disk; `None` for all keys.
    pub(crate) fn owned(&self, seat: usize) -> Option<Owned> {
        let layout = self.layout.as_ref().filter(|layout| layout.seats[seat].unclean)?;
        Some(Owned { layout: layout.clone(), seat })
    }

    /// The slot of a key. With one disk only the gates use it.
    pub(super) fn slot(&self, bucket: &str, key: &str) -> Result<usize, StoreError> {
        Ok(slot_of(self.lead()?.find(bucket)?.id, key.as_bytes()))
    }

    pub(super) fn home_of(self: &Arc<Self>, slot: usize) -> Result<HomeDisk, StoreError> {
        let seat = match &self.layout {
            Some(layout) if !self.is_only() => usize::from(layout.homes[slot]),
            _ => 0,
        };
        let shard = self.members[seat].open()?.clone();
        Ok(HomeDisk { seat, shard, topology: self.clone() })
    }

    pub(super) fn home(self: &Arc<Self>, bucket: &str, key: &str) -> Result<HomeDisk, StoreError> {
        self.home_of(if self.is_only() { 0 } else { self.slot(bucket, key)? })
    }

    pub(crate) fn lead(&self) -> Result<&Shard, StoreError> {
        self.members[self.lead].open()
    }

    /// Status of all disks together and of each one.
    pub(crate) fn status(&self) -> StoreStatus {
        let mut disks = Vec::with_capacity(self.members.len());
        let mut sum: Option<StoreStatus> = None;
        for (seat, member) in self.members.iter().enumerate() {
            let slots = self.layout.as_ref().map_or(SLOTS, |layout| layout.slots_of(seat)) as u64;
            let mut disk = DiskStatus {
                id: uuid::Uuid::from_bytes(member.id).to_string(),
                name: member.name.clone(),
                state: DiskState::Missing,
                failure: None,
                full: false,
                slots,
                slots_total: SLOTS as u64,
                objects: None,
                object_bytes: None,
                extents: None,
                extent_bytes: 0,
                commits: 0,
                frame_bytes: 0,
                chunk_bytes: 0,
                damaged: 0,
            };
            match &member.shard {
                Ok(shard) => {
                    let status = shard.status();
                    (disk.state, disk.failure) = state_of(shard);
                    disk.full = shard.writes.is_full();
                    disk.objects = Some(status.objects);
                    disk.object_bytes = Some(status.object_bytes);
                    disk.extents = Some(status.log.extents);
                    disk.extent_bytes = status.log.extent_bytes;
                    disk.commits = status.log.commits;
                    disk.frame_bytes = status.log.frame_bytes;
                    disk.chunk_bytes = status.log.chunk_bytes;
                    disk.damaged = status.log.scrub.damaged;
                    match &mut sum {
                        Some(sum) => sum.add(status),
                        None => sum = Some(status),
                    }
                }
                Err(missing) => {
                    disk.failure = Some(missing.why.clone());
                    disk.objects = missing.objects;
                }
            }
            disks.push(disk);
        }
        // At least one disk is open; otherwise opening the pool would have failed.
        let mut status = sum.expect("a disk is open");
        if let (Some(layout), true) = (&self.layout, self.members.len() > 1) {
            status.log.pool = uuid::Uuid::from_bytes(layout.family).to_string();
        }
        status.failed_disks = disks.iter().filter(|disk| disk.failure.is_some()).count() as u64;
        status.disks = disks;
        status
    }
}
