//! Lost extents: they read as zeros or as older data, or the disk ends before them.

use std::sync::Arc;

use steadfast_disk::{BLOCK, Disk, MemDisk};

use super::copies::{scrubbing, two_passes};
use super::crashes::copy_without;
use super::harness::{Opened, format, open, open_at, open_with, record};
use crate::extents::ExtentState;
use crate::format::{EXTENTS_START, ExtentHeader, ExtentKind};
use crate::{Durability, LogError, Priority, VerifyReport};

const EXTENT: u64 = 1 << 20;

async fn verify(disk: &MemDisk) -> VerifyReport {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    crate::verify(&disk, |_, _| {}).await.expect("a pool")
}

fn extent(n: u32) -> std::ops::Range<u64> {
    let start = EXTENTS_START + u64::from(n) * EXTENT;
    start..start + EXTENT
}

async fn header(disk: &MemDisk, n: u32) -> Option<ExtentHeader> {
    ExtentHeader::decode(&disk.read(extent(n).start, BLOCK).await.expect("reads")).ok()
}

/// A closed pool of 24 extents with records in several and chunks in some. Also returns the last
/// LSN.
async fn filled() -> (MemDisk, u64) {
    let disk = MemDisk::fixed(EXTENTS_START + 24 * EXTENT);
    format(&disk, EXTENT).await;
    let opened = open(&disk).await;
    let mut last = 0;
    for n in 0..40 {
        last = opened.put(n, 100_000).await;
    }
    for _ in 0..10 {
        chunk(&opened).await;
    }
    opened.log.close().await.expect("closes");
    (disk, last)
}

async fn chunk(opened: &Opened) {
    let len = 200_000;
    let room = opened.log.reserve(len as u64, Priority::Write, std::time::Duration::from_secs(10)).await.expect("room");
    let mut chunk = opened.log.chunk(len).await.expect("room");
    assert_eq!(chunk.put(&vec![7; len]), len);
    opened.log.write_chunk(&room, bytes::Bytes::from_static(b"someone"), chunk).await.expect("written");
}

#[tokio::test]
async fn each_lost_extent_is_found_with_and_without_an_index() {
    let (disk, last) = filled().await;
    assert!(verify(&disk).await.is_clean(), "{:?}", verify(&disk).await.damage);
    let (mut commits, mut bodies) = (0, 0);
    for n in 0..24 {
        let Some(kind) = header(&disk, n).await.map(|h| h.kind) else { continue };
        let hurt = copy_without(&disk, extent(n)).await;
        let verified = verify(&hurt).await;
        assert_eq!(verified.damage.iter().map(|d| d.extent).collect::<Vec<_>>(), [n], "{:?}", verified.damage);
        // Without an index: read-only if records are gone, whatever LSNs the others have.
        let second = open(&hurt).await;
        let empty = kind == ExtentKind::Commit && !second.report.read_only;
        assert!(!empty, "extent {n}");
        assert_eq!(second.report.lost.iter().map(|l| l.extent).collect::<Vec<_>>(), [n]);
        assert!(second.report.damage.iter().any(|d| d.extent == Some(n)), "{:?}", second.report.damage);
        assert_eq!(second.report.doubt.is_some(), kind == ExtentKind::Commit);
        assert_eq!(second.log.status().extents.lost, 1);
        drop(second);
        // With a complete index: the rest continues, each start reports the loss, and reads of lost
        // data fail as damaged.
        let hurt = copy_without(&disk, extent(n)).await;
        for _ in 0..2 {
            let second = open_at(Arc::new(hurt.clone()), last).await;
            assert_eq!(second.report.lost.len(), 1);
            let epoch = second.report.lost[0].epoch;
            let location = crate::Location { extent: n, epoch, offset: BLOCK as u32, head_len: 8, body_len: 100 };
            let read = second.log.read(location, 0..100).await;
            assert!(matches!(read, Err(LogError::Damaged { .. })), "{read:?}");
            assert!(second.log.status().read_damage > 0);
            if !second.report.read_only {
                second.put(1000, 50_000).await;
                second.log.close().await.expect("closes");
            }
        }
        match kind {
            ExtentKind::Commit => commits += 1,
            ExtentKind::Body => bodies += 1,
            ExtentKind::Free => {}
        }
    }
    assert!(commits >= 4 && bodies >= 2, "{commits} {bodies}");
}

#[tokio::test]
async fn what_a_lost_extent_may_have_replaced_is_bounded() {
    let (disk, last) = filled().await;
    let first = header(&disk, 0).await.expect("used");
    assert_eq!(first.kind, ExtentKind::Commit);
    let hurt = copy_without(&disk, extent(0)).await;
    let opened = open(&hurt).await;
    let below = opened.report.doubt.expect("records are missing").below;
    let found = opened.lsns();
    assert_eq!(below, found[0], "what comes behind the gap is certain");
    assert_eq!(found.last(), Some(&last));
}

