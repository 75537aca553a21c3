//! A disk over a [`Platter`]: requests take seeded time, overtake each other, and fail as the
//! platter decides.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{AlignedBuf, BLOCK, BufPool, CacheClaim, Disk, DiskStats, Geometry, IoFuture};
use steadfast_flow::BoxFuture;
use tokio::sync::oneshot;

use crate::executor::Executor;
use crate::platter::{Fate, Platter};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Deliberate defects of the disk that test the simulator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskSabotage {
    /// Flushes are acknowledged and do nothing.
    pub skip_flush: bool,
    /// A write with flush is acknowledged after the write; the flush follows later.
    pub early_ack: bool,
    /// Some reads return a flipped bit.
    pub flip_on_read: bool,
}

/// The behaviour of a disk.
#[derive(Debug, Clone, Copy)]
pub struct DiskProfile {
    /// Whether the disk requires a reservation before a write.
    pub growable: bool,
    /// The value of `prefill_pays` in the geometry.
    pub prefill_pays: bool,
    /// Typical time of a flush, in microseconds.
    pub flush_us: u64,
    /// Typical time of a read or write, in microseconds.
    pub io_us: u64,
    /// Whether requests start at the first poll of their future, not at the call.
    pub lazy: bool,
    /// Whether no request takes much longer than the typical time.
    pub steady: bool,
    /// Bytes of the buffer pool.
    pub pool_bytes: usize,
    /// Bytes of the memory for results of reads. A larger read takes all of it.
    pub read_pool_bytes: usize,
    /// Defects.
    pub sabotage: DiskSabotage,
}

/// A device, shared between lives.
pub type Device = Arc<Mutex<Platter>>;

struct SimDiskShared {
    device: Device,
    executor: Executor,
    profile: DiskProfile,
    pool: BufPool,
    read_pool: BufPool,
    life: u64,
    stats: Mutex<DiskStats>,
    /// Whether a flush has failed: later flushes fail until the disk is reopened.
    latched: AtomicBool,
}

/// Bytes read, with the disk's memory that they occupy.
struct ReadResult {
    data: Vec<u8>,
    _memory: Bytes,
}

impl AsRef<[u8]> for ReadResult {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// A simulated disk, for one life of the machine.
#[derive(Clone)]
pub struct SimDisk(Arc<SimDiskShared>);

impl SimDisk {
    /// Connects `device` to a machine with the time of `executor`.
    pub fn new(device: Device, executor: Executor, profile: DiskProfile) -> Self {
        let life = device.lock().life;
        let pool = BufPool::new(profile.pool_bytes);
        let read_pool = BufPool::for_results(profile.read_pool_bytes);
        let pool_limit_bytes = (profile.pool_bytes + profile.read_pool_bytes) as u64;
        let stats = DiskStats { pool_limit_bytes, queue_depth: 1 << 20, ..DiskStats::default() };
        Self(Arc::new(SimDiskShared {
            device,
            executor,
            profile,
            pool,
            read_pool,
            life,
            stats: Mutex::new(stats),
            latched: AtomicBool::new(false),
        }))
    }

    /// Sends a request: `start` runs when it starts, `finish` when it completes and answers.
    fn request<S: Send + 'static, T: Send + 'static>(
        &self,
        typical_us: u64,
        start: impl FnOnce(&SimDisk, &mut Platter) -> S + Send + 'static,
        finish: impl FnOnce(&SimDisk, &mut Platter, S) -> io::Result<T> + Send + 'static,
    ) -> IoFuture<T> {
        let disk = self.clone();
        let set_out = move || {
            let (tx, rx) = oneshot::channel();
            let state = {
                let mut platter = disk.0.device.lock();
                if platter.life != disk.0.life {
                    return rx;
                }
                let delay = match platter.hang_ns() {
                    Some(ns) => Duration::from_nanos(ns),
                    None => latency(&mut platter, typical_us, disk.0.profile.steady),
                };
                (start(&disk, &mut platter), delay)
            };
            let (state, delay) = state;
            disk.0.stats.lock().in_flight += 1;
            let executor = disk.0.executor.clone();
            executor.call_after(delay, move || {
                let result = {
                    let mut platter = disk.0.device.lock();
                    if platter.life != disk.0.life {
                        return;
                    }
                    finish(&disk, &mut platter, state)
                };
                let mut stats = disk.0.stats.lock();
                stats.in_flight -= 1;
                stats.errors += u64::from(result.is_err());
                drop(stats);
                let _ = tx.send(result);
            });
            rx
        };
        if self.0.profile.lazy { Box::pin(async move { answer(set_out()).await }) } else { Box::pin(answer(set_out())) }
    }

