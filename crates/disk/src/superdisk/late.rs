//! Detects late reads of the fast leg, with one task and one timer for all of them.
//!
//! A timer per read costs more than everything else that a super-disk adds to it: the timer enters
//! the runtime's wheel and leaves it again, under a lock that all timers share. Nearly every read
//! returns long before it is late, so each read only registers its deadline.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::core::SuperdiskShared;

/// Interval of the checks: a read is found to be late at most this long after its deadline.
const TICK: Duration = Duration::from_millis(1);

/// Number of ticks without reads after which the task waits to be woken.
const IDLE_TICKS: u32 = 50;

#[derive(Default)]
struct Notes {
    next: u64,
    /// Deadlines of the reads, in order of time and arrival.
    waiting: BTreeMap<(Duration, u64), Waker>,
    /// The task waits to be woken.
    idle: bool,
    /// The task has ended: every read counts as late.
    ended: bool,
}

/// The reads in progress.
#[derive(Default)]
pub(crate) struct Late {
    notes: Mutex<Notes>,
    wake: Notify,
}

/// A read's deadline: completes when the read is late.
struct Note<'a> {
    late: &'a Late,
    key: (Duration, u64),
    noted: bool,
    done: bool,
}

impl Late {
    /// Completes at `at` or up to a tick later.
    pub(crate) fn at(&self, at: Duration) -> impl Future<Output = ()> + '_ {
        Note { late: self, key: (at, 0), noted: false, done: false }
    }
}

impl Future for Note<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.done {
            return Poll::Ready(());
        }
        let (late, mut key, noted) = (self.late, self.key, self.noted);
        let mut notes = late.notes.lock();
        if noted {
            let Some(waker) = notes.waiting.get_mut(&key) else {
                drop(notes);
                self.done = true;
                return Poll::Ready(());
            };
            waker.clone_from(context.waker());
            return Poll::Pending;
        }
        if notes.ended {
            return Poll::Ready(());
        }
        key.1 = notes.next;
        notes.next += 1;
        notes.waiting.insert(key, context.waker().clone());
        let wake = std::mem::take(&mut notes.idle);
        drop(notes);
        if wake {
            late.wake.notify_one();
        }
        (self.key, self.noted) = (key, true);
        Poll::Pending
    }
}

impl Drop for Note<'_> {
    fn drop(&mut self) {
        if self.noted && !self.done {
            self.late.notes.lock().waiting.remove(&self.key);
        }
    }
}

/// Checks the deadlines until the disk is closed.
pub(crate) async fn run(shared: Arc<SuperdiskShared>) {
    let late = &shared.late;
    let mut idle = 0;
    while !shared.is_closing() {
        let now = shared.env.now();
        let due = {
            let mut notes = late.notes.lock();
            idle = if notes.waiting.is_empty() { idle + 1 } else { 0 };
            notes.idle = idle > IDLE_TICKS;
            let rest = notes.waiting.split_off(&(now + Duration::from_nanos(1), 0));
            std::mem::replace(&mut notes.waiting, rest)
        };
        due.into_values().for_each(Waker::wake);
        if idle > IDLE_TICKS {
            late.wake.notified().await;
            idle = 0;
        } else {
            shared.env.sleep(TICK).await;
        }
    }
    let left = {
        let mut notes = late.notes.lock();
        notes.ended = true;
        std::mem::take(&mut notes.waiting)
    };
    left.into_values().for_each(Waker::wake);
}

impl Late {
    /// Wakes the task so that it can end.
    pub(crate) fn end(&self) {
        self.wake.notify_one();
    }
}
