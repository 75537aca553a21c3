//! Which disks there are, and which of them is home to a key.

use std::ops::Deref;
use std::sync::Arc;

use steadfast_log::{LogError, LogState};

use super::Store;
use crate::StoreError;
use crate::layout::{Layout, SLOTS, slot_of};
use crate::record::keys::Id;
use crate::shard::Shard;
use crate::status::{DiskState, DiskStatus, StoreStatus, disk_state};

/// Why a disk does not take part.
#[derive(Debug, Clone)]
pub(crate) struct Missing {
    pub(crate) why: String,
    /// Objects on it when its index was last saved.
    pub(crate) objects: Option<u64>,
}

/// A disk of the pool.
pub(crate) struct Member {
    pub(crate) id: Id,
    pub(crate) name: String,
    pub(crate) shard: Result<Shard, Missing>,
}

impl Member {
    /// Its shard, if it is there.
    fn open(&self) -> Result<&Shard, StoreError> {
        self.shard.as_ref().map_err(|missing| self.unavailable(&missing.why))
    }

    fn unavailable(&self, why: &str) -> StoreError {
        StoreError::Unavailable(format!("the disk {} of the pool is missing: {why}", self.name))
    }

    /// Why it takes no writes, if so.
    pub(crate) fn trouble(&self) -> Option<StoreError> {
        let log = match &self.shard {
            Ok(shard) => shard.log().watch().borrow().clone(),
            Err(missing) => return Some(self.unavailable(&missing.why)),
        };
        let (state, trouble) = disk_state(&log);
        trouble.filter(|_| state == DiskState::ReadOnly).map(|trouble| self.read_only(&trouble))
    }

    fn read_only(&self, trouble: &str) -> StoreError {
        StoreError::Unavailable(format!("the disk {} of the pool takes no writes: {trouble}", self.name))
    }
}

/// The shard that is home to a key.
#[derive(Clone, Copy)]
pub(crate) struct Home<'a> {
    /// The number of the disk in the pool.
    pub(crate) seat: usize,
    member: &'a Member,
    shard: &'a Shard,
    /// Whether it is the only one.
    only: bool,
}

impl Deref for Home<'_> {
    type Target = Shard;

    fn deref(&self) -> &Shard {
        self.shard
    }
}

impl Home<'_> {
    /// Says which disk it is that takes no writes, where there are several.
    pub(crate) fn said<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        match result {
            Err(StoreError::Log(LogError::Failed { what, cause })) if !self.only => {
                Err(self.member.read_only(&format!("a {what} failed: {cause}")))
            }
            result => result,
        }
    }
}

/// See the module.
pub(crate) struct Topology {
    members: Vec<Member>,
    /// Of a pool that never had more than one disk there is none.
    layout: Option<Arc<Layout>>,
    /// The first that is open.
    lead: usize,
}

impl Topology {
    /// The members in the order of the layout. At least one is open.
    pub(crate) fn new(members: Vec<Member>, layout: Option<Arc<Layout>>) -> Self {
        let lead = members.iter().position(|member| member.shard.is_ok()).unwrap_or_default();
        Self { members, layout, lead }
    }

    /// The shard, if the pool has only one disk.
    pub(crate) fn only(&self) -> Option<Result<&Shard, StoreError>> {
        match &self.members[..] {
            [member] => Some(member.open()),
            _ => None,
        }
    }

    /// All disks, in order.
    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// The disks that are there, in order.
    pub(crate) fn open(&self) -> impl Iterator<Item = (&Member, &Shard)> {
        self.members.iter().filter_map(|member| Some((member, member.shard.as_ref().ok()?)))
    }

    /// All shards, in order.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when one is missing.
    pub(crate) fn all(&self) -> Result<Vec<&Shard>, StoreError> {
        self.members.iter().map(Member::open).collect()
    }

    fn home(&self, bucket: &str, key: &str) -> Result<Home<'_>, StoreError> {
        let (seat, only) = match (&self.members[..], &self.layout) {
            ([_], _) | (_, None) => (0, true),
            (_, Some(layout)) => {
                let bucket = self.lead()?.find(bucket)?.id;
                (usize::from(layout.homes[slot_of(bucket, key.as_bytes())]), false)
            }
        };
        let member = &self.members[seat];
        Ok(Home { seat, member, shard: member.open()?, only })
    }

    fn lead(&self) -> Result<&Shard, StoreError> {
        self.members[self.lead].open()
    }

    /// What all disks say, together and each by itself.
    pub(crate) fn status(&self) -> StoreStatus {
        let mut disks = Vec::with_capacity(self.members.len());
        let mut sum: Option<StoreStatus> = None;
        for (seat, member) in self.members.iter().enumerate() {
            let slots = self.layout.as_ref().map_or(SLOTS, |layout| layout.slots_of(seat)) as u64;
            let mut disk = DiskStatus {
                id: uuid::Uuid::from_bytes(member.id).to_string(),
                name: member.name.clone(),
                state: DiskState::Missing,
                trouble: None,
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
                    (disk.state, disk.trouble) = disk_state(&status.log.log);
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
                    disk.trouble = Some(missing.why.clone());
                    disk.objects = missing.objects;
                }
            }
            disks.push(disk);
        }
        // One is open at least, or opening would have failed.
        let mut status = sum.expect("a disk is open");
        if let (Some(layout), true) = (&self.layout, self.members.len() > 1) {
            status.log.pool = uuid::Uuid::from_bytes(layout.family).to_string();
        }
        status.disks_in_trouble = disks.iter().filter(|disk| disk.trouble.is_some()).count() as u64;
        status.disks = disks;
        status
    }
}

impl Store {
    /// The shard that is home to a key.
    pub(crate) fn home(&self, bucket: &str, key: &str) -> Result<Home<'_>, StoreError> {
        self.0.topology.home(bucket, key)
    }

    /// The shard that is asked about buckets.
    pub(crate) fn lead(&self) -> Result<&Shard, StoreError> {
        self.0.topology.lead()
    }

    /// The disks that are missing or take no writes, by name, and why.
    pub fn disks_in_trouble(&self) -> Vec<(String, String)> {
        let trouble = |member: &Member| match &member.shard {
            Ok(shard) => disk_state(&shard.log().watch().borrow()).1,
            Err(missing) => Some(missing.why.clone()),
        };
        let members = self.0.topology.members().iter();
        members.filter_map(|member| Some((member.name.clone(), trouble(member)?))).collect()
    }

    /// Whether any disk takes writes.
    pub fn takes_writes(&self) -> bool {
        self.0.topology.open().any(|(_, shard)| *shard.log().watch().borrow() == LogState::Ok)
    }
}
