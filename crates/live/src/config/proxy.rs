//! Proxies of events to a back end: Centrifugo v6's proxy objects.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

use super::proxy_grpc::{ProxyGrpcConfig, SCHEME};
use super::tls::ProxyTlsConfig;
use crate::config::{GoDuration, LiveConfig, LiveConfigError};

/// The name of the default proxy of an event.
const DEFAULT: &str = "default";

/// Headers of a connection or body, which cannot be forwarded.
const NOT_FORWARDED: [&str; 9] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A proxy: its endpoint and the form of its requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxyConfig {
    /// The name, in `proxies` only.
    pub name: Option<String>,
    /// Whether the proxy is used, in `client.proxy` only.
    pub enabled: Option<bool>,
    /// `http://`, `https://` or `grpc://`.
    pub endpoint: String,
    /// Timeout of a request, including the wait for a permit.
    pub timeout: GoDuration,
    /// Headers of the client's HTTP request to forward.
    pub http_headers: Vec<String>,
    /// Headers of the client's connect command to forward, unless its HTTP request has them.
    pub emulated_headers: Vec<String>,
    /// Whether to send data as Base64, because it may not be JSON.
    pub binary_encoding: bool,
    /// Whether to send the metadata that the back end attached to the session.
    pub include_connection_meta: bool,
    /// Settings of an HTTP endpoint.
    pub http: ProxyHttpConfig,
    /// Settings of a `grpc://` endpoint.
    pub grpc: ProxyGrpcConfig,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        Self {
            name: None,
            enabled: None,
            endpoint: String::new(),
            timeout: GoDuration(Duration::from_secs(1)),
            http_headers: Vec::new(),
            emulated_headers: Vec::new(),
            binary_encoding: false,
            include_connection_meta: false,
            http: ProxyHttpConfig::default(),
            grpc: ProxyGrpcConfig::default(),
        }
    }
}

/// Settings of an HTTP endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxyHttpConfig {
    /// Headers of each request, unless a forwarded header replaces them.
    pub static_headers: BTreeMap<String, String>,
    /// TLS settings of an `https://` endpoint.
    pub tls: ProxyTlsConfig,
    /// Replies to the client for HTTP statuses other than 200.
    pub status_to_code_transforms: Vec<StatusTransform>,
}

/// The reply for an HTTP status: an error or a disconnect.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StatusTransform {
    /// The HTTP status.
    pub status_code: u16,
    /// The error.
    pub to_error: ErrorObject,
    /// The disconnect.
    pub to_disconnect: DisconnectObject,
}

/// An error for a client; code 0: none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ErrorObject {
    /// The code; back ends use 400 to 1999.
    pub code: u32,
    /// The text, for people.
    pub message: String,
    /// Whether the client should retry.
    pub temporary: bool,
}

/// A disconnect of a session; code 0: none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DisconnectObject {
    /// The code; 4000 to 4499: the client reconnects; 4500 to 4999: it does not.
    pub code: u32,
    /// The text, for people.
    pub reason: String,
}

/// `client.proxy`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientProxies {
    /// Decides on sessions that connect without a token.
    pub connect: ProxyConfig,
    /// Extends expiring sessions.
    pub refresh: ProxyConfig,
}

/// `channel.proxy`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChannelProxies {
    /// Decides on subscriptions.
    pub subscribe: ProxyConfig,
    /// Decides on publications of clients and may change them.
    pub publish: ProxyConfig,
    /// Extends expiring subscriptions.
    pub sub_refresh: ProxyConfig,
}

/// The kinds of events that a back end decides on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProxyEvent {
    /// A session connects without a token.
    Connect,
    /// A session expires.
    Refresh,
    /// A session subscribes.
    Subscribe,
    /// A session publishes.
    Publish,
    /// A subscription expires.
    SubRefresh,
    /// A session calls a method.
    Rpc,
}

impl ProxyEvent {
    /// The name in metrics and in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Refresh => "refresh",
            Self::Subscribe => "subscribe",
            Self::Publish => "publish",
            Self::SubRefresh => "sub_refresh",
            Self::Rpc => "rpc",
        }
    }
}

