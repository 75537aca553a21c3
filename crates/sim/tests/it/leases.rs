//! Machines that take over by leases, and broken leases.

use crate::tried;
use steadfast_sim::{LeaseOptions, LeaseVariant, lease_hash, run_leases};

#[test]
fn lease_seeds_pass() {
    let report = run_leases(&LeaseOptions { seed: 1, runs: 100, ..LeaseOptions::default() }, &|_, _| ());
    let failures: Vec<_> = report.failures.iter().map(|failure| (failure.seed, &failure.violation)).collect();
    assert!(report.passed(), "{failures:?}");
    assert!(report.take_overs > 100 && report.answers > 100_000, "{} of {}", report.take_overs, report.answers);
}

#[test]
fn a_lease_seed_replays_exactly() {
    for seed in 1..4 {
        assert_eq!(lease_hash(seed), lease_hash(seed), "seed {seed}");
    }
}

#[test]
fn every_broken_lease_is_caught() {
    for variant in tried(LeaseVariant::all()) {
        let options = LeaseOptions { seed: 1, runs: 500, variant: Some(variant), ..LeaseOptions::default() };
        assert!(!run_leases(&options, &|_, _| ()).passed(), "{} was not caught", variant.name());
        // The same faults cause no violation with correct leases.
        let report = run_leases(&LeaseOptions { runs: 3, control: true, ..options }, &|_, _| ());
        assert!(report.passed(), "{}: {:?}", variant.name(), report.failures.first().map(|f| (f.seed, &f.violation)));
    }
}
