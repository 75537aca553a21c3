//! Posting one event until the webhook accepts it or it becomes a dead letter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Queue, RETRY_BACKOFF, jittered};
use crate::notify::letters::{self, Letter};
use crate::notify::post::Outcome;

/// Holds back all requests to a webhook after a failure.
pub(super) struct Hold {
    /// No request before this time: the webhook demanded it, or did not answer.
    until: Duration,
    /// Time that the next unanswered request holds the webhook.
    pause: Duration,
}

/// A failing event.
pub(super) struct Tried {
    pub(super) key: String,
    pub(super) tries: AtomicU64,
    pub(super) why: Mutex<String>,
    /// Notified when the operator skips it.
    pub(super) skip: Notify,
}

impl Default for Hold {
    fn default() -> Self {
        Self { until: Duration::ZERO, pause: RETRY_BACKOFF.0 }
    }
}

impl Queue {
    /// Posts an event until it is settled.
    pub(super) async fn until_settled(&self, offset: u64, key: &str, letter: Letter) {
        match self.post(offset, key, &letter).await {
            None => {
                self.counts.delivered.fetch_add(1, Relaxed);
                if self.counts.failing.swap(false, Relaxed) {
                    tracing::info!(webhook = self.name, "the webhook accepts events again");
                }
            }
            Some(why) => {
                self.counts.failures.fetch_add(1, Relaxed);
                tracing::error!(
                    webhook = self.name,
                    key,
                    why,
                    "a webhook does not accept an event: it becomes a dead letter"
                );
                self.bury(&letter, &why).await;
                self.counts.dead.fetch_add(1, Relaxed);
            }
        }
        self.tried.lock().remove(&offset);
    }

    /// Posts an event until the webhook accepts it; otherwise returns why it becomes a dead letter.
    async fn post(&self, offset: u64, key: &str, letter: &Letter) -> Option<String> {
        let skipped_why = || Some("skipped by the operator".to_owned());
        let (begun, mut pause, mut tries) = (self.env.now(), RETRY_BACKOFF.0, 0);
        let mut tried: Option<Arc<Tried>> = None;
        loop {
            let skipped = async {
                match &tried {
                    Some(tried) => tried.skip.notified().await,
                    None => std::future::pending().await,
                }
            };
            let outcome = tokio::select! {
                biased;
                () = skipped => return skipped_why(),
                outcome = self.post_once(letter) => outcome,
            };
            let why = match outcome {
                Outcome::Taken => return None,
                Outcome::Undeliverable(why) => return Some(why),
                Outcome::Refused { why, .. } => {
                    tries += 1;
                    why
                }
                Outcome::Unanswered(why) => why,
            };
            self.failed(&why);
            let too_old = !self.patience.age.is_zero() && self.env.now().saturating_sub(begun) >= self.patience.age;
            if too_old || (self.patience.tries > 0 && tries >= self.patience.tries) {
                return Some(why);
            }
            let tried = tried.get_or_insert_with(|| self.begin_tried(offset, key));
            tried.tries.fetch_add(1, Relaxed);
            *tried.why.lock() = why;
            if self.env.timeout(jittered(&self.env, pause), tried.skip.notified()).await.is_some() {
                return skipped_why();
            }
            pause = (pause * 2).min(RETRY_BACKOFF.1);
        }
    }

    /// Posts an event once, as soon as the hold ends, and sets the next hold.
    async fn post_once(&self, letter: &Letter) -> Outcome {
        // The semaphore is never closed.
        let _turn = self.turns.acquire().await;
        self.until_not_held().await;
        let outcome = self.poster.post(&letter.id, letter.publication.data.clone()).await;
        let now = self.env.now();
        let mut hold = self.hold.lock();
        match &outcome {
            Outcome::Unanswered(_) if now >= hold.until => {
                hold.until = now + jittered(&self.env, hold.pause);
                hold.pause = (hold.pause * 2).min(RETRY_BACKOFF.1);
            }
            // Concurrent requests count as one attempt to reach the webhook.
            Outcome::Unanswered(_) => {}
            Outcome::Refused { after, .. } => {
                hold.pause = RETRY_BACKOFF.0;
                hold.until = hold.until.max(now + after.unwrap_or_default());
            }
            Outcome::Taken | Outcome::Undeliverable(_) => hold.pause = RETRY_BACKOFF.0,
        }
        outcome
    }

    /// Records a failing event.
    fn begin_tried(&self, offset: u64, key: &str) -> Arc<Tried> {
        let (key, tries, why, skip) = (key.to_owned(), AtomicU64::new(0), Mutex::default(), Notify::new());
        let tried = Arc::new(Tried { key, tries, why, skip });
        self.tried.lock().insert(offset, tried.clone());
        tried
    }

    /// Stores an event as a dead letter, and retries until that has succeeded.
    async fn bury(&self, letter: &Letter, why: &str) {
        let mut pause = RETRY_BACKOFF.0;
        let bury = async || self.dead.get()?.publish(letters::buried(letter, why, self.dead_max)).await;
        while let Err(error) = bury().await {
            tracing::warn!(webhook = self.name, %error, "a dead letter cannot be stored; retrying");
            self.env.sleep(jittered(&self.env, pause)).await;
            pause = (pause * 2).min(RETRY_BACKOFF.1);
        }
    }

    fn failed(&self, why: &str) {
        self.counts.failures.fetch_add(1, Relaxed);
        if !self.counts.failing.swap(true, Relaxed) {
            tracing::warn!(webhook = self.name, why, "a webhook did not accept an event; retrying");
        }
    }

    /// Waits until the hold ends.
    async fn until_not_held(&self) {
        loop {
            let left = self.hold.lock().until.saturating_sub(self.env.now());
            if left.is_zero() {
                return;
            }
            self.env.sleep(left).await;
        }
    }
}
