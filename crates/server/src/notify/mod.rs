//! Events of objects, from the store to those who want to know: channels and webhooks.
//!
//! The store hands events out in order; each is published into the channels that it is for, and into a queue for each of its webhooks (a channel of
//! the server's own, `webhook.rs`). When those are durable, the store may forget it. A crash in between brings it again: what a channel's history
//! shows to have been published is not published twice.
//!
//! Each target goes at its own pace (a *lane*): one that cannot be published into keeps its events and nobody else's, until as many events wait as may be.

mod letters;
mod message;
mod post;
mod targets;
mod webhook;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::FuturesUnordered;
use steadfast_flow::Env;
use steadfast_live::protocol::message::Publication;
use steadfast_live::{Node, Submission, from_stored, to_stored};
use steadfast_log::{Durability, Priority};
use steadfast_store::{Event, FOR_EVER_MS, HistoryQuery, NewPublication, Store};
use tokio::sync::{oneshot, watch};

use crate::config::Config;
use message::{Id, Message};
pub(crate) use targets::Mirrors;
use targets::Target;
pub(crate) use targets::Targets;
pub(crate) use webhook::Webhooks;

/// Events that are forwarded together, and of one target.
const TOGETHER: usize = 256;

/// What was forwarded is removed from the store by a record of its own, when nothing comes into its slot for so long.
const TRIM_AFTER: Duration = Duration::from_secs(1);

/// After a failure, until the next attempt: at first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How many publications of a channel are looked at for events that come again after a crash.
const LOOKED_AT: usize = 10_000;

/// An event that has to reach a channel.
struct Delivery {
    to: To,
    publication: Publication,
}

/// Where it is published.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum To {
    /// Into a channel of the live door.
    Channel(String),
    /// Into a webhook's queue.
    Webhook(String),
}

/// The events of each outbox and rule that a channel's history shows, by channel.
type Published = HashMap<String, HashMap<String, Shown>>;

/// Events of one outbox that a history shows, by their offsets.
#[derive(Default)]
struct Shown(BTreeSet<u64>);

impl Shown {
    /// Whether the event was published: it is shown, or older than all that is. Between others there may be one that is not: its publication
    /// failed, and that of a later one did not.
    fn has(&self, offset: u64) -> bool {
        self.0.contains(&offset) || self.0.first().is_some_and(|oldest| offset < *oldest)
    }
}

/// See the module.
pub(crate) struct Forwarder {
    store: Store,
    node: Option<Arc<Node>>,
    mirrors: Mirrors,
    webhooks: Arc<Webhooks>,
    region: String,
    /// Events that may be on their way at a time.
    together_max: usize,
    env: Env,
}

/// An event on its way to its targets.
struct Pending {
    event: Event,
    /// Targets that do not have it yet.
    left: usize,
}

/// What is on its way to one target, in order, by the numbers of its events.
#[derive(Default)]
struct Lane {
    waiting: VecDeque<(u64, Delivery)>,
    busy: bool,
}

impl Forwarder {
    /// Prepares it.
    ///
    /// # Errors
    /// A webhook whose URL cannot be used, for people.
    pub(crate) fn new(
        config: &Config,
        store: &Store,
        node: Option<Arc<Node>>,
        region: String,
        env: &Env,
    ) -> Result<Self, String> {
        let mirrors = node.as_ref().map(|node| Mirrors::of(node.config())).unwrap_or_default();
        let webhooks = Arc::new(Webhooks::new(&config.events, store, env)?);
        let together_max = config.events.waiting.max(TOGETHER);
        Ok(Self { store: store.clone(), node, mirrors, webhooks, region, together_max, env: env.clone() })
    }

