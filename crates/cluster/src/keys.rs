//! Idempotency keys of publications. A repeated request gets the result of the first one with its
//! key, also while that one is in flight.
//!
//! Keys are in memory and lost in a restart. Only hashes of keys are stored, so the table has a
//! fixed bound.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::Env;
use steadfast_store::Position;
use tokio::sync::watch;

use crate::error::ChannelError;
use crate::hashing::SeededHashes;

/// How long a published key is known, in milliseconds, and the maximum number of such keys.
const KNOWN_MS: u64 = 300_000;
const KNOWN_MAX: usize = 100_000;

/// How long a request waits for a publication in flight. The publication may be committed later.
const WAIT: Duration = Duration::from_secs(10);

/// Maximum number of keyed publications in flight.
const IN_FLIGHT_MAX: usize = 20_000;

/// The result of a publication; `None` while it is in flight.
type Outcome = Option<Result<Position, ChannelError>>;

/// The table of keys. Clones share it.
#[derive(Clone)]
pub(crate) struct Keys(Arc<KeysShared>);

struct KeysShared {
    env: Env,
    hashers: [SeededHashes; 2],
    known: Mutex<KeyTable>,
}

#[derive(Default)]
struct KeyTable {
    by_key: HashMap<u128, KeyState>,
    /// Published keys in order, each with its expiry in monotonic milliseconds.
    order: VecDeque<(u64, u128)>,
}

enum KeyState {
    InFlight(watch::Receiver<Outcome>),
    Published(Position),
}

impl Keys {
    pub(crate) fn new(env: Env) -> Self {
        let hashers = [SeededHashes::new(&env), SeededHashes::new(&env)];
        Self(Arc::new(KeysShared { env, hashers, known: Mutex::default() }))
    }

    /// Publishes, unless a publication with this key was made or is in flight. The publication
    /// continues if the caller stops waiting, so a retry finds it in flight. `publish` ends when
    /// the result is certain, however long that takes.
    ///
    /// # Errors
    /// Those of `publish`, also of a publication in flight that this request joined. The client may
    /// retry.
    pub(crate) async fn once(
        &self,
        channel: &str,
        key: &str,
        publish: impl Future<Output = Result<Position, ChannelError>> + Send + 'static,
    ) -> Result<Position, ChannelError> {
        let [high, low] = [0, 1].map(|i| u128::from(self.0.hashers[i].hash_one((channel, key))));
        let key = high << 64 | low;
        let mut outcome = {
            let mut known = self.0.known.lock();
            known.forget(self.now_ms());
            match known.by_key.get(&key) {
                Some(KeyState::Published(position)) => return Ok(*position),
                Some(KeyState::InFlight(outcome)) => outcome.clone(),
                None if known.by_key.len() - known.order.len() >= IN_FLIGHT_MAX => {
                    return Err(ChannelError::Busy);
                }
                None => {
                    let (sender, outcome) = watch::channel(None);
                    known.by_key.insert(key, KeyState::InFlight(outcome.clone()));
                    let first = InFlightPublication { keys: self.clone(), key, sender, position: None };
                    self.0.env.spawn("live publication", async move { first.end(publish.await) });
                    outcome
                }
            }
        };
        let outcome =
            self.0.env.timeout(WAIT, outcome.wait_for(Option::is_some)).await.ok_or(ChannelError::DiskHangs)?;
        outcome.ok().and_then(|outcome| *outcome).unwrap_or(Err(ChannelError::Internal))
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.0.env.now().as_millis()).unwrap_or(u64::MAX)
    }
}

impl KeyTable {
    /// Drops expired keys.
    fn forget(&mut self, now_ms: u64) {
        while let Some((until, key)) = self.order.front()
            && (*until <= now_ms || self.order.len() > KNOWN_MAX)
        {
            self.by_key.remove(key);
            self.order.pop_front();
        }
    }
}

/// The publication in flight for a key. If it ends without a result, the next request publishes.
struct InFlightPublication {
    keys: Keys,
    key: u128,
    sender: watch::Sender<Outcome>,
    position: Option<Position>,
}

