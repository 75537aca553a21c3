//! Operations that change an export: writes of any alignment, zeros and trims.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use futures::StreamExt;
use steadfast_disk::{AlignedBuf, BLOCK};

use crate::Export;
use crate::options::PIECE_BYTES;
use crate::protocol::Errno;
use crate::status::Kind;

/// Pieces of one `WRITE_ZEROES` that are submitted to the disk at the same time.
const ZERO_PIECES: usize = 4;

/// Zeros for all exports, aligned for direct I/O. The pages are the kernel's zero page until they
/// are first written.
static ZEROS: LazyLock<Bytes> = LazyLock::new(|| {
    let bytes = Bytes::from(vec![0; PIECE_BYTES + BLOCK]);
    let lead = bytes.as_ptr().align_offset(BLOCK).min(BLOCK);
    bytes.slice(lead..lead + PIECE_BYTES)
});

/// A piece of a write: a buffer of all blocks that it touches, with the payload inside.
pub(crate) struct Piece {
    /// Offset on the disk of the first block.
    at: u64,
    /// Bytes of the first block in front of the payload.
    head: usize,
    /// Length of the payload.
    length: usize,
    buffer: AlignedBuf,
}

impl Piece {
    /// The payload's part of the buffer.
    pub(crate) fn payload(&mut self) -> &mut [u8] {
        let (head, length) = (self.head, self.length);
        &mut self.buffer[head..head + length]
    }
}

impl Export {
    /// Splits a range into pieces that end at block boundaries. Offsets are in the export.
    pub(crate) fn pieces(&self, offset: u64, length: u64) -> impl Iterator<Item = (u64, usize)> + Send + use<> {
        let (mut at, end, size) = (offset, offset + length, self.piece_bytes as u64);
        std::iter::from_fn(move || {
            let from = at;
            // A first piece that begins within a block is shorter, so that all others are aligned.
            at = end.min((from / BLOCK as u64) * BLOCK as u64 + size);
            (from < at).then(|| (from, (at - from) as usize))
        })
    }

    /// Allocates the buffer of a piece, waiting for memory.
    pub(crate) async fn piece(&self, offset: u64, length: usize) -> Piece {
        let blocks = self.blocks(offset, length as u64);
        let bytes = (blocks.end - blocks.start) as usize;
        assert!(0 < length && length <= self.piece_bytes, "a piece of {length} bytes");
        let mut buffer = self.disk.buffer(bytes).await;
        buffer.set_len(bytes);
        Piece { at: blocks.start, head: (offset % BLOCK as u64) as usize, length, buffer }
    }

    /// Counts a write of a client, which may have several pieces.
    pub(crate) fn count_write(&self) {
        self.counters.count(Kind::Write);
    }

    /// Writes a piece, after all earlier changes that touch one of its blocks.
    pub(crate) async fn write(&self, piece: Piece, fua: bool) -> Result<(), Errno> {
        let _under_way = self.under_way.begin();
        let length = piece.length as u64;
        self.write_blocks(piece, fua).await?;
        self.counters.written_bytes.fetch_add(length, Relaxed);
        Ok(())
    }

    async fn write_blocks(&self, mut piece: Piece, fua: bool) -> Result<(), Errno> {
        let (at, bytes) = (piece.at, piece.buffer.len());
        let _lock = self.ranges.lock(at..at + bytes as u64).await;
        self.check_failure()?;
        self.fill_edges(&mut piece).await?;
        self.put(at, piece.buffer.freeze(), fua).await
    }

    async fn put(&self, at: u64, data: Bytes, fua: bool) -> Result<(), Errno> {
        let written = if fua { self.disk.write_flush(at, data) } else { self.disk.write(at, data) };
        written.await.map_err(|error| self.change_failed("write", &error))?;
        if fua { self.check_failure() } else { Ok(()) }
    }

    /// Reads the parts of the first and the last block that the piece does not cover.
    async fn fill_edges(&self, piece: &mut Piece) -> Result<(), Errno> {
        let payload_end = piece.head + piece.length;
        let bytes = piece.buffer.len();
        let last = bytes - BLOCK;
        let mut first_holds_end = false;
        if piece.head > 0 {
            let block = self.read_block(piece.at).await?;
            first_holds_end = last == 0;
            copy(&mut piece.buffer, 0..piece.head, &block, 0);
            if first_holds_end {
                copy(&mut piece.buffer, payload_end..bytes, &block, payload_end);
            }
        }
        if payload_end < bytes && !first_holds_end {
            let block = self.read_block(piece.at + last as u64).await?;
            copy(&mut piece.buffer, payload_end..bytes, &block, payload_end - last);
        }
        Ok(())
    }

