//! Eviction of what was not used for long.
//!
//! A sample of the times of last use yields a time before which a few percent of the keys were last
//! used. A cursor goes through the bucket's listing in a circle, and the objects on its pages that
//! were last used before that time are deleted, the oldest first. If a whole round frees too
//! little, the next one may take more.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use steadfast_flow::shortened;
use steadfast_log::{Durability, LogError, Lsn};
use steadfast_store::{ListQuery, StoreError};

use crate::bucket_state::BucketState;
use crate::fresh::is_cached;
use crate::space::StoppedFill;

/// Part of the keys that a round may take, in percent.
const ROUNDS: [usize; 3] = [5, 25, 100];
/// Part of the keys that compaction need not move, in percent.
const COLD_PERCENT: usize = 10;
/// Keys that are listed at a time.
const PAGE: usize = 1000;
/// Keys that are counted at a time after a start.
const COUNT_PAGE: usize = 200;
/// Objects that are deleted at a time.
const AT_ONCE: usize = 16;
/// Time between two checks of the pool.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest time between two passes that look for objects past their age.
const AGE_INTERVAL: Duration = Duration::from_secs(600);

/// Something that can be evicted.
enum Victim {
    Object(String, u64),
    /// The segments of a fill that has stopped: key, upload and bytes.
    Segments(String, String, u64),
}

impl Victim {
    fn bytes(&self) -> u64 {
        let (Self::Object(_, bytes) | Self::Segments(.., bytes)) = self;
        *bytes
    }
}

/// The state of the eviction of a bucket.
struct Eviction {
    bucket_state: Arc<BucketState>,
    /// The last key of the last page.
    cursor: String,
}

/// Keeps a bucket within its space and age, as long as the process runs.
pub(crate) async fn keep_within(bucket_state: Arc<BucketState>) {
    while let Err(error) = count(&bucket_state).await {
        tracing::warn!(bucket = %bucket_state.options.bucket, %error, "the objects of an edge bucket cannot be counted");
        bucket_state.env.sleep(INTERVAL).await;
    }
    let mut eviction = Eviction { bucket_state: bucket_state.clone(), cursor: String::new() };
    let mut aged = bucket_state.env.now();
    loop {
        if let Err(error) = eviction.make_room().await {
            tracing::warn!(bucket = %bucket_state.options.bucket, %error, "objects cannot be evicted");
            bucket_state.inventory.space.fail(bucket_state.inventory.space.excess().1);
        }
        if let Some(age) = bucket_state.options.retention.age
            && bucket_state.env.now() - aged >= AGE_INTERVAL.min(age / 4)
        {
            aged = bucket_state.env.now();
            if let Err(error) = eviction.expire(age).await {
                tracing::warn!(bucket = %bucket_state.options.bucket, %error, "old objects cannot be evicted");
            }
        }
        bucket_state.env.timeout(INTERVAL, bucket_state.inventory.space.low.notified()).await;
    }
}

