//! What every extent says of itself: header, trailer, and where those are no good, its first frame.

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

/// An extent as it was found.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) extent: u32,
    /// 0 when it was never used.
    pub(super) epoch: u64,
    pub(super) kind: ExtentKind,
    pub(super) trailer: Option<Trailer>,
    pub(super) recycled_lsn: Lsn,
    /// As in its header; empty when that is not known.
    pub(super) lineage: Lineage,
    /// As in its header; 0 when that is not known.
    pub(super) base_lsn: Lsn,
    /// It was in use, and nothing of that use is there.
    pub(super) lost: Option<Lost>,
    /// What is wrong with it.
    pub(super) damage: Option<String>,
    /// What was taken from another copy of the disk, and where it belongs.
    pub(super) healed: Vec<(u64, String)>,
    /// The highest epoch seen in it, of whatever use.
    pub(super) epoch_max: u64,
}

/// Looks at all extents.
pub(super) async fn survey(copies: &Copies, sb: &Superblock) -> Vec<Found> {
    let count = sb.extents_in(copies.disk().len());
    stream::iter(0..count).map(|extent| look(copies.clone(), *sb, extent)).buffered(32).collect().await
}

async fn block(disk: &Arc<dyn Disk>, offset: u64) -> Result<Bytes, String> {
    disk.read_copy(0, offset, BLOCK).await.map_err(|error| format!("cannot be read: {error}"))
}

async fn look(copies: Copies, sb: Superblock, extent: u32) -> Found {
    let disk = copies.disk();
    let start = sb.extent_start(extent);
    let trailer_at = sb.extent_bytes - BLOCK as u64;
    // Where a trailer has one place only, both ends of the extent are asked for at once.
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
            // Everything else of an epoch is written after its header is durable: so the header was there, and is damaged.
            let first_frame = block(disk, start + BLOCK as u64).await.ok().and_then(|b| FrameHeader::decode(&b).ok());
            let frame =
                first_frame.map(|(frame, _)| frame).filter(|f| mine(&f.id) && u64::from(f.offset) == BLOCK as u64);
            let by_frame = frame.map(|f| {
                let kind = if f.kind == FrameKind::Commit { ExtentKind::Commit } else { ExtentKind::Body };
                (f.id.epoch, kind)
            });
            let by_trailer = trailer.map(|t| (t.id.epoch, t.kind));
            let known = by_frame.max(by_trailer);
            // Nothing at all was ever written here, as far as this copy says: then no other one says better.
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
                // Bytes that nothing vouches for: a device that was used before, or a header that was being written first.
                tracing::debug!(extent, ?what, "an extent without a valid header or frame is taken as free");
            }
        }
    }
    found.epoch_max = found.epoch_max.max(found.epoch);
    found.trailer = trailer.filter(|t| t.id.epoch == found.epoch && t.kind == found.kind);
    if found.trailer.is_none() && found.kind != ExtentKind::Free {
        // Where a trailer is, on whatever copy, all before it was durable.
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
    /// An extent of which nothing is there.
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

    /// What is there instead, if anything, is of an earlier use and means nothing.
    pub(super) fn is_lost(&mut self, lost: Lost) {
        *self = Self {
            lost: Some(lost),
            recycled_lsn: self.recycled_lsn,
            epoch_max: self.epoch_max.max(lost.epoch),
            ..Self::nothing(self.extent)
        };
    }

    /// It is as its header says.
    pub(super) fn is(&mut self, header: &ExtentHeader) {
        self.epoch = header.id.epoch;
        self.kind = header.kind;
        self.recycled_lsn = header.recycled_lsn;
        self.lineage = header.lineage;
        self.base_lsn = header.base_lsn;
    }
}
