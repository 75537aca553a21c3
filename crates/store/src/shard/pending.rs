//! Submitted changes that are not yet applied, by index key: preconditions are decided against them
//! before the index.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use steadfast_log::Lsn;

/// Enough that two writers seldom share one.
const BINS: usize = 64;

/// The future state of a key, once its record is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PendingState {
    /// An object with this entity tag.
    Present(String),
    /// No object.
    Absent,
}

/// A submitted change.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) lsn: Lsn,
    pub(crate) becomes: PendingState,
}

/// FNV-1a: equal everywhere, for the simulator. Chosen keys can make a bin slow at worst.
#[derive(Default)]
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.0 = (self.0 ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// The keys under one lock. Never iterated.
pub(crate) type Bin = HashMap<Bytes, Entry>;

/// All pending changes.
pub(crate) struct Pending {
    bins: Vec<Mutex<Bin>>,
    /// The highest submitted LSN.
    submitted: AtomicU64,
}

impl Default for Pending {
    fn default() -> Self {
        Self { bins: (0..BINS).map(|_| Mutex::default()).collect(), submitted: AtomicU64::new(0) }
    }
}

/// The bin of a key.
pub(crate) fn bin_of(key: &[u8]) -> usize {
    let hash = BuildHasherDefault::<Fnv>::default().hash_one(key);
    ((hash >> 32 ^ hash) % BINS as u64) as usize
}

impl Pending {
    /// Locks a bin; the caller holds it while deciding and submitting.
    pub(crate) fn lock(&self, bin: usize) -> MutexGuard<'_, Bin> {
        self.bins[bin].lock()
    }

    /// The records up to `lsn` have been submitted.
    pub(crate) fn submitted(&self, lsn: Lsn) {
        self.submitted.fetch_max(lsn, Ordering::AcqRel);
    }

    /// The highest submitted LSN.
    pub(crate) fn last_submitted(&self) -> Lsn {
        self.submitted.load(Ordering::Acquire)
    }

    /// The record `lsn` of `key` has been applied.
    pub(crate) fn settle(&self, key: &[u8], lsn: Lsn) {
        let mut bin = self.lock(bin_of(key));
        if bin.get(key).is_some_and(|entry| entry.lsn <= lsn) {
            bin.remove(key);
        }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.bins.iter().map(|s| s.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_record_does_not_settle_a_newer_one() {
        let pending = Pending::default();
        let key = Bytes::from_static(b"k");
        pending.lock(bin_of(&key)).insert(key.clone(), Entry { lsn: 5, becomes: PendingState::Absent });
        pending.settle(&key, 4);
        assert_eq!(pending.len(), 1);
        pending.settle(&key, 5);
        assert_eq!(pending.len(), 0);
    }
}
