//! Makes a disk of its image.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::{FuturesOrdered, FuturesUnordered};
use steadfast_disk::{BLOCK, Disk};
use steadfast_flow::Env;
use steadfast_log::Ranges;
use steadfast_log::format::{EXTENTS_START, SUPERBLOCK_OFFSETS, Superblock};
use tokio::sync::oneshot;

use crate::changes::Part;
use crate::error::ArchiveError;
use crate::image::{DiskImage, ExtentImage, UseImage};
use crate::name::{DiskId, UseId};
use crate::part_reader::PartReader;
use crate::transfer_progress::TransferProgress;

/// Fewest epochs that a restore skips: more than uses of extents can have followed the image.
const EPOCHS_SKIPPED_MIN: u64 = 1 << 32;

/// Further ones, of which their number is drawn.
const EPOCHS_DRAWN: u64 = 1 << 40;

/// Most bytes of one write.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// Parts that are copied at a time; each is a piece of up to 8 MiB.
pub(crate) const COPIES: usize = 8;

/// Headers that are written at a time.
const HEADERS: usize = 32;

/// Where a disk says which restore writes it, until it is complete.
const BEGUN_OFFSET: u64 = 128 << 10;

/// What it says.
fn begun_block(id: [u8; 16]) -> Bytes {
    let mut block = vec![0; BLOCK];
    block[..8].copy_from_slice(b"SFBEGUN\n");
    block[8..24].copy_from_slice(&id);
    block.into()
}

/// Why a disk could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The archive lacks something.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The disk cannot be written.
    #[error("the disk cannot be written: {0}")]
    Disk(#[from] io::Error),
    /// The archived pool has a disk for which there is no place.
    #[error("the archived pool has a disk {0}, and there is no place for it: name one more disk in data.disks")]
    NoPlace(String),
}

/// Where a disk of an archive is restored.
pub struct RestorePlace<'a> {
    /// The disk.
    pub disk: &'a Arc<dyn Disk>,
    /// Whether it read as zeros before the first attempt: gaps need not be written then.
    pub blank: bool,
    /// The identity of the restore, which all attempts of the same state have.
    pub id: [u8; 16],
    /// All extents before this one were written by an earlier attempt, if the disk holds that.
    pub begin: u32,
    /// Bytes after which what was written is made durable, so that another attempt need not repeat
    /// it.
    pub flush_bytes: u64,
    /// Called when all extents before one are durable.
    pub reached: &'a (dyn Fn(u32) -> io::Result<()> + Sync),
}

impl<'a> RestorePlace<'a> {
    /// A disk that may hold anything.
    pub fn new(disk: &'a Arc<dyn Disk>) -> Self {
        Self { disk, blank: false, id: [0; 16], begin: 0, flush_bytes: 512 << 20, reached: &|_| Ok(()) }
    }

    /// Whether a disk holds what an attempt of a restore has written.
    pub async fn is_begun(disk: &Arc<dyn Disk>, id: [u8; 16]) -> bool {
        let there = disk.read(BEGUN_OFFSET, BLOCK).await;
        there.is_ok_and(|there| there == begun_block(id))
    }
}

/// Makes a disk of its image. What the disk held before does not count any more.
pub(crate) struct DiskWriter<'a> {
    pub(crate) place: &'a RestorePlace<'a>,
    pub(crate) id: DiskId,
    pub(crate) image: &'a DiskImage,
    pub(crate) parts: Arc<PartReader>,
    pub(crate) progress: &'a TransferProgress,
    pub(crate) env: &'a Env,
}

/// Copies a part to its place on a disk.
///
/// # Errors
/// Those of the store's content and of the disk.
pub(crate) async fn copy(
    parts: Arc<PartReader>,
    disk: Arc<dyn Disk>,
    (id, part): (UseId, Part),
    place: u64,
) -> Result<(), RestoreError> {
    let bytes = parts.read(id, &part).await?;
    let mut writes = FuturesUnordered::new();
    for at in (0..bytes.len()).step_by(WRITE_BYTES_MAX) {
        let end = bytes.len().min(at + WRITE_BYTES_MAX);
        writes.push(disk.write(place + at as u64, bytes.slice(at..end)));
    }
    while writes.try_next().await?.is_some() {}
    Ok(())
}

