//! Events of objects, from the store to channels and webhooks.
//!
//! The store hands out events in order. Each is published into its channels, and into a queue for
//! each of its webhooks (an internal channel, `webhook.rs`). When all publications are durable, the
//! store may drop the event. After a crash in between the store redelivers it, and an event that
//! the history of a channel shows is not published twice.
//!
//! Each target has its own *lane*: a target that refuses publications delays only its own events,
//! until the limit of waiting events is reached.

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
use steadfast_cluster::{ChannelError, Channels};
use steadfast_flow::Env;
use steadfast_live::protocol::message::Publication;
use steadfast_live::{Node, Submission, from_stored, to_stored};
use steadfast_log::{Durability, Priority};
use steadfast_store::{Attributes, Event, EventKind, FOR_EVER_MS, HistoryQuery, NewPublication, Store};
use tokio::sync::{oneshot, watch};

use crate::config::{Config, WebhookFormat};
pub(crate) use message::rfc3339;
use message::{Id, Message};
pub(crate) use targets::Mirrors;
use targets::Target;
pub(crate) use targets::Targets;
pub(crate) use webhook::WebhookQueues;

/// Maximum number of events in a batch, from the store and to a target.
const BATCH_MAX: usize = 256;

/// Idle time of a slot after which a separate record removes its forwarded events from the store.
const TRIM_AFTER: Duration = Duration::from_secs(1);

/// Pause after a failure: the first and the longest.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Maximum number of publications of a channel searched for events redelivered after a crash.
const DEDUP_SCAN_MAX: usize = 10_000;

/// An event on its way to one target.
struct Delivery {
    to: To,
    publication: Publication,
}

/// The target of a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum To {
    /// A channel of the live port.
    Channel(String),
    /// The queue of a webhook.
    Webhook(String),
}

/// The events of each outbox and rule that a channel's history shows, by channel.
type Published = HashMap<String, HashMap<String, PublishedOffsets>>;

/// Events of one outbox that a history shows, by their offsets.
#[derive(Default)]
struct PublishedOffsets(BTreeSet<u64>);

impl PublishedOffsets {
    /// Whether the event was published: the history has it, or has only newer ones. A gap between
    /// others means that its publication failed and a later one succeeded.
    fn has(&self, offset: u64) -> bool {
        self.0.contains(&offset) || self.0.first().is_some_and(|oldest| offset < *oldest)
    }
}

/// Forwards events; see the module.
pub(crate) struct Forwarder {
    store: Store,
    channels: Channels,
    node: Option<Arc<Node>>,
    mirrors: Mirrors,
    webhooks: Arc<WebhookQueues>,
    /// The webhooks that get events in MinIO's form.
    minio: BTreeSet<String>,
    region: String,
    /// Maximum number of events on their way at a time.
    together_max: usize,
    env: Env,
}

/// An event on its way to its targets.
struct Pending {
    event: Event,
    /// Targets that do not have it yet.
    left: usize,
}

/// The deliveries to one target, in order, each with the number of its event.
#[derive(Default)]
struct Lane {
    waiting: VecDeque<(u64, Delivery)>,
    busy: bool,
}

impl Forwarder {
    /// Creates the forwarder.
    ///
    /// # Errors
    /// A webhook whose URL cannot be used, as a message.
    pub(crate) fn new(
        config: &Config,
        store: &Store,
        (node, channels): (Option<Arc<Node>>, Channels),
        region: String,
        env: &Env,
    ) -> Result<Self, String> {
        let mirrors =
            node.as_ref().map(|node| Mirrors::of(node.rules().config(), &config.cluster.name)).unwrap_or_default();
        let webhooks = Arc::new(WebhookQueues::new(&config.events, store, env)?);
        let in_minio_form = config.events.webhooks.0.iter().filter(|hook| hook.format == WebhookFormat::Minio);
        Ok(Self {
            store: store.clone(),
            channels,
            node,
            mirrors,
            webhooks,
            minio: in_minio_form.map(|hook| hook.name.clone()).collect(),
            region,
            together_max: config.events.waiting.max(BATCH_MAX),
            env: env.clone(),
        })
    }

