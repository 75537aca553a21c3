//! Channels over all shards: each is at home on its slot's disk, and moves with the slot.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Store;
use super::topology::HomeDisk;
use crate::StoreError;
use crate::channels::{ChannelSink, History, HistoryQuery, NewPublication, Position, Published, StoredKey};
use crate::layout::slot_of;
use crate::record::keys;
use crate::shard::channels::is_kept;
use crate::shard::channels::pending::PendingPublication;
use crate::shard::channels::{CHANNEL_BYTES_MAX, ShardChannel};

/// The channels of a store as a whole.
#[derive(Debug, Clone, Copy)]
pub struct StoreChannels<'a> {
    pub(super) store: &'a Store,
}

impl StoreChannels<'_> {
    /// Names of internal channels that begin with `begin` and were ever published into, in order.
    /// Those of missing disks are skipped.
    ///
    /// # Errors
    /// Those of the index.
    pub fn internal(self, begin: &str) -> Result<Vec<String>, StoreError> {
        let topology = self.store.topology();
        let mut found = std::collections::BTreeSet::new();
        for (seat, member) in topology.members().iter().enumerate() {
            let Ok(shard) = &member.shard else { continue };
            let (mut from, to) = keys::channels_named(begin);
            while let Some(pair) = shard.applied.index.range(&from, Some(&to)).next() {
                let Some((name, _)) = keys::parse_publication(&pair?.0) else {
                    return Err(StoreError::Index("a key of an unknown format".into()));
                };
                from = keys::publications(&name).1;
                let home = topology.home_of(slot_of(keys::CHANNELS, &name));
                let Ok(name) = String::from_utf8(name) else { continue };
                // Skips leftovers of a previous home.
                if home.is_ok_and(|home| home.seat == seat) && keys::is_own_channel(&name) {
                    found.insert(name);
                }
            }
        }
        Ok(found.into_iter().collect())
    }

    /// The number of channels with a history whose names are `wanted`, without internal ones. Those
    /// of missing disks do not count. It reads the whole index of channels.
    ///
    /// # Errors
    /// Those of the index.
    pub fn count(self, wanted: impl Fn(&str) -> bool) -> Result<u64, StoreError> {
        let topology = self.store.topology();
        let mut count = 0;
        for (seat, member) in topology.members().iter().enumerate() {
            let Ok(shard) = &member.shard else { continue };
            let applied = &shard.applied;
            let (mut from, to) = keys::channels_named("");
            while let Some(pair) = applied.index.range(&from, Some(&to)).next() {
                let Some((name, _)) = keys::parse_publication(&pair?.0) else {
                    return Err(StoreError::Index("a key of an unknown format".into()));
                };
                let (begin, end) = keys::publications(&name);
                let newest = applied.index.last(&begin, &end)?;
                from = end;
                let home = topology.home_of(slot_of(keys::CHANNELS, &name));
                let Ok(name) = String::from_utf8(name) else { continue };
                // A leftover of a previous home does not count.
                let is_here = home.is_ok_and(|home| home.seat == seat);
                if is_here && !keys::is_own_channel(&name) && wanted(&name) && is_kept(applied, newest)? {
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    /// Sets the receiver of publications.
    pub fn set_sink(self, sink: &Arc<dyn ChannelSink>) {
        self.store.topology().open().for_each(|(_, shard)| shard.applied.channels.set_sink(sink.clone()));
    }

    /// Sets how long a channel without publications keeps its epoch and offset; 30 days is the
    /// minimum. Before it is set, no channel is forgotten.
    pub fn set_retention(self, retention: Duration) {
        let ms = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
        self.store.topology().open().for_each(|(_, shard)| shard.applied.channels.set_forgotten_after(ms));
    }
}

/// A channel of a store. The handle keeps the channel in memory.
#[derive(Clone)]
pub struct ChannelHandle {
    store: Store,
    name: Arc<str>,
    slot: usize,
    /// The shard's channel as last found.
    here: Arc<Mutex<ShardChannel>>,
}

impl std::fmt::Debug for ChannelHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChannelHandle({})", self.name)
    }
}

impl ChannelHandle {
    /// The channel with this name in `store`.
    pub(super) fn new(store: &Store, name: &str) -> Result<Self, StoreError> {
        if name.is_empty() || name.len() > CHANNEL_BYTES_MAX {
            return Err(StoreError::TooLarge(format!("a channel's name has 1 to {CHANNEL_BYTES_MAX} bytes")));
        }
        let slot = slot_of(keys::CHANNELS, name.as_bytes());
        let here = ShardChannel::open(&*store.topology().home_of(slot)?, name)?;
        Ok(Self { store: store.clone(), name: name.into(), slot, here: Arc::new(Mutex::new(here)) })
    }

    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The channel at its home.
    fn at(&self, home: &HomeDisk) -> Result<ShardChannel, StoreError> {
        let mut here = self.here.lock();
        if !here.is_of(home) {
            *here = ShardChannel::open(home, &self.name)?;
        }
        Ok(here.clone())
    }

    /// The position: the last publication that can be delivered.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], those of the index.
    pub fn position(&self) -> Result<Position, StoreError> {
        let home = self.store.topology().home_of(self.slot)?;
        Ok(self.at(&home)?.position())
    }

    /// The free share of the channel's disk, in percent, at most half a second old.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], those of the index.
    pub fn spare_percent(&self) -> Result<u8, StoreError> {
        let home = self.store.topology().home_of(self.slot)?;
        Ok(self.at(&home)?.spare_percent())
    }

    /// The idempotency keys of the kept publications of this time, the newest first, at most
    /// `limit`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], those of the index.
    pub fn keys_within(&self, time: Duration, limit: usize) -> Result<Vec<StoredKey>, StoreError> {
        let home = self.store.topology().home_of(self.slot)?;
        self.at(&home)?.keys_within(time, limit)
    }

    /// Publishes and waits for the commit.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`], [`StoreError::Busy`], [`StoreError::Unavailable`], those of the
    /// log.
    pub async fn publish(&self, new: NewPublication) -> Result<Published, StoreError> {
        self.submit(new).await?.committed().await
    }

    /// Publishes: the publication has its offset when this returns. Later submits get higher
    /// offsets.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`], [`StoreError::Busy`], [`StoreError::Unavailable`], those of the
    /// log.
    pub async fn submit(&self, new: NewPublication) -> Result<PendingPublication, StoreError> {
        let home = self.store.enter_slot(self.slot).await?;
        // The mover waits for submitted records, so the answer may arrive after the gate was
        // passed.
        home.with_disk_name(self.at(&home)?.submit(new).await)
    }

    /// Removes all publications. The position stays: later publications continue from it.
    ///
    /// # Errors
    /// [`StoreError::Busy`], [`StoreError::Unavailable`], those of the log.
    pub async fn clear(&self) -> Result<(), StoreError> {
        let home = self.store.enter_slot(self.slot).await?;
        home.with_disk_name(self.at(&home)?.clear().await)
    }

    /// Removes the publications up to an offset. The position stays.
    ///
    /// # Errors
    /// [`StoreError::Busy`], [`StoreError::Unavailable`], those of the log.
    pub async fn trim(&self, up_to: u64) -> Result<(), StoreError> {
        let home = self.store.enter_slot(self.slot).await?;
        home.with_disk_name(self.at(&home)?.trim(up_to).await)
    }

    /// The kept publications.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], those of the log: an unreadable publication is never skipped.
    pub async fn history(&self, query: HistoryQuery) -> Result<History, StoreError> {
        self.history_within(query, usize::MAX).await
    }

    /// The same with at most `bytes_max` bytes of publications, but at least one publication.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], those of the log: an unreadable publication is never skipped.
    pub async fn history_within(&self, query: HistoryQuery, bytes_max: usize) -> Result<History, StoreError> {
        let home = self.store.topology().home_of(self.slot)?;
        self.at(&home)?.history(query, bytes_max).await
    }
}
