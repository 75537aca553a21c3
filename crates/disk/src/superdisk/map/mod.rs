//! What may be read from the fast leg, and what has to be copied to it. No I/O: a state machine under one lock.
//!
//! The address space is cut into regions. Of each the map knows which blocks are the same on both legs (`valid`), what is under
//! way there (`busy`), and which blocks hold anything worth copying (`wanted`). An *operation* (a write, a copy,
//! a repair, a discard) is under way until it has returned on every leg that it was given to, however late; blocks that it touches are not read
//! from the fast leg meanwhile. Two operations that overlap in time and place spoil each other: nobody knows in which order the
//! legs carried them out, so their blocks are not valid afterwards.
//!
//! What the fast leg's own map calls valid (`kept`) is believed after a restart. So the fast leg gets nothing new there: a durable leg put
//! back to an earlier time would otherwise be given what is newer than itself. Such a write goes to the durable leg only, and has the
//! region, and those behind it, where a log writes next, taken out of the saved map.

use std::collections::VecDeque;

mod pick;

pub(crate) use self::pick::Pick;
use super::spans::{Span, Spans, overlap};
use crate::BLOCK;

/// Regions at most: their saved map fits 1 MiB.
pub(crate) const REGIONS_MAX: u64 = 1 << 18;
/// The largest region: its blocks fit the saved map's 15 bits.
const REGION_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a region in a saved map.
const ENTRY: usize = 4;
/// Marks an entry whose range is all that is wanted of the region.
const ONLY: u16 = 1 << 15;
/// How many regions are remembered as recently used.
const HOT_MAX: usize = 4096;
/// How far ahead of a write into what the saved map calls valid that map is taken back.
const WITHDRAW_BYTES: u64 = 64 << 20;

#[derive(Debug, Clone)]
struct Busy {
    op: u64,
    span: Span,
    spoiled: bool,
}

#[derive(Debug, Clone, Default)]
struct Region {
    valid: Spans,
    wanted: Span,
    busy: Vec<Busy>,
    /// The number of the last write, for what a flush has covered.
    seq: u64,
    /// When copying may begin, in milliseconds.
    not_before_ms: u64,
    /// Where a repair was made last, and how often repairs were in vain.
    mended: Span,
    strikes: u32,
    quarantined: bool,
    /// Is in the list of recently used ones.
    hot: bool,
    /// What the fast leg's own map may call valid, and what one does that is being saved.
    kept: Span,
    saving: Span,
    /// To be left out of the next map that is saved.
    withdrawn: bool,
}

/// What a saving of the map is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Saving {
    /// All that is valid.
    All,
    /// What is valid of that which was saved before.
    Less,
    /// All that is valid, and nothing will be written any more: nothing has to be kept out for a write to come.
    Last,
}

impl Region {
    /// A range is worth copying from now on.
    fn want(&mut self, span: Span) {
        let wanted = self.wanted;
        self.wanted = if wanted.0 < wanted.1 { (wanted.0.min(span.0), wanted.1.max(span.1)) } else { span };
    }
}

/// Numbers of regions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Hold something that is wanted, and fit the fast leg.
    pub(crate) total: u64,
    /// Of these, wholly valid.
    pub(crate) clean: u64,
    /// Neither clean nor quarantined.
    pub(crate) to_rebuild: u64,
    pub(crate) quarantined: u64,
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(crate) struct RegionMap {
    region_bytes: u64,
    regions: Vec<Region>,
    /// Bytes of the durable leg that are tracked.
    tracked: u64,
    /// Bytes of it that fit the fast leg.
    fast_limit: u64,
    counts: Counts,
    next_op: u64,
    hot: VecDeque<u32>,
    cursor: usize,
    /// Regions looked at in vain since something was found, and when the first of them is due.
    scanned: usize,
    due_ms: u64,
    settle_ms: u64,
    /// Whether new space holds anything worth copying before it is written.
    new_is_wanted: bool,
    /// Rises with every change that a saved map would show.
    pub(crate) changes: u64,
    /// Something that a saved map may show as valid is not any more, or is to be written.
    pub(crate) urgent: bool,
}

