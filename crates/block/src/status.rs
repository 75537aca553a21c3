//! What an export says about itself, and the counters behind it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use steadfast_flow::Env;

use crate::{Limits, Window};

/// Requests by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RequestCounts {
    /// Reads.
    pub read: u64,
    /// Writes.
    pub write: u64,
    /// Flushes, without those that a write with `FUA` implies.
    pub flush: u64,
    /// Trims.
    pub trim: u64,
    /// Writes of zeros.
    pub write_zeroes: u64,
}

/// Counters of an export since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Connections that have chosen the export.
    pub connections: u64,
    /// Connections that were refused because the export had its most.
    pub connections_refused: u64,
    /// Requests that were carried out, with success or not.
    pub requests: RequestCounts,
    /// Requests that were refused because they were malformed, out of range, or writes to a read-only export.
    pub refused: u64,
    /// Bytes that reads have given.
    pub read_bytes: u64,
    /// Bytes of payload that were written.
    pub written_bytes: u64,
    /// Operations of the disk under reads that failed.
    pub read_errors: u64,
    /// Operations of the disk that failed and were to change it or to flush it.
    pub write_errors: u64,
}

/// The state of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExportStatus {
    /// Its name.
    pub name: String,
    /// The part of the disk that it shows.
    pub window: Window,
    /// Whether writes are refused.
    pub read_only: bool,
    /// The error after which all writes, trims and flushes fail; `None` while there was none.
    pub failure: Option<String>,
    /// Connections now.
    pub connections: usize,
    /// Requests that the disk has not completed.
    pub in_flight: usize,
    /// For how long the oldest of them has been under way, in milliseconds; 0 when there is none.
    pub oldest_request_ms: u64,
    /// Bytes of read replies and write payloads in memory.
    pub bytes_in_flight: usize,
    /// The bound on them.
    pub bytes_in_flight_max: usize,
    /// Counters.
    pub counts: Counts,
    /// Its bounds.
    pub limits: Limits,
}

/// The kinds of requests that reach the disk.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
    Trim,
    WriteZeroes,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) connections: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) read_errors: AtomicU64,
    pub(crate) write_errors: AtomicU64,
    read: AtomicU64,
    write: AtomicU64,
    flush: AtomicU64,
    trim: AtomicU64,
    write_zeroes: AtomicU64,
}

impl Counters {
    pub(crate) fn count(&self, kind: Kind) {
        let counter = match kind {
            Kind::Read => &self.read,
            Kind::Write => &self.write,
            Kind::Flush => &self.flush,
            Kind::Trim => &self.trim,
            Kind::WriteZeroes => &self.write_zeroes,
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            connections: self.connections.load(Relaxed),
            connections_refused: self.connections_refused.load(Relaxed),
            requests: RequestCounts {
                read: self.read.load(Relaxed),
                write: self.write.load(Relaxed),
                flush: self.flush.load(Relaxed),
                trim: self.trim.load(Relaxed),
                write_zeroes: self.write_zeroes.load(Relaxed),
            },
            refused: self.refused.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            read_errors: self.read_errors.load(Relaxed),
            write_errors: self.write_errors.load(Relaxed),
        }
    }
}

#[derive(Default)]
struct Begun {
    next: u64,
    /// Since when each request has been under way, in the order in which they began.
    since: BTreeMap<u64, Duration>,
}

/// The requests that the disk has not completed.
pub(crate) struct UnderWay {
    env: Env,
    begun: Mutex<Begun>,
}

/// One request under way; it ends when this is dropped.
pub(crate) struct OneUnderWay<'a> {
    all: &'a UnderWay,
    number: u64,
}

impl UnderWay {
    pub(crate) fn new(env: Env) -> Self {
        Self { env, begun: Mutex::default() }
    }

    pub(crate) fn begin(&self) -> OneUnderWay<'_> {
        let now = self.env.now();
        let mut begun = self.begun.lock();
        let number = begun.next;
        begun.next += 1;
        begun.since.insert(number, now);
        OneUnderWay { all: self, number }
    }

    /// How many there are, and for how long the oldest has been under way, in milliseconds.
    pub(crate) fn status(&self) -> (usize, u64) {
        let now = self.env.now();
        let begun = self.begun.lock();
        let age = begun.since.first_key_value().map_or(Duration::ZERO, |(_, since)| now.saturating_sub(*since));
        (begun.since.len(), u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
    }
}

impl Drop for OneUnderWay<'_> {
    fn drop(&mut self) {
        self.all.begun.lock().since.remove(&self.number);
    }
}
