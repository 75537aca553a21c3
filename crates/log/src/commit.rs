//! The submit queue: batches get their LSNs and wait for the committer.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::{Applied, Batch, Committed, Durability, LogError, Lsn, Reservation};

pub(crate) type Answer = oneshot::Sender<Result<Committed, LogError>>;

/// A committed frame.
pub(crate) struct ToApply {
    pub(crate) applied: Vec<Applied>,
    pub(crate) waiters: Vec<(Lsn, Answer)>,
    pub(crate) durable: bool,
    /// Time at which its write began, and at which it ended.
    pub(crate) begun: Duration,
    pub(crate) written: Duration,
}

/// A submitted batch.
pub(crate) struct Pending {
    pub(crate) batch: Batch,
    pub(crate) first_lsn: Lsn,
    pub(crate) durability: Durability,
    /// Number of chunks written when the batch was submitted, its own included, if it may name
    /// chunks; else 0.
    pub(crate) chunks: u64,
    pub(crate) record_bytes: u64,
    pub(crate) entry_bytes: u64,
    pub(crate) answer: Answer,
    pub(crate) submitted: Duration,
    pub(crate) reservation: Reservation,
}

pub(crate) struct QueueState {
    items: VecDeque<Pending>,
    next_lsn: Lsn,
    /// Number of waiting batches that wakes the committer.
    wake_at: usize,
    flush_wanted: bool,
    roll_wanted: bool,
    closing: bool,
    closed: Option<LogError>,
}

/// Batches that wait for the committer. The budget share that each holds bounds the queue.
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    pub(crate) wake: Notify,
}

/// Pending work of the committer besides the batches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommitterWork {
    pub(crate) pending: usize,
    pub(crate) flush: bool,
    pub(crate) roll: bool,
    pub(crate) closing: bool,
}

impl Queue {
    pub(crate) fn new(next_lsn: Lsn) -> Self {
        Self {
            state: Mutex::new(QueueState {
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

    /// Assigns LSNs to the batch. LSN order is call order.
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
            let pending = make(first_lsn);
            assert_eq!(pending.first_lsn, first_lsn, "a batch has the number that it was given");
            debug_assert_eq!(pending.batch.len(), count, "a batch takes a number for each of its records");
            state.items.push_back(pending);
            (first_lsn, state.items.len() >= state.wake_at)
        };
        if wake {
            self.wake.notify_one();
        }
        Ok(first_lsn)
    }

    /// Takes the first batch if `take` accepts it.
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

    pub(crate) fn work(&self) -> CommitterWork {
        let state = self.state.lock();
        let QueueState { flush_wanted: flush, roll_wanted: roll, closing, .. } = *state;
        CommitterWork { pending: state.items.len(), flush, roll, closing }
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

    /// Requests a roll to the next extent before this one is full.
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

    /// Refuses all batches from now on, and returns those that the committer has not taken.
    pub(crate) fn refuse(&self, error: LogError) -> Vec<Pending> {
        let mut state = self.state.lock();
        state.closed.get_or_insert(error);
        state.items.drain(..).collect()
    }

    pub(crate) fn last_lsn(&self) -> Lsn {
        self.state.lock().next_lsn - 1
    }
}

/// An accepted batch. Resolves when it has reached its durability and has been applied.
#[derive(Debug)]
#[must_use = "the batch commits anyway, but its outcome is lost"]
pub struct Ticket {
    pub(crate) first_lsn: Lsn,
    pub(crate) durability: Durability,
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
            Ok(outcome) => {
                let is_durable = outcome.as_ref().map_or(true, |committed| committed.durable);
                assert!(is_durable || self.durability == Durability::Async, "a batch is acknowledged before its flush");
                outcome
            }
            // The committer ended without an answer, so the outcome is unknown.
            Err(_) => Err(LogError::Unknown { what: "commit", cause: "the log has stopped".into() }),
        })
    }
}
