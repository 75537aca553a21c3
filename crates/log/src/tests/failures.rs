//! Failed writes and flushes, full pools, bounds.

use std::sync::Arc;
use std::time::Duration;

use steadfast_disk::{Disk, Effect, Fault, Faults, Faulty, MemDisk, OpKind, Slow, Slowness};
use steadfast_flow::Env;

use super::harness::{Opened, format, open, open_at, open_with, options, record};
use crate::{Durability, LogError, LogState, Priority};

async fn faulty(extent_bytes: u64) -> (MemDisk, Faults, Opened) {
    let disk = MemDisk::fixed(8 << 20);
    format(&disk, extent_bytes).await;
    let faults = Faults::new();
    let wrapped: Arc<dyn Disk> = Arc::new(Faulty::new(Arc::new(disk.clone()), faults.clone()));
    let opened = open_at(wrapped, 0).await;
    (disk, faults, opened)
}

#[tokio::test]
async fn a_failed_flush_latches_and_what_was_acknowledged_stays() {
    for kind in [OpKind::Flush, OpKind::Write] {
        let (disk, faults, opened) = faulty(1 << 20).await;
        for n in 0..5 {
            opened.put(n, 100).await;
        }
        faults.add(Fault::new(kind, Effect::Error(5)).times(1));
        let ticket = opened.submit(vec![record(5, 100)], Durability::Sync).await.expect("accepted");
        assert!(matches!(ticket.await, Err(LogError::Unknown { .. })));
        let later = opened.submit(vec![record(6, 100)], Durability::Sync).await;
        assert!(matches!(later, Err(LogError::Failed { .. })), "{later:?}");
        assert!(matches!(opened.log.status().log, LogState::Failed { .. }));
        assert!(matches!(opened.log.flush().await, Ok(5)), "that much is durable");
        assert_eq!(opened.check_all().await, 5, "reads continue");
        assert!(opened.log.close().await.is_err());
        let again = open(&disk).await;
        let count = again.check_all().await;
        assert!((5..=6).contains(&count) && again.report.damage.is_empty(), "{count} {:?}", again.report);
        again.put(9, 9).await;
    }
}

#[tokio::test]
async fn a_full_pool_refuses_new_data_first_and_deletes_later() {
    let disk = MemDisk::fixed(8 << 20);
    format(&disk, 1 << 20).await;
    let opened = open(&disk).await;
    let mut count = 0;
    let error = loop {
        match opened.submit(vec![record(count, 20_000)], Durability::Sync).await {
            Ok(ticket) => ticket.await.expect("what is accepted commits"),
            Err(error) => break error,
        };
        count += 1;
    };
    assert!(matches!(error, LogError::Full), "{error}");
    assert!(count > 100, "{count}");
    for _ in 0..10 {
        let room = opened.log.reserve(100, Priority::Delete, Duration::ZERO).await.expect("the reserve is for deletes");
        let ticket = opened.log.submit(room, vec![record(0, 0)], Durability::Sync).expect("accepted");
        ticket.await.expect("commits");
        count += 1;
    }
    assert_eq!(opened.check_all().await as u64, count);
    let again = open(&disk).await;
    assert_eq!(again.check_all().await as u64, count);
}

/// Two extents are reserved. One of them is prepared when the open one is half full, and still
/// counts.
#[tokio::test]
async fn what_is_prepared_does_not_shut_writers_out_of_what_is_open() {
    let disk = MemDisk::fixed(9 << 20);
    format(&disk, 1 << 20).await;
    let mut options = options();
    options.compaction.enabled = false;
    let opened = open_with(Arc::new(disk), 0, options).await;
    let (mut count, mut since) = (0, 0);
    let error = loop {
        match opened.submit(vec![record(count, 20_000)], Durability::Sync).await {
            Ok(ticket) => ticket.await.expect("what is accepted commits"),
            Err(error) => break error,
        };
        count += 1;
        since += u64::from(opened.log.status().extents.free < 2);
    };
    assert!(matches!(error, LogError::Full), "{error}");
    let extents = opened.log.status().extents;
    assert_eq!((extents.open_commit, extents.free), (2, 1), "{extents:?}");
    assert!(since > 5, "{since} of {count} since the last one was prepared");
}

#[tokio::test]
async fn many_at_once_grow_a_pool_no_further_than_they_need() {
    let disk = MemDisk::growable(65 << 20);
    format(&disk, 1 << 20).await;
    let slowness = Slowness { flush: Duration::from_millis(1), ..Slowness::default() };
    let slow: Arc<dyn Disk> = Arc::new(Slow::new(Arc::new(disk.clone()), Env::tokio(), slowness));
    let opened = open_with(slow, 0, options()).await;
    let wait = Duration::from_secs(10);
    // The pool has space for 100 reservations, not for 100 extents.
    let rooms = (0..100).map(|_| opened.log.reserve(10_000, Priority::Write, wait));
    let rooms = futures::future::join_all(rooms).await;
    assert!(rooms.iter().all(Result::is_ok), "{:?}", rooms.iter().find(|room| room.is_err()));
    let extents = opened.log.status().extents;
    assert!(extents.free < 16 && extents.growable > 32, "{extents:?}");
}

#[tokio::test]
async fn bounds_are_kept() {
    let disk = MemDisk::fixed(8 << 20);
    format(&disk, 1 << 20).await;
    let opened = open(&disk).await;
    let large = opened.log.reserve(1 << 20, Priority::Write, Duration::ZERO).await.expect("room");
    let refused = opened.log.submit(large, vec![record(1, 1 << 20)], Durability::Sync);
    assert!(matches!(refused, Err(LogError::TooLarge(_))));
    let beyond = opened.log.reserve(1 << 40, Priority::Write, Duration::ZERO).await;
    assert!(beyond.is_err());
    let held = opened.log.reserve(100, Priority::Write, Duration::ZERO).await.expect("room");
    let pending = opened.log.status().pending_bytes;
    assert_eq!(pending, 100);
    drop(held);
    assert_eq!(opened.log.status().pending_bytes, 0);
}

#[tokio::test]
async fn what_is_read_again_and_cannot_be_is_not_called_damaged() {
    let (_disk, faults, opened) = faulty(1 << 20).await;
    for n in 0..5 {
        opened.put(n, 100).await;
    }
    let log = &opened.log;
    let stopped = log.stop_recycling();
    faults.add(Fault::new(OpKind::Read, Effect::Error(5)));
    let mut records = log.records_up_to(&stopped, 5);
    while !records.next().await.expect("continues").is_empty() {}
    assert!(matches!(records.faults(), [LogError::Read { .. }]), "{:?}", records.faults());
}

#[tokio::test]
async fn many_at_once_share_flushes_and_keep_their_order() {
    let disk = MemDisk::fixed(40 << 20);
    format(&disk, 4 << 20).await;
    let opened = open(&disk).await;
    let mut tickets = Vec::new();
    for n in 0..500 {
        tickets.push(opened.submit(vec![record(n, 100)], Durability::Sync).await.expect("accepted"));
    }
    for (n, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(ticket.first_lsn(), n as u64 + 1);
        assert_eq!(ticket.await.expect("commits").first_lsn, n as u64 + 1);
    }
    let status = opened.log.status();
    assert!(status.frames < 100, "{} frames", status.frames);
    assert_eq!(opened.check_all().await, 500);
}
