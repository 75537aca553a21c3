//! Idempotency keys of publications. A repeated request gets the result of the first one with its
//! key, also while that one is in flight.
//!
//! The table in memory has hashes of keys only, and a fixed bound. The store keeps the hash of a
//! key with its publication. After a start, the first request with a key in a channel reads those
//! of its kept publications, so a repetition is known over a restart, too.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use steadfast_flow::{Env, has_fault};
use steadfast_store::{ChannelHandle, Position};
use tokio::sync::watch;

use crate::error::ChannelError;
use crate::hashing::SeededHashes;
use crate::sabotage::ClusterSabotage;

/// How long a published key is known, and the maximum number of such keys.
const KNOWN: Duration = Duration::from_secs(300);
const KNOWN_MAX: usize = 100_000;

/// Maximum number of channels whose stored keys count as read. The keys of others are read again.
const READ_MAX: usize = 1 << 20;

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
    /// From then on all keys that count are in memory.
    all_known_at: Duration,
    sabotage: ClusterSabotage,
    known: Mutex<KeyTable>,
}

#[derive(Default)]
struct KeyTable {
    by_key: HashMap<u128, KeyState>,
    /// Published keys by expiry.
    expiries: BTreeSet<(Duration, u128)>,
    /// Channels whose stored keys are in the table.
    read: HashSet<u64>,
}

/// A hash of a key, the same in each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyHash(pub(crate) u128);

impl KeyHash {
    pub(crate) fn new(key: &str) -> Self {
        let hash = Sha256::digest(key);
        Self(hash[..16].iter().fold(0, |sum, byte| sum << 8 | u128::from(*byte)))
    }
}

enum KeyState {
    InFlight(watch::Receiver<Outcome>),
    Published(Position),
}

impl Keys {
    pub(crate) fn new(env: Env, sabotage: ClusterSabotage) -> Self {
        let hashers = [SeededHashes::new(&env), SeededHashes::new(&env)];
        let all_known_at = env.now() + KNOWN;
        Self(Arc::new(KeysShared { env, hashers, all_known_at, sabotage, known: Mutex::default() }))
    }

    fn id(&self, channel: &str, key: KeyHash) -> u128 {
        let [high, low] = [0, 1].map(|i| u128::from(self.0.hashers[i].hash_one((channel, key.0))));
        high << 64 | low
    }

    /// Reads the keys that an earlier process stored in a channel, unless that was done.
    fn read_stored(&self, channel: &ChannelHandle) -> Result<(), ChannelError> {
        let (now, of) = (self.0.env.now(), self.0.hashers[0].hash_one(channel.name()));
        if now >= self.0.all_known_at || has_fault(self.0.sabotage, ClusterSabotage::KeysForgotten) {
            return Ok(());
        }
        if self.0.known.lock().read.contains(&of) {
            return Ok(());
        }
        let stored = channel.keys_within(KNOWN, KNOWN_MAX)?;
        let mut known = self.0.known.lock();
        for one in stored {
            let id = self.id(channel.name(), KeyHash(one.key));
            // What this process published, or publishes now, is newer.
            if let Entry::Vacant(entry) = known.by_key.entry(id) {
                entry.insert(KeyState::Published(one.position));
                known.expiries.insert((now + KNOWN.saturating_sub(one.age), id));
            }
        }
        if known.read.len() < READ_MAX {
            known.read.insert(of);
        }
        Ok(())
    }

