//! The settings of the live door, under the names and in the nesting of Centrifugo v6, so that its users keep their files.
//!
//! An option that is not supported is refused by name.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use steadfast_store::CHANNEL_BYTES_MAX;

use crate::auth::config::{self as auth, SubscriptionTokenConfig, TokenConfig};
use crate::grpc::GrpcApiConfig;
use crate::proxy::config::{self as proxy, ChannelProxies, ClientProxies, ProxyConfig, RpcConfig};

/// Settings that make no sense; for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("live: {0}")]
pub struct LiveConfigError(pub String);

/// A time as Go writes it: `300s`, `1h30m`, `250ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct GoDuration(pub Duration);

impl GoDuration {
    const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    fn parse(text: &str) -> Option<Self> {
        if text == "0" {
            return Some(Self::default());
        }
        let mut total = 0f64;
        let mut rest = text;
        while !rest.is_empty() {
            let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
            let unit_end = rest[number..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |n| number + n);
            let factor = match &rest[number..unit_end] {
                "ns" => 1e-9,
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
            total += rest[..number].parse::<f64>().ok()? * factor;
            rest = &rest[unit_end..];
        }
        (!text.is_empty()).then(|| Duration::try_from_secs_f64(total).ok().map(Self))?
    }
}

impl Serialize for GoDuration {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{}ms", self.0.as_millis()))
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = GoDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"300s\" or \"1h30m\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<GoDuration, E> {
                GoDuration::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        d.deserialize_str(Text)
    }
}

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
        }
    }
}

/// A namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Map<String, serde_json::Value>")]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// What its channels are like.
    #[serde(flatten)]
    pub options: NamespaceOptions,
}

impl TryFrom<serde_json::Map<String, serde_json::Value>> for Namespace {
    type Error = String;

    fn try_from(mut map: serde_json::Map<String, serde_json::Value>) -> Result<Self, String> {
        let Some(serde_json::Value::String(name)) = map.remove("name") else {
            return Err("a namespace needs a name".to_owned());
        };
        let options = serde_json::from_value(map.into()).map_err(|e| format!("in the namespace {name:?}: {e}"))?;
        Ok(Self { name, options })
    }
}

/// When a publication is answered and delivered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChannelDurability {
    /// After the flush that covers it.
    #[default]
    Sync,
    /// At once; the flush follows within a bounded window.
    Async,
}

/// What the channels of a namespace are like.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NamespaceOptions {
    /// Who is subscribed can be asked.
    pub presence: bool,
    /// Who comes and goes can be heard,
    pub join_leave: bool,
    /// and is, without being asked for.
    pub force_push_join_leave: bool,
    /// Publications that are kept; 0 for none: then they are not stored at all.
    pub history_size: u64,
    /// For how long they are kept.
    pub history_ttl: GoDuration,
    /// Every subscription follows its position,
    pub force_positioning: bool,
    /// or those that ask for it.
    pub allow_positioning: bool,
    /// Every subscription recovers,
    pub force_recovery: bool,
    /// or those that ask for it.
    pub allow_recovery: bool,
    /// `stream` brings all that was missed, `cache` the newest publication.
    pub force_recovery_mode: String,
    /// Who has a token may subscribe; with this, everybody who is somebody,
    pub allow_subscribe_for_client: bool,
    /// and anonymous ones.
    pub allow_subscribe_for_anonymous: bool,
    /// Every session may publish,
    pub allow_publish_for_client: bool,
    /// anonymous ones too,
    pub allow_publish_for_anonymous: bool,
    /// or those that are subscribed.
    pub allow_publish_for_subscriber: bool,
    /// Who may ask who is subscribed.
    pub allow_presence_for_client: bool,
    /// As above.
    pub allow_presence_for_anonymous: bool,
    /// As above.
    pub allow_presence_for_subscriber: bool,
    /// Who may ask what was published.
    pub allow_history_for_client: bool,
    /// As above.
    pub allow_history_for_anonymous: bool,
    /// As above.
    pub allow_history_for_subscriber: bool,
    /// Names with users in them are for these alone.
    pub allow_user_limited_channels: bool,
    /// Publications may be sent as differences,
    pub delta_publish: bool,
    /// of these kinds: `fossil`.
    pub allowed_delta_types: Vec<String>,
    /// Subscriptions may ask for publications with certain tags only.
    pub allow_tags_filter: bool,
    /// The back end is asked who may subscribe,
    pub subscribe_proxy_enabled: bool,
    /// through this proxy; empty or `default` for that of `channel.proxy`.
    pub subscribe_proxy_name: String,
    /// The back end is asked who may publish what,
    pub publish_proxy_enabled: bool,
    /// as above.
    pub publish_proxy_name: String,
    /// The back end is asked how much longer subscriptions last,
    pub sub_refresh_proxy_enabled: bool,
    /// as above.
    pub sub_refresh_proxy_name: String,
    /// Ours: when a publication is answered.
    pub durability: ChannelDurability,
    /// Ours: its channels are told of objects of this bucket that are created or removed,
    pub mirror_bucket: String,
    /// those whose keys begin with this.
    pub mirror_prefix: String,
    /// The channel `/` is told of all of them, and each directory below the prefix has one of its own, so many levels deep.
    pub mirror_depth: usize,
}

