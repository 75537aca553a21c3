//! The channels with subscribers on this node, and what is delivered to them: publications,
//! histories, presence, joins and leaves.

mod announcements;
mod answers;
mod histories;
mod members;
mod presence;
mod publisher;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_cluster::{Attachment, Channel, ChannelError, Channels, HistoryBounds};
use steadfast_flow::{Env, Striped};
use steadfast_store::{Position, Publication as Stored};
use uuid::Uuid;

use self::announcements::{Announced, Announcements};
use self::answers::{ANSWER_MS, SharedAnswers};
use crate::answer::{AnswerKey, SubscribeAnswer};
use crate::config::NamespaceOptions;
use crate::outgoing::{ChannelPush, Outgoing, from_stored};
use crate::partition::{Partitions, SessionId, WorkerEvent};
use crate::protocol::codes::{self, ClientError};
use crate::protocol::message::{Publication, Push};

pub(crate) use histories::{Histories, bytes_of};
pub(crate) use members::Members;
pub use publisher::{Accepted, Publisher, Submission};

/// A channel with subscribers on this server.
struct LiveChannel {
    /// Set if the channel keeps history, or has another home.
    channel: Option<Channel>,
    /// Watches a channel of another home.
    _attachment: Option<Attachment>,
    /// Number of subscribers, by partition.
    subscribers: Box<[u32]>,
    total: usize,
    /// The newest publication, if the channel allows deltas.
    last: Option<Arc<Outgoing>>,
    delta: bool,
    answers: SharedAnswers,
    announcements: Announcements,
}

/// The channels with subscribers on this node.
pub(crate) struct LiveChannels {
    /// A reference to itself for tasks.
    me: Weak<Self>,
    /// The channels of this node and of others.
    homes: Channels,
    partitions: Arc<Partitions>,
    env: Env,
    by_name: Striped<HashMap<Arc<str>, LiveChannel>>,
    attempts: AtomicU64,
    /// Channels with shared answers, and when to check them.
    answered: Mutex<VecDeque<(u64, Arc<str>)>>,
}

/// Milliseconds of a duration in the configuration.
fn history_ttl_ms(options: &NamespaceOptions) -> u64 {
    u64::try_from(options.history_ttl.0.as_millis()).unwrap_or(u64::MAX)
}

