//! Status of the store.

use serde::{Deserialize, Serialize};
use steadfast_flow::FlowStatus;
use steadfast_log::{ExtentCounts, LogState, LogStatus, Lsn};

use crate::cache::CacheStatus;
use crate::clock::ClockStatus;
use crate::index::IndexStatus;

/// Gauges and counters of a store. Over several disks they are sums, with two exceptions: a state
/// is the worst of all, and an LSN is that of the first disk.
#[derive(Debug, Clone, Serialize)]
pub struct StoreStatus {
    /// Buckets.
    pub buckets: u64,
    /// Users and named policies.
    pub users: u64,
    /// Objects.
    pub objects: u64,
    /// Bytes of objects.
    pub object_bytes: u64,
    /// Unfinished multipart uploads.
    pub uploads: u64,
    /// Channels in memory: those in use, and recently used ones.
    pub channels: u64,
    /// The newest publications of channels in memory.
    pub channel_tails: TailsStatus,
    /// The wall clock as used for expiry.
    pub clock: ClockStatus,
    /// Publications removed since the start because they expired.
    pub publications_expired: u64,
    /// Keys with an unconfirmed change.
    pub pending_keys: u64,
    /// The index.
    pub index: IndexStatus,
    /// The last LSN in the index.
    pub applied_lsn: Lsn,
    /// The last LSN in the index on disk: a start replays from there.
    pub checkpoint_lsn: Lsn,
    /// The read cache.
    pub cache: CacheStatus,
    /// The log.
    pub log: LogStatus,
    /// Object events that wait to be forwarded.
    pub events: EventsStatus,
    /// Each disk.
    pub disks: Vec<DiskStatus>,
    /// Number of disks that are missing, read-only or report a failure.
    #[serde(rename = "disks_failed")]
    pub failed_disks: u64,
    /// The move of keys between disks, running or last; `None` when there was none since the start.
    /// During a move, copies count among the objects of their disk.
    pub moving: Option<MoveStatus>,
}

/// Space of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolSpace {
    /// Bytes that data can take: all extents, with those that the disks could still add, without
    /// the reserve.
    pub capacity_bytes: u64,
    /// Bytes that are referenced.
    pub live_bytes: u64,
    /// Bytes that only readers need which have begun. Compaction frees them when those end.
    pub pinned_bytes: u64,
}

/// Object events: the bound on waiting events, and counters.
#[derive(Debug, Clone, Default, Serialize)]
pub struct EventsStatus {
    /// The bound's name.
    pub name: &'static str,
    /// Maximum number of waiting events.
    pub limit: u64,
    /// Number of events that wait to be forwarded.
    pub used: u64,
    /// Changes refused because too many events waited.
    pub refused: u64,
    /// Events forwarded since the start.
    pub forwarded: u64,
}

/// The newest publications of channels in memory: the bound on their bytes over all channels, and
/// counters.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TailsStatus {
    /// The bound's name.
    pub name: &'static str,
    /// Bound in bytes.
    pub limit: u64,
    /// Bytes in use.
    pub used: u64,
    /// Peak of `used`, in bytes.
    pub peak: u64,
    /// Number of times a channel's tail was evicted.
    pub evicted: u64,
}

/// State of a disk of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskState {
    /// It works.
    Ok,
    /// It accepts no writes: keys at home on it can be read.
    ReadOnly,
    /// It is missing: keys at home on it can be neither read nor written.
    Missing,
    /// It has been closed.
    Closed,
}

/// One disk of a pool.
#[derive(Debug, Clone, Serialize)]
pub struct DiskStatus {
    /// Its identity: the UUID of its log.
    pub id: String,
    /// Name for operators: its path.
    pub name: String,
    /// Its state.
    pub state: DiskState,
    /// Its failure; `None` while it works.
    pub failure: Option<String>,
    /// Whether it refused new data for lack of space and has accepted none since.
    pub full: bool,
    /// Number of the pool's slots that it is home to.
    pub slots: u64,
    /// Number of slots in all.
    pub slots_total: u64,
    /// Objects at home on it, which its failure affects. For a missing disk the last known number,
    /// `None` when unknown.
    pub objects: Option<u64>,
    /// Their bytes; unknown for a missing disk.
    pub object_bytes: Option<u64>,
    /// Its extents; unknown for a missing disk.
    pub extents: Option<ExtentCounts>,
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Batches that it committed.
    pub commits: u64,
    /// Bytes of frames that it wrote.
    pub frame_bytes: u64,
    /// Bytes of chunks that it wrote.
    pub chunk_bytes: u64,
    /// Damage found by its scrub.
    pub damaged: u64,
}

