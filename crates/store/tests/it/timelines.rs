//! An index belongs to one history of its pool, and to one moment in it. An index of another
//! history is rebuilt, and nothing is lost or mixed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{BUCKET, bytes_of, get, options, put};
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_log::{FormatOptions, Log};
use steadfast_store::{BucketSettings, Condition, IndexKind, ListQuery, OpenReport, Store, StoreError, StoreOptions};

async fn formatted() -> MemDisk {
    let disk = MemDisk::growable(64 << 20);
    let format = FormatOptions { extent_bytes: Some(1 << 20), ..FormatOptions::default() };
    let formatted: Arc<dyn Disk> = Arc::new(disk.clone());
    Log::format(&formatted, &Env::tokio(), &format).await.expect("format");
    disk
}

async fn open_with(disk: &MemDisk, index: &Path, options: StoreOptions) -> (Store, OpenReport) {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let index = IndexKind::Lsm(index.to_owned());
    Store::open(disk, index, Env::tokio(), options).await.expect("open")
}

async fn open(disk: &MemDisk, index: &Path) -> (Store, OpenReport) {
    open_with(disk, index, options()).await
}

fn keys_of(store: &Store) -> Vec<String> {
    let query = ListQuery { limit: 100_000, ..ListQuery::default() };
    store.contents(BUCKET).objects(&query).expect("a listing").objects.into_iter().map(|entry| entry.key).collect()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("readable") {
        let entry = entry.expect("readable");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("known").is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).expect("copied");
        }
    }
}

/// A pool continues from a copy of itself, while the index of the abandoned history remains.
/// `running`: the copy was made while the store ran.
async fn restored_from_a_copy(running: bool) {
    let dir = tempfile::tempdir().expect("a directory");
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    let disk = formatted().await;
    let (store, _) = open(&disk, &old).await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    for i in 0..50 {
        put(&store, &format!("both{i:03}"), &bytes_of(i, 500)).await;
    }
    let (mut image, mut store) = (disk.image(), store);
    if !running {
        store.close().await.expect("close");
        drop(store);
        image = disk.image();
        store = open(&disk, &old).await.0;
    }
    for i in 0..100 {
        put(&store, &format!("lost{i:03}"), &bytes_of(1000 + i, 700)).await;
    }
    put(&store, "both003", &bytes_of(77, 500)).await;
    store.close().await.expect("close");
    drop(store);

    // The state at the copy, and another history from there on, with the same sizes, and longer.
    let (store, _) = open(&image, &new).await;
    for i in 0..150 {
        put(&store, &format!("here{i:03}"), &bytes_of(2000 + i, 700)).await;
    }
    put(&store, "both004", &bytes_of(88, 500)).await;
    store.close().await.expect("close");
    drop(store);

    let (store, report) = open(&image, &old).await;
    assert!(report.index_rebuilt, "the index is of a history that was abandoned");
    let mut expected: Vec<String> = (0..50).map(|i| format!("both{i:03}")).collect();
    expected.extend((0..150).map(|i| format!("here{i:03}")));
    assert_eq!(keys_of(&store), expected);
    for i in 0..150 {
        assert_eq!(get(&store, &format!("here{i:03}")).await.expect("there"), bytes_of(2000 + i, 700));
    }
    assert_eq!(get(&store, "both003").await.expect("there"), bytes_of(3, 500));
    assert_eq!(get(&store, "both004").await.expect("there"), bytes_of(88, 500));
    assert!(matches!(get(&store, "lost001").await, Err(StoreError::NoSuchKey)));
    store.close().await.expect("close");
    drop(store);
    // The index belongs to this history from now on.
    assert!(!open(&image, &old).await.1.index_rebuilt);
}

#[tokio::test]
async fn the_index_of_an_abandoned_history_is_made_anew() {
    restored_from_a_copy(false).await;
    restored_from_a_copy(true).await;
}

