//! Members of this node's channels at other nodes.
//!
//! The home keeps them while it has a link to their node, and for a while after. Then it announces
//! their leaves, as it does at once for a node that has started again. From then on it knows itself
//! which joins of the node it has announced; the node cannot, as it may notice a lost link late.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_flow::{Env, has_fault, log_rarely, shortened};

use super::Home;
use crate::frame::Kind;
use crate::frame::channels::WatchNumber;
use crate::frame::members::{MemberCheck, MemberDone, MemberEvent, MemberList, WireMember};
use crate::hashing::SeededHashes;
use crate::members::{ClientId, Member, MemberChange};
use crate::outbox::Outbox;
use crate::roster::NodeIndex;
use crate::sabotage::ClusterSabotage;

/// How long a sabotaged home forgets members.
const EARLY: Duration = Duration::from_secs(3);

/// A member at another node.
struct Elsewhere {
    node: NodeIndex,
    member: Arc<Member>,
    /// See [`Member::hash`].
    hash: u64,
}

type ChannelMembers = HashMap<Arc<str>, BTreeMap<ClientId, Elsewhere>>;

/// The members at other nodes, by channel.
pub(super) struct Members {
    parts: Vec<Mutex<ChannelMembers>>,
    hasher: SeededHashes,
    /// How long the members of a node without a link are kept.
    node_ttl: Duration,
    started: Duration,
}

impl Members {
    pub(super) fn new(parts: usize, node_ttl: Duration, env: &Env) -> Self {
        let parts = (0..parts).map(|_| Mutex::default()).collect();
        Self { parts, hasher: SeededHashes::new(env), node_ttl, started: env.now() }
    }

    fn part_of(&self, channel: &str) -> usize {
        self.hasher.hash_one(channel) as usize % self.parts.len()
    }

    /// Removes the members of a node in a channel that are not in its list.
    fn remove_unlisted(
        &self,
        name: &str,
        node: NodeIndex,
        listed: &BTreeSet<ClientId>,
    ) -> Vec<(ClientId, Arc<Member>)> {
        let mut part = self.parts[self.part_of(name)].lock();
        let Some(members) = part.get_mut(name) else { return Vec::new() };
        let goes = |client: &ClientId, elsewhere: &mut Elsewhere| elsewhere.node == node && !listed.contains(client);
        let removed = members.extract_if(.., goes).map(|(client, elsewhere)| (client, elsewhere.member)).collect();
        if members.is_empty() {
            part.remove(name);
        }
        removed
    }

    /// The sum of the hashes of a node's members in a channel.
    fn hash(&self, name: &str, node: NodeIndex) -> u64 {
        let part = self.parts[self.part_of(name)].lock();
        let of = part.get(name).into_iter().flat_map(BTreeMap::values).filter(|elsewhere| elsewhere.node == node);
        of.fold(0, |sum, elsewhere| sum.wrapping_add(elsewhere.hash))
    }

    /// Removes the members of a node.
    fn remove(&self, part: usize, node: NodeIndex) -> Vec<(Arc<str>, ClientId, Arc<Member>)> {
        let mut removed = Vec::new();
        self.parts[part].lock().retain(|name, members| {
            members.retain(|client, elsewhere| {
                let goes = elsewhere.node == node;
                if goes {
                    removed.push((name.clone(), *client, elsewhere.member.clone()));
                }
                !goes
            });
            !members.is_empty()
        });
        removed.sort_unstable_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        removed
    }

    /// Removes a member of a node.
    fn remove_one(&self, part: usize, name: &str, client: ClientId, node: NodeIndex) -> Option<Arc<Member>> {
        let mut part = self.parts[part].lock();
        let members = part.get_mut(name)?;
        let known = members.get(&client).filter(|known| known.node == node)?.member.clone();
        members.remove(&client);
        if members.is_empty() {
            part.remove(name);
        }
        Some(known)
    }
}

/// Follows the members of channels of this node that are at others.
#[derive(Clone, Copy)]
pub(crate) struct HomeMembers<'a>(pub(crate) &'a Home);

