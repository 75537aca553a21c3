//! Compaction: moves live data out of mostly dead extents, and recycles them.
//!
//! Live records are appended again through the ordinary commit path with the version of the
//! original. Live chunks are copied into the open body extent, and their owners are re-pointed. An
//! extent is recycled only when all copies have been flushed and no reader has it pinned. For
//! records, the index's checkpoint must also have passed it (see `ARCHITECTURE.md`). Unreadable
//! data stays where it is, and the status names its extent. Nothing is dropped silently.

mod body;
mod commit;
mod filters;
mod owners;
pub(crate) mod source;
mod victim;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::{Pace, has_fault};

use crate::background::Stop;
use crate::check::FooterFault;
use crate::extents::{ExtentInfo, TakeError};
use crate::format::ExtentKind;
use crate::log::Log;
use crate::shared::Shared;
use crate::status::{CompactionStatus, StuckExtent};
use crate::{LogError, Sabotage};

use filters::{Filters, KeptFor};
pub use owners::ChunkOwners;
use victim::Pressure;

/// Extents that cannot be compacted, kept for the status.
const STUCK_MAX: usize = 64;
/// Longest single wait for the write budget.
const RESERVE_WAIT: Duration = Duration::from_secs(5);

/// Reason why an extent was not emptied.
pub(crate) enum Halt {
    /// Retry later: a bound was reached, or compaction is stopping.
    Later,
    /// The gain is too small, for instance because of deletes kept for other extents.
    NotWorth(Vec<KeptFor>),
    /// Data in it is damaged.
    Stuck(String),
    /// The disk failed to read part of it.
    Unread {
        /// Bytes from the start of the extent.
        offset: u64,
        /// Message of the operating system.
        cause: String,
    },
}

impl std::fmt::Display for Halt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Later => f.write_str("interrupted"),
            Self::NotWorth(_) => f.write_str("not worth it"),
            Self::Stuck(why) => f.write_str(why),
            Self::Unread { offset, cause } => write!(f, "cannot be read at {offset}: {cause}"),
        }
    }
}

impl From<FooterFault> for Halt {
    fn from(fault: FooterFault) -> Self {
        let FooterFault { offset, what, unread } = fault;
        if unread { Self::Unread { offset, cause: what } } else { Self::Stuck(what) }
    }
}

impl From<LogError> for Halt {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Damaged { .. } | LogError::Read { .. } | LogError::TooLarge(_) => Self::Stuck(error.to_string()),
            _ => Self::Later,
        }
    }
}

/// Result of the last examination of an extent, which avoids needless repetitions.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Examined {
    epoch: u64,
    live_bytes: i64,
    /// Kept deletes, and the extents for which they are kept.
    kept: Vec<KeptFor>,
    kind: ExtentKind,
    /// Need for space at that time; a higher need lowers the required dead part.
    pressure: Pressure,
    /// Time of the examination.
    at: Duration,
}

/// An extent that was not emptied, with its bytes that would have to be copied.
#[derive(Debug, Clone, Copy)]
struct Postponed {
    epoch: u64,
    kind: ExtentKind,
    live: u64,
}

/// Time for which the examination of a body extent is valid while space is not low.
const REEXAMINE_INTERVAL: Duration = Duration::from_secs(60);

struct Compactor {
    log: Log,
    owners: Arc<dyn ChunkOwners>,
    stop: Stop,
    pace: Pace,
    /// Emptied extents, recycled as soon as no reader has them pinned.
    emptied: BTreeMap<u32, u64>,
    not_worth: BTreeMap<u32, Examined>,
    filters: Mutex<Filters>,
    /// Extents not emptied in this round for lack of space. Until one is recycled, only extents of
    /// the same kind that need less are tried.
    postponed: BTreeMap<u32, Postponed>,
    stuck: BTreeMap<u32, StuckExtent>,
}

/// Runs until it is stopped.
pub(crate) async fn run(log: Log, owners: Arc<dyn ChunkOwners>, mut stop: Stop) {
    let env = log.shared.env.clone();
    let options = log.shared.options.compaction;
    let mut compactor = Compactor::new(log, owners, stop.clone());
    while stop.sleep(&env, options.interval).await {
        compactor.postponed.clear();
        compactor.forget_writers();
        while compactor.step().await && !stop.is_set() {}
    }
}

impl Compactor {
    fn new(log: Log, owners: Arc<dyn ChunkOwners>, stop: Stop) -> Self {
        let bytes_s = log.shared.options.compaction.bytes_s;
        let pace = Pace::new(bytes_s, Duration::from_millis(100), log.shared.env.clone());
        Self {
            log,
            owners,
            stop,
            pace,
            emptied: BTreeMap::new(),
            not_worth: BTreeMap::new(),
            filters: Mutex::default(),
            postponed: BTreeMap::new(),
            stuck: BTreeMap::new(),
        }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.log.shared
    }

    fn note(&self, change: impl FnOnce(&mut CompactionStatus)) {
        change(&mut self.shared().compaction.status.lock());
    }

