//! Freed space: a small pool that was full accepts writes again, without a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::BUCKET;
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::{BoxFuture, Env};
use steadfast_log::{Durability, FormatOptions, Log, LogError};
use steadfast_store::{
    Attributes, BucketSettings, Condition, Evictor, IndexKind, Store, StoreError, StoreOptions, Written,
};

const POOL_BYTES: u64 = 32 << 20;
const LONG: Duration = Duration::from_secs(30);

async fn open(index: IndexKind) -> Store {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(POOL_BYTES));
    let format = FormatOptions { extent_bytes: Some(1 << 20), ..FormatOptions::default() };
    Log::format(&disk, &Env::tokio(), &format).await.expect("format");
    let store = open_on(disk, index).await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    store
}

async fn open_on(disk: Arc<dyn Disk>, index: IndexKind) -> Store {
    let mut options = StoreOptions { inline_max_bytes: 100_000, chunk_bytes: 200_000, ..crate::common::options() };
    options.log.compaction.interval = Duration::from_millis(50);
    Store::open(disk, index, Env::tokio(), options).await.expect("open").0
}

async fn put(store: &Store, key: &str, size: usize) -> Result<Written, StoreError> {
    let mut writer = store.at(BUCKET, key).writer(Some(size as u64)).await?;
    let fill = key.as_bytes().iter().fold(7u8, |a, b| a.wrapping_mul(31).wrapping_add(*b));
    writer.write(vec![fill; size].into()).await?;
    writer.commit(Attributes::default(), Condition::None, None).await
}

/// Puts until the pool is full. Returns the number of accepted puts.
async fn fill(store: &Store, size: usize) -> usize {
    for n in 0..10_000 {
        match put(store, &format!("k{n}"), size).await {
            Ok(_) => {}
            Err(StoreError::Log(LogError::Full)) => return n,
            Err(e) => panic!("{e}"),
        }
    }
    panic!("never full");
}

/// Retries until there is space for it.
async fn in_time<F: Future<Output = Result<Written, StoreError>>>(store: &Store, work: impl Fn() -> F) {
    let env = Env::tokio();
    let begun = env.now();
    loop {
        match work().await {
            Ok(_) => return,
            Err(StoreError::Log(LogError::Full) | StoreError::Busy(_)) => {
                let status = store.status();
                assert!(env.now() - begun < LONG, "still full: {:?}, {:?}", status.log.extents, status.log.compaction);
                env.sleep(Duration::from_millis(20)).await;
            }
            Err(e) => panic!("{e}"),
        }
    }
}

async fn put_in_time(store: &Store, key: &str, size: usize) {
    in_time(store, || put(store, key, size)).await;
}

