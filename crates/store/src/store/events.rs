//! Events of objects over all shards: in which order they are forwarded, and what was. See [`crate::events`].
//!
//! Those that come while the store is open are handed out in the order of their commits, over all slots: who has seen that a change was
//! answered and makes another will find both events in this order. Those that were found when the store was opened come first, by time.

use std::time::Duration;

use super::Store;
use crate::StoreError;
use crate::channels::{HistoryQuery, Position};
use crate::events::Event;
use crate::outbox::{Waiting, by_time};
use crate::record::keys;
use crate::shard::Shard;

/// Events that are read at a time when the store is opened.
const PAGE: usize = 256;

impl Store {
    /// Puts events into the outbox that were there when the store was opened.
    pub(super) async fn find_events(&self) -> Result<(), StoreError> {
        let found = loop {
            let found = self.waiting_events().await;
            // What an index that ails has not given is looked for again when it is well.
            if !self.healed().await {
                break found?;
            }
        };
        let found = by_time(found);
        if !found.is_empty() {
            tracing::info!(events = found.len(), "events of objects wait to be forwarded");
        }
        self.0.outbox.push(found);
        Ok(())
    }

    /// Waits for the indexes that ail; whether there are any.
    async fn healed(&self) -> bool {
        let mut any = false;
        for (_, shard) in self.topology().open() {
            any |= shard.core.index.healed().await;
        }
        any
    }

    async fn waiting_events(&self) -> Result<Vec<Waiting>, StoreError> {
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
        Ok(found)
    }

    /// Waits while as many events wait to be forwarded as may be, if somebody wants to know of the bucket.
    pub(super) async fn room_for_event(&self, bucket: &str) -> Result<(), StoreError> {
        let topology = self.topology();
        let lead = topology.lead()?;
        // One that is not there is told of where it is used.
        match lead.find(bucket) {
            Ok(found) if lead.core.has_listeners(&found) => self.room_for_events().await,
            _ => Ok(()),
        }
    }

    /// Waits while as many events wait to be forwarded as may be.
    pub(super) async fn room_for_events(&self) -> Result<(), StoreError> {
        self.0.outbox.room(self.0.options.write_wait).await
    }

    /// The next events that are to be forwarded, at most `max`, in order; waits until there are any. They come again after a restart, unless they
    /// were [done](Store::events_done).
    pub async fn next_events(&self, max: usize) -> Vec<Event> {
        self.0.outbox.next(max).await
    }

    /// These events, which were handed out in this order, have been forwarded.
    pub fn events_done(&self, events: &[Event]) {
        self.0.outbox.done(events.iter().map(|event| (event.slot, event.position.offset)));
    }

    /// Removes what has been forwarded of slots into which nothing has come for so long, so that it does not come again after a restart; where
    /// something comes sooner, that says it too. To be called from time to time, and before the store is closed.
    ///
    /// # Errors
    /// Those of [`ChannelHandle::trim`](crate::ChannelHandle::trim). What was not removed is tried again.
    pub async fn trim_events(&self, idle_for: Duration) -> Result<(), StoreError> {
        let outbox = &self.0.outbox;
        for (slot, offset) in outbox.idle_for(idle_for) {
            if outbox.is_newest(slot, offset) {
                self.channel(&keys::outbox(slot))?.trim(offset).await?;
            }
            outbox.trimmed(slot, offset);
        }
        Ok(())
    }
}

/// The events that wait in a slot's outbox.
async fn waiting_in(shard: &Shard, slot: usize, found: &mut Vec<Waiting>) -> Result<(), StoreError> {
    let channel = shard.channel(&keys::outbox(slot))?;
    let mut since = None;
    loop {
        let page = channel.history(HistoryQuery { since, limit: PAGE, reverse: false }, usize::MAX).await?;
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
