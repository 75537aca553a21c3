//! How events are brought to a back end: Centrifugo v6's proxy objects.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

use super::grpc::{ProxyGrpcConfig, SCHEME};
use super::tls::ProxyTlsConfig;
use crate::config::{GoDuration, LiveConfig, LiveConfigError};

/// The name of the proxy of an event that has no other name.
const DEFAULT: &str = "default";

/// Headers that belong to a connection or a body, so that they cannot be handed on.
const NOT_HANDED_ON: [&str; 9] = [
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

/// A proxy: where requests go, and what they are like.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxyConfig {
    /// Of one in `proxies`.
    pub name: Option<String>,
    /// For `client.proxy`: whether it is there.
    pub enabled: Option<bool>,
    /// `http://`, `https://` or `grpc://`.
    pub endpoint: String,
    /// How long a request may take, its wait for a place included.
    pub timeout: GoDuration,
    /// Headers of the client's own request that are handed on.
    pub http_headers: Vec<String>,
    /// Headers from the client's connect command that are handed on, where its request has none of that name.
    pub emulated_headers: Vec<String>,
    /// Data goes as Base64, since it may not be JSON.
    pub binary_encoding: bool,
    /// What the back end attached to the session goes along.
    pub include_connection_meta: bool,
    /// About the requests.
    pub http: ProxyHttpConfig,
    /// The same of an endpoint over `grpc://`.
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

/// About the requests of a proxy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxyHttpConfig {
    /// Headers that each request has, unless one of the client's takes their place.
    pub static_headers: BTreeMap<String, String>,
    /// Of an endpoint over `https://`.
    pub tls: ProxyTlsConfig,
    /// What a client is told when the answer has such a status.
    pub status_to_code_transforms: Vec<StatusTransform>,
}

/// What a status of HTTP means to a client: one of both.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StatusTransform {
    /// It.
    pub status_code: u16,
    /// An error.
    pub to_error: ErrorObject,
    /// The end of its session.
    pub to_disconnect: DisconnectObject,
}

/// An error for a client; none when the code is 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ErrorObject {
    /// 400 to 1999 are the back end's.
    pub code: u32,
    /// For people.
    pub message: String,
    /// Whether the client tries again.
    pub temporary: bool,
}

/// The end of a session; none when the code is 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DisconnectObject {
    /// 4000 to 4499: the client connects again; 4500 to 4999: it does not.
    pub code: u32,
    /// For people.
    pub reason: String,
}

/// `client.proxy`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientProxies {
    /// Asked about who connects without a token.
    pub connect: ProxyConfig,
    /// Asked how much longer a session lasts.
    pub refresh: ProxyConfig,
}

/// `channel.proxy`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChannelProxies {
    /// Asked whether a session may subscribe.
    pub subscribe: ProxyConfig,
    /// Asked whether a session may publish, and what.
    pub publish: ProxyConfig,
    /// Asked how much longer a subscription lasts.
    pub sub_refresh: ProxyConfig,
}

/// `rpc`: calls of clients to the back end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RpcConfig {
    /// Where they go.
    pub proxy: ProxyConfig,
    /// Those without a namespace.
    pub without_namespace: RpcNamespace,
    /// By name.
    pub namespaces: Vec<RpcNamespace>,
    /// Ends the namespace in a method.
    pub namespace_boundary: String,
}

impl Default for RpcConfig {
    fn default() -> Self {
        Self {
            proxy: ProxyConfig::default(),
            without_namespace: RpcNamespace::default(),
            namespaces: Vec::new(),
            namespace_boundary: ":".to_owned(),
        }
    }
}

/// A namespace of calls.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RpcNamespace {
    /// Its name.
    pub name: String,
    /// Whether there are calls.
    pub proxy_enabled: bool,
    /// Which proxy brings them; empty or `default` for `rpc.proxy`.
    pub proxy_name: String,
}

impl RpcConfig {
    /// The namespace of a method; `None` when there is no such one.
    pub fn namespace_of(&self, method: &str) -> Option<&RpcNamespace> {
        match method.split_once(self.namespace_boundary.as_str()) {
            None => Some(&self.without_namespace),
            Some((name, _)) => self.namespaces.iter().find(|namespace| namespace.name == name),
        }
    }
}

