//! Webhooks: each has a queue (an internal channel) and a task that posts its events, several at a
//! time, those of one object one after another. An event is settled when the webhook accepts it or
//! it becomes a dead letter (`letters.rs`). Settled events are removed from the front, durably
//! after a page. A crash may repeat settled events that are not removed yet: at most a window.

mod attempts;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use steadfast_flow::Env;
use steadfast_live::from_stored;
use steadfast_store::{ChannelHandle, HistoryQuery, Position, Store, StoreError};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};

use super::letters::{self, Letter};
use super::message::Id;
use super::post::Poster;
use crate::config::{EventsSection, Webhook};
use attempts::{Hold, Tried};

/// Events read or removed at a time.
const PAGE: usize = 64;

/// Maximum number of events from the first unsettled one on that are in work. A crash may repeat as
/// many.
const WINDOW: usize = 512;

/// Pause after a failure: the first and the longest. A random cut of up to half spreads the
/// retries.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// Maximum number of begun, unsettled events for each parallel request: an event that waits for its
/// retry leaves its turn to others.
const BEGUN_FACTOR: usize = 8;

/// Prefix of the names of queues.
pub(super) const QUEUES: &str = "\0webhook/";

/// The name of the channel of a webhook's queue.
pub(super) fn queue(name: &str) -> String {
    format!("{QUEUES}{name}")
}

/// Receives the number of events that a purge dropped.
type Purge = oneshot::Sender<Result<u64, StoreError>>;

/// An internal channel, whose disk may be missing.
pub(super) struct OwnChannel {
    name: String,
    store: Store,
    opened: Mutex<Option<ChannelHandle>>,
}

impl OwnChannel {
    pub(super) fn get(&self) -> Result<ChannelHandle, StoreError> {
        let mut opened = self.opened.lock();
        match &*opened {
            Some(channel) => Ok(channel.clone()),
            None => Ok(opened.insert(self.store.channel(&self.name)?).clone()),
        }
    }
}

/// Limits after which an event becomes a dead letter.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// Number of answers other than 2xx; 0: no limit.
    tries: u32,
    /// Time of failed posting; zero: no limit.
    age: Duration,
}

/// A webhook's queue.
pub(super) struct Queue {
    pub(super) name: String,
    pub(super) channel: OwnChannel,
    /// The channel of its dead letters.
    pub(super) dead: OwnChannel,
    pub(super) dead_max: u64,
    /// Maximum number of events in it.
    pub(super) max: u64,
    /// Notified when an event was queued.
    pub(super) arrived: Arc<Notify>,
    poster: Poster,
    parallel: usize,
    /// Permits to post: `parallel`.
    turns: Semaphore,
    patience: Patience,
    env: Env,
    counts: Counts,
    hold: Mutex<Hold>,
    /// Failing events, by their offset in the queue.
    tried: Mutex<BTreeMap<u64, Arc<Tried>>>,
    /// Asks the task to drop all queued events.
    purge: mpsc::Sender<Purge>,
    purges: Mutex<Option<mpsc::Receiver<Purge>>>,
}

#[derive(Default)]
struct Counts {
    delivered: AtomicU64,
    failures: AtomicU64,
    dropped: AtomicU64,
    dead: AtomicU64,
    /// The last attempt failed.
    failing: AtomicBool,
    /// All events up to this offset are settled.
    settled: AtomicU64,
}

/// The status of a webhook.
#[derive(Debug, Serialize)]
pub(crate) struct WebhookStatus {
    /// Its name.
    name: String,
    /// Events accepted since the start.
    delivered: u64,
    /// Requests that failed.
    failures: u64,
    /// Events dropped because the queue was full.
    dropped: u64,
    /// Events that became dead letters since the start.
    dead: u64,
    /// Events in its queue.
    waiting: u64,
    /// Queued events that failed and are retried.
    retrying: u64,
    /// Whether the last request failed.
    failing: bool,
    /// The first of the failing events.
    #[serde(skip_serializing_if = "Option::is_none")]
    stuck: Option<Stuck>,
}

/// A failing event.
#[derive(Debug, Serialize)]
struct Stuck {
    key: String,
    tries: u64,
    why: String,
}

/// All webhooks, by name.
pub(crate) struct WebhookQueues {
    pub(super) all: BTreeMap<String, Arc<Queue>>,
    pub(super) store: Store,
}

impl WebhookQueues {
    pub(super) fn new(events: &EventsSection, store: &Store, env: &Env) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        for hook in &events.webhooks.0 {
            let queue = Queue::new(hook, events, store, env);
            let queue = queue.map_err(|why| format!("events.webhooks, {}: {why}", hook.name))?;
            all.insert(hook.name.clone(), Arc::new(queue));
        }
        Ok(Self { all, store: store.clone() })
    }

    pub(super) fn queue(&self, name: &str) -> Option<&Arc<Queue>> {
        self.all.get(name)
    }

    pub(super) fn start(&self, stop: &watch::Receiver<bool>) {
        for queue in self.all.values() {
            let (queue, mut stop) = (queue.clone(), stop.clone());
            queue.env.clone().spawn_critical("webhook", async move {
                tokio::select! {
                    biased;
                    _ = stop.wait_for(|stop| *stop) => {}
                    () = queue.run() => {}
                }
            });
        }
    }

    /// The status of each webhook.
    pub(crate) fn status(&self) -> Vec<WebhookStatus> {
        self.all.values().map(|queue| queue.status()).collect()
    }
}

