//! Opening a pool: distinguishes committed, torn and damaged data.
//!
//! Recovery changes nothing before it knows everything. Then, in this order: it copies records that
//! may not have been durable into a new extent; flushes; seals the old extents before those
//! records; flushes; and only then serves requests. A crash in between leaves both copies, and the
//! next recovery takes the first one again.

mod forward;
mod lost;
mod read;
mod replay;
mod report;
mod restore;
mod survey;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use steadfast_disk::{BLOCK, Disk};
use steadfast_flow::{Env, Throttle};
use tokio::sync::{mpsc, watch};

use forward::failed;
use replay::Replay;
pub use report::{Cut, DamageFound, Doubt, HEALED_MAX, LostExtent, RecoveryReport};
use survey::Found;

use crate::apply;
use crate::background::Background;
use crate::bodies::Bodies;
use crate::commit::Queue;
use crate::committer::Committer;
use crate::committer::{Ended, Refused};
use crate::copies::{Copies, Healed};
use crate::extents::{ExtentInfo, ExtentState, Extents, Table};
use crate::format::{ExtentKind, Features, Lineage, RosterUse, SUPERBLOCK_OFFSETS, Superblock};
use crate::frame::OpenCommit;
use crate::guard::Guard;
use crate::heal_queue::HealQueue;
use crate::history::{ExtentLineage, History};
use crate::hold::Hold;
use crate::io::Io;
use crate::latch::Latch;
use crate::log::Log;
use crate::moved::Compaction;
use crate::options::LogOptions;
use crate::placement::Placement;
use crate::pool::Head;
use crate::progress::ApplyProgress;
use crate::reserve::Room;
use crate::roster::{Roster, RosterRead};
use crate::scrub_state::Scrub;
use crate::shared::Shared;
use crate::status::Metrics;
use crate::{Applier, ChunkOwners, LogError, Lsn, PoolInfo, Usage};

pub(crate) async fn open(
    disk: Arc<dyn Disk>,
    env: Env,
    options: LogOptions,
    applier: Arc<dyn Applier>,
    owners: Arc<dyn ChunkOwners>,
) -> Result<(Log, RecoveryReport), LogError> {
    let begun = env.now();
    // Readable data that was not durable is made durable. Otherwise it might be replayed now and be
    // gone after the next crash.
    disk.flush().await.map_err(|e| LogError::Open(format!("cannot flush {}: {e}", disk.describe())))?;
    let Head { disk, superblock: mut pool, ledger, bad: bad_copies } = crate::pool::read_head(&disk).await?;
    if let Some(why) = pool.features.unwritable() {
        return Err(LogError::Open(format!("{}: {why}", disk.describe())));
    }
    let mut report = RecoveryReport::new(PoolInfo::from(&pool));
    if !options.for_reading {
        rewrite_superblocks(&disk, &mut pool, bad_copies, options.features, &mut report).await?;
    }
    let healed = Arc::new(Healed::default());
    let copies = Copies::new(disk.clone(), healed.clone());
    let (found, roster_read) = find_extents(&copies, &pool, &*applier, options.for_reading).await;
    report.extents = found.len() as u64;
    report.checkpoint = applier.checkpoint();
    let recycled_lsn = found.iter().map(|f| f.recycled_lsn).max().unwrap_or(0).max(ledger.recycled_lsn);
    let history = history(&found, recycled_lsn);
    if !applier.can_continue(&history) {
        return Err(LogError::Open("the index does not belong to this log's history".into()));
    }
    let placement = Placement::new(disk.clone(), pool, ledger, options.sabotage);
    let latch = Arc::new(Latch::new());
    let io = Arc::new(Io::new(disk.clone(), latch.clone(), env.clone()));
    let mut table = table(&placement, &pool, &found, &*applier, recycled_lsn, &mut report);
    table.next_epoch = table.next_epoch.max(roster_read.epoch_bound());
    let roster = Roster::new(&pool, lost::roster(&found, table.slots()));
    let extents = Extents::new(disk, io.clone(), (pool, placement, roster), table, options.reserve_extents);

    let frame_bytes_max =
        (options.frame_bytes_max as u64).min(pool.extent_bytes / 4).max(16 << 10) as usize / BLOCK * BLOCK;
    let recovery = Recovery {
        copies,
        healed,
        io,
        latch,
        pool,
        extents,
        env,
        options,
        frame_bytes_max,
        history,
        recycled_lsn,
        roster_read,
    };
    let mut replay = Replay::new(&*applier, report.checkpoint, recycled_lsn);
    let recovered = recovery.run(&found, &mut replay, &mut report).await?;
    if recovery.options.followed && recovered.read_only.is_none() && recovery.pool.zones.is_none() {
        recovery.follow(&found, recovered.durable_lsn);
    }
    report.records_replayed = replay.given.records;
    report.last_lsn = replay.last;
    report.read_only = recovered.read_only.is_some();
    let mut usage = replay.given.usage;
    usage.follow_with(&recovery.extents);
    let shared = recovery.into_shared(applier, usage, &recovered);
    let log = Log { shared: shared.clone() };
    start(&log, owners, recovered);
    report.took_ms = shared.env.now().saturating_sub(begun).as_millis() as u64;
    tracing::info!(
        records = report.records_replayed,
        checkpoint = report.checkpoint,
        last_lsn = report.last_lsn,
        took_ms = report.took_ms,
        read_only = report.read_only,
        healed = report.healed_total,
        "pool opened"
    );
    Ok((log, report))
}

