//! Members: the clients that are subscribed to a channel, as others see them.

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3Default;

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

impl Member {
    /// A hash of the member, the same at all nodes. The sum of those of several members does not
    /// depend on their order.
    pub(crate) fn hash(&self, client: ClientId) -> u64 {
        let mut hasher = Xxh3Default::new();
        hasher.update(&client.to_be_bytes());
        for part in [self.user.as_bytes(), &self.connection_info, &self.subscription_info] {
            hasher.update(&(part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        hasher.update(&[self.presence.into(), self.announced.into()]);
        hasher.digest()
    }
}

/// A change of a member of another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberChange {
    /// It subscribed, or its information changed.
    Joined,
    /// It unsubscribed.
    Left,
}
