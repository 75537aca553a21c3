//! One request on its way through a driver, and the counters that it leaves behind.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_flow::HistogramCounter;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::AlignedBuf;

/// Memory that several pieces of one read fill side by side.
pub(crate) struct ReadTarget(AlignedBuf);

// SAFETY: the pieces are disjoint ranges, written by the kernel only, through the raw pointer; nobody looks at the
// bytes before `into_inner`, which needs the last reference.
unsafe impl Sync for ReadTarget {}

impl ReadTarget {
    pub(crate) fn new(mut buf: AlignedBuf, len: usize) -> Arc<Self> {
        buf.set_len(len);
        Arc::new(Self(buf))
    }

    /// The bytes, once no piece is in flight.
    pub(crate) fn into_inner(self: Arc<Self>) -> Option<AlignedBuf> {
        Arc::try_unwrap(self).ok().map(|target| target.0)
    }
}

/// What a request does. Owns its memory until the kernel is done with it.
pub(crate) enum Op {
    /// Fill `start..start + len` of the target.
    Read { target: Arc<ReadTarget>, start: usize, len: usize },
    /// Write `data`, which is aligned, then flush if asked.
    Write { data: Bytes, flush: bool },
    /// `fdatasync`.
    Flush,
}

impl Op {
    /// Whether it belongs to the lane of the commits.
    pub(crate) fn commits(&self) -> bool {
        matches!(self, Self::Flush | Self::Write { flush: true, .. })
    }

    /// Those of its kind that are in flight.
    fn ages<'a>(&self, counters: &'a Counters) -> &'a Ages {
        if matches!(self, Self::Read { .. }) { &counters.reading } else { &counters.changing }
    }

    /// Where the bytes are, and how many. Null and 0 for a flush.
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

/// Counters of a disk, and whether it may still be flushed; shared with the requests in flight.
#[derive(Default)]
pub(crate) struct Counters {
    /// Of reads that succeeded: from when one was given to the driver until the device had answered, in microseconds.
    pub(crate) read_us: HistogramCounter,
    pub(crate) read_bytes: AtomicU64,
    /// The same of writes, without the flushes behind them.
    pub(crate) write_us: HistogramCounter,
    pub(crate) write_bytes: AtomicU64,
    /// Of flushes that succeeded: how long the device took.
    pub(crate) flush_us: HistogramCounter,
    pub(crate) errors: AtomicU64,
    pub(crate) copied_bytes: AtomicU64,
    /// Reads in flight.
    pub(crate) reading: Ages,
    /// What changes the disk, in flight: writes, flushes, growing.
    pub(crate) changing: Ages,
    /// The error number of the first flush that failed; 0 for none.
    flush_failed: AtomicI32,
}

impl Counters {
    /// Remembers that a flush failed. The kernel tells an open file of a lost write once, to whichever flush comes first,
    /// and has dropped the data by then: a later success would be a lie, so there is none until the disk is opened again.
    pub(crate) fn latch(&self, error: &io::Error) {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        if self.flush_failed.compare_exchange(0, errno, Relaxed, Relaxed).is_ok() {
            tracing::error!(%error, "a flush failed: nothing can be made durable until the disk is opened again");
        }
    }

    /// The disk has been opened again: nothing of what was in flight before is any more.
    pub(crate) fn unlatch(&self) {
        self.flush_failed.store(0, Relaxed);
    }

    /// Refuses a flush after one that failed.
    pub(crate) fn may_flush(&self) -> io::Result<()> {
        match self.flush_failed.load(Relaxed) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// Since when each of some requests has been in flight.
#[derive(Default)]
pub(crate) struct Ages {
    next: AtomicU64,
    /// In the order in which they began.
    begun: Mutex<BTreeMap<u64, Instant>>,
}

impl Ages {
    /// One begins; its number.
    pub(crate) fn begin(&self) -> u64 {
        let mut begun = self.begun.lock();
        let number = self.next.fetch_add(1, Relaxed);
        begun.insert(number, now());
        number
    }

    /// It has ended; when it began.
    pub(crate) fn end(&self, number: u64) -> Option<Instant> {
        self.begun.lock().remove(&number)
    }

    /// For how long the oldest has been in flight, in milliseconds; 0 when none is.
    pub(crate) fn oldest_ms(&self) -> u64 {
        let oldest = self.begun.lock().first_key_value().map(|(_, begun)| begun.elapsed());
        oldest.map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A flush that succeeded.
pub(crate) struct Flushed {
    pub(crate) begun: Instant,
    pub(crate) took: Duration,
}

/// A request in flight. Holds its slot of the queue depth.
pub(crate) struct Request {
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) done: oneshot::Sender<io::Result<()>>,
    pub(crate) slot: OwnedSemaphorePermit,
    pub(crate) counters: Arc<Counters>,
    /// Its number among those in flight.
    number: u64,
}

impl Request {
    /// One that is about to be given to a driver.
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

    /// Counts and answers. `flushed` is the flush, where there was one that succeeded.
    pub(crate) fn finish(self, result: io::Result<()>, flushed: Option<Flushed>) {
        let Self { op, done, slot, counters, number, .. } = self;
        let begun = op.ages(&counters).end(number);
        // What comes before the flush. The flush has read the clock already.
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
        // The memory and the slot go first, so that whoever is woken finds them free.
        drop(op);
        drop(slot);
        // The caller may have gone: then nobody wants the answer.
        let _ = done.send(result);
    }
}

/// What takes requests to the kernel. Dropping it waits for the requests in flight.
pub(crate) trait Driver: Send + Sync {
    /// Starts a request. Never blocks; the caller holds a slot.
    fn submit(&self, request: Request);
    /// How it works, for people.
    fn describe(&self) -> String;
}

/// The time, for latencies of the device.
#[allow(clippy::disallowed_methods, reason = "below the seam: the simulator replaces the whole disk")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_in_flight_is_told() {
        let ages = Ages::default();
        assert_eq!(ages.oldest_ms(), 0);
        let (first, second) = (ages.begin(), ages.begin());
        ages.begun.lock().insert(first, now().checked_sub(Duration::from_secs(7)).expect("later than the epoch"));
        assert!((7_000..60_000).contains(&ages.oldest_ms()));
        ages.end(first);
        assert!(ages.oldest_ms() < 5_000);
        ages.end(second);
        assert_eq!(ages.oldest_ms(), 0);
    }
}
