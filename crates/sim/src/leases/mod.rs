//! Machines that take an archive over from each other by leases.
//!
//! A run has one store and a few machines. One owns the archive and answers clients under a lease;
//! the others are standbys. Machines are killed, paused and cut off from the store, in one
//! direction or both, and requests arrive late. No machine may answer when another one has claimed
//! the archive. At the end the faults stop: a machine must answer then.

mod link;
mod machine;
mod variants;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use steadfast_archive::ArchiveSabotage;
use steadfast_net::{Fate, Fates, MemoryStore, RemoteCall};

use self::machine::{LeaseLedger, LeaseMachine, LeaseOrder};
use crate::executor::{End, Executor};
use crate::outcome::Outcome;
use crate::rng::Rng;
use crate::seeds::Seeds;
use crate::trace::Trace;

pub use variants::LeaseVariant;

const STEPS_MAX: u64 = 20_000_000;
const TIME_MAX: Duration = Duration::from_secs(100_000);

/// Options of a simulation.
#[derive(Debug, Clone, Default)]
pub struct LeaseOptions {
    /// The first seed.
    pub seed: u64,
    /// Number of seeds, from the first on.
    pub runs: u64,
    /// A deliberately broken lease, which the simulator must catch.
    pub variant: Option<LeaseVariant>,
    /// Whether to run the variant's faults with correct leases.
    pub control: bool,
    /// Threads, each with its own seeds; 0 for one per core.
    pub threads: usize,
    /// Number of events kept of a failing run.
    pub tail: usize,
    /// Whether to print every event to standard error as it happens. For one seed.
    pub trace: bool,
}

/// A run with a violation.
#[derive(Debug, Clone, Serialize)]
pub struct LeaseFailure {
    /// The seed.
    pub seed: u64,
    /// The violation.
    pub violation: String,
    /// The last events.
    pub tail: Vec<String>,
}

/// The report of a simulation.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LeaseReport {
    /// Number of seeds run.
    pub runs: u64,
    /// Answers of owners.
    pub answers: u64,
    /// Times that a standby took the archive over.
    pub take_overs: u64,
    /// Number of events.
    pub events: u64,
    /// The XOR of the hashes of all events.
    pub digest: u64,
    /// The runs with a violation, lowest seed first. The simulation stops soon after the first
    /// violation.
    pub failures: Vec<LeaseFailure>,
}

impl LeaseReport {
    /// Whether no run had a violation.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}

struct LeaseRun {
    ledger: LeaseLedger,
    trace: Trace,
    violation: Option<String>,
}

/// The machines, and what happens to them.
struct LeaseWorld {
    executor: Executor,
    machines: Vec<LeaseMachine>,
    store: MemoryStore,
    /// Length of the lease.
    length: Duration,
    ledger: Arc<Mutex<LeaseLedger>>,
    rng: Rng,
}

impl LeaseWorld {
    fn new(executor: &Executor, sabotage: ArchiveSabotage, mut rng: Rng) -> Self {
        let ledger = Arc::new(Mutex::new(LeaseLedger::default()));
        let length = Duration::from_secs(*rng.pick(&[5, 7, 15]));
        let late_per_mille = *rng.pick(&[0, 100]);
        let fates_rng = Mutex::new(rng.fork());
        let fates: Fates = Arc::new(move |call| {
            let mut rng = fates_rng.lock();
            let writes = !matches!(call, RemoteCall::Read(_) | RemoteCall::List);
            let after = Duration::from_millis(rng.below(20_000));
            match rng.chance(late_per_mille) && writes {
                true if rng.one_in(2) => Fate::Late(after),
                true => Fate::Twice(after),
                false => Fate::Answered(Duration::ZERO),
            }
        });
        let store = MemoryStore::new(&executor.env(), fates);
        let slow_ms = (*rng.pick(&[20, 300, 2_000])).min(length.as_millis() as u64 / 10);
        let machine = |number| {
            let machine = LeaseMachine::new(number, &store, (length, sabotage), &ledger, executor);
            machine.link.slow_ms.store(slow_ms, Relaxed);
            machine
        };
        let machines = (0..rng.range(2, 3)).map(machine).collect();
        Self { executor: executor.clone(), machines, store, length, ledger, rng }
    }

    /// A time of about the length of a lease, or much shorter.
    fn time(&mut self) -> Duration {
        let ms = self.length.as_millis() as u64;
        Duration::from_millis(if self.rng.one_in(2) { self.rng.range(ms, 5 * ms / 2) } else { self.rng.below(ms) })
    }

