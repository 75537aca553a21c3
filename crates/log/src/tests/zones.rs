//! The log on sequential zones: no device would refuse its writes, and nothing is lost.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use steadfast_disk::{BLOCK, Disk, MemDisk, ZoneState, Zoned, ZonedOptions};
use steadfast_flow::Env;

use super::harness::{Opened, body, open_at, open_with, options};
use crate::format::{Features, Superblock, TRAILER_PLACES, Zoning};
use crate::{Durability, FormatOptions, Location, Log, LogError, LogOptions, Priority, Sabotage, verify};

const KIB: u64 = 1 << 10;
const ZONE: u64 = 256 * KIB;
/// Extents of a whole zone, behind 1 MiB of conventional space, with as few open zones as the log
/// needs.
const CONVENTIONAL: ZonedOptions =
    ZonedOptions { zone_bytes: ZONE, zone_capacity_bytes: 0, conventional_bytes: 1 << 20, open_zones_max: 5 };
/// Sequential zones only, of which a part cannot be written.
const SEQUENTIAL: ZonedOptions =
    ZonedOptions { zone_bytes: ZONE + 64 * KIB, zone_capacity_bytes: ZONE, conventional_bytes: 0, open_zones_max: 7 };

/// A disk of that many zones, with space for the table of write pointers.
fn below(zones: ZonedOptions, count: u64) -> MemDisk {
    MemDisk::fixed(zones.conventional_bytes + count * zones.zone_bytes + 8 * KIB)
}

async fn zoned(below: &MemDisk, zones: ZonedOptions) -> Arc<Zoned> {
    Zoned::open(Arc::new(below.clone()), zones).await.expect("zones")
}

async fn made(zones: ZonedOptions, count: u64) -> (MemDisk, Arc<Zoned>) {
    let below = below(zones, count);
    let disk = zoned(&below, zones).await;
    let as_disk: Arc<dyn Disk> = disk.clone();
    Log::format(&as_disk, &Env::tokio(), &FormatOptions::default()).await.expect("formats");
    (below, disk)
}

/// Chunks of many sizes, written concurrently.
async fn chunks(opened: &Opened, count: u64) -> Vec<(u64, Location)> {
    let one = async |n: u64| {
        let len = 1 + (n as usize * 7919) % (48 << 10);
        let room = opened.log.reserve(len as u64, Priority::Write, Duration::from_secs(10)).await.expect("room");
        let mut chunk = opened.log.chunk(len).await.expect("memory");
        chunk.put(&body(n, len));
        let head = n.to_le_bytes().to_vec().into();
        (n, opened.log.write_chunk(&room, head, chunk).await.expect("written"))
    };
    join_all((0..count).map(one)).await
}

async fn check_chunks(opened: &Opened, chunks: &[(u64, Location)]) {
    for (n, location) in chunks {
        let got = opened.log.read(*location, 0..location.body_len).await.expect("reads");
        assert_eq!(got, body(*n, location.body_len as usize));
    }
}

#[tokio::test]
async fn records_and_chunks_keep_to_the_rules_and_come_back() {
    for zones in [CONVENTIONAL, SEQUENTIAL] {
        let (below, disk) = made(zones, 40).await;
        let opened = open_at(disk.clone(), 0).await;
        for n in 0..150 {
            opened.put(n, (n as usize * 977) % 9_000).await;
        }
        let kept = chunks(&opened, 60).await;
        let status = opened.log.status().zones;
        assert_eq!((status.open_zones, status.emulated), (disk.open_zones(), false));
        assert!(status.open_zones <= zones.open_zones_max);
        opened.log.close().await.expect("closes");
        check_chunks(&opened, &kept).await;
        assert_eq!(disk.refused(), 0);
        // The superblocks' zones stay open; all others have been finished.
        assert_eq!(disk.open_zones(), if zones.conventional_bytes == 0 { 2 } else { 0 });
        let dynamic: Arc<dyn Disk> = disk.clone();
        let report = verify(&dynamic, |_, _| ()).await.expect("verifies");
        assert!(report.is_clean() && report.extents.commit_open + report.extents.body_open == 0, "{report:?}");
        // A later start, after a power-off.
        let disk = zoned(&below, zones).await;
        let opened = open_at(disk.clone(), 0).await;
        assert_eq!((opened.check_all().await, opened.report.read_only), (150, false));
        assert!(opened.report.damage.is_empty() && opened.report.extents_scanned == 0, "{:?}", opened.report);
        check_chunks(&opened, &kept).await;
        assert_eq!(disk.refused(), 0);
    }
}

