//! MD5 of the bodies of large uploads, off the threads that serve requests, many uploads at once.
//!
//! Each upload has a [`Md5Stream`], which holds a bounded queue of pieces. A worker takes the
//! queued pieces of all streams and advances them together ([`lanes`]). The worker does not wait
//! for the lanes to fill: they fill when there is more to hash than one core can compute.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, oneshot};

use super::lanes::{self, BLOCK, INITIAL, Job, LANES_MAX};

/// Bytes that may be queued in one stream; above this, its owner waits.
const PENDING_BYTES_MAX: usize = 512 << 10;

/// The chaining value of a stream and the bytes that do not yet fill a block.
struct Chain {
    state: [u32; 4],
    rest: [u8; BLOCK],
    rest_len: usize,
    length: u64,
}

#[derive(Default)]
struct Waiting {
    pieces: VecDeque<Bytes>,
    bytes: usize,
    /// Whether the stream is in the pool's queue or with a worker.
    queued: bool,
    finish: Option<oneshot::Sender<[u8; 16]>>,
}

struct Stream {
    waiting: Mutex<Waiting>,
    /// Locked only by the one worker that has the stream, so never contended.
    chain: Mutex<Chain>,
    room: Notify,
}

#[derive(Default)]
struct Queue {
    streams: VecDeque<Arc<Stream>>,
    closed: bool,
}

#[derive(Default)]
struct PoolShared {
    queue: Mutex<Queue>,
    work: Condvar,
}

/// Workers that compute MD5. When the pool is dropped, they finish the queued data and end.
pub(crate) struct Md5Pool(Arc<PoolShared>);

impl Md5Pool {
    /// Starts the workers: one where the CPU has wide vectors, else one for each core.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub(crate) fn new() -> std::io::Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let shared = Arc::new(PoolShared::default());
        let workers = if lanes::lanes() > 1 { 1 } else { threads };
        for i in 0..workers {
            let shared = shared.clone();
            std::thread::Builder::new().name(format!("md5-{i}")).spawn(move || work(&shared))?;
        }
        Ok(Self(shared))
    }

    /// A new, empty stream.
    pub(crate) fn stream(&self) -> Md5Stream {
        let chain = Chain { state: INITIAL, rest: [0; BLOCK], rest_len: 0, length: 0 };
        let stream = Stream { waiting: Mutex::default(), chain: Mutex::new(chain), room: Notify::new() };
        Md5Stream { shared: self.0.clone(), stream: Arc::new(stream) }
    }
}

impl Drop for Md5Pool {
    fn drop(&mut self) {
        self.0.queue.lock().closed = true;
        self.0.work.notify_all();
    }
}

/// The MD5 of one body under computation.
pub(crate) struct Md5Stream {
    shared: Arc<PoolShared>,
    stream: Arc<Stream>,
}

impl Md5Stream {
    /// Appends `piece`; waits while more than [`PENDING_BYTES_MAX`] bytes are queued.
    pub(crate) async fn update(&mut self, piece: Bytes) {
        while self.stream.waiting.lock().bytes > PENDING_BYTES_MAX {
            self.stream.room.notified().await;
        }
        let queue = {
            let mut waiting = self.stream.waiting.lock();
            waiting.bytes += piece.len();
            waiting.pieces.push_back(piece);
            !std::mem::replace(&mut waiting.queued, true)
        };
        if queue {
            self.enqueue();
        }
    }

    /// The digest of all appended bytes; `None` when the pool has been dropped.
    pub(crate) async fn finish(self) -> Option<[u8; 16]> {
        let (tx, rx) = oneshot::channel();
        let queue = {
            let mut waiting = self.stream.waiting.lock();
            waiting.finish = Some(tx);
            !std::mem::replace(&mut waiting.queued, true)
        };
        if queue {
            self.enqueue();
        }
        rx.await.ok()
    }

    /// Queues the stream. The queue is at most as long as the number of streams, which the bound on
    /// requests limits.
    fn enqueue(&self) {
        let mut queue = self.shared.queue.lock();
        if queue.closed {
            // No worker may be left: drop the sender of the digest, so that its receiver does not
            // wait.
            self.stream.waiting.lock().finish = None;
            return;
        }
        queue.streams.push_back(self.stream.clone());
        drop(queue);
        self.shared.work.notify_one();
    }
}

