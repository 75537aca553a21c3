//! Reads every extent's header and trailer and, if those are bad, its first frame.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use steadfast_disk::{BLOCK, Disk};

use super::lost::Lost;
use crate::Lsn;
use crate::copies::{Copies, HeaderOf, TrailerOf};
use crate::format::{
    ExtentHeader, ExtentId, ExtentKind, FormatError, FrameHeader, FrameKind, Lineage, Superblock, Trailer,
};

/// An extent as found.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) extent: u32,
    /// Epoch; 0 if never used.
    pub(super) epoch: u64,
    pub(super) kind: ExtentKind,
    pub(super) trailer: Option<Trailer>,
    pub(super) recycled_lsn: Lsn,
    /// Lineage in its header; empty if unknown.
    pub(super) lineage: Lineage,
    /// As in its header; 0 if unknown.
    pub(super) base_lsn: Lsn,
    /// Set if the extent was in use and the data of that use is gone.
    pub(super) lost: Option<Lost>,
    /// The fault.
    pub(super) damage: Option<String>,
    /// Offsets and faults of data taken from another copy of the disk.
    pub(super) healed: Vec<(u64, String)>,
    /// The highest epoch seen in it, of any use.
    pub(super) epoch_max: u64,
}

/// Reads all extents.
pub(super) async fn survey(copies: &Copies, sb: &Superblock) -> Vec<Found> {
    let count = sb.extents_in(copies.disk().len());
    stream::iter(0..count).map(|extent| look(copies.clone(), *sb, extent)).buffered(32).collect().await
}

/// A copy of a block of copy 0: the reads of other extents may wait for its memory.
async fn block(disk: &Arc<dyn Disk>, offset: u64) -> Result<Bytes, String> {
    let read = disk.read_copy(0, offset, BLOCK).await;
    read.map(|bytes| Bytes::copy_from_slice(&bytes)).map_err(|error| format!("cannot be read: {error}"))
}

async fn look(copies: Copies, sb: Superblock, extent: u32) -> Found {
    let disk = copies.disk();
    let start = sb.extent_start(extent);
    let trailer_at = sb.extent_bytes - BLOCK as u64;
    // If a trailer has only one possible place, both ends of the extent are read at once.
    let (first, last) = match sb.zones {
        None => futures::join!(block(disk, start), crate::trailer::find(disk, &sb, extent, None)),
        Some(_) => (block(disk, start).await, None),
    };
    let mine = |id: &ExtentId| id.pool == sb.pool && id.extent == extent;
    let header = match &first {
        Ok(bytes) => match ExtentHeader::decode(bytes) {
            Ok(header) if mine(&header.id) => Ok(header),
            Ok(_) => Err(None),
            Err(FormatError::Magic(_)) if bytes.iter().all(|b| *b == 0) => Err(None),
            Err(error) => Err(Some(error.to_string())),
        },
        Err(error) => Err(Some(format!("extent header {error}"))),
    };
    let epoch = header.as_ref().ok().map(|header| header.id.epoch);
    let last = if sb.zones.is_some() { crate::trailer::find(disk, &sb, extent, epoch).await } else { last };
    let trailer = last.map(|(_, trailer)| trailer);
    let mut found = Found { epoch_max: trailer.map_or(0, |t| t.id.epoch), ..Found::nothing(extent) };
    match header {
        Ok(header) => found.is(&header),
        Err(what) => {
            // Other data of an epoch is written after its header is durable. So the header existed,
            // and is damaged.
            let first_frame = block(disk, start + BLOCK as u64).await.ok().and_then(|b| FrameHeader::decode(&b).ok());
            let frame =
                first_frame.map(|(frame, _)| frame).filter(|f| mine(&f.id) && u64::from(f.offset) == BLOCK as u64);
            let by_frame = frame.map(|f| {
                let kind = if f.kind == FrameKind::Commit { ExtentKind::Commit } else { ExtentKind::Body };
                (f.id.epoch, kind)
            });
            let by_trailer = trailer.map(|t| (t.id.epoch, t.kind));
            let known = by_frame.max(by_trailer);
            // On this copy the extent was never written. Then no other copy is consulted.
            let doubtful = what.is_some() || known.is_some();
            let id = ExtentId { pool: sb.pool, extent, epoch: known.map_or(0, |(epoch, _)| epoch) };
            let other = HeaderOf { id, exact: false };
            let rescued = if doubtful { copies.rescue(start, &other, |_| true).await } else { None };
            if let Some(header) = rescued {
                found.is(&header.value);
                found.healed.push((0, what.unwrap_or_else(|| "no extent header here".into())));
            } else if let Some((epoch, kind)) = known {
                found.epoch = epoch;
                found.kind = kind;
                found.damage = Some(what.unwrap_or_else(|| "no extent header here".into()));
            } else if what.is_some() {
                // Unverified bytes: a device that was used before, or a torn header.
                tracing::debug!(extent, ?what, "an extent without a valid header or frame is taken as free");
            }
        }
    }
    found.epoch_max = found.epoch_max.max(found.epoch);
    found.trailer = trailer.filter(|t| t.id.epoch == found.epoch && t.kind == found.kind);
    if found.trailer.is_none() && found.kind != ExtentKind::Free {
        // A trailer on any copy proves that all before it was durable.
        let id = ExtentId { pool: sb.pool, extent, epoch: found.epoch };
        let other = TrailerOf { id, extent_bytes: sb.extent_bytes };
        let kind = found.kind;
        if let Some(trailer) = copies.rescue(start + trailer_at, &other, |t| t.kind == kind).await {
            found.trailer = Some(trailer.value);
            found.healed.push((trailer_at, "no trailer of this use here".into()));
        }
    }
    found
}

impl Found {
    /// An extent without data.
    pub(super) fn nothing(extent: u32) -> Self {
        Self {
            extent,
            epoch: 0,
            kind: ExtentKind::Free,
            trailer: None,
            recycled_lsn: 0,
            lineage: Lineage::default(),
            base_lsn: 0,
            lost: None,
            damage: None,
            healed: Vec::new(),
            epoch_max: 0,
        }
    }

    /// Other contents, if any, are of an earlier use and are ignored.
    pub(super) fn is_lost(&mut self, lost: Lost) {
        *self = Self {
            lost: Some(lost),
            recycled_lsn: self.recycled_lsn,
            epoch_max: self.epoch_max.max(lost.epoch),
            ..Self::nothing(self.extent)
        };
    }

    /// Sets the state from its header.
    pub(super) fn is(&mut self, header: &ExtentHeader) {
        self.epoch = header.id.epoch;
        self.kind = header.kind;
        self.recycled_lsn = header.recycled_lsn;
        self.lineage = header.lineage;
        self.base_lsn = header.base_lsn;
    }
}
