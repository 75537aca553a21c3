//! Requests of a front to the homes of channels, and waiting for them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::Shared;
use steadfast_flow::{BoxFuture, has_fault};
use steadfast_store::{History, HistoryQuery, Position};
use tokio::sync::oneshot;

use super::Front;
use super::links::Answer;
use super::tail::{TAIL_BYTES_MAX, TAIL_MAX};
use crate::error::ChannelError;
use crate::frame::channels::{Command, Request, Response, WireHistoryQuery};
use crate::frame::members::WireCall;
use crate::frame::{FRAME_BYTES_MAX, Kind};
use crate::roster::NodeIndex;
use crate::sabotage::ClusterSabotage;

/// How long a request waits for a home without a link before it is answered from memory, if that is
/// possible, or fails.
const SERVE_KNOWN_AFTER: Duration = Duration::from_secs(1);

/// How long a request waits for a home.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// How often a history is requested again because the front has changed in between.
const ATTEMPTS: usize = 4;

type SharedAnswer = Shared<BoxFuture<'static, Result<Arc<History>, ChannelError>>>;

/// A history request under way, shared by all sessions that need the same.
pub(super) struct Question {
    /// The watch during which it was sent.
    number: u64,
    query: WireHistoryQuery,
    answer: SharedAnswer,
}

/// What a channel can be answered with.
enum Lookup {
    /// From memory.
    Answer(History),
    /// Only by the home; the watch, and the query to send.
    Question(SharedAnswer, u64, bool),
}

impl Front {
    /// Sends a request to a node. Requests to one node arrive in their order.
    ///
    /// # Errors
    /// When there is no link, or too many requests are under way.
    pub(crate) fn request(
        &self,
        home: NodeIndex,
        channel: &str,
        command: Command,
    ) -> Result<oneshot::Receiver<Answer>, ChannelError> {
        let number = self.next_number();
        let request = Request { number, channel: channel.to_owned(), command: Some(command) };
        let frame = Kind::Request(request).to_bytes();
        if frame.len() > FRAME_BYTES_MAX {
            return Err(ChannelError::TooLarge);
        }
        self.home(home).lock().request(number, frame)
    }

    /// The same, with its answer.
    pub(crate) async fn ask(&self, home: NodeIndex, channel: &str, command: Command) -> Result<Response, ChannelError> {
        self.request(home, channel, command)?.await.unwrap_or(Err(ChannelError::OutcomeUnknown))
    }

    /// How long a node has been without a link; `None`: it has one.
    pub(crate) fn down_for(&self, node: NodeIndex) -> Option<Duration> {
        let home = self.home(node).lock();
        (!home.is_up()).then(|| self.env.now().saturating_sub(home.down_since))
    }

    /// Whether a node has had no link for so long that it counts as gone.
    pub(crate) fn is_lost(&self, node: NodeIndex) -> bool {
        self.down_for(node).is_some_and(|down| down > self.node_ttl)
    }

    /// Calls a node. A link that was lost within the last second may come back.
    ///
    /// # Errors
    /// When there is no link, or no answer within five seconds.
    pub(crate) async fn call(&self, node: NodeIndex, body: Bytes) -> Result<Bytes, ChannelError> {
        loop {
            let changed = self.links_changed.notified();
            let Some(down) = self.down_for(node) else { break };
            let wait = SERVE_KNOWN_AFTER.saturating_sub(down);
            if wait.is_zero() || self.env.timeout(wait, changed).await.is_none() {
                return Err(ChannelError::HomeUnreachable);
            }
        }
        let answer = self.ask(node, "", Command::Call(WireCall { body }));
        let answer = self.env.timeout(GIVE_UP_AFTER, answer).await.unwrap_or(Err(ChannelError::HomeUnreachable));
        answer.map(|response| response.body)
    }

    /// The position of an attached channel. It waits for the home; without one for a second, it is
    /// the last known position.
    ///
    /// # Errors
    /// When the home cannot read the channel, or there is no home.
    pub(crate) async fn position(&self, name: &Arc<str>) -> Result<Position, ChannelError> {
        let begin = self.env.now();
        loop {
            let (changed, known, down_since) = {
                let part = self.part(name).lock();
                let entry = part.get(name).ok_or(ChannelError::HomeUnreachable)?;
                if let Some(position) = entry.channel.current() {
                    return Ok(position);
                }
                if let Some(error) = entry.channel.failed() {
                    return Err(error);
                }
                let home = self.home(entry.home).lock();
                let down_since = if home.is_up() { begin } else { home.down_since };
                // Created under the lock, so that no wake-up is missed.
                (entry.changed.clone().notified_owned(), entry.channel.known(), down_since)
            };
            let until = down_since + if known.is_some() { SERVE_KNOWN_AFTER } else { GIVE_UP_AFTER };
            let wait = until.saturating_sub(self.env.now());
            if wait.is_zero() || self.env.timeout(wait, changed).await.is_none() {
                return known.ok_or(ChannelError::HomeUnreachable);
            }
        }
    }

