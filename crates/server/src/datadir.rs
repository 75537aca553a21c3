//! The data directory: its entries, and the lock that keeps it to one process.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::private_file;

/// A data directory, locked by this process until dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: Option<File>,
}

impl DataDir {
    /// Locks the directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// When it cannot be created, or another process uses it.
    pub fn create(path: &Path) -> Result<Self, String> {
        if !path.is_dir() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .map_err(|e| format!("{}: the directory cannot be created: {e}", path.display()))?;
        }
        Self::take(path)
    }

    /// Locks an existing directory.
    ///
    /// # Errors
    /// When it does not exist, or another process uses it.
    pub fn open(path: &Path) -> Result<Self, String> {
        if path.is_dir() {
            Self::take(path)
        } else {
            Err(format!("{}: there is no such directory; give a server's directory with --data", path.display()))
        }
    }

    /// Locks a directory for reading only. On a read-only mount without a lock file it proceeds
    /// without a lock: no process of this machine can write through that mount.
    ///
    /// # Errors
    /// Those of [`DataDir::open`].
    pub fn open_to_read(path: &Path) -> Result<Self, String> {
        let error = match Self::open(path) {
            Ok(ours) => return Ok(ours),
            Err(error) => error,
        };
        let lock_path = path.join("lock");
        let made = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&lock_path);
        let refused =
            |e: &io::Error| matches!(e.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied);
        if !path.is_dir() || !made.is_err_and(|e| refused(&e)) {
            return Err(error);
        }
        let lock = match File::open(&lock_path) {
            Ok(lock) => lock,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self { path: path.to_owned(), _lock: None }),
            Err(_) => return Err(error),
        };
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: Some(lock) }),
            Err(TryLockError::WouldBlock) => Err(in_use(path)),
            Err(TryLockError::Error(_)) => Ok(Self { path: path.to_owned(), _lock: None }),
        }
    }

    fn take(path: &Path) -> Result<Self, String> {
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(|e| format!("{}: cannot be opened: {e}", lock_path.display()))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: Some(lock) }),
            Err(TryLockError::WouldBlock) => Err(in_use(path)),
            Err(TryLockError::Error(e)) => Err(format!("{}: cannot be locked: {e}", lock_path.display())),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the owner numbers of the archive.
    pub fn archive(&self) -> PathBuf {
        self.path.join("archive")
    }

    /// Forgets that a pool of this directory owned an archive. Durable when it returns.
    ///
    /// # Errors
    /// The file system's error.
    pub fn forget_archive(&self) -> Result<(), String> {
        let path = self.archive();
        match std::fs::remove_file(&path) {
            Ok(()) => self.sync().map_err(|e| format!("{}: {e}", path.display())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(format!("{}: {e}", path.display())),
        }
    }

    /// Path of the index. It may be deleted while no server runs; the next start rebuilds it.
    pub fn index(&self) -> PathBuf {
        self.path.join("index")
    }

    /// The indexes in it: that of a pool of one disk, and those of each disk of several.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn indexes(&self) -> Result<Vec<PathBuf>, String> {
        let index = self.index();
        let prefix = format!("{}.", index.file_name().unwrap_or_default().to_string_lossy());
        let fail = |e: io::Error| format!("{}: {e}", self.path.display());
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let of_disk = entry.file_name().to_string_lossy().strip_prefix(&prefix).is_some_and(|id| id.len() == 36);
            if (of_disk || entry.path() == index) && entry.path().is_dir() {
                found.push(entry.path());
            }
        }
        found.sort();
        Ok(found)
    }

    /// Removes every index: a restored pool may be older than they are. The start rebuilds them.
    ///
    /// # Errors
    /// When one cannot be removed.
    pub fn discard_indexes(&self) -> Result<(), String> {
        for index in self.indexes()? {
            std::fs::remove_dir_all(&index).map_err(|e| format!("{}: {e}", index.display()))?;
            tracing::warn!(index = %index.display(), "the index was removed and is rebuilt from the disks");
        }
        Ok(())
    }

    /// Checks that no pool was here before, when all disks of the pool are missing. An index
    /// without its pool means a missing mount, a moved pool, or other settings than before
    /// (`data.pool` for `data.disks`). A new empty pool would hide that.
    ///
    /// # Errors
    /// The directory has an index, as a message.
    pub fn refuse_to_forget(&self, missing: &[PathBuf]) -> Result<(), String> {
        let is_used = |index: &PathBuf| std::fs::read_dir(index).is_ok_and(|mut entries| entries.next().is_some());
        let Some(first) = self.indexes()?.into_iter().find(is_used) else { return Ok(()) };
        let missing: Vec<String> = missing.iter().map(|path| path.display().to_string()).collect();
        let (of_one, of_many) = ("data.pool names its disk", "data.disks names its disks");
        let named = if first == self.index() { of_one } else { of_many };
        Err(format!(
            "the pool is missing ({}), but {} shows that there was one: mount or restore it, and check that {named}. To create a              new pool, remove {}*",
            missing.join(", "),
            first.display(),
            self.index().display()
        ))
    }

    /// Path of the mark of a restore that has not ended.
    pub fn restoring(&self) -> PathBuf {
        restoring_in(&self.path)
    }

    /// Refuses a use of the pool of a directory while a restore of it has not ended, and if it is a
    /// standby.
    ///
    /// # Errors
    /// What to do.
    pub fn refuse_restoring(path: &Path) -> Result<(), String> {
        let mark = restoring_in(path);
        if !mark.exists() {
            return Self::refuse_standby(path);
        }
        Err(format!(
            "a restore of this pool was interrupted: run the same `steadfast restore` again. To give it up, remove {} and the \
             disks of the pool",
            mark.display()
        ))
    }

    /// Path of the mark of a standby.
    pub fn standby(&self) -> PathBuf {
        standby_in(&self.path)
    }

    /// Path of the head whose state the disks of a standby hold.
    pub fn standby_head(&self) -> PathBuf {
        self.path.join("standby.head")
    }

    /// Refuses a use of the pool of a directory whose disks follow an archive.
    ///
    /// # Errors
    /// What to do.
    pub fn refuse_standby(path: &Path) -> Result<(), String> {
        let mark = standby_in(path);
        if !mark.exists() {
            return Ok(());
        }
        Err(format!(
            "this is a standby, and has no pool before it is promoted: start it with `steadfast serve --standby`. To give the \
             standby up, remove {} and its disks",
            mark.display()
        ))
    }

    /// The file that says what was restored here.
    fn restored(&self) -> PathBuf {
        self.path.join("restored.json")
    }

    /// Notes that the pool was restored onto a machine that may know nothing else of it. Durable
    /// when it returns.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn note_restored(&self, what: &str) -> Result<(), String> {
        private_file::store(&self.restored(), what)
    }

    /// Refuses to make credentials for a pool that was restored.
    ///
    /// # Errors
    /// What to do.
    pub fn refuse_new_credentials(&self) -> Result<(), String> {
        if !self.restored().exists() {
            return Ok(());
        }
        Err(format!(
            "the pool was restored, and archives hold no credentials: copy credentials.json (and seal.key, if there are users) of \
             the old machine to {}, or set STEADFAST_ACCESS_KEY and STEADFAST_SECRET_KEY",
            self.path.display()
        ))
    }

    /// Makes its entries durable.
    ///
    /// # Errors
    /// The file system's error.
    pub fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

