//! Epochs of channels in pools that were put back to an earlier state.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::channels::{ALL, new, publish, reopened, since, texts};
use crate::common::{Pool, done, formatted, named};
use steadfast_disk::{Disk, MemDisk};
use steadfast_log::Durability;
use steadfast_store::{NewPublication, Position, Store};

/// Channels that the earlier state knows.
const KNOWN: [&str; 4] = ["a", "b", "cleared", "async"];
/// Channels that it does not know, on each of a few disks.
const UNKNOWN: [&str; 6] = ["u0", "u1", "u2", "u3", "u4", "u5"];

fn positions(store: &Store) -> BTreeMap<&'static str, Position> {
    let position = |name: &'static str| (name, store.channel(name).and_then(|c| c.position()).expect("there"));
    KNOWN.into_iter().chain(UNKNOWN).map(position).collect()
}

/// Those without a publication that may have been lost.
fn durable(positions: BTreeMap<&'static str, Position>) -> BTreeMap<&'static str, Position> {
    positions.into_iter().filter(|(name, _)| *name != "async").collect()
}

fn images(pool: &Pool) -> Vec<Arc<MemDisk>> {
    pool.mem.iter().map(|disk| Arc::new(disk.image())).collect()
}

fn asynchronous(text: &str) -> NewPublication {
    NewPublication { durability: Durability::Async, ..new(text) }
}

/// The store on an earlier state of its disks, without its index.
async fn put_back(pool: &mut Pool, earlier: &[Arc<MemDisk>]) -> Store {
    pool.replace(earlier.iter().map(|disk| Arc::new(disk.image())).collect());
    pool.delete_index();
    pool.options.put_back = true;
    let store = pool.open().await;
    pool.options.put_back = false;
    store
}

/// A pool with publications in the known channels, and its disks at that time.
async fn with_publications(disks: usize, lsm: bool) -> (Pool, Store, Vec<Arc<MemDisk>>) {
    let (pool, store) = Pool::start_on(disks, lsm).await;
    for name in KNOWN {
        let channel = store.channel(name).expect("a channel");
        publish(&channel, "first").await;
        channel.publish(if name == "async" { asynchronous("second") } else { new("second") }).await.expect("published");
    }
    store.channel("cleared").expect("a channel").clear().await.expect("cleared");
    store.flush().await.expect("flushed");
    let earlier = images(&pool);
    (pool, store, earlier)
}

on_disks! {
    async fn every_channel_of_a_pool_that_was_put_back_has_another_epoch(disks) {
        for lsm in [false, true] {
            let (mut pool, store, earlier) = with_publications(disks, lsm).await;
            let then = positions(&store);
            for name in KNOWN.into_iter().chain(UNKNOWN) {
                assert_eq!(publish(&store.channel(name).expect("a channel"), "lost").await.position.epoch, then[name].epoch);
            }
            let lost = positions(&store);
            store.close().await.expect("closed");
            drop(store);

            let store = put_back(&mut pool, &earlier).await;
            let now = positions(&store);
            for (name, is) in &now {
                assert_eq!(is.offset, then[name].offset, "{name}");
                assert_ne!(is.epoch, then[name].epoch, "{name}");
                let channel = store.channel(name).expect("a channel");
                for seen in [then[name], lost[name]] {
                    assert!(!texts(&channel, since(seen)).await.1.complete, "{name} recovers from {seen:?}");
                }
                let missed = Position { offset: is.offset.saturating_sub(1), ..*is };
                assert!(*name == "cleared" || texts(&channel, since(missed)).await.1.complete, "{name}");
            }
            let published = publish(&store.channel("a").expect("a channel"), "new").await.position;
            assert_eq!(published, Position { offset: 3, ..now["a"] });
            assert_eq!(texts(&store.channel("a").expect("a channel"), ALL).await.0, ["first", "second", "new"]);

            // The epochs stay. Asynchronous publications may be lost in a crash, and no rebuilt
            // index knows of a clean stop.
            let is = positions(&store);
            let store = reopened(&pool, store, false).await;
            assert_eq!(positions(&store), is);
            let is = durable(is);
            let store = reopened(&pool, store, true).await;
            assert_eq!(durable(positions(&store)), is);
            pool.crash(store);
            let store = pool.open().await;
            assert_eq!(durable(positions(&store)), is);
            store.close().await.expect("closed");
            drop(store);

            // Another opening of the same state has yet other epochs.
            let store = put_back(&mut pool, &earlier).await;
            for (name, other) in positions(&store) {
                assert!(other.epoch != now[name].epoch && other.epoch != then[name].epoch, "{name}");
            }
        }
    }
}

#[tokio::test]
async fn two_crashes_of_one_state_give_asynchronous_channels_different_epochs() {
    let (mut pool, store, _) = with_publications(1, true).await;
    let then = positions(&store);
    pool.crash(store);
    let crashed = images(&pool);
    let mut epochs = vec![then["async"].epoch];
    for _ in 0..3 {
        pool.replace(crashed.iter().map(|disk| Arc::new(disk.image())).collect());
        pool.delete_index();
        let store = pool.open().await;
        let now = positions(&store);
        assert_eq!(now["a"], then["a"], "nothing of it was lost");
        epochs.push(now["async"].epoch);
        // Clean stops keep it.
        let store = reopened(&pool, store, false).await;
        let store = reopened(&pool, store, false).await;
        assert_eq!(positions(&store), now);
        store.close().await.expect("closed");
    }
    epochs.sort_unstable();
    epochs.dedup();
    assert_eq!(epochs.len(), 4, "{epochs:?}");
}

/// A disk that was absent gets the epochs of the pool, and so does one that joins.
#[tokio::test]
async fn a_disk_that_was_absent_and_one_that_joins_get_the_new_epochs() {
    let (mut pool, store, earlier) = with_publications(2, true).await;
    let then = positions(&store);
    store.close().await.expect("closed");
    drop(store);
    pool.replace(earlier.iter().map(|disk| Arc::new(disk.image())).collect());
    pool.delete_index();
    pool.options.put_back = true;
    let (store, report) = pool.open_on(pool.given().into_iter().take(1).collect()).await.expect("opens");
    assert_eq!(report.missing.len(), 1);
    store.close().await.expect("closed");
    drop(store);
    pool.options.put_back = false;
    let store = pool.open().await;
    let now = positions(&store);
    assert!(now.iter().all(|(name, is)| is.epoch != then[name].epoch), "{now:?}");

    let third: Arc<dyn Disk> = formatted().await;
    store.disks().add(named("third", &third)).await.expect("added");
    done(&store).await;
    assert_eq!(positions(&store), now, "channels keep their epochs when they move");
    store.close().await.expect("closed");
}

/// Two restores make two histories. A disk that was absent has the break of the abandoned one.
#[tokio::test]
async fn the_break_of_an_abandoned_history_does_not_come_back() {
    for _ in 0..4 {
        let (mut pool, store, earlier) = with_publications(2, true).await;
        store.close().await.expect("closed");
        drop(store);
        let store = put_back(&mut pool, &earlier).await;
        let abandoned = positions(&store);
        store.close().await.expect("closed");
        drop(store);
        let second = Arc::new(pool.mem[1].image());

        pool.replace(earlier.iter().map(|disk| Arc::new(disk.image())).collect());
        pool.delete_index();
        pool.options.put_back = true;
        let (store, _) = pool.open_on(pool.given().into_iter().take(1).collect()).await.expect("opens");
        store.close().await.expect("closed");
        drop(store);
        pool.options.put_back = false;
        pool.replace(vec![pool.mem[0].clone(), second]);
        let store = pool.open().await;
        let now = positions(&store);
        assert!(now.iter().all(|(name, is)| is.epoch != abandoned[name].epoch), "{now:?} {abandoned:?}");
        let store = reopened(&pool, store, true).await;
        assert_eq!(durable(positions(&store)), durable(now));
        store.close().await.expect("closed");
    }
}

/// The slots of a lost disk begin empty elsewhere.
#[tokio::test]
async fn a_disk_that_is_given_up_takes_the_epochs_of_its_channels_with_it() {
    let (mut pool, store, _) = with_publications(2, true).await;
    for name in UNKNOWN {
        publish(&store.channel(name).expect("a channel"), "on one of the disks").await;
    }
    let then = positions(&store);
    store.close().await.expect("closed");
    drop(store);
    let (store, report) = pool.open_on(pool.given().into_iter().take(1).collect()).await.expect("opens");
    assert_eq!(report.missing.len(), 1);
    let there = |name: &&str| store.channel(name).is_ok();
    let kept: Vec<&str> = KNOWN.into_iter().chain(UNKNOWN).filter(there).collect();
    let used: Vec<_> = kept.iter().map(|name| store.channel(name).expect("there")).collect();
    store.disks().forget(&["d1".to_owned()]).await.expect("given up");
    for channel in &used {
        let before = then[&**channel.name()];
        assert_eq!(publish(channel, "more").await.position, Position { offset: before.offset + 1, ..before });
    }
    let now = positions(&store);
    let lost = now.iter().filter(|(name, _)| !kept.contains(name));
    assert!(lost.clone().count() > 0, "the lost disk had channels");
    assert!(lost.clone().all(|(name, is)| is.offset == 0 && is.epoch != then[name].epoch), "{now:?} {then:?}");
    pool.replace(vec![pool.mem[0].clone()]);
    let store = reopened(&pool, store, false).await;
    assert_eq!(positions(&store), now);
    store.close().await.expect("closed");
}
