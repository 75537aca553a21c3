//! The index in memory, with a checkpoint that survives like a file: for tests and the simulator.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use steadfast_log::Lsn;

use super::{Check, Entry, Index, IndexError, IndexStatus};

type Map = BTreeMap<Bytes, Bytes>;

/// Persisted state of a [`MemIndex`]: outlives it, as a directory outlives a process.
#[derive(Debug, Clone, Default)]
pub struct MemCheckpoint(Arc<Mutex<Map>>, Arc<Mutex<BTreeMap<[u8; 16], MemCheckpoint>>>, Arc<Faults>);

/// Read failures, shared by the indexes of all disks of one checkpoint.
#[derive(Debug, Default)]
struct Faults {
    damaged: AtomicBool,
    refused: AtomicU64,
    /// Reads until the first refused read, or until damage, counted from 1; 0: none.
    until: AtomicU64,
    /// Number of reads refused then; 0: damage.
    then: AtomicU64,
}

impl MemCheckpoint {
    /// Clears everything, as if the directory had been deleted.
    pub fn clear(&self) {
        self.0.lock().clear();
        self.1.lock().values().for_each(Self::clear);
    }

    /// Reads of the index find damage from now on, until it is opened anew. For tests.
    pub fn damage(&self) {
        self.2.damaged.store(true, Ordering::SeqCst);
    }

    /// The next `count` reads of the index fail. For tests.
    pub fn refuse_reads(&self, count: u64) {
        self.2.refused.store(count, Ordering::SeqCst);
    }

    /// After `reads` reads, the next one and all later ones find damage until the index is opened
    /// anew. With a `count`, that many reads fail instead. For tests.
    pub fn fail_after(&self, reads: u64, count: Option<u64>) {
        self.2.then.store(count.unwrap_or(0), Ordering::SeqCst);
        self.2.until.store(reads + 1, Ordering::SeqCst);
    }

    /// Ends read failures. For tests.
    pub fn fail_no_more(&self) {
        [&self.2.until, &self.2.refused].iter().for_each(|faults| faults.store(0, Ordering::SeqCst));
        self.2.damaged.store(false, Ordering::SeqCst);
    }

    /// A separate copy of the persisted state of all disks, as of the directory.
    pub fn copy(&self) -> Self {
        let copy = Self(Arc::new(Mutex::new(self.0.lock().clone())), Arc::default(), Arc::default());
        for (disk, of) in &*self.1.lock() {
            *copy.of_disk(disk).0.lock() = of.0.lock().clone();
        }
        copy
    }

    /// Whether a read succeeds.
    fn reads(&self) -> Result<(), IndexError> {
        let until = self.2.until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |until| until.checked_sub(1));
        if until == Ok(1) {
            match self.2.then.load(Ordering::SeqCst) {
                0 => self.damage(),
                count => self.refuse_reads(count),
            }
        }
        let refused = self.2.refused.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match refused {
            Ok(_) => Err(IndexError::failed("the read was refused")),
            Err(_) if self.2.damaged.load(Ordering::SeqCst) => Err(IndexError::damaged("a read found damage")),
            Err(_) => Ok(()),
        }
    }

    /// The checkpoint of one disk of several.
    pub(crate) fn of_disk(&self, disk: &[u8; 16]) -> Self {
        let new = || Self(Arc::default(), Arc::default(), self.2.clone());
        self.1.lock().entry(*disk).or_insert_with(new).clone()
    }

    /// Whether this disk ever had an index here.
    pub(crate) fn has_disk(&self, disk: &[u8; 16]) -> bool {
        self.1.lock().contains_key(disk)
    }
}

/// An index in memory, whose checkpoint outlives it.
pub(crate) struct MemIndex {
    map: Arc<RwLock<Map>>,
    /// Bytes changed since the last seal.
    changed: Mutex<u64>,
    sealed: Mutex<Option<Map>>,
    checkpoint: MemCheckpoint,
}

impl MemIndex {
    /// Opens the persisted state.
    pub(crate) fn open(checkpoint: MemCheckpoint) -> Self {
        let map = checkpoint.0.lock().clone();
        checkpoint.2.damaged.store(false, Ordering::SeqCst);
        Self { map: Arc::new(RwLock::new(map)), changed: Mutex::new(0), sealed: Mutex::new(None), checkpoint }
    }
}

impl Index for MemIndex {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, IndexError> {
        self.checkpoint.reads()?;
        Ok(self.map.read().get(key).cloned())
    }

    fn insert(&self, key: Bytes, value: Bytes, _lsn: Lsn) {
        *self.changed.lock() += (key.len() + value.len() + 48) as u64;
        self.map.write().insert(key, value);
    }

    fn remove(&self, key: Bytes, _lsn: Lsn) {
        *self.changed.lock() += (key.len() + 48) as u64;
        self.map.write().remove(&key);
    }

    fn range(&self, from: &[u8], to: Option<&[u8]>) -> Box<dyn Iterator<Item = Entry> + Send> {
        if let Err(e) = self.checkpoint.reads() {
            return Box::new(std::iter::once(Err(e)));
        }
        Box::new(MemRange {
            map: self.map.clone(),
            from: Bound::Included(Bytes::copy_from_slice(from)),
            to: to.map_or(Bound::Unbounded, |to| Bound::Excluded(Bytes::copy_from_slice(to))),
            ahead: Vec::new(),
        })
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Bytes, Bytes)>, IndexError> {
        self.checkpoint.reads()?;
        let (from, to) = (Bound::Included(from), Bound::Excluded(to));
        Ok(self.map.read().range::<[u8], _>((from, to)).next_back().map(|(k, v)| (k.clone(), v.clone())))
    }

    fn memtable_bytes(&self) -> u64 {
        *self.changed.lock()
    }

    fn seal(&self) {
        *self.changed.lock() = 0;
        *self.sealed.lock() = Some(self.map.read().clone());
    }

    fn persist(&self) -> Result<(), IndexError> {
        if let Some(map) = self.sealed.lock().take() {
            *self.checkpoint.0.lock() = map;
        }
        Ok(())
    }

    fn compact(&self) -> Result<(), IndexError> {
        Ok(())
    }

    fn condemn(&self) {
        self.checkpoint.clear();
    }

    fn checks(&self) -> Vec<Check> {
        let checkpoint = self.checkpoint.clone();
        vec![Box::new(move || checkpoint.reads().map(|()| 0))]
    }

    fn status(&self) -> IndexStatus {
        IndexStatus { memtable_bytes: self.memtable_bytes(), ..IndexStatus::default() }
    }
}

/// Reads a few pairs at a time, so that the lock is held only briefly.
struct MemRange {
    map: Arc<RwLock<Map>>,
    from: Bound<Bytes>,
    to: Bound<Bytes>,
    /// Read already, in reverse.
    ahead: Vec<(Bytes, Bytes)>,
}

impl Iterator for MemRange {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        if self.ahead.is_empty() {
            if let (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to)) = (&self.from, &self.to)
                && from >= to
            {
                return None;
            }
            let map = self.map.read();
            let pairs = map.range((self.from.clone(), self.to.clone())).take(32);
            self.ahead = pairs.map(|(k, v)| (k.clone(), v.clone())).collect();
            if let Some((last, _)) = self.ahead.last() {
                self.from = Bound::Excluded(last.clone());
            }
            self.ahead.reverse();
        }
        self.ahead.pop().map(Ok)
    }
}
