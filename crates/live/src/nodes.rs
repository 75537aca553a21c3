//! What other nodes of a cluster want from this one.

use std::sync::Arc;

use bytes::Bytes;
use steadfast_cluster::{ClientId, Member, MemberChange, Sessions};
use steadfast_flow::BoxFuture;
use steadfast_store::Position;

use crate::api::answer_call;
use crate::node::Node;

impl Sessions for Node {
    fn reset(&self, channel: &Arc<str>, position: Position) {
        self.reset_channel(channel, position);
    }

    fn member_changed(&self, channel: &Arc<str>, client: ClientId, member: &Member, change: MemberChange) {
        self.on_member_changed(channel, client, member, change);
    }

    fn announce(&self, channel: &Arc<str>, client: ClientId, member: &Member, change: MemberChange) {
        self.announce_member(channel, client, member, change);
    }

    fn presence(&self, channel: &str, limit: usize) -> Vec<(ClientId, Member)> {
        self.members(channel, limit)
    }

    fn presence_counts(&self, channel: &str) -> (u32, u32) {
        let stats = self.presence.stats(channel);
        (stats.num_clients, stats.num_users)
    }

    fn call(&self, call: Bytes) -> BoxFuture<'_, Bytes> {
        Box::pin(answer_call(self, call))
    }

    fn keep_up(&self) -> Option<BoxFuture<'_, ()>> {
        self.has_backlog().then(|| -> BoxFuture<'_, ()> { Box::pin(self.no_backlog()) })
    }
}
