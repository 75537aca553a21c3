//! Opening a pool: what was committed, what was torn, what is damaged.
//!
//! Nothing is changed before the whole picture is known. Then, in this order: records that may not have been durable are copied
//! into a new extent; a flush; the old extents are sealed before those records; a flush; only then is anything served. A crash
//! in between leaves both copies, and the next recovery takes the first one again.

mod forward;
mod lost;
mod replay;
mod report;
mod restore;
mod survey;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use steadfast_disk::{BLOCK, Disk};
use steadfast_flow::{Env, Throttle};
use tokio::sync::{mpsc, watch};

use forward::failed;
use replay::{Accepted, Replay, records_of};
pub use report::{Cut, DamageFound, Doubt, HEALED_MAX, LostExtent, RecoveryReport};
use survey::Found;

use crate::apply;
use crate::background::Background;
use crate::body::Bodies;
use crate::commit::Queue;
use crate::committer::Committer;
use crate::compact::Compaction;
use crate::copies::{Copies, FrameAt, Healed};
use crate::extents::{ExtentInfo, ExtentState, Extents, Table};
use crate::format::{
    ExtentId, ExtentKind, FooterEntry, FrameHeader, FrameKind, RosterUse, SUPERBLOCK_OFFSETS, Superblock,
};
use crate::frame::OpenCommit;
use crate::guard::{Ended, Guard, Refused};
use crate::history::{History, Told};
use crate::io::Io;
use crate::latch::Latch;
use crate::log::{Log, Shared};
use crate::mend::Mends;
use crate::options::LogOptions;
use crate::placement::Placement;
use crate::pool::Head;
use crate::reserve::Room;
use crate::roster::Roster;
use crate::scan::{Reader, read_footer};
use crate::scrub::Scrub;
use crate::status::Metrics;
use crate::{Applied, Applier, Location, LogError, Lsn, PoolInfo, Sabotage};

