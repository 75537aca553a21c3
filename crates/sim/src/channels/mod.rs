//! Channels in a run: publishers and subscribers that work alongside the clients of objects, and
//! the check of channels after a start.
//!
//! The simulator is the store's [`ChannelSink`], as the node of the live server is. The node hands
//! each publication to its partitions in that order, under one lock. A simulated subscriber acts as
//! a live session: it receives new publications before it queries the position and the history of
//! the channel.

mod publisher;
mod subscriber;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::Env;
use steadfast_store::{ChannelSink, Publication, Store, StoreError};
use tokio::sync::{Notify, mpsc, watch};

use crate::model::channels::ALL;
use crate::outcome::Outcome;
use crate::plan::ChannelPlan;
use crate::rng::Rng;
use crate::shared::Shared;
use publisher::Publisher;
use subscriber::Subscriber;

/// Attempts to read a history while a fault prevents it.
const TRIES: u32 = 30;

/// Name of a channel.
pub(crate) fn channel_name(channel: usize) -> String {
    format!("news:{channel}")
}

/// A subscriber's channel, and the publications that it has received but not processed.
type Inbox = (usize, VecDeque<(u32, Arc<Publication>)>);

/// Distributes the publications of the store to the subscribers.
pub(crate) struct Hub {
    shared: Arc<Shared>,
    env: Env,
    names: Vec<String>,
    inboxes: Mutex<BTreeMap<usize, Inbox>>,
    notify: Notify,
    /// The first violation found on the commit path.
    violation: Mutex<Option<String>>,
}

impl Hub {
    fn outcome(&self) -> Outcome {
        self.violation.lock().clone().map_or(Ok(()), Err)
    }

    /// Starts the delivery to a subscriber.
    fn join(&self, subscriber: usize, channel: usize) {
        self.inboxes.lock().insert(subscriber, (channel, VecDeque::new()));
    }

    fn leave(&self, subscriber: usize) {
        self.inboxes.lock().remove(&subscriber);
    }

    /// Takes the publications delivered since the last call.
    fn take(&self, subscriber: usize) -> VecDeque<(u32, Arc<Publication>)> {
        self.inboxes.lock().get_mut(&subscriber).map(|inbox| std::mem::take(&mut inbox.1)).unwrap_or_default()
    }

    fn note(&self, what: &'static str, channel: usize, offset: u64, text: impl FnOnce() -> String) {
        note(&self.shared, &self.env, what, channel, offset, text);
    }
}

fn note(shared: &Shared, env: &Env, what: &'static str, channel: usize, number: u64, text: impl FnOnce() -> String) {
    shared.trace.note_with_text(env.now().as_nanos() as u64, what, [channel as u64, number, 0], || {
        format!("channel {channel}: {}", text())
    });
}

impl ChannelSink for Hub {
    fn published(&self, channel: &Arc<str>, epoch: u32, publication: &Arc<Publication>) {
        let Some(number) = self.names.iter().position(|name| **name == **channel) else {
            self.violation.lock().get_or_insert(format!("WRONG: the store delivers to the unknown channel {channel}"));
            return;
        };
        self.note("delivered", number, publication.offset, || format!("{epoch} {}", publication.offset));
        if let Err(what) = self.shared.channels.lock().model.delivered(number, epoch, publication) {
            self.violation.lock().get_or_insert(what);
        }
        self.shared.counts.lock().delivered += 1;
        for (channel, queue) in self.inboxes.lock().values_mut().filter(|inbox| inbox.0 == number) {
            debug_assert_eq!(*channel, number);
            queue.push_back((epoch, publication.clone()));
        }
        self.notify.notify_waiters();
    }
}

/// Checks every channel after a start and receives its publications from then on. Returns `None` if
/// the disk of the channels is unavailable or a fault prevents every read.
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
        inboxes: Mutex::default(),
        notify: Notify::new(),
        violation: Mutex::default(),
    });
    let sink: Arc<dyn ChannelSink> = hub.clone();
    store.channels().set_sink(&sink);
    for (number, name) in names.iter().enumerate() {
        let Some(history) = read_all(shared, store, name).await? else { return Ok(None) };
        note(shared, env, "survived", number, history.position.offset, || format!("{:?}", history.position));
        shared.channels.lock().model.restarted(number, &history, env.wall_ms())?;
    }
    Ok(Some(hub))
}

/// The whole history of a channel; `None` if a fault prevents the read.
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

/// Runs the publishers and subscribers of one life.
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
    // Cancelled publications may still arrive.
    env.sleep(Duration::from_millis(rng.below(100))).await;
    over.send_replace(true);
    while let Some(outcome) = leaving.recv().await {
        outcome?;
    }
    hub.outcome()
}
