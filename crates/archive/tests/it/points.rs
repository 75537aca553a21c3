//! States that are served from their archive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use steadfast_archive::ArchiveReader;
use steadfast_disk::{BLOCK, Disk};
use steadfast_flow::Env;
use steadfast_log::{DamageFound, LogError};
use steadfast_net::{Fate, MemoryStore, RemoteError};
use steadfast_store::{BucketSettings, Condition, OpenReport, Store, StoreError};

use crate::common::{
    Ahead, BUCKET, Client, Content, DISK_BYTES, Pool, archive_options, caught_up, content, create, get, history,
    open_images, put, restore, serve, try_serve, well,
};

/// The archive of a pool, with the times of some of its states.
async fn archived(disks: usize, rounds: usize) -> (Pool, Client, Vec<u64>) {
    archived_by(Pool::new(disks).await, rounds).await
}

async fn archived_by(mut pool: Pool, rounds: usize) -> (Pool, Client, Vec<u64>) {
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

/// Fails if the store answers with anything but what a state has. Errors are answers, too, but not
/// those that deny an object. Returns whether each answer was that of the state.
async fn is_never_wrong(served: &Store, state: &Content, what: &str) -> bool {
    let mut all = true;
    for (key, data) in &state.objects {
        match get(served, key).await {
            Ok(found) => assert!(found == *data, "{what}: {key}"),
            Err(e @ (StoreError::NoSuchKey | StoreError::NoSuchBucket)) => panic!("{what}: {key}: {e}"),
            Err(_) => all = false,
        }
    }
    match history(served).await {
        Ok(found) => assert_eq!(found, state.publications, "{what}"),
        Err(_) => all = false,
    }
    all
}

#[tokio::test]
async fn a_state_without_one_of_its_objects_has_errors_and_denies_nothing() {
    for (disks, segment_bytes_max) in [(2, archive_options().segment_bytes_max), (1, 0)] {
        let mut pool = Pool::new(disks).await;
        // With 0, the last records are in pieces, too.
        pool.archive_options.segment_bytes_max = segment_bytes_max;
        let (pool, client, _) = archived_by(pool, 4).await;
        let newest = client.states.last().expect("a state");
        let (mut opened, mut refused) = (0, 0);
        for (name, body) in pool.remote.objects().into_iter().filter(|(name, _)| name.starts_with("p/")) {
            let change = |at: usize| {
                let mut changed = body.to_vec();
                changed[at] ^= 0x10;
                Some(Bytes::from(changed))
            };
            let blocks = (0..body.len()).step_by(32 * BLOCK).map(|at| at + BLOCK / 2);
            let broken = blocks.chain([BLOCK % body.len(), body.len() - BLOCK, body.len() - 1]).map(change);
            let zeros = Some(Bytes::from(vec![0; body.len()]));
            for broken in broken.chain([None, zeros, Some(body.slice(..body.len() / 2))]) {
                pool.remote.force(&name, broken);
                match try_serve(pool.reader().newest().await.expect("a state"), &Env::tokio()).await {
                    Ok((served, _)) => {
                        is_never_wrong(&served, newest, &name).await;
                        served.close().await.expect("closed");
                        opened += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
            pool.remote.force(&name, Some(body));
        }
        assert!(opened > 0 && refused > 0, "{opened} states opened, {refused} refused");
        let served = serve(pool.reader().newest().await.expect("a state"), &Env::tokio()).await;
        assert!(is_never_wrong(&served, newest, "the whole archive").await);
    }
}

#[tokio::test]
async fn a_store_that_goes_away_ends_the_opening() {
    let (pool, client, _) = archived(2, 4).await;
    let state = pool.reader().newest().await.expect("a state");
    let whole = pool.remote.objects();
    whole.keys().filter(|name| name.starts_with("p/")).for_each(|name| pool.remote.force(name, None));
    let refused = try_serve(state, &Env::tokio()).await.expect_err("no piece can be read");
    assert!(refused.contains("p/"), "{refused}");
    whole.into_iter().for_each(|(name, body)| pool.remote.force(&name, Some(body)));
    let served = serve(pool.reader().newest().await.expect("a state"), &Env::tokio()).await;
    assert!(client.states.contains(&content(&served, client.keys).await));
}

#[tokio::test]
async fn what_an_opened_log_lacks_is_named() {
    let (pool, _, _) = archived(2, 3).await;
    let images = pool.reader().newest().await.expect("a state").open();
    let (store, report) = open_images(&images, &Env::tokio()).await.expect("it opens");
    assert_eq!(images.lacking(&report), None);
    let lacking = |change: &dyn Fn(&mut OpenReport)| {
        let mut changed = report.clone();
        change(&mut changed);
        images.lacking(&changed).expect("something is lacking")
    };
    let last_lsn = report.disks[1].1.last_lsn;
    let shorter = lacking(&|report| report.disks[1].1.last_lsn -= 1);
    assert!(shorter.contains(&format!("ends at LSN {}, and should end at {last_lsn}", last_lsn - 1)), "{shorter}");
    let damage = DamageFound { extent: Some(1), offset: 4096, what: "a bad footer".to_owned() };
    let damaged = lacking(&|report| report.disks[0].1.damage.push(damage.clone()));
    assert!(damaged.ends_with("extent 1 at 4096: a bad footer"), "{damaged}");
    let gone = lacking(&|report| {
        let (name, _) = report.disks.remove(0);
        report.missing.push((name, "no superblock".to_owned()));
    });
    assert!(gone.ends_with("no superblock"), "{gone}");
    store.close().await.expect("closed");
}

#[tokio::test]
async fn what_the_pool_had_lost_is_in_doubt() {
    let pool = Pool::new(1).await;
    let store = pool.open().await;
    create(&store).await;
    put(&store, "before", b"small").await;
    put(&store, "lost", &[7; 300_000]).await;
    store.close().await.expect("closed");
    // The last extent that was ever used is gone.
    let disk = &pool.mem[0];
    let is_used = |start: u64| disk.image().read(start, BLOCK);
    let mut last = 0;
    for start in (1 << 20..DISK_BYTES).step_by(1 << 20).take_while(|start| start + (1 << 20) <= disk.len()) {
        if is_used(start).await.expect("read").iter().any(|byte| *byte != 0) {
            last = start;
        }
    }
    disk.write(last, vec![0; 1 << 20].into()).await.expect("written");
    let store = pool.open_damaged().await;
    let archive = pool.archive(&store).await.expect("claimed");
    caught_up(&archive).await;
    archive.stop(Duration::from_secs(10)).await;
    store.close().await.expect("closed");
    let (served, report) =
        try_serve(pool.reader().newest().await.expect("a state"), &Env::tokio()).await.expect("opened");
    assert_eq!(report.disks[0].1.lost.len(), 1, "{report:?}");
    let found = get(&served, "lost").await.expect_err("it is lost");
    assert!(!matches!(found, StoreError::NoSuchKey), "{found}");
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
