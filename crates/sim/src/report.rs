//! Options and reports of the simulator.

use serde::Serialize;

use crate::counts::Counts;
use crate::plan::FaultClass;
use crate::platter::FaultCounts;
use crate::variants::Variant;

/// Options of a simulation.
#[derive(Debug, Clone)]
pub struct SimOptions {
    /// The first seed.
    pub seed: u64,
    /// Number of seeds, from the first on.
    pub runs: u64,
    /// A deliberately broken build, which the simulator must catch.
    pub variant: Option<Variant>,
    /// Whether every seed uses zoned disks; by default about one in twelve does.
    pub zoned: bool,
    /// Threads, each with its own seeds; 0 for one per core.
    pub threads: usize,
    /// Number of events kept of a failing run.
    pub tail: usize,
    /// Whether to print every event to standard error as it happens. For one seed.
    pub trace: bool,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self { seed: 1, runs: 1, variant: None, zoned: false, threads: 0, tail: 80, trace: false }
    }
}

/// The report of one seed.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport {
    /// The seed.
    pub seed: u64,
    /// The class of faults besides power cuts.
    #[serde(rename = "trouble")]
    pub fault_class: FaultClass,
    /// Whether the run used a super-disk.
    pub pair: bool,
    /// Whether the run used zoned disks.
    pub zoned: bool,
    /// Number of disks of the pool.
    pub disks: u64,
    /// Whether disks joined or left the pool.
    pub moves: bool,
    /// Whether the run used channels.
    pub channels: bool,
    /// Whether indexes had faults.
    pub indexes: bool,
    /// Whether the run used saturating clients.
    #[serde(rename = "tireless")]
    pub saturating: bool,
    /// Whether the run used single-use keys.
    pub once: bool,
    /// Whether the run received events of objects.
    pub listened: bool,
    /// A hash over all events.
    pub trace_hash: u64,
    /// Number of events.
    pub events: u64,
    /// Starts of the store.
    pub lives: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Virtual time in milliseconds.
    pub virtual_ms: u64,
    /// Requests of the clients.
    pub requests: Counts,
    /// Faults that struck.
    pub faults: FaultCounts,
    /// The violation, if any.
    pub violation: Option<String>,
    /// The last events, when it failed.
    pub tail: Vec<String>,
}

/// The report of a simulation.
#[derive(Debug, Clone, Serialize)]
pub struct SimReport {
    /// The first seed.
    pub seed: u64,
    /// Number of seeds run.
    pub runs: u64,
    /// Runs that used a super-disk, alone or as one of several disks.
    pub pairs: u64,
    /// Runs that used zoned disks.
    pub zoned: u64,
    /// Runs that used a pool of several disks.
    pub pools: u64,
    /// Runs in which disks joined or left the pool.
    pub moves: u64,
    /// Runs that used channels.
    pub channels: u64,
    /// Runs in which indexes were restored, torn or unreadable.
    pub indexes: u64,
    /// Runs with saturating clients.
    #[serde(rename = "tireless")]
    pub saturating: u64,
    /// Runs with single-use keys.
    pub once: u64,
    /// Runs that received events of objects.
    pub listened: u64,
    /// The broken build, if any.
    pub variant: Option<Variant>,
    /// Starts of the store.
    pub lives: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Events.
    pub events: u64,
    /// The XOR of all `trace_hash`: equal for two builds that behave alike.
    pub digest: u64,
    /// Virtual time in seconds.
    pub virtual_s: f64,
    /// Requests of the clients.
    pub requests: Counts,
    /// Faults that struck.
    pub faults: FaultCounts,
    /// The runs with a violation, lowest seed first. The simulation stops soon after the first
    /// violation.
    pub failures: Vec<RunReport>,
}

impl SimReport {
    /// Whether no run had a violation.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}
