//! An unreadable index: only applied changes are answered, nothing is lost, and the index heals by
//! itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::common::{BUCKET, Pool, bytes_of, get, put};
use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{Effect, Fault, Faults, Faulty, OpKind};
use steadfast_flow::Env;
use steadfast_log::{Durability, Priority};
use steadfast_store::{
    BucketSettings, ChannelSink, Condition, HistoryQuery, IndexKind, ListQuery, MemCheckpoint, NewPublication,
    Publication, Store, StoreError,
};

fn checkpoint(pool: &Pool) -> &MemCheckpoint {
    match &pool.index {
        IndexKind::Memory(checkpoint) => checkpoint,
        IndexKind::Lsm(_) => panic!("not in memory"),
    }
}

fn new(i: u64) -> NewPublication {
    NewPublication {
        body: Bytes::copy_from_slice(&i.to_le_bytes()),
        history_size: 1000,
        history_ttl_ms: 3_600_000,
        durability: Durability::Sync,
        priority: Priority::Write,
        key: None,
    }
}

#[derive(Default)]
struct RecordingSink(Mutex<Vec<u64>>);

impl ChannelSink for RecordingSink {
    fn published(&self, _: &Arc<str>, _: u32, publication: &Arc<Publication>) {
        self.0.lock().push(publication.offset);
    }
}

async fn until(store: &Store, what: &str, holds: impl Fn(&Store) -> bool) {
    let env = Env::tokio();
    for _ in 0..3000 {
        if holds(store) {
            return;
        }
        env.sleep(Duration::from_millis(20)).await;
    }
    panic!("{what}: {:?}", store.status().index);
}

fn is_well(store: &Store) -> bool {
    store.status().index.rebuilding == 0
}

fn keys_of(store: &Store) -> Result<Vec<String>, StoreError> {
    let query = ListQuery { limit: 100_000, ..ListQuery::default() };
    Ok(store.contents(BUCKET).objects(&query)?.objects.into_iter().map(|entry| entry.key).collect())
}

#[tokio::test]
async fn what_was_answered_was_taken_in_although_reads_of_the_index_failed() {
    let (pool, store) = Pool::start(false).await;
    let sink_log = Arc::new(RecordingSink::default());
    let sink: Arc<dyn ChannelSink> = sink_log.clone();
    store.channels().set_sink(&sink);
    let channel = store.channel("c").expect("a channel");
    channel.publish(new(1)).await.expect("published");
    for (i, damaged) in [(1u64, false), (2, true), (3, false), (4, true)] {
        let fail_index = || if damaged { checkpoint(&pool).damage() } else { checkpoint(&pool).refuse_reads(1) };
        fail_index();
        put(&store, &format!("k{i}"), &bytes_of(i, 100)).await;
        assert_eq!(get(&store, &format!("k{i}")).await.expect("it was answered"), bytes_of(i, 100));
        until(&store, "well again", is_well).await;
        fail_index();
        let published = channel.publish(new(i)).await.expect("published").position.offset;
        assert_eq!(published, i + 1);
        until(&store, "well again", is_well).await;
        fail_index();
        store.at(BUCKET, &format!("k{}", i - 1)).delete(Condition::None, None).await.expect("deleted");
        until(&store, "well again", is_well).await;
        assert_eq!(keys_of(&store).expect("a listing"), [format!("k{i}")]);
    }
    assert_eq!(*sink_log.0.lock(), [1, 2, 3, 4, 5], "each once, in order");
    let all = HistoryQuery { since: None, limit: 100, reverse: false };
    assert_eq!(channel.history(all).await.expect("read").publications.len(), 5);
    let status = store.status();
    assert_eq!((status.objects, status.object_bytes), (1, 100));
    assert_eq!(status.index.rebuilt, 6, "those that were refused were read again");
    store.close().await.expect("close");
    drop(store);
    let (store, report) = pool.open_with_report().await;
    assert!(!report.index_rebuilt);
    assert_eq!(get(&store, "k4").await.expect("there"), bytes_of(4, 100));
}

#[tokio::test]
async fn an_index_is_not_replaced_by_one_of_a_log_that_cannot_be_read_whole() {
    let mut pool = Pool::new(false).await;
    let faults = Faults::new();
    pool.disks[0] = Arc::new(Faulty::new(pool.disks[0].clone(), faults.clone()));
    let store = pool.open().await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    let key = |i: u64| format!("k{i:04}");
    for i in 0..4000 {
        put(&store, &key(i), &bytes_of(i, 1900)).await;
    }
    // Frames and footer of a full extent.
    let unreadable = Fault::new(OpKind::Read, Effect::Error(5)).within((4 << 20) + 4096..8 << 20);
    let fault = faults.add(unreadable);
    checkpoint(&pool).damage();
    assert!(get(&store, &key(0)).await.is_err());
    until(&store, "the rebuild meets it", |_| faults.harmed(fault) > 1).await;
    for _ in 0..20 {
        for i in (0..4000).step_by(97) {
            match get(&store, &key(i)).await {
                Ok(data) => assert_eq!(data, bytes_of(i, 1900)),
                Err(StoreError::NoSuchKey) => panic!("{} was acknowledged", key(i)),
                Err(_) => {}
            }
        }
        Env::tokio().sleep(Duration::from_millis(50)).await;
    }
    assert_eq!((is_well(&store), store.status().index.rebuilt), (false, 0));
    faults.clear();
    until(&store, "rebuilt", |store| is_well(store) && store.status().index.rebuilt == 1).await;
    assert_eq!(keys_of(&store).expect("a listing").len(), 4000);
    for i in 0..4000 {
        assert_eq!(get(&store, &key(i)).await.expect("there"), bytes_of(i, 1900));
    }
}