    /// Publishes, unless a publication with this key was made or is in flight. The publication
    /// continues if the caller stops waiting, so a retry finds it in flight. `publish` ends when
    /// the result is certain, however long that takes.
    ///
    /// # Errors
    /// Those of `publish`, also of a publication in flight that this request joined, and when
    /// the stored keys of the channel cannot be read. The client may retry.
    pub(crate) async fn once(
        &self,
        channel: &str,
        stored: Option<&ChannelHandle>,
        key: KeyHash,
        publish: impl Future<Output = Result<Position, ChannelError>> + Send + 'static,
    ) -> Result<Position, ChannelError> {
        if let Some(stored) = stored {
            self.read_stored(stored)?;
        }
        let key = self.id(channel, key);
        let mut outcome = {
            let mut known = self.0.known.lock();
            known.forget(self.0.env.now());
            assert!(known.by_key.len() >= known.expiries.len(), "a published key without its entry");
            if self.0.env.now() >= self.0.all_known_at {
                known.read = HashSet::new();
            }
            match known.by_key.get(&key) {
                Some(KeyState::Published(position)) => return Ok(*position),
                Some(KeyState::InFlight(outcome)) => outcome.clone(),
                None if known.by_key.len() - known.expiries.len() >= IN_FLIGHT_MAX => {
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
}

impl KeyTable {
    /// Drops expired keys.
    fn forget(&mut self, now: Duration) {
        while let Some((until, key)) = self.expiries.first().copied()
            && (until <= now || self.expiries.len() > KNOWN_MAX)
        {
            let gone = self.by_key.remove(&key);
            assert!(matches!(gone, Some(KeyState::Published(_))), "a key in flight is forgotten");
            self.expiries.pop_first();
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
        let until = self.keys.0.env.now() + KNOWN;
        let mut known = self.keys.0.known.lock();
        match self.position {
            Some(position) => {
                let before = known.by_key.insert(self.key, KeyState::Published(position));
                debug_assert!(matches!(before, Some(KeyState::InFlight(_))), "a key is published twice");
                known.expiries.insert((until, self.key));
                known.forget(Duration::ZERO);
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

    /// [`Keys::once`] in a channel without stored keys.
    async fn once(
        keys: &Keys,
        channel: &str,
        key: &str,
        publish: impl Future<Output = Result<Position, ChannelError>> + Send + 'static,
    ) -> Result<Position, ChannelError> {
        keys.once(channel, None, KeyHash::new(key), publish).await
    }

    #[tokio::test]
    async fn concurrent_requests_get_the_result_of_the_first() {
        let (keys, published) = (Keys::new(Env::tokio(), ClusterSabotage::None), Arc::new(AtomicU64::new(0)));
        let publish = || {
            let published = published.clone();
            async move {
                tokio::task::yield_now().await;
                Ok(at(published.fetch_add(1, Relaxed) + 1))
            }
        };
        let all = join_all((0..20).map(|_| once(&keys, "c", "k", publish()))).await;
        assert_eq!(all, vec![Ok(at(1)); 20]);
        assert_eq!(once(&keys, "c", "k", publish()).await, Ok(at(1)));
        assert_eq!(once(&keys, "c", "other", publish()).await, Ok(at(2)));
        assert_eq!(once(&keys, "d", "k", publish()).await, Ok(at(3)));
    }

    #[tokio::test]
    async fn a_retry_finds_the_publication_in_flight() {
        let keys = Keys::new(Env::tokio(), ClusterSabotage::None);
        let (go, released) = oneshot::channel::<()>();
        let first = once(&keys, "c", "k", async move {
            let _ = released.await;
            Ok(at(1))
        });
        {
            let mut first = std::pin::pin!(first);
            assert!(futures::poll!(first.as_mut()).is_pending());
        }
        let mut again = std::pin::pin!(once(&keys, "c", "k", async { Ok(at(2)) }));
        assert!(futures::poll!(again.as_mut()).is_pending());
        go.send(()).expect("the publication continues without its caller");
        assert_eq!(again.await, Ok(at(1)));
    }

    #[tokio::test]
    async fn failed_and_panicked_publications_may_be_retried() {
        let keys = Keys::new(Env::tokio(), ClusterSabotage::None);
        assert_eq!(once(&keys, "c", "k", async { Err(ChannelError::Busy) }).await, Err(ChannelError::Busy));
        #[allow(clippy::panic, reason = "a publication that panics is the case under test")]
        let ended = once(&keys, "c", "k", async { panic!("no end") }).await;
        assert_eq!(ended, Err(ChannelError::Internal));
        assert_eq!(once(&keys, "c", "k", async { Ok(at(1)) }).await, Ok(at(1)));
    }

    #[tokio::test]
    async fn the_table_is_bounded() {
        let keys = Keys::new(Env::tokio(), ClusterSabotage::None);
        for key in 0..KNOWN_MAX as u128 + 10 {
            let (sender, in_flight) = watch::channel(None);
            keys.0.known.lock().by_key.insert(key, KeyState::InFlight(in_flight));
            drop(InFlightPublication { keys: keys.clone(), key, sender, position: Some(at(1)) });
        }
        {
            let mut known = keys.0.known.lock();
            assert_eq!((known.by_key.len(), known.expiries.len()), (KNOWN_MAX, KNOWN_MAX));
            assert!(!known.by_key.contains_key(&9) && known.by_key.contains_key(&10));
            known.forget(Duration::MAX);
            assert!(known.by_key.is_empty() && known.expiries.is_empty());
            let in_flight = watch::channel(None).1;
            known.by_key.extend((0..IN_FLIGHT_MAX as u128).map(|key| (key, KeyState::InFlight(in_flight.clone()))));
        }
        assert_eq!(once(&keys, "c", "k", async { Ok(at(1)) }).await, Err(ChannelError::Busy));
    }
}
