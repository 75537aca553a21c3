//! The frames of a link that wait to be sent, bounded in bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use futures::{Stream, stream};
use steadfast_flow::has_fault;
use tokio::sync::{Notify, mpsc, watch};

use crate::sabotage::ClusterSabotage;

struct Shared {
    bytes_max: u64,
    sabotage: ClusterSabotage,
    bytes: AtomicU64,
    /// Woken when a frame was sent.
    sent: Notify,
    /// Nothing more may be added.
    finished: AtomicBool,
    /// True once the outbox is closed: nothing more is sent.
    closed: watch::Sender<bool>,
}

/// The sending half. Clones share it.
#[derive(Clone)]
pub struct Outbox {
    queue: mpsc::UnboundedSender<Bytes>,
    shared: Arc<Shared>,
}

impl Outbox {
    /// An outbox for `bytes_max` bytes, and its frames in order. The stream ends when the outbox
    /// is closed.
    pub fn new(bytes_max: u64) -> (Self, impl Stream<Item = Bytes> + Send + use<> + 'static) {
        Self::with_sabotage(bytes_max, ClusterSabotage::None)
    }

    /// The same, broken on purpose.
    pub(crate) fn with_sabotage(
        bytes_max: u64,
        sabotage: ClusterSabotage,
    ) -> (Self, impl Stream<Item = Bytes> + Send + use<> + 'static) {
        #[allow(clippy::disallowed_methods, reason = "`bytes_max` bounds it")]
        let (queue, frames) = mpsc::unbounded_channel::<Bytes>();
        let (bytes, closed) = (AtomicU64::new(0), watch::Sender::new(false));
        let finished = AtomicBool::new(false);
        let shared = Arc::new(Shared { bytes_max, sabotage, bytes, sent: Notify::new(), finished, closed });
        let receiver = (frames, shared.clone(), shared.closed.subscribe());
        let frames = stream::unfold(receiver, async |(mut frames, shared, mut closed)| {
            let frame = tokio::select! {
                biased;
                _ = closed.wait_for(|closed| *closed) => None,
                frame = frames.recv() => frame,
            }
            .filter(|frame| !frame.is_empty())?;
            let before = shared.bytes.fetch_sub(frame.len() as u64, Relaxed);
            assert!(before >= frame.len() as u64, "a frame was not counted");
            shared.sent.notify_waiters();
            Some((frame, (frames, shared, closed)))
        });
        (Self { queue, shared }, frames)
    }

    /// Adds a frame. A full outbox is closed: a link never drops a frame and continues. Returns
    /// whether the frame was added.
    pub fn send(&self, frame: Bytes) -> bool {
        debug_assert!(!frame.is_empty(), "a frame has a head");
        if self.shared.finished.load(Relaxed) {
            return false;
        }
        let len = frame.len() as u64;
        if self.shared.bytes.fetch_add(len, Relaxed) + len > self.shared.bytes_max {
            if has_fault(self.shared.sabotage, ClusterSabotage::FrameDropped) {
                self.shared.bytes.fetch_sub(len, Relaxed);
                return true;
            }
            self.close();
        }
        !*self.shared.closed.borrow() && self.queue.send(frame).is_ok()
    }

    /// Ends the link when the frames in the outbox are sent. No more are added.
    pub(crate) fn finish(&self) {
        self.shared.finished.store(true, Relaxed);
        // An empty frame ends the stream.
        let _ = self.queue.send(Bytes::new());
    }

    /// Bytes that wait to be sent.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Relaxed)
    }

    /// Ends the link.
    pub fn close(&self) {
        self.shared.closed.send_replace(true);
    }

    /// Whether more than that many quarters of the outbox wait to be sent.
    pub(crate) fn is_beyond_quarters(&self, quarters: u64) -> bool {
        self.bytes() > self.shared.bytes_max / 4 * quarters
    }

    /// Whether the link has ended.
    pub fn is_closed(&self) -> bool {
        *self.shared.closed.borrow()
    }

    /// Completes when at most a quarter of the outbox waits to be sent, or the outbox is closed.
    pub async fn drained(&self) {
        loop {
            let sent = self.shared.sent.notified();
            if self.bytes() <= self.shared.bytes_max / 4 {
                return;
            }
            tokio::select! {
                () = sent => {}
                () = self.closed() => return,
            }
        }
    }

    /// Completes when the outbox is closed.
    pub async fn closed(&self) {
        // The sender is in `shared`, so this never fails.
        let _ = self.shared.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Whether it was closed because it was full.
    pub fn is_overrun(&self) -> bool {
        self.bytes() > self.shared.bytes_max
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;

    #[tokio::test]
    async fn frames_leave_in_order_and_a_full_outbox_is_closed() {
        let (outbox, frames) = Outbox::new(10);
        let mut frames = Box::pin(frames);
        assert!(outbox.send(Bytes::from_static(b"one")) && outbox.send(Bytes::from_static(b"two")));
        assert_eq!((frames.next().await, outbox.bytes()), (Some(Bytes::from_static(b"one")), 3));
        assert!(outbox.send(Bytes::from_static(b"seven77")));
        assert!(!outbox.is_overrun());
        assert!(!outbox.send(Bytes::from_static(b"x")));
        assert!(outbox.is_overrun());
        outbox.closed().await;
        let (finished, left) = Outbox::new(10);
        assert!(finished.send(Bytes::from_static(b"one")));
        finished.finish();
        assert!(!finished.send(Bytes::from_static(b"two")) && !finished.is_closed());
        assert_eq!(left.collect::<Vec<_>>().await, [Bytes::from_static(b"one")]);
        assert_eq!(frames.next().await, None, "nothing is sent after a frame that was not");
    }
}
