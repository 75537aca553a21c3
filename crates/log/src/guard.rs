//! Panics of tasks: no caller waits for a task that has ended.

use std::io;
use std::sync::Arc;

use crate::latch::Latch;

/// Closes the latch if its task panics. The memory state is then unknown, and the task's work is no
/// longer done. Reads continue, because they are verified.
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
