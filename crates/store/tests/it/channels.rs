//! Channels: order, durability, retention, and the reporting of gaps.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Pool, put};
use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_log::{Durability, Priority};
use steadfast_store::{
    ChannelHandle, ChannelSink, History, HistoryQuery, NewPublication, Position, Publication, Published, Store,
    StoreError,
};

pub(crate) const ALL: HistoryQuery = HistoryQuery { since: None, limit: usize::MAX, reverse: false };

pub(crate) fn new(text: &str) -> NewPublication {
    NewPublication {
        body: Bytes::copy_from_slice(text.as_bytes()),
        history_size: 1000,
        history_ttl_ms: 3_600_000,
        durability: Durability::Sync,
        priority: Priority::Write,
        key: None,
    }
}

pub(crate) async fn publish(channel: &ChannelHandle, text: &str) -> Published {
    channel.publish(new(text)).await.expect("published")
}

pub(crate) async fn texts(channel: &ChannelHandle, query: HistoryQuery) -> (Vec<String>, History) {
    let history = channel.history(query).await.expect("read");
    let text = |p: &Arc<Publication>| String::from_utf8(p.body.to_vec()).expect("text");
    (history.publications.iter().map(text).collect(), history)
}

pub(crate) fn since(position: Position) -> HistoryQuery {
    HistoryQuery { since: Some(position), ..ALL }
}

pub(crate) async fn reopened(pool: &Pool, store: Store, rebuilt: bool) -> Store {
    store.close().await.expect("closed");
    drop(store);
    if rebuilt {
        pool.delete_index();
    }
    pool.open().await
}

/// The store after a crash without losses; the store cannot know that there were none.
async fn crashed(pool: &mut Pool, store: Store) -> Store {
    pool.crash(store);
    pool.open().await
}

on_disks! {
    async fn positions_and_histories_survive_a_restart_and_a_rebuild(disks) {
        for lsm in [false, true] {
            let (pool, mut store) = Pool::start_on(disks, lsm).await;
            let mut at = Position::default();
            for round in 0..3u64 {
                for name in ["a", "a\0", "b"] {
                    let channel = store.channel(name).expect("a channel");
                    let before = channel.position().expect("there");
                    assert_eq!(before.offset, round * 2);
                    for i in 1..=2 {
                        let published = publish(&channel, &format!("{name} {round} {i}")).await;
                        assert_eq!(published.position, Position { offset: before.offset + i, ..before });
                        assert!(published.durable);
                    }
                    let (missed, history) = texts(&channel, since(before)).await;
                    assert_eq!(missed, [format!("{name} {round} 1"), format!("{name} {round} 2")]);
                    assert!(history.complete);
                    at = history.position;
                }
                store = reopened(&pool, store, round == 1).await;
            }
            let channel = store.channel("b").expect("a channel");
            assert_eq!(channel.position().expect("there"), at, "the same epoch");
            let (all, history) = texts(&channel, ALL).await;
            assert_eq!((all.len(), history.complete), (6, true));
            let (last, _) = texts(&channel, HistoryQuery { limit: 2, reverse: true, ..ALL }).await;
            assert_eq!(last, ["b 2 2", "b 2 1"]);
            let page = HistoryQuery { since: Some(Position { offset: 2, ..at }), limit: 2, reverse: false };
            assert_eq!(texts(&channel, page).await.0, ["b 1 1", "b 1 2"]);
            let back = HistoryQuery { since: Some(Position { offset: 3, ..at }), limit: 9, reverse: true };
            assert_eq!(texts(&channel, back).await.0, ["b 0 2", "b 0 1"]);
            let foreign = since(Position { epoch: at.epoch ^ 1, offset: 2 });
            assert!(!texts(&channel, foreign).await.1.complete);
            assert!(!texts(&channel, since(Position { offset: 7, ..at })).await.1.complete, "never published");
            store.close().await.expect("closed");
        }
    }
}

