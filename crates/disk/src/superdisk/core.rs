//! The shared parts of a super-disk: the legs, the map, the counters, and operations in progress.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_flow::{Env, Pace, has_fault};
use tokio::sync::{Notify, oneshot};

use super::heal::Heal;
use super::late::Late;
use super::map::RegionMap;
use super::options::{SuperdiskOptions, SuperdiskSabotage};
use super::pair::{FAST_START, Identity, LAST_WRITTEN, NO_LEG};
use super::read::{Hedge, SMALL_BYTES};
use crate::intent::{Intent, Readiness};
use crate::{BLOCK, BufPool, Disk};

/// Number of sequential writers that are recognised.
const RECENT_ENDS: usize = 8;

/// The state of the fast leg, apart from the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Leg {
    /// In use.
    Up,
    /// Not configured.
    Missing,
    /// Owned by another pair or another program.
    Foreign(String),
    /// Does not work.
    Failed(String),
}

/// The mutable state, under one lock that is never held over an await.
pub(crate) struct PairState {
    pub(crate) map: RegionMap,
    pub(crate) intent: Intent,
    pub(crate) leg: Leg,
    /// Number of failures of the fast leg. Results of operations that began before a failure do not
    /// count after it.
    pub(crate) failures: u64,
    /// The durable leg's label as last written.
    pub(crate) identity: Identity,
    /// Why the fast leg's content was refused at the last opening, if it was.
    pub(crate) refused: Option<String>,
    /// Whether the content was refused and is not yet rebuilt.
    pub(crate) stale: bool,
    /// A flush of the fast leg has failed, so the leg must be reopened.
    pub(crate) spoiled: bool,
    /// The fast leg did not answer, so it must be reopened.
    pub(crate) silent: bool,
    /// Number of times that the leg was taken back after a failed flush without having been
    /// complete since.
    pub(crate) relapses: u32,
    /// Queued repairs.
    pub(crate) heals: std::collections::VecDeque<Heal>,
    /// Whether the copying task waits for work.
    pub(crate) copier_idle: bool,
    /// Ends of the last few writes. A write that begins at one of them is sequential.
    recent_ends: [u64; RECENT_ENDS],
    recent_next: usize,
    /// The fast leg cannot grow any further.
    pub(crate) fast_full: bool,
}

impl PairState {
    /// Whether writes are tracked: the durable leg names a fast leg, or one may return later.
    pub(crate) fn follows(&self) -> bool {
        self.identity.fast != NO_LEG || matches!(self.leg, Leg::Failed(_))
    }

    /// Requests the intent bits of a range: see [`Intent::request`].
    pub(crate) fn request_bits(&mut self, offset: u64, len: u64, failed: u64) -> io::Result<Readiness> {
        self.intent.request(self.map.regions_of(offset, len), failed)
    }

    /// The durable leg's label with the next event.
    pub(crate) fn raised(&self) -> Identity {
        Identity { last_written: self.last_written(), ..self.identity.raised() }
    }

    /// The blocks written last, as stored in the label.
    fn last_written(&self) -> [u64; LAST_WRITTEN] {
        let newest = |i: usize| (self.recent_next + 2 * RECENT_ENDS - 1 - i) % RECENT_ENDS;
        std::array::from_fn(|i| match self.recent_ends[newest(i)] {
            u64::MAX => 0,
            // The block before the end, plus one.
            end => end / BLOCK as u64,
        })
    }

    /// Requests the bits behind a sequential write, so that the next write need not wait.
    pub(crate) fn request_ahead(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        match self.recent_ends.iter_mut().find(|recent| **recent == offset) {
            Some(recent) => {
                *recent = end;
                let failed = self.intent.failed_rounds();
                // The write that needs the bit gets the error.
                let _ = self.request_bits(end, self.map.region_bytes(), failed);
            }
            None => {
                self.recent_ends[self.recent_next] = end;
                self.recent_next = (self.recent_next + 1) % RECENT_ENDS;
            }
        }
    }
}