/// The files with generated keys.
#[derive(Debug)]
pub struct KeyFiles {
    /// The credentials of the root identity.
    pub credentials: PathBuf,
    /// The key that seals the secrets of users.
    pub seal_key: PathBuf,
}

impl KeyFiles {
    /// Those of a data directory.
    pub fn in_dir(dir: &Path) -> Self {
        Self { credentials: dir.join("credentials.json"), seal_key: dir.join("seal.key") }
    }
}

fn standby_in(data: &Path) -> PathBuf {
    data.join("standby")
}

fn restoring_in(data: &Path) -> PathBuf {
    data.join("restoring")
}

fn in_use(path: &Path) -> String {
    format!("{}: another process uses this directory (a server, or a command on it): stop it first", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_not_made_beside_the_index_of_another() {
        let temp = tempfile::tempdir().expect("a directory");
        let data = DataDir::create(temp.path()).expect("made");
        let missing = [temp.path().join("pool")];
        assert_eq!(data.refuse_to_forget(&missing), Ok(()));
        let of_disk = format!("index.{}", "0".repeat(36));
        for (index, setting) in [("index", "data.pool"), (&*of_disk, "data.disks")] {
            let index = temp.path().join(index);
            std::fs::create_dir(&index).expect("made");
            assert_eq!(data.refuse_to_forget(&missing), Ok(()), "it is empty");
            std::fs::write(index.join("0.sst"), "").expect("written");
            let why = data.refuse_to_forget(&missing).expect_err("another pool");
            assert!(why.contains("/pool), but") && why.contains(setting), "{why}");
            data.discard_indexes().expect("removed");
            assert!(!index.exists());
        }
    }

    #[test]
    fn two_never_share_it() {
        let temp = tempfile::tempdir().expect("a directory");
        let path = temp.path().join("a/b");
        assert!(DataDir::open(&path).expect_err("absent").contains("no such directory"));
        let first = DataDir::create(&path).expect("made");
        assert!(DataDir::open(&path).expect_err("taken").contains("another process"));
        drop(first);
        DataDir::open(&path).expect("free again");
    }
}
