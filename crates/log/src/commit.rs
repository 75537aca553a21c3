//! The way into the log: batches are given their LSNs and queue for the committer.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

use crate::apply::Answer;
use crate::{Batch, Committed, Durability, LogError, Lsn, Reservation};

/// A batch on its way.
pub(crate) struct Pending {
    pub(crate) batch: Batch,
    pub(crate) first_lsn: Lsn,
    pub(crate) durability: Durability,
    /// If it may name chunks: how many had been written when it was submitted, its own among them. Else 0.
    pub(crate) chunks: u64,
    pub(crate) record_bytes: u64,
    pub(crate) entry_bytes: u64,
    pub(crate) answer: Answer,
    pub(crate) submitted: Duration,
    pub(crate) reservation: Reservation,
}

pub(crate) struct State {
    items: VecDeque<Pending>,
    next_lsn: Lsn,
    /// The committer is woken when this many batches wait.
    wake_at: usize,
    flush_wanted: bool,
    roll_wanted: bool,
    closing: bool,
    closed: Option<LogError>,
}

/// Batches that wait for the committer. Bounded by the budget that each holds a part of.
pub(crate) struct Queue {
    state: Mutex<State>,
    pub(crate) wake: Notify,
}

/// What else the committer is asked to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) pending: usize,
    pub(crate) flush: bool,
    pub(crate) roll: bool,
    pub(crate) closing: bool,
}

impl Queue {
    pub(crate) fn new(next_lsn: Lsn) -> Self {
        Self {
            state: Mutex::new(State {
                items: VecDeque::new(),
                next_lsn,
                wake_at: 1,
                flush_wanted: false,
                roll_wanted: false,
                closing: false,
                closed: None,
            }),
            wake: Notify::new(),
        }
    }

    /// Gives the batch its LSNs. LSN order is call order.
    pub(crate) fn push(&self, make: impl FnOnce(Lsn) -> Pending, count: usize) -> Result<Lsn, LogError> {
        let (first_lsn, wake) = {
            let mut state = self.state.lock();
            if let Some(error) = &state.closed {
                return Err(error.clone());
            }
            if state.closing {
                return Err(LogError::Closed);
            }
            let first_lsn = state.next_lsn;
            state.next_lsn += count as u64;
            state.items.push_back(make(first_lsn));
            (first_lsn, state.items.len() >= state.wake_at)
        };
        if wake {
            self.wake.notify_one();
        }
        Ok(first_lsn)
    }

    /// Takes the first batch if `take` wants it.
    pub(crate) fn pop_if(&self, take: impl FnOnce(&Pending) -> bool) -> Option<Pending> {
        let mut state = self.state.lock();
        if !state.items.front().is_some_and(take) {
            return None;
        }
        state.items.pop_front()
    }

    pub(crate) fn front_bytes(&self) -> Option<(u64, u64)> {
        self.state.lock().items.front().map(|p| (p.record_bytes, p.entry_bytes))
    }

    pub(crate) fn asked(&self) -> Asked {
        let state = self.state.lock();
        let State { flush_wanted: flush, roll_wanted: roll, closing, .. } = *state;
        Asked { pending: state.items.len(), flush, roll, closing }
    }

    pub(crate) fn wake_at(&self, pending: usize) {
        self.state.lock().wake_at = pending.max(1);
    }

    pub(crate) fn want_flush(&self) {
        self.state.lock().flush_wanted = true;
        self.wake.notify_one();
    }

    pub(crate) fn flush_taken(&self) {
        self.state.lock().flush_wanted = false;
    }

    /// Asks for the next extent, before this one is full.
    pub(crate) fn want_roll(&self) {
        self.state.lock().roll_wanted = true;
        self.wake.notify_one();
    }

    pub(crate) fn roll_taken(&self) {
        self.state.lock().roll_wanted = false;
    }

    pub(crate) fn close(&self) {
        self.state.lock().closing = true;
        self.wake.notify_one();
    }

    /// Refuses everything from now on and returns what had not been taken.
    pub(crate) fn refuse(&self, error: LogError) -> Vec<Pending> {
        let mut state = self.state.lock();
        state.closed.get_or_insert(error);
        state.items.drain(..).collect()
    }

    pub(crate) fn last_lsn(&self) -> Lsn {
        self.state.lock().next_lsn - 1
    }

    /// Nothing is accepted while the result is held: for no longer than it takes to look.
    pub(crate) fn hold_still(&self) -> Still<'_> {
        Still(self.state.lock())
    }
}

/// A queue that accepts nothing for a moment.
pub(crate) struct Still<'a>(MutexGuard<'a, State>);

impl Still<'_> {
    pub(crate) fn last_lsn(&self) -> Lsn {
        self.0.next_lsn - 1
    }
}

/// A batch that was accepted: resolves when it has reached its durability and has been applied.
#[derive(Debug)]
#[must_use = "the batch commits anyway, but its outcome is lost"]
pub struct Ticket {
    pub(crate) first_lsn: Lsn,
    pub(crate) outcome: oneshot::Receiver<Result<Committed, LogError>>,
}

impl Ticket {
    /// LSN of the batch's first record; the others follow.
    pub fn first_lsn(&self) -> Lsn {
        self.first_lsn
    }
}

impl Future for Ticket {
    type Output = Result<Committed, LogError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.outcome).poll(cx).map(|outcome| match outcome {
            Ok(outcome) => outcome,
            // The committer ended without a word: nothing is known.
            Err(_) => Err(LogError::Unknown { what: "commit", cause: "the log has stopped".into() }),
        })
    }
}
