//! The media edge over a hostile origin, and broken edges.

use crate::tried;
use steadfast_sim::{EdgeOptions, EdgeVariant, edge_hash, run_edges};

#[test]
fn edge_seeds_pass() {
    let report = run_edges(&EdgeOptions { runs: 500, ..EdgeOptions::default() }, &|_, _| ());
    let failures: Vec<_> = report.failures.iter().map(|failure| (failure.seed, &failure.violation)).collect();
    assert!(report.passed(), "{failures:?}");
    assert!(report.answers > 40_000 && report.cuts > 500, "{} answers, {} cuts", report.answers, report.cuts);
}

#[test]
fn an_edge_seed_replays_exactly() {
    for seed in 1..4 {
        assert_eq!(edge_hash(seed), edge_hash(seed), "seed {seed}");
    }
}

#[test]
fn every_broken_edge_is_caught() {
    for variant in tried(EdgeVariant::all()) {
        let options = EdgeOptions { runs: 300, variant: Some(variant), ..EdgeOptions::default() };
        assert!(!run_edges(&options, &|_, _| ()).passed(), "{} was not caught", variant.name());
        // The same faults cause no violation in a correct edge.
        let report = run_edges(&EdgeOptions { runs: 3, control: true, ..options }, &|_, _| ());
        assert!(report.passed(), "{}: {:?}", variant.name(), report.failures.first().map(|f| (f.seed, &f.violation)));
    }
}
