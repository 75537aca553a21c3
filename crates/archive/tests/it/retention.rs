//! What no state names that can be restored is deleted, and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use steadfast_archive::{Archive, ArchiveError, ArchiveReader, TransferProgress};
use steadfast_flow::Env;
use steadfast_net::{Fate, RemoteCall, RemoteError};
use steadfast_store::Store;

use crate::common::{Ahead, Client, Pool, caught_up, content, create, put, restore};

/// A pool whose archive often begins a period.
async fn pool(disks: usize, retention: Duration) -> Pool {
    let mut pool = Pool::new(disks).await;
    let options = &mut pool.archive_options;
    (options.segments_max, options.inline_bytes_max, options.retention) = (3, 4 << 10, retention);
    pool
}

async fn steps(client: &mut Client, store: &Store, archive: &Archive, steps: u32) {
    for n in 1..=steps {
        client.step(store).await;
        if n % 10 == 0 {
            caught_up(archive).await;
        }
    }
}

/// Waits until the store has nothing that no state names, and returns how many objects it has.
async fn only_named(pool: &Pool) -> usize {
    let env = Env::tokio();
    let mut last = String::new();
    for _ in 0..200 {
        let objects = pool.remote.objects();
        let lists = objects.keys().filter(|name| name.starts_with("dropped/")).count();
        let check = pool.reader().verify(&TransferProgress::default()).await.expect("read");
        assert_eq!(check.damage, Vec::<String>::new());
        // A document that holds bytes of another period too is read twice.
        if objects.len() <= 2 + lists + check.objects as usize {
            return objects.len();
        }
        last = format!("{} objects with {lists} lists, {check:?}", objects.len());
        env.sleep(Duration::from_millis(20)).await;
    }
    panic!("objects are left: {last}");
}

#[tokio::test]
async fn states_can_be_restored_for_the_time_that_is_configured() {
    // Ten seconds pass between two of the known states.
    let (retention_ms, clock) = (100_000, Ahead::new(0));
    let mut pool = pool(2, Duration::from_millis(retention_ms)).await;
    pool.env = clock.env();
    let store = pool.open().await;
    create(&store).await;
    let archive = pool.archive(&store).await.expect("claimed");
    let (mut client, reader) = (Client::new(3, 20), pool.reader());
    let mut known = Vec::new();
    for _ in 0..30 {
        steps(&mut client, &store, &archive, 20).await;
        known.push((archive.status().archived_ms.expect("archived"), client.states.len() - 1));
        clock.0.fetch_add(10_000, Relaxed);
    }
    only_named(&pool).await;
    archive.stop(Duration::from_secs(10)).await;
    let kept_ms = archive.status().archived_ms.expect("archived") - retention_ms;
    let (mut restored, mut gone) = (0, 0);
    for (time_ms, state) in known.iter().rev() {
        match reader.at(*time_ms).await {
            Ok(found) => {
                let blank = pool.blank();
                restore(&found, &blank.mem).await.expect("restored");
                let found = content(&blank.open_restored().await, client.keys).await;
                assert!(client.states[..=*state].contains(&found), "a state that was, and not a later one");
                restored += 1;
            }
            Err(ArchiveError::NoPoint) if *time_ms < kept_ms => gone += 1,
            Err(e) => panic!("the state of {time_ms} is kept until {kept_ms}: {e}"),
        }
    }
    assert!(restored > 9 && gone > 9, "{restored} and {gone}");
    let (points, _) = reader.points().await.expect("read");
    assert_eq!(archive.status().oldest_ms, Some(points[0].time_ms));
    // How many there are depends on how often compaction runs; none is left, as checked above.
    assert!(archive.status().deleted > 0, "{:?}", archive.status());
}

