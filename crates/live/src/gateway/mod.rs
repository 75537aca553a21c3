//! Sessions that are not plain WebSockets: HTTP streaming and SSE, whose commands come in requests of their own (`emulation`), the unidirectional
//! endpoints, and WebSockets over TLS.
//!
//! A worker knows one kind of session, a socket that speaks WebSocket, and writes publications straight to it. Each of these is a task beside it, which
//! has the other end of a socket pair and speaks something else to the client. So the way of a publication to most sessions stays short, and
//! bounds (bytes that wait, commands under way, pings) are the worker's for all of them.

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
