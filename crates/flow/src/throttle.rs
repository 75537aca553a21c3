//! Bounds on what clients can write to the log: how often, and how long their names are.

use std::borrow::Cow;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::Env;

/// Passes one event per interval and counts the suppressed ones.
#[derive(Debug)]
pub struct Throttle {
    every: Duration,
    /// Milliseconds of the clock from which the next event may pass, plus one; 0 before the
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
        self.pass_at(env.now())
    }

    /// [`Throttle::pass`] by the clock of the machine, for code that has no [`Env`].
    pub fn pass_by_clock(&self) -> Option<u64> {
        #[allow(clippy::disallowed_methods, reason = "only lines of the log depend on it")]
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        self.pass_at(START.elapsed())
    }

    fn pass_at(&self, now: Duration) -> Option<u64> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let now = millis(now);
        let next = self.next.load(Relaxed);
        let after = now.saturating_add(millis(self.every)).saturating_add(1);
        if now.saturating_add(1) <= next || self.next.compare_exchange(next, after, Relaxed, Relaxed).is_err() {
            self.suppressed.fetch_add(1, Relaxed);
            return None;
        }
        Some(self.suppressed.swap(0, Relaxed))
    }
}

/// Logs a line that clients can cause, at most once in ten seconds for each place in the code. The
/// field `more` counts the lines left out since the last one. The arguments are a level and those
/// of the macro of `tracing`.
#[macro_export]
macro_rules! log_rarely {
    ($level:ident, $($line:tt)+) => {{
        static THROTTLE: $crate::Throttle = $crate::Throttle::new(std::time::Duration::from_secs(10));
        if let Some(more) = THROTTLE.pass_by_clock() {
            tracing::$level!(more, $($line)+);
        }
    }};
}

/// Most characters of a client's name in a log line.
const NAME_CHARS_MAX: usize = 64;

/// A name for a log line: one longer than 64 characters is cut and ends with an ellipsis.
pub fn shortened(name: &str) -> Cow<'_, str> {
    match name.char_indices().nth(NAME_CHARS_MAX) {
        None => Cow::Borrowed(name),
        Some((end, _)) => Cow::Owned(format!("{}…", &name[..end])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Clock;

    #[test]
    fn long_names_are_cut_between_characters() {
        let fits = "ü".repeat(64);
        assert_eq!(shortened(&fits), fits);
        assert_eq!(shortened(&(fits.clone() + "x")), fits + "…");
    }

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