impl InFlightPublication {
    fn end(mut self, outcome: Result<Position, ChannelError>) {
        self.position = outcome.as_ref().ok().copied();
        // Insert the key before sending the result: a client that retries after the answer must
        // find it.
        let sender = self.sender.clone();
        drop(self);
        sender.send_replace(Some(outcome));
    }
}

impl Drop for InFlightPublication {
    fn drop(&mut self) {
        let until = self.keys.now_ms() + KNOWN_MS;
        let mut known = self.keys.0.known.lock();
        match self.position {
            Some(position) => {
                known.by_key.insert(self.key, KeyState::Published(position));
                known.order.push_back((until, self.key));
                known.forget(0);
            }
            None => drop(known.by_key.remove(&self.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use futures::future::join_all;
    use tokio::sync::oneshot;

    use super::*;

    fn at(offset: u64) -> Position {
        Position { epoch: 1, offset }
    }

    #[tokio::test]
    async fn concurrent_requests_get_the_result_of_the_first() {
        let (keys, published) = (Keys::new(Env::tokio()), Arc::new(AtomicU64::new(0)));
        let publish = || {
            let published = published.clone();
            async move {
                tokio::task::yield_now().await;
                Ok(at(published.fetch_add(1, Relaxed) + 1))
            }
        };
        let all = join_all((0..20).map(|_| keys.once("c", "k", publish()))).await;
        assert_eq!(all, vec![Ok(at(1)); 20]);
        assert_eq!(keys.once("c", "k", publish()).await, Ok(at(1)));
        assert_eq!(keys.once("c", "other", publish()).await, Ok(at(2)));
        assert_eq!(keys.once("d", "k", publish()).await, Ok(at(3)));
    }

    #[tokio::test]
    async fn a_retry_finds_the_publication_in_flight() {
        let keys = Keys::new(Env::tokio());
        let (go, released) = oneshot::channel::<()>();
        let first = keys.once("c", "k", async move {
            let _ = released.await;
            Ok(at(1))
        });
        {
            let mut first = std::pin::pin!(first);
            assert!(futures::poll!(first.as_mut()).is_pending());
        }
        let mut again = std::pin::pin!(keys.once("c", "k", async { Ok(at(2)) }));
        assert!(futures::poll!(again.as_mut()).is_pending());
        go.send(()).expect("the publication continues without its caller");
        assert_eq!(again.await, Ok(at(1)));
    }

    #[tokio::test]
    async fn failed_and_panicked_publications_may_be_retried() {
        let keys = Keys::new(Env::tokio());
        assert_eq!(keys.once("c", "k", async { Err(ChannelError::Busy) }).await, Err(ChannelError::Busy));
        #[allow(clippy::panic, reason = "a publication that panics is the case under test")]
        let ended = keys.once("c", "k", async { panic!("no end") }).await;
        assert_eq!(ended, Err(ChannelError::Internal));
        assert_eq!(keys.once("c", "k", async { Ok(at(1)) }).await, Ok(at(1)));
    }

    #[tokio::test]
    async fn the_table_is_bounded() {
        let keys = Keys::new(Env::tokio());
        for key in 0..KNOWN_MAX + 10 {
            let first = InFlightPublication {
                keys: keys.clone(),
                key: key as u128,
                sender: watch::channel(None).0,
                position: Some(at(1)),
            };
            drop(first);
        }
        {
            let mut known = keys.0.known.lock();
            assert_eq!((known.by_key.len(), known.order.len()), (KNOWN_MAX, KNOWN_MAX));
            assert!(!known.by_key.contains_key(&9) && known.by_key.contains_key(&10));
            known.forget(u64::MAX);
            assert!(known.by_key.is_empty() && known.order.is_empty());
            let in_flight = watch::channel(None).1;
            known.by_key.extend((0..IN_FLIGHT_MAX as u128).map(|key| (key, KeyState::InFlight(in_flight.clone()))));
        }
        assert_eq!(keys.once("c", "k", async { Ok(at(1)) }).await, Err(ChannelError::Busy));
    }
}
