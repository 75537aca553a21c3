//! What a channel may show, given what was published, acknowledged, delivered and seen.
//!
//! Every publication's body begins with a unique number. An offset under an epoch belongs to one
//! publication for ever, and a publication has one offset. After a power cut, a prefix of the
//! publications must survive: at least those acknowledged as durable or delivered as durable.
//! Asynchronous publications at the end may be lost. If a subscriber had seen any of them, the
//! epoch must change, to one that the channel never had. The same holds for every channel of a
//! pool that is restored to an earlier state.

use std::collections::{BTreeMap, BTreeSet};

use steadfast_store::{History, HistoryQuery, Position, Publication, Published};

use crate::rng::stream_bytes;

/// Bytes of the number at the start of a body.
pub const NUMBER_BYTES: u64 = 8;

/// The history size and TTL of a channel.
#[derive(Debug, Clone, Copy)]
pub struct Keeping {
    /// Maximum number of publications.
    pub size: u64,
    /// Time to live in milliseconds.
    pub ttl_ms: u64,
}

/// A requested publication.
#[derive(Debug, Clone)]
struct PublicationRequest {
    channel: usize,
    len: u64,
    sync: bool,
    keeping: Keeping,
    /// The offset at which it was seen.
    offset: Option<u64>,
    /// Whether it was refused or lost, so that it must not appear any more.
    gone: bool,
}

/// A publication at an offset.
#[derive(Debug, Clone, Copy)]
struct Slot {
    id: u64,
    ends_ms: u64,
}

#[derive(Debug, Clone, Default)]
struct Channel {
    epoch: Option<u32>,
    /// Epochs that have ended.
    ended: BTreeSet<u32>,
    /// The last offset delivered, or found at the last start.
    top: u64,
    /// The last offset that must survive.
    durable: u64,
    /// Known publications by offset.
    slots: BTreeMap<u64, Slot>,
    /// For each offset: the lowest offset that the history size kept when it was published.
    floors: Vec<u64>,
    /// The publication seen at each epoch and offset, ever.
    places: BTreeMap<(u32, u64), u64>,
    /// Requested publications, neither seen nor refused.
    open: BTreeSet<u64>,
    /// History size of the last request.
    size: u64,
    /// Whether any publication may be acknowledged before its flush.
    lax: bool,
    /// The last offset that a clear has certainly removed.
    cleared: u64,
    /// The last offset that a clear may have removed.
    cleared_maybe: u64,
    /// Number of unacknowledged clears.
    clears: u64,
}

/// The knowledge of a channel before a query.
#[derive(Debug, Clone, Copy)]
pub struct Before {
    top: u64,
    lowest: u64,
}

/// The channels of a run.
#[derive(Debug, Clone, Default)]
pub struct Channels {
    channels: Vec<Channel>,
    requests: BTreeMap<u64, PublicationRequest>,
    /// The last number assigned.
    given: u64,
}

/// The body of a publication.
pub fn body_of(id: u64, len: u64) -> Vec<u8> {
    let mut body = vec![0; len.max(NUMBER_BYTES) as usize];
    stream_bytes(id, 0, &mut body);
    body[..NUMBER_BYTES as usize].copy_from_slice(&id.to_le_bytes());
    body
}

impl Channel {
    fn floor(&self) -> u64 {
        self.floors.last().copied().unwrap_or(1)
    }

    /// Records a publication at the next offset. `lowest` afterwards is the first retained offset.
    fn append(&mut self, slot: Option<Slot>, size: u64) {
        self.top += 1;
        let floor = self.floor().max((self.top + 1).saturating_sub(size));
        self.floors.push(floor);
        self.slots.extend(slot.map(|slot| (self.top, slot)));
    }

    /// The last offset that may be gone: because of the history size, the TTL or a clear.
    fn gone(&self, top: u64, now_ms: u64) -> u64 {
        if self.clears > 0 {
            return top;
        }
        let over = |offset: &u64| self.slots.get(offset).is_none_or(|slot| slot.ends_ms <= now_ms);
        let last_over = (self.floor()..=top).rev().find(over).unwrap_or(0);
        last_over.max(self.floor() - 1).max(self.cleared_maybe).min(top)
    }
}

