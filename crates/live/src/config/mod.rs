//! The configuration of the live door, with the names and nesting of Centrifugo v6, so that its
//! users can keep their files.
//!
//! An option that is not supported is refused by name.

pub(crate) mod auth;
mod centrifugo;
mod duration;
mod endpoints;
pub(crate) mod grpc;
pub(crate) mod jwks;
mod namespace;
mod placeholder;
pub(crate) mod proxy;
pub(crate) mod proxy_grpc;
mod rpc;
pub(crate) mod tls;

use std::collections::BTreeMap;
use std::time::Duration;

use regex::Regex;
use serde::{Deserialize, Serialize};
use steadfast_cluster::{NamespaceTerms, Namespaces};
use steadfast_store::CHANNEL_BYTES_MAX;

use self::auth::SubscriptionTokenConfig;
use self::proxy::{ChannelProxies, ClientProxies, ProxyConfig};
use self::rpc::RpcConfig;

pub use auth::TokenConfig;
pub use centrifugo::CentrifugoOptions;
pub use duration::GoDuration;
pub(crate) use endpoints::Endpoint;
pub use endpoints::{
    EmulationConfig, EndpointConfig, HealthConfig, HttpApiConfig, HttpServerConfig, PortKind, WebSocketConfig,
};
pub use grpc::{GrpcApiConfig, ServerTlsConfig};
pub use namespace::{ChannelDurability, Namespace, NamespaceOptions, Permission};
pub use placeholder::placeholders;
pub use tls::ProxyTlsConfig;

/// Bounds of `client.ping_interval`: each session has a place in a table of this length.
const PING_MIN: Duration = Duration::from_secs(1);
const PING_MAX: Duration = Duration::from_secs(24 * 3600);

/// An invalid configuration; the text is for operators.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("live: {0}")]
pub struct LiveConfigError(pub String);

/// The configuration of the live door.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LiveConfig {
    /// Options of sessions.
    pub client: ClientConfig,
    /// Options of channels.
    pub channel: ChannelConfig,
    /// The server API over HTTP.
    pub http_api: HttpApiConfig,
    /// The server API over gRPC, on its own port.
    pub grpc_api: GrpcApiConfig,
    /// Calls of clients to the back end.
    pub rpc: RpcConfig,
    /// Proxies that namespaces refer to by name.
    pub proxies: Vec<ProxyConfig>,
    /// The WebSocket endpoint.
    pub websocket: WebSocketConfig,
    /// `/emulation`.
    pub emulation: EmulationConfig,
    /// `/health`.
    pub health: HealthConfig,
    /// The port itself.
    pub http_server: HttpServerConfig,
    /// `/connection/http_stream`.
    pub http_stream: EndpointConfig,
    /// `/connection/sse`.
    pub sse: EndpointConfig,
    /// `/connection/uni_websocket`.
    pub uni_websocket: EndpointConfig,
    /// `/connection/uni_http_stream`.
    pub uni_http_stream: EndpointConfig,
    /// `/connection/uni_sse`.
    pub uni_sse: EndpointConfig,
}

