//! Clients without checksums over a super-disk: what a database does to a block device.
//!
//! A run is several lives of one small pair, in which clients write, flush, discard and read the same few blocks at once. Lives end in
//! order, by kill -9 or in a power cut of either leg; between and during them the fast leg fails, hangs, vanishes and comes back as it was
//! or older, and the durable leg is put back to a snapshot. A `Ledger` says what each read may give.

mod client;
mod history;
mod ledger;
mod leg;
mod life;
mod plan;
mod variants;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Serialize;
use steadfast_disk::SuperdiskSabotage;

use self::history::History;
use self::plan::Plan;
use crate::rng::Rng;
use crate::trace::Trace;

pub use variants::BlockVariant;

/// What to simulate.
#[derive(Debug, Clone)]
pub struct BlockOptions {
    /// The first seed.
    pub seed: u64,
    /// How many seeds, from the first on.
    pub runs: u64,
    /// A deliberately broken super-disk, which ought to fail.
    pub variant: Option<BlockVariant>,
    /// The faults of the variant, and a super-disk that is right.
    pub control: bool,
    /// Threads, each with its own seeds; 0 for one per core.
    pub threads: usize,
    /// Events that are kept of a failing run.
    pub tail: usize,
    /// Print every event to standard error as it happens. For one seed.
    pub trace: bool,
}

impl Default for BlockOptions {
    fn default() -> Self {
        Self { seed: 1, runs: 1, variant: None, control: false, threads: 0, tail: 80, trace: false }
    }
}

/// A run that broke a promise.
#[derive(Debug, Clone, Serialize)]
pub struct BlockFailure {
    /// The seed.
    pub seed: u64,
    /// The promise.
    pub violation: String,
    /// The last events.
    pub tail: Vec<String>,
}

/// How a simulation went.
#[derive(Debug, Clone, Default, Serialize)]
pub struct BlockReport {
    /// Seeds that were run.
    pub runs: u64,
    /// Lives of the process.
    pub lives: u64,
    /// Power cuts of a leg.
    pub cuts: u64,
    /// Events.
    pub events: u64,
    /// The runs that broke a promise: the lowest seed first. The simulation stops soon after the first.
    pub failures: Vec<BlockFailure>,
}

impl BlockReport {
    /// Whether no promise was broken.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}

struct One {
    lives: u64,
    cuts: u64,
    trace: Trace,
    violation: Option<String>,
}

fn run_one(seed: u64, options: &BlockOptions, keep: usize) -> One {
    let mut rng = Rng::new(seed ^ 0xb10c);
    let sabotage = options.variant.map_or(SuperdiskSabotage::None, BlockVariant::sabotage);
    let mut plan = Plan::new(&mut rng.fork(), sabotage);
    if options.control {
        plan.options.sabotage = SuperdiskSabotage::None;
    }
    let trace = Trace::new(keep, options.trace);
    trace.say(0, "plan", [0; 3], || format!("{:?}", Plan { lives: Vec::new(), ..plan.clone() }));
    let mut history = History::new(rng, plan, trace.clone());
    let violation = history.unfold().err();
    One { lives: history.lives, cuts: history.cuts, trace, violation }
}

/// A hash over all that happens in one seed.
pub fn block_hash(seed: u64) -> u64 {
    run_one(seed, &BlockOptions::default(), 0).trace.hash()
}

/// Runs the seeds. `progress` hears how many are done, and of how many.
pub fn run_blocks(options: &BlockOptions, progress: &(dyn Fn(u64, u64) + Sync)) -> BlockReport {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if options.threads == 0 { cores } else { options.threads };
    let (next, done, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let report = Mutex::new(BlockReport::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.min(options.runs.max(1) as usize) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= options.runs {
                        break;
                    }
                    let seed = options.seed.wrapping_add(at);
                    let mut one = run_one(seed, options, if options.trace { options.tail } else { 0 });
                    if one.violation.is_some() {
                        stop.store(true, Ordering::Relaxed);
                        if !options.trace {
                            // Again, with its words kept.
                            one = run_one(seed, options, options.tail);
                        }
                    }
                    let mut report = report.lock();
                    report.runs += 1;
                    report.lives += one.lives;
                    report.cuts += one.cuts;
                    report.events += one.trace.count();
                    if let Some(violation) = one.violation {
                        report.failures.push(BlockFailure { seed, violation, tail: one.trace.tail() });
                    }
                    drop(report);
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1, options.runs);
                }
            });
        }
    });
    let mut report = report.into_inner();
    report.failures.sort_by_key(|failure| failure.seed);
    report
}
