//! Crashes while keys move between disks: at many points, and with every subset of the disks
//! present at the next start, which then writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::common::crashing::Crashing;
use crate::common::{BUCKET, Pool, bytes_of, etag, formatted, get, put_if};
use steadfast_disk::Disk;
use steadfast_store::{
    BucketSettings, Condition, IndexKind, ListQuery, MoveState, PartChoice, PoolDisk, Store, StoreError,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Add,
    Drain,
    Replace,
}

/// Allowed values of a key: `None` for absent.
type Model = BTreeMap<String, BTreeSet<Option<Vec<u8>>>>;

fn only(data: Option<Vec<u8>>) -> BTreeSet<Option<Vec<u8>>> {
    BTreeSet::from([data])
}

async fn write(store: &Store, model: &mut Model, key: &str, data: Option<Vec<u8>>) -> Result<(), StoreError> {
    let done = match &data {
        Some(data) => put_if(store, key, data, "e", Condition::None).await.map(drop),
        None => store.at(BUCKET, key).delete(Condition::None, None).await.map(drop),
    };
    match &done {
        Ok(()) => drop(model.insert(key.to_owned(), only(data))),
        // These errors state that nothing was accepted.
        Err(StoreError::Unavailable(_) | StoreError::Busy(_)) => {}
        Err(_) => drop(model.entry(key.to_owned()).or_insert_with(|| only(None)).insert(data)),
    }
    done
}

async fn check(store: &Store, model: &mut Model, whole: bool) {
    for (key, may) in model.iter_mut() {
        let found = match get(store, key).await {
            Ok(data) => Some(data),
            Err(StoreError::NoSuchKey) => None,
            Err(StoreError::Unavailable(_)) if !whole => continue,
            Err(e) => panic!("{key}: {e}"),
        };
        assert!(may.contains(&found), "{key}: {:?} of {}", found.map(|data| data.len()), may.len());
        *may = only(found);
    }
    match store.contents(BUCKET).objects(&ListQuery { limit: 1000, ..ListQuery::default() }) {
        Ok(page) => {
            let listed: Vec<String> = page.objects.into_iter().map(|o| o.key).collect();
            let there = model.iter().filter(|(_, may)| may.iter().all(Option::is_some)).map(|(key, _)| key.clone());
            assert_eq!(listed, there.collect::<Vec<_>>());
        }
        Err(StoreError::Unavailable(_)) if !whole => {}
        Err(e) => panic!("{e}"),
    }
}

struct Scene {
    pool: Pool,
    operation: Operation,
    model: Model,
    /// An upload that stays unfinished throughout.
    upload: String,
    left: Arc<AtomicI64>,
}

impl Scene {
    async fn new(operation: Operation) -> Self {
        let disks = if operation == Operation::Drain { 3 } else { 2 };
        let mut pool = Pool::of(disks, false).await;
        (pool.options.log.compaction.enabled, pool.options.log.scrub.enabled) = (false, false);
        pool.options.move_bytes_s = 0;
        let store = pool.open().await;
        store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
        let mut model = Model::new();
        for n in 0..24 {
            let data = bytes_of(n, if n % 4 == 0 { 12_000 } else { 90 });
            write(&store, &mut model, &format!("k{n}"), Some(data)).await.expect("put");
        }
        let upload =
            store.at(BUCKET, "upload").create_upload(etag(""), Condition::None).await.expect("upload").upload_id;
        let mut part = store.at(BUCKET, "upload").upload(&upload).writer(1, None).await.expect("part");
        part.write(bytes_of(1, 11_000).into()).await.expect("write");
        part.commit(etag("p1"), Condition::None, None).await.expect("part");
        store.close().await.expect("close");
        if operation != Operation::Drain {
            pool.disks.push(formatted().await);
        }
        Self { pool, operation, model, upload, left: Arc::new(AtomicI64::new(i64::MAX)) }
    }

    fn given(&self, mask: usize, crashing: bool) -> Vec<PoolDisk> {
        let given = self.pool.disks.iter().enumerate().map(|(i, disk)| {
            let disk: Result<Arc<dyn Disk>, String> = match crashing {
                _ if mask >> i & 1 == 0 => Err("it is away".to_owned()),
                true => Ok(Arc::new(Crashing { disk: disk.clone(), left: self.left.clone() })),
                false => Ok(disk.clone()),
            };
            PoolDisk { name: format!("d{i}"), disk, hint: i == 2 }
        });
        given.collect()
    }

