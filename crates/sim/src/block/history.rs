//! A run: several lives of one pair, and the faults of its legs between them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_disk::BLOCK;

use super::ledger::{Ledger, LedgerMoment};
use super::leg::FastLeg;
use super::life::Process;
use super::plan::{BlockLife, BlockPlan, FastLayout, LegFate};
use crate::disk::Device;
use crate::executor::{End, Executor};
use crate::platter::{FaultRates, Image, Platter};
use crate::rng::Rng;
use crate::trace::Trace;

const STEPS_MAX: u64 = 1_000_000;
const TIME_MAX: Duration = Duration::from_secs(600);
/// Number of images kept of each leg.
const IMAGES_MAX: usize = 4;

/// Images of the legs.
#[derive(Default)]
pub(crate) struct Images {
    fast: Vec<Image>,
    durable: Vec<(Image, LedgerMoment)>,
}

impl Images {
    pub(crate) fn add_fast(&mut self, image: Image) {
        if self.fast.len() == IMAGES_MAX {
            self.fast.remove(0);
        }
        self.fast.push(image);
    }

    pub(crate) fn add_durable(&mut self, image: Image, moment: LedgerMoment) {
        if self.durable.len() == IMAGES_MAX {
            self.durable.remove(0);
        }
        self.durable.push((image, moment));
    }

    /// Restores the fast leg from an image, if any: the whole leg, or one of its devices.
    pub(crate) fn restore_fast(&self, device: &Device, layout: FastLayout, rng: &mut Rng) {
        if self.fast.is_empty() {
            return;
        }
        let image = rng.pick(&self.fast);
        if layout.devices > 1 && rng.one_in(2) {
            let one = rng.below(layout.devices);
            device.lock().restore_blocks(image, |block| layout.device_of(block * BLOCK as u64) == one);
        } else {
            device.lock().restore(image);
        }
    }

    /// Restores the durable leg from an image, if any. Later images stay: they belong to an
    /// abandoned history.
    fn restore_durable(&self, device: &Device, ledger: &mut Ledger, rng: &mut Rng) {
        if self.durable.is_empty() {
            return;
        }
        let (image, moment) = rng.pick(&self.durable);
        // The cached writes belonged to another medium.
        device.lock().cut();
        device.lock().restore(image);
        ledger.restore(moment);
    }
}

pub(crate) struct BlockHistory {
    rng: Rng,
    plan: Arc<BlockPlan>,
    trace: Trace,
    durable: Device,
    fast: Device,
    ledger: Arc<Mutex<Ledger>>,
    images: Arc<Mutex<Images>>,
    now: Duration,
    pub(crate) lives: u64,
    pub(crate) cuts: u64,
}

impl BlockHistory {
    pub(crate) fn new(mut rng: Rng, plan: BlockPlan, trace: Trace) -> Self {
        let device = |bytes: u64, rng: &mut Rng| -> Device {
            let mut platter = Platter::new(rng.fork(), bytes, bytes);
            platter.faults_left = u64::MAX;
            Arc::new(Mutex::new(platter))
        };
        let durable = device(plan.durable_bytes, &mut rng);
        let fast = device(plan.fast_bytes, &mut rng);
        durable.lock().drops_at_once = true;
        let ledger = Arc::new(Mutex::new(Ledger::new(plan.blocks, durable.clone())));
        let plan = Arc::new(plan);
        let images = Arc::default();
        Self { rng, plan, trace, durable, fast, ledger, images, now: Duration::ZERO, lives: 0, cuts: 0 }
    }

    /// Runs all lives, up to the first violation.
    pub(crate) fn run_lives(&mut self) -> Result<(), String> {
        for life in self.plan.clone().lives.clone() {
            self.inject(&life);
            self.live(life)?;
        }
        Ok(())
    }

    /// Applies the life's fates to the legs while no process runs.
    fn inject(&mut self, life: &BlockLife) {
        let mut rng = self.rng.fork();
        let images = self.images.lock();
        if life.restored {
            images.restore_durable(&self.durable, &mut self.ledger.lock(), &mut rng);
        }
        if !matches!(life.fast, LegFate::Kept | LegFate::Missing) {
            self.fast.lock().cut();
        }
        match life.fast {
            LegFate::Kept | LegFate::Missing => {}
            LegFate::Blank => self.fast.lock().wipe(),
            LegFate::Older => images.restore_fast(&self.fast, self.plan.layout, &mut rng),
            LegFate::Smaller => self.fast.lock().resize(self.plan.smaller_bytes),
        }
    }

    fn live(&mut self, life: BlockLife) -> Result<(), String> {
        self.lives += 1;
        self.trace.note_with_text(self.now.as_nanos() as u64, "life", [self.lives, 0, 0], || format!("{life:?}"));
        let executor = Executor::new(self.rng.fork(), self.now, self.trace.clone());
        let leg = (life.fast != LegFate::Missing)
            .then(|| FastLeg::new(self.fast.clone(), executor.clone(), &self.plan, self.rng.fork()));
        if let Some(steps) = life.steps_max {
            executor.cut_after(steps);
        }
        let process = Process {
            plan: self.plan.clone(),
            life: Arc::new(life.clone()),
            executor: executor.clone(),
            durable: self.durable.clone(),
            fast: self.fast.clone(),
            leg,
            ledger: self.ledger.clone(),
            images: self.images.clone(),
        };
        let end = executor.run(process.run(self.rng.fork()), STEPS_MAX, TIME_MAX);
        self.ledger.lock().ended(life.durable_cut, executor.env().now());
        self.now = executor.shut_down();
        for (device, cut) in [(&self.durable, life.durable_cut), (&self.fast, life.fast_cut)] {
            let mut platter = device.lock();
            platter.rates = FaultRates::default();
            platter.faults_left = u64::MAX;
            if cut {
                platter.cut()
            } else {
                platter.kill()
            }
            self.cuts += u64::from(cut);
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