impl HomeMembers<'_> {
    /// Clients of other nodes that are members of channels here.
    pub(crate) fn members(self) -> usize {
        self.0.members.parts.iter().map(|part| part.lock().values().map(BTreeMap::len).sum::<usize>()).sum()
    }

    /// The channel of a watch, and whether the members of its node have expired.
    fn watched(self, node: NodeIndex, number: u64) -> Option<(Arc<str>, bool)> {
        let front = self.0.front(node).lock();
        let expired = front.expired && !has_fault(self.0.sabotage, ClusterSabotage::AnnouncedForever);
        Some((front.watches.get(&number)?.clone(), expired))
    }

    pub(crate) fn on_member_list(self, node: NodeIndex, outbox: &Outbox, list: MemberList) {
        let MemberList { number, present, gone, last } = list;
        let Some((name, expired)) = self.watched(node, number) else { return };
        let mut clients = BTreeSet::new();
        for wire in present {
            let acknowledged = wire.acknowledged && !expired;
            if let Some((client, member)) = wire.member() {
                clients.insert(client);
                self.present(node, &name, client, member, !acknowledged);
            }
        }
        for wire in gone {
            let acknowledged = wire.acknowledged && !expired;
            if let Some((client, member)) = wire.member() {
                self.gone(node, &name, client, &member, acknowledged);
            }
        }
        let mut front = self.0.front(node).lock();
        let listed = front.listed.entry(number).or_default();
        listed.append(&mut clients);
        if !last {
            return;
        }
        let listed = front.listed.remove(&number).unwrap_or_default();
        drop(front);
        // The list replaces what the home knew.
        for (client, member) in self.0.members.remove_unlisted(&name, node, &listed) {
            self.left(&name, client, &member);
        }
        outbox.send(Kind::MemberDone(MemberDone { number, client: Bytes::new(), gone: false }).to_bytes());
    }

    pub(crate) fn on_member(self, node: NodeIndex, outbox: &Outbox, event: MemberEvent) {
        let MemberEvent { number, member: wire, gone } = event;
        let Some((name, expired)) = self.watched(node, number) else { return };
        let (id, acknowledged) = (wire.client.clone(), wire.acknowledged && !expired);
        let Some((client, member)) = wire.member() else { return };
        match gone {
            false => self.present(node, &name, client, member, !acknowledged),
            true => self.gone(node, &name, client, &member, acknowledged),
        }
        outbox.send(Kind::MemberDone(MemberDone { number, client: id, gone }).to_bytes());
    }

    /// Compares what a node has told with what is known of its members. A link is in order, so they
    /// are the same; where they are not, the node sends its list again.
    pub(crate) fn on_member_check(self, node: NodeIndex, outbox: &Outbox, check: &MemberCheck) {
        for (number, hash) in check.numbers.iter().zip(&check.hashes) {
            let Some((name, _)) = self.watched(node, *number) else { continue };
            if self.0.members.hash(&name, node) != *hash {
                log_rarely!(
                    warn,
                    "cluster: the members of the channel {:?} were not those of their node",
                    shortened(&name)
                );
                outbox.send(Kind::MembersWanted(WatchNumber { number: *number }).to_bytes());
            }
        }
    }

    /// A client subscribed at a node, or its information changed.
    fn present(self, node: NodeIndex, name: &Arc<str>, client: ClientId, member: Member, is_new: bool) {
        if has_fault(self.0.sabotage, ClusterSabotage::EarlyMembersForgotten)
            && self.0.env.now() < self.0.members.started + EARLY
        {
            return;
        }
        let member = Arc::new(member);
        let before = {
            let mut part = self.0.members.parts[self.0.members.part_of(name)].lock();
            let members = part.entry(name.clone()).or_default();
            members.insert(client, Elsewhere { node, hash: member.hash(client), member: member.clone() })
        };
        self.0.sessions().member_changed(name, client, &member, MemberChange::Joined);
        if before.is_none() && is_new {
            self.notify(name, client, &member, MemberChange::Joined);
        }
    }

    /// A client unsubscribed at a node. A home that has started again does not know those that left
    /// meanwhile, but its subscribers may know their joins.
    fn gone(self, node: NodeIndex, name: &Arc<str>, client: ClientId, member: &Member, acknowledged: bool) {
        match self.0.members.remove_one(self.0.members.part_of(name), name, client, node) {
            Some(known) => self.left(name, client, &known),
            None if acknowledged => self.notify(name, client, member, MemberChange::Left),
            None => {}
        }
    }

    /// A member has been removed.
    fn left(self, name: &Arc<str>, client: ClientId, member: &Member) {
        self.0.sessions().member_changed(name, client, member, MemberChange::Left);
        self.notify(name, client, member, MemberChange::Left);
    }

    /// Announces a change to the subscribers at all nodes.
    fn notify(self, name: &Arc<str>, client: ClientId, member: &Member, change: MemberChange) {
        if !member.announced {
            return;
        }
        self.announce(name, client, member, change);
        self.0.sessions().announce(name, client, member, change);
    }

    /// Announces a change to the subscribers at other nodes.
    pub(crate) fn announce(self, name: &str, client: ClientId, member: &Member, change: MemberChange) {
        self.0.watchers.each(name, |watcher| {
            // Joins and leaves are dropped first: a client that needs certainty lists the members.
            if !watcher.outbox.is_beyond_quarters(2) {
                let (number, gone) = (watcher.number, change == MemberChange::Left);
                let event = MemberEvent { number, member: WireMember::new(client, member, true), gone };
                watcher.outbox.send(Kind::Announcement(event).to_bytes());
            }
        });
    }

    /// Removes the members of a node, with their leaves.
    pub(super) fn remove_members(self, node: NodeIndex) {
        for part in 0..self.0.members.parts.len() {
            for (name, client, member) in self.0.members.remove(part, node) {
                self.left(&name, client, &member);
            }
        }
    }

    /// Removes the members of nodes whose links have been down for long.
    pub(super) fn expire_members(self) {
        let now = self.0.env.now();
        for (index, front) in self.0.fronts.iter().enumerate() {
            // Under the lock, so that no link begins in between.
            let mut front = front.lock();
            if front.down_since.is_some_and(|since| now >= since + self.0.members.node_ttl) {
                (front.down_since, front.expired) = (None, true);
                self.remove_members(NodeIndex(index as u16));
            }
        }
    }
}
