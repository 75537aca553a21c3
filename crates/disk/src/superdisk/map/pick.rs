//! What to copy next.

use super::{RegionMap, Span};
use crate::BLOCK;

/// How many of the recently used regions one look for work considers.
const HOT_LOOK: usize = 64;
/// How many of the others.
const SCAN_MAX: usize = 8192;
/// When to look again at the earliest and at the latest where nothing can be done now, in milliseconds from now.
const LATER_MS: (u64, u64) = (20, 1000);

/// What to copy next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    /// This range, which is under way from now on as this operation.
    Copy { op: u64, offset: u64, len: u64 },
    /// Not yet found: there is more to look at than one look may take.
    Again,
    /// Nothing yet; look again at this time, in milliseconds.
    Later(u64),
    /// Nothing.
    Idle,
}

impl RegionMap {
    /// What of region `i` is to be copied next, up to `max` blocks.
    fn work(&self, i: usize, max: u32) -> Option<Span> {
        let region = &self.regions[i];
        let gap = region.valid.gap((0, if region.wanted { self.blocks(i) } else { 0 }))?;
        let gap = (gap.0, gap.1.min(gap.0 + max));
        (!region.quarantined && !self.is_busy(i, gap)).then_some(gap)
    }

    /// As [`RegionMap::work`], once the region has been left alone for long enough.
    fn due(&mut self, i: usize, max: u32, now_ms: u64) -> Option<(usize, Span)> {
        let span = self.work(i, max)?;
        let due_ms = self.regions[i].not_before_ms;
        if due_ms > now_ms {
            self.due_ms = self.due_ms.min(due_ms);
            return None;
        }
        Some((i, span))
    }

    /// Chooses what to copy next: what was used last, else from the end of the disk to its beginning, as a log fills it.
    pub(crate) fn pick(&mut self, now_ms: u64, max_bytes: u64) -> Pick {
        if self.counts.to_rebuild == 0 {
            return Pick::Idle;
        }
        let max = (max_bytes / BLOCK as u64).max(1) as u32;
        let mut found = None;
        let mut keep = Vec::new();
        for _ in 0..HOT_LOOK {
            let Some(i) = self.hot.pop_back() else { break };
            let i = i as usize;
            if self.count_of(i).to_rebuild == 0 {
                self.regions[i].hot = false;
                continue;
            }
            keep.push(i as u32);
            found = self.due(i, max, now_ms);
            if found.is_some() {
                break;
            }
        }
        self.hot.extend(keep.into_iter().rev());
        for _ in 0..SCAN_MAX {
            if found.is_some() || self.scanned >= self.regions.len() {
                break;
            }
            self.scanned += 1;
            self.cursor = if self.cursor == 0 { self.regions.len() - 1 } else { self.cursor - 1 };
            found = self.due(self.cursor, max, now_ms);
            if found.is_some() {
                // The rest of it next.
                self.cursor += 1;
            }
        }
        if found.is_some() || self.scanned >= self.regions.len() {
            self.scanned = 0;
        } else {
            return Pick::Again;
        }
        // Something under way ends without a word to the map's user, so never too late.
        let Some((i, span)) = found else {
            let later = std::mem::replace(&mut self.due_ms, u64::MAX);
            return Pick::Later(later.clamp(now_ms + LATER_MS.0, now_ms + LATER_MS.1));
        };
        let op = self.new_op();
        self.enter(i, op, span);
        let (block, start) = (BLOCK as u64, i as u64 * self.region_bytes);
        Pick::Copy { op, offset: start + u64::from(span.0) * block, len: u64::from(span.1 - span.0) * block }
    }
}
