//! Standbys, which follow an archive onto disks of their own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use steadfast_archive::{
    Archive, ArchiveError, ArchiveReader, ArchiveSabotage, ArchivedPool, DiskId, FollowEnd, RestoreError, RestorePlace,
    Standby, StandbyDisk, StandbyParts, TakeOver,
};
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_net::{Fate, MemoryStore, RemoteCall, RemoteError};
use steadfast_store::Store;
use tokio::sync::watch;

use crate::common::{Client, DISK_BYTES, Kept, Pool, away, bad, caught_up, content, create};

const LOOK: Duration = Duration::from_millis(3);
const ID: [u8; 16] = [9; 16];

/// A machine with a standby.
pub struct Machine {
    pub pool: Pool,
    held: Arc<Kept>,
    blank: bool,
    ids: Vec<DiskId>,
    pub takes_over: bool,
}

impl Machine {
    /// One with blank disks, or with those that the pool has now.
    pub async fn new(of: &Pool, blank: bool) -> Self {
        let disks = of.reader().newest().await.expect("a copy").disks();
        let ids = (0..disks.len()).map(|i| disks.iter().find(|of| of.name == format!("d{i}")).expect("a disk").id);
        let mut pool = of.blank();
        if !blank {
            pool.mem = of.copy().mem;
        }
        Self { pool, held: Arc::default(), blank, ids: ids.collect(), takes_over: false }
    }

    async fn try_open(&self, remote: &MemoryStore) -> Result<Standby, RestoreError> {
        let disk = |(id, disk): (&DiskId, &Arc<MemDisk>)| {
            (*id, StandbyDisk { disk: disk.clone() as Arc<dyn Disk>, blank: self.blank })
        };
        let parts = StandbyParts {
            store: Arc::new(remote.clone()),
            owner: self.pool.kept.clone(),
            held: self.held.clone(),
            id: ID,
            disks: self.ids.iter().zip(&self.pool.mem).map(disk).collect::<BTreeMap<_, _>>(),
            takes_over: self.takes_over,
            sabotage: ArchiveSabotage::default(),
        };
        Standby::open(parts, &Env::tokio()).await
    }

    pub async fn open(&self, remote: &MemoryStore) -> Standby {
        self.try_open(remote).await.expect("it opens")
    }

    /// Follows for a while, and is cut off then.
    async fn follow_for(&mut self, remote: &MemoryStore, time: Duration) {
        let env = Env::tokio();
        let following = async {
            let mut standby = self.open(remote).await;
            standby.follow(LOOK, watch::channel(false).1).await
        };
        if let Some(ended) = env.timeout(time, following).await {
            panic!("it ended: {ended:?}");
        }
        self.pool.cut_off();
    }

    /// Follows until the disks have all that the archive has.
    async fn catch_up(&self, standby: &mut Standby) {
        let env = Env::tokio();
        let (stop, stopped) = watch::channel(false);
        let progress = standby.progress();
        let begun = env.now();
        let caught_up = async {
            while progress.status().copied_ms.is_none()
                || progress.status().lag_seconds >= (env.now() - begun).as_secs_f64()
            {
                env.sleep(LOOK).await;
            }
            stop.send_replace(true);
        };
        let (ended, ()) = tokio::join!(standby.follow(LOOK, stopped), caught_up);
        assert_eq!(ended.expect("well"), FollowEnd::Stopped);
    }

    /// Makes the disks those of the pool.
    async fn finish(&self, promotion: &ArchivedPool) {
        for (id, disk) in self.ids.iter().zip(&self.pool.mem) {
            let any: Arc<dyn Disk> = disk.clone();
            promotion.finish(*id, &RestorePlace::new(&any)).await.expect("finished");
        }
    }

    /// The same, and opens it.
    pub async fn serve(&self, promotion: &ArchivedPool) -> Store {
        self.finish(promotion).await;
        self.pool.open_restored().await
    }
}

/// A pool whose archive has some states, with short times between segments and bases.
async fn archived(disks: usize, seed: u64) -> (Pool, Store, Archive, Client) {
    archived_in(Pool::new(disks).await, seed).await
}

/// The same in a pool with options of its own.
pub async fn archived_in(mut pool: Pool, seed: u64) -> (Pool, Store, Archive, Client) {
    (pool.archive_options.segments_max, pool.archive_options.inline_bytes_max) = (5, 8 << 10);
    let store = pool.open().await;
    create(&store).await;
    let archive = pool.archive(&store).await.expect("claimed");
    let mut client = Client::new(seed, 25);
    for _ in 0..20 {
        client.step(&store).await;
    }
    caught_up(&archive).await;
    (pool, store, archive, client)
}

