//! The read cache: direct I/O has no page cache.
//!
//! Entries are keyed by location. The bytes at a location never change while its extent has that
//! epoch, so an entry cannot be stale.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use quick_cache::sync::{Cache, DefaultLifecycle};
use serde::Serialize;
use steadfast_log::Location;

/// A piece of a record's body.
type Key = (Location, u32);

#[derive(Clone)]
struct Weight;

impl quick_cache::Weighter<Key, Bytes> for Weight {
    fn weight(&self, _key: &Key, value: &Bytes) -> u64 {
        value.len() as u64 + 96
    }
}

/// Hashes equally in every run, so that the simulator's runs repeat.
type Hasher = BuildHasherDefault<DefaultHasher>;

type Pieces = Cache<Key, Bytes, Weight, Hasher, DefaultLifecycle<Key, Bytes>>;

/// Pieces of bodies that were read, up to a bound in bytes.
pub(crate) struct ReadCache {
    cache: Option<Pieces>,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Counters of the read cache.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct CacheStatus {
    /// Pieces found in the cache.
    pub hits: u64,
    /// Pieces not found in the cache.
    pub misses: u64,
    /// Bytes in the cache.
    pub bytes: u64,
    /// The bound on `bytes`.
    pub bytes_max: u64,
    /// Pieces in the cache.
    pub pieces: u64,
}

impl ReadCache {
    pub(crate) fn new(bytes_max: u64) -> Self {
        // The estimate only sizes the table: most pieces are small objects.
        let items = usize::try_from(bytes_max / 16384).unwrap_or(usize::MAX).max(64);
        let cache = (bytes_max > 0)
            .then(|| Cache::with(items, bytes_max, Weight, Hasher::default(), DefaultLifecycle::default()));
        Self { cache, hits: AtomicU64::new(0), misses: AtomicU64::new(0) }
    }

    pub(crate) fn get(&self, at: &Location, piece: u32) -> Option<Bytes> {
        let found = self.cache.as_ref()?.get(&(*at, piece));
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Stores a piece.
    pub(crate) fn put(&self, at: &Location, piece: u32, data: &Bytes) {
        if let Some(cache) = &self.cache {
            cache.insert((*at, piece), data.clone());
        }
    }

    /// The piece from the cache, or what `read` returns, which is stored. Concurrent callers share
    /// one read; after an error each of them reads for itself. A caller must poll this until it
    /// ends or drop it, as others depend on it.
    pub(crate) async fn get_or_read<E>(
        &self,
        at: &Location,
        piece: u32,
        read: impl Future<Output = Result<Bytes, E>>,
    ) -> Result<Bytes, E> {
        match &self.cache {
            Some(cache) => cache.get_or_insert_async(&(*at, piece), read).await,
            None => read.await,
        }
    }

    pub(crate) fn status(&self) -> CacheStatus {
        let cache = self.cache.as_ref();
        CacheStatus {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            bytes: cache.map_or(0, Cache::weight),
            bytes_max: cache.map_or(0, Cache::capacity),
            pieces: cache.map_or(0, |c| c.len() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures::future::{join_all, pending, select};
    use tokio::task::yield_now;

    use super::*;

    const AT: Location = Location { extent: 0, epoch: 1, offset: 0, head_len: 0, body_len: 4 };

    #[tokio::test]
    async fn concurrent_callers_share_a_read() {
        let (cache, reads) = (ReadCache::new(1 << 20), AtomicUsize::new(0));
        let read = async || {
            reads.fetch_add(1, Ordering::Relaxed);
            yield_now().await;
            Ok::<_, ()>(Bytes::from_static(b"data"))
        };
        let found = join_all((0..10).map(|_| cache.get_or_read(&AT, 0, read()))).await;
        assert_eq!(found, vec![Ok(Bytes::from_static(b"data")); 10]);
        assert_eq!(reads.into_inner(), 1);
    }

    #[tokio::test]
    async fn errors_and_dropped_reads_are_not_shared() {
        let cache = ReadCache::new(1 << 20);
        let damaged = async {
            yield_now().await;
            Err("damaged")
        };
        let sound = async { Ok::<_, &str>(Bytes::from_static(b"data")) };
        let found = futures::join!(cache.get_or_read(&AT, 0, damaged), cache.get_or_read(&AT, 0, sound));
        assert_eq!(found, (Err("damaged"), Ok(Bytes::from_static(b"data"))));

        let dropped = Box::pin(cache.get_or_read(&AT, 1, pending::<Result<Bytes, ()>>()));
        select(dropped, Box::pin(yield_now())).await;
        let next = cache.get_or_read(&AT, 1, async { Ok::<_, ()>(Bytes::from_static(b"next")) });
        assert_eq!(next.await, Ok(Bytes::from_static(b"next")));
    }
}
