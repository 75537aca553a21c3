//! Object events: one for each change, in order, present if and only if the change is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::common::crashing::Crashing;
use crate::common::{BUCKET, Pool, copy, done, etag, formatted, named, put, put_if};
use bytes::Bytes;
use futures::future::join_all;
use futures::poll;
use steadfast_disk::Disk;
use steadfast_log::Durability;
use steadfast_store::{
    BucketSettings, Cause, Condition, Event, EventKind, Mirrored, NotificationRule, Notifications, PartChoice, Store,
    StoreError, StoredObject,
};

fn rule(id: &str, kinds: &[EventKind], prefix: &str) -> NotificationRule {
    let (id, target) = (id.to_owned(), format!("to-{id}"));
    NotificationRule { id, target, kinds: kinds.to_vec(), prefix: prefix.to_owned(), suffix: String::new() }
}

async fn listen(store: &Store, rules: Vec<NotificationRule>) {
    let notifications = Some(Notifications { rules, document: "as given".into() });
    store.buckets().change(BUCKET, |settings| settings.notifications = notifications).await.expect("changed");
}

/// All waiting events, without marking them done.
async fn waiting(store: &Store) -> Vec<Event> {
    let mut events = Vec::new();
    while store.status().events.used as usize > events.len() {
        events.extend(store.events().next(7).await);
    }
    events
}

fn summary(events: &[Event]) -> Vec<(EventKind, &str)> {
    events.iter().map(|event| (event.event.kind, &event.event.key[..])).collect()
}

async fn reopened(pool: &Pool, store: Store, rebuilt: bool) -> Store {
    store.close().await.expect("closed");
    drop(store);
    if rebuilt {
        pool.delete_index();
    }
    pool.open().await
}

async fn uploaded(store: &Store, key: &str) {
    let id = store.at(BUCKET, key).create_upload(etag(""), Condition::None).await.expect("upload").upload_id;
    let mut part = store.at(BUCKET, key).upload(&id).writer(1, None).await.expect("part");
    part.write(Bytes::from(vec![7; 1500])).await.expect("write");
    part.commit(etag("p"), Condition::None, None).await.expect("part");
    let parts = vec![PartChoice { number: 1, etag: "p".into() }];
    store.at(BUCKET, key).upload(&id).complete(parts, etag("m"), Condition::None, None).await.expect("complete");
}

on_disks! {
    async fn every_change_is_delivered_once_and_in_order(disks) {
        let (pool, mut store) = Pool::start_on(disks, true).await;
        put(&store, "a", b"before anyone subscribed to it").await;
        listen(&store, vec![rule("all", &EventKind::ALL, ""), rule("b", &[EventKind::Delete], "b")]).await;
        assert_eq!(store.buckets().get(BUCKET).expect("there").settings.notifications.expect("kept").document, "as given");
        put(&store, "a", b"1").await;
        put_if(&store, "a", b"2", "e", Condition::Absent).await.expect_err("it is there");
        put(&store, "b", &[1; 15_000]).await;
        copy(&store, "a", "c").await.expect("copied");
        store.at(BUCKET, "a").copy_onto_itself(etag("x"), Condition::None, None, None).await.expect("copied");
        store.at(BUCKET, "a").set_tags(BTreeMap::from([("t".into(), "v".into())])).await.expect("tagged");
        uploaded(&store, "d").await;
        store.at(BUCKET, "a").delete(Condition::None, None).await.expect("deleted");
        store.at(BUCKET, "a").delete(Condition::None, None).await.expect("not there");
        let keys = ["b", "nothing", "c", "b"].map(str::to_owned).to_vec();
        assert!(store.contents(BUCKET).delete(keys, None).await.iter().all(Result::is_ok));
        let restored = store.at(BUCKET, "e").writer(Some(0)).await.expect("a writer");
        restored.commit_stored(StoredObject::default(), Condition::None, None).await.expect("restored");

        use EventKind::{Complete, Copy, Delete, Put};
        let expected = [(Put, "a"), (Put, "b"), (Copy, "c"), (Copy, "a"), (Complete, "d"), (Delete, "a")];
        for rebuilt in [None, Some(false), Some(true)] {
            if let Some(rebuilt) = rebuilt {
                store = reopened(&pool, store, rebuilt).await;
            }
            let events = waiting(&store).await;
            let received = summary(&events);
            let (first, last) = received.split_at(expected.len());
            // After a restart they are in order of time, which two events may share.
            match rebuilt {
                None => assert_eq!(first, expected),
                Some(_) => assert!(expected.iter().all(|event| received.contains(event))),
            }
            if rebuilt.is_none() {
                let mut last = last.to_vec();
                // In one request: in its order where they are on the same disk.
                if disks > 1 {
                    last.sort_by_key(|(_, key)| key.to_owned());
                }
                assert_eq!(last, [(Delete, "b"), (Delete, "c")]);
            }
            assert_eq!(received.len(), 8);
            assert!(events.iter().all(|event| event.maybe_redelivered == rebuilt.is_some()));
            let find = |kind, key| events.iter().find(|e| (e.event.kind, &e.event.key[..]) == (kind, key)).expect("delivered");
            let (put, gone) = (find(Put, "b"), find(Delete, "b"));
            assert_eq!((put.event.size, &put.event.etag[..], put.event.targets.len()), (15_000, "e", 1));
            assert_eq!((gone.event.size, gone.event.targets.len(), &gone.event.targets[1].target[..]), (0, 2, "to-b"));
            assert_eq!((put.slot, put.position.epoch), (gone.slot, gone.position.epoch));
            assert!(put.position.offset < gone.position.offset);
        }
    }
}

