//! The server API: the commands of back ends, over HTTP (`json`) and gRPC (`crate::grpc`), and
//! their results.

#[cfg(test)]
mod bounds_tests;
pub(crate) mod json;
pub(crate) mod result;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use futures::future::join_all;
use futures::{StreamExt, stream};
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use steadfast_flow::{Permit, stages};
use steadfast_store::Position;

use crate::answer::held;
use crate::commands::parse_client;
use crate::config::ChannelDurability;
use crate::node::{GATE_WAIT, Node, Submission, refusal};
use crate::options::{SubscribeOptions, Wanted};
use crate::outgoing::Encoded;
use crate::partition::{SessionId, SessionMessage};
use crate::protocol::codes::{self, ClientError, Disconnected};
use crate::protocol::message::{
    ClientInfo, Expiry, HistoryRequest, HistoryResult, PresenceStatsResult, Publication, Push, Reply, Unsubscribe,
};
use crate::session::SessionIdentity;

/// The header that requests gRPC status errors for one call, as the option `error_mode` does for
/// all.
pub(crate) const ERROR_MODE: &str = "x-centrifugo-error-mode";

/// Maximum number of commands in a batch, and of channels in a broadcast.
pub(crate) const BATCH_MAX: usize = 10_000;

/// Maximum number of commands of a batch carried out concurrently.
const COMMANDS_TOGETHER: usize = 256;

/// Maximum number of channels that the broadcasts of a request publish to concurrently, and of
/// bytes in their copies of the data.
const CHANNELS_TOGETHER: usize = 1024;
const BYTES_TOGETHER: usize = 16 << 20;

/// Maximum number of sessions of a user subscribed concurrently.
const SUBSCRIBES_TOGETHER: usize = 64;

/// Maximum number of channels in an answer.
const CHANNELS_MAX: usize = 100_000;

/// Overhead in bytes: of a channel in an answer besides its name, and of a publication in flight
/// besides its data.
const CHANNEL_BYTES: usize = 64;
const PUBLICATION_BYTES: u64 = 1024;

/// The header or metadata key with the durability of the publications of a request: `sync` or
/// `async`.
const DURABILITY: &str = "x-steadfast-durability";

/// The durability that a request asks for; `None` if it has no such header.
pub(crate) fn durability(headers: &HeaderMap) -> Result<Option<ChannelDurability>, ClientError> {
    match headers.get(DURABILITY).map(HeaderValue::as_bytes) {
        None => Ok(None),
        Some(b"sync") => Ok(Some(ChannelDurability::Sync)),
        Some(b"async") => Ok(Some(ChannelDurability::Async)),
        Some(_) => Err(ClientError::bad_request(format!("{DURABILITY} must be sync or async"))),
    }
}

/// The parameters of a publication.
#[derive(Debug)]
pub(crate) struct Publish {
    pub(crate) data: Vec<u8>,
    pub(crate) tags: BTreeMap<String, String>,
    pub(crate) skip_history: bool,
    pub(crate) idempotency_key: String,
}

/// A publication with its encodings, shared by the channels of a broadcast.
struct EncodedPublish {
    publication: Encoded,
    skip_history: bool,
    idempotency_key: String,
}

impl Publish {
    fn encoded(self) -> EncodedPublish {
        let Self { data, tags, skip_history, idempotency_key } = self;
        let publication = Publication { data, tags, ..Publication::default() }.into();
        EncodedPublish { publication, skip_history, idempotency_key }
    }
}

/// Selects the sessions of a command: all of a user, or one by client ID or session ID.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    pub(crate) user: String,
    pub(crate) client: String,
    /// The session ID of an emulated or unidirectional transport.
    pub(crate) session: String,
}

/// How to disconnect sessions.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    /// Client IDs of sessions that stay connected.
    pub(crate) whitelist: Vec<String>,
    /// The code and reason, if not the default ones.
    pub(crate) with: Option<(u32, String)>,
}

/// New properties of sessions.
#[derive(Debug, Default)]
pub(crate) struct Renewal {
    /// Seconds since the Unix epoch; 0: no expiry.
    pub(crate) expire_at: u64,
    /// The sessions end now.
    pub(crate) expired: bool,
    /// The `info` shown to other clients; empty: unchanged.
    pub(crate) info: Vec<u8>,
}

