//! The log's queries to the applier, and records in unusual orders.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_log::{
    Applied, Applier, ChunkMove, ChunkOwners, FormatOptions, Location, Log, Priority, Record, Subject,
};

use super::StoreApplier;
use crate::record::epoch_break::EpochBreak;
use crate::record::object::Account;
use crate::record::upload::{UploadMeta, UploadOwner};
use crate::record::{Head, Value, keys};
use crate::shard::Shard;
use crate::shard::applied::Replay;
use crate::shard::apply::live::{self, manifest};
use crate::shard::channels::REPLAYED_MAX;
use crate::shard::channels::record::PublicationMeta;
use crate::shard::counts::Class;
use crate::shard::fault::Fault;
use crate::{Attributes, BucketSettings, Condition, IndexKind, MemCheckpoint, PartChoice, Store, StoreOptions};

const WAIT: std::time::Duration = std::time::Duration::from_secs(5);

fn lead(store: &Store) -> Shard {
    store.lead().expect("open")
}

fn upload_payload() -> Vec<u8> {
    let (attributes, condition, owner) = (Attributes::default(), Condition::None, UploadOwner::Client);
    UploadMeta { created_ms: 1, attributes, condition, owner }.encode()
}

/// A store of one disk, with the applier of its shard.
async fn start() -> (Store, StoreApplier, u64) {
    start_with(IndexKind::memory()).await
}

async fn start_with(index: IndexKind) -> (Store, StoreApplier, u64) {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(128 << 20));
    let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
    Log::format(&disk, &Env::tokio(), &format).await.expect("format");
    let options =
        StoreOptions { inline_max_bytes: 1000, chunk_bytes: 8192, part_min_bytes: 1, ..StoreOptions::default() };
    let (store, _) = Store::open(disk, index, Env::tokio(), options).await.expect("open");
    store.buckets().create("b", BucketSettings::default()).await.expect("bucket");
    let applier = lead(&store).applier();
    let bucket = lead(&store).find("b").expect("there").id;
    (store, applier, bucket)
}

/// Applies records as the log does.
fn apply(store: &Store, records: &[Applied]) -> usize {
    let shard = lead(store);
    shard.log().with_usage(|usage| shard.applier().apply(records, usage))
}

fn finish_replay(store: &Store) -> Result<u64, Fault> {
    let shard = lead(store);
    shard.log().with_usage(|usage| shard.applied.finish_replay(usage))
}

async fn chunks(store: &Store, key: &[u8]) -> Vec<Location> {
    let found = lead(store).applied.find_object(key).expect("readable").expect("there");
    manifest(lead(store).log(), key, &found.location, &found.meta).await.expect("manifest").chunks
}

/// Copies a chunk as compaction does.
async fn copy(store: &Store, head: &Bytes, from: Location) -> ChunkMove {
    let data = lead(store).log().read(from, 0..from.body_len).await.expect("read");
    let room = lead(store).log().reserve(data.len() as u64, Priority::Compaction, WAIT).await.expect("room");
    let mut buf = lead(store).log().chunk(data.len()).await.expect("memory");
    buf.put(&data);
    ChunkMove { from, to: lead(store).log().write_chunk(&room, head.clone(), buf).await.expect("write") }
}

async fn get(store: &Store, key: &str) -> Vec<u8> {
    let reader = store.at("b", key).reader().await.expect("reader");
    let pieces: Vec<_> = reader.stream(0..u64::MAX).collect().await;
    pieces.into_iter().flat_map(|p| p.expect("piece")).collect()
}

/// Creates the object `k` from the parts 1 to `parts` of the upload.
async fn complete(store: &Store, upload: &str, parts: u16) {
    let chosen = (1..=parts).map(|number| PartChoice { number, etag: String::new() }).collect();
    let upload = store.at("b", "k").upload(upload);
    upload.complete(chosen, Attributes::default(), Condition::None, None).await.expect("complete");
}

