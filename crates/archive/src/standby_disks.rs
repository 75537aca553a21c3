//! The disks of a standby, which do not make a pool before it is promoted.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::try_join_all;
use futures::stream::FuturesUnordered;
use steadfast_disk::Disk;
use steadfast_flow::{Env, has_fault};
use steadfast_log::Ranges;
use tokio::sync::oneshot;

use crate::changes::Part;
use crate::disk_writer::{COPIES, DiskWriter, RestoreError, RestorePlace, begin, copy, zero};
use crate::document::checksum;
use crate::held_uses::HeldUses;
use crate::image::{ExtentImage, Image};
use crate::name::{DiskId, UseId};
use crate::options::ArchiveSabotage;
use crate::part_reader::PartReader;
use crate::transfer_progress::TransferProgress;

/// Most bytes of one read.
const READ_BYTES_MAX: usize = 1 << 20;

/// A disk of a standby.
#[derive(Clone)]
pub struct StandbyDisk {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// Whether it read as zeros before the standby used it: gaps need not be written then.
    pub blank: bool,
}

/// The disks of a standby, and what they hold.
pub(crate) struct StandbyDisks {
    disks: BTreeMap<DiskId, StandbyDisk>,
    held: HeldUses,
    /// Disks that may hold more than is known.
    unknown: BTreeSet<DiskId>,
    sabotage: ArchiveSabotage,
    env: Env,
}

/// A part to be copied.
struct MissingPart {
    id: UseId,
    part: Part,
    disk: Arc<dyn Disk>,
    /// Its offset on the disk.
    place: u64,
    /// Whether the disk may have it.
    look: bool,
}

impl StandbyDisks {
    /// Takes the disks into use. `id` is that of the standby, with which its disks are marked, and
    /// `held` what they hold; `None` if unknown, as it is when one of them is not marked.
    ///
    /// # Errors
    /// Those of the disks.
    pub(crate) async fn open(
        disks: BTreeMap<DiskId, StandbyDisk>,
        id: [u8; 16],
        held: Option<HeldUses>,
        sabotage: ArchiveSabotage,
        env: &Env,
    ) -> io::Result<Self> {
        let mut unknown = BTreeSet::new();
        for (disk, of) in disks.iter().filter(|_| held.is_none()) {
            if RestorePlace::is_begun(&of.disk, id).await {
                unknown.insert(*disk);
            } else {
                begin(&of.disk, id).await?;
            }
        }
        Ok(Self { disks, held: held.unwrap_or_default(), unknown, sabotage, env: env.clone() })
    }

    /// Refuses an image of disks for which there is no place.
    ///
    /// # Errors
    /// [`RestoreError::NoPlace`].
    fn check(&self, image: &Image) -> Result<(), RestoreError> {
        let is_missing = |(disk, left_ms): (&DiskId, Option<u64>)| left_ms.is_none() && !self.disks.contains_key(disk);
        match image.disks.iter().find(|(disk, of)| is_missing((disk, of.about.left_ms))) {
            Some((_, of)) => Err(RestoreError::NoPlace(of.about.name.clone())),
            None => Ok(()),
        }
    }

