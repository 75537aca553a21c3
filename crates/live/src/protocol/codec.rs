//! Decoding of commands and encoding of replies, in JSON and Protobuf.
//!
//! A frame may hold several messages: JSON messages as lines, Protobuf messages each after its
//! length (a varint).

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use serde::Serialize;

use super::message::{Command, Publication, Push, Reply};
use super::payload::Payload;

/// Fields of [`Reply`] and [`Push`] in Protobuf.
const REPLY_PUSH: u32 = 4;
const PUSH_CHANNEL: u32 = 2;
const PUSH_PUBLICATION: u32 = 4;

/// Room for the names and numbers of a publication in JSON, beyond its Protobuf length.
const PUBLICATION_BYTES: usize = 160;

/// The encoding of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// JSON lines in text frames.
    Json,
    /// Length-delimited messages in binary frames.
    Protobuf,
}

impl Encoding {
    /// All encodings.
    pub const ALL: [Self; 2] = [Self::Json, Self::Protobuf];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Protobuf => "protobuf",
        }
    }
}

/// A frame that violates the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

impl Malformed {
    fn new(what: impl std::fmt::Display) -> Self {
        Self(what.to_string())
    }
}

/// Decodes the next command of a frame and advances `rest`; `None` at its end.
///
/// # Errors
/// The command is malformed.
pub fn next_command(encoding: Encoding, rest: &mut &[u8]) -> Result<Option<Command>, Malformed> {
    match encoding {
        Encoding::Json => {
            while !rest.is_empty() {
                let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                let line = &rest[..end];
                *rest = rest.get(end + 1..).unwrap_or_default();
                if !line.trim_ascii().is_empty() {
                    return serde_json::from_slice(line).map(Some).map_err(Malformed::new);
                }
            }
            Ok(None)
        }
        Encoding::Protobuf if rest.is_empty() => Ok(None),
        Encoding::Protobuf => {
            let len = prost::decode_length_delimiter(&mut *rest).map_err(Malformed::new)?;
            let (message, more) =
                rest.split_at_checked(len).ok_or_else(|| Malformed::new("a command is incomplete"))?;
            *rest = more;
            Command::decode(message).map(Some).map_err(Malformed::new)
        }
    }
}

/// Decodes all commands of a frame, at most `commands_max`.
///
/// # Errors
/// A command is malformed, or the frame has too many; no command is returned then.
pub fn decode_commands(encoding: Encoding, frame: &[u8], commands_max: usize) -> Result<Vec<Command>, Malformed> {
    let (mut commands, mut rest) = (Vec::new(), frame);
    while let Some(command) = next_command(encoding, &mut rest)? {
        if commands.len() == commands_max {
            return Err(Malformed::new("too many commands in a frame"));
        }
        commands.push(command);
    }
    Ok(commands)
}

/// Appends a reply to the payload of a frame.
///
/// # Errors
/// In JSON: the data of the reply is not JSON.
pub fn encode_reply(encoding: Encoding, reply: &Reply, out: &mut Payload) -> Result<(), Malformed> {
    match encoding {
        Encoding::Json => {
            let before = out.bytes().len();
            let out = out.buffer();
            let len = out.len();
            if before > 0 {
                out.push(b'\n');
            }
            serde_json::to_writer(&mut *out, reply).map_err(|e| {
                out.truncate(len);
                Malformed::new(e)
            })
        }
        Encoding::Protobuf => {
            out.buffer().reserve(reply.encoded_len() + 10);
            reply.encode_length_delimited(out.buffer()).map_err(Malformed::new)
        }
    }
}

/// The payload of a frame with one push.
///
/// # Errors
/// In JSON: the data of the push is not JSON.
pub fn encode_push(encoding: Encoding, push: Push) -> Result<Payload, Malformed> {
    let mut out = Payload::default();
    encode_reply(encoding, &Reply { push: Some(push), ..Reply::default() }, &mut out)?;
    Ok(out)
}

/// A [`Reply`] with a push of a publication, to encode it without a copy of its data.
#[derive(Serialize)]
struct PublicationReply<'a> {
    push: PublicationPush<'a>,
}

#[derive(Serialize)]
struct PublicationPush<'a> {
    channel: &'a str,
    #[serde(rename = "pub")]
    publication: &'a Publication,
}

