//! Channels in a run: publishers and subscribers that work beside the clients of objects, and the look at what survived a start.
//!
//! The simulator listens where the live door does, at the store's [`ChannelSink`]: what is told there, in that order, is what the door's node
//! hands to its partitions under one lock. Subscribers do as its sessions do: they are told of what is published before
//! they ask where the channel stands and what they missed.

mod publisher;
mod subscriber;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::Env;
use steadfast_store::{ChannelSink, Position, Publication, Store, StoreError};
use tokio::sync::{Notify, mpsc, watch};

use crate::client::Outcome;
use crate::model::channels::{ALL, Channels, Keeping};
use crate::rng::Rng;
use crate::shared::Shared;
use publisher::Publisher;
use subscriber::Subscriber;

/// How a history that a fault keeps from being read is tried again.
const TRIES: u32 = 30;

/// What is published into a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mix {
    /// Durable publications only.
    Sync,
    /// Asynchronous ones only,
    Async,
    /// or both.
    Both,
}

/// How channels are used in a run.
#[derive(Debug, Clone)]
pub(crate) struct ChannelPlan {
    /// What each channel is for.
    pub(crate) mixes: Vec<Mix>,
    pub(crate) publishers: u64,
    /// How often each of them publishes in a life.
    pub(crate) times: u64,
    /// By subscriber: its channel.
    pub(crate) subscribers: Vec<usize>,
    pub(crate) body_max: u64,
    pub(crate) pause_us_max: u64,
    /// Now and then a channel is cleared.
    pub(crate) clears: bool,
}

impl ChannelPlan {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let mixes: Vec<_> =
            (0..rng.range(1, 3)).map(|_| *rng.pick(&[Mix::Sync, Mix::Sync, Mix::Async, Mix::Both])).collect();
        let channels = mixes.len() as u64;
        Self {
            mixes,
            publishers: rng.range(1, 3),
            times: rng.range(8, 40),
            subscribers: (0..rng.range(1, 4)).map(|_| rng.below(channels) as usize).collect(),
            body_max: *rng.pick(&[40, 600, 6_000]),
            pause_us_max: *rng.pick(&[1, 1_000, 20_000]),
            clears: rng.one_in(3),
        }
    }

    /// What a life keeps of each channel: now and then another configuration.
    fn keepings(&self, rng: &mut Rng) -> Vec<Keeping> {
        let keeping = |_| Keeping {
            size: *rng.pick(&[1, 5, 20, 1_000, 1_000]),
            ttl_ms: *rng.pick(&[50, 2_000, 3_600_000, 3_600_000, 3_600_000]),
        };
        self.mixes.iter().map(keeping).collect()
    }
}

/// What all lives of a run know of channels.
#[derive(Clone)]
pub(crate) struct Aired {
    pub(crate) model: Channels,
    /// By subscriber: where it is, once it was subscribed.
    pub(crate) positions: Vec<Option<Position>>,
}

impl Aired {
    pub(crate) fn new(plan: Option<&ChannelPlan>) -> Self {
        let (channels, subscribers) = plan.map_or((0, 0), |plan| (plan.mixes.len(), plan.subscribers.len()));
        Self { model: Channels::new(channels), positions: vec![None; subscribers] }
    }
}

impl Aired {
    /// What happened since `then` never happened.
    pub(crate) fn back_to(&mut self, then: &Self) {
        self.model.back_to(&then.model);
        self.positions.clone_from(&then.positions);
    }
}

/// What a channel is called.
pub(crate) fn channel_name(channel: usize) -> String {
    format!("news:{channel}")
}

/// One who is told: its channel, and what it was told and has not seen.
type Seat = (usize, VecDeque<(u32, Arc<Publication>)>);

/// Hands on to subscribers what the store tells.
pub(crate) struct Hub {
    shared: Arc<Shared>,
    env: Env,
    names: Vec<String>,
    seats: Mutex<BTreeMap<usize, Seat>>,
    told: Notify,
    /// The promise that was broken on the commit path.
    broken: Mutex<Option<String>>,
}

impl Hub {
    fn outcome(&self) -> Outcome {
        self.broken.lock().clone().map_or(Ok(()), Err)
    }

    /// From now on that subscriber is told.
    fn join(&self, subscriber: usize, channel: usize) {
        self.seats.lock().insert(subscriber, (channel, VecDeque::new()));
    }

    fn leave(&self, subscriber: usize) {
        self.seats.lock().remove(&subscriber);
    }

    /// What it was told since it asked last.
    fn take(&self, subscriber: usize) -> VecDeque<(u32, Arc<Publication>)> {
        self.seats.lock().get_mut(&subscriber).map(|seat| std::mem::take(&mut seat.1)).unwrap_or_default()
    }

