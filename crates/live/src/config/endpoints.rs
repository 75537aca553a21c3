//! The ports over HTTP and their endpoints, with Centrifugo v6's names.

use serde::{Deserialize, Serialize};

use super::LiveConfig;
use super::grpc::ServerTlsConfig;

/// The port of the clients, and optionally an internal port of back ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpServerConfig {
    /// The address of the port; empty: all addresses of the host.
    pub address: String,
    /// The port.
    pub port: u16,
    /// The address of the internal port; empty: as `address`.
    pub internal_address: String,
    /// The port for the server API and `/health`, which the port of the clients then lacks; empty:
    /// as `port`.
    pub internal_port: String,
    /// TLS of the ports.
    pub tls: ServerTlsConfig,
    /// Whether the internal port is without TLS.
    pub tls_external: bool,
    /// TLS of the internal port, if different.
    pub internal_tls: ServerTlsConfig,
}

impl Default for HttpServerConfig {
    fn default() -> Self {
        Self {
            address: String::new(),
            port: 8000,
            internal_address: String::new(),
            internal_port: String::new(),
            tls: ServerTlsConfig::default(),
            tls_external: false,
            internal_tls: ServerTlsConfig::default(),
        }
    }
}

impl HttpServerConfig {
    /// The address and port for back ends; `None` if they are those of the clients. Each of the two
    /// may be that of the clients.
    ///
    /// # Errors
    /// The text is not a port; the message is for operators.
    pub fn internal(&self) -> Result<Option<(&str, u16)>, String> {
        let port = match self.internal_port.as_str() {
            "" => self.port,
            text => text.parse().map_err(|_| format!("http_server.internal_port: {text:?} is not a port"))?,
        };
        let address = match self.internal_address.as_str() {
            "" => &self.address,
            address => address,
        };
        Ok(Some((address, port)).filter(|internal| *internal != (self.address.as_str(), self.port)))
    }

    /// TLS of the internal port.
    pub fn tls_of_internal(&self) -> &ServerTlsConfig {
        static NONE: ServerTlsConfig = ServerTlsConfig::none();
        match self {
            Self { internal_tls, .. } if internal_tls.enabled => internal_tls,
            Self { tls_external: true, .. } => &NONE,
            Self { tls, .. } => tls,
        }
    }
}

/// The server API over HTTP.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpApiConfig {
    /// Whether there is no such API.
    pub disabled: bool,
    /// The beginning of its paths; empty: `/api`.
    pub handler_prefix: String,
    /// The API key that `X-API-Key` must match. Empty: all calls are refused.
    pub key: String,
    /// Accept calls without a key. For tests.
    pub insecure: bool,
    /// `transport`: errors are HTTP statuses. Empty: the status is 200 and the body has the error.
    pub error_mode: String,
    /// Whether the port of the clients has the API, where there is an internal port.
    pub external: bool,
}

/// The WebSocket endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebSocketConfig {
    /// Whether there is no such endpoint.
    pub disabled: bool,
    /// Its path; empty: `/connection/websocket`.
    pub handler_prefix: String,
    /// Maximum size of a client message in bytes, compressed and decompressed.
    pub message_size_limit: usize,
    /// Whether to compress messages for clients that offer permessage-deflate.
    pub compression: bool,
    /// Minimum size in bytes of a message to compress.
    pub compression_min_size: u32,
    /// Compression level, from 1 (fast) to 9 (small).
    pub compression_level: u8,
}

impl Default for WebSocketConfig {
    fn default() -> Self {
        Self {
            disabled: false,
            handler_prefix: String::new(),
            message_size_limit: 64 << 10,
            compression: false,
            compression_min_size: 0,
            compression_level: 1,
        }
    }
}

/// An optional endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EndpointConfig {
    /// Whether the endpoint is served.
    pub enabled: bool,
    /// Its path; empty: that of Centrifugo.
    pub handler_prefix: String,
}

/// The endpoint for commands of sessions with a streaming answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EmulationConfig {
    /// Its path; empty: `/emulation`.
    pub handler_prefix: String,
}