fn work(shared: &PoolShared) {
    let width = lanes::lanes();
    loop {
        let batch: Vec<Arc<Stream>> = {
            let mut queue = shared.queue.lock();
            while queue.streams.is_empty() {
                if queue.closed {
                    return;
                }
                shared.work.wait(&mut queue);
            }
            let n = queue.streams.len().min(width);
            queue.streams.drain(..n).collect()
        };
        hash(&batch);
        for stream in batch {
            let mut waiting = stream.waiting.lock();
            if !waiting.pieces.is_empty() {
                drop(waiting);
                shared.queue.lock().streams.push_back(stream);
                continue;
            }
            waiting.queued = false;
            if let Some(finish) = waiting.finish.take() {
                let chain = stream.chain.lock();
                // The receiver is dropped when its request has ended.
                let _ = finish.send(lanes::finish(chain.state, &chain.rest[..chain.rest_len], chain.length));
            }
        }
    }
}

/// Advances each stream by the pieces queued in it now.
fn hash(batch: &[Arc<Stream>]) {
    let mut chains: Vec<_> = batch.iter().map(|stream| stream.chain.lock()).collect();
    let mut todo: Vec<VecDeque<Bytes>> =
        batch.iter().map(|stream| std::mem::take(&mut stream.waiting.lock().pieces)).collect();
    loop {
        let pieces: Vec<Option<Bytes>> = todo.iter_mut().map(VecDeque::pop_front).collect();
        if pieces.iter().all(Option::is_none) {
            break;
        }
        let mut jobs = Vec::with_capacity(LANES_MAX);
        for (chain, piece) in chains.iter_mut().zip(&pieces) {
            let Some(piece) = piece else { continue };
            if let Some(job) = chain.start(piece) {
                jobs.push(job);
            }
        }
        lanes::advance(&mut jobs);
        for (stream, piece) in batch.iter().zip(pieces) {
            let Some(piece) = piece else { continue };
            stream.waiting.lock().bytes -= piece.len();
            stream.room.notify_one();
        }
    }
}

impl Chain {
    /// Adds `piece`. The returned job stands for its whole blocks, which are not yet computed.
    fn start<'a>(&'a mut self, mut piece: &'a [u8]) -> Option<Job<'a>> {
        self.length += piece.len() as u64;
        if self.rest_len > 0 {
            let n = piece.len().min(BLOCK - self.rest_len);
            self.rest[self.rest_len..self.rest_len + n].copy_from_slice(&piece[..n]);
            self.rest_len += n;
            piece = &piece[n..];
            if self.rest_len < BLOCK {
                return None;
            }
            lanes::advance(&mut [Job { state: &mut self.state, data: &self.rest }]);
            self.rest_len = 0;
        }
        let (whole, rest) = piece.split_at(piece.len() / BLOCK * BLOCK);
        self.rest[..rest.len()].copy_from_slice(rest);
        self.rest_len = rest.len();
        (!whole.is_empty()).then_some(Job { state: &mut self.state, data: whole })
    }
}

#[cfg(test)]
mod tests {
    use ::md5::{Digest, Md5};

    use super::*;

    #[allow(clippy::disallowed_methods, reason = "real threads are what is tested")]
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_streams_in_odd_pieces_agree_with_the_library() {
        let pool = Arc::new(Md5Pool::new().expect("threads"));
        let tasks: Vec<_> = (0..40usize)
            .map(|i| {
                let pool = pool.clone();
                tokio::task::spawn(async move {
                    let data: Vec<u8> = (0..i * 40_009).map(|n| (n * 31 + i) as u8).collect();
                    let mut stream = pool.stream();
                    let (mut at, mut step) = (0, 1 + i * 13);
                    while at < data.len() {
                        let end = data.len().min(at + step);
                        stream.update(Bytes::copy_from_slice(&data[at..end])).await;
                        (at, step) = (end, (step * 7 + 5) % 70_000 + 1);
                    }
                    let expected: [u8; 16] = Md5::digest(&data).into();
                    assert_eq!(stream.finish().await, Some(expected), "stream {i}");
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
    }

    #[tokio::test]
    async fn a_dropped_pool_ends_every_wait() {
        let pool = Md5Pool::new().expect("threads");
        let (mut early, late) = (pool.stream(), pool.stream());
        early.update(Bytes::from_static(b"abc")).await;
        drop(pool);
        // Queued before or after the workers end: the call returns either way.
        let _ = early.finish().await;
        assert_eq!(late.finish().await, None);
    }
}
