//! What a super-disk tells about itself.

use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;

use super::core::{Leg, Shared};
use crate::label::uuid_text;

/// How the fast leg is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum FastState {
    /// It holds everything that it should.
    Clean,
    /// It is used, and parts of it are being copied from the durable leg.
    Rebuilding,
    /// As rebuilding: it was found to be of an earlier time, so nothing that it held counts.
    Stale,
    /// There is none.
    Missing,
    /// It holds something that is not this pair's. It is not touched.
    Foreign {
        /// What it holds.
        what: String,
    },
    /// It does not work. It is looked at again from time to time, and opened again where that may help.
    Failed {
        /// What happened.
        why: String,
    },
}

/// A snapshot of a super-disk. Counters are since it was opened.
#[derive(Debug, Clone, Serialize)]
pub struct SuperdiskStatus {
    /// How the fast leg is.
    pub fast: FastState,
    /// What the durable leg is.
    pub durable_disk: String,
    /// What the fast leg is.
    pub fast_disk: Option<String>,
    /// UUID of the pair.
    pub pair: String,
    /// How often the pair has been opened with a fast leg.
    pub generation: u64,
    /// Why the fast leg did not count when it was opened last, if it did not.
    pub refused: Option<String>,
    /// Bytes in a region of the map.
    pub region_bytes: u64,
    /// Regions wholly readable from the fast leg.
    pub regions_clean: u64,
    /// Regions that hold something and fit the fast leg.
    pub regions_total: u64,
    /// Regions that wait to be copied.
    pub regions_to_rebuild: u64,
    /// Regions taken out of use after repeated failures.
    pub regions_quarantined: u64,
    /// Bytes of regions that may differ after a crash: their intent bits are set.
    pub dirty_bytes: u64,
    /// The bound on it, as far as both legs hold the same.
    pub dirty_bytes_max: u64,
    /// Bytes copied to the fast leg in the background.
    pub rebuilt_bytes: u64,
    /// Recent speed of that, in bytes a second; 0 when nothing is to be done.
    pub rebuild_bytes_s: u64,
    /// The bound on it; 0 for none.
    pub rebuild_bytes_s_max: u64,
    /// Reads that the fast leg answered.
    pub reads_fast: u64,
    /// Reads that the durable leg answered.
    pub reads_durable: u64,
    /// Reads that asked the durable leg too because the fast one was late.
    pub reads_hedged: u64,
    /// How many of those the durable leg answered first.
    pub hedges_won: u64,
    /// After how long a small read is hedged now, in microseconds.
    pub hedge_us: u64,
    /// Fast reads that are overdue now.
    pub fast_overdue: u64,
    /// Errors of the fast leg.
    pub fast_errors: u64,
    /// Errors of the durable leg.
    pub durable_errors: u64,
    /// Ranges of the fast leg that were found bad and made good.
    pub healed_fast: u64,
    /// Ranges of the durable leg that were found bad and made good.
    pub healed_durable: u64,
    /// Repairs that did not succeed, of either leg.
    pub heal_failures: u64,
    /// Writes that went to both legs.
    pub fast_writes: u64,
    /// Writes that could not go to the fast leg too.
    pub skipped_fast_writes: u64,
    /// How often the fast leg was closed and opened again, after a flush of it failed or it did not answer.
    pub fast_reopened: u64,
    /// Bytes on their way to the fast leg.
    pub pending_bytes: u64,
    /// The bound on it.
    pub pending_bytes_max: u64,
}

impl Shared {
    pub(super) fn status(&self) -> SuperdiskStatus {
        let counters = &self.counters;
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        let state = self.state.lock();
        let counts = state.map.counts();
        let (identity, region_bytes) = (state.identity, state.map.region_bytes());
        let dirty_bytes = state.intent.dirty(state.map.len()) * region_bytes;
        let refused = state.refused.clone();
        let fast = match &state.leg {
            Leg::Missing => FastState::Missing,
            Leg::Foreign(what) => FastState::Foreign { what: what.clone() },
            Leg::Failed(why) => FastState::Failed { why: why.clone() },
            Leg::Up if counts.to_rebuild == 0 && state.heals.is_empty() => FastState::Clean,
            Leg::Up if state.stale => FastState::Stale,
            Leg::Up => FastState::Rebuilding,
        };
        drop(state);
        let hedge = self.hedge(0).lock().after();
        SuperdiskStatus {
            fast,
            durable_disk: self.durable.describe(),
            fast_disk: self.fast.as_ref().map(|disk| disk.describe()),
            pair: uuid_text(&identity.pair),
            generation: identity.generation,
            region_bytes,
            refused,
            dirty_bytes,
            dirty_bytes_max: self.options.dirty_bytes_max,
            regions_clean: counts.clean,
            regions_total: counts.total,
            regions_to_rebuild: counts.to_rebuild,
            regions_quarantined: counts.quarantined,
            rebuilt_bytes: get(&counters.rebuilt_bytes),
            rebuild_bytes_s: get(&counters.rebuild_bytes_s),
            rebuild_bytes_s_max: self.pace.bytes_s(),
            reads_fast: get(&counters.reads_fast),
            reads_durable: get(&counters.reads_durable),
            reads_hedged: get(&counters.reads_hedged),
            hedges_won: get(&counters.hedges_won),
            hedge_us: u64::try_from(hedge.as_micros()).unwrap_or(u64::MAX),
            fast_overdue: get(&self.overdue),
            fast_errors: get(&counters.fast_errors),
            durable_errors: get(&counters.durable_errors),
            healed_fast: get(&counters.healed_fast),
            healed_durable: get(&counters.healed_durable),
            heal_failures: get(&counters.heal_failures),
            fast_writes: get(&counters.fast_writes),
            skipped_fast_writes: get(&counters.skipped_fast_writes),
            fast_reopened: get(&counters.fast_reopened),
            pending_bytes: get(&self.pending),
            pending_bytes_max: self.options.fast_pending_bytes_max,
        }
    }
}
