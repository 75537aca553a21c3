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

/// Quarters of the outbox beyond which a new join is refused.
const JOIN_QUARTERS: u64 = 1;

/// Quarters of the outbox beyond which a publication is refused.
const PUBLISH_QUARTERS: u64 = 2;

/// Quarters of the outbox beyond which other requests are refused, and watches are delayed. The
/// rest is for leaves, and for the lists of members after a watch.
const REQUEST_QUARTERS: u64 = 3;

/// The answer to a request.
pub(super) type Answer = Result<Response, ChannelError>;

struct FrontWatch {
    name: Arc<str>,
    answered: bool,
}

/// See the module.
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
        self.outbox
            .as_ref()
            .is_some_and(|outbox| self.unanswered < UNANSWERED_MAX && !outbox.is_beyond_quarters(REQUEST_QUARTERS))
    }

    /// Whether the joins of more members may be sent now.
    pub(super) fn may_join(&self) -> bool {
        self.outbox.as_ref().is_none_or(|outbox| !outbox.is_beyond_quarters(JOIN_QUARTERS))
    }

    pub(super) fn enqueue(&mut self, channel: &Arc<str>) {
        self.queue.push_back(channel.clone());
    }

    /// The next channel to watch.
    pub(super) fn next(&mut self) -> Option<Arc<str>> {
        if self.may_watch() { self.queue.pop_front() } else { None }
    }

    pub(super) fn watch(&mut self, number: u64, name: &Arc<str>) {
        self.watches.insert(number, FrontWatch { name: name.clone(), answered: false });
        self.unanswered += 1;
    }

    /// Forgets a watch.
    pub(super) fn unwatch(&mut self, number: u64) {
        if self.watches.remove(&number).is_some_and(|watch| !watch.answered) {
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
    pub(super) fn request(
        &mut self,
        number: u64,
        frame: Bytes,
        publishes: bool,
    ) -> Result<oneshot::Receiver<Answer>, ChannelError> {
        let quarters = if publishes { PUBLISH_QUARTERS } else { REQUEST_QUARTERS };
        let outbox = self.outbox.as_ref().ok_or(ChannelError::HomeUnreachable)?;
        // A home that reads slowly refuses requests instead of losing the link.
        if self.requests.len() >= REQUESTS_MAX || outbox.is_beyond_quarters(quarters) {
            return Err(ChannelError::Busy);
        }
        if !outbox.send(frame) {
            return Err(ChannelError::HomeUnreachable);
        }
        let (sender, answer) = oneshot::channel();
        self.requests.insert(number, sender);
        Ok(answer)
    }

    pub(super) fn on_response(&mut self, response: Response) {
        if let Some(answer) = self.requests.remove(&response.number) {
            let error = ChannelError::from_number(response.error);
            let _ = answer.send(error.map_or(Ok(response), Err));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;

    #[tokio::test]
    async fn each_kind_of_frame_leaves_a_part_of_the_outbox_to_others() {
        let mut link = HomeLink::new(Duration::ZERO);
        let frame = || Bytes::from_static(b"0123456789");
        assert_eq!(link.request(1, frame(), true).err(), Some(ChannelError::HomeUnreachable));
        assert!(link.may_join(), "without a link nothing is sent");
        let (outbox, frames) = Outbox::new(40);
        let mut frames = Box::pin(frames);
        link.up(&outbox, vec!["a".into(), "b".into()]);
        let mut states = Vec::new();
        for number in 0..5 {
            let publishes = link.request(10 + number, Bytes::new(), true).is_ok();
            let requests = link.request(20 + number, Bytes::new(), false).is_ok();
            states.push((link.may_join(), publishes, requests, link.may_watch()));
            link.send(frame());
        }
        let (yes, no) = (true, false);
        assert_eq!(
            states,
            [(yes, yes, yes, yes), (yes, yes, yes, yes), (no, yes, yes, yes), (no, no, yes, yes), (no, no, no, no)]
        );
        assert!(outbox.is_closed(), "50 of 40 bytes");
        assert!(frames.next().await.is_none());
    }
}
