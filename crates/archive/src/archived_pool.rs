//! A pool as its archive has it.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::attempts::Attempts;
use crate::disk_writer::{DiskWriter, RestoreError, RestorePlace};
use crate::error::ArchiveError;
use crate::head::NamedCut;
use crate::image::{DiskImage, ExtentImage, Image};
use crate::image_disk::ImageDisk;
use crate::image_pool::ImagePool;
use crate::load::{Loaded, refuse_newer};
use crate::name::DiskId;
use crate::part_reader::PartReader;
use crate::transfer_progress::TransferProgress;

/// Reads from the archive at a time, by all disks of a pool that is served from it.
const IMAGE_READS: usize = 32;

/// A disk of an archived pool.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ArchivedDisk {
    /// Its identity.
    #[serde(serialize_with = "as_text")]
    pub id: DiskId,
    /// Its path or name when it was archived.
    pub name: String,
    /// Bytes that are stored of it.
    pub bytes: u64,
    /// Least bytes of a disk onto which it can be restored.
    pub needs_bytes: u64,
}

fn as_text<S: serde::Serializer>(id: &DiskId, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(id)
}

impl ArchivedDisk {
    fn new(id: DiskId, of: &DiskImage) -> Self {
        let extents = of.extents.last_key_value().map_or(0, |(extent, _)| extent + 1);
        Self {
            id,
            name: of.about.name.clone(),
            bytes: stored_bytes(of),
            needs_bytes: of.about.superblock(id).extent_start(extents),
        }
    }
}

fn stored_bytes(of: &DiskImage) -> u64 {
    let used = of.extents.values().filter_map(|extent| match extent {
        ExtentImage::Used(of) => Some(of.bytes()),
        _ => None,
    });
    used.sum()
}

/// One state of a pool, as its archive has it.
pub struct ArchivedPool {
    attempts: Attempts,
    loaded: Loaded,
    time_ms: u64,
    tenure: Option<u64>,
    complete: bool,
}

impl ArchivedPool {
    /// Reads the state that a cut names. `payload` is that of the head which has the cut.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] when objects are missing or were changed.
    pub(crate) async fn load(
        attempts: &Attempts,
        cut: &NamedCut,
        payload: &bytes::Bytes,
    ) -> Result<Self, ArchiveError> {
        let loaded = Loaded::read(attempts, cut, payload).await?;
        refuse_newer(&loaded.image)?;
        Ok(Self { attempts: attempts.clone(), loaded, time_ms: cut.time_ms, tenure: None, complete: false })
    }

    /// A state whose bytes were copied.
    pub(crate) fn of_copy(attempts: &Attempts, image: Image, time_ms: u64) -> Self {
        let loaded = Loaded { image, ..Loaded::default() };
        Self { attempts: attempts.clone(), loaded, time_ms, tenure: None, complete: false }
    }

    /// As the state of a head that this process owns. `complete`: the head before it has all that
    /// was answered.
    pub(crate) fn owned(self, tenure: u64, complete: bool) -> Self {
        Self { tenure: Some(tenure), complete, ..self }
    }

    /// When the state was taken, in milliseconds since the Unix epoch.
    pub fn time_ms(&self) -> u64 {
        self.time_ms
    }

    /// The tenure of the head that names the state, if this process owns it.
    pub fn tenure(&self) -> Option<u64> {
        self.tenure
    }

    /// Whether the state is known to be all that was answered, so that channels continue with their
    /// epochs.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// A checksum of the state: those of two readings are equal if it is the same.
    pub fn fingerprint(&self) -> u32 {
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        for (disk, of) in &self.loaded.image.disks {
            digest.update(&disk.0);
            digest.update(&of.counters.next_epoch.to_le_bytes());
            digest.update(&of.counters.last_lsn.to_le_bytes());
            for (extent, of) in &of.extents {
                let ExtentImage::Used(of) = of else { continue };
                [u64::from(*extent), of.epoch, of.opening].iter().for_each(|n| digest.update(&n.to_le_bytes()));
                let parts = of.parts.values().flat_map(|part| [part.from, part.len, part.crc]);
                parts.for_each(|n| digest.update(&n.to_le_bytes()));
            }
        }
        digest.finalize() as u32
    }

    /// The disks of the pool at that time.
    pub fn disks(&self) -> Vec<ArchivedDisk> {
        let there = self.loaded.image.disks.iter().filter(|(_, of)| of.about.left_ms.is_none());
        there.map(|(disk, of)| ArchivedDisk::new(*disk, of)).collect()
    }

    /// Fills one of the disks. What the place held before is gone, and it holds no pool yet.
    ///
    /// # Errors
    /// Those of the archive's objects and of the disk.
    ///
    /// # Panics
    /// If it is not a disk of the pool.
    pub async fn fill(
        &self,
        disk: DiskId,
        place: &RestorePlace<'_>,
        progress: &TransferProgress,
    ) -> Result<(), RestoreError> {
        progress.expect(stored_bytes(self.image(disk)));
        self.writer(disk, place, progress).fill().await
    }

    /// Makes a disk that was filled one of the pool.
    ///
    /// # Errors
    /// Those of the disk.
    ///
    /// # Panics
    /// If it is not a disk of the pool.
    pub async fn finish(&self, disk: DiskId, place: &RestorePlace<'_>) -> Result<(), RestoreError> {
        self.writer(disk, place, &TransferProgress::default()).finish().await
    }

    /// Opens the disks, to be read only: bytes come from the archive when they are read.
    ///
    /// Each is as the cut had it, so that a log which is opened for reading finds the same records.
    pub fn open(self) -> ImagePool {
        let disks = self.disks();
        let reads = Arc::new(Semaphore::new(IMAGE_READS));
        let parts = Arc::new(PartReader::new(self.attempts.clone(), self.loaded.inline.clone()));
        let mut images = self.loaded.image.disks;
        let open = |of: ArchivedDisk| {
            let image = images.remove(&of.id).expect("a disk of the pool");
            let disk = ImageDisk::new(of.id, image, parts.clone(), reads.clone());
            (of.name, disk)
        };
        ImagePool::new(disks.into_iter().map(open).collect())
    }

    fn image(&self, disk: DiskId) -> &DiskImage {
        self.loaded.image.disks.get(&disk).expect("a disk of the pool")
    }

    fn writer<'a>(
        &'a self,
        disk: DiskId,
        place: &'a RestorePlace<'a>,
        progress: &'a TransferProgress,
    ) -> DiskWriter<'a> {
        let parts = Arc::new(PartReader::new(self.attempts.clone(), self.loaded.inline.clone()));
        DiskWriter { place, id: disk, image: self.image(disk), parts, progress, env: self.attempts.env() }
    }
}
