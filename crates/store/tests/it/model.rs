//! Random histories against a map, with restarts, crashes and deleted indexes in between.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{BUCKET, Pool, bytes_of, copy, etag, get, put};
use futures::future::join_all;
use proptest::prelude::*;
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_log::{FormatOptions, Log};
use steadfast_store::{BucketSettings, Condition, ListQuery, PartChoice, Store, StoreError};

#[derive(Debug, Clone)]
enum Op {
    Put(u8, usize),
    Delete(u8),
    DeleteMany(Vec<u8>),
    Copy(u8, u8),
    Tag(u8),
    Multipart(u8, Vec<usize>),
    Abandon(u8, usize),
    /// Keys that are used once.
    ComeAndGo(u8, usize),
    Restart {
        close: bool,
        delete_index: bool,
    },
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), 1..300usize, 1990..2010usize, 9_990..10_010usize, 20_000..50_000usize]
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0u8..6;
    prop_oneof![
        6 => (key.clone(), size()).prop_map(|(k, s)| Op::Put(k, s)),
        2 => key.clone().prop_map(Op::Delete),
        1 => proptest::collection::vec(key.clone(), 0..4).prop_map(Op::DeleteMany),
        1 => (key.clone(), key.clone()).prop_map(|(a, b)| Op::Copy(a, b)),
        1 => key.clone().prop_map(Op::Tag),
        1 => (key.clone(), proptest::collection::vec(1000..15_000usize, 1..4)).prop_map(|(k, p)| Op::Multipart(k, p)),
        1 => (key, 1000..30_000usize).prop_map(|(k, s)| Op::Abandon(k, s)),
        2 => (5u8..60, 100..1900usize).prop_map(|(count, size)| Op::ComeAndGo(count, size)),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(close, delete_index)| Op::Restart { close, delete_index }),
    ]
}

#[derive(Debug, Clone, PartialEq, Default)]
struct Object {
    data: Vec<u8>,
    tags: BTreeMap<String, String>,
    parts: u16,
}

fn name(key: u8) -> String {
    format!("dir{}/key{key}", key % 2)
}

async fn check(store: &Store, model: &BTreeMap<String, Object>) {
    let query = ListQuery { limit: 1000, ..ListQuery::default() };
    let page = store.contents(BUCKET).objects(&query).expect("list");
    let listed: Vec<(String, u64)> = page.objects.into_iter().map(|o| (o.key, o.size)).collect();
    let expected: Vec<(String, u64)> = model.iter().map(|(k, o)| (k.clone(), o.data.len() as u64)).collect();
    assert_eq!(listed, expected);
    for key in (0..6).map(name) {
        match (model.get(&key), get(store, &key).await) {
            (Some(object), Ok(data)) => {
                assert!(object.data == data, "{key} differs");
                let info = store.at(BUCKET, &key).info().expect("there");
                assert_eq!((info.attributes.tags, info.part_count), (object.tags.clone(), object.parts));
            }
            (None, Err(StoreError::NoSuchKey)) => {}
            (want, got) => panic!("{key}: {:?} but {:?}", want.is_some(), got.map(|d| d.len())),
        }
    }
    let status = store.status();
    assert_eq!(status.objects, model.len() as u64);
    assert_eq!(status.object_bytes, model.values().map(|o| o.data.len() as u64).sum::<u64>());
}

async fn small(disks: usize) -> Vec<Arc<MemDisk>> {
    let mut mem = Vec::new();
    for _ in 0..disks {
        let one = Arc::new(MemDisk::growable(256 << 20));
        let disk: Arc<dyn Disk> = one.clone();
        let format = FormatOptions { extent_bytes: Some(256 << 10), ..FormatOptions::default() };
        Log::format(&disk, &Env::tokio(), &format).await.expect("format");
        mem.push(one);
    }
    mem
}

