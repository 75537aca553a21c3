//! A small key-value store for the tests of compaction: a complete applier.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::{BoxFuture, Env};

use super::harness::body;
use crate::{
    Applied, Applier, ChunkMove, ChunkOwners, CompactionOptions, Durability, ExtentUsage, Location, Log, LogError,
    LogOptions, Lsn, Priority, Record, RecoveryReport, Subject, Usage,
};

const PUT: u8 = 1;
const DELETE: u8 = 2;
const CHUNK: u8 = 3;

/// Value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModelEntry {
    pub(super) version: Lsn,
    pub(super) seed: u64,
    at: Location,
    chunks: Vec<Location>,
}

impl ModelEntry {
    fn account(&self, usage: &mut Usage, live: bool) {
        for at in self.chunks.iter().chain([&self.at]) {
            let bytes = Log::footprint(at);
            if live { usage.credit(at.extent, at.epoch, bytes) } else { usage.retire(at.extent, at.epoch, bytes) }
        }
    }

    /// Location of its record.
    pub(super) fn location(&self) -> Location {
        self.at
    }
}

/// The state, with its last LSN.
#[derive(Debug, Clone, Default)]
pub(super) struct ModelState {
    pub(super) entries: BTreeMap<u64, ModelEntry>,
    usage: Vec<ExtentUsage>,
    lsn: Lsn,
}

/// A callback.
pub(super) type Hook = Arc<dyn Fn() + Send + Sync>;

struct ModelInner {
    state: ModelState,
    saved: ModelState,
    /// During a replay: deleted keys, and the LSN from which it began.
    replay: Option<(BTreeMap<u64, Lsn>, Lsn)>,
    deletes_dropped: BTreeSet<u64>,
    /// Keys and seeds of unfinished puts: their chunks are live although no record names them yet.
    writing: BTreeSet<(u64, u64)>,
    /// Number of liveness queries for such chunks.
    liveness_queries: u64,
    /// Called before moved chunks are named in a record.
    before_repoint: Option<Hook>,
}

/// The applier.
pub(super) struct Model(Mutex<ModelInner>);

fn encode(kind: u8, key: u64, seed: u64, chunks: &[Location]) -> Bytes {
    let mut head = vec![kind];
    head.extend_from_slice(&key.to_le_bytes());
    head.extend_from_slice(&seed.to_le_bytes());
    for c in chunks {
        head.extend_from_slice(&c.extent.to_le_bytes());
        head.extend_from_slice(&c.epoch.to_le_bytes());
        for n in [c.offset, c.head_len, c.body_len] {
            head.extend_from_slice(&n.to_le_bytes());
        }
    }
    head.into()
}

fn decode(head: &[u8]) -> (u8, u64, u64, Vec<Location>) {
    let u32_at = |b: &[u8], at: usize| u32::from_le_bytes(b[at..at + 4].try_into().expect("4 bytes"));
    let u64_at = |b: &[u8], at: usize| u64::from_le_bytes(b[at..at + 8].try_into().expect("8 bytes"));
    let chunks = head[17..].chunks(24).map(|c| Location {
        extent: u32_at(c, 0),
        epoch: u64_at(c, 4),
        offset: u32_at(c, 12),
        head_len: u32_at(c, 16),
        body_len: u32_at(c, 20),
    });
    (head[0], u64_at(head, 1), u64_at(head, 9), chunks.collect())
}

impl ModelInner {
    fn take(&mut self, r: &Applied, usage: &mut Usage) {
        let (kind, key, seed, chunks) = decode(&r.head);
        let old = self.state.entries.get(&key).cloned();
        let newer = old.as_ref().is_some_and(|old| old.version > r.version);
        if kind == DELETE {
            if let Some((marks, _)) = &mut self.replay {
                let mark = marks.entry(key).or_default();
                *mark = r.version.max(*mark);
            }
            if let Some(old) = old.filter(|_| !newer) {
                old.account(usage, false);
                self.state.entries.remove(&key);
            }
            return;
        }
        let gone = match &self.replay {
            Some((marks, base)) => marks.get(&key).is_some_and(|m| *m > r.version) || r.moved && r.version <= *base,
            None => r.moved,
        };
        if newer || old.is_none() && gone {
            return;
        }
        if let Some(old) = old {
            old.account(usage, false);
        }
        let entry = ModelEntry { version: r.version, seed, at: r.location, chunks };
        entry.account(usage, true);
        self.state.entries.insert(key, entry);
    }
}

impl Applier for Model {
    fn apply(&self, records: &[Applied], usage: &mut Usage) -> usize {
        let mut inner = self.0.lock();
        for record in records {
            inner.take(record, usage);
            inner.state.lsn = record.lsn;
        }
        inner.state.usage = usage.saved();
        records.len()
    }

    fn checkpoint(&self) -> Lsn {
        self.0.lock().saved.lsn
    }

    fn usage(&self) -> Vec<ExtentUsage> {
        self.0.lock().saved.usage.clone()
    }

