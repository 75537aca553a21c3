//! A named window of a disk, and the operations that requests need.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use steadfast_disk::{BLOCK, Disk};
use steadfast_flow::{Env, log_rarely};
use tokio::sync::Semaphore;

use crate::flushes::Flushes;
use crate::options::PIECE_BYTES;
use crate::protocol::{Errno, STRING_BYTES_MAX, transmission_flag as flag};
use crate::ranges::Ranges;
use crate::status::{Counters, Kind, UnderWay};
use crate::{ExportOptions, ExportStatus, Limits, Window};

/// Why an export cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The name or the description is too long.
    #[error("the name or description of the export {0:?} is longer than 4096 bytes")]
    TooLong(String),
    /// The window is empty, unaligned, or not within the disk.
    #[error(
        "the export {name:?} cannot show {len} bytes at {start}: \
         they must be multiples of {BLOCK} within the disk's {disk_len} bytes"
    )]
    Window {
        /// Name of the export.
        name: String,
        /// Start of the window on the disk, in bytes.
        start: u64,
        /// Length of the window in bytes.
        len: u64,
        /// Length of the disk in bytes.
        disk_len: u64,
    },
}

/// A named window of a disk, for any number of connections.
pub struct Export {
    name: String,
    description: String,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) window: Window,
    read_only: bool,
    pub(crate) limits: Limits,
    pub(crate) piece_bytes: usize,
    connections: AtomicUsize,
    /// Memory of requests above `connection_bytes_max`, in bytes.
    pub(crate) large: Arc<Semaphore>,
    pub(crate) bytes_in_flight: AtomicUsize,
    pub(crate) ranges: Ranges,
    flushes: Flushes,
    pub(crate) under_way: UnderWay,
    pub(crate) counters: Counters,
    /// The first error of a write, trim or flush. After it, the content of earlier unflushed writes
    /// on the disk is unknown.
    failure: OnceLock<String>,
}

/// A slot among an export's connections.
pub(crate) struct Place(pub(crate) Arc<Export>);

impl Drop for Place {
    fn drop(&mut self) {
        let before = self.0.connections.fetch_sub(1, Relaxed);
        assert!(before > 0, "a connection was not counted");
    }
}

impl Export {
    /// Creates an export of `disk`.
    ///
    /// # Errors
    /// When the name or the description is too long, or the window is unaligned or not within the
    /// disk.
    pub fn new(options: ExportOptions, disk: Arc<dyn Disk>, env: Env) -> Result<Arc<Self>, ExportError> {
        let ExportOptions { name, description, window, read_only, limits } = options;
        if name.len().max(description.len()) > STRING_BYTES_MAX {
            return Err(ExportError::TooLong(name.chars().take(100).collect()));
        }
        let disk_len = disk.len();
        let window = window.unwrap_or(Window { start: 0, len: disk_len });
        let Window { start, len } = window;
        let inside = start.checked_add(len).is_some_and(|end| end <= disk_len);
        if !inside || len == 0 || !(start | len).is_multiple_of(BLOCK as u64) {
            return Err(ExportError::Window { name, start, len, disk_len });
        }
        let limits = limits.usable();
        // The pool never grants a buffer above its bound, and a piece may touch one block more than
        // its size.
        let pool = usize::try_from(disk.stats().pool_limit_bytes).unwrap_or(usize::MAX);
        let piece_bytes = (pool / 4 / BLOCK * BLOCK).clamp(BLOCK, PIECE_BYTES);
        Ok(Arc::new(Self {
            name,
            description,
            disk,
            window,
            read_only,
            limits,
            piece_bytes,
            connections: AtomicUsize::new(0),
            large: Arc::new(Semaphore::new(limits.large_bytes_max)),
            bytes_in_flight: AtomicUsize::new(0),
            ranges: Ranges::default(),
            flushes: Flushes::default(),
            under_way: UnderWay::new(env),
            counters: Counters::default(),
            failure: OnceLock::new(),
        }))
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The description for humans.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.window.len
    }

    /// Whether writes are refused.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// The current state.
    pub fn status(&self) -> ExportStatus {
        let (in_flight, oldest_request_ms) = self.under_way.status();
        ExportStatus {
            name: self.name.clone(),
            window: self.window,
            read_only: self.read_only,
            failure: self.failure.get().cloned(),
            connections: self.connections.load(Relaxed),
            in_flight,
            oldest_request_ms,
            bytes_in_flight: self.bytes_in_flight.load(Relaxed),
            bytes_in_flight_max: self.limits.bytes_max(),
            counts: self.counters.counts(),
            limits: self.limits,
        }
    }