#[tokio::test]
async fn moved_chunks_of_an_object_are_followed() {
    let (store, applier, bucket) = start().await;
    let data: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
    let mut writer = store.at("b", "k").writer(None).await.expect("writer");
    writer.write(data.clone().into()).await.expect("write");
    let written = writer.commit(Attributes::default(), Condition::None, None).await.expect("commit");
    let key = keys::object(bucket, b"k");
    let before = chunks(&store, &key).await;
    assert_eq!(before.len(), 3);
    let head: Bytes = Head::Chunk { bucket, writer: [9; 16], key: b"k" }.encode().into();
    assert!(applier.chunk_is_live(lead(&store).log(), &head, &before[1]).await);
    let found = lead(&store).applied.find_object(&key).expect("readable").expect("there");
    let record = Head::ObjectPut { bucket, key: b"k", payload: &found.meta.encode() }.encode();
    assert_eq!(applier.record_is_live(&record, found.version, &found.location, 1), Some(true));

    let moved = copy(&store, &head, before[1]).await;
    applier.repoint(lead(&store).log(), [(head.clone(), vec![moved])].into()).await.expect("repoint");
    assert_eq!(chunks(&store, &key).await, [before[0], moved.to, before[2]]);
    assert!(!applier.chunk_is_live(lead(&store).log(), &head, &before[1]).await);
    assert!(applier.chunk_is_live(lead(&store).log(), &head, &moved.to).await);
    assert_eq!(applier.record_is_live(&record, found.version, &found.location, 1), Some(false), "rewritten elsewhere");
    assert_eq!(store.at("b", "k").info().expect("there").version, written.version);
    assert!(get(&store, "k").await == data);

    // A copy of the old record must not restore the old manifest.
    let stale = Applied {
        lsn: 1000,
        version: found.version,
        moved: true,
        head: record.into(),
        location: Location { offset: 77, ..found.location },
    };
    apply(&store, &[stale]);
    assert_eq!(chunks(&store, &key).await[1], moved.to);
}

#[tokio::test]
async fn a_writer_learns_of_chunks_that_move_before_its_commit() {
    let (store, applier, bucket) = start().await;
    let data: Vec<u8> = (0..20_000u32).map(|i| (i / 3) as u8).collect();
    let mut writer = store.at("b", "k").writer(None).await.expect("writer");
    writer.write(data.clone().into()).await.expect("write");
    let id = lead(&store).applied.owners.only();
    let head: Bytes = Head::Chunk { bucket, writer: id, key: b"k" }.encode().into();
    let first = writer.settled_chunks().await[0];
    assert!(applier.chunk_is_live(lead(&store).log(), &head, &first).await);
    let moved = copy(&store, &head, first).await;
    applier.repoint(lead(&store).log(), [(head.clone(), vec![moved])].into()).await.expect("repoint");
    writer.commit(Attributes::default(), Condition::None, None).await.expect("commit");
    assert_eq!(chunks(&store, &keys::object(bucket, b"k")).await[0], moved.to);
    assert!(!applier.chunk_is_live(lead(&store).log(), &head, &first).await);
    assert!(get(&store, "k").await == data);

    let mut dropped = store.at("b", "other").writer(None).await.expect("writer");
    dropped.write(data.into()).await.expect("write");
    let id = lead(&store).applied.owners.only();
    let head: Bytes = Head::Chunk { bucket, writer: id, key: b"other" }.encode().into();
    let first = dropped.settled_chunks().await[0];
    assert!(applier.chunk_is_live(lead(&store).log(), &head, &first).await);
    drop(dropped);
    assert!(!applier.chunk_is_live(lead(&store).log(), &head, &first).await);
}