#[tokio::test]
async fn a_log_that_was_not_closed_is_recovered_and_its_zones_are_closed() {
    for zones in [CONVENTIONAL, SEQUENTIAL] {
        let (below, disk) = made(zones, 60).await;
        let mut all = 0;
        for life in 0..12 {
            let disk = if life == 0 { disk.clone() } else { zoned(&below, zones).await };
            let opened = open_at(disk.clone(), 0).await;
            assert_eq!(opened.check_all().await, all, "life {life}");
            assert!(opened.report.damage.is_empty() && !opened.report.read_only, "{:?}", opened.report);
            for n in 0..20 {
                opened.put(1000 * life + n, 3_000).await;
            }
            chunks(&opened, 5).await;
            all += 20;
            assert_eq!(disk.refused(), 0, "life {life}");
            // Not closed: only flushed data is certain.
            below.clone().flush().await.expect("flush");
            std::mem::forget(opened);
        }
    }
}

#[tokio::test]
async fn a_zone_that_cannot_be_sealed_any_more_is_read_frame_by_frame() {
    let (below, disk) = made(CONVENTIONAL, 20).await;
    let opened = open_at(disk.clone(), 0).await;
    for n in 0..10 {
        opened.put(n, 2_000).await;
    }
    let extent = opened.memory.records.lock()[0].location.extent;
    std::mem::forget(opened);
    // As after a start that was interrupted during sealing: no space for a footer.
    let start = (1 << 20) + u64::from(extent) * ZONE;
    let disk2 = zoned(&below, CONVENTIONAL).await;
    disk2.finish_zone(start).await.expect("finishes");
    for life in 0..3 {
        let disk = zoned(&below, CONVENTIONAL).await;
        let opened = open_at(disk.clone(), 0).await;
        assert_eq!(opened.check_all().await, 10 + life);
        assert!(opened.report.damage.is_empty() && opened.report.extents_scanned > 0, "{:?}", opened.report);
        opened.put(100 + life as u64, 100).await;
        opened.log.close().await.expect("closes");
        assert_eq!(disk.refused(), 0);
    }
}

/// Each start takes epochs that no start before it took, and records them in the superblocks, even
/// when the zones of those are full.
#[tokio::test]
async fn epochs_are_not_used_twice_though_zones_are_reset() {
    let (below, _) = made(SEQUENTIAL, 40).await;
    let mut last = 0;
    for life in 0..150 {
        let disk = zoned(&below, SEQUENTIAL).await;
        let opened = open_at(disk.clone(), 0).await;
        if life % 10 == 0 {
            assert!(opened.report.damage.is_empty(), "{:?}", opened.report);
            opened.put(life, 10).await;
        }
        let epoch = opened.log.usage().iter().map(|extent| extent.epoch).max().expect("an open extent");
        assert!(epoch > last, "life {life}: epoch {epoch} after {last}");
        last = epoch;
        opened.log.close().await.expect("closes");
        assert_eq!(disk.refused(), 0);
    }
    let info = opened_info(&below).await;
    assert!(info > 150, "superblocks were written {info} times");
}

