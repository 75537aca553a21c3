//! Random damage to pool and index, checked against a ledger of acknowledged changes. A read
//! returns the right bytes or an error, never "no such key" or other bytes, and the verification
//! sees every loss.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::common::{BUCKET, bytes_of, get, put};
use steadfast_disk::{BLOCK, Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_log::{FormatOptions, Log, verify_named};
use steadfast_store::{
    BucketSettings, Condition, IndexKind, ListQuery, OpenReport, Store, StoreError, StoreOptions, named_chunks,
};

const MIB: u64 = 1 << 20;
/// Not in the ledger.
const LAST: &str = "last";
const CAPACITY: u64 = 64 * MIB;

/// Acknowledged changes: bodies or deletes, by key.
pub type Ledger = BTreeMap<String, Option<Vec<u8>>>;

/// A pool with its index and its expected content.
struct Whole {
    disk: MemDisk,
    index: tempfile::TempDir,
    ledger: Ledger,
}

fn options() -> StoreOptions {
    StoreOptions { inline_max_bytes: 20_000, chunk_bytes: 60_000, ..crate::common::options() }
}

async fn open(disk: &MemDisk, index: &Path) -> Result<(Store, OpenReport), StoreError> {
    Store::open(Arc::new(disk.clone()), IndexKind::Lsm(index.join("index")), Env::tokio(), options()).await
}

/// Puts or deletes one of the keys, and records it in the ledger.
pub async fn change(store: &Store, ledger: &mut Ledger, op: u64) {
    let key = format!("k{:03}", op.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57);
    if op % 6 == 5 {
        store.at(BUCKET, &key).delete(Condition::None, None).await.expect("deleted");
        ledger.insert(key, None);
    } else {
        let data = bytes_of(op, [300, 9_000, 15_000, 90_000][op as usize % 4]);
        put(store, &key, &data).await;
        ledger.insert(key, Some(data));
    }
}

/// A pool with writes, overwrites, deletes and compaction; closed, or as a crash leaves it.
async fn whole(crashed: bool) -> Whole {
    let disk = MemDisk::growable(CAPACITY);
    let any: Arc<dyn Disk> = Arc::new(disk.clone());
    let format = FormatOptions { extent_bytes: Some(MIB), ..FormatOptions::default() };
    Log::format(&any, &Env::tokio(), &format).await.expect("formats");
    let live = tempfile::tempdir().expect("a directory");
    let (store, _) = open(&disk, live.path()).await.expect("opens");
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("made");
    let mut ledger = Ledger::new();
    for op in 0..500u64 {
        change(&store, &mut ledger, op).await;
        if op == 300 {
            // Later changes are replayed.
            store.close().await.expect("closes");
            drop(store);
            return after(disk, live, ledger, crashed).await;
        }
    }
    unreachable!("it ends in the middle")
}

/// The second life of the pool.
async fn after(disk: MemDisk, live: tempfile::TempDir, mut ledger: Ledger, crashed: bool) -> Whole {
    let (store, _) = open(&disk, live.path()).await.expect("opens");
    for op in 301..600u64 {
        change(&store, &mut ledger, op).await;
    }
    // No later frame vouches for the very last frame before a crash: when damaged, it looks like an
    // unfinished write.
    put(&store, LAST, b"x").await;
    if !crashed {
        store.close().await.expect("closes");
    }
    let index = tempfile::tempdir().expect("a directory");
    copy_dir(&live.path().join("index"), &index.path().join("index"));
    Whole { disk: disk.image(), index, ledger }
}

pub fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("readable") {
        let entry = entry.expect("readable");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("known").is_dir() {
            copy_dir(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).expect("copied");
        }
    }
}

/// Random numbers from a seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

async fn damaged(whole: &Whole, dice: &mut Dice) -> (MemDisk, String) {
    let disk = whole.disk.image();
    let len = disk.len();
    match dice.below(3) {
        0 => {
            let count = 1 + dice.below(3);
            let first = 1 + dice.below(len / MIB - 1);
            for extent in first..(first + count).min(len / MIB) {
                disk.write(extent * MIB, vec![0; MIB as usize].into()).await.expect("writes");
            }
            (disk, format!("{count} extents from {first} MiB are zeros"))
        }
        1 => {
            let keep = (MIB + dice.below(len - MIB)) / BLOCK as u64 * BLOCK as u64;
            let short = MemDisk::growable(CAPACITY);
            short.reserve(keep).await.expect("room");
            let mut at = 0;
            while at < keep {
                let step = (keep - at).min(MIB) as usize;
                let bytes = disk.read(at, step).await.expect("reads");
                if bytes.iter().any(|b| *b != 0) {
                    short.write(at, bytes::Bytes::copy_from_slice(&bytes)).await.expect("writes");
                }
                at += step as u64;
            }
            (short, format!("cut off at {keep} of {len}"))
        }
        _ => {
            let at = (MIB + dice.below(len - MIB)) / BLOCK as u64 * BLOCK as u64;
            disk.write(at, bytes_of(dice.below(1 << 30), BLOCK).into()).await.expect("writes");
            (disk, format!("noise at {at}"))
        }
    }
}

