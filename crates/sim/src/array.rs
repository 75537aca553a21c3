//! The devices of one disk of a pool, and how a life opens them: as one device or as a super-disk.
//! A super-disk's fast leg vanishes, rots, hangs and returns with older content while the durable
//! leg keeps working.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_disk::{Disk, FastState, Stripe, StripeOptions, Superdisk, Zoned};
use steadfast_flow::Env;

use crate::disk::{Device, SimDisk};
use crate::executor::Executor;
use crate::plan::{DiskPlan, FastFate, FastPlan};
use crate::platter::{FaultRates, Image, Platter};
use crate::rng::Rng;

pub(crate) struct Array {
    pub(crate) durable: Device,
    pub(crate) fast: Vec<Device>,
    /// Whether the stripe must be formatted first.
    blank: bool,
    gone: bool,
    images: Vec<Vec<Image>>,
    /// Whether the pair was opened without the fast leg. From then on, its content is stale.
    missed: bool,
    /// The zoned disk that this life has opened.
    pub(crate) zoned: Option<Arc<Zoned>>,
}

/// Number of images kept.
const IMAGES_MAX: usize = 2;

impl Array {
    pub(crate) fn new(rng: &mut Rng, durable: Device, capacity_bytes: u64, plan: Option<&FastPlan>) -> Self {
        let members = plan.map_or(0, |plan| plan.members);
        // Space for the headers, and a little more.
        let each = (capacity_bytes / members.max(1)).next_multiple_of(1 << 20) + (20 << 20);
        let fast = (0..members)
            .map(|_| {
                let mut platter = Platter::new(rng.fork(), each, each);
                platter.faults_left = plan.map_or(0, |plan| plan.faults);
                Arc::new(Mutex::new(platter))
            })
            .collect();
        Self { durable, fast, blank: true, gone: false, images: Vec::new(), missed: false, zoned: None }
    }

    /// Applies `fate` to the fast leg while the power is off. Returns true if its earlier content
    /// must not be trusted in the next life.
    pub(crate) fn inject(&mut self, fate: FastFate, rng: &mut Rng) -> bool {
        self.gone = fate == FastFate::Missing;
        match fate {
            FastFate::Kept | FastFate::Missing => {}
            FastFate::Blank => {
                self.fast.iter().for_each(|device| device.lock().wipe());
                self.blank = true;
            }
            FastFate::Older | FastFate::Mixed => {
                if !self.images.is_empty() {
                    let images = &self.images[rng.below(self.images.len() as u64) as usize];
                    for (device, image) in self.fast.iter().zip(images) {
                        if fate == FastFate::Older || rng.one_in(2) {
                            device.lock().restore(image);
                        }
                    }
                }
            }
            FastFate::Rotten(bits) => {
                for _ in 0..bits {
                    rng.pick(&self.fast).lock().flip_bit();
                }
            }
        }
        !self.gone && (std::mem::take(&mut self.missed) || fate == FastFate::Blank)
    }

    fn take_image(&mut self) {
        let images = self.fast.iter().map(|device| device.lock().image()).collect();
        if self.images.len() == IMAGES_MAX {
            self.images.remove(0);
        }
        self.images.push(images);
    }

    /// Cuts the power: each device loses its own random part of the unflushed data. No more faults
    /// strike.
    pub(crate) fn cut(&self) {
        for device in self.fast.iter().chain([&self.durable]) {
            let mut platter = device.lock();
            platter.rates = FaultRates::default();
            platter.cut();
        }
    }

    /// Switches the fast leg's faults on or off.
    pub(crate) fn rates(&self, rates: FaultRates) {
        self.fast.iter().for_each(|device| device.lock().rates = rates);
    }
}

/// The devices of one disk of the pool, as one life sees them.
#[derive(Clone)]
pub(crate) struct Bay {
    pub(crate) array: Arc<Mutex<Array>>,
    pub(crate) plan: DiskPlan,
    /// Whether the disk is missing.
    pub(crate) missing: bool,
    pub(crate) executor: Executor,
}

/// A disk that a life has opened.
pub(crate) struct Opened {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) superdisk: Option<Arc<Superdisk>>,
}

impl Bay {
    /// Opens the devices as one disk.
    pub(crate) async fn open(&self) -> std::io::Result<Opened> {
        let device = self.array.lock().durable.clone();
        let durable: Arc<dyn Disk> = Arc::new(SimDisk::new(device, self.executor.clone(), self.plan.profile));
        if let Some(zones) = self.plan.zones {
            let zoned = Zoned::open(durable, zones).await?;
            self.array.lock().zoned = Some(zoned.clone());
            return Ok(Opened { disk: zoned, superdisk: None });
        }
        let Some(plan) = &self.plan.fast else { return Ok(Opened { disk: durable, superdisk: None }) };
        let env = self.executor.env();
        let fast = self.fast(plan, &env).await;
        let superdisk = Superdisk::open(durable, fast, env, plan.options.clone()).await?;
        {
            let mut array = self.array.lock();
            array.missed |= array.gone;
        }
        Ok(Opened { disk: superdisk.clone(), superdisk: Some(superdisk) })
    }

    /// Opens the fast leg, if it is present and usable.
    async fn fast(&self, plan: &FastPlan, env: &Env) -> Option<Arc<dyn Disk>> {
        let (devices, blank) = {
            let array = self.array.lock();
            if array.gone {
                return None;
            }
            (array.fast.clone(), array.blank)
        };
        let disk = |device: &Device| -> Arc<dyn Disk> {
            Arc::new(SimDisk::new(device.clone(), self.executor.clone(), plan.disk))
        };
        let members: Vec<Arc<dyn Disk>> = devices.iter().map(disk).collect();
        if members.len() == 1 {
            self.array.lock().blank = false;
            return members.into_iter().next();
        }
        if blank {
            let options = StripeOptions { chunk_bytes: plan.chunk_bytes };
            Stripe::format(&members, env, &options, true).await.ok()?;
            self.array.lock().blank = false;
        }
        // A stripe that does not open counts as a missing fast leg.
        Stripe::open(members).await.ok()
    }

    /// Starts the faults of the fast leg that strike while the machine runs.
    pub(crate) fn start_faults(&self, mut rng: Rng) {
        let Some(plan) = &self.plan.fast else { return };
        let env = self.executor.env();
        if let Some(every) = plan.rot_every {
            let (array, env, mut rng) = (self.array.clone(), env.clone(), rng.fork());
            env.clone().spawn("rot", async move {
                for _ in 0..200 {
                    env.sleep(every / 2 + every.mul_f64(rng.below(1000) as f64 / 1000.0)).await;
                    let device = rng.pick(&array.lock().fast).clone();
                    device.lock().flip_bit();
                }
            });
        }
        if plan.takes_images {
            let array = self.array.clone();
            env.clone().spawn("picture", async move {
                env.sleep(Duration::from_micros(rng.below(400_000))).await;
                array.lock().take_image();
            });
        }
    }
}

/// Waits a limited time until the fast leg is complete. Returns true if it is.
pub(crate) async fn settle(superdisk: &Superdisk, env: &Env) -> bool {
    for _ in 0..100 {
        let status = superdisk.status();
        if status.fast == FastState::Clean && status.regions_clean == status.regions_total {
            return true;
        }
        env.sleep(Duration::from_millis(200)).await;
    }
    false
}
