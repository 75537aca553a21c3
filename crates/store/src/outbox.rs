//! Queue of object events that wait to be forwarded, over all slots. See [`crate::events`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::Env;
use tokio::sync::Notify;

use crate::channels::{Position, Publication};
use crate::events::{Event, ObjectEvent};
use crate::layout::SLOTS;
use crate::record::wire::Malformed;
use crate::{EventsStatus, StoreError};

/// An event that waits to be forwarded.
pub(crate) struct QueuedEvent {
    pub(crate) slot: usize,
    pub(crate) epoch: u32,
    pub(crate) publication: Arc<Publication>,
    /// Whether it was already there when the store was opened.
    pub(crate) maybe_redelivered: bool,
}

impl QueuedEvent {
    fn event(&self) -> Result<Event, Malformed> {
        Ok(Event {
            slot: self.slot,
            position: Position { epoch: self.epoch, offset: self.publication.offset },
            time_ms: self.publication.time_ms,
            event: ObjectEvent::decode(&self.publication.body)?,
            maybe_redelivered: self.maybe_redelivered,
        })
    }
}

/// Orders events of all slots by time and keeps each slot's order. Where the clock went back
/// between two events of a slot, the later event takes the earlier one's time.
pub(crate) fn by_time(mut events: Vec<QueuedEvent>) -> Vec<QueuedEvent> {
    events.sort_by_key(|event| (event.slot, event.publication.offset));
    let mut latest = (usize::MAX, 0);
    let timed = events.into_iter().map(|event| {
        let before = if latest.0 == event.slot { latest.1 } else { 0 };
        latest = (event.slot, event.publication.time_ms.max(before));
        (latest.1, event)
    });
    let mut timed: Vec<(u64, QueuedEvent)> = timed.collect();
    // The sort is stable: events of a slot keep their order.
    timed.sort_by_key(|(time_ms, event)| (*time_ms, event.slot));
    timed.into_iter().map(|(_, event)| event).collect()
}

/// Progress of a slot.
#[derive(Default)]
struct Slot {
    /// The highest forwarded offset.
    forwarded: AtomicU64,
    /// The highest queued offset.
    newest: AtomicU64,
}

/// Events that wait to be forwarded.
pub(crate) struct Outbox {
    queue: Mutex<VecDeque<QueuedEvent>>,
    /// Number of events that wait or were handed out and are not done.
    backlog: AtomicUsize,
    max: usize,
    slots: Vec<Slot>,
    /// Slots with forwarded events that no record removed yet: the last offset, and since when by
    /// the store's clock.
    idle: Mutex<BTreeMap<usize, (u64, Duration)>>,
    forwarded: AtomicU64,
    refused: AtomicU64,
    arrived: Notify,
    left: Notify,
    env: Env,
}

impl Outbox {
    /// An empty outbox for at most `max` waiting events.
    pub(crate) fn new(max: usize, env: Env) -> Self {
        Self {
            queue: Mutex::default(),
            backlog: AtomicUsize::new(0),
            max: max.max(1),
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            idle: Mutex::default(),
            forwarded: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            arrived: Notify::new(),
            left: Notify::new(),
            env,
        }
    }

    /// The highest forwarded offset of a slot.
    pub(crate) fn forwarded(&self, slot: usize) -> u64 {
        self.slots[slot].forwarded.load(Ordering::Acquire)
    }

    /// Queues a committed event. Called in commit order of each disk.
    pub(crate) fn on_committed(&self, slot: usize, epoch: u32, publication: &Arc<Publication>) {
        self.push([QueuedEvent { slot, epoch, publication: publication.clone(), maybe_redelivered: false }]);
    }

    /// Appends events.
    pub(crate) fn push(&self, events: impl IntoIterator<Item = QueuedEvent>) {
        let mut queue = self.queue.lock();
        let before = queue.len();
        for event in events {
            self.slots[event.slot].newest.fetch_max(event.publication.offset, Ordering::AcqRel);
            queue.push_back(event);
        }
        self.backlog.fetch_add(queue.len() - before, Ordering::AcqRel);
        drop(queue);
        self.arrived.notify_one();
    }

