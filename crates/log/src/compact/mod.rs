//! Compaction: moves what is live out of extents that are mostly dead, and recycles them.
//!
//! Live records are appended again through the ordinary commit path with the version of the original; live chunks are copied into the
//! open body extent and their owners re-pointed. An extent is recycled only when all copies have been flushed, nobody has it
//! pinned, and, for records, the index's checkpoint has passed it (see `ARCHITECTURE.md`). Whatever cannot be read stays where it
//! is and is named in the status; nothing is dropped silently.

mod body;
mod commit;
mod filters;
pub(crate) mod source;
mod victim;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use steadfast_flow::Pace;

use crate::background::Stop;
use crate::check::FooterFault;
use crate::extents::{ExtentInfo, TakeError};
use crate::format::ExtentKind;
use crate::log::{Log, Shared};
use crate::{LogError, Sabotage};

use filters::{Filters, KeptFor, MovedRecords};
use victim::Pressure;

/// Extents that cannot be compacted, kept for status.
const STUCK_MAX: usize = 64;
/// How long one wait for the write budget may take.
const RESERVE_WAIT: Duration = Duration::from_secs(5);

/// How compaction runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactionOptions {
    /// Whether it runs.
    pub enabled: bool,
    /// Bytes read and written a second at most while there is space; 0 for no bound. When space is low there is none.
    pub bytes_s: u64,
    /// How much of an extent must be dead for it to be worth copying the rest, in percent.
    pub dead_percent_min: u32,
    /// The same when space is low.
    pub dead_percent_min_low: u32,
    /// Space is low when less than this is free, in percent of the extents there can be.
    pub low_percent: u32,
    /// How often to look for work.
    pub interval: Duration,
}

impl Default for CompactionOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            bytes_s: 64 << 20,
            dead_percent_min: 50,
            dead_percent_min_low: 10,
            low_percent: 15,
            interval: Duration::from_secs(1),
        }
    }
}

/// An extent that cannot be emptied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StuckExtent {
    /// Number of the extent.
    pub extent: u32,
    /// Its epoch.
    pub epoch: u64,
    /// Why.
    pub why: String,
}

/// What compaction did since the log was opened.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CompactionStatus {
    /// The extent that is being emptied.
    pub extent: Option<u32>,
    /// Whether space is low.
    pub space_low: bool,
    /// Extents recycled.
    pub recycled: u64,
    /// Records appended again.
    pub records_moved: u64,
    /// Chunks copied.
    pub chunks_moved: u64,
    /// Bytes of both.
    pub moved_bytes: u64,
    /// Bytes written to the disk for each byte that was asked to be written, in hundredths.
    pub write_amplification_percent: u64,
    /// Extents whose space waits for the index's checkpoint.
    pub waiting_for_checkpoint: u64,
    /// Emptied extents that somebody still reads, or that a snapshot keeps.
    pub pinned: u64,
    /// Extents that cannot be emptied, for instance because something in them is damaged.
    pub stuck: Vec<StuckExtent>,
}

/// What compaction shares with others.
#[derive(Default)]
pub(crate) struct Compaction {
    status: Mutex<CompactionStatus>,
    pub(crate) moved: MovedRecords,
}

impl Compaction {
    /// The status; `written_bytes` is all that the log has written.
    pub(crate) fn status(&self, written_bytes: u64) -> CompactionStatus {
        let mut status = self.status.lock().clone();
        let asked = written_bytes.saturating_sub(status.moved_bytes).max(1);
        status.write_amplification_percent = if written_bytes == 0 { 100 } else { written_bytes * 100 / asked };
        status
    }
}

