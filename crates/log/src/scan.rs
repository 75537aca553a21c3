//! Sequential reading of an extent.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{FuturesOrdered, StreamExt};
use steadfast_disk::{BLOCK, Disk};
use steadfast_flow::{BoxFuture, has_fault};

use crate::copies::{Copies, FooterAt};
use crate::format::{ExtentId, FooterBlock, FooterEntry, FrameHeader, Trailer};

const STEP: u64 = 1 << 20;
const AHEAD: usize = 4;

/// Bytes read, and the disk offsets of unreadable blocks, which are zeros.
pub(crate) type Piece = (Bytes, Vec<u64>);

/// Reads a piece of one copy.
pub(crate) async fn read_piece(disk: Arc<dyn Disk>, copy: u32, offset: u64, len: usize) -> Piece {
    if let Ok(bytes) = disk.read_copy(copy, offset, len).await {
        // A copy: the pieces behind it may wait for its memory.
        return (Bytes::copy_from_slice(&bytes), Vec::new());
    }
    let mut bytes = vec![0u8; len];
    let mut unreadable = Vec::new();
    for (i, block) in bytes.chunks_mut(BLOCK).enumerate() {
        let at = offset + (i * BLOCK) as u64;
        match disk.read_copy(copy, at, block.len()).await {
            Ok(read) => block.copy_from_slice(&read),
            Err(_) => unreadable.push(at),
        }
    }
    (bytes.into(), unreadable)
}

/// A window that moves through a part of an extent, with read-ahead. Unreadable blocks are zeros in
/// it, so their contents do not validate.
pub(crate) struct Reader {
    disk: Arc<dyn Disk>,
    copy: u32,
    start: u64,
    end: u64,
    base: u64,
    window: Vec<u8>,
    requested: u64,
    ahead: FuturesOrdered<BoxFuture<'static, Piece>>,
    pub(crate) unreadable: Vec<u64>,
    /// Skips the verification of payloads, to test the simulator.
    pub(crate) trusting: bool,
}

impl Reader {
    /// Reads copy 0 from `from` to `end`, in bytes from the start of the extent that begins at
    /// `start` on the disk.
    pub(crate) fn new(disk: Arc<dyn Disk>, start: u64, from: u64, end: u64) -> Self {
        Self::of_copy(0, disk, start, from, end)
    }

    /// As [`Reader::new`], from another copy.
    pub(crate) fn of_copy(copy: u32, disk: Arc<dyn Disk>, start: u64, from: u64, end: u64) -> Self {
        Self {
            disk,
            copy,
            start,
            end,
            base: from,
            window: Vec::new(),
            requested: from,
            ahead: FuturesOrdered::new(),
            unreadable: Vec::new(),
            trusting: false,
        }
    }

    /// Up to `len` bytes at `at`, fewer at the end. `at` never decreases.
    pub(crate) async fn get(&mut self, at: u64, len: usize) -> &[u8] {
        let at = at.min(self.end);
        let want = (at + len as u64).min(self.end);
        while self.base + (self.window.len() as u64) < want {
            while self.requested < self.end && self.ahead.len() < AHEAD {
                let n = STEP.min(self.end - self.requested);
                let read = read_piece(self.disk.clone(), self.copy, self.start + self.requested, n as usize);
                self.ahead.push_back(Box::pin(read));
                self.requested += n;
            }
            let Some((bytes, unreadable)) = self.ahead.next().await else { break };
            self.unreadable.extend(unreadable);
            let done = (at.saturating_sub(self.base) as usize).min(self.window.len());
            self.window.drain(..done);
            self.base += done as u64;
            self.window.extend_from_slice(&bytes);
        }
        let from = (at.saturating_sub(self.base) as usize).min(self.window.len());
        let to = (want.saturating_sub(self.base) as usize).min(self.window.len());
        &self.window[from..to.max(from)]
    }

    /// The verified frame at `at`, or the reason why there is none.
    pub(crate) async fn frame(
        &mut self,
        id: &ExtentId,
        at: u64,
        extent_bytes: u64,
    ) -> Result<(FrameHeader, u32, &[u8]), String> {
        let block = self.get(at, BLOCK).await;
        let (header, checksum) = FrameHeader::decode(block).map_err(|e| e.to_string())?;
        if !header.is_at(id, at, extent_bytes) {
            return Err("the frame belongs elsewhere".into());
        }
        let trusting = has_fault(self.trusting, true);
        let frame = self.get(at, header.total_len() as usize).await;
        if !trusting {
            header.verify_payload(frame).map_err(|e| e.to_string())?;
        }
        Ok((header, checksum, frame))
    }

    /// Offset of the first block in `at..until` that is the header of a frame of this use of the
    /// extent.
    pub(crate) async fn find_frame(&mut self, id: &ExtentId, at: u64, until: u64, extent_bytes: u64) -> Option<u64> {
        let mut at = at;
        while at < until.min(self.end) {
            let window = self.get(at, STEP as usize).await;
            if window.is_empty() {
                return None;
            }
            let found = window.chunks(BLOCK).position(|block| {
                FrameHeader::looks_like(block)
                    && FrameHeader::decode(block).is_ok_and(|(h, _)| h.id == *id && u64::from(h.offset) >= at)
            });
            if let Some(i) = found {
                let place = at + (i * BLOCK) as u64;
                let block = self.get(place, BLOCK).await;
                let here = FrameHeader::decode(block).is_ok_and(|(h, _)| h.is_at(id, place, extent_bytes));
                if here && place < until {
                    return Some(place);
                }
                at = place + BLOCK as u64;
            } else {
                at += window.len() as u64;
            }
        }
        None
    }
}

/// Reads a footer and passes its entries to `each` in order. Blocks that copy 0 lacks come from
/// another copy; `healed` gets their offsets and faults.
pub(crate) async fn read_footer(
    copies: &Copies,
    start: u64,
    trailer: &Trailer,
    mut each: impl FnMut(&FooterEntry<'_>),
    mut healed: impl FnMut(u64, String),
) -> Result<(), String> {
    let (mut at, end) =
        (u64::from(trailer.footer_offset), u64::from(trailer.footer_offset) + u64::from(trailer.footer_len));
    let mut reader = Reader::new(copies.disk().clone(), start, at, end);
    let (mut index, mut count) = (0u32, 0u64);
    while at < end {
        let other;
        let (block, len) = match footer_block(&mut reader, &trailer.id, at, index).await {
            Ok(found) => found,
            Err(what) => {
                let place = FooterAt { id: trailer.id, at, index, end };
                other = copies.rescue(start + at, &place, |_| true).await.ok_or_else(|| what.clone())?;
                healed(at, format!("footer: {what}"));
                let block = FooterBlock::decode(&other.bytes, &trailer.id, at as u32, index);
                (block.map_err(|e| e.to_string())?, other.bytes.len())
            }
        };
        for entry in block.entries() {
            each(&entry.map_err(|e| e.to_string())?);
            count += 1;
        }
        at += len as u64;
        index += 1;
    }
    if count != trailer.record_count {
        return Err(format!("the footer has {count} entries, the trailer says {}", trailer.record_count));
    }
    Ok(())
}

async fn footer_block<'a>(
    reader: &'a mut Reader,
    id: &ExtentId,
    at: u64,
    index: u32,
) -> Result<(FooterBlock<'a>, usize), String> {
    let len = FooterBlock::peek_len(reader.get(at, BLOCK).await).map_err(|e| e.to_string())?;
    let bytes = reader.get(at, len).await;
    Ok((FooterBlock::decode(bytes, id, at as u32, index).map_err(|e| e.to_string())?, len))
}