/// Counts what the bucket has stored, after a start.
async fn count(bucket_state: &BucketState) -> Result<(), StoreError> {
    let (store, bucket) = (&bucket_state.store, &bucket_state.options.bucket);
    let mut after = Some((String::new(), String::new()));
    while let Some((key, upload)) = after {
        let page = store.contents(bucket).fills((&key, &upload), COUNT_PAGE)?;
        for fill in page.uploads {
            let segments = store.at(bucket, &fill.key).fill(&fill.upload_id).parts(0, usize::from(u16::MAX));
            let bytes = segments?.0.iter().map(|segment| segment.size).sum();
            let stopped = StoppedFill { key: fill.key, room: bucket_state.inventory.space.account(bytes) };
            bucket_state.inventory.stopped.lock().insert(fill.upload_id, stopped);
        }
        after = page.next;
    }
    let page = |after: &str| -> Result<(u64, Option<String>), StoreError> {
        let query = ListQuery { start_after: after.to_owned(), limit: COUNT_PAGE, ..ListQuery::default() };
        let page = store.contents(bucket).objects(&query)?;
        let mut bytes = 0;
        for entry in page.objects {
            match store.at(bucket, &entry.key).info() {
                Ok(info) if is_cached(&info) => bytes += info.size,
                Ok(_) | Err(StoreError::NoSuchKey) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((bytes, page.next))
    };
    while bucket_state.inventory.space.count(page)? {
        tokio::task::yield_now().await;
    }
    Ok(())
}

impl Eviction {
    /// Evicts until the space suffices, or nothing more can be evicted.
    async fn make_room(&mut self) -> Result<(), StoreError> {
        // The first round begins in the middle, so it ends at the second end of the listing.
        let (mut round, mut ends, mut freed) = (0, 0, 0);
        let waits = self.bucket_state.inventory.space.excess().1;
        loop {
            self.bucket_state.inventory.space.set_pool(self.bucket_state.store.space());
            let excess = self.bucket_state.inventory.space.excess().0;
            if excess == 0 {
                self.bucket_state.inventory.space.succeed();
                return Ok(());
            }
            let Some(percent) = ROUNDS.get(round) else {
                // Later waits begin with another round.
                self.bucket_state.inventory.space.fail(waits);
                return Ok(());
            };
            let before = match percent {
                100 => u64::MAX,
                percent => self.bucket_state.inventory.last_use.oldest(*percent, self.bucket_state.env.random_u64()),
            };
            let mut victims = self.page()?;
            let at_end = self.cursor.is_empty();
            if at_end {
                victims.extend(self.segments());
            }
            freed += self.evict(victims, before, excess).await?;
            if at_end {
                ends += 1;
                // Fills want more meanwhile, so the last round failed only if it freed nothing.
                if ends > 1 && (round + 1 < ROUNDS.len() || freed == 0) {
                    round += 1;
                }
                freed = 0;
            }
        }
    }

    /// Deletes what was not used for `age`.
    async fn expire(&mut self, age: Duration) -> Result<(), StoreError> {
        let Some(before) = self.bucket_state.env.now().checked_sub(age) else { return Ok(()) };
        self.cursor.clear();
        loop {
            let victims = self.page()?;
            self.evict(victims, before.as_millis() as u64, u64::MAX).await?;
            if self.cursor.is_empty() {
                return Ok(());
            }
        }
    }

    /// The objects on the next page of the listing.
    fn page(&mut self) -> Result<Vec<Victim>, StoreError> {
        let query = ListQuery { start_after: self.cursor.clone(), limit: PAGE, ..ListQuery::default() };
        let page = self.bucket_state.store.contents(&self.bucket_state.options.bucket).objects(&query)?;
        self.cursor = page.next.unwrap_or_default();
        Ok(page.objects.into_iter().map(|entry| Victim::Object(entry.key, entry.size)).collect())
    }

    /// The segments of fills that have stopped.
    fn segments(&self) -> Vec<Victim> {
        let stopped = self.bucket_state.inventory.stopped.lock();
        let victim = |(upload, fill): (&String, &StoppedFill)| {
            Victim::Segments(fill.key.clone(), upload.clone(), fill.room.bytes)
        };
        stopped.iter().map(victim).collect()
    }

    /// Deletes victims that were last used at `before` or earlier, the oldest first, until `excess`
    /// bytes are freed. Returns the bytes freed.
    async fn evict(&self, victims: Vec<Victim>, before: u64, excess: u64) -> Result<u64, StoreError> {
        let used = |victim: Victim| {
            let (Victim::Object(key, _) | Victim::Segments(key, ..)) = &victim;
            Some((self.bucket_state.inventory.last_use.get(key), victim)).filter(|(used, _)| *used <= before)
        };
        let mut old: Vec<_> = victims.into_iter().filter_map(used).collect();
        old.sort_unstable_by_key(|(used, _)| *used);
        let (mut old, mut freed) = (old.into_iter().map(|(_, victim)| victim).peekable(), 0);
        while freed < excess && old.peek().is_some() {
            // Objects of clients stay, so only what was deleted counts.
            let mut expected = freed;
            let mut batch = Vec::new();
            while expected < excess
                && batch.len() < AT_ONCE
                && let Some(victim) = old.next()
            {
                expected += victim.bytes();
                batch.push(victim);
            }
            let deleted: Vec<u64> =
                stream::iter(batch).map(|victim| self.delete(victim)).buffer_unordered(AT_ONCE).try_collect().await?;
            freed += deleted.into_iter().sum::<u64>();
        }
        Ok(freed)
    }

    /// Deletes a victim. Returns the bytes freed.
    async fn delete(&self, victim: Victim) -> Result<u64, StoreError> {
        Ok(match victim {
            Victim::Object(key, bytes) => {
                if self.bucket_state.evict(&key).await? {
                    bytes
                } else {
                    0
                }
            }
            Victim::Segments(key, upload, bytes) => {
                self.bucket_state.abort_stopped(&key, &upload).await?;
                bytes
            }
        })
    }
}

/// A fill whose segments are being removed. It is put back if that does not succeed.
struct Aborting<'a> {
    bucket_state: &'a BucketState,
    upload: &'a str,
    stopped: Option<StoppedFill>,
}

impl Drop for Aborting<'_> {
    fn drop(&mut self) {
        if let Some(stopped) = self.stopped.take() {
            self.bucket_state.inventory.stopped.lock().insert(self.upload.to_owned(), stopped);
        }
    }
}

