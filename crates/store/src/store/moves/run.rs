//! The mover: moves batch after batch, until every slot is at its goal.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use steadfast_flow::has_fault;
use steadfast_log::{LogError, Lsn};

use super::commit::{LayoutWriter, Next};
use super::copy::{Copier, CopyError};
use super::sweep::{Sweeper, name_of};
use super::{Stop, UNMOVABLE_MAX};
use crate::layout::{Layout, SLOTS};
use crate::plan::Batch;
use crate::shard::dirty::{Dirty, Entity, SlotSet};
use crate::shard::{Shard, scan};
use crate::status::{MoveState, Unmovable};
use crate::store::Store;
use crate::store::topology::Topology;
use crate::{StoreError, StoreOptions, StoreSabotage};

/// Maximum bytes copied while the gates are closed.
const LAST_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of entities copied while the gates are closed.
const LAST_ENTITIES_MAX: usize = 1000;

/// Rounds that keep to the pace. Later rounds do not: otherwise the mover would never catch up with
/// faster writes.
const PACED_ROUNDS: u32 = 6;

/// Time before gates that could not be closed are tried again.
const GATE_RETRY: Duration = Duration::from_millis(50);

/// Time before it is looked again whether the archive has what was copied.
const ARCHIVE_RETRY: Duration = Duration::from_millis(200);

/// Time that writers have to finish on a disk that leaves the pool.
const LEAVE_WAIT: Duration = Duration::from_secs(60);

/// Stops the recording of changes when dropped.
struct Noting<'a>(&'a Dirty);

impl Drop for Noting<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// One batch being moved.
struct Passage {
    batch: Batch,
    copier: Copier,
    /// Its slots that cannot be moved.
    blocked: BTreeSet<usize>,
}

impl Passage {
    fn slots(&self) -> Vec<usize> {
        self.batch.slots.iter().copied().filter(|slot| !self.blocked.contains(slot)).collect()
    }
}

/// Moves keys to their homes. It has the turn.
pub(super) struct Mover {
    pub(super) store: Store,
}

impl Mover {
    /// Moves all slots to their goals; returns when it ends, for whatever reason.
    pub(super) async fn run(self) {
        let ended = AssertUnwindSafe(self.moves_to_end()).catch_unwind().await;
        // A panic must not keep the turn for ever: what was committed counts, and the rest
        // continues as after a crash.
        let ended = ended.unwrap_or_else(|_| {
            Err(Stop::Failed("the mover has panicked, which is a bug: please report it".to_owned()))
        });
        let now = self.store.0.env.wall_ms();
        self.store.0.moves.update(|status| {
            status.ended_ms = Some(now);
            (status.state, status.error) = match &ended {
                Ok(()) => (MoveState::Done, None),
                Err(Stop::Stopping) => (MoveState::Stopped, None),
                Err(Stop::Failed(why)) => (MoveState::Failed, Some(why.clone())),
            };
            status.step = String::new();
            // Inside the update, so that a caller that sees the end may begin, and its new state is
            // not overwritten.
            self.store.0.moves.end();
        });
        match ended {
            Ok(()) => tracing::info!("all keys are at their home disks"),
            Err(Stop::Stopping) => tracing::info!(
                "the move of keys between disks was interrupted; the next start \
             continues it"
            ),
            Err(Stop::Failed(why)) => tracing::error!(%why, "the move of keys between disks failed"),
        }
    }

    fn step(&self, step: &str) {
        self.store.0.moves.update(|status| status.step = step.to_owned());
    }

    fn check_stopping(&self) -> Result<(), Stop> {
        if self.store.0.moves.is_stopping() { Err(Stop::Stopping) } else { Ok(()) }
    }

    async fn moves_to_end(&self) -> Result<(), Stop> {
        let mut blocked = BTreeSet::new();
        LayoutWriter(&self.store).level().await?;
        self.step("removing leftovers of earlier runs");
        Sweeper(&self.store).sweep_all().await?;
        loop {
            self.check_stopping()?;
            let topology = self.store.topology();
            let Some(layout) = topology.layout() else { return Ok(()) };
            let shards = topology.all()?;
            let Some(batch) =
                layout.next_batch(&blocked, |from| self.slots_at_once(shards[from], layout.slots_of(from)))
            else {
                break;
            };
            let copier = Copier {
                from: shards[batch.from].clone(),
                to: shards[batch.to].clone(),
                pace: Some(self.store.0.moves.pace.clone()),
                env: self.store.0.env.clone(),
                options: Arc::new(self.store.0.options.clone()),
            };
            drop(topology);
            blocked.append(&mut self.move_batch(batch, copier).await?);
        }
        self.finish(&blocked).await
    }

