//! Namespaces of channels.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::GoDuration;

/// A namespace with its options.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Map<String, serde_json::Value>")]
pub struct Namespace {
    /// The name of the namespace.
    pub name: String,
    /// Options of its channels.
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

/// When a publication is acknowledged and delivered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChannelDurability {
    /// After the flush that covers it.
    #[default]
    Sync,
    /// At once; the flush follows within a bounded window.
    Async,
}

/// Options of the channels of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NamespaceOptions {
    /// Whether to keep presence: the list of subscribers.
    pub presence: bool,
    /// Whether to send joins and leaves to subscribers.
    pub join_leave: bool,
    /// Whether to send joins and leaves without a request for them.
    pub force_push_join_leave: bool,
    /// Maximum number of publications kept; 0: publications are not stored.
    pub history_size: u64,
    /// How long publications are kept.
    pub history_ttl: GoDuration,
    /// How long the epoch and offset of a channel are kept; 0: as in `channel`.
    pub history_meta_ttl: GoDuration,
    /// Whether all subscriptions are positioned.
    pub force_positioning: bool,
    /// Whether a subscription is positioned on request.
    pub allow_positioning: bool,
    /// Whether all subscriptions recover.
    pub force_recovery: bool,
    /// Whether a subscription recovers on request.
    pub allow_recovery: bool,
    /// The kind of recovery: `stream` sends all missed publications, `cache` the newest one.
    pub force_recovery_mode: String,
    /// Whether each subscription gets the newest publication, as if it asked to recover.
    pub auto_cache_recover: bool,
    /// Whether sessions with a user may subscribe without a subscription token.
    pub allow_subscribe_for_client: bool,
    /// Whether anonymous sessions may too, if `allow_subscribe_for_client` is set.
    pub allow_subscribe_for_anonymous: bool,
    /// Permission to publish: see [`Permission`].
    pub allow_publish_for_client: bool,
    /// As above.
    pub allow_publish_for_anonymous: bool,
    /// As above.
    pub allow_publish_for_subscriber: bool,
    /// Permission to read presence: see [`Permission`].
    pub allow_presence_for_client: bool,
    /// As above.
    pub allow_presence_for_anonymous: bool,
    /// As above.
    pub allow_presence_for_subscriber: bool,
    /// Permission to read the history: see [`Permission`].
    pub allow_history_for_client: bool,
    /// As above.
    pub allow_history_for_anonymous: bool,
    /// As above.
    pub allow_history_for_subscriber: bool,
    /// Whether channel names with users in them are limited to these users.
    pub allow_user_limited_channels: bool,
    /// Whether the server may send publications as deltas.
    pub delta_publish: bool,
    /// The delta types a subscription may use; supported: `fossil`.
    pub allowed_delta_types: Vec<String>,
    /// The format of published data: `json`, `json_object`, or `binary` (any data, also empty).
    /// Empty: as in `channel`.
    pub publication_data_format: String,
    /// The expression that channel names of clients must match, without the namespace. Empty: any
    /// ASCII name.
    pub channel_regex: String,
    /// Whether a subscription may filter publications by tags.
    pub allow_tags_filter: bool,
    /// Whether a proxy decides on subscriptions.
    pub subscribe_proxy_enabled: bool,
    /// The proxy for it; empty or `default`: that of `channel.proxy`.
    pub subscribe_proxy_name: String,
    /// Whether a proxy decides on publications of clients.
    pub publish_proxy_enabled: bool,
    /// The proxy for it, as above.
    pub publish_proxy_name: String,
    /// Whether a proxy extends expiring subscriptions.
    pub sub_refresh_proxy_enabled: bool,
    /// The proxy for it, as above.
    pub sub_refresh_proxy_name: String,
    /// Steadfast's own: when a publication is acknowledged.
    pub durability: ChannelDurability,
    /// Steadfast's own: the bucket whose object events (created, removed) are published to the
    /// channels of this namespace.
    pub mirror_bucket: String,
    /// The key prefix of these objects.
    pub mirror_prefix: String,
    /// The depth of directories below the prefix that have their own channels. The channel `/` gets
    /// all events.
    pub mirror_depth: usize,
    /// The node of the cluster that has the bucket, and is the home of these channels. It may be
    /// empty where the cluster has one home.
    pub mirror_home: String,
}

/// Checks a `publication_data_format`.
pub(super) fn check_data_format(format: &str) -> Result<(), String> {
    match format {
        "" | "json" | "json_object" | "binary" => Ok(()),
        _ => Err("publication_data_format: use \"json\", \"json_object\" or \"binary\"".to_owned()),
    }
}

