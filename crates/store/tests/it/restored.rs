//! A pool that was restored from an image of its disk, while the index of later commits was kept.

use std::sync::Arc;

use crate::common::{BUCKET, bytes_of, get, options, put};
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_log::{FormatOptions, Log};
use steadfast_store::{BucketSettings, IndexKind, Store, StoreError};

#[tokio::test]
async fn a_restored_pool_serves_what_index_and_log_have_until_the_index_is_removed() {
    let disk = MemDisk::growable(64 << 20);
    let format = FormatOptions { extent_bytes: Some(1 << 20), ..FormatOptions::default() };
    let formatted: Arc<dyn Disk> = Arc::new(disk.clone());
    Log::format(&formatted, &Env::tokio(), &format).await.expect("format");
    let dir = tempfile::tempdir().expect("a directory");
    let open = async |disk: &MemDisk| {
        let index = IndexKind::Lsm(dir.path().join("index"));
        Store::open(Arc::new(disk.clone()), index, Env::tokio(), options()).await.expect("opens")
    };
    let (store, _) = open(&disk).await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    // Inline bodies and chunks.
    let body = |i: u64| bytes_of(i, if i.is_multiple_of(4) { 30_000 } else { 500 });
    for i in 0..200 {
        put(&store, &format!("kept{i:03}"), &body(i)).await;
    }
    let snapshot = disk.image();
    for i in 0..400 {
        put(&store, &format!("later{i:03}"), &body(i)).await;
    }
    for i in 0..20 {
        put(&store, &format!("kept{i:03}"), &body(1000 + i)).await;
    }
    store.close().await.expect("closes");
    drop(store);

    let (store, report) = open(&snapshot).await;
    assert!(report.recovery.read_only && !report.index_rebuilt, "{:?}", report.recovery);
    for i in 20..200 {
        let found = get(&store, &format!("kept{i:03}")).await;
        assert_eq!(found.expect("the log has it"), body(i), "kept{i:03}");
    }
    for key in (0..20).map(|i| format!("kept{i:03}")).chain((0..400).map(|i| format!("later{i:03}"))) {
        let found = get(&store, &key).await;
        assert!(found.is_err() && !matches!(found, Err(StoreError::NoSuchKey)), "{key}: {found:?}");
    }
    let _ = store.close().await;
    drop(store);

    std::fs::remove_dir_all(dir.path().join("index")).expect("removed");
    let (store, report) = open(&snapshot).await;
    assert!(!report.recovery.read_only && report.index_rebuilt, "{:?}", report.recovery);
    for i in 0..200 {
        assert_eq!(get(&store, &format!("kept{i:03}")).await.expect("there"), body(i), "kept{i:03}");
    }
    assert!(matches!(get(&store, "later000").await, Err(StoreError::NoSuchKey)));
    put(&store, "new", b"x").await;
    store.close().await.expect("closes");
}
