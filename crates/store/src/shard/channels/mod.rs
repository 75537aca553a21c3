//! The channels of a shard.

mod handle;
pub(crate) mod pending;
pub(crate) mod record;
pub(crate) mod state;
mod sweep;
pub(crate) mod tails;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use steadfast_log::{Applied, Lsn, Usage};

pub(crate) use handle::ShardChannel;
pub(crate) use sweep::sweep;

use steadfast_flow::has_fault;

use crate::channels::ChannelSink;
use crate::index::IndexError;
use crate::outbox::Outbox;
use crate::record::wire::Malformed;
use crate::record::{Value, keys};
use crate::shard::applied::AppliedState;
use crate::shard::apply::Fault;
use crate::shard::dirty::Entity;
use crate::{StoreError, StoreSabotage};
use record::PublicationMeta;
use state::{Channel, ChannelState, HeldPublication, Loaded};
use tails::Tails;

/// Minimum time without publications after which a channel is forgotten, with its last offset.
pub(crate) const FORGOTTEN_AFTER_MS: u64 = 30 * 24 * 3600 * 1000;

/// Maximum bytes of a channel name.
pub const CHANNEL_BYTES_MAX: usize = 255;

/// Maximum number of channels in memory while the log is replayed.
pub(crate) const REPLAYED_MAX: usize = 16 << 10;

/// Up to this many expired publications are looked up one by one.
const FEW: u64 = 8;

/// Number of parts of the table, each with its own lock.
const PARTS: usize = 64;

/// The channels that are in use.
pub(crate) struct Channels {
    parts: Vec<Mutex<HashMap<Arc<str>, Arc<Channel>>>>,
    hasher: RandomState,
    sink: RwLock<Option<Arc<dyn ChannelSink>>>,
    outbox: OnceLock<Arc<Outbox>>,
    /// Milliseconds without publications after which a channel is forgotten. None is before it is
    /// set.
    forgotten_after_ms: AtomicU64,
    pub(crate) tails: Arc<Tails>,
    /// Number of publications removed because they expired.
    pub(crate) swept: AtomicU64,
}

impl Channels {
    /// An empty table; its channels' newest publications may take `tail_bytes_max` bytes of memory.
    pub(crate) fn new(tail_bytes_max: u64) -> Self {
        Self {
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            sink: RwLock::default(),
            outbox: OnceLock::new(),
            forgotten_after_ms: AtomicU64::new(u64::MAX),
            tails: Arc::new(Tails::new(tail_bytes_max)),
            swept: AtomicU64::new(0),
        }
    }

    fn part(&self, name: &str) -> &Mutex<HashMap<Arc<str>, Arc<Channel>>> {
        &self.parts[self.hasher.hash_one(name) as usize % PARTS]
    }

    pub(crate) fn set_sink(&self, sink: Arc<dyn ChannelSink>) {
        *self.sink.write() = Some(sink);
    }

    /// Sets the time without publications after which a channel is forgotten, in milliseconds.
    pub(crate) fn set_forgotten_after(&self, ms: u64) {
        self.forgotten_after_ms.store(ms.max(FORGOTTEN_AFTER_MS), Ordering::Relaxed);
    }

    pub(crate) fn forgotten_after_ms(&self) -> u64 {
        self.forgotten_after_ms.load(Ordering::Relaxed)
    }

    /// The receiver of publications.
    pub(crate) fn sink(&self) -> Option<Arc<dyn ChannelSink>> {
        self.sink.read().clone()
    }

    /// The outbox of object events, shared by all disks of the store.
    pub(crate) fn outbox(&self) -> Option<&Arc<Outbox>> {
        self.outbox.get()
    }

    pub(crate) fn set_outbox(&self, outbox: &Arc<Outbox>) {
        let _ = self.outbox.set(outbox.clone());
    }