/// How deep directories may have channels of their own: each costs a publication for each event.
const MIRROR_DEPTH_MAX: usize = 8;

impl NamespaceOptions {
    /// Whether publications are kept.
    pub fn has_history(&self) -> bool {
        self.history_size > 0 && self.history_ttl.0 > Duration::ZERO
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
            if (options.force_recovery || options.force_positioning) && !options.has_history() {
                return fail(format!("{place}: recovery and positioning need history_size and history_ttl"));
            }
            if !options.mirror_bucket.is_empty() && !options.has_history() {
                return fail(format!(
                    "{place}: mirror_bucket needs history_size and history_ttl, where events are kept"
                ));
            }
            if options.mirror_bucket.is_empty() && (options.mirror_depth > 0 || !options.mirror_prefix.is_empty()) {
                return fail(format!("{place}: mirror_prefix and mirror_depth need mirror_bucket"));
            }
            if options.mirror_depth > MIRROR_DEPTH_MAX {
                return fail(format!("{place}: mirror_depth is {MIRROR_DEPTH_MAX} at most"));
            }
            if !matches!(options.force_recovery_mode.as_str(), "" | "stream" | "cache") {
                return fail(format!("{place}: force_recovery_mode is \"stream\" or \"cache\""));
            }
            if options.allowed_delta_types.iter().any(|kind| kind != "fossil") {
                return fail(format!("{place}: allowed_delta_types: there is \"fossil\""));
            }
        }
        proxy::check(self)?;
        auth::check(&self.client)?;
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

    /// The namespace of a channel; `None` when there is no such one.
    pub fn namespace_of(&self, channel: &str) -> Option<&NamespaceOptions> {
        let name = channel.strip_prefix(self.channel.private_prefix.as_str()).unwrap_or(channel);
        match name.split_once(self.channel.namespace_boundary.as_str()) {
            None => Some(&self.channel.without_namespace),
            Some((namespace, _)) => self.channel.namespaces.iter().find(|n| n.name == namespace).map(|n| &n.options),
        }
    }

    /// Whether a channel's name limits it to users, and this one is among them; `None` when it names no users.
    pub fn names_user(&self, channel: &str, user: &str) -> Option<bool> {
        let (_, users) = channel.split_once(self.channel.user_boundary.as_str())?;
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
    fn times_are_read_as_go_writes_them() {
        for (text, ms) in [("300s", 300_000), ("1h30m", 5_400_000), ("250ms", 250), ("1.5s", 1500), ("0", 0), ("0s", 0)]
        {
            assert_eq!(GoDuration::parse(text), Some(GoDuration(Duration::from_millis(ms))), "{text}");
        }
        for text in ["", "5", "s", "1x", "-1s", "1h30"] {
            assert_eq!(GoDuration::parse(text), None, "{text}");
        }
    }

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
        ] {
            let found = serde_json::from_str::<LiveConfig>(text).map_err(|e| e.to_string());
            let error = found.and_then(|config| config.check().map_err(|e| e.to_string())).expect_err(text);
            assert!(error.contains(says), "{error}");
        }
    }
}
