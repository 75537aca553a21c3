//! The saved map: what of the fast leg may be read after the next opening.
//!
//! A slot is a head and the map's entries, 4 bytes a region. Head: mark (8), version (4), zeros (4), pair UUID (16), zeros (16),
//! generation (8), number of the saving (8), bytes of a region (8), entries (4), CRC32C of the entries (4), zeros, CRC32C (4) at 124.
//! An entry: first valid block (15 bits; the highest bit: nothing else of the region is wanted) and end of the valid blocks (16 bits).
//! Two slots are written in turn. One that is torn or cannot be read might have been the newest: then neither counts.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use bytes::Bytes;

use super::attach::NO_LEG;
use super::core::{Leg, Shared};
use super::map::REGIONS_MAX;
use super::pair::{Identity, MAP_SLOTS};
use crate::label::{Found, Label, crc32c, field, look, u32_at, u64_at};
use crate::{BLOCK, Disk};

const MAGIC: [u8; 8] = *b"STEADMAP";

/// A map that was read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedMap {
    pub(crate) region_bytes: u64,
    pub(crate) number: u64,
    pub(crate) entries: Bytes,
}

impl SavedMap {
    fn encode(&self, identity: &Identity) -> Bytes {
        let mut label = Label::new(MAGIC);
        label.put(16, &identity.pair);
        label.put(48, &identity.generation.to_le_bytes());
        label.put(56, &self.number.to_le_bytes());
        label.put(64, &self.region_bytes.to_le_bytes());
        label.put(72, &((self.entries.len() / 4) as u32).to_le_bytes());
        label.put(76, &crc32c(&self.entries).to_le_bytes());
        let mut bytes = label.seal().to_vec();
        bytes.extend_from_slice(&self.entries);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes.into()
    }

    /// Writes it to its slot. Durable after the next flush.
    pub(crate) async fn write(&self, fast: &Arc<dyn Disk>, identity: &Identity) -> io::Result<()> {
        fast.write(MAP_SLOTS[(self.number % 2) as usize], self.encode(identity)).await
    }

    /// The newest map that was saved by this pair in this generation. `None` also when a slot cannot be read or is torn: that might have been
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
        let parse =
            |b: &[u8]| (field::<16>(b, 16), u64_at(b, 48), u64_at(b, 56), u64_at(b, 64), u32_at(b, 72), u32_at(b, 76));
        let (pair, generation, number, region_bytes, count, crc) = match look(&head, MAGIC, parse) {
            Found::Label(fields) => fields,
            Found::Blank => return Ok(None),
            _ => return Err(damaged()),
        };
        if (pair, generation) != (identity.pair, identity.generation) {
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
        Ok(Some(Self { region_bytes, number, entries }))
    }
}

impl Shared {
    /// The task that saves the map.
    pub(crate) async fn save_in_background(self: Arc<Self>) {
        while !self.is_closing() {
            self.disown().await;
            let idle = {
                let mut state = self.state.lock();
                state.saver_idle = state.map.changes == state.saved_changes;
                state.saver_idle
            };
            if idle {
                self.saver_wake.notified().await;
                continue;
            }
            // What a saved map shows as valid and is not any more, sooner: a crash now would make the fast leg give what is old.
            let interval = self.options.map_save_interval;
            let wait = if self.state.lock().map.urgent { interval / 10 } else { interval };
            let closing = async {
                while !self.is_closing() && !matches!(self.state.lock().leg, Leg::Failed(_)) {
                    self.saver_wake.notified().await;
                }
            };
            if self.env.timeout(wait, closing).await.is_none() || !self.is_closing() {
                self.save_map().await;
            }
        }
    }

    /// Saves the map. What it then calls valid is durable on the fast leg.
    pub(crate) async fn save_map(self: &Arc<Self>) {
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
            let entries = state.map.save(self.flushed.load(SeqCst)).into();
            let map = SavedMap { region_bytes: state.map.region_bytes(), number: state.map_number, entries };
            (identity, changes, map)
        };
        let (identity, changes, map) = taken;
        let Some(fast) = self.fast.clone() else { return };
        let work = async {
            fast.flush().await?;
            self.write_map(&fast, map, identity).await?;
            fast.flush().await
        };
        let saved = self.within_limit("saving its map", work).await.is_ok();
        // After a failure too: the next change tries again.
        self.state.lock().saved_changes = changes;
        // What the durable leg names is believed, so it names no leg whose map may be an old one.
        self.name_fast_leg(if saved { identity.fast } else { NO_LEG }).await;
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