    /// Number of channels in memory.
    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.lock().len()).sum()
    }

    /// Drops all channels: those made by a replay know nothing of possible losses. Only before a
    /// caller has obtained one.
    pub(crate) fn forget(&self) {
        self.parts.iter().for_each(|part| part.lock().clear());
    }

    /// Drops all channels, as [`Channels::forget`] does, when a replay has made too many. Later
    /// records look theirs up in the index.
    pub(crate) fn bound_replay(&self) {
        if self.len() > REPLAYED_MAX {
            self.forget();
        }
    }

    /// Drops one channel; the next user loads it from the index.
    pub(crate) fn drop_channel(&self, name: &[u8]) {
        let Ok(name) = std::str::from_utf8(name) else { return };
        if let Some(channel) = self.part(name).lock().remove(name) {
            channel.gone.store(true, Ordering::Release);
        }
    }

    /// Drops unused channels in this many parts of the table, starting at `from`.
    fn tidy(&self, from: usize, parts: usize) {
        for part in self.parts.iter().cycle().skip(from).take(parts) {
            // Callers obtain a channel under this lock, so a count of one stays one.
            part.lock().retain(|_, channel| Arc::strong_count(channel) > 1 || !channel.state.lock().is_settled());
        }
    }
}

impl AppliedState {
    /// The channel, loaded from the index when it is not in memory.
    pub(crate) fn channel(&self, name: &str) -> Result<Arc<Channel>, StoreError> {
        let mut part = self.channels.part(name).lock();
        if let Some(channel) = part.get(name) {
            return Ok(channel.clone());
        }
        let mut state = ChannelState::new(self.load_channel(name)?, &self.channels.tails);
        if has_fault(self.options.sabotage, StoreSabotage::OffsetReused) {
            state.next = state.next.saturating_sub(1);
        }
        let channel = Arc::new(Channel { name: name.into(), state: Mutex::new(state), gone: AtomicBool::new(false) });
        part.insert(channel.name.clone(), channel.clone());
        Ok(channel)
    }

    fn load_channel(&self, name: &str) -> Result<Loaded, StoreError> {
        let (from, to) = keys::publications(name.as_bytes());
        let Some((key, value)) = self.index.last(&from, &to)? else {
            self.losses.not_in_doubt(None)?;
            return Ok(Loaded { epoch: self.fresh_epoch(name), first: 1, top: 0 });
        };
        let top = keys::offset_of(&key).ok_or(Malformed("index: a publication's key"))?;
        let value = Value::decode(&value)?;
        self.losses.not_in_doubt(Some(value.version))?;
        let meta = PublicationMeta::decode(value.payload)?;
        let lowest = match self.index.range(&keys::publication(name.as_bytes(), meta.floor), Some(&to)).next() {
            Some(pair) => keys::offset_of(&pair?.0).ok_or(Malformed("index: a publication's key"))?,
            None => top,
        };
        // Later publications were delivered without a flush and may be lost, so their offsets may
        // be reused: a new epoch.
        let lost = meta.is_async && value.version <= self.losses.lost_lsn();
        let first = if meta.removed { top + 1 } else { lowest };
        Ok(Loaded { epoch: meta.epoch.wrapping_add(u32::from(lost)), first, top })
    }

    /// Whether an entry of the index is a publication that has not expired.
    pub(crate) fn is_kept(&self, entry: Option<(Bytes, Bytes)>) -> Result<bool, StoreError> {
        let Some((_, value)) = entry else { return Ok(false) };
        let meta = PublicationMeta::decode(Value::decode(&value)?.payload)?;
        Ok(!meta.expired(self.clock.now_ms()))
    }

    /// The epoch of an unknown channel. It is the same on every call and on every disk of the pool,
    /// so a subscriber from before the first publication resumes after it. It changes once the
    /// channel may have been forgotten in between.
    fn fresh_epoch(&self, name: &str) -> u32 {
        let period = self.clock.now_ms() / FORGOTTEN_AFTER_MS;
        let pool = self.layout.read().as_ref().map_or(self.pool, |layout| layout.family);
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in pool.iter().chain(name.as_bytes()).chain(&period.to_le_bytes()) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        (hash ^ hash >> 32) as u32
    }

