//! The free share of a disk, cached so that a request does not examine all extents.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use steadfast_flow::Env;
use steadfast_log::{ExtentCounts, Log};

/// Time that a value stays valid, milliseconds.
const HOLDS_MS: u64 = 500;

/// The free share of a disk, as last computed.
pub(crate) struct Spare {
    /// Time of the next look, monotonic milliseconds.
    again_ms: AtomicU64,
    percent: AtomicU64,
}

impl Default for Spare {
    fn default() -> Self {
        Self { again_ms: AtomicU64::new(0), percent: AtomicU64::new(100) }
    }
}

impl Spare {
    /// The free share of the disk, in percent, at most half a second old.
    pub(crate) fn percent(&self, env: &Env, log: &Log) -> u8 {
        let now_ms = env.now_ms();
        let again_ms = self.again_ms.load(Relaxed);
        let mine =
            now_ms >= again_ms && self.again_ms.compare_exchange(again_ms, now_ms + HOLDS_MS, Relaxed, Relaxed).is_ok();
        if mine {
            self.percent.store(percent(&log.extents(), log.info().extent_bytes), Relaxed);
        }
        self.percent.load(Relaxed) as u8
    }
}

/// Dead bytes count as free: compaction frees them.
fn percent(extents: &ExtentCounts, extent_bytes: u64) -> u64 {
    let ExtentCounts { free, growable, open_commit, open_body, sealed_commit, sealed_body, .. } = extents;
    let all = free + growable + open_commit + open_body + sealed_commit + sealed_body;
    let all_bytes = u128::from(all) * u128::from(extent_bytes);
    let needed = extents.live_commit_bytes + extents.live_body_bytes;
    match (u128::from(needed) * 100).checked_div(all_bytes) {
        Some(needed) => 100u64.saturating_sub(needed as u64),
        None => 100,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_not_free_and_what_is_dead_is() {
        let extents = ExtentCounts {
            free: 1,
            growable: 5,
            sealed_commit: 3,
            open_body: 1,
            live_commit_bytes: 200,
            live_body_bytes: 50,
            ..ExtentCounts::default()
        };
        assert_eq!(percent(&extents, 100), 75);
        assert_eq!(percent(&ExtentCounts { growable: 0, free: 0, ..extents }, 50), 0, "more than there is");
        assert_eq!(percent(&ExtentCounts::default(), 100), 100);
    }
}
