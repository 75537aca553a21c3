//! Channels of a home with subscribers at fronts.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_cluster::{Accepted, Attachment, Channel, ChannelError, Channels, HistoryBounds, Publish, StoreTerms};
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_log::{Durability, FormatOptions, Log, Priority};
use steadfast_store::{HistoryQuery, IndexKind, Position, Publication, Store, StoreOptions};

use crate::hub::{Event, Hub, Node, TAIL_BYTES, roster, store, until};

const NODES: [&str; 3] = ["home", "one", "two"];

const BOUNDS: HistoryBounds = HistoryBounds { size: 1000, ttl_ms: 3_600_000 };

async fn node(hub: &Hub, name: &str) -> Node {
    hub.start(roster(name, &NODES, &["home"])).await
}

/// A home and two fronts, linked.
async fn cluster(hub: &Hub) -> [Node; 3] {
    let nodes = [node(hub, "home").await, node(hub, "one").await, node(hub, "two").await];
    until(|| nodes[0].is_up("one") && nodes[0].is_up("two") && nodes[1].is_up("home") && nodes[2].is_up("home")).await;
    nodes
}

fn message(text: &str, key: &str) -> Publish {
    Publish { body: text.to_owned().into(), key: key.to_owned(), permit: None }
}

fn terms(history_size: u64) -> StoreTerms {
    let (durability, priority) = (Durability::Sync, Priority::Write);
    StoreTerms { history_size, history_ttl_ms: 3_600_000, durability, priority, leaves_percent: 0 }
}

fn open(node: &Node, channel: &str) -> Channel {
    node.channels.open(channel).expect("a channel")
}

async fn submit(node: &Node, channel: &str, text: &str) -> Result<Accepted, ChannelError> {
    node.channels.submit(&open(node, channel), terms(1000), message(text, "")).await
}

async fn publish(node: &Node, channel: &str, text: &str) -> Result<u64, ChannelError> {
    submit(node, channel, text).await?.committed().await.map(|position| position.offset)
}

/// Attaches a channel, and waits for its home.
async fn attach(node: &Node, channel: &str, bounds: Option<HistoryBounds>) -> Attachment {
    let attachment = node.channels.attach(&Arc::from(channel), bounds).expect("a channel of another node");
    open(node, channel).position().await.expect("watched");
    attachment
}

fn since(offset: u64, epoch: u32) -> HistoryQuery {
    HistoryQuery { since: Some(Position { epoch, offset }), limit: 1000, reverse: false }
}

async fn sleep(ms: u64) {
    Env::tokio().sleep(Duration::from_millis(ms)).await;
}

#[tokio::test]
async fn a_publication_of_any_node_reaches_all_in_the_same_order() {
    let [home, one, two] = cluster(&Hub::default()).await;
    assert!(home.channels.attach(&Arc::from("c"), None).is_none(), "it is here");
    let _attached = (attach(&one, "c", Some(BOUNDS)).await, attach(&two, "c", Some(BOUNDS)).await);
    assert_eq!(publish(&home, "c", "1").await, Ok(1));
    assert_eq!(publish(&one, "c", "2").await, Ok(2));
    assert!(one.sessions.payloads("c").contains(&"2".to_owned()), "a session reads its own writes");
    let mut accepted = Vec::new();
    for n in 3..=100 {
        accepted.push(submit(&two, "c", &n.to_string()).await.expect("accepted"));
    }
    for (n, one) in accepted.into_iter().enumerate() {
        assert_eq!(one.committed().await.map(|position| position.offset), Ok(n as u64 + 3));
    }
    let expected: Vec<String> = (1..=100).map(|n| n.to_string()).collect();
    for node in [&home, &one, &two] {
        until(|| node.sessions.payloads("c").len() == 100).await;
        assert_eq!(node.sessions.payloads("c"), expected);
    }
    assert_eq!(home.channels.status().expect("a cluster").publications_sent, 200, "one frame a node");
    let history = open(&one, "c").history_within(since(0, 0), usize::MAX).await.expect("read");
    assert!(!history.complete, "another epoch");
    let epoch = history.position.epoch;
    let history = open(&one, "c").history_within(since(97, epoch), usize::MAX).await.expect("read");
    assert_eq!((history.publications.len(), history.complete), (3, true));
}

