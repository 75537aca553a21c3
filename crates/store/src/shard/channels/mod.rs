//! The channels of a shard.

pub(crate) mod pending;
pub(crate) mod record;
pub(crate) mod state;
mod sweep;
pub(crate) mod tails;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::{StreamExt, stream};
use parking_lot::{Mutex, RwLock};
use steadfast_log::{Applied, Durability, LogError, Priority, Record};

pub(crate) use sweep::sweep;

use crate::channels::{ChannelSink, History, HistoryQuery, NewPublication, Position, Publication};
use crate::index::IndexError;
use crate::outbox::Outbox;
use crate::record::wire::Malformed;
use crate::record::{Head, Value, keys};
use crate::shard::Shard;
use crate::shard::apply::Fault;
use crate::shard::core::{Core, busy};
use crate::shard::dirty::Thing;
use crate::shard::follow::{self, Follow};
use crate::shard::writer::{batch_bytes, check_head};
use crate::{StoreError, StoreSabotage};
use pending::PendingPublication;
use record::PublicationMeta;
use state::{Channel, Held, Loaded, State};
use tails::Tails;

/// A channel that nobody has published into for this long is forgotten, with its last offset.
pub(crate) const FORGOTTEN_AFTER_MS: u64 = 30 * 24 * 3600 * 1000;

/// The longest name, in bytes.
pub const CHANNEL_BYTES_MAX: usize = 255;

/// Reads from the log at a time for one history.
const READS: usize = 8;

/// Channels in memory at most while the log is replayed.
pub(crate) const REPLAYED_MAX: usize = 16 << 10;

/// So many publications that are over are looked up one by one.
const FEW: u64 = 8;

/// Parts of the table, each with a lock of its own.
const PARTS: usize = 64;

/// The channels that are in use.
pub(crate) struct Channels {
    parts: Vec<Mutex<HashMap<Arc<str>, Arc<Channel>>>>,
    hasher: RandomState,
    sink: RwLock<Option<Arc<dyn ChannelSink>>>,
    outbox: OnceLock<Arc<Outbox>>,
    pub(crate) tails: Arc<Tails>,
}

impl Channels {
    /// None, whose newest publications may take so many bytes of memory.
    pub(crate) fn new(tail_bytes_max: u64) -> Self {
        Self {
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            sink: RwLock::default(),
            outbox: OnceLock::new(),
            tails: Arc::new(Tails::new(tail_bytes_max)),
        }
    }

    fn part(&self, name: &str) -> &Mutex<HashMap<Arc<str>, Arc<Channel>>> {
        &self.parts[self.hasher.hash_one(name) as usize % PARTS]
    }

    pub(crate) fn set_sink(&self, sink: Arc<dyn ChannelSink>) {
        *self.sink.write() = Some(sink);
    }

    /// Who is told of publications.
    pub(crate) fn sink(&self) -> Option<Arc<dyn ChannelSink>> {
        self.sink.read().clone()
    }

    /// Where events wait to be forwarded, of all of the store's disks.
    pub(crate) fn outbox(&self) -> Option<&Arc<Outbox>> {
        self.outbox.get()
    }

    pub(crate) fn set_outbox(&self, outbox: &Arc<Outbox>) {
        let _ = self.outbox.set(outbox.clone());
    }

    /// How many are in memory.
    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.lock().len()).sum()
    }

    /// Lets go of all: what a replay made of them knows nothing of what may have been lost. Before anybody else has one.
    pub(crate) fn forget(&self) {
        self.parts.iter().for_each(|part| part.lock().clear());
    }

    /// Lets go of all, as [`Channels::forget`] does, when a replay has made more than it may: those that come again are looked up in the index.
    pub(crate) fn bound_replay(&self) {
        if self.len() > REPLAYED_MAX {
            self.forget();
        }
    }

    /// Lets go of one: who needs it again finds what is in the index.
    pub(crate) fn let_go(&self, name: &[u8]) {
        let Ok(name) = std::str::from_utf8(name) else { return };
        if let Some(channel) = self.part(name).lock().remove(name) {
            channel.gone.store(true, Ordering::Release);
        }
    }

    /// Lets go of those that nobody uses, in so many parts of the table, from one on.
    fn tidy(&self, from: usize, parts: usize) {
        for part in self.parts.iter().cycle().skip(from).take(parts) {
            // Whoever gets one does so under this lock, so a count of one stays one.
            part.lock().retain(|_, channel| Arc::strong_count(channel) > 1 || !channel.state.lock().is_settled());
        }
    }
}

