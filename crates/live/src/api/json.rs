//! The server API in JSON, compatible with Centrifugo: `POST /api/publish` and others, with
//! `X-API-Key`.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::result::{BatchReply, BatchResult, MethodResult, ReplyBody};
use super::{Api, BATCH_MAX, Command, Ending, Publish, Renewal, Sessions, Terms, refuse};
use crate::options::{SubscribeOptions, Wanted, info_of};
use crate::protocol::codes::{self, ClientError};
use crate::protocol::json::{any_json, into_bytes, null_is_absent, null_values_are_absent};
use crate::protocol::message::{HistoryRequest, StreamPosition};

// Fields that Centrifugo does not know are ignored, as in Centrifugo. Fields that it knows are
// carried out or refused by name.

#[derive(Default, Deserialize)]
#[serde(default)]
struct PublishBody {
    #[serde(deserialize_with = "null_is_absent")]
    channel: String,
    #[serde(deserialize_with = "null_is_absent")]
    channels: Vec<String>,
    #[serde(deserialize_with = "any_json")]
    data: Option<Box<RawValue>>,
    #[serde(deserialize_with = "null_is_absent")]
    b64data: String,
    #[serde(deserialize_with = "null_is_absent")]
    skip_history: bool,
    #[serde(deserialize_with = "null_values_are_absent")]
    tags: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_is_absent")]
    idempotency_key: String,
    #[serde(deserialize_with = "null_is_absent")]
    version: u64,
    #[serde(deserialize_with = "null_is_absent")]
    version_epoch: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ChannelBody {
    #[serde(deserialize_with = "null_is_absent")]
    channel: String,
}

/// The parameters of a subscription besides its options.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SubscribeBody {
    #[serde(deserialize_with = "null_is_absent")]
    channel: String,
    #[serde(deserialize_with = "null_is_absent")]
    user: String,
    #[serde(deserialize_with = "null_is_absent")]
    client: String,
    #[serde(deserialize_with = "null_is_absent")]
    session: String,
    recover_since: Option<Since>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UnsubscribeBody {
    #[serde(deserialize_with = "null_is_absent")]
    channel: String,
    #[serde(deserialize_with = "null_is_absent")]
    user: String,
    #[serde(deserialize_with = "null_is_absent")]
    client: String,
    #[serde(deserialize_with = "null_is_absent")]
    session: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DisconnectBody {
    #[serde(deserialize_with = "null_is_absent")]
    user: String,
    #[serde(deserialize_with = "null_is_absent")]
    client: String,
    #[serde(deserialize_with = "null_is_absent")]
    session: String,
    #[serde(deserialize_with = "null_is_absent")]
    whitelist: Vec<String>,
    disconnect: Option<CustomDisconnect>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RefreshBody {
    #[serde(deserialize_with = "null_is_absent")]
    user: String,
    #[serde(deserialize_with = "null_is_absent")]
    client: String,
    #[serde(deserialize_with = "null_is_absent")]
    session: String,
    #[serde(deserialize_with = "null_is_absent")]
    expired: bool,
    /// Seconds since the Unix epoch; 0 for never.
    #[serde(deserialize_with = "null_is_absent")]
    expire_at: u64,
    info: Option<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CustomDisconnect {
    #[serde(deserialize_with = "null_is_absent")]
    code: u32,
    #[serde(deserialize_with = "null_is_absent")]
    reason: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HistoryBody {
    #[serde(deserialize_with = "null_is_absent")]
    channel: String,
    #[serde(deserialize_with = "null_is_absent")]
    limit: i64,
    since: Option<Since>,
    #[serde(deserialize_with = "null_is_absent")]
    reverse: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Since {
    #[serde(deserialize_with = "null_is_absent")]
    offset: u64,
    #[serde(deserialize_with = "null_is_absent")]
    epoch: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ChannelsBody {
    #[serde(deserialize_with = "null_is_absent")]
    pattern: String,
}

#[derive(Deserialize)]
struct BatchBody<'a> {
    #[serde(borrow, default)]
    commands: Option<BatchCommands<'a>>,
    #[serde(default, deserialize_with = "null_is_absent")]
    parallel: bool,
}

/// The commands of a batch: the first method of each with its raw parameters. Parsed values would
/// take a hundred times the memory. At most `BATCH_MAX + 1` are kept.
struct BatchCommands<'a>(Vec<Option<(String, &'a RawValue)>>);

impl<'de: 'a, 'a> Deserialize<'de> for BatchCommands<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct BatchVisitor<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for BatchVisitor<'a> {
            type Value = BatchCommands<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of commands")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut commands: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(BatchEntry(first)) = commands.next_element()? {
                    all.push(first);
                    if all.len() > BATCH_MAX {
                        // The batch is refused for its length; the rest is only parsed.
                        while commands.next_element::<IgnoredAny>()?.is_some() {}
                    }
                }
                Ok(BatchCommands(all))
            }
        }

