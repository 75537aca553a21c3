//! Disks that join and leave a pool while clients read and write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{BUCKET, Pool, bytes_of, done, ended, etag, formatted, get, named, put, put_if};
use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{Disk, Effect, Fault, Faults, Faulty, OpKind};
use steadfast_flow::Env;
use steadfast_store::{
    BucketSettings, Condition, DiskState, ListQuery, MoveGate, MoveState, PartChoice, PoolDisk, Store, StoreError,
};

const EIO: i32 = 5;

fn all() -> ListQuery {
    ListQuery { limit: 1000, ..ListQuery::default() }
}

fn key(n: usize) -> String {
    format!("dir{}/k{n}", n % 3)
}

/// Expected content, by key.
type Model = BTreeMap<String, Vec<u8>>;

async fn fill(store: &Store, count: usize) -> Model {
    let mut model = Model::new();
    for n in 0..count {
        let data = bytes_of(n as u64, if n % 5 == 0 { 15_000 } else { 100 });
        put(store, &key(n), &data).await;
        model.insert(key(n), data);
    }
    model
}

async fn check(store: &Store, model: &Model) {
    let listed: Vec<String> =
        store.contents(BUCKET).objects(&all()).expect("list").objects.into_iter().map(|o| o.key).collect();
    assert_eq!(listed, model.keys().cloned().collect::<Vec<_>>());
    for (key, data) in model {
        assert!(get(store, key).await.expect("there") == *data, "{key}");
    }
    let query = ListQuery { delimiter: "/".into(), ..all() };
    let prefixes = store.contents(BUCKET).objects(&query).expect("list").prefixes;
    let mut expected: Vec<&str> = model.keys().filter_map(|key| Some(&key[..=key.find('/')?])).collect();
    expected.dedup();
    assert_eq!(prefixes, expected);
}

fn slots(store: &Store) -> Vec<(String, u64)> {
    store.status().disks.into_iter().map(|disk| (disk.name, disk.slots)).collect()
}

fn objects(store: &Store) -> Vec<u64> {
    store.status().disks.into_iter().filter_map(|disk| disk.objects).collect()
}

/// An upload with one part.
async fn begun(store: &Store, key: &str, data: &[u8]) -> String {
    let id = store.at(BUCKET, key).create_upload(etag(""), Condition::None).await.expect("upload").upload_id;
    let mut part = store.at(BUCKET, key).upload(&id).writer(1, None).await.expect("part");
    part.write(Bytes::copy_from_slice(data)).await.expect("write");
    part.commit(etag("p1"), Condition::None, None).await.expect("part");
    id
}

async fn complete(store: &Store, key: &str, id: &str, parts: u16) {
    let chosen = (1..=parts).map(|number| PartChoice { number, etag: format!("p{number}") }).collect();
    store.at(BUCKET, key).upload(id).complete(chosen, etag("m"), Condition::None, None).await.expect("complete");
}

