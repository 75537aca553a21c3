//! A run: several lives of one edge, and the origin that changes meanwhile.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_disk::Disk;
use steadfast_log::{FormatOptions, Log};
use steadfast_store::IndexKind;

use super::catalog::{OriginKey, TagRule};
use super::ledger::EdgeLedger;
use super::life::EdgeProcess;
use super::plan::{EdgeEnd, EdgeLife, EdgePlan};
use crate::disk::{Device, SimDisk};
use crate::executor::{EPOCH_MS, End, Executor};
use crate::platter::Platter;
use crate::rng::Rng;
use crate::trace::Trace;

const STEPS_MAX: u64 = 5_000_000;
const TIME_MAX: Duration = Duration::from_secs(100_000);
/// The keys at the origin.
const KEYS: [&str; 4] = ["a/0", "a/1", "b/0", "c"];

pub(crate) struct EdgeHistory {
    rng: Rng,
    plan: Arc<EdgePlan>,
    trace: Trace,
    device: Device,
    index: IndexKind,
    ledger: Arc<Mutex<EdgeLedger>>,
    now: Duration,
    pub(crate) lives: u64,
    pub(crate) cuts: u64,
}

impl EdgeHistory {
    pub(crate) fn new(mut rng: Rng, plan: EdgePlan, trace: Trace) -> Self {
        let platter = Platter::new(rng.fork(), plan.disk_bytes, plan.disk_bytes);
        let mut keys: Vec<OriginKey> =
            KEYS.iter().take(plan.keys as usize).map(|name| OriginKey::new(&mut rng, name)).collect();
        if plan.all_strong {
            keys.iter_mut().for_each(|key| key.tags = TagRule::Strong);
        }
        keys.iter_mut().for_each(|key| key.ignores_if_match |= plan.ignores_if_match);
        let ledger = EdgeLedger::new(keys, plan.bucket.clone());
        let (device, ledger) = (Arc::new(Mutex::new(platter)), Arc::new(Mutex::new(ledger)));
        // Some time before, so that objects can be older than the process.
        let now = Duration::from_secs(rng.below(100));
        let index = IndexKind::memory();
        Self { rng, plan: Arc::new(plan), trace, device, index, ledger, now, lives: 0, cuts: 0 }
    }

    /// Answers of the edge that were judged.
    pub(crate) fn answers(&self) -> u64 {
        self.ledger.lock().answers
    }

    /// Runs all lives, up to the first violation.
    pub(crate) fn run_lives(&mut self) -> Result<(), String> {
        self.format()?;
        let lives = self.plan.lives.clone();
        for (at, life) in lives.iter().enumerate() {
            self.change_alone();
            self.live(life.clone(), false)?;
            self.now += life.gap;
            if at + 1 == lives.len() {
                self.change_alone();
                let quiet = EdgeLife { steps_max: None, cut_after_purge: false, end: EdgeEnd::Closed, ..life.clone() };
                self.live(EdgeLife { requests_each: 4, ..quiet }, true)?;
            }
        }
        Ok(())
    }

    /// Changes objects at the origin while no process runs.
    fn change_alone(&mut self) {
        let mut ledger = self.ledger.lock();
        for key in 0..self.plan.keys as usize {
            if self.rng.one_in(2) {
                let wall_s = EPOCH_MS / 1000 + self.now.as_secs();
                ledger.change(&mut self.rng, key, self.now, wall_s);
            }
        }
    }

    fn format(&mut self) -> Result<(), String> {
        let executor = Executor::new(self.rng.fork(), self.now, self.trace.clone());
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(self.device.clone(), executor.clone(), self.plan.disk));
        let env = executor.env();
        let format = async move {
            let options = FormatOptions { extent_bytes: Some(1 << 20), ..FormatOptions::default() };
            Log::format(&disk, &env, &options).await.map(drop).map_err(|error| error.to_string())
        };
        let end = executor.run(format, STEPS_MAX, TIME_MAX);
        self.now = executor.shut_down();
        self.device.lock().kill();
        match end {
            End::Done(result) => result,
            other => Err(format!("the disk was not formatted: {other:?}")),
        }
    }

    fn live(&mut self, life: EdgeLife, last: bool) -> Result<(), String> {
        self.lives += 1;
        self.trace.note_with_text(self.now.as_nanos() as u64, "life", [self.lives, 0, 0], || format!("{life:?}"));
        let executor = Executor::new(self.rng.fork(), self.now, self.trace.clone());
        if let Some(steps) = life.steps_max {
            executor.cut_after(steps);
        }
        let process = EdgeProcess {
            plan: self.plan.clone(),
            life: life.clone(),
            number: self.lives,
            last,
            executor: executor.clone(),
            device: self.device.clone(),
            index: self.index.clone(),
            ledger: self.ledger.clone(),
        };
        let end = executor.run(process.run(self.rng.fork()), STEPS_MAX, TIME_MAX);
        self.now = executor.shut_down();
        if life.end == EdgeEnd::Cut || matches!(end, End::Cut) {
            self.device.lock().cut();
            self.cuts += 1;
        } else {
            self.device.lock().kill();
        }
        if let Some(violation) = self.ledger.lock().violation.take() {
            return Err(violation);
        }
        match end {
            End::Done(result) => result,
            End::Cut => Ok(()),
            other => Err(format!("a life did not end: {other:?}")),
        }
    }
}
