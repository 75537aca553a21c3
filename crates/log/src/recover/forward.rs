//! Prepares a pool for writing once all is known: copies forward what may not be durable, and seals
//! extents.

use steadfast_disk::{BLOCK, BufPool};
use steadfast_flow::has_fault;

use super::Recovery;
use super::replay::Replay;
use super::report::RecoveryReport;
use super::survey::Found;
use crate::copies::FrameAt;
use crate::extents::{Sealed, TakeError};
use crate::format::{ExtentKind, FrameHeader, FrameKind};
use crate::frame::{FrameBuilder, OpenCommit};
use crate::scan::Reader;
use crate::seal::Seal;
use crate::{LogError, Lsn, Priority, Record, Sabotage};

/// Zones that recovery opens: the one in which it continues and, while that is sealed, the next.
const RECOVERY_ZONES: u32 = 2;

impl Recovery {
    /// Prepares the pool for writing: the second half of the procedure in `recover/mod.rs`.
    pub(super) async fn continue_chain(
        &self,
        found: &[Found],
        replay: &mut Replay<'_>,
        seen: Lsn,
        report: &mut RecoveryReport,
    ) -> Result<OpenCommit, LogError> {
        // Empty extents first: in a full pool, the new one may need their place.
        self.recycle_empty(replay).await?;
        self.close_zones(found).await.map_err(failed)?;
        let open = self.copy_forward(replay, seen, report).await?;
        let mut wrote = false;
        for (extent, unsealed) in std::mem::take(&mut replay.unsealed) {
            let Some(slot) = self.extents.with(|t| t.get(extent).copied()) else { continue };
            if slot.footer.is_some() {
                // Sealed earlier. Its footer was bad, so its frames were read.
                continue;
            }
            let id = self.extents.id(extent, slot.epoch);
            if unsealed.broken_off {
                // Readers of its frames find the hole.
                let data_end = self.pool.extent_bytes - BLOCK as u64;
                self.extents.sealed(extent, slot.epoch, Sealed { data_end, ..unsealed.without_footer() });
                continue;
            }
            if unsealed.footer.record_count == 0 {
                let last_lsn = unsealed.footer.last_lsn;
                self.extents.with(|t| t.change(extent, |slot| slot.last_lsn = last_lsn));
                self.extents.recycle(extent, slot.epoch, false).await.map_err(take_failed)?;
                continue;
            }
            // A cut that is not recorded could be undone.
            let cut = unsealed.scan_end > unsealed.data_end;
            let (start, end) = (self.extents.start(extent), unsealed.scan_end.max(unsealed.data_end));
            let placement = self.extents.placement();
            let Some(footer_offset) = placement.footer_place(start, end, unsealed.footer.bytes_max(0)) else {
                // A full zone, for instance with a torn footer. Each start reads its frames until
                // it is compacted.
                placement.finish(&self.io, start).await.map_err(failed)?;
                self.extents.sealed(extent, slot.epoch, unsealed.without_footer());
                continue;
            };
            let seal = Seal {
                id,
                kind: ExtentKind::Commit,
                start,
                data_end: unsealed.data_end,
                footer_offset,
                last_checksum: unsealed.last_checksum,
                prev_lsn: unsealed.prev_lsn.unwrap_or(0),
                footer: unsealed.footer,
                zone: None,
            };
            let sealed = match seal.write(&self.io, placement).await.map_err(failed)? {
                Ok(sealed) => sealed,
                // Without a cut, the extent needs no footer: it is read frame by frame until
                // compaction has emptied it.
                Err(no_footer) if !cut => {
                    let (sealed, place) = no_footer.do_without(extent);
                    self.extents.sealed(extent, slot.epoch, sealed);
                    self.extents.suspect(extent, slot.epoch, place);
                    continue;
                }
                Err(no_footer) => return Err(failed(no_footer.give_up(&self.io))),
            };
            self.extents.sealed(extent, slot.epoch, sealed);
            wrote = true;
        }
        if wrote {
            // If the cut were not durable before the next commit, old records could reappear
            // between new ones.
            self.io.flush().await.map_err(failed)?;
        }
        Ok(open)
    }

    async fn recycle_empty(&self, replay: &mut Replay<'_>) -> Result<(), LogError> {
        for extent in replay.empty_extents() {
            if replay.unsealed.get(&extent).is_some_and(|unsealed| unsealed.broken_off) {
                continue;
            }
            replay.unsealed.remove(&extent);
            let epoch = self.extents.with(|t| t.get(extent).map_or(0, |slot| slot.epoch));
            self.extents.recycle(extent, epoch, false).await.map_err(take_failed)?;
        }
        Ok(())
    }

    /// On zones, open zones count towards the limit. So all zones are closed that are not written
    /// again. Others stay open while recovery has zones left for itself.
    async fn close_zones(&self, found: &[Found]) -> Result<(), LogError> {
        let placement = self.extents.placement();
        let mut unsealed = Vec::new();
        for extent in found {
            let start = self.pool.extent_start(extent.extent);
            if !placement.is_open(start) {
                continue;
            }
            match extent.kind {
                ExtentKind::Free => placement.clear(&self.io, start).await?,
                ExtentKind::Commit if extent.trailer.is_none() => unsealed.push((extent.epoch, start)),
                _ => placement.finish(&self.io, start).await?,
            }
        }
        unsealed.sort_unstable();
        let mut open = unsealed.len() as u32;
        for (_, start) in unsealed {
            if placement.may_open(open).is_none_or(|more| more >= RECOVERY_ZONES) {
                break;
            }
            placement.finish(&self.io, start).await?;
            open -= 1;
        }
        Ok(())
    }

