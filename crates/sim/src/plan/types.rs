//! The types of a plan.

use std::time::Duration;

use steadfast_disk::{SuperdiskOptions, ZonedOptions};

use crate::disk::DiskProfile;
use crate::model::channels::Keeping;
use crate::platter::FaultRates;
use crate::rng::Rng;

/// The class of faults of a run, besides power cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultClass {
    /// No faults.
    None,
    /// Some reads fail.
    ReadErrors,
    /// A write or flush fails.
    WriteErrors,
    /// The disk fills up, and has free space again later.
    Full,
    /// Bits flip on the medium between lives.
    Rot,
    /// The disk acknowledges writes that it drops or writes elsewhere.
    Misplaced,
    /// The disk acknowledges flushes that do nothing. Data may be lost, but a read must never
    /// return wrong bytes.
    LyingFlush,
    /// One disk of several fails completely while it is in use.
    Death,
}

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The store is closed.
    Clean,
    /// The power is cut after this many steps, possibly during recovery.
    Cut(u64),
    /// The power is cut this many steps after the clients have started.
    CutAtWork(u64),
}

#[derive(Debug, Clone)]
pub(crate) struct Life {
    pub(crate) finish: Finish,
    pub(crate) index: IndexFate,
    /// Before this life, all disks are restored to an earlier state, but the index is not.
    pub(crate) restored: bool,
    /// Before this life, all disks are restored from the archive.
    pub(crate) from_archive: bool,
    /// Read failures of the index in this life.
    pub(crate) index_faults: IndexFaults,
    /// The fate of each disk before and in this life.
    pub(crate) disks: Vec<DiskLife>,
}

/// The fate of a disk before and in a life.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskLife {
    /// Number of bits that flip before the life.
    pub(crate) flips: u64,
    /// The fate of the fast leg before the life.
    pub(crate) fast: FastFate,
    /// Number of bits of the durable leg that flip before the life, if the fast leg is known to be
    /// complete. The store must heal all of them.
    pub(crate) covered_flips: u64,
    /// Whether the disk is missing in this life.
    pub(crate) missing: bool,
    /// Time from the start of the clients to the disk's failure.
    pub(crate) dies: Option<Duration>,
}

impl DiskLife {
    /// No fault.
    pub(crate) const CALM: Self = Self { flips: 0, fast: FastFate::Kept, covered_flips: 0, missing: false, dies: None };
}

/// A disk of the pool.
#[derive(Debug, Clone)]
pub(crate) struct DiskPlan {
    pub(crate) capacity_bytes: u64,
    /// Rates of the faults that strike the disk while clients work.
    pub(crate) rates: FaultRates,
    pub(crate) faults: u64,
    /// Whether the disk fills up for a while.
    pub(crate) squeezed: bool,
    pub(crate) profile: DiskProfile,
    /// The fast leg, if the disk is a super-disk.
    pub(crate) fast: Option<FastPlan>,
    /// The zones, if the disk is zoned.
    pub(crate) zones: Option<ZonedOptions>,
}

/// The fast leg of a run.
#[derive(Debug, Clone)]
pub(crate) struct FastPlan {
    /// Number of devices; more than one form a stripe.
    pub(crate) members: u64,
    pub(crate) disk: DiskProfile,
    pub(crate) chunk_bytes: u64,
    pub(crate) options: SuperdiskOptions,
    /// Rates of the faults that strike the fast leg while clients work.
    pub(crate) rates: FaultRates,
    pub(crate) faults: u64,
    /// Interval of the bits that flip under load.
    pub(crate) rot_every: Option<Duration>,
    /// Whether lives take images of the fast leg, which a later life may restore.
    pub(crate) takes_images: bool,
}

/// The fate of the fast leg before a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FastFate {
    /// No change.
    Kept,
    /// The fast leg is missing in this life.
    Missing,
    /// A blank device takes its place.
    Blank,
    /// The fast leg has the content of an earlier time.
    Older,
    /// Some members of the stripe have the content of an earlier time.
    Mixed,
    /// This many bits have flipped.
    Rotten(u64),
}

/// The durability of the publications of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mix {
    /// Synchronous publications only.
    Sync,
    /// Asynchronous publications only.
    Async,
    /// Both.
    Both,
}

