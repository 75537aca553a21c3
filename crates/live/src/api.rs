//! The server API: what a back end may ask, as Centrifugo's users know it (`POST /api/publish` and the like, with `X-API-Key`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::future::join_all;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use steadfast_store::Position;
use uuid::Uuid;

use crate::commands::parse_client;
use crate::node::{Node, epoch_text, refusal};
use crate::options::{Overrides, SubscribeOptions, Wanted};
use crate::partition::ToSession;
use crate::protocol::codes::{self, ClientError, Disconnected};
use crate::protocol::message::{Expiry, HistoryRequest, Publication, Push, Reply, StreamPosition, Unsubscribe};

/// For how long a publication is known by its idempotency key, milliseconds, and how many are.
const KNOWN_MS: u64 = 300_000;
const KNOWN_MAX: usize = 100_000;

/// Commands in a batch, and channels in a broadcast.
const BATCH_MAX: usize = 10_000;

/// Sessions of a user that are subscribed at a time.
const SUBSCRIBES_TOGETHER: usize = 64;

/// Channels in an answer.
const CHANNELS_MAX: usize = 100_000;

type Answer = Result<Value, ClientError>;

/// Publications by their idempotency keys.
#[derive(Default)]
struct Known {
    positions: HashMap<(String, String), Position>,
    order: VecDeque<(u64, (String, String))>,
}

/// The API over a node.
pub struct Api {
    node: Arc<Node>,
    known: Mutex<Known>,
}

#[derive(Deserialize)]
struct Publish {
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
}

#[derive(Deserialize)]
struct Channel {
    channel: String,
}

/// Options that are not supported are refused by name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Subscribe {
    channel: String,
    #[serde(default)]
    user: String,
    #[serde(default)]
    client: String,
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
struct OfUser {
    #[serde(default)]
    user: String,
    #[serde(default)]
    channel: String,
    #[serde(default)]
    client: String,
    disconnect: Option<Custom>,
}

#[derive(Deserialize)]
struct Refresh {
    #[serde(default)]
    user: String,
    #[serde(default)]
    client: String,
    #[serde(default)]
    expired: bool,
    /// Seconds since the Unix epoch; 0 for never.
    #[serde(default)]
    expire_at: u64,
}

#[derive(Deserialize)]
struct Custom {
    code: u16,
}

#[derive(Deserialize)]
struct History {
    channel: String,
    #[serde(default)]
    limit: i32,
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
struct Channels {
    #[serde(default)]
    pattern: String,
}

#[derive(Deserialize)]
struct Batch {
    commands: Vec<serde_json::Map<String, Value>>,
    #[serde(default)]
    parallel: bool,
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ClientError> {
    serde_json::from_slice(body).map_err(|error| {
        tracing::debug!(%error, "an API request cannot be read");
        ClientError::bad_request(error)
    })
}

impl Api {
    /// Over a node.
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, known: Mutex::default() }
    }

    /// Carries out a method; the body of the answer.
    pub async fn call(&self, method: &str, body: &[u8]) -> Value {
        said(if method == "batch" { self.batch(body).await } else { self.one(method, body).await })
    }