    /// The transmission flags of a session.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let access = match self.read_only {
            true => flag::READ_ONLY,
            false => flag::SEND_FUA | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES,
        };
        let chunks = if structured { flag::SEND_DF } else { 0 };
        flag::HAS_FLAGS | flag::SEND_FLUSH | flag::CAN_MULTI_CONN | access | chunks
    }

    /// Takes a slot for one more connection; `None` when the export has `export_connections_max`
    /// connections.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Place> {
        let max = self.limits.export_connections_max;
        let entered = self.connections.fetch_update(Relaxed, Relaxed, |now| (now < max).then_some(now + 1)).is_ok();
        let counter = if entered { &self.counters.connections } else { &self.counters.connections_refused };
        counter.fetch_add(1, Relaxed);
        entered.then(|| Place(self.clone()))
    }

    /// Reads `length` bytes at `offset`, as a copy: the reply may wait long for its client and must
    /// not hold the disk's memory for that time.
    pub(crate) async fn read(&self, offset: u64, length: u32) -> Result<Bytes, Errno> {
        self.counters.count(Kind::Read);
        let _under_way = self.under_way.begin();
        let mut bytes = Vec::with_capacity(length as usize);
        for (at, length) in self.pieces(offset, u64::from(length)) {
            bytes.extend_from_slice(&self.read_piece(at, length).await?);
        }
        self.counters.read_bytes.fetch_add(u64::from(length), Relaxed);
        Ok(bytes.into())
    }

    /// Reads the blocks around a piece and returns the piece as a slice.
    async fn read_piece(&self, at: u64, length: usize) -> Result<Bytes, Errno> {
        let blocks = self.blocks(at, length as u64);
        let head = (at % BLOCK as u64) as usize;
        let read = self.disk.read(blocks.start, (blocks.end - blocks.start) as usize).await;
        Ok(read.map_err(|error| self.read_failed(&error))?.slice(head..head + length))
    }

    /// Makes earlier writes of all connections durable.
    pub(crate) async fn flush(&self) -> Result<(), Errno> {
        self.counters.count(Kind::Flush);
        let _under_way = self.under_way.begin();
        self.sync().await
    }

    /// The flush behind a write with `FUA` of several pieces, and the last flush of a server.
    pub(crate) async fn sync(&self) -> Result<(), Errno> {
        if self.read_only {
            return Ok(());
        }
        self.check_failure()?;
        // The disk may begin a flush when `flush` is called, so the call happens inside the future.
        let flush = async { self.disk.flush().await };
        self.flushes.join(flush).await.map_err(|error| self.change_failed("flush", &error))?;
        // A write may have failed meanwhile; its data is not durable.
        self.check_failure()
    }

    /// The blocks on the disk around a range of the export. The caller has checked the range.
    pub(crate) fn blocks(&self, offset: u64, length: u64) -> std::ops::Range<u64> {
        let block = BLOCK as u64;
        assert!(offset + length <= self.size(), "{length} bytes at {offset} of an export of {}", self.size());
        let (start, end) = (offset / block * block, (offset + length).next_multiple_of(block));
        self.window.start + start..self.window.start + end
    }

    pub(crate) fn check_failure(&self) -> Result<(), Errno> {
        if self.failure.get().is_some() { Err(Errno::Io) } else { Ok(()) }
    }

    pub(crate) fn read_failed(&self, error: &io::Error) -> Errno {
        self.counters.read_errors.fetch_add(1, Relaxed);
        log_rarely!(warn, export = self.name, %error, "a read failed");
        Errno::Io
    }

    /// Latches the first error. A write that finds the disk full is not latched, because it was
    /// never acknowledged. A flush that fails for the same reason is latched: it leaves open which
    /// acknowledged writes are lost.
    pub(crate) fn change_failed(&self, what: &str, error: &io::Error) -> Errno {
        self.counters.write_errors.fetch_add(1, Relaxed);
        let full = error.kind() == io::ErrorKind::StorageFull;
        if full && what != "flush" {
            return Errno::NoSpace;
        }
        if self.failure.set(format!("{what}: {error}")).is_ok() {
            tracing::error!(export = self.name, %error, "a {what} failed: the export refuses further writes");
        }
        if full { Errno::NoSpace } else { Errno::Io }
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Export({:?}, {} bytes of {})", self.name, self.window.len, self.disk.describe())
    }
}
