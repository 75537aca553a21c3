//! The data directory: its entries, and the lock that keeps it to one process.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

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

    /// Path of the index. It may be deleted while no server runs; the next start rebuilds it.
    pub fn index(&self) -> PathBuf {
        self.path.join("index")
    }

    /// Path of the generated credentials.
    pub fn credentials(&self) -> PathBuf {
        self.path.join("credentials.json")
    }

    /// Makes its entries durable.
    ///
    /// # Errors
    /// The file system's error.
    pub fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

fn in_use(path: &Path) -> String {
    format!("{}: another process uses this directory (a server, or a command on it): stop it first", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

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
