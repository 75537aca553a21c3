//! Commit, read, close, open again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use steadfast_disk::{BLOCK, Disk, MemDisk};
use steadfast_flow::Env;

use super::harness::{Memory, body, format, open, record};
use crate::format::{Features, SUPERBLOCK_OFFSETS, Superblock};
use crate::read::read_record;
use crate::{Durability, Log, LogError, LogOptions, Priority, RecordFront};

#[tokio::test]
async fn what_was_committed_is_there_after_a_crash_and_after_a_clean_stop() {
    let disk = MemDisk::fixed(40 << 20);
    format(&disk, 1 << 20).await;
    let first = open(&disk).await;
    for n in 0..20 {
        assert_eq!(first.put(n, 4096).await, n + 1);
    }
    assert_eq!(first.check_all().await, 20);
    // Not closed: as after a crash.
    let second = open(&disk).await;
    assert_eq!(second.check_all().await, 20);
    assert!(second.report.damage.is_empty() && second.report.cut.is_empty(), "{:?}", second.report);
    second.put(20, 10).await;
    second.log.close().await.expect("closes");
    let third = open(&disk).await;
    assert_eq!(third.check_all().await, 21);
    assert_eq!((third.report.extents_scanned, third.report.footers_read), (0, 2));
    assert!(third.report.damage.is_empty() && third.report.cut.is_empty(), "{:?}", third.report);
}

#[tokio::test]
async fn records_read_whole_hold_no_memory_of_the_disk() {
    let disk = MemDisk::fixed(40 << 20);
    format(&disk, 1 << 20).await;
    let opened = open(&disk.clone().with_read_memory(16 * BLOCK)).await;
    opened
        .submit((0..100).map(|n| record(n, 1)).collect(), Durability::Sync)
        .await
        .expect("room")
        .await
        .expect("commits");
    let records = opened.memory.records.lock().clone();
    let read_all = async {
        let mut read = Vec::new();
        for record in &records {
            read.push(read_record(&opened.log.shared, record.location).await.expect("read"));
        }
        read
    };
    // Together they take more blocks than there is memory for.
    let read = Env::tokio().timeout(Duration::from_secs(60), read_all).await.expect("in time");
    assert!(read.iter().zip(&records).all(|(read, record)| read.head == record.head && read.body.len() == 1));
}

