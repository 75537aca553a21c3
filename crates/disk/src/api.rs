//! What a disk is.

use std::io;

use bytes::Bytes;
use serde::Serialize;
use steadfast_flow::{BoxFuture, Histogram};

/// The unit in which the layers above lay out data, in bytes. Every offset and length given to a [`Disk`] is a
/// multiple of it, and it is a multiple of the alignment that direct I/O needs on today's devices (512 or 4,096).
pub const BLOCK: usize = 4096;

/// What an I/O request becomes. Nothing happens before it is polled. Dropping it after that does not cancel the
/// request: the driver owns the buffer until the kernel has let go of it, and the write may or may not have happened.
pub type IoFuture<T> = BoxFuture<'static, io::Result<T>>;

/// Zones of a zoned block device (ZBC, ZNS): each is written from its start to its end, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ZoneGeometry {
    /// Bytes from the start of one zone to the start of the next.
    pub zone_bytes: u64,
    /// How much of each can be written, in bytes, from its start: at most `zone_bytes`.
    pub zone_capacity_bytes: u64,
    /// Bytes at the beginning of the disk that may be written anywhere, before the first zone.
    pub conventional_bytes: u64,
    /// How many zones may be open at a time; 0 for no limit.
    pub open_zones_max: u32,
}

/// What a device says about a volatile write cache. What a flush costs is a separate, measured fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheClaim {
    /// The device claims that a completed write is durable ("write through").
    WriteThrough,
    /// The device claims a volatile cache ("write back").
    WriteBack,
    /// Nothing could be learned.
    Unknown,
}

/// The shape of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Geometry {
    /// Bytes that the disk can hold at most. For a file: the limit set for it, or what its file system could ever hold.
    pub capacity_bytes: u64,
    /// Whether the space past [`Disk::len`] must be asked for with [`Disk::reserve`] before it is written (a file).
    pub growable: bool,
    /// Whether first writes to reserved space are slower to flush than rewrites, so that zero-filling it ahead of
    /// need pays (a file on an extent-based file system).
    pub prefill_pays: bool,
    /// Alignment in bytes that direct I/O needs for offsets and lengths.
    pub align_bytes: usize,
    /// The largest single request that goes to the device whole, in bytes; larger ones are split.
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
    /// Requests that ended with an error.
    pub errors: u64,
    /// Requests given to the disk and not yet completed.
    pub in_flight: u64,
    /// The bound on `in_flight`; further requests wait.
    pub queue_depth: u64,
    /// Bytes of the buffer pool in use.
    pub pool_used_bytes: u64,
    /// The bound on `pool_used_bytes`; further requests wait.
    pub pool_limit_bytes: u64,
    /// Bytes that were copied once more because the caller's memory was not aligned.
    pub copied_bytes: u64,
    /// For how long the oldest read in flight has been with the disk, in milliseconds; 0 when none is.
    pub oldest_read_ms: u64,
    /// The same of what changes the disk: writes, flushes, growing.
    pub oldest_write_ms: u64,
}

/// How long the requests of one device took that succeeded, in microseconds since it was opened. A large read or write is several
/// requests.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Latencies {
    /// Of reads: from when a request was given to the driver until the device had answered.
    pub read_us: Histogram,
    /// The same of writes, without the flushes behind them.
    pub write_us: Histogram,
    /// Of flushes: the system call alone.
    pub flush_us: Histogram,
}

