//! States that are served from their archive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use steadfast_archive::ArchiveReader;
use steadfast_flow::Env;
use steadfast_log::LogError;
use steadfast_net::{Fate, MemoryStore, RemoteError};
use steadfast_store::{BucketSettings, Condition, StoreError};

use crate::common::{Ahead, BUCKET, Client, Pool, caught_up, content, create, get, restore, serve, well};

/// The archive of a pool, with the times of some of its states.
async fn archived(disks: usize, rounds: usize) -> (Pool, Client, Vec<u64>) {
    let mut pool = Pool::new(disks).await;
    (pool.archive_options.segments_max, pool.archive_options.inline_bytes_max) = (3, 4 << 10);
    let store = pool.open().await;
    create(&store).await;
    let archive = pool.archive(&store).await.expect("claimed");
    let (mut client, mut times) = (Client::new(11, 20), Vec::new());
    for _ in 0..rounds {
        for _ in 0..20 {
            client.step(&store).await;
        }
        caught_up(&archive).await;
        times.push(archive.status().archived_ms.expect("archived"));
        Env::tokio().sleep(Duration::from_millis(5)).await;
    }
    archive.stop(Duration::from_secs(10)).await;
    store.close().await.expect("closed");
    (pool, client, times)
}

#[tokio::test]
async fn each_state_is_what_a_restore_of_it_has() {
    for disks in [1, 3] {
        let (pool, client, mut times) = archived(disks, 8).await;
        times.push(u64::MAX);
        let before = pool.remote.objects();
        for time_ms in times {
            let blank = pool.blank();
            restore(&pool.reader().at(time_ms).await.expect("a state"), &blank.mem).await.expect("restored");
            let restored = content(&blank.open_restored().await, client.keys).await;
            let served = serve(pool.reader().at(time_ms).await.expect("a state"), &Env::tokio()).await;
            let found = content(&served, client.keys).await;
            assert!(found == restored && client.states.contains(&found), "{disks} disks, {time_ms}");
            served.close().await.expect("closed");
        }
        assert_eq!(pool.remote.objects(), before, "nothing is written");
    }
}

#[tokio::test]
async fn it_takes_no_writes() {
    let (pool, client, _) = archived(2, 3).await;
    let served = serve(pool.reader().newest().await.expect("a state"), &Env::tokio()).await;
    let before = content(&served, client.keys).await;
    let key = before.objects.keys().next().expect("an object").clone();
    let deleted = served.at(BUCKET, &key).delete(Condition::None, None).await.map(drop);
    let created = served.buckets().create("another", BucketSettings::default()).await.map(drop);
    for (what, refused) in [("delete", deleted), ("bucket", created)] {
        assert!(matches!(refused, Err(StoreError::Log(LogError::OpenedForReading))), "{what}: {refused:?}");
    }
    assert_eq!(content(&served, client.keys).await, before);
}

#[tokio::test]
async fn what_had_not_expired_then_is_there() {
    let (pool, client, times) = archived(1, 3).await;
    // The time to live of publications is an hour.
    let later = Ahead::new(90 * 24 * 3_600_000).env();
    let served = serve(pool.reader().at(times[2]).await.expect("a state"), &later).await;
    let found = content(&served, client.keys).await;
    assert!(found.publications > 0 && client.states.contains(&found), "{found:?}");
    assert_eq!(served.status().clock, Default::default(), "no step of the clock is reported");
}

#[tokio::test]
async fn reads_fail_while_the_archive_is_away() {
    let (pool, client, _) = archived(1, 3).await;
    let away = Arc::new(AtomicBool::new(false));
    let is_away = away.clone();
    let remote = pool.remote.with_fates(Arc::new(move |_| match is_away.load(Relaxed) {
        true => Fate::Failed(RemoteError::Unknown("the store is away".to_owned())),
        false => Fate::Answered(Duration::ZERO),
    }));
    let reader = ArchiveReader::new(Arc::new(remote), Some(Duration::from_millis(50)), &Env::tokio());
    let served = serve(reader.newest().await.expect("a state"), &Env::tokio()).await;
    away.store(true, Relaxed);
    let newest = &client.states.last().expect("a state").objects;
    let (key, data) = newest.iter().max_by_key(|(_, data)| data.len()).expect("an object");
    let failed = get(&served, key).await.expect_err("the store is away");
    assert!(failed.to_string().contains("away"), "{failed}");
    away.store(false, Relaxed);
    assert_eq!(get(&served, key).await.expect("the store is back"), *data);
}

#[tokio::test]
async fn changed_pieces_are_errors_and_no_bytes() {
    let (pool, client, _) = archived(1, 4).await;
    let newest = &client.states.last().expect("a state").objects;
    let mut refused = 0;
    for (name, body) in pool.remote.objects().into_iter().filter(|(name, _)| name.starts_with("p/")) {
        let served = serve(pool.reader().newest().await.expect("a state"), &Env::tokio()).await;
        let mut changed = body.to_vec();
        changed.iter_mut().for_each(|byte| *byte ^= 0x10);
        for broken in [changed.into(), body.slice(..body.len() / 2)] {
            pool.remote.force(&name, Some(broken));
            for (key, data) in newest {
                match get(&served, key).await {
                    Ok(found) => assert!(found == *data, "{key} with a changed {name}"),
                    Err(_) => refused += 1,
                }
            }
        }
        pool.remote.force(&name, Some(body));
    }
    assert!(refused > 0, "some objects are in pieces");
    let whole = MemoryStore::new(&Env::tokio(), well());
    pool.remote.objects().into_iter().for_each(|(name, body)| whole.force(&name, Some(body)));
    let reader = ArchiveReader::new(Arc::new(whole), None, &Env::tokio());
    let served = serve(reader.newest().await.expect("a state"), &Env::tokio()).await;
    assert_eq!(content(&served, client.keys).await.objects, *newest);
}
