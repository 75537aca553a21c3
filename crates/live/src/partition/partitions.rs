//! The queues of all workers, and the bound on what waits in them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use steadfast_flow::Env;
use tokio::sync::Notify;

use super::{Inbox, SessionId, SessionMessage, WorkerEvent};
use crate::metrics::{SimpleBound, Sums};
use crate::protocol::codes::{self, ClientError};

/// Bytes of publications that may be queued for a partition. Above it, publishers wait.
pub(crate) const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// How long a publisher waits for the backlog.
const PUBLISH_WAIT: Duration = Duration::from_secs(5);

/// The queues of all workers.
pub(crate) struct Partitions {
    inboxes: Vec<Arc<Inbox>>,
    /// Notified when a worker has delivered an event.
    delivered: Notify,
    /// Publications that were refused because of the backlog.
    refused: AtomicU64,
    env: Env,
}

impl Partitions {
    /// Empty queues of `count` workers, and at least of one.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub(crate) fn new(count: usize, env: Env) -> io::Result<Self> {
        let inboxes = (0..count.max(1)).map(|_| Inbox::new().map(Arc::new)).collect::<io::Result<_>>()?;
        Ok(Self { inboxes, delivered: Notify::new(), refused: AtomicU64::new(0), env })
    }

    /// The queues, by the number of their partition.
    pub(crate) fn inboxes(&self) -> &[Arc<Inbox>] {
        &self.inboxes
    }

    /// Sends a message to a session.
    pub(crate) fn send_to_session(&self, session: SessionId, message: SessionMessage) {
        self.inboxes[usize::from(session.partition)].send(WorkerEvent::To(session, message));
    }

    /// Sends an event to the partitions that have subscribers.
    pub(crate) fn send_to_subscribers(&self, subscribers: &[u32], event: impl Fn() -> WorkerEvent) {
        for (inbox, subscribers) in self.inboxes.iter().zip(subscribers) {
            if *subscribers > 0 {
                inbox.send(event());
            }
        }
    }

    /// Whether the partitions that have subscribers keep up with their backlog.
    pub(crate) fn keep_up(&self, subscribers: &[u32]) -> bool {
        let mut busy = self.inboxes.iter().zip(subscribers).filter(|(_, subscribers)| **subscribers > 0);
        busy.all(|(inbox, _)| inbox.backlog() <= BACKLOG_BYTES_MAX)
    }

    /// Whether the backlog of a partition is above its bound.
    pub(crate) fn has_backlog(&self) -> bool {
        self.inboxes.iter().any(|inbox| inbox.backlog() > BACKLOG_BYTES_MAX)
    }

    /// Completes when the backlog of every partition is within its bound.
    pub(crate) async fn no_backlog(&self) {
        loop {
            let delivered = self.delivered.notified();
            if !self.has_backlog() {
                return;
            }
            delivered.await;
        }
    }

    /// Waits until the backlog of every partition is within its bound, as long as a publisher does.
    pub(crate) async fn wait_for_backlog(&self) -> Result<(), ClientError> {
        if !self.has_backlog() {
            return Ok(());
        }
        let waited = self.env.timeout(PUBLISH_WAIT, self.no_backlog()).await;
        waited.ok_or_else(|| {
            self.refused.fetch_add(1, Relaxed);
            codes::TOO_MANY_REQUESTS
        })
    }

    /// A worker has delivered an event.
    pub(crate) fn delivered(&self) {
        self.delivered.notify_waiters();
    }

    /// The counters of all workers.
    pub(crate) fn sums(&self) -> Sums {
        Sums::of(self.inboxes.iter().map(|inbox| &inbox.counters))
    }

    /// The status of the largest backlog.
    pub(crate) fn backlog(&self) -> SimpleBound {
        let backlog = self.inboxes.iter().map(|inbox| inbox.backlog()).max().unwrap_or_default();
        SimpleBound {
            name: "live_backlog",
            limit: BACKLOG_BYTES_MAX as u64,
            used: backlog as u64,
            refused: self.refused.load(Relaxed),
        }
    }
}