    /// Runs the operation next to a writing client until the crash. Returns the number of changes
    /// to the disks.
    async fn until_crash(&mut self, after: i64) -> i64 {
        let mut given = self.given(7, true);
        let new = (self.operation != Operation::Drain).then(|| given.pop()).flatten();
        let Ok((store, _)) = self.pool.open_on(given).await else { panic!("it opens") };
        self.left.store(after, Ordering::SeqCst);
        let begun = match (self.operation, new) {
            (Operation::Add, Some(new)) => store.disks().add(new).await,
            (Operation::Replace, Some(new)) => store.disks().replace("d0", new).await,
            _ => store.disks().drain("d0").await,
        };
        let mut moving = store.disks().moving();
        let mut n = 100;
        while begun.is_ok() && moving.borrow_and_update().as_ref().is_some_and(|m| m.state == MoveState::Running) {
            n += 1;
            let key = format!("k{}", n % 31);
            let data = (n % 3 > 0).then(|| bytes_of(n, if n % 5 == 0 { 11_000 } else { 80 }));
            let _ = write(&store, &mut self.model, &key, data).await;
            tokio::task::yield_now().await;
        }
        if let Some(ended) = moving.borrow().as_ref() {
            assert!(self.left.load(Ordering::SeqCst) <= 0 || ended.state == MoveState::Done, "{ended:?}");
        }
        after - self.left.swap(0, Ordering::SeqCst)
    }

    /// A life with some of the disks, which writes whatever it can.
    async fn with(&mut self, mask: usize) {
        self.pool.index = IndexKind::memory();
        let Ok((store, report)) = self.pool.open_on(self.given(mask, false)).await else { return };
        check(&store, &mut self.model, false).await;
        if !report.missing.is_empty() {
            assert!(store.disks().resume_moves().is_err() || !report.moves_unfinished, "a disk is missing");
        }
        for n in 0..31 {
            let data = (n % 4 > 0).then(|| bytes_of(1000 + n, 100));
            match write(&store, &mut self.model, &format!("k{n}"), data).await {
                Ok(()) | Err(StoreError::Unavailable(_)) => {}
                Err(e) => panic!("k{n}: {e}"),
            }
        }
        check(&store, &mut self.model, false).await;
        store.close().await.expect("close");
    }

    /// With all disks: begun moves are finished, and everything exists once.
    async fn finish(&mut self) {
        self.pool.index = IndexKind::memory();
        let (store, report) = self.pool.open_on(self.given(7, false)).await.expect("open");
        assert!(report.missing.is_empty(), "{:?}", report.missing);
        check(&store, &mut self.model, true).await;
        assert_eq!(store.disks().resume_moves().expect("all are there"), report.moves_unfinished);
        if report.moves_unfinished {
            let mut moving = store.disks().moving();
            let done = moving.wait_for(|m| m.as_ref().is_some_and(|m| m.state != MoveState::Running)).await;
            let done = done.expect("there").clone();
            assert!(done.as_ref().is_some_and(|m| m.state == MoveState::Done), "{done:?}");
        }
        check(&store, &mut self.model, true).await;
        let there = self.model.values().filter(|may| may.iter().all(Option::is_some)).count();
        let status = store.status();
        assert_eq!((status.objects, status.uploads), (there as u64, 1), "and nothing else");
        let chosen = vec![PartChoice { number: 1, etag: "p1".into() }];
        let id = self.upload.clone();
        store
            .at(BUCKET, "upload")
            .upload(&id)
            .complete(chosen, etag("m"), Condition::None, None)
            .await
            .expect("complete");
        assert!(get(&store, "upload").await.expect("there") == bytes_of(1, 11_000));
        store.close().await.expect("close");
    }
}

/// Crashes the operation at many points; continues with some of the disks, then others, then all.
async fn crash_at_many_points(operation: Operation) {
    let mut whole = Scene::new(operation).await;
    let length = whole.until_crash(1 << 40).await;
    whole.finish().await;
    assert!(length > 30, "{operation:?} takes {length} changes");
    // More points on demand.
    let points: i64 = std::env::var("STEADFAST_CRASH_POINTS").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    for point in 0..points {
        for mask in 0..8 {
            // Different points for each mask, so that more of them are tested.
            let after = (length * (8 * point + mask as i64) / (8 * points)).max(1);
            let mut scene = Scene::new(operation).await;
            scene.until_crash(after).await;
            if mask > 0 {
                scene.with(mask).await;
            }
            if point % 2 == 1 {
                scene.with(7 ^ mask).await;
            }
            scene.finish().await;
        }
    }
}

#[tokio::test]
async fn adding_a_disk_survives_crashes() {
    crash_at_many_points(Operation::Add).await;
}

#[tokio::test]
async fn draining_a_disk_survives_crashes() {
    crash_at_many_points(Operation::Drain).await;
}

#[tokio::test]
async fn replacing_a_disk_survives_crashes() {
    crash_at_many_points(Operation::Replace).await;
}