/// What is brought to a back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// Who connects without a token.
    Connect,
    /// A session that would end.
    Refresh,
    /// Who wants to subscribe.
    Subscribe,
    /// Who wants to publish.
    Publish,
    /// A subscription that would end.
    SubRefresh,
    /// A call.
    Rpc,
}

impl Event {
    /// Its name in metrics and in the log.
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

/// The proxies that are used: by event and name.
pub(super) fn used(config: &LiveConfig) -> Result<BTreeMap<(Event, String), ProxyConfig>, LiveConfigError> {
    let mut wanted: Vec<(Event, String, String)> = Vec::new();
    for (event, proxy, place) in [
        (Event::Connect, &config.client.proxy.connect, "client.proxy.connect"),
        (Event::Refresh, &config.client.proxy.refresh, "client.proxy.refresh"),
    ] {
        if proxy.enabled == Some(true) {
            wanted.push((event, DEFAULT.to_owned(), place.to_owned()));
        }
    }
    let named = config.channel.namespaces.iter().map(|n| (format!("channel.namespaces, {:?}", n.name), &n.options));
    let without = ("channel.without_namespace".to_owned(), &config.channel.without_namespace);
    for (place, options) in std::iter::once(without).chain(named) {
        for (event, enabled, name) in [
            (Event::Subscribe, options.subscribe_proxy_enabled, &options.subscribe_proxy_name),
            (Event::Publish, options.publish_proxy_enabled, &options.publish_proxy_name),
            (Event::SubRefresh, options.sub_refresh_proxy_enabled, &options.sub_refresh_proxy_name),
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
            wanted.push((Event::Rpc, name_of(&options.proxy_name).to_owned(), format!("{place}: proxy_name")));
        }
    }
    let mut found = BTreeMap::new();
    for (event, name, place) in wanted {
        let proxy = if name == DEFAULT {
            default_of(config, event)
        } else {
            let named = config.proxies.iter().find(|proxy| proxy.name.as_deref() == Some(&name));
            named.ok_or_else(|| LiveConfigError(format!("{place}: there is no proxy {name:?} in proxies")))?
        };
        found.insert((event, name), proxy.clone());
    }
    Ok(found)
}

/// The name of a proxy, as an option gives it.
pub(super) fn name_of(option: &str) -> &str {
    if option.is_empty() { DEFAULT } else { option }
}

fn default_of(config: &LiveConfig, event: Event) -> &ProxyConfig {
    match event {
        Event::Connect => &config.client.proxy.connect,
        Event::Refresh => &config.client.proxy.refresh,
        Event::Subscribe => &config.channel.proxy.subscribe,
        Event::Publish => &config.channel.proxy.publish,
        Event::SubRefresh => &config.channel.proxy.sub_refresh,
        Event::Rpc => &config.rpc.proxy,
    }
}

/// Checks what the types do not.
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
            return fail(format!("{place}.enabled: there is no such option; namespaces enable it"));
        }
    }
    let mut names = std::collections::BTreeSet::new();
    for proxy in &config.proxies {
        let name = proxy.name.as_deref().unwrap_or_default();
        let valid = name.len() > 1 && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if !valid || name == DEFAULT {
            return fail(format!("proxies: {name:?} is not a name: two letters, digits, -, _ or . at least"));
        }
        if proxy.enabled.is_some() {
            return fail(format!("proxies, {name:?}: enabled: there is no such option; namespaces enable it"));
        }
        if !names.insert(name) {
            return fail(format!("proxies: there are two of the name {name:?}"));
        }
    }
    let mut names = std::collections::BTreeSet::new();
    if config.rpc.namespace_boundary.is_empty() {
        return fail("rpc.namespace_boundary: it is empty".into());
    }
    for namespace in &config.rpc.namespaces {
        if namespace.name.len() < 2 || namespace.name.contains(&config.rpc.namespace_boundary) {
            return fail(format!("rpc.namespaces: {:?} is not a name", namespace.name));
        }
        if !names.insert(&namespace.name) {
            return fail(format!("rpc.namespaces: there are two of the name {:?}", namespace.name));
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
            return Err("endpoint: it is not set".into());
        }
        if self.timeout.0.is_zero() {
            return Err("timeout: it is 0".into());
        }
        self.grpc.check(self)?;
        if self.http.tls.client("http.tls")?.is_some() && !self.endpoint.starts_with("https://") {
            return Err("http.tls is enabled, and the endpoint does not begin with https://".into());
        }
        self.static_headers()?;
        names(&self.http_headers, "http_headers")?;
        names(&self.emulated_headers, "emulated_headers")?;
        for transform in &self.http.status_to_code_transforms {
            let (error, end) = (transform.to_error.code, transform.to_disconnect.code);
            if transform.status_code == 0 || (error == 0) == (end == 0) {
                return Err("http.status_to_code_transforms: each has a status_code, and either to_error or to_disconnect with a code".into());
            }
            if end != 0 && !(3000..5000).contains(&end) {
                return Err("http.status_to_code_transforms: a code of to_disconnect is 4000 to 4999".into());
            }
        }
        Ok(())
    }

    /// Whether the endpoint speaks gRPC.
    pub(super) fn is_grpc(&self) -> bool {
        self.endpoint.starts_with(SCHEME)
    }

    /// Headers that each request has.
    pub(super) fn static_headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.http.static_headers {
            let place = "http.static_headers";
            let value =
                HeaderValue::from_str(value).map_err(|_| format!("{place}: {name}: not a value of a header"))?;
            headers.insert(header_name(name, place)?, value);
        }
        Ok(headers)
    }
}

