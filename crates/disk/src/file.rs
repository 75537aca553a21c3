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

/// Memory for copies of unaligned data, in pieces of `max_io_bytes`.
const COPY_PIECES: usize = 8;

/// A regular file or a block device, driven with direct I/O. Dropping it waits for the requests in flight.
pub struct FileDisk(Arc<Inner>);

/// What a request runs in. Dropping it waits for the requests in flight.
struct Running {
    /// Dropped first: it ends the threads, and with them the last users of the file.
    driver: Box<dyn Driver>,
    file: Arc<File>,
    bulk: Arc<Semaphore>,
    commit: Arc<Semaphore>,
}

struct Inner {
    /// `None` while it is being opened again, and after that has failed.
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
    /// Held while the file grows, a range is discarded, or it is opened again.
    reshape: Arc<Mutex<()>>,
}

impl FileDisk {
    /// Opens `path`, a regular file or a block device, for direct I/O, with an exclusive lock on it.
    ///
    /// # Errors
    /// `NotFound` when it is not there and must not be created; `ResourceBusy` when another process has it;
    /// `Unsupported` when direct I/O is refused (or io_uring, where it was asked for by name); else what the system says.
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

    fn open_inner(path: &Path, options: &DiskOptions) -> io::Result<(Inner, Option<Zones>)> {
        let (running, opened) = Running::start(path, options)?;
        let inner = Inner {
            running: RwLock::new(Some(running)),
            path: opened.path,
            options: options.clone(),
            device: opened.device,
            geometry: opened.geometry,
            len: AtomicU64::new(opened.len),
            depth: options.queue_depth.max(1) + options.commit_depth.max(1),
            pool: BufPool::new(options.pool_bytes),
            read_pool: BufPool::new(options.read_pool_bytes),
            copy_pool: BufPool::new(opened.geometry.max_io_bytes * COPY_PIECES),
            counters: Arc::default(),
            reshape: Arc::default(),
        };
        Ok((inner, opened.zones))
    }
}

/// What opening found, apart from the file.
struct Found {
    path: PathBuf,
    device: bool,
    len: u64,
    geometry: Geometry,
    zones: Option<Zones>,
}

impl Running {
    /// Opens the file and starts what drives it.
    fn start(path: &Path, options: &DiskOptions) -> io::Result<(Self, Found)> {
        let open::Opened { file, path, device, len, geometry, zones } = open::open(path, options)?;
        let file = Arc::new(file);
        if !device
            && !options.read_only
            && len > 0
            && let Err(error) = grow::fill_holes(&file, len)
        {
            // Reads must go on, and whoever writes will be told.
            tracing::warn!(path = %path.display(), %error, "the file has holes that the file system has no room for");
        }
        let (queue_depth, commit_depth) = (options.queue_depth.max(1), options.commit_depth.max(1));
        let driver = start(&file, options.io, queue_depth, commit_depth)?;
        let (bulk, commit) = (Arc::new(Semaphore::new(queue_depth)), Arc::new(Semaphore::new(commit_depth)));
        Ok((Self { driver, file, bulk, commit }, Found { path, device, len, geometry, zones }))
    }