/// Options of sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    /// Verification of connection tokens, and of subscription tokens by default.
    pub token: TokenConfig,
    /// Verification of subscription tokens, if different.
    pub subscription_token: SubscriptionTokenConfig,
    /// Proxies for session events.
    pub proxy: ClientProxies,
    /// Origins of pages that may connect; `*` matches any text. A request without an origin is not
    /// from a browser and may connect.
    pub allowed_origins: Vec<String>,
    /// Accept sessions without a token, with an empty user.
    pub allow_anonymous_connect_without_token: bool,
    /// Refuse connection tokens without a user.
    pub disallow_anonymous_connection_tokens: bool,
    /// The header of an HTTP request with the user of a session that has no token. The proxy in
    /// front of the server must remove it from the requests of clients.
    pub user_id_http_header: String,
    /// Accept tokens whatever their signature. For tests.
    pub insecure_skip_token_signature_verify: bool,
    /// Whether answers to connect contain the time of the server.
    pub connect_include_server_time: bool,
    /// Skip all permission checks. For tests.
    pub insecure: bool,
    /// Maximum number of subscriptions of a session.
    pub channel_limit: usize,
    /// Maximum number of sessions of a user; 0: no limit.
    pub user_connection_limit: usize,
    /// Maximum number of sessions; 0: as many as file descriptors allow.
    pub connection_limit: usize,
    /// Maximum size of the write queue of a session in bytes; above it, the server disconnects the
    /// session as slow.
    pub queue_max_size: usize,
    /// Interval between pings.
    pub ping_interval: GoDuration,
    /// Maximum wait for a pong.
    pub pong_timeout: GoDuration,
    /// Maximum wait for the connect command.
    pub stale_close_delay: GoDuration,
    /// Grace period of a session after its token has expired.
    pub expired_close_delay: GoDuration,
    /// Grace period of a subscription after its token has expired.
    pub expired_sub_close_delay: GoDuration,
    /// Maximum number of publications in a history reply.
    pub history_max_publication_limit: usize,
    /// Maximum number of publications in a recovery.
    pub recovery_max_publication_limit: usize,
    /// A server-side subscription of each user to a personal channel.
    pub subscribe_to_user_personal_channel: PersonalChannelConfig,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            token: TokenConfig::default(),
            subscription_token: SubscriptionTokenConfig::default(),
            proxy: ClientProxies::default(),
            allowed_origins: Vec::new(),
            allow_anonymous_connect_without_token: false,
            disallow_anonymous_connection_tokens: false,
            user_id_http_header: String::new(),
            insecure_skip_token_signature_verify: false,
            connect_include_server_time: false,
            insecure: false,
            channel_limit: 128,
            user_connection_limit: 0,
            connection_limit: 0,
            queue_max_size: 1 << 20,
            ping_interval: GoDuration::seconds(25),
            pong_timeout: GoDuration::seconds(8),
            stale_close_delay: GoDuration::seconds(10),
            expired_close_delay: GoDuration::seconds(25),
            expired_sub_close_delay: GoDuration::seconds(25),
            history_max_publication_limit: 300,
            recovery_max_publication_limit: 300,
            subscribe_to_user_personal_channel: PersonalChannelConfig::default(),
        }
    }
}

/// The personal channel of each user.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PersonalChannelConfig {
    /// Whether sessions are subscribed to it.
    pub enabled: bool,
    /// The namespace of the channel.
    pub personal_channel_namespace: String,
    /// Whether a new session of a user ends the other ones.
    pub single_connection: bool,
}

/// Options of channels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChannelConfig {
    /// Options of channels without a namespace.
    pub without_namespace: NamespaceOptions,
    /// Namespaces with their options.
    pub namespaces: Vec<Namespace>,
    /// Proxies for channel events, for the namespaces that enable them.
    pub proxy: ChannelProxies,
    /// How long the epoch and offset of a channel without publications are kept.
    pub history_meta_ttl: GoDuration,
    /// Maximum length of a channel name in bytes.
    pub max_length: usize,
    /// The prefix of channels that need a token, whatever the namespace permits.
    pub private_prefix: String,
    /// The end of the namespace in a channel name.
    pub namespace_boundary: String,
    /// The start of the users in a channel name.
    pub user_boundary: String,
    /// The separator of the users.
    pub user_separator: String,
    /// The default format of published data: see [`NamespaceOptions`]. Empty: any data except empty
    /// data.
    pub publication_data_format: String,
}

impl Default for ChannelConfig {
    fn default() -> Self {
        Self {
            without_namespace: NamespaceOptions::default(),
            namespaces: Vec::new(),
            proxy: ChannelProxies::default(),
            history_meta_ttl: GoDuration::seconds(30 * 24 * 3600),
            max_length: CHANNEL_BYTES_MAX,
            private_prefix: "$".to_owned(),
            namespace_boundary: ":".to_owned(),
            user_boundary: "#".to_owned(),
            user_separator: ",".to_owned(),
            publication_data_format: String::new(),
        }
    }
}

