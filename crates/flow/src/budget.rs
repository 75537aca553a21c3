//! A bound on bytes in flight.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::gauge::Gauge;
use crate::stages::{self, Stage};
use crate::{Env, FlowStatus, Refused};

struct Shared {
    room: Semaphore,
    limit: u64,
    gauge: Gauge,
    env: Env,
}

/// A byte budget. Waiters are served first come, first served, whatever their sizes, so small
/// requests never overtake a large one. Clones share the budget.
#[derive(Clone)]
pub struct Budget(Arc<Shared>);

impl Budget {
    /// Creates a budget of `limit_bytes`. Metrics and errors use `name`.
    pub fn new(name: &'static str, limit_bytes: u64, env: Env) -> Self {
        let limit = limit_bytes.min(Semaphore::MAX_PERMITS as u64);
        Self(Arc::new(Shared { room: Semaphore::new(limit as usize), limit, gauge: Gauge::new(name), env }))
    }

    /// Takes `bytes` without waiting. The call is also refused when enough bytes are free but other
    /// callers wait for them. A refusal costs one atomic load and a counter.
    ///
    /// # Errors
    /// [`Refused::Busy`], or [`Refused::TooLarge`] when `bytes` is above
    /// [`Budget::request_bytes_max`].
    pub fn try_acquire(&self, bytes: u64) -> Result<Permit, Refused> {
        let units = self.units(bytes)?;
        match self.0.room.try_acquire_many(units) {
            Ok(taken) => {
                taken.forget();
                Ok(self.permit(bytes))
            }
            Err(_) => Err(self.0.gauge.busy(Duration::ZERO)),
        }
    }

    /// Takes `bytes`, waiting for at most `wait`. Dropping the future leaves the queue and leaks
    /// nothing.
    ///
    /// # Errors
    /// [`Refused::Busy`] after `wait`, or [`Refused::TooLarge`] at once when `bytes` is above
    /// [`Budget::request_bytes_max`].
    pub async fn acquire(&self, bytes: u64, wait: Duration) -> Result<Permit, Refused> {
        let units = self.units(bytes)?;
        if let Ok(taken) = self.0.room.try_acquire_many(units) {
            taken.forget();
            return Ok(self.permit(bytes));
        }
        let (waiting, _lap) = (self.0.gauge.wait(&self.0.env), stages::enter(Stage::Reserve));
        match self.0.env.timeout(wait, self.0.room.acquire_many(units)).await {
            Some(Ok(taken)) => {
                taken.forget();
                Ok(self.permit(bytes))
            }
            _ => Err(self.0.gauge.busy(waiting.elapsed())),
        }
    }

    /// Clamps `bytes` to the largest single request, for a caller that prefers the whole budget to
    /// a refusal.
    pub fn clamp(&self, bytes: u64) -> u64 {
        bytes.min(self.request_bytes_max())
    }

    /// The largest single request in bytes: the whole budget, or 4 GiB - 1 if that is less.
    pub fn request_bytes_max(&self) -> u64 {
        self.0.limit.min(u64::from(u32::MAX))
    }

    /// The bound in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.0.limit
    }

    /// The bytes taken now.
    pub fn used_bytes(&self) -> u64 {
        self.0.gauge.used()
    }

    /// The gauges of the budget.
    pub fn status(&self) -> FlowStatus {
        self.0.gauge.status(self.0.limit)
    }

    fn units(&self, bytes: u64) -> Result<u32, Refused> {
        let max = self.request_bytes_max();
        match u32::try_from(bytes) {
            Ok(units) if bytes <= max => Ok(units),
            _ => Err(self.0.gauge.too_large(bytes, max)),
        }
    }

    /// The caller has forgotten the semaphore's own permit: from here on the [`Permit`] owns the
    /// bytes.
    fn permit(&self, bytes: u64) -> Permit {
        self.0.gauge.take(bytes);
        Permit { budget: self.clone(), bytes, share: None }
    }
}

impl std::fmt::Debug for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Budget({}: {} of {} bytes)", self.0.gauge.name, self.used_bytes(), self.0.limit)
    }
}

