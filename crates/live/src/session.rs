//! The identity of a session, and its connection.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::HeaderMap;
use parking_lot::RwLock;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::deflate::Deflate;
use crate::protocol::message::ClientInfo;
use crate::protocol::{Encoding, Transport};

/// The identity of a session; complete when the session is connected.
#[derive(Debug)]
pub struct SessionIdentity {
    /// The session's public ID.
    pub client: Uuid,
    /// The user; empty: anonymous.
    pub user: String,
    /// Facts from the back end, which it may replace.
    pub facts: RwLock<Facts>,
    /// How the session is connected.
    pub connection: ConnectionInfo,
    /// Headers that the client claims to have sent, limited to the forwarded ones.
    pub emulated: Option<Arc<HeaderMap>>,
    /// Channels that the connection token subscribes the session to.
    pub token_channels: BTreeSet<String>,
}

/// Facts from the back end about a session.
#[derive(Debug, Default)]
pub struct Facts {
    /// For other clients: JSON, or empty.
    pub info: Vec<u8>,
    /// For the back end alone.
    pub meta: Option<Box<RawValue>>,
}

/// How a session is connected.
#[derive(Debug, Clone)]
pub struct ConnectionInfo {
    /// The protocol encoding.
    pub encoding: Encoding,
    /// The transport.
    pub transport: Transport,
    /// Compression, if the client accepts it. The client may then compress its messages too.
    pub deflate: Option<Deflate>,
    /// Headers of the request, limited to the ones forwarded to the back end.
    pub headers: Option<Arc<HeaderMap>>,
    /// The session's name for the server API and for commands in separate requests; a plain
    /// WebSocket has none.
    pub session: Option<Arc<str>>,
    /// The group of the client's address; `None` for a trusted proxy's.
    pub address: Option<Arc<str>>,
    /// The server sends ping frames of the WebSocket instead of pings of the protocol.
    pub frame_pings: bool,
}

#[cfg(test)]
impl ConnectionInfo {
    pub(crate) fn of(encoding: Encoding, transport: Transport) -> Self {
        Self { encoding, transport, deflate: None, headers: None, session: None, address: None, frame_pings: false }
    }
}

impl SessionIdentity {
    /// An anonymous identity without facts.
    pub(crate) fn new(client: Uuid, connection: ConnectionInfo, emulated: Option<Arc<HeaderMap>>) -> Self {
        let (user, facts, token_channels) = (String::new(), RwLock::default(), BTreeSet::new());
        Self { client, user, facts, connection, emulated, token_channels }
    }

    #[cfg(test)]
    pub(crate) fn ann(connection: ConnectionInfo) -> Self {
        Self { user: "ann".into(), ..Self::new(Uuid::nil(), connection, None) }
    }

    /// The user in a header of the session's HTTP request; `None` if it is absent or empty.
    pub(crate) fn user_in_header(&self, name: &str) -> Option<String> {
        let value = self.connection.headers.as_ref()?.get(name)?;
        std::str::from_utf8(value.as_bytes()).ok().filter(|user| !user.is_empty()).map(str::to_owned)
    }

    /// Replaces the facts that are given. Returns whether the information for other clients
    /// changed.
    pub(crate) fn learn(&self, info: Vec<u8>, meta: Option<Box<RawValue>>) -> bool {
        let mut facts = self.facts.write();
        if meta.is_some() {
            facts.meta = meta;
        }
        let news = !info.is_empty() && info != facts.info;
        if news {
            facts.info = info;
        }
        news
    }

    /// The information for other clients.
    pub fn client_info(&self, chan_info: &[u8]) -> ClientInfo {
        ClientInfo {
            user: self.user.clone(),
            client: self.client.to_string(),
            conn_info: self.facts.read().info.clone(),
            chan_info: chan_info.to_vec(),
        }
    }
}
