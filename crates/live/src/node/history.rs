//! Histories, and the memory of long answers: an answer takes its bytes from one budget before it is read, and gives them
//! back when they have been written to the client.

use std::sync::Arc;

use bytes::Bytes;
use steadfast_flow::Permit;
use steadfast_store::{ChannelHandle, History, HistoryQuery};

use super::{GATE_WAIT, Node, refusal};
use crate::protocol::codes::{self, ClientError};
use crate::protocol::message::Publication;

/// Most histories are shorter: a read tries this many bytes before it takes a permit for the longest answer.
const FIRST_BYTES: usize = 256 << 10;

/// What a publication takes beside its body, about.
const EACH_BYTES: usize = 64;

/// The memory of an answer; `None` for an answer too short to count.
pub(crate) type AnswerPermit = Option<Arc<Permit>>;

/// Bytes that hold permits until the last part of them is dropped.
struct Held {
    bytes: Bytes,
    _permits: Box<[Arc<Permit>]>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The same bytes, holding `permits`.
pub(crate) fn held(bytes: Bytes, permits: &[Arc<Permit>]) -> Bytes {
    match permits {
        [] => bytes,
        permits => Bytes::from_owner(Held { bytes, _permits: permits.into() }),
    }
}

/// Bytes that a publication takes in an answer, about.
pub(crate) fn bytes_of(publication: &Publication) -> usize {
    publication.data.len() + EACH_BYTES
}

impl Node {
    /// A permit for so many bytes of an answer; `None` when the budget is exhausted.
    pub(crate) fn answer_permit(&self, bytes: usize) -> Option<Permit> {
        self.answers.try_acquire(self.answers.clamp(bytes as u64)).ok()
    }

    /// Publications of a channel, as many as one answer may have, and their permit; `None` when the budget is
    /// exhausted.
    ///
    /// # Errors
    /// Too many reads at a time, or what the store says.
    pub(crate) async fn read(
        &self,
        handle: &ChannelHandle,
        query: HistoryQuery,
    ) -> Result<Option<(History, AnswerPermit)>, ClientError> {
        let most = self.answers.clamp(self.history_bytes_max as u64) as usize;
        let mut bytes = most.min(FIRST_BYTES);
        // A client that missed nothing recovers without a permit.
        let top = handle.position().map_err(|e| refusal(&e))?;
        let up_to_date = query.since == Some(top) && !query.reverse;
        let _pass = self.reads.enter(GATE_WAIT).await.map_err(|_| codes::TOO_MANY_REQUESTS)?;
        let mut takes = if up_to_date { 0 } else { bytes };
        loop {
            let Some(mut permit) = self.answer_permit(takes) else { return Ok(None) };
            let history = handle.history_within(query, bytes).await.map_err(|e| refusal(&e))?;
            let found: usize = history.publications.iter().map(|one| one.body.len() + EACH_BYTES).sum();
            if bytes < most && (found > bytes || is_cut_short(&query, &history)) {
                (bytes, takes) = (most, most);
                continue;
            }
            permit.shrink_to(found as u64);
            return Ok(Some((history, (found > 0).then(|| Arc::new(permit)))));
        }
    }
}

/// Whether the channel may have more publications than were read.
fn is_cut_short(query: &HistoryQuery, history: &History) -> bool {
    let end = if query.reverse { 1 } else { history.position.offset };
    history.publications.len() < query.limit && history.publications.last().is_some_and(|last| last.offset != end)
}
