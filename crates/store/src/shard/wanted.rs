//! Budget for data in flight to the disk: some writers wait for it while others hold it unused.
//!
//! A slow body holds budget for a partly filled chunk or for its record. That costs nothing while
//! no writer waits. When one waits, a body that has held budget for a while releases it: the
//! partial chunk is written, and the record reserves again when the body is complete.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use steadfast_flow::Env;
use tokio::sync::watch;

/// Time that a body may hold budget that other writers wait for. A body that fills a chunk within
/// it releases nothing.
const HELD_MAX: Duration = Duration::from_secs(1);

/// Whether writers wait for the budget.
pub(crate) struct Wanted {
    /// Their number.
    waiting: watch::Sender<usize>,
    env: Env,
}

struct WaiterGuard<'a>(&'a Wanted);

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.waiting.send_modify(|waiting| {
            assert!(*waiting > 0, "a writer was not counted");
            *waiting -= 1;
        });
    }
}

impl Wanted {
    /// No writer waits.
    pub(crate) fn new(env: Env) -> Self {
        Self { waiting: watch::Sender::default(), env }
    }

    /// Awaits budget; if it is not available at once, asks holders to release theirs.
    pub(crate) async fn wait<T>(&self, room: impl Future<Output = T>) -> T {
        let mut room = std::pin::pin!(room);
        if let Poll::Ready(room) = futures::poll!(room.as_mut()) {
            return room;
        }
        self.waiting.send_modify(|waiting| *waiting += 1);
        let _waiting = WaiterGuard(self);
        room.await
    }

    /// Whether budget held since then must be released now.
    pub(crate) fn is_wanted(&self, since: Duration) -> bool {
        *self.waiting.borrow() > 0 && self.env.now().saturating_sub(since) >= HELD_MAX
    }

    /// Completes when budget held since then must be released.
    pub(crate) async fn until_wanted(&self, since: Duration) {
        let mut wanted = self.waiting.subscribe();
        loop {
            // It owns the sender, so waiting cannot fail.
            let _ = wanted.wait_for(|waiting| *waiting > 0).await;
            if self.is_wanted(since) {
                return;
            }
            self.env.sleep((since + HELD_MAX).saturating_sub(self.env.now()).max(Duration::from_millis(1))).await;
        }
    }
}
