//! Semaphores with a bound on concurrent holders and on waiters.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::gauge::Gauge;
use crate::stages::{self, Stage};
use crate::{Env, FlowStatus, Refused};

struct GateShared {
    room: Arc<Semaphore>,
    limit: usize,
    /// Holders and waiters together.
    present: AtomicUsize,
    present_max: usize,
    gauge: Gauge,
    env: Env,
}

/// Admits `limit` callers at a time, first come, first served, and queues at most `waiting_max`.
/// Callers above that are refused at once, because a queue that is too long would only time out.
/// Clones share the gate.
#[derive(Clone)]
pub struct Gate(Arc<GateShared>);

impl Gate {
    /// Creates a gate for `limit` holders (at least 1). Metrics and errors use `name`.
    pub fn new(name: &'static str, limit: usize, waiting_max: usize, env: Env) -> Self {
        let limit = limit.clamp(1, Semaphore::MAX_PERMITS);
        Self(Arc::new(GateShared {
            room: Arc::new(Semaphore::new(limit)),
            limit,
            present: AtomicUsize::new(0),
            present_max: limit.saturating_add(waiting_max),
            gauge: Gauge::new(name),
            env,
        }))
    }

    /// Enters without waiting.
    ///
    /// # Errors
    /// [`Refused::Busy`] or [`Refused::Crowded`].
    pub fn try_enter(&self) -> Result<Pass, Refused> {
        let present = self.present()?;
        match self.0.room.clone().try_acquire_owned() {
            Ok(room) => Ok(self.pass(present, room, None)),
            Err(_) => Err(self.0.gauge.busy(Duration::ZERO)),
        }
    }

    /// Enters, waiting for at most `wait`. Dropping the future leaves the queue and leaks nothing.
    ///
    /// # Errors
    /// [`Refused::Busy`] after `wait`, [`Refused::Crowded`] at once when `waiting_max` callers wait
    /// already.
    pub async fn enter(&self, wait: Duration) -> Result<Pass, Refused> {
        let present = self.present()?;
        if let Ok(room) = self.0.room.clone().try_acquire_owned() {
            return Ok(self.pass(present, room, None));
        }
        let (waiting, _lap) = (self.0.gauge.wait(&self.0.env), stages::enter(Stage::Gate));
        match self.0.env.timeout(wait, self.0.room.clone().acquire_owned()).await {
            Some(Ok(room)) => Ok(self.pass(present, room, None)),
            _ => Err(self.0.gauge.busy(waiting.elapsed())),
        }
    }

    /// The gauges of the gate.
    pub fn status(&self) -> FlowStatus {
        self.0.gauge.status(self.0.limit as u64)
    }

    fn present(&self) -> Result<Present, Refused> {
        // The count rises before the comparison, so concurrent callers cannot exceed the bound.
        let before = self.0.present.fetch_add(1, Relaxed);
        let present = Present(self.0.clone());
        if before < self.0.present_max { Ok(present) } else { Err(self.0.gauge.crowded()) }
    }

    fn pass(&self, present: Present, room: OwnedSemaphorePermit, key: Option<(OwnedSemaphorePermit, KeyUse)>) -> Pass {
        self.0.gauge.take(1);
        Pass { _inside: Inside(self.0.clone()), _room: room, _key: key, _present: present }
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gate({}: {} of {})", self.0.gauge.name, self.0.gauge.used(), self.0.limit)
    }
}

struct Present(Arc<GateShared>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.present.fetch_sub(1, Relaxed);
    }
}

struct Inside(Arc<GateShared>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.gauge.release(1);
    }
}

/// Permission to be inside a [`Gate`] or [`KeyedGate`]. Dropping it leaves the gate.
#[must_use = "dropping it leaves the gate"]
pub struct Pass {
    // The fields drop in this order: the gauge falls before the semaphore admits the next caller.
    _inside: Inside,
    _room: OwnedSemaphorePermit,
    _key: Option<(OwnedSemaphorePermit, KeyUse)>,
    _present: Present,
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pass({})", self._inside.0.gauge.name)
    }
}

