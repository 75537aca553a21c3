//! The store under the simulator, and the simulator under test.

use steadfast_sim::{SimOptions, Variant, run, run_seed};

#[test]
fn seeds_pass() {
    let report = run(&SimOptions { seed: 1, runs: 150, ..SimOptions::default() }, &|_, _| ());
    let told: Vec<_> = report.failures.iter().map(|f| (f.seed, f.violation.clone())).collect();
    assert!(report.passed(), "{told:?}");
    let done = &report.requests;
    assert!(report.cuts > 100 && done.writes > 1000, "{report:?}");
    // A pool that never ran out of room, nor used an extent again, would prove little.
    assert!(done.recycled > 1000 && done.records_moved > 500 && done.chunks_moved > 500, "{report:?}");
    assert!(done.full > 10 && done.scrubs > 100, "{report:?}");
    // Half of them over a super-disk, whose legs heal each other.
    assert!(report.pairs > 50 && done.reads_fast > 10_000 && done.rebuilt_bytes > 0, "{report:?}");
    assert!(done.healed_fast > 100 && done.healed_durable > 5, "{report:?}");
}

#[test]
fn a_seed_replays_exactly() {
    for seed in [3, 7, 11] {
        let (one, two) = (run_seed(seed, None, 0, false), run_seed(seed, None, 50, false));
        assert_eq!((one.trace_hash, one.events), (two.trace_hash, two.events), "seed {seed}");
    }
}

#[test]
fn every_broken_variant_is_caught() {
    for variant in Variant::ALL {
        let options = SimOptions { seed: 1, runs: 200, variant: Some(variant), ..SimOptions::default() };
        let report = run(&options, &|_, _| ());
        assert!(!report.passed(), "{} was not caught in {} runs", variant.name(), report.runs);
    }
}
