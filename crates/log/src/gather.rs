//! Group commit: how long to wait for more batches before a flush.
//!
//! Clients submit again within a fraction of a flush after an answer. A frame written at once holds
//! only the batches of the last flush. So two halves of the clients alternate, and each waits for
//! two flushes. A short wait for the expected cohort joins them. The wait is at most half a flush,
//! and the committer gives it up where the cohort stays incomplete.

use std::time::Duration;

/// Estimates the number of batches in a cohort and the duration of a flush.
#[derive(Debug)]
pub(crate) struct Gather {
    enabled: bool,
    cohort: f64,
    flush: f64,
    /// Consecutive waits without a full cohort.
    misses: u32,
    /// Frames until the next attempt to wait.
    skip: u32,
}

impl Gather {
    pub(crate) fn new(enabled: bool) -> Self {
        Self { enabled, cohort: 1.0, flush: 0.0, misses: 0, skip: 0 }
    }

    /// Records a flush of `group` batches, with `waiting` batches submitted meanwhile. Together
    /// they are the active clients.
    pub(crate) fn flushed(&mut self, group: usize, waiting: usize, took: Duration) {
        let seen = (group + waiting) as f64;
        self.cohort += (seen - self.cohort) / 4.0;
        self.flush += (took.as_secs_f64() - self.flush) / if self.flush == 0.0 { 1.0 } else { 8.0 };
    }

    /// Number of batches to wait for and the longest wait; `None` to write at once.
    pub(crate) fn plan(&mut self, pending: usize) -> Option<(usize, Duration)> {
        let target = (self.cohort * 0.9).floor() as usize;
        if !self.enabled || pending >= target || target < 2 {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        let limit = Duration::from_secs_f64(self.flush / 2.0).min(Duration::from_millis(10));
        (limit >= Duration::from_micros(20)).then_some((target, limit))
    }

    /// Records the outcome of a wait.
    pub(crate) fn waited(&mut self, filled: bool) {
        if filled {
            self.misses = 0;
        } else {
            self.misses = (self.misses + 1).min(6);
            if self.misses >= 3 {
                self.skip = 1 << self.misses;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLUSH: Duration = Duration::from_micros(500);

    #[test]
    fn a_lone_client_never_waits() {
        let mut gather = Gather::new(true);
        for _ in 0..100 {
            gather.flushed(1, 0, FLUSH);
            assert_eq!(gather.plan(1), None);
        }
    }

    #[test]
    fn two_halves_are_joined() {
        let mut gather = Gather::new(true);
        for _ in 0..20 {
            gather.flushed(32, 32, FLUSH);
        }
        let (target, limit) = gather.plan(32).expect("waits for the other half");
        assert!((56..=58).contains(&target), "{target}");
        assert!(limit <= FLUSH / 2 && limit > FLUSH / 3, "{limit:?}");
        assert_eq!(gather.plan(60), None);
    }

    #[test]
    fn waits_that_do_not_fill_are_given_up_and_tried_again_rarely() {
        let mut gather = Gather::new(true);
        let mut waits = 0;
        for _ in 0..1000 {
            gather.flushed(10, 10, FLUSH);
            if gather.plan(10).is_some() {
                waits += 1;
                gather.waited(false);
            }
        }
        assert!((10..50).contains(&waits), "{waits}");
    }
}
