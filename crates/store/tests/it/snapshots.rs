//! Snapshots: they keep all content of their moment, whatever happens later, on one disk and on
//! several. A deleted snapshot leaves nothing behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::common::{BUCKET, bytes_of, etag, get, options, put};
use bytes::Bytes;
use futures::StreamExt;
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_log::{CompactionOptions, FormatOptions, Log, LogError};
use steadfast_store::{
    BucketSettings, Condition, IndexKind, PartChoice, PoolDisk, Snapshot, Store, StoreError, StoreOptions, StoredObject,
};

/// Bytes and metadata, by bucket and key.
type Content = BTreeMap<(String, String), (StoredObject, Vec<u8>)>;

/// Disks that can be copied at any moment.
#[derive(Clone)]
struct Pool {
    disks: Vec<MemDisk>,
    index: IndexKind,
    options: StoreOptions,
}

impl Pool {
    async fn new(count: usize, bytes: u64) -> Self {
        let mut disks = Vec::new();
        for _ in 0..count {
            let disk = MemDisk::growable(bytes);
            let shared: Arc<dyn Disk> = Arc::new(disk.clone());
            let format = FormatOptions { extent_bytes: Some(1 << 20), ..FormatOptions::default() };
            Log::format(&shared, &Env::tokio(), &format).await.expect("format");
            disks.push(disk);
        }
        let mut options = StoreOptions { checkpoint_log_bytes: 200_000, ..options() };
        options.log.compaction =
            CompactionOptions { bytes_s: 0, interval: Duration::from_millis(2), ..CompactionOptions::default() };
        Self { disks, index: IndexKind::memory(), options }
    }

    async fn open(&self) -> Store {
        let named = |(i, disk): (usize, &MemDisk)| {
            let disk: Arc<dyn Disk> = Arc::new(disk.clone());
            PoolDisk { name: format!("d{i}"), disk: Ok(disk), hint: false }
        };
        let disks = self.disks.iter().enumerate().map(named).collect();
        Store::open_pool(disks, self.index.clone(), Env::tokio(), self.options.clone()).await.expect("open").0
    }

    /// The state that a crash at this moment leaves, without the index. The first disk is copied
    /// first: it is written last.
    fn image(&self) -> Self {
        let disks = self.disks.iter().map(MemDisk::image).collect();
        Self { disks, index: IndexKind::memory(), options: self.options.clone() }
    }
}

async fn bytes(reader: steadfast_store::ObjectReader) -> Vec<u8> {
    let mut out = Vec::new();
    let mut pieces = std::pin::pin!(reader.stream(0..u64::MAX));
    while let Some(piece) = pieces.next().await {
        out.extend_from_slice(&piece.expect("reads"));
    }
    out
}

async fn content(store: &Store) -> Content {
    let mut all = Content::new();
    for bucket in store.buckets().all().expect("buckets") {
        let query = steadfast_store::ListQuery { limit: 100_000, ..Default::default() };
        for entry in store.contents(&bucket.name).objects(&query).expect("lists").objects {
            let reader = store.at(&bucket.name, &entry.key).reader().await.expect("there");
            let stored = reader.stored();
            all.insert((bucket.name.clone(), entry.key), (stored, bytes(reader).await));
        }
    }
    all
}

async fn frozen(snapshot: Snapshot) -> Content {
    let snapshot = Arc::new(snapshot);
    let mut all = Content::new();
    for bucket in snapshot.buckets() {
        let mut after = None;
        loop {
            let page = snapshot.next_page(&bucket.name, after, 7).await.expect("a page");
            let Some(last) = page.last() else { break };
            after = Some(last.info.key.clone());
            for object in page {
                let reader = snapshot.reader(&bucket.name, &object).await.expect("there");
                assert_eq!(reader.info(), &object.info);
                let stored = reader.stored();
                let key = (bucket.name.clone(), object.info.key);
                assert!(all.insert(key, (stored, bytes(reader).await)).is_none(), "given twice");
            }
        }
    }
    all
}

async fn read(store: &Store, name: &str) -> Content {
    frozen(store.snapshots().open(name, None, 0, |_| {}).await.expect("opens")).await
}

