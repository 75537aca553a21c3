//! Fills: an object being fetched from its origin, once for all requests.
//!
//! `first_request` asks for the first segment and learns the object; `schedule` decides which
//! segment is next; `fetch` fetches one; `commit` makes the whole object; `reader` serves its bytes
//! meanwhile.

mod commit;
mod fetch;
mod first_request;
mod reader;
mod schedule;
mod state;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::Mutex;
use steadfast_log::Lsn;
use steadfast_store::{FillCondition, ObjectInfo, ObjectReader, StoredObject, WEAK_ETAG};
use tokio::sync::Notify;

use crate::bucket_state::{BucketState, busy};
use crate::error::EdgeError;
use crate::fresh::{CacheHeaders, FetchStamp, Moment};
use crate::origin::MADE_TAG;
use crate::sabotage::Sabotage;
use crate::space::StoppedFill;
use first_request::FirstRequest;
use state::FillState;

pub use reader::FillReader;

/// Longest wait for other fills to end.
const FILL_WAIT: Duration = Duration::from_secs(30);

/// What begins a fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Only the headers are wanted.
    Head,
    /// The bytes from here on are wanted.
    Get(u64),
}

/// The object that a fill fetches. All of it is known from the headers of the first answer.
pub(crate) struct FillTarget {
    pub(crate) info: ObjectInfo,
    /// What the commit stores.
    stored: StoredObject,
    /// The strong entity tag with quotes, which every answer must have; without one, the object
    /// comes from one answer.
    if_match: Option<String>,
    segment_bytes: u64,
    headers: CacheHeaders,
}

/// The stored object that a fill is to replace if the origin has another version.
pub(crate) struct Base {
    pub(crate) info: ObjectInfo,
    stamp: FetchStamp,
}

impl Base {
    /// `None` for an object that a client wrote.
    pub(crate) fn of(info: &ObjectInfo) -> Option<Box<Self>> {
        Some(Box::new(Self { info: info.clone(), stamp: FetchStamp::of(info)? }))
    }

    /// The condition of a request: an answer is wanted only if the object changed.
    fn condition(&self) -> (&'static str, String) {
        let attributes = &self.info.attributes;
        match attributes.system.get(WEAK_ETAG).map(String::as_str) {
            None => ("if-none-match", format!("\"{}\"", attributes.etag)),
            Some(MADE_TAG) => {
                let modified = UNIX_EPOCH + Duration::from_millis(self.info.modified_ms);
                ("if-modified-since", httpdate::fmt_http_date(modified))
            }
            Some(_) => ("if-none-match", format!("W/\"{}\"", attributes.etag)),
        }
    }
}

impl FillTarget {
    fn segments(&self) -> u32 {
        // `first_request` refuses objects with more segments than an upload has parts.
        self.info.size.div_ceil(self.segment_bytes).max(1) as u32
    }

    fn range(&self, segment: u32) -> Range<u64> {
        let start = u64::from(segment) * self.segment_bytes;
        start..(start + self.segment_bytes).min(self.info.size)
    }

    fn segment_of(&self, byte: u64) -> u32 {
        ((byte / self.segment_bytes) as u32).min(self.segments() - 1)
    }
}

/// How a fill ended.
#[derive(Clone)]
pub(crate) enum FillEnd {
    /// The object is stored.
    Stored(Arc<ObjectReader>),
    /// The stored object of this version is still the one that the origin has.
    Renewed(Lsn),
    /// Nothing more was wanted, or nothing of it may be stored.
    Stopped,
    /// The object cannot be stored: each request asks the origin for itself.
    NotStorable,
    /// The answer to HEAD does not say how long the object is.
    NoLength,
    /// The origin or the store failed.
    Failed(EdgeError),
}

/// An object being fetched.
pub(crate) struct Fill {
    bucket_state: Arc<BucketState>,
    key: String,
    /// The client whose request began it.
    client: Arc<str>,
    base: Option<Box<Base>>,
    /// Whether the answers may be stored, and other requests may join.
    attached: Arc<AtomicBool>,
    state: Mutex<FillState>,
    /// Readers wait for it.
    progress: Notify,
    /// The scheduler waits for it.
    work: Notify,
}

