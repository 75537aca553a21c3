//! Reads the commit extents in order: by their footers, or frame by frame.

use steadfast_disk::BLOCK;
use steadfast_flow::has_fault;

use super::Recovery;
use super::replay::{Accepted, Replay, records_of};
use super::report::RecoveryReport;
use super::survey::Found;
use crate::copies::FrameAt;
use crate::format::{ExtentId, ExtentKind, FooterEntry, FrameHeader, FrameKind};
use crate::scan::{Reader, read_footer};
use crate::{Applied, Location, Sabotage};

impl Recovery {
    /// Reads all commit extents, in the order in which they were written.
    pub(super) async fn read_commits(&self, found: &[Found], replay: &mut Replay<'_>, report: &mut RecoveryReport) {
        let mut commits: Vec<&Found> = found.iter().filter(|f| f.kind == ExtentKind::Commit).collect();
        commits.sort_by_key(|f| f.epoch);
        for extent in commits {
            self.read_extent(extent, replay, report).await;
        }
    }

    async fn read_extent(&self, found: &Found, replay: &mut Replay<'_>, report: &mut RecoveryReport) {
        if let Some(trailer) = &found.trailer {
            if trailer.record_count == 0 {
                return;
            }
            if trailer.last_lsn <= report.checkpoint {
                return replay.skip_sealed(trailer.last_lsn);
            }
            let mut records = Vec::new();
            let start = self.extents.start(found.extent);
            let mut healed = Vec::new();
            let mut each = |entry: &FooterEntry<'_>| {
                records.push(Applied {
                    lsn: entry.lsn,
                    version: entry.version,
                    moved: entry.moved,
                    head: bytes::Bytes::copy_from_slice(entry.head),
                    location: Location {
                        extent: found.extent,
                        epoch: found.epoch,
                        offset: entry.offset,
                        head_len: entry.head.len() as u32,
                        body_len: entry.body_len,
                    },
                });
            };
            let read = read_footer(&self.copies, start, trailer, &mut each, |at, what| healed.push((at, what))).await;
            for (at, what) in healed {
                report.healed(found.extent, at, what);
            }
            match read {
                Ok(()) => {
                    report.footers_read += 1;
                    return replay.sealed(found.extent, found.epoch, trailer.prev_lsn, records);
                }
                Err(what) => {
                    report.damage(found.extent, u64::from(trailer.footer_offset), format!("footer: {what}"));
                    replay.witness_to(trailer.last_lsn);
                }
            }
        }
        self.scan(found, replay, report).await;
    }

    /// Reads an extent frame by frame.
    async fn scan(&self, found: &Found, replay: &mut Replay<'_>, report: &mut RecoveryReport) {
        report.extents_scanned += 1;
        let id = self.extents.id(found.extent, found.epoch);
        let extent_bytes = self.pool.extent_bytes;
        let data_end = found.trailer.map_or(extent_bytes - BLOCK as u64, |t| u64::from(t.data_end));
        if found.trailer.is_none() {
            let unsealed = replay.unsealed.entry(found.extent).or_default();
            unsealed.data_end = BLOCK as u64;
            unsealed.scan_end = BLOCK as u64;
        }
        let start = self.extents.start(found.extent);
        let trusting = has_fault(self.options.sabotage, Sabotage::TornFrames);
        let mut reader = Reader::new(self.copies.disk().clone(), start, BLOCK as u64, data_end);
        reader.trusting = trusting;
        let mut at = BLOCK as u64;
        let mut prev_checksum = 0;
        let mut chained = true;
        while at < data_end {
            let mut frame = reader.frame(&id, at, extent_bytes).await.and_then(|(header, checksum, bytes)| {
                if chained && header.prev_checksum != prev_checksum {
                    return Err("the frame does not follow the one before it".into());
                }
                Ok(Accepted { extent: found.extent, header, checksum, records: records_of(&header, bytes)? })
            });
            if let Err(what) = &frame
                && let Some(rescued) = self.rescue(&id, at, chained.then_some(prev_checksum)).await
            {
                report.healed(found.extent, at, what.clone());
                frame = Ok(rescued);
            }
            match frame {
                Ok(frame) => {
                    report.frames_scanned += 1;
                    prev_checksum = frame.checksum;
                    at += frame.header.total_len();
                    replay.frame(frame, chained);
                }
                Err(what) => {
                    let until = match found.trailer {
                        Some(_) => data_end,
                        None => at.saturating_add(self.options.recovery_search_bytes),
                    };
                    let from = at + BLOCK as u64;
                    let mut next = reader.find_frame(&id, from, until, extent_bytes).await;
                    for copy in 1..self.copies.count() {
                        // A frame that is whole on any copy was written, and may prove that
                        // something is missing here.
                        let disk = self.copies.disk().clone();
                        let mut other = Reader::of_copy(copy, disk, start, from, next.unwrap_or(data_end));
                        if let Some(found) = other.find_frame(&id, from, until, extent_bytes).await {
                            next = Some(found);
                            // The first reader has passed this place.
                            reader = Reader::new(self.copies.disk().clone(), start, found, data_end);
                            reader.trusting = trusting;
                        }
                    }
                    // In a sealed extent, everything was durable.
                    let durable = found.trailer.map(|t| t.last_lsn);
                    if next.is_some() || durable.is_some() {
                        replay.broken(found.extent, found.epoch, at, what, durable);
                    }
                    let Some(next) = next else { return };
                    at = next;
                    chained = false;
                }
            }
        }
    }

    /// The frame at `at` from another copy if copy 0 lacks it; copy 0 is healed with it. `follows`
    /// is the checksum of the preceding frame. This may keep a frame that was never acknowledged.
    /// An acknowledged frame is never cut.
    async fn rescue(&self, id: &ExtentId, at: u64, follows: Option<u32>) -> Option<Accepted> {
        let place = FrameAt { id: *id, at, end: self.pool.extent_bytes, kind: FrameKind::Commit };
        let accept = |(header, _): &(FrameHeader, u32)| follows.is_none_or(|prev| header.prev_checksum == prev);
        let whole = self.copies.rescue(self.extents.start(id.extent) + at, &place, accept).await?;
        let (header, checksum) = whole.value;
        let records = records_of(&header, &whole.bytes).ok()?;
        Some(Accepted { extent: id.extent, header, checksum, records })
    }
}
