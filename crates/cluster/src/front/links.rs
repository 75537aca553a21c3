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
        self.outbox.as_ref().is_some_and(|outbox| self.unanswered < UNANSWERED_MAX && !outbox.is_half_full())
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
    pub(super) fn request(&mut self, number: u64, frame: Bytes) -> Result<oneshot::Receiver<Answer>, ChannelError> {
        let outbox = self.outbox.as_ref().ok_or(ChannelError::HomeUnreachable)?;
        // A home that reads slowly refuses requests instead of losing the link.
        if self.requests.len() >= REQUESTS_MAX || outbox.is_half_full() {
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
    async fn a_half_full_outbox_delays_watches_and_refuses_requests() {
        let mut link = HomeLink::new(Duration::ZERO);
        let frame = || Bytes::from_static(b"0123456789");
        assert_eq!(link.request(1, frame()).err(), Some(ChannelError::HomeUnreachable));
        let (outbox, frames) = Outbox::new(39);
        let mut frames = Box::pin(frames);
        link.up(&outbox, vec!["a".into(), "b".into()]);
        assert!(link.next().is_some());
        let answer = link.request(1, frame());
        assert!(answer.is_ok());
        link.send(frame());
        assert!(link.next().is_none() && !link.may_watch(), "20 of 39 bytes wait");
        assert_eq!(link.request(2, frame()).err(), Some(ChannelError::Busy));
        frames.next().await;
        assert!(link.next().is_some());
        assert!(link.request(2, frame()).is_ok());
        assert!(!outbox.is_closed());
    }
}
