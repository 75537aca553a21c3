//! Sealing: the footer is built in memory while the extent is written, and written when it is full.

use std::io;

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use crate::extents::Sealed;
use crate::format::{
    ExtentId, ExtentKind, FOOTER_BLOCK_BYTES, FOOTER_BLOCK_HEADER, FooterEntry, Trailer, footer_bytes_max,
    footer_entry_bytes, seal_footer_block,
};
use crate::io::{Io, WriteError};
use crate::placement::Placement;
use crate::{LogError, Lsn};

/// The encoded entries of a future footer.
#[derive(Debug, Default)]
pub(crate) struct FooterBuilder {
    blocks: Vec<(Vec<u8>, u32)>,
    entry_bytes: u64,
    pub(crate) record_count: u64,
    pub(crate) first_lsn: Lsn,
    pub(crate) last_lsn: Lsn,
    min_version: Option<Lsn>,
}

impl FooterBuilder {
    pub(crate) fn push(&mut self, entry: &FooterEntry<'_>) {
        debug_assert!(entry.lsn == 0 || entry.lsn > self.last_lsn, "entries are in the order of their records");
        let full = self.blocks.last().is_none_or(|(b, _)| b.len() >= FOOTER_BLOCK_HEADER + FOOTER_BLOCK_BYTES);
        if full {
            self.blocks.push((vec![0; FOOTER_BLOCK_HEADER], 0));
        }
        if let Some((block, count)) = self.blocks.last_mut() {
            entry.encode(block);
            *count += 1;
        }
        self.entry_bytes += footer_entry_bytes(entry.head.len()) as u64;
        self.record_count += 1;
        if self.first_lsn == 0 {
            self.first_lsn = entry.lsn;
        }
        self.last_lsn = self.last_lsn.max(entry.lsn);
        self.min_version = Some(self.min_version.map_or(entry.version, |v| v.min(entry.version)));
    }

    pub(crate) fn entry_bytes(&self) -> u64 {
        self.entry_bytes
    }

    pub(crate) fn min_version(&self) -> Lsn {
        self.min_version.unwrap_or(Lsn::MAX)
    }

    /// The most bytes that the footer takes on disk with `more` bytes of entries.
    pub(crate) fn bytes_max(&self, more: u64) -> u64 {
        footer_bytes_max(self.entry_bytes + more)
    }
}

/// An extent to be sealed.
pub(crate) struct Seal {
    pub(crate) id: ExtentId,
    pub(crate) kind: ExtentKind,
    /// Offset of the extent on the disk, in bytes.
    pub(crate) start: u64,
    /// End of the valid frames.
    pub(crate) data_end: u64,
    /// The least offset of the footer: behind everything that a later start may need to read.
    pub(crate) footer_offset: u64,
    pub(crate) last_checksum: u32,
    pub(crate) prev_lsn: Lsn,
    pub(crate) footer: FooterBuilder,
    /// Permit for an open zone, released when the zone is no longer open.
    pub(crate) zone: Option<OwnedSemaphorePermit>,
}

/// An extent whose footer could not be written.
#[derive(Debug)]
pub(crate) struct NoFooter {
    /// The facts known about it anyway.
    pub(crate) without: Sealed,
    /// Offset of the failed write from the start of the extent.
    pub(crate) at: u64,
    /// Length of the failed write, in bytes.
    pub(crate) len: u64,
    pub(crate) error: io::Error,
}

impl NoFooter {
    /// For a caller that accepts an extent without a footer. Returns its facts, and the place that
    /// must not be reused. The extent is read frame by frame until compaction has emptied it.
    pub(crate) fn do_without(self, extent: u32) -> (Sealed, (u64, u64)) {
        tracing::warn!(
            extent, at = self.at, error = %self.error, "the footer of an extent could not be written; the extent stays without one"
        );
        (self.without, (self.at, self.len))
    }

    /// For a caller that needs the footer.
    pub(crate) fn give_up(self, io: &Io) -> LogError {
        io.give_up(&self.error)
    }
}

impl Seal {
    /// Writes footer and trailer. The flush between them makes the trailer a proof that all data
    /// before it is durable. The trailer itself needs no flush: without it, the frames are scanned.
    /// So if either write fails, the extent has no footer.
    pub(crate) async fn write(mut self, io: &Io, placement: &Placement) -> Result<Result<Sealed, NoFooter>, LogError> {
        let mut at = self.footer_offset;
        let mut batch: Vec<u8> = Vec::new();
        let mut batch_at = at;
        let (min_version, record_count) = (self.footer.min_version(), self.footer.record_count);
        let (first_lsn, last_lsn) = (self.footer.first_lsn, self.footer.last_lsn);
        let blocks = std::mem::take(&mut self.footer.blocks);
        let data_end = self.data_end;
        // A zone is written to its end or not at all.
        let strict = placement.zones().is_some();
        let put = async |at: u64, data: Bytes| {
            let len = data.len() as u64;
            if strict {
                return io.write(self.start + at, data).await.map(|()| None);
            }
            match io.try_write(self.start + at, data).await {
                Ok(()) => Ok(None),
                Err(WriteError::Log(error)) => Err(error),
                Err(WriteError::Disk(error)) => {
                    let without = Sealed { min_version, last_lsn, data_end, footer: None };
                    Ok(Some(NoFooter { without, at, len, error }))
                }
            }
        };
        for (i, (mut block, count)) in blocks.into_iter().enumerate() {
            seal_footer_block(&mut block, &self.id, at as u32, i as u32, count);
            at += block.len() as u64;
            if batch.is_empty() {
                batch = block;
            } else {
                batch.extend_from_slice(&block);
            }
            if batch.len() >= 1 << 20 {
                let len = batch.len() as u64;
                if let Some(failed) = put(batch_at, std::mem::take(&mut batch).into()).await? {
                    return Ok(Err(failed));
                }
                batch_at += len;
            }
        }
        if !batch.is_empty()
            && let Some(failed) = put(batch_at, batch.into()).await?
        {
            return Ok(Err(failed));
        }
        let trailer_at = placement.trailer_after(at);
        assert!(self.data_end <= self.footer_offset && at <= trailer_at, "a trailer before the end of its footer");
        self.fill(io, placement, at, trailer_at).await?;
        io.flush().await?;
        let trailer = Trailer {
            id: self.id,
            kind: self.kind,
            data_end: self.data_end as u32,
            footer_offset: self.footer_offset as u32,
            footer_len: (at - self.footer_offset) as u32,
            record_count,
            first_lsn,
            last_lsn,
            min_version,
            last_checksum: self.last_checksum,
            prev_lsn: self.prev_lsn,
        };
        let block = Bytes::copy_from_slice(&trailer.encode());
        if let Some(failed) = put(trailer_at, block).await? {
            return Ok(Err(failed));
        }
        placement.finish(io, self.start).await?;
        drop(self.zone);
        let footer = Some((trailer.footer_offset, trailer.footer_len));
        Ok(Ok(Sealed { min_version, last_lsn, data_end, footer }))
    }

    /// Zones have no gaps: fills the space between footer and trailer with zeros.
    async fn fill(&self, io: &Io, placement: &Placement, from: u64, to: u64) -> Result<(), LogError> {
        let mut at = from;
        while placement.zones().is_some() && at < to {
            let len = (to - at).min(1 << 20);
            io.write(self.start + at, vec![0; len as usize].into()).await?;
            at += len;
        }
        Ok(())
    }
}
