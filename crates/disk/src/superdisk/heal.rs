//! Repairs: a range that one leg cannot give, or gives wrongly, is written again from the other and read back.

use std::io;
use std::sync::Arc;

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
        if state.heals.len() >= HEALS_MAX {
            state.map.forget(offset, len);
        } else if let Some(id) = state.map.begin_heal(offset, len) {
            state.heals.push_back(Heal { op: Op::new(self, id, offset, len), offset, len });
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
            // It is copied, once the fast leg's own map does not call it valid any more.
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

    async fn heal_failed(&self, fast: &Arc<dyn Disk>, offset: u64, len: u64, error: &io::Error) {
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
    pub(crate) async fn is_gone(&self, fast: &Arc<dyn Disk>, error: &io::Error) -> bool {
        let label = {
            let state = self.state.lock();
            let Some(label) = state.attached.filter(|_| state.leg == Leg::Up) else { return true };
            label
        };
        let answer = self.env.timeout(self.options.fast_write_limit, label.is_kept(fast)).await;
        let gone = !matches!(answer, Some(Ok(true)));
        if gone {
            self.fail_fast(error.to_string());
        }
        gone
    }

    /// Writes a range of the fast leg again from the durable one.
    async fn heal_fast(self: &Arc<Self>, fast: &Arc<dyn Disk>, op: &Arc<Op>, offset: u64, len: u64) -> Outcome {
        let mut at = offset;
        while at < offset + len {
            let piece = PIECE.min(offset + len - at);
            let bytes = match self.durable.read(at, piece as usize).await {
                Ok(bytes) => bytes,
                Err(error) => return Outcome::Durable(error),
            };
            // What was read may be newer than what the fast leg's own map calls valid there.
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
        if pair::touches_label(offset, good.len()) {
            return Ok(0);
        }
        let len = good.len() as u64;
        let (op, fast) = {
            let mut state = self.state.lock();
            let up = state.leg == Leg::Up;
            let readable = up && state.map.readable(offset, len);
            match state.leg {
                Leg::Missing | Leg::Foreign(_) => (None, None),
                _ => match state.map.begin_heal(offset, len) {
                    Some(id) => (Some(id), self.fast.clone().filter(|_| readable)),
                    // Something else is under way there: what the durable leg gets is not to be copied half-way.
                    None => (Some(state.map.begin_write(offset, len, false, self.now_ms()).0), None),
                },
            }
        };
        let op = op.map(|id| Op::new(&self, id, offset, len));
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