impl Core {
    /// The channel, loaded from the index when it is not in memory.
    pub(crate) fn channel(&self, name: &str) -> Result<Arc<Channel>, StoreError> {
        let mut part = self.channels.part(name).lock();
        if let Some(channel) = part.get(name) {
            return Ok(channel.clone());
        }
        let mut state = State::new(self.load_channel(name)?, &self.channels.tails);
        if self.options.sabotage == StoreSabotage::OffsetReused {
            state.next = state.next.saturating_sub(1);
        }
        let channel = Arc::new(Channel { name: name.into(), state: Mutex::new(state), gone: AtomicBool::new(false) });
        part.insert(channel.name.clone(), channel.clone());
        Ok(channel)
    }

    fn load_channel(&self, name: &str) -> Result<Loaded, StoreError> {
        let (from, to) = keys::publications(name.as_bytes());
        let Some((key, value)) = self.index.last(&from, &to)? else {
            self.not_in_doubt(None)?;
            return Ok(Loaded { epoch: self.fresh_epoch(name), first: 1, top: 0 });
        };
        let top = keys::offset_of(&key).ok_or(Malformed("index: a publication's key"))?;
        let value = Value::decode(&value)?;
        self.not_in_doubt(Some(value.version))?;
        let meta = PublicationMeta::decode(value.payload)?;
        let lowest = match self.index.range(&keys::publication(name.as_bytes(), meta.floor), Some(&to)).next() {
            Some(pair) => keys::offset_of(&pair?.0).ok_or(Malformed("index: a publication's key"))?,
            None => top,
        };
        // What was delivered after it and never flushed may be lost, its offsets used again: another epoch.
        let lost = meta.is_async && value.version <= self.lost_lsn.load(Ordering::Acquire);
        let first = if meta.removed { top + 1 } else { lowest };
        Ok(Loaded { epoch: meta.epoch.wrapping_add(u32::from(lost)), first, top })
    }

    /// The epoch of a channel of which nothing is known. The same each time and on every disk of the pool, so that one who subscribed before the
    /// first publication goes on after it; another one once the channel may have been forgotten in between.
    fn fresh_epoch(&self, name: &str) -> u32 {
        let period = self.clock.now_ms() / FORGOTTEN_AFTER_MS;
        let pool = self.layout.read().as_ref().map_or(self.pool, |layout| layout.family);
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in pool.iter().chain(name.as_bytes()).chain(&period.to_le_bytes()) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        (hash ^ hash >> 32) as u32
    }

    /// Takes in a record of a channel.
    pub(crate) fn apply_publication(
        &self,
        r: &Applied,
        name: &[u8],
        offset: u64,
        payload: &[u8],
        put: impl FnOnce(Bytes) -> Result<bool, Fault>,
        remove: impl Fn(&Bytes) -> Result<bool, Fault>,
    ) -> Result<(), Fault> {
        let meta = PublicationMeta::decode(payload)?;
        let text = std::str::from_utf8(name).map_err(|_| Malformed("publication: channel"))?;
        let unread = |e: StoreError| match self.index.ailment() {
            Some(ailment) => Fault::Index(IndexError::failed(ailment.why)),
            None => Fault::Index(IndexError::damaged(e.to_string())),
        };
        let channel = self.channel(text).map_err(unread)?;
        let channel = match self.replayed_life(r, name, offset, &meta, &channel)? {
            Life::Same => channel,
            Life::Older => return Ok(()),
            Life::Newer => {
                self.channels.let_go(name);
                self.channel(text).map_err(unread)?
            }
        };
        if !put(keys::publication(name, offset).into())? {
            return Ok(());
        }
        let (held, over, wants_turn) = {
            let mut state = channel.state.lock();
            let (held, over) = state.applied(offset, &meta, r.moved);
            (held, over, state.wants_turn())
        };
        if wants_turn {
            self.channels.tails.enqueue(&channel);
        }
        self.channels.tails.evict();
        let removed = self.remove_over(name, over.start..over.end.min(offset), remove);
        if !r.moved {
            self.dirty.note(keys::CHANNELS, name, |name| Thing::Channel { name });
        }
        // What could not be removed is below what the channel keeps, and does no harm; that this came is told but once.
        self.deliver(r, &channel, &meta, held);
        removed
    }

