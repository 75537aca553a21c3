//! Room for long answers: what they take of memory is counted from before they are read until their
//! clients have taken them, so that many who take them slowly do not fill it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use steadfast_flow::KeyedPermit;
use steadfast_store::{ChannelHandle, History, HistoryQuery};

use super::{GATE_WAIT, Node, refusal};
use crate::protocol::codes::{self, ClientError};
use crate::protocol::message::Publication;

/// Most histories take less: so much is read first, that only the others wait for more room.
const FIRST_BYTES: usize = 256 << 10;

/// What a publication takes beside its body, about.
const EACH_BYTES: usize = 64;

/// What an answer has taken; `None` where it is not worth counting.
pub(crate) type Room = Option<Arc<KeyedPermit>>;

/// Bytes that hold their room for as long as anybody has them.
struct Held {
    bytes: Bytes,
    _rooms: Box<[Arc<KeyedPermit>]>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The same bytes, with the room that they have taken.
pub(crate) fn held(bytes: Bytes, rooms: &[Arc<KeyedPermit>]) -> Bytes {
    match rooms {
        [] => bytes,
        rooms => Bytes::from_owner(Held { bytes, _rooms: rooms.into() }),
    }
}

/// Bytes that a publication takes in an answer, about.
pub(crate) fn bytes_of(publication: &Publication) -> usize {
    publication.data.len() + EACH_BYTES
}

impl Node {
    /// Room for so many bytes of an answer to `whose`; `None` when there is none within `wait`.
    pub(crate) async fn answer_room(&self, whose: &str, bytes: usize, wait: Duration) -> Option<KeyedPermit> {
        self.answers.acquire(whose, self.answers.clamp(bytes as u64), wait).await.ok()
    }

    /// Publications of a channel, as far as an answer may have them, and their room; `None` when there
    /// is none within `wait`.
    ///
    /// # Errors
    /// Too many read already, or what the store says.
    pub(crate) async fn read(
        &self,
        handle: &ChannelHandle,
        query: HistoryQuery,
        whose: &str,
        wait: Duration,
    ) -> Result<Option<(History, Room)>, ClientError> {
        // Where an answer may be longer than a user's share, no more is read than that has room for.
        let most = self.answers.clamp(self.history_bytes_max as u64) as usize;
        let mut bytes = most.min(FIRST_BYTES);
        // Who has missed nothing is told so whatever others hold.
        let top = handle.position().map_err(|e| refusal(&e))?;
        let mut takes = if query.since == Some(top) && !query.reverse { 0 } else { bytes };
        loop {
            let Some(mut room) = self.answer_room(whose, takes, wait).await else { return Ok(None) };
            let pass = self.reads.enter(GATE_WAIT).await.map_err(|_| codes::TOO_MANY_REQUESTS)?;
            let history = handle.history_within(query, bytes).await.map_err(|e| refusal(&e))?;
            drop(pass);
            let found: usize = history.publications.iter().map(|one| one.body.len() + EACH_BYTES).sum();
            if bytes < most && (found > bytes || may_go_on(&query, &history)) {
                (bytes, takes) = (most, most);
                continue;
            }
            room.shrink_to(found as u64);
            return Ok(Some((history, (found > 0).then(|| Arc::new(room)))));
        }
    }
}

/// Whether there may be more than was read.
fn may_go_on(query: &HistoryQuery, history: &History) -> bool {
    let end = if query.reverse { 1 } else { history.position.offset };
    history.publications.len() < query.limit && history.publications.last().is_some_and(|last| last.offset != end)
}
