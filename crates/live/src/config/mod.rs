//! The settings of the live door, under the names and in the nesting of Centrifugo v6, so that its users keep their files.
//!
//! An option that is not supported is refused by name.

mod duration;
mod namespace;

use std::collections::BTreeMap;
use std::time::Duration;

use regex::Regex;
use serde::{Deserialize, Serialize};
use steadfast_store::CHANNEL_BYTES_MAX;

use crate::auth::config::{self as auth, SubscriptionTokenConfig, TokenConfig};
use crate::grpc::GrpcApiConfig;
use crate::proxy::config::{self as proxy, ChannelProxies, ClientProxies, ProxyConfig, RpcConfig};

pub use duration::GoDuration;
pub use namespace::{ChannelDurability, Namespace, NamespaceOptions, Right};

/// Settings that make no sense; for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("live: {0}")]
pub struct LiveConfigError(pub String);

/// Everything.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LiveConfig {
    /// Sessions.
    pub client: ClientConfig,
    /// Channels.
    pub channel: ChannelConfig,
    /// The server API.
    pub http_api: HttpApiConfig,
    /// The same over gRPC, on a port of its own.
    pub grpc_api: GrpcApiConfig,
    /// Calls of clients to the back end.
    pub rpc: RpcConfig,
    /// Proxies that namespaces name.
    pub proxies: Vec<ProxyConfig>,
    /// The WebSocket endpoint.
    pub websocket: WebSocketConfig,
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

/// Sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    /// How tokens are verified.
    pub token: TokenConfig,
    /// How tokens of subscriptions are, if otherwise.
    pub subscription_token: SubscriptionTokenConfig,
    /// What the back end is asked about sessions.
    pub proxy: ClientProxies,
    /// Origins of pages that may connect; `*` in one stands for anything. Requests without an origin are not from browsers.
    pub allowed_origins: Vec<String>,
    /// Sessions without a token are let in, with an empty user.
    pub allow_anonymous_connect_without_token: bool,
    /// Everybody may do everything. For trials.
    pub insecure: bool,
    /// Subscriptions of a session.
    pub channel_limit: usize,
    /// Sessions of a user; 0 for any number.
    pub user_connection_limit: usize,
    /// Sessions; 0 for as many as there are descriptors for.
    pub connection_limit: usize,
    /// Bytes that wait for a session that does not read; over it, it is disconnected as slow.
    pub queue_max_size: usize,
    /// From ping to ping.
    pub ping_interval: GoDuration,
    /// How long a pong may take.
    pub pong_timeout: GoDuration,
    /// How long the connect command may take.
    pub stale_close_delay: GoDuration,
    /// How long a session may go on after its token has expired.
    pub expired_close_delay: GoDuration,
    /// The same of a subscription.
    pub expired_sub_close_delay: GoDuration,
    /// Publications that a history answer has at most.
    pub history_max_publication_limit: usize,
    /// Publications that a recovery brings at most.
    pub recovery_max_publication_limit: usize,
    /// A channel of each user's own, subscribed to by the server.
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

/// A channel of each user's own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PersonalChannelConfig {
    /// Whether there is one.
    pub enabled: bool,
    /// Its namespace.
    pub personal_channel_namespace: String,
}

/// Channels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChannelConfig {
    /// Of channels without a namespace.
    pub without_namespace: NamespaceOptions,
    /// By name.
    pub namespaces: Vec<Namespace>,
    /// What the back end is asked about channels, where a namespace says so.
    pub proxy: ChannelProxies,
    /// Bytes of a name at most.
    pub max_length: usize,
    /// Channels that begin with this need a token, whatever the namespace allows.
    pub private_prefix: String,
    /// Ends the namespace in a name.
    pub namespace_boundary: String,
    /// Begins the users in a name.
    pub user_boundary: String,
    /// Separates them.
    pub user_separator: String,
    /// What is published, where a namespace does not say it: see [`NamespaceOptions`]. Empty: anything but nothing.
    pub publication_data_format: String,
}

impl Default for ChannelConfig {
    fn default() -> Self {
        Self {
            without_namespace: NamespaceOptions::default(),
            namespaces: Vec::new(),
            proxy: ChannelProxies::default(),
            max_length: CHANNEL_BYTES_MAX,
            private_prefix: "$".to_owned(),
            namespace_boundary: ":".to_owned(),
            user_boundary: "#".to_owned(),
            user_separator: ",".to_owned(),
            publication_data_format: String::new(),
        }
    }
}

/// The server API.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpApiConfig {
    /// What `X-API-Key` must be. Empty: nobody gets in.
    pub key: String,
    /// Everybody gets in. For trials.
    pub insecure: bool,
    /// `transport`: errors are statuses of HTTP. Empty: all is 200, with what is wrong in the body.
    pub error_mode: String,
}

/// The WebSocket endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebSocketConfig {
    /// Bytes of a message from a client; of one that comes compressed, before and after that.
    pub message_size_limit: usize,
    /// Messages are compressed for clients that offer to take them so (permessage-deflate),
    pub compression: bool,
    /// those with more bytes than this,
    pub compression_min_size: u32,
    /// from 1, fast, to 9, small.
    pub compression_level: u8,
}

