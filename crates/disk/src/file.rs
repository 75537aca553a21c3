//! A regular file or a block device as a disk.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use parking_lot::RwLock;
use steadfast_flow::{BoxFuture, HistogramCounter};
use tokio::sync::{Mutex, Semaphore, oneshot};

use crate::request::{Counters, Driver, Op, ReadTarget, Request};
use crate::threads::Threads;
use crate::uring::Uring;
use crate::zones::{ZonedDevice, Zones};
use crate::{
    AlignedBuf, BLOCK, BufPool, Disk, DiskOptions, DiskStats, Geometry, IoFuture, IoMode, Latencies, grow, open,
};

/// Number of pieces of `max_io_bytes` in the pool for copies of unaligned data.
const COPY_PIECES: usize = 8;

/// A regular file or a block device, driven with direct I/O. Dropping it waits for the requests in
/// flight.
pub struct FileDisk(Arc<FileDiskInner>);

/// The open file and its driver. Dropping it waits for the requests in flight.
struct Running {
    /// Dropped first: that ends the threads, and with them the last users of the file.
    driver: Box<dyn Driver>,
    file: Arc<File>,
    bulk: Arc<Semaphore>,
    commit: Arc<Semaphore>,
}

struct FileDiskInner {
    /// `None` during a reopening, and after one that failed.
    running: RwLock<Option<Running>>,
    path: PathBuf,
    options: DiskOptions,
    device: bool,
    geometry: Geometry,
    len: AtomicU64,
    depth: usize,
    pool: BufPool,
    read_pool: BufPool,
    copy_pool: BufPool,
    counters: Arc<Counters>,
    /// Held while the file grows, a range is discarded, or the disk is reopened.
    reshape: Arc<Mutex<()>>,
}

impl FileDisk {
    /// Opens `path`, a regular file or a block device, for direct I/O, with an exclusive lock.
    ///
    /// # Errors
    /// `NotFound` when it does not exist and must not be created. `ResourceBusy` when another
    /// process has it open. `Unsupported` when direct I/O is refused, or io_uring where the options
    /// require it. Else the operating system's error.
    pub fn open(path: impl AsRef<Path>, options: &DiskOptions) -> io::Result<Arc<dyn Disk>> {
        let (inner, zones) = Self::open_inner(path.as_ref(), options)?;
        let zones = zones.map(|zones| Ok::<_, io::Error>((inner.file()?, zones))).transpose()?;
        let (cache, disk) = (inner.geometry.cache, Self(Arc::new(inner)));
        tracing::info!(disk = disk.describe(), bytes = disk.len(), ?cache, "disk open");
        Ok(match zones {
            Some((file, zones)) => Arc::new(ZonedDevice::new(Arc::new(disk), file, zones)),
            None => Arc::new(disk),
        })
    }

    fn open_inner(path: &Path, options: &DiskOptions) -> io::Result<(FileDiskInner, Option<Zones>)> {
        let (running, opened) = Running::start(path, options)?;
        let inner = FileDiskInner {
            running: RwLock::new(Some(running)),
            path: opened.path,
            options: options.clone(),
            device: opened.device,
            geometry: opened.geometry,
            len: AtomicU64::new(opened.len),
            depth: options.queue_depth.max(1) + options.commit_depth.max(1),
            pool: BufPool::new(options.pool_bytes),
            read_pool: BufPool::for_results(options.read_pool_bytes),
            copy_pool: BufPool::new(opened.geometry.max_io_bytes * COPY_PIECES),
            counters: Arc::default(),
            reshape: Arc::default(),
        };
        Ok((inner, opened.zones))
    }
}

/// The properties of an opened file or device.
struct FileProperties {
    path: PathBuf,
    device: bool,
    len: u64,
    geometry: Geometry,
    zones: Option<Zones>,
}

impl Running {
    /// Opens the file and starts its driver.
    fn start(path: &Path, options: &DiskOptions) -> io::Result<(Self, FileProperties)> {
        let open::Opened { file, path, device, len, geometry, zones } = open::open(path, options)?;
        let file = Arc::new(file);
        if !device
            && !options.read_only
            && len > 0
            && let Err(error) = grow::fill_holes(&file, len)
        {
            // Reads must continue, and a writer gets the error.
            tracing::warn!(path = %path.display(), %error, "the file has holes, and the file system has too little free space to fill them");
        }
        let (queue_depth, commit_depth) = (options.queue_depth.max(1), options.commit_depth.max(1));
        let driver = start(&file, options.io, queue_depth, commit_depth)?;
        let (bulk, commit) = (Arc::new(Semaphore::new(queue_depth)), Arc::new(Semaphore::new(commit_depth)));
        Ok((Self { driver, file, bulk, commit }, FileProperties { path, device, len, geometry, zones }))
    }

