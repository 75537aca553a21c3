//! The members of a channel that a front has, and what its home knows of them.
//!
//! The front sends each join and leave to the home, which acknowledges it after it has announced
//! it. With each new watch the front sends its whole list, which replaces what the home knew. So
//! nothing is announced twice, and no leave is lost with a link or a home.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use steadfast_flow::has_fault;

use crate::frame::members::{MemberDone, MemberEvent, MemberList, WireMember};
use crate::members::{ClientId, Member};
use crate::sabotage::ClusterSabotage;

/// Leaves of a channel without an acknowledgement, at most. Beyond it, leaves are not announced.
const GONE_MAX: usize = 65_536;

/// Members in a frame of a list, and bytes of them, at most; but at least one member.
const LISTED_TOGETHER: (usize, usize) = (1000, 1 << 20);

struct Known {
    member: Arc<Member>,
    /// See [`Member::hash`].
    hash: u64,
    /// The home may know of it.
    sent: bool,
    /// The home has acknowledged its join.
    acknowledged: bool,
    /// The home may know of its leave.
    leave_sent: bool,
}

/// The members of a channel, and the joins and leaves that its home has not acknowledged.
#[derive(Default)]
pub(super) struct FrontMembers {
    present: BTreeMap<ClientId, Known>,
    gone: BTreeMap<ClientId, Known>,
    /// The changes after the list of the current watch that the home has not acknowledged, each
    /// client's number of them. An earlier acknowledgement does not cover the last one.
    after_list: BTreeMap<ClientId, u32>,
    /// There was a member since the channel was attached.
    were_some: bool,
    sabotage: ClusterSabotage,
}

impl FrontMembers {
    pub(super) fn new(sabotage: ClusterSabotage) -> Self {
        Self { sabotage, ..Self::default() }
    }

    /// Whether the home needs to know nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.present.is_empty() && self.gone.is_empty()
    }

    /// Whether there was a member since the channel was attached, of which the home may know.
    pub(super) fn were_some(&self) -> bool {
        self.were_some
    }

    /// The sum of the hashes of the members.
    pub(super) fn hash(&self) -> u64 {
        self.present.values().fold(0, |sum, known| sum.wrapping_add(known.hash))
    }

    /// A client subscribed, or its information changed. Returns what to send on a watch.
    pub(super) fn join(&mut self, client: ClientId, member: Arc<Member>, watch: Option<u64>) -> Option<MemberEvent> {
        let before = self.present.remove(&client).or_else(|| self.gone.remove(&client));
        // After a leave that may have been announced, the join is new.
        let (sent, acknowledged) =
            before.map_or((false, false), |before| (before.sent, before.acknowledged && !before.leave_sent));
        let event = watch.map(|number| {
            *self.after_list.entry(client).or_default() += 1;
            MemberEvent { number, member: WireMember::new(client, &member, acknowledged), gone: false }
        });
        let sent = sent || event.is_some();
        let hash = member.hash(client);
        self.present.insert(client, Known { member, hash, sent, acknowledged, leave_sent: false });
        self.were_some = true;
        event
    }

    /// The information of a client changed, if it is subscribed. Returns what to send on a watch.
    pub(super) fn update(&mut self, client: ClientId, member: Arc<Member>, watch: Option<u64>) -> Option<MemberEvent> {
        if self.present.contains_key(&client) { self.join(client, member, watch) } else { None }
    }

    /// A client unsubscribed. Returns what to send on a watch.
    pub(super) fn leave(&mut self, client: ClientId, watch: Option<u64>) -> Option<MemberEvent> {
        let mut known = self.present.remove(&client)?;
        known.leave_sent = watch.is_some();
        let event = watch.map(|number| {
            *self.after_list.entry(client).or_default() += 1;
            // The home has its information.
            let client = Bytes::copy_from_slice(&client.to_be_bytes());
            MemberEvent { number, member: WireMember { client, ..WireMember::default() }, gone: true }
        });
        if known.sent && self.gone.len() < GONE_MAX && !has_fault(self.sabotage, ClusterSabotage::ForgottenLeaves) {
            self.gone.insert(client, known);
        }
        event
    }

    /// The list for a new watch, in frames. The home answers nothing of an earlier watch.
    pub(super) fn begin_watch(&mut self, number: u64) -> Vec<MemberList> {
        self.after_list.clear();
        if self.is_empty() { Vec::new() } else { self.list(number) }
    }

    /// The list, in frames.
    pub(super) fn list(&mut self, number: u64) -> Vec<MemberList> {
        let wire = |(client, known): (&ClientId, &mut Known)| {
            known.sent = true;
            WireMember::new(*client, &known.member, known.acknowledged)
        };
        let present: Vec<WireMember> = self.present.iter_mut().map(wire).collect();
        self.gone.values_mut().for_each(|known| known.leave_sent = true);
        // The leaves of the others were sent on this watch.
        let unsent = self.gone.iter_mut().filter(|(client, _)| !self.after_list.contains_key(client));
        let gone: Vec<WireMember> = unsent.map(wire).collect();
        let frame = |present, gone| MemberList { number, present, gone, last: false };
        let mut frames: Vec<MemberList> = in_frames(present).into_iter().map(|some| frame(some, Vec::new())).collect();
        frames.extend(in_frames(gone).into_iter().map(|some| frame(Vec::new(), some)));
        if frames.is_empty() {
            frames.push(frame(Vec::new(), Vec::new()));
        }
        if let Some(last) = frames.last_mut() {
            last.last = true;
        }
        frames
    }

    /// The home has acknowledged a change, or the list.
    pub(super) fn done(&mut self, done: &MemberDone) {
        if done.client.is_empty() {
            let Self { present, gone, after_list, .. } = self;
            let listed = |client: &ClientId| !after_list.contains_key(client);
            present.iter_mut().filter(|(client, _)| listed(client)).for_each(|(_, known)| known.acknowledged = true);
            gone.retain(|client, _| !listed(client));
        } else if let Ok(client) = done.client[..].try_into().map(ClientId::from_be_bytes) {
            if let Some(changes) = self.after_list.get_mut(&client) {
                *changes -= 1;
                if *changes > 0 {
                    return;
                }
                self.after_list.remove(&client);
            }
            if done.gone {
                self.gone.remove(&client);
            } else if let Some(known) = self.present.get_mut(&client).or(self.gone.get_mut(&client)) {
                known.acknowledged = true;
            }
        }
    }
}

