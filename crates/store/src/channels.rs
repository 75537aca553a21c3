//! Channels: publications in order, durable before they are acknowledged, kept for as long and as many as each says.
//!
//! A publication has an *offset*, one more than the one before it, and the channel an *epoch*, which changes only when history was really lost.
//! So who knows a position can go on from there without a gap, or is told that there is one.

use std::sync::Arc;

use bytes::Bytes;
use steadfast_log::{Durability, Priority};

/// A place in a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Position {
    /// Of the channel.
    pub epoch: u32,
    /// Of a publication; 0 before the first.
    pub offset: u64,
}

/// Something published.
#[derive(Debug, PartialEq, Eq)]
pub struct Publication {
    /// Its place in the channel.
    pub offset: u64,
    /// When, milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// What. The store does not look into it.
    pub body: Bytes,
}

/// Something to be published.
#[derive(Debug, Clone)]
pub struct NewPublication {
    /// What. The store does not look into it.
    pub body: Bytes,
    /// How many of the channel's publications are kept, this one included; at least 1.
    pub history_size: u64,
    /// For how long this one is kept, milliseconds.
    pub history_ttl_ms: u64,
    /// When it is answered and delivered.
    pub durability: Durability,
    /// Whether it may use room that is kept for deletes: what has to get through for space to become free.
    pub priority: Priority,
}

/// Kept until it is removed, however long that takes: 100 years, in milliseconds.
pub const FOR_EVER_MS: u64 = 100 * 365 * 24 * 3600 * 1000;

/// What a publication got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// Its place.
    pub position: Position,
    /// Whether it was flushed before the answer.
    pub durable: bool,
}

/// Which publications are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Only those after this one (before it, when `reverse`).
    pub since: Option<Position>,
    /// How many at most.
    pub limit: usize,
    /// Newest first.
    pub reverse: bool,
}

/// Publications of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// In order (newest first, when so asked).
    pub publications: Vec<Arc<Publication>>,
    /// Where the channel stood.
    pub position: Position,
    /// Whether the position that was asked for is of this channel and nothing after it is missing.
    pub complete: bool,
}

/// Who is told of publications. Called in the order of offsets for each channel, on the commit path: it must not block.
pub trait ChannelSink: Send + Sync + 'static {
    /// A publication can be delivered now: it is durable, or was published asynchronously.
    fn published(&self, channel: &Arc<str>, epoch: u32, publication: &Arc<Publication>);
}
