//! A socket that limits slow readers and lets the peer read the last answer before closing.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use steadfast_flow::{BoxFuture, Connection, Env, Patience};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that a client may still send after its last answer: more than the parts that SDKs send.
const LINGER_BYTES_MAX: u64 = 128 << 20;
/// The time for which a lingering connection may receive nothing.
const LINGER_SILENCE: Duration = Duration::from_secs(5);

/// The state that a connection shares with the request being served.
pub(crate) struct ConnectionState {
    /// Whether the client may still be sending a request that has been answered.
    pub(crate) linger: AtomicBool,
    /// Whether a request has begun. Its answer starts with the full patience.
    pub(crate) renewed: AtomicBool,
    /// The record that the port keeps of this connection.
    pub(crate) connection: Connection,
}

impl ConnectionState {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { linger: AtomicBool::new(false), renewed: AtomicBool::new(false), connection }
    }
}

/// Wraps a connection. If the peer reads too slowly for too long, the write fails with `TimedOut`.
/// The failure ends the connection and releases the resources of its response. hyper itself waits
/// for a reader without limit. Reads pass through: only the layer above can tell an idle client
/// from a stalled one.
///
/// A socket closed with unread bytes in it resets the connection, and the reset overtakes the
/// answer. A client that gets an early answer (a refusal, or `SlowDown`) then sees a broken pipe
/// instead. So, when `linger` is set, closing first sends the end of the stream. It then receives
/// and discards bytes within bounds, as nginx's `lingering_close` does.
pub struct StallIo<I> {
    inner: I,
    env: Env,
    limit: Duration,
    patience: Patience,
    timer: Option<BoxFuture<'static, ()>>,
    waits: bool,
    state: Arc<ConnectionState>,
    lingering: Option<Lingering>,
}

/// A connection after its last answer.
struct Lingering {
    bytes_left: u64,
    /// The latest end.
    end: Duration,
    /// The end if no byte arrives.
    silent_end: Duration,
    timer: Option<BoxFuture<'static, ()>>,
}

// The boxed timer is never pinned in place; it is moved as a whole.
impl<I: Unpin> Unpin for StallIo<I> {}

impl<I> StallIo<I> {
    /// Wraps `inner`. `limit` is the time by which a reader may lag behind `bytes_s` bytes a
    /// second, and the longest time for which a close lingers.
    pub(crate) fn new(inner: I, env: Env, limit: Duration, bytes_s: u64, state: Arc<ConnectionState>) -> Self {
        let patience = Patience::new(limit, bytes_s);
        Self { inner, env, limit, patience, timer: None, waits: false, state, lingering: None }
    }

    /// Checks the result of a write; `moved` returns the bytes written.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
        moved: impl Fn(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        if self.state.renewed.load(Relaxed) {
            self.state.renewed.store(false, Relaxed);
            self.patience.renew();
        }
        if let Poll::Ready(done) = polled {
            let bytes = done.as_ref().map_or(0, &moved) as u64;
            if self.waits || bytes > 0 && !self.patience.is_whole() {
                self.patience.moved(self.env.now(), bytes);
            }
            self.waits = false;
            return Poll::Ready(done);
        }
        loop {
            self.waits = true;
            let left = self.patience.waits(self.env.now());
            if left.is_zero() {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly")));
            }
            // The timer may belong to an earlier wait. Then it only causes another check.
            let timer = self.timer.get_or_insert_with(|| self.env.sleep(left));
            ready!(timer.as_mut().poll(cx));
            self.timer = None;
        }
    }
}

impl<I: AsyncRead + Unpin> StallIo<I> {
    /// Receives and discards bytes until the peer closes or a bound is reached.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(state) = &mut self.lingering else { return Poll::Ready(()) };
        let mut space = [std::mem::MaybeUninit::uninit(); 16 << 10];
        loop {
            let mut buf = ReadBuf::uninit(&mut space);
            match Pin::new(&mut self.inner).poll_read(cx, &mut buf) {
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(())) => {
                    let count = buf.filled().len() as u64;
                    state.bytes_left = state.bytes_left.saturating_sub(count);
                    if count == 0 || state.bytes_left == 0 || self.env.now() >= state.end {
                        return Poll::Ready(());
                    }
                    state.silent_end = self.env.now() + LINGER_SILENCE;
                }
                Poll::Pending => break,
            }
        }
        loop {
            let end = state.end.min(state.silent_end);
            let now = self.env.now();
            if now >= end {
                return Poll::Ready(());
            }
            let timer = state.timer.get_or_insert_with(|| self.env.sleep(end - now));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            state.timer = None;
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for StallIo<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for StallIo<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.watch(cx, polled, |count| *count)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.watch(cx, polled, |count| *count)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_flush(cx);
        self.watch(cx, polled, |()| 0)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            let polled = Pin::new(&mut self.inner).poll_shutdown(cx);
            ready!(self.watch(cx, polled, |()| 0))?;
            if !self.state.linger.load(Relaxed) {
                return Poll::Ready(Ok(()));
            }
            let now = self.env.now();
            let (bytes_left, end, silent_end) = (LINGER_BYTES_MAX, now + self.limit, now + LINGER_SILENCE);
            self.lingering = Some(Lingering { bytes_left, end, silent_end, timer: None });
        }
        self.poll_linger(cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn state() -> Arc<ConnectionState> {
        Arc::new(ConnectionState::new(Connection::alone([127, 0, 0, 1].into(), Env::tokio())))
    }

    #[tokio::test]
    async fn a_reader_that_takes_a_byte_now_and_then_ends_the_write() {
        let (near, mut far) = tokio::io::duplex(16);
        let mut io = StallIo::new(near, Env::tokio(), Duration::from_millis(300), 1 << 20, state());
        let trickle = async {
            loop {
                let _ = far.read_u8().await;
                Env::tokio().sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            written = io.write_all(&[0; 100_000]) => assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut),
            () = trickle => unreachable!("the client reads without end"),
        }
    }

    #[tokio::test]
    async fn a_reader_that_stops_ends_the_write() {
        let (near, far) = tokio::io::duplex(16);
        let mut io = StallIo::new(near, Env::tokio(), Duration::from_millis(50), 0, state());
        let error = io.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(far);
    }

    fn lingering() -> Arc<ConnectionState> {
        let state = state();
        state.linger.store(true, Relaxed);
        state
    }

    #[tokio::test]
    async fn a_close_takes_what_still_comes_until_the_peer_closes() {
        let (near, mut far) = tokio::io::duplex(16);
        let mut io = StallIo::new(near, Env::tokio(), Duration::from_secs(60), 0, lingering());
        io.write_all(b"answer").await.unwrap();
        let client = async {
            far.write_all(&[7; 100_000]).await.unwrap();
            let mut answer = Vec::new();
            far.read_to_end(&mut answer).await.unwrap();
            drop(far);
            answer
        };
        let (closed, answer) = tokio::join!(io.shutdown(), client);
        closed.unwrap();
        assert_eq!(answer, b"answer");
    }

    #[tokio::test]
    async fn a_close_does_not_wait_for_ever() {
        let (near, mut far) = tokio::io::duplex(16);
        let mut io = StallIo::new(near, Env::tokio(), Duration::from_millis(50), 0, lingering());
        let endless = async { while far.write_all(&[7; 100]).await.is_ok() {} };
        tokio::select! {
            closed = io.shutdown() => closed.unwrap(),
            () = endless => unreachable!("the socket is still open"),
        }
    }
}
