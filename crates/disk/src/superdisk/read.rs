//! Reads: from the fast leg where it is known to be right, else, or when it is late or fails, from
//! the durable leg.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use bytes::Bytes;

use super::core::{Leg, SuperdiskShared, tick};
use super::heal::HEAL_RETRY;
use super::heal::Heals;
use super::options::SuperdiskOptions;
use super::pair::{FAST_START, masked};
use crate::{Disk, Histogram, IoFuture};

/// Largest small read in bytes; small reads take about the same time.
pub(crate) const SMALL_BYTES: usize = 64 << 10;
/// Number of measured reads before the limit changes; the first time fewer.
const SAMPLES: u64 = 256;
const SAMPLES_FIRST: u64 = 32;

/// Delay before a read is also sent to the durable leg: a multiple of the 99th percentile of the
/// last few hundred reads. ("The Tail at Scale", Dean and Barroso 2013, hedges after the 95th; the
/// durable leg is more expensive here.)
pub(crate) struct Hedge {
    histogram: Histogram,
    samples: u64,
    wanted: u64,
    after: Duration,
}

impl Hedge {
    pub(crate) fn new(options: &SuperdiskOptions) -> Self {
        Self { histogram: Histogram::default(), samples: 0, wanted: SAMPLES_FIRST, after: options.hedge_max }
    }

    pub(crate) fn after(&self) -> Duration {
        self.after
    }

    fn record(&mut self, took: Duration, options: &SuperdiskOptions) {
        self.histogram.record(took);
        self.samples += 1;
        if self.samples >= self.wanted {
            let late = self.histogram.quantile(0.99).as_secs_f64() * options.hedge_p99_factor;
            let late = Duration::try_from_secs_f64(late).unwrap_or(options.hedge_max);
            self.after = late.max(options.hedge_min).min(options.hedge_max);
            self.histogram.clear();
            (self.samples, self.wanted) = (0, SAMPLES);
        }
    }
}

/// Counts a fast read as overdue while the guard exists.
struct Overdue(Arc<SuperdiskShared>);

impl Overdue {
    fn new(shared: &Arc<SuperdiskShared>) -> Self {
        shared.overdue.fetch_add(1, SeqCst);
        Self(shared.clone())
    }
}

impl Drop for Overdue {
    fn drop(&mut self) {
        let before = self.0.overdue.fetch_sub(1, SeqCst);
        assert!(before > 0, "a late read ended twice");
    }
}

/// Reads from the legs of a pair.
#[derive(Clone, Copy)]
pub(crate) struct Reads<'a>(pub(crate) &'a Arc<SuperdiskShared>);

fn send(disk: &Arc<dyn Disk>, offset: u64, len: usize, kept: bool) -> IoFuture<Bytes> {
    if kept { disk.read_kept(offset, len) } else { disk.read(offset, len) }
}

