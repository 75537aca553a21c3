//! Deletes are dropped when nothing that they hide is left, whatever other records of that age
//! exist.

use std::sync::Arc;
use std::time::Duration;

use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_log::{FormatOptions, Log};
use steadfast_store::{BucketSettings, Condition, Store};

use crate::common::{BUCKET, Pool, bytes_of, get, put};

/// Requests at a time.
const AT_ONCE: usize = 64;
/// Compaction is at rest when nothing has changed for this long.
const REST: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(120);

async fn pool(extent_bytes: u64) -> Pool {
    let mem = Arc::new(MemDisk::growable(1 << 30));
    let disk: Arc<dyn Disk> = mem.clone();
    let format = FormatOptions { extent_bytes: Some(extent_bytes), ..FormatOptions::default() };
    Log::format(&disk, &Env::tokio(), &format).await.expect("format");
    let mut pool = Pool::new(false).await;
    pool.replace(vec![mem]);
    pool.options.log.compaction.interval = Duration::from_millis(20);
    pool.options.log.compaction.bytes_s = 0;
    pool
}

/// Creates and deletes these keys, which were unused before.
async fn come_and_go(store: &Store, keys: std::ops::Range<usize>) {
    let keys: Vec<_> = keys.map(|n| format!("one/that/is/used/once/{n:08}")).collect();
    for keys in keys.chunks(8 * AT_ONCE) {
        for some in keys.chunks(AT_ONCE) {
            futures::future::join_all(some.iter().map(|key| put(store, key, b"short"))).await;
        }
        for some in keys.chunks(AT_ONCE) {
            let deletes = some.iter().map(|key| store.at(BUCKET, key).delete(Condition::None, None));
            for done in futures::future::join_all(deletes).await {
                done.expect("a delete");
            }
        }
    }
}

/// Waits until compaction finds no more work.
async fn rest(store: &Store) {
    let env = Env::tokio();
    let (begun, mut since, mut last) = (env.now(), env.now(), None);
    while env.now() - since < REST {
        let status = store.status();
        assert!(env.now() - begun < LONG, "never at rest: {:?}", status.log.compaction);
        let (compaction, extents) = (status.log.compaction, status.log.extents);
        let now = (compaction.recycled, compaction.records_moved, compaction.waiting_for_checkpoint, extents.free);
        if last.replace(now) != Some(now) {
            since = env.now();
        }
        env.sleep(Duration::from_millis(20)).await;
    }
}

/// Creates and deletes `count` keys next to one that stays. Returns the number of records that an
/// index rebuild replays. The open extent is not emptied: small extents keep few records in it.
async fn replayed_after(count: usize, extent_bytes: u64) -> u64 {
    let pool = pool(extent_bytes).await;
    let store = pool.open().await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    let cold = bytes_of(1, 1000);
    put(&store, "cold", &cold).await;
    come_and_go(&store, 0..count).await;
    rest(&store).await;
    store.close().await.expect("close");
    pool.delete_index();
    let (store, report) = pool.open_with_report().await;
    assert_eq!(get(&store, "cold").await.expect("there"), cold);
    assert_eq!(store.status().objects, 1, "nothing has come back");
    store.close().await.expect("close");
    println!("{count} keys created and deleted: {} records replayed", report.replayed_records);
    report.replayed_records
}

/// A cold object used to keep each later delete for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletes_do_not_pile_up_beside_a_cold_object() {
    let replayed = replayed_after(20_000, 512 << 10).await;
    assert!(replayed <= 4_000, "{replayed} records");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long: the same with more"]
async fn deletes_do_not_pile_up_beside_a_cold_object_long() {
    let replayed = replayed_after(100_000, 2 << 20).await;
    assert!(replayed <= 20_000, "{replayed} records");
}