    /// The number of free request slots.
    fn free(&self) -> usize {
        self.bulk.available_permits() + self.commit.available_permits()
    }
}

/// Starts the required driver, or the best one that the kernel allows.
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

impl FileDiskInner {
    /// Waits for a slot, submits the request to the driver and waits for the result.
    async fn run(&self, offset: u64, op: Op) -> io::Result<()> {
        let commits = op.commits();
        let slots = match &*self.running.read() {
            Some(running) => if commits { &running.commit } else { &running.bulk }.clone(),
            None => return Err(closed()),
        };
        let slot = slots.acquire_owned().await.map_err(|_| ended())?;
        let (done, answer) = oneshot::channel();
        match &*self.running.read() {
            // The slot belongs to this driver: a reopening closes it only after all slots have
            // returned.
            Some(running) => running.driver.submit(Request::new(op, offset, done, slot, self.counters.clone())),
            None => return Err(closed()),
        }
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Refuses requests that violate the contract of [`Disk`].
    fn check(&self, access: Access, offset: u64, len: u64) -> io::Result<()> {
        let block = BLOCK as u64;
        if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            let text = format!("{len} bytes at offset {offset}: not multiples of {BLOCK}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if access == Access::Change && self.options.read_only {
            return Err(read_only());
        }
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            let text = format!("{len} bytes at offset {offset}: past the end of the disk at {}", self.len());
            let kind = if access == Access::Read { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::InvalidInput };
            return Err(io::Error::new(kind, text));
        }
        Ok(())
    }

