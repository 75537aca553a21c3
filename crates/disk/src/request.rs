//! A request on its way through a driver, and the counters of a disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use steadfast_flow::HistogramCounter;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::AlignedBuf;
use crate::ages::{Ages, now};

/// Memory that several pieces of one read fill concurrently.
pub(crate) struct ReadTarget(AlignedBuf);

// SAFETY: the pieces are disjoint ranges, written by the kernel only, through the raw pointer. No
// code reads the bytes before `into_inner`, which needs the last reference.
unsafe impl Sync for ReadTarget {}

impl ReadTarget {
    pub(crate) fn new(mut buf: AlignedBuf, len: usize) -> Arc<Self> {
        buf.set_len(len);
        Arc::new(Self(buf))
    }

    /// Returns the bytes once no piece is in flight.
    pub(crate) fn into_inner(self: Arc<Self>) -> Option<AlignedBuf> {
        Arc::try_unwrap(self).ok().map(|target| target.0)
    }
}

/// The operation of a request. It owns its memory until the kernel is done with it.
pub(crate) enum Op {
    /// Fills `start..start + len` of the target.
    Read { target: Arc<ReadTarget>, start: usize, len: usize },
    /// Writes `data`, which is aligned, then flushes if requested.
    Write { data: Bytes, flush: bool },
    /// `fdatasync`.
    Flush,
}

impl Op {
    /// Whether the operation uses the slots of commits.
    pub(crate) fn commits(&self) -> bool {
        matches!(self, Self::Flush | Self::Write { flush: true, .. })
    }

    /// The ages of operations of this kind.
    fn ages<'a>(&self, counters: &'a Counters) -> &'a Ages {
        if matches!(self, Self::Read { .. }) { &counters.reading } else { &counters.changing }
    }

    /// The address and length of the bytes. Null and 0 for a flush.
    pub(crate) fn memory(&self) -> (*mut u8, usize) {
        match self {
            Self::Read { target, start, len } => {
                assert!(start + len <= target.0.len());
                // SAFETY: within the buffer, as just asserted.
                (unsafe { target.0.as_ptr().add(*start) }, *len)
            }
            Self::Write { data, .. } => (data.as_ptr().cast_mut(), data.len()),
            Self::Flush => (std::ptr::null_mut(), 0),
        }
    }
}

/// Counters of a disk and its latched flush failure, shared with the requests in flight.
#[derive(Default)]
pub(crate) struct Counters {
    /// Successful reads: from submission to the driver until the device has answered, in
    /// microseconds.
    pub(crate) read_us: HistogramCounter,
    pub(crate) read_bytes: AtomicU64,
    /// Successful writes: the same, without the flushes behind them.
    pub(crate) write_us: HistogramCounter,
    pub(crate) write_bytes: AtomicU64,
    /// Successful flushes: time of the device in microseconds.
    pub(crate) flush_us: HistogramCounter,
    pub(crate) errors: AtomicU64,
    pub(crate) copied_bytes: AtomicU64,
    /// Reads in flight.
    pub(crate) reading: Ages,
    /// Writes, flushes and growth in flight.
    pub(crate) changing: Ages,
    /// Error number of the first failed flush; 0 for none.
    flush_failed: AtomicI32,
}

impl Counters {
    /// Latches a failed flush. The kernel reports a lost write to an open file only once, to the
    /// next flush, and has dropped the data by then. A later success would be false, so all flushes
    /// fail until the disk is reopened.
    pub(crate) fn latch(&self, error: &io::Error) {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        if self.flush_failed.compare_exchange(0, errno, Relaxed, Relaxed).is_ok() {
            tracing::error!(%error, "a flush failed: no write can become durable until the disk is reopened");
        }
    }

    /// Clears the latch after a reopening: no earlier request is in flight any more.
    pub(crate) fn unlatch(&self) {
        self.flush_failed.store(0, Relaxed);
    }

    /// Refuses a flush after a failed one.
    pub(crate) fn may_flush(&self) -> io::Result<()> {
        match self.flush_failed.load(Relaxed) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// A successful flush.
pub(crate) struct Flushed {
    pub(crate) begun: Instant,
    pub(crate) took: Duration,
}

/// A request in flight. It holds its slot of the queue depth.
pub(crate) struct Request {
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) done: oneshot::Sender<io::Result<()>>,
    pub(crate) slot: OwnedSemaphorePermit,
    pub(crate) counters: Arc<Counters>,
    /// Number among those in flight.
    number: u64,
}

impl Request {
    /// Creates a request that is about to be submitted to a driver.
    pub(crate) fn new(
        op: Op,
        offset: u64,
        done: oneshot::Sender<io::Result<()>>,
        slot: OwnedSemaphorePermit,
        counters: Arc<Counters>,
    ) -> Self {
        let number = op.ages(&counters).begin();
        Self { op, offset, done, slot, counters, number }
    }

    /// Counts and answers the request. `flushed` is its successful flush, if any.
    pub(crate) fn finish(self, result: io::Result<()>, flushed: Option<Flushed>) {
        let Self { op, done, slot, counters, number, .. } = self;
        let begun = op.ages(&counters).end(number);
        // The time before the flush. The flush has read the clock already.
        let took = || {
            let end = flushed.as_ref().map_or_else(now, |flushed| flushed.begun);
            begun.map_or(Duration::ZERO, |begun| end.saturating_duration_since(begun))
        };
        match (&op, &result) {
            (_, Err(_)) => {
                counters.errors.fetch_add(1, Relaxed);
            }
            (Op::Read { len, .. }, Ok(())) => {
                counters.read_us.add_us(took());
                counters.read_bytes.fetch_add(*len as u64, Relaxed);
            }
            (Op::Write { data, .. }, Ok(())) => {
                counters.write_us.add_us(took());
                counters.write_bytes.fetch_add(data.len() as u64, Relaxed);
            }
            (Op::Flush, Ok(())) => {}
        }
        if let Some(flushed) = &flushed {
            counters.flush_us.add_us(flushed.took);
        }
        // Memory and slot are released first, so that the woken caller finds them free.
        drop(op);
        drop(slot);
        // The send fails when the caller has dropped the future.
        let _ = done.send(result);
    }
}

/// Submits requests to the kernel. Dropping it waits for the requests in flight.
pub(crate) trait Driver: Send + Sync {
    /// Submits a request. Never blocks; the caller holds a slot.
    fn submit(&self, request: Request);
    /// A description for humans.
    fn describe(&self) -> String;
}