#[tokio::test]
async fn many_extents_are_sealed_and_come_back_from_their_footers() {
    let disk = MemDisk::growable(64 << 20);
    format(&disk, 1 << 20).await;
    let first = open(&disk).await;
    for n in 0..200u64 {
        let batch = (0..4).map(|i| record(n * 4 + i, 8000)).collect();
        let done = first.submit(batch, Durability::Sync).await.expect("accepted").await.expect("commits");
        assert!(done.durable);
    }
    let counts = first.log.status().extents;
    assert!(counts.sealed_commit >= 5, "{counts:?}");
    assert_eq!(first.check_all().await, 800);
    let second = open(&disk).await;
    assert_eq!(second.check_all().await, 800);
    assert!(second.report.footers_read >= 5, "{:?}", second.report);
    assert!(second.report.damage.is_empty() && second.report.cut.is_empty(), "{:?}", second.report);
    assert_eq!(second.lsns(), (1..=800).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_clean_stop_leaves_nothing_to_scan() {
    let disk = MemDisk::fixed(40 << 20);
    format(&disk, 1 << 20).await;
    let first = open(&disk).await;
    // More than half an extent: the next one has been prepared.
    for n in 0..80 {
        first.put(n, 8000).await;
    }
    assert_eq!(first.log.status().extents.open_commit, 2);
    first.log.close().await.expect("closes");
    assert!(matches!(first.submit(vec![record(1, 1)], Durability::Sync).await, Err(LogError::Closed)));
    let second = open(&disk).await;
    assert_eq!((second.report.extents_scanned, second.report.footers_read), (0, 1));
    assert_eq!(second.check_all().await, 80);
    assert_eq!(second.log.status().extents.sealed_commit, 1);
}

#[tokio::test]
async fn replay_begins_after_the_checkpoint() {
    let disk = MemDisk::fixed(40 << 20);
    format(&disk, 1 << 20).await;
    let first = open(&disk).await;
    for n in 0..300 {
        first.put(n, 8000).await;
    }
    let second = super::harness::open_at(std::sync::Arc::new(disk.clone()), 250).await;
    assert_eq!(second.lsns(), (251..=300).collect::<Vec<_>>());
    second.check_all().await;
    assert_eq!(second.put(300, 5).await, 301);
}

#[tokio::test]
async fn chunks_read_back_whole_and_in_ranges() {
    let disk = MemDisk::fixed(64 << 20);
    format(&disk, 4 << 20).await;
    let opened = open(&disk).await;
    let wait = Duration::from_secs(1);
    let mut places = Vec::new();
    for n in 0..12u64 {
        let len = 1_000_000 - 70_000 * n as usize;
        let data = body(n, len);
        let room = opened.log.reserve(1 << 20, Priority::Write, wait).await.expect("room");
        let mut chunk = opened.log.chunk(1 << 20).await.expect("memory");
        assert_eq!((chunk.put(&data[..1000]), chunk.put(&data[1000..])), (1000, len - 1000));
        let place = opened.log.write_chunk(&room, Bytes::from(format!("head {n}")), chunk).await.expect("writes");
        places.push((place, data));
    }
    assert_eq!(opened.log.status().pending_bytes, 0);
    let reads = || disk.stats().reads;
    for (place, data) in &places {
        let len = data.len() as u32;
        let (front, mut parts) = (RecordFront::default(), Vec::new());
        for start in (0..len).step_by(200_000) {
            let before = reads();
            let part = opened.log.read_of(*place, start..len.min(start + 200_000), &|_| true, &front).await;
            parts.push(part.expect("reads"));
            assert_eq!(reads() - before, 1, "{start} of {len}: the first read brought the front");
        }
        assert_eq!(parts.concat(), data[..]);
        // Large or small, they hold no memory of the disk.
        assert_eq!(disk.buffers_for_reads().used_bytes(), 0);
        for range in [0..len, 0..1, len - 1..len, 65_535..65_537, 100_000..200_000, 65_536..131_072, 5..5] {
            let got = opened.log.read(*place, range.clone()).await.expect("reads");
            assert_eq!(got, data.slice(range.start as usize..range.end as usize));
        }
    }
    assert!(opened.log.read(places[0].0, 0..u32::MAX).await.is_err());
    // The front of another record does not count.
    let front = RecordFront::default();
    for (place, data) in &places[..2] {
        let got = opened.log.read_of(*place, 300_000..400_000, &|_| true, &front).await.expect("reads");
        assert_eq!(got, data.slice(300_000..400_000));
    }
    opened.put(1, 1).await;
    let again = open(&disk).await;
    for (place, data) in &places {
        assert_eq!(again.log.read(*place, 0..place.body_len).await.expect("reads"), data);
    }
}

#[tokio::test]
async fn a_pool_is_not_formatted_over_and_other_contents_are_not_opened() {
    let disk = MemDisk::fixed(40 << 20);
    let memory = std::sync::Arc::new(super::harness::Memory::default());
    let env = steadfast_flow::Env::tokio();
    let any: std::sync::Arc<dyn steadfast_disk::Disk> = std::sync::Arc::new(disk.clone());
    let refused = crate::Log::open(any.clone(), env.clone(), crate::LogOptions::default(), memory.clone()).await;
    assert!(matches!(refused, Err(LogError::Open(_))));
    format(&disk, 1 << 20).await;
    let refused = crate::Log::format(&any, &env, &crate::FormatOptions::default()).await;
    assert!(matches!(refused, Err(LogError::Open(why)) if why.contains("a pool")));
    disk.flip(3, 1);
    let opened = open(&disk).await;
    assert_eq!(opened.report.damage.len(), 1);
    let healed = open(&disk).await;
    assert!(healed.report.damage.is_empty());
    disk.flip(3, 1);
    disk.flip((512 << 10) + 20, 1);
    assert!(crate::Log::open(any, env, crate::LogOptions::default(), memory).await.is_err());
}

#[tokio::test]
async fn features_are_in_both_superblocks_before_anything_else_and_keep_builds_from_writing() {
    let disk = MemDisk::fixed(40 << 20);
    format(&disk, 1 << 20).await;
    open(&disk).await.put(0, 4096).await;
    let read = async |offset| {
        Superblock::decode(&disk.clone().read(offset, 4096).await.expect("read")).expect("a superblock").features
    };
    let wanted = Features { compatible: 4, ..Features::NONE };
    for features in [wanted, Features::NONE] {
        let options = LogOptions { features, ..super::harness::options() };
        let (log, _) =
            Log::open(Arc::new(disk.clone()), Env::tokio(), options, Arc::new(Memory::default())).await.expect("opens");
        log.close().await.expect("closes");
        for offset in SUPERBLOCK_OFFSETS {
            assert_eq!(read(offset).await, wanted, "and they stay");
        }
    }
    // A feature that forbids other builds to write.
    let top: Arc<dyn Disk> = Arc::new(disk.clone());
    let (mut sb, ..) = crate::pool::read_superblock(&top).await.expect("read");
    sb.features.read_only = 1 << 7;
    for offset in SUPERBLOCK_OFFSETS {
        crate::pool::write_superblock(&top, &sb, offset).await.expect("written");
    }
    let opened = Log::open(top.clone(), Env::tokio(), super::harness::options(), Arc::new(Memory::default())).await;
    let error = opened.map(drop).expect_err("refused").to_string();
    assert!(error.contains("0x80") && error.contains("steadfast verify"), "{error}");
    let report = crate::verify(&top, |_, _| {}).await.expect("it can be read");
    assert!(report.damage.is_empty(), "{report:?}");
    sb.features.incompatible = 2;
    for offset in SUPERBLOCK_OFFSETS {
        crate::pool::write_superblock(&top, &sb, offset).await.expect("written");
    }
    for error in [
        Log::open(top.clone(), Env::tokio(), super::harness::options(), Arc::new(Memory::default())).await.map(drop),
        crate::verify(&top, |_, _| {}).await.map(drop),
    ] {
        let error = error.expect_err("refused").to_string();
        assert!(error.contains("0x2") && error.contains("newer build"), "{error}");
    }
}