    fn note(&self, what: &'static str, offset: u64, len: u64, more: u64) {
        self.0.executor.trace().note(self.0.executor.now_ns(), what, "", [offset, len, more]);
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        if !offset.is_multiple_of(BLOCK as u64) || !len.is_multiple_of(BLOCK as u64) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("misaligned: {offset}+{len}")));
        }
        if offset + len > self.0.device.lock().len() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("past the end: {offset}+{len}")));
        }
        Ok(())
    }

    /// Reads, and holds `memory` until the result is dropped. A `kept` result does not count
    /// against the pool.
    fn read_with(&self, memory: AlignedBuf, offset: u64, len: usize, kept: bool) -> IoFuture<Bytes> {
        let us = self.0.profile.io_us + len as u64 / 4096;
        let read = self.request(
            us,
            |_, _| (),
            move |disk, platter, ()| {
                let fate = platter.read_fate();
                disk.note("read", offset, len as u64, fate as u64);
                if fate == Fate::Eio {
                    return Err(io::Error::from_raw_os_error(EIO));
                }
                let mut data = platter.read(offset, len);
                if disk.0.profile.sabotage.flip_on_read && len > 0 && platter.rng.one_in(20) {
                    let at = platter.rng.below(len as u64) as usize;
                    data[at] ^= 1 << platter.rng.below(8);
                    // Not counted as a fault: the variant must be caught without any excuse.
                }
                let mut stats = disk.0.stats.lock();
                stats.reads += 1;
                stats.read_bytes += len as u64;
                Ok((data, memory))
            },
        );
        // In the task that reads, which then holds the memory.
        Box::pin(async move {
            let (data, memory) = read.await?;
            let memory = if kept { memory.keep() } else { memory.freeze() };
            Ok(Bytes::from_owner(ReadResult { data, _memory: memory }))
        })
    }

    fn read_from_pool(&self, offset: u64, len: usize, kept: bool) -> IoFuture<Bytes> {
        if let Err(error) = self.check(offset, len as u64) {
            return failed(error);
        }
        let pool = self.0.read_pool.clone();
        let share = if pool.fits(len) { len } else { pool.limit_bytes() };
        if let Some(memory) = pool.try_get(share) {
            return self.read_with(memory, offset, len, kept);
        }
        let disk = self.clone();
        Box::pin(async move {
            let memory = pool.get(share).await;
            disk.read_with(memory, offset, len, kept).await
        })
    }

    fn write_us(&self, len: usize) -> u64 {
        self.0.profile.io_us + len as u64 / 4096
    }

    fn flush_after(&self, early: bool) -> IoFuture<()> {
        let skip = self.0.profile.sabotage.skip_flush;
        let flush = self.request(
            self.0.profile.flush_us,
            |_, platter| platter.flush_mark(),
            move |disk, platter, mark| {
                let fate = if skip { Fate::Lost } else { platter.flush_fate() };
                platter.finish_flush(mark, fate);
                disk.0.stats.lock().flushes += 1;
                disk.note("flush", mark, 0, fate as u64);
                let failed = disk.0.latched.fetch_or(fate == Fate::Eio, SeqCst) || fate == Fate::Eio;
                if failed { Err(io::Error::from_raw_os_error(EIO)) } else { Ok(()) }
            },
        );
        if early {
            // The flush continues in the background; its result is dropped.
            self.0.executor.env().spawn("early flush", async move {
                let _ = flush.await;
            });
            return Box::pin(std::future::ready(Ok(())));
        }
        flush
    }
}

