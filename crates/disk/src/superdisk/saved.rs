//! The saved map: what of the fast leg may be read after the next opening.
//!
//! A slot is a head and the map's entries, 4 bytes a region. Head: mark (8), version (4), zeros (4), pair UUID (16), fast leg's UUID (16),
//! generation (8), number of the saving (8), bytes of a region (8), entries (4), CRC32C of the entries (4), event (8), zeros, CRC32C (4)
//! at 124.
//! An entry: first valid block (15 bits; the highest bit: nothing else of the region is wanted) and end of the valid blocks (16 bits).
//! Two slots are written in turn. One that is torn or cannot be read might have been the newest: then neither counts.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use bytes::Bytes;

use super::core::{Leg, Shared};
use super::map::{REGIONS_MAX, Saving};
use super::pair::{Identity, MAP_SLOTS, NO_LEG};
use crate::label::{Found, Label, crc32c, field, look, u32_at, u64_at};
use crate::{BLOCK, Disk};

const MAGIC: [u8; 8] = *b"STEADMAP";

/// A map that was read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedMap {
    pub(crate) region_bytes: u64,
    pub(crate) number: u64,
    /// The durable leg's event that it belongs to.
    pub(crate) event: u64,
    pub(crate) entries: Bytes,
}

impl SavedMap {
    fn encode(&self, identity: &Identity) -> Bytes {
        let mut label = Label::new(MAGIC);
        label.put(16, &identity.pair);
        label.put(32, &identity.fast);
        label.put(48, &identity.generation.to_le_bytes());
        label.put(56, &self.number.to_le_bytes());
        label.put(64, &self.region_bytes.to_le_bytes());
        label.put(72, &((self.entries.len() / 4) as u32).to_le_bytes());
        label.put(76, &crc32c(&self.entries).to_le_bytes());
        label.put(80, &self.event.to_le_bytes());
        let mut bytes = label.seal().to_vec();
        bytes.extend_from_slice(&self.entries);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes.into()
    }

    /// Writes it to its slot. Durable after the next flush.
    pub(crate) async fn write(&self, fast: &Arc<dyn Disk>, identity: &Identity) -> io::Result<()> {
        fast.write(MAP_SLOTS[(self.number % 2) as usize], self.encode(identity)).await
    }

    /// The newest map that was saved by this pair in this generation, on this leg by its name of now. `None` also when a slot cannot be read or is torn: that might have been
    /// the newest, and the one before it may call valid what was not any more.
    pub(crate) async fn find(fast: &Arc<dyn Disk>, identity: &Identity) -> Option<Self> {
        let mut best: Option<Self> = None;
        for slot in MAP_SLOTS {
            match Self::read(fast, slot, identity).await {
                Ok(Some(map)) if best.as_ref().is_none_or(|best| best.number < map.number) => best = Some(map),
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(disk = fast.describe(), %error, "the map of the fast leg cannot be used: it is rebuilt");
                    return None;
                }
            }
        }
        best
    }

    async fn read(fast: &Arc<dyn Disk>, slot: u64, identity: &Identity) -> io::Result<Option<Self>> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "a saved map is damaged");
        let head = fast.read(slot, BLOCK).await?;
        let parse = |b: &[u8]| {
            let map = Self {
                region_bytes: u64_at(b, 64),
                number: u64_at(b, 56),
                event: u64_at(b, 80),
                entries: Bytes::new(),
            };
            (field::<16>(b, 16), field::<16>(b, 32), u64_at(b, 48), map, u32_at(b, 72), u32_at(b, 76))
        };
        let (pair, leg, generation, map, count, crc) = match look(&head, MAGIC, parse) {
            Found::Label(fields) => fields,
            Found::Blank => return Ok(None),
            _ => return Err(damaged()),
        };
        // Builds from before events did not write the leg's name here.
        let named = leg == identity.fast || (identity.event == 0 && leg == NO_LEG);
        if (pair, generation) != (identity.pair, identity.generation) || !named {
            return Ok(None);
        }
        if u64::from(count) > REGIONS_MAX {
            return Err(damaged());
        }
        let len = count as usize * 4;
        let entries = fast.read(slot + BLOCK as u64, len.next_multiple_of(BLOCK)).await?.slice(..len);
        // The memory of the disk's pool is not held for ever.
        let entries = Bytes::copy_from_slice(&entries);
        if crc32c(&entries) != crc {
            return Err(damaged());
        }
        Ok(Some(Self { entries, ..map }))
    }
}

/// How long a rise of the event waits for a flush that others ask for, before it asks for one itself.
const FLUSH_WAIT: Duration = Duration::from_millis(250);

