//! Offline verification: every frame and every record of every extent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use steadfast_disk::{BLOCK, Disk};

use crate::check::{CheckedRecord, CheckedState, Counts, Damage, DoubtfulChunk, ExtentCheck, Findings, Tail};
use crate::format::{
    ExtentHeader, ExtentKind, FormatError, FrameHeader, FrameKind, RosterUse, SUPERBLOCK_OFFSETS, Superblock, Trailer,
};
use crate::roster::RosterRead;
use crate::{Location, LogError, Lsn};

/// Findings of one kind that are kept; more are only counted.
pub const FINDINGS_MAX: usize = 10_000;

/// Findings of [`verify`].
#[derive(Debug, Clone, Default, Serialize)]
pub struct VerifyReport {
    /// UUID of the pool, in hexadecimal.
    pub pool: String,
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Extents in use, by kind and state.
    pub extents: VerifiedExtents,
    /// Counts of verified structures.
    pub counts: Counts,
    /// The highest LSN that a later frame proves durable.
    pub durable_lsn: Lsn,
    /// The highest LSN seen.
    pub last_lsn: Lsn,
    /// Damages in the order of their offsets; at most [`FINDINGS_MAX`].
    pub damage: Vec<Damage>,
    /// Total number of damages.
    pub damage_total: u64,
    /// Ends of the extents that were open when the log was last used, with the bytes found there.
    /// The next start cuts unacknowledged data there.
    pub tails: Vec<Tail>,
    /// Chunks that do not verify in extents that were open: parts of interrupted uploads. A chunk
    /// that a record names is damage too.
    pub doubtful: Vec<DoubtfulChunk>,
    /// Total number of doubtful chunks.
    pub doubtful_total: u64,
    /// Number of chunks in open extents that a record names and that do not verify: damage.
    pub doubtful_needed: u64,
    /// The whole chunks in open extents, by extent and epoch.
    #[serde(skip)]
    open_chunks: BTreeMap<(u32, u64), BTreeSet<u32>>,
    /// LSNs in each commit extent.
    #[serde(skip)]
    spans: BTreeMap<u32, Span>,
    /// The highest LSN in any commit extent that has been recycled.
    #[serde(skip)]
    recycled_lsn: Lsn,
}

/// The LSNs in one extent: all after `after`, up to `last`.
#[derive(Debug, Clone, Copy)]
struct Span {
    after: Lsn,
    last: Lsn,
}

/// Extents by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct VerifiedExtents {
    /// Free or never used.
    pub free: u32,
    /// Open commit extents.
    pub commit_open: u32,
    /// Sealed commit extents.
    pub commit_sealed: u32,
    /// Open body extents.
    pub body_open: u32,
    /// Sealed body extents.
    pub body_sealed: u32,
    /// Extents of which nothing can be read.
    pub lost: u32,
}

impl VerifyReport {
    /// Whether nothing is damaged.
    pub fn is_clean(&self) -> bool {
        self.damage_total == 0
    }

    fn push_damage(&mut self, damage: Damage) {
        self.damage_total += 1;
        if self.damage.len() < FINDINGS_MAX {
            self.damage.push(damage);
        }
    }

    fn span(&mut self, extent: u32, after: Lsn, last: Lsn) {
        let span = self.spans.entry(extent).or_insert(Span { after, last });
        span.after = span.after.min(after);
        span.last = span.last.max(last);
    }

    /// Whether all flushed data is present, wherever the log may continue from `tail`.
    fn is_torn(&self, tail: &Tail) -> bool {
        if tail.last_lsn > 0 {
            // The extent holds everything up to there that any frame proves durable, or another
            // extent continues where this one ends.
            return self.durable_lsn <= tail.last_lsn || self.spans.values().any(|span| span.after == tail.last_lsn);
        }
        // An extent is prepared before it is written to, so it may be empty. Then the others hold
        // everything.
        let others = || self.spans.iter().filter(|(extent, _)| **extent != tail.extent).map(|(_, span)| span);
        let reached = |lsn| lsn <= self.recycled_lsn || others().any(|other| other.after < lsn && lsn <= other.last);
        self.durable_lsn <= others().map(|span| span.last).max().unwrap_or(0)
            && others().all(|span| reached(span.after))
    }

