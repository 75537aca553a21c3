//! Exports in a directory.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use steadfast_flow::Env;

use super::{MANIFEST, Result, UNFINISHED};

/// Size of the write buffer, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// A directory with exports.
#[derive(Clone)]
pub struct Dir {
    path: PathBuf,
    env: Env,
}

fn fail(path: &Path) -> impl Fn(io::Error) -> String + '_ {
    move |e| format!("{}: {e}", path.display())
}

fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Creates the directory and its missing parents, each durably.
fn make_dir(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_dir(parent)?;
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    sync_dir(parent)
}

impl Dir {
    pub(super) fn new(path: &Path, env: &Env) -> Result<Self> {
        if !path.is_absolute() {
            return Err(format!("{}: give an absolute path", path.display()));
        }
        Ok(Self { path: path.to_owned(), env: env.clone() })
    }

    pub(super) fn shown(&self) -> String {
        self.path.display().to_string()
    }

    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        self.env.blocking(work).await.unwrap_or_else(|| Err("a task ended without an answer".to_owned()))
    }

    pub(super) async fn size(&self, path: &str) -> Result<Option<u64>> {
        let path = self.path.join(path);
        self.blocking(move || match fs::metadata(&path) {
            Ok(found) => Ok(Some(found.len())),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(e) => Err(fail(&path)(e)),
        })
        .await
    }

    pub(super) async fn read(&self, path: &str, offset: u64, len: u64) -> Result<Bytes> {
        let path = self.path.join(path);
        self.blocking(move || {
            let file = File::open(&path).map_err(fail(&path))?;
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, offset).map_err(fail(&path))?;
            Ok(bytes.into())
        })
        .await
    }

    pub(super) async fn create(&self, path: &str) -> Result<DirWriter> {
        let path = self.path.join(path);
        let part = path.with_added_extension("part");
        let (file, part) = self
            .blocking(move || {
                let parent = part.parent().unwrap_or(Path::new("/"));
                make_dir(parent).map_err(fail(parent))?;
                let mut options = OpenOptions::new();
                let file = options.write(true).create(true).truncate(true).mode(0o600).open(&part);
                Ok((file.map_err(fail(&part))?, part.clone()))
            })
            .await?;
        Ok(DirWriter { dir: self.clone(), file: Some(file), path, part, buffer: Vec::with_capacity(BUFFER_BYTES) })
    }

    pub(super) async fn remove(&self, path: &str) -> Result<bool> {
        let path = self.path.join(path);
        self.blocking(move || match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(fail(&path)(e)),
        })
        .await
    }

    pub(super) async fn refuse_foreign(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        self.blocking(move || {
            let mut entries = match fs::read_dir(&path) {
                Ok(entries) => entries,
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(e) => return Err(fail(&path)(e)),
            };
            let ours = path.join(UNFINISHED).exists() || path.join(MANIFEST).exists();
            if ours || entries.next().is_none() {
                return Ok(());
            }
            Err(format!("{}: it holds files that are not an export: give another directory", path.display()))
        })
        .await
    }
}

/// A file being written, under a temporary name until it is complete.
pub struct DirWriter {
    dir: Dir,
    file: Option<File>,
    path: PathBuf,
    part: PathBuf,
    buffer: Vec<u8>,
}

impl DirWriter {
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER_BYTES { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<()> {
        let Some(mut file) = self.file.take() else { return Err("the file is closed".to_owned()) };
        let (buffer, part) = (std::mem::take(&mut self.buffer), self.part.clone());
        let (file, mut buffer) = self
            .dir
            .blocking(move || {
                file.write_all(&buffer).map_err(fail(&part))?;
                Ok((file, buffer))
            })
            .await?;
        buffer.clear();
        (self.file, self.buffer) = (Some(file), buffer);
        Ok(())
    }

    pub(super) async fn finish(mut self) -> Result<()> {
        self.flush().await?;
        let Some(file) = self.file.take() else { return Ok(()) };
        let (part, path) = (self.part.clone(), self.path.clone());
        self.dir
            .blocking(move || {
                file.sync_all().map_err(fail(&part))?;
                fs::rename(&part, &path).map_err(fail(&path))?;
                let parent = path.parent().unwrap_or(Path::new("/"));
                sync_dir(parent).map_err(fail(parent))
            })
            .await
    }
}
