//! Writes: complete with the durable leg; the fast leg gets them concurrently, within a limit.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::core::{FastRequest, Leg, SuperdiskShared, TrackedOp, tick};
use super::intents::Rounds;
use super::options::SuperdiskSabotage;
use super::pair;
use crate::intent::Readiness;
use crate::{BLOCK, Disk, IoFuture};

/// Maximum number of requests in flight that change the fast leg. Above it the leg gets no
/// discards.
const FAST_REQUESTS_MAX: u64 = 256;

/// A request to the durable leg that runs to its end even if its caller drops the future. Until
/// then its range must not be read from the fast leg, or copied.
struct Durable {
    request: Option<IoFuture<()>>,
    begun: bool,
    end: Option<End>,
}

/// The action when the durable leg has returned.
struct End {
    shared: Arc<SuperdiskShared>,
    op: Option<Arc<TrackedOp>>,
    /// Whether the request also flushes.
    flush: bool,
}

impl End {
    fn run(self, result: &io::Result<()>) {
        let Self { shared, op, flush } = self;
        if let Err(error) = result {
            tick(&shared.counters.durable_errors);
            if flush {
                Writes(&shared).durable_flush_failed(error);
            }
            return;
        }
        if let Some(op) = &op {
            op.durable_ok.store(true, SeqCst);
        }
    }
}

impl Future for Durable {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.begun = true;
        let Some(request) = self.request.as_mut() else { return Poll::Pending };
        let Poll::Ready(result) = request.as_mut().poll(context) else { return Poll::Pending };
        self.request = None;
        if let Some(end) = self.end.take() {
            end.run(&result);
        }
        Poll::Ready(result)
    }
}

impl Drop for Durable {
    fn drop(&mut self) {
        if let (Some(request), Some(end), true) = (self.request.take(), self.end.take(), self.begun) {
            let env = end.shared.env.clone();
            env.spawn("superdisk-orphan", async move {
                let result = request.await;
                end.run(&result);
            });
        }
    }
}

/// A write that is registered in the map.
struct Begun {
    op: Arc<TrackedOp>,
    /// Whether the write also goes to the fast leg, if that leg has not failed since.
    to_fast: bool,
    /// Whether its intent bits are set.
    ready: bool,
    /// Numbers of failed rounds and of failures of the fast leg at the beginning.
    failed: u64,
    failures: u64,
}

/// Writes, flushes and discards of a pair.
#[derive(Clone, Copy)]
pub(crate) struct Writes<'a>(pub(crate) &'a Arc<SuperdiskShared>);

