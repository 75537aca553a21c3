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
        if self.allowed_delta_types.iter().any(|kind| kind != "fossil") {
            return Err("allowed_delta_types: there is \"fossil\"".to_owned());
        }
        Ok(())
    }
}
