//! Clients without checksums over a super-disk, and broken super-disks.

use crate::tried;
use steadfast_sim::{BlockOptions, BlockVariant, block_hash, run_blocks};

#[test]
fn block_seeds_pass() {
    let report = run_blocks(&BlockOptions { runs: 300, ..BlockOptions::default() }, &|_, _| ());
    let failures: Vec<_> = report.failures.iter().map(|failure| (failure.seed, &failure.violation)).collect();
    assert!(report.passed(), "{failures:?}");
    assert!(report.lives > 1500 && report.cuts > 500, "{} lives, {} cuts", report.lives, report.cuts);
}

#[test]
fn a_block_seed_replays_exactly() {
    for seed in 1..6 {
        assert_eq!(block_hash(seed), block_hash(seed), "seed {seed}");
    }
}

#[test]
fn every_broken_super_disk_is_caught() {
    for variant in tried(BlockVariant::all()) {
        let options = BlockOptions { runs: 500, variant: Some(variant), ..BlockOptions::default() };
        assert!(!run_blocks(&options, &|_, _| ()).passed(), "{} was not caught", variant.name());
        // The same faults cause no violation in a correct super-disk.
        let report = run_blocks(&BlockOptions { runs: 10, control: true, ..options }, &|_, _| ());
        assert!(report.passed(), "{}: {:?}", variant.name(), report.failures.first().map(|f| (f.seed, &f.violation)));
    }
}

/// Regression: a snapshot of the durable leg held the event of a round without its bits, and the
/// super-disk trusted a fast leg of a later time.
#[test]
fn an_event_is_never_durable_before_its_bits() {
    assert!(run_blocks(&BlockOptions { seed: 2596, ..BlockOptions::default() }, &|_, _| ()).passed());
}
