//! Error and disconnect codes, by which SDKs retry, resubscribe or stop. They are Centrifugo's own
//! (centrifugal.dev, "Client protocol codes"); SDKs reconnect after codes below 3500.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::message::ErrorMessage;

/// An error reply to a command. The session stays connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientError {
    /// The code; the protocol defines 100 to 113.
    pub code: u32,
    /// The text, for people.
    pub message: Cow<'static, str>,
    /// Whether the SDK should retry.
    pub temporary: bool,
}

const fn error(code: u32, message: &'static str) -> ClientError {
    ClientError { code, message: Cow::Borrowed(message), temporary: false }
}

const fn temporary(code: u32, message: &'static str) -> ClientError {
    ClientError { code, message: Cow::Borrowed(message), temporary: true }
}

/// The server failed internally.
pub const INTERNAL: ClientError = temporary(100, "internal server error");
/// An internal error with its cause: clients can only retry, but a back end can report the cause.
pub const DISK_FULL: ClientError = temporary(100, "internal server error: the disk is full");
/// See [`DISK_FULL`]. The rest of the disk is reserved: client publications may not use it.
pub const DISK_NEARLY_FULL: ClientError = temporary(100, "internal server error: the disk is nearly full");
/// See [`DISK_FULL`].
pub const DISK_HANGS: ClientError = temporary(100, "internal server error: the disk or the archive does not answer");
/// See [`DISK_FULL`].
pub const STOPPING: ClientError = temporary(100, "internal server error: the server is stopping");
/// See [`DISK_FULL`]. The node that has the channel cannot be reached.
pub const HOME_UNREACHABLE: ClientError = temporary(100, "internal server error: the channel's node is not reachable");
/// See [`DISK_FULL`]. The publication may be stored.
pub const OUTCOME_UNKNOWN: ClientError =
    temporary(100, "internal server error: the link to the channel's node was lost before its answer");
/// A valid token is required and missing.
pub const UNAUTHORIZED: ClientError = error(101, "unauthorized");
/// The channel or its namespace does not exist.
pub const UNKNOWN_CHANNEL: ClientError = error(102, "unknown channel");
/// The session may not use the channel or method.
pub const PERMISSION_DENIED: ClientError = error(103, "permission denied");
/// The method does not exist or has no back end.
pub const METHOD_NOT_FOUND: ClientError = error(104, "method not found");
/// The session already has the subscription.
pub const ALREADY_SUBSCRIBED: ClientError = error(105, "already subscribed");
/// A configured limit is exceeded.
pub const LIMIT_EXCEEDED: ClientError = error(106, "limit exceeded");
/// The publication is larger than a record of the log may be.
pub const TOO_LARGE: ClientError = error(106, "limit exceeded: the publication is too large");
/// The request is malformed.
pub const BAD_REQUEST: ClientError = error(107, "bad request");
/// The namespace does not have the feature.
pub const NOT_AVAILABLE: ClientError = error(108, "not available");
/// The token has expired; the SDK gets a new one and reconnects.
pub const TOKEN_EXPIRED: ClientError = error(109, "token expired");
/// The session has expired.
pub const EXPIRED: ClientError = error(110, "expired");
/// A rate or a bound of the server is exceeded; retry later.
pub const TOO_MANY_REQUESTS: ClientError = temporary(111, "too many requests");
/// The client's position is too old or of another epoch.
pub const UNRECOVERABLE_POSITION: ClientError = error(112, "unrecoverable position");

impl ClientError {
    /// An error for a malformed request, with the cause.
    pub(crate) fn bad_request(why: impl std::fmt::Display) -> Self {
        Self { message: format!("bad request: {why}").into(), ..BAD_REQUEST }
    }
}

impl From<ClientError> for ErrorMessage {
    fn from(e: ClientError) -> Self {
        Self { code: e.code, message: e.message.into_owned(), temporary: e.temporary }
    }
}

/// The code and reason of a disconnect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disconnected {
    /// The WebSocket close code. The SDK reconnects after codes below 3500.
    pub code: u16,
    /// The text, for people.
    pub reason: Cow<'static, str>,
}

const fn ended(code: u16, reason: &'static str) -> Disconnected {
    Disconnected { code, reason: Cow::Borrowed(reason) }
}

/// The client closed the connection.
pub const CONNECTION_CLOSED: Disconnected = ended(3000, "connection closed");
/// The server is stopping.
pub const SHUTDOWN: Disconnected = ended(3001, "shutdown");
/// The server failed internally.
pub const SERVER_ERROR: Disconnected = ended(3004, "internal server error");
/// The connection token has expired.
pub const SESSION_EXPIRED: Disconnected = ended(3005, "connection expired");
/// The subscription token has expired.
pub const SUBSCRIPTION_EXPIRED: Disconnected = ended(3006, "subscription expired");
/// The client reads too slowly.
pub const SLOW: Disconnected = ended(3008, "slow");
/// A write to the socket failed.
pub const WRITE_ERROR: Disconnected = ended(3009, "write error");
/// Publications may have been missed; the SDK reconnects and recovers.
pub const INSUFFICIENT_STATE: Disconnected = ended(3010, "insufficient state");
/// The back end asked for a reconnect.
pub const FORCE_RECONNECT: Disconnected = ended(3011, "force reconnect");
/// The client did not answer a ping.
pub const NO_PONG: Disconnected = ended(3012, "no pong");
/// The session has too many commands in flight.
pub const TOO_MANY_COMMANDS: Disconnected = ended(3013, "too many requests");
/// The token is not valid.
pub const INVALID_TOKEN: Disconnected = ended(3500, "invalid token");
/// The client violated the protocol.
pub const BAD_PROTOCOL: Disconnected = ended(3501, "bad request");
/// The client sent no connect command in time.
pub const STALE: Disconnected = ended(3502, "stale");
/// The back end disconnected the session.
pub const FORCE_DISCONNECT: Disconnected = ended(3503, "force disconnect");
/// The connection limit is reached.
pub const CONNECTION_LIMIT: Disconnected = ended(3504, "connection limit");
/// The session has too many channels.
pub const CHANNEL_LIMIT: Disconnected = ended(3505, "channel limit");
/// The data is binary and the session uses JSON.
pub const INAPPROPRIATE_PROTOCOL: Disconnected = ended(3506, "inappropriate protocol");
/// The server does not have what the client uses.
pub const DISCONNECT_NOT_AVAILABLE: Disconnected = ended(3508, "not available");
/// The session is not permitted.
pub const DISCONNECT_PERMISSION_DENIED: Disconnected = ended(3507, "permission denied");

/// The server or the back end ended the subscription; the SDK does not resubscribe.
pub const UNSUBSCRIBED_BY_SERVER: (u32, &str) = (2000, "server unsubscribe");
/// Publications may have been missed; the SDK resubscribes.
pub const UNSUBSCRIBED_INSUFFICIENT: (u32, &str) = (2500, "insufficient state");
/// The subscription has expired; the SDK gets a token and resubscribes.
pub const UNSUBSCRIBED_EXPIRED: (u32, &str) = (2501, "subscription expired");
