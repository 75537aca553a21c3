//! The index on `lsm-tree`: a log-structured merge tree without its own write-ahead log, since the
//! store's log suffices.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use lsm_tree::compaction::Leveled;
use lsm_tree::{AbstractTree, AnyTree, Cache, Config, Guard, SeqNo, SequenceNumberCounter};
use steadfast_log::Lsn;

use super::{Check, Entry, Index, IndexError, IndexStatus};

/// Sequence number of reads: they see the newest versions. It is also the watermark below which the
/// tree drops old versions. No reader needs an old version, and an iterator holds the tables that
/// it reads. Half the range: the tree uses the other half itself.
const NEWEST: SeqNo = SeqNo::MAX >> 1;

/// The file that marks the directory as complete. Absent while it is not.
const MARK: &str = "steadfast-index";
const MARK_TEXT: &[u8] = b"steadfast index 1\n";

impl From<lsm_tree::Error> for IndexError {
    fn from(e: lsm_tree::Error) -> Self {
        match &e {
            lsm_tree::Error::Io(io) if !matches!(io.kind(), ErrorKind::UnexpectedEof | ErrorKind::NotFound) => {
                Self::failed(e.to_string())
            }
            _ => Self::damaged(e.to_string()),
        }
    }
}

/// The crate asserts invariants of its files: a damaged file must not take the caller down.
fn caught<T>(work: impl FnOnce() -> Result<T, lsm_tree::Error>) -> Result<T, IndexError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => Ok(done?),
        Err(_) => Err(IndexError::damaged("its files are inconsistent")),
    }
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> IndexError + '_ {
    move |e| IndexError::failed(format!("{}: {e}", path.display()))
}

/// An index in a directory of the file system.
pub(crate) struct LsmIndex {
    tree: AnyTree,
    dir: PathBuf,
    strategy: Arc<Leveled>,
}

impl LsmIndex {
    /// Opens the index in `dir`, or creates an empty one. A damaged index or one of another format
    /// is deleted and replaced by an empty one. Blocks.
    pub(crate) fn open(dir: &Path, cache_bytes: u64) -> Result<Self, IndexError> {
        let mark = dir.join(MARK);
        if dir.exists() {
            // Earlier versions left its mode to the umask, and its files hold the names of objects.
            fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(io(dir))?;
            if fs::read(&mark).is_ok_and(|text| text == MARK_TEXT) {
                // The crate asserts invariants of its files; a damaged file must not take the
                // server down.
                match catch_unwind(AssertUnwindSafe(|| Self::open_tree(dir, cache_bytes))) {
                    Ok(Ok(index)) => return Ok(index),
                    Ok(Err(e)) => tracing::warn!(error = %e, "the index is damaged and will be rebuilt from the log"),
                    Err(_) => tracing::warn!("the index is damaged and will be rebuilt from the log"),
                }
            }
            Self::delete(dir)?;
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io(dir))?;
        let index = Self::open_tree(dir, cache_bytes)?;
        let mut file = fs::File::create(&mark).map_err(io(&mark))?;
        file.write_all(MARK_TEXT).and_then(|()| file.sync_all()).map_err(io(&mark))?;
        fs::File::open(dir).and_then(|d| d.sync_all()).map_err(io(dir))?;
        Ok(index)
    }

    /// Opens the index in `dir` for reading; `None` unless there is a complete one. Blocks.
    pub(crate) fn open_existing(dir: &Path) -> Option<Self> {
        if !fs::read(dir.join(MARK)).is_ok_and(|text| text == MARK_TEXT) {
            return None;
        }
        catch_unwind(AssertUnwindSafe(|| Self::open_tree(dir, 1 << 20))).ok()?.ok()
    }

