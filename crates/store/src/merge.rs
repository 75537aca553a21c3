//! Listings over several shards: merged in order, with one item of each shard in memory.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::StoreError;

/// An item with a place in a listing.
pub(crate) trait Listed {
    /// The sort key.
    fn place(&self) -> (&str, &str);
}

/// Items in order of their places, each place once.
pub(crate) trait Source {
    /// Item type.
    type Item: Listed;

    /// The next item; `None` after the last one, on every later call too.
    fn next(&mut self) -> Result<Option<Self::Item>, StoreError>;
}

/// The next item of a source, in a heap with the lowest place on top.
struct MergeHead<T> {
    item: T,
    source: usize,
}

impl<T: Listed> Ord for MergeHead<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.item.place().cmp(&self.item.place()).then(other.source.cmp(&self.source))
    }
}

impl<T: Listed> PartialOrd for MergeHead<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Listed> PartialEq for MergeHead<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T: Listed> Eq for MergeHead<T> {}

/// Several sources as one. An item that several sources have (a rolled-up prefix) is returned once.
pub(crate) struct Merge<S: Source> {
    sources: Vec<S>,
    heads: BinaryHeap<MergeHead<S::Item>>,
    begun: bool,
}

impl<S: Source> Merge<S> {
    pub(crate) fn new(sources: Vec<S>) -> Self {
        Self { heads: BinaryHeap::with_capacity(sources.len()), sources, begun: false }
    }

    fn refill(&mut self, source: usize) -> Result<(), StoreError> {
        if let Some(item) = self.sources[source].next()? {
            self.heads.push(MergeHead { item, source });
        }
        Ok(())
    }
}

impl<S: Source> Source for Merge<S> {
    type Item = S::Item;

    fn next(&mut self) -> Result<Option<S::Item>, StoreError> {
        if self.sources.len() == 1 {
            return self.sources[0].next();
        }
        if !self.begun {
            self.begun = true;
            for source in 0..self.sources.len() {
                self.refill(source)?;
            }
        }
        let Some(MergeHead { item, source }) = self.heads.pop() else { return Ok(None) };
        self.refill(source)?;
        while let Some(head) = self.heads.peek()
            && head.item.place() == item.place()
        {
            let source = head.source;
            self.heads.pop();
            self.refill(source)?;
        }
        debug_assert!(self.heads.peek().is_none_or(|head| head.item.place() > item.place()), "a source goes back");
        Ok(Some(item))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    impl Listed for String {
        fn place(&self) -> (&str, &str) {
            (self, "")
        }
    }

    struct Sorted(std::collections::btree_set::IntoIter<String>);

    impl Source for Sorted {
        type Item = String;

        fn next(&mut self) -> Result<Option<String>, StoreError> {
            Ok(self.0.next())
        }
    }

    proptest! {
        #[test]
        fn gives_everything_once_and_in_order(sets: Vec<BTreeSet<String>>) {
            let all: BTreeSet<String> = sets.iter().flatten().cloned().collect();
            let mut merge = Merge::new(sets.into_iter().map(|set| Sorted(set.into_iter())).collect());
            let mut got = Vec::new();
            while let Some(item) = merge.next().expect("no errors") {
                got.push(item);
            }
            prop_assert!(merge.next().expect("no errors").is_none());
            prop_assert_eq!(got, all.into_iter().collect::<Vec<_>>());
        }
    }
}
