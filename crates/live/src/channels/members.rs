//! Presence, joins and leaves: of sessions here, and of channels here at other nodes. The home of a
//! channel keeps its presence, and announces joins and leaves.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfast_cluster::{ClientId, Member, MemberChange};
use steadfast_flow::Permit;
use uuid::Uuid;

use super::presence::{Presence, bytes_of_clients};
use super::{LiveChannels, refusal};
use crate::admission::Admission;
use crate::partition::{SessionId, SubscriptionKind};
use crate::protocol::codes::{self, ClientError};
use crate::protocol::message::{self, ClientInfo, PresenceStatsResult, Push};
use crate::session::SessionIdentity;

/// Memory for the members of a channel of another node, until their number is known.
const REMOTE_BYTES: usize = 256 << 10;

fn member_of(identity: &SessionIdentity, kind: &SubscriptionKind) -> Member {
    Member {
        user: identity.user.clone(),
        connection_info: identity.facts.read().info.clone().into(),
        subscription_info: kind.info.clone().into(),
        presence: kind.presence,
        announced: kind.announced,
    }
}

fn info_of(client: ClientId, member: &Member) -> ClientInfo {
    ClientInfo {
        user: member.user.clone(),
        client: Uuid::from_u128(client).to_string(),
        conn_info: member.connection_info.to_vec(),
        chan_info: member.subscription_info.to_vec(),
    }
}

fn push_of(channel: &str, info: ClientInfo, change: MemberChange) -> Push {
    let (presence, channel) = (Some(message::Presence { info: Some(info) }), channel.to_owned());
    match change {
        MemberChange::Joined => Push { channel, join: presence, ..Push::default() },
        MemberChange::Left => Push { channel, leave: presence, ..Push::default() },
    }
}

/// The members of channels, and their joins and leaves.
pub(crate) struct Members {
    channels: Arc<LiveChannels>,
    presence: Presence,
    admission: Arc<Admission>,
}

impl Members {
    /// No members, until a session subscribes to one of the channels.
    pub(crate) fn new(channels: Arc<LiveChannels>, admission: Arc<Admission>) -> Self {
        Self { channels, presence: Presence::default(), admission }
    }

    /// Checks whether the home of a channel can take another member, with `bytes` bytes of
    /// information.
    ///
    /// # Errors
    /// When the home cannot.
    pub(crate) fn check_join(&self, channel: &str, bytes: usize) -> Result<(), ClientError> {
        self.channels.homes.check_join(channel, bytes).map_err(refusal)
    }

    /// Sends the join of a new subscriber.
    pub(crate) fn on_subscribed(&self, identity: &SessionIdentity, channel: &Arc<str>, kind: &SubscriptionKind) {
        if !kind.presence && !kind.announced {
            return;
        }
        let client = identity.client;
        let is_remote = self.channels.homes.member_joined(channel, client.as_u128(), || member_of(identity, kind));
        if kind.announced && !is_remote {
            self.channels.announce(
                channel,
                client,
                push_of(channel, identity.client_info(&kind.info), MemberChange::Joined),
            );
        }
    }

    /// Adds a subscriber to the presence of a channel, or replaces its information there. The home
    /// of a channel of another node adds it with its join.
    pub(crate) fn set_presence(&self, identity: &SessionIdentity, channel: &Arc<str>, kind: &SubscriptionKind) {
        if kind.presence
            && !self.channels.homes.member_updated(channel, identity.client.as_u128(), || member_of(identity, kind))
        {
            self.presence.add(channel, identity.client, Arc::new(identity.client_info(&kind.info)));
        }
    }

    /// Removes a subscriber from the channel and its presence, and sends its leave.
    pub(crate) fn on_unsubscribed(
        &self,
        session: SessionId,
        identity: Option<&Arc<SessionIdentity>>,
        channel: &Arc<str>,
        kind: &SubscriptionKind,
    ) {
        self.channels.leave(session, channel);
        let Some(identity) = identity.filter(|_| kind.presence || kind.announced) else { return };
        let client = identity.client;
        if self.channels.homes.member_left(channel, client.as_u128(), || member_of(identity, kind)) {
            return;
        }
        if kind.presence {
            self.presence.remove(channel, &client);
        }
        if kind.announced {
            self.channels.announce(
                channel,
                client,
                push_of(channel, identity.client_info(&kind.info), MemberChange::Left),
            );
        }
    }

