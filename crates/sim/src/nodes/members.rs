//! The members of channels: sessions, the presence that a home knows, and what it announces.
//!
//! Announcements are checked where none may be lost: at the node of the home, from its start on.
//! To other nodes they are sent at most once, so those are checked at rest only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_cluster::{Channels, ClientId, Member, MemberChange};

use super::node::Node;
use super::sessions::{NodeSessions, channel_name};
use super::world::World;
use crate::rng::Rng;

/// Members in an answer, at most.
const LIMIT: usize = 1000;

/// Number of the client that joins at rest.
const VISITOR: usize = 1 << 20;

/// Time in which an announcement reaches all nodes at rest.
const ANNOUNCED: Duration = Duration::from_secs(5);

/// A member of a channel.
type Key = (usize, ClientId);

/// The members of all nodes.
#[derive(Default)]
pub(crate) struct MemberLedger {
    /// The sessions that are members, with the version of their information.
    present: BTreeMap<Key, u64>,
    /// The members whose join a home has announced.
    joined: BTreeSet<Key>,
}

impl MemberLedger {
    fn of(&self, channel: usize) -> BTreeMap<ClientId, u64> {
        let of = self.present.iter().filter(|((of, _), _)| *of == channel);
        of.map(|((_, id), version)| (*id, *version)).collect()
    }
}

/// What one process knows of members.
#[derive(Default)]
pub(crate) struct NodeMembers(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// The presence of the channels of this home.
    presence: BTreeMap<Key, Member>,
    /// The last announcement of each member.
    announced: BTreeMap<Key, MemberChange>,
}

fn version_of(member: &Member) -> u64 {
    member.connection_info[..].try_into().map(u64::from_le_bytes).unwrap_or_default()
}

impl NodeMembers {
    /// The presence changes.
    pub(crate) fn changed(&self, key: Key, member: &Member, change: MemberChange) {
        let presence = &mut self.0.lock().presence;
        match change {
            MemberChange::Joined => presence.insert(key, member.clone()),
            MemberChange::Left => presence.remove(&key),
        };
    }

    /// The members of a channel of this home.
    pub(crate) fn list(&self, channel: usize, limit: usize) -> Vec<(ClientId, Member)> {
        let state = self.0.lock();
        let of = state.presence.iter().filter(|((of, _), _)| *of == channel);
        of.map(|((_, id), member)| (*id, member.clone())).take(limit).collect()
    }
}

impl NodeSessions {
    /// A connection of a client to a process keeps its ID.
    fn member_id(&self, client: usize) -> ClientId {
        (client as u128) << 64 | (self.node as u128) << 32 | u128::from(self.incarnation)
    }

    fn member(client: usize, version: u64) -> Member {
        let (connection_info, subscription_info) = (Bytes::copy_from_slice(&version.to_le_bytes()), Bytes::new());
        let user = format!("user{client}");
        Member { user, connection_info, subscription_info, presence: true, announced: true }
    }

    /// A client has subscribed.
    pub(crate) fn join(&self, channels: &Channels, channel: usize, client: usize) {
        if !self.rules[channel].members {
            return;
        }
        let (id, name, member) = (self.member_id(client), Arc::from(channel_name(channel)), Self::member(client, 0));
        self.ledger.lock().members.present.insert((channel, id), 0);
        if !channels.member_joined(&name, id, || member.clone()) {
            self.members.changed((channel, id), &member, MemberChange::Joined);
            self.on_announced(channel, id, MemberChange::Joined);
        }
    }

    /// The information of a subscribed client changes.
    pub(crate) fn update(&self, channels: &Channels, channel: usize, client: usize) {
        let (id, name) = (self.member_id(client), channel_name(channel));
        let version = match self.ledger.lock().members.present.get_mut(&(channel, id)) {
            Some(version) => {
                *version += 1;
                *version
            }
            None => return,
        };
        let member = Self::member(client, version);
        if !channels.member_updated(&name, id, || member.clone()) {
            self.members.changed((channel, id), &member, MemberChange::Joined);
        }
    }

    /// A subscription has ended.
    pub(crate) fn unsubscribed(&self, channels: &Channels, channel: usize, client: usize) {
        let (id, name, member) = (self.member_id(client), Arc::from(channel_name(channel)), Self::member(client, 0));
        if self.forget(channel, client) && !channels.member_left(&name, id, || member.clone()) {
            self.members.changed((channel, id), &member, MemberChange::Left);
            self.on_announced(channel, id, MemberChange::Left);
        }
    }

    /// A client is no member any more. Returns whether it was one.
    pub(crate) fn forget(&self, channel: usize, client: usize) -> bool {
        self.ledger.lock().members.present.remove(&(channel, self.member_id(client))).is_some()
    }