#[tokio::test]
async fn a_repetition_with_a_key_is_known_over_a_restart() {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(64 << 20));
    let (env, options) = (Env::tokio(), FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() });
    Log::format(&disk, &env, &options).await.expect("formats");
    let kept = IndexKind::memory();
    for (turn, index) in [kept.clone(), kept.clone(), IndexKind::memory()].into_iter().enumerate() {
        let (store, _) = Store::open(disk.clone(), index, env.clone(), StoreOptions::default()).await.expect("opens");
        let channels = Channels::alone(store.clone(), env.clone());
        let channel = channels.open("c").expect("a channel");
        let publish = async |key: &str| {
            let accepted = channels.submit(&channel, terms(300), message("x", key)).await.expect("accepted");
            accepted.committed().await.expect("published").offset
        };
        // Far behind the newest one, and among many without a key.
        if turn == 0 {
            assert_eq!((publish("first").await, publish("second").await), (1, 2));
            for _ in 0..200 {
                publish("").await;
            }
        }
        let turn = turn as u64;
        assert_eq!(publish(&format!("of turn {turn}")).await, 203 + turn);
        for _ in 0..2 {
            assert_eq!((publish("second").await, publish("first").await), (2, 1), "turn {turn}");
        }
        assert_eq!(publish("of turn 0").await, 203);
        store.close().await.expect("closed");
    }
    let (store, _) = Store::open(disk, kept, env.clone(), StoreOptions::default()).await.expect("opens");
    let channels = Channels::alone(store, env);
    channels.clear("c").await.expect("cleared");
    let channel = channels.open("c").expect("a channel");
    let accepted = channels.submit(&channel, terms(300), message("x", "second")).await.expect("accepted");
    assert_eq!(accepted.committed().await.expect("published").offset, 206, "a key ends with its publication");
}

#[tokio::test]
async fn what_is_published_while_the_link_is_down_arrives_afterwards() {
    let hub = Hub::default();
    let [home, one, two] = cluster(&hub).await;
    let _attached = attach(&one, "c", Some(BOUNDS)).await;
    publish(&home, "c", "1").await.expect("published");
    until(|| one.sessions.payloads("c") == ["1"]).await;
    hub.block("home", "one");
    hub.block("one", "home");
    publish(&two, "c", "2").await.expect("published");
    until(|| !one.is_up("home")).await;
    publish(&home, "c", "3").await.expect("published");
    assert_eq!(publish(&one, "c", "4").await, Err(ChannelError::HomeUnreachable));
    let epoch = open(&home, "c").position().await.expect("local").epoch;
    let known = open(&one, "c").history_within(since(0, epoch), usize::MAX).await.expect("from memory");
    assert_eq!((known.publications.len(), known.position.offset), (1, 1));
    let ahead = open(&one, "c").history_within(since(3, epoch), usize::MAX).await;
    assert_eq!(ahead, Err(ChannelError::HomeUnreachable), "only the home knows");
    hub.heal();
    until(|| one.sessions.payloads("c") == ["1", "2", "3"]).await;
    publish(&home, "c", "4").await.expect("published");
    until(|| one.sessions.payloads("c") == ["1", "2", "3", "4"]).await;
    let status = one.channels.status().expect("a cluster");
    assert_eq!((status.resets, status.gaps), (0, 0));
}

#[tokio::test]
async fn a_publication_in_flight_has_an_unknown_outcome_when_the_link_is_lost() {
    let hub = Hub::default();
    let [home, one, _two] = cluster(&hub).await;
    hub.block("home", "one");
    let accepted = submit(&one, "c", "1").await.expect("sent");
    until(|| !one.is_up("home")).await;
    assert_eq!(accepted.committed().await, Err(ChannelError::OutcomeUnknown));
    assert_eq!(open(&home, "c").position().await.expect("local").offset, 1, "it was stored");
}