/// The payload of a frame with one publication, as [`encode_push`] makes it.
///
/// # Errors
/// In JSON: the data is not JSON.
pub fn encode_publication(encoding: Encoding, channel: &str, publication: &Publication) -> Result<Payload, Malformed> {
    let mut out = Payload::with_capacity(publication.encoded_len() + channel.len() + PUBLICATION_BYTES);
    match encoding {
        Encoding::Json => {
            let reply = PublicationReply { push: PublicationPush { channel, publication } };
            serde_json::to_writer(out.buffer(), &reply).map_err(Malformed::new)?;
        }
        Encoding::Protobuf => {
            let out = out.buffer();
            let inner = publication.encoded_len();
            let field = |tag, len: usize| key_len(tag) + encoded_len_varint(len as u64) + len;
            let push = field(PUSH_CHANNEL, channel.len()) + field(PUSH_PUBLICATION, inner);
            encode_varint(field(REPLY_PUSH, push) as u64, out);
            encode_key(REPLY_PUSH, WireType::LengthDelimited, out);
            encode_varint(push as u64, out);
            encode_key(PUSH_CHANNEL, WireType::LengthDelimited, out);
            encode_varint(channel.len() as u64, out);
            out.extend_from_slice(channel.as_bytes());
            encode_key(PUSH_PUBLICATION, WireType::LengthDelimited, out);
            publication.encode_length_delimited(out).map_err(Malformed::new)?;
        }
    }
    Ok(out)
}