#[tokio::test]
async fn moved_chunks_of_parts_are_followed_before_and_after_completion() {
    let (store, applier, bucket) = start().await;
    let data: Vec<u8> = (0..20_000u32).map(|i| (i / 5) as u8).collect();
    let id = store.at("b", "k").create_upload(Attributes::default(), Condition::None).await.expect("upload").upload_id;
    let upload = crate::record::object::id_from_text(&id).expect("ours");
    let mut writer = store.at("b", "k").upload(&id).writer(1, None).await.expect("writer");
    writer.write(data.clone().into()).await.expect("write");
    writer.commit(Attributes::default(), Condition::None, None).await.expect("part");
    let head: Bytes = Head::PartChunk { bucket, writer: [9; 16], upload, number: 1, key: b"k" }.encode().into();
    let before = chunks(&store, &keys::part(&upload, 1)).await;
    assert!(applier.chunk_is_live(lead(&store).log(), &head, &before[0]).await);
    let first = copy(&store, &head, before[0]).await;
    applier.repoint(lead(&store).log(), [(head.clone(), vec![first])].into()).await.expect("repoint");
    complete(&store, &id, 1).await;
    assert_eq!(chunks(&store, &keys::object(bucket, b"k")).await[0], first.to);
    let second = copy(&store, &head, before[1]).await;
    applier.repoint(lead(&store).log(), [(head.clone(), vec![second])].into()).await.expect("repoint");
    assert_eq!(chunks(&store, &keys::object(bucket, b"k")).await, [first.to, second.to, before[2]]);
    assert!(get(&store, "k").await == data);
    store.at("b", "k").delete(Condition::None, None).await.expect("delete");
    assert!(!applier.chunk_is_live(lead(&store).log(), &head, &second.to).await);
    applier.repoint(lead(&store).log(), [(head, vec![second])].into()).await.expect("no record refers to it");
    assert!(store.at("b", "k").info().is_err());
}

#[tokio::test]
async fn chunks_of_many_parts_of_one_object_and_of_others_are_followed_together() {
    let (store, applier, bucket) = start().await;
    let data: Vec<u8> = (0..20_000u32).map(|i| (i / 7) as u8).collect();
    let id = store.at("b", "k").create_upload(Attributes::default(), Condition::None).await.expect("upload").upload_id;
    let upload = crate::record::object::id_from_text(&id).expect("ours");
    let mut moves = BTreeMap::new();
    for number in [1, 2] {
        let mut writer = store.at("b", "k").upload(&id).writer(number, None).await.expect("writer");
        writer.write(data.clone().into()).await.expect("write");
        writer.commit(Attributes::default(), Condition::None, None).await.expect("part");
    }
    complete(&store, &id, 2).await;
    let mut writer = store.at("b", "other").writer(None).await.expect("writer");
    writer.write(data.clone().into()).await.expect("write");
    writer.commit(Attributes::default(), Condition::None, None).await.expect("commit");
    let mut expected = BTreeMap::new();
    for key in ["k", "other"] {
        let mut after = Vec::new();
        for (at, from) in chunks(&store, &keys::object(bucket, key.as_bytes())).await.into_iter().enumerate() {
            let number = at as u16 / 3 + 1;
            let head: Bytes = match key {
                "k" => Head::PartChunk { bucket, writer: [9; 16], upload, number, key: b"k" }.encode().into(),
                _ => Head::Chunk { bucket, writer: [9; 16], key: b"other" }.encode().into(),
            };
            let moved = copy(&store, &head, from).await;
            after.push(moved.to);
            moves.entry(head).or_insert_with(Vec::new).push(moved);
        }
        expected.insert(key, after);
    }
    assert_eq!(moves.len(), 3);
    applier.repoint(lead(&store).log(), moves).await.expect("repoint");
    for (key, after) in expected {
        assert_eq!(chunks(&store, &keys::object(bucket, key.as_bytes())).await, after);
    }
    assert!(get(&store, "k").await == [data.clone(), data.clone()].concat());
    assert!(get(&store, "other").await == data);
}

