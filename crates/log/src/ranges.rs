//! Sets of byte ranges within an extent.

use std::ops::Range;

/// Ranges of bytes, counted from the start of an extent: in ascending order, none empty, and no two
/// adjacent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges(Vec<Range<u32>>);

impl Ranges {
    /// One range; an empty one makes an empty set.
    pub fn of(range: Range<u32>) -> Self {
        let mut ranges = Self::default();
        ranges.insert(range);
        ranges
    }

    /// The ranges, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = &Range<u32>> {
        self.0.iter()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of all ranges.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|range| u64::from(range.end - range.start)).sum()
    }

    /// End of the last range; 0 if there is none.
    pub fn end(&self) -> u32 {
        self.0.last().map_or(0, |range| range.end)
    }

    /// Adds a range, which may overlap others.
    pub fn insert(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        // Those that the new one touches become one with it.
        let from = self.0.partition_point(|other| other.end < range.start);
        let to = self.0.partition_point(|other| other.start <= range.end);
        let touched = &self.0[from..to];
        let start = touched.first().map_or(range.start, |first| first.start.min(range.start));
        let end = touched.last().map_or(range.end, |last| last.end.max(range.end));
        self.0.splice(from..to, std::iter::once(start..end));
    }

    /// Adds the ranges of another set.
    pub fn extend(&mut self, other: &Self) {
        other.0.iter().for_each(|range| self.insert(range.clone()));
    }

    /// What is in this set and not in `other`.
    pub fn without(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        let mut others = other.0.iter().peekable();
        for range in &self.0 {
            let mut at = range.start;
            while let Some(cut) = others.next_if(|cut| cut.end <= range.end) {
                if cut.start > at {
                    left.push(at..cut.start.min(range.end));
                }
                at = at.max(cut.end);
            }
            let end = others.peek().map_or(range.end, |cut| cut.start.min(range.end));
            if at < end {
                left.push(at..end);
            }
        }
        Self(left)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn set(ranges: &Ranges) -> BTreeSet<u32> {
        ranges.iter().cloned().flatten().collect()
    }

    fn some() -> impl Strategy<Value = Vec<Range<u32>>> {
        proptest::collection::vec((0u32..60, 0u32..12).prop_map(|(at, len)| at..at + len), 0..12)
    }

    proptest! {
        #[test]
        fn ranges_are_sets_of_bytes(some in some(), others in some()) {
            let (mut a, mut b) = (Ranges::default(), Ranges::default());
            some.iter().for_each(|range| a.insert(range.clone()));
            others.iter().for_each(|range| b.insert(range.clone()));
            let (in_a, in_b) = (set(&a), set(&b));
            prop_assert_eq!(&in_a, &some.into_iter().flatten().collect::<BTreeSet<u32>>());
            let left = a.without(&b);
            prop_assert_eq!(set(&left), in_a.difference(&in_b).copied().collect::<BTreeSet<u32>>());
            let mut all = a.clone();
            all.extend(&b);
            prop_assert_eq!(set(&all), in_a.union(&in_b).copied().collect::<BTreeSet<u32>>());
            for ranges in [&a, &left, &all] {
                let apart = ranges.0.windows(2).all(|pair| pair[0].end < pair[1].start);
                prop_assert!(apart && ranges.iter().all(|range| !range.is_empty()), "{ranges:?}");
                prop_assert_eq!(ranges.bytes(), set(ranges).len() as u64);
                prop_assert_eq!(ranges.end(), set(ranges).last().map_or(0, |last| last + 1));
                prop_assert_eq!(ranges.is_empty(), ranges.bytes() == 0);
            }
        }
    }
}
