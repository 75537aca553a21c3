//! What changes of some slots while they are being copied to another disk: noted as records are applied, copied again by the mover.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::layout::{SLOTS, slot_of};
use crate::record::keys::{BucketId, CHANNELS, Id};

/// A set of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotSet([u64; SLOTS / 64]);

impl SlotSet {
    pub(crate) fn contains(&self, slot: usize) -> bool {
        self.0[slot / 64] >> (slot % 64) & 1 == 1
    }
}

impl FromIterator<usize> for SlotSet {
    fn from_iter<T: IntoIterator<Item = usize>>(slots: T) -> Self {
        let mut bits = [0; SLOTS / 64];
        slots.into_iter().for_each(|slot| bits[slot / 64] |= 1 << (slot % 64));
        Self(bits)
    }
}

/// Something that a shard keeps by itself. In this order they are copied: a part needs its upload.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Thing {
    /// An upload that is going on, without its parts.
    Upload { bucket: BucketId, key: Bytes, upload: Id },
    /// A part of one.
    Part { bucket: BucketId, key: Bytes, upload: Id, number: u16 },
    /// An object.
    Object { bucket: BucketId, key: Bytes },
    /// A channel with its publications.
    Channel { name: Bytes },
}

impl Thing {
    /// The bucket and the key (of a channel: its name), which say the slot.
    pub(crate) fn place(&self) -> (BucketId, &Bytes) {
        match self {
            Self::Upload { bucket, key, .. } | Self::Part { bucket, key, .. } | Self::Object { bucket, key } => {
                (*bucket, key)
            }
            Self::Channel { name } => (CHANNELS, name),
        }
    }

    pub(crate) fn slot(&self) -> usize {
        let (bucket, key) = self.place();
        slot_of(bucket, key)
    }
}

struct State {
    slots: SlotSet,
    things: BTreeSet<Thing>,
    max: usize,
}

/// See the module. Nothing is noted unless [`Dirty::start`] was called.
#[derive(Default)]
pub(crate) struct Dirty {
    active: AtomicBool,
    state: Mutex<Option<State>>,
    taken: Notify,
}

impl Dirty {
    /// From now on changes of these slots are noted; at most `max`, plus what is submitted already, before writers have to wait.
    pub(crate) fn start(&self, slots: SlotSet, max: usize) {
        *self.state.lock() = Some(State { slots, things: BTreeSet::new(), max });
        self.active.store(true, Ordering::SeqCst);
    }

    /// Nothing is noted any more.
    pub(crate) fn stop(&self) {
        self.active.store(false, Ordering::SeqCst);
        *self.state.lock() = None;
        self.taken.notify_waiters();
    }

    /// A record about this has been applied. Called by the applier, after the index has it.
    pub(crate) fn note(&self, bucket: BucketId, key: &[u8], thing: impl FnOnce(Bytes) -> Thing) {
        if !self.active.load(Ordering::SeqCst) {
            return;
        }
        if let Some(state) = self.state.lock().as_mut()
            && state.slots.contains(slot_of(bucket, key))
        {
            state.things.insert(thing(Bytes::copy_from_slice(key)));
        }
    }

    /// What has changed since the last call.
    pub(crate) fn take(&self) -> BTreeSet<Thing> {
        let things = self.state.lock().as_mut().map(|state| std::mem::take(&mut state.things)).unwrap_or_default();
        self.taken.notify_waiters();
        things
    }

    /// Gives back what was taken and not copied after all.
    pub(crate) fn put_back(&self, things: BTreeSet<Thing>) {
        if let Some(state) = self.state.lock().as_mut() {
            state.things.extend(things);
        }
    }

    /// How many things have changed since the last [`Dirty::take`].
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.state.lock().as_ref().map_or(0, |state| state.things.len())
    }

    /// Whether a writer to this slot has to wait until the mover has caught up.
    pub(crate) fn is_full(&self, slot: usize) -> bool {
        self.active.load(Ordering::Relaxed)
            && self.state.lock().as_ref().is_some_and(|s| s.things.len() >= s.max && s.slots.contains(slot))
    }

    /// Waits until there is room again for the slot.
    pub(crate) async fn room(&self, slot: usize) {
        loop {
            let mut taken = std::pin::pin!(self.taken.notified());
            taken.as_mut().enable();
            if !self.is_full(slot) {
                return;
            }
            taken.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(bucket: BucketId) -> impl FnOnce(Bytes) -> Thing {
        move |key| Thing::Object { bucket, key }
    }

    #[tokio::test]
    async fn only_what_is_asked_for_is_noted_and_writers_wait_when_it_is_much() {
        let dirty = Dirty::default();
        dirty.note(1, b"k", object(1));
        let slot = slot_of(1, b"k");
        dirty.start([slot].into_iter().collect(), 1);
        assert_eq!((dirty.len(), dirty.is_full(slot)), (0, false));
        let other = (0..).map(|n| format!("k{n}")).find(|k| slot_of(1, k.as_bytes()) != slot).expect("one");
        dirty.note(1, other.as_bytes(), object(1));
        assert_eq!(dirty.len(), 0);
        dirty.note(1, b"k", object(1));
        dirty.note(1, b"k", object(1));
        assert_eq!((dirty.len(), dirty.is_full(slot), dirty.is_full(slot ^ 1)), (1, true, false));
        let (mut room, mut pinned) = (false, std::pin::pin!(dirty.room(slot)));
        assert!(futures::poll!(pinned.as_mut()).is_pending());
        assert_eq!(dirty.take().len(), 1);
        pinned.await;
        room |= !dirty.is_full(slot);
        assert!(room && dirty.len() == 0);
        dirty.note(1, b"k", object(1));
        dirty.stop();
        assert_eq!((dirty.take().len(), dirty.is_full(slot)), (0, false));
    }
}
