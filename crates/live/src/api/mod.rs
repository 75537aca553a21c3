//! The server API: the commands of back ends, over HTTP (`json`) and gRPC (`crate::grpc`), and
//! their results.

#[cfg(test)]
mod bounds_tests;
pub(crate) mod json;
mod lines;
mod nodes;
pub(crate) mod result;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use steadfast_flow::{BoxFuture, Permit, stages};
use steadfast_store::Position;

pub(crate) use nodes::{Ending, Info, Renewal, Sessions, answer_call};
use nodes::{NodeCall, NodeResult};

use crate::admission::GATE_WAIT;
use crate::answer::held;
use crate::channels::Submission;
use crate::config::ChannelDurability;
use crate::node::Node;
use crate::options::Wanted;
use crate::outgoing::Encoded;
use crate::protocol::codes::{self, ClientError};
use crate::protocol::message::{ClientInfo, HistoryRequest, HistoryResult, PresenceStatsResult, Publication};

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
    pub(crate) data: Bytes,
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

/// The result of a command.
#[derive(Debug)]
pub(crate) enum Done {
    Nothing,
    Published(Position),
    /// The results in the order of the channels.
    Broadcast(Vec<Result<Position, ClientError>>),
    Presence(BTreeMap<String, ClientInfo>),
    PresenceStats(PresenceStatsResult),
    History {
        history: HistoryResult,
        /// Whether the bound in bytes ended it, and more may follow.
        truncated: bool,
    },
    /// The number of subscribers by channel.
    Channels(BTreeMap<String, usize>),
    /// The nodes.
    Info(Vec<Info>),
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
        // The compiler cannot prove that the unboxed future may be sent: it is nested too deeply.
        let answer: BoxFuture<'_, Answer> = Box::pin(self.answer(command, terms));
        let answer = answer.await;
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
            Command::Subscribe(sessions, wanted) => self.command_all(NodeCall::Subscribe(sessions, wanted)).await,
            Command::Unsubscribe(sessions, channel) => self.command_all(NodeCall::Unsubscribe(sessions, channel)).await,
            Command::Disconnect(sessions, ending) => self.command_all(NodeCall::Disconnect(sessions, ending)).await,
            Command::Refresh(sessions, renewal) => self.command_all(NodeCall::Refresh(sessions, renewal)).await,
            Command::Presence(channel) => {
                self.with_presence(&channel)?;
                let (clients, permit) = self.node.members.clients_of(&channel, CHANNELS_MAX, None).await?;
                terms.permits.lock().push(Arc::new(permit));
                Ok(Done::Presence(clients))
            }
            Command::PresenceStats(channel) => {
                self.with_presence(&channel)?;
                self.node.members.counts(&channel).await.map(Done::PresenceStats)
            }
            Command::History(request) => {
                self.with_history(&request.channel)?;
                // The bound on the publications of an answer is one on clients.
                let page = self.node.histories.page(&request, usize::MAX, None).await?;
                terms.permits.lock().extend(page.permit);
                Ok(Done::History { history: page.result, truncated: page.truncated })
            }
            Command::HistoryRemove(channel) => {
                self.with_history(&channel)?;
                self.node.histories.remove(&channel).await?;
                Ok(Done::Nothing)
            }
            Command::Channels(pattern) => {
                let mut found = BTreeMap::new();
                for result in self.on_all_nodes(NodeCall::Channels(pattern)).await? {
                    let NodeResult::Channels(channels) = result else { continue };
                    channels.into_iter().for_each(|(name, count)| *found.entry(name).or_default() += count);
                }
                self.take(terms, found.keys().map(|name: &String| name.len() + CHANNEL_BYTES).sum())?;
                Ok(Done::Channels(found))
            }
            Command::Info => {
                let results = self.on_all_nodes(NodeCall::Info).await?.into_iter();
                let info = |result| if let NodeResult::Info(info) = result { Some(info) } else { None };
                Ok(Done::Info(results.filter_map(info).collect()))
            }
        }
    }

    /// Carries out a command without a result at all nodes.
    async fn command_all(&self, call: NodeCall) -> Answer {
        self.on_all_nodes(call).await.map(|_| Done::Nothing)
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
        let permit = self.node.admission.answers.acquire(bytes).ok_or(codes::TOO_MANY_REQUESTS)?;
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
        self.node.rules.check_data(self.node.rules.namespace(channel)?, data)?;
        let wanted = Submission { skip_history: publish.skip_history, durability, ..Submission::default() };
        if publish.idempotency_key.is_empty() {
            return self.node.publisher.submit(channel, &publish.publication, wanted).await?.committed().await;
        }
        let node = &self.node;
        // The publication outlives a request that ends early, so it takes its own memory permit.
        let bytes = node.admission.api.keyed_bytes.clamp(data.len() as u64 + PUBLICATION_BYTES);
        let permit =
            node.admission.api.keyed_bytes.acquire(bytes, GATE_WAIT).await.map_err(|_| codes::TOO_MANY_REQUESTS)?;
        let key = Some((publish.idempotency_key.clone(), permit));
        node.publisher.submit_with_key(channel, &publish.publication, wanted, key).await?.committed().await
    }

    fn with_presence(&self, channel: &str) -> Result<(), ClientError> {
        if self.node.rules.namespace(channel)?.presence { Ok(()) } else { Err(codes::NOT_AVAILABLE) }
    }

    fn with_history(&self, channel: &str) -> Result<(), ClientError> {
        if self.node.rules.namespace(channel)?.has_history() { Ok(()) } else { Err(codes::NOT_AVAILABLE) }
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