/// Writes zeros from one offset of a disk to another.
///
/// # Errors
/// Those of the disk.
pub(crate) async fn zero(disk: &Arc<dyn Disk>, mut from: u64, end: u64) -> io::Result<()> {
    let zeros = Bytes::from(vec![0; (end - from).min(WRITE_BYTES_MAX as u64) as usize]);
    while from < end {
        let len = (end - from).min(zeros.len() as u64);
        disk.write(from, zeros.slice(..len as usize)).await?;
        from += len;
    }
    Ok(())
}

/// Empties a disk, and has it say that something with this identity writes it now. Durable when it
/// returns.
///
/// # Errors
/// Those of the disk.
pub(crate) async fn begin(disk: &Arc<dyn Disk>, id: [u8; 16]) -> io::Result<()> {
    disk.reserve(EXTENTS_START).await?;
    // With the superblocks goes what lies behind them: what an earlier use of the disk knew of its
    // extents.
    zero(disk, 0, EXTENTS_START).await?;
    disk.write(BEGUN_OFFSET, begun_block(id)).await?;
    disk.flush().await
}

/// Something to be written in an extent.
enum Step<'a> {
    /// A part of a use.
    Part(UseId, &'a Part),
    /// Zeros, from one offset on the disk to another.
    Zeros(u64, u64),
    /// Nothing: the extent is complete.
    End,
}

/// A step that is done.
struct Done {
    /// The extent, if that is complete.
    ended: Option<u32>,
    /// Bytes that were copied.
    bytes: u64,
}