on_disks! {
    async fn events_name_the_client_that_made_the_change(disks) {
        let (pool, mut store) = Pool::start_on(disks, true).await;
        put(&store, "source", b"x").await;
        listen(&store, vec![rule("all", &EventKind::ALL, "")]).await;
        let cause = |name: &str| Cause { principal: name.into(), address: "192.0.2.7".parse().ok() };
        let unknown = Cause { principal: "anonymous".into(), address: None };
        let (put_by, copied_by, completed_by) = (cause("put"), cause("copy"), cause("complete"));
        let writer = store.at(BUCKET, "a").caused_by(&put_by).writer(None).await.expect("a writer");
        writer.commit(etag("e"), Condition::None, None).await.expect("put");
        let reader = store.at(BUCKET, "source").reader().await.expect("a reader");
        let copied = store.at(BUCKET, "b").caused_by(&copied_by).copy_from(reader, etag("c"), Condition::None, None);
        copied.await.expect("copied");
        let home = store.at(BUCKET, "b").caused_by(&unknown);
        home.copy_onto_itself(etag("d"), Condition::None, None, None).await.expect("copied");
        let id = store.at(BUCKET, "c").create_upload(etag(""), Condition::None).await.expect("upload").upload_id;
        let part = store.at(BUCKET, "c").upload(&id).writer(1, None).await.expect("part");
        part.commit(etag("p"), Condition::None, None).await.expect("part");
        let parts = vec![PartChoice { number: 1, etag: "p".into() }];
        let upload = store.at(BUCKET, "c").caused_by(&completed_by).upload(&id);
        upload.complete(parts, etag("m"), Condition::None, None).await.expect("complete");
        store.at(BUCKET, "a").caused_by(&unknown).delete(Condition::None, None).await.expect("deleted");
        let many = store.contents(BUCKET).caused_by(&put_by).delete(vec!["b".into()], None).await;
        assert!(many.iter().all(Result::is_ok));
        put(&store, "d", b"by the server").await;
        for rebuilt in [false, true] {
            let events = waiting(&store).await;
            let of = |kind, key: &str| {
                let found = events.iter().find(|e| e.event.kind == kind && e.event.key == key).expect("delivered");
                found.event.cause.clone()
            };
            assert_eq!(of(EventKind::Put, "a"), Some(put_by.clone()));
            assert_eq!(of(EventKind::Complete, "c"), Some(completed_by.clone()));
            assert_eq!(of(EventKind::Delete, "a"), Some(unknown.clone()));
            assert_eq!(of(EventKind::Delete, "b"), Some(put_by.clone()));
            assert_eq!(of(EventKind::Put, "d"), None);
            let copies = events.iter().filter(|e| e.event.kind == EventKind::Copy);
            let copies: BTreeSet<_> = copies.map(|e| e.event.cause.clone().expect("a client").principal).collect();
            assert_eq!(copies, BTreeSet::from(["copy".into(), "anonymous".into()]));
            store = reopened(&pool, store, rebuilt).await;
        }
    }
}

