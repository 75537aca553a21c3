//! Tails torn at every block, and damage that is not a torn tail.

use std::sync::Arc;

use steadfast_disk::{BLOCK, Disk, MemDisk};

use super::harness::{format, open, record};
use crate::Durability;
use crate::format::EXTENTS_START;

/// A disk with the same bytes, except that the range `cut` is zeros.
pub(super) async fn copy_without(disk: &MemDisk, cut: std::ops::Range<u64>) -> MemDisk {
    let copy = MemDisk::fixed(disk.geometry().capacity_bytes);
    let step = 1 << 20;
    for at in (0..disk.len()).step_by(step) {
        let len = step.min((disk.len() - at) as usize);
        let mut bytes = disk.read(at, len).await.expect("reads").to_vec();
        for (i, byte) in bytes.iter_mut().enumerate() {
            if cut.contains(&(at + i as u64)) {
                *byte = 0;
            }
        }
        if bytes.iter().any(|b| *b != 0) {
            copy.write(at, bytes.into()).await.expect("writes");
        }
    }
    copy
}

#[tokio::test]
async fn a_tail_torn_at_any_block_is_cut_and_the_rest_survives() {
    let disk = MemDisk::fixed(8 << 20);
    format(&disk, 1 << 20).await;
    let first = open(&disk).await;
    for n in 0..3 {
        first.put(n, 100).await;
    }
    let batch = (3..9).map(|n| record(n, 3000)).collect();
    first.submit(batch, Durability::Sync).await.expect("accepted").await.expect("commits");
    // Frames 1 to 3 take a block each, the fourth five.
    let fourth = EXTENTS_START + 4 * BLOCK as u64;
    for block in 0..5 {
        let at = fourth + block * BLOCK as u64;
        let torn = copy_without(&disk, at..at + BLOCK as u64).await;
        let second = open(&torn).await;
        assert_eq!(second.check_all().await, 3, "torn at block {block}");
        assert!(!second.report.read_only && second.report.damage.is_empty(), "{:?}", second.report);
        // Only the fourth frame could prove that the third was durable.
        assert!(second.report.records_copied >= 1, "{:?}", second.report);
        second.put(100, 50).await;
        let third = open(&torn).await;
        assert_eq!(third.check_all().await, 4);
        assert!(third.report.damage.is_empty(), "{:?}", third.report);
    }
}

#[tokio::test]
async fn a_bad_frame_that_a_later_one_vouches_for_is_corruption() {
    let disk = MemDisk::fixed(8 << 20);
    format(&disk, 1 << 20).await;
    let first = open(&disk).await;
    for n in 0..10 {
        first.put(n, 100).await;
    }
    disk.flip(EXTENTS_START + 4 * BLOCK as u64 + 200, 1);
    let second = open(&disk).await;
    assert!(second.report.read_only);
    assert_eq!(second.report.damage.len(), 1, "{:?}", second.report);
    assert_eq!((second.report.damage[0].extent, second.report.damage[0].offset), (Some(0), 4 * BLOCK as u64));
    assert_eq!(second.lsns(), vec![1, 2, 3, 5, 6, 7, 8, 9, 10], "the rest is served");
    assert_eq!(second.check_all().await, 9);
    assert!(second.submit(vec![record(1, 1)], Durability::Sync).await.is_err());
    second.log.close().await.expect_err("says that it is read-only");
}

#[tokio::test]
async fn a_bad_footer_or_trailer_means_a_scan() {
    let disk = MemDisk::fixed(8 << 20);
    format(&disk, 1 << 20).await;
    let first = open(&disk).await;
    for n in 0..10 {
        first.put(n, 100).await;
    }
    first.log.close().await.expect("closes");
    // Footer right behind the frames; trailer in the last block.
    for (at, damage) in [(EXTENTS_START + 11 * BLOCK as u64 + 70, 1), (EXTENTS_START + (1 << 20) - BLOCK as u64, 0)] {
        let copy = copy_without(&disk, 0..0).await;
        copy.flip(at, 4);
        let second = open(&copy).await;
        assert_eq!(second.check_all().await, 10);
        assert_eq!(second.report.damage.len(), damage, "{:?}", second.report);
        assert!(!second.report.read_only);
        assert_eq!(second.put(10, 10).await, 11);
    }
}

