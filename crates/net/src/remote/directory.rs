//! A directory as a store: for a disk in a drawer, or a mounted file system.
//!
//! An object is created by linking a complete, flushed file to its name, and replaced by renaming
//! one over it, under a lock. So a crash leaves the object as it was or as it is to be.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use steadfast_flow::{BoxFuture, Env};

use super::name::{check_name, is_part};
use super::{EntityTag, REMOTE_PAGE, RemoteEntry, RemoteError, RemoteObject, RemoteResult, RemoteStore};

/// The lock of replacements, and the beginning of the names of incomplete files. No object has a
/// name that begins with a dot.
const LOCK: &str = ".lock";
const INCOMPLETE: &str = ".new.";

/// Age at which an incomplete file belongs to no process any more.
const LEFT_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Time limit of a call: a mounted file system may hang.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A directory. Cloning shares it.
#[derive(Debug, Clone)]
pub struct DirectoryStore {
    root: Arc<Path>,
    /// Set by the first write: a reader leaves the directory as it is.
    cleaned: Arc<Once>,
    env: Env,
}

impl DirectoryStore {
    /// A store in this directory, which must exist.
    ///
    /// # Errors
    /// It does not exist or is not a directory; the text is for operators.
    pub fn new(root: &Path, env: Env) -> Result<Self, String> {
        match fs::metadata(root) {
            Ok(found) if found.is_dir() => Ok(Self { root: root.into(), cleaned: Arc::new(Once::new()), env }),
            Ok(_) => Err(format!("{}: not a directory", root.display())),
            Err(e) => Err(format!("{}: {e}: create the directory, or mount what holds it", root.display())),
        }
    }

    /// Removes what crashes have left.
    fn remove_incomplete(&self) {
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let is_incomplete = entry.file_name().to_string_lossy().starts_with(INCOMPLETE);
            let age = entry.metadata().and_then(|found| found.modified()).map(|at| at.elapsed().unwrap_or_default());
            if is_incomplete && age.is_ok_and(|age| age > LEFT_AFTER) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn path(&self, name: &str) -> RemoteResult<PathBuf> {
        check_name(name).map_err(RemoteError::Refused)?;
        Ok(self.root.join(name))
    }

    /// Runs `work` where blocking is allowed.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> RemoteResult<T> + Send + 'static,
    ) -> RemoteResult<T> {
        let store = self.clone();
        let done = self.env.timeout(TIMEOUT, self.env.blocking(move || work(&store))).await;
        match done {
            Some(Some(done)) => done,
            Some(None) => Err(RemoteError::Unknown("a task has panicked".to_owned())),
            None => Err(RemoteError::Unknown(format!("none within {TIMEOUT:?}"))),
        }
    }

    /// Writes a complete, flushed file that has no name of an object yet.
    fn incomplete(&self, body: &[Bytes]) -> io::Result<PathBuf> {
        self.cleaned.call_once(|| self.remove_incomplete());
        let path = self.root.join(format!("{INCOMPLETE}{:016x}", self.env.random_u64()));
        let mut file = File::options().write(true).create_new(true).open(&path)?;
        let mut pieces = body.iter();
        let written = pieces.try_for_each(|piece| file.write_all(piece)).and_then(|()| file.sync_all());
        if written.is_err() {
            let _ = fs::remove_file(&path);
        }
        written.map(|()| path)
    }

    /// Makes an object durable: its file, and the directories above it up to the root.
    fn sync(&self, path: &Path) -> RemoteResult<()> {
        let work = || {
            File::open(path)?.sync_all()?;
            for above in path.ancestors().skip(1).take_while(|above| above.starts_with(&self.root)) {
                File::open(above)?.sync_all()?;
            }
            Ok(())
        };
        // It has its name already.
        work().map_err(|e: io::Error| RemoteError::Unknown(e.to_string()))
    }