    /// Waits until the queue accepts one more event.
    ///
    /// # Errors
    /// [`StoreError::Busy`] after `wait`.
    pub(crate) async fn room(&self, wait: Duration) -> Result<(), StoreError> {
        let full = || self.backlog.load(Ordering::Acquire) >= self.max;
        if !full() {
            return Ok(());
        }
        let waiting = async {
            loop {
                let left = self.left.notified();
                if !full() {
                    return;
                }
                left.await;
            }
        };
        self.env.timeout(wait, waiting).await.ok_or_else(|| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            StoreError::Busy("object events that wait to be forwarded")
        })
    }

    /// The next events, at most `max`; waits until there is one.
    pub(crate) async fn next(&self, max: usize) -> Vec<Event> {
        loop {
            let arrived = self.arrived.notified();
            let events = self.take(max);
            if !events.is_empty() {
                return events;
            }
            arrived.await;
        }
    }

    fn take(&self, max: usize) -> Vec<Event> {
        let mut queue = self.queue.lock();
        let mut events = Vec::new();
        while let Some(waiting) = queue.front()
            && events.len() < max
        {
            match waiting.event() {
                Ok(event) => events.push(event),
                // Events before it must be done first.
                Err(_) if !events.is_empty() => break,
                Err(error) => {
                    let (slot, offset) = (waiting.slot, waiting.publication.offset);
                    tracing::error!(slot, offset, %error, "an object event cannot be read and is skipped");
                    self.done(std::iter::once((slot, offset)));
                }
            }
            queue.pop_front();
        }
        events
    }

    /// Marks events, given by slot and offset in the order they were handed out, as forwarded.
    pub(crate) fn done(&self, events: impl Iterator<Item = (usize, u64)>) {
        let now = self.env.now();
        let mut idle = self.idle.lock();
        let mut count = 0;
        for (slot, offset) in events {
            let before = self.slots[slot].forwarded.fetch_max(offset, Ordering::AcqRel);
            idle.insert(slot, (offset.max(before), now));
            count += 1;
        }
        drop(idle);
        self.forwarded.fetch_add(count as u64, Ordering::Relaxed);
        let before = self.backlog.fetch_sub(count, Ordering::AcqRel);
        assert!(before >= count, "{count} events are done of {before}");
        self.left.notify_waiters();
    }

    /// Slots in which no event was forwarded for this long, while no record removed the last one;
    /// with its offset.
    pub(crate) fn idle_for(&self, long: Duration) -> Vec<(usize, u64)> {
        let now = self.env.now();
        let idle = self.idle.lock();
        let due = idle.iter().filter(|(_, (_, since))| now.saturating_sub(*since) >= long);
        due.map(|(slot, (offset, _))| (*slot, *offset)).collect()
    }

    /// Whether this is the slot's newest offset.
    pub(crate) fn is_newest(&self, slot: usize, offset: u64) -> bool {
        self.slots[slot].newest.load(Ordering::Acquire) == offset
    }

    /// A record marks all events up to this offset as forwarded, or the next event's record will.
    pub(crate) fn trimmed(&self, slot: usize, offset: u64) {
        let mut idle = self.idle.lock();
        if idle.get(&slot).is_some_and(|(last, _)| *last == offset) {
            idle.remove(&slot);
        }
    }

    pub(crate) fn status(&self) -> EventsStatus {
        EventsStatus {
            name: "store_events",
            limit: self.max as u64,
            used: self.backlog.load(Ordering::Relaxed) as u64,
            refused: self.refused.load(Ordering::Relaxed),
            forwarded: self.forwarded.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(slot: usize, offset: u64, time_ms: u64) -> QueuedEvent {
        let publication = Publication { offset, time_ms, body: Vec::new().into() };
        QueuedEvent { slot, epoch: 1, publication: Arc::new(publication), maybe_redelivered: true }
    }

    #[test]
    fn events_of_a_slot_keep_their_order_when_the_clock_has_gone_back() {
        let put_then_delete = [waiting(3, 7, 1_000), waiting(3, 8, 400), waiting(3, 9, 1_200)];
        let others = [waiting(1, 1, 500), waiting(1, 2, 1_100), waiting(5, 4, 900)];
        let ordered = by_time(others.into_iter().chain(put_then_delete).collect());
        let ordered: Vec<_> = ordered.iter().map(|event| (event.slot, event.publication.offset)).collect();
        assert_eq!(ordered, [(1, 1), (5, 4), (3, 7), (3, 8), (1, 2), (3, 9)]);
    }

    #[tokio::test]
    async fn the_forwarded_offset_never_decreases() {
        let outbox = Outbox::new(10, Env::tokio());
        outbox.push([waiting(3, 7, 1), waiting(3, 8, 2)]);
        outbox.done([(3, 8), (3, 7)].into_iter());
        assert_eq!(outbox.forwarded(3), 8);
        assert!(outbox.is_newest(3, 8));
        assert_eq!(outbox.idle_for(Duration::ZERO), [(3, 8)]);
    }
}