    fn say(&self, what: &'static str, channel: usize, offset: u64, told: impl FnOnce() -> String) {
        say(&self.shared, &self.env, what, channel, offset, told);
    }
}

fn say(shared: &Shared, env: &Env, what: &'static str, channel: usize, number: u64, told: impl FnOnce() -> String) {
    shared.trace.say(env.now().as_nanos() as u64, what, [channel as u64, number, 0], || {
        format!("channel {channel}: {}", told())
    });
}

impl ChannelSink for Hub {
    fn published(&self, channel: &Arc<str>, epoch: u32, publication: &Arc<Publication>) {
        let Some(number) = self.names.iter().position(|name| **name == **channel) else {
            self.broken.lock().get_or_insert(format!("WRONG: something is delivered in {channel}"));
            return;
        };
        self.say("delivered", number, publication.offset, || format!("{epoch} {}", publication.offset));
        if let Err(what) = self.shared.channels.lock().model.delivered(number, epoch, publication) {
            self.broken.lock().get_or_insert(what);
        }
        self.shared.counts.lock().delivered += 1;
        for (channel, told) in self.seats.lock().values_mut().filter(|seat| seat.0 == number) {
            debug_assert_eq!(*channel, number);
            told.push_back((epoch, publication.clone()));
        }
        self.told.notify_waiters();
    }
}

/// Looks at every channel after a start and listens from then on. `None` where the disk that they are on cannot be used now, or nothing
/// can be read of it.
pub(crate) async fn survey(
    shared: &Arc<Shared>,
    store: &Store,
    env: &Env,
    plan: &ChannelPlan,
) -> Outcome<Option<Arc<Hub>>> {
    let names: Vec<_> = (0..plan.mixes.len()).map(channel_name).collect();
    let hub = Arc::new(Hub {
        shared: shared.clone(),
        env: env.clone(),
        names: names.clone(),
        seats: Mutex::default(),
        told: Notify::new(),
        broken: Mutex::default(),
    });
    let sink: Arc<dyn ChannelSink> = hub.clone();
    store.set_channel_sink(&sink);
    for (number, name) in names.iter().enumerate() {
        let Some(history) = read_all(shared, store, name).await? else { return Ok(None) };
        say(shared, env, "survived", number, history.position.offset, || format!("{:?}", history.position));
        shared.channels.lock().model.restarted(number, &history, env.wall_ms())?;
    }
    Ok(Some(hub))
}

/// All that a channel keeps; `None` when a fault is the reason that it cannot be read.
async fn read_all(shared: &Shared, store: &Store, name: &str) -> Outcome<Option<steadfast_store::History>> {
    for _ in 0..TRIES {
        let read = match store.channel(name) {
            Ok(handle) => handle.history(ALL).await,
            Err(error) => Err(error),
        };
        match read {
            Ok(history) => return Ok(Some(history)),
            Err(error @ StoreError::Unavailable(_)) => return shared.read_may_fail(&error).map(|()| None),
            Err(error) => shared.read_may_fail(&error).map_err(|what| format!("{name}: {what}"))?,
        }
    }
    Ok(None)
}

/// Publishes and listens, as much as is planned for a life.
pub(crate) async fn work(hub: Arc<Hub>, store: Store, env: Env, mut rng: Rng, plan: ChannelPlan) -> Outcome {
    let (over, end) = watch::channel(false);
    let keepings = plan.keepings(&mut rng);
    let (done, mut outcomes) = mpsc::channel::<Outcome>(16);
    for number in 0..plan.publishers {
        let (env, store, shared) = (env.clone(), store.clone(), hub.shared.clone());
        let (plan, keepings) = (plan.clone(), keepings.clone());
        let mut publisher = Publisher { shared, store, env: env.clone(), rng: rng.fork(), number, plan, keepings };
        let done = done.clone();
        env.spawn("publisher", async move {
            let outcome = publisher.work().await;
            let _ = done.send(outcome).await;
        });
    }
    drop(done);
    let (left, mut leaving) = mpsc::channel::<Outcome>(16);
    for (number, channel) in plan.subscribers.iter().enumerate() {
        let (hub, store, rng, end, left) = (hub.clone(), store.clone(), rng.fork(), end.clone(), left.clone());
        let mut subscriber = Subscriber { hub, store, env: env.clone(), rng, number, channel: *channel };
        env.spawn("subscriber", async move {
            let outcome = subscriber.follow(&end).await;
            let _ = left.send(outcome).await;
        });
    }
    drop(left);
    while let Some(outcome) = outcomes.recv().await {
        outcome?;
    }
    // What was given up midway may still come.
    env.sleep(Duration::from_millis(rng.below(100))).await;
    over.send_replace(true);
    while let Some(outcome) = leaving.recv().await {
        outcome?;
    }
    hub.outcome()
}