    fn create_now(&self, path: &Path, body: &[Bytes]) -> RemoteResult<EntityTag> {
        let new = self.incomplete(body).map_err(|e| error_of(&e))?;
        let linked = link(&new, path);
        // NFS may say that the name exists when its own first attempt has made it.
        let is_mine = linked.as_ref().is_err_and(|e| e.kind() == ErrorKind::AlreadyExists) && same_file(&new, path);
        let _ = fs::remove_file(&new);
        match linked {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(error_of(&e)),
            // Another process may have made it and not flushed it yet.
            _ => self.sync(path)?,
        }
        if linked.is_ok() || is_mine { Ok(tag_of(body)) } else { Err(RemoteError::Exists) }
    }

    /// Locks out other replacements and deletes, of all processes, until the result is dropped.
    fn lock(&self) -> RemoteResult<File> {
        let path = self.root.join(LOCK);
        let lock = File::options().write(true).create(true).truncate(false).open(path);
        let locked = lock.and_then(|lock| lock.lock().map(|()| lock));
        locked.map_err(|e| error_of(&e))
    }

    fn replace_now(&self, path: &Path, body: &[Bytes], over: &EntityTag) -> RemoteResult<EntityTag> {
        let _lock = self.lock()?;
        match fs::read(path).map(Bytes::from) {
            Ok(now) if tag_of(std::slice::from_ref(&now)) == *over => {}
            Ok(_) => {
                self.sync(path)?;
                return Err(RemoteError::Changed);
            }
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(RemoteError::Changed),
            Err(e) => return Err(error_of(&e)),
        }
        let new = self.incomplete(body).map_err(|e| error_of(&e))?;
        if let Err(e) = fs::rename(&new, path) {
            let _ = fs::remove_file(&new);
            return Err(RemoteError::Unknown(e.to_string()));
        }
        self.sync(path)?;
        Ok(tag_of(body))
    }

    fn read_now(&self, path: &Path, range: Option<Range<u64>>, bytes_max: u64) -> RemoteResult<RemoteObject> {
        let whole = range.is_none();
        let work = || -> io::Result<Option<RemoteObject>> {
            let mut file = File::open(path)?;
            let size = file.metadata()?.len();
            let range = range.unwrap_or(0..size);
            if range.start > range.end || range.end > size || range.end - range.start > bytes_max {
                return Ok(None);
            }
            let mut body = vec![0; (range.end - range.start) as usize];
            file.seek(SeekFrom::Start(range.start))?;
            file.read_exact(&mut body)?;
            let body = Bytes::from(body);
            let tag = whole.then(|| tag_of(std::slice::from_ref(&body)));
            Ok(Some(RemoteObject { body, tag, size }))
        };
        match work() {
            Ok(Some(object)) => Ok(object),
            Ok(None) => Err(RemoteError::Refused(format!("{} has not these bytes, or too many", path.display()))),
            Err(e) if e.kind() == ErrorKind::NotFound => Err(RemoteError::Missing),
            Err(e) => Err(error_of(&e)),
        }
    }

    fn list_now(&self, under: &str, after: &str) -> RemoteResult<Vec<RemoteEntry>> {
        let mut page = Vec::new();
        let prefix = if under.is_empty() { String::new() } else { format!("{under}/") };
        match self.list_in(&prefix, after, &mut page) {
            Ok(()) => Ok(page),
            Err(e) => Err(error_of(&e)),
        }
    }

    /// Adds the objects under a prefix that ends with a slash, in order.
    fn list_in(&self, prefix: &str, after: &str, page: &mut Vec<RemoteEntry>) -> io::Result<()> {
        let entries = match fs::read_dir(self.root.join(prefix)) {
            // Removed meanwhile.
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if !is_part(&name) {
                continue;
            }
            // A directory sorts as its objects do.
            let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
            names.push((format!("{prefix}{name}{slash}"), entry));
        }
        names.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (name, entry) in names {
            if page.len() == REMOTE_PAGE {
                return Ok(());
            }
            if name.ends_with('/') {
                if after.starts_with(&name) || *name > *after {
                    self.list_in(&name, after, page)?;
                }
                continue;
            }
            if *name <= *after {
                continue;
            }
            let Ok(found) = entry.metadata() else { continue };
            let modified = found.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            let modified_ms = modified.map_or(0, |at| u64::try_from(at.as_millis()).unwrap_or(u64::MAX));
            page.push(RemoteEntry { name, size: found.len(), modified_ms });
        }
        Ok(())
    }

