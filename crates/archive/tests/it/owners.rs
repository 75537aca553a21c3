//! One pool at a time follows into an archive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use steadfast_archive::{ArchiveError, DiskId, TakeOver, note_other_owner};
use steadfast_flow::Env;
use steadfast_log::Log;
use steadfast_net::{Fate, RemoteCall, RemoteError};
use steadfast_store::Store;

use crate::common::{Client, Pool, away, caught_up, content, create, put, restore};

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

#[tokio::test]
async fn a_former_owner_learns_what_the_archive_had_when_it_was_taken() {
    let pool = Pool::new(2).await;
    let store = pool.open().await;
    create(&store).await;
    put(&store, "archived", &[1; 1000]).await;
    let archive = pool.archive(&store).await.expect("claimed");
    caught_up(&archive).await;
    let not_aside = |found: Result<_, ArchiveError>| match found {
        Err(ArchiveError::NotAside(why)) => why,
        found => panic!("{found:?}"),
    };
    assert!(not_aside(pool.reader().aside(pool.kept.clone()).await).contains("this pool owns it"));
    assert!(not_aside(pool.reader().aside(pool.blank().kept).await).contains("not the archive of this pool"));
    archive.stop(Duration::from_secs(10)).await;
    let archived = last_lsns(&store);
    put(&store, "aside", &[2; 1000]).await;

    // Another machine takes it twice, as a restore does that is interrupted.
    let other = pool.blank();
    for _ in 0..2 {
        let taken = pool.reader().take_over(other.kept.clone(), "new", TakeOver::Any).await.expect("taken");
        restore(&taken, &other.mem).await.expect("restored");
        assert!(not_aside(pool.reader().aside(pool.kept.clone()).await).contains("not started yet"));
    }
    let theirs = other.open_restored().await;
    let newer = other.archive(&theirs).await.expect("claimed");
    put(&theirs, "theirs", &[3; 1000]).await;
    caught_up(&newer).await;
    for is_known in [false, true] {
        let found = pool.reader().aside(pool.kept.clone()).await.expect("known");
        assert_eq!((found.tenure, &*found.machine), (1, "test"), "{is_known}");
        assert_eq!(archived.iter().map(|(disk, _)| (*disk, found.last_lsn(*disk))).collect::<Vec<_>>(), archived);
        assert_ne!(last_lsns(&store), archived, "it has more");
        // The same when it has learned of the new owner.
        if !is_known {
            let refused = pool.archive(&store).await.expect_err("refused");
            assert!(matches!(refused, ArchiveError::Superseded { .. }), "{refused}");
        }
    }
}

/// The last LSN of each disk.
fn last_lsns(store: &Store) -> Vec<(DiskId, u64)> {
    let logs = store.logs();
    let of_log = |log: &Log| (DiskId(log.superblock().pool), log.status().durable_lsn);
    logs.iter().filter_map(|(_, _, log)| log.as_ref().map(of_log)).collect()
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
    // Not claimed yet: it is the tenure of the last start.
    assert_eq!((archive.status().version, archive.tenure().1), (0, 1));
    archive.stop(Duration::from_secs(10)).await;
    store.close().await.expect("closed");

    // Other processes say that the archive has another owner: so the next start asks it.
    note_other_owner(pool.kept.clone(), &pool.env).await.expect("kept");
    let store = pool.open().await;
    let refused = pool.archive_with(&store, pool.remote.with_fates(away())).await.expect_err("refused");
    assert!(matches!(&refused, ArchiveError::Unreachable(why) if why.contains("another owner")), "{refused}");
    let archive = pool.archive(&store).await.expect("the archive knows of none");
    assert_eq!(archive.tenure().1, 2);
    archive.stop(Duration::from_secs(10)).await;
}
