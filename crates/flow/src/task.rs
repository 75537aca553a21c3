//! What tasks hold. Debug builds check that no task waits for a part of a resource while it holds
//! another part. Enough such tasks would hold all of it, and then wait for one another forever.

use std::cell::Cell;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use parking_lot::Mutex;

thread_local! {
    /// The number of the task that this thread runs; 0 for none.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

type BoxTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A task with a number.
struct Numbered {
    number: u64,
    task: BoxTask,
}

impl Future for Numbered {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let _before = Before(CURRENT.replace(self.number));
        self.task.as_mut().poll(cx)
    }
}

/// Restores the number of the current task, also when the task panics.
struct Before(u64);

impl Drop for Before {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Gives `task` a number in debug builds.
pub(crate) fn numbered(task: impl Future<Output = ()> + Send + 'static) -> BoxTask {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    if cfg!(debug_assertions) {
        Box::pin(Numbered { number: NEXT.fetch_add(1, Relaxed), task: Box::pin(task) })
    } else {
        Box::pin(task)
    }
}

/// The parts of one resource that tasks hold. Counts only in debug builds, and only in tasks of
/// [`crate::Env::spawn`].
#[derive(Debug)]
pub struct HeldByTasks {
    resource: &'static str,
    parts: Arc<Parts>,
}

/// Number of parts by the number of the task that took them.
type Parts = Mutex<HashMap<u64, usize>>;

impl HeldByTasks {
    /// No part of `resource`, which is a name for messages.
    pub fn new(resource: &'static str) -> Self {
        Self { resource, parts: Arc::default() }
    }

    /// The current task takes a part, until the result is dropped, by whichever task.
    pub fn hold(&self) -> HeldPart {
        let number = CURRENT.get();
        if number == 0 {
            return HeldPart(None);
        }
        *self.parts.lock().entry(number).or_default() += 1;
        HeldPart(Some((self.parts.clone(), number)))
    }

    /// Checks that the current task, which is about to wait for a part, holds none. Parts that it
    /// takes in another future while it waits are not seen.
    ///
    /// # Panics
    /// When it holds one.
    pub fn assert_none(&self) {
        let held = self.parts.lock().get(&CURRENT.get()).copied().unwrap_or(0);
        assert!(held == 0, "a task waits for {} while it holds {held} parts of it", self.resource);
    }
}

/// A part that a task holds.
#[derive(Debug)]
#[must_use = "dropping it releases the part"]
pub struct HeldPart(Option<(Arc<Parts>, u64)>);

impl Drop for HeldPart {
    fn drop(&mut self) {
        let Some((parts, number)) = self.0.take() else { return };
        let mut parts = parts.lock();
        let left = parts.get_mut(&number).map_or(0, |held| {
            *held -= 1;
            *held
        });
        if left == 0 {
            parts.remove(&number);
        }
    }
}
