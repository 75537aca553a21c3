//! Lost disks are given up; foreign disks are left unchanged.

use std::sync::Arc;

use crate::common::{BUCKET, Pool, bytes_of, done, get, named, put};
use bytes::Bytes;
use steadfast_disk::Disk;
use steadfast_log::LogError;
use steadfast_store::{BucketSettings, DiskState, ListQuery, Store, StoreError};

fn all() -> ListQuery {
    ListQuery { limit: 1000, ..ListQuery::default() }
}

async fn filled(count: usize, lsm: bool) -> (Pool, Store) {
    let (pool, store) = Pool::start_on(count, lsm).await;
    for n in 0..60 {
        put(&store, &format!("k{n:02}"), &bytes_of(n, 200)).await;
    }
    (pool, store)
}

fn refusal<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Err(StoreError::Log(LogError::Open(why))) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_lost_disk_is_given_up_and_the_pool_continues() {
    // The first disk too, which is authoritative for buckets.
    for lost in [0, 1] {
        let (pool, store) = filled(3, true).await;
        let name = format!("d{lost}");
        let why = refusal(store.disks().forget(std::slice::from_ref(&name)).await);
        assert!(why.contains("is present") && why.contains("drain"), "{why}");
        let objects = store.status().disks[lost].objects;
        store.close().await.expect("closes");
        drop(store);
        let mut given = pool.given();
        given.remove(lost);
        let (store, _) = pool.open_on(given).await.expect("opens");
        assert!(
            store.contents(BUCKET).objects(&all()).is_err()
                && store.buckets().create("new", BucketSettings::default()).await.is_err()
        );
        assert!(refusal(store.disks().forget(&["d9".to_owned()]).await).contains("not a disk of the pool"));
        let forgotten = store.disks().forget(std::slice::from_ref(&name)).await.expect("given up");
        assert_eq!((forgotten.len(), &forgotten[0].name, forgotten[0].objects), (1, &name, objects));
        assert!(forgotten[0].slots >= 341, "{forgotten:?}");

        let kept = store.contents(BUCKET).objects(&all()).expect("lists again").objects.len() as u64;
        assert_eq!(kept + objects.expect("known"), 60);
        let mut gone = 0;
        for n in 0..60 {
            match get(&store, &format!("k{n:02}")).await {
                Ok(data) => assert!(data == bytes_of(n, 200)),
                Err(StoreError::NoSuchKey) => {
                    gone += 1;
                    put(&store, &format!("k{n:02}"), &bytes_of(n, 200)).await;
                }
                Err(e) => panic!("k{n:02}: {e}"),
            }
        }
        assert_eq!(gone, objects.expect("known"));
        assert_eq!(store.contents(BUCKET).objects(&all()).expect("lists").objects.len(), 60);
        store.buckets().create("new", BucketSettings::default()).await.expect("made again");
        store.close().await.expect("closes");
        drop(store);

        // The disk returns, and is no longer a member.
        let (store, report) = pool.open_on(pool.given()).await.expect("opens");
        assert!(report.missing.is_empty() && report.left_out.len() == 1, "{:?} {:?}", report.missing, report.left_out);
        assert!(report.left_out[0].0 == name && report.left_out[0].1.contains("taken out"), "{:?}", report.left_out);
        assert_eq!(store.contents(BUCKET).objects(&all()).expect("lists").objects.len(), 60);
        assert!(store.buckets().get("new").is_ok());
        // Moves work again.
        let other = store.status().disks[0].name.clone();
        store.disks().drain(&other).await.expect("begun");
        done(&store).await;
        assert_eq!(store.status().disks.iter().filter(|disk| disk.state == DiskState::Ok).count(), 1);
        assert_eq!(store.contents(BUCKET).objects(&all()).expect("lists").objects.len(), 60);
    }
}

async fn content(disk: &Arc<dyn Disk>) -> Vec<Bytes> {
    let mut blocks = Vec::new();
    for at in (0..disk.len()).step_by(1 << 20) {
        let len = (disk.len() - at).min(1 << 20) as usize;
        blocks.push(Bytes::copy_from_slice(&disk.read(at, len).await.expect("reads")));
    }
    blocks
}

#[tokio::test]
async fn a_foreign_disk_is_left_unchanged() {
    let (foreign, store) = filled(1, false).await;
    store.close().await.expect("closes");
    drop(store);
    let (of_many, store) = filled(2, false).await;
    store.close().await.expect("closes");
    drop(store);
    let (pool, store) = filled(2, true).await;
    let entries = || std::fs::read_dir(pool.dir.path()).expect("readable").count();
    let before = entries();
    for (disk, what) in [(&foreign.disks[0], "a pool of its own"), (&of_many.disks[1], "another pool")] {
        let was = content(disk).await;
        let why = refusal(store.disks().add(named("x", disk)).await);
        assert!(why.contains(what), "{why}");
        assert!(content(disk).await == was && entries() == before);
    }
    store.close().await.expect("closes");
    drop(store);
    for disk in [&foreign.disks[0], &of_many.disks[1]] {
        let was = content(disk).await;
        let mut given = pool.given();
        given.push(named("x", disk));
        refusal(pool.open_on(given).await.map(|(_, report)| report));
        // A remembered foreign disk is skipped.
        let mut given = pool.given();
        given.push(named("x", disk));
        given[2].hint = true;
        let (store, report) = pool.open_on(given).await.expect("opens");
        assert_eq!(report.left_out.len(), 1, "{:?}", report.left_out);
        store.close().await.expect("closes");
        assert!(content(disk).await == was && entries() == before);
    }
}