        from.deserialize_seq(BatchVisitor(PhantomData))
    }
}

struct BatchEntry<'a>(Option<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for BatchEntry<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct EntryVisitor<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for EntryVisitor<'a> {
            type Value = BatchEntry<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a command by its name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut command: A) -> Result<Self::Value, A::Error> {
                while let Some((method, params)) = command.next_entry::<String, &RawValue>()? {
                    // Some back ends write all other methods as null.
                    if params.get() != "null" {
                        while command.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                        return Ok(BatchEntry(Some((method, params))));
                    }
                }
                Ok(BatchEntry(None))
            }
        }

        from.deserialize_map(EntryVisitor(PhantomData))
    }
}

/// Why there is no result.
#[derive(Debug, PartialEq)]
pub(crate) enum CallError {
    /// The body is not JSON of the expected form, with the cause.
    Malformed(String),
    /// There is no such method.
    NoMethod,
    /// The method failed.
    Error(ClientError),
}

impl From<ClientError> for CallError {
    fn from(error: ClientError) -> Self {
        Self::Error(error)
    }
}

impl From<CallError> for ClientError {
    fn from(refused: CallError) -> Self {
        match refused {
            CallError::Malformed(why) => Self::bad_request(why),
            CallError::NoMethod => codes::METHOD_NOT_FOUND,
            CallError::Error(error) => error,
        }
    }
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, CallError> {
    // Structs can be read from lists, too.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(CallError::Malformed("the body is not an object".to_owned()));
    }
    serde_json::from_slice(body).map_err(|error| {
        tracing::debug!(%error, "an API request cannot be decoded");
        CallError::Malformed(error.to_string())
    })
}

impl Api {
    /// Carries out a method and returns the body of its reply.
    ///
    /// # Errors
    /// See [`CallError`].
    pub(crate) async fn call(&self, method: &str, terms: &Terms, body: &[u8]) -> Result<Vec<u8>, CallError> {
        if method == "batch" {
            return Ok(written(&self.json_batch(body, terms).await?)?);
        }
        let done = self.carry_out(command(method, body)?, terms).await?;
        Ok(written(&ReplyBody { result: MethodResult(&done) })?)
    }

    async fn json_batch(&self, body: &[u8], terms: &Terms) -> Result<BatchResult, CallError> {
        let request: BatchBody = read(body)?;
        let commands = request.commands.map(|commands| commands.0).unwrap_or_default();
        let (methods, commands): (Vec<_>, Vec<_>) = commands
            .into_iter()
            .map(|first| match first {
                Some((method, params)) => {
                    let command = command(&method, params.get().as_bytes()).map_err(ClientError::from);
                    (method, command)
                }
                None => (String::new(), Err(codes::METHOD_NOT_FOUND)),
            })
            .unzip();
        let answers = self.batch(commands, request.parallel, terms).await?;
        let replies = methods.into_iter().zip(answers).map(|(method, answer)| BatchReply(method, answer));
        Ok(BatchResult { replies: replies.collect() })
    }
}

pub(super) fn written(reply: &impl Serialize) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(reply).map_err(|error| {
        tracing::error!(%error, "an API reply cannot be encoded as JSON");
        codes::INTERNAL
    })
}

