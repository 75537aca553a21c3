//! Whole clusters: homes and fronts over a network that delays, breaks, blocks and lags.
//!
//! A run is one cluster with its stores on simulated disks. Clients subscribe at some node, leave,
//! and return with their position, also at another node. Publishers publish at any node. Nodes
//! restart: with a close, with kill -9, or with a power cut. A `ClusterLedger` decides what each
//! session may see. At the end the faults stop: each session must then be at the end of its
//! channel, the presence must be the sessions, and nothing may be left behind.

mod client;
mod ledger;
mod members;
mod network;
mod node;
mod plan;
mod publisher;
mod sessions;
mod variants;
mod world;

use std::time::Duration;

use self::plan::{Defects, NodesPlan};
use self::world::World;
use crate::executor::{End, Executor};
use crate::rng::Rng;
use crate::seeds::Seeds;
use crate::trace::Trace;
use serde::Serialize;

pub use variants::NodesVariant;

const STEPS_MAX: u64 = 20_000_000;
const TIME_MAX: Duration = Duration::from_secs(100_000);

/// Options of a simulation.
#[derive(Debug, Clone)]
pub struct NodesOptions {
    /// The first seed.
    pub seed: u64,
    /// Number of seeds, from the first on.
    pub runs: u64,
    /// A deliberately broken cluster, which the simulator must catch.
    pub variant: Option<NodesVariant>,
    /// Whether to run the variant's faults with a correct cluster.
    pub control: bool,
    /// Threads, each with its own seeds; 0 for one per core.
    pub threads: usize,
    /// Number of events kept of a failing run.
    pub tail: usize,
    /// Whether to print every event to standard error as it happens. For one seed.
    pub trace: bool,
}

impl Default for NodesOptions {
    fn default() -> Self {
        Self { seed: 1, runs: 1, variant: None, control: false, threads: 0, tail: 80, trace: false }
    }
}

/// A run with a violation.
#[derive(Debug, Clone, Serialize)]
pub struct NodesFailure {
    /// The seed.
    pub seed: u64,
    /// The violation.
    pub violation: String,
    /// The last events.
    pub tail: Vec<String>,
}

/// The report of a simulation.
#[derive(Debug, Clone, Default, Serialize)]
pub struct NodesReport {
    /// Number of seeds run.
    pub runs: u64,
    /// Processes of nodes.
    pub lives: u64,
    /// Publications that sessions got.
    pub deliveries: u64,
    /// Subscriptions that continued after a position.
    pub recoveries: u64,
    /// Sessions that began anew.
    pub resets: u64,
    /// Number of events.
    pub events: u64,
    /// The XOR of all seeds' `nodes_hash`: equal for two builds that behave alike.
    pub digest: u64,
    /// The runs with a violation, lowest seed first. The simulation stops soon after the first
    /// violation.
    pub failures: Vec<NodesFailure>,
}

impl NodesReport {
    /// Whether no run had a violation.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}

struct NodesRun {
    lives: u64,
    deliveries: u64,
    recoveries: u64,
    resets: u64,
    trace: Trace,
    violation: Option<String>,
}

fn run_one(seed: u64, options: &NodesOptions, keep: usize) -> NodesRun {
    let mut rng = Rng::new(seed ^ 0x0de5);
    let mut plan = NodesPlan::new(&mut rng.fork(), options.variant);
    if options.control {
        plan.defects = Defects::default();
    }
    let trace = Trace::new(keep, options.trace);
    trace.note_with_text(0, "plan", [0; 3], || format!("{plan:?}"));
    let executor = Executor::new(rng.fork(), Duration::ZERO, trace.clone());
    let mut run = NodesRun { lives: 0, deliveries: 0, recoveries: 0, resets: 0, trace, violation: None };
    let world = match World::new(executor.clone(), plan, &mut rng) {
        Ok(world) => world,
        Err(why) => return NodesRun { violation: Some(why), ..run },
    };
    let (ledger, incarnations, nodes) = (world.ledger.clone(), world.incarnations.clone(), world.nodes.clone());
    let end = executor.run(world.run(rng), STEPS_MAX, TIME_MAX);
    // Sessions hold what their node holds, and so do the tasks of its process.
    for node in nodes.iter().filter_map(|node| node.lock().take()) {
        node.sessions.clear();
        node.kill();
    }
    executor.shut_down();
    run.lives = incarnations.lock().total();
    let mut ledger = ledger.lock();
    (run.deliveries, run.recoveries, run.resets) = (ledger.deliveries, ledger.recoveries, ledger.resets);
    run.violation = ledger.violation.take().or(match end {
        End::Done(result) => result.err(),
        other => Some(format!("the run did not end: {other:?}")),
    });
    run
}

/// A hash over all events of one seed.
pub fn nodes_hash(seed: u64) -> u64 {
    run_one(seed, &NodesOptions::default(), 0).trace.hash()
}

/// Runs the seeds. `progress` receives the number of finished runs and the total.
pub fn run_nodes(options: &NodesOptions, progress: &(dyn Fn(u64, u64) + Sync)) -> NodesReport {
    let seeds = Seeds { first: options.seed, runs: options.runs, threads: options.threads };
    let mut report = NodesReport::default();
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
        report.deliveries += one.deliveries;
        report.recoveries += one.recoveries;
        report.resets += one.resets;
        report.events += one.trace.count();
        report.digest ^= one.trace.hash();
        if let Some(violation) = one.violation {
            report.failures.push(NodesFailure { seed, violation, tail: one.trace.tail() });
        }
    });
    report.failures.sort_by_key(|failure| failure.seed);
    report
}
