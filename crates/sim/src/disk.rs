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
    life: u64,
    stats: Mutex<DiskStats>,
    /// Whether a flush has failed: later flushes fail until the disk is reopened.
    latched: AtomicBool,
}

/// A simulated disk, for one life of the machine.
#[derive(Clone)]
pub struct SimDisk(Arc<SimDiskShared>);

impl SimDisk {
    /// Connects `device` to a machine with the time of `executor`.
    pub fn new(device: Device, executor: Executor, profile: DiskProfile) -> Self {
        let life = device.lock().life;
        let pool = BufPool::new(profile.pool_bytes);
        let stats =
            DiskStats { pool_limit_bytes: profile.pool_bytes as u64, queue_depth: 1 << 20, ..DiskStats::default() };
        Self(Arc::new(SimDiskShared {
            device,
            executor,
            profile,
            pool,
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
        if let Err(error) = self.check(offset, len as u64) {
            return failed(error);
        }
        let us = self.0.profile.io_us + len as u64 / 4096;
        self.request(
            us,
            |_, _| (),
            move |disk, platter, ()| {
                let fate = platter.read_fate();
                disk.note("read", offset, len as u64, fate as u64);
                if fate == Fate::Eio {
                    return Err(io::Error::from_raw_os_error(EIO));
                }
                let mut data = platter.read(offset, len);
                if disk.0.profile.sabotage.flip_on_read && !data.is_empty() && platter.rng.one_in(20) {
                    let at = platter.rng.below(data.len() as u64) as usize;
                    data[at] ^= 1 << platter.rng.below(8);
                    // Not counted as a fault: the variant must be caught without any excuse.
                }
                let mut stats = disk.0.stats.lock();
                stats.reads += 1;
                stats.read_bytes += len as u64;
                Ok(Bytes::from(data))
            },
        )
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
        DiskStats { pool_used_bytes: self.0.pool.used_bytes() as u64, ..*self.0.stats.lock() }
    }

    fn describe(&self) -> String {
        "simulated disk".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;
    use crate::executor::End;
    use crate::platter::{FaultRates, SECTOR};
    use crate::rng::Rng;
    use crate::trace::Trace;

    const MIB: u64 = 1 << 20;

    fn profile() -> DiskProfile {
        DiskProfile {
            growable: false,
            prefill_pays: false,
            flush_us: 500,
            io_us: 50,
            lazy: false,
            steady: false,
            pool_bytes: 1 << 20,
            sabotage: DiskSabotage::default(),
        }
    }

    /// Runs `test` on a disk of 1 MiB, then cuts the power; returns what is on the medium.
    fn after_cut<F>(seed: u64, profile: DiskProfile, rates: FaultRates, test: impl FnOnce(SimDisk) -> F) -> Vec<u8>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut rng = Rng::new(seed);
        let device: Device = Arc::new(Mutex::new(Platter::new(rng.fork(), MIB, MIB)));
        device.lock().rates = rates;
        device.lock().faults_left = 1;
        let executor = Executor::new(rng.fork(), Duration::ZERO, Trace::new(10, false));
        let disk = SimDisk::new(device.clone(), executor.clone(), profile);
        let end = executor.run(test(disk), 100_000, Duration::from_secs(100));
        assert!(matches!(end, End::Done(())), "{end:?}");
        device.lock().cut();
        executor.shut_down();
        device.lock().peek(0, MIB as usize)
    }

    fn block(byte: u8) -> Bytes {
        Bytes::from(vec![byte; BLOCK])
    }

    #[test]
    fn flushed_writes_survive_and_others_tear_at_sectors() {
        let mut kinds = [0; 3];
        for seed in 0..100 {
            let image = after_cut(seed, profile(), FaultRates::default(), |disk| async move {
                disk.write(0, block(1)).await.expect("written");
                disk.flush().await.expect("flushed");
                disk.write(BLOCK as u64, block(2)).await.expect("written");
                assert_eq!(disk.read(BLOCK as u64, BLOCK).await.expect("read"), block(2));
            });
            assert!(image[..BLOCK].iter().all(|&b| b == 1));
            let sectors: Vec<u8> = image[BLOCK..2 * BLOCK]
                .chunks(SECTOR)
                .map(|sector| {
                    assert!(sector.iter().all(|&b| b == sector[0]), "a sector is whole");
                    sector[0]
                })
                .collect();
            let there = sectors.iter().filter(|&&b| b == 2).count();
            kinds[if there == 0 { 0 } else { 1 + usize::from(there == sectors.len()) }] += 1;
        }
        assert!(kinds.iter().all(|&n| n > 5), "none, torn, all: {kinds:?}");
    }

    #[test]
    fn a_flush_covers_only_what_had_completed_when_it_started() {
        let lost = (0..100)
            .filter(|&seed| {
                let image = after_cut(seed, profile(), FaultRates::default(), |disk| async move {
                    let write = disk.write(0, block(1));
                    disk.flush().await.expect("flushed");
                    write.await.expect("written");
                });
                image[..BLOCK].iter().any(|&b| b != 1)
            })
            .count();
        assert!(lost > 20, "{lost}");
    }

    #[test]
    fn a_later_flushed_write_wins_over_an_earlier_one() {
        for seed in 0..50 {
            let image = after_cut(seed, profile(), FaultRates::default(), |disk| async move {
                disk.write(0, block(1)).await.expect("written");
                disk.write(0, block(2)).await.expect("written");
                disk.flush().await.expect("flushed");
            });
            assert!(image[..BLOCK].iter().all(|&b| b == 2));
        }
    }

    #[test]
    fn a_failed_flush_is_not_made_good_by_the_next() {
        let rates = FaultRates { flush_eio: 1_000_000, ..FaultRates::default() };
        let lost = (0..100)
            .filter(|&seed| {
                let image = after_cut(seed, profile(), rates, |disk| async move {
                    disk.write(0, block(1)).await.expect("written");
                    let error = disk.flush().await.expect_err("fails once");
                    assert_eq!(error.raw_os_error(), Some(EIO));
                    disk.flush().await.expect_err("refused until the disk is reopened");
                    disk.reopen().await.expect("reopened");
                    disk.flush().await.expect("does not cover earlier writes");
                });
                image[..BLOCK].iter().any(|&b| b != 1)
            })
            .count();
        assert!(lost > 50, "{lost}");
    }

    #[test]
    fn sabotage_loses_what_was_acknowledged() {
        for sabotage in [
            DiskSabotage { skip_flush: true, ..DiskSabotage::default() },
            DiskSabotage { early_ack: true, ..DiskSabotage::default() },
        ] {
            let lost = (0..50)
                .filter(|&seed| {
                    let profile = DiskProfile { sabotage, ..profile() };
                    let image = after_cut(seed, profile, FaultRates::default(), |disk| async move {
                        disk.write_flush(0, block(1)).await.expect("flushed");
                    });
                    image[..BLOCK].iter().any(|&b| b != 1)
                })
                .count();
            assert!(lost > 10, "{sabotage:?}: {lost}");
        }
    }

    #[test]
    fn a_growable_disk_needs_a_reservation_and_can_be_full() {
        let mut rng = Rng::new(1);
        let device: Device = Arc::new(Mutex::new(Platter::new(rng.fork(), MIB, 0)));
        device.lock().room_bytes = MIB / 2;
        let executor = Executor::new(rng.fork(), Duration::ZERO, Trace::new(10, false));
        let disk = SimDisk::new(device.clone(), executor.clone(), DiskProfile { growable: true, ..profile() });
        let end = executor.run(
            async move {
                assert_eq!(
                    disk.write(0, block(1)).await.expect_err("no space yet").kind(),
                    io::ErrorKind::UnexpectedEof
                );
                disk.reserve(MIB / 2).await.expect("space");
                disk.write(0, block(1)).await.expect("written");
                assert_eq!(disk.reserve(MIB).await.expect_err("full").kind(), io::ErrorKind::StorageFull);
                assert_eq!(disk.len(), MIB / 2);
            },
            1000,
            Duration::from_secs(10),
        );
        assert!(matches!(end, End::Done(())), "{end:?}");
    }
}
