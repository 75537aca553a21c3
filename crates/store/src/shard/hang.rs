//! A hanging disk: no request waits longer than its timeout, and no new change is accepted. The
//! same if an archive that must have each change does not answer.
//!
//! Submitted changes are not withdrawn: the disk commits them when it answers again, whether or not
//! the caller still waits.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use steadfast_disk::Disk;
use steadfast_flow::Env;
use steadfast_log::Log;
use tokio::sync::watch;

use crate::StoreError;

/// Time between two checks of a disk.
const EVERY: Duration = Duration::from_secs(1);

/// Whether the disk hangs.
#[derive(Debug, Clone, Copy, Default)]
struct Hang {
    /// A write or flush has been unanswered, or a change was held back, for as long as a write may
    /// wait.
    writes: bool,
    /// A read, write or flush has been unanswered: waiting callers check their timeouts.
    any: bool,
}

/// Watches a disk, and ends the waits for it while it hangs.
pub(crate) struct HangWatch {
    hang: watch::Sender<Hang>,
    env: Env,
    /// How long a write may wait.
    limit: Duration,
}

impl HangWatch {
    /// A disk that does not hang so far; `limit` is how long a write may wait.
    pub(crate) fn new(env: Env, limit: Duration) -> Self {
        Self { hang: watch::Sender::default(), env, limit }
    }

    /// Checks the disk until the store closes.
    pub(crate) async fn run(self: Arc<Self>, disk: Arc<dyn Disk>, log: Log, mut closing: watch::Receiver<bool>) {
        let limit_ms = u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX).max(1);
        loop {
            tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => return,
                () = self.env.sleep(EVERY) => {}
            }
            let stats = disk.stats();
            let held = log.hold().waiting_since().map(|since| self.env.now().saturating_sub(since));
            let is_held = held.is_some_and(|held| held >= self.limit.max(EVERY));
            let writes = stats.oldest_write_ms >= limit_ms || is_held;
            let now = Hang { writes, any: writes || stats.oldest_read_ms >= limit_ms };
            // While the disk hangs, each check wakes the waiting callers, so that they check their
            // timeouts.
            self.hang.send_if_modified(|known| {
                let wake = now.any || known.any;
                *known = now;
                wake
            });
        }
    }

    /// Runs `work` on the disk, but when the disk hangs for no longer than a write may wait.
    pub(crate) async fn unless_hanging<T>(&self, work: impl Future<Output = T>) -> Result<T, StoreError> {
        let begun = self.env.now();
        let mut hang = self.hang.subscribe();
        let waits_too_long = |hang: &Hang| hang.any && self.env.now().saturating_sub(begun) >= self.limit;
        tokio::select! {
            biased;
            done = work => Ok(done),
            _ = hang.wait_for(waits_too_long) => Err(StoreError::Hangs),
        }
    }

    /// Refuses a change that would only wait for a hanging disk.
    pub(crate) fn refuse_hanging(&self) -> Result<(), StoreError> {
        if self.hang.borrow().writes { Err(StoreError::Hangs) } else { Ok(()) }
    }

    /// The disk answers only reads from now on.
    #[cfg(test)]
    pub(crate) fn stop_writes(&self) {
        self.hang.send_replace(Hang { writes: true, any: true });
    }
}
