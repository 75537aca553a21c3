//! Whole clusters with faults, and broken clusters.

use crate::tried;
use steadfast_sim::{NodesOptions, NodesVariant, nodes_hash, run_nodes};

#[test]
fn nodes_seeds_pass() {
    let report = run_nodes(&NodesOptions { runs: 100, ..NodesOptions::default() }, &|_, _| ());
    let failures: Vec<_> = report.failures.iter().map(|failure| (failure.seed, &failure.violation)).collect();
    assert!(report.passed(), "{failures:?}");
    let counts = (report.lives, report.recoveries, report.resets);
    assert!(report.lives > 500 && report.recoveries > 5_000 && report.resets > 10, "{counts:?}");
}

#[test]
fn a_nodes_seed_replays_exactly() {
    for seed in 1..6 {
        assert_eq!(nodes_hash(seed), nodes_hash(seed), "seed {seed}");
    }
}

#[test]
fn every_broken_cluster_is_caught() {
    for variant in tried(NodesVariant::all()) {
        let options = NodesOptions { runs: 1500, variant: Some(variant), ..NodesOptions::default() };
        assert!(!run_nodes(&options, &|_, _| ()).passed(), "{} was not caught", variant.name());
        // The same faults cause no violation in a correct cluster.
        let report = run_nodes(&NodesOptions { runs: 3, control: true, ..options }, &|_, _| ());
        assert!(report.passed(), "{}: {:?}", variant.name(), report.failures.first().map(|f| (f.seed, &f.violation)));
    }
}
