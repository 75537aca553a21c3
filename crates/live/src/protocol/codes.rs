//! The codes by which SDKs decide whether to try again, to subscribe again, or to stop. They are Centrifugo's own
//! (centrifugal.dev, "Client protocol codes"); SDKs reconnect below 3500.

use std::borrow::Cow;

use super::message::ErrorMessage;

/// Why a command is refused. The session goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientError {
    /// 100 to 113 are the protocol's.
    pub code: u32,
    /// For people.
    pub message: Cow<'static, str>,
    /// Whether the SDK tries again.
    pub temporary: bool,
}

const fn error(code: u32, message: &'static str) -> ClientError {
    ClientError { code, message: Cow::Borrowed(message), temporary: false }
}

const fn temporary(code: u32, message: &'static str) -> ClientError {
    ClientError { code, message: Cow::Borrowed(message), temporary: true }
}

/// Something went wrong on the server's side.
pub const INTERNAL: ClientError = temporary(100, "internal server error");
/// The same, with what is wrong: a client can do nothing but come again, a back end may say so to people.
pub const DISK_FULL: ClientError = temporary(100, "internal server error: the disk is full");
/// See [`DISK_FULL`]. The rest of the disk is not for publications of clients.
pub const DISK_NEARLY_FULL: ClientError = temporary(100, "internal server error: the disk is nearly full");
/// See [`DISK_FULL`].
pub const DISK_HANGS: ClientError = temporary(100, "internal server error: the disk does not answer");
/// See [`DISK_FULL`].
pub const STOPPING: ClientError = temporary(100, "internal server error: the server is stopping");
/// No valid token, where one is needed.
pub const UNAUTHORIZED: ClientError = error(101, "unauthorized");
/// No such channel, namespace included.
pub const UNKNOWN_CHANNEL: ClientError = error(102, "unknown channel");
/// Known, but not for this session.
pub const PERMISSION_DENIED: ClientError = error(103, "permission denied");
/// No such method, or no back end for it.
pub const METHOD_NOT_FOUND: ClientError = error(104, "method not found");
/// The session has that subscription.
pub const ALREADY_SUBSCRIBED: ClientError = error(105, "already subscribed");
/// A bound of the server's configuration.
pub const LIMIT_EXCEEDED: ClientError = error(106, "limit exceeded");
/// More than a record of the log may have.
pub const TOO_LARGE: ClientError = error(106, "limit exceeded: the publication is too large");
/// What was sent makes no sense.
pub const BAD_REQUEST: ClientError = error(107, "bad request");
/// The namespace has no such feature.
pub const NOT_AVAILABLE: ClientError = error(108, "not available");
/// The SDK gets a new token and connects again.
pub const TOKEN_EXPIRED: ClientError = error(109, "token expired");
/// The session's time is over.
pub const EXPIRED: ClientError = error(110, "expired");
/// Over a rate, or the server is at a bound: later.
pub const TOO_MANY_REQUESTS: ClientError = temporary(111, "too many requests");
/// The position cannot be recovered from: it is too old, or of another epoch.
pub const UNRECOVERABLE_POSITION: ClientError = error(112, "unrecoverable position");

impl ClientError {
    /// A request that makes no sense, with what is wrong with it.
    pub(crate) fn bad_request(why: impl std::fmt::Display) -> Self {
        Self { message: format!("bad request: {why}").into(), ..BAD_REQUEST }
    }
}

impl From<ClientError> for ErrorMessage {
    fn from(e: ClientError) -> Self {
        Self { code: e.code, message: e.message.into_owned(), temporary: e.temporary }
    }
}

/// Why a session is ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disconnected {
    /// The close code of the WebSocket. Below 3500 the SDK connects again.
    pub code: u16,
    /// For people.
    pub reason: Cow<'static, str>,
}

const fn ended(code: u16, reason: &'static str) -> Disconnected {
    Disconnected { code, reason: Cow::Borrowed(reason) }
}

/// The client closed the connection.
pub const CONNECTION_CLOSED: Disconnected = ended(3000, "connection closed");
/// The server stops.
pub const SHUTDOWN: Disconnected = ended(3001, "shutdown");
/// Something went wrong on the server's side.
pub const SERVER_ERROR: Disconnected = ended(3004, "internal server error");
/// The token was not renewed in time.
pub const SESSION_EXPIRED: Disconnected = ended(3005, "connection expired");
/// A subscription's token was not renewed in time.
pub const SUBSCRIPTION_EXPIRED: Disconnected = ended(3006, "subscription expired");
/// The session does not read what it gets.
pub const SLOW: Disconnected = ended(3008, "slow");
/// A write to the socket failed.
pub const WRITE_ERROR: Disconnected = ended(3009, "write error");
/// Publications may have been missed; the SDK connects again and recovers.
pub const INSUFFICIENT_STATE: Disconnected = ended(3010, "insufficient state");
/// Ended by the back end, to connect again.
pub const FORCE_RECONNECT: Disconnected = ended(3011, "force reconnect");
/// No pong came.
pub const NO_PONG: Disconnected = ended(3012, "no pong");
/// More commands than a session may have under way.
pub const TOO_MANY_COMMANDS: Disconnected = ended(3013, "too many requests");
/// The token is not valid.
pub const INVALID_TOKEN: Disconnected = ended(3500, "invalid token");
/// What was sent makes no sense.
pub const BAD_PROTOCOL: Disconnected = ended(3501, "bad request");
/// No connect command came.
pub const STALE: Disconnected = ended(3502, "stale");
/// Ended by the back end.
pub const FORCE_DISCONNECT: Disconnected = ended(3503, "force disconnect");
/// As many connections as there may be.
pub const CONNECTION_LIMIT: Disconnected = ended(3504, "connection limit");
/// More channels than a session may have.
pub const CHANNEL_LIMIT: Disconnected = ended(3505, "channel limit");
/// Binary data for a session that speaks JSON.
pub const INAPPROPRIATE_PROTOCOL: Disconnected = ended(3506, "inappropriate protocol");
/// Not for this session.
pub const DISCONNECT_PERMISSION_DENIED: Disconnected = ended(3507, "permission denied");

/// Ended by the server or the back end: the SDK does not subscribe again.
pub const UNSUBSCRIBED_BY_SERVER: (u32, &str) = (2000, "server unsubscribe");
/// Publications may have been missed: the SDK subscribes again.
pub const UNSUBSCRIBED_INSUFFICIENT: (u32, &str) = (2500, "insufficient state");
/// The subscription's time is over: the SDK gets a token and subscribes again.
pub const UNSUBSCRIBED_EXPIRED: (u32, &str) = (2501, "subscription expired");
