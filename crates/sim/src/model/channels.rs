//! What channels may show, given what was published, answered, delivered and seen.
//!
//! Every publication's body begins with a number of its own. A place in a channel, an offset under an epoch, is that of one publication for ever,
//! and a publication has one offset. After a power cut the beginning of what was there must be left: all that was answered as
//! durable or delivered as such, perhaps more. The end may be lost of what was published asynchronously; if anybody had
//! seen any of that, the epoch is another one.

use std::collections::{BTreeMap, BTreeSet};

use steadfast_store::{History, HistoryQuery, Position, Publication, Published};

use crate::rng::stream_bytes;

/// Bytes of the number that a body begins with.
pub const NUMBER_BYTES: u64 = 8;

/// For how long and how many publications of a channel are kept.
#[derive(Debug, Clone, Copy)]
pub struct Keeping {
    /// How many.
    pub size: u64,
    /// For how long, milliseconds.
    pub ttl_ms: u64,
}

/// A publication as it was asked for.
#[derive(Debug, Clone)]
struct Asked {
    channel: usize,
    len: u64,
    sync: bool,
    keeping: Keeping,
    /// Where it was seen.
    offset: Option<u64>,
    /// It was refused, or lost: it must not show any more.
    gone: bool,
}

/// A publication in its place.
#[derive(Debug, Clone, Copy)]
struct Slot {
    id: u64,
    ends_ms: u64,
}

#[derive(Debug, Clone, Default)]
struct Channel {
    epoch: Option<u32>,
    /// The last offset that was delivered, or was there after the last start.
    top: u64,
    /// Up to here it must survive.
    durable: u64,
    /// What is known to be there, or to have been.
    slots: BTreeMap<u64, Slot>,
    /// By offset: the lowest one that was to be kept, for the size, when that was published.
    floors: Vec<u64>,
    /// Who was seen where, under which epoch, ever.
    places: BTreeMap<(u32, u64), u64>,
    /// Asked for, and neither seen nor refused.
    open: BTreeSet<u64>,
    /// How many of the channel were kept when something was last asked for.
    size: u64,
    /// Something was ever asked for that may be answered before its flush.
    lax: bool,
    /// Removed for certain up to here,
    cleared: u64,
    /// and perhaps up to here.
    cleared_maybe: u64,
    /// Removals that were not answered.
    clears: u64,
}

/// What was known of a channel when something was asked.
#[derive(Debug, Clone, Copy)]
pub struct Before {
    top: u64,
    lowest: u64,
}

/// The channels of a run.
#[derive(Debug, Clone, Default)]
pub struct Channels {
    channels: Vec<Channel>,
    asked: BTreeMap<u64, Asked>,
    /// Numbers given.
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

    /// Notes a publication at the next place, after which `lowest` is the first that is kept.
    fn append(&mut self, slot: Option<Slot>, size: u64) {
        self.top += 1;
        let floor = self.floor().max((self.top + 1).saturating_sub(size));
        self.floors.push(floor);
        self.slots.extend(slot.map(|slot| (self.top, slot)));
    }

    /// Up to where publications may be gone: for the size, for their time, or as they were removed.
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
    /// So many, of which nothing is known.
    pub fn new(count: usize) -> Self {
        let channels = (0..count).map(|_| Channel { floors: vec![1], ..Channel::default() }).collect();
        Self { channels, ..Self::default() }
    }

    /// What happened since `then` never happened. Its numbers are not used again.
    pub fn back_to(&mut self, then: &Self) {
        *self = Self { given: self.given, ..then.clone() };
    }

    /// A publication is about to be asked for; its number.
    pub fn ask(&mut self, channel: usize, len: u64, sync: bool, keeping: Keeping) -> u64 {
        self.given += 1;
        let id = self.given;
        let len = len.max(NUMBER_BYTES);
        self.asked.insert(id, Asked { channel, len, sync, keeping, offset: None, gone: false });
        let of = &mut self.channels[channel];
        of.open.insert(id);
        of.size = keeping.size;
        of.lax |= !sync;
        id
    }

    /// It is known not to have taken place.
    pub fn refused(&mut self, id: u64) {
        if let Some(asked) = self.asked.get_mut(&id) {
            asked.gone = true;
            self.channels[asked.channel].open.remove(&id);
        }
    }

