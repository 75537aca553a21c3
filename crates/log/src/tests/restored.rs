//! Extents that the first copy of a disk has lost as a whole: restored from another copy, or
//! reported.

use std::sync::Arc;
use std::time::Duration;

use steadfast_disk::{BLOCK, Disk};

use super::harness::{Opened, body, format, open, open_with, options, record};
use super::twin::Twin;
use crate::format::{EXTENTS_START, ExtentHeader, ExtentKind, Features, FrameHeader, SUPERBLOCK_OFFSETS, Trailer};
use crate::{Durability, Location, LogError, LogOptions, Priority};

const EXTENT: u64 = 1 << 20;
const EXTENTS: u32 = 12;
const B: u64 = BLOCK as u64;

fn start(extent: u32) -> u64 {
    EXTENTS_START + u64::from(extent) * EXTENT
}

/// Records in several extents, and chunks; closed, or as a crash leaves it. Returns the last LSN
/// and the locations of the chunks.
async fn filled(closed: bool) -> (Twin, u64, Vec<Location>) {
    let disk = Twin::new(start(EXTENTS));
    format(&disk, EXTENT).await;
    let opened = open(&disk).await;
    let mut chunks = Vec::new();
    for n in 0..9 {
        let room = opened.log.reserve(150_000, Priority::Write, Duration::from_secs(10)).await.expect("room");
        let mut chunk = opened.log.chunk(150_000).await.expect("a chunk");
        chunk.put(&body(n, 150_000));
        chunks.push(opened.log.write_chunk(&room, "whose".into(), chunk).await.expect("written"));
    }
    let mut last = 0;
    for n in 0..24 {
        last = opened.put(n, 100_000).await;
    }
    opened.submit(vec![record(99, 10)], Durability::Sync).await.expect("accepted").await.expect("commits");
    last += 1;
    if closed {
        opened.log.close().await.expect("closes");
    }
    (disk, last, chunks)
}

async fn zero(disk: &Twin, copy: usize, at: u64, len: u64) {
    disk.copies[copy].write(at, vec![0; len as usize].into()).await.expect("writes");
}

async fn header(disk: &Twin, extent: u32) -> Option<ExtentHeader> {
    ExtentHeader::decode(&disk.copies[1].read(start(extent), BLOCK).await.expect("reads")).ok()
}

async fn sealed(disk: &Twin, extent: u32) -> bool {
    let last = disk.copies[1].read(start(extent) + EXTENT - B, BLOCK).await.expect("reads");
    Trailer::decode(&last, EXTENT).is_ok_and(|trailer| trailer.id.extent == extent)
}

async fn newest(disk: &Twin) -> u32 {
    let mut newest = (0, 0);
    for extent in 0..EXTENTS {
        let header = header(disk, extent).await.filter(|header| header.kind == ExtentKind::Commit);
        newest = newest.max(header.map_or((0, 0), |header| (header.id.epoch, extent)));
    }
    newest.1
}

async fn assert_all_present(opened: &Opened, last: u64, chunks: &[Location], what: &str) {
    let report = &opened.report;
    assert_eq!(opened.lsns(), (1..=last).collect::<Vec<_>>(), "{what}: {report:?}");
    assert!(!report.read_only && report.damage.is_empty() && report.lost.is_empty(), "{what}: {report:?}");
    assert_eq!(opened.check_all().await as u64, last, "{what}");
    for (n, at) in chunks.iter().enumerate() {
        let read = opened.log.read(*at, 0..150_000).await;
        assert_eq!(read.expect("reads"), body(n as u64, 150_000), "{what}: chunk {n}");
    }
}

