//! A deterministic, single-threaded executor: one seed decides the scheduling of ready tasks, all
//! latencies and all randomness, so that a run replays exactly.
//!
//! Time is virtual: it advances a little with every step and jumps to the next timer when no task
//! is ready.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::{BoxFuture, Env, Runtime};

use crate::rng::{Rng, mix};
use crate::trace::Trace;

/// Wall-clock time at the virtual zero, in milliseconds since the Unix epoch.
pub(crate) const EPOCH_MS: u64 = 1_700_000_000_000;

/// The end of a run of the executor.
#[derive(Debug)]
pub enum End<T> {
    /// The main task has finished.
    Done(T),
    /// The power was cut.
    Cut,
    /// No task was ready, no timer was set, and the main task had not finished. The names of the
    /// waiting tasks.
    Deadlock(Vec<&'static str>),
    /// A limit on steps or virtual time was reached: its name, and the names of the waiting tasks.
    Limit(&'static str, Vec<&'static str>),
    /// A task panicked: its name and its message.
    Panic(&'static str, String),
}

struct Task {
    name: &'static str,
    future: Option<BoxFuture<'static, ()>>,
    waker: Waker,
    slow: bool,
}

enum Alarm {
    Wake(Waker),
    Call(Box<dyn FnOnce() + Send>),
}

struct ExecutorState {
    now_ns: u64,
    rng: Rng,
    /// Tasks are starved if the hash of their name with this salt is 0 modulo 4; a salt of 0
    /// starves none.
    slow_salt: u64,
    tasks: BTreeMap<u64, Task>,
    /// Sorted, so that the choice does not depend on the order of wake-ups.
    ready: Vec<u64>,
    next_task: u64,
    alarms: BTreeMap<(u64, u64), Alarm>,
    next_alarm: u64,
    steps: u64,
    cut_at_step: Option<u64>,
    cut: bool,
    down: bool,
}

struct ExecutorShared {
    state: Mutex<ExecutorState>,
    trace: Trace,
}

/// The executor of one life of the simulated machine. Clones share it.
#[derive(Clone)]
pub struct Executor(Arc<ExecutorShared>);

struct TaskWaker {
    id: u64,
    shared: Weak<ExecutorShared>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.shared.upgrade() {
            shared.state.lock().make_ready(self.id);
        }
    }
}

impl ExecutorState {
    fn make_ready(&mut self, id: u64) {
        if self.tasks.contains_key(&id)
            && let Err(at) = self.ready.binary_search(&id)
        {
            self.ready.insert(at, id);
        }
    }

    fn waiting(&self) -> Vec<&'static str> {
        self.tasks.values().map(|task| task.name).collect()
    }

    fn pick(&mut self) -> u64 {
        let mut at = self.rng.below(self.ready.len() as u64) as usize;
        for _ in 0..4 {
            if !self.tasks[&self.ready[at]].slow {
                break;
            }
            at = self.rng.below(self.ready.len() as u64) as usize;
        }
        self.ready.remove(at)
    }
}

impl Executor {
    /// An executor whose clock starts at `now`.
    pub fn new(mut rng: Rng, now: Duration, trace: Trace) -> Self {
        let slow_salt = if rng.one_in(3) { rng.next() | 1 } else { 0 };
        Self(Arc::new(ExecutorShared {
            state: Mutex::new(ExecutorState {
                now_ns: now.as_nanos() as u64,
                rng,
                slow_salt,
                tasks: BTreeMap::new(),
                ready: Vec::new(),
                next_task: 0,
                alarms: BTreeMap::new(),
                next_alarm: 0,
                steps: 0,
                cut_at_step: None,
                cut: false,
                down: false,
            }),
            trace,
        }))
    }

    /// The environment for the code under test.
    pub fn env(&self) -> Env {
        Env::new(self.clone())
    }

    /// Cuts the power after `steps` more steps.
    pub fn cut_after(&self, steps: u64) {
        let mut state = self.0.state.lock();
        state.cut_at_step = Some(state.steps + steps);
    }

    /// Cancels [`Executor::cut_after`].
    pub fn cut_never(&self) {
        self.0.state.lock().cut_at_step = None;
    }

    /// Cuts the power before the next step.
    pub fn cut_now(&self) {
        self.0.state.lock().cut = true;
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.0.state.lock().steps
    }

