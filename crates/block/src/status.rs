//! The status of an export, and the counters behind it.

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

/// Counters of an export since its creation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Connections that have chosen the export.
    pub connections: u64,
    /// Connections refused because the export had `export_connections_max`.
    pub connections_refused: u64,
    /// Requests carried out, successful or not.
    pub requests: RequestCounts,
    /// Requests refused because they were malformed, out of range, or writes to a read-only export.
    pub refused: u64,
    /// Bytes returned by reads.
    pub read_bytes: u64,
    /// Payload bytes written.
    pub written_bytes: u64,
    /// Failed disk operations of reads.
    pub read_errors: u64,
    /// Failed disk operations of writes, trims and flushes.
    pub write_errors: u64,
}

/// The state of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExportStatus {
    /// Name of the export.
    pub name: String,
    /// Exported part of the disk.
    pub window: Window,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Latched error after which all writes, trims and flushes fail; `None` without one.
    pub failure: Option<String>,
    /// Current connections.
    pub connections: usize,
    /// Requests that the disk has not completed.
    pub in_flight: usize,
    /// Age of the oldest of them in milliseconds; 0 when there is none.
    pub oldest_request_ms: u64,
    /// Memory of read replies and write payloads, in bytes.
    pub bytes_in_flight: usize,
    /// Limit of `bytes_in_flight`.
    pub bytes_in_flight_max: usize,
    /// Counters.
    pub counts: Counts,
    /// Limits of the export.
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
    /// Start time of each request, in order of arrival.
    since: BTreeMap<u64, Duration>,
}

/// The requests that the disk has not completed.
pub(crate) struct UnderWay {
    env: Env,
    begun: Mutex<Begun>,
}

/// One request in progress; it ends when this is dropped.
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

    /// The number of requests, and the age of the oldest in milliseconds.
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
