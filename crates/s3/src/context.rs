//! The state of one request while it is served, and the observer of its end.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use parking_lot::Mutex;
use s3s::StdError;
use steadfast_flow::{Pass, Permit, Stages};

use crate::caller::{Caller, ClientLink};

/// A request that has ended: the server has sent its response or given it up.
#[derive(Debug, Clone)]
pub struct RequestRecord {
    /// S3's name of the operation (`PutObject`), or `-` if the request was refused before it was
    /// known.
    pub operation: &'static str,
    /// HTTP status.
    pub status: u16,
    /// Body bytes received.
    pub bytes_in: u64,
    /// Body bytes handed to the connection.
    pub bytes_out: u64,
    /// Time from the request's head to the end of its response.
    pub duration: Duration,
    /// Whether the response was sent whole.
    pub complete: bool,
}

/// Receives a record of every request when it ends. The threads that serve requests call it, so it
/// must not block.
pub trait Observer: Send + Sync + 'static {
    /// A request has ended.
    fn finished(&self, record: &RequestRecord);
}

/// The failure of a request's body. `s3s` wraps errors and so hides their type; the context keeps
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyFault {
    /// The client sent too little for too long.
    Stalled,
    /// The connection broke.
    Broken,
}

/// The client of a request.
#[derive(Debug, Clone)]
pub(crate) struct RequestClient {
    /// The group of its address, which has a share of the server.
    pub(crate) group: Arc<str>,
    pub(crate) link: ClientLink,
}

/// What no operation has read of a body.
#[derive(Debug, Default)]
struct UnreadBody {
    bytes: u64,
    body: Option<UnsyncBoxBody<Bytes, StdError>>,
}

/// The state of one request.
#[derive(Debug)]
pub(crate) struct RequestContext {
    pub(crate) id: String,
    operation: OnceLock<&'static str>,
    /// Who makes it; empty until its signature has been verified.
    pub(crate) caller: OnceLock<Caller>,
    pub(crate) bytes_in: AtomicU64,
    fault: AtomicU8,
    unread: Mutex<UnreadBody>,
    /// The permit: for a request being served, or for a long answer being sent.
    place: Mutex<Option<Pass>>,
    /// The memory permit of the XML body.
    xml: Mutex<Option<Permit>>,
    /// The deadline for a whole XML body, in microseconds of `Env::now`; 0: none.
    body_due: AtomicU64,
    /// The time spent in each stage; `None` when slow requests are not recorded.
    pub(crate) stages: Option<Arc<Stages>>,
    /// Counts the requests in flight by its copies: each request holds one.
    _in_flight: Arc<()>,
}

impl RequestContext {
    pub(crate) fn new(id: u64, stages: Option<Arc<Stages>>, in_flight: Arc<()>) -> Self {
        Self {
            id: format!("{id:016X}"),
            operation: OnceLock::new(),
            caller: OnceLock::new(),
            bytes_in: AtomicU64::new(0),
            fault: AtomicU8::new(0),
            unread: Mutex::default(),
            place: Mutex::new(None),
            xml: Mutex::new(None),
            body_due: AtomicU64::new(0),
            stages,
            _in_flight: in_flight,
        }
    }

    /// Sets the operation: the name of a served operation, or one name for all others, so that
    /// clients cannot create metric labels.
    pub(crate) fn set_operation(&self, name: &'static str) {
        let _ = self.operation.set(name);
    }

    pub(crate) fn operation(&self) -> &'static str {
        self.operation.get().copied().unwrap_or("-")
    }

    pub(crate) fn hold_place(&self, place: Pass) {
        *self.place.lock() = Some(place);
    }

    /// Releases the permit for another request: this one only waits for its client.
    pub(crate) fn release_place(&self) {
        *self.place.lock() = None;
    }

    /// Keeps the memory permit of the XML body until the operation has finished with it.
    pub(crate) fn hold_xml(&self, permit: Permit) {
        *self.xml.lock() = Some(permit);
    }

    pub(crate) fn release_xml(&self) {
        *self.xml.lock() = None;
    }

    /// Sets the deadline by which the whole body must have arrived.
    pub(crate) fn set_body_due(&self, due: Duration) {
        self.body_due.store(u64::try_from(due.as_micros()).unwrap_or(u64::MAX).max(1), Relaxed);
    }

    pub(crate) fn body_due(&self) -> Option<Duration> {
        Some(self.body_due.load(Relaxed)).filter(|due| *due > 0).map(Duration::from_micros)
    }

    pub(crate) fn set_fault(&self, fault: BodyFault) {
        self.fault.store(fault as u8 + 1, Relaxed);
    }

    /// Keeps the body of a request that has been answered before it was read.
    pub(crate) fn leave_unread(&self, body: UnsyncBoxBody<Bytes, StdError>) {
        if !body.is_end_stream() {
            let bytes = body.size_hint().exact().unwrap_or(u64::MAX);
            *self.unread.lock() = UnreadBody { bytes, body: Some(body) };
        }
    }

    /// The rest of the body, to be discarded.
    pub(crate) fn take_unread(&self) -> Option<UnsyncBoxBody<Bytes, StdError>> {
        self.unread.lock().body.take()
    }

    /// The body has been discarded to its end.
    pub(crate) fn set_all_read(&self) {
        self.unread.lock().bytes = 0;
    }

    /// The bytes of the body that have not been read; `u64::MAX`: unknown.
    pub(crate) fn unread(&self) -> u64 {
        self.unread.lock().bytes
    }

    pub(crate) fn fault(&self) -> Option<BodyFault> {
        match self.fault.load(Relaxed) {
            0 => None,
            1 => Some(BodyFault::Stalled),
            _ => Some(BodyFault::Broken),
        }
    }
}