/// The endpoint that tells load balancers that the port answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HealthConfig {
    /// Its path; empty: `/health`. The same path with `/ready` is 503 while the server is not
    /// ready.
    pub handler_prefix: String,
}

/// An endpoint of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Endpoint {
    WebSocket,
    HttpStream,
    Sse,
    UniWebSocket,
    UniHttpStream,
    UniSse,
    Emulation,
    Api,
    Health,
}

impl LiveConfig {
    /// The path of an endpoint, with a slash at its start and none at its end.
    fn path_of(&self, endpoint: Endpoint) -> String {
        let (prefix, default) = match endpoint {
            Endpoint::WebSocket => (&self.websocket.handler_prefix, "connection/websocket"),
            Endpoint::HttpStream => (&self.http_stream.handler_prefix, "connection/http_stream"),
            Endpoint::Sse => (&self.sse.handler_prefix, "connection/sse"),
            Endpoint::UniWebSocket => (&self.uni_websocket.handler_prefix, "connection/uni_websocket"),
            Endpoint::UniHttpStream => (&self.uni_http_stream.handler_prefix, "connection/uni_http_stream"),
            Endpoint::UniSse => (&self.uni_sse.handler_prefix, "connection/uni_sse"),
            Endpoint::Emulation => (&self.emulation.handler_prefix, "emulation"),
            Endpoint::Api => (&self.http_api.handler_prefix, "api"),
            Endpoint::Health => (&self.health.handler_prefix, "health"),
        };
        format!("/{}", if prefix.is_empty() { default } else { prefix.trim_matches('/') })
    }

    /// Whether an endpoint is served.
    fn serves(&self, endpoint: Endpoint) -> bool {
        match endpoint {
            Endpoint::WebSocket => !self.websocket.disabled,
            Endpoint::HttpStream => self.http_stream.enabled,
            Endpoint::Sse => self.sse.enabled,
            Endpoint::UniWebSocket => self.uni_websocket.enabled,
            Endpoint::UniHttpStream => self.uni_http_stream.enabled,
            Endpoint::UniSse => self.uni_sse.enabled,
            Endpoint::Emulation => self.http_stream.enabled || self.sse.enabled,
            Endpoint::Api => !self.http_api.disabled,
            Endpoint::Health => true,
        }
    }
}

/// The endpoints that a port has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortKind {
    /// That of the clients.
    External,
    /// That of back ends, where there is one.
    Internal,
}

impl LiveConfig {
    /// The endpoints of a port, with their paths. Where there is an internal port, only it has
    /// `/health`, and the API. With `http_api.external` the port of the clients has the API.
    pub(crate) fn endpoints(&self, port: PortKind) -> Vec<(Endpoint, String)> {
        let divided = self.http_server.internal().is_ok_and(|port| port.is_some());
        let has = |endpoint: &Endpoint| match (endpoint, port) {
            (Endpoint::Api, PortKind::External) => !divided || self.http_api.external,
            (Endpoint::Health, PortKind::External) => !divided,
            (Endpoint::Api, PortKind::Internal) => !self.http_api.external,
            (Endpoint::Health, PortKind::Internal) => true,
            (_, PortKind::External) => true,
            (_, PortKind::Internal) => false,
        };
        let served = ENDPOINTS.into_iter().filter(|endpoint| self.serves(*endpoint)).filter(has);
        served.map(|endpoint| (endpoint, self.path_of(endpoint))).collect()
    }
}

/// All endpoints.
const ENDPOINTS: [Endpoint; 9] = [
    Endpoint::WebSocket,
    Endpoint::HttpStream,
    Endpoint::Sse,
    Endpoint::UniWebSocket,
    Endpoint::UniHttpStream,
    Endpoint::UniSse,
    Endpoint::Emulation,
    Endpoint::Api,
    Endpoint::Health,
];