/// Of what earlier starts left, that which no state names; and nothing of others.
#[tokio::test]
async fn a_start_deletes_what_earlier_ones_left() {
    let env = Env::tokio();
    let pool = pool(2, Duration::from_secs(3600)).await;
    let store = pool.open().await;
    create(&store).await;
    let archive = pool.archive(&store).await.expect("claimed");
    let mut client = Client::new(4, 20);
    steps(&mut client, &store, &archive, 100).await;
    archive.stop(Duration::from_secs(10)).await;
    store.close().await.expect("closed");
    let piece = pool.remote.objects().into_keys().find(|name| name.starts_with("p/")).expect("a piece");
    let (of, _) = piece.rsplit_once('/').expect("a piece");
    let left = [format!("{of}/4096.1.99999"), "seg/1.99999".to_owned(), "base/1.99999".to_owned()];
    let others = [format!("{of}/4096.9.1"), "seg/9.1".to_owned(), "notes.txt".to_owned(), "seg/1.99999/x".to_owned()];
    for name in left.iter().chain(&others) {
        pool.remote.force(name, Some(Bytes::from_static(b"left")));
    }
    let store = pool.open().await;
    let archive = pool.archive(&store).await.expect("claimed");
    let mut waited = 0;
    while left.iter().any(|name| pool.remote.objects().contains_key(name)) {
        env.sleep(Duration::from_millis(10)).await;
        waited += 1;
        assert!(waited < 1000, "they are deleted: {:?}", archive.status());
    }
    steps(&mut client, &store, &archive, 20).await;
    let objects = pool.remote.objects();
    assert!(others.iter().all(|name| objects.contains_key(name)), "{objects:?}");
    assert_eq!(archive.status().deleted, left.len() as u64);
    others.iter().for_each(|name| pool.remote.force(name, None));
    only_named(&pool).await;
    archive.stop(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn deletes_that_are_refused_are_named_and_repeated() {
    let env = Env::tokio();
    let pool = pool(2, Duration::ZERO).await;
    let store = pool.open().await;
    create(&store).await;
    let may_delete = Arc::new(AtomicBool::new(false));
    let (allowed, reads) = (may_delete.clone(), AtomicU32::new(0));
    let remote = pool.remote.with_fates(Arc::new(move |call| match call {
        RemoteCall::Delete if !allowed.load(Relaxed) => {
            Fate::Failed(RemoteError::Refused("AccessDenied: s3:DeleteObject".to_owned()))
        }
        // The keys are exchanged.
        RemoteCall::Read(name) if name.starts_with("dropped/") && reads.fetch_add(1, Relaxed) < 2 => {
            Fate::Failed(RemoteError::Refused("403".to_owned()))
        }
        _ => Fate::Answered(Duration::ZERO),
    }));
    let archive = pool.archive_with(&store, remote).await.expect("claimed");
    let mut client = Client::new(5, 20);
    steps(&mut client, &store, &archive, 200).await;
    let mut waited = 0;
    while archive.status().delete_failing.is_none_or(|why| !why.contains("s3:DeleteObject")) {
        env.sleep(Duration::from_millis(20)).await;
        waited += 1;
        assert!(waited < 600, "{:?}", archive.status());
    }
    let status = archive.status();
    assert!(status.delete_failing.is_some_and(|why| why.contains("s3:DeleteObject")) && status.deleted == 0);
    assert!(status.following && status.failing.is_none(), "the archive follows nevertheless");
    may_delete.store(true, Relaxed);
    let mut waited = 0;
    while archive.status().delete_failing.is_some() {
        env.sleep(Duration::from_millis(50)).await;
        waited += 1;
        assert!(waited < 600, "{:?}", archive.status());
    }
    only_named(&pool).await;
    archive.stop(Duration::from_secs(10)).await;
}

/// A small body is shipped in a document. It does not keep the document as long as it lives.
#[tokio::test]
async fn bodies_keep_no_documents() {
    let mut pool = pool(1, Duration::ZERO).await;
    pool.archive_options.inline_bytes_max = 64 << 10;
    let store = pool.open().await;
    create(&store).await;
    let archive = pool.archive(&store).await.expect("claimed");
    for n in 0..150 {
        put(&store, &format!("small{n}"), &[n as u8; 9000]).await;
        caught_up(&archive).await;
    }
    let count = || {
        let objects = pool.remote.objects().into_keys();
        objects.filter(|name| name.starts_with("seg/") || name.starts_with("base/")).count()
    };
    let before = count();
    // The extents that they are in are sealed.
    for n in 0..1500 {
        put(&store, &format!("record{}", n % 50), &[n as u8; 1500]).await;
        if n % 100 == 99 {
            put(&store, &format!("large{n}"), &[n as u8; 100_000]).await;
            caught_up(&archive).await;
        }
    }
    only_named(&pool).await;
    assert!(before > 20 && count() < before / 2, "{before} documents, then {}", count());
    archive.stop(Duration::from_secs(10)).await;
}

/// A verification takes long; what expires meanwhile is no damage.
#[tokio::test]
async fn what_expires_during_a_verification_is_not_damaged() {
    let mut pool = pool(2, Duration::from_secs(3600)).await;
    let store = pool.open().await;
    create(&store).await;
    let archive = pool.archive(&store).await.expect("claimed");
    let mut client = Client::new(6, 20);
    steps(&mut client, &store, &archive, 200).await;
    archive.stop(Duration::from_secs(10)).await;
    let earlier = pool.remote.objects();
    store.close().await.expect("closed");
    pool.archive_options.retention = Duration::ZERO;
    let store = pool.open().await;
    let archive = pool.archive(&store).await.expect("claimed");
    steps(&mut client, &store, &archive, 200).await;
    only_named(&pool).await;
    archive.stop(Duration::from_secs(10)).await;
    let later = pool.remote.objects();
    let gone = earlier.keys().filter(|name| !later.contains_key(*name)).count();
    assert!(gone > 10, "{gone} objects are deleted");
    let is = |objects: &BTreeMap<String, Bytes>| {
        pool.remote.objects().keys().for_each(|name| pool.remote.force(name, None));
        objects.iter().for_each(|(name, body)| pool.remote.force(name, Some(body.clone())));
    };
    is(&earlier);
    // The deletes happen when the first piece is read.
    let (later, remote) = (Arc::new(later), pool.remote.clone());
    let first = AtomicBool::new(true);
    let deletes = later.clone();
    let reading = pool.remote.with_fates(Arc::new(move |call| {
        if matches!(call, RemoteCall::Read(name) if name.starts_with("p/")) && first.swap(false, Relaxed) {
            remote.objects().keys().for_each(|name| remote.force(name, deletes.get(name).cloned()));
            deletes.iter().for_each(|(name, body)| remote.force(name, Some(body.clone())));
        }
        Fate::Answered(Duration::ZERO)
    }));
    let reader = ArchiveReader::new(Arc::new(reading), None, &Env::tokio());
    let check = reader.verify(&TransferProgress::default()).await.expect("read");
    assert_eq!((check.damaged, check.damage), (0, Vec::new()));
    assert!(pool.remote.objects() == *later, "they were deleted meanwhile");
    // What does not expire is damage.
    let kept = later.keys().find(|name| name.starts_with("p/"));
    pool.remote.force(kept.expect("a piece"), None);
    assert_eq!(reader.verify(&TransferProgress::default()).await.expect("read").damaged, 1);
}
