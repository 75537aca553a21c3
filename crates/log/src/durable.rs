//! What returned flushes cover, for a copy of the log that is kept elsewhere.
//!
//! Such a copy must never have more than this disk: a power cut would leave it ahead. It must have
//! all that was acknowledged before the moment that it shows. So each write is noted when it has
//! returned, and counts when a flush that began later has returned. The committer makes it count
//! before any caller learns of the commit.
//!
//! A *cut* is the state of several logs at one moment. It names uses of extents: an extent in one
//! epoch. One epoch may have been given out twice, by two openings of a pool that was put back to
//! an earlier state. So a use has the opening too that took the extent.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::OnceLock;

use parking_lot::{Mutex, MutexGuard};
use steadfast_disk::BLOCK;

use crate::format::{ExtentHeader, ExtentKind, Superblock};
use crate::table::{ExtentInfo, ExtentState};
use crate::{Lsn, Ranges};

/// What is durable of an extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtentCut {
    /// It is not in use.
    Free {
        /// Its last epoch; 0 if it was never used.
        epoch: u64,
    },
    /// It is in use.
    InUse(UseCut),
    /// It was in use, and its data is gone from this disk.
    Lost {
        /// Its epoch; 0 if unknown.
        epoch: u64,
    },
}

/// What is durable of one use of an extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UseCut {
    /// Epoch of the use.
    pub epoch: u64,
    /// The opening of the log that took the extent; 0 if unknown.
    pub opening: u64,
    /// Purpose.
    pub kind: ExtentKind,
    /// Whether nothing is added any more.
    pub sealed: bool,
    /// The durable bytes, the header among them. Blocks between chunks may count, of which none was
    /// ever written.
    pub durable: Ranges,
}

/// What changed in a log from one cut to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogCut {
    /// Every epoch that was given out is lower.
    pub next_epoch: u64,
    /// The highest LSN of the recycled commit extents.
    pub recycled_lsn: Lsn,
    /// LSN of the last durable record.
    pub last_lsn: Lsn,
    /// The changed extents, as they are now. In the first cut, all extents.
    pub changed: BTreeMap<u32, ExtentCut>,
}

/// Writes that have returned.
type Noted = BTreeMap<(u32, u64), NotedUse>;

#[derive(Debug, Clone, Default)]
struct NotedUse {
    written: Ranges,
    sealed: bool,
}

impl NotedUse {
    fn add(&mut self, other: &Self) {
        self.written.extend(&other.written);
        self.sealed |= other.sealed;
    }
}

/// The durable state of the extents that changed since the last cut, or are open.
#[derive(Debug, Default)]
pub(crate) struct DurableState {
    extents: BTreeMap<u32, ExtentCut>,
    changed: BTreeSet<u32>,
    last_lsn: Lsn,
    recycled_lsn: Lsn,
    /// Written since the last flush of the committer began.
    noted: Noted,
    /// Written before it began.
    flushing: Noted,
}

impl DurableState {
    fn set(&mut self, extent: u32, state: ExtentCut) {
        self.extents.insert(extent, state);
        self.changed.insert(extent);
    }

    fn note(&mut self, extent: u32, epoch: u64, change: impl FnOnce(&mut NotedUse)) {
        change(self.noted.entry((extent, epoch)).or_default());
    }

    fn count(&mut self, extent: u32, epoch: u64, noted: &NotedUse) {
        let Some(ExtentCut::InUse(of)) = self.extents.get_mut(&extent).filter(|state| state.is_use(epoch)) else {
            // It was sealed and recycled meanwhile, so the flush of its seal came first.
            return;
        };
        of.durable.extend(&noted.written);
        of.sealed |= noted.sealed;
        self.changed.insert(extent);
    }

    /// What changed since the last cut.
    pub(crate) fn cut(&mut self, next_epoch: u64) -> LogCut {
        let mut changed = BTreeMap::new();
        for extent in std::mem::take(&mut self.changed) {
            let Some(state) = self.extents.get(&extent) else { continue };
            changed.insert(extent, state.clone());
            if !state.may_grow() {
                self.extents.remove(&extent);
            }
        }
        LogCut { next_epoch, recycled_lsn: self.recycled_lsn, last_lsn: self.last_lsn, changed }
    }
}

impl ExtentCut {
    fn is_use(&self, epoch: u64) -> bool {
        matches!(self, Self::InUse(of) if of.epoch == epoch)
    }

    fn may_grow(&self) -> bool {
        matches!(self, Self::InUse(of) if !of.sealed)
    }
}

/// The durable state of a log, if it is followed.
#[derive(Debug, Default)]
pub(crate) struct DurableView(OnceLock<Mutex<DurableState>>);

impl DurableView {
    /// The state, locked; `None` if the log is not followed.
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, DurableState>> {
        Some(self.0.get()?.lock())
    }