#[tokio::test]
async fn sessions_begin_anew_when_the_home_cannot_continue() {
    let hub = Hub::default();
    let [home, one, _two] = cluster(&hub).await;
    let _attached = (attach(&one, "c", Some(BOUNDS)).await, attach(&one, "trimmed", Some(BOUNDS)).await);
    for n in 1..=3 {
        publish(&home, "c", &n.to_string()).await.expect("published");
    }
    until(|| one.sessions.payloads("c").len() == 3).await;
    hub.block("home", "one");
    until(|| !one.is_up("home") && !home.is_up("one")).await;
    for n in 1..=5 {
        let channel = open(&home, "trimmed");
        home.channels.submit(&channel, terms(2), message(&n.to_string(), "")).await.expect("published");
    }
    // A home that has lost its disks: another epoch.
    home.stop();
    hub.heal();
    let new = hub.start_with(roster("home", &NODES, &["home"]), "secret", store().await).await;
    until(|| one.is_up("home")).await;
    let position = open(&new, "c").position().await.expect("local");
    until(|| one.sessions.events("c").len() == 4).await;
    assert_eq!(one.sessions.events("c")[3], Event::Reset(position));
    publish(&new, "c", "new").await.expect("published");
    until(|| one.sessions.events("c").len() == 5).await;
    assert_eq!(one.sessions.events("c")[4], Event::Published(position.epoch, 1, "new".into()));
}

#[tokio::test]
async fn a_history_older_than_the_tail_is_read_although_no_tail_fits_into_memory() {
    let [home, one, _two] = cluster(&Hub::default()).await;
    let text = "x".repeat(TAIL_BYTES as usize / 200);
    for _ in 0..300 {
        let accepted = submit(&home, "c", &text).await.expect("accepted");
        accepted.committed().await.expect("committed");
    }
    let _attached = attach(&one, "c", Some(BOUNDS)).await;
    let epoch = open(&home, "c").position().await.expect("local").epoch;
    let history = open(&one, "c").history_within(since(0, epoch), usize::MAX).await.expect("read");
    assert_eq!((history.publications.len(), history.complete), (300, true));
}

#[tokio::test]
async fn a_front_that_missed_more_than_the_history_begins_anew() {
    let hub = Hub::default();
    let [home, one, _two] = cluster(&hub).await;
    let _attached = attach(&one, "c", Some(BOUNDS)).await;
    hub.block("home", "one");
    until(|| !one.is_up("home") && !home.is_up("one")).await;
    for n in 1..=5 {
        let (channel, text) = (open(&home, "c"), n.to_string());
        let accepted = home.channels.submit(&channel, terms(2), message(&text, "")).await.expect("accepted");
        accepted.committed().await.expect("committed");
    }
    let position = open(&home, "c").position().await.expect("local");
    assert_eq!(position.offset, 5);
    hub.heal();
    until(|| one.sessions.events("c") == [Event::Reset(position)]).await;
}

#[tokio::test]
async fn equal_recoveries_share_one_request() {
    let [home, one, _two] = cluster(&Hub::default()).await;
    for n in 1..=50 {
        publish(&home, "c", &n.to_string()).await.expect("published");
    }
    let _attached = attach(&one, "c", Some(BOUNDS)).await;
    let channel = open(&one, "c");
    let top = channel.position().await.expect("watched");
    assert_eq!(top.offset, 50);
    let recoveries = (0..1000).map(|n| {
        let channel = channel.clone();
        async move {
            let from = 50 - n % 50;
            let history = channel.history_within(since(from, top.epoch), usize::MAX).await.expect("read");
            assert_eq!((history.publications.len() as u64, history.complete, history.position), (50 - from, true, top));
        }
    });
    futures::future::join_all(recoveries).await;
    assert_eq!(one.channels.status().expect("a cluster").histories_requested, 1);
    // What precedes the kept publications, or is ahead of them, is for the home to say.
    for (query, complete, found) in [(since(51, top.epoch), false, 0), (since(0, 7), false, 50)] {
        let history = channel.history_within(query, usize::MAX).await.expect("read");
        assert_eq!((history.complete, history.publications.len()), (complete, found));
    }
    let reverse = HistoryQuery { since: None, limit: 2, reverse: true };
    let history = channel.history_within(reverse, usize::MAX).await.expect("read");
    assert_eq!(history.publications.iter().map(|one| one.offset).collect::<Vec<_>>(), [50, 49]);
    assert_eq!(home.channels.status().expect("a cluster").histories_read, 4);
}

