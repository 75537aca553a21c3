//! What the store says about itself.

use serde::Serialize;
use steadfast_flow::FlowStatus;
use steadfast_log::{ExtentCounts, LogState, LogStatus, Lsn};

use crate::SnapshotInfo;
use crate::cache::CacheStatus;
use crate::clock::ClockStatus;
use crate::index::IndexStatus;
use crate::store::moves::MoveStatus;

/// Gauges and counters of a store. Over several disks they are sums, but for what has no sum: a state is the worst there is, an
/// LSN that of the first disk, for each disk has its own.
#[derive(Debug, Clone, Serialize)]
pub struct StoreStatus {
    /// Buckets.
    pub buckets: u64,
    /// Objects.
    pub objects: u64,
    /// Bytes of objects.
    pub object_bytes: u64,
    /// Uploads in parts that are going on.
    pub uploads: u64,
    /// Channels in memory: those in use, and those used a moment ago.
    pub channels: u64,
    /// The newest publications of channels in memory.
    pub channel_tails: TailsStatus,
    /// The wall clock, as far as expiry goes.
    pub clock: ClockStatus,
    /// Publications that were removed since the start because their time was over.
    pub publications_expired: u64,
    /// Keys with a change that is not yet confirmed.
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
    /// Events of objects on their way to those who want to know.
    pub events: EventsStatus,
    /// The snapshots, oldest first.
    pub snapshots: Vec<SnapshotInfo>,
    /// Each disk by itself.
    pub disks: Vec<DiskStatus>,
    /// How many of them are missing or take no writes.
    pub disks_in_trouble: u64,
    /// Keys that are being moved between disks, or were last; `None` when there was nothing to move since the start. While they
    /// are, copies count among the objects of the disk that they are on.
    pub moving: Option<MoveStatus>,
}

/// Events of objects: the bound on those that wait, and what became of the others.
#[derive(Debug, Clone, Default, Serialize)]
pub struct EventsStatus {
    /// The bound's name.
    pub name: &'static str,
    /// How many may wait.
    pub limit: u64,
    /// How many wait to be forwarded.
    pub used: u64,
    /// Changes that were refused because too many waited.
    pub refused: u64,
    /// How many were forwarded since the start.
    pub forwarded: u64,
}

/// The newest publications of channels that are in memory: the bound on the bytes that they take, of all channels together.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TailsStatus {
    /// The bound's name.
    pub name: &'static str,
    /// Bytes that they may take.
    pub limit: u64,
    /// Bytes that they take.
    pub used: u64,
    /// The most that they ever took.
    pub peak: u64,
    /// How often a channel lost what it had in memory to the bound.
    pub evicted: u64,
}

/// Whether a disk of the pool does its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskState {
    /// It does.
    Ok,
    /// It takes no more writes: keys whose home it is can be read.
    ReadOnly,
    /// It is not there: keys whose home it is can be neither read nor written.
    Missing,
    /// It has been closed.
    Closed,
}

/// One disk of a pool.
#[derive(Debug, Clone, Serialize)]
pub struct DiskStatus {
    /// Its identity: the UUID of its log.
    pub id: String,
    /// What people call it: its path.
    pub name: String,
    /// Whether it does its part.
    pub state: DiskState,
    /// What is wrong with it; `None` when nothing is.
    pub trouble: Option<String>,
    /// Whether it refused new data for want of space, and has taken none since.
    pub full: bool,
    /// How many of the pool's slots it is home to.
    pub slots: u64,
    /// How many slots there are in all.
    pub slots_total: u64,
    /// Objects whose home it is: those that its trouble affects. Of a missing disk as many as were last known; `None` when
    /// nothing is.
    pub objects: Option<u64>,
    /// Bytes of them; unknown of a missing disk.
    pub object_bytes: Option<u64>,
    /// Its extents; none of a missing disk.
    pub extents: Option<ExtentCounts>,
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Batches that it has committed.
    pub commits: u64,
    /// Bytes of frames that it has written.
    pub frame_bytes: u64,
    /// Bytes of chunks that it has written.
    pub chunk_bytes: u64,
    /// Damages that its scrub has found.
    pub damaged: u64,
}

/// Whether a log takes writes, in a disk's terms; and what is wrong if not.
pub(crate) fn disk_state(log: &LogState) -> (DiskState, Option<String>) {
    match log {
        LogState::Ok => (DiskState::Ok, None),
        LogState::Failed { what, cause } => (DiskState::ReadOnly, Some(format!("a {what} failed: {cause}"))),
        LogState::ReadOnly { why } => (DiskState::ReadOnly, Some(why.clone())),
        LogState::Closed => (DiskState::Closed, Some("it is closed".to_owned())),
    }
}

impl StoreStatus {
    /// Adds another disk's.
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
    let asked = written.saturating_sub(mine.moved_bytes).max(1);
    mine.write_amplification_percent = if written == 0 { 100 } else { written.saturating_mul(100) / asked };

    let (mine, theirs) = (&mut sum.scrub, other.scrub);
    mine.running |= theirs.running;
    mine.paused |= theirs.paused;
    mine.started_ms = mine.started_ms.max(theirs.started_ms);
    mine.expected_end_ms = mine.expected_end_ms.max(theirs.expected_end_ms);
    mine.next_ms = mine.next_ms.into_iter().chain(theirs.next_ms).min();
    mine.stopped += theirs.stopped;
    mine.extents_done += theirs.extents_done;
    mine.extents_total += theirs.extents_total;
    // All of them have been through so many.
    mine.passes = mine.passes.min(theirs.passes);
    mine.last_pass_ms = mine.last_pass_ms.zip(theirs.last_pass_ms).map(|(a, b)| a.min(b));
    mine.read_bytes += theirs.read_bytes;
    mine.records += theirs.records;
    mine.healed += theirs.healed;
    mine.healed_copies.iter_mut().zip(theirs.healed_copies).for_each(|(all, more)| *all += more);
    mine.damaged += theirs.damaged;
    mine.told += theirs.told;
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
    sum.held += other.held;
    sum.held_bytes += other.held_bytes;
    sum.lost += other.lost;
    sum.lost_bytes += other.lost_bytes;
}

/// Of one bound that each disk has, the sum.
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
