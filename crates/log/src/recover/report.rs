//! What recovery found and did.

use serde::Serialize;

use crate::{Lsn, PoolInfo};

/// A torn tail that was cut: nobody had been promised anything in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cut {
    /// Number of the extent.
    pub extent: u32,
    /// Bytes from its start.
    pub offset: u64,
    /// What was found there.
    pub what: String,
}

/// Something damaged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DamageFound {
    /// Number of the extent; `None` for the superblock.
    pub extent: Option<u32>,
    /// Bytes from the start of the extent (or of the disk).
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

/// An extent that was in use, and of which nothing is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LostExtent {
    /// Its number.
    pub extent: u32,
    /// Its epoch; 0 when that is not known.
    pub epoch: u64,
    /// Bytes in it that the checkpoint refers to.
    pub live_bytes: u64,
}

/// Records that had been acknowledged are gone, and nothing says which: what is not found may have been there, and what is found may have been replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Doubt {
    /// The missing ones have LSNs below this: what has a version of at least this is certain. 0 when only what is not found is in doubt.
    pub below: Lsn,
}

/// Healed places kept in a report; more are only counted.
pub const HEALED_MAX: usize = 1_000;

/// What recovery found and did.
#[derive(Debug, Clone, Serialize)]
pub struct RecoveryReport {
    /// The pool.
    pub pool: PoolInfo,
    /// Extents that the disk has room for now.
    pub extents: u64,
    /// Commit extents whose footer was read.
    pub footers_read: u64,
    /// Commit extents whose frames were scanned.
    pub extents_scanned: u64,
    /// Frames scanned.
    pub frames_scanned: u64,
    /// Where the applier's checkpoint was.
    pub checkpoint: Lsn,
    /// Records given to the applier.
    pub records_replayed: u64,
    /// Records copied forward because nothing showed that they had been durable.
    pub records_copied: u64,
    /// The last LSN that survived.
    pub last_lsn: Lsn,
    /// Torn tails that were cut.
    pub cut: Vec<Cut>,
    /// What is damaged.
    pub damage: Vec<DamageFound>,
    /// What was bad or missing on the disk's first copy and was taken from another one, which healed the first; at most [`HEALED_MAX`].
    pub healed: Vec<DamageFound>,
    /// How many such places there were.
    pub healed_total: u64,
    /// Extents that are gone.
    pub lost: Vec<LostExtent>,
    /// What cannot be known because of damage.
    pub doubt: Option<Doubt>,
    /// Whether the pool is read-only because of it.
    pub read_only: bool,
    /// How long it took, in milliseconds.
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
