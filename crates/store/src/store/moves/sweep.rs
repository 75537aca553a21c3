//! Deletion of keys that a disk holds without being their home.

use steadfast_log::{Durability, Priority, Record};

use super::Stop;
use super::commit::LayoutWriter;
use crate::layout::Owned;
use crate::record::keys::BucketId;
use crate::record::object::id_to_text;
use crate::record::{Head, keys};
use crate::shard::Shard;
use crate::shard::dirty::Entity;
use crate::shard::pending::PendingState;
use crate::shard::submit::{KeyAccess, Precondition, Refusal, Submission};
use crate::shard::{scan, submit};
use crate::store::Store;
use crate::{StoreError, StoreOptions};

/// Maximum number of records in one commit.
const BATCH_MAX: usize = 256;

/// Deletes these entities by records, without preconditions, and does not wait for the flush.
pub(super) async fn forget(shard: &Shard, entities: &[Entity]) -> Result<(), StoreError> {
    let batch_max = shard.log().limits().batch_bytes_max / 2;
    let mut rest = entities;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = rest.iter().take(BATCH_MAX).take_while(|entity| {
            bytes += entity.place().1.len() as u64 + 256;
            bytes <= batch_max
        });
        let (now, later) = rest.split_at(fits.count().max(1));
        forget_batch(shard, now).await?;
        rest = later;
    }
    Ok(())
}

async fn forget_batch(shard: &Shard, entities: &[Entity]) -> Result<(), StoreError> {
    let mut batch = Vec::with_capacity(entities.len());
    let mut accesses = Vec::with_capacity(entities.len());
    for entity in entities {
        let (head, key) = match entity {
            Entity::Object { bucket, key } => {
                (Head::ObjectDelete { bucket: *bucket, key }.encode(), keys::object(*bucket, key))
            }
            Entity::Upload { bucket, key, upload } => {
                let head = Head::UploadEnd { bucket: *bucket, upload: *upload, key }.encode();
                (head, keys::upload(*bucket, key, upload))
            }
            // No precondition depends on a channel's pending records.
            Entity::Channel { name } => {
                let head = Head::ChannelEnd { channel: name }.encode();
                batch.push(Record { head: head.into(), ..Record::default() });
                continue;
            }
            // Parts are deleted with their upload.
            Entity::Part { .. } => continue,
        };
        let becomes = Some((PendingState::Absent, batch.len() as u64));
        accesses.push(KeyAccess { key: key.into(), precondition: Precondition::Nothing, becomes });
        batch.push(Record { head: head.into(), ..Record::default() });
    }
    if batch.is_empty() {
        return Ok(());
    }
    let room = shard.writes.reserve(submit::batch_bytes(&batch), Priority::Delete).await?;
    match Submission::new(&accesses, room, batch, Durability::Async).submit(&shard.writes).await {
        Ok(ticket) => shard.writes.committed(ticket).await.map(drop),
        Err(Refusal::Error(e)) => Err(e),
        Err(Refusal::Unmet(..)) => Ok(()),
    }
}

/// Deletes keys from disks that are not their home.
pub(super) struct Sweeper<'a>(pub(super) &'a Store);

impl Sweeper<'_> {
    /// Deletes foreign entities on all unclean disks. Only while all disks agree.
    pub(super) async fn sweep_all(&self) -> Result<(), Stop> {
        let topology = self.0.topology();
        LayoutWriter(self.0).all_agree(&topology)?;
        for (seat, shard) in topology.all()?.into_iter().enumerate() {
            if let Some(owned) = topology.owned(seat) {
                self.sweep(shard, owned).await?;
            }
        }
        Ok(())
    }

    /// Deletes foreign entities on a disk. Only while all disks agree about the layout that makes
    /// them foreign.
    pub(super) async fn sweep(&self, shard: &Shard, owned: Owned) -> Result<(), Stop> {
        let mut from = Some(scan::start());
        let mut any = false;
        while let Some(at) = from {
            if self.0.0.moves.is_stopping() {
                return Err(Stop::Stopping);
            }
            let (applied, owned) = (shard.applied.clone(), owned.clone());
            let page = self.0.0.env.blocking(move || scan::scan(&applied, &at, |slot| !owned.has_slot(slot))).await;
            let page = page.ok_or_else(|| Stop::Failed("reading the index failed".to_owned()))??;
            any |= !page.entities.is_empty();
            let mut stopping = self.0.0.moves.stopping.subscribe();
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => return Err(Stop::Stopping),
                swept = patiently(&self.0.0.options, &self.0.0.env, || forget(shard, &page.entities)) => swept?,
            }
            self.0.0.moves.update(|status| status.swept += page.entities.len() as u64);
            from = page.next;
        }
        if any {
            shard.log().flush().await.map_err(StoreError::from)?;
        }
        Ok(())
    }
}

/// Retries while a budget is exhausted or a disk hangs.
pub(super) async fn patiently<T, F: Future<Output = Result<T, StoreError>>>(
    options: &StoreOptions,
    env: &steadfast_flow::Env,
    mut work: impl FnMut() -> F,
) -> Result<T, StoreError> {
    let pause = options.write_wait / 20;
    loop {
        match work().await {
            Err(StoreError::Busy(_) | StoreError::Hangs) => env.sleep(pause).await,
            done => return done,
        }
    }
}

/// An entity's description for operators.
pub(super) fn name_of(shard: &Shard, entity: &Entity) -> String {
    let path = |bucket: BucketId, key: &[u8]| {
        let known = shard.applied.registry.read().by_id.get(&bucket).cloned();
        let bucket = known.map_or_else(|| format!("(bucket {bucket:016x})"), |bucket| bucket.name.clone());
        format!("{bucket}/{}", String::from_utf8_lossy(key).escape_debug())
    };
    match entity {
        Entity::Object { bucket, key } => format!("object {}", path(*bucket, key)),
        Entity::Upload { bucket, key, .. } => format!("upload of {}", path(*bucket, key)),
        Entity::Part { bucket, key, number, upload } => {
            format!("part {number} of the upload {} of {}", id_to_text(upload), path(*bucket, key))
        }
        Entity::Channel { name } => format!("channel {}", String::from_utf8_lossy(name).escape_debug()),
    }
}
