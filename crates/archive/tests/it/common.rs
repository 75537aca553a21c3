//! A pool with an archive, and what is known of its content.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use steadfast_archive::{
    Archive, ArchiveError, ArchiveOptions, ArchiveParts, ArchiveReader, ArchivedPool, DiskId, ImagePool, RestoreError,
    RestorePlace, StateKeeper, TransferProgress,
};
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::{BoxFuture, Env, Lease, Runtime};
use steadfast_log::{CompactionOptions, Durability, FormatOptions, Log, LogOptions, Priority};
use steadfast_net::{Fate, Fates, MemoryStore, RemoteCall, RemoteError};
use steadfast_store::{
    Attributes, BucketSettings, Condition, HistoryQuery, IndexKind, NewPublication, OpenReport, PoolDisk, Store,
    StoreError, StoreOptions,
};

pub const BUCKET: &str = "b";
const CHANNEL: &str = "news";
pub const DISK_BYTES: u64 = 64 << 20;

/// Random numbers.
pub struct Random(pub AtomicU64);

impl Random {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)))
    }

    pub fn below(&self, bound: u64) -> u64 {
        let next = |x: u64| x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let before = self.0.fetch_update(Relaxed, Relaxed, |x| Some(next(x))).expect("always some");
        (next(before) >> 33) % bound
    }
}

/// A machine whose wall clock is ahead by some milliseconds.
#[derive(Clone)]
pub struct Ahead(pub Arc<AtomicU64>);

impl Ahead {
    pub fn new(ms: u64) -> Self {
        Self(Arc::new(AtomicU64::new(ms)))
    }

    pub fn env(&self) -> Env {
        Env::new(AheadRuntime(Env::tokio(), self.clone()))
    }
}

struct AheadRuntime(Env, Ahead);

impl Runtime for AheadRuntime {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn wall_ms(&self) -> u64 {
        self.0.wall_ms() + self.1.0.load(Relaxed)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.0.spawn(name, task);
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let env = self.0.clone();
        Box::pin(async move { env.blocking(work).await.unwrap_or_default() })
    }

    fn random_u64(&self) -> u64 {
        self.0.random_u64()
    }
}

/// Owner numbers in memory.
#[derive(Debug, Default)]
pub struct Kept(pub Mutex<Option<Vec<u8>>>);

impl StateKeeper for Kept {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().clone())
    }

    fn save(&self, bytes: &[u8]) -> io::Result<()> {
        *self.0.lock() = Some(bytes.to_vec());
        Ok(())
    }

    fn place(&self) -> String {
        "memory".to_owned()
    }
}

/// All requests are answered at once.
pub fn well() -> Fates {
    Arc::new(|_| Fate::Answered(Duration::ZERO))
}

/// Each request fails.
pub fn away() -> Fates {
    Arc::new(|_| Fate::Failed(RemoteError::Unknown("the store is away".to_owned())))
}

/// Many requests are lost, late, doubled or refused.
pub fn bad(seed: u64) -> Fates {
    let random = Random::new(seed);
    Arc::new(move |call| {
        let after = Duration::from_millis(random.below(4));
        let writes = matches!(call, RemoteCall::Create(_) | RemoteCall::Replace(_) | RemoteCall::Delete);
        match random.below(12) {
            0 => Fate::Lost(after),
            1 if writes => Fate::Late(after),
            2 if writes => Fate::Twice(after * 50),
            3 => Fate::Failed(RemoteError::Slow("503".to_owned())),
            _ => Fate::Answered(after),
        }
    })
}

/// What a pool holds: objects by key, and how many publications.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    pub objects: BTreeMap<String, Vec<u8>>,
    pub publications: usize,
}

/// A pool on disks in memory.
pub struct Pool {
    pub mem: Vec<Arc<MemDisk>>,
    pub kept: Arc<Kept>,
    pub remote: MemoryStore,
    pub archive_options: ArchiveOptions,
    /// The environment of the archive.
    pub env: Env,
    /// Until when its clients are answered.
    pub lease: Lease,
}

fn store_options() -> StoreOptions {
    StoreOptions {
        log: LogOptions {
            followed: true,
            compaction: CompactionOptions { interval: Duration::from_millis(20), ..CompactionOptions::default() },
            ..LogOptions::default()
        },
        inline_max_bytes: 2000,
        chunk_bytes: 10_000,
        read_piece_bytes: 4096,
        cache_bytes: 1 << 20,
        ..StoreOptions::default()
    }
}