async fn come_and_go(lsm: bool) {
    let (mut pool, store) = Pool::start_on(1, lsm).await;
    let mut model = fill(&store, 60).await;
    let upload = begun(&store, "dir9/upload", &bytes_of(5, 12_000)).await;
    let created = store.at(BUCKET, &key(0)).info().expect("there").modified_ms;

    // A pool of one becomes one of two.
    let second = formatted().await;
    store.disks().add(named("second", &second)).await.expect("added");
    let status = done(&store).await;
    assert!(status.copied > 20 && status.copied_bytes > 0 && status.swept > 20, "{status:?}");
    assert_eq!(slots(&store), [("d0".into(), 512), ("second".into(), 512)].map(|(n, s): (String, u64)| (n, s)));
    assert_eq!(objects(&store).iter().sum::<u64>(), 60);
    assert!(objects(&store).iter().all(|n| *n > 15), "{:?}", objects(&store));
    check(&store, &model).await;
    assert_eq!(store.at(BUCKET, &key(0)).info().expect("there").modified_ms, created);
    store.buckets().create("another", BucketSettings::default()).await.expect("bucket");

    // And after a restart.
    store.close().await.expect("close");
    drop(store);
    pool.disks.push(second.clone());
    let (store, report) = pool.open_with_report().await;
    assert!(!report.moves_unfinished);
    assert!(!lsm || (report.index_rebuilt, report.replayed_records) == (false, 0), "{report:?}");
    check(&store, &model).await;

    // The first leaves.
    let third = formatted().await;
    store.disks().add(named("third", &third)).await.expect("added");
    done(&store).await;
    store.disks().drain("d0").await.expect("drained");
    let status = done(&store).await;
    assert_eq!(status.disk, "d0");
    assert_eq!(slots(&store), [("d1".to_owned(), 512), ("third".to_owned(), 512)]);
    check(&store, &model).await;
    let page = store.contents(BUCKET).uploads("", "", ("", ""), 10).expect("uploads");
    assert_eq!(page.uploads.len(), 1);
    complete(&store, "dir9/upload", &upload, 1).await;
    model.insert("dir9/upload".into(), bytes_of(5, 12_000));
    store.buckets().delete("another").await.expect("empty");

    // The second is replaced: nothing else moves.
    let fourth = formatted().await;
    store.disks().replace("d1", named("fourth", &fourth)).await.expect("replaced");
    done(&store).await;
    assert_eq!(slots(&store), [("third".to_owned(), 512), ("fourth".to_owned(), 512)]);
    check(&store, &model).await;
    store.close().await.expect("close");
    drop(store);

    // Disks that have left are skipped.
    let first = pool.disks[0].clone();
    pool.disks = vec![third, first, second.clone(), fourth];
    let (store, report) = pool.open_with_report().await;
    let left_out: Vec<&str> = report.left_out.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((left_out, report.missing.len()), (vec!["d1", "d2"], 0));
    check(&store, &model).await;
    let refused = store.disks().add(named("again", &second)).await.expect_err("not blank").to_string();
    assert!(refused.starts_with("again was taken out of this pool"), "{refused}");

    // Down to one again.
    store.disks().drain("d3").await.expect("drained");
    done(&store).await;
    let refused = store.disks().drain("d0").await.expect_err("the last").to_string();
    assert!(refused.contains("the only disk"), "{refused}");
    check(&store, &model).await;
    assert_eq!(objects(&store), [61]);
    store.close().await.expect("close");
    drop(store);
    let alone = pool.disks[0].clone();
    let (store, _) = pool.open_on(vec![named("d0", &alone)]).await.expect("open");
    check(&store, &model).await;
    let (gone, _) = (store, ());
    gone.close().await.expect("close");
    drop(gone);
    let alone = pool.disks[2].clone();
    let refused = pool.open_on(vec![named("left", &alone)]).await.expect_err("not a disk of it").to_string();
    assert!(refused.contains("was taken out of the pool"), "{refused}");
}

#[tokio::test]
async fn disks_come_and_go_in_memory() {
    come_and_go(false).await;
}

#[tokio::test]
async fn disks_come_and_go_on_lsm() {
    come_and_go(true).await;
}

/// An archive that has nothing until it is opened.
#[derive(Debug, Default)]
struct Gate(AtomicBool);

