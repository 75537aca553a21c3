//! What may be read, given what was asked for, answered and seen.
//!
//! Every write carries a tag of its own (as its entity tag), so what a reader sees names the write that it came from. The model keeps
//! the writes of each key with the interval in which they happened and, once known, their version (the order that the store says it
//! used). A reader may see any write that no other is *known* to have superseded: by version where both are known, else because
//! one was answered before the other was asked for. After a power cut the same rule holds, over those writes that must have
//! survived: the acknowledged durable ones, those that somebody saw, and those of lower versions than any that survived.

pub mod channels;
mod frozen;
mod pieces;
mod survival;

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfast_log::Lsn;

pub use frozen::Frozen;
pub use pieces::{Piece, Pieces, bytes_of, total};

/// A key with its bucket.
pub type Key = (Arc<str>, Arc<str>);

/// What a write was conditional on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Demand {
    /// Nothing.
    None,
    /// No object there.
    Absent,
    /// The object with this tag.
    Tag(u64),
    /// Any object.
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Asked for; no answer yet, or never to come.
    Pending,
    /// Answered: it took place.
    Acked,
    /// Answered: it did not.
    Failed,
}

#[derive(Debug, Clone)]
struct Op {
    /// `None` deletes.
    tag: Option<u64>,
    demand: Demand,
    start: u64,
    end: Option<u64>,
    version: Option<Lsn>,
    state: State,
    /// Asked for with an answer before the flush.
    lax: bool,
    /// Must survive a power cut.
    durable: bool,
}

/// Names an operation of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpId {
    key: Key,
    at: usize,
    era: u64,
}

#[derive(Debug, Clone)]
struct Content {
    key: Key,
    /// What it may be: one, or several where it was copied from a key that was being written.
    candidates: Vec<Pieces>,
    /// A copy that was not answered: it may be of what came to the source after it was asked for.
    loose: bool,
    refused: bool,
}

/// What the versions of writes tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// The order of all writes: one log has them all.
    #[default]
    OneLog,
    /// The order of the writes of one key: a key stays on its disk.
    PerKey,
    /// Nothing: a key that moves to another disk gets a version of that one.
    Untold,
}

/// What a reader saw of a key.
pub type Seen = Option<(u64, Lsn)>;

/// The model. See the module.
#[derive(Clone, Default)]
pub struct Model {
    clock: u64,
    /// What versions tell.
    order: Order,
    /// How often each key was taken anew for what was seen of it after a start.
    eras: BTreeMap<Key, u64>,
    keys: BTreeMap<Key, Vec<Op>>,
    contents: BTreeMap<u64, Content>,
    next_tag: u64,
}

fn before(a: &Op, b: &Op) -> bool {
    match (a.version, b.version) {
        (Some(a), Some(b)) => a < b,
        _ => a.end.is_some_and(|end| end < b.start),
    }
}

impl Model {
    /// An empty one.
    pub fn new(order: Order) -> Self {
        Self { order, ..Self::default() }
    }

    /// What happened since `then` never happened. Its numbers are not used again.
    pub fn back_to(&mut self, then: &Self) {
        *self = Self { clock: self.clock, next_tag: self.next_tag, ..then.clone() };
    }

    /// The time now. Every call moves it on.
    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A number that no write has had.
    pub fn new_tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    /// A write of `candidates` (one of them) under `tag` is about to be asked for.
    pub fn begin_put(&mut self, key: &Key, tag: u64, candidates: Vec<Pieces>, demand: Demand, lax: bool) -> OpId {
        self.contents.insert(tag, Content { key: key.clone(), candidates, loose: false, refused: false });
        self.begin(key, Some(tag), demand, lax)
    }

    /// A copy to `key` under `tag` is about to be asked for. [`Model::copied`] says what of.
    pub fn begin_copy(&mut self, key: &Key, tag: u64, demand: Demand, lax: bool) -> OpId {
        self.contents.insert(tag, Content { key: key.clone(), candidates: Vec::new(), loose: true, refused: false });
        self.begin(key, Some(tag), demand, lax)
    }

    /// A delete is about to be asked for.
    pub fn begin_delete(&mut self, key: &Key, demand: Demand, lax: bool) -> OpId {
        self.begin(key, None, demand, lax)
    }

