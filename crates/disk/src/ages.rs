//! How long requests have been in flight.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use parking_lot::Mutex;

/// The start times of the requests in flight, or of callers that wait.
#[derive(Default)]
pub(crate) struct Ages {
    next: AtomicU64,
    /// Start times in order of submission.
    begun: Mutex<BTreeMap<u64, Instant>>,
}

impl Ages {
    /// Records the start of a request and returns its number.
    pub(crate) fn begin(&self) -> u64 {
        let mut begun = self.begun.lock();
        let number = self.next.fetch_add(1, Relaxed);
        begun.insert(number, now());
        number
    }

    /// Records the end of a request and returns its start time.
    pub(crate) fn end(&self, number: u64) -> Option<Instant> {
        self.begun.lock().remove(&number)
    }

    /// Age of the oldest request in milliseconds; 0 when there is none.
    pub(crate) fn oldest_ms(&self) -> u64 {
        let oldest = self.begun.lock().first_key_value().map(|(_, begun)| begun.elapsed());
        oldest.map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
    }
}

/// The time, for latencies of the device.
#[allow(clippy::disallowed_methods, reason = "below the seam: it counts for figures only")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_age_of_the_oldest_request_is_reported() {
        let ages = Ages::default();
        assert_eq!(ages.oldest_ms(), 0);
        let (first, second) = (ages.begin(), ages.begin());
        ages.begun.lock().insert(first, now().checked_sub(Duration::from_secs(7)).expect("later than the epoch"));
        assert!((7_000..60_000).contains(&ages.oldest_ms()));
        ages.end(first);
        assert!(ages.oldest_ms() < 5_000);
        ages.end(second);
        assert_eq!(ages.oldest_ms(), 0);
    }
}
