//! Random damage to either leg of a super-disk, checked against a ledger of acknowledged changes.
//!
//! After a clean stop both legs hold everything. So reads return the right bytes for any loss of
//! one leg, and the loss is healed, on a running store and on a stopped one. After a crash a read
//! returns the right bytes or an error.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{BUCKET, bytes_of, get};
use crate::damages::{Dice, Ledger, change, copy_dir};
use steadfast_disk::{BLOCK, Disk, FastState, MemDisk, Superdisk, SuperdiskOptions};
use steadfast_flow::Env;
use steadfast_log::{FormatOptions, Log, ScrubOptions, ScrubRequest, verify_named};
use steadfast_store::{BucketSettings, IndexKind, Store, StoreError, StoreOptions, named_chunks};

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 48 * MIB;

/// Both legs at one moment.
struct Legs([MemDisk; 2]);

impl Legs {
    fn image(&self) -> Self {
        Self(self.0.each_ref().map(MemDisk::image))
    }

    async fn superdisk(&self) -> Arc<Superdisk> {
        let [durable, fast] = self.0.each_ref().map(|leg| Arc::new(leg.clone()) as Arc<dyn Disk>);
        let options = SuperdiskOptions {
            region_bytes: 64 << 10,
            rebuild_settle: Duration::from_millis(1),
            rebuild_bytes_s: 0,
            ..SuperdiskOptions::default()
        };
        Superdisk::open(durable, Some(fast), Env::tokio(), options).await.expect("the legs are a pair")
    }
}

/// A pair with its index, its state in the middle, and its expected content.
struct Whole {
    legs: Legs,
    older: Legs,
    index: tempfile::TempDir,
    ledger: Ledger,
}

fn options() -> StoreOptions {
    let mut options =
        StoreOptions { inline_max_bytes: 20_000, chunk_bytes: 60_000, cache_bytes: 0, ..crate::common::options() };
    options.log.scrub = ScrubOptions { enabled: false, bytes_s: 0, ..ScrubOptions::default() };
    options
}

async fn open(disk: Arc<dyn Disk>, index: &Path) -> Store {
    let opened = Store::open(disk, IndexKind::Lsm(index.join("index")), Env::tokio(), options()).await;
    opened.expect("the pool opens").0
}

