//! A channel of another home, with its subscribers at this node.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::members::FrontMembers;
use super::requests::Question;
use super::state::FrontChannel;
use super::tail::HistoryBounds;
use crate::roster::NodeIndex;
use crate::sabotage::ClusterSabotage;

/// A channel of another home that has subscribers here, or had them lately.
pub(super) struct Entry {
    pub(super) home: NodeIndex,
    pub(super) channel: FrontChannel,
    /// Number of attachments.
    pub(super) attached: usize,
    pub(super) idle_since: Duration,
    /// It is in the queue of its home's link.
    pub(super) queued: bool,
    /// Woken when the channel is watched, or cannot be.
    pub(super) changed: Arc<Notify>,
    pub(super) questions: Vec<Question>,
    pub(super) members: FrontMembers,
}

impl Entry {
    pub(super) fn new(home: NodeIndex, bounds: Option<HistoryBounds>, sabotage: ClusterSabotage) -> Self {
        Self {
            home,
            channel: FrontChannel::new(bounds).sabotaged(sabotage),
            attached: 0,
            idle_since: Duration::ZERO,
            queued: false,
            changed: Arc::default(),
            questions: Vec::new(),
            members: FrontMembers::new(sabotage),
        }
    }

    /// The number of the watch, if the home knows it.
    pub(super) fn watch_number(&self) -> Option<u64> {
        (!self.channel.is_unwatched()).then(|| self.channel.number())
    }
}
