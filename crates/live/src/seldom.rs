//! Lines of the log that anybody may cause: few of them, and how many there would have been.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// From one line to the next, milliseconds.
const PAUSE_MS: u64 = 10_000;

/// See the module. One for each kind of line, so that none hides another.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    /// When the next line may be written, monotonic milliseconds.
    next_ms: AtomicU64,
    left_out: AtomicU64,
}

impl Seldom {
    /// Whether a line may be written now, and how many were left out before it.
    pub(crate) fn may(&self, now_ms: u64) -> Option<u64> {
        let next_ms = self.next_ms.load(Relaxed);
        let mine =
            now_ms >= next_ms && self.next_ms.compare_exchange(next_ms, now_ms + PAUSE_MS, Relaxed, Relaxed).is_ok();
        if mine {
            return Some(self.left_out.swap(0, Relaxed));
        }
        self.left_out.fetch_add(1, Relaxed);
        None
    }
}

/// Those of a node.
#[derive(Debug, Default)]
pub(crate) struct SeldomLines {
    pub(crate) connection_token: Seldom,
    pub(crate) subscription_token: Seldom,
    pub(crate) origin: Seldom,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_a_while_tells_of_all() {
        let seldom = Seldom::default();
        assert_eq!([seldom.may(5), seldom.may(6), seldom.may(PAUSE_MS)], [Some(0), None, None]);
        assert_eq!([seldom.may(PAUSE_MS + 5), seldom.may(PAUSE_MS + 6)], [Some(2), None]);
    }
}
