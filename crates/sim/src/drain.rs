//! A full pool must accept writes again after enough deletes, without a restart.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use steadfast_log::Durability;
use steadfast_store::{Condition, Store, StoreError};

use crate::client::{Client, PendingWrite};
use crate::model::{Demand, Key, Piece, Pieces, bytes_of};
use crate::outcome::Outcome;
use crate::tags::attributes;

const PATIENCE: Duration = Duration::from_secs(120);
const RETRY_DELAY: Duration = Duration::from_millis(200);
const OBJECT_BYTES: u64 = 4000;

/// Whether live data takes more than half of a disk without `apart` of its extents, so that a write
/// may find no space.
pub(crate) fn is_crowded(store: &Store, apart: u64) -> bool {
    let status = store.status();
    let mut disks = status.disks.iter().filter_map(|disk| disk.extents.as_ref().map(|extents| (extents, disk)));
    disks.any(|(extents, disk)| {
        let extents_all = extents.free
            + extents.growable
            + extents.open_commit
            + extents.open_body
            + extents.sealed_commit
            + extents.sealed_body;
        let live = extents.live_commit_bytes + extents.live_body_bytes;
        live * 2 > extents_all.saturating_sub(apart) * disk.extent_bytes
    })
}

/// The space and its compaction, for a report.
pub(crate) fn space(store: &Store) -> String {
    let log = store.status().log;
    format!("{:?} {:?} {:?}", log.extents, log.compaction, log.usage)
}

impl Client {
    /// Deletes every object. Then a write must succeed in bounded time, unless uploads occupy the
    /// space.
    pub(crate) async fn drain(&self) -> Outcome {
        let deadline = self.env.now() + PATIENCE;
        for (bucket, _) in &self.shared.buckets {
            for name in &self.shared.keys {
                let key = (bucket.clone(), name.clone());
                while !self.try_delete(&key).await? {
                    if self.env.now() > deadline {
                        return Err(format!("{key:?} cannot be deleted: {:?}", self.store.status().log.extents));
                    }
                    self.env.sleep(RETRY_DELAY).await;
                }
            }
        }
        let key = (self.shared.buckets[0].0.clone(), self.shared.keys[0].clone());
        while !self.try_put(&key).await? {
            if is_crowded(&self.store, 0) {
                return Ok(());
            }
            if self.env.now() > deadline {
                return Err(format!("STARVED: deletes freed no space: {}", space(&self.store)));
            }
            self.env.sleep(RETRY_DELAY).await;
        }
        Ok(())
    }

    async fn try_delete(&self, key: &Key) -> Outcome<bool> {
        let write = {
            let mut model = self.shared.model.lock();
            let start = model.tick();
            let id = model.begin_delete(key, Demand::None, false);
            PendingWrite { key: key.clone(), start, id, demand: Demand::None }
        };
        let answer = self.store.at(&key.0, &key.1).delete(Condition::None, Some(Durability::Sync)).await;
        let done = answer.is_ok();
        self.settle(&write, answer).map(|()| done)
    }

    async fn try_put(&self, key: &Key) -> Outcome<bool> {
        let refused = |error: StoreError| self.shared.write_may_fail(&error).map(|_| false);
        let tag = self.shared.model.lock().new_tag();
        let pieces: Pieces = Arc::from([Piece { id: tag, len: OBJECT_BYTES }]);
        let mut writer = match self.store.at(&key.0, &key.1).writer(Some(OBJECT_BYTES)).await {
            Ok(writer) => writer,
            Err(error) => return refused(error),
        };
        let data = Bytes::from(bytes_of(&pieces, 0, OBJECT_BYTES as usize));
        if let Err(error) = writer.write(data).await {
            return refused(error);
        }
        let write = {
            let mut model = self.shared.model.lock();
            let start = model.tick();
            let id = model.begin_put(key, tag, vec![pieces], Demand::None, false);
            PendingWrite { key: key.clone(), start, id, demand: Demand::None }
        };
        let answer = writer.commit(attributes(tag), Condition::None, Some(Durability::Sync)).await;
        let done = answer.is_ok();
        self.settle(&write, answer).map(|()| done)
    }
}
