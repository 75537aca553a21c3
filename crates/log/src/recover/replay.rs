//! Orders the surviving records, and distinguishes a torn tail from corruption.
//!
//! Frames are accepted while each names the last accepted frame as its predecessor. Frames behind a
//! hole are held back. If any of them was written when a record in the hole was already durable,
//! the hole is corruption. Otherwise nothing in it or behind it was acknowledged, and it is cut.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use steadfast_disk::BLOCK;

use super::report::{Cut, Doubt, RecoveryReport};
use crate::extents::Sealed;
use crate::format::{FooterEntry, FrameHeader};
use crate::seal::FooterBuilder;
use crate::{Applied, Applier, Location, Lsn, Usage};

/// Records from footers that the applier gets at a time.
const BATCH: usize = 1024;

/// A commit extent that was not sealed.
#[derive(Default)]
pub(super) struct Unsealed {
    /// Contents of its future footer.
    pub(super) footer: FooterBuilder,
    /// End of the frames that are kept.
    pub(super) data_end: u64,
    /// End of the last valid frame, kept or not.
    pub(super) scan_end: u64,
    pub(super) last_checksum: u32,
    pub(super) prev_lsn: Option<Lsn>,
    /// Frames behind its last one are gone. It stays unsealed, so that each start reports the loss.
    pub(super) broken_off: bool,
}

impl Unsealed {
    /// Facts about an extent that stays without a footer.
    pub(super) fn without_footer(&self) -> Sealed {
        Sealed {
            min_version: self.footer.min_version(),
            last_lsn: self.footer.last_lsn,
            data_end: self.data_end,
            footer: None,
        }
    }
}

/// A frame whose records are in order.
pub(super) struct Accepted {
    pub(super) extent: u32,
    pub(super) header: FrameHeader,
    pub(super) checksum: u32,
    pub(super) records: Vec<Applied>,
}

struct Hole {
    after: Lsn,
    epoch: u64,
    extent: u32,
    offset: u64,
    what: String,
}

enum HeldBack {
    Frame(Accepted),
    Records(Vec<Applied>),
}

/// What the applier has received.
pub(super) struct Given<'a> {
    applier: &'a dyn Applier,
    /// It has the records up to this one.
    checkpoint: Lsn,
    pub(super) records: u64,
    /// The accounts, as its checkpoint and these records make them.
    pub(super) usage: Usage,
    /// It could not apply a record, so it gets no more.
    pub(super) stuck: bool,
}

impl Given<'_> {
    /// Passes the applier those of these records that it lacks.
    pub(super) fn give(&mut self, records: &[Applied]) {
        let known = records.partition_point(|record| record.lsn <= self.checkpoint);
        for batch in records[known..].chunks(BATCH) {
            self.stuck |= self.applier.apply(batch, &mut self.usage) < batch.len();
            if self.stuck {
                return;
            }
            self.records += batch.len() as u64;
        }
    }
}

pub(super) struct Replay<'a> {
    pub(super) given: Given<'a>,
    /// LSNs up to here may be missing: indexed, or recycled.
    excused: Lsn,
    /// The last LSN in order.
    pub(super) last: Lsn,
    /// The highest LSN seen anywhere.
    pub(super) seen: Lsn,
    /// Everything up to here was durable, as a later frame, a trailer or the checkpoint proves.
    pub(super) witness: Lsn,
    /// In order, but not proved durable.
    pub(super) waiting: VecDeque<Accepted>,
    hole: Option<Hole>,
    held: Vec<HeldBack>,
    held_witness: Lsn,
    /// The first LSN behind the last gap in the held frames.
    gap_end: Lsn,
    pub(super) unsealed: BTreeMap<u32, Unsealed>,
}

impl<'a> Replay<'a> {
    pub(super) fn new(applier: &'a dyn Applier, checkpoint: Lsn, recycled: Lsn) -> Self {
        Self {
            given: Given { applier, checkpoint, records: 0, usage: Usage::load(&applier.usage()), stuck: false },
            excused: checkpoint.max(recycled),
            last: 0,
            seen: 0,
            witness: checkpoint,
            waiting: VecDeque::new(),
            hole: None,
            held: Vec::new(),
            held_witness: 0,
            gap_end: 0,
            unsealed: BTreeMap::new(),
        }
    }