    /// It was answered.
    ///
    /// # Errors
    /// A broken promise.
    pub fn answered(&mut self, id: u64, published: &Published) -> Result<(), String> {
        let Some(asked) = self.asked.get(&id) else { return Err(format!("WRONG: {id} was never asked for")) };
        let (Position { epoch, offset }, of) = (published.position, &mut self.channels[asked.channel]);
        if asked.sync && !published.durable {
            return Err(format!("{id} was answered before its flush: {published:?}"));
        }
        if offset > of.top || asked.offset != Some(offset) || of.epoch != Some(epoch) {
            let (top, was) = (of.top, asked.offset);
            return Err(format!("ORDER: {id} was answered as {published:?}, delivered as {was:?} of {top}"));
        }
        if published.durable {
            of.durable = of.durable.max(offset);
        }
        Ok(())
    }

    /// It is delivered, to whoever listens.
    ///
    /// # Errors
    /// A broken promise.
    pub fn delivered(&mut self, channel: usize, epoch: u32, publication: &Publication) -> Result<(), String> {
        let id = self.place(channel, epoch, publication)?;
        let Some(asked) = self.asked.get(&id) else { return Ok(()) };
        let of = &mut self.channels[channel];
        if of.epoch != Some(epoch) {
            return Err(format!(
                "EPOCH: channel {channel} was of {:?}, and is of {epoch} while it is in use",
                of.epoch
            ));
        }
        if publication.offset != of.top + 1 {
            return Err(format!("ORDER: channel {channel} delivers {} after {}", publication.offset, of.top));
        }
        let ends_ms = publication.time_ms.saturating_add(asked.keeping.ttl_ms);
        of.append(Some(Slot { id, ends_ms }), asked.keeping.size);
        of.open.remove(&id);
        if asked.sync {
            // Nobody is told of it before it is durable, with all that came before it.
            of.durable = of.top;
        }
        Ok(())
    }

    /// Somebody sees a publication; which.
    ///
    /// # Errors
    /// A broken promise.
    pub fn saw(&mut self, channel: usize, epoch: u32, publication: &Publication) -> Result<(), String> {
        self.place(channel, epoch, publication)?;
        let of = &self.channels[channel];
        if publication.offset > of.top {
            return Err(format!("EARLY: {} of channel {channel} is seen before it is delivered", publication.offset));
        }
        Ok(())
    }

    /// Where the channel stands, as far as everybody was told.
    pub fn stands(&self, channel: usize) -> Position {
        let of = &self.channels[channel];
        Position { epoch: of.epoch.unwrap_or(0), offset: of.top }
    }

    /// All publications of the channel are about to be removed.
    pub fn begin_clear(&mut self, channel: usize) -> u64 {
        let of = &mut self.channels[channel];
        of.clears += 1;
        of.top
    }

    /// That was answered. `up_to`: what [`Channels::begin_clear`] gave.
    pub fn cleared(&mut self, channel: usize, up_to: u64) {
        let of = &mut self.channels[channel];
        of.clears -= 1;
        of.cleared = of.cleared.max(up_to);
        of.cleared_maybe = of.top;
        of.durable = of.durable.max(up_to);
    }

    /// The store was closed in order.
    pub fn closed(&mut self) {
        self.channels.iter_mut().for_each(|of| of.durable = of.top);
    }

    /// Before a question.
    pub fn before(&self, channel: usize) -> Before {
        let of = &self.channels[channel];
        Before { top: of.top, lowest: of.floor().max(of.cleared + 1) }
    }

    /// The answer to a question that was asked after `before`. The time is that of the answer.
    ///
    /// # Errors
    /// A broken promise.
    pub fn told(
        &mut self,
        channel: usize,
        before: &Before,
        query: &HistoryQuery,
        told: &History,
        now_ms: u64,
    ) -> Result<(), String> {
        let Position { epoch, offset: top } = told.position;
        let at = &self.channels[channel];
        if at.epoch != Some(epoch) || top < before.top || top > at.top {
            let (was, now) = (before.top, (at.epoch, at.top));
            return Err(format!(
                "channel {channel} says that it stands at {:?}, after {was}, before {now:?}",
                told.position
            ));
        }
        for publication in &told.publications {
            self.place(channel, epoch, publication)?;
        }
        self.holds(channel, before.lowest, query, told, now_ms)
    }

