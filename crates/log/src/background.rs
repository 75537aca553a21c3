//! Background tasks of the log, and how they stop.

use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::Env;
use tokio::sync::watch;

use crate::guard::Guard;
use crate::latch::Latch;

/// Stops background tasks and waits for them. Tasks check [`Stop`] between steps, so that no write
/// is interrupted.
pub(crate) struct Background {
    stop: watch::Sender<bool>,
    running: watch::Sender<usize>,
    latch: Arc<Latch>,
}

/// Counts a running task.
struct Running(watch::Sender<usize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

impl Background {
    pub(crate) fn new(latch: &Arc<Latch>) -> Self {
        Self { stop: watch::Sender::new(false), running: watch::Sender::new(0), latch: latch.clone() }
    }

    /// Starts a task, which ends soon after its [`Stop`] is set.
    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(
        &self,
        env: &Env,
        name: &'static str,
        task: impl FnOnce(Stop) -> F,
    ) {
        self.running.send_modify(|n| *n += 1);
        let task = task(Stop(self.stop.subscribe()));
        // Dropped on a panic too, so that `stop` does not wait forever.
        let (guard, running) = (Guard::new(name, &self.latch), Running(self.running.clone()));
        env.spawn(name, async move {
            let (_guard, _running) = (guard, running);
            task.await;
        });
    }

    /// Stops all tasks and waits until they have ended.
    pub(crate) async fn stop(&self) {
        self.stop.send_replace(true);
        // The sender is `self`, so it still exists.
        let _ = self.running.subscribe().wait_for(|n| *n == 0).await;
    }
}

/// Stop signal of a background task.
#[derive(Clone)]
pub(crate) struct Stop(watch::Receiver<bool>);

impl Stop {
    pub(crate) fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Completes when the task must end.
    pub(crate) async fn wait(&mut self) {
        // The sender is in the log, which outlives its tasks.
        let _ = self.0.wait_for(|stop| *stop).await;
    }

    /// Sleeps for `duration`. Returns `false` if the task must end.
    pub(crate) async fn sleep(&mut self, env: &Env, duration: Duration) -> bool {
        tokio::select! {
            biased;
            _ = self.0.wait_for(|stop| *stop) => {}
            () = env.sleep(duration) => {}
        }
        !self.is_set()
    }
}
