//! The messages of Centrifugo's client protocol, version 2, in both encodings from one definition.
//!
//! Names and field numbers are those of `client.proto` in github.com/centrifugal/protocol. In JSON,
//! `null` means the default value, and `bytes` fields hold raw JSON.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use serde::{Deserialize, Serialize};

use super::json::{by_channel, is_default, null_is_absent, null_values_are_absent, raw};

/// Makes the messages of a list. A field is left out of JSON if it has its default value, except
/// one marked `#[always]`: Centrifugo's tags of that field have no `omitempty`.
macro_rules! messages {
    ($($(#[doc = $doc:expr])* $name:ident { $($fields:tt)* })*) => {
        $(message! { [$(#[doc = $doc])* $name] [] $($fields)* })*
    };
}

macro_rules! message {
    ([$(#[doc = $doc:expr])* $name:ident] [$($done:tt)*]) => {
        $(#[doc = $doc])*
        #[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name { $($done)* }
    };
    ($head:tt [$($done:tt)*] $(#[doc = $doc:expr])* #[prost($($prost:tt)*)] #[always] $field:ident: $type:ty,
     $($rest:tt)*) => {
        message! { $head [$($done)* $(#[doc = $doc])* #[prost($($prost)*)]
            #[serde(deserialize_with = "null_is_absent")] pub $field: $type,] $($rest)* }
    };
    ($head:tt [$($done:tt)*] $(#[doc = $doc:expr])* #[prost($($prost:tt)*)] #[serde($($serde:tt)*)]
     $field:ident: $type:ty, $($rest:tt)*) => {
        message! { $head [$($done)* $(#[doc = $doc])* #[prost($($prost)*)]
            #[serde(skip_serializing_if = "is_default", $($serde)*)] pub $field: $type,] $($rest)* }
    };
    ($head:tt [$($done:tt)*] $(#[doc = $doc:expr])* #[prost($($prost:tt)*)] $field:ident: $type:ty,
     $($rest:tt)*) => {
        message! { $head [$($done)* $(#[doc = $doc])* #[prost($($prost)*)]
            #[serde(skip_serializing_if = "is_default", deserialize_with = "null_is_absent")]
            pub $field: $type,] $($rest)* }
    };
}

messages! {
    /// The error of a command.
    ErrorMessage {
        /// The code: see [`super::codes`].
        #[prost(uint32, tag = "1")] code: u32,
        /// The text, for people.
        #[prost(string, tag = "2")] message: String,
        /// Whether the client should retry.
        #[prost(bool, tag = "3")] temporary: bool,
    }

    /// A message from the client: one request is set; an empty command is a pong.
    Command {
        /// Matches replies to commands; 0: no reply expected.
        #[prost(uint32, tag = "1")] id: u32,
        /// Connects the session.
        #[prost(message, optional, tag = "4")] connect: Option<ConnectRequest>,
        /// Subscribes to a channel.
        #[prost(message, optional, tag = "5")] subscribe: Option<SubscribeRequest>,
        /// Unsubscribes from a channel.
        #[prost(message, optional, tag = "6")] unsubscribe: Option<ChannelRequest>,
        /// Publishes to a channel.
        #[prost(message, optional, tag = "7")] publish: Option<PublishRequest>,
        /// Requests the presence of a channel.
        #[prost(message, optional, tag = "8")] presence: Option<ChannelRequest>,
        /// Requests the number of subscribers.
        #[prost(message, optional, tag = "9")] presence_stats: Option<ChannelRequest>,
        /// Requests the history of a channel.
        #[prost(message, optional, tag = "10")] history: Option<HistoryRequest>,
        /// Checks the connection.
        #[prost(message, optional, tag = "11")] ping: Option<Empty>,
        /// A message to the back end without a reply.
        #[prost(message, optional, tag = "12")] send: Option<SendRequest>,
        /// Calls the back end.
        #[prost(message, optional, tag = "13")] rpc: Option<RpcRequest>,
        /// A new connection token.
        #[prost(message, optional, tag = "14")] refresh: Option<RefreshRequest>,
        /// A new subscription token.
        #[prost(message, optional, tag = "15")] sub_refresh: Option<SubRefreshRequest>,
    }

    /// A message from the server: the reply to a command, or a push. An empty reply is a ping.
    Reply {
        /// The ID of the command; 0 for a push.
        #[prost(uint32, tag = "1")] id: u32,
        /// The error of the command.
        #[prost(message, optional, tag = "2")] error: Option<ErrorMessage>,
        /// A push, without a command.
        #[prost(message, optional, tag = "4")] push: Option<Push>,
        /// The reply to `connect`.
        #[prost(message, optional, tag = "5")] connect: Option<ConnectResult>,
        /// The reply to `subscribe`.
        #[prost(message, optional, tag = "6")] subscribe: Option<SubscribeResult>,
        /// The reply to `unsubscribe`.
        #[prost(message, optional, tag = "7")] unsubscribe: Option<Empty>,
        /// The reply to `publish`.
        #[prost(message, optional, tag = "8")] publish: Option<Empty>,
        /// The reply to `presence`.
        #[prost(message, optional, tag = "9")] presence: Option<PresenceResult>,
        /// The reply to `presence_stats`.
        #[prost(message, optional, tag = "10")] presence_stats: Option<PresenceStatsResult>,
        /// The reply to `history`.
        #[prost(message, optional, tag = "11")] history: Option<HistoryResult>,
        /// The reply to `ping`.
        #[prost(message, optional, tag = "12")] ping: Option<Empty>,
        /// The reply to `rpc`.
        #[prost(message, optional, tag = "13")] rpc: Option<RpcResult>,
        /// The reply to `refresh`.
        #[prost(message, optional, tag = "14")] refresh: Option<RefreshResult>,
        /// The reply to `sub_refresh`.
        #[prost(message, optional, tag = "15")] sub_refresh: Option<Expiry>,
    }

    /// A message that the server sends without a request.
    Push {
        /// The channel of the push; empty for the session itself.
        #[prost(string, tag = "2")] channel: String,
        /// A publication.
        #[prost(message, optional, tag = "4")] #[serde(rename = "pub")] publication: Option<Publication>,
        /// A session subscribed to the channel.
        #[prost(message, optional, tag = "5")] join: Option<Presence>,
        /// A session left the channel.
        #[prost(message, optional, tag = "6")] leave: Option<Presence>,
        /// The server ended a subscription.
        #[prost(message, optional, tag = "7")] unsubscribe: Option<Unsubscribe>,
        /// A message to this session.
        #[prost(message, optional, tag = "8")] message: Option<SendRequest>,
        /// The server made a subscription.
        #[prost(message, optional, tag = "9")] subscribe: Option<Subscribe>,
        /// A unidirectional session is connected.
        #[prost(message, optional, tag = "10")] connect: Option<ConnectResult>,
        /// The session ends.
        #[prost(message, optional, tag = "11")] disconnect: Option<Disconnect>,
        /// The session has a new expiry.
        #[prost(message, optional, tag = "12")] refresh: Option<Expiry>,
    }

    /// A session and its user.
    ClientInfo {
        /// The user ID.
        #[prost(string, tag = "1")] #[always] user: String,
        /// The client ID of the session.
        #[prost(string, tag = "2")] #[always] client: String,
        /// The `info` of the session from the back end.
        #[prost(bytes = "vec", tag = "3")] #[serde(with = "raw")] conn_info: Vec<u8>,
        /// The `info` of the subscription from the back end.
        #[prost(bytes = "vec", tag = "4")] #[serde(with = "raw")] chan_info: Vec<u8>,
    }

    /// A publication of a channel.
    Publication {
        /// The published data.
        #[prost(bytes = "bytes", tag = "4")] #[serde(with = "raw")] data: Bytes,
        /// The publishing session, if a session published.
        #[prost(message, optional, tag = "5")] info: Option<ClientInfo>,
        /// The offset in the channel; 0 without a history.
        #[prost(uint64, tag = "6")] offset: u64,
        /// Tags from the publisher.
        #[prost(btree_map = "string, string", tag = "7")] tags: BTreeMap<String, String>,
        /// Whether `data` is a delta to the previous publication.
        #[prost(bool, tag = "8")] delta: bool,
        /// The time of publication in milliseconds since the Unix epoch.
        #[prost(int64, tag = "9")] time: i64,
        /// The channel, if no other field names it.
        #[prost(string, tag = "10")] channel: String,
    }

    /// The session of a join or leave.
    Presence {
        /// The session and its user.
        #[prost(message, optional, tag = "1")] info: Option<ClientInfo>,
    }

    /// The server ended a subscription.
    Unsubscribe {
        /// The code: see [`super::codes`].
        #[prost(uint32, tag = "2")] code: u32,
        /// The text, for people.
        #[prost(string, tag = "3")] reason: String,
    }

    /// The server made a subscription.
    Subscribe {
        /// Whether the subscription is recoverable.
        #[prost(bool, tag = "1")] recoverable: bool,
        /// The epoch of the channel.
        #[prost(string, tag = "4")] epoch: String,
        /// The start offset.
        #[prost(uint64, tag = "5")] offset: u64,
        /// Whether the subscription is positioned.
        #[prost(bool, tag = "6")] positioned: bool,
        /// Data from the back end.
        #[prost(bytes = "vec", tag = "7")] #[serde(with = "raw")] data: Vec<u8>,
    }

    /// The session ends.
    Disconnect {
        /// The code: see [`super::codes`].
        #[prost(uint32, tag = "1")] code: u32,
        /// The text, for people.
        #[prost(string, tag = "2")] reason: String,
        /// Obsolete; the code replaces it.
        #[prost(bool, tag = "3")] reconnect: bool,
    }

    /// A lifetime.
    Expiry {
        /// Whether there is an expiry.
        #[prost(bool, tag = "1")] expires: bool,
        /// Seconds until the expiry.
        #[prost(uint32, tag = "2")] ttl: u32,
    }

    /// Connects a session.
    ConnectRequest {
        /// The connection token.
        #[prost(string, tag = "1")] token: String,
        /// Data for the back end.
        #[prost(bytes = "vec", tag = "2")] #[serde(with = "raw")] data: Vec<u8>,
        /// Server-side subscriptions to recover, by channel.
        #[prost(btree_map = "string, message", tag = "3")] subs: BTreeMap<String, SubscribeRequest>,
        /// The name of the client.
        #[prost(string, tag = "4")] name: String,
        /// The version of the client.
        #[prost(string, tag = "5")] version: String,
        /// Headers for the back end, where a browser cannot set HTTP headers.
        #[prost(btree_map = "string, string", tag = "6")]
        #[serde(deserialize_with = "null_values_are_absent")] headers: BTreeMap<String, String>,
        /// Capabilities of the client.
        #[prost(int64, tag = "7")] flag: i64,
    }

    /// An entry in the map of server-side subscriptions.
    Subscribed {
        /// The channel name.
        #[prost(string, tag = "1")] channel: String,
        /// The result of the subscription. It is sent even if empty: a map of `prost` would omit
        /// it, and Centrifugo's JavaScript SDK fails without the object.
        #[prost(message, required, tag = "2")] result: SubscribeResult,
    }

    /// A connected session.
    ConnectResult {
        /// The client ID of the session.
        #[prost(string, tag = "1")] client: String,
        /// The version of the server.
        #[prost(string, tag = "2")] version: String,
        /// Whether the session expires.
        #[prost(bool, tag = "3")] expires: bool,
        /// Seconds until the expiry.
        #[prost(uint32, tag = "4")] ttl: u32,
        /// Data from the back end.
        #[prost(bytes = "vec", tag = "5")] #[serde(with = "raw")] data: Vec<u8>,
        /// Server-side subscriptions by channel.
        #[prost(message, repeated, tag = "6")] #[serde(with = "by_channel")] subs: Vec<Subscribed>,
        /// Interval of pings in seconds.
        #[prost(uint32, tag = "7")] ping: u32,
        /// Whether the server expects pongs.
        #[prost(bool, tag = "8")] pong: bool,
        /// The session ID, for emulation.
        #[prost(string, tag = "9")] session: String,
        /// The ID of the server start, for emulation.
        #[prost(string, tag = "10")] node: String,
        /// The server's time in milliseconds since the Unix epoch.
        #[prost(int64, tag = "11")] time: i64,
    }

    /// Replaces the connection token.
    RefreshRequest {
        /// The new token.
        #[prost(string, tag = "1")] token: String,
    }

    /// The result of a token refresh.
    RefreshResult {
        /// The client ID of the session.
        #[prost(string, tag = "1")] client: String,
        /// The version of the server.
        #[prost(string, tag = "2")] version: String,
        /// Whether the session expires.
        #[prost(bool, tag = "3")] expires: bool,
        /// Seconds until the expiry.
        #[prost(uint32, tag = "4")] ttl: u32,
    }

    /// Subscribes to a channel.
    SubscribeRequest {
        /// The channel name.
        #[prost(string, tag = "1")] channel: String,
        /// The subscription token.
        #[prost(string, tag = "2")] token: String,
        /// Whether to recover from a position.
        #[prost(bool, tag = "3")] recover: bool,
        /// The epoch of the position.
        #[prost(string, tag = "6")] epoch: String,
        /// The offset of the position: the last publication that the client has.
        #[prost(uint64, tag = "7")] offset: u64,
        /// Data for the back end.
        #[prost(bytes = "vec", tag = "8")] #[serde(with = "raw")] data: Vec<u8>,
        /// Whether the client requests positioning.
        #[prost(bool, tag = "9")] positioned: bool,
        /// Whether the client requests recovery.
        #[prost(bool, tag = "10")] recoverable: bool,
        /// Whether the client requests joins and leaves.
        #[prost(bool, tag = "11")] join_leave: bool,
        /// The delta type that the client supports.
        #[prost(string, tag = "12")] delta: String,
        /// A filter on the tags of publications.
        #[prost(message, optional, tag = "13")] tf: Option<FilterNode>,
        /// Capabilities of the client.
        #[prost(int64, tag = "14")] flag: i64,
        /// The kind of subscription; 0: a stream, which is the only kind here.
        #[prost(int32, tag = "15")] #[serde(rename = "type", deserialize_with = "null_is_absent")] kind: i32,
    }

    /// The result of a subscription.
    SubscribeResult {
        /// Whether the subscription expires.
        #[prost(bool, tag = "1")] expires: bool,
        /// Seconds until the expiry.
        #[prost(uint32, tag = "2")] ttl: u32,
        /// Whether the subscription is recoverable.
        #[prost(bool, tag = "3")] recoverable: bool,
        /// The epoch of the channel.
        #[prost(string, tag = "6")] epoch: String,
        /// The missed publications.
        #[prost(message, repeated, tag = "7")] publications: Vec<Publication>,
        /// Whether these are all missed publications.
        #[prost(bool, tag = "8")] recovered: bool,
        /// The start offset.
        #[prost(uint64, tag = "9")] offset: u64,
        /// Whether the subscription is positioned.
        #[prost(bool, tag = "10")] positioned: bool,
        /// Data from the back end.
        #[prost(bytes = "vec", tag = "11")] #[serde(with = "raw")] data: Vec<u8>,
        /// Whether the client requested a recovery.
        #[prost(bool, tag = "12")] was_recovering: bool,
        /// Whether publications are sent as deltas.
        #[prost(bool, tag = "13")] delta: bool,
        /// The number that replaces the channel in pushes.
        #[prost(int64, tag = "14")] id: i64,
    }

    /// Replaces a subscription token.
    SubRefreshRequest {
        /// The channel name.
        #[prost(string, tag = "1")] channel: String,
        /// The new token.
        #[prost(string, tag = "2")] token: String,
    }

    /// A request with a channel only.
    ChannelRequest {
        /// The channel name.
        #[prost(string, tag = "1")] channel: String,
    }

    /// Publishes to a channel.
    PublishRequest {
        /// The channel name.
        #[prost(string, tag = "1")] channel: String,
        /// The data.
        #[prost(bytes = "bytes", tag = "2")] #[serde(with = "raw")] data: Bytes,
    }

    /// The presence of a channel.
    PresenceResult {
        /// Sessions by client ID.
        #[prost(btree_map = "string, message", tag = "1")] #[always] presence: BTreeMap<String, ClientInfo>,
    }

    /// The number of subscribers.
    PresenceStatsResult {
        /// The number of sessions.
        #[prost(uint32, tag = "1")] #[always] num_clients: u32,
        /// The number of users.
        #[prost(uint32, tag = "2")] #[always] num_users: u32,
    }

    /// A position in a channel.
    StreamPosition {
        /// The offset of a publication.
        #[prost(uint64, tag = "1")] offset: u64,
        /// The epoch of the channel.
        #[prost(string, tag = "2")] epoch: String,
    }

    /// Requests the history of a channel.
    HistoryRequest {
        /// The channel name.
        #[prost(string, tag = "1")] channel: String,
        /// Maximum number of publications; 0: none, negative: all.
        #[prost(int32, tag = "7")] limit: i32,
        /// The position after which to read; before it, if `reverse` is set.
        #[prost(message, optional, tag = "8")] since: Option<StreamPosition>,
        /// Whether to read the newest first.
        #[prost(bool, tag = "9")] reverse: bool,
    }

    /// The history of a channel.
    HistoryResult {
        /// The publications in the requested order.
        #[prost(message, repeated, tag = "1")] #[always] publications: Vec<Publication>,
        /// The epoch of the channel.
        #[prost(string, tag = "2")] #[always] epoch: String,
        /// The offset of the last publication.
        #[prost(uint64, tag = "3")] #[always] offset: u64,
    }

    /// A call of the back end.
    RpcRequest {
        /// The data for the back end.
        #[prost(bytes = "vec", tag = "1")] #[serde(with = "raw")] data: Vec<u8>,
        /// The method name.
        #[prost(string, tag = "2")] method: String,
    }

    /// The answer of the back end.
    RpcResult {
        /// The data from the back end.
        #[prost(bytes = "vec", tag = "1")] #[serde(with = "raw")] data: Vec<u8>,
    }

    /// A message of data only.
    SendRequest {
        /// The data.
        #[prost(bytes = "vec", tag = "1")] #[serde(with = "raw")] data: Vec<u8>,
    }

    /// A message without fields.
    Empty {}

    /// A condition on the tags of publications: a comparison (`op` empty) or a combination.
    FilterNode {
        /// The operator: empty, `and`, `or` or `not`.
        #[prost(string, tag = "1")] op: String,
        /// The tag to compare.
        #[prost(string, tag = "2")] key: String,
        /// The comparison: `eq`, `neq`, `in`, `nin`, `ex`, `nex`, `sw`, `ew`, `ct`, `lt`, `lte`,
        /// `gt`, `gte`.
        #[prost(string, tag = "3")] cmp: String,
        /// The value to compare with.
        #[prost(string, tag = "4")] val: String,
        /// The values to compare with.
        #[prost(string, repeated, tag = "5")] vals: Vec<String>,
        /// The conditions to combine.
        #[prost(message, repeated, tag = "6")] nodes: Vec<FilterNode>,
    }
}
