//! Publications by their idempotency keys: whoever asks for the same again, also while the first request is under way, gets what the
//! first one got.
//!
//! Keys are in memory, and so not known after a restart. Only their hashes are kept, so that all of them take a bounded room.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::Env;
use steadfast_store::Position;
use tokio::sync::watch;

use crate::protocol::codes::{self, ClientError};

/// For how long a publication is known by its key, milliseconds, and how many are.
const KNOWN_MS: u64 = 300_000;
const KNOWN_MAX: usize = 100_000;

/// How long a request waits for a publication that is under way. It may be committed after that.
const WAIT: Duration = Duration::from_secs(10);

/// Publications with keys that are under way at a time.
const UNDER_WAY_MAX: usize = 20_000;

/// What a publication came to; `None` while it is under way.
type Outcome = Option<Result<Position, ClientError>>;

/// See the module. Cloning shares them.
#[derive(Clone)]
pub(super) struct Keys(Arc<Shared>);

struct Shared {
    env: Env,
    hashers: [RandomState; 2],
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    by_key: HashMap<u128, State>,
    /// Those that are not under way any more, and until when they are known, in monotonic milliseconds.
    order: VecDeque<(u64, u128)>,
}

enum State {
    UnderWay(watch::Receiver<Outcome>),
    Published(Position),
}

impl Keys {
    pub(super) fn new(env: Env) -> Self {
        Self(Arc::new(Shared { env, hashers: [RandomState::new(), RandomState::new()], known: Mutex::default() }))
    }

