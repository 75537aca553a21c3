//! Sockets: listeners with their bounds, TLS, and the file descriptors that they may take.

pub mod descriptors;
pub mod listener;
pub mod tls;
