//! Counts of values by size, in constant memory and without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;

/// Number of buckets: for microseconds, from 1 us to more than an hour.
const BUCKETS: usize = 32;

/// Counts of values by size. Bucket `i` counts values of at least `2^i` and below `2^(i+1)`. Bucket
/// 0 also counts 0, and the last bucket also counts larger values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// Counts, smallest values first, up to the last non-zero bucket.
    pub buckets: Vec<u64>,
    /// Number of values.
    pub count: u64,
    /// Sum of the values.
    pub sum: u64,
    /// Largest value.
    pub max: u64,
}

impl Histogram {
    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Self) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(mine, theirs)| *mine += theirs);
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }
}

/// Counts values for a [`Histogram`]. It suits the path of every request: no lock, and two
/// additions.
#[derive(Debug, Default)]
pub struct HistogramCounter {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
    max: AtomicU64,
}

impl HistogramCounter {
    /// Counts a value.
    pub fn add(&self, value: u64) {
        let bucket = (value | 1).ilog2() as usize;
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
        // A new maximum is rare, and a load is cheaper than an exchange.
        if value > self.max.load(Relaxed) {
            self.max.fetch_max(value, Relaxed);
        }
    }

    /// Counts a duration in microseconds.
    pub fn add_us(&self, took: Duration) {
        self.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// Number of values counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }

    /// Sum of the values counted.
    pub fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    /// A copy of the counts. A value that is counted during the call may be missing in some of the
    /// fields.
    pub fn snapshot(&self) -> Histogram {
        let mut buckets: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        let count = buckets.iter().sum();
        while buckets.last() == Some(&0) {
            buckets.pop();
        }
        Histogram { buckets, count, sum: self.sum(), max: self.max.load(Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_by_their_size() {
        let counter = HistogramCounter::default();
        assert_eq!(counter.snapshot(), Histogram::default());
        for value in [0, 1, 2, 3, 4, 1023] {
            counter.add(value);
        }
        counter.add_us(Duration::from_millis(1));
        let mut counted = counter.snapshot();
        assert_eq!(counted.buckets, [2, 2, 1, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!((counted.count, counted.sum, counted.max), (7, 2033, 1023));
        assert_eq!((counter.count(), counter.sum()), (7, 2033));
        let other = HistogramCounter::default();
        other.add(u64::MAX);
        counted.add(&other.snapshot());
        assert_eq!((counted.buckets.len(), counted.buckets[31], counted.buckets[9]), (BUCKETS, 1, 2));
        assert_eq!((counted.count, counted.max), (8, u64::MAX));
    }
}
