//! Events of objects over all shards: in which order they are forwarded, and what was. See [`crate::events`].
//!
//! Those that come while the store is open are handed out in the order of their commits, over all slots: who has seen that a change was
//! answered and makes another will find both events in this order. Those that were found when the store was opened come first, by time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::Env;
use tokio::sync::Notify;

use super::Store;
use crate::channels::{HistoryQuery, Position, Publication};
use crate::events::{Event, ObjectEvent};
use crate::layout::SLOTS;
use crate::record::keys;
use crate::record::wire::Malformed;
use crate::shard::Shard;
use crate::{EventsStatus, StoreError};

/// Events that are read at a time when the store is opened.
const PAGE: usize = 256;

/// An event that waits.
struct Waiting {
    slot: usize,
    epoch: u32,
    publication: Arc<Publication>,
    again: bool,
}

/// What is known of a slot.
#[derive(Default)]
struct Slot {
    /// The highest offset that was forwarded.
    forwarded: AtomicU64,
    /// The highest that came.
    came: AtomicU64,
}

/// Events that wait to be forwarded.
pub(crate) struct Outbox {
    queue: Mutex<VecDeque<Waiting>>,
    /// Those that wait, and those that were handed out and are not done.
    backlog: AtomicUsize,
    max: usize,
    slots: Vec<Slot>,
    /// Slots of which events were forwarded that were not removed by a record, and the last offset; since when, by the store's clock.
    idle: Mutex<BTreeMap<usize, (u64, Duration)>>,
    forwarded: AtomicU64,
    refused: AtomicU64,
    arrived: Notify,
    left: Notify,
}

impl Outbox {
    pub(super) fn new(max: usize) -> Self {
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
        }
    }

    /// The highest offset of a slot that was forwarded.
    pub(crate) fn forwarded(&self, slot: usize) -> u64 {
        self.slots[slot].forwarded.load(Ordering::Acquire)
    }

    /// An event has been committed. Called in the order of commits of each disk.
    pub(crate) fn came(&self, slot: usize, epoch: u32, publication: &Arc<Publication>) {
        self.push([Waiting { slot, epoch, publication: publication.clone(), again: false }]);
    }

    fn push(&self, events: impl IntoIterator<Item = Waiting>) {
        let mut queue = self.queue.lock();
        let before = queue.len();
        for event in events {
            self.slots[event.slot].came.store(event.publication.offset, Ordering::Release);
            queue.push_back(event);
        }
        self.backlog.fetch_add(queue.len() - before, Ordering::AcqRel);
        drop(queue);
        self.arrived.notify_one();
    }

    /// Waits until one more may come.
    ///
    /// # Errors
    /// [`StoreError::Busy`] after `wait`.
    pub(super) async fn room(&self, env: &Env, wait: Duration) -> Result<(), StoreError> {
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
        env.timeout(wait, waiting).await.ok_or_else(|| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            StoreError::Busy("events of objects that are not forwarded yet")
        })
    }

    pub(super) fn status(&self) -> EventsStatus {
        EventsStatus {
            name: "store_events",
            limit: self.max as u64,
            used: self.backlog.load(Ordering::Relaxed) as u64,
            refused: self.refused.load(Ordering::Relaxed),
            forwarded: self.forwarded.load(Ordering::Relaxed),
        }
    }
}

impl Store {
    /// Puts events into the outbox that were there when the store was opened.
    pub(super) async fn find_events(&self) -> Result<(), StoreError> {
        let topology = self.topology();
        let mut found = Vec::new();
        for (seat, member) in topology.members().iter().enumerate() {
            let Ok(shard) = &member.shard else { continue };
            let (mut from, to) = keys::outboxes();
            while let Some(pair) = shard.core.index.range(&from, Some(&to)).next() {
                let Some((name, _)) = keys::parse_publication(&pair?.0) else {
                    return Err(StoreError::Index("a key that is not understood".into()));
                };
                from = keys::publications(&name).1;
                let Some(slot) = keys::outbox_slot(&name) else { continue };
                // Not what was left behind where the slot was once, also when its home is missing.
                if !topology.home_of(slot).is_ok_and(|home| home.seat == seat) {
                    continue;
                }
                if let Err(e) = waiting_in(shard, slot, &mut found).await {
                    tracing::error!(slot, error = %e, "events of objects cannot be read; they are not forwarded");
                }
            }
        }
        found.sort_by_key(|event| (event.publication.time_ms, event.slot, event.publication.offset));
        if !found.is_empty() {
            tracing::info!(events = found.len(), "events of objects wait to be forwarded");
        }
        self.0.outbox.push(found);
        Ok(())
    }