    /// Publishes, unless that was done or is being done with this key. It goes on when the caller does not wait any more: one that
    /// gives up and asks again finds it under way. `publish` ends when it is certain whether it was published, however long that takes.
    ///
    /// # Errors
    /// Those of `publish`, also of a first one that this one waited for; it may be tried again then.
    pub(super) async fn once(
        &self,
        channel: &str,
        key: &str,
        publish: impl Future<Output = Result<Position, ClientError>> + Send + 'static,
    ) -> Result<Position, ClientError> {
        let [high, low] = [0, 1].map(|i| u128::from(self.0.hashers[i].hash_one((channel, key))));
        let key = high << 64 | low;
        let mut outcome = {
            let mut known = self.0.known.lock();
            known.forget(self.now_ms());
            match known.by_key.get(&key) {
                Some(State::Published(position)) => return Ok(*position),
                Some(State::UnderWay(outcome)) => outcome.clone(),
                None if known.by_key.len() - known.order.len() >= UNDER_WAY_MAX => {
                    return Err(codes::TOO_MANY_REQUESTS);
                }
                None => {
                    let (tell, outcome) = watch::channel(None);
                    known.by_key.insert(key, State::UnderWay(outcome.clone()));
                    let first = First { keys: self.clone(), key, tell, position: None };
                    self.0.env.spawn("live publication", async move { first.end(publish.await) });
                    outcome
                }
            }
        };
        let outcome = self.0.env.timeout(WAIT, outcome.wait_for(Option::is_some)).await.ok_or(codes::DISK_HANGS)?;
        outcome.ok().and_then(|outcome| outcome.clone()).unwrap_or(Err(codes::INTERNAL))
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.0.env.now().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Known {
    /// Lets go of those whose time is over.
    fn forget(&mut self, now_ms: u64) {
        while let Some((until, key)) = self.order.front()
            && (*until <= now_ms || self.order.len() > KNOWN_MAX)
        {
            self.by_key.remove(key);
            self.order.pop_front();
        }
    }
}

/// The first request with a key. Where it comes to no end, the next one is the first.
struct First {
    keys: Keys,
    key: u128,
    tell: watch::Sender<Outcome>,
    position: Option<Position>,
}

impl First {
    fn end(mut self, outcome: Result<Position, ClientError>) {
        self.position = outcome.as_ref().ok().copied();
        // Known before it is told: who is answered and asks again must find it.
        let tell = self.tell.clone();
        drop(self);
        tell.send_replace(Some(outcome));
    }
}

impl Drop for First {
    fn drop(&mut self) {
        let until = self.keys.now_ms() + KNOWN_MS;
        let mut known = self.keys.0.known.lock();
        match self.position {
            Some(position) => {
                known.by_key.insert(self.key, State::Published(position));
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
    use crate::api::{Api, Command, Done, Publish, Terms};
    use crate::commands::tests::node_with;

    fn at(offset: u64) -> Position {
        Position { epoch: 1, offset }
    }

    #[tokio::test]
    async fn who_asks_while_the_first_is_under_way_gets_what_it_gets() {
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
    async fn one_that_gives_up_and_asks_again_finds_it_under_way() {
        let keys = Keys::new(Env::tokio());
        let (go, goes) = oneshot::channel::<()>();
        let first = keys.once("c", "k", async move {
            let _ = goes.await;
            Ok(at(1))
        });
        {
            let mut first = std::pin::pin!(first);
            assert!(futures::poll!(first.as_mut()).is_pending());
        }
        let mut again = std::pin::pin!(keys.once("c", "k", async { Ok(at(2)) }));
        assert!(futures::poll!(again.as_mut()).is_pending());
        go.send(()).expect("it goes on by itself");
        assert_eq!(again.await, Ok(at(1)));
    }

    #[tokio::test]
    async fn what_failed_or_came_to_no_end_may_be_tried_again() {
        let keys = Keys::new(Env::tokio());
        assert_eq!(keys.once("c", "k", async { Err(codes::TOO_MANY_REQUESTS) }).await, Err(codes::TOO_MANY_REQUESTS));
        #[allow(clippy::panic, reason = "what is tested")]
        let ended = keys.once("c", "k", async { panic!("no end") }).await;
        assert_eq!(ended, Err(codes::INTERNAL));
        assert_eq!(keys.once("c", "k", async { Ok(at(1)) }).await, Ok(at(1)));
    }

    #[tokio::test]
    async fn they_are_bounded() {
        let keys = Keys::new(Env::tokio());
        for key in 0..KNOWN_MAX + 10 {
            let first =
                First { keys: keys.clone(), key: key as u128, tell: watch::channel(None).0, position: Some(at(1)) };
            drop(first);
        }
        {
            let mut known = keys.0.known.lock();
            assert_eq!((known.by_key.len(), known.order.len()), (KNOWN_MAX, KNOWN_MAX));
            assert!(!known.by_key.contains_key(&9) && known.by_key.contains_key(&10));
            known.forget(u64::MAX);
            assert!(known.by_key.is_empty() && known.order.is_empty());
            let under_way = watch::channel(None).1;
            known.by_key.extend((0..UNDER_WAY_MAX as u128).map(|key| (key, State::UnderWay(under_way.clone()))));
        }
        assert_eq!(keys.once("c", "k", async { Ok(at(1)) }).await, Err(codes::TOO_MANY_REQUESTS));
    }

    /// A broadcast that names a channel again, and a batch that is carried out together.
    #[tokio::test]
    async fn a_key_counts_within_one_request_too() {
        let config = r#"{"channel": {"without_namespace": {"history_size": 50, "history_ttl": "60s"}}}"#;
        let api = Api::new(node_with(config).await);
        let publish = || Publish {
            data: b"1".to_vec(),
            tags: Default::default(),
            skip_history: false,
            idempotency_key: "k".into(),
        };
        let channels = vec!["a".to_owned(), "b".to_owned(), "a".to_owned(), "a".to_owned()];
        let done = api.carry_out(Command::Broadcast(channels, publish()), &Terms::default()).await.expect("published");
        let Done::Broadcast(positions) = done else { panic!("{done:?}") };
        let offsets: Vec<_> = positions.into_iter().map(|position| position.map(|at| at.offset)).collect();
        assert_eq!(offsets, vec![Ok(1); 4]);
        let commands = (0..4).map(|_| Ok(Command::Publish("c".into(), publish()))).collect();
        for answer in api.batch(commands, true, &Terms::default()).await.expect("carried out") {
            assert!(matches!(answer, Ok(Done::Published(Position { offset: 1, .. }))), "{answer:?}");
        }
    }
}
