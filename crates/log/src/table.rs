//! The state of each extent, with sums over all of them.
//!
//! There may be hundreds of thousands of extents, and every write checks for free space. So sums
//! and sets are maintained, and no write path reads all slots. They are consistent by construction:
//! only [`Table::change`] changes a slot, and it removes the slot from all sums before and adds it
//! afterwards.

use std::collections::{BTreeMap, BTreeSet};

use crate::Lsn;
use crate::format::{ExtentKind, Lineage};
use crate::status::ExtentCounts;

/// State of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExtentState {
    Free,
    /// Being taken into or out of use; its header is being written.
    Busy,
    Open,
    Sealed,
    /// The extent was in use and its data is gone. It is never taken again.
    Lost,
}

/// Everything known about an extent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExtentInfo {
    pub(crate) extent: u32,
    pub(crate) state: ExtentState,
    pub(crate) kind: ExtentKind,
    pub(crate) epoch: u64,
    /// May be below zero briefly, when a record is retired before it is credited.
    pub(crate) live_bytes: i64,
    pub(crate) min_version: Lsn,
    pub(crate) last_lsn: Lsn,
    /// Bytes written, from the start of the extent.
    pub(crate) data_end: u64,
    /// Offset and length of a valid footer.
    pub(crate) footer: Option<(u32, u32)>,
    pub(crate) pins: u32,
    /// Set for a commit extent that is not in use yet. The committer rolls to it when the open one
    /// is full.
    pub(crate) prepared: bool,
    /// Offset and length of a failed write. The place must be proved good before it is used again.
    pub(crate) suspect: Option<(u64, u64)>,
}

impl ExtentInfo {
    pub(crate) fn new(extent: u32) -> Self {
        Self {
            extent,
            state: ExtentState::Free,
            kind: ExtentKind::Free,
            epoch: 0,
            live_bytes: 0,
            min_version: Lsn::MAX,
            last_lsn: 0,
            data_end: 0,
            footer: None,
            pins: 0,
            prepared: false,
            suspect: None,
        }
    }

    /// Its header is written: it is in use.
    pub(crate) fn opened(&mut self, epoch: u64) {
        assert_eq!((self.state, self.epoch), (ExtentState::Busy, epoch), "extent {} changed meanwhile", self.extent);
        self.state = ExtentState::Open;
    }

    /// Its header is written: it is free.
    pub(crate) fn freed(&mut self, epoch: u64) {
        assert_eq!((self.state, self.epoch), (ExtentState::Busy, epoch), "extent {} changed meanwhile", self.extent);
        *self = Self { epoch, ..Self::new(self.extent) };
    }

    fn live(&self) -> u64 {
        self.live_bytes.max(0) as u64
    }

    fn dead(&self) -> u64 {
        self.data_end.saturating_sub(self.live())
    }

    /// The dead bytes that compaction cannot free because of readers.
    fn pinned(&self) -> u64 {
        if self.pins > 0 && self.state == ExtentState::Sealed { self.dead() } else { 0 }
    }

    /// Whether the extent is a commit extent, or lost with an unknown purpose.
    pub(crate) fn may_hold_records(&self) -> bool {
        self.kind == ExtentKind::Commit || (self.kind == ExtentKind::Free && self.state == ExtentState::Lost)
    }

    pub(crate) fn in_use(&self) -> bool {
        matches!(self.state, ExtentState::Open | ExtentState::Sealed)
    }
}

/// Extents without any written data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Spare {
    /// Extents ready to be taken into use.
    pub(crate) free: u64,
    /// Extents taken into use for records; none or one.
    pub(crate) prepared: u64,
}

impl Spare {
    /// Sum of both kinds.
    pub(crate) fn all(self) -> u64 {
        self.free + self.prepared
    }
}

/// Sums and sets over all slots.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    /// Free and used before, by number: already written, so they need no zeros.
    recycled: BTreeSet<u32>,
    /// Free and never used.
    fresh: BTreeSet<u32>,
    prepared: u64,
    /// Unneeded bytes in sealed extents.
    dead_bytes: u64,
    /// Open commit extents: one or two.
    open_commits: BTreeSet<u32>,
    /// All counts but `free` and `growable`.
    counts: ExtentCounts,
}

fn swap<T: Ord>(set: &mut BTreeSet<T>, before: Option<T>, after: Option<T>) {
    if before != after {
        if let Some(gone) = before {
            set.remove(&gone);
        }
        set.extend(after);
    }
}

