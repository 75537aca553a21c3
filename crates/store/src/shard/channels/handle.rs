//! The handle of a channel: publishing, removing and reading of publications.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use steadfast_flow::has_fault;
use steadfast_log::{Durability, LogError, Priority, Record};

use super::pending::PendingPublication;
use super::record::PublicationMeta;
use super::state::{Channel, HeldPublication};
use crate::channels::{History, HistoryQuery, NewPublication, Position, Publication, StoredKey};
use crate::record::{Head, Value, keys};
use crate::shard::Shard;
use crate::shard::follow::{self, Follow};
use crate::shard::submit::{batch_bytes, check_head};
use crate::shard::writes::busy;
use crate::{StoreError, StoreSabotage};

/// Publications whose keys are looked at together: at first, and at most.
const KEYS_STEP: u64 = 64;
const KEYS_STEP_MAX: u64 = 4096;

/// Concurrent reads from the log for one history.
const READS: usize = 8;

/// Whether publications are in the order of their offsets, or in the opposite one.
fn in_order(publications: &[Arc<Publication>], reverse: bool) -> bool {
    let offsets = publications.iter().map(|publication| publication.offset);
    if reverse { offsets.rev().is_sorted_by(|a, b| a < b) } else { offsets.is_sorted_by(|a, b| a < b) }
}

/// A channel of a shard. The handle keeps the channel in memory.
#[derive(Clone)]
pub(crate) struct ShardChannel {
    shard: Shard,
    channel: Arc<Channel>,
}

impl ShardChannel {
    /// A channel of this shard.
    pub(crate) fn open(shard: &Shard, name: &str) -> Result<Self, StoreError> {
        Ok(Self { shard: shard.clone(), channel: shard.applied.channels.get(&shard.applied, name)? })
    }

    /// Whether it is this shard's current channel.
    pub(crate) fn is_of(&self, shard: &Shard) -> bool {
        Arc::ptr_eq(&self.shard.applied, &shard.applied) && !self.channel.gone.load(Ordering::Acquire)
    }

    /// The free share of its disk, in percent.
    pub(crate) fn spare_percent(&self) -> u8 {
        self.shard.writes.spare_percent()
    }

    pub(crate) fn position(&self) -> Position {
        self.channel.state.lock().position()
    }

    pub(crate) async fn submit(&self, new: NewPublication) -> Result<PendingPublication, StoreError> {
        let (applied, writes) = (&self.shard.applied, &self.shard.writes);
        let bytes = (128 + self.channel.name.len() + 64 + new.body.len()) as u64;
        let room = writes.reserve(bytes, new.priority).await?;
        let mut state = self.channel.state.lock();
        let offset = state.next + 1;
        let floor = state.next_first.max((offset + 1).saturating_sub(new.history_size.max(1)));
        let is_async = new.durability == Durability::Async;
        let time_ms = applied.env.wall_ms();
        let meta = PublicationMeta {
            removed: false,
            is_async: is_async || state.is_async,
            epoch: state.epoch,
            time_ms,
            ttl_ms: new.history_ttl_ms,
            floor,
            key: new.key,
        };
        let head =
            Head::Publication { channel: self.channel.name.as_bytes(), offset, payload: &meta.encode() }.encode();
        check_head(&head)?;
        let batch = vec![Record { head: head.into(), body: vec![new.body.clone()], version: None }];
        // The first record that permits later losses must itself not be lost.
        let early = has_fault(applied.options.sabotage, StoreSabotage::PublishBeforeFlush);
        let durability = if early || is_async && state.is_async { Durability::Async } else { Durability::Sync };
        let ticket = writes.append(room, batch, durability)?;
        let waiting = state.pending.back().map_or(state.top, |last| last.publication.offset);
        assert!(waiting < offset, "offset {offset} is given out twice, after {waiting}");
        debug_assert!(floor <= offset && floor >= state.next_first, "the kept range goes back to {floor}");
        state.is_async |= is_async;
        state.next = offset;
        state.next_first = floor;
        let publication = Arc::new(Publication { offset, time_ms, body: new.body });
        state.pending.push_back(HeldPublication { publication, ttl_ms: new.history_ttl_ms, key: new.key });
        let position = Position { epoch: state.epoch, offset };
        drop(state);
        Ok(PendingPublication { writes: writes.clone(), ticket, position, early })
    }

    pub(crate) async fn clear(&self) -> Result<(), StoreError> {
        let (applied, writes) = (&self.shard.applied, &self.shard.writes);
        let room = writes.reserve((256 + self.channel.name.len()) as u64, Priority::Delete).await?;
        let ticket = {
            let mut state = self.channel.state.lock();
            if state.next == 0 {
                return Ok(());
            }
            let meta = PublicationMeta {
                removed: true,
                is_async: state.is_async,
                epoch: state.epoch,
                time_ms: applied.env.wall_ms(),
                ttl_ms: 0,
                floor: state.next + 1,
                key: None,
            };
            let head = Head::Publication {
                channel: self.channel.name.as_bytes(),
                offset: state.next,
                payload: &meta.encode(),
            };
            let batch = vec![Record { head: head.encode().into(), ..Record::default() }];
            debug_assert!(batch_bytes(&batch) <= (256 + self.channel.name.len()) as u64);
            let ticket = writes.append(room, batch, Durability::Sync)?;
            state.next_first = state.next + 1;
            ticket
        };
        writes.committed(ticket).await.map(drop)
    }

