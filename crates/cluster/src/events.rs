//! What the layer above the links gets from them.

use steadfast_flow::BoxFuture;

use crate::frame::Kind;
use crate::outbox::Outbox;
use crate::roster::NodeIndex;

/// The layer above the links.
pub trait LinkEvents: Send + Sync + 'static {
    /// A link to a node is up. Frames for it go into the outbox. `restarted`: the node had a link
    /// before, and has started again since.
    fn on_up(&self, node: NodeIndex, outbox: &Outbox, restarted: bool);

    /// The link to a node has ended. No frame of it follows, and no other link is up.
    fn on_down(&self, node: NodeIndex);

    /// A frame of a node, in order.
    ///
    /// # Errors
    /// The frame is against the protocol: the link is closed. The text is for operators.
    fn on_frame(&self, node: NodeIndex, outbox: &Outbox, kind: Kind) -> Result<(), String>;

    /// No more requests are taken. Completes when those under way are answered.
    fn finish(&self) -> BoxFuture<'_, ()>;

    /// Completes when more frames can be handled; `None`: they can.
    fn keep_up(&self) -> Option<BoxFuture<'_, ()>>;
}
