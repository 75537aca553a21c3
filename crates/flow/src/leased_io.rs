//! A connection that sends nothing after the lease of the process.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::lease::Lease;

/// A connection that fails when the process must not answer any more: it receives no request, and
/// sends no answer. What it would send may be untrue, as another process may serve by now.
pub struct LeasedIo<T> {
    inner: T,
    lease: Option<Lease>,
}

impl<T> LeasedIo<T> {
    /// Wraps a connection. Without a lease it may always answer.
    pub fn new(inner: T, lease: Option<Lease>) -> Self {
        Self { inner, lease }
    }

    /// The connection.
    pub fn into_inner(self) -> T {
        self.inner
    }

    fn check(&self) -> io::Result<()> {
        match &self.lease {
            Some(lease) if !lease.holds() => Err(io::Error::other("the lease of this server has ended")),
            _ => Ok(()),
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for LeasedIo<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for LeasedIo<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::env::Env;

    #[tokio::test]
    async fn nothing_is_sent_after_the_lease() {
        let (mut client, server) = tokio::io::duplex(16);
        let lease = Lease::unlimited(&Env::tokio());
        let mut server = LeasedIo::new(server, Some(lease.clone()));
        server.write_all(b"one").await.expect("it holds");
        lease.end();
        assert!(server.write_all(b"two").await.is_err(), "it has ended");
        assert!(server.write_vectored(&[IoSlice::new(b"two")]).await.is_err());
        assert!(server.flush().await.is_err());
        client.write_all(b"request").await.expect("open");
        assert!(server.read_u8().await.is_err(), "it receives nothing either");
        drop(server);
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.expect("closed");
        assert_eq!(received, b"one");
    }
}