/// The opposite: without the ledger epochs are reused, and the test above would fail.
#[tokio::test]
async fn without_the_ledger_epochs_would_be_used_twice() {
    let (below, _) = made(CONVENTIONAL, 20).await;
    let mut epochs = Vec::new();
    for _ in 0..2 {
        let log = LogOptions { sabotage: Sabotage::ZoneLedger, ..options() };
        let opened = open_with(zoned(&below, CONVENTIONAL).await, 0, log).await;
        epochs.push(opened.log.usage().iter().map(|extent| extent.epoch).max());
        std::mem::forget(opened);
        // The zone is reset, as it is when its extent is recycled.
        zoned(&below, CONVENTIONAL).await.reset_zone(1 << 20).await.expect("reset");
    }
    assert_eq!(epochs[0], epochs[1]);
}

async fn opened_info(below: &MemDisk) -> u64 {
    let opened = open_at(zoned(below, SEQUENTIAL).await, 0).await;
    let status = opened.log.status();
    opened.log.close().await.expect("closes");
    status.zones.superblocks_written
}

#[tokio::test]
async fn one_superblock_zone_is_enough() {
    let (below, disk) = made(SEQUENTIAL, 16).await;
    let opened = open_at(disk, 0).await;
    opened.put(1, 100).await;
    opened.log.close().await.expect("closes");
    // All data of the first extent.
    for block in 0..8 {
        below.flip(block * BLOCK as u64 + 20, 3);
    }
    // The first bytes of the disk are damaged. Only a reader that knows the zones finds the second
    // copy.
    let disk = zoned(&below, SEQUENTIAL).await;
    let opened = open_at(disk.clone(), 0).await;
    assert_eq!(opened.check_all().await, 1);
    assert_eq!(opened.report.damage.len(), 1, "{:?}", opened.report);
    opened.put(2, 100).await;
    opened.log.close().await.expect("closes");
    let opened = open_at(zoned(&below, SEQUENTIAL).await, 0).await;
    assert!(opened.report.damage.is_empty(), "{:?}", opened.report);
}

#[tokio::test]
async fn a_pool_can_be_made_as_if_on_zones() {
    let below = below(CONVENTIONAL, 20);
    let disk: Arc<dyn Disk> = Arc::new(below.clone());
    let format = FormatOptions { zones: Some(CONVENTIONAL), ..FormatOptions::default() };
    Log::format(&disk, &Env::tokio(), &format).await.expect("formats");
    let opened = open_at(disk.clone(), 0).await;
    opened.put(1, 5_000).await;
    let status = opened.log.status();
    assert_eq!((status.extent_bytes, status.zones.emulated), (ZONE, true));
    opened.log.close().await.expect("closes");
    assert!(verify(&disk, |_, _| ()).await.expect("verifies").is_clean());
    let opened = open_at(disk, 0).await;
    assert_eq!(opened.check_all().await, 1);
}

