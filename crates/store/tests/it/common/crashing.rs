//! A disk that stops in the middle of an operation.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use steadfast_disk::{AlignedBuf, Disk, DiskStats, Geometry, IoFuture};
use steadfast_flow::BoxFuture;

/// A disk that stops for good, together with others, after a number of changes: later changes never
/// happened.
pub struct Crashing {
    pub disk: Arc<dyn Disk>,
    pub left: Arc<AtomicI64>,
}

impl Crashing {
    fn run<T: Send + 'static>(&self, work: IoFuture<T>) -> IoFuture<T> {
        if self.left.fetch_sub(1, Ordering::SeqCst) > 0 {
            return work;
        }
        Box::pin(async { Err(io::Error::other("crashed")) })
    }
}

impl Disk for Crashing {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        self.disk.read(offset, len)
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.run(self.disk.write(offset, data))
    }

    fn flush(&self) -> IoFuture<()> {
        self.run(self.disk.flush())
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.run(self.disk.write_flush(offset, data))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.run(self.disk.discard(offset, len))
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        self.run(self.disk.reserve(end))
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        self.disk.buffer(capacity)
    }

    fn stats(&self) -> DiskStats {
        self.disk.stats()
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }
}
