//! The sessions of this node, as the channels see them.

use std::sync::Arc;

use bytes::Bytes;
use steadfast_flow::BoxFuture;
use steadfast_store::{ChannelSink, Position};

use crate::members::{ClientId, Member, MemberChange};

/// The sessions of this node.
pub trait Sessions: ChannelSink {
    /// Publications of a channel may be missing, and those before `position` are not delivered any
    /// more. Sessions with a position must recover.
    fn reset(&self, channel: &Arc<str>, position: Position);

    /// A client of another node subscribed to a channel of this node, changed its information, or
    /// unsubscribed: the presence changes.
    fn member_changed(&self, _channel: &Arc<str>, _client: ClientId, _member: &Member, _change: MemberChange) {}

    /// Sends a join or a leave to the subscribers of a channel at this node.
    fn announce(&self, _channel: &Arc<str>, _client: ClientId, _member: &Member, _change: MemberChange) {}

    /// The members of a channel of this node, at most `limit`.
    fn presence(&self, _channel: &str, _limit: usize) -> Vec<(ClientId, Member)> {
        Vec::new()
    }

    /// The numbers of clients and users in the presence of a channel of this node.
    fn presence_counts(&self, _channel: &str) -> (u32, u32) {
        (0, 0)
    }

    /// Carries out a call of another node.
    fn call(&self, _call: Bytes) -> BoxFuture<'_, Bytes> {
        Box::pin(async { Bytes::new() })
    }

    /// Completes when the backlog of publications is within its bound; `None`: it is now.
    fn keep_up(&self) -> Option<BoxFuture<'_, ()>>;
}