impl LiveChannels {
    /// No channels, until a session of one of the partitions subscribes.
    pub(crate) fn new(homes: Channels, partitions: Arc<Partitions>, env: Env) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            homes,
            partitions,
            env,
            by_name: Striped::default(),
            attempts: AtomicU64::new(0),
            answered: Mutex::default(),
        })
    }

    /// A new number for an attempt to subscribe.
    pub(crate) fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Relaxed) + 1
    }

    /// Number of channels with subscribers.
    pub(crate) fn count(&self) -> usize {
        self.by_name.parts().map(|part| part.lock().len()).sum()
    }

    /// The channel at its home.
    pub(crate) fn channel(&self, name: &str) -> Result<Channel, ClientError> {
        let part = self.by_name.part(name).lock();
        if let Some(channel) = part.get(name).and_then(|live| live.channel.clone()) {
            return Ok(channel);
        }
        drop(part);
        self.homes.open(name).map_err(refusal)
    }

    /// Waits until publications of a channel that keeps no history arrive here.
    pub(crate) async fn watched(&self, name: &str) -> Result<(), ClientError> {
        let channel = self.by_name.part(name).lock().get(name).and_then(|live| live.channel.clone());
        match channel {
            Some(remote @ Channel::Remote(_)) => remote.position().await.map(drop).map_err(refusal),
            _ => Ok(()),
        }
    }

    /// Adds a subscriber. From now on its partition receives the channel's publications.
    pub(crate) fn join(
        &self,
        session: SessionId,
        channel: &str,
        options: &NamespaceOptions,
    ) -> Result<Arc<str>, ClientError> {
        let at_home = options.has_history() || !self.homes.is_local(channel);
        // The applier takes the lock of a channel, and opening it may read the disk: so it is
        // opened before.
        let opened = match at_home && !self.is_in_use(channel) {
            true => Some(self.homes.open(channel).map_err(refusal)?),
            false => None,
        };
        let mut part = self.by_name.part(channel).lock();
        if !part.contains_key(channel) {
            if at_home && opened.is_none() {
                // Its last subscriber left in between.
                drop(part);
                return self.join(session, channel, options);
            }
            let name: Arc<str> = channel.into();
            let ttl_ms = history_ttl_ms(options);
            let bounds = options.has_history().then_some(HistoryBounds { size: options.history_size, ttl_ms });
            let live = LiveChannel {
                channel: opened,
                _attachment: self.homes.attach(&name, bounds),
                subscribers: vec![0; self.partitions.inboxes().len()].into(),
                total: 0,
                last: None,
                delta: !options.allowed_delta_types.is_empty(),
                answers: SharedAnswers::default(),
                announcements: Announcements::default(),
            };
            part.insert(name, live);
        }
        let name = part.get_key_value(channel).map(|(name, _)| name.clone()).unwrap_or_else(|| channel.into());
        if let Some(live) = part.get_mut(channel) {
            live.subscribers[usize::from(session.partition)] += 1;
            live.total += 1;
        }
        Ok(name)
    }

    /// Whether the channel has subscribers, so that it can be used without an index read.
    pub(crate) fn is_in_use(&self, channel: &str) -> bool {
        self.by_name.part(channel).lock().contains_key(channel)
    }

    /// Removes a subscriber: the inverse of [`LiveChannels::join`].
    pub(crate) fn leave(&self, session: SessionId, channel: &str) {
        let mut part = self.by_name.part(channel).lock();
        if let Some(live) = part.get_mut(channel) {
            live.subscribers[usize::from(session.partition)] -= 1;
            live.total -= 1;
            if live.total == 0 {
                part.remove(channel);
            }
        }
    }

    /// The channels with subscribers that match `wanted`, with their numbers of subscribers.
    pub(crate) fn list(&self, wanted: impl Fn(&str) -> bool) -> Vec<(Arc<str>, usize)> {
        let mut found = Vec::new();
        for part in self.by_name.parts() {
            let part = part.lock();
            found.extend(part.iter().filter(|(name, _)| wanted(name)).map(|(name, live)| (name.clone(), live.total)));
        }
        found
    }

    /// A channel begins anew at a position, because publications may be missing.
    pub(crate) fn reset(&self, channel: &Arc<str>, position: Position) {
        let mut part = self.by_name.part(channel).lock();
        let Some(live) = part.get_mut(channel) else { return };
        live.answers.clear();
        live.last = None;
        // Under the lock, as publications are.
        let reset = || WorkerEvent::Reset(channel.clone(), position);
        self.partitions.send_to_subscribers(&live.subscribers, reset);
    }

    /// Delivers a publication that the store has committed.
    pub(crate) fn published(&self, channel: &Arc<str>, epoch: u32, stored: &Stored) {
        if !self.is_in_use(channel) {
            return;
        }
        match from_stored(stored) {
            Ok(publication) => self.fan_out(channel, epoch, publication),
            Err(error) => {
                tracing::error!(?channel, offset = stored.offset, %error, "a stored publication cannot be decoded")
            }
        }
    }

    fn fan_out(&self, channel: &str, epoch: u32, publication: Publication) {
        let mut part = self.by_name.part(channel).lock();
        let Some((name, _)) = part.get_key_value(channel) else { return };
        let name = name.clone();
        let Some(live) = part.get_mut(channel) else { return };
        let outgoing = Arc::new(Outgoing::new(name, epoch, publication, live.last.take()));
        if live.delta {
            live.last = Some(Arc::new(outgoing.without_previous()));
        }
        // The shared answers no longer end at the top of the channel.
        live.answers.clear();
        // Under the lock, so that all partitions get publications in the same order.
        self.partitions.send_to_subscribers(&live.subscribers, || WorkerEvent::Publication(outgoing.clone()));
    }

    /// Sends a join or a leave to the subscribers at this node.
    fn announce(&self, channel: &Arc<str>, client: Uuid, push: Push) {
        let mut part = self.by_name.part(channel).lock();
        let Some(live) = part.get_mut(channel) else { return };
        let keep_up = self.partitions.keep_up(&live.subscribers);
        let mut pause_ms = match live.announcements.announce(client, push, self.env.now_ms(), live.total, keep_up) {
            Announced::AtOnce(push) => return self.send(channel, live, vec![*push]),
            Announced::Waits => return,
            Announced::After(pause_ms) => pause_ms,
        };
        drop(part);
        let (channels, channel, env) = (self.me.clone(), channel.clone(), self.env.clone());
        self.env.spawn_critical("live announcements", async move {
            loop {
                env.sleep(Duration::from_millis(pause_ms)).await;
                let Some(next) = channels.upgrade().and_then(|channels| channels.send_waiting(&channel)) else {
                    return;
                };
                pause_ms = next;
            }
        });
    }

    /// Sends the next batch of joins and leaves. Returns the pause before the next call,
    /// milliseconds, if more wait. They are sent later instead of waiting in the queues of workers.
    fn send_waiting(&self, channel: &Arc<str>) -> Option<u64> {
        let mut part = self.by_name.part(channel).lock();
        let live = part.get_mut(channel)?;
        let keep_up = self.partitions.keep_up(&live.subscribers);
        let (pushes, pause_ms) = live.announcements.next_batch(self.env.now_ms(), live.total, keep_up);
        if !pushes.is_empty() {
            self.send(channel, live, pushes);
        }
        pause_ms
    }

    fn send(&self, channel: &Arc<str>, live: &LiveChannel, pushes: Vec<Push>) {
        let push = Arc::new(ChannelPush::new(channel.clone(), pushes));
        self.partitions.send_to_subscribers(&live.subscribers, || WorkerEvent::Push(push.clone()));
    }

    /// A recent answer to an equal command.
    pub(crate) fn answer(&self, channel: &str, key: &AnswerKey) -> Option<Arc<SubscribeAnswer>> {
        self.by_name.part(channel).lock().get(channel)?.answers.find(key, self.env.now_ms())
    }

    /// Keeps an answer for equal commands.
    pub(crate) fn keep_answer(&self, channel: &Arc<str>, key: AnswerKey, answer: &Arc<SubscribeAnswer>) {
        let now_ms = self.env.now_ms();
        let mut part = self.by_name.part(channel).lock();
        let Some(live) = part.get_mut(channel) else { return };
        live.answers.keep(key, answer.clone(), now_ms);
        drop(part);
        let mut answered = self.answered.lock();
        if answered.back().is_none_or(|(_, last)| last != channel) {
            answered.push_back((now_ms + ANSWER_MS, channel.clone()));
        }
    }

    /// Drops expired answers. The clock calls it.
    pub(crate) fn forget_answers(&self) {
        let now_ms = self.env.now_ms();
        loop {
            let mut answered = self.answered.lock();
            if answered.front().is_none_or(|(until, _)| now_ms < *until) {
                return;
            }
            let Some((_, name)) = answered.pop_front() else { return };
            drop(answered);
            let mut part = self.by_name.part(&name).lock();
            let Some(live) = part.get_mut(&name) else { continue };
            if live.answers.expire(now_ms) {
                drop(part);
                self.answered.lock().push_back((now_ms + ANSWER_MS, name));
            }
        }
    }
}

/// The error that a client gets for an error of a channel.
pub(crate) fn refusal(e: ChannelError) -> ClientError {
    match e {
        ChannelError::Internal => codes::INTERNAL,
        ChannelError::Busy => codes::TOO_MANY_REQUESTS,
        ChannelError::LimitExceeded => codes::LIMIT_EXCEEDED,
        ChannelError::TooLarge => codes::TOO_LARGE,
        ChannelError::DiskFull => codes::DISK_FULL,
        ChannelError::DiskNearlyFull => codes::DISK_NEARLY_FULL,
        ChannelError::DiskHangs => codes::DISK_HANGS,
        ChannelError::Stopping => codes::STOPPING,
        ChannelError::HomeUnreachable => codes::HOME_UNREACHABLE,
        ChannelError::OutcomeUnknown => codes::OUTCOME_UNKNOWN,
        ChannelError::OpenedForReading => codes::NOT_AVAILABLE,
    }
}

#[cfg(test)]
mod tests;
