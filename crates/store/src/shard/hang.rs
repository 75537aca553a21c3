//! A disk that hangs: nobody waits longer for it than he may, and nothing more is taken on for it.
//!
//! What was submitted before is not taken back: it is committed when the disk goes on, whether or not somebody still waits.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use steadfast_disk::Disk;
use tokio::sync::watch;

use super::core::Core;
use crate::StoreError;

/// How often a disk is looked at.
const EVERY: Duration = Duration::from_secs(1);

/// Whether the disk hangs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Hang {
    /// It has not answered a write or flush for as long as a write may wait.
    pub(crate) writes: bool,
    /// Nor a read, or one of both: who waits looks at how long he has.
    any: bool,
}

#[cfg(test)]
impl Hang {
    /// A disk that answers reads only.
    pub(crate) fn of_writes() -> Self {
        Self { writes: true, any: true }
    }
}

/// Looks at the disk until the store closes.
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
        // While it hangs, whoever waits is woken each time, to look at how long he has.
        core.hang.send_if_modified(|known| {
            let tell = now.any || known.any;
            *known = now;
            tell
        });
    }
}

impl Core {
    /// Does something with the disk, for no longer than a write may wait when the disk hangs.
    pub(crate) async fn unless_hanging<T>(&self, work: impl Future<Output = T>) -> Result<T, StoreError> {
        let (begun, limit) = (self.env.now(), self.options.write_wait);
        let mut hang = self.hang.subscribe();
        tokio::select! {
            biased;
            done = work => Ok(done),
            _ = hang.wait_for(|hang| hang.any && self.env.now().saturating_sub(begun) >= limit) => Err(StoreError::Hangs),
        }
    }

    /// Refuses what would only wait for a disk that hangs.
    pub(crate) fn refuse_hanging(&self) -> Result<(), StoreError> {
        if self.hang.borrow().writes { Err(StoreError::Hangs) } else { Ok(()) }
    }
}
