//! A throttle for log lines that could otherwise occur once per request or connection.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::Env;

/// Passes one event per interval and counts the suppressed ones.
#[derive(Debug)]
pub struct Throttle {
    every: Duration,
    /// Milliseconds of [`Env::now`] from which the next event may pass, plus one; 0 before the
    /// first.
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl Throttle {
    /// Creates a throttle that passes at most one event per `every`.
    pub const fn new(every: Duration) -> Self {
        Self { every, next: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// Returns the number of events suppressed since the last one that passed, if this event
    /// passes.
    pub fn pass(&self, env: &Env) -> Option<u64> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let now = millis(env.now());
        let next = self.next.load(Relaxed);
        let after = now.saturating_add(millis(self.every)).saturating_add(1);
        if now.saturating_add(1) <= next || self.next.compare_exchange(next, after, Relaxed, Relaxed).is_err() {
            self.suppressed.fetch_add(1, Relaxed);
            return None;
        }
        Some(self.suppressed.swap(0, Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Clock;

    #[test]
    fn one_passes_in_an_interval_and_the_rest_is_counted() {
        let clock = Clock::default();
        let (env, throttle) = (clock.env(), Throttle::new(Duration::from_secs(10)));
        assert_eq!(throttle.pass(&env), Some(0));
        assert_eq!((throttle.pass(&env), throttle.pass(&env)), (None, None));
        clock.advance(Duration::from_secs(11));
        assert_eq!(throttle.pass(&env), Some(2));
        assert_eq!(throttle.pass(&env), None);
    }
}
