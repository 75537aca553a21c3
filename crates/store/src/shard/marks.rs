//! Deletes that a replay has met, by key: compaction may have moved the records that they hide
//! behind them.
//!
//! A replay of the whole log may meet more of them than fit in memory. Beyond a bound they go to an
//! index of their own, in a directory next to the one being built. The replay removes it at its
//! end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use steadfast_log::Lsn;

use crate::IndexKind;
use crate::index::{Index, IndexError, LsmIndex};

/// Bytes of the cache of spilled marks.
const CACHE_BYTES: u64 = 8 << 20;
/// Overhead of a map entry in bytes, about.
const ENTRY_BYTES: u64 = 80;
/// Suffix of the directory.
const MARKS: &str = ".marks";

/// The deletes that a replay has met, by key.
#[derive(Default)]
pub(crate) struct Marks {
    recent: BTreeMap<Vec<u8>, Lsn>,
    recent_bytes: u64,
    /// Bytes at which marks are spilled, and where. For an index in memory (tests) they are spilled
    /// to memory.
    aside_at: u64,
    place: Option<PathBuf>,
    aside: Option<LsmIndex>,
    bytes_max: u64,
    /// Counter of spills.
    seqno: Lsn,
}

impl Marks {
    /// No marks, for a replay that fills the index in `kind`. At most about `bytes_max` of them
    /// stay in memory.
    pub(crate) fn new(kind: &IndexKind, bytes_max: u64) -> Self {
        let place = match kind {
            IndexKind::Lsm(dir) => Some(marks_dir(dir)),
            IndexKind::Memory(_) => None,
        };
        let mut marks = Self::default();
        (marks.place, marks.bytes_max, marks.aside_at) = (place, bytes_max, bytes_max);
        marks
    }

    /// Removes the marks that an interrupted replay left next to the index in `dir`. Blocks.
    pub(crate) fn remove_left(dir: &Path) {
        remove(&marks_dir(dir));
    }

    /// The highest version of the deletes of `key`. May block.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Lsn>, IndexError> {
        let recent = self.recent.get(key).copied();
        let Some(aside) = &self.aside else { return Ok(recent) };
        let aside = aside.get(key)?.map(|value| decode(&value)).transpose()?;
        Ok(recent.max(aside))
    }

    /// Adds a delete of `key`. May block.
    pub(crate) fn put(&mut self, key: &[u8], version: Lsn) -> Result<(), IndexError> {
        if self.get(key)?.is_some_and(|known| known >= version) {
            return Ok(());
        }
        if self.recent.insert(key.to_vec(), version).is_none() {
            self.recent_bytes += key.len() as u64 + ENTRY_BYTES;
        }
        if self.recent_bytes >= self.aside_at
            && let Some(place) = self.place.clone()
        {
            match self.put_aside(&place) {
                Ok(()) => self.aside_at = self.bytes_max,
                // Like the index, it continues in memory: without space next to the index no index
                // can be built either.
                Err(e) => {
                    tracing::warn!(error = %e, "deletes of a replay cannot be written to disk and stay in memory");
                    self.aside_at = self.recent_bytes.saturating_mul(2);
                }
            }
        }
        Ok(())
    }

    fn put_aside(&mut self, place: &Path) -> Result<(), IndexError> {
        let aside = match &self.aside {
            Some(aside) => aside,
            None => {
                remove(place);
                self.aside.insert(LsmIndex::open(place, CACHE_BYTES)?)
            }
        };
        // Marks that could not be written the last time are written again; that is idempotent.
        for (key, version) in &self.recent {
            self.seqno += 1;
            aside.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(&version.to_le_bytes()), self.seqno);
        }
        aside.seal();
        aside.persist()?;
        self.recent.clear();
        self.recent_bytes = 0;
        // The marks are on disk nevertheless.
        if let Err(e) = aside.compact() {
            tracing::warn!(error = %e, "deletes of a replay cannot be compacted");
        }
        Ok(())
    }

    /// Bytes in memory, about; without the cache.
    #[cfg(test)]
    fn memory_bytes(&self) -> u64 {
        self.recent_bytes + self.aside.as_ref().map_or(0, Index::memtable_bytes)
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        if self.aside.take().is_some()
            && let Some(place) = &self.place
        {
            remove(place);
        }
    }
}