impl Shared {
    /// The task that saves the map.
    pub(crate) async fn save_in_background(self: Arc<Self>) {
        let interval = self.options.map_save_interval;
        let (mut since, mut last) = (self.env.now(), Duration::ZERO);
        while !self.is_closing() {
            self.disown().await;
            let (idle, urgent, failed) = {
                let mut state = self.state.lock();
                state.saver_idle = state.map.changes == state.saved_changes;
                (state.saver_idle, state.map.urgent, matches!(state.leg, Leg::Failed(_)))
            };
            if idle {
                self.saver_wake.notified().await;
                since = self.env.now();
                continue;
            }
            // What a saved map calls valid and is not any more, or is about to be written, is taken back much sooner.
            let (now, full) = (self.env.now(), since + interval);
            let due = if urgent { full.min(last + interval / 40) } else { full };
            if now < due && !failed {
                self.state.lock().saver_naps = !urgent;
                self.env.timeout(due - now, self.saver_wake.notified()).await;
                self.state.lock().saver_naps = false;
                continue;
            }
            if now < full && !failed {
                self.save_map(Saving::Less).await;
            } else {
                self.save_map(Saving::All).await;
                since = self.env.now();
            }
            last = self.env.now();
        }
    }

    /// Saves the map. What it then calls valid is durable on both legs. [`Saving::Less`] only takes back; the others come with a new event
    /// on the durable leg, which is durable before.
    pub(crate) async fn save_map(self: &Arc<Self>, what: Saving) {
        let _one = self.saving.lock().await;
        let taken = {
            let mut state = self.state.lock();
            let Some(identity) = state.attached.filter(|_| state.leg == Leg::Up) else {
                // Nowhere to save it; attaching will.
                state.saved_changes = state.map.changes;
                return;
            };
            state.map_number += 1;
            let changes = state.map.changes;
            let entries = state.map.save(self.flushed.load(SeqCst), what).into();
            let (region_bytes, number, event) = (state.map.region_bytes(), state.map_number, state.identity.event);
            (identity, changes, SavedMap { region_bytes, number, event, entries })
        };
        let (identity, changes, mut map) = taken;
        let Some(fast) = self.fast.clone() else { return };
        if what != Saving::Less {
            match self.raise_event().await {
                Ok(event) => map.event = event,
                Err(error) => {
                    tracing::debug!(%error, "the durable leg does not take a label: the map is not saved");
                    // Nothing of it was written.
                    return self.state.lock().map.not_saved();
                }
            }
        }
        let (number, event) = (map.number, map.event);
        let work = async {
            self.flush_fast(&fast).await?;
            self.write_map(&fast, map, identity).await?;
            self.flush_fast(&fast).await
        };
        let saved = self.within_limit("saving its map", work).await.is_ok();
        {
            let mut state = self.state.lock();
            state.map.saved(saved);
            if saved {
                state.saved_number = Some(number);
            }
            // After a failure it is tried again; what was only taken back is saved as a whole later.
            if saved && what != Saving::Less {
                state.saved_changes = changes;
                if state.map.counts().to_rebuild == 0 {
                    state.relapses = 0;
                }
            }
            // Some copying may have waited for it.
            self.wake(&mut state);
        }
        if !saved {
            // What the durable leg names is believed, so it names no leg whose map may be an old one.
            self.name_fast_leg(NO_LEG, 0).await;
        } else if what != Saving::Less {
            self.name_fast_leg(identity.fast, event).await;
        }
    }

    /// Raises the event on the durable leg; it is durable there when this returns.
    async fn raise_event(&self) -> io::Result<u64> {
        let event = {
            let _one = self.naming.lock().await;
            let before = self.state.lock().identity;
            let identity = Identity { event: before.event + 1, ..before };
            identity.write_durable_unflushed(&self.durable).await?;
            self.state.lock().identity = identity;
            identity.event
        };
        let mark = self.completed.fetch_add(1, SeqCst) + 1;
        // A log flushes all the time: its next flush will do.
        let flushed = async {
            self.flush_awaited.store(true, SeqCst);
            while self.flushed.load(SeqCst) < mark && !self.is_closing() {
                self.flush_wake.notified().await;
            }
        };
        self.env.timeout(FLUSH_WAIT, flushed).await;
        self.flush_awaited.store(false, SeqCst);
        if self.flushed.load(SeqCst) < mark {
            self.flush_durable().await?;
        }
        Ok(event)
    }

    /// Writes a map in a task of its own: one that returns late must not come after newer ones unnoticed.
    async fn write_map(self: &Arc<Self>, fast: &Arc<dyn Disk>, map: SavedMap, identity: Identity) -> io::Result<()> {
        let (done, answer) = tokio::sync::oneshot::channel();
        let (shared, fast) = (self.clone(), fast.clone());
        self.map_writes.fetch_add(1, SeqCst);
        self.env.spawn("superdisk-map-write", async move {
            let result = map.write(&fast, &identity).await;
            shared.map_writes.fetch_sub(1, SeqCst);
            // Nobody may be waiting for it.
            let _ = done.send(result);
        });
        answer.await.unwrap_or_else(|_| Err(io::Error::other("the runtime has ended")))
    }
}
