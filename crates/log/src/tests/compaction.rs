//! Space is freed, and no record is lost that is live or still hides another.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::Env;

use super::harness::{Random, format};
use super::model::{Kv, ModelState, options};
use crate::format::{ExtentHeader, ExtentId, ExtentKind};
use crate::{LogError, LogOptions, verify};

const EXTENT: u64 = 1 << 20;

/// Runs random overwrites and deletes of `keys` keys until it has written `total` bytes. Compaction
/// must free space in time.
async fn churn(kv: &Kv, random: &mut Random, keys: u64, total: u64) {
    let mut written = 0;
    let mut op = 0u64;
    while written < total {
        op += 1;
        let (key, seed) = (random.below(keys), op * 1000 + random.below(1000));
        let (done, bytes) = match key % 10 {
            0..=1 => (kv.put_chunks(key, seed, &[200_000, 70_000, 1]).await, 270_000),
            _ if random.below(10) < 3 => (kv.delete(key).await, 50),
            _ => (kv.put(key, seed, 20_000).await, 20_000),
        };
        done.unwrap_or_else(|error| panic!("{error}: {:#?}", kv.log.status()));
        written += bytes;
        if op.is_multiple_of(64) {
            kv.save().await;
        }
    }
}

async fn verified(disk: &MemDisk) {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let report = verify(&shared, |_, _| {}).await.expect("a pool");
    assert!(report.is_clean(), "{:#?}", report.damage);
}

/// The contents are the same from the saved state and from nothing.
async fn reopen_both_ways(disk: &MemDisk, kv: Kv) {
    let content = kv.content();
    let saved = kv.crash().await;
    for state in [saved, ModelState::default()] {
        let from_nothing = state.entries.is_empty();
        let kv = Kv::open(disk, state, options()).await;
        assert!(kv.report.damage.is_empty(), "{:?}", kv.report);
        assert_eq!(kv.content(), content, "from nothing: {from_nothing}");
        kv.check_all().await;
        kv.crash().await;
    }
    verified(disk).await;
}

#[tokio::test]
async fn overwrites_and_deletes_go_on_in_a_pool_that_is_mostly_full() {
    let disk = MemDisk::fixed(33 * EXTENT);
    format(&disk, EXTENT).await;
    let kv = Kv::open(&disk, ModelState::default(), options()).await;
    let mut random = Random(1);
    // About half of the pool is live; eight times the pool is written.
    churn(&kv, &mut random, 150, 8 * 32 * EXTENT).await;
    kv.check_all().await;
    let status = kv.log.status();
    assert!(status.compaction.recycled > 100, "{:#?}", status.compaction);
    assert!(status.compaction.records_moved > 0 && status.compaction.chunks_moved > 0, "{:#?}", status.compaction);
    assert!(status.compaction.stuck.is_empty());
    reopen_both_ways(&disk, kv).await;
}

#[tokio::test]
async fn records_are_copied_in_batches_that_fit_into_a_small_frame() {
    let disk = MemDisk::fixed(17 * EXTENT);
    format(&disk, EXTENT).await;
    let kv = Kv::open(&disk, ModelState::default(), LogOptions { frame_bytes_max: 16 << 10, ..options() }).await;
    let mut random = Random(1);
    for seed in 0..8_000 {
        kv.put(random.below(2_500), seed, 3_000).await.expect("space");
        if seed % 64 == 0 {
            kv.save().await;
        }
    }
    kv.check_all().await;
    let status = kv.log.status().compaction;
    assert!(status.records_moved > 0 && status.stuck.is_empty(), "{status:#?}");
    reopen_both_ways(&disk, kv).await;
}

#[tokio::test]
async fn the_padding_of_small_frames_is_not_copied_for_ever() {
    let disk = MemDisk::fixed(9 * EXTENT);
    format(&disk, EXTENT).await;
    let kv = Kv::open(&disk, ModelState::default(), LogOptions { frame_bytes_max: 16 << 10, ..options() }).await;
    let mut key = 0;
    while kv.put(key, key, 3_000).await.is_ok() {
        key += 1;
    }
    for _ in 0..500 {
        kv.save().await;
        let moved = kv.log.status().compaction.records_moved;
        // One pass over the pool may pay.
        assert!(moved <= key, "{moved} records of {key} were copied");
        Env::tokio().sleep(options().compaction.interval).await;
    }
    kv.check_all().await;
}

