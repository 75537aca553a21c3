//! The map: which blocks may be read from the fast leg, and which must be copied to it. It does no
//! I/O: it is a state machine under one lock.
//!
//! The address space is divided into regions. For each region the map records the blocks that are
//! the same on both legs (`valid`) and the operations in progress (`busy`). It also records whether
//! the region holds anything worth copying (`wanted`). An *operation* (a write, a copy, a repair, a
//! discard) ends when it has returned on every leg that it was sent to, however late. Until then
//! its blocks are not read from the fast leg. Two operations that overlap in time and place spoil
//! each other: the order in which the legs carried them out is unknown, so their blocks are not
//! valid afterwards. After an opening only the regions whose intent bit is clear are valid: see
//! [`crate::intent`].

use std::collections::VecDeque;
use std::ops::Range;

mod pick;

use steadfast_flow::has_fault;

pub(crate) use self::pick::Pick;
use super::options::SuperdiskSabotage;
use super::spans::{Span, Spans, overlap};
use crate::BLOCK;
use crate::intent::REGIONS_MAX;

/// The largest region in bytes.
const REGION_BYTES_MAX: u64 = 64 << 20;
/// Number of regions remembered as recently used.
const HOT_MAX: usize = 4096;

#[derive(Debug, Clone)]
struct Busy {
    op: u64,
    span: Span,
    spoiled: bool,
}

#[derive(Debug, Clone, Default)]
struct Region {
    valid: Spans,
    /// Whether the region holds anything worth copying.
    wanted: bool,
    busy: Vec<Busy>,
    /// When copying may begin, in milliseconds.
    not_before_ms: u64,
    /// The blocks of the last repair, and the number of failed repairs.
    last_repair: Span,
    strikes: u32,
    quarantined: bool,
    /// Whether the region is in the list of recently used ones.
    hot: bool,
}

/// Numbers of regions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Regions with wanted content that fit the fast leg.
    pub(crate) total: u64,
    /// Of these, wholly valid.
    pub(crate) clean: u64,
    /// Of these, neither clean nor quarantined.
    pub(crate) to_rebuild: u64,
    pub(crate) quarantined: u64,
}

/// The state of each region of a pair, and the operations in progress.
#[derive(Debug, Clone)]
pub(crate) struct RegionMap {
    region_bytes: u64,
    regions: Vec<Region>,
    /// Tracked bytes of the durable leg.
    tracked: u64,
    /// Bytes of the durable leg that fit the fast leg.
    fast_limit: u64,
    counts: Counts,
    next_op: u64,
    hot: VecDeque<u32>,
    cursor: usize,
    /// Regions scanned without a result since the last result, and when the first of them is due.
    scanned: usize,
    due_ms: u64,
    settle_ms: u64,
    /// Whether new space counts as wanted before it is written.
    new_is_wanted: bool,
    /// The defect injected for a test.
    pub(crate) sabotage: SuperdiskSabotage,
}

/// The size of regions: as configured, or larger so that their bits fit the durable leg.
pub(crate) fn region_bytes(wished: u64, capacity: u64) -> u64 {
    let mut bytes = wished.clamp(4 * BLOCK as u64, REGION_BYTES_MAX).next_power_of_two();
    while capacity.div_ceil(bytes) > REGIONS_MAX && bytes < REGION_BYTES_MAX {
        bytes *= 2;
    }
    bytes
}

impl RegionMap {
    /// Creates a map without valid blocks. With `wanted`, everything below is worth copying; else
    /// only later writes are.
    pub(crate) fn new(region_bytes: u64, settle_ms: u64, wanted: bool) -> Self {
        Self {
            region_bytes,
            regions: Vec::new(),
            tracked: 0,
            fast_limit: 0,
            counts: Counts::default(),
            next_op: 0,
            hot: VecDeque::new(),
            cursor: 0,
            scanned: 0,
            due_ms: u64::MAX,
            settle_ms,
            new_is_wanted: wanted,
            sabotage: SuperdiskSabotage::None,
        }
    }

    pub(crate) fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Tracked bytes of the durable leg.
    pub(crate) fn tracked(&self) -> u64 {
        self.tracked
    }

    /// From now on new space holds nothing before it is written.
    pub(crate) fn new_is_blank(&mut self) {
        self.new_is_wanted = false;
    }