/// Snapshots of an earlier version, in the log and in the index, are ignored and take no space.
#[tokio::test]
async fn a_pool_with_records_of_a_retired_kind_opens() {
    for rebuilt in [false, true] {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(128 << 20));
        Log::format(&disk, &Env::tokio(), &FormatOptions::default()).await.expect("format");
        let index = MemCheckpoint::default();
        let open = async |index: &MemCheckpoint| {
            let index = IndexKind::Memory(index.clone());
            Store::open(disk.clone(), index, Env::tokio(), StoreOptions::default()).await.expect("open").0
        };
        let store = open(&index).await;
        store.buckets().create("b", BucketSettings::default()).await.expect("bucket");
        let live = store.status().log.extents.live_commit_bytes;
        let shard = lead(&store);
        for kind in [20, 21] {
            let head = Head::Retired { kind, payload: b"anything" }.encode();
            shard
                .commit_buckets(vec![Record { head: head.into(), ..Record::default() }], Priority::Write)
                .await
                .expect("commit");
        }
        // As the version that wrote the record left the index.
        let key = [keys::SNAPSHOTS, &[7; 16]].concat();
        let location = Location { extent: 0, epoch: 1, offset: 0, head_len: 20, body_len: 0 };
        let value = Value { version: 2, location, payload: b"" }.encode();
        shard.log().with_usage(|usage| {
            Account::of(Class::Retired, b"").expect("empty").credit(usage, &location);
            shard.applied.index.insert(key.clone().into(), value.into(), shard.applied.progress.borrow().lsn);
        });
        let bucket = shard.find("b").expect("there").id;
        drop(shard);
        store.close().await.expect("closes");
        drop(store);

        let index = if rebuilt { MemCheckpoint::default() } else { index };
        let store = open(&index).await;
        let applier = lead(&store).applier();
        assert_eq!(lead(&store).find("b").expect("there").id, bucket);
        assert!(lead(&store).applied.index.get(&key).expect("readable").is_none());
        let head = Head::Retired { kind: 20, payload: b"anything" }.encode();
        assert_eq!(applier.record_is_live(&head, 2, &location, 1), Some(false));
        assert!(store.status().log.extents.live_commit_bytes <= live);
        store.close().await.expect("closes");
    }
}

/// Otherwise a dead record would be moved, and the delete after it dropped once the index has
/// healed.
#[tokio::test]
async fn liveness_is_unknown_while_the_index_cannot_be_read() {
    let checkpoint = MemCheckpoint::default();
    let (_store, applier, bucket) = start_with(IndexKind::Memory(checkpoint.clone())).await;
    let at = Location { extent: 0, epoch: 1, offset: 0, head_len: 0, body_len: 0 };
    let put = Head::ObjectPut { bucket, key: b"k", payload: b"" }.encode();
    let delete = Head::ObjectDelete { bucket, key: b"k" }.encode();
    let liveness = || (applier.record_is_live(&put, 49, &at, 51), applier.record_is_live(&delete, 50, &at, 51));
    assert_eq!(liveness(), (Some(false), Some(false)));
    checkpoint.refuse_reads(2);
    assert_eq!(liveness(), (None, None));
}

#[tokio::test]
async fn deletes_live_while_something_older_may_exist() {
    let (store, applier, bucket) = start().await;
    let delete = Head::ObjectDelete { bucket, key: b"k" }.encode();
    let at = Location { extent: 0, epoch: 1, offset: 0, head_len: 0, body_len: 0 };
    assert_eq!(applier.record_is_live(&delete, 50, &at, 40), Some(true));
    assert_eq!(applier.record_is_live(&delete, 50, &at, 51), Some(false));
    let writer = store.at("b", "k").writer(Some(1)).await.expect("writer");
    let version = writer.commit(Attributes::default(), Condition::None, None).await.expect("commit").version;
    assert_eq!(
        applier.record_is_live(&delete, version - 1, &at, 1),
        Some(false),
        "a newer object hides what the delete would"
    );

    // A moved record of a deleted key stays absent.
    store.at("b", "k").delete(Condition::None, None).await.expect("delete");
    let payload = upload_payload();
    let head = Head::ObjectPut { bucket, key: b"k", payload: &payload }.encode();
    apply(&store, &[Applied { lsn: 1000, version, moved: true, head: head.into(), location: at }]);
    assert!(store.at("b", "k").info().is_err());
}

