//! A disk wrapper that slows down the disk below.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_flow::{BoxFuture, Env};

use crate::{AlignedBuf, Disk, DiskStats, Geometry, IoFuture, Latencies};

/// The delays added to each operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slowness {
    /// Delay of every read.
    pub read: Duration,
    /// Delay of every write.
    pub write: Duration,
    /// Delay of every flush. Flushes run one at a time, like those of a device.
    pub flush: Duration,
    /// Limit of reads and writes together, in bytes per second; `None` for no limit.
    pub bytes_per_s: Option<u64>,
    /// Whether to wait with a thread's sleep instead of the environment's timer, which counts in
    /// milliseconds. For measurements.
    pub precise: bool,
}

#[derive(Default)]
struct SlowState {
    slowness: Slowness,
    /// When the link is free again.
    link_free: Duration,
    /// When the previous flush ends.
    flush_free: Duration,
}

/// A disk wrapper that waits before it forwards to the disk below.
pub struct Slow {
    disk: Arc<dyn Disk>,
    env: Env,
    state: Arc<Mutex<SlowState>>,
}

/// The handle to change the slowness while the disk is in use. Clones share it.
#[derive(Clone)]
pub struct SlowHandle(Arc<Mutex<SlowState>>);

impl SlowHandle {
    /// Sets the slowness for later operations. Waiting operations are not affected, and later ones
    /// do not wait for them.
    pub fn set(&self, slowness: Slowness) {
        *self.0.lock() = SlowState { slowness, ..SlowState::default() };
    }

    /// The current slowness.
    pub fn get(&self) -> Slowness {
        self.0.lock().slowness
    }
}

#[derive(Clone, Copy)]
enum Operation {
    Read(usize),
    Write(usize),
    Flush,
    WriteFlush(usize),
}

impl Slow {
    /// Wraps `disk`.
    pub fn new(disk: Arc<dyn Disk>, env: Env, slowness: Slowness) -> Self {
        Self { disk, env, state: Arc::new(Mutex::new(SlowState { slowness, ..SlowState::default() })) }
    }

    /// A handle to change the slowness later.
    pub fn handle(&self) -> SlowHandle {
        SlowHandle(self.state.clone())
    }

    /// Waits for the additional time of `operation`, from the first poll on.
    fn wait(&self, operation: Operation) -> impl Future<Output = ()> + Send + 'static {
        let (env, state) = (self.env.clone(), self.state.clone());
        async move {
            let now = env.now();
            let (until, precise) = {
                let mut state = state.lock();
                (state.end(now, operation), state.slowness.precise)
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

impl SlowState {
    /// When an operation that begins now may start on the disk below.
    fn end(&mut self, now: Duration, operation: Operation) -> Duration {
        let slowness = self.slowness;
        let (latency, bytes, flushes) = match operation {
            Operation::Read(bytes) => (slowness.read, bytes, false),
            Operation::Write(bytes) => (slowness.write, bytes, false),
            Operation::Flush => (Duration::ZERO, 0, true),
            Operation::WriteFlush(bytes) => (slowness.write, bytes, true),
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
        let (wait, disk) = (self.wait(Operation::Read(len)), self.disk.clone());
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
        let (wait, disk) = (self.wait(Operation::Read(len)), self.disk.clone());
        Box::pin(async move {
            wait.await;
            disk.read_copy(copy, offset, len).await
        })
    }

    fn heal(&self, offset: u64, good: Bytes) -> IoFuture<u32> {
        let (wait, disk) = (self.wait(Operation::Write(good.len())), self.disk.clone());
        Box::pin(async move {
            wait.await;
            disk.heal(offset, good).await
        })
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let (wait, disk) = (self.wait(Operation::Write(data.len())), self.disk.clone());
        Box::pin(async move {
            wait.await;
            disk.write(offset, data).await
        })
    }

    fn flush(&self) -> IoFuture<()> {
        let (wait, disk) = (self.wait(Operation::Flush), self.disk.clone());
        Box::pin(async move {
            wait.await;
            disk.flush().await
        })
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let (wait, disk) = (self.wait(Operation::WriteFlush(data.len())), self.disk.clone());
        Box::pin(async move {
            wait.await;
            disk.write_flush(offset, data).await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.disk.discard(offset, len)
    }

    /// A reservation that grows the disk also takes the time of a flush, because it is made
    /// durable.
    fn reserve(&self, end: u64) -> IoFuture<()> {
        if end <= self.disk.len() {
            return self.disk.reserve(end);
        }
        let (wait, disk) = (self.wait(Operation::Flush), self.disk.clone());
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
        let mut state = SlowState { slowness, ..SlowState::default() };
        assert_eq!(state.end(100 * MS, Operation::Write(5_000)), 107 * MS);
        assert_eq!(state.end(100 * MS, Operation::Write(5_000)), 112 * MS, "behind the first");
        assert_eq!(state.end(100 * MS, Operation::Read(5_000)), 115 * MS, "reads share the link");
        assert_eq!(state.end(100 * MS, Operation::Flush), 110 * MS);
        assert_eq!(state.end(101 * MS, Operation::Flush), 120 * MS, "one flush at a time");
        assert_eq!(state.end(200 * MS, Operation::WriteFlush(5_000)), 217 * MS, "the past is forgotten");
    }
}
