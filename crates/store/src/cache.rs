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

/// See the module.
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

    /// Stores a copy and returns it. The read buffer belongs to the disk's bounded memory, which a
    /// slow consumer must not hold.
    pub(crate) fn put(&self, at: &Location, piece: u32, data: &Bytes) -> Bytes {
        let copy = Bytes::copy_from_slice(data);
        if let Some(cache) = &self.cache {
            cache.insert((*at, piece), copy.clone());
        }
        copy
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