/// An event of the window.
struct Item {
    offset: u64,
    /// Events with the same key (one object) are posted in order.
    key: Arc<str>,
    letter: Letter,
    state: ItemState,
}

#[derive(PartialEq, Eq)]
enum ItemState {
    Waits,
    IsPosted,
    Settled,
}

/// The part of an event that names its object.
#[derive(Deserialize)]
struct Named {
    #[serde(rename = "Key")]
    key: String,
}

type Posting<'a> = FuturesUnordered<BoxFuture<'a, u64>>;

/// The state of the task of a queue.
#[derive(Default)]
struct Window {
    items: VecDeque<Item>,
    /// Position up to which the queue was read.
    read: Option<Position>,
    /// Offset up to which all events are settled, and up to which they are durably removed.
    settled: u64,
    removed: u64,
    busy: HashSet<Arc<str>>,
    /// Whether the queue has no further events.
    at_end: bool,
}

impl Queue {
    fn new(hook: &Webhook, events: &EventsSection, store: &Store, env: &Env) -> Result<Self, String> {
        let channel = |name: String| OwnChannel { name, store: store.clone(), opened: Mutex::default() };
        let (purge, purges) = mpsc::channel(1);
        Ok(Self {
            name: hook.name.clone(),
            channel: channel(queue(&hook.name)),
            dead: channel(letters::dead(&hook.name)),
            dead_max: events.webhook_dead_letters as u64,
            max: events.webhook_queue as u64,
            arrived: Arc::default(),
            poster: Poster::new(hook, events.webhook_parallel, events.webhook_timeout, env)?,
            parallel: events.webhook_parallel,
            turns: Semaphore::new(events.webhook_parallel),
            patience: Patience {
                tries: u32::try_from(events.webhook_tries).unwrap_or(u32::MAX),
                age: events.webhook_give_up,
            },
            env: env.clone(),
            counts: Counts::default(),
            hold: Mutex::default(),
            tried: Mutex::default(),
            purge,
            purges: Mutex::new(Some(purges)),
        })
    }

    fn status(&self) -> WebhookStatus {
        let tried = self.tried.lock();
        let stuck = tried.values().next().map(|tried| Stuck {
            key: tried.key.clone(),
            tries: tried.tries.load(Relaxed),
            why: tried.why.lock().clone(),
        });
        let last = self.channel.get().and_then(|channel| channel.position()).map_or(0, |position| position.offset);
        WebhookStatus {
            name: self.name.clone(),
            delivered: self.counts.delivered.load(Relaxed),
            failures: self.counts.failures.load(Relaxed),
            dropped: self.counts.dropped.load(Relaxed),
            dead: self.counts.dead.load(Relaxed),
            waiting: last.saturating_sub(self.counts.settled.load(Relaxed)).min(self.max),
            retrying: tried.len() as u64,
            failing: self.counts.failing.load(Relaxed),
            stuck,
        }
    }

    /// Dead-letters the failing events; returns their number.
    pub(super) fn skip(&self) -> u64 {
        let tried = self.tried.lock();
        tried.values().for_each(|tried| tried.skip.notify_one());
        tried.len() as u64
    }

