//! The way of a publication to the store, and from it to the partitions.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use steadfast_log::{Durability, Priority};
use steadfast_store::{ChannelSink, NewPublication, PendingPublication, Position, Publication as Stored};

use super::{Node, refusal};
use crate::config::ChannelDurability;
use crate::outgoing::{Encoded, Outgoing, from_stored};
use crate::partition::Event;
use crate::protocol::codes::{self, ClientError};
use crate::protocol::message::Publication;

/// Bytes of publications that may wait for a partition: over it, publishers wait.
pub(super) const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// How long a publisher waits for that.
const PUBLISH_WAIT: Duration = Duration::from_secs(5);

/// How something is published.
#[derive(Debug, Clone, Copy)]
pub struct Submission {
    /// Only to those who are there, also where the channel keeps history.
    pub skip_history: bool,
    /// When it is answered and delivered, if not as the namespace says.
    pub durability: Option<ChannelDurability>,
    /// That of deletes, where a full store must not hold it up.
    pub priority: Priority,
    /// The share of the disk that it must leave free for others, in percent.
    pub leaves_percent: u8,
}

impl Default for Submission {
    fn default() -> Self {
        Self { skip_history: false, durability: None, priority: Priority::Write, leaves_percent: 0 }
    }
}

/// A publication that has its place, if its channel keeps history.
pub struct Accepted(Option<PendingPublication>);

impl Accepted {
    /// Awaits the commit, for as long as a write may wait where the disk hangs.
    ///
    /// # Errors
    /// Why it cannot be said to be committed. It may be.
    pub async fn committed(self) -> Result<Position, ClientError> {
        let Some(pending) = self.0 else { return Ok(Position::default()) };
        pending.committed().await.map(|published| published.position).map_err(|e| refusal(&e))
    }

    /// Awaits the commit, however long the disk hangs.
    ///
    /// # Errors
    /// Why it was not committed.
    pub async fn resolved(self) -> Result<Position, ClientError> {
        let Some(pending) = self.0 else { return Ok(Position::default()) };
        pending.resolved().await.map(|published| published.position).map_err(|e| refusal(&e))
    }
}

impl Node {
    /// Waits until the partitions have delivered enough to take more.
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

    /// Publishes, up to the point where its place is certain; what it returns waits for the answer.
    ///
    /// # Errors
    /// Why not.
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

    /// Publishes, and waits for the answer.
    ///
    /// # Errors
    /// Why not.
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
        // What they say is no longer where the channel stands.
        live.answers.clear();
        // Under the lock, so that all partitions get what is published in the same order.
        for (inbox, subscribers) in self.inboxes.iter().zip(&live.subscribers) {
            if *subscribers > 0 {
                inbox.send(Event::Publication(outgoing.clone()));
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
            Err(error) => tracing::error!(?channel, offset = stored.offset, %error, "a publication cannot be read"),
        }
    }
}
