//! The messages of Centrifugo's client protocol, version 2, in both encodings from one definition.
//!
//! Names and numbers are those of `client.proto` in github.com/centrifugal/protocol. In JSON, absent and default values are left out, and
//! `bytes` fields hold JSON as it is.

use std::collections::BTreeMap;

use prost::Message;
use serde::{Deserialize, Serialize};

/// `bytes` fields in JSON: a JSON value as it stands, not base64.
mod raw {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
    use serde_json::value::RawValue;

    pub fn serialize<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
        let mut text = std::str::from_utf8(bytes).map_err(ser::Error::custom)?.to_owned();
        // A line end would end the message. JSON has them between its parts only, where a space says the same.
        if text.contains(['\n', '\r']) {
            text = text.replace(['\n', '\r'], " ");
        }
        RawValue::from_string(text).map_err(ser::Error::custom)?.serialize(s)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        let value = Box::<RawValue>::deserialize(d).map_err(de::Error::custom)?;
        // As the reference server: no data and `null` are the same.
        if value.get() == "null" { Ok(Vec::new()) } else { Ok(value.get().as_bytes().to_vec()) }
    }
}

/// A map in JSON, entries in Protobuf, which is the same on the wire.
mod by_channel {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::{SubscribeResult, Subscribed};

    pub fn serialize<S: Serializer>(subs: &[Subscribed], s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(subs.iter().map(|sub| (&sub.channel, &sub.result)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Subscribed>, D::Error> {
        let subs = BTreeMap::<String, SubscribeResult>::deserialize(d)?;
        Ok(subs.into_iter().map(|(channel, result)| Subscribed { channel, result }).collect())
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

macro_rules! messages {
    ($($(#[doc = $doc:expr])* $name:ident { $($(#[doc = $field_doc:expr])* #[prost($($prost:tt)*)] $(#[serde($($serde:tt)*)])? $field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name {$(
            $(#[doc = $field_doc])*
            #[prost($($prost)*)]
            #[serde(skip_serializing_if = "is_default")]
            $(#[serde($($serde)*)])?
            pub $field: $type,
        )*}
    )*};
}

messages! {
    /// Why a command was refused.
    ErrorMessage {
        /// See [`super::codes`].
        #[prost(uint32, tag = "1")] code: u32,
        /// For people.
        #[prost(string, tag = "2")] message: String,
        /// Whether it is worth trying again.
        #[prost(bool, tag = "3")] temporary: bool,
    }

    /// From client to server. One of the requests is set; an empty command is a pong.
    Command {
        /// Matches replies to commands; 0 where no reply is wanted.
        #[prost(uint32, tag = "1")] id: u32,
        /// Begin the session.
        #[prost(message, optional, tag = "4")] connect: Option<ConnectRequest>,
        /// Subscribe to a channel.
        #[prost(message, optional, tag = "5")] subscribe: Option<SubscribeRequest>,
        /// Leave a channel.
        #[prost(message, optional, tag = "6")] unsubscribe: Option<ChannelRequest>,
        /// Publish into a channel.
        #[prost(message, optional, tag = "7")] publish: Option<PublishRequest>,
        /// Who is subscribed.
        #[prost(message, optional, tag = "8")] presence: Option<ChannelRequest>,
        /// How many are subscribed.
        #[prost(message, optional, tag = "9")] presence_stats: Option<ChannelRequest>,
        /// What was published.
        #[prost(message, optional, tag = "10")] history: Option<HistoryRequest>,
        /// Anything there.
        #[prost(message, optional, tag = "11")] ping: Option<Empty>,
        /// A message to the back end that wants no reply.
        #[prost(message, optional, tag = "12")] send: Option<SendRequest>,
        /// A call of the back end.
        #[prost(message, optional, tag = "13")] rpc: Option<RpcRequest>,
        /// A new connection token.
        #[prost(message, optional, tag = "14")] refresh: Option<RefreshRequest>,
        /// A new subscription token.
        #[prost(message, optional, tag = "15")] sub_refresh: Option<SubRefreshRequest>,
    }

    /// From server to client: the reply to a command, or a push. An empty one is a ping.
    Reply {
        /// Of the command; 0 for a push.
        #[prost(uint32, tag = "1")] id: u32,
        /// Why the command was refused.
        #[prost(message, optional, tag = "2")] error: Option<ErrorMessage>,
        /// A push.
        #[prost(message, optional, tag = "4")] push: Option<Push>,
        /// To `connect`.
        #[prost(message, optional, tag = "5")] connect: Option<ConnectResult>,
        /// To `subscribe`.
        #[prost(message, optional, tag = "6")] subscribe: Option<SubscribeResult>,
        /// To `unsubscribe`.
        #[prost(message, optional, tag = "7")] unsubscribe: Option<Empty>,
        /// To `publish`.
        #[prost(message, optional, tag = "8")] publish: Option<Empty>,
        /// To `presence`.
        #[prost(message, optional, tag = "9")] presence: Option<PresenceResult>,
        /// To `presence_stats`.
        #[prost(message, optional, tag = "10")] presence_stats: Option<PresenceStatsResult>,
        /// To `history`.
        #[prost(message, optional, tag = "11")] history: Option<HistoryResult>,
        /// To `ping`.
        #[prost(message, optional, tag = "12")] ping: Option<Empty>,
        /// To `rpc`.
        #[prost(message, optional, tag = "13")] rpc: Option<RpcResult>,
        /// To `refresh`.
        #[prost(message, optional, tag = "14")] refresh: Option<RefreshResult>,
        /// To `sub_refresh`.
        #[prost(message, optional, tag = "15")] sub_refresh: Option<Expiry>,
    }

    /// What the server says unasked.
    Push {
        /// The channel that it is about; empty for the session itself.
        #[prost(string, tag = "2")] channel: String,
        /// Something was published.
        #[prost(message, optional, tag = "4")] #[serde(rename = "pub")] publication: Option<Publication>,
        /// Somebody came.
        #[prost(message, optional, tag = "5")] join: Option<Presence>,
        /// Somebody went.
        #[prost(message, optional, tag = "6")] leave: Option<Presence>,
        /// The server ended a subscription.
        #[prost(message, optional, tag = "7")] unsubscribe: Option<Unsubscribe>,
        /// A message to this session.
        #[prost(message, optional, tag = "8")] message: Option<SendRequest>,
        /// The server made a subscription.
        #[prost(message, optional, tag = "9")] subscribe: Option<Subscribe>,
        /// A unidirectional session began.
        #[prost(message, optional, tag = "10")] connect: Option<ConnectResult>,
        /// The session ends.
        #[prost(message, optional, tag = "11")] disconnect: Option<Disconnect>,
        /// The session lasts longer.
        #[prost(message, optional, tag = "12")] refresh: Option<Expiry>,
    }

    /// Who a session belongs to.
    ClientInfo {
        /// The user.
        #[prost(string, tag = "1")] user: String,
        /// The session.
        #[prost(string, tag = "2")] client: String,
        /// What the back end said of the session.
        #[prost(bytes = "vec", tag = "3")] #[serde(with = "raw")] conn_info: Vec<u8>,
        /// What the back end said of the subscription.
        #[prost(bytes = "vec", tag = "4")] #[serde(with = "raw")] chan_info: Vec<u8>,
    }

    /// Something published.
    Publication {
        /// What was published.
        #[prost(bytes = "vec", tag = "4")] #[serde(with = "raw")] data: Vec<u8>,
        /// Who published it, where it was a session.
        #[prost(message, optional, tag = "5")] info: Option<ClientInfo>,
        /// Its place in the channel; 0 where there is no history.
        #[prost(uint64, tag = "6")] offset: u64,
        /// Of the publisher's.
        #[prost(btree_map = "string, string", tag = "7")] tags: BTreeMap<String, String>,
        /// Whether `data` is the difference to the publication before.
        #[prost(bool, tag = "8")] delta: bool,
        /// When, milliseconds since the Unix epoch.
        #[prost(int64, tag = "9")] time: i64,
        /// The channel, where it is not said elsewhere.
        #[prost(string, tag = "10")] channel: String,
    }

    /// Who came or went.
    Presence {
        /// It.
        #[prost(message, optional, tag = "1")] info: Option<ClientInfo>,
    }

    /// The server ended a subscription.
    Unsubscribe {
        /// See [`super::codes`].
        #[prost(uint32, tag = "2")] code: u32,
        /// For people.
        #[prost(string, tag = "3")] reason: String,
    }

    /// The server made a subscription.
    Subscribe {
        /// Whether it can be recovered.
        #[prost(bool, tag = "1")] recoverable: bool,
        /// Of the channel.
        #[prost(string, tag = "4")] epoch: String,
        /// Where it begins.
        #[prost(uint64, tag = "5")] offset: u64,
        /// Whether its position is followed.
        #[prost(bool, tag = "6")] positioned: bool,
        /// Of the back end's.
        #[prost(bytes = "vec", tag = "7")] #[serde(with = "raw")] data: Vec<u8>,
    }

    /// The session ends.
    Disconnect {
        /// See [`super::codes`].
        #[prost(uint32, tag = "1")] code: u32,
        /// For people.
        #[prost(string, tag = "2")] reason: String,
        /// Not used any more; the code says it.
        #[prost(bool, tag = "3")] reconnect: bool,
    }

    /// How long something lasts.
    Expiry {
        /// Whether it ends by itself.
        #[prost(bool, tag = "1")] expires: bool,
        /// After how many seconds.
        #[prost(uint32, tag = "2")] ttl: u32,
    }

    /// Begins a session.
    ConnectRequest {
        /// Who it is.
        #[prost(string, tag = "1")] token: String,
        /// For the back end.
        #[prost(bytes = "vec", tag = "2")] #[serde(with = "raw")] data: Vec<u8>,
        /// Server-side subscriptions to go on with, by channel.
        #[prost(btree_map = "string, message", tag = "3")] subs: BTreeMap<String, SubscribeRequest>,
        /// Of the client's.
        #[prost(string, tag = "4")] name: String,
        /// Of the client's.
        #[prost(string, tag = "5")] version: String,
        /// Headers where a browser cannot set them.
        #[prost(btree_map = "string, string", tag = "6")] headers: BTreeMap<String, String>,
        /// What the client can do.
        #[prost(int64, tag = "7")] flag: i64,
    }

    /// An entry of the map of subscriptions that the server made.
    Subscribed {
        /// The channel.
        #[prost(string, tag = "1")] channel: String,
        /// How it began. Sent also when nothing in it is set: without it, as a map of `prost` leaves it out, Centrifugo's JavaScript SDK has no
        /// object there and fails.
        #[prost(message, required, tag = "2")] result: SubscribeResult,
    }

    /// A session began.
    ConnectResult {
        /// Its identity.
        #[prost(string, tag = "1")] client: String,
        /// The server's version.
        #[prost(string, tag = "2")] version: String,
        /// Whether it ends by itself.
        #[prost(bool, tag = "3")] expires: bool,
        /// After how many seconds.
        #[prost(uint32, tag = "4")] ttl: u32,
        /// Of the back end's.
        #[prost(bytes = "vec", tag = "5")] #[serde(with = "raw")] data: Vec<u8>,
        /// Subscriptions that the server made, by channel.
        #[prost(message, repeated, tag = "6")] #[serde(with = "by_channel")] subs: Vec<Subscribed>,
        /// A ping comes every so many seconds.
        #[prost(uint32, tag = "7")] ping: u32,
        /// Whether a pong is expected.
        #[prost(bool, tag = "8")] pong: bool,
        /// For emulation.
        #[prost(string, tag = "9")] session: String,
        /// For emulation.
        #[prost(string, tag = "10")] node: String,
        /// The server's time, milliseconds since the Unix epoch.
        #[prost(int64, tag = "11")] time: i64,
    }

    /// A new connection token.
    RefreshRequest {
        /// It.
        #[prost(string, tag = "1")] token: String,
    }

    /// The session lasts longer.
    RefreshResult {
        /// The session.
        #[prost(string, tag = "1")] client: String,
        /// The server's version.
        #[prost(string, tag = "2")] version: String,
        /// Whether it ends by itself.
        #[prost(bool, tag = "3")] expires: bool,
        /// After how many seconds.
        #[prost(uint32, tag = "4")] ttl: u32,
    }

    /// Subscribes to a channel.
    SubscribeRequest {
        /// The channel.
        #[prost(string, tag = "1")] channel: String,
        /// The right to it.
        #[prost(string, tag = "2")] token: String,
        /// Whether to go on from a position.
        #[prost(bool, tag = "3")] recover: bool,
        /// Of that position.
        #[prost(string, tag = "6")] epoch: String,
        /// Of that position: the last publication that the client has.
        #[prost(uint64, tag = "7")] offset: u64,
        /// For the back end.
        #[prost(bytes = "vec", tag = "8")] #[serde(with = "raw")] data: Vec<u8>,
        /// Wants its position followed.
        #[prost(bool, tag = "9")] positioned: bool,
        /// Wants to be able to recover.
        #[prost(bool, tag = "10")] recoverable: bool,
        /// Wants to hear who comes and goes.
        #[prost(bool, tag = "11")] join_leave: bool,
        /// Can take differences of this kind.
        #[prost(string, tag = "12")] delta: String,
        /// Only publications whose tags match.
        #[prost(message, optional, tag = "13")] tf: Option<FilterNode>,
        /// What the client can do.
        #[prost(int64, tag = "14")] flag: i64,
    }

    /// A subscription began.
    SubscribeResult {
        /// Whether it ends by itself.
        #[prost(bool, tag = "1")] expires: bool,
        /// After how many seconds.
        #[prost(uint32, tag = "2")] ttl: u32,
        /// Whether it can be recovered.
        #[prost(bool, tag = "3")] recoverable: bool,
        /// Of the channel.
        #[prost(string, tag = "6")] epoch: String,
        /// What was missed.
        #[prost(message, repeated, tag = "7")] publications: Vec<Publication>,
        /// Whether that is all that was missed.
        #[prost(bool, tag = "8")] recovered: bool,
        /// Where it begins.
        #[prost(uint64, tag = "9")] offset: u64,
        /// Whether its position is followed.
        #[prost(bool, tag = "10")] positioned: bool,
        /// Of the back end's.
        #[prost(bytes = "vec", tag = "11")] #[serde(with = "raw")] data: Vec<u8>,
        /// Whether it was asked to recover.
        #[prost(bool, tag = "12")] was_recovering: bool,
        /// Whether publications come as differences.
        #[prost(bool, tag = "13")] delta: bool,
        /// A number that stands for the channel in pushes.
        #[prost(int64, tag = "14")] id: i64,
    }

    /// A new subscription token.
    SubRefreshRequest {
        /// The channel.
        #[prost(string, tag = "1")] channel: String,
        /// It.
        #[prost(string, tag = "2")] token: String,
    }

    /// A request about a channel and nothing else.
    ChannelRequest {
        /// The channel.
        #[prost(string, tag = "1")] channel: String,
    }

    /// Publishes into a channel.
    PublishRequest {
        /// The channel.
        #[prost(string, tag = "1")] channel: String,
        /// What.
        #[prost(bytes = "vec", tag = "2")] #[serde(with = "raw")] data: Vec<u8>,
    }

    /// Who is subscribed.
    PresenceResult {
        /// By session.
        #[prost(btree_map = "string, message", tag = "1")] presence: BTreeMap<String, ClientInfo>,
    }

    /// How many are subscribed.
    PresenceStatsResult {
        /// Sessions.
        #[prost(uint32, tag = "1")] num_clients: u32,
        /// Users.
        #[prost(uint32, tag = "2")] num_users: u32,
    }

    /// A place in a channel.
    StreamPosition {
        /// Of a publication.
        #[prost(uint64, tag = "1")] offset: u64,
        /// Of the channel.
        #[prost(string, tag = "2")] epoch: String,
    }

    /// Asks what was published.
    HistoryRequest {
        /// The channel.
        #[prost(string, tag = "1")] channel: String,
        /// How many at most; 0 for none, negative for all.
        #[prost(int32, tag = "7")] limit: i32,
        /// Only what comes after this; before it, where `reverse`.
        #[prost(message, optional, tag = "8")] since: Option<StreamPosition>,
        /// Newest first.
        #[prost(bool, tag = "9")] reverse: bool,
    }

    /// What was published.
    HistoryResult {
        /// In order.
        #[prost(message, repeated, tag = "1")] publications: Vec<Publication>,
        /// Of the channel.
        #[prost(string, tag = "2")] epoch: String,
        /// The last publication's.
        #[prost(uint64, tag = "3")] offset: u64,
    }

    /// A call of the back end.
    RpcRequest {
        /// For it.
        #[prost(bytes = "vec", tag = "1")] #[serde(with = "raw")] data: Vec<u8>,
        /// What is called.
        #[prost(string, tag = "2")] method: String,
    }

    /// What the back end answered.
    RpcResult {
        /// It.
        #[prost(bytes = "vec", tag = "1")] #[serde(with = "raw")] data: Vec<u8>,
    }

    /// Data and nothing else.
    SendRequest {
        /// It.
        #[prost(bytes = "vec", tag = "1")] #[serde(with = "raw")] data: Vec<u8>,
    }

    /// Nothing.
    Empty {}

    /// A condition on the tags of publications: a comparison (`op` empty) or a combination of conditions.
    FilterNode {
        /// Empty, `and`, `or` or `not`.
        #[prost(string, tag = "1")] op: String,
        /// The tag that is compared.
        #[prost(string, tag = "2")] key: String,
        /// How: `eq`, `neq`, `in`, `nin`, `ex`, `nex`, `sw`, `ew`, `ct`, `lt`, `lte`, `gt`, `gte`.
        #[prost(string, tag = "3")] cmp: String,
        /// With what.
        #[prost(string, tag = "4")] val: String,
        /// With which.
        #[prost(string, repeated, tag = "5")] vals: Vec<String>,
        /// What is combined.
        #[prost(message, repeated, tag = "6")] nodes: Vec<FilterNode>,
    }
}