    async fn one(&self, method: &str, body: &[u8]) -> Answer {
        match method {
            "publish" => {
                let request: Publish = read(body)?;
                let publication = publication(&request)?;
                self.publish(&request, &request.channel, publication).await
            }
            "broadcast" => {
                let request: Publish = read(body)?;
                if request.channels.is_empty() || request.channels.len() > BATCH_MAX {
                    return Err(codes::BAD_REQUEST);
                }
                let publication = publication(&request)?;
                let each = request.channels.iter().map(|channel| self.publish(&request, channel, publication.clone()));
                let responses: Vec<Value> = join_all(each).await.into_iter().map(said).collect();
                Ok(json!({"responses": responses}))
            }
            "subscribe" => {
                let request: Subscribe = read(body)?;
                self.subscribe(request).await
            }
            "unsubscribe" => self.unsubscribe(&read(body)?),
            "disconnect" => self.disconnect(&read(body)?),
            "refresh" => self.refresh(&read(body)?),
            "presence" => {
                let Channel { channel } = read(body)?;
                self.with_presence(&channel)?;
                Ok(json!({"presence": self.node.presence.list(&channel, CHANNELS_MAX)}))
            }
            "presence_stats" => {
                let Channel { channel } = read(body)?;
                self.with_presence(&channel)?;
                let stats = self.node.presence.stats(&channel);
                Ok(json!({"num_clients": stats.num_clients, "num_users": stats.num_users}))
            }
            "history" => {
                let request: History = read(body)?;
                self.with_history(&request.channel)?;
                let since = request.since.map(|s| StreamPosition { offset: s.offset, epoch: s.epoch });
                let asked =
                    HistoryRequest { channel: request.channel, limit: request.limit, since, reverse: request.reverse };
                let history = self.node.history(&asked).await?;
                let publications = history.publications;
                Ok(json!({"publications": publications, "epoch": history.epoch, "offset": history.offset}))
            }
            "history_remove" => {
                let Channel { channel } = read(body)?;
                self.with_history(&channel)?;
                self.node.handle(&channel)?.clear().await.map_err(|e| refusal(&e))?;
                Ok(json!({}))
            }
            "channels" => {
                let Channels { pattern } = read(body)?;
                let found = self.node.channels(|name| matches_pattern(&pattern, name));
                let found = found.into_iter().take(CHANNELS_MAX);
                let channels: BTreeMap<_, _> =
                    found.map(|(name, count)| (name.to_string(), json!({"num_clients": count}))).collect();
                Ok(json!({"channels": channels}))
            }
            "info" => {
                let (clients, users) = self.node.counts();
                let node = json!({
                    "uid": "steadfast", "name": "steadfast", "version": self.node.version,
                    "num_clients": clients, "num_users": users, "num_channels": self.node.channels(|_| true).len(),
                    "uptime": self.node.env.now().as_secs(),
                });
                Ok(json!({"nodes": [node]}))
            }
            _ => Err(codes::METHOD_NOT_FOUND),
        }
    }

    async fn batch(&self, body: &[u8]) -> Answer {
        let request: Batch = read(body)?;
        if request.commands.len() > BATCH_MAX {
            return Err(codes::LIMIT_EXCEEDED);
        }
        let one = async |command: serde_json::Map<String, Value>| {
            let Some((method, params)) = command.into_iter().next() else { return said(Err(codes::BAD_REQUEST)) };
            let body = params.to_string();
            match self.one(&method, body.as_bytes()).await {
                Ok(result) => json!({method: result}),
                Err(error) => said(Err(error)),
            }
        };
        let mut replies = Vec::with_capacity(request.commands.len());
        if request.parallel {
            replies = join_all(request.commands.into_iter().map(one)).await;
        } else {
            for command in request.commands {
                replies.push(one(command).await);
            }
        }
        Ok(json!({"replies": replies}))
    }

    async fn publish(&self, request: &Publish, channel: &str, publication: Publication) -> Answer {
        if channel.is_empty() {
            return Err(codes::BAD_REQUEST);
        }
        let key = (!request.idempotency_key.is_empty()).then(|| (channel.to_owned(), request.idempotency_key.clone()));
        if let Some(position) = key.as_ref().and_then(|key| self.known(key)) {
            return Ok(position_json(position));
        }
        let position = self.node.publish(channel, publication, request.skip_history).await?;
        if let Some(key) = key {
            self.remember(key, position);
        }
        Ok(position_json(position))
    }

    fn known(&self, key: &(String, String)) -> Option<Position> {
        let now = self.node.env.wall_ms();
        let mut known = self.known.lock();
        while let Some((until, _)) = known.order.front()
            && *until <= now
            && let Some((_, over)) = known.order.pop_front()
        {
            known.positions.remove(&over);
        }
        known.positions.get(key).copied()
    }

    fn remember(&self, key: (String, String), position: Position) {
        let mut known = self.known.lock();
        if known.order.len() >= KNOWN_MAX
            && let Some((_, oldest)) = known.order.pop_front()
        {
            known.positions.remove(&oldest);
        }
        known.order.push_back((self.node.env.wall_ms() + KNOWN_MS, key.clone()));
        known.positions.insert(key, position);
    }

    fn with_presence(&self, channel: &str) -> Result<(), ClientError> {
        if self.node.namespace(channel)?.presence { Ok(()) } else { Err(codes::NOT_AVAILABLE) }
    }

    fn with_history(&self, channel: &str) -> Result<(), ClientError> {
        if self.node.namespace(channel)?.has_history() { Ok(()) } else { Err(codes::NOT_AVAILABLE) }
    }

