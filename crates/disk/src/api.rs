//! The disk interface.

use std::io;

use bytes::Bytes;
use serde::Serialize;
use steadfast_flow::{BoxFuture, Histogram};

/// The future of an I/O request. The request starts at the first poll. Dropping the future after
/// that does not cancel the request. The driver owns the buffer until the kernel has released it,
/// and the write may or may not have happened.
pub type IoFuture<T> = BoxFuture<'static, io::Result<T>>;

/// Zones of a zoned block device (ZBC, ZNS). Each zone is written from its start to its end, in
/// order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ZoneGeometry {
    /// Bytes from the start of one zone to the start of the next.
    pub zone_bytes: u64,
    /// Writable bytes of each zone, from its start: at most `zone_bytes`.
    pub zone_capacity_bytes: u64,
    /// Bytes at the beginning of the disk that may be written anywhere, before the first zone.
    pub conventional_bytes: u64,
    /// Maximum number of open zones; 0 for no limit.
    pub open_zones_max: u32,
}

/// The write state of a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ZoneState {
    /// Nothing is written.
    Empty,
    /// Partly written: counts against the limit of open zones.
    Open,
    /// Written to its end, or finished before it.
    Full,
    /// A write failed: further writes fail until a reset. Counts as open.
    Failed,
    /// The device has retired the zone: it is read-only or offline, and cannot be reset.
    Dead,
}

/// One zone that must be written in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Zone {
    /// Start of the zone in bytes.
    pub start: u64,
    /// Writable bytes of the zone.
    pub len: u64,
    /// Offset of the next write, in bytes from the start of the disk.
    pub write_pointer: u64,
    /// Write state of the zone.
    pub state: ZoneState,
}

/// A device's claim about a volatile write cache. The cost of a flush is a separate, measured fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheClaim {
    /// The device claims that a completed write is durable ("write through").
    WriteThrough,
    /// The device claims a volatile cache ("write back").
    WriteBack,
    /// The claim is unknown.
    Unknown,
}

/// The shape of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Geometry {
    /// Capacity in bytes. For a file: the configured limit, or the capacity of its file system.
    pub capacity_bytes: u64,
    /// Whether space past [`Disk::len`] must be reserved with [`Disk::reserve`] before it is
    /// written (a file).
    pub growable: bool,
    /// Whether the first writes to reserved space are slower to flush than rewrites (a file on an
    /// extent-based file system). If so, zero-filling it ahead of need is worthwhile.
    pub prefill_pays: bool,
    /// Alignment of offsets and lengths that direct I/O needs, in bytes.
    pub align_bytes: usize,
    /// Largest request that is sent to the device whole, in bytes; larger ones are split.
    pub max_io_bytes: usize,
    /// Zones, where the disk is zoned.
    pub zones: Option<ZoneGeometry>,
    /// What the device claims about its write cache.
    pub cache: CacheClaim,
}

/// Counters of one disk since it was opened. Latencies are sums; divide by the counts.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct DiskStats {
    /// Completed reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Completed writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Completed flushes.
    pub flushes: u64,
    /// Total time of the flushes in microseconds.
    pub flush_us: u64,
    /// Failed requests.
    pub errors: u64,
    /// Requests that the disk has accepted and not yet completed.
    pub in_flight: u64,
    /// Limit of `in_flight`; further requests wait.
    pub queue_depth: u64,
    /// Bytes of the buffer pool in use.
    pub pool_used_bytes: u64,
    /// Limit of `pool_used_bytes`; further requests wait.
    pub pool_limit_bytes: u64,
    /// Bytes copied once more because the caller's memory was not aligned.
    pub copied_bytes: u64,
    /// Age of the oldest read in flight in milliseconds, or if that is longer, how long reads have
    /// waited for memory while none got any; 0 when there is none.
    pub oldest_read_ms: u64,
    /// Age of the oldest write, flush or growth in flight in milliseconds; 0 when there is none.
    pub oldest_write_ms: u64,
}

