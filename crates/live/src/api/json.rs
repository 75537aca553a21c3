//! The server API in JSON, compatible with Centrifugo: `POST /api/publish` and others, with
//! `X-API-Key`.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::result::{BatchReply, BatchResult, MethodResult, ReplyBody};
use super::{Api, BATCH_MAX, Command, Ending, Publish, Renewal, Sessions, Terms, refuse};
use crate::options::{Overrides, SubscribeOptions, Wanted, info_of};
use crate::protocol::codes::{self, ClientError};
use crate::protocol::message::{HistoryRequest, StreamPosition};

// Fields that Centrifugo does not know are ignored, as in Centrifugo. Fields that it knows are
// carried out or refused by name.

#[derive(Deserialize)]
struct PublishBody {
    #[serde(default)]
    channel: String,
    #[serde(default)]
    channels: Vec<String>,
    data: Option<Box<RawValue>>,
    b64data: Option<String>,
    #[serde(default)]
    skip_history: bool,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    #[serde(default)]
    idempotency_key: String,
    version: Option<u64>,
    version_epoch: Option<String>,
}

#[derive(Deserialize)]
struct ChannelBody {
    channel: String,
}

#[derive(Deserialize)]
struct SubscribeBody {
    channel: String,
    #[serde(default)]
    user: String,
    #[serde(default)]
    client: String,
    session: Option<String>,
    info: Option<Box<RawValue>>,
    #[serde(default)]
    b64info: String,
    data: Option<Box<RawValue>>,
    #[serde(default)]
    b64data: String,
    /// Seconds since the Unix epoch; 0 for never.
    #[serde(default)]
    expire_at: u64,
    recover_since: Option<Since>,
    #[serde(rename = "override")]
    overrides: Option<Overrides>,
}

#[derive(Deserialize)]
struct UnsubscribeBody {
    #[serde(default)]
    user: String,
    #[serde(default)]
    channel: String,
    #[serde(default)]
    client: String,
    session: Option<String>,
}

#[derive(Deserialize)]
struct DisconnectBody {
    #[serde(default)]
    user: String,
    #[serde(default)]
    client: String,
    session: Option<String>,
    whitelist: Option<Vec<String>>,
    disconnect: Option<CustomDisconnect>,
}

#[derive(Deserialize)]
struct RefreshBody {
    #[serde(default)]
    user: String,
    #[serde(default)]
    client: String,
    session: Option<String>,
    #[serde(default)]
    expired: bool,
    /// Seconds since the Unix epoch; 0 for never.
    #[serde(default)]
    expire_at: u64,
    info: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct CustomDisconnect {
    #[serde(default)]
    code: u32,
    reason: Option<String>,
}

#[derive(Deserialize)]
struct HistoryBody {
    channel: String,
    #[serde(default)]
    limit: i64,
    since: Option<Since>,
    #[serde(default)]
    reverse: bool,
}

#[derive(Deserialize)]
struct Since {
    #[serde(default)]
    offset: u64,
    #[serde(default)]
    epoch: String,
}

#[derive(Deserialize)]
struct ChannelsBody {
    #[serde(default)]
    pattern: String,
}

#[derive(Deserialize)]
struct BatchBody<'a> {
    #[serde(borrow)]
    commands: BatchCommands<'a>,
    #[serde(default)]
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
                let first = command.next_entry()?;
                while command.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(BatchEntry(first))
            }
        }

        from.deserialize_map(EntryVisitor(PhantomData))
    }
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ClientError> {
    serde_json::from_slice(body).map_err(|error| {
        tracing::debug!(%error, "an API request cannot be decoded");
        ClientError::bad_request(error)
    })
}

impl Api {
    /// Carries out a method and returns the body of its reply.
    ///
    /// # Errors
    /// The error of the method.
    pub(crate) async fn call(&self, method: &str, terms: &Terms, body: &[u8]) -> Result<Vec<u8>, ClientError> {
        if method == "batch" {
            let result = self.json_batch(body, terms).await?;
            return written(&ReplyBody { result });
        }
        let done = self.carry_out(command(method, body)?, terms).await?;
        written(&ReplyBody { result: MethodResult(&done) })
    }

