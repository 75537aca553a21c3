//! The head of an archive, and the documents that it names.

use serde::{Deserialize, Serialize};

use crate::changes::Changes;
use crate::name::Numbered;

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
}

impl Head {
    /// The first head of an archive.
    pub(crate) fn first(owner: Owner, machine: &str, time_ms: u64) -> Self {
        let (promise, machine) = (Promise::Local, machine.to_owned());
        Self { version: 1, tenure: 1, owner, machine, time_ms, promise, closed: false, cut: None }
    }

    /// The head by which another owner takes the archive; `None` if its numbers are exhausted.
    pub(crate) fn taken(&self, owner: Owner, machine: &str, time_ms: u64) -> Option<Self> {
        let (version, tenure) = (self.version.checked_add(1)?, self.tenure.checked_add(1)?);
        Some(Self { version, tenure, cut: self.cut.clone(), ..Self::first(owner, machine, time_ms) })
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