    /// Adds extents that were in use and whose data is gone: the disk ends before them, or nothing
    /// of that use is there. `bytes` is the disk's length from the first extent on.
    fn judge_lost(&mut self, used: &BTreeMap<u32, (CheckedState, u64)>, roster: &RosterRead, bytes: u64) {
        let is_used = |state: CheckedState| state != CheckedState::Unused;
        let used_end = used.iter().rev().find(|(_, (state, _))| is_used(*state)).map_or(0, |(extent, _)| *extent);
        for extent in 0..used.keys().next_back().map_or(0, |last| last + 1).max(roster.extents()) {
            let (state, epoch) = used.get(&extent).copied().unwrap_or((CheckedState::Unused, 0));
            let whole = (u64::from(extent) + 1) * self.extent_bytes <= bytes;
            let known = roster.get(extent);
            let lost = match known {
                Some(entry) if entry.used == RosterUse::Free => false,
                Some(entry) => !is_used(state) || (epoch > 0 && epoch < entry.epoch),
                None => !is_used(state) && extent < used_end,
            };
            let what = match known.map(|entry| entry.used) {
                Some(RosterUse::Commit) => "records",
                Some(RosterUse::Body) => "bodies",
                _ => "data",
            };
            let what = match (lost, whole) {
                (true, true) => format!("the extent is lost: it was in use for {what}, and its data is gone"),
                (true, false) => {
                    format!("the extent is lost: it was in use for {what}, and the disk ends before it does")
                }
                (false, false) if !matches!(state, CheckedState::Unused | CheckedState::Free) => {
                    "the disk ends within this extent, which is in use".to_owned()
                }
                (false, _) => continue,
            };
            self.extents.lost += u32::from(lost);
            let epoch = known.map_or(epoch, |entry| entry.epoch);
            self.push_damage(Damage { len: self.extent_bytes, ..Damage::new(extent, epoch, 0, what) });
        }
    }

    /// Separates damage from torn tails.
    fn judge_tails(&mut self) {
        for tail in std::mem::take(&mut self.tails) {
            if self.is_torn(&tail) {
                self.tails.push(tail);
                continue;
            }
            let what = if tail.what.is_empty() { "no frame here" } else { &tail.what };
            self.push_damage(Damage {
                len: BLOCK as u64,
                lsns: Some((tail.last_lsn + 1, self.durable_lsn)),
                ..Damage::new(
                    tail.extent,
                    tail.epoch,
                    tail.offset,
                    format!("{what}, but records up to LSN {} had been flushed", self.durable_lsn),
                )
            });
        }
    }
}

/// Collects the findings in the report, and asks the layer above about records.
struct Judge<'a, F> {
    report: &'a mut VerifyReport,
    names: F,
    /// Epoch of the current extent, if its header is whole.
    epoch: u64,
}

impl<F: FnMut(&[u8], &[u8]) -> Vec<Location> + Send> Findings for Judge<'_, F> {
    fn damage(&mut self, damage: Damage) {
        self.report.push_damage(damage);
    }

    fn tail(&mut self, tail: Tail) {
        self.report.tails.push(tail);
    }

    fn doubtful(&mut self, chunk: DoubtfulChunk) {
        self.report.doubtful_total += 1;
        if self.report.doubtful.len() < FINDINGS_MAX {
            self.report.doubtful.push(chunk);
        }
    }

    fn frame(&mut self, header: &FrameHeader) {
        let report = &mut *self.report;
        report.durable_lsn = report.durable_lsn.max(header.durable_lsn);
        report.last_lsn = report.last_lsn.max(header.last_lsn);
        if header.kind == FrameKind::Commit {
            report.span(header.id.extent, header.prev_lsn, header.last_lsn);
        }
    }

    fn extent(&mut self, header: &ExtentHeader) {
        self.epoch = header.id.epoch;
        self.report.recycled_lsn = self.report.recycled_lsn.max(header.recycled_lsn);
    }

    fn sealed(&mut self, trailer: &Trailer) {
        self.report.span(trailer.id.extent, trailer.prev_lsn, trailer.last_lsn.max(trailer.prev_lsn));
    }

    /// Chunks are durable before the record that names them is written.
    fn record(&mut self, record: CheckedRecord<'_>) {
        for chunk in (self.names)(record.head, record.body) {
            let whole = self.report.open_chunks.get(&(chunk.extent, chunk.epoch));
            if whole.is_some_and(|whole| !whole.contains(&chunk.offset)) {
                self.report.doubtful_needed += 1;
                let what = format!("the record with LSN {} names a chunk here that does not verify", record.lsn);
                self.report.push_damage(Damage {
                    len: u64::from(chunk.body_len),
                    heads: vec![record.head.to_vec()],
                    records: 1,
                    ..Damage::new(chunk.extent, chunk.epoch, u64::from(chunk.offset), what)
                });
            }
        }
    }

    fn open_body(&mut self, extent: u32, epoch: u64) {
        self.report.open_chunks.entry((extent, epoch)).or_default();
    }

    fn open_chunk(&mut self, extent: u32, epoch: u64, offset: u32) {
        self.report.open_chunks.entry((extent, epoch)).or_default().insert(offset);
    }
}

/// [`verify_named`] without a layer above, so that needed chunks in open extents are unknown.
///
/// # Errors
/// As [`verify_named`].
pub async fn verify(disk: &Arc<dyn Disk>, progress: impl FnMut(u64, u64)) -> Result<VerifyReport, LogError> {
    verify_named(disk, |_, _| Vec::new(), progress).await
}