/// Whether a log accepts writes, as the state of its disk, with the reason if not.
pub(crate) fn disk_state(log: &LogState) -> (DiskState, Option<String>) {
    match log {
        LogState::Ok => (DiskState::Ok, None),
        LogState::Failed { what, cause } => (DiskState::ReadOnly, Some(format!("a {what} failed: {cause}"))),
        LogState::ReadOnly { why } => (DiskState::ReadOnly, Some(why.clone())),
        LogState::OpenedForReading => (DiskState::ReadOnly, None),
        LogState::Closed => (DiskState::Closed, Some("it is closed".to_owned())),
    }
}

impl StoreStatus {
    /// Adds another disk's status.
    pub(crate) fn add(&mut self, other: Self) {
        self.objects += other.objects;
        self.object_bytes += other.object_bytes;
        self.uploads += other.uploads;
        self.channels += other.channels;
        let (mine, theirs) = (&mut self.channel_tails, other.channel_tails);
        mine.limit += theirs.limit;
        mine.used += theirs.used;
        mine.peak += theirs.peak;
        mine.evicted += theirs.evicted;
        self.clock.steps = self.clock.steps.max(other.clock.steps);
        self.clock.ahead_ms = self.clock.ahead_ms.max(other.clock.ahead_ms);
        self.publications_expired += other.publications_expired;
        self.pending_keys += other.pending_keys;
        self.index.disk_bytes += other.index.disk_bytes;
        self.index.memtable_bytes += other.index.memtable_bytes;
        self.index.tables += other.index.tables;
        self.index.verified_bytes += other.index.verified_bytes;
        self.index.damaged += other.index.damaged;
        self.index.rebuilt += other.index.rebuilt;
        self.index.rebuilding += other.index.rebuilding;
        self.index.unsaved += other.index.unsaved;
        self.cache.hits += other.cache.hits;
        self.cache.misses += other.cache.misses;
        self.cache.bytes += other.cache.bytes;
        self.cache.bytes_max += other.cache.bytes_max;
        self.cache.pieces += other.cache.pieces;
        add_log(&mut self.log, other.log);
        self.disks.extend(other.disks);
    }
}

fn add_log(sum: &mut LogStatus, other: LogStatus) {
    if sum.log == LogState::Ok {
        sum.log = other.log;
    }
    add_extents(&mut sum.extents, &other.extents);
    sum.zones.add(&other.zones);
    sum.group_size.add(&other.group_size);
    sum.flush_us.add(&other.flush_us);
    sum.commits += other.commits;
    sum.records += other.records;
    sum.frames += other.frames;
    sum.frame_bytes += other.frame_bytes;
    sum.chunks += other.chunks;
    sum.chunk_bytes += other.chunk_bytes;
    sum.async_lag_us_max = sum.async_lag_us_max.max(other.async_lag_us_max);
    sum.gather_waits += other.gather_waits;
    sum.gather_timeouts += other.gather_timeouts;
    sum.pending_bytes += other.pending_bytes;
    sum.pending_bytes_max += other.pending_bytes_max;
    for budget in other.budgets {
        add_budget(&mut sum.budgets, budget);
    }
    sum.read_damage += other.read_damage;
    sum.reads_healed += other.reads_healed;
    sum.writes_elsewhere += other.writes_elsewhere;
    sum.heal.add(&other.heal);
    sum.usage.extend(other.usage);

    let (mine, theirs) = (&mut sum.compaction, other.compaction);
    mine.space_low |= theirs.space_low;
    mine.recycled += theirs.recycled;
    mine.records_moved += theirs.records_moved;
    mine.chunks_moved += theirs.chunks_moved;
    mine.moved_bytes += theirs.moved_bytes;
    mine.waiting_for_checkpoint += theirs.waiting_for_checkpoint;
    mine.pinned += theirs.pinned;
    mine.stuck.extend(theirs.stuck);
    let written = sum.frame_bytes + sum.chunk_bytes;
    let requested = written.saturating_sub(mine.moved_bytes).max(1);
    mine.write_amplification_percent = if written == 0 { 100 } else { written.saturating_mul(100) / requested };

    let (mine, theirs) = (&mut sum.scrub, other.scrub);
    mine.running |= theirs.running;
    mine.paused |= theirs.paused;
    mine.started_ms = mine.started_ms.max(theirs.started_ms);
    mine.expected_end_ms = mine.expected_end_ms.max(theirs.expected_end_ms);
    mine.next_ms = mine.next_ms.into_iter().chain(theirs.next_ms).min();
    mine.stopped += theirs.stopped;
    mine.extents_done += theirs.extents_done;
    mine.extents_total += theirs.extents_total;
    // Every disk has completed this many.
    mine.passes = mine.passes.min(theirs.passes);
    mine.last_pass_ms = mine.last_pass_ms.zip(theirs.last_pass_ms).map(|(a, b)| a.min(b));
    mine.read_bytes += theirs.read_bytes;
    mine.records += theirs.records;
    mine.healed += theirs.healed;
    mine.healed_copies.iter_mut().zip(theirs.healed_copies).for_each(|(all, more)| *all += more);
    mine.damaged += theirs.damaged;
    mine.reported += theirs.reported;
    mine.damage.extend(theirs.damage);
}