/// An endpoint that is there only if it is wanted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EndpointConfig {
    /// Whether it is there.
    pub enabled: bool,
}

impl Default for WebSocketConfig {
    fn default() -> Self {
        Self { message_size_limit: 64 << 10, compression: false, compression_min_size: 0, compression_level: 1 }
    }
}

impl LiveConfig {
    /// Checks what the types do not.
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
            return fail(format!("channel.max_length: 1 to {CHANNEL_BYTES_MAX}"));
        }
        let without = ("channel.without_namespace".to_owned(), &self.channel.without_namespace);
        let named = self.channel.namespaces.iter().map(|n| (format!("channel.namespaces, {:?}", n.name), &n.options));
        for namespace in &self.channel.namespaces {
            if namespace.name.is_empty() || namespace.name.contains(boundary.as_str()) {
                return fail(format!("channel.namespaces: {:?} is not a name", namespace.name));
            }
            if !names.insert(&namespace.name) {
                return fail(format!("channel.namespaces: there are two of the name {:?}", namespace.name));
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
        if !matches!(self.http_api.error_mode.as_str(), "" | "transport") {
            return Err(LiveConfigError("http_api.error_mode: \"transport\", or nothing".to_owned()));
        }
        self.grpc_api.check().map_err(LiveConfigError)?;
        if !(1..=9).contains(&self.websocket.compression_level) {
            return fail("websocket.compression_level: 1 to 9".into());
        }
        let personal = &self.client.subscribe_to_user_personal_channel;
        let namespace = &personal.personal_channel_namespace;
        if personal.enabled && !namespace.is_empty() && !names.contains(namespace) {
            return fail(format!("personal_channel_namespace: there is no namespace {namespace:?}"));
        }
        if self.client.ping_interval.0 < Duration::from_secs(1) || self.client.pong_timeout >= self.client.ping_interval
        {
            return fail("client.ping_interval: at least 1s, and longer than client.pong_timeout".into());
        }
        Ok(())
    }

    /// A channel's namespace, if its name has one, and what is behind it.
    pub fn split<'a>(&self, channel: &'a str) -> (Option<&'a str>, &'a str) {
        let name = channel.strip_prefix(self.channel.private_prefix.as_str()).unwrap_or(channel);
        match name.split_once(self.channel.namespace_boundary.as_str()) {
            Some((namespace, rest)) => (Some(namespace), rest),
            None => (None, channel),
        }
    }

    /// What names of channels must match, by how that is written.
    ///
    /// # Errors
    /// What is none.
    pub(crate) fn channel_regexes(&self) -> Result<BTreeMap<String, Regex>, LiveConfigError> {
        let options = self.channel.namespaces.iter().map(|namespace| &namespace.options);
        let written = std::iter::once(&self.channel.without_namespace).chain(options).map(|one| &one.channel_regex);
        let compiled = written.filter(|regex| !regex.is_empty()).map(|regex| Ok((regex.clone(), Regex::new(regex)?)));
        compiled.collect::<Result<_, regex::Error>>().map_err(|e| LiveConfigError(format!("channel_regex: {e}")))
    }

    /// What may be published where these options hold.
    pub fn data_format<'a>(&'a self, options: &'a NamespaceOptions) -> &'a str {
        match options.publication_data_format.as_str() {
            "" => &self.channel.publication_data_format,
            format => format,
        }
    }

    /// The namespace of a channel; `None` when there is no such one.
    pub fn namespace_of(&self, channel: &str) -> Option<&NamespaceOptions> {
        match self.split(channel).0 {
            None => Some(&self.channel.without_namespace),
            Some(namespace) => self.channel.namespaces.iter().find(|n| n.name == namespace).map(|n| &n.options),
        }
    }

    /// Whether a channel's name limits it to users, and this one is among them; `None` when it names no users.
    pub fn names_user(&self, channel: &str, user: &str) -> Option<bool> {
        let (_, users) = channel.rsplit_once(self.channel.user_boundary.as_str())?;
        Some(!user.is_empty() && users.split(self.channel.user_separator.as_str()).any(|named| named == user))
    }

    /// The channel that is a user's own.
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
        for (text, says) in [
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
            (r#"{"client": {"token": {"issuer_regex": "x"}}}"#, "issuer_regex"),
            (r#"{"client": {"subscription_token": {"issuer_regex": "x"}}}"#, "issuer_regex"),
            (r#"{"client": {"subscription_token": {"issuer_regex": "x"}}}"#, "client.subscription_token"),
            (r#"{"client": {"subscription_token": {"enabled": "yes"}}}"#, "client.subscription_token.enabled"),
            (
                r#"{"client": {"subscription_token": {"enabled": true, "jwks_public_endpoint": "keys"}}}"#,
                "client.subscription_token.jwks_public_endpoint",
            ),
            (r#"{"http_api": {"error_mode": "loud"}}"#, "http_api.error_mode"),
        ] {
            let found = serde_json::from_str::<LiveConfig>(text).map_err(|e| e.to_string());
            let error = found.and_then(|config| config.check().map_err(|e| e.to_string())).expect_err(text);
            assert!(error.contains(says), "{error}");
        }
    }
}