    /// Removes the publications up to `up_to`. The newest is rewritten with the new start of the
    /// kept range, or replaced by a marker when it is removed too.
    pub(crate) async fn trim(&self, up_to: u64) -> Result<(), StoreError> {
        let writes = &self.shard.writes;
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
            // It was removed meanwhile.
            let Some(HeldPublication { publication, ttl_ms, key }) = newest else { return Ok(()) };
            let removed = up_to >= next;
            let body = if removed { Vec::new() } else { vec![publication.body.clone()] };
            let body_len: usize = body.iter().map(Bytes::len).sum();
            let room = writes.reserve((256 + self.channel.name.len() + body_len) as u64, Priority::Delete).await?;
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
                    key: key.filter(|_| !removed),
                };
                let head =
                    Head::Publication { channel: self.channel.name.as_bytes(), offset: next, payload: &meta.encode() };
                let batch = vec![Record { head: head.encode().into(), body, version: None }];
                let ticket = writes.append(room, batch, Durability::Sync)?;
                state.next_first = state.next_first.max(floor);
                ticket
            };
            return writes.committed(ticket).await.map(drop);
        }
    }

    pub(crate) async fn history(&self, query: HistoryQuery, bytes_max: usize) -> Result<History, StoreError> {
        let applied = &self.shard.applied;
        let now_ms = applied.clock.now_ms();
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
                debug_assert!(in_order(&publications, query.reverse), "a history out of the order of its offsets");
                return Ok(History { publications, position, complete });
            }
            (position, from, to, complete)
        };
        let (mut from, mut to, mut complete) = (from, to, complete);
        let (mut publications, mut bytes) = (Vec::new(), 0);
        // Some publications may have expired or been removed during the read, not only at the
        // start, where the retention was changed. Later ones take their places.
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
        debug_assert!(in_order(&publications, query.reverse), "a history out of the order of its offsets");
        Ok(History { publications, position, complete })
    }

    /// The idempotency keys of its publications of this time, the newest first, at most `limit`.
    pub(crate) fn keys_within(&self, time: Duration, limit: usize) -> Result<Vec<StoredKey>, StoreError> {
        let applied = &self.shard.applied;
        let (epoch, first, top) = {
            let state = self.channel.state.lock();
            (state.epoch, state.first, state.top)
        };
        let (now_ms, name) = (applied.clock.now_ms(), self.channel.name.as_bytes());
        let (mut keys, mut end) = (Vec::new(), top + 1);
        let mut step = KEYS_STEP;
        // Backwards, because most of a long history is older.
        while end > first && keys.len() < limit {
            let begin = end.saturating_sub(step).max(first);
            let (from, to) = (keys::publication(name, begin), keys::publication(name, end));
            let mut found = Vec::new();
            let mut is_older = false;
            for pair in applied.index.range(&from, Some(&to)) {
                let (key, value) = pair?;
                let meta = PublicationMeta::decode(Value::decode(&value)?.payload)?;
                let age = Duration::from_millis(now_ms.saturating_sub(meta.time_ms));
                is_older |= age > time;
                let offset = keys::offset_of(&key).unwrap_or_default();
                let stored = |key| StoredKey { key, position: Position { epoch, offset }, age };
                found.extend(meta.key.filter(|_| age <= time).map(stored));
            }
            keys.extend(found.into_iter().rev());
            if is_older {
                break;
            }
            (end, step) = (begin, (step * 2).min(KEYS_STEP_MAX));
        }
        keys.truncate(limit);
        Ok(keys)
    }

    async fn read_one(&self, offset: u64, now_ms: u64) -> Result<Option<HeldPublication>, StoreError> {
        let applied = &self.shard.applied;
        let key = keys::publication(self.channel.name.as_bytes(), offset);
        let mut follow = Follow::default();
        loop {
            let Some(value) = applied.lookup(&key)? else { return Ok(None) };
            let value = Value::decode(&value)?;
            let meta = PublicationMeta::decode(value.payload)?;
            if meta.expired(now_ms) {
                return Ok(None);
            }
            let at = value.location;
            match follow::read(self.shard.log(), &at, 0..at.body_len, &key).await {
                Ok(body) => {
                    let publication = Arc::new(Publication { offset, time_ms: meta.time_ms, body });
                    return Ok(Some(HeldPublication { publication, ttl_ms: meta.ttl_ms, key: meta.key }));
                }
                Err(LogError::Moved) => follow.moved(self.shard.log(), &at).await?,
                Err(e) => return Err(busy(e)),
            }
        }
    }
}