/// The commands of the API.
#[derive(Debug)]
pub(crate) enum Command {
    Publish(String, Publish),
    Broadcast(Vec<String>, Publish),
    Subscribe(Sessions, Box<Wanted>),
    /// The sessions and the channel.
    Unsubscribe(Sessions, String),
    Disconnect(Sessions, Ending),
    Refresh(Sessions, Renewal),
    Presence(String),
    PresenceStats(String),
    History(HistoryRequest),
    HistoryRemove(String),
    /// The pattern of names.
    Channels(String),
    Info,
}

impl Command {
    /// The channel of the command; empty if it has none or many.
    fn about(&self) -> &str {
        match self {
            Self::Publish(channel, _)
            | Self::Unsubscribe(_, channel)
            | Self::Presence(channel)
            | Self::PresenceStats(channel)
            | Self::HistoryRemove(channel) => channel,
            Self::Broadcast(channels, _) => channels.first().map_or("", |first| first),
            Self::Subscribe(_, wanted) => &wanted.channel,
            Self::History(request) => &request.channel,
            Self::Disconnect(..) | Self::Refresh(..) | Self::Channels(_) | Self::Info => "",
        }
    }
}

/// The state of the server.
#[derive(Debug)]
pub(crate) struct Info {
    pub(crate) version: String,
    pub(crate) clients: usize,
    pub(crate) users: usize,
    pub(crate) channels: usize,
    /// Uptime in seconds.
    pub(crate) uptime: u64,
}

/// The result of a command.
#[derive(Debug)]
pub(crate) enum Done {
    Nothing,
    Published(Position),
    /// The results in the order of the channels.
    Broadcast(Vec<Result<Position, ClientError>>),
    Presence(BTreeMap<String, ClientInfo>),
    PresenceStats(PresenceStatsResult),
    History(HistoryResult),
    /// The number of subscribers by channel.
    Channels(BTreeMap<String, usize>),
    Info(Info),
}

/// A command of a batch, or the error of parsing it.
pub(crate) type ParsedCommand = Result<Command, ClientError>;

pub(crate) type Answer = Result<Done, ClientError>;

/// State shared by the commands of a request.
#[derive(Default)]
pub(crate) struct Terms {
    /// The durability of its publications; `None`: that of the namespace.
    pub(crate) durability: Option<ChannelDurability>,
    /// The number of commands carried out concurrently; 0 counts as 1.
    commands_together: AtomicUsize,
    /// The memory permits of its answers, held until the answers have been sent.
    permits: Mutex<Vec<Arc<Permit>>>,
}

impl Terms {
    pub(crate) fn new(durability: Option<ChannelDurability>) -> Self {
        Self { durability, ..Self::default() }
    }

    /// Attaches the permits to the answer.
    pub(crate) fn held(self, answer: Bytes) -> Bytes {
        held(answer, &self.into_permits())
    }

    /// Returns the permits of the answers.
    pub(crate) fn into_permits(self) -> Vec<Arc<Permit>> {
        self.permits.into_inner()
    }
}

/// The server API of a node.
pub struct Api {
    node: Arc<Node>,
}

impl Api {
    /// The API of a node.
    pub fn new(node: Arc<Node>) -> Self {
        Self { node }
    }

    /// Carries out a command.
    pub(crate) async fn carry_out(&self, command: Command, terms: &Terms) -> Answer {
        stages::note(|stages| stages.set_about(command.about()));
        let answer = self.answer(command, terms).await;
        if let Err(error) = &answer {
            stages::note(|stages| stages.set_outcome(error.code));
        }
        answer
    }