pub fn archive_options() -> ArchiveOptions {
    ArchiveOptions {
        interval: Duration::from_millis(5),
        claim_wait: Duration::from_secs(20),
        inline_bytes_max: 16 << 10,
        segments_max: 8,
        machine: "test".to_owned(),
        pool: "pool".to_owned(),
        ..ArchiveOptions::default()
    }
}

impl Pool {
    pub async fn new(disks: usize) -> Self {
        let mut mem = Vec::new();
        for _ in 0..disks {
            let disk = Arc::new(MemDisk::growable(DISK_BYTES));
            let any: Arc<dyn Disk> = disk.clone();
            let format = FormatOptions { extent_bytes: Some(1 << 20), ..FormatOptions::default() };
            Log::format(&any, &Env::tokio(), &format).await.expect("formatted");
            mem.push(disk);
        }
        let remote = MemoryStore::new(&Env::tokio(), well());
        let (env, lease) = (Env::tokio(), Lease::unlimited(&Env::tokio()));
        Self { mem, kept: Arc::default(), remote, archive_options: archive_options(), env, lease }
    }

    /// The same machine as it would be after a power cut now.
    pub fn copy(&self) -> Self {
        let kept = Kept(Mutex::new(self.kept.0.lock().clone()));
        Self {
            mem: self.mem.iter().map(|disk| Arc::new(disk.image())).collect(),
            kept: Arc::new(kept),
            remote: self.remote.clone(),
            archive_options: self.archive_options.clone(),
            env: self.env.clone(),
            lease: Lease::unlimited(&self.env),
        }
    }

    pub async fn open(&self) -> Store {
        open(&self.mem).await
    }

    pub async fn archive(&self, store: &Store) -> Result<Archive, ArchiveError> {
        self.archive_with(store, self.remote.clone()).await
    }

    pub async fn archive_with(&self, store: &Store, remote: MemoryStore) -> Result<Archive, ArchiveError> {
        let parts = ArchiveParts {
            store: Arc::new(remote),
            keeper: self.kept.clone(),
            members: Arc::new(store.clone()),
            lease: self.lease.clone(),
        };
        Archive::start(parts, self.archive_options.clone(), &self.env).await
    }

    /// A pool restored from what the archive has now, which is copied first.
    pub async fn restored(&self) -> Result<Store, String> {
        self.restored_onto((0..self.mem.len()).map(|_| Arc::new(MemDisk::growable(DISK_BYTES))).collect()).await
    }

    /// The same onto disks that hold what this pool has now, which is newer.
    pub async fn restored_onto_used(&self) -> Result<Store, String> {
        self.restored_onto(self.copy().mem).await
    }

    async fn restored_onto(&self, mem: Vec<Arc<MemDisk>>) -> Result<Store, String> {
        let now = MemoryStore::new(&Env::tokio(), well());
        self.remote.objects().into_iter().for_each(|(name, body)| now.force(&name, Some(body)));
        let reader = ArchiveReader::new(Arc::new(now), None, &Env::tokio());
        restore(&reader.newest().await.map_err(|e| e.to_string())?, &mem).await?;
        Ok(open(&mem).await)
    }

    /// Reads the archive through a store that may fail for a while.
    pub fn reader_of(&self, remote: &MemoryStore) -> ArchiveReader {
        ArchiveReader::new(Arc::new(remote.clone()), Some(Duration::from_secs(10)), &self.env)
    }

    /// Reads the archive.
    pub fn reader(&self) -> ArchiveReader {
        ArchiveReader::new(Arc::new(self.remote.clone()), Some(Duration::from_millis(100)), &Env::tokio())
    }

    /// The machine after a power cut now, which its tasks do not survive.
    pub fn cut_off(&mut self) {
        let copy = self.copy();
        (self.mem, self.kept, self.lease) = (copy.mem, copy.kept, copy.lease);
    }