    fn begin(&mut self, key: &Key, tag: Option<u64>, demand: Demand, lax: bool) -> OpId {
        let start = self.tick();
        let ops = self.keys.entry(key.clone()).or_default();
        ops.push(Op { tag, demand, start, end: None, version: None, state: State::Pending, lax, durable: false });
        OpId { key: key.clone(), at: ops.len() - 1, era: self.eras.get(key).copied().unwrap_or(0) }
    }

    fn op(&mut self, id: &OpId) -> Option<&mut Op> {
        if id.era != self.eras.get(&id.key).copied().unwrap_or(0) {
            return None;
        }
        self.keys.get_mut(&id.key)?.get_mut(id.at)
    }

    /// It took place.
    ///
    /// # Errors
    /// When what the answer says cannot be.
    pub fn acked(&mut self, id: &OpId, version: Lsn, durable: bool) -> Result<(), String> {
        if self.order == Order::Untold {
            return self.acked_untold(id, durable);
        }
        let now = self.tick();
        let taken = self.keys.get(&id.key).is_some_and(|ops| {
            ops.iter().enumerate().any(|(at, op)| at != id.at && op.version.is_some_and(|other| other >= version))
        });
        let same = self.keys.get(&id.key).is_some_and(|ops| {
            ops.iter().enumerate().any(|(at, op)| at != id.at && op.version == Some(version) && op.tag.is_some())
        });
        let Some(op) = self.op(id) else { return Ok(()) };
        if op.tag.is_some() {
            if same {
                return Err(format!("two writes of {:?} have the version {version}", id.key));
            }
            if op.version.is_some_and(|seen| seen != version) {
                return Err(format!("{:?} was seen with version {:?} and answered with {version}", id.key, op.version));
            }
        }
        // A delete that found nothing need not have a version of its own.
        if op.tag.is_some() || !taken {
            op.version = Some(version);
        }
        if !durable && !op.lax {
            return Err(format!("{:?}: answered as not durable, though that was not asked for", id.key));
        }
        op.state = State::Acked;
        op.end = Some(op.end.map_or(now, |end| end.min(now)));
        op.durable |= durable;
        Ok(())
    }

    fn acked_untold(&mut self, id: &OpId, durable: bool) -> Result<(), String> {
        let now = self.tick();
        let Some(op) = self.op(id) else { return Ok(()) };
        if !durable && !op.lax {
            return Err(format!("{:?}: answered as not durable, though that was not asked for", id.key));
        }
        op.state = State::Acked;
        op.end = Some(op.end.map_or(now, |end| end.min(now)));
        op.durable |= durable;
        Ok(())
    }

    /// It took place durably; the answer had no version. (A delete: it says nothing of its own place in the order.)
    pub fn acked_unversioned(&mut self, id: &OpId) {
        let now = self.tick();
        if let Some(op) = self.op(id) {
            op.state = State::Acked;
            op.end = Some(op.end.map_or(now, |end| end.min(now)));
            op.durable |= !op.lax;
        }
    }

    /// It did not take place and never will.
    ///
    /// # Errors
    /// When somebody has seen it.
    pub fn failed(&mut self, id: &OpId) -> Result<(), String> {
        let Some(op) = self.op(id) else { return Ok(()) };
        let (seen, tag) = (op.end.is_some() && op.tag.is_some(), op.tag);
        op.state = State::Failed;
        if let Some(content) = tag.and_then(|tag| self.contents.get_mut(&tag)) {
            content.refused = true;
        }
        if seen { Err(format!("a write of {:?} was refused after it had been seen", id.key)) } else { Ok(()) }
    }

