//! The devices of one disk of a pool, and how one life of the machine puts them together: one device, or a super-disk whose fast leg
//! vanishes, rots, hangs and comes back from another time while the durable leg goes on.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_disk::{Disk, FastState, Stripe, StripeOptions, Superdisk, SuperdiskOptions, Zoned};
use steadfast_flow::Env;

use crate::disk::{Device, DiskProfile, SimDisk};
use crate::executor::Executor;
use crate::plan::DiskPlan;
use crate::platter::{FaultRates, Image, Platter};
use crate::rng::Rng;

/// How the fast leg is in a run.
#[derive(Debug, Clone)]
pub(crate) struct FastPlan {
    /// One disk, or a stripe of so many.
    pub(crate) members: u64,
    pub(crate) disk: DiskProfile,
    pub(crate) chunk_bytes: u64,
    pub(crate) options: SuperdiskOptions,
    /// What strikes it while clients work.
    pub(crate) rates: FaultRates,
    pub(crate) faults: u64,
    /// Bits that flip under load, one every so often.
    pub(crate) rot_every: Option<Duration>,
    /// A picture of it is taken in the middle of lives, to come back later.
    pub(crate) pictures: bool,
}

/// What becomes of the fast leg before a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FastFate {
    /// Nothing.
    Kept,
    /// It is not there in this life.
    Gone,
    /// A blank one is in its place.
    Blank,
    /// It is as it was at an earlier time.
    Older,
    /// One member of the stripe is as it was at an earlier time.
    Mixed,
    /// So many bits have flipped.
    Rotten(u64),
}

pub(crate) struct Array {
    pub(crate) durable: Device,
    pub(crate) fast: Vec<Device>,
    /// The stripe has to be made first.
    blank: bool,
    gone: bool,
    pictures: Vec<Vec<Image>>,
    /// The pair was opened without it: from then on nothing that it holds counts.
    missed: bool,
    /// The disk of zones that this life has opened.
    pub(crate) zoned: Option<Arc<Zoned>>,
}

/// How many pictures are kept.
const PICTURES_MAX: usize = 2;

impl Array {
    pub(crate) fn new(rng: &mut Rng, durable: Device, capacity_bytes: u64, plan: Option<&FastPlan>) -> Self {
        let members = plan.map_or(0, |plan| plan.members);
        // Room for the headers, and a little more.
        let each = (capacity_bytes / members.max(1)).next_multiple_of(1 << 20) + (20 << 20);
        let fast = (0..members)
            .map(|_| {
                let mut platter = Platter::new(rng.fork(), each, each);
                platter.faults_left = plan.map_or(0, |plan| plan.faults);
                Arc::new(Mutex::new(platter))
            })
            .collect();
        Self { durable, fast, blank: true, gone: false, pictures: Vec::new(), missed: false, zoned: None }
    }

    /// What is done to the fast leg while the power is off. Whether nothing that it held may be believed in the next life.
    pub(crate) fn befall(&mut self, fate: FastFate, rng: &mut Rng) -> bool {
        self.gone = fate == FastFate::Gone;
        match fate {
            FastFate::Kept | FastFate::Gone => {}
            FastFate::Blank => {
                self.fast.iter().for_each(|device| device.lock().wipe());
                self.blank = true;
            }
            FastFate::Older | FastFate::Mixed => {
                if !self.pictures.is_empty() {
                    let picture = &self.pictures[rng.below(self.pictures.len() as u64) as usize];
                    for (device, image) in self.fast.iter().zip(picture) {
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

    fn picture(&mut self) {
        let images = self.fast.iter().map(|device| device.lock().image()).collect();
        if self.pictures.len() == PICTURES_MAX {
            self.pictures.remove(0);
        }
        self.pictures.push(images);
    }

    /// The power goes: all devices lose what was not flushed, each in its own way, and no more faults strike.
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

/// The devices of one disk of the pool as one life sees them.
#[derive(Clone)]
pub(crate) struct Bay {
    pub(crate) array: Arc<Mutex<Array>>,
    pub(crate) plan: DiskPlan,
    /// It is not there.
    pub(crate) missing: bool,
    pub(crate) executor: Executor,
}

/// What a life has opened.
pub(crate) struct Opened {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) superdisk: Option<Arc<Superdisk>>,
}

impl Bay {
    /// Puts the devices together.
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

    /// The fast leg, if it is there and fit to be one.
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
        // One that cannot be put together is a fast leg that is missing.
        Stripe::open(members).await.ok()
    }

    /// Things that happen to the fast leg by themselves while the machine runs.
    pub(crate) fn disturb(&self, mut rng: Rng) {
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
        if plan.pictures {
            let array = self.array.clone();
            env.clone().spawn("picture", async move {
                env.sleep(Duration::from_micros(rng.below(400_000))).await;
                array.lock().picture();
            });
        }
    }
}

/// Waits until the fast leg holds everything, for a while. Whether it does.
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
