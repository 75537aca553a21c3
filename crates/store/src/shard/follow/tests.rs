//! Records in the index that the log does not have: reads return damage, never loop, and never
//! return another record's bytes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_log::{ChunkMove, ChunkOwners, Durability, FormatOptions, Location, Log, LogError, Priority};

use crate::record::object::Account;
use crate::record::{Head, Value, keys};
use crate::shard::Shard;
use crate::{
    Attributes, BucketSettings, Condition, HistoryQuery, IndexKind, NewPublication, PartChoice, Store, StoreError,
    StoreOptions,
};

async fn start() -> (Store, Shard) {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(128 << 20));
    let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
    Log::format(&disk, &Env::tokio(), &format).await.expect("format");
    let options = StoreOptions {
        inline_max_bytes: 1000,
        chunk_bytes: 4096,
        part_min_bytes: 1,
        cache_bytes: 0,
        ..StoreOptions::default()
    };
    let (store, _) = Store::open(disk, IndexKind::memory(), Env::tokio(), options).await.expect("open");
    store.buckets().create("b", BucketSettings::default()).await.expect("bucket");
    let shard = store.lead().expect("open");
    (store, shard)
}

/// Size of an object whose manifest lies in the record's body.
const LARGE: usize = 600 * 4096;

async fn put(store: &Store, key: &str, data: Vec<u8>) {
    let mut writer = store.at("b", key).writer(None).await.expect("writer");
    writer.write(data.into()).await.expect("write");
    writer.commit(Attributes::default(), Condition::None, None).await.expect("commit");
}

async fn get(store: &Store, key: &str) -> Result<Vec<u8>, StoreError> {
    let mut all = Vec::new();
    let mut pieces = std::pin::pin!(store.at("b", key).reader().await?.stream(0..u64::MAX));
    while let Some(piece) = pieces.next().await {
        all.extend_from_slice(&piece?);
    }
    Ok(all)
}

/// Points the index entry under `key` to `at`, by default to a nonexistent use of an extent.
fn point(shard: &Shard, key: &[u8], at: impl FnOnce(Location) -> Location) {
    let applied = &shard.applied;
    let value = applied.lookup(key).expect("readable").expect("there");
    let value = Value::decode(&value).expect("understood");
    let value = Value { location: at(value.location), ..value }.encode();
    applied.index.insert(Bytes::copy_from_slice(key), value.into(), applied.progress.borrow().lsn);
}

fn nowhere(at: Location) -> Location {
    Location { epoch: at.epoch + 1000, ..at }
}

fn is_damage<T>(result: Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Log(LogError::Damaged { .. })))
}

/// Fails the test instead of letting an endless loop hang it.
async fn ends<T>(work: impl Future<Output = T>) -> T {
    Env::tokio().timeout(Duration::from_secs(60), work).await.expect("it ends")
}

#[tokio::test]
async fn a_publication_that_is_lost_is_damage() {
    let (store, shard) = start().await;
    let channel = store.channel("c").expect("a channel");
    for i in 0..300u64 {
        let new = NewPublication {
            body: Bytes::copy_from_slice(&i.to_le_bytes()),
            history_size: 1000,
            history_ttl_ms: 1 << 40,
            durability: Durability::Async,
            priority: Priority::Write,
            key: None,
        };
        channel.publish(new).await.expect("published");
    }
    point(&shard, &keys::publication(b"c", 3), nowhere);
    let before = store.status().log.read_damage;
    let all = HistoryQuery { since: None, limit: 1000, reverse: false };
    assert!(is_damage(ends(channel.history(all)).await));
    assert!(store.status().log.read_damage > before, "and it is counted");
}

#[tokio::test]
async fn every_reader_of_a_lost_object_gets_damage() {
    let (store, shard) = start().await;
    let bucket = shard.find("b").expect("there").id;
    put(&store, "small", vec![1; 500]).await;
    put(&store, "large", vec![2; LARGE]).await;
    for name in ["small", "large"] {
        let before = store.status().log.read_damage;
        point(&shard, &keys::object(bucket, name.as_bytes()), nowhere);
        assert!(is_damage(ends(get(&store, name)).await), "{name}");
        assert!(is_damage(ends(store.at("b", name).set_tags([("a".into(), "b".into())].into())).await), "{name}");
        assert!(store.status().log.read_damage > before, "{name}");
    }
    // When liveness is unknown, the record is kept, and nothing it needs is moved.
    let found = shard.applied.find_object(&keys::object(bucket, b"large")).expect("readable").expect("there");
    let share = Account::decode(&found.meta.encode()).expect("understood").shares[0];
    let head: Bytes = Head::Chunk { bucket, writer: [9; 16], key: b"large" }.encode().into();
    let chunk = Location { extent: share.extent, epoch: share.epoch, offset: 4096, head_len: 1, body_len: 1 };
    let applier = shard.applier();
    assert!(ends(applier.chunk_is_live(shard.log(), &head, &chunk)).await);
    let moves = vec![ChunkMove { from: chunk, to: nowhere(chunk) }];
    let repointed = ends(applier.repoint(shard.log(), [(head, moves)].into())).await;
    assert!(matches!(repointed, Err(LogError::Damaged { .. })), "{repointed:?}");
}

#[tokio::test]
async fn a_part_that_is_lost_is_damage_to_its_upload() {
    let (store, shard) = start().await;
    let upload =
        store.at("b", "k").create_upload(Attributes::default(), Condition::None).await.expect("upload").upload_id;
    let mut writer = store.at("b", "k").upload(&upload).writer(1, None).await.expect("writer");
    writer.write(vec![3; LARGE].into()).await.expect("write");
    let attributes = Attributes { etag: "e".into(), ..Attributes::default() };
    writer.commit(attributes.clone(), Condition::None, None).await.expect("commit");
    let id = crate::record::object::id_from_text(&upload).expect("an id");
    point(&shard, &keys::part(&id, 1), nowhere);
    let choices = vec![PartChoice { number: 1, etag: "e".into() }];
    assert!(is_damage(
        ends(store.at("b", "k").upload(&upload).complete(choices, attributes, Condition::None, None)).await
    ));
}

#[tokio::test]
async fn the_bytes_of_another_object_are_never_taken_for_ones_own() {
    let (store, shard) = start().await;
    let bucket = shard.find("b").expect("there").id;
    for (len, mine, other) in [(500, "mine-small", "else-small"), (LARGE, "mine-large", "else-large")] {
        put(&store, mine, vec![1; len]).await;
        put(&store, other, vec![2; len]).await;
        let there =
            shard.applied.find_object(&keys::object(bucket, other.as_bytes())).expect("readable").expect("there");
        point(&shard, &keys::object(bucket, mine.as_bytes()), |_| there.location);
        assert!(is_damage(ends(get(&store, mine)).await), "{mine}");
        assert_eq!(get(&store, other).await.expect("its own"), vec![2; len]);
    }
}