    /// Forwards events until `stop` is set. The receiver completes at the end. Remaining events are
    /// forwarded after the next start.
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
    pub(crate) fn webhooks(&self) -> Arc<WebhookQueues> {
        self.webhooks.clone()
    }

    async fn run(self) {
        let mut published = Some(HashMap::new());
        // Events in order of arrival from the first unfinished one, and the number of that one.
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
                events = self.store.events().next(BATCH_MAX), if pending.len() < self.together_max => {
                    if events.iter().all(|event| !event.maybe_redelivered) {
                        published = None;
                    }
                    for event in events {
                        let number = first + pending.len() as u64;
                        let mut left = 0;
                        for delivery in self.deliveries(&event) {
                            if event.maybe_redelivered && self.was_published(&delivery, &mut published).await {
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
                self.store.events().done(&done);
            }
        }
    }

    /// Starts the next batch of a target, unless one is on its way.
    fn send<'a>(
        &'a self,
        to: &To,
        lanes: &mut HashMap<To, Lane>,
        delivering: &mut FuturesUnordered<BoxFuture<'a, (To, Vec<u64>)>>,
    ) {
        let Some(lane) = lanes.get_mut(to).filter(|lane| !lane.busy && !lane.waiting.is_empty()) else { return };
        let count = lane.waiting.len().min(BATCH_MAX);
        let (numbers, deliveries): (Vec<u64>, Vec<Delivery>) = lane.waiting.drain(..count).unzip();
        lane.busy = true;
        let to = to.clone();
        delivering.push(Box::pin(async move {
            self.deliver(deliveries).await;
            (to, numbers)
        }));
    }

    /// The deliveries of an event.
    fn deliveries(&self, event: &Event) -> Vec<Delivery> {
        let mut found = Vec::new();
        let mut add = |to: To, rule: &str| {
            let message = Message { event, rule, region: &self.region };
            let data = match &to {
                To::Channel(_) => message.records(),
                To::Webhook(name) if self.minio.contains(name) => {
                    message.posted_as_minio(self.attributes(event).as_ref())
                }
                To::Webhook(_) => message.posted(),
            };
            let publication =
                Publication { data: data.into_bytes().into(), tags: message.tags(), ..Publication::default() };
            found.push(Delivery { to, publication });
        };
        for target in &event.event.targets {
            match Target::parse(&target.target) {
                Some(Target::Channel(channel)) => add(To::Channel(channel.to_owned()), &target.rule),
                Some(Target::Webhook(name)) => add(To::Webhook(name.to_owned()), &target.rule),
                None => tracing::error!(
                    target = target.target,
                    "an event has an unknown target; it is dropped for that target"
                ),
            }
        }
        for channel in self.mirrors.channels(&event.event.bucket, &event.event.key) {
            add(To::Channel(channel), message::MIRROR);
        }
        found
    }

    /// The attributes of the event's object, unless it has been replaced or deleted since.
    fn attributes(&self, event: &Event) -> Option<Attributes> {
        let event = &event.event;
        let found = self.store.at(&event.bucket, &event.key).info().ok()?;
        (event.kind != EventKind::Delete && found.attributes.etag == event.etag).then_some(found.attributes)
    }

    /// Whether the history of the channel shows the event. `published` caches the histories.
    async fn was_published(&self, delivery: &Delivery, published: &mut Option<Published>) -> bool {
        let (Some(known), Some(id)) = (published, Id::of(&delivery.publication)) else { return false };
        let name = match &delivery.to {
            To::Channel(channel) => channel.clone(),
            To::Webhook(name) => webhook::queue(name),
        };
        if !known.contains_key(&name) {
            let mut shown: HashMap<String, PublishedOffsets> = HashMap::new();
            let query = HistoryQuery { since: None, limit: DEDUP_SCAN_MAX, reverse: true };
            // The queues of webhooks are always in this node's store.
            let history = match &delivery.to {
                To::Channel(_) => match self.channels.open(&name) {
                    Ok(channel) => channel.history_within(query, usize::MAX).await,
                    Err(e) => Err(e),
                },
                To::Webhook(_) => match self.store.channel(&name) {
                    Ok(channel) => channel.history(query).await.map_err(ChannelError::from),
                    Err(e) => Err(e.into()),
                },
            };
            match history {
                Ok(history) => {
                    let publications = history.publications.iter().filter_map(|stored| from_stored(stored).ok());
                    for id in publications.filter_map(|publication| Id::of(&publication)) {
                        shown.entry(id.outbox).or_default().0.insert(id.offset);
                    }
                }
                Err(error) => {
                    tracing::warn!(
                        channel = name,
                        ?error,
                        "events may be published twice: the history of the channel cannot be read"
                    )
                }
            }
            known.insert(name.clone(), shown);
        }
        known.get(&name).and_then(|shown| shown.get(&id.outbox)).is_some_and(|shown| shown.has(id.offset))
    }

    /// Publishes all in order, and retries until all have succeeded.
    async fn deliver(&self, mut deliveries: Vec<Delivery>) {
        let mut pause = RETRY_BACKOFF.0;
        while !deliveries.is_empty() {
            let mut answers: Vec<BoxFuture<'_, Result<(), PublishFailure>>> = Vec::new();
            let mut failure = None;
            for delivery in &deliveries {
                match self.submit(delivery).await {
                    Ok(answer) => answers.push(answer),
                    Err(PublishFailure::Never(why)) => {
                        tracing::error!(why, "an event of an object cannot be published; it is dropped");
                        answers.push(Box::pin(async { Ok(()) }));
                    }
                    // Later events must not overtake one that waits.
                    Err(PublishFailure::Later(why)) => {
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
                    Err(PublishFailure::Later(why) | PublishFailure::Never(why)) => {
                        failure = Some(why);
                        unanswered.push(delivery);
                    }
                }
            }
            unanswered.extend(rest);
            deliveries = unanswered;
            if let Some(why) = failure {
                tracing::warn!(waiting = deliveries.len(), why, "events of objects cannot be published now; retrying");
                self.env.sleep(pause).await;
                pause = (pause * 2).min(RETRY_BACKOFF.1);
            }
        }
    }

    async fn submit(
        &self,
        delivery: &Delivery,
    ) -> Result<BoxFuture<'static, Result<(), PublishFailure>>, PublishFailure> {
        let publication = delivery.publication.clone();
        match &delivery.to {
            To::Channel(channel) => {
                let Some(node) = &self.node else {
                    return Err(PublishFailure::Never(format!("{channel}: the live port is off (live.listen)")));
                };
                if let Err(e) = node.rules().namespace(channel) {
                    return Err(PublishFailure::Never(format!("{channel}: {}", e.message)));
                }
                let later =
                    |e: steadfast_live::protocol::codes::ClientError| PublishFailure::Later(e.message.into_owned());
                let wanted = Submission { priority: Priority::Delete, ..Submission::default() };
                let answer = node.publisher().submit(channel, &publication.into(), wanted).await.map_err(later)?;
                Ok(Box::pin(async move { answer.committed().await.map(drop).map_err(later) }))
            }
            To::Webhook(name) => {
                let Some(queue) = self.webhooks.queue(name) else {
                    return Err(PublishFailure::Never(format!("there is no webhook {name:?} in events.webhooks")));
                };
                let new = NewPublication {
                    body: to_stored(&publication),
                    history_size: queue.max,
                    history_ttl_ms: FOR_EVER_MS,
                    durability: Durability::Sync,
                    priority: Priority::Delete,
                    key: None,
                };
                let later = |e: steadfast_store::StoreError| PublishFailure::Later(e.to_string());
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
    // The next trim retries; until then a restart may redeliver some events.
    if let Err(error) = store.events().trim(idle_for).await {
        tracing::debug!(%error, "events that were forwarded cannot be removed yet");
    }
}

/// Why an event was not published.
enum PublishFailure {
    /// No retry can succeed.
    Never(String),
    /// A retry may succeed.
    Later(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_between_others_that_were_published_may_not_have_been() {
        let shown = PublishedOffsets([7, 9].into());
        assert!(shown.has(3) && shown.has(7) && shown.has(9));
        assert!(!shown.has(8) && !shown.has(10));
        assert!(!PublishedOffsets::default().has(1));
    }
}
