//! The lock table of an export: ranges that are being changed.
//!
//! Overlapping changes run one after another, in order of arrival. An unaligned write reads the
//! blocks at its edges, so a change between its read and its write would be lost. Aligned writes
//! wait as well. A client that lost its connection repeats a write over a new one, and the old
//! write, still in progress, must not land last.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

struct Entry {
    range: Range<u64>,
    /// Number of earlier entries that overlap this one.
    before: usize,
    /// Wakes the waiter when `before` becomes 0.
    waiter: Option<oneshot::Sender<()>>,
}

#[derive(Default)]
struct State {
    /// Holders and waiters in order of arrival.
    entries: BTreeMap<u64, Entry>,
    next: u64,
}

/// The table of one export. Its size is bounded by the requests in flight.
#[derive(Clone, Default)]
pub(crate) struct Ranges(Arc<Mutex<State>>);

/// A range that is held or waited for. Dropping it unblocks later ranges.
pub(crate) struct RangeGuard {
    ranges: Ranges,
    number: u64,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Ranges {
    /// Waits until no earlier change of any part of `range` is in progress.
    pub(crate) async fn lock(&self, range: Range<u64>) -> RangeGuard {
        let (guard, wait) = self.enter(range);
        if let Some(wait) = wait {
            // The sender is dropped only after it was used, or together with the guard, which this
            // function owns.
            let _ = wait.await;
        }
        guard
    }

    /// Enters `range` into the table. Returns the guard, and the channel to wait for if an earlier
    /// range overlaps.
    fn enter(&self, range: Range<u64>) -> (RangeGuard, Option<oneshot::Receiver<()>>) {
        let mut state = self.0.lock();
        let number = state.next;
        state.next += 1;
        let before = state.entries.values().filter(|entry| overlap(&entry.range, &range)).count();
        let (waiter, wait) = match before {
            0 => (None, None),
            _ => {
                let (tx, rx) = oneshot::channel();
                (Some(tx), Some(rx))
            }
        };
        state.entries.insert(number, Entry { range, before, waiter });
        (RangeGuard { ranges: self.clone(), number }, wait)
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut state = self.ranges.0.lock();
        let Some(gone) = state.entries.remove(&self.number) else { return };
        for (_, entry) in state.entries.range_mut(self.number..) {
            if overlap(&entry.range, &gone.range) {
                assert!(entry.before > 0, "a range waits for one that it does not overlap");
                entry.before -= 1;
                if entry.before == 0
                    && let Some(waiter) = entry.waiter.take()
                {
                    let _ = waiter.send(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn overlapping_ranges_wait_in_order_and_others_do_not() {
        let ranges = Ranges::default();
        let first = ranges.lock(0..8).now_or_never().expect("free");
        let apart = ranges.lock(8..16).now_or_never().expect("free");
        let mut second = Box::pin(ranges.lock(4..12));
        assert!((&mut second).now_or_never().is_none());
        // The range waits for the second waiter, although no holder overlaps it.
        let mut third = Box::pin(ranges.lock(10..11));
        assert!((&mut third).now_or_never().is_none());
        drop(first);
        assert!((&mut second).now_or_never().is_none());
        drop(apart);
        let second = (&mut second).now_or_never().expect("free");
        assert!((&mut third).now_or_never().is_none());
        drop(second);
        drop((&mut third).now_or_never().expect("free"));
        assert!(ranges.0.lock().entries.is_empty());
    }

    #[test]
    fn a_waiter_that_gives_up_holds_up_none() {
        let ranges = Ranges::default();
        let first = ranges.lock(0..8).now_or_never().expect("free");
        let mut second = Box::pin(ranges.lock(0..16));
        assert!((&mut second).now_or_never().is_none());
        let mut third = Box::pin(ranges.lock(8..16));
        assert!((&mut third).now_or_never().is_none());
        drop(second);
        drop((&mut third).now_or_never().expect("free"));
        drop(first);
        assert!(ranges.0.lock().entries.is_empty());
    }

    proptest! {
        #[test]
        fn holders_never_overlap_and_all_get_their_turn(
            steps in proptest::collection::vec((0u64..20, 1u64..8, any::<u8>()), 1..60)
        ) {
            let ranges = Ranges::default();
            let mut waiting = Vec::new();
            let mut held: Vec<(Range<u64>, RangeGuard)> = Vec::new();
            for (start, len, pick) in steps {
                let range = start..start + len;
                waiting.push((range.clone(), Box::pin({ let ranges = ranges.clone(); async move { ranges.lock(range).await } })));
                if pick % 3 == 0 && !held.is_empty() {
                    held.remove(usize::from(pick) % held.len());
                }
                waiting.retain_mut(|(range, lock)| match lock.now_or_never() {
                    Some(guard) => {
                        assert!(!held.iter().any(|(other, _)| overlap(other, range)));
                        held.push((range.clone(), guard));
                        false
                    }
                    None => true,
                });
            }
            while !waiting.is_empty() {
                prop_assert!(!held.is_empty());
                held.clear();
                waiting.retain_mut(|(range, lock)| match lock.now_or_never() {
                    Some(guard) => {
                        assert!(!held.iter().any(|(other, _)| overlap(other, range)));
                        held.push((range.clone(), guard));
                        false
                    }
                    None => true,
                });
            }
        }
    }
}
