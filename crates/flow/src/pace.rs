//! A bound on bytes per second, for background work that must yield to requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::Env;

struct PaceShared {
    bytes_s: AtomicU64,
    burst: Duration,
    /// When the bytes booked so far are paid for, at the rates of their booking.
    paid_until: Mutex<Duration>,
    /// Wakes all waiters when the bound is removed.
    unbounded: Notify,
    env: Env,
}

/// A rate limit in bytes per second, which may change at any time. Clones share it.
///
/// The algorithm is the generic cell rate algorithm: one instant instead of a bucket and a timer
/// that fills it.
#[derive(Clone)]
pub struct Pace(Arc<PaceShared>);

impl Pace {
    /// Creates a limit of `bytes_s` (0: no bound). Idle time is made up for up to `burst`.
    pub fn new(bytes_s: u64, burst: Duration, env: Env) -> Self {
        let paid_until = Mutex::new(env.now());
        Self(Arc::new(PaceShared {
            bytes_s: AtomicU64::new(bytes_s),
            burst,
            paid_until,
            unbounded: Notify::new(),
            env,
        }))
    }

    /// Changes the rate from the next [`Pace::spend`] on. 0 removes the bound and also ends the
    /// current waits.
    pub fn set(&self, bytes_s: u64) {
        if self.0.bytes_s.swap(bytes_s, Relaxed) != 0 && bytes_s == 0 {
            *self.0.paid_until.lock() = self.0.env.now();
            self.0.unbounded.notify_waiters();
        }
    }

    /// The rate in bytes per second; 0 for no bound.
    pub fn bytes_s(&self) -> u64 {
        self.0.bytes_s.load(Relaxed)
    }

    /// Books `bytes` and waits until the rate allows them. Call it before the work. A dropped
    /// future has booked its bytes all the same.
    pub async fn spend(&self, bytes: u64) {
        // Registers for the notification before booking, so that a bound removed in between is not
        // missed.
        let unbounded = self.0.unbounded.notified();
        let wait = self.book(bytes);
        if !wait.is_zero() {
            tokio::select! {
                biased;
                () = self.0.env.sleep(wait) => {}
                () = unbounded => {}
            }
        }
    }

    fn book(&self, bytes: u64) -> Duration {
        let bytes_s = self.bytes_s();
        if bytes_s == 0 {
            return Duration::ZERO;
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_s);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let now = self.0.env.now();
        let mut paid_until = self.0.paid_until.lock();
        let turn = (*paid_until).max(now.saturating_sub(self.0.burst));
        *paid_until = turn.saturating_add(cost);
        turn.saturating_sub(now)
    }
}

impl std::fmt::Debug for Pace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pace({} bytes/s)", self.bytes_s())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Clock, Held};

    fn pace(bytes_s: u64, burst_ms: u64) -> (Pace, Clock) {
        let clock = Clock::default();
        clock.advance(Duration::from_secs(10));
        (Pace::new(bytes_s, Duration::from_millis(burst_ms), clock.env()), clock)
    }

    #[test]
    fn keeps_the_rate_over_time() {
        let (pace, clock) = pace(1000, 0);
        let mut waited = Duration::ZERO;
        for _ in 0..20 {
            let wait = pace.book(250);
            waited += wait;
            clock.advance(wait);
        }
        // The first booking passes at once; each later one waits for the cost of the one before it.
        assert_eq!(waited, Duration::from_millis(19 * 250));
    }

    #[test]
    fn idle_time_is_made_up_for_only_up_to_the_burst() {
        let (pace, clock) = pace(1000, 500);
        clock.advance(Duration::from_secs(60));
        let waits: Vec<_> = (0..4).map(|_| pace.book(250).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 250]);
    }

    #[test]
    fn a_new_rate_holds_from_the_next_booking_and_zero_is_no_bound() {
        let (pace, _) = pace(1000, 0);
        assert_eq!(pace.book(1000), Duration::ZERO);
        pace.set(2000);
        assert_eq!(pace.book(1000), Duration::from_secs(1));
        assert_eq!(pace.book(1000), Duration::from_millis(1500));
        pace.set(0);
        assert_eq!(pace.book(u64::MAX), Duration::ZERO);
    }

    #[test]
    fn spending_waits_for_the_clock() {
        let (pace, clock) = pace(1000, 0);
        let mut first = Held::new({
            let pace = pace.clone();
            async move { pace.spend(1000).await }
        });
        assert!(first.poll().is_some());
        let mut second = Held::new(async move { pace.spend(1).await });
        assert!(second.poll().is_none());
        clock.advance(Duration::from_secs(1));
        assert!(second.poll().is_some());
    }

    #[test]
    fn removing_the_bound_wakes_waiters() {
        let (pace, _) = pace(1, 0);
        assert_eq!(pace.book(3600), Duration::ZERO);
        let mut waiting = Held::new({
            let pace = pace.clone();
            async move { pace.spend(1).await }
        });
        assert!(waiting.poll().is_none());
        pace.set(2);
        assert!(waiting.poll().is_none());
        pace.set(0);
        assert!(waiting.poll().is_some());
        // Bytes booked at the old rate delay nothing at a new one.
        pace.set(1);
        assert_eq!(pace.book(1), Duration::ZERO);
    }
}
