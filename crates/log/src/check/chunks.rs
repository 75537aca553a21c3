//! The chunks of a body extent: those in the footer, or all that can be found.

use steadfast_disk::BLOCK;

use super::extent::Walk;
use super::footer::Entry;
use super::{Damage, DoubtfulChunk};
use crate::format::{FrameHeader, FrameKind, RecordHeader, RecordView, Trailer};

const BLOCK_BYTES: u64 = BLOCK as u64;

/// A fault of a chunk.
struct ChunkFault {
    at: u64,
    len: u64,
    what: String,
}

impl Walk<'_> {
    pub async fn body(&mut self, trailer: Option<&Trailer>) {
        if trailer.is_none() {
            return self.scan(false).await;
        }
        loop {
            let Some(footer) = &mut self.footer else { return };
            let entry = match footer.peek().await {
                Ok(Some(_)) => footer.take(),
                Ok(None) => return,
                Err(fault) => {
                    self.findings.damage(Damage::new(self.id.extent, self.id.epoch, fault.offset, fault.what));
                    // Chunks from the rest of the footer are found by scanning.
                    return self.scan(true).await;
                }
            };
            let Some(entry) = entry else { return };
            if let Err(fault) = self.named_chunk(&entry).await {
                self.findings.damage(Damage {
                    len: fault.len,
                    heads: vec![entry.head.to_vec()],
                    records: 1,
                    ..Damage::new(self.id.extent, self.id.epoch, fault.at, fault.what)
                });
            }
        }
    }

    async fn named_chunk(&mut self, entry: &Entry) -> Result<(), ChunkFault> {
        // The record begins at most a block behind its frame, never at it.
        let at = (u64::from(entry.offset).max(1) - 1) / BLOCK_BYTES * BLOCK_BYTES;
        let header = self.chunk_header(at).await?;
        self.chunk(at, &header, Some(entry)).await.map(drop)
    }

    async fn chunk_header(&mut self, at: u64) -> Result<FrameHeader, ChunkFault> {
        match self.frame_header(at, self.extent_bytes, FrameKind::Chunk).await {
            Ok((header, _)) => Ok(header),
            Err(what) if what.is_empty() => {
                Err(ChunkFault { at, len: BLOCK_BYTES, what: "zeros where a chunk belongs".into() })
            }
            Err(what) => Err(ChunkFault { at, len: BLOCK_BYTES, what }),
        }
    }

    async fn chunk(&mut self, at: u64, header: &FrameHeader, entry: Option<&Entry>) -> Result<u32, ChunkFault> {
        let len = header.total_len();
        let fault = |what: String| ChunkFault { at, len, what };
        let frame = self.window.get(at, len).await.map_err(|cause| fault(format!("cannot be read: {cause}")))?;
        header.verify_payload(&frame).map_err(|why| fault(why.to_string()))?;
        let mut records = header.records(&frame);
        let view = match (records.next(), records.next()) {
            (Some(Ok(view)), None) => view,
            (Some(Err(why)), _) | (_, Some(Err(why))) => return Err(fault(why.to_string())),
            _ => return Err(fault("a chunk frame that does not hold one record".to_owned())),
        };
        view.verify_body(self.id.seed()).map_err(|why| fault(why.to_string()))?;
        let body = u64::from(view.offset) + RecordHeader::body_start(view.header.head_len, view.header.body_len);
        if !body.is_multiple_of(BLOCK_BYTES) {
            return Err(fault("the body of a chunk does not begin at a block".to_owned()));
        }
        if entry.is_some_and(|entry| !same(entry, &view)) {
            return Err(fault("the footer disagrees with this chunk".to_owned()));
        }
        let end = header.payload_start as usize + header.payload_len as usize;
        if frame[end..].iter().any(|b| *b != 0) {
            return Err(fault("the padding of a chunk is not zero".to_owned()));
        }
        self.counts.frames += 1;
        self.counts.records += 1;
        Ok(view.offset)
    }

    /// Scans for chunks. One that does not verify is damage in a sealed extent. In an open extent
    /// it may be a torn write.
    async fn scan(&mut self, sealed: bool) {
        let end = self.window.end();
        let mut at = BLOCK_BYTES;
        let (extent, epoch) = (self.id.extent, self.id.epoch);
        if !sealed {
            self.findings.open_body(extent, epoch);
        }
        while let Some((found, header)) = self.next_frame(at, end).await {
            at = found + header.total_len();
            if header.kind != FrameKind::Chunk {
                continue;
            }
            let fault = match self.chunk(found, &header, None).await {
                Ok(offset) => {
                    if !sealed {
                        self.findings.open_chunk(extent, epoch, offset);
                    }
                    continue;
                }
                Err(fault) => fault,
            };
            if sealed {
                self.findings.damage(Damage { len: fault.len, ..Damage::new(extent, epoch, fault.at, fault.what) });
            } else {
                self.findings.doubtful(DoubtfulChunk { extent, epoch, offset: fault.at, what: fault.what });
            }
        }
    }
}

fn same(entry: &Entry, view: &RecordView<'_>) -> bool {
    entry.offset == view.offset
        && entry.lsn == view.header.lsn
        && entry.version == view.header.version
        && entry.body_len == view.header.body_len
        && *entry.head == *view.head
}