/// Rewrites the damaged copies of the superblock, and adds the format features to use.
async fn rewrite_superblocks(
    disk: &Arc<dyn Disk>,
    pool: &mut Superblock,
    bad_copies: Vec<u64>,
    features: Features,
    report: &mut RecoveryReport,
) -> Result<(), LogError> {
    for offset in bad_copies {
        tracing::warn!(offset, "rewriting a damaged copy of the superblock from the other one");
        report.damage.push(DamageFound { extent: None, offset, what: "superblock copy was damaged".into() });
        // On zones, both are written with the ledger when the next extent is taken.
        if pool.zones.is_none() {
            crate::pool::write_superblock(disk, pool, offset).await?;
        }
    }
    if pool.features | features != pool.features {
        pool.features = pool.features | features;
        // On zones they are written with the ledger.
        if pool.zones.is_none() {
            for offset in SUPERBLOCK_OFFSETS {
                crate::pool::write_superblock(disk, pool, offset).await?;
            }
        }
    }
    Ok(())
}

/// Finds all extents, and reads the roster. Lost extents are restored from another copy of the
/// disk, or marked.
async fn find_extents(
    copies: &Copies,
    pool: &Superblock,
    applier: &dyn Applier,
    for_reading: bool,
) -> (Vec<Found>, RosterRead) {
    let mut found = survey::survey(copies, pool).await;
    let roster_read = crate::roster::read(copies.disk(), pool).await;
    if pool.zones.is_none() {
        if !for_reading {
            restore::restore(copies, pool, &mut found, &roster_read).await;
        }
        lost::mark(&mut found, &roster_read, &applier.usage());
    }
    (found, roster_read)
}

