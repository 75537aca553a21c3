//! Requests to the store, repeated until there is a clear answer.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_flow::Env;
use steadfast_net::{EntityTag, REMOTE_PAGE, RemoteEntry, RemoteError, RemoteObject, RemoteResult, RemoteStore};

use crate::error::ArchiveError;

/// Time before the first repetition; it doubles with each.
const REPEAT_FIRST: Duration = Duration::from_millis(100);

/// Most time before a repetition.
const REPEAT_MAX: Duration = Duration::from_secs(10);

/// Counts of requests, each attempt once, and of the bytes that were stored.
#[derive(Debug, Default)]
pub(crate) struct RequestCounts {
    pub(crate) creates: AtomicU64,
    pub(crate) replaces: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) failures: AtomicU64,
    /// Objects that were deleted.
    pub(crate) deleted: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
}

/// The store, with repetitions. Clones share it.
#[derive(Clone)]
pub(crate) struct Attempts {
    store: Arc<dyn RemoteStore>,
    env: Env,
    counts: Arc<RequestCounts>,
    /// Time of failures after which they are not repeated any more; `None`: without end.
    patience: Option<Duration>,
    /// Why requests fail now, and since when.
    failing: Arc<Mutex<Option<Failing>>>,
}

/// Requests that fail.
struct Failing {
    since: Duration,
    last: RemoteError,
}

/// The pause before a repetition.
pub(crate) struct Pause(Duration);

impl Pause {
    pub(crate) fn new() -> Self {
        Self(REPEAT_FIRST)
    }

    /// Waits, each time longer. The time is drawn, so that many clients of a store do not return
    /// all at once.
    pub(crate) async fn wait(&mut self, env: &Env) {
        let half = self.0 / 2;
        let drawn = env.random_u64() % u64::try_from(half.as_millis()).unwrap_or(u64::MAX).max(1);
        env.sleep(half + Duration::from_millis(drawn)).await;
        self.0 = (self.0 * 2).min(REPEAT_MAX);
    }
}

impl Attempts {
    pub(crate) fn new(store: Arc<dyn RemoteStore>, env: &Env) -> Self {
        Self { store, env: env.clone(), counts: Arc::default(), patience: None, failing: Arc::default() }
    }

    /// As [`Attempts::new`], and gives up when requests have failed for `patience`, or are refused.
    pub(crate) fn for_a_while(store: Arc<dyn RemoteStore>, patience: Duration, env: &Env) -> Self {
        Self { patience: Some(patience), ..Self::new(store, env) }
    }

    /// The same with the same counts, which has its own reason why requests fail.
    pub(crate) fn apart(&self) -> Self {
        Self { failing: Arc::default(), ..self.clone() }
    }

    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    pub(crate) fn counts(&self) -> &RequestCounts {
        &self.counts
    }

    pub(crate) fn describe(&self) -> String {
        self.store.describe()
    }

    /// Why requests fail now, and for how long they have failed.
    pub(crate) fn failing(&self) -> Option<(Duration, String)> {
        let failing = self.failing.lock();
        failing.as_ref().map(|failing| (self.env.now().saturating_sub(failing.since), failing.last.to_string()))
    }

    /// Whether the last request was refused, as the next one would be.
    fn is_refused(&self) -> bool {
        matches!(&*self.failing.lock(), Some(Failing { last: RemoteError::Refused(_), .. }))
    }

    /// Waits before a repetition.
    ///
    /// # Errors
    /// [`ArchiveError::Unreachable`] when requests have failed for too long.
    pub(crate) async fn wait(&self, pause: &mut Pause) -> Result<(), ArchiveError> {
        if let Some((age, why)) = self.failing()
            && self.patience.is_some_and(|patience| age >= patience || self.is_refused())
        {
            return Err(ArchiveError::Unreachable(format!("{} cannot be used: {why}", self.describe())));
        }
        pause.wait(&self.env).await;
        Ok(())
    }

    /// Notes the outcome of a request. An answer that refuses a condition is a good one.
    fn note<T>(&self, result: &RemoteResult<T>) {
        match result {
            Err(e @ (RemoteError::Unknown(_) | RemoteError::Slow(_) | RemoteError::Refused(_))) => {
                self.counts.failures.fetch_add(1, Relaxed);
                let mut failing = self.failing.lock();
                let since = failing.take().map_or_else(|| self.env.now(), |failing| failing.since);
                *failing = Some(Failing { since, last: e.clone() });
            }
            Ok(_) | Err(RemoteError::Exists | RemoteError::Changed | RemoteError::Missing) => {
                *self.failing.lock() = None;
            }
        }
    }

