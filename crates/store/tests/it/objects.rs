//! Single behaviours of objects and buckets.

use crate::common::{BUCKET, Pool, bytes_of, etag, get, put, put_if, read};
use steadfast_log::Durability;
use steadfast_store::{BucketSettings, Condition, StoreError};

on_disks! {
    async fn ranges_at_every_boundary(disks) {
        let (_pool, store) = Pool::start_on(disks, false).await;
        for size in [0usize, 1, 1999, 2000, 2001, 9_999, 10_000, 10_001, 25_000] {
            let data = bytes_of(size as u64, size);
            put(&store, "k", &data).await;
            let edges =
                [0, 1, 4095, 4096, 4097, 9_999, 10_000, 10_001, 14_096, 20_000, size.saturating_sub(1), size, size + 5];
            for &from in &edges {
                for &to in &edges {
                    let want = data.get(from.min(size)..to.min(size)).unwrap_or_default();
                    assert!(read(&store, "k", from as u64..to as u64).await.expect("read") == want, "{size}: {from}..{to}");
                }
            }
        }
    }
}

on_disks! {
    async fn a_reader_keeps_what_it_began_to_read(disks) {
        use futures::StreamExt;
        let (_pool, store) = Pool::start_on(disks, false).await;
        let data = bytes_of(1, 30_000);
        put(&store, "k", &data).await;
        let reader = store.at(BUCKET, "k").reader().await.expect("reader");
        put(&store, "k", b"new").await;
        let pieces: Vec<_> = reader.stream(0..30_000).collect().await;
        let got: Vec<u8> = pieces.into_iter().flat_map(|p| p.expect("piece")).collect();
        assert!(got == data);
        assert_eq!(get(&store, "k").await.expect("new"), b"new");
    }
}

on_disks! {
    async fn conditions_see_what_is_pending(disks) {
        let (_pool, store) = Pool::start_on(disks, false).await;
        let tries = (0..8).map(|i| {
            let store = store.clone();
            async move {
                let tag = format!("t{i}");
                put_if(&store, "k", tag.as_bytes(), &tag, Condition::Absent).await.map(|_| tag)
            }
        });
        let results = futures::future::join_all(tries).await;
        let won: Vec<_> = results.iter().flatten().collect();
        assert_eq!(won.len(), 1, "{results:?}");
        assert_eq!(get(&store, "k").await.expect("there"), won[0].as_bytes());
        assert!(results.iter().all(|r| matches!(r, Ok(_) | Err(StoreError::ConditionFailed))));

        let tag = won[0].clone();
        let swaps = (0..8).map(|i| {
            let (store, tag) = (store.clone(), tag.clone());
            async move { put_if(&store, "k", b"x", &format!("s{i}"), Condition::Matches(tag)).await }
        });
        let swaps = futures::future::join_all(swaps).await;
        assert_eq!(swaps.iter().filter(|r| r.is_ok()).count(), 1);
        let wrong = store.at(BUCKET, "k").delete(Condition::Matches(tag), None).await;
        assert!(matches!(wrong, Err(StoreError::ConditionFailed)));
        store.at(BUCKET, "k").delete(Condition::Matches("*".into()), None).await.expect("any");
        let gone = store.at(BUCKET, "k").delete(Condition::Matches("*".into()), None).await;
        assert!(matches!(gone, Err(StoreError::ConditionFailed)));
        store.at(BUCKET, "k").delete(Condition::None, None).await.expect("deleting nothing succeeds");
    }
}

on_disks! {
    async fn a_bucket_with_objects_is_not_deleted_and_a_new_one_is_empty(disks) {
        let (pool, store) = Pool::start_on(disks, true).await;
        put(&store, "k", b"1").await;
        assert!(matches!(store.buckets().delete(BUCKET).await, Err(StoreError::BucketNotEmpty)));
        let again = store.buckets().create(BUCKET, BucketSettings::default()).await;
        assert!(matches!(again, Err(StoreError::BucketExists)));
        store.at(BUCKET, "k").delete(Condition::None, None).await.expect("delete");
        let upload = store.at(BUCKET, "k").create_upload(etag(""), Condition::None).await.expect("upload").upload_id;
        store.buckets().delete(BUCKET).await.expect("delete");
        assert!(matches!(store.at(BUCKET, "k").info(), Err(StoreError::NoSuchBucket)));
        store.buckets().create(BUCKET, BucketSettings::default()).await.expect("again");
        assert!(matches!(store.at(BUCKET, "k").upload(&upload).info(), Err(StoreError::NoSuchUpload)));
        assert!(matches!(store.at(BUCKET, "k").info(), Err(StoreError::NoSuchKey)));
        let settings = BucketSettings { durability: Durability::Async, ..BucketSettings::default() };
        store.buckets().change(BUCKET, |found| found.clone_from(&settings)).await.expect("update");
        assert!(!put(&store, "k", b"1").await.durable);
        store.close().await.expect("close");
        drop(store);
        let store = pool.open().await;
        assert_eq!(store.buckets().get(BUCKET).expect("there").settings, settings);
        assert_eq!(store.buckets().all().expect("list").len(), 1);
        assert_eq!(get(&store, "k").await.expect("kept by closing"), b"1");
    }
}

