//! Sockets: listeners with their bounds, TLS.

pub mod listener;
pub mod tls;
