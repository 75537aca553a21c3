//! What is said to a back end and by it: Centrifugo's proxy requests and responses, in JSON and in between for gRPC.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::config::{DisconnectObject, ErrorObject, ProxyConfig};
use crate::options::SubscribeOptions;
use crate::partition::Who;
use crate::protocol::codes::ClientError;

/// A request, whatever it is about.
#[derive(Debug, Serialize)]
pub(crate) struct Ask<'a> {
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
    /// A client's data as it is, for gRPC.
    #[serde(skip)]
    pub(crate) bytes: &'a [u8],
    #[serde(skip)]
    pub(crate) grpc: bool,
}

impl<'a> Ask<'a> {
    /// About a session whose user is known.
    pub(crate) fn about(who: &'a Who, config: &ProxyConfig) -> Self {
        Self {
            user: Some(&who.user),
            meta: config.include_connection_meta.then(|| who.facts.read().meta.clone()).flatten(),
            ..Self::new(who, config)
        }
    }

    /// About a session that connects.
    pub(crate) fn new(who: &Who, config: &ProxyConfig) -> Self {
        Self {
            client: who.client.to_string(),
            transport: who.arrived.transport.name(),
            protocol: who.arrived.encoding.name(),
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

    /// With a client's data.
    ///
    /// # Errors
    /// Data that is not JSON, for a back end that expects it.
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

/// An answer.
#[derive(Debug, Deserialize)]
pub(super) struct Answer<R> {
    pub(super) result: Option<R>,
    pub(super) error: Option<ErrorObject>,
    pub(super) disconnect: Option<DisconnectObject>,
}

/// Of who connects.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ConnectSaid {
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

/// Of a session or a subscription that would end.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RefreshSaid {
    pub(crate) expired: bool,
    /// Seconds since the Unix epoch; 0 for never.
    pub(crate) expire_at: u64,
    pub(crate) info: Option<Box<RawValue>>,
    pub(crate) b64info: String,
    /// Of a session.
    pub(crate) meta: Option<Box<RawValue>>,
}

/// Of a publication.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PublishSaid {
    pub(crate) data: Option<Box<RawValue>>,
    pub(crate) b64data: String,
    pub(crate) skip_history: bool,
}

/// Of a call.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RpcSaid {
    pub(crate) data: Option<Box<RawValue>>,
    pub(crate) b64data: String,
}
