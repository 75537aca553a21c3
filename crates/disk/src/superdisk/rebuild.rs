//! Copies to the fast leg in the background: repairs first, then recently used regions, then the
//! rest.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::core::{Leg, SuperdiskShared, TrackedOp, tick};
use super::heal::Heals;
use super::intents::Rounds;
use super::map::Pick;
use super::pair::FAST_START;
use super::revive::Revival;
use crate::Disk;

/// Bytes per copy.
const PIECE: u64 = 1 << 20;
/// Time before a range that could not be copied is tried again, in milliseconds.
const PUT_OFF_MS: u64 = 5_000;
/// Step by which the fast leg of a growing pair grows, in bytes.
const GROW_STEP: u64 = 64 << 20;

/// Maximum time of one such step.
const GROW_LIMIT: Duration = Duration::from_secs(60);

/// Measures the current copying rate.
struct Speed {
    since: Duration,
    bytes: u64,
}

/// Copies regions to the fast leg of a pair.
#[derive(Clone, Copy)]
pub(crate) struct Copier<'a>(pub(crate) &'a Arc<SuperdiskShared>);

impl Copier<'_> {
    /// The copying task.
    pub(crate) async fn copy_in_background(self) {
        let mut speed = Speed { since: self.0.env.now(), bytes: 0 };
        while !self.0.is_closing() {
            let wait = match self.0.fast_up() {
                Some(fast) => self.copy_next(&fast, &mut speed).await,
                None => {
                    let fresh = !matches!(self.0.state.lock().leg, Leg::Failed(_));
                    // Either out of use for good, or probed again after a while.
                    if fresh { None } else { Revival(self.0).probe_again().await }
                }
            };
            match wait {
                Some(wait) if wait.is_zero() => {}
                Some(wait) => {
                    self.0.env.timeout(wait, self.0.copier_wake.notified()).await;
                }
                None => self.0.copier_wake.notified().await,
            }
        }
    }

    /// Does one step and returns the time to wait before the next; `None` to wait for work.
    async fn copy_next(self, fast: &Arc<dyn Disk>, speed: &mut Speed) -> Option<Duration> {
        if Heals(self.0).heal_next(fast).await {
            return Some(Duration::ZERO);
        }
        if let Some(wait) = self.grow_fast(fast).await {
            return Some(wait);
        }
        let now = self.0.now_ms();
        let pick = {
            let mut state = self.0.state.lock();
            // After a failed flush the durable leg is no longer a source of copies.
            let latched = state.intent.is_latched();
            let pick = if latched { Pick::Idle } else { state.map.pick(now, PIECE) };
            if pick == Pick::Idle {
                state.copier_idle = state.heals.is_empty();
                if state.stale && !latched {
                    tracing::info!("the fast leg is complete again");
                    state.stale = false;
                }
            }
            pick
        };
        match pick {
            Pick::Copy { op, offset, len } => {
                let op = TrackedOp::new(self.0, op, offset, len);
                match self.copy(fast, &op, offset, len).await {
                    Ok(()) => {
                        self.0.counters.rebuilt_bytes.fetch_add(len, Relaxed);
                        self.measure(speed, len);
                    }
                    Err(error) => {
                        tracing::debug!(offset, len, %error, "a range could not be copied to the fast leg");
                        self.0.state.lock().map.put_off(offset, len, self.0.now_ms() + PUT_OFF_MS);
                    }
                }
                // The rate limit applies afterwards: a range that waited while in progress would
                // block writes to the fast leg.
                drop(op);
                self.0.pace.spend(len).await;
                Some(Duration::ZERO)
            }
            Pick::Again => Some(Duration::ZERO),
            Pick::Later(at) => Some(Duration::from_millis(at.saturating_sub(now).max(1))),
            Pick::Idle => {
                self.0.counters.rebuild_bytes_s.store(0, Relaxed);
                *speed = Speed { since: self.0.env.now(), bytes: 0 };
                let heals = !self.0.state.lock().heals.is_empty();
                heals.then_some(Duration::ZERO)
            }
        }
    }

    fn measure(self, speed: &mut Speed, len: u64) {
        speed.bytes += len;
        let took = self.0.env.now().saturating_sub(speed.since).as_secs_f64();
        if took >= 1.0 {
            self.0.counters.rebuild_bytes_s.store((speed.bytes as f64 / took) as u64, Relaxed);
            *speed = Speed { since: self.0.env.now(), bytes: 0 };
        }
    }

    async fn copy(self, fast: &Arc<dyn Disk>, op: &Arc<TrackedOp>, offset: u64, len: u64) -> io::Result<()> {
        let failed = self.0.state.lock().intent.failed_rounds();
        Rounds(self.0).bits_set(offset, len, failed).await?;
        let bytes = match self.0.durable.read(offset, len as usize).await {
            Ok(bytes) => bytes,
            Err(error) => {
                tick(&self.0.counters.durable_errors);
                return Err(error);
            }
        };
        assert_eq!(bytes.len() as u64, len, "a copy of another length");
        let written = self.0.write_fast(fast, offset, bytes, op).await;
        match &written {
            Ok(()) => op.good(),
            Err(error) => drop(Heals(self.0).is_gone(fast, error).await),
        }
        written
    }

    /// Grows a growable fast leg to the length of the durable one. Returns the time to wait after
    /// it grew or failed to; `None` when it need not grow.
    async fn grow_fast(self, fast: &Arc<dyn Disk>) -> Option<Duration> {
        let geometry = fast.geometry();
        let wanted = FAST_START.saturating_add(self.0.durable.len()).min(geometry.capacity_bytes);
        if !geometry.growable || fast.len() >= wanted || self.0.state.lock().fast_full {
            self.resize();
            return None;
        }
        let end = wanted.min(fast.len().saturating_add(GROW_STEP));
        // The work continues after the timeout.
        let grown = match self.0.env.timeout(GROW_LIMIT, fast.reserve(end)).await {
            Some(grown) => grown,
            None => {
                self.0.fail_fast(format!("it has not grown within {} s", GROW_LIMIT.as_secs()));
                return Some(Duration::ZERO);
            }
        };
        match grown {
            Ok(()) => {
                self.resize();
                Some(Duration::ZERO)
            }
            Err(error) => {
                tracing::warn!(disk = fast.describe(), %error, "the fast leg cannot grow: it holds only a part of the pool");
                self.0.state.lock().fast_full = true;
                Some(Duration::ZERO)
            }
        }
    }

    pub(crate) fn resize(self) {
        let (len, limit) = (self.0.durable.len(), self.0.fast_limit());
        self.0.state.lock().map.resize(len, limit);
    }
}
