//! What a read may return, given what was requested, acknowledged and seen.
//!
//! Every write carries a unique tag as its entity tag, so a reader sees which write an object comes
//! from. The model keeps the writes of each key with their time intervals and, once known, their
//! versions: the order that the store used. A reader may see any write that no other is *known* to
//! have superseded. The versions decide where both are known. Otherwise, a write supersedes another
//! if it was requested after the other was acknowledged. After a power cut, the same rule holds
//! over the writes that must have survived: acknowledged durable writes, writes seen by a reader,
//! and writes with lower versions than a survivor.

pub mod channels;
mod pieces;
mod survival;

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfast_log::Lsn;

pub use pieces::{Piece, Pieces, bytes_of, total};

/// A key with its bucket.
pub type Key = (Arc<str>, Arc<str>);

/// The condition of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Demand {
    /// No condition.
    None,
    /// The key has no object.
    Absent,
    /// The object with this tag.
    Tag(u64),
    /// Any object.
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpState {
    /// Requested; the answer is pending or never arrives.
    Pending,
    /// Acknowledged.
    Acked,
    /// Refused.
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
    state: OpState,
    /// Whether the request allows an acknowledgement before the flush.
    lax: bool,
    /// Whether it must survive a power cut.
    durable: bool,
}

/// Identifies an operation of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpId {
    key: Key,
    at: usize,
    era: u64,
}

#[derive(Debug, Clone)]
struct Content {
    key: Key,
    /// Possible content: one, or several if it was copied from a key under writes.
    candidates: Vec<Pieces>,
    /// An unacknowledged copy: its content may come from a write to the source after the request.
    loose: bool,
    refused: bool,
}

/// The meaning of the versions of writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// The order of all writes: one log contains them all.
    #[default]
    OneLog,
    /// The order of the writes of one key: a key stays on its disk.
    PerKey,
    /// No order: a key that moves to another disk gets a version of that disk.
    Unordered,
}

/// What a reader saw of a key: tag and version, or no object.
pub type Seen = Option<(u64, Lsn)>;

/// The writes that were requested and acknowledged, by key.
#[derive(Clone, Default)]
pub struct Model {
    clock: u64,
    /// The meaning of versions.
    order: Order,
    /// How often each key was rebased on the content seen after a start.
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
    /// Creates an empty model.
    pub fn new(order: Order) -> Self {
        Self { order, ..Self::default() }
    }

    /// Rolls back to `then`. Times and tags are not reused.
    pub fn roll_back_to(&mut self, then: &Self) {
        *self = Self { clock: self.clock, next_tag: self.next_tag, ..then.clone() };
    }

    /// Advances the model time by one and returns it.
    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A new tag.
    pub fn new_tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    /// Registers a write under `tag`, whose content is one of `candidates`, before its request.
    pub fn begin_put(&mut self, key: &Key, tag: u64, candidates: Vec<Pieces>, demand: Demand, lax: bool) -> OpId {
        self.contents.insert(tag, Content { key: key.clone(), candidates, loose: false, refused: false });
        self.begin(key, Some(tag), demand, lax)
    }

    /// Registers a copy to `key` under `tag` before its request. [`Model::copied`] sets its
    /// content.
    pub fn begin_copy(&mut self, key: &Key, tag: u64, demand: Demand, lax: bool) -> OpId {
        self.contents.insert(tag, Content { key: key.clone(), candidates: Vec::new(), loose: true, refused: false });
        self.begin(key, Some(tag), demand, lax)
    }

    /// Registers a delete before its request.
    pub fn begin_delete(&mut self, key: &Key, demand: Demand, lax: bool) -> OpId {
        self.begin(key, None, demand, lax)
    }

    fn begin(&mut self, key: &Key, tag: Option<u64>, demand: Demand, lax: bool) -> OpId {
        let start = self.tick();
        let ops = self.keys.entry(key.clone()).or_default();
        ops.push(Op { tag, demand, start, end: None, version: None, state: OpState::Pending, lax, durable: false });
        OpId { key: key.clone(), at: ops.len() - 1, era: self.eras.get(key).copied().unwrap_or(0) }
    }