    /// Waits while as many events wait to be forwarded as may be, if somebody wants to know of the bucket.
    pub(super) async fn room_for_event(&self, bucket: &str) -> Result<(), StoreError> {
        let topology = self.topology();
        let lead = topology.lead()?;
        // One that is not there is told of where it is used.
        let Ok(found) = lead.find(bucket) else { return Ok(()) };
        if !lead.core.has_listeners(&found) {
            return Ok(());
        }
        self.0.outbox.room(&self.0.env, self.0.options.write_wait).await
    }

    /// The next events that are to be forwarded, at most `max`, in order; waits until there are any. They come again after a restart, unless they
    /// were [done](Store::events_done).
    pub async fn next_events(&self, max: usize) -> Vec<Event> {
        let outbox = &self.0.outbox;
        loop {
            let arrived = outbox.arrived.notified();
            let events = self.take_events(max);
            if !events.is_empty() {
                return events;
            }
            arrived.await;
        }
    }

    fn take_events(&self, max: usize) -> Vec<Event> {
        let mut queue = self.0.outbox.queue.lock();
        let mut events = Vec::new();
        while let Some(waiting) = queue.front()
            && events.len() < max
        {
            match waiting.event() {
                Ok(event) => events.push(event),
                // What comes before it is done first.
                Err(_) if !events.is_empty() => break,
                Err(error) => {
                    let (slot, offset) = (waiting.slot, waiting.publication.offset);
                    tracing::error!(slot, offset, %error, "an event of an object cannot be read; it is left out");
                    self.done(std::iter::once((slot, offset)));
                }
            }
            queue.pop_front();
        }
        events
    }

    /// These events, which were handed out in this order, have been forwarded.
    pub fn events_done(&self, events: &[Event]) {
        self.done(events.iter().map(|event| (event.slot, event.position.offset)));
    }

    fn done(&self, events: impl Iterator<Item = (usize, u64)>) {
        let (outbox, now) = (&self.0.outbox, self.0.env.now());
        let mut idle = outbox.idle.lock();
        let mut count = 0;
        for (slot, offset) in events {
            outbox.slots[slot].forwarded.store(offset, Ordering::Release);
            idle.insert(slot, (offset, now));
            count += 1;
        }
        drop(idle);
        outbox.forwarded.fetch_add(count as u64, Ordering::Relaxed);
        outbox.backlog.fetch_sub(count, Ordering::AcqRel);
        outbox.left.notify_waiters();
    }

    /// Removes what has been forwarded of slots into which nothing has come for so long, so that it does not come again after a restart; where
    /// something comes sooner, that says it too. To be called from time to time, and before the store is closed.
    ///
    /// # Errors
    /// Those of [`ChannelHandle::trim`](crate::ChannelHandle::trim). What was not removed is tried again.
    pub async fn trim_events(&self, idle_for: Duration) -> Result<(), StoreError> {
        let (outbox, now) = (&self.0.outbox, self.0.env.now());
        let due: Vec<(usize, u64)> = {
            let idle = outbox.idle.lock();
            let due = idle.iter().filter(|(_, (_, since))| now.saturating_sub(*since) >= idle_for);
            due.map(|(slot, (offset, _))| (*slot, *offset)).collect()
        };
        for (slot, offset) in due {
            if outbox.slots[slot].came.load(Ordering::Acquire) == offset {
                self.channel(&keys::outbox(slot))?.trim(offset).await?;
            }
            let mut idle = outbox.idle.lock();
            if idle.get(&slot).is_some_and(|(last, _)| *last == offset) {
                idle.remove(&slot);
            }
        }
        Ok(())
    }
}

/// The events that wait in a slot's outbox.
async fn waiting_in(shard: &Shard, slot: usize, found: &mut Vec<Waiting>) -> Result<(), StoreError> {
    let channel = shard.channel(&keys::outbox(slot))?;
    let mut since = None;
    loop {
        let page = channel.history(HistoryQuery { since, limit: PAGE, reverse: false }).await?;
        let Some(last) = page.publications.last() else { return Ok(()) };
        let epoch = page.position.epoch;
        since = Some(Position { epoch, offset: last.offset });
        found.extend(page.publications.into_iter().map(|publication| Waiting {
            slot,
            epoch,
            publication,
            again: true,
        }));
    }
}

impl Waiting {
    fn event(&self) -> Result<Event, Malformed> {
        Ok(Event {
            slot: self.slot,
            position: Position { epoch: self.epoch, offset: self.publication.offset },
            time_ms: self.publication.time_ms,
            event: ObjectEvent::decode(&self.publication.body)?,
            again: self.again,
        })
    }
}
