//! What the parts of a super-disk share: the legs, the map, the counters, and operations under way.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_flow::{Env, Pace};
use tokio::sync::{Notify, oneshot};

use super::heal::Heal;
use super::late::Late;
use super::map::RegionMap;
use super::options::{SuperdiskOptions, SuperdiskSabotage};
use super::pair::{FAST_START, Identity, LAST_WRITTEN, NO_LEG};
use super::read::Hedge;
use crate::intent::{Intent, Readiness};
use crate::{BLOCK, BufPool, Disk};

/// How many sequential writers are recognised.
const RECENT_ENDS: usize = 8;

/// How the fast leg is, apart from what the map says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Leg {
    /// In use.
    Up,
    /// There is none.
    Missing,
    /// Not ours to use.
    Foreign(String),
    /// Does not work.
    Failed(String),
}

/// What changes, under one lock that is never held over an await.
pub(crate) struct State {
    pub(crate) map: RegionMap,
    pub(crate) intent: Intent,
    pub(crate) leg: Leg,
    /// How often the fast leg has failed: what was begun before counts for nothing after.
    pub(crate) failures: u64,
    /// The durable leg's label as it was written last.
    pub(crate) identity: Identity,
    /// Why the fast leg did not count when it was opened, if it did not.
    pub(crate) refused: Option<String>,
    /// Whether it did not count, and is not yet rebuilt.
    pub(crate) stale: bool,
    /// A flush of the fast leg has failed: it is opened again.
    pub(crate) spoiled: bool,
    /// The fast leg did not answer: it is opened again.
    pub(crate) silent: bool,
    /// How often it has been taken back after a failed flush, without ever having held everything since.
    pub(crate) relapses: u32,
    /// Repairs that wait.
    pub(crate) heals: std::collections::VecDeque<Heal>,
    /// Whether the task that copies waits for work.
    pub(crate) copier_idle: bool,
    /// Where the last few writes ended: a write that begins there is sequential.
    recent_ends: [u64; RECENT_ENDS],
    recent_next: usize,
    /// There is no more room for it to grow.
    pub(crate) fast_full: bool,
}

impl State {
    /// Whether what is written is followed: the durable leg names a fast leg, or there may be one later.
    pub(crate) fn follows(&self) -> bool {
        self.identity.fast != NO_LEG || matches!(self.leg, Leg::Failed(_))
    }

    /// Asks for the intent bits of a range: see [`Intent::ask`].
    pub(crate) fn ask(&mut self, offset: u64, len: u64, failed: u64) -> io::Result<Readiness> {
        self.intent.ask(self.map.regions_of(offset, len), failed)
    }

    /// The durable leg's label with the next event.
    pub(crate) fn raised(&self) -> Identity {
        Identity { last_written: self.last_written(), ..self.identity.raised() }
    }

    /// The blocks that were written last, as the label has them.
    fn last_written(&self) -> [u64; LAST_WRITTEN] {
        let newest = |i: usize| (self.recent_next + 2 * RECENT_ENDS - 1 - i) % RECENT_ENDS;
        std::array::from_fn(|i| match self.recent_ends[newest(i)] {
            u64::MAX => 0,
            // The block before the end, plus one.
            end => end / BLOCK as u64,
        })
    }

    /// Asks for the bits behind a sequential write, so that the next one need not wait.
    pub(crate) fn ask_ahead(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        match self.recent_ends.iter_mut().find(|recent| **recent == offset) {
            Some(recent) => {
                *recent = end;
                let failed = self.intent.failed_rounds();
                // The write that needs the bit gets the error.
                let _ = self.ask(end, self.map.region_bytes(), failed);
            }
            None => {
                self.recent_ends[self.recent_next] = end;
                self.recent_next = (self.recent_next + 1) % RECENT_ENDS;
            }
        }
    }
}

#[derive(Default)]
pub(crate) struct Counters {
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
    /// Bytes a second, lately.
    pub(crate) rebuild_bytes_s: AtomicU64,
}

/// Counts one.
pub(crate) fn tick(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) options: SuperdiskOptions,
    pub(crate) durable: Arc<dyn Disk>,
    pub(crate) fast: Option<Arc<dyn Disk>>,
    pub(crate) state: Mutex<State>,
    pub(crate) counters: Counters,
    /// Bytes of writes on their way to the fast leg.
    pub(crate) pending: AtomicU64,
    /// Memory for them: the caller's may be one of a few buffers, and a fast leg that hangs must not keep it.
    pub(crate) copies: BufPool,
    /// Fast reads that are overdue.
    pub(crate) overdue: AtomicU64,
    errors_in_a_row: AtomicU32,
    /// Requests that change the fast leg and have not returned.
    pub(crate) fast_requests: AtomicU64,
    /// When to hedge: small reads, large reads.
    pub(crate) hedges: [Mutex<Hedge>; 2],
    /// Which reads of the fast leg are late.
    pub(crate) late: Late,
    pub(crate) pace: Pace,
    pub(crate) copier_wake: Notify,
    /// Intent bits have been asked for, or are to be cleared.
    pub(crate) intent_wake: Notify,
    /// A round of setting bits has ended.
    pub(crate) intent_done: Notify,
    /// One writer of the durable leg's label and bits at a time.
    pub(crate) rounds: tokio::sync::Mutex<()>,
    /// One writer of the fast leg's label at a time.
    pub(crate) stamping: Arc<tokio::sync::Mutex<()>>,
    pub(crate) closing: AtomicBool,
    /// Tasks in the background.
    pub(crate) running: AtomicU32,
    /// A task has ended, or the last write on its way to the fast leg.
    pub(crate) quiet: Notify,
}

