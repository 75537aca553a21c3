//! The messages of Centrifugo's `api.proto` and their conversion to commands. Names and field
//! numbers are those of that file, in github.com/centrifugal/centrifugo, internal/apiproto.
//!
//! All answers have the same form, an error or an encoded result, so one message represents them
//! all.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use prost::Message;

use crate::api::{Answer, Command, Done, Ending, Info, Publish, Renewal, Sessions, refuse};
use crate::grpc::{OverrideMessage, base64_of, expire_at, messages, put_field};
use crate::options::{Overrides, SubscribeOptions, Wanted, info_of};
use crate::protocol::codes::{self, ClientError};
use crate::protocol::epoch_text;
use crate::protocol::message::{self as protocol, ClientInfo};

messages! {
    /// A publication to one channel, or a broadcast; both have the same encoding.
    PublishRequest {
        channels: Vec<String> = [string, repeated, tag = "1"],
        data: Vec<u8> = [bytes = "vec", tag = "2"],
        b64data: String = [string, tag = "3"],
        skip_history: bool = [bool, tag = "4"],
        tags: BTreeMap<String, String> = [btree_map = "string, string", tag = "5"],
        idempotency_key: String = [string, tag = "6"],
        version: u64 = [uint64, tag = "8"],
        version_epoch: String = [string, tag = "9"],
    }

    SubscribeRequest {
        channel: String = [string, tag = "1"],
        user: String = [string, tag = "2"],
        expire_at: i64 = [int64, tag = "3"],
        info: Vec<u8> = [bytes = "vec", tag = "4"],
        b64info: String = [string, tag = "5"],
        client: String = [string, tag = "6"],
        data: Vec<u8> = [bytes = "vec", tag = "7"],
        b64data: String = [string, tag = "8"],
        recover_since: Option<StreamPosition> = [message, optional, tag = "9"],
        overrides: Option<OverrideMessage> = [message, optional, tag = "10"],
        session: String = [string, tag = "11"],
    }

    StreamPosition {
        offset: u64 = [uint64, tag = "1"],
        epoch: String = [string, tag = "2"],
    }

    UnsubscribeRequest {
        channel: String = [string, tag = "1"],
        user: String = [string, tag = "2"],
        client: String = [string, tag = "3"],
        session: String = [string, tag = "4"],
    }

    Disconnect {
        code: u32 = [uint32, tag = "1"],
        reason: String = [string, tag = "2"],
    }

    DisconnectRequest {
        user: String = [string, tag = "1"],
        disconnect: Option<Disconnect> = [message, optional, tag = "2"],
        client: String = [string, tag = "3"],
        whitelist: Vec<String> = [string, repeated, tag = "4"],
        session: String = [string, tag = "5"],
    }

    RefreshRequest {
        user: String = [string, tag = "1"],
        client: String = [string, tag = "2"],
        expired: bool = [bool, tag = "3"],
        expire_at: i64 = [int64, tag = "4"],
        info: Vec<u8> = [bytes = "vec", tag = "5"],
        session: String = [string, tag = "6"],
    }

    /// A request for presence, presence stats, or the removal of a history.
    ChannelRequest {
        channel: String = [string, tag = "1"],
    }

    HistoryRequest {
        channel: String = [string, tag = "1"],
        limit: i32 = [int32, tag = "2"],
        since: Option<StreamPosition> = [message, optional, tag = "3"],
        reverse: bool = [bool, tag = "4"],
    }

    ChannelsRequest {
        pattern: String = [string, tag = "1"],
    }

    /// The commands stay encoded until their number is checked: two bytes can encode a command that
    /// takes a thousand in memory.
    BatchRequest {
        commands: Vec<Bytes> = [bytes = "bytes", repeated, tag = "1"],
        parallel: bool = [bool, tag = "2"],
    }

    /// One command: one of the fields is set.
    BatchCommand {
        publish: Option<PublishRequest> = [message, optional, tag = "4"],
        broadcast: Option<PublishRequest> = [message, optional, tag = "5"],
        subscribe: Option<SubscribeRequest> = [message, optional, tag = "6"],
        unsubscribe: Option<UnsubscribeRequest> = [message, optional, tag = "7"],
        disconnect: Option<DisconnectRequest> = [message, optional, tag = "8"],
        presence: Option<ChannelRequest> = [message, optional, tag = "9"],
        presence_stats: Option<ChannelRequest> = [message, optional, tag = "10"],
        history: Option<HistoryRequest> = [message, optional, tag = "11"],
        history_remove: Option<ChannelRequest> = [message, optional, tag = "12"],
        info: Option<Nothing> = [message, optional, tag = "13"],
        refresh: Option<RefreshRequest> = [message, optional, tag = "15"],
        channels: Option<ChannelsRequest> = [message, optional, tag = "16"],
    }

    Nothing {}

    Error {
        code: u32 = [uint32, tag = "1"],
        message: String = [string, tag = "2"],
    }

    /// The answer to any command except a batch.
    Response {
        error: Option<Error> = [message, optional, tag = "1"],
        result: Option<Vec<u8>> = [bytes = "vec", optional, tag = "2"],
    }

    BroadcastResult {
        responses: Vec<Response> = [message, repeated, tag = "1"],
    }

    /// The position of a publication.
    PublishResult {
        offset: u64 = [uint64, tag = "1"],
        epoch: String = [string, tag = "2"],
    }

    PresenceResult {
        presence: BTreeMap<String, ClientInfo> = [btree_map = "string, message", tag = "1"],
    }

    PublicationMessage {
        data: Bytes = [bytes = "bytes", tag = "2"],
        info: Option<ClientInfo> = [message, optional, tag = "3"],
        offset: u64 = [uint64, tag = "4"],
        tags: BTreeMap<String, String> = [btree_map = "string, string", tag = "5"],
    }

    HistoryResult {
        publications: Vec<PublicationMessage> = [message, repeated, tag = "1"],
        epoch: String = [string, tag = "2"],
        offset: u64 = [uint64, tag = "3"],
        // Steadfast's own: the bound in bytes ended the page, and more may follow.
        truncated: bool = [bool, tag = "1000"],
    }

    ChannelInfo {
        num_clients: u32 = [uint32, tag = "1"],
    }

    ChannelsResult {
        channels: BTreeMap<String, ChannelInfo> = [btree_map = "string, message", tag = "1"],
    }

    NodeResult {
        uid: String = [string, tag = "1"],
        name: String = [string, tag = "2"],
        version: String = [string, tag = "3"],
        num_clients: u32 = [uint32, tag = "4"],
        num_users: u32 = [uint32, tag = "5"],
        num_channels: u32 = [uint32, tag = "6"],
        uptime: u32 = [uint32, tag = "7"],
        num_subs: u32 = [uint32, tag = "10"],
    }

    InfoResult {
        nodes: Vec<NodeResult> = [message, repeated, tag = "1"],
    }
}

