//! Histories of channels, within the bounds on concurrent reads and on the memory of long answers.

use std::sync::Arc;

use steadfast_cluster::Channel;
use steadfast_store::{History, HistoryQuery, Position};

use super::{LiveChannels, refusal};
use crate::admission::{Admission, GATE_WAIT};
use crate::answer::AnswerPermit;
use crate::outgoing::from_stored;
use crate::protocol::codes::{self, ClientError};
use crate::protocol::message::{HistoryRequest, HistoryResult, Publication};
use crate::protocol::{epoch_text, parse_epoch};

/// Bytes of the first attempt of a read, which suffices for most histories. The second attempt
/// takes a permit for the longest answer.
const FIRST_BYTES: usize = 256 << 10;

/// Approximate overhead of a publication beyond its body, bytes.
const EACH_BYTES: usize = 64;

/// Approximate bytes of a publication in an answer.
pub(crate) fn bytes_of(publication: &Publication) -> usize {
    publication.data.len() + EACH_BYTES
}

/// A page of a history.
#[derive(Debug)]
pub(crate) struct HistoryPage {
    pub(crate) result: HistoryResult,
    /// The memory that the page takes.
    pub(crate) permit: AnswerPermit,
    /// Whether `live.history_max` ended the page before the requested limit, and more may follow.
    pub(crate) truncated: bool,
}

/// The histories of channels.
pub(crate) struct Histories {
    channels: Arc<LiveChannels>,
    admission: Arc<Admission>,
}

impl Histories {
    /// The histories of these channels, within these bounds.
    pub(crate) fn new(channels: Arc<LiveChannels>, admission: Arc<Admission>) -> Self {
        Self { channels, admission }
    }

    /// A page of the history of a channel, with at most `most` publications whatever the request
    /// says.
    ///
    /// # Errors
    /// When the channel cannot be read, or its epoch differs; [`codes::TOO_MANY_REQUESTS`] if the
    /// answer budget is exhausted, or the share of `address` in it.
    pub(crate) async fn page(
        &self,
        request: &HistoryRequest,
        most: usize,
        address: Option<&Arc<str>>,
    ) -> Result<HistoryPage, ClientError> {
        if request.reverse && request.since.as_ref().is_some_and(|since| since.offset == 0) {
            return Err(codes::BAD_REQUEST);
        }
        let bytes_max = self.admission.answers.answer_bytes_max();
        let wanted = usize::try_from(request.limit).map_or(most, |limit| limit.min(most));
        let limit = wanted.min(bytes_max / EACH_BYTES);
        let since = request.since.as_ref().map(|s| Position { epoch: parse_epoch(&s.epoch), offset: s.offset });
        let query = HistoryQuery { since, limit, reverse: request.reverse };
        let read = self.read(&self.channels.channel(&request.channel)?, query, address).await?;
        let (history, permit) = read.ok_or(codes::TOO_MANY_REQUESTS)?;
        let requested = request.since.as_ref().filter(|s| !s.epoch.is_empty());
        if requested.is_some_and(|s| parse_epoch(&s.epoch) != history.position.epoch) {
            return Err(codes::UNRECOVERABLE_POSITION);
        }
        let found = &history.publications;
        let bytes: usize = found.iter().map(|one| one.body.len()).sum();
        let at_end = !query.reverse && found.last().is_none_or(|last| last.offset == history.position.offset);
        let truncated = found.len() < wanted && (found.len() == limit || bytes >= bytes_max) && !at_end;
        let publications: Result<Vec<_>, _> = found.iter().map(|p| from_stored(p)).collect();
        let result = HistoryResult {
            publications: publications.map_err(|_| codes::INTERNAL)?,
            epoch: epoch_text(history.position.epoch),
            offset: history.position.offset,
        };
        Ok(HistoryPage { result, permit, truncated })
    }

    /// Removes the publications of a channel from its history.
    ///
    /// # Errors
    /// That of the store, or of the home of the channel.
    pub(crate) async fn remove(&self, channel: &str) -> Result<(), ClientError> {
        self.channels.homes.clear(channel).await.map_err(refusal)
    }

    /// Reads publications of a channel, as many as one answer may have, with their permit; `None`
    /// if the budget is exhausted, or the share of `address` in it.
    ///
    /// # Errors
    /// When too many reads are in progress, or with the error of the store.
    pub(crate) async fn read(
        &self,
        channel: &Channel,
        query: HistoryQuery,
        address: Option<&Arc<str>>,
    ) -> Result<Option<(History, AnswerPermit)>, ClientError> {
        let answers = &self.admission.answers;
        let most = answers.answer_bytes_max();
        let mut bytes = most.min(FIRST_BYTES);
        // A client that missed nothing recovers without a permit.
        let top = channel.known_position().map_err(refusal)?;
        let up_to_date = top.is_some() && query.since == top && !query.reverse;
        let _pass = self.admission.reads.enter(GATE_WAIT).await.map_err(|_| codes::TOO_MANY_REQUESTS)?;
        let mut takes = if up_to_date { 0 } else { bytes };
        if takes > 0 && !answers.has_room(address) {
            return Ok(None);
        }
        loop {
            let Some(mut permit) = answers.acquire(takes) else { return Ok(None) };
            // A long answer counts for its address while it is read. A short one counts when its
            // length is known, because many clients of one address may reconnect together.
            let is_long = takes > FIRST_BYTES;
            if is_long {
                let Some(counted) = answers.assign(permit, address) else { return Ok(None) };
                permit = counted;
            }
            let history = channel.history_within(query, bytes).await.map_err(refusal)?;
            let found: usize = history.publications.iter().map(|one| one.body.len() + EACH_BYTES).sum();
            if bytes < most && (found > bytes || is_cut_short(&query, &history)) {
                (bytes, takes) = (most, most);
                continue;
            }
            permit.shrink_to(found as u64);
            let permit = if is_long { Some(permit) } else { answers.assign(permit, address) };
            return Ok(permit.map(|permit| (history, (found > 0).then(|| Arc::new(permit)))));
        }
    }
}

/// Whether the channel may have more publications than the read returned.
fn is_cut_short(query: &HistoryQuery, history: &History) -> bool {
    let end = if query.reverse { 1 } else { history.position.offset };
    history.publications.len() < query.limit && history.publications.last().is_some_and(|last| last.offset != end)
}