/// Starts the log's tasks: committer, applier, fence and compaction only if it takes writes.
fn start(log: &Log, owners: Arc<dyn ChunkOwners>, recovered: Recovered) {
    let Recovered { open, durable_lsn, read_only, .. } = recovered;
    let shared = &log.shared;
    crate::scrub::report_lost(shared);
    let scrubbed = shared.clone();
    shared.background.spawn(&shared.env, "log-scrub", |stop| crate::scrub::run(scrubbed, stop));
    if shared.copies.count() > 1 {
        let healing = shared.clone();
        shared.background.spawn(&shared.env, "log-heal", |stop| crate::heal::run(healing, stop));
    }
    if let Some(why) = read_only {
        match shared.options.for_reading {
            true => shared.latch.set_for_reading(),
            false => shared.latch.set_read_only(why),
        }
    }
    let Some(open) = open else {
        if let Err(error) = shared.latch.check() {
            shared.queue.refuse(error);
        }
        return;
    };
    let (tx, rx) = mpsc::channel(shared.options.apply_queue_max.max(1));
    let committer = Committer::new(shared.clone(), open, durable_lsn, tx);
    let (committing, applying) = (shared.clone(), shared.clone());
    shared.env.spawn("log-committer", async move {
        // The applier ends later and signals it. Without this, batches in the queue would wait
        // forever.
        let _refused = Refused(committing.clone());
        let _guard = Guard::new("log-committer", &committing.latch);
        committer.run().await;
    });
    shared.env.spawn("log-applier", async move {
        let _ended = Ended(applying.clone());
        let _guard = Guard::new("log-applier", &applying.latch);
        apply::run(applying.clone(), rx).await;
    });
    let fenced = shared.clone();
    shared.background.spawn(&shared.env, "log-fence", |stop| crate::fence::run(fenced, stop));
    if shared.options.compaction.enabled {
        let compacted = log.clone();
        shared.background.spawn(&shared.env, "log-compact", |stop| crate::compact::run(compacted, owners, stop));
    }
}

/// The log's history from its headers.
fn history(found: &[Found], recycled_lsn: Lsn) -> History {
    // A damaged header proves nothing, not even a build without histories.
    let in_use = |f: &Found| f.kind != ExtentKind::Free && f.damage.is_none();
    let lineage = |f: &Found| ExtentLineage { epoch: f.epoch, in_use: in_use(f), lineage: f.lineage };
    History::new(&found.iter().map(lineage).collect::<Vec<_>>(), recycled_lsn)
}

/// The table of extents as found.
fn table(
    placement: &Placement,
    pool: &Superblock,
    found: &[Found],
    applier: &dyn Applier,
    recycled_lsn: Lsn,
    report: &mut RecoveryReport,
) -> Table {
    let mut slots: Vec<ExtentInfo> = Vec::with_capacity(found.len());
    for f in found {
        if let Some(what) = &f.damage {
            report.damage(f.extent, 0, what.clone());
        }
        for (offset, what) in &f.healed {
            report.healed(f.extent, *offset, what.clone());
        }
        let mut slot = ExtentInfo { epoch: f.epoch, kind: f.kind, ..ExtentInfo::new(f.extent) };
        let empty = f.trailer.is_some_and(|t| t.record_count == 0);
        if let Some(lost) = f.lost {
            // Never taken: a new header would hide the loss.
            slot.state = ExtentState::Lost;
            slot.epoch = lost.epoch;
            // Deleted records stay deleted if the extent comes back.
            slot.min_version = 0;
            slot.kind = match lost.used {
                RosterUse::Commit => ExtentKind::Commit,
                RosterUse::Body => ExtentKind::Body,
                RosterUse::Unknown | RosterUse::Free => ExtentKind::Free,
            };
        } else if f.kind == ExtentKind::Free || empty {
            slot.kind = ExtentKind::Free;
            if placement.is_dead(pool.extent_start(f.extent)) {
                // Never taken.
                slot.state = ExtentState::Busy;
            }
        } else {
            slot.state = ExtentState::Sealed;
            slot.data_end = pool.extent_bytes - BLOCK as u64;
            // Until the replay knows better.
            slot.min_version = 0;
            if let Some(t) = &f.trailer {
                slot.data_end = u64::from(t.data_end);
                slot.min_version = t.min_version;
                slot.last_lsn = t.last_lsn;
                slot.footer = Some((t.footer_offset, t.footer_len));
            }
        }
        slots.push(slot);
    }
    for usage in applier.usage() {
        let slot = slots.get_mut(usage.extent as usize);
        let is = |s: &&mut ExtentInfo| match s.state {
            ExtentState::Lost => s.epoch == usage.epoch || s.epoch == 0,
            state => s.epoch == usage.epoch && state == ExtentState::Sealed,
        };
        match slot.filter(is) {
            Some(slot) => {
                slot.live_bytes = usage.live_bytes as i64;
                slot.epoch = usage.epoch;
            }
            None if usage.live_bytes > 0 => {
                // Recycled since that checkpoint.
                tracing::debug!(
                    extent = usage.extent,
                    epoch = usage.epoch,
                    "an extent of the checkpoint no longer exists"
                );
            }
            None => {}
        }
    }
    let next_epoch = found.iter().map(|f| f.epoch_max).max().unwrap_or(0) + 1;
    // Only the ledger knows of extents that were reset.
    let next_epoch = next_epoch.max(placement.ledger().epoch_bound);
    let mut table = Table::new(next_epoch, recycled_lsn);
    slots.into_iter().for_each(|slot| table.push(slot));
    table
}

