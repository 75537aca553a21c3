//! Webhooks: each has a queue, a channel of the server's own, and a task that posts what is in it: several events at a time, those of one object one after
//! another, until each is settled: taken, or put among the dead letters (`letters.rs`). What is settled is removed from the front, durably after a page; a crash may post
//! again what was settled behind an event that is not, or is not yet removed: a window at most.

mod attempts;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
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

/// Events that are read together, and removed together.
const PAGE: usize = 64;

/// Events that are looked at beyond the first one that is not settled: as many may be posted again after a crash.
const WINDOW: usize = 512;

/// After a failure, until the next attempt: at first, and at most. By chance up to half of it less, so that not all come back at once.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// So many times as many events as there may be requests are begun and not settled: those that wait
/// to be posted again leave their turns to others.
const BEGUN_FACTOR: usize = 8;

/// What the names of queues begin with.
pub(super) const QUEUES: &str = "\0webhook/";

/// The name of the channel that is a webhook's queue.
pub(super) fn queue(name: &str) -> String {
    format!("{QUEUES}{name}")
}

/// Whoever wants all given up is told how many events that were.
type Purge = oneshot::Sender<Result<u64, StoreError>>;

/// A channel of the server's own, on a disk that may be missing now.
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

/// When to post an event no more.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// After so many answers other than 2xx; 0: any number.
    tries: u32,
    /// After this long; zero: never.
    age: Duration,
}

/// A webhook's queue.
pub(super) struct Queue {
    pub(super) name: String,
    pub(super) channel: OwnChannel,
    /// Where events are put that it does not take, and how many of them are kept.
    pub(super) dead: OwnChannel,
    pub(super) dead_max: u64,
    /// Events in it at most.
    pub(super) max: u64,
    /// Something has come into it.
    pub(super) arrived: Arc<Notify>,
    poster: Poster,
    parallel: usize,
    /// Turns to post: `parallel`.
    turns: Semaphore,
    patience: Patience,
    env: Env,
    counts: Counts,
    hold: Mutex<Hold>,
    /// Events that were posted in vain, by their place in the queue.
    tried: Mutex<BTreeMap<u64, Arc<Tried>>>,
    /// Ask the task to give up all that waits.
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
    /// Every event in the queue has a lower place, and is settled.
    settled: AtomicU64,
}

/// How a webhook is.
#[derive(Debug, Serialize)]
pub(crate) struct WebhookStatus {
    /// Its name.
    name: String,
    /// Events that it has taken since the start.
    delivered: u64,
    /// Requests that failed.
    failures: u64,
    /// Events that were given up because too many waited.
    dropped: u64,
    /// Events that were put among the dead letters since the start.
    dead: u64,
    /// Events in its queue.
    waiting: u64,
    /// Those of them that were posted in vain, and are posted again.
    retrying: u64,
    /// Whether the last request failed: it is made again.
    failing: bool,
    /// The first of those.
    #[serde(skip_serializing_if = "Option::is_none")]
    stuck: Option<Stuck>,
}

/// An event that a webhook does not take.
#[derive(Debug, Serialize)]
struct Stuck {
    key: String,
    tries: u64,
    why: String,
}

/// All webhooks, by name.
pub(crate) struct Webhooks {
    pub(super) all: BTreeMap<String, Arc<Queue>>,
    pub(super) store: Store,
}

impl Webhooks {
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

    /// How they are.
    pub(crate) fn status(&self) -> Vec<WebhookStatus> {
        self.all.values().map(|queue| queue.status()).collect()
    }
}

/// An event of the window.
struct Item {
    offset: u64,
    /// What is posted in order: events of one object.
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

/// What of an event says whose it is.
#[derive(Deserialize)]
struct Named {
    #[serde(rename = "Key")]
    key: String,
}

type Posting<'a> = FuturesUnordered<BoxFuture<'a, u64>>;

/// What the task of a queue knows.
#[derive(Default)]
struct Window {
    items: VecDeque<Item>,
    /// Up to where it was read.
    read: Option<Position>,
    /// Up to where all is settled, and up to where that is durable.
    settled: u64,
    removed: u64,
    busy: HashSet<Arc<str>>,
    /// There is nothing more to read.
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

