//! The path of a publication to the store, and from there to the partitions.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use steadfast_log::{Durability, Priority};
use steadfast_store::{ChannelSink, NewPublication, PendingPublication, Position, Publication as Stored};

use super::{Node, refusal};
use crate::config::ChannelDurability;
use crate::outgoing::{Encoded, Outgoing, from_stored};
use crate::partition::WorkerEvent;
use crate::protocol::codes::{self, ClientError};
use crate::protocol::message::Publication;

/// Bytes of publications that may be queued for a partition. Above it, publishers wait.
pub(super) const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// How long a publisher waits for the backlog.
const PUBLISH_WAIT: Duration = Duration::from_secs(5);

/// Options of a publication.
#[derive(Debug, Clone, Copy)]
pub struct Submission {
    /// Deliver it only to present subscribers, even if the channel keeps history.
    pub skip_history: bool,
    /// Overrides when the namespace acknowledges and delivers it.
    pub durability: Option<ChannelDurability>,
    /// The priority of deletes, if a full store must not block it.
    pub priority: Priority,
    /// Share of the disk that it must leave free, percent.
    pub leaves_percent: u8,
}

impl Default for Submission {
    fn default() -> Self {
        Self { skip_history: false, durability: None, priority: Priority::Write, leaves_percent: 0 }
    }
}

/// A publication with its position, if its channel keeps history.
pub struct Accepted(Option<PendingPublication>);

impl Accepted {
    /// Waits for the commit, at most as long as a write may wait for a hanging disk.
    ///
    /// # Errors
    /// When the commit cannot be confirmed. The publication may still be committed.
    pub async fn committed(self) -> Result<Position, ClientError> {
        let Some(pending) = self.0 else { return Ok(Position::default()) };
        pending.committed().await.map(|published| published.position).map_err(|e| refusal(&e))
    }

    /// Waits for the commit, however long the disk hangs.
    ///
    /// # Errors
    /// When the publication was not committed.
    pub async fn resolved(self) -> Result<Position, ClientError> {
        let Some(pending) = self.0 else { return Ok(Position::default()) };
        pending.resolved().await.map(|published| published.position).map_err(|e| refusal(&e))
    }
}

impl Node {
    /// Waits until the backlog of every partition is within its bound.
    pub(crate) async fn room(&self) -> Result<(), ClientError> {
        let full = || self.inboxes.iter().any(|inbox| inbox.backlog() > BACKLOG_BYTES_MAX);
        if !full() {
            return Ok(());
        }
        let wait = async {
            loop {
                let delivered = self.delivered.notified();
                if !full() {
                    return;
                }
                delivered.await;
            }
        };
        let waited = self.env.timeout(PUBLISH_WAIT, wait).await;
        waited.ok_or_else(|| {
            self.backlog_refused.fetch_add(1, Relaxed);
            codes::TOO_MANY_REQUESTS
        })
    }

    /// Submits a publication until its position is fixed. The result waits for the commit.
    ///
    /// # Errors
    /// When the publication is refused.
    pub async fn submit(
        &self,
        channel: &str,
        publication: &Encoded,
        wanted: Submission,
    ) -> Result<Accepted, ClientError> {
        let options = self.namespace(channel)?;
        self.room().await?;
        let pending = if options.has_history() && !wanted.skip_history {
            let handle = self.handle(channel)?;
            if wanted.leaves_percent > 0 && handle.spare_percent().map_err(|e| refusal(&e))? < wanted.leaves_percent {
                return Err(codes::DISK_NEARLY_FULL);
            }
            let new = NewPublication {
                body: publication.body(),
                history_size: options.history_size,
                history_ttl_ms: u64::try_from(options.history_ttl.0.as_millis()).unwrap_or(u64::MAX),
                durability: match wanted.durability.unwrap_or(options.durability) {
                    ChannelDurability::Sync => Durability::Sync,
                    ChannelDurability::Async => Durability::Async,
                },
                priority: wanted.priority,
            };
            Some(handle.submit(new).await.map_err(|e| refusal(&e))?)
        } else {
            let mut publication = publication.publication().clone();
            publication.time = self.env.wall_ms() as i64;
            self.fan_out(channel, 0, publication);
            None
        };
        self.publications.fetch_add(1, Relaxed);
        Ok(Accepted(pending))
    }

    /// Publishes, and waits for the commit.
    ///
    /// # Errors
    /// When the publication is refused, or its commit cannot be confirmed.
    pub async fn publish(
        &self,
        channel: &str,
        publication: Publication,
        wanted: Submission,
    ) -> Result<Position, ClientError> {
        self.submit(channel, &publication.into(), wanted).await?.committed().await
    }

    fn fan_out(&self, channel: &str, epoch: u32, publication: Publication) {
        let mut part = self.part(&self.channels, channel).lock();
        let Some((name, _)) = part.get_key_value(channel) else { return };
        let name = name.clone();
        let Some(live) = part.get_mut(channel) else { return };
        let outgoing = Arc::new(Outgoing::new(name, epoch, publication, live.last.take()));
        if live.delta {
            live.last = Some(Arc::new(outgoing.without_previous()));
        }
        // The shared answers no longer end at the top of the channel.
        live.answers.clear();
        // Under the lock, so that all partitions get publications in the same order.
        for (inbox, subscribers) in self.inboxes.iter().zip(&live.subscribers) {
            if *subscribers > 0 {
                inbox.send(WorkerEvent::Publication(outgoing.clone()));
            }
        }
    }

    pub(crate) fn delivered(&self) {
        self.delivered.notify_waiters();
    }
}

impl ChannelSink for Node {
    fn published(&self, channel: &Arc<str>, epoch: u32, stored: &Arc<Stored>) {
        if !self.part(&self.channels, channel).lock().contains_key(channel) {
            return;
        }
        match from_stored(stored) {
            Ok(publication) => self.fan_out(channel, epoch, publication),
            Err(error) => {
                tracing::error!(?channel, offset = stored.offset, %error, "a stored publication cannot be decoded")
            }
        }
    }
}