impl Reads<'_> {
    /// Whether the fast leg holds a range. Returns the current number of failures of the leg; if
    /// the leg does not hold the range, the range is copied soon. `verified`: the caller has
    /// checksums.
    fn fast_holds(self, offset: u64, len: usize, verified: bool) -> Option<u64> {
        let mut state = self.0.state.lock();
        if state.leg != Leg::Up {
            return None;
        }
        // After a failed flush of the durable leg only clean regions count, except for callers with
        // checksums.
        let latched = state.intent.is_latched() && !verified;
        let clean = !latched || state.map.regions_of(offset, len as u64).all(|i| state.intent.is_clean(i));
        let readable = clean && state.map.readable(offset, len as u64);
        if !readable {
            state.map.miss(offset, len as u64);
            self.0.wake(&mut state);
        }
        readable.then_some(state.failures)
    }

    /// Whether the fast leg is in use and an operation overlaps a range.
    fn is_in_use(self, offset: u64, len: usize) -> bool {
        let state = self.0.state.lock();
        state.leg == Leg::Up && state.map.is_in_use(offset, len as u64)
    }

    /// Whether a read of the fast leg counts that began after this number of failures. A failing
    /// leg may drop its unflushed data, and a read that ends afterwards returns the earlier
    /// content.
    fn read_counts(self, failures: u64) -> bool {
        self.0.state.lock().failures == failures
    }

    /// Reads from the best copy. The caller keeps the bytes if they are `kept`.
    pub(crate) async fn read(self, offset: u64, len: usize, kept: bool) -> io::Result<Bytes> {
        let (Some(failures), Some(fast)) = (self.fast_holds(offset, len, false), self.0.fast.clone()) else {
            return self.read_durable(offset, len, kept).await;
        };
        if self.0.overdue.load(SeqCst) >= u64::from(self.0.options.fast_overdue_max) {
            return match self.read_durable(offset, len, kept).await {
                Ok(bytes) => Ok(bytes),
                // A slow answer is better than none.
                Err(error) => match self.read_checked(&fast, offset, len).await {
                    Ok(bytes) if self.read_counts(failures) => {
                        // A checked read holds memory of the leg.
                        Ok(if kept { Bytes::copy_from_slice(&bytes) } else { bytes })
                    }
                    _ => Err(error),
                },
            };
        }
        let start = self.0.env.now();
        let mut request = send(&fast, FAST_START + offset, len, kept);
        let after = self.0.hedge(len).lock().after();
        let answered = tokio::select! {
            biased;
            result = &mut request => Some(result),
            () = self.0.late.at(start + after) => None,
        };
        match answered {
            Some(Ok(bytes)) if self.read_counts(failures) => {
                assert_eq!(bytes.len(), len, "a read of the fast leg has another length");
                self.fast_answered(start, len);
                Ok(masked(offset, bytes))
            }
            Some(Ok(stale)) => {
                drop(stale);
                self.read_durable(offset, len, kept).await
            }
            Some(Err(error)) => {
                self.fast_read_failed(offset, len, &error);
                self.read_durable(offset, len, kept).await
            }
            None => self.read_hedged(request, failures, start, (offset, len, kept)).await,
        }
    }

    fn fast_answered(self, start: Duration, len: usize) {
        self.0.fast_works();
        tick(&self.0.counters.reads_fast);
        self.measured(start, len);
    }

    fn measured(self, start: Duration, len: usize) {
        let took = self.0.env.now().saturating_sub(start);
        self.0.hedge(len).lock().record(took, &self.0.options);
    }

    /// Also sends the read to the durable leg; the first good answer counts.
    async fn read_hedged(
        self,
        mut fast: IoFuture<Bytes>,
        failures: u64,
        start: Duration,
        (offset, len, kept): (u64, usize, bool),
    ) -> io::Result<Bytes> {
        tick(&self.0.counters.reads_hedged);
        let overdue = Overdue::new(self.0);
        let mut durable = send(&self.0.durable, offset, len, kept);
        // The outer result is the leg that answered.
        let first = tokio::select! {
            biased;
            bytes = &mut fast => Ok(bytes),
            bytes = &mut durable => Err(bytes),
        };
        match first {
            Ok(Ok(bytes)) if self.read_counts(failures) => {
                self.fast_answered(start, len);
                Ok(masked(offset, bytes))
            }
            Ok(Ok(stale)) => {
                drop(stale);
                self.durable_answered(offset, durable.await)
            }
            Ok(Err(error)) => {
                drop(overdue);
                self.fast_read_failed(offset, len, &error);
                self.durable_answered(offset, durable.await)
            }
            Err(Ok(bytes)) => {
                tick(&self.0.counters.hedges_won);
                self.await_in_background(fast, overdue, start, offset, len);
                self.durable_answered(offset, Ok(bytes))
            }
            Err(Err(error)) => {
                tick(&self.0.counters.durable_errors);
                let limit = self.0.options.fast_read_limit;
                match self.0.env.timeout(limit, &mut fast).await {
                    Some(Ok(bytes)) if self.read_counts(failures) => {
                        self.fast_answered(start, len);
                        return Ok(masked(offset, bytes));
                    }
                    Some(Ok(_)) => {}
                    Some(Err(fast_error)) => self.fast_read_failed(offset, len, &fast_error),
                    None => self.await_in_background(fast, overdue, start, offset, len),
                }
                Err(error)
            }
        }
    }

    /// Waits in the background for a fast read whose answer is no longer needed: it shows the state
    /// of the leg.
    fn await_in_background(
        self,
        mut fast: IoFuture<Bytes>,
        overdue: Overdue,
        start: Duration,
        offset: u64,
        len: usize,
    ) {
        let shared = self.0.clone();
        self.0.env.spawn("superdisk-late-read", async move {
            let limit = shared.options.fast_read_limit;
            let result = match shared.env.timeout(limit, &mut fast).await {
                Some(result) => result,
                None => {
                    shared.fail_fast(format!("a read has not returned for {} ms", limit.as_millis()));
                    fast.await
                }
            };
            drop(overdue);
            match result {
                Ok(_) => {
                    shared.fast_works();
                    Reads(&shared).measured(start, len);
                }
                Err(error) => Reads(&shared).fast_read_failed(offset, len, &error),
            }
        });
    }

    fn durable_answered(self, offset: u64, result: io::Result<Bytes>) -> io::Result<Bytes> {
        tick(if result.is_ok() { &self.0.counters.reads_durable } else { &self.0.counters.durable_errors });
        Ok(masked(offset, result?))
    }

    /// Reads copy 0. The caller keeps the bytes if they are `kept`.
    pub(crate) async fn read_durable(self, offset: u64, len: usize, kept: bool) -> io::Result<Bytes> {
        let result = send(&self.0.durable, offset, len, kept).await;
        debug_assert!(
            result.as_ref().is_ok_and(|bytes| bytes.len() == len) || result.is_err(),
            "a read of another length"
        );
        self.durable_answered(offset, result)
    }

    /// Reads copy 1. An unreadable range is left unchanged: the caller compares the two copies, and
    /// the durable leg may be the wrong one.
    pub(crate) async fn read_copy_fast(self, offset: u64, len: usize) -> io::Result<Bytes> {
        let start = self.0.env.now();
        let mut readable = self.fast_holds(offset, len, true);
        // Another reader may be repairing the range; both legs hold it afterwards.
        while readable.is_none()
            && self.is_in_use(offset, len)
            && self.0.env.now().saturating_sub(start) < self.0.options.fast_write_limit
        {
            self.0.env.sleep(HEAL_RETRY).await;
            readable = self.fast_holds(offset, len, true);
        }
        let Some(fast) = self.0.fast.clone().filter(|_| readable.is_some()) else {
            let text = format!("the fast leg does not hold {len} bytes at {offset}");
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        };
        let result = self.0.read_fast(&fast, offset, len).await;
        if result.is_ok() {
            tick(&self.0.counters.reads_fast);
        }
        Ok(masked(offset, result?))
    }

    /// Reads from the fast leg; an error queues the range for repair.
    async fn read_checked(self, fast: &Arc<dyn Disk>, offset: u64, len: usize) -> io::Result<Bytes> {
        let result = self.0.read_fast(fast, offset, len).await;
        match &result {
            Ok(_) => tick(&self.0.counters.reads_fast),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(_) => Heals(self.0).heal_later(offset, len),
        }
        Ok(masked(offset, result?))
    }

    fn fast_read_failed(self, offset: u64, len: usize, error: &io::Error) {
        tracing::debug!(offset, len, %error, "the fast leg cannot read a range");
        tick(&self.0.counters.fast_errors);
        Heals(self.0).heal_later(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hedge_follows_the_measured_latency_within_its_limits() {
        let options = SuperdiskOptions::default();
        let mut hedge = Hedge::new(&options);
        let feed = |hedge: &mut Hedge, us: u64| {
            for _ in 0..2 * SAMPLES {
                hedge.record(Duration::from_micros(us), &options);
            }
            hedge.after()
        };
        assert_eq!(hedge.after(), options.hedge_max);
        let after = feed(&mut hedge, 5000);
        assert!(after >= Duration::from_millis(15) && after < Duration::from_millis(17), "{after:?}");
        assert_eq!(feed(&mut hedge, 100), options.hedge_min);
        assert_eq!(feed(&mut hedge, 1_000_000), options.hedge_max);
    }
}
