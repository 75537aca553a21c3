//! The minimum rate of a peer.

use std::time::Duration;

/// Time that the server still waits for a peer. Each byte that the peer moves earns it time at a
/// minimum rate. A peer that moves a byte now and then is therefore ended like one that stalls.
/// Time in which the server does not wait for the peer does not count.
#[derive(Debug)]
pub struct Patience {
    limit: Duration,
    bytes_s: u64,
    spent: Duration,
    since: Option<Duration>,
}

impl Patience {
    /// Creates the allowance of a peer that may be `limit` behind `bytes_s` bytes per second. With
    /// a rate of 0 the peer must only move a byte within `limit`.
    pub fn new(limit: Duration, bytes_s: u64) -> Self {
        Self { limit, bytes_s, spent: Duration::ZERO, since: None }
    }

    /// Marks that the server waits for the peer. Returns how much longer it may wait; zero when the
    /// peer is too slow.
    pub fn waits(&mut self, now: Duration) -> Duration {
        self.since.get_or_insert(now);
        self.limit.saturating_sub(self.spent(now))
    }

    /// Marks that the peer has moved `bytes`.
    pub fn moved(&mut self, now: Duration, bytes: u64) {
        self.spent = self.spent(now);
        self.since = None;
        if bytes > 0 {
            let earned = match self.bytes_s {
                0 => self.limit,
                rate => Duration::from_secs_f64(bytes as f64 / rate as f64),
            };
            self.spent = self.spent.saturating_sub(earned);
        }
    }

    /// Time that the server has waited beyond what the peer has earned.
    fn spent(&self, now: Duration) -> Duration {
        self.spent + self.since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// Whether the peer has the whole limit, so that further bytes earn nothing.
    pub fn is_whole(&self) -> bool {
        self.spent.is_zero() && self.since.is_none()
    }

    /// Restores the whole limit.
    pub fn renew(&mut self) {
        self.spent = Duration::ZERO;
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_byte_now_and_then_does_not_renew_patience() {
        let mut patience = Patience::new(seconds(30), 1000);
        let mut now = seconds(0);
        for _ in 0..2 {
            assert!(patience.waits(now) > seconds(1));
            now += seconds(14);
            patience.moved(now, 1);
        }
        assert!(patience.waits(now) < seconds(3));
        patience.moved(now, 5000);
        assert!(patience.waits(now) > seconds(6), "what it moves earns time");
        patience.moved(now, 1 << 40);
        assert_eq!(patience.waits(now), seconds(30), "but not more than there is at first");
        // Without a rate, any byte restores the limit.
        let mut patience = Patience::new(seconds(30), 0);
        assert!(patience.is_whole());
        patience.waits(seconds(0));
        assert!(!patience.is_whole());
        patience.moved(seconds(29), 1);
        assert!(patience.is_whole());
        assert_eq!(patience.waits(seconds(29)), seconds(30));
    }
}