    /// Number of slots of a disk that move at a time.
    fn slots_at_once(&self, shard: &Shard, slots: usize) -> usize {
        let bytes = shard.status().object_bytes.max(1);
        let fit = u128::from(self.store.0.options.move_batch_bytes) * slots as u128 / u128::from(bytes);
        (fit.min(SLOTS as u128 / 16) as usize).max(1)
    }

    /// Moves a batch. Returns those of its slots that cannot be moved.
    async fn move_batch(&self, batch: Batch, copier: Copier) -> Result<BTreeSet<usize>, Stop> {
        let source = copier.from.clone();
        let slots: SlotSet = batch.slots.iter().copied().collect();
        if !has_fault(self.store.0.options.sabotage, StoreSabotage::ChangesLeftBehind) {
            source.applied.dirty.start(slots, self.store.0.options.move_dirty_max.max(1));
        }
        let noting = Noting(&source.applied.dirty);
        let mut passage = Passage { batch, copier, blocked: BTreeSet::new() };
        self.step("copying");
        self.copy_slots(&mut passage, slots).await?;
        let copied = copied_lsn(&passage.copier.to).await?;
        let mut rounds = 0;
        let quick = self.store.0.options.write_wait / 20;
        loop {
            self.check_stopping()?;
            if passage.slots().is_empty() {
                return Ok(passage.blocked);
            }
            let begun = self.store.0.env.now();
            let changed = source.applied.dirty.take();
            let none = changed.is_empty();
            if rounds == PACED_ROUNDS {
                passage.copier.pace = None;
            }
            rounds += 1;
            self.step("copying changes");
            self.copy_changed(&mut passage, changed).await?;
            if !self.is_archived(&passage.copier.to, copied) {
                // Changes are copied meanwhile, so that writers never wait for the archive.
                self.step("waiting for the archive");
                self.store.0.env.sleep(ARCHIVE_RETRY).await;
                continue;
            }
            if none || self.store.0.env.now().saturating_sub(begun) < quick || rounds > PACED_ROUNDS {
                if self.try_switch(&mut passage).await? {
                    break;
                }
                self.store.0.env.sleep(GATE_RETRY).await;
            }
        }
        drop(noting);
        let topology = self.store.topology();
        self.step("removing moved keys");
        LayoutWriter(&self.store).all_agree(&topology)?;
        if let Some(owned) = topology.owned(passage.batch.from) {
            Sweeper(&self.store).sweep(&source, owned).await?;
        }
        Ok(passage.blocked)
    }

    /// Whether the archive, if there is one, has the records of a disk up to this one.
    fn is_archived(&self, shard: &Shard, lsn: Lsn) -> bool {
        let gate = self.store.0.options.move_gate.as_ref();
        gate.is_none_or(|gate| gate.has(shard.log().superblock().pool, lsn))
    }

    /// Copies all entities of the batch as the index scan finds them.
    async fn copy_slots(&self, passage: &mut Passage, slots: SlotSet) -> Result<(), Stop> {
        let mut from = Some(scan::start());
        while let Some(at) = from {
            let applied = passage.copier.from.applied.clone();
            let page = self.store.0.env.blocking(move || scan::scan(&applied, &at, |slot| slots.contains(slot))).await;
            let page = page.ok_or_else(|| Stop::Failed("reading the index failed".to_owned()))??;
            from = page.next;
            let (uploads, objects): (Vec<_>, Vec<_>) =
                page.entities.into_iter().partition(|entity| matches!(entity, Entity::Upload { .. }));
            self.copy_each(passage, objects).await?;
            for entity in uploads {
                let parts = parts_of(&passage.copier.from, &entity)?;
                self.copy_each(passage, vec![entity]).await?;
                self.copy_each(passage, parts).await?;
            }
        }
        Ok(())
    }