    async fn read_block(&self, at: u64) -> Result<Bytes, Errno> {
        // The export has not changed yet, so this read's error is not latched.
        self.disk.read(at, BLOCK).await.map_err(|error| self.read_failed(&error))
    }

    /// Discards the whole blocks of a range. A trim is a hint, so the edges keep their content.
    pub(crate) async fn trim(&self, offset: u64, length: u64, fua: bool) -> Result<(), Errno> {
        self.counters.count(Kind::Trim);
        let _under_way = self.under_way.begin();
        self.check_failure()?;
        let block = BLOCK as u64;
        let (first, end) = (offset.next_multiple_of(block), (offset + length) / block * block);
        if first < end {
            let (at, length) = (self.window.start + first, end - first);
            let _lock = self.ranges.lock(at..at + length).await;
            self.check_failure()?;
            self.disk.discard(at, length).await.map_err(|error| self.change_failed("trim", &error))?;
        }
        if fua { self.sync().await } else { Ok(()) }
    }

    /// Writes zeros in pieces, at most [`ZERO_PIECES`] of them at the same time.
    pub(crate) async fn write_zeroes(self: Arc<Self>, offset: u64, length: u64, fua: bool) -> Result<(), Errno> {
        self.counters.count(Kind::WriteZeroes);
        let _under_way = self.under_way.begin();
        let pieces = self.pieces(offset, length).map(|(at, length)| {
            let export = self.clone();
            async move { export.zero(at, length).await }
        });
        // All pieces end before the reply, also those behind a failed one.
        let mut results = futures::stream::iter(pieces).buffer_unordered(ZERO_PIECES);
        let mut result = Ok(());
        while let Some(one) = results.next().await {
            result = result.and(one);
        }
        drop(results);
        result?;
        if fua { self.sync().await } else { Ok(()) }
    }

    async fn zero(&self, offset: u64, length: usize) -> Result<(), Errno> {
        self.check_failure()?;
        if !(offset | length as u64).is_multiple_of(BLOCK as u64) {
            let mut piece = self.piece(offset, length).await;
            piece.payload().fill(0);
            return self.write_blocks(piece, false).await;
        }
        assert!(length <= PIECE_BYTES, "{length} zeros in one piece");
        let blocks = self.blocks(offset, length as u64);
        let _lock = self.ranges.lock(blocks.clone()).await;
        self.check_failure()?;
        self.put(blocks.start, ZEROS.slice(..length), false).await
    }
}

