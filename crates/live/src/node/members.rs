//! Presence, joins and leaves: of sessions here, and of channels here at other nodes. The home of a
//! channel keeps its presence, and announces joins and leaves.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfast_cluster::{ClientId, Member, MemberChange};
use steadfast_flow::Permit;
use uuid::Uuid;

use super::{Node, refusal};
use crate::partition::{SessionId, SubscriptionKind};
use crate::presence::bytes_of_clients;
use crate::protocol::codes::{self, ClientError};
use crate::protocol::message::{ClientInfo, Presence, PresenceStatsResult, Push};
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
    let (presence, channel) = (Some(Presence { info: Some(info) }), channel.to_owned());
    match change {
        MemberChange::Joined => Push { channel, join: presence, ..Push::default() },
        MemberChange::Left => Push { channel, leave: presence, ..Push::default() },
    }
}

impl Node {
    /// Sends the join of a new subscriber.
    pub(crate) fn on_subscribed(&self, identity: &SessionIdentity, channel: &Arc<str>, kind: &SubscriptionKind) {
        if !kind.presence && !kind.announced {
            return;
        }
        let client = identity.client;
        let is_remote = self.homes.member_joined(channel, client.as_u128(), || member_of(identity, kind));
        if kind.announced && !is_remote {
            self.announce(channel, client, push_of(channel, identity.client_info(&kind.info), MemberChange::Joined));
        }
    }

    /// Adds a subscriber to the presence of a channel, or replaces its information there. The home
    /// of a channel of another node adds it with its join.
    pub(crate) fn set_presence(&self, identity: &SessionIdentity, channel: &Arc<str>, kind: &SubscriptionKind) {
        if kind.presence && !self.homes.member_updated(channel, identity.client.as_u128(), || member_of(identity, kind))
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
        self.leave(session, channel);
        let Some(identity) = identity.filter(|_| kind.presence || kind.announced) else { return };
        let client = identity.client;
        if self.homes.member_left(channel, client.as_u128(), || member_of(identity, kind)) {
            return;
        }
        if kind.presence {
            self.presence.remove(channel, &client);
        }
        if kind.announced {
            self.announce(channel, client, push_of(channel, identity.client_info(&kind.info), MemberChange::Left));
        }
    }

    /// Sends the join or leave of a member of any node to the subscribers here.
    pub(crate) fn announce_member(&self, channel: &Arc<str>, client: ClientId, member: &Member, change: MemberChange) {
        self.announce(channel, Uuid::from_u128(client), push_of(channel, info_of(client, member), change));
    }

    /// A member of another node changed: the presence of a channel of this node follows.
    pub(crate) fn on_member_changed(
        &self,
        channel: &Arc<str>,
        client: ClientId,
        member: &Member,
        change: MemberChange,
    ) {
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
    pub(crate) fn members(&self, channel: &str, limit: usize) -> Vec<(ClientId, Member)> {
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
        let is_local = self.homes.is_local(channel);
        let bytes = if is_local { self.presence.list_bytes(channel, limit) } else { REMOTE_BYTES };
        let mut permit = self.answer_permit(bytes).ok_or(codes::TOO_MANY_REQUESTS)?;
        let Some(found) = self.homes.presence(channel, limit).await.map_err(refusal)? else {
            let permit = self.permit_of(permit, address).ok_or(codes::TOO_MANY_REQUESTS)?;
            return Ok((self.presence.list(channel, limit), permit));
        };
        let one = |(client, member): (ClientId, Member)| {
            let info = info_of(client, &member);
            (info.client.clone(), info)
        };
        let clients: BTreeMap<String, ClientInfo> = found.members.into_iter().map(one).collect();
        let bytes = bytes_of_clients(clients.values());
        if bytes > REMOTE_BYTES {
            permit = self.answer_permit(bytes).ok_or(codes::TOO_MANY_REQUESTS)?;
        }
        permit.shrink_to(bytes as u64);
        let permit = self.permit_of(permit, address).ok_or(codes::TOO_MANY_REQUESTS)?;
        Ok((clients, permit))
    }

    /// The numbers of clients and users that are subscribed to a channel.
    ///
    /// # Errors
    /// When the home of the channel does not answer.
    pub(crate) async fn client_counts(&self, channel: &str) -> Result<PresenceStatsResult, ClientError> {
        let found = self.homes.presence(channel, 0).await.map_err(refusal)?;
        Ok(found.map_or_else(
            || self.presence.stats(channel),
            |found| PresenceStatsResult { num_clients: found.clients, num_users: found.users },
        ))
    }
}
