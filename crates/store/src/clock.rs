//! The time that decides expiry: the wall clock, but a forward step counts only after the clock has
//! stayed there.
//!
//! A wall clock that is set wrong would expire all publications and uploads, and correcting the
//! clock does not restore them. So this module compares the wall clock with the monotonic clock,
//! and at a start with the newest time that the last run believed. A later time counts only after
//! the clock has run on steadily from it for a while.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use steadfast_flow::Env;

/// Allowed distance of the wall clock from the expected time. Clocks that are slewed in small steps
/// stay within it.
const TOLERANCE_MS: u64 = 60_000;

/// The same at a start: the time since the last run was not measured.
const START_TOLERANCE_MS: u64 = 24 * 3600 * 1000;

/// A wall-clock reading with its monotonic time.
#[derive(Debug, Clone, Copy)]
struct Mark {
    wall_ms: u64,
    /// Reading of the monotonic clock.
    at: Duration,
}

impl Mark {
    /// The wall clock's expected time at `now`.
    fn expected(&self, now: Duration) -> u64 {
        self.wall_ms.saturating_add(now.saturating_sub(self.at).as_millis() as u64)
    }

    fn fits(&self, now: Duration, wall_ms: u64) -> bool {
        self.expected(now).abs_diff(wall_ms) <= TOLERANCE_MS
    }
}

struct ClockState {
    believed: Mark,
    /// The wall clock after an unconfirmed step.
    stepped: Option<Mark>,
}

/// The wall-clock time that the store believes.
pub(crate) struct BelievedClock {
    env: Env,
    confirm: Duration,
    /// Whether the clock stands at 0, so that nothing expires.
    stands: bool,
    state: Mutex<ClockState>,
    steps: AtomicU64,
}

/// State of the wall clock as used for expiry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ClockStatus {
    /// Number of times the wall clock differed from the monotonic clock, or from the time known at
    /// the start.
    pub steps: u64,
    /// How far the wall clock is ahead of the time used for expiry, in milliseconds; 0 while it is
    /// believed.
    pub ahead_ms: u64,
}

impl BelievedClock {
    /// Creates the clock with the newest time known from the last run, in milliseconds since the
    /// Unix epoch. With 0 it believes the wall clock. A step counts after the wall clock has stayed
    /// there for `confirm`.
    pub(crate) fn new(env: Env, known_ms: u64, confirm: Duration) -> Self {
        let believed = Mark { wall_ms: env.wall_ms(), at: env.now() };
        let state = Mutex::new(ClockState { believed, stepped: None });
        let clock = Self { env, confirm, stands: false, state, steps: AtomicU64::new(0) };
        clock.known(known_ms);
        clock
    }

    /// The same, standing at 0 if so: nothing expires.
    pub(crate) fn standing(self, stands: bool) -> Self {
        Self { stands, ..self }
    }

    /// Sets the time known from the last run. Only at the start.
    pub(crate) fn known(&self, known_ms: u64) {
        let (now, wall_ms) = (self.env.now(), self.env.wall_ms());
        let is_near =
            wall_ms.saturating_add(TOLERANCE_MS) >= known_ms && wall_ms <= known_ms.saturating_add(START_TOLERANCE_MS);
        if known_ms == 0 || is_near {
            return;
        }
        *self.state.lock() = ClockState { believed: Mark { wall_ms: known_ms, at: now }, stepped: None };
        self.now_ms();
    }

