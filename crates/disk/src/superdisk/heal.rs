//! Repairs: a range that one leg cannot read, or returns wrongly, is rewritten from the other leg
//! and read back.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::core::{Leg, SuperdiskShared, TrackedOp, tick};
use super::intents::Rounds;
use super::pair;
use crate::Disk;

/// Maximum number of queued repairs; further ranges are copied with their regions instead.
const HEALS_MAX: usize = 1024;
/// Bytes per repair step.
const PIECE: u64 = 1 << 20;
/// Time before a range that the durable leg cannot read is tried again, in milliseconds.
const UNREADABLE_MS: u64 = 60_000;

/// Interval at which a repair checks whether overlapping operations have ended.
pub(crate) const HEAL_RETRY: Duration = Duration::from_millis(5);

/// A range of the fast leg that is queued for repair.
pub(crate) struct Heal {
    op: Arc<TrackedOp>,
    offset: u64,
    len: u64,
}

enum Outcome {
    Healed,
    /// The fast leg cannot be repaired there.
    Fast(io::Error),
    /// The durable leg cannot read the range either.
    Durable(io::Error),
    /// An overlapping operation began meanwhile.
    Overtaken,
}

fn differs() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the written bytes read back differently")
}

/// Repairs ranges of the legs of a pair.
#[derive(Clone, Copy)]
pub(crate) struct Heals<'a>(pub(crate) &'a Arc<SuperdiskShared>);