#[tokio::test]
async fn crashes_between_do_no_harm() {
    let disk = MemDisk::fixed(33 * EXTENT);
    format(&disk, EXTENT).await;
    let mut saved = ModelState::default();
    for round in 0..6 {
        let kv = Kv::open(&disk, saved, options()).await;
        assert!(kv.report.damage.is_empty(), "{:?}", kv.report);
        kv.check_all().await;
        churn(&kv, &mut Random(round), 120, 40 * EXTENT).await;
        let content = kv.content();
        saved = kv.crash().await;
        let again = Kv::open(&disk, ModelState::default(), options()).await;
        assert_eq!(again.content(), content, "round {round}");
        again.crash().await;
    }
}

#[tokio::test]
async fn deletes_outlive_what_they_hide_and_then_go() {
    let disk = MemDisk::fixed(33 * EXTENT);
    format(&disk, EXTENT).await;
    let kv = Kv::open(&disk, ModelState::default(), options()).await;
    for key in 0..200 {
        kv.put(key, key, 30_000).await.expect("there is room");
    }
    for key in 0..200 {
        kv.delete(key).await.expect("a delete");
    }
    let mut seed = 0;
    // Other keys are written and deleted, until the deletes themselves have been compacted away.
    while kv.deletes_dropped() < 200 {
        seed += 1;
        assert!(seed < 200_000, "the deletes stay for ever: {:#?}", kv.log.status().compaction);
        kv.put(1000 + seed % 7, seed, 30_000).await.expect("there is room");
        if seed.is_multiple_of(32) {
            kv.save().await;
        }
    }
    reopen_both_ways(&disk, kv).await;
}

#[tokio::test]
async fn chunks_of_a_writer_that_gave_up_are_found_dead_though_they_were_seen_live() {
    let disk = MemDisk::fixed(10 * EXTENT);
    format(&disk, EXTENT).await;
    let kv = Kv::open(&disk, ModelState::default(), options()).await;
    // Half of the pool: four full extents and an open one. Compaction examines the full ones and
    // finds them live.
    kv.begin_chunks(1, 1, &[200_000; 21]).await;
    while kv.liveness_queries_while_writing() < 20 {
        Env::tokio().sleep(Duration::from_millis(1)).await;
    }
    kv.give_up(1, 1);
    for key in 2..7 {
        let put = kv.put_chunks(key, key, &[200_000; 4]).await;
        put.unwrap_or_else(|e| panic!("{e}: {:#?}", kv.log.status()));
    }
    kv.crash().await;
}

#[tokio::test]
async fn what_dies_in_a_full_open_extent_makes_room_in_a_full_pool() {
    let disk = MemDisk::fixed(10 * EXTENT);
    format(&disk, EXTENT).await;
    let kv = Kv::open(&disk, ModelState::default(), options()).await;
    // Five chunks fill an extent. All but those of the open extent stay.
    let mut keys = 0;
    while kv.put_chunks(keys, keys, &[200_000; 5]).await.is_ok() {
        keys += 1;
    }
    kv.delete(keys - 1).await.expect("deletes");
    let mut tries = 0;
    while let Err(error) = kv.put_chunks(keys, keys, &[200_000; 5]).await {
        tries += 1;
        assert!(matches!(error, LogError::Full) && tries < 1000, "{error}: {:#?}", kv.log.status());
        Env::tokio().sleep(Duration::from_millis(1)).await;
    }
    reopen_both_ways(&disk, kv).await;
}

/// The header with which the log would make a free extent of the disk ready; `None` if it has none.
async fn ready_header(disk: &MemDisk) -> Option<ExtentHeader> {
    let (mut free, mut epoch, mut recycled_lsn) = (None, 0, 0);
    for extent in 0..32 {
        let block = disk.read(EXTENTS + extent * EXTENT, 4096).await.expect("a block");
        let Ok(header) = ExtentHeader::decode(&block) else { continue };
        epoch = epoch.max(header.id.epoch);
        recycled_lsn = recycled_lsn.max(header.recycled_lsn);
        if header.kind == ExtentKind::Free {
            free = Some(header.id);
        }
    }
    assert!(recycled_lsn > 0, "what the log began with is gone");
    Some(ExtentHeader {
        id: ExtentId { epoch: epoch + 1, ..free? },
        kind: ExtentKind::Commit,
        base_lsn: recycled_lsn + 1,
        recycled_lsn,
        lineage: Default::default(),
    })
}