#[tokio::test]
async fn publications_without_history_reach_the_subscribers_only() {
    let hub = Hub::default();
    let [home, one, two] = cluster(&hub).await;
    let _attached = attach(&one, "c", None).await;
    two.channels.deliver("c", message("1", "")).await.expect("sent").committed().await.expect("delivered");
    home.channels.deliver("c", message("2", "")).await.expect("sent").committed().await.expect("delivered");
    until(|| one.sessions.payloads("c").len() == 2).await;
    assert_eq!(one.sessions.events("c")[0], Event::Published(0, 0, "1".into()));
    assert_eq!(home.sessions.payloads("c"), ["1", "2"]);
    assert!(two.sessions.payloads("c").is_empty());
    hub.block("one", "home");
    until(|| !one.is_up("home")).await;
    hub.heal();
    until(|| one.is_up("home")).await;
    open(&one, "c").position().await.expect("watched");
    home.channels.deliver("c", message("3", "")).await.expect("sent");
    until(|| one.sessions.payloads("c") == ["1", "2", "3"]).await;
}

#[tokio::test]
async fn publications_without_history_have_one_order_at_all_nodes() {
    let [home, one, _two] = cluster(&Hub::default()).await;
    let _attached = attach(&one, "c", None).await;
    let here = Mutex::new(Vec::new());
    let publish = &|publisher: usize| {
        for n in 0..1000 {
            let text = format!("{publisher}.{n}");
            let publication = || Publication { offset: 0, time_ms: 0, body: text.clone().into() };
            home.channels.deliver_unstored("c", publication, || here.lock().push(text.clone()));
        }
    };
    std::thread::scope(|threads| (0..4).for_each(|publisher| drop(threads.spawn(move || publish(publisher)))));
    until(|| one.sessions.payloads("c").len() == 4000).await;
    assert!(one.sessions.payloads("c") == *here.lock(), "the orders differ");
}

#[tokio::test]
async fn a_key_publishes_once_whatever_the_node() {
    let [home, one, two] = cluster(&Hub::default()).await;
    let attempt = async |node: &Node| {
        let accepted = node.channels.submit(&open(node, "c"), terms(10), message("x", "key")).await?;
        accepted.resolved().await.map(|position| position.offset)
    };
    let results = futures::join!(attempt(&one), attempt(&two), attempt(&home), attempt(&one));
    assert_eq!([results.0, results.1, results.2, results.3], [Ok(1); 4]);
    assert_eq!(open(&home, "c").position().await.expect("local").offset, 1);
}

#[tokio::test]
async fn a_removed_history_is_removed_everywhere() {
    let [home, one, two] = cluster(&Hub::default()).await;
    let _attached = (attach(&one, "c", Some(BOUNDS)).await, attach(&two, "c", Some(BOUNDS)).await);
    publish(&home, "c", "1").await.expect("published");
    until(|| one.sessions.payloads("c").len() == 1).await;
    let position = open(&one, "c").position().await.expect("watched");
    two.channels.clear("c").await.expect("removed");
    for node in [&home, &one, &two] {
        let channel = open(node, "c");
        let gone = async || {
            let history = channel.history_within(since(0, position.epoch), usize::MAX).await.expect("read");
            history.publications.is_empty() && history.position == position && !history.complete
        };
        while !gone().await {
            sleep(1).await;
        }
    }
}

