//! State that the lives of a run share: what clients requested, received and know.

use std::collections::BTreeMap;
use std::time::Duration;

use steadfast_store::{Event, EventKind, Position};

use crate::model::channels::Channels;
use crate::model::{Key, OpId, Piece, Seen};
use crate::outcome::Outcome;
use crate::plan::ChannelPlan;
use crate::tags::tag_of;

/// Channel state that all lives of a run share.
#[derive(Clone)]
pub(crate) struct PublishedHistory {
    pub(crate) model: Channels,
    /// The position of each subscriber, once it has subscribed.
    pub(crate) positions: Vec<Option<Position>>,
}

impl PublishedHistory {
    pub(crate) fn new(plan: Option<&ChannelPlan>) -> Self {
        let (channels, subscribers) = plan.map_or((0, 0), |plan| (plan.mixes.len(), plan.subscribers.len()));
        Self { model: Channels::new(channels), positions: vec![None; subscribers] }
    }
}

impl PublishedHistory {
    /// Rolls back to `then`.
    pub(crate) fn roll_back_to(&mut self, then: &Self) {
        self.model.roll_back_to(&then.model);
        self.positions.clone_from(&then.positions);
    }
}

/// Events received over all lives.
#[derive(Clone, Default)]
pub(crate) struct ReceivedEvents {
    /// The epoch of each slot, if it is known, and its events from the first on.
    slots: BTreeMap<usize, (Option<u32>, Vec<ObjectChange>)>,
    /// The slot and the position of the last event of each key.
    last: BTreeMap<String, (usize, usize)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ObjectChange {
    kind: EventKind,
    key: String,
    etag: String,
}

impl ReceivedEvents {
    /// The pool is restored to an earlier state: every slot gets another epoch.
    pub(crate) fn lose_epochs(&mut self) {
        self.slots.values_mut().for_each(|(epoch, _)| *epoch = None);
    }

    /// Records an event. Returns true if it was recorded before.
    pub(crate) fn record(&mut self, event: &Event, bucket: &str) -> Outcome<bool> {
        let Event { slot, position, event: change, maybe_redelivered, .. } = event;
        if change.bucket != bucket || !change.targets.is_empty() {
            return Err(format!("EVENTS: the store sent an unexpected event: {change:?}"));
        }
        let change = ObjectChange { kind: change.kind, key: change.key.clone(), etag: change.etag.clone() };
        let (epoch, events) = self.slots.entry(*slot).or_default();
        let epoch = *epoch.get_or_insert(position.epoch);
        if epoch != position.epoch {
            return Err(format!("EVENTS: slot {slot} changed from epoch {epoch} to {}", position.epoch));
        }
        let at = position.offset as usize;
        if let Some(known) = events.get(at.wrapping_sub(1)) {
            if !maybe_redelivered || *known != change {
                return Err(format!(
                    "EVENTS: {slot}/{at} was {known:?}, but is now {change:?} (maybe_redelivered: {maybe_redelivered})"
                ));
            }
            return Ok(true);
        }
        if at != events.len() + 1 {
            return Err(format!("EVENTS: LOST: slot {slot} continues with {at} after {}", events.len()));
        }
        self.last.insert(change.key.clone(), (*slot, events.len()));
        events.push(change);
        Ok(false)
    }

    /// Checks that the last event of each key matches the object in the store.
    pub(crate) fn check(&self, seen: &BTreeMap<Key, Seen>, bucket: &str) -> Outcome {
        for ((_, name), state) in seen.iter().filter(|((of, _), _)| **of == *bucket) {
            let last = self.last.get(&**name).map(|(slot, n)| &self.slots[slot].1[*n]);
            let tag = match last {
                Some(change) if change.kind != EventKind::Delete => Some(tag_of(&change.etag)?),
                _ => None,
            };
            let there = state.as_ref().map(|(tag, _)| *tag);
            if tag != there {
                return Err(format!("EVENTS: {name} is {there:x?}, but its last event has {tag:x?}"));
            }
        }
        Ok(())
    }
}

/// The known state of a part.
#[derive(Debug, Clone, Default)]
pub(crate) struct Part {
    /// The acknowledged part.
    pub(crate) sure: Option<Piece>,
    /// Parts requested since then, without an acknowledgement.
    pub(crate) maybe: Vec<Piece>,
}

#[derive(Debug, Clone)]
pub(crate) enum UploadState {
    /// The upload is open.
    Open,
    /// A completion (this operation) or an abort is pending.
    Ending(Option<OpId>),
    /// The upload was completed or aborted.
    Removed,
}

/// The known state of an upload. Only one client at a time works on it.
#[derive(Debug, Clone)]
pub(crate) struct Upload {
    pub(crate) key: Key,
    pub(crate) id: String,
    pub(crate) parts: BTreeMap<u16, Part>,
    pub(crate) state: UploadState,
    pub(crate) in_hand: bool,
    /// Set while the upload's disk is missing: whether the store had been closed when the disk was
    /// last present.
    pub(crate) clean_then: Option<bool>,
}

impl Upload {
    /// The key and the ID of the upload.
    pub(crate) fn place(&self) -> (&Key, &str) {
        (&self.key, &self.id)
    }
}

/// Asynchronous writes, each with the time of its acknowledgement.
pub(crate) type Unflushed = Vec<(Duration, OpId)>;
