//! Who came to a channel and who went, told to its subscribers: at once where little happens, together where much does.
//!
//! When N sessions come back to a channel, each would be told of each: N times N messages. So after one telling there is a pause, longer where
//! more have to be told, and what happens meanwhile is told in one message; who came and went again within it is not told of at all. What that
//! message takes is bounded; beyond, tellings are left out and counted. Presence knows better at all times.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use uuid::Uuid;

use super::publish::BACKLOG_BYTES_MAX;
use super::{LiveChannel, Node};
use crate::outgoing::{ChannelPush, bytes_of};
use crate::partition::{Event, SessionId, SubscriptionKind, Who};
use crate::protocol::message::{Presence, Push};

/// From one telling to the next, milliseconds: one for so many subscribers, between these two.
const SUBSCRIBERS_PER_MS: usize = 20;
const PAUSE_MS: (usize, usize) = (50, 1000);

/// Bytes of what is told together, to all subscribers, and for each of them between these two.
const TOLD_BYTES: usize = 16 << 20;
const MESSAGE_BYTES: (usize, usize) = (4 << 10, 64 << 10);

fn pause_ms(subscribers: usize) -> u64 {
    (subscribers / SUBSCRIBERS_PER_MS).clamp(PAUSE_MS.0, PAUSE_MS.1) as u64
}

fn message_bytes_max(subscribers: usize) -> usize {
    (TOLD_BYTES / subscribers.max(1)).clamp(MESSAGE_BYTES.0, MESSAGE_BYTES.1)
}

/// What is to be told of a channel.
#[derive(Default)]
pub(super) struct Announcements {
    /// When something may be told again, milliseconds.
    next_ms: u64,
    waiting: Vec<(Uuid, Push)>,
    bytes: usize,
    /// A task comes for those that wait.
    awaited: bool,
}

impl Announcements {
    /// Has a push wait for the next telling. False when it is left out.
    fn add(&mut self, client: Uuid, push: Push, bytes_max: usize) -> bool {
        if push.leave.is_some() {
            let came = |(other, waiting): &(Uuid, Push)| *other == client && waiting.join.is_some();
            if let Some(at) = self.waiting.iter().position(came) {
                let (_, join) = self.waiting.remove(at);
                self.bytes -= bytes_of(&join);
                return true;
            }
        }
        let bytes = bytes_of(&push);
        // One by itself is told, however large it is.
        if !self.waiting.is_empty() && self.bytes + bytes > bytes_max {
            return false;
        }
        self.bytes += bytes;
        self.waiting.push((client, push));
        true
    }
}

impl Node {
    /// Somebody has subscribed.
    pub(crate) fn came(&self, who: &Who, channel: &Arc<str>, kind: &SubscriptionKind) {
        if !kind.presence && !kind.announced {
            return;
        }
        let info = Arc::new(who.client_info(&kind.info));
        if kind.presence {
            self.presence.add(channel, who.client, info.clone());
        }
        if kind.announced {
            let join = Some(Presence { info: Some(info.as_ref().clone()) });
            let push = Push { channel: channel.as_ref().to_owned(), join, ..Push::default() };
            self.announce(channel, who.client, push);
        }
    }

    /// What is said of a subscriber has changed: presence says it from now on, and a leave will.
    pub(crate) fn renamed(&self, who: &Who, channel: &Arc<str>, kind: &SubscriptionKind) {
        if kind.presence {
            self.presence.add(channel, who.client, Arc::new(who.client_info(&kind.info)));
        }
    }

    /// Somebody has gone.
    pub(crate) fn went(&self, session: SessionId, who: Option<&Arc<Who>>, channel: &Arc<str>, kind: &SubscriptionKind) {
        self.leave(session, channel);
        let Some(who) = who else { return };
        if kind.presence {
            self.presence.remove(channel, &who.client);
        }
        if kind.announced {
            let leave = Some(Presence { info: Some(who.client_info(&kind.info)) });
            let push = Push { channel: channel.as_ref().to_owned(), leave, ..Push::default() };
            self.announce(channel, who.client, push);
        }
    }

    fn announce(&self, channel: &Arc<str>, client: Uuid, push: Push) {
        let now_ms = self.now_ms();
        let mut part = self.part(&self.channels, channel).lock();
        let Some(live) = part.get_mut(channel) else { return };
        let (pause_ms, bytes_max) = (pause_ms(live.total), message_bytes_max(live.total));
        let announcements = &mut live.announcements;
        if !announcements.awaited && now_ms >= announcements.next_ms {
            announcements.next_ms = now_ms + pause_ms;
            return self.tell(channel, live, vec![push]);
        }
        if !announcements.add(client, push, bytes_max) {
            self.announcements_left_out.fetch_add(1, Relaxed);
        }
        if announcements.awaited || announcements.waiting.is_empty() {
            return;
        }
        announcements.awaited = true;
        let pause = Duration::from_millis(announcements.next_ms - now_ms);
        drop(part);
        let (node, channel, env) = (self.me.clone(), channel.clone(), self.env.clone());
        self.env.spawn("live announcements", async move {
            env.sleep(pause).await;
            if let Some(node) = node.upgrade() {
                node.tell_waiting(&channel);
            }
        });
    }