async fn run(disks: usize, lsm: bool, ops: Vec<Op>) {
    let mut pool = Pool::of(disks, lsm).await;
    // Small extents, and compaction that always runs: liveness is decided again and again.
    pool.replace(small(disks).await);
    pool.options.log.compaction.interval = Duration::from_millis(2);
    // Checkpoints happen in the middle of the history.
    pool.options.checkpoint_log_bytes = 20_000;
    // A life that is dropped without a close runs on for a while next to the next one, which a real
    // crash would prevent. So it must not move anything, and its late saves are older than newer
    // ones. The simulator crashes all of that.
    (pool.options.log.compaction.enabled, pool.options.log.scrub.enabled) = (lsm, lsm);
    let mut dropped = false;
    let mut store = pool.open().await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    let mut model = BTreeMap::<String, Object>::new();
    for (i, op) in ops.into_iter().enumerate() {
        let seed = i as u64;
        match op {
            Op::Put(key, size) => {
                let data = bytes_of(seed, size);
                put(&store, &name(key), &data).await;
                model.insert(name(key), Object { data, ..Object::default() });
            }
            Op::Delete(key) => {
                store.at(BUCKET, &name(key)).delete(Condition::None, None).await.expect("delete");
                model.remove(&name(key));
            }
            Op::DeleteMany(keys) => {
                let keys: Vec<String> = keys.into_iter().map(name).collect();
                for key in &keys {
                    model.remove(key);
                }
                assert!(store.contents(BUCKET).delete(keys, None).await.iter().all(Result::is_ok));
            }
            Op::Copy(from, to) => {
                let (from, to) = (name(from), name(to));
                let done = copy(&store, &from, &to).await;
                assert_eq!(done.is_ok(), model.contains_key(&from), "{done:?}");
                if let Some(object) = model.get(&from).cloned() {
                    let parts = if from == to { object.parts } else { 0 };
                    model.insert(to, Object { parts, ..object });
                }
            }
            Op::Tag(key) => {
                let tags = BTreeMap::from([("t".to_owned(), seed.to_string())]);
                let done = store.at(BUCKET, &name(key)).set_tags(tags.clone()).await;
                assert_eq!(done.is_ok(), model.contains_key(&name(key)), "{done:?}");
                if let Some(object) = model.get_mut(&name(key)) {
                    object.tags = tags;
                }
            }
            Op::Multipart(key, parts) => {
                let key = name(key);
                let id =
                    store.at(BUCKET, &key).create_upload(etag(""), Condition::None).await.expect("upload").upload_id;
                let mut data = Vec::new();
                let mut choices = Vec::new();
                for (number, size) in (1u16..).zip(&parts) {
                    let part = bytes_of(seed * 100 + u64::from(number), *size);
                    let mut writer =
                        store.at(BUCKET, &key).upload(&id).writer(number, Some(*size as u64)).await.expect("part");
                    writer.write(part.clone().into()).await.expect("write");
                    writer.commit(etag(&format!("p{number}")), Condition::None, None).await.expect("part");
                    data.extend(part);
                    choices.push(PartChoice { number, etag: format!("p{number}") });
                }
                let parts = choices.len() as u16;
                store
                    .at(BUCKET, &key)
                    .upload(&id)
                    .complete(choices, etag("m"), Condition::None, None)
                    .await
                    .expect("complete");
                model.insert(key, Object { data, parts, ..Object::default() });
            }
            Op::Abandon(key, size) => {
                let mut writer = store.at(BUCKET, &name(key)).writer(None).await.expect("writer");
                writer.write(bytes_of(seed, size).into()).await.expect("write");
                drop(writer);
                // A crash ends writes in flight; here they would run on into the next life and
                // overwrite it.
                while store.status().log.pending_bytes > 0 {
                    tokio::task::yield_now().await;
                }
            }
            Op::ComeAndGo(count, size) => {
                let keys: Vec<_> = (0..count).map(|n| format!("once/{seed}/{n}")).collect();
                let data = bytes_of(seed, size);
                join_all(keys.iter().map(|key| put(&store, key, &data))).await;
                let deletes = keys.iter().map(|key| store.at(BUCKET, key).delete(Condition::None, None));
                assert!(join_all(deletes).await.iter().all(Result::is_ok));
            }
            Op::Restart { close, delete_index } => {
                // A crash ends writers to the index directory; here they would run on next to the
                // next life. The simulator crashes them.
                let close = close || lsm;
                if close {
                    store.close().await.expect("close");
                }
                drop(store);
                if delete_index && close {
                    pool.delete_index();
                }
                let (again, report) = pool.open_with_report().await;
                store = again;
                if delete_index && close {
                    assert!(report.index_rebuilt);
                } else if close && !dropped {
                    assert_eq!(report.replayed_records, 0);
                }
                dropped |= !close;
                check(&store, &model).await;
            }
        }
    }
    check(&store, &model).await;
    store.close().await.expect("close");
    let live: u64 = store.status().log.usage.iter().map(|u| u.live_bytes).sum();
    drop(store);
    pool.delete_index();
    // A moved record may be a byte shorter, since its chunks have other locations.
    pool.options.log.compaction.enabled = false;
    let store = pool.open().await;
    check(&store, &model).await;
    let rebuilt: u64 = store.status().log.usage.iter().map(|u| u.live_bytes).sum();
    assert_eq!(live, rebuilt, "accounts differ after a rebuild");
}

fn block_on(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn in_memory(ops in proptest::collection::vec(op(), 1..40)) {
        block_on(run(1, false, ops));
    }

    #[test]
    fn on_lsm(ops in proptest::collection::vec(op(), 1..40)) {
        block_on(run(1, true, ops));
    }
    #[test]
    fn on_three_disks_in_memory(ops in proptest::collection::vec(op(), 1..40)) {
        block_on(run(3, false, ops));
    }

    #[test]
    fn on_two_disks_on_lsm(ops in proptest::collection::vec(op(), 1..40)) {
        block_on(run(2, true, ops));
    }
}