    /// Begins with what recovery has found, all of which is durable. The extents come with the
    /// openings that took them.
    pub(crate) fn begin<'a>(
        &self,
        slots: impl Iterator<Item = (&'a ExtentInfo, u64)>,
        pool: &Superblock,
        (last_lsn, recycled_lsn): (Lsn, Lsn),
    ) {
        let mut state = DurableState { last_lsn, recycled_lsn, ..DurableState::default() };
        slots.for_each(|(slot, opening)| state.set(slot.extent, found(slot, opening, pool)));
        let begun = self.0.set(Mutex::new(state));
        assert!(begun.is_ok(), "the durable state of a log begins once");
    }

    /// An extent is in use: its header is durable.
    pub(crate) fn taken(&self, header: &ExtentHeader) {
        let Some(mut state) = self.lock() else { return };
        let of = UseCut {
            epoch: header.id.epoch,
            opening: header.lineage.openings().next().map_or(0, |opening| opening.id),
            kind: header.kind,
            sealed: false,
            durable: Ranges::of(0..BLOCK as u32),
        };
        state.set(header.id.extent, ExtentCut::InUse(of));
    }

    /// An extent is free: the mark is durable.
    pub(crate) fn freed(&self, header: &ExtentHeader) {
        let Some(mut state) = self.lock() else { return };
        state.recycled_lsn = state.recycled_lsn.max(header.recycled_lsn);
        state.set(header.id.extent, ExtentCut::Free { epoch: header.id.epoch });
    }

    /// A write to an extent in use has returned.
    pub(crate) fn wrote(&self, extent: u32, epoch: u64, written: Range<u64>) {
        if let Some(mut state) = self.lock() {
            state.note(extent, epoch, |noted| noted.written.insert(small(written)));
        }
    }

    /// Footer and trailer of an extent have been written, or it does without them.
    pub(crate) fn sealed(&self, extent: u32, epoch: u64, footer: Option<(u32, u32)>, pool: &Superblock) {
        let Some(mut state) = self.lock() else { return };
        state.note(extent, epoch, |noted| {
            noted.written.extend(&ends(footer, pool));
            noted.sealed = true;
        });
    }

    /// The committer begins a flush, which covers the writes that have returned.
    pub(crate) fn begin_flush(&self) {
        let Some(mut state) = self.lock() else { return };
        let state = &mut *state;
        for (of, noted) in std::mem::take(&mut state.noted) {
            state.flushing.entry(of).or_default().add(&noted);
        }
    }

    /// A write that was one request with the flush has returned.
    pub(crate) fn wrote_and_flushed(&self, extent: u32, epoch: u64, written: Range<u64>) {
        if let Some(mut state) = self.lock() {
            state.flushing.entry((extent, epoch)).or_default().written.insert(small(written));
        }
    }

    /// The flush has returned; records up to this one are durable.
    pub(crate) fn flushed(&self, last_lsn: Lsn) {
        let Some(mut state) = self.lock() else { return };
        assert!(state.last_lsn <= last_lsn, "a flush that covers less than the one before");
        state.last_lsn = last_lsn;
        for ((extent, epoch), noted) in std::mem::take(&mut state.flushing) {
            state.count(extent, epoch, &noted);
        }
    }
}

/// The durable state of an extent as recovery has found it.
fn found(slot: &ExtentInfo, opening: u64, pool: &Superblock) -> ExtentCut {
    match slot.state {
        ExtentState::Free | ExtentState::Busy => ExtentCut::Free { epoch: slot.epoch },
        ExtentState::Lost => ExtentCut::Lost { epoch: slot.epoch },
        ExtentState::Open | ExtentState::Sealed => {
            // Recovery may have copied the last frames of an open extent forward. They are durable
            // here too, and earlier cuts have named them.
            let data_end = slot.footer.map_or(slot.data_end, |(at, _)| slot.data_end.max(at.into()));
            let mut durable = Ranges::of(small(0..data_end));
            durable.extend(&ends(slot.footer, pool));
            ExtentCut::InUse(UseCut {
                epoch: slot.epoch,
                opening,
                kind: slot.kind,
                sealed: slot.state == ExtentState::Sealed,
                durable,
            })
        }
    }
}

/// The places of footer and trailer.
fn ends(footer: Option<(u32, u32)>, pool: &Superblock) -> Ranges {
    let Some((at, len)) = footer else { return Ranges::default() };
    let mut ends = Ranges::of(at..at + len);
    let trailer = pool.trailer_after(u64::from(at + len));
    ends.insert(small(trailer..trailer + BLOCK as u64));
    ends
}

/// A range within an extent, which has at most `u32::MAX` bytes.
fn small(range: Range<u64>) -> Range<u32> {
    let small = |at: u64| u32::try_from(at).unwrap_or_else(|_| panic!("{at} is beyond the end of any extent"));
    small(range.start)..small(range.end)
}
