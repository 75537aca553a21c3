//! The server API: what a back end may ask, over HTTP (`json`) and over gRPC (`crate::grpc`), and what it comes to.

#[cfg(test)]
mod bounds_tests;
pub(crate) mod json;
mod keys;
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

use keys::Keys;

use crate::commands::parse_client;
use crate::config::ChannelDurability;
use crate::node::{GATE_WAIT, Node, Submission, held, refusal};
use crate::options::{SubscribeOptions, Wanted};
use crate::outgoing::Encoded;
use crate::partition::{SessionId, ToSession, Who};
use crate::protocol::codes::{self, ClientError, Disconnected};
use crate::protocol::message::{
    ClientInfo, Expiry, HistoryRequest, HistoryResult, PresenceStatsResult, Publication, Push, Reply, Unsubscribe,
};

/// Commands in a batch, and channels in a broadcast.
pub(crate) const BATCH_MAX: usize = 10_000;

/// Commands of a batch that are carried out together,
const COMMANDS_TOGETHER: usize = 256;

/// and channels of all broadcasts of a request: so many, or as many as take so many bytes.
const CHANNELS_TOGETHER: usize = 1024;
const BYTES_TOGETHER: usize = 16 << 20;

/// Sessions of a user that are subscribed at a time.
const SUBSCRIBES_TOGETHER: usize = 64;

/// Channels in an answer.
const CHANNELS_MAX: usize = 100_000;

/// What a channel takes in an answer beside its name, and a publication that is under way beside its data.
const CHANNEL_BYTES: usize = 64;
const PUBLICATION_BYTES: u64 = 1024;

/// Says of a request, as a header or as metadata, how durable what it publishes is: `sync` or `async`.
const DURABILITY: &str = "x-steadfast-durability";

/// What a request says of that, if anything.
pub(crate) fn durability(headers: &HeaderMap) -> Result<Option<ChannelDurability>, ClientError> {
    match headers.get(DURABILITY).map(HeaderValue::as_bytes) {
        None => Ok(None),
        Some(b"sync") => Ok(Some(ChannelDurability::Sync)),
        Some(b"async") => Ok(Some(ChannelDurability::Async)),
        Some(_) => Err(ClientError::bad_request(format!("{DURABILITY} must be sync or async"))),
    }
}

/// What is published.
#[derive(Debug)]
pub(crate) struct Publish {
    pub(crate) data: Vec<u8>,
    pub(crate) tags: BTreeMap<String, String>,
    pub(crate) skip_history: bool,
    pub(crate) idempotency_key: String,
}

/// A publication and how it is made, shared by the channels of a broadcast.
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

/// The sessions that a command is about: all of a user, or the one that is named in either way.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    pub(crate) user: String,
    pub(crate) client: String,
    /// As those know themselves that are not plain WebSockets.
    pub(crate) session: String,
}

/// How sessions are to be ended.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    /// By name, those that go on.
    pub(crate) whitelist: Vec<String>,
    /// With this code and reason, if not the usual ones.
    pub(crate) with: Option<(u32, String)>,
}

/// What sessions are to know of themselves from now on.
#[derive(Debug, Default)]
pub(crate) struct Renewal {
    /// Seconds since the Unix epoch; 0: for ever.
    pub(crate) expire_at: u64,
    /// They end.
    pub(crate) expired: bool,
    /// What others are told of them, if that is said.
    pub(crate) info: Vec<u8>,
}

/// What may be asked.
#[derive(Debug)]
pub(crate) enum Command {
    Publish(String, Publish),
    Broadcast(Vec<String>, Publish),
    Subscribe(Sessions, Box<Wanted>),
    /// From a channel.
    Unsubscribe(Sessions, String),
    Disconnect(Sessions, Ending),
    Refresh(Sessions, Renewal),
    Presence(String),
    PresenceStats(String),
    History(HistoryRequest),
    HistoryRemove(String),
    /// Those that match a pattern.
    Channels(String),
    Info,
}