#[tokio::test]
async fn a_position_before_the_first_publication_resumes_after_it() {
    let (pool, store) = Pool::start(true).await;
    let before = store.channel("c").expect("a channel").position().expect("there");
    let store = reopened(&pool, store, false).await;
    let channel = store.channel("c").expect("a channel");
    publish(&channel, "first").await;
    let (missed, history) = texts(&channel, since(before)).await;
    assert_eq!((missed, history.complete), (vec!["first".to_owned()], true));
    assert_ne!(before.epoch, store.channel("d").expect("a channel").position().expect("there").epoch);
}

#[tokio::test]
async fn publications_beyond_size_or_ttl_are_reported_as_a_gap() {
    for rebuilt in [false, true] {
        let (pool, mut store) = Pool::start(true).await;
        let mut channel = store.channel("c").expect("a channel");
        for i in 1..=400 {
            channel.publish(NewPublication { history_size: 300, ..new(&i.to_string()) }).await.expect("published");
        }
        for reopen in [false, true] {
            if reopen {
                drop(channel);
                store = reopened(&pool, store, rebuilt).await;
                channel = store.channel("c").expect("a channel");
            }
            let at = channel.position().expect("there");
            let (kept, _) = texts(&channel, ALL).await;
            assert_eq!((kept.len(), &kept[0][..], &kept[299][..]), (300, "101", "400"));
            assert!(texts(&channel, since(Position { offset: 100, ..at })).await.1.complete);
            let (kept, history) = texts(&channel, since(Position { offset: 99, ..at })).await;
            assert_eq!((kept.len(), history.complete), (300, false), "one is missing");
        }
        let at = channel.position().expect("there");
        channel.publish(NewPublication { history_ttl_ms: 0, ..new("over at once") }).await.expect("published");
        let (kept, history) = texts(&channel, since(at)).await;
        assert_eq!((kept.len(), history.complete, history.position.offset), (0, false, 401));
        publish(&channel, "stays").await;
        assert_eq!(texts(&channel, since(Position { offset: 401, ..at })).await.0, ["stays"]);
    }
}

on_disks! {
    async fn what_channels_keep_in_memory_is_bounded_over_all_of_them(disks) {
        const CHANNELS: usize = 40;
        let mut pool = Pool::of(disks, true).await;
        pool.options.channel_tail_bytes = if disks == 1 { 64 << 10 } else { 1 << 20 };
        let size = pool.options.channel_tail_bytes as usize / 16;
        let limit = pool.options.channel_tail_bytes / disks as u64 * disks as u64;
        let store = pool.open().await;
        let body = |channel: usize, n: u64| format!("{channel} {n} {}", "x".repeat(size));
        let channels: Vec<_> = (0..CHANNELS).map(|i| store.channel(&format!("c{i}")).expect("a channel")).collect();
        for n in 1..=6 {
            for (i, channel) in channels.iter().enumerate() {
                publish(channel, &body(i, n)).await;
                let tails = store.status().channel_tails;
                assert!(tails.used <= limit && tails.limit == limit, "{tails:?}");
            }
            if n < 5 {
                continue;
            }
            assert!(store.status().channel_tails.evicted > 0);
            for (i, channel) in channels.iter().enumerate() {
                let at = channel.position().expect("there");
                assert_eq!(at.offset, n);
                for from in 0..=n {
                    let (missed, history) = texts(channel, since(Position { offset: from, ..at })).await;
                    let expected: Vec<_> = (from + 1..=n).map(|n| body(i, n)).collect();
                    assert!(history.complete && missed == expected, "channel {i} from {from} of {n}");
                }
                let last = texts(channel, HistoryQuery { limit: 2, reverse: true, ..ALL }).await.0;
                let expected: Vec<_> = (1..=n).rev().take(2).map(|n| body(i, n)).collect();
                assert!(last == expected, "channel {i} of {n}");
            }
        }
        // A channel without publications in memory is trimmed and cleared like any other.
        for (i, channel) in channels.iter().enumerate() {
            channel.trim(4).await.expect("trimmed");
            assert!(texts(channel, ALL).await.0 == [body(i, 5), body(i, 6)]);
            channel.clear().await.expect("cleared");
            assert!(texts(channel, ALL).await.0.is_empty());
        }
        assert_eq!(store.status().channel_tails.used, 0);
        store.close().await.expect("closed");
    }
}