    async fn run(mut self) -> Outcome {
        let env = self.executor.env();
        let machines = self.machines.clone();
        machines[0].format(&env).await?;
        for machine in &machines {
            env.spawn("service manager", machine.clone().run(self.executor.clone()));
        }
        env.sleep(self.length + Duration::from_secs(20)).await;
        for _ in 0..self.rng.range(5, 30) {
            let owners: Vec<_> = (0..machines.len()).filter(|at| machines[*at].has_pool.load(Relaxed)).collect();
            let at = match self.rng.one_in(3) || owners.is_empty() {
                true => self.rng.below(machines.len() as u64) as usize,
                false => *self.rng.pick(&owners),
            };
            let (what, time) = (self.rng.below(8), self.time());
            let machine = &machines[at];
            let now_ns = self.executor.now_ns();
            self.executor.trace().note(now_ns, "fault", "", [what, at as u64, time.as_millis() as u64]);
            match what {
                0 => {
                    machine.is_off.store(true, Relaxed);
                    machine.process().kill();
                    env.sleep(time).await;
                    machine.is_off.store(false, Relaxed);
                }
                1 | 2 => {
                    let process = machine.process();
                    process.pause(true);
                    env.sleep(time).await;
                    process.pause(false);
                }
                5 => {
                    machine.link.writes_refused.store(true, Relaxed);
                    env.sleep(time).await;
                    machine.link.writes_refused.store(false, Relaxed);
                }
                6 => {
                    // Promoted at once, or while its former owner is started again.
                    let other = &machines[(at + 1) % machines.len()];
                    let hands_over = self.rng.one_in(2);
                    if hands_over {
                        machine.order.send_replace(LeaseOrder::HandOver);
                        let stops = self.time();
                        env.sleep(stops).await;
                    }
                    other.order.send_replace(LeaseOrder::Promote);
                    if hands_over {
                        let late = Duration::from_millis(self.rng.below(3_000));
                        env.sleep(late).await;
                        machine.order.send_replace(LeaseOrder::Nothing);
                        machine.process().kill();
                    }
                    env.sleep(time).await;
                }
                7 => self.store.force("alive", None),
                _ => {
                    machine.link.requests_cut.store(what == 3, Relaxed);
                    machine.link.answers_cut.store(what == 4 || self.rng.one_in(2), Relaxed);
                    env.sleep(time).await;
                    machine.link.requests_cut.store(false, Relaxed);
                    machine.link.answers_cut.store(false, Relaxed);
                }
            }
            let calm = self.time();
            env.sleep(calm).await;
        }
        // Longer than a take-over that another one has begun may take.
        env.sleep(self.length * 25 + Duration::from_secs(120)).await;
        LeaseMachine::check(&self.ledger, env.now())
    }
}

fn run_one(seed: u64, options: &LeaseOptions, keep: usize) -> LeaseRun {
    let mut rng = Rng::new(seed ^ 0x1ea5);
    let sabotage = options.variant.filter(|_| !options.control).map(|variant| variant.0).unwrap_or_default();
    let trace = Trace::new(keep, options.trace);
    let executor = Executor::new(rng.fork(), Duration::ZERO, trace.clone());
    let world = LeaseWorld::new(&executor, sabotage, rng);
    let (ledger, machines) = (world.ledger.clone(), world.machines.clone());
    let end = executor.run(world.run(), STEPS_MAX, TIME_MAX);
    // Their tasks hold the machines.
    machines.iter().for_each(LeaseMachine::power_off);
    executor.shut_down();
    let ledger = std::mem::take(&mut *ledger.lock());
    let violation = match end {
        End::Done(result) => result.err(),
        other => Some(format!("the run did not end: {other:?}")),
    };
    LeaseRun { ledger, trace, violation }
}

/// A hash over all events of one seed.
pub fn lease_hash(seed: u64) -> u64 {
    run_one(seed, &LeaseOptions::default(), 0).trace.hash()
}

/// Runs the seeds. `progress` receives the number of finished runs and the total.
pub fn run_leases(options: &LeaseOptions, progress: &(dyn Fn(u64, u64) + Sync)) -> LeaseReport {
    let seeds = Seeds { first: options.seed, runs: options.runs, threads: options.threads };
    let mut report = LeaseReport::default();
    let run = |seed| {
        let one = run_one(seed, options, options.tail);
        let failed = one.violation.is_some();
        (one, failed)
    };
    seeds.run(progress, run, |seed, one| {
        report.runs += 1;
        report.answers += one.ledger.answers;
        report.take_overs += one.ledger.take_overs;
        report.events += one.trace.count();
        report.digest ^= one.trace.hash();
        if let Some(violation) = one.violation {
            report.failures.push(LeaseFailure { seed, violation, tail: one.trace.tail() });
        }
    });
    report.failures.sort_by_key(|failure| failure.seed);
    report
}