impl Writes<'_> {
    /// Registers a write in the map and requests its intent bits. `None` where writes are not
    /// tracked.
    fn begin_write(self, offset: u64, len: u64) -> Option<Begun> {
        let mut state = self.0.state.lock();
        if !state.follows() {
            return None;
        }
        if offset.saturating_add(len) > state.map.tracked() {
            state.map.resize(self.0.durable.len(), self.0.fast_limit());
        }
        let up = state.leg == Leg::Up;
        let (id, to_fast) = state.map.begin_write(offset, len, up, self.0.now_ms());
        let (failed, failures) = (state.intent.failed_rounds(), state.failures);
        let away = !up && self.0.is_sabotaged(SuperdiskSabotage::NoBitsWhileFastAway);
        // The wait for the bits returns any error.
        let ready = away || self.0.is_sabotaged(SuperdiskSabotage::BitBesideData);
        let ready = !away && matches!(state.request_bits(offset, len, failed), Ok(Readiness::Ready)) || ready;
        if to_fast {
            state.request_ahead(offset, len);
        }
        if state.intent.has_requests() {
            self.0.intent_wake.notify_one();
        }
        self.0.wake(&mut state);
        drop(state);
        Some(Begun { op: TrackedOp::new(self.0, id, offset, len), to_fast, ready, failed, failures })
    }

    /// Reserves the write's bytes in the limit, if the write still goes to the fast leg.
    fn book(self, begun: &Begun, len: u64) -> Option<Arc<dyn Disk>> {
        let state = self.0.state.lock();
        let up = state.leg == Leg::Up && state.failures == begun.failures;
        // Under the lock, so that the limit holds.
        let booked = begun.to_fast && up && self.0.pending.load(SeqCst) + len <= self.0.options.fast_pending_bytes_max;
        if booked {
            self.0.pending.fetch_add(len, SeqCst);
        }
        drop(state);
        if booked {
            tick(&self.0.counters.fast_writes);
        } else if len > 0 {
            tick(&self.0.counters.skipped_fast_writes);
        }
        self.0.fast.clone().filter(|_| booked)
    }

    /// Writes to both legs. With `flush`, the write and earlier completed writes become durable.
    pub(crate) async fn write(self, offset: u64, data: Bytes, flush: bool) -> io::Result<()> {
        if pair::touches_reserved(offset, data.len()) {
            let text =
                format!("{} bytes at offset {offset}: the range is reserved for the labels of the pair", data.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let len = data.len() as u64;
        debug_assert!((offset | len).is_multiple_of(BLOCK as u64), "a write of {len} bytes at {offset}");
        let begun = self.begin_write(offset, len);
        if let Some(begun) = &begun
            && !begun.ready
        {
            if self.0.is_sabotaged(SuperdiskSabotage::BitHoldsOnlyFast) {
                self.0.durable.write(offset, data.clone()).await?;
            }
            Rounds(self.0).bits_set(offset, len, begun.failed).await?;
        }
        let fast = begun.as_ref().and_then(|begun| self.book(begun, len));
        let op = begun.map(|begun| begun.op);
        let lying = self.sabotage_flushes();
        let flush_now = flush && !lying;
        let request = match flush_now {
            true => self.0.durable.write_flush(offset, data.clone()),
            false => self.0.durable.write(offset, data.clone()),
        };
        let end = End { shared: self.0.clone(), op: op.clone(), flush: flush_now };
        let mut durable = Durable { request: Some(request), begun: false, end: Some(end) };
        // The durable leg first, because the commit waits for it.
        let first = futures::poll!(&mut durable);
        // In separate memory: no caller waits for the fast leg, so it must not keep a caller's
        // buffer.
        let sent = match (fast, op) {
            (Some(fast), Some(op)) => match self.0.copies.try_get(data.len()) {
                Some(mut copy) => {
                    copy.put(&data);
                    Some(self.0.send_fast(&fast, offset, copy.freeze(), op, len, true))
                }
                None => {
                    // The operation ends without the fast leg, and its range is copied later.
                    self.0.unbook(len);
                    None
                }
            },
            _ => None,
        };
        let mut sent = sent;
        if lying
            && self.0.is_sabotaged(SuperdiskSabotage::AckOnFast)
            && let Some(answer) = sent.take()
            && matches!(answer.await, Ok(Ok(())))
            && !flush
        {
            return Ok(());
        }
        match first {
            Poll::Ready(result) => result,
            Poll::Pending => durable.await,
        }?;
        if lying && flush {
            if let Some(sent) = sent {
                let _ = sent.await;
            }
            return self.flush().await;
        }
        Ok(())
    }

    /// Makes earlier completed writes durable.
    pub(crate) async fn flush(self) -> io::Result<()> {
        if self.sabotage_flushes()
            && let Some(fast) = self.0.fast_up()
        {
            return fast.flush().await;
        }
        self.flush_durable().await
    }

    /// Makes earlier completed writes durable on the durable leg.
    pub(crate) async fn flush_durable(self) -> io::Result<()> {
        let flushed = self.0.durable.flush().await;
        if let Err(error) = &flushed {
            tick(&self.0.counters.durable_errors);
            self.durable_flush_failed(error);
        }
        flushed
    }

    /// After a failed flush the content of the durable leg is unknown. Only clean regions of the
    /// fast leg count, and no more bits are set or cleared. Errors of the machine, or of a write
    /// that found no space, are exempt.
    pub(crate) fn durable_flush_failed(self, error: &io::Error) {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        if self.0.is_sabotaged(SuperdiskSabotage::DurableErrorNotLatched) {
            return;
        }
        if ![libc::ENOMEM, libc::EAGAIN, libc::EINTR, libc::ENOSPC].contains(&errno) {
            self.0.state.lock().intent.latch(errno);
            self.0.intent_done.notify_waiters();
        }
    }

    fn sabotage_flushes(self) -> bool {
        let is = |fault| self.0.is_sabotaged(fault);
        (is(SuperdiskSabotage::AckOnFast) || is(SuperdiskSabotage::FlushOfFastOnly))
            && self.0.state.lock().leg == Leg::Up
    }

    /// Discards a range on both legs. The durable leg serves it until it is written or copied
    /// again.
    pub(crate) async fn discard(self, offset: u64, len: u64) -> io::Result<()> {
        if pair::touches_reserved(offset, usize::try_from(len).unwrap_or(usize::MAX)) {
            // A hint may be ignored.
            return Ok(());
        }
        let begun = {
            let mut state = self.0.state.lock();
            state.follows().then(|| {
                let (id, failed) = (state.map.begin_discard(offset, len), state.intent.failed_rounds());
                (TrackedOp::new(self.0, id, offset, len), failed, state.failures)
            })
        };
        let mut op = None;
        if let Some((begun, failed, failures)) = begun {
            if !self.0.is_sabotaged(SuperdiskSabotage::TrimWithoutBit) {
                Rounds(self.0).bits_set(offset, len, failed).await?;
            }
            if self.0.is_sabotaged(SuperdiskSabotage::TrimLeavesValid) {
                begun.good();
            }
            self.discard_fast(&begun, offset, len, failures);
            op = Some(begun);
        }
        let request = self.0.durable.discard(offset, len);
        let end = End { shared: self.0.clone(), op, flush: false };
        Durable { request: Some(request), begun: false, end: Some(end) }.await
    }

    fn discard_fast(self, op: &Arc<TrackedOp>, offset: u64, len: u64, failures: u64) {
        let up = {
            let state = self.0.state.lock();
            state.leg == Leg::Up && state.failures == failures
        };
        let end = offset.saturating_add(len).min(self.0.fast_limit());
        // A discard is a hint, so a busy leg gets no more of them. The range does not count there
        // anyway.
        let busy = self.0.fast_requests.load(SeqCst) >= FAST_REQUESTS_MAX;
        let Some(fast) = self.0.fast.clone().filter(|_| up && !busy && offset < end) else { return };
        let mut request = fast.discard(pair::FAST_START + offset, end - offset);
        let (shared, op, counted) = (self.0.clone(), op.clone(), FastRequest::new(self.0));
        self.0.env.spawn("superdisk-fast-discard", async move {
            let limit = shared.options.fast_write_limit;
            let result = match shared.env.timeout(limit, &mut request).await {
                Some(result) => result,
                None => {
                    shared.fail_fast(format!("a discard has not returned for {} ms", limit.as_millis()));
                    request.await
                }
            };
            if let Err(error) = result {
                shared.fast_error("discard", &error);
            }
            drop((op, counted));
        });
    }

    /// Allocates space on the durable leg; the fast leg follows in the background.
    pub(crate) async fn reserve(self, end: u64) -> io::Result<()> {
        self.0.durable.reserve(end).await?;
        let mut state = self.0.state.lock();
        if state.follows() {
            state.map.resize(self.0.durable.len(), self.0.fast_limit());
            state.copier_idle = false;
            self.0.copier_wake.notify_one();
        }
        Ok(())
    }
}
