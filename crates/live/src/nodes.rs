//! What other nodes of a cluster want from this one.

use std::sync::Arc;

use bytes::Bytes;
use steadfast_cluster::{ClientId, Member, MemberChange, Sessions};
use steadfast_flow::BoxFuture;
use steadfast_store::{ChannelSink, Position, Publication};

use crate::api::answer_call;
use crate::node::Node;

impl ChannelSink for Node {
    fn published(&self, channel: &Arc<str>, epoch: u32, stored: &Arc<Publication>) {
        self.channels.published(channel, epoch, stored);
    }
}

impl Sessions for Node {
    fn reset(&self, channel: &Arc<str>, position: Position) {
        self.channels.reset(channel, position);
    }

    fn member_changed(&self, channel: &Arc<str>, client: ClientId, member: &Member, change: MemberChange) {
        self.members.on_changed(channel, client, member, change);
    }

    fn announce(&self, channel: &Arc<str>, client: ClientId, member: &Member, change: MemberChange) {
        self.members.announce(channel, client, member, change);
    }

    fn presence(&self, channel: &str, limit: usize) -> Vec<(ClientId, Member)> {
        self.members.list(channel, limit)
    }

    fn presence_counts(&self, channel: &str) -> (u32, u32) {
        let stats = self.members.counts_here(channel);
        (stats.num_clients, stats.num_users)
    }

    fn call(&self, call: Bytes) -> BoxFuture<'_, Bytes> {
        Box::pin(answer_call(self, call))
    }

    fn keep_up(&self) -> Option<BoxFuture<'_, ()>> {
        let partitions = &self.partitions;
        partitions.has_backlog().then(|| -> BoxFuture<'_, ()> { Box::pin(partitions.no_backlog()) })
    }
}
