//! The S3 interface: protocol only.
//!
//! `s3s` parses requests, verifies signatures and writes XML. This crate translates requests into
//! calls of the [`steadfast_store::Store`], and bounds the resources that a client may hold. The
//! server crate owns listeners, TLS and shutdown; it passes each connection to
//! [`S3Door::connection_of`].
//!
//! `docs/s3.md` lists the operations, the decisions and the measurements.

mod about;
mod access;
mod administration;
mod attributes;
mod audit;
mod body;
mod caller;
mod checksum;
mod conditions;
mod context;
mod cors;
mod door;
mod error;
mod forwarded;
mod handler;
mod io;
mod md5;
mod operations;
mod ops;
mod options;
mod probes;
mod receive;
mod refused;
mod rights;
mod served;
mod signed;

pub use audit::{AuditEntry, AuditSink};
pub use context::{Observer, RequestRecord};
pub use door::{ConnectionService, DoorError, S3Door};
pub use io::StallIo;
pub use operations::operations;
pub use options::{EtagKind, EventTargets, IpNetwork, S3Options};

/// The name that no new bucket can have: the paths of its objects are those of MinIO's
/// administration. MinIO allows no such bucket either.
const RESERVED: &str = "minio";

/// Whether a new bucket can have this name.
pub fn is_bucket_name(name: &str) -> bool {
    s3s::path::check_bucket_name(name) && name != RESERVED
}
