//! A member that does not identify its pool, since its layout is damaged and its index is gone: the
//! layouts of the others name it.

use std::sync::Arc;

use crate::common::{BUCKET, Pool, bytes_of, done, formatted_mem, get, named, put};
use steadfast_disk::{BLOCK, Disk, MemDisk};
use steadfast_log::{LogError, pool_on};
use steadfast_store::{BucketSettings, PoolDisk, Store, StoreError};

const KEYS: u64 = 60;

fn key(n: u64) -> String {
    format!("k{n}")
}

async fn fill(store: &Store) {
    for n in 0..KEYS {
        put(store, &key(n), &bytes_of(n, 300)).await;
    }
}

/// Damages each block of a disk that names another disk: every layout in the log.
async fn forget_layouts(disk: &MemDisk, other: &Arc<dyn Disk>) {
    let id = pool_on(other).await;
    let mut damaged = 0;
    for at in (0..disk.len()).step_by(BLOCK) {
        let block = disk.read(at, BLOCK).await.expect("reads");
        if let Some(place) = block.windows(id.len()).position(|bytes| bytes == id) {
            disk.flip(at + place as u64, 0x10);
            damaged += 1;
        }
    }
    assert!(damaged > 0, "its log names the other disk");
}

/// Objects on the damaged disk are right or reported unreadable; all others are unchanged.
async fn check(store: &Store, damaged: &str) {
    let mut answered = 0;
    for n in 0..KEYS {
        match get(store, &key(n)).await {
            Ok(data) => {
                assert_eq!(data, bytes_of(n, 300));
                answered += 1;
            }
            Err(StoreError::NoSuchKey) => panic!("{} was acknowledged", key(n)),
            Err(_) => {}
        }
    }
    let disks = store.status().disks;
    assert!(answered >= KEYS / 3, "{answered} {disks:?}");
    for disk in disks.iter().filter(|disk| disk.name != damaged) {
        assert!(disk.failure.is_none(), "{disk:?}");
    }
}

#[tokio::test]
async fn a_member_whose_layout_is_damaged_is_known_by_the_layouts_of_the_others() {
    for lsm in [false, true] {
        let (pool, store) = Pool::start_on(3, lsm).await;
        store.close().await.expect("close");
        drop(store);
        // In another extent than the layout.
        let store = pool.open().await;
        fill(&store).await;
        store.close().await.expect("close");
        drop(store);
        forget_layouts(&pool.mem[1], &pool.disks[0]).await;
        pool.delete_index();
        let mut given = pool.given();
        given.rotate_left(1);
        let (store, report) = pool.open_on(given).await.expect("the others are whole");
        assert!(report.left_out.is_empty(), "{:?}", report.left_out);
        assert_eq!(store.status().disks.len(), 3);
        check(&store, "d1").await;
    }
}

#[tokio::test]
async fn a_later_member_is_known_by_later_layouts() {
    let (mut pool, store) = Pool::start_on(2, false).await;
    fill(&store).await;
    let third = formatted_mem().await;
    let disk: Arc<dyn Disk> = third.clone();
    store.disks().add(named("d2", &disk)).await.expect("added");
    done(&store).await;
    store.close().await.expect("close");
    drop(store);
    let mut mem = pool.mem.clone();
    mem.push(third.clone());
    pool.replace(mem);
    let store = pool.open().await;
    fill(&store).await;
    store.close().await.expect("close");
    drop(store);
    forget_layouts(&third, &pool.disks[0]).await;
    pool.delete_index();
    let (store, report) = pool.open_with_report().await;
    assert!(report.left_out.is_empty(), "{:?}", report.left_out);
    assert_eq!(store.status().disks.len(), 3);
    check(&store, "d2").await;
}

#[tokio::test]
async fn a_stranger_whose_layout_is_damaged_is_still_refused() {
    let (pool, store) = Pool::start_on(2, false).await;
    fill(&store).await;
    store.close().await.expect("close");
    let (other, store) = Pool::start_on(2, false).await;
    store.close().await.expect("close");
    drop(store);
    let store = other.open().await;
    fill(&store).await;
    store.buckets().create("another", BucketSettings::default()).await.expect("made");
    store.close().await.expect("close");
    drop(store);
    forget_layouts(&other.mem[1], &other.disks[0]).await;
    let before = other.mem[1].image();
    let mut given = pool.given();
    given.push(PoolDisk { name: "stranger".into(), disk: Ok(other.disks[1].clone()), hint: false });
    match pool.open_on(given).await {
        Err(StoreError::Log(LogError::Open(why))) => {
            assert!(why.starts_with("stranger holds a pool of its own"), "{why}");
        }
        other => panic!("{:?}", other.map(|(_, report)| report)),
    }
    for at in (0..before.len()).step_by(BLOCK) {
        let (was, is) = (before.read(at, BLOCK).await, other.mem[1].read(at, BLOCK).await);
        assert!(was.expect("reads") == is.expect("reads"), "it is left as it was");
    }
    let store = pool.open().await;
    assert!(get(&store, &key(0)).await.is_ok() && store.buckets().get(BUCKET).is_ok());
}