    /// Reads bytes; `None` for no bytes.
    async fn read(&self, offset: u64, len: usize) -> io::Result<Option<AlignedBuf>> {
        self.check(Access::Read, offset, len as u64)?;
        if len == 0 {
            return Ok(None);
        }
        if !self.read_pool.fits(len) {
            let text = format!("a read of {len} bytes exceeds the read pool of {} bytes", self.read_pool.limit_bytes());
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
        let buffer = target.into_inner().ok_or_else(ended)?;
        assert_eq!(buffer.len(), len, "a read of another length");
        Ok(Some(buffer))
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
        debug_assert!(data.len() <= self.geometry.max_io_bytes, "a piece of {} bytes", data.len());
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
        if self.options.read_only {
            return Err(read_only());
        }
        let from = self.len();
        let Some(end) = end.checked_next_multiple_of(BLOCK as u64).filter(|end| *end <= self.geometry.capacity_bytes)
        else {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        };
        if end > from {
            grow::grow(&*self.file()?, from, end).inspect_err(|error| {
                // The sync may have failed, which counts like any other failed flush of this file.
                if error.kind() != io::ErrorKind::StorageFull {
                    self.counters.latch(error);
                }
            })?;
            self.len.store(end, Ordering::Release);
        }
        Ok(())
    }

    /// The file, for a holder of [`FileDiskInner::reshape`].
    fn file(&self) -> io::Result<Arc<File>> {
        self.running.read().as_ref().map(|running| running.file.clone()).ok_or_else(closed)
    }

    /// Closes the file once no request is in flight, and reopens it. Blocks; the caller holds
    /// [`FileDiskInner::reshape`].
    fn reopen(&self) -> io::Result<()> {
        let running = self.running.write().take();
        if let Some(running) = running {
            // A request holds its slot until the kernel has released its memory, even when its
            // caller has dropped it.
            while running.free() < self.depth {
                #[allow(clippy::disallowed_methods, reason = "this thread has nothing else to do")]
                std::thread::sleep(Duration::from_millis(1));
            }
            running.bulk.close();
            running.commit.close();
        }
        let options = DiskOptions { create: false, ..self.options.clone() };
        let (running, found) = Running::start(&self.path, &options)?;
        let changed =
            |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", self.path.display())));
        if found.len < self.len() {
            return changed("it is shorter than before");
        }
        if found.geometry.align_bytes > self.geometry.align_bytes
            || found.device != self.device
            || found.zones.is_some()
        {
            return changed("it is another kind of disk than before");
        }
        self.len.store(found.len, Ordering::Release);
        self.counters.unlatch();
        *self.running.write() = Some(running);
        tracing::info!(disk = %self.path.display(), "the disk has been reopened");
        Ok(())
    }

    /// Runs the blocking `work` on a separate thread, one at a time. The work completes even if the
    /// caller drops the future.
    async fn reshape(self: Arc<Self>, work: impl FnOnce(&Self) -> io::Result<()> + Send + 'static) -> io::Result<()> {
        let guard = self.reshape.clone().lock_owned().await;
        let (done, answer) = oneshot::channel();
        std::thread::Builder::new().name("disk-reshape".into()).spawn(move || {
            let number = self.counters.changing.begin();
            let result = work(&self);
            self.counters.changing.end(number);
            drop((self, guard));
            // The send fails when the caller has dropped the future.
            let _ = done.send(result);
        })?;
        answer.await.unwrap_or_else(|_| Err(ended()))
    }
}

fn ended() -> io::Error {
    io::Error::other("the disk's driver has ended")
}

fn closed() -> io::Error {
    io::Error::other("the disk is closed: it is being reopened, or the reopening failed")
}

fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the disk was opened read-only")
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
        Box::pin(async move { Ok(inner.read(offset, len).await?.map_or_else(Bytes::new, AlignedBuf::freeze)) })
    }

    fn read_kept(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        let inner = self.0.clone();
        Box::pin(async move { Ok(inner.read(offset, len).await?.map_or_else(Bytes::new, AlignedBuf::keep)) })
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
            match (inner.device, inner.options.punch_holes) {
                _ if len == 0 => Ok(()),
                (true, _) => inner.reshape(move |disk| grow::discard(&*disk.file()?, offset, len)).await,
                (false, true) => inner.reshape(move |disk| grow::punch(&*disk.file()?, offset, len)).await,
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

    fn reopen(&self) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { inner.reshape(FileDiskInner::reopen).await })
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        let pool = self.0.pool.clone();
        Box::pin(async move { pool.get(capacity).await })
    }

    fn stats(&self) -> DiskStats {
        let FileDiskInner { counters, depth, pool, read_pool, copy_pool, .. } = &*self.0;
        let free = self.0.running.read().as_ref().map_or(*depth, Running::free);
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let pools = [pool, read_pool, copy_pool];
        DiskStats {
            reads: counters.read_us.count(),
            read_bytes: get(&counters.read_bytes),
            writes: counters.write_us.count(),
            write_bytes: get(&counters.write_bytes),
            flushes: counters.flush_us.count(),
            flush_us: counters.flush_us.sum(),
            errors: get(&counters.errors),
            in_flight: (depth - free) as u64,
            queue_depth: *depth as u64,
            pool_used_bytes: pools.iter().map(|pool| pool.used_bytes() as u64).sum(),
            pool_limit_bytes: pools.iter().map(|pool| pool.limit_bytes() as u64).sum(),
            copied_bytes: get(&counters.copied_bytes),
            oldest_read_ms: counters.reading.oldest_ms().max(read_pool.stalled_ms()),
            oldest_write_ms: counters.changing.oldest_ms(),
        }
    }

    fn latencies(&self) -> Option<Latencies> {
        let counters = &self.0.counters;
        let [read_us, write_us, flush_us] =
            [&counters.read_us, &counters.write_us, &counters.flush_us].map(HistogramCounter::snapshot);
        Some(Latencies { read_us, write_us, flush_us })
    }

    fn describe(&self) -> String {
        let kind = if self.0.device { "block device" } else { "file" };
        let driver =
            self.0.running.read().as_ref().map_or_else(|| "nothing".to_owned(), |running| running.driver.describe());
        format!("{} ({kind}, direct I/O by {driver})", self.0.path.display())
    }
}

/// Makes a write beyond the process's file size limit (`ulimit -f`) fail with `EFBIG` like any
/// other write. By default the kernel kills the process without a message.
pub fn outlive_file_size_limit() {
    // SAFETY: no handler is installed, the signal is only ignored; no other code in the process
    // uses it.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests;