impl Command {
    /// The channel that it is about, where it is about one.
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

/// How the server is.
#[derive(Debug)]
pub(crate) struct Info {
    pub(crate) version: String,
    pub(crate) clients: usize,
    pub(crate) users: usize,
    pub(crate) channels: usize,
    /// Seconds.
    pub(crate) uptime: u64,
}

/// What a command came to.
#[derive(Debug)]
pub(crate) enum Done {
    Nothing,
    Published(Position),
    /// In the order of the channels.
    Broadcast(Vec<Result<Position, ClientError>>),
    Presence(BTreeMap<String, ClientInfo>),
    PresenceStats(PresenceStatsResult),
    History(HistoryResult),
    /// With their subscribers.
    Channels(BTreeMap<String, usize>),
    Info(Info),
}

/// A command of a batch, if it could be read.
pub(crate) type Asked = Result<Command, ClientError>;

pub(crate) type Answer = Result<Done, ClientError>;

/// What holds for all commands of a request.
#[derive(Default)]
pub(crate) struct Terms {
    /// What it publishes is so durable, or else as the channel's namespace says.
    pub(crate) durability: Option<ChannelDurability>,
    /// How many of its commands are carried out at a time; 0 for one.
    commands_together: AtomicUsize,
    /// The permits of its answers, until they have been sent.
    permits: Mutex<Vec<Arc<Permit>>>,
}

impl Terms {
    pub(crate) fn new(durability: Option<ChannelDurability>) -> Self {
        Self { durability, ..Self::default() }
    }

    /// The answer, holding its permits.
    pub(crate) fn held(self, answer: Bytes) -> Bytes {
        held(answer, &self.into_permits())
    }

