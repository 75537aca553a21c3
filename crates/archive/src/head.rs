//! The head of an archive, and the documents that it names.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::changes::Changes;
use crate::name::{DiskId, Numbered};

/// Most former owners that a head names: the last ones.
const FORMER_OWNERS_MAX: usize = 16;

/// What was promised to clients of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Promise {
    /// A write is answered when the pool's own disks have it.
    Local,
    /// A write is answered when the archive has it.
    Archived,
}

/// An owner number: 128 random bits that one process of a pool drew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner(pub [u8; 16]);

/// Segments with consecutive numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentRun {
    /// The first one.
    pub first: Numbered,
    /// How many they are.
    pub count: u64,
}

impl SegmentRun {
    /// Adds a segment to the end of some runs.
    pub(crate) fn push(runs: &mut Vec<Self>, by: Numbered) {
        match runs.last_mut() {
            Some(last) if last.first.tenure == by.tenure && last.first.n + last.count == by.n => last.count += 1,
            _ => runs.push(Self { first: by, count: 1 }),
        }
    }

    /// The numbers of the segments.
    pub(crate) fn all(runs: &[Self]) -> impl Iterator<Item = Numbered> {
        let one = |run: &Self| {
            let Numbered { tenure, n } = run.first;
            (n..n.saturating_add(run.count)).map(move |n| Numbered { tenure, n })
        };
        runs.iter().flat_map(one)
    }

    /// How many segments there are.
    pub(crate) fn count(runs: &[Self]) -> u64 {
        runs.iter().fold(0, |sum, run| sum.saturating_add(run.count))
    }
}

/// A base, with the segments that follow it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Period {
    /// The base.
    pub base: Numbered,
    /// When the cut of the base was taken, in milliseconds since the Unix epoch.
    pub begin_ms: u64,
    /// The segments.
    pub segments: Vec<SegmentRun>,
}

/// The cut that a head names: a base, the segments since, and what came after them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedCut {
    /// When it was taken, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The base.
    pub base: Numbered,
    /// The segments since the base.
    pub segments: Vec<SegmentRun>,
    /// The changes since the last of them. The bytes that they name are the payload of the head.
    pub changes: Changes,
}

/// The last process of a pool from which another pool took the archive over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerOwner {
    /// Its owner number.
    pub owner: Owner,
    /// Its tenure.
    pub tenure: u64,
    /// When it was taken over, in milliseconds since the Unix epoch, by the clock of the new owner.
    pub taken_ms: u64,
    /// LSN of the last record of each disk that the archive had then; `None` before the pool of the
    /// new owner starts. What the former pool has behind it, only that pool has.
    pub last_lsns: Option<BTreeMap<DiskId, u64>>,
}

/// The head: the only object that is replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// One more with each replacement.
    pub version: u64,
    /// One more with each owner.
    pub tenure: u64,
    /// The process that may replace it.
    pub owner: Owner,
    /// The machine of the owner, for operators.
    pub machine: String,
    /// When it was written, in milliseconds since the Unix epoch, by the clock of the owner.
    pub time_ms: u64,
    /// The promise to clients.
    pub promise: Promise,
    /// Whether the owner has ended and this is all that it answered.
    pub closed: bool,
    /// The cut; none before the first complete copy.
    pub cut: Option<NamedCut>,
    /// The last processes of pools from which another pool took the archive over, the oldest first.
    pub former: Vec<FormerOwner>,
}

impl Head {
    /// The first head of an archive.
    pub(crate) fn first(owner: Owner, machine: &str, time_ms: u64) -> Self {
        let (promise, machine) = (Promise::Local, machine.to_owned());
        let former = Vec::new();
        Self { version: 1, tenure: 1, owner, machine, time_ms, promise, closed: false, cut: None, former }
    }

    /// The head by which another process takes the archive, with the same promise; `None` if its
    /// numbers are exhausted.
    pub(crate) fn taken(&self, owner: Owner, machine: &str, time_ms: u64) -> Option<Self> {
        let (version, tenure) = (self.version.checked_add(1)?, self.tenure.checked_add(1)?);
        let (promise, cut, former) = (self.promise, self.cut.clone(), self.former.clone());
        Some(Self { version, tenure, promise, cut, former, ..Self::first(owner, machine, time_ms) })
    }

    /// As [`Head::taken`], by a process of another pool.
    pub(crate) fn taken_over(&self, owner: Owner, machine: &str, time_ms: u64) -> Option<Self> {
        let mut next = self.taken(owner, machine, time_ms)?;
        let of = FormerOwner { owner: self.owner, tenure: self.tenure, taken_ms: time_ms, last_lsns: None };
        next.former.push(of);
        let surplus = next.former.len().saturating_sub(FORMER_OWNERS_MAX);
        next.former.drain(..surplus);
        Some(next)
    }

    /// Notes what the archive had at a take-over, unless that was noted: the cut is still the same
    /// then, as the pool of the new owner has not started before.
    pub(crate) fn note_last_lsns(&mut self, last_lsns: &BTreeMap<DiskId, u64>) {
        for of in &mut self.former {
            of.last_lsns.get_or_insert_with(|| last_lsns.clone());
        }
    }
}

/// The content of a segment: what changed since the segment or base before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// When its cut was taken, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The changes.
    pub changes: Changes,
}

/// The content of a base: a complete manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// When its cut was taken, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The periods before it whose states can be restored, the oldest first.
    pub before: Vec<Period>,
    /// The whole image, as changes of nothing.
    pub changes: Changes,
}