/// Bounds of a [`KeyedGate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyedGateOptions {
    /// Maximum number of holders over all keys.
    pub limit: usize,
    /// Maximum number of waiters over all keys.
    pub waiting_max: usize,
    /// Maximum number of holders of one key.
    pub key_limit: usize,
    /// Maximum number of waiters of one key.
    pub key_waiting_max: usize,
}

struct KeyEntry {
    room: Arc<Semaphore>,
    /// Holders and waiters of this key. Changed under the lock of the map.
    present: usize,
}

struct KeyedShared {
    gate: Gate,
    options: KeyedGateOptions,
    /// Keys with a holder or a waiter, so never more than those two bounds together. Never
    /// iterated.
    keys: Mutex<HashMap<Arc<str>, KeyEntry>>,
}

/// A [`Gate`] that also bounds each key (a bucket, a user), so one key cannot starve the others. A
/// caller first waits for a permit of its key and then in the common queue, where a key never has
/// more than `key_limit` callers. Clones share the gate.
#[derive(Clone)]
pub struct KeyedGate(Arc<KeyedShared>);

impl KeyedGate {
    /// Creates a gate with these bounds (limits are at least 1). Metrics and errors use `name`.
    pub fn new(name: &'static str, options: KeyedGateOptions, env: Env) -> Self {
        let key_limit = options.key_limit.clamp(1, Semaphore::MAX_PERMITS);
        Self(Arc::new(KeyedShared {
            gate: Gate::new(name, options.limit, options.waiting_max, env),
            options: KeyedGateOptions { key_limit, ..options },
            keys: Mutex::new(HashMap::new()),
        }))
    }

    /// Enters without waiting.
    ///
    /// # Errors
    /// [`Refused::Busy`] or [`Refused::Crowded`].
    pub fn try_enter(&self, key: &str) -> Result<Pass, Refused> {
        let gate = &self.0.gate;
        let present = gate.present()?;
        let lease = self.lease(key)?;
        match (lease.room.clone().try_acquire_owned(), gate.0.room.clone().try_acquire_owned()) {
            (Ok(turn), Ok(room)) => Ok(gate.pass(present, room, Some((turn, lease)))),
            _ => Err(gate.0.gauge.busy(Duration::ZERO)),
        }
    }

    /// Enters if a permit is free. `None` is not counted as a refusal, because the caller then
    /// waits for a permit.
    pub fn enter_at_once(&self, key: &str) -> Option<Pass> {
        let gate = &self.0.gate;
        let room = gate.0.room.clone().try_acquire_owned().ok()?;
        let present = gate.present().ok()?;
        let lease = self.lease(key).ok()?;
        let turn = lease.room.clone().try_acquire_owned().ok()?;
        Some(gate.pass(present, room, Some((turn, lease))))
    }

    /// Enters, waiting for at most `wait`. Dropping the future leaves the queue and leaks nothing.
    ///
    /// # Errors
    /// [`Refused::Busy`] after `wait`, [`Refused::Crowded`] at once when too many callers of this
    /// key or of all keys wait already.
    pub async fn enter(&self, key: &str, wait: Duration) -> Result<Pass, Refused> {
        let gate = &self.0.gate;
        let present = gate.present()?;
        let lease = self.lease(key)?;
        let turn = lease.room.clone().try_acquire_owned().ok();
        if turn.is_some()
            && let Ok(room) = gate.0.room.clone().try_acquire_owned()
        {
            return Ok(gate.pass(present, room, turn.map(|turn| (turn, lease))));
        }
        let (waiting, _lap) = (gate.0.gauge.wait(&gate.0.env), stages::enter(Stage::Gate));
        let both = async {
            let turn = match turn {
                Some(turn) => turn,
                None => lease.room.clone().acquire_owned().await.ok()?,
            };
            Some((turn, gate.0.room.clone().acquire_owned().await.ok()?))
        };
        match gate.0.env.timeout(wait, both).await.flatten() {
            Some((turn, room)) => Ok(gate.pass(present, room, Some((turn, lease)))),
            None => Err(gate.0.gauge.busy(waiting.elapsed())),
        }
    }