    /// Chunks of unfinished uploads are live but not counted. If such an upload ends without a
    /// commit, no count changes. So the examination of a body extent expires; while space is low,
    /// after this round.
    fn forget_writers(&mut self) {
        let now = self.shared().env.now();
        let low = self.shared().compaction.status.lock().space_low;
        let holds = |examined: &Examined| {
            examined.kind != ExtentKind::Body || !low && now.saturating_sub(examined.at) < REEXAMINE_INTERVAL
        };
        self.not_worth.retain(|_, examined| holds(examined));
    }

    /// Empties one extent. Returns whether there may be more work at once.
    async fn step(&mut self) -> bool {
        let shared = self.shared().clone();
        if shared.latch.check().is_err() {
            return false;
        }
        let mut done = self.recycle_emptied().await;
        let pressure = self.pressure().await;
        let low = pressure > Pressure::Normal;
        self.pace.set(if low { 0 } else { shared.options.compaction.bytes_s });
        let Some(info) = self.choose(pressure) else {
            if low && shared.extents.spare().all() > 0 && self.open_is_spent() {
                shared.queue.want_roll();
            }
            if pressure >= Pressure::Full {
                shared.bodies.seal_spent(&shared, |id, room| self.is_worth_sealing(id, room, pressure)).await;
            }
            return done;
        };
        self.note(|status| status.extent = Some(info.extent));
        let outcome = tokio::select! {
            biased;
            outcome = self.empty(&info, pressure) => outcome,
            never = self.lift_pace() => match never {},
        };
        self.note(|status| status.extent = None);
        match outcome {
            Ok(()) => {
                self.emptied.insert(info.extent, info.epoch);
                self.recycle_emptied().await;
                done = true;
            }
            Err(Halt::Later) => {
                // Completely dead extents free a full pool, while ones with a higher score may need
                // space for copies.
                let live = info.live_bytes.max(0) as u64;
                self.postponed.insert(info.extent, Postponed { epoch: info.epoch, kind: info.kind, live });
                done = true;
            }
            Err(Halt::NotWorth(kept)) => {
                let examined = Examined {
                    epoch: info.epoch,
                    live_bytes: info.live_bytes,
                    kept,
                    kind: info.kind,
                    pressure,
                    at: shared.env.now(),
                };
                self.not_worth.insert(info.extent, examined);
                done = true;
            }
            Err(halt @ (Halt::Stuck(_) | Halt::Unread { .. })) => {
                let why = halt.to_string();
                tracing::error!(extent = info.extent, epoch = info.epoch, %why, "an extent cannot be compacted");
                let stuck = StuckExtent { extent: info.extent, epoch: info.epoch, why };
                self.stuck.insert(info.extent, stuck);
                let list: Vec<_> = self.stuck.values().take(STUCK_MAX).cloned().collect();
                self.note(|status| status.stuck = list);
                done = true;
            }
        }
        done
    }

    async fn empty(&self, info: &ExtentInfo, pressure: Pressure) -> Result<(), Halt> {
        match info.kind {
            ExtentKind::Commit => self.empty_commit(info, pressure).await,
            _ => self.empty_body(info, pressure).await,
        }
    }

    /// Lifts the pace as soon as space is low, even in the middle of an extent, because writers may
    /// wait.
    async fn lift_pace(&self) -> Infallible {
        let shared = self.shared();
        loop {
            shared.env.sleep(shared.options.compaction.interval).await;
            if self.pressure().await > Pressure::Normal {
                self.pace.set(0);
            }
        }
    }

    fn sabotaged(&self, how: Sabotage) -> bool {
        has_fault(self.shared().options.sabotage, how)
    }

    /// Waits until everything that emptied an extent is durable.
    async fn settled(&self) -> Result<(), Halt> {
        if !self.sabotaged(Sabotage::EarlyRecycle) {
            self.log.flush().await?;
        }
        Ok(())
    }

    /// Recycles empty extents without pins. Returns whether there were any.
    async fn recycle_emptied(&mut self) -> bool {
        let mut recycled = 0;
        let low = self.shared().compaction.status.lock().space_low;
        for (extent, epoch) in self.emptied.clone() {
            if !low && self.shared().extents.with(|table| table.yielding_pins.contains_key(&(extent, epoch))) {
                continue;
            }
            match self.shared().extents.recycle(extent, epoch, self.sabotaged(Sabotage::PinsIgnored)).await {
                Ok(true) => {
                    self.emptied.remove(&extent);
                    self.postponed.clear();
                    recycled += 1;
                }
                Ok(false) if self.shared().extents.get(extent, epoch).is_none() => {
                    self.emptied.remove(&extent);
                }
                Ok(false) | Err(TakeError::Full) => {}
                Err(error @ TakeError::Disk(..)) => {
                    // The error has closed the latch; nothing else can be done.
                    tracing::debug!(error = %error.into_log_error(), "an extent was not recycled");
                    return false;
                }
            }
        }
        let pinned = self.emptied.len() as u64;
        self.note(|status| {
            status.recycled += recycled;
            status.pinned = pinned;
        });
        recycled > 0
    }
}
