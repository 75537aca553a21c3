//! The table of extents: which are free, which are in use, their purpose and their live bytes.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{BLOCK, Disk};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::durable::DurableView;
use crate::format::{ExtentHeader, ExtentId, ExtentKind, RosterEntry, Superblock};
use crate::io::Io;
use crate::placement::Placement;
use crate::placement::superblock_places;
use crate::roster::Roster;
use crate::status::{ExtentCounts, ZonesStatus};
pub(crate) use crate::table::{ExtentInfo, ExtentState, Spare, Table};
use crate::{ExtentUsage, LogError, Lsn, Priority};

/// Contents of a sealed extent's trailer, for the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sealed {
    pub(crate) min_version: Lsn,
    pub(crate) last_lsn: Lsn,
    pub(crate) data_end: u64,
    pub(crate) footer: Option<(u32, u32)>,
}

/// Slots that are read under one lock.
const SLOTS_AT_ONCE: usize = 4096;

/// The most bytes of one growth. Each growth is a flush of the file's length.
const GROWTH_BYTES: u64 = 256 << 20;

struct ExtentsShared {
    disk: Arc<dyn Disk>,
    io: Arc<Io>,
    pool: Superblock,
    placement: Placement,
    roster: Roster,
    table: Mutex<Table>,
    /// Serialises the taking of extents into use.
    taking: tokio::sync::Mutex<()>,
    reserve_extents: u32,
    /// Notified when an extent becomes free.
    freed: Notify,
    durable: DurableView,
}

/// The table of extents. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Extents(Arc<ExtentsShared>);

/// Reason why no extent was taken.
#[derive(Debug)]
pub(crate) enum TakeError {
    Full,
    /// The latch has been closed.
    Disk(LogError),
}

