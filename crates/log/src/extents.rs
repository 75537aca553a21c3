//! The table of extents: which are free, which are in use and for what, and how many live bytes they hold.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{BLOCK, Disk};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::format::{ExtentHeader, ExtentId, ExtentKind, RosterEntry, Superblock};
use crate::io::Io;
use crate::placement::Placement;
use crate::pool::superblock_places;
use crate::roster::Roster;
use crate::status::{ExtentCounts, ZonesStatus};
pub(crate) use crate::table::{ExtentInfo, ExtentState, Spare, Table};
use crate::{ExtentUsage, LogError, Lsn, Priority};

/// What a sealed extent's trailer says, for the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sealed {
    pub(crate) min_version: Lsn,
    pub(crate) last_lsn: Lsn,
    pub(crate) data_end: u64,
    pub(crate) footer: Option<(u32, u32)>,
}

/// Slots that are looked at while others wait.
const LOOK_AT: usize = 4096;

struct Shared {
    disk: Arc<dyn Disk>,
    io: Arc<Io>,
    pool: Superblock,
    placement: Placement,
    roster: Roster,
    table: Mutex<Table>,
    /// One extent is taken into use at a time.
    taking: tokio::sync::Mutex<()>,
    reserve_extents: u32,
    /// Woken when an extent has become free.
    freed: Notify,
}

/// The table of extents. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Extents(Arc<Shared>);

/// Why no extent could be had.
#[derive(Debug)]
pub(crate) enum TakeError {
    Full,
    /// The latch has been closed.
    Disk(LogError),
}

