//! The fast leg as the super-disk sees it: a simulated disk that fails, hangs, vanishes and
//! returns.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{AlignedBuf, Disk, DiskStats, Geometry, IoFuture};
use steadfast_flow::BoxFuture;
use tokio::sync::watch;

use super::plan::{BlockPlan, FastLayout};
use crate::disk::{Device, DiskProfile, SimDisk};
use crate::executor::Executor;
use crate::rng::Rng;

const ENODEV: i32 = 19;

struct LegState {
    disk: SimDisk,
    /// Whether the leg is absent.
    gone: bool,
    /// Whether the leg was absent since it was opened: it refuses everything until it is reopened.
    closed: bool,
    /// Time until which requests wait.
    held_until: Duration,
    /// Per mille of the requests that are delayed individually, by up to `stuck_max`.
    stuck_per_mille: u64,
    stuck_max: Duration,
    rng: Rng,
}

struct LegShared {
    device: Device,
    executor: Executor,
    profile: DiskProfile,
    layout: FastLayout,
    state: Mutex<LegState>,
    /// Number of times that the leg vanished: each time, requests in flight fail.
    departures: watch::Sender<u64>,
}

/// A simulated disk with its faults. Clones share the leg.
#[derive(Clone)]
pub(crate) struct FastLeg(Arc<LegShared>);

impl FastLeg {
    pub(crate) fn new(device: Device, executor: Executor, plan: &BlockPlan, rng: Rng) -> Self {
        let (profile, layout) = (plan.fast, plan.layout);
        let disk = SimDisk::new(device.clone(), executor.clone(), profile);
        let state = LegState {
            disk,
            gone: false,
            closed: false,
            held_until: Duration::ZERO,
            stuck_per_mille: 0,
            stuck_max: Duration::ZERO,
            rng,
        };
        let (departures, _) = watch::channel(0);
        Self(Arc::new(LegShared { device, executor, profile, layout, state: Mutex::new(state), departures }))
    }

    /// Cuts the leg's power and fails its requests.
    pub(crate) fn vanish(&self) {
        {
            let mut state = self.0.state.lock();
            (state.gone, state.closed) = (true, true);
            state.held_until = Duration::ZERO;
            self.0.device.lock().cut();
        }
        self.0.departures.send_modify(|count| *count += 1);
    }

    /// Whether the leg is absent: only then may it be restored to an image.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.state.lock().gone
    }

    /// Makes the leg present again; the super-disk may reopen it.
    pub(crate) fn reappear(&self) {
        self.0.state.lock().gone = false;
    }

    /// Delays all requests until then.
    pub(crate) fn hold(&self, until: Duration) {
        self.0.state.lock().held_until = until;
    }

    /// Delays `per_mille` of the requests by up to `max`.
    pub(crate) fn stick(&self, per_mille: u64, max: Duration) {
        let mut state = self.0.state.lock();
        (state.stuck_per_mille, state.stuck_max) = (per_mille, max);
    }

    fn pass<T: Send + 'static>(&self, work: impl FnOnce(SimDisk) -> IoFuture<T> + Send + 'static) -> IoFuture<T> {
        let leg = self.clone();
        Box::pin(async move {
            let mut departures = leg.0.departures.subscribe();
            let env = leg.0.executor.env();
            let wait = {
                let mut state = leg.0.state.lock();
                if state.gone || state.closed {
                    return Err(io::Error::from_raw_os_error(ENODEV));
                }
                let (per_mille, max) = (state.stuck_per_mille, state.stuck_max);
                let stuck = if per_mille > 0 && state.rng.chance(per_mille) {
                    max.mul_f64(state.rng.below(1000) as f64 / 1000.0)
                } else {
                    Duration::ZERO
                };
                state.held_until.saturating_sub(env.now()).max(stuck)
            };
            let request = async {
                if !wait.is_zero() {
                    env.sleep(wait).await;
                }
                let disk = leg.0.state.lock().disk.clone();
                work(disk).await
            };
            tokio::select! {
                biased;
                _ = departures.changed() => Err(io::Error::from_raw_os_error(ENODEV)),
                result = request => result,
            }
        })
    }
}

impl Disk for FastLeg {
    fn geometry(&self) -> Geometry {
        self.0.state.lock().disk.geometry()
    }

    fn len(&self) -> u64 {
        self.0.state.lock().disk.len()
    }

    fn label_places(&self) -> Vec<[u64; 2]> {
        self.0.layout.label_places()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        self.pass(move |disk| disk.read(offset, len))
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.pass(move |disk| disk.write(offset, data))
    }

    fn flush(&self) -> IoFuture<()> {
        self.pass(|disk| disk.flush())
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.pass(move |disk| disk.write_flush(offset, data))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.pass(move |disk| disk.discard(offset, len))
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        self.pass(move |disk| disk.reserve(end))
    }

    fn reopen(&self) -> IoFuture<()> {
        let leg = self.clone();
        Box::pin(async move {
            let mut state = leg.0.state.lock();
            if state.gone {
                return Err(io::Error::from_raw_os_error(ENODEV));
            }
            state.closed = false;
            state.disk = SimDisk::new(leg.0.device.clone(), leg.0.executor.clone(), leg.0.profile);
            Ok(())
        })
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        self.0.state.lock().disk.buffer(capacity)
    }

    fn stats(&self) -> DiskStats {
        self.0.state.lock().disk.stats()
    }

    fn describe(&self) -> String {
        "simulated fast leg".to_owned()
    }
}