impl Channels {
    /// Creates `count` channels without any knowledge.
    pub fn new(count: usize) -> Self {
        let channels = (0..count).map(|_| Channel { floors: vec![1], ..Channel::default() }).collect();
        Self { channels, ..Self::default() }
    }

    /// Rolls back to `then`. Numbers are not reused.
    pub fn roll_back_to(&mut self, then: &Self) {
        let later = std::mem::replace(self, Self { given: self.given, ..then.clone() });
        for (of, later) in self.channels.iter_mut().zip(later.channels) {
            of.ended.extend(later.ended);
            of.ended.extend([of.epoch.take(), later.epoch].into_iter().flatten());
            of.places.extend(later.places);
        }
    }

    /// Registers a publication before its request. Returns its number.
    pub fn ask(&mut self, channel: usize, len: u64, sync: bool, keeping: Keeping) -> u64 {
        self.given += 1;
        let id = self.given;
        let len = len.max(NUMBER_BYTES);
        self.requests.insert(id, PublicationRequest { channel, len, sync, keeping, offset: None, gone: false });
        let of = &mut self.channels[channel];
        of.open.insert(id);
        of.size = keeping.size;
        of.lax |= !sync;
        id
    }

    /// Records that the publication certainly did not take effect.
    pub fn refused(&mut self, id: u64) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.gone = true;
            self.channels[request.channel].open.remove(&id);
        }
    }

    /// Records the acknowledgement.
    ///
    /// # Errors
    /// If the store violates a guarantee.
    pub fn answered(&mut self, id: u64, published: &Published) -> Result<(), String> {
        let Some(request) = self.requests.get(&id) else { return Err(format!("WRONG: {id} was never requested")) };
        let (Position { epoch, offset }, of) = (published.position, &mut self.channels[request.channel]);
        if request.sync && !published.durable {
            return Err(format!("{id} was acknowledged before its flush: {published:?}"));
        }
        if offset > of.top || request.offset != Some(offset) || of.epoch != Some(epoch) {
            let (top, was) = (of.top, request.offset);
            return Err(format!("ORDER: {id} was acknowledged as {published:?}, but delivered as {was:?} of {top}"));
        }
        if published.durable {
            of.durable = of.durable.max(offset);
        }
        Ok(())
    }

    /// Records the delivery to the subscribers.
    ///
    /// # Errors
    /// If the store violates a guarantee.
    pub fn delivered(&mut self, channel: usize, epoch: u32, publication: &Publication) -> Result<(), String> {
        let id = self.place(channel, epoch, publication)?;
        let Some(request) = self.requests.get(&id) else { return Ok(()) };
        let of = &mut self.channels[channel];
        if of.epoch != Some(epoch) {
            return Err(format!("EPOCH: channel {channel} changed from epoch {:?} to {epoch} while in use", of.epoch));
        }
        if publication.offset != of.top + 1 {
            return Err(format!("ORDER: channel {channel} delivers {} after {}", publication.offset, of.top));
        }
        let ends_ms = publication.time_ms.saturating_add(request.keeping.ttl_ms);
        of.append(Some(Slot { id, ends_ms }), request.keeping.size);
        of.open.remove(&id);
        if request.sync {
            // The store delivers it only after it and all earlier publications are durable.
            of.durable = of.top;
        }
        Ok(())
    }

    /// Records that a subscriber sees a publication.
    ///
    /// # Errors
    /// If the store violates a guarantee.
    pub fn saw(&mut self, channel: usize, epoch: u32, publication: &Publication) -> Result<(), String> {
        self.place(channel, epoch, publication)?;
        let of = &self.channels[channel];
        if publication.offset > of.top {
            return Err(format!("EARLY: {} of channel {channel} is seen before it is delivered", publication.offset));
        }
        Ok(())
    }

    /// The channel's position, as far as publications were delivered.
    pub fn stands(&self, channel: usize) -> Position {
        let of = &self.channels[channel];
        Position { epoch: of.epoch.unwrap_or(0), offset: of.top }
    }

    /// Records that a clear is about to be requested.
    pub fn begin_clear(&mut self, channel: usize) -> u64 {
        let of = &mut self.channels[channel];
        of.clears += 1;
        of.top
    }

    /// Records the acknowledgement of a clear. `up_to`: the result of [`Channels::begin_clear`].
    pub fn cleared(&mut self, channel: usize, up_to: u64) {
        let of = &mut self.channels[channel];
        of.clears -= 1;
        of.cleared = of.cleared.max(up_to);
        of.cleared_maybe = of.top;
        of.durable = of.durable.max(up_to);
    }

    /// Records a clean close of the store.
    pub fn closed(&mut self) {
        self.channels.iter_mut().for_each(|of| of.durable = of.top);
    }

    /// Whether the channel certainly has all publications after a position.
    pub(crate) fn continues(&self, channel: usize, since: Position, now_ms: u64) -> bool {
        let of = &self.channels[channel];
        of.epoch == Some(since.epoch) && since.offset <= of.top && of.gone(of.top, now_ms) <= since.offset
    }

    /// The knowledge before a query.
    pub fn before(&self, channel: usize) -> Before {
        let of = &self.channels[channel];
        Before { top: of.top, lowest: of.floor().max(of.cleared + 1) }
    }

    /// Checks the answer to a query that was sent after `before`. `now_ms` is the time of the
    /// answer.
    ///
    /// # Errors
    /// If the store violates a guarantee.
    pub fn check_history(
        &mut self,
        channel: usize,
        before: &Before,
        query: &HistoryQuery,
        history: &History,
        now_ms: u64,
    ) -> Result<(), String> {
        let Position { epoch, offset: top } = history.position;
        let at = &self.channels[channel];
        if at.epoch != Some(epoch) || top < before.top || top > at.top {
            let (was, now) = (before.top, (at.epoch, at.top));
            return Err(format!(
                "channel {channel} reports the position {:?}; it was {was} before and {now:?} after the query",
                history.position
            ));
        }
        for publication in &history.publications {
            self.place(channel, epoch, publication)?;
        }
        self.holds(channel, before.lowest, query, history, now_ms)
    }

    /// Checks that a history shows all it must, and no more than it may.
    fn holds(
        &self,
        channel: usize,
        lowest: u64,
        query: &HistoryQuery,
        history: &History,
        now_ms: u64,
    ) -> Result<(), String> {
        let (of, Position { epoch, offset: top }) = (&self.channels[channel], history.position);
        let from = query.since.map_or(1, |since| since.offset + 1);
        let mut shown = BTreeSet::new();
        for publication in &history.publications {
            let offset = publication.offset;
            if offset < from || offset > top || shown.last().is_some_and(|last| *last >= offset) {
                return Err(format!("ORDER: channel {channel} shows {offset} after {shown:?}, of {from}..={top}"));
            }
            if offset < lowest {
                return Err(format!("channel {channel} shows {offset}, but may keep none below {lowest}"));
            }
            shown.insert(offset);
        }
        let gone = of.gone(top, now_ms);
        let end = if shown.len() == query.limit { shown.last().copied().unwrap_or(0) } else { top };
        let lacks = |from: u64| (from..=end).find(|offset| !shown.contains(offset));
        if let Some(lost) = lacks(from.max(gone + 1)) {
            return Err(format!("LOST: channel {channel} does not show {lost} of {from}..={top}, but {shown:?}"));
        }
        let Some(since) = query.since else { return Ok(()) };
        let foreign = since.epoch != epoch || since.offset > top;
        if history.complete && foreign {
            return Err(format!(
                "channel {channel} recovers from {since:?}, though its position is {:?}",
                history.position
            ));
        }
        if history.complete
            && let Some(lacking) = lacks(from)
        {
            return Err(format!("GAP: channel {channel} recovers from {since:?} without {lacking}: {shown:?}"));
        }
        if !history.complete && !foreign && gone < from {
            return Err(format!(
                "channel {channel} does not recover from {since:?}, though its history is complete: {shown:?}"
            ));
        }
        Ok(())
    }

    /// Checks the channel's position and whole history after a start. From then on, they are the
    /// known state.
    ///
    /// # Errors
    /// If the store violates a guarantee.
    pub fn restarted(&mut self, channel: usize, history: &History, now_ms: u64) -> Result<(), String> {
        let Position { epoch, offset: top } = history.position;
        let of = &mut self.channels[channel];
        let (was, durable, before) = (of.epoch, of.durable, of.top);
        if top < durable {
            return Err(format!("LOST: channel {channel} is at {top}, but {durable} was durable"));
        }
        if top > before + of.open.len() as u64 {
            return Err(format!("WRONG: channel {channel} is at {top}, but its last offset was {before}"));
        }
        let lost = of.slots.split_off(&(top + 1));
        match was {
            _ if of.ended.contains(&epoch) => {
                return Err(format!("EPOCH: channel {channel} has the epoch {epoch}, which had ended"));
            }
            Some(was) if was != epoch && !of.lax => {
                return Err(format!("EPOCH: channel {channel} changed from epoch {was} to {epoch} at a start"));
            }
            Some(was) if was == epoch && !lost.is_empty() => {
                return Err(format!("EPOCH: channel {channel} kept epoch {was}, though it lost {lost:?}"));
            }
            _ => of.ended.extend(of.epoch.replace(epoch).filter(|was| *was != epoch)),
        }
        of.floors.truncate(top as usize + 1);
        of.top = of.top.min(top);
        for slot in lost.values() {
            self.requests.entry(slot.id).and_modify(|request| request.gone = true);
        }
        let mut found: BTreeMap<u64, Slot> = BTreeMap::new();
        for publication in &history.publications {
            let id = self.place(channel, epoch, publication)?;
            let Some(request) = self.requests.get(&id) else { continue };
            let ends_ms = publication.time_ms.saturating_add(request.keeping.ttl_ms);
            found.insert(publication.offset, Slot { id, ends_ms });
        }
        let of = &mut self.channels[channel];
        while of.top < top {
            let (slot, size) = (found.get(&(of.top + 1)).copied(), of.size);
            of.append(slot, size);
        }
        for id in std::mem::take(&mut of.open) {
            if !found.values().any(|slot| slot.id == id) {
                self.requests.entry(id).and_modify(|request| request.gone = true);
            }
        }
        if std::mem::take(&mut of.clears) > 0 {
            let missing = (of.floor()..=top).rev().find(|offset| !found.contains_key(offset));
            of.cleared_maybe = of.cleared_maybe.max(missing.unwrap_or(0));
        }
        of.durable = top;
        let lowest = of.floor().max(of.cleared + 1);
        self.holds(channel, lowest, &ALL, history, now_ms)
    }

    /// Records the publication at an offset. Returns its number.
    fn place(&mut self, channel: usize, epoch: u32, publication: &Publication) -> Result<u64, String> {
        let (offset, body) = (publication.offset, &publication.body);
        let number = body.get(..NUMBER_BYTES as usize).and_then(|number| number.try_into().ok());
        let id = u64::from_le_bytes(number.unwrap_or_default());
        let Some(request) = self.requests.get_mut(&id).filter(|request| body_of(id, request.len) == body[..]) else {
            return Err(format!("WRONG: no client published the content at {offset} of channel {channel}"));
        };
        if request.channel != channel || request.gone {
            return Err(format!("WRONG: {id} is at {offset} of channel {channel}: {request:?}"));
        }
        if *request.offset.get_or_insert(offset) != offset {
            return Err(format!(
                "WRONG: {id} is at {offset} of channel {channel}, but was at another offset: {request:?}"
            ));
        }
        let of = &mut self.channels[channel];
        let known = of.slots.get(&offset).map_or(id, |slot| slot.id);
        let first = *of.places.entry((epoch, offset)).or_insert(id);
        if first != id || known != id {
            return Err(format!(
                "WRONG: offset {offset} of channel {channel} belongs to {first} or {known}, but shows {id}"
            ));
        }
        Ok(id)
    }
}

/// The query for the whole history of a channel.
pub const ALL: HistoryQuery = HistoryQuery { since: None, limit: usize::MAX, reverse: false };
