//! A socket whose peer must keep taking what is written.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use steadfast_flow::{BoxFuture, Env};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Wraps a connection: a write or flush that makes no progress for the given time fails with `TimedOut`, which ends the connection and
/// releases what its response holds. hyper itself waits for a reader for ever. Reads pass through: whether a silent client
/// is idle or stalled only the layer above knows.
pub struct StallIo<I> {
    inner: I,
    env: Env,
    limit: Duration,
    timer: Option<BoxFuture<'static, ()>>,
    waiting_since: Option<Duration>,
}

// The boxed timer is never pinned in place; it is moved as a whole.
impl<I: Unpin> Unpin for StallIo<I> {}

impl<I> StallIo<I> {
    /// Wraps `inner`; `limit` is how long a write may wait.
    pub fn new(inner: I, env: Env, limit: Duration) -> Self {
        Self { inner, env, limit, timer: None, waiting_since: None }
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

impl<I: AsyncRead + Unpin> AsyncRead for StallIo<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for StallIo<I> {
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
        let polled = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.watch(cx, polled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn a_reader_that_stops_ends_the_write() {
        let (near, far) = tokio::io::duplex(16);
        let mut io = StallIo::new(near, Env::tokio(), Duration::from_millis(50));
        let error = io.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(far);
    }
}