    /// Marks a range as not valid.
    pub(crate) fn forget(&mut self, offset: u64, len: u64) {
        for (i, span) in self.parts(offset, len) {
            self.invalidate(i, span);
            self.heat(i);
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    fn region_blocks(&self) -> u32 {
        (self.region_bytes / BLOCK as u64) as u32
    }

    /// Number of blocks of region `i` that exist on both legs.
    fn blocks(&self, i: usize) -> u32 {
        let end = self.tracked.min(self.fast_limit);
        (end.saturating_sub(i as u64 * self.region_bytes).min(self.region_bytes) / BLOCK as u64) as u32
    }

    fn count_of(&self, i: usize) -> Counts {
        let region = &self.regions[i];
        let blocks = self.blocks(i);
        let total = u64::from(region.wanted && blocks > 0);
        let quarantined = u64::from(region.quarantined);
        let clean = u64::from(total == 1 && !region.quarantined && region.valid.covers((0, blocks)));
        Counts { total, clean, quarantined, to_rebuild: u64::from(total == 1 && clean == 0 && !region.quarantined) }
    }

    fn count(&mut self, now: Counts, before: Counts) {
        let add = |sum: &mut u64, now: u64, before: u64| {
            debug_assert!(*sum + now >= before, "fewer regions than were counted");
            *sum = (*sum + now).saturating_sub(before);
        };
        add(&mut self.counts.total, now.total, before.total);
        add(&mut self.counts.clean, now.clean, before.clean);
        add(&mut self.counts.to_rebuild, now.to_rebuild, before.to_rebuild);
        add(&mut self.counts.quarantined, now.quarantined, before.quarantined);
    }

    /// Changes a region and updates the counts.
    fn edit<R>(&mut self, i: usize, change: impl FnOnce(&mut Region) -> R) -> R {
        let before = self.count_of(i);
        let result = change(&mut self.regions[i]);
        self.count(self.count_of(i), before);
        result
    }

    /// Sets the size of the durable leg, and how much of it fits the fast leg. Neither shrinks.
    pub(crate) fn resize(&mut self, durable_len: u64, fast_limit: u64) {
        let durable_len = durable_len.min(REGIONS_MAX * self.region_bytes);
        if durable_len <= self.tracked && fast_limit <= self.fast_limit {
            return;
        }
        let from = (self.tracked.min(self.fast_limit) / self.region_bytes) as usize;
        let before: Vec<_> = (from..self.regions.len()).map(|i| self.count_of(i)).collect();
        let zero = std::iter::repeat(Counts::default());
        debug_assert!(self.regions.len() as u64 == self.tracked.div_ceil(self.region_bytes), "a region for each part");
        self.tracked = self.tracked.max(durable_len);
        self.fast_limit = self.fast_limit.max(fast_limit);
        let wanted = self.new_is_wanted;
        let count = self.tracked.div_ceil(self.region_bytes) as usize;
        self.regions.resize_with(count, || Region { wanted, ..Region::default() });
        for (i, before) in (from..count).zip(before.into_iter().chain(zero)) {
            self.count(self.count_of(i), before);
        }
        self.cursor = count;
    }

    /// The regions that a range touches, each with its blocks in the range.
    fn parts(&self, offset: u64, len: u64) -> impl Iterator<Item = (usize, Span)> + use<> {
        let (size, count) = (self.region_bytes, self.regions.len());
        let end = offset.saturating_add(len);
        let last = end.div_ceil(size).min(count as u64);
        let parts = (offset / size..last).map(move |i| {
            let start = i * size;
            let lo = (offset.max(start) - start) / BLOCK as u64;
            let hi = (end.min(start + size) - start) / BLOCK as u64;
            (i as usize, (lo as u32, hi as u32))
        });
        parts.filter(|(_, span)| span.0 < span.1)
    }

    fn heat(&mut self, i: usize) {
        if self.regions[i].hot {
            return;
        }
        self.regions[i].hot = true;
        self.hot.push_back(i as u32);
        if self.hot.len() > HOT_MAX
            && let Some(old) = self.hot.pop_front()
        {
            self.regions[old as usize].hot = false;
        }
    }

    fn invalidate(&mut self, i: usize, span: Span) {
        self.edit(i, |region| region.valid.remove(span));
    }

    fn within_fast(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.fast_limit.min(self.tracked))
    }

    fn is_busy(&self, i: usize, span: Span) -> bool {
        !has_fault(self.sabotage, SuperdiskSabotage::NoSpoil)
            && self.regions[i].busy.iter().any(|busy| overlap(busy.span, span))
    }

    fn enter(&mut self, i: usize, op: u64, span: Span) {
        debug_assert!(span.1 <= self.region_blocks(), "{span:?} beyond the end of a region");
        debug_assert!(self.regions[i].busy.iter().all(|busy| busy.op != op), "operation {op} begins twice");
        if has_fault(self.sabotage, SuperdiskSabotage::NoSpoil) {
            self.regions[i].busy.push(Busy { op, span, spoiled: false });
            return;
        }
        let mut spoiled = false;
        for busy in self.regions[i].busy.iter_mut().filter(|busy| overlap(busy.span, span)) {
            busy.spoiled = true;
            spoiled = true;
        }
        self.regions[i].busy.push(Busy { op, span, spoiled });
    }

    fn new_op(&mut self) -> u64 {
        self.next_op += 1;
        self.next_op
    }

    /// Begins a write. The second value is whether it also goes to the fast leg: `fast`, unless the
    /// map forbids it.
    pub(crate) fn begin_write(&mut self, offset: u64, len: u64, fast: bool, now_ms: u64) -> (u64, bool) {
        let op = self.new_op();
        let fast = fast
            && self.within_fast(offset, len)
            && self.parts(offset, len).all(|(i, span)| !self.regions[i].quarantined && !self.is_busy(i, span));
        for (i, span) in self.parts(offset, len) {
            self.enter(i, op, span);
            let quiet_until = now_ms + self.settle_ms;
            self.edit(i, |region| {
                region.wanted = true;
                region.not_before_ms = region.not_before_ms.max(quiet_until);
            });
            if !fast {
                self.invalidate(i, span);
            }
            self.heat(i);
        }
        (op, fast)
    }

    /// Begins to discard a range: its content no longer matters.
    pub(crate) fn begin_discard(&mut self, offset: u64, len: u64) -> u64 {
        let op = self.new_op();
        for (i, span) in self.parts(offset, len) {
            self.enter(i, op, span);
            self.invalidate(i, span);
            let whole = span == (0, self.region_blocks());
            self.edit(i, |region| region.wanted &= !whole);
        }
        op
    }

    /// Begins to repair a range of the fast leg. `None` when another operation overlaps, or the
    /// fast leg is not used there.
    pub(crate) fn begin_heal(&mut self, offset: u64, len: u64) -> Option<u64> {
        let used = self.within_fast(offset, len) && self.parts(offset, len).all(|(i, _)| !self.regions[i].quarantined);
        if used { self.begin_repair(offset, len) } else { None }
    }

    /// Begins to repair a range of both legs. `None` when another operation overlaps.
    pub(crate) fn begin_repair(&mut self, offset: u64, len: u64) -> Option<u64> {
        if self.parts(offset, len).any(|(i, span)| self.is_busy(i, span)) {
            return None;
        }
        let op = self.new_op();
        for (i, span) in self.parts(offset, len) {
            self.enter(i, op, span);
        }
        Some(op)
    }

    /// Whether an overlapping operation has begun since operation `op` began.
    pub(crate) fn is_spoiled(&self, op: u64, offset: u64, len: u64) -> bool {
        let spoiled = |i: usize| self.regions[i].busy.iter().any(|busy| busy.op == op && busy.spoiled);
        self.parts(offset, len).any(|(i, _)| spoiled(i))
    }

    /// Ends an operation that has returned everywhere. With `good`, both legs now hold the same
    /// there.
    pub(crate) fn finish(&mut self, op: u64, offset: u64, len: u64, good: bool) {
        for (i, span) in self.parts(offset, len) {
            let Some(at) = self.regions[i].busy.iter().position(|busy| busy.op == op) else { continue };
            let busy = self.regions[i].busy.swap_remove(at);
            if good && !busy.spoiled && !self.regions[i].quarantined {
                self.edit(i, |region| region.valid.insert(span));
            } else {
                self.invalidate(i, span);
            }
        }
    }

    /// Whether the fast leg holds the same as the durable leg in a range.
    pub(crate) fn readable(&self, offset: u64, len: u64) -> bool {
        debug_assert!((offset | len).is_multiple_of(BLOCK as u64), "a read of {len} bytes at {offset}");
        self.within_fast(offset, len)
            && self.parts(offset, len).all(|(i, span)| {
                let region = &self.regions[i];
                let busy = !has_fault(self.sabotage, SuperdiskSabotage::FastReadUnderWrite)
                    && region.busy.iter().any(|busy| overlap(busy.span, span));
                !region.quarantined && region.valid.covers(span) && !busy
            })
    }

    /// Whether an operation overlaps a range.
    pub(crate) fn is_in_use(&self, offset: u64, len: u64) -> bool {
        self.parts(offset, len).any(|(i, span)| self.is_busy(i, span))
    }

    /// Marks a range that was read but is not valid on the fast leg, so that it is copied soon.
    pub(crate) fn miss(&mut self, offset: u64, len: u64) {
        for (i, _) in self.parts(offset, len) {
            self.edit(i, |region| region.wanted = true);
            self.heat(i);
        }
    }

    /// Records that the fast leg failed to read a range, or returned wrong bytes. Returns whether
    /// that quarantined a region.
    pub(crate) fn failed(&mut self, offset: u64, len: u64, failures_max: u32) -> bool {
        // A range that lies wholly in the last repair was good after that repair. A larger range
        // may be bad at another place.
        let again = |region: &Region, span: Span| region.last_repair.0 <= span.0 && span.1 <= region.last_repair.1;
        let parts: Vec<_> = self.parts(offset, len).filter(|(i, span)| again(&self.regions[*i], *span)).collect();
        self.strike(parts, failures_max)
    }

    /// Records that a repair of a range failed. Returns whether that quarantined a region.
    pub(crate) fn heal_failed(&mut self, offset: u64, len: u64, failures_max: u32, now_ms: u64) -> bool {
        let parts: Vec<_> = self.parts(offset, len).collect();
        for (i, span) in &parts {
            self.invalidate(*i, *span);
            let region = &mut self.regions[*i];
            region.last_repair = *span;
            region.not_before_ms = now_ms + (1000 << region.strikes.min(6));
        }
        self.strike(parts, failures_max)
    }

    fn strike(&mut self, parts: Vec<(usize, Span)>, failures_max: u32) -> bool {
        let mut any = false;
        for (i, _) in parts {
            self.regions[i].strikes += 1;
            if self.regions[i].strikes >= failures_max && !self.regions[i].quarantined {
                self.invalidate(i, (0, self.region_blocks()));
                self.edit(i, |region| region.quarantined = true);
                any = true;
            }
        }
        any
    }

    /// Records a successful repair.
    pub(crate) fn healed(&mut self, offset: u64, len: u64) {
        for (i, span) in self.parts(offset, len) {
            self.regions[i].last_repair = span;
        }
    }

    /// Defers the copying of a range.
    pub(crate) fn put_off(&mut self, offset: u64, len: u64, until_ms: u64) {
        for (i, _) in self.parts(offset, len) {
            self.regions[i].not_before_ms = until_ms;
        }
    }

    /// Marks the clean regions as valid, and nothing else. Operations in progress leave their
    /// blocks not valid.
    pub(crate) fn trust_only(&mut self, is_clean: impl Fn(usize) -> bool) {
        if !has_fault(self.sabotage, SuperdiskSabotage::FailureDoesNotSpoil) {
            self.spoil_all();
        }
        for i in 0..self.regions.len() {
            let (all, blocks) = (self.region_blocks(), self.blocks(i));
            let mut valid = Spans::default();
            if is_clean(i) && blocks == all {
                valid.insert((0, all));
            }
            self.edit(i, |region| region.valid = valid);
        }
    }

    /// Spoils all operations in progress: they leave their blocks not valid.
    pub(crate) fn spoil_all(&mut self) {
        self.regions.iter_mut().flat_map(|region| &mut region.busy).for_each(|busy| busy.spoiled = true);
    }

    /// Whether both legs are the same in a whole region, no operation is in progress there, and its
    /// last write has settled.
    pub(crate) fn is_settled(&self, i: usize, now_ms: u64) -> bool {
        let Some(region) = self.regions.get(i) else { return false };
        let all = self.region_blocks();
        let whole = self.blocks(i) == all && region.valid.covers((0, all));
        whole && region.busy.is_empty() && !region.quarantined && region.not_before_ms <= now_ms
    }

    /// Whether no operation is in progress in a region. For sabotage.
    pub(crate) fn is_quiet(&self, i: usize) -> bool {
        self.regions.get(i).is_some_and(|region| region.busy.is_empty())
    }

    /// When the last write of a region settles, in milliseconds.
    pub(crate) fn settled_at_ms(&self, i: usize) -> u64 {
        self.regions.get(i).map_or(0, |region| region.not_before_ms)
    }

    /// The tracked regions that a range touches.
    pub(crate) fn regions_of(&self, offset: u64, len: u64) -> Range<usize> {
        let count = self.regions.len() as u64;
        let end = offset.saturating_add(len).div_ceil(self.region_bytes).min(count);
        if len == 0 { 0..0 } else { ((offset / self.region_bytes).min(end) as usize)..end as usize }
    }

    /// The number of tracked regions.
    pub(crate) fn len(&self) -> u64 {
        self.regions.len() as u64
    }

    /// Marks everything as valid. For sabotage.
    pub(crate) fn trust(&mut self) {
        let all = (0, self.region_blocks());
        for i in 0..self.regions.len() {
            self.edit(i, |region| region.valid.insert(all));
        }
    }
}

#[cfg(test)]
mod tests;
