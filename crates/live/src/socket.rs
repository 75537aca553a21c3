//! Options of sockets that the standard library does not know.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Bytes that the kernel takes for a session and has not sent; else it would keep megabytes for each one that does not read. What
/// is under way does not count, so this does not slow a distant client down.
const UNSENT_BYTES_MAX: libc::c_int = 256 << 10;

/// A connection is taken in when its first bytes have come, or after so many seconds.
const FIRST_BYTES_S: libc::c_int = 1;

/// Sets one for TCP. Where that fails, the socket is only less well off.
fn set(socket: &impl AsFd, option: libc::c_int, value: libc::c_int) {
    // SAFETY: the descriptor is open while `socket` is borrowed, and the value is an integer of the length given, which outlives the call.
    unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            option,
            std::ptr::from_ref(&value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

/// Sets [`UNSENT_BYTES_MAX`].
pub(crate) fn bound_unsent(socket: &impl AsFd) {
    set(socket, libc::TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX);
}

/// Makes ready to accept from it. Clients speak first here: their requests are there when their connections are. What is written is sent at once,
/// which connections have from the socket that they come by.
///
/// # Errors
/// The runtime's.
pub(crate) fn listen(listener: TcpListener) -> io::Result<AsyncFd<TcpListener>> {
    set(&listener, libc::TCP_DEFER_ACCEPT, FIRST_BYTES_S);
    set(&listener, libc::TCP_NODELAY, 1);
    // SAFETY: the listener owns its descriptor and is owned by what is made here, so it is open and the same for as long as it is registered.
    Ok(unsafe { AsyncFd::register_with_interest(listener, Interest::READABLE) }?)
}