/// Why an extent was not emptied.
pub(crate) enum Halt {
    /// Try again later: at a bound, or being stopped.
    Later,
    /// It does not gain enough, for one because of deletes that are kept for other extents.
    NotWorth(Vec<KeptFor>),
    /// Something in it is not what it was.
    Stuck(String),
    /// The disk does not give all of it.
    Unread {
        /// Bytes from the start of the extent.
        offset: u64,
        /// The operating system's words.
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

/// What was learned of an extent when it was last looked at, so that it is not looked at again without need.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Look {
    epoch: u64,
    live_bytes: i64,
    /// Deletes that were kept, and for which extents.
    kept: Vec<KeptFor>,
    /// Whether a snapshot kept it: then more of it had to be dead.
    held: bool,
    kind: ExtentKind,
    /// How badly space was needed: at more, less had to be dead.
    pressure: Pressure,
    /// When it was looked at.
    at: Duration,
}

/// An extent that was not emptied, and the bytes in it that would have to be copied.
#[derive(Debug, Clone, Copy)]
struct Postponed {
    epoch: u64,
    kind: ExtentKind,
    live: u64,
}

/// How long chunks keep what was found of them while space is not low.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

struct Compactor {
    log: Log,
    stop: Stop,
    pace: Pace,
    /// Emptied; to be recycled as soon as nobody has them pinned.
    emptied: BTreeMap<u32, u64>,
    not_worth: BTreeMap<u32, Look>,
    filters: Mutex<Filters>,
    /// Not emptied in this round, for want of room. Until something has been recycled, of its kind only what needs less is tried.
    postponed: BTreeMap<u32, Postponed>,
    stuck: BTreeMap<u32, StuckExtent>,
}

/// Runs until it is stopped.
pub(crate) async fn run(log: Log, mut stop: Stop) {
    let env = log.shared.env.clone();
    let options = log.shared.options.compaction;
    let mut compactor = Compactor::new(log, stop.clone());
    while stop.sleep(&env, options.interval).await {
        compactor.postponed.clear();
        compactor.forget_writers();
        while compactor.step().await && !stop.is_set() {}
    }
}

impl Compactor {
    fn new(log: Log, stop: Stop) -> Self {
        let bytes_s = log.shared.options.compaction.bytes_s;
        let pace = Pace::new(bytes_s, Duration::from_millis(100), log.shared.env.clone());
        Self {
            log,
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

    /// Chunks of writers at work are live and in no account. When such a writer goes without a commit, no account changes either: so
    /// what was found of an extent with chunks holds for a while only, and when space is low for this round.
    fn forget_writers(&mut self) {
        let now = self.shared().env.now();
        let low = self.shared().compaction.status.lock().space_low;
        let holds = |look: &Look| look.kind != ExtentKind::Body || !low && now.saturating_sub(look.at) < LOOK_AGAIN;
        self.not_worth.retain(|_, look| holds(look));
    }

    /// Empties one extent; whether there may be more to do at once.
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
                shared.extents.emptied(info.extent, info.epoch);
                self.recycle_emptied().await;
                done = true;
            }
            Err(Halt::Later) => {
                // A full pool is won back from what is dead altogether, whatever scores higher but needs room to be copied.
                let live = info.live_bytes.max(0) as u64;
                self.postponed.insert(info.extent, Postponed { epoch: info.epoch, kind: info.kind, live });
                done = true;
            }
            Err(Halt::NotWorth(kept)) => {
                let look = Look {
                    epoch: info.epoch,
                    live_bytes: info.live_bytes,
                    kept,
                    held: info.held,
                    kind: info.kind,
                    pressure,
                    at: shared.env.now(),
                };
                self.not_worth.insert(info.extent, look);
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

    /// Lifts the pace as soon as space is low, in the middle of an extent, too: writers may be waiting for what it gives.
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
        self.shared().options.sabotage == how
    }

    /// All that made an extent empty is durable.
    async fn settled(&self) -> Result<(), Halt> {
        if !self.sabotaged(Sabotage::EarlyRecycle) {
            self.log.flush().await?;
        }
        Ok(())
    }

    /// Recycles what is empty and not pinned. Whether any was.
    async fn recycle_emptied(&mut self) -> bool {
        let mut recycled = 0;
        for (extent, epoch) in self.emptied.clone() {
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
                    // The latch is closed by it, which is all that can be done about it.
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
