//! Pools of several disks: membership, and the effects of a missing or failing disk.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::{BUCKET, Pool, bytes_of, copy, etag, formatted, get, put, put_if};
use steadfast_disk::{Disk, Effect, Fault, Faults, Faulty, OpKind};
use steadfast_log::LogError;
use steadfast_store::{
    BucketSettings, Condition, DiskState, ListQuery, OpenReport, PartChoice, PoolDisk, Store, StoreError,
};

const EIO: i32 = 5;

fn key(n: usize) -> String {
    format!("k{n}")
}

fn all() -> ListQuery {
    ListQuery { limit: 1000, ..ListQuery::default() }
}

fn unavailable<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Err(StoreError::Unavailable(why)) => why,
        other => panic!("{other:?}"),
    }
}

/// A store of three disks with small and large objects, and its pool.
async fn filled(lsm: bool) -> (Pool, Store) {
    let (pool, store) = Pool::start_on(3, lsm).await;
    for n in 0..60 {
        put(&store, &key(n), &bytes_of(n as u64, if n % 5 == 0 { 15_000 } else { 100 })).await;
    }
    (pool, store)
}

async fn check_all(store: &Store) {
    for n in 0..60 {
        assert_eq!(get(store, &key(n)).await.expect("there").len(), if n % 5 == 0 { 15_000 } else { 100 });
    }
    assert_eq!(store.contents(BUCKET).objects(&all()).expect("list").objects.len(), 60);
}

#[tokio::test]
async fn every_disk_gets_its_share_and_the_order_of_the_disks_does_not_matter() {
    let (pool, store) = filled(true).await;
    let status = store.status();
    assert_eq!(status.disks.iter().map(|d| d.slots).collect::<Vec<_>>(), [341, 341, 342]);
    assert_eq!(status.disks.iter().filter_map(|d| d.objects).sum::<u64>(), 60);
    for disk in &status.disks {
        assert!(disk.objects.is_some_and(|n| n > 8) && disk.chunk_bytes > 0 && disk.commits > 3, "{disk:?}");
        assert_eq!((disk.state, disk.failure.as_deref()), (DiskState::Ok, None));
    }
    store.close().await.expect("close");
    let mut given = pool.given();
    given.rotate_left(1);
    let (store, report) = pool.open_on(given).await.expect("open");
    assert_eq!((report.replayed_records, report.buckets_repaired, report.index_rebuilt), (0, 0, false));
    assert_eq!(store.status().disks.iter().map(|d| d.name.clone()).collect::<Vec<_>>(), ["d0", "d1", "d2"]);
    check_all(&store).await;
}

async fn refused(pool: &Pool, disks: Vec<PoolDisk>) -> String {
    match pool.open_on(disks).await {
        Err(StoreError::Log(LogError::Open(why))) => why,
        other => panic!("{:?}", other.map(|(_, report)| report)),
    }
}

#[tokio::test]
async fn disks_that_do_not_belong_together_are_refused_by_name() {
    let (pool, store) = filled(false).await;
    store.close().await.expect("close");
    let (other, store) = Pool::start_on(2, false).await;
    store.close().await.expect("close");
    let (single, store) = Pool::start(false).await;
    store.close().await.expect("close");
    let named = |name: &str, disk: &Arc<dyn Disk>| PoolDisk { name: name.into(), disk: Ok(disk.clone()), hint: false };

    let mut twice = pool.given();
    twice.push(named("again", &pool.disks[1]));
    let why = refused(&pool, twice).await;
    assert!(why.contains("d1 and again are the same disk"), "{why}");
    let mut foreign = pool.given();
    foreign[2] = named("foreign", &other.disks[0]);
    let why = refused(&pool, foreign).await;
    assert!(why.contains("foreign are disks of different pools"), "{why}");
    for (disk, expected) in [(&formatted().await, "has nothing on it"), (&single.disks[0], "holds a pool of its own")] {
        let mut more = pool.given();
        more.push(named("more", disk));
        let why = refused(&pool, more).await;
        assert!(why.starts_with("more ") && why.contains(expected), "{why}");
    }
    let blank_and_used = vec![named("blank", &formatted().await), named("used", &single.disks[0])];
    let why = refused(&pool, blank_and_used).await;
    assert!(why.starts_with("used holds a pool of its own"), "{why}");
    let missing = vec![
        named("blank", &formatted().await),
        PoolDisk { name: "gone".into(), disk: Err("ENXIO".into()), hint: false },
    ];
    let why = refused(&pool, missing).await;
    assert!(why.contains("gone: ENXIO"), "{why}");

    // The pool is unharmed.
    let (store, _) = pool.open_with_report().await;
    check_all(&store).await;
}

