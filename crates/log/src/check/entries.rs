//! The entries of a footer, for readers that need no frames.

use std::sync::Arc;

use steadfast_disk::Disk;

use super::Window;
use super::footer::{Entry, FooterCursor, FooterFault};
use crate::format::{ExtentId, Superblock, Trailer};

/// Iterates over the entries of one extent's footer.
pub(crate) struct Entries {
    disk: Arc<dyn Disk>,
    copy: u32,
    start: u64,
    extent_bytes: u64,
    trailer: Trailer,
    cursor: FooterCursor,
}

impl Entries {
    /// The footer of an extent, if it has a valid trailer of this use.
    pub async fn open(disk: Arc<dyn Disk>, superblock: &Superblock, id: ExtentId) -> Option<Self> {
        Self::open_on(0, disk, superblock, id).await
    }

    /// As [`Entries::open`], on another copy of the disk.
    pub async fn open_on(copy: u32, disk: Arc<dyn Disk>, superblock: &Superblock, id: ExtentId) -> Option<Self> {
        let (start, extent_bytes) = (superblock.extent_start(id.extent), superblock.extent_bytes);
        let (_, trailer) = crate::trailer::find_on(copy, &disk, superblock, id.extent, Some(id.epoch)).await?;
        let cursor = Self::cursor(copy, &disk, start, extent_bytes, &trailer);
        (trailer.id == id).then_some(Self { disk, copy, start, extent_bytes, trailer, cursor })
    }

    fn cursor(copy: u32, disk: &Arc<dyn Disk>, start: u64, extent_bytes: u64, trailer: &Trailer) -> FooterCursor {
        FooterCursor::of_window(Window::of_copy(copy, disk.clone(), start, extent_bytes, None), trailer)
    }

    /// Number of entries.
    pub fn record_count(&self) -> u64 {
        self.trailer.record_count
    }

    /// Whether the whole footer can be read and is valid. Restarts at the first entry.
    pub async fn verify(&mut self) -> bool {
        let whole = loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        self.cursor = Self::cursor(self.copy, &self.disk, self.start, self.extent_bytes, &self.trailer);
        whole
    }

    /// The next entry.
    pub async fn next(&mut self) -> Result<Option<Entry>, FooterFault> {
        match self.cursor.peek().await {
            Ok(None) => Ok(None),
            Ok(Some(_)) => Ok(self.cursor.take()),
            Err(fault) => Err(fault),
        }
    }
}
