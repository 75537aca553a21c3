//! Channels: ordered publications, durable before they are acknowledged, kept within each channel's
//! size and TTL.
//!
//! A publication has an *offset*, one more than its predecessor's. A channel has an *epoch*, which
//! changes only when history was lost. So a subscriber that knows a position resumes from there
//! without a gap, or learns that there is one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use steadfast_log::{Durability, Priority};

/// A position in a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Position {
    /// Epoch of the channel.
    pub epoch: u32,
    /// Offset of a publication; 0 before the first.
    pub offset: u64,
}

/// A stored publication.
#[derive(Debug, PartialEq, Eq)]
pub struct Publication {
    /// Offset in the channel.
    pub offset: u64,
    /// Time of publication, milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// Payload. The store does not interpret it.
    pub body: Bytes,
}

/// An idempotency key that is stored with its publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredKey {
    /// A hash of the key.
    pub key: u128,
    /// Position of the publication.
    pub position: Position,
    /// Time since the publication.
    pub age: Duration,
}

/// A publication to be stored.
#[derive(Debug, Clone)]
pub struct NewPublication {
    /// Payload. The store does not interpret it.
    pub body: Bytes,
    /// Number of publications that the channel keeps, this one included; at least 1.
    pub history_size: u64,
    /// Time that this publication is kept, milliseconds.
    pub history_ttl_ms: u64,
    /// Durability, which decides when the publication is answered and delivered.
    pub durability: Durability,
    /// Whether it may use space reserved for deletes, which must succeed for space to become free.
    pub priority: Priority,
    /// A hash of its idempotency key. The store keeps it with the publication.
    pub key: Option<u128>,
}

/// TTL of publications that are kept until removed: 100 years, in milliseconds.
pub const FOR_EVER_MS: u64 = 100 * 365 * 24 * 3600 * 1000;

/// Result of publishing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// Position of the publication.
    pub position: Position,
    /// Whether it was flushed before the answer.
    pub durable: bool,
}

/// Parameters of a history request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Start position, exclusive; the end position when `reverse`.
    pub since: Option<Position>,
    /// Maximum number of publications.
    pub limit: usize,
    /// Whether to return the newest first.
    pub reverse: bool,
}

/// Publications of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// Publications in order of offset; newest first with `reverse`.
    pub publications: Vec<Arc<Publication>>,
    /// Position of the channel.
    pub position: Position,
    /// Whether the requested position belongs to this channel and no publication after it is
    /// missing.
    pub complete: bool,
}

/// Receiver of publications. The commit path calls it in order of offsets for each channel, so it
/// must not block.
pub trait ChannelSink: Send + Sync + 'static {
    /// Delivers a publication that is durable or was published asynchronously.
    fn published(&self, channel: &Arc<str>, epoch: u32, publication: &Arc<Publication>);
}
