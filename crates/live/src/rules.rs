//! What clients may do by the configuration.

use std::collections::BTreeMap;

use regex::Regex;
use steadfast_store::is_own_channel;

use crate::config::{LiveConfig, LiveConfigError, NamespaceOptions, Permission};
use crate::outgoing::is_json;
use crate::protocol::codes::{self, ClientError};

/// The configuration, and what clients may do by it. It has no other state.
#[derive(Debug)]
pub struct Rules {
    pub(crate) config: LiveConfig,
    /// Compiled `channel_regex` options, by their text.
    channel_regexes: BTreeMap<String, Regex>,
}

impl Rules {
    /// The rules of a configuration.
    ///
    /// # Errors
    /// When a `channel_regex` is not an expression.
    pub(crate) fn new(config: LiveConfig) -> Result<Self, LiveConfigError> {
        Ok(Self { channel_regexes: config.channel_regexes()?, config })
    }

    /// The configuration.
    pub fn config(&self) -> &LiveConfig {
        &self.config
    }

    /// The namespace of a channel.
    ///
    /// # Errors
    /// When the name is invalid, or its namespace is not configured.
    pub fn namespace(&self, channel: &str) -> Result<&NamespaceOptions, ClientError> {
        if channel.is_empty() || channel.len() > self.config.channel.max_length || is_own_channel(channel) {
            return Err(codes::BAD_REQUEST);
        }
        self.config.namespace_of(channel).ok_or(codes::UNKNOWN_CHANNEL)
    }

    /// The namespace of a channel that a client names. Checks the name against its rules, too.
    pub(crate) fn client_namespace(&self, channel: &str) -> Result<&NamespaceOptions, ClientError> {
        let options = self.namespace(channel)?;
        let fits = match self.channel_regexes.get(&options.channel_regex) {
            Some(regex) => regex.is_match(self.config.split(channel).1),
            None => channel.is_ascii(),
        };
        if fits { Ok(options) } else { Err(ClientError::bad_request("the channel name is not allowed")) }
    }

    /// Checks data of a publication against Centrifugo's `publication_data_format`.
    pub(crate) fn check_data(&self, options: &NamespaceOptions, data: &[u8]) -> Result<(), ClientError> {
        let object = || data.trim_ascii_start().starts_with(b"{");
        let (fits, wanted) = match self.config.data_format(options) {
            "json" => (!data.is_empty() && is_json(data), "the data must be JSON"),
            "json_object" => (object() && is_json(data), "the data must be a JSON object"),
            "binary" => (true, ""),
            _ => (!data.is_empty(), "the data is empty"),
        };
        if fits { Ok(()) } else { Err(ClientError::bad_request(wanted)) }
    }

    /// Whether the server decides about a channel without asking the back end.
    pub(crate) fn decides(&self, channel: &str) -> bool {
        let asks = |options: &NamespaceOptions| options.subscribe_proxy_enabled || options.publish_proxy_enabled;
        !self.config.namespace_of(channel).is_some_and(asks)
    }

    /// Whether a channel needs a token.
    pub(crate) fn is_private(&self, channel: &str) -> bool {
        let prefix = &self.config.channel.private_prefix;
        !prefix.is_empty() && channel.starts_with(prefix.as_str())
    }

    /// Whether the name of a channel lists the user; `None` if it lists no users. It permits
    /// exactly those, without asking the back end.
    pub(crate) fn users_of(&self, options: &NamespaceOptions, channel: &str, user: &str) -> Option<bool> {
        self.config.names_user(channel, user).filter(|_| options.allow_user_limited_channels)
    }

    /// Whether a user may subscribe to a channel that needs no token.
    pub(crate) fn permits(&self, options: &NamespaceOptions, channel: &str, user: &str) -> bool {
        let listed = self.users_of(options, channel, user);
        let granted = || options.subscribe_permission().is_granted_to(user, false);
        self.config.client.insecure || listed.unwrap_or_else(granted)
    }

    /// Whether a user has a right; insecure mode grants all.
    pub(crate) fn is_granted(&self, right: Permission, user: &str, subscribed: bool) -> bool {
        right.is_granted_to(user, subscribed) || self.config.client.insecure
    }
}