async fn refusal(zones: ZonedOptions, options: FormatOptions) -> String {
    let disk: Arc<dyn Disk> = zoned(&below(zones, 20), zones).await;
    match Log::format(&disk, &Env::tokio(), &options).await {
        Err(LogError::Open(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn zones_that_the_log_cannot_use_are_refused() {
    let plain = FormatOptions::default;
    let why = refusal(ZonedOptions { open_zones_max: 4, ..CONVENTIONAL }, plain()).await;
    assert!(why.contains("only 4 zones") && why.contains("needs 5"), "{why}");
    let why = refusal(ZonedOptions { open_zones_max: 6, ..SEQUENTIAL }, plain()).await;
    assert!(why.contains("needs 7"), "{why}");
    let why = refusal(ZonedOptions { conventional_bytes: 64 * KIB, ..CONVENTIONAL }, plain()).await;
    assert!(why.contains("at least 1048576"), "{why}");
    let why = refusal(CONVENTIONAL, FormatOptions { extent_bytes: Some(1 << 20), ..plain() }).await;
    assert!(why.contains("an extent is a zone"), "{why}");
    let why = refusal(CONVENTIONAL, FormatOptions { zones: Some(CONVENTIONAL), ..plain() }).await;
    assert!(why.contains("zoned device"), "{why}");
}

#[tokio::test]
async fn a_pool_and_its_disk_agree_on_zones_or_are_not_opened() {
    let (below, _) = made(CONVENTIONAL, 20).await;
    let open = async |disk: Arc<dyn Disk>| {
        let applier = Arc::new(super::harness::Memory::default());
        match Log::open(disk, Env::tokio(), options(), applier).await {
            Err(LogError::Open(why)) => why,
            _ => panic!("opened"),
        }
    };
    let why = open(Arc::new(below.clone())).await;
    assert!(why.contains("formatted for zones of 262144 bytes"), "{why}");
    let why = open(zoned(&below, ZonedOptions { zone_bytes: 2 * ZONE, ..CONVENTIONAL }).await).await;
    assert!(why.contains("formatted for zones of 262144 bytes"), "{why}");
}

/// The wrapper refuses writes that break the rules, and the log stops.
#[tokio::test]
async fn a_log_that_breaks_the_rules_is_caught() {
    for sabotage in [Sabotage::ZoneFinish] {
        let (_, disk) = made(CONVENTIONAL, 100).await;
        let log = LogOptions { sabotage, ..options() };
        let opened = open_with(disk.clone(), 0, log).await;
        let one = async |n: u64| {
            let len = 1 + (n as usize * 7919) % (48 << 10);
            let room = opened.log.reserve(len as u64, Priority::Write, Duration::from_millis(100)).await?;
            let mut chunk = opened.log.chunk(len).await?;
            chunk.put(&body(n, len));
            opened.log.write_chunk(&room, n.to_le_bytes().to_vec().into(), chunk).await
        };
        let mut refused = false;
        for round in 0..40 {
            if !refused {
                refused = join_all((0..16).map(|n| one(round * 16 + n))).await.iter().any(Result::is_err);
            }
        }
        assert!(refused && disk.refused() > 0, "{sabotage:?}");
    }
}

#[tokio::test]
async fn nothing_of_another_pool_is_left_open() {
    let (below, disk) = made(CONVENTIONAL, 20).await;
    let opened = open_at(disk.clone(), 0).await;
    opened.put(1, 10).await;
    assert!(disk.open_zones() > 0);
    std::mem::forget(opened);
    let disk = zoned(&below, CONVENTIONAL).await;
    let as_disk: Arc<dyn Disk> = disk.clone();
    let force = FormatOptions { force: true, ..FormatOptions::default() };
    Log::format(&as_disk, &Env::tokio(), &force).await.expect("formats");
    assert_eq!(disk.open_zones(), 0);
    let opened = open_at(disk.clone(), 0).await;
    assert_eq!(opened.memory.records.lock().len(), 0);
    opened
        .submit(vec![super::harness::record(7, 100)], Durability::Sync)
        .await
        .expect("accepted")
        .await
        .expect("commits");
    assert_eq!(disk.zone(1 << 20).expect("a zone").state, ZoneState::Open);
}

#[test]
fn trailers_lie_close_behind_footers_and_can_be_found() {
    let zones =
        Zoning { begin: 1 << 20, zone_bytes: 1 << 28, conventional_bytes: 1 << 20, open_zones_max: 0, emulated: false };
    for extent_bytes in [256 * KIB, 300 * KIB, 1 << 20, 1077 << 20, 1 << 31] {
        let sb =
            Superblock { pool: [1; 16], extent_bytes, created_ms: 0, zones: Some(zones), features: Features::NONE };
        let places: Vec<u64> = sb.trailer_places().collect();
        let last = extent_bytes - BLOCK as u64;
        assert_eq!((places.len() as u64, places[0]), (TRAILER_PLACES, last));
        assert!(places.is_sorted_by(|a, b| a > b) && places.iter().all(|p| p.is_multiple_of(BLOCK as u64)));
        for end in [BLOCK as u64, extent_bytes / 3 / 4096 * 4096, last] {
            let at = sb.trailer_after(end);
            assert!(at >= end && at - end <= extent_bytes / TRAILER_PLACES + BLOCK as u64 && places.contains(&at));
        }
        let plain = Superblock { zones: None, ..sb };
        assert_eq!((plain.trailer_after(BLOCK as u64), plain.trailer_places().count()), (last, 1));
    }
}
