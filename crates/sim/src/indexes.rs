//! What becomes of indexes: they are deleted, put back from an earlier time, torn, or cannot be read for a while. None of it is an excuse
//! for anything but that requests are refused meanwhile: an index is derived from its log.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_log::LogError;
use steadfast_store::{IndexKind, Store, StoreError};
use tempfile::TempDir;

use crate::executor::Executor;
use crate::plan::Plan;
use crate::rng::Rng;

/// What becomes of the index between lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexFate {
    Kept,
    Deleted,
    /// It is as it was at an earlier time.
    Older,
    /// Its files have lost some of what they held.
    Torn,
}

/// How reads of the index fail, after so many.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unreadable {
    after: u64,
    /// So many fail; `None`: all, until it is made anew.
    count: Option<u64>,
}

/// How reads of the index fail in a life.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IndexTrouble {
    /// From the start on,
    pub(crate) at_start: Option<Unreadable>,
    /// and from when the clients have begun.
    pub(crate) at_work: Option<Unreadable>,
}

impl IndexTrouble {
    /// A few reads fail while clients work.
    pub(crate) fn refuse_at_work(&mut self) {
        *self = Self { at_start: None, at_work: Some(Unreadable { after: 300, count: Some(8) }) };
    }
}

impl Unreadable {
    fn new(rng: &mut Rng, reads_max_log2: u64) -> Self {
        let reads = rng.range(0, reads_max_log2);
        let count = if rng.one_in(2) { Some(rng.range(1, 12)) } else { None };
        Self { after: rng.below(1 << reads), count }
    }
}

/// How many pictures are kept.
const PICTURES_MAX: usize = 3;

/// The indexes of a run's pool, and what they were before.
pub(crate) struct Indexes {
    pub(crate) kind: IndexKind,
    /// Holds the files, where there are any.
    dir: Option<TempDir>,
    pictures: Pictures,
}

enum Picture {
    Memory(steadfast_store::MemCheckpoint),
    Files(TempDir),
}

type Pictures = Arc<Mutex<Vec<Picture>>>;

impl Indexes {
    pub(crate) fn new(files: bool) -> Self {
        let dir = files.then(|| tempfile::tempdir().ok()).flatten();
        let kind = match &dir {
            Some(dir) => IndexKind::Lsm(dir.path().join("index")),
            None => IndexKind::memory(),
        };
        Self { kind, dir, pictures: Arc::default() }
    }

    /// The power is off.
    pub(crate) fn befall(&mut self, fate: IndexFate, rng: &mut Rng) {
        if let IndexKind::Memory(checkpoint) = &self.kind {
            // What was to strike in the life before does not strike now.
            checkpoint.fail_no_more();
        }
        match fate {
            IndexFate::Kept => {}
            IndexFate::Deleted => self.delete(),
            IndexFate::Older => {
                let pictures = self.pictures.clone();
                let pictures = pictures.lock();
                if pictures.is_empty() {
                    return;
                }
                match (rng.pick(&pictures), &self.dir) {
                    (Picture::Files(picture), Some(dir)) => {
                        let path = dir.path().to_owned();
                        self.delete();
                        let _ = copy_files(picture.path(), &path);
                    }
                    (Picture::Memory(checkpoint), _) => self.kind = IndexKind::Memory(checkpoint.copy()),
                    _ => {}
                }
            }
            IndexFate::Torn => match (&self.kind, &self.dir) {
                (IndexKind::Memory(checkpoint), _) => checkpoint.fail_after(rng.below(60), None),
                (_, Some(dir)) => tear(dir.path(), rng),
                _ => {}
            },
        }
    }

    fn delete(&mut self) {
        match &self.dir {
            Some(dir) => {
                // Each disk has one, with a name of its own.
                for index in std::fs::read_dir(dir.path()).into_iter().flatten().flatten() {
                    let _ = std::fs::remove_dir_all(index.path());
                }
            }
            None => self.kind = IndexKind::memory(),
        }
    }

    /// A picture is taken of it some time from now, while it is in use.
    pub(crate) fn picture_soon(&self, executor: &Executor, rng: &mut Rng) {
        let (IndexKind::Memory(checkpoint), pictures) = (self.kind.clone(), self.pictures.clone()) else { return };
        executor.call_after(Duration::from_micros(rng.below(400_000)), move || {
            push(&pictures, Picture::Memory(checkpoint.copy()));
        });
    }