/// What a standby promotes is the newest state of the archive, whatever has interrupted it.
async fn promotes(disks: usize, blank: bool, seed: u64) {
    let (pool, store, archive, mut client) = archived(disks, seed).await;
    let remote = pool.remote.with_fates(bad(seed));
    let mut machine = Machine::new(&pool, blank).await;
    for life in 0..6 {
        let writes = async {
            for n in 0..60 {
                client.step(&store).await;
                if n % 6 == 0 {
                    Env::tokio().sleep(Duration::from_millis(4)).await;
                }
            }
        };
        let time = Duration::from_millis(40 + 37 * life);
        tokio::join!(writes, machine.follow_for(&remote, time));
        if life == 3 {
            // As if it had expired, or the file were lost.
            *machine.held.0.lock() = None;
        }
        if life == 4 && disks > 1 {
            machine.pool.mem[1] = Arc::new(MemDisk::growable(DISK_BYTES));
        }
    }
    let mut standby = machine.open(&remote).await;
    machine.catch_up(&mut standby).await;
    for _ in 0..20 {
        client.step(&store).await;
    }
    caught_up(&archive).await;
    let known = client.states.len() - 1;
    let reader = ArchiveReader::new(Arc::new(pool.remote.clone()), None, &Env::tokio());
    let promotion = standby.promote(&reader, "standby", TakeOver::Any).await.expect("promoted");
    assert!(!promotion.is_complete(), "the owner may have answered more");
    assert_eq!(promotion.tenure(), Some(2));
    let promoted = machine.serve(&promotion).await;
    assert_eq!(client.find(&content(&promoted, client.keys).await), Some(known));
    let newer = machine.pool.archive(&promoted).await.expect("it continues the archive");
    let mut client = Client::at(client.states[known].clone(), seed, client.keys);
    for _ in 0..30 {
        client.step(&promoted).await;
    }
    caught_up(&newer).await;
    let restored = pool.restored().await.expect("restored");
    assert_eq!(client.find(&content(&restored, client.keys).await), Some(client.states.len() - 1));
    store.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_standby_has_the_newest_state_on_blank_disks() {
    promotes(1, true, 1).await;
    promotes(2, true, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_standby_has_the_newest_state_on_used_disks() {
    promotes(1, false, 3).await;
    promotes(2, false, 4).await;
}

/// A restart copies nothing again.
#[tokio::test]
async fn a_standby_that_starts_again_knows_what_it_has() {
    let (pool, _store, _archive, _) = archived(2, 5).await;
    let machine = Machine::new(&pool, true).await;
    let mut standby = machine.open(&pool.remote).await;
    machine.catch_up(&mut standby).await;
    assert!(standby.progress().status().copied_bytes > 0);
    // Without the bytes of pieces, which it must not need.
    let no_pieces = pool.remote.with_fates(Arc::new(|call| match call {
        RemoteCall::Read(name) if name.starts_with("p/") => Fate::Failed(RemoteError::Missing),
        _ => Fate::Answered(Duration::ZERO),
    }));
    for is_known in [true, false] {
        if !is_known {
            *machine.held.0.lock() = None;
        }
        let mut standby = machine.open(&no_pieces).await;
        machine.catch_up(&mut standby).await;
        let status = standby.progress().status();
        assert_eq!((status.error, status.copied_bytes == 0), (None, is_known));
    }
}

/// The owner writes between the last copy and the claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_opened_is_the_state_in_the_head_of_the_claim() {
    let (pool, store, archive, mut client) = archived(1, 9).await;
    let machine = Machine::new(&pool, true).await;
    let mut standby = machine.open(&pool.remote).await;
    machine.catch_up(&mut standby).await;
    let copied = client.states.len() - 1;
    let slow = pool.remote.with_fates(Arc::new(|call| match call {
        RemoteCall::Read("head") => Fate::Answered(Duration::from_millis(300)),
        _ => Fate::Answered(Duration::ZERO),
    }));
    let reader = ArchiveReader::new(Arc::new(slow), None, &Env::tokio());
    let writes = async {
        // Until it learns that it is superseded.
        while archive.status().error.is_none() {
            client.step(&store).await;
        }
    };
    let (promotion, ()) = tokio::join!(standby.promote(&reader, "standby", TakeOver::Any), writes);
    let restored = content(&pool.restored().await.expect("restored"), client.keys).await;
    let promoted = machine.serve(&promotion.expect("promoted")).await;
    assert_eq!(content(&promoted, client.keys).await, restored);
    assert!(client.find(&restored).expect("a state") > copied, "the owner wrote meanwhile");
}

/// A disk that was marked and not yet copied does not hold what its predecessor held.
#[tokio::test]
async fn a_replaced_disk_is_copied_though_a_start_was_cut_off() {
    let (pool, _store, _archive, client) = archived(2, 8).await;
    let mut machine = Machine::new(&pool, true).await;
    let mut standby = machine.open(&pool.remote).await;
    machine.catch_up(&mut standby).await;
    drop(standby);
    machine.pool.mem[1] = Arc::new(MemDisk::growable(DISK_BYTES));
    drop(machine.open(&pool.remote).await);
    machine.pool.cut_off();
    let mut standby = machine.open(&pool.remote).await;
    let promotion = standby.promote(&pool.reader(), "standby", TakeOver::Any).await.expect("promoted");
    let promoted = machine.serve(&promotion).await;
    assert_eq!(client.find(&content(&promoted, client.keys).await), Some(client.states.len() - 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_spares_an_owner_that_lives_and_continues_when_it_was_interrupted() {
    let (pool, store, archive, mut client) = archived(1, 6).await;
    let mut machine = Machine::new(&pool, true).await;
    let reader = pool.reader();
    let mut standby = machine.open(&pool.remote).await;
    let refused = standby.promote(&reader, "standby", TakeOver::Idle).await.err().expect("its owner lives");
    assert!(matches!(&refused, RestoreError::Archive(ArchiveError::InUse { machine, .. }) if machine == "test"));
    machine.catch_up(&mut standby).await;
    client.step(&store).await;
    caught_up(&archive).await;
    // The claim happens, no answer comes, and the store is away. This process ends then.
    let is_sent = AtomicBool::new(false);
    let lossy = pool.remote.with_fates(Arc::new(move |call| match call {
        RemoteCall::Replace(_) if !is_sent.swap(true, Relaxed) => Fate::Lost(Duration::ZERO),
        _ if is_sent.load(Relaxed) => Fate::Failed(RemoteError::Unknown("away".to_owned())),
        _ => Fate::Answered(Duration::ZERO),
    }));
    let claiming = ArchiveReader::new(Arc::new(lossy), Some(Duration::from_millis(50)), &Env::tokio());
    let failed = standby.promote(&claiming, "standby", TakeOver::Any).await.err().expect("no answer came");
    assert!(matches!(failed, RestoreError::Archive(ArchiveError::Unreachable(_))), "{failed}");
    drop(standby);
    machine.pool.cut_off();
    let mut standby = machine.open(&pool.remote).await;
    let (_stop, stopped) = watch::channel(false);
    assert_eq!(standby.follow(LOOK, stopped).await.expect("well"), FollowEnd::Owned);
    let promotion = standby.promote_owned(&reader).await.expect("it continues");
    assert_eq!((promotion.tenure(), promotion.is_complete()), (Some(2), false));
    let promoted = machine.serve(&promotion).await;
    assert_eq!(client.find(&content(&promoted, client.keys).await), Some(client.states.len() - 1));
    let again = Machine::new(&pool, true).await;
    let foreign = again.open(&pool.remote).await.promote_owned(&reader).await.err().expect("not its own");
    assert!(matches!(foreign, RestoreError::Archive(ArchiveError::Superseded { .. })), "{foreign}");
}

#[tokio::test]
async fn a_standby_needs_a_place_for_each_disk() {
    let (pool, _store, _archive, _) = archived(2, 7).await;
    let mut machine = Machine::new(&pool, true).await;
    machine.ids.truncate(1);
    let mut standby = machine.open(&pool.remote).await;
    let refused = standby.follow(LOOK, watch::channel(false).1).await.expect_err("no place");
    assert!(matches!(&refused, RestoreError::NoPlace(name) if name == "d1"), "{refused}");
}

#[tokio::test]
async fn an_archive_is_handed_over_only_when_it_has_everything() {
    let wait = Duration::from_secs(10);
    let (pool, store, archive, client) = archived(1, 10).await;
    let machine = Machine::new(&pool, true).await;
    let mut standby = machine.open(&pool.remote).await;
    store.flush().await.expect("flushed");
    archive.hand_over(wait).await;
    let epoch = store.channel("news").and_then(|channel| channel.position()).expect("there").epoch;
    // The owner wrote a moment ago, and has ended.
    let state = standby.promote(&pool.reader(), "standby", TakeOver::Idle).await.expect("promoted");
    assert!(state.is_complete());
    machine.finish(&state).await;
    let promoted = machine.pool.open().await;
    assert_eq!(client.find(&content(&promoted, client.keys).await), Some(client.states.len() - 1));
    assert_eq!(promoted.channel("news").and_then(|channel| channel.position()).expect("there").epoch, epoch);
    // The former one starts only when the store says whose the archive is.
    store.close().await.expect("closed");
    let mut former = pool.copy();
    former.archive_options.claim_wait = Duration::from_millis(50);
    let store = former.open().await;
    let refused = former.archive_with(&store, pool.remote.with_fates(away())).await.expect_err("it may have an owner");
    assert!(matches!(&refused, ArchiveError::Unreachable(why) if why.contains("another owner")), "{refused}");
    // The next owner does not hand it over.
    let archive = machine.pool.archive(&promoted).await.expect("claimed");
    caught_up(&archive).await;
    archive.stop(wait).await;
    let state = pool.reader().take_over(pool.blank().kept, "other", TakeOver::Any).await.expect("taken");
    assert!(!state.is_complete());
}

/// What a missing disk answered may be missing in the archive.
#[tokio::test]
async fn a_pool_that_lacks_a_disk_does_not_hand_its_archive_over() {
    let wait = Duration::from_secs(10);
    let (mut pool, store, archive, _) = archived(2, 11).await;
    archive.stop(wait).await;
    store.close().await.expect("closed");
    pool.mem.truncate(1);
    let store = pool.open_damaged().await;
    let archive = pool.archive(&store).await.expect("claimed");
    caught_up(&archive).await;
    archive.hand_over(wait).await;
    let state = pool.reader().take_over(pool.blank().kept, "other", TakeOver::Any).await.expect("taken");
    assert!(!state.is_complete());
}
