//! Room for data on its way to the disk that some wait for while others hold it without using it.
//!
//! A body that comes slowly holds a chunk that fills slowly, or the room for its record. While nobody waits for room that costs nothing; when
//! somebody does, whoever has held his for a moment gives it up: the chunk is written as it is, the record asks again when it is whole.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;

use super::core::Core;

/// How long a body may hold room that others wait for. A body that brings a chunk within this time gives nothing up.
const HELD_MAX: Duration = Duration::from_secs(1);

/// How many wait for room.
#[derive(Default)]
pub(crate) struct Wanted(watch::Sender<usize>);

struct Waiting<'a>(&'a Wanted);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|waiting| *waiting -= 1);
    }
}

impl Wanted {
    /// Awaits room; while that is not to be had at once, those who hold some are asked for it.
    pub(crate) async fn wait<T>(&self, room: impl Future<Output = T>) -> T {
        let mut room = std::pin::pin!(room);
        if let Poll::Ready(room) = futures::poll!(room.as_mut()) {
            return room;
        }
        self.0.send_modify(|waiting| *waiting += 1);
        let _waiting = Waiting(self);
        room.await
    }
}

impl Core {
    /// Whether room that is held since then is to be given up now.
    pub(crate) fn is_wanted(&self, since: Duration) -> bool {
        *self.wanted.0.borrow() > 0 && self.env.now().saturating_sub(since) >= HELD_MAX
    }

    /// Completes when room that is held since then is to be given up.
    pub(crate) async fn until_wanted(&self, since: Duration) {
        let mut wanted = self.wanted.0.subscribe();
        loop {
            // The sender is as old as the core.
            let _ = wanted.wait_for(|waiting| *waiting > 0).await;
            if self.is_wanted(since) {
                return;
            }
            self.env.sleep((since + HELD_MAX).saturating_sub(self.env.now()).max(Duration::from_millis(1))).await;
        }
    }
}
