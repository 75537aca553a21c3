//! Makes a disk of its image.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{BLOCK, Disk};
use steadfast_log::format::{
    EXTENTS_START, ExtentHeader, ExtentId, ExtentKind, Lineage, SUPERBLOCK_OFFSETS, Superblock,
};

use crate::attempts::Attempts;
use crate::changes::{Part, Source};
use crate::document::{self, DocumentKind, checksum};
use crate::error::ArchiveError;
use crate::head::{Base, Segment};
use crate::image::{DiskImage, ExtentImage, UseImage};
use crate::inline::Inline;
use crate::name::{self, DiskId, HEAD, UseId};

/// Most bytes of a document, and of a piece.
const OBJECT_BYTES_MAX: u64 = 4 << 30;

/// Documents whose payload is kept for further parts.
const PAYLOADS_KEPT: usize = 16;

/// Fewest epochs that a restore skips: more than uses of extents can have followed the image.
const EPOCHS_SKIPPED_MIN: u64 = 1 << 32;

/// Further ones, of which their number is drawn.
const EPOCHS_DRAWN: u64 = 1 << 40;

/// Most bytes of one write.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// Reads the bytes of parts, and verifies them.
pub(crate) struct PartReader<'a> {
    attempts: &'a Attempts,
    inline: &'a Inline,
    payloads: Mutex<BTreeMap<String, Bytes>>,
}

impl<'a> PartReader<'a> {
    pub(crate) fn new(attempts: &'a Attempts, inline: &'a Inline) -> Self {
        Self { attempts, inline, payloads: Mutex::default() }
    }

    /// The bytes of a part.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] when they are not there.
    pub(crate) async fn read(&self, of: UseId, part: &Part) -> Result<Bytes, ArchiveError> {
        let (name, bytes) = match part.source {
            Source::Here { .. } => (HEAD.to_owned(), self.inline.get(of, part.from).cloned()),
            Source::Piece { from, by, at } => {
                let (name, at) = (name::piece(of, from, by), u64::from(at));
                let range = at..at + u64::from(part.len);
                let object = self.attempts.read(&name, Some(range), u64::from(part.len)).await?;
                (name, Some(object.body))
            }
            Source::Segment { by, at } => {
                let name = name::segment(by);
                let payload = self.payload::<Segment>(DocumentKind::Segment, &name).await?;
                (name, slice(&payload, at, part.len))
            }
            Source::Base { by, at } => {
                let name = name::base(by);
                let payload = self.payload::<Base>(DocumentKind::Base, &name).await?;
                (name, slice(&payload, at, part.len))
            }
        };
        let bytes = bytes.ok_or_else(|| ArchiveError::broken(&name, "it is missing"))?;
        if bytes.len() != part.len as usize || checksum(&bytes) != part.crc {
            return Err(ArchiveError::broken(&name, "its bytes were changed: the checksum does not fit"));
        }
        Ok(bytes)
    }

    async fn payload<T: serde::de::DeserializeOwned>(
        &self,
        kind: DocumentKind,
        name: &str,
    ) -> Result<Bytes, ArchiveError> {
        if let Some(kept) = self.payloads.lock().get(name) {
            return Ok(kept.clone());
        }
        let object = self.attempts.read(name, None, OBJECT_BYTES_MAX).await?;
        let (_, payload) = document::decode::<T>(kind, &object.body).map_err(ArchiveError::document(name))?;
        let mut payloads = self.payloads.lock();
        if payloads.len() >= PAYLOADS_KEPT {
            payloads.pop_first();
        }
        payloads.insert(name.to_owned(), payload.clone());
        Ok(payload)
    }
}

fn slice(payload: &Bytes, at: u64, len: u32) -> Option<Bytes> {
    let at = usize::try_from(at).ok()?;
    let end = at.checked_add(len as usize).filter(|end| *end <= payload.len())?;
    Some(payload.slice(at..end))
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
}

/// Makes a disk of its image. What the disk held before does not count any more.
pub(crate) struct DiskWriter<'a> {
    pub(crate) disk: &'a Arc<dyn Disk>,
    pub(crate) id: DiskId,
    pub(crate) image: &'a DiskImage,
    pub(crate) parts: &'a PartReader<'a>,
}