    /// Virtual time in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.0.state.lock().now_ns
    }

    /// The trace of the run.
    pub fn trace(&self) -> &Trace {
        &self.0.trace
    }

    /// Runs `call` after `delay`, unless the power is cut before. It runs outside of any task.
    pub fn call_after(&self, delay: Duration, call: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        if state.down {
            drop(state);
            drop(call);
            return;
        }
        let at = state.now_ns + delay.as_nanos() as u64;
        let seq = state.next_alarm;
        state.next_alarm += 1;
        state.alarms.insert((at, seq), Alarm::Call(Box::new(call)));
    }

    /// Runs `main` and every task that it spawns until `main` ends, the power is cut or a limit is
    /// reached. Remaining tasks stay until [`Executor::shut_down`] or the next call.
    pub fn run<T: Send + 'static>(
        &self,
        main: impl Future<Output = T> + Send + 'static,
        steps_max: u64,
        time_max: Duration,
    ) -> End<T> {
        let result: Arc<Mutex<Option<T>>> = Arc::default();
        let out = result.clone();
        self.spawn(
            "main",
            Box::pin(async move {
                let value = main.await;
                *out.lock() = Some(value);
            }),
        );
        let (steps_end, time_end) = {
            let state = self.0.state.lock();
            (state.steps + steps_max, state.now_ns + time_max.as_nanos() as u64)
        };
        loop {
            if let Some(value) = result.lock().take() {
                return End::Done(value);
            }
            let mut state = self.0.state.lock();
            if state.cut || state.cut_at_step.is_some_and(|at| state.steps >= at) {
                state.cut = true;
                return End::Cut;
            }
            state.steps += 1;
            if state.steps > steps_end {
                return End::Limit("steps", state.waiting());
            }
            if state.now_ns > time_end {
                return End::Limit("virtual time", state.waiting());
            }
            state.now_ns += state.rng.below(2_000);
            if state.ready.is_empty() {
                let Some((&(at, _), _)) = state.alarms.first_key_value() else {
                    return End::Deadlock(state.waiting());
                };
                state.now_ns = state.now_ns.max(at);
            }
            let now_ns = state.now_ns;
            let mut due = Vec::new();
            while let Some(entry) = state.alarms.first_entry() {
                if entry.key().0 > now_ns {
                    break;
                }
                due.push(entry.remove());
            }
            drop(state);
            for alarm in due {
                match alarm {
                    Alarm::Wake(waker) => waker.wake(),
                    Alarm::Call(call) => call(),
                }
            }
            if let Some((name, message)) = self.step() {
                return End::Panic(name, message);
            }
        }
    }

    /// Polls one ready task, if any.
    fn step(&self) -> Option<(&'static str, String)> {
        let (id, name, mut future, waker) = {
            let mut state = self.0.state.lock();
            if state.ready.is_empty() {
                return None;
            }
            let id = state.pick();
            let task = state.tasks.get_mut(&id)?;
            let future = task.future.take()?;
            let (name, waker) = (task.name, task.waker.clone());
            self.0.trace.note(state.now_ns, "step", name, [id, 0, 0]);
            (id, name, future, waker)
        };
        let polled =
            std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&waker))));
        match polled {
            Ok(Poll::Pending) => {
                let mut state = self.0.state.lock();
                match state.tasks.get_mut(&id) {
                    Some(task) => task.future = Some(future),
                    None => {
                        drop(state);
                        drop(future);
                    }
                }
                None
            }
            Ok(Poll::Ready(())) => {
                let task = {
                    let mut state = self.0.state.lock();
                    // The task may have woken itself in its last poll.
                    if let Ok(at) = state.ready.binary_search(&id) {
                        state.ready.remove(at);
                    }
                    state.tasks.remove(&id)
                };
                drop(task);
                drop(future);
                None
            }
            Err(panic) => Some((name, words(&*panic))),
        }
    }

    /// Drops every task and timer, as a power cut does, and refuses new ones. Returns the virtual
    /// time.
    pub fn shut_down(&self) -> Duration {
        let (tasks, alarms, now_ns) = {
            let mut state = self.0.state.lock();
            state.down = true;
            state.ready.clear();
            (std::mem::take(&mut state.tasks), std::mem::take(&mut state.alarms), state.now_ns)
        };
        // Outside the lock: their destructors may wake, spawn and sleep.
        drop(tasks);
        drop(alarms);
        Duration::from_nanos(now_ns)
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic".to_owned())
}

struct Sleep {
    shared: Weak<ExecutorShared>,
    duration: Duration,
    key: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(shared) = self.shared.upgrade() else { return Poll::Pending };
        let mut state = shared.state.lock();
        if state.down {
            return Poll::Pending;
        }
        let key = match self.key {
            Some(key) => key,
            None => {
                let key = (state.now_ns.saturating_add(self.duration.as_nanos() as u64), state.next_alarm);
                state.next_alarm += 1;
                self.key = Some(key);
                key
            }
        };
        if state.now_ns >= key.0 {
            state.alarms.remove(&key);
            return Poll::Ready(());
        }
        state.alarms.insert(key, Alarm::Wake(cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key
            && let Some(shared) = self.shared.upgrade()
        {
            let alarm = shared.state.lock().alarms.remove(&key);
            drop(alarm);
        }
    }
}

impl Runtime for Executor {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns())
    }

    fn wall_ms(&self) -> u64 {
        EPOCH_MS + self.now_ns() / 1_000_000
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(Sleep { shared: Arc::downgrade(&self.0), duration, key: None })
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        let mut state = self.0.state.lock();
        if state.down {
            drop(state);
            drop(task);
            return;
        }
        let id = state.next_task;
        state.next_task += 1;
        let waker = Waker::from(Arc::new(TaskWaker { id, shared: Arc::downgrade(&self.0) }));
        let hash = name.bytes().fold(state.slow_salt, |hash, byte| mix(hash ^ u64::from(byte)));
        let slow = state.slow_salt != 0 && hash % 4 == 0;
        state.tasks.insert(id, Task { name, future: Some(task), waker, slow });
        state.make_ready(id);
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        // A separate task: the work continues if the caller is dropped, as on a thread.
        let delay = {
            let mut state = self.0.state.lock();
            if state.rng.one_in(2) { 0 } else { state.rng.below(500_000) }
        };
        let (tx, rx) = tokio::sync::oneshot::channel::<()>();
        let sleep = self.sleep(Duration::from_nanos(delay));
        self.spawn(
            "blocking",
            Box::pin(async move {
                sleep.await;
                work();
                let _ = tx.send(());
            }),
        );
        Box::pin(async move {
            let _ = rx.await;
        })
    }

    fn random_u64(&self) -> u64 {
        self.0.state.lock().rng.next()
    }
}

#[cfg(test)]
mod tests;
