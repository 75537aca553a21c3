//! Restores of pools from their archives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use steadfast_archive::{Archive, ArchiveError, ArchiveReader, ArchivedPool, RestorePlace, TakeOver, TransferProgress};
use steadfast_disk::Disk;
use steadfast_flow::Env;
use steadfast_net::Fate;
use steadfast_store::Store;

use crate::common::{Ahead, Client, Pool, away, caught_up, content, create, restore, restore_disk};

/// A pool whose archive has some states, with short times between bases.
async fn archived(disks: usize) -> (Pool, Store, Archive, Client) {
    let mut pool = Pool::new(disks).await;
    (pool.archive_options.segments_max, pool.archive_options.inline_bytes_max) = (3, 4 << 10);
    let store = pool.open().await;
    create(&store).await;
    let archive = pool.archive(&store).await.expect("claimed");
    let mut client = Client::new(7, 20);
    for n in 1..=200 {
        client.step(&store).await;
        if n % 10 == 0 {
            caught_up(&archive).await;
        }
    }
    (pool, store, archive, client)
}

#[tokio::test]
async fn a_restored_pool_continues_the_archive_and_the_old_one_ends() {
    let env = Env::tokio();
    let (pool, store, archive, mut client) = archived(2).await;
    let new = pool.blank();
    let (reader, keeper) = (pool.reader(), new.kept.clone());
    let refused = reader.take_over(keeper.clone(), "new", TakeOver::Idle).await.err().expect("its owner lives");
    assert!(matches!(&refused, ArchiveError::InUse { machine, .. } if machine == "test"), "{refused}");
    let refused = reader.take_over(keeper.clone(), "new", TakeOver::Own).await.err().expect("it is of another pool");
    assert!(matches!(refused, ArchiveError::Foreign(_)), "{refused}");
    let state = reader.take_over(keeper.clone(), "new", TakeOver::Any).await.expect("taken");
    assert_eq!(state.tenure(), Some(2));
    let known = client.states.len() - 1;
    // The old owner does not know it yet, and answers.
    client.step(&store).await;
    let ended = env.timeout(Duration::from_secs(10), archive.ended()).await.expect("it learns");
    assert!(matches!(&ended, ArchiveError::Superseded { machine, tenure: 2, .. } if machine == "new"), "{ended}");
    // A restore that is interrupted continues with the same state.
    let again = reader.taken_over(keeper.clone(), 2).await.expect("still its own");
    assert_eq!(again.fingerprint(), state.fingerprint());
    restore(&again, &new.mem).await.expect("restored");
    let restored = new.open_restored().await;
    assert_eq!(client.find(&content(&restored, client.keys).await), Some(known));
    let archive = new.archive(&restored).await.expect("it continues");
    let mut client = Client::at(client.states[known].clone(), 9, 20);
    for _ in 0..60 {
        client.step(&restored).await;
    }
    caught_up(&archive).await;
    let newest = pool.restored().await.expect("restored");
    assert_eq!(client.find(&content(&newest, client.keys).await), Some(client.states.len() - 1));
    let late = reader.taken_over(keeper, 2).await.err().expect("its server has claimed it since");
    assert!(matches!(late, ArchiveError::Superseded { tenure: 3, .. }), "{late}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_writes_is_alive_whatever_the_clocks_show() {
    let env = Env::tokio();
    let (pool, store, archive, mut client) = archived(1).await;
    let new = pool.blank();
    let ahead = Ahead::new(3_600_000).env();
    let reader = ArchiveReader::new(Arc::new(pool.remote.clone()), None, &ahead);
    let mut taking = Box::pin(reader.take_over(new.kept.clone(), "new", TakeOver::Idle));
    let refused = loop {
        tokio::select! {
            taken = &mut taking => break taken.err().expect("its owner writes"),
            () = env.sleep(Duration::from_millis(20)) => client.step(&store).await,
        }
    };
    assert!(matches!(refused, ArchiveError::InUse { age_s: 0, .. }), "{refused}");
    archive.stop(Duration::from_secs(10)).await;
    let taken = reader.take_over(new.kept.clone(), "new", TakeOver::Idle).await.expect("it has ended");
    assert_eq!(taken.tenure(), Some(2));
}

#[tokio::test]
async fn each_earlier_state_can_be_restored() {
    let env = Env::tokio();
    let (pool, store, archive, mut client) = archived(1).await;
    let mut known = Vec::new();
    for _ in 0..15 {
        for _ in 0..10 {
            client.step(&store).await;
        }
        caught_up(&archive).await;
        known.push((archive.status().archived_ms.expect("archived"), client.states.len() - 1));
        env.sleep(Duration::from_millis(5)).await;
    }
    let reader = pool.reader();
    let (points, newest_ms) = reader.points().await.expect("read");
    assert!(points.len() > 3 && points.iter().any(|point| point.further > 0), "{points:?}");
    assert!(points.is_sorted_by_key(|point| point.time_ms) && newest_ms >= known.last().expect("some").0);
    let mut exact = 0;
    for (time_ms, state) in &known {
        let found = reader.at(*time_ms).await.expect("a state");
        assert!(found.time_ms() <= *time_ms && found.tenure().is_none());
        let blank = pool.blank();
        restore(&found, &blank.mem).await.expect("restored");
        let restored = content(&blank.open_restored().await, client.keys).await;
        assert!(client.states[..=*state].contains(&restored), "a state that was, and not a later one than {state}");
        exact += usize::from(restored == client.states[*state]);
    }
    assert!(exact > 0, "some of the states are in a segment or base of their own");
    let oldest = points[0].time_ms;
    assert!(matches!(reader.at(oldest - 1).await.err(), Some(ArchiveError::NoPoint)));
    reader.at(oldest).await.expect("the oldest");
    let at_end = reader.at(u64::MAX).await.expect("the newest");
    assert_eq!(at_end.fingerprint(), reader.newest().await.expect("read").fingerprint());
    archive.stop(Duration::from_secs(10)).await;
}

/// The newest state, from a store that counts the requests.
async fn counted(pool: &Pool, requests: &Arc<AtomicU32>) -> ArchivedPool {
    let requests = requests.clone();
    let remote = pool.remote.with_fates(Arc::new(move |_| {
        requests.fetch_add(1, Relaxed);
        Fate::Answered(Duration::ZERO)
    }));
    ArchiveReader::new(Arc::new(remote), None, &Env::tokio()).newest().await.expect("read")
}

/// The other disks keep what they have.
#[tokio::test]
async fn one_disk_of_several_is_restored_alone() {
    for seed in 1..4 {
        let (pool, store, archive, mut client) = archived(3).await;
        let known = client.states.last().expect("a state").clone();
        archive.stop(Duration::from_secs(10)).await;
        for _ in 0..60 {
            client.step(&store).await;
        }
        let newest = client.states.last().expect("a state").clone();
        let mut crashed = pool.copy();
        drop(store);
        crashed.mem[1] = pool.blank().mem.remove(1);
        let reader = crashed.reader();
        let state = reader.take_over(crashed.kept.clone(), "test", TakeOver::Own).await.expect("its own");
        let of = state.disks().into_iter().find(|of| of.name == "d1").expect("the lost one");
        let disk: Arc<dyn Disk> = crashed.mem[1].clone();
        restore_disk(&state, of.id, &RestorePlace::new(&disk), &TransferProgress::default()).await.expect("restored");
        let store = crashed.open_restored().await;
        let now = content(&store, client.keys).await;
        assert!([known.publications, newest.publications].contains(&now.publications), "{}", now.publications);
        let mut older = 0;
        for n in 0..client.keys {
            let key = format!("k{n}");
            let [now, known, newest] = [&now, &known, &newest].map(|of| of.objects.get(&key));
            assert!(now == known || now == newest, "seed {seed}: {key} has a value that it never had");
            older += usize::from(now != newest);
        }
        assert!(older > 0 && now != known, "some disks are older than others");
        let archive = crashed.archive(&store).await.expect("it continues");
        let mut client = Client::at(now, seed, client.keys);
        for _ in 0..30 {
            client.step(&store).await;
        }
        caught_up(&archive).await;
        let whole = crashed.restored().await.expect("restored");
        assert_eq!(client.find(&content(&whole, client.keys).await), Some(client.states.len() - 1));
    }
}

#[tokio::test]
async fn an_interrupted_restore_continues_where_it_was() {
    let (pool, store, archive, client) = archived(1).await;
    archive.stop(Duration::from_secs(10)).await;
    drop(store);
    let requests = Arc::new(AtomicU32::new(0));
    let state = counted(&pool, &requests).await;
    let (blank, of) = (pool.blank(), state.disks().remove(0));
    let disk: Arc<dyn Disk> = blank.mem[0].clone();
    // The first attempt fails when a part of the disk is complete.
    let (id, reached) = ([7; 16], AtomicU32::new(0));
    let failing = |extent| {
        reached.store(extent, Relaxed);
        Err(std::io::Error::other("interrupted"))
    };
    let place =
        RestorePlace { blank: true, id, flush_bytes: of.bytes / 2, reached: &failing, ..RestorePlace::new(&disk) };
    requests.store(0, Relaxed);
    state.fill(of.id, &place, &TransferProgress::default()).await.expect_err("interrupted");
    let begin = reached.load(Relaxed);
    assert!(begin > 0 && RestorePlace::is_begun(&disk, id).await && !RestorePlace::is_begun(&disk, [8; 16]).await);
    let first = requests.swap(0, Relaxed);
    let again = RestorePlace { begin, reached: &|_| Ok(()), ..place };
    let progress = TransferProgress::default();
    state.fill(of.id, &again, &progress).await.expect("filled");
    assert_eq!(progress.done(), of.bytes);
    assert!(RestorePlace::is_begun(&disk, id).await, "it is no disk of the pool yet");
    state.finish(of.id, &again).await.expect("finished");
    let second = requests.swap(0, Relaxed);
    assert!(!RestorePlace::is_begun(&disk, id).await, "it is complete");
    assert_eq!(client.find(&content(&blank.open_restored().await, client.keys).await), Some(client.states.len() - 1));

    // Another disk in its place is written from its beginning.
    let blank = pool.blank();
    let disk: Arc<dyn Disk> = blank.mem[0].clone();
    let other = RestorePlace { disk: &disk, ..again };
    restore_disk(&state, of.id, &other, &TransferProgress::default()).await.expect("restored");
    let all = requests.load(Relaxed);
    assert!(second < all && all <= first + second + 16, "{first} and {second} of {all} objects were read");
    assert_eq!(client.find(&content(&blank.open_restored().await, client.keys).await), Some(client.states.len() - 1));
}

#[tokio::test]
async fn damage_is_found_and_named() {
    let (pool, store, archive, _) = archived(2).await;
    archive.stop(Duration::from_secs(10)).await;
    drop(store);
    let reader = pool.reader();
    let whole = reader.verify(&TransferProgress::default()).await.expect("read");
    assert!(whole.damaged == 0 && whole.points > 3 && whole.objects > 3, "{whole:?}");
    let mut found = 0;
    for (name, body) in pool.remote.objects() {
        let mut changed = body.to_vec();
        let at = changed.len() - 1;
        changed[at] ^= 1;
        pool.remote.force(&name, Some(changed.into()));
        match reader.verify(&TransferProgress::default()).await {
            Ok(check) if check.damaged > 0 => {
                assert!(check.damage.iter().any(|why| why.starts_with(&name)), "{name}: {check:?}");
                found += 1;
            }
            Ok(_) => {}
            Err(e) => assert!(["archive", "head"].contains(&name.as_str()), "{name}: {e}"),
        }
        pool.remote.force(&name, Some(body));
    }
    assert!(found > 5, "{found}");
    // So is a state that is missing.
    pool.remote.force("base/1.1", None);
    let found = reader.verify(&TransferProgress::default()).await.expect("read");
    assert!(found.damage.iter().any(|why| why.starts_with("base/1.1: ")), "{found:?}");
}

#[tokio::test]
async fn an_archive_that_cannot_be_read_is_named() {
    let pool = Pool::new(1).await;
    let reader = pool.reader();
    let nothing = reader.newest().await.err().expect("empty");
    assert!(matches!(&nothing, ArchiveError::Foreign(why) if why.contains("no archive")), "{nothing}");
    let mut away_pool = Pool::new(1).await;
    away_pool.remote = away_pool.remote.with_fates(away());
    let failed = away_pool.reader().newest().await.err().expect("away");
    assert!(matches!(&failed, ArchiveError::Unreachable(why) if why.contains("away")), "{failed}");
}