pub(crate) async fn open(
    disk: Arc<dyn Disk>,
    env: Env,
    options: LogOptions,
    applier: Arc<dyn Applier>,
) -> Result<(Log, RecoveryReport), LogError> {
    let begun = env.now();
    // What can be read but was not durable is made durable: else it might be replayed now and be gone after the next crash.
    disk.flush().await.map_err(|e| LogError::Open(format!("cannot flush {}: {e}", disk.describe())))?;
    let Head { disk, superblock: mut pool, ledger, bad: bad_copies } = crate::pool::read_head(&disk).await?;
    if let Some(why) = pool.features.unwritable() {
        return Err(LogError::Open(format!("{}: {why}", disk.describe())));
    }
    let mut report = RecoveryReport::new(PoolInfo::from(&pool));
    for offset in bad_copies {
        tracing::warn!(offset, "a damaged copy of the superblock is written again from the other one");
        report.damage.push(DamageFound { extent: None, offset, what: "superblock copy was damaged".into() });
        // On zones, both are written with the ledger when the next extent is taken.
        if pool.zones.is_none() {
            crate::pool::write_superblock(&disk, &pool, offset).await?;
        }
    }
    if pool.features | options.features != pool.features {
        pool.features = pool.features | options.features;
        // On zones they go with the ledger.
        if pool.zones.is_none() {
            for offset in SUPERBLOCK_OFFSETS {
                crate::pool::write_superblock(&disk, &pool, offset).await?;
            }
        }
    }
    let healed = Arc::new(Healed::default());
    let copies = Copies::new(disk.clone(), healed.clone());
    let mut found = survey::survey(&copies, &pool).await;
    let roster_read = crate::roster::read(&disk, &pool).await;
    if pool.zones.is_none() {
        restore::restore(&copies, &pool, &mut found, &roster_read).await;
        lost::mark(&mut found, &roster_read, &applier.usage());
    }
    report.extents = found.len() as u64;
    let checkpoint = applier.checkpoint();
    report.checkpoint = checkpoint;
    let recycled_lsn = found.iter().map(|f| f.recycled_lsn).max().unwrap_or(0).max(ledger.recycled_lsn);
    let history = history(&found, recycled_lsn);
    if !applier.goes_on(&history) {
        return Err(LogError::Open("what was derived from the log is not of this log's history".into()));
    }
    let placement = Placement::new(disk.clone(), pool, ledger, options.sabotage);
    let latch = Arc::new(Latch::new());
    let io = Arc::new(Io::new(disk.clone(), latch.clone(), env.clone()));
    let mut table = table(&placement, &pool, &found, &*applier, recycled_lsn, &mut report);
    table.next_epoch = table.next_epoch.max(roster_read.epoch_bound());
    let roster = Roster::new(&pool, lost::roster(&found, table.slots()));
    let extents =
        Extents::new(disk.clone(), io.clone(), (pool, placement.clone(), roster), table, options.reserve_extents);

    let frame_bytes_max =
        (options.frame_bytes_max as u64).min(pool.extent_bytes / 4).max(16 << 10) as usize / BLOCK * BLOCK;
    let recovery = Recovery {
        copies: copies.clone(),
        io: io.clone(),
        pool,
        extents: extents.clone(),
        options: &options,
        frame_bytes_max,
    };
    let mut replay = Replay::new(&*applier, checkpoint, recycled_lsn);
    let mut commits: Vec<&Found> = found.iter().filter(|f| f.kind == ExtentKind::Commit).collect();
    commits.sort_by_key(|f| f.epoch);
    for extent in commits {
        recovery.read_extent(extent, &mut replay, &mut report).await;
    }
    let mut read_only = replay.verdict(&mut report);
    let seen = replay.seen.max(checkpoint).max(recycled_lsn);
    if read_only.is_none() && checkpoint > replay.last.max(recycled_lsn) {
        let why = format!(
            "the index has records up to LSN {checkpoint}, the log ends at {}: commits that were acknowledged are missing. If the \
             pool was restored from a snapshot, restart it once with `steadfast serve --restored`, which rebuilds the index",
            replay.last
        );
        report.damage.push(DamageFound { extent: None, offset: 0, what: why.clone() });
        report.doubt(Doubt { below: 0 });
        read_only = Some(why);
    }
    let lost = lost::judge(&found, &extents.all(), seen, &mut report);
    read_only = read_only.or(lost);
    if pool.zones.is_none() {
        let broken_off = lost::broken_off(&found, &mut replay, &mut report);
        read_only = read_only.or(broken_off);
    }
    if healed.total() > 0 {
        // What was taken from another copy is on the first one, durably, before anything depends on it.
        let flushed = io.flush().await;
        if read_only.is_none() {
            flushed.map_err(failed)?;
        }
    }
    let open = match &read_only {
        Some(_) => {
            replay.give_the_rest();
            extents.with(|table| table.lineage = history.lineage());
            None
        }
        None => {
            // What is copied forward lies where no other opening has it: it counts as of this one.
            let last = replay.copied_from().max(recycled_lsn);
            let lineage = history.begin([env.random_u64(), env.random_u64()], last);
            extents.with(|table| table.lineage = lineage);
            if let (None, Some(opening)) = (&pool.zones, lineage.openings().next()) {
                // Before anything else is written that another server might write, too.
                crate::pool::write_opening(&disk, &pool, opening.id).await?;
            }
            extents.roster().sync(&io, &roster_read).await.map_err(failed)?;
            Some(recovery.go_on(&found, &mut replay, seen, &mut report).await?)
        }
    };
    if replay.stuck {
        // Nothing was changed but what any start changes.
        return Err(LogError::Open("what the log holds could not be taken in".into()));
    }
    // Before compaction can run.
    extents.keep(applier.holds());
    report.records_replayed = replay.replayed;
    report.last_lsn = replay.last;
    report.read_only = read_only.is_some();
    drop(recovery);
    // Not `seen`: LSNs that were cut are not used again, but nothing came before the next frame either that had them.
    let durable_lsn = replay.last.max(recycled_lsn);
    let background = Background::new(&latch);
    let shared = Arc::new(Shared {
        room: Room::new(extents.clone(), pool.extent_bytes, &options, &env),
        bodies: Bodies::new(options.body_writes_max, &placement, pool.extents_in(disk.geometry().capacity_bytes)),
        latch,
        io,
        queue: Queue::new(seen + 1),
        metrics: Metrics::default(),
        compaction: Compaction::default(),
        scrub: Scrub::default(),
        copies: copies.pinning(extents.clone()),
        healed,
        mends: Mends::default(),
        background,
        // Whoever waits for all that was accepted must not wait for what was cut.
        applied: watch::Sender::new(seen),
        applying: AtomicU64::new(durable_lsn),
        durable: watch::Sender::new(durable_lsn),
        chunks_written: AtomicU64::new(0),
        read_failures_told: Throttle::new(crate::read::FAILURES_TOLD_EVERY),
        ended: watch::Sender::new(open.is_none()),
        frame_bytes_max,
        footer_bytes_max: options.footer_bytes_max.min(pool.extent_bytes / 4),
        chunk_bytes_max: (options.chunk_bytes_max as u64).min(pool.extent_bytes / 4) as usize / BLOCK * BLOCK,
        disk,
        env,
        options,
        pool,
        applier,
        extents,
    });
    let log = Log { shared: shared.clone() };
    start(&log, open, durable_lsn, read_only);
    report.took_ms = shared.env.now().saturating_sub(begun).as_millis() as u64;
    tracing::info!(
        records = report.records_replayed,
        checkpoint,
        last_lsn = report.last_lsn,
        took_ms = report.took_ms,
        read_only = report.read_only,
        healed = report.healed_total,
        "pool opened"
    );
    Ok((log, report))
}