    /// A picture is taken of it. The power is off.
    pub(crate) fn picture(&self) {
        match (&self.kind, &self.dir) {
            (IndexKind::Memory(checkpoint), _) => push(&self.pictures, Picture::Memory(checkpoint.copy())),
            (_, Some(dir)) => {
                let Ok(picture) = tempfile::tempdir() else { return };
                if copy_files(dir.path(), picture.path()).is_ok() {
                    push(&self.pictures, Picture::Files(picture));
                }
            }
            _ => {}
        }
    }
}

fn push(pictures: &Pictures, picture: Picture) {
    let mut pictures = pictures.lock();
    if pictures.len() == PICTURES_MAX {
        pictures.remove(0);
    }
    pictures.push(picture);
}

fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_files(&entry.path(), &to)?,
            false => std::fs::copy(entry.path(), to).map(drop)?,
        }
    }
    Ok(())
}

fn files(dir: &Path, all: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => files(&entry.path(), all),
            false => all.push(entry.path()),
        }
    }
}

/// Bits flip in some of the files, or their ends are missing.
fn tear(dir: &Path, rng: &mut Rng) {
    let mut all = Vec::new();
    files(dir, &mut all);
    all.sort();
    for _ in 0..rng.range(1, 3) {
        if all.is_empty() {
            return;
        }
        let path = rng.pick(&all);
        let Ok(mut data) = std::fs::read(path) else { continue };
        let at = rng.below(data.len() as u64) as usize;
        if rng.one_in(3) {
            data.truncate(at);
        } else if let Some(byte) = data.get_mut(at) {
            *byte ^= 1 << rng.below(8);
        }
        let _ = std::fs::write(path, data);
    }
}

/// From now on reads fail as planned.
pub(crate) fn fail_reads(kind: &IndexKind, how: Option<Unreadable>) {
    if let (IndexKind::Memory(checkpoint), Some(how)) = (kind, how) {
        checkpoint.fail_after(how.after, how.count);
    }
}

/// Reads fail no longer; waits until what has failed is healed. An error when it is not, in a time that is far more than enough.
pub(crate) async fn heal(kind: &IndexKind, store: &Store, executor: &Executor) -> Result<(), String> {
    if let IndexKind::Memory(checkpoint) = kind {
        checkpoint.fail_no_more();
    }
    for _ in 0..600 {
        if store.status().index.rebuilding == 0 {
            return Ok(());
        }
        executor.env().sleep(Duration::from_secs(1)).await;
    }
    Err(format!("INDEX: it is not healed: {:?}", store.status().index))
}

/// Whether it is an index that cannot be read that makes the store answer so.
pub(crate) fn is_of_index(error: &StoreError) -> bool {
    match error {
        StoreError::Index(_) => true,
        StoreError::Unavailable(why) => why.starts_with("the index of the disk"),
        StoreError::Log(LogError::Unknown { cause, .. }) => cause.contains("index") || cause.contains("not confirmed"),
        _ => false,
    }
}

impl Plan {
    /// Lets indexes suffer.
    pub(crate) fn strike_indexes(&mut self, rng: &mut Rng) {
        self.indexes_suffer = true;
        let (fast, moving) = (self.disks.iter().any(|disk| disk.fast.is_some()), self.moves.is_some());
        // What is read of a snapshot, or moved to another disk, is not tried again here.
        let unreadable = !moving && self.snapshots == 0;
        // With more to go back to.
        let more: Vec<_> = self.lives.iter().take(2).cloned().collect();
        self.lives.extend(more);
        for (number, life) in self.lives.iter_mut().enumerate() {
            if number > 0 && rng.one_in(2) {
                life.index = *rng.pick(&[IndexFate::Older, IndexFate::Older, IndexFate::Torn, IndexFate::Kept]);
            }
            // The pool goes back in time, its index does not.
            let back = number > 1 && !fast && !moving && rng.one_in(3);
            if back {
                (life.back, life.index) = (true, IndexFate::Kept);
            }
            // One fault at a start: a second one, while the index is made anew for the first, keeps a disk out until the next.
            let fit = !back && matches!(life.index, IndexFate::Kept | IndexFate::Deleted);
            if unreadable && fit && rng.one_in(4) {
                let mut trouble = Unreadable::new(rng, 8);
                trouble.count = trouble.count.map(|_| 1);
                life.trouble.at_start = Some(trouble);
            }
            if unreadable && rng.one_in(2) {
                life.trouble.at_work = Some(Unreadable::new(rng, 13));
            }
        }
    }
}