fn publish_of(request: &mut PublishRequest) -> Result<Publish, ClientError> {
    refuse(request.version > 0, "version")?;
    refuse(!request.version_epoch.is_empty(), "version_epoch")?;
    let decoded = STANDARD.decode(&request.b64data);
    let decoded = decoded.map_err(|e| ClientError::bad_request(format!("b64data: {e}")))?;
    // A copy of its own: a part of the message would keep the whole message in memory.
    let data = if decoded.is_empty() { std::mem::take(&mut request.data) } else { decoded };
    Ok(Publish {
        data: data.into(),
        tags: std::mem::take(&mut request.tags),
        skip_history: request.skip_history,
        idempotency_key: std::mem::take(&mut request.idempotency_key),
    })
}

pub(super) fn publish(mut request: PublishRequest) -> Result<Command, ClientError> {
    let publish = publish_of(&mut request)?;
    Ok(Command::Publish(request.channels.pop().unwrap_or_default(), publish))
}

pub(super) fn broadcast(mut request: PublishRequest) -> Result<Command, ClientError> {
    let publish = publish_of(&mut request)?;
    Ok(Command::Broadcast(request.channels, publish))
}

pub(super) fn subscribe(request: SubscribeRequest) -> Result<Command, ClientError> {
    let options = SubscribeOptions {
        b64info: base64_of(request.b64info, &request.info),
        b64data: base64_of(request.b64data, &request.data),
        expire_at: expire_at(request.expire_at).map_err(ClientError::bad_request)?,
        overrides: request.overrides.map(Overrides::from),
        ..SubscribeOptions::default()
    };
    let since = request.recover_since.map(position);
    let wanted = Wanted { channel: request.channel, options, since };
    let SubscribeRequest { user, client, session, .. } = request;
    Ok(Command::Subscribe(Sessions { user, client, session }, Box::new(wanted)))
}

