//! The sessions of this node, as the channels see them.

use std::sync::Arc;

use steadfast_flow::BoxFuture;
use steadfast_store::{ChannelSink, Position};

/// The sessions of this node.
pub trait Sessions: ChannelSink {
    /// Publications of a channel may be missing, and those before `position` are not delivered any
    /// more. Sessions with a position must recover.
    fn reset(&self, channel: &Arc<str>, position: Position);

    /// Completes when the backlog of publications is within its bound; `None`: it is now.
    fn keep_up(&self) -> Option<BoxFuture<'_, ()>>;
}
