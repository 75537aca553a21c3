//! Saturating clients: a batch waits whenever the committer looks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{AlignedBuf, Disk, DiskStats, Geometry, IoFuture, MemDisk};
use steadfast_flow::{BoxFuture, Env, Runtime, TokioRuntime};
use tokio::sync::Notify;

use super::harness::{Memory, format, options, record};
use crate::{Durability, ExtentCounts, Log, LogOptions, Priority, Reservation};

const EXTENT: u64 = 1 << 20;
const WRITE: Duration = Duration::from_millis(1);

/// A clock that advances with writes and during sleeps.
struct Clock {
    tokio: TokioRuntime,
    now_us: Arc<AtomicU64>,
}

impl Runtime for Clock {
    fn now(&self) -> Duration {
        Duration::from_micros(self.now_us.load(Ordering::SeqCst))
    }

    fn wall_ms(&self) -> u64 {
        0
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let (sleep, now_us) = (self.tokio.sleep(duration), self.now_us.clone());
        let until = now_us.load(Ordering::SeqCst) + duration.as_micros() as u64;
        Box::pin(async move {
            sleep.await;
            now_us.fetch_max(until, Ordering::SeqCst);
        })
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.tokio.spawn(name, task);
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        self.tokio.blocking(work)
    }

    fn random_u64(&self) -> u64 {
        self.tokio.random_u64()
    }
}

/// Submits another batch during each disk write while it has reservations.
#[derive(Default)]
struct Client {
    log: Mutex<Option<Log>>,
    rooms: Mutex<Vec<Reservation>>,
    submitted: AtomicU64,
    /// Extent counts at its last batch.
    at_last: Mutex<ExtentCounts>,
    done: Notify,
}

impl Client {
    fn submit(&self) {
        let Some(log) = self.log.lock().clone() else { return };
        let Some(room) = self.rooms.lock().pop() else {
            self.done.notify_one();
            return;
        };
        let n = self.submitted.fetch_add(1, Ordering::SeqCst);
        *self.at_last.lock() = log.extents();
        drop(log.submit(room, vec![record(n, 100)], Durability::Async).expect("accepted"));
    }

    fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::SeqCst)
    }
}

struct Busy {
    disk: MemDisk,
    client: Arc<Client>,
    now_us: Arc<AtomicU64>,
}

impl Busy {
    fn write(&self, work: IoFuture<()>) -> IoFuture<()> {
        let (client, now_us) = (self.client.clone(), self.now_us.clone());
        Box::pin(async move {
            client.submit();
            tokio::task::yield_now().await;
            now_us.fetch_add(WRITE.as_micros() as u64, Ordering::SeqCst);
            work.await
        })
    }
}

impl Disk for Busy {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        self.disk.read(offset, len)
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.write(self.disk.write(offset, data))
    }

    fn flush(&self) -> IoFuture<()> {
        self.write(self.disk.flush())
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.write(self.disk.write_flush(offset, data))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.disk.discard(offset, len)
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        self.disk.reserve(end)
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        self.disk.buffer(capacity)
    }

    fn stats(&self) -> DiskStats {
        self.disk.stats()
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }
}

/// A log, and a client with reservations for `batches` that has not begun.
async fn saturated(batches: usize) -> (Log, Arc<Client>) {
    let disk = MemDisk::fixed(65 * EXTENT);
    format(&disk, EXTENT).await;
    let (client, now_us) = (Arc::new(Client::default()), Arc::new(AtomicU64::new(0)));
    let busy = Busy { disk, client: client.clone(), now_us: now_us.clone() };
    let env = Env::new(Clock { tokio: TokioRuntime::current(), now_us });
    let mut options = LogOptions { prefill_ahead_bytes: 0, ..options() };
    options.compaction.enabled = false;
    let (log, _) = Log::open(Arc::new(busy), env, options, Arc::new(Memory::default())).await.expect("opens");
    for _ in 0..batches {
        let room = log.reserve(108, Priority::Write, Duration::ZERO).await.expect("there is room");
        client.rooms.lock().push(room);
    }
    *client.log.lock() = Some(log.clone());
    (log, client)
}

#[tokio::test]
async fn saturating_clients_asynchronous_commits_are_flushed_in_time() {
    let (log, client) = saturated(600).await;
    client.submit();
    client.done.notified().await;
    log.flush().await.expect("flushes");
    let status = log.status();
    assert!(status.frames > 500, "frame by frame: {}", status.frames);
    let lag = Duration::from_micros(status.async_lag_us_max);
    let window = options().async_window;
    assert!(lag >= window && lag <= window + 8 * WRITE, "{lag:?}");
    *client.log.lock() = None;
}

#[tokio::test]
async fn a_requested_flush_happens_under_saturation() {
    let (log, client) = saturated(600).await;
    client.submit();
    for _ in 0..10 {
        let before = client.submitted();
        log.flush().await.expect("flushes");
        let after = client.submitted();
        assert!(after < 600 && after - before < 30, "from {before} to {after}");
    }
    *client.log.lock() = None;
}

#[tokio::test]
async fn a_requested_roll_happens_under_saturation() {
    // All batches fit into one extent.
    let (log, client) = saturated(150).await;
    client.submit();
    log.flush().await.expect("flushes");
    log.shared.queue.want_roll();
    client.done.notified().await;
    let counts = *client.at_last.lock();
    assert_eq!(counts.sealed_commit, 1, "{counts:?}");
    *client.log.lock() = None;
}
