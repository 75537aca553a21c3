//! Panics of tasks: callers get an answer, and the log accepts nothing more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use steadfast_disk::{AlignedBuf, Disk, DiskStats, Geometry, IoFuture, MemDisk};
use steadfast_flow::{BoxFuture, Env};

use super::harness::{Opened, format, open_with, options, record};
use crate::{
    Applied, Applier, ChunkMove, ChunkOwners, Durability, ExtentUsage, Location, Log, LogError, LogState, Lsn,
    Priority, Usage,
};

const EXTENT: u64 = 1 << 20;

/// Panics on demand.
#[derive(Default)]
struct Mine {
    armed: AtomicBool,
}

impl Mine {
    #[allow(clippy::panic, reason = "what is tested")]
    fn step_on(&self) {
        if self.armed.load(SeqCst) {
            panic!("as requested");
        }
    }
}

/// An applier with a mine in each method.
#[derive(Default)]
struct Mined {
    apply: Mine,
    live: Mine,
}

impl Applier for Mined {
    fn apply(&self, records: &[Applied], _usage: &mut Usage) -> usize {
        self.apply.step_on();
        records.len()
    }

    fn checkpoint(&self) -> Lsn {
        if self.live.armed.load(SeqCst) { Lsn::MAX } else { 0 }
    }

    fn usage(&self) -> Vec<ExtentUsage> {
        Vec::new()
    }

    fn record_is_live(&self, _head: &[u8], _version: Lsn, _location: &Location, _oldest: Lsn) -> Option<bool> {
        self.live.step_on();
        Some(true)
    }
}

impl ChunkOwners for Mined {
    fn chunk_is_live<'a>(&'a self, _log: &'a Log, _head: &'a [u8], _at: &'a Location) -> BoxFuture<'a, bool> {
        Box::pin(async { true })
    }

    fn repoint<'a>(&'a self, _: &'a Log, _: BTreeMap<Bytes, Vec<ChunkMove>>) -> BoxFuture<'a, Result<(), LogError>> {
        Box::pin(async { Ok(()) })
    }
}

async fn mined() -> (Log, Arc<Mined>) {
    let disk = MemDisk::fixed(17 * EXTENT);
    format(&disk, EXTENT).await;
    let mines = Arc::new(Mined::default());
    let mut options = options();
    options.compaction.interval = Duration::from_millis(1);
    let (log, _) = Log::open(Arc::new(disk), Env::tokio(), options, mines.clone()).await.expect("opens");
    (log, mines)
}

async fn put(log: &Log, n: u64) -> Result<(), LogError> {
    let room = log.reserve(20_000, Priority::Write, Duration::from_secs(10)).await?;
    log.submit(room, vec![record(n, 10_000)], Durability::Sync)?.await.map(drop)
}

/// Asserts that the log has failed, names the task, accepts nothing and can be closed.
async fn failed(log: &Log, task: &str) {
    let mut watch = log.watch();
    let state = watch.wait_for(|state| *state != LogState::Ok).await.expect("the log is there").clone();
    let LogState::Failed { what: "task", cause } = state else { unreachable!("{state:?}") };
    assert!(cause.contains(task), "{cause}");
    assert!(matches!(put(log, 1_000).await, Err(LogError::Failed { .. })));
    // Whatever their results, they return.
    drop(log.flush().await);
    assert!(log.close().await.is_err());
}

#[tokio::test]
async fn what_is_to_be_applied_by_one_that_panics_is_answered() {
    let (log, mines) = mined().await;
    put(&log, 1).await.expect("well");
    mines.apply.armed.store(true, SeqCst);
    let two = futures::future::join(put(&log, 2), put(&log, 3)).await;
    assert!(matches!(two, (Err(_), Err(_))), "{two:?}");
    failed(&log, "log-applier").await;
}

#[tokio::test]
async fn a_compaction_that_panics_ends_writes() {
    let (log, mines) = mined().await;
    for n in 0..200 {
        put(&log, n).await.expect("there is room");
    }
    mines.live.armed.store(true, SeqCst);
    failed(&log, "log-compact").await;
}

/// A disk whose driver panics on demand.
struct MinedDisk {
    disk: MemDisk,
    mine: Arc<Mine>,
}

impl MinedDisk {
    fn stepped_on(&self, work: IoFuture<()>) -> IoFuture<()> {
        let mine = self.mine.clone();
        Box::pin(async move {
            mine.step_on();
            work.await
        })
    }
}

impl Disk for MinedDisk {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        self.disk.read(offset, len)
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.stepped_on(self.disk.write(offset, data))
    }

    fn flush(&self) -> IoFuture<()> {
        self.disk.flush()
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.stepped_on(self.disk.write_flush(offset, data))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.disk.discard(offset, len)
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        self.disk.reserve(end)
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        self.disk.buffer(capacity)
    }

    fn stats(&self) -> DiskStats {
        self.disk.stats()
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }
}

async fn over_mined_disk() -> (Opened, Arc<Mine>) {
    let disk = MemDisk::fixed(17 * EXTENT);
    format(&disk, EXTENT).await;
    let mine = Arc::new(Mine::default());
    let options = crate::LogOptions { prefill_ahead_bytes: 0, ..options() };
    let opened = open_with(Arc::new(MinedDisk { disk, mine: mine.clone() }), 0, options).await;
    (opened, mine)
}

#[tokio::test]
async fn what_waits_for_a_committer_that_panics_is_answered() {
    let (opened, mine) = over_mined_disk().await;
    opened.put(1, 100).await;
    let mut tickets = Vec::new();
    mine.armed.store(true, SeqCst);
    // More than one frame holds, so that the committer ends with some of them still queued.
    for n in 0..10 {
        match opened.submit(vec![record(n, 200_000)], Durability::Sync).await {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => assert!(matches!(error, LogError::Failed { .. }), "{error}"),
        }
    }
    assert!(tickets.len() > 3, "{}", tickets.len());
    for ticket in tickets {
        ticket.await.expect_err("nothing of it was written");
    }
    failed(&opened.log, "log-committer").await;
    assert_eq!(opened.check_all().await, 1, "reads continue");
}

#[tokio::test]
async fn a_chunk_whose_task_panics_is_answered() {
    let (opened, mine) = over_mined_disk().await;
    mine.armed.store(true, SeqCst);
    let log = &opened.log;
    let room = log.reserve(10_000, Priority::Write, Duration::ZERO).await.expect("room");
    let mut chunk = log.chunk(10_000).await.expect("memory");
    chunk.put(&[7; 10_000]);
    log.write_chunk(&room, Bytes::from_static(b"head"), chunk).await.expect_err("it was not written");
    failed(log, "log-chunk").await;
}