pub(super) fn unsubscribe(request: UnsubscribeRequest) -> Result<Command, ClientError> {
    let UnsubscribeRequest { channel, user, client, session } = request;
    Ok(Command::Unsubscribe(Sessions { user, client, session }, channel))
}

pub(super) fn disconnect(request: DisconnectRequest) -> Result<Command, ClientError> {
    let DisconnectRequest { user, client, session, whitelist, disconnect } = request;
    let with = disconnect.map(|Disconnect { code, reason }| (code, reason));
    Ok(Command::Disconnect(Sessions { user, client, session }, Ending { whitelist, with }))
}

pub(super) fn refresh(request: RefreshRequest) -> Result<Command, ClientError> {
    let RefreshRequest { user, client, session, expired, expire_at: until, info } = request;
    let expire_at = expire_at(until).map_err(ClientError::bad_request)?;
    let renewal = Renewal { expire_at, expired, info: info_of(None, &STANDARD.encode(info))? };
    Ok(Command::Refresh(Sessions { user, client, session }, renewal))
}

pub(super) fn presence(request: ChannelRequest) -> Result<Command, ClientError> {
    Ok(Command::Presence(request.channel))
}

pub(super) fn presence_stats(request: ChannelRequest) -> Result<Command, ClientError> {
    Ok(Command::PresenceStats(request.channel))
}

pub(super) fn history(request: HistoryRequest) -> Result<Command, ClientError> {
    let HistoryRequest { channel, limit, since, reverse } = request;
    Ok(Command::History(protocol::HistoryRequest { channel, limit, since: since.map(position), reverse }))
}

pub(super) fn history_remove(request: ChannelRequest) -> Result<Command, ClientError> {
    Ok(Command::HistoryRemove(request.channel))
}

pub(super) fn channels(request: ChannelsRequest) -> Result<Command, ClientError> {
    Ok(Command::Channels(request.pattern))
}

pub(super) fn info(_: Nothing) -> Result<Command, ClientError> {
    Ok(Command::Info)
}

/// A command of a batch, and the field number of its result in the reply.
pub(super) fn batched(one: BatchCommand) -> (u32, Result<Command, ClientError>) {
    macro_rules! first {
        ($($tag:literal $field:ident,)*) => {
            $(if let Some(request) = one.$field { return ($tag, $field(request)); })*
        };
    }
    first! {
        4 publish, 5 broadcast, 6 subscribe, 7 unsubscribe, 8 disconnect, 9 presence, 10 presence_stats, 11 history,
        12 history_remove, 13 info, 15 refresh, 16 channels,
    }
    (0, Err(codes::METHOD_NOT_FOUND))
}

fn position(since: StreamPosition) -> protocol::StreamPosition {
    protocol::StreamPosition { offset: since.offset, epoch: since.epoch }
}

impl From<&ClientError> for Error {
    fn from(error: &ClientError) -> Self {
        Self { code: error.code, message: error.message.clone().into_owned() }
    }
}

/// The details of a gRPC status: `google.rpc.Status` with the API error in an `Any`.
pub(super) fn details(code: u64, error: &ClientError) -> Vec<u8> {
    let mut any = Vec::new();
    put_field(1, b"type.googleapis.com/centrifugal.centrifugo.api.Error", &mut any);
    put_field(2, &Error::from(error).encode_to_vec(), &mut any);
    let mut out = Vec::new();
    prost::encoding::uint64::encode(1, &code, &mut out);
    put_field(2, error.message.as_bytes(), &mut out);
    put_field(3, &any, &mut out);
    out
}

