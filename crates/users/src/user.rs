//! What the pool stores of a user.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::permissions::Permissions;

/// The most keys of a user.
pub(crate) const KEYS_MAX: usize = 10;

/// The longest name of a user, in bytes. Source: AWS.
const NAME_BYTES_MAX: usize = 64;

/// What the pool stores of a user, as JSON. A build refuses a user with a field that it does not
/// know: without it the user could do more.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct User {
    /// Milliseconds since 1970.
    pub(crate) created_ms: u64,
    /// None of its keys works.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) disabled: bool,
    #[serde(default)]
    pub(crate) permissions: Permissions,
    /// The keys, by their access keys.
    #[serde(default)]
    pub(crate) keys: BTreeMap<String, StoredKey>,
}

/// What the pool stores of an access key.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredKey {
    /// The secret key, sealed.
    pub(crate) sealed: String,
    /// Milliseconds since 1970.
    pub(crate) created_ms: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) disabled: bool,
    /// When it stops to work, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires_ms: Option<u64>,
}

impl StoredKey {
    /// Whether its time has passed.
    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|end| end <= now_ms)
    }
}

impl User {
    /// Reads what the pool stores.
    ///
    /// # Errors
    /// The text is no user, or one of a later build.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    /// What the pool stores.
    ///
    /// # Errors
    /// Those of JSON.
    pub(crate) fn text(&self) -> Result<String, String> {
        serde_json::to_string(self).map_err(|e| e.to_string())
    }
}

/// Checks the name of a user: it is part of ARNs and of policies.
///
/// # Errors
/// What is wrong, as a message.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+=,.@_-".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(plain) {
        return Err(format!("the name of a user is 1 to {NAME_BYTES_MAX} letters, digits or characters of +=,.@_-"));
    }
    // The ARN of the account ends so.
    if name == "root" { Err("the name root is that of the configured key".to_owned()) } else { Ok(()) }
}