/// Bytes taken from a [`Budget`]. Dropping the permit releases them.
#[derive(Debug)]
#[must_use = "dropping it releases the bytes"]
pub struct Permit {
    budget: Budget,
    bytes: u64,
    /// The share of a key that they count for.
    share: Option<Arc<Share>>,
}

impl Permit {
    /// The number of bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Moves `bytes` into a separate permit; `None` when this permit holds fewer.
    pub fn split(&mut self, bytes: u64) -> Option<Permit> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(Permit { budget: self.budget.clone(), bytes, share: self.share.clone() })
    }

    /// Adds the bytes of another permit of the same budget.
    ///
    /// # Panics
    /// When the other permit belongs to another budget or counts for another share.
    pub fn merge(&mut self, mut other: Permit) {
        assert!(Arc::ptr_eq(&self.budget.0, &other.budget.0), "permits of two budgets");
        let share = |permit: &Permit| permit.share.as_ref().map(Arc::as_ptr);
        assert_eq!(share(self), share(&other), "permits of two shares");
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Releases the bytes held above `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        let above = self.bytes.saturating_sub(bytes);
        drop(self.split(above));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.0.gauge.release(self.bytes);
            self.budget.0.room.add_permits(self.bytes as usize);
            if let Some(share) = &self.share {
                share.release(self.bytes);
            }
        }
    }
}

type UsedByKey = Arc<Mutex<HashMap<Arc<str>, u64>>>;

/// The bytes that one key has taken.
#[derive(Debug)]
struct Share {
    key: Arc<str>,
    used: UsedByKey,
}

impl Share {
    fn release(&self, bytes: u64) {
        let mut used = self.used.lock();
        let Some(of_key) = used.get_mut(&self.key) else { return debug_assert!(false, "bytes of an unknown key") };
        debug_assert!(*of_key >= bytes, "more bytes than were taken");
        *of_key = of_key.saturating_sub(bytes);
        if *of_key == 0 {
            used.remove(&self.key);
        }
    }
}

/// A [`Budget`] of which one key (an address) takes at most a share, so one key cannot starve the
/// others. Clones share it.
#[derive(Clone, Debug)]
pub struct KeyedBudget {
    budget: Budget,
    key_bytes_max: u64,
    /// Keys with bytes. Never iterated.
    used: UsedByKey,
}

impl KeyedBudget {
    /// A share of `budget` for each key, at most `key_bytes_max`.
    pub fn new(budget: Budget, key_bytes_max: u64) -> Self {
        Self { budget, key_bytes_max, used: Arc::default() }
    }

    /// The budget of all keys.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Whether the key has taken less than its share.
    pub fn has_room(&self, key: &Arc<str>) -> bool {
        self.used.lock().get(key).is_none_or(|used| *used < self.key_bytes_max)
    }

    /// Counts the bytes of a permit for the share of `key`.
    ///
    /// # Errors
    /// [`Refused::Busy`] when the key has its share; the bytes are released.
    ///
    /// # Panics
    /// When the permit belongs to another budget, or counts for a share already.
    pub fn assign(&self, mut permit: Permit, key: &Arc<str>) -> Result<Permit, Refused> {
        assert!(Arc::ptr_eq(&permit.budget.0, &self.budget.0), "a permit of another budget");
        assert!(permit.share.is_none(), "a permit counts for one share");
        if permit.bytes == 0 {
            return Ok(permit);
        }
        let mut used = self.used.lock();
        let of_key = used.get(key).copied().unwrap_or_default() + permit.bytes;
        if of_key > self.key_bytes_max {
            return Err(self.budget.0.gauge.busy(Duration::ZERO));
        }
        used.insert(key.clone(), of_key);
        permit.share = Some(Arc::new(Share { key: key.clone(), used: self.used.clone() }));
        Ok(permit)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{Clock, Held};

    const LONG: Duration = Duration::from_secs(1000);

    fn budget(limit: u64) -> (Budget, Clock) {
        let clock = Clock::default();
        (Budget::new("test", limit, clock.env()), clock)
    }

    fn waiting(budget: &Budget, bytes: u64, wait: Duration) -> Held<Result<Permit, Refused>> {
        let budget = budget.clone();
        let mut held = Held::new(async move { budget.acquire(bytes, wait).await });
        assert!(held.poll().is_none(), "must wait");
        held
    }

    #[test]
    fn try_acquire_refuses_at_once_and_counts() {
        let (budget, _) = budget(100);
        let first = budget.try_acquire(60).expect("room");
        assert_eq!(budget.try_acquire(41).unwrap_err(), Refused::Busy { name: "test", waited: Duration::ZERO });
        let second = budget.try_acquire(40).expect("room");
        drop((first, second));
        let status = budget.status();
        assert_eq!((status.used, status.peak, status.refused, status.granted), (0, 100, 1, 2));
    }

    #[test]
    fn a_request_above_the_limit_is_refused_or_clamped_by_the_caller() {
        let (budget, _) = budget(100);
        let refused = budget.try_acquire(101).unwrap_err();
        assert_eq!(refused, Refused::TooLarge { name: "test", wanted: 101, limit: 100 });
        assert_eq!(refused.to_string(), "101 exceeds the limit of test, 100");
        assert_eq!(budget.try_acquire(budget.clamp(101)).expect("all of it").bytes(), 100);
        let huge = Budget::new("huge", 1 << 40, Clock::default().env());
        assert!(huge.try_acquire(u64::from(u32::MAX) + 1).is_err());
        assert_eq!(huge.try_acquire(huge.clamp(u64::MAX)).expect("room").bytes(), u64::from(u32::MAX));
    }

    #[test]
    fn a_large_waiter_is_not_overtaken_by_small_requests() {
        let (budget, _) = budget(100);
        let held = budget.try_acquire(50).expect("room");
        let mut large = waiting(&budget, 80, LONG);
        assert!(budget.try_acquire(10).is_err(), "50 are free, but another caller waits for them");
        let mut small = waiting(&budget, 10, LONG);
        drop(held);
        let large = large.poll().expect("served").expect("granted");
        let small = small.poll().expect("served").expect("granted");
        assert_eq!((large.bytes(), small.bytes(), budget.used_bytes()), (80, 10, 90));
    }

    #[test]
    fn a_dropped_waiter_leaks_nothing_and_admits_the_next() {
        let (budget, _) = budget(100);
        let held = budget.try_acquire(50).expect("room");
        let large = waiting(&budget, 80, LONG);
        let mut small = waiting(&budget, 10, LONG);
        assert_eq!(budget.status().waiting, 2);
        drop(large);
        assert_eq!(small.poll().expect("served").expect("granted").bytes(), 10);
        drop(held);
        assert_eq!((budget.status().waiting, budget.used_bytes()), (0, 0));
        assert_eq!(budget.try_acquire(100).expect("nothing was lost").bytes(), 100);
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let (budget, clock) = budget(100);
        let held = budget.try_acquire(100).expect("room");
        let mut late = waiting(&budget, 1, Duration::from_millis(20));
        clock.advance(Duration::from_millis(19));
        assert!(late.poll().is_none());
        clock.advance(Duration::from_millis(1));
        let refused = late.poll().expect("answered").unwrap_err();
        assert_eq!(refused, Refused::Busy { name: "test", waited: Duration::from_millis(20) });
        assert_eq!((budget.status().waited_us, budget.status().refused), (20_000, 1));
        drop(held);
        assert_eq!(budget.try_acquire(100).expect("nothing was lost").bytes(), 100);
    }

    #[test]
    fn permits_split_merge_and_shrink() {
        let (budget, _) = budget(100);
        let mut all = budget.try_acquire(90).expect("room");
        assert!(all.split(91).is_none());
        let part = all.split(30).expect("enough");
        assert_eq!((all.bytes(), part.bytes(), budget.used_bytes()), (60, 30, 90));
        all.merge(part);
        all.shrink_to(20);
        assert_eq!((all.bytes(), budget.used_bytes()), (20, 20));
        all.shrink_to(50);
        assert_eq!(all.bytes(), 20);
        drop(all);
        assert_eq!(budget.try_acquire(100).expect("nothing was lost").bytes(), 100);
    }

    #[test]
    fn one_key_cannot_take_the_bytes_of_the_others() {
        let (budget, _) = budget(100);
        let keyed = KeyedBudget::new(budget.clone(), 40);
        let (one, two): (Arc<str>, Arc<str>) = ("one".into(), "two".into());
        let take = |key, bytes| keyed.assign(budget.try_acquire(bytes).expect("room"), key);
        let mut first = take(&one, 30).expect("its share");
        assert!(take(&one, 11).is_err(), "more than its share");
        assert_eq!((budget.used_bytes(), keyed.has_room(&one), keyed.has_room(&two)), (30, true, true));
        let rest = take(&one, 10).expect("its share");
        assert!(!keyed.has_room(&one) && keyed.has_room(&two));
        drop(rest);
        drop(take(&two, 40).expect("another key"));
        // The parts of a permit count for its key.
        let part = first.split(20).expect("enough");
        assert!(take(&one, 11).is_err());
        drop(first);
        let second = take(&one, 20).expect("room");
        drop((part, second, take(&one, 0)));
        assert_eq!((budget.used_bytes(), keyed.used.lock().len()), (0, 0));
    }

    #[test]
    fn a_snapshot_names_its_bound() {
        let (budget, _) = budget(7);
        let json = serde_json::to_value(budget.status()).expect("serializes");
        assert_eq!((json["name"].as_str(), json["limit"].as_u64()), (Some("test"), Some(7)));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Try(u64),
        Acquire(u64),
        Poll(usize),
        Cancel(usize),
        Release(usize),
        Split(usize, u64),
        Merge(usize, usize),
        Advance(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            2 => (0..120u64).prop_map(Step::Try),
            4 => (0..120u64).prop_map(Step::Acquire),
            4 => any::<usize>().prop_map(Step::Poll),
            2 => any::<usize>().prop_map(Step::Cancel),
            4 => any::<usize>().prop_map(Step::Release),
            1 => (any::<usize>(), 0..120u64).prop_map(|(i, n)| Step::Split(i, n)),
            1 => (any::<usize>(), any::<usize>()).prop_map(|(i, j)| Step::Merge(i, j)),
            1 => (0..30u64).prop_map(Step::Advance),
        ];
        proptest::collection::vec(step, 1..120)
    }

    proptest! {
        #[test]
        fn never_above_the_limit_and_nothing_leaks(steps in steps()) {
            const LIMIT: u64 = 100;
            let (budget, clock) = budget(LIMIT);
            let mut held: Vec<Permit> = Vec::new();
            let mut waiters: Vec<Held<Result<Permit, Refused>>> = Vec::new();
            for step in steps {
                match step {
                    Step::Try(n) => held.extend(budget.try_acquire(n)),
                    Step::Acquire(n) => {
                        let budget = budget.clone();
                        let mut future = Held::new(async move { budget.acquire(n, Duration::from_millis(50)).await });
                        match future.poll() {
                            Some(result) => held.extend(result),
                            None => waiters.push(future),
                        }
                    }
                    Step::Poll(i) if !waiters.is_empty() => {
                        let i = i % waiters.len();
                        if let Some(result) = waiters[i].poll() {
                            held.extend(result);
                            waiters.remove(i);
                        }
                    }
                    Step::Cancel(i) if !waiters.is_empty() => {
                        waiters.remove(i % waiters.len());
                    }
                    Step::Release(i) if !held.is_empty() => {
                        drop(held.swap_remove(i % held.len()));
                    }
                    Step::Split(i, n) if !held.is_empty() => {
                        let i = i % held.len();
                        let part = held[i].split(n);
                        held.extend(part);
                    }
                    Step::Merge(i, j) if held.len() > 1 => {
                        let taken = held.swap_remove(i % held.len());
                        let j = j % held.len();
                        held[j].merge(taken);
                    }
                    Step::Advance(ms) => clock.advance(Duration::from_millis(ms)),
                    _ => {}
                }
                let sum: u64 = held.iter().map(Permit::bytes).sum();
                prop_assert!(sum <= LIMIT);
                prop_assert_eq!(budget.used_bytes(), sum);
                prop_assert_eq!(budget.status().waiting, waiters.len() as u64);
            }
            drop((held, waiters));
            prop_assert_eq!(budget.used_bytes(), 0);
            prop_assert_eq!(budget.status().waiting, 0);
            prop_assert!(budget.try_acquire(LIMIT).is_ok());
        }
    }
}