/// Something under way on one leg or both. Ends for the map when the last reference is dropped, which is when it has returned
/// everywhere: the tasks that carry it out hold one each.
pub(crate) struct Op {
    shared: Arc<Shared>,
    id: u64,
    offset: u64,
    len: u64,
    pub(crate) durable_ok: AtomicBool,
    pub(crate) fast_ok: AtomicBool,
}

impl Op {
    pub(crate) fn new(shared: &Arc<Shared>, id: u64, offset: u64, len: u64) -> Arc<Self> {
        Arc::new(Self {
            shared: shared.clone(),
            id,
            offset,
            len,
            durable_ok: AtomicBool::new(false),
            fast_ok: AtomicBool::new(false),
        })
    }

    /// Whether something else has begun in its range since it did.
    pub(crate) fn is_spoiled(&self) -> bool {
        self.shared.state.lock().map.is_spoiled(self.id, self.offset, self.len)
    }

    /// Both legs are known to hold the same now.
    pub(crate) fn good(&self) {
        self.durable_ok.store(true, SeqCst);
        self.fast_ok.store(true, SeqCst);
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        let good = self.durable_ok.load(SeqCst) && self.fast_ok.load(SeqCst);
        let mut state = self.shared.state.lock();
        state.map.finish(self.id, self.offset, self.len, good);
        self.shared.wake(&mut state);
    }
}

impl Shared {
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
        let state = State {
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
            counters: Counters::default(),
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

    /// Whether this is broken on purpose.
    pub(crate) fn is_sabotaged(&self, sabotage: SuperdiskSabotage) -> bool {
        self.options.sabotage == sabotage
    }

    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.env.now().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(SeqCst)
    }

    /// The fast leg, where it is in use.
    pub(crate) fn fast_up(&self) -> Option<Arc<dyn Disk>> {
        let up = self.state.lock().leg == Leg::Up;
        self.fast.clone().filter(|_| up)
    }

    /// How much of the durable leg fits the fast one.
    pub(crate) fn fast_limit(&self) -> u64 {
        super::attach::fast_limit(self.fast.as_ref())
    }

    /// Wakes the task that copies, if there is something to copy.
    pub(crate) fn wake(&self, state: &mut State) {
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
            tracing::warn!(disk, why, "the fast leg has failed: everything is served by the durable leg");
            state.leg = Leg::Failed(why);
            state.failures += 1;
            if !self.is_sabotaged(SuperdiskSabotage::FailureDoesNotSpoil) {
                state.map.spoil_all();
            }
            state.intent.stop_clear();
            state.copier_idle = false;
            // Their operations end below, which takes the lock.
            std::mem::take(&mut state.heals)
        };
        drop(dropped);
        self.copier_wake.notify_one();
    }

    /// Counts an error of the fast leg that says more than that a sector is bad. Reads that fail have their range repaired, and it is the
    /// repair's write that tells whether the whole leg is gone.
    pub(crate) fn fast_error(&self, what: &str, error: &io::Error) {
        tick(&self.counters.fast_errors);
        if self.errors_in_a_row.fetch_add(1, Relaxed) + 1 >= self.options.fast_errors_max {
            self.fail_fast(format!("{what}: {error}"));
        }
    }

    /// Says that the fast leg has done something.
    pub(crate) fn fast_works(&self) {
        if self.errors_in_a_row.load(Relaxed) != 0 {
            self.errors_in_a_row.store(0, Relaxed);
        }
    }

    /// Writes to the fast leg in a task of its own, which holds `op` until the leg has returned, however late. A leg that takes too long
    /// has failed. `pending`: how many bytes of the bound the write holds. `confirm`: success counts for `op`.
    pub(crate) fn send_fast(
        self: &Arc<Self>,
        fast: &Arc<dyn Disk>,
        offset: u64,
        data: Bytes,
        op: Arc<Op>,
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
                        shared.pending.fetch_sub(pending, SeqCst);
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
            shared.pending.fetch_sub(pending, SeqCst);
            if shared.is_closing() {
                shared.quiet.notify_waiters();
            }
            // Nobody may be waiting for it.
            let _ = done.send(result);
        });
        answer
    }

    /// As [`Shared::send_fast`], and waits for the answer as long as a write may take.
    pub(crate) async fn write_fast(
        self: &Arc<Self>,
        fast: &Arc<dyn Disk>,
        offset: u64,
        data: Bytes,
        op: &Arc<Op>,
    ) -> io::Result<()> {
        let answer = self.send_fast(fast, offset, data, op.clone(), 0, false);
        // The task has a limit of its own, which begins at the same time and tells of the failure.
        match self.env.timeout(self.options.fast_write_limit, answer).await {
            Some(Ok(result)) => result,
            _ => Err(late("write")),
        }
    }

    /// Reads from the fast leg, as long as a read may take.
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

    /// Does something else that changes the fast leg, in a task of its own, and waits for it as long as a write may take.
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
pub(crate) struct FastRequest(Arc<Shared>);

impl FastRequest {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        shared.fast_requests.fetch_add(1, SeqCst);
        Self(shared.clone())
    }
}

impl Drop for FastRequest {
    fn drop(&mut self) {
        self.0.fast_requests.fetch_sub(1, SeqCst);
    }
}

fn late(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("the fast leg has not returned from a {what}"))
}