impl std::fmt::Debug for Marks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Marks({} recent)", self.recent.len())
    }
}

fn decode(value: &[u8]) -> Result<Lsn, IndexError> {
    let version =
        value.try_into().map_err(|_| IndexError::damaged("the deletes that a replay wrote to disk are damaged"))?;
    Ok(Lsn::from_le_bytes(version))
}

fn marks_dir(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(MARKS);
    dir.with_file_name(name)
}

fn remove(place: &Path) {
    if !place.exists() {
        return;
    }
    let removed = LsmIndex::delete(place).map_err(|e| e.to_string());
    let removed = removed.and_then(|()| std::fs::remove_dir(place).map_err(|e| e.to_string()));
    if let Err(error) = removed {
        tracing::warn!(dir = %place.display(), error, "the deletes that a replay wrote to disk cannot be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Vec<u8> {
        [b"a key of some length/".as_slice(), &n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()].concat()
    }

    /// The peak of bytes in memory while `count` deletes were met.
    fn peak(count: u64, bytes_max: u64) -> u64 {
        let dir = tempfile::tempdir().expect("a directory");
        let place = dir.path().join("index");
        let mut marks = Marks::new(&IndexKind::Lsm(place.clone()), bytes_max);
        let mut peak = 0;
        for n in 0..count {
            marks.put(&key(n), n + 1).expect("taken");
            peak = peak.max(marks.memory_bytes());
        }
        for n in (0..count).step_by(97) {
            assert_eq!(marks.get(&key(n)).expect("readable"), Some(n + 1), "{n} of {count}");
            assert_eq!(marks.get(&key(n + count)).expect("readable"), None);
        }
        assert!(marks_dir(&place).exists());
        drop(marks);
        assert!(!marks_dir(&place).exists(), "gone with the replay");
        peak
    }

    #[test]
    fn five_times_the_deletes_take_no_more_memory() {
        const BYTES_MAX: u64 = 1 << 20;
        for count in [40_000, 200_000] {
            let peak = peak(count, BYTES_MAX);
            assert!(peak <= BYTES_MAX + 4096, "{peak} bytes for {count} deletes");
        }
    }

    #[test]
    #[ignore = "takes long: the same with as many as a pool in use has"]
    fn millions_of_deletes_take_no_more_memory() {
        for count in [1_000_000, 5_000_000] {
            let peak = peak(count, 8 << 20);
            println!("{count} deletes: {peak} bytes in memory at most");
            assert!(peak <= (8 << 20) + 4096, "{peak} bytes for {count} deletes");
        }
    }

    #[test]
    fn the_highest_version_stands_wherever_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        for bytes_max in [1, 200, 1 << 20] {
            let mut marks = Marks::new(&IndexKind::Lsm(dir.path().join("index")), bytes_max);
            for (n, version) in [(1, 10), (2, 5), (1, 7), (2, 9), (3, 1), (1, 12), (1, 11)] {
                marks.put(&key(n), version).expect("taken");
            }
            let got: Vec<_> = (0..4).map(|n| marks.get(&key(n)).expect("readable")).collect();
            assert_eq!(got, [None, Some(12), Some(9), Some(1)], "{bytes_max}");
        }
    }

    #[test]
    fn what_a_replay_that_was_cut_short_has_left_is_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = dir.path().join("index");
        let mut marks = Marks::new(&IndexKind::Lsm(place.clone()), 1);
        marks.put(b"a", 1).expect("taken");
        std::mem::forget(marks);
        let mut marks = Marks::new(&IndexKind::Lsm(place.clone()), 1);
        marks.put(b"b", 1).expect("taken");
        assert_eq!(marks.get(b"a").expect("readable"), None, "of another replay");
        std::mem::forget(marks);
        Marks::remove_left(&place);
        assert!(!marks_dir(&place).exists());
    }
}
