//! Sessions that are not plain WebSockets: HTTP streaming and SSE with commands by `emulation`,
//! unidirectional endpoints, and WebSockets over TLS.
//!
//! A worker knows one kind of session, a WebSocket on a socket, and writes publications straight to
//! it. Each other session has a task with the other end of a socket pair, which translates for the
//! client. So delivery to most sessions stays short, and the worker's bounds (queued bytes,
//! commands in flight, pings) apply to all sessions.

mod emulation;
mod frames;
mod stall;
mod stream;
mod websocket;

pub(crate) use emulation::{Emulation, random_name};
pub(crate) use frames::pair;
pub(crate) use stall::Stalling;
pub(crate) use stream::{Streaming, connect_command};
pub(crate) use websocket::{bridge, unidirectional};
