//! What is known of a request while it is served, and who is told when it ends.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::{Pass, Permit, Stages};

/// A request that has ended: its response has been sent, or given up.
#[derive(Debug, Clone)]
pub struct RequestRecord {
    /// S3's name of the operation (`PutObject`), or `-` when it was refused before that was known.
    pub operation: &'static str,
    /// HTTP status.
    pub status: u16,
    /// Body bytes received.
    pub bytes_in: u64,
    /// Body bytes handed to the connection.
    pub bytes_out: u64,
    /// From the request's head to the end of its response.
    pub duration: Duration,
    /// Whether the response was sent whole.
    pub complete: bool,
}

/// Is told of every request when it ends. Called on the threads that serve requests: must not block.
pub trait Observer: Send + Sync + 'static {
    /// A request has ended.
    fn finished(&self, record: &RequestRecord);
}

/// What went wrong with the body of a request. `s3s` wraps errors so that their type is lost; this is how we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyFault {
    /// It brought nothing for too long.
    Stalled,
    /// The connection broke.
    Broken,
}

/// One request.
#[derive(Debug)]
pub(crate) struct RequestContext {
    pub(crate) id: String,
    operation: OnceLock<&'static str>,
    pub(crate) bytes_in: AtomicU64,
    fault: AtomicU8,
    unread: AtomicU64,
    /// Its place among the requests that are served, or among the long answers that are sent.
    place: Mutex<Option<Pass>>,
    /// What its XML body may take of memory.
    xml: Mutex<Option<Permit>>,
    /// When an XML body must have come whole, in microseconds of `Env::now`; 0: never.
    body_due: AtomicU64,
    /// Where its time goes, if anybody wants to know.
    pub(crate) stages: Option<Arc<Stages>>,
    /// Counts the requests in flight, as many as there are copies of it.
    _in_flight: Arc<()>,
}

impl RequestContext {
    pub(crate) fn new(id: u64, stages: Option<Arc<Stages>>, in_flight: Arc<()>) -> Self {
        Self {
            id: format!("{id:016X}"),
            operation: OnceLock::new(),
            bytes_in: AtomicU64::new(0),
            fault: AtomicU8::new(0),
            unread: AtomicU64::new(0),
            place: Mutex::new(None),
            xml: Mutex::new(None),
            body_due: AtomicU64::new(0),
            stages,
            _in_flight: in_flight,
        }
    }

    /// What it turned out to be: the name of an operation that is served, or one name for the rest,
    /// so that clients cannot make up metric labels.
    pub(crate) fn set_operation(&self, name: &'static str) {
        let _ = self.operation.set(name);
    }

    pub(crate) fn operation(&self) -> &'static str {
        self.operation.get().copied().unwrap_or("-")
    }

    pub(crate) fn hold_place(&self, place: Pass) {
        *self.place.lock() = Some(place);
    }

    /// Gives the place to another request: this one only waits for its client.
    pub(crate) fn release_place(&self) {
        *self.place.lock() = None;
    }

    /// Keeps what the XML body takes, until the operation is done with it.
    pub(crate) fn hold_xml(&self, permit: Permit) {
        *self.xml.lock() = Some(permit);
    }

    pub(crate) fn release_xml(&self) {
        *self.xml.lock() = None;
    }

    /// The body is to have come whole by then.
    pub(crate) fn set_body_due(&self, due: Duration) {
        self.body_due.store(u64::try_from(due.as_micros()).unwrap_or(u64::MAX).max(1), Relaxed);
    }

    pub(crate) fn body_due(&self) -> Option<Duration> {
        Some(self.body_due.load(Relaxed)).filter(|due| *due > 0).map(Duration::from_micros)
    }

    pub(crate) fn set_fault(&self, fault: BodyFault) {
        self.fault.store(fault as u8 + 1, Relaxed);
    }

    /// The body was let go of before its end, which is this many bytes away (`u64::MAX` when nobody said).
    pub(crate) fn set_unread(&self, bytes: u64) {
        self.unread.store(bytes, Relaxed);
    }

    /// How much of the body will not be asked for.
    pub(crate) fn unread(&self) -> u64 {
        self.unread.load(Relaxed)
    }

    pub(crate) fn fault(&self) -> Option<BodyFault> {
        match self.fault.load(Relaxed) {
            0 => None,
            1 => Some(BodyFault::Stalled),
            _ => Some(BodyFault::Broken),
        }
    }
}
