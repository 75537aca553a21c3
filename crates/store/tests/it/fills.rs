//! Fills: internal uploads that become cached objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::TryStreamExt;
use steadfast_flow::Env;
use steadfast_log::{Durability, Lsn};
use steadfast_store::{
    Attributes, BucketSettings, Condition, FillCondition, Mirrored, PartChoice, Store, StoreError, StoredObject,
};
use tokio::sync::oneshot;

use crate::common::{BUCKET, Pool, bytes_of, etag, get, put_if};

fn condition(version: Option<Lsn>) -> FillCondition {
    FillCondition { version, attached: Arc::new(AtomicBool::new(true)) }
}

fn stored(tag: &str) -> StoredObject {
    StoredObject { modified_ms: 1_234_567, attributes: etag(tag), ..StoredObject::default() }
}

async fn segment(store: &Store, id: &str, number: u16, data: &[u8]) {
    let mut writer = store.at(BUCKET, "dir/k").fill(id).writer(number, Some(data.len() as u64)).await.expect("writer");
    writer.write(data.to_vec().into()).await.expect("write");
    writer.commit(etag(""), Condition::None, Some(Durability::Async)).await.expect("segment");
}

async fn begun(store: &Store) -> String {
    store.at(BUCKET, "dir/k").create_fill(etag("v1")).await.expect("fill").upload_id
}

async fn segment_bytes(store: &Store, id: &str, number: u16) -> Vec<u8> {
    let reader = store.at(BUCKET, "dir/k").fill(id).reader(number).await.expect("there");
    reader.stream(0..u64::MAX).try_collect::<Vec<_>>().await.expect("readable").concat()
}

on_disks! {
    async fn segments_become_one_object_without_parts(disks) {
        let mut pool = Pool::of(disks, true).await;
        pool.options.mirrored = vec![Mirrored { bucket: BUCKET.into(), prefix: String::new() }].into();
        let store = pool.open().await;
        store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
        let id = begun(&store).await;
        let (one, two) = (bytes_of(1, 25_000), bytes_of(2, 300));
        segment(&store, &id, 2, &two).await;
        segment(&store, &id, 1, &one).await;
        assert!(segment_bytes(&store, &id, 1).await == one);
        // They survive an orderly restart, also with a new index.
        store.close().await.expect("close");
        drop(store);
        pool.delete_index();
        let store = pool.open().await;
        let fills = store.contents(BUCKET).fills(("", ""), 10).expect("listed").uploads;
        assert_eq!(fills.iter().map(|fill| &fill.upload_id).collect::<Vec<_>>(), [&id]);
        assert_eq!(store.at(BUCKET, "dir/k").fill(&id).info().expect("there").attributes.etag, "v1");
        assert_eq!(store.at(BUCKET, "dir/k").fill(&id).parts(0, 9).expect("listed").0.len(), 2);

        let reader = store.at(BUCKET, "dir/k").fill(&id).reader(2).await.expect("there");
        let done = store.at(BUCKET, "dir/k").fill(&id).complete_fill(2, &stored("v1"), &condition(None)).await.expect("whole");
        assert!(get(&store, "dir/k").await.expect("there") == [one, two.clone()].concat());
        let info = store.at(BUCKET, "dir/k").info().expect("there");
        assert_eq!((info.modified_ms, info.version, info.part_count), (1_234_567, done.version, 0));
        assert!(store.at(BUCKET, "dir/k").reader().await.expect("there").parts().is_empty());
        assert!(reader.stream(0..300).try_collect::<Vec<_>>().await.expect("still readable").concat() == two);
        let again = store.at(BUCKET, "dir/k").fill(&id).complete_fill(2, &stored("v1"), &condition(None)).await;
        assert!(matches!(again, Err(StoreError::NoSuchUpload)), "{again:?}");
        store.at(BUCKET, "dir/k").delete_version(done.version, Durability::Async).await.expect("deleted");
        assert!(matches!(get(&store, "dir/k").await, Err(StoreError::NoSuchKey)));
        assert_eq!(store.status().events.used, 0, "clients changed nothing");
    }
}

