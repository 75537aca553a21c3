//! What the store needs of the log, in memory: stands in until the log's own handle is there. Nothing here is durable.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::Disk;
use steadfast_flow::Env;
use steadfast_log::{Applied, Applier, Batch, Committed, Durability, Location, LogError, Lsn, Priority};

/// Settings of the log.
#[derive(Debug, Clone, Default)]
pub struct LogOptions {}

/// State of the log.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct LogStatus {}

/// What recovery found.
#[derive(Debug, Clone, Default)]
pub struct RecoveryReport {}

struct Inner {
    state: Mutex<State>,
    applier: Arc<dyn Applier>,
    env: Env,
}

type Done = tokio::sync::oneshot::Sender<Result<Committed, LogError>>;

#[derive(Default)]
struct State {
    lsn: Lsn,
    at: u32,
    bodies: BTreeMap<u32, Bytes>,
    queue: std::collections::VecDeque<(Vec<Applied>, Done, Committed)>,
}

#[derive(Clone)]
pub(crate) struct Log(Arc<Inner>);

pub(crate) struct Reservation;

pub(crate) struct ExtentPin;

pub(crate) struct ChunkBuf {
    data: Vec<u8>,
    capacity: usize,
}

impl ChunkBuf {
    pub(crate) fn put(&mut self, data: &[u8]) {
        self.data.extend_from_slice(data);
    }

    pub(crate) fn room(&self) -> usize {
        self.capacity - self.data.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.data.len()
    }
}

pub(crate) struct Ticket {
    first: Lsn,
    done: tokio::sync::oneshot::Receiver<Result<Committed, LogError>>,
}

impl Ticket {
    pub(crate) fn first_lsn(&self) -> Lsn {
        self.first
    }
}

impl Future for Ticket {
    type Output = Result<Committed, LogError>;

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        std::pin::Pin::new(&mut self.done).poll(cx).map(|r| r.unwrap_or(Err(LogError::Closed)))
    }
}

impl Log {
    pub(crate) async fn open(
        _disk: Arc<dyn Disk>,
        env: Env,
        _options: LogOptions,
        applier: Arc<dyn Applier>,
    ) -> Result<(Self, RecoveryReport), LogError> {
        Ok((Self(Arc::new(Inner { state: Mutex::default(), applier, env })), RecoveryReport::default()))
    }

    pub(crate) async fn reserve(
        &self,
        _bytes: u64,
        _priority: Priority,
        _wait: Duration,
    ) -> Result<Reservation, LogError> {
        Ok(Reservation)
    }

    fn append(state: &mut State, head_len: usize, body: Bytes) -> Location {
        state.at += 64;
        let at =
            Location { extent: 0, epoch: 1, offset: state.at, head_len: head_len as u32, body_len: body.len() as u32 };
        state.bodies.insert(state.at, body);
        at
    }

    pub(crate) fn submit(&self, _r: Reservation, batch: Batch, durability: Durability) -> Result<Ticket, LogError> {
        let mut state = self.0.state.lock();
        let first = state.lsn + 1;
        let mut applied = Vec::new();
        for record in batch {
            state.lsn += 1;
            let lsn = state.lsn;
            let location = Self::append(&mut state, record.head.len(), record.body.concat().into());
            applied.push(Applied {
                lsn,
                version: record.version.unwrap_or(lsn),
                moved: record.version.is_some(),
                head: record.head,
                location,
            });
        }
        let (tx, rx) = tokio::sync::oneshot::channel();
        let durable = durability == Durability::Sync;
        state.queue.push_back((applied, tx, Committed { first_lsn: first, durable }));
        drop(state);
        let this = self.clone();
        self.0.env.spawn("journal", async move {
            // Popped and applied under one lock, so in order; never the lock of a caller.
            let mut state = this.0.state.lock();
            if let Some((applied, tx, committed)) = state.queue.pop_front() {
                this.0.applier.apply(&applied);
                let _ = tx.send(Ok(committed));
            }
        });
        Ok(Ticket { first, done: rx })
    }

    pub(crate) async fn chunk(&self, capacity: usize) -> Result<ChunkBuf, LogError> {
        Ok(ChunkBuf { data: Vec::with_capacity(capacity), capacity })
    }

    pub(crate) async fn write_chunk(
        &self,
        _r: &Reservation,
        head: Bytes,
        chunk: ChunkBuf,
    ) -> Result<Location, LogError> {
        Ok(Self::append(&mut self.0.state.lock(), head.len(), chunk.data.into()))
    }

    pub(crate) fn pin(&self, _extent: u32, _epoch: u64) -> Option<ExtentPin> {
        Some(ExtentPin)
    }

    pub(crate) async fn read(&self, location: Location, range: Range<u32>) -> Result<Bytes, LogError> {
        let state = self.0.state.lock();
        let body = state.bodies.get(&location.offset).ok_or(LogError::Moved)?;
        Ok(body.slice(range.start as usize..range.end as usize))
    }

    pub(crate) fn credit(&self, _extent: u32, _epoch: u64, _bytes: u64) {}

    pub(crate) fn retire(&self, _extent: u32, _epoch: u64, _bytes: u64) {}

    pub(crate) fn footprint(location: &Location) -> u64 {
        64 + u64::from(location.head_len) + u64::from(location.body_len)
    }

    pub(crate) async fn flush(&self) -> Result<Lsn, LogError> {
        Ok(self.0.state.lock().lsn)
    }

    pub(crate) fn status(&self) -> LogStatus {
        LogStatus::default()
    }

    pub(crate) async fn close(&self) -> Result<(), LogError> {
        Ok(())
    }
}