    /// In a replay: a channel that was forgotten, which no record says, and used again has records of both lives in the log, and the earlier one may
    /// have got further. The versions say which is which: within one life they rise with the offsets.
    fn replayed_life(
        &self,
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
            self.remove_replayed(&pair?.0, r)?;
        }
        Ok(Life::Newer)
    }

    /// Removes the publications with these offsets from the index: what stands for the removed ones stays.
    fn remove_over(
        &self,
        name: &[u8],
        gone: std::ops::Range<u64>,
        remove: impl Fn(&Bytes) -> Result<bool, Fault>,
    ) -> Result<(), Fault> {
        if gone.end.saturating_sub(gone.start) <= FEW {
            for offset in gone {
                remove(&keys::publication(name, offset).into())?;
            }
            return Ok(());
        }
        // Of a channel whose beginning is not on this disk, nearly all of these never were.
        let (from, to) = (keys::publication(name, gone.start), keys::publication(name, gone.end));
        for pair in self.index.range(&from, Some(&to)) {
            remove(&pair?.0)?;
        }
        Ok(())
    }

    /// Tells those who want to know of a publication of this process.
    fn deliver(&self, r: &Applied, channel: &Arc<Channel>, meta: &PublicationMeta, held: Option<Held>) {
        let Some(held) = held else { return };
        if let Some(slot) = keys::outbox_slot(channel.name.as_bytes()) {
            if let Some(outbox) = self.channels.outbox() {
                outbox.came(slot, meta.epoch, &held.publication);
            }
            return;
        }
        if !r.moved
            && let Some(sink) = &*self.channels.sink.read()
        {
            if self.options.sabotage == StoreSabotage::FanOutOrder {
                let (sink, channel, epoch) = (sink.clone(), channel.clone(), meta.epoch);
                let publication = held.publication;
                self.env.spawn("deliver", async move { sink.published(&channel.name, epoch, &publication) });
                return;
            }
            sink.published(&channel.name, meta.epoch, &held.publication);
        }
    }
}

/// Of which life of its channel a record is, beside the newest one that is known.
enum Life {
    Same,
    Older,
    Newer,
}

/// A channel of a shard. While somebody holds one, the channel stays in memory.
#[derive(Clone)]
pub(crate) struct ShardChannel {
    shard: Shard,
    channel: Arc<Channel>,
}

impl Shard {
    /// A channel of this shard.
    pub(crate) fn channel(&self, name: &str) -> Result<ShardChannel, StoreError> {
        Ok(ShardChannel { shard: self.clone(), channel: self.core.channel(name)? })
    }
}

impl ShardChannel {
    /// Whether it is what there is of the channel in this shard.
    pub(crate) fn is_of(&self, shard: &Shard) -> bool {
        Arc::ptr_eq(&self.shard.core, &shard.core) && !self.channel.gone.load(Ordering::Acquire)
    }

    /// The share of its disk that is free, in percent.
    pub(crate) fn spare_percent(&self) -> u8 {
        let core = &self.shard.core;
        core.spare.percent(&core.env, self.shard.log())
    }

    pub(crate) fn position(&self) -> Position {
        self.channel.state.lock().position()
    }