    fn tell_waiting(&self, channel: &Arc<str>) {
        let now_ms = self.now_ms();
        let mut part = self.part(&self.channels, channel).lock();
        let Some(live) = part.get_mut(channel) else { return };
        let Announcements { waiting, .. } = std::mem::take(&mut live.announcements);
        live.announcements.next_ms = now_ms + pause_ms(live.total);
        if !waiting.is_empty() {
            self.tell(channel, live, waiting.into_iter().map(|(_, push)| push).collect());
        }
    }

    fn tell(&self, channel: &Arc<str>, live: &LiveChannel, pushes: Vec<Push>) {
        let push = Arc::new(ChannelPush::new(channel.clone(), pushes));
        for (inbox, subscribers) in self.inboxes.iter().zip(&live.subscribers) {
            if *subscribers == 0 {
                continue;
            }
            // Nobody waits with this: a partition that does not keep up is not told.
            if inbox.backlog() > BACKLOG_BYTES_MAX {
                self.announcements_left_out.fetch_add(push.pushes.len() as u64, Relaxed);
            } else {
                inbox.send(Event::Push(push.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::tests::node_with;
    use crate::protocol::message::ClientInfo;

    const SESSION: SessionId = SessionId { partition: 0, slot: 0, generation: 0 };

    fn push(n: u128, joins: bool) -> Push {
        let user = n.to_string();
        let presence = Some(Presence { info: Some(ClientInfo { user, ..ClientInfo::default() }) });
        let (join, leave) = if joins { (presence, None) } else { (None, presence) };
        Push { channel: "c".into(), join, leave, ..Push::default() }
    }

    /// What the partition is told: by message, who came, and who went with a minus.
    async fn told(node: &Node, messages: usize) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        while found.len() < messages {
            let mut events = Vec::new();
            node.inboxes[0].take(&mut events);
            for event in events {
                let Event::Push(push) = event else { continue };
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
    async fn what_happens_at_once_is_told_together() {
        let node = node_with(r#"{"channel": {"without_namespace": {}}}"#).await;
        let channel = node.join(SESSION, "c", &node.config.channel.without_namespace).expect("joined");
        for n in 1..=20 {
            node.announce(&channel, Uuid::from_u128(n), push(n, true));
        }
        // Came and went again; and one of whom it was told that it came.
        node.announce(&channel, Uuid::from_u128(7), push(7, false));
        node.announce(&channel, Uuid::from_u128(1), push(1, false));
        let mut together: Vec<String> = (2..=20).filter(|n| *n != 7).map(|n| n.to_string()).collect();
        together.push("-1".into());
        assert_eq!(told(&node, 2).await, [vec!["1".to_owned()], together]);
        node.env.sleep(Duration::from_millis(PAUSE_MS.0 as u64)).await;
        node.announce(&channel, Uuid::from_u128(30), push(30, true));
        assert_eq!(told(&node, 1).await, [["30"]], "after a pause at once again");
        assert_eq!(node.status().announcements_left_out, 0);
    }

    #[tokio::test]
    async fn what_is_told_together_is_bounded() {
        let node = node_with(r#"{"channel": {"without_namespace": {}}}"#).await;
        let channel = node.join(SESSION, "c", &node.config.channel.without_namespace).expect("joined");
        for n in 0..2000 {
            node.announce(&channel, Uuid::from_u128(n), push(n, true));
        }
        let told = told(&node, 2).await;
        let together = told[1].len();
        assert!((300..=MESSAGE_BYTES.1 / 128).contains(&together), "{together}");
        assert_eq!(node.status().announcements_left_out, 2000 - 1 - together as u64);
    }

    #[tokio::test]
    async fn a_partition_that_does_not_keep_up_is_not_told() {
        let node = node_with(r#"{"channel": {"without_namespace": {}}}"#).await;
        let channel = node.join(SESSION, "c", &node.config.channel.without_namespace).expect("joined");
        let large = || Push { channel: "x".repeat(1 << 20), join: Some(Presence::default()), ..Push::default() };
        let all = BACKLOG_BYTES_MAX / (1 << 20) + 10;
        for _ in 0..all {
            let part = node.part(&node.channels, &channel).lock();
            node.tell(&channel, &part["c"], vec![large()]);
        }
        let left_out = node.status().announcements_left_out as usize;
        assert!((1..=10).contains(&left_out), "{left_out}");
        // Where nobody is to be told, nothing is left out.
        let mut part = node.part(&node.channels, &channel).lock();
        part.get_mut("c").expect("joined").subscribers.fill(0);
        node.tell(&channel, &part["c"], vec![large()]);
        drop(part);
        assert_eq!(node.status().announcements_left_out as usize, left_out);
        let mut events = Vec::new();
        node.inboxes[0].take(&mut events);
        assert_eq!(events.len(), all - left_out);
        events.iter().for_each(|event| node.inboxes[0].done(event.weight()));
        assert_eq!(node.inboxes[0].backlog(), 0);
    }

    #[test]
    fn one_by_itself_is_told_however_large_it_is() {
        let mut announcements = Announcements::default();
        assert!(announcements.add(Uuid::nil(), push(1, true), 1));
        assert!(!announcements.add(Uuid::nil(), push(2, true), 1));
    }

    #[test]
    fn the_more_have_to_be_told_the_less_is_said() {
        assert_eq!((pause_ms(1), message_bytes_max(1)), (50, 64 << 10));
        assert_eq!((pause_ms(4000), message_bytes_max(4000)), (200, 4194));
        assert_eq!((pause_ms(1 << 20), message_bytes_max(1 << 20)), (1000, 4 << 10));
    }
}
