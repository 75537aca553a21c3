//! The channels of the cluster, as the sessions of this node use them.
//!
//! A channel is either here, on the disks of this node, or at another home. Without a cluster all
//! channels are here.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use serde::Serialize;
use steadfast_flow::{BoxFuture, Env, has_fault};
use steadfast_store::{ChannelHandle, ChannelSink, History, HistoryQuery, Position, Publication, Store};

use crate::error::ChannelError;
use crate::events::LinkEvents;
use crate::frame::Kind;
use crate::frame::channels::{Command, WireClear, WirePublish};
use crate::frame::members::{WireMember, WirePresence};
use crate::front::{Front, HistoryBounds};
use crate::home::{Home, HomeMembers, HomeRequests};
use crate::keys::KeyHash;
use crate::members::{ClientId, Member, MemberChange};
use crate::options::ChannelsOptions;
use crate::outbox::Outbox;
use crate::publish::{Accepted, Publish, StoreTerms};
use crate::roster::{NodeIndex, Roster};
use crate::sabotage::ClusterSabotage;
use crate::sessions::Sessions;

/// Largest payload of a publication in a cluster, bytes. It must fit into a frame.
const BODY_BYTES_MAX: usize = 8 << 20;

/// A channel.
#[derive(Clone)]
pub enum Channel {
    /// It is on the disks of this node.
    Local(ChannelHandle),
    /// Another node is its home.
    Remote(RemoteChannel),
}

impl Channel {
    /// The position: the last publication that can be delivered. For a channel of another node it
    /// must be attached.
    ///
    /// # Errors
    /// Those of the store, or when the home does not answer.
    pub async fn position(&self) -> Result<Position, ChannelError> {
        match self {
            Self::Local(handle) => Ok(handle.position()?),
            Self::Remote(RemoteChannel { front, name, .. }) => front.position(name).await,
        }
    }

    /// The position, if it is known here without waiting.
    ///
    /// # Errors
    /// Those of the store.
    pub fn known_position(&self) -> Result<Option<Position>, ChannelError> {
        match self {
            Self::Local(handle) => Ok(Some(handle.position()?)),
            Self::Remote(RemoteChannel { front, name, .. }) => Ok(front.current(name)),
        }
    }

    /// The kept publications: at most `bytes_max` bytes of them, but at least one.
    ///
    /// # Errors
    /// Those of the store, or when the home does not answer.
    pub async fn history_within(&self, query: HistoryQuery, bytes_max: usize) -> Result<History, ChannelError> {
        match self {
            Self::Local(handle) => Ok(handle.history_within(query, bytes_max).await?),
            Self::Remote(RemoteChannel { front, name, home }) => front.history(name, *home, query, bytes_max).await,
        }
    }
}

/// A channel whose home is another node.
#[derive(Clone)]
pub struct RemoteChannel {
    front: Arc<Front>,
    name: Arc<str>,
    home: NodeIndex,
}

/// Watches a channel of another node, until it is dropped.
pub struct Attachment(RemoteChannel);

impl Drop for Attachment {
    fn drop(&mut self) {
        self.0.front.detach(&self.0.name);
    }
}

/// The members of a channel of another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// The members, as many as were wanted.
    pub members: Vec<(ClientId, Member)>,
    /// Number of all clients.
    pub clients: u32,
    /// Number of all users.
    pub users: u32,
}

/// The channels' part of the status of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ChannelsStatus {
    /// Channels of other nodes that this node watches.
    pub watched: u64,
    /// Watches of other nodes on channels of this node.
    pub watches: u64,
    /// Publications sent to other nodes since the start.
    pub publications_sent: u64,
    /// Publications received from other nodes since the start.
    pub publications_received: u64,
    /// Histories read for other nodes since the start.
    pub histories_read: u64,
    /// Histories requested from other nodes since the start.
    pub histories_requested: u64,
    /// Channels that began anew for sessions here, since the start.
    pub resets: u64,
    /// Watches that were repeated because publications were missing, since the start.
    pub gaps: u64,
    /// Bytes of publications of other nodes in memory.
    pub tail_bytes: u64,
    /// Clients of other nodes that are members of channels of this node.
    pub members: u64,
}

struct Cluster {
    roster: Arc<Roster>,
    front: Arc<Front>,
}

struct ChannelsShared {
    home: Arc<Home>,
    cluster: Option<Cluster>,
}