/// The use of channels in a run.
#[derive(Debug, Clone)]
pub(crate) struct ChannelPlan {
    /// The durability mix of each channel.
    pub(crate) mixes: Vec<Mix>,
    pub(crate) publishers: u64,
    /// Number of publications per publisher and life.
    pub(crate) times: u64,
    /// The channel of each subscriber.
    pub(crate) subscribers: Vec<usize>,
    pub(crate) body_max: u64,
    pub(crate) pause_us_max: u64,
    /// Whether publishers sometimes clear a channel.
    pub(crate) clears: bool,
}

impl ChannelPlan {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let mixes: Vec<_> =
            (0..rng.range(1, 3)).map(|_| *rng.pick(&[Mix::Sync, Mix::Sync, Mix::Async, Mix::Both])).collect();
        let channels = mixes.len() as u64;
        Self {
            mixes,
            publishers: rng.range(1, 3),
            times: rng.range(8, 40),
            subscribers: (0..rng.range(1, 4)).map(|_| rng.below(channels) as usize).collect(),
            body_max: *rng.pick(&[40, 600, 6_000]),
            pause_us_max: *rng.pick(&[1, 1_000, 20_000]),
            clears: rng.one_in(3),
        }
    }

    /// The history size and TTL of each channel in a life. They may differ from life to life.
    pub(crate) fn keepings(&self, rng: &mut Rng) -> Vec<Keeping> {
        let keeping = |_| Keeping {
            size: *rng.pick(&[1, 5, 20, 1_000, 1_000]),
            ttl_ms: *rng.pick(&[50, 2_000, 3_600_000, 3_600_000, 3_600_000]),
        };
        self.mixes.iter().map(keeping).collect()
    }
}

/// The indexes of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexPlan {
    /// Whether they are files, not in memory.
    pub(crate) files: bool,
    /// Whether they are restored to an earlier state, torn, or unreadable.
    pub(crate) faults: bool,
}

/// The fate of the index between lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexFate {
    Kept,
    Deleted,
    /// The index has the content of an earlier time.
    Older,
    /// Its files have lost part of their content.
    Torn,
}

/// Read failures of the index, after some number of reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unreadable {
    pub(crate) after: u64,
    /// Number of reads that fail. `None`: all reads, until the index is rebuilt.
    pub(crate) count: Option<u64>,
}

/// Read failures of the index in a life.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IndexFaults {
    /// Failures from the start of the store on.
    pub(crate) at_start: Option<Unreadable>,
    /// Failures from the start of the clients on.
    pub(crate) at_work: Option<Unreadable>,
}

impl IndexFaults {
    /// A few reads fail while clients work.
    pub(crate) fn refuse_at_work(&mut self) {
        *self = Self { at_start: None, at_work: Some(Unreadable { after: 300, count: Some(8) }) };
    }
}

impl Unreadable {
    pub(crate) fn new(rng: &mut Rng, reads_max_log2: u64) -> Self {
        let reads = rng.range(0, reads_max_log2);
        let count = if rng.one_in(2) { Some(rng.range(1, 12)) } else { None };
        Self { after: rng.below(1 << reads), count }
    }
}

/// A change of the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The spare disk joins.
    Add,
    /// A disk is drained.
    Drain(usize),
    /// The spare disk replaces a disk and takes over its data.
    Replace(usize),
}

/// The planned changes of the disks of a run.
#[derive(Debug, Clone)]
pub(crate) struct MovePlan {
    /// The changes, in order.
    pub(crate) changes: Vec<Change>,
    /// A disk that does not belong to the pool at first.
    pub(crate) spare: Option<usize>,
    /// Maximum pause before a change, in microseconds.
    pub(crate) pause_us_max: u64,
}

/// The keys that are used once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OncePlan {
    pub(crate) keys: u64,
    /// Maximum records that a later start without an index may replay.
    pub(crate) replayed_max: u64,
}

/// The work of saturating clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SaturatingPlan {
    pub(crate) clients: u64,
    /// Writes per client and life.
    pub(crate) times: u64,
    /// Maximum time from the acknowledgement of a commit to its durability.
    pub(crate) lag_max: Duration,
}