fn count(sum: &mut u64, before: u64, after: u64) {
    // Only what was added is subtracted, so the sum is never below zero.
    debug_assert!(*sum >= before, "a sum of the table is below what was added to it");
    *sum = sum.wrapping_sub(before).wrapping_add(after);
}

impl Tally {
    /// Updates the sums for a slot that changes from `before` (`None` for a new one) to `after`.
    fn change(&mut self, before: Option<&ExtentInfo>, after: &ExtentInfo) {
        use ExtentState::{Free, Lost, Open, Sealed};
        let number = |is: fn(&ExtentInfo) -> bool| {
            let of = move |slot: &ExtentInfo| is(slot).then_some(slot.extent);
            (before.and_then(of), of(after))
        };
        let sum = |of: fn(&ExtentInfo) -> u64| (before.map_or(0, of), of(after));

        let (gone, come) = number(|slot| slot.state == Free && slot.epoch > 0);
        swap(&mut self.recycled, gone, come);
        let (gone, come) = number(|slot| slot.state == Free && slot.epoch == 0);
        swap(&mut self.fresh, gone, come);
        let (gone, come) = number(|slot| slot.state == Open && slot.kind == ExtentKind::Commit);
        swap(&mut self.open_commits, gone, come);

        let add = |to: &mut u64, of: fn(&ExtentInfo) -> u64| {
            let (gone, come) = sum(of);
            count(to, gone, come);
        };
        add(&mut self.prepared, |slot| slot.prepared.into());
        add(&mut self.dead_bytes, |slot| if slot.state == Sealed { slot.dead() } else { 0 });
        let counts = &mut self.counts;
        add(&mut counts.pinned_bytes, ExtentInfo::pinned);
        add(&mut counts.live_commit_bytes, |slot| if slot.kind == ExtentKind::Commit { slot.live() } else { 0 });
        add(&mut counts.live_body_bytes, |slot| if slot.kind == ExtentKind::Body { slot.live() } else { 0 });
        add(&mut counts.sealed_commit, |slot| (slot.state == Sealed && slot.kind == ExtentKind::Commit).into());
        add(&mut counts.sealed_body, |slot| (slot.state == Sealed && slot.kind != ExtentKind::Commit).into());
        add(&mut counts.open_commit, |slot| {
            (!matches!(slot.state, Free | Sealed | Lost) && slot.kind == ExtentKind::Commit).into()
        });
        add(&mut counts.open_body, |slot| {
            (!matches!(slot.state, Free | Sealed | Lost) && slot.kind == ExtentKind::Body).into()
        });
        add(&mut counts.lost, |slot| (slot.state == Lost).into());
        add(&mut counts.lost_bytes, |slot| if slot.state == Lost { slot.live() } else { 0 });
    }
}

/// The table of extents.
#[derive(Default)]
pub(crate) struct Table {
    slots: Vec<ExtentInfo>,
    tally: Tally,
    pub(crate) next_epoch: u64,
    pub(crate) recycled_lsn: Lsn,
    /// The lineage that new headers record.
    pub(crate) lineage: Lineage,
    /// Number of pins, by extent and epoch, that give way when free extents run low.
    pub(crate) yielding_pins: BTreeMap<(u32, u64), u32>,
    /// How many ask that no extent is recycled.
    pub(crate) recycling_stopped: u32,
}

impl Table {
    pub(crate) fn new(next_epoch: u64, recycled_lsn: Lsn) -> Self {
        Self { next_epoch, recycled_lsn, ..Self::default() }
    }

    /// Adds the next slot.
    pub(crate) fn push(&mut self, slot: ExtentInfo) {
        assert_eq!(slot.extent as usize, self.slots.len(), "slots are in the order of their extents");
        self.tally.change(None, &slot);
        self.slots.push(slot);
    }