    fn delete_now(&self, paths: &[PathBuf]) -> RemoteResult<()> {
        let _lock = self.lock()?;
        for path in paths {
            match fs::remove_file(path) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(error_of(&e)),
                _ => {}
            }
            // Those that are empty now; another object may be created in them at this moment.
            for above in path.ancestors().skip(1).take_while(|above| **above != *self.root) {
                if fs::remove_dir(above).is_err() {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Links a file to the name of an object, in a directory that may not exist.
fn link(new: &Path, path: &Path) -> io::Result<()> {
    for _ in 0..100 {
        if let Some(above) = path.parent() {
            fs::create_dir_all(above).map_err(|e| match e.kind() {
                // An object has the name of the directory.
                ErrorKind::AlreadyExists => ErrorKind::NotADirectory.into(),
                _ => e,
            })?;
        }
        match fs::hard_link(new, path) {
            // A delete has removed the empty directory.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            done => return done,
        }
    }
    Err(ErrorKind::NotFound.into())
}

fn same_file(one: &Path, other: &Path) -> bool {
    let of = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    of(one).is_ok_and(|one| of(other).is_ok_and(|other| one == other))
}

fn tag_of(body: &[Bytes]) -> EntityTag {
    let digest = body.iter().fold(Sha256::new(), |digest, piece| digest.chain_update(piece));
    EntityTag(hex::encode(digest.finalize()))
}

fn error_of(error: &io::Error) -> RemoteError {
    match error.kind() {
        ErrorKind::PermissionDenied
        | ErrorKind::ReadOnlyFilesystem
        | ErrorKind::NotADirectory
        | ErrorKind::IsADirectory
        | ErrorKind::Unsupported => RemoteError::Refused(error.to_string()),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => RemoteError::Slow(error.to_string()),
        _ => RemoteError::Unknown(error.to_string()),
    }
}

impl RemoteStore for DirectoryStore {
    fn create<'a>(&'a self, name: &'a str, body: Vec<Bytes>) -> BoxFuture<'a, RemoteResult<EntityTag>> {
        Box::pin(async move {
            let path = self.path(name)?;
            self.blocking(move |store| store.create_now(&path, &body)).await
        })
    }

    fn replace<'a>(
        &'a self,
        name: &'a str,
        body: Bytes,
        over: &'a EntityTag,
    ) -> BoxFuture<'a, RemoteResult<EntityTag>> {
        Box::pin(async move {
            let (path, over) = (self.path(name)?, over.clone());
            self.blocking(move |store| store.replace_now(&path, &[body], &over)).await
        })
    }

    fn read<'a>(
        &'a self,
        name: &'a str,
        range: Option<Range<u64>>,
        bytes_max: u64,
    ) -> BoxFuture<'a, RemoteResult<RemoteObject>> {
        Box::pin(async move {
            let path = self.path(name)?;
            self.blocking(move |store| store.read_now(&path, range, bytes_max)).await
        })
    }

    fn list<'a>(&'a self, under: &'a str, after: &'a str) -> BoxFuture<'a, RemoteResult<Vec<RemoteEntry>>> {
        Box::pin(async move {
            if !under.is_empty() {
                check_name(under).map_err(RemoteError::Refused)?;
            }
            let (under, after) = (under.to_owned(), after.to_owned());
            self.blocking(move |store| store.list_now(&under, &after)).await
        })
    }

    fn delete<'a>(&'a self, names: &'a [String]) -> BoxFuture<'a, RemoteResult<()>> {
        Box::pin(async move {
            assert!(names.len() <= REMOTE_PAGE, "{} names at a time", names.len());
            let paths = names.iter().map(|name| self.path(name)).collect::<RemoteResult<Vec<_>>>()?;
            self.blocking(move |store| store.delete_now(&paths)).await
        })
    }

    fn describe(&self) -> String {
        format!("file://{}", self.root.display())
    }
}
