//! Requests to back ends and their replies: Centrifugo's proxy messages as JSON, and the form
//! between for gRPC.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::config::proxy::{DisconnectObject, ErrorObject, ProxyConfig};
use crate::options::SubscribeOptions;
use crate::protocol::codes::ClientError;
use crate::protocol::json::{null_is_absent, null_values_are_absent};
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
    #[serde(default, deserialize_with = "error")]
    pub(super) error: Option<ErrorObject>,
    #[serde(default, deserialize_with = "disconnect")]
    pub(super) disconnect: Option<DisconnectObject>,
}

/// Reads an error, whose fields may be `null`. The configuration has the same object, and takes no
/// `null`.
fn error<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ErrorObject>, D::Error> {
    #[derive(Deserialize)]
    struct NullableError {
        code: Option<u32>,
        message: Option<String>,
        temporary: Option<bool>,
    }
    let read = Option::<NullableError>::deserialize(from)?;
    Ok(read.map(|NullableError { code, message, temporary }| ErrorObject {
        code: code.unwrap_or_default(),
        message: message.unwrap_or_default(),
        temporary: temporary.unwrap_or_default(),
    }))
}

/// Reads a disconnect, as above.
fn disconnect<'de, D: Deserializer<'de>>(from: D) -> Result<Option<DisconnectObject>, D::Error> {
    #[derive(Deserialize)]
    struct NullableDisconnect {
        code: Option<u32>,
        reason: Option<String>,
    }
    let read = Option::<NullableDisconnect>::deserialize(from)?;
    Ok(read.map(|NullableDisconnect { code, reason }| DisconnectObject {
        code: code.unwrap_or_default(),
        reason: reason.unwrap_or_default(),
    }))
}

/// The result of a connect event.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ConnectReply {
    #[serde(deserialize_with = "null_is_absent")]
    pub(crate) user: String,
    /// Seconds since the Unix epoch; 0 for never.
    #[serde(deserialize_with = "null_is_absent")]
    pub(crate) expire_at: u64,
    pub(crate) info: Option<Box<RawValue>>,
    #[serde(deserialize_with = "null_is_absent")]
    pub(crate) b64info: String,
    pub(crate) data: Option<Box<RawValue>>,
    #[serde(deserialize_with = "null_is_absent")]
    pub(crate) b64data: String,
    #[serde(deserialize_with = "null_is_absent")]
    pub(crate) channels: Vec<String>,
    #[serde(deserialize_with = "null_values_are_absent")]
    pub(crate) subs: BTreeMap<String, SubscribeOptions>,
    pub(crate) meta: Option<Box<RawValue>>,
}

/// The result of a refresh event, for a session or a subscription.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RefreshReply {
    #[serde(deserialize_with = "null_is_absent")]
    pub(crate) expired: bool,
    /// Seconds since the Unix epoch; 0 for never.
    #[serde(deserialize_with = "null_is_absent")]
    pub(crate) expire_at: u64,
    pub(crate) info: Option<Box<RawValue>>,
    #[serde(deserialize_with = "null_is_absent")]
    pub(crate) b64info: String,
    /// The metadata of a session; sessions only.
    pub(crate) meta: Option<Box<RawValue>>,
}

/// The result of a publish event.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PublishReply {
    pub(crate) data: Option<Box<RawValue>>,
    #[serde(deserialize_with = "null_is_absent")]
    pub(crate) b64data: String,
    #[serde(deserialize_with = "null_is_absent")]
    pub(crate) skip_history: bool,
}

/// The result of an RPC event.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RpcReply {
    pub(crate) data: Option<Box<RawValue>>,
    #[serde(deserialize_with = "null_is_absent")]
    pub(crate) b64data: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an answer in which all named fields are null, and one without them.
    fn both<R: std::fmt::Debug + serde::de::DeserializeOwned>(fields: &str) {
        let nulls: Vec<String> = fields.split(' ').map(|field| format!("\"{field}\": null")).collect();
        let nulls = format!(r#"{{"result": {{{}}}, "error": null, "disconnect": null}}"#, nulls.join(", "));
        let read = |json: &str| format!("{:?}", serde_json::from_str::<Answer<R>>(json).expect("valid"));
        assert_eq!(read(&nulls), read(r#"{"result": {}}"#));
    }

    #[test]
    fn null_is_absent_in_every_field() {
        both::<ConnectReply>("user expire_at info b64info data b64data channels subs meta");
        both::<RefreshReply>("expired expire_at info b64info meta");
        both::<PublishReply>("data b64data skip_history");
        both::<RpcReply>("data b64data");
        both::<SubscribeOptions>("info b64info data b64data expire_at override");
        let read: Answer<ConnectReply> = serde_json::from_str(
            r#"{"result": {"subs": {"a": null}}, "error": {"code": 7, "message": null, "temporary": null},
                "disconnect": {"code": 4000, "reason": null}}"#,
        )
        .expect("valid");
        assert_eq!(read.result.expect("a result").subs.len(), 1);
        assert_eq!(read.error, Some(ErrorObject { code: 7, ..ErrorObject::default() }));
        assert_eq!(read.disconnect, Some(DisconnectObject { code: 4000, ..DisconnectObject::default() }));
    }
}
