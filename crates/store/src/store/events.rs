//! Object events over all shards: their forwarding order and progress. See [`crate::events`].
//!
//! Events committed while the store is open are handed out in commit order over all slots. So a
//! client that makes a second change after the answer to the first finds their events in this
//! order. Events found at the opening of the store come first, by time.

use std::time::Duration;

use super::Store;
use crate::StoreError;
use crate::channels::{HistoryQuery, Position};
use crate::events::Event;
use crate::outbox::{QueuedEvent, by_time};
use crate::record::keys;
use crate::shard::Shard;
use crate::shard::channels::ShardChannel;
use crate::shard::events::has_listeners;

/// Events read at a time when the store is opened.
const PAGE: usize = 256;

/// The object events of a store, in the order in which they are forwarded.
#[derive(Debug, Clone, Copy)]
pub struct EventFeed<'a> {
    pub(super) store: &'a Store,
}

impl EventFeed<'_> {
    /// Queues the events that existed when the store was opened.
    pub(super) async fn find(self) -> Result<(), StoreError> {
        let found = loop {
            let found = self.waiting().await;
            // Events that a failed index did not return are read again when it has healed.
            if !self.healed().await {
                break found?;
            }
        };
        let found = by_time(found);
        if !found.is_empty() {
            tracing::info!(events = found.len(), "object events wait to be forwarded");
        }
        self.store.0.outbox.push(found);
        Ok(())
    }

    /// Waits for failed indexes to be healed. Returns whether there were any.
    async fn healed(self) -> bool {
        let mut any = false;
        for (_, shard) in self.store.topology().open() {
            any |= shard.applied.index.healed().await;
        }
        any
    }

    async fn waiting(self) -> Result<Vec<QueuedEvent>, StoreError> {
        let topology = self.store.topology();
        let mut found = Vec::new();
        for (seat, member) in topology.members().iter().enumerate() {
            let Ok(shard) = &member.shard else { continue };
            let (mut from, to) = keys::outboxes();
            while let Some(pair) = shard.applied.index.range(&from, Some(&to)).next() {
                let Some((name, _)) = keys::parse_publication(&pair?.0) else {
                    return Err(StoreError::Index("a key of an unknown format".into()));
                };
                from = keys::publications(&name).1;
                let Some(slot) = keys::outbox_slot(&name) else { continue };
                // Skips leftovers of a slot's previous home, also when its home is missing.
                if !topology.home_of(slot).is_ok_and(|home| home.seat == seat) {
                    continue;
                }
                if let Err(e) = waiting_in(shard, slot, &mut found).await {
                    tracing::error!(slot, error = %e, "object events cannot be read and are not forwarded");
                }
            }
        }
        Ok(found)
    }

    /// Waits while the outbox is full, if the bucket has notifications or is mirrored.
    pub(super) async fn room_for(self, bucket: &str) -> Result<(), StoreError> {
        let topology = self.store.topology();
        let lead = topology.lead()?;
        // The operation itself reports a bucket that does not exist.
        match lead.find(bucket) {
            Ok(found) if has_listeners(&lead.applied.options, &found) => self.room().await,
            _ => Ok(()),
        }
    }

    /// Waits while the outbox is full.
    pub(super) async fn room(self) -> Result<(), StoreError> {
        self.store.0.outbox.room(self.store.0.options.write_wait).await
    }

    /// The next events to forward, at most `max`, in order; waits until there is one. They are
    /// delivered again after a restart unless they were [done](EventFeed::done).
    pub async fn next(self, max: usize) -> Vec<Event> {
        self.store.0.outbox.next(max).await
    }

    /// Marks these events, in the order in which they were handed out, as forwarded.
    pub fn done(self, events: &[Event]) {
        self.store.0.outbox.done(events.iter().map(|event| (event.slot, event.position.offset)));
    }

    /// Removes forwarded events of slots without a new event for this long, so that a restart does
    /// not deliver them again. In busier slots the next event's record does the same. To be called
    /// from time to time, and before the store is closed.
    ///
    /// # Errors
    /// Those of [`ChannelHandle::trim`](crate::ChannelHandle::trim). What was not removed is tried
    /// again.
    pub async fn trim(self, idle_for: Duration) -> Result<(), StoreError> {
        let outbox = &self.store.0.outbox;
        for (slot, offset) in outbox.idle_for(idle_for) {
            if outbox.is_newest(slot, offset) {
                self.store.channel(&keys::outbox(slot))?.trim(offset).await?;
            }
            outbox.trimmed(slot, offset);
        }
        Ok(())
    }
}

/// The events in a slot's outbox.
async fn waiting_in(shard: &Shard, slot: usize, found: &mut Vec<QueuedEvent>) -> Result<(), StoreError> {
    let channel = ShardChannel::open(shard, &keys::outbox(slot))?;
    let mut since = None;
    loop {
        let page = channel.history(HistoryQuery { since, limit: PAGE, reverse: false }, usize::MAX).await?;
        let Some(last) = page.publications.last() else { return Ok(()) };
        let epoch = page.position.epoch;
        since = Some(Position { epoch, offset: last.offset });
        found.extend(page.publications.into_iter().map(|publication| QueuedEvent {
            slot,
            epoch,
            publication,
            maybe_redelivered: true,
        }));
    }
}
