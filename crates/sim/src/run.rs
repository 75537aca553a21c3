//! Runs: one seed after another, each a whole history of lives on one device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use steadfast_disk::{Superdisk, SuperdiskSabotage};
use steadfast_store::{IndexKind, Store};

use crate::array::{Array, Bay, FastFate};
use crate::client::{Counts, Shared};
use crate::disk::{Device, DiskProfile, DiskSabotage};
use crate::executor::{End, Executor};
use crate::life::{Lived, Machine, format};
use crate::model::Model;
use crate::plan::{Finish, IndexFate, Life, Plan, Trouble};
use crate::platter::{FaultCounts, Platter};
use crate::rng::Rng;
use crate::trace::Trace;
use crate::variants::Variant;

const STEPS_MAX: u64 = 3_000_000;
const TIME_MAX: Duration = Duration::from_secs(3600);
const NAMES: [&str; 16] = [
    "a", "a/", "a/1", "a/2", "a/b/1", "a/b/2", "b", "b/c/1", "b/c/2", "b0", "c", "d/e/f/g", "Ä/ö", "zz", "zz/1", "zzz",
];

/// What to simulate.
#[derive(Debug, Clone)]
pub struct SimOptions {
    /// The first seed.
    pub seed: u64,
    /// How many seeds, from the first on.
    pub runs: u64,
    /// A deliberately broken build, which ought to fail.
    pub variant: Option<Variant>,
    /// Threads, each with its own seeds; 0 for one per core.
    pub threads: usize,
    /// Events that are kept of a failing run.
    pub tail: usize,
    /// Print every event to standard error as it happens. For one seed.
    pub trace: bool,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self { seed: 1, runs: 1, variant: None, threads: 0, tail: 80, trace: false }
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
    /// Those that ran over a super-disk.
    pub pairs: u64,
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

/// Runs the seeds. `progress` hears how many are done, and of how many.
pub fn run(options: &SimOptions, progress: &(dyn Fn(u64, u64) + Sync)) -> SimReport {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if options.threads == 0 { cores } else { options.threads };
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let report = Mutex::new(SimReport {
        seed: options.seed,
        runs: 0,
        pairs: 0,
        variant: options.variant,
        lives: 0,
        cuts: 0,
        events: 0,
        virtual_s: 0.0,
        requests: Counts::default(),
        faults: FaultCounts::default(),
        failures: Vec::new(),
    });
    std::thread::scope(|scope| {
        for _ in 0..threads.min(options.runs.max(1) as usize) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= options.runs {
                        break;
                    }
                    let seed = options.seed.wrapping_add(at);
                    let keep = if options.trace { options.tail } else { 0 };
                    let mut one = run_seed(seed, options.variant, keep, options.trace);
                    if one.violation.is_some() {
                        stop.store(true, Ordering::Relaxed);
                        if !options.trace {
                            // Again, with its words kept.
                            one = run_seed(seed, options.variant, options.tail, false);
                        }
                    }
                    let mut report = report.lock();
                    report.runs += 1;
                    report.pairs += u64::from(one.pair);
                    report.lives += one.lives;
                    report.cuts += one.cuts;
                    report.events += one.events;
                    report.virtual_s += one.virtual_ms as f64 / 1e3;
                    report.requests.add(&one.requests);
                    report.faults.add(&one.faults);
                    if one.violation.is_some() {
                        report.failures.push(one);
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

/// Runs one seed, keeping the last `keep` events and perhaps printing all.
pub fn run_seed(seed: u64, variant: Option<Variant>, keep: usize, print: bool) -> RunReport {
    let mut rng = Rng::new(seed);
    let plan = Arc::new(Plan::new(&mut rng.fork(), variant));
    let trace = Trace::new(keep, print);
    let mut history = History::new(rng, plan.clone(), trace.clone());
    let outcome = history.unfold();
    let violation = outcome.err();
    let counts = *history.shared.counts.lock();
    let mut faults = history.device.lock().counts;
    history.array.lock().fast.iter().for_each(|device| faults.add(&device.lock().counts));
    RunReport {
        seed,
        trouble: plan.trouble,
        pair: plan.fast.is_some(),
        trace_hash: trace.hash(),
        events: trace.count(),
        lives: history.lives,
        cuts: history.cuts,
        virtual_ms: history.now.as_millis() as u64,
        requests: counts,
        faults,
        tail: if violation.is_some() { trace.tail() } else { Vec::new() },
        violation,
    }
}

/// A life before which nothing happens, and which is ended in order.
const CALM: Life =
    Life { finish: Finish::Clean, index: IndexFate::Kept, flips: 0, fast: FastFate::Kept, covered_flips: 0 };

struct History {
    rng: Rng,
    plan: Arc<Plan>,
    trace: Trace,
    device: Device,
    array: Arc<Mutex<Array>>,
    /// The fast leg was closed with all that the durable one has.
    complete: bool,
    shared: Arc<Shared>,
    now: Duration,
    lives: u64,
    cuts: u64,
    index: IndexKind,
    /// Holds the index's files, where there are any.
    dir: Option<tempfile::TempDir>,
}

impl History {
    fn new(mut rng: Rng, plan: Arc<Plan>, trace: Trace) -> Self {
        let len = if plan.disk.growable { 0 } else { plan.capacity_bytes };
        let device: Device = Arc::new(Mutex::new(Platter::new(rng.fork(), plan.capacity_bytes, len)));
        device.lock().faults_left = plan.faults;
        let shared = Arc::new(Shared {
            model: Mutex::new(Model::default()),
            uploads: Mutex::new(Vec::new()),
            counts: Mutex::new(Counts::default()),
            at_start: Mutex::default(),
            made: Mutex::default(),
            device: device.clone(),
            trace: trace.clone(),
            buckets: plan.buckets.iter().zip(["first", "second"]).map(|(d, name)| (name.into(), *d)).collect(),
            keys: NAMES[..plan.keys as usize].iter().map(|name| Arc::from(*name)).collect(),
            small_max: plan.small_max,
            large_max: plan.large_max,
            large_per_mille: plan.large_per_mille,
        });
        let dir = plan.lsm.then(|| tempfile::tempdir().ok()).flatten();
        let index = match &dir {
            Some(dir) => IndexKind::Lsm(dir.path().join("index")),
            None => IndexKind::memory(),
        };
        let array = Array::new(&mut rng, device.clone(), plan.capacity_bytes, plan.fast.as_ref());
        let array = Arc::new(Mutex::new(array));
        Self {
            rng,
            plan,
            trace,
            device,
            array,
            complete: false,
            shared,
            now: Duration::ZERO,
            lives: 0,
            cuts: 0,
            index,
            dir,
        }
    }

    fn unfold(&mut self) -> Result<(), String> {
        self.format()?;
        let (mut clean, mut after) = (false, None);
        let last = CALM;
        let lives: Vec<Life> = self.plan.lives.iter().copied().chain([last]).collect();
        let count = lives.len();
        for (number, life) in lives.into_iter().enumerate() {
            for _ in 0..life.flips {
                self.device.lock().flip_bit();
            }
            let (lived, contents) = self.live(life, clean, None, number + 1 == count, false)?;
            clean = lived == Lived::Closed;
            if lived == Lived::Unopened {
                return Ok(());
            }
            after = contents;
        }
        // Once more, with an index made anew: it must show the same.
        if clean {
            let life = Life { index: IndexFate::Deleted, ..CALM };
            self.live(life, true, after, true, true)?;
        }
        Ok(())
    }

    fn format(&mut self) -> Result<(), String> {
        let executor = Executor::new(self.rng.fork(), self.now, self.trace.clone());
        // Broken variants break later: a pool that was never there proves little.
        let profile = DiskProfile { sabotage: DiskSabotage::default(), ..self.plan.disk };
        let mut bay = self.bay(&executor);
        bay.durable = profile;
        if let Some(fast) = &mut bay.plan {
            fast.options.sabotage = SuperdiskSabotage::None;
        }
        let end = executor.run(format(bay, executor.env(), self.plan.clone()), STEPS_MAX, TIME_MAX);
        self.array.lock().cut();
        self.now = executor.shut_down();
        match end {
            End::Done(outcome) => outcome,
            other => Err(format!("formatting did not end: {other:?}")),
        }
    }

    fn bay(&self, executor: &Executor) -> Bay {
        Bay {
            array: self.array.clone(),
            plan: self.plan.fast.clone(),
            durable: self.plan.disk,
            executor: executor.clone(),
        }
    }

    /// What happens to the legs of a super-disk while the power is off. Whether the fast one must not be believed in anything then.
    fn befall(&mut self, life: &Life) -> bool {
        if self.plan.fast.is_none() {
            return false;
        }
        let mut rng = self.rng.fork();
        let stale = self.array.lock().befall(life.fast, &mut rng);
        let mut durable = self.device.lock();
        durable.uncover();
        if std::mem::take(&mut self.complete) && life.fast == FastFate::Kept {
            // Behind the superblocks and what the super-disk keeps for itself.
            (0..life.covered_flips).for_each(|_| durable.flip_covered(1 << 20));
        }
        stale && self.plan.is_calm() && !matches!(life.fast, FastFate::Rotten(_)) && !durable.counts.damage()
    }

    fn live(
        &mut self,
        life: Life,
        clean: bool,
        before: Option<crate::life::Contents>,
        last: bool,
        idle: bool,
    ) -> Result<(Lived, Option<crate::life::Contents>), String> {
        self.lives += 1;
        let stale = self.befall(&life);
        *self.shared.at_start.lock() = self.device.lock().counts;
        if life.index == IndexFate::Deleted {
            self.delete_index();
        }
        let now = self.now.as_nanos() as u64;
        self.trace.say(now, "life", [self.lives, 0, 0], || format!("{}: {life:?} clean {clean}", self.lives));
        let executor = Executor::new(self.rng.fork(), self.now, self.trace.clone());
        let (after, opened) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new((None, None))));
        let complete = Arc::new(AtomicBool::new(false));
        let machine = Machine {
            shared: self.shared.clone(),
            plan: self.plan.clone(),
            executor: executor.clone(),
            bay: self.bay(&executor),
            index: self.index.clone(),
            rng: self.rng.fork(),
            finish: life.finish,
            clean,
            before,
            last,
            idle,
            after: after.clone(),
            opened: opened.clone(),
            complete: complete.clone(),
        };
        if let Finish::Cut(steps) = life.finish {
            executor.cut_after(steps);
        }
        let end = executor.run(machine.live(), STEPS_MAX, TIME_MAX);
        {
            // Nothing that happens while the pieces fall reaches the medium.
            self.array.lock().cut();
            let mut platter = self.device.lock();
            let room = platter.capacity_bytes();
            platter.room_bytes = room;
        }
        self.complete = complete.load(Ordering::Relaxed);
        let (store, superdisk) = std::mem::take(&mut *opened.lock());
        let healed = self.note(store.as_ref(), superdisk.as_deref());
        drop((store, superdisk));
        self.now = executor.shut_down();
        let lived = match end {
            End::Done(lived) => lived?,
            End::Cut => Lived::Cut,
            End::Deadlock(names) => return Err(format!("deadlock: {}", tally(&names))),
            End::Limit(which, names) => return Err(format!("no end within the bound of {which}: {}", tally(&names))),
            End::Panic(task, said) => return Err(format!("panic in {task}: {said}")),
        };
        if stale && healed > 0 {
            return Err(format!("a fast leg that had been away was believed: {healed} times other bytes were needed"));
        }
        self.cuts += u64::from(lived == Lived::Cut);
        let contents = after.lock().take();
        Ok((lived, contents))
    }

    /// What was done in the background. How often a copy was not what it should have been.
    fn note(&self, store: Option<&Store>, superdisk: Option<&Superdisk>) -> u64 {
        let mut counts = self.shared.counts.lock();
        if let Some(superdisk) = superdisk {
            let status = superdisk.status();
            counts.reads_fast += status.reads_fast;
            counts.rebuilt_bytes += status.rebuilt_bytes;
        }
        let Some(store) = store else { return 0 };
        let log = store.status().log;
        counts.recycled += log.compaction.recycled;
        counts.records_moved += log.compaction.records_moved;
        counts.chunks_moved += log.compaction.chunks_moved;
        counts.scrubs += log.scrub.passes;
        let [durable, fast] = log.heal.healed;
        counts.healed_durable += durable;
        counts.healed_fast += fast;
        if superdisk.is_some() { durable + fast + log.reads_healed } else { 0 }
    }

    fn delete_index(&mut self) {
        match &self.dir {
            Some(dir) => {
                let _ = std::fs::remove_dir_all(dir.path().join("index"));
            }
            None => self.index = IndexKind::memory(),
        }
    }
}

fn tally(names: &[&'static str]) -> String {
    let mut counts = std::collections::BTreeMap::new();
    for name in names {
        *counts.entry(*name).or_insert(0) += 1;
    }
    counts.iter().map(|(name, count)| format!("{name} x{count}")).collect::<Vec<_>>().join(", ")
}
