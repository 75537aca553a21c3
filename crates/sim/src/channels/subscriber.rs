//! A subscriber: follows a channel, unsubscribes, and resumes from its position, also across
//! restarts.

use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::Env;
use steadfast_store::{ChannelHandle, HistoryQuery, Position, Publication, Store};
use tokio::sync::watch;

use super::{Hub, TRIES, channel_name};
use crate::outcome::Outcome;
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
    /// Subscribes and unsubscribes until the publishers have finished. Then its position must equal
    /// the channel's. An error is a violation.
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

    fn set_position(&self, position: Position) {
        self.hub.shared.channels.lock().positions[self.number] = Some(position);
    }

    /// One subscription, from start to end. Returns false if a fault prevented it.
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
                self.set_position(position);
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
            let notified = hub.notify.notified();
            for (epoch, publication) in hub.take(self.number) {
                // The recovery already delivered these publications.
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
                let expected = hub.shared.channels.lock().model.stands(self.channel);
                return Err(format!(
                    "GAP: channel {} is at {stands:?}, its subscriber at {is:?}, expected {expected:?}",
                    self.channel
                ));
            }
            if last || seen >= wanted {
                return Ok(true);
            }
            let patience = Duration::from_micros(self.rng.below(100_000));
            if self.env.timeout(patience, notified).await.is_none() {
                return Ok(true);
            }
        }
    }

    /// Resumes from `since` if the history allows it. Returns the position at which the
    /// subscription starts.
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
        super::note(&shared, &self.env, "recover", self.channel, position.offset, || {
            format!("{since:?} of {position:?}: {} {}", history.publications.len(), history.complete)
        });
        if since.epoch == position.epoch && since.offset > position.offset {
            return Err(format!("LOST: channel {} is at {position:?}, its subscriber at {since:?}", self.channel));
        }
        shared.channels.lock().model.check_history(self.channel, &before, &query, &history, self.env.wall_ms())?;
        let reaches = history.publications.last().map_or(since.offset, |last| last.offset);
        if history.complete && reaches == position.offset {
            for publication in &history.publications {
                self.see(position.epoch, publication)?;
            }
            shared.counts.lock().recoveries += 1;
        } else {
            // The subscriber knows of the gap and starts anew.
            self.set_position(position);
            shared.counts.lock().recoveries_refused += 1;
        }
        Ok(Some(position))
    }

    /// Processes the next publication.
    fn see(&self, epoch: u32, publication: &Publication) -> Outcome {
        let is = self.position();
        let (next, channel) = (Position { epoch, offset: publication.offset }, self.channel);
        if is.is_some_and(|is| is.epoch != epoch || is.offset + 1 != next.offset) {
            return Err(format!("GAP: a subscriber of channel {channel} at {is:?} receives {next:?}"));
        }
        self.hub.shared.channels.lock().model.saw(channel, epoch, publication)?;
        self.set_position(next);
        Ok(())
    }
}
