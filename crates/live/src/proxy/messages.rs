//! Requests to back ends and their replies: Centrifugo's proxy messages as JSON, and the form
//! between for gRPC.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::config::proxy::{DisconnectObject, ErrorObject, ProxyConfig};
use crate::options::SubscribeOptions;
use crate::protocol::codes::ClientError;
use crate::session::SessionIdentity;

/// A request of any event.
#[derive(Debug, Serialize)]
pub(crate) struct ProxyRequest<'a> {
    pub(crate) client: String,
    pub(crate) transport: &'static str,
    pub(crate) protocol: &'static str,
    pub(crate) encoding: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) channel: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) method: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) version: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) channels: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) b64data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<Box<RawValue>>,
    /// The client's data as received, for gRPC.
    #[serde(skip)]
    pub(crate) bytes: &'a [u8],
    #[serde(skip)]
    pub(crate) grpc: bool,
}

impl<'a> ProxyRequest<'a> {
    /// A request of a session whose user is known.
    pub(crate) fn about(identity: &'a SessionIdentity, config: &ProxyConfig) -> Self {
        Self {
            user: Some(&identity.user),
            meta: config.include_connection_meta.then(|| identity.facts.read().meta.clone()).flatten(),
            ..Self::new(identity, config)
        }
    }

    /// A request of a session that connects.
    pub(crate) fn new(identity: &SessionIdentity, config: &ProxyConfig) -> Self {
        Self {
            client: identity.client.to_string(),
            transport: identity.connection.transport.name(),
            protocol: identity.connection.encoding.name(),
            encoding: if config.binary_encoding { "binary" } else { "json" },
            user: None,
            channel: "",
            method: "",
            name: "",
            version: "",
            channels: Vec::new(),
            data: None,
            b64data: None,
            meta: None,
            bytes: &[],
            grpc: config.is_grpc(),
        }
    }

    /// Adds the client's data.
    ///
    /// # Errors
    /// The data is not JSON and the back end expects JSON.
    pub(crate) fn with(mut self, data: &'a [u8]) -> Result<Self, ClientError> {
        self.bytes = data;
        if data.is_empty() || self.grpc {
            return Ok(self);
        }
        if self.encoding == "binary" {
            self.b64data = Some(STANDARD.encode(data));
            return Ok(self);
        }
        self.data = Some(serde_json::from_slice(data).map_err(|_| ClientError::bad_request("the data is not JSON"))?);
        Ok(self)
    }
}

/// The answer to any request.
#[derive(Debug, Deserialize)]
pub(super) struct Answer<R> {
    pub(super) result: Option<R>,
    pub(super) error: Option<ErrorObject>,
    pub(super) disconnect: Option<DisconnectObject>,
}

/// The result of a connect event.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ConnectReply {
    pub(crate) user: String,
    /// Seconds since the Unix epoch; 0 for never.
    pub(crate) expire_at: u64,
    pub(crate) info: Option<Box<RawValue>>,
    pub(crate) b64info: String,
    pub(crate) data: Option<Box<RawValue>>,
    pub(crate) b64data: String,
    pub(crate) channels: Vec<String>,
    pub(crate) subs: BTreeMap<String, SubscribeOptions>,
    pub(crate) meta: Option<Box<RawValue>>,
}

/// The result of a refresh event, for a session or a subscription.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RefreshReply {
    pub(crate) expired: bool,
    /// Seconds since the Unix epoch; 0 for never.
    pub(crate) expire_at: u64,
    pub(crate) info: Option<Box<RawValue>>,
    pub(crate) b64info: String,
    /// The metadata of a session; sessions only.
    pub(crate) meta: Option<Box<RawValue>>,
}

/// The result of a publish event.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PublishReply {
    pub(crate) data: Option<Box<RawValue>>,
    pub(crate) b64data: String,
    pub(crate) skip_history: bool,
}

/// The result of an RPC event.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RpcReply {
    pub(crate) data: Option<Box<RawValue>>,
    pub(crate) b64data: String,
}