    /// Deletes the index in `dir`. It removes only an index's own files, in case the path was given
    /// by mistake.
    pub(crate) fn delete(dir: &Path) -> Result<(), IndexError> {
        let mark = dir.join(MARK);
        if mark.exists() {
            fs::remove_file(&mark).map_err(io(&mark))?;
        }
        for entry in fs::read_dir(dir).map_err(io(dir))? {
            let path = entry.map_err(io(dir))?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            if matches!(name, "tables" | "blobs") {
                fs::remove_dir_all(&path).map_err(io(&path))?;
            } else if name == "current"
                || name.starts_with(".tmp")
                || name.strip_prefix('v').is_some_and(|n| n.parse::<u64>().is_ok())
            {
                fs::remove_file(&path).map_err(io(&path))?;
            } else {
                return Err(IndexError::failed(format!(
                    "{} is not a part of an index: nothing was deleted",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    /// Moves an index rebuilt next to `dir` into place if the old one was condemned; otherwise
    /// removes the rebuilt one. Blocks.
    pub(crate) fn settle(dir: &Path) -> Result<(), IndexError> {
        let other = rebuild_dir(dir);
        if !other.exists() {
            return Ok(());
        }
        let is_whole = |dir: &Path| fs::read(dir.join(MARK)).is_ok_and(|text| text == MARK_TEXT);
        let gone = if !is_whole(dir) && is_whole(&other) { dir } else { &*other };
        if gone.exists() {
            Self::delete(gone)?;
            fs::remove_dir(gone).map_err(io(gone))?;
        }
        if gone == dir {
            fs::rename(&other, dir).map_err(io(dir))?;
        }
        dir.parent().map_or(Ok(()), |parent| sync_dir(parent).map_err(io(parent)))
    }

    /// Whether it is still unwritten.
    pub(crate) fn is_new(&self) -> bool {
        self.tree.table_count() == 0
    }

    fn open_tree(dir: &Path, cache_bytes: u64) -> Result<Self, IndexError> {
        check_manifest(dir)?;
        let config = Config::new(dir, SequenceNumberCounter::default(), SequenceNumberCounter::default())
            .use_cache(Arc::new(Cache::with_capacity_bytes(cache_bytes)));
        Ok(Self { tree: config.open()?, dir: dir.to_owned(), strategy: Arc::new(Leveled::default()) })
    }
}

fn sync_dir(dir: &Path) -> std::io::Result<()> {
    fs::File::open(dir).and_then(|dir| dir.sync_all())
}

/// Verifies the list of tables, which the tree does not verify itself: `current` has its number and
/// its checksum.
fn check_manifest(dir: &Path) -> Result<(), IndexError> {
    let current = match fs::read(dir.join("current")) {
        Ok(current) => current,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io(dir)(e)),
    };
    let damaged = || IndexError::damaged("the list of its tables does not match its checksum");
    let (Some(number), Some(checksum), Some(0)) = (current.first_chunk(), current.get(8..24), current.get(24)) else {
        return Err(damaged());
    };
    let list = fs::read(dir.join(format!("v{}", u64::from_le_bytes(*number)))).map_err(lsm_tree::Error::from)?;
    if current.len() != 25 || xxhash_rust::xxh3::xxh3_128(&list).to_le_bytes() != *checksum {
        return Err(damaged());
    }
    Ok(())
}

/// The directory in which the index of `dir` is rebuilt while the old one is still read.
pub(crate) fn rebuild_dir(dir: &Path) -> PathBuf {
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name.strip_suffix(REBUILT) {
        Some(name) => dir.with_file_name(name),
        None => dir.with_file_name(format!("{name}{REBUILT}")),
    }
}

/// Suffix of a directory in which an index is rebuilt.
const REBUILT: &str = ".new";

/// Pairs of the tree; it ends after an error.
struct Pairs<I>(Option<I>);

impl<G: Guard, I: Iterator<Item = G>> Iterator for Pairs<I> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let pairs = self.0.as_mut()?;
        let pair = caught(|| pairs.next().map(Guard::into_inner).transpose()).transpose()?;
        if pair.is_err() {
            self.0 = None;
        }
        Some(pair.map(|(key, value)| (Bytes::from(key), Bytes::from(value))))
    }
}

impl Index for LsmIndex {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, IndexError> {
        Ok(caught(|| self.tree.get(key, NEWEST))?.map(Bytes::from))
    }

    fn insert(&self, key: Bytes, value: Bytes, lsn: Lsn) {
        self.tree.insert(key, value, lsn);
    }

    fn remove(&self, key: Bytes, lsn: Lsn) {
        self.tree.remove(key, lsn);
    }

    fn range(&self, from: &[u8], to: Option<&[u8]>) -> Box<dyn Iterator<Item = Entry> + Send> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        if to.is_some_and(|to| from >= to) {
            return Box::new(std::iter::empty());
        }
        let pairs = self.tree.range::<&[u8], _>((Included(from), to.map_or(Unbounded, Excluded)), NEWEST, None);
        Box::new(Pairs(Some(pairs)))
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Bytes, Bytes)>, IndexError> {
        let last =
            || self.tree.range::<&[u8], _>(from..to, NEWEST, None).next_back().map(Guard::into_inner).transpose();
        Ok(caught(last)?.map(|(key, value)| (Bytes::from(key), Bytes::from(value))))
    }

    fn memtable_bytes(&self) -> u64 {
        self.tree.active_memtable().size()
    }

    fn seal(&self) {
        self.tree.rotate_memtable();
    }

    fn persist(&self) -> Result<(), IndexError> {
        let lock = self.tree.get_flush_lock();
        caught(|| self.tree.flush(&lock, NEWEST).map(drop))
    }

    fn compact(&self) -> Result<(), IndexError> {
        // Each run does the most pressing work of its strategy; a few runs make up for one flush.
        for _ in 0..4 {
            let before = (self.tree.table_count(), self.tree.disk_space(), self.tree.l0_run_count());
            caught(|| self.tree.compact(self.strategy.clone(), NEWEST).map(drop))?;
            if before == (self.tree.table_count(), self.tree.disk_space(), self.tree.l0_run_count()) {
                break;
            }
        }
        Ok(())
    }

    fn condemn(&self) {
        let mark = self.dir.join(MARK);
        let removed = match fs::remove_file(&mark) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            // A power cut must not undo the removal.
            _ => sync_dir(&self.dir),
        };
        if let Err(e) = removed {
            tracing::error!(error = %e, path = %mark.display(), "cannot mark the index as damaged: delete its directory");
        }
    }

    fn checks(&self) -> Vec<Check> {
        let version = self.tree.current_version();
        let tables: Vec<_> = version.iter_tables().cloned().collect();
        let check = |table: lsm_tree::Table| -> Check {
            Box::new(move || {
                let mut file = fs::File::open(&*table.path).map_err(lsm_tree::Error::from)?;
                let (mut hash, mut bytes) = (xxhash_rust::xxh3::Xxh3::new(), 0);
                let mut buf = vec![0; 256 << 10];
                loop {
                    let n = file.read(&mut buf).map_err(lsm_tree::Error::from)?;
                    if n == 0 {
                        break;
                    }
                    hash.update(&buf[..n]);
                    bytes += n as u64;
                }
                if hash.digest128() != table.checksum().into_u128() {
                    return Err(IndexError::damaged(format!("{}: checksum mismatch", table.path.display())));
                }
                Ok(bytes)
            })
        };
        tables.into_iter().map(check).collect()
    }

    fn status(&self) -> IndexStatus {
        IndexStatus {
            disk_bytes: self.tree.disk_space(),
            memtable_bytes: self.tree.active_memtable().size(),
            tables: self.tree.table_count() as u64,
            ..IndexStatus::default()
        }
    }
}