    /// A machine with blank disks that knows nothing of the pool.
    pub fn blank(&self) -> Self {
        let mem = self.mem.iter().map(|_| Arc::new(MemDisk::growable(DISK_BYTES))).collect();
        let (remote, archive_options) = (self.remote.clone(), self.archive_options.clone());
        let (env, lease) = (self.env.clone(), Lease::unlimited(&self.env));
        Self { mem, kept: Arc::default(), remote, archive_options, env, lease }
    }

    /// As [`Pool::open`], for disks with damage.
    pub async fn open_damaged(&self) -> Store {
        let named = self.mem.iter().enumerate().map(|(i, disk)| (format!("d{i}"), disk.clone() as Arc<dyn Disk>));
        open_disks(named, store_options(), &Env::tokio()).await.expect("it opens").0
    }

    /// As [`Pool::open`], for disks that were restored.
    pub async fn open_restored(&self) -> Store {
        open_with(&self.mem, StoreOptions { put_back: true, ..store_options() }).await
    }
}

/// Makes a disk.
pub async fn restore_disk(
    archived: &ArchivedPool,
    disk: DiskId,
    place: &RestorePlace<'_>,
    progress: &TransferProgress,
) -> Result<(), RestoreError> {
    archived.fill(disk, place, progress).await?;
    archived.finish(disk, place).await
}

/// Makes all disks of a state.
pub async fn restore(archived: &ArchivedPool, mem: &[Arc<MemDisk>]) -> Result<(), String> {
    let disks = archived.disks();
    assert_eq!(disks.len(), mem.len(), "all disks");
    for of in disks {
        let disk = mem.iter().enumerate().find(|(i, _)| of.name == format!("d{i}")).expect("a disk of this name").1;
        let any: Arc<dyn Disk> = disk.clone();
        let progress = TransferProgress::default();
        restore_disk(archived, of.id, &RestorePlace::new(&any), &progress).await.map_err(|e| e.to_string())?;
        assert_eq!(progress.done(), of.bytes, "all bytes");
    }
    Ok(())
}

async fn open(mem: &[Arc<MemDisk>]) -> Store {
    open_with(mem, store_options()).await
}

async fn open_with(mem: &[Arc<MemDisk>], options: StoreOptions) -> Store {
    let named = |(i, disk): (usize, &Arc<MemDisk>)| (format!("d{i}"), disk.clone() as Arc<dyn Disk>);
    let opened = open_disks(mem.iter().enumerate().map(named), options, &Env::tokio()).await;
    let (store, report) = opened.expect("it opens");
    check(&report, false);
    store
}

async fn open_disks(
    disks: impl Iterator<Item = (String, Arc<dyn Disk>)>,
    options: StoreOptions,
    env: &Env,
) -> Result<(Store, OpenReport), StoreError> {
    let disks = disks.map(|(name, disk)| PoolDisk { name, disk: Ok(disk), hint: false }).collect();
    Store::open_pool(disks, IndexKind::memory(), env.clone(), options).await
}

/// Fails if a disk is not well.
fn check(report: &OpenReport, for_reading: bool) {
    for (disk, report) in &report.disks {
        assert!(report.damage.is_empty() && report.read_only == for_reading, "{disk}: {report:?}");
    }
    assert!(report.missing.is_empty(), "{report:?}");
}

/// A state, served from its archive.
pub async fn serve(state: ArchivedPool, env: &Env) -> Store {
    let (store, report) = try_serve(state, env).await.expect("it opens");
    check(&report, true);
    store
}

/// Opens the disks of a state.
pub async fn open_images(images: &ImagePool, env: &Env) -> Result<(Store, OpenReport), String> {
    let mut options = store_options();
    options.log = LogOptions { for_reading: true, ..LogOptions::default() };
    let disks = images.disks().map(|(name, disk)| (name.to_owned(), Arc::new(disk.clone()) as Arc<dyn Disk>));
    images.opening(open_disks(disks, options, env)).await
}

/// The same, or why something is missing of it.
pub async fn try_serve(state: ArchivedPool, env: &Env) -> Result<(Store, OpenReport), String> {
    let images = state.open();
    let (store, report) = open_images(&images, env).await?;
    match images.lacking(&report) {
        Some(lacking) => {
            store.close().await.expect("closed");
            Err(lacking)
        }
        None => Ok((store, report)),
    }
}

pub async fn create(store: &Store) {
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("a bucket");
}