impl BucketState {
    /// Deletes a cached object that cannot be read, so that the next request fetches it again.
    /// `version` is what was read; `None` is what is stored. Returns whether it did.
    pub(crate) async fn evict_unreadable(&self, key: &str, version: Option<Lsn>, error: &StoreError) -> bool {
        if !matches!(error, StoreError::Log(LogError::Damaged { .. } | LogError::Read { .. })) {
            return false;
        }
        let bucket = &self.options.bucket;
        if let (Some(version), Ok(info)) = (version, self.store.at(bucket, key).info())
            && info.version != version
        {
            return false;
        }
        let evicted = self.evict(key).await.unwrap_or(false);
        tracing::warn!(%bucket, key = ?shortened(key), %error, evicted, "a cached object cannot be read");
        evicted
    }

    /// Deletes an object if it is cached. Returns whether it did.
    pub(crate) async fn evict(&self, key: &str) -> Result<bool, StoreError> {
        let bucket = &self.options.bucket;
        let info = match self.store.at(bucket, key).info() {
            Ok(info) if is_cached(&info) => info,
            Ok(_) | Err(StoreError::NoSuchKey) => return Ok(false),
            Err(error) => return Err(error),
        };
        // Checked after the object was found: its readers may not have it yet.
        if self.inventory.is_kept(key) {
            return Ok(false);
        }
        match self.store.at(bucket, key).delete_version(info.version, Durability::Async).await {
            Ok(_) => {
                self.inventory.space.deleted(key, info.size);
                self.inventory.last_use.forget(key);
                self.counters.evicted(info.size);
                Ok(true)
            }
            Err(StoreError::ConditionFailed) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the segments of a fill that has stopped, unless another uses them now.
    pub(crate) async fn abort_stopped(&self, key: &str, upload: &str) -> Result<(), StoreError> {
        // Taken out first, so that no fill begins to use them.
        let Some(stopped) = self.inventory.stopped.lock().remove(upload) else { return Ok(()) };
        let mut aborting = Aborting { bucket_state: self, upload, stopped: Some(stopped) };
        match self.store.at(&self.options.bucket, key).fill(upload).abort().await {
            Ok(()) | Err(StoreError::NoSuchUpload) => {
                aborting.stopped = None;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes an object of which compaction found data, if the space is nearly full and the object
    /// was not used for long.
    pub(crate) async fn evict_cold(&self, key: &str) -> bool {
        let cold =
            || self.inventory.last_use.get(key) <= self.inventory.last_use.oldest(COLD_PERCENT, self.env.random_u64());
        self.inventory.space.is_nearly_full() && cold() && self.evict(key).await.unwrap_or(false)
    }
}