    /// Has those events put among the dead letters that were posted in vain; how many.
    pub(super) fn skip(&self) -> u64 {
        let tried = self.tried.lock();
        tried.values().for_each(|tried| tried.skip.notify_one());
        tried.len() as u64
    }

    /// Gives up all that waits; how many events that were.
    pub(super) async fn give_up_all(&self) -> Result<u64, StoreError> {
        let (tell, told) = oneshot::channel();
        self.purge.send(tell).await.map_err(|_| stopping())?;
        told.await.map_err(|_| stopping())?
    }

    async fn run(&self) {
        let Some(mut purges) = self.purges.lock().take() else { return };
        let mut window = Window::default();
        let mut posting: Posting<'_> = FuturesUnordered::new();
        let mut pause = AGAIN.0;
        loop {
            let arrived = self.arrived.notified();
            if let Err(error) = self.advance(&mut window).await {
                let webhook = &self.name;
                tracing::warn!(webhook, %error, "events cannot be read or removed; that is tried again");
                self.env.sleep(jittered(&self.env, pause)).await;
                pause = (pause * 2).min(AGAIN.1);
                continue;
            }
            pause = AGAIN.0;
            self.begin(&mut window, &mut posting);
            tokio::select! {
                biased;
                Some(tell) = purges.recv() => {
                    while let Some(Some(offset)) = posting.next().now_or_never() {
                        window.settle(offset);
                    }
                    // What is posted at this moment may or may not be taken.
                    posting.clear();
                    self.tried.lock().clear();
                    let answer = self.purged(&mut window).await;
                    // Whoever asked may be gone.
                    let _ = tell.send(answer);
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

    /// Removes what is settled and reads what comes next, until the window is full or holds all there is.
    async fn advance(&self, window: &mut Window) -> Result<(), StoreError> {
        loop {
            self.fill(window).await?;
            self.remove(window).await?;
            // What was removed has made room.
            if window.at_end || window.items.len() >= WINDOW {
                return Ok(());
            }
        }
    }

    /// Reads what comes next, as far as the window goes.
    async fn fill(&self, window: &mut Window) -> Result<(), StoreError> {
        while window.items.len() < WINDOW && !window.at_end {
            let page =
                self.channel.get()?.history(HistoryQuery { since: window.read, limit: PAGE, reverse: false }).await?;
            let first = page.publications.first().map_or(page.position.offset + 1, |first| first.offset);
            match window.read {
                Some(read) if !page.complete => {
                    let (webhook, dropped) = (&self.name, first.saturating_sub(read.offset + 1));
                    self.counts.dropped.fetch_add(dropped, Relaxed);
                    tracing::error!(
                        webhook,
                        dropped,
                        "events were given up: more of them waited than events.webhook_queue allows"
                    );
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
                        let data: Bytes = publication.data.clone().into();
                        let named = serde_json::from_slice::<Named>(&data).ok();
                        let key = named.map(|named| named.key).unwrap_or_default().into();
                        let id = Id::of(&publication).map(|id| id.to_string());
                        let letter = Letter { id: id.unwrap_or_else(|| stored.offset.to_string()), publication };
                        window.items.push_back(Item { offset: stored.offset, key, letter, state: ItemState::Waits });
                    }
                    Err(error) => {
                        let webhook = &self.name;
                        tracing::error!(webhook, %error, "an event cannot be read; it is left out");
                    }
                }
            }
            if window.items.is_empty() {
                window.settled = offset;
            }
        }
        Ok(())
    }

    /// Removes what is settled at the front, a page at a time, and the rest when nothing waits.
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

    /// How many events may be begun. With a single turn all come in order: also behind one that fails.
    fn begun_max(&self) -> usize {
        if self.parallel == 1 { 1 } else { self.parallel * BEGUN_FACTOR }
    }

    /// Begins to post what may be posted now.
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
            // Not before those that came earlier.
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

/// Between half of it and all.
fn jittered(env: &Env, pause: Duration) -> Duration {
    let chance = (env.random_u64() >> 11) as f64 / (1u64 << 53) as f64;
    pause.mul_f64(0.5 + chance / 2.0)
}
