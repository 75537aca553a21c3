//! What to simulate, and how it went.

use serde::Serialize;

use crate::counts::Counts;
use crate::plan::Trouble;
use crate::platter::FaultCounts;
use crate::variants::Variant;

/// What to simulate.
#[derive(Debug, Clone)]
pub struct SimOptions {
    /// The first seed.
    pub seed: u64,
    /// How many seeds, from the first on.
    pub runs: u64,
    /// A deliberately broken build, which ought to fail.
    pub variant: Option<Variant>,
    /// Every seed runs over zones that are written in order, not one in twelve.
    pub zoned: bool,
    /// Threads, each with its own seeds; 0 for one per core.
    pub threads: usize,
    /// Events that are kept of a failing run.
    pub tail: usize,
    /// Print every event to standard error as it happens. For one seed.
    pub trace: bool,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self { seed: 1, runs: 1, variant: None, zoned: false, threads: 0, tail: 80, trace: false }
    }
}

/// How one seed went.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport {
    /// The seed.
    pub seed: u64,
    /// What went wrong beside power cuts.
    pub trouble: Trouble,
    /// Whether it ran over a super-disk.
    pub pair: bool,
    /// Whether it ran over zones that are written in order.
    pub zoned: bool,
    /// Disks of the pool.
    pub disks: u64,
    /// Whether disks came and went.
    pub moves: bool,
    /// Whether there were channels.
    pub channels: bool,
    /// Whether indexes suffered.
    pub indexes: bool,
    /// Whether clients never paused.
    pub tireless: bool,
    /// Whether keys came and went that were used once.
    pub once: bool,
    /// Whether events of objects were listened to.
    pub listened: bool,
    /// A hash over all that happened.
    pub trace_hash: u64,
    /// Events in it.
    pub events: u64,
    /// Starts of the store.
    pub lives: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Virtual time that passed, in milliseconds.
    pub virtual_ms: u64,
    /// Requests of the clients.
    pub requests: Counts,
    /// Faults that struck.
    pub faults: FaultCounts,
    /// The promise that was broken, if one was.
    pub violation: Option<String>,
    /// The last events, when it failed.
    pub tail: Vec<String>,
}

/// How a simulation went.
#[derive(Debug, Clone, Serialize)]
pub struct SimReport {
    /// The first seed.
    pub seed: u64,
    /// Seeds that were run.
    pub runs: u64,
    /// Those that ran over a super-disk, or several disks one of which is one.
    pub pairs: u64,
    /// Runs over zones that are written in order.
    pub zoned: u64,
    /// Those that ran over a pool of several disks.
    pub pools: u64,
    /// Those in which disks came and went.
    pub moves: u64,
    /// Those with channels.
    pub channels: u64,
    /// Those in which indexes were put back, torn or not to be read.
    pub indexes: u64,
    /// Those in which clients never paused.
    pub tireless: u64,
    /// Those in which keys came and went that were used once.
    pub once: u64,
    /// Those in which events of objects were listened to.
    pub listened: u64,
    /// The broken build, if one was asked for.
    pub variant: Option<Variant>,
    /// Starts of the store.
    pub lives: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Events.
    pub events: u64,
    /// Virtual time in seconds.
    pub virtual_s: f64,
    /// Requests of the clients.
    pub requests: Counts,
    /// Faults that struck.
    pub faults: FaultCounts,
    /// The runs that broke a promise: the lowest seed first. The simulation stops soon after the first.
    pub failures: Vec<RunReport>,
}

impl SimReport {
    /// Whether no promise was broken.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}
