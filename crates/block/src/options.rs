//! Options and limits of exports.

use std::time::Duration;

use serde::{Serialize, Serializer};

/// Payloads and zeros are written to the disk in pieces of this size, in bytes. A piece takes
/// memory only while it is received and written, so a long write needs little of the disk's buffer
/// pool.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// The part of a disk that an export shows, in bytes. Both numbers are multiples of
/// [`steadfast_disk::BLOCK`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Window {
    /// Start on the disk.
    pub start: u64,
    /// Length.
    pub len: u64,
}

/// Limits of an export and of the server. Units come last in the names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Maximum number of connections of one export.
    pub export_connections_max: usize,
    /// Maximum number of connections of a server, including those in the handshake. Only the value
    /// passed to [`crate::Server::bind`] counts.
    pub connections_max: usize,
    /// Maximum number of unanswered requests of one connection.
    pub requests_in_flight_max: usize,
    /// Maximum memory of read replies and write payloads per connection, in bytes.
    pub connection_bytes_max: usize,
    /// The same limit for requests above `connection_bytes_max`, over all connections of an export.
    /// At least `request_bytes_max`.
    pub large_bytes_max: usize,
    /// Maximum length of a read or write in bytes.
    pub request_bytes_max: u32,
    /// The server disconnects a client that has not chosen an export after this time.
    #[serde(rename = "handshake_timeout_ms", serialize_with = "as_ms")]
    pub handshake_timeout: Duration,
    /// The server disconnects a client that takes less than 1 MiB of replies, or sends less than 1
    /// MiB of a payload, in this time.
    #[serde(rename = "stall_timeout_ms", serialize_with = "as_ms")]
    pub stall_timeout: Duration,
    /// Time that a shutdown waits for requests in flight, and then for the last flush.
    #[serde(rename = "shutdown_timeout_ms", serialize_with = "as_ms")]
    pub shutdown_timeout: Duration,
}

fn as_ms<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            export_connections_max: 16,
            connections_max: 64,
            requests_in_flight_max: 128,
            connection_bytes_max: 2 << 20,
            large_bytes_max: 32 << 20,
            request_bytes_max: 32 << 20,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}

impl Limits {
    /// The same limits, each raised as far as the largest request needs.
    #[must_use]
    pub(crate) fn usable(mut self) -> Self {
        let max = tokio::sync::Semaphore::MAX_PERMITS;
        self.request_bytes_max = self.request_bytes_max.max(steadfast_disk::BLOCK as u32);
        self.connection_bytes_max = self.connection_bytes_max.clamp(1, max);
        self.large_bytes_max = self.large_bytes_max.clamp(self.request_bytes_max as usize, max);
        self.requests_in_flight_max = self.requests_in_flight_max.clamp(1, 1 << 16);
        self.connections_max = self.connections_max.clamp(1, 1 << 16);
        self
    }

    /// Maximum memory of an export in bytes.
    pub(crate) fn bytes_max(&self) -> usize {
        self.export_connections_max.saturating_mul(self.connection_bytes_max).saturating_add(self.large_bytes_max)
    }
}

/// The options of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportOptions {
    /// Name of at most 4,096 bytes.
    pub name: String,
    /// Description of at most 4,096 bytes, which clients can read.
    pub description: String,
    /// The exported part of the disk; `None` for the whole disk.
    pub window: Option<Window>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Limits of the export.
    pub limits: Limits,
}

impl ExportOptions {
    /// The options of a writable export of a whole disk, with the default limits.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            window: None,
            read_only: false,
            limits: Limits::default(),
        }
    }
}