    pub(crate) async fn submit(&self, new: NewPublication) -> Result<PendingPublication, StoreError> {
        let (core, log) = (self.shard.core.clone(), self.shard.log());
        let bytes = (128 + self.channel.name.len() + 64 + new.body.len()) as u64;
        let room = core.reserve(log, bytes, new.priority).await?;
        let mut state = self.channel.state.lock();
        let offset = state.next + 1;
        let floor = state.next_first.max((offset + 1).saturating_sub(new.history_size.max(1)));
        let is_async = new.durability == Durability::Async;
        let time_ms = core.env.wall_ms();
        let meta = PublicationMeta {
            removed: false,
            is_async: is_async || state.is_async,
            epoch: state.epoch,
            time_ms,
            ttl_ms: new.history_ttl_ms,
            floor,
        };
        let head =
            Head::Publication { channel: self.channel.name.as_bytes(), offset, payload: &meta.encode() }.encode();
        check_head(&head)?;
        let batch = vec![Record { head: head.into(), body: vec![new.body.clone()], version: None }];
        // The first one that says that later ones may get lost must not get lost itself.
        let early = core.options.sabotage == StoreSabotage::PublishBeforeFlush;
        let durability = if early || is_async && state.is_async { Durability::Async } else { Durability::Sync };
        let ticket = log.submit(room, batch, durability)?;
        core.submitted.fetch_max(ticket.first_lsn(), Ordering::AcqRel);
        state.is_async |= is_async;
        state.next = offset;
        state.next_first = floor;
        let publication = Arc::new(Publication { offset, time_ms, body: new.body });
        state.pending.push_back(Held { publication, ttl_ms: new.history_ttl_ms });
        let position = Position { epoch: state.epoch, offset };
        drop(state);
        Ok(PendingPublication { core, ticket, position, early })
    }

    pub(crate) async fn clear(&self) -> Result<(), StoreError> {
        let (core, log) = (&self.shard.core, self.shard.log());
        let room = core.reserve(log, (256 + self.channel.name.len()) as u64, Priority::Delete).await?;
        let ticket = {
            let mut state = self.channel.state.lock();
            if state.next == 0 {
                return Ok(());
            }
            let meta = PublicationMeta {
                removed: true,
                is_async: state.is_async,
                epoch: state.epoch,
                time_ms: core.env.wall_ms(),
                ttl_ms: 0,
                floor: state.next + 1,
            };
            let head = Head::Publication {
                channel: self.channel.name.as_bytes(),
                offset: state.next,
                payload: &meta.encode(),
            };
            let batch = vec![Record { head: head.encode().into(), ..Record::default() }];
            debug_assert!(batch_bytes(&batch) <= (256 + self.channel.name.len()) as u64);
            let ticket = log.submit(room, batch, Durability::Sync)?;
            core.submitted.fetch_max(ticket.first_lsn(), Ordering::AcqRel);
            state.next_first = state.next + 1;
            ticket
        };
        core.committed(ticket).await.map(drop)
    }

    /// Removes the publications up to `up_to`. The newest is written again, with where what is kept begins; or what stands for it, when it goes too.
    pub(crate) async fn trim(&self, up_to: u64) -> Result<(), StoreError> {
        let (core, log) = (&self.shard.core, self.shard.log());
        loop {
            let (next, newest) = {
                let state = self.channel.state.lock();
                if up_to.min(state.next) < state.next_first {
                    return Ok(());
                }
                (state.next, state.newest())
            };
            let newest = match newest {
                Some(newest) => Some(newest),
                None => self.read_one(next, 0).await?,
            };
            // It went meanwhile.
            let Some(Held { publication, ttl_ms }) = newest else { return Ok(()) };
            let removed = up_to >= next;
            let body = if removed { Vec::new() } else { vec![publication.body.clone()] };
            let body_len: usize = body.iter().map(Bytes::len).sum();
            let room = core.reserve(log, (256 + self.channel.name.len() + body_len) as u64, Priority::Delete).await?;
            let ticket = {
                let mut state = self.channel.state.lock();
                if state.next != next {
                    continue;
                }
                let floor = up_to.min(next) + 1;
                let meta = PublicationMeta {
                    removed,
                    is_async: state.is_async,
                    epoch: state.epoch,
                    time_ms: publication.time_ms,
                    ttl_ms,
                    floor,
                };
                let head =
                    Head::Publication { channel: self.channel.name.as_bytes(), offset: next, payload: &meta.encode() };
                let batch = vec![Record { head: head.encode().into(), body, version: None }];
                let ticket = log.submit(room, batch, Durability::Sync)?;
                core.submitted.fetch_max(ticket.first_lsn(), Ordering::AcqRel);
                state.next_first = state.next_first.max(floor);
                ticket
            };
            return core.committed(ticket).await.map(drop);
        }
    }