async fn without_one(lsm: bool, as_error: bool) {
    let (pool, store) = filled(lsm).await;
    let on_it = store.status().disks[1].objects;
    store.close().await.expect("close");
    drop(store);
    let mut given = pool.given();
    if as_error {
        given[1].disk = Err("no such device".into());
    } else {
        given.remove(1);
    }
    let (store, report) = pool.open_on(given).await.expect("open");
    let why = if as_error { "no such device" } else { "not among the configured disks" };
    assert_eq!(report.missing.len(), 1);
    assert!(report.missing[0].0 == "d1" && report.missing[0].1.contains(why), "{:?}", report.missing);
    let status = store.status();
    let disk = &status.disks[1];
    assert_eq!((disk.state, disk.objects, disk.slots), (DiskState::Missing, on_it, 341));
    assert!(status.disks[0].state == DiskState::Ok && store.takes_writes());

    let mut gone = BTreeSet::new();
    for n in 0..60 {
        match get(&store, &key(n)).await {
            Ok(data) => {
                assert!(data == bytes_of(n as u64, data.len()));
                put(&store, &key(n), &data).await;
            }
            Err(e) => {
                let why = unavailable::<()>(Err(e));
                assert!(why.contains("disk d1"), "{why}");
                unavailable(put_if(&store, &key(n), b"new", "e", Condition::None).await);
                unavailable(store.at(BUCKET, &key(n)).delete(Condition::None, None).await);
                unavailable(store.at(BUCKET, &key(n)).create_upload(etag(""), Condition::None).await);
                gone.insert(n);
            }
        }
    }
    assert_eq!(Some(gone.len() as u64), on_it);
    // An answer without the missing disk's content would be wrong.
    unavailable(store.contents(BUCKET).objects(&all()));
    unavailable(store.contents(BUCKET).uploads("", "", ("", ""), 10));
    unavailable(store.buckets().create("another", BucketSettings::default()).await);
    unavailable(store.buckets().delete(BUCKET).await);
    assert_eq!(store.buckets().all().expect("known").len(), 1);
    let answers = store.contents(BUCKET).delete((0..60).map(key).collect(), None).await;
    for (n, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.is_err(), gone.contains(&n), "{answer:?}");
    }
    store.close().await.expect("close");
    drop(store);

    let (store, report) = pool.open_with_report().await;
    assert!(report.missing.is_empty());
    let left: Vec<String> =
        store.contents(BUCKET).objects(&all()).expect("list").objects.into_iter().map(|o| o.key).collect();
    assert_eq!(left.into_iter().collect::<BTreeSet<_>>(), gone.iter().map(|n| key(*n)).collect());
}

#[tokio::test]
async fn a_missing_disk_takes_only_its_own_keys_with_it() {
    without_one(true, false).await;
}

#[tokio::test]
async fn a_disk_that_cannot_be_opened_is_a_missing_one() {
    without_one(false, true).await;
}

#[tokio::test]
async fn one_disk_of_a_pool_alone_knows_that_others_are_missing() {
    let (pool, store) = filled(true).await;
    let on_it = store.status().disks[2].objects;
    store.close().await.expect("close");
    drop(store);
    let (store, report) =
        Store::open(pool.disks[2].clone(), pool.index.clone(), steadfast_flow::Env::tokio(), pool.options.clone())
            .await
            .expect("open");
    assert_eq!(report.missing.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["d0", "d1"]);
    let mut there = 0;
    for n in 0..60 {
        there += u64::from(get(&store, &key(n)).await.is_ok());
    }
    assert_eq!(Some(there), on_it);
}

/// The disks of a pool, each with its faults.
pub fn faulty(pool: &Pool) -> (Vec<PoolDisk>, Vec<Faults>) {
    let mut disks = pool.given();
    let mut faults = Vec::new();
    for disk in &mut disks {
        let mine = Faults::new();
        disk.disk = disk.disk.clone().map(|d| Arc::new(Faulty::new(d, mine.clone())) as Arc<dyn Disk>);
        faults.push(mine);
    }
    (disks, faults)
}

#[tokio::test]
async fn a_disk_that_fails_takes_only_its_own_keys_to_read_only() {
    let (pool, store) = filled(false).await;
    store.close().await.expect("close");
    let (disks, faults) = faulty(&pool);
    let (store, _) = pool.open_on(disks).await.expect("open");
    faults[1].add(Fault::new(OpKind::Flush, Effect::Error(EIO)));
    let mut refused = 0;
    let mut unknown = 0;
    for n in 0..60 {
        match put_if(&store, &key(n), b"new", "e", Condition::None).await {
            Ok(_) => assert_eq!(get(&store, &key(n)).await.expect("there"), b"new"),
            Err(StoreError::Log(LogError::Unknown { .. })) => unknown += 1,
            Err(e) => {
                let why = unavailable::<()>(Err(e));
                assert!(why.contains("disk d1") && why.contains("no writes"), "{why}");
                assert!(get(&store, &key(n)).await.expect("can be read").len() >= 100);
                refused += 1;
            }
        }
    }
    assert!(unknown == 1 && refused > 8, "{unknown} {refused}");
    let status = store.status();
    assert_eq!((status.disks[1].state, status.disks[1].objects), (DiskState::ReadOnly, Some(refused + 1)));
    assert!(status.disks[1].failure.as_deref().is_some_and(|t| t.contains("flush failed")), "{:?}", status.disks[1]);
    assert_eq!(store.contents(BUCKET).objects(&all()).expect("continues").objects.len(), 60);
    unavailable(store.buckets().create("another", BucketSettings::default()).await);
    assert!(store.takes_writes());
}