    async fn json_batch(&self, body: &[u8], terms: &Terms) -> Result<BatchResult, ClientError> {
        let request: BatchBody = read(body)?;
        let (methods, commands): (Vec<_>, Vec<_>) = request
            .commands
            .0
            .into_iter()
            .map(|first| match first {
                Some((method, params)) => {
                    let command = command(&method, params.get().as_bytes());
                    (method, command)
                }
                None => (String::new(), Err(codes::BAD_REQUEST)),
            })
            .unzip();
        let answers = self.batch(commands, request.parallel, terms).await?;
        let replies = methods.into_iter().zip(answers).map(|(method, answer)| BatchReply(method, answer));
        Ok(BatchResult { replies: replies.collect() })
    }
}

fn written(reply: &impl Serialize) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(reply).map_err(|error| {
        tracing::error!(%error, "an API reply cannot be encoded as JSON");
        codes::INTERNAL
    })
}

/// Parses a command.
fn command(method: &str, body: &[u8]) -> Result<Command, ClientError> {
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
            let request: SubscribeBody = read(body)?;
            let SubscribeBody { info, b64info, data, b64data, expire_at, overrides, .. } = request;
            let options = SubscribeOptions { info, b64info, data, b64data, expire_at, overrides };
            let wanted = Wanted { channel: request.channel, options, since: request.recover_since.map(position) };
            Command::Subscribe(sessions(request.user, request.client, request.session), Box::new(wanted))
        }
        "unsubscribe" => {
            let UnsubscribeBody { user, channel, client, session } = read(body)?;
            Command::Unsubscribe(sessions(user, client, session), channel)
        }
        "disconnect" => {
            let DisconnectBody { user, client, session, whitelist, disconnect } = read(body)?;
            let with = disconnect.map(|CustomDisconnect { code, reason }| (code, reason.unwrap_or_default()));
            let ending = Ending { whitelist: whitelist.unwrap_or_default(), with };
            Command::Disconnect(sessions(user, client, session), ending)
        }
        "refresh" => {
            let RefreshBody { user, client, session, expired, expire_at, info } = read(body)?;
            let renewal = Renewal { expire_at, expired, info: info_of(info.as_deref(), "")? };
            Command::Refresh(sessions(user, client, session), renewal)
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
        "info" => Command::Info,
        _ => return Err(codes::METHOD_NOT_FOUND),
    })
}

fn sessions(user: String, client: String, session: Option<String>) -> Sessions {
    Sessions { user, client, session: session.unwrap_or_default() }
}

fn position(since: Since) -> StreamPosition {
    StreamPosition { offset: since.offset, epoch: since.epoch }
}

fn publish(request: PublishBody) -> Result<Publish, ClientError> {
    refuse(request.version.is_some_and(|version| version > 0), "version")?;
    refuse(request.version_epoch.as_ref().is_some_and(|epoch| !epoch.is_empty()), "version_epoch")?;
    let data = match (&request.data, &request.b64data) {
        (_, Some(text)) if !text.is_empty() => STANDARD.decode(text).map_err(|_| codes::BAD_REQUEST)?,
        (Some(data), _) => data.get().as_bytes().to_vec(),
        // Some namespaces accept empty data.
        _ => Vec::new(),
    };
    let PublishBody { tags, skip_history, idempotency_key, .. } = request;
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
        assert_eq!((channel.as_str(), publish.data.as_slice()), ("c", [0xff, 0].as_slice()));
        for (method, body, code, expected) in [
            ("publish", r#"{"channel": "c", "b64data": "?"}"#, 107, "bad request"),
            ("publish", r#"{"channel": "c", "data": 1, "version": 4}"#, 107, "version: not supported"),
            ("publish", r#"{"channel": "c", "data": 1, "version_epoch": "e"}"#, 107, "version_epoch"),
            ("broadcast", r#"{"channels": ["c"], "data": 1, "version": 4}"#, 107, "version: not supported"),
            ("broadcast", r#"{"channels": ["c"], "data": 1, "version_epoch": "e"}"#, 107, "version_epoch"),
            ("disconnect", r#"{"user": "u", "whitelist": "c"}"#, 107, "sequence"),
            ("disconnect", r#"{"user": "u", "session": 1}"#, 107, "string"),
            ("history", "{}", 107, "channel"),
            ("mystery", "{}", 104, "method not found"),
        ] {
            let error = command(method, body.as_bytes()).expect_err(method);
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
        let read_batch = |body: &str| read::<BatchBody<'_>>(body.as_bytes()).map(|read| read.commands.0.len());
        let found: BatchBody<'_> = read(body.as_bytes()).expect("valid");
        let names =
            |one: &Option<(String, &RawValue)>| one.as_ref().map(|(name, raw)| (name.clone(), raw.get().to_owned()));
        let found: Vec<_> = found.commands.0.iter().map(names).collect();
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
}
