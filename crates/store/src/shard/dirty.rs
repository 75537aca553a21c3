//! Changes to slots that are being copied to another disk: recorded as records are applied, and
//! copied again by the mover.

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

/// An entity that a slot holds. Entities are copied in this order: a part needs its upload.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Entity {
    /// An unfinished upload, without its parts.
    Upload { bucket: BucketId, key: Bytes, upload: Id },
    /// A part of an upload.
    Part { bucket: BucketId, key: Bytes, upload: Id, number: u16 },
    /// An object.
    Object { bucket: BucketId, key: Bytes },
    /// A channel with its publications.
    Channel { name: Bytes },
}

impl Entity {
    /// The bucket and the key (of a channel: its name), which determine the slot.
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

struct DirtyState {
    slots: SlotSet,
    entities: BTreeSet<Entity>,
    max: usize,
}

/// The changed entities of slots that are being copied. It records nothing unless
/// [`Dirty::start`] was called.
#[derive(Default)]
pub(crate) struct Dirty {
    active: AtomicBool,
    state: Mutex<Option<DirtyState>>,
    taken: Notify,
}

impl Dirty {
    /// Records changes to these slots from now on; at most `max`, plus what is submitted already,
    /// before writers must wait.
    pub(crate) fn start(&self, slots: SlotSet, max: usize) {
        *self.state.lock() = Some(DirtyState { slots, entities: BTreeSet::new(), max });
        self.active.store(true, Ordering::SeqCst);
    }

    /// Stops recording.
    pub(crate) fn stop(&self) {
        self.active.store(false, Ordering::SeqCst);
        *self.state.lock() = None;
        self.taken.notify_waiters();
    }

    /// Records that a record of this entity was applied. The applier calls it after the index has
    /// the record.
    pub(crate) fn note(&self, bucket: BucketId, key: &[u8], entity: impl FnOnce(Bytes) -> Entity) {
        if !self.active.load(Ordering::SeqCst) {
            return;
        }
        if let Some(state) = self.state.lock().as_mut()
            && state.slots.contains(slot_of(bucket, key))
        {
            state.entities.insert(entity(Bytes::copy_from_slice(key)));
        }
    }

    /// The entities that changed since the last call.
    pub(crate) fn take(&self) -> BTreeSet<Entity> {
        let entities = self.state.lock().as_mut().map(|state| std::mem::take(&mut state.entities)).unwrap_or_default();
        self.taken.notify_waiters();
        entities
    }

    /// Returns taken entities that were not copied.
    pub(crate) fn put_back(&self, entities: BTreeSet<Entity>) {
        if let Some(state) = self.state.lock().as_mut() {
            state.entities.extend(entities);
        }
    }

    /// How many entities have changed since the last [`Dirty::take`].
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.state.lock().as_ref().map_or(0, |state| state.entities.len())
    }

    /// Whether writers to this slot must wait until the mover has caught up.
    pub(crate) fn is_full(&self, slot: usize) -> bool {
        self.active.load(Ordering::Relaxed)
            && self.state.lock().as_ref().is_some_and(|s| s.entities.len() >= s.max && s.slots.contains(slot))
    }

    /// Waits until the slot accepts writes again.
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

    fn object(bucket: BucketId) -> impl FnOnce(Bytes) -> Entity {
        move |key| Entity::Object { bucket, key }
    }

    #[tokio::test]
    async fn notes_only_watched_slots_and_blocks_writers_when_full() {
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
