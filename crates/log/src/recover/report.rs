//! The result of a recovery.

use serde::Serialize;

use crate::{Lsn, PoolInfo};

/// A torn tail that was cut. Nothing in it had been acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cut {
    /// Number of the extent.
    pub extent: u32,
    /// Bytes from its start.
    pub offset: u64,
    /// The bytes found there.
    pub what: String,
}

/// Damaged data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DamageFound {
    /// Number of the extent; `None` for the superblock.
    pub extent: Option<u32>,
    /// Bytes from the start of the extent (or of the disk).
    pub offset: u64,
    /// The fault.
    pub what: String,
}

/// An extent that was in use and whose data is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LostExtent {
    /// Its number.
    pub extent: u32,
    /// Its epoch; 0 if unknown.
    pub epoch: u64,
    /// Bytes in it that the checkpoint refers to.
    pub live_bytes: u64,
}

/// Acknowledged records are gone, and it is unknown which. A missing record may have existed, and a
/// found one may have been replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Doubt {
    /// Exclusive upper bound of the missing LSNs: records with a version of at least this are
    /// certain. 0 if only missing records are in doubt.
    pub below: Lsn,
}

/// Healed places kept in a report; more are only counted.
pub const HEALED_MAX: usize = 1_000;

/// The result of a recovery.
#[derive(Debug, Clone, Serialize)]
pub struct RecoveryReport {
    /// The pool.
    pub pool: PoolInfo,
    /// Extents that the disk has space for now.
    pub extents: u64,
    /// Commit extents whose footer was read.
    pub footers_read: u64,
    /// Commit extents whose frames were scanned.
    pub extents_scanned: u64,
    /// Frames scanned.
    pub frames_scanned: u64,
    /// The applier's checkpoint.
    pub checkpoint: Lsn,
    /// Records given to the applier.
    pub records_replayed: u64,
    /// Records copied forward because nothing proved them durable.
    pub records_copied: u64,
    /// The last LSN that survived.
    pub last_lsn: Lsn,
    /// Torn tails that were cut.
    pub cut: Vec<Cut>,
    /// What is damaged.
    pub damage: Vec<DamageFound>,
    /// Data that was bad or missing on the disk's first copy and came from another one, which
    /// healed the first; at most [`HEALED_MAX`].
    pub healed: Vec<DamageFound>,
    /// Total number of such places.
    pub healed_total: u64,
    /// Lost extents.
    pub lost: Vec<LostExtent>,
    /// Facts that are unknown because of damage.
    pub doubt: Option<Doubt>,
    /// Whether the damage makes the pool read-only.
    pub read_only: bool,
    /// Duration in milliseconds.
    pub took_ms: u64,
}

impl RecoveryReport {
    pub(super) fn new(pool: PoolInfo) -> Self {
        Self {
            pool,
            extents: 0,
            footers_read: 0,
            extents_scanned: 0,
            frames_scanned: 0,
            checkpoint: 0,
            records_replayed: 0,
            records_copied: 0,
            last_lsn: 0,
            cut: Vec::new(),
            damage: Vec::new(),
            healed: Vec::new(),
            healed_total: 0,
            lost: Vec::new(),
            doubt: None,
            read_only: false,
            took_ms: 0,
        }
    }

    pub(super) fn healed(&mut self, extent: u32, offset: u64, what: String) {
        self.healed_total += 1;
        if self.healed.len() < HEALED_MAX {
            self.healed.push(DamageFound { extent: Some(extent), offset, what });
        }
    }

    pub(super) fn doubt(&mut self, doubt: Doubt) {
        let below = self.doubt.map_or(0, |known| known.below).max(doubt.below);
        self.doubt = Some(Doubt { below });
    }

    pub(super) fn damage(&mut self, extent: u32, offset: u64, what: String) {
        tracing::error!(extent, offset, %what, "damage found");
        self.damage.push(DamageFound { extent: Some(extent), offset, what });
    }
}
