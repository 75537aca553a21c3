//! A full pool must take writes again once enough has been deleted, without a restart.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use steadfast_log::Durability;
use steadfast_store::{Condition, StoreError};

use crate::client::{Asked, Client, Outcome, attributes};
use crate::model::{Demand, Key, Piece, Pieces, bytes_of};

const PATIENCE: Duration = Duration::from_secs(120);
const AGAIN: Duration = Duration::from_millis(200);
const OBJECT_BYTES: u64 = 4000;

impl Client {
    /// Deletes every object; then a write must succeed in bounded time, unless uploads hold the room.
    pub(crate) async fn drain(&self) -> Outcome {
        let deadline = self.env.now() + PATIENCE;
        for (bucket, _) in &self.shared.buckets {
            for name in &self.shared.keys {
                let key = (bucket.clone(), name.clone());
                while !self.try_delete(&key).await? {
                    if self.env.now() > deadline {
                        return Err(format!("{key:?} cannot be deleted: {:?}", self.store.status().log.extents));
                    }
                    self.env.sleep(AGAIN).await;
                }
            }
        }
        let key = (self.shared.buckets[0].0.clone(), self.shared.keys[0].clone());
        while !self.try_put(&key).await? {
            let status = self.store.status();
            let log = status.log;
            let crowded = status.disks.iter().filter_map(|disk| disk.extents.as_ref().map(|of| (of, disk))).any(
                |(extents, disk)| {
                    let extents_all = extents.free
                        + extents.growable
                        + extents.open_commit
                        + extents.open_body
                        + extents.sealed_commit
                        + extents.sealed_body;
                    (extents.live_commit_bytes + extents.live_body_bytes) * 2 > extents_all * disk.extent_bytes
                },
            );
            if crowded {
                return Ok(());
            }
            if self.env.now() > deadline {
                let (extents, compaction) = (log.extents, log.compaction);
                return Err(format!("STARVED: deletes gave no room back: {extents:?} {compaction:?} {:?}", log.usage));
            }
            self.env.sleep(AGAIN).await;
        }
        Ok(())
    }

    async fn try_delete(&self, key: &Key) -> Outcome<bool> {
        let asked = {
            let mut model = self.shared.model.lock();
            let start = model.tick();
            let id = model.begin_delete(key, Demand::None, false);
            Asked { key: key.clone(), start, id, demand: Demand::None }
        };
        let answer = self.store.delete(&key.0, &key.1, Condition::None, Some(Durability::Sync)).await;
        let done = answer.is_ok();
        self.settle(&asked, answer).map(|()| done)
    }

    async fn try_put(&self, key: &Key) -> Outcome<bool> {
        let refused = |error: StoreError| self.shared.write_may_fail(&error).map(|_| false);
        let tag = self.shared.model.lock().new_tag();
        let pieces: Pieces = Arc::from([Piece { id: tag, len: OBJECT_BYTES }]);
        let mut writer = match self.store.writer(&key.0, &key.1, Some(OBJECT_BYTES)).await {
            Ok(writer) => writer,
            Err(error) => return refused(error),
        };
        let data = Bytes::from(bytes_of(&pieces, 0, OBJECT_BYTES as usize));
        if let Err(error) = writer.write(data).await {
            return refused(error);
        }
        let asked = {
            let mut model = self.shared.model.lock();
            let start = model.tick();
            let id = model.begin_put(key, tag, vec![pieces], Demand::None, false);
            Asked { key: key.clone(), start, id, demand: Demand::None }
        };
        let answer = writer.commit(attributes(tag), Condition::None, Some(Durability::Sync)).await;
        let done = answer.is_ok();
        self.settle(&asked, answer).map(|()| done)
    }
}