    /// One attempt to replace an object.
    pub(crate) async fn replace_once(&self, name: &str, body: &Bytes, over: &EntityTag) -> RemoteResult<EntityTag> {
        self.counts.replaces.fetch_add(1, Relaxed);
        let replaced = self.store.replace(name, body.clone(), over).await;
        if replaced.is_ok() {
            self.counts.sent_bytes.fetch_add(body.len() as u64, Relaxed);
        }
        self.note(&replaced);
        replaced
    }

    /// One attempt to create an object.
    pub(crate) async fn create_once(&self, name: &str, body: &[Bytes]) -> RemoteResult<EntityTag> {
        self.counts.creates.fetch_add(1, Relaxed);
        let created = self.store.create(name, body.to_vec()).await;
        if created.is_ok() {
            self.counts.sent_bytes.fetch_add(bytes_of(body), Relaxed);
        }
        self.note(&created);
        created
    }

    /// One attempt to read an object.
    pub(crate) async fn read_once(
        &self,
        name: &str,
        range: Option<Range<u64>>,
        bytes_max: u64,
    ) -> RemoteResult<RemoteObject> {
        self.counts.reads.fetch_add(1, Relaxed);
        let read = self.store.read(name, range, bytes_max).await;
        self.note(&read);
        read
    }

    /// One attempt to list objects.
    pub(crate) async fn list_once(&self, after: &str) -> RemoteResult<Vec<RemoteEntry>> {
        self.counts.reads.fetch_add(1, Relaxed);
        let listed = self.store.list("", after).await;
        self.note(&listed);
        listed
    }

    /// Reads an object that must exist, or a range of it.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] if it does not exist, is shorter or longer, or is refused.
    pub(crate) async fn read(
        &self,
        name: &str,
        range: Option<Range<u64>>,
        bytes_max: u64,
    ) -> Result<RemoteObject, ArchiveError> {
        let mut pause = Pause::new();
        loop {
            match self.read_once(name, range.clone(), bytes_max).await {
                Ok(object) => return Ok(object),
                Err(e @ (RemoteError::Missing | RemoteError::Refused(_))) => {
                    return Err(ArchiveError::broken(name, e));
                }
                Err(_) => self.wait(&mut pause).await?,
            }
        }
    }

    /// The objects whose names are greater than `after`, in order: a page.
    ///
    /// # Errors
    /// [`ArchiveError::Unreachable`] after the patience of this process.
    pub(crate) async fn list(&self, after: &str) -> Result<Vec<RemoteEntry>, ArchiveError> {
        let mut pause = Pause::new();
        loop {
            match self.list_once(after).await {
                Ok(page) => return Ok(page),
                Err(_) => self.wait(&mut pause).await?,
            }
        }
    }

    /// Deletes objects, in their order.
    ///
    /// # Errors
    /// [`ArchiveError::Unreachable`] after the patience of this process.
    pub(crate) async fn delete(&self, names: &[String]) -> Result<(), ArchiveError> {
        for names in names.chunks(REMOTE_PAGE) {
            let mut pause = Pause::new();
            loop {
                let deleted = self.store.delete(names).await;
                self.note(&deleted);
                match deleted {
                    Ok(()) => break,
                    Err(_) => self.wait(&mut pause).await?,
                }
            }
            self.counts.deleted.fetch_add(names.len() as u64, Relaxed);
        }
        Ok(())
    }

    /// Creates an object. Its name was never used for other bytes.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] if the name has other bytes.
    pub(crate) async fn create(&self, name: &str, body: &[Bytes]) -> Result<(), ArchiveError> {
        let mut pause = Pause::new();
        loop {
            match self.create_once(name, body).await {
                Ok(_) => return Ok(()),
                Err(RemoteError::Exists) => {
                    // An earlier attempt, of which no answer came, or a late one.
                    let there = self.read(name, None, bytes_of(body)).await?;
                    if there.body != body.concat() {
                        return Err(ArchiveError::broken(name, "it exists with other content"));
                    }
                    return Ok(());
                }
                Err(_) => self.wait(&mut pause).await?,
            }
        }
    }
}

/// Bytes of a body in pieces.
fn bytes_of(body: &[Bytes]) -> u64 {
    body.iter().map(|piece| piece.len() as u64).sum()
}
