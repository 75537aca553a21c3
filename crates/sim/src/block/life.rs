//! One life of the process that has the pair open.

use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_disk::{Disk, Superdisk};
use tokio::sync::oneshot;

use super::client::BlockClient;
use super::history::Images;
use super::ledger::Ledger;
use super::leg::FastLeg;
use super::plan::{BlockLife, BlockPlan, LegFault};
use crate::disk::{Device, SimDisk};
use crate::executor::Executor;
use crate::platter::FaultRates;
use crate::rng::Rng;

/// The state of a life.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) plan: Arc<BlockPlan>,
    pub(crate) life: Arc<BlockLife>,
    pub(crate) executor: Executor,
    pub(crate) durable: Device,
    pub(crate) fast: Device,
    pub(crate) leg: Option<FastLeg>,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) images: Arc<Mutex<Images>>,
}

impl Process {
    /// Opens the pair, runs the clients, and closes the pair if the life asks for it.
    pub(crate) async fn run(self, mut rng: Rng) -> Result<(), String> {
        let env = self.executor.env();
        let durable: Arc<dyn Disk> =
            Arc::new(SimDisk::new(self.durable.clone(), self.executor.clone(), self.plan.durable));
        let fast = self.leg.clone().map(|leg| Arc::new(leg) as Arc<dyn Disk>);
        let opened = Superdisk::open(durable, fast, env.clone(), self.plan.options.clone()).await;
        let superdisk = opened.map_err(|error| format!("the pair cannot be opened: {error}"))?;
        self.ledger.lock().opened();
        let now = self.executor.now_ns();
        self.executor.trace().note_with_text(now, "opened", [0, 0, 0], || format!("{:?}", superdisk.status().fast));
        let client = BlockClient {
            disk: superdisk.clone(),
            env: env.clone(),
            ledger: self.ledger.clone(),
            executor: self.executor.clone(),
            plan: self.plan.clone(),
        };
        self.start_faults(&mut rng);
        if self.life.reads_first {
            client.read_all().await;
        }
        let mut ends = Vec::new();
        for _ in 0..self.life.clients {
            let (done, end) = oneshot::channel::<()>();
            let work = client.clone().run(rng.fork(), self.life.requests_each, self.life.pause_max);
            env.spawn("client", async move {
                work.await;
                let _ = done.send(());
            });
            ends.push(end);
        }
        for end in ends {
            let _ = end.await;
        }
        if self.life.reads_last {
            client.read_all().await;
        }
        if self.life.closed {
            superdisk.close().await;
        }
        Ok(())
    }

    /// Starts the faults of the legs and the images.
    fn start_faults(&self, rng: &mut Rng) {
        let env = self.executor.env();
        for (at, fault) in self.life.faults.iter().copied() {
            let (process, rng, later) = (self.clone(), rng.fork(), env.clone());
            env.spawn("trouble", async move {
                later.sleep(at).await;
                process.apply_fault(fault, rng).await;
            });
        }
        let images = [(&self.life.fast_images, true), (&self.life.durable_images, false)];
        for (at, fast) in images.into_iter().flat_map(|(times, fast)| times.iter().map(move |at| (*at, fast))) {
            let (process, later) = (self.clone(), env.clone());
            env.spawn("image", async move {
                later.sleep(at).await;
                process.take_image(fast);
            });
        }
    }

    fn take_image(&self, fast: bool) {
        let now = self.executor.env().now();
        self.executor.trace().note(self.executor.now_ns(), "image", if fast { "fast" } else { "durable" }, [0; 3]);
        if fast {
            let image = self.fast.lock().snapshot();
            self.images.lock().add_fast(image);
        } else {
            let mut ledger = self.ledger.lock();
            let moment = ledger.moment(now);
            let image = self.durable.lock().snapshot();
            self.images.lock().add_durable(image, moment);
        }
    }

    async fn apply_fault(&self, fault: LegFault, mut rng: Rng) {
        let env = self.executor.env();
        self.executor.trace().note_with_text(self.executor.now_ns(), "trouble", [0; 3], || format!("{fault:?}"));
        match (fault, &self.leg) {
            (LegFault::FastErrors { lasts, per_mille: [read, write, flush] }, _) => {
                let rates = FaultRates {
                    read_eio: read * 1000,
                    write_eio: write * 1000,
                    flush_eio: flush * 1000,
                    ..FaultRates::default()
                };
                self.fast.lock().rates = rates;
                env.sleep(lasts).await;
                self.fast.lock().rates = FaultRates::default();
            }
            (LegFault::FastHangs { lasts }, Some(leg)) => leg.hold(env.now() + lasts),
            (LegFault::FastSticks { lasts, per_mille, max }, Some(leg)) => {
                leg.stick(per_mille, max);
                env.sleep(lasts).await;
                leg.stick(0, max);
            }
            (LegFault::FastVanishes { lasts, older }, Some(leg)) => {
                leg.vanish();
                env.sleep(lasts).await;
                if older && leg.is_gone() {
                    self.images.lock().restore_fast(&self.fast, self.plan.layout, &mut rng);
                }
                leg.reappear();
                self.executor.trace().note(self.executor.now_ns(), "back", "", [u64::from(older), 0, 0]);
            }
            (LegFault::DurableFlush | LegFault::DurableWrite, _) => {
                let flush = fault == LegFault::DurableFlush;
                let mut durable = self.durable.lock();
                let (write_eio, flush_eio) = if flush { (0, 1_000_000) } else { (1_000_000, 0) };
                durable.rates = FaultRates { write_eio, flush_eio, ..FaultRates::default() };
                durable.faults_left = 1;
            }
            (_, None) => {}
        }
    }
}