/// Maximum `mirror_depth`: each level costs a publication for each event.
const MIRROR_DEPTH_MAX: usize = 8;

/// A permission in a channel, from three options of its namespace.
#[derive(Debug, Clone, Copy)]
pub struct Permission {
    /// All sessions have it.
    pub for_client: bool,
    /// Subscribed sessions have it.
    pub for_subscriber: bool,
    /// Sessions without a user have it too, if one of the above applies.
    pub for_anonymous: bool,
}

impl Permission {
    /// Whether a session has it: the same rule as in Centrifugo.
    pub fn is_granted_to(self, user: &str, subscribed: bool) -> bool {
        (self.for_client || self.for_subscriber && subscribed) && (!user.is_empty() || self.for_anonymous)
    }
}

impl NamespaceOptions {
    /// The permission to subscribe without a token.
    pub fn subscribe_permission(&self) -> Permission {
        Permission {
            for_client: self.allow_subscribe_for_client,
            for_subscriber: false,
            for_anonymous: self.allow_subscribe_for_anonymous,
        }
    }

    /// The permission to publish.
    pub fn publish_permission(&self) -> Permission {
        Permission {
            for_client: self.allow_publish_for_client,
            for_subscriber: self.allow_publish_for_subscriber,
            for_anonymous: self.allow_publish_for_anonymous,
        }
    }

    /// The permission to read presence.
    pub fn presence_permission(&self) -> Permission {
        Permission {
            for_client: self.allow_presence_for_client,
            for_subscriber: self.allow_presence_for_subscriber,
            for_anonymous: self.allow_presence_for_anonymous,
        }
    }

    /// The permission to read the history.
    pub fn history_permission(&self) -> Permission {
        Permission {
            for_client: self.allow_history_for_client,
            for_subscriber: self.allow_history_for_subscriber,
            for_anonymous: self.allow_history_for_anonymous,
        }
    }

    /// Whether publications are kept.
    pub fn has_history(&self) -> bool {
        self.history_size > 0 && self.history_ttl.0 > Duration::ZERO
    }

    /// The options that decide what the home of a channel stores. Nodes compare them, so the text
    /// is part of their protocol.
    pub(super) fn stored(&self) -> String {
        let history = self.has_history().then(|| {
            let Self { history_size, history_ttl, durability, .. } = self;
            format!("{history_size} {} {durability:?}", history_ttl.0.as_millis())
        });
        let mirror = (&self.mirror_bucket, &self.mirror_prefix, self.mirror_depth);
        format!("{history:?} {mirror:?}")
    }

    /// The options that are not the default ones: a build with further options has the same.
    pub(super) fn given(&self) -> String {
        let values = |options: &Self| match serde_json::to_value(options) {
            Ok(serde_json::Value::Object(values)) => values,
            _ => serde_json::Map::new(),
        };
        let (mut given, usual) = (values(self), values(&Self::default()));
        given.retain(|key, value| usual.get(key) != Some(value));
        serde_json::Value::from(given).to_string()
    }

    /// Checks what the types do not enforce; returns the first mistake.
    pub(super) fn check(&self) -> Result<(), String> {
        if (self.force_recovery || self.force_positioning) && !self.has_history() {
            return Err("recovery and positioning need history_size and history_ttl".to_owned());
        }
        if !self.mirror_bucket.is_empty() && !self.has_history() {
            return Err("mirror_bucket needs history_size and history_ttl, where events are kept".to_owned());
        }
        let others = self.mirror_depth > 0 || !self.mirror_prefix.is_empty() || !self.mirror_home.is_empty();
        if self.mirror_bucket.is_empty() && others {
            return Err("mirror_prefix, mirror_depth and mirror_home need mirror_bucket".to_owned());
        }
        if self.mirror_depth > MIRROR_DEPTH_MAX {
            return Err(format!("mirror_depth: use {MIRROR_DEPTH_MAX} at most"));
        }
        if !matches!(self.force_recovery_mode.as_str(), "" | "stream" | "cache") {
            return Err("force_recovery_mode: use \"stream\" or \"cache\"".to_owned());
        }
        if self.auto_cache_recover && !(self.force_recovery && self.force_recovery_mode == "cache") {
            return Err("auto_cache_recover needs force_recovery and force_recovery_mode \"cache\"".to_owned());
        }
        check_data_format(&self.publication_data_format)?;
        if self.allowed_delta_types.iter().any(|kind| kind != "fossil") {
            return Err("allowed_delta_types: only \"fossil\" is supported".to_owned());
        }
        Ok(())
    }
}