fn start(log: &Log, open: Option<OpenCommit>, durable_lsn: Lsn, read_only: Option<String>) {
    let shared = &log.shared;
    crate::scrub::report_lost(shared);
    let scrubbed = shared.clone();
    shared.background.spawn(&shared.env, "log-scrub", |stop| crate::scrub::run(scrubbed, stop));
    if shared.copies.count() > 1 {
        let mended = shared.clone();
        shared.background.spawn(&shared.env, "log-heal", |stop| crate::mend::run(mended, stop));
    }
    if let Some(why) = read_only {
        shared.latch.set_read_only(why);
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
        // The applier ends after it, and says so; but what waits here would wait for ever.
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
        shared.background.spawn(&shared.env, "log-compact", |stop| crate::compact::run(compacted, stop));
    }
}

/// What the headers tell of the log's history.
fn history(found: &[Found], recycled_lsn: Lsn) -> History {
    // A header that is damaged says nothing: not that a build that knows of no histories was here either.
    let in_use = |f: &Found| f.kind != ExtentKind::Free && f.damage.is_none();
    let told = |f: &Found| Told { epoch: f.epoch, in_use: in_use(f), lineage: f.lineage };
    History::new(&found.iter().map(told).collect::<Vec<_>>(), recycled_lsn)
}

/// The table of extents as it was found.
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
            // Never taken: a header in it would hide that something is gone.
            slot.state = ExtentState::Lost;
            slot.epoch = lost.epoch;
            // What was deleted stays deleted, should it come back.
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
                    "an extent of the checkpoint is not there any more"
                );
            }
            None => {}
        }
    }
    let next_epoch = found.iter().map(|f| f.epoch_max).max().unwrap_or(0) + 1;
    // Of what was reset, only the ledger knows.
    let next_epoch = next_epoch.max(placement.ledger().epoch_bound);
    let mut table = Table::new(next_epoch, recycled_lsn);
    slots.into_iter().for_each(|slot| table.push(slot));
    table
}

struct Recovery<'a> {
    copies: Copies,
    io: Arc<Io>,
    pool: Superblock,
    extents: Extents,
    options: &'a LogOptions,
    frame_bytes_max: usize,
}

