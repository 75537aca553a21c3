//! What an archive has, at each moment.

use std::sync::Arc;
use std::time::Duration;

use steadfast_archive::ArchiveState;
use steadfast_flow::Env;

use crate::common::{Client, Pool, away, bad, caught_up, content, create, well};

/// The state in the archive is always one that existed, and not older than what was archived.
async fn follows(disks: usize, seed: u64) {
    let env = Env::tokio();
    let mut pool = Pool::new(disks).await;
    pool.remote = pool.remote.with_fates(bad(seed));
    let mut client = Client::new(seed, 30);
    let mut floor = 0;
    for life in 0..3 {
        let store = pool.open().await;
        if life == 0 {
            create(&store).await;
        }
        assert_eq!(content(&store, client.keys).await, *client.states.last().expect("a state"));
        let archive = pool.archive(&store).await.expect("claimed");
        for n in 0..250 {
            client.step(&store).await;
            if n % 10 == 0 {
                env.sleep(Duration::from_millis(2)).await;
            }
            if n % 50 != 49 {
                continue;
            }
            if n == 199 {
                caught_up(&archive).await;
                floor = client.states.len() - 1;
            }
            if archive.status().state == ArchiveState::Following {
                let restored = match n % 100 {
                    49 => pool.restored().await,
                    _ => pool.restored_onto_used().await,
                };
                let restored = restored.expect("restored");
                let found = client.find(&content(&restored, client.keys).await);
                let found = found.unwrap_or_else(|| panic!("seed {seed}: a state that never existed"));
                assert!(found >= floor, "seed {seed}: state {found} is restored, {floor} was archived");
                floor = found;
            }
        }
        archive.stop(Duration::from_secs(20)).await;
        let last = client.states.len() - 1;
        let restored = pool.restored().await.expect("restored");
        assert_eq!(client.find(&content(&restored, client.keys).await), Some(last), "seed {seed}: the end of a life");
        let status = archive.status();
        assert!(status.failures > 0 && status.cuts > 0 && status.damaged_bytes == 0, "{status:?}");
        store.close().await.expect("closed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_disk_in_a_bad_store() {
    for seed in 0..2 {
        follows(1, seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_disks_in_a_bad_store() {
    follows(3, 10).await;
}

#[tokio::test]
async fn a_store_that_is_away_costs_lag_only() {
    let env = Env::tokio();
    let pool = Pool::new(1).await;
    let store = pool.open().await;
    create(&store).await;
    let is_away = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let gone = is_away.clone();
    let (works, fails) = (well(), away());
    let remote = pool.remote.with_fates(Arc::new(move |call| {
        if gone.load(std::sync::atomic::Ordering::Relaxed) { fails(call) } else { works(call) }
    }));
    let archive = pool.archive_with(&store, remote).await.expect("claimed");
    let mut client = Client::new(1, 30);
    for _ in 0..50 {
        client.step(&store).await;
    }
    caught_up(&archive).await;
    let before = client.states.len() - 1;
    is_away.store(true, std::sync::atomic::Ordering::Relaxed);
    // More than the disk can hold: what was overwritten is recycled, whether or not it was shipped.
    let mut written = 0;
    while written < 2 * crate::common::DISK_BYTES {
        client.step(&store).await;
        written += 8000;
        if client.states.len().is_multiple_of(200) {
            env.sleep(Duration::from_millis(1)).await;
        }
    }
    let status = archive.status();
    assert!(status.lag_seconds > 0.0 && status.lag_bytes > 1 << 20 && status.failing.is_some(), "{status:?}");
    let restored = pool.restored().await.expect("restored");
    let found = client.find(&content(&restored, client.keys).await).expect("a state that existed");
    assert!(found >= before);
    is_away.store(false, std::sync::atomic::Ordering::Relaxed);
    caught_up(&archive).await;
    let restored = pool.restored().await.expect("restored");
    let found = client.find(&content(&restored, client.keys).await);
    assert_eq!(found, Some(client.states.len() - 1));
}

#[tokio::test]
async fn an_idle_pool_sends_nothing() {
    let env = Env::tokio();
    let pool = Pool::new(2).await;
    let store = pool.open().await;
    create(&store).await;
    let archive = pool.archive(&store).await.expect("claimed");
    caught_up(&archive).await;
    env.sleep(Duration::from_millis(100)).await;
    let before = archive.status();
    env.sleep(Duration::from_millis(200)).await;
    let after = archive.status();
    assert_eq!((before.creates, before.replaces, before.reads), (after.creates, after.replaces, after.reads));
}

/// What was changed in the store is found before it becomes wrong bytes.
#[tokio::test]
async fn changed_objects_are_refused() {
    let pool = Pool::new(1).await;
    let store = pool.open().await;
    create(&store).await;
    let archive = pool.archive(&store).await.expect("claimed");
    let mut client = Client::new(5, 30);
    for _ in 0..300 {
        client.step(&store).await;
    }
    caught_up(&archive).await;
    archive.stop(Duration::from_secs(10)).await;
    let mut refused = 0;
    let needed = pool.remote.objects();
    for (name, body) in &needed {
        if name == "archive" {
            continue;
        }
        let mut changed = body.to_vec();
        let at = changed.len() / 2;
        changed[at] ^= 1;
        for other in [None, Some(changed.into()), Some(body.slice(..body.len() - 1))] {
            pool.remote.force(name, other);
            match pool.restored().await {
                Ok(restored) => {
                    // It is garbage, or of an earlier point.
                    let found = client.find(&content(&restored, client.keys).await);
                    assert_eq!(found, Some(client.states.len() - 1), "{name}");
                }
                Err(why) => {
                    assert!(why.contains(name.as_str()), "{why} names {name}");
                    refused += 1;
                }
            }
        }
        pool.remote.force(name, Some(body.clone()));
    }
    assert!(refused > 3, "{refused} of {} objects", needed.len());
}