/// The proxies in use, by event and name.
pub(crate) fn used(config: &LiveConfig) -> Result<BTreeMap<(ProxyEvent, String), ProxyConfig>, LiveConfigError> {
    let mut wanted: Vec<(ProxyEvent, String, String)> = Vec::new();
    for (event, proxy, place) in [
        (ProxyEvent::Connect, &config.client.proxy.connect, "client.proxy.connect"),
        (ProxyEvent::Refresh, &config.client.proxy.refresh, "client.proxy.refresh"),
    ] {
        if proxy.enabled == Some(true) {
            wanted.push((event, DEFAULT.to_owned(), place.to_owned()));
        }
    }
    let named = config.channel.namespaces.iter().map(|n| (format!("channel.namespaces, {:?}", n.name), &n.options));
    let without = ("channel.without_namespace".to_owned(), &config.channel.without_namespace);
    for (place, options) in std::iter::once(without).chain(named) {
        for (event, enabled, name) in [
            (ProxyEvent::Subscribe, options.subscribe_proxy_enabled, &options.subscribe_proxy_name),
            (ProxyEvent::Publish, options.publish_proxy_enabled, &options.publish_proxy_name),
            (ProxyEvent::SubRefresh, options.sub_refresh_proxy_enabled, &options.sub_refresh_proxy_name),
        ] {
            if enabled {
                wanted.push((event, name_of(name).to_owned(), format!("{place}: {}_proxy_name", event.name())));
            }
        }
    }
    let named = config.rpc.namespaces.iter().map(|n| (format!("rpc.namespaces, {:?}", n.name), n));
    let without = ("rpc.without_namespace".to_owned(), &config.rpc.without_namespace);
    for (place, options) in std::iter::once(without).chain(named) {
        if options.proxy_enabled {
            wanted.push((ProxyEvent::Rpc, name_of(&options.proxy_name).to_owned(), format!("{place}: proxy_name")));
        }
    }
    let mut found = BTreeMap::new();
    for (event, name, place) in wanted {
        let proxy = if name == DEFAULT {
            default_of(config, event)
        } else {
            let named = config.proxies.iter().find(|proxy| proxy.name.as_deref() == Some(&name));
            named.ok_or_else(|| LiveConfigError(format!("{place}: proxies has no proxy {name:?}")))?
        };
        found.insert((event, name), proxy.clone());
    }
    Ok(found)
}

/// The name of the proxy that an option selects.
pub(crate) fn name_of(option: &str) -> &str {
    if option.is_empty() { DEFAULT } else { option }
}

fn default_of(config: &LiveConfig, event: ProxyEvent) -> &ProxyConfig {
    match event {
        ProxyEvent::Connect => &config.client.proxy.connect,
        ProxyEvent::Refresh => &config.client.proxy.refresh,
        ProxyEvent::Subscribe => &config.channel.proxy.subscribe,
        ProxyEvent::Publish => &config.channel.proxy.publish,
        ProxyEvent::SubRefresh => &config.channel.proxy.sub_refresh,
        ProxyEvent::Rpc => &config.rpc.proxy,
    }
}

/// Checks what the types do not enforce.
pub(crate) fn check(config: &LiveConfig) -> Result<(), LiveConfigError> {
    let fail = |text: String| Err(LiveConfigError(text));
    let channel = &config.channel.proxy;
    for (place, proxy) in [
        ("channel.proxy.subscribe", &channel.subscribe),
        ("channel.proxy.publish", &channel.publish),
        ("channel.proxy.sub_refresh", &channel.sub_refresh),
        ("rpc.proxy", &config.rpc.proxy),
    ] {
        if proxy.enabled.is_some() {
            return fail(format!("{place}.enabled: no such option; enable the proxy in namespaces"));
        }
    }
    let mut names = std::collections::BTreeSet::new();
    for proxy in &config.proxies {
        let name = proxy.name.as_deref().unwrap_or_default();
        let valid = name.len() > 1 && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if !valid || name == DEFAULT {
            return fail(format!("proxies: {name:?} is not a name: use at least two letters, digits, -, _ or ."));
        }
        if proxy.enabled.is_some() {
            return fail(format!("proxies, {name:?}: enabled: no such option; enable the proxy in namespaces"));
        }
        if !names.insert(name) {
            return fail(format!("proxies: two of the name {name:?}: rename one"));
        }
    }
    let mut names = std::collections::BTreeSet::new();
    if config.rpc.namespace_boundary.is_empty() {
        return fail("rpc.namespace_boundary is empty".into());
    }
    for namespace in &config.rpc.namespaces {
        if namespace.name.len() < 2 || namespace.name.contains(&config.rpc.namespace_boundary) {
            return fail(format!("rpc.namespaces: {:?} is not a name", namespace.name));
        }
        if !names.insert(&namespace.name) {
            return fail(format!("rpc.namespaces: two of the name {:?}: rename one", namespace.name));
        }
    }
    for ((event, name), proxy) in used(config)? {
        proxy.check().map_err(|e| LiveConfigError(format!("the {} proxy {name:?}: {e}", event.name())))?;
    }
    Ok(())
}