async fn multipart(store: &Store, key: &str, seed: u64) {
    let upload = store.at(BUCKET, key).create_upload(etag(""), Condition::None).await.expect("begins").upload_id;
    let mut choices = Vec::new();
    for (number, len) in [(1u16, 15_000usize), (3, 2_500)] {
        let mut part = store.at(BUCKET, key).upload(&upload).writer(number, None).await.expect("a part");
        part.write(bytes_of(seed + u64::from(number), len).into()).await.expect("written");
        let tag = format!("p{number}");
        part.commit(etag(&tag), Condition::None, None).await.expect("stored");
        choices.push(PartChoice { number, etag: tag });
    }
    let done = store.at(BUCKET, key).upload(&upload).complete(choices, etag("m-2"), Condition::None, None).await;
    done.expect("completed");
}

/// Creates, changes and deletes objects.
async fn churn(store: &Store, from: u64, ops: u64) {
    for op in from..from + ops {
        let key = format!("k{}", op.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58);
        match op % 9 {
            0 | 5 => assert!(store.at(BUCKET, &key).delete(Condition::None, None).await.expect("a delete").durable),
            1 => assert!(put(store, &key, &bytes_of(op, 45_000)).await.durable),
            2 => multipart(store, &key, op).await,
            3 => match store.at(BUCKET, &key).set_tags(BTreeMap::from([("op".to_owned(), op.to_string())])).await {
                Ok(_) | Err(StoreError::NoSuchKey) => {}
                Err(e) => panic!("{e}"),
            },
            _ => assert!(put(store, &key, &bytes_of(op, 1500)).await.durable),
        }
    }
}

async fn life(disks: usize) {
    let mut pool = Pool::new(disks, 256 << 20).await;
    let mut store = pool.open().await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    store.buckets().create("empty", BucketSettings::default()).await.expect("bucket");
    let mut known: BTreeMap<String, Content> = BTreeMap::new();
    for round in 0..3u64 {
        churn(&store, round * 1000, 200).await;
        let name = format!("s{round}");
        let info = store.snapshots().create(&name).await.expect("made");
        assert!(info.whole && info.disks == disks as u64, "{info:?}");
        assert!(matches!(store.snapshots().create(&name).await, Err(StoreError::SnapshotExists)));
        known.insert(name, content(&store).await);
        churn(&store, round * 1000 + 200, 300).await;
        if round == 1 {
            // All content is deleted, and its bucket too.
            let keys = content(&store).await.into_keys().map(|(_, key)| key).collect();
            assert!(store.contents(BUCKET).delete(keys, None).await.iter().all(Result::is_ok));
            store.buckets().delete(BUCKET).await.expect("empty");
            store.buckets().create(BUCKET, BucketSettings::default()).await.expect("anew");
        }
        for (name, content) in &known {
            assert!(read(&store, name).await == *content, "{name} in round {round}");
        }
        // A crash that leaves only the log; or a clean close.
        if round == 0 {
            pool = pool.image();
        } else {
            store.close().await.expect("closes");
        }
        store = pool.open().await;
        let names: Vec<_> = store.snapshots().all().into_iter().map(|s| (s.name, s.whole)).collect();
        assert_eq!(names, known.keys().map(|name| (name.clone(), true)).collect::<Vec<_>>());
        for (name, content) in &known {
            assert!(read(&store, name).await == *content, "{name} after round {round}");
        }
    }
    let kept = store.snapshots().kept().expect("there are some");
    assert!(kept.0 > 0 && kept.1 == "s0", "{kept:?}");
    // A snapshot that is being read stays readable when it is deleted.
    let reading = store.snapshots().open("s0", None, 0, |_| {}).await.expect("opens");
    for name in ["s0", "s1", "s2"] {
        store.snapshots().delete(name).await.expect("deleted");
        assert!(matches!(store.snapshots().delete(name).await, Err(StoreError::NoSuchSnapshot)));
    }
    churn(&store, 9000, 300).await;
    assert!(frozen(reading).await == known["s0"], "read after it was deleted");
    let now = content(&store).await;
    let again = pool.image().open().await;
    assert!(again.snapshots().all().is_empty());
    assert!(content(&again).await == now);
    assert_eq!(again.status().log.extents.held, 0);
}

