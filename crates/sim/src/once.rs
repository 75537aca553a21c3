//! Keys that are used once, among objects that stay: their delete records must not accumulate.

use std::time::Duration;

use bytes::Bytes;
use steadfast_log::Durability;
use steadfast_store::Condition;

use crate::client::Client;
use crate::drain::{is_crowded, space};
use crate::outcome::Outcome;
use crate::plan::{OncePlan, Plan};
use crate::tags::attributes;

/// Time without any change after which compaction counts as idle.
const REST: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(120);
/// Extents that a small chunk cannot take: the open one, the prepared one, and the reserve.
const EXTENTS_OF_COMMITS: u64 = 4;

impl Plan {
    /// Adds single-use keys to the last life.
    pub(crate) fn use_once(&mut self) {
        self.once = Some(OncePlan { keys: 1_500, replayed_max: 1_000 });
        self.drain = false;
    }
}

impl Client {
    /// Creates and deletes each key, and waits until compaction is idle.
    pub(crate) async fn put_and_delete_once(&self, plan: OncePlan) -> Outcome {
        for number in 0..plan.keys {
            let key = format!("once/{number}");
            let begun = self.env.now();
            // The pool may be full for a while. Only this loop retries.
            while !self.put_once(&key, number).await? {
                if self.env.now() - begun > PATIENCE {
                    // The objects that stay have filled the pool.
                    return match is_crowded(&self.store, EXTENTS_OF_COMMITS) {
                        true => Ok(()),
                        false => Err(format!("STARVED: {key} finds no space: {}", space(&self.store))),
                    };
                }
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
                return Err(format!("COMPACTION: it never becomes idle: {:?}", status.compaction));
            }
            self.env.sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    async fn put_once(&self, key: &str, number: u64) -> Outcome<bool> {
        let bucket = &self.shared.buckets[0].0;
        let mut writer = match self.store.at(bucket, key).writer(Some(100)).await {
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
        while let Err(error) = self.store.at(bucket, key).delete(Condition::None, Some(Durability::Sync)).await {
            self.shared.write_may_fail(&error)?;
            if self.env.now() - begun > PATIENCE {
                return Err(format!("{key} cannot be deleted: {error:?}"));
            }
            self.env.sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}
