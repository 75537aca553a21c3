//! Joins and leaves of a channel, sent to its subscribers: immediately while they are rare,
//! otherwise in batches.
//!
//! When N sessions return to a channel, sending each join to each subscriber takes N times N
//! messages. So a pause follows each batch, longer with more subscribers, and one message carries
//! the joins and leaves of the pause. A join and a leave of one client within a pause become the
//! leave alone, since presence may have shown the client in between. The bytes of a batch are
//! bounded, and the rest waits for the next batch. Leaves whose joins were never sent are bounded
//! too. A subscriber that follows joins and leaves converges to the presence of the channel.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::publish::BACKLOG_BYTES_MAX;
use super::{LiveChannel, Node};
use crate::outgoing::{ChannelPush, bytes_of};
use crate::partition::WorkerEvent;
use crate::protocol::message::Push;

/// Pause between batches: one millisecond for each `SUBSCRIBERS_PER_MS` subscribers, within
/// `PAUSE_MS`, milliseconds.
const SUBSCRIBERS_PER_MS: usize = 20;
const PAUSE_MS: (usize, usize) = (50, 1000);

/// Bytes of a batch for all subscribers together, and its bounds for each subscriber.
const BATCH_BYTES: usize = 16 << 20;
const MESSAGE_BYTES: (usize, usize) = (4 << 10, 64 << 10);

fn pause_ms(subscribers: usize) -> u64 {
    (subscribers / SUBSCRIBERS_PER_MS).clamp(PAUSE_MS.0, PAUSE_MS.1) as u64
}

fn message_bytes_max(subscribers: usize) -> usize {
    (BATCH_BYTES / subscribers.max(1)).clamp(MESSAGE_BYTES.0, MESSAGE_BYTES.1)
}

/// Bytes of waiting leaves whose joins were never sent. Beyond the bound, the join and the leave
/// are both dropped.
const UNANNOUNCED_LEAVES_BYTES: usize = 1 << 20;

/// The joins and leaves of a channel that wait.
#[derive(Default)]
pub(super) struct Announcements {
    /// When the next batch may be sent, milliseconds.
    next_ms: u64,
    /// The waiting pushes, one for each client, in the order of their arrival. Leaves precede
    /// joins, so that the membership that subscribers see does not grow while pushes wait.
    waiting: BTreeMap<(Kind, u64), Waiting>,
    by_client: HashMap<Uuid, (Kind, u64)>,
    count: u64,
    /// Bytes of waiting leaves whose joins were never sent.
    unannounced: usize,
    /// A task will send the waiting pushes.
    awaited: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Leave,
    Join,
}

struct Waiting {
    client: Uuid,
    push: Push,
    /// Subscribers have received the join of the client.
    known: bool,
}

impl Waiting {
    fn unannounced_bytes(&self) -> usize {
        if self.push.leave.is_some() && !self.known { bytes_of(&self.push) } else { 0 }
    }
}

impl Announcements {
    /// Queues a push for the next batch. It replaces a waiting push of the same client.
    fn add(&mut self, client: Uuid, push: Push) {
        let before = self.by_client.remove(&client).and_then(|at| self.waiting.remove(&at));
        let kind = if push.leave.is_some() { Kind::Leave } else { Kind::Join };
        // Without a waiting push, the join of a leaving client was sent, and that of a joining
        // client was not.
        let known = before.as_ref().map_or(kind == Kind::Leave, |before| before.known);
        if let Some(before) = &before {
            self.unannounced -= before.unannounced_bytes();
        }
        // Presence may have shown the client in between, so its leave is sent though its join was
        // not.
        if kind == Kind::Leave && !known && self.unannounced + bytes_of(&push) > UNANNOUNCED_LEAVES_BYTES {
            return;
        }
        self.count += 1;
        let at = (kind, self.count);
        self.by_client.insert(client, at);
        let waiting = Waiting { client, push, known };
        self.unannounced += waiting.unannounced_bytes();
        self.waiting.insert(at, waiting);
    }

    /// Takes the next batch: at most `bytes_max` bytes, and at least one push.
    fn take(&mut self, bytes_max: usize) -> Vec<Push> {
        let (mut pushes, mut bytes) = (Vec::new(), 0);
        while let Some(next) = self.waiting.first_entry() {
            bytes += bytes_of(&next.get().push);
            if !pushes.is_empty() && bytes > bytes_max {
                break;
            }
            let next = next.remove();
            self.by_client.remove(&next.client);
            self.unannounced -= next.unannounced_bytes();
            pushes.push(next.push);
        }
        pushes
    }
}