    /// Applies a record of a channel.
    pub(crate) fn apply_publication(
        &self,
        usage: &mut Usage,
        r: &Applied,
        name: &[u8],
        offset: u64,
        payload: &[u8],
        put: impl FnOnce(&mut Usage, Bytes) -> Result<bool, Fault>,
    ) -> Result<(), Fault> {
        let meta = PublicationMeta::decode(payload)?;
        let text = std::str::from_utf8(name).map_err(|_| Malformed("publication: channel"))?;
        let unread = |e: StoreError| match self.index.failure() {
            Some(failure) => Fault::Index(IndexError::failed(failure.why)),
            None => Fault::Index(IndexError::damaged(e.to_string())),
        };
        let channel = self.channel(text).map_err(unread)?;
        let channel = match self.replayed_life(usage, r, name, offset, &meta, &channel)? {
            Life::Same => channel,
            Life::Older => return Ok(()),
            Life::Newer => {
                self.channels.drop_channel(name);
                self.channel(text).map_err(unread)?
            }
        };
        if !put(usage, keys::publication(name, offset).into())? {
            return Ok(());
        }
        let (held, over, queued) = {
            let mut state = channel.state.lock();
            let (held, over) = state.applied(offset, &meta, r.moved);
            (held, over, state.try_queue())
        };
        if queued {
            self.channels.tails.enqueue(&channel);
        }
        self.channels.tails.evict();
        assert!(held.as_ref().is_none_or(|held| held.publication.offset == offset), "another publication is delivered");
        let removed = self.remove_dropped(usage, name, over.start..over.end.min(offset), r.lsn);
        if !r.moved {
            self.dirty.note(keys::CHANNELS, name, |name| Entity::Channel { name });
        }
        // Publications that could not be removed lie below the channel's kept range and do no harm;
        // delivery happens only once.
        self.deliver(r, &channel, &meta, held);
        removed
    }

    /// In a replay: a channel that was forgotten and used again has records of both lives in the
    /// log. No record marks the end of the first life, and that life may have had higher offsets.
    /// The versions separate them: within one life they rise with the offsets.
    fn replayed_life(
        &self,
        usage: &mut Usage,
        r: &Applied,
        name: &[u8],
        offset: u64,
        meta: &PublicationMeta,
        channel: &Channel,
    ) -> Result<Life, Fault> {
        if self.replay.lock().is_none() {
            return Ok(Life::Same);
        }
        let (epoch, top) = {
            let state = channel.state.lock();
            (state.epoch, state.top)
        };
        if top == 0 || epoch == meta.epoch {
            return Ok(Life::Same);
        }
        let Some(newest) = self.index.get(&keys::publication(name, top))? else { return Ok(Life::Same) };
        let newest = Value::decode(&newest).map_err(|e| IndexError::damaged(e.to_string()))?.version;
        if offset > top {
            return Ok(if r.version < newest { Life::Older } else { Life::Same });
        }
        if r.version < newest {
            return Ok(Life::Same);
        }
        let (from, to) = (keys::publication(name, offset + 1), keys::publications(name).1);
        let later: Vec<_> = self.index.range(&from, Some(&to)).collect();
        for pair in later {
            self.remove_replayed(usage, &pair?.0, r)?;
        }
        Ok(Life::Newer)
    }

    /// Removes the publications with these offsets from the index; markers of removed ones stay.
    fn remove_dropped(
        &self,
        usage: &mut Usage,
        name: &[u8],
        gone: std::ops::Range<u64>,
        lsn: Lsn,
    ) -> Result<(), Fault> {
        if gone.end.saturating_sub(gone.start) <= FEW {
            for offset in gone {
                self.remove_expired(usage, &keys::publication(name, offset).into(), lsn)?;
            }
            return Ok(());
        }
        // Of a channel that began on another disk, nearly all of these offsets never existed here.
        let (from, to) = (keys::publication(name, gone.start), keys::publication(name, gone.end));
        for pair in self.index.range(&from, Some(&to)) {
            self.remove_expired(usage, &pair?.0, lsn)?;
        }
        Ok(())
    }

    /// Delivers a publication of this process to the sink and the outbox.
    fn deliver(&self, r: &Applied, channel: &Arc<Channel>, meta: &PublicationMeta, held: Option<HeldPublication>) {
        let Some(held) = held else { return };
        if let Some(slot) = keys::outbox_slot(channel.name.as_bytes()) {
            if let Some(outbox) = self.channels.outbox() {
                outbox.on_committed(slot, meta.epoch, &held.publication);
            }
            return;
        }
        if !r.moved
            && let Some(sink) = &*self.channels.sink.read()
        {
            if has_fault(self.options.sabotage, StoreSabotage::FanOutOrder) {
                let (sink, channel, epoch) = (sink.clone(), channel.clone(), meta.epoch);
                let publication = held.publication;
                self.env.spawn("deliver", async move { sink.published(&channel.name, epoch, &publication) });
                return;
            }
            sink.published(&channel.name, meta.epoch, &held.publication);
        }
    }
}

/// The life of the channel that a record belongs to, relative to the newest known one.
enum Life {
    Same,
    Older,
    Newer,
}