impl ProxyConfig {
    fn check(&self) -> Result<(), String> {
        if self.endpoint.is_empty() {
            return Err("endpoint is not set".into());
        }
        if self.timeout.0.is_zero() {
            return Err("timeout is 0".into());
        }
        self.grpc.check(self)?;
        if self.http.tls.client("http.tls")?.is_some() && !self.endpoint.starts_with("https://") {
            return Err("http.tls is enabled, but the endpoint does not begin with https://".into());
        }
        self.static_headers()?;
        names(&self.http_headers, "http_headers")?;
        names(&self.emulated_headers, "emulated_headers")?;
        for transform in &self.http.status_to_code_transforms {
            let (error, end) = (transform.to_error.code, transform.to_disconnect.code);
            if transform.status_code == 0 || (error == 0) == (end == 0) {
                return Err("http.status_to_code_transforms: each needs a status_code, and either to_error or to_disconnect with a code".into());
            }
            if end != 0 && !(3000..5000).contains(&end) {
                return Err("http.status_to_code_transforms: use 4000 to 4999 as code of to_disconnect".into());
            }
        }
        Ok(())
    }

    /// Whether the endpoint uses gRPC.
    pub(crate) fn is_grpc(&self) -> bool {
        self.endpoint.starts_with(SCHEME)
    }

    /// The headers of each request.
    pub(crate) fn static_headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.http.static_headers {
            let place = "http.static_headers";
            let value =
                HeaderValue::from_str(value).map_err(|_| format!("{place}: {name}: not a valid header value"))?;
            headers.insert(header_name(name, place)?, value);
        }
        Ok(headers)
    }
}

pub(crate) fn header_name(name: &str, place: &str) -> Result<HeaderName, String> {
    let found = name.parse::<HeaderName>().map_err(|_| format!("{place}: {name:?} is not a valid header name"))?;
    if NOT_FORWARDED.contains(&found.as_str()) {
        return Err(format!("{place}: {name}: only the server sets this header"));
    }
    Ok(found)
}

