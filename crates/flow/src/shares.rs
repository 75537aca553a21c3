//! A byte budget of which one key gets no more than its share.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::{Budget, Env, FlowStatus, Permit, Refused};

struct Share {
    budget: Budget,
    /// Those of this key that hold something or wait. Changed under the lock of the map.
    present: usize,
}

struct Shared {
    budget: Budget,
    share_bytes: u64,
    env: Env,
    /// Keys of which somebody holds something or waits. Never iterated.
    keys: Mutex<HashMap<Arc<str>, Share>>,
}

/// A [`Budget`] that also bounds each key (a client), so that one of them cannot take all of it: a
/// caller waits for its key's turn first, and only then among the others. Cloning shares it.
#[derive(Clone)]
pub struct KeyedBudget(Arc<Shared>);

impl KeyedBudget {
    /// A budget of `limit_bytes`, of which one key gets at most `share_bytes`. `name` is its name in
    /// metrics and errors.
    pub fn new(name: &'static str, limit_bytes: u64, share_bytes: u64, env: Env) -> Self {
        let budget = Budget::new(name, limit_bytes, env.clone());
        let share_bytes = share_bytes.clamp(1, budget.request_bytes_max().max(1));
        Self(Arc::new(Shared { budget, share_bytes, env, keys: Mutex::default() }))
    }

    /// Takes `bytes`, waiting for at most `wait`. Dropping the future leaks nothing.
    ///
    /// # Errors
    /// [`Refused::Busy`] after `wait`, or [`Refused::TooLarge`] when `bytes` is above what
    /// [`KeyedBudget::clamp`] allows.
    pub async fn acquire(&self, key: &str, bytes: u64, wait: Duration) -> Result<KeyedPermit, Refused> {
        let lease = self.lease(key);
        let gauge = self.0.budget.gauge();
        let own = match lease.share.try_acquire(bytes) {
            Ok(own) => own,
            Err(refused @ Refused::TooLarge { .. }) => return Err(refused),
            Err(_) => {
                let waiting = gauge.wait(&self.0.env);
                match lease.share.acquire(bytes, wait).await {
                    Ok(own) => own,
                    Err(_) => return Err(gauge.busy(waiting.elapsed())),
                }
            }
        };
        let all = self.0.budget.acquire(bytes, wait).await?;
        Ok(KeyedPermit { all, own, _lease: lease })
    }

    /// The part of `bytes` that can be asked for in one request.
    pub fn clamp(&self, bytes: u64) -> u64 {
        bytes.min(self.0.share_bytes)
    }

    /// The gauges of the common bound; a caller that waits or is refused for its own share counts.
    pub fn status(&self) -> FlowStatus {
        self.0.budget.status()
    }

    /// How many keys hold something or wait.
    pub fn keys(&self) -> usize {
        self.0.keys.lock().len()
    }

    fn lease(&self, key: &str) -> Lease {
        let mut keys = self.0.keys.lock();
        let (key, share) = match keys.get_key_value(key) {
            Some((key, share)) => (key.clone(), share.budget.clone()),
            None => {
                let share = Budget::new(self.0.budget.gauge().name, self.0.share_bytes, self.0.env.clone());
                let key: Arc<str> = key.into();
                keys.insert(key.clone(), Share { budget: share.clone(), present: 0 });
                (key, share)
            }
        };
        if let Some(entry) = keys.get_mut(&key) {
            entry.present += 1;
        }
        drop(keys);
        Lease { shared: self.0.clone(), key, share }
    }
}

impl std::fmt::Debug for KeyedBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keyed{:?}", self.0.budget)
    }
}

/// Bytes taken from a [`KeyedBudget`]; given back when it is dropped.
#[must_use = "dropping it gives the bytes back"]
pub struct KeyedPermit {
    // In this order: what waits for its key's turn finds room in the whole.
    all: Permit,
    own: Permit,
    _lease: Lease,
}

impl KeyedPermit {
    /// Gives back what it holds above `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        self.all.shrink_to(bytes);
        self.own.shrink_to(bytes);
    }
}

impl std::fmt::Debug for KeyedPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyedPermit({} bytes)", self.all.bytes())
    }
}

/// Keeps a key in the map.
struct Lease {
    shared: Arc<Shared>,
    key: Arc<str>,
    share: Budget,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut keys = self.shared.keys.lock();
        if let Some(entry) = keys.get_mut(&self.key) {
            entry.present -= 1;
            if entry.present == 0 {
                keys.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Clock, Held};

    const WAIT: Duration = Duration::from_secs(1);

    #[test]
    fn one_key_gets_its_share_and_the_others_the_rest() {
        let clock = Clock::default();
        let budget = KeyedBudget::new("test", 100, 40, clock.env());
        let ask = |key: &'static str, bytes| {
            let budget = budget.clone();
            Held::new(async move { budget.acquire(key, bytes, WAIT).await })
        };
        assert_eq!(budget.clamp(1000), 40);
        assert!(matches!(ask("a", 41).poll(), Some(Err(Refused::TooLarge { .. }))));
        let first = ask("a", 30).poll().expect("at once").expect("room");
        let mut second = ask("a", 30);
        assert!(second.poll().is_none(), "its share is taken");
        let other = ask("b", 40).poll().expect("at once").expect("the rest is for others");
        assert_eq!((budget.status().used, budget.status().waiting, budget.keys()), (70, 1, 2));
        drop(first);
        let mut second = second.poll().expect("its turn").expect("room");
        second.shrink_to(20);
        let third = ask("a", 20).poll().expect("at once").expect("it gave back some");
        let mut late = ask("a", 30);
        assert!(late.poll().is_none());
        clock.advance(WAIT);
        assert!(matches!(late.poll(), Some(Err(Refused::Busy { .. }))));
        assert_eq!(budget.status().refused, 1);
        drop((second, third, other));
        assert_eq!((budget.status().used, budget.keys()), (0, 0), "idle keys vanish");
    }

    #[test]
    fn a_key_within_its_share_still_waits_for_the_whole() {
        let clock = Clock::default();
        let budget = KeyedBudget::new("test", 50, 40, clock.env());
        let ask = |key: &'static str| {
            let budget = budget.clone();
            Held::new(async move { budget.acquire(key, 40, WAIT).await })
        };
        let first = ask("a").poll().expect("at once").expect("room");
        let mut other = ask("b");
        assert!(other.poll().is_none());
        drop(first);
        drop(other.poll().expect("its turn").expect("room"));
        drop(other);
        assert_eq!((budget.status().used, budget.keys()), (0, 0));
    }
}
