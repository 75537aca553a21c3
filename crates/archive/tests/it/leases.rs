//! Owners that answer under a lease, and standbys that take over when it has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use steadfast_archive::{Archive, ArchiveError, FollowEnd, RestoreError, TakeOver};
use steadfast_flow::Env;
use steadfast_net::{Fate, Fates, RemoteError};
use tokio::sync::watch;

use crate::common::{self, Pool, Random, away, caught_up, content};
use crate::standby::{Machine, archived_in};

const LOOK: Duration = Duration::from_millis(20);
const LEASE: Duration = Duration::from_secs(2);

/// A few requests are lost, late, doubled or refused.
fn bad(seed: u64) -> Fates {
    let (random, worse) = (Random::new(seed), common::bad(seed));
    Arc::new(move |call| match random.below(8) {
        0 => worse(call),
        _ => Fate::Answered(Duration::ZERO),
    })
}

/// A pool that answers under a lease.
async fn leased(seed: u64) -> Pool {
    let mut pool = Pool::new(1).await;
    (pool.archive_options.lease, pool.remote) = (Some(LEASE), pool.remote.with_fates(bad(seed)));
    pool
}

/// A machine whose standby takes over.
async fn machine(of: &Pool) -> Machine {
    let mut machine = Machine::new(of, true).await;
    machine.takes_over = true;
    machine
}

