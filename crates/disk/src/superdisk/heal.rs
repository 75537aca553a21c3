//! Repairs: a range that one leg cannot give, or gives wrongly, is written again from the other and read back.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::core::{Leg, Op, Shared, tick};
use super::pair;
use crate::Disk;

/// Repairs that wait at most; further ranges are copied with their regions instead.
const HEALS_MAX: usize = 1024;
/// Bytes repaired at a time.
const PIECE: u64 = 1 << 20;
/// How long a range is left alone that the durable leg cannot give, in milliseconds.
const UNREADABLE_MS: u64 = 60_000;

/// How often a repair looks whether what is under way in its range has ended.
pub(crate) const HEAL_RETRY: Duration = Duration::from_millis(5);

/// A range of the fast leg that waits to be written again.
pub(crate) struct Heal {
    op: Arc<Op>,
    offset: u64,
    len: u64,
}

enum Outcome {
    Healed,
    /// The fast leg cannot be repaired there.
    Fast(io::Error),
    /// The durable leg does not know either.
    Durable(io::Error),
    /// Something else was written there meanwhile.
    Overtaken,
}

fn differs() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what was written reads back differently")
}

impl Shared {
    /// Has a range of the fast leg repaired that it could not give.
    pub(crate) fn heal_later(self: &Arc<Self>, offset: u64, len: usize) {
        let len = len as u64;
        let mut state = self.state.lock();
        if state.leg != Leg::Up {
            return;
        }
        if state.map.failed(offset, len, self.options.quarantine_failures) {
            self.tell_of_quarantine(offset, len);
        }
        let begun = if state.heals.len() < HEALS_MAX { state.map.begin_heal(offset, len) } else { None };
        match begun {
            Some(id) => state.heals.push_back(Heal { op: Op::new(self, id, offset, len), offset, len }),
            // It is copied, once what is under way there has ended.
            None => state.map.forget(offset, len),
        }
        self.wake(&mut state);
    }

    fn tell_of_quarantine(&self, offset: u64, len: u64) {
        let disk = self.fast.as_ref().map(|fast| fast.describe());
        tracing::warn!(disk, offset, len, "the fast leg fails there again and again: its region is out of use");
    }

    /// Repairs the next range that waits; `false` when there is none.
    pub(crate) async fn heal_next(self: &Arc<Self>, fast: &Arc<dyn Disk>) -> bool {
        let Some(Heal { op, offset, len }) = self.state.lock().heals.pop_front() else { return false };
        match self.heal_fast(fast, &op, offset, len).await {
            Outcome::Healed => {
                op.good();
                self.state.lock().map.healed(offset, len);
                tick(&self.counters.healed_fast);
            }
            Outcome::Fast(error) => self.heal_failed(fast, offset, len, &error).await,
            // It is copied once what was written has settled.
            Outcome::Overtaken => {}
            Outcome::Durable(error) => {
                tracing::warn!(offset, len, %error, "neither leg can give a range");
                tick(&self.counters.durable_errors);
                tick(&self.counters.heal_failures);
                self.state.lock().map.put_off(offset, len, self.now_ms() + UNREADABLE_MS);
            }
        }
        drop(op);
        self.pace.spend(len).await;
        true
    }

    async fn heal_failed(self: &Arc<Self>, fast: &Arc<dyn Disk>, offset: u64, len: u64, error: &io::Error) {
        tracing::debug!(offset, len, %error, "a range of the fast leg could not be repaired");
        tick(&self.counters.heal_failures);
        if self.is_gone(fast, error).await {
            return;
        }
        let now = self.now_ms();
        if self.state.lock().map.heal_failed(offset, len, self.options.quarantine_failures, now) {
            self.tell_of_quarantine(offset, len);
        }
    }