    /// Current time for expiry, milliseconds since the Unix epoch. Never later than the wall clock
    /// or the believed time.
    pub(crate) fn now_ms(&self) -> u64 {
        if self.stands {
            return 0;
        }
        let mut state = self.state.lock();
        let (now, wall_ms) = (self.env.now(), self.env.wall_ms());
        let mark = Mark { wall_ms, at: now };
        let expected = state.believed.expected(now);
        if state.believed.fits(now, wall_ms) {
            if state.stepped.take().is_some() {
                tracing::warn!("the wall clock is back at the expected time");
            }
            // The clock follows drift, but adjusts at most once per `confirm` (at least 600 s):
            // otherwise many small steps could lead anywhere.
            if now.saturating_sub(state.believed.at) >= self.confirm.max(Duration::from_secs(600)) {
                state.believed = mark;
            }
            return wall_ms;
        }
        match state.stepped.filter(|stepped| stepped.fits(now, wall_ms)) {
            Some(stepped) if now.saturating_sub(stepped.at) >= self.confirm => {
                tracing::warn!(
                    wall_ms,
                    "the wall clock has stayed where it stepped to: data that expired by it is removed from now on"
                );
                *state = ClockState { believed: mark, stepped: None };
                return wall_ms;
            }
            Some(_) => {}
            None => {
                self.steps.fetch_add(1, Ordering::Relaxed);
                let (ahead, by) = (wall_ms > expected, Duration::from_millis(wall_ms.abs_diff(expected)));
                tracing::warn!(
                    wall_ms,
                    by_s = by.as_secs(),
                    forward = ahead,
                    confirm_s = self.confirm.as_secs(),
                    "THE WALL CLOCK HAS STEPPED, or was set while the server was stopped: data that expired only \
                     by a step forward is kept until the clock has stayed there for `confirm_s` seconds. Check the \
                     time of this machine"
                );
                if self.confirm.is_zero() {
                    *state = ClockState { believed: mark, stepped: None };
                    return wall_ms;
                }
                state.stepped = Some(mark);
            }
        }
        wall_ms.min(expected)
    }

    /// The time to persist for the next start.
    pub(crate) fn believed_ms(&self) -> u64 {
        self.now_ms();
        self.state.lock().believed.expected(self.env.now())
    }

    /// Counters.
    pub(crate) fn status(&self) -> ClockStatus {
        if self.stands {
            return ClockStatus::default();
        }
        let ahead_ms = self.env.wall_ms().saturating_sub(self.now_ms());
        // The time between the two readings does not count as ahead.
        let ahead_ms = if self.state.lock().stepped.is_some() { ahead_ms } else { 0 };
        ClockStatus { steps: self.steps.load(Ordering::Relaxed), ahead_ms }
    }
}

/// An environment with clocks that a test sets.
#[cfg(test)]
pub(crate) mod testing {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
    use std::time::Duration;

    use steadfast_flow::{BoxFuture, Env, Runtime, TokioRuntime};

    /// Tokio's environment, with clocks that are ahead of the real ones.
    #[derive(Clone)]
    pub(crate) struct Clocks {
        tokio: Arc<TokioRuntime>,
        /// Seconds.
        wall: Arc<AtomicI64>,
        monotonic: Arc<AtomicU64>,
    }

    impl Clocks {
        pub(crate) fn new() -> Self {
            Self { tokio: Arc::new(TokioRuntime::current()), wall: Arc::default(), monotonic: Arc::default() }
        }

        pub(crate) fn env(&self) -> Env {
            Env::new(self.clone())
        }

        /// The wall clock is set.
        pub(crate) fn step(&self, seconds: i64) {
            self.wall.fetch_add(seconds, Ordering::SeqCst);
        }

        /// Time passes.
        pub(crate) fn pass(&self, seconds: u64) {
            self.wall.fetch_add(seconds.cast_signed(), Ordering::SeqCst);
            self.monotonic.fetch_add(seconds, Ordering::SeqCst);
        }
    }

    impl Runtime for Clocks {
        fn now(&self) -> Duration {
            self.tokio.now() + Duration::from_secs(self.monotonic.load(Ordering::SeqCst))
        }

        fn wall_ms(&self) -> u64 {
            self.tokio.wall_ms().saturating_add_signed(self.wall.load(Ordering::SeqCst) * 1000)
        }

        fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
            self.tokio.sleep(duration)
        }

        fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
            self.tokio.spawn(name, task);
        }

        fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
            self.tokio.blocking(work)
        }

        fn random_u64(&self) -> u64 {
            self.tokio.random_u64()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Clocks;
    use super::*;

    const HOUR: u64 = 3600;
    const DAY: i64 = 24 * 3600;

    fn clock(clocks: &Clocks, known_ms: u64) -> BelievedClock {
        BelievedClock::new(clocks.env(), known_ms, Duration::from_secs(HOUR))
    }

    /// How far the clock is behind the wall clock, in whole seconds.
    fn behind(clocks: &Clocks, clock: &BelievedClock) -> i64 {
        (clocks.env().wall_ms().cast_signed() - clock.now_ms().cast_signed() + 500) / 1000
    }

    #[tokio::test]
    async fn a_step_forward_counts_once_it_has_stayed() {
        let clocks = Clocks::new();
        let clock = clock(&clocks, 0);
        clocks.pass(HOUR);
        assert_eq!((behind(&clocks, &clock), clock.status()), (0, ClockStatus::default()));
        clocks.step(40 * DAY);
        assert_eq!(behind(&clocks, &clock), 40 * DAY);
        assert_eq!(clock.status().steps, 1);
        assert!(clock.status().ahead_ms >= 40 * 24 * 3_600_000 - 1000);
        clocks.pass(HOUR - 10);
        assert_eq!(behind(&clocks, &clock), 40 * DAY, "time runs on meanwhile");
        clocks.pass(20);
        assert_eq!(behind(&clocks, &clock), 0);
        assert_eq!(clock.status(), ClockStatus { steps: 1, ahead_ms: 0 });
        // The stepped clock runs on from there.
        clocks.pass(90 * 24 * HOUR);
        assert_eq!((behind(&clocks, &clock), clock.status().steps), (0, 1));
    }

    #[tokio::test]
    async fn a_step_that_is_undone_expires_nothing() {
        let clocks = Clocks::new();
        let clock = clock(&clocks, 0);
        for by in [40 * DAY, -40 * DAY] {
            clocks.step(by);
            let before = clock.now_ms();
            clocks.pass(HOUR / 2);
            let passed = clock.now_ms() - before;
            assert!(passed.abs_diff(HOUR * 500) < 5000, "{passed}");
            clocks.step(-by);
            assert_eq!((behind(&clocks, &clock), clock.status().ahead_ms), (0, 0), "at once");
        }
        // A clock that steps all the time is never believed.
        for _ in 0..9 {
            clocks.step(DAY);
            clocks.pass(HOUR - 10);
            assert!(behind(&clocks, &clock) >= DAY);
        }
        assert_eq!(clock.status().steps, 11);
    }

    #[tokio::test]
    async fn many_small_steps_are_not_a_way_around() {
        let clocks = Clocks::new();
        let clock = clock(&clocks, 0);
        for _ in 0..100 {
            clocks.step(50);
            clock.now_ms();
        }
        assert_eq!(behind(&clocks, &clock), 5000);
        // Drift is believed.
        let clocks = Clocks::new();
        let clock = self::clock(&clocks, 0);
        for _ in 0..1000 {
            clocks.pass(HOUR);
            clocks.step(2);
            assert_eq!(behind(&clocks, &clock), 0);
        }
        assert_eq!(clock.status().steps, 0);
    }

    #[tokio::test]
    async fn the_persisted_time_counts_after_a_start() {
        let clocks = Clocks::new();
        let wall_ms = clocks.env().wall_ms();
        // The store was stopped for an hour or a night.
        let near = clock(&clocks, wall_ms - 20 * HOUR * 1000);
        assert_eq!((behind(&clocks, &near), near.status().steps), (0, 0));
        // Forty days may be real, too.
        let far = clock(&clocks, wall_ms - 40 * 24 * HOUR * 1000);
        assert_eq!((behind(&clocks, &far), far.status().steps), (40 * DAY, 1));
        assert!(far.believed_ms() < wall_ms - 39 * 24 * HOUR * 1000, "and a start later knows no more");
        // The clock is back: nothing expires, and the known time stays.
        let back = clock(&clocks, wall_ms + 40 * 24 * HOUR * 1000);
        assert_eq!((behind(&clocks, &back), back.status().steps), (0, 1));
        assert!(back.believed_ms() > wall_ms + 39 * 24 * HOUR * 1000);
        clocks.pass(HOUR + 1);
        assert_eq!((behind(&clocks, &far), behind(&clocks, &back)), (0, 0));
        assert!(back.believed_ms().abs_diff(clocks.env().wall_ms()) < 5000);
    }
}