/// Converts an answer to its message.
pub(super) fn response(answer: Answer) -> Response {
    match answer {
        Ok(done) => Response { error: None, result: Some(result(done)) },
        Err(error) => Response { error: Some(Error::from(&error)), result: None },
    }
}

/// Encodes an answer in a batch: `Reply` has the result under the number of its command.
pub(super) fn reply(tag: u32, answer: Answer) -> Vec<u8> {
    const ERROR: u32 = 2;
    let mut out = Vec::new();
    match answer {
        Ok(done) => put_field(tag, &result(done), &mut out),
        Err(error) => put_field(ERROR, &Error::from(&error).encode_to_vec(), &mut out),
    }
    out
}

/// Encodes the result of a command.
fn result(done: Done) -> Vec<u8> {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let published = |position: steadfast_store::Position| match position.offset {
        0 => PublishResult::default(),
        offset => PublishResult { offset, epoch: epoch_text(position.epoch) },
    };
    match done {
        Done::Nothing => Vec::new(),
        Done::Published(position) => published(position).encode_to_vec(),
        Done::Broadcast(positions) => {
            let one = |position: Result<_, ClientError>| match position {
                Ok(position) => Response { error: None, result: Some(published(position).encode_to_vec()) },
                Err(error) => Response { error: Some(Error::from(&error)), result: None },
            };
            BroadcastResult { responses: positions.into_iter().map(one).collect() }.encode_to_vec()
        }
        Done::Presence(clients) => PresenceResult { presence: clients }.encode_to_vec(),
        Done::PresenceStats(stats) => stats.encode_to_vec(),
        Done::History { history, truncated } => {
            let one = |publication: protocol::Publication| PublicationMessage {
                data: publication.data,
                info: publication.info,
                offset: publication.offset,
                tags: publication.tags,
            };
            let publications = history.publications.into_iter().map(one).collect();
            HistoryResult { publications, epoch: history.epoch, offset: history.offset, truncated }.encode_to_vec()
        }
        Done::Channels(found) => {
            let one = |(name, clients)| (name, ChannelInfo { num_clients: count(clients) });
            ChannelsResult { channels: found.into_iter().map(one).collect() }.encode_to_vec()
        }
        Done::Info(nodes) => {
            let node = |Info { name, version, clients, users, channels, subs, uptime }| NodeResult {
                uid: name.clone(),
                name,
                version,
                num_clients: count(clients),
                num_users: count(users),
                num_channels: count(channels),
                num_subs: count(subs),
                uptime: u32::try_from(uptime).unwrap_or(u32::MAX),
            };
            InfoResult { nodes: nodes.into_iter().map(node).collect() }.encode_to_vec()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_store::Position;

    /// Fields in the encoding of another implementation.
    fn bytes(fields: &[(u32, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        fields.iter().for_each(|(tag, value)| put_field(*tag, value, &mut out));
        out
    }

    #[test]
    fn publications_are_read_in_both_forms() {
        let one = PublishRequest::decode(&*bytes(&[(1, b"c"), (2, &[0xff, 0]), (6, b"k")])).expect("valid");
        let Ok(Command::Publish(channel, params)) = publish(one) else { panic!("a publication") };
        assert_eq!((channel.as_str(), &*params.data, params.idempotency_key.as_str()), ("c", &[0xff, 0][..], "k"));
        let some = PublishRequest::decode(&*bytes(&[(1, b"a"), (3, b"/wA="), (1, b"b")])).expect("valid");
        let Ok(Command::Broadcast(channels, params)) = broadcast(some) else { panic!("a broadcast") };
        assert_eq!((channels, &*params.data), (vec!["a".to_owned(), "b".to_owned()], &[0xff, 0][..]));
    }

    #[test]
    fn unsupported_fields_are_refused_by_name() {
        let epoch = || "e".to_owned();
        for (refused, expected) in [
            (
                publish(PublishRequest { data: vec![1], version: 3, ..PublishRequest::default() }),
                "version: not supported",
            ),
            (publish(PublishRequest { data: vec![1], version_epoch: epoch(), ..PublishRequest::default() }), "_epoch"),
            (broadcast(PublishRequest { data: vec![1], version: 3, ..PublishRequest::default() }), "version"),
            (publish(PublishRequest { b64data: "?".to_owned(), ..PublishRequest::default() }), "b64data"),
            (subscribe(SubscribeRequest { expire_at: -1, ..SubscribeRequest::default() }), "expire_at"),
            (refresh(RefreshRequest { info: vec![0xff], ..RefreshRequest::default() }), "info"),
        ] {
            let error = refused.expect_err(expected);
            assert!(error.code == 107 && error.message.contains(expected), "{error:?}");
        }
    }

    #[test]
    fn a_command_keeps_its_session_fields() {
        // Field numbers of Centrifugo's own file: the channel, the user, the client, the session.
        let end = [&[0x08, 0xa1, 0x1f][..], &bytes(&[(2, b"r")])].concat();
        for (tag, numbers) in [(6, [1, 2, 6, 11]), (7, [1, 2, 3, 4]), (8, [9, 1, 3, 5]), (15, [9, 1, 2, 6])] {
            let names: [&[u8]; 4] = [b"c", b"u", b"x", b"s"];
            let mut fields: Vec<_> = numbers.into_iter().zip(names).collect();
            match tag {
                8 => fields.extend([(2, &end[..]), (4, b"a"), (4, b"b")]),
                15 => fields.push((5, b"{}")),
                _ => {}
            }
            let one = bytes(&[(tag, &bytes(&fields))]);
            let sessions = match batched(BatchCommand::decode(&*one).expect("valid")).1.expect("a command") {
                Command::Subscribe(sessions, _) | Command::Unsubscribe(sessions, _) => sessions,
                Command::Disconnect(sessions, Ending { whitelist, with }) => {
                    assert_eq!((whitelist, with), (vec!["a".into(), "b".into()], Some((4001, "r".into()))));
                    sessions
                }
                Command::Refresh(sessions, renewal) => {
                    assert_eq!(renewal.info, b"{}");
                    sessions
                }
                other => panic!("{other:?}"),
            };
            let found = (sessions.user.as_str(), sessions.client.as_str(), sessions.session.as_str());
            assert_eq!(found, ("u", "x", "s"), "{tag}");
        }
    }

    #[test]
    fn answers_are_under_their_numbers() {
        let at = Position { epoch: 10, offset: 300 };
        let place = [&[0x08, 0xac, 0x02][..], &bytes(&[(2, b"0000000a")])].concat();
        let whole = response(Ok(Done::Published(at))).encode_to_vec();
        assert_eq!(whole, bytes(&[(2, &place)]));
        assert_eq!(reply(4, Ok(Done::Published(at))), bytes(&[(4, &place)]));
        let error = [&[0x08, 107][..], &bytes(&[(2, b"bad request")])].concat();
        assert_eq!(response(Err(codes::BAD_REQUEST)).encode_to_vec(), bytes(&[(1, &error)]));
        assert_eq!(reply(4, Err(codes::BAD_REQUEST)), bytes(&[(2, &error)]));
        assert_eq!(
            response(Ok(Done::Nothing)).encode_to_vec(),
            bytes(&[(2, b"")]),
            "a result is present, with nothing in it"
        );
        let two = response(Ok(Done::Broadcast(vec![Ok(at), Err(codes::BAD_REQUEST)]))).result.expect("a result");
        assert_eq!(two, bytes(&[(1, &bytes(&[(2, &place)])), (1, &bytes(&[(1, &error)]))]));
    }

    #[test]
    fn each_command_of_a_batch_keeps_its_number() {
        let field = |tag: u32| {
            let (tag, command) = batched(BatchCommand::decode(&*bytes(&[(tag, b"")])).expect("valid"));
            (tag, command.err().map(|error| error.code))
        };
        for tag in [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16] {
            assert_eq!(field(tag), (tag, None));
        }
        assert_eq!([field(14), field(17), field(99)], [(0, Some(104)); 3]);
    }
}