    async fn answer(&self, command: Command, terms: &Terms) -> Answer {
        let durability = terms.durability;
        match command {
            Command::Publish(channel, publish) => {
                let publish = Arc::new(publish.encoded());
                self.publish(&channel, &publish, durability).await.map(Done::Published)
            }
            Command::Broadcast(channels, publish) => {
                if channels.is_empty() || channels.len() > BATCH_MAX {
                    return Err(codes::BAD_REQUEST);
                }
                // Each channel in flight may hold a copy of the data.
                let together = channels_together(publish.data.len(), terms.commands_together.load(Relaxed));
                let publish = Arc::new(publish.encoded());
                let each = channels.into_iter().map(|channel| {
                    let publish = publish.clone();
                    async move { self.publish(&channel, &publish, durability).await }
                });
                Ok(Done::Broadcast(stream::iter(each).buffered(together).collect().await))
            }
            Command::Subscribe(sessions, wanted) => self.subscribe(&sessions, &wanted).await,
            Command::Unsubscribe(sessions, channel) => self.unsubscribe(&sessions, &channel),
            Command::Disconnect(sessions, ending) => self.disconnect(&sessions, ending),
            Command::Refresh(sessions, renewal) => self.refresh(&sessions, renewal),
            Command::Presence(channel) => {
                self.with_presence(&channel)?;
                self.take(terms, self.node.presence.list_bytes(&channel, CHANNELS_MAX))?;
                Ok(Done::Presence(self.node.presence.list(&channel, CHANNELS_MAX)))
            }
            Command::PresenceStats(channel) => {
                self.with_presence(&channel)?;
                Ok(Done::PresenceStats(self.node.presence.stats(&channel)))
            }
            Command::History(request) => {
                self.with_history(&request.channel)?;
                let (history, permit) = self.node.history(&request).await?;
                terms.permits.lock().extend(permit);
                Ok(Done::History(history))
            }
            Command::HistoryRemove(channel) => {
                self.with_history(&channel)?;
                self.node.homes.clear(&channel).await.map_err(refusal)?;
                Ok(Done::Nothing)
            }
            Command::Channels(pattern) => {
                let found = self.node.channels(|name| matches_pattern(&pattern, name)).into_iter().take(CHANNELS_MAX);
                let found: BTreeMap<_, _> = found.map(|(name, count)| (name.to_string(), count)).collect();
                self.take(terms, found.keys().map(|name| name.len() + CHANNEL_BYTES).sum())?;
                Ok(Done::Channels(found))
            }
            Command::Info => {
                let (clients, users) = self.node.counts();
                let channels = self.node.channels(|_| true).len();
                let (version, uptime) = (self.node.version.clone(), self.node.env.now().as_secs());
                Ok(Done::Info(Info { version, clients, users, channels, uptime }))
            }
        }
    }

    /// Carries out the commands of a batch, in sequence or in parallel.
    pub(crate) async fn batch(
        &self,
        commands: Vec<ParsedCommand>,
        parallel: bool,
        terms: &Terms,
    ) -> Result<Vec<Answer>, ClientError> {
        if commands.len() > BATCH_MAX {
            return Err(codes::LIMIT_EXCEEDED);
        }
        let each = commands.into_iter().map(|command| async move { self.carry_out(command?, terms).await });
        let together = if parallel { each.len().clamp(1, COMMANDS_TOGETHER) } else { 1 };
        terms.commands_together.store(together, Relaxed);
        Ok(stream::iter(each).buffered(together).collect().await)
    }

    /// Takes a permit for that many bytes of the answer.
    fn take(&self, terms: &Terms, bytes: usize) -> Result<(), ClientError> {
        let permit = self.node.answer_permit(bytes).ok_or(codes::TOO_MANY_REQUESTS)?;
        terms.permits.lock().push(Arc::new(permit));
        Ok(())
    }

    async fn publish(
        &self,
        channel: &str,
        publish: &Arc<EncodedPublish>,
        durability: Option<ChannelDurability>,
    ) -> Result<Position, ClientError> {
        if channel.is_empty() {
            return Err(codes::BAD_REQUEST);
        }
        let data = &publish.publication.publication().data;
        self.node.check_data(self.node.namespace(channel)?, data)?;
        let wanted = Submission { skip_history: publish.skip_history, durability, ..Submission::default() };
        if publish.idempotency_key.is_empty() {
            return self.node.submit(channel, &publish.publication, wanted).await?.committed().await;
        }
        let node = &self.node;
        // The publication outlives a request that ends early, so it takes its own memory permit.
        let bytes = node.keyed_bytes.clamp(data.len() as u64 + PUBLICATION_BYTES);
        let permit = node.keyed_bytes.acquire(bytes, GATE_WAIT).await.map_err(|_| codes::TOO_MANY_REQUESTS)?;
        let key = Some((publish.idempotency_key.clone(), permit));
        node.submit_with_key(channel, &publish.publication, wanted, key).await?.committed().await
    }

    fn with_presence(&self, channel: &str) -> Result<(), ClientError> {
        if self.node.namespace(channel)?.presence { Ok(()) } else { Err(codes::NOT_AVAILABLE) }
    }

    fn with_history(&self, channel: &str) -> Result<(), ClientError> {
        if self.node.namespace(channel)?.has_history() { Ok(()) } else { Err(codes::NOT_AVAILABLE) }
    }

