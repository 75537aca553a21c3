//! Users in pools of several disks: each disk has them, and they agree after every fault.

use std::sync::Arc;

use crate::common::{BUCKET, Pool};
use crate::pool::faulty;
use steadfast_disk::{Effect, Fault, OpKind};
use steadfast_store::{Store, StoreError, UserTexts};

async fn set(store: &Store, name: &str, text: Option<&str>) -> Result<(), StoreError> {
    store.users().change(name, |_| Ok(text.map(str::to_owned))).await
}

fn texts(store: &Store) -> Vec<(String, String)> {
    let users = store.users().all().expect("known");
    users.iter().map(|(name, text)| (name.clone(), text.to_string())).collect()
}

fn one(name: &str, text: &str) -> Vec<(String, String)> {
    vec![(name.to_owned(), text.to_owned())]
}

#[tokio::test]
async fn every_disk_has_the_users() {
    for rebuild in [false, true] {
        let (pool, store) = Pool::start_on(3, true).await;
        set(&store, "ada", Some("first")).await.expect("created");
        set(&store, "bob", Some("x")).await.expect("created");
        set(&store, "ada", Some("second")).await.expect("changed");
        set(&store, "bob", None).await.expect("deleted");
        set(&store, "eve", None).await.expect("nothing to delete");
        assert_eq!(texts(&store), one("ada", "second"));
        assert_eq!((store.status().users, store.status().buckets), (1, 1));
        // A user is no bucket, and no bucket is a user.
        assert_eq!(store.buckets().all().expect("known").len(), 1);
        assert!(matches!(store.buckets().get("\0user/ada"), Err(StoreError::NoSuchBucket)));
        store.close().await.expect("close");
        drop(store);
        if rebuild {
            pool.delete_index();
        }
        for missing in 0..3 {
            let mut disks = pool.given();
            disks[missing].disk = Err("gone".into());
            let (store, _) = pool.open_on(disks).await.expect("open");
            assert_eq!(texts(&store), one("ada", "second"), "without disk {missing}");
            assert!(matches!(set(&store, "ada", None).await, Err(StoreError::Unavailable(_))));
            store.close().await.expect("close");
        }
    }
}

#[tokio::test]
async fn an_interrupted_change_is_made_on_all_disks_or_on_none() {
    for failing in 0..3 {
        for (text, done_by_first) in [(Some("new"), false), (None, true)] {
            let (pool, store) = Pool::start_on(3, false).await;
            set(&store, "ada", Some("old")).await.expect("created");
            store.close().await.expect("close");
            drop(store);
            let (disks, faults) = faulty(&pool);
            let (store, _) = pool.open_on(disks).await.expect("open");
            faults[failing].add(Fault::new(OpKind::Write, Effect::Error(5)));
            set(&store, "ada", text).await.expect_err("interrupted");
            store.close().await.expect_err("a disk has failed");
            drop(store);
            let (store, _) = pool.open_with_report().await;
            // The first disk counts. A change comes there last, a deletion first.
            let done = done_by_first && failing > 0;
            assert_eq!(texts(&store), if done { Vec::new() } else { one("ada", "old") }, "disk {failing}, {text:?}");
            set(&store, "ada", Some("newer")).await.expect("changed");
            store.close().await.expect("close");
            drop(store);
            let mut disks = pool.given();
            disks[0].disk = Err("gone".into());
            let (store, _) = pool.open_on(disks).await.expect("open");
            assert_eq!(texts(&store), one("ada", "newer"), "disk {failing}, {text:?}");
        }
    }
}

#[tokio::test]
async fn a_holder_of_the_users_finds_a_change_by_their_address() {
    let (_pool, store) = Pool::start_on(1, false).await;
    let mut held: Arc<UserTexts> = store.users().all().expect("known");
    for text in [Some("a"), Some("b"), None] {
        assert!(Arc::ptr_eq(&held, &store.users().all().expect("known")));
        set(&store, "ada", text).await.expect("changed");
        let now = store.users().all().expect("known");
        assert!(!Arc::ptr_eq(&held, &now));
        held = now;
    }
    store.buckets().delete(BUCKET).await.expect("deleted");
    assert!(Arc::ptr_eq(&held, &store.users().all().expect("known")), "no user has changed");
}