/// Changes buckets while one disk fails, and closes.
async fn cut_off(failing: usize, lsm: bool, delete: bool) -> Pool {
    let (pool, store) = Pool::start_on(3, lsm).await;
    store.close().await.expect("close");
    drop(store);
    let (disks, faults) = faulty(&pool);
    let (store, _) = pool.open_on(disks).await.expect("open");
    faults[failing].add(Fault::new(OpKind::Write, Effect::Error(EIO)));
    if delete {
        store.buckets().delete(BUCKET).await.expect_err("interrupted");
    } else {
        store.buckets().create("new", BucketSettings::default()).await.expect_err("interrupted");
    }
    store.close().await.expect_err("a disk has failed");
    pool
}

/// The same, and opens again without the fault. The pool owns the index directory.
async fn interrupted(failing: usize, lsm: bool, rebuild: bool, delete: bool) -> (Pool, Store, OpenReport) {
    let pool = cut_off(failing, lsm, delete).await;
    if rebuild {
        pool.delete_index();
    }
    let (store, report) = pool.open_with_report().await;
    (pool, store, report)
}

async fn put_to(store: &Store, bucket: &str, key: &str, data: &'static [u8]) -> Result<(), StoreError> {
    let mut writer = store.at(bucket, key).writer(None).await?;
    writer.write(data.into()).await?;
    writer.commit(etag("e"), Condition::None, None).await.map(drop)
}

fn names(store: &Store) -> Vec<String> {
    store.buckets().all().expect("known").into_iter().map(|b| b.name).collect()
}

#[tokio::test]
async fn a_bucket_that_was_being_made_is_there_or_not_everywhere() {
    for (failing, repaired) in [(0, 2), (1, 1), (2, 1)] {
        for rebuild in [false, true] {
            let (_pool, store, report) = interrupted(failing, rebuild, rebuild, false).await;
            assert_eq!((names(&store), report.buckets_repaired), (vec![BUCKET.to_owned()], repaired));
            store.buckets().create("new", BucketSettings::default()).await.expect("can be made now");
            for n in 0..20 {
                put(&store, &key(n), b"x").await;
            }
        }
    }
}

#[tokio::test]
async fn a_bucket_that_was_being_deleted_is_there_or_not_everywhere() {
    // The first disk's state counts.
    for (failing, repaired) in [(0, 0), (1, 2), (2, 1)] {
        for rebuild in [false, true] {
            let (_pool, store, report) = interrupted(failing, rebuild, rebuild, true).await;
            let left = if failing == 0 { vec![BUCKET.to_owned()] } else { Vec::new() };
            assert_eq!((names(&store), report.buckets_repaired), (left, repaired), "disk {failing}");
            if failing > 0 {
                store.buckets().create(BUCKET, BucketSettings::default()).await.expect("can be made anew");
            }
            for n in 0..20 {
                put(&store, &key(n), b"x").await;
            }
        }
    }
}

#[tokio::test]
async fn a_bucket_that_not_all_disks_have_is_used_only_if_all_that_are_there_have_it() {
    let without = |pool: &Pool, disk: usize| {
        pool.given().into_iter().enumerate().filter(|(at, _)| *at != disk).map(|(_, d)| d).collect()
    };
    // The first disk, which gets it last, did not; the others have it.
    let pool = cut_off(0, false, false).await;
    let (store, _) = pool.open_on(without(&pool, 0)).await.expect("open");
    let mut taken = Vec::new();
    for n in 0..20 {
        match put_to(&store, "new", &key(n), b"x").await {
            Ok(()) => taken.push(key(n)),
            Err(e) => assert!(unavailable(Err::<(), _>(e)).contains("d0"), "{n}"),
        }
    }
    assert!(taken.len() > 5 && taken.len() < 20, "{}", taken.len());
    let upload = store.at("new", &taken[0]).create_upload(etag(""), Condition::None).await.expect("upload");
    store.close().await.expect("close");
    // Its content is unavailable while a disk without the bucket stands alone against one with it.
    let (store, _) = pool.open_on(without(&pool, 1)).await.expect("open");
    for refused in [put_to(&store, "new", &taken[0], b"y").await, store.buckets().get("new").map(drop)] {
        let why = unavailable(refused);
        assert!(why.contains("d1") && why.contains("being created or deleted"), "{why}");
    }
    store.close().await.expect("close");
    let (store, report) = pool.open_with_report().await;
    assert_eq!((names(&store), report.buckets_repaired), (vec![BUCKET.to_owned(), "new".to_owned()], 2));
    for n in 0..20 {
        let found = store.at("new", &key(n)).reader().await;
        assert_eq!(found.is_ok(), taken.contains(&key(n)), "{n}");
        put_to(&store, "new", &key(n), b"z").await.expect("everywhere");
    }
    store.at("new", &taken[0]).upload(&upload.upload_id).parts(0, 10).expect("the upload has come through");
}