/// Reads the whole pool on `disk`, which must not be in use. Verifies all checksums and compares
/// all redundant data. `names` gets head and body of every record and returns the chunks that it
/// names. In an open extent those chunks must be whole; others need not be. `progress` gets the
/// bytes done and the total.
///
/// # Errors
/// [`LogError::Open`] if the disk holds no pool of this format. Damage is no error; it is in the
/// report.
pub async fn verify_named(
    disk: &Arc<dyn Disk>,
    names: impl FnMut(&[u8], &[u8]) -> Vec<Location> + Send,
    mut progress: impl FnMut(u64, u64),
) -> Result<VerifyReport, LogError> {
    let mut report = VerifyReport::default();
    let (disk, superblock) = &superblocks(disk, &mut report).await?;
    let (disk, superblock) = (disk, *superblock);
    report.pool = superblock.pool.iter().map(|b| format!("{b:02x}")).collect();
    report.extent_bytes = superblock.extent_bytes;
    let total = disk.len();
    let extents = match superblock.zones {
        None => total.saturating_sub(superblock.extent_start(0)).div_ceil(superblock.extent_bytes),
        Some(_) => u64::from(superblock.extents_in(total)),
    };
    let check = ExtentCheck::new(disk.clone(), superblock, None);
    let roster = crate::roster::read(disk, &superblock).await;
    let mut used = BTreeMap::new();
    let mut judge = Judge { report: &mut report, names, epoch: 0 };
    let order = chunks_first(disk, &superblock, u32::try_from(extents).unwrap_or(u32::MAX)).await;
    for (done, extent) in order.into_iter().enumerate() {
        progress(superblock.extent_start(done as u32).min(total), total);
        judge.epoch = 0;
        let (state, counts) = check.run(extent, &mut judge).await;
        used.insert(extent, (state, judge.epoch));
        let report = &mut *judge.report;
        report.counts.frames += counts.frames;
        report.counts.records += counts.records;
        report.counts.read_bytes += counts.read_bytes;
        *match state {
            CheckedState::Unused | CheckedState::Free => &mut report.extents.free,
            CheckedState::Open(ExtentKind::Commit) => &mut report.extents.commit_open,
            CheckedState::Open(_) => &mut report.extents.body_open,
            CheckedState::Sealed(ExtentKind::Commit) => &mut report.extents.commit_sealed,
            CheckedState::Sealed(_) => &mut report.extents.body_sealed,
            CheckedState::Lost => &mut report.extents.lost,
        } += 1;
    }
    report.judge_tails();
    if superblock.zones.is_none() {
        report.judge_lost(&used, &roster, total.saturating_sub(superblock.extent_start(0)));
    }
    // The superblocks come first; they have no extent.
    report.damage.sort_by_key(|damage| (damage.extent.wrapping_add(1), damage.offset));
    progress(total, total);
    Ok(report)
}

/// The extents, commit extents last, so that the chunks that records name can be checked.
async fn chunks_first(disk: &Arc<dyn Disk>, superblock: &Superblock, extents: u32) -> Vec<u32> {
    let mut order = Vec::new();
    let mut records = Vec::new();
    for extent in 0..extents {
        let block = disk.read_copy(0, superblock.extent_start(extent), BLOCK).await;
        let header = block.ok().and_then(|block| ExtentHeader::decode(&block).ok());
        let last = header.is_some_and(|header| header.kind == ExtentKind::Commit);
        if last { records.push(extent) } else { order.push(extent) }
    }
    order.extend(records);
    order
}

/// Reads both copies. A bad one next to a good one is damage.
async fn superblocks(disk: &Arc<dyn Disk>, report: &mut VerifyReport) -> Result<(Arc<dyn Disk>, Superblock), LogError> {
    let mut damage = |offset: u64, what: String| {
        let what = format!("superblock copy at {offset} of the disk: {what}");
        // Extent numbers begin at 0, after the superblocks.
        report.push_damage(Damage { len: BLOCK as u64, ..Damage::new(u32::MAX, 0, offset, what) });
    };
    let head = crate::pool::read_head(disk).await?;
    if head.superblock.zones.is_some_and(|zones| zones.conventional_bytes == 0) {
        head.bad.iter().for_each(|offset| damage(*offset, "none is whole in this zone".into()));
        return Ok((head.disk, head.superblock));
    }
    for offset in SUPERBLOCK_OFFSETS {
        let what = match disk.read_copy(0, offset, BLOCK).await {
            Ok(block) => match Superblock::decode(&block) {
                Ok(superblock) if superblock == head.superblock => continue,
                Ok(_) => "the superblock copies differ".to_owned(),
                Err(why @ (FormatError::Version { .. } | FormatError::Features(_))) => {
                    return Err(LogError::Open(why.to_string()));
                }
                Err(why) => why.to_string(),
            },
            Err(cause) => format!("cannot be read: {cause}"),
        };
        damage(offset, what);
    }
    Ok((head.disk, head.superblock))
}
