//! A publisher: publishes into channels, one publication or several at once, sometimes cancels, and
//! clears channels.

use std::time::Duration;

use bytes::Bytes;
use std::sync::Arc;
use steadfast_flow::Env;
use steadfast_log::{Durability, Priority};
use steadfast_store::{NewPublication, Store};

use super::channel_name;
use crate::model::channels::{Keeping, body_of};
use crate::outcome::Outcome;
use crate::plan::{ChannelPlan, Mix};
use crate::rng::Rng;
use crate::shared::Shared;

/// One publisher in one life.
pub(super) struct Publisher {
    pub(super) shared: Arc<Shared>,
    pub(super) store: Store,
    pub(super) env: Env,
    pub(super) rng: Rng,
    pub(super) number: u64,
    pub(super) plan: ChannelPlan,
    pub(super) keepings: Vec<Keeping>,
}

impl Publisher {
    /// Runs the publisher for one life. An error is a violation.
    pub(super) async fn work(&mut self) -> Outcome {
        for _ in 0..self.plan.times {
            let channel = self.rng.below(self.plan.mixes.len() as u64) as usize;
            match self.rng.below(40) {
                0 if self.plan.clears => self.clear(channel).await?,
                1..=6 => {
                    let count = self.rng.range(2, 12);
                    self.publish(channel, count).await?;
                }
                7..=8 => {
                    let patience = Duration::from_micros(self.rng.below(2_000));
                    let env = self.env.clone();
                    // A cancelled publisher gets no outcome.
                    if let Some(outcome) = env.timeout(patience, self.publish(channel, 1)).await {
                        outcome?;
                    }
                }
                _ => self.publish(channel, 1).await?,
            }
            let pause = self.rng.below(self.plan.pause_us_max);
            self.env.sleep(Duration::from_micros(pause)).await;
        }
        Ok(())
    }

    fn note(&self, what: &'static str, channel: usize, id: u64) {
        let number = self.number;
        super::note(&self.shared, &self.env, what, channel, id, || format!("publisher {number}: {id}"));
    }

    /// Submits `count` publications, each before the previous one is acknowledged.
    async fn publish(&mut self, channel: usize, count: u64) -> Outcome {
        let shared = self.shared.clone();
        let handle = match self.store.channel(&channel_name(channel)) {
            Ok(handle) => handle,
            Err(error) => return shared.write_may_fail(&error).map(drop),
        };
        let mut answers = Vec::new();
        for _ in 0..count {
            let durability = match self.plan.mixes[channel] {
                Mix::Sync => Durability::Sync,
                Mix::Async => Durability::Async,
                Mix::Both => *self.rng.pick(&[Durability::Sync, Durability::Async]),
            };
            let (len, keeping) = (self.rng.below(self.plan.body_max), self.keepings[channel]);
            let id = shared.channels.lock().model.ask(channel, len, durability == Durability::Sync, keeping);
            self.note("publish", channel, id);
            let new = NewPublication {
                body: Bytes::from(body_of(id, len)),
                history_size: keeping.size,
                history_ttl_ms: keeping.ttl_ms,
                durability,
                priority: Priority::Write,
                key: None,
            };
            match handle.submit(new).await {
                Ok(answer) => answers.push((id, answer)),
                Err(error) => {
                    if shared.write_may_fail(&error)? {
                        shared.channels.lock().model.refused(id);
                    }
                    break;
                }
            }
        }
        let mut last = 0;
        for (id, answer) in answers {
            match answer.committed().await {
                Ok(published) => {
                    self.note("published", channel, id);
                    shared.channels.lock().model.answered(id, &published)?;
                    shared.counts.lock().publications += 1;
                    if published.position.offset <= last {
                        return Err(format!("ORDER: {published:?} follows {last} of the same publisher"));
                    }
                    last = published.position.offset;
                }
                Err(error) => shared.write_may_fail(&error).map(drop)?,
            }
        }
        Ok(())
    }

    async fn clear(&mut self, channel: usize) -> Outcome {
        let handle = match self.store.channel(&channel_name(channel)) {
            Ok(handle) => handle,
            Err(error) => return self.shared.write_may_fail(&error).map(drop),
        };
        let up_to = self.shared.channels.lock().model.begin_clear(channel);
        self.note("clear", channel, up_to);
        match handle.clear().await {
            Ok(()) => {
                self.note("cleared", channel, up_to);
                self.shared.channels.lock().model.cleared(channel, up_to);
                Ok(())
            }
            // The clear may still take effect.
            Err(error) => self.shared.write_may_fail(&error).map(drop),
        }
    }
}