    /// Forwards events until `stop` is set; what it returns is told when that has ended. What is not forwarded then is forwarded after the next start.
    pub(crate) fn start(self, stop: &watch::Receiver<bool>) -> oneshot::Receiver<()> {
        self.webhooks.start(stop);
        let (tx, ended) = oneshot::channel();
        let mut stop = stop.clone();
        let (env, store) = (self.env.clone(), self.store.clone());
        self.env.clone().spawn_critical("events", async move {
            let trimming = async {
                loop {
                    env.sleep(TRIM_AFTER).await;
                    trim(&store, TRIM_AFTER).await;
                }
            };
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => {}
                () = self.run() => {}
                () = trimming => {}
            }
            trim(&store, Duration::ZERO).await;
            let _ = tx.send(());
        });
        ended
    }

    /// The webhooks, for the status.
    pub(crate) fn webhooks(&self) -> Arc<Webhooks> {
        self.webhooks.clone()
    }

    async fn run(self) {
        let mut published = Some(HashMap::new());
        // Events in the order in which they came, from the first that is not done, and its number.
        let (mut pending, mut first): (VecDeque<Pending>, u64) = (VecDeque::new(), 0);
        let mut lanes: HashMap<To, Lane> = HashMap::new();
        let mut delivering: FuturesUnordered<BoxFuture<'_, (To, Vec<u64>)>> = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                Some((to, numbers)) = delivering.next(), if !delivering.is_empty() => {
                    for number in numbers {
                        if let Some(event) = pending.get_mut((number - first) as usize) {
                            event.left -= 1;
                        }
                    }
                    let rest = lanes.get(&to).is_some_and(|lane| !lane.waiting.is_empty());
                    if rest {
                        lanes.entry(to.clone()).or_default().busy = false;
                    } else {
                        lanes.remove(&to);
                    }
                    self.send(&to, &mut lanes, &mut delivering);
                }
                events = self.store.next_events(TOGETHER), if pending.len() < self.together_max => {
                    if events.iter().all(|event| !event.again) {
                        published = None;
                    }
                    for event in events {
                        let number = first + pending.len() as u64;
                        let mut left = 0;
                        for delivery in self.deliveries(&event) {
                            if event.again && self.was_published(&delivery, &mut published).await {
                                continue;
                            }
                            left += 1;
                            lanes.entry(delivery.to.clone()).or_default().waiting.push_back((number, delivery));
                        }
                        pending.push_back(Pending { event, left });
                    }
                    let idle: Vec<To> = lanes.iter().filter(|(_, lane)| !lane.busy).map(|(to, _)| to.clone()).collect();
                    for to in idle {
                        self.send(&to, &mut lanes, &mut delivering);
                    }
                }
            }
            let mut done = Vec::new();
            while pending.front().is_some_and(|event| event.left == 0) {
                done.extend(pending.pop_front().map(|event| event.event));
            }
            first += done.len() as u64;
            if !done.is_empty() {
                self.store.events_done(&done);
            }
        }
    }

    /// Begins to deliver what waits for a target, if nothing is on its way there.
    fn send<'a>(
        &'a self,
        to: &To,
        lanes: &mut HashMap<To, Lane>,
        delivering: &mut FuturesUnordered<BoxFuture<'a, (To, Vec<u64>)>>,
    ) {
        let Some(lane) = lanes.get_mut(to).filter(|lane| !lane.busy && !lane.waiting.is_empty()) else { return };
        let count = lane.waiting.len().min(TOGETHER);
        let (numbers, deliveries): (Vec<u64>, Vec<Delivery>) = lane.waiting.drain(..count).unzip();
        lane.busy = true;
        let to = to.clone();
        delivering.push(Box::pin(async move {
            self.deliver(deliveries).await;
            (to, numbers)
        }));
    }

    /// Where an event has to go.
    fn deliveries(&self, event: &Event) -> Vec<Delivery> {
        let mut found = Vec::new();
        let mut add = |to: To, rule: &str| {
            let message = Message { event, rule, region: &self.region };
            let data = match to {
                To::Channel(_) => message.records(),
                To::Webhook(_) => message.posted(),
            };
            let publication = Publication { data: data.into_bytes(), tags: message.tags(), ..Publication::default() };
            found.push(Delivery { to, publication });
        };
        for target in &event.event.targets {
            match Target::parse(&target.target) {
                Some(Target::Channel(channel)) => add(To::Channel(channel.to_owned()), &target.rule),
                Some(Target::Webhook(name)) => add(To::Webhook(name.to_owned()), &target.rule),
                None => tracing::error!(
                    target = target.target,
                    "an event is for a target that is not known; it is left out"
                ),
            }
        }
        for channel in self.mirrors.channels(&event.event.bucket, &event.event.key) {
            add(To::Channel(channel), message::MIRROR);
        }
        found
    }

    /// Whether the channel's history shows the event. What was found out of each channel is kept in `published`.
    async fn was_published(&self, delivery: &Delivery, published: &mut Option<Published>) -> bool {
        let (Some(known), Some(id)) = (published, Id::of(&delivery.publication)) else { return false };
        let name = match &delivery.to {
            To::Channel(channel) => channel.clone(),
            To::Webhook(name) => webhook::queue(name),
        };
        if !known.contains_key(&name) {
            let mut shown: HashMap<String, Shown> = HashMap::new();
            let query = HistoryQuery { since: None, limit: LOOKED_AT, reverse: true };
            let history = match self.store.channel(&name) {
                Ok(channel) => channel.history(query).await,
                Err(e) => Err(e),
            };
            match history {
                Ok(history) => {
                    let publications = history.publications.iter().filter_map(|stored| from_stored(stored).ok());
                    for id in publications.filter_map(|publication| Id::of(&publication)) {
                        shown.entry(id.outbox).or_default().0.insert(id.offset);
                    }
                }
                Err(error) => {
                    tracing::warn!(channel = name, %error, "events may be published again: its history cannot be read")
                }
            }
            known.insert(name.clone(), shown);
        }
        known.get(&name).and_then(|shown| shown.get(&id.outbox)).is_some_and(|shown| shown.has(id.offset))
    }

    /// Publishes all, in order, and again until that has succeeded.
    async fn deliver(&self, mut deliveries: Vec<Delivery>) {
        let mut pause = AGAIN.0;
        while !deliveries.is_empty() {
            let mut answers: Vec<BoxFuture<'_, Result<(), Failure>>> = Vec::new();
            let mut failure = None;
            for delivery in &deliveries {
                match self.submit(delivery).await {
                    Ok(answer) => answers.push(answer),
                    Err(Failure::Never(why)) => {
                        tracing::error!(why, "an event of an object cannot be published; it is left out");
                        answers.push(Box::pin(async { Ok(()) }));
                    }
                    // Nothing comes before what waits.
                    Err(Failure::Later(why)) => {
                        failure = Some(why);
                        break;
                    }
                }
            }
            let submitted = answers.len();
            let answers = join_all(answers).await;
            let rest = deliveries.split_off(submitted);
            let mut unanswered = Vec::new();
            for (delivery, answer) in deliveries.into_iter().zip(answers) {
                match answer {
                    Ok(()) => {}
                    Err(Failure::Later(why) | Failure::Never(why)) => {
                        failure = Some(why);
                        unanswered.push(delivery);
                    }
                }
            }
            unanswered.extend(rest);
            deliveries = unanswered;
            if let Some(why) = failure {
                tracing::warn!(
                    waiting = deliveries.len(),
                    why,
                    "events of objects cannot be published now; that is tried again"
                );
                self.env.sleep(pause).await;
                pause = (pause * 2).min(AGAIN.1);
            }
        }
    }

    async fn submit(&self, delivery: &Delivery) -> Result<BoxFuture<'static, Result<(), Failure>>, Failure> {
        let publication = delivery.publication.clone();
        match &delivery.to {
            To::Channel(channel) => {
                let Some(node) = &self.node else {
                    return Err(Failure::Never(format!("{channel}: the live door is off (live.listen)")));
                };
                if let Err(e) = node.namespace(channel) {
                    return Err(Failure::Never(format!("{channel}: {}", e.message)));
                }
                let later = |e: steadfast_live::protocol::codes::ClientError| Failure::Later(e.message.into_owned());
                let wanted = Submission { priority: Priority::Delete, ..Submission::default() };
                let answer = node.submit(channel, &publication.into(), wanted).await.map_err(later)?;
                Ok(Box::pin(async move { answer.committed().await.map(drop).map_err(later) }))
            }
            To::Webhook(name) => {
                let Some(queue) = self.webhooks.queue(name) else {
                    return Err(Failure::Never(format!("there is no webhook {name:?} in events.webhooks")));
                };
                let new = NewPublication {
                    body: to_stored(&publication),
                    history_size: queue.max,
                    history_ttl_ms: FOR_EVER_MS,
                    durability: Durability::Sync,
                    priority: Priority::Delete,
                };
                let later = |e: steadfast_store::StoreError| Failure::Later(e.to_string());
                let answer = queue.channel.get().map_err(later)?.submit(new).await.map_err(later)?;
                let arrived = queue.arrived.clone();
                Ok(Box::pin(async move {
                    answer.committed().await.map_err(later)?;
                    arrived.notify_one();
                    Ok(())
                }))
            }
        }
    }
}

async fn trim(store: &Store, idle_for: Duration) {
    // It is tried again: until then some events may come again after a restart.
    if let Err(error) = store.trim_events(idle_for).await {
        tracing::debug!(%error, "events that were forwarded cannot be removed yet");
    }
}

/// Why an event was not published.
enum Failure {
    /// It will not be, whatever happens.
    Never(String),
    /// It may be another time.
    Later(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_between_others_that_were_published_may_not_have_been() {
        let shown = Shown([7, 9].into());
        assert!(shown.has(3) && shown.has(7) && shown.has(9));
        assert!(!shown.has(8) && !shown.has(10));
        assert!(!Shown::default().has(1));
    }
}
