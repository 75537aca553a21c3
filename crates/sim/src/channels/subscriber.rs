//! A subscriber: follows a channel, goes away and comes back, through restarts, and goes on from where it was.

use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::Env;
use steadfast_store::{ChannelHandle, HistoryQuery, Position, Publication, Store};
use tokio::sync::watch;

use super::{Hub, TRIES, channel_name};
use crate::client::Outcome;
use crate::rng::Rng;

/// One subscriber in one life.
pub(super) struct Subscriber {
    pub(super) hub: Arc<Hub>,
    pub(super) store: Store,
    pub(super) env: Env,
    pub(super) rng: Rng,
    pub(super) number: usize,
    pub(super) channel: usize,
}

impl Subscriber {
    /// Comes and goes until nobody publishes any more; then it must be where the channel is. An error is a broken promise.
    pub(super) async fn follow(&mut self, over: &watch::Receiver<bool>) -> Outcome {
        let mut tries = 0;
        loop {
            let last = *over.borrow();
            self.hub.join(self.number, self.channel);
            let done = self.session(last).await;
            self.hub.leave(self.number);
            let done = done?;
            if last && (done || tries == TRIES) {
                return Ok(());
            }
            tries += u32::from(last);
            self.env.sleep(Duration::from_micros(self.rng.below(30_000))).await;
        }
    }

    fn position(&self) -> Option<Position> {
        self.hub.shared.channels.lock().positions[self.number]
    }

    fn is_at(&self, position: Position) {
        self.hub.shared.channels.lock().positions[self.number] = Some(position);
    }

    /// One subscription, from its beginning to its end. False when a fault kept it from being made.
    async fn session(&mut self, last: bool) -> Outcome<bool> {
        let hub = self.hub.clone();
        let handle = match self.store.channel(&channel_name(self.channel)) {
            Ok(handle) => handle,
            Err(error) => return hub.shared.read_may_fail(&error).map(|()| false),
        };
        if self.rng.one_in(2) {
            self.env.sleep(Duration::from_micros(self.rng.below(3_000))).await;
        }
        let begins = match self.position() {
            None => {
                let position = match handle.position() {
                    Ok(position) => position,
                    Err(error) => return hub.shared.read_may_fail(&error).map(|()| false),
                };
                self.is_at(position);
                position
            }
            Some(since) => match self.recover(&handle, since, last).await? {
                Some(position) => position,
                None => return Ok(false),
            },
        };
        if self.rng.one_in(2) {
            self.env.sleep(Duration::from_micros(self.rng.below(3_000))).await;
        }
        let (wanted, mut seen) = (self.rng.range(1, 40), 0);
        loop {
            let told = hub.told.notified();
            for (epoch, publication) in hub.take(self.number) {
                // What it was given as missed is not given again.
                if publication.offset > begins.offset {
                    self.see(epoch, &publication)?;
                    seen += 1;
                }
            }
            hub.outcome()?;
            let (stands, is) = match handle.position() {
                Ok(stands) => (stands, self.position()),
                Err(error) => return hub.shared.read_may_fail(&error).map(|()| false),
            };
            if is != Some(stands) || hub.shared.channels.lock().model.stands(self.channel) != stands {
                let told = hub.shared.channels.lock().model.stands(self.channel);
                return Err(format!(
                    "GAP: channel {} stands at {stands:?}, its subscriber at {is:?}, told {told:?}",
                    self.channel
                ));
            }
            if last || seen >= wanted {
                return Ok(true);
            }
            let patience = Duration::from_micros(self.rng.below(100_000));
            if self.env.timeout(patience, told).await.is_none() {
                return Ok(true);
            }
        }
    }

    /// Goes on from `since`, as far as that can be done; where the subscription begins then.
    async fn recover(&mut self, handle: &ChannelHandle, since: Position, last: bool) -> Outcome<Option<Position>> {
        let shared = self.hub.shared.clone();
        let limit = if last { usize::MAX } else { *self.rng.pick(&[3, 1_000, 1_000]) };
        let query = HistoryQuery { since: Some(since), limit, reverse: false };
        let before = shared.channels.lock().model.before(self.channel);
        let history = match handle.history(query).await {
            Ok(history) => history,
            Err(error) => return shared.read_may_fail(&error).map(|()| None),
        };
        let position = history.position;
        super::say(&shared, &self.env, "recover", self.channel, position.offset, || {
            format!("{since:?} of {position:?}: {} {}", history.publications.len(), history.complete)
        });
        if since.epoch == position.epoch && since.offset > position.offset {
            return Err(format!("LOST: channel {} stands at {position:?}, its subscriber at {since:?}", self.channel));
        }
        shared.channels.lock().model.told(self.channel, &before, &query, &history, self.env.wall_ms())?;
        let reaches = history.publications.last().map_or(since.offset, |last| last.offset);
        if history.complete && reaches == position.offset {
            for publication in &history.publications {
                self.see(position.epoch, publication)?;
            }
            shared.counts.lock().recoveries += 1;
        } else {
            // It knows that it has missed something, and begins anew.
            self.is_at(position);
            shared.counts.lock().recoveries_refused += 1;
        }
        Ok(Some(position))
    }

    /// Sees the next publication.
    fn see(&self, epoch: u32, publication: &Publication) -> Outcome {
        let is = self.position();
        let (next, channel) = (Position { epoch, offset: publication.offset }, self.channel);
        if is.is_some_and(|is| is.epoch != epoch || is.offset + 1 != next.offset) {
            return Err(format!("GAP: a subscriber of channel {channel} at {is:?} is given {next:?}"));
        }
        self.hub.shared.channels.lock().model.saw(channel, epoch, publication)?;
        self.is_at(next);
        Ok(())
    }
}