/// The channels of this node and of others. Clones share it.
#[derive(Clone)]
pub struct Channels(Arc<ChannelsShared>);

impl Channels {
    /// The channels of a process without a cluster.
    pub fn alone(store: Store, env: Env) -> Self {
        let home = Home::new(0, Some(store), &ChannelsOptions::default(), env);
        Self(Arc::new(ChannelsShared { home, cluster: None }))
    }

    /// The channels of a node. A node that is not among the homes needs no store.
    pub fn new(store: Option<Store>, roster: Arc<Roster>, options: &ChannelsOptions, env: Env) -> Self {
        let nodes = roster.nodes().count();
        let home = Home::new(nodes, store, options, env.clone());
        home.start_expiry(&env);
        let sink: Arc<dyn ChannelSink> = home.clone();
        home.set_sink(&sink);
        let front = Front::new(nodes, options, env);
        Self(Arc::new(ChannelsShared { home, cluster: Some(Cluster { roster, front }) }))
    }

    /// Sets the sessions, which get the publications.
    pub fn set_sessions(&self, sessions: &Arc<dyn Sessions>) {
        self.0.home.set_sessions(sessions);
        match &self.0.cluster {
            Some(cluster) => cluster.front.set_sessions(sessions),
            None => {
                let sink: Arc<dyn ChannelSink> = sessions.clone();
                self.0.home.set_sink(&sink);
            }
        }
    }

    /// Sets how long a channel without publications keeps its epoch and offset, on the disks of
    /// this node; 30 days is the minimum.
    pub fn set_retention(&self, retention: Duration) {
        self.0.home.set_retention(retention);
    }

    /// The front and the home of a channel of another node.
    fn remote(&self, channel: &str) -> Option<(&Arc<Front>, NodeIndex)> {
        let cluster = self.0.cluster.as_ref()?;
        let home = cluster.roster.home(channel);
        (home != cluster.roster.own()).then_some((&cluster.front, home))
    }

    /// Whether this node is the home of a channel.
    pub fn is_local(&self, channel: &str) -> bool {
        self.remote(channel).is_none()
    }

    /// A channel.
    ///
    /// # Errors
    /// Those of the store.
    pub fn open(&self, channel: &str) -> Result<Channel, ChannelError> {
        Ok(match self.remote(channel) {
            None => Channel::Local(self.0.home.open(channel)?),
            Some((front, home)) => Channel::Remote(RemoteChannel { front: front.clone(), name: channel.into(), home }),
        })
    }

    /// Begins to watch a channel that has a subscriber here; `None`: it needs no watch. `bounds` is
    /// what the channel keeps; `None`: no history.
    pub fn attach(&self, channel: &Arc<str>, bounds: Option<HistoryBounds>) -> Option<Attachment> {
        let (front, home) = self.remote(channel)?;
        front.attach(channel, home, bounds);
        Some(Attachment(RemoteChannel { front: front.clone(), name: channel.clone(), home }))
    }

    /// Submits a publication to be stored. Those of one caller to one channel stay in order.
    ///
    /// # Errors
    /// When the publication is refused.
    pub async fn submit(
        &self,
        channel: &Channel,
        terms: StoreTerms,
        publish: Publish,
    ) -> Result<Accepted, ChannelError> {
        self.check(|| publish.body.clone())?;
        match channel {
            Channel::Remote(channel)
                if has_fault(self.0.home.sabotage, ClusterSabotage::KeyAtFront) && !publish.key.is_empty() =>
            {
                Ok(self.keyed_at_front(channel.clone(), terms, publish))
            }
            Channel::Local(handle) => HomeRequests(&self.0.home).store(handle.clone(), terms, publish).await,
            Channel::Remote(RemoteChannel { front, name, home }) => forward(front, *home, name, Some(terms), publish),
        }
    }

    fn keyed_at_front(&self, channel: RemoteChannel, terms: StoreTerms, publish: Publish) -> Accepted {
        let Publish { body, key, permit } = publish;
        let RemoteChannel { front, name, home } = channel;
        let (unkeyed, to) = (Publish { body, key: String::new(), permit: None }, name.clone());
        let submit = async move { forward(&front, home, &to, Some(terms), unkeyed) };
        HomeRequests(&self.0.home).keyed(name, None, KeyHash::new(&key), permit, submit)
    }