#[tokio::test]
async fn what_a_history_brings_is_bounded_in_bytes() {
    for in_memory in [true, false] {
        let mut pool = Pool::of(1, true).await;
        pool.options.channel_tail_bytes = if in_memory { 1 << 20 } else { 0 };
        let store = pool.open().await;
        let channel = store.channel("c").expect("a channel");
        for i in 0..40 {
            publish(&channel, &format!("{i:0100}")).await;
        }
        let at = channel.position().expect("there");
        for (bytes_max, count) in [(0, 0), (1, 1), (100, 1), (101, 2), (1000, 10), (usize::MAX, 35)] {
            let within = async |query| {
                let history = channel.history_within(query, bytes_max).await.expect("read");
                (history.publications.iter().map(|p| p.offset).collect::<Vec<_>>(), history.complete)
            };
            let forward = within(since(Position { offset: 5, ..at })).await;
            assert_eq!(forward, ((6..6 + count).collect(), true), "{in_memory} {bytes_max}");
            let back = HistoryQuery { since: Some(Position { offset: 36, ..at }), reverse: true, ..ALL };
            assert_eq!(within(back).await, ((36 - count..36).rev().collect(), true), "{in_memory} {bytes_max}");
        }
    }
}

#[tokio::test]
async fn a_cleared_channel_continues_from_its_position() {
    let (pool, mut store) = Pool::start(true).await;
    for rebuilt in [false, true] {
        let channel = store.channel("c").expect("a channel");
        channel.clear().await.expect("cleared");
        publish(&channel, "one").await;
        publish(&channel, "two").await;
        let before = channel.position().expect("there");
        channel.clear().await.expect("cleared");
        for reopen in [false, true] {
            if reopen {
                store = reopened(&pool, store, rebuilt).await;
            }
            let channel = store.channel("c").expect("a channel");
            let (kept, history) = texts(&channel, ALL).await;
            assert_eq!((kept.len(), history.position), (0, before));
            assert!(texts(&channel, since(before)).await.1.complete, "no publication follows it");
            let missed = since(Position { offset: before.offset - 1, ..before });
            assert!(!texts(&channel, missed).await.1.complete);
        }
    }
    let channel = store.channel("c").expect("a channel");
    assert_eq!(publish(&channel, "three").await.position.offset, 5);
    assert_eq!(texts(&channel, ALL).await.0, ["three"]);
}

/// Records the publications that it receives.
#[derive(Default)]
pub(crate) struct RecordingSink(pub(crate) Mutex<Vec<(String, u64, String)>>);

impl ChannelSink for RecordingSink {
    fn published(&self, channel: &Arc<str>, _epoch: u32, publication: &Arc<Publication>) {
        let text = String::from_utf8(publication.body.to_vec()).expect("text");
        self.0.lock().push((channel.to_string(), publication.offset, text));
    }
}

on_disks! {
    async fn the_sink_gets_publications_in_order_and_only_kept_ones(disks) {
        let (_pool, store) = Pool::start_on(disks, false).await;
        let received = Arc::new(RecordingSink::default());
        let sink: Arc<dyn ChannelSink> = received.clone();
        store.channels().set_sink(&sink);
        let publishers = (0..8).map(|publisher| {
            let store = store.clone();
            async move {
                for i in 0..50 {
                    let channel = store.channel(&format!("c{}", i % 3)).expect("a channel");
                    let durability = if i % 5 == 0 { Durability::Async } else { Durability::Sync };
                    let new = NewPublication { durability, ..new(&format!("{publisher} {i}")) };
                    channel.publish(new).await.expect("published");
                }
            }
        });
        futures::future::join_all(publishers).await;
        for name in ["c0", "c1", "c2"] {
            let channel = store.channel(name).expect("a channel");
            let (kept, _) = texts(&channel, ALL).await;
            let received: Vec<_> = received.0.lock().iter().filter(|t| t.0 == name).cloned().collect();
            assert!(received.iter().map(|t| t.1).eq(1..=received.len() as u64), "in order, each once");
            assert!(received.iter().map(|t| &t.2).eq(&kept));
        }
        assert_eq!(received.0.lock().len(), 400);
    }
}