on_disks! {
    async fn forwarded_events_are_not_redelivered(disks) {
        let (pool, mut store) = Pool::start_on(disks, true).await;
        listen(&store, vec![rule("all", &EventKind::ALL, "")]).await;
        for round in 0..3 {
            for n in 0..20 {
                put(&store, &format!("k{}", n % 10), b"x").await;
            }
            let events = store.events().next(15).await;
            assert_eq!(events.len(), 15);
            assert_eq!(store.status().events.used as usize, 20);
            store.events().done(&events);
            assert_eq!(store.status().events.used as usize, 5);
            // Events of slots with waiting events may be delivered again: they are not removed one
            // by one.
            let rest: Vec<_> = store.events().next(15).await;
            assert_eq!(rest.len(), 5);
            if round < 2 {
                store.events().done(&rest);
                store.events().trim(Duration::from_secs(3600)).await.expect("nothing is idle for so long");
                store.events().trim(Duration::ZERO).await.expect("trimmed");
                store.events().trim(Duration::ZERO).await.expect("nothing left to do");
                store = reopened(&pool, store, round == 1).await;
                assert_eq!(store.status().events.used as usize, 0);
            }
        }
        // Not trimmed: the next event of a slot contains what was forwarded.
        for n in 0..10 {
            put(&store, &format!("k{n}"), b"y").await;
        }
        let store = reopened(&pool, store, true).await;
        let events = waiting(&store).await;
        assert!((15..=20).contains(&events.len()), "5 and 10, and at most one more of each slot: {}", events.len());
    }
}

#[tokio::test]
async fn a_full_outbox_blocks_only_writers_of_events() {
    let (mut pool, store) = Pool::start(false).await;
    store.buckets().create("quiet", BucketSettings::default()).await.expect("made");
    store.close().await.expect("closed");
    drop(store);
    pool.options.events_max = 2;
    pool.options.write_wait = Duration::from_millis(50);
    pool.options.mirrored = Arc::new([Mirrored { bucket: BUCKET.into(), prefix: "seen/".into() }]);
    let store = pool.open().await;
    for key in ["seen/a", "unseen", "seen/b"] {
        put(&store, key, b"x").await;
    }
    assert!(matches!(put_if(&store, "seen/c", b"x", "e", Condition::None).await, Err(StoreError::Busy(_))));
    assert!(matches!(store.at(BUCKET, "seen/a").delete(Condition::None, None).await, Err(StoreError::Busy(_))));
    let many = store.contents(BUCKET).delete(vec!["seen/a".into()], None).await;
    assert!(matches!(many[..], [Err(StoreError::Busy(_))]));
    store.at("quiet", "x").delete(Condition::None, None).await.expect("no rule matches there");
    let events = store.events().next(1).await;
    assert_eq!(events[0].event.key, "seen/a");
    let mut waits = std::pin::pin!(put_if(&store, "seen/c", b"x", "e", Condition::None));
    assert!(poll!(waits.as_mut()).is_pending());
    store.events().done(&events);
    waits.await.expect("there is room");
    let events = waiting(&store).await;
    assert_eq!(summary(&events), [(EventKind::Put, "seen/b"), (EventKind::Put, "seen/c")]);
    assert!(events.iter().all(|event| event.event.targets.is_empty()));
}

