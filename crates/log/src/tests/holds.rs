//! Held data can be read whatever happens later, and its space is freed after the release.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use steadfast_disk::MemDisk;
use steadfast_flow::Env;

use super::harness::{body, format};
use super::model::{Kv, Model, ModelState, options};
use crate::{Applier, CompactionOptions, Hold, Log, LogOptions, Sabotage, Usage};

const EXTENT: u64 = 1 << 20;

type Content = BTreeMap<u64, (u64, u64)>;

/// Makes a hold, and returns it with the contents that it holds.
async fn hold(kv: &Kv, id: u8) -> (Hold, Content) {
    let holding = kv.log.begin_hold();
    let lsn = Log::cut(&[&kv.log])[0];
    let hold = kv.log.hold(&holding, [id; 16], lsn).await.expect("held");
    (hold, kv.content())
}

/// Reads all records and values of a hold.
async fn read(log: &Log, hold: &Hold) -> Result<Content, String> {
    let model = Model::replaying();
    let mut records = log.held_records(hold, 0);
    let mut usage = Usage::default();
    loop {
        let batch = records.next().await.map_err(|e| e.to_string())?;
        if let Some(fault) = records.faults().first() {
            return Err(fault.to_string());
        }
        if batch.is_empty() {
            break;
        }
        model.apply(&batch, &mut usage);
    }
    for (seed, at, first) in model.parts() {
        let got = log.read(at, 0..at.body_len).await.map_err(|e| format!("seed {seed}: {e}"))?;
        assert_eq!(got, body(seed + first, at.body_len as usize), "seed {seed}");
    }
    Ok(model.content())
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
async fn what_is_held_stays_through_churn_crashes_and_rebuilds() {
    let disk = MemDisk::fixed(129 * EXTENT);
    format(&disk, EXTENT).await;
    let mut saved = ModelState::default();
    let mut held: Vec<(Hold, Content)> = Vec::new();
    for round in 0..4u64 {
        let kv = Kv::open_holding(&disk, saved, options(), held.iter().map(|(hold, _)| hold.clone()).collect()).await;
        assert!(kv.report.damage.is_empty(), "{:?}", kv.report);
        churn(&kv, round * 1000, 250).await;
        held.push(hold(&kv, round as u8).await);
        churn(&kv, round * 1000 + 250, 450).await;
        for (hold, content) in &held {
            assert_eq!(&read(&kv.log, hold).await.expect("readable"), content, "round {round}, hold {:?}", hold.id);
        }
        let counts = kv.log.status().extents;
        assert!(counts.held > 0 && counts.held_bytes > 0, "{counts:?}");
        kv.check_all().await;
        let crashed = kv.crash().await;
        saved = if round % 2 == 0 { crashed } else { ModelState::default() };
    }
    // The holds are released from the oldest on, and no release affects data of another hold.
    let kv = Kv::open_holding(&disk, saved, options(), held.iter().map(|(hold, _)| hold.clone()).collect()).await;
    while !held.is_empty() {
        let (gone, _) = held.remove(0);
        let before = kv.log.status();
        kv.log.release(&gone.id);
        churn(&kv, 90_000 + 1000 * held.len() as u64, 300).await;
        for (hold, content) in &held {
            assert_eq!(&read(&kv.log, hold).await.expect("readable"), content, "without {:?}", gone.id);
        }
        kv.save().await;
        let recycled = || kv.log.status().compaction.recycled > before.compaction.recycled;
        until("space comes back", recycled).await;
    }
    assert_eq!(kv.log.status().extents.held_bytes, 0);
    kv.check_all().await;
}

#[tokio::test]
async fn without_holds_it_would_be_gone() {
    let disk = MemDisk::fixed(65 * EXTENT);
    format(&disk, EXTENT).await;
    let broken = LogOptions { sabotage: Sabotage::PinsIgnored, ..options() };
    let kv = Kv::open(&disk, ModelState::default(), broken).await;
    churn(&kv, 0, 250).await;
    let (hold, content) = hold(&kv, 1).await;
    churn(&kv, 250, 1500).await;
    kv.save().await;
    let found = read(&kv.log, &hold).await;
    assert!(
        found.is_err() || found.is_ok_and(|found| found != content),
        "nothing was recycled: the test proves nothing"
    );
}

#[tokio::test]
async fn overlapping_holds_do_not_keep_dead_extents_for_ever() {
    let disk = MemDisk::fixed(65 * EXTENT);
    format(&disk, EXTENT).await;
    let kv = Kv::open(&disk, ModelState::default(), options()).await;
    let mut last: Option<Hold> = None;
    // Each round overwrites everything. If each hold also kept what only the one before it kept,
    // the pool would soon be full.
    for round in 0..30u64 {
        for key in 0..60 {
            kv.put(key, round * 100 + key, 60_000).await.unwrap_or_else(|e| panic!("round {round}: {e}"));
        }
        kv.save().await;
        if last.is_some() {
            until("what is dead is emptied", || kv.log.status().compaction.pinned > 0).await;
        }
        let (hold, _) = hold(&kv, round as u8).await;
        if let Some(last) = last.replace(hold) {
            kv.log.release(&last.id);
        }
    }
    kv.check_all().await;
}

#[tokio::test]
async fn compaction_does_not_copy_what_it_cannot_free() {
    let disk = MemDisk::fixed(65 * EXTENT);
    format(&disk, EXTENT).await;
    let eager = CompactionOptions { dead_percent_min: 20, ..options().compaction };
    let kv = Kv::open(&disk, ModelState::default(), LogOptions { compaction: eager, ..options() }).await;
    for key in 0..100 {
        kv.put(key, key, 60_000).await.expect("room");
    }
    kv.save().await;
    let (held, content) = hold(&kv, 1).await;
    // Half of the held data is dead.
    for key in (0..100).step_by(2) {
        kv.put(key, 1000 + key, 60_000).await.expect("room");
    }
    kv.save().await;
    for _ in 0..200 {
        Env::tokio().sleep(Duration::from_millis(1)).await;
    }
    let status = kv.log.status();
    assert_eq!(status.compaction.moved_bytes, 0, "{:#?}", status.compaction);
    assert!(status.extents.held_bytes > 50 * 60_000, "{:?}", status.extents);
    assert_eq!(read(&kv.log, &held).await.expect("readable"), content);
    kv.log.release(&held.id);
    until("it is compacted", || kv.log.status().compaction.recycled > 2).await;
    kv.check_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_over_several_logs_never_has_the_later_without_the_earlier() {
    let mut kvs = Vec::new();
    let mut quiet = options();
    quiet.compaction.enabled = false;
    for _ in 0..2 {
        let disk = MemDisk::fixed(33 * EXTENT);
        format(&disk, EXTENT).await;
        kvs.push(Kv::open(&disk, ModelState::default(), quiet.clone()).await);
    }
    let kvs = Arc::new(kvs);
    let done = Arc::new(AtomicBool::new(false));
    let env = Env::tokio();
    env.spawn("writer", {
        let (kvs, done) = (kvs.clone(), done.clone());
        async move {
            let mut n = 0;
            // No more than the pools have space for.
            while !done.load(Relaxed) && n < 4000 {
                n += 1;
                // The second only when the first has been answered.
                kvs[0].put(n, n, 10).await.expect("room");
                kvs[1].put(n, n, 10).await.expect("room");
            }
        }
    });
    let logs: Vec<&Log> = kvs.iter().map(|kv| &kv.log).collect();
    let mut last = 0;
    // Until many moments have been tried.
    for _ in 0..3000 {
        let cut = Log::cut(&logs);
        assert!(cut[0] == cut[1] || cut[0] == cut[1] + 1, "{cut:?}");
        last = last.max(cut[1]);
        env.pause(Duration::from_micros(50)).await;
    }
    done.store(true, Relaxed);
    assert!(last > 10, "{last}");
}
