//! Faults of indexes: an index is deleted, restored to an earlier state, torn, or unreadable for a
//! while. An index is derived from its log, so these faults excuse only requests refused meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_store::{IndexKind, Store};
use tempfile::TempDir;

use crate::executor::Executor;
use crate::plan::{IndexFate, Plan, Unreadable};
use crate::rng::Rng;

/// Number of images kept.
const IMAGES_MAX: usize = 3;

/// The indexes of a run's pool, and their earlier images.
pub(crate) struct Indexes {
    pub(crate) kind: IndexKind,
    /// The directory of the files, if the index uses files.
    dir: Option<TempDir>,
    images: IndexImages,
}

enum IndexImage {
    Memory(steadfast_store::MemCheckpoint),
    Files(TempDir),
}

type IndexImages = Arc<Mutex<Vec<IndexImage>>>;

impl Indexes {
    pub(crate) fn new(files: bool) -> Self {
        let dir = files.then(|| tempfile::tempdir().ok()).flatten();
        let kind = match &dir {
            Some(dir) => IndexKind::Lsm(dir.path().join("index")),
            None => IndexKind::memory(),
        };
        Self { kind, dir, images: Arc::default() }
    }

    /// Applies `fate` while the power is off.
    pub(crate) fn inject(&mut self, fate: IndexFate, rng: &mut Rng) {
        if let IndexKind::Memory(checkpoint) = &self.kind {
            // The planned failures of the previous life end here.
            checkpoint.fail_no_more();
        }
        match fate {
            IndexFate::Kept => {}
            IndexFate::Deleted => self.delete(),
            IndexFate::Older => {
                let images = self.images.clone();
                let images = images.lock();
                if images.is_empty() {
                    return;
                }
                match (rng.pick(&images), &self.dir) {
                    (IndexImage::Files(image), Some(dir)) => {
                        let path = dir.path().to_owned();
                        self.delete();
                        let _ = copy_files(image.path(), &path);
                    }
                    (IndexImage::Memory(checkpoint), _) => self.kind = IndexKind::Memory(checkpoint.copy()),
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
                // Each disk has its own index directory.
                for index in std::fs::read_dir(dir.path()).into_iter().flatten().flatten() {
                    let _ = std::fs::remove_dir_all(index.path());
                }
            }
            None => self.kind = IndexKind::memory(),
        }
    }

    /// Takes an image of the index at a random later time, while it is in use.
    pub(crate) fn take_image_later(&self, executor: &Executor, rng: &mut Rng) {
        let (IndexKind::Memory(checkpoint), images) = (self.kind.clone(), self.images.clone()) else { return };
        executor.call_after(Duration::from_micros(rng.below(400_000)), move || {
            push(&images, IndexImage::Memory(checkpoint.copy()));
        });
    }

    /// Forgets the images.
    pub(crate) fn forget_images(&self) {
        self.images.lock().clear();
    }

    /// Takes an image of the index while the power is off.
    pub(crate) fn take_image(&self) {
        match (&self.kind, &self.dir) {
            (IndexKind::Memory(checkpoint), _) => push(&self.images, IndexImage::Memory(checkpoint.copy())),
            (_, Some(dir)) => {
                let Ok(image) = tempfile::tempdir() else { return };
                if copy_files(dir.path(), image.path()).is_ok() {
                    push(&self.images, IndexImage::Files(image));
                }
            }
            _ => {}
        }
    }
}

fn push(images: &IndexImages, image: IndexImage) {
    let mut images = images.lock();
    if images.len() == IMAGES_MAX {
        images.remove(0);
    }
    images.push(image);
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

/// Flips bits in some of the files, or truncates them.
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

/// Makes reads of the index fail as planned, from now on.
pub(crate) fn fail_reads(kind: &IndexKind, how: Option<Unreadable>) {
    if let (IndexKind::Memory(checkpoint), Some(how)) = (kind, how) {
        checkpoint.fail_after(how.after, how.count);
    }
}

/// Ends the read failures and waits until the failed index is rebuilt. Returns an error after a
/// generous timeout.
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
    Err(format!("INDEX: the rebuild does not finish: {:?}", store.status().index))
}

impl Plan {
    /// Adds faults of indexes to the plan.
    pub(crate) fn add_index_faults(&mut self, rng: &mut Rng) {
        self.index.faults = true;
        let (fast, moving) = (self.disks.iter().any(|disk| disk.fast.is_some()), self.moves.is_some());
        // The simulator does not retry moves to another disk.
        let unreadable = !moving;
        // More lives, so that there are more states to restore.
        let more: Vec<_> = self.lives.iter().take(2).cloned().collect();
        self.lives.extend(more);
        for (number, life) in self.lives.iter_mut().enumerate() {
            if number > 0 && rng.one_in(2) {
                life.index = *rng.pick(&[IndexFate::Older, IndexFate::Older, IndexFate::Torn, IndexFate::Kept]);
            }
            // The pool is restored to an earlier state, its index is not.
            let restored = number > 1 && !fast && !moving && rng.one_in(3);
            if restored {
                (life.restored, life.index) = (true, IndexFate::Kept);
            }
            // At most one fault at a start: a second one during the rebuild keeps the disk out of
            // the pool until the next start.
            let fit = !restored && matches!(life.index, IndexFate::Kept | IndexFate::Deleted);
            if unreadable && fit && rng.one_in(4) {
                let mut fault = Unreadable::new(rng, 8);
                fault.count = fault.count.map(|_| 1);
                life.index_faults.at_start = Some(fault);
            }
            if unreadable && rng.one_in(2) {
                life.index_faults.at_work = Some(Unreadable::new(rng, 13));
            }
        }
    }
}