on_disks! {
    async fn clients_do_not_see_fills(disks) {
        let (_pool, store) = Pool::start_on(disks, true).await;
        let id = begun(&store).await;
        segment(&store, &id, 1, b"body").await;
        let visible = store.at(BUCKET, "z").create_upload(Attributes::default(), Condition::None).await.expect("upload").upload_id;
        for delimiter in ["", "/"] {
            let page = store.contents(BUCKET).uploads("", delimiter, ("", ""), 10).expect("listed");
            assert_eq!((page.uploads.len(), page.prefixes.len()), (1, 0), "{page:?}");
        }
        assert!(matches!(store.at(BUCKET, "dir/k").upload(&id).info(), Err(StoreError::NoSuchUpload)));
        assert!(matches!(store.at(BUCKET, "dir/k").upload(&id).parts(0, 9), Err(StoreError::NoSuchUpload)));
        assert!(matches!(store.at(BUCKET, "dir/k").upload(&id).writer(1, None).await, Err(StoreError::NoSuchUpload)));
        assert!(matches!(store.at(BUCKET, "dir/k").upload(&id).abort().await, Err(StoreError::NoSuchUpload)));
        let chosen = vec![PartChoice { number: 1, etag: String::new() }];
        let completed = store.at(BUCKET, "dir/k").upload(&id).complete(chosen, etag("x"), Condition::None, None).await;
        assert!(matches!(completed, Err(StoreError::NoSuchUpload)), "{completed:?}");
        // Nor does the server change an upload of a client.
        assert!(matches!(store.at(BUCKET, "z").fill(&visible).abort().await, Err(StoreError::NoSuchUpload)));
        let completed = store.at(BUCKET, "z").fill(&visible).complete_fill(1, &stored("x"), &condition(None)).await;
        assert!(matches!(completed, Err(StoreError::NoSuchUpload)), "{completed:?}");
        store.at(BUCKET, "dir/k").fill(&id).abort().await.expect("aborted");
        assert!(store.contents(BUCKET).fills(("", ""), 10).expect("listed").uploads.is_empty());
        assert!(store.at(BUCKET, "dir/k").fill(&id).reader(1).await.is_err());
    }
}

#[tokio::test]
async fn only_attached_answers_about_the_same_version_are_stored() {
    let (_pool, store) = Pool::start(true).await;
    let commit = async |condition: &FillCondition| {
        let mut writer = store.at(BUCKET, "k").writer(Some(4)).await.expect("writer");
        writer.write(Bytes::from_static(b"body")).await.expect("write");
        writer.commit_fill(stored("v"), condition).await
    };
    let detached = condition(None);
    detached.attached.store(false, Ordering::Release);
    assert!(matches!(commit(&detached).await, Err(StoreError::ConditionFailed)));
    let first = commit(&condition(None)).await.expect("stored").version;
    assert!(matches!(commit(&condition(None)).await, Err(StoreError::ConditionFailed)));
    let second = commit(&condition(Some(first))).await.expect("replaced").version;
    assert!(matches!(commit(&condition(Some(first))).await, Err(StoreError::ConditionFailed)));
    let removed = store.at(BUCKET, "k").delete_version(first, Durability::Sync).await;
    assert!(matches!(removed, Err(StoreError::ConditionFailed)), "{removed:?}");
    // The same bytes under the same entity tag are another version.
    put_if(&store, "k", b"body", "v", Condition::None).await.expect("put");
    let removed = store.at(BUCKET, "k").delete_version(second, Durability::Sync).await;
    assert!(matches!(removed, Err(StoreError::ConditionFailed)), "{removed:?}");
    assert!(commit(&condition(Some(second))).await.is_err());
    assert_eq!(get(&store, "k").await.expect("there"), b"body");

    let id = store.at(BUCKET, "dir/k").create_fill(etag("v1")).await.expect("fill").upload_id;
    segment(&store, &id, 1, b"body").await;
    let completed = store.at(BUCKET, "dir/k").fill(&id).complete_fill(1, &stored("v1"), &detached).await;
    assert!(matches!(completed, Err(StoreError::ConditionFailed)), "{completed:?}");
    assert!(store.at(BUCKET, "dir/k").info().is_err());
}

/// A purge clears the flag, waits for what was submitted before, and deletes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_of_a_detached_fill_is_left_after_a_purge() {
    let (_pool, store) = Pool::start(true).await;
    let mut stored_first = 0;
    for _ in 0..300 {
        let condition = condition(None);
        let mut writer = store.at(BUCKET, "k").writer(Some(4)).await.expect("writer");
        writer.write(Bytes::from_static(b"body")).await.expect("write");
        let of_fill = condition.clone();
        let (done, fill) = oneshot::channel();
        Env::tokio().spawn("fill", async move {
            let stored = writer.commit_fill(stored("v"), &of_fill).await.is_ok();
            done.send(stored).expect("the test waits");
        });
        tokio::task::yield_now().await;
        condition.attached.store(false, Ordering::Release);
        if let Ok(info) = store.at(BUCKET, "k").settled_info().await {
            store.at(BUCKET, "k").delete_version(info.version, Durability::Sync).await.expect("deleted");
        }
        stored_first += u32::from(fill.await.expect("an answer"));
        assert!(store.at(BUCKET, "k").info().is_err());
    }
    println!("{stored_first} of 300 fills were stored before the purge");
}
