//! Frames about the members of channels, and calls to nodes.

use bytes::Bytes;
use prost::Message;

use crate::members::{ClientId, Member};

/// A member of a channel.
#[derive(Clone, PartialEq, Message)]
pub struct WireMember {
    /// Its client ID, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub client: Bytes,
    /// See [`Member`].
    #[prost(string, tag = "2")]
    pub user: String,
    /// See [`Member`].
    #[prost(bytes = "bytes", tag = "3")]
    pub connection_info: Bytes,
    /// See [`Member`].
    #[prost(bytes = "bytes", tag = "4")]
    pub subscription_info: Bytes,
    /// See [`Member`].
    #[prost(bool, tag = "5")]
    pub presence: bool,
    /// See [`Member`].
    #[prost(bool, tag = "6")]
    pub announced: bool,
    /// The home has acknowledged its join.
    #[prost(bool, tag = "7")]
    pub acknowledged: bool,
}

impl WireMember {
    /// The member in a frame.
    pub fn new(client: ClientId, member: &Member, acknowledged: bool) -> Self {
        Self {
            client: Bytes::copy_from_slice(&client.to_be_bytes()),
            user: member.user.clone(),
            connection_info: member.connection_info.clone(),
            subscription_info: member.subscription_info.clone(),
            presence: member.presence,
            announced: member.announced,
            acknowledged,
        }
    }

    /// The member with its ID; `None` if the ID is malformed.
    pub fn member(self) -> Option<(ClientId, Member)> {
        let client = ClientId::from_be_bytes(self.client[..].try_into().ok()?);
        // A frame holds many members: copies free it when this one leaves the memory.
        let member = Member {
            user: self.user,
            connection_info: Bytes::copy_from_slice(&self.connection_info),
            subscription_info: Bytes::copy_from_slice(&self.subscription_info),
            presence: self.presence,
            announced: self.announced,
        };
        Some((client, member))
    }
}

/// The members that a front has in a channel. They replace those that the home knew of it.
#[derive(Clone, PartialEq, Message)]
pub struct MemberList {
    /// Number of the watch.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Members.
    #[prost(message, repeated, tag = "2")]
    pub present: Vec<WireMember>,
    /// Members that unsubscribed, whose leave the home has not acknowledged.
    #[prost(message, repeated, tag = "3")]
    pub gone: Vec<WireMember>,
    /// The list is complete.
    #[prost(bool, tag = "4")]
    pub last: bool,
}

/// A change of a member: of a front to the home, and of the home to subscribers.
#[derive(Clone, PartialEq, Message)]
pub struct MemberEvent {
    /// Number of the watch.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// The member.
    #[prost(message, required, tag = "2")]
    pub member: WireMember,
    /// It unsubscribed.
    #[prost(bool, tag = "3")]
    pub gone: bool,
}

/// The home has taken a change of a member, or a list.
#[derive(Clone, PartialEq, Message)]
pub struct MemberDone {
    /// Number of the watch.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// The member; empty: the list of this watch.
    #[prost(bytes = "bytes", tag = "2")]
    pub client: Bytes,
    /// It unsubscribed.
    #[prost(bool, tag = "3")]
    pub gone: bool,
}

/// What a front has told of the members of watched channels. The home compares it with what it
/// knows, and wants the list of a channel where it differs.
#[derive(Clone, PartialEq, Message)]
pub struct MemberCheck {
    /// Numbers of the watches.
    #[prost(uint64, repeated, tag = "1")]
    pub numbers: Vec<u64>,
    /// For each watch, the sum of the hashes of the front's members.
    #[prost(fixed64, repeated, tag = "2")]
    pub hashes: Vec<u64>,
}

/// Lists the members of a channel that are in its presence.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct WirePresence {
    /// Maximum number of members; 0: only their numbers.
    #[prost(uint64, tag = "1")]
    pub limit: u64,
}

/// A call to a node: its meaning belongs to the layer above.
#[derive(Clone, PartialEq, Message)]
pub struct WireCall {
    /// The call.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
}
