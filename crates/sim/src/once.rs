//! Keys that are used once, beside objects that stay: their deletes must not pile up.

use std::time::Duration;

use bytes::Bytes;
use steadfast_log::Durability;
use steadfast_store::Condition;

use crate::client::{Client, Outcome, attributes};
use crate::plan::Plan;

/// Compaction is at rest when nothing has changed for so long.
const REST: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(120);

/// How many there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OncePlan {
    keys: u64,
    /// Records that a start replays afterwards without an index, at most.
    pub(crate) replayed_max: u64,
}

impl Plan {
    /// In the last life, keys come and go that are never used again.
    pub(crate) fn use_once(&mut self) {
        self.once = Some(OncePlan { keys: 1_500, replayed_max: 1_000 });
        self.drain = false;
    }
}

impl Client {
    /// Makes and deletes each of them, and waits until compaction finds nothing more to do.
    pub(crate) async fn come_and_go(&self, plan: OncePlan) -> Outcome {
        for number in 0..plan.keys {
            let key = format!("once/{number}");
            // A pool may be full for a while: only this loop tries again.
            while !self.put_once(&key, number).await? {
                self.env.sleep(Duration::from_millis(50)).await;
            }
            self.delete_once(&key).await?;
        }
        let (begun, mut since, mut last) = (self.env.now(), self.env.now(), None);
        while self.env.now() - since < REST {
            let status = self.store.status().log;
            let now = (status.compaction.recycled, status.compaction.records_moved, status.extents.free);
            if last.replace(now) != Some(now) {
                since = self.env.now();
            }
            if self.env.now() - begun > PATIENCE {
                return Err(format!("COMPACTION: it is never at rest: {:?}", status.compaction));
            }
            self.env.sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    async fn put_once(&self, key: &str, number: u64) -> Outcome<bool> {
        let bucket = &self.shared.buckets[0].0;
        let mut writer = match self.store.writer(bucket, key, Some(100)).await {
            Ok(writer) => writer,
            Err(error) => return self.shared.write_may_fail(&error).map(|_| false),
        };
        if let Err(error) = writer.write(Bytes::from_static(&[7; 100])).await {
            return self.shared.write_may_fail(&error).map(|_| false);
        }
        match writer.commit(attributes(number), Condition::None, Some(Durability::Sync)).await {
            Ok(_) => Ok(true),
            Err(error) => self.shared.write_may_fail(&error).map(|_| false),
        }
    }

    async fn delete_once(&self, key: &str) -> Outcome {
        let bucket = &self.shared.buckets[0].0;
        let begun = self.env.now();
        while let Err(error) = self.store.delete(bucket, key, Condition::None, Some(Durability::Sync)).await {
            self.shared.write_may_fail(&error)?;
            if self.env.now() - begun > PATIENCE {
                return Err(format!("{key} cannot be deleted: {error:?}"));
            }
            self.env.sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}