/// Parses a command.
pub(super) fn command(method: &str, body: &[u8]) -> Result<Command, CallError> {
    let body = if body.trim_ascii() == b"null" { b"{}" } else { body };
    let one = |body| read::<ChannelBody>(body).map(|read| read.channel);
    Ok(match method {
        "publish" => {
            let request: PublishBody = read(body)?;
            let (channel, publish) = (request.channel.clone(), publish(request)?);
            Command::Publish(channel, publish)
        }
        "broadcast" => {
            let mut request: PublishBody = read(body)?;
            let channels = std::mem::take(&mut request.channels);
            Command::Broadcast(channels, publish(request)?)
        }
        "subscribe" => {
            let SubscribeBody { channel, user, client, session, recover_since, .. } = read(body)?;
            let options: SubscribeOptions = read(body)?;
            let wanted = Wanted { channel, options, since: recover_since.map(position) };
            Command::Subscribe(Sessions { user, client, session }, Box::new(wanted))
        }
        "unsubscribe" => {
            let UnsubscribeBody { user, channel, client, session } = read(body)?;
            Command::Unsubscribe(Sessions { user, client, session }, channel)
        }
        "disconnect" => {
            let DisconnectBody { user, client, session, whitelist, disconnect } = read(body)?;
            let with = disconnect.map(|CustomDisconnect { code, reason }| (code, reason));
            Command::Disconnect(Sessions { user, client, session }, Ending { whitelist, with })
        }
        "refresh" => {
            let RefreshBody { user, client, session, expired, expire_at, info } = read(body)?;
            let renewal = Renewal { expire_at, expired, info: info_of(info.as_deref(), "")? };
            Command::Refresh(Sessions { user, client, session }, renewal)
        }
        "presence" => Command::Presence(one(body)?),
        "presence_stats" => Command::PresenceStats(one(body)?),
        "history" => {
            let HistoryBody { channel, limit, since, reverse } = read(body)?;
            // A limit above the maximum means the maximum.
            let limit = i32::try_from(limit).unwrap_or(if limit < 0 { -1 } else { i32::MAX });
            Command::History(HistoryRequest { channel, limit, since: since.map(position), reverse })
        }
        "history_remove" => Command::HistoryRemove(one(body)?),
        "channels" => Command::Channels(read::<ChannelsBody>(body)?.pattern),
        "info" => {
            read::<ChannelsBody>(body)?;
            Command::Info
        }
        // Centrifugo has the method; its methods come from the operator's proxies.
        "rpc" => return Err(codes::METHOD_NOT_FOUND.into()),
        _ => return Err(CallError::NoMethod),
    })
}

fn position(since: Since) -> StreamPosition {
    StreamPosition { offset: since.offset, epoch: since.epoch }
}

