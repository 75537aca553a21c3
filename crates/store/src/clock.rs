//! The time by which things are over for good: the wall clock, but where it steps forward by itself, only once it has stayed there.
//!
//! A wall clock that is set wrong, or that a machine comes back with, says that the time of all publications and uploads has passed, and
//! what is removed then does not come back when the clock does. So the wall clock is held against the monotonic one, and at a start against the
//! newest time that the last run has believed. What it says beyond that counts once it has gone on from there steadily for a while.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use steadfast_flow::Env;

/// How far the wall clock may be from what is expected of it. Clocks that are adjusted in small steps stay within.
const TOLERANCE_MS: u64 = 60_000;

/// The same at a start, where nobody has measured the time since the last run.
const START_TOLERANCE_MS: u64 = 24 * 3600 * 1000;

/// What the wall clock said when.
#[derive(Debug, Clone, Copy)]
struct Mark {
    wall_ms: u64,
    /// Of the monotonic clock.
    at: Duration,
}

impl Mark {
    /// What the wall clock says at `now`, if it has gone on evenly.
    fn expected(&self, now: Duration) -> u64 {
        self.wall_ms.saturating_add(now.saturating_sub(self.at).as_millis() as u64)
    }

    fn fits(&self, now: Duration, wall_ms: u64) -> bool {
        self.expected(now).abs_diff(wall_ms) <= TOLERANCE_MS
    }
}

struct State {
    believed: Mark,
    /// Where the wall clock has stepped to.
    stepped: Option<Mark>,
}

/// See the module.
pub(crate) struct BelievedClock {
    env: Env,
    confirm: Duration,
    state: Mutex<State>,
    steps: AtomicU64,
}

/// What became of the wall clock, as far as expiry goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ClockStatus {
    /// How often the wall clock has stepped away from what the monotonic clock says, or from what was known at the start.
    pub steps: u64,
    /// How far the wall clock is ahead of the time by which things are over, in milliseconds; 0 while it is believed.
    pub ahead_ms: u64,
}

impl BelievedClock {
    /// With the newest time that is known from before, in milliseconds since the Unix epoch, 0 for none: then the wall clock is believed. A step counts
    /// after the wall clock has stayed there for as long as `confirm` says.
    pub(crate) fn new(env: Env, known_ms: u64, confirm: Duration) -> Self {
        let believed = Mark { wall_ms: env.wall_ms(), at: env.now() };
        let clock =
            Self { env, confirm, state: Mutex::new(State { believed, stepped: None }), steps: AtomicU64::new(0) };
        clock.known(known_ms);
        clock
    }

    /// What is known from before. At the start only.
    pub(crate) fn known(&self, known_ms: u64) {
        let (now, wall_ms) = (self.env.now(), self.env.wall_ms());
        let is_near =
            wall_ms.saturating_add(TOLERANCE_MS) >= known_ms && wall_ms <= known_ms.saturating_add(START_TOLERANCE_MS);
        if known_ms == 0 || is_near {
            return;
        }
        *self.state.lock() = State { believed: Mark { wall_ms: known_ms, at: now }, stepped: None };
        self.now_ms();
    }

    /// Now, for what is over: never later than the wall clock, and not later either than what is believed. Milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        let mut state = self.state.lock();
        let (now, wall_ms) = (self.env.now(), self.env.wall_ms());
        let mark = Mark { wall_ms, at: now };
        let expected = state.believed.expected(now);
        if state.believed.fits(now, wall_ms) {
            if state.stepped.take().is_some() {
                tracing::warn!("the wall clock is back where it was expected");
            }
            // It is followed as it drifts, but not step by step: that would be a way to go anywhere.
            if now.saturating_sub(state.believed.at) >= self.confirm.max(Duration::from_secs(600)) {
                state.believed = mark;
            }
            return wall_ms;
        }
        match state.stepped.filter(|stepped| stepped.fits(now, wall_ms)) {
            Some(stepped) if now.saturating_sub(stepped.at) >= self.confirm => {
                tracing::warn!(
                    wall_ms,
                    "the wall clock has stayed where it stepped to: what is over by it goes from now on"
                );
                *state = State { believed: mark, stepped: None };
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
                    "THE WALL CLOCK HAS STEPPED, or was set while nothing ran: what is over only by a step forward is kept until \
                     the clock has stayed there for that long. Check the time of this machine"
                );
                if self.confirm.is_zero() {
                    *state = State { believed: mark, stepped: None };
                    return wall_ms;
                }
                state.stepped = Some(mark);
            }
        }
        wall_ms.min(expected)
    }

    /// What the next start is to take as known.
    pub(crate) fn believed_ms(&self) -> u64 {
        self.now_ms();
        self.state.lock().believed.expected(self.env.now())
    }

    /// Counters.
    pub(crate) fn status(&self) -> ClockStatus {
        let ahead_ms = self.env.wall_ms().saturating_sub(self.now_ms());
        // What has passed between the two looks is nothing to tell of.
        let ahead_ms = if self.state.lock().stepped.is_some() { ahead_ms } else { 0 };
        ClockStatus { steps: self.steps.load(Ordering::Relaxed), ahead_ms }
    }
}

/// An environment whose clocks a test sets.
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
        assert_eq!(behind(&clocks, &clock), 40 * DAY, "time goes on meanwhile");
        clocks.pass(20);
        assert_eq!(behind(&clocks, &clock), 0);
        assert_eq!(clock.status(), ClockStatus { steps: 1, ahead_ms: 0 });
        // From there it goes on.
        clocks.pass(90 * 24 * HOUR);
        assert_eq!((behind(&clocks, &clock), clock.status().steps), (0, 1));
    }

    #[tokio::test]
    async fn a_clock_that_comes_back_has_done_nothing() {
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
        // One that steps all the time is never believed.
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
        // Drift is.
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
    async fn what_was_known_before_a_start_counts() {
        let clocks = Clocks::new();
        let wall_ms = clocks.env().wall_ms();
        // An hour, or a night, is how long nothing ran.
        let near = clock(&clocks, wall_ms - 20 * HOUR * 1000);
        assert_eq!((behind(&clocks, &near), near.status().steps), (0, 0));
        // Forty days may be true, too.
        let far = clock(&clocks, wall_ms - 40 * 24 * HOUR * 1000);
        assert_eq!((behind(&clocks, &far), far.status().steps), (40 * DAY, 1));
        assert!(far.believed_ms() < wall_ms - 39 * 24 * HOUR * 1000, "and a start later knows no more");
        // Back: nothing is over for it, and what is known stays.
        let back = clock(&clocks, wall_ms + 40 * 24 * HOUR * 1000);
        assert_eq!((behind(&clocks, &back), back.status().steps), (0, 1));
        assert!(back.believed_ms() > wall_ms + 39 * 24 * HOUR * 1000);
        clocks.pass(HOUR + 1);
        assert_eq!((behind(&clocks, &far), behind(&clocks, &back)), (0, 0));
        assert!(back.believed_ms().abs_diff(clocks.env().wall_ms()) < 5000);
    }
}