/// Most requests take about the typical time; on a disk that is not `steady`, a few take far
/// longer.
fn latency(platter: &mut Platter, typical_us: u64, steady: bool) -> Duration {
    let rng = &mut platter.rng;
    let ns = typical_us * 1000;
    let ns = match rng.below(64) {
        0 if !steady => ns * rng.range(5, 40),
        1..=8 if !steady => ns * rng.range(1, 4),
        _ => ns / 2 + rng.below(ns + 1),
    };
    Duration::from_nanos(ns)
}

async fn answer<T>(rx: oneshot::Receiver<io::Result<T>>) -> io::Result<T> {
    match rx.await {
        Ok(result) => result,
        // After a power cut, the waiting task is never polled again.
        Err(_) => std::future::pending().await,
    }
}

fn failed<T: Send + 'static>(error: io::Error) -> IoFuture<T> {
    Box::pin(std::future::ready(Err(error)))
}

impl Disk for SimDisk {
    fn geometry(&self) -> Geometry {
        Geometry {
            capacity_bytes: self.0.device.lock().capacity_bytes(),
            growable: self.0.profile.growable,
            prefill_pays: self.0.profile.prefill_pays,
            align_bytes: 512,
            max_io_bytes: 1 << 20,
            zones: None,
            cache: CacheClaim::Unknown,
        }
    }

    fn len(&self) -> u64 {
        self.0.device.lock().len()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        self.read_from_pool(offset, len, false)
    }

    fn read_kept(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        self.read_from_pool(offset, len, true)
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        if let Err(error) = self.check(offset, data.len() as u64) {
            return failed(error);
        }
        let len = data.len();
        self.request(
            self.write_us(len),
            move |_, platter| (platter.start_write(offset, &data), data),
            move |disk, platter, (id, data)| {
                let fate = platter.write_fate();
                platter.finish_write(id, fate);
                // The driver holds the buffer until here.
                drop(data);
                disk.note("write", offset, len as u64, fate as u64);
                let mut stats = disk.0.stats.lock();
                stats.writes += 1;
                stats.write_bytes += len as u64;
                if fate == Fate::Eio { Err(io::Error::from_raw_os_error(EIO)) } else { Ok(()) }
            },
        )
    }

    fn flush(&self) -> IoFuture<()> {
        self.flush_after(false)
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let write = self.write(offset, data);
        let disk = self.clone();
        let early = self.0.profile.sabotage.early_ack;
        let both = async move {
            write.await?;
            disk.flush_after(early).await
        };
        if self.0.profile.lazy {
            return Box::pin(both);
        }
        // The request continues even if its future is dropped.
        let (tx, rx) = oneshot::channel();
        self.0.executor.env().spawn("disk", async move {
            let _ = tx.send(both.await);
        });
        Box::pin(answer(rx))
    }

    fn reopen(&self) -> IoFuture<()> {
        let disk = self.clone();
        Box::pin(async move {
            disk.0.latched.store(false, SeqCst);
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        if let Err(error) = self.check(offset, len) {
            return failed(error);
        }
        self.request(
            self.0.profile.io_us,
            |_, _| (),
            move |disk, platter, ()| {
                platter.discard(offset, len);
                disk.note("discard", offset, len, 0);
                Ok(())
            },
        )
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        let growable = self.0.profile.growable;
        self.request(
            self.0.profile.flush_us,
            |_, _| (),
            move |disk, platter, ()| {
                let done = end <= platter.len() || (growable && platter.grow(end));
                disk.note("reserve", end, 0, u64::from(!done));
                if done { Ok(()) } else { Err(io::Error::from_raw_os_error(ENOSPC)) }
            },
        )
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        let pool = self.0.pool.clone();
        Box::pin(async move { pool.get(capacity).await })
    }

    fn stats(&self) -> DiskStats {
        let used = self.0.pool.used_bytes() + self.0.read_pool.used_bytes();
        DiskStats { pool_used_bytes: used as u64, ..*self.0.stats.lock() }
    }

    fn describe(&self) -> String {
        "simulated disk".to_owned()
    }
}

#[cfg(test)]
mod tests;