on_disks! {
    async fn puts_that_race_a_bucket_deletion_are_refused_or_keep_it(disks) {
        let (_pool, store) = Pool::start_on(disks, false).await;
        for _ in 0..8 {
            let (put, deleted) =
                futures::future::join(put_if(&store, "k", b"x", "e", Condition::None), store.buckets().delete(BUCKET)).await;
            match (put, deleted) {
                (Ok(_), Err(StoreError::BucketNotEmpty)) => {
                    assert_eq!(get(&store, "k").await.expect("kept"), b"x");
                    store.at(BUCKET, "k").delete(Condition::None, None).await.expect("delete");
                }
                (Err(StoreError::NoSuchBucket), Ok(())) => {
                    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("again");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

on_disks! {
    async fn dropped_writers_give_back_what_they_held(disks) {
        let (mut pool, store) = Pool::start_on(disks, false).await;
        drop(store);
        pool.options.log.pending_bytes_max = 64 << 10;
        pool.options.write_wait = std::time::Duration::from_millis(200);
        let store = pool.open().await;
        for round in 0..20 {
            let mut writers = Vec::new();
            for _ in 0..3 {
                let mut writer = store.at(BUCKET, "k").writer(Some(19_000)).await.expect("writer");
                writer.write(bytes_of(round, 15_000).into()).await.expect("room");
                writers.push(writer);
            }
        }
        let held: Vec<_> = {
            let mut held = Vec::new();
            for i in 0..40 {
                match store.at(BUCKET, "k").writer(Some(1500)).await {
                    Ok(writer) => held.push(writer),
                    Err(StoreError::Busy(_)) => break,
                    Err(e) => panic!("{i}: {e}"),
                }
            }
            held
        };
        assert!(!held.is_empty() && held.len() < 40, "{} writers in 64 KiB", held.len());
        assert_eq!(store.status().objects, 0);
        drop(held);
        put(&store, "k", b"after").await;
    }
}

#[tokio::test]
async fn a_damaged_index_is_rebuilt() {
    let (pool, store) = Pool::start(true).await;
    for i in 0..200 {
        put(&store, &format!("k{i}"), &bytes_of(i, 100)).await;
    }
    store.close().await.expect("close");
    drop(store);
    let tables = pool.dir.path().join("index/tables");
    for entry in std::fs::read_dir(&tables).expect("tables") {
        let path = entry.expect("entry").path();
        let bytes = std::fs::read(&path).expect("table");
        std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("cut");
    }
    let (store, report) = pool.open_with_report().await;
    assert!(report.index_rebuilt);
    assert_eq!(get(&store, "k199").await.expect("there"), bytes_of(199, 100));
}

on_disks! {
    async fn an_index_of_another_pool_is_rebuilt(disks) {
        let (one, store) = Pool::start_on(disks, true).await;
        put(&store, "one", b"1").await;
        store.close().await.expect("close");
        drop(store);
        let (mut two, other) = Pool::start_on(disks, true).await;
        put(&other, "two", b"2").await;
        other.close().await.expect("close");
        drop(other);
        two.index = one.index.clone();
        let (store, report) = two.open_with_report().await;
        assert!(report.index_rebuilt);
        assert_eq!(get(&store, "two").await.expect("there"), b"2");
        assert!(matches!(get(&store, "one").await, Err(StoreError::NoSuchKey)));
    }
}

on_disks! {
    async fn a_small_object_is_read_from_the_cache_the_second_time(disks) {
        let (_pool, store) = Pool::start_on(disks, false).await;
        put(&store, "k", b"1234").await;
        get(&store, "k").await.expect("read");
        let before = store.status();
        get(&store, "k").await.expect("read");
        let after = store.status();
        assert_eq!(after.cache.hits, before.cache.hits + 1);
        assert_eq!(after.cache.misses, before.cache.misses);
    }
}

on_disks! {
    async fn metadata_beyond_what_a_head_takes_is_refused(disks) {
        let (_pool, store) = Pool::start_on(disks, false).await;
        let mut attributes = etag("e");
        attributes.user.insert("big".into(), "x".repeat(70_000));
        let writer = store.at(BUCKET, "k").writer(Some(0)).await.expect("writer");
        assert!(matches!(writer.commit(attributes, Condition::None, None).await, Err(StoreError::TooLarge(_))));
    }
}

on_disks! {
    async fn an_index_that_outgrows_memory_is_written_in_pieces_also_while_it_is_rebuilt(disks) {
        let (mut pool, store) = Pool::start_on(disks, true).await;
        store.close().await.expect("close");
        drop(store);
        pool.options.memtable_bytes_max = 16 << 10;
        let store = pool.open().await;
        for i in 0..600 {
            put(&store, &format!("k{:03}", i % 400), &bytes_of(i, 10)).await;
        }
        for i in 0..50 {
            store.at(BUCKET, &format!("k{i:03}")).delete(Condition::None, None).await.expect("delete");
        }
        // A background task writes it: not at once, but soon.
        while store.status().index.tables == 0 || store.status().checkpoint_lsn == 0 {
            tokio::task::yield_now().await;
        }
        for delete_index in [false, true, false] {
            store.close().await.expect("close");
            if delete_index {
                pool.delete_index();
            }
            let (store, report) = pool.open_with_report().await;
            assert_eq!(report.index_rebuilt, delete_index);
            assert_eq!(store.status().objects, 350);
            for i in 50..400 {
                let last = if i < 200 { i + 400 } else { i };
                assert_eq!(get(&store, &format!("k{i:03}")).await.expect("there"), bytes_of(last, 10), "k{i:03}");
            }
            assert!(matches!(get(&store, "k000").await, Err(StoreError::NoSuchKey)));
            store.close().await.expect("close");
        }
    }
}
