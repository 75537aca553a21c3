//! Tasks that run beside the log's work, and their end.

use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::Env;
use tokio::sync::watch;

use crate::guard::Guard;
use crate::latch::Latch;

/// Stops background tasks and waits for them. They look at [`Stop`] between steps, so that none is torn in the middle of a write.
pub(crate) struct Background {
    stop: watch::Sender<bool>,
    running: watch::Sender<usize>,
    latch: Arc<Latch>,
}

/// One that runs.
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

    /// Starts a task, which ends soon after its [`Stop`] says so.
    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(
        &self,
        env: &Env,
        name: &'static str,
        task: impl FnOnce(Stop) -> F,
    ) {
        self.running.send_modify(|n| *n += 1);
        let task = task(Stop(self.stop.subscribe()));
        // Dropped also when it panics, so that nobody waits for its end.
        let (guard, running) = (Guard::new(name, &self.latch), Running(self.running.clone()));
        env.spawn(name, async move {
            let (_guard, _running) = (guard, running);
            task.await;
        });
    }

    /// Ends all tasks and waits until they have.
    pub(crate) async fn stop(&self) {
        self.stop.send_replace(true);
        // The sender is `self`: it cannot have gone.
        let _ = self.running.subscribe().wait_for(|n| *n == 0).await;
    }
}

/// Tells a background task when to end.
#[derive(Clone)]
pub(crate) struct Stop(watch::Receiver<bool>);

impl Stop {
    pub(crate) fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Completes when it is time to end.
    pub(crate) async fn wait(&mut self) {
        // The sender is in the log: it has not gone while anything runs.
        let _ = self.0.wait_for(|stop| *stop).await;
    }

    /// Sleeps, unless it is time to end. Whether to go on.
    pub(crate) async fn sleep(&mut self, env: &Env, duration: Duration) -> bool {
        tokio::select! {
            biased;
            _ = self.0.wait_for(|stop| *stop) => {}
            () = env.sleep(duration) => {}
        }
        !self.is_set()
    }
}