    /// Drops all queued events; returns their number.
    pub(super) async fn give_up_all(&self) -> Result<u64, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.purge.send(answer).await.map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())?
    }

    async fn run(&self) {
        let Some(mut purges) = self.purges.lock().take() else { return };
        let mut window = Window::default();
        let mut posting: Posting<'_> = FuturesUnordered::new();
        let mut pause = RETRY_BACKOFF.0;
        loop {
            let arrived = self.arrived.notified();
            if let Err(error) = self.advance(&mut window).await {
                let webhook = &self.name;
                tracing::warn!(webhook, %error, "events cannot be read or removed; retrying");
                tokio::select! {
                    () = self.env.sleep(jittered(&self.env, pause)) => {}
                    Some(purge) = purges.recv() => {
                        // The client may have disconnected.
                        let _ = purge.send(Err(error));
                    }
                }
                pause = (pause * 2).min(RETRY_BACKOFF.1);
                continue;
            }
            pause = RETRY_BACKOFF.0;
            self.begin(&mut window, &mut posting);
            tokio::select! {
                biased;
                Some(purge) = purges.recv() => {
                    while let Some(Some(offset)) = posting.next().now_or_never() {
                        window.settle(offset);
                    }
                    // The webhook may or may not accept requests in progress.
                    posting.clear();
                    self.tried.lock().clear();
                    let answer = self.purged(&mut window).await;
                    // The client may have disconnected.
                    let _ = purge.send(answer);
                }
                Some(offset) = posting.next(), if !posting.is_empty() => window.settle(offset),
                () = arrived => window.at_end = false,
            }
        }
    }

    async fn purged(&self, window: &mut Window) -> Result<u64, StoreError> {
        let position = self.channel.get()?.position()?;
        let settled = window.items.iter().filter(|item| item.state == ItemState::Settled).count() as u64;
        let waited = position.offset.saturating_sub(window.settled + settled);
        self.channel.get()?.trim(position.offset).await?;
        *window =
            Window { read: Some(position), settled: position.offset, removed: position.offset, ..Window::default() };
        self.counts.settled.store(position.offset, Relaxed);
        Ok(waited)
    }

    /// Removes settled events and reads further ones, until the window is full or holds the whole
    /// queue.
    async fn advance(&self, window: &mut Window) -> Result<(), StoreError> {
        loop {
            self.fill(window).await?;
            self.remove(window).await?;
            // The removal may have made room in the window.
            if window.at_end || window.items.len() >= WINDOW {
                return Ok(());
            }
        }
    }

    /// Fills the window from the queue.
    async fn fill(&self, window: &mut Window) -> Result<(), StoreError> {
        while window.items.len() < WINDOW && !window.at_end {
            let page =
                self.channel.get()?.history(HistoryQuery { since: window.read, limit: PAGE, reverse: false }).await?;
            let first = page.publications.first().map_or(page.position.offset + 1, |first| first.offset);
            match window.read {
                Some(read) if !page.complete => {
                    let (webhook, dropped) = (&self.name, first.saturating_sub(read.offset + 1));
                    self.counts.dropped.fetch_add(dropped, Relaxed);
                    tracing::error!(webhook, dropped, "events were dropped: the queue reached events.webhook_queue");
                }
                None => (window.settled, window.removed) = (first - 1, first - 1),
                Some(_) => {}
            }
            window.at_end = page.publications.is_empty();
            let epoch = page.position.epoch;
            let offset = page.publications.last().map_or(page.position.offset, |last| last.offset);
            window.read = Some(Position { epoch, offset });
            for stored in &page.publications {
                match from_stored(stored) {
                    Ok(publication) => {
                        let data = publication.data.clone();
                        let named = serde_json::from_slice::<Named>(&data).ok();
                        let key = named.map(|named| named.key).unwrap_or_default().into();
                        let id = Id::of(&publication).map(|id| id.to_string());
                        let letter = Letter { id: id.unwrap_or_else(|| stored.offset.to_string()), publication };
                        window.items.push_back(Item { offset: stored.offset, key, letter, state: ItemState::Waits });
                    }
                    Err(error) => {
                        let webhook = &self.name;
                        tracing::error!(webhook, %error, "an event cannot be read; it is dropped");
                    }
                }
            }
            if window.items.is_empty() {
                window.settled = offset;
            }
        }
        Ok(())
    }

    /// Removes settled events from the front, a page at a time, and the rest when the window is
    /// empty.
    async fn remove(&self, window: &mut Window) -> Result<(), StoreError> {
        while window.items.front().is_some_and(|item| item.state == ItemState::Settled) {
            let Some(item) = window.items.pop_front() else { break };
            window.settled = item.offset;
        }
        self.counts.settled.store(window.settled, Relaxed);
        let due = window.settled - window.removed >= PAGE as u64 || window.items.is_empty();
        if due && window.settled > window.removed {
            self.channel.get()?.trim(window.settled).await?;
            window.removed = window.settled;
        }
        Ok(())
    }

    /// Maximum number of begun events. With one permit all are posted in order, even behind a
    /// failing one.
    fn begun_max(&self) -> usize {
        if self.parallel == 1 { 1 } else { self.parallel * BEGUN_FACTOR }
    }

    /// Starts posting the events that may be posted now.
    fn begin<'a>(&'a self, window: &mut Window, posting: &mut Posting<'a>) {
        let mut before: HashSet<Arc<str>> = HashSet::new();
        let begun_max = self.begun_max();
        for item in &mut window.items {
            if posting.len() >= begun_max {
                return;
            }
            if item.state != ItemState::Waits {
                continue;
            }
            // An earlier event of the same object goes first.
            if window.busy.contains(&item.key) || !before.insert(item.key.clone()) {
                continue;
            }
            item.state = ItemState::IsPosted;
            window.busy.insert(item.key.clone());
            let (offset, key, letter) = (item.offset, item.key.clone(), item.letter.clone());
            posting.push(Box::pin(async move {
                self.until_settled(offset, &key, letter).await;
                offset
            }));
        }
    }
}

impl Window {
    fn settle(&mut self, offset: u64) {
        let at = self.items.partition_point(|item| item.offset < offset);
        if let Some(item) = self.items.get_mut(at).filter(|item| item.offset == offset) {
            item.state = ItemState::Settled;
            self.busy.remove(&item.key);
        }
    }
}

fn stopping() -> StoreError {
    StoreError::Unavailable("the server is stopping".to_owned())
}

/// A random time between half of `pause` and all of it.
fn jittered(env: &Env, pause: Duration) -> Duration {
    let chance = (env.random_u64() >> 11) as f64 / (1u64 << 53) as f64;
    pause.mul_f64(0.5 + chance / 2.0)
}