    /// The subscribers here get a join or a leave.
    pub(crate) fn on_announced(&self, channel: usize, id: ClientId, change: MemberChange) {
        self.note("announced", [channel as u64, id as u64, (id >> 64) as u64], || format!("{id:x} {change:?}"));
        let before = self.members.0.lock().announced.insert((channel, id), change);
        if self.rules[channel].home == self.node && change == MemberChange::Joined {
            let mut ledger = self.ledger.lock();
            ledger.members.joined.insert((channel, id));
            if before == Some(change) {
                ledger.fail(|| format!("JOIN-TWICE: {id:x} in channel {channel}"));
            }
        }
    }
}

impl World {
    fn running(&self) -> impl Iterator<Item = Node> {
        (0..self.plan.shape.nodes).filter_map(|node| self.node(node))
    }

    /// At rest, the presence is the sessions at each node, and each home has announced it.
    pub(crate) async fn check_members(&self) -> Result<(), String> {
        for channel in (0..self.rules.len()).filter(|channel| self.rules[*channel].members) {
            let expected = self.ledger.lock().members.of(channel);
            for node in self.running() {
                let (channels, at) = (node.channels.clone(), node.sessions.node);
                let work = async move { channels.presence(&channel_name(channel), LIMIT).await };
                let members = match self.at(node.clone(), work).await {
                    Some(Ok(Some(found))) => found.members,
                    Some(Ok(None)) => node.sessions.members.list(channel, LIMIT),
                    other => return Err(format!("PRESENCE: node {at} does not list channel {channel}: {other:?}")),
                };
                let found: BTreeMap<_, _> = members.iter().map(|(id, member)| (*id, version_of(member))).collect();
                if found != expected {
                    let text = format!("channel {channel} has {found:x?} at node {at}, and not {expected:x?}");
                    return Err(format!("PRESENCE: {text}"));
                }
            }
            if let Some(home) = self.node(self.rules[channel].home) {
                self.check_announced(channel, &home.sessions.members)?;
            }
        }
        Ok(())
    }

    /// The last announcement of a home agrees with the presence.
    fn check_announced(&self, channel: usize, home: &NodeMembers) -> Result<(), String> {
        let (ledger, state) = (self.ledger.lock(), home.0.lock());
        let MemberLedger { present, joined } = &ledger.members;
        for (key, _) in present.iter().filter(|((of, _), _)| *of == channel) {
            match state.announced.get(key) {
                Some(MemberChange::Joined) => {}
                // An earlier process of the home has announced it.
                None if joined.contains(key) => {}
                last => return Err(format!("LOST-JOIN: {:x} in channel {channel} after {last:?}", key.1)),
            }
        }
        let shown = state.announced.iter().filter(|((of, _), last)| *of == channel && **last == MemberChange::Joined);
        match shown.map(|(key, _)| key).find(|key| !present.contains_key(key)) {
            Some((_, id)) => Err(format!("LOST-LEAVE: {id:x} in channel {channel}")),
            None => Ok(()),
        }
    }

    /// At rest, a client joins each channel at some node, and leaves: all nodes with subscribers
    /// get both announcements.
    pub(crate) async fn visit(&self, rng: &mut Rng) -> Result<(), String> {
        let env = self.executor.env();
        let mut visits = Vec::new();
        for channel in (0..self.rules.len()).filter(|channel| self.rules[*channel].members) {
            let Some(node) = self.node(rng.below(self.plan.shape.nodes as u64) as usize) else { continue };
            let attachment = node.channels.attach(&Arc::from(channel_name(channel)), self.rules[channel].bounds());
            node.sessions.join(&node.channels, channel, VISITOR);
            visits.push((channel, node, attachment));
        }
        if visits.is_empty() {
            return Ok(());
        }
        env.sleep(ANNOUNCED).await;
        let all = |change| visits.iter().try_for_each(|(channel, node, _)| self.check_visit(*channel, node, change));
        all(MemberChange::Joined)?;
        for (channel, node, _) in &visits {
            node.sessions.unsubscribed(&node.channels, *channel, VISITOR);
        }
        env.sleep(ANNOUNCED).await;
        all(MemberChange::Left)
    }

    fn check_visit(&self, channel: usize, node: &Node, change: MemberChange) -> Result<(), String> {
        let id = node.sessions.member_id(VISITOR);
        for other in self.running().filter(|other| other.sessions.has_subscriber(channel)) {
            let last = other.sessions.members.0.lock().announced.get(&(channel, id)).copied();
            if last != Some(change) {
                let at = other.sessions.node;
                return Err(format!("UNANNOUNCED: {change:?} of {id:x} in channel {channel} at node {at}: {last:?}"));
            }
        }
        Ok(())
    }
}