#[tokio::test]
async fn events_wait_through_the_exchange_of_all_disks() {
    let (mut pool, store) = Pool::start_on(2, true).await;
    listen(&store, vec![rule("all", &EventKind::ALL, "")]).await;
    for n in 0..40 {
        put(&store, &format!("k{n}"), b"1").await;
    }
    // Begun at their keys' home, and committed at the home of that time.
    let mut late = Vec::new();
    for n in 0..8 {
        let mut writer = store.at(BUCKET, &format!("late{n}")).writer(None).await.expect("a writer");
        writer.write(Bytes::from_static(b"1")).await.expect("written");
        late.push(writer);
    }
    for n in 0..2 {
        let (new, name) = (formatted().await, format!("new{n}"));
        store.disks().add(named(&name, &new)).await.expect("added");
        done(&store).await;
        store.disks().drain(&format!("d{n}")).await.expect("drained");
        done(&store).await;
        pool.disks.push(new);
        for n in 0..40 {
            put(&store, &format!("k{n}"), b"2").await;
        }
    }
    for writer in late {
        writer.commit(etag("e"), Condition::None, None).await.expect("committed");
    }
    store.close().await.expect("closed");
    drop(store);
    pool.disks.drain(..2);
    for rebuilt in [false, true] {
        if rebuilt {
            pool.delete_index();
        }
        let given = pool.disks.iter().zip(["new0", "new1"]).map(|(disk, name)| named(name, disk)).collect();
        let (store, _) = pool.open_on(given).await.expect("open");
        let events = waiting(&store).await;
        assert_eq!(events.len(), 128);
        assert_eq!(events.iter().filter(|event| event.event.key.starts_with("late")).count(), 8);
        for n in 0..40 {
            let key = format!("k{n}");
            let mine: Vec<u64> =
                events.iter().filter(|e| e.event.key == key).map(|event| event.position.offset).collect();
            assert_eq!(mine.len(), 3);
            assert!(mine.is_sorted(), "{key}: {mine:?}");
        }
        store.close().await.expect("closed");
    }
}

/// One writer's changes of its key: the tag of each change in order (empty for a delete), and how
/// many were answered.
struct Written {
    tags: Vec<String>,
    answered: usize,
}

async fn write_until_it_stops(store: &Store, key: &str) -> Written {
    let mut written = Written { tags: Vec::new(), answered: 0 };
    for n in 0..200 {
        let tag = if n % 4 == 3 { String::new() } else { format!("{key}-{n}") };
        written.tags.push(tag.clone());
        let answer = match &tag[..] {
            "" => store.at(BUCKET, key).delete(Condition::None, Some(Durability::Sync)).await.map(drop),
            tag => put_if(store, key, &vec![1; 100 + n * 20], tag, Condition::None).await.map(drop),
        };
        if answer.is_err() {
            break;
        }
        written.answered = written.tags.len();
    }
    written
}

on_disks! {
    async fn after_a_crash_there_is_an_event_if_and_only_if_there_is_the_change(disks) {
        for crash_at in (3..150).step_by(7) {
            let (pool, store) = Pool::start_on(disks, false).await;
            listen(&store, vec![rule("all", &EventKind::ALL, "")]).await;
            store.close().await.expect("closed");
            drop(store);
            let left = Arc::new(AtomicI64::new(i64::MAX));
            let crashing = |(n, disk): (usize, &Arc<dyn Disk>)| {
                let disk: Arc<dyn Disk> = Arc::new(Crashing { disk: disk.clone(), left: left.clone() });
                named(&format!("d{n}"), &disk)
            };
            let (store, _) = pool.open_on(pool.disks.iter().enumerate().map(crashing).collect()).await.expect("open");
            left.store(crash_at, Ordering::SeqCst);
            let keys: Vec<String> = (0..6).map(|n| format!("k{n}")).collect();
            let written = join_all(keys.iter().map(|key| write_until_it_stops(&store, key))).await;
            let _ = store.close().await;
            drop(store);
            pool.delete_index();
            let store = pool.open().await;
            let events = waiting(&store).await;
            for (key, written) in keys.iter().zip(written) {
                let tags: Vec<&str> =
                    events.iter().filter(|e| e.event.key == *key).map(|event| &event.event.etag[..]).collect();
                assert!(tags.len() >= written.answered, "{crash_at}: {key}: an event is missing");
                assert!(written.tags.iter().zip(&tags).all(|(a, b)| a == b), "{crash_at}: {key}: {tags:?}");
                let now = store.at(BUCKET, key).info().map(|object| object.attributes.etag).unwrap_or_default();
                assert_eq!(tags.last().copied().unwrap_or_default(), now, "{crash_at}: {key}");
            }
            store.close().await.expect("closed");
        }
    }
}
