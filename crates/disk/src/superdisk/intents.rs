//! Rounds: bits are set before regions are written, and cleared when both legs hold the same.
//!
//! One task carries out the rounds, one at a time, so that many writes share the flushes of one
//! round. A round that sets bits writes them to the durable leg and flushes it, and then writes the
//! next event. The fast leg then gets the event and is flushed; only after that is data written. A
//! round that clears bits first flushes the data of both legs and then writes an event in the same
//! way. Only afterwards does the durable leg's label refuse images of the fast leg from before that
//! event.

use std::io;
use std::sync::Arc;
use std::time::Duration;
use steadfast_flow::has_fault;

use super::core::{Leg, SuperdiskShared};
use super::options::SuperdiskSabotage;
use super::pair::{INTENT_BITS, Identity};
use super::write::Writes;
use crate::BLOCK;
use crate::intent::Readiness;

/// Interval of the search for regions whose bits can be cleared, while too many are set.
const CLEAR_INTERVAL: Duration = Duration::from_secs(1);

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Sets and clears the intent bits of a pair.
#[derive(Clone, Copy)]
pub(crate) struct Rounds<'a>(pub(crate) &'a Arc<SuperdiskShared>);

impl Rounds<'_> {
    /// Waits until the intent bits of a range are set durably. `failed` is the number of failed
    /// rounds when the bits were requested.
    ///
    /// # Errors
    /// That of the durable leg, when the bits cannot be set.
    pub(crate) async fn bits_set(self, offset: u64, len: u64, failed: u64) -> io::Result<()> {
        loop {
            let notified = self.0.intent_done.notified();
            tokio::pin!(notified);
            // Registers before the check, so that an end in between is not missed.
            notified.as_mut().enable();
            let readiness = {
                let mut state = self.0.state.lock();
                let readiness = state.request_bits(offset, len, failed)?;
                if state.intent.has_requests() {
                    self.0.intent_wake.notify_one();
                }
                readiness
            };
            match readiness {
                Readiness::Ready => return Ok(()),
                Readiness::Wait => notified.await,
            }
        }
    }

    /// The task that carries out rounds.
    pub(crate) async fn keep_intent(self) {
        while !self.0.is_closing() {
            if self.set_requested().await {
                continue;
            }
            if self.is_over_dirty() {
                if !self.clear_settled(false).await {
                    self.0.env.timeout(CLEAR_INTERVAL, self.0.intent_wake.notified()).await;
                }
            } else {
                self.0.intent_wake.notified().await;
            }
        }
        self.0.state.lock().intent.close();
        self.0.intent_done.notify_waiters();
    }

    /// Whether more bits are set than a rebuild should copy, and some may be cleared.
    fn is_over_dirty(self) -> bool {
        let state = self.0.state.lock();
        let dirty = state.intent.dirty(state.map.len()).saturating_mul(state.map.region_bytes());
        state.leg == Leg::Up && !state.intent.is_latched() && dirty > self.0.options.dirty_bytes_max
    }

    /// Sets the requested bits; `false` when there were none.
    async fn set_requested(self) -> bool {
        let _one = self.0.rounds.lock().await;
        let (batch, blocks, identity) = {
            let mut state = self.0.state.lock();
            let batch = state.intent.take();
            let blocks = state.intent.encode(&batch, &state.identity.fast);
            // While the fast leg is away its event does not change, and neither does the durable
            // leg's.
            let raises = state.leg == Leg::Up && !self.0.is_sabotaged(SuperdiskSabotage::NoStampAtSet);
            let identity = raises.then(|| state.raised());
            (batch, blocks, identity)
        };
        if batch.is_empty() {
            return false;
        }
        let flush = !self.0.is_sabotaged(SuperdiskSabotage::BitNotFlushed);
        match self.write_bits(blocks, identity, flush).await {
            Ok(written) => {
                if let Some(identity) = written {
                    self.stamp(identity, true, false).await;
                }
                self.0.state.lock().intent.set(&batch);
            }
            Err(error) => {
                tracing::warn!(disk = self.0.durable.describe(), %error, "intent bits cannot be set");
                self.0.state.lock().intent.put_back(&batch, errno(&error));
            }
        }
        self.0.intent_done.notify_waiters();
        true
    }

    /// Writes bits, and the label where it changes. With `flush`, flushes the durable leg.
    async fn write_bits(
        self,
        blocks: Vec<(u64, bytes::Bytes)>,
        identity: Option<Identity>,
        flush: bool,
    ) -> io::Result<Option<Identity>> {
        let bits = !blocks.is_empty();
        for (block, bytes) in blocks {
            self.0.durable.write(INTENT_BITS + block * BLOCK as u64, bytes).await?;
        }
        // A snapshot of the durable leg may contain any part of the unflushed writes. A snapshot
        // with the event but without the bits would trust a fast leg that was written since.
        if bits && flush && identity.is_some() {
            Writes(self.0).flush_durable().await?;
        }
        let written = match identity {
            Some(identity) => Some(identity.write_durable(&self.0.durable).await?),
            None => None,
        };
        if flush {
            Writes(self.0).flush_durable().await?;
        }
        if let Some(identity) = written {
            self.0.state.lock().identity = identity;
        }
        Ok(written)
    }

    /// Writes the durable leg's event to the fast leg and flushes it. With `data_first`, the leg's
    /// data is flushed before the event is written. If that fails or takes too long, the leg has
    /// failed.
    async fn stamp(self, identity: Identity, flush: bool, data_first: bool) -> bool {
        let Some(fast) = self.0.fast_up() else { return false };
        let Some(one) = self.label_lock().await else { return false };
        let shared = self.0.clone();
        let work = async move {
            let label = identity.of_fast();
            let stamped = match flush {
                true if data_first => match fast.flush().await {
                    Ok(()) => label.write_fast(&fast).await,
                    error => error,
                },
                true => label.write_fast(&fast).await,
                false => label.write_fast_unflushed(&fast).await,
            };
            drop(one);
            if let Err(error) = &stamped {
                Rounds(&shared).stamp_failed(error);
            }
            stamped
        };
        let stamped = self.0.on_fast("its label", work).await;
        if stamped.is_ok() {
            let mut state = self.0.state.lock();
            if state.map.counts().to_rebuild == 0 {
                state.relapses = 0;
            }
        }
        stamped.is_ok() || self.0.is_sabotaged(SuperdiskSabotage::FastFlushErrorIgnored)
    }

    /// Locks the fast leg's labels. If another task does not finish writing a label in time, the
    /// leg has failed and the result is `None`.
    pub(crate) async fn label_lock(self) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        let limit = self.0.options.fast_write_limit;
        let lock = self.0.env.timeout(limit, self.0.stamping.clone().lock_owned()).await;
        if lock.is_none() {
            self.0.fail_fast(format!("its label has not been written for {} ms", limit.as_millis()));
        }
        lock
    }

    /// The flush may be what failed. Later flushes do not cover earlier writes, and the disk
    /// refuses them until it is reopened. The leg fails in the task that gets the error, so reads
    /// that end later do not count.
    fn stamp_failed(self, error: &io::Error) {
        if !self.0.is_sabotaged(SuperdiskSabotage::FastFlushErrorIgnored) {
            self.0.state.lock().spoiled = true;
            self.0.fail_fast(format!("its label could not be written: {error}"));
        }
    }

    /// Clears the bits of regions that are the same on both legs: all of them, or as many of the
    /// least recently written as exceed the limit. Returns whether it cleared any.
    pub(crate) async fn clear_settled(self, all: bool) -> bool {
        let _one = self.0.rounds.lock().await;
        let torn = self.0.is_sabotaged(SuperdiskSabotage::ClearNotWhole);
        let (batch, identity, failures) = {
            let mut state = self.0.state.lock();
            if state.leg != Leg::Up || state.intent.is_latched() {
                return false;
            }
            let now = if all { u64::MAX } else { self.0.now_ms() };
            let mut batch: Vec<u32> = (0..state.map.len() as u32)
                .filter(|region| {
                    state.intent.is_dirty(*region as usize)
                        && (state.map.is_settled(*region as usize, now) || torn && state.map.is_quiet(*region as usize))
                })
                .collect();
            if !all {
                batch.sort_by_key(|region| state.map.settled_at_ms(*region as usize));
                // Down to a quarter below the limit, so that rounds are few.
                let limit = self.0.options.dirty_bytes_max / 4 * 3 / state.map.region_bytes();
                batch.truncate(state.intent.dirty(state.map.len()).saturating_sub(limit) as usize);
            }
            state.intent.begin_clear(&batch);
            (batch, state.raised(), state.failures)
        };
        if batch.is_empty() {
            return false;
        }
        let cleared = self.clear(&batch, identity, failures).await;
        if !cleared {
            self.0.state.lock().intent.stop_clear();
        }
        cleared
    }

    async fn clear(self, batch: &[u32], identity: Identity, failures: u64) -> bool {
        let sabotage = self.0.options.sabotage;
        let stamps = !has_fault(sabotage, SuperdiskSabotage::NoStampAtClear);
        let flush = !has_fault(sabotage, SuperdiskSabotage::ClearWithoutDurableFlush);
        let identity = if stamps { identity } else { self.0.state.lock().identity };
        let Ok(Some(identity)) = self.write_bits(Vec::new(), Some(identity), flush).await else { return false };
        // An image of the fast leg that is taken between the event and its flush may lack any
        // earlier data. Such an image must not have the event that clears the bits of that data.
        let flush_fast = !has_fault(sabotage, SuperdiskSabotage::ClearWithoutFastFlush);
        if !self.stamp(identity, flush_fast, flush_fast && stamps).await {
            return false;
        }
        let cleared_at = if stamps { identity.event } else { identity.cleared_at };
        let sealed = Identity { cleared_at, ..identity };
        let flush = flush && !has_fault(sabotage, SuperdiskSabotage::ClearInOneFlush);
        if self.write_bits(Vec::new(), Some(sealed), flush).await.is_err() {
            return false;
        }
        let blocks = {
            let mut state = self.0.state.lock();
            if state.failures != failures {
                return false;
            }
            state.intent.end_clear(batch);
            state.intent.encode(batch, &state.identity.fast)
        };
        // The next flush of any kind makes this durable; a bit that stays set only costs a copy.
        for (block, bytes) in blocks {
            if self.0.durable.write(INTENT_BITS + block * BLOCK as u64, bytes).await.is_err() {
                return true;
            }
        }
        true
    }
}