    /// Submits a publication that is only delivered. Those of one caller to one channel stay in
    /// order.
    ///
    /// # Errors
    /// When the publication is refused.
    pub async fn deliver(&self, channel: &str, publish: Publish) -> Result<Accepted, ChannelError> {
        self.check(|| publish.body.clone())?;
        match self.remote(channel) {
            None => HomeRequests(&self.0.home).deliver(channel, publish).await,
            Some((front, home)) => forward(front, home, channel, None, publish),
        }
    }

    /// Checks the length of a payload.
    ///
    /// # Errors
    /// It is longer than a cluster can carry.
    pub fn check(&self, body: impl FnOnce() -> Bytes) -> Result<(), ChannelError> {
        let fits = self.0.cluster.is_none() || body().len() <= BODY_BYTES_MAX;
        if fits { Ok(()) } else { Err(ChannelError::TooLarge) }
    }

    /// Delivers a publication of a channel of this node that is not stored: to other nodes, and
    /// with `here` to the sessions of this one. All get such publications in one order.
    pub fn deliver_unstored(&self, channel: &str, publication: impl FnOnce() -> Publication, here: impl FnOnce()) {
        match self.0.cluster {
            Some(_) => self.0.home.publish(channel, &publication(), here),
            None => here(),
        }
    }

    /// Checks that a join with that many bytes can be sent to the home of a channel.
    ///
    /// # Errors
    /// The link to the home has too much to send.
    pub fn check_join(&self, channel: &str, bytes: usize) -> Result<(), ChannelError> {
        match self.remote(channel) {
            Some((front, home)) if !front.may_join(home, bytes) => Err(ChannelError::Busy),
            _ => Ok(()),
        }
    }

    /// A client at this node subscribed. Returns whether the home of the channel is another node,
    /// which then keeps the presence and announces the join to all subscribers. Otherwise the join
    /// is announced to other nodes only.
    pub fn member_joined(&self, channel: &str, client: ClientId, member: impl FnOnce() -> Member) -> bool {
        match self.remote(channel) {
            Some((front, _)) => front.member_joined(channel, client, Arc::new(member())),
            None => self.announce(channel, client, member, MemberChange::Joined),
        }
        !self.is_local(channel)
    }

    fn announce(&self, channel: &str, client: ClientId, member: impl FnOnce() -> Member, change: MemberChange) {
        if self.0.cluster.is_some() {
            let member = member();
            if member.announced {
                HomeMembers(&self.0.home).announce(channel, client, &member, change);
            }
        }
    }

    /// The information of a client changed. Returns whether the channel's home is another node.
    pub fn member_updated(&self, channel: &str, client: ClientId, member: impl FnOnce() -> Member) -> bool {
        let remote = self.remote(channel);
        if let Some((front, _)) = remote {
            front.member_updated(channel, client, Arc::new(member()));
        }
        remote.is_some()
    }

    /// A client at this node unsubscribed: see [`Channels::member_joined`].
    pub fn member_left(&self, channel: &str, client: ClientId, member: impl FnOnce() -> Member) -> bool {
        match self.remote(channel) {
            Some((front, _)) => front.member_left(channel, client),
            None => self.announce(channel, client, member, MemberChange::Left),
        }
        !self.is_local(channel)
    }

    /// The members of a channel, at most `limit`; `None`: its home is this node.
    ///
    /// # Errors
    /// When its home does not answer.
    pub async fn presence(&self, channel: &str, limit: usize) -> Result<Option<Presence>, ChannelError> {
        let Some((front, home)) = self.remote(channel) else { return Ok(None) };
        let command = Command::Presence(WirePresence { limit: limit as u64 });
        let response = front.ask(home, channel, command).await?;
        let members = response.members.into_iter().filter_map(WireMember::member).collect();
        Ok(Some(Presence { members, clients: response.clients, users: response.users }))
    }

    /// Removes the history of a channel.
    ///
    /// # Errors
    /// Those of the store, or of the home.
    pub async fn clear(&self, channel: &str) -> Result<(), ChannelError> {
        match self.remote(channel) {
            None => HomeRequests(&self.0.home).clear(channel).await,
            Some((front, home)) => front.ask(home, channel, Command::Clear(WireClear {})).await.map(drop),
        }
    }