/// Keeps, removes or damages the index.
fn harm_index(dir: &Path, dice: &mut Dice) -> (&'static str, bool) {
    match dice.below(4) {
        0 | 1 => ("index kept", true),
        2 => {
            std::fs::remove_dir_all(dir.join("index")).expect("removed");
            ("index removed", true)
        }
        _ => {
            let mut files = Vec::new();
            let mut dirs = vec![dir.join("index")];
            while let Some(dir) = dirs.pop() {
                for entry in std::fs::read_dir(dir).expect("readable") {
                    let path = entry.expect("readable").path();
                    if path.is_dir() { dirs.push(path) } else { files.push(path) }
                }
            }
            files.sort();
            let file = &files[dice.below(files.len() as u64) as usize];
            let mut bytes = std::fs::read(file).expect("readable");
            if !bytes.is_empty() {
                let at = dice.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << dice.below(8);
                std::fs::write(file, bytes).expect("written");
            }
            ("index with a flipped bit", false)
        }
    }
}

async fn trial(whole: &Whole, seed: u64) {
    let mut dice = Dice(seed);
    let (disk, what) = damaged(whole, &mut dice).await;
    let index = tempfile::tempdir().expect("a directory");
    copy_dir(&whole.index.path().join("index"), &index.path().join("index"));
    let (index_fate, index_good) = harm_index(index.path(), &mut dice);
    let what = format!("seed {seed}: {what}, {index_fate}");
    let any: Arc<dyn Disk> = Arc::new(disk.clone());
    let verified = verify_named(&any, named_chunks, |_, _| {}).await;
    let clean = verified.as_ref().is_ok_and(steadfast_log::VerifyReport::is_clean);
    for life in 0..2 {
        let (store, report) = match open(&disk, index.path()).await {
            Ok(opened) => opened,
            // At least the loss is reported.
            Err(e) => {
                assert!(!clean || !index_good, "{what}: a whole pool does not open: {e}");
                return;
            }
        };
        let mut errors = Vec::new();
        for (key, expected) in &whole.ledger {
            match (get(&store, key).await, expected) {
                (Ok(found), Some(data)) => assert!(found == *data, "{what}, life {life}: {key} has other bytes"),
                (Ok(_), None) => panic!("{what}, life {life}: {key} was deleted and is back; {:?}", report.recovery),
                (Err(StoreError::NoSuchKey), None) => {}
                (Err(e @ (StoreError::NoSuchKey | StoreError::NoSuchBucket)), Some(_)) => {
                    panic!("{what}, life {life}: {key}: {e}; {:?}", report.recovery)
                }
                (Err(e), _) => errors.push(e),
            }
        }
        if let Ok(page) = store.contents(BUCKET).objects(&ListQuery { limit: 10_000, ..ListQuery::default() }) {
            let listed = page.objects.iter().map(|object| object.key.as_str()).filter(|key| *key != LAST);
            let listed: Vec<&str> = listed.collect();
            let there = whole.ledger.iter().filter(|(_, data)| data.is_some());
            assert_eq!(listed, there.map(|(key, _)| key.as_str()).collect::<Vec<_>>(), "{what}, life {life}");
        }
        assert!(errors.is_empty() || !clean || !index_good, "{what}: verify finds nothing; {:?}", errors.first());
        let lost = store.status().log.extents.lost;
        assert_eq!(lost > 0, !report.recovery.lost.is_empty(), "{what}");
        assert!(lost == 0 || !clean, "{what}: {:?}", report.recovery.lost);
        // A read-only pool reports it.
        let _ = store.close().await;
    }
}

async fn trials(seeds: std::ops::Range<u64>) {
    let wholes = [whole(false).await, whole(true).await];
    for seed in seeds {
        trial(&wholes[(seed % 2) as usize], seed).await;
    }
}

#[tokio::test]
async fn what_was_acknowledged_is_right_or_an_error() {
    trials(0..24).await;
}

/// `./test --long` runs it.
#[tokio::test]
#[ignore = "takes minutes"]
async fn five_hundred_damages() {
    trials(1000..1500).await;
}