fn add_extents(sum: &mut ExtentCounts, other: &ExtentCounts) {
    sum.free += other.free;
    sum.growable = sum.growable.saturating_add(other.growable);
    sum.open_commit += other.open_commit;
    sum.open_body += other.open_body;
    sum.sealed_commit += other.sealed_commit;
    sum.sealed_body += other.sealed_body;
    sum.live_commit_bytes += other.live_commit_bytes;
    sum.live_body_bytes += other.live_body_bytes;
    sum.pinned_bytes += other.pinned_bytes;
    sum.lost += other.lost;
    sum.lost_bytes += other.lost_bytes;
}

/// Sums a bound that each disk has.
fn add_budget(sums: &mut Vec<FlowStatus>, other: FlowStatus) {
    let Some(sum) = sums.iter_mut().find(|sum| sum.name == other.name) else { return sums.push(other) };
    sum.limit = sum.limit.saturating_add(other.limit);
    sum.used += other.used;
    sum.peak += other.peak;
    sum.waiting += other.waiting;
    sum.granted += other.granted;
    sum.refused += other.refused;
    sum.waited_us += other.waited_us;
}

/// Reason of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveKind {
    /// A disk joined the pool and gets its share.
    Add,
    /// A disk leaves the pool; the others get its keys.
    Drain,
    /// A disk leaves the pool, and another gets its keys.
    Replace,
}

/// State of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveState {
    /// The move is running.
    Running,
    /// A stop of the store interrupted it; the next start continues it.
    Stopped,
    /// It could not be finished: see the error. Nothing is lost; it can be resumed.
    Failed,
    /// It is done.
    Done,
}

/// An object that cannot be read and so cannot be moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmovable {
    /// Its description, such as `object photos/2026/a.jpg`.
    pub name: String,
    /// Why it cannot be read.
    pub why: String,
}

/// A move of keys, running or last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveStatus {
    /// Reason of the move.
    pub kind: MoveKind,
    /// The joining disk, otherwise the leaving one.
    pub disk: String,
    /// State of the move.
    pub state: MoveState,
    /// Current step, in a word or two.
    pub step: String,
    /// Slots at their goal.
    pub slots_done: u64,
    /// Slots to move in all.
    pub slots_total: u64,
    /// Objects, uploads, parts and channels copied since the start; repeated copies of changed ones
    /// count each time.
    pub copied: u64,
    /// Copied bytes.
    pub copied_bytes: u64,
    /// Bytes to be moved at the start, about.
    pub bytes_total: u64,
    /// Bound in bytes per second; 0: none.
    pub bytes_s_max: u64,
    /// Copies deleted from disks where they are no longer at home.
    pub swept: u64,
    /// Start, milliseconds since the Unix epoch. After a restart, the time it was resumed.
    pub begun_ms: u64,
    /// End, milliseconds since the Unix epoch; `None` while it runs.
    pub ended_ms: Option<u64>,
    /// Objects that cannot be read and stay in place; a bounded number of them.
    pub unmovable: Vec<Unmovable>,
    /// Total number of such objects.
    pub unmovable_total: u64,
    /// Why the move failed.
    pub error: Option<String>,
}
