//! A histogram of latencies in constant memory.

use std::time::Duration;

use serde::Serialize;

/// Buckets per doubling: a quantile is at most a sixteenth too high.
const STEPS: u32 = 16;
/// Number of doublings of a nanosecond with separate buckets: up to more than an hour.
const DOUBLINGS: u32 = 42;

/// Counts latencies in buckets whose width grows with the value.
#[derive(Clone)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum: Duration,
    max: Duration,
}

/// A summary of a [`Histogram`], in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Number of measurements.
    pub count: u64,
    /// Arithmetic mean.
    pub mean_us: f64,
    /// 50th percentile.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Maximum.
    pub max_us: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; (DOUBLINGS * STEPS) as usize], count: 0, sum: Duration::ZERO, max: Duration::ZERO }
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < u64::from(STEPS) {
        return nanos as usize;
    }
    let log = nanos.ilog2();
    let step = (nanos >> (log - STEPS.ilog2())) as u32 - STEPS;
    (((log - STEPS.ilog2() + 1) * STEPS + step).min(DOUBLINGS * STEPS - 1)) as usize
}

/// The highest value of a bucket.
fn top(bucket: usize) -> u64 {
    let (doubling, step) = (bucket as u64 / u64::from(STEPS), bucket as u64 % u64::from(STEPS));
    if doubling == 0 { step } else { ((u64::from(STEPS) + step + 1) << (doubling - 1)) - 1 }
}

impl Histogram {
    /// Counts one latency.
    pub fn record(&mut self, took: Duration) {
        self.buckets[bucket(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX))] += 1;
        self.count += 1;
        self.sum += took;
        self.max = self.max.max(took);
    }

    /// Clears all counts.
    pub(crate) fn clear(&mut self) {
        self.buckets.fill(0);
        (self.count, self.sum, self.max) = (0, Duration::ZERO, Duration::ZERO);
    }

    /// The latency that a fraction `quantile` (0 to 1) did not exceed; zero when nothing was
    /// counted.
    pub fn quantile(&self, quantile: f64) -> Duration {
        let rank = ((self.count as f64 * quantile).ceil() as u64).max(1);
        let mut seen = 0;
        for (number, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(top(number)).min(self.max);
            }
        }
        self.max
    }

    /// The usual quantiles.
    pub fn summary(&self) -> Latency {
        let us = |d: Duration| (d.as_nanos() as f64 / 100.0).round() / 10.0;
        Latency {
            count: self.count,
            mean_us: us(self.sum.div_f64(self.count.max(1) as f64)),
            p50_us: us(self.quantile(0.5)),
            p90_us: us(self.quantile(0.9)),
            p99_us: us(self.quantile(0.99)),
            p999_us: us(self.quantile(0.999)),
            max_us: us(self.max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_ordered_and_narrow() {
        let mut last = 0;
        for nanos in (0..100_000).chain((17..45).map(|shift| 1u64 << shift)) {
            let number = bucket(nanos);
            assert!(number >= last && (top(number) >= nanos || number == (DOUBLINGS * STEPS - 1) as usize), "{nanos}");
            assert!(top(number) <= nanos + nanos / 16 + 1, "{nanos}: {}", top(number));
            last = number;
        }
        assert_eq!(bucket(u64::MAX), (DOUBLINGS * STEPS - 1) as usize);
    }

    #[test]
    fn quantiles_are_near() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.summary(), Latency::default());
        for us in 1..=1000u64 {
            histogram.record(Duration::from_micros(us));
        }
        let got = histogram.summary();
        assert_eq!((got.count, got.mean_us, got.max_us), (1000, 500.5, 1000.0));
        for (value, near) in [(got.p50_us, 500.0), (got.p90_us, 900.0), (got.p99_us, 990.0), (got.p999_us, 999.0)] {
            assert!(value >= near && value <= near * 1.0625, "{value} for {near}");
        }
    }
}