    pub(crate) async fn history(&self, query: HistoryQuery, bytes_max: usize) -> Result<History, StoreError> {
        let core = &self.shard.core;
        let now_ms = core.clock.now_ms();
        let (position, from, to, complete) = {
            let mut state = self.channel.state.lock();
            state.expire(now_ms);
            let position = state.position();
            let complete = match query.since {
                Some(since) => {
                    since.epoch == position.epoch && since.offset <= position.offset && since.offset + 1 >= state.first
                }
                None => true,
            };
            let (from, to) = match (query.since, query.reverse) {
                (Some(since), false) => (since.offset.saturating_add(1).max(state.first), position.offset),
                (Some(since), true) => (state.first, since.offset.saturating_sub(1).min(position.offset)),
                (None, _) => (state.first, position.offset),
            };
            if let Some(tail) = state.tail_from(from, now_ms) {
                let count = (to + 1).saturating_sub(from) as usize;
                let mut publications: Vec<_> = if query.reverse {
                    tail.take(count).cloned().collect()
                } else {
                    tail.take(count.min(query.limit)).cloned().collect()
                };
                if query.reverse {
                    publications.reverse();
                    publications.truncate(query.limit);
                }
                let mut bytes = 0;
                let within = publications.iter().take_while(|publication| {
                    let fits = bytes < bytes_max;
                    bytes += publication.body.len();
                    fits
                });
                publications.truncate(within.count());
                return Ok(History { publications, position, complete });
            }
            (position, from, to, complete)
        };
        let (mut from, mut to, mut complete) = (from, to, complete);
        let (mut publications, mut bytes) = (Vec::new(), 0);
        // Some may be over, or gone while the others are read: not only at the beginning, when what is kept was changed. Others take their places.
        while from <= to && publications.len() < query.limit && bytes < bytes_max {
            let count = (to + 1 - from).min((query.limit - publications.len()) as u64);
            let (first, last) = if query.reverse { (to + 1 - count, to) } else { (from, from + count - 1) };
            let offset = |i: u64| if query.reverse { last - i } else { first + i };
            let mut read =
                std::pin::pin!(stream::iter(0..count).map(|i| self.read_one(offset(i), now_ms)).buffered(READS));
            while let Some(found) = read.next().await {
                match found? {
                    Some(held) => {
                        bytes += held.publication.body.len();
                        publications.push(held.publication);
                    }
                    None => complete &= query.reverse,
                }
                if bytes >= bytes_max {
                    break;
                }
            }
            (from, to) = if query.reverse { (from, to - count) } else { (from + count, to) };
        }
        Ok(History { publications, position, complete })
    }

    async fn read_one(&self, offset: u64, now_ms: u64) -> Result<Option<Held>, StoreError> {
        let core = &self.shard.core;
        let key = keys::publication(self.channel.name.as_bytes(), offset);
        let mut follow = Follow::default();
        loop {
            let Some(value) = core.lookup(&key)? else { return Ok(None) };
            let value = Value::decode(&value)?;
            let meta = PublicationMeta::decode(value.payload)?;
            if meta.expired(now_ms) {
                return Ok(None);
            }
            let at = value.location;
            match follow::read(self.shard.log(), &at, 0..at.body_len, &key).await {
                Ok(body) => {
                    // Not memory of the disk's pool: histories that hold it while they read on would wait for each other.
                    let body = Bytes::copy_from_slice(&body);
                    let publication = Arc::new(Publication { offset, time_ms: meta.time_ms, body });
                    return Ok(Some(Held { publication, ttl_ms: meta.ttl_ms }));
                }
                Err(LogError::Moved) => follow.moved(self.shard.log(), &at).await?,
                Err(e) => return Err(busy(e)),
            }
        }
    }
}
