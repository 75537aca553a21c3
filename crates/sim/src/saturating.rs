//! Saturating clients: whenever the log gathers a frame, asynchronous commits are pending. An
//! acknowledged commit must still be durable after the asynchronous window and a few flushes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use steadfast_log::Durability;
use steadfast_store::Condition;

use crate::client::{Client, PendingWrite};
use crate::model::{Demand, Piece, Pieces, bytes_of};
use crate::outcome::Outcome;
use crate::plan::{Plan, SaturatingPlan};
use crate::rng::Rng;
use crate::shared::Shared;
use crate::tags::attributes;

/// Maximum disk requests between the end of the window and the end of the flush: the frame in
/// flight, one more, their flush, and the requests queued ahead of them.
const REQUESTS: u64 = 12;

impl Plan {
    /// Replaces the clients of the plan by saturating clients.
    pub(crate) fn never_pause(&mut self, rng: &mut Rng) {
        let disk = &mut self.disks[0];
        let (flush_us, io_us) = (*rng.pick(&[200, 1_000]), *rng.pick(&[200, 400]));
        disk.profile = crate::disk::DiskProfile { flush_us, io_us, steady: true, growable: false, ..disk.profile };
        // Enough space that no client waits for it.
        disk.capacity_bytes = (1 << 20) + 40 * (1 << 20);
        self.format.extent_bytes = Some(1 << 20);
        (self.clients, self.drain, self.index.files) = (0, false, false);
        self.store.log.scrub.interval = Duration::from_secs(5);
        self.store.log.pending_bytes_max = 8 << 20;
        let lag_max = self.store.log.async_window + Duration::from_micros(REQUESTS * (flush_us + io_us) * 3 / 2);
        let frames = 2 * lag_max.as_micros() as u64 / io_us;
        let clients = rng.range(8, 16);
        self.saturating = Some(SaturatingPlan { clients, times: (frames / 2).clamp(40, 400), lag_max });
    }
}

/// Runs the saturating clients for one life.
pub(crate) async fn work(client: &Client, plan: SaturatingPlan, rng: &mut Rng) -> Outcome {
    let (done, mut outcomes) = tokio::sync::mpsc::channel::<Outcome>(64);
    for number in 0..plan.clients {
        let client = Client {
            shared: client.shared.clone(),
            store: client.store.clone(),
            env: client.env.clone(),
            number: 100 + number,
        };
        let (mut rng, done) = (rng.fork(), done.clone());
        client.env.clone().spawn("client", async move {
            let mut outcome = Ok(());
            for _ in 0..plan.times {
                outcome = client.put_async(&mut rng).await;
                if outcome.is_err() {
                    break;
                }
            }
            let _ = done.send(outcome).await;
        });
    }
    drop(done);
    while let Some(outcome) = outcomes.recv().await {
        outcome?;
    }
    let lag = Duration::from_micros(client.store.status().log.async_lag_us_max);
    if lag > plan.lag_max {
        return Err(format!("LAG: an asynchronous commit was flushed after {lag:?}, later than {:?}", plan.lag_max));
    }
    Ok(())
}

impl Client {
    async fn put_async(&self, rng: &mut Rng) -> Outcome {
        let key = self.key(rng);
        let size = rng.below(300);
        let tag = self.shared.model.lock().new_tag();
        let pieces: Pieces = Arc::from([Piece { id: tag, len: size }]);
        let mut writer = match self.store.at(&key.0, &key.1).writer(Some(size)).await {
            Ok(writer) => writer,
            Err(error) => return self.shared.write_may_fail(&error).map(drop),
        };
        if let Err(error) = writer.write(Bytes::from(bytes_of(&pieces, 0, size as usize))).await {
            return self.shared.write_may_fail(&error).map(drop);
        }
        let write = {
            let mut model = self.shared.model.lock();
            let start = model.tick();
            let id = model.begin_put(&key, tag, vec![pieces], Demand::None, true);
            PendingWrite { key, start, id, demand: Demand::None }
        };
        let answer = writer.commit(attributes(tag), Condition::None, Some(Durability::Async)).await;
        if answer.is_ok() {
            self.shared.unflushed.lock().push((self.env.now(), write.id.clone()));
        }
        self.settle(&write, answer)
    }
}

impl Shared {
    /// Handles a power cut at `now`: commits acknowledged at least `lag_max` earlier are durable.
    pub(crate) fn flushed_by(&self, now: Duration, plan: Option<SaturatingPlan>) {
        let unflushed = std::mem::take(&mut *self.unflushed.lock());
        let Some(plan) = plan else { return };
        let mut model = self.model.lock();
        for (_, id) in unflushed.iter().filter(|(answered, _)| *answered + plan.lag_max <= now) {
            model.prove(id);
        }
    }
}