    /// The permits of the answers.
    pub(crate) fn into_permits(self) -> Vec<Arc<Permit>> {
        self.permits.into_inner()
    }
}

/// The API over a node.
pub struct Api {
    node: Arc<Node>,
    keys: Keys,
}

impl Api {
    /// Over a node.
    pub fn new(node: Arc<Node>) -> Self {
        Self { keys: Keys::new(node.env.clone()), node }
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
        let wish = terms.durability;
        match command {
            Command::Publish(channel, publish) => {
                let publish = Arc::new(publish.encoded());
                self.publish(&channel, &publish, wish).await.map(Done::Published)
            }
            Command::Broadcast(channels, publish) => {
                if channels.is_empty() || channels.len() > BATCH_MAX {
                    return Err(codes::BAD_REQUEST);
                }
                // A channel that is under way may hold a copy of what is published.
                let together = channels_together(publish.data.len(), terms.commands_together.load(Relaxed));
                let publish = Arc::new(publish.encoded());
                let each = channels.into_iter().map(|channel| {
                    let publish = publish.clone();
                    async move { self.publish(&channel, &publish, wish).await }
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
                self.node.handle(&channel)?.clear().await.map_err(|e| refusal(&e))?;
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

    /// Carries out several: one after another, or all together.
    pub(crate) async fn batch(
        &self,
        commands: Vec<Asked>,
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

    /// Takes a permit for so many bytes of the answer.
    fn take(&self, terms: &Terms, bytes: usize) -> Result<(), ClientError> {
        let permit = self.node.answer_permit(bytes).ok_or(codes::TOO_MANY_REQUESTS)?;
        terms.permits.lock().push(Arc::new(permit));
        Ok(())
    }

    async fn publish(
        &self,
        channel: &str,
        publish: &Arc<EncodedPublish>,
        wish: Option<ChannelDurability>,
    ) -> Result<Position, ClientError> {
        if channel.is_empty() {
            return Err(codes::BAD_REQUEST);
        }
        let data = &publish.publication.publication().data;
        self.node.check_data(self.node.namespace(channel)?, data)?;
        let wanted = Submission { skip_history: publish.skip_history, durability: wish, ..Submission::default() };
        if publish.idempotency_key.is_empty() {
            return self.node.submit(channel, &publish.publication, wanted).await?.committed().await;
        }
        let (node, name, keyed) = (self.node.clone(), channel.to_owned(), publish.clone());
        // It goes on when the request that it came with has ended, with what that had taken.
        let bytes = node.keyed_bytes.clamp(data.len() as u64 + PUBLICATION_BYTES);
        let room = node.keyed_bytes.acquire(bytes, GATE_WAIT).await.map_err(|_| codes::TOO_MANY_REQUESTS)?;
        let publishing = async move {
            // The key is known until it is certain whether this was published, so that a retry never doubles it.
            let published = match node.submit(&name, &keyed.publication, wanted).await {
                Ok(accepted) => accepted.resolved().await,
                Err(error) => Err(error),
            };
            drop(room);
            published
        };
        self.keys.once(channel, &publish.idempotency_key, publishing).await
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
        // What is wrong is said even if there are no sessions now.
        self.node.namespace(&wanted.channel)?;
        options.info()?;
        options.data()?;
        for some in sessions.of(&self.node)?.chunks(SUBSCRIBES_TOGETHER) {
            let each = some.iter().map(|(session, who)| self.node.subscribe_unasked(*session, who, wanted));
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
            self.node.to(session, ToSession::Unsubscribed(channel.into(), Some(Box::new(reply))));
        }
        Ok(Done::Nothing)
    }

    fn disconnect(&self, sessions: &Sessions, ending: Ending) -> Answer {
        let why = match ending.with {
            None => codes::FORCE_DISCONNECT,
            Some((code, reason)) => match u16::try_from(code) {
                Ok(code @ 3000..5000) => Disconnected { code, reason: reason.into() },
                _ => return Err(ClientError::bad_request(format!("disconnect.code: {code} is not 3000 to 4999"))),
            },
        };
        for (session, who) in sessions.of(&self.node)? {
            if !ending.whitelist.contains(&who.client.to_string()) {
                self.node.to(session, ToSession::Disconnect(why.clone()));
            }
        }
        Ok(Done::Nothing)
    }

    /// Says anew until when a user's sessions last.
    fn refresh(&self, sessions: &Sessions, renewal: Renewal) -> Answer {
        let Renewal { expire_at, expired, info } = renewal;
        let now_ms = self.node.env.wall_ms();
        let lasts = expire_at.saturating_sub(now_ms / 1000);
        let expired = expired || expire_at > 0 && lasts == 0;
        for (session, who) in sessions.of(&self.node)? {
            let told = if expired {
                ToSession::Disconnect(codes::SESSION_EXPIRED)
            } else {
                let expires_ms = (expire_at > 0).then(|| expire_at.saturating_mul(1000));
                let ttl = u32::try_from(lasts).unwrap_or(u32::MAX);
                let refresh = Some(Expiry { expires: expires_ms.is_some(), ttl });
                let push = Some(Push { refresh, ..Push::default() });
                let reply = Some(Box::new(Reply { push, ..Reply::default() }));
                ToSession::Refreshed { expires_ms, renamed: who.learn(info.clone(), None), reply }
            };
            self.node.to(session, told);
        }
        Ok(Done::Nothing)
    }
}

impl Sessions {
    /// Those that there are.
    fn of(&self, node: &Node) -> Result<Vec<(SessionId, Arc<Who>)>, ClientError> {
        let client = match self.client.as_str() {
            "" => None,
            text => Some(parse_client(text).ok_or(codes::BAD_REQUEST)?),
        };
        let mut found = node.sessions_of(&self.user, client);
        if !self.session.is_empty() {
            found.retain(|(_, who)| who.arrived.session.as_deref() == Some(self.session.as_str()));
        }
        Ok(found)
    }
}

/// What is not supported is refused by name, where ignoring it would do something else than was asked.
pub(crate) fn refuse(is_set: bool, name: &str) -> Result<(), ClientError> {
    if is_set { Err(ClientError::bad_request(format!("{name}: it is not supported"))) } else { Ok(()) }
}

/// How many channels of a broadcast of so many bytes are published into at a time, beside so many commands.
fn channels_together(bytes: usize, commands: usize) -> usize {
    (BYTES_TOGETHER / (bytes + 1024)).clamp(1, CHANNELS_TOGETHER).div_ceil(commands.max(1))
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
mod tests;
