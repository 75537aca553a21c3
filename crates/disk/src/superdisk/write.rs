//! Writes: complete with the durable leg; the fast leg beside it, within a bound.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::core::{Leg, Op, Shared, tick};
use super::options::SuperdiskSabotage;
use super::pair;
use crate::IoFuture;

/// A request to the durable leg that is seen to its end even when nobody waits for it any more: until then its range must
/// not be read from the fast leg, or copied.
struct Durable {
    request: Option<IoFuture<()>>,
    begun: bool,
    end: Option<End>,
}

/// What is done when the durable leg has returned.
struct End {
    shared: Arc<Shared>,
    op: Option<Arc<Op>>,
    /// For a write with a flush: how many plain writes had completed when it began.
    covers: Option<u64>,
}

impl End {
    fn run(self, result: &io::Result<()>) {
        let Self { shared, op, covers } = self;
        if result.is_err() {
            tick(&shared.counters.durable_errors);
            return;
        }
        match (covers, &op) {
            (Some(mark), _) => shared.flush_covers(mark),
            (None, op) => {
                let seq = shared.completed.fetch_add(1, SeqCst) + 1;
                if let Some(op) = op {
                    op.seq.store(seq, SeqCst);
                }
            }
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

impl Shared {
    /// Whether the map follows what is written: there is a fast leg, or one that may come back.
    fn follows(leg: &Leg) -> bool {
        matches!(leg, Leg::Up | Leg::Failed(_))
    }

    /// Tells the map of a write. The second value says whether it goes to the fast leg too; its bytes are then booked as pending.
    pub(crate) fn begin_write(self: &Arc<Self>, offset: u64, len: u64, forced: bool) -> (Option<Arc<Op>>, bool) {
        let mut state = self.state.lock();
        if !Self::follows(&state.leg) {
            return (None, false);
        }
        if offset.saturating_add(len) > state.map.tracked() {
            state.map.resize(self.durable.len(), self.fast_limit());
        }
        let up = state.leg == Leg::Up;
        let room = forced || self.pending.load(SeqCst) + len <= self.options.fast_pending_bytes_max;
        let (id, fast) = state.map.begin_write(offset, len, up && room, self.now_ms());
        // Under the lock, so that the bound is kept.
        if fast {
            self.pending.fetch_add(len, SeqCst);
        }
        self.wake(&mut state);
        drop(state);
        if fast {
            tick(&self.counters.fast_writes);
        } else if len > 0 {
            tick(&self.counters.skipped_fast_writes);
        }
        (Some(Op::new(self, id, offset, len)), fast)
    }

    /// Writes to both legs. With `flush`, what completed before is durable too.
    pub(crate) async fn write(self: Arc<Self>, offset: u64, data: Bytes, flush: bool) -> io::Result<()> {
        if pair::touches_label(offset, data.len()) {
            let text = format!("{} bytes at offset {offset}: the labels of the pair are there", data.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let (op, to_fast) = self.begin_write(offset, data.len() as u64, false);
        let fast = self.fast.clone().filter(|_| to_fast);
        let lying = self.sabotage_flushes();
        let request = match (flush && !lying, &fast) {
            (true, _) => self.durable.write_flush(offset, data.clone()),
            (false, _) => self.durable.write(offset, data.clone()),
        };
        let covers = (flush && !lying).then(|| self.completed.load(SeqCst));
        let end = End { shared: self.clone(), op: op.clone(), covers };
        let mut durable = Durable { request: Some(request), begun: false, end: Some(end) };
        // The durable leg first: the commit waits for it.
        let first = futures::poll!(&mut durable);
        // In memory of its own: nobody waits for the fast leg, and nobody's buffer may.
        let sent = match (fast, op) {
            (Some(fast), Some(op)) => {
                let pending = data.len() as u64;
                match self.copies.try_get(data.len()) {
                    Some(mut copy) => {
                        copy.put(&data);
                        Some(self.send_fast(&fast, offset, copy.freeze(), op, pending, true))
                    }
                    None => {
                        // The operation ends without the fast leg: what it holds there is copied later.
                        self.pending.fetch_sub(pending, SeqCst);
                        None
                    }
                }
            }
            _ => None,
        };
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

    /// Makes durable what completed before.
    pub(crate) async fn flush(self: Arc<Self>) -> io::Result<()> {
        if self.sabotage_flushes()
            && let Some(fast) = self.fast_up()
        {
            return fast.flush().await;
        }
        self.flush_durable().await
    }

    /// Makes durable what completed before on the durable leg.
    pub(crate) async fn flush_durable(&self) -> io::Result<()> {
        let mark = self.completed.load(SeqCst);
        match self.durable.flush().await {
            Ok(()) => {
                self.flush_covers(mark);
                Ok(())
            }
            Err(error) => {
                tick(&self.counters.durable_errors);
                Err(error)
            }
        }
    }

    fn sabotage_flushes(&self) -> bool {
        self.options.sabotage == SuperdiskSabotage::AckOnFast && self.state.lock().leg == Leg::Up
    }

    /// Gives up a range on both legs.
    pub(crate) async fn discard(self: Arc<Self>, offset: u64, len: u64) -> io::Result<()> {
        if pair::touches_label(offset, usize::try_from(len).unwrap_or(usize::MAX)) {
            // A hint may be ignored.
            return Ok(());
        }
        let (op, fast) = {
            let mut state = self.state.lock();
            let op = Self::follows(&state.leg).then(|| {
                let id = state.map.begin_discard(offset, len);
                self.wake(&mut state);
                id
            });
            (op, self.fast.clone().filter(|_| state.leg == Leg::Up))
        };
        let op = op.map(|id| Op::new(&self, id, offset, len));
        if let (Some(fast), Some(op)) = (fast, op.clone()) {
            let end = offset.saturating_add(len).min(self.fast_limit());
            if offset < end {
                let request = fast.discard(pair::FAST_START + offset, end - offset);
                let shared = self.clone();
                self.env.spawn("superdisk-fast-discard", async move {
                    if let Err(error) = request.await {
                        shared.fast_error("discard", &error);
                    }
                    drop(op);
                });
            }
        }
        let request = self.durable.discard(offset, len);
        let end = End { shared: self.clone(), op, covers: None };
        Durable { request: Some(request), begun: false, end: Some(end) }.await
    }

    /// Empties a zone of the durable leg.
    pub(crate) async fn reset_zone(self: Arc<Self>, offset: u64) -> io::Result<()> {
        let len = self.durable.zone(offset).map_or(0, |zone| zone.len);
        let op = {
            let mut state = self.state.lock();
            Self::follows(&state.leg).then(|| state.map.begin_discard(offset, len))
        };
        let op = op.map(|id| Op::new(&self, id, offset, len));
        let end = End { shared: self.clone(), op, covers: None };
        Durable { request: Some(self.durable.reset_zone(offset)), begun: false, end: Some(end) }.await
    }

    /// Makes room on the durable leg; the fast leg follows in the background.
    pub(crate) async fn reserve(self: Arc<Self>, end: u64) -> io::Result<()> {
        self.durable.reserve(end).await?;
        let mut state = self.state.lock();
        if Self::follows(&state.leg) {
            state.map.resize(self.durable.len(), self.fast_limit());
            state.copier_idle = false;
            self.copier_wake.notify_one();
        }
        Ok(())
    }
}
