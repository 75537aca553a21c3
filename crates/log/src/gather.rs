//! When to stop waiting for company before a flush.
//!
//! Clients that were just answered come back within a fraction of a flush. A frame that leaves at once takes only
//! those that came during the last flush, so two halves of the clients take turns and each waits for two flushes. Waiting a little
//! for the expected cohort joins them. The wait is bounded by half a flush, and given up where it does not fill.

use std::time::Duration;

/// Learns how many batches come and how long a flush takes.
#[derive(Debug)]
pub(crate) struct Gather {
    enabled: bool,
    cohort: f64,
    flush: f64,
    /// Waits in a row that did not fill.
    misses: u32,
    /// Frames to go before a wait is tried again.
    skip: u32,
}

impl Gather {
    pub(crate) fn new(enabled: bool) -> Self {
        Self { enabled, cohort: 1.0, flush: 0.0, misses: 0, skip: 0 }
    }

    /// A flush has returned: `group` batches were in it, `waiting` have come meanwhile. Together they are those who are there.
    pub(crate) fn flushed(&mut self, group: usize, waiting: usize, took: Duration) {
        let seen = (group + waiting) as f64;
        self.cohort += (seen - self.cohort) / 4.0;
        self.flush += (took.as_secs_f64() - self.flush) / if self.flush == 0.0 { 1.0 } else { 8.0 };
    }

    /// How many batches to wait for, and how long at most; `None` to go at once.
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

    /// How the wait ended.
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