#[tokio::test]
async fn a_history_removed_while_the_link_is_down_does_not_come_back() {
    let hub = Hub::default();
    let [home, one, _two] = cluster(&hub).await;
    let _attached = attach(&one, "c", Some(BOUNDS)).await;
    publish(&home, "c", "1").await.expect("published");
    until(|| one.sessions.payloads("c") == ["1"]).await;
    hub.block("home", "one");
    until(|| !one.is_up("home") && !home.is_up("one")).await;
    home.channels.clear("c").await.expect("removed");
    hub.heal();
    until(|| one.is_up("home")).await;
    let channel = open(&one, "c");
    let position = channel.position().await.expect("watched");
    let history = channel.history_within(since(0, position.epoch), usize::MAX).await.expect("read");
    assert_eq!((history.publications.len(), history.complete, position.offset), (0, false, 1));
}

#[tokio::test]
async fn a_busy_front_stops_reading_and_misses_nothing() {
    let hub = Hub::default();
    let [home, one, two] = cluster(&hub).await;
    let _attached = (attach(&one, "c", Some(BOUNDS)).await, attach(&two, "c", Some(BOUNDS)).await);
    one.sessions.busy.send_replace(true);
    let body = "x".repeat(100_000);
    for _ in 0..60 {
        publish(&home, "c", &body).await.expect("a slow front does not stop publishers");
    }
    until(|| two.sessions.payloads("c").len() == 60).await;
    until(|| home.link("one").error.is_some_and(|why| why.contains("outbox is full"))).await;
    one.sessions.busy.send_replace(false);
    until(|| one.sessions.payloads("c").len() == 60).await;
    assert_eq!(one.channels.status().expect("a cluster").resets, 0);
    assert!(one.channels.status().expect("a cluster").tail_bytes <= TAIL_BYTES.max(200_000));
}

#[tokio::test]
async fn a_home_that_does_not_read_refuses_publications_and_keeps_the_link() {
    let [home, one, _two] = cluster(&Hub::default()).await;
    home.sessions.busy.send_replace(true);
    let body = "x".repeat(100_000);
    let mut accepted = Vec::new();
    let refused = loop {
        match submit(&one, "c", &body).await {
            Ok(publication) => accepted.push(publication),
            Err(error) => break error,
        }
        assert!(accepted.len() < 100, "more than the outbox");
    };
    assert_eq!(refused, ChannelError::Busy);
    assert!(one.is_up("home"));
    home.sessions.busy.send_replace(false);
    for publication in accepted {
        publication.committed().await.expect("committed");
    }
    assert_eq!(one.link("home").established, 1);
}

#[tokio::test]
async fn a_channel_without_subscribers_is_unwatched_later() {
    let [home, one, _two] = cluster(&Hub::default()).await;
    let attached = attach(&one, "c", Some(BOUNDS)).await;
    drop(attached);
    sleep(100).await;
    // It is still watched, so a subscriber that returns is served at once.
    let watches = || home.channels.status().expect("a cluster").watches;
    assert_eq!(watches(), 1);
    let returned = attach(&one, "c", Some(BOUNDS)).await;
    publish(&home, "c", "1").await.expect("published");
    until(|| one.sessions.payloads("c") == ["1"]).await;
    drop(returned);
    let env = Env::tokio();
    let begin = env.now();
    while watches() > 0 {
        assert!(env.now() - begin < Duration::from_secs(20), "it is watched for ever");
        sleep(50).await;
    }
    assert!(env.now() - begin > Duration::from_secs(9), "{:?}", env.now() - begin);
    assert_eq!(one.channels.status().expect("a cluster").watched, 0);
}

#[tokio::test]
async fn many_channels_are_watched_again_in_batches() {
    let hub = Hub::default();
    let [home, one, _two] = cluster(&hub).await;
    let names: Vec<Arc<str>> = (0..5000).map(|n| format!("c{n}").into()).collect();
    let _attached: Vec<_> = names.iter().map(|name| one.channels.attach(name, Some(BOUNDS))).collect();
    let watches = || home.channels.status().expect("a cluster").watches;
    until(|| watches() == 5000).await;
    hub.block("one", "home");
    until(|| !one.is_up("home") && watches() == 0).await;
    for name in &names[..50] {
        publish(&home, name, "1").await.expect("published");
    }
    hub.heal();
    until(|| watches() == 5000).await;
    for name in &names[..50] {
        until(|| one.sessions.payloads(name) == ["1"]).await;
    }
}