/// A start rewrites records that may not have been durable. They lie elsewhere than in any other
/// history, though their LSNs are the same.
#[tokio::test]
async fn an_index_of_another_timeline_is_rebuilt() {
    let dir = tempfile::tempdir().expect("a directory");
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    let disk = formatted().await;
    let (store, _) = open(&disk, &old).await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    for i in 0..20 {
        put(&store, &format!("k{i}"), &bytes_of(i, 500)).await;
    }
    let copy = disk.image();
    // One store continues from the copy and commits nothing; its index is kept.
    let (store_of_copy, report) = open(&copy.image(), &new).await;
    assert!(report.recovery.records_copied > 0, "{report:?}");
    store_of_copy.close().await.expect("close");
    drop((store, store_of_copy));
    let (store, report) = open(&copy, &new).await;
    assert!(report.index_rebuilt, "the index says where the other one has written it");
    for i in 0..20 {
        assert_eq!(get(&store, &format!("k{i}")).await.expect("there"), bytes_of(i, 500));
    }
}

#[tokio::test]
async fn an_index_is_kept_through_starts_that_end_at_once() {
    let index = IndexKind::memory();
    let mut disk = formatted().await;
    let open = async |disk: &MemDisk| {
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        Store::open(disk, index.clone(), Env::tokio(), options()).await.expect("open")
    };
    let (store, report) = open(&disk).await;
    assert!(report.index_rebuilt, "there was none");
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    for i in 0..20 {
        put(&store, &format!("k{i}"), &bytes_of(i, 100)).await;
    }
    store.close().await.expect("close");
    drop(store);
    for i in 0..12 {
        // Most of them are killed, some after writes.
        let (store, report) = open(&disk).await;
        assert!(!report.index_rebuilt, "start {i}");
        if i % 3 == 0 {
            put(&store, &format!("more{i}"), &bytes_of(i, 100)).await;
        }
        if i % 4 == 3 {
            store.close().await.expect("close");
        }
        disk = disk.image();
        drop(store);
    }
    let (store, _) = open(&disk).await;
    assert_eq!(keys_of(&store).len(), 24);
}

#[tokio::test]
async fn an_older_index_brings_nothing_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let (index, kept) = (dir.path().join("index"), dir.path().join("kept"));
    let disk = formatted().await;
    let mut options = options();
    options.log.compaction.interval = Duration::from_millis(20);
    options.log.compaction.dead_percent_min = 5;
    options.checkpoint_log_bytes = 64 << 10;
    let (store, _) = open_with(&disk, &index, options.clone()).await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    store.buckets().create("other", BucketSettings::default()).await.expect("bucket");
    for i in 0..600 {
        put(&store, &format!("k{i:03}"), &bytes_of(i, 1500)).await;
    }
    store.close().await.expect("close");
    drop(store);
    copy(&index, &kept);

    let (store, _) = open_with(&disk, &index, options.clone()).await;
    store.buckets().delete("other").await.expect("deleted");
    for i in 0..300 {
        store.at(BUCKET, &format!("k{i:03}")).delete(Condition::None, None).await.expect("deleted");
    }
    let (env, before) = (Env::tokio(), store.status().log.compaction.recycled);
    for i in 0..u64::MAX {
        put(&store, &format!("k{:03}", 300 + i % 300), &bytes_of(300 + i % 300, 1500)).await;
        if i > 3000 && store.status().log.compaction.recycled >= before + 4 {
            break;
        }
        if i % 100 == 0 {
            env.sleep(Duration::from_millis(5)).await;
        }
    }
    store.close().await.expect("close");
    drop(store);

    std::fs::remove_dir_all(&index).expect("removed");
    copy(&kept, &index);
    let (store, report) = open_with(&disk, &index, options).await;
    assert!(report.index_rebuilt, "the changes since are not all in the log any more");
    assert_eq!(keys_of(&store), (300..600).map(|i| format!("k{i:03}")).collect::<Vec<_>>());
    assert!(matches!(store.contents("other").objects(&ListQuery::default()), Err(StoreError::NoSuchBucket)));
    for i in 300..600 {
        assert_eq!(get(&store, &format!("k{i:03}")).await.expect("there"), bytes_of(i, 1500));
    }
}