    /// Sends the join or leave of a member of any node to the subscribers here.
    pub(crate) fn announce(&self, channel: &Arc<str>, client: ClientId, member: &Member, change: MemberChange) {
        self.channels.announce(channel, Uuid::from_u128(client), push_of(channel, info_of(client, member), change));
    }

    /// A member of another node changed: the presence of a channel of this node follows.
    pub(crate) fn on_changed(&self, channel: &Arc<str>, client: ClientId, member: &Member, change: MemberChange) {
        let id = Uuid::from_u128(client);
        match change {
            MemberChange::Joined if member.presence => {
                self.presence.add(channel, id, Arc::new(info_of(client, member)));
            }
            MemberChange::Joined => {}
            MemberChange::Left => self.presence.remove(channel, &id),
        }
    }

    /// The members of a channel of this node, for another node.
    pub(crate) fn list(&self, channel: &str, limit: usize) -> Vec<(ClientId, Member)> {
        let listed = self.presence.list(channel, limit).into_iter();
        let member = |(client, info): (String, ClientInfo)| {
            let member = Member {
                user: info.user,
                connection_info: info.conn_info.into(),
                subscription_info: info.chan_info.into(),
                presence: true,
                announced: false,
            };
            Some((Uuid::parse_str(&client).ok()?.as_u128(), member))
        };
        listed.filter_map(member).collect()
    }

    /// The clients that are subscribed to a channel, at most `limit`, with the memory of the list,
    /// which counts for the share of `address`.
    ///
    /// # Errors
    /// When too much memory is in use, or the home of the channel does not answer.
    pub(crate) async fn clients_of(
        &self,
        channel: &str,
        limit: usize,
        address: Option<&Arc<str>>,
    ) -> Result<(BTreeMap<String, ClientInfo>, Permit), ClientError> {
        // Take the permit before making the list, which allocates the memory.
        let is_local = self.channels.homes.is_local(channel);
        let bytes = if is_local { self.presence.list_bytes(channel, limit) } else { REMOTE_BYTES };
        let mut permit = self.admission.answers.acquire(bytes).ok_or(codes::TOO_MANY_REQUESTS)?;
        let Some(found) = self.channels.homes.presence(channel, limit).await.map_err(refusal)? else {
            let permit = self.admission.answers.assign(permit, address).ok_or(codes::TOO_MANY_REQUESTS)?;
            return Ok((self.presence.list(channel, limit), permit));
        };
        let one = |(client, member): (ClientId, Member)| {
            let info = info_of(client, &member);
            (info.client.clone(), info)
        };
        let clients: BTreeMap<String, ClientInfo> = found.members.into_iter().map(one).collect();
        let bytes = bytes_of_clients(clients.values());
        if bytes > REMOTE_BYTES {
            permit = self.admission.answers.acquire(bytes).ok_or(codes::TOO_MANY_REQUESTS)?;
        }
        permit.shrink_to(bytes as u64);
        let permit = self.admission.answers.assign(permit, address).ok_or(codes::TOO_MANY_REQUESTS)?;
        Ok((clients, permit))
    }

    /// The numbers of clients and users in the presence of a channel of this node.
    pub(crate) fn counts_here(&self, channel: &str) -> PresenceStatsResult {
        self.presence.stats(channel)
    }

    /// The numbers of clients and users that are subscribed to a channel.
    ///
    /// # Errors
    /// When the home of the channel does not answer.
    pub(crate) async fn counts(&self, channel: &str) -> Result<PresenceStatsResult, ClientError> {
        let found = self.channels.homes.presence(channel, 0).await.map_err(refusal)?;
        Ok(found.map_or_else(
            || self.presence.stats(channel),
            |found| PresenceStatsResult { num_clients: found.clients, num_users: found.users },
        ))
    }
}