    /// Skips a sealed extent whose records the applier has.
    pub(super) fn skip_sealed(&mut self, last_lsn: Lsn) {
        self.last = self.last.max(last_lsn);
        self.seen = self.seen.max(last_lsn);
        self.witness = self.witness.max(last_lsn);
    }

    /// Records that everything up to here was durable.
    pub(super) fn witness_to(&mut self, lsn: Lsn) {
        self.witness = self.witness.max(lsn);
    }

    /// The last LSN before the forward copies; the last of all if there are none.
    pub(super) fn copied_from(&self) -> Lsn {
        self.waiting.front().map_or(self.last, |frame| frame.header.prev_lsn.min(self.last))
    }

    /// Unsealed extents without records that are kept or copied.
    pub(super) fn empty_extents(&self) -> Vec<u32> {
        let waits = |extent: u32| self.waiting.iter().any(|frame| frame.extent == extent);
        let unsealed = self.unsealed.iter().filter(|(_, u)| u.footer.record_count == 0);
        unsealed.map(|(extent, _)| *extent).filter(|extent| !waits(*extent)).collect()
    }

    /// The last LSN of an unsealed extent that is kept or copied.
    pub(super) fn last_of(&self, extent: u32) -> Lsn {
        let kept = self.unsealed.get(&extent).map_or(0, |unsealed| unsealed.footer.last_lsn);
        let waits = self.waiting.iter().filter(|frame| frame.extent == extent).map(|frame| frame.header.last_lsn);
        waits.fold(kept, Lsn::max)
    }

    /// Adds a sealed extent's records. A trailer proves that all before it was durable.
    pub(super) fn sealed(&mut self, extent: u32, epoch: u64, prev_lsn: Lsn, records: Vec<Applied>) {
        let Some(last_lsn) = records.last().map(|r| r.lsn) else { return };
        self.seen = self.seen.max(last_lsn);
        if last_lsn <= self.last {
            return;
        }
        if self.connects(prev_lsn, epoch) {
            self.witness = self.witness.max(last_lsn);
            self.settle();
            // It may begin with copies of records that are still in their first place.
            let known = records.partition_point(|record| record.lsn <= self.last);
            self.given.give(&records[known..]);
            self.last = last_lsn;
        } else {
            let after = self.last.max(self.excused);
            self.open_hole(after, extent, epoch, 0, "records before this extent are missing".into());
            self.held_witness = self.held_witness.max(last_lsn);
            self.held.push(HeldBack::Records(records));
        }
    }

    /// Adds a valid frame. `chained`: it follows the one before it in its extent without a hole.
    pub(super) fn frame(&mut self, frame: Accepted, chained: bool) {
        let header = frame.header;
        self.seen = self.seen.max(header.last_lsn);
        let unsealed = self.unsealed.entry(frame.extent).or_default();
        unsealed.scan_end = unsealed.scan_end.max(u64::from(header.offset) + header.total_len());
        let again = chained && header.last_lsn <= self.last;
        if again && self.connects(header.prev_lsn, header.id.epoch) {
            // A copy by recovery of a record in its first place. If there was a hole, that recovery
            // has cut there.
            self.witness = self.witness.max(header.durable_lsn);
            return self.settle();
        }
        let connects = chained && self.connects(header.prev_lsn, header.id.epoch);
        if connects {
            self.last = header.last_lsn;
            self.witness = self.witness.max(header.durable_lsn);
            self.waiting.push_back(frame);
            self.settle();
        } else {
            let offset = u64::from(header.offset);
            let after = self.last.max(self.excused);
            let what = "records before this frame are missing".into();
            self.open_hole(after, frame.extent, header.id.epoch, offset, what);
            self.held_witness = self.held_witness.max(header.durable_lsn);
            self.held.push(HeldBack::Frame(frame));
        }
    }

    /// Records that the chain of an extent ends although more frames follow, or more had been
    /// durable.
    pub(super) fn broken(&mut self, extent: u32, epoch: u64, offset: u64, what: String, durable: Option<Lsn>) {
        // Behind a frame of its extent, the hole begins after that frame. At the start of an
        // extent, it begins after the record before.
        let after = if offset > BLOCK as u64 { self.last } else { self.last.max(self.excused) };
        self.open_hole(after, extent, epoch, offset, what);
        self.held_witness = self.held_witness.max(durable.unwrap_or(0));
    }

