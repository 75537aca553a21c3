//! A connection that fails if its client stops reading.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use steadfast_flow::{BoxFuture, Env, Patience};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Fails a write that makes too little progress for too long. Otherwise a client that stops reading
/// would hold its connection and task without limit. A client that reads everything without a wait
/// gets its full patience back.
pub(crate) struct Stalling<T> {
    inner: T,
    env: Env,
    patience: Patience,
    timer: Option<BoxFuture<'static, ()>>,
    /// A write has waited since the last flush.
    waited: bool,
}

impl<T> Stalling<T> {
    pub(crate) fn new(inner: T, env: Env, patience: Patience) -> Self {
        Self { inner, env, patience, timer: None, waited: false }
    }

    pub(crate) fn into_inner(self) -> T {
        self.inner
    }

    /// Accounts for the result of a write; `moved` gives its number of bytes.
    fn written<R>(
        &mut self,
        cx: &mut Context<'_>,
        poll: Poll<io::Result<R>>,
        moved: impl Fn(&R) -> usize,
    ) -> Poll<io::Result<R>> {
        if let Poll::Ready(done) = poll {
            if self.waited {
                let bytes = done.as_ref().map_or(0, moved) as u64;
                self.patience.moved(self.env.now(), bytes);
            }
            return Poll::Ready(done);
        }
        self.waited = true;
        loop {
            let left = self.patience.waits(self.env.now());
            if left.is_zero() {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")));
            }
            // The timer may belong to an earlier wait: then it fires early and the loop checks
            // again.
            let timer = self.timer.get_or_insert_with(|| self.env.sleep(left));
            ready!(timer.as_mut().poll(cx));
            self.timer = None;
        }
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
        self.written(cx, poll, |count| *count)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.written(cx, poll, |count| *count)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_flush(cx);
        let poll = self.written(cx, poll, |()| 0);
        if poll.is_ready() && !std::mem::take(&mut self.waited) {
            self.patience.renew();
        }
        poll
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.written(cx, poll, |()| 0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_client_that_reads_too_slowly_is_disconnected() {
        let (mut client, server) = tokio::io::duplex(16);
        let mut server = Stalling::new(server, Env::tokio(), Patience::new(Duration::from_millis(300), 1 << 20));
        let trickle = async {
            loop {
                let _ = client.read_u8().await;
                Env::tokio().sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            written = server.write_all(&[0; 100_000]) => {
                assert_eq!(written.expect_err("too slow").kind(), io::ErrorKind::TimedOut);
            }
            () = trickle => unreachable!("an endless loop"),
        }
    }

    #[tokio::test]
    async fn only_a_client_that_does_not_read_is_disconnected() {
        let (client, server) = tokio::io::duplex(16);
        let mut server = Stalling::new(server, Env::tokio(), Patience::new(Duration::from_millis(50), 0));
        let error = server.write_all(&[0; 17]).await.expect_err("the client does not read");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(client);

        let (mut client, server) = tokio::io::duplex(16);
        let mut server = Stalling::new(server, Env::tokio(), Patience::new(Duration::from_secs(60), 1 << 10));
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
