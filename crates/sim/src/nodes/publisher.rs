//! A publisher: publishes at some node, also several publications at once, and clears channels.

use std::time::Duration;

use steadfast_cluster::{ChannelError, Channels, Publish, StoreTerms};
use steadfast_log::{Durability, Priority};
use steadfast_store::Position;
use tokio::sync::oneshot;

use super::client::ANSWER_MAX;
use super::node::Node;
use super::plan::{ChannelRule, Keeps};
use super::sessions::channel_name;
use super::world::{Phase, World};
use crate::rng::Rng;

/// Rounds of a publisher, at most: all publications fit on a disk.
const ROUNDS: u64 = 400;

/// A publication to make.
struct Draft {
    number: u64,
    body: Vec<u8>,
    key: Option<u64>,
    /// `None`: it is not stored.
    durability: Option<Durability>,
}

/// The results of publications, in their order.
type Results = Vec<Result<Position, ChannelError>>;

/// Publishes in order, before the answers.
async fn publish(channels: Channels, channel: usize, rule: ChannelRule, drafts: Vec<Draft>) -> Results {
    let name = channel_name(channel);
    let mut accepted = Vec::new();
    for Draft { body, key, durability, .. } in drafts {
        let key = key.map(|key| key.to_string()).unwrap_or_default();
        let publish = Publish { body: body.into(), key, permit: None };
        let Some(durability) = durability else {
            accepted.push(channels.deliver(&name, publish).await);
            continue;
        };
        let terms = StoreTerms {
            history_size: rule.size,
            history_ttl_ms: rule.ttl_ms,
            durability,
            priority: Priority::Write,
            leaves_percent: 0,
        };
        accepted.push(match channels.open(&name) {
            Ok(handle) => channels.submit(&handle, terms, publish).await,
            Err(error) => Err(error),
        });
    }
    let mut results = Vec::new();
    for one in accepted {
        results.push(match one {
            Ok(accepted) => accepted.committed().await,
            Err(error) => Err(error),
        });
    }
    results
}

impl World {
    /// Runs a publisher while the cluster is busy.
    pub(crate) async fn publish(self, mut rng: Rng) {
        let env = self.executor.env();
        let mut keys = rng.next() >> 1;
        for _ in 0..ROUNDS {
            if *self.phase.borrow() != Phase::Busy {
                return;
            }
            let channel = rng.below(self.rules.len() as u64) as usize;
            let stored = self.rules[channel].keeps != Keeps::Nothing;
            if self.plan.users.clears && stored && rng.one_in(30) {
                self.clear(channel, &mut rng).await;
            } else if stored && rng.chance(self.plan.users.keyed) {
                keys += 1;
                self.publish_once(channel, keys, &mut rng).await;
            } else {
                let count = if rng.one_in(4) { rng.range(2, 12) } else { 1 };
                let drafts = (0..count).map(|_| self.draft(channel, None, &mut rng)).collect();
                self.send(channel, drafts, &mut rng).await;
            }
            env.sleep(self.plan.users.pause.mul_f64(rng.below(1000) as f64 / 1000.0)).await;
        }
    }

    fn draft(&self, channel: usize, key: Option<u64>, rng: &mut Rng) -> Draft {
        let len = rng.below(self.plan.users.body_bytes);
        let durability = match self.rules[channel].keeps {
            Keeps::Nothing => None,
            _ if key.is_none() && rng.one_in(12) => None,
            Keeps::Sync => Some(Durability::Sync),
            Keeps::Async => Some(Durability::Async),
            Keeps::Both => Some(*rng.pick(&[Durability::Sync, Durability::Async])),
        };
        let mut ledger = self.ledger.lock();
        let (number, body) = match durability {
            Some(durability) => ledger.request(channel, key, len, durability == Durability::Sync),
            None => ledger.request_unstored(channel, len),
        };
        Draft { number, body, key, durability }
    }

    /// Publishes at some node. Returns whether all succeeded.
    async fn send(&self, channel: usize, drafts: Vec<Draft>, rng: &mut Rng) -> bool {
        let at = rng.below(self.plan.shape.nodes as u64) as usize;
        let Some(node) = self.node(at) else { return false };
        let drawn: Vec<_> = drafts.iter().map(|one| (one.number, one.durability.is_some())).collect();
        self.note("publish", at, || format!("channel {channel}: {drawn:?}"));
        let work = publish(node.channels.clone(), channel, self.rules[channel], drafts);
        let Some(results) = self.at(node, work).await else { return false };
        let (mut all, mut newest) = (true, Position::default());
        for ((number, stored), result) in drawn.into_iter().zip(results) {
            match result {
                Ok(position) if stored => {
                    let mut ledger = self.ledger.lock();
                    ledger.published(channel, number, position);
                    if position.epoch == newest.epoch && position.offset <= newest.offset {
                        ledger.fail(|| format!("ORDER: {number} at {position:?} follows {newest:?} of its publisher"));
                    }
                    newest = position;
                }
                Ok(_) => {}
                Err(error) => {
                    all = false;
                    self.note("unpublished", at, || format!("channel {channel}: {number} {error:?}"));
                }
            }
        }
        all
    }

    /// Publishes with a key until it succeeds, each time at some node.
    async fn publish_once(&self, channel: usize, key: u64, rng: &mut Rng) {
        for _ in 0..4 {
            let draft = self.draft(channel, Some(key), rng);
            let done = self.send(channel, vec![draft], rng).await;
            if done && rng.one_in(2) {
                return;
            }
            self.executor.env().sleep(Duration::from_millis(rng.below(300))).await;
        }
    }

    async fn clear(&self, channel: usize, rng: &mut Rng) {
        let Some(node) = self.node(rng.below(self.plan.shape.nodes as u64) as usize) else { return };
        let up_to = self.ledger.lock().begin_clear(channel);
        let channels = node.channels.clone();
        let work = async move { channels.clear(&channel_name(channel)).await };
        if let Some(Ok(())) = self.at(node, work).await {
            self.ledger.lock().cleared(channel, up_to);
        }
    }

    /// Carries out a request in the process of a node; `None`: the process has ended.
    pub(super) async fn at<T: Send + 'static>(
        &self,
        node: Node,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (done, result) = oneshot::channel();
        node.machine.env().spawn("request", async move {
            let _ = done.send(work.await);
        });
        drop(node);
        match self.executor.env().timeout(ANSWER_MAX, result).await {
            Some(result) => result.ok(),
            None => {
                self.ledger.lock().fail(|| "HANG: a request gets no answer".to_owned());
                None
            }
        }
    }

    /// Publishes one more publication in each channel, and returns those without history.
    pub(crate) async fn publish_last(&self, rng: &mut Rng) -> Vec<(usize, u64)> {
        let mut unstored = Vec::new();
        for channel in 0..self.rules.len() {
            let draft = self.draft(channel, Some(rng.next()), rng);
            let number = draft.number;
            if draft.durability.is_none() {
                unstored.push((channel, number));
            }
            let draft = Draft { key: None, ..draft };
            if !self.send(channel, vec![draft], rng).await {
                self.ledger.lock().fail(|| format!("channel {channel} refuses a publication at rest"));
            }
        }
        unstored
    }
}