#[test]
fn what_a_delete_hides_is_of_its_subject() {
    let (bucket, upload, key, payload) = (3, [7; 16], &b"k"[..], &[][..]);
    let hidden = [
        (
            Head::ObjectDelete { bucket, key },
            vec![Head::ObjectPut { bucket, key, payload }, Head::ObjectPut { bucket, key, payload: b"another" }],
        ),
        (
            Head::UploadEnd { bucket, upload, key },
            vec![
                Head::UploadCreate { bucket, upload, key, payload },
                Head::PartPut { bucket, upload, number: 1, key, payload },
                Head::PartPut { bucket, upload, number: 2, key, payload },
            ],
        ),
        (Head::BucketDelete { id: bucket }, vec![Head::BucketPut { id: bucket, payload }]),
        (
            Head::ChannelEnd { channel: key },
            vec![
                Head::Publication { channel: key, offset: 1, payload },
                Head::Publication { channel: key, offset: 2, payload },
            ],
        ),
    ];
    let mut subjects = std::collections::BTreeSet::new();
    for (delete, puts) in hidden {
        let Subject::Delete(subject) = live::subject(&delete.encode()) else { panic!("{delete:?}") };
        assert!(subjects.insert(subject), "{delete:?} is of another subject");
        for put in puts {
            assert_eq!(live::subject(&put.encode()), Subject::Put(subject), "{put:?}");
        }
    }
    assert!(matches!(live::subject(&Head::PoolLayout { payload }.encode()), Subject::Put(_)));
    assert_eq!(live::subject(b"not a head"), Subject::Unknown);
    let other = Head::ObjectPut { bucket, key: b"kk", payload }.encode();
    assert!(matches!(live::subject(&other), Subject::Put(subject) if !subjects.contains(&subject)));
}

#[tokio::test]
async fn a_reopened_upload_has_its_parts_in_a_rebuilt_index() {
    let (store, applier, bucket) = start().await;
    let (upload, key) = ([7; 16], &b"k"[..]);
    let payload = upload_payload();
    let create = Bytes::from(Head::UploadCreate { bucket, upload, key, payload: &payload }.encode());
    let part = |number| Bytes::from(Head::PartPut { bucket, upload, number, key, payload: &payload }.encode());
    let end = Bytes::from(Head::UploadEnd { bucket, upload, key }.encode());
    let at = Location { extent: 0, epoch: 1, offset: 0, head_len: 0, body_len: 0 };
    let record = |lsn, version, head| Applied { lsn, version, moved: lsn != version, head, location: at };
    let first = 1_000;
    let replay = Replay { base: 0, marks: Default::default(), records: 0, newest_ms: 0 };
    lead(&store).applied.replay.lock().replace(replay);
    apply(
        &store,
        &[
            record(first, first, create.clone()),
            record(first + 1, first + 1, part(1)),
            record(first + 2, first + 2, end.clone()),
            record(first + 3, first + 3, create),
            record(first + 4, first + 4, part(2)),
            // Compaction had not reached it.
            record(first + 5, first + 1, part(1)),
        ],
    );
    finish_replay(&store).expect("readable");
    let there = |number| lead(&store).applied.lookup(&keys::part(&upload, number)).expect("readable").is_some();
    assert!(there(2), "returned with the reopened upload");
    assert!(!there(1), "ended with the upload when it left");
    assert_eq!(
        applier.record_is_live(&end, first + 2, &at, first),
        Some(true),
        "hides a part that may still be somewhere"
    );
    assert_eq!(applier.record_is_live(&end, first + 2, &at, first + 3), Some(false), "nothing is left to hide");
}

fn publication(channel: &[u8], offset: u64, floor: u64) -> Bytes {
    let meta = PublicationMeta {
        removed: false,
        is_async: false,
        epoch: 5,
        time_ms: Env::tokio().wall_ms(),
        ttl_ms: 3_600_000,
        floor,
        key: None,
    };
    Head::Publication { channel, offset, payload: &meta.encode() }.encode().into()
}