impl Fill {
    pub(crate) fn new(
        bucket_state: Arc<BucketState>,
        key: &str,
        client: Arc<str>,
        base: Option<Box<Base>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            bucket_state,
            key: key.to_owned(),
            client,
            base,
            attached: Arc::new(AtomicBool::new(true)),
            state: Mutex::new(FillState::default()),
            progress: Notify::new(),
            work: Notify::new(),
        })
    }

    fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Acquire)
    }

    fn condition(&self) -> FillCondition {
        let version = self.base.as_ref().map(|base| base.info.version);
        let ignored = self.bucket_state.has(Sabotage::CommitWithoutCondition)
            || self.bucket_state.has(Sabotage::CommitChecksFirst);
        let attached = if ignored { Arc::new(AtomicBool::new(true)) } else { self.attached.clone() };
        FillCondition { version, attached }
    }

    /// Keeps later requests from joining, and the answers from being stored. Readers that have the
    /// headers stay.
    pub(crate) fn detach(&self) {
        {
            let _state = self.state.lock();
            self.attached.store(false, Ordering::Release);
        }
        self.work.notify_one();
        self.progress.notify_waiters();
    }

    /// Does `work` unless the fill is detached. A purge that detaches it comes before or after.
    fn if_attached(&self, work: impl FnOnce()) -> bool {
        let _state = self.state.lock();
        if self.is_attached() {
            work();
        }
        self.is_attached()
    }

    /// Joins the fill: it continues while the holder lives. `None` when it has ended, or its
    /// answers may not be used by later requests.
    pub(crate) fn join(self: &Arc<Self>, opening: Opening) -> Option<Holder> {
        let mut state = self.state.lock();
        if state.end.is_some() || !self.is_attached() && !self.bucket_state.has(Sabotage::DetachedJoined) {
            return None;
        }
        if state.stamp.is_some_and(|stamp| !stamp.is_shared(self.bucket_state.moment())) {
            // Too old for this request. The readers that are there keep it.
            drop(state);
            self.detach();
            return None;
        }
        let id = state.add_holder(opening != Opening::Head);
        drop(state);
        self.work.notify_one();
        Some(Holder { fill: self.clone(), id, joined: self.bucket_state.moment() })
    }

    /// Fetches the object, until it is stored or nothing more is wanted.
    pub(crate) async fn run(self: &Arc<Self>, opening: Opening) {
        let begun = self.bucket_state.env.now();
        let end = match self.bucket_state.bucket_gates.fills.enter(&self.client, FILL_WAIT).await {
            Ok(_pass) if self.is_wanted() => {
                FirstRequest(self).fetch_all(opening).await.unwrap_or_else(FillEnd::Failed)
            }
            Ok(_pass) => FillEnd::Stopped,
            Err(refused) => FillEnd::Failed(busy(&refused)),
        };
        if matches!(end, FillEnd::Stored(_)) {
            self.bucket_state.counters.stored();
            self.bucket_state.gates.fill_us.add_us(self.bucket_state.env.now().saturating_sub(begun));
        }
        self.close(end).await;
    }

    /// Whether a request still waits for it, or a stored object is to be replaced.
    pub(super) fn is_wanted(&self) -> bool {
        self.base.is_some() || self.state.lock().has_holders()
    }

    /// Ends the fill for all requests that wait, and frees what it has stored in part, unless a
    /// later fill may continue it.
    async fn close(&self, end: FillEnd) {
        let (upload, room, keep, _promise) = {
            let mut state = self.state.lock();
            let changed = matches!(end, FillEnd::Failed(EdgeError::Changed));
            let resumable =
                self.is_attached() && !changed && state.target.as_ref().is_some_and(|p| p.if_match.is_some());
            let stored = state.stored_bytes();
            let mut room = state.room.take();
            if let Some(room) = &mut room {
                room.shrink(stored);
            }
            let whole = matches!(end, FillEnd::Stored(_));
            state.end = Some(end);
            // Slow readers keep the fill, but not its memory.
            state.release_memory();
            let upload = state.upload.take().filter(|_| !whole);
            (upload, room, resumable && stored > 0, state.reservation.take())
        };
        self.progress.notify_waiters();
        let (Some(upload), Some(room)) = (upload, room) else { return };
        self.bucket_state.inventory.stopped.lock().insert(upload.clone(), StoppedFill { key: self.key.clone(), room });
        if !keep {
            self.abort(&upload).await;
        }
    }

    async fn abort(&self, upload: &str) {
        if let Err(error) = self.bucket_state.abort_stopped(&self.key, upload).await {
            // The sweep tries again.
            tracing::debug!(bucket = %self.bucket_state.options.bucket, key = %self.key, %error, "a fill was not aborted");
        }
    }
}

/// Keeps a fill alive for one request.
pub(crate) struct Holder {
    fill: Arc<Fill>,
    id: u64,
    joined: Moment,
}

impl Holder {
    /// Waits until the headers are known. An end without headers, or of a fill that has nothing to
    /// offer any more, is an error.
    pub(crate) async fn target(&self) -> Result<Arc<FillTarget>, FillEnd> {
        loop {
            let progress = self.fill.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            {
                let state = self.fill.state.lock();
                let answered = state.target.is_some() || state.end.is_some();
                if answered && state.stamp.is_some_and(|stamp| !stamp.is_shared(self.joined)) {
                    // The origin was asked too long before this request.
                    return Err(FillEnd::Stopped);
                }
                match (&state.target, &state.end) {
                    (Some(target), None | Some(FillEnd::Stored(_))) => return Ok(target.clone()),
                    (_, Some(end)) => return Err(end.clone()),
                    (None, None) if !self.fill.is_attached() => return Err(FillEnd::Stopped),
                    (None, None) => {}
                }
            }
            progress.await;
        }
    }

    /// The headers, also of a fill that ended because only they were wanted. `None` if the origin
    /// was asked too long before this request.
    pub(crate) fn seen(&self) -> Option<Arc<FillTarget>> {
        let state = self.fill.state.lock();
        state.target.clone().filter(|_| state.stamp.is_some_and(|stamp| stamp.is_shared(self.joined)))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.fill.state.lock().remove_holder(self.id);
        self.fill.work.notify_one();
    }
}
