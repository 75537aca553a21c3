//! The home that a pool belongs to.

use std::sync::Arc;

use steadfast_cluster::{NodeAddress, PoolHome, Roster};
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_log::{Durability, FormatOptions, Log, Priority};
use steadfast_store::{IndexKind, NewPublication, PoolDisk, Store, StoreOptions};

use crate::hub::store;

fn roster(own: &str, homes: &[&str]) -> Roster {
    let nodes =
        ["a", "b", "c"].map(|name| NodeAddress { name: name.to_owned(), address: format!("{name}:1"), standby: None });
    let homes: Vec<String> = homes.iter().map(|home| (*home).to_owned()).collect();
    Roster::new(own, nodes.into(), &homes).expect("a roster")
}

async fn publish(store: &Store, channel: &str, history_ttl_ms: u64) {
    let (durability, priority) = (Durability::Sync, Priority::Write);
    let new = NewPublication { body: "x".into(), history_size: 10, history_ttl_ms, durability, priority, key: None };
    store.channel(channel).expect("a channel").publish(new).await.expect("published");
}

/// Publishes in the channels that the roster gives to its node, of a hundred. Returns their number.
async fn publish_own(store: &Store, roster: &Roster) -> usize {
    let names = (0..100).map(|n| format!("room:{n}")).filter(|name| roster.home(name) == roster.own());
    let names: Vec<String> = names.collect();
    for name in &names {
        publish(store, name, 3_600_000).await;
    }
    names.len()
}

#[tokio::test]
async fn a_pool_is_not_taken_by_another_home() {
    let (a, b, store) = (roster("a", &["a", "b"]), roster("b", &["a", "b"]), store().await);
    assert_eq!(PoolHome::take(&store, None, false).await, Ok(()));
    assert_eq!(PoolHome::take(&store, Some(&a), false).await, Ok(()));
    assert_eq!(PoolHome::take(&store, Some(&a), false).await, Ok(()));
    for (other, names) in [(Some(&b), ["\"a\"", "\"b\""]), (None, ["\"a\"", "no cluster.name"])] {
        let why = PoolHome::take(&store, other, false).await.expect_err("another home's");
        assert!(names.iter().all(|name| why.contains(name)), "{why}");
    }
    assert_eq!(PoolHome::take(&store, Some(&b), true).await, Ok(()));
    assert!(PoolHome::take(&store, Some(&a), false).await.is_err());
}

#[tokio::test]
async fn a_pool_whose_channels_have_another_home_is_not_taken() {
    let before = roster("a", &["a", "b"]);
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(64 << 20));
    let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
    Log::format(&disk, &Env::tokio(), &format).await.expect("formats");
    let open = || Store::open(disk.clone(), IndexKind::memory(), Env::tokio(), StoreOptions::default());
    let store = open().await.expect("opens").0;
    PoolHome::take(&store, Some(&before), false).await.expect("a new pool");
    let own = publish_own(&store, &before).await;
    let others: Vec<String> =
        (100..400).map(|n| format!("room:{n}")).filter(|name| before.home(name) != before.own()).collect();
    // Only kept publications count.
    publish(&store, &others[0], 0).await;
    publish(&store, &others[1], 3_600_000).await;
    store.channel(&others[1]).expect("a channel").clear().await.expect("cleared");
    store.close().await.expect("closed");

    let store = open().await.expect("opens").0;
    assert_eq!(PoolHome::take(&store, Some(&roster("a", &["b", "a"])), false).await, Ok(()), "another order");
    // A home that is removed elsewhere moves none of this one's channels.
    assert_eq!(PoolHome::take(&store, Some(&roster("a", &["a"])), false).await, Ok(()));
    let more = roster("a", &["c", "a", "b"]);
    let why = PoolHome::take(&store, Some(&more), false).await.expect_err("some channels move");
    let names = (0..100).map(|n| format!("room:{n}"));
    let moved = names.filter(|name| before.home(name) == before.own() && more.home(name) != more.own()).count();
    assert!(moved > 5 && moved < own && why.contains(&format!("another home: {moved} (")), "{moved} of {own}: {why}");
    assert!(why.contains("were a, and are c, a, b"), "{why}");
    assert_eq!(PoolHome::take(&store, Some(&more), true).await, Ok(()));
    assert_eq!(PoolHome::take(&store, Some(&more), false).await, Ok(()), "once is enough");
}

/// The store of a pool of two disks, of which those that are `None` are missing.
async fn store_of(disks: &[(&str, Option<&Arc<dyn Disk>>)]) -> Store {
    let given = |(name, disk): &(&str, Option<&Arc<dyn Disk>>)| PoolDisk {
        name: (*name).to_owned(),
        disk: disk.cloned().ok_or_else(|| "not connected".to_owned()),
        hint: false,
    };
    let given = disks.iter().map(given).collect();
    Store::open_pool(given, IndexKind::memory(), Env::tokio(), StoreOptions::default()).await.expect("opens").0
}

#[tokio::test]
async fn a_pool_whose_home_is_on_a_missing_disk_is_not_taken() {
    let a = roster("a", &["a", "b"]);
    let mut disks: Vec<Arc<dyn Disk>> = Vec::new();
    for _ in 0..2 {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(64 << 20));
        let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
        Log::format(&disk, &Env::tokio(), &format).await.expect("formats");
        disks.push(disk);
    }
    let store = store_of(&[("one", Some(&disks[0])), ("two", Some(&disks[1]))]).await;
    PoolHome::take(&store, Some(&a), false).await.expect("a new pool");
    store.close().await.expect("closes");
    let mut refused = 0;
    for there in [[Some(&disks[0]), None], [None, Some(&disks[1])]] {
        let store = store_of(&[("one", there[0]), ("two", there[1])]).await;
        if let Err(why) = PoolHome::take(&store, Some(&a), false).await {
            assert!(why.contains("cannot be read") && why.contains("--accept-moved-channels"), "{why}");
            refused += 1;
        }
        // A server without a cluster serves the other disk, as far as it can know.
        let alone = PoolHome::take(&store, None, false).await;
        assert_eq!(alone.is_ok(), PoolHome::take(&store, Some(&a), false).await.is_err());
        assert_eq!(PoolHome::take(&store, Some(&a), true).await, Ok(()));
        store.close().await.expect("closes");
    }
    assert_eq!(refused, 1, "one of the two has the home's name");
}
