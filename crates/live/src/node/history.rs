//! Histories, and the memory of long answers. An answer takes its bytes from one budget before it
//! is read, and releases them when the client has received it.

use std::sync::Arc;

use steadfast_cluster::Channel;
use steadfast_flow::Permit;
use steadfast_store::{History, HistoryQuery};

use super::{GATE_WAIT, Node, refusal};
use crate::answer::AnswerPermit;
use crate::protocol::codes::{self, ClientError};
use crate::protocol::message::Publication;

/// Bytes of the first attempt of a read, which suffices for most histories. The second attempt
/// takes a permit for the longest answer.
const FIRST_BYTES: usize = 256 << 10;

/// Approximate overhead of a publication beyond its body, bytes.
const EACH_BYTES: usize = 64;

/// Approximate bytes of a publication in an answer.
pub(crate) fn bytes_of(publication: &Publication) -> usize {
    publication.data.len() + EACH_BYTES
}

impl Node {
    /// A permit for `bytes` bytes of an answer; `None` if the budget is exhausted.
    pub(crate) fn answer_permit(&self, bytes: usize) -> Option<Permit> {
        self.answers.try_acquire(self.answers.clamp(bytes as u64)).ok()
    }

    /// Reads publications of a channel, as many as one answer may have, with their permit; `None`
    /// if the budget is exhausted.
    ///
    /// # Errors
    /// When too many reads are in progress, or with the error of the store.
    pub(crate) async fn read(
        &self,
        channel: &Channel,
        query: HistoryQuery,
    ) -> Result<Option<(History, AnswerPermit)>, ClientError> {
        let most = self.answers.clamp(self.history_bytes_max as u64) as usize;
        let mut bytes = most.min(FIRST_BYTES);
        // A client that missed nothing recovers without a permit.
        let top = channel.known_position().map_err(refusal)?;
        let up_to_date = top.is_some() && query.since == top && !query.reverse;
        let _pass = self.reads.enter(GATE_WAIT).await.map_err(|_| codes::TOO_MANY_REQUESTS)?;
        let mut takes = if up_to_date { 0 } else { bytes };
        loop {
            let Some(mut permit) = self.answer_permit(takes) else { return Ok(None) };
            let history = channel.history_within(query, bytes).await.map_err(refusal)?;
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

/// Whether the channel may have more publications than the read returned.
fn is_cut_short(query: &HistoryQuery, history: &History) -> bool {
    let end = if query.reverse { 1 } else { history.position.offset };
    history.publications.len() < query.limit && history.publications.last().is_some_and(|last| last.offset != end)
}
