//! A disk that is slower than it is, over any disk.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_flow::{BoxFuture, Env};

use crate::{AlignedBuf, Disk, DiskStats, Geometry, IoFuture, Latencies};

/// What is added to each operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slowness {
    /// Added to every read.
    pub read: Duration,
    /// Added to every write.
    pub write: Duration,
    /// Added to every flush. Flushes wait for one another, as a device's do.
    pub flush: Duration,
    /// Reads and writes together move no more than this; `None` for no limit.
    pub bytes_per_s: Option<u64>,
    /// Wait with a thread's sleep instead of the environment's timer, which counts in milliseconds. For measurements.
    pub precise: bool,
}

#[derive(Default)]
struct State {
    slowness: Slowness,
    /// When the link is free again.
    link_free: Duration,
    /// When the flush before is over.
    flush_free: Duration,
}

/// A disk that waits before it does what the disk below does.
pub struct Slow {
    disk: Arc<dyn Disk>,
    env: Env,
    state: Arc<Mutex<State>>,
}

/// The handle with which the slowness is changed while the disk is in use. Cloning shares it.
#[derive(Clone)]
pub struct SlowHandle(Arc<Mutex<State>>);

impl SlowHandle {
    /// From now on: operations that wait already are not affected, and later ones do not wait for them.
    pub fn set(&self, slowness: Slowness) {
        *self.0.lock() = State { slowness, ..State::default() };
    }

    /// What is in force.
    pub fn get(&self) -> Slowness {
        self.0.lock().slowness
    }
}

#[derive(Clone, Copy)]
enum What {
    Read(usize),
    Write(usize),
    Flush,
    WriteFlush(usize),
}

impl Slow {
    /// Wraps `disk`.
    pub fn new(disk: Arc<dyn Disk>, env: Env, slowness: Slowness) -> Self {
        Self { disk, env, state: Arc::new(Mutex::new(State { slowness, ..State::default() })) }
    }

    /// A handle to change the slowness later.
    pub fn handle(&self) -> SlowHandle {
        SlowHandle(self.state.clone())
    }

    /// Waits as long as `what` takes more, from the first poll on.
    fn wait(&self, what: What) -> impl Future<Output = ()> + Send + 'static {
        let (env, state) = (self.env.clone(), self.state.clone());
        async move {
            let now = env.now();
            let (until, precise) = {
                let mut state = state.lock();
                (state.end(now, what), state.slowness.precise)
            };
            let left = until.saturating_sub(now);
            if left.is_zero() {
            } else if precise {
                #[allow(clippy::disallowed_methods, reason = "on a thread for blocking work")]
                env.blocking(move || std::thread::sleep(left)).await;
            } else {
                env.sleep(left).await;
            }
        }
    }
}

impl State {
    /// When an operation that begins now may begin below.
    fn end(&mut self, now: Duration, what: What) -> Duration {
        let slowness = self.slowness;
        let (latency, bytes, flushes) = match what {
            What::Read(bytes) => (slowness.read, bytes, false),
            What::Write(bytes) => (slowness.write, bytes, false),
            What::Flush => (Duration::ZERO, 0, true),
            What::WriteFlush(bytes) => (slowness.write, bytes, true),
        };
        let mut at = now;
        if let Some(rate) = slowness.bytes_per_s.filter(|_| bytes > 0) {
            let nanos = bytes as u128 * 1_000_000_000 / u128::from(rate.max(1));
            at = self.link_free.max(now) + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            self.link_free = at;
        }
        at += latency;
        if flushes {
            at = self.flush_free.max(at) + slowness.flush;
            self.flush_free = at;
        }
        at
    }
}

impl Disk for Slow {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        let (wait, disk) = (self.wait(What::Read(len)), self.disk.clone());
        Box::pin(async move {
            wait.await;
            disk.read(offset, len).await
        })
    }

    fn label_places(&self) -> Vec<[u64; 2]> {
        self.disk.label_places()
    }

    fn copies(&self) -> u32 {
        self.disk.copies()
    }

    fn read_copy(&self, copy: u32, offset: u64, len: usize) -> IoFuture<Bytes> {
        let (wait, disk) = (self.wait(What::Read(len)), self.disk.clone());
        Box::pin(async move {
            wait.await;
            disk.read_copy(copy, offset, len).await
        })
    }

    fn heal(&self, offset: u64, good: Bytes) -> IoFuture<u32> {
        let (wait, disk) = (self.wait(What::Write(good.len())), self.disk.clone());
        Box::pin(async move {
            wait.await;
            disk.heal(offset, good).await
        })
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let (wait, disk) = (self.wait(What::Write(data.len())), self.disk.clone());
        Box::pin(async move {
            wait.await;
            disk.write(offset, data).await
        })
    }

    fn flush(&self) -> IoFuture<()> {
        let (wait, disk) = (self.wait(What::Flush), self.disk.clone());
        Box::pin(async move {
            wait.await;
            disk.flush().await
        })
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let (wait, disk) = (self.wait(What::WriteFlush(data.len())), self.disk.clone());
        Box::pin(async move {
            wait.await;
            disk.write_flush(offset, data).await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.disk.discard(offset, len)
    }

    /// Takes a flush more where it grows the disk, as that is made durable.
    fn reserve(&self, end: u64) -> IoFuture<()> {
        if end <= self.disk.len() {
            return self.disk.reserve(end);
        }
        let (wait, disk) = (self.wait(What::Flush), self.disk.clone());
        Box::pin(async move {
            wait.await;
            disk.reserve(end).await
        })
    }

    fn reopen(&self) -> IoFuture<()> {
        self.disk.reopen()
    }

    fn zone(&self, offset: u64) -> Option<crate::Zone> {
        self.disk.zone(offset)
    }

    fn reset_zone(&self, offset: u64) -> IoFuture<()> {
        self.disk.reset_zone(offset)
    }

    fn finish_zone(&self, offset: u64) -> IoFuture<()> {
        self.disk.finish_zone(offset)
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        self.disk.buffer(capacity)
    }

    fn stats(&self) -> DiskStats {
        self.disk.stats()
    }

    fn latencies(&self) -> Option<Latencies> {
        self.disk.latencies()
    }

    fn describe(&self) -> String {
        format!("slowed {}", self.disk.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_link_and_the_flushes_are_shared() {
        let slowness = Slowness { write: 2 * MS, flush: 10 * MS, bytes_per_s: Some(1_000_000), ..Slowness::default() };
        let mut state = State { slowness, ..State::default() };
        assert_eq!(state.end(100 * MS, What::Write(5_000)), 107 * MS);
        assert_eq!(state.end(100 * MS, What::Write(5_000)), 112 * MS, "behind the first");
        assert_eq!(state.end(100 * MS, What::Read(5_000)), 115 * MS, "reads share the link");
        assert_eq!(state.end(100 * MS, What::Flush), 110 * MS);
        assert_eq!(state.end(101 * MS, What::Flush), 120 * MS, "one flush at a time");
        assert_eq!(state.end(200 * MS, What::WriteFlush(5_000)), 217 * MS, "the past is forgotten");
    }
}