/// Copies the bytes of `block` from `from` on to `range` of the buffer.
fn copy(buffer: &mut AlignedBuf, range: std::ops::Range<usize>, block: &Bytes, from: usize) {
    let length = range.len();
    buffer[range].copy_from_slice(&block[from..from + length]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use steadfast_disk::{Effect, Fault, Faults, Faulty, MemDisk, OpKind};

    use steadfast_flow::Env;

    use super::*;
    use crate::{ExportError, ExportOptions, Window};

    const SIZE: usize = 16 * BLOCK;

    fn export(window: Option<Window>) -> Result<Arc<Export>, ExportError> {
        let options = ExportOptions { window, ..ExportOptions::new("a") };
        Export::new(options, Arc::new(MemDisk::fixed(SIZE as u64 + 2 * BLOCK as u64)), Env::tokio())
    }

    async fn write(export: &Export, offset: u64, data: &[u8]) -> Result<(), Errno> {
        for (at, length) in export.pieces(offset, data.len() as u64) {
            let mut piece = export.piece(at, length).await;
            let from = (at - offset) as usize;
            piece.payload().copy_from_slice(&data[from..from + length]);
            export.write(piece, false).await?;
        }
        Ok(())
    }

    #[tokio::test]
    async fn windows_must_be_on_the_disk_and_aligned() {
        for (start, len) in [(0, 0), (1, BLOCK), (0, BLOCK + 1), (BLOCK, 18 * BLOCK), (usize::MAX - BLOCK + 1, BLOCK)] {
            let window = Window { start: start as u64, len: len as u64 };
            assert!(matches!(export(Some(window)), Err(ExportError::Window { .. })), "{window:?}");
        }
        assert_eq!(export(None).expect("valid").size(), SIZE as u64 + 2 * BLOCK as u64);
        let long = ExportOptions::new("x".repeat(4097));
        let made = Export::new(long, Arc::new(MemDisk::fixed(SIZE as u64)), Env::tokio());
        assert!(matches!(made, Err(ExportError::TooLong(_))));
    }

    #[tokio::test]
    async fn a_reply_holds_no_memory_of_the_disk() {
        let disk = MemDisk::fixed(SIZE as u64).with_read_memory(BLOCK);
        let export = Export::new(ExportOptions::new("a"), Arc::new(disk), Env::tokio()).expect("an export");
        // The client does not take it.
        let reply = export.read(0, BLOCK as u32).await.expect("read");
        let next = Env::tokio().timeout(std::time::Duration::from_secs(60), export.read(0, BLOCK as u32)).await;
        assert_eq!(next.expect("in time").expect("read"), reply);
    }

    #[tokio::test]
    async fn pieces_cover_a_range_and_end_where_blocks_end() {
        let export = export(None).expect("valid");
        for (offset, length) in [(0, 0), (5, 1), (4095, 2), (100, 5_000_000), (4096, 1 << 20)] {
            let mut next = offset;
            for (at, part) in export.pieces(offset, length) {
                assert!(at == next && part > 0 && part <= PIECE_BYTES);
                next += part as u64;
                assert!(next == offset + length || next.is_multiple_of(BLOCK as u64));
            }
            assert_eq!(next, offset + length);
        }
        assert_eq!(ZEROS.as_ptr() as usize % BLOCK, 0);
        assert_eq!(ZEROS.len(), PIECE_BYTES);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write(usize, Vec<u8>),
        Zero(usize, usize),
        Read(usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = (0..SIZE, prop_oneof![1..700usize, 1..3 * BLOCK])
            .prop_map(|(offset, length)| (offset, length.min(SIZE - offset)));
        (range, 0..4, any::<u8>()).prop_map(|((offset, length), kind, byte)| match kind {
            0 => Step::Zero(offset, length),
            1 => Step::Read(offset, length),
            _ => Step::Write(offset, vec![byte; length]),
        })
    }

    proptest! {
        #[test]
        fn any_alignment_is_as_in_memory(steps in proptest::collection::vec(step(), 1..60)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
            runtime.block_on(async {
                let window = Window { start: BLOCK as u64, len: SIZE as u64 };
                let export = export(Some(window)).expect("valid");
                let mut model = vec![0; SIZE];
                for step in steps {
                    match step {
                        Step::Write(offset, data) => {
                            model[offset..offset + data.len()].copy_from_slice(&data);
                            write(&export, offset as u64, &data).await.expect("written");
                        }
                        Step::Zero(offset, length) => {
                            model[offset..offset + length].fill(0);
                            export.clone().write_zeroes(offset as u64, length as u64, false).await.expect("zeroed");
                        }
                        Step::Read(offset, length) => {
                            let data = export.read(offset as u64, length as u32).await.expect("read");
                            assert_eq!(data, &model[offset..offset + length]);
                        }
                    }
                }
                let whole = export.disk.read(0, SIZE + 2 * BLOCK).await.expect("read");
                assert!(whole[..BLOCK].iter().chain(&whole[BLOCK + SIZE..]).all(|byte| *byte == 0));
                assert!(whole[BLOCK..BLOCK + SIZE] == model);
            });
        }

        #[test]
        fn changes_of_any_alignment_at_once_lose_no_byte(
            cuts in proptest::collection::btree_set(1..SIZE, 1..40),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
            runtime.block_on(async {
                // Neighbouring writes share blocks and run concurrently: no write reaches the disk
                // before all have begun.
                let faults = Faults::new();
                let hold = faults.add(Fault::new(OpKind::Write, Effect::Hold));
                let disk = Faulty::new(Arc::new(MemDisk::fixed(SIZE as u64)), faults.clone());
                let export = Export::new(ExportOptions::new("a"), Arc::new(disk), Env::tokio()).expect("valid");
                let ends: Vec<usize> = cuts.into_iter().chain([SIZE]).collect();
                let mut model = vec![0; SIZE];
                let mut start = 0;
                let mut writes = Vec::new();
                for (i, end) in ends.into_iter().enumerate() {
                    let data = vec![i as u8 + 1; end - start];
                    model[start..end].copy_from_slice(&data);
                    writes.push((start as u64, data));
                    start = end;
                }
                let writes = writes.iter().map(|(offset, data)| write(&export, *offset, data));
                let (results, ()) = futures::join!(futures::future::join_all(writes), async { faults.remove(hold) });
                assert!(results.iter().all(Result::is_ok));
                assert!(export.read(0, SIZE as u32).await.expect("read") == model);
            });
        }
    }
}