pub(super) fn header_name(name: &str, place: &str) -> Result<HeaderName, String> {
    let found = name.parse::<HeaderName>().map_err(|_| format!("{place}: {name:?} is not a name of a header"))?;
    if NOT_HANDED_ON.contains(&found.as_str()) {
        return Err(format!("{place}: {name} is set by the server"));
    }
    Ok(found)
}

/// Names of headers.
pub(super) fn names(names: &[String], place: &str) -> Result<Vec<HeaderName>, String> {
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
        assert_eq!(used[&(Event::Subscribe, "default".to_owned())].timeout.0, Duration::from_millis(250));
        assert_eq!(used[&(Event::Connect, "default".to_owned())].timeout.0, Duration::from_secs(1));
        assert!(config.rpc.namespace_of("ns:x").is_some_and(|n| n.proxy_enabled));
        assert!(config.rpc.namespace_of("off:x").is_some_and(|n| !n.proxy_enabled));
        assert!(config.rpc.namespace_of("no:x").is_none());
    }

    #[test]
    fn mistakes_and_what_is_not_supported_are_named() {
        let connect =
            |options: &str| format!(r#"{{"client": {{"proxy": {{"connect": {{"enabled": true, {options}}}}}}}}}"#);
        for (text, says) in [
            (connect(r#""endpoint": """#), "endpoint"),
            (connect(r#""endpoint": "grpc://b""#), "port"),
            (connect(r#""endpoint": "grpc://b:1/path""#), "path"),
            (connect(r#""endpoint": "grpc://b:1", "grpc": {"compression": true}"#), "compression"),
            (connect(r#""endpoint": "grpc://b:1", "grpc": {"credentials_value": "x"}"#), "credentials_key"),
            (connect(r#""endpoint": "grpc://b:1", "grpc": {"credentials_key": "grpc-x"}"#), "grpc-x"),
            (connect(r#""endpoint": "grpc://b:1", "http_headers": ["Trace-Bin"]"#), "Trace-Bin"),
            (connect(r#""endpoint": "grpc://b:1", "http": {"static_headers": {"a": "b"}}"#), "static_headers"),
            (connect(r#""endpoint": "grpc://b:1", "grpc": {"tls": {"enabled": true, "key_pem": "x"}}"#), "grpc.tls"),
            (connect(r#""endpoint": "http://b", "grpc": {"tls": {"enabled": true}}"#), "grpc://"),
            (connect(r#""endpoint": "http://b", "grpc_metadata": []"#), "grpc_metadata"),
            (connect(r#""endpoint": "http://b", "timeout": "0s""#), "timeout"),
            (connect(r#""endpoint": "http://b", "http_headers": ["Content-Length"]"#), "Content-Length"),
            (connect(r#""endpoint": "https://b", "http": {"tls": {"client_ca_pem": "x"}}"#), "client_ca_pem"),
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
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
