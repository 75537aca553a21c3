//! Socket options that the standard library does not offer.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Bound on the unsent bytes in the kernel of a session, which would else be megabytes for each
/// slow reader. Bytes in flight do not count, so it does not slow a distant client.
const UNSENT_BYTES_MAX: libc::c_int = 256 << 10;

/// The maximum delay of an accept, in seconds: the kernel reports a connection when its first bytes
/// arrive, or after this time.
const FIRST_BYTES_S: libc::c_int = 1;

/// Sets a TCP option. A failure is ignored: the socket works without it.
fn set(socket: &impl AsFd, option: libc::c_int, value: libc::c_int) {
    // SAFETY: the descriptor is open while `socket` is borrowed, and the value is an integer of the
    // length given, which outlives the call.
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

/// Prepares a listener. Clients send first, so a connection is accepted when its request has
/// arrived. Accepted sockets inherit the option that sends writes without delay.
///
/// # Errors
/// Registration with the runtime failed.
pub(crate) fn listen(listener: TcpListener) -> io::Result<AsyncFd<TcpListener>> {
    set(&listener, libc::TCP_DEFER_ACCEPT, FIRST_BYTES_S);
    set(&listener, libc::TCP_NODELAY, 1);
    // SAFETY: the listener owns its descriptor and the registration owns the listener, so the
    // descriptor stays open and the same while registered.
    Ok(unsafe { AsyncFd::register_with_interest(listener, Interest::READABLE) }?)
}
