//! The status of a super-disk, from its counters and its map.

use std::sync::atomic::Ordering::Relaxed;

use super::core::{Leg, SuperdiskShared};
use crate::label::uuid_text;
use crate::status::{FastState, SuperdiskStatus};

/// The status of a super-disk.
pub(super) fn of(shared: &SuperdiskShared) -> SuperdiskStatus {
    let counters = &shared.counters;
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
    let state = shared.state.lock();
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
    let hedge = shared.hedge(0).lock().after();
    SuperdiskStatus {
        fast,
        durable_disk: shared.durable.describe(),
        fast_disk: shared.fast.as_ref().map(|disk| disk.describe()),
        pair: uuid_text(&identity.pair),
        generation: identity.generation,
        region_bytes,
        refused,
        dirty_bytes,
        dirty_bytes_max: shared.options.dirty_bytes_max,
        regions_clean: counts.clean,
        regions_total: counts.total,
        regions_to_rebuild: counts.to_rebuild,
        regions_quarantined: counts.quarantined,
        rebuilt_bytes: get(&counters.rebuilt_bytes),
        rebuild_bytes_s: get(&counters.rebuild_bytes_s),
        rebuild_bytes_s_max: shared.pace.bytes_s(),
        reads_fast: get(&counters.reads_fast),
        reads_durable: get(&counters.reads_durable),
        reads_hedged: get(&counters.reads_hedged),
        hedges_won: get(&counters.hedges_won),
        hedge_us: u64::try_from(hedge.as_micros()).unwrap_or(u64::MAX),
        fast_overdue: get(&shared.overdue),
        fast_errors: get(&counters.fast_errors),
        durable_errors: get(&counters.durable_errors),
        healed_fast: get(&counters.healed_fast),
        healed_durable: get(&counters.healed_durable),
        heal_failures: get(&counters.heal_failures),
        fast_writes: get(&counters.fast_writes),
        skipped_fast_writes: get(&counters.skipped_fast_writes),
        fast_reopened: get(&counters.fast_reopened),
        pending_bytes: get(&shared.pending),
        pending_bytes_max: shared.options.fast_pending_bytes_max,
    }
}