/// Checks what the types do not enforce.
pub(super) fn check(config: &LiveConfig) -> Result<(), String> {
    if !matches!(config.http_api.error_mode.as_str(), "" | "transport") {
        return Err("http_api.error_mode: use \"transport\" or leave it empty".to_owned());
    }
    if !(1..=9).contains(&config.websocket.compression_level) {
        return Err("websocket.compression_level: 1 to 9".to_owned());
    }
    config.http_server.internal()?;
    let served: Vec<(Endpoint, String)> = ENDPOINTS
        .into_iter()
        .filter(|endpoint| config.serves(*endpoint))
        .map(|endpoint| (endpoint, config.path_of(endpoint)))
        .collect();
    for (at, (_, path)) in served.iter().enumerate() {
        if served[..at].iter().any(|(_, other)| other == path) {
            return Err(format!("handler_prefix: two endpoints have the path {path}: change one of them"));
        }
    }
    Ok(())
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
    fn paths_of_endpoints() {
        let config = checked(r#"{"websocket": {"handler_prefix": "ws/"}, "http_api": {"handler_prefix": "/v1/api"}}"#);
        let config = config.expect("valid");
        assert_eq!(config.path_of(Endpoint::WebSocket), "/ws");
        assert_eq!(config.path_of(Endpoint::Api), "/v1/api");
        assert_eq!(checked(r#"{"sse": {"handler_prefix": "/"}}"#).expect("valid").path_of(Endpoint::Sse), "/");
        assert_eq!(config.path_of(Endpoint::Sse), "/connection/sse");
        let twice = r#"{"sse": {"enabled": true, "handler_prefix": "/connection/websocket"}}"#;
        assert!(checked(twice).expect_err("two").contains("/connection/websocket"));
        checked(&twice.replace("true", "false")).expect("one of them is off");
    }

    #[test]
    fn the_internal_port() {
        let internal = |text: &str| {
            let config = checked(&format!(r#"{{"http_server": {text}}}"#))?;
            let found = config.http_server.internal()?;
            Ok::<_, String>(found.map(|(address, port)| (address.to_owned(), port)))
        };
        assert_eq!(internal(r#"{"internal_port": "9000"}"#), Ok(Some(("".to_owned(), 9000))));
        assert_eq!(internal(r#"{"internal_port": "8000"}"#), Ok(None), "the same port");
        assert_eq!(internal(r#"{"internal_address": "10.0.0.1"}"#), Ok(Some(("10.0.0.1".to_owned(), 8000))));
        assert_eq!(internal("{}"), Ok(None));
        assert!(internal(r#"{"internal_port": "x"}"#).is_err());
        let divided = checked(r#"{"http_server": {"internal_port": "9000"}}"#).expect("valid");
        let of = |config: &LiveConfig, port| config.endpoints(port).into_iter().map(|(e, _)| e).collect::<Vec<_>>();
        assert_eq!(of(&divided, PortKind::External), [Endpoint::WebSocket]);
        assert_eq!(of(&divided, PortKind::Internal), [Endpoint::Api, Endpoint::Health]);
        let external = checked(r#"{"http_server": {"internal_port": "9000"}, "http_api": {"external": true}}"#);
        assert_eq!(of(&external.expect("valid"), PortKind::Internal), [Endpoint::Health]);
        assert_eq!(
            of(&LiveConfig::default(), PortKind::External),
            [Endpoint::WebSocket, Endpoint::Api, Endpoint::Health]
        );
        let tls = |text: &str| {
            let config = checked(&format!(r#"{{"http_server": {text}}}"#)).expect("valid");
            config.http_server.tls_of_internal().cert_pem.clone()
        };
        let both = r#"{"tls": {"enabled": true, "cert_pem": "a"}, "internal_tls": {"enabled": true, "cert_pem": "b"}}"#;
        assert_eq!(tls(both), "b");
        assert_eq!(tls(r#"{"tls": {"enabled": true, "cert_pem": "a"}}"#), "a");
        assert_eq!(tls(r#"{"tls": {"enabled": true, "cert_pem": "a"}, "tls_external": true}"#), "");
    }
}