    /// How many more requests could be in flight.
    fn free(&self) -> usize {
        self.bulk.available_permits() + self.commit.available_permits()
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
        let commits = op.commits();
        let slots = match &*self.running.read() {
            Some(running) => if commits { &running.commit } else { &running.bulk }.clone(),
            None => return Err(closed()),
        };
        let slot = slots.acquire_owned().await.map_err(|_| ended())?;
        let (done, answer) = oneshot::channel();
        match &*self.running.read() {
            // Still the one whose slot it is: nobody closes it before it has all slots back.
            Some(running) => running.driver.submit(Request::new(op, offset, done, slot, self.counters.clone())),
            None => return Err(closed()),
        }
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
                // It may have been the sync that failed, and that is a flush of this file like any other.
                if error.kind() != io::ErrorKind::StorageFull {
                    self.counters.latch(error);
                }
            })?;
            self.len.store(end, Ordering::Release);
        }
        Ok(())
    }

    /// The file, for what holds [`Inner::reshape`].
    fn file(&self) -> io::Result<Arc<File>> {
        self.running.read().as_ref().map(|running| running.file.clone()).ok_or_else(closed)
    }

    /// Closes the file when nothing is in flight any more, and opens it again. Blocks; the caller holds [`Inner::reshape`].
    fn reopen(&self) -> io::Result<()> {
        let running = self.running.write().take();
        if let Some(running) = running {
            // A request holds its slot until the kernel has let go of it, also when nobody waits for it any more.
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
            return changed("it is shorter than it was");
        }
        if found.geometry.align_bytes > self.geometry.align_bytes
            || found.device != self.device
            || found.zones.is_some()
        {
            return changed("it is not the kind of disk that it was");
        }
        self.len.store(found.len, Ordering::Release);
        self.counters.unlatch();
        *self.running.write() = Some(running);
        tracing::info!(disk = %self.path.display(), "the disk has been closed and opened again");
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

fn closed() -> io::Error {
    io::Error::other("the disk is closed: it is being opened again, or cannot be")
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
        Box::pin(async move { inner.reshape(Inner::reopen).await })
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        let pool = self.0.pool.clone();
        Box::pin(async move { pool.get(capacity).await })
    }

    fn stats(&self) -> DiskStats {
        let Inner { counters, depth, pool, read_pool, copy_pool, .. } = &*self.0;
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
            oldest_read_ms: counters.reading.oldest_ms(),
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

/// Has a write beyond the process's limit on the size of files (`ulimit -f`) fail as any other write, with `EFBIG`: by default the kernel ends
/// the process then, without a word.
pub fn outlive_file_size_limit() {
    // SAFETY: no handler is installed, the signal is only ignored; nobody else in the process uses it.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(byte: u8) -> Bytes {
        Bytes::from(vec![byte; BLOCK])
    }

    #[tokio::test]
    async fn a_disk_whose_flush_failed_is_flushed_again_once_it_has_been_opened_again() {
        let folder = tempfile::tempdir_in(".").expect("a folder");
        let path = folder.path().join("disk");
        for io in [IoMode::Auto, IoMode::Threads] {
            let options = DiskOptions { create: true, io, ..DiskOptions::default() };
            let inner = Arc::new(FileDisk::open_inner(&path, &options).expect("opens").0);
            let disk: Arc<dyn Disk> = Arc::new(FileDisk(inner.clone()));
            disk.reserve(1 << 20).await.expect("room");
            disk.write_flush(0, block(1)).await.expect("written");
            inner.counters.latch(&io::Error::from_raw_os_error(libc::EIO));
            assert_eq!(disk.flush().await.expect_err("latched").raw_os_error(), Some(libc::EIO));
            disk.write(0, block(2)).await.expect("it may be written");
            // Away for a while: refused, and nothing is made in its place.
            std::fs::rename(&path, folder.path().join("away")).expect("renamed");
            assert_eq!(disk.reopen().await.expect_err("gone").kind(), io::ErrorKind::NotFound);
            assert!(disk.read(0, BLOCK).await.is_err() && disk.reserve(2 << 20).await.is_err() && !path.exists());
            assert_eq!((disk.len(), disk.stats().in_flight), (1 << 20, 0));
            // Another one.
            std::fs::write(&path, [0; BLOCK]).expect("made");
            assert_eq!(disk.reopen().await.expect_err("shorter").kind(), io::ErrorKind::InvalidData);
            std::fs::rename(folder.path().join("away"), &path).expect("renamed");
            let (reads, again) = (disk.read(0, BLOCK), [disk.reopen(), disk.reopen()]);
            for again in join_all(again).await {
                again.expect("opened again");
            }
            assert_eq!(reads.await.expect("read"), block(2));
            disk.write_flush(BLOCK as u64, block(3)).await.expect("flushed");
            disk.reserve(2 << 20).await.expect("room");
            assert!(FileDisk::open(&path, &DiskOptions { lock_wait: Duration::ZERO, ..options }).is_err(), "locked");
            drop((disk, inner));
            std::fs::remove_file(&path).expect("removed");
        }
    }

    #[tokio::test]
    async fn reads_writes_and_flushes_are_measured_each_by_itself() {
        let folder = tempfile::tempdir_in(".").expect("a folder");
        for io in [IoMode::Auto, IoMode::Threads] {
            let options = DiskOptions { create: true, io, ..DiskOptions::default() };
            let disk = FileDisk::open(folder.path().join(format!("{io:?}")), &options).expect("opens");
            disk.reserve(1 << 20).await.expect("room");
            let counts = || {
                let Latencies { read_us, write_us, flush_us } = disk.latencies().expect("measured");
                [read_us.count, write_us.count, flush_us.count]
            };
            assert_eq!(counts(), [0; 3]);
            disk.write(0, block(1)).await.expect("written");
            assert_eq!(counts(), [0, 1, 0]);
            disk.flush().await.expect("flushed");
            assert_eq!(counts(), [0, 1, 1]);
            disk.write_flush(0, block(2)).await.expect("written");
            assert_eq!(counts(), [0, 2, 2], "a write and its flush are two");
            disk.read(0, BLOCK).await.expect("read");
            assert_eq!(counts(), [1, 2, 2]);
            disk.read(2 << 20, BLOCK).await.expect_err("past the end");
            let (latencies, stats) = (disk.latencies().expect("measured"), disk.stats());
            assert_eq!((stats.reads, stats.writes, stats.flushes), (1, 2, 2), "one that fails has no latency");
            assert_eq!((stats.read_bytes, stats.write_bytes), (BLOCK as u64, 2 * BLOCK as u64));
            assert_eq!(latencies.flush_us.sum, stats.flush_us);
            assert!(latencies.read_us.max > 0 && latencies.read_us.max <= latencies.read_us.sum, "{latencies:?}");
        }
    }

    #[tokio::test]
    async fn opening_again_waits_for_what_is_in_flight() {
        let folder = tempfile::tempdir_in(".").expect("a folder");
        let path = folder.path().join("disk");
        let disk = FileDisk::open(&path, &DiskOptions { create: true, ..DiskOptions::default() }).expect("opens");
        disk.reserve(4 << 20).await.expect("room");
        let writes = (0..200).map(|i| disk.write(i * BLOCK as u64, block(i as u8)));
        let (written, again) = futures::join!(join_all(writes), disk.reopen());
        again.expect("opened again");
        disk.flush().await.expect("flushed");
        // Written, or refused and not there: never neither.
        for (i, written) in written.iter().enumerate() {
            let there = disk.read((i * BLOCK) as u64, BLOCK).await.expect("read") == block(i as u8);
            assert!(i == 0 || there == written.is_ok(), "{i}: {written:?}");
        }
        assert!(written.iter().any(Result::is_ok));
    }
}