    /// Copies records that may not have been durable into a new extent, with their LSNs, and makes
    /// them durable.
    async fn copy_forward(
        &self,
        replay: &mut Replay<'_>,
        seen: Lsn,
        report: &mut RecoveryReport,
    ) -> Result<OpenCommit, LogError> {
        let buffers = BufPool::new(4 * self.frame_bytes_max);
        let waiting = std::mem::take(&mut replay.waiting);
        let prev = waiting.front().map_or(replay.last, |frame| frame.header.prev_lsn);
        let mut open = match self.open_extent(prev, seen).await {
            Ok(open) => open,
            Err(TakeError::Disk(error)) => return Err(failed(error)),
            Err(TakeError::Full) => {
                // No space for the copies. The records were read after the flush at the start,
                // which must suffice as a proof.
                tracing::warn!("the pool is full: no free extent to continue in");
                replay.waiting = waiting;
                replay.witness_to(replay.last);
                replay.settle();
                return Ok(OpenCommit::none(self.pool.pool, self.pool.extent_bytes, replay.last));
            }
        };
        let mut copied = Vec::new();
        for frame in waiting {
            let start = self.extents.start(frame.extent);
            let at = u64::from(frame.header.offset);
            let mut reader = Reader::new(self.copies.disk().clone(), start, at, at + frame.header.total_len());
            reader.trusting = has_fault(self.options.sabotage, Sabotage::TornFrames);
            let id = &frame.header.id;
            let other;
            let (header, bytes) = match reader.frame(id, at, self.pool.extent_bytes).await {
                Ok((header, _, bytes)) => (header, bytes),
                // A frame from another copy that could not be written here.
                Err(what) => {
                    let place = FrameAt { id: *id, at, end: self.pool.extent_bytes, kind: FrameKind::Commit };
                    other = self.copies.rescue(start + at, &place, |(header, _)| *header == frame.header).await;
                    let fault = || LogError::Open(format!("extent {} at {at}: {what}, read twice", frame.extent));
                    let other = other.as_ref().ok_or_else(fault)?;
                    (other.value.0, &other.bytes[..])
                }
            };
            let records = records_to_copy(&header, bytes)?;
            let entries: u64 =
                records.iter().map(|(_, r)| crate::format::footer_entry_bytes(r.head.len()) as u64).sum();
            if !open.fits(header.total_len(), entries, u64::MAX) {
                let next = self.open_extent(header.prev_lsn, seen).await.map_err(take_failed)?;
                self.seal_full(std::mem::replace(&mut open, next)).await?;
            }
            let capacity = (header.total_len() as usize).max(self.frame_bytes_max);
            let pool = if capacity > self.frame_bytes_max { BufPool::new(2 * capacity) } else { buffers.clone() };
            let mut builder = FrameBuilder::new(pool.get(capacity).await, &open);
            report.records_copied += records.len() as u64;
            for (lsn, record) in records {
                builder.push(&mut open, lsn, record);
            }
            let built = builder.finish(&mut open, header.prev_lsn, replay.witness, true);
            self.io.write(built.disk_offset, built.data).await.map_err(failed)?;
            self.extents.wrote(open.id.extent, open.id.epoch, open.at, built.last_lsn, built.min_version);
            copied.push(built.applied);
        }
        if !copied.is_empty() {
            self.io.flush().await.map_err(failed)?;
        }
        for records in copied {
            replay.given.give(&records);
        }
        Ok(open)
    }

    /// Seals an extent that the copies have filled; without a footer if that cannot be written.
    async fn seal_full(&self, full: OpenCommit) -> Result<(), LogError> {
        let id = full.id;
        let sealed = full.seal().write(&self.io, self.extents.placement()).await.map_err(failed)?;
        let (sealed, suspect) = match sealed {
            Ok(sealed) => (sealed, None),
            Err(no_footer) => {
                let (sealed, place) = no_footer.do_without(id.extent);
                (sealed, Some(place))
            }
        };
        self.extents.sealed(id.extent, id.epoch, sealed);
        if let Some(place) = suspect {
            self.extents.suspect(id.extent, id.epoch, place);
        }
        Ok(())
    }

    async fn open_extent(&self, prev_lsn: Lsn, seen: Lsn) -> Result<OpenCommit, TakeError> {
        let base_lsn = prev_lsn.min(seen) + 1;
        let id = self.extents.take(ExtentKind::Commit, base_lsn, Priority::Compaction).await?;
        Ok(OpenCommit::new(id, self.extents.start(id.extent), self.pool.extent_bytes, prev_lsn))
    }
}

/// The records of a verified frame with their LSNs, as copies. Moved records keep their versions.
fn records_to_copy(header: &FrameHeader, frame: &[u8]) -> Result<Vec<(Lsn, Record)>, LogError> {
    let mut records = Vec::new();
    for view in header.records(frame) {
        let view = view.map_err(|e| LogError::Open(e.to_string()))?;
        let version = view.header.moved.then_some(view.header.version);
        let head = bytes::Bytes::copy_from_slice(view.head);
        let body = vec![bytes::Bytes::copy_from_slice(view.body)];
        records.push((view.header.lsn, Record { head, body, version }));
    }
    Ok(records)
}

pub(super) fn failed(error: LogError) -> LogError {
    match error {
        LogError::Unknown { what, cause } => LogError::Open(format!("a {what} failed during recovery: {cause}")),
        error => error,
    }
}

fn take_failed(error: TakeError) -> LogError {
    match error {
        TakeError::Full => LogError::Open("the pool is full: no free extent to continue in".into()),
        TakeError::Disk(error) => failed(error),
    }
}