impl DiskWriter<'_> {
    /// Writes everything but the superblocks, and flushes it: the disk holds no pool yet.
    ///
    /// # Errors
    /// Those of the store's content and of the disk.
    pub(crate) async fn fill(&self) -> Result<(), RestoreError> {
        let (disk, superblock) = (self.place.disk, self.image.about.superblock(self.id));
        let extents = self.image.extents.last_key_value().map_or(0, |(extent, _)| extent + 1);
        disk.reserve(superblock.extent_start(extents)).await?;
        let is_begun = RestorePlace::is_begun(disk, self.place.id).await;
        if !is_begun {
            begin(disk, self.place.id).await?;
        }
        self.uses(&superblock, if is_begun { self.place.begin } else { 0 }).await?;
        self.headers(&superblock).await?;
        disk.flush().await?;
        (self.place.reached)(extents)?;
        Ok(())
    }

    /// Makes a disk that is filled one of the pool.
    ///
    /// # Errors
    /// Those of the disk.
    pub(crate) async fn finish(&self) -> Result<(), RestoreError> {
        let (disk, superblock) = (self.place.disk, self.image.about.superblock(self.id));
        for offset in SUPERBLOCK_OFFSETS {
            disk.write(offset, Bytes::copy_from_slice(&superblock.encode())).await?;
        }
        disk.flush().await?;
        self.zero(BEGUN_OFFSET, BEGUN_OFFSET + BLOCK as u64).await?;
        disk.flush().await?;
        Ok(())
    }

    /// Writes the extents in use, one after the other, several parts at a time.
    async fn uses(&self, superblock: &Superblock, begin: u32) -> Result<(), RestoreError> {
        let mut running = FuturesOrdered::new();
        let mut unflushed = 0;
        for (extent, of) in &self.image.extents {
            let ExtentImage::Used(of) = of else { continue };
            if *extent < begin {
                self.progress.copied(of.bytes());
                continue;
            }
            for step in self.steps(superblock, *extent, of) {
                while running.len() >= COPIES {
                    let done: Done = running.try_next().await?.expect("one is running");
                    self.done(done, &mut unflushed).await?;
                }
                running.push_back(self.step(superblock, *extent, step));
            }
        }
        while let Some(done) = running.try_next().await? {
            self.done(done, &mut unflushed).await?;
        }
        Ok(())
    }

    /// Notes that a step is done, as all before it are.
    async fn done(&self, step: Done, unflushed: &mut u64) -> Result<(), RestoreError> {
        *unflushed += step.bytes;
        self.progress.copied(step.bytes);
        if let Some(extent) = step.ended
            && *unflushed >= self.place.flush_bytes
        {
            self.place.disk.flush().await?;
            (self.place.reached)(extent + 1)?;
            *unflushed = 0;
        }
        Ok(())
    }

    /// What is to be written in an extent: its parts, with zeros between them and behind them.
    fn steps<'b>(&self, superblock: &Superblock, extent: u32, of: &'b UseImage) -> Vec<Step<'b>> {
        let id = UseId { disk: self.id, extent, epoch: of.epoch, opening: of.opening };
        let start = superblock.extent_start(extent);
        let (mut steps, mut at) = (Vec::with_capacity(of.parts.len() + 1), start);
        let zeros = |steps: &mut Vec<Step<'b>>, from: u64, end: u64| {
            if from < end && !self.place.blank {
                steps.push(Step::Zeros(from, end));
            }
        };
        for (from, part) in &of.parts {
            let from = start + u64::from(*from);
            zeros(&mut steps, at, from);
            steps.push(Step::Part(id, part));
            at = from + u64::from(part.len);
        }
        // What an earlier opening of the same pool left behind the tail must not count.
        zeros(&mut steps, at, start + superblock.extent_bytes);
        steps.push(Step::End);
        steps
    }

    async fn step(&self, superblock: &Superblock, extent: u32, step: Step<'_>) -> Result<Done, RestoreError> {
        let mut done = Done { ended: None, bytes: 0 };
        match step {
            Step::End => done.ended = Some(extent),
            Step::Zeros(from, end) => self.zero(from, end).await?,
            Step::Part(id, part) => {
                let place = superblock.extent_start(extent) + u64::from(part.from);
                let copied = copy(self.parts.clone(), self.place.disk.clone(), (id, *part), place);
                let (ended, end) = oneshot::channel();
                // As a task: several copies use several cores.
                self.env.spawn("restore", async move {
                    let _ = ended.send(copied.await);
                });
                end.await.unwrap_or_else(|_| Err(io::Error::other("copying has panicked").into()))?;
                done.bytes = u64::from(part.len);
            }
        }
        Ok(done)
    }

    /// Writes zeros where a use has nothing and the log looks for its header, first frame and
    /// trailer, and behind the end of its records: bytes of an earlier use must not seem to be its
    /// own.
    ///
    /// # Errors
    /// Those of the disk.
    pub(crate) async fn edges(&self) -> io::Result<()> {
        let superblock = self.image.about.superblock(self.id);
        let (whole, block) = (u32::try_from(superblock.extent_bytes).expect("less than 4 GiB"), BLOCK as u32);
        for (extent, of) in &self.image.extents {
            let ExtentImage::Used(of) = of else { continue };
            let (mut edges, mut stored) = (Ranges::of(0..2 * block), Ranges::default());
            edges.insert(whole - block..whole);
            let end = of.durable.end();
            if end < whole {
                edges.insert(end..end + block);
            }
            of.parts.values().for_each(|part| stored.insert(part.from..part.from + part.len));
            let start = superblock.extent_start(*extent);
            for gap in edges.without(&stored).iter() {
                zero(self.place.disk, start + u64::from(gap.start), start + u64::from(gap.end)).await?;
            }
        }
        Ok(())
    }

    /// Marks all other extents as free. Their bytes stay, and may be of a later use. The next uses
    /// get epochs above these, so the old bytes never verify again.
    pub(crate) async fn headers(&self, superblock: &Superblock) -> Result<(), RestoreError> {
        let epoch = self.epoch_beyond();
        let mut writes = FuturesUnordered::new();
        for extent in 0..superblock.extents_in(self.place.disk.len()) {
            let start = superblock.extent_start(extent);
            let block = match self.image.extents.get(&extent) {
                Some(ExtentImage::Used(_)) => continue,
                // It is found to be lost, as it was: no header, and no frame or trailer that would
                // tell what it is.
                Some(ExtentImage::Lost { .. }) => {
                    self.zero(start, start + superblock.extent_bytes).await?;
                    continue;
                }
                Some(ExtentImage::Free { .. }) | None => self.image.free_header(superblock, extent, epoch),
            };
            if writes.len() >= HEADERS {
                writes.try_next().await?;
            }
            writes.push(self.place.disk.write(start, block));
        }
        while writes.try_next().await?.is_some() {}
        Ok(())
    }

    /// An epoch above all that were given out before: after the image, or after another restore of
    /// it onto the same disk. It is drawn, as counting would give it out again.
    fn epoch_beyond(&self) -> u64 {
        let skipped = EPOCHS_SKIPPED_MIN + self.env.random_u64() % EPOCHS_DRAWN;
        self.image.counters.next_epoch.saturating_add(skipped)
    }

    async fn zero(&self, from: u64, end: u64) -> io::Result<()> {
        zero(self.place.disk, from, end).await
    }
}
