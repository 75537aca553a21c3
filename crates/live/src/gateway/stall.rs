//! A connection whose client must go on reading.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use steadfast_flow::{BoxFuture, Env};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Fails a write that makes no progress for too long: else a client that stops reading would hold its connection, and the task that writes to
/// it, for as long as it likes.
pub(crate) struct Stalling<T> {
    inner: T,
    env: Env,
    limit: Duration,
    stalled: Option<BoxFuture<'static, ()>>,
}

impl<T> Stalling<T> {
    pub(crate) fn new(inner: T, env: Env, limit: Duration) -> Self {
        Self { inner, env, limit, stalled: None }
    }

    pub(crate) fn into_inner(self) -> T {
        self.inner
    }

    fn written<R>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if poll.is_ready() {
            self.stalled = None;
            return poll;
        }
        let (env, limit) = (&self.env, self.limit);
        let stalled = self.stalled.get_or_insert_with(|| {
            let env = env.clone();
            Box::pin(async move { env.sleep(limit).await })
        });
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Stalling<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Stalling<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.written(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.written(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_flush(cx);
        self.written(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.written(cx, poll)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_client_that_does_not_read_is_given_up_and_one_that_reads_is_not() {
        let (client, server) = tokio::io::duplex(16);
        let mut server = Stalling::new(server, Env::tokio(), Duration::from_millis(50));
        let error = server.write_all(&[0; 17]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(client);

        let (mut client, server) = tokio::io::duplex(16);
        let mut server = Stalling::new(server, Env::tokio(), Duration::from_secs(60));
        let mut got = Vec::new();
        let (written, read) = tokio::join!(
            async {
                let written = server.write_all(&[7; 1000]).await;
                drop(server);
                written
            },
            client.read_to_end(&mut got)
        );
        assert!(written.is_ok() && read.is_ok() && got == [7; 1000]);
    }
}
