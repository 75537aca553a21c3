//! The live door: sessions, subscriptions and fan-out, in Centrifugo's client protocol, over the channels of the store.
//!
//! `door` turns connections into sessions, with `gateway` for those that are not plain WebSockets; `partition` has a worker thread for each share of them; `commands` is what sessions ask; `node` knows
//! which partitions have subscribers of a channel, and brings publications to them; `api` is what a back end asks, over HTTP or `grpc`.

mod answer;
mod api;
mod auth;
mod commands;
pub mod config;
mod deflate;
mod door;
mod filter;
mod fossil;
pub mod fuzzing;
mod gateway;
mod grpc;
mod handshake;
mod http_client;
mod metrics;
mod node;
mod options;
mod origin;
mod outgoing;
mod partition;
mod pem;
mod presence;
pub mod protocol;
mod proxy;
mod socket;
mod websocket;

pub use config::{LiveConfig, LiveConfigError};
pub use door::{DoorOptions, LiveDoor, Workers};
pub use grpc::{GrpcApiConfig, GrpcDoor, GrpcTlsConfig};
pub use http_client::{HttpClient, exchange, http_client, http_client_tls};
pub use metrics::{CodeCount, LiveStatus, SessionsOf, SimpleBound};
pub use node::{Accepted, CONNECTIONS, Limits, Node, Submission};
pub use outgoing::{Encoded, from_stored, to_stored};
pub use proxy::{ProxyStatus, ProxyTlsConfig};
