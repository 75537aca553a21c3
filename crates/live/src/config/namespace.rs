//! Namespaces of channels.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::GoDuration;

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
    /// and with this as well, who is nobody.
    pub allow_subscribe_for_anonymous: bool,
    /// Who may publish: see [`Right`].
    pub allow_publish_for_client: bool,
    /// As above.
    pub allow_publish_for_anonymous: bool,
    /// As above.
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
    /// What is published must be `json`, a `json_object`, or may be anything, and nothing too (`binary`). Empty: as `channel` says.
    pub publication_data_format: String,
    /// What clients may name a channel, behind the namespace. Empty: anything in ASCII.
    pub channel_regex: String,
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

/// Checks a `publication_data_format`.
pub(super) fn check_data_format(format: &str) -> Result<(), String> {
    match format {
        "" | "json" | "json_object" | "binary" => Ok(()),
        _ => Err("publication_data_format is \"json\", \"json_object\" or \"binary\"".to_owned()),
    }
}

/// How deep directories may have channels of their own: each costs a publication for each event.
const MIRROR_DEPTH_MAX: usize = 8;

/// A right in a channel: three options of a namespace, which say together who has it.
#[derive(Debug, Clone, Copy)]
pub struct Right {
    /// Every session,
    pub for_client: bool,
    /// or one that is subscribed;
    pub for_subscriber: bool,
    /// and this is asked for as well, where a session has no user.
    pub for_anonymous: bool,
}

impl Right {
    /// Whether a session has it: Centrifugo's expression.
    pub fn is_of(self, user: &str, subscribed: bool) -> bool {
        (self.for_client || self.for_subscriber && subscribed) && (!user.is_empty() || self.for_anonymous)
    }
}

impl NamespaceOptions {
    /// The right to subscribe without a token.
    pub fn subscribing(&self) -> Right {
        Right {
            for_client: self.allow_subscribe_for_client,
            for_subscriber: false,
            for_anonymous: self.allow_subscribe_for_anonymous,
        }
    }

    /// The right to publish.
    pub fn publishing(&self) -> Right {
        Right {
            for_client: self.allow_publish_for_client,
            for_subscriber: self.allow_publish_for_subscriber,
            for_anonymous: self.allow_publish_for_anonymous,
        }
    }

    /// The right to ask who is subscribed.
    pub fn asking_presence(&self) -> Right {
        Right {
            for_client: self.allow_presence_for_client,
            for_subscriber: self.allow_presence_for_subscriber,
            for_anonymous: self.allow_presence_for_anonymous,
        }
    }

    /// The right to ask what was published.
    pub fn asking_history(&self) -> Right {
        Right {
            for_client: self.allow_history_for_client,
            for_subscriber: self.allow_history_for_subscriber,
            for_anonymous: self.allow_history_for_anonymous,
        }
    }

    /// Whether publications are kept.
    pub fn has_history(&self) -> bool {
        self.history_size > 0 && self.history_ttl.0 > Duration::ZERO
    }

    /// Checks what the types do not; the first mistake.
    pub(super) fn check(&self) -> Result<(), String> {
        if (self.force_recovery || self.force_positioning) && !self.has_history() {
            return Err("recovery and positioning need history_size and history_ttl".to_owned());
        }
        if !self.mirror_bucket.is_empty() && !self.has_history() {
            return Err("mirror_bucket needs history_size and history_ttl, where events are kept".to_owned());
        }
        if self.mirror_bucket.is_empty() && (self.mirror_depth > 0 || !self.mirror_prefix.is_empty()) {
            return Err("mirror_prefix and mirror_depth need mirror_bucket".to_owned());
        }
        if self.mirror_depth > MIRROR_DEPTH_MAX {
            return Err(format!("mirror_depth is {MIRROR_DEPTH_MAX} at most"));
        }
        if !matches!(self.force_recovery_mode.as_str(), "" | "stream" | "cache") {
            return Err("force_recovery_mode is \"stream\" or \"cache\"".to_owned());
        }
        check_data_format(&self.publication_data_format)?;
        if self.allowed_delta_types.iter().any(|kind| kind != "fossil") {
            return Err("allowed_delta_types: there is \"fossil\"".to_owned());
        }
        Ok(())
    }
}
