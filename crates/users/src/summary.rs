//! What operators see of users and keys: all but the secrets.

use serde::Serialize;
use serde_json::Value;

use crate::seal::Seal;
use crate::user::{StoredKey, User};

/// Whether a key signs requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum KeyState {
    /// It does, unless its user is disabled.
    #[serde(rename = "active")]
    Active,
    /// An operator disabled it.
    #[serde(rename = "disabled")]
    Disabled,
    /// Its time has passed.
    #[serde(rename = "expired")]
    Expired,
    /// Its secret cannot be read.
    #[serde(rename = "sealed with another key")]
    SealedOtherwise,
}

/// What operators see of a key.
#[derive(Debug, Clone, Serialize)]
pub struct KeySummary {
    /// Identifies the key.
    pub access_key: String,
    /// The name of its user.
    pub user: String,
    /// Whether it signs requests.
    pub state: KeyState,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it stops to work, in milliseconds since 1970; `None`: never.
    pub expires_ms: Option<u64>,
}

/// What operators see of a user.
#[derive(Debug, Clone, Serialize)]
pub struct UserSummary {
    /// Its name.
    pub name: String,
    /// Whether an operator disabled all of its keys.
    pub disabled: bool,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// Its grants.
    pub grants: Vec<String>,
    /// Its own policy.
    pub policy: Option<Value>,
    /// The names of policies that it shares with others.
    pub attached: Vec<String>,
    /// Its id in access control lists.
    pub canonical_id: String,
    /// Its keys, by their access keys.
    pub keys: Vec<KeySummary>,
}

impl KeySummary {
    pub(crate) fn of(key: &StoredKey, (access_key, user): (&str, &str), seal: &Seal, now_ms: u64) -> Self {
        let state = if key.disabled {
            KeyState::Disabled
        } else if key.is_expired(now_ms) {
            KeyState::Expired
        } else if seal.open(access_key, &key.sealed).is_none() {
            KeyState::SealedOtherwise
        } else {
            KeyState::Active
        };
        let (access_key, user) = (access_key.to_owned(), user.to_owned());
        Self { access_key, user, state, created_ms: key.created_ms, expires_ms: key.expires_ms }
    }
}

impl UserSummary {
    pub(crate) fn of(user: &User, name: &str, seal: &Seal, now_ms: u64) -> Self {
        let keys = user.keys.iter().map(|(access_key, key)| KeySummary::of(key, (access_key, name), seal, now_ms));
        let policy = user.permissions.policy.as_deref();
        Self {
            name: name.to_owned(),
            disabled: user.disabled,
            created_ms: user.created_ms,
            grants: user.permissions.grants.clone(),
            policy: policy.map(|text| serde_json::from_str(text).unwrap_or_default()),
            attached: user.permissions.attached.clone(),
            canonical_id: steadfast_access::canonical_id(Some(name)),
            keys: keys.collect(),
        }
    }
}
