//! Chooses what to copy next.

use super::{RegionMap, Span};
use crate::BLOCK;

/// Maximum number of recently used regions that one call examines.
const HOT_LOOK: usize = 64;
/// Maximum number of other regions that one call examines.
const SCAN_MAX: usize = 8192;
/// Earliest and latest time of the next search when no copy is due, in milliseconds from now.
const LATER_MS: (u64, u64) = (20, 1000);

/// The next work of the copying task.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    /// This range. It is in progress from now on as this operation.
    Copy { op: u64, offset: u64, len: u64 },
    /// Not found yet: one call examines only a limited number of regions.
    Again,
    /// Nothing is due yet; search again at this time, in milliseconds.
    Later(u64),
    /// Nothing to copy.
    Idle,
}

impl RegionMap {
    /// The blocks of region `i` to copy next, at most `max`.
    fn work(&self, i: usize, max: u32) -> Option<Span> {
        let region = &self.regions[i];
        let gap = region.valid.gap((0, if region.wanted { self.blocks(i) } else { 0 }))?;
        let gap = (gap.0, gap.1.min(gap.0 + max));
        (!region.quarantined && !self.is_busy(i, gap)).then_some(gap)
    }

    /// Like [`RegionMap::work`], but only once the region's last write has settled.
    fn due(&mut self, i: usize, max: u32, now_ms: u64) -> Option<(usize, Span)> {
        let span = self.work(i, max)?;
        let due_ms = self.regions[i].not_before_ms;
        if due_ms > now_ms {
            self.due_ms = self.due_ms.min(due_ms);
            return None;
        }
        Some((i, span))
    }

    /// Chooses what to copy next: the most recently used regions first, then from the end of the
    /// disk to its beginning, as a log fills it.
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
                // The rest of this region is next.
                self.cursor += 1;
            }
        }
        if found.is_some() || self.scanned >= self.regions.len() {
            self.scanned = 0;
        } else {
            return Pick::Again;
        }
        // The end of an operation does not notify the map's user, so the time is bounded.
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