    /// Calls all other nodes, and returns their answers with the names of the nodes, in the order
    /// of the list of nodes. A node without a link for long is left out. An error is that of a node
    /// without a link, or that does not answer within five seconds.
    pub async fn call_others(&self, call: Bytes) -> Vec<(String, Result<Bytes, ChannelError>)> {
        let Some(Cluster { roster, front }) = &self.0.cluster else { return Vec::new() };
        let others = roster.nodes().filter(|node| *node != roster.own() && !front.is_lost(*node));
        let answers = others.map(|node| {
            let call = call.clone();
            async move { (roster.name(node).to_owned(), front.call(node, call).await) }
        });
        join_all(answers).await
    }

    /// How long this node has been without a link to any home; `None`: it has one, or is a home.
    pub fn without_homes(&self) -> Option<Duration> {
        let Cluster { roster, front } = self.0.cluster.as_ref()?;
        let homes = roster.nodes().filter(|node| roster.homes().iter().any(|home| home == roster.name(*node)));
        let down = homes.map(|home| if home == roster.own() { None } else { front.down_for(home) });
        // The home whose link was lost last counts.
        down.collect::<Option<Vec<Duration>>>()?.into_iter().min()
    }

    /// The name of this node in the cluster, if there is one.
    pub fn node_name(&self) -> Option<&str> {
        self.0.cluster.as_ref().map(|cluster| cluster.roster.name(cluster.roster.own()))
    }

    /// The channels' part of the status; `None` without a cluster.
    pub fn status(&self) -> Option<ChannelsStatus> {
        let front = &self.0.cluster.as_ref()?.front;
        let (home, counters) = (&self.0.home, &front.counters);
        Some(ChannelsStatus {
            watched: front.channels() as u64,
            watches: home.watches() as u64,
            publications_sent: home.publications(),
            publications_received: counters.publications.load(Relaxed),
            histories_read: home.requests.histories.load(Relaxed),
            histories_requested: counters.history_requests.load(Relaxed),
            resets: counters.resets.load(Relaxed),
            gaps: counters.gaps.load(Relaxed),
            tail_bytes: front.tail_bytes(),
            members: HomeMembers(home).members() as u64,
        })
    }
}

/// Sends a publication to the home of its channel.
fn forward(
    front: &Front,
    home: NodeIndex,
    channel: &str,
    terms: Option<StoreTerms>,
    publish: Publish,
) -> Result<Accepted, ChannelError> {
    let publish = WirePublish { body: publish.body, store: terms.map(Into::into), key: publish.key };
    front.request(home, channel, Command::Publish(publish)).map(Accepted::Remote)
}

impl LinkEvents for Channels {
    fn on_up(&self, node: NodeIndex, outbox: &Outbox, restarted: bool) {
        if let Some(cluster) = &self.0.cluster {
            self.0.home.on_up(node, outbox, restarted);
            cluster.front.on_up(node, outbox);
        }
    }

    fn on_down(&self, node: NodeIndex) {
        if let Some(cluster) = &self.0.cluster {
            self.0.home.on_down(node);
            cluster.front.on_down(node);
        }
    }

    fn on_frame(&self, node: NodeIndex, outbox: &Outbox, kind: Kind) -> Result<(), String> {
        let (home, Some(Cluster { front, .. })) = (&self.0.home, &self.0.cluster) else { return Ok(()) };
        match kind {
            Kind::Watch(frame) => home.on_watch(node, outbox, frame),
            Kind::Unwatch(frame) => home.on_unwatch(node, frame),
            Kind::Request(frame) => HomeRequests(home).on_request(node, outbox, frame),
            Kind::MemberList(frame) => HomeMembers(home).on_member_list(node, outbox, frame),
            Kind::MemberEvent(frame) => HomeMembers(home).on_member(node, outbox, frame),
            Kind::MemberCheck(frame) => HomeMembers(home).on_member_check(node, outbox, &frame),
            Kind::Watched(frame) => front.on_watched(node, frame),
            Kind::Published(frame) => front.on_published(node, frame),
            Kind::Cleared(frame) => front.on_cleared(node, frame),
            Kind::Response(frame) => front.on_response(node, frame),
            Kind::MemberDone(frame) => front.on_member_done(node, &frame),
            Kind::Announcement(frame) => front.on_announcement(node, frame),
            Kind::MembersWanted(frame) => front.on_members_wanted(node, frame),
            _ => return Err("the other node sent an unexpected frame".to_owned()),
        }
        Ok(())
    }

    fn finish(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.home.requests.finish())
    }

    fn keep_up(&self) -> Option<BoxFuture<'_, ()>> {
        self.0.home.keep_up()
    }
}