impl LiveConfig {
    /// Checks what the types do not enforce.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(&self) -> Result<(), LiveConfigError> {
        let fail = |text: String| Err(LiveConfigError(text));
        let mut names = std::collections::BTreeSet::new();
        let boundary = &self.channel.namespace_boundary;
        if boundary.is_empty() || self.channel.user_boundary.is_empty() || self.channel.user_separator.is_empty() {
            return fail("channel: a boundary or separator is empty".into());
        }
        if !(1..=CHANNEL_BYTES_MAX).contains(&self.channel.max_length) {
            return fail(format!("channel.max_length: use 1 to {CHANNEL_BYTES_MAX}"));
        }
        let without = ("channel.without_namespace".to_owned(), &self.channel.without_namespace);
        let named = self.channel.namespaces.iter().map(|n| (format!("channel.namespaces, {:?}", n.name), &n.options));
        for namespace in &self.channel.namespaces {
            if namespace.name.is_empty() || namespace.name.contains(boundary.as_str()) {
                return fail(format!("channel.namespaces: {:?} is not a name", namespace.name));
            }
            if !names.insert(&namespace.name) {
                return fail(format!("channel.namespaces: two of the name {:?}: rename one", namespace.name));
            }
        }
        for (place, options) in std::iter::once(without).chain(named) {
            options.check().map_err(|mistake| LiveConfigError(format!("{place}: {mistake}")))?;
        }
        self.channel_regexes()?;
        namespace::check_data_format(&self.channel.publication_data_format)
            .map_err(|mistake| LiveConfigError(format!("channel: {mistake}")))?;
        proxy::check(self)?;
        auth::check(&self.client)?;
        endpoints::check(self).map_err(LiveConfigError)?;
        self.grpc_api.check().map_err(LiveConfigError)?;
        let personal = &self.client.subscribe_to_user_personal_channel;
        let namespace = &personal.personal_channel_namespace;
        if personal.enabled && !namespace.is_empty() && !names.contains(namespace) {
            return fail(format!("personal_channel_namespace: no namespace {namespace:?} is configured"));
        }
        let space = self.channel.namespaces.iter().find(|one| personal.enabled && one.name == *namespace);
        let options = space.map_or(&self.channel.without_namespace, |space| &space.options);
        if personal.single_connection && !options.presence {
            return fail("single_connection needs presence in the namespace of the personal channel".into());
        }
        let ping = self.client.ping_interval;
        if !(PING_MIN..=PING_MAX).contains(&ping.0) || self.client.pong_timeout >= ping {
            return fail("client.ping_interval: use 1s to 24h, and more than client.pong_timeout".into());
        }
        Ok(())
    }

    /// Splits a channel name into its namespace, if it has one, and the rest.
    pub fn split<'a>(&self, channel: &'a str) -> (Option<&'a str>, &'a str) {
        let name = channel.strip_prefix(self.channel.private_prefix.as_str()).unwrap_or(channel);
        match name.split_once(self.channel.namespace_boundary.as_str()) {
            Some((namespace, rest)) => (Some(namespace), rest),
            None => (None, channel),
        }
    }

    /// The compiled expressions for channel names, by their text.
    ///
    /// # Errors
    /// A text that is not a regular expression.
    pub(crate) fn channel_regexes(&self) -> Result<BTreeMap<String, Regex>, LiveConfigError> {
        let options = self.channel.namespaces.iter().map(|namespace| &namespace.options);
        let written = std::iter::once(&self.channel.without_namespace).chain(options).map(|one| &one.channel_regex);
        let compiled = written.filter(|regex| !regex.is_empty()).map(|regex| Ok((regex.clone(), Regex::new(regex)?)));
        compiled.collect::<Result<_, regex::Error>>().map_err(|e| LiveConfigError(format!("channel_regex: {e}")))
    }

    /// The longest time that a namespace keeps the epoch and offset of channels without
    /// publications. All channels keep them as long.
    pub fn channel_retention(&self) -> Duration {
        let given = self.all_options().map(|(_, options)| options.history_meta_ttl.0);
        given.fold(self.channel.history_meta_ttl.0, Duration::max)
    }

    /// The format of published data under these options.
    pub fn data_format<'a>(&'a self, options: &'a NamespaceOptions) -> &'a str {
        match options.publication_data_format.as_str() {
            "" => &self.channel.publication_data_format,
            format => format,
        }
    }

    /// The beginning of the channel names of each namespace, with its options.
    pub fn all_options(&self) -> impl Iterator<Item = (String, &NamespaceOptions)> {
        let boundary = &self.channel.namespace_boundary;
        let named = self.channel.namespaces.iter().map(move |n| (format!("{}{boundary}", n.name), &n.options));
        std::iter::once((String::new(), &self.channel.without_namespace)).chain(named)
    }

    /// The namespaces, as the nodes of a cluster compare them.
    ///
    /// # Errors
    /// There are too many, as a message.
    pub fn namespaces(&self) -> Result<Namespaces, String> {
        let boundary = &self.channel.namespace_boundary;
        let terms = self.all_options().map(|(name, options)| {
            // The boundary decides which channels have no namespace.
            let stored = if name.is_empty() { boundary.clone() } else { String::new() };
            NamespaceTerms { stored: stored + &options.stored(), all: options.given(), name }
        });
        Namespaces::new(terms).map_err(|e| format!("live.channel.namespaces: {e}"))
    }

    /// The options of a channel; `None` if its namespace is not configured.
    pub fn namespace_of(&self, channel: &str) -> Option<&NamespaceOptions> {
        match self.split(channel).0 {
            None => Some(&self.channel.without_namespace),
            Some(namespace) => self.channel.namespaces.iter().find(|n| n.name == namespace).map(|n| &n.options),
        }
    }

    /// Whether a user-limited channel name lists this user; `None` if the name is not limited to
    /// users.
    pub fn names_user(&self, channel: &str, user: &str) -> Option<bool> {
        let (_, users) = channel.rsplit_once(self.channel.user_boundary.as_str())?;
        Some(!user.is_empty() && users.split(self.channel.user_separator.as_str()).any(|named| named == user))
    }

    /// The personal channel of a user.
    pub fn personal_channel(&self, user: &str) -> Option<String> {
        let personal = &self.client.subscribe_to_user_personal_channel;
        if !personal.enabled || user.is_empty() {
            return None;
        }
        let (space, bound) = (&personal.personal_channel_namespace, &self.channel.namespace_boundary);
        let namespace = if space.is_empty() { String::new() } else { format!("{space}{bound}") };
        Some(format!("{namespace}{}{user}", self.channel.user_boundary))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_and_users_are_found_in_names() {
        let text = r##"{"channel": {"namespaces": [{"name": "chat", "presence": true, "history_size": 5, "history_ttl": "60s"}]},
            "client": {"subscribe_to_user_personal_channel": {"enabled": true}}}"##;
        let config: LiveConfig = serde_json::from_str(text).expect("valid");
        config.check().expect("valid");
        assert!(config.namespace_of("chat:1").expect("known").presence);
        assert!(config.namespace_of("$chat:1").expect("known").has_history());
        assert!(!config.namespace_of("chat").expect("without").presence);
        assert!(config.namespace_of("other:1").is_none());
        assert_eq!(config.names_user("d#7,42", "42"), Some(true));
        assert_eq!(config.names_user("d#7,42", "4"), Some(false));
        assert_eq!(config.names_user("d#7,", ""), Some(false));
        assert_eq!(config.names_user("d", "42"), None);
        assert_eq!(config.names_user("a#b#42", "42"), Some(true), "the last boundary counts");
        assert_eq!(config.personal_channel("42").as_deref(), Some("#42"));
        assert_eq!(config.personal_channel(""), None);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            (r#"{"clint": {}}"#, "clint"),
            (r#"{"channel": {"without_namespace": {"presense": true}}}"#, "presense"),
            (r#"{"channel": {"namespaces": [{"name": "a", "presense": true}]}}"#, "presense"),
            (r#"{"channel": {"without_namespace": {"history_ttl": "5"}}}"#, "300s"),
            (r#"{"channel": {"without_namespace": {"force_recovery": true}}}"#, "need history_size"),
            (r#"{"channel": {"without_namespace": {"mirror_bucket": "b"}}}"#, "without_namespace: mirror_bucket needs"),
            (r#"{"channel": {"namespaces": [{"name": "a", "mirror_depth": 1}]}}"#, "need mirror_bucket"),
            (
                r#"{"channel": {"without_namespace": {"mirror_bucket": "b", "mirror_depth": 9, "history_size": 1, "history_ttl": "1s"}}}"#,
                "8 at most",
            ),
            (r#"{"channel": {"namespaces": [{"name": "a", "channel_regex": "("}]}}"#, "channel_regex"),
            (r#"{"channel": {"without_namespace": {"publication_data_format": "xml"}}}"#, "json_object"),
            (r#"{"channel": {"publication_data_format": "xml"}}"#, "channel: publication_data_format"),
            (r#"{"channel": {"namespaces": [{"name": "a"}, {"name": "a"}]}}"#, "two of the name"),
            (r#"{"channel": {"namespaces": [{"name": "a:b"}]}}"#, "not a name"),
            (r#"{"client": {"token": {"jwks_public_endpoint": "keys.example.com"}}}"#, "http://"),
            (r#"{"client": {"token": {"jwks_public_endpoint": "https://k/{{realm}}/certs"}}}"#, "{{realm}}"),
            (r#"{"websocket": {"compression": true, "compression_level": 0}}"#, "compression_level: 1 to 9"),
            (r#"{"websocket": {"compression": true, "compression_level": 10}}"#, "compression_level: 1 to 9"),
            (r#"{"websocket": {"compression_prepared_message_cache_size": 1}}"#, "compression_prepared"),
            (r#"{"uni_websocket": {"enabled": true, "compression": true}}"#, "compression"),
            (r#"{"client": {"token": {"issuer_regex": "("}}}"#, "client.token.issuer_regex"),
            (r#"{"client": {"token": {"issuer": "x", "issuer_regex": "x"}}}"#, "issuer_regex, not both"),
            (r#"{"client": {"token": {"audience": "x", "audience_regex": "x"}}}"#, "audience_regex, not both"),
            (r#"{"client": {"token": {"user_id_claim": "a..b"}}}"#, "client.token.user_id_claim"),
            (r#"{"client": {"token": {"user_id_claim": "a-b"}}}"#, "client.token.user_id_claim"),
            (r#"{"client": {"token": {"issuer_rgx": "x"}}}"#, "issuer_rgx"),
            (r#"{"client": {"subscription_token": {"issuer_rgx": "x"}}}"#, "issuer_rgx"),
            (r#"{"client": {"subscription_token": {"issuer_rgx": "x"}}}"#, "client.subscription_token"),
            (r#"{"client": {"user_id_http_header": "a b"}}"#, "client.user_id_http_header"),
            (
                r#"{"client": {"subscribe_to_user_personal_channel": {"enabled": true, "single_connection": true}}}"#,
                "single_connection needs presence",
            ),
            (r#"{"channel": {"without_namespace": {"auto_cache_recover": true}}}"#, "auto_cache_recover needs"),
            (r#"{"client": {"subscription_token": {"enabled": "yes"}}}"#, "client.subscription_token.enabled"),
            (
                r#"{"client": {"subscription_token": {"enabled": true, "jwks_public_endpoint": "keys"}}}"#,
                "client.subscription_token.jwks_public_endpoint",
            ),
            (r#"{"http_api": {"error_mode": "loud"}}"#, "http_api.error_mode"),
        ] {
            let found = serde_json::from_str::<LiveConfig>(text).map_err(|e| e.to_string());
            let error = found.and_then(|config| config.check().map_err(|e| e.to_string())).expect_err(text);
            assert!(error.contains(expected), "{error}");
        }
    }
}
