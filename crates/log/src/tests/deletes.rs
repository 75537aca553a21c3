//! Deletes are kept as long as the records that they hide may exist, and no longer.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use steadfast_disk::MemDisk;
use steadfast_flow::Env;

use super::harness::{Random, format};
use super::model::{Kv, ModelState, options};
use crate::format::EXTENTS_START;
use crate::{LogOptions, Sabotage};

const EXTENT: u64 = 256 << 10;

/// Waits until compaction has no more work.
async fn rest(kv: &Kv) {
    let env = Env::tokio();
    let mut last = None;
    let mut since = env.now();
    while env.now() - since < Duration::from_millis(200) {
        kv.save().await;
        let status = kv.log.status();
        let now = (status.compaction.recycled, status.compaction.records_moved, status.extents.free);
        if last.replace(now) != Some(now) {
            since = env.now();
        }
        env.sleep(Duration::from_millis(2)).await;
    }
}

/// Number of replayed records and of keys found by a start without a saved state.
async fn replayed(disk: &MemDisk) -> (u64, usize) {
    let kv = Kv::open(disk, ModelState::default(), LogOptions { compaction: quiet().compaction, ..options() }).await;
    let found = (kv.report.records_replayed, kv.content().len());
    kv.crash().await;
    found
}

fn quiet() -> LogOptions {
    let mut options = options();
    options.compaction.enabled = false;
    options
}

#[tokio::test]
async fn deletes_do_not_pile_up_beside_records_that_stay() {
    let disk = MemDisk::growable(256 * EXTENT);
    format(&disk, EXTENT).await;
    let mut kv = Kv::open(&disk, ModelState::default(), options()).await;
    for life in 0..3 {
        // Some of the kept records are not moved: the rest of their extent stays too.
        for cold in 0..30 {
            kv.put(life * 100 + cold, cold, 8_000).await.expect("there is room");
        }
        for key in 0..1_000 {
            let key = 10_000 * (life + 1) + key;
            kv.put(key, key, 500).await.expect("there is room");
            kv.delete(key).await.expect("a delete");
        }
        rest(&kv).await;
        let (dropped, status) = (kv.deletes_dropped() as u64, kv.log.status());
        assert!(dropped >= 900, "{dropped} deletes were dropped in life {life}: {:#?}", status.compaction);
        // The next extent is one that recovery has cut and sealed.
        let saved = kv.crash().await;
        kv = Kv::open(&disk, saved, options()).await;
        assert!(kv.report.damage.is_empty(), "{:?}", kv.report);
    }
    rest(&kv).await;
    kv.check_all().await;
    kv.crash().await;
    let (replayed, found) = replayed(&disk).await;
    assert_eq!(found, 90);
    assert!(replayed <= 600, "{replayed} records are replayed for 90 that are there");
}

/// Deletes keys whose older records are in extents that stay, among many others. Returns whether
/// they stay deleted.
async fn stay_deleted(sabotage: Sabotage) -> bool {
    let disk = MemDisk::growable(256 * EXTENT);
    format(&disk, EXTENT).await;
    let kv = Kv::open(&disk, ModelState::default(), LogOptions { sabotage, ..options() }).await;
    // More than two extents that stay, each with a few dead records.
    for key in 0..60 {
        kv.put(key, key, 12_000).await.expect("there is room");
    }
    for key in (0..60).step_by(10) {
        kv.delete(key).await.expect("a delete");
    }
    for key in 1_000..3_000 {
        kv.put(key, key, 500).await.expect("there is room");
        kv.delete(key).await.expect("a delete");
    }
    rest(&kv).await;
    assert!(kv.deletes_dropped() >= 1_800, "{}: {:#?}", kv.deletes_dropped(), kv.log.status().compaction);
    let content = kv.content();
    assert_eq!(content.len(), 54);
    kv.crash().await;
    let kv = Kv::open(&disk, ModelState::default(), options()).await;
    let same = kv.content() == content;
    kv.crash().await;
    same
}

#[tokio::test]
async fn a_delete_is_kept_beside_what_it_hides() {
    assert!(stay_deleted(Sabotage::None).await, "something has come back");
    assert!(!stay_deleted(Sabotage::BlindFilters).await, "the test would not notice");
}