    fn open_hole(&mut self, after: Lsn, extent: u32, epoch: u64, offset: u64, what: String) {
        if self.hole.is_none() {
            self.hole = Some(Hole { after, epoch, extent, offset, what });
        }
    }

    /// Whether a frame or extent after `prev_lsn` continues from the last record in order. A later
    /// extent may continue from before a hole, where a recovery has cut.
    fn connects(&mut self, prev_lsn: Lsn, epoch: u64) -> bool {
        if prev_lsn > self.last.max(self.excused) {
            return false;
        }
        match &self.hole {
            None => true,
            Some(hole) if epoch > hole.epoch => {
                self.hole = None;
                self.held.clear();
                self.held_witness = 0;
                true
            }
            Some(_) => false,
        }
    }

    /// Passes the applier the records proved durable.
    pub(super) fn settle(&mut self) {
        while self.waiting.front().is_some_and(|frame| frame.header.last_lsn <= self.witness) {
            let Some(frame) = self.waiting.pop_front() else { return };
            self.keep(&frame);
            self.given.give(&frame.records);
        }
    }

    /// Keeps the frame in its place.
    fn keep(&mut self, frame: &Accepted) {
        let unsealed = self.unsealed.entry(frame.extent).or_default();
        for record in &frame.records {
            unsealed.footer.push(&FooterEntry {
                lsn: record.lsn,
                version: record.version,
                moved: record.moved,
                offset: record.location.offset,
                body_len: record.location.body_len,
                head: &record.head,
            });
        }
        unsealed.data_end = u64::from(frame.header.offset) + frame.header.total_len();
        unsealed.last_checksum = frame.checksum;
        unsealed.prev_lsn.get_or_insert(frame.header.prev_lsn);
    }

    /// Classifies the hole. Returns a reason if the pool is read-only; then the applier has got all
    /// remaining records.
    pub(super) fn verdict(&mut self, report: &mut RecoveryReport) -> Option<String> {
        let hole = self.hole.take()?;
        if self.held_witness.max(self.given.checkpoint) <= hole.after {
            report.cut.push(Cut { extent: hole.extent, offset: hole.offset, what: hole.what });
            self.held.clear();
            return None;
        }
        let why = format!(
            "extent {} at {}: {}; records after LSN {} had been acknowledged and are damaged or missing",
            hole.extent, hole.offset, hole.what, hole.after
        );
        report.damage(hole.extent, hole.offset, why.clone());
        let durable = self.held_witness;
        self.give_the_rest();
        // The missing records are before the last gap, or at the end.
        let below = if self.last < durable { durable + 1 } else { self.gap_end };
        report.doubt(Doubt { below });
        Some(why)
    }

    /// Passes the applier everything that can be read.
    pub(super) fn give_the_rest(&mut self) {
        for frame in std::mem::take(&mut self.waiting) {
            self.given.give(&frame.records);
        }
        for held in std::mem::take(&mut self.held) {
            let records = match held {
                HeldBack::Frame(frame) => frame.records,
                HeldBack::Records(records) => records,
            };
            let known = records.partition_point(|record| record.lsn <= self.last);
            if let Some(next) = records.get(known).filter(|next| next.lsn > self.last + 1) {
                self.gap_end = next.lsn;
            }
            self.given.give(&records[known..]);
            self.last = records.last().map_or(self.last, |record| self.last.max(record.lsn));
        }
    }
}

/// The records of a verified frame, with copies of their heads.
pub(super) fn records_of(header: &FrameHeader, frame: &[u8]) -> Result<Vec<Applied>, String> {
    let mut records = Vec::with_capacity((header.record_count as usize).min(frame.len() / 32));
    for view in header.records(frame) {
        let view = view.map_err(|error| error.to_string())?;
        let location = Location {
            extent: header.id.extent,
            epoch: header.id.epoch,
            offset: view.offset,
            head_len: view.header.head_len,
            body_len: view.header.body_len,
        };
        records.push(Applied {
            lsn: view.header.lsn,
            version: view.header.version,
            moved: view.header.moved,
            head: Bytes::copy_from_slice(view.head),
            location,
        });
    }
    Ok(records)
}