impl Heals<'_> {
    /// Queues the repair of a range that the fast leg could not read.
    pub(crate) fn heal_later(self, offset: u64, len: usize) {
        let len = len as u64;
        let mut state = self.0.state.lock();
        if state.leg != Leg::Up {
            return;
        }
        if state.map.failed(offset, len, self.0.options.quarantine_failures) {
            self.log_quarantine(offset, len);
        }
        let begun = if state.heals.len() < HEALS_MAX { state.map.begin_heal(offset, len) } else { None };
        match begun {
            Some(id) => state.heals.push_back(Heal { op: TrackedOp::new(self.0, id, offset, len), offset, len }),
            // The range is copied once overlapping operations have ended.
            None => state.map.forget(offset, len),
        }
        self.0.wake(&mut state);
    }

    fn log_quarantine(self, offset: u64, len: u64) {
        let disk = self.0.fast.as_ref().map(|fast| fast.describe());
        tracing::warn!(disk, offset, len, "the fast leg fails there repeatedly: its region is quarantined");
    }

    /// Repairs the next queued range; `false` when there is none.
    pub(crate) async fn heal_next(self, fast: &Arc<dyn Disk>) -> bool {
        let Some(Heal { op, offset, len }) = self.0.state.lock().heals.pop_front() else { return false };
        match self.heal_fast(fast, &op, offset, len).await {
            Outcome::Healed => {
                op.good();
                self.0.state.lock().map.healed(offset, len);
                tick(&self.0.counters.healed_fast);
            }
            Outcome::Fast(error) => self.heal_failed(fast, offset, len, &error).await,
            // The range is copied once the overlapping write has settled.
            Outcome::Overtaken => {}
            Outcome::Durable(error) => {
                tracing::warn!(offset, len, %error, "neither leg can read a range");
                tick(&self.0.counters.durable_errors);
                tick(&self.0.counters.heal_failures);
                self.0.state.lock().map.put_off(offset, len, self.0.now_ms() + UNREADABLE_MS);
            }
        }
        drop(op);
        self.0.pace.spend(len).await;
        true
    }

    async fn heal_failed(self, fast: &Arc<dyn Disk>, offset: u64, len: u64, error: &io::Error) {
        tracing::debug!(offset, len, %error, "a range of the fast leg could not be repaired");
        tick(&self.0.counters.heal_failures);
        if self.is_gone(fast, error).await {
            return;
        }
        let now = self.0.now_ms();
        if self.0.state.lock().map.heal_failed(offset, len, self.0.options.quarantine_failures, now) {
            self.log_quarantine(offset, len);
        }
    }

    /// Whether the whole fast leg has failed, and not only the place of `error`. A failed leg does
    /// not keep its own labels either, or a device of it does not answer. Without this check, a
    /// vanished leg that gets few requests would lose its regions to quarantine one by one.
    pub(crate) async fn is_gone(self, fast: &Arc<dyn Disk>, error: &io::Error) -> bool {
        // The label is read under the lock of its writers: an older event must not replace a newer
        // one.
        let Some(one) = Rounds(self.0).label_lock().await else { return true };
        let label = {
            let state = self.0.state.lock();
            if state.leg != Leg::Up {
                return true;
            }
            state.identity.of_fast()
        };
        let fast = fast.clone();
        let work = async move {
            let kept = label.is_kept(&fast).await;
            drop(one);
            kept
        };
        let gone = !matches!(self.0.on_fast("its label", work).await, Ok(true));
        if gone {
            self.0.fail_fast(error.to_string());
        }
        gone
    }

    /// Rewrites a range of the fast leg from the durable one.
    async fn heal_fast(self, fast: &Arc<dyn Disk>, op: &Arc<TrackedOp>, offset: u64, len: u64) -> Outcome {
        let failed = self.0.state.lock().intent.failed_rounds();
        if let Err(error) = Rounds(self.0).bits_set(offset, len, failed).await {
            return Outcome::Durable(error);
        }
        let mut at = offset;
        while at < offset + len {
            let piece = PIECE.min(offset + len - at);
            let bytes = match self.0.durable.read(at, piece as usize).await {
                Ok(bytes) => bytes,
                Err(error) => return Outcome::Durable(error),
            };
            if op.is_spoiled() {
                return Outcome::Overtaken;
            }
            if let Err(error) = self.write_and_compare(fast, op, at, bytes).await {
                return Outcome::Fast(error);
            }
            at += piece;
        }
        Outcome::Healed
    }

    async fn write_and_compare(
        self,
        fast: &Arc<dyn Disk>,
        op: &Arc<TrackedOp>,
        offset: u64,
        bytes: Bytes,
    ) -> io::Result<()> {
        self.0.write_fast(fast, offset, bytes.clone(), op).await?;
        let back = self.0.read_fast(fast, offset, bytes.len()).await?;
        if back == bytes { Ok(()) } else { Err(differs()) }
    }

    /// Makes both legs hold `good`, which the caller has verified. Returns the number of repaired
    /// legs.
    pub(crate) async fn heal(self, offset: u64, good: Bytes) -> io::Result<u32> {
        if pair::touches_reserved(offset, good.len()) {
            return Ok(0);
        }
        let len = good.len() as u64;
        let (op, fast) = self.begin_heal(offset, len).await?;
        let durable = self.heal_durable(offset, &good).await;
        let mut repaired = u32::from(matches!(durable, Ok(true)));
        match &durable {
            Ok(true) => tick(&self.0.counters.healed_durable),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(offset, len, %error, "a range of the durable leg could not be repaired");
                tick(&self.0.counters.heal_failures);
            }
        }
        let mut result = durable.map(drop);
        if let (Some(fast), Some(op)) = (fast, op) {
            match self.heal_with(&fast, &op, offset, good).await {
                // Also when the durable leg could not be repaired: this is then the one good copy.
                Ok(did) => {
                    op.good();
                    repaired += u32::from(did);
                }
                Err(error) => {
                    self.heal_failed(&fast, offset, len, &error).await;
                    result = result.and(Err(error));
                }
            }
        }
        result.map(|()| repaired)
    }

    /// Registers a repair of both legs in the map when no other operation overlaps, and sets the
    /// bits. Returns the fast leg if it is in use there.
    async fn begin_heal(self, offset: u64, len: u64) -> io::Result<(Option<Arc<TrackedOp>>, Option<Arc<dyn Disk>>)> {
        let start = self.0.env.now();
        loop {
            let begun = {
                let mut state = self.0.state.lock();
                if !state.follows() {
                    return Ok((None, None));
                }
                let readable = state.leg == Leg::Up && state.map.readable(offset, len);
                let failed = state.intent.failed_rounds();
                state
                    .map
                    .begin_repair(offset, len)
                    .map(|id| (TrackedOp::new(self.0, id, offset, len), readable, failed))
            };
            if let Some((op, readable, failed)) = begun {
                Rounds(self.0).bits_set(offset, len, failed).await?;
                return Ok((Some(op), self.0.fast.clone().filter(|_| readable)));
            }
            // The caller does not write there, and a copy or repair in the background ends soon.
            if self.0.env.now().saturating_sub(start) > self.0.options.fast_write_limit {
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another operation is in progress there"));
            }
            self.0.env.sleep(HEAL_RETRY).await;
        }
    }

    /// Repairs the durable leg if it differs; returns whether it did.
    async fn heal_durable(self, offset: u64, good: &Bytes) -> io::Result<bool> {
        match self.0.durable.read(offset, good.len()).await {
            Ok(bytes) if bytes == *good => return Ok(false),
            Ok(_) => {}
            Err(_) => tick(&self.0.counters.durable_errors),
        }
        self.0.durable.write(offset, good.clone()).await?;
        self.0.durable.flush().await?;
        let back = self.0.durable.read(offset, good.len()).await?;
        if back == *good { Ok(true) } else { Err(differs()) }
    }

    /// Repairs the fast leg if it differs; returns whether it did.
    async fn heal_with(self, fast: &Arc<dyn Disk>, op: &Arc<TrackedOp>, offset: u64, good: Bytes) -> io::Result<bool> {
        if matches!(self.0.read_fast(fast, offset, good.len()).await, Ok(bytes) if bytes == good) {
            return Ok(false);
        }
        let len = good.len() as u64;
        if self.0.state.lock().map.failed(offset, len, self.0.options.quarantine_failures) {
            self.log_quarantine(offset, len);
        }
        self.write_and_compare(fast, op, offset, good).await?;
        self.0.state.lock().map.healed(offset, len);
        tick(&self.0.counters.healed_fast);
        Ok(true)
    }
}