impl Node {
    /// Sends a join or a leave to the subscribers at this node.
    pub(super) fn announce(&self, channel: &Arc<str>, client: Uuid, push: Push) {
        let now_ms = self.now_ms();
        let mut part = self.channels.part(channel).lock();
        let Some(live) = part.get_mut(channel) else { return };
        let pause_ms = pause_ms(live.total);
        let at_once = !live.announcements.awaited && now_ms >= live.announcements.next_ms && self.keep_up(live);
        let announcements = &mut live.announcements;
        if at_once {
            announcements.next_ms = now_ms + pause_ms;
            return self.send(channel, live, vec![push]);
        }
        announcements.add(client, push);
        if announcements.awaited || announcements.waiting.is_empty() {
            return;
        }
        announcements.awaited = true;
        let mut pause_ms = announcements.next_ms.saturating_sub(now_ms).max(1);
        drop(part);
        let (node, channel, env) = (self.me.clone(), channel.clone(), self.env.clone());
        self.env.spawn_critical("live announcements", async move {
            loop {
                env.sleep(Duration::from_millis(pause_ms)).await;
                let Some(next) = node.upgrade().and_then(|node| node.send_waiting(&channel)) else { return };
                pause_ms = next;
            }
        });
    }

    /// Sends the next batch. Returns the pause before the next call, milliseconds, if more pushes
    /// wait.
    fn send_waiting(&self, channel: &Arc<str>) -> Option<u64> {
        let now_ms = self.now_ms();
        let mut part = self.channels.part(channel).lock();
        let live = part.get_mut(channel)?;
        let pause_ms = pause_ms(live.total);
        let pushes = match self.keep_up(live) {
            true => live.announcements.take(message_bytes_max(live.total)),
            false => Vec::new(),
        };
        let announcements = &mut live.announcements;
        announcements.next_ms = now_ms + pause_ms;
        announcements.awaited = !announcements.waiting.is_empty();
        let next_ms = announcements.awaited.then_some(pause_ms);
        if !pushes.is_empty() {
            self.send(channel, live, pushes);
        }
        next_ms
    }

    /// Whether the partitions with subscribers keep up with their backlog. If not, joins and leaves
    /// are sent later instead of waiting here.
    fn keep_up(&self, live: &LiveChannel) -> bool {
        let mut busy = self.inboxes.iter().zip(&live.subscribers).filter(|(_, subscribers)| **subscribers > 0);
        busy.all(|(inbox, _)| inbox.backlog() <= BACKLOG_BYTES_MAX)
    }