/// Divides members into frames.
fn in_frames(members: Vec<WireMember>) -> Vec<Vec<WireMember>> {
    let (mut frames, mut bytes) = (Vec::<Vec<WireMember>>::new(), 0);
    for member in members {
        let len = member.encoded_len();
        let last =
            frames.last_mut().filter(|frame| frame.len() < LISTED_TOGETHER.0 && bytes + len <= LISTED_TOGETHER.1);
        match last {
            Some(frame) => {
                bytes += len;
                frame.push(member);
            }
            None => {
                bytes = len;
                frames.push(vec![member]);
            }
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn member(user: &str) -> Arc<Member> {
        let (connection_info, subscription_info) = (Bytes::new(), Bytes::new());
        Arc::new(Member { user: user.into(), connection_info, subscription_info, presence: true, announced: true })
    }

    fn done(client: Option<ClientId>, gone: bool) -> MemberDone {
        let client = client.map_or(Bytes::new(), |client| Bytes::copy_from_slice(&client.to_be_bytes()));
        MemberDone { number: 1, client, gone }
    }

    /// The users in the list: those that left with a minus, acknowledged ones with `!`.
    fn listed(members: &mut FrontMembers) -> Vec<String> {
        let frames = members.begin_watch(1);
        assert!(frames.iter().rev().skip(1).all(|frame| !frame.last) && frames.last().is_none_or(|frame| frame.last));
        let mark = |one: &WireMember| if one.acknowledged { "!" } else { "" };
        let text = |sign: &str, one: &WireMember| format!("{sign}{}{}", one.user, mark(one));
        let present = frames.iter().flat_map(|frame| frame.present.iter().map(|one| text("", one)));
        let gone = frames.iter().flat_map(|frame| frame.gone.iter().map(|one| text("-", one)));
        present.chain(gone).collect()
    }

    #[test]
    fn acknowledged_joins_are_remembered_and_leaves_are_kept_until_then() {
        let mut members = FrontMembers::default();
        for (client, user) in [(1, "a"), (2, "b"), (3, "c")] {
            assert!(members.join(client, member(user), Some(1)).is_some_and(|event| !event.gone));
        }
        members.done(&done(Some(1), false));
        members.done(&done(Some(2), false));
        assert!(members.leave(2, Some(1)).is_some_and(|event| event.gone && event.member.user.is_empty()));
        assert_eq!(listed(&mut members), ["a!", "c", "-b!"]);
        members.done(&done(Some(2), true));
        assert_eq!(listed(&mut members), ["a!", "c"]);
        members.leave(1, None);
        members.leave(3, None);
        assert_eq!(listed(&mut members), ["-a!", "-c"], "the home may know of both");
        members.done(&done(None, false));
        assert!(members.is_empty());
    }

    #[test]
    fn a_client_that_returns_without_a_link_neither_left_nor_joined() {
        let mut members = FrontMembers::default();
        members.join(1, member("a"), Some(1));
        members.done(&done(Some(1), false));
        members.leave(1, None);
        members.join(1, member("a"), None);
        assert!(members.join(1, member("a"), Some(1)).is_some_and(|event| event.member.acknowledged));
        members.done(&done(Some(1), false));
        members.join(2, member("b"), None);
        members.leave(2, None);
        assert_eq!(listed(&mut members), ["a!"], "the home does not know the other one");
    }

    #[test]
    fn a_client_that_returns_at_once_joins_again() {
        let mut members = FrontMembers::default();
        members.join(1, member("a"), Some(1));
        members.leave(1, Some(1));
        assert!(members.join(1, member("a"), Some(1)).is_some_and(|event| !event.member.acknowledged));
        for gone in [false, true] {
            members.done(&done(Some(1), gone));
            assert!(!members.present[&1].acknowledged, "an acknowledgement from before the last join");
        }
        members.done(&done(Some(1), false));
        assert!(members.after_list.is_empty());
        members.leave(1, None);
        assert_eq!(listed(&mut members), ["-a!"]);
        members.join(1, member("a"), None);
        assert_eq!(listed(&mut members), ["a"], "the home may have announced the leave");
    }

    #[test]
    fn a_long_list_is_divided_by_bytes_and_by_members() {
        let mut members = FrontMembers::default();
        for client in 0..10 {
            let connection_info = Bytes::from(vec![0; 400 << 10]);
            members.join(client, Arc::new(Member { connection_info, ..Member::clone(&member("a")) }), None);
        }
        let lists = members.begin_watch(1);
        assert_eq!(lists.iter().map(|list| list.present.len()).collect::<Vec<_>>(), [2; 5]);
        assert_eq!(lists.iter().filter(|list| list.last).count(), 1);
        for client in 0..2500 {
            members.join(client, member("a"), None);
        }
        assert_eq!(members.list(2).iter().map(|list| list.present.len()).collect::<Vec<_>>(), [1000, 1000, 500]);
    }

    #[test]
    fn the_acknowledgement_of_a_list_does_not_cover_later_changes() {
        let mut members = FrontMembers::default();
        members.join(1, member("a"), None);
        members.join(2, member("b"), None);
        assert_eq!(listed(&mut members), ["a", "b"]);
        members.join(3, member("c"), Some(1));
        members.leave(2, Some(1));
        members.done(&done(None, false));
        assert_eq!(listed(&mut members), ["a!", "c", "-b"]);
    }

    #[test]
    fn a_long_list_has_several_frames() {
        let mut members = FrontMembers::default();
        for client in 0..2500 {
            members.join(client, member("a"), None);
        }
        assert_eq!(members.list(1).iter().map(|frame| frame.present.len()).collect::<Vec<_>>(), [1000, 1000, 500]);
    }

    #[test]
    fn only_members_are_updated() {
        let mut members = FrontMembers::default();
        assert_eq!(members.update(1, member("a"), Some(1)), None);
        members.join(1, member("a"), Some(1));
        assert!(members.update(1, member("b"), Some(1)).is_some_and(|event| event.member.user == "b"));
    }
}