pub async fn put(store: &Store, key: &str, data: &[u8]) {
    let mut writer = store.at(BUCKET, key).writer(None).await.expect("room");
    for piece in data.chunks(9000) {
        writer.write(Bytes::copy_from_slice(piece)).await.expect("written");
    }
    let attributes = Attributes { etag: "e".into(), ..Attributes::default() };
    writer.commit(attributes, Condition::None, None).await.expect("put");
}

pub async fn publish(store: &Store, n: usize) {
    let publication = NewPublication {
        body: Bytes::from(n.to_string()),
        history_size: 100_000,
        history_ttl_ms: 3_600_000,
        durability: Durability::Sync,
        priority: Priority::Write,
        key: None,
    };
    store.channel(CHANNEL).expect("a channel").publish(publication).await.expect("published");
}

pub async fn get(store: &Store, key: &str) -> Result<Vec<u8>, StoreError> {
    let reader = store.at(BUCKET, key).reader().await?;
    let mut out = Vec::new();
    let mut pieces = std::pin::pin!(reader.stream(0..u64::MAX));
    while let Some(piece) = pieces.next().await {
        out.extend_from_slice(&piece?);
    }
    Ok(out)
}

/// The content of a store, by the keys that may be there.
pub async fn content(store: &Store, keys: u64) -> Content {
    let mut objects = BTreeMap::new();
    for n in 0..keys {
        let key = format!("k{n}");
        match get(store, &key).await {
            Ok(data) => _ = objects.insert(key, data),
            Err(StoreError::NoSuchKey | StoreError::NoSuchBucket) => {}
            Err(e) => panic!("{key}: {e}"),
        }
    }
    Content { objects, publications: history(store).await.expect("readable") }
}

/// How many publications a store has.
pub async fn history(store: &Store) -> Result<usize, StoreError> {
    let query = HistoryQuery { since: None, limit: usize::MAX, reverse: false };
    let history = store.channel(CHANNEL)?.history(query).await?;
    let texts = history.publications.iter().map(|p| String::from_utf8_lossy(&p.body).into_owned());
    assert!(texts.eq((0..history.publications.len()).map(|n| n.to_string())), "publications in order, without a gap");
    Ok(history.publications.len())
}

/// One client that changes a pool, and each state that there was.
pub struct Client {
    random: Arc<Random>,
    pub keys: u64,
    now: Content,
    pub states: Vec<Content>,
}

impl Client {
    pub fn new(seed: u64, keys: u64) -> Self {
        Self::at(Content::default(), seed, keys)
    }

    /// One that continues at a state.
    pub fn at(now: Content, seed: u64, keys: u64) -> Self {
        Self { random: Random::new(seed), keys, states: vec![now.clone()], now }
    }

    /// Makes one change.
    pub async fn step(&mut self, store: &Store) {
        let key = format!("k{}", self.random.below(self.keys));
        match self.random.below(8) {
            0 => {
                store.at(BUCKET, &key).delete(Condition::None, None).await.expect("deleted");
                self.now.objects.remove(&key);
            }
            1 | 2 => {
                publish(store, self.now.publications).await;
                self.now.publications += 1;
            }
            kind => {
                let len = if kind == 3 { 60_000 } else { 3000 };
                let len = self.random.below(len) as usize;
                let fill = self.random.below(256) as u8;
                let data: Vec<u8> = (0..len).map(|i| fill ^ (i / 7) as u8).collect();
                put(store, &key, &data).await;
                self.now.objects.insert(key, data);
            }
        }
        self.states.push(self.now.clone());
    }

    /// The number of the state, looked for from the newest on.
    pub fn find(&self, content: &Content) -> Option<usize> {
        self.states.iter().rposition(|state| state == content)
    }
}

/// Waits until the archive has all that is durable.
pub async fn caught_up(archive: &Archive) {
    let env = Env::tokio();
    let begun_ms = env.wall_ms();
    for _ in 0..2000 {
        let status = archive.status();
        assert_eq!(status.error, None);
        if status.looked_ms > begun_ms
            && status.archived_ms.is_some()
            && status.lag_bytes == 0
            && status.lag_seconds == 0.0
        {
            return;
        }
        env.sleep(Duration::from_millis(10)).await;
    }
    panic!("the archive does not catch up: {:?}", archive.status());
}