impl Extents {
    /// Closes the latch if another server has opened the disk since.
    ///
    /// # Errors
    /// [`LogError::Failed`] if one has.
    pub(crate) async fn check_opener(&self) -> Result<(), LogError> {
        let opening = self.with(|table| table.lineage.openings().next().map_or(0, |opening| opening.id));
        crate::opener::check(self.io(), self.superblock(), opening).await
    }

    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        io: Arc<Io>,
        (pool, placement, roster): (Superblock, Placement, Roster),
        table: Table,
        reserve_extents: u32,
    ) -> Self {
        Self(Arc::new(ExtentsShared {
            disk,
            io,
            pool,
            placement,
            roster,
            table: Mutex::new(table),
            taking: tokio::sync::Mutex::new(()),
            reserve_extents,
            freed: Notify::new(),
            durable: DurableView::default(),
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

    /// What returned flushes cover.
    pub(crate) fn durable(&self) -> &DurableView {
        &self.0.durable
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

    /// Reads all slots, a few per lock. In a large pool a single lock would block writers for too
    /// long.
    pub(crate) fn each(&self, mut look: impl FnMut(&ExtentInfo)) {
        let mut at = 0;
        loop {
            let table = self.0.table.lock();
            let rest = table.slots().get(at..).unwrap_or_default();
            let some = &rest[..rest.len().min(SLOTS_AT_ONCE)];
            if some.is_empty() {
                return;
            }
            some.iter().for_each(&mut look);
            at += some.len();
        }
    }

    /// State of the extent while it has this epoch and is in use.
    pub(crate) fn get(&self, extent: u32, epoch: u64) -> Option<ExtentInfo> {
        self.0.table.lock().get(extent).filter(|slot| slot.epoch == epoch && slot.in_use()).copied()
    }

    /// Changes a slot while the extent has this epoch and is in use.
    pub(crate) fn slot<T>(&self, extent: u32, epoch: u64, f: impl FnOnce(&mut ExtentInfo) -> T) -> Option<T> {
        let mut table = self.0.table.lock();
        table.get(extent).filter(|slot| slot.epoch == epoch && slot.in_use())?;
        table.change(extent, f)
    }

    /// Changes the live bytes of an extent while it has this epoch and holds data, or has lost it.
    pub(crate) fn account(&self, extent: u32, epoch: u64, change: impl FnOnce(&mut i64)) {
        let mut table = self.0.table.lock();
        let is = |s: &&ExtentInfo| s.epoch == epoch && (s.in_use() || s.state == ExtentState::Lost);
        if table.get(extent).filter(is).is_some() {
            table.change(extent, |slot| change(&mut slot.live_bytes));
        }
    }

    /// Whether the contents of this extent in this epoch vanished without being taken out of use.
    pub(crate) fn is_lost(&self, extent: u32, epoch: u64) -> bool {
        let table = self.0.table.lock();
        let slot = table.get(extent);
        slot.is_some_and(|s| s.state == ExtentState::Lost && (s.epoch == epoch || s.epoch == 0))
    }

    pub(crate) fn wrote(&self, extent: u32, epoch: u64, data_end: u64, last_lsn: Lsn, min_version: Lsn) {
        assert!(data_end <= self.0.pool.extent_bytes, "data beyond the end of extent {extent}");
        self.slot(extent, epoch, |slot| {
            debug_assert_eq!(slot.state, ExtentState::Open, "a write to extent {extent}, which is not open");
            slot.data_end = slot.data_end.max(data_end);
            slot.last_lsn = slot.last_lsn.max(last_lsn);
            slot.min_version = slot.min_version.min(min_version);
        });
    }

    pub(crate) fn sealed(&self, extent: u32, epoch: u64, sealed: Sealed) {
        let end = sealed.footer.map_or(sealed.data_end, |(at, len)| u64::from(at) + u64::from(len));
        assert!(sealed.data_end <= end && end <= self.0.pool.extent_bytes, "extent {extent} is sealed beyond its end");
        self.slot(extent, epoch, |slot| {
            slot.state = ExtentState::Sealed;
            slot.prepared = false;
            slot.min_version = sealed.min_version;
            slot.last_lsn = sealed.last_lsn;
            slot.data_end = sealed.data_end;
            slot.footer = sealed.footer;
        });
        self.0.durable.sealed(extent, epoch, sealed.footer, &self.0.pool);
    }

    /// Records that a write failed at this offset and length.
    pub(crate) fn suspect(&self, extent: u32, epoch: u64, (at, len): (u64, u64)) {
        assert!(at + len <= self.0.pool.extent_bytes, "a failed write beyond the end of extent {extent}");
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

    /// Placement of the pool on zones.
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

    /// Unused extents besides the open ones, as one snapshot.
    pub(crate) fn spare(&self) -> Spare {
        self.0.table.lock().spare()
    }

    /// Records that the committer continues in the prepared extent.
    pub(crate) fn opened(&self, id: &ExtentId) {
        self.slot(id.extent, id.epoch, |slot| slot.prepared = false);
    }

    /// Resolves when an extent becomes free after this call.
    pub(crate) fn freed(&self) -> Notified<'_> {
        self.0.freed.notified()
    }

    /// Unneeded bytes in sealed extents that compaction can free.
    pub(crate) fn dead_bytes(&self) -> u64 {
        self.0.table.lock().dead_bytes()
    }

    /// Number of free extents that a request of this priority must leave.
    pub(crate) fn kept_from(&self, priority: Priority) -> u32 {
        match priority {
            Priority::Write => self.0.reserve_extents,
            Priority::Delete => self.0.reserve_extents / 2,
            Priority::Compaction => 0,
        }
    }

    /// Adds an extent, if the disk has space for it and it is still `needed` after concurrent
    /// growth.
    ///
    /// # Errors
    /// [`TakeError::Full`] if the disk has no space now; the caller can retry later.
    pub(crate) async fn grow(&self, needed: impl Fn() -> bool) -> Result<(), TakeError> {
        let _one = self.0.taking.lock().await;
        if needed() { self.grow_locked().await } else { Ok(()) }
    }

    /// Adds a quarter of the extents that there are: at least one, at most [`GROWTH_BYTES`]. Adds
    /// one where the disk has no space for more.
    async fn grow_locked(&self) -> Result<(), TakeError> {
        let count = self.0.table.lock().len() as u32;
        let most = (GROWTH_BYTES / self.0.pool.extent_bytes).max(1) as u32;
        let step = (count / 4).clamp(1, most).min(self.growable(count as usize) as u32);
        if step == 0 {
            return Err(TakeError::Full);
        }
        match self.reserve(count, step).await {
            Err(TakeError::Full) if step > 1 => self.reserve(count, 1).await,
            result => result,
        }
    }

    /// Reserves space for the next `step` extents and adds them to the table.
    async fn reserve(&self, count: u32, step: u32) -> Result<(), TakeError> {
        match self.0.disk.reserve(self.start(count + step - 1) + self.0.pool.extent_bytes).await {
            Ok(()) => {
                let mut table = self.0.table.lock();
                // Only the holder of `taking` adds extents.
                assert_eq!(table.len(), count as usize, "extents were added meanwhile");
                (count..count + step).for_each(|extent| table.push(ExtentInfo::new(extent)));
                Ok(())
            }
            Err(error) if is_no_space(&error) => Err(TakeError::Full),
            // No data depends on it yet. The caller gets the error, and the log continues with its
            // space.
            Err(error) => {
                tracing::warn!(%error, "cannot grow the pool");
                Err(TakeError::Full)
            }
        }
    }

    /// Takes a free extent into use: writes its header and makes it durable. So a later start knows
    /// of every epoch whose bytes exist. Recycled extents come first, because they are already
    /// written and need no zeros.
    ///
    /// # Errors
    /// [`TakeError::Full`] if none is left for this priority.
    pub(crate) async fn take(
        &self,
        kind: ExtentKind,
        base_lsn: Lsn,
        priority: Priority,
    ) -> Result<ExtentId, TakeError> {
        self.take_as(kind, base_lsn, priority, false).await
    }

    /// As [`Self::take`], for later records. The extent counts as [`Spare::prepared`] until
    /// [`Self::opened`].
    pub(crate) async fn prepare(&self, base_lsn: Lsn) -> Result<ExtentId, TakeError> {
        // Never the last extent: a start in a full pool needs it.
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
        if self.spare().free <= u64::from(self.0.reserve_extents) {
            match self.grow_locked().await {
                Ok(()) | Err(TakeError::Full) => {}
                Err(error) => return Err(error),
            }
        }
        if self.spare().free <= u64::from(self.kept_from(priority)) {
            return Err(TakeError::Full);
        }
        let header = {
            let mut table = self.0.table.lock();
            let extent = table.next_free().ok_or(TakeError::Full)?;
            let epoch = table.next_epoch;
            table.next_epoch += 1;
            let (recycled_lsn, lineage) = (table.recycled_lsn, table.lineage);
            table.change(extent, |slot| {
                assert_eq!(slot.state, ExtentState::Free, "extent {extent} is taken into use twice");
                assert!(slot.epoch < epoch, "extent {extent} had epoch {} before {epoch}", slot.epoch);
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
            ExtentHeader { id: self.id(extent, epoch), kind, base_lsn, recycled_lsn, lineage }
        };
        // Another server that has opened the disk may have taken the same extent.
        self.check_opener().await.map_err(TakeError::Disk)?;
        // On zones the next reset removes the header, but its contents must survive.
        self.0.placement.remember(&self.0.io, header.id.epoch, 0).await.map_err(TakeError::Disk)?;
        let start = self.start(header.id.extent);
        self.0.placement.clear(&self.0.io, start).await.map_err(TakeError::Disk)?;
        self.write_header(&header).await?;
        let entry = RosterEntry { used: kind.into(), epoch: header.id.epoch, base_lsn };
        self.0.roster.used(&self.0.io, header.id.extent, entry).await.map_err(TakeError::Disk)?;
        self.0.table.lock().change(header.id.extent, |slot| slot.opened(header.id.epoch));
        self.0.durable.taken(&header);
        Ok(header.id)
    }

    async fn write_header(&self, header: &ExtentHeader) -> Result<(), TakeError> {
        let block = Bytes::copy_from_slice(&header.encode());
        self.0.io.write_flush(self.start(header.id.extent), block).await.map_err(TakeError::Disk)
    }

    /// Marks an extent durably as free: in its header, or by resetting its zone.
    async fn mark_free(&self, header: &ExtentHeader) -> Result<(), TakeError> {
        if self.0.placement.zones().is_none() {
            return self.write_header(header).await;
        }
        let (placement, io) = (&self.0.placement, &self.0.io);
        placement.remember(io, header.id.epoch, header.recycled_lsn).await.map_err(TakeError::Disk)?;
        placement.clear(io, self.start(header.id.extent)).await.map_err(TakeError::Disk)
    }

    /// Takes a sealed extent out of use. The caller has checked that nothing in it is needed. This
    /// checks only pins and the epoch. Returns whether the extent is free now. The mark is
    /// durable when this returns. Only then may records elsewhere go that mattered because of this
    /// extent, such as deletes of its contents.
    ///
    /// # Errors
    /// Those of the disk.
    pub(crate) async fn recycle(&self, extent: u32, epoch: u64, pinned_too: bool) -> Result<bool, TakeError> {
        if self.0.placement.is_dead(self.start(extent)) {
            return Ok(false);
        }
        let (header, suspect) = {
            let mut table = self.0.table.lock();
            let (recycled_lsn, stopped) = (table.recycled_lsn, table.recycling_stopped > 0);
            let Some(slot) = table.get(extent) else { return Ok(false) };
            if slot.epoch != epoch || slot.state != ExtentState::Sealed {
                return Ok(false);
            }
            if (slot.pins > 0 || stopped) && !pinned_too {
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
        // Another server that has opened the disk since may use the extent.
        self.check_opener().await.map_err(TakeError::Disk)?;
        self.mark_free(&header).await?;
        self.0.durable.freed(&header);
        self.0.roster.free(extent);
        if let Some((at, len)) = suspect
            && !self.0.io.proves(self.start(extent) + at, len).await.map_err(TakeError::Disk)?
        {
            // The extent stays neither in use nor free until a start checks it again.
            tracing::error!(extent, at, len, "the place of a failed write is still bad; the extent is out of use");
            let out_of_use = ExtentInfo { epoch, state: ExtentState::Busy, ..ExtentInfo::new(extent) };
            self.0.table.lock().change(extent, |slot| *slot = out_of_use);
            return Ok(true);
        }
        self.0.table.lock().change(extent, |slot| slot.freed(epoch));
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
    /// The error for a caller with new data, of which nothing was accepted.
    pub(crate) fn into_log_error(self) -> LogError {
        match self {
            Self::Full | Self::Disk(LogError::Full) => LogError::Full,
            Self::Disk(LogError::Unknown { what, cause }) => LogError::Failed { what, cause },
            Self::Disk(error) => error,
        }
    }
}
