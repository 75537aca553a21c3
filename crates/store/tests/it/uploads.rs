//! Uploads in parts.

use crate::common::{BUCKET, Pool, bytes_of, etag, get, read};
use steadfast_store::{Attributes, Condition, PartChoice, Store, StoreError, Written};

async fn part(store: &Store, id: &str, number: u16, data: &[u8], tag: &str) {
    let mut writer = store.at(BUCKET, "k").upload(id).writer(number, None).await.expect("writer");
    for piece in data.chunks(999) {
        writer.write(piece.to_vec().into()).await.expect("write");
    }
    writer.commit(etag(tag), Condition::None, None).await.expect("part");
}

async fn begin(store: &Store) -> String {
    let mut attributes = Attributes::default();
    attributes.user.insert("who".into(), "me".into());
    store.at(BUCKET, "k").create_upload(attributes, Condition::None).await.expect("upload").upload_id
}

fn choices(of: &[(u16, &str)]) -> Vec<PartChoice> {
    of.iter().map(|&(number, etag)| PartChoice { number, etag: etag.into() }).collect()
}

async fn complete(store: &Store, id: &str, of: &[(u16, &str)]) -> Result<Written, StoreError> {
    store.at(BUCKET, "k").upload(id).complete(choices(of), etag("whole-2"), Condition::None, None).await
}

on_disks! {
    async fn parts_become_one_object(disks) {
        let (pool, store) = Pool::start_on(disks, true).await;
        let id = begin(&store).await;
        let (one, two, three) = (bytes_of(1, 25_000), bytes_of(2, 1_500), bytes_of(3, 7));
        part(&store, &id, 7, &three, "c").await;
        part(&store, &id, 1, b"to be replaced", "x").await;
        part(&store, &id, 1, &one, "a").await;
        part(&store, &id, 3, &two, "b").await;
        part(&store, &id, 9, b"not chosen", "d").await;
        assert!(matches!(get(&store, "k").await, Err(StoreError::NoSuchKey)));
        let (listed, more) = store.at(BUCKET, "k").upload(&id).parts(1, 2).expect("parts");
        assert_eq!(listed.iter().map(|p| (p.number, p.size)).collect::<Vec<_>>(), [(3, 1_500), (7, 7)]);
        assert!(more);

        assert!(matches!(complete(&store, &id, &[]).await, Err(StoreError::InvalidPart(0))));
        assert!(matches!(complete(&store, &id, &[(3, "b"), (1, "a")]).await, Err(StoreError::InvalidPartOrder)));
        assert!(matches!(complete(&store, &id, &[(1, "x")]).await, Err(StoreError::InvalidPart(1))));
        assert!(matches!(complete(&store, &id, &[(1, "a"), (2, "b")]).await, Err(StoreError::InvalidPart(2))));
        assert!(matches!(complete(&store, &id, &[(1, "a"), (7, "c"), (9, "d")]).await, Err(StoreError::PartTooSmall(7))));
        let chosen = [(1, "a"), (3, "b"), (7, "c")];
        let done = complete(&store, &id, &chosen).await.expect("complete");
        assert_eq!(complete(&store, &id, &chosen).await.expect("again"), done);
        // A completion with other parts lost against that one.
        let other = store.at(BUCKET, "k").upload(&id).complete(choices(&chosen[..1]), etag("other-1"), Condition::None, None);
        assert!(matches!(other.await, Err(StoreError::NoSuchUpload)));

        let whole = [one.clone(), two.clone(), three].concat();
        store.close().await.expect("close");
        drop(store);
        pool.delete_index();
        let store = pool.open().await;
        assert!(matches!(store.at(BUCKET, "k").upload(&id).info(), Err(StoreError::NoSuchUpload)));
        assert!(get(&store, "k").await.expect("there") == whole);
        assert!(read(&store, "k", 24_000..26_000).await.expect("there") == whole[24_000..26_000]);
        let reader = store.at(BUCKET, "k").reader().await.expect("reader");
        assert_eq!(reader.info().part_count, 3);
        assert_eq!(reader.info().attributes.etag, "whole-2");
        assert_eq!(reader.info().attributes.user["who"], "me");
        let parts: Vec<_> = reader.parts().iter().map(|p| (p.number, p.size, p.attributes.etag.clone())).collect();
        assert_eq!(parts, [(1, 25_000, "a".into()), (3, 1_500, "b".into()), (7, 7, "c".into())]);
        assert_eq!(store.status().uploads, 0);
    }
}