async fn until(what: &str, reached: impl Fn() -> bool) {
    for _ in 0..3000 {
        if reached() {
            return;
        }
        Env::tokio().sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 30 s: {what}");
}

async fn fast_leg_is_clean(pair: &Superdisk) {
    until("the fast leg holds everything", || pair.status().fast == FastState::Clean).await;
}

/// A pair with writes, overwrites and deletes; closed, or as a crash leaves it.
async fn whole(crashed: bool) -> Whole {
    let legs = Legs([MemDisk::growable(CAPACITY), MemDisk::fixed(CAPACITY + 8 * MIB)]);
    let pair = legs.superdisk().await;
    let disk: Arc<dyn Disk> = pair.clone();
    let format = FormatOptions { extent_bytes: Some(MIB), ..FormatOptions::default() };
    Log::format(&disk, &Env::tokio(), &format).await.expect("formats");
    let index = tempfile::tempdir().expect("a directory");
    let store = open(disk, index.path()).await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("made");
    let mut ledger = Ledger::new();
    let mut older = legs.image();
    for op in 0..500u64 {
        change(&store, &mut ledger, op).await;
        if op == 300 {
            fast_leg_is_clean(&pair).await;
            older = legs.image();
        }
    }
    fast_leg_is_clean(&pair).await;
    if crashed {
        let index = copied(index.path());
        return Whole { legs: legs.image(), older, index, ledger };
    }
    store.close().await.expect("closes");
    pair.close().await;
    Whole { legs: legs.image(), older, index: copied(index.path()), ledger }
}

fn copied(index: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().expect("a directory");
    copy_dir(&index.join("index"), &to.path().join("index"));
    to
}

/// Damages one leg within one extent. Returns a description.
async fn damage(legs: &Legs, older: &Legs, dice: &mut Dice) -> String {
    let leg = dice.below(2) as usize;
    let used = legs.0[0].len() / MIB;
    let extent = 1 + dice.below(used - 1);
    let (at, len) = match dice.below(2) {
        0 => (extent * MIB, MIB),
        _ => {
            let first = dice.below(MIB / BLOCK as u64);
            let count = 1 + dice.below(MIB / BLOCK as u64 - first);
            (extent * MIB + first * BLOCK as u64, count * BLOCK as u64)
        }
    };
    let (what, bytes) = match dice.below(3) {
        0 => ("zeros", vec![0; len as usize]),
        1 => ("noise", bytes_of(dice.below(1 << 30), len as usize)),
        _ if older.0[leg].len() >= at + len => {
            ("older bytes", older.0[leg].read(at, len as usize).await.expect("reads").to_vec())
        }
        _ => ("zeros", vec![0; len as usize]),
    };
    legs.0[leg].write(at, bytes.into()).await.expect("writes");
    format!("{what} on leg {leg} at {at}, {len} bytes")
}

/// Reads the whole ledger. Returns the number of keys that answered with an error.
async fn check(store: &Store, ledger: &Ledger, what: &str) -> usize {
    let mut errors = 0;
    for (key, expected) in ledger {
        match (get(store, key).await, expected) {
            (Ok(found), Some(data)) => assert!(found == *data, "{what}: {key} has other bytes"),
            (Err(StoreError::NoSuchKey), None) => {}
            (Ok(_), None) => panic!("{what}: {key} was deleted and is back"),
            (Err(e @ (StoreError::NoSuchKey | StoreError::NoSuchBucket)), Some(_)) => panic!("{what}: {key}: {e}"),
            (Err(_), _) => errors += 1,
        }
    }
    errors
}

async fn scrubbed(store: &Store, what: &str) -> u64 {
    let passes = || store.scrubs()[0].1.passes;
    let before = passes();
    store.scrub(ScrubRequest::Start).expect("open");
    until(&format!("{what}: a pass of the scrub"), || passes() > before).await;
    store.scrubs()[0].1.damaged
}

async fn trial(whole: &Whole, crashed: bool, seed: u64) {
    let mut dice = Dice(seed);
    let (legs, index) = (whole.legs.image(), copied(whole.index.path()));
    let running = !crashed && dice.below(2) == 0;
    if dice.below(3) == 0 {
        std::fs::remove_dir_all(index.path().join("index")).expect("removed");
    }
    let mut what = format!("seed {seed}, crashed {crashed}, running {running}");
    if !running {
        what = format!("{what}: {}", damage(&legs, &whole.older, &mut dice).await);
    }
    let pair = legs.superdisk().await;
    let store = open(pair.clone(), index.path()).await;
    if running {
        what = format!("{what}: {}", damage(&legs, &whole.older, &mut dice).await);
    }
    let errors = check(&store, &whole.ledger, &what).await;
    let damaged = scrubbed(&store, &what).await;
    let again = check(&store, &whole.ledger, &what).await;
    let _ = store.close().await;
    pair.close().await;
    if crashed {
        assert!(again <= errors, "{what}: {errors} errors, then {again}");
        return;
    }
    assert_eq!((errors, damaged, again), (0, 0, 0), "{what}");
    // The durable leg alone has everything again.
    let durable: Arc<dyn Disk> = Arc::new(legs.0[0].clone());
    let verified = verify_named(&durable, named_chunks, |_, _| {}).await.expect("a pool");
    assert!(verified.is_clean(), "{what}: {:?}", verified.damage);
    let blank = tempfile::tempdir().expect("a directory");
    let store = open(durable, blank.path()).await;
    assert_eq!(check(&store, &whole.ledger, &what).await, 0, "{what}: the durable leg alone");
    let _ = store.close().await;
}

async fn trials(seeds: std::ops::Range<u64>) {
    let wholes = [whole(false).await, whole(true).await];
    for seed in seeds {
        // One in five after a crash.
        let crashed = seed % 5 == 4;
        trial(&wholes[usize::from(crashed)], crashed, seed).await;
    }
}

#[tokio::test]
async fn what_one_leg_loses_is_served_right_and_healed() {
    trials(0..50).await;
}

#[tokio::test]
#[ignore = "takes minutes"]
async fn five_hundred_damages_of_a_leg() {
    trials(1000..1500).await;
}
