//! Records that are held back until a copy elsewhere has them.

use futures::FutureExt;
use steadfast_disk::MemDisk;

use super::harness::{format, open, record};
use crate::{Durability, LogError};

#[tokio::test]
async fn a_record_that_is_held_back_is_durable_and_is_neither_answered_nor_applied() {
    let disk = MemDisk::growable(64 << 20);
    format(&disk, 1 << 20).await;
    let opened = open(&disk).await;
    opened.put(0, 100).await;
    opened.log.begin_hold();
    let mut durable = opened.log.durable();
    let mut tickets = Vec::new();
    for (n, durability) in [(1, Durability::Sync), (2, Durability::Async), (3, Durability::Sync)] {
        let ticket = opened.submit(vec![record(n, 100)], durability).await.expect("accepted");
        let lsn = ticket.first_lsn();
        // An asynchronous commit is flushed too: the copy has only what is durable.
        durable.wait_for(|durable| *durable >= lsn).await.expect("the log runs");
        tickets.push(ticket);
    }
    assert!(tickets.iter_mut().all(|ticket| ticket.now_or_never().is_none()));
    assert_eq!(opened.lsns(), [1]);
    assert_eq!(*opened.log.durable().borrow(), 4);
    opened.log.hold().release(3);
    for ticket in tickets.drain(..2) {
        assert!(ticket.await.expect("commits").durable);
    }
    assert_eq!(opened.lsns(), [1, 2, 3]);
    let mut last = tickets.remove(0);
    assert!((&mut last).now_or_never().is_none());
    // A close does not wait for it, and the next opening finds it.
    opened.log.close().await.expect("closes");
    assert!(matches!(last.await, Err(LogError::Unknown { .. })));
    assert_eq!(opened.lsns(), [1, 2, 3]);
    let again = open(&disk).await;
    assert_eq!(again.check_all().await, 4);
}

#[tokio::test]
async fn a_hold_that_is_cancelled_holds_nothing_back() {
    let disk = MemDisk::growable(64 << 20);
    format(&disk, 1 << 20).await;
    let opened = open(&disk).await;
    opened.log.begin_hold();
    let ticket = opened.submit(vec![record(1, 100)], Durability::Sync).await.expect("accepted");
    opened.log.hold().cancel();
    ticket.await.expect("commits");
    opened.put(2, 100).await;
    assert_eq!(opened.lsns(), [1, 2]);
}

#[tokio::test]
async fn what_was_accepted_before_a_hold_is_applied_and_durable_when_it_is_flushed() {
    let disk = MemDisk::growable(64 << 20);
    format(&disk, 1 << 20).await;
    let opened = open(&disk).await;
    for round in 0..20 {
        let mut before = Vec::new();
        for n in 0..5 {
            let durability = if n % 2 == 0 { Durability::Async } else { Durability::Sync };
            before.push(opened.submit(vec![record(n, 100)], durability).await.expect("accepted"));
        }
        opened.log.begin_hold();
        let last = before.last().expect("five").first_lsn();
        // One that is held back does not keep those before it waiting.
        let held = opened.submit(vec![record(9, 100)], Durability::Async).await.expect("accepted");
        opened.log.flush_held().await.expect("flushed");
        let (applied, durable) = (opened.lsns().last().copied().unwrap_or(0), *opened.log.durable().borrow());
        // They may be in one frame with it, and are held back then.
        assert!(applied == last || opened.log.hold().waiting_since().is_some(), "round {round}: {applied}");
        assert!(applied <= last && durable >= applied, "round {round}: {applied} is applied, and {durable} durable");
        opened.log.hold().cancel();
        held.await.expect("commits");
    }
}
