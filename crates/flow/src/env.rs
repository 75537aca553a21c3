//! The seam for time, randomness and tasks.
//!
//! Every layer takes an [`Env`] and asks it for the time, for random numbers and for new tasks. The server
//! gives it [`TokioRuntime`]; the simulator gives it one that a seed drives, so a failing run replays exactly.
//! `clippy.toml` bans the direct ways.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::FutureExt;

/// A boxed future that may move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What an environment must offer. See [`Env`] for the handle that code holds.
pub trait Runtime: Send + Sync + 'static {
    /// Monotonic time since some fixed point of this process.
    fn now(&self) -> Duration;
    /// Wall-clock time in milliseconds since the Unix epoch.
    fn wall_ms(&self) -> u64;
    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
    /// As `sleep`, for fractions of a millisecond: as exact as the runtime can.
    fn pause(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.sleep(duration)
    }
    /// Starts a task that runs until it ends by itself.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>);
    /// Runs `work`, which may block on a file system or compute for long, off the threads that serve requests;
    /// completes when it has returned.
    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()>;
    /// 64 random bits.
    fn random_u64(&self) -> u64;
    /// A critical task or thread has panicked (see [`Env::spawn_critical`]); the panic goes on when this returns.
    fn panicked(&self, panic: &Panicked) {
        let _ = panic;
    }
}

/// A critical task or thread that is not there any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked {
    /// Its name.
    pub task: &'static str,
    /// What the panic said.
    pub message: String,
}

impl Panicked {
    fn new(task: &'static str, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Self { task, message: text.unwrap_or_else(|| "a panic without words".to_owned()) }
    }
}

/// A cheap, cloneable handle on a [`Runtime`].
#[derive(Clone)]
pub struct Env(Arc<dyn Runtime>);

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Env")
    }
}

impl Env {
    /// Wraps a runtime.
    pub fn new(runtime: impl Runtime) -> Self {
        Self(Arc::new(runtime))
    }

    /// The environment of the current Tokio runtime.
    ///
    /// # Panics
    /// When called outside a Tokio runtime.
    pub fn tokio() -> Self {
        Self::new(TokioRuntime::current())
    }

    /// Monotonic time since some fixed point of this process.
    pub fn now(&self) -> Duration {
        self.0.now()
    }

    /// Wall-clock time in milliseconds since the Unix epoch.
    pub fn wall_ms(&self) -> u64 {
        self.0.wall_ms()
    }

    /// Completes after `duration`.
    pub fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }

    /// As [`Env::sleep`], for fractions of a millisecond: tens of microseconds late instead of a millisecond, at the price of a
    /// blocked helper thread.
    pub fn pause(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.pause(duration)
    }

    /// Starts a task. `name` is for logs and the simulator's trace.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(name, Box::pin(task));
    }

    /// As [`Env::spawn`], for a task that more than one request waits for: without it the process would seem well and leave
    /// them hanging. The runtime is told when it panics; a server ends its process then.
    pub fn spawn_critical(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let env = self.clone();
        self.spawn(name, async move {
            if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
                env.0.panicked(&Panicked::new(name, &*panic));
                resume_unwind(panic);
            }
        });
    }

    /// The same for the work of a thread: does `work` and returns what it returned.
    pub fn critical<T>(&self, name: &'static str, work: impl FnOnce() -> T) -> T {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            self.0.panicked(&Panicked::new(name, &*panic));
            resume_unwind(panic)
        })
    }

    /// Runs `work` where blocking is allowed and returns what it returned; `None` if it panicked.
    pub async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (tx, rx) = tokio::sync::oneshot::channel();
        self.0
            .blocking(Box::new(move || {
                // The receiver may be gone (its request was cancelled): then nobody wants the result.
                let _ = tx.send(work());
            }))
            .await;
        rx.await.ok()
    }

    /// 64 random bits.
    pub fn random_u64(&self) -> u64 {
        self.0.random_u64()
    }

    /// Runs `future` for at most `limit`; `None` when the limit came first (the future is dropped).
    pub async fn timeout<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            value = future => Some(value),
            () = self.sleep(limit) => None,
        }
    }
}

/// The real environment: Tokio's timers and tasks, the operating system's clocks and randomness.
pub struct TokioRuntime {
    handle: tokio::runtime::Handle,
    start: Instant,
    on_panic: Option<fn(&Panicked)>,
}

impl TokioRuntime {
    /// Uses the Tokio runtime that the caller runs in.
    ///
    /// # Panics
    /// When called outside a Tokio runtime.
    #[allow(clippy::disallowed_methods, reason = "this is the seam that the ban points to")]
    pub fn current() -> Self {
        Self { handle: tokio::runtime::Handle::current(), start: Instant::now(), on_panic: None }
    }

    /// Has `then` called when a critical task or thread panics, on its thread.
    #[must_use]
    pub fn on_panic(mut self, then: fn(&Panicked)) -> Self {
        self.on_panic = Some(then);
        self
    }
}

#[allow(clippy::disallowed_methods, reason = "this is the seam that the ban points to")]
impl Runtime for TokioRuntime {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn pause(&self, duration: Duration) -> BoxFuture<'static, ()> {
        // Tokio's timer counts whole milliseconds.
        if duration >= Duration::from_millis(4) {
            return self.sleep(duration);
        }
        let done = self.handle.spawn_blocking(move || std::thread::sleep(duration));
        Box::pin(async move {
            let _ = done.await;
        })
    }

    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) {
        self.handle.spawn(task);
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let done = self.handle.spawn_blocking(work);
        Box::pin(async move {
            let _ = done.await;
        })
    }

    fn random_u64(&self) -> u64 {
        rand::random()
    }

    fn panicked(&self, panic: &Panicked) {
        if let Some(then) = self.on_panic {
            then(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    static TOLD: Mutex<Vec<Panicked>> = Mutex::new(Vec::new());

    fn told() -> Vec<(&'static str, String)> {
        let mut told: Vec<_> = TOLD.lock().drain(..).map(|panic| (panic.task, panic.message)).collect();
        told.sort();
        told
    }

    #[tokio::test]
    #[allow(clippy::panic, reason = "what is tested")]
    async fn only_the_panic_of_what_is_critical_is_told() {
        let env = Env::new(TokioRuntime::current().on_panic(|panic| TOLD.lock().push(panic.clone())));
        for critical in [false, true] {
            let (tx, rx) = tokio::sync::oneshot::channel::<()>();
            let task = async move {
                let _gone = tx;
                tokio::task::yield_now().await;
                panic!("task {}", 7);
            };
            if critical {
                env.spawn_critical("one", task);
            } else {
                env.spawn("one", task);
            }
            assert!(rx.await.is_err());
        }
        env.spawn_critical("ends", async {});
        // Told before the panic goes on, and so before the thread ends.
        let other = env.clone();
        let thread = std::thread::spawn(move || other.critical("two", || -> () { panic!("thread") }));
        assert!(thread.join().is_err());
        assert_eq!(env.critical("three", || 3), 3);
        // The task's own values are dropped before the runtime is told.
        while TOLD.lock().len() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(told(), [("one", "task 7".to_owned()), ("two", "thread".to_owned())]);
    }
}
