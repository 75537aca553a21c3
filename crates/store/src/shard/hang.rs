//! A hanging disk: no request waits longer than its timeout, and no new change is accepted.
//!
//! Submitted changes are not withdrawn: the disk commits them when it answers again, whether or not
//! the caller still waits.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use steadfast_disk::Disk;
use tokio::sync::watch;

use super::core::Core;
use crate::StoreError;

/// Time between two checks of a disk.
const EVERY: Duration = Duration::from_secs(1);

/// Whether the disk hangs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Hang {
    /// A write or flush has been unanswered for as long as a write may wait.
    pub(crate) writes: bool,
    /// A read, write or flush has been unanswered: waiting callers check their timeouts.
    any: bool,
}

#[cfg(test)]
impl Hang {
    /// State of a disk that answers only reads.
    pub(crate) fn of_writes() -> Self {
        Self { writes: true, any: true }
    }
}

/// Checks the disk until the store closes.
pub(crate) async fn watch(core: Arc<Core>, disk: Arc<dyn Disk>, mut closing: watch::Receiver<bool>) {
    let limit_ms = u64::try_from(core.options.write_wait.as_millis()).unwrap_or(u64::MAX).max(1);
    loop {
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => return,
            () = core.env.sleep(EVERY) => {}
        }
        let stats = disk.stats();
        let writes = stats.oldest_write_ms >= limit_ms;
        let now = Hang { writes, any: writes || stats.oldest_read_ms >= limit_ms };
        // While the disk hangs, each check wakes the waiting callers, so that they check their
        // timeouts.
        core.hang.send_if_modified(|known| {
            let wake = now.any || known.any;
            *known = now;
            wake
        });
    }
}

impl Core {
    /// Runs `work` on the disk, but when the disk hangs for no longer than a write may wait.
    pub(crate) async fn unless_hanging<T>(&self, work: impl Future<Output = T>) -> Result<T, StoreError> {
        let (begun, limit) = (self.env.now(), self.options.write_wait);
        let mut hang = self.hang.subscribe();
        tokio::select! {
            biased;
            done = work => Ok(done),
            _ = hang.wait_for(|hang| hang.any && self.env.now().saturating_sub(begun) >= limit) => Err(StoreError::Hangs),
        }
    }

    /// Refuses a change that would only wait for a hanging disk.
    pub(crate) fn refuse_hanging(&self) -> Result<(), StoreError> {
        if self.hang.borrow().writes { Err(StoreError::Hangs) } else { Ok(()) }
    }
}