#[tokio::test]
async fn a_crash_at_any_write_of_recovery_loses_nothing() {
    let disk = MemDisk::fixed(8 << 20);
    format(&disk, 1 << 20).await;
    let first = open(&disk).await;
    for n in 0..6 {
        first.put(n, 5000).await;
    }
    // Two copies of the superblock, header of the new extent, two copies of the roster, the frame,
    // footer and trailer.
    for writes in 0..12 {
        let copy = copy_without(&disk, 0..0).await;
        let faults = steadfast_disk::Faults::new();
        let lost = steadfast_disk::Fault::new(steadfast_disk::OpKind::Write, steadfast_disk::Effect::Error(5));
        faults.add(lost.after(writes));
        let broken: Arc<dyn Disk> = Arc::new(steadfast_disk::Faulty::new(Arc::new(copy.clone()), faults));
        let memory = Arc::new(super::harness::Memory::default());
        let opened = crate::Log::open(broken, steadfast_flow::Env::tokio(), super::harness::options(), memory).await;
        assert_eq!(opened.is_ok(), writes >= 8, "after {writes} writes");
        let again = open(&copy).await;
        assert_eq!(again.check_all().await, 6, "after {writes} writes");
        assert!(again.report.damage.is_empty(), "{:?}", again.report);
    }
}

#[tokio::test]
async fn asynchronous_records_are_read_at_once_and_durable_soon() {
    let disk = MemDisk::fixed(8 << 20);
    format(&disk, 1 << 20).await;
    let opened = open(&disk).await;
    let done = opened.submit(vec![record(1, 10)], Durability::Async).await.expect("accepted").await.expect("commits");
    assert!(!done.durable);
    assert_eq!(opened.check_all().await, 1);
    let mut durable = opened.log.shared.durable.subscribe();
    durable.wait_for(|lsn| *lsn >= 1).await.expect("flushed within the window");
    assert_eq!(opened.log.flush().await.expect("flushes"), 1);
    let done = opened.submit(vec![record(2, 10)], Durability::Async).await.expect("accepted").await.expect("commits");
    assert_eq!(opened.log.flush().await.expect("flushes"), done.first_lsn);
}

/// Asynchronous commits, each a frame of its own, not flushed between.
async fn three_async_frames(disk: &MemDisk) {
    let slow = crate::LogOptions { async_window: std::time::Duration::from_secs(1000), ..super::harness::options() };
    let any: Arc<dyn Disk> = Arc::new(disk.clone());
    let memory = Arc::new(super::harness::Memory::default());
    let (log, report) = crate::Log::open(any, steadfast_flow::Env::tokio(), slow, memory.clone()).await.expect("opens");
    let opened = super::harness::Opened { log, memory, report };
    opened.put(0, 100).await;
    for n in 1..4 {
        let ticket = opened.submit(vec![record(n, 100)], Durability::Async).await.expect("accepted");
        ticket.await.expect("commits");
    }
}

#[tokio::test]
async fn unacknowledged_frames_after_a_hole_are_cut_for_good() {
    let disk = MemDisk::fixed(8 << 20);
    format(&disk, 1 << 20).await;
    three_async_frames(&disk).await;
    // The device lost the second asynchronous frame and kept its neighbours.
    let at = EXTENTS_START + 3 * BLOCK as u64;
    let torn = copy_without(&disk, at..at + BLOCK as u64).await;
    let second = open(&torn).await;
    assert_eq!(second.lsns(), vec![1, 2]);
    assert_eq!(second.report.cut.len(), 1, "{:?}", second.report);
    assert!(!second.report.read_only && second.report.damage.is_empty());
    assert_eq!(second.put(10, 100).await, 5, "an LSN that was cut is not used again");
    second.put(11, 100).await;
    for _ in 0..2 {
        let again = open(&torn).await;
        assert_eq!(again.lsns(), vec![1, 2, 5, 6]);
        assert_eq!(again.check_all().await, 4);
        assert!(again.report.damage.is_empty() && again.report.cut.is_empty(), "{:?}", again.report);
    }
    // Nor do they come back when the first extent loses its trailer.
    torn.flip(EXTENTS_START + (1 << 20) - BLOCK as u64, 4);
    let again = open(&torn).await;
    assert_eq!(again.lsns(), vec![1, 2, 5, 6]);
    assert!(!again.report.read_only, "{:?}", again.report);
}

#[tokio::test]
async fn a_hole_below_the_checkpoint_is_corruption() {
    let disk = MemDisk::fixed(8 << 20);
    format(&disk, 1 << 20).await;
    let first = open(&disk).await;
    for n in 0..10 {
        first.put(n, 100).await;
    }
    disk.flip(EXTENTS_START + 4 * BLOCK as u64 + 200, 1);
    let second = super::harness::open_at(Arc::new(disk.clone()), 10).await;
    assert!(second.report.read_only);
    assert_eq!(second.report.damage[0].offset, 4 * BLOCK as u64, "{:?}", second.report);
}
