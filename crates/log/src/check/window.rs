//! Sequential reading through one piece of the disk at a time.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use steadfast_disk::{BLOCK, Disk};
use steadfast_flow::Pace;

/// Bytes read at a time. Below any sensible bound of a buffer pool.
const PIECE: u64 = 1 << 20;

/// A view of part of a disk (an extent) with read-ahead. It holds a copy of one piece, or of the
/// largest requested range. The disk's own memory would be missing for other reads meanwhile.
pub struct Window {
    disk: Arc<dyn Disk>,
    copy: u32,
    ahead: u64,
    start: u64,
    len: u64,
    pace: Option<Pace>,
    piece: Bytes,
    piece_at: u64,
    read_bytes: u64,
}

impl Window {
    /// A view of `len` bytes from `start` of the disk's first copy, up to the end of the disk. Both
    /// are multiples of [`BLOCK`].
    pub fn new(disk: Arc<dyn Disk>, start: u64, len: u64, pace: Option<Pace>) -> Self {
        Self::of_copy(0, disk, start, len, pace)
    }

    /// As [`Window::new`], of another copy.
    pub fn of_copy(copy: u32, disk: Arc<dyn Disk>, start: u64, len: u64, pace: Option<Pace>) -> Self {
        let len = len.min(disk.len().saturating_sub(start)) / BLOCK as u64 * BLOCK as u64;
        Self { disk, copy, ahead: PIECE, start, len, pace, piece: Bytes::new(), piece_at: 0, read_bytes: 0 }
    }

    /// Reads only the requested ranges.
    pub fn without_ahead(self) -> Self {
        Self { ahead: 0, ..self }
    }

    /// Offset of the view on the disk.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// End of the view on the disk.
    pub fn end(&self) -> u64 {
        self.len
    }

    /// Bytes read from the disk so far.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// `len` bytes at `at`, fewer at the end of the view.
    ///
    /// # Errors
    /// Those of the disk.
    pub async fn get(&mut self, at: u64, len: u64) -> io::Result<Bytes> {
        let end = at.saturating_add(len).min(self.len);
        if at >= end {
            return Ok(Bytes::new());
        }
        if at < self.piece_at || end > self.piece_at + self.piece.len() as u64 {
            self.fill(at, end).await?;
        }
        let from = (at - self.piece_at) as usize;
        Ok(self.piece.slice(from..from + (end - at) as usize))
    }

    /// Bytes at two neighbouring offsets as one slice, if they are such a slice already.
    pub(crate) fn joined(&self, first: &Bytes, second: &Bytes) -> Option<Bytes> {
        let (piece, first, second) = (self.piece.as_ptr_range(), first.as_ptr_range(), second.as_ptr_range());
        let is_slice = piece.start <= first.start && first.end == second.start && second.end <= piece.end;
        is_slice.then(|| {
            let from = first.start.addr() - piece.start.addr();
            self.piece.slice(from..second.end.addr() - piece.start.addr())
        })
    }

    async fn fill(&mut self, at: u64, end: u64) -> io::Result<()> {
        let block = BLOCK as u64;
        let from = at / block * block;
        let needed = end.next_multiple_of(block).min(self.len);
        // If read-ahead meets a bad place, only the requested range is read.
        let ahead = (from + self.ahead).min(self.len).max(needed);
        self.piece = match self.read(from, ahead).await {
            Err(_) if ahead > needed => self.read(from, needed).await?,
            result => result?,
        };
        self.piece_at = from;
        Ok(())
    }

    async fn read(&mut self, from: u64, to: u64) -> io::Result<Bytes> {
        self.piece = Bytes::new();
        self.piece_at = 0;
        let mut whole = BytesMut::with_capacity((to - from) as usize);
        let mut at = from;
        while at < to {
            let len = (to - at).min(PIECE);
            if let Some(pace) = &self.pace {
                pace.spend(len).await;
            }
            let bytes = self.disk.read_copy(self.copy, self.start + at, len as usize).await?;
            self.read_bytes += len;
            at += len;
            whole.extend_from_slice(&bytes);
        }
        Ok(whole.freeze())
    }
}

#[cfg(test)]
mod tests {
    use steadfast_disk::MemDisk;

    use super::*;

    #[tokio::test]
    async fn neighbours_are_joined_without_a_copy_and_nothing_else_is() {
        let mut window = Window::new(Arc::new(MemDisk::fixed(4 << 20)), 0, 4 << 20, None);
        let first = window.get(0, 4096).await.expect("read");
        let second = window.get(4096, 8192).await.expect("read");
        let joined = window.joined(&first, &second).expect("they touch");
        assert_eq!((joined.as_ptr(), joined.len()), (first.as_ptr(), 12_288));
        let third = window.get(16_384, 4096).await.expect("read");
        assert_eq!(window.joined(&first, &third), None, "a gap");
        assert_eq!(window.joined(&second, &first), None, "in the other order");
        assert_eq!(window.joined(&first, &Bytes::from(vec![0; 4096])), None, "other memory");
        let far = window.get(2 << 20, 4096).await.expect("read");
        assert_eq!(window.joined(&first, &second), None, "the window holds another piece");
        assert_eq!(window.joined(&second, &far), None);
    }
}