#[tokio::test]
async fn a_returned_channel_has_only_new_publications_in_a_rebuilt_index() {
    let (store, applier, _) = start().await;
    let applied = lead(&store).applied.clone();
    let publication = |offset, floor| publication(b"c", offset, floor);
    let end = Bytes::from(Head::ChannelEnd { channel: b"c" }.encode());
    let at = Location { extent: 0, epoch: 1, offset: 0, head_len: 0, body_len: 0 };
    let record = |lsn, version, head| Applied { lsn, version, moved: lsn != version, head, location: at };
    let first = 1_000;
    let there = |offset| applied.lookup(&keys::publication(b"c", offset)).expect("readable").is_some();
    applied.replay.lock().replace(Replay { base: 0, marks: Default::default(), records: 0, newest_ms: 0 });
    apply(
        &store,
        &[
            record(first, first, publication(1, 1)),
            record(first + 1, first + 1, publication(2, 1)),
            record(first + 2, first + 2, end.clone()),
            // Compaction had not reached it.
            record(first + 3, first, publication(1, 1)),
            record(first + 4, first + 4, publication(2, 1)),
        ],
    );
    finish_replay(&store).expect("readable");
    assert!(there(2) && !there(1));
    assert_eq!(applier.record_is_live(&end, first + 2, &at, first), Some(true), "hides what may still be somewhere");
    assert_eq!(applier.record_is_live(&end, first + 2, &at, first + 3), Some(false), "nothing is left to hide");
    // At run time too; the channel is looked up anew.
    let before = applied.channels.get(&applied, "c").expect("readable");
    apply(&store, &[record(first + 5, first + 5, end.clone())]);
    assert!(!there(2));
    assert_eq!(applied.channels.get(&applied, "c").expect("readable").state.lock().top, 0);
    assert!(before.gone.load(std::sync::atomic::Ordering::Relaxed));
    // The channel is in use again when compaction moves its end record.
    let in_use = applied.channels.get(&applied, "c").expect("readable");
    apply(&store, &[record(first + 6, first + 5, end)]);
    assert!(Arc::ptr_eq(&in_use, &applied.channels.get(&applied, "c").expect("readable")));
    let first = first + 1;
    // A record in the middle of the offsets does not cost a step per earlier offset.
    let far = 1 << 60;
    apply(
        &store,
        &[
            record(first + 6, first + 6, publication(far, far)),
            record(first + 7, first + 7, publication(far + 1, far)),
            record(first + 8, first + 8, publication(far + 100, far + 90)),
        ],
    );
    assert!(!there(far) && !there(far + 1) && there(far + 100));
    assert_eq!(applied.channels.get(&applied, "c").expect("readable").state.lock().first, far + 90);
}

#[tokio::test]
async fn a_replay_holds_a_bounded_number_of_channels() {
    let (store, _, _) = start().await;
    let applied = lead(&store).applied.clone();
    applied.replay.lock().replace(Replay { base: 0, marks: Default::default(), records: 0, newest_ms: 0 });
    let at = Location { extent: 0, epoch: 1, offset: 0, head_len: 0, body_len: 0 };
    let count = 2 * REPLAYED_MAX as u64;
    let name = |n: u64| format!("c{n}");
    for offset in 1..=3 {
        for from in (0..count).step_by(64) {
            let lsn = |n| 1_000 + offset * count + n;
            let head = |n| publication(name(n).as_bytes(), offset, offset.max(2) - 1);
            let record = |n| Applied { lsn: lsn(n), version: lsn(n), moved: false, head: head(n), location: at };
            apply(&store, &(from..from + 64).map(record).collect::<Vec<_>>());
            assert!(applied.channels.len() <= REPLAYED_MAX);
        }
    }
    finish_replay(&store).expect("readable");
    for n in 0..count {
        let channel = applied.channels.get(&applied, &name(n)).expect("readable");
        let state = channel.state.lock();
        assert_eq!((state.epoch, state.first, state.top), (5, 2, 3), "{n}");
    }
}

