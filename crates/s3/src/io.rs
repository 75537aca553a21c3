//! A socket whose peer must keep taking what is written, and gets to read the last answer.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use steadfast_flow::{BoxFuture, Env};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What a client may still send after its last answer, in bytes: more than the parts that SDKs send.
const LINGER_BYTES_MAX: u64 = 128 << 20;
/// How long a client that is being waited for may send nothing.
const LINGER_SILENCE: Duration = Duration::from_secs(5);

/// Wraps a connection: a write or flush that makes no progress for the given time fails with `TimedOut`, which ends the connection and
/// releases what its response holds. hyper itself waits for a reader for ever. Reads pass through: whether a silent client
/// is idle or stalled only the layer above knows.
///
/// A socket that is closed with unread bytes in it resets the connection, and the reset overtakes the answer: a client that is
/// answered early (refused, or told to slow down) sees a broken pipe instead. So, when `linger` is set, closing sends the
/// end first and then takes and forgets what still comes, within bounds (as nginx's `lingering_close`).
pub struct StallIo<I> {
    inner: I,
    env: Env,
    limit: Duration,
    timer: Option<BoxFuture<'static, ()>>,
    waiting_since: Option<Duration>,
    linger: Arc<AtomicBool>,
    lingering: Option<Lingering>,
}

/// A connection that has been answered for the last time.
struct Lingering {
    bytes_left: u64,
    /// The end at the latest.
    end: Duration,
    /// The end if nothing comes.
    silent_end: Duration,
    timer: Option<BoxFuture<'static, ()>>,
}

// The boxed timer is never pinned in place; it is moved as a whole.
impl<I: Unpin> Unpin for StallIo<I> {}

impl<I> StallIo<I> {
    /// Wraps `inner`; `limit` is how long a write may wait, and a close that lingers.
    pub fn new(inner: I, env: Env, limit: Duration, linger: Arc<AtomicBool>) -> Self {
        Self { inner, env, limit, timer: None, waiting_since: None, linger, lingering: None }
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.waiting_since = None;
            return polled;
        }
        let now = self.env.now();
        let since = *self.waiting_since.get_or_insert(now);
        loop {
            let left = (since + self.limit).saturating_sub(self.env.now());
            let timer = self.timer.get_or_insert_with(|| self.env.sleep(left));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.timer = None;
            if self.env.now() >= since + self.limit {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client stopped reading")));
            }
        }
    }
}

impl<I: AsyncRead + Unpin> StallIo<I> {
    /// Takes what comes until the peer closes or a bound is reached.
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
        self.watch(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.watch(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_flush(cx);
        self.watch(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            let polled = Pin::new(&mut self.inner).poll_shutdown(cx);
            ready!(self.watch(cx, polled))?;
            if !self.linger.load(Relaxed) {
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

    #[tokio::test]
    async fn a_reader_that_stops_ends_the_write() {
        let (near, far) = tokio::io::duplex(16);
        let mut io = StallIo::new(near, Env::tokio(), Duration::from_millis(50), Arc::default());
        let error = io.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(far);
    }

    #[tokio::test]
    async fn a_close_takes_what_still_comes_until_the_peer_closes() {
        let (near, mut far) = tokio::io::duplex(16);
        let mut io = StallIo::new(near, Env::tokio(), Duration::from_secs(60), Arc::new(true.into()));
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
        let mut io = StallIo::new(near, Env::tokio(), Duration::from_millis(50), Arc::new(true.into()));
        let endless = async { while far.write_all(&[7; 100]).await.is_ok() {} };
        tokio::select! {
            closed = io.shutdown() => closed.unwrap(),
            () = endless => unreachable!("the socket is still open"),
        }
    }
}
