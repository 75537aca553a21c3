//! The media edge over an origin that changes, fails and lies.
//!
//! A run is several lives of one store with one edge bucket. Clients read whole objects and ranges,
//! and some leave in the middle; an operator purges; a publisher changes the objects at the origin.
//! Lives end with a close, with kill -9, or with a power cut: at any step, or just after a purge.
//! An `EdgeLedger` decides what each answer may be. At the end the origin is well again: each key
//! must then be served, and nothing may be left behind.

mod catalog;
mod client;
mod history;
mod ledger;
mod life;
mod origin;
mod plan;
mod variants;

use serde::Serialize;
use steadfast_edge::Sabotage;

use self::history::EdgeHistory;
use self::plan::EdgePlan;
use crate::rng::Rng;
use crate::seeds::Seeds;
use crate::trace::Trace;

pub use variants::EdgeVariant;

/// Options of a simulation.
#[derive(Debug, Clone)]
pub struct EdgeOptions {
    /// The first seed.
    pub seed: u64,
    /// Number of seeds, from the first on.
    pub runs: u64,
    /// A deliberately broken edge, which the simulator must catch.
    pub variant: Option<EdgeVariant>,
    /// Whether to run the variant's faults with a correct edge.
    pub control: bool,
    /// Threads, each with its own seeds; 0 for one per core.
    pub threads: usize,
    /// Number of events kept of a failing run.
    pub tail: usize,
    /// Whether to print every event to standard error as it happens. For one seed.
    pub trace: bool,
}

impl Default for EdgeOptions {
    fn default() -> Self {
        Self { seed: 1, runs: 1, variant: None, control: false, threads: 0, tail: 80, trace: false }
    }
}

/// A run with a violation.
#[derive(Debug, Clone, Serialize)]
pub struct EdgeFailure {
    /// The seed.
    pub seed: u64,
    /// The violation.
    pub violation: String,
    /// The last events.
    pub tail: Vec<String>,
}

/// The report of a simulation.
#[derive(Debug, Clone, Default, Serialize)]
pub struct EdgeReport {
    /// Number of seeds run.
    pub runs: u64,
    /// Lives of the process.
    pub lives: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Answers of the edge that were judged.
    pub answers: u64,
    /// Number of events.
    pub events: u64,
    /// The XOR of all seeds' `edge_hash`: equal for two builds that behave alike.
    pub digest: u64,
    /// The runs with a violation, lowest seed first. The simulation stops soon after the first
    /// violation.
    pub failures: Vec<EdgeFailure>,
}

impl EdgeReport {
    /// Whether no run had a violation.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}

struct EdgeRun {
    lives: u64,
    cuts: u64,
    answers: u64,
    trace: Trace,
    violation: Option<String>,
}

fn run_one(seed: u64, options: &EdgeOptions, keep: usize) -> EdgeRun {
    let mut rng = Rng::new(seed ^ 0xed6e);
    let sabotage = options.variant.map_or(Sabotage::None, EdgeVariant::sabotage);
    let mut plan = EdgePlan::new(&mut rng.fork(), sabotage);
    if options.control {
        plan.bounds.sabotage = Sabotage::None;
    }
    let trace = Trace::new(keep, options.trace);
    trace.note_with_text(0, "plan", [0; 3], || format!("{:?}", EdgePlan { lives: Vec::new(), ..plan.clone() }));
    let mut history = EdgeHistory::new(rng, plan, trace.clone());
    let violation = history.run_lives().err();
    EdgeRun { lives: history.lives, cuts: history.cuts, answers: history.answers(), trace, violation }
}

/// A hash over all events of one seed.
pub fn edge_hash(seed: u64) -> u64 {
    run_one(seed, &EdgeOptions::default(), 0).trace.hash()
}

/// Runs the seeds. `progress` receives the number of finished runs and the total.
pub fn run_edges(options: &EdgeOptions, progress: &(dyn Fn(u64, u64) + Sync)) -> EdgeReport {
    let seeds = Seeds { first: options.seed, runs: options.runs, threads: options.threads };
    let mut report = EdgeReport::default();
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
        report.answers += one.answers;
        report.events += one.trace.count();
        report.digest ^= one.trace.hash();
        if let Some(violation) = one.violation {
            report.failures.push(EdgeFailure { seed, violation, tail: one.trace.tail() });
        }
    });
    report.failures.sort_by_key(|failure| failure.seed);
    report
}
