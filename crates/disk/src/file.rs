//! A regular file or a block device as a disk.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::join_all;
use steadfast_flow::BoxFuture;
use tokio::sync::{Mutex, Semaphore, oneshot};

use crate::request::{Counters, Driver, Op, ReadTarget, Request};
use crate::threads::Threads;
use crate::uring::Uring;
use crate::zones::ZonedDevice;
use crate::{AlignedBuf, BLOCK, BufPool, Disk, DiskOptions, DiskStats, Geometry, IoFuture, IoMode, grow, open};

/// Memory for copies of unaligned data, in pieces of `max_io_bytes`.
const COPY_PIECES: usize = 8;

/// A regular file or a block device, driven with direct I/O. Dropping it waits for the requests in flight.
pub struct FileDisk(Arc<Inner>);

struct Inner {
    /// Dropped first: it ends the threads, and with them the last users of the file.
    driver: Box<dyn Driver>,
    file: Arc<File>,
    path: PathBuf,
    device: bool,
    punch_holes: bool,
    read_only: bool,
    geometry: Geometry,
    len: AtomicU64,
    bulk: Arc<Semaphore>,
    commit: Arc<Semaphore>,
    depth: usize,
    pool: BufPool,
    read_pool: BufPool,
    copy_pool: BufPool,
    counters: Arc<Counters>,
    /// Held while the file grows or a range is discarded.
    reshape: Arc<Mutex<()>>,
}

impl FileDisk {
    /// Opens `path`, a regular file or a block device, for direct I/O, with an exclusive lock on it.
    ///
    /// # Errors
    /// `NotFound` when it is not there and must not be created; `ResourceBusy` when another process has it;
    /// `Unsupported` when direct I/O is refused (or io_uring, where it was asked for by name); else what the system says.
    pub fn open(path: impl AsRef<Path>, options: &DiskOptions) -> io::Result<Arc<dyn Disk>> {
        let opened = open::open(path.as_ref(), options)?;
        let file = Arc::new(opened.file);
        if !opened.device
            && !options.read_only
            && opened.len > 0
            && let Err(error) = grow::fill_holes(&file, opened.len)
        {
            // Reads must go on, and whoever writes will be told.
            tracing::warn!(path = %opened.path.display(), %error, "the file has holes that the file system has no room for");
        }
        let (queue_depth, commit_depth) = (options.queue_depth.max(1), options.commit_depth.max(1));
        let driver = start(&file, options.io, queue_depth, commit_depth)?;
        let inner = Inner {
            driver,
            file,
            path: opened.path,
            device: opened.device,
            punch_holes: options.punch_holes,
            read_only: options.read_only,
            geometry: opened.geometry,
            len: AtomicU64::new(opened.len),
            bulk: Arc::new(Semaphore::new(queue_depth)),
            commit: Arc::new(Semaphore::new(commit_depth)),
            depth: queue_depth + commit_depth,
            pool: BufPool::new(options.pool_bytes),
            read_pool: BufPool::new(options.read_pool_bytes),
            copy_pool: BufPool::new(opened.geometry.max_io_bytes * COPY_PIECES),
            counters: Arc::default(),
            reshape: Arc::default(),
        };
        let file = inner.file.clone();
        let disk = Self(Arc::new(inner));
        tracing::info!(disk = disk.describe(), bytes = disk.len(), cache = ?opened.geometry.cache, "disk open");
        Ok(match opened.zones {
            Some(zones) => Arc::new(ZonedDevice::new(Arc::new(disk), file, zones)),
            None => Arc::new(disk),
        })
    }
}

