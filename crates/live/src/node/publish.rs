//! The path of a publication to the store, and from there to the partitions.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use steadfast_cluster::{Accepted as Submitted, Publish, StoreTerms};
use steadfast_flow::Permit;
use steadfast_log::{Durability, Priority};
use steadfast_store::{ChannelSink, Position, Publication as Stored};

use super::subscribers::history_ttl_ms;
use super::{Node, refusal};
use crate::config::{ChannelDurability, NamespaceOptions};
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
pub struct Accepted(Submitted);

impl Accepted {
    /// Waits for the commit, at most as long as a write may wait for a hanging disk.
    ///
    /// # Errors
    /// When the commit cannot be confirmed. The publication may still be committed.
    pub async fn committed(self) -> Result<Position, ClientError> {
        self.0.committed().await.map_err(refusal)
    }

    /// Waits for the commit, however long the disk hangs.
    ///
    /// # Errors
    /// When the publication was not committed.
    pub async fn resolved(self) -> Result<Position, ClientError> {
        self.0.resolved().await.map_err(refusal)
    }
}

impl Node {
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

    /// Waits until the backlog of every partition is within its bound.
    async fn room(&self) -> Result<(), ClientError> {
        if !self.has_backlog() {
            return Ok(());
        }
        let waited = self.env.timeout(PUBLISH_WAIT, self.no_backlog()).await;
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
        self.submit_with_key(channel, publication, wanted, None).await
    }

    /// The same with an idempotency key, and the memory that a repeated publication may take.
    ///
    /// # Errors
    /// When the publication is refused.
    pub(crate) async fn submit_with_key(
        &self,
        channel: &str,
        publication: &Encoded,
        wanted: Submission,
        key: Option<(String, Permit)>,
    ) -> Result<Accepted, ClientError> {
        let options = self.rules.namespace(channel)?;
        self.room().await?;
        let stored = options.has_history() && !wanted.skip_history;
        let accepted = if !stored && key.is_none() && self.homes.is_local(channel) {
            self.homes.check(|| publication.body()).map_err(refusal)?;
            self.deliver(channel, publication);
            Submitted::Delivered
        } else {
            let (key, permit) = key.map_or((String::new(), None), |(key, permit)| (key, Some(permit)));
            let publish = Publish { body: publication.body(), key, permit };
            let accepted = match stored {
                true => self.homes.submit(&self.channel(channel)?, terms(options, wanted), publish).await,
                false => self.homes.deliver(channel, publish).await,
            };
            accepted.map_err(refusal)?
        };
        self.publications.fetch_add(1, Relaxed);
        Ok(Accepted(accepted))
    }

    /// Delivers a publication of a channel of this node, without storing it.
    fn deliver(&self, channel: &str, publication: &Encoded) {
        let time_ms = self.env.wall_ms();
        let stored = || Stored { offset: 0, time_ms, body: publication.body() };
        self.homes.deliver_unstored(channel, stored, || {
            let mut publication = publication.publication().clone();
            publication.time = time_ms as i64;
            self.fan_out(channel, 0, publication);
        });
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
        let mut part = self.channels.part(channel).lock();
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

/// How the namespace stores a publication.
fn terms(options: &NamespaceOptions, wanted: Submission) -> StoreTerms {
    StoreTerms {
        history_size: options.history_size,
        history_ttl_ms: history_ttl_ms(options),
        durability: match wanted.durability.unwrap_or(options.durability) {
            ChannelDurability::Sync => Durability::Sync,
            ChannelDurability::Async => Durability::Async,
        },
        priority: wanted.priority,
        leaves_percent: wanted.leaves_percent,
    }
}

impl ChannelSink for Node {
    fn published(&self, channel: &Arc<str>, epoch: u32, stored: &Arc<Stored>) {
        if !self.channels.part(channel).lock().contains_key(channel) {
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