impl MoveGate for Gate {
    fn has(&self, _: [u8; 16], _: u64) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// No slot gets another home before the archive has its copy. Writers do not wait for it.
#[tokio::test]
async fn moves_wait_for_the_archive_and_writers_do_not() {
    let mut pool = Pool::new(false).await;
    let gate = Arc::new(Gate::default());
    pool.options.move_gate = Some(gate.clone());
    let store = pool.open().await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    let mut model = fill(&store, 60).await;
    store.disks().add(named("second", &formatted().await)).await.expect("added");
    let mut moving = store.disks().moving();
    let waits = moving.wait_for(|m| m.as_ref().is_some_and(|m| m.step == "waiting for the archive")).await;
    assert_eq!(waits.expect("the store is there").as_ref().map(|m| m.slots_done), Some(0));
    for n in 0..60 {
        put(&store, &key(n), b"newer").await;
        model.insert(key(n), b"newer".to_vec());
    }
    assert_eq!(store.disks().moving().borrow().as_ref().map(|m| m.slots_done), Some(0));
    gate.0.store(true, Ordering::Relaxed);
    done(&store).await;
    check(&store, &model).await;
}

#[tokio::test]
async fn impossible_requests_are_refused_with_a_reason() {
    let (pool, store) = Pool::start_on(2, false).await;
    fill(&store, 10).await;
    let refused = |result: Result<(), StoreError>| result.expect_err("refused").to_string();
    let why = refused(store.disks().drain("nothing").await);
    assert!(why.contains("nothing is not a disk of the pool") && why.contains("d0, d1"), "{why}");
    let why = refused(store.disks().add(named("twice", &pool.disks[1])).await);
    assert!(why.contains("twice is a disk of the pool already (d1)"), "{why}");
    let (other, foreign) = Pool::start_on(1, false).await;
    put(&foreign, "k", b"precious").await;
    foreign.close().await.expect("close");
    let why = refused(store.disks().add(named("other", &other.disks[0])).await);
    assert!(why.starts_with("other holds a pool of its own"), "{why}");
    let why =
        refused(store.disks().add(PoolDisk { name: "gone".into(), disk: Err("ENXIO".into()), hint: false }).await);
    assert!(why.contains("gone: ENXIO"), "{why}");
    assert!(!store.disks().resume_moves().expect("nothing to do"));
    // None of that is remembered, and a refused disk can be opened by itself.
    assert_eq!(get(&other.open().await, "k").await.expect("there"), b"precious");
    store.close().await.expect("close");
    drop(store);

    let (store, _) = pool.open_on(vec![named("d0", &pool.disks[0])]).await.expect("open");
    let why = refused(store.disks().add(named("new", &formatted().await)).await);
    assert!(why.contains("only while all disks of the pool are present") && why.contains("d1"), "{why}");
}

/// A task that constantly writes and checks; the model has the expected content.
async fn busy(store: Store, model: Arc<Mutex<Model>>, seed: u64, stop: Arc<AtomicBool>) -> u64 {
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let x = bytes_of(seed * 10_000 + n, 16);
        let key = format!("dir{}/w{seed}-{}", seed % 3, x[0] % 40);
        match x[1] % 10 {
            0..5 => {
                let data = bytes_of(n, if x[2].is_multiple_of(4) { 25_000 } else { 300 });
                // This task alone writes this key, so its state is known.
                let was = model.lock().get(&key).is_some();
                let condition = if was { Condition::Matches("e".into()) } else { Condition::Absent };
                put_if(&store, &key, &data, "e", condition).await.expect("put");
                model.lock().insert(key, data);
            }
            5 => {
                store.at(BUCKET, &key).delete(Condition::None, None).await.expect("delete");
                model.lock().remove(&key);
            }
            6 => {
                let id = begun(&store, &key, &bytes_of(n, 11_000)).await;
                tokio::task::yield_now().await;
                let mut part = store.at(BUCKET, &key).upload(&id).writer(2, None).await.expect("part");
                part.write(bytes_of(n + 1, 9_000).into()).await.expect("write");
                part.commit(etag("p2"), Condition::None, None).await.expect("part");
                complete(&store, &key, &id, 2).await;
                let data = [bytes_of(n, 11_000), bytes_of(n + 1, 9_000)].concat();
                model.lock().insert(key.clone(), data);
                // With the attributes of the others.
                store.at(BUCKET, &key).copy_onto_itself(etag("e"), Condition::None, None, None).await.expect("copy");
            }
            7 => {
                let tags = BTreeMap::from([("t".to_owned(), n.to_string())]);
                let there = model.lock().contains_key(&key);
                assert_eq!(store.at(BUCKET, &key).set_tags(tags.clone()).await.is_ok(), there);
                if there {
                    assert_eq!(store.at(BUCKET, &key).info().expect("there").attributes.tags, tags);
                }
            }
            8 => {
                let prefix = format!("dir{}/w{seed}-", seed % 3);
                let page =
                    store.contents(BUCKET).objects(&ListQuery { prefix: prefix.clone(), ..all() }).expect("list");
                let listed: Vec<String> = page.objects.into_iter().map(|o| o.key).collect();
                let expected: Vec<String> =
                    model.lock().keys().filter(|key| key.starts_with(&prefix)).cloned().collect();
                assert_eq!(listed, expected);
            }
            _ => {
                let expected = model.lock().get(&key).cloned();
                match get(&store, &key).await {
                    Ok(data) => assert!(expected.is_some_and(|expected| expected == data), "{key}"),
                    Err(StoreError::NoSuchKey) => assert!(expected.is_none(), "{key}"),
                    Err(e) => panic!("{key}: {e}"),
                }
            }
        }
    }
    n
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_keys_is_invisible_to_clients() {
    let (mut pool, store) = Pool::start_on(2, false).await;
    drop(store);
    pool.options.move_batch_bytes = 1;
    let store = pool.open().await;
    let model = Arc::new(Mutex::new(fill(&store, 60).await));
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> =
        (0..4).map(|seed| futures::FutureExt::boxed(busy(store.clone(), model.clone(), seed, stop.clone()))).collect();
    let env = Env::tokio();
    let mut answers = Vec::new();
    for task in tasks {
        let (done, outcome) = tokio::sync::oneshot::channel();
        env.spawn("busy", async move {
            let _ = done.send(task.await);
        });
        answers.push(outcome);
    }
    let new: Vec<Arc<dyn Disk>> = vec![formatted().await, formatted().await];
    store.disks().add(named("n0", &new[0])).await.expect("add");
    done(&store).await;
    store.disks().drain("d0").await.expect("drain");
    done(&store).await;
    store.disks().replace("d1", named("n1", &new[1])).await.expect("replace");
    let status = done(&store).await;
    assert!(status.slots_total >= 512, "{status:?}");
    stop.store(true, Ordering::Relaxed);
    for answer in answers {
        assert!(answer.await.expect("no panic") > 50, "they have been at work");
    }
    let model = model.lock().clone();
    check(&store, &model).await;
    assert_eq!(objects(&store).iter().sum::<u64>(), model.len() as u64);
    store.close().await.expect("close");
    drop(store);
    let given = vec![named("n0", &new[0]), named("n1", &new[1])];
    pool.delete_index();
    let (store, report) = pool.open_on(given).await.expect("open");
    assert!(report.index_rebuilt);
    check(&store, &model).await;
    assert_eq!(store.status().objects, model.len() as u64);
}

#[tokio::test]
async fn a_writer_follows_its_key() {
    let (_pool, store) = Pool::start_on(1, false).await;
    fill(&store, 20).await;
    // Small, large, of unknown length, and parts: begun here, committed at the keys' home of that
    // time.
    let mut writers = Vec::new();
    for n in 0..40 {
        let (key, len) = (format!("late{n}"), if n % 2 == 0 { 900 } else { 47_000 });
        let size = (n % 3 == 0).then_some(len as u64);
        let data = bytes_of(n, len);
        let mut writer = store.at(BUCKET, &key).writer(size).await.expect("writer");
        writer.write(Bytes::copy_from_slice(&data[..len / 2])).await.expect("write");
        let id = store
            .at(BUCKET, &format!("{key}-m"))
            .create_upload(etag(""), Condition::None)
            .await
            .expect("upload")
            .upload_id;
        let mut part = store.at(BUCKET, &format!("{key}-m")).upload(&id).writer(1, None).await.expect("part");
        part.write(data.clone().into()).await.expect("write");
        writers.push((key, data, writer, id, part));
    }
    let new = formatted().await;
    store.disks().replace("d0", named("new", &new)).await.expect("replace");
    let mut moving = store.disks().moving();
    moving.wait_for(|m| m.as_ref().is_some_and(|m| m.slots_done == 1024)).await.expect("moved");
    for (i, (key, data, mut writer, id, part)) in writers.into_iter().enumerate() {
        if i % 4 < 3 {
            writer.write(Bytes::copy_from_slice(&data[data.len() / 2..])).await.expect("write");
            writer.commit(etag("e"), Condition::Absent, None).await.expect("commit");
            assert!(get(&store, &key).await.expect("there") == data, "{key}");
        }
        part.commit(etag("p1"), Condition::None, None).await.expect("part");
        complete(&store, &format!("{key}-m"), &id, 1).await;
        assert!(get(&store, &format!("{key}-m")).await.expect("there") == data, "{key}");
    }
    // All of them have left the old disk, so it can be removed.
    done(&store).await;
    assert_eq!(objects(&store), [20 + 30 + 40]);
}

/// A disk with its own faults.
fn faulty(disk: &Arc<dyn Disk>) -> (Arc<dyn Disk>, Faults) {
    let faults = Faults::new();
    (Arc::new(Faulty::new(disk.clone(), faults.clone())), faults)
}

#[tokio::test]
async fn an_unreadable_object_is_named_and_stays() {
    let mut pool = Pool::of(1, false).await;
    pool.options.cache_bytes = 0;
    pool.options.log.scrub.enabled = false;
    let (disk, faults) = faulty(&pool.disks[0]);
    let (store, _) = pool.open_on(vec![named("d0", &disk)]).await.expect("open");
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    let mut model = fill(&store, 30).await;
    // Chunks lie in their own extents: the large objects cannot be read.
    let large: Vec<String> = model.iter().filter(|(_, data)| data.len() > 2000).map(|(key, _)| key.clone()).collect();
    let usage = store.status().log.usage;
    let body = usage.iter().max_by_key(|u| u.live_bytes).expect("some").extent;
    let start = (1 << 20) + u64::from(body) * (4 << 20);
    let fault = faults.add(Fault::new(OpKind::Read, Effect::Error(EIO)).within(start..start + (4 << 20)));
    let new = formatted().await;
    store.disks().replace("d0", named("new", &new)).await.expect("begun");
    let status = ended(&store).await;
    assert_eq!((status.state, status.unmovable_total), (MoveState::Failed, large.len() as u64), "{status:?}");
    for key in &large {
        assert!(status.unmovable.iter().any(|u| u.name == format!("object b/{key}")), "{key}: {status:?}");
    }
    let on_first = slots(&store)[0].1;
    assert!(on_first > 0 && on_first <= large.len() as u64, "{on_first}");
    let listed = store.contents(BUCKET).objects(&all()).expect("list").objects.len();
    assert_eq!(listed, 30);
    let why = store.disks().add(named("more", &formatted().await)).await.expect_err("refused").to_string();
    assert!(why.contains("resume"), "{why}");
    // One is overwritten; the others become readable again.
    put(&store, &large[0], b"new").await;
    model.insert(large[0].clone(), b"new".to_vec());
    faults.remove(fault);
    assert!(store.disks().resume_moves().expect("resumed"));
    done(&store).await;
    assert_eq!(slots(&store), [("new".to_owned(), 1024)]);
    check(&store, &model).await;
}

#[tokio::test]
async fn a_failed_target_disk_loses_nothing_and_a_restart_continues() {
    let (pool, store) = Pool::start_on(2, false).await;
    let model = fill(&store, 40).await;
    let new = formatted().await;
    let (disk, faults) = faulty(&new);
    store.disks().add(PoolDisk { name: "n".into(), disk: Ok(disk), hint: false }).await.expect("added");
    faults.add(Fault::new(OpKind::Write, Effect::Error(EIO)));
    let status = ended(&store).await;
    assert_eq!(status.state, MoveState::Failed, "{status:?}");
    assert!(store.status().disks.iter().any(|disk| disk.state == DiskState::ReadOnly));
    check(&store, &model).await;
    assert!(store.disks().resume_moves().expect_err("a disk takes no writes").to_string().contains("takes no writes"));
    let _ = store.close().await;
    drop(store);
    let mut given = pool.given();
    given.push(named("n", &new));
    let (store, report) = pool.open_on(given).await.expect("open");
    assert!(report.moves_unfinished);
    check(&store, &model).await;
    assert!(store.disks().resume_moves().expect("resumed"));
    done(&store).await;
    check(&store, &model).await;
    assert!(slots(&store).iter().all(|(_, slots)| *slots >= 341), "{:?}", slots(&store));
}

#[tokio::test]
async fn an_interrupted_move_is_continued() {
    let (mut pool, store) = Pool::start_on(2, true).await;
    store.close().await.expect("close");
    drop(store);
    (pool.options.move_batch_bytes, pool.options.move_bytes_s) = (1, 200_000);
    let store = pool.open().await;
    let model = fill(&store, 60).await;
    let new = formatted().await;
    store.disks().add(named("n", &new)).await.expect("added");
    store.disks().moving().wait_for(|m| m.as_ref().is_some_and(|m| m.slots_done > 20)).await.expect("some");
    store.close().await.expect("close");
    let stopped = ended(&store).await;
    assert_eq!(stopped.state, MoveState::Stopped, "{stopped:?}");
    drop(store);
    pool.options.move_bytes_s = 0;
    let mut given = pool.given();
    given.push(named("n", &new));
    let (store, report) = pool.open_on(given).await.expect("open");
    assert!(report.moves_unfinished && report.missing.is_empty());
    check(&store, &model).await;
    assert!(store.disks().resume_moves().expect("resumed"));
    done(&store).await;
    check(&store, &model).await;
}
