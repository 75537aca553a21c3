//! The path of a publication to its home.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use steadfast_cluster::{Accepted as Submitted, Publish, StoreTerms};
use steadfast_flow::{Env, Permit};
use steadfast_log::{Durability, Priority};
use steadfast_store::{Position, Publication as Stored};

use super::{LiveChannels, history_ttl_ms, refusal};
use crate::config::{ChannelDurability, NamespaceOptions};
use crate::outgoing::Encoded;
use crate::partition::Partitions;
use crate::protocol::codes::ClientError;
use crate::protocol::message::Publication;
use crate::rules::Rules;

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

/// Publishes to channels of any node.
pub struct Publisher {
    rules: Arc<Rules>,
    channels: Arc<LiveChannels>,
    partitions: Arc<Partitions>,
    env: Env,
    /// Number of publications that were accepted.
    accepted: AtomicU64,
}

impl Publisher {
    /// Publishes to these channels.
    pub(crate) fn new(rules: Arc<Rules>, channels: Arc<LiveChannels>, partitions: Arc<Partitions>, env: Env) -> Self {
        Self { rules, channels, partitions, env, accepted: AtomicU64::new(0) }
    }

    /// Number of publications that were accepted.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Relaxed)
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
        let homes = &self.channels.homes;
        self.partitions.wait_for_backlog().await?;
        let stored = options.has_history() && !wanted.skip_history;
        let accepted = if !stored && key.is_none() && homes.is_local(channel) {
            homes.check(|| publication.body()).map_err(refusal)?;
            self.deliver(channel, publication);
            Submitted::Delivered
        } else {
            let (key, permit) = key.map_or((String::new(), None), |(key, permit)| (key, Some(permit)));
            let publish = Publish { body: publication.body(), key, permit };
            let accepted = match stored {
                true => homes.submit(&self.channels.channel(channel)?, terms(options, wanted), publish).await,
                false => homes.deliver(channel, publish).await,
            };
            accepted.map_err(refusal)?
        };
        self.accepted.fetch_add(1, Relaxed);
        Ok(Accepted(accepted))
    }

    /// Delivers a publication of a channel of this node, without storing it.
    fn deliver(&self, channel: &str, publication: &Encoded) {
        let time_ms = self.env.wall_ms();
        let stored = || Stored { offset: 0, time_ms, body: publication.body() };
        self.channels.homes.deliver_unstored(channel, stored, || {
            let mut publication = publication.publication().clone();
            publication.time = time_ms as i64;
            self.channels.fan_out(channel, 0, publication);
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
