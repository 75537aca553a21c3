//! A body that goes to the disk in chunks before its record.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use steadfast_flow::stages::{self, Stage};
use steadfast_log::{ChunkBuf, Location, LogError, PendingChunk, Priority, Reservation};

use crate::StoreError;
use crate::record::keys::Id;
use crate::shard::writes::{Writes, busy};

/// The smallest chunks of a slow body, as a divisor of the usual size. Such a body holds little of
/// the budget for which other writers wait.
const SLOW_DIVISOR: usize = 16;

/// A chunk that is being filled.
struct Filling {
    chunk: ChunkBuf,
    room: Reservation,
    since: Duration,
}

/// A body that is being written in chunks.
pub(super) struct Chunking {
    pub(super) id: Id,
    head: Bytes,
    current: Option<Filling>,
    /// Bytes of the next chunk, at most.
    target: usize,
    /// The log writes each chunk in a task: a stalled client must not hold up a write, or the
    /// budget that the write holds.
    in_flight: VecDeque<PendingChunk>,
    pub(super) done: Vec<Location>,
    writes: Arc<Writes>,
    /// Whether its record was submitted: the owner ends when the record is applied.
    pub(super) handed_over: bool,
}

impl Drop for Chunking {
    fn drop(&mut self) {
        if !self.handed_over {
            self.writes.applied.owners.end(&self.id);
        }
    }
}

impl Chunking {
    /// Begins a body of chunks with this `head`. Its owner is `id` from now on.
    pub(super) fn begin(writes: Arc<Writes>, id: Id, head: Bytes) -> Self {
        writes.applied.owners.begin(id);
        let target = writes.applied.options.chunk_bytes.max(1);
        Self {
            id,
            head,
            current: None,
            target,
            in_flight: VecDeque::new(),
            done: Vec::new(),
            writes,
            handed_over: false,
        }
    }

    /// Takes `data`; with it the body has `taken` bytes of the `expected` ones. Waits while the
    /// maximum is in flight.
    pub(super) async fn write(&mut self, mut data: &[u8], taken: u64, expected: Option<u64>) -> Result<(), StoreError> {
        let writes = self.writes.clone();
        let (log, options) = (&writes.log, &writes.applied.options);
        assert!(!self.handed_over && taken >= data.len() as u64, "bytes after the end of a body");
        if self.current.as_ref().is_some_and(|filling| writes.wanted.is_wanted(filling.since)) {
            self.give_up();
        }
        while !data.is_empty() {
            let mut filling = match self.current.take() {
                Some(filling) => filling,
                None => {
                    while self.in_flight.len() >= options.chunks_in_flight_max.max(1) {
                        self.wait_one().await?;
                    }
                    let written = taken - data.len() as u64;
                    let left = expected.and_then(|all| all.checked_sub(written)).unwrap_or(u64::MAX);
                    let capacity = log.chunk_bytes(left.max(data.len() as u64), self.target);
                    writes.hang.unless_hanging(log.hold().unpressed()).await?;
                    let room = writes.reserve(capacity as u64, Priority::Write).await?;
                    let lap = stages::enter(Stage::Reserve);
                    let chunk = writes.wanted.wait(log.chunk(capacity)).await.map_err(busy)?;
                    drop(lap);
                    Filling { chunk, room, since: writes.applied.env.now() }
                }
            };
            let (now, later) = data.split_at(filling.chunk.room().min(data.len()));
            filling.chunk.put(now);
            data = later;
            let full = filling.chunk.room() == 0;
            if full && self.target < options.chunk_bytes && !writes.wanted.is_wanted(filling.since) {
                self.target = (self.target * 2).min(options.chunk_bytes);
            }
            self.current = Some(filling);
            if full {
                self.launch();
                self.collect_finished()?;
            }
        }
        Ok(())
    }

    /// Since when it has held budget for bytes that have not arrived; `None`: it holds none.
    pub(super) fn holds_since(&self) -> Option<Duration> {
        self.current.as_ref().map(|filling| filling.since)
    }

    /// Releases the budget held for bytes that have not arrived, and asks for less the next time.
    pub(super) fn give_up(&mut self) {
        let least = (self.writes.applied.options.chunk_bytes / SLOW_DIVISOR).max(1);
        self.target = (self.target / 4).max(least);
        self.launch();
    }

    /// Waits until all taken bytes are on the disk.
    pub(super) async fn settle(&mut self) -> Result<(), StoreError> {
        self.launch();
        self.wait_all().await
    }

    /// Waits until all launched chunks are on the disk.
    pub(super) async fn wait_all(&mut self) -> Result<(), StoreError> {
        while !self.in_flight.is_empty() {
            self.wait_one().await?;
        }
        Ok(())
    }

    /// Launches the current chunk. The log releases the budget after the write, whether or not the
    /// body is still wanted.
    fn launch(&mut self) {
        let Some(Filling { chunk, room, .. }) = self.current.take() else { return };
        if chunk.is_empty() {
            return;
        }
        let head = self.head.clone();
        self.in_flight.push_back(self.writes.log.write_chunk(&room, head, chunk));
    }

    /// Collects finished writes, without waiting.
    fn collect_finished(&mut self) -> Result<(), StoreError> {
        while let Some(outcome) = self.in_flight.front_mut().and_then(PendingChunk::try_outcome) {
            self.take(outcome)?;
        }
        Ok(())
    }

    /// Removes the first chunk in flight, which has this outcome.
    fn take(&mut self, outcome: Result<Location, LogError>) -> Result<(), StoreError> {
        // A failed one is removed as well: it has no second answer.
        self.in_flight.pop_front();
        self.writes.note_full(&outcome);
        self.done.push(outcome?);
        Ok(())
    }

    async fn wait_one(&mut self) -> Result<(), StoreError> {
        let _lap = stages::enter(Stage::Disk);
        let Some(first) = self.in_flight.front_mut() else { return Ok(()) };
        let outcome = self.writes.hang.unless_hanging(first).await?;
        self.take(outcome)
    }
}
