//! The store under the simulator, and the simulator under test.

use crate::tried;
use steadfast_sim::{SimOptions, Variant, run, run_seed};

#[test]
fn seeds_pass() {
    let report = run(&SimOptions { seed: 1, runs: 120, ..SimOptions::default() }, &|_, _| ());
    let failures: Vec<_> = report.failures.iter().map(|f| (f.seed, f.violation.clone())).collect();
    assert!(report.passed(), "{failures:?}");
    let done = &report.requests;
    assert!(report.cuts > 100 && done.writes > 1000, "{report:?}");
    // A pool that never fills up or never reuses an extent would prove little.
    assert!(done.recycled > 1000 && done.records_moved > 500 && done.chunks_moved > 500, "{report:?}");
    assert!(done.full > 10 && done.scrubs > 100, "{report:?}");
    // About one in twelve uses zoned disks.
    assert!(report.zoned > 5, "{report:?}");
    // A third uses several disks. Some of them are missing at some starts, or die.
    assert!(report.pools > 30 && done.unavailable > 500, "{report:?}");
    assert!(done.listings_refused > 50 && done.starts_incomplete > 10 && report.faults.deaths > 0, "{report:?}");
    // In a third of these, disks join and leave, through crashes.
    assert!(report.moves > 8 && done.moves_begun > 8 && done.moves_done > 8, "{report:?}");
    assert!(done.moves_resumed > 2 && done.keys_moved > 20, "{report:?}");
    // About a fifth has channels, whose subscribers recover from their position or learn that they
    // cannot.
    assert!(report.channels > 20 && done.publications > 4000 && done.delivered > 4000, "{report:?}");
    assert!(done.recoveries > 600 && done.recoveries_refused > 100, "{report:?}");
    // Some restore indexes to an earlier state, tear them, or make them unreadable for a while.
    // Some restore the pool to an earlier state without its indexes.
    assert!(
        report.indexes > 10 && done.index_failed > 20 && done.index_rebuilt > 2 && done.gone_back > 0,
        "{report:?}"
    );
    // Some have an archive, and are restored from it.
    assert!(done.from_archive > 10 && done.archive_deleted > 100, "{report:?}");
    // Some have saturating clients.
    assert!(report.saturating > 1, "{report:?}");
    // Few have single-use keys, whose delete records must not accumulate.
    assert!(report.once > 0, "{report:?}");
    // About a fifth receives events of objects, some of them again after a crash.
    assert!(report.listened > 15 && done.events_received > 1000 && done.events_redelivered > 20, "{report:?}");
    // Half use a super-disk, whose legs heal each other.
    assert!(report.pairs > 50 && done.reads_fast > 10_000 && done.rebuilt_bytes > 0, "{report:?}");
    assert!(done.healed_fast > 100 && done.healed_durable > 5, "{report:?}");
}

#[test]
fn a_seed_replays_exactly() {
    // The last has channels.
    for seed in [7, 130] {
        let (one, two) = (run_seed(seed, None, 0, false), run_seed(seed, None, 50, false));
        assert_eq!((one.trace_hash, one.events), (two.trace_hash, two.events), "seed {seed}");
    }
}

#[test]
fn every_broken_variant_is_caught() {
    for variant in tried(Variant::ALL) {
        let soon = [
            Variant::OlderIndex,
            Variant::ForeignIndex,
            Variant::IndexErrors,
            Variant::LateFlush,
            Variant::UnansweredPieces,
            Variant::TornCut,
            Variant::RecycledLeftOut,
            Variant::AnyEpoch,
            Variant::OlderDisks,
            Variant::NoClaim,
            Variant::OwnerAfterClaim,
            Variant::OwnSwept,
            Variant::LiveDropped,
            Variant::RetentionIgnored,
            Variant::AnyHeldUse,
            Variant::HeadKeptFirst,
        ];
        let runs = if soon.contains(&variant) { 200 } else { 1_000 };
        let options = SimOptions { seed: 1, runs, variant: Some(variant), ..SimOptions::default() };
        let report = run(&options, &|_, _| ());
        assert!(!report.passed(), "{} was not caught in {} runs", variant.name(), report.runs);
    }
}

/// Regression: compaction deferred records because a body extent had no space to move into. After
/// that, no delete succeeded.
#[test]
fn records_are_compacted_where_chunks_find_no_room() {
    assert_eq!(run_seed(10_240, None, 0, false).violation, None);
}

/// Regression: in a pool full of live chunks, the open body extent was full and mostly dead.
/// Compaction emptied only sealed extents, and so no write of a chunk succeeded.
#[test]
fn the_open_body_extent_is_emptied_in_a_full_pool() {
    assert_eq!(run_seed(4_933, None, 0, false).violation, None);
}
