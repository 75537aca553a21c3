//! The queue of places to heal, filled by readers.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::Location;
use crate::status::HealStatus;

/// Bound of the queue. The next reader or the scrub finds the places that do not fit.
const PENDING_MAX: usize = 1024;

/// A record at which a reader found damage: extent, epoch, offset.
pub(crate) type Place = (u32, u64, u32);

#[derive(Default)]
struct PendingPlaces {
    waiting: BTreeSet<Place>,
    skipped: u64,
}

/// Places that readers found damaged and could read from another copy.
#[derive(Default)]
pub(crate) struct HealQueue {
    queue: Mutex<PendingPlaces>,
    pub(crate) wake: Notify,
}

impl HealQueue {
    /// Queues the frame around `location` for healing. Does not wait.
    pub(crate) fn push(&self, location: &Location) {
        let mut queue = self.queue.lock();
        if queue.waiting.len() >= PENDING_MAX {
            queue.skipped += 1;
            return;
        }
        queue.waiting.insert((location.extent, location.epoch, location.offset));
        drop(queue);
        self.wake.notify_one();
    }

    /// Adds the state of the queue to the status.
    pub(crate) fn status(&self, healed: HealStatus) -> HealStatus {
        let queue = self.queue.lock();
        let (pending, pending_max) = (queue.waiting.len() as u64, PENDING_MAX as u64);
        HealStatus { pending, pending_max, skipped: queue.skipped, ..healed }
    }

    pub(crate) fn next(&self) -> Option<Place> {
        self.queue.lock().waiting.pop_first()
    }
}
