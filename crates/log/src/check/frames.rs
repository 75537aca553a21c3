//! The frames of a commit extent, compared with its footer.

use bytes::Bytes;
use steadfast_disk::BLOCK;

use super::extent::Walk;
use super::footer::Entry;
use super::{CheckedRecord, DAMAGE_HEADS_MAX, Damage, Tail};
use crate::Lsn;
use crate::format::{FRAME_HEADER, FrameHeader, FrameKind, RecordView, Trailer};

const BLOCK_BYTES: u64 = BLOCK as u64;

/// Expected predecessor of the next frame; unknown behind a damaged one.
#[derive(Clone, Copy)]
struct Chain {
    checksum: u32,
    lsn: Option<Lsn>,
}

impl Walk<'_> {
    /// End of possible frames: the cut of a sealed extent, else the end of the extent.
    fn frames_end(&self, trailer: Option<&Trailer>) -> u64 {
        trailer.map_or(self.extent_bytes, |t| u64::from(t.data_end)).min(self.window.end())
    }

    pub async fn commit(&mut self, trailer: Option<&Trailer>) {
        let end = self.frames_end(trailer);
        let mut chain = Some(Chain { checksum: 0, lsn: trailer.map(|t| t.prev_lsn) });
        let mut last_lsn = trailer.map_or(0, |t| t.prev_lsn);
        let mut at = BLOCK_BYTES;
        while at < end {
            let mut found = self.frame_header(at, end, FrameKind::Commit).await;
            if trailer.is_none()
                && let Ok((header, _)) = &found
                && let Err(what) = self.whole(at, header).await
            {
                // In an open extent, an incomplete frame may be a torn write.
                found = Err(what);
            }
            match found {
                Ok((header, crc)) => {
                    if let Some(what) = chain.and_then(|chain| breaks(chain, &header)) {
                        self.damage_frame(at, &header, what);
                    }
                    self.commit_frame(at, &header).await;
                    chain = Some(Chain { checksum: crc, lsn: Some(header.last_lsn) });
                    last_lsn = header.last_lsn;
                    at += header.total_len();
                }
                Err(what) if trailer.is_some() => {
                    let next = self.next_frame(at + BLOCK_BYTES, end).await.map_or(end, |(next, _)| next);
                    self.damage_range(at, next, what, Some(last_lsn + 1)).await;
                    chain = None;
                    at = next;
                }
                Err(what) => {
                    self.open_tail(at, end, what, last_lsn).await;
                    return;
                }
            }
        }
        let Some(trailer) = trailer else { return };
        self.findings.sealed(trailer);
        // An extent that was sealed while empty has no last record.
        let expected = if trailer.record_count == 0 { trailer.prev_lsn } else { trailer.last_lsn };
        if chain.is_some_and(|chain| chain.checksum != trailer.last_checksum || last_lsn != expected) {
            let what = "the last frame is not the one in the trailer".to_owned();
            self.findings.damage(Damage::new(self.id.extent, self.id.epoch, end, what));
        }
        self.damage_unless_footer_ends().await;
    }

    /// The header of the frame at `at`, if a frame of this kind is there and ends by `end`.
    pub async fn frame_header(&mut self, at: u64, end: u64, kind: FrameKind) -> Result<(FrameHeader, u32), String> {
        let block = match self.window.get(at, BLOCK_BYTES).await {
            Ok(block) => block,
            Err(cause) => return Err(format!("cannot be read: {cause}")),
        };
        let (header, crc) = match FrameHeader::decode(&block) {
            Ok(found) => found,
            Err(_) if block.iter().all(|b| *b == 0) => return Err(String::new()),
            Err(why) => return Err(why.to_string()),
        };
        if !header.is_at(&self.id, at, end) {
            let what = "a frame of another place, another use of the extent, or beyond its end";
            return Err(what.to_owned());
        }
        if header.kind != kind {
            return Err("a frame of the other kind".to_owned());
        }
        self.findings.frame(&header);
        Ok((header, crc))
    }

    /// Offset of the next frame of this use of the extent, from `at` on.
    pub async fn next_frame(&mut self, mut at: u64, end: u64) -> Option<(u64, FrameHeader)> {
        while at < end {
            // An unreadable block is skipped.
            if let Ok(block) = self.window.get(at, BLOCK_BYTES).await
                && FrameHeader::looks_like(&block)
                && let Ok((header, _)) = FrameHeader::decode(&block)
                && header.is_at(&self.id, at, end)
            {
                self.findings.frame(&header);
                return Some((at, header));
            }
            at += BLOCK_BYTES;
        }
        None
    }

    /// An open extent has no valid frame at `at`. Frames elsewhere decide whether that is its end
    /// or damage.
    async fn open_tail(&mut self, at: u64, end: u64, what: String, last_lsn: Lsn) {
        let mut durable_behind = 0;
        let mut from = at + BLOCK_BYTES;
        while let Some((next, header)) = self.next_frame(from, end).await {
            durable_behind = header.durable_lsn.max(durable_behind);
            from = next + header.total_len();
        }
        let what = if what.is_empty() && durable_behind > 0 { "no frame here".to_owned() } else { what };
        let (extent, epoch) = (self.id.extent, self.id.epoch);
        self.findings.tail(Tail { extent, epoch, offset: at, last_lsn, durable_behind, what });
    }

    async fn whole(&mut self, at: u64, header: &FrameHeader) -> Result<(), String> {
        let frame =
            self.window.get(at, header.total_len()).await.map_err(|cause| format!("cannot be read: {cause}"))?;
        header.verify_payload(&frame).map_err(|why| why.to_string())
    }

    async fn commit_frame(&mut self, at: u64, header: &FrameHeader) {
        let frame = match self.window.get(at, header.total_len()).await {
            Ok(frame) => frame,
            Err(cause) => {
                let what = format!("cannot be read: {cause}");
                return self.damage_range(at, at + header.total_len(), what, Some(header.first_lsn)).await;
            }
        };
        self.counts.frames += 1;
        let mut whole = header.verify_payload(&frame).map_err(|why| why.to_string());
        if whole.is_ok() && !padding_is_zero(header, &frame) {
            whole = Err("the padding of a frame is not zero".to_owned());
        }
        let mut named = false;
        let mut min_version = Lsn::MAX;
        let mut expected = header.first_lsn;
        for view in header.records(&frame) {
            let view = match view {
                Ok(view) => view,
                Err(why) => {
                    let end = at + header.total_len();
                    self.damage_range(at, end, why.to_string(), Some(expected)).await;
                    named = true;
                    break;
                }
            };
            self.counts.records += 1;
            // Recovery copies only what it needs, so there may be gaps.
            let follows = if header.copy { view.header.lsn >= expected } else { view.header.lsn == expected };
            if !follows {
                let what = format!("LSN {} where {expected} belongs", view.header.lsn);
                self.damage_record(&view, what);
                named = true;
            }
            expected = view.header.lsn.saturating_add(1);
            min_version = min_version.min(view.header.version);
            if let Err(why) = view.verify_body(self.id.seed()) {
                self.damage_record(&view, why.to_string());
                named = true;
            } else {
                self.findings.record(CheckedRecord { lsn: view.header.lsn, head: view.head, body: view.body });
            }
            self.compare_with_footer(&frame, &view).await;
        }
        if let Err(what) = whole
            && !named
        {
            self.damage_frame(at, header, what);
        } else if !named
            && header.record_count > 0
            && (expected != header.last_lsn + 1 || min_version != header.min_version)
        {
            self.damage_frame(at, header, "the records differ from those in the frame's header".to_owned());
        }
    }

    async fn compare_with_footer(&mut self, frame: &Bytes, view: &RecordView<'_>) {
        let entry = Entry {
            lsn: view.header.lsn,
            version: view.header.version,
            moved: view.header.moved,
            offset: view.offset,
            body_len: view.header.body_len,
            head: frame.slice_ref(view.head),
        };
        let Some(footer) = self.footer.as_mut().filter(|footer| !footer.is_lost()) else { return };
        let fault = match footer.peek().await {
            Ok(Some(found)) if *found == entry => {
                footer.take();
                return;
            }
            Ok(Some(found)) if found.offset == entry.offset => {
                footer.take();
                "the footer disagrees with this record".to_owned()
            }
            Ok(_) => "the footer lacks this record".to_owned(),
            Err(fault) => {
                let damage = Damage::new(self.id.extent, self.id.epoch, fault.offset, fault.what);
                return self.findings.damage(damage);
            }
        };
        self.damage_record(view, fault);
    }

    /// Reports damage if the footer has more entries.
    pub async fn damage_unless_footer_ends(&mut self) {
        let Some(footer) = self.footer.as_mut().filter(|footer| !footer.is_lost()) else { return };
        let (offset, what) = match footer.peek().await {
            Ok(None) => return,
            Ok(Some(entry)) => (u64::from(entry.offset), "the footer names a missing record".to_owned()),
            Err(fault) => (fault.offset, fault.what),
        };
        self.findings.damage(Damage::new(self.id.extent, self.id.epoch, offset, what));
    }

    fn damage_frame(&mut self, at: u64, header: &FrameHeader, what: String) {
        self.findings.damage(Damage {
            len: header.total_len(),
            lsns: Some((header.first_lsn, header.last_lsn)),
            records: u64::from(header.record_count),
            ..Damage::new(self.id.extent, self.id.epoch, at, what)
        });
    }

    pub fn damage_record(&mut self, view: &RecordView<'_>, what: String) {
        self.findings.damage(Damage {
            len: view.len() as u64,
            lsns: (view.header.lsn > 0).then_some((view.header.lsn, view.header.lsn)),
            heads: vec![view.head.to_vec()],
            records: 1,
            ..Damage::new(self.id.extent, self.id.epoch, u64::from(view.offset), what)
        });
    }

    /// Reports `at..end` as damage. The footer names the records in it.
    async fn damage_range(&mut self, at: u64, end: u64, what: String, first_lsn: Option<Lsn>) {
        let mut damage = Damage { len: end - at, ..Damage::new(self.id.extent, self.id.epoch, at, what) };
        if damage.what.is_empty() {
            damage.what = "zeros where a frame belongs".to_owned();
        }
        let mut last_lsn = None;
        if let Some(footer) = &mut self.footer {
            // A fault of the footer itself is reported where the footer is compared.
            while let Ok(Some(entry)) = footer.peek().await {
                if u64::from(entry.offset) >= end {
                    break;
                }
                last_lsn = Some(entry.lsn);
                damage.records += 1;
                if damage.heads.len() < DAMAGE_HEADS_MAX {
                    damage.heads.push(entry.head.to_vec());
                }
                footer.take();
            }
        }
        damage.lsns = last_lsn.and_then(|last| Some((first_lsn?.min(last), last)));
        self.findings.damage(damage);
    }
}

fn breaks(chain: Chain, header: &FrameHeader) -> Option<String> {
    if header.prev_checksum != chain.checksum {
        return Some("the frame does not follow the one before it".to_owned());
    }
    let lsn = chain.lsn?;
    (header.prev_lsn != lsn).then(|| format!("the frame follows LSN {}, before it is {lsn}", header.prev_lsn))
}

fn padding_is_zero(header: &FrameHeader, frame: &[u8]) -> bool {
    let start = header.payload_start as usize;
    let end = start + header.payload_len as usize;
    frame[FRAME_HEADER..start].iter().chain(&frame[end..]).all(|b| *b == 0)
}