/// Latencies of the successful requests of one device since it was opened, in microseconds. A large
/// read or write counts as several requests.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Latencies {
    /// Reads: from submission to the driver until the device has answered.
    pub read_us: Histogram,
    /// Writes: the same, without the flushes behind them.
    pub write_us: Histogram,
    /// Flushes: the system call alone.
    pub flush_us: Histogram,
}

/// A linear address space of bytes on some device.
///
/// Requests may be submitted concurrently and complete in any order. A request sees the effect of
/// another only if it was submitted after the other completed. Errors are the operating system's
/// and keep its error number ([`io::Error::raw_os_error`]), so callers can distinguish `EIO` from
/// `ENOSPC`.
pub trait Disk: Send + Sync + 'static {
    /// The shape of the disk. Constant.
    fn geometry(&self) -> Geometry;

    /// Readable and writable bytes. Grows with [`Disk::reserve`] on growable disks.
    fn len(&self) -> u64;

    /// Whether [`Disk::len`] is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads exactly `len` bytes at `offset`, both multiples of [`BLOCK`]. The bytes belong to a
    /// bounded pool. A caller that keeps them for long uses [`Disk::read_kept`], or later reads
    /// wait forever.
    ///
    /// # Errors
    /// `InvalidInput` when misaligned, `UnexpectedEof` past the end, else the device's error.
    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes>;

    /// As [`Disk::read`], but the caller may keep the bytes for long, and bounds how many it keeps.
    /// A disk that can hands out the memory of the read, which no longer counts against its pool.
    /// Others copy it.
    ///
    /// # Errors
    /// Those of [`Disk::read`].
    fn read_kept(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        let read = self.read(offset, len);
        Box::pin(async move { Ok(Bytes::copy_from_slice(&read.await?)) })
    }

    /// Two offsets for a label on each device of the disk, of one block each. Constant.
    fn label_places(&self) -> Vec<[u64; 2]> {
        vec![[0, 512 << 10]]
    }

    /// Number of copies of every byte that the disk may hold, at least 1: the range of
    /// [`Disk::read_copy`].
    fn copies(&self) -> u32 {
        1
    }

    /// Reads one given copy. A caller uses it when its checksum refuses the bytes of
    /// [`Disk::read`], or when that read failed. Such a caller tries the copies `0..copies()` in
    /// turn and passes the first good bytes to [`Disk::heal`]. It fails after the last copy. On a
    /// disk with one copy this repeats the read, which cures damage in transit.
    ///
    /// # Errors
    /// Those of [`Disk::read`]; `NotFound` when that copy does not exist or is known to be unusable
    /// for this range.
    fn read_copy(&self, copy: u32, offset: u64, len: usize) -> IoFuture<Bytes> {
        if copy == 0 {
            return self.read(offset, len);
        }
        Box::pin(
            async move { Err(io::Error::new(io::ErrorKind::NotFound, format!("no copy {copy} of offset {offset}"))) },
        )
    }

    /// Repairs the copies at `offset`. `good` are the right bytes, verified by the caller, after
    /// some copy was found bad. A disk with several copies compares each with `good`, rewrites and
    /// re-reads those that differ, and returns the number of repaired copies. The caller prevents
    /// writes to the range meanwhile. A disk with one copy does nothing: bytes that were read well
    /// need no repair, and an unreadable block has no good bytes.
    ///
    /// # Errors
    /// When a copy could not be repaired. The disk has then taken that range of that copy out of
    /// use.
    fn heal(&self, offset: u64, good: Bytes) -> IoFuture<u32> {
        let _ = (offset, good);
        Box::pin(async { Ok(0) })
    }

    /// Writes `data` at `offset`; the offset and the length are multiples of [`BLOCK`]. Data that
    /// is not aligned in memory is copied once more; [`Disk::buffer`] returns aligned memory. The
    /// write becomes durable with a [`Disk::flush`] that starts after it.
    ///
    /// # Errors
    /// `InvalidInput` when misaligned, else the device's error.
    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()>;

    /// Makes every write that completed before this call durable (`fdatasync`).
    ///
    /// # Errors
    /// The device's error. After an error the state of all writes since the last successful flush
    /// is unknown. A disk on a real device refuses all later flushes with the same error until it
    /// is reopened ([`Disk::reopen`]).
    fn flush(&self) -> IoFuture<()>;

    /// [`Disk::write`] and then [`Disk::flush`], in one request to the driver where that is
    /// possible.
    ///
    /// # Errors
    /// Those of the two.
    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()>;

    /// Discards a range: its content is undefined afterwards. A hint that never fails for lack of
    /// support.
    ///
    /// # Errors
    /// The device's error.
    fn discard(&self, offset: u64, len: u64) -> IoFuture<()>;

    /// Allocates space up to `end` bytes, durably, so that writes below it cannot fail for lack of
    /// space. Does nothing below [`Disk::len`].
    ///
    /// # Errors
    /// `StorageFull` when there is not enough space; the disk is then unchanged.
    fn reserve(&self, end: u64) -> IoFuture<()>;

    /// Closes the disk once all requests in flight have returned, and reopens it, as a restart
    /// would. This clears a latched flush failure, and a device that did not answer may answer
    /// again. The state of all writes since the last successful flush is unknown. Until the
    /// reopening succeeds the disk refuses all requests; callers may retry. The reopening completes
    /// even if the caller drops the future.
    ///
    /// # Errors
    /// The operating system's error; `InvalidData` when it is another disk now; `Unsupported` where
    /// a disk cannot be reopened.
    fn reopen(&self) -> IoFuture<()> {
        Box::pin(async { Err(io::Error::new(io::ErrorKind::Unsupported, "only a restart reopens this disk")) })
    }

    /// Returns an empty aligned buffer with a capacity of `capacity` bytes from the disk's bounded
    /// pool; waits for free memory. [`Disk::read`] uses a separate pool, so that slow readers never
    /// starve writers.
    ///
    /// # Panics
    /// When `capacity` is more than the whole pool, because that would wait forever.
    fn buffer(&self, capacity: usize) -> BoxFuture<'static, crate::AlignedBuf>;

    /// Counters since the disk was opened.
    fn stats(&self) -> DiskStats;

    /// The latencies of the disk's requests. `None` where they are not measured, or where the disk
    /// consists of several devices: callers query those.
    fn latencies(&self) -> Option<Latencies> {
        None
    }

    /// The zone of an offset; `None` where the disk may be written anywhere.
    fn zone(&self, offset: u64) -> Option<crate::Zone> {
        let _ = offset;
        None
    }

    /// Empties the zone that begins at `offset`: its content is lost, and it is written from its
    /// start again. Durable. Does nothing where the disk may be written anywhere.
    ///
    /// # Errors
    /// `InvalidInput` when no zone begins there or writes to it are in flight, else the device's
    /// error.
    fn reset_zone(&self, offset: u64) -> IoFuture<()> {
        let _ = offset;
        Box::pin(async { Ok(()) })
    }

    /// Finishes the zone that begins at `offset`: it is no longer open and accepts no more writes.
    /// The content of its unwritten part is undefined.
    ///
    /// # Errors
    /// Those of [`Disk::reset_zone`].
    fn finish_zone(&self, offset: u64) -> IoFuture<()> {
        let _ = offset;
        Box::pin(async { Ok(()) })
    }

    /// The status of a super-disk; `None` for any other disk. Wrappers need not forward it.
    fn superdisk(&self) -> Option<crate::SuperdiskStatus> {
        None
    }

    /// A description for humans: the path and the driver.
    fn describe(&self) -> String;
}