/// Waits until the lease holds: on a busy machine a heartbeat may be late.
async fn holds(pool: &Pool) {
    let env = Env::tokio();
    let renewed = async {
        while !pool.lease.holds() {
            env.sleep(LOOK).await;
        }
    };
    env.timeout(Duration::from_secs(20), renewed).await.expect("it is renewed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_takes_over_when_the_owner_has_ended() {
    let env = Env::tokio();
    let is_cut = Arc::new(AtomicBool::new(false));
    let (cut, fates) = (is_cut.clone(), bad(1));
    let mut pool = leased(1).await;
    pool.remote = pool.remote.with_fates(Arc::new(move |call| match cut.load(Relaxed) {
        true => Fate::Failed(RemoteError::Unknown("cut off".to_owned())),
        false => fates(call),
    }));
    let (pool, store, archive, mut client) = archived_in(pool, 1).await;
    holds(&pool).await;
    let machine = machine(&pool).await;
    let remote = pool.remote.with_fates(bad(2));
    let mut standby = machine.open(&remote).await;
    let (_stop, stopped) = watch::channel(false);
    // The owner renews it.
    assert!(env.timeout(2 * LEASE, standby.follow(LOOK, stopped.clone())).await.is_none());
    let left = standby.progress().status().take_over_seconds.expect("a lease is watched");
    assert!(left > 0.0 && left <= 2.2, "{left}");
    client.step(&store).await;
    caught_up(&archive).await;
    is_cut.store(true, Relaxed);
    assert_eq!(standby.follow(LOOK, stopped.clone()).await.expect("well"), FollowEnd::LeaseEnded);
    assert!(!pool.lease.holds(), "the owner answers no more");
    let promotion = standby.take_over(&pool.blank().reader_of(&remote), "standby").await.expect("taken");
    assert!(promotion.tenure() > Some(archive.status().tenure) && !promotion.is_complete());
    let promoted = machine.serve(&promotion).await;
    assert_eq!(client.find(&content(&promoted, client.keys).await), Some(client.states.len() - 1));
    // The former owner learns of it, and the new one has a lease of its own.
    is_cut.store(false, Relaxed);
    let ended = env.timeout(Duration::from_secs(20), archive.ended()).await.expect("it ends");
    assert!(matches!(&ended, ArchiveError::Superseded { .. }), "{ended}");
    let archive = machine.pool.archive(&promoted).await.expect("claimed");
    caught_up(&archive).await;
    holds(&machine.pool).await;
    assert!(archive.status().lease_seconds.is_some());
    // Another standby finds a heartbeat of the new owner, or a mark: it waits for longer.
    assert!(!pool.lease.holds(), "it is not renewed any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_takes_over_when_the_lease_has_ended_or_by_force() {
    let (pool, store, archive, client) = archived_in(leased(3).await, 3).await;
    let reader = pool.blank().reader_of(&pool.remote);
    let refused = reader.take_over(pool.blank().kept, "new", TakeOver::Idle).await.err().expect("its owner lives");
    assert!(matches!(&refused, ArchiveError::InUse { machine, .. } if machine == "test"), "{refused}");
    let standby = machine(&pool).await;
    let taken = reader.take_over(standby.pool.kept.clone(), "new", TakeOver::Any).await.expect("taken");
    let ended = Env::tokio().timeout(Duration::from_secs(20), archive.ended()).await.expect("it ends");
    assert!(matches!(&ended, ArchiveError::Superseded { machine, .. } if machine == "new"), "{ended}");
    assert!(!pool.lease.holds(), "it answers no more");
    drop((store, taken));
    // The new owner has not begun a lease: the mark is there, and its process is gone. The next one
    // gives it a long time.
    let mut next = machine(&pool).await;
    next.takes_over = true;
    let mut following = next.open(&pool.remote).await;
    let (_stop, stopped) = watch::channel(false);
    assert!(Env::tokio().timeout(2 * LEASE, following.follow(LOOK, stopped)).await.is_none());
    let left = following.progress().status().take_over_seconds.expect("a mark is watched");
    assert!(left > 10.0 && left < 20.0, "{left}");
    let _ = client;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_without_a_lease_ends_that_of_its_last_start() {
    let (mut pool, store, archive, _) = archived_in(leased(4).await, 4).await;
    archive.stop(Duration::from_secs(10)).await;
    store.close().await.expect("closed");
    let machine = machine(&pool).await;
    (pool.archive_options.lease, pool.archive_options.claim_wait) = (None, Duration::from_millis(100));
    let store = pool.open().await;
    let refused = pool.archive_with(&store, pool.remote.with_fates(away())).await.expect_err("a standby may serve");
    assert!(matches!(&refused, ArchiveError::Unreachable(why) if why.contains("another owner")), "{refused}");
    pool.archive_options.claim_wait = Duration::from_secs(20);
    pool.cut_off();
    let store = pool.open().await;
    let archive: Archive = pool.archive(&store).await.expect("claimed");
    caught_up(&archive).await;
    let mut standby = machine.open(&pool.remote).await;
    let (_stop, stopped) = watch::channel(false);
    assert!(Env::tokio().timeout(2 * LEASE, standby.follow(LOOK, stopped)).await.is_none(), "no lease ends");
    assert_eq!((standby.progress().status().take_over_seconds, archive.status().lease_seconds), (None, None));
    // It starts without the store again.
    drop(archive);
    pool.cut_off();
    pool.archive_options.claim_wait = Duration::from_millis(100);
    let store = pool.open().await;
    let archive = pool.archive_with(&store, pool.remote.with_fates(away())).await.expect("it serves");
    assert!(pool.lease.holds() && archive.status().version == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_lease_is_not_taken() {
    let (pool, _store, _archive, _) = archived_in(leased(5).await, 5).await;
    let machine = machine(&pool).await;
    let mut standby = machine.open(&pool.remote).await;
    let (_stop, stopped) = watch::channel(false);
    assert!(Env::tokio().timeout(LEASE, standby.follow(LOOK, stopped)).await.is_none());
    // As a standby that was paused, and has seen no renewal meanwhile.
    Env::tokio().sleep(LEASE).await;
    let reader = pool.blank().reader_of(&pool.remote);
    let refused = standby.take_over(&reader, "standby").await.err().expect("it was renewed");
    assert!(matches!(&refused, RestoreError::Archive(ArchiveError::InUse { .. })), "{refused}");
    holds(&pool).await;
}
