//! Clients without checksums over a super-disk: the workload of a database on a block device.
//!
//! A run is several lives of one small pair, in which clients concurrently write, flush, discard
//! and read the same few blocks. Lives end with a close, with kill -9 or with a power cut of either
//! leg. Between and during lives, the fast leg fails, hangs, vanishes and returns with the same or
//! older content, and the durable leg is restored to a snapshot. A `Ledger` decides what each read
//! may return.

mod client;
mod history;
mod ledger;
mod leg;
mod life;
mod plan;
mod variants;

use serde::Serialize;
use steadfast_disk::SuperdiskSabotage;

use self::history::BlockHistory;
use self::plan::BlockPlan;
use crate::rng::Rng;
use crate::seeds::Seeds;
use crate::trace::Trace;

pub use variants::BlockVariant;

/// Options of a simulation.
#[derive(Debug, Clone)]
pub struct BlockOptions {
    /// The first seed.
    pub seed: u64,
    /// Number of seeds, from the first on.
    pub runs: u64,
    /// A deliberately broken super-disk, which the simulator must catch.
    pub variant: Option<BlockVariant>,
    /// Whether to run the variant's faults with a correct super-disk.
    pub control: bool,
    /// Threads, each with its own seeds; 0 for one per core.
    pub threads: usize,
    /// Number of events kept of a failing run.
    pub tail: usize,
    /// Whether to print every event to standard error as it happens. For one seed.
    pub trace: bool,
}

impl Default for BlockOptions {
    fn default() -> Self {
        Self { seed: 1, runs: 1, variant: None, control: false, threads: 0, tail: 80, trace: false }
    }
}

/// A run with a violation.
#[derive(Debug, Clone, Serialize)]
pub struct BlockFailure {
    /// The seed.
    pub seed: u64,
    /// The violation.
    pub violation: String,
    /// The last events.
    pub tail: Vec<String>,
}

/// The report of a simulation.
#[derive(Debug, Clone, Default, Serialize)]
pub struct BlockReport {
    /// Number of seeds run.
    pub runs: u64,
    /// Lives of the process.
    pub lives: u64,
    /// Power cuts of a leg.
    pub cuts: u64,
    /// Number of events.
    pub events: u64,
    /// The XOR of all seeds' `block_hash`: equal for two builds that behave alike.
    pub digest: u64,
    /// The runs with a violation, lowest seed first. The simulation stops soon after the first
    /// violation.
    pub failures: Vec<BlockFailure>,
}

impl BlockReport {
    /// Whether no run had a violation.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}

struct SeedRun {
    lives: u64,
    cuts: u64,
    trace: Trace,
    violation: Option<String>,
}

fn run_one(seed: u64, options: &BlockOptions, keep: usize) -> SeedRun {
    let mut rng = Rng::new(seed ^ 0xb10c);
    let sabotage = options.variant.map_or(SuperdiskSabotage::None, BlockVariant::sabotage);
    let mut plan = BlockPlan::new(&mut rng.fork(), sabotage);
    if options.control {
        plan.options.sabotage = SuperdiskSabotage::None;
    }
    let trace = Trace::new(keep, options.trace);
    trace.note_with_text(0, "plan", [0; 3], || format!("{:?}", BlockPlan { lives: Vec::new(), ..plan.clone() }));
    let mut history = BlockHistory::new(rng, plan, trace.clone());
    let violation = history.run_lives().err();
    SeedRun { lives: history.lives, cuts: history.cuts, trace, violation }
}

/// A hash over all events of one seed.
pub fn block_hash(seed: u64) -> u64 {
    run_one(seed, &BlockOptions::default(), 0).trace.hash()
}

/// Runs the seeds. `progress` receives the number of finished runs and the total.
pub fn run_blocks(options: &BlockOptions, progress: &(dyn Fn(u64, u64) + Sync)) -> BlockReport {
    let seeds = Seeds { first: options.seed, runs: options.runs, threads: options.threads };
    let mut report = BlockReport::default();
    let run = |seed| {
        let mut one = run_one(seed, options, if options.trace { options.tail } else { 0 });
        if one.violation.is_some() && !options.trace {
            // Run the seed again, with event texts.
            one = run_one(seed, options, options.tail);
        }
        let failed = one.violation.is_some();
        (one, failed)
    };
    seeds.run(progress, run, |seed, one| {
        report.runs += 1;
        report.lives += one.lives;
        report.cuts += one.cuts;
        report.events += one.trace.count();
        report.digest ^= one.trace.hash();
        if let Some(violation) = one.violation {
            report.failures.push(BlockFailure { seed, violation, tail: one.trace.tail() });
        }
    });
    report.failures.sort_by_key(|failure| failure.seed);
    report
}
