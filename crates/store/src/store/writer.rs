//! Writing a body to wherever its key is at home: also when that changes meanwhile.

use bytes::Bytes;
use steadfast_log::Durability;

use super::Store;
use super::topology::Entered;
use crate::shard::Shard;
use crate::shard::writer::ShardWriter;
use crate::{Attributes, Condition, EventKind, StoreError, StoredObject, Written};

/// Takes the bytes of an object, or of a part, and commits it. Dropping it gives up: what it has written is garbage.
///
/// When its key moves to another disk, what was written is read back, verified, and written there.
pub struct ObjectWriter {
    store: Store,
    inner: ShardWriter,
    /// The layout by which `inner` is at home.
    generation: u64,
}

impl ObjectWriter {
    pub(super) fn new(store: Store, inner: ShardWriter) -> Self {
        // A layout that came between is noticed at the commit.
        let generation = store.generation();
        Self { store, inner, generation }
    }

    /// What happens is a copy, to those who want to know of it.
    pub fn is_a_copy(&mut self) {
        self.inner.told_as = Some(EventKind::Copy);
    }

    /// Bytes taken so far.
    pub fn size(&self) -> u64 {
        self.inner.size()
    }

    /// Takes the next bytes. Waits while as much is on its way to the disk as may be.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when there is no room in the budget for too long; those of the log. The writer is of no use then.
    pub async fn write(&mut self, data: Bytes) -> Result<(), StoreError> {
        let generation = self.store.generation();
        if self.generation != generation {
            let home = self.store.topology().home_of(self.inner.slot())?;
            if !self.inner.is_of(&home) {
                self.inner.move_to(&home).await?;
            }
            self.generation = generation;
        }
        self.inner.write(data).await
    }

    /// Waits until others want the room that this holds for bytes that have not come yet, and gives it up; completes only then. To be
    /// awaited beside the next bytes of a body that may be slow: one that stalls must not keep others out.
    pub async fn give_room(&mut self) {
        self.inner.give_room().await;
    }

    /// Passes the gate of the key's slot with everything where the key is at home.
    async fn arrive<'a>(&mut self, store: &'a Store) -> Result<Entered<'a>, StoreError> {
        loop {
            // Not while within: a slow disk would keep the slot from moving.
            self.inner.settle().await?;
            let home = store.enter_slot(self.inner.slot()).await?;
            if self.inner.is_of(&home) {
                return Ok(home);
            }
            let shard = Shard::clone(&home);
            drop(home);
            self.inner.move_to(&shard).await?;
        }
    }

    /// Makes the object, or the part, exist. Atomic: after a crash it is there whole, or what was there before.
    ///
    /// `condition` is not for parts. The durability is the bucket's when `durability` is `None`.
    ///
    /// # Errors
    /// [`StoreError::ConditionFailed`], [`StoreError::NoSuchBucket`], [`StoreError::NoSuchUpload`], [`StoreError::TooLarge`],
    /// [`StoreError::Unavailable`], those of the log; [`LogError::Unknown`](steadfast_log::LogError::Unknown) when it may or may not have
    /// been committed.
    pub async fn commit(
        mut self,
        attributes: Attributes,
        condition: Condition,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        let store = self.store.clone();
        if self.inner.told_as.is_some() && self.inner.has_listeners() {
            store.room_for_events().await?;
        }
        let home = self.arrive(&store).await?;
        home.said(self.inner.commit(attributes, condition, durability).await)
    }

    /// [`ObjectWriter::commit`] of an object that was stored before, here or elsewhere: with its time, its entity tag and its parts. Only
    /// the version is new. Not for the parts of an upload. Nobody is told of it: nothing happened to the object that had not before.
    ///
    /// # Errors
    /// Those of [`ObjectWriter::commit`]; [`StoreError::InvalidPartOrder`], and [`StoreError::InvalidPart`] when the sizes of the parts do not
    /// add up to the bytes that were written (with the number of the last).
    pub async fn commit_stored(
        mut self,
        stored: StoredObject,
        condition: Condition,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        let store = self.store.clone();
        self.inner.told_as = None;
        let home = self.arrive(&store).await?;
        home.said(self.inner.commit_stored(stored, condition, durability).await)
    }
}

#[cfg(test)]
impl ObjectWriter {
    /// The chunks that are on disk, when all that were launched are.
    pub(crate) async fn settled_chunks(&mut self) -> Vec<steadfast_log::Location> {
        self.inner.settled_chunks().await
    }
}

impl Store {
    /// Of the layout that counts; 0 where there is none.
    fn generation(&self) -> u64 {
        self.0.topology.load().layout().map_or(0, |layout| layout.generation)
    }
}

impl std::fmt::Debug for ObjectWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}