    /// Copies changed entities again: uploads before their parts.
    async fn copy_changed(&self, passage: &mut Passage, changed: BTreeSet<Entity>) -> Result<(), Stop> {
        let (uploads, rest): (Vec<_>, Vec<_>) =
            changed.into_iter().partition(|entity| matches!(entity, Entity::Upload { .. }));
        self.copy_each(passage, uploads).await?;
        self.copy_each(passage, rest).await
    }

    /// Copies entities, a few at a time. An unreadable one keeps its slot in place.
    async fn copy_each(&self, passage: &mut Passage, entities: Vec<Entity>) -> Result<(), Stop> {
        let copier = passage.copier.clone();
        let blocked = passage.blocked.clone();
        let entities = entities.into_iter().filter(|entity| !blocked.contains(&entity.slot()));
        let copies = stream::iter(entities).map(|entity| {
            let copier = &copier;
            async move {
                let copied = copier.copy(&entity).await;
                (entity, copied)
            }
        });
        let mut copies = copies.buffer_unordered(self.store.0.options.move_parallel.max(1));
        let mut stopping = self.store.0.moves.stopping.subscribe();
        loop {
            // An interrupted copy is garbage, and a copy of a large object takes long.
            let copied = tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => return Err(Stop::Stopping),
                copied = copies.next() => copied,
            };
            let Some((entity, copied)) = copied else { return Ok(()) };
            match copied {
                Ok(bytes) => self.store.0.moves.update(|status| {
                    status.copied += 1;
                    status.copied_bytes += bytes;
                }),
                Err(CopyError::Unreadable(e)) => {
                    passage.blocked.insert(entity.slot());
                    self.unmovable(&passage.copier.from, &entity, &e);
                }
                Err(CopyError::Failed(e)) => return Err(e.into()),
            }
        }
    }

    fn unmovable(&self, shard: &Shard, entity: &Entity, e: &StoreError) {
        let unmovable = Unmovable { name: name_of(shard, entity), why: e.to_string() };
        tracing::error!(name = %unmovable.name, why = %unmovable.why, "it cannot be read, so it cannot be moved");
        self.store.0.moves.update(|status| {
            if status.unmovable.contains(&unmovable) {
                return;
            }
            status.unmovable_total += 1;
            if status.unmovable.len() < UNMOVABLE_MAX {
                status.unmovable.push(unmovable);
            }
        });
    }

    /// Closes the gates of the batch, copies the rest, and makes the goal the home. Returns whether
    /// that succeeded; if not, the gates are open again and nothing has changed.
    async fn try_switch(&self, passage: &mut Passage) -> Result<bool, Stop> {
        let StoreOptions { write_wait, .. } = self.store.0.options;
        let slots = passage.slots();
        self.step("switching");
        let Some(closed) = self.store.0.gates.close(&slots, &self.store.0.env, write_wait / 4).await else {
            return Ok(false);
        };
        let source = passage.copier.from.clone();
        let applied = &source.applied;
        // The writers inside have left, but records of a cancelled one may still be in flight.
        match applied.wait_applied(applied.pending.last_submitted()).await {
            Ok(()) => {}
            Err(StoreError::Busy(_) | StoreError::Hangs) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
        let last = applied.dirty.take();
        let bytes: u64 = last.iter().map(|entity| passage.copier.size(entity)).sum();
        if last.len() > LAST_ENTITIES_MAX || bytes > LAST_BYTES_MAX {
            applied.dirty.put_back(last);
            return Ok(false);
        }
        let paced = passage.copier.pace.take();
        let copied = {
            let rest = async {
                self.copy_changed(passage, last.clone()).await?;
                if has_fault(self.store.0.options.sabotage, StoreSabotage::EarlySwitch) {
                    return Ok(());
                }
                passage.copier.to.log().flush().await.map(drop).map_err(|e| Stop::from(StoreError::from(e)))
            };
            self.store.0.env.timeout(write_wait / 4, rest).await
        };
        passage.copier.pace = paced;
        match copied {
            // An entity turned out to be unreadable: its slot stays.
            Some(Ok(())) if passage.slots() == slots => {}
            Some(Err(e)) => return Err(e),
            _ => {
                applied.dirty.put_back(last);
                return Ok(false);
            }
        }
        let now = self.store.topology();
        let layout = now.layout().ok_or_else(|| Stop::Failed("the pool has no layout".to_owned()))?.with_moved(&slots);
        let disuse = now.disuse();
        let next = Next { layout, members: now.members().to_vec(), first: &source, last: None };
        drop(now);
        let mut counts = false;
        let opened = || {
            counts = true;
            drop(closed);
        };
        let committed = LayoutWriter(&self.store).commit(next, opened).await;
        if let Err(StoreError::Busy(_) | StoreError::Hangs | StoreError::Log(LogError::Full | LogError::Busy { .. })) =
            committed
            && !counts
        {
            // Nothing was submitted. All entities were copied, and later changes are recorded.
            return Ok(false);
        }
        if committed.is_ok() {
            self.store.0.moves.update(|status| status.slots_done += slots.len() as u64);
            // All callers that looked up the old home have finished.
            disuse.await;
        }
        committed?;
        Ok(true)
    }

    /// When all slots are at their goals: marks the disks clean, and removes those that leave.
    async fn finish(&self, blocked: &BTreeSet<usize>) -> Result<(), Stop> {
        self.step("removing leftovers");
        Sweeper(&self.store).sweep_all().await?;
        if !blocked.is_empty() {
            let total = self.store.0.moves.status().map_or(0, |status| status.unmovable_total);
            return Err(Stop::Failed(format!(
                "{total} objects or channels cannot be read and keep {} slots from moving: restore, overwrite or delete them, abort such uploads, \
                 (history_remove for a channel), then resume",
                blocked.len()
            )));
        }
        loop {
            let topology = self.store.topology();
            let Some(layout) = topology.layout() else { return Ok(()) };
            let mut next = layout.next();
            next.seats.iter_mut().for_each(|seat| seat.unclean = false);
            let leaving = layout.seats.iter().position(|seat| seat.leaving && layout.seats.len() > 1);
            if leaving.is_none() && !layout.has_work() {
                return Ok(());
            }
            self.take_out(topology, next, leaving).await?;
        }
    }

    /// Commits that the disks are clean, and that one has left.
    async fn take_out(&self, topology: Arc<Topology>, next: Layout, leaving: Option<usize>) -> Result<(), Stop> {
        // No bucket may be created meanwhile, since one disk would learn of it and the others would
        // not.
        let _one = self.store.0.bucket_ops.lock().await;
        self.store.buckets().agreeing(&topology).await?;
        let shards = topology.all()?;
        let mut members = topology.members().to_vec();
        let Some(seat) = leaving else {
            let next = Next { layout: next, members, first: shards[0], last: None };
            return Ok(LayoutWriter(&self.store).commit(next, || ()).await?);
        };
        self.step("removing the disk");
        members.remove(seat);
        let mut layout = next.without_seat(seat);
        layout.generation = next.generation;
        let gone = shards[seat].clone();
        let first = shards[usize::from(seat == 0)];
        let disuse = topology.disuse();
        LayoutWriter(&self.store).commit(Next { layout, members, first, last: Some(&gone) }, || ()).await?;
        drop(shards);
        drop(topology);
        self.leave(gone, disuse).await;
        Ok(())
    }

    /// Closes a disk that has left, once it is unused.
    async fn leave(&self, gone: Shard, disuse: impl Future<Output = ()>) {
        let env = &self.store.0.env;
        let unused = async {
            disuse.await;
            // Writers move to their key's home with the next bytes that they receive.
            while gone.applied.owners.any() {
                env.sleep(GATE_RETRY).await;
            }
        };
        if env.timeout(LEAVE_WAIT, unused).await.is_none() {
            tracing::warn!("stalled uploads on the leaving disk were cut off");
        }
        if let Err(e) = gone.close().await {
            tracing::warn!(error = %e, "the removed disk could not be closed cleanly");
        }
    }
}

/// The last record of a disk, which is durable.
async fn copied_lsn(to: &Shard) -> Result<Lsn, Stop> {
    to.log().flush().await.map_err(|e| Stop::from(StoreError::from(e)))
}

fn parts_of(shard: &Shard, entity: &Entity) -> Result<Vec<Entity>, StoreError> {
    let Entity::Upload { bucket, key, upload } = entity else { return Ok(Vec::new()) };
    let part = |number| Entity::Part { bucket: *bucket, key: key.clone(), upload: *upload, number };
    Ok(scan::part_numbers(&shard.applied, upload)?.into_iter().map(part).collect())
}
