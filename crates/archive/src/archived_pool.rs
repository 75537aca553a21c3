//! A pool as its archive has it.

use std::sync::Arc;

use steadfast_disk::Disk;
use steadfast_flow::Env;
use steadfast_net::RemoteStore;

use crate::attempts::{Attempts, Pause};
use crate::disk_writer::{DiskWriter, PartReader, RestoreError};
use crate::error::ArchiveError;
use crate::head_writer::KnownHeadObject;
use crate::load::Loaded;
use crate::name::{DiskId, HEAD};

/// The state of a pool that the head of an archive names.
pub struct ArchivedPool {
    attempts: Attempts,
    loaded: Loaded,
    time_ms: u64,
}

impl ArchivedPool {
    /// Reads the newest state. Requests that fail are repeated without end.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] when there is none, or objects of it are missing or were changed.
    pub async fn read(store: Arc<dyn RemoteStore>, env: &Env) -> Result<Self, ArchiveError> {
        let (attempts, mut pause) = (Attempts::new(store, env), Pause::new());
        let head = loop {
            match KnownHeadObject::read_once(&attempts).await {
                Ok(Some(head)) => break head?,
                Ok(None) => return Err(ArchiveError::broken(HEAD, "there is none: this is no archive")),
                Err(_) => pause.wait(env).await,
            }
        };
        let Some(cut) = &head.head.cut else {
            return Err(ArchiveError::broken(
                HEAD,
                "the first complete copy was not finished: nothing can be restored",
            ));
        };
        let loaded = Loaded::read(&attempts, cut, &head.payload).await?;
        Ok(Self { attempts, loaded, time_ms: cut.time_ms })
    }

    /// When the state was taken, in milliseconds since the Unix epoch.
    pub fn time_ms(&self) -> u64 {
        self.time_ms
    }

    /// The disks of the pool at that time, with their names.
    pub fn disks(&self) -> impl Iterator<Item = (DiskId, &str)> {
        let there = self.loaded.image.disks.iter().filter(|(_, of)| of.about.left_ms.is_none());
        there.map(|(disk, of)| (*disk, of.about.name.as_str()))
    }

    /// Makes one of the disks. What `onto` held before is gone.
    ///
    /// # Errors
    /// Those of the archive's objects and of the disk.
    ///
    /// # Panics
    /// If it is not a disk of the pool.
    pub async fn restore(&self, disk: DiskId, onto: &Arc<dyn Disk>) -> Result<(), RestoreError> {
        let image = self.loaded.image.disks.get(&disk).expect("a disk of the pool");
        let parts = PartReader::new(&self.attempts, &self.loaded.inline);
        DiskWriter { disk: onto, id: disk, image, parts: &parts }.write().await
    }
}