    fn send(&self, channel: &Arc<str>, live: &LiveChannel, pushes: Vec<Push>) {
        let push = Arc::new(ChannelPush::new(channel.clone(), pushes));
        for (inbox, subscribers) in self.inboxes.iter().zip(&live.subscribers) {
            if *subscribers > 0 {
                inbox.send(WorkerEvent::Push(push.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::commands::tests::node_with;
    use crate::partition::SessionId;
    use crate::protocol::message::{ClientInfo, Presence};

    const SESSION: SessionId = SessionId { partition: 0, slot: 0, generation: 0 };

    fn push(n: u128, joins: bool) -> Push {
        let user = n.to_string();
        let presence = Some(Presence { info: Some(ClientInfo { user, ..ClientInfo::default() }) });
        let (join, leave) = if joins { (presence, None) } else { (None, presence) };
        Push { channel: "c".into(), join, leave, ..Push::default() }
    }

    /// The batches that the partition receives: the users that joined, and with a minus those that
    /// left.
    async fn batches(node: &Node, messages: usize) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        while found.len() < messages {
            let mut events = Vec::new();
            node.inboxes[0].take(&mut events);
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
        let channel = node.join(SESSION, "c", &node.rules.config.channel.without_namespace).expect("joined");
        for n in 1..=20 {
            node.announce(&channel, Uuid::from_u128(n), push(n, true));
        }
        // A client that joined and left within the pause, and one whose join was sent.
        node.announce(&channel, Uuid::from_u128(7), push(7, false));
        node.announce(&channel, Uuid::from_u128(1), push(1, false));
        let joined = (2..=20).filter(|n| *n != 7).map(|n| n.to_string());
        let batch: Vec<String> = ["-7", "-1"].map(str::to_owned).into_iter().chain(joined).collect();
        assert_eq!(batches(&node, 2).await, [vec!["1".to_owned()], batch]);
        node.env.sleep(Duration::from_millis(PAUSE_MS.0 as u64)).await;
        node.announce(&channel, Uuid::from_u128(30), push(30, true));
        assert_eq!(batches(&node, 1).await, [["30"]], "immediately after a pause");
    }

    /// A reconnect wave: many clients join, some leave, and some of those return under another
    /// name.
    #[tokio::test]
    async fn joins_and_leaves_converge_to_the_members() {
        let node = node_with(r#"{"channel": {"without_namespace": {}}}"#).await;
        let channel = node.join(SESSION, "c", &node.rules.config.channel.without_namespace).expect("joined");
        let is = |n: u128, joins| node.announce(&channel, Uuid::from_u128(n), push(n, joins));
        (0..2000).for_each(|n| is(n, true));
        let mut present = BTreeSet::new();
        let follow = async |present: &mut BTreeSet<String>| {
            for message in batches(&node, 1).await {
                assert!(message.len() <= MESSAGE_BYTES.1 / 128, "{}", message.len());
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
        let part = node.channels.part(&channel).lock();
        let announcements = &part["c"].announcements;
        assert!(announcements.waiting.is_empty() && announcements.by_client.is_empty() && !announcements.awaited);
    }

    #[tokio::test]
    async fn a_partition_that_does_not_keep_up_gets_them_later() {
        let node = node_with(r#"{"channel": {"without_namespace": {}}}"#).await;
        let channel = node.join(SESSION, "c", &node.rules.config.channel.without_namespace).expect("joined");
        let large = || Push { channel: "x".repeat(1 << 20), join: Some(Presence::default()), ..Push::default() };
        for _ in 0..BACKLOG_BYTES_MAX / (1 << 20) + 1 {
            let part = node.channels.part(&channel).lock();
            node.send(&channel, &part["c"], vec![large()]);
        }
        for n in 1..=3 {
            node.announce(&channel, Uuid::from_u128(n), push(n, true));
        }
        assert_eq!(node.send_waiting(&channel), Some(50), "later");
        let mut events = Vec::new();
        node.inboxes[0].take(&mut events);
        assert_eq!(events.len(), BACKLOG_BYTES_MAX / (1 << 20) + 1);
        events.iter().for_each(|event| node.inboxes[0].done(event.weight()));
        assert_eq!(batches(&node, 1).await, [["1", "2", "3"]]);
        // A channel without subscribers has no backlog.
        let mut part = node.channels.part(&channel).lock();
        part.get_mut("c").expect("joined").subscribers.fill(0);
        assert!(node.keep_up(&part["c"]));
    }

    #[test]
    fn the_last_join_or_leave_of_a_client_waits() {
        let mut announcements = Announcements::default();
        let one = Uuid::from_u128(1);
        // Presence may have shown the client between its join and its leave.
        announcements.add(one, push(1, true));
        announcements.add(one, push(1, false));
        assert!(matches!(&announcements.take(1)[..], [Push { leave: Some(_), .. }]));
        // The join was sent; the client leaves, joins and leaves.
        announcements.add(one, push(1, false));
        announcements.add(one, push(1, true));
        announcements.add(one, push(1, false));
        // A single push is sent, however large it is.
        assert!(matches!(&announcements.take(1)[..], [Push { leave: Some(_), .. }]));
        announcements.add(one, push(1, true));
        announcements.add(Uuid::from_u128(2), push(2, false));
        assert!(matches!(&announcements.take(1)[..], [Push { leave: Some(_), .. }]), "leaves first");
        assert!(matches!(&announcements.take(1)[..], [Push { join: Some(_), .. }]));
        assert!(announcements.waiting.is_empty() && announcements.by_client.is_empty());
        assert_eq!(announcements.unannounced, 0);
    }

    #[test]
    fn leaves_whose_joins_were_never_sent_are_bounded() {
        let mut announcements = Announcements::default();
        for n in 0..100_000 {
            announcements.add(Uuid::from_u128(n), push(n, true));
            announcements.add(Uuid::from_u128(n), push(n, false));
        }
        let waiting = announcements.waiting.len();
        assert!((1_000..50_000).contains(&waiting), "{waiting}");
        assert!(announcements.unannounced <= UNANNOUNCED_LEAVES_BYTES);
        assert_eq!(announcements.take(usize::MAX).len(), waiting);
        assert_eq!(announcements.unannounced, 0);
    }

    #[test]
    fn more_subscribers_get_fewer_and_smaller_batches() {
        assert_eq!((pause_ms(1), message_bytes_max(1)), (50, 64 << 10));
        assert_eq!((pause_ms(4000), message_bytes_max(4000)), (200, 4194));
        assert_eq!((pause_ms(1 << 20), message_bytes_max(1 << 20)), (1000, 4 << 10));
    }
}
