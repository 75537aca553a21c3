//! The S3 door: protocol only.
//!
//! `s3s` parses requests, verifies signatures and writes XML; this crate says what they mean in terms of the
//! [`steadfast_store::Store`], and bounds what a client may hold. The server crate owns listeners, TLS and shutdown;
//! it hands each connection to [`S3Door::connection_of`].
//!
//! `docs/s3.md` lists the operations, the decisions and the measurements.

mod about;
mod access;
mod attributes;
mod body;
mod checksum;
mod conditions;
mod context;
mod cors;
mod door;
mod error;
mod handler;
mod io;
mod md5;
mod ops;
mod options;
mod receive;
mod refused;
mod served;
mod signed;

pub use context::{Observer, RequestRecord};
pub use door::{DoorError, S3Door, Visit};
pub use io::StallIo;
pub use options::{EtagKind, EventTargets, IpNetwork, S3Options};
