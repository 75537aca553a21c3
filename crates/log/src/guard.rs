//! Tasks that panic: nobody waits for one that is not there any more.

use std::io;
use std::sync::Arc;

use crate::committer::refuse_all;
use crate::latch::Latch;
use crate::log::{Log, Shared};

/// Closes the latch when the task that has it panics: what is in memory is in an unknown state then, and what the task was there for
/// is not done any more. What is read is verified all the same, so reads go on.
pub(crate) struct Guard {
    task: &'static str,
    latch: Arc<Latch>,
}

impl Guard {
    pub(crate) fn new(task: &'static str, latch: &Arc<Latch>) -> Self {
        Self { task, latch: latch.clone() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let what = format!("{} has panicked, which is a bug: please report it", self.task);
            self.latch.fail("task", &io::Error::other(what));
        }
    }
}

/// Refuses what waits for the committer when that has ended, however it came to that.
pub(crate) struct Refused(pub(crate) Arc<Shared>);

impl Drop for Refused {
    fn drop(&mut self) {
        if let Err(error) = self.0.latch.check() {
            refuse_all(&self.0.queue, &error);
        }
    }
}

/// Says that committer and applier have ended, however it came to that.
pub(crate) struct Ended(pub(crate) Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.ended.send_replace(true);
    }
}

impl Shared {
    /// Starts a task of the log; if it panics, the log takes no more writes.
    pub(crate) fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let guard = Guard::new(name, &self.latch);
        self.env.spawn(name, async move {
            let _guard = guard;
            task.await;
        });
    }
}

impl Log {
    /// `task`, without which nothing may be written: if it panics, the log takes no more writes, as after a failed one.
    pub fn guarded<F: Future + Send>(
        &self,
        name: &'static str,
        task: F,
    ) -> impl Future<Output = F::Output> + Send + use<F> {
        let guard = Guard::new(name, &self.shared.latch);
        async move {
            let _guard = guard;
            task.await
        }
    }
}