    /// The gauges of the common bound.
    pub fn status(&self) -> FlowStatus {
        self.0.gate.status()
    }

    /// The number of keys with a holder or a waiter.
    pub fn keys(&self) -> usize {
        self.0.keys.lock().len()
    }

    fn lease(&self, key: &str) -> Result<KeyUse, Refused> {
        let options = &self.0.options;
        let mut keys = self.0.keys.lock();
        if let Some(entry) = keys.get_mut(key) {
            if entry.present >= options.key_limit.saturating_add(options.key_waiting_max) {
                return Err(self.0.gate.0.gauge.crowded());
            }
            entry.present += 1;
            let room = entry.room.clone();
            let key = keys.get_key_value(key).map(|(key, _)| key.clone());
            return Ok(KeyUse { gate: self.0.clone(), key: key.unwrap_or_default(), room });
        }
        let name: Arc<str> = key.into();
        let room = Arc::new(Semaphore::new(options.key_limit));
        keys.insert(name.clone(), KeyEntry { room: room.clone(), present: 1 });
        Ok(KeyUse { gate: self.0.clone(), key: name, room })
    }
}

impl std::fmt::Debug for KeyedGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keyed{:?}", self.0.gate)
    }
}

/// Keeps a key in the map.
struct KeyUse {
    gate: Arc<KeyedShared>,
    key: Arc<str>,
    room: Arc<Semaphore>,
}