on_disks! {
    async fn what_an_upload_began_with_is_decided_again_when_it_is_completed(disks) {
        let (pool, store) = Pool::start_on(disks, true).await;
        let absent = |store: &Store| {
            let store = store.clone();
            async move { store.at(BUCKET, "k").create_upload(Attributes::default(), Condition::Absent).await }
        };
        let upload = absent(&store).await.expect("nothing is there yet");
        assert_eq!(upload.condition, Condition::Absent);
        part(&store, &upload.upload_id, 1, b"late", "a").await;
        let put = |data: &'static [u8], tag: &'static str| {
            let store = store.clone();
            async move {
                let mut writer = store.at(BUCKET, "k").writer(None).await.expect("writer");
                writer.write(data.into()).await.expect("write");
                writer.commit(etag(tag), Condition::None, None).await.expect("put");
            }
        };
        put(b"first", "one").await;
        assert!(matches!(absent(&store).await, Err(StoreError::ConditionFailed)));
        assert!(matches!(complete(&store, &upload.upload_id, &[(1, "a")]).await, Err(StoreError::ConditionFailed)));
        let matching = Condition::Matches("one".into());
        let replace = store.at(BUCKET, "k").create_upload(Attributes::default(), matching).await.expect("it is");
        part(&store, &replace.upload_id, 1, b"replaced", "a").await;
        put(b"other", "two").await;

        // The upload is in the record, not in memory.
        store.close().await.expect("close");
        drop(store);
        pool.delete_index();
        let store = pool.open().await;
        assert_eq!(store.at(BUCKET, "k").upload(&upload.upload_id).info().expect("still open").condition, Condition::Absent);
        for id in [&upload.upload_id, &replace.upload_id] {
            assert!(matches!(complete(&store, id, &[(1, "a")]).await, Err(StoreError::ConditionFailed)));
        }
        assert!(get(&store, "k").await.expect("there") == b"other");
        store.at(BUCKET, "k").delete(Condition::None, None).await.expect("delete");
        assert!(matches!(complete(&store, &replace.upload_id, &[(1, "a")]).await, Err(StoreError::ConditionFailed)));
        complete(&store, &upload.upload_id, &[(1, "a")]).await.expect("nothing is there any more");
        assert!(get(&store, "k").await.expect("there") == b"late");
    }
}

on_disks! {
    async fn an_aborted_upload_is_gone_with_its_parts(disks) {
        let (_pool, store) = Pool::start_on(disks, false).await;
        let live = || store.status().log.usage.iter().map(|u| u.live_bytes).sum::<u64>();
        let before = live();
        let id = begin(&store).await;
        part(&store, &id, 1, &bytes_of(1, 40_000), "a").await;
        assert!(live() > before + 40_000);
        let mut late = store.at(BUCKET, "k").upload(&id).writer(2, None).await.expect("writer");
        late.write(vec![1; 5000].into()).await.expect("write");
        store.at(BUCKET, "k").upload(&id).abort().await.expect("abort");
        assert_eq!(live(), before);
        let late = late.commit(etag("b"), Condition::None, None).await;
        assert!(matches!(late, Err(StoreError::NoSuchUpload)));
        assert!(matches!(store.at(BUCKET, "k").upload(&id).abort().await, Err(StoreError::NoSuchUpload)));
        assert!(matches!(complete(&store, &id, &[(1, "a")]).await, Err(StoreError::NoSuchUpload)));
        assert!(matches!(store.at(BUCKET, "k").upload(&id).parts(0, 9), Err(StoreError::NoSuchUpload)));
        assert!(matches!(store.at(BUCKET, "k").upload("nonsense").info(), Err(StoreError::NoSuchUpload)));
    }
}

on_disks! {
    async fn completions_and_aborts_that_race_agree(disks) {
        let (_pool, store) = Pool::start_on(disks, false).await;
        for _ in 0..10 {
            let id = begin(&store).await;
            part(&store, &id, 1, &bytes_of(1, 12_000), "a").await;
            let (one, two, abort) = futures::future::join3(
                complete(&store, &id, &[(1, "a")]),
                complete(&store, &id, &[(1, "a")]),
                store.at(BUCKET, "k").upload(&id).abort(),
            )
            .await;
            match (one, two, abort) {
                (Ok(one), Ok(two), Err(StoreError::NoSuchUpload)) => {
                    assert_eq!(one.version, two.version);
                    assert!(get(&store, "k").await.expect("there") == bytes_of(1, 12_000));
                }
                (Err(StoreError::NoSuchUpload), Err(StoreError::NoSuchUpload), Ok(())) => {}
                other => panic!("{other:?}"),
            }
            store.at(BUCKET, "k").delete(Condition::None, None).await.expect("delete");
        }
    }
}

on_disks! {
    async fn a_manifest_too_large_for_the_head_lies_in_the_body(disks) {
        let (pool, store) = Pool::start_on(disks, true).await;
        let id = begin(&store).await;
        let mut all = Vec::new();
        let mut chosen = Vec::new();
        for number in 1..=400u16 {
            let data = bytes_of(u64::from(number), 1000);
            let tag = format!("{number:032x}");
            part(&store, &id, number, &data, &tag).await;
            all.extend(data);
            chosen.push(PartChoice { number, etag: tag });
        }
        store.at(BUCKET, "k").upload(&id).complete(chosen, etag("e"), Condition::None, None).await.expect("complete");
        store.at(BUCKET, "k").set_tags([("a".to_owned(), "b".to_owned())].into()).await.expect("tags");
        store.close().await.expect("close");
        let store = pool.open().await;
        assert!(get(&store, "k").await.expect("there") == all);
        assert_eq!(store.at(BUCKET, "k").reader().await.expect("reader").parts().len(), 400);
    }
}