/// Parses header names.
pub(crate) fn names(names: &[String], place: &str) -> Result<Vec<HeaderName>, String> {
    names.iter().map(|name| header_name(name, place)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<LiveConfig, String> {
        let config: LiveConfig = serde_json::from_str(text).map_err(|e| e.to_string())?;
        config.check().map_err(|e| e.to_string())?;
        Ok(config)
    }

    #[test]
    fn proxies_are_found_by_event_and_name() {
        let config = checked(
            r#"{"client": {"proxy": {"connect": {"enabled": true, "endpoint": "http://b/c", "http_headers": ["Cookie"]},
                                     "refresh": {"endpoint": "http://b/unused"}}},
                "channel": {"proxy": {"subscribe": {"endpoint": "https://b/s", "timeout": "250ms"}},
                    "without_namespace": {"subscribe_proxy_enabled": true},
                    "namespaces": [{"name": "sun", "publish_proxy_enabled": true, "publish_proxy_name": "other"}]},
                "rpc": {"proxy": {"endpoint": "http://b/r"}, "without_namespace": {"proxy_enabled": true},
                    "namespaces": [{"name": "ns", "proxy_enabled": true, "proxy_name": "other"}, {"name": "off"}]},
                "proxies": [{"name": "other", "endpoint": "http://o/"}]}"#,
        )
        .expect("valid");
        let used = used(&config).expect("all there");
        let found: Vec<_> = used.iter().map(|((e, name), p)| (e.name(), name.as_str(), p.endpoint.as_str())).collect();
        let expected = [
            ("connect", "default", "http://b/c"),
            ("subscribe", "default", "https://b/s"),
            ("publish", "other", "http://o/"),
            ("rpc", "default", "http://b/r"),
            ("rpc", "other", "http://o/"),
        ];
        assert_eq!(found, expected);
        assert_eq!(used[&(ProxyEvent::Subscribe, "default".to_owned())].timeout.0, Duration::from_millis(250));
        assert_eq!(used[&(ProxyEvent::Connect, "default".to_owned())].timeout.0, Duration::from_secs(1));
        assert!(config.rpc.namespace_of("ns:x").is_some_and(|n| n.proxy_enabled));
        assert!(config.rpc.namespace_of("off:x").is_some_and(|n| !n.proxy_enabled));
        assert!(config.rpc.namespace_of("no:x").is_none());
    }

    #[test]
    fn static_metadata() {
        let grpc = r#"{"client": {"proxy": {"connect": {"enabled": true, "endpoint": "grpc://b:1",
            "grpc": {"static_metadata": {"Key": "v"}}}}}}"#;
        let metadata = checked(grpc).expect("valid").client.proxy.connect.grpc.static_metadata().expect("valid");
        assert_eq!(metadata["key"], "v");
        assert!(!format!("{metadata:?}").contains("\"v\""), "it may be a secret");
    }

    #[test]
    fn mistakes_and_unsupported_options_are_named() {
        let connect =
            |options: &str| format!(r#"{{"client": {{"proxy": {{"connect": {{"enabled": true, {options}}}}}}}}}"#);
        for (text, expected) in [
            (connect(r#""endpoint": """#), "endpoint"),
            (connect(r#""endpoint": "grpc://b""#), "port"),
            (connect(r#""endpoint": "grpc://b:1/path""#), "path"),
            (connect(r#""endpoint": "grpc://b:1", "grpc": {"static_metadata": {"grpc-x": "y"}}"#), "grpc-x"),
            (connect(r#""endpoint": "grpc://b:1", "grpc": {"static_metadata": {"a": "é"}}"#), "static_metadata"),
            (connect(r#""endpoint": "grpc://b:1", "grpc": {"credentials_value": "x"}"#), "credentials_key"),
            (connect(r#""endpoint": "grpc://b:1", "grpc": {"credentials_key": "grpc-x"}"#), "grpc-x"),
            (connect(r#""endpoint": "grpc://b:1", "http_headers": ["Trace-Bin"]"#), "Trace-Bin"),
            (connect(r#""endpoint": "grpc://b:1", "http": {"static_headers": {"a": "b"}}"#), "static_headers"),
            (connect(r#""endpoint": "grpc://b:1", "grpc": {"tls": {"enabled": true, "key_pem": "x"}}"#), "grpc.tls"),
            (connect(r#""endpoint": "http://b", "grpc": {"tls": {"enabled": true}}"#), "grpc://"),
            (connect(r#""endpoint": "http://b", "timeout": "0s""#), "timeout"),
            (connect(r#""endpoint": "http://b", "http_headers": ["Content-Length"]"#), "Content-Length"),
            (
                connect(
                    r#""endpoint": "https://b", "http": {"tls": {"enabled": true, "key_pem": "x", "server_ca_pem": "gone.pem"}}"#,
                ),
                "gone.pem",
            ),
            (
                connect(r#""endpoint": "http://b", "http": {"tls": {"enabled": true, "insecure_skip_verify": true}}"#),
                "https://",
            ),
            (
                connect(r#""endpoint": "http://b", "http": {"status_to_code_transforms": [{"status_code": 404}]}"#),
                "to_error",
            ),
            (r#"{"channel": {"without_namespace": {"subscribe_proxy_enabled": true}}}"#.into(), "endpoint"),
            (r#"{"channel": {"proxy": {"subscribe": {"enabled": true}}}}"#.into(), "channel.proxy.subscribe.enabled"),
            (r#"{"channel": {"proxy": {"state": {}}}}"#.into(), "state"),
            (
                r#"{"channel": {"without_namespace": {"subscribe_stream_proxy_enabled": true}}}"#.into(),
                "subscribe_stream_proxy",
            ),
            (r#"{"rpc": {"without_namespace": {"proxy_enabled": true, "proxy_name": "gone"}}}"#.into(), "gone"),
            (r#"{"proxies": [{"name": "ab", "endpoint": "http://b"}, {"name": "ab"}]}"#.into(), "two of the name"),
        ] {
            let error = checked(&text).expect_err(&text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
