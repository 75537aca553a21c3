//! Subscription options from a back end: in the server API, in tokens and in proxy answers.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::config::NamespaceOptions;
use crate::outgoing::is_json;
use crate::protocol::codes::ClientError;
use crate::protocol::json::null_is_absent;
use crate::protocol::message::StreamPosition;

/// Options of a subscription from a back end.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SubscribeOptions {
    /// The `info` of the subscription shown to other clients.
    pub(crate) info: Option<Box<RawValue>>,
    #[serde(deserialize_with = "null_is_absent")]
    pub(crate) b64info: String,
    /// Data for the subscribing client.
    pub(crate) data: Option<Box<RawValue>>,
    #[serde(deserialize_with = "null_is_absent")]
    pub(crate) b64data: String,
    /// Seconds since the Unix epoch; 0: no expiry.
    #[serde(deserialize_with = "null_is_absent")]
    pub(crate) expire_at: u64,
    #[serde(rename = "override")]
    pub(crate) overrides: Option<Overrides>,
}

/// Namespace options that the subscription overrides. Unknown names are ignored, as in Centrifugo,
/// because older versions had others.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Overrides {
    pub(crate) presence: Option<Bool>,
    pub(crate) join_leave: Option<Bool>,
    pub(crate) force_push_join_leave: Option<Bool>,
    pub(crate) force_recovery: Option<Bool>,
    pub(crate) force_positioning: Option<Bool>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Bool {
    #[serde(deserialize_with = "null_is_absent")]
    pub(crate) value: bool,
}

/// A server-side subscription that a back end requests.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Wanted {
    pub(crate) channel: String,
    pub(crate) options: SubscribeOptions,
    /// The position to recover from.
    pub(crate) since: Option<StreamPosition>,
}

/// Bytes from a JSON field `name` or its Base64 variant, which has precedence.
pub(crate) fn bytes_of(name: &str, json: Option<&RawValue>, base64: &str) -> Result<Vec<u8>, ClientError> {
    if !base64.is_empty() {
        return STANDARD.decode(base64).map_err(|e| ClientError::bad_request(format!("b64{name}: {e}")));
    }
    let json = json.map(RawValue::get).filter(|json| *json != "null");
    Ok(json.unwrap_or_default().as_bytes().to_vec())
}

/// The `info` of a session or subscription. It appears in presence and pushes of other clients,
/// which may use JSON.
pub(crate) fn info_of(json: Option<&RawValue>, base64: &str) -> Result<Vec<u8>, ClientError> {
    let info = bytes_of("info", json, base64)?;
    if !is_json(&info) {
        return Err(ClientError::bad_request("b64info: it must be JSON; other data is not supported"));
    }
    Ok(info)
}

impl SubscribeOptions {
    /// The `info` shown to other clients.
    pub(crate) fn info(&self) -> Result<Vec<u8>, ClientError> {
        info_of(self.info.as_deref(), &self.b64info)
    }

    /// The data for the subscribing client.
    pub(crate) fn data(&self) -> Result<Vec<u8>, ClientError> {
        bytes_of("data", self.data.as_deref(), &self.b64data)
    }

    /// The expiry in milliseconds since the Unix epoch.
    pub(crate) fn expires_ms(&self) -> Option<u64> {
        (self.expire_at > 0).then(|| self.expire_at.saturating_mul(1000))
    }

    /// The options of a namespace with the overrides applied.
    pub(crate) fn of<'a>(&self, namespace: &'a NamespaceOptions) -> Cow<'a, NamespaceOptions> {
        let Some(overrides) = &self.overrides else { return Cow::Borrowed(namespace) };
        let mut options = namespace.clone();
        let set = |option: &mut bool, value: &Option<Bool>| {
            if let Some(value) = value {
                *option = value.value;
            }
        };
        set(&mut options.presence, &overrides.presence);
        set(&mut options.join_leave, &overrides.join_leave);
        set(&mut options.force_push_join_leave, &overrides.force_push_join_leave);
        set(&mut options.force_recovery, &overrides.force_recovery);
        set(&mut options.force_positioning, &overrides.force_positioning);
        Cow::Owned(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(json: &str) -> Result<SubscribeOptions, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    #[test]
    fn bytes_are_json_or_base64() {
        let read = options(r#"{"info": {"a": 1}, "b64data": "/wA=", "expire_at": 7}"#).expect("valid");
        assert_eq!(read.info().expect("JSON"), br#"{"a": 1}"#);
        assert_eq!(read.data().expect("Base64"), [0xff, 0]);
        assert_eq!(read.expires_ms(), Some(7000));
        let read = options(r#"{"info": null, "b64info": "/wA=", "b64data": "?"}"#).expect("valid");
        assert!(read.info().expect_err("not JSON").message.contains("b64info"));
        assert!(read.data().expect_err("not Base64").message.contains("b64data"));
        let nothing = options("{}").expect("valid");
        assert_eq!((nothing.info(), nothing.data(), nothing.expires_ms()), (Ok(Vec::new()), Ok(Vec::new()), None));
    }

    #[test]
    fn only_overridden_options_change() {
        let namespace = NamespaceOptions { presence: true, join_leave: true, ..NamespaceOptions::default() };
        let read = options(r#"{"override": {"presence": {"value": false}, "force_positioning": {"value": true}}}"#);
        let found = read.expect("valid").of(&namespace).into_owned();
        let expected = NamespaceOptions { presence: false, force_positioning: true, ..namespace.clone() };
        assert_eq!(found, expected);
        let older = options(r#"{"override": {"recover": {"value": true}}}"#).expect("ignored, as Centrifugo does");
        assert_eq!(older.of(&namespace).into_owned(), namespace);
        options(r#"{"override": {"presence": 1}}"#).expect_err("not of this type");
    }
}