#[tokio::test]
async fn a_crash_after_asynchronous_publications_is_another_epoch() {
    let (mut pool, store) = Pool::start(true).await;
    let channel = store.channel("c").expect("a channel");
    let first = channel.publish(NewPublication { durability: Durability::Async, ..new("1") }).await.expect("published");
    assert!(first.durable, "the record that says so is flushed");
    publish(&channel, "2").await;
    let before = channel.position().expect("there");
    drop(channel);
    let store = crashed(&mut pool, store).await;
    let channel = store.channel("c").expect("a channel");
    assert!(!texts(&channel, since(before)).await.1.complete, "later ones may have been lost");
    assert_eq!(texts(&channel, ALL).await.0, ["1", "2"]);
    let now = publish(&channel, "3").await.position;
    assert_eq!((now.offset, now.epoch), (3, channel.position().expect("there").epoch));
    // No asynchronous publication since: the epoch stays.
    drop(channel);
    let store = reopened(&pool, store, true).await;
    assert_eq!(store.channel("c").expect("a channel").position().expect("there"), now);
}

#[tokio::test]
async fn a_clean_restart_keeps_the_epoch_and_no_other_does() {
    for lsm in [false, true] {
        let (mut pool, mut store) = Pool::start(lsm).await;
        let epoch = |store: &Store| store.channel("c").expect("a channel").position().expect("there").epoch;
        let mut at = epoch(&store);
        for round in 0..4 {
            // Round 2 publishes nothing: known positions stay valid.
            if round != 2 {
                let channel = store.channel("c").expect("a channel");
                for text in ["1", "2"] {
                    let new = NewPublication { durability: Durability::Async, ..new(text) };
                    assert_eq!(channel.publish(new).await.expect("published").position.epoch, at);
                }
            }
            let before = store.channel("c").expect("a channel").position().expect("there");
            store = reopened(&pool, store, false).await;
            let channel = store.channel("c").expect("a channel");
            assert_eq!(channel.position().expect("there"), before, "round {round}");
            assert!(texts(&channel, since(before)).await.1.complete, "nothing is lost");
            if round == 1 {
                drop(channel);
                store = crashed(&mut pool, store).await;
                assert_ne!(epoch(&store), at, "what the run before has said does not count for another");
                at = epoch(&store);
            }
        }
        // Published and not closed: the epoch changes too.
        let channel = store.channel("c").expect("a channel");
        channel.publish(NewPublication { durability: Durability::Async, ..new("9") }).await.expect("published");
        drop(channel);
        store = crashed(&mut pool, store).await;
        assert_ne!(epoch(&store), at);
        let at = epoch(&store);
        store = reopened(&pool, store, false).await;
        assert_eq!(epoch(&store), at, "and stays so over clean restarts");
        store = reopened(&pool, store, true).await;
        assert_ne!(epoch(&store), at, "without the index, nothing says that the stop was clean");
    }
}

#[tokio::test]
async fn a_replay_ends_in_the_epoch_of_the_index() {
    for lsm in [false, true] {
        let (pool, store) = Pool::start(lsm).await;
        let channel = store.channel("c").expect("a channel");
        for text in ["1", "2"] {
            let new = NewPublication { durability: Durability::Async, ..new(text) };
            channel.publish(new).await.expect("published");
        }
        let before = channel.position().expect("there");
        drop(channel);
        // The index is empty: the channel is rebuilt from the records.
        let store = reopened(&pool, store, true).await;
        let channel = store.channel("c").expect("a channel");
        assert_ne!(channel.position().expect("there").epoch, before.epoch, "later ones may have been lost");
        assert!(!texts(&channel, since(before)).await.1.complete);
    }
}