#[tokio::test]
async fn live_bytes_are_the_same_after_a_rebuild_in_place() {
    let (pool, store) = Pool::start(false).await;
    for i in 0..200 {
        put(&store, &format!("k{:02}", i % 50), &bytes_of(i, if i % 3 == 0 { 30_000 } else { 300 })).await;
    }
    let used = |store: &Store| {
        let mut usage = store.status().log.usage;
        usage.retain(|extent| extent.live_bytes > 0);
        usage
    };
    let before = used(&store);
    checkpoint(&pool).damage();
    assert!(get(&store, "k00").await.is_err(), "what cannot be read is an error, and not absent");
    until(&store, "rebuilt", |store| is_well(store) && store.status().index.rebuilt == 1).await;
    assert_eq!(used(&store), before);
    for i in 150..200 {
        let len = if i % 3 == 0 { 30_000 } else { 300 };
        assert_eq!(get(&store, &format!("k{:02}", i % 50)).await.expect("there"), bytes_of(i, len));
    }
}

#[tokio::test]
async fn an_index_that_is_unreadable_at_the_start_is_rebuilt() {
    let (pool, store) = Pool::start(false).await;
    put(&store, "before", b"1").await;
    store.close().await.expect("close");
    drop(store);
    let store = pool.open().await;
    put(&store, "after", b"2").await;
    // Not closed: the next start replays.
    let pool = Pool { disks: pool.disks, index: pool.index, options: pool.options, dir: pool.dir, mem: pool.mem };
    drop(store);
    // Enough that a second fault strikes during the rebuild for the first.
    for refused in 1..6 {
        checkpoint(&pool).refuse_reads(refused);
        let (store, _) = pool.open_with_report().await;
        until(&store, "well", is_well).await;
        assert_eq!(keys_of(&store).expect("a listing"), ["after", "before"]);
        store.close().await.expect("close");
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("readable") {
        let entry = entry.expect("readable");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("known").is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("copied");
        }
    }
}

/// All files of an index, by relative path.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        fs::read_dir(dir.join("tables")).expect("tables").map(|e| e.expect("one").path()).collect();
    let top = fs::read_dir(dir).expect("files").map(|e| e.expect("one").path());
    all.extend(top.filter(|path| path.is_file()));
    all.iter().map(|path| path.strip_prefix(dir).expect("within").to_owned()).collect()
}

#[tokio::test]
async fn noise_anywhere_in_the_index_is_found_and_healed() {
    let (mut pool, store) = Pool::start(true).await;
    for i in 0..700 {
        put(&store, &format!("k{i:03}"), &bytes_of(i, 60)).await;
    }
    until(&store, "verified", |store| store.status().index.damaged == 0).await;
    store.close().await.expect("close");
    drop(store);
    let IndexKind::Lsm(index) = pool.index.clone() else { panic!("in files") };
    // An undamaged index is not taken for damaged.
    let store = pool.open().await;
    until(&store, "verified", |store| store.status().index.verified_bytes > 0).await;
    assert_eq!(store.status().index.damaged, 0);
    store.close().await.expect("close");
    drop(store);
    let mut cases = Vec::new();
    for file in files(&index) {
        let len = fs::metadata(index.join(&file)).expect("there").len() as usize;
        for at in [0, len / 3, len.saturating_sub(4096)] {
            cases.push((file.clone(), at, len));
        }
    }
    assert!(cases.iter().any(|(file, ..)| file.starts_with("tables")));
    for (n, (file, at, len)) in cases.into_iter().enumerate() {
        let damaged = pool.dir.path().join(format!("damaged{n}"));
        copy(&index, &damaged);
        let mut bytes = fs::read(damaged.join(&file)).expect("readable");
        let end = len.min(at + if n % 2 == 0 { 4096 } else { 1 });
        bytes[at..end].iter_mut().for_each(|byte| *byte ^= 0x5a);
        fs::write(damaged.join(&file), bytes).expect("written");
        let case = format!("{} at {at} of {len}", file.display());
        pool.index = IndexKind::Lsm(damaged.clone());
        let (store, report) = pool.open_with_report().await;
        let healed = |store: &Store| is_well(store) && (report.index_rebuilt || store.status().index.rebuilt == 1);
        for i in (0..700).step_by(97) {
            match get(&store, &format!("k{i:03}")).await {
                Ok(data) => assert_eq!(data, bytes_of(i, 60), "{case}"),
                Err(e) => assert!(matches!(e, StoreError::Index(_) | StoreError::Unavailable(_)), "{case}: {e}"),
            }
        }
        until(&store, &case, healed).await;
        assert_eq!(keys_of(&store).expect("a listing").len(), 700, "{case}");
        put(&store, "k000", &bytes_of(0, 60)).await;
        store.close().await.expect("close");
        drop(store);
        let (store, report) = pool.open_with_report().await;
        assert!(!report.index_rebuilt, "{case}: it was healed for good");
        assert!(
            fs::read_dir(pool.dir.path())
                .expect("readable")
                .all(|e| { !e.expect("one").file_name().to_string_lossy().ends_with(".new") })
        );
        assert_eq!(get(&store, "k699").await.expect("there"), bytes_of(699, 60), "{case}");
        store.close().await.expect("close");
    }
}