/// A recovery, once the extents are known.
struct Recovery {
    copies: Copies,
    healed: Arc<Healed>,
    io: Arc<Io>,
    latch: Arc<Latch>,
    pool: Superblock,
    extents: Extents,
    env: Env,
    options: LogOptions,
    frame_bytes_max: usize,
    history: History,
    recycled_lsn: Lsn,
    roster_read: RosterRead,
}

/// The state from which the log continues.
struct Recovered {
    /// The open commit extent; `None` if the log is read-only.
    open: Option<OpenCommit>,
    /// Why the log is read-only: damage, or it was opened for reading.
    read_only: Option<String>,
    /// The highest LSN seen anywhere.
    seen: Lsn,
    durable_lsn: Lsn,
}

impl Recovery {
    /// Reads the log, judges its damage and prepares the pool for writing, if it may be written.
    async fn run(
        &self,
        found: &[Found],
        replay: &mut Replay<'_>,
        report: &mut RecoveryReport,
    ) -> Result<Recovered, LogError> {
        self.read_commits(found, replay, report).await;
        let seen = replay.seen.max(report.checkpoint).max(self.recycled_lsn);
        let mut read_only = self.judge(found, replay, seen, report);
        if self.options.for_reading {
            read_only.get_or_insert_with(|| "it was opened for reading".to_owned());
        }
        if self.healed.total() > 0 {
            // Data from another copy is durable on the first one before anything depends on it.
            let flushed = self.io.flush().await;
            if read_only.is_none() {
                flushed.map_err(failed)?;
            }
        }
        let open = match &read_only {
            Some(_) => {
                replay.give_the_rest();
                self.extents.with(|table| table.lineage = self.history.lineage());
                None
            }
            None => Some(self.begin_opening(found, replay, seen, report).await?),
        };
        if replay.given.stuck {
            // Only changes that any start makes have been made.
            return Err(LogError::Open("the index could not apply the records of the log".into()));
        }
        // Not `seen`: cut LSNs are not reused, but no record with them precedes the next frame.
        let durable_lsn = replay.last.max(self.recycled_lsn);
        Ok(Recovered { open, read_only, seen, durable_lsn })
    }

    /// Judges holes, lost extents and missing commits. Returns a reason if nothing may be written.
    fn judge(
        &self,
        found: &[Found],
        replay: &mut Replay<'_>,
        seen: Lsn,
        report: &mut RecoveryReport,
    ) -> Option<String> {
        let checkpoint = report.checkpoint;
        let mut read_only = replay.verdict(report);
        if read_only.is_none() && checkpoint > replay.last.max(self.recycled_lsn) {
            let why = format!(
                "the index has records up to LSN {checkpoint}, the log ends at {}: acknowledged commits are missing. If the \
                 pool was restored from a snapshot, restart it once with `steadfast serve --restored`, which rebuilds the index",
                replay.last
            );
            report.damage.push(DamageFound { extent: None, offset: 0, what: why.clone() });
            report.doubt(Doubt { below: 0 });
            read_only = Some(why);
        }
        let lost = lost::judge(found, &self.extents.all(), seen, report);
        read_only = read_only.or(lost);
        if self.pool.zones.is_none() {
            let broken_off = lost::broken_off(found, replay, report);
            read_only = read_only.or(broken_off);
        }
        read_only
    }

