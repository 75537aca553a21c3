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

pub(crate) use handle::ShardChannel;
pub(crate) use sweep::Sweep;

use steadfast_flow::has_fault;

use crate::channels::ChannelSink;
use crate::outbox::Outbox;
use crate::record::epoch_break::hash_epoch;
use crate::record::wire::Malformed;
use crate::record::{Value, keys};
use crate::shard::applied::AppliedState;
use crate::{StoreError, StoreSabotage};
use record::PublicationMeta;
use state::{Channel, ChannelState, Loaded};
use tails::Tails;

/// Minimum time without publications after which a channel is forgotten, with its last offset.
pub(crate) const FORGOTTEN_AFTER_MS: u64 = 30 * 24 * 3600 * 1000;

/// Maximum bytes of a channel name.
pub const CHANNEL_BYTES_MAX: usize = 255;

/// Maximum number of channels in memory while the log is replayed.
pub(crate) const REPLAYED_MAX: usize = 16 << 10;

/// Number of parts of the table, each with its own lock.
const PARTS: usize = 64;

/// The channels that are in use.
pub(crate) struct Channels {
    parts: Vec<Mutex<HashMap<Arc<str>, Arc<Channel>>>>,
    hasher: RandomState,
    pub(crate) sink: RwLock<Option<Arc<dyn ChannelSink>>>,
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

    /// Drops all channels: those made by a replay know nothing of possible losses, and a break of
    /// epochs changes all. The next user of one loads it from the index.
    pub(crate) fn forget(&self) {
        for (_, channel) in self.parts.iter().flat_map(|part| std::mem::take(&mut *part.lock())) {
            assert!(channel.state.lock().is_settled(), "a channel with publications in flight is dropped");
            channel.gone.store(true, Ordering::Release);
        }
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

    /// Drops all unused channels.
    pub(crate) fn drop_unused(&self) {
        self.tidy(0, PARTS);
    }

    /// Drops unused channels in this many parts of the table, starting at `from`.
    fn tidy(&self, from: usize, parts: usize) {
        for part in self.parts.iter().cycle().skip(from).take(parts) {
            // Callers obtain a channel under this lock, so a count of one stays one.
            part.lock().retain(|_, channel| Arc::strong_count(channel) > 1 || !channel.state.lock().is_settled());
        }
    }

    /// The channel, loaded from the index when it is not in memory.
    pub(crate) fn get(&self, applied: &AppliedState, name: &str) -> Result<Arc<Channel>, StoreError> {
        let mut part = self.part(name).lock();
        if let Some(channel) = part.get(name) {
            return Ok(channel.clone());
        }
        let mut state = ChannelState::new(load_channel(applied, name)?, &self.tails);
        if has_fault(applied.options.sabotage, StoreSabotage::OffsetReused) {
            state.next = state.next.saturating_sub(1);
        }
        let channel = Arc::new(Channel { name: name.into(), state: Mutex::new(state), gone: AtomicBool::new(false) });
        part.insert(channel.name.clone(), channel.clone());
        Ok(channel)
    }
}

fn load_channel(applied: &AppliedState, name: &str) -> Result<Loaded, StoreError> {
    let (from, to) = keys::publications(name.as_bytes());
    let Some((key, value)) = applied.index.last(&from, &to)? else {
        applied.losses.not_in_doubt(None)?;
        return Ok(Loaded { epoch: fresh_epoch(applied, name), first: 1, top: 0 });
    };
    let top = keys::offset_of(&key).ok_or(Malformed("index: a publication's key"))?;
    let value = Value::decode(&value)?;
    applied.losses.not_in_doubt(Some(value.version))?;
    let meta = PublicationMeta::decode(value.payload)?;
    let lowest = match applied.index.range(&keys::publication(name.as_bytes(), meta.floor), Some(&to)).next() {
        Some(pair) => keys::offset_of(&pair?.0).ok_or(Malformed("index: a publication's key"))?,
        None => top,
    };
    let first = if meta.removed { top + 1 } else { lowest };
    Ok(Loaded { epoch: applied.losses.epoch_of(value.version, meta.is_async, meta.epoch), first, top })
}

/// Whether an entry of the index is a publication that has not expired.
pub(crate) fn is_kept(applied: &AppliedState, entry: Option<(Bytes, Bytes)>) -> Result<bool, StoreError> {
    let Some((_, value)) = entry else { return Ok(false) };
    let meta = PublicationMeta::decode(Value::decode(&value)?.payload)?;
    Ok(!meta.expired(applied.clock.now_ms()))
}

/// The epoch of an unknown channel. It is the same on every call and on every disk of the pool,
/// so a subscriber from before the first publication resumes after it. It changes once the
/// channel may have been forgotten in between, and with each break of epochs.
fn fresh_epoch(applied: &AppliedState, name: &str) -> u32 {
    let period = applied.clock.now_ms() / FORGOTTEN_AFTER_MS;
    let pool = applied.layout.read().as_ref().map_or(applied.pool, |layout| layout.family);
    let drawn = applied.losses.epoch_break().map(|epoch_break| epoch_break.drawn.to_le_bytes());
    let named = pool.iter().chain(name.as_bytes()).copied().chain(period.to_le_bytes());
    hash_epoch(named.chain(drawn.into_iter().flatten()))
}
