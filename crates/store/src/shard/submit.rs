//! Submitting of records: preconditions on keys are decided under the locks of the keys.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use steadfast_log::{Batch, Durability, Lsn, Record, Reservation, Ticket};

use super::applied::AppliedState;
use crate::record::Value;
use crate::record::object::First;
use crate::shard::events::{Draft, Placed};
use crate::shard::pending::{Bin, Entry, PendingState, bin_of};
use crate::shard::writes::Writes;
use crate::{Condition, FillCondition, StoreError};

/// The log accepts heads up to 64 KiB and uses some of that itself.
pub(crate) const HEAD_BYTES_MAX: usize = 60 << 10;

/// How often a refusal that rests on a pending record waits for it and is decided again.
const WAITS_MAX: u32 = 3;

/// Precondition on a key for submitting a record.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Precondition<'a> {
    Nothing,
    Absent,
    Present,
    Etag(&'a str),
    /// The current record is this one.
    Version(Lsn),
    /// Present, without a pending change.
    Settled,
    /// The flag is set, whatever the key's state is.
    Attached(&'a AtomicBool),
}

/// A key that a batch depends on or changes.
pub(crate) struct KeyAccess<'a> {
    pub(crate) key: Bytes,
    pub(crate) precondition: Precondition<'a>,
    /// The key's future state, and the batch's record that causes it.
    pub(crate) becomes: Option<(PendingState, u64)>,
}

/// Why a batch was not submitted.
pub(crate) enum Refusal {
    /// A precondition does not hold: index of the first such [`KeyAccess`], with the LSN of the
    /// pending record that it rests on, if any.
    Unmet(usize, Option<Lsn>),
    Error(StoreError),
}

impl Refusal {
    /// The error, which is `unmet` when a precondition does not hold.
    pub(crate) fn or(self, unmet: StoreError) -> StoreError {
        match self {
            Self::Unmet(..) => unmet,
            Self::Error(e) => e,
        }
    }
}

impl KeyAccess<'_> {
    /// Whether its precondition holds: otherwise the LSN of the pending record that this rests on,
    /// if any. `bin` is the bin of its key.
    fn holds(&self, applied: &AppliedState, bin: &Bin) -> Result<Result<(), Option<Lsn>>, StoreError> {
        match self.precondition {
            Precondition::Nothing => return Ok(Ok(())),
            Precondition::Attached(attached) => {
                return Ok(if attached.load(Ordering::Acquire) { Ok(()) } else { Err(None) });
            }
            _ => {}
        }
        // The log refused a record whose LSN has passed (it was full): the index is right.
        let entry = bin.get(&self.key).filter(|entry| entry.lsn > applied.progress.borrow().lsn);
        if let Some(entry) = entry {
            let holds = match (self.precondition, &entry.becomes) {
                (Precondition::Nothing, _)
                | (Precondition::Absent, PendingState::Absent)
                | (Precondition::Present, PendingState::Present(_)) => true,
                (Precondition::Etag(want), PendingState::Present(etag)) => want == etag,
                (Precondition::Version(want), PendingState::Present(_)) => want == entry.lsn,
                _ => false,
            };
            return Ok(if holds { Ok(()) } else { Err(Some(entry.lsn)) });
        }
        let value = applied.lookup(&self.key)?;
        let holds = match (self.precondition, &value) {
            (Precondition::Nothing, _)
            | (Precondition::Absent, None)
            | (Precondition::Present | Precondition::Settled, Some(_)) => true,
            (Precondition::Etag(want), Some(value)) => First::decode(Value::decode(value)?.payload)?.etag == want,
            (Precondition::Version(want), Some(value)) => Value::decode(value)?.version == want,
            _ => false,
        };
        Ok(if holds { Ok(()) } else { Err(None) })
    }
}

/// A batch to submit, with the preconditions of its keys.
pub(crate) struct Submission<'a> {
    accesses: &'a [KeyAccess<'a>],
    events: &'a [Draft],
    room: Option<Reservation>,
    batch: Batch,
    durability: Durability,
}