#[tokio::test]
async fn an_upload_alone_keeps_a_bucket_unknown_to_the_first_disk() {
    let pool = cut_off(0, false, false).await;
    let (store, _) = pool.open_on(pool.given().into_iter().skip(1).collect()).await.expect("open");
    let mut begun = None;
    for n in 0..20 {
        begun = store
            .at("new", &key(n))
            .create_upload(etag(""), Condition::None)
            .await
            .ok()
            .map(|upload| (key(n), upload))
            .or(begun);
    }
    let (key, upload) = begun.expect("some are on the disks that are there");
    store.close().await.expect("close");
    let (store, _) = pool.open_with_report().await;
    store.at("new", &key).upload(&upload.upload_id).parts(0, 10).expect("the upload has come through");
}

#[tokio::test]
async fn a_bucket_is_deleted_only_when_no_disk_has_anything_of_it() {
    let (_pool, store) = Pool::start_on(5, false).await;
    for n in 0..20 {
        put(&store, &key(n), b"x").await;
        assert!(matches!(store.buckets().delete(BUCKET).await, Err(StoreError::BucketNotEmpty)));
        store.at(BUCKET, &key(n)).delete(Condition::None, None).await.expect("delete");
        store.at(BUCKET, &key(n)).create_upload(etag(""), Condition::None).await.expect("upload");
    }
    store.buckets().delete(BUCKET).await.expect("empty but for uploads");
    assert_eq!((names(&store).len(), store.status().uploads), (0, 0));
    assert!(matches!(store.contents(BUCKET).objects(&all()), Err(StoreError::NoSuchBucket)));
}

#[tokio::test]
async fn a_pool_whose_making_was_interrupted_is_made_by_the_next_start() {
    let mut without_layout = 0;
    for (failing, after) in (0..3).flat_map(|failing| (0..8).map(move |after| (failing, after))) {
        let pool = Pool::of(3, false).await;
        let (disks, faults) = faulty(&pool);
        faults[failing].add(Fault::new(OpKind::Write, Effect::Error(EIO)).after(after));
        match pool.open_on(disks).await {
            Ok((store, _)) => {
                let _ = store.close().await;
                let alone = pool.given().swap_remove(failing);
                let (store, report) = pool.open_on(vec![alone]).await.expect("open");
                assert_eq!(report.missing.len(), 2, "d{failing} knows the others");
                store.close().await.expect("close");
            }
            Err(e) => {
                let why = e.to_string();
                assert!(why.contains(&format!("d{failing}: ")), "{why}");
                without_layout += u32::from(why.contains("the layout of the pool could not be written"));
            }
        }
        let (store, report) = pool.open_with_report().await;
        assert!(report.missing.is_empty());
        store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
        put(&store, "k", b"x").await;
        assert_eq!(store.status().disks.len(), 3);
    }
    assert!(without_layout > 0);
}

#[tokio::test]
async fn copies_and_completions_cross_the_disks() {
    let (_pool, store) = Pool::start_on(5, false).await;
    let data = bytes_of(7, 25_000);
    put(&store, "source", &data).await;
    for n in 0..20 {
        copy(&store, "source", &key(n)).await.expect("copy");
        assert!(get(&store, &key(n)).await.expect("there") == data);
        let upload = format!("u{n}");
        let id = store.at(BUCKET, &upload).create_upload(etag(""), Condition::None).await.expect("upload").upload_id;
        let mut part = store.at(BUCKET, &upload).upload(&id).writer(1, None).await.expect("part");
        part.write(data.clone().into()).await.expect("write");
        part.commit(etag("p"), Condition::None, None).await.expect("part");
        let chosen = vec![PartChoice { number: 1, etag: "p".into() }];
        store
            .at(BUCKET, &upload)
            .upload(&id)
            .complete(chosen, etag("m"), Condition::None, None)
            .await
            .expect("complete");
        assert!(get(&store, &upload).await.expect("there") == data);
    }
    let status = store.status();
    assert!(status.disks.iter().all(|d| d.objects.is_some_and(|n| n > 0)), "{:?}", status.disks);
}