/// The payload of a ping: an empty reply.
pub fn ping(encoding: Encoding) -> &'static [u8] {
    match encoding {
        Encoding::Json => b"{}",
        Encoding::Protobuf => &[0],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::message::*;
    use super::*;

    const BOTH: [Encoding; 2] = [Encoding::Json, Encoding::Protobuf];

    #[test]
    fn commands_of_an_sdk_are_decoded() {
        let frame = br#"{"id":1,"connect":{"token":"t","data":{"a": [1]},"name":"js"}}
{"id":2,"subscribe":{"channel":"news","recover":true,"epoch":"e","offset":7}}
{}"#;
        let commands = decode_commands(Encoding::Json, frame, 10).expect("valid");
        let connect = ConnectRequest {
            token: "t".into(),
            data: br#"{"a": [1]}"#.to_vec(),
            name: "js".into(),
            ..Default::default()
        };
        let subscribe = SubscribeRequest {
            channel: "news".into(),
            recover: true,
            epoch: "e".into(),
            offset: 7,
            ..Default::default()
        };
        assert_eq!(commands[0], Command { id: 1, connect: Some(connect), ..Default::default() });
        assert_eq!(commands[1], Command { id: 2, subscribe: Some(subscribe), ..Default::default() });
        assert_eq!(commands[2], Command::default(), "a pong");
        let mut frame = Vec::new();
        for command in &commands {
            command.encode_length_delimited(&mut frame).expect("buffer space");
        }
        assert_eq!(decode_commands(Encoding::Protobuf, &frame, 10), Ok(commands));
        assert!(decode_commands(Encoding::Protobuf, &frame, 2).is_err());
        assert_eq!(decode_commands(Encoding::Protobuf, ping(Encoding::Protobuf), 2), Ok(vec![Command::default()]));
    }

    #[test]
    fn replies_omit_unset_fields() {
        let mut out = Payload::default();
        let publish = Reply { id: 3, publish: Some(Empty {}), ..Default::default() };
        encode_reply(Encoding::Json, &publish, &mut out).expect("encoded");
        let publication = Publication { data: b"{\"x\":1}".to_vec().into(), offset: 4, ..Default::default() };
        let push = Push { channel: "c".into(), publication: Some(publication), ..Default::default() };
        encode_reply(Encoding::Json, &Reply { push: Some(push), ..Default::default() }, &mut out).expect("encoded");
        let text =
            "{\"id\":3,\"publish\":{}}\n{\"push\":{\"channel\":\"c\",\"pub\":{\"data\":{\"x\":1},\"offset\":4}}}";
        assert_eq!(String::from_utf8_lossy(out.bytes()), text);
    }

    /// The fields of `client.proto` that Centrifugo writes even if they are empty.
    #[test]
    fn fields_without_omitempty_are_always_written() {
        fn json<M: Default + serde::Serialize>() -> String {
            serde_json::to_string(&M::default()).expect("JSON")
        }
        for (message, expected) in [
            (json::<ClientInfo>(), r#"{"user":"","client":""}"#),
            (json::<PresenceResult>(), r#"{"presence":{}}"#),
            (json::<PresenceStatsResult>(), r#"{"num_clients":0,"num_users":0}"#),
            (json::<HistoryResult>(), r#"{"publications":[],"epoch":"","offset":0}"#),
            (json::<Reply>(), "{}"),
            (json::<ErrorMessage>(), "{}"),
            (json::<Push>(), "{}"),
            (json::<Publication>(), "{}"),
            (json::<Presence>(), "{}"),
            (json::<Unsubscribe>(), "{}"),
            (json::<Subscribe>(), "{}"),
            (json::<SendRequest>(), "{}"),
            (json::<Disconnect>(), "{}"),
            (json::<Expiry>(), "{}"),
            (json::<ConnectResult>(), "{}"),
            (json::<RefreshResult>(), "{}"),
            (json::<SubscribeResult>(), "{}"),
            (json::<RpcResult>(), "{}"),
            (json::<Empty>(), "{}"),
        ] {
            assert_eq!(message, expected);
        }
    }

    #[test]
    fn null_is_absent_in_every_field_but_data() {
        let read = |name: &str, body: &str| {
            let line = format!(r#"{{"id": 1, "{name}": {body}}}"#);
            decode_commands(Encoding::Json, line.as_bytes(), 1).expect("valid").remove(0)
        };
        let headers = read("connect", r#"{"headers": {"a": null}}"#).connect.expect("a connect command").headers;
        assert_eq!(headers["a"], "");
        for (name, fields) in [
            ("connect", "token subs name version headers flag"),
            ("refresh", "token"),
            ("sub_refresh", "channel token"),
            ("subscribe", "channel token recover epoch offset positioned recoverable join_leave delta tf flag type"),
            ("unsubscribe", "channel"),
            ("publish", "channel"),
            ("presence", "channel"),
            ("history", "channel limit since reverse"),
            ("rpc", "method"),
        ] {
            let nulls: Vec<String> = fields.split(' ').map(|field| format!(r#""{field}": null"#)).collect();
            assert_eq!(read(name, &format!("{{{}}}", nulls.join(", "))), read(name, "{}"), "{name}");
            assert_eq!(read(name, "null"), Command { id: 1, ..Command::default() }, "{name}");
        }
        let publish = read("publish", r#"{"data": null}"#).publish.expect("a publication");
        assert_eq!(&publish.data[..], b"null");
    }

    #[test]
    fn an_empty_server_side_subscription_is_encoded() {
        let subs = vec![Subscribed { channel: "c".into(), ..Default::default() }];
        let reply = Reply { connect: Some(ConnectResult { subs, ..Default::default() }), ..Default::default() };
        let mut out = Payload::default();
        encode_reply(Encoding::Json, &reply, &mut out).expect("encoded");
        assert_eq!(String::from_utf8_lossy(out.bytes()), r#"{"connect":{"subs":{"c":{}}}}"#);
        assert_eq!(serde_json::from_slice::<Reply>(out.bytes()).expect("JSON"), reply);
        let mut out = Payload::default();
        encode_reply(Encoding::Protobuf, &reply, &mut out).expect("encoded");
        // A map entry with its key (field 1) and value (field 2), as Go encodes maps.
        assert_eq!(out.bytes(), [9, 0x2a, 7, 0x32, 5, 0x0a, 1, b'c', 0x12, 0]);
    }

    #[test]
    fn a_publication_is_encoded_as_any_push() {
        let info = ClientInfo { user: "ann".into(), conn_info: b"{}".to_vec(), ..Default::default() };
        let whole = Publication {
            data: b"{\n\"x\":1}".to_vec().into(),
            info: Some(info),
            offset: 300,
            tags: [("a".to_owned(), "b".to_owned())].into(),
            delta: true,
            time: 7,
            channel: String::new(),
        };
        let long = Publication { data: format!("\"{}\"", "y".repeat(70_000)).into_bytes().into(), ..whole.clone() };
        for publication in [Publication::default(), whole, long] {
            for encoding in BOTH {
                let push = Push { channel: "c".into(), publication: Some(publication.clone()), ..Default::default() };
                let expected = encode_push(encoding, push).expect("encoded");
                let found = encode_publication(encoding, "c", &publication).expect("encoded");
                assert_eq!(found.bytes(), expected.bytes(), "{encoding:?}");
                let frame = crate::websocket::framed(encoding, found);
                assert_eq!(frame, crate::websocket::message(encoding, expected.bytes()));
            }
        }
        let binary = Publication { data: vec![0xff].into(), ..Default::default() };
        assert!(encode_publication(Encoding::Json, "c", &binary).is_err());
    }

    #[test]
    fn data_of_several_lines_is_one_line_in_json() {
        let mut out = Payload::default();
        let publication = Publication { data: b"{\r\n  \"x\": \"a\\nb\"\n}\n".to_vec().into(), ..Default::default() };
        let push = Push { publication: Some(publication), ..Default::default() };
        encode_reply(Encoding::Json, &Reply { push: Some(push), ..Default::default() }, &mut out).expect("encoded");
        let text = r#"{"push":{"pub":{"data":{    "x": "a\nb" }}}}"#;
        assert_eq!(String::from_utf8_lossy(out.bytes()), text);
    }

    #[test]
    fn binary_data_is_refused_in_json_and_the_buffer_stays() {
        for first in [false, true] {
            let mut out = Payload::default();
            let ping = Reply { id: 1, ping: Some(Empty {}), ..Default::default() };
            if first {
                encode_reply(Encoding::Json, &ping, &mut out).expect("encoded");
            }
            let before = out.clone();
            let publication = Publication { data: vec![0xff, 0].into(), ..Default::default() };
            let push = Push { publication: Some(publication), ..Default::default() };
            assert!(encode_reply(Encoding::Json, &Reply { push: Some(push), ..Default::default() }, &mut out).is_err());
            assert_eq!(out, before);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_panic(frame: Vec<u8>) {
            for encoding in BOTH {
                let _ = decode_commands(encoding, &frame, 100);
            }
        }
    }
}