    async fn subscribe(&self, sessions: &Sessions, wanted: &Wanted) -> Answer {
        let options: &SubscribeOptions = &wanted.options;
        if options.expires_ms().is_some_and(|ends| ends <= self.node.env.wall_ms()) {
            return Err(codes::EXPIRED);
        }
        // Report errors of the request even if the user has no sessions.
        self.node.namespace(&wanted.channel)?;
        options.info()?;
        options.data()?;
        for some in sessions.of(&self.node)?.chunks(SUBSCRIBES_TOGETHER) {
            let each =
                some.iter().map(|(session, identity)| self.node.subscribe_from_server(*session, identity, wanted));
            join_all(each).await.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(Done::Nothing)
    }

    fn unsubscribe(&self, sessions: &Sessions, channel: &str) -> Answer {
        if channel.is_empty() {
            return Err(codes::BAD_REQUEST);
        }
        let (code, reason) = codes::UNSUBSCRIBED_BY_SERVER;
        for (session, _) in sessions.of(&self.node)? {
            let unsubscribe = Some(Unsubscribe { code, reason: reason.to_owned() });
            let push = Push { channel: channel.to_owned(), unsubscribe, ..Push::default() };
            let reply = Reply { push: Some(push), ..Reply::default() };
            self.node.to(session, SessionMessage::Unsubscribed(channel.into(), Some(Box::new(reply))));
        }
        Ok(Done::Nothing)
    }

    fn disconnect(&self, sessions: &Sessions, ending: Ending) -> Answer {
        let why = match ending.with {
            None => codes::FORCE_DISCONNECT,
            Some((code, reason)) => match u16::try_from(code) {
                Ok(code @ 3000..5000) => Disconnected { code, reason: reason.into() },
                _ => return Err(ClientError::bad_request(format!("disconnect.code is {code}: use 3000 to 4999"))),
            },
        };
        for (session, identity) in sessions.of(&self.node)? {
            if !ending.whitelist.contains(&identity.client.to_string()) {
                self.node.to(session, SessionMessage::Disconnect(why.clone()));
            }
        }
        Ok(Done::Nothing)
    }

    /// Sets a new expiry of the selected sessions.
    fn refresh(&self, sessions: &Sessions, renewal: Renewal) -> Answer {
        let Renewal { expire_at, expired, info } = renewal;
        let now_ms = self.node.env.wall_ms();
        let lasts = expire_at.saturating_sub(now_ms / 1000);
        let expired = expired || expire_at > 0 && lasts == 0;
        for (session, identity) in sessions.of(&self.node)? {
            let message = if expired {
                SessionMessage::Disconnect(codes::SESSION_EXPIRED)
            } else {
                let expires_ms = (expire_at > 0).then(|| expire_at.saturating_mul(1000));
                let ttl = u32::try_from(lasts).unwrap_or(u32::MAX);
                let refresh = Some(Expiry { expires: expires_ms.is_some(), ttl });
                let push = Some(Push { refresh, ..Push::default() });
                let reply = Some(Box::new(Reply { push, ..Reply::default() }));
                SessionMessage::Refreshed { expires_ms, renamed: identity.learn(info.clone(), None), reply }
            };
            self.node.to(session, message);
        }
        Ok(Done::Nothing)
    }
}

impl Sessions {
    /// The selected sessions that are connected.
    fn of(&self, node: &Node) -> Result<Vec<(SessionId, Arc<SessionIdentity>)>, ClientError> {
        let client = match self.client.as_str() {
            "" => None,
            text => Some(parse_client(text).ok_or(codes::BAD_REQUEST)?),
        };
        let mut found = node.sessions_of(&self.user, client);
        if !self.session.is_empty() {
            found.retain(|(_, identity)| identity.connection.session.as_deref() == Some(self.session.as_str()));
        }
        Ok(found)
    }
}

/// Refuses a parameter that is set and not supported, where ignoring it would change the result.
pub(crate) fn refuse(is_set: bool, name: &str) -> Result<(), ClientError> {
    if is_set { Err(ClientError::bad_request(format!("{name}: not supported"))) } else { Ok(()) }
}

/// The number of channels that a broadcast of `bytes` publishes to concurrently, next to `commands`
/// other commands.
fn channels_together(bytes: usize, commands: usize) -> usize {
    (BYTES_TOGETHER / (bytes + 1024)).clamp(1, CHANNELS_TOGETHER).div_ceil(commands.max(1))
}

/// Whether a name matches a pattern in which `*` matches any text; an empty pattern matches all
/// names.
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
mod tests;