impl Drop for KeyUse {
    fn drop(&mut self) {
        let mut keys = self.gate.keys.lock();
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
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{Clock, Held};

    const WAIT: Duration = Duration::from_secs(1);

    fn keyed(limit: usize, waiting_max: usize, key_limit: usize, key_waiting_max: usize) -> (KeyedGate, Clock) {
        let clock = Clock::default();
        let options = KeyedGateOptions { limit, waiting_max, key_limit, key_waiting_max };
        (KeyedGate::new("test", options, clock.env()), clock)
    }

    fn enter(gate: &KeyedGate, key: &'static str) -> Held<Result<Pass, Refused>> {
        let gate = gate.clone();
        Held::new(async move { gate.enter(key, WAIT).await })
    }

    fn crowded<T>(result: Option<Result<T, Refused>>) -> bool {
        matches!(result, Some(Err(Refused::Crowded { .. })))
    }

    #[test]
    fn callers_above_the_waiting_bound_are_refused_at_once() {
        let clock = Clock::default();
        let gate = Gate::new("test", 1, 1, clock.env());
        let inside = gate.try_enter().expect("empty");
        let enter = || {
            let gate = gate.clone();
            Held::new(async move { gate.enter(WAIT).await })
        };
        let mut waiter = enter();
        assert!(waiter.poll().is_none());
        assert!(crowded(enter().poll()));
        assert_eq!((gate.status().waiting, gate.status().refused), (1, 1));
        drop(inside);
        let inside = waiter.poll().expect("served").expect("granted");
        let mut late = enter();
        assert!(late.poll().is_none());
        clock.advance(WAIT);
        assert!(matches!(late.poll(), Some(Err(Refused::Busy { waited, .. })) if waited == WAIT));
        drop(inside);
        assert_eq!((gate.status().used, gate.status().peak), (0, 1));
        assert!(gate.try_enter().is_ok());
    }

    #[test]
    fn one_key_cannot_starve_another() {
        let (gate, _) = keyed(3, 100, 2, 50);
        let _two = [gate.try_enter("a").expect("room"), gate.try_enter("a").expect("room")];
        let mut many: Vec<_> = (0..40).map(|_| enter(&gate, "a")).collect();
        assert!(many.iter_mut().all(|one| one.poll().is_none()));
        assert!(gate.try_enter("b").is_ok(), "the third place is not for a");
        assert_eq!(gate.keys(), 1);
    }

    #[test]
    fn one_key_cannot_fill_the_queue() {
        let (gate, _) = keyed(2, 10, 1, 2);
        let _one = gate.try_enter("a").expect("room");
        let mut waiters = [enter(&gate, "a"), enter(&gate, "a")];
        assert!(waiters.iter_mut().all(|one| one.poll().is_none()));
        assert!(crowded(enter(&gate, "a").poll()));
        assert!(gate.try_enter("b").is_ok());
    }

    #[test]
    fn idle_keys_vanish() {
        let (gate, _) = keyed(4, 4, 1, 4);
        let one = gate.try_enter("a").expect("room");
        let mut waiter = enter(&gate, "a");
        assert!(waiter.poll().is_none());
        drop(one);
        assert_eq!(gate.keys(), 1);
        drop(waiter.poll().expect("served"));
        assert!(gate.try_enter("b").is_ok());
        assert_eq!(gate.keys(), 0);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Try(usize),
        Enter(usize),
        Poll(usize),
        Cancel(usize),
        Leave(usize),
        Advance(u64),
    }

    proptest! {
        #[test]
        fn bounds_hold_and_nothing_leaks(steps in proptest::collection::vec(prop_oneof![
            1 => (0..4usize).prop_map(Step::Try),
            4 => (0..4usize).prop_map(Step::Enter),
            3 => any::<usize>().prop_map(Step::Poll),
            1 => any::<usize>().prop_map(Step::Cancel),
            3 => any::<usize>().prop_map(Step::Leave),
            1 => (0..600u64).prop_map(Step::Advance),
        ], 1..150)) {
            const KEYS: [&str; 4] = ["a", "b", "c", "d"];
            let (gate, clock) = keyed(3, 5, 2, 2);
            let mut inside: Vec<(usize, Pass)> = Vec::new();
            let mut waiters: Vec<(usize, Held<Result<Pass, Refused>>)> = Vec::new();
            for step in steps {
                match step {
                    Step::Try(key) => inside.extend(gate.try_enter(KEYS[key]).ok().map(|pass| (key, pass))),
                    Step::Enter(key) => {
                        let mut future = enter(&gate, KEYS[key]);
                        match future.poll() {
                            Some(result) => inside.extend(result.ok().map(|pass| (key, pass))),
                            None => waiters.push((key, future)),
                        }
                    }
                    Step::Poll(i) if !waiters.is_empty() => {
                        let i = i % waiters.len();
                        if let Some(result) = waiters[i].1.poll() {
                            let (key, _) = waiters.remove(i);
                            inside.extend(result.ok().map(|pass| (key, pass)));
                        }
                    }
                    Step::Cancel(i) if !waiters.is_empty() => drop(waiters.remove(i % waiters.len())),
                    Step::Leave(i) if !inside.is_empty() => drop(inside.swap_remove(i % inside.len())),
                    Step::Advance(ms) => clock.advance(Duration::from_millis(ms)),
                    _ => {}
                }
                prop_assert!(inside.len() <= 3 && waiters.len() <= 8);
                prop_assert_eq!(gate.status().used, inside.len() as u64);
                prop_assert_eq!(gate.status().waiting, waiters.len() as u64);
                for key in 0..4 {
                    let of_key = inside.iter().filter(|(k, _)| *k == key).count();
                    let waiting = waiters.iter().filter(|(k, _)| *k == key).count();
                    prop_assert!(of_key <= 2 && of_key + waiting <= 4);
                }
                let busy = |key: &usize| inside.iter().any(|(k, _)| k == key) || waiters.iter().any(|(k, _)| k == key);
                prop_assert_eq!(gate.keys(), (0..4).filter(busy).count());
            }
            drop((inside, waiters));
            prop_assert_eq!(gate.keys(), 0);
            let all = [gate.try_enter("a"), gate.try_enter("a"), gate.try_enter("b")];
            prop_assert!(all.iter().all(Result::is_ok));
        }
    }
}
