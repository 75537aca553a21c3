//! Members: the clients that are subscribed to a channel, as others see them.

use bytes::Bytes;

/// The public ID of a client.
pub type ClientId = u128;

/// What other clients see of a subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The user; empty: anonymous.
    pub user: String,
    /// Information about the connection.
    pub connection_info: Bytes,
    /// Information about the subscription.
    pub subscription_info: Bytes,
    /// It is listed in the presence of the channel.
    pub presence: bool,
    /// Its join and its leave are sent to subscribers.
    pub announced: bool,
}

/// A change of a member of another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberChange {
    /// It subscribed, or its information changed.
    Joined,
    /// It unsubscribed.
    Left,
}