    /// Whether it is the whole fast leg that does not work, and not the place that `error` is of: then it does not keep its own
    /// labels either, or a device of it is silent, and it has failed. Else a leg that is gone, and of which little is asked, would lose its regions to quarantine one by one.
    pub(crate) async fn is_gone(self: &Arc<Self>, fast: &Arc<dyn Disk>, error: &io::Error) -> bool {
        // The label is read under the lock of its writers: an older event must not replace a newer one.
        let Some(one) = self.label_lock().await else { return true };
        let label = {
            let state = self.state.lock();
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
        let gone = !matches!(self.on_fast("its label", work).await, Ok(true));
        if gone {
            self.fail_fast(error.to_string());
        }
        gone
    }

    /// Writes a range of the fast leg again from the durable one.
    async fn heal_fast(self: &Arc<Self>, fast: &Arc<dyn Disk>, op: &Arc<Op>, offset: u64, len: u64) -> Outcome {
        let failed = self.state.lock().intent.failed_rounds();
        if let Err(error) = self.bits_set(offset, len, failed).await {
            return Outcome::Durable(error);
        }
        let mut at = offset;
        while at < offset + len {
            let piece = PIECE.min(offset + len - at);
            let bytes = match self.durable.read(at, piece as usize).await {
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
        self: &Arc<Self>,
        fast: &Arc<dyn Disk>,
        op: &Arc<Op>,
        offset: u64,
        bytes: Bytes,
    ) -> io::Result<()> {
        self.write_fast(fast, offset, bytes.clone(), op).await?;
        let back = self.read_fast(fast, offset, bytes.len()).await?;
        if back == bytes { Ok(()) } else { Err(differs()) }
    }

    /// Makes both legs hold `good`, which the caller has verified. Answers how many had to be repaired.
    pub(crate) async fn heal(self: Arc<Self>, offset: u64, good: Bytes) -> io::Result<u32> {
        if pair::touches_reserved(offset, good.len()) {
            return Ok(0);
        }
        let len = good.len() as u64;
        let (op, fast) = self.begin_heal(offset, len).await?;
        let durable = self.heal_durable(offset, &good).await;
        let mut repaired = u32::from(matches!(durable, Ok(true)));
        match &durable {
            Ok(true) => tick(&self.counters.healed_durable),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(offset, len, %error, "a range of the durable leg could not be repaired");
                tick(&self.counters.heal_failures);
            }
        }
        let mut result = durable.map(drop);
        if let (Some(fast), Some(op)) = (fast, op) {
            match self.heal_with(&fast, &op, offset, good).await {
                // Also when the durable leg could not be repaired: then this is the one good copy.
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

    /// Tells the map of a repair of both legs, when nothing else is under way there, and sets the bits. Answers the fast leg where it
    /// is in use there.
    async fn begin_heal(
        self: &Arc<Self>,
        offset: u64,
        len: u64,
    ) -> io::Result<(Option<Arc<Op>>, Option<Arc<dyn Disk>>)> {
        let start = self.env.now();
        loop {
            let begun = {
                let mut state = self.state.lock();
                if !state.follows() {
                    return Ok((None, None));
                }
                let readable = state.leg == Leg::Up && state.map.readable(offset, len);
                let failed = state.intent.failed_rounds();
                state.map.begin_repair(offset, len).map(|id| (Op::new(self, id, offset, len), readable, failed))
            };
            if let Some((op, readable, failed)) = begun {
                self.bits_set(offset, len, failed).await?;
                return Ok((Some(op), self.fast.clone().filter(|_| readable)));
            }
            // The caller does not write there; a copy or a repair in the background ends soon.
            if self.env.now().saturating_sub(start) > self.options.fast_write_limit {
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, "something else is under way there"));
            }
            self.env.sleep(HEAL_RETRY).await;
        }
    }

    /// Whether the durable leg had to be repaired.
    async fn heal_durable(&self, offset: u64, good: &Bytes) -> io::Result<bool> {
        match self.durable.read(offset, good.len()).await {
            Ok(bytes) if bytes == *good => return Ok(false),
            Ok(_) => {}
            Err(_) => tick(&self.counters.durable_errors),
        }
        self.durable.write(offset, good.clone()).await?;
        self.durable.flush().await?;
        let back = self.durable.read(offset, good.len()).await?;
        if back == *good { Ok(true) } else { Err(differs()) }
    }

    /// Whether the fast leg had to be repaired.
    async fn heal_with(
        self: &Arc<Self>,
        fast: &Arc<dyn Disk>,
        op: &Arc<Op>,
        offset: u64,
        good: Bytes,
    ) -> io::Result<bool> {
        if matches!(self.read_fast(fast, offset, good.len()).await, Ok(bytes) if bytes == good) {
            return Ok(false);
        }
        let len = good.len() as u64;
        if self.state.lock().map.failed(offset, len, self.options.quarantine_failures) {
            self.tell_of_quarantine(offset, len);
        }
        self.write_and_compare(fast, op, offset, good).await?;
        self.state.lock().map.healed(offset, len);
        tick(&self.counters.healed_fast);
        Ok(true)
    }
}