    /// Publications of a channel of another node: from memory, or else from its home.
    ///
    /// # Errors
    /// Those of the home, or when there is none.
    pub(crate) async fn history(
        &self,
        name: &Arc<str>,
        home: NodeIndex,
        query: HistoryQuery,
        bytes_max: usize,
    ) -> Result<History, ChannelError> {
        let mut takes_tail = true;
        for _ in 0..ATTEMPTS {
            if !self.part(name).lock().contains_key(name) {
                let command = Command::History(WireHistoryQuery::new(query, bytes_max));
                self.counters.history_requests.fetch_add(1, Relaxed);
                return self.ask(home, name, command).await.map(Response::into_history);
            }
            let begin = self.position(name).await?;
            let (question, number, is_tail) = match self.known(name, &query, bytes_max, takes_tail)? {
                Lookup::Answer(history) => return Ok(history),
                Lookup::Question(question, number, is_tail) => (question, number, is_tail),
            };
            let answer = question.await;
            // A tail that did not suffice may be evicted at once: it would be requested for ever.
            takes_tail &= !is_tail || answer.is_err();
            let done = self.with_entry(name, |entry| {
                entry.questions.retain(|one| one.answer.peek().is_none());
                let history = match &answer {
                    Ok(history) => history,
                    // The link was lost: the next attempt waits for the next one.
                    Err(ChannelError::OutcomeUnknown | ChannelError::HomeUnreachable) => return None,
                    Err(error) => return Some(Err(*error)),
                };
                let any = has_fault(self.sabotage, ClusterSabotage::OldAnswers);
                if entry.channel.number() != number && !any {
                    return None;
                }
                if is_tail {
                    entry.channel.add_tail(history);
                    return entry.channel.history(&query, bytes_max, self.env.wall_ms()).map(Ok);
                }
                // An answer to an earlier question may lack publications that preceded this one.
                let position = history.position;
                let is_new = position.epoch == begin.epoch && position.offset >= begin.offset;
                (is_new || any).then(|| Ok(History::clone(history)))
            });
            if let Some(Some(history)) = done {
                return history;
            }
        }
        Err(ChannelError::Busy)
    }

    /// The answer to a query, or the question to ask for it. All sessions share a question.
    fn known(
        &self,
        name: &Arc<str>,
        query: &HistoryQuery,
        bytes_max: usize,
        takes_tail: bool,
    ) -> Result<Lookup, ChannelError> {
        let mut part = self.part(name).lock();
        let entry = part.get_mut(name).ok_or(ChannelError::HomeUnreachable)?;
        if let Some(history) = entry.channel.history(query, bytes_max, self.env.wall_ms()) {
            return Ok(Lookup::Answer(history));
        }
        let current = entry.channel.current().ok_or(ChannelError::HomeUnreachable)?;
        let number = entry.channel.number();
        if has_fault(self.sabotage, ClusterSabotage::AheadRefused)
            && query.since.is_some_and(|since| since.epoch != current.epoch || since.offset > current.offset)
        {
            return Ok(Lookup::Answer(History { publications: Vec::new(), position: current, complete: false }));
        }
        // The first session that lacks publications gets the tail for all.
        let recovers = takes_tail && !query.reverse && query.since.is_some_and(|since| since.epoch == current.epoch);
        let tail = HistoryQuery { since: None, limit: TAIL_MAX, reverse: true };
        let tail = WireHistoryQuery::new(tail, TAIL_BYTES_MAX);
        let under_way = |wanted: &WireHistoryQuery, questions: &[Question]| {
            let mut found = questions.iter().filter(|one| one.number == number && one.query == *wanted);
            found.find(|one| one.answer.peek().is_none()).map(|one| one.answer.clone())
        };
        if recovers && let Some(answer) = under_way(&tail, &entry.questions) {
            return Ok(Lookup::Question(answer, number, true));
        }
        let is_tail = recovers && entry.channel.requests_tail();
        let wanted = if is_tail { tail } else { WireHistoryQuery::new(*query, bytes_max) };
        if let Some(answer) = under_way(&wanted, &entry.questions) {
            return Ok(Lookup::Question(answer, number, is_tail));
        }
        self.counters.history_requests.fetch_add(1, Relaxed);
        let response = self.request(entry.home, name, Command::History(wanted))?;
        let answer = async move {
            let response = response.await.unwrap_or(Err(ChannelError::OutcomeUnknown))?;
            Ok(Arc::new(response.into_history()))
        };
        let answer = (Box::pin(answer) as BoxFuture<'static, _>).shared();
        entry.questions.push(Question { number, query: wanted, answer: answer.clone() });
        Ok(Lookup::Question(answer, number, is_tail))
    }
}
