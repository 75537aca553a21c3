//! Writing of a body to its key's home, even if the home changes meanwhile.

use bytes::Bytes;
use steadfast_log::Durability;

use super::Store;
use super::topology::Entered;
use crate::shard::Shard;
use crate::shard::writer::ShardWriter;
use crate::{Attributes, Condition, EventKind, FillCondition, StoreError, StoredObject, Written};

/// Takes the bytes of an object or a part and commits it. Dropping it gives up: its chunks become
/// garbage.
///
/// When its key moves to another disk, the written bytes are read back, verified, and written
/// there.
pub struct ObjectWriter {
    store: Store,
    inner: ShardWriter,
    /// Generation of the layout by which `inner` is at home.
    generation: u64,
}

impl ObjectWriter {
    pub(super) fn new(store: Store, inner: ShardWriter) -> Self {
        // The commit notices a layout change in between.
        let generation = store.generation();
        Self { store, inner, generation }
    }

    /// Makes its event a copy instead of a put.
    pub fn is_a_copy(&mut self) {
        self.inner.event_kind = Some(EventKind::Copy);
    }

    /// Bytes taken so far.
    pub fn size(&self) -> u64 {
        self.inner.size()
    }

    /// Takes the next bytes. Waits while the maximum is in flight to the disk.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when the budget stays exhausted for too long; those of the log. The
    /// writer is unusable then.
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

    /// Waits until other writers need the budget held for bytes that have not arrived, and releases
    /// it; completes only then. To be awaited together with the next bytes of a body that may be
    /// slow: a stalled body must not block other writers.
    pub async fn give_room(&mut self) {
        self.inner.give_room().await;
    }

    /// Awaits `work`, which a client or another server may delay, and gives up the budget meanwhile
    /// when other writers need it.
    pub async fn give_room_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.give_room() => {}
            }
        }
    }

    /// Passes the gate of the key's slot, with the written bytes at the key's home.
    async fn arrive<'a>(&mut self, store: &'a Store) -> Result<Entered<'a>, StoreError> {
        loop {
            // Before the gate: a slow disk would keep the slot from moving.
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

    /// Commits the object or the part. Atomic: after a crash either the new one or the previous one
    /// exists.
    ///
    /// `condition` is not for parts. The durability is the bucket's when `durability` is `None`.
    ///
    /// # Errors
    /// [`StoreError::ConditionFailed`], [`StoreError::NoSuchBucket`], [`StoreError::NoSuchUpload`],
    /// [`StoreError::TooLarge`], [`StoreError::Unavailable`], those of the log;
    /// [`LogError::Unknown`](steadfast_log::LogError::Unknown) when it may or may not have been
    /// committed.
    pub async fn commit(
        mut self,
        attributes: Attributes,
        condition: Condition,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        let store = self.store.clone();
        if self.inner.event_kind.is_some() && self.inner.has_listeners() {
            store.room_for_events().await?;
        }
        let home = self.arrive(&store).await?;
        home.with_disk_name(self.inner.commit(attributes, condition, durability).await)
    }

    /// [`ObjectWriter::commit`] of an object that was stored before, here or elsewhere: keeps its
    /// time, entity tag and parts. Only the version is new. Not for the parts of an upload. It
    /// makes no event, since the object did not change.
    ///
    /// # Errors
    /// Those of [`ObjectWriter::commit`]; [`StoreError::InvalidPartOrder`], and
    /// [`StoreError::InvalidPart`] when the sizes of the parts do not add up to the bytes that were
    /// written (with the number of the last).
    pub async fn commit_stored(
        mut self,
        stored: StoredObject,
        condition: Condition,
        durability: Option<Durability>,
    ) -> Result<Written, StoreError> {
        let store = self.store.clone();
        self.inner.event_kind = None;
        let home = self.arrive(&store).await?;
        home.with_disk_name(self.inner.commit_stored(stored, condition, durability).await)
    }

    /// Commits an object fetched from an origin: without a flush, since it can be fetched again,
    /// and without an event. It keeps the time, entity tag and metadata of `stored`, which has no
    /// parts.
    ///
    /// # Errors
    /// Those of [`ObjectWriter::commit`].
    pub async fn commit_fill(mut self, stored: StoredObject, condition: &FillCondition) -> Result<Written, StoreError> {
        let store = self.store.clone();
        self.inner.event_kind = None;
        let home = self.arrive(&store).await?;
        home.with_disk_name(self.inner.commit_fill(stored, condition).await)
    }
}

#[cfg(test)]
impl ObjectWriter {
    /// The chunks on disk, when all launched ones are.
    pub(crate) async fn settled_chunks(&mut self) -> Vec<steadfast_log::Location> {
        self.inner.settled_chunks().await
    }
}

impl Store {
    /// Generation of the current layout; 0 without one.
    fn generation(&self) -> u64 {
        self.0.topology.load().layout().map_or(0, |layout| layout.generation)
    }
}

impl std::fmt::Debug for ObjectWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}