    fn record_is_live(&self, head: &[u8], version: Lsn, location: &Location, oldest: Lsn) -> Option<bool> {
        let mut inner = self.0.lock();
        let (kind, key, _, _) = decode(head);
        Some(match inner.state.entries.get(&key) {
            Some(entry) if kind == DELETE => entry.version < version,
            Some(entry) => entry.at == *location,
            None => {
                if kind == DELETE && version < oldest {
                    inner.deletes_dropped.insert(key);
                }
                kind == DELETE && version >= oldest
            }
        })
    }

    fn subject(&self, head: &[u8]) -> Subject {
        match decode(head) {
            (DELETE, key, ..) => Subject::Delete(key),
            (_, key, ..) => Subject::Put(key),
        }
    }
}

impl ChunkOwners for Model {
    fn chunk_is_live<'a>(&'a self, _log: &'a Log, head: &'a [u8], location: &'a Location) -> BoxFuture<'a, bool> {
        let (_, key, seed, _) = decode(head);
        let mut inner = self.0.lock();
        let writing = inner.writing.contains(&(key, seed));
        inner.liveness_queries += u64::from(writing);
        let live = writing || inner.state.entries.get(&key).is_some_and(|e| e.chunks.contains(location));
        Box::pin(async move { live })
    }

    fn repoint<'a>(
        &'a self,
        log: &'a Log,
        moves: BTreeMap<Bytes, Vec<ChunkMove>>,
    ) -> BoxFuture<'a, Result<(), LogError>> {
        Box::pin(async move {
            let before = self.0.lock().before_repoint.clone();
            if let Some(before) = before {
                before();
            }
            for (head, moves) in moves {
                self.repoint_one(log, &head, &moves).await?;
            }
            Ok(())
        })
    }
}

impl Model {
    async fn repoint_one(&self, log: &Log, head: &Bytes, moves: &[ChunkMove]) -> Result<(), LogError> {
        let (_, key, seed, _) = decode(head);
        let entry = {
            let inner = self.0.lock();
            // Chunks of an unfinished put stay where they are until its record is committed.
            if inner.writing.contains(&(key, seed)) {
                return Err(LogError::Moved);
            }
            inner.state.entries.get(&key).cloned()
        };
        let Some(mut entry) = entry else { return Ok(()) };
        for chunk in &mut entry.chunks {
            if let Some(to) = moves.iter().find(|m| m.from == *chunk) {
                *chunk = to.to;
            }
        }
        let head = encode(PUT, key, entry.seed, &entry.chunks);
        let room = log.reserve(head.len() as u64, Priority::Compaction, Duration::from_secs(10)).await?;
        let record = Record { head, body: Vec::new(), version: Some(entry.version) };
        log.submit(room, vec![record], Durability::Sync)?.await.map(drop)
    }

    /// A model that gets the records of a log from its beginning.
    pub(super) fn replaying() -> Self {
        Self(Mutex::new(ModelInner {
            state: ModelState::default(),
            saved: ModelState::default(),
            replay: Some((BTreeMap::new(), 0)),
            deletes_dropped: BTreeSet::new(),
            writing: BTreeSet::new(),
            liveness_queries: 0,
            before_repoint: None,
        }))
    }

    /// Keys with versions and values, without locations.
    pub(super) fn content(&self) -> BTreeMap<u64, (Lsn, u64)> {
        self.0.lock().state.entries.iter().map(|(key, e)| (*key, (e.version, e.seed))).collect()
    }

    /// Each piece of each value: the value's seed, the piece's location, its number.
    pub(super) fn parts(&self) -> Vec<(u64, Location, u64)> {
        let inner = self.0.lock();
        let parts = |e: &ModelEntry| if e.chunks.is_empty() { vec![e.at] } else { e.chunks.clone() };
        let all = inner.state.entries.values().map(|e| (e.seed, parts(e)));
        all.flat_map(|(seed, parts)| (0..).zip(parts).map(move |(i, at)| (seed, at, i))).collect()
    }
}

/// A log with the model on it.
pub(super) struct Kv {
    pub(super) log: Log,
    pub(super) model: Arc<Model>,
    pub(super) report: RecoveryReport,
}

pub(super) fn options() -> LogOptions {
    LogOptions {
        compaction: CompactionOptions {
            bytes_s: 0,
            interval: Duration::from_millis(1),
            ..CompactionOptions::default()
        },
        ..super::harness::options()
    }
}

impl Kv {
    /// Opens from a saved state; the default is empty.
    pub(super) async fn open(disk: &MemDisk, saved: ModelState, options: LogOptions) -> Self {
        Self::open_with_hook(Arc::new(disk.clone()), saved, options, None).await
    }