    /// Whether what is shown is all that must be, and no more than may be.
    fn holds(
        &self,
        channel: usize,
        lowest: u64,
        query: &HistoryQuery,
        told: &History,
        now_ms: u64,
    ) -> Result<(), String> {
        let (of, Position { epoch, offset: top }) = (&self.channels[channel], told.position);
        let from = query.since.map_or(1, |since| since.offset + 1);
        let mut shown = BTreeSet::new();
        for publication in &told.publications {
            let offset = publication.offset;
            if offset < from || offset > top || shown.last().is_some_and(|last| *last >= offset) {
                return Err(format!("ORDER: channel {channel} shows {offset} after {shown:?}, of {from}..={top}"));
            }
            if offset < lowest {
                return Err(format!("channel {channel} shows {offset}, and must keep none below {lowest}"));
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
        if told.complete && foreign {
            return Err(format!("channel {channel} goes on from {since:?}, though it stands at {:?}", told.position));
        }
        if told.complete
            && let Some(lacking) = lacks(from)
        {
            return Err(format!("GAP: channel {channel} goes on from {since:?} without {lacking}: {shown:?}"));
        }
        if !told.complete && !foreign && gone < from {
            return Err(format!(
                "channel {channel} does not go on from {since:?}, though it has everything: {shown:?}"
            ));
        }
        Ok(())
    }

    /// After a start: where the channel stands and all that it shows. Checks it, and from now on takes it for what is there.
    ///
    /// # Errors
    /// A broken promise.
    pub fn restarted(&mut self, channel: usize, told: &History, now_ms: u64) -> Result<(), String> {
        let Position { epoch, offset: top } = told.position;
        let of = &mut self.channels[channel];
        let (was, durable, before) = (of.epoch, of.durable, of.top);
        if top < durable {
            return Err(format!("LOST: channel {channel} stands at {top}, {durable} was durable"));
        }
        if top > before + of.open.len() as u64 {
            return Err(format!("WRONG: channel {channel} stands at {top}, where {before} was the last"));
        }
        let lost = of.slots.split_off(&(top + 1));
        match was {
            Some(was) if was != epoch && (!of.lax || epoch != was.wrapping_add(1)) => {
                return Err(format!("EPOCH: channel {channel} was of {was}, and is of {epoch} after a start"));
            }
            Some(was) if was == epoch && !lost.is_empty() => {
                return Err(format!("EPOCH: channel {channel} is still of {was}, though {lost:?} is lost"));
            }
            _ => of.epoch = Some(epoch),
        }
        of.floors.truncate(top as usize + 1);
        of.top = of.top.min(top);
        for slot in lost.values() {
            self.asked.entry(slot.id).and_modify(|asked| asked.gone = true);
        }
        let mut came: BTreeMap<u64, Slot> = BTreeMap::new();
        for publication in &told.publications {
            let id = self.place(channel, epoch, publication)?;
            let Some(asked) = self.asked.get(&id) else { continue };
            let ends_ms = publication.time_ms.saturating_add(asked.keeping.ttl_ms);
            came.insert(publication.offset, Slot { id, ends_ms });
        }
        let of = &mut self.channels[channel];
        while of.top < top {
            let (slot, size) = (came.get(&(of.top + 1)).copied(), of.size);
            of.append(slot, size);
        }
        for id in std::mem::take(&mut of.open) {
            if !came.values().any(|slot| slot.id == id) {
                self.asked.entry(id).and_modify(|asked| asked.gone = true);
            }
        }
        if std::mem::take(&mut of.clears) > 0 {
            let missing = (of.floor()..=top).rev().find(|offset| !came.contains_key(offset));
            of.cleared_maybe = of.cleared_maybe.max(missing.unwrap_or(0));
        }
        of.durable = top;
        let lowest = of.floor().max(of.cleared + 1);
        self.holds(channel, lowest, &ALL, told, now_ms)
    }

    /// Notes who is where; who that is.
    fn place(&mut self, channel: usize, epoch: u32, publication: &Publication) -> Result<u64, String> {
        let (offset, body) = (publication.offset, &publication.body);
        let number = body.get(..NUMBER_BYTES as usize).and_then(|number| number.try_into().ok());
        let id = u64::from_le_bytes(number.unwrap_or_default());
        let Some(asked) = self.asked.get_mut(&id).filter(|asked| body_of(id, asked.len) == body[..]) else {
            return Err(format!("WRONG: nobody published what is at {offset} of channel {channel}"));
        };
        if asked.channel != channel || asked.gone {
            return Err(format!("WRONG: {id} is at {offset} of channel {channel}: {asked:?}"));
        }
        if *asked.offset.get_or_insert(offset) != offset {
            return Err(format!("WRONG: {id} is at {offset} of channel {channel}, and was elsewhere: {asked:?}"));
        }
        let of = &mut self.channels[channel];
        let known = of.slots.get(&offset).map_or(id, |slot| slot.id);
        let first = *of.places.entry((epoch, offset)).or_insert(id);
        if first != id || known != id {
            return Err(format!(
                "WRONG: offset {offset} of channel {channel} is that of {first} or {known}, and of {id}"
            ));
        }
        Ok(id)
    }
}

/// All that a channel keeps.
pub const ALL: HistoryQuery = HistoryQuery { since: None, limit: usize::MAX, reverse: false };
