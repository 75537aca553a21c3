//! Records can be read again while the log runs, as an index that is built anew needs them.

use std::collections::BTreeMap;
use std::time::Duration;

use steadfast_disk::MemDisk;
use steadfast_flow::Env;

use super::harness::{body, format};
use super::model::{Kv, Model, ModelState, options};
use crate::{Applier, Log, Lsn, RecyclingStopped, Usage};

const EXTENT: u64 = 1 << 20;

type Content = BTreeMap<u64, (u64, u64)>;

/// The last record, once all are applied.
async fn applied(log: &Log) -> Lsn {
    let last = *log.shared.durable.borrow();
    let mut applied = log.shared.progress.applied.subscribe();
    *applied.wait_for(|applied| *applied >= last).await.expect("the log runs")
}

/// The content by all records up to one.
async fn read(log: &Log, stopped: &RecyclingStopped, lsn: Lsn) -> Content {
    let model = Model::replaying();
    let mut records = log.records_up_to(stopped, lsn);
    let mut usage = Usage::default();
    loop {
        let batch = records.next().await.expect("readable");
        assert!(records.faults().is_empty(), "{:?}", records.faults());
        if batch.is_empty() {
            break;
        }
        model.apply(&batch, &mut usage);
    }
    for (seed, at, first) in model.parts() {
        let got = log.read(at, 0..at.body_len).await.expect("readable");
        assert_eq!(got, body(seed + first, at.body_len as usize), "seed {seed}");
    }
    model.content()
}

async fn churn(kv: &Kv, from: u64, ops: u64) {
    for op in from..from + ops {
        let key = op.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
        match op % 7 {
            0 => kv.delete(key).await.expect("a delete"),
            1 => kv.put_chunks(key, op * 10, &[70_000, 9_000]).await.expect("room"),
            _ => kv.put(key, op * 10, 12_000).await.expect("room"),
        }
        if op.is_multiple_of(40) {
            kv.save().await;
        }
    }
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if done() {
            return;
        }
        Env::tokio().sleep(Duration::from_millis(1)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn all_records_up_to_one_are_found_while_nothing_is_recycled() {
    let disk = MemDisk::fixed(129 * EXTENT);
    format(&disk, EXTENT).await;
    let kv = Kv::open(&disk, ModelState::default(), options()).await;
    churn(&kv, 0, 400).await;
    kv.save().await;
    for round in 1..4u64 {
        let stopped = kv.log.stop_recycling();
        let (lsn, content) = (applied(&kv.log).await, kv.content());
        let before = kv.log.status().compaction.recycled;
        churn(&kv, round * 1000, 400).await;
        kv.save().await;
        assert_eq!(read(&kv.log, &stopped, lsn).await, content, "round {round}");
        assert_eq!(kv.log.status().compaction.recycled, before);
        drop(stopped);
        churn(&kv, round * 1000 + 500, 100).await;
        kv.save().await;
        until("space comes back", || kv.log.status().compaction.recycled > before).await;
    }
    kv.check_all().await;
}