    /// As [`Kv::open`] on any disk, with a hook that runs before moved chunks are named in a
    /// record.
    pub(super) async fn open_with_hook(
        disk: Arc<dyn Disk>,
        saved: ModelState,
        options: LogOptions,
        before_repoint: Option<Hook>,
    ) -> Self {
        let base = saved.lsn;
        let inner = ModelInner {
            state: saved.clone(),
            saved,
            replay: Some((BTreeMap::new(), base)),
            deletes_dropped: BTreeSet::new(),
            writing: BTreeSet::new(),
            liveness_queries: 0,
            before_repoint,
        };
        let model = Arc::new(Model(Mutex::new(inner)));
        let (log, report) = Log::open(disk, Env::tokio(), options, model.clone()).await.expect("opens");
        model.0.lock().replay = None;
        Self { log, model, report }
    }

    /// Stops like a crash: nothing is sealed, and committed records stay.
    pub(super) async fn crash(self) -> ModelState {
        self.log.shared.background.stop().await;
        self.log.flush().await.expect("flushes");
        self.model.0.lock().saved.clone()
    }

    pub(super) async fn put(&self, key: u64, seed: u64, len: usize) -> Result<(), LogError> {
        let record = Record { head: encode(PUT, key, seed, &[]), body: vec![body(seed, len)], version: None };
        let room = self.log.reserve(len as u64 + 17, Priority::Write, Duration::from_secs(10)).await?;
        self.log.submit(room, vec![record], Durability::Sync)?.await.map(drop)
    }

    pub(super) async fn put_chunks(&self, key: u64, seed: u64, lens: &[usize]) -> Result<(), LogError> {
        self.model.0.lock().writing.insert((key, seed));
        let put = self.put_with_chunks(key, seed, lens).await;
        self.model.0.lock().writing.remove(&(key, seed));
        put
    }

    /// Chunks of an unfinished put; [`Kv::give_up`] ends it without a commit.
    pub(super) async fn begin_chunks(&self, key: u64, seed: u64, lens: &[usize]) {
        self.model.0.lock().writing.insert((key, seed));
        for (i, len) in lens.iter().enumerate() {
            self.chunk(key, seed, i as u64, *len).await.expect("a chunk");
        }
    }

    pub(super) fn liveness_queries_while_writing(&self) -> u64 {
        self.model.0.lock().liveness_queries
    }

    pub(super) fn give_up(&self, key: u64, seed: u64) {
        self.model.0.lock().writing.remove(&(key, seed));
    }

    async fn chunk(&self, key: u64, seed: u64, at: u64, len: usize) -> Result<Location, LogError> {
        let room = self.log.reserve(len as u64, Priority::Write, Duration::from_secs(10)).await?;
        let mut chunk = self.log.chunk(len).await?;
        chunk.put(&body(seed + at, len));
        self.log.write_chunk(&room, encode(CHUNK, key, seed, &[]), chunk).await
    }

    async fn put_with_chunks(&self, key: u64, seed: u64, lens: &[usize]) -> Result<(), LogError> {
        let mut chunks = Vec::new();
        for (i, len) in lens.iter().enumerate() {
            chunks.push(self.chunk(key, seed, i as u64, *len).await?);
        }
        let head = encode(PUT, key, seed, &chunks);
        let room = self.log.reserve(head.len() as u64, Priority::Write, Duration::from_secs(10)).await?;
        let record = Record { head, body: Vec::new(), version: None };
        self.log.submit(room, vec![record], Durability::Sync)?.await.map(drop)
    }

    pub(super) async fn delete(&self, key: u64) -> Result<(), LogError> {
        let room = self.log.reserve(17, Priority::Delete, Duration::from_secs(10)).await?;
        let record = Record { head: encode(DELETE, key, 0, &[]), body: Vec::new(), version: None };
        self.log.submit(room, vec![record], Durability::Sync)?.await.map(drop)
    }

    /// Saves the state, as a store persists its index.
    pub(super) async fn save(&self) {
        let state = self.model.0.lock().state.clone();
        self.log.flush().await.expect("flushes");
        self.model.0.lock().saved = state;
    }

    pub(super) fn state(&self) -> ModelState {
        self.model.0.lock().state.clone()
    }

    /// Keys with versions and values, without locations.
    pub(super) fn content(&self) -> BTreeMap<u64, (Lsn, u64)> {
        self.model.content()
    }

    pub(super) fn deletes_dropped(&self) -> usize {
        self.model.0.lock().deletes_dropped.len()
    }

    /// Every value reads back as it was written.
    pub(super) async fn check_all(&self) {
        for key in self.state().entries.into_keys() {
            let mut tries = 0;
            'again: loop {
                tries += 1;
                assert!(tries < 1000, "key {key} moves all the time");
                let Some(entry) = self.state().entries.get(&key).cloned() else { break };
                let parts: Vec<_> = if entry.chunks.is_empty() { vec![entry.at] } else { entry.chunks.clone() };
                for (i, at) in parts.iter().enumerate() {
                    match self.log.read(*at, 0..at.body_len).await {
                        Ok(got) => assert_eq!(got, body(entry.seed + i as u64, at.body_len as usize), "key {key}"),
                        Err(LogError::Moved) => continue 'again,
                        Err(error) => panic!("key {key}: {error}"),
                    }
                }
                break;
            }
        }
    }
}
