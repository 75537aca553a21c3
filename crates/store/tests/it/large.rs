//! Objects whose chunk list exceeds its limit.

use crate::common::{BUCKET, Pool, bytes_of, etag};
use steadfast_store::{Attributes, BucketSettings, Condition, PartChoice, StoreError};

#[tokio::test]
async fn a_part_that_could_never_be_completed_is_refused_when_it_comes() {
    let mut pool = Pool::new(false).await;
    // A list of 16 KiB.
    pool.options.log.frame_bytes_max = 1;
    pool.options.chunk_bytes = 4096;
    let store = pool.open().await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    let id =
        store.at(BUCKET, "k").create_upload(Attributes::default(), Condition::None).await.expect("upload").upload_id;
    let part = bytes_of(1, 800_000);
    let mut taken = Vec::new();
    let refused = loop {
        let number = taken.len() as u16 + 1;
        assert!(number < 20, "{number} parts of about 2.6 KB of the list each");
        let mut writer = store.at(BUCKET, "k").upload(&id).writer(number, None).await.expect("writer");
        writer.write(part.clone().into()).await.expect("written");
        match writer.commit(etag("e"), Condition::None, None).await {
            Ok(_) => taken.push(PartChoice { number, etag: "e".into() }),
            Err(e) => break e,
        }
    };
    assert!(matches!(&refused, StoreError::TooLarge(why) if why.contains("chunks")), "{refused}");
    assert!(taken.len() >= 4, "{}", taken.len());
    // An existing part may be replaced, and a small enough upload completed.
    taken.truncate(taken.len() - 2);
    let done = store.at(BUCKET, "k").upload(&id).complete(taken.clone(), etag("o"), Condition::None, None).await;
    done.expect("completed");
    assert_eq!(store.at(BUCKET, "k").info().expect("there").size, 800_000 * taken.len() as u64);
}
