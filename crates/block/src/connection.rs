//! The transmission phase of a connection: requests and replies.
//!
//! Three futures run in one task. The reader parses requests and receives payloads. The worker
//! polls the operations that the disk carries out. The writer sends replies. A change that has
//! begun is completed even when the client closes the connection. No change begins after the close,
//! because it could land later than a write that the client sends over its next connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use steadfast_flow::{BoxFuture, Env};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::Export;
use crate::changes::Piece;
use crate::export::Place;
use crate::options::PIECE_BYTES;
use crate::peer::Peer;
use crate::protocol::{Command, Errno, REQUEST_BYTES, ReplyHeader, Request};
use crate::replies::{BytesHeld, Reply, STALL_BYTES, write_replies};

/// The outcome of the handshake.
pub(crate) struct Session {
    pub(crate) place: Place,
    pub(crate) structured: bool,
}

/// A request, or a piece of one. Only the last piece yields the reply.
type Work = BoxFuture<'static, Option<Reply>>;

/// Serves requests until the client ends the session, breaks the protocol or disconnects, or the
/// server shuts down.
pub(crate) async fn transmit(
    mut input: impl AsyncRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
    peer: &Peer,
    session: Session,
    env: &Env,
    mut shutdown: watch::Receiver<bool>,
) -> io::Result<()> {
    let export = session.place.0.clone();
    let limits = export.limits;
    let (work_tx, work_rx) = mpsc::channel(limits.requests_in_flight_max);
    // Every reply holds a slot, so the queue of replies is never full.
    let (reply_tx, mut reply_rx) = mpsc::channel(limits.requests_in_flight_max);
    let broken = Notify::new();
    let reader = async {
        let receiver = Receiver {
            slots: Arc::new(Semaphore::new(limits.requests_in_flight_max)),
            bytes: Arc::new(Semaphore::new(limits.connection_bytes_max)),
            structured: session.structured,
            work: work_tx,
            env: env.clone(),
            peer,
            export,
        };
        // The end of this future drops the receiver, which ends the worker, which ends the writer.
        tokio::select! {
            result = receiver.run(&mut input) => result,
            () = broken.notified() => Ok(()),
            _ = shutdown.wait_for(|shutdown| *shutdown) => Ok(()),
        }
    };
    let writer = async {
        let result = write_replies(&mut output, &mut reply_rx, env, limits.stall_timeout).await;
        if result.is_err() {
            // The worker's remaining replies are dropped from here on.
            reply_rx.close();
            broken.notify_one();
        }
        result
    };
    let (read, (), written) = futures::join!(reader, work_off(work_rx, reply_tx), writer);
    read.and(written)
}

/// Polls the requests in progress until the reader has ended and all of them are complete.
async fn work_off(mut work: mpsc::Receiver<Work>, replies: mpsc::Sender<Reply>) {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(reply) = under_way.next(), if !under_way.is_empty() => {
                if let Some(reply) = reply {
                    // The send fails when the connection is broken; the reply is then of no use.
                    let _ = replies.send(reply).await;
                }
            }
            Some(one) = work.recv() => under_way.push(one),
            else => return,
        }
    }
}

/// A write whose pieces are in progress.
struct PiecedWrite {
    request: Request,
    export: Arc<Export>,
    /// Pieces that have not ended.
    left: AtomicUsize,
    outcome: Mutex<Outcome>,
}

struct Outcome {
    error: Option<Errno>,
    /// The request slot, which the reply keeps until it has been written.
    slot: Option<OwnedSemaphorePermit>,
    /// Memory of the request, released when the last piece has ended.
    bytes: Option<BytesHeld>,
}

impl PiecedWrite {
    /// Writes one piece. The last one to end builds the reply, after the flush if `FUA` is set.
    async fn write(self: Arc<Self>, piece: Piece, only: bool) -> Option<Reply> {
        let result = self.export.write(piece, only && self.request.fua()).await;
        if let Err(error) = result {
            self.outcome.lock().error.get_or_insert(error);
        }
        if self.left.fetch_sub(1, AcqRel) > 1 {
            return None;
        }
        let (error, slot) = {
            let mut outcome = self.outcome.lock();
            outcome.bytes = None;
            (outcome.error, outcome.slot.take())
        };
        let error = match error {
            None if self.request.fua() && !only => self.export.sync().await.err(),
            error => error,
        };
        slot.map(|slot| reply_of(self.request.cookie, error, slot))
    }
}

/// Builds a reply without data.
fn reply_of(cookie: u64, error: Option<Errno>, slot: OwnedSemaphorePermit) -> Reply {
    Reply { header: ReplyHeader::simple(cookie, error), payload: Bytes::new(), _slot: slot, _bytes: None }
}

/// The receiving side of a connection.
struct Receiver<'a> {
    export: Arc<Export>,
    slots: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    structured: bool,
    work: mpsc::Sender<Work>,
    env: Env,
    peer: &'a Peer,
}

