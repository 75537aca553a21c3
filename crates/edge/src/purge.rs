//! Purge: what was fetched before is not served any more, also after a crash.

use std::sync::atomic::{AtomicU64, Ordering};

use futures::{StreamExt, TryStreamExt, stream};
use steadfast_log::Durability;
use steadfast_store::{ListQuery, StoreError};

use crate::edge::{Edge, EdgeEntry};
use crate::error::EdgeError;
use crate::fresh::is_cached;
use crate::sabotage::Sabotage;

/// Keys that are purged at a time, so that one flush covers many.
const AT_ONCE: usize = 64;
/// Keys that are listed at a time.
const PAGE: usize = 1000;

impl Edge {
    /// Purges an object. Returns whether it was stored. One that a client wrote stays.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`] for a bucket without an origin, those of the store.
    pub async fn purge(&self, bucket: &str, key: &str) -> Result<bool, EdgeError> {
        let entry = self.entry_of(bucket)?;
        entry.bucket_state.inventory.space.counted().await;
        // Answers to earlier requests must not be used. Later ones are as new as the purge.
        entry.detach(|other| other == key);
        entry.bucket_state.remembered.forget(key);
        let removed = entry.remove(key).await?;
        if !removed {
            // It may have been removed just before, and come back after a crash.
            entry.flush().await?;
        }
        entry.abort_left_over(key).await?;
        // A fill that began meanwhile may have taken over old segments.
        entry.detach(|other| other == key);
        entry.bucket_state.remembered.forget(key);
        Ok(removed)
    }

    /// Purges all objects whose keys begin with `prefix`. Returns how many were stored.
    ///
    /// # Errors
    /// Those of [`Edge::purge`].
    pub async fn purge_prefix(&self, bucket: &str, prefix: &str) -> Result<u64, EdgeError> {
        let entry = self.entry_of(bucket)?;
        let store = &entry.bucket_state.store;
        entry.bucket_state.inventory.space.counted().await;
        entry.detach(|key| key.starts_with(prefix));
        entry.bucket_state.remembered.clear();
        let removed = AtomicU64::new(0);
        let mut query = ListQuery { prefix: prefix.to_owned(), limit: PAGE, ..ListQuery::default() };
        loop {
            let page = store.contents(bucket).objects(&query)?;
            stream::iter(page.objects)
                .map(Ok::<_, EdgeError>)
                .try_for_each_concurrent(AT_ONCE, async |object| {
                    removed.fetch_add(u64::from(entry.remove(&object.key).await?), Ordering::Relaxed);
                    Ok(())
                })
                .await?;
            let Some(next) = page.next else { break };
            query.start_after = next;
        }
        // What was removed just before must not come back after a crash.
        entry.flush().await?;
        let mut after = Some((String::new(), String::new()));
        while let Some((key, upload)) = after {
            let page = store.contents(bucket).fills((&key, &upload), PAGE)?;
            for fill in page.uploads.iter().filter(|fill| fill.key.starts_with(prefix)) {
                entry.abort_left_over(&fill.key).await?;
            }
            after = page.next;
        }
        entry.detach(|key| key.starts_with(prefix));
        entry.bucket_state.remembered.clear();
        Ok(removed.into_inner())
    }
}

impl EdgeEntry {
    /// Detaches the fills of the keys that `matches`.
    fn detach(&self, matches: impl Fn(&str) -> bool) {
        if !self.bucket_state.has(Sabotage::PurgeIgnoresFills) {
            self.entries.detach(matches);
        }
    }

    /// Makes earlier removals durable.
    async fn flush(&self) -> Result<(), EdgeError> {
        if !self.bucket_state.has(Sabotage::PurgeWithoutFlush) {
            self.bucket_state.store.flush().await?;
        }
        Ok(())
    }

    /// Removes the stored object, unless a client wrote it. Durable when it returns.
    async fn remove(&self, key: &str) -> Result<bool, EdgeError> {
        let (store, bucket) = (&self.bucket_state.store, &self.bucket_state.options.bucket);
        let durability =
            if self.bucket_state.has(Sabotage::PurgeNotDurable) { Durability::Async } else { Durability::Sync };
        loop {
            let info = match store.at(bucket, key).settled_info().await {
                Ok(info) if is_cached(&info) => info,
                Ok(_) | Err(StoreError::NoSuchKey) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            match store.at(bucket, key).delete_version(info.version, durability).await {
                Ok(_) => {
                    self.bucket_state.inventory.space.deleted(key, info.size);
                    return Ok(true);
                }
                // Another version has taken its place.
                Err(StoreError::ConditionFailed) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Aborts the fill of a key that has stopped.
    async fn abort_left_over(&self, key: &str) -> Result<(), EdgeError> {
        let (store, bucket) = (&self.bucket_state.store, &self.bucket_state.options.bucket);
        while let Some(upload) = store.at(bucket, key).first_fill()? {
            if !self.bucket_state.inventory.stopped.lock().contains_key(&upload.upload_id) {
                // Its fill is detached, and aborts it after its last reader.
                return Ok(());
            }
            self.bucket_state.abort_stopped(key, &upload.upload_id).await?;
        }
        Ok(())
    }
}
