//! The seam for time, randomness and tasks.
//!
//! Every layer takes an [`Env`] and asks it for the time, for random numbers and for new tasks. The server
//! gives it [`TokioRuntime`]; the simulator gives it one that a seed drives, so a failing run replays exactly.
//! `clippy.toml` bans the direct ways.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
}

impl TokioRuntime {
    /// Uses the Tokio runtime that the caller runs in.
    ///
    /// # Panics
    /// When called outside a Tokio runtime.
    #[allow(clippy::disallowed_methods, reason = "this is the seam that the ban points to")]
    pub fn current() -> Self {
        Self { handle: tokio::runtime::Handle::current(), start: Instant::now() }
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
}