/// Permanent keys, keys that are written and deleted repeatedly, and keys that are used once.
async fn churn(kv: &Kv, random: &mut Random, expected: &mut BTreeMap<u64, u64>, once: &mut u64) {
    for op in 0..600 {
        let seed = random.below(1 << 40);
        match random.below(10) {
            0 => {
                let key = random.below(60);
                kv.put(key, seed, 6_000).await.expect("there is room");
                expected.insert(key, seed);
            }
            1 => {
                let key = random.below(60);
                kv.delete(key).await.expect("a delete");
                expected.remove(&key);
            }
            2..=3 => {
                let key = 100 + random.below(30);
                kv.put(key, seed, 1_000).await.expect("there is room");
                expected.insert(key, seed);
            }
            4..=5 => {
                let key = 100 + random.below(30);
                kv.delete(key).await.expect("a delete");
                expected.remove(&key);
            }
            6 => {
                let key = 200 + random.below(4);
                kv.put_chunks(key, seed, &[20_000, 3_000]).await.expect("there is room");
                expected.insert(key, seed);
            }
            _ => {
                *once += 1;
                kv.put(*once, seed, 800).await.expect("there is room");
                kv.delete(*once).await.expect("a delete");
            }
        }
        if op % 50 == 0 {
            kv.save().await;
        }
    }
}

async fn lives(seed: u64, from_nothing: Vec<bool>) {
    let disk = MemDisk::growable(200 * EXTENT);
    format(&disk, EXTENT).await;
    let (mut random, mut expected, mut once) = (Random(seed), BTreeMap::new(), 1_000);
    let mut saved = ModelState::default();
    for from_nothing in from_nothing {
        let state = if from_nothing { ModelState::default() } else { saved };
        let kv = Kv::open(&disk, state, options()).await;
        assert!(kv.report.damage.is_empty(), "{:?}", kv.report);
        let found: BTreeMap<u64, u64> = kv.content().into_iter().map(|(key, (_, seed))| (key, seed)).collect();
        assert_eq!(found, expected, "from nothing: {from_nothing}");
        kv.check_all().await;
        churn(&kv, &mut random, &mut expected, &mut once).await;
        if random.below(2) == 0 {
            rest(&kv).await;
        }
        saved = kv.crash().await;
    }
    assert_eq!(replayed(&disk).await.1, expected.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn what_is_deleted_stays_deleted_and_nothing_else_goes(
        seed: u64,
        from_nothing in proptest::collection::vec(any::<bool>(), 2..6),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(lives(seed, from_nothing));
    }
}

#[tokio::test]
async fn an_empty_pool_takes_no_space_ahead() {
    let disk = MemDisk::growable(256 * EXTENT);
    format(&disk, EXTENT).await;
    let kv = Kv::open(&disk, ModelState::default(), options()).await;
    rest(&kv).await;
    let extents = kv.log.status().extents;
    assert_eq!((extents.open_commit, extents.free), (1, 0), "{extents:?}");
    kv.put(1, 1, 500).await.expect("there is room");
    rest(&kv).await;
    let extents = kv.log.status().extents;
    assert!(extents.free > u64::from(options().reserve_extents), "{extents:?}");
}

#[tokio::test]
async fn a_pool_grows_by_a_quarter_as_long_as_the_disk_has_space() {
    const EXTENTS: u64 = 42;
    let disk = MemDisk::growable(EXTENTS_START + EXTENTS * EXTENT);
    format(&disk, EXTENT).await;
    let kv = Kv::open(&disk, ModelState::default(), options()).await;
    let mut steps = Vec::new();
    let total = || {
        let extents = kv.log.status().extents;
        extents.free + extents.open_commit + extents.open_body + extents.sealed_commit + extents.sealed_body
    };
    let mut before = total();
    for key in 0.. {
        if kv.put(key, 1, 60_000).await.is_err() {
            break;
        }
        let now = total();
        if now > before {
            steps.push(now - before);
        }
        before = now;
    }
    assert!(steps.iter().max().is_some_and(|step| *step >= 5), "{steps:?}");
    let extents = kv.log.status().extents;
    assert_eq!((extents.growable, before), (0, EXTENTS), "every extent is used: {extents:?} {steps:?}");
}
