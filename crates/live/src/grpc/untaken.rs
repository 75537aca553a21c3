//! Answers that a connection's client has not taken yet. HTTP/2 lets a client refuse data for as long as it likes, while its connection
//! is as well as ever: what such answers hold of memory must be back some time.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::KeyedPermit;

/// Entries after which those of answers that have been taken are removed.
const SWEEP_FROM: usize = 256;

/// What an answer holds of memory.
type Rooms = [Arc<KeyedPermit>];

/// The answers of one connection, in the order in which they were given.
#[derive(Debug, Default)]
pub(super) struct Untaken(Mutex<Vec<(Duration, Weak<Rooms>)>>);

impl Untaken {
    /// An answer is given to the connection now.
    pub(super) fn add(&self, now: Duration, rooms: &Arc<Rooms>) {
        let mut answers = self.0.lock();
        if answers.len() >= SWEEP_FROM {
            answers.retain(|(_, rooms)| rooms.strong_count() > 0);
        }
        answers.push((now, Arc::downgrade(rooms)));
    }

    /// Whether one that was given before `then` has not been taken.
    pub(super) fn any_before(&self, then: Duration) -> bool {
        let mut answers = self.0.lock();
        answers.retain(|(_, rooms)| rooms.strong_count() > 0);
        answers.first().is_some_and(|(given, _)| *given < then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_that_is_not_taken_counts() {
        let (untaken, second) = (Untaken::default(), Duration::from_secs);
        let answer = |at| {
            let rooms: Arc<Rooms> = Arc::from(Vec::new());
            untaken.add(second(at), &rooms);
            rooms
        };
        let (first, other) = (answer(1), answer(2));
        assert!(!untaken.any_before(second(1)) && untaken.any_before(second(2)));
        drop(first);
        assert!(!untaken.any_before(second(2)) && untaken.any_before(second(3)));
        drop(other);
        assert!(!untaken.any_before(second(1000)));
        for at in 3..10_000 {
            drop(answer(at));
        }
        assert!(untaken.0.lock().len() <= SWEEP_FROM, "what has been taken is forgotten");
    }
}
