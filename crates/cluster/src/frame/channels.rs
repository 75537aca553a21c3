//! Frames about channels: between a front, which has sessions, and the home of the channel.

use std::sync::Arc;

use bytes::Bytes;
use prost::{Message, Oneof};
use steadfast_store::{History, HistoryQuery, Position, Publication};

use super::members::{WireCall, WireMember, WirePresence};

/// A position in a channel.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct WirePosition {
    /// Epoch of the channel.
    #[prost(uint32, tag = "1")]
    pub epoch: u32,
    /// Offset of a publication.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
}

/// A publication.
#[derive(Clone, PartialEq, Message)]
pub struct WirePublication {
    /// Its offset; 0: the channel does not keep it.
    #[prost(uint64, tag = "1")]
    pub offset: u64,
    /// Time of publication, milliseconds since the Unix epoch.
    #[prost(uint64, tag = "2")]
    pub time_ms: u64,
    /// Payload.
    #[prost(bytes = "bytes", tag = "3")]
    pub body: Bytes,
}

/// A front begins to watch a channel. The front numbers its watches; frames to it name the number.
#[derive(Clone, PartialEq, Message)]
pub struct Watch {
    /// Number of the watch, rising within the front's process.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Name of the channel.
    #[prost(string, tag = "2")]
    pub channel: String,
    /// Whether the channel keeps history.
    #[prost(bool, tag = "3")]
    pub history: bool,
    /// The front has all publications up to this position.
    #[prost(message, optional, tag = "4")]
    pub last: Option<WirePosition>,
}

/// The answer to a watch.
#[derive(Clone, PartialEq, Message)]
pub struct Watched {
    /// Number of the watch.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Position of the channel.
    #[prost(message, required, tag = "2")]
    pub position: WirePosition,
    /// Publications after the front's last position are missing: it begins anew at `position`.
    #[prost(bool, tag = "3")]
    pub reset: bool,
    /// Without `reset`: all publications after the front's last position, up to `position`.
    #[prost(message, repeated, tag = "4")]
    pub missed: Vec<WirePublication>,
    /// The answer continues in another frame, after `position`.
    #[prost(bool, tag = "6")]
    pub more: bool,
    /// A [`crate::ChannelError`] as a number: the watch failed. 0: it did not.
    #[prost(uint32, tag = "5")]
    pub error: u32,
}

/// A publication for a watch.
#[derive(Clone, PartialEq, Message)]
pub struct Published {
    /// Number of the watch.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// The publication.
    #[prost(message, required, tag = "2")]
    pub publication: WirePublication,
}

/// The number of a watch. A front sends it to end the watch, and a home when the channel's history
/// was removed.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct WatchNumber {
    /// Number of the watch.
    #[prost(uint64, tag = "1")]
    pub number: u64,
}

/// A request about a channel to its home.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// Number of the request on this link.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Name of the channel.
    #[prost(string, tag = "2")]
    pub channel: String,
    /// What is requested; `None`: a request that this build does not know.
    #[prost(oneof = "Command", tags = "3, 4, 5, 6, 7")]
    pub command: Option<Command>,
}

/// What a request is for.
#[derive(Clone, PartialEq, Oneof)]
pub enum Command {
    /// Publish.
    #[prost(message, tag = "3")]
    Publish(WirePublish),
    /// Read the history.
    #[prost(message, tag = "4")]
    History(WireHistoryQuery),
    /// Remove the history.
    #[prost(message, tag = "5")]
    Clear(WireClear),
    /// List the members.
    #[prost(message, tag = "6")]
    Presence(WirePresence),
    /// A call to the node itself; the channel is empty.
    #[prost(message, tag = "7")]
    Call(WireCall),
}

/// A publication to submit.
#[derive(Clone, PartialEq, Message)]
pub struct WirePublish {
    /// Payload.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    /// How to store it; `None`: it is only delivered.
    #[prost(message, optional, tag = "2")]
    pub store: Option<WireStore>,
    /// Idempotency key; empty: none.
    #[prost(string, tag = "3")]
    pub key: String,
}