async fn full_and_back(index: IndexKind, size: usize) {
    let store = open(index).await;
    let count = fill(&store, size).await;
    assert!((count * size) as u64 > POOL_BYTES / 3, "{count} objects of {size} bytes is not full");
    for n in 0..count {
        let key = format!("k{n}");
        in_time(&store, || store.at(BUCKET, &key).delete(Condition::None, None)).await;
    }
    // As much as before.
    for n in 0..count * 3 / 4 {
        put_in_time(&store, &format!("again{n}"), size).await;
    }
    let last = crate::common::get(&store, &format!("again{}", count / 2)).await.expect("there");
    assert_eq!(last.len(), size);
    store.close().await.expect("close");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_pool_of_small_objects_recovers() {
    full_and_back(IndexKind::memory(), 10_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_pool_of_large_objects_recovers() {
    let dir = tempfile::tempdir().expect("a directory");
    full_and_back(IndexKind::Lsm(dir.path().join("index")), 700_000).await;
}

/// Puts objects until compaction finds no more space. Returns the numbers of the acknowledged ones:
/// the store may refuse any of them, early ones too, while many writers reserve space.
async fn fill_to_the_brim(store: &Store, size: usize) -> Vec<usize> {
    let env = Env::tokio();
    let (mut tried, mut taken) = (0, Vec::new());
    let mut refused_since = env.now();
    while env.now() - refused_since < Duration::from_secs(2) {
        let many = (tried..tried + 64).map(|n| {
            let store = &store;
            async move { (n, put(store, &format!("k{n}"), size).await) }
        });
        for (n, one) in futures::future::join_all(many).await {
            match one {
                Ok(_) => {
                    taken.push(n);
                    refused_since = env.now();
                }
                Err(StoreError::Log(LogError::Full) | StoreError::Busy(_)) => {}
                Err(e) => panic!("{e}"),
            }
        }
        tried += 64;
    }
    for n in &taken {
        let data = crate::common::get(store, &format!("k{n}")).await.expect("an acknowledged object");
        assert_eq!(data.len(), size);
    }
    taken
}

async fn brimful_and_back(size: usize) {
    let store = open(IndexKind::memory()).await;
    let taken = fill_to_the_brim(&store, size).await;
    // One by one: each takes a block of its own, so that many of them need more space than the pool
    // has left. Scattered: no extent becomes much emptier than the others.
    for n in 0..taken.len().min(1_500) {
        let key = format!("k{}", taken[n * 7919 % taken.len()]);
        in_time(&store, || store.at(BUCKET, &key).delete(Condition::None, None)).await;
    }
    store.close().await.expect("close");
}

/// Deletes free space, so they must succeed whatever the pool is filled with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletes_go_on_in_a_pool_packed_with_tiny_objects() {
    for size in [500, 1_200] {
        brimful_and_back(size).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletes_go_on_in_a_pool_packed_with_small_objects() {
    for size in [2_500, 8_000, 10_000] {
        brimful_and_back(size).await;
    }
}

async fn overwrite(size: usize, keys: usize) {
    let store = open(IndexKind::memory()).await;
    let mut written = 0;
    let mut n = 0;
    while written < 10 * POOL_BYTES {
        put_in_time(&store, &format!("k{}", n % keys), size).await;
        written += size as u64;
        n += 1;
    }
    for n in 0..keys {
        let data = crate::common::get(&store, &format!("k{n}")).await.expect("there");
        assert_eq!(data.len(), size);
    }
    let status = store.status().log;
    assert!(status.compaction.recycled > 100, "{:?}", status.compaction);
    assert!(status.compaction.stuck.is_empty(), "{:?}", status.compaction.stuck);
    store.close().await.expect("close");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overwriting_small_objects_goes_on() {
    overwrite(20_000, 300).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overwriting_large_objects_goes_on() {
    overwrite(500_000, 20).await;
}

/// Seven such bodies fit into an extent and leave a tenth of it empty: in a pool this full,
/// compaction has no other space.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overwriting_goes_on_where_bodies_do_not_divide_an_extent() {
    let store = open(IndexKind::memory()).await;
    let (size, keys) = (130_000, 195);
    for n in 0..keys {
        put_in_time(&store, &format!("k{n}"), size).await;
    }
    let mut random = 1u64;
    for _ in 0..1_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        put_in_time(&store, &format!("k{}", (random >> 33) % keys), size).await;
    }
    let status = store.status().log;
    assert!(status.compaction.recycled > 100, "{:?}", status.compaction);
    let live = status.extents.live_body_bytes + status.extents.live_commit_bytes;
    assert!(live * 100 / POOL_BYTES >= 75, "{:?}", status.extents);
    store.close().await.expect("close");
}

/// Where all data except the records is large bodies, only the open extent of records contains dead
/// bytes: its space must be freed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_replaced_in_a_pool_packed_with_large_bodies() {
    let store = open(IndexKind::memory()).await;
    let key = format!("k{}", fill_to_the_brim(&store, 130_000).await[0]);
    let (env, mut n) = (Env::tokio(), 0);
    let begun = env.now();
    while n < 1_500 || store.status().log.compaction.recycled <= 2 {
        n += 1;
        let tags = [("n".to_owned(), format!("{n}"))];
        in_time(&store, || store.at(BUCKET, &key).set_tags(tags.clone().into())).await;
        assert!(n < 1_500 || env.now() - begun < 2 * LONG, "{:?}", store.status().log.compaction);
    }
    store.close().await.expect("close");
}

/// Evicts the objects whose keys begin with `cold`.
struct ColdKeys(Store, AtomicUsize);

impl Evictor for ColdKeys {
    fn evict<'a>(&'a self, bucket: &'a str, key: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            if !key.starts_with("cold") {
                // It may be wrong about the chunk: compaction asks whether it is dead.
                return key.starts_with("liar");
            }
            let info = self.0.at(bucket, key).info().expect("compaction found a live chunk of it");
            self.0.at(bucket, key).delete_version(info.version, Durability::Async).await.expect("deleted");
            self.1.fetch_add(1, Ordering::Relaxed);
            true
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_deletes_what_is_cold_instead_of_moving_it() {
    const SIZE: usize = 500_000;
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(POOL_BYTES));
    let format = FormatOptions { extent_bytes: Some(1 << 20), ..FormatOptions::default() };
    Log::format(&disk, &Env::tokio(), &format).await.expect("format");
    let store = open_on(disk.clone(), IndexKind::memory()).await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    let evictor = Arc::new(ColdKeys(store.clone(), AtomicUsize::new(0)));
    store.set_evictor(evictor.clone());
    for n in 0..6 {
        for kind in ["dead", "cold", "dead2", "warm", "dead3", "liar"] {
            put(&store, &format!("{kind}{n}"), SIZE).await.expect("stored");
        }
    }
    for n in 0..6 {
        for kind in ["dead", "dead2", "dead3"] {
            store.at(BUCKET, &format!("{kind}{n}")).delete(Condition::None, None).await.expect("deleted");
        }
    }
    let env = Env::tokio();
    let begun = env.now();
    while store.status().log.compaction.chunks_moved == 0 || evictor.1.load(Ordering::Relaxed) < 2 {
        assert!(env.now() - begun < LONG, "{:?}", store.status().log.compaction);
        env.sleep(Duration::from_millis(20)).await;
    }
    let check = async |store: &Store, evicted: usize| {
        let mut gone = 0;
        for n in 0..6 {
            for kind in ["warm", "liar"] {
                let data = crate::common::get(store, &format!("{kind}{n}")).await.expect("it stays");
                assert_eq!(data.len(), SIZE);
            }
            match crate::common::get(store, &format!("cold{n}")).await {
                Ok(data) => assert_eq!(data.len(), SIZE),
                Err(StoreError::NoSuchKey) => gone += 1,
                Err(e) => panic!("{e}"),
            }
        }
        assert!(gone >= evicted, "{gone} of {evicted}");
    };
    store.close().await.expect("close");
    let evicted = evictor.1.load(Ordering::Relaxed);
    // A replay of the whole log does not bring them back.
    let store = open_on(disk, IndexKind::memory()).await;
    check(&store, evicted).await;
    store.close().await.expect("close");
}

#[tokio::test]
async fn in_a_full_pool_users_can_be_changed_and_deleted() {
    let store = open(IndexKind::memory()).await;
    let set = async |name: &str, text: Option<String>| store.users().change(name, |_| Ok::<_, StoreError>(text)).await;
    set("ada", Some("enabled".into())).await.expect("created");
    fill(&store, 50_000).await;
    let mut made = 0;
    while let Ok(()) = set(&format!("u{made}"), Some("x".repeat(9000))).await {
        made += 1;
        assert!(made < 3000, "never full");
    }
    for n in 0..20 {
        set("ada", Some(format!("disabled {n}"))).await.expect("changed");
    }
    assert_eq!(&*store.users().all().expect("known")["ada"], "disabled 19");
    set("ada", None).await.expect("deleted");
}