#[tokio::test]
async fn an_extent_that_the_first_copy_lost_is_given_back_by_the_second() {
    for closed in [true, false] {
        let (disk, last, chunks) = filled(closed).await;
        let (mut commits, mut bodies) = (0, 0);
        for extent in 0..EXTENTS {
            let Some(kind) = header(&disk, extent).await.map(|header| header.kind) else { continue };
            let hurt = disk.fork().await;
            zero(&hurt, 0, start(extent), EXTENT).await;
            let what = format!("closed {closed}, extent {extent} of {kind:?}");
            let opened = open(&hurt).await;
            if kind == ExtentKind::Commit && !sealed(&disk, extent).await {
                // Its end may be missing on the other copy too.
                let report = &opened.report;
                assert!(report.read_only && report.doubt.is_some() && report.lost.len() == 1, "{what}: {report:?}");
                continue;
            }
            assert_all_present(&opened, last, &chunks, &what).await;
            let reported = opened.report.healed.iter().any(|h| h.extent == Some(extent) && h.offset == 0);
            assert!(reported || kind == ExtentKind::Free, "{what}: {:?}", opened.report);
            drop(opened);
            // The first copy is complete again.
            hurt.absent(0, start(EXTENTS));
            assert_all_present(&open(&hurt).await, last, &chunks, &format!("{what}, again")).await;
            commits += u32::from(kind == ExtentKind::Commit);
            bodies += u32::from(kind == ExtentKind::Body);
        }
        assert!(commits >= 2 + u32::from(closed) && bodies >= 2, "{commits} {bodies}");
    }
}

