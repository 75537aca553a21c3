//! Shared parts of the tests: an applier that remembers records, and shortcuts to write and read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::Disk;
use steadfast_flow::{BoxFuture, Env};

use crate::{
    Applied, Applier, ChunkMove, ChunkOwners, Durability, ExtentUsage, FormatOptions, Location, Log, LogError,
    LogOptions, Lsn, Priority, Record, RecoveryReport, Ticket, Usage,
};

/// Remembers every record in the order of arrival.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) records: Mutex<Vec<Applied>>,
    pub(super) checkpoint: Lsn,
}

impl Applier for Memory {
    fn apply(&self, records: &[Applied], _usage: &mut Usage) -> usize {
        let mut all = self.records.lock();
        for record in records {
            assert!(all.last().is_none_or(|last| last.lsn < record.lsn), "LSN {} after {:?}", record.lsn, all.last());
            all.push(record.clone());
        }
        records.len()
    }

    fn checkpoint(&self) -> Lsn {
        self.checkpoint
    }

    fn usage(&self) -> Vec<ExtentUsage> {
        Vec::new()
    }

    fn record_is_live(&self, _head: &[u8], _version: Lsn, _location: &Location, _oldest: Lsn) -> Option<bool> {
        Some(true)
    }
}

impl ChunkOwners for Memory {
    fn chunk_is_live<'a>(&'a self, _log: &'a Log, _head: &'a [u8], _at: &'a Location) -> BoxFuture<'a, bool> {
        Box::pin(async { true })
    }

    fn repoint<'a>(&'a self, _: &'a Log, _: BTreeMap<Bytes, Vec<ChunkMove>>) -> BoxFuture<'a, Result<(), LogError>> {
        Box::pin(async { Ok(()) })
    }
}

pub(super) struct Opened {
    pub(super) log: Log,
    pub(super) memory: Arc<Memory>,
    pub(super) report: RecoveryReport,
}

pub(super) fn options() -> LogOptions {
    LogOptions { pending_bytes_max: 8 << 20, ..LogOptions::default() }
}

pub(super) async fn format<D: Disk + Clone>(disk: &D, extent_bytes: u64) {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let options = FormatOptions { extent_bytes: Some(extent_bytes), ..FormatOptions::default() };
    Log::format(&disk, &Env::tokio(), &options).await.expect("formats");
}

pub(super) async fn open_at(disk: Arc<dyn Disk>, checkpoint: Lsn) -> Opened {
    open_with(disk, checkpoint, options()).await
}

pub(super) async fn open_with(disk: Arc<dyn Disk>, checkpoint: Lsn, options: LogOptions) -> Opened {
    let memory = Arc::new(Memory { checkpoint, ..Memory::default() });
    let (log, report) = Log::open(disk, Env::tokio(), options, memory.clone()).await.expect("opens");
    Opened { log, memory, report }
}

pub(super) async fn open<D: Disk + Clone>(disk: &D) -> Opened {
    open_at(Arc::new(disk.clone()), 0).await
}

/// A body that identifies its record.
pub(super) fn body(n: u64, len: usize) -> Bytes {
    (0..len).map(|i| (i as u64).wrapping_mul(31).wrapping_add(n) as u8).collect::<Vec<_>>().into()
}

pub(super) fn record(n: u64, len: usize) -> Record {
    Record { head: n.to_le_bytes().to_vec().into(), body: vec![body(n, len)], version: None }
}

impl Opened {
    pub(super) async fn submit(&self, batch: Vec<Record>, durability: Durability) -> Result<Ticket, LogError> {
        let bytes = batch.iter().map(|r| (r.head.len() + r.body_len()) as u64).sum();
        let room = self.log.reserve(bytes, Priority::Write, Duration::from_secs(10)).await?;
        self.log.submit(room, batch, durability)
    }

    pub(super) async fn put(&self, n: u64, len: usize) -> Lsn {
        self.submit(vec![record(n, len)], Durability::Sync).await.expect("accepted").await.expect("commits").first_lsn
    }

    /// Every record in memory reads back as it was made.
    pub(super) async fn check_all(&self) -> usize {
        let all = self.memory.records.lock().clone();
        for record in &all {
            let n = u64::from_le_bytes(record.head[..].try_into().expect("eight bytes"));
            let len = record.location.body_len;
            let got = self.log.read(record.location, 0..len).await.expect("reads");
            assert_eq!(got, body(n, len as usize), "LSN {}", record.lsn);
        }
        all.len()
    }

    pub(super) fn lsns(&self) -> Vec<Lsn> {
        self.memory.records.lock().iter().map(|r| r.lsn).collect()
    }
}

/// A generator that a seed determines (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    /// A number below `n`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}
