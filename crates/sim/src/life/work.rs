//! The work of a life: clients, tasks in the background, and the faults that strike meanwhile.

use std::sync::Arc;
use std::time::Duration;

use steadfast_store::Store;

use super::Machine;
use crate::channels;
use crate::client::Client;
use crate::events;
use crate::members::MOVES_WAIT;
use crate::operator::{BackgroundTask, Operator};
use crate::outcome::Outcome;

/// The tasks of a life, besides its clients.
pub(super) struct Background {
    /// Changes the disks of the pool.
    pub(super) operator: Option<BackgroundTask>,
    /// Receives the events of mirrored buckets.
    listener: Option<BackgroundTask>,
    /// The publishers and subscribers.
    channels: Option<BackgroundTask>,
}

impl Machine {
    /// Starts the tasks in the background.
    pub(super) async fn begin_background(
        &mut self,
        store: &Store,
        whole: bool,
        hub: Option<Arc<channels::Hub>>,
    ) -> Outcome<Background> {
        let operator = if self.idle || !whole { None } else { self.operator(store) };
        let listener = self.shared.listened.then(|| {
            let work = events::listen(self.shared.clone(), store.clone(), self.env(), self.rng.fork());
            BackgroundTask::begin(&self.env(), "listener", work)
        });
        let channels = self.start_channels(store, hub);
        Ok(Background { operator, listener, channels })
    }

    /// Waits for the tasks that must finish, and checks their outcomes except the operator's.
    pub(super) async fn end_background(&self, background: &Background) -> Outcome {
        if let Some(listener) = &background.listener {
            listener.outcome()?;
        }
        if let Some(channels) = &background.channels {
            self.env().timeout(MOVES_WAIT, channels.ended()).await.ok_or("CHANNELS: their clients do not finish")?;
            channels.outcome()?;
        }
        if let (Some(operator), true) = (&background.operator, self.last) {
            self.env().timeout(MOVES_WAIT, operator.ended()).await.ok_or("MOVES: they do not finish")?;
        }
        Ok(())
    }

    /// Starts the operator, if the plan has changes of disks.
    fn operator(&mut self, store: &Store) -> Option<BackgroundTask> {
        let moves = self.plan.moves.as_ref()?;
        let mut operator = Operator {
            shared: self.shared.clone(),
            plan: self.plan.clone(),
            store: store.clone(),
            env: self.env(),
            spare: moves.spare.map(|spare| self.bays[spare].clone()),
            rng: self.rng.fork(),
        };
        Some(BackgroundTask::begin(&self.env(), "operator", async move { operator.work().await }))
    }

    /// Starts the publishers and subscribers, if the run has channels.
    fn start_channels(&mut self, store: &Store, hub: Option<Arc<channels::Hub>>) -> Option<BackgroundTask> {
        let (Some(hub), Some(plan), false) = (hub, self.plan.channels.clone(), self.idle) else { return None };
        let (store, env, rng) = (store.clone(), self.env(), self.rng.fork());
        Some(BackgroundTask::begin(&self.env(), "channels", channels::work(hub, store, env, rng, plan)))
    }

    /// Starts the faults that strike while clients work.
    pub(super) fn begin_faults(&mut self) {
        for (disk, bay) in self.bays.iter().enumerate().filter(|(_, bay)| !bay.missing) {
            let device = self.shared.devices[disk].clone();
            device.lock().rates = bay.plan.rates;
            if let Some(fast) = &bay.plan.fast {
                bay.array.lock().rates(fast.rates);
                bay.start_faults(self.rng.fork());
            }
            if let Some(after) = self.fates[disk].dies {
                let env = self.executor.env();
                env.clone().spawn("death", async move {
                    env.sleep(after).await;
                    device.lock().die();
                });
            }
        }
    }

    /// Runs the clients until all have finished.
    pub(super) async fn work(&mut self, store: &Store) -> Outcome {
        let env = self.env();
        let (done, mut outcomes) = tokio::sync::mpsc::channel::<Outcome>(64);
        for number in 1..=self.plan.clients {
            let client = Client { shared: self.shared.clone(), store: store.clone(), env: env.clone(), number };
            let (mut rng, plan, done) = (self.rng.fork(), self.plan.clone(), done.clone());
            env.spawn("client", async move {
                let mut outcome = Ok(());
                for _ in 0..plan.requests_each {
                    outcome = client.act_or_leave(&mut rng).await;
                    if outcome.is_err() {
                        break;
                    }
                    if plan.think_us_max > 0 {
                        client.env.sleep(Duration::from_micros(rng.below(plan.think_us_max))).await;
                    }
                }
                let _ = done.send(outcome).await;
            });
        }
        drop(done);
        for disk in 0..self.bays.len() {
            if self.plan.disks[disk].squeezed && !self.bays[disk].missing {
                self.squeeze(disk);
            }
        }
        while let Some(outcome) = outcomes.recv().await {
            outcome?;
        }
        Ok(())
    }

    /// Makes the file system full for a while.
    fn squeeze(&mut self, disk: usize) {
        let (env, device) = (self.env(), self.shared.devices[disk].clone());
        let mut rng = self.rng.fork();
        env.clone().spawn("squeeze", async move {
            env.sleep(Duration::from_micros(rng.below(100_000))).await;
            {
                let mut platter = device.lock();
                platter.room_bytes = platter.len() + rng.below(4 << 20);
            }
            env.sleep(Duration::from_micros(rng.below(3_000_000))).await;
            let mut platter = device.lock();
            platter.room_bytes = platter.capacity_bytes();
        });
    }
}
