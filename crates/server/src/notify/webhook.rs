//! Webhooks: each has a queue, a channel of the server's own, and a task that posts what is in it, one event after another, until the webhook has
//! taken it. What was taken is removed; the removal is durable after a page, so a crash may post the events of a page again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Uri};
use http_body_util::Full;
use serde::Serialize;
use steadfast_flow::Env;
use steadfast_live::{HttpClient, exchange, from_stored, http_client};
use steadfast_store::{ChannelHandle, HistoryQuery, Position, Store, StoreError};
use tokio::sync::{Notify, watch};

use crate::config::{EventsSection, Webhook};

/// Events of a page: as many may be posted again after a crash.
const PAGE: usize = 64;

/// After a failure, until the next attempt: at first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// Bytes of an answer that are read. Nothing is made of them.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The name of the channel that is a webhook's queue.
pub(super) fn queue(name: &str) -> String {
    format!("\0webhook/{name}")
}

/// A webhook's queue.
pub(super) struct Queue {
    pub(super) channel: ChannelHandle,
    /// Events in it at most.
    pub(super) max: u64,
    /// Something has come into it.
    pub(super) arrived: Arc<Notify>,
    url: Uri,
    authorization: Option<HeaderValue>,
    client: HttpClient,
    timeout: Duration,
    env: Env,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    delivered: AtomicU64,
    failures: AtomicU64,
    dropped: AtomicU64,
    /// The last attempt failed.
    failing: AtomicBool,
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
    /// Whether the last request failed: it is made again.
    failing: bool,
}

/// All webhooks, by name.
pub(crate) struct Webhooks(BTreeMap<String, Arc<Queue>>);

impl Webhooks {
    pub(super) fn new(events: &EventsSection, store: &Store, env: &Env) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        for Webhook { name, url, authorization } in &events.webhooks.0 {
            let fail = |why: String| format!("events.webhooks, {name}: {why}");
            let url: Uri = url.parse().map_err(|e| fail(format!("{url:?} is not a URL: {e}")))?;
            let authorization = match &authorization[..] {
                "" => None,
                text => {
                    let mut value = HeaderValue::from_str(text).map_err(|e| fail(e.to_string()))?;
                    value.set_sensitive(true);
                    Some(value)
                }
            };
            let queue = Queue {
                channel: store.channel(&queue(name)).map_err(|e| fail(e.to_string()))?,
                max: events.webhook_queue as u64,
                arrived: Arc::default(),
                client: http_client(&url, 1).map_err(fail)?,
                url,
                authorization,
                timeout: events.webhook_timeout,
                env: env.clone(),
                counts: Counts::default(),
            };
            all.insert(name.clone(), Arc::new(queue));
        }
        Ok(Self(all))
    }

    pub(super) fn queue(&self, name: &str) -> Option<&Arc<Queue>> {
        self.0.get(name)
    }

    pub(super) fn start(&self, stop: &watch::Receiver<bool>) {
        for (name, queue) in &self.0 {
            let (name, queue, mut stop) = (name.clone(), queue.clone(), stop.clone());
            queue.env.clone().spawn("webhook", async move {
                tokio::select! {
                    biased;
                    _ = stop.wait_for(|stop| *stop) => {}
                    () = queue.run(&name) => {}
                }
            });
        }
    }

    /// How they are.
    pub(crate) fn status(&self) -> Vec<WebhookStatus> {
        let status = |(name, queue): (&String, &Arc<Queue>)| WebhookStatus {
            name: name.clone(),
            delivered: queue.counts.delivered.load(Relaxed),
            failures: queue.counts.failures.load(Relaxed),
            dropped: queue.counts.dropped.load(Relaxed),
            failing: queue.counts.failing.load(Relaxed),
        };
        self.0.iter().map(status).collect()
    }
}

impl Queue {
    async fn run(&self, name: &str) {
        let mut taken: Option<Position> = None;
        let mut pause = AGAIN.0;
        loop {
            let arrived = self.arrived.notified();
            match self.page(name, &mut taken).await {
                Ok(0) => {
                    pause = AGAIN.0;
                    arrived.await;
                }
                Ok(_) => pause = AGAIN.0,
                Err(error) => {
                    tracing::warn!(webhook = name, %error, "events cannot be read or removed; that is tried again");
                    self.env.sleep(pause).await;
                    pause = (pause * 2).min(AGAIN.1);
                }
            }
        }
    }

    /// Posts what comes next, and removes it; how many that were.
    async fn page(&self, name: &str, taken: &mut Option<Position>) -> Result<usize, StoreError> {
        let page = self.channel.history(HistoryQuery { since: *taken, limit: PAGE, reverse: false }).await?;
        let first = page.publications.first().map_or(page.position.offset + 1, |first| first.offset);
        if let Some(taken) = taken.filter(|_| !page.complete) {
            let dropped = first.saturating_sub(taken.offset + 1);
            self.counts.dropped.fetch_add(dropped, Relaxed);
            tracing::error!(
                webhook = name,
                dropped,
                "events were given up: more of them waited than events.webhook_queue allows"
            );
        }
        for stored in &page.publications {
            match from_stored(stored) {
                Ok(publication) => self.post_until_taken(name, publication.data.into()).await,
                Err(error) => tracing::error!(webhook = name, %error, "an event cannot be read; it is left out"),
            }
            *taken = Some(Position { epoch: page.position.epoch, offset: stored.offset });
        }
        match page.publications.last() {
            Some(last) => self.channel.trim(last.offset).await?,
            None => *taken = Some(page.position),
        }
        Ok(page.publications.len())
    }

    async fn post_until_taken(&self, name: &str, event: Bytes) {
        let mut pause = AGAIN.0;
        loop {
            let answer = self.env.timeout(self.timeout, self.post(event.clone())).await;
            let why = match answer {
                Some(Ok(())) => break,
                Some(Err(why)) => why,
                None => format!("no answer within {:?}", self.timeout),
            };
            self.counts.failures.fetch_add(1, Relaxed);
            if !self.counts.failing.swap(true, Relaxed) {
                tracing::warn!(
                    webhook = name,
                    why,
                    "a webhook did not take an event; it is posted again until it does"
                );
            }
            self.env.sleep(pause).await;
            pause = (pause * 2).min(AGAIN.1);
        }
        self.counts.delivered.fetch_add(1, Relaxed);
        if self.counts.failing.swap(false, Relaxed) {
            tracing::info!(webhook = name, "the webhook takes events again");
        }
    }

    async fn post(&self, event: Bytes) -> Result<(), String> {
        let mut request = Request::post(self.url.clone()).header("content-type", "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let request = request.body(Full::new(event)).map_err(|e| e.to_string())?;
        let answer = exchange(&self.client, request, ANSWER_BYTES_MAX).await?;
        if answer.status().is_success() { Ok(()) } else { Err(format!("it answered {}", answer.status())) }
    }
}