#[tokio::test]
async fn an_extent_made_ready_and_never_written_is_no_damage() {
    let disk = MemDisk::fixed(33 * EXTENT);
    format(&disk, EXTENT).await;
    let (mut saved, mut random) = (ModelState::default(), Random(7));
    // The log may have used each free extent again before the crash.
    let (content, header) = loop {
        let kv = Kv::open(&disk, saved, options()).await;
        churn(&kv, &mut random, 60, 80 * EXTENT).await;
        let content = kv.content();
        saved = kv.crash().await;
        if let Some(header) = ready_header(&disk).await {
            break (content, header);
        }
    };
    let at = EXTENTS + u64::from(header.id.extent) * EXTENT;
    disk.write(at, Bytes::copy_from_slice(&header.encode())).await.expect("a write");
    verified(&disk).await;
    let kv = Kv::open(&disk, saved, options()).await;
    assert!(kv.report.damage.is_empty(), "{:?}", kv.report);
    assert_eq!(kv.content(), content);
    kv.crash().await;
}

#[tokio::test]
async fn an_extent_with_damage_is_kept_and_named() {
    let disk = MemDisk::fixed(33 * EXTENT);
    format(&disk, EXTENT).await;
    let mut quiet = options();
    quiet.compaction.enabled = false;
    let kv = Kv::open(&disk, ModelState::default(), quiet).await;
    for key in 0..60 {
        kv.put(key, key, 60_000).await.expect("there is room");
    }
    let first = kv.state().entries.values().next().cloned().expect("there is one");
    for key in 1..60 {
        kv.put(key, 100 + key, 1000).await.expect("there is room");
    }
    kv.save().await;
    let saved = kv.crash().await;
    let info = first.location();
    disk.flip(EXTENTS + u64::from(info.extent) * EXTENT + u64::from(info.offset) + 30_000, 1);
    let kv = Kv::open(&disk, saved, options()).await;
    kv.save().await;
    let mut waits = 0u32;
    while kv.log.status().compaction.stuck.is_empty() {
        waits += 1;
        assert!(waits < 5000, "{:#?}", kv.log.status());
        Env::tokio().sleep(Duration::from_millis(1)).await;
    }
    let stuck = kv.log.status().compaction.stuck;
    assert_eq!((stuck.len(), stuck[0].extent), (1, info.extent));
    assert!(matches!(kv.log.read(info, 0..info.body_len).await, Err(LogError::Damaged { .. })));
    kv.crash().await;
}

const EXTENTS: u64 = crate::format::EXTENTS_START;

#[tokio::test]
async fn the_scrub_verifies_all_that_is_sealed_and_names_what_is_damaged() {
    let disk = MemDisk::fixed(33 * EXTENT);
    format(&disk, EXTENT).await;
    let mut options = options();
    options.compaction.enabled = false;
    options.scrub.interval = Duration::from_millis(1);
    options.scrub.bytes_s = 0;
    let kv = Kv::open(&disk, ModelState::default(), options).await;
    for key in 0..60 {
        kv.put(key, key, 60_000).await.expect("there is room");
    }
    let passed = |n: u64| {
        let log = kv.log.clone();
        async move {
            let begun = log.status().scrub.passes;
            while log.status().scrub.passes < begun + n {
                Env::tokio().sleep(Duration::from_millis(1)).await;
            }
            log.status().scrub
        }
    };
    let clean = passed(2).await;
    assert_eq!((clean.damaged, clean.healed), (0, 0), "{clean:#?}");
    assert!(clean.extents_total >= 3 && clean.records > 0, "{clean:#?}");
    let at = kv.state().entries.get(&3).map(|e| e.location()).expect("there");
    disk.flip(EXTENTS + u64::from(at.extent) * EXTENT + u64::from(at.offset) + 40_000, 4);
    let bad = passed(3).await;
    assert_eq!((bad.damaged, bad.damage.len()), (1, 1), "counted once, whatever the number of passes: {bad:#?}");
    assert_eq!((bad.damage[0].extent, bad.damage[0].heads.len()), (at.extent, 1));
    assert_eq!(bad.damage[0].heads[0][1], 3, "the head names the key");
    kv.crash().await;
}
