//! Behaviour of the whole super-disk, over disks in memory and with a stopped clock.

mod chaos;
mod damage;
mod failing_legs;
mod faults;
mod identity;
mod older;
mod service;
mod stripes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use steadfast_flow::{BoxFuture, Env, Runtime};

use super::*;
use crate::{BLOCK, FastState, Faults, Faulty, MemDisk, Slow, SlowHandle, Slowness};

const B: u64 = BLOCK as u64;
const MIB: u64 = 1 << 20;
/// Start of the test data, behind the pair's labels.
const DATA: u64 = MIB;
/// Offsets of the labels of a fast leg of one device.
const FAST_LABELS: [u64; 2] = [0, 512 << 10];

/// Tokio's tasks and its paused clock, which jumps to the next timer when no task can run.
struct Paused {
    start: tokio::time::Instant,
    random: AtomicU64,
}

#[allow(clippy::disallowed_methods, reason = "this is a runtime for the seam that the ban points to")]
impl Runtime for Paused {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall_ms(&self) -> u64 {
        0
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn blocking(&self, _work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        unreachable!("a super-disk does not block");
    }

    fn random_u64(&self) -> u64 {
        self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed)
    }
}

pub(super) fn env() -> Env {
    // Every environment yields other numbers.
    static SEED: AtomicU64 = AtomicU64::new(1);
    let random = AtomicU64::new(SEED.fetch_add(1, Relaxed) << 32);
    Env::new(Paused { start: tokio::time::Instant::now(), random })
}

pub(super) fn options() -> SuperdiskOptions {
    SuperdiskOptions {
        region_bytes: 16 << 10,
        rebuild_settle: Duration::from_millis(100),
        ..SuperdiskOptions::default()
    }
}

/// Options that clear bits as soon as both legs hold the same.
pub(super) fn clearing() -> SuperdiskOptions {
    SuperdiskOptions { dirty_bytes_max: 0, ..options() }
}

/// The two legs, which outlive the super-disk, and their faults and slowness.
pub(super) struct Legs {
    pub(super) env: Env,
    pub(super) durable: MemDisk,
    pub(super) fast: MemDisk,
    pub(super) durable_faults: Faults,
    pub(super) fast_faults: Faults,
    pub(super) durable_slow: SlowHandle,
    pub(super) fast_slow: SlowHandle,
    durable_top: Arc<dyn Disk>,
    fast_top: Arc<dyn Disk>,
}

fn wrapped(disk: &MemDisk, env: &Env) -> (Arc<dyn Disk>, Faults, SlowHandle) {
    let faults = Faults::new();
    let slow =
        Slow::new(Arc::new(Faulty::new(Arc::new(disk.clone()), faults.clone())), env.clone(), Slowness::default());
    let handle = slow.handle();
    (Arc::new(slow), faults, handle)
}

impl Legs {
    /// A durable leg of 3 MiB and a fast one of the same capacity.
    pub(super) fn new() -> Self {
        Self::of(MemDisk::fixed(3 * MIB), MemDisk::fixed(pair::FAST_START + 3 * MIB))
    }

    pub(super) fn of(durable: MemDisk, fast: MemDisk) -> Self {
        let env = env();
        let (durable_top, durable_faults, durable_slow) = wrapped(&durable, &env);
        let (fast_top, fast_faults, fast_slow) = wrapped(&fast, &env);
        Self { env, durable, fast, durable_faults, fast_faults, durable_slow, fast_slow, durable_top, fast_top }
    }

    pub(super) async fn open(&self) -> Arc<Superdisk> {
        self.open_with(options()).await
    }

    pub(super) async fn open_with(&self, options: SuperdiskOptions) -> Arc<Superdisk> {
        self.try_open(options).await.expect("opens")
    }

    pub(super) async fn try_open(&self, options: SuperdiskOptions) -> io::Result<Arc<Superdisk>> {
        Superdisk::open(self.durable_top.clone(), Some(self.fast_top.clone()), self.env.clone(), options).await
    }

    pub(super) async fn open_without(&self) -> Arc<Superdisk> {
        Superdisk::open(self.durable_top.clone(), None, self.env.clone(), options()).await.expect("opens")
    }

    /// Waits until the status meets the condition, for at most ten minutes of the stopped clock.
    pub(super) async fn until(&self, disk: &Superdisk, what: &str, condition: impl Fn(&SuperdiskStatus) -> bool) {
        for _ in 0..60_000 {
            if condition(&disk.status()) {
                return;
            }
            self.env.sleep(Duration::from_millis(10)).await;
        }
        panic!("never {what}: {:#?}", disk.status());
    }

    pub(super) async fn until_clean(&self, disk: &Superdisk) {
        self.until(disk, "clean", |status| status.fast == FastState::Clean).await;
    }

    /// The fast leg holds the same as the durable one wherever it would be read.
    pub(super) async fn assert_legs_agree(&self, disk: &Superdisk) {
        let len = self.durable.len();
        let mut copies = 0;
        for offset in (DATA..len).step_by(BLOCK) {
            let durable = disk.read_copy(0, offset, BLOCK).await.expect("durable");
            if let Ok(fast) = disk.read_copy(1, offset, BLOCK).await {
                assert!(fast == durable, "at {offset}");
                copies += 1;
            }
        }
        assert!(copies > 0, "nothing on the fast leg: {:#?}", disk.status());
    }
}

/// Bytes that depend on their offset and a version.
pub(super) fn pattern(offset: u64, blocks: usize, version: u8) -> Bytes {
    let start = offset as usize;
    (start..start + blocks * BLOCK).map(|at| (at / BLOCK * 31 + at % 251) as u8 ^ version).collect::<Vec<_>>().into()
}

/// Compares without printing all bytes.
#[track_caller]
pub(super) fn assert_is(bytes: &Bytes, offset: u64, version: u8) {
    let right = pattern(offset, bytes.len() / BLOCK, version);
    let wrong = bytes.iter().zip(&right).position(|(a, b)| a != b);
    assert_eq!(wrong, None, "the first wrong byte of {} at {offset}, version {version}", bytes.len());
}

/// Lets pending writes reach the fast leg, unless it hangs.
pub(super) async fn settle(disk: &Superdisk) {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
        if disk.status().pending_bytes == 0 {
            return;
        }
    }
}

/// A separate disk with the same bytes.
pub(super) async fn copy_of(disk: &MemDisk) -> MemDisk {
    let copy = MemDisk::fixed(disk.len());
    for offset in (0..disk.len()).step_by(1 << 16) {
        let len = (disk.len() - offset).min(1 << 16) as usize;
        copy.write(offset, disk.read(offset, len).await.expect("read")).await.expect("write");
    }
    copy
}

/// Fills all the data with a version, and makes it durable.
pub(super) async fn fill(disk: &Superdisk, version: u8) {
    for offset in (DATA..disk.len()).step_by(64 << 10) {
        disk.write(offset, pattern(offset, 16, version)).await.expect("write");
    }
    disk.flush().await.expect("flush");
    settle(disk).await;
}

pub(super) async fn assert_filled(disk: &Superdisk, version: u8) {
    for offset in (DATA..disk.len()).step_by(64 << 10) {
        let bytes = disk.read(offset, 16 * BLOCK).await.expect("read");
        assert_is(&bytes, offset, version);
    }
}
