//! One pool at a time follows into an archive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use steadfast_archive::{ArchiveError, TakeOver};
use steadfast_flow::Env;
use steadfast_net::{Fate, RemoteCall, RemoteError};

use crate::common::{Client, Pool, away, caught_up, content, create, put};

#[tokio::test]
async fn a_process_that_lost_the_archive_learns_of_it() {
    let env = Env::tokio();
    let pool = Pool::new(1).await;
    let store = pool.open().await;
    create(&store).await;
    let archive = pool.archive(&store).await.expect("claimed");
    let mut client = Client::new(1, 10);
    for _ in 0..20 {
        client.step(&store).await;
    }
    caught_up(&archive).await;
    // The same disks in another process, as after a machine that seemed to be dead.
    let copy = pool.copy();
    let other = copy.open().await;
    let newer = copy.archive(&other).await.expect("claimed");
    client.step(&other).await;
    caught_up(&newer).await;
    client.step(&store).await;
    let ended = env.timeout(Duration::from_secs(10), archive.ended()).await.expect("it learns");
    assert!(matches!(ended, ArchiveError::Superseded { tenure: 2, .. }), "{ended}");
    client.states.truncate(client.states.len() - 1);
    let restored = pool.restored().await.expect("restored");
    assert_eq!(client.find(&content(&restored, 10).await), Some(client.states.len() - 1));
    // Nor does it return as the owner.
    store.close().await.expect("closed");
    let store = pool.open().await;
    let refused = pool.archive(&store).await.expect_err("refused");
    assert!(matches!(refused, ArchiveError::Superseded { .. }), "{refused}");
}

/// Its new owner deletes what a process has under way. That is no damage.
#[tokio::test]
async fn a_process_whose_uploads_are_deleted_learns_of_its_new_owner() {
    let env = Env::tokio();
    let pool = Pool::new(1).await;
    let store = pool.open().await;
    create(&store).await;
    // First all is well, then answers of uploads are lost, and their objects cannot be read.
    let is_bad = Arc::new(AtomicBool::new(false));
    let bad = is_bad.clone();
    let remote = pool.remote.with_fates(Arc::new(move |call| match call {
        RemoteCall::Create(_) if bad.load(Relaxed) => Fate::Lost(Duration::ZERO),
        RemoteCall::Read(_) if bad.load(Relaxed) => Fate::Failed(RemoteError::Unknown("500".to_owned())),
        _ => Fate::Answered(Duration::ZERO),
    }));
    let archive = pool.archive_with(&store, remote).await.expect("claimed");
    caught_up(&archive).await;
    let before = pool.remote.objects();
    is_bad.store(true, Relaxed);
    put(&store, "k1", &[1; 300_000]).await;
    let mut uploaded = Vec::new();
    while uploaded.is_empty() {
        env.sleep(Duration::from_millis(5)).await;
        uploaded = pool.remote.objects().into_keys().filter(|name| !before.contains_key(name)).collect();
    }
    pool.reader().take_over(pool.blank().kept, "new", TakeOver::Any).await.expect("taken");
    uploaded.iter().for_each(|name| pool.remote.force(name, None));
    is_bad.store(false, Relaxed);
    let ended = env.timeout(Duration::from_secs(20), archive.ended()).await.expect("it learns");
    assert!(matches!(&ended, ArchiveError::Superseded { machine, .. } if machine == "new"), "{ended}");
}

#[tokio::test]
async fn foreign_prefixes_are_refused() {
    let pool = Pool::new(1).await;
    let store = pool.open().await;
    create(&store).await;
    let archive = pool.archive(&store).await.expect("claimed");
    caught_up(&archive).await;
    let mut other = Pool::new(1).await;
    other.remote = pool.remote.clone();
    let theirs = other.open().await;
    let refused = other.archive(&theirs).await.expect_err("refused");
    assert!(matches!(&refused, ArchiveError::Foreign(why) if why.contains("another pool")), "{refused}");

    for (name, body) in [("archive", "my notes"), ("notes.txt", "some"), ("seg/1.1", "left")] {
        let other = Pool::new(1).await;
        other.remote.force(name, Some(body.into()));
        let theirs = other.open().await;
        let refused = other.archive(&theirs).await.expect_err("refused");
        assert!(matches!(&refused, ArchiveError::Foreign(why) if why.contains(name)), "{refused}");
        assert_eq!(other.remote.objects().len(), 1, "nothing was written");
    }
}

#[tokio::test]
async fn disks_that_are_older_than_the_archive_are_refused() {
    let pool = Pool::new(2).await;
    let store = pool.open().await;
    create(&store).await;
    let archive = pool.archive(&store).await.expect("claimed");
    let mut client = Client::new(1, 10);
    for _ in 0..20 {
        client.step(&store).await;
    }
    caught_up(&archive).await;
    let earlier = pool.copy();
    for _ in 0..20 {
        client.step(&store).await;
    }
    caught_up(&archive).await;
    archive.stop(Duration::from_secs(10)).await;
    store.close().await.expect("closed");
    let before = pool.remote.objects();
    let older = earlier.open().await;
    let refused = earlier.archive(&older).await.expect_err("refused");
    assert!(matches!(refused, ArchiveError::Older(_)), "{refused}");
    assert_eq!(pool.remote.objects(), before, "nothing was written");
    let store = pool.open().await;
    pool.archive(&store).await.expect("the disks that are as new as the archive");
}

#[tokio::test]
async fn a_start_needs_the_store_only_once() {
    let mut pool = Pool::new(1).await;
    pool.archive_options.claim_wait = Duration::from_millis(50);
    let store = pool.open().await;
    create(&store).await;
    let refused = pool.archive_with(&store, pool.remote.with_fates(away())).await.expect_err("refused");
    assert!(matches!(&refused, ArchiveError::Unreachable(why) if why.contains("never used")), "{refused}");
    let archive = pool.archive(&store).await.expect("claimed");
    archive.stop(Duration::from_secs(10)).await;
    store.close().await.expect("closed");

    let store = pool.open().await;
    let archive = pool.archive_with(&store, pool.remote.with_fates(away())).await.expect("it serves without the store");
    assert_eq!(archive.status().tenure, 0);
    archive.stop(Duration::from_secs(10)).await;
}