/// The ranges that a saved map calls valid, in bytes, in order.
pub(crate) fn saved_spans(entries: &[u8], region_bytes: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
    entries.chunks_exact(ENTRY).enumerate().filter_map(move |(i, entry)| {
        let (lo, hi) = (u16::from_le_bytes([entry[0], entry[1]]) & !ONLY, u16::from_le_bytes([entry[2], entry[3]]));
        let at = |block: u16| i as u64 * region_bytes + (u64::from(block) * BLOCK as u64).min(region_bytes);
        (lo < hi).then(|| (at(lo), at(hi)))
    })
}

/// The size of regions: as wished, or larger so that the map fits.
pub(crate) fn region_bytes(wished: u64, capacity: u64) -> u64 {
    let mut bytes = wished.clamp(4 * BLOCK as u64, REGION_BYTES_MAX).next_power_of_two();
    while capacity.div_ceil(bytes) > REGIONS_MAX && bytes < REGION_BYTES_MAX {
        bytes *= 2;
    }
    bytes
}

impl RegionMap {
    /// A map in which nothing is valid. `wanted`: everything below is worth copying; else only what is written from now on.
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
            changes: 0,
            urgent: false,
        }
    }

    pub(crate) fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Bytes of the durable leg that are followed.
    pub(crate) fn tracked(&self) -> u64 {
        self.tracked
    }

    /// From now on new space holds nothing before it is written.
    pub(crate) fn new_is_blank(&mut self) {
        self.new_is_wanted = false;
    }

    /// Takes a range as not valid.
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

    /// Blocks of region `i` that exist on both legs.
    fn blocks(&self, i: usize) -> u32 {
        let end = self.tracked.min(self.fast_limit);
        (end.saturating_sub(i as u64 * self.region_bytes).min(self.region_bytes) / BLOCK as u64) as u32
    }

    fn count_of(&self, i: usize) -> Counts {
        let region = &self.regions[i];
        let wanted = (region.wanted.0, region.wanted.1.min(self.blocks(i)));
        let total = u64::from(wanted.0 < wanted.1);
        let quarantined = u64::from(region.quarantined);
        let clean = u64::from(total == 1 && !region.quarantined && region.valid.covers(wanted));
        Counts { total, clean, quarantined, to_rebuild: u64::from(total == 1 && clean == 0 && !region.quarantined) }
    }

    fn count(&mut self, now: Counts, before: Counts) {
        let add = |sum: &mut u64, now: u64, before: u64| *sum = (*sum + now).saturating_sub(before);
        add(&mut self.counts.total, now.total, before.total);
        add(&mut self.counts.clean, now.clean, before.clean);
        add(&mut self.counts.to_rebuild, now.to_rebuild, before.to_rebuild);
        add(&mut self.counts.quarantined, now.quarantined, before.quarantined);
    }

    /// Changes a region and keeps the counts.
    fn edit<R>(&mut self, i: usize, change: impl FnOnce(&mut Region) -> R) -> R {
        let before = self.count_of(i);
        let result = change(&mut self.regions[i]);
        self.count(self.count_of(i), before);
        result
    }

    /// Sets how much of the durable leg there is, and how much of it fits the fast leg. Neither shrinks.
    pub(crate) fn resize(&mut self, durable_len: u64, fast_limit: u64) {
        let durable_len = durable_len.min(REGIONS_MAX * self.region_bytes);
        if durable_len <= self.tracked && fast_limit <= self.fast_limit {
            return;
        }
        let from = (self.tracked.min(self.fast_limit) / self.region_bytes) as usize;
        let before: Vec<_> = (from..self.regions.len()).map(|i| self.count_of(i)).collect();
        let zero = std::iter::repeat(Counts::default());
        self.tracked = self.tracked.max(durable_len);
        self.fast_limit = self.fast_limit.max(fast_limit);
        let wanted = if self.new_is_wanted { (0, self.region_blocks()) } else { (0, 0) };
        let count = self.tracked.div_ceil(self.region_bytes) as usize;
        self.regions.resize_with(count, || Region { wanted, ..Region::default() });
        for (i, before) in (from..count).zip(before.into_iter().chain(zero)) {
            self.count(self.count_of(i), before);
        }
        self.cursor = count;
        self.changes += 1;
    }

    /// The regions that a range touches, and which of their blocks.
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
        if self.edit(i, |region| region.valid.remove(span)) {
            self.changes += 1;
            self.urgent |= self.is_kept(i, span);
        }
    }

    fn within_fast(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.fast_limit.min(self.tracked))
    }

    fn is_busy(&self, i: usize, span: Span) -> bool {
        self.regions[i].busy.iter().any(|busy| overlap(busy.span, span))
    }

    /// Whether the fast leg's own map may call any of it valid.
    fn is_kept(&self, i: usize, span: Span) -> bool {
        overlap(self.regions[i].kept, span) || overlap(self.regions[i].saving, span)
    }

    /// Has region `i`, and those behind it, left out of the saved map.
    fn withdraw(&mut self, i: usize) {
        let regions = usize::try_from(WITHDRAW_BYTES / self.region_bytes).unwrap_or(usize::MAX).max(1);
        for region in self.regions[i..].iter_mut().take(regions) {
            region.withdrawn |= region.kept.0 < region.kept.1 || region.saving.0 < region.saving.1;
        }
        self.changes += 1;
        self.urgent = true;
    }

    fn enter(&mut self, i: usize, op: u64, span: Span) {
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

    /// Begins a write. The second value says whether it goes to the fast leg too: `fast`, if nothing forbids it.
    pub(crate) fn begin_write(&mut self, offset: u64, len: u64, fast: bool, now_ms: u64) -> (u64, bool) {
        let op = self.new_op();
        let fast = fast
            && self.within_fast(offset, len)
            && self.parts(offset, len).all(|(i, span)| !self.regions[i].quarantined && !self.is_busy(i, span));
        let kept = self.parts(offset, len).find(|(i, span)| fast && self.is_kept(*i, *span));
        if let Some((i, _)) = kept {
            self.withdraw(i);
        }
        let fast = fast && kept.is_none();
        for (i, span) in self.parts(offset, len) {
            self.enter(i, op, span);
            let quiet_until = now_ms + self.settle_ms;
            self.edit(i, |region| {
                region.want(span);
                region.not_before_ms = region.not_before_ms.max(quiet_until);
            });
            if !fast {
                self.invalidate(i, span);
            }
            self.heat(i);
        }
        (op, fast)
    }

    /// Begins to give up a range: what it holds is of no interest any more.
    pub(crate) fn begin_discard(&mut self, offset: u64, len: u64) -> u64 {
        let op = self.new_op();
        for (i, span) in self.parts(offset, len) {
            self.enter(i, op, span);
            self.invalidate(i, span);
            self.edit(i, |region| {
                if span.0 <= region.wanted.0 && region.wanted.1 <= span.1 {
                    region.wanted = (0, 0);
                }
            });
        }
        op
    }

    /// Begins to repair a range of the fast leg. `None` when something else is under way there, it is in more than the map knows, or the
    /// leg's own map calls valid what is not any more; the range is then invalid, and will be copied.
    pub(crate) fn begin_heal(&mut self, offset: u64, len: u64) -> Option<u64> {
        let free = self.within_fast(offset, len)
            && self.parts(offset, len).all(|(i, span)| {
                let region = &self.regions[i];
                let same = region.valid.covers(span) || !self.is_kept(i, span);
                same && !region.quarantined && !self.is_busy(i, span)
            });
        if !free {
            self.forget(offset, len);
            return None;
        }
        let op = self.new_op();
        for (i, span) in self.parts(offset, len) {
            self.enter(i, op, span);
        }
        Some(op)
    }

    /// Whether something else has begun in the range of an operation since that did.
    pub(crate) fn is_spoiled(&self, op: u64, offset: u64, len: u64) -> bool {
        let spoiled = |i: usize| self.regions[i].busy.iter().any(|busy| busy.op == op && busy.spoiled);
        self.parts(offset, len).any(|(i, _)| spoiled(i))
    }

    /// Ends an operation, when it has returned everywhere. `good`: both legs hold the same there now. `seq`: its number among the writes
    /// that wait for a flush; 0 when it does not.
    pub(crate) fn finish(&mut self, op: u64, offset: u64, len: u64, good: bool, seq: u64) {
        for (i, span) in self.parts(offset, len) {
            let Some(at) = self.regions[i].busy.iter().position(|busy| busy.op == op) else { continue };
            let busy = self.regions[i].busy.swap_remove(at);
            self.regions[i].seq = self.regions[i].seq.max(seq);
            if good && !busy.spoiled && !self.regions[i].quarantined {
                self.edit(i, |region| region.valid.insert(span));
                self.changes += 1;
            } else {
                self.invalidate(i, span);
            }
        }
    }

    /// Whether the fast leg holds what the durable leg does.
    pub(crate) fn readable(&self, offset: u64, len: u64) -> bool {
        self.within_fast(offset, len)
            && self.parts(offset, len).all(|(i, span)| {
                let region = &self.regions[i];
                !region.quarantined && region.valid.covers(span) && !self.is_busy(i, span)
            })
    }

    /// Says that a range was read that could not be read from the fast leg: it is copied soon.
    pub(crate) fn miss(&mut self, offset: u64, len: u64) {
        for (i, span) in self.parts(offset, len) {
            self.edit(i, |region| region.want(span));
            self.heat(i);
        }
    }

    /// Says that the fast leg failed to give a range, or gave wrong bytes. Whether a region went into quarantine for that.
    pub(crate) fn failed(&mut self, offset: u64, len: u64, failures_max: u32) -> bool {
        // What lay wholly in the last repair was good after it. A larger range may be bad at another place.
        let again = |region: &Region, span: Span| region.mended.0 <= span.0 && span.1 <= region.mended.1;
        let parts: Vec<_> = self.parts(offset, len).filter(|(i, span)| again(&self.regions[*i], *span)).collect();
        self.strike(parts, failures_max)
    }

    /// Says that a repair of a range did not succeed. Whether a region went into quarantine for that.
    pub(crate) fn heal_failed(&mut self, offset: u64, len: u64, failures_max: u32, now_ms: u64) -> bool {
        let parts: Vec<_> = self.parts(offset, len).collect();
        for (i, span) in &parts {
            self.invalidate(*i, *span);
            let region = &mut self.regions[*i];
            region.mended = *span;
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
                self.changes += 1;
                any = true;
            }
        }
        any
    }

    /// Says that a repair succeeded.
    pub(crate) fn healed(&mut self, offset: u64, len: u64) {
        for (i, span) in self.parts(offset, len) {
            self.regions[i].mended = span;
        }
    }

    /// Puts off the copying of a range.
    pub(crate) fn put_off(&mut self, offset: u64, len: u64, until_ms: u64) {
        for (i, _) in self.parts(offset, len) {
            self.regions[i].not_before_ms = until_ms;
        }
    }

    /// The map as it is saved: what a later opening may take as valid. Only what a flush has covered (writes up to `flushed`). Until
    /// [`RegionMap::saved`] nobody knows whether the fast leg has it.
    pub(crate) fn save(&mut self, flushed: u64, what: Saving) -> Vec<u8> {
        self.urgent = false;
        let all = self.region_blocks();
        let mut bytes = Vec::with_capacity(self.regions.len() * ENTRY);
        for region in &mut self.regions {
            let withdrawn = std::mem::take(&mut region.withdrawn) && what != Saving::Last;
            let span = if region.quarantined || withdrawn || region.seq > flushed {
                (0, 0)
            } else if region.busy.is_empty() {
                region.valid.largest()
            } else {
                let mut valid = region.valid.clone();
                for busy in &region.busy {
                    valid.remove(busy.span);
                }
                valid.largest()
            };
            let span = match what {
                Saving::All | Saving::Last => span,
                Saving::Less => (span.0.max(region.kept.0), span.1.min(region.kept.1)),
            };
            let span = if span.0 < span.1 && region.wanted != (0, 0) { span } else { (0, 0) };
            // Only whole regions and those that are wanted just so far are told apart from the rest.
            let only = region.wanted != (0, all) && (region.wanted == span || region.wanted == (0, 0));
            region.saving = span;
            let lo = span.0 as u16 | if only { ONLY } else { 0 };
            bytes.extend_from_slice(&lo.to_le_bytes());
            bytes.extend_from_slice(&(span.1 as u16).to_le_bytes());
        }
        bytes
    }

    /// Says whether the map of the last [`RegionMap::save`] is durable. If not, the fast leg may have it or the one before.
    pub(crate) fn saved(&mut self, durable: bool) {
        for region in &mut self.regions {
            let (kept, saving) = (region.kept, std::mem::take(&mut region.saving));
            region.kept = match (kept.0 < kept.1, saving.0 < saving.1) {
                _ if durable => saving,
                (true, true) => (kept.0.min(saving.0), kept.1.max(saving.1)),
                (false, _) => saving,
                (true, false) => kept,
            };
        }
    }

    /// Says that the map of the last [`RegionMap::save`] was not given to the fast leg at all.
    pub(crate) fn not_saved(&mut self) {
        self.regions.iter_mut().for_each(|region| region.saving = (0, 0));
    }

    /// Takes as valid only what the fast leg's own map calls so: it was away. Nothing may be under way.
    pub(crate) fn restrict(&mut self, bytes: &[u8]) {
        let all = self.region_blocks();
        let mut entries = bytes.chunks_exact(ENTRY);
        for i in 0..self.regions.len() {
            let entry = entries.next().unwrap_or(&[0; ENTRY]);
            let (lo, hi) = (u16::from_le_bytes([entry[0], entry[1]]), u16::from_le_bytes([entry[2], entry[3]]));
            let span = (u32::from(lo & !ONLY), u32::from(hi).min(all));
            self.invalidate(i, (0, span.0));
            self.invalidate(i, (span.1.max(span.0), all));
            let region = &mut self.regions[i];
            (region.kept, region.saving) = (if span.0 < span.1 { span } else { (0, 0) }, (0, 0));
        }
    }

    /// Takes nothing as valid: the fast leg is as good as new, without a map.
    pub(crate) fn forget_all(&mut self) {
        self.restrict(&[]);
    }

    /// Takes over a saved map. Nothing may be under way.
    pub(crate) fn load(&mut self, bytes: &[u8]) {
        let all = self.region_blocks();
        for (i, entry) in bytes.chunks_exact(ENTRY).take(self.regions.len()).enumerate() {
            let (lo, hi) = (u16::from_le_bytes([entry[0], entry[1]]), u16::from_le_bytes([entry[2], entry[3]]));
            let span = (u32::from(lo & !ONLY), u32::from(hi).min(all));
            self.edit(i, |region| {
                region.valid = Spans::default();
                region.valid.insert(span);
                region.kept = if span.0 < span.1 { span } else { (0, 0) };
                region.wanted = if lo & ONLY != 0 { span } else { (0, all) };
            });
        }
    }

    /// Takes everything as valid. For sabotage.
    pub(crate) fn trust(&mut self) {
        let all = (0, self.region_blocks());
        for i in 0..self.regions.len() {
            self.edit(i, |region| region.valid.insert(all));
        }
    }
}

#[cfg(test)]
mod tests;