impl Receiver<'_> {
    async fn run(&self, input: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        loop {
            let slot = acquire(&self.slots, 1).await?;
            let mut header = [0; REQUEST_BYTES];
            match input.read_exact(&mut header).await {
                Ok(_) => {}
                // Clients may close the connection without `DISCONNECT`.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            }
            let Some(request) = Request::parse(&header) else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a request with a wrong magic"));
            };
            let max = self.export.limits.request_bytes_max;
            let (size, read_only) = (self.export.size(), self.export.read_only());
            let checked = request.check(size, read_only, self.structured, max);
            match (request.command, checked) {
                (Command::Disconnect, _) => return Ok(()),
                (_, Err(error)) => self.refuse(input, request, error, slot).await?,
                (Command::Write, Ok(())) => self.receive(input, request, slot).await?,
                (_, Ok(())) => {
                    let bytes = match request.command {
                        Command::Read => Some(self.hold(request.length).await?),
                        Command::Trim | Command::WriteZeroes => {
                            self.peer.check()?;
                            None
                        }
                        _ => None,
                    };
                    self.start(carry_out(self.export.clone(), request, self.structured, slot, bytes)).await?;
                }
            }
        }
    }

    /// Answers an invalid request. The payload of an invalid write is skipped. A payload above
    /// twice the largest request ends the connection.
    async fn refuse(
        &self,
        input: &mut (impl AsyncRead + Unpin),
        request: Request,
        error: Errno,
        slot: OwnedSemaphorePermit,
    ) -> io::Result<()> {
        self.export.counters.refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if request.command == Command::Write {
            let max = u64::from(self.export.limits.request_bytes_max) * 2;
            if u64::from(request.length) > max {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a write far above the largest request"));
            }
            self.skip(input, request.length as usize).await?;
        }
        let header = match request.command {
            Command::Read if self.structured => ReplyHeader::error(request.cookie, error),
            _ => ReplyHeader::simple(request.cookie, Some(error)),
        };
        let reply = Reply { header, payload: Bytes::new(), _slot: slot, _bytes: None };
        self.start(async { Some(reply) }).await
    }

    async fn skip(&self, input: &mut (impl AsyncRead + Unpin), length: usize) -> io::Result<()> {
        let mut scratch = vec![0; length.min(64 << 10)];
        let mut left = length;
        while left > 0 {
            let want = left.min(scratch.len());
            self.fill(input, scratch.get_mut(..want).unwrap_or_default()).await?;
            left -= want;
        }
        Ok(())
    }

    /// Receives the payload of a write. Each piece is submitted to the disk as soon as it has
    /// arrived.
    async fn receive(
        &self,
        input: &mut (impl AsyncRead + Unpin),
        request: Request,
        slot: OwnedSemaphorePermit,
    ) -> io::Result<()> {
        let bytes = self.hold(request.length).await?;
        self.export.count_write();
        let (offset, length) = (request.offset, u64::from(request.length));
        let count = self.export.pieces(offset, length).count();
        if count == 0 {
            return self.start(async move { Some(reply_of(request.cookie, None, slot)) }).await;
        }
        let write = Arc::new(PiecedWrite {
            request,
            export: self.export.clone(),
            left: AtomicUsize::new(count),
            outcome: Mutex::new(Outcome { error: None, slot: Some(slot), bytes: Some(bytes) }),
        });
        for (at, length) in self.export.pieces(offset, length) {
            let mut piece = self.export.piece(at, length).await;
            self.fill(input, piece.payload()).await?;
            self.peer.check()?;
            self.start(write.clone().write(piece, count == 1)).await?;
        }
        Ok(())
    }

    /// Reads a part of a payload, at most one piece. A client that stalls here is disconnected,
    /// because it holds memory.
    async fn fill(&self, input: &mut (impl AsyncRead + Unpin), payload: &mut [u8]) -> io::Result<()> {
        const { assert!(PIECE_BYTES <= STALL_BYTES, "the timeout is for a whole piece") };
        let stall = self.export.limits.stall_timeout;
        match self.env.timeout(stall, input.read_exact(payload)).await {
            Some(result) => result.map(drop),
            None => Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not send its payload")),
        }
    }

    /// Waits until `bytes` fit in the connection's memory, or for a long request in the memory
    /// shared by the export.
    async fn hold(&self, bytes: u32) -> io::Result<BytesHeld> {
        // Each connection has its own memory, so a client that takes no replies cannot delay other
        // clients.
        let own = bytes as usize <= self.export.limits.connection_bytes_max;
        let permit = acquire(if own { &self.bytes } else { &self.export.large }, bytes).await?;
        Ok(BytesHeld::new(&self.export, bytes, permit))
    }

    async fn start(&self, work: impl Future<Output = Option<Reply>> + Send + 'static) -> io::Result<()> {
        self.work.send(Box::pin(work)).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

async fn acquire(semaphore: &Arc<Semaphore>, count: u32) -> io::Result<OwnedSemaphorePermit> {
    semaphore.clone().acquire_many_owned(count).await.map_err(io::Error::other)
}

/// Carries out a request that has no payload.
async fn carry_out(
    export: Arc<Export>,
    request: Request,
    structured: bool,
    slot: OwnedSemaphorePermit,
    bytes: Option<BytesHeld>,
) -> Option<Reply> {
    let Request { cookie, offset, length, .. } = request;
    let (fua, long) = (request.fua(), u64::from(length));
    let result = match request.command {
        Command::Read => {
            let (header, payload) = match (export.read(offset, length).await, structured) {
                (Ok(data), true) => (ReplyHeader::data(cookie, offset, length), data),
                (Ok(data), false) => (ReplyHeader::simple(cookie, None), data),
                (Err(error), true) => (ReplyHeader::error(cookie, error), Bytes::new()),
                (Err(error), false) => (ReplyHeader::simple(cookie, Some(error)), Bytes::new()),
            };
            return Some(Reply { header, payload, _slot: slot, _bytes: bytes });
        }
        Command::Flush => export.flush().await,
        Command::Trim => export.trim(offset, long, fua).await,
        Command::WriteZeroes => export.write_zeroes(offset, long, fua).await,
        Command::Write | Command::Disconnect | Command::Unknown(_) => Err(Errno::Invalid),
    };
    Some(reply_of(cookie, result.err(), slot))
}