#[derive(Default)]
pub(crate) struct SuperdiskCounters {
    pub(crate) reads_fast: AtomicU64,
    pub(crate) reads_durable: AtomicU64,
    pub(crate) reads_hedged: AtomicU64,
    pub(crate) hedges_won: AtomicU64,
    pub(crate) fast_errors: AtomicU64,
    pub(crate) durable_errors: AtomicU64,
    pub(crate) healed_fast: AtomicU64,
    pub(crate) healed_durable: AtomicU64,
    pub(crate) heal_failures: AtomicU64,
    pub(crate) fast_writes: AtomicU64,
    pub(crate) skipped_fast_writes: AtomicU64,
    pub(crate) fast_reopened: AtomicU64,
    pub(crate) rebuilt_bytes: AtomicU64,
    /// Current rebuild rate in bytes per second.
    pub(crate) rebuild_bytes_s: AtomicU64,
}

/// Increments a counter.
pub(crate) fn tick(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

pub(crate) struct SuperdiskShared {
    pub(crate) env: Env,
    pub(crate) options: SuperdiskOptions,
    pub(crate) durable: Arc<dyn Disk>,
    pub(crate) fast: Option<Arc<dyn Disk>>,
    pub(crate) state: Mutex<PairState>,
    pub(crate) counters: SuperdiskCounters,
    /// Bytes of writes in flight to the fast leg.
    pub(crate) pending: AtomicU64,
    /// Memory for those bytes. The caller's memory may be one of a few buffers, and a hanging fast
    /// leg must not keep it.
    pub(crate) copies: BufPool,
    /// Fast reads that are overdue.
    pub(crate) overdue: AtomicU64,
    errors_in_a_row: AtomicU32,
    /// Requests in flight that change the fast leg.
    pub(crate) fast_requests: AtomicU64,
    /// When to hedge small reads and large reads.
    pub(crate) hedges: [Mutex<Hedge>; 2],
    /// Detects late reads of the fast leg.
    pub(crate) late: Late,
    pub(crate) pace: Pace,
    pub(crate) copier_wake: Notify,
    /// Intent bits have been requested, or must be cleared.
    pub(crate) intent_wake: Notify,
    /// A round of setting bits has ended.
    pub(crate) intent_done: Notify,
    /// Lock of the durable leg's label and bits: one writer at a time.
    pub(crate) rounds: tokio::sync::Mutex<()>,
    /// Lock of the fast leg's labels: one writer at a time.
    pub(crate) stamping: Arc<tokio::sync::Mutex<()>>,
    pub(crate) closing: AtomicBool,
    /// Number of background tasks.
    pub(crate) running: AtomicU32,
    /// A background task or the last write in flight to the fast leg has ended.
    pub(crate) quiet: Notify,
}

/// An operation on one leg or both. It ends for the map when the last reference is dropped. Each
/// task that carries it out holds a reference, so it has then returned everywhere.
pub(crate) struct TrackedOp {
    shared: Arc<SuperdiskShared>,
    id: u64,
    offset: u64,
    len: u64,
    pub(crate) durable_ok: AtomicBool,
    pub(crate) fast_ok: AtomicBool,
}

impl TrackedOp {
    pub(crate) fn new(shared: &Arc<SuperdiskShared>, id: u64, offset: u64, len: u64) -> Arc<Self> {
        Arc::new(Self {
            shared: shared.clone(),
            id,
            offset,
            len,
            durable_ok: AtomicBool::new(false),
            fast_ok: AtomicBool::new(false),
        })
    }

    /// Whether an overlapping operation has begun since this one began.
    pub(crate) fn is_spoiled(&self) -> bool {
        self.shared.state.lock().map.is_spoiled(self.id, self.offset, self.len)
    }

    /// Marks that both legs now hold the same.
    pub(crate) fn good(&self) {
        self.durable_ok.store(true, SeqCst);
        self.fast_ok.store(true, SeqCst);
    }
}

impl Drop for TrackedOp {
    fn drop(&mut self) {
        let good = self.durable_ok.load(SeqCst) && self.fast_ok.load(SeqCst);
        let mut state = self.shared.state.lock();
        state.map.finish(self.id, self.offset, self.len, good);
        self.shared.wake(&mut state);
    }
}

impl SuperdiskShared {
    pub(crate) fn new(
        env: Env,
        options: SuperdiskOptions,
        legs: (Arc<dyn Disk>, Option<Arc<dyn Disk>>),
        map: RegionMap,
        intent: Intent,
        leg: Leg,
        identity: Identity,
    ) -> Arc<Self> {
        let (durable, fast) = legs;
        let pace = Pace::new(options.rebuild_bytes_s, Duration::from_millis(100), env.clone());
        let hedge = || Mutex::new(Hedge::new(&options));
        // Size classes round up by a quarter.
        let copies = BufPool::new(usize::try_from(options.fast_pending_bytes_max / 4 * 5).unwrap_or(usize::MAX));
        let state = PairState {
            map,
            intent,
            leg,
            failures: 0,
            identity,
            refused: None,
            stale: false,
            spoiled: false,
            silent: false,
            relapses: 0,
            heals: std::collections::VecDeque::new(),
            copier_idle: false,
            recent_ends: [u64::MAX; RECENT_ENDS],
            recent_next: 0,
            fast_full: false,
        };
        Arc::new(Self {
            hedges: [hedge(), hedge()],
            env,
            options,
            durable,
            fast,
            state: Mutex::new(state),
            counters: SuperdiskCounters::default(),
            pending: AtomicU64::new(0),
            copies,
            overdue: AtomicU64::new(0),
            errors_in_a_row: AtomicU32::new(0),
            fast_requests: AtomicU64::new(0),
            late: Late::default(),
            pace,
            copier_wake: Notify::new(),
            intent_wake: Notify::new(),
            intent_done: Notify::new(),
            rounds: tokio::sync::Mutex::new(()),
            stamping: Arc::new(tokio::sync::Mutex::new(())),
            closing: AtomicBool::new(false),
            running: AtomicU32::new(0),
            quiet: Notify::new(),
        })
    }

    /// Whether this defect is injected for a test.
    pub(crate) fn is_sabotaged(&self, sabotage: SuperdiskSabotage) -> bool {
        has_fault(self.options.sabotage, sabotage)
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.env.now_ms()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(SeqCst)
    }

    /// The hedge of reads of a length.
    pub(crate) fn hedge(&self, len: usize) -> &parking_lot::Mutex<Hedge> {
        &self.hedges[usize::from(len > SMALL_BYTES)]
    }

    /// Returns bytes that a write reserved.
    pub(crate) fn unbook(&self, len: u64) {
        let before = self.pending.fetch_sub(len, SeqCst);
        assert!(before >= len, "{len} bytes are returned to a limit of which {before} were taken");
    }

    /// The fast leg, if it is in use.
    pub(crate) fn fast_up(&self) -> Option<Arc<dyn Disk>> {
        let up = self.state.lock().leg == Leg::Up;
        self.fast.clone().filter(|_| up)
    }

    /// Bytes of the durable leg that fit the fast one.
    pub(crate) fn fast_limit(&self) -> u64 {
        super::attach::fast_limit(self.fast.as_ref())
    }

    /// Wakes the copying task if it has work.
    pub(crate) fn wake(&self, state: &mut PairState) {
        if state.copier_idle && (state.map.counts().to_rebuild > 0 || !state.heals.is_empty()) {
            state.copier_idle = false;
            self.copier_wake.notify_one();
        }
    }

    /// Takes the fast leg out of use.
    pub(crate) fn fail_fast(&self, why: String) {
        let dropped = {
            let mut state = self.state.lock();
            if state.leg != Leg::Up {
                return;
            }
            let disk = self.fast.as_ref().map(|fast| fast.describe());
            tracing::warn!(disk, why, "the fast leg has failed: the durable leg serves all requests");
            state.leg = Leg::Failed(why);
            state.failures += 1;
            if !self.is_sabotaged(SuperdiskSabotage::FailureDoesNotSpoil) {
                state.map.spoil_all();
            }
            state.intent.stop_clear();
            state.copier_idle = false;
            // The drop below ends their operations, which takes the lock.
            std::mem::take(&mut state.heals)
        };
        drop(dropped);
        self.copier_wake.notify_one();
    }

    /// Counts an error of the fast leg that concerns more than one bad sector. Ranges of failed
    /// reads are repaired, and the write of that repair shows whether the whole leg has failed.
    pub(crate) fn fast_error(&self, what: &str, error: &io::Error) {
        tick(&self.counters.fast_errors);
        if self.errors_in_a_row.fetch_add(1, Relaxed) + 1 >= self.options.fast_errors_max {
            self.fail_fast(format!("{what}: {error}"));
        }
    }

    /// Records that the fast leg has completed a request.
    pub(crate) fn fast_works(&self) {
        if self.errors_in_a_row.load(Relaxed) != 0 {
            self.errors_in_a_row.store(0, Relaxed);
        }
    }

    /// Writes to the fast leg in a separate task, which holds `op` until the leg has returned,
    /// however late. A leg that exceeds the time limit has failed. `pending` is the number of bytes
    /// that the write holds of the limit. With `confirm`, success counts for `op`.
    pub(crate) fn send_fast(
        self: &Arc<Self>,
        fast: &Arc<dyn Disk>,
        offset: u64,
        data: Bytes,
        op: Arc<TrackedOp>,
        pending: u64,
        confirm: bool,
    ) -> oneshot::Receiver<io::Result<()>> {
        let (done, answer) = oneshot::channel();
        let (shared, mut write) = (self.clone(), fast.write(FAST_START + offset, data));
        let counted = FastRequest::new(self);
        self.env.spawn("superdisk-fast-write", async move {
            let limit = shared.options.fast_write_limit;
            let result = match shared.env.timeout(limit, &mut write).await {
                Some(result) => result,
                None => {
                    shared.fail_fast(format!("a write has not returned for {} ms", limit.as_millis()));
                    if shared.is_sabotaged(SuperdiskSabotage::LateWriteForgotten) {
                        drop((op, counted));
                        shared.unbook(pending);
                        let _ = write.await;
                        return;
                    }
                    (&mut write).await
                }
            };
            drop((write, counted));
            let ignored = shared.is_sabotaged(SuperdiskSabotage::FastWriteErrorIgnored);
            if ignored && confirm {
                op.fast_ok.store(true, SeqCst);
            }
            match &result {
                Ok(()) => {
                    shared.fast_works();
                    if confirm {
                        op.fast_ok.store(true, SeqCst);
                    }
                }
                Err(error) => shared.fast_error("write", error),
            }
            drop(op);
            shared.unbook(pending);
            if shared.is_closing() {
                shared.quiet.notify_waiters();
            }
            // The caller may not wait for the result.
            let _ = done.send(result);
        });
        answer
    }

    /// Like [`SuperdiskShared::send_fast`], but waits for the result up to the write limit.
    pub(crate) async fn write_fast(
        self: &Arc<Self>,
        fast: &Arc<dyn Disk>,
        offset: u64,
        data: Bytes,
        op: &Arc<TrackedOp>,
    ) -> io::Result<()> {
        let answer = self.send_fast(fast, offset, data, op.clone(), 0, false);
        // The task has a separate limit, which begins at the same time and reports the failure.
        match self.env.timeout(self.options.fast_write_limit, answer).await {
            Some(Ok(result)) => result,
            _ => Err(late("write")),
        }
    }

    /// Reads from the fast leg, up to the read limit.
    pub(crate) async fn read_fast(&self, fast: &Arc<dyn Disk>, offset: u64, len: usize) -> io::Result<Bytes> {
        match self.env.timeout(self.options.fast_read_limit, fast.read(FAST_START + offset, len)).await {
            Some(Ok(bytes)) => {
                self.fast_works();
                Ok(bytes)
            }
            Some(Err(error)) => {
                tick(&self.counters.fast_errors);
                Err(error)
            }
            None => {
                self.fail_fast(format!("a read has not returned for {} ms", self.options.fast_read_limit.as_millis()));
                Err(late("read"))
            }
        }
    }

    /// Runs other work that changes the fast leg in a separate task, and waits for it up to the
    /// write limit.
    pub(crate) async fn on_fast<T: Send + 'static>(
        self: &Arc<Self>,
        what: &'static str,
        work: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        let (done, answer) = oneshot::channel();
        let counted = FastRequest::new(self);
        self.env.spawn("superdisk-fast-request", async move {
            let result = work.await;
            drop(counted);
            // The caller may have stopped waiting.
            let _ = done.send(result);
        });
        match self.env.timeout(self.options.fast_write_limit, answer).await {
            Some(Ok(result)) => result,
            _ => {
                self.fail_fast(format!("{what} has not returned for {} ms", self.options.fast_write_limit.as_millis()));
                Err(late(what))
            }
        }
    }
}

/// Counts a request that changes the fast leg until it has returned.
pub(crate) struct FastRequest(Arc<SuperdiskShared>);

impl FastRequest {
    pub(crate) fn new(shared: &Arc<SuperdiskShared>) -> Self {
        shared.fast_requests.fetch_add(1, SeqCst);
        Self(shared.clone())
    }
}

impl Drop for FastRequest {
    fn drop(&mut self) {
        let before = self.0.fast_requests.fetch_sub(1, SeqCst);
        assert!(before > 0, "a request of the fast leg ended twice");
    }
}

fn late(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("the fast leg has not returned from a {what}"))
}