/// Starts the driver that was asked for, or the best that the kernel allows.
fn start(file: &Arc<File>, mode: IoMode, queue_depth: usize, commit_depth: usize) -> io::Result<Box<dyn Driver>> {
    if mode != IoMode::Threads {
        match Uring::start(file, queue_depth, commit_depth) {
            Ok(uring) => return Ok(Box::new(uring)),
            Err(error) if mode == IoMode::Auto => {
                tracing::warn!(%error, "io_uring is refused here (by the kernel, a container or a sysctl); using threads");
            }
            Err(error) => {
                let text = format!("io_uring is refused here: {error}; use threads, or auto");
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
        }
    }
    Ok(Box::new(Threads::start(file, queue_depth, commit_depth)?))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Change,
}

impl Inner {
    /// Waits for a slot, gives the request to the driver and waits for the answer.
    async fn run(&self, offset: u64, op: Op) -> io::Result<()> {
        let slots = if op.commits() { &self.commit } else { &self.bulk };
        let slot = slots.clone().acquire_owned().await.map_err(|_| ended())?;
        let (done, answer) = oneshot::channel();
        self.driver.submit(Request::new(op, offset, done, slot, self.counters.clone()));
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Refuses what the contract of [`Disk`] forbids.
    fn check(&self, access: Access, offset: u64, len: u64) -> io::Result<()> {
        let block = BLOCK as u64;
        if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            let text = format!("{len} bytes at offset {offset}: not multiples of {BLOCK}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if access == Access::Change && self.read_only {
            return Err(read_only());
        }
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            let text = format!("{len} bytes at offset {offset}: past the end of the disk at {}", self.len());
            let kind = if access == Access::Read { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::InvalidInput };
            return Err(io::Error::new(kind, text));
        }
        Ok(())
    }

    async fn read(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.check(Access::Read, offset, len as u64)?;
        if len == 0 {
            return Ok(Bytes::new());
        }
        if !self.read_pool.fits(len) {
            let text = format!("a read of {len} bytes is over the read pool of {}", self.read_pool.limit_bytes());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let target = ReadTarget::new(self.read_pool.get(len).await, len);
        let piece = self.geometry.max_io_bytes;
        if len <= piece {
            self.run(offset, Op::Read { target: target.clone(), start: 0, len }).await?;
        } else {
            let pieces = (0..len).step_by(piece).map(|start| {
                let op = Op::Read { target: target.clone(), start, len: piece.min(len - start) };
                self.run(offset + start as u64, op)
            });
            join_all(pieces).await.into_iter().collect::<io::Result<()>>()?;
        }
        target.into_inner().map(AlignedBuf::freeze).ok_or_else(ended)
    }

    async fn write(&self, offset: u64, data: Bytes, flush: bool) -> io::Result<()> {
        self.check(Access::Change, offset, data.len() as u64)?;
        if data.len() <= self.geometry.max_io_bytes && !data.is_empty() {
            return self.write_piece(offset, data, flush).await;
        }
        let piece = self.geometry.max_io_bytes;
        let pieces = (0..data.len()).step_by(piece).map(|start| {
            self.write_piece(offset + start as u64, data.slice(start..data.len().min(start + piece)), false)
        });
        join_all(pieces).await.into_iter().collect::<io::Result<()>>()?;
        if flush { self.run(0, Op::Flush).await } else { Ok(()) }
    }

    async fn write_piece(&self, offset: u64, data: Bytes, flush: bool) -> io::Result<()> {
        let data = if (data.as_ptr() as usize).is_multiple_of(self.geometry.align_bytes) {
            data
        } else {
            self.counters.copied_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
            let mut copy = self.copy_pool.get(data.len()).await;
            copy.put(&data);
            copy.freeze()
        };
        self.run(offset, Op::Write { data, flush }).await
    }

    fn reserve(&self, end: u64) -> io::Result<()> {
        if self.read_only {
            return Err(read_only());
        }
        let from = self.len();
        let Some(end) = end.checked_next_multiple_of(BLOCK as u64).filter(|end| *end <= self.geometry.capacity_bytes)
        else {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        };
        if end > from {
            grow::grow(&self.file, from, end).inspect_err(|error| {
                // It may have been the sync that failed, and that is a flush of this file like any other.
                if error.kind() != io::ErrorKind::StorageFull {
                    self.counters.latch(error);
                }
            })?;
            self.len.store(end, Ordering::Release);
        }
        Ok(())
    }

    /// Runs `work`, which blocks, on a thread of its own, one at a time. It goes on when the caller goes away.
    async fn reshape(self: Arc<Self>, work: impl FnOnce(&Self) -> io::Result<()> + Send + 'static) -> io::Result<()> {
        let guard = self.reshape.clone().lock_owned().await;
        let (done, answer) = oneshot::channel();
        std::thread::Builder::new().name("disk-reshape".into()).spawn(move || {
            let number = self.counters.changing.begin();
            let result = work(&self);
            self.counters.changing.end(number);
            drop((self, guard));
            // The caller may have gone: then nobody wants the answer.
            let _ = done.send(result);
        })?;
        answer.await.unwrap_or_else(|_| Err(ended()))
    }
}

fn ended() -> io::Error {
    io::Error::other("the disk's driver has ended")
}

fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the disk was opened to be read only")
}

impl Disk for FileDisk {
    fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        let inner = self.0.clone();
        Box::pin(async move { inner.read(offset, len).await })
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { inner.write(offset, data, false).await })
    }

    fn flush(&self) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { inner.run(0, Op::Flush).await })
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { inner.write(offset, data, true).await })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move {
            inner.check(Access::Change, offset, len)?;
            match (inner.device, inner.punch_holes) {
                _ if len == 0 => Ok(()),
                (true, _) => inner.reshape(move |disk| grow::discard(&disk.file, offset, len)).await,
                (false, true) => inner.reshape(move |disk| grow::punch(&disk.file, offset, len)).await,
                (false, false) => Ok(()),
            }
        })
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move {
            if end <= inner.len() {
                return Ok(());
            }
            inner.reshape(move |disk| disk.reserve(end)).await
        })
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        let pool = self.0.pool.clone();
        Box::pin(async move { pool.get(capacity).await })
    }

    fn stats(&self) -> DiskStats {
        let Inner { counters, bulk, commit, depth, pool, read_pool, copy_pool, .. } = &*self.0;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let pools = [pool, read_pool, copy_pool];
        DiskStats {
            reads: get(&counters.reads),
            read_bytes: get(&counters.read_bytes),
            writes: get(&counters.writes),
            write_bytes: get(&counters.write_bytes),
            flushes: get(&counters.flushes),
            flush_us: get(&counters.flush_us),
            errors: get(&counters.errors),
            in_flight: (depth - bulk.available_permits() - commit.available_permits()) as u64,
            queue_depth: *depth as u64,
            pool_used_bytes: pools.iter().map(|pool| pool.used_bytes() as u64).sum(),
            pool_limit_bytes: pools.iter().map(|pool| pool.limit_bytes() as u64).sum(),
            copied_bytes: get(&counters.copied_bytes),
            oldest_read_ms: counters.reading.oldest_ms(),
            oldest_write_ms: counters.changing.oldest_ms(),
        }
    }

    fn describe(&self) -> String {
        let kind = if self.0.device { "block device" } else { "file" };
        format!("{} ({kind}, direct I/O by {})", self.0.path.display(), self.0.driver.describe())
    }
}

/// Has a write beyond the process's limit on the size of files (`ulimit -f`) fail as any other write, with `EFBIG`: by default the kernel ends
/// the process then, without a word.
pub fn outlive_file_size_limit() {
    // SAFETY: no handler is installed, the signal is only ignored; nobody else in the process uses it.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