/// How to store a publication: see [`steadfast_store::NewPublication`].
#[derive(Clone, Copy, PartialEq, Message)]
pub struct WireStore {
    /// Number of publications that the channel keeps.
    #[prost(uint64, tag = "1")]
    pub history_size: u64,
    /// Time that it is kept, milliseconds.
    #[prost(uint64, tag = "2")]
    pub history_ttl_ms: u64,
    /// Whether it is answered before it is flushed.
    #[prost(bool, tag = "3")]
    pub asynchronous: bool,
    /// Whether it may use space reserved for deletes.
    #[prost(bool, tag = "4")]
    pub reserved: bool,
    /// Share of the disk that it must leave free, percent.
    #[prost(uint32, tag = "5")]
    pub leaves_percent: u32,
}

/// A history to read: see [`HistoryQuery`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct WireHistoryQuery {
    /// Whether `epoch` and `offset` are given.
    #[prost(bool, tag = "1")]
    pub since: bool,
    /// Epoch of the start.
    #[prost(uint32, tag = "2")]
    pub epoch: u32,
    /// Offset of the start.
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    /// Maximum number of publications.
    #[prost(uint64, tag = "4")]
    pub limit: u64,
    /// Whether to return the newest first.
    #[prost(bool, tag = "5")]
    pub reverse: bool,
    /// Maximum bytes of publications; at least one is returned.
    #[prost(uint64, tag = "6")]
    pub bytes_max: u64,
}

/// Removes the history of a channel.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct WireClear {}

/// The answer to a request.
#[derive(Clone, PartialEq, Message)]
pub struct Response {
    /// Number of the request.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// A [`crate::ChannelError`] as a number; 0: none.
    #[prost(uint32, tag = "2")]
    pub error: u32,
    /// Position of the publication, or of the channel.
    #[prost(message, required, tag = "3")]
    pub position: WirePosition,
    /// Publications of a history.
    #[prost(message, repeated, tag = "4")]
    pub publications: Vec<WirePublication>,
    /// See [`History::complete`].
    #[prost(bool, tag = "5")]
    pub complete: bool,
    /// Members of a presence.
    #[prost(message, repeated, tag = "6")]
    pub members: Vec<WireMember>,
    /// Number of clients in a presence.
    #[prost(uint32, tag = "7")]
    pub clients: u32,
    /// Number of users in a presence.
    #[prost(uint32, tag = "8")]
    pub users: u32,
    /// The answer to a call.
    #[prost(bytes = "bytes", tag = "9")]
    pub body: Bytes,
}

impl From<Position> for WirePosition {
    fn from(position: Position) -> Self {
        Self { epoch: position.epoch, offset: position.offset }
    }
}

impl From<WirePosition> for Position {
    fn from(position: WirePosition) -> Self {
        Self { epoch: position.epoch, offset: position.offset }
    }
}

impl From<&Publication> for WirePublication {
    fn from(publication: &Publication) -> Self {
        let Publication { offset, time_ms, body } = publication;
        Self { offset: *offset, time_ms: *time_ms, body: body.clone() }
    }
}

impl From<WirePublication> for Publication {
    fn from(publication: WirePublication) -> Self {
        let WirePublication { offset, time_ms, body } = publication;
        // A frame holds many publications: a copy frees it when this one leaves the memory.
        Self { offset, time_ms, body: Bytes::copy_from_slice(&body) }
    }
}

impl WireHistoryQuery {
    /// The query in a frame.
    pub fn new(query: HistoryQuery, bytes_max: usize) -> Self {
        let since = query.since.unwrap_or_default();
        Self {
            since: query.since.is_some(),
            epoch: since.epoch,
            offset: since.offset,
            limit: query.limit as u64,
            reverse: query.reverse,
            bytes_max: bytes_max as u64,
        }
    }

    /// The query.
    pub fn query(&self) -> HistoryQuery {
        let since = self.since.then_some(Position { epoch: self.epoch, offset: self.offset });
        HistoryQuery { since, limit: usize::try_from(self.limit).unwrap_or(usize::MAX), reverse: self.reverse }
    }
}

impl Response {
    /// The history in an answer.
    pub fn into_history(self) -> History {
        let publications = self.publications.into_iter().map(|one| Arc::new(one.into())).collect();
        History { publications, position: self.position.into(), complete: self.complete }
    }
}

/// Publications for a frame.
pub fn to_wire(publications: &[Arc<Publication>]) -> Vec<WirePublication> {
    publications.iter().map(|publication| WirePublication::from(&**publication)).collect()
}