/// A channel was forgotten and used again. Extents of its first life remain, and compaction has
/// moved some records of it.
#[tokio::test]
async fn a_forgotten_channel_does_not_come_back_in_a_replay() {
    let (store, _, _) = start().await;
    let applied = lead(&store).applied.clone();
    let head = |epoch: u32, offset: u64| -> Bytes {
        let meta = PublicationMeta {
            removed: false,
            is_async: false,
            epoch,
            time_ms: 1,
            ttl_ms: u64::MAX / 2,
            floor: 1,
            key: None,
        };
        Head::Publication { channel: b"c", offset, payload: &meta.encode() }.encode().into()
    };
    let at = Location { extent: 0, epoch: 1, offset: 0, head_len: 0, body_len: 0 };
    let record = |lsn, version, epoch, offset| Applied {
        lsn,
        version,
        moved: lsn != version,
        head: head(epoch, offset),
        location: at,
    };
    let first = 1000;
    for late in [false, true] {
        applied.replay.lock().replace(Replay { base: 0, marks: Default::default(), records: 0, newest_ms: 0 });
        let (old, new) = if late { (7, 8) } else { (5, 6) };
        let base = first + if late { 1000 } else { 0 };
        apply(&store, &[record(base, base, old, 499), record(base + 1, base + 1, old, 500)]);
        apply(&store, &[record(base + 10, base + 10, new, 1), record(base + 11, base + 11, new, 2)]);
        apply(&store, &[record(base + 20, base, old, 499), record(base + 21, base + 1, old, 500)]);
        // An epoch change by a restart is not another life.
        apply(&store, &[record(base + 30, base + 30, new + 10, 3)]);
        apply(&store, &[record(base + 31, base + 11, new, 2)]);
        finish_replay(&store).expect("readable");
        for _ in 0..2 {
            let channel = applied.channels.get(&applied, "c").expect("readable");
            let state = channel.state.lock();
            assert_eq!((state.epoch, state.first, state.top), (new + 10, 1, 3));
            drop(state);
            applied.channels.forget();
        }
        let there = |offset| applied.index.get(&keys::publication(b"c", offset)).expect("readable").is_some();
        assert!(there(1) && there(2) && there(3) && !there(499) && !there(500));
    }
}

/// Channels in use keep their memory, and compaction may move the record.
#[tokio::test]
async fn a_break_of_epochs_counts_for_channels_that_are_loaded_after_it() {
    let (store, applier, _) = start().await;
    let applied = lead(&store).applied.clone();
    let at = |offset| Location { extent: 0, epoch: 1, offset, head_len: 0, body_len: 0 };
    let payload = EpochBreak { number: 1, drawn: 7 }.encode();
    let head = Bytes::from(Head::EpochBreak { payload: &payload }.encode());
    let record =
        |lsn, version| Applied { lsn, version, moved: lsn != version, head: head.clone(), location: at(lsn as u32) };
    let before = applied.channels.get(&applied, "c").expect("readable");
    apply(&store, &[record(1000, 1000)]);
    assert!(Arc::ptr_eq(&before, &applied.channels.get(&applied, "c").expect("readable")));
    applied.channels.forget();
    assert!(before.gone.load(std::sync::atomic::Ordering::Relaxed));
    let after = applied.channels.get(&applied, "c").expect("readable");
    assert_ne!(before.state.lock().epoch, after.state.lock().epoch);
    assert_eq!(applier.record_is_live(&head, 1000, &at(1000), 0), Some(true));
    apply(&store, &[record(2000, 1000)]);
    assert!(Arc::ptr_eq(&after, &applied.channels.get(&applied, "c").expect("readable")));
    assert_eq!(applier.record_is_live(&head, 1000, &at(1000), 0), Some(false), "it lies elsewhere");
    assert_eq!(applier.record_is_live(&head, 1000, &at(2000), 0), Some(true));
}