    async fn subscribe(&self, request: Subscribe) -> Answer {
        let now_ms = self.node.env.wall_ms();
        let options = SubscribeOptions {
            info: request.info,
            b64info: request.b64info,
            data: request.data,
            b64data: request.b64data,
            expire_at: request.expire_at,
            overrides: request.overrides,
        };
        if options.expires_ms().is_some_and(|ends| ends <= now_ms) {
            return Err(codes::EXPIRED);
        }
        // What is wrong is said even if there are no sessions now.
        self.node.namespace(&request.channel)?;
        options.info()?;
        options.data()?;
        let since = request.recover_since.map(|s| StreamPosition { offset: s.offset, epoch: s.epoch });
        let wanted = Wanted { channel: request.channel, options, since };
        for some in self.node.sessions_of(&request.user, client_of(&request.client)?).chunks(SUBSCRIBES_TOGETHER) {
            let each = some.iter().map(|(session, who)| self.node.subscribe_unasked(*session, who, &wanted));
            join_all(each).await.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(json!({}))
    }

    fn unsubscribe(&self, request: &OfUser) -> Answer {
        if request.channel.is_empty() {
            return Err(codes::BAD_REQUEST);
        }
        let (code, reason) = codes::UNSUBSCRIBED_BY_SERVER;
        for (session, _) in self.node.sessions_of(&request.user, client_of(&request.client)?) {
            let unsubscribe = Some(Unsubscribe { code, reason: reason.to_owned() });
            let push = Push { channel: request.channel.clone(), unsubscribe, ..Push::default() };
            let reply = Reply { push: Some(push), ..Reply::default() };
            self.node.to(session, ToSession::Unsubscribed(request.channel.as_str().into(), Some(Box::new(reply))));
        }
        Ok(json!({}))
    }

    fn disconnect(&self, request: &OfUser) -> Answer {
        let why = match &request.disconnect {
            Some(custom) if (3000..5000).contains(&custom.code) => {
                Disconnected { code: custom.code, reason: "disconnected by the back end".into() }
            }
            Some(_) => return Err(codes::BAD_REQUEST),
            None => codes::FORCE_DISCONNECT,
        };
        for (session, _) in self.node.sessions_of(&request.user, client_of(&request.client)?) {
            self.node.to(session, ToSession::Disconnect(why.clone()));
        }
        Ok(json!({}))
    }

    /// Says anew until when a user's sessions last.
    fn refresh(&self, request: &Refresh) -> Answer {
        let now_ms = self.node.env.wall_ms();
        let lasts = request.expire_at.saturating_sub(now_ms / 1000);
        let expired = request.expired || request.expire_at > 0 && lasts == 0;
        for (session, _) in self.node.sessions_of(&request.user, client_of(&request.client)?) {
            let told = if expired {
                ToSession::Disconnect(codes::SESSION_EXPIRED)
            } else {
                let expires_ms = (request.expire_at > 0).then(|| request.expire_at.saturating_mul(1000));
                let ttl = u32::try_from(lasts).unwrap_or(u32::MAX);
                let refresh = Some(Expiry { expires: expires_ms.is_some(), ttl });
                let push = Some(Push { refresh, ..Push::default() });
                ToSession::Refreshed(expires_ms, Some(Box::new(Reply { push, ..Reply::default() })))
            };
            self.node.to(session, told);
        }
        Ok(json!({}))
    }
}

/// A session that a request names; none is named by an empty text.
fn client_of(text: &str) -> Result<Option<Uuid>, ClientError> {
    match text {
        "" => Ok(None),
        text => parse_client(text).map(Some).ok_or(codes::BAD_REQUEST),
    }
}

fn said(answer: Answer) -> Value {
    match answer {
        Ok(result) => json!({"result": result}),
        Err(error) => json!({"error": {"code": error.code, "message": error.message}}),
    }
}

fn position_json(position: Position) -> Value {
    match position.offset {
        0 => json!({}),
        offset => json!({"offset": offset, "epoch": epoch_text(position.epoch)}),
    }
}

fn publication(request: &Publish) -> Result<Publication, ClientError> {
    let data = match (&request.data, &request.b64data) {
        (_, Some(text)) if !text.is_empty() => STANDARD.decode(text).map_err(|_| codes::BAD_REQUEST)?,
        (Some(data), _) => data.get().as_bytes().to_vec(),
        _ => return Err(codes::BAD_REQUEST),
    };
    Ok(Publication { data, tags: request.tags.clone(), ..Publication::default() })
}

/// Whether a name matches a pattern with `*` for anything; an empty pattern is matched by all.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    if pattern.is_empty() {
        return true;
    }
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut last = None;
    for piece in pieces {
        if let Some(piece) = last.replace(piece) {
            let Some(at) = rest.find(piece) else { return false };
            rest = &rest[at + piece.len()..];
        }
    }
    last.map_or(rest.is_empty(), |last| rest.ends_with(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, matches) in [
            ("", "x", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(matches_pattern(pattern, name), matches, "{pattern} {name}");
        }
    }
}