impl Recovery<'_> {
    async fn read_extent(&self, found: &Found, replay: &mut Replay<'_>, report: &mut RecoveryReport) {
        if let Some(trailer) = &found.trailer {
            if trailer.record_count == 0 {
                return;
            }
            if trailer.last_lsn <= report.checkpoint {
                return replay.skip_sealed(trailer.last_lsn);
            }
            let mut records = Vec::new();
            let start = self.extents.start(found.extent);
            let mut healed = Vec::new();
            let mut each = |entry: &FooterEntry<'_>| {
                records.push(Applied {
                    lsn: entry.lsn,
                    version: entry.version,
                    moved: entry.moved,
                    head: bytes::Bytes::copy_from_slice(entry.head),
                    location: Location {
                        extent: found.extent,
                        epoch: found.epoch,
                        offset: entry.offset,
                        head_len: entry.head.len() as u32,
                        body_len: entry.body_len,
                    },
                });
            };
            let read = read_footer(&self.copies, start, trailer, &mut each, |at, what| healed.push((at, what))).await;
            for (at, what) in healed {
                report.healed(found.extent, at, what);
            }
            match read {
                Ok(()) => {
                    report.footers_read += 1;
                    return replay.sealed(found.extent, found.epoch, trailer.prev_lsn, records);
                }
                Err(what) => {
                    report.damage(found.extent, u64::from(trailer.footer_offset), format!("footer: {what}"));
                    replay.witness_to(trailer.last_lsn);
                }
            }
        }
        self.scan(found, replay, report).await;
    }

    /// Reads an extent frame by frame.
    async fn scan(&self, found: &Found, replay: &mut Replay<'_>, report: &mut RecoveryReport) {
        report.extents_scanned += 1;
        let id = self.extents.id(found.extent, found.epoch);
        let extent_bytes = self.pool.extent_bytes;
        let data_end = found.trailer.map_or(extent_bytes - BLOCK as u64, |t| u64::from(t.data_end));
        if found.trailer.is_none() {
            let unsealed = replay.unsealed.entry(found.extent).or_default();
            unsealed.data_end = BLOCK as u64;
            unsealed.scan_end = BLOCK as u64;
        }
        let start = self.extents.start(found.extent);
        let trusting = self.options.sabotage == Sabotage::TornFrames;
        let mut reader = Reader::new(self.copies.disk().clone(), start, BLOCK as u64, data_end);
        reader.trusting = trusting;
        let mut at = BLOCK as u64;
        let mut prev_checksum = 0;
        let mut chained = true;
        while at < data_end {
            let mut frame = reader.frame(&id, at, extent_bytes).await.and_then(|(header, checksum, bytes)| {
                if chained && header.prev_checksum != prev_checksum {
                    return Err("the frame does not follow the one before it".into());
                }
                Ok(Accepted { extent: found.extent, header, checksum, records: records_of(&header, bytes)? })
            });
            if let Err(what) = &frame
                && let Some(rescued) = self.rescue(&id, at, chained.then_some(prev_checksum)).await
            {
                report.healed(found.extent, at, what.clone());
                frame = Ok(rescued);
            }
            match frame {
                Ok(frame) => {
                    report.frames_scanned += 1;
                    prev_checksum = frame.checksum;
                    at += frame.header.total_len();
                    replay.frame(frame, chained);
                }
                Err(what) => {
                    let until = match found.trailer {
                        Some(_) => data_end,
                        None => at.saturating_add(self.options.recovery_search_bytes),
                    };
                    let from = at + BLOCK as u64;
                    let mut next = reader.find_frame(&id, from, until, extent_bytes).await;
                    for copy in 1..self.copies.count() {
                        // A frame that is whole on any copy was written, and may vouch for what is missing here.
                        let disk = self.copies.disk().clone();
                        let mut other = Reader::of_copy(copy, disk, start, from, next.unwrap_or(data_end));
                        if let Some(found) = other.find_frame(&id, from, until, extent_bytes).await {
                            next = Some(found);
                            // The first reader has gone on beyond.
                            reader = Reader::new(self.copies.disk().clone(), start, found, data_end);
                            reader.trusting = trusting;
                        }
                    }
                    // Inside a sealed extent all was durable.
                    let durable = found.trailer.map(|t| t.last_lsn);
                    if next.is_some() || durable.is_some() {
                        replay.broken(found.extent, found.epoch, at, what, durable);
                    }
                    let Some(next) = next else { return };
                    at = next;
                    chained = false;
                }
            }
        }
    }

    /// The frame at `at` from another copy, when copy 0 does not have it whole; copy 0 has been healed with it then. `follows` is the checksum of
    /// the frame that it must follow. A frame that was never acknowledged may come to be kept that way; none that was is ever cut.
    async fn rescue(&self, id: &ExtentId, at: u64, follows: Option<u32>) -> Option<Accepted> {
        let place = FrameAt { id: *id, at, end: self.pool.extent_bytes, kind: FrameKind::Commit };
        let accept = |(header, _): &(FrameHeader, u32)| follows.is_none_or(|prev| header.prev_checksum == prev);
        let whole = self.copies.rescue(self.extents.start(id.extent) + at, &place, accept).await?;
        let (header, checksum) = whole.value;
        let records = records_of(&header, &whole.bytes).ok()?;
        Some(Accepted { extent: id.extent, header, checksum, records })
    }
}