    fn op(&mut self, id: &OpId) -> Option<&mut Op> {
        if id.era != self.eras.get(&id.key).copied().unwrap_or(0) {
            return None;
        }
        self.keys.get_mut(&id.key)?.get_mut(id.at)
    }

    /// Records the acknowledgement of a write.
    ///
    /// # Errors
    /// If the answer contradicts the model.
    pub fn acked(&mut self, id: &OpId, version: Lsn, durable: bool) -> Result<(), String> {
        if self.order == Order::Unordered {
            return self.acked_unordered(id, durable);
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
                return Err(format!(
                    "{:?} was seen with version {:?}, but acknowledged with {version}",
                    id.key, op.version
                ));
            }
        }
        // A delete without an object need not have a version of its own.
        if op.tag.is_some() || !taken {
            op.version = Some(version);
        }
        if !durable && !op.lax {
            return Err(format!("{:?}: acknowledged as not durable, though the request was synchronous", id.key));
        }
        op.state = OpState::Acked;
        op.end = Some(op.end.map_or(now, |end| end.min(now)));
        op.durable |= durable;
        Ok(())
    }

    fn acked_unordered(&mut self, id: &OpId, durable: bool) -> Result<(), String> {
        let now = self.tick();
        let Some(op) = self.op(id) else { return Ok(()) };
        if !durable && !op.lax {
            return Err(format!("{:?}: acknowledged as not durable, though the request was synchronous", id.key));
        }
        op.state = OpState::Acked;
        op.end = Some(op.end.map_or(now, |end| end.min(now)));
        op.durable |= durable;
        Ok(())
    }

    /// Records a durable acknowledgement without a version (a delete, whose place in the order is
    /// unknown).
    pub fn acked_unversioned(&mut self, id: &OpId) {
        let now = self.tick();
        if let Some(op) = self.op(id) {
            op.state = OpState::Acked;
            op.end = Some(op.end.map_or(now, |end| end.min(now)));
            op.durable |= !op.lax;
        }
    }

    /// Records that the operation did not take effect and never will.
    ///
    /// # Errors
    /// If a reader has seen it.
    pub fn failed(&mut self, id: &OpId) -> Result<(), String> {
        let Some(op) = self.op(id) else { return Ok(()) };
        let (seen, tag) = (op.end.is_some() && op.tag.is_some(), op.tag);
        op.state = OpState::Failed;
        if let Some(content) = tag.and_then(|tag| self.contents.get_mut(&tag)) {
            content.refused = true;
        }
        if seen { Err(format!("a write of {:?} was refused after a reader had seen it", id.key)) } else { Ok(()) }
    }

    fn supersedes<'a>(ops: &'a [Op], op: &Op, must: impl Fn(&Op) -> bool) -> Option<&'a Op> {
        ops.iter().find(|other| other.state != OpState::Failed && must(other) && before(op, other))
    }

    /// Records that a read that began at `start` saw the write `tag`, with its version if known.
    ///
    /// # Errors
    /// If the read must not see it.
    pub fn saw(&mut self, key: &Key, start: u64, tag: u64, version: Option<Lsn>) -> Result<(), String> {
        let now = self.tick();
        let version = version.filter(|_| self.order != Order::Unordered);
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

    /// Records that a read that began at `start` found no object.
    ///
    /// # Errors
    /// If an object must exist.
    pub fn saw_nothing(&mut self, key: &Key, start: u64) -> Result<(), String> {
        let now = self.tick();
        let Some(ops) = self.keys.get_mut(key) else { return Ok(()) };
        let must = |op: &Op| op.state != OpState::Failed && op.end.is_some_and(|end| end < start);
        if !ops.iter().any(must) {
            return Ok(());
        }
        let deletes: Vec<usize> = (0..ops.len())
            .filter(|&at| {
                let op = &ops[at];
                op.tag.is_none() && op.state != OpState::Failed && Self::supersedes(ops, op, must).is_none()
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

    /// Records that a write requested at `start` was refused because its condition did not hold.
    ///
    /// # Errors
    /// If the condition must have held.
    pub fn refused(&mut self, key: &Key, start: u64, id: &OpId, demand: &Demand) -> Result<(), String> {
        let now = self.tick();
        let own = id.at;
        let Some(ops) = self.keys.get_mut(key) else { return Ok(()) };
        let must = |op: &Op| op.state != OpState::Failed && op.end.is_some_and(|end| end < start);
        let possible = |at: usize, ops: &[Op]| {
            at != own && ops[at].state != OpState::Failed && Self::supersedes(ops, &ops[at], must).is_none()
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

    /// Checks that conditional writes took effect only if their condition held, as far as versions
    /// show it.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_demands(&self) -> Result<(), String> {
        for (key, ops) in &self.keys {
            let mut known: Vec<&Op> =
                ops.iter().filter(|op| op.state != OpState::Failed && op.version.is_some()).collect();
            let open = ops.iter().any(|op| op.state != OpState::Failed && op.version.is_none());
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
                    return Err(format!("{key:?}: {op:?} replaced {there:?}, against its condition"));
                }
                there = op.tag;
            }
        }
        Ok(())
    }

    /// Checks `data` at `offset` of the object written as `tag`, and that the object has `size`
    /// bytes.
    ///
    /// # Errors
    /// If the bytes differ.
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

    /// Records that a copy requested at `start` was acknowledged: its content is one that `from`
    /// may have had meanwhile.
    pub fn copied(&mut self, tag: u64, from: &Key, start: u64) {
        let Some(ops) = self.keys.get(from) else { return };
        let must = |op: &Op| op.state != OpState::Failed && op.end.is_some_and(|end| end < start);
        let sources: Vec<&Content> = ops
            .iter()
            .filter(|op| op.state != OpState::Failed && Self::supersedes(ops, op, must).is_none())
            .filter_map(|op| op.tag.and_then(|tag| self.contents.get(&tag)))
            .collect();
        let loose = sources.iter().any(|content| content.loose);
        let candidates = sources.iter().flat_map(|content| content.candidates.iter().cloned()).collect();
        if let Some(content) = self.contents.get_mut(&tag) {
            content.candidates = if loose { Vec::new() } else { candidates };
            content.loose = loose;
        }
    }

    /// A tag that `key` may have now, as the condition of a write.
    pub fn likely_tag(&self, key: &Key) -> Option<u64> {
        let ops = self.keys.get(key)?;
        ops.iter().filter(|op| op.state == OpState::Acked).max_by_key(|op| (op.version, op.end))?.tag
    }

    /// Whether the write is known to have taken effect.
    pub fn took_place(&mut self, id: &OpId) -> bool {
        self.op(id).is_some_and(|op| op.state == OpState::Acked || op.end.is_some())
    }

    /// Whether the write is known to have taken effect and must survive.
    pub fn is_durable(&mut self, id: &OpId) -> bool {
        self.op(id).is_some_and(|op| op.durable)
    }

    /// Whether the content seen comes from this write.
    pub fn shows(&mut self, id: &OpId, seen: &BTreeMap<Key, Seen>) -> bool {
        let key = id.key.clone();
        let tag = self.op(id).and_then(|op| op.tag);
        tag.is_some() && seen.get(&key).copied().flatten().map(|(tag, _)| tag) == tag
    }

    /// Records that a write took effect durably, as known from another source.
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

    /// Whether a reader may find `key` now, and whether it may not find it.
    pub fn may_be(&self, key: &Key) -> (bool, bool) {
        let now = self.clock + 1;
        let Some(ops) = self.keys.get(key) else { return (false, true) };
        let must = |op: &Op| op.state != OpState::Failed && op.end.is_some_and(|end| end < now);
        let mut may = (false, !ops.iter().any(must));
        for op in ops.iter().filter(|op| op.state != OpState::Failed) {
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