#[tokio::test]
async fn snapshots_of_one_disk() {
    life(1).await;
}

#[tokio::test]
async fn snapshots_of_three_disks() {
    life(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_holds_space_and_gives_it_back() {
    let mut pool = Pool::new(1, 24 << 20).await;
    pool.index = IndexKind::memory();
    let store = pool.open().await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    for n in 0..250 {
        put(&store, &format!("k{n}"), &bytes_of(n, 40_000)).await;
    }
    store.snapshots().create("before").await.expect("made");
    let before = content(&store).await;
    let again = async |n: u64| {
        let mut writer = store.at(BUCKET, &format!("k{}", n % 250)).writer(None).await?;
        writer.write(Bytes::from(bytes_of(1000 + n, 40_000))).await?;
        writer.commit(etag("e"), Condition::None, None).await
    };
    let mut full = None;
    for n in 0..2000 {
        match again(n).await {
            Ok(_) => {}
            Err(StoreError::Log(LogError::Full)) => {
                full = Some(n);
                break;
            }
            Err(e) => panic!("{e}"),
        }
    }
    let n = full.expect("the snapshot holds what is overwritten, so the pool is full at last");
    let (kept, name) = store.snapshots().kept().expect("there is one");
    assert!(kept > 4 << 20 && name == "before", "{kept} {name}");
    assert!(read(&store, "before").await == before, "whole in a full pool");
    store.snapshots().delete("before").await.expect("a full pool takes this");
    let env = Env::tokio();
    let mut tries = 0;
    for n in n..n + 500 {
        while let Err(e) = again(n).await {
            tries += 1;
            assert!(matches!(e, StoreError::Log(LogError::Full) | StoreError::Busy(_)) && tries < 2000, "{e}");
            env.sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!(get(&store, "k1").await.expect("there").len(), 40_000);
    assert_eq!(store.status().log.extents.held_bytes, 0);
}

/// Lets every other task run once.
async fn turn() {
    let mut waited = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// A crash while a snapshot is made or deleted leaves a complete snapshot or none.
async fn crash_at_every_step(disks: usize) {
    let pool = Pool::new(disks, 128 << 20).await;
    let store = pool.open().await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    churn(&store, 0, 120).await;
    let before = content(&store).await;
    for making in [true, false] {
        let images = Arc::new(parking_lot::Mutex::new(vec![pool.image()]));
        let done = Arc::new(AtomicBool::new(false));
        Env::tokio().spawn("images", {
            let (pool, images, done) = (pool.clone(), images.clone(), done.clone());
            async move {
                let mut last = 0;
                while !done.load(Relaxed) {
                    let writes = pool.disks.iter().map(|disk| disk.stats().writes).sum();
                    if writes != last {
                        images.lock().push(pool.image());
                        last = writes;
                    }
                    turn().await;
                }
            }
        });
        if making {
            store.snapshots().create("s").await.expect("made");
        } else {
            store.snapshots().delete("s").await.expect("deleted");
        }
        done.store(true, Relaxed);
        let mut images = std::mem::take(&mut *images.lock());
        images.push(pool.image());
        let mut there = [0, 0];
        for image in &images {
            let store = image.open().await;
            let snapshots = store.snapshots().all();
            there[usize::from(!snapshots.is_empty())] += 1;
            if !snapshots.is_empty() {
                assert!(snapshots[0].whole, "{snapshots:?}");
                assert!(read(&store, "s").await == before);
            }
            assert_eq!(store.status().log.extents.held > 0, !snapshots.is_empty());
            assert!(content(&store).await == before);
            // Leftovers of an unfinished snapshot do not block a new one.
            if snapshots.is_empty() {
                store.snapshots().create("s").await.expect("made");
            }
        }
        assert!(there[0] > 0 && there[1] > 0, "{there:?} of {}", images.len());
    }
}

#[tokio::test]
async fn a_crash_leaves_a_whole_snapshot_or_none_on_one_disk() {
    crash_at_every_step(1).await;
}

#[tokio::test]
async fn a_crash_leaves_a_whole_snapshot_or_none_on_three_disks() {
    crash_at_every_step(3).await;
}

#[tokio::test]
async fn names_and_numbers_are_bounded() {
    let mut pool = Pool::new(1, 64 << 20).await;
    pool.options.snapshots_max = 2;
    let store = pool.open().await;
    for bad in ["", ".a", "a/b", "a b", "ä", &"x".repeat(129)] {
        assert!(matches!(store.snapshots().create(bad).await, Err(StoreError::Snapshot(_))), "{bad}");
    }
    store.snapshots().create("one").await.expect("made");
    store.snapshots().create("two").await.expect("made");
    let Err(StoreError::Snapshot(why)) = store.snapshots().create("three").await else { panic!("a third") };
    assert!(why.contains("\"one\""), "{why}");
    assert!(matches!(store.snapshots().open("none", None, 0, |_| {}).await, Err(StoreError::NoSuchSnapshot)));
}

#[tokio::test]
async fn an_index_on_disk_is_removed_again() {
    let pool = Pool::new(2, 64 << 20).await;
    let store = pool.open().await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    churn(&store, 0, 60).await;
    store.snapshots().create("s").await.expect("made");
    let before = content(&store).await;
    let dir = tempfile::tempdir().expect("a directory");
    let scratch = dir.path().join("scratch");
    let progress = Arc::new(AtomicU64::new(0));
    let reported = progress.clone();
    let snapshot = store
        .snapshots()
        .open("s", Some(scratch.clone()), 0, move |part| reported.store((part * 100.0) as u64, Relaxed))
        .await;
    assert!((90..=100).contains(&progress.load(Relaxed)), "{progress:?}");
    assert!(scratch.join("1").exists());
    assert!(frozen(snapshot.expect("opens")).await == before);
    gone(&scratch).await;
}

async fn gone(dir: &std::path::Path) {
    for _ in 0..2000 {
        if !dir.exists() {
            return;
        }
        Env::tokio().sleep(Duration::from_millis(5)).await;
    }
    panic!("{} stays", dir.display());
}

#[tokio::test]
async fn an_index_on_disk_is_removed_when_the_open_is_cancelled() {
    let pool = Pool::new(2, 64 << 20).await;
    let store = pool.open().await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    churn(&store, 0, 60).await;
    store.snapshots().create("s").await.expect("made");
    let dir = tempfile::tempdir().expect("a directory");
    let scratch = |number: usize| dir.path().join(format!("{number}"));
    for polls in 0..30 {
        let mut opening = Box::pin(store.snapshots().open("s", Some(scratch(polls)), 0, |_| {}));
        for _ in 0..=polls {
            if futures::poll!(&mut opening).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    // The cancelled opens have finished by the time that one more is open.
    drop(store.snapshots().open("s", Some(scratch(30)), 0, |_| {}).await.expect("opens"));
    for number in 0..=30 {
        gone(&scratch(number)).await;
    }
}

#[tokio::test]
async fn a_snapshot_finishes_when_its_caller_is_cancelled() {
    let pool = Pool::new(3, 64 << 20).await;
    let store = pool.open().await;
    let wait_for = async |count: usize| {
        for _ in 0..2000 {
            let (snapshots, held) = (store.snapshots().all(), store.status().log.extents.held);
            if snapshots.len() == count && snapshots.iter().all(|s| s.whole) && (held > 0) == (count > 0) {
                return;
            }
            Env::tokio().sleep(Duration::from_millis(2)).await;
        }
        panic!("{:?}", store.snapshots().all());
    };
    tokio::select! {
        biased;
        _ = store.snapshots().create("s") => panic!("at once"),
        () = std::future::ready(()) => {}
    }
    wait_for(1).await;
    tokio::select! {
        biased;
        _ = store.snapshots().delete("s") => panic!("at once"),
        () = std::future::ready(()) => {}
    }
    wait_for(0).await;
}