#[tokio::test]
async fn compaction_does_not_bring_an_old_epoch_back() {
    let (mut pool, store) = Pool::start(true).await;
    let new_async = |text: &str| NewPublication { durability: Durability::Async, ..new(text) };
    let before = store.channel("c").expect("a channel").publish(new_async("1")).await.expect("published").position;
    store.close().await.expect("closed");
    drop(store);
    pool.delete_index();
    pool.options.log.compaction.interval = Duration::from_millis(20);
    pool.options.checkpoint_log_bytes = 1 << 20;
    let store = pool.open().await;
    let channel = store.channel("c").expect("a channel");
    let now = channel.position().expect("there");
    assert_ne!(now.epoch, before.epoch);
    let (other, body) = (store.channel("other").expect("a channel"), "x".repeat(50_000));
    let status = || store.status().log.compaction;
    while status().recycled < 10 || status().records_moved == 0 {
        other.publish(NewPublication { history_size: 10, ..new(&body) }).await.expect("published");
    }
    assert_eq!(channel.position().expect("there"), now);
    let next = channel.publish(new_async("2")).await.expect("published").position;
    assert_eq!(next, Position { offset: now.offset + 1, ..now });
    assert!(!texts(&channel, since(before)).await.1.complete);
}

#[tokio::test]
async fn a_gap_is_always_reported() {
    let (pool, store) = Pool::start(true).await;
    let channel = store.channel("c").expect("a channel");
    let before = channel.position().expect("there");
    publish(&channel, "1").await;
    // As after two changes of the configuration.
    channel.publish(NewPublication { history_ttl_ms: 300, ..new("2") }).await.expect("published");
    publish(&channel, "3").await;
    drop(channel);
    let store = reopened(&pool, store, false).await;
    steadfast_flow::Env::tokio().sleep(Duration::from_millis(310)).await;
    let channel = store.channel("c").expect("a channel");
    assert!(!texts(&channel, since(before)).await.1.complete, "the second has expired");
    for (reverse, kept) in [(false, ["1", "3"]), (true, ["3", "1"])] {
        let two = HistoryQuery { limit: 2, reverse, ..ALL };
        assert_eq!(texts(&channel, two).await.0, kept, "another takes its place");
    }
    let at = Position { offset: 2, ..before };
    assert_eq!(
        (texts(&channel, since(at)).await.0, texts(&channel, since(at)).await.1.complete),
        (vec!["3".to_owned()], true)
    );
}

#[tokio::test]
async fn space_of_expired_publications_is_freed() {
    let (mut pool, store) = Pool::start(true).await;
    store.close().await.expect("closed");
    drop(store);
    pool.options.log.compaction.interval = Duration::from_millis(20);
    pool.options.checkpoint_log_bytes = 1 << 20;
    let store = pool.open().await;
    let channel = store.channel("c").expect("a channel");
    let body = "x".repeat(50_000);
    put(&store, "an object beside it", &[1; 100_000]).await;
    while store.status().log.compaction.recycled < 10 {
        channel.publish(NewPublication { history_size: 10, ..new(&body) }).await.expect("published");
    }
    assert_eq!(texts(&channel, ALL).await.0.len(), 10);
    let at = channel.position().expect("there");
    drop(channel);
    let store = reopened(&pool, store, true).await;
    let channel = store.channel("c").expect("a channel");
    assert_eq!(channel.position().expect("there"), at);
    assert_eq!(texts(&channel, ALL).await.0.len(), 10);
}

#[tokio::test]
async fn a_name_has_a_bound() {
    let (_pool, store) = Pool::start(false).await;
    for name in [String::new(), "x".repeat(256)] {
        assert!(matches!(store.channel(&name), Err(StoreError::TooLarge(_))));
    }
    assert!(store.channel(&"x".repeat(255)).is_ok());
}
