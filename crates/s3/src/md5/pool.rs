//! MD5 of the bodies of large uploads, off the threads that serve requests, many uploads at once.
//!
//! Each upload has a [`Md5Stream`]; what it is given waits, bounded, until a worker takes the pieces of all streams that have some and
//! advances them together ([`lanes`]). Nobody waits to fill the lanes: they fill by themselves when there is more to hash than one core does.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, oneshot};

use super::lanes::{self, BLOCK, INITIAL, Job, LANES_MAX};

/// Bytes that may wait in one stream; its owner waits for room above.
const PENDING_BYTES_MAX: usize = 512 << 10;

/// The chaining value of a stream and the bytes that do not fill a block yet.
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
    /// In the pool's queue or with a worker.
    queued: bool,
    finish: Option<oneshot::Sender<[u8; 16]>>,
}

struct Stream {
    waiting: Mutex<Waiting>,
    /// Locked by the one worker that has the stream, so never contended.
    chain: Mutex<Chain>,
    room: Notify,
}

#[derive(Default)]
struct Queue {
    streams: VecDeque<Arc<Stream>>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

/// Workers that compute MD5. Dropping it ends them when they have finished what they were given.
pub(crate) struct Md5Pool(Arc<Shared>);

impl Md5Pool {
    /// Starts the workers: one where the CPU has wide vectors, else one for each core.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub(crate) fn new() -> std::io::Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let shared = Arc::new(Shared::default());
        let workers = if lanes::lanes() > 1 { 1 } else { threads };
        for i in 0..workers {
            let shared = shared.clone();
            std::thread::Builder::new().name(format!("md5-{i}")).spawn(move || work(&shared))?;
        }
        Ok(Self(shared))
    }

    /// A new stream of no bytes.
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

/// The MD5 of one body in the making.
pub(crate) struct Md5Stream {
    shared: Arc<Shared>,
    stream: Arc<Stream>,
}

impl Md5Stream {
    /// Appends `piece`; waits while more than a bound is ahead of it.
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

    /// The digest of everything that was appended. `None` when the pool has been dropped.
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

    /// As long as there are streams (bounded by the requests that are served), so long is the queue at most.
    fn enqueue(&self) {
        let mut queue = self.shared.queue.lock();
        if queue.closed {
            // No worker may be left: let go of the digest's sender, so that nobody waits for it.
            self.stream.waiting.lock().finish = None;
            return;
        }
        queue.streams.push_back(self.stream.clone());
        drop(queue);
        self.shared.work.notify_one();
    }
}

fn work(shared: &Shared) {
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
                // The receiver may have gone with its request.
                let _ = finish.send(lanes::finish(chain.state, &chain.rest[..chain.rest_len], chain.length));
            }
        }
    }
}

/// Advances each stream by the pieces that wait in it now.
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
    /// Takes `piece` in, but for its whole blocks, which the job that is returned stands for.
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
    async fn a_dropped_pool_leaves_nobody_waiting() {
        let pool = Md5Pool::new().expect("threads");
        let (mut early, late) = (pool.stream(), pool.stream());
        early.update(Bytes::from_static(b"abc")).await;
        drop(pool);
        // Given before the end or after it: an answer either way.
        let _ = early.finish().await;
        assert_eq!(late.finish().await, None);
    }
}
