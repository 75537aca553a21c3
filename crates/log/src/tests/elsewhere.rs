//! Failed writes of unacknowledged data: the data goes elsewhere, and writes continue.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use steadfast_disk::{Disk, Effect, Fault, Faults, Faulty, MemDisk, OpKind};

use super::harness::{Opened, body, format, open, open_with, options};
use crate::extents::ExtentState;
use crate::format::ExtentKind;
use crate::{Location, Log, LogError, LogState, Priority};

const EXTENT: u64 = 1 << 20;
const EIO: i32 = 5;
const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const ENOSPC: i32 = 28;

async fn faulty() -> (MemDisk, Faults, Opened) {
    let disk = MemDisk::fixed(17 * EXTENT);
    format(&disk, EXTENT).await;
    let faults = Faults::new();
    let wrapped: Arc<dyn Disk> = Arc::new(Faulty::new(Arc::new(disk.clone()), faults.clone()));
    let mut options = crate::LogOptions { prefill_ahead_bytes: 0, ..options() };
    options.compaction.enabled = false;
    let opened = open_with(wrapped, 0, options).await;
    (disk, faults, opened)
}

async fn chunk(log: &Log, n: u64, len: usize) -> Result<Location, LogError> {
    let room = log.reserve(len as u64, Priority::Write, Duration::from_secs(10)).await?;
    let mut chunk = log.chunk(len).await?;
    assert_eq!(chunk.put(&body(n, len)), len);
    log.write_chunk(&room, Bytes::copy_from_slice(&n.to_le_bytes()), chunk).await
}

async fn reads(log: &Log, n: u64, at: Location) {
    let read = log.read(at, 0..at.body_len).await.expect("reads");
    assert_eq!(read, body(n, at.body_len as usize));
}

fn is_healthy(opened: &Opened) -> bool {
    opened.log.status().log == LogState::Ok
}

/// Offset of the open body extent.
fn open_body(log: &Log) -> (u32, u64) {
    let all = log.shared.extents.all();
    let open = all.iter().find(|slot| slot.state == ExtentState::Open && slot.kind == ExtentKind::Body);
    open.map(|slot| (slot.extent, log.shared.extents.start(slot.extent))).expect("one")
}

#[tokio::test]
async fn a_chunk_that_the_disk_does_not_take_goes_elsewhere() {
    let (disk, faults, opened) = faulty().await;
    let log = &opened.log;
    let before = chunk(log, 1, 9_000).await.expect("written");
    let (extent, start) = open_body(log);
    // No write behind the present data succeeds any more.
    let rest = start + log.shared.extents.get(extent, before.epoch).expect("open").data_end;
    faults.add(Fault::new(OpKind::Write, Effect::Error(EIO)).within(rest..start + EXTENT));
    let moved = chunk(log, 2, 9_001).await.expect("written elsewhere");
    let after = chunk(log, 3, 100).await.expect("written");
    assert!(moved.extent != extent && after.extent != extent, "{moved:?} {after:?}");
    for (n, at) in [(1, before), (2, moved), (3, after)] {
        reads(log, n, at).await;
    }
    assert!(is_healthy(&opened));
    assert!(log.status().writes_elsewhere >= 1);
    opened.put(7, 100).await;
    log.close().await.expect("closes");
    let again = open(&disk).await;
    assert!(again.report.damage.is_empty(), "{:?}", again.report.damage);
    for (n, at) in [(1, before), (2, moved), (3, after)] {
        reads(&again.log, n, at).await;
    }
}

#[tokio::test]
async fn a_disk_that_takes_nothing_ends_writes_after_a_few_attempts() {
    let (_disk, faults, opened) = faulty().await;
    faults.add(Fault::new(OpKind::Write, Effect::Error(EIO)).after(1));
    let refused = chunk(&opened.log, 1, 9_000).await;
    assert!(matches!(refused, Err(LogError::Failed { .. })), "{refused:?}");
    assert!(matches!(opened.log.status().log, LogState::Failed { .. }));
}

#[tokio::test]
async fn space_that_the_device_does_not_have_after_all_is_a_full_pool() {
    let (_disk, faults, opened) = faulty().await;
    chunk(&opened.log, 1, 9_000).await.expect("written");
    faults.add(Fault::new(OpKind::Write, Effect::Error(ENOSPC)).times(1));
    let refused = chunk(&opened.log, 2, 9_000).await;
    assert!(matches!(refused, Err(LogError::Full)), "{refused:?}");
    assert!(is_healthy(&opened));
    let at = chunk(&opened.log, 3, 9_000).await.expect("there is some elsewhere");
    reads(&opened.log, 3, at).await;
}

