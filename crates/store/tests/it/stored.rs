//! Stored objects recreated elsewhere.

use std::collections::BTreeMap;

use crate::common::{BUCKET, Pool, bytes_of, etag, get, put};
use bytes::Bytes;
use futures::StreamExt;
use steadfast_store::{Attributes, Condition, PartChoice, PartInfo, Store, StoreError, StoredObject};

async fn copy(from: &Store, to: &Store, key: &str) {
    let reader = from.at(BUCKET, key).reader().await.expect("there");
    let (stored, size) = (reader.stored(), reader.info().size);
    let mut writer = to.at(BUCKET, key).writer(Some(size)).await.expect("writer");
    let mut pieces = std::pin::pin!(reader.stream(0..size));
    while let Some(piece) = pieces.next().await {
        writer.write(piece.expect("a piece")).await.expect("write");
    }
    writer.commit_stored(stored, Condition::None, None).await.expect("commit");
}

async fn same(a: &Store, b: &Store, key: &str) {
    assert!(get(a, key).await.expect("there") == get(b, key).await.expect("there"), "{key}");
    let (a, b) = (a.at(BUCKET, key).reader().await.expect("there"), b.at(BUCKET, key).reader().await.expect("there"));
    assert_eq!(a.stored(), b.stored());
    assert_eq!((a.info().size, a.info().part_count), (b.info().size, b.info().part_count));
}

#[tokio::test]
async fn a_copy_has_all_that_the_original_has() {
    let (_one, from) = Pool::start(false).await;
    let (_two, to) = Pool::start_on(2, true).await;
    let attributes = Attributes {
        etag: "an etag".into(),
        system: BTreeMap::from([("content-type".into(), "image/png".into())]),
        user: BTreeMap::from([("who".into(), "me".into())]),
        tags: BTreeMap::from([("t".into(), "1".into())]),
        checksums: BTreeMap::from([("crc32".into(), "AAAAAA==".into())]),
        checksum_type: "FULL_OBJECT".into(),
    };
    for (key, len) in [("empty", 0), ("small", 100), ("large", 35_000)] {
        let mut writer = from.at(BUCKET, key).writer(None).await.expect("writer");
        writer.write(bytes_of(3, len).into()).await.expect("write");
        writer.commit(attributes.clone(), Condition::None, None).await.expect("commit");
    }
    let id =
        from.at(BUCKET, "parts").create_upload(attributes.clone(), Condition::None).await.expect("upload").upload_id;
    let mut chosen = Vec::new();
    for number in [2, 3, 9] {
        let mut part = from.at(BUCKET, "parts").upload(&id).writer(number, None).await.expect("part");
        part.write(bytes_of(number.into(), 12_000 + usize::from(number)).into()).await.expect("write");
        part.commit(etag(&format!("p{number}")), Condition::None, None).await.expect("part");
        chosen.push(PartChoice { number, etag: format!("p{number}") });
    }
    from.at(BUCKET, "parts")
        .upload(&id)
        .complete(chosen.clone(), etag("m-3"), Condition::None, None)
        .await
        .expect("done");
    // Small enough for its record, but still in a part.
    let tiny = from.at(BUCKET, "tiny").create_upload(etag(""), Condition::None).await.expect("upload").upload_id;
    let mut part = from.at(BUCKET, "tiny").upload(&tiny).writer(1, None).await.expect("part");
    part.write(Bytes::from_static(b"x")).await.expect("write");
    part.commit(etag("p"), Condition::None, None).await.expect("part");
    let one = vec![PartChoice { number: 1, etag: "p".into() }];
    from.at(BUCKET, "tiny").upload(&tiny).complete(one, etag("t-1"), Condition::None, None).await.expect("done");

    for key in ["empty", "small", "large", "parts", "tiny"] {
        copy(&from, &to, key).await;
        same(&from, &to, key).await;
    }
    assert_eq!(to.at(BUCKET, "parts").reader().await.expect("there").parts().len(), 3);
    // The upload is known by its identity there too.
    let again =
        to.at(BUCKET, "parts").upload(&id).complete(chosen, etag("m-3"), Condition::None, None).await.expect("again");
    assert_eq!(again.version, to.at(BUCKET, "parts").info().expect("there").version);
}

#[tokio::test]
async fn parts_that_do_not_fit_the_bytes_are_refused() {
    let (_pool, store) = Pool::start(false).await;
    put(&store, "k", b"old").await;
    let part = |number, size| PartInfo { number, size, modified_ms: 1, attributes: etag("p") };
    for (parts, order) in [(vec![part(1, 2), part(2, 2)], false), (vec![part(2, 2), part(1, 1)], true)] {
        let mut writer = store.at(BUCKET, "k").writer(None).await.expect("writer");
        writer.write(Bytes::from_static(b"new")).await.expect("write");
        let stored = StoredObject { parts, ..StoredObject::default() };
        let refused = writer.commit_stored(stored, Condition::None, None).await.expect_err("refused");
        assert!(matches!(refused, StoreError::InvalidPartOrder) == order, "{refused:?}");
        assert!(matches!(refused, StoreError::InvalidPart(2)) != order, "{refused:?}");
    }
    assert_eq!(get(&store, "k").await.expect("there"), b"old");
}
