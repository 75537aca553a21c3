//! Placement of extents on the disk: a disk that may be written anywhere, or zones that are written
//! in order.
//!
//! On zones an extent is a zone. It is reset before it is used again, where otherwise its header is
//! overwritten. Its chunks reach the disk in the order of their places. Its trailer is close behind
//! its footer; then the zone is finished and no longer open. The number of open zones is limited:
//! commits have a share, and bodies have the rest.
//!
//! A reset removes the header. Facts that a later start needs (which epochs have been used, how far
//! commits were recycled) are first made durable in the superblocks: the *ledger*.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{Disk, ZoneState};
use steadfast_flow::has_fault;

use crate::format::{Ledger, SUPERBLOCK_OFFSETS, Superblock, Zoning};
use crate::io::Io;
use crate::{LogError, Lsn, Sabotage};

/// Zones that commits may have open: the current one, the next one, and the last one during its
/// sealing.
const COMMIT_ZONES: u32 = 3;
/// The most body extents that are written at a time.
const BODY_LANES_MAX: u32 = 4;
/// Lead of the ledger over the epochs in use, so that not every epoch writes it.
const EPOCHS_AHEAD: u64 = 1024;

/// Zones that the superblocks keep open.
fn superblock_zones(zones: &Zoning) -> u32 {
    if zones.conventional_bytes == 0 { 2 } else { 0 }
}

/// Offsets of the superblocks of a pool on zones. Without conventional space, the zones to which
/// they are appended.
pub(crate) fn superblock_places(zones: &Zoning) -> [u64; 2] {
    if zones.conventional_bytes > 0 { SUPERBLOCK_OFFSETS } else { [0, zones.zone_bytes] }
}

/// The fewest open zones with which a pool works.
pub(crate) fn open_zones_min(zones: &Zoning) -> u32 {
    // Two for bodies: one is written while the one before it is sealed.
    superblock_zones(zones) + COMMIT_ZONES + 2
}

/// How the pool's extents lie on its disk. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Placement(Arc<Inner>);

struct Inner {
    disk: Arc<dyn Disk>,
    pool: Superblock,
    ledger: tokio::sync::Mutex<Ledger>,
    /// A copy for readers.
    known: Mutex<Ledger>,
    sabotage: Sabotage,
}

impl Placement {
    pub(crate) fn new(disk: Arc<dyn Disk>, pool: Superblock, ledger: Ledger, sabotage: Sabotage) -> Self {
        Self(Arc::new(Inner {
            disk,
            pool,
            ledger: tokio::sync::Mutex::new(ledger),
            known: Mutex::new(ledger),
            sabotage,
        }))
    }

    pub(crate) fn zones(&self) -> Option<&Zoning> {
        self.0.pool.zones.as_ref()
    }

    pub(crate) fn ledger(&self) -> Ledger {
        *self.0.known.lock()
    }

    /// Whether writes to one extent must reach the disk in the order of their places.
    pub(crate) fn in_order(&self) -> bool {
        self.zones().is_some() && !has_fault(self.0.sabotage, Sabotage::ZoneOrder)
    }

    /// Number of body extents written at a time in a pool with `extents` of them.
    pub(crate) fn body_lanes(&self, extents: u32) -> usize {
        let Some(limit) = self.body_zones() else { return 1 };
        // One writer per zone: several zones keep the disk busy. In a small pool each costs a share
        // of the space.
        (limit as u32 / 2).min(BODY_LANES_MAX).min(extents / 16).max(1) as usize
    }

    /// The most open body extents, including those being sealed; `None` for any number.
    pub(crate) fn body_zones(&self) -> Option<usize> {
        let zones = self.zones()?;
        match zones.open_zones_max {
            0 => Some(2 * BODY_LANES_MAX as usize),
            max => Some(max.saturating_sub(superblock_zones(zones) + COMMIT_ZONES).max(2) as usize),
        }
    }

    /// Offset of the trailer in its extent if the footer ends at `end`.
    pub(crate) fn trailer_after(&self, end: u64) -> u64 {
        self.0.pool.trailer_after(end)
    }

