//! Detects that the client has closed a connection, also while bytes that it sent before are still
//! unread.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::listen::Stream;

/// The other end of a connection.
pub(crate) struct Peer(Option<OwnedFd>);

impl Peer {
    /// # Errors
    /// When the process has no descriptor left.
    pub(crate) fn new(stream: &Stream) -> io::Result<Self> {
        let socket = match stream {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
        };
        socket.try_clone_to_owned().map(|socket| Self(Some(socket)))
    }

    /// The peer of a stream that is not a socket. It never closes.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn unknown() -> Self {
        Self(None)
    }

    /// # Errors
    /// `ConnectionAborted` when the client has closed the connection, or its sending side.
    pub(crate) fn check(&self) -> io::Result<()> {
        let Some(socket) = &self.0 else { return Ok(()) };
        let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut polled, Some(&now)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(()),
            Ok(_) => {
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the client closed the connection in a request"))
            }
            Err(error) => Err(error.into()),
        }
    }
}