    /// Copies what the disks lack of some changes, and makes it durable.
    ///
    /// # Errors
    /// Those of the store's content and of the disks. No copy is under way any more.
    pub(crate) async fn copy(
        &mut self,
        changes: &Image,
        parts: &Arc<PartReader>,
        progress: &TransferProgress,
    ) -> Result<(), RestoreError> {
        self.check(changes)?;
        let jobs = self.jobs(changes).await?;
        progress.expect(jobs.iter().map(|job| u64::from(job.part.len)).sum());
        let (mut running, mut failed) = (FuturesUnordered::new(), None);
        let mut jobs = jobs.into_iter();
        loop {
            while failed.is_none()
                && running.len() < COPIES
                && let Some(job) = jobs.next()
            {
                running.push(self.start(job, parts.clone()));
            }
            // An error leaves no copy behind, which could be late and overwrite a newer one.
            match running.next().await {
                Some((id, part, Ok(()))) => {
                    self.held.add(id, part.from..part.from + part.len);
                    progress.copied(u64::from(part.len));
                }
                Some((_, _, Err(e))) => failed = failed.or(Some(e)),
                None => break,
            }
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        try_join_all(self.disks.values().map(|of| of.disk.flush())).await?;
        self.unknown.clear();
        Ok(())
    }

    /// What is to be copied. Writes zeros where a disk that is not blank gets its first use of an
    /// extent.
    async fn jobs(&mut self, changes: &Image) -> Result<Vec<MissingPart>, RestoreError> {
        let mut jobs = Vec::new();
        for (disk, of) in &changes.disks {
            let Some(StandbyDisk { disk: onto, blank }) = self.disks.get(disk) else { continue };
            let superblock = of.about.superblock(*disk);
            let look = self.unknown.contains(disk);
            let extents = of.extents.last_key_value().map_or(0, |(extent, _)| extent + 1);
            onto.reserve(superblock.extent_start(extents)).await?;
            for (extent, of) in &of.extents {
                let ExtentImage::Used(of) = of else { continue };
                let start = superblock.extent_start(*extent);
                let id = UseId { disk: *disk, extent: *extent, epoch: of.epoch, opening: of.opening };
                if !blank && !self.held.had_use(*disk, *extent) {
                    let whole = u32::try_from(superblock.extent_bytes).expect("extents have less than 4 GiB");
                    let mut stored = Ranges::default();
                    of.parts.values().for_each(|part| stored.insert(part.from..part.from + part.len));
                    for gap in Ranges::of(0..whole).without(&stored).iter() {
                        zero(onto, start + u64::from(gap.start), start + u64::from(gap.end)).await?;
                    }
                }
                self.held.begin(id, has_fault(self.sabotage, ArchiveSabotage::AnyHeldUse));
                let missing = of.parts.values().filter(|part| !self.held.has(id, part.from..part.from + part.len));
                jobs.extend(missing.map(|part| MissingPart {
                    id,
                    part: *part,
                    disk: onto.clone(),
                    place: start + u64::from(part.from),
                    look,
                }));
            }
        }
        Ok(jobs)
    }

    /// Starts a copy as a task: several use several cores.
    fn start(
        &self,
        job: MissingPart,
        parts: Arc<PartReader>,
    ) -> impl Future<Output = (UseId, Part, Result<(), RestoreError>)> + Send + use<> {
        let (id, part) = (job.id, job.part);
        let (ended, end) = oneshot::channel();
        self.env.spawn("standby", async move {
            let _ = ended.send(job.run(parts).await);
        });
        async move {
            let copied = end.await.unwrap_or_else(|_| Err(io::Error::other("copying has panicked").into()));
            (id, part, copied)
        }
    }

    /// Marks as free what an image does not use, so that the disks hold it and nothing else. They
    /// hold no pool yet.
    ///
    /// # Errors
    /// Those of the disks.
    pub(crate) async fn fill(&self, image: &Image, parts: &Arc<PartReader>) -> Result<(), RestoreError> {
        self.check(image)?;
        let progress = TransferProgress::default();
        for (disk, of) in &image.disks {
            let Some(StandbyDisk { disk: onto, .. }) = self.disks.get(disk) else { continue };
            let place = RestorePlace::new(onto);
            let (parts, progress, env) = (parts.clone(), &progress, &self.env);
            let writer = DiskWriter { place: &place, id: *disk, image: of, parts, progress, env };
            writer.edges().await?;
            writer.headers(&of.about.superblock(*disk)).await?;
            onto.flush().await?;
        }
        Ok(())
    }
}

impl MissingPart {
    async fn run(self, parts: Arc<PartReader>) -> Result<(), RestoreError> {
        if self.look && self.is_there().await {
            return Ok(());
        }
        copy(parts, self.disk, (self.id, self.part), self.place).await
    }

    /// Whether the disk has the part.
    async fn is_there(&self) -> bool {
        let mut bytes = Vec::with_capacity(self.part.len as usize);
        while bytes.len() < self.part.len as usize {
            let len = (self.part.len as usize - bytes.len()).min(READ_BYTES_MAX);
            match self.disk.read(self.place + bytes.len() as u64, len).await {
                Ok(read) => bytes.extend_from_slice(&read),
                Err(_) => return false,
            }
        }
        checksum(&bytes) == self.part.crc
    }
}
