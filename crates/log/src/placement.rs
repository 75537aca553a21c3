//! How extents are laid and changed on the disk, where it matters whether the disk may be written anywhere or is cut into zones that are written in order.
//!
//! On zones an extent is a zone: it is reset before it is used again, where otherwise its header is written over; its chunks reach
//! the disk in the order of their places; its trailer lies close behind its footer, and then the zone is finished, so that it is not open any more. Only so many
//! zones may be open: commits have their share, and bodies the rest.
//!
//! A reset takes the header with it. What a later start must know all the same (which epochs have been used, how far commits were
//! recycled) is made durable first, in the superblocks: the *ledger*.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{Disk, ZoneState};

use crate::format::{Ledger, Superblock, Zoning};
use crate::io::Io;
use crate::pool::superblock_places;
use crate::{LogError, Lsn, Sabotage};

/// Zones that commits may have open: the one that is written, the next one, and the last one while it is sealed.
const COMMIT_ZONES: u32 = 3;
/// The most body extents that are written at a time.
const BODY_LANES_MAX: u32 = 4;
/// Epochs that the ledger is ahead by, so that it need not be written for each.
const EPOCHS_AHEAD: u64 = 1024;

/// Zones that the superblocks keep open.
fn superblock_zones(zones: &Zoning) -> u32 {
    if zones.conventional_bytes == 0 { 2 } else { 0 }
}

/// The fewest open zones that a pool can work with.
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
    /// A copy, for who only asks.
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

    /// Whether what is written to one extent must reach the disk in the order of its places.
    pub(crate) fn in_order(&self) -> bool {
        self.zones().is_some() && self.0.sabotage != Sabotage::ZoneOrder
    }

    /// How many body extents are written at a time, where the pool has `extents` of them.
    pub(crate) fn body_lanes(&self, extents: u32) -> usize {
        let Some(limit) = self.body_zones() else { return 1 };
        // One writer a zone: several zones keep the disk busy. In a small pool each of them costs a share of the space.
        (limit as u32 / 2).min(BODY_LANES_MAX).min(extents / 16).max(1) as usize
    }

    /// How many body extents may be open, those that are being sealed included; `None` for any number.
    pub(crate) fn body_zones(&self) -> Option<usize> {
        let zones = self.zones()?;
        match zones.open_zones_max {
            0 => Some(2 * BODY_LANES_MAX as usize),
            max => Some(max.saturating_sub(superblock_zones(zones) + COMMIT_ZONES).max(2) as usize),
        }
    }

    /// Where in its extent a trailer goes when the footer ends at `end`.
    pub(crate) fn trailer_after(&self, end: u64) -> u64 {
        self.0.pool.trailer_after(end)
    }

    /// Whether the device has given up the zone that begins at `start`.
    pub(crate) fn is_dead(&self, start: u64) -> bool {
        self.zone_state(start) == Some(ZoneState::Dead)
    }

    fn zone_state(&self, start: u64) -> Option<ZoneState> {
        self.zones()?;
        self.0.disk.zone(start).map(|zone| zone.state)
    }

    /// Makes an extent ready for its header.
    pub(crate) async fn clear(&self, io: &Io, start: u64) -> Result<(), LogError> {
        match self.zone_state(start) {
            None | Some(ZoneState::Empty) => Ok(()),
            Some(_) if self.0.sabotage == Sabotage::ZoneReset => Ok(()),
            Some(_) => io.reset_zone(start).await,
        }
    }

    /// Nothing more is written to the extent that begins at `start`.
    pub(crate) async fn finish(&self, io: &Io, start: u64) -> Result<(), LogError> {
        match self.zone_state(start) {
            Some(ZoneState::Open | ZoneState::Failed) if self.0.sabotage != Sabotage::ZoneFinish => {
                io.finish_zone(start).await
            }
            _ => Ok(()),
        }
    }

    /// Whether the zone at `start` counts as open.
    pub(crate) fn is_open(&self, start: u64) -> bool {
        matches!(self.zone_state(start), Some(ZoneState::Open | ZoneState::Failed))
    }

    /// How many more zones may be opened when those of `open` extents are; `None` for any number.
    pub(crate) fn may_open(&self, open: u32) -> Option<u32> {
        let zones = self.zones()?;
        let max = Some(zones.open_zones_max).filter(|max| *max > 0)?;
        Some(max.saturating_sub(superblock_zones(zones) + open))
    }

    /// Where a footer of `len` bytes and its trailer may go in an extent whose frames end at `end`; `None` when it cannot be sealed any more.
    pub(crate) fn footer_place(&self, start: u64, end: u64, len: u64) -> Option<u64> {
        if self.zones().is_none() {
            return Some(end);
        }
        let zone = self.0.disk.zone(start)?;
        let at = zone.write_pointer.checked_sub(start)?;
        let fits = zone.state == ZoneState::Open && at >= end;
        (fits && at + len + steadfast_disk::BLOCK as u64 <= self.0.pool.extent_bytes).then_some(at)
    }

    /// Makes sure that a later start will not use `epoch` again, and knows that commits were recycled up to `recycled_lsn`, also when all headers that say
    /// so are gone. Does nothing where headers are never lost.
    pub(crate) async fn remember(&self, io: &Io, epoch: u64, recycled_lsn: Lsn) -> Result<(), LogError> {
        let Some(zones) = self.zones() else { return Ok(()) };
        let mut ledger = self.0.ledger.lock().await;
        let known = epoch < ledger.epoch_bound && recycled_lsn <= ledger.recycled_lsn;
        if known || self.0.sabotage == Sabotage::ZoneLedger {
            return Ok(());
        }
        let next = Ledger {
            generation: ledger.generation + 1,
            epoch_bound: ledger.epoch_bound.max(epoch + EPOCHS_AHEAD),
            recycled_lsn: ledger.recycled_lsn.max(recycled_lsn),
            opening: 0,
        };
        let block = Bytes::copy_from_slice(&self.0.pool.encode_with(&next));
        // One after the other, so that one of them is whole at any time.
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
