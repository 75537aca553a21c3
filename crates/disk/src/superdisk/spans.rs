//! A small set of block ranges within one region.

/// A half-open range of blocks in a region.
pub(crate) type Span = (u32, u32);

/// Maximum number of ranges; the smallest is dropped above it.
const SPANS_MAX: usize = 8;

pub(crate) fn overlap(a: Span, b: Span) -> bool {
    a.0 < b.1 && b.0 < a.1
}

/// Disjoint ranges that do not touch. Usually there is only one, which is stored inline.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spans {
    main: Span,
    more: Vec<Span>,
}

impl Spans {
    fn iter(&self) -> impl Iterator<Item = Span> {
        std::iter::once(self.main).chain(self.more.iter().copied()).filter(|s| s.0 < s.1)
    }

    fn set(&mut self, mut all: Vec<Span>) {
        all.sort_unstable_by_key(|s| std::cmp::Reverse((s.1 - s.0, s.0)));
        all.truncate(SPANS_MAX);
        self.main = all.first().copied().unwrap_or_default();
        self.more = all.split_off(all.len().min(1));
        debug_assert!(self.is_disjoint(), "ranges that touch: {self:?}");
    }

    /// Whether no two ranges touch.
    fn is_disjoint(&self) -> bool {
        let mut all: Vec<Span> = self.iter().collect();
        all.sort_unstable();
        all.windows(2).all(|pair| pair[0].1 < pair[1].0)
    }

    /// Adds a range.
    pub(crate) fn insert(&mut self, mut span: Span) {
        if span.0 >= span.1 {
            return;
        }
        let mut all = Vec::new();
        for s in self.iter() {
            if s.0 <= span.1 && span.0 <= s.1 {
                span = (span.0.min(s.0), span.1.max(s.1));
            } else {
                all.push(s);
            }
        }
        // The others do not touch one another, and the new range has absorbed each that touched it.
        all.push(span);
        self.set(all);
    }

    /// Removes a range; returns whether the set contained any of it.
    pub(crate) fn remove(&mut self, span: Span) -> bool {
        if span.0 >= span.1 || !self.iter().any(|s| overlap(s, span)) {
            return false;
        }
        let cut = |s: Span| [(s.0, s.1.min(span.0)), (s.0.max(span.1), s.1)];
        let left: Vec<Span> = self.iter().flat_map(cut).filter(|s| s.0 < s.1).collect();
        self.set(left);
        true
    }

    /// Whether the set contains all of a range.
    pub(crate) fn covers(&self, span: Span) -> bool {
        span.0 >= span.1 || self.iter().any(|s| s.0 <= span.0 && span.1 <= s.1)
    }

    /// The first part of a range that is not in the set.
    pub(crate) fn gap(&self, within: Span) -> Option<Span> {
        let mut start = within.0;
        while let Some(s) = self.iter().find(|s| s.0 <= start && start < s.1) {
            start = s.1;
        }
        let end = self.iter().map(|s| s.0).filter(|lo| *lo > start).min().unwrap_or(u32::MAX).min(within.1);
        (start < end).then_some((start, end))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn spans_are_a_set_of_blocks(steps in prop::collection::vec((any::<bool>(), 0u32..16, 0u32..6), 1..40)) {
            // Fewer than 16 blocks cannot make more than 8 ranges, so none is dropped.
            let (mut spans, mut model) = (Spans::default(), [false; 32]);
            for (add, lo, len) in steps {
                let span = (lo, (lo + len).min(16));
                if add {
                    spans.insert(span);
                } else {
                    let had = (span.0..span.1).any(|b| model[b as usize]);
                    prop_assert_eq!(spans.remove(span), had);
                }
                (span.0..span.1).for_each(|b| model[b as usize] = add);
                for lo in 0..16u32 {
                    for hi in lo + 1..=16 {
                        prop_assert_eq!(spans.covers((lo, hi)), (lo..hi).all(|b| model[b as usize]), "{:?}", (lo, hi));
                        let start = (lo..hi).find(|b| !model[*b as usize]);
                        let gap = start.map(|s| (s, (s..hi).find(|b| model[*b as usize]).unwrap_or(hi)));
                        prop_assert_eq!(spans.gap((lo, hi)), gap);
                    }
                }
            }
        }

        #[test]
        fn dropped_ranges_never_reappear(steps in prop::collection::vec((0u32..200, 1u32..6), 1..60)) {
            let (mut spans, mut model) = (Spans::default(), [false; 256]);
            for (lo, len) in steps {
                spans.insert((lo, lo + len));
                (lo..lo + len).for_each(|b| model[b as usize] = true);
                prop_assert!(spans.covers((lo, lo + len)) || spans.more.len() + 1 == SPANS_MAX);
                for s in spans.iter() {
                    prop_assert!((s.0..s.1).all(|b| model[b as usize]));
                }
            }
        }
    }
}