    /// How many slots there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn get(&self, extent: u32) -> Option<&ExtentInfo> {
        self.slots.get(extent as usize)
    }

    /// All slots in order. Not for write paths.
    pub(crate) fn slots(&self) -> &[ExtentInfo] {
        &self.slots
    }

    /// The only way to change a slot.
    pub(crate) fn change<T>(&mut self, extent: u32, change: impl FnOnce(&mut ExtentInfo) -> T) -> Option<T> {
        let slot = self.slots.get_mut(extent as usize)?;
        let before = *slot;
        let out = change(slot);
        assert_eq!(slot.extent, extent, "a slot keeps its number");
        self.tally.change(Some(&before), slot);
        Some(out)
    }

    /// A free slot for use, preferably one that was used before.
    pub(crate) fn next_free(&self) -> Option<u32> {
        self.tally.recycled.first().or(self.tally.fresh.first()).copied()
    }

    pub(crate) fn spare(&self) -> Spare {
        let free = self.tally.recycled.len() + self.tally.fresh.len();
        Spare { free: free as u64, prepared: self.tally.prepared }
    }

    pub(crate) fn dead_bytes(&self) -> u64 {
        self.tally.dead_bytes
    }

    /// Counts by state and kind, without `growable`.
    pub(crate) fn counts(&self) -> ExtentCounts {
        ExtentCounts { free: self.spare().free, ..self.tally.counts }
    }

    /// The open commit extents.
    pub(crate) fn open_commits(&self) -> impl Iterator<Item = &ExtentInfo> {
        self.tally.open_commits.iter().filter_map(|extent| self.get(*extent))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slot() -> impl Strategy<Value = ExtentInfo> {
        use ExtentState::{Busy, Free, Open, Sealed};
        let state = prop_oneof![Just(Free), Just(Busy), Just(Open), Just(Sealed)];
        let kind = prop_oneof![Just(ExtentKind::Free), Just(ExtentKind::Commit), Just(ExtentKind::Body)];
        let bytes = (-5i64..100, 0u64..100);
        (state, kind, 0u64..4, 0u64..9, bytes, any::<[bool; 2]>()).prop_map(
            |(state, kind, epoch, min_version, (live_bytes, data_end), [prepared, pinned])| ExtentInfo {
                state,
                kind,
                epoch,
                min_version,
                live_bytes,
                data_end,
                prepared,
                pins: u32::from(pinned) * 2,
                ..ExtentInfo::new(0)
            },
        )
    }

    /// The sums, recomputed from all slots.
    fn looked_at(table: &Table) -> (Spare, u64, ExtentCounts, Vec<u32>) {
        let count = |is: fn(&&ExtentInfo) -> bool| table.slots.iter().filter(is).count() as u64;
        let spare =
            Spare { free: count(|slot| slot.state == ExtentState::Free), prepared: count(|slot| slot.prepared) };
        let sealed = table.slots.iter().filter(|slot| slot.state == ExtentState::Sealed);
        let dead = sealed.map(|slot| slot.data_end.saturating_sub(slot.live_bytes.max(0) as u64)).sum();
        let mut counts = ExtentCounts::default();
        for slot in &table.slots {
            let live = slot.live_bytes.max(0) as u64;
            if slot.pins > 0 && slot.state == ExtentState::Sealed {
                counts.pinned_bytes += slot.data_end.saturating_sub(live);
            }
            match slot.kind {
                ExtentKind::Commit => counts.live_commit_bytes += live,
                ExtentKind::Body => counts.live_body_bytes += live,
                ExtentKind::Free => {}
            }
            match (slot.state, slot.kind) {
                (ExtentState::Free, _) => counts.free += 1,
                (ExtentState::Sealed, ExtentKind::Commit) => counts.sealed_commit += 1,
                (ExtentState::Sealed, _) => counts.sealed_body += 1,
                (_, ExtentKind::Commit) => counts.open_commit += 1,
                (_, ExtentKind::Body) => counts.open_body += 1,
                _ => {}
            }
        }
        let open = |slot: &&ExtentInfo| slot.state == ExtentState::Open && slot.kind == ExtentKind::Commit;
        let open = table.slots.iter().filter(open).map(|slot| slot.extent).collect();
        (spare, dead, counts, open)
    }

    proptest! {
        #[test]
        fn what_is_kept_is_what_a_look_at_all_slots_finds(
            first in proptest::collection::vec(slot(), 0..12),
            changes in proptest::collection::vec((0u32..14, slot()), 0..60),
        ) {
            let mut table = Table::new(1, 0);
            for (extent, slot) in (0..).zip(first) {
                table.push(ExtentInfo { extent, ..slot });
            }
            for (extent, slot) in changes {
                let there = table.change(extent, |old| *old = ExtentInfo { extent, ..slot }).is_some();
                prop_assert_eq!(there, (extent as usize) < table.len());
                let (spare, dead, counts, open) = looked_at(&table);
                prop_assert_eq!(table.spare(), spare);
                prop_assert_eq!(table.dead_bytes(), dead);
                prop_assert_eq!(table.counts(), counts);
                prop_assert_eq!(table.open_commits().map(|slot| slot.extent).collect::<Vec<_>>(), open);
                let mut free = table.slots.iter().filter(|slot| slot.state == ExtentState::Free);
                let used = free.clone().find(|slot| slot.epoch > 0);
                prop_assert_eq!(table.next_free(), used.or(free.next()).map(|slot| slot.extent));
            }
        }
    }
}