fn publish(request: PublishBody) -> Result<Publish, ClientError> {
    refuse(request.version > 0, "version")?;
    refuse(!request.version_epoch.is_empty(), "version_epoch")?;
    let PublishBody { data, b64data, tags, skip_history, idempotency_key, .. } = request;
    let data = match (data, b64data.as_str()) {
        // Some namespaces accept empty data.
        (None, "") => Bytes::new(),
        (Some(data), "") => into_bytes(data),
        (_, text) => STANDARD.decode(text).map_err(|_| codes::BAD_REQUEST)?.into(),
    };
    Ok(Publish { data, tags, skip_history, idempotency_key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_parsed_and_mistakes_are_named() {
        let Ok(Command::Publish(channel, publish)) = command("publish", br#"{"channel": "c", "b64data": "/wA="}"#)
        else {
            panic!("a publication")
        };
        assert_eq!((channel.as_str(), &publish.data[..]), ("c", &[0xff, 0][..]));
        for (method, body, code, expected) in [
            ("publish", r#"{"channel": "c", "b64data": "?"}"#, 107, "bad request"),
            ("publish", r#"{"channel": "c", "data": 1, "version": 4}"#, 107, "version: not supported"),
            ("publish", r#"{"channel": "c", "data": 1, "version_epoch": "e"}"#, 107, "version_epoch"),
            ("broadcast", r#"{"channels": ["c"], "data": 1, "version": 4}"#, 107, "version: not supported"),
            ("broadcast", r#"{"channels": ["c"], "data": 1, "version_epoch": "e"}"#, 107, "version_epoch"),
            ("disconnect", r#"{"user": "u", "whitelist": "c"}"#, 107, "sequence"),
            ("disconnect", r#"{"user": "u", "session": 1}"#, 107, "string"),
            ("rpc", "{}", 104, "method not found"),
            ("mystery", "{}", 104, "method not found"),
        ] {
            let error = ClientError::from(command(method, body.as_bytes()).expect_err(method));
            assert!(error.code == code && error.message.contains(expected), "{method}: {error:?}");
        }
    }

    #[test]
    fn a_command_keeps_its_session_fields() {
        let parsed = |method: &str, more: &str| {
            let body = format!(r#"{{"user": "u", "channel": "c", "client": "x", "session": "s"{more}}}"#);
            match command(method, body.as_bytes()).expect(method) {
                Command::Subscribe(sessions, _) | Command::Unsubscribe(sessions, _) => (sessions, None, Vec::new()),
                Command::Disconnect(sessions, ending) => (sessions, ending.with, ending.whitelist),
                Command::Refresh(sessions, renewal) => (sessions, None, vec![renewal.info.escape_ascii().to_string()]),
                other => panic!("{other:?}"),
            }
        };
        for method in ["subscribe", "unsubscribe", "disconnect", "refresh"] {
            // Unknown fields are ignored, as in Centrifugo.
            let (sessions, ..) = parsed(method, r#", "unknown": 1"#);
            let found = (sessions.user.as_str(), sessions.client.as_str(), sessions.session.as_str());
            assert_eq!(found, ("u", "x", "s"), "{method}");
        }
        let (_, with, whitelist) =
            parsed("disconnect", r#", "whitelist": ["a", "b"], "disconnect": {"code": 4001, "reason": "r"}"#);
        assert_eq!((with, whitelist), (Some((4001, "r".into())), vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(parsed("refresh", r#", "info": {"n": 1}"#).2, [r#"{\"n\": 1}"#]);
    }

    #[test]
    fn a_batch_is_parsed_up_to_its_limit() {
        let batch = |commands: &str| format!(r#"{{"parallel": true, "commands": [{commands}]}}"#);
        let body = batch(r#"{"publish": {"channel": "a", "data": {"x": [1]}}, "z": 1}, {}, {"info": {}}"#);
        let read_batch =
            |body: &str| read::<BatchBody<'_>>(body.as_bytes()).map(|read| read.commands.expect("commands").0.len());
        let found: BatchBody<'_> = read(body.as_bytes()).expect("valid");
        let names =
            |one: &Option<(String, &RawValue)>| one.as_ref().map(|(name, raw)| (name.clone(), raw.get().to_owned()));
        let found: Vec<_> = found.commands.expect("commands").0.iter().map(names).collect();
        let publish = r#"{"channel": "a", "data": {"x": [1]}}"#;
        assert_eq!(found, [Some(("publish".into(), publish.into())), None, Some(("info".into(), "{}".into()))]);
        let many = vec![r#"{"":0}"#; 10 * BATCH_MAX].join(",");
        assert_eq!(read_batch(&batch(&many)), Ok(BATCH_MAX + 1));
        assert!(read_batch(&batch(&format!("{many},7"))).is_ok(), "the rest is not parsed as commands");
        assert!(read_batch(&batch("7")).is_err());
        assert!(read_batch(&format!(r#"{{"commands": [{many},"#)).is_err());
    }

    #[test]
    fn a_limit_may_be_any_number() {
        for (limit, expected) in [("10000000000", i32::MAX), ("5", 5), ("-10000000000", -1), ("0", 0)] {
            let Ok(Command::History(request)) =
                command("history", format!(r#"{{"channel": "c", "limit": {limit}}}"#).as_bytes())
            else {
                panic!("a history")
            };
            assert_eq!(request.limit, expected);
        }
    }

    #[test]
    fn null_is_absent_in_every_field_but_data() {
        for (method, fields) in [
            ("publish", "channel b64data skip_history tags idempotency_key version version_epoch delta"),
            ("broadcast", "channels b64data skip_history tags idempotency_key version version_epoch"),
            ("subscribe", "channel user client session info b64info data b64data expire_at recover_since override"),
            ("unsubscribe", "channel user client session"),
            ("disconnect", "user client session whitelist disconnect"),
            ("refresh", "user client session expired expire_at info"),
            ("history", "channel limit since reverse"),
            ("presence", "channel"),
            ("channels", "pattern"),
        ] {
            let fields: Vec<String> = fields.split(' ').map(|field| format!("\"{field}\": null")).collect();
            let body = format!("{{{}}}", fields.join(", "));
            let (nulls, absent) = (command(method, body.as_bytes()), command(method, b"{}"));
            assert_eq!(format!("{nulls:?}"), format!("{absent:?}"), "{method}");
            assert!(nulls.is_ok(), "{nulls:?}");
        }
        let body = br#"{"channel": "c", "data": null, "tags": {"a": null}}"#;
        let Ok(Command::Publish(_, publish)) = command("publish", body) else { panic!("a publication of null") };
        assert_eq!((&publish.data[..], publish.tags), (&b"null"[..], [("a".into(), String::new())].into()));
        let body = br#"{"disconnect": {"code": 4001, "reason": null}, "since": {"offset": null, "epoch": null}}"#;
        assert!(command("disconnect", body).is_ok() && command("history", body).is_ok());
        assert!(command("subscribe", br#"{"override": {"presence": {"value": null}}}"#).is_ok());
    }

    #[test]
    fn malformed_bodies_and_unknown_methods_differ_from_errors() {
        for body in ["", "7", "[]", "{", "{} 1", r#"{"channel": 1}"#] {
            assert!(matches!(command("publish", body.as_bytes()), Err(CallError::Malformed(_))), "{body}");
        }
        assert!(matches!(command("info", b""), Err(CallError::Malformed(_))));
        assert!(command("channels", b" null").is_ok());
        assert_eq!(command("mystery", b"{}").expect_err("unknown"), CallError::NoMethod);
    }
}
