//! Replies on their way to the socket.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use steadfast_flow::Env;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::Export;
use crate::protocol::ReplyHeader;

/// Maximum number of replies that are written together.
const BATCH_REPLIES: usize = 64;
/// Batch size in bytes from which no further reply joins: the memory of a batch is free only when
/// all of it has been written.
const BATCH_BYTES: usize = 256 << 10;
/// Bytes that a client must take within the stall timeout.
pub(crate) const STALL_BYTES: usize = 1 << 20;

/// One reply, with the resources that it holds until it has been written.
pub(crate) struct Reply {
    pub(crate) header: ReplyHeader,
    pub(crate) payload: Bytes,
    pub(crate) _slot: OwnedSemaphorePermit,
    pub(crate) _bytes: Option<BytesHeld>,
}

/// Memory of a request, counted in the export.
pub(crate) struct BytesHeld {
    export: Arc<Export>,
    bytes: usize,
    _permit: OwnedSemaphorePermit,
}

impl BytesHeld {
    pub(crate) fn new(export: &Arc<Export>, bytes: u32, permit: OwnedSemaphorePermit) -> Self {
        let bytes = bytes as usize;
        export.bytes_in_flight.fetch_add(bytes, Relaxed);
        Self { export: export.clone(), bytes, _permit: permit }
    }
}

impl Drop for BytesHeld {
    fn drop(&mut self) {
        let before = self.export.bytes_in_flight.fetch_sub(self.bytes, Relaxed);
        assert!(before >= self.bytes, "the memory of a request was not counted");
    }
}

/// Writes replies until the channel closes, and then closes the sending side.
///
/// # Errors
/// The socket's; `TimedOut` when the client does not take the replies.
pub(crate) async fn write_replies(
    out: &mut (impl AsyncWrite + Unpin),
    replies: &mut mpsc::Receiver<Reply>,
    env: &Env,
    stall: Duration,
) -> io::Result<()> {
    let mut batch = Vec::with_capacity(BATCH_REPLIES);
    while let Some(first) = replies.recv().await {
        let mut bytes = first.payload.len();
        batch.push(first);
        while batch.len() < BATCH_REPLIES && bytes < BATCH_BYTES {
            let Ok(next) = replies.try_recv() else { break };
            bytes += next.payload.len();
            batch.push(next);
        }
        write_batch(out, &batch, env, stall).await?;
        batch.clear();
    }
    env.timeout(stall, out.shutdown()).await.unwrap_or(Ok(()))
}

async fn write_batch(
    out: &mut (impl AsyncWrite + Unpin),
    batch: &[Reply],
    env: &Env,
    stall: Duration,
) -> io::Result<()> {
    let parts = batch.iter().flat_map(|reply| [reply.header.as_slice(), &reply.payload]);
    let mut slices: Vec<_> = parts.filter(|part| !part.is_empty()).map(IoSlice::new).collect();
    let mut rest = &mut slices[..];
    let (mut deadline, mut taken) = (env.now() + stall, 0);
    while !rest.is_empty() {
        let left = deadline.saturating_sub(env.now());
        let Some(written) = env.timeout(left, out.write_vectored(rest)).await else {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take its replies"));
        };
        let written = written?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut rest, written);
        taken += written;
        if taken >= STALL_BYTES {
            (deadline, taken) = (env.now() + stall, 0);
        }
    }
    Ok(())
}
