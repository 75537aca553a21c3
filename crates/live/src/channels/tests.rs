//! Joins and leaves on their way to the subscribers, over an in-memory store.

use std::collections::BTreeSet;

use super::announcements::PAUSE_MS;
use super::announcements::tests::push;
use super::*;
use crate::commands::tests::node_with;
use crate::node::Node;
use crate::partition::BACKLOG_BYTES_MAX;
use crate::protocol::message::Presence;

const SESSION: SessionId = SessionId { partition: 0, slot: 0, generation: 0 };

/// The batches that the partition receives: the users that joined, and with a minus those that
/// left.
async fn batches(node: &Node, messages: usize) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    while found.len() < messages {
        let mut events = Vec::new();
        node.partitions.inboxes()[0].take(&mut events);
        for event in events {
            let WorkerEvent::Push(push) = event else { continue };
            let name = |push: &Push| match (&push.join, &push.leave) {
                (Some(Presence { info: Some(info) }), None) => info.user.clone(),
                (None, Some(Presence { info: Some(info) })) => format!("-{}", info.user),
                other => panic!("{other:?}"),
            };
            found.push(push.pushes.iter().map(name).collect());
        }
        node.env.sleep(Duration::from_millis(1)).await;
    }
    found
}

#[tokio::test]
async fn simultaneous_joins_are_sent_in_one_batch() {
    let node = node_with(r#"{"channel": {"without_namespace": {}}}"#).await;
    let channel = node.channels.join(SESSION, "c", &node.rules.config.channel.without_namespace).expect("joined");
    for n in 1..=20 {
        node.channels.announce(&channel, Uuid::from_u128(n), push(n, true));
    }
    // A client that joined and left within the pause, and one whose join was sent.
    node.channels.announce(&channel, Uuid::from_u128(7), push(7, false));
    node.channels.announce(&channel, Uuid::from_u128(1), push(1, false));
    let joined = (2..=20).filter(|n| *n != 7).map(|n| n.to_string());
    let batch: Vec<String> = ["-7", "-1"].map(str::to_owned).into_iter().chain(joined).collect();
    assert_eq!(batches(&node, 2).await, [vec!["1".to_owned()], batch]);
    node.env.sleep(Duration::from_millis(PAUSE_MS.0 as u64)).await;
    node.channels.announce(&channel, Uuid::from_u128(30), push(30, true));
    assert_eq!(batches(&node, 1).await, [["30"]], "immediately after a pause");
}

/// A reconnect wave: many clients join, some leave, and some of those return under another
/// name.
#[tokio::test]
async fn joins_and_leaves_converge_to_the_members() {
    let node = node_with(r#"{"channel": {"without_namespace": {}}}"#).await;
    let channel = node.channels.join(SESSION, "c", &node.rules.config.channel.without_namespace).expect("joined");
    let is = |n: u128, joins| node.channels.announce(&channel, Uuid::from_u128(n), push(n, joins));
    (0..2000).for_each(|n| is(n, true));
    let mut present = BTreeSet::new();
    let follow = async |present: &mut BTreeSet<String>| {
        for message in batches(&node, 1).await {
            assert!(message.len() <= (64 << 10) / 128, "{}", message.len());
            for one in message {
                match one.strip_prefix('-') {
                    // The leave of a client whose join was never sent is sent as well.
                    Some(left) => _ = present.remove(left),
                    None => assert!(present.insert(one), "sent twice"),
                }
            }
        }
    };
    // Before all of the wave has been sent.
    follow(&mut present).await;
    follow(&mut present).await;
    assert!((2..2000).contains(&present.len()));
    for n in (0..2000).filter(|n| n % 3 == 0) {
        is(n, false);
        is(10_000 + n, true);
    }
    let joined = (0..2000).map(|n| if n % 3 == 0 { 10_000 + n } else { n }).map(|n| n.to_string());
    let expected: BTreeSet<String> = joined.collect();
    while present != expected {
        follow(&mut present).await;
    }
    let part = node.channels.by_name.part(&channel).lock();
    assert!(part["c"].announcements.is_empty());
}

#[tokio::test]
async fn a_partition_that_does_not_keep_up_gets_them_later() {
    let node = node_with(r#"{"channel": {"without_namespace": {}}}"#).await;
    let channel = node.channels.join(SESSION, "c", &node.rules.config.channel.without_namespace).expect("joined");
    let large = || Push { channel: "x".repeat(1 << 20), join: Some(Presence::default()), ..Push::default() };
    for _ in 0..BACKLOG_BYTES_MAX / (1 << 20) + 1 {
        let part = node.channels.by_name.part(&channel).lock();
        node.channels.send(&channel, &part["c"], vec![large()]);
    }
    for n in 1..=3 {
        node.channels.announce(&channel, Uuid::from_u128(n), push(n, true));
    }
    assert_eq!(node.channels.send_waiting(&channel), Some(50), "later");
    let mut events = Vec::new();
    node.partitions.inboxes()[0].take(&mut events);
    assert_eq!(events.len(), BACKLOG_BYTES_MAX / (1 << 20) + 1);
    events.iter().for_each(|event| node.partitions.inboxes()[0].done(event.weight()));
    assert_eq!(batches(&node, 1).await, [["1", "2", "3"]]);
    // A channel without subscribers has no backlog.
    let mut part = node.channels.by_name.part(&channel).lock();
    part.get_mut("c").expect("joined").subscribers.fill(0);
    assert!(node.partitions.keep_up(&part["c"].subscribers));
}