    fn supersedes<'a>(ops: &'a [Op], op: &Op, must: impl Fn(&Op) -> bool) -> Option<&'a Op> {
        ops.iter().find(|other| other.state != State::Failed && must(other) && before(op, other))
    }

    /// A read that began at `start` saw the write `tag`, with that version where it says so.
    ///
    /// # Errors
    /// When it must not have.
    pub fn saw(&mut self, key: &Key, start: u64, tag: u64, version: Option<Lsn>) -> Result<(), String> {
        let now = self.tick();
        let version = version.filter(|_| self.order != Order::Untold);
        let at = self.find(key, tag)?;
        let ops = self.keys.get_mut(key).ok_or("no such key")?;
        let op = &mut ops[at];
        if let Some(version) = version {
            if op.version.is_some_and(|known| known != version) {
                return Err(format!("{key:?} has version {version}, but was written as {:?}", op.version));
            }
            op.version = Some(version);
        }
        op.end = Some(op.end.map_or(now, |end| end.min(now)));
        op.durable |= !op.lax;
        let op = op.clone();
        if let Some(newer) = Self::supersedes(ops, &op, |other| other.end.is_some_and(|end| end < start)) {
            return Err(format!("stale read of {key:?}: saw {op:?}, superseded by {newer:?}"));
        }
        Ok(())
    }

    fn find(&self, key: &Key, tag: u64) -> Result<usize, String> {
        let Some(content) = self.contents.get(&tag) else {
            return Err(format!("WRONG {key:?}: tag {tag} was never written"));
        };
        if content.key != *key {
            return Err(format!("WRONG {key:?} shows tag {tag}, which was written to {:?}", content.key));
        }
        if content.refused {
            return Err(format!("{key:?} shows tag {tag}, whose write was refused"));
        }
        let ops = self.keys.get(key).map_or(&[][..], Vec::as_slice);
        ops.iter()
            .position(|op| op.tag == Some(tag))
            .ok_or_else(|| format!("{key:?} shows tag {tag}, which was lost or replaced before the last start"))
    }

    /// A read that began at `start` saw nothing there.
    ///
    /// # Errors
    /// When something must be there.
    pub fn saw_nothing(&mut self, key: &Key, start: u64) -> Result<(), String> {
        let now = self.tick();
        let Some(ops) = self.keys.get_mut(key) else { return Ok(()) };
        let must = |op: &Op| op.state != State::Failed && op.end.is_some_and(|end| end < start);
        if !ops.iter().any(must) {
            return Ok(());
        }
        let deletes: Vec<usize> = (0..ops.len())
            .filter(|&at| {
                let op = &ops[at];
                op.tag.is_none() && op.state != State::Failed && Self::supersedes(ops, op, must).is_none()
            })
            .collect();
        match deletes[..] {
            [] => Err(format!("{key:?} was not found, but must be there: {:?}", ops.iter().rfind(|op| must(op)))),
            [only] => {
                let op = &mut ops[only];
                op.end = Some(op.end.map_or(now, |end| end.min(now)));
                op.durable |= !op.lax;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A write asked for at `start` was refused because its demand did not hold.
    ///
    /// # Errors
    /// When it must have held.
    pub fn refused(&mut self, key: &Key, start: u64, id: &OpId, demand: &Demand) -> Result<(), String> {
        let now = self.tick();
        let own = id.at;
        let Some(ops) = self.keys.get_mut(key) else { return Ok(()) };
        let must = |op: &Op| op.state != State::Failed && op.end.is_some_and(|end| end < start);
        let possible = |at: usize, ops: &[Op]| {
            at != own && ops[at].state != State::Failed && Self::supersedes(ops, &ops[at], must).is_none()
        };
        let nothing = !ops.iter().any(must);
        let reasons: Vec<usize> = (0..ops.len())
            .filter(|&at| possible(at, ops))
            .filter(|&at| match demand {
                Demand::None => false,
                Demand::Absent => ops[at].tag.is_some(),
                Demand::Any => ops[at].tag.is_none(),
                Demand::Tag(tag) => ops[at].tag != Some(*tag),
            })
            .collect();
        if nothing && matches!(demand, Demand::Any | Demand::Tag(_)) {
            return Ok(());
        }
        match reasons[..] {
            [] => Err(format!("a write of {key:?} with {demand:?} was refused without reason: {ops:?}")),
            [only] => {
                let op = &mut ops[only];
                op.end = Some(op.end.map_or(now, |end| end.min(now)));
                op.durable |= !op.lax;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Checks that writes with a demand took place only where it held, as far as versions tell.
    ///
    /// # Errors
    /// The first that did not.
    pub fn check_demands(&self) -> Result<(), String> {
        for (key, ops) in &self.keys {
            let mut known: Vec<&Op> =
                ops.iter().filter(|op| op.state != State::Failed && op.version.is_some()).collect();
            let open = ops.iter().any(|op| op.state != State::Failed && op.version.is_none());
            if open {
                continue;
            }
            known.sort_by_key(|op| op.version);
            let mut there = None;
            for op in known {
                let held = match op.demand {
                    Demand::None => true,
                    Demand::Absent => there.is_none(),
                    Demand::Any => there.is_some(),
                    Demand::Tag(tag) => there == Some(tag),
                };
                if !held {
                    return Err(format!("{key:?}: {op:?} took place over {there:?}"));
                }
                there = op.tag;
            }
        }
        Ok(())
    }

    /// Checks `data` at `offset` of what was written as `tag`, and that the object is `size` bytes.
    ///
    /// # Errors
    /// When the bytes are others.
    pub fn check_bytes(&mut self, tag: u64, size: u64, offset: u64, data: &[u8]) -> Result<(), String> {
        let fits = |pieces: &Pieces| total(pieces) == size && bytes_of(pieces, offset, data.len()).as_slice() == data;
        let Some(content) = self.contents.get(&tag) else { return Err(format!("WRONG tag {tag}: never written")) };
        let mut found: Vec<Pieces> = content.candidates.iter().filter(|pieces| fits(pieces)).cloned().collect();
        if found.is_empty() && content.loose && content.candidates.is_empty() {
            let all = self.contents.values().flat_map(|other| &other.candidates);
            found = all.filter(|pieces| fits(pieces)).cloned().collect();
        }
        if found.is_empty() {
            return Err(format!(
                "WRONG BYTES in {:?} (tag {tag}): {} bytes at {offset} of {size}; written were {:?}",
                content.key,
                data.len(),
                content.candidates
            ));
        }
        if let Some(content) = self.contents.get_mut(&tag) {
            content.candidates = found;
        }
        Ok(())
    }

    /// A copy that was asked for at `start` has been answered: its bytes are one of those that `from` may have had meanwhile.
    pub fn copied(&mut self, tag: u64, from: &Key, start: u64) {
        let Some(ops) = self.keys.get(from) else { return };
        let must = |op: &Op| op.state != State::Failed && op.end.is_some_and(|end| end < start);
        let sources: Vec<&Content> = ops
            .iter()
            .filter(|op| op.state != State::Failed && Self::supersedes(ops, op, must).is_none())
            .filter_map(|op| op.tag.and_then(|tag| self.contents.get(&tag)))
            .collect();
        let loose = sources.iter().any(|content| content.loose);
        let candidates = sources.iter().flat_map(|content| content.candidates.iter().cloned()).collect();
        if let Some(content) = self.contents.get_mut(&tag) {
            content.candidates = if loose { Vec::new() } else { candidates };
            content.loose = loose;
        }
    }

    /// The tags that `key` may have now, for choosing one to be conditional on.
    pub fn likely_tag(&self, key: &Key) -> Option<u64> {
        let ops = self.keys.get(key)?;
        ops.iter().filter(|op| op.state == State::Acked).max_by_key(|op| (op.version, op.end))?.tag
    }

    /// Whether the write is known to have taken place.
    pub fn took_place(&mut self, id: &OpId) -> bool {
        self.op(id).is_some_and(|op| op.state == State::Acked || op.end.is_some())
    }

    /// Whether the write is known to have taken place and must survive.
    pub fn is_durable(&mut self, id: &OpId) -> bool {
        self.op(id).is_some_and(|op| op.durable)
    }

    /// Whether what was seen is of this write.
    pub fn shows(&mut self, id: &OpId, seen: &BTreeMap<Key, Seen>) -> bool {
        let key = id.key.clone();
        let tag = self.op(id).and_then(|op| op.tag);
        tag.is_some() && seen.get(&key).copied().flatten().map(|(tag, _)| tag) == tag
    }

    /// That a write took place is known from elsewhere, durably.
    pub fn prove(&mut self, id: &OpId) {
        let now = self.tick();
        if let Some(op) = self.op(id) {
            op.end = Some(op.end.map_or(now, |end| end.min(now)));
            op.durable = true;
        }
    }

    /// All keys ever written.
    pub fn keys(&self) -> Vec<Key> {
        self.keys.keys().cloned().collect()
    }

    /// Whether `key` may be present, and whether it may be absent, to somebody who looks now.
    pub fn may_be(&self, key: &Key) -> (bool, bool) {
        let now = self.clock + 1;
        let Some(ops) = self.keys.get(key) else { return (false, true) };
        let must = |op: &Op| op.state != State::Failed && op.end.is_some_and(|end| end < now);
        let mut may = (false, !ops.iter().any(must));
        for op in ops.iter().filter(|op| op.state != State::Failed) {
            if Self::supersedes(ops, op, must).is_none() {
                if op.tag.is_some() {
                    may.0 = true;
                } else {
                    may.1 = true;
                }
            }
        }
        may
    }
}

#[cfg(test)]
mod tests;