#[tokio::test]
async fn opened_for_reading_the_log_has_all_and_writes_nothing() {
    for closed in [true, false] {
        let (disk, last, chunks) = filled(closed).await;
        // A start that takes writes would rewrite it.
        disk.copies.iter().for_each(|copy| copy.flip(SUPERBLOCK_OFFSETS[1] + 40, 1));
        let writes = |disk: &Twin| disk.copies.iter().map(|copy| copy.stats().writes).sum::<u64>();
        let before = writes(&disk);
        let reading = LogOptions { for_reading: true, features: Features::KNOWN, ..options() };
        let opened = open_with(Arc::new(disk.clone()), 0, reading).await;
        assert_eq!(opened.lsns(), (1..=last).collect::<Vec<_>>());
        assert_eq!(opened.check_all().await as u64, last);
        for (n, at) in chunks.iter().enumerate() {
            assert_eq!(opened.log.read(*at, 0..150_000).await.expect("reads"), body(n as u64, 150_000));
        }
        let refused = opened.submit(vec![record(100, 10)], Durability::Sync).await.map(drop);
        assert!(matches!(refused, Err(LogError::OpenedForReading)), "{refused:?}");
        opened.log.close().await.expect("closes");
        assert_eq!(writes(&disk), before);
        // The next start takes writes, and has all.
        assert_eq!(open(&disk).await.lsns(), (1..=last).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_copy_that_may_have_lost_its_end_does_not_stand_in() {
    type Damage = fn(&Twin, u64);
    let trailer = |at: u64| at + EXTENT - B;
    for closed in [true, false] {
        let (disk, last, _) = filled(closed).await;
        let newest = newest(&disk).await;
        // Without the trailer, or without any block of an extent that never had one, the end may be
        // gone.
        let flip: Damage = |disk, at| disk.flip(1, at + 40);
        let unreadable: Damage = |disk, at| disk.unreadable(1, at);
        let absent: Damage = |disk, at| disk.absent(at, B);
        let at = if closed { trailer(start(newest)) } else { start(newest) + EXTENT / 2 };
        let damages: &[Damage] = if closed { &[flip, unreadable, absent] } else { &[unreadable, absent] };
        for damage in damages {
            let hurt = disk.fork().await;
            damage(&hurt, at);
            zero(&hurt, 0, start(newest), EXTENT).await;
            for _ in 0..2 {
                let opened = open(&hurt).await;
                let report = &opened.report;
                assert!(report.read_only && report.doubt.is_some() && report.lost.len() == 1, "{closed} {report:?}");
                assert_eq!(report.healed_total, 0, "{report:?}");
                assert!(opened.lsns().len() < last as usize);
            }
        }
    }
}

#[tokio::test]
async fn an_end_that_was_filled_with_the_zeros_of_the_first_copy_is_missed() {
    let (disk, last, _) = filled(false).await;
    let newest = newest(&disk).await;
    // The second copy lacked everything behind the first frame when the first copy lost it, and was
    // filled from there since.
    for copy in 0..2 {
        let from = if copy == 0 { 0 } else { first_frame_end(&disk, newest).await };
        zero(&disk, copy, start(newest) + from, EXTENT - from).await;
    }
    for _ in 0..3 {
        let opened = open(&disk).await;
        let report = &opened.report;
        assert!(opened.lsns().len() < last as usize);
        assert!(report.read_only && report.doubt.is_some() && report.lost.len() == 1, "{report:?}");
    }
}

/// Offset of the end of an extent's first frame.
async fn first_frame_end(disk: &Twin, extent: u32) -> u64 {
    let block = disk.copies[1].read(start(extent) + B, BLOCK).await.expect("reads");
    let (frame, _) = FrameHeader::decode(&block).expect("a frame");
    B + frame.total_len()
}

#[tokio::test]
async fn a_copy_that_goes_while_an_extent_is_taken_from_it_is_missed() {
    for closed in [true, false] {
        let (disk, last, chunks) = filled(closed).await;
        for extent in 0..EXTENTS {
            if header(&disk, extent).await.is_none_or(|header| header.kind == ExtentKind::Free) {
                continue;
            }
            for reads in (0..).step_by(3) {
                let hurt = disk.fork().await;
                zero(&hurt, 0, start(extent), EXTENT).await;
                hurt.gone_after(reads);
                let opened = open(&hurt).await;
                let report = &opened.report;
                let reported = report.read_only || !report.lost.is_empty() || !report.damage.is_empty();
                let what = format!("closed {closed}, extent {extent}, {reads} reads: {report:?}");
                // All records are known, if not readable, or the loss is reported.
                assert!(reported || opened.lsns().len() as u64 == last, "{what}");
                if !hurt.is_gone() {
                    break;
                }
                for (n, at) in chunks.iter().enumerate() {
                    let read = opened.log.read(*at, 0..150_000).await;
                    assert!(read.is_err() || read.is_ok_and(|bytes| bytes == body(n as u64, 150_000)), "{what}");
                }
            }
        }
    }
}

#[tokio::test]
async fn an_extent_that_was_recycled_and_then_lost_is_no_loss() {
    let (disk, ..) = filled(true).await;
    let opened = open(&disk).await;
    let extent = opened.log.shared.extents.all().iter().find(|slot| slot.kind == ExtentKind::Body).expect("one").extent;
    let epoch = opened.log.shared.extents.all()[extent as usize].epoch;
    assert!(opened.log.shared.extents.recycle(extent, epoch, false).await.expect("recycled"));
    opened.log.close().await.expect("closes");
    zero(&disk, 0, start(extent), EXTENT).await;
    let opened = open(&disk).await;
    assert!(opened.report.lost.is_empty() && !opened.report.read_only, "{:?}", opened.report);
}

#[tokio::test]
async fn an_earlier_use_does_not_stand_in() {
    let (disk, ..) = filled(true).await;
    let opened = open(&disk).await;
    let (extent, epoch) = (0, opened.log.shared.extents.all()[0].epoch);
    let before = disk.copies[1].read(start(extent), EXTENT as usize).await.expect("reads");
    opened.log.shared.extents.recycle(extent, epoch, false).await.expect("recycled");
    while opened.log.shared.extents.all()[0].epoch == epoch
        || header(&disk, extent).await.expect("one").kind == ExtentKind::Free
    {
        opened.put(100, 200_000).await;
    }
    opened.log.close().await.expect("closes");
    zero(&disk, 0, start(extent), EXTENT).await;
    disk.copies[1].write(start(extent), before).await.expect("writes");
    let opened = open(&disk).await;
    assert_eq!(opened.report.lost.iter().map(|lost| lost.extent).collect::<Vec<_>>(), [extent]);
    assert_ne!(opened.report.lost[0].epoch, epoch);
}

#[tokio::test]
async fn a_look_at_a_disk_reads_what_only_the_second_copy_has() {
    for closed in [true, false] {
        let (disk, last, _) = filled(closed).await;
        for extent in 0..EXTENTS {
            zero(&disk, 0, start(extent), EXTENT).await;
        }
        let mut heads = 0;
        let disk: Arc<dyn Disk> = Arc::new(disk);
        let any = crate::peek(&disk, |_| {
            heads += 1;
            true
        });
        assert!(any.await.expect("a pool"));
        assert_eq!(heads, last);
    }
}
