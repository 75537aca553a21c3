//! How exports are set up, and their bounds.

use std::time::Duration;

use serde::{Serialize, Serializer};

/// The part of a disk that an export shows, in bytes. Both numbers are multiples of [`steadfast_disk::BLOCK`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Window {
    /// Where it begins on the disk.
    pub start: u64,
    /// How long it is.
    pub len: u64,
}

/// Bounds of an export and of the server. Units come last in the names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Connections of one export.
    pub export_connections_max: usize,
    /// Connections of a server, those in the handshake included. Only the value of [`crate::Server::bind`] counts.
    pub connections_max: usize,
    /// Requests of one connection that have not been answered.
    pub requests_in_flight_max: usize,
    /// Bytes of read replies and write payloads that each connection may have in memory.
    pub connection_bytes_max: usize,
    /// The same for requests that are longer than that, of all connections of an export together. At least
    /// `request_bytes_max`.
    pub large_bytes_max: usize,
    /// The longest read or write.
    pub request_bytes_max: u32,
    /// A client that has not chosen an export after this time is cut off.
    #[serde(rename = "handshake_timeout_ms", serialize_with = "as_ms")]
    pub handshake_timeout: Duration,
    /// A client that takes less than 1 MiB of replies, or sends less than 1 MiB of a payload, in this time is cut off.
    #[serde(rename = "stall_timeout_ms", serialize_with = "as_ms")]
    pub stall_timeout: Duration,
    /// How long a shutdown waits for requests in flight, and then for the last flush.
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
    /// The same limits, with every one large enough for the largest request.
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

    /// Bytes that an export may have in memory.
    pub(crate) fn bytes_max(&self) -> usize {
        self.export_connections_max.saturating_mul(self.connection_bytes_max).saturating_add(self.large_bytes_max)
    }
}

/// What an export is besides its disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportOptions {
    /// Its name: at most 4,096 bytes.
    pub name: String,
    /// Text for people: at most 4,096 bytes. Clients can read it.
    pub description: String,
    /// The part of the disk that it shows; `None` for all of it.
    pub window: Option<Window>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Its bounds.
    pub limits: Limits,
}

impl ExportOptions {
    /// An export of a whole disk that may be written, with the default limits.
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
