//! The interface to time, randomness and tasks.
//!
//! Every layer takes an [`Env`] and asks it for the time, for random numbers and for new tasks. The
//! server passes [`TokioRuntime`]. The simulator passes a runtime driven by a seed, so a failing
//! run replays exactly. `clippy.toml` bans the direct calls.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::FutureExt;

use crate::task;

/// A boxed future that may move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The services of an environment. Code holds the handle [`Env`].
pub trait Runtime: Send + Sync + 'static {
    /// Monotonic time since some fixed point of this process.
    fn now(&self) -> Duration;
    /// As `now`, since some other point, and it also counts the time for which the machine was
    /// suspended.
    fn boot_time(&self) -> Duration {
        self.now()
    }
    /// Wall-clock time in milliseconds since the Unix epoch.
    fn wall_ms(&self) -> u64;
    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
    /// Like `sleep`, for fractions of a millisecond, as exact as the runtime allows.
    fn pause(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.sleep(duration)
    }
    /// Starts a detached task.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>);
    /// Runs `work`, which may block on a file system or compute for long, off the threads that
    /// serve requests. Completes when `work` has returned.
    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()>;
    /// 64 random bits.
    fn random_u64(&self) -> u64;
    /// Reports that a critical task or thread has panicked (see [`Env::spawn_critical`]). The panic
    /// resumes when this returns.
    fn panicked(&self, panic: &Panicked) {
        let _ = panic;
    }
}

/// A panic of a critical task or thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked {
    /// The name of the task or thread.
    pub task: &'static str,
    /// The panic message.
    pub message: String,
}

impl Panicked {
    fn new(task: &'static str, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Self { task, message: text.unwrap_or_else(|| "a panic without a message".to_owned()) }
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

    /// Monotonic time since some other point. It also counts the time for which the machine was
    /// suspended.
    pub fn boot_time(&self) -> Duration {
        self.0.boot_time()
    }

    /// [`Env::now`] in milliseconds.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX)
    }

    /// Wall-clock time in milliseconds since the Unix epoch.
    pub fn wall_ms(&self) -> u64 {
        self.0.wall_ms()
    }

    /// Completes after `duration`.
    pub fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }

    /// Like [`Env::sleep`], for fractions of a millisecond. It is late by tens of microseconds
    /// instead of a millisecond, and blocks a helper thread.
    pub fn pause(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.pause(duration)
    }

    /// Starts a task. Logs and the simulator's trace use `name`.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(name, task::numbered(task));
    }

    /// Like [`Env::spawn`], for a task that several requests wait for. Without that task the
    /// process would look healthy while those requests hang. A panic is reported to the runtime;
    /// the server then ends the process.
    pub fn spawn_critical(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let env = self.clone();
        self.spawn(name, async move {
            if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
                env.0.panicked(&Panicked::new(name, &*panic));
                resume_unwind(panic);
            }
        });
    }

    /// Runs `work` on the current thread like a critical task and returns its result.
    pub fn critical<T>(&self, name: &'static str, work: impl FnOnce() -> T) -> T {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            self.0.panicked(&Panicked::new(name, &*panic));
            resume_unwind(panic)
        })
    }

    /// Runs `work` where blocking is allowed and returns its result; `None` if it panicked.
    pub async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (tx, rx) = tokio::sync::oneshot::channel();
        self.0
            .blocking(Box::new(move || {
                // The receiver is dropped when its request is cancelled; the result is then unused.
                let _ = tx.send(work());
            }))
            .await;
        rx.await.ok()
    }

    /// 64 random bits.
    pub fn random_u64(&self) -> u64 {
        self.0.random_u64()
    }

    /// Runs `future` for at most `limit`. Returns `None` when the limit expires first; the future
    /// is then dropped.
    pub async fn timeout<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            value = future => Some(value),
            () = self.sleep(limit) => None,
        }
    }
}

/// The production environment: Tokio's timers and tasks, the operating system's clocks and
/// randomness.
pub struct TokioRuntime {
    handle: tokio::runtime::Handle,
    start: Instant,
    on_panic: Option<fn(&Panicked)>,
}

impl TokioRuntime {
    /// The environment of the Tokio runtime that the caller runs in.
    ///
    /// # Panics
    /// When called outside a Tokio runtime.
    #[allow(clippy::disallowed_methods, reason = "this is the interface that the ban points to")]
    pub fn current() -> Self {
        Self { handle: tokio::runtime::Handle::current(), start: Instant::now(), on_panic: None }
    }

    /// Sets the hook for panics of critical tasks and threads. It runs on the panicking thread.
    #[must_use]
    pub fn on_panic(mut self, then: fn(&Panicked)) -> Self {
        self.on_panic = Some(then);
        self
    }
}

#[allow(clippy::disallowed_methods, reason = "this is the interface that the ban points to")]
impl Runtime for TokioRuntime {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn boot_time(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).expect("time since the boot");
        Duration::new(seconds, u32::try_from(time.tv_nsec).expect("less than a second"))
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

    static PANICS: Mutex<Vec<Panicked>> = Mutex::new(Vec::new());

    fn take_panics() -> Vec<(&'static str, String)> {
        let mut panics: Vec<_> = PANICS.lock().drain(..).map(|panic| (panic.task, panic.message)).collect();
        panics.sort();
        panics
    }

    #[tokio::test]
    #[allow(clippy::panic, reason = "what is tested")]
    async fn only_critical_panics_are_reported() {
        let env = Env::new(TokioRuntime::current().on_panic(|panic| PANICS.lock().push(panic.clone())));
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
        // The hook runs before the panic resumes, and so before the thread ends.
        let other = env.clone();
        let thread = std::thread::spawn(move || other.critical("two", || -> () { panic!("thread") }));
        assert!(thread.join().is_err());
        assert_eq!(env.critical("three", || 3), 3);
        // The runtime drops the task's own values before the hook runs.
        while PANICS.lock().len() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(take_panics(), [("one", "task 7".to_owned()), ("two", "thread".to_owned())]);
    }
}