    /// Whether the device has retired the zone that begins at `start`.
    pub(crate) fn is_dead(&self, start: u64) -> bool {
        self.zone_state(start) == Some(ZoneState::Dead)
    }

    fn zone_state(&self, start: u64) -> Option<ZoneState> {
        self.zones()?;
        self.0.disk.zone(start).map(|zone| zone.state)
    }

    /// Prepares an extent for its header.
    pub(crate) async fn clear(&self, io: &Io, start: u64) -> Result<(), LogError> {
        match self.zone_state(start) {
            None | Some(ZoneState::Empty) => Ok(()),
            Some(_) if has_fault(self.0.sabotage, Sabotage::ZoneReset) => Ok(()),
            Some(_) => io.reset_zone(start).await,
        }
    }

    /// Ends the writes to the extent that begins at `start`.
    pub(crate) async fn finish(&self, io: &Io, start: u64) -> Result<(), LogError> {
        match self.zone_state(start) {
            Some(ZoneState::Open | ZoneState::Failed) if !has_fault(self.0.sabotage, Sabotage::ZoneFinish) => {
                io.finish_zone(start).await
            }
            _ => Ok(()),
        }
    }

    /// Whether the zone at `start` counts as open.
    pub(crate) fn is_open(&self, start: u64) -> bool {
        matches!(self.zone_state(start), Some(ZoneState::Open | ZoneState::Failed))
    }

    /// Number of zones that may be opened besides those of `open` extents; `None` for any number.
    pub(crate) fn may_open(&self, open: u32) -> Option<u32> {
        let zones = self.zones()?;
        let max = Some(zones.open_zones_max).filter(|max| *max > 0)?;
        Some(max.saturating_sub(superblock_zones(zones) + open))
    }

    /// Offset of a footer of `len` bytes, with its trailer, in an extent whose frames end at `end`.
    /// `None` if the extent can no longer be sealed.
    pub(crate) fn footer_place(&self, start: u64, end: u64, len: u64) -> Option<u64> {
        if self.zones().is_none() {
            return Some(end);
        }
        let zone = self.0.disk.zone(start)?;
        let at = zone.write_pointer.checked_sub(start)?;
        let fits = zone.state == ZoneState::Open && at >= end;
        (fits && at + len + steadfast_disk::BLOCK as u64 <= self.0.pool.extent_bytes).then_some(at)
    }

    /// Makes sure that a later start does not reuse `epoch`, and knows that commits were recycled
    /// up to `recycled_lsn`. This holds even if all headers with these facts are gone. Does nothing
    /// where headers persist.
    pub(crate) async fn remember(&self, io: &Io, epoch: u64, recycled_lsn: Lsn) -> Result<(), LogError> {
        let Some(zones) = self.zones() else { return Ok(()) };
        let mut ledger = self.0.ledger.lock().await;
        let known = epoch < ledger.epoch_bound && recycled_lsn <= ledger.recycled_lsn;
        if known || has_fault(self.0.sabotage, Sabotage::ZoneLedger) {
            return Ok(());
        }
        let next = Ledger {
            generation: ledger.generation + 1,
            epoch_bound: ledger.epoch_bound.max(epoch + EPOCHS_AHEAD),
            recycled_lsn: ledger.recycled_lsn.max(recycled_lsn),
            opening: 0,
        };
        let block = Bytes::copy_from_slice(&self.0.pool.encode_with(&next));
        // In sequence, so that one of them is whole at any time.
        for place in superblock_places(zones) {
            if zones.conventional_bytes > 0 {
                io.write_flush(place, block.clone()).await?;
                continue;
            }
            let zone = self.0.disk.zone(place);
            let writable = zone.filter(|zone| {
                matches!(zone.state, ZoneState::Empty | ZoneState::Open) && zone.write_pointer < place + zone.len
            });
            let at = match writable {
                Some(zone) => zone.write_pointer,
                None => {
                    io.reset_zone(place).await?;
                    place
                }
            };
            io.write_flush(at, block.clone()).await?;
        }
        *ledger = next;
        *self.0.known.lock() = next;
        Ok(())
    }
}
