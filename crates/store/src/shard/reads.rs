//! Reading from a shard: the cache, and the budget for reading ahead.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use steadfast_log::{Location, Log, LogError, RecordFront};
use tokio::sync::Semaphore;

use crate::cache::ReadCache;
use crate::shard::applied::AppliedState;
use crate::shard::follow;
use crate::shard::hang::HangWatch;

/// What the readers of a shard share.
pub(crate) struct Reads {
    pub(crate) applied: Arc<AppliedState>,
    pub(crate) log: Log,
    pub(crate) hang: Arc<HangWatch>,
    pub(crate) cache: ReadCache,
    /// Budget of all streams of the store for reading ahead, in KiB.
    pub(crate) ahead: Arc<Semaphore>,
}

impl Reads {
    /// Begins with an empty cache.
    pub(crate) fn new(applied: Arc<AppliedState>, log: Log, hang: Arc<HangWatch>, ahead: Arc<Semaphore>) -> Self {
        let cache = ReadCache::new(applied.options.cache_bytes);
        Self { applied, log, hang, cache, ahead }
    }

    /// Bytes of a piece, which is read and cached as a whole.
    pub(crate) fn piece_bytes(&self) -> u32 {
        self.applied.options.read_piece_bytes.max(1)
    }

    /// The whole body of the record under `key`.
    pub(crate) async fn inline_body(&self, key: &[u8], at: &Location) -> Result<Bytes, LogError> {
        if at.body_len == 0 {
            return Ok(Bytes::new());
        }
        if let Some(body) = self.cache.get(at, 0) {
            return Ok(body);
        }
        let body = follow::read(&self.log, at, 0..at.body_len, key).await?;
        self.cache.put(at, 0, &body);
        Ok(body)
    }

    /// The piece of a chunk that contains `range`, and the range's offset in it.
    fn piece_of(&self, at: &Location, range: &Range<u32>) -> (u32, Range<u32>, Range<usize>) {
        let piece_bytes = self.piece_bytes();
        let piece = range.start / piece_bytes;
        let whole = piece * piece_bytes..at.body_len.min((piece + 1).saturating_mul(piece_bytes));
        assert!(range.start <= range.end && range.end <= whole.end, "{range:?} is not within the piece {whole:?}");
        let within = (range.start - whole.start) as usize..(range.end - whole.start) as usize;
        (piece, whole, within)
    }

    /// Bytes within one piece of a chunk, if the cache has that piece.
    pub(crate) fn cached(&self, at: &Location, range: &Range<u32>) -> Option<Bytes> {
        let (piece, _, within) = self.piece_of(at, range);
        Some(self.cache.get(at, piece)?.slice(within))
    }

    /// The same from the disk, of the record under `key`.
    pub(crate) async fn read_piece(
        &self,
        key: &[u8],
        at: &Location,
        range: Range<u32>,
        front: &RecordFront,
    ) -> Result<Bytes, LogError> {
        let (piece, whole, within) = self.piece_of(at, &range);
        // A small range is not worth reading the whole piece.
        if range.len() * 2 < whole.len() {
            return follow::read_part(&self.log, at, range, key, front).await;
        }
        let read = follow::read_part(&self.log, at, whole, key, front);
        Ok(self.cache.get_or_read(at, piece, read).await?.slice(within))
    }
}
