//! A front's side of the link to a home: its watches there, and its requests under way.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::error::ChannelError;
use crate::frame::channels::Response;
use crate::outbox::Outbox;

/// Watches without an answer, at most. Others wait in a queue, so a home that returns gets the
/// watches of all channels in batches.
const UNANSWERED_MAX: usize = 1000;

/// Requests without an answer, at most.
const REQUESTS_MAX: usize = 65_536;

/// Bytes from which a frame is large.
const LARGE_BYTES: usize = 16 << 10;

/// Quarters of the outbox that requests and joins may fill: large ones, and others. So large ones
/// leave a part to others, and all leave a part to leaves and to the lists of members.
const QUARTERS: (u64, u64) = (2, 3);

/// The answer to a request.
pub(super) type Answer = Result<Response, ChannelError>;

struct FrontWatch {
    name: Arc<str>,
    answered: bool,
}

/// The link to a home, with the watches and requests in progress.
pub(super) struct HomeLink {
    /// `None`: the link is down.
    outbox: Option<Outbox>,
    /// When the link was lost; at first, the start of this process.
    pub(super) down_since: Duration,
    watches: HashMap<u64, FrontWatch>,
    unanswered: usize,
    /// Channels to watch when there are fewer unanswered watches.
    queue: VecDeque<Arc<str>>,
    requests: HashMap<u64, oneshot::Sender<Answer>>,
}

impl HomeLink {
    pub(super) fn new(down_since: Duration) -> Self {
        Self {
            outbox: None,
            down_since,
            watches: HashMap::new(),
            unanswered: 0,
            queue: VecDeque::new(),
            requests: HashMap::new(),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.outbox.is_some()
    }

    pub(super) fn up(&mut self, outbox: &Outbox, channels: Vec<Arc<str>>) {
        self.outbox = Some(outbox.clone());
        self.queue = channels.into();
    }

    /// The link is lost: its watches and requests end with it.
    pub(super) fn down(&mut self, now: Duration) {
        let requests = std::mem::take(&mut self.requests);
        *self = Self::new(now);
        for (_, answer) in requests {
            let _ = answer.send(Err(ChannelError::OutcomeUnknown));
        }
    }

    pub(super) fn send(&self, frame: Bytes) {
        if let Some(outbox) = &self.outbox {
            outbox.send(frame);
        }
    }

    /// Whether one more watch may be sent now. The lists of members that follow must not fill the
    /// outbox.
    pub(super) fn may_watch(&self) -> bool {
        self.unanswered < UNANSWERED_MAX && self.may_list()
    }

    /// Whether a list of members may be sent now.
    pub(super) fn may_list(&self) -> bool {
        self.outbox.as_ref().is_some_and(|outbox| has_space(outbox, 0))
    }

    /// Whether a join with that many bytes may be sent now.
    pub(super) fn may_join(&self, bytes: usize) -> bool {
        self.outbox.as_ref().is_none_or(|outbox| has_space(outbox, bytes))
    }

    pub(super) fn enqueue(&mut self, channel: &Arc<str>) {
        self.queue.push_back(channel.clone());
    }

    /// The next channel to watch.
    pub(super) fn next(&mut self) -> Option<Arc<str>> {
        if self.may_watch() { self.queue.pop_front() } else { None }
    }

    pub(super) fn watch(&mut self, number: u64, name: &Arc<str>) {
        let before = self.watches.insert(number, FrontWatch { name: name.clone(), answered: false });
        assert!(before.is_none(), "two watches with the number {number}");
        self.unanswered += 1;
    }

    /// Forgets a watch.
    pub(super) fn unwatch(&mut self, number: u64) {
        if self.watches.remove(&number).is_some_and(|watch| !watch.answered) {
            assert!(self.unanswered > 0, "a watch was not counted");
            self.unanswered -= 1;
        }
    }

    /// The channel of a watch.
    pub(super) fn channel(&self, number: u64) -> Option<Arc<str>> {
        self.watches.get(&number).map(|watch| watch.name.clone())
    }

    /// The channel of a watch that the home has answered.
    pub(super) fn answered(&mut self, number: u64) -> Option<Arc<str>> {
        let watch = self.watches.get_mut(&number)?;
        if !std::mem::replace(&mut watch.answered, true) {
            self.unanswered -= 1;
        }
        Some(watch.name.clone())
    }

    /// Sends a request. Requests on one link arrive in their order.
    pub(super) fn request(&mut self, number: u64, frame: Bytes) -> Result<oneshot::Receiver<Answer>, ChannelError> {
        let outbox = self.outbox.as_ref().ok_or(ChannelError::HomeUnreachable)?;
        // A home that reads slowly refuses requests instead of losing the link.
        if self.requests.len() >= REQUESTS_MAX || !has_space(outbox, frame.len()) {
            return Err(ChannelError::Busy);
        }
        if !outbox.send(frame) {
            return Err(ChannelError::HomeUnreachable);
        }
        let (sender, answer) = oneshot::channel();
        let before = self.requests.insert(number, sender);
        assert!(before.is_none(), "two requests with the number {number}");
        Ok(answer)
    }

    pub(super) fn on_response(&mut self, response: Response) {
        if let Some(answer) = self.requests.remove(&response.number) {
            let error = ChannelError::from_number(response.error);
            let _ = answer.send(error.map_or(Ok(response), Err));
        }
    }
}

/// Whether a request or a join of that many bytes may be sent now.
fn has_space(outbox: &Outbox, bytes: usize) -> bool {
    !outbox.is_beyond_quarters(if bytes < LARGE_BYTES { QUARTERS.1 } else { QUARTERS.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_frames_leave_a_part_of_the_outbox_to_others() {
        let mut link = HomeLink::new(Duration::ZERO);
        let large = || Bytes::from(vec![0; LARGE_BYTES]);
        assert_eq!(link.request(1, large()).err(), Some(ChannelError::HomeUnreachable));
        assert!(link.may_join(LARGE_BYTES), "without a link nothing is sent");
        let (outbox, _frames) = Outbox::new(8 * LARGE_BYTES as u64);
        link.up(&outbox, vec!["a".into(), "b".into()]);
        let mut numbers = 10..;
        let mut accepted = |link: &mut HomeLink, frame: fn() -> Bytes| {
            numbers.by_ref().take_while(|number| link.request(*number, frame()).is_ok()).count()
        };
        assert_eq!(accepted(&mut link, || Bytes::from(vec![0; LARGE_BYTES])), 5, "more than half is sent");
        assert!(!link.may_join(LARGE_BYTES) && link.may_join(LARGE_BYTES - 1) && link.may_watch());
        assert!(link.next().is_some());
        assert_eq!(accepted(&mut link, || Bytes::from(vec![0; LARGE_BYTES / 2])), 3);
        assert!(!link.may_join(1) && !link.may_watch() && link.next().is_none());
        assert!(!outbox.is_closed());
    }
}