impl DiskWriter<'_> {
    /// Writes everything, and flushes it. The superblocks come last: until then the disk holds no
    /// pool.
    ///
    /// # Errors
    /// Those of the store's content and of the disk.
    pub(crate) async fn write(&self) -> Result<(), RestoreError> {
        let superblock = self.image.about.superblock(self.id);
        let extents = self.image.extents.last_key_value().map_or(0, |(extent, _)| extent + 1);
        self.disk.reserve(superblock.extent_start(extents)).await?;
        // With the superblocks goes what lies behind them: what an earlier use of the disk knew of
        // its extents.
        self.zero(0, 0, EXTENTS_START).await?;
        self.disk.flush().await?;
        let epoch = self.epoch_beyond();
        for extent in 0..superblock.extents_in(self.disk.len()) {
            match self.image.extents.get(&extent) {
                Some(ExtentImage::Used(of)) => self.used(&superblock, extent, of).await?,
                // Without a header it is found to be lost, as it was.
                Some(ExtentImage::Lost { .. }) => self.zero(superblock.extent_start(extent), 0, BLOCK as u64).await?,
                Some(ExtentImage::Free { .. }) | None => self.free(&superblock, extent, epoch).await?,
            }
        }
        self.disk.flush().await?;
        for offset in SUPERBLOCK_OFFSETS {
            self.disk.write(offset, Bytes::copy_from_slice(&superblock.encode())).await?;
        }
        self.disk.flush().await?;
        Ok(())
    }

    /// An epoch above all that were given out before: after the image, or after another restore of
    /// it onto the same disk. It is drawn, as counting would give it out again.
    fn epoch_beyond(&self) -> u64 {
        let skipped = EPOCHS_SKIPPED_MIN + self.parts.attempts.env().random_u64() % EPOCHS_DRAWN;
        self.image.counters.next_epoch.saturating_add(skipped)
    }

    /// Marks an extent as free. Its bytes stay, and may be of a later use. The next uses get epochs
    /// above this one, so the old bytes never verify again.
    async fn free(&self, superblock: &Superblock, extent: u32, epoch: u64) -> Result<(), RestoreError> {
        let header = ExtentHeader {
            id: ExtentId { pool: superblock.pool, extent, epoch },
            kind: ExtentKind::Free,
            base_lsn: 0,
            recycled_lsn: self.image.counters.recycled_lsn,
            lineage: Lineage::default(),
        };
        let start = superblock.extent_start(extent);
        self.disk.write(start, Bytes::copy_from_slice(&header.encode())).await?;
        Ok(())
    }

    /// Writes the parts of a use, with zeros between them and behind them.
    async fn used(&self, superblock: &Superblock, extent: u32, of: &UseImage) -> Result<(), RestoreError> {
        let id = UseId { disk: self.id, extent, epoch: of.epoch, opening: of.opening };
        let start = superblock.extent_start(extent);
        let mut at = 0u64;
        for (from, part) in &of.parts {
            self.zero(start, at, u64::from(*from)).await?;
            let bytes = self.parts.read(id, part).await?;
            for (n, piece) in bytes.chunks(WRITE_BYTES_MAX).enumerate() {
                let place = start + u64::from(*from) + (n * WRITE_BYTES_MAX) as u64;
                self.disk.write(place, Bytes::copy_from_slice(piece)).await?;
            }
            at = u64::from(*from) + bytes.len() as u64;
        }
        // What an earlier opening of the same pool left behind the tail must not count.
        self.zero(start, at, superblock.extent_bytes).await
    }

    /// Writes zeros from `at` to `end`, counted from the start of an extent.
    async fn zero(&self, start: u64, mut at: u64, end: u64) -> Result<(), RestoreError> {
        while at < end {
            let len = (end - at).min(WRITE_BYTES_MAX as u64);
            self.disk.write(start + at, vec![0; len as usize].into()).await?;
            at += len;
        }
        Ok(())
    }
}