    /// Begins a new opening in the log's history, and prepares the pool for writing.
    async fn begin_opening(
        &self,
        found: &[Found],
        replay: &mut Replay<'_>,
        seen: Lsn,
        report: &mut RecoveryReport,
    ) -> Result<OpenCommit, LogError> {
        // No other opening has the forward copies at their place, so they count as of this one.
        let last = replay.copied_from().max(self.recycled_lsn);
        let lineage = self.history.begin([self.env.random_u64(), self.env.random_u64()], last);
        self.extents.with(|table| table.lineage = lineage);
        if let (None, Some(opening)) = (&self.pool.zones, lineage.openings().next()) {
            // Before any other write that another server might make too.
            crate::pool::write_opening(self.copies.disk(), &self.pool, opening.id).await?;
        }
        self.extents.roster().sync(&self.io, &self.roster_read).await.map_err(failed)?;
        self.continue_chain(found, replay, seen, report).await
    }

    /// Begins to keep account of what is durable.
    fn follow(&self, found: &[Found], durable_lsn: Lsn) {
        let first = |lineage: &Lineage| lineage.openings().next().map_or(0, |opening| opening.id);
        let (now, recycled_lsn) = self.extents.with(|table| (first(&table.lineage), table.recycled_lsn));
        // Other uses have been taken by this recovery.
        let of = |slot: &ExtentInfo| {
            let found = found.get(slot.extent as usize).filter(|found| found.epoch == slot.epoch);
            found.map_or(now, |found| first(&found.lineage))
        };
        let slots = self.extents.all();
        let uses = slots.iter().map(|slot| (slot, of(slot)));
        self.extents.durable().begin(uses, &self.pool, (durable_lsn, recycled_lsn));
    }

    /// The state shared by all parts of the open log.
    fn into_shared(self, applier: Arc<dyn Applier>, usage: Usage, recovered: &Recovered) -> Arc<Shared> {
        let Self { copies, healed, io, latch, pool, extents, env, options, frame_bytes_max, .. } = self;
        let disk = copies.disk().clone();
        let background = Background::new(&latch);
        Arc::new(Shared {
            room: Room::new(extents.clone(), pool.extent_bytes, &options, &env),
            bodies: Bodies::new(
                options.body_writes_max,
                extents.placement(),
                pool.extents_in(disk.geometry().capacity_bytes),
            ),
            latch,
            io,
            queue: Queue::new(recovered.seen + 1),
            metrics: Metrics::default(),
            compaction: Compaction::default(),
            scrub: Scrub::default(),
            copies: copies.pinning(extents.clone()),
            healed,
            heal_queue: HealQueue::default(),
            background,
            progress: ApplyProgress {
                // A wait for all accepted records must not include those that were cut.
                applied: watch::Sender::new(recovered.seen),
                applying: AtomicU64::new(recovered.durable_lsn),
                hold: Hold::default(),
                usage: Mutex::new(usage),
            },
            durable: watch::Sender::new(recovered.durable_lsn),
            chunks_written: AtomicU64::new(0),
            read_failure_reports: Throttle::new(crate::read::FAILURE_REPORT_INTERVAL),
            ended: watch::Sender::new(recovered.open.is_none()),
            frame_bytes_max,
            footer_bytes_max: options.footer_bytes_max.min(pool.extent_bytes / 4),
            chunk_bytes_max: (options.chunk_bytes_max as u64).min(pool.extent_bytes / 4) as usize / BLOCK * BLOCK,
            disk,
            env,
            options,
            pool,
            applier,
            extents,
        })
    }
}

impl Log {
    /// Opens the pool on the disk: recovers committed records, passes the applier those after its
    /// checkpoint, and starts the log's tasks. If recovery finds damage in acknowledged data, the
    /// log is read-only: see the report.
    ///
    /// # Errors
    /// [`LogError::Open`] if the disk holds no readable pool.
    pub async fn open(
        disk: Arc<dyn Disk>,
        env: Env,
        options: LogOptions,
        applier: Arc<impl Applier + ChunkOwners>,
    ) -> Result<(Log, RecoveryReport), LogError> {
        open(disk, env, options, applier.clone(), applier).await
    }
}