impl Extents {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        io: Arc<Io>,
        (pool, placement, roster): (Superblock, Placement, Roster),
        table: Table,
        reserve_extents: u32,
    ) -> Self {
        Self(Arc::new(Shared {
            disk,
            io,
            pool,
            placement,
            roster,
            table: Mutex::new(table),
            taking: tokio::sync::Mutex::new(()),
            reserve_extents,
            freed: Notify::new(),
        }))
    }

    pub(crate) fn start(&self, extent: u32) -> u64 {
        self.0.pool.extent_start(extent)
    }

    pub(crate) fn io(&self) -> &Io {
        &self.0.io
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        &self.0.pool
    }

    pub(crate) fn placement(&self) -> &Placement {
        &self.0.placement
    }

    pub(crate) fn roster(&self) -> &Roster {
        &self.0.roster
    }

    pub(crate) fn id(&self, extent: u32, epoch: u64) -> ExtentId {
        ExtentId { pool: self.0.pool.pool, extent, epoch }
    }

    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Table) -> T) -> T {
        f(&mut self.0.table.lock())
    }

    pub(crate) fn all(&self) -> Vec<ExtentInfo> {
        let mut all = Vec::new();
        self.each(|slot| all.push(*slot));
        all
    }

    /// Looks at all slots, a few at a time: in a large pool, whoever writes would have to wait for long.
    pub(crate) fn each(&self, mut look: impl FnMut(&ExtentInfo)) {
        let mut at = 0;
        loop {
            let table = self.0.table.lock();
            let rest = table.slots().get(at..).unwrap_or_default();
            let some = &rest[..rest.len().min(LOOK_AT)];
            if some.is_empty() {
                return;
            }
            some.iter().for_each(&mut look);
            at += some.len();
        }
    }

    /// What is known of the extent while it has this epoch and is in use.
    pub(crate) fn get(&self, extent: u32, epoch: u64) -> Option<ExtentInfo> {
        self.0.table.lock().get(extent).filter(|slot| slot.epoch == epoch && slot.in_use()).copied()
    }

    /// Changes a slot while the extent has this epoch and is in use.
    pub(crate) fn slot<T>(&self, extent: u32, epoch: u64, f: impl FnOnce(&mut ExtentInfo) -> T) -> Option<T> {
        let mut table = self.0.table.lock();
        table.get(extent).filter(|slot| slot.epoch == epoch && slot.in_use())?;
        table.change(extent, f)
    }

    pub(crate) fn credit(&self, extent: u32, epoch: u64, bytes: i64) {
        let mut table = self.0.table.lock();
        let is = |s: &&ExtentInfo| s.epoch == epoch && (s.in_use() || s.state == ExtentState::Lost);
        if table.get(extent).filter(is).is_some() {
            table.change(extent, |slot| slot.live_bytes += bytes);
        }
    }

    /// Whether what was in this extent in this epoch is gone without having been taken out of use.
    pub(crate) fn is_lost(&self, extent: u32, epoch: u64) -> bool {
        let table = self.0.table.lock();
        let slot = table.get(extent);
        slot.is_some_and(|s| s.state == ExtentState::Lost && (s.epoch == epoch || s.epoch == 0))
    }

    pub(crate) fn pin(&self, extent: u32, epoch: u64) -> Option<ExtentPin> {
        self.slot(extent, epoch, |slot| slot.pins += 1)?;
        Some(ExtentPin { extents: self.clone(), extent, epoch })
    }

    pub(crate) fn wrote(&self, extent: u32, epoch: u64, data_end: u64, last_lsn: Lsn, min_version: Lsn) {
        self.slot(extent, epoch, |slot| {
            slot.data_end = slot.data_end.max(data_end);
            slot.last_lsn = slot.last_lsn.max(last_lsn);
            slot.min_version = slot.min_version.min(min_version);
        });
    }

    pub(crate) fn sealed(&self, extent: u32, epoch: u64, sealed: Sealed) {
        self.slot(extent, epoch, |slot| {
            slot.state = ExtentState::Sealed;
            slot.prepared = false;
            slot.min_version = sealed.min_version;
            slot.last_lsn = sealed.last_lsn;
            slot.data_end = sealed.data_end;
            slot.footer = sealed.footer;
        });
    }

    /// A write has failed at this place (offset and length).
    pub(crate) fn suspect(&self, extent: u32, epoch: u64, (at, len): (u64, u64)) {
        self.slot(extent, epoch, |slot| {
            let (from, to) = slot.suspect.map_or((at, at + len), |(a, l)| (a.min(at), (a + l).max(at + len)));
            slot.suspect = Some((from, to - from));
        });
    }

    pub(crate) fn usage(&self) -> Vec<ExtentUsage> {
        let mut usage = Vec::new();
        self.each(|slot| {
            if slot.in_use() {
                let live_bytes = slot.live_bytes.max(0) as u64;
                usage.push(ExtentUsage { extent: slot.extent, epoch: slot.epoch, live_bytes });
            }
        });
        usage
    }

    fn growable(&self, slots: usize) -> u64 {
        let most = self.0.pool.extents_in(self.0.disk.geometry().capacity_bytes);
        u64::from(most).saturating_sub(slots as u64)
    }

    pub(crate) fn counts(&self) -> ExtentCounts {
        let table = self.0.table.lock();
        ExtentCounts { growable: self.growable(table.len()), ..table.counts() }
    }

    /// How the pool lies on zones.
    pub(crate) fn zones_status(&self) -> ZonesStatus {
        let placement = &self.0.placement;
        let Some(zones) = placement.zones() else { return ZonesStatus::default() };
        let slots = self.all();
        let superblocks = if zones.conventional_bytes == 0 { superblock_places(zones).to_vec() } else { Vec::new() };
        let starts = slots.iter().map(|slot| self.start(slot.extent)).chain(superblocks);
        ZonesStatus {
            zone_bytes: zones.zone_bytes,
            open_zones_max: zones.open_zones_max,
            open_zones: starts.filter(|start| placement.is_open(*start)).count() as u32,
            emulated: zones.emulated,
            superblocks_written: placement.ledger().generation,
        }
    }

    /// Free extents that are ready for use.
    pub(crate) fn free(&self) -> u32 {
        self.spare().free as u32
    }

    /// What there is beside the open extents, at one moment.
    pub(crate) fn spare(&self) -> Spare {
        self.0.table.lock().spare()
    }

    /// The committer goes on in the extent that was prepared.
    pub(crate) fn opened(&self, id: &ExtentId) {
        self.slot(id.extent, id.epoch, |slot| slot.prepared = false);
    }

    /// Resolves when an extent becomes free after this call.
    pub(crate) fn freed(&self) -> Notified<'_> {
        self.0.freed.notified()
    }

    /// Bytes in sealed extents that nothing needs and no snapshot keeps: what compaction can give back.
    pub(crate) fn dead_bytes(&self) -> u64 {
        self.0.table.lock().dead_bytes()
    }

    /// How many free extents are kept from a request of this priority.
    pub(crate) fn kept_from(&self, priority: Priority) -> u32 {
        match priority {
            Priority::Write => self.0.reserve_extents,
            Priority::Delete => self.0.reserve_extents / 2,
            Priority::Compaction => 0,
        }
    }

    /// Makes one more extent, if the disk has room for it, and if it is still `needed` when those who grow at the same time have done so.
    ///
    /// # Errors
    /// [`TakeError::Full`] when it has none now: worth asking again later.
    pub(crate) async fn grow(&self, needed: impl Fn() -> bool) -> Result<(), TakeError> {
        let _one = self.0.taking.lock().await;
        if needed() { self.grow_locked().await } else { Ok(()) }
    }

    async fn grow_locked(&self) -> Result<(), TakeError> {
        let count = self.0.table.lock().len();
        if self.growable(count) == 0 {
            return Err(TakeError::Full);
        }
        let extent = count as u32;
        match self.0.disk.reserve(self.start(extent) + self.0.pool.extent_bytes).await {
            Ok(()) => {
                self.0.table.lock().push(ExtentInfo::new(extent));
                Ok(())
            }
            Err(error) if is_no_space(&error) => Err(TakeError::Full),
            // Nothing was promised yet: the caller is told, and the log goes on with the room that it has.
            Err(error) => {
                tracing::warn!(%error, "cannot make more room");
                Err(TakeError::Full)
            }
        }
    }

    /// Takes a free extent into use: writes its header and makes that durable, so that no bytes of its epoch exist that a later
    /// start does not know of. Recycled extents come first: they are written already and need no zeros.
    ///
    /// # Errors
    /// [`TakeError::Full`] when none is left for this priority.
    pub(crate) async fn take(
        &self,
        kind: ExtentKind,
        base_lsn: Lsn,
        priority: Priority,
    ) -> Result<ExtentId, TakeError> {
        self.take_as(kind, base_lsn, priority, false).await
    }

    /// The same for records that come later: until it is [`Self::opened`] it counts as [`Spare::prepared`].
    pub(crate) async fn prepare(&self, base_lsn: Lsn) -> Result<ExtentId, TakeError> {
        // Not the last one: a start in a full pool needs it.
        self.take_as(ExtentKind::Commit, base_lsn, Priority::Delete, true).await
    }

    async fn take_as(
        &self,
        kind: ExtentKind,
        base_lsn: Lsn,
        priority: Priority,
        prepared: bool,
    ) -> Result<ExtentId, TakeError> {
        let _one = self.0.taking.lock().await;
        if self.free() <= self.0.reserve_extents {
            match self.grow_locked().await {
                Ok(()) | Err(TakeError::Full) => {}
                Err(error) => return Err(error),
            }
        }
        if self.free() <= self.kept_from(priority) {
            return Err(TakeError::Full);
        }
        let header = {
            let mut table = self.0.table.lock();
            let extent = table.next_free().ok_or(TakeError::Full)?;
            let epoch = table.next_epoch;
            table.next_epoch += 1;
            let recycled_lsn = table.recycled_lsn;
            table.change(extent, |slot| {
                *slot = ExtentInfo {
                    state: ExtentState::Busy,
                    kind,
                    epoch,
                    pins: slot.pins,
                    prepared,
                    data_end: BLOCK as u64,
                    ..ExtentInfo::new(extent)
                };
            });
            ExtentHeader { id: self.id(extent, epoch), kind, base_lsn, recycled_lsn, lineage: table.lineage }
        };
        // Whoever else has opened the disk may have taken the same one.
        crate::fence::check(self).await.map_err(TakeError::Disk)?;
        // On zones the header is gone with the extent's next reset, and what it says must not be.
        self.0.placement.remember(&self.0.io, header.id.epoch, 0).await.map_err(TakeError::Disk)?;
        let start = self.start(header.id.extent);
        self.0.placement.clear(&self.0.io, start).await.map_err(TakeError::Disk)?;
        self.write_header(&header).await?;
        let entry = RosterEntry { used: kind.into(), epoch: header.id.epoch, base_lsn };
        self.0.roster.used(&self.0.io, header.id.extent, entry).await.map_err(TakeError::Disk)?;
        self.0.table.lock().change(header.id.extent, |slot| slot.state = ExtentState::Open);
        Ok(header.id)
    }

    async fn write_header(&self, header: &ExtentHeader) -> Result<(), TakeError> {
        let block = Bytes::copy_from_slice(&header.encode());
        self.0.io.write_flush(self.start(header.id.extent), block).await.map_err(TakeError::Disk)
    }

    /// Says durably that an extent is not in use any more: with its header, or by emptying its zone.
    async fn mark_free(&self, header: &ExtentHeader) -> Result<(), TakeError> {
        if self.0.placement.zones().is_none() {
            return self.write_header(header).await;
        }
        let (placement, io) = (&self.0.placement, &self.0.io);
        placement.remember(io, header.id.epoch, header.recycled_lsn).await.map_err(TakeError::Disk)?;
        placement.clear(io, self.start(header.id.extent)).await.map_err(TakeError::Disk)
    }

    /// Takes a sealed extent out of use. The caller has made sure that nothing in it is needed any more; here only pins, holds and the
    /// epoch are checked. Returns whether it is free now. The mark is durable when this returns: from then on, and not before, records
    /// elsewhere that only mattered because of this extent (deletes of what it held) may go too.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) async fn recycle(&self, extent: u32, epoch: u64, pinned_too: bool) -> Result<bool, TakeError> {
        if self.0.placement.is_dead(self.start(extent)) {
            return Ok(false);
        }
        let (header, suspect) = {
            let mut table = self.0.table.lock();
            let (recycled_lsn, holding) = (table.recycled_lsn, table.holding > 0);
            let Some(slot) = table.get(extent) else { return Ok(false) };
            if slot.epoch != epoch || slot.state != ExtentState::Sealed {
                return Ok(false);
            }
            if (slot.pins > 0 || slot.held || holding) && !pinned_too {
                return Ok(false);
            }
            let recycled_lsn =
                if slot.kind == ExtentKind::Commit { recycled_lsn.max(slot.last_lsn) } else { recycled_lsn };
            table.recycled_lsn = recycled_lsn;
            let lineage = table.lineage;
            let suspect = table.change(extent, |slot| {
                slot.state = ExtentState::Busy;
                slot.suspect
            });
            let id = self.id(extent, epoch);
            (ExtentHeader { id, kind: ExtentKind::Free, base_lsn: 0, recycled_lsn, lineage }, suspect.flatten())
        };
        // The server that has opened the disk since may be using it.
        crate::fence::check(self).await.map_err(TakeError::Disk)?;
        self.mark_free(&header).await?;
        self.0.roster.free(extent);
        if let Some((at, len)) = suspect
            && !self.0.io.proves(self.start(extent) + at, len).await.map_err(TakeError::Disk)?
        {
            // It stays as it is: not in use, and not free, until a start looks at it again.
            tracing::error!(extent, at, len, "a place that a write failed at is still bad: the extent is out of use");
            let out_of_use = ExtentInfo { epoch, state: ExtentState::Busy, ..ExtentInfo::new(extent) };
            self.0.table.lock().change(extent, |slot| *slot = out_of_use);
            return Ok(true);
        }
        self.0.table.lock().change(extent, |slot| *slot = ExtentInfo { epoch, ..ExtentInfo::new(extent) });
        self.0.freed.notify_waiters();
        Ok(true)
    }
}

pub(crate) fn is_no_space(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded | std::io::ErrorKind::FileTooLarge
    )
}

impl TakeError {
    /// For whom it was about new data: nothing of it was accepted.
    pub(crate) fn into_log_error(self) -> LogError {
        match self {
            Self::Full | Self::Disk(LogError::Full) => LogError::Full,
            Self::Disk(LogError::Unknown { what, cause }) => LogError::Failed { what, cause },
            Self::Disk(error) => error,
        }
    }
}

/// While held, the extent is not recycled.
pub struct ExtentPin {
    extents: Extents,
    extent: u32,
    epoch: u64,
}

impl Drop for ExtentPin {
    fn drop(&mut self) {
        self.extents.slot(self.extent, self.epoch, |slot| slot.pins -= 1);
    }
}

impl std::fmt::Debug for ExtentPin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExtentPin({} epoch {})", self.extent, self.epoch)
    }
}
