//! The live door: sessions, subscriptions and fan-out over the channels of the store, in
//! Centrifugo's client protocol.
//!
//! - `door` accepts connections; `gateway` serves those that are not plain WebSockets.
//! - `partition` runs a worker thread for each share of the sessions.
//! - `commands` carries out the commands of sessions.
//! - `rules` is the configuration, and what clients may do by it; `users` has the sessions by user.
//! - `channels` knows which partitions have subscribers of a channel, and delivers publications,
//!   joins and leaves to them.
//! - `admission` bounds what is in progress; `back_ends` verifies tokens and asks back ends.
//! - `node` is made of these; `nodes` is what other nodes of a cluster want from this one.
//! - `api` is the server API for back ends, over HTTP or `grpc`.

mod admission;
mod answer;
mod api;
mod auth;
mod back_ends;
mod channels;
mod commands;
pub mod config;
mod deflate;
mod door;
mod filter;
mod fossil;
// The entries of the fuzz targets, in builds for fuzzing and tests only.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
#[path = "../fuzz/mod.rs"]
pub mod fuzzing;
mod gateway;
mod grpc;
mod grpc_api;
mod handshake;
mod metrics;
mod node;
mod nodes;
mod options;
mod origin;
mod outgoing;
mod partition;
mod pem;
pub mod protocol;
mod proxy;
mod rules;
mod session;
mod socket;
mod users;
mod websocket;

pub use admission::{CONNECTIONS, Limits};
pub use back_ends::check;
pub use channels::{Accepted, Publisher, Submission};
pub use config::{
    CentrifugoOptions, GrpcApiConfig, LiveConfig, LiveConfigError, ProxyTlsConfig, ServerTlsConfig, TokenConfig,
    placeholders,
};
pub use door::{DoorOptions, LiveDoor, Workers};

pub use grpc_api::GrpcDoor;
pub use metrics::{CodeCount, LiveStatus, ProxyStatus, SessionsOf, SimpleBound};
pub use node::Node;
pub use outgoing::{Encoded, from_stored, to_stored};
pub use rules::Rules;
pub use users::Users;

/// Minimum interval between repeated warnings in the log.
pub(crate) const WARN_INTERVAL: std::time::Duration = std::time::Duration::from_secs(10);