#[tokio::test]
async fn half_a_file_is_noticed() {
    let disk = MemDisk::growable(EXTENTS_START + 24 * EXTENT);
    format(&disk, EXTENT).await;
    let opened = open(&disk).await;
    let mut last = 0;
    for n in 0..40 {
        last = opened.put(n, 100_000).await;
    }
    opened.log.close().await.expect("closes");
    for cut in [EXTENT, EXTENT / 2] {
        let half = MemDisk::growable(EXTENTS_START + 24 * EXTENT);
        let len = EXTENTS_START + 2 * EXTENT + cut;
        half.reserve(len).await.expect("room");
        for at in (0..len).step_by(EXTENT as usize / 2) {
            half.write(at, disk.read(at, EXTENT as usize / 2).await.expect("reads")).await.expect("writes");
        }
        assert!(!verify(&half).await.is_clean());
        let again = open(&half).await;
        assert!(again.report.read_only && !again.report.lost.is_empty(), "{:?}", again.report);
        assert_eq!(again.report.doubt.map(|doubt| doubt.below), Some(u64::MAX), "the end is gone");
        let again = open_at(Arc::new(half.clone()), last).await;
        assert!(again.report.read_only, "{:?}", again.report);
    }
}

#[tokio::test]
async fn a_pool_of_an_older_build_gets_a_roster_and_finds_losses_by_order_of_use() {
    let (disk, last) = filled().await;
    let old = copy_without(&disk, BLOCK as u64..512 << 10).await;
    let old = copy_without(&old, (512 << 10) + BLOCK as u64..EXTENTS_START).await;
    assert!(verify(&old).await.is_clean());
    let hurt = copy_without(&old, extent(2)).await;
    assert_eq!(verify(&hurt).await.damage.len(), 1);
    let opened = open(&hurt).await;
    assert!(opened.report.read_only && opened.report.lost.len() == 1, "{:?}", opened.report);
    drop(opened);
    let opened = open_at(Arc::new(hurt.clone()), last).await;
    assert!(!opened.report.read_only && opened.report.lost.len() == 1, "{:?}", opened.report);
    drop(opened);
    // A whole pool opens as before, and has a roster from then on.
    let opened = open(&old).await;
    assert!(opened.report.damage.is_empty(), "{:?}", opened.report);
    opened.log.close().await.expect("closes");
    let used: Vec<u32> = futures::future::join_all((0..24).map(|n| header(&old, n)))
        .await
        .iter()
        .flatten()
        .map(|h| h.id.extent)
        .collect();
    let highest = *used.iter().max().expect("some");
    let hurt = copy_without(&old, extent(highest)).await;
    assert_eq!(verify(&hurt).await.damage.len(), 1, "the last one is missed only by the roster");
}

#[tokio::test]
async fn one_copy_of_the_roster_is_enough_and_a_bad_one_is_written_again() {
    let (disk, _) = filled().await;
    for place in [0u64, 512 << 10] {
        let hurt = copy_without(&disk, place + BLOCK as u64..place + 2 * BLOCK as u64).await;
        assert!(verify(&hurt).await.is_clean());
        let opened = open(&hurt).await;
        assert!(opened.report.damage.is_empty(), "{:?}", opened.report);
        opened.log.close().await.expect("closes");
        let block = hurt.read(place + BLOCK as u64, BLOCK).await.expect("reads");
        assert!(block.iter().any(|b| *b != 0), "written again");
    }
}

/// The end of a commit extent is gone with its trailer, and an index has all its records. Recovery
/// must not seal the extent as if it had always ended there.
#[tokio::test]
async fn an_extent_without_its_second_half_is_reported_at_each_start() {
    let (disk, last) = filled().await;
    let range = extent(1);
    let hurt = copy_without(&disk, range.start + EXTENT / 2..range.end).await;
    for _ in 0..2 {
        let opened = open_at(Arc::new(hurt.clone()), last).await;
        assert!(!opened.report.read_only);
        assert!(opened.report.damage.iter().any(|d| d.extent == Some(1)), "{:?}", opened.report);
        opened.submit(vec![record(1, 1)], Durability::Sync).await.expect("accepted").await.expect("commits");
        opened.log.close().await.expect("closes");
        assert!(!verify(&hurt).await.is_clean());
    }
    let opened = open(&hurt).await;
    assert!(opened.report.read_only && opened.report.doubt.is_some(), "{:?}", opened.report);
}

#[tokio::test]
async fn the_scrub_reports_an_extent_that_vanishes_while_the_log_runs() {
    let (disk, _) = filled().await;
    let older = disk.image();
    let opened = open_with(Arc::new(disk.clone()), 0, scrubbing()).await;
    let sealed = |kind| {
        let all = opened.log.shared.extents.all();
        all.into_iter().find(|e| e.state == ExtentState::Sealed && e.kind == kind).expect("one is sealed")
    };
    let (commit, body) = (sealed(ExtentKind::Commit), sealed(ExtentKind::Body));
    assert_eq!(two_passes(&opened).await.damaged, 0);
    disk.write(extent(commit.extent).start, vec![0; EXTENT as usize].into()).await.expect("writes");
    let status = two_passes(&opened).await;
    let places: Vec<_> = status.damage.iter().map(|d| (d.extent, d.epoch)).collect();
    assert_eq!(places, [(commit.extent, commit.epoch)], "{:?}", status.damage);
    // A whole extent of an earlier use is damage too.
    let header = older.read(extent(body.extent).start, BLOCK).await.expect("reads");
    let mut header = ExtentHeader::decode(&header).expect("a header");
    header.id.epoch -= 1;
    disk.write(extent(body.extent).start, vec![0; EXTENT as usize].into()).await.expect("writes");
    disk.write(extent(body.extent).start, header.encode().to_vec().into()).await.expect("writes");
    let status = two_passes(&opened).await;
    let places: Vec<_> = status.damage.iter().map(|d| (d.extent, d.epoch)).collect();
    assert_eq!(places, [(commit.extent, commit.epoch), (body.extent, body.epoch)], "{:?}", status.damage);
    let _ = opened.log.close().await;
}
