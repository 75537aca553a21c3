//! What compaction asks the layer above about chunks.

use std::collections::BTreeMap;

use bytes::Bytes;
use steadfast_flow::BoxFuture;

use crate::log::Log;
use crate::{ChunkMove, Location, LogError};

/// The owners of chunks in the layer above: the records that name them.
pub trait ChunkOwners: Send + Sync + 'static {
    /// Whether a chunk, whose head was given to `Log::write_chunk`, is still referenced, or may
    /// become so because its upload is in progress. The manifest may have to be read from `log`.
    fn chunk_is_live<'a>(&'a self, log: &'a Log, head: &'a [u8], location: &'a Location) -> BoxFuture<'a, bool>;

    /// Deletes what a live chunk belongs to, if that is not worth moving. Returns whether something
    /// was deleted, after the delete has been applied. The log then asks again whether the chunk is
    /// live.
    fn discard(&self, head: &[u8]) -> BoxFuture<'_, bool> {
        let _ = head;
        Box::pin(async { false })
    }

    /// Commits records to `log` that refer to the copies instead of the originals, and returns when
    /// they are durable. Skips chunks without a referrer. `moves` is keyed by the heads of the
    /// chunks.
    fn repoint<'a>(
        &'a self,
        log: &'a Log,
        moves: BTreeMap<Bytes, Vec<ChunkMove>>,
    ) -> BoxFuture<'a, Result<(), LogError>>;
}