/// A linear address space of bytes on some device.
///
/// Requests may be given concurrently and complete in any order; a request sees the effect of another only if it
/// was given after the other completed. Errors are the operating system's, with its error number kept
/// ([`io::Error::raw_os_error`]) so that callers can tell `EIO` from `ENOSPC`.
pub trait Disk: Send + Sync + 'static {
    /// The shape of the disk. Constant.
    fn geometry(&self) -> Geometry;

    /// Bytes that can be read and written now. Grows with [`Disk::reserve`] on growable disks.
    fn len(&self) -> u64;

    /// Whether [`Disk::len`] is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads exactly `len` bytes at `offset`, both multiples of [`BLOCK`]. The bytes are memory of a bounded pool: who
    /// keeps them for long (a cache) copies them, or later reads wait for ever.
    ///
    /// # Errors
    /// `InvalidInput` when misaligned, `UnexpectedEof` past the end, else what the device says.
    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes>;

    /// Two places for a label on each device that the disk is made of: offsets of a block each. Constant.
    fn label_places(&self) -> Vec<[u64; 2]> {
        vec![[0, 512 << 10]]
    }

    /// How many copies of every byte the disk may hold, at least 1: the range of [`Disk::read_copy`].
    fn copies(&self) -> u32 {
        1
    }

    /// Reads from one given copy, for a caller whose checksum refused what [`Disk::read`] gave (or that got an error).
    /// Such a caller tries copies `0..copies()` in turn, hands the first good bytes to [`Disk::heal`], and gives up
    /// with an error after the last. On a disk of one copy this is a second read of the same place, which cures damage in transit.
    ///
    /// # Errors
    /// Those of [`Disk::read`]; `NotFound` when that copy does not exist or is known to be unusable for this range.
    fn read_copy(&self, copy: u32, offset: u64, len: usize) -> IoFuture<Bytes> {
        if copy == 0 {
            return self.read(offset, len);
        }
        Box::pin(
            async move { Err(io::Error::new(io::ErrorKind::NotFound, format!("no copy {copy} of offset {offset}"))) },
        )
    }

    /// Says that `good` are the right bytes at `offset`, verified by the caller, and that some copy was found bad there.
    /// A disk of several copies compares each with `good`, rewrites and re-reads those that differ, and answers how many it repaired.
    /// The caller keeps the range from being written meanwhile. A disk of one copy does nothing: what was read
    /// good once needs no repair, and what cannot be read has no good bytes.
    ///
    /// # Errors
    /// When a copy could not be repaired. The disk has then taken that range of that copy out of use.
    fn heal(&self, offset: u64, good: Bytes) -> IoFuture<u32> {
        let _ = (offset, good);
        Box::pin(async { Ok(0) })
    }

    /// Writes `data` at `offset`; the offset and the length are multiples of [`BLOCK`]. Data that is not aligned in memory is
    /// copied once more; [`Disk::buffer`] gives memory that is. Not durable before a [`Disk::flush`] that starts after it.
    ///
    /// # Errors
    /// `InvalidInput` when misaligned, else what the device says.
    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()>;

    /// Makes every write that completed before this call durable (`fdatasync`).
    ///
    /// # Errors
    /// What the device says. After an error nothing may be assumed of any write since the last success, and a disk
    /// on a real device refuses all later flushes with the same error until it is opened again ([`Disk::reopen`]).
    fn flush(&self) -> IoFuture<()>;

    /// [`Disk::write`] and then [`Disk::flush`], in one trip to the driver where that is possible.
    ///
    /// # Errors
    /// Those of the two.
    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()>;

    /// Says that the bytes are no longer needed. They read as anything afterwards. A hint: never fails for want of support.
    ///
    /// # Errors
    /// What the device says.
    fn discard(&self, offset: u64, len: u64) -> IoFuture<()>;

    /// Makes room up to `end` bytes, durably, so that writes below it cannot fail for want of space. Does nothing below [`Disk::len`].
    ///
    /// # Errors
    /// `StorageFull` when there is no room; the disk is as before then.
    fn reserve(&self, end: u64) -> IoFuture<()>;

    /// Closes the disk, when everything in flight has returned, and opens it again, as a restart would: what a failed flush has latched
    /// is over then, and a device that was away may answer. Nothing may be assumed of what was written since the last flush that
    /// succeeded. Until it has succeeded the disk refuses everything; it may be tried again. Goes on when the caller goes away.
    ///
    /// # Errors
    /// What the system says; `InvalidData` when it is another disk now; `Unsupported` where a disk cannot do it.
    fn reopen(&self) -> IoFuture<()> {
        Box::pin(async {
            Err(io::Error::new(io::ErrorKind::Unsupported, "this disk is opened again by a restart only"))
        })
    }

    /// An empty aligned buffer that can hold `capacity` bytes, from the disk's bounded pool; waits for room in it.
    /// What [`Disk::read`] gives comes from a pool of its own, so that slow readers never starve writers.
    ///
    /// # Panics
    /// When `capacity` is more than the whole pool: that would wait for ever.
    fn buffer(&self, capacity: usize) -> BoxFuture<'static, crate::AlignedBuf>;

    /// Counters since the disk was opened.
    fn stats(&self) -> DiskStats;

    /// How long its requests took; `None` where they are not measured, or where it is made of several devices: those are asked.
    fn latencies(&self) -> Option<Latencies> {
        None
    }

    /// The zone that an offset is in; `None` where the disk may be written anywhere.
    fn zone(&self, offset: u64) -> Option<crate::Zone> {
        let _ = offset;
        None
    }

    /// Empties the zone that begins at `offset`: what it held is lost, and it is written from its start again. Durable. Does nothing where the
    /// disk may be written anywhere.
    ///
    /// # Errors
    /// `InvalidInput` when no zone begins there or writes to it are under way, else what the device says.
    fn reset_zone(&self, offset: u64) -> IoFuture<()> {
        let _ = offset;
        Box::pin(async { Ok(()) })
    }

    /// Says that nothing more will be written to the zone that begins at `offset`: it is not open any more. What was not written of it
    /// reads as anything.
    ///
    /// # Errors
    /// Those of [`Disk::reset_zone`].
    fn finish_zone(&self, offset: u64) -> IoFuture<()> {
        let _ = offset;
        Box::pin(async { Ok(()) })
    }

    /// How the legs of a super-disk are; `None` for any other disk. Wrappers need not pass it on.
    fn superdisk(&self) -> Option<crate::SuperdiskStatus> {
        None
    }

    /// What the disk is, for people: its path and how it is driven.
    fn describe(&self) -> String;
}
