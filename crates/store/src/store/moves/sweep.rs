//! Deleting what a disk holds and is not at home there.

use steadfast_log::{Durability, Priority, Record};

use super::Stop;
use crate::record::keys::BucketId;
use crate::record::object::id_to_text;
use crate::record::{Head, keys};
use crate::shard::Shard;
use crate::shard::core::{Expect, Refusal, Touch};
use crate::shard::dirty::Thing;
use crate::shard::pending::Fate;
use crate::shard::{scan, writer};
use crate::store::Store;
use crate::store::topology::Owned;
use crate::{StoreError, StoreOptions};

/// Records of one commit at most.
const BATCH_MAX: usize = 256;

impl Shard {
    /// Deletes these things by records, whatever they are, and does not wait for their flush.
    pub(super) async fn forget(&self, things: &[Thing]) -> Result<(), StoreError> {
        let batch_max = self.log().limits().batch_bytes_max / 2;
        let mut rest = things;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take(BATCH_MAX).take_while(|thing| {
                bytes += thing.place().1.len() as u64 + 256;
                bytes <= batch_max
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            self.forget_batch(now).await?;
            rest = later;
        }
        Ok(())
    }

    async fn forget_batch(&self, things: &[Thing]) -> Result<(), StoreError> {
        let core = &self.core;
        let mut batch = Vec::with_capacity(things.len());
        let mut touches = Vec::with_capacity(things.len());
        for thing in things {
            let (head, key) = match thing {
                Thing::Object { bucket, key } => {
                    (Head::ObjectDelete { bucket: *bucket, key }.encode(), keys::object(*bucket, key))
                }
                Thing::Upload { bucket, key, upload } => {
                    let head = Head::UploadEnd { bucket: *bucket, upload: *upload, key }.encode();
                    (head, keys::upload(*bucket, key, upload))
                }
                // Nobody asks what is pending of it.
                Thing::Channel { name } => {
                    let head = Head::ChannelEnd { channel: name }.encode();
                    batch.push(Record { head: head.into(), ..Record::default() });
                    continue;
                }
                // They go with their upload.
                Thing::Part { .. } => continue,
            };
            let fate = Some((Fate::Gone, batch.len() as u64));
            touches.push(Touch { key: key.into(), expect: Expect::Nothing, fate });
            batch.push(Record { head: head.into(), ..Record::default() });
        }
        if batch.is_empty() {
            return Ok(());
        }
        let mut room = Some(core.reserve(self.log(), writer::batch_bytes(&batch), Priority::Delete).await?);
        match core.submit(self.log(), &touches, &mut room, batch, Durability::Async).await {
            Ok(ticket) => core.committed(ticket).await.map(drop),
            Err(Refusal::Error(e)) => Err(e),
            Err(Refusal::Unmet(..)) => Ok(()),
        }
    }
}

impl Store {
    /// Deletes what is not at home on any disk that may hold such things. Only while all disks agree.
    pub(super) async fn sweep_all(&self) -> Result<(), Stop> {
        let topology = self.topology();
        self.all_agree(&topology)?;
        for (seat, shard) in topology.all()?.into_iter().enumerate() {
            if let Some(owned) = topology.owned(seat) {
                self.sweep(shard, owned).await?;
            }
        }
        Ok(())
    }

    /// Deletes what is not at home on a disk. Only while all disks agree about the layout by which it is not.
    pub(super) async fn sweep(&self, shard: &Shard, owned: Owned) -> Result<(), Stop> {
        let mut from = Some(scan::start());
        let mut any = false;
        while let Some(at) = from {
            if self.0.moves.is_stopping() {
                return Err(Stop::Stopping);
            }
            let (core, owned) = (shard.core.clone(), owned.clone());
            let page = self.0.env.blocking(move || core.scan(&at, |slot| !owned.has_slot(slot))).await;
            let page = page.ok_or_else(|| Stop::Failed("reading the index failed".to_owned()))??;
            any |= !page.things.is_empty();
            let mut stopping = self.0.moves.stopping.subscribe();
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => return Err(Stop::Stopping),
                swept = patiently(&self.0.options, &self.0.env, || shard.forget(&page.things)) => swept?,
            }
            self.0.moves.update(|status| status.swept += page.things.len() as u64);
            from = page.next;
        }
        if any {
            shard.log().flush().await.map_err(StoreError::from)?;
        }
        Ok(())
    }
}

/// Tries again while there is no room in a budget, or a disk hangs.
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

/// A thing's name, for people.
pub(super) fn name_of(shard: &Shard, thing: &Thing) -> String {
    let path = |bucket: BucketId, key: &[u8]| {
        let known = shard.core.registry.read().by_id.get(&bucket).cloned();
        let bucket = known.map_or_else(|| format!("(bucket {bucket:016x})"), |bucket| bucket.name.clone());
        format!("{bucket}/{}", String::from_utf8_lossy(key).escape_debug())
    };
    match thing {
        Thing::Object { bucket, key } => format!("object {}", path(*bucket, key)),
        Thing::Upload { bucket, key, .. } => format!("upload of {}", path(*bucket, key)),
        Thing::Part { bucket, key, number, upload } => {
            format!("part {number} of the upload {} of {}", id_to_text(upload), path(*bucket, key))
        }
        Thing::Channel { name } => format!("channel {}", String::from_utf8_lossy(name).escape_debug()),
    }
}