impl<'a> Submission<'a> {
    /// A batch that takes `room`.
    pub(crate) fn new(accesses: &'a [KeyAccess<'a>], room: Reservation, batch: Batch, durability: Durability) -> Self {
        Self { accesses, events: &[], room: Some(room), batch, durability }
    }

    /// With the events of its changes, which the reservation includes.
    pub(crate) fn with_events(self, events: &'a [Draft]) -> Self {
        Self { events, ..self }
    }

    /// Decides and submits. A refusal that rests on a pending record is final only when that record
    /// is applied.
    pub(crate) async fn submit(mut self, writes: &Writes) -> Result<Ticket, Refusal> {
        let mut waits = 0;
        loop {
            match self.attempt(writes) {
                // Decided by a record that was pending and is now applied: final under a steady
                // stream of changes.
                Err(Refusal::Unmet(i, Some(_))) if waits == WAITS_MAX => return Err(Refusal::Unmet(i, None)),
                Err(Refusal::Unmet(_, Some(lsn))) => {
                    writes.applied.wait_applied(lsn).await.map_err(Refusal::Error)?;
                }
                other => return other,
            }
            waits += 1;
        }
    }

    /// Decides and submits in one step, so that no other writer of these keys intervenes.
    fn attempt(&mut self, writes: &Writes) -> Result<Ticket, Refusal> {
        let (applied, accesses) = (&*writes.applied, self.accesses);
        // Locked in ascending order, each once: two batches never wait for each other.
        let mut numbers: Vec<usize> = accesses.iter().map(|t| bin_of(&t.key)).collect();
        let of_access = numbers.clone();
        numbers.sort_unstable();
        numbers.dedup();
        let mut bins: Vec<_> = numbers.iter().map(|&n| applied.pending.lock(n)).collect();
        let at = |n: usize| numbers.binary_search(&n).expect("the bin of each key is locked");
        for (i, access) in accesses.iter().enumerate() {
            match access.holds(applied, &bins[at(of_access[i])]) {
                Ok(Ok(())) => {}
                Ok(Err(rests_on)) => return Err(Refusal::Unmet(i, rests_on)),
                Err(e) => return Err(Refusal::Error(e)),
            }
        }
        let mut events = Vec::with_capacity(self.events.len());
        for draft in self.events {
            let there = match draft.depends_on() {
                Some(i) => {
                    let access =
                        KeyAccess { key: accesses[i].key.clone(), precondition: Precondition::Present, becomes: None };
                    access.holds(applied, &bins[at(of_access[i])]).map_err(Refusal::Error)?.is_ok()
                }
                None => true,
            };
            if there {
                events.push(draft);
            }
        }
        let placed = Placed::of(applied, &events, self.durability);
        self.batch.extend(placed.records());
        let count = self.batch.len() as u64;
        let Some(room) = self.room.take() else {
            return Err(Refusal::Error(StoreError::Index("no reservation".into())));
        };
        let submitted = writes.append(room, std::mem::take(&mut self.batch), placed.durability);
        let ticket = submitted.map_err(|e| Refusal::Error(e.into()))?;
        placed.submitted(self.durability == Durability::Async);
        let first = ticket.first_lsn();
        for (i, access) in accesses.iter().enumerate() {
            if let Some((becomes, record)) = &access.becomes {
                assert!(*record < count, "record {record} of a batch of {count}");
                let lsn = first + record;
                let before = bins[at(of_access[i])].insert(access.key.clone(), Entry { lsn, becomes: becomes.clone() });
                assert!(before.is_none_or(|before| before.lsn < lsn), "the changes of a key have the order of the log");
            }
        }
        Ok(ticket)
    }
}

/// Bytes of a batch, for its reservation.
pub(crate) fn batch_bytes(batch: &[Record]) -> u64 {
    batch.iter().map(|r| (128 + r.head.len() + r.body_len()) as u64).sum()
}

/// Refuses heads that the log would refuse.
pub(crate) fn check_head(head: &[u8]) -> Result<(), StoreError> {
    if head.len() > HEAD_BYTES_MAX {
        return Err(StoreError::TooLarge(format!(
            "key and metadata take {} bytes; the limit is {HEAD_BYTES_MAX}",
            head.len()
        )));
    }
    Ok(())
}

/// The expectation on a key that a condition states.
pub(crate) fn precondition_of(condition: &Condition) -> Precondition<'_> {
    match condition {
        Condition::None => Precondition::Nothing,
        Condition::Absent => Precondition::Absent,
        Condition::Matches(etag) if etag == "*" => Precondition::Present,
        Condition::Matches(etag) => Precondition::Etag(etag),
    }
}

/// The expectations on a key that the condition of a fill states.
pub(crate) fn fill_preconditions(condition: &FillCondition) -> [Precondition<'_>; 2] {
    [condition.version.map_or(Precondition::Absent, Precondition::Version), Precondition::Attached(&condition.attached)]
}

/// A change of an object that depends on all of `preconditions`. The change is the batch's first
/// record.
pub(crate) fn object_accesses<'a>(
    key: &Bytes,
    preconditions: impl IntoIterator<Item = Precondition<'a>>,
    becomes: PendingState,
) -> Vec<KeyAccess<'a>> {
    let mut becomes = Some((becomes, 0));
    let access = |precondition| KeyAccess { key: key.clone(), precondition, becomes: becomes.take() };
    preconditions.into_iter().map(access).collect()
}
