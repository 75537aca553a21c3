//! A body that goes to the disk in chunks before its record.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesOrdered;
use parking_lot::Mutex;
use steadfast_flow::BoxFuture;
use steadfast_log::{ChunkBuf, Location, Log, LogError, Priority, Reservation};

use crate::StoreError;
use crate::record::keys::Id;
use crate::shard::core::{Core, busy};

/// A body on its way in chunks.
pub(super) struct Chunking {
    pub(super) id: Id,
    head: Bytes,
    current: Option<(ChunkBuf, Reservation)>,
    // A mutex that is never locked: it makes the writer `Sync`, which its users' futures need to be `Send`.
    in_flight: Mutex<FuturesOrdered<BoxFuture<'static, Result<Location, LogError>>>>,
    pub(super) done: Vec<Location>,
    core: Arc<Core>,
    /// Its record was submitted: it ends when that is applied.
    pub(super) handed_over: bool,
}

impl Drop for Chunking {
    fn drop(&mut self) {
        if !self.handed_over {
            self.core.owners.end(&self.id);
        }
    }
}

impl Chunking {
    /// For a body of which every chunk has `head`. Its owner is `id` from now on.
    pub(super) fn begin(core: Arc<Core>, id: Id, head: Bytes) -> Self {
        core.owners.begin(id);
        Self { id, head, current: None, in_flight: Mutex::default(), done: Vec::new(), core, handed_over: false }
    }

    /// Takes `data`, with which the body has `taken` bytes of the `expected` ones. Waits while as much is on its way as may be.
    pub(super) async fn write(
        &mut self,
        log: &Log,
        mut data: &[u8],
        taken: u64,
        expected: Option<u64>,
    ) -> Result<(), StoreError> {
        let core = self.core.clone();
        let options = &core.options;
        while !data.is_empty() {
            let (mut chunk, room) = match self.current.take() {
                Some(current) => current,
                None => {
                    while self.in_flight.get_mut().len() >= options.chunks_in_flight_max.max(1) {
                        self.wait_one().await?;
                    }
                    let written = taken - data.len() as u64;
                    let left = expected.and_then(|all| all.checked_sub(written)).unwrap_or(u64::MAX);
                    let capacity = log.chunk_bytes(left.max(data.len() as u64), options.chunk_bytes.max(1));
                    // Chunks that are written give their room back only when they are taken in: whoever waits for room must
                    // go on taking in its own, or all wait for one another.
                    let reserve = core.reserve(log, capacity as u64, Priority::Write);
                    tokio::pin!(reserve);
                    let room = loop {
                        tokio::select! {
                            biased;
                            room = &mut reserve => break room?,
                            Some(location) = self.in_flight.get_mut().next(),
                                if !self.in_flight.get_mut().is_empty() => self.done.push(location?),
                        }
                    };
                    (log.chunk(capacity).await.map_err(busy)?, room)
                }
            };
            let (now, later) = data.split_at(chunk.room().min(data.len()));
            chunk.put(now);
            data = later;
            let full = chunk.room() == 0;
            self.current = Some((chunk, room));
            if full {
                self.launch(log)?;
                self.poke().await?;
            }
        }
        Ok(())
    }

    /// Waits until all that was taken is on the disk.
    pub(super) async fn settle(&mut self, log: &Log) -> Result<(), StoreError> {
        self.launch(log)?;
        self.wait_all().await
    }

    /// Waits until all that was sent off is on the disk.
    pub(super) async fn wait_all(&mut self) -> Result<(), StoreError> {
        while !self.in_flight.get_mut().is_empty() {
            self.wait_one().await?;
        }
        Ok(())
    }

    /// Sends the current chunk off.
    fn launch(&mut self, log: &Log) -> Result<(), StoreError> {
        let Some((chunk, room)) = self.current.take() else { return Ok(()) };
        if chunk.is_empty() {
            return Ok(());
        }
        let (log, head, core) = (log.clone(), self.head.clone(), self.core.clone());
        self.in_flight.get_mut().push_back(Box::pin(async move {
            let written = log.write_chunk(&room, head, chunk).await;
            core.note_full(&written);
            written
        }));
        Ok(())
    }

    /// Lets what is on its way go on, without waiting for it.
    async fn poke(&mut self) -> Result<(), StoreError> {
        while let std::task::Poll::Ready(Some(location)) = futures::poll!(self.in_flight.get_mut().next()) {
            self.done.push(location?);
        }
        Ok(())
    }

    async fn wait_one(&mut self) -> Result<(), StoreError> {
        if let Some(location) = self.core.unless_hanging(self.in_flight.get_mut().next()).await? {
            self.done.push(location?);
        }
        Ok(())
    }
}