#[tokio::test]
async fn what_fails_for_a_moment_is_tried_again() {
    let (_disk, faults, opened) = faulty().await;
    chunk(&opened.log, 1, 9_000).await.expect("written");
    faults.add(Fault::new(OpKind::Write, Effect::Error(ENOMEM)).times(3));
    let at = chunk(&opened.log, 2, 9_000).await.expect("written");
    reads(&opened.log, 2, at).await;
    assert_eq!(opened.log.status().writes_elsewhere, 0);
    assert!(is_healthy(&opened));
}

#[tokio::test]
async fn a_commit_whose_write_fails_for_a_moment_is_tried_again() {
    for errno in [ENOMEM, EAGAIN, EINTR] {
        let (_disk, faults, opened) = faulty().await;
        faults.add(Fault::new(OpKind::Write, Effect::Error(errno)).times(3));
        opened.put(1, 9_000).await;
        opened.put(2, 9_000).await;
        assert!(is_healthy(&opened), "{errno}: {:?}", opened.log.status().log);
        assert_eq!(opened.check_all().await, 2);
        // A failed flush is never retried.
        faults.add(Fault::new(OpKind::Flush, Effect::Error(errno)).times(2));
        let commit = opened.submit(vec![super::harness::record(3, 9_000)], crate::Durability::Sync).await;
        let outcome = commit.expect("accepted").await;
        assert!(matches!(outcome, Err(LogError::Unknown { .. })), "{errno}: {outcome:?}");
        assert!(!is_healthy(&opened));
    }
}

#[tokio::test]
async fn an_extent_whose_footer_cannot_be_written_does_without() {
    let (disk, faults, opened) = faulty().await;
    let log = &opened.log;
    let first = log.shared.extents.with(|table| table.open_commits().next().map(|slot| slot.extent)).expect("one");
    let start = log.shared.extents.start(first);
    // Its last block: the trailer.
    faults.add(Fault::new(OpKind::Write, Effect::Error(EIO)).within(start + EXTENT - 4096..start + EXTENT));
    for n in 0..100 {
        opened.put(n, 20_000).await;
    }
    while log.shared.extents.all()[first as usize].state != ExtentState::Sealed {
        tokio::task::yield_now().await;
    }
    assert!(is_healthy(&opened), "{:?}", log.status().log);
    assert_eq!(log.shared.extents.all()[first as usize].footer, None);
    assert_eq!(opened.check_all().await, 100);
    // The block stays bad, also at the next two starts.
    for _ in 0..2 {
        let bad: Arc<dyn Disk> = Arc::new(Faulty::new(Arc::new(disk.clone()), faults.clone()));
        let again = open_with(bad, 0, options()).await;
        assert!(again.report.damage.is_empty(), "{:?}", again.report.damage);
        assert!(is_healthy(&again), "{:?}", again.log.status().log);
        assert_eq!(again.check_all().await, 100);
        assert_eq!(again.lsns(), (1..=100).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_place_that_failed_is_proved_before_it_is_used_again() {
    for stays_bad in [false, true] {
        let (_disk, faults, opened) = faulty().await;
        let extents = &opened.log.shared.extents;
        chunk(&opened.log, 1, 9_000).await.expect("written");
        let (extent, start) = open_body(&opened.log);
        let bad = Fault::new(OpKind::Write, Effect::Error(EIO)).within(start + 4096..start + EXTENT);
        let fault = faults.add(bad);
        chunk(&opened.log, 2, 9_000).await.expect("written elsewhere");
        if !stays_bad {
            faults.remove(fault);
        }
        while extents.all()[extent as usize].state != ExtentState::Sealed {
            tokio::task::yield_now().await;
        }
        let free = extents.spare().free;
        let epoch = extents.all()[extent as usize].epoch;
        assert!(extents.recycle(extent, epoch, false).await.expect("marked"));
        let state = extents.all()[extent as usize].state;
        let wanted = if stays_bad { (ExtentState::Busy, free) } else { (ExtentState::Free, free + 1) };
        assert_eq!((state, extents.spare().free), wanted);
        assert!(is_healthy(&opened));
    }
}
